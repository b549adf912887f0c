use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::dns::plugins::kubernetes::tests::{list, server};
use crate::dns::plugins::tests::support::TestServer;
use crate::model::names;
use crate::model::service_key::ServiceKey;
use crate::store::cluster::Cluster;
use crate::store::cluster::objects::{Addressing, External, Kind, Port, Protocol, Service, Slice};

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

/// Adds Services with two addresses, with a hostname, with an address and a hostname, and a headless one.
fn fill(cluster: &Cluster) {
    let ports = port();
    let set = |name: &str, addressing, externals| {
        cluster.set_service(&key(name), Some(Service { addressing, ports: ports.clone() }));
        cluster.set_externals(&key(name), externals);
    };
    let ips = || Addressing::ClusterIps([[10, 0, 0, 1].into()].into());
    set("two", ips(), vec![ip("192.0.2.1"), ip("2001:db8::1")]);
    set("elb", ips(), vec![host("lb.example.org"), host("other.example.org")]);
    set("both", ips(), vec![ip("192.0.2.1"), host("lb.example.org")]);
    set("inner", ips(), vec![]);
    set("db", Addressing::Headless, vec![]);
    let slice = Slice {
        name: "db-1".into(),
        ports: port(),
        addresses: [[10, 1, 0, 1].into(), [10, 1, 0, 2].into()].into(),
        names: [(0, "db-0".into())].into(),
        zones: None,
        cluster: Box::default(),
    };
    cluster.set_slice(&key("db-1"), Some(("db", slice)));
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
async fn zone_of_external_names_has_an_apex() {
    let (server, cluster) = external("apex Own\nfallthrough");
    cluster.external_serial().store(5, Ordering::Relaxed);
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
    cluster.set_externals(&key("db"), vec![ip("192.0.2.7")]);
    check(&server, &[("db.a.ex.test. A", "NOERROR aa | db.a.ex.test. 5 IN A 192.0.2.7 | |")]).await;
}

#[tokio::test]
async fn kept_external_answers_end_with_their_objects() {
    let (server, cluster) = server("k8s_external ex.test 2.0.192.in-addr.arpa\nkubernetes cluster.local");
    fill(&cluster);
    let questions = ["two.a.ex.test. A", "inner.a.ex.test. A", "1.2.0.192.in-addr.arpa. PTR"];
    let inside = "two.a.svc.cluster.local. A";
    let mut kept = Vec::new();
    for question in questions.into_iter().chain([inside]) {
        kept.push(server.reply(question).await.unwrap().validity.unwrap());
    }
    let outdated = |expected: [bool; 4]| {
        assert_eq!(kept.iter().map(|kept| kept.is_outdated()).collect::<Vec<_>>(), expected);
    };
    cluster.set_externals(&key("inner"), vec![ip("192.0.2.3")]);
    outdated([false, true, false, false]);
    let serials =
        || [cluster.serial(), cluster.external_serial()].map(|serial| serial.load(Ordering::Relaxed));
    cluster.serial().store(1, Ordering::Relaxed);
    cluster.set_externals(&key("two"), vec![ip("192.0.2.3")]);
    outdated([true, true, true, false]);
    assert!(serials()[0] == 1 && serials()[1] > 1, "{:?}", serials());
    cluster.remove(Kind::Services, &key("two"));
    outdated([true; 4]);
    assert!(server.ask("two.a.ex.test. A").await.starts_with("NXDOMAIN"));
}

#[tokio::test]
async fn external_names_wait_for_the_first_lists() {
    let (server, cluster) = server("k8s_external ex.test\nkubernetes cluster.local {\nstartup_timeout 0s\n}");
    assert!(server.ask("none.a.ex.test. A").await.starts_with("SERVFAIL"));
    list(&cluster);
    assert!(server.ask("none.a.ex.test. A").await.starts_with("NXDOMAIN"));
}

#[test]
fn invalid_lines_of_k8s_external_are_rejected() {
    for (lines, expected) in [
        (
            "k8s_external a.b",
            "Corefile:2:1: k8s_external reads the objects of kubernetes, and this block has no kubernetes: add a line",
        ),
        (
            "k8s_external a.b\nk8s_external b.c\nkubernetes c.d",
            "Corefile:3:1: k8s_external can be there only once in a block",
        ),
        (
            "k8s_external a.b\nlb_linker a.b\nkubernetes c.d",
            "Corefile:2:1: lb_linker answers for the zone a.b. already",
        ),
        (
            "k8s_external a.b {\napex a.b\n}\nkubernetes c.d",
            "Corefile:3:6: \"a.b\" isn't a label such as dns",
        ),
        ("k8s_external a.b {\napex\n}\nkubernetes c.d", "Corefile:3:1: apex needs a label such as dns"),
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
