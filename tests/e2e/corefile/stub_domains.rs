//! Stub domains in both directions, and NodeLocal DNSCache.

use hickory_proto::op::ResponseCode;
use serde_json::json;

use super::answer::Answer;
use super::compare::{Group, compare};
use super::question::{Question, table};
use super::server::{CorefileDir, Program, Server, check};
use super::upstreams::Upstreams;
use crate::answers::manifests;
use crate::harness::cluster::Ingress;
use crate::harness::dns::{answers, ask_tcp, ask_udp, query, short, show, without_foreign_ttls};
use crate::harness::{cluster_with_target, eventually, grant};

/// The Corefile of lb-linker behind the cluster's DNS: its zone, and the upstream for targets.
const LINKS: &str = "
    lb.internal:{$PORT} {
        bind 127.0.0.1
        errors
        prometheus 127.0.0.1:{$METRICS}
        lb_linker
    }
    .:{$PORT} {
        bind 127.0.0.1
        errors
        prometheus 127.0.0.1:{$METRICS}
        cache 30
        forward . {$UPSTREAM}
    }";

/// A Corefile of CoreDNS or NodeLocal DNSCache with lb-linker as stub domain.
const STUB: &str = "
    lb.internal:{$PORT} {
        bind 127.0.0.1
        errors
        cache 5
        forward . {$LINKER} {
            OPTION
        }
    }
    .:{$PORT} {
        bind 127.0.0.1
        errors
        cache 30
        forward . {$UPSTREAM}
    }";

#[tokio::test]
async fn coredns_forwards_lb_internal_to_lb_linker() {
    if Program::subject() == Program::CoreDns {
        return;
    }
    let upstreams = Upstreams::start().await;
    let site = upstreams.name(CorefileDir::new(LINKS, &[]));
    let links = [
        ("web", "{hostname: a.example.org}"),
        ("both", "{hostname: chain.example.org}"),
        ("missing", "{hostname: nowhere.example.org}"),
        ("many", "{hostname: big.example.org}"),
        ("ips", "{ip: 192.0.2.200}, {ip: '2001:db8::200'}"),
    ];
    site.write("manifests/services.yaml", &manifests(&links));
    let linker = Server::start(Program::Linker, &site).await;
    answers(linker.dns(), "web-default.lb.internal. CNAME", "a.example.org.").await;
    for option in ["force_tcp", "prefer_udp", "max_concurrent 1000"] {
        let site = upstreams
            .name(CorefileDir::new(&STUB.replace("OPTION", option), &[]))
            .with("LINKER", linker.dns());
        let coredns = Server::start(Program::CoreDns, &site).await;
        let (dns, linker) = (coredns.dns(), linker.dns());
        for (question, expected) in [
            ("web-default.lb.internal. A", "a.example.org. 192.0.2.10"),
            ("web.default.lb.internal. A", "a.example.org. 192.0.2.10"),
            ("WEB-default.LB.internal. A", "a.example.org. 192.0.2.10"),
            ("web-default.lb.internal. CNAME", "a.example.org."),
            (
                "both-default.lb.internal. AAAA",
                "chain.example.org. chain2.example.org. b.example.org. 2001:db8::20 2001:db8::21",
            ),
            ("ips-default.lb.internal. A", "192.0.2.200"),
            ("ips-default.lb.internal. AAAA", "2001:db8::200"),
            ("ips-default.lb.internal. TXT", "No Error"),
            ("missing-default.lb.internal. A", "nowhere.example.org."),
            ("absent-default.lb.internal. A", "Non-Existent Domain"),
            ("a.example.org. A", "192.0.2.10"),
        ] {
            // The second answer comes from the cache.
            for _ in 0..2 {
                answers(dns, question, expected).await;
            }
        }
        // CoreDNS in between doesn't change lb-linker's answers.
        for question in
            ["missing.default.lb.internal. A", "ips-default.lb.internal. MX", "absent.lb.internal. A"]
        {
            let [direct, stub] =
                [ask_udp(linker, &query(question)).await, ask_udp(dns, &query(question)).await];
            let [direct, stub] = [direct, stub].map(|answer| without_foreign_ttls(&show(&answer)));
            assert_eq!(direct, stub, "{option}");
        }
        let whole = ask_tcp(dns, &query("many-default.lb.internal. A")).await;
        assert_eq!(whole.answers.len(), 41, "{option}: {whole}");
        let mut small = query("many-default.lb.internal. A");
        small.edns = None;
        assert!(ask_udp(dns, &small).await.metadata.truncation, "{option}");
    }
}

#[tokio::test]
async fn links_resolve_through_a_coredns_that_isnt_in_clients() {
    if Program::subject() == Program::CoreDns {
        return;
    }
    let upstreams = Upstreams::start().await;
    let links = LINKS.replace("        cache 30\n", "        clients 192.0.2.0/24\n        cache 30\n");
    let site = upstreams.name(CorefileDir::new(&links, &[]));
    site.write("manifests/services.yaml", &manifests(&[("web", "{hostname: a.example.org}")]));
    let linker = Server::start(Program::Linker, &site).await;
    answers(linker.dns(), "web-default.lb.internal. CNAME", "a.example.org.").await;
    let site = upstreams
        .name(CorefileDir::new(&STUB.replace("OPTION", "max_concurrent 1000"), &[]))
        .with("LINKER", linker.dns());
    let coredns = Server::start(Program::CoreDns, &site).await;
    for (server, question, expected) in [
        (coredns.dns(), "web-default.lb.internal. A", "a.example.org. 192.0.2.10"),
        (coredns.dns(), "a.example.org. A", "192.0.2.10"),
        (linker.dns(), "a.example.org. A", "Query Refused"),
    ] {
        for _ in 0..2 {
            answers(server, question, expected).await;
        }
    }
}

/// Services of a cluster, and a CoreDNS with the plugin `kubernetes` that serves them.
struct Cluster {
    kubernetes: Server,
    namespace: String,
}

impl Cluster {
    async fn start() -> Self {
        let (plane, cluster, _) = cluster_with_target().await;
        let namespace = cluster.create_namespace("stub").await;
        for (name, spec) in [
            ("plain", json!({ "ports": [{ "name": "http", "port": 80 }] })),
            ("headless", json!({ "clusterIP": "None", "ports": [{ "port": 80 }] })),
            ("outside", json!({ "type": "ExternalName", "externalName": "a.example.org" })),
        ] {
            cluster.create_service(&namespace, json!({ "metadata": { "name": name }, "spec": spec })).await;
        }
        let corefile = "
            .:{$PORT} {
                bind 127.0.0.1
                errors
                ready 127.0.0.1:{$READY}
                kubernetes cluster.local in-addr.arpa ip6.arpa {
                    kubeconfig {$KUBECONFIG}
                    ttl 30
                }
            }";
        let kubeconfig = plane.admin_kubeconfig();
        let site = CorefileDir::new(corefile, &[]).with("KUBECONFIG", kubeconfig.display());
        let kubernetes = Server::start(Program::CoreDns, &site).await;
        let known = format!("plain.{namespace}.svc.cluster.local. A");
        eventually(&known, || async {
            let answer = ask_udp(kubernetes.dns(), &query(&known)).await;
            (!answer.answers.is_empty()).then_some(())
        })
        .await;
        Self { kubernetes, namespace }
    }

    fn questions(&self) -> Vec<Question> {
        table(
            &"
            plain.@.svc.cluster.local. A
            plain.@.svc.cluster.local. A
            plain.@.svc.cluster.local. A tcp
            plain.@.svc.cluster.local. A edns do
            plain.@.svc.cluster.local. AAAA
            Plain.@.Svc.Cluster.Local. A case
            _http._tcp.plain.@.svc.cluster.local. SRV
            headless.@.svc.cluster.local. A
            outside.@.svc.cluster.local. A
            outside.@.svc.cluster.local. CNAME
            absent.@.svc.cluster.local. A
            absent.@.svc.cluster.local. A
            @.svc.cluster.local. A
            cluster.local. SOA
            cluster.local. NS
            dns-version.cluster.local. TXT"
                .replace('@', &self.namespace),
        )
    }
}

#[tokio::test]
async fn lb_linker_forwards_cluster_local_to_coredns() {
    let cluster = Cluster::start().await;
    let corefile = "
        cluster.local:{$PORT} in-addr.arpa:{$PORT} {
            bind 127.0.0.1
            errors
            forward . {$KUBERNETES} {
                force_tcp
            }
        }";
    let site = CorefileDir::new(corefile, &[]).with("KUBERNETES", cluster.kubernetes.dns());
    let subject = Server::start(Program::subject(), &site).await;
    for question in cluster.questions() {
        let ask = async |server| Answer::of(&question, &question.ask(server).await);
        // The plugin `kubernetes` uses the time in seconds as SOA serial: it must not change between the queries.
        loop {
            let before = ask(&cluster.kubernetes).await;
            let forwarded = ask(&subject).await;
            if before.differences(&ask(&cluster.kubernetes).await).is_empty() {
                assert_eq!(before.differences(&forwarded), [], "{}", question.text);
                break;
            }
        }
    }
    // A reverse lookup returns the Service's name.
    let name = format!("plain.{}.svc.cluster.local.", cluster.namespace);
    let ip = short(subject.dns(), &format!("{name} A")).await;
    let octets: Vec<&str> = ip.split('.').rev().collect();
    let reverse = format!("{}.in-addr.arpa. PTR", octets.join("."));
    assert_eq!(short(subject.dns(), &reverse).await, name);
    // No Service or endpoint of any test has this address.
    let answer = ask_udp(subject.dns(), &query("254.113.0.203.in-addr.arpa. PTR")).await;
    assert_eq!(answer.metadata.response_code, ResponseCode::NXDomain);
}

/// The complete setup: a client queries the cluster's CoreDNS, which forwards queries for load balancers to
/// lb-linker. The Service name of the external target resolves, too.
#[tokio::test]
async fn load_balancer_resolves_through_the_cluster_dns() {
    if Program::subject() == Program::CoreDns {
        return;
    }
    let (plane, cluster, target) = cluster_with_target().await;
    grant(plane, &target);
    let namespace = cluster.create_namespace("stub").await;
    cluster.create_load_balancer(&namespace, "web").await;
    cluster.set_ingress(&namespace, "web", &[Ingress::Hostname("a.example.org")]).await;
    let upstreams = Upstreams::start().await;
    let site = upstreams
        .name(CorefileDir::new(LINKS, &[]))
        .with(
            "LB_LINKER_KUBECONFIG",
            plane.kubeconfig_for_service_account("lb-linker", "lb-linker").display(),
        )
        .with("LB_LINKER_TARGET_NAMESPACE", &target)
        // Outside a Pod lb-linker writes nothing by default.
        .with("LB_LINKER_SYNC", "on")
        .with("LB_LINKER_MAX_DELETES", "unlimited");
    let linker = Server::start(Program::Linker, &site).await;
    let corefile = "
        .:{$PORT} {
            bind 127.0.0.1
            errors
            kubernetes cluster.local {
                kubeconfig {$KUBECONFIG}
            }
            forward lb.internal {$LINKER}
            forward . {$UPSTREAM}
        }";
    let kubeconfig = plane.admin_kubeconfig();
    let site = upstreams
        .name(CorefileDir::new(corefile, &[]))
        .with("LINKER", linker.dns())
        .with("KUBECONFIG", kubeconfig.display());
    let coredns = Server::start(Program::CoreDns, &site).await;
    let found = "a.example.org. 192.0.2.10";
    answers(coredns.dns(), &format!("web-{namespace}.lb.internal. A"), found).await;
    answers(coredns.dns(), &format!("web.{namespace}.lb.internal. A"), found).await;
    answers(coredns.dns(), &format!("web-{namespace}-ext.{target}.svc.cluster.local. A"), found).await;
}

/// The Corefile of NodeLocal DNSCache with other addresses and ports.
pub const GROUPS: &[Group] = &[Group {
    name: "NodeLocal DNSCache",
    corefile: "
        cluster.local:{$PORT} {
            errors
            cache {
                    success 9984 30
                    denial 9984 5
            }
            reload
            loop
            bind 127.0.0.1 127.0.0.20
            forward . {$UPSTREAM} {
                    force_tcp
            }
            prometheus :{$METRICS}
            health 127.0.0.20:{$HEALTH}
            }
        in-addr.arpa:{$PORT} {
            errors
            cache 30
            reload
            loop
            bind 127.0.0.1 127.0.0.20
            forward . {$UPSTREAM} {
                    force_tcp
            }
            prometheus :{$METRICS}
            }
        ip6.arpa:{$PORT} {
            errors
            cache 30
            reload
            loop
            bind 127.0.0.1 127.0.0.20
            forward . {$UPSTREAM} {
                    force_tcp
            }
            prometheus :{$METRICS}
            }
        .:{$PORT} {
            errors
            cache 30
            reload
            loop
            bind 127.0.0.1 127.0.0.20
            forward . {$UPSTREAM}
            prometheus :{$METRICS}
            }",
    files: &[],
    questions: "
        kubernetes.default.svc.cluster.local. A each
        kubernetes.default.svc.cluster.local. A to=127.0.0.20
        kubernetes.default.svc.cluster.local. A to=127.0.0.20 tcp
        kubernetes.default.svc.cluster.local. AAAA
        kubernetes.default.svc.cluster.local. AAAA
        absent.svc.cluster.local. A
        absent.svc.cluster.local. A
        a.example.org.default.svc.cluster.local. A
        a.example.org. A each
        a.example.org. A to=127.0.0.20
        nowhere.example.org. A
        10.2.0.192.in-addr.arpa. PTR
        10.2.0.192.in-addr.arpa. PTR
        1.0.96.10.in-addr.arpa. PTR
        1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa. PTR
        big.example.org. A
        big.example.org. A edns=4096
        huge.example.org. A edns
        x.servfail.test. A",
}];

#[tokio::test]
async fn node_local_dnscache_corefile_is_valid_and_answers() {
    compare(GROUPS).await;
    if Program::subject() == Program::CoreDns {
        return;
    }
    // `check` sends no queries and opens no sockets, so unreachable addresses are no error.
    let site = CorefileDir::new(GROUPS[0].corefile, &[]).with("UPSTREAM", "192.0.2.1:53");
    let checked = check(&site);
    assert!(checked.status.success(), "{checked:?}");
    let printed = String::from_utf8(checked.stdout).unwrap();
    for part in
        ["cluster.local", "in-addr.arpa", "force_tcp", "success 9984 30", "denial 9984 5", "127.0.0.20"]
    {
        assert!(printed.contains(part), "{part}: {printed}");
    }
}
