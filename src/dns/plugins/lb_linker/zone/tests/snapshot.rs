//! Answers from a snapshot, until the first list.

use std::borrow::Cow;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use super::*;
use crate::dns::message::validity::Validity;
use crate::model::link_override::{Announcement, LinkOverride};
use crate::store::fallback::Fallback;
use crate::store::{Input, NameDependency};
use crate::sync::source::service_links::set_override;

/// Returns a store before its first list, and the links of a snapshot.
pub(super) fn waiting(links: Vec<ObservedService>) -> (Store, Arc<Fallback>) {
    let snapshot = Store::new(OnGone::Dropped).with_zones([zone().origin()]);
    snapshot.continue_at(41);
    for link in links {
        snapshot.apply(ObservedService { resource_version: None, ..link });
    }
    let reason = Cow::Borrowed("the API server doesn't answer");
    let age = Duration::from_secs(720);
    let snapshot_links = Arc::new(Fallback {
        store: Arc::new(snapshot),
        taken: Timestamp::UNIX_EPOCH,
        age_then: age,
        since: std::time::Instant::now(),
        reason: parking_lot::Mutex::new(reason),
    });
    let store = Store::new(OnGone::Kept).with_zones([zone().origin()]);
    assert!(store.set_fallback(Some(Arc::clone(&snapshot_links))));
    (store, snapshot_links)
}

pub(super) fn links() -> Vec<ObservedService> {
    vec![
        link("default", "host", &["a.example."], &[]),
        with_ports(&["web/TCP/80"], link("default", "ips", &[], &["192.0.2.1"])),
        with_ttl(
            2,
            asking(&["x.lb.internal", "*.y.lb.internal"], link("default", "ask", &[], &["192.0.2.7"])),
        ),
        link("default", "pending", &[], &[]),
        // Both Services have the dashed name `a-a-a`. The older Service owns this name, and has no target.
        ObservedService { created: Some(1), ..link("a", "a-a", &[], &[]) },
        ObservedService { created: Some(2), ..link("a-a", "a", &["b.example."], &[]) },
    ]
}

const SERVFAIL: &str = "ServFail EDE 14 |  |  | ";
const SOA: &str = "lb.internal. 5 IN SOA ns.dns.lb.internal. hostmaster.lb.internal. 41 7200 1800 86400 5";

#[test]
fn known_names_get_ede_3_and_unknown_names_get_servfail() {
    let (store, _snapshot_links) = waiting(links());
    for (question, expected) in [
        (
            "host.default.lb.internal. A",
            "NoError → a.example. EDE 3 | host.default.lb.internal. 5 IN CNAME a.example. |  | ",
        ),
        ("ips-default.lb.internal. A", "NoError EDE 3 | ips-default.lb.internal. 5 IN A 192.0.2.1 |  | "),
        ("ips-default.lb.internal. AAAA", &format!("NoError EDE 3 |  | {SOA} | ")),
        ("x.lb.internal. A", "NoError EDE 3 | x.lb.internal. 2 IN A 192.0.2.7 |  | "),
        ("any.y.lb.internal. A", "NoError EDE 3 | any.y.lb.internal. 2 IN A 192.0.2.7 |  | "),
        (
            "_web._tcp.ips.default.lb.internal. SRV",
            "NoError EDE 3 | _web._tcp.ips.default.lb.internal. 5 IN SRV 0 100 80 ips.default.lb.internal. |  | \
             ips.default.lb.internal. 5 IN A 192.0.2.1",
        ),
        ("a.a-a.lb.internal. CNAME", "NoError EDE 3 | a.a-a.lb.internal. 5 IN CNAME b.example. |  | "),
        ("lb.internal. SOA", &format!("NoError EDE 3 | {SOA} |  | ")),
        ("lb.internal. A", &format!("NoError EDE 3 |  | {SOA} | ")),
        // These names may exist by now, or may have a target.
        ("new-default.lb.internal. A", SERVFAIL),
        ("pending-default.lb.internal. A", SERVFAIL),
        ("a-a-a.lb.internal. A", SERVFAIL),
        ("default.lb.internal. A", SERVFAIL),
        ("_tcp.ips.default.lb.internal. SRV", SERVFAIL),
        ("_dns._tcp.ips.default.lb.internal. SRV", SERVFAIL),
        // Reserved names depend on no link.
        ("ns.dns.lb.internal. A", "NoError | ns.dns.lb.internal. 5 IN A 192.0.2.53 |  | "),
    ] {
        assert_eq!(ask(&store, question), expected, "{question}");
    }
}

#[test]
fn reverse_names_are_answered_from_the_snapshot() {
    let (store, _snapshot_links) = waiting(links());
    let zones = zone().reverse("192.0.2.0/24".parse().unwrap());
    let pointer = |zone: &Zone, question: &str| ask_in(zone, &store, question);
    assert_eq!(
        pointer(&zones[0], "1.2.0.192.in-addr.arpa. PTR"),
        "NoError EDE 3 | 1.2.0.192.in-addr.arpa. 5 IN PTR ips.default.lb.internal. |  | "
    );
    assert_eq!(pointer(&zones[0], "9.2.0.192.in-addr.arpa. PTR"), SERVFAIL);
    assert!(pointer(&zones[0], "2.0.192.in-addr.arpa. SOA").starts_with("NoError EDE 3 | 2.0.192"));
    let single = zone().reverse("192.0.2.9/32".parse().unwrap());
    assert_eq!(pointer(&single[0], "9.2.0.192.in-addr.arpa. PTR"), SERVFAIL);
    let single = zone().reverse("192.0.2.7/32".parse().unwrap());
    assert!(pointer(&single[0], "7.2.0.192.in-addr.arpa. PTR").starts_with("NoError EDE 3 | 7.2.0.192"));
}

#[test]
fn watched_link_precedes_the_snapshot() {
    let (store, _snapshot_links) = waiting(links());
    store.apply(link("default", "host", &["new.example."], &[]));
    let answer = "NoError | host.default.lb.internal. 5 IN CNAME new.example. |  | ";
    assert_eq!(ask(&store, "host.default.lb.internal. CNAME"), answer);
}

#[test]
fn newer_override_precedes_the_snapshot_except_in_srv_answers() {
    let overridden = |ip: &str, question: &str| {
        let (store, _snapshot_links) = waiting(links());
        let announced = Announcement::Target(Target::Addresses([ip.parse().unwrap()].into()));
        let by = LinkOverride { announced, is_provisional: true, ..LinkOverride::default() };
        set_override(&store, &ServiceKey::new("default", "ips"), by, None);
        ask(&store, question)
    };
    let answer =
        |prefix: &str, ip: &str| format!("NoError{prefix} | ips.default.lb.internal. 5 IN A {ip} |  | ");
    assert_eq!(overridden("192.0.2.9", "ips.default.lb.internal. A"), answer("", "192.0.2.9"));
    assert_eq!(overridden("192.0.2.1", "ips.default.lb.internal. A"), answer(" EDE 3", "192.0.2.1"));
    // Only the snapshot has the ports: the Service isn't listed yet.
    for ip in ["192.0.2.9", "192.0.2.1"] {
        let services = overridden(ip, "ips.default.lb.internal. SRV");
        assert!(
            services.starts_with("NoError EDE 3 | ips.default.lb.internal. 5 IN SRV 0 100 80 "),
            "{services}"
        );
    }
}

/// Returns whether an answer may be reused.
fn is_current(answer: &ZoneAnswer) -> bool {
    let ZoneDependencies { links, names } = answer.dependencies.as_ref().unwrap();
    !links.iter().any(|link| link.is_outdated()) && names.as_ref().is_none_or(NameDependency::is_current)
}

#[test]
fn snapshot_answers_are_not_reused_after_a_change() {
    type Change = fn(&Store, &Arc<Fallback>);
    let changes: [(&str, Change); 4] = [
        ("the first list", |store, _| store.set_known(Input::Services)),
        ("the end of the snapshot", |store, _| assert!(store.set_fallback(None))),
        ("another snapshot", |store, snapshot_links| {
            assert!(store.set_fallback(Some(Arc::clone(snapshot_links))))
        }),
        ("a watched link", |store, _| drop(store.apply(link("default", "host", &["new.example."], &[])))),
    ];
    for (what, change) in changes {
        let (store, snapshot_links) = waiting(links());
        let questions =
            ["host.default.lb.internal. CNAME", "ips-default.lb.internal. AAAA", "lb.internal. SOA"];
        let answer = |question: &str| {
            let (qname, qtype) = question.split_once(' ').unwrap();
            let relative = zone().relative(&name(qname)).unwrap();
            zone().answer(&store, &name(qname), &relative, qtype.parse().unwrap())
        };
        let before = questions.map(answer);
        assert!(before.iter().all(is_current), "{what}");
        change(&store, &snapshot_links);
        assert!(!before.iter().any(is_current), "{what}");
    }
}

#[test]
fn answer_from_two_stores_is_not_reused() {
    let names = |store: &Store| {
        let services = name("_web._tcp.ips.default.lb.internal.");
        let relative = zone().relative(&services).unwrap();
        zone().answer(store, &services, &relative, RecordType::SRV).dependencies.unwrap().names
    };
    let watched = Store::new(OnGone::Dropped).with_zones([zone().origin()]);
    links().into_iter().for_each(|link| drop(watched.apply(link)));
    watched.set_known(Input::Services);
    let (waiting, _snapshot_links) = waiting(links());
    assert!(names(&waiting).is_some());
    for (other, is_valid) in [(names(&watched), true), (None, true), (names(&waiting), false)] {
        let mut validity = Validity::default();
        validity.add_names(names(&watched));
        validity.add_names(other);
        assert!(validity.names.is_some());
        assert_eq!(validity.is_valid(Instant::now()), is_valid);
    }
}

#[test]
fn snapshot_is_not_used_after_the_first_list() {
    let (store, snapshot_links) = waiting(links());
    let older = Some(7);
    store.apply(ObservedService {
        resource_version: older,
        ..link("default", "host", &["new.example."], &[])
    });
    store.set_known(Input::Services);
    assert!(store.fallback().is_none());
    assert!(!store.set_fallback(Some(snapshot_links)) && store.fallback().is_none());
    assert!(ask(&store, "host-default.lb.internal. CNAME").contains("NoError | "));
    assert!(ask(&store, "ips-default.lb.internal. A").starts_with("NXDomain"));
    assert_eq!(store.links().len(), 1);
    assert!(store.serial() >= 41, "the serial of the snapshot's answers: {}", store.serial());
}

#[test]
fn known_name_is_answered_while_a_list_replaces_the_snapshot() {
    for _ in 0..20 {
        let (store, snapshot_links) = waiting(links());
        drop(snapshot_links);
        std::thread::scope(|scope| {
            let asking = scope.spawn(|| {
                loop {
                    let answer = ask(&store, "host-default.lb.internal. CNAME");
                    assert!(answer.starts_with("NoError"), "{answer}");
                    if answer.contains("new.example") {
                        return;
                    }
                }
            });
            store.apply(link("default", "host", &["new.example."], &[]));
            store.set_known(Input::Services);
            asking.join().unwrap();
        });
    }
}

#[test]
fn note_says_how_old_the_snapshot_is_and_why_it_is_served() {
    let (_, snapshot_links) = waiting(Vec::new());
    let note = "serving a snapshot of 1970-01-01T00:00:00Z, 12 min old: the API server doesn't answer";
    assert_eq!(snapshot_links.to_string(), note);
    *snapshot_links.reason.lock() = "the API server answers 403".into();
    assert!(snapshot_links.to_string().ends_with(" old: the API server answers 403"));
}
