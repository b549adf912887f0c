//! Tests of reverse zones.

use ipnet::IpNet;

use crate::dns::plugins::lb_linker::zone::tests::*;

fn origins(net: &str) -> Vec<String> {
    zone().reverse(net.parse().unwrap()).iter().map(|zone| zone.origin().to_ascii()).collect()
}

/// Returns the only reverse zone of a network.
fn reverse(net: &str) -> Zone {
    let [zone] = &zone().reverse(net.parse().unwrap())[..] else { panic!("{net}") };
    zone.clone()
}

fn soa(origin: &str) -> String {
    format!("{origin} 5 IN SOA ns.dns.lb.internal. hostmaster.lb.internal. 42 7200 1800 86400 5")
}

#[test]
fn network_is_split_into_reverse_zones_at_label_boundaries() {
    for (net, expected) in [
        ("10.0.0.0/8", &["10.in-addr.arpa."][..]),
        ("10.1.2.3/16", &["1.10.in-addr.arpa."]),
        ("192.0.2.0/24", &["2.0.192.in-addr.arpa."]),
        ("192.0.2.1/32", &["1.2.0.192.in-addr.arpa."]),
        ("0.0.0.0/0", &["in-addr.arpa."]),
        ("10.0.0.0/15", &["0.10.in-addr.arpa.", "1.10.in-addr.arpa."]),
        ("192.0.2.4/31", &["4.2.0.192.in-addr.arpa.", "5.2.0.192.in-addr.arpa."]),
        ("2001:db8::/32", &["8.b.d.0.1.0.0.2.ip6.arpa."]),
        ("2001:db8:f000::/36", &["f.8.b.d.0.1.0.0.2.ip6.arpa."]),
        ("2001:db8:c000::/35", &["c.8.b.d.0.1.0.0.2.ip6.arpa.", "d.8.b.d.0.1.0.0.2.ip6.arpa."]),
        ("::/0", &["ip6.arpa."]),
    ] {
        assert_eq!(origins(net), expected, "{net}");
    }
    assert_eq!(origins("172.16.0.0/12").len(), 16);
    assert_eq!(origins("128.0.0.0/1").len(), 128, "the maximum number of zones");
    assert_eq!(origins("2001:db8::1/128")[0].len(), 32 * 2 + "ip6.arpa.".len());
}

#[test]
fn address_has_pointers_to_its_load_balancers() {
    let store = store_of(vec![
        link("default", "ips", &[], &["192.0.2.1", "2001:db8::1", "192.0.2.2"]),
        with_ttl(3, link("default", "shared", &[], &["192.0.2.2"])),
        with_ttl(60, link("other", "far", &[], &["192.0.99.7"])),
        link("dns", "web", &[], &["192.0.2.9"]),
        link("default", "host", &["a.example."], &[]),
    ]);
    let apex = soa("0.192.in-addr.arpa.");
    let apex_answer = format!("NoError | {apex} |  | ");
    let table = [
        // RFC 1035 section 3.5.
        (
            "1.2.0.192.in-addr.arpa. PTR",
            "NoError | 1.2.0.192.in-addr.arpa. 5 IN PTR ips.default.lb.internal. |  | ",
        ),
        (
            "7.99.0.192.IN-ADDR.arpa. PTR",
            "NoError | 7.99.0.192.IN-ADDR.arpa. 60 IN PTR far.other.lb.internal. |  | ",
        ),
        // RFC 2181 sections 10.2 and 5.2: an address may have several names; all have the same TTL.
        (
            "2.2.0.192.in-addr.arpa. PTR",
            "NoError | 2.2.0.192.in-addr.arpa. 3 IN PTR ips.default.lb.internal., \
             2.2.0.192.in-addr.arpa. 3 IN PTR shared.default.lb.internal. |  | ",
        ),
        // The dashed name, because `web.dns` is reserved for the zone itself.
        (
            "9.2.0.192.in-addr.arpa. PTR",
            "NoError | 9.2.0.192.in-addr.arpa. 5 IN PTR web-dns.lb.internal. |  | ",
        ),
        // RFC 8482 section 4.1.
        (
            "1.2.0.192.in-addr.arpa. ANY",
            "NoError | 1.2.0.192.in-addr.arpa. 5 IN PTR ips.default.lb.internal. |  | ",
        ),
        // RFC 2308 section 2.2.
        ("1.2.0.192.in-addr.arpa. A", "NODATA"),
        ("0.192.in-addr.arpa. PTR", "NODATA"),
        // RFC 8020 section 2.
        ("2.0.192.in-addr.arpa. PTR", "NODATA"),
        ("99.0.192.in-addr.arpa. A", "NODATA"),
        // RFC 2308 section 2.1.
        ("3.2.0.192.in-addr.arpa. PTR", "NXDOMAIN"),
        ("1.0.192.in-addr.arpa. PTR", "NXDOMAIN"),
        ("3.0.192.in-addr.arpa. PTR", "NXDOMAIN"),
        ("x.1.2.0.192.in-addr.arpa. PTR", "NXDOMAIN"),
        ("_http._tcp.1.2.0.192.in-addr.arpa. SRV", "NXDOMAIN"),
        // Numbers that aren't in the form of RFC 1035 section 3.5.
        ("01.2.0.192.in-addr.arpa. PTR", "NXDOMAIN"),
        ("257.2.0.192.in-addr.arpa. PTR", "NXDOMAIN"),
        ("002.0.192.in-addr.arpa. PTR", "NXDOMAIN"),
        ("*.2.0.192.in-addr.arpa. PTR", "NXDOMAIN"),
        // RFC 1034 section 4.2.1: the apex.
        ("0.192.in-addr.arpa. SOA", &*apex_answer),
        ("0.192.in-addr.arpa. ANY", &apex_answer),
        (
            "0.192.in-addr.arpa. NS",
            "NoError | 0.192.in-addr.arpa. 5 IN NS ns.dns.lb.internal. |  | \
             ns.dns.lb.internal. 5 IN A 192.0.2.53, ns.dns.lb.internal. 5 IN AAAA 2001:db8::53",
        ),
    ];
    check(&reverse("192.0.0.0/16"), &store, &apex, &table);

    // `+1` is a valid label in wire form, but `Name::from_ascii` rejects it.
    let plus = Name::from_labels(["+1", "2", "0", "192", "in-addr", "arpa"].map(str::as_bytes)).unwrap();
    let answer = reverse("192.0.2.0/24").answer(&store, &plus, b"\x02+1", RecordType::PTR);
    assert_eq!(answer.rcode, ResponseCode::NXDomain);
}

#[test]
fn ipv6_address_has_a_pointer_to_its_load_balancer() {
    let store = store_of(vec![link("default", "six", &[], &["2001:db8::a:1"])]);
    let address = "1.0.0.0.a.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa.";
    let upper = address.to_ascii_uppercase();
    let pointer = |name: &str| format!("NoError | {name} 5 IN PTR six.default.lb.internal. |  | ");
    let table = [
        // RFC 3596 section 2.5.
        (&*format!("{address} PTR"), &*pointer(address)),
        (&format!("{upper} PTR"), &pointer(&upper)),
        (&format!("{address} AAAA"), "NODATA"),
        // RFC 8020 section 2.
        (&format!("{} PTR", &address[2..]), "NODATA"),
        ("0.8.b.d.0.1.0.0.2.ip6.arpa. PTR", "NODATA"),
        ("1.8.b.d.0.1.0.0.2.ip6.arpa. PTR", "NXDOMAIN"),
        (&format!("2{} PTR", &address[1..]), "NXDOMAIN"),
        (&format!("x.{address} PTR"), "NXDOMAIN"),
        ("00.8.b.d.0.1.0.0.2.ip6.arpa. PTR", "NXDOMAIN"),
        ("g.8.b.d.0.1.0.0.2.ip6.arpa. PTR", "NXDOMAIN"),
    ];
    check(&reverse("2001:db8::/32"), &store, &soa("8.b.d.0.1.0.0.2.ip6.arpa."), &table);
}

#[test]
fn zone_of_one_address_has_its_pointer_at_the_apex() {
    let store = store_of(vec![link("default", "ips", &[], &["192.0.2.1"])]);
    let apex = soa("1.2.0.192.in-addr.arpa.");
    let pointer = "NoError | 1.2.0.192.in-addr.arpa. 5 IN PTR ips.default.lb.internal. |  | ";
    let apex_answer = format!("NoError | {apex} |  | ");
    let table = [
        ("1.2.0.192.in-addr.arpa. PTR", pointer),
        ("1.2.0.192.in-addr.arpa. SOA", &apex_answer),
        ("1.2.0.192.in-addr.arpa. TXT", "NODATA"),
        ("x.1.2.0.192.in-addr.arpa. PTR", "NXDOMAIN"),
    ];
    check(&reverse("192.0.2.1/32"), &store, &apex, &table);
}

#[test]
fn unknown_address_gets_servfail_before_the_first_list() {
    let store = Store::new(OnGone::Kept);
    let zone = reverse("192.0.2.0/24");
    store.apply(link("default", "ips", &[], &["192.0.2.1"]));
    assert!(ask_in(&zone, &store, "1.2.0.192.in-addr.arpa. PTR").contains("PTR ips.default"));
    for question in ["2.2.0.192.in-addr.arpa. PTR", "2.0.192.in-addr.arpa. SOA"] {
        assert_eq!(ask_in(&zone, &store, question), "ServFail EDE 14 |  |  | ", "{question}");
    }
    let answer = ask_in(&zone, &store, "x.2.0.192.in-addr.arpa. PTR");
    assert!(answer.starts_with("NXDomain"), "no link can have this name: {answer}");
}

#[test]
fn most_specific_zone_comes_first() {
    let nets = ["10.0.0.0/8", "10.1.0.0/16", "10.1.2.0/24"].map(|net| net.parse::<IpNet>().unwrap());
    let first = zone();
    let mut zones = vec![first.clone()];
    zones.extend(nets.iter().flat_map(|net| first.reverse(*net)));
    closest_first(&mut zones);
    for (question, origin) in [
        ("3.2.1.10.in-addr.arpa.", "2.1.10.in-addr.arpa."),
        ("3.3.1.10.in-addr.arpa.", "1.10.in-addr.arpa."),
        ("1.10.in-addr.arpa.", "1.10.in-addr.arpa."),
        ("3.3.3.10.in-addr.arpa.", "10.in-addr.arpa."),
        ("web.default.lb.internal.", "lb.internal."),
    ] {
        let found = zones.iter().find(|zone| zone.relative(&name(question)).is_some()).unwrap();
        assert_eq!(found.origin().to_ascii(), origin, "{question}");
    }
}

#[test]
fn pointers_name_the_first_zone_and_have_its_options() {
    let options = ZoneOptions { ttl: 30, apex: "k8s".to_owned(), ..Default::default() };
    let first = Zone::with_options(&name("example."), options).unwrap();
    let [zone] = &first.reverse("192.0.2.0/24".parse().unwrap())[..] else { panic!() };
    let store = store_of(vec![link("default", "ips", &[], &["192.0.2.1"])]);
    let apex = "2.0.192.in-addr.arpa. 30 IN SOA ns.k8s.example. hostmaster.example. 42 7200 1800 86400 30";
    let pointer = "NoError | 1.2.0.192.in-addr.arpa. 30 IN PTR ips.default.example. |  | ";
    let table = [("1.2.0.192.in-addr.arpa. PTR", pointer), ("2.2.0.192.in-addr.arpa. PTR", "NXDOMAIN")];
    check(zone, &store, apex, &table);
}
