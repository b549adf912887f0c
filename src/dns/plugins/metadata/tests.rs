use std::sync::Arc;

use crate::dns::plugins::tests::fake_upstream::{FakeUpstream, address};
use crate::dns::plugins::tests::support::TestServer;
use crate::model::service_key::ServiceKey;
use crate::store::cluster::Cluster;
use crate::store::cluster::objects::Kind;
use crate::store::cluster::registry::ClusterSpec;

const KUBERNETES: &str = "kubernetes cluster.local in-addr.arpa {\npods verified\n}";

fn cluster(server: &TestServer) -> Arc<Cluster> {
    let cluster = server.shared.clusters.cluster(ClusterSpec { has_pods: true, ..ClusterSpec::default() });
    cluster.set_pod(&ServiceKey::new("shop", "client-0"), &[[10, 0, 0, 1].into()]);
    Kind::ALL.into_iter().for_each(|kind| cluster.set_listed(kind));
    cluster
}

fn format(labels: &[&str]) -> String {
    labels.iter().map(|label| format!("{{/kubernetes/{label}}}")).collect::<Vec<_>>().join("|")
}

#[tokio::test]
async fn labels_have_the_parts_of_a_name() {
    let format =
        format(&["kind", "namespace", "service", "endpoint", "port-name", "protocol", "zone", "parse-error"]);
    let server = TestServer::block(&format!("metadata\nlog . {format}\n{KUBERNETES}\nwhoami"));
    let _cluster = cluster(&server);
    for (name, expected) in [
        ("Web.Shop.svc.cluster.local.", "svc|shop|web||||-|-"),
        ("one.web.shop.svc.cluster.local.", "svc|shop|web|one|||-|-"),
        ("_http._tcp.web.shop.svc.cluster.local.", "svc|shop|web||http|tcp|-|-"),
        ("10-0-0-1.shop.pod.cluster.local.", "pod|shop|10-0-0-1||||-|-"),
        ("shop.svc.cluster.local.", "svc|shop|||||-|-"),
        ("svc.cluster.local.", "||||||-|-"),
        ("cluster.local.", "||||||-|-"),
        ("a\\.b.shop.svc.cluster.local.", "svc|shop|a\\.b||||-|-"),
        ("a.b.c.web.shop.svc.cluster.local.", "-|-|-|-|-|-|-|invalid query name"),
        ("web.cluster.local.", "-|-|-|-|-|-|-|invalid query name"),
        ("1.0.0.10.in-addr.arpa.", "-|-|-|-|-|-|-|invalid query name"),
        ("example.org.", "-|-|-|-|-|-|-|-"),
    ] {
        server.ask(&format!("{name} A")).await;
        assert_eq!(server.lines(), [format!("[INFO] {expected}")], "{name}");
    }
}

#[tokio::test]
async fn labels_name_the_clients_pod_only_with_metadata() {
    let format = format(&["client-namespace", "client-pod-name"]);
    for (lines, client, expected) in [
        ("metadata", "10.0.0.1", "shop|client-0"),
        ("metadata", "10.0.0.2", "-|-"),
        ("metadata example.com", "10.0.0.1", "-|-"),
        ("", "10.0.0.1", "-|-"),
    ] {
        let server =
            TestServer::block(&format!("{lines}\nlog . {format}\n{KUBERNETES}\nwhoami")).from(client);
        let _cluster = cluster(&server);
        server.ask("example.org. A").await;
        assert_eq!(server.lines(), [format!("[INFO] {expected}")], "{lines} {client}");
    }
}

#[tokio::test]
async fn labels_name_the_upstream_that_was_asked() {
    let upstream = FakeUpstream::start(|asked, _| Some(address(asked, 1))).await;
    let of = upstream.address;
    let lines = format!("metadata cluster.local\nlog . {{/forward/upstream}}\ncache\nforward . {of}");
    let server = TestServer::block(&lines);
    for expected in [of.to_string(), "-".to_owned()] {
        server.ask("www.example. A").await;
        assert_eq!(server.lines(), [format!("[INFO] {expected}")], "the second answer is from the cache");
    }
}

#[tokio::test]
async fn templates_read_labels_and_their_answers_are_not_kept() {
    let template = "template IN TXT {\nanswer \"{{ .Name }} 60 IN TXT \\\"{{ .Meta `kubernetes/client-namespace` }}{{ \
                    $.Meta `a/b` }}.\\\"\"\n}";
    let server = TestServer::block(&format!("metadata\ncache\n{template}\n{KUBERNETES}"));
    let cluster = cluster(&server);
    assert_eq!(server.ask("a. TXT").await, "NOERROR aa | a. 60 IN TXT shop. | |");
    cluster.set_pod(&ServiceKey::new("shop", "client-0"), &[]);
    assert_eq!(server.ask("a. TXT").await, "NOERROR aa | a. 60 IN TXT . | |");
}

#[test]
fn labels_that_are_never_known_are_warned_of() {
    for (lines, expected) in [
        (
            "log . {/kubernetes/service}",
            "2:7: {/kubernetes/service} has no effect here: the block has no metadata",
        ),
        (
            "metadata\nlog . {/a/b}",
            "3:7: {/a/b} has no effect here: the labels are forward/upstream, geoip/asn/number, ",
        ),
        (
            "template IN A {\nanswer \"{{ .Meta `a` }}\"\n}",
            "2:1: .Meta has no effect here: the block has no metadata",
        ),
        (
            "metadata\nlog . {/kubernetes/service}",
            "3:7: {/kubernetes/service} has no effect here: the block has no kubernetes",
        ),
        (
            "metadata\nlog . {/kubernetes/zone}\nkubernetes a.b",
            "3:7: {/kubernetes/zone} has no effect here: kubernetes has no line zonal",
        ),
        (
            "metadata\nlog . {/kubernetes/client-pod-name}\nkubernetes a.b {\npods insecure\n}",
            "3:7: {/kubernetes/client-pod-name} has no effect here: kubernetes has no line pods verified",
        ),
        ("metadata\nlog . {/kubernetes/service}\nkubernetes a.b", ""),
        ("metadata\nlog . {/kubernetes/zone}\nkubernetes a.b {\nzonal\n}", ""),
        ("metadata\nlog . {/kubernetes/client-namespace}\nkubernetes a.b {\npods verified\n}", ""),
        ("metadata\ntemplate IN A {\nanswer \"{{ .Meta `a` }}\"\n}", ""),
    ] {
        let warnings = TestServer::builder(lines).warnings;
        let found = warnings.first().map(ToString::to_string).unwrap_or_default();
        let expected = if expected.is_empty() { String::new() } else { format!("Corefile:{expected}") };
        assert!(found.starts_with(&expected) && found.is_empty() == expected.is_empty(), "{lines}: {found}");
    }
}

#[test]
fn invalid_lines_are_rejected_with_their_position() {
    for (lines, expected) in [
        ("metadata a..b", "2:10: \"a..b\" isn't a zone, or a network such as 10.0.0.0/8"),
        ("metadata {\n}", "2:1: metadata takes no braces"),
        (
            "metadata\nmetadata",
            "3:1: metadata can be there only once in a block, and it is on line 2 already",
        ),
    ] {
        assert_eq!(TestServer::error(lines), format!("Corefile:{expected}"), "{lines}");
    }
}
