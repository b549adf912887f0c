//! The target policy for each name of a CNAME chain, over real UDP and TCP, with a real CoreDNS as the upstream.

use serde_json::json;

use crate::answers::start_with_manifests;
use crate::harness::cluster::Ingress;
use crate::harness::cluster_with_target;
use crate::harness::dns::{
    CoreDns, IN_CLIENT_TIMEOUT, answers, ask_repeatedly, ask_within, ede, query, show, without_foreign_ttls,
};
use crate::harness::linker::Linker;
use crate::recreation::wait_for_external_target;

/// Returns the manifest of a load balancer with the annotation `allow-from`.
fn balancer(namespace: &str, name: &str, ingress: &str, allow_from: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: Service\n\
         metadata: {{name: {name}, namespace: {namespace}, annotations: {{linker.hsj.com/allow-from: '{allow_from}'}}}}\n\
         spec: {{type: LoadBalancer}}\nstatus: {{loadBalancer: {{ingress: [{ingress}]}}}}\n"
    )
}

/// Starts a resolver in which a tenant's names point at denied targets.
async fn cloud() -> CoreDns {
    let plugins = r#"
        template IN ANY inside.example.com {
            answer "{{ .Name }} 60 IN CNAME api.default.svc.cluster.local."
            answer "api.default.svc.cluster.local. 60 IN A 10.96.0.1"
        }
        template IN ANY back.example.com {
            answer "{{ .Name }} 60 IN CNAME b.other.lb.internal."
        }
        template IN A nets.example.com {
            answer "{{ .Name }} 60 IN A 192.0.2.1"
            answer "{{ .Name }} 60 IN A 10.96.0.1"
            answer "{{ .Name }} 60 IN A 127.0.0.1"
        }
        template IN MX mail.example.com {
            answer "{{ .Name }} 60 IN MX 1 mail.default.svc.cluster.local."
            answer "{{ .Name }} 60 IN MX 2 mx.example.com."
        }"#;
    CoreDns::start(plugins, "").await
}

#[tokio::test]
async fn chain_into_the_cluster_is_cut_in_every_answer() {
    let upstream = cloud().await;
    let mut manifests = balancer("default", "web", "{hostname: inside.example.com}", "");
    manifests += &balancer("default", "mail", "{hostname: mail.example.com}", "");
    let fixture = start_with_manifests(&manifests, &["--upstream", &upstream.address.to_string()], &[]).await;
    let counter = "lb_linker_dns_targets_denied_total{reason=\"name\"}";
    for (question, expected) in [
        (
            "web.default.lb.internal. A",
            "No Error aa rd ra | inside.example.com. TTL IN CNAME api.default.svc.cluster.local., \
             web.default.lb.internal. 5 IN CNAME inside.example.com. |  | ",
        ),
        (
            "mail.default.lb.internal. MX",
            "No Error aa rd ra | mail.default.lb.internal. 5 IN CNAME mail.example.com., \
             mail.example.com. TTL IN MX 2 mx.example.com. |  | ",
        ),
    ] {
        let first = ask_within(IN_CLIENT_TIMEOUT, fixture.linker.dns, &query(question)).await;
        let before = fixture.linker.metric(counter).unwrap_or_default();
        // These answers come from the cache.
        let all = ask_repeatedly(fixture.linker.dns, &query(question)).await;
        for answer in [&first].into_iter().chain(&all) {
            assert_eq!(without_foreign_ttls(&show(answer)), expected, "{question}");
            assert_eq!(ede(answer), Some(15), "{question}");
        }
        // Repeated answers from a cache count, too.
        let number = u32::try_from(all.len()).unwrap();
        assert_eq!(fixture.linker.metric(counter), Some(before + f64::from(number)), "{question}");
    }
}

#[tokio::test]
async fn target_domains_apply_only_to_the_first_name() {
    let plugins = r#"
        template IN A cdn.example.com {
            answer "{{ .Name }} 60 IN CNAME edge.example.net."
            answer "edge.example.net. 60 IN A 192.0.2.1"
        }"#;
    let upstream = CoreDns::start(plugins, "").await;
    let manifests = balancer("default", "inside", "{hostname: cdn.example.com}", "")
        + &balancer("default", "outside", "{hostname: edge.example.net}", "");
    let upstream = upstream.address.to_string();
    let fixture =
        start_with_manifests(&manifests, &["--upstream", &upstream, "--target-domains", "example.com"], &[])
            .await;
    let chain = "cdn.example.com. edge.example.net. 192.0.2.1";
    answers(fixture.linker.dns, "inside.default.lb.internal. A", chain).await;
    answers(fixture.linker.dns, "outside.default.lb.internal. A", "No Error").await;
}

#[tokio::test]
async fn chain_is_cut_when_allow_from_is_withdrawn() {
    let upstream = cloud().await;
    let manifests = |allow_from: &str| {
        balancer("default", "first", "{hostname: b-other.lb.internal}", "")
            + &balancer("default", "later", "{hostname: back.example.com}", "")
            + &balancer("other", "b", "{ip: 192.0.2.7}", allow_from)
    };
    let fixture =
        start_with_manifests(&manifests("x, default"), &["--upstream", &upstream.address.to_string()], &[])
            .await;
    let dns = fixture.linker.dns;
    let table = [
        ("first.default.lb.internal. A", "b-other.lb.internal."),
        ("later.default.lb.internal. A", "back.example.com. b.other.lb.internal."),
    ];
    for (allow_from, is_open) in [("x, default", true), ("x", false), ("'*'", true)] {
        fixture.write(&manifests(allow_from.trim_matches('\'')));
        for (question, names) in table {
            let expected = if is_open { format!("{names} 192.0.2.7") } else { names.to_owned() };
            answers(dns, question, &expected).await;
            for answer in ask_repeatedly(dns, &query(question)).await {
                let addresses = answer.answers.iter().filter(|record| record.data.ip_addr().is_some());
                assert_eq!((addresses.count() > 0, ede(&answer)), (is_open, (!is_open).then_some(15)));
            }
        }
    }
    let why = "allow-from doesn't list namespace default";
    assert_eq!(fixture.linker.logged(why), 1, "{:#?}", fixture.linker.log());
}

#[tokio::test]
async fn denied_nets_apply_to_a_status_and_to_answers() {
    let upstream = cloud().await;
    let manifests = balancer("default", "chased", "{hostname: nets.example.com}", "")
        + &balancer("default", "own", "{ip: 10.96.0.1}, {ip: 127.0.0.1}, {ip: '64:ff9b::10.96.0.1'}", "");
    let upstream = upstream.address.to_string();
    let args = ["--upstream", &upstream, "--denied-nets", "10.96.0.0/12", "--allowed-nets", "127.0.0.0/8"];
    let fixture = start_with_manifests(&manifests, &args, &[]).await;
    let dns = fixture.linker.dns;
    answers(dns, "own.default.lb.internal. A", "127.0.0.1").await;
    answers(dns, "own.default.lb.internal. AAAA", "No Error").await;
    answers(dns, "chased.default.lb.internal. A", "nets.example.com. 127.0.0.1 192.0.2.1").await;
    let line = fixture.linker.line("Service default/own: the address in the status \"10.96.0.1\"").await;
    assert!(line.contains("it lies in the denied network 10.96.0.0/12 (--denied-nets)"), "{line}");
}

#[tokio::test]
async fn target_in_another_namespace_is_followed_once_allowed() {
    let (plane, cluster, target) = cluster_with_target().await;
    let (guest, host) = (cluster.create_namespace("guest").await, cluster.create_namespace("host").await);
    let both = format!("{guest},{host}");
    let args = ["--upstream", "none", "--watch-namespaces", &both];
    let mut linker = Linker::in_cluster(plane, &target, &args);
    linker.ready().await;
    let name = format!("web.{host}.lb.internal");
    cluster.create_load_balancer(&guest, "door").await;
    cluster.set_ingress(&guest, "door", &[Ingress::Hostname("before.example.com")]).await;
    let (question, object) = (format!("door.{guest}.lb.internal. A"), format!("door-{guest}-ext"));
    answers(linker.dns, &question, "before.example.com.").await;
    // The target names a load balancer that doesn't exist yet.
    cluster.set_ingress(&guest, "door", &[Ingress::Hostname(&name)]).await;
    linker.line("belongs to no object").await;
    cluster.create_load_balancer(&host, "web").await;
    cluster.set_ingress(&host, "web", &[Ingress::Ip("192.0.2.7")]).await;
    linker.line(&format!("belongs to Service {host}/web")).await;
    answers(linker.dns, &question, "before.example.com.").await;
    linker.counts("lb_linker_targets_refused", 1.0).await;

    let allow = |namespaces: Option<&str>| json!({"metadata": {"annotations": {"linker.hsj.com/allow-from": namespaces}}});
    cluster.patch_service(&host, "web", allow(Some(&guest))).await;
    answers(linker.dns, &question, &format!("{name}. 192.0.2.7")).await;
    wait_for_external_target(&cluster, &target, &object, &name).await;
    linker.counts("lb_linker_targets_refused", 0.0).await;

    // After a restart the two Services may be listed in either order, and the target isn't refused.
    linker.stop();
    linker = Linker::in_cluster(plane, &target, &args);
    linker.ready().await;
    answers(linker.dns, &question, &format!("{name}. 192.0.2.7")).await;
    assert_eq!(linker.logged("isn't served"), 0, "{:#?}", linker.log());

    cluster.patch_service(&host, "web", allow(None)).await;
    answers(linker.dns, &question, &format!("{name}.")).await;
    linker.line(&format!("belongs to Service {host}/web")).await;
    linker.counts("lb_linker_targets_refused", 1.0).await;
    wait_for_external_target(&cluster, &target, &object, &name).await;
}
