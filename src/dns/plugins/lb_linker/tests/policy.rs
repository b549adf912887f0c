//! Tests of the target policy, `allow-from` and `acl` at each name of a chain.

use super::name;
use crate::dns::chain::request::Purpose;
use crate::dns::chain::server::Server;
use crate::dns::message::reply::Reply;
use crate::dns::plugins::lb_linker::failed_targets;
use crate::dns::plugins::tests::support::{TestServer, link};
use crate::model::link::{Annotations, ObservedService, Port};
use crate::model::service_key::ServiceKey;
use crate::model::target_policy::TargetPolicy;
use crate::store::Input;

const UPSTREAM: &str = r#"
. {
    acl hidden.example {
        block net 10.0.0.1
    }
    acl v6.example {
        filter type AAAA net 10.0.0.1
    }
    acl quiet.example {
        drop net 10.0.0.1
    }
    template IN ANY cluster.example {
        answer "{{ .Name }} 60 IN CNAME api.default.svc.Cluster.Local."
        answer "api.default.svc.cluster.local. 60 IN A 10.96.0.1"
    }
    template IN ANY here.example {
        answer "{{ .Name }} 60 IN CNAME a.localhost."
        answer "a.localhost. 60 IN A 192.0.2.1"
    }
    template IN ANY via.example {
        answer "{{ .Name }} 60 IN CNAME hidden.example."
    }
    template IN ANY viaquiet.example {
        answer "{{ .Name }} 60 IN CNAME quiet.example."
    }
    template IN ANY back.example {
        answer "{{ .Name }} 60 IN CNAME b.other.lb.internal."
        answer "b.other.lb.internal. 60 IN A 192.0.2.66"
    }
    template IN SRV data.example {
        answer "{{ .Name }} 60 IN SRV 0 0 1 api.cluster.local."
        answer "{{ .Name }} 60 IN SRV 0 0 2 localhost."
        answer "{{ .Name }} 60 IN SRV 0 0 3 b.other.lb.internal."
        answer "{{ .Name }} 60 IN SRV 0 0 4 hidden.example."
        answer "{{ .Name }} 60 IN SRV 0 0 5 v6.example."
        answer "{{ .Name }} 60 IN SRV 0 0 6 good.example."
        answer "{{ .Name }} 60 IN SRV 0 0 7 ."
    }
    template IN MX data.example {
        answer "{{ .Name }} 60 IN MX 1 api.cluster.local."
        answer "{{ .Name }} 60 IN MX 2 good.example."
        answer "{{ .Name }} 60 IN MX 0 ."
    }
    template IN HTTPS data.example {
        answer "{{ .Name }} 60 IN HTTPS 1 api.cluster.local. alpn=h2"
        answer "{{ .Name }} 60 IN HTTPS 2 . alpn=h2"
    }
    template IN A example {
        answer "{{ .Name }} 60 IN A 192.0.2.9"
    }
    template IN ANY example {
        rcode NOERROR
    }
}
"#;

/// Returns a load balancer in a namespace, with an `allow-from` annotation.
fn balancer(namespace: &str, service: &str, target: &str, allow_from: &[&str]) -> ObservedService {
    let allow_from = allow_from.iter().map(|namespace| std::sync::Arc::from(*namespace)).collect();
    let annotations = Annotations { allow_from, ..Annotations::default() };
    ObservedService { key: ServiceKey::new(namespace, service), annotations, ..link(service, target) }
}

fn context(links: Vec<ObservedService>) -> TestServer {
    server_with("lb.internal {\nlb_linker\n}\n", links)
}

fn server_with(blocks: &str, links: Vec<ObservedService>) -> TestServer {
    let policy = TargetPolicy { cluster_domain: name("cluster.local."), ..TargetPolicy::default() };
    let context = TestServer::with_targets(&format!("{blocks}{UPSTREAM}"), policy);
    let store = &context.shared.store;
    store.set_zones([&name("lb.internal."), &name("zone.example.")]);
    store.replace(None, links, vec![], &Default::default());
    store.set_known(Input::Services);
    context
}

fn data(reply: &Reply) -> String {
    let data: Vec<String> = reply.records.answers.iter().map(|record| record.data.to_string()).collect();
    let ede = reply.ede.map_or_else(String::new, |ede| format!(" EDE {}", ede.code));
    format!("{:?} {}{ede}", reply.metadata.response_code, data.join(" "))
}

async fn ask(context: &TestServer, question: &str) -> String {
    data(&context.reply(question).await.unwrap())
}

fn denied(context: &TestServer, reason: &str) -> Vec<String> {
    context.metrics(&format!("lb_linker_dns_targets_denied_total{{reason=\"{reason}\"}}"))
}

#[tokio::test]
async fn chain_ends_in_the_cluster_domain_and_at_localhost() {
    let context = context(vec![
        balancer("default", "web", "cluster.example.", &[]),
        balancer("default", "home", "here.example.", &[]),
        balancer("default", "first", "api.cluster.local.", &[]),
        balancer("default", "inside", "web.default.lb.internal.", &[]),
    ]);
    for (question, expected) in [
        ("web.default.lb.internal. A", "NoError cluster.example. api.default.svc.Cluster.Local. EDE 15"),
        ("home.default.lb.internal. A", "NoError here.example. a.localhost. EDE 15"),
        ("first.default.lb.internal. A", "NoError api.cluster.local. EDE 15"),
        (
            "inside.default.lb.internal. A",
            "NoError web.default.lb.internal. cluster.example. api.default.svc.Cluster.Local. EDE 15",
        ),
    ] {
        assert_eq!(ask(&context, question).await, expected, "{question}");
    }
    let reply = context.reply("web.default.lb.internal. A").await.unwrap();
    assert!(
        reply.records.answers.iter().all(|record| record.ttl <= 5),
        "caches keep a denial for at most 5 s"
    );
    assert!(reply.records.authorities.is_empty());
    assert_eq!(denied(&context, "name"), ["lb_linker_dns_targets_denied_total{reason=\"name\"} 5"]);
}

#[tokio::test]
async fn chain_ends_in_the_zones_of_kubernetes() {
    let links = vec![
        balancer("default", "web", "via.example.", &[]),
        balancer("default", "first", "web.shop.svc.hidden.example.", &[]),
    ];
    let address = "template IN A hidden.example {\nanswer \"{{ .Name }} 60 IN A 192.0.2.1\"\n}";
    let zones = format!("lb.internal {{\nlb_linker\n}}\nhidden.example {{\n{address}\nkubernetes\n}}\n");
    let context = server_with(&zones, links);
    let first = ask(&context, "first.default.lb.internal. A").await;
    assert_eq!(first, "NoError web.shop.svc.hidden.example. EDE 15");
    let via = ask(&context, "web.default.lb.internal. A").await;
    assert_eq!(via, "NoError via.example. hidden.example. EDE 15");
}

#[tokio::test]
async fn chain_continues_at_a_link_that_allows_the_namespace() {
    let b = |allow_from| balancer("other", "b", "192.0.2.7", allow_from);
    let context = context(vec![
        balancer("default", "dotted", "b.other.lb.internal.", &[]),
        balancer("default", "dashed", "b-other.lb.internal.", &[]),
        balancer("default", "back", "back.example.", &[]),
        balancer("other", "own", "back.example.", &[]),
        b(&[]),
    ]);
    let store = std::sync::Arc::clone(&context.shared.store);
    let own = "NoError back.example. b.other.lb.internal. 192.0.2.7";
    for (allow_from, leads_on) in
        [(&[][..], false), (&["default"], true), (&["third"], false), (&["*"], true), (&["other"], false)]
    {
        store.apply(b(allow_from));
        let expected = |names: &str| {
            if leads_on { format!("NoError {names} 192.0.2.7") } else { format!("NoError {names} EDE 15") }
        };
        for (question, names) in [
            ("dotted.default.lb.internal. A", "b.other.lb.internal."),
            ("dashed.default.lb.internal. A", "b-other.lb.internal."),
            ("back.default.lb.internal. A", "back.example. b.other.lb.internal."),
        ] {
            assert_eq!(ask(&context, question).await, expected(names), "{question} {allow_from:?}");
        }
        assert_eq!(ask(&context, "own.other.lb.internal. A").await, own);
    }
    assert_eq!(denied(&context, "namespace"), ["lb_linker_dns_targets_denied_total{reason=\"namespace\"} 9"]);
}

#[tokio::test]
async fn each_link_has_to_allow_the_namespace_of_the_previous_link() {
    let c = |allow_from| balancer("third", "c", "192.0.2.8", allow_from);
    let context = context(vec![
        balancer("default", "a", "b.other.lb.internal.", &[]),
        balancer("other", "b", "c.third.lb.internal.", &["default"]),
        c(&["default"]),
    ]);
    let names = "NoError b.other.lb.internal. c.third.lb.internal.";
    assert_eq!(ask(&context, "a.default.lb.internal. A").await, format!("{names} EDE 15"));
    context.shared.store.apply(c(&["other"]));
    assert_eq!(ask(&context, "a.default.lb.internal. A").await, format!("{names} 192.0.2.8"));
}

#[tokio::test]
async fn zone_names_are_no_targets_and_missing_names_are_nxdomain() {
    let context = context(vec![
        balancer("default", "ns", "ns.dns.lb.internal.", &[]),
        balancer("default", "later", "nothing.default.lb.internal.", &[]),
    ]);
    assert_eq!(ask(&context, "ns.default.lb.internal. A").await, "NoError ns.dns.lb.internal. EDE 15");
    let absent = ask(&context, "later.default.lb.internal. A").await;
    assert_eq!(absent, "NXDomain nothing.default.lb.internal.");
}

#[tokio::test]
async fn acl_applies_to_each_name_of_a_chain() {
    let blocks = "lb.internal {\nacl b.default.lb.internal {\nblock net 10.0.0.1\n}\nlb_linker\n}\n\
                  zone.example {\nacl b.default.zone.example {\nblock net 10.0.0.1\n}\nlb_linker\n}\n";
    let context = server_with(
        blocks,
        vec![
            balancer("default", "web", "via.example.", &[]),
            balancer("default", "quiet", "viaquiet.example.", &[]),
            balancer("default", "six", "v6.example.", &[]),
            balancer("default", "inside", "b.default.lb.internal.", &[]),
            balancer("default", "beside", "b.default.zone.example.", &[]),
            balancer("default", "b", "192.0.2.7", &[]),
        ],
    );
    let others = context.clone().from("10.0.0.2");
    for (question, names, address) in [
        ("web.default.lb.internal. A", "via.example. hidden.example.", "192.0.2.9"),
        ("quiet.default.lb.internal. A", "viaquiet.example. quiet.example.", "192.0.2.9"),
        ("inside.default.lb.internal. A", "b.default.lb.internal.", "192.0.2.7"),
        ("beside.default.lb.internal. A", "b.default.zone.example.", "192.0.2.7"),
    ] {
        assert_eq!(ask(&context, question).await, format!("NoError {names} EDE 15"), "{question}");
        assert_eq!(ask(&others, question).await, format!("NoError {names} {address}"), "{question}");
    }
    let filtered = ask(&context, "six.default.lb.internal. AAAA").await;
    assert_eq!(filtered, "NoError v6.example. EDE 15");
    assert_eq!(ask(&context, "six.default.lb.internal. A").await, "NoError v6.example. 192.0.2.9");
    assert_eq!(denied(&context, "acl"), ["lb_linker_dns_targets_denied_total{reason=\"acl\"} 5"]);
}

#[tokio::test]
async fn only_records_that_name_a_denied_host_are_left_out() {
    let b = |allow_from| balancer("other", "b", "192.0.2.7", allow_from);
    let context = context(vec![balancer("default", "web", "data.example.", &[]), b(&[])]);
    let srv = |ports: &[u16]| ports.iter().map(|port| format!("0 0 {port}")).collect::<Vec<_>>();
    let shown = async |question: &str| {
        let reply = context.reply(question).await.unwrap();
        let data = reply.records.answers[1..].iter().map(|record| record.data.to_string());
        let numbers = data.map(|data| data.rsplit_once(' ').unwrap().0.to_owned()).collect::<Vec<_>>();
        (numbers, reply.ede.map(|ede| ede.code))
    };
    assert_eq!(shown("web.default.lb.internal. SRV").await, (srv(&[5, 6, 7]), Some(15)));
    context.shared.store.apply(b(&["default"]));
    assert_eq!(shown("web.default.lb.internal. SRV").await, (srv(&[3, 5, 6, 7]), Some(15)));
    let mx = ask(&context, "web.default.lb.internal. MX").await;
    assert_eq!(mx, "NoError data.example. 2 good.example. 0 . EDE 15");
    let https = context.reply("web.default.lb.internal. HTTPS").await.unwrap();
    assert_eq!((https.records.answers.len(), https.ede.map(|ede| ede.code)), (2, Some(15)));
}

#[tokio::test]
async fn srv_records_of_a_link_follow_the_target_policy() {
    let b = |allow_from| balancer("other", "b", "192.0.2.7", allow_from);
    let context = context(vec![
        with_http(balancer("default", "near", "b.other.lb.internal.", &[])),
        with_http(balancer("default", "far", "middle.default.lb.internal.", &[])),
        balancer("default", "middle", "b.other.lb.internal.", &[]),
        with_http(balancer("default", "first", "api.cluster.local.", &[])),
        with_http(balancer("default", "hidden", "hidden.example.", &[])),
        with_http(balancer("default", "ns", "ns.dns.lb.internal.", &[])),
        with_http(balancer("default", "good", "good.example.", &[])),
        b(&[]),
    ]);
    let srv = async |name: &str| {
        let reply = context.reply(&format!("_http._tcp.{name}.default.lb.internal. SRV")).await.unwrap();
        assert_eq!(
            reply.records.answers.is_empty(),
            reply.records.authorities.len() == 1,
            "NODATA has the SOA: {name}"
        );
        format!("{} {}", data(&reply), reply.records.additionals.len())
    };
    for name in ["near", "far", "first", "hidden", "ns"] {
        assert_eq!(srv(name).await, "NoError  EDE 15 0", "{name}");
    }
    assert_eq!(srv("good").await, "NoError 0 100 80 good.example. 0");
    context.shared.store.apply(b(&["default"]));
    for name in ["near", "far"] {
        assert_eq!(srv(name).await, "NoError 0 100 80 b.other.lb.internal. 1", "{name}");
    }
}

/// Adds the port 80 with the name `http`.
fn with_http(observed: ObservedService) -> ObservedService {
    let (name, protocol) = (Some("http".into()), "TCP".into());
    ObservedService { ports: [Port { name, protocol, port: 80, app_protocol: None }].into(), ..observed }
}

/// Returns the answer to a query for SRV or NS: the records, the extended error, and the addresses in the additional
/// section.
async fn ask_service(context: &TestServer, name: &str) -> String {
    let reply = context.reply(name).await.unwrap();
    assert_eq!(
        reply.records.answers.is_empty(),
        reply.records.authorities.len() == 1,
        "NODATA has the SOA: {name}"
    );
    let addresses = reply.records.additionals.iter().map(|record| format!(" + {}", record.data));
    data(&reply) + &addresses.collect::<String>()
}

#[tokio::test]
async fn acl_applies_to_each_alias_behind_srv_records() {
    let blocks = "lb.internal {\nacl b.default.lb.internal {\nblock net 10.0.0.1\nfilter type A net 10.0.0.3\n}\n\
                  acl c.default.lb.internal {\nfilter type AAAA net 10.0.0.3 10.0.0.4\n}\nlb_linker\n}\n";
    let hostname =
        |service, next: &str| balancer("default", service, &format!("{next}.default.lb.internal."), &[]);
    let context = server_with(
        blocks,
        vec![
            with_http(hostname("a", "b")),
            hostname("b", "c"),
            hostname("c", "d"),
            balancer("default", "d", "192.0.2.7", &[]),
        ],
    );
    let service = "NoError 0 100 80 d.default.lb.internal.";
    for (client, expected) in [
        ("10.0.0.2", format!("{service} + 192.0.2.7")),
        ("10.0.0.1", "NoError  EDE 15".to_owned()),
        // The acl of one alias denies A, the acl of another alias denies AAAA: no address type is left.
        ("10.0.0.3", "NoError  EDE 15".to_owned()),
        ("10.0.0.4", format!("{service} + 192.0.2.7")),
    ] {
        let client_site = context.clone().from(client);
        assert_eq!(
            ask_service(&client_site, "_http._tcp.a.default.lb.internal. SRV").await,
            expected,
            "{client}"
        );
    }
    assert_eq!(denied(&context, "acl"), ["lb_linker_dns_targets_denied_total{reason=\"acl\"} 2"]);
}

#[tokio::test]
async fn acl_of_one_family_applies_to_addresses_for_srv() {
    let blocks = "lb.internal {\nacl {\nfilter type AAAA net 10.0.0.1\nfilter type A net 10.0.0.3\n\
                  filter type A AAAA net 10.0.0.4\n}\nlb_linker\n}\n";
    let mut both = with_http(balancer("default", "both", "192.0.2.7", &[]));
    both.ingress.addresses.push("2001:db8::7".parse().unwrap());
    let context = server_with(
        blocks,
        vec![with_http(balancer("default", "alias", "both.default.lb.internal.", &[])), both],
    );
    let service = "NoError 0 100 80 both.default.lb.internal.";
    for (client, expected) in [
        ("10.0.0.2", format!("{service} + 192.0.2.7 + 2001:db8::7")),
        ("10.0.0.1", format!("{service} EDE 15 + 192.0.2.7")),
        ("10.0.0.3", format!("{service} EDE 15 + 2001:db8::7")),
        ("10.0.0.4", "NoError  EDE 15".to_owned()),
    ] {
        let client_site = context.clone().from(client);
        for name in ["_http._tcp.both.default", "_http._tcp.alias.default", "both.default", "both-default"] {
            let question = format!("{name}.lb.internal. SRV");
            assert_eq!(ask_service(&client_site, &question).await, expected, "{client} {question}");
        }
    }
}

#[tokio::test]
async fn acl_of_one_family_applies_to_hints_of_https() {
    let text = r#"lb.internal {
    lb_linker
}
. {
    acl www.example {
        filter type AAAA net 10.0.0.1
        filter type A net 10.0.0.3
    }
    acl own.example {
        filter type AAAA net 10.0.0.1
    }
    template IN HTTPS other.example {
        answer "{{ .Name }} 60 IN HTTPS 1 www.example. ipv4hint=192.0.2.9 ipv6hint=2001:db8::9"
    }
    template IN HTTPS own.example {
        answer "{{ .Name }} 60 IN HTTPS 1 . ipv4hint=192.0.2.9 ipv6hint=2001:db8::9"
    }
}
"#;
    let context = TestServer::corefile(text);
    let store = &context.shared.store;
    store.set_zones([&name("lb.internal.")]);
    let links = ["other", "own"].map(|host| balancer("default", host, &format!("{host}.example."), &[]));
    store.replace(None, links.to_vec(), vec![], &Default::default());
    store.set_known(Input::Services);
    for (client, host, v4, v6) in [
        ("10.0.0.1", "other", true, false),
        ("10.0.0.1", "own", true, false),
        ("10.0.0.2", "other", true, true),
        ("10.0.0.2", "own", true, true),
        ("10.0.0.3", "other", false, true),
        ("10.0.0.3", "own", true, true),
    ] {
        let answer = ask(&context.clone().from(client), &format!("{host}.default.lb.internal. HTTPS")).await;
        assert_eq!(answer.contains("192.0.2.9"), v4, "{client} {answer}");
        assert_eq!(answer.contains("2001:db8::9"), v6, "{client} {answer}");
        assert_eq!(answer.contains("EDE 15"), !(v4 && v6), "{client} {answer}");
    }
}

#[tokio::test]
async fn acl_of_one_family_applies_to_addresses_for_ns() {
    let text = "lb.internal {\nacl {\nfilter type AAAA net 10.0.0.1\nfilter type A net 10.0.0.3\n\
                filter type A AAAA net 10.0.0.4\n}\nlb_linker {\nns 192.0.2.53 2001:db8::53\n}\n}\n";
    let context = TestServer::corefile(text);
    context.shared.store.set_zones([&name("lb.internal.")]);
    context.shared.store.set_known(Input::Services);
    let server = "NoError ns.dns.lb.internal.";
    for (client, expected) in [
        ("10.0.0.2", format!("{server} + 192.0.2.53 + 2001:db8::53")),
        ("10.0.0.1", format!("{server} EDE 15 + 192.0.2.53")),
        ("10.0.0.3", format!("{server} EDE 15 + 2001:db8::53")),
        ("10.0.0.4", format!("{server} EDE 15")),
    ] {
        let client_site = context.clone().from(client);
        assert_eq!(ask_service(&client_site, "lb.internal. NS").await, expected, "{client}");
    }
}

#[tokio::test]
async fn acl_checks_the_rewritten_form_of_each_name_in_a_chain() {
    let text = r#"
lb.internal {
    rewrite name exact moved.default.lb.internal hidden.default.lb.internal
    acl hidden.default.lb.internal {
        block net 10.0.0.1
    }
    lb_linker
}
. {
    rewrite name suffix .old.example .new.example answer auto
    rewrite type MX TXT
    acl new.example {
        block net 10.0.0.1
    }
    acl old.example {
        block
    }
    acl mail.example {
        block type TXT net 10.0.0.1
    }
    template IN A via.example {
        answer "{{ .Name }} 60 IN CNAME www.old.example."
    }
    template IN SRV data.example {
        answer "{{ .Name }} 60 IN SRV 0 0 1 www.old.example."
        answer "{{ .Name }} 60 IN SRV 0 0 2 www.example."
    }
    template IN A www.new.example {
        answer "{{ .Name }} 60 IN A 192.0.2.10"
    }
    template IN TXT mail.example {
        answer "{{ .Name }} 60 IN TXT text"
    }
}
"#;
    let context = TestServer::corefile(text);
    let store = &context.shared.store;
    store.set_zones([&name("lb.internal.")]);
    let links = vec![
        balancer("default", "first", "www.old.example.", &[]),
        balancer("default", "later", "via.example.", &[]),
        balancer("default", "data", "data.example.", &[]),
        balancer("default", "mail", "mail.example.", &[]),
        balancer("default", "inside", "moved.default.lb.internal.", &[]),
        balancer("default", "moved", "192.0.2.7", &[]),
        balancer("default", "hidden", "192.0.2.8", &[]),
    ];
    store.replace(None, links, vec![], &Default::default());
    store.set_known(Input::Services);
    let open = context.clone().from("10.0.0.2");
    for (question, blocked, answered) in [
        // Direct queries of a client for these names.
        ("www.old.example. A", "Refused  EDE 15", "NoError 192.0.2.10"),
        ("moved.default.lb.internal. A", "Refused  EDE 15", "NoError 192.0.2.8"),
        ("mail.example. MX", "Refused  EDE 15", "NoError text"),
        // Links with targets that lead to these names.
        (
            "first.default.lb.internal. A",
            "NoError www.old.example. EDE 15",
            "NoError www.old.example. 192.0.2.10",
        ),
        (
            "later.default.lb.internal. A",
            "NoError via.example. www.old.example. EDE 15",
            "NoError via.example. www.old.example. 192.0.2.10",
        ),
        (
            "data.default.lb.internal. SRV",
            "NoError data.example. 0 0 2 www.example. EDE 15",
            "NoError data.example. 0 0 1 www.old.example. 0 0 2 www.example.",
        ),
        ("mail.default.lb.internal. MX", "NoError mail.example. EDE 15", "NoError mail.example."),
        (
            "inside.default.lb.internal. A",
            "NoError moved.default.lb.internal. EDE 15",
            "NoError moved.default.lb.internal. 192.0.2.7",
        ),
    ] {
        assert_eq!(ask(&context, question).await, blocked, "{question}");
        assert_eq!(ask(&open, question).await, answered, "{question}");
    }
}

/// A shared look-up of a target ignores the `acl` of clients, which is checked separately for each client.
#[tokio::test]
async fn shared_look_up_ignores_the_acl_of_clients() {
    let text = "lb.internal {\nlb_linker\n}\n\
                t.example {\ntemplate IN A {\nanswer \"{{ .Name }} 60 IN CNAME www.hidden.example.\"\n}\n}\n\
                hidden.example {\nacl {\nblock net 10.0.0.1\n}\ntemplate IN A {\nanswer \"{{ .Name }} 60 IN A 192.0.2.9\"\n}\n}\n";
    let context = TestServer::corefile(text);
    let mut request = context.request("t.example. A");
    request.purpose =
        Purpose::Target { max_negative_age: std::time::Duration::from_secs(5), may_use_cached: true };
    let reply = Server::serve(&mut request).await.unwrap();
    assert_eq!(data(&reply), "NoError www.hidden.example. 192.0.2.9");
    let store = &context.shared.store;
    store.set_zones([&name("lb.internal.")]);
    store.replace(None, vec![balancer("default", "web", "t.example.", &[])], vec![], &Default::default());
    store.set_known(Input::Services);
    let question = "web.default.lb.internal. A";
    assert_eq!(ask(&context, question).await, "NoError t.example. www.hidden.example. EDE 15");
    let other = context.clone().from("10.0.0.2");
    assert_eq!(ask(&other, question).await, "NoError t.example. www.hidden.example. 192.0.2.9");
}

#[tokio::test]
async fn denied_addresses_are_left_out_and_counted() {
    let text = "lb.internal {\nlb_linker\n}\n. {\ntemplate IN A {\nanswer \"{{ .Name }} 60 IN A 192.0.2.1\"\n\
                answer \"{{ .Name }} 60 IN A 10.96.0.1\"\nanswer \"{{ .Name }} 60 IN A 127.0.0.1\"\n}\n}\n";
    let nets = |net: &str| vec![net.parse().unwrap()];
    let policy = TargetPolicy {
        denied_nets: nets("10.96.0.0/12"),
        allowed_nets: nets("127.0.0.0/8"),
        ..Default::default()
    };
    let context = TestServer::with_targets(text, policy);
    context.shared.store.set_zones([&name("lb.internal.")]);
    context.shared.store.replace(None, vec![link("web", "t.example.")], vec![], &Default::default());
    context.shared.store.set_known(Input::Services);
    let answer = ask(&context, "web.default.lb.internal. A").await;
    assert_eq!(answer, "NoError t.example. 192.0.2.1 127.0.0.1 EDE 17");
    assert_eq!(denied(&context, "address"), ["lb_linker_dns_targets_denied_total{reason=\"address\"} 1"]);
}

#[tokio::test]
async fn target_with_only_denied_addresses_is_failing() {
    let answer = |records: &str| {
        format!("lb.internal {{\nlb_linker\n}}\n. {{\ntemplate ANY ANY {{\n{records}\n}}\n}}\n")
    };
    let denied_a = "answer \"{{ .Name }} 60 IN A 127.0.0.1\"";
    for (records, why) in [
        (
            denied_a.to_owned(),
            "A: only denied addresses: 127.0.0.1: loopback addresses are denied unless --allowed-nets lists them",
        ),
        (format!("{denied_a}\nanswer \"{{{{ .Name }}}} 60 IN A 192.0.2.1\""), ""),
        (format!("{denied_a}\nanswer \"{{{{ .Name }}}} 60 IN AAAA 2001:db8::1\""), ""),
        (
            "answer \"{{ .Name }} 60 IN CNAME x.localhost.\"".to_owned(),
            "A, AAAA: leads to x.localhost: localhost would be the client's own host",
        ),
    ] {
        for order in [["AAAA", "A"], ["A", "AAAA"]] {
            let context = TestServer::with_targets(&answer(&records), TargetPolicy::default());
            context.shared.store.set_zones([&name("lb.internal.")]);
            context.shared.store.replace(None, vec![link("web", "t.example.")], vec![], &Default::default());
            context.shared.store.set_known(Input::Services);
            for qtype in order {
                ask(&context, &format!("web.default.lb.internal. {qtype}")).await;
            }
            let targets = failed_targets(&context.shared.metrics).unwrap();
            let shown = targets.unresolved().of(&name("t.example.")).map(|failure| failure.why);
            assert_eq!(shown.unwrap_or_default(), why, "{records}, {order:?}");
        }
    }
}

/// A name in our zones that a chain leads to is looked up unchanged in the store, but a client's query for the name
/// would be rewritten: the `acl` has to allow the original name and the rewritten name.
#[tokio::test]
async fn acl_checks_the_original_and_the_rewritten_name() {
    let block = "lb.internal {\nrewrite name exact db.prod.lb.internal db.stage.lb.internal\n\
                 acl db.prod.lb.internal {\nblock net 10.0.0.1\n}\nlb_linker\n}\n";
    let links = vec![
        balancer("prod", "x", "db.prod.lb.internal.", &[]),
        balancer("prod", "db", "192.0.2.7", &[]),
        balancer("stage", "db", "192.0.2.8", &[]),
    ];
    let context = server_with(block, links);
    let others = context.clone().from("10.0.0.2");
    assert_eq!(ask(&others, "x.prod.lb.internal. A").await, "NoError db.prod.lb.internal. 192.0.2.7");
    assert_eq!(ask(&context, "x.prod.lb.internal. A").await, "NoError db.prod.lb.internal. EDE 15");
}
