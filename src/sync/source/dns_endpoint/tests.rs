use hickory_proto::rr::Name;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};

use super::*;
use crate::model::hostname_policy::HostnamePolicy;
use crate::model::link::{Link, Target};
use crate::model::owner::{Claims, Owner, Zone};
use crate::model::records::{MAX_BYTES, MAX_RECORDS};
use crate::model::target_policy::TargetPolicy;
use crate::store::{Input, OnGone, Store};
use crate::sync::source::names::source::Names;
use crate::sync::test_support;

/// Rules with a zone that has names of DNSEndpoints, and one of load balancers alone.
fn rules() -> Rules {
    let name = |text: &str| Name::from_ascii(text).unwrap();
    let zone =
        |origin: &str, sources: &[Source]| Zone { sources: sources.to_vec(), ..(&name(origin)).into() };
    let zones = [
        zone("lb.internal.", &[Source::SERVICES, Source::DNS_ENDPOINTS]),
        zone("services.example.", &[Source::SERVICES]),
    ];
    let targets = TargetPolicy {
        zones: ["lb.internal.", "services.example."].map(name).to_vec(),
        cluster_domain: name("cluster.local."),
        ..Default::default()
    };
    let hostname_namespaces = ["free".to_owned()].into();
    let policy = HostnamePolicy { targets, hostname_namespaces, ..Default::default() };
    let store = Arc::new(Store::new(OnGone::Dropped).with_zones(zones.clone()));
    Rules { zones: zones.into(), policy: Arc::new(policy), store }
}

fn object(namespace: &str, entries: &Value) -> DnsEndpoint {
    let metadata = json!({"namespace": namespace, "name": "web", "uid": "u", "resourceVersion": "7",
        "creationTimestamp": "2026-01-01T00:00:07Z"});
    serde_json::from_value(json!({"metadata": metadata, "spec": {"endpoints": entries}})).unwrap()
}

fn entry(name: &str, kind: &str, targets: &[&str]) -> Value {
    json!({"dnsName": name, "recordType": kind, "targets": targets})
}

fn with(mut entry: Value, field: &str, value: impl Into<Value>) -> Value {
    entry[field] = value.into();
    entry
}

/// Returns what is behind a name: TTL and target, then TTL and data of each type.
fn shown(link: &Link) -> String {
    let ttl = |ttl: Option<u32>| ttl.map_or_else(|| "-".to_owned(), |ttl| ttl.to_string());
    let target = link.target.iter().map(|target| format!("{} {target}", ttl(link.annotations.ttl)));
    let sets = link.records.iter().flat_map(|records| records.sets()).map(|set| {
        let data: Vec<String> = set.data.iter().map(ToString::to_string).collect();
        format!("{} {} {}", ttl(set.ttl), set.kind, data.join(","))
    });
    target.chain(sets).collect::<Vec<_>>().join("; ")
}

/// Returns the names of an object below `.shop.lb.internal` with what is behind them, and what doesn't count.
fn decided(namespace: &str, entries: &Value) -> (Vec<String>, String) {
    let Decision { claims, unusable, .. } = object(namespace, entries).decide(&rules(), &[]);
    let claim = |Claim { name, target }: &Claim| {
        let name = name.name().strip_suffix(".shop.lb.internal").unwrap_or(name.name());
        format!("{name}: {}", shown(target))
    };
    let unusable = unusable.iter().map(Rejection::to_string).collect::<Vec<_>>().join("; ");
    (claims.iter().map(claim).collect(), unusable)
}

#[test]
fn entries_of_each_type_are_records() {
    let app = "app.shop.lb.internal";
    for (entries, expected) in [
        (json!(null), &[][..]),
        (json!([null, {}, {"dnsName": null, "targets": null, "recordTTL": null}]), &[]),
        (
            json!([entry("App.Shop.LB.internal.", "A", &["192.0.2.1", "192.0.2.2"])]),
            &["app: - 192.0.2.1,192.0.2.2"],
        ),
        (
            json!([
                with(entry(app, "A", &["192.0.2.1"]), "recordTTL", 60),
                with(entry(app, "AAAA", &["2001:db8::1"]), "recordTTL", 30),
                entry(app, "A", &["192.0.2.1"])
            ]),
            &["app: 30 192.0.2.1,2001:db8::1"],
        ),
        (
            json!([with(entry(app, "CNAME", &["A.Example.com."]), "recordTTL", 3600)]),
            &["app: 3600 a.example.com"],
        ),
        (
            json!([
                entry(app, "TXT", &["v=spf1 -all"]),
                entry(app, "MX", &["10 mail.example.com"]),
                with(entry(app, "TXT", &["\"a\" \"b\""]), "recordTTL", 9),
                entry(app, "A", &["192.0.2.1"])
            ]),
            &["app: - 192.0.2.1; 9 TXT \"v=spf1 -all\",\"a\" \"b\"; - MX 10 mail.example.com"],
        ),
        (
            json!([entry("_sip._tcp.shop.lb.internal", "SRV", &["0 5 5060 sip.example.com."])]),
            &["_sip._tcp: - SRV 0 5 5060 sip.example.com"],
        ),
        (
            json!([
                entry("*.shop.lb.internal", "A", &["192.0.2.1"]),
                entry("b.a.shop.lb.internal", "TXT", &[""])
            ]),
            &["*: - 192.0.2.1", "b.a: - TXT \"\""],
        ),
        // Other DNS servers have these names.
        (
            json!([
                entry("app.shop.services.example", "A", &["192.0.2.1"]),
                entry("www.example.com", "NS", &["x"]),
                entry("example.org", "A", &[])
            ]),
            &[],
        ),
    ] {
        assert_eq!(
            decided("shop", &entries),
            (expected.iter().map(|&it| it.to_owned()).collect(), String::new())
        );
    }
}

#[test]
fn entry_that_is_invalid_is_reported_and_passed_over() {
    let app = "app.shop.lb.internal";
    let types = "the types are A, AAAA, CNAME, TXT, SRV and MX";
    for (bad, why) in [
        (entry(app, "NS", &["ns.example.com"]), format!("recordType \"NS\" is ignored: {app}: {types}")),
        (entry(app, "", &["ns.example.com"]), format!("recordType \"\" is ignored: {app}: {types}")),
        (entry(app, "a", &["192.0.2.2"]), format!("recordType \"a\" is ignored: {app}: {types}")),
        (entry(app, "A", &[]), format!("\"\" isn't served: {app} A: the entry has no targets")),
        (entry(app, "A", &["192.0.2.2", "2001:db8::1"]), format!("{app} A: not an IPv4 address")),
        (entry(app, "A", &["192.0.2.2."]), format!("{app} A: not an IPv4 address")),
        (entry(app, "AAAA", &["192.0.2.2"]), format!("{app} AAAA: not an IPv6 address")),
        (entry(app, "AAAA", &["::ffff:192.0.2.2"]), format!("{app} AAAA: an IPv4-mapped address")),
        (entry(app, "A", &["169.254.169.254"]), "\"169.254.169.254\" isn't served: ".to_owned()),
        (entry(app, "AAAA", &["::1"]), format!("\"::1\" isn't served: {app} AAAA: ")),
        (entry(app, "CNAME", &["a.example.com", "b.example.com"]), "a CNAME has one target".to_owned()),
        (entry(app, "CNAME", &["a..example.com"]), format!("{app} CNAME: not a DNS name")),
        (entry(app, "CNAME", &["kubernetes.default.svc.cluster.local"]), format!("{app} CNAME: ")),
        (entry(app, "CNAME", &["localhost"]), format!("{app} CNAME: ")),
        (entry(app, "CNAME", &[app]), format!("{app} CNAME: ")),
        (entry(app, "CNAME", &["web.bank.lb.internal"]), format!("{app} CNAME: ")),
        (entry(app, "MX", &["mail.example.com"]), "an MX record is <preference> <host>".to_owned()),
        (entry(app, "SRV", &["0 5 x"]), "an SRV record is".to_owned()),
        (entry(app, "TXT", &["ok", "\"open"]), "a quote isn't closed".to_owned()),
        (entry("app.bank.lb.internal", "A", &["192.0.2.2"]), "below shop.lb.internal only".to_owned()),
        (entry("lb.internal", "TXT", &["x"]), "the zone itself is reserved".to_owned()),
        (entry("*.lb.internal", "A", &["192.0.2.2"]), "below shop.lb.internal only".to_owned()),
        (entry("ns.dns.lb.internal", "A", &["192.0.2.2"]), "reserved".to_owned()),
        (entry("_tcp.lb.internal", "SRV", &["0 0 1 a.example"]), "reserved".to_owned()),
        (entry("sh op.shop.lb.internal", "A", &["192.0.2.2"]), "not a DNS name".to_owned()),
    ] {
        let good = entry("app.shop.lb.internal", "A", &["192.0.2.1"]);
        for entries in [json!([bad, good]), json!([good, bad])] {
            let (names, unusable) = decided("shop", &entries);
            assert_eq!(names, ["app: - 192.0.2.1"], "{bad}");
            assert!(unusable.contains(&why), "{bad}: {unusable}");
        }
    }
}

#[test]
fn example_of_the_manual_has_no_errors() {
    let page = include_str!("../../../../docs/sources.md");
    let mut examples = page.split("```yaml\n").filter_map(|block| block.split("```").next());
    let example = examples.find(|example| example.contains("kind: DNSEndpoint")).unwrap();
    let object: DnsEndpoint = serde_saphyr::from_str(example).unwrap();
    let Decision { claims, unusable, .. } = object.decide(&rules(), &[]);
    assert_eq!((claims.len(), unusable), (4, vec![]));
}

#[test]
fn ttl_that_is_out_of_range_is_the_zones() {
    for (ttl, expected, is_reported) in [
        (0, "- 192", false),
        (1, "1 192", false),
        (3601, "- 192", true),
        (-1, "- 192", true),
        (i64::MAX, "- 192", true),
    ] {
        let entries = json!([with(entry("app.shop.lb.internal", "A", &["192.0.2.1"]), "recordTTL", ttl)]);
        let (names, unusable) = decided("shop", &entries);
        assert!(names[0].contains(expected), "{ttl}: {names:?}");
        let why = format!(
            "the recordTTL \"{ttl}\" is ignored: app.shop.lb.internal A: not 0 to 3600; the zone's TTL counts"
        );
        assert_eq!(unusable, if is_reported { why } else { String::new() });
    }
}

#[test]
fn cname_goes_before_all_other_types() {
    let app = "app.shop.lb.internal";
    let cname = entry(app, "CNAME", &["a.example.com"]);
    let others = [entry(app, "A", &["192.0.2.1"]), entry(app, "TXT", &["x"])];
    for entries in [json!([cname, others[0], others[1]]), json!([others[0], others[1], cname])] {
        let (names, unusable) = decided("shop", &entries);
        assert_eq!(names, ["app: - a.example.com"]);
        for expected in
            ["\"192.0.2.1\" isn't served: app.shop.lb.internal A: the name has a CNAME", "\"x\" isn't"]
        {
            assert!(unusable.contains(expected), "{unusable}");
        }
    }
}

#[test]
fn cname_with_the_smallest_set_identifier_counts() {
    let cname =
        |host: &str, id: &str| with(entry("app.shop.lb.internal", "CNAME", &[host]), "setIdentifier", id);
    let (a, b, c) = (cname("a.example", "2"), cname("b.example", "1"), cname("c.example", "1"));
    for (entries, expected) in
        [(json!([a, b, c]), "b.example"), (json!([b, a]), "b.example"), (json!([c, b, a]), "c.example")]
    {
        let (names, unusable) = decided("shop", &entries);
        assert_eq!(names, [format!("app: - {expected}")]);
        assert!(
            unusable.contains("app.shop.lb.internal CNAME: the CNAME with the smallest setIdentifier"),
            "{unusable}"
        );
    }
    assert_eq!(decided("shop", &json!([a, cname("A.example.", "3")])).1, "");
}

#[test]
fn any_name_is_granted_to_listed_namespaces_but_reserved_ones() {
    let names =
        ["app.lb.internal", "*.lb.internal", "x.shop.lb.internal", "_a.b.lb.internal", "dns.lb.internal"];
    let entries: Vec<Value> = names.iter().map(|name| entry(name, "A", &["192.0.2.1"])).collect();
    let (granted, unusable) = decided("free", &json!(entries));
    assert_eq!(granted.len(), 4, "{granted:?}");
    assert!(unusable.contains("\"dns.lb.internal\" isn't served"), "{unusable}");
}

#[test]
fn only_the_annotation_managed_has_an_effect() {
    let mut object = object("shop", &json!([]));
    let annotations = ["linker.hsj.com/ttl", "linker.hsj.com/managed", "other/ttl"]
        .map(|key| (key.to_owned(), "x".to_owned()));
    object.metadata.annotations = Some(annotations.into());
    let unusable = object.decide(&rules(), &[]).unusable;
    let unusable: Vec<String> = unusable.iter().map(ToString::to_string).collect();
    assert_eq!(
        unusable,
        [
            "annotation linker.hsj.com/managed \"x\" is ignored: neither true nor false",
            "the annotation \"linker.hsj.com/ttl\" is ignored: DNSEndpoints have linker.hsj.com/managed alone",
        ]
    );
}

/// Checks the limits of what an object asks for.
fn check_bounds(Decision { claims, unusable, .. }: &Decision) {
    assert!(claims.len() <= 1000);
    assert!(claims.is_sorted_by(|one, other| one.name < other.name));
    for rejection in unusable {
        assert!(rejection.to_string().len() < 4000, "{rejection}");
        assert!(!rejection.to_string().chars().any(char::is_control), "{rejection}");
    }
    for Claim { target, .. } in claims {
        assert!(target.has_data());
        let sets = target.records.iter().flat_map(|records| records.sets());
        sets.for_each(|set| {
            assert!(set.data.len() <= MAX_RECORDS);
            assert!(set.data.iter().map(|data| data.to_string().len()).sum::<usize>() <= 4 * MAX_BYTES);
        });
    }
}

#[test]
fn entries_and_targets_beyond_the_limits_are_reported() {
    let app = "app.shop.lb.internal";
    let addresses: Vec<String> = (0..150).map(|last| format!("192.0.2.{last}")).collect();
    let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
    let text = "x".repeat(2048);
    let (names, unusable) = decided(
        "shop",
        &json!([
            entry(app, "A", &addresses),
            entry(app, "A", &["198.51.100.1"]),
            entry(app, "TXT", &[&*text, &text, &text]),
            entry(app, "TXT", &[&text.repeat(3)])
        ]),
    );
    assert!(names[0].starts_with("app: - 192.0.2.0,"), "{names:?}");
    for expected in [
        "app.shop.lb.internal A: of a name and type 100 records and 16 KiB count",
        "app.shop.lb.internal TXT: longer than 4096 bytes",
        "entries that are ignored: 52; of an entry the first 100 count, and 4 KiB of them",
    ] {
        assert!(unusable.contains(expected), "{unusable}");
    }
    let entries: Vec<Value> =
        (0..1200).map(|number| entry(&format!("n{number}.shop.lb.internal"), "A", &["192.0.2.1"])).collect();
    let (names, unusable) = decided("shop", &json!(entries));
    assert_eq!(names.len(), 1000);
    assert_eq!(unusable, "spec.endpoints: entries that are ignored: 200; the first 1000 count");
}

#[test]
fn huge_object_costs_bounded_memory_and_reports() {
    let text = "x".repeat(4096);
    let mut object = object("shop", &json!([]));
    for kind in ["TXT", "MX", "CNAME", "A", "nonsense"] {
        object.spec.endpoints = (0..1000)
            .map(|number| {
                Some(Entry {
                    dns_name: if kind == "TXT" {
                        "app.shop.lb.internal".to_owned()
                    } else {
                        format!("{number}.{text}")
                    },
                    record_type: kind.to_owned(),
                    targets: vec![format!("{number}{}", &text[4..]); 100],
                    ..Entry::default()
                })
            })
            .collect();
        let decision = object.decide(&rules(), &[]);
        check_bounds(&decision);
        let kept: usize = decision.claims.iter().map(|claim| shown(&claim.target).len()).sum();
        assert!(kept <= 4 * MAX_BYTES, "{kind}: {kept}");
    }
}

#[test]
fn mutated_entries_stay_within_the_limits() {
    let long = "y".repeat(5000);
    let texts = [
        "",
        ".",
        "*",
        "app.shop.lb.internal",
        "*.shop.lb.internal",
        "_a._b.shop.lb.internal",
        "lb.internal",
        "\"",
        "\\",
        "\"\\25",
        "\"a\" \"b\"",
        "0 0 0 .",
        "10 a",
        "65536 b",
        "192.0.2.1",
        "::1",
        "A",
        "AAAA",
        "CNAME",
        "TXT",
        "SRV",
        "MX",
        "\u{1b}[2J\n",
        "é",
        "a.example.",
        &long,
    ];
    let rules = rules();
    for seed in 0..3000 {
        let random = &mut StdRng::seed_from_u64(seed);
        let mut pick = |likely: &'static str| match random.random_bool(0.5) {
            true => likely.to_owned(),
            false => (*texts.choose(random).unwrap()).to_owned(),
        };
        let mut entries = Vec::new();
        for number in 0..seed % 8 {
            let kind = ["A", "CNAME", "TXT", "SRV", "MX"][usize::try_from((seed + number) % 5).unwrap()];
            let target = ["192.0.2.1", "b.example", "\"a\"", "0 0 1 b.example", "1 b.example"]
                [usize::try_from((seed + number) % 5).unwrap()];
            entries.push(json!({"dnsName": pick("app.shop.lb.internal"), "recordType": pick(kind),
                "targets": [pick(target), pick(target)], "setIdentifier": pick(""), "recordTTL": number * seed}));
        }
        check_bounds(&object("shop", &json!(entries)).decide(&rules, &[]));
    }
}

/// The state of DNSEndpoints in a zone, with the store.
struct World {
    store: Arc<Store>,
    names: Names<DnsEndpoints>,
}

impl World {
    fn listed() -> Self {
        let mut world = Self::new();
        world.names.end_lists();
        world
    }

    fn new() -> Self {
        let Rules { policy, store, .. } = rules();
        store.set_known(Input::Services);
        let reporter = test_support::link_reporter();
        let mut names =
            Names::new(DnsEndpoints::default(), None, Arc::clone(&store), Arc::default(), reporter);
        names.set_rules(store.zones(), policy);
        Self { store, names }
    }

    fn apply(&mut self, name: &str, created: &str, entries: &Value) -> Option<Arc<Link>> {
        let mut object = object("shop", entries);
        object.metadata.name = Some(name.to_owned());
        let time = json!(format!("2026-01-01T00:00:{created}Z"));
        object.metadata.creation_timestamp = serde_json::from_value(time).unwrap();
        self.names.take(object);
        self.names.state.publish();
        self.link()
    }

    /// Returns what is behind `app.shop.lb.internal`.
    fn link(&self) -> Option<Arc<Link>> {
        self.store.link_of_host(&Name::from_ascii("app.shop.lb.internal.").unwrap())
    }
}

#[test]
fn objects_of_a_namespace_unite_their_records() {
    let mut world = World::listed();
    let app = "app.shop.lb.internal";
    let (a, txt) = (entry(app, "A", &["192.0.2.1"]), with(entry(app, "TXT", &["b"]), "recordTTL", 9));
    let first = world.apply("one", "01", &json!([entry(app, "TXT", &["a"])])).unwrap();
    assert_eq!(shown(&first), "- TXT \"a\"");
    let both = world.apply("two", "02", &json!([with(a.clone(), "recordTTL", 60), txt])).unwrap();
    assert_eq!(shown(&both), "60 192.0.2.1; 9 TXT \"a\",\"b\"");
    let again = world.apply("two", "02", &json!([with(a.clone(), "recordTTL", 60), txt])).unwrap();
    assert!(Arc::ptr_eq(&both, &again), "nothing has changed");
    let lower = world.apply("three", "03", &json!([with(a, "recordTTL", 30)])).unwrap();
    assert_eq!(shown(&lower), "30 192.0.2.1; 9 TXT \"a\",\"b\"");
    let cname = with(entry(app, "CNAME", &["a.example"]), "recordTTL", 7);
    assert_eq!(shown(&world.apply("four", "04", &json!([cname])).unwrap()), "7 a.example");
    for name in ["two", "three", "four"] {
        let key = ServiceKey::new("shop", name);
        world.names.remove(&ObjectId { key, kind: RegardingKind::DnsEndpoint });
    }
    world.names.state.publish();
    assert!(Arc::ptr_eq(&world.link().unwrap(), &first));
    assert!(world.apply("one", "01", &json!([])).is_none());
}

#[test]
fn cname_to_a_name_of_another_namespace_is_checked_again() {
    let mut world = World::listed();
    let hosts = ["app.shop.lb.internal", "web.shop.lb.internal"];
    let cname = json!([entry(hosts[0], "CNAME", &[hosts[1]])]);
    assert_eq!(shown(&world.apply("one", "01", &cname).unwrap()), "- web.shop.lb.internal");
    assert!(world.names.source.has_dependent());
    // The namespace `free` may have any name.
    let owner = Owner { source: Source::DNS_ENDPOINTS, key: ServiceKey::new("free", hosts[1]) };
    let target = Some(Target::Addresses(["192.0.2.1".parse().unwrap()].into()));
    let link = Link { target, ..Link::new(Source::DNS_ENDPOINTS.target_key(&owner.key), "f") };
    let claims = Claims { created: 0, names: [hosts[1].into()].into(), ..Default::default() };
    world.store.observe(&owner, &claims, &Arc::new(link), None);
    world.names.recheck();
    world.names.state.publish();
    assert!(world.link().is_none());
    world.store.forget(owner);
    world.names.recheck();
    world.names.state.publish();
    assert!(world.link().is_some());
    assert!(world.apply("one", "01", &json!([])).is_none());
    assert!(!world.names.source.has_dependent() && world.names.source.dependent_bytes == 0);
}

#[test]
fn names_that_lead_on_to_each_other_are_known_after_the_lists() {
    let mut world = World::new();
    // The namespace `free` may have any name, and these don't lie below a namespace's domain.
    let hosts = ["w", "x", "y", "z"].map(|host| format!("{host}.lb.internal"));
    for (number, pair) in hosts.windows(2).enumerate() {
        let mut object = object("free", &json!([entry(&pair[0], "CNAME", &[&pair[1]])]));
        object.metadata.name = Some(number.to_string());
        world.names.take(object);
    }
    world.names.take(object("free", &json!([entry(&hosts[3], "A", &["192.0.2.1"])])));
    world.names.end_lists();
    let shown = hosts.map(|host| {
        let link = world.store.link_of_host(&Name::from_ascii(format!("{host}.")).unwrap());
        link.map(|link| shown(&link)).unwrap_or_default()
    });
    assert_eq!(shown, ["- x.lb.internal", "- y.lb.internal", "- z.lb.internal", "- 192.0.2.1"]);
}

#[test]
fn kept_objects_of_dependent_targets_are_bounded_in_size() {
    let mut world = World::listed();
    let text = "x".repeat(4000);
    let mut entries = vec![entry("app.shop.lb.internal", "CNAME", &["web.shop.lb.internal"])];
    entries.extend((0..200).map(|_| entry("txt.shop.lb.internal", "TXT", &[&text])));
    for number in 0..20 {
        world.apply(&format!("o{number}"), "01", &json!(entries));
    }
    let kept = world.names.source.dependent.len();
    assert!((1..10).contains(&kept), "{kept}");
    assert!(world.names.source.dependent_bytes <= MAX_DEPENDENT_BYTES);
}
