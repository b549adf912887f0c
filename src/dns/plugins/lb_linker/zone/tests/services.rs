//! Tests of SRV records.

use crate::dns::plugins::lb_linker::zone::tests::*;

#[test]
fn srv_records_are_found_by_port_name_and_protocol() {
    let ports = ["http/TCP/80", "https/TCP/443", "quic/UDP/443", "assoc/SCTP/9000"];
    let store = store_of(vec![
        with_ports(&ports, link("default", "ips", &[], &["192.0.2.1", "2001:db8::1"])),
        with_ttl(60, with_ports(&ports[..1], link("default", "host", &["a.example."], &[]))),
        with_ports(&ports[..1], link("default", "pending", &[], &[])),
        with_ports(&["/TCP/80"], link("default", "unnamed", &[], &["192.0.2.3"])),
        with_ports(&[], link("default", "portless", &[], &["192.0.2.4"])),
    ]);
    let service = |name: &str, port: u16| {
        format!(
            "NoError | {name}.lb.internal. 5 IN SRV 0 100 {port} ips.default.lb.internal. |  | \
             ips.default.lb.internal. 5 IN A 192.0.2.1, ips.default.lb.internal. 5 IN AAAA 2001:db8::1"
        )
    };
    let table = [
        // RFC 2782: the SRV record, and the addresses of its target in the additional section.
        ("_http._tcp.ips.default.lb.internal. SRV", &*service("_http._tcp.ips.default", 80)),
        ("_quic._udp.ips.default.lb.internal. SRV", &service("_quic._udp.ips.default", 443)),
        ("_assoc._sctp.ips.default.lb.internal. SRV", &service("_assoc._sctp.ips.default", 9000)),
        // RFC 2782, "Service" and "Proto": labels are case-insensitive; RFC 4343 section 4: the answer keeps the
        // query's case.
        ("_HTTP._Tcp.IPs.Default.lb.internal. SRV", &service("_HTTP._Tcp.IPs.Default", 80)),
        // RFC 2782, "Target": not an alias, but the load balancer's hostname itself; the TTL is the link's.
        (
            "_http._tcp.host.default.lb.internal. SRV",
            "NoError | _http._tcp.host.default.lb.internal. 60 IN SRV 0 100 80 a.example. |  | ",
        ),
        // RFC 8482 section 4.1.
        (
            "_http._tcp.host.default.lb.internal. ANY",
            "NoError | _http._tcp.host.default.lb.internal. 60 IN SRV 0 100 80 a.example. |  | ",
        ),
        // RFC 2308 section 2.2: the name exists, and has only SRV records.
        ("_http._tcp.ips.default.lb.internal. A", "NODATA"),
        ("_http._tcp.host.default.lb.internal. CNAME", "NODATA"),
        ("_http._tcp.pending.default.lb.internal. SRV", "NODATA"),
        // RFC 8020 section 2: the parent of the name exists, too, and has no records.
        ("_tcp.ips.default.lb.internal. SRV", "NODATA"),
        ("_TCP.ips.default.lb.internal. A", "NODATA"),
        ("_sctp.ips.default.lb.internal. ANY", "NODATA"),
        ("_tcp.host.default.lb.internal. SRV", "NODATA"),
        ("_tcp.pending.default.lb.internal. SRV", "NODATA"),
        // RFC 2308 section 2.1: another port, protocol or load balancer, and malformed names.
        ("_ftp._tcp.ips.default.lb.internal. SRV", "NXDOMAIN"),
        ("_http._udp.ips.default.lb.internal. SRV", "NXDOMAIN"),
        ("_http._tcp.other.default.lb.internal. SRV", "NXDOMAIN"),
        ("_tcp.other.default.lb.internal. SRV", "NXDOMAIN"),
        ("_udp.host.default.lb.internal. SRV", "NXDOMAIN"),
        ("_http.ips.default.lb.internal. SRV", "NXDOMAIN"),
        ("http._tcp.ips.default.lb.internal. SRV", "NXDOMAIN"),
        ("_http.tcp.ips.default.lb.internal. SRV", "NXDOMAIN"),
        ("_x._http._tcp.ips.default.lb.internal. SRV", "NXDOMAIN"),
        ("x._http._tcp.ips.default.lb.internal. SRV", "NXDOMAIN"),
        ("_._tcp.unnamed.default.lb.internal. SRV", "NXDOMAIN"),
        ("_tcp.unnamed.default.lb.internal. SRV", "NXDOMAIN"),
        ("_tcp.portless.default.lb.internal. SRV", "NXDOMAIN"),
        ("_tcp.default.lb.internal. SRV", "NXDOMAIN"),
        ("_http._tcp.default.lb.internal. SRV", "NXDOMAIN"),
        ("_http._tcp.lb.internal. SRV", "NXDOMAIN"),
        ("_http._tcp.dns.lb.internal. SRV", "NXDOMAIN"),
        ("_http._tcp.ns.dns.lb.internal. SRV", "NXDOMAIN"),
        // Only the unambiguous name has ports and protocols below it.
        ("_http._tcp.ips-default.lb.internal. SRV", "NXDOMAIN"),
    ];
    check(&zone(), &store, SOA_RECORD, &table);
}

#[test]
fn names_of_a_link_with_addresses_have_srv_for_every_port() {
    let ports = ["dns/UDP/53", "dns-tcp/TCP/53", "/TCP/853"];
    let store = store_of(vec![
        with_ports(&ports, link("default", "ips", &[], &["192.0.2.1"])),
        with_ports(&ports, link("default", "host", &["a.example."], &[])),
        with_ports(&ports, link("dns", "six", &[], &["2001:db8::6"])),
        link("default", "portless", &[], &["192.0.2.4"]),
    ]);
    let services = |name: &str, target: &str, address: &str| {
        format!(
            "NoError | {name} 5 IN SRV 0 100 53 {target}, {name} 5 IN SRV 0 100 853 {target} |  | \
             {target} 5 IN {address}"
        )
    };
    let (dotted, dashed) = ("ips.default.lb.internal.", "ips-default.lb.internal.");
    let table = [
        // RFC 2181 section 5: duplicate records are removed.
        ("ips.default.lb.internal. SRV", &*services(dotted, dotted, "A 192.0.2.1")),
        ("ips-default.lb.internal. SRV", &services(dashed, dotted, "A 192.0.2.1")),
        ("portless.default.lb.internal. SRV", "NODATA"),
        // RFC 2181 section 10.1: an alias has no other records.
        (
            "host.default.lb.internal. SRV",
            "NoError → a.example. | host.default.lb.internal. 5 IN CNAME a.example. |  | ",
        ),
        // This is the only name of the link, because `six.dns` is reserved.
        (
            "six-dns.lb.internal. SRV",
            &services("six-dns.lb.internal.", "six-dns.lb.internal.", "AAAA 2001:db8::6"),
        ),
    ];
    check(&zone(), &store, SOA_RECORD, &table);
}

#[test]
fn too_long_port_name_has_no_srv_record() {
    let (fits, longer) = ("x".repeat(62), "y".repeat(63));
    let port = |name: &str| format!("{name}/TCP/80");
    let store = store_of(vec![
        with_ports(&[&port(&fits), &port(&longer)], link("default", "ips", &[], &["192.0.2.1"])),
        with_ports(&[&port(&longer)], link("default", "longer", &[], &["192.0.2.2"])),
    ]);
    let question = format!("_{fits}._tcp.ips.default.lb.internal. SRV");
    assert!(ask(&store, &question).starts_with("NoError | _x"), "RFC 1035 section 2.3.4");
    assert!(ask(&store, "_tcp.longer.default.lb.internal. SRV").starts_with("NXDomain"));
}

#[test]
fn srv_records_are_removed_with_their_load_balancer() {
    let store = store_of(vec![with_ports(&["http/TCP/80"], link("default", "web", &["a.example."], &[]))]);
    let key = ServiceKey::new("default", "web");
    let question = "_http._tcp.web.default.lb.internal. SRV";
    assert!(ask(&store, question).contains("SRV 0 100 80 a.example."));
    store.gone(&key, "u", None, std::time::Instant::now());
    check(&zone(), &store, &soa_record(43), &[(question, "NODATA")]);
    store.forget(&key);
    check(&zone(), &store, &soa_record(44), &[(question, "NXDOMAIN")]);
}

#[test]
fn unknown_srv_name_gets_servfail_before_the_first_list() {
    let store = Store::new(OnGone::Kept);
    store.apply(with_ports(&["http/TCP/80"], link("default", "web", &["a.example."], &[])));
    assert!(ask(&store, "_http._tcp.web.default.lb.internal. SRV").contains("SRV 0 100 80 a.example."));
    for name in ["_ftp._tcp.web", "_tcp.web", "_http._tcp.other"] {
        assert_eq!(ask(&store, &format!("{name}.default.lb.internal. SRV")), "ServFail EDE 14 |  |  | ");
    }
}

#[test]
fn srv_target_is_no_alias_of_this_zone() {
    let ports = ["http/TCP/80"];
    let store = store_of(vec![
        with_ports(&ports, link("default", "one", &["two.default.lb.internal."], &[])),
        with_ports(&[], link("default", "two", &["ips.default.lb.internal."], &[])),
        with_ports(&[], link("default", "ips", &[], &["192.0.2.1"])),
        with_ports(&ports, link("default", "out", &["away.default.lb.internal."], &[])),
        with_ports(&[], link("default", "away", &["a.example."], &[])),
        with_ports(&ports, link("default", "egg", &["hen.default.lb.internal."], &[])),
        with_ports(&[], link("default", "hen", &["egg.default.lb.internal."], &[])),
    ]);
    assert_eq!(
        ask(&store, "_http._tcp.one.default.lb.internal. SRV"),
        "NoError | _http._tcp.one.default.lb.internal. 5 IN SRV 0 100 80 ips.default.lb.internal. |  | \
         ips.default.lb.internal. 5 IN A 192.0.2.1"
    );
    assert_eq!(
        ask(&store, "_http._tcp.out.default.lb.internal. SRV"),
        "NoError | _http._tcp.out.default.lb.internal. 5 IN SRV 0 100 80 a.example. |  | "
    );
    // A CNAME loop: the number of steps is limited.
    assert!(ask(&store, "_http._tcp.egg.default.lb.internal. SRV").starts_with("NoError | _http._tcp.egg"));

    // The SRV rrset has the lowest TTL of the link and of the aliases; the address rrset of the host has its own TTL.
    let store = store_of(vec![
        with_ttl(3600, with_ports(&ports, link("default", "src", &["end.default.lb.internal."], &[]))),
        with_ttl(1, with_ports(&[], link("default", "end", &[], &["192.0.2.1"]))),
    ]);
    assert_eq!(
        ask(&store, "_http._tcp.src.default.lb.internal. SRV"),
        "NoError | _http._tcp.src.default.lb.internal. 3600 IN SRV 0 100 80 end.default.lb.internal. |  | \
         end.default.lb.internal. 1 IN A 192.0.2.1"
    );
}

#[test]
fn srv_answer_has_the_first_1000_ports() {
    let ports: Vec<String> =
        (1..=1001).flat_map(|port| ["TCP", "UDP"].map(|by| format!("/{by}/{port}"))).collect();
    let ports: Vec<&str> = ports.iter().map(String::as_str).collect();
    let store = store_of(vec![with_ports(&ports, link("default", "ips", &[], &["192.0.2.1"]))]);
    let answer = ask(&store, "ips.default.lb.internal. SRV");
    assert_eq!(answer.matches(" IN SRV ").count(), 1000);
    assert!(answer.contains(" SRV 0 100 1000 ") && !answer.contains(" SRV 0 100 1001 "));
}
