use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::dns::plugins::kubernetes::tests::{list, server};
use crate::dns::plugins::tests::support::TestServer;
use crate::model::names;
use crate::model::service_key::ServiceKey;
use crate::store::cluster::objects::{Addressing, External, Kind, Port, Protocol, Service, Slice};
use crate::store::cluster::{Cluster, View};

fn key(name: &str) -> ServiceKey {
    ServiceKey::new("a", name)
}

fn host(name: &str) -> External {
    External::Host([&*names::wire_of(name).unwrap(), &[0]].concat().into())
}

fn ip(text: &str) -> External {
    External::Address(text.parse().unwrap())
}

fn port() -> Box<[Port]> {
    [Port { name: "http".into(), protocol: Protocol::Tcp, number: Some(80) }].into()
}

fn set(cluster: &Cluster, name: &str, externals: &[External]) {
    let addressing = match name {
        "db" => Addressing::Headless,
        _ => Addressing::ClusterIps([[10, 0, 0, 1].into()].into()),
    };
    cluster.set_service(&key(name), Some(Service { addressing, ports: port() }), externals);
}

fn set_slice(cluster: &Cluster, addresses: &[[u8; 4]]) {
    let slice = Slice {
        name: "db-1".into(),
        ports: port(),
        addresses: addresses.iter().map(|ip| (*ip).into()).collect(),
        names: [(0, "db-0".into())].into(),
        zones: None,
        cluster: Box::default(),
    };
    cluster.set_slice(&key("db-1"), Some(("db", slice)));
}

/// Adds Services with two addresses, with the same one twice, with a hostname, with an address and a hostname, and a
/// headless one.
fn fill(cluster: &Cluster) {
    set(cluster, "two", &[ip("192.0.2.1"), ip("2001:db8::1")]);
    set(cluster, "twice", &[ip("192.0.2.8"), ip("192.0.2.8")]);
    set(cluster, "elb", &[host("lb.example.org"), host("other.example.org")]);
    set(cluster, "both", &[ip("192.0.2.1"), host("lb.example.org")]);
    set(cluster, "inner", &[]);
    set(cluster, "db", &[]);
    set_slice(cluster, &[[10, 1, 0, 1], [10, 1, 0, 2]]);
    list(cluster);
}

fn external(options: &str) -> (TestServer, Arc<Cluster>) {
    let lines = format!(
        "hosts /dev/null lb.example.org {{\n192.0.2.9 lb.example.org\n}}\nk8s_external ex.test 2.0.192.in-addr.arpa {{\n{options}\n}}\n\
         kubernetes cluster.local {{\nttl 30\n}}\nwhoami"
    );
    let (server, cluster) = server(&lines);
    fill(&cluster);
    (server, cluster)
}

async fn check(server: &TestServer, table: &[(&str, &str)]) {
    for (question, expected) in table {
        let found = server.ask(question).await;
        assert!(found.starts_with(expected), "{question}: {found}");
    }
}

#[tokio::test]
async fn external_addresses_are_answered() {
    let (server, _cluster) = external("ttl 7");
    check(
        &server,
        &[
            ("two.a.ex.test. A", "NOERROR aa | two.a.ex.test. 7 IN A 192.0.2.1 | |"),
            ("two.a.ex.test. AAAA", "NOERROR aa | two.a.ex.test. 7 IN AAAA 2001:db8::1 | |"),
            ("two.a.ex.test. TXT", "NOERROR aa | | ex.test. 7 IN SOA ns1.dns.ex.test. hostmaster.dns.ex.test. "),
            (
                "_http._tcp.two.a.ex.test. SRV",
                "NOERROR aa | _http._tcp.two.a.ex.test. 30 IN SRV 0 50 80 two.a.ex.test. | | two.a.ex.test. 7 IN A 192.0.2.1",
            ),
            ("_dns._tcp.two.a.ex.test. SRV", "NXDOMAIN aa"),
            ("any.two.a.ex.test. A", "NOERROR aa | any.two.a.ex.test. 7 IN A 192.0.2.1 | |"),
            ("x.y.z.two.a.ex.test. A", "NXDOMAIN aa"),
            ("inner.a.ex.test. A", "NXDOMAIN aa"),
            ("db.a.ex.test. A", "NXDOMAIN aa"),
            ("none.a.ex.test. A", "NXDOMAIN aa"),
            ("a.ex.test. A", "NOERROR aa | | ex.test. 7 IN SOA "),
            ("b.ex.test. A", "NXDOMAIN aa"),
            ("both.a.ex.test. A", "NOERROR aa | both.a.ex.test. 7 IN A 192.0.2.1 | |"),
            ("both.a.ex.test. AAAA", "NOERROR aa | both.a.ex.test. 30 IN CNAME lb.example.org. |"),
            ("both.a.ex.test. TXT", "NOERROR aa | | ex.test. 7 IN SOA "),
            (
                "twice.a.ex.test. SRV",
                "NOERROR aa | twice.a.ex.test. 30 IN SRV 0 50 80 twice.a.ex.test. | | twice.a.ex.test. 7 IN A 192.0.2.8",
            ),
            (
                "elb.a.ex.test. A",
                "NOERROR aa | elb.a.ex.test. 30 IN CNAME lb.example.org., lb.example.org. 3600 IN A 192.0.2.9 | |",
            ),
            ("elb.a.ex.test. CNAME", "NOERROR aa | elb.a.ex.test. 30 IN CNAME lb.example.org. | |"),
        ],
    )
    .await;
    let srv = server.ask("elb.a.ex.test. SRV").await;
    for record in
        ["30 IN SRV 0 50 80 lb.example.org.", "80 other.example.org.", "lb.example.org. 3600 IN A 192.0.2.9"]
    {
        assert!(srv.contains(record), "{srv}");
    }
    let pointers = server.ask("1.2.0.192.in-addr.arpa. PTR").await;
    for target in ["two.a.ex.test.", "both.a.ex.test."] {
        assert!(pointers.contains(&format!("1.2.0.192.in-addr.arpa. 7 IN PTR {target}")), "{pointers}");
    }
    check(
        &server,
        &[
            ("1.2.0.192.in-addr.arpa. A", "NOERROR aa | | 2.0.192.in-addr.arpa. 7 IN SOA ns1.dns."),
            ("2.2.0.192.in-addr.arpa. PTR", "NXDOMAIN aa"),
        ],
    )
    .await;
}

#[tokio::test]
async fn kept_srv_answer_ends_with_its_hosts() {
    let (server, cluster) = external("ttl 7");
    set(&cluster, "inside", &[host("two.a.ex.test")]);
    let by_whoami = server.reply("elb.a.ex.test. SRV").await.unwrap();
    assert!(by_whoami.validity.is_none(), "the address of a host isn't kept");
    let kept = async || server.reply("inside.a.ex.test. SRV").await.unwrap().validity.unwrap();
    let first = kept().await;
    set(&cluster, "inner", &[ip("192.0.2.3")]);
    assert!(!first.is_outdated(), "it doesn't rest on another Service");
    set(&cluster, "two", &[ip("192.0.2.3")]);
    assert!(first.is_outdated(), "it has the address of its host");
    let second = kept().await;
    set(&cluster, "inside", &[host("twice.a.ex.test")]);
    assert!(second.is_outdated());
}

#[tokio::test]
async fn zone_of_external_names_has_an_apex() {
    let (server, cluster) = external("apex Own\nfallthrough");
    cluster.serial(View::External).store(5, Ordering::Relaxed);
    check(
        &server,
        &[
            (
                "ex.test. SOA",
                "NOERROR aa | ex.test. 5 IN SOA ns1.own.ex.test. hostmaster.own.ex.test. 5 7200 1800 86400 5 | |",
            ),
            ("ex.test. NS", "NOERROR aa | ex.test. 5 IN NS ns1.own.ex.test. | | ns1.own.ex.test. 5 IN A 192.0.2.53"),
            ("ex.test. A", "NOERROR aa | | ex.test. 5 IN SOA "),
            ("own.ex.test. A", "NOERROR aa | | ex.test. 5 IN SOA "),
            ("ns1.own.ex.test. A", "NOERROR aa | ns1.own.ex.test. 5 IN A 192.0.2.53 | |"),
            ("ns1.own.ex.test. AAAA", "NOERROR aa | | ex.test. 5 IN SOA "),
            ("ns2.own.ex.test. A", "NXDOMAIN aa | | ex.test. 5 IN SOA "),
            ("x.ns1.own.ex.test. A", "NXDOMAIN aa | | ex.test. 5 IN SOA "),
        ],
    )
    .await;
    for passed in ["none.a.ex.test. A", "dns.ex.test. A", "b.ex.test. A", "1.2.0.192.in-addr.arpa. A"] {
        assert!(server.ask(passed).await.contains("_udp."), "{passed}");
    }
}

#[tokio::test]
async fn headless_services_have_external_names_if_wanted() {
    let (server, cluster) = external("headless");
    check(
        &server,
        &[
            (
                "db.a.ex.test. A",
                "NOERROR aa | db.a.ex.test. 5 IN A 10.1.0.1, db.a.ex.test. 5 IN A 10.1.0.2 | |",
            ),
            ("db-0.db.a.ex.test. A", "NOERROR aa | db-0.db.a.ex.test. 5 IN A 10.1.0.1 | |"),
            ("_10-1-0-2.db.a.ex.test. A", "NOERROR aa | _10-1-0-2.db.a.ex.test. 5 IN A 10.1.0.2 | |"),
            ("none.db.a.ex.test. A", "NXDOMAIN aa"),
            ("_tcp.db.a.ex.test. A", "NOERROR aa | | "),
            ("inner.a.ex.test. A", "NXDOMAIN aa"),
        ],
    )
    .await;
    set(&cluster, "db", &[ip("192.0.2.7")]);
    check(&server, &[("db.a.ex.test. A", "NOERROR aa | db.a.ex.test. 5 IN A 192.0.2.7 | |")]).await;
}

#[tokio::test]
async fn kept_external_answers_end_with_their_objects() {
    let questions = [
        "two.a.ex.test. A",
        "inner.a.ex.test. A",
        "1.2.0.192.in-addr.arpa. PTR",
        "two.a.svc.cluster.local. A",
        "db.a.ex.test. A",
        "db-0.db.a.ex.test. A",
        "ns1.dns.ex.test. A",
    ];
    type Change = fn(&Cluster);
    let changes: [(Change, &[usize]); 6] = [
        (|cluster| set(cluster, "inner", &[ip("192.0.2.3")]), &[1]),
        (|cluster| set(cluster, "two", &[ip("192.0.2.3")]), &[0, 2]),
        (|cluster| cluster.remove(Kind::Services, &key("two")), &[0, 2, 3]),
        (|cluster| set_slice(cluster, &[[10, 1, 0, 1], [10, 1, 0, 3]]), &[4, 5]),
        (|cluster| set_slice(cluster, &[[192, 0, 2, 53]]), &[4, 5, 6]),
        (|cluster| cluster.set_namespace("a", false), &[0, 1, 3, 4, 5]),
    ];
    for (number, (change, expected)) in changes.into_iter().enumerate() {
        let lines = "k8s_external ex.test 2.0.192.in-addr.arpa {\nheadless\n}\nkubernetes cluster.local";
        let (server, cluster) = server(lines);
        fill(&cluster);
        let mut kept = Vec::new();
        for question in questions {
            kept.push(server.reply(question).await.unwrap().validity.expect(question));
        }
        change(&cluster);
        let outdated: Vec<usize> = (0..kept.len()).filter(|at| kept[*at].is_outdated()).collect();
        assert_eq!(outdated, expected, "change {number}");
    }
}

#[tokio::test]
async fn external_names_wait_for_the_first_lists() {
    let (server, cluster) = server("k8s_external ex.test\nkubernetes cluster.local {\nstartup_timeout 0s\n}");
    let rcodes =
        [("none.a.ex.test. A", "NXDOMAIN"), ("ex.test. NS", "NOERROR"), ("ns1.dns.ex.test. A", "NOERROR")];
    check(&server, &rcodes.map(|(question, _)| (question, "SERVFAIL"))).await;
    list(&cluster);
    check(&server, &rcodes).await;
}

#[test]
fn invalid_lines_of_k8s_external_are_rejected() {
    for (lines, expected) in [
        (
            "k8s_external a.b",
            "Corefile:2:1: k8s_external reads the objects of kubernetes, and this block has no kubernetes: add a line",
        ),
        (
            "k8s_external a.b\nlb_linker a.b\nkubernetes c.d",
            "Corefile:2:1: lb_linker answers for the zone a.b already (line 3)",
        ),
        (
            "k8s_external a.b {\napex a..b\n}\nkubernetes c.d",
            "Corefile:3:6: \"a..b\" isn't a name such as dns",
        ),
        ("k8s_external a.b {\napex\n}\nkubernetes c.d", "Corefile:3:1: apex needs a name such as dns"),
        (
            "k8s_external a.b {\nttl 3601\n}\nkubernetes c.d",
            "Corefile:3:5: \"3601\" isn't a number of seconds from 0",
        ),
        ("k8s_external a.b {\nheadless x\n}\nkubernetes c.d", "Corefile:3:10: headless takes no arguments"),
        ("k8s_external a.b {\nup\n}\nkubernetes c.d", "Corefile:3:1: k8s_external has no option \"up\""),
    ] {
        let error = TestServer::error(lines);
        assert!(error.starts_with(expected), "{error}");
    }
}

#[tokio::test]
async fn what_coredns_loads_of_k8s_external_is_loaded() {
    let (server, cluster) = server(
        "k8s_external a.b {\napex Own.dns more\nttl 9 more\n}\nk8s_external c.d\nkubernetes cluster.local",
    );
    list(&cluster);
    check(
        &server,
        &[
            ("c.d. SOA", "NOERROR aa | c.d. 9 IN SOA ns1.own.dns.c.d. hostmaster.own.dns.c.d. "),
            ("ns1.own.dns.c.d. A", "NOERROR aa | ns1.own.dns.c.d. 9 IN A 192.0.2.53 | |"),
            ("own.dns.c.d. A", "NOERROR aa | | c.d. 9 IN SOA "),
            ("x.own.dns.c.d. A", "NXDOMAIN"),
            ("dns.c.d. A", "NXDOMAIN"),
            ("a.b. SOA", "SERVFAIL"),
        ],
    )
    .await;
}

#[test]
fn zones_that_hide_names_of_the_cluster_are_warned_of() {
    for (lines, expected) in [
        (
            "k8s_external a.b\nkubernetes a.b",
            "Corefile:2:1: kubernetes (line 3) gets no question for a.b here: k8s_external answers them before it. Name \
             another zone",
        ),
        ("k8s_external b\nkubernetes a.b", "Corefile:2:1: kubernetes (line 3) gets no question for a.b here"),
        ("k8s_external a.b {\nfallthrough\n}\nkubernetes a.b", ""),
        ("k8s_external c.a.b 10.0.0.0/8\nkubernetes a.b 10.0.0.0/8", ""),
    ] {
        let warnings: Vec<String> =
            TestServer::builder(lines).warnings.iter().map(ToString::to_string).collect();
        let found = warnings.join("\n");
        assert!(found.starts_with(expected) && found.is_empty() == expected.is_empty(), "{lines}: {found}");
    }
}
