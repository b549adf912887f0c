use std::collections::BTreeSet;

use hickory_proto::rr::Name;
use jiff::Timestamp;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};

use super::*;
use crate::model::hostname::Hostname;
use crate::model::link::{InternalNames, Link, Port};
use crate::model::names;
use crate::model::records::{RecordData, RecordKind, Records};
use crate::model::target_policy::TargetPolicy;
use crate::snapshot::contents::{recorded_flags, saved_owners};
use crate::snapshot::format::{Head, RecordedFlags, decode, encode};
use crate::store::Lookup;
use crate::sync::k8s::client::ClusterIdentity;
use crate::sync::source::service_links::set_override;

fn name(text: &str) -> Name {
    Name::from_ascii(text).unwrap()
}

fn policy() -> HostnamePolicy {
    HostnamePolicy {
        targets: TargetPolicy { zones: vec![name("lb.internal.")], ..Default::default() },
        hostname_namespaces: BTreeSet::from(["*".to_owned()]),
        ..Default::default()
    }
}

fn head() -> Head {
    Head {
        taken: Timestamp::UNIX_EPOCH,
        program: String::new(),
        cluster: ClusterIdentity::default(),
        recorded_flags: RecordedFlags::default(),
        serial: 77,
        last_change: Some(1_700_000_000),
    }
}

/// Returns the snapshot of a store, after it was written and read.
fn snapshot(store: &Store) -> Snapshot {
    let (links, others) = (store.links(), store.other_owners());
    decode(&encode(&head(), || saved_owners(&links, &others)).unwrap().bytes).unwrap()
}

fn observed(key: &ServiceKey, created: i64, target: Option<Target>) -> ObservedService {
    let ingress = match target {
        None => Ingress::default(),
        Some(Target::Hostname(host)) => Ingress { hostnames: vec![host], addresses: vec![] },
        Some(Target::Addresses(ips)) => Ingress { hostnames: vec![], addresses: ips.into() },
    };
    ObservedService {
        key: key.clone(),
        uid: "u".into(),
        created: Some(created),
        resource_version: Some(5),
        ingress,
        ports: [].into(),
        annotations: Annotations::default(),
        refused: false,
        has_finalizer: false,
        persisted: None,
    }
}

fn host(text: &str) -> Target {
    Target::Hostname(Hostname::from(&name(text)))
}

/// Returns Services whose default names clash: these join namespace and name with hyphens.
fn keys() -> Vec<ServiceKey> {
    let parts = ["a", "a-a", "a-a-a", "b"];
    parts.iter().flat_map(|namespace| parts.iter().map(|name| ServiceKey::new(namespace, name))).collect()
}

const HOSTNAMES: [&str; 4] = ["x.lb.internal", "a-a.lb.internal", "*.b.lb.internal", "b.a.lb.internal"];

/// Returns a store with clashing names, of which some have recorded owners.
fn store(seed: u64) -> Store {
    let random = &mut StdRng::seed_from_u64(seed);
    let (keys, store) = (keys(), Store::new(OnGone::Kept).with_zones([&name("lb.internal.")]));
    for _ in 0..60 {
        let key = keys.choose(random).unwrap();
        let hostnames = (0..random.random_range(0..3)).map(|_| Arc::from(*HOSTNAMES.choose(random).unwrap()));
        let hostnames: Vec<Arc<str>> = hostnames.collect::<BTreeSet<_>>().into_iter().collect();
        match random.random_range(0..8) {
            0 => {
                let object = names::external_target(key.namespace(), key.name());
                store.set_owner(&object, Some(keys.choose(random).unwrap()), &hostnames);
            }
            1 => drop(store.gone(key, "u", None, std::time::Instant::now())),
            2 => {
                let link_override = LinkOverride {
                    uid: "override".into(),
                    created: Some(random.random_range(0..3)),
                    announced: match random.random_range(0..3) {
                        0 => Announcement::NotYet,
                        1 => Announcement::Withdrawn,
                        _ => Announcement::Target(host("override.example.")),
                    },
                    source: "first".into(),
                    annotations: Annotations { hostnames: hostnames.into(), ..Default::default() },
                    ..LinkOverride::default()
                };
                drop(set_override(&store, key, link_override, Some(5)));
            }
            3 => drop(store.forget(key)),
            kind => {
                let target = (kind > 4).then(|| host(&format!("t{}.example.", random.random::<u8>())));
                let link = observed(key, random.random_range(0..3), target);
                let annotations = Annotations {
                    ttl: Some(random.random_range(0..10)),
                    hostnames: hostnames.into(),
                    allow_from: ["b".into()].into(),
                    ..Annotations::default()
                };
                let ports =
                    [Port { name: Some("web".into()), protocol: "TCP".into(), port: 80, app_protocol: None }];
                drop(store.apply(ObservedService { annotations, ports: ports.into(), ..link }));
            }
        }
    }
    store
}

/// Returns the parts of a link that an answer depends on.
fn shown(link: &Link) -> String {
    let Link { key, target, annotations, ports, .. } = link;
    let Annotations { ttl, allow_from, .. } = annotations;
    match target {
        None => format!("{key} without target"),
        Some(target) => format!("{key} {target} {ttl:?} {allow_from:?} {ports:?}"),
    }
}

#[test]
fn restored_names_lead_to_the_same_links() {
    for seed in 0..100 {
        let store = store(seed);
        let restored = restore(snapshot(&store), &Selection::default(), &policy(), &zones()).store;
        let dotted = keys().into_iter().flat_map(|key| {
            let (namespace, name) = key.parts();
            [format!("{name}.{namespace}"), names::dashed_label(namespace, name)]
        });
        let custom = ["x", "a-a", "y.b", "z.y.b", "b.a", "nothing"].map(str::to_owned);
        for name in dotted.chain(custom) {
            let wire = names::wire(name.split('.').map(str::as_bytes)).unwrap();
            let find = |store: &Store| match store.find(&wire, b"\x02lb\x08internal", true) {
                Lookup::Link(link) => shown(&link),
                other => format!("{other:?}"),
            };
            assert_eq!(find(&restored), find(&store), "seed {seed}: {name}");
        }
        assert_eq!(restored.serial(), 77);
    }
}

#[test]
fn time_of_the_last_change_is_restored_but_no_absurd_one() {
    let restored = |last_change| {
        let head = Head { last_change, ..head() };
        let restored =
            restore(Snapshot { head, links: Vec::new() }, &Selection::default(), &policy(), &zones());
        restored.store.last_change().load(Ordering::Relaxed)
    };
    let before = unix_time();
    for known in [1_700_000_000, before + MAX_AHEAD] {
        assert_eq!(restored(Some(known)), known);
    }
    for unknown in [None, Some(u64::MAX)] {
        assert!((before..=unix_time()).contains(&restored(unknown)), "{unknown:?}");
    }
}

#[test]
fn contradictory_snapshot_is_restored_without_a_panic() {
    for seed in 0..100 {
        let random = &mut StdRng::seed_from_u64(seed);
        let mut snapshot = snapshot(&store(seed));
        for _ in 0..20 {
            let Some(other) = snapshot.links.choose(random).cloned() else { break };
            let at = random.random_range(0..snapshot.links.len());
            let link = &mut snapshot.links[at];
            match random.random_range(0..3) {
                0 => link.external_target = other.external_target,
                1 => link.hostnames = other.hostnames,
                _ => snapshot.links.push(other),
            }
        }
        let saved = snapshot.links.len();
        let restored = restore(snapshot, &Selection::default(), &policy(), &zones());
        assert!(restored.store.links().len() <= saved, "seed {seed}");
    }
}

#[test]
fn override_by_a_stable_name_is_restored() {
    let store = Store::new(OnGone::Kept);
    let key = ServiceKey::new("shop", "web");
    store.apply(observed(&key, 1, Some(host("service.example."))));
    let link_override = LinkOverride {
        uid: "override".into(),
        announced: Announcement::Target(host("pinned.example.")),
        source: "second".into(),
        service_uid: "other".into(),
        ..LinkOverride::default()
    };
    set_override(&store, &key, link_override, None);
    let restored = restore(snapshot(&store), &Selection::default(), &policy(), &zones());
    assert_eq!((restored.answered, restored.denied), (1, 0));
    let link = restored.store.get(&key).unwrap();
    assert_eq!(link.target, Some(host("pinned.example.")));
    let by = link.active_override().unwrap();
    assert_eq!((&*by.source, by.service_uid.to_string()), ("second", "other".to_owned()));
}

#[test]
fn present_flags_decide_what_is_restored() {
    let store = Store::new(OnGone::Kept).with_zones([&name("lb.internal.")]);
    let ips = |texts: &[&str]| Target::Addresses(texts.iter().map(|ip| ip.parse().unwrap()).collect());
    for (namespace, service, target) in [
        ("a", "cloud", host("cloud.example.")),
        ("a", "cluster", host("web.default.svc.cluster.local.")),
        ("a", "ips", ips(&["192.0.2.1", "10.0.0.1"])),
        ("a", "denied", ips(&["10.0.0.2"])),
        ("b", "other", host("other.example.")),
        ("targets", "own", host("own.example.")),
    ] {
        let link = observed(&ServiceKey::new(namespace, service), 1, Some(target));
        let hostnames = [format!("{service}.lb.internal"), format!("my.{namespace}.lb.internal")];
        let hostnames = hostnames.iter().map(|name| Arc::from(&**name)).collect();
        let annotations = Annotations { hostnames, ..Default::default() };
        store.apply(ObservedService { annotations, ..link });
    }
    let snapshot = snapshot(&store);
    let selection = Selection {
        namespaces: BTreeSet::from(["a".to_owned(), "targets".to_owned()]),
        target_namespace: Some("targets".to_owned()),
        ..Selection::default()
    };
    let mut policy = policy();
    policy.targets.cluster_domain = name("cluster.local.");
    policy.targets.denied_nets = vec!["10.0.0.0/8".parse().unwrap()];
    policy.hostname_namespaces.clear();
    let restored = restore(snapshot, &selection, &policy, &zones());
    assert_eq!((restored.answered, restored.denied), (3, 3));
    let target = |service: &str| restored.store.get(&ServiceKey::new("a", service)).unwrap().target.clone();
    assert_eq!(target("cloud"), Some(host("cloud.example.")));
    assert_eq!(target("cluster"), None);
    assert_eq!(target("ips"), Some(ips(&["192.0.2.1"])));
    assert_eq!(target("denied"), None);
    assert_eq!(restored.store.links().len(), 5);
    // Load balancers in the target namespace are selected as well.
    assert!(restored.store.get(&ServiceKey::new("targets", "own")).unwrap().target.is_some());
    let cloud = restored.store.get(&ServiceKey::new("a", "cloud")).unwrap();
    assert_eq!(*cloud.hostnames, [Arc::from("my.a.lb.internal")]);
}

#[test]
fn target_that_would_change_as_text_is_left_out() {
    let store = Store::new(OnGone::Kept);
    let long: &[u8] = &[7; 63];
    let odd: [(&str, &[&[u8]]); 3] =
        [("dot", &[b"a.b", b"example"]), ("byte", &[&[200, 0], b"example"]), ("long", &[long; 3])];
    for (service, labels) in odd {
        let name = Name::from_labels(labels.iter().copied()).unwrap();
        let target = Target::Hostname(Hostname::from(&name));
        store.apply(observed(&ServiceKey::new("a", service), 1, Some(target)));
    }
    let restored = restore(snapshot(&store), &Selection::default(), &policy(), &zones()).store;
    for link in store.links() {
        let target = restored.get(&link.key).unwrap().target.clone();
        assert!(target == link.target || target.is_none(), "{link:?}");
    }
    assert_eq!(restored.get(&ServiceKey::new("a", "dot")).unwrap().target, Some(host(r"a\.b.example.")));
}

#[test]
fn wildcards_arent_restored_if_hostnames_are_missing() {
    let saved = |service: &str, hostname: &str| SavedLink {
        namespace: "a".to_owned(),
        service: service.to_owned(),
        uid: "u".to_owned(),
        target: Some(SavedTarget::Hostname(format!("{service}.example"))),
        hostnames: vec![hostname.to_owned()],
        external_target: format!("{service}-a-ext"),
        ..SavedLink::default()
    };
    let names = |lacks_hostnames: bool| {
        let cut = SavedLink { target: None, hostnames: Vec::new(), lacks_hostnames, ..saved("large", "") };
        let links = vec![saved("wild", "*.y.lb.internal"), saved("plain", "z.lb.internal"), cut];
        let restored =
            restore(Snapshot { head: head(), links }, &Selection::default(), &policy(), &zones()).store;
        ["wild", "plain"]
            .map(|service| restored.get(&ServiceKey::new("a", service)).unwrap().hostnames.to_vec())
    };
    // `x.y.lb.internal` may be a name of the link that was cut.
    assert_eq!(names(true), [vec![], vec![Arc::from("z.lb.internal")]]);
    assert_eq!(names(false), [vec![Arc::from("*.y.lb.internal")], vec![Arc::from("z.lb.internal")]]);
}

fn answer(store: &Store, name: &str) -> String {
    let wire = names::wire_of(name).unwrap();
    match store.find(&wire, b"\x02lb\x08internal", true) {
        Lookup::Link(link) => shown(&link),
        other => format!("{other:?}"),
    }
}

#[test]
fn names_of_other_sources_survive() {
    let sources = vec![Source::SERVICES, Source::INGRESSES, Source::GATEWAYS];
    let zone = Zone { sources, ..(&name("lb.internal.")).into() };
    let store = Store::new(OnGone::Kept).with_zones([zone.clone()]);
    let wild = observed(&ServiceKey::new("b", "wild"), 1, Some(host("wild.example.")));
    let hostnames: Arc<[Arc<str>]> = [Arc::from("*.b.lb.internal")].into();
    store.apply(ObservedService { annotations: Annotations { hostnames, ..Default::default() }, ..wild });
    let (long, huge) = ("l".repeat(63), "h.".repeat(126) + "h");
    for (key, host_name, allowed) in [
        ("web.ingress", "*.shop.lb.internal", 0),
        ("web.ingress", "under_score.shop.lb.internal", 0),
        ("web._shared.ingress", "shared.shop.lb.internal", 0),
        (&*format!("{huge}._shared.ingress"), &*format!("{long}.shop.lb.internal"), 0),
        ("cut.ingress", "cut.shop.lb.internal", 200),
        ("gw.gateway", "route.other.lb.internal", 0),
        ("gw._httproute.other.web.gateway", "own.other.lb.internal", 0),
        ("gw.gateway", "route.dns.lb.internal", 0),
    ] {
        let source = if key.ends_with("gateway") { Source::GATEWAYS } else { Source::INGRESSES };
        let owner = Owner { source, key: ServiceKey::new("shop", host_name) };
        let allow_from = (0..allowed).map(|number| Arc::from(format!("n{number}"))).collect();
        let link = Arc::new(Link {
            target: Some(host("ingress.example.")),
            annotations: Annotations { allow_from, ..Annotations::default() },
            ..Link::new(ServiceKey::new("shop", key), "u")
        });
        store.observe(
            &owner,
            &Claims { created: 1, names: [host_name.into()].into(), ..Default::default() },
            &link,
            None,
        );
    }
    let restored = restore(snapshot(&store), &Selection::default(), &policy(), &[zone]).store;
    let long = format!("{long}.shop");
    for name in
        ["x.shop", "under_score.shop", "shared.shop", &*long, "x.b", "wild.b", "route.other", "own.other"]
    {
        assert_eq!(answer(&restored, name), answer(&store, name), "{name}");
        assert!(answer(&restored, name).contains(".example"), "{name}");
    }
    assert_eq!(answer(&restored, "cut.shop"), "shop/cut.shop.lb.internal without target");
    assert_eq!(answer(&restored, "route.dns"), "Nothing", "it is reserved");
}

#[test]
fn internal_hostnames_survive_changes_of_the_zones() {
    let store = Store::new(OnGone::Kept).with_zones(zones());
    let internal = InternalNames {
        hostnames: ["int.a.lb.internal".into()].into(),
        addresses: ["10.96.0.1".parse().unwrap(), "fd00::1".parse().unwrap()].into(),
        refused: false,
    };
    let web = observed(&ServiceKey::new("a", "web"), 1, Some(host("cloud.example.")));
    let hostnames = ["ext.a.lb.internal".into()].into();
    let annotations =
        Annotations { hostnames, internal: Some(internal.into()), ttl: Some(7), ..Default::default() };
    store.apply(ObservedService { annotations, ..web });
    let restored = restore(snapshot(&store), &Selection::default(), &policy(), &zones()).store;
    for zones in [zones(), Vec::new(), zones()] {
        restored.set_zones(zones.clone());
        for name in ["int.a", "ext.a"].into_iter().filter(|_| !zones.is_empty()) {
            assert_eq!(answer(&restored, name), answer(&store, name), "{name}");
        }
    }
    let link = restored.link_of_host(&name("int.a.lb.internal.")).unwrap();
    assert_eq!(link.target.as_ref().unwrap().to_string(), "10.96.0.1,fd00::1");
    assert_eq!(link.annotations.ttl, Some(7));
}

#[test]
fn file_of_format_1_is_restored() {
    // Written by lb-linker 0.1.0 before format 2.
    let bytes = include_bytes!("format-1.snapshot");
    assert!(bytes.starts_with(b"lb-linker snapshot 1 "));
    let restored = restore(decode(bytes).unwrap(), &Selection::default(), &policy(), &zones());
    assert_eq!((restored.answered, restored.denied, restored.store.serial()), (4, 0, 77));
    for (name, expected) in [
        ("x-y.z", "z/x-y a.example Some(7)"),
        ("x-y-z", "z/x-y a.example Some(7)"),
        ("x.y-z", "y-z/x b.example Some(7)"),
        ("shop", "z/x-y a.example"),
        ("any.shop", "shop/ips 192.0.2.1,2001:db8::1 Some(7)"),
        ("pending.shop", "shop/pending without target"),
        ("pinned-shop", "shop/pinned pinned.example None"),
        ("absent.shop", "shop/ips"),
        ("absent", "Nothing"),
    ] {
        let found = answer(&restored.store, name);
        assert!(found.starts_with(expected), "{name}: {found}");
    }
    assert!(restored.store.other_owners().is_empty());
}

#[test]
fn names_of_classes_that_are_left_out_arent_restored() {
    let zone = |classes: &[&str]| Zone {
        sources: vec![Source::SERVICES, Source::INGRESSES, Source::GATEWAYS],
        gateway_classes: classes.iter().map(|class| (*class).into()).collect(),
        ..(&name("lb.internal.")).into()
    };
    let (all, some) = (zone(&[]), zone(&["envoy"]));
    for (then, now, kept) in
        [(&all, &all, true), (&some, &all, true), (&some, &some, true), (&all, &some, false)]
    {
        let store = Store::new(OnGone::Kept).with_zones([then.clone()]);
        store.apply(observed(&ServiceKey::new("shop", "web"), 1, Some(host("service.example."))));
        for (source, host_name) in
            [(Source::INGRESSES, "ingress.lb.internal"), (Source::GATEWAYS, "route.lb.internal")]
        {
            let owner = Owner { source, key: ServiceKey::new("shop", host_name) };
            let link = Link {
                target: Some(host("target.example.")),
                ..Link::new(owner.source.target_key(&ServiceKey::new("shop", "a")), "u")
            };
            let claims = Claims { created: 1, names: [host_name.into()].into(), ..Default::default() };
            store.observe(&owner, &claims, &Arc::new(link), None);
        }
        let (links, others) = (store.links(), store.other_owners());
        let flags = recorded_flags(&Selection::default(), &policy(), &store.zones());
        let head = Head { recorded_flags: flags, ..head() };
        let bytes = encode(&head, || saved_owners(&links, &others)).unwrap().bytes;
        let restored =
            restore(decode(&bytes).unwrap(), &Selection::default(), &policy(), std::slice::from_ref(now));
        assert_eq!((restored.answered, restored.denied), (2 + usize::from(kept), usize::from(!kept)));
        for (name, kept) in [("web.shop", true), ("ingress", true), ("route", kept)] {
            let found = answer(&restored.store, name);
            assert_eq!(found == answer(&store, name), kept, "{name}: {found}");
        }
    }
}

#[test]
fn records_and_underscore_names_of_dnsendpoints_survive() {
    let sources = vec![Source::SERVICES, Source::DNS_ENDPOINTS];
    let zone = Zone { sources, ..(&name("lb.internal.")).into() };
    let store = Store::new(OnGone::Kept).with_zones([zone.clone()]);
    for (host_name, kind, text) in [
        ("_sip._tcp.shop.lb.internal", RecordKind::Srv, "0 5 5060 sip.example.com"),
        ("*.shop.lb.internal", RecordKind::Mx, "0 ."),
        ("txt.shop.lb.internal", RecordKind::Txt, "\"\\000\\\" \" \"b\""),
    ] {
        let mut records = Records::default();
        assert!(records.add(kind, Some(9), RecordData::parse(kind, text).unwrap()));
        let owner = Owner { source: Source::DNS_ENDPOINTS, key: ServiceKey::new("shop", host_name) };
        let link = Link {
            records: Some(Arc::new(records)),
            ..Link::new(Source::DNS_ENDPOINTS.target_key(&owner.key), "u")
        };
        let claims = Claims { created: 1, names: [host_name.into()].into(), ..Default::default() };
        store.observe(&owner, &claims, &Arc::new(link), None);
    }
    let restored = restore(snapshot(&store), &Selection::default(), &policy(), &[zone]);
    assert_eq!((restored.answered, restored.denied), (3, 0));
    for name in ["_sip._tcp.shop", "x.shop", "txt.shop"] {
        let found =
            |store: &Store| match store.find(&names::wire_of(name).unwrap(), b"\x02lb\x08internal", true) {
                Lookup::Link(link) => link.records.clone(),
                other => panic!("{name}: {other:?}"),
            };
        assert!(found(&store).is_some_and(|records| !records.is_empty()));
        assert_eq!(found(&restored.store), found(&store), "{name}");
    }
}

/// Returns a zone with names of several sources.
fn zones() -> Vec<Zone> {
    let sources = [(None, "Service"), (None, "HTTPRoute"), (Some("west"), "Service")];
    let source = |(cluster, kind): (Option<&str>, &'static str)| Source {
        cluster: cluster.map(Arc::from),
        kind: kind.into(),
    };
    vec![Zone { sources: sources.map(source).to_vec(), ..(&name("lb.internal.")).into() }]
}

#[test]
fn owners_of_other_kinds_share_their_target_again() {
    let store = Store::new(OnGone::Kept).with_zones(zones());
    store.apply(observed(&ServiceKey::new("shop", "web"), 1, Some(host("service.example."))));
    let gateway = Arc::new(Link {
        target: Some(host("gateway.example.")),
        annotations: Annotations { ttl: Some(9), ..Annotations::default() },
        ..Link::new(ServiceKey::new("infra", "gateway"), "g")
    });
    let owner = |cluster: Option<&str>, kind: &'static str| Owner {
        source: Source { cluster: cluster.map(Arc::from), kind: kind.into() },
        key: ServiceKey::new("shop", "web"),
    };
    for (owner, created, names) in [
        (owner(None, "HTTPRoute"), 2, ["a.lb.internal", "b.lb.internal"]),
        (owner(Some("west"), "Service"), 1, ["b.lb.internal", "*.b.lb.internal"]),
    ] {
        store.observe(
            &owner,
            &Claims { created, names: names.map(Arc::from).into(), ..Default::default() },
            &gateway,
            None,
        );
    }
    let restored = restore(snapshot(&store), &Selection::default(), &policy(), &zones());
    assert_eq!(restored.answered, 3);
    for name in ["web.shop", "a", "b", "x.b", "c"] {
        assert_eq!(answer(&restored.store, name), answer(&store, name), "{name}");
    }
    let sorted = |store: &Store| {
        let mut others = store.other_owners();
        others.sort_by(|one, other| one.0.cmp(&other.0));
        others
    };
    let (before, after) = (sorted(&store), sorted(&restored.store));
    assert_eq!(after, before);
    assert!(Arc::ptr_eq(&after[0].2, &after[1].2));
}
