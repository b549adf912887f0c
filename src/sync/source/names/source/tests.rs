use hickory_proto::rr::Name;
use prometheus::IntCounter;
use serde_json::{Value, json};
use tokio::sync::broadcast;

use super::super::shared::{Claim, Observation};
use super::*;
use crate::model::hostname_policy::HostnamePolicy;
use crate::model::link::{Link, LinkChange, Target};
use crate::model::records::{RecordData, RecordKind, Records};
use crate::model::target_policy::TargetPolicy;
use crate::model::uid::Uid;
use crate::store::OnGone;
use crate::sync::election::Leadership;
use crate::sync::events::Recorder;
use crate::sync::source::ingress::Ingresses;
use crate::sync::test_support;

/// The state of Ingresses in a zone, with the store.
struct World {
    store: Arc<Store>,
    names: Names<Ingresses>,
    feed: broadcast::Receiver<Arc<[LinkChange]>>,
    link_reporter: LinkReporter,
}

fn zone() -> Zone {
    let origin = Name::from_ascii("lb.internal.").unwrap();
    Zone { sources: vec![Source::SERVICES, Source::INGRESSES], ..(&origin).into() }
}

impl World {
    fn new() -> Self {
        let store = Arc::new(Store::new(OnGone::Dropped).with_zones([zone()]));
        store.set_known(crate::store::Input::Services);
        let targets =
            TargetPolicy { zones: vec![Name::from_ascii("lb.internal.").unwrap()], ..Default::default() };
        let policy =
            HostnamePolicy { targets, hostname_namespaces: ["*".to_owned()].into(), ..Default::default() };
        let dropped = IntCounter::new("dropped", "dropped").unwrap();
        let recorder = Recorder::new(dropped, Leadership::unconditional());
        let link_reporter = LinkReporter { recorder, ..test_support::link_reporter() };
        let mut names =
            Names::new(Ingresses::default(), None, Arc::clone(&store), Arc::default(), link_reporter.clone());
        names.set_rules(store.zones(), Arc::new(policy));
        Self { feed: store.subscribe(), store, names, link_reporter }
    }

    /// Returns the names of a source that begins again, with the same store.
    fn next_run(&self) -> Names<Ingresses> {
        let (store, reporter) = (Arc::clone(&self.store), self.link_reporter.clone());
        let mut next = Names::new(Ingresses::default(), None, store, Arc::default(), reporter);
        next.set_rules(self.store.zones(), Arc::clone(&self.names.state.rules.policy));
        next
    }

    fn listed() -> Self {
        let mut world = Self::new();
        world.names.end_lists();
        world
    }

    fn apply(&mut self, key: &str, created: i64, hosts: &[&str], status: &Value) {
        let (namespace, name) = key.split_once('/').unwrap();
        let rules: Vec<Value> =
            hosts.iter().map(|host| json!({"host": format!("{host}.lb.internal")})).collect();
        let object = json!({
            "metadata": {"namespace": namespace, "name": name, "uid": key,
                "creationTimestamp": format!("2026-01-01T00:00:{created:02}Z")},
            "spec": {"rules": rules},
            "status": {"loadBalancer": {"ingress": status}},
        });
        self.names.take(serde_json::from_value(object).unwrap());
        self.names.state.publish();
        self.settle();
    }

    fn remove(&mut self, key: &str) {
        let (namespace, name) = key.split_once('/').unwrap();
        self.names.remove(&id(namespace, name));
        self.names.state.publish();
        self.settle();
    }

    fn set_unreadable(&mut self, namespace: &str) {
        self.names.state.set_unreadable(&id(namespace, "broken"), "broken");
    }

    fn settle(&mut self) {
        while let Ok(changes) = self.feed.try_recv() {
            self.names.on_changes(&changes);
        }
    }

    fn answer(&self, host: &str) -> String {
        let host = Name::from_ascii(format!("{host}.lb.internal.")).unwrap();
        match self.store.link_of_host(&host) {
            None => "nothing".to_owned(),
            Some(link) => link.target.as_ref().map_or_else(|| "pending".to_owned(), Target::to_string),
        }
    }

    fn events(&self) -> Vec<String> {
        let queued = self.link_reporter.recorder.take_queued().into_iter();
        queued.map(|(reason, note)| format!("{reason}: {note}")).collect()
    }
}

fn id(namespace: &str, name: &str) -> ObjectId {
    ObjectId { key: ServiceKey::new(namespace, name), kind: RegardingKind::Ingress }
}

/// A reader of the store's feed keeps up although an object has thousands of names.
#[test]
fn names_are_published_in_parts() {
    let mut world = World::listed();
    let hosts: Vec<String> = (0..100).map(|number| format!("h{number}.a")).collect();
    let hosts: Vec<&str> = hosts.iter().map(String::as_str).collect();
    let object = |number: u32| {
        let rules: Vec<Value> =
            hosts.iter().map(|host| json!({"host": format!("{number}.{host}.lb.internal")})).collect();
        let object = json!({"metadata": {"namespace": "a", "name": format!("o{number}"), "uid": "u"},
            "spec": {"rules": rules}, "status": {"loadBalancer": {"ingress": ip(1)}}});
        serde_json::from_value(object).unwrap()
    };
    (0..30).for_each(|number| world.names.take(object(number)));
    let mut sizes = Vec::new();
    while world.names.has_work() {
        world.names.work();
        sizes.extend(world.feed.try_recv().map(|changes| changes.len()));
    }
    assert_eq!(sizes.iter().sum::<usize>(), 3000);
    assert!(sizes.iter().all(|size| *size <= 256), "{sizes:?}");
}

fn ip(last: u8) -> Value {
    json!([{"ip": format!("192.0.2.{last}")}])
}

#[test]
fn objects_of_one_namespace_share_a_name() {
    let mut world = World::listed();
    world.apply("a/one", 1, &["x", "only"], &ip(1));
    world.apply("a/two", 2, &["x"], &ip(2));
    assert_eq!(world.answer("x"), "192.0.2.1,192.0.2.2");
    assert_eq!(world.answer("only"), "192.0.2.1");
    let link = |host: &str| {
        world.store.link_of_host(&Name::from_ascii(format!("{host}.lb.internal.")).unwrap()).unwrap()
    };
    assert!(!link("only").is_outdated(), "the other name's union isn't a newer version of its target");
    world.remove("a/one");
    assert_eq!([world.answer("x"), world.answer("only")], ["192.0.2.2", "nothing"]);
    assert_eq!(world.events(), [""; 0]);
}

/// A client of the status API asks with the version whether there is something new.
#[test]
fn object_that_joins_a_name_is_a_new_version() {
    let mut world = World::listed();
    world.apply("a/one", 1, &["x"], &ip(1));
    let version = |world: &World| world.link_reporter.findings.version();
    let before = version(&world);
    world.apply("a/one", 1, &["x"], &ip(1));
    assert_eq!(version(&world), before, "nothing has changed");
    world.apply("a/two", 2, &["x"], &ip(1));
    let joined = version(&world);
    assert_ne!(joined, before);
    world.remove("a/two");
    assert_ne!(version(&world), joined);
}

#[test]
fn oldest_object_has_a_name_between_namespaces() {
    let mut world = World::listed();
    world.apply("b/young", 5, &["x", "own"], &ip(5));
    world.apply("c/old", 2, &["x"], &ip(2));
    assert_eq!([world.answer("x"), world.answer("own")], ["192.0.2.2", "192.0.2.5"]);
    let conflict = "Conflict: it doesn't get DNS names that another object has: x.lb.internal";
    assert_eq!(world.events(), [conflict]);
    // An older object in the namespace makes all of its objects older.
    world.apply("b/oldest", 1, &["x"], &ip(1));
    assert_eq!(world.answer("x"), "192.0.2.1,192.0.2.5");
    assert_eq!(world.events(), [conflict]);
    world.apply("b/oldest", 1, &["x"], &ip(1));
    assert_eq!(world.events(), [""; 0], "nothing is new");
    world.remove("b/oldest");
    assert_eq!((world.answer("x"), world.events().len()), ("192.0.2.2".to_owned(), 1));
    world.remove("c/old");
    assert_eq!(world.answer("x"), "192.0.2.5");
}

#[test]
fn denied_names_and_targets_are_told_once_listed() {
    let mut world = World::new();
    world.apply("a/web", 1, &["x"], &ip(1));
    world.names.end_lists();
    world.settle();
    for _ in 0..2 {
        world.apply("a/web", 1, &["x", "dns"], &json!([{"ip": "127.0.0.1"}]));
    }
    let events = world.events();
    let reasons: Vec<&str> = events.iter().filter_map(|event| event.split(':').next()).collect();
    assert_eq!(reasons, ["TargetRefused", "HostnameRefused", "TargetStale"], "{events:?}");
    assert!(events[2].ends_with("192.0.2.1 stays the target"), "{events:?}");
    assert_eq!(world.answer("x"), "192.0.2.1");
}

#[test]
fn nothing_is_answered_before_everything_is_listed() {
    let mut world = World::new();
    world.apply("b/young", 5, &["x", "own"], &ip(5));
    assert_eq!([world.answer("x"), world.answer("own")], ["nothing", "nothing"]);
    world.apply("a/old", 2, &["x"], &ip(2));
    world.names.end_lists();
    assert_eq!([world.answer("x"), world.answer("own")], ["192.0.2.2", "192.0.2.5"]);
    // Under other rules everything is listed again: known names follow their objects, new ones wait.
    let (zones, policy) = (world.store.zones(), Arc::clone(&world.names.state.rules.policy));
    world.names.set_rules(zones, policy);
    world.apply("b/young", 5, &["x", "own", "new"], &ip(6));
    assert_eq!([world.answer("own"), world.answer("new")], ["192.0.2.6", "nothing"]);
    world.remove("a/old");
    assert_eq!([world.answer("x"), world.answer("new")], ["192.0.2.6", "nothing"]);
    world.names.end_lists();
    assert_eq!(world.answer("new"), "192.0.2.6");
}

#[test]
fn objects_beyond_the_limit_of_a_name_are_told() {
    let mut world = World::listed();
    for number in 0..110_u8 {
        world.apply(&format!("a/o{number:03}"), 1, &["x"], &ip(number));
    }
    let events = world.events();
    assert!(
        events.len() == 1 && events[0].starts_with("HostnameRefused: for the DNS name x.lb"),
        "{events:?}"
    );
}

#[test]
fn names_stay_in_the_namespace_of_an_undecodable_object() {
    let mut world = World::listed();
    world.apply("a/web", 1, &["x"], &ip(1));
    world.names = world.next_run();
    world.set_unreadable("a");
    world.names.end_lists();
    world.names.state.begin_list(RegardingKind::Ingress, Some("b"));
    world.names.end_lists();
    assert_eq!(world.answer("x"), "192.0.2.1");
    world.names.state.begin_list(RegardingKind::Ingress, Some("a"));
    world.names.end_lists();
    assert_eq!(world.answer("x"), "nothing");
}

/// A client that asks meanwhile gets the answer, or SERVFAIL.
#[test]
fn names_that_lead_on_to_each_other_are_published_complete() {
    let mut world = World::new();
    let chain = ["x", "y", "z", "host"];
    for (number, pair) in chain.windows(2).enumerate() {
        let status = json!([{"hostname": format!("{}.lb.internal", pair[1])}]);
        world.apply(&format!("a/{number}"), 1, &[pair[0]], &status);
    }
    world.apply("a/host", 2, &["host"], &ip(2));
    world.apply("a/denied", 3, &["denied"], &json!([{"ip": "127.0.0.1"}]));
    world.names.complete();
    while world.names.has_work() {
        world.names.work();
        for name in chain {
            assert_ne!(world.answer(name), "pending", "{name}");
        }
    }
    assert_eq!(
        chain.map(|name| world.answer(name)),
        ["y.lb.internal", "z.lb.internal", "host.lb.internal", "192.0.2.2"]
    );
    assert_eq!(world.answer("denied"), "pending");
    assert!(world.store.unlisted_source(&zone()).is_none());
}

#[test]
fn names_that_an_earlier_run_left_are_removed() {
    let mut world = World::listed();
    world.apply("a/web", 1, &["x"], &ip(1));
    let mut next = world.next_run();
    next.end_lists();
    assert_eq!(world.answer("x"), "nothing");
    assert!(world.store.unlisted_source(&zone()).is_none());
}

#[test]
fn target_in_a_zone_of_links_is_checked_again() {
    let mut world = World::listed();
    world.apply("a/web", 1, &["x"], &json!([{"hostname": "host.lb.internal"}]));
    assert_eq!(world.answer("x"), "pending");
    assert_eq!(world.events().len(), 1, "it belongs to no object");
    world.apply("a/host", 2, &["host"], &ip(2));
    assert!(world.names.state.recheck_at.is_some());
    world.names.recheck();
    world.names.state.publish();
    assert_eq!(world.answer("x"), "host.lb.internal");
    // Another namespace takes the name over, and doesn't allow the reference.
    world.apply("b/host", 1, &["host"], &ip(3));
    world.names.recheck();
    world.names.state.publish();
    let events = world.events();
    assert!(events.iter().any(|event| event.contains("allow-from")), "{events:?}");
}

#[test]
fn oldest_objects_of_a_namespace_have_names() {
    let mut world = World::listed();
    let data = RecordData::parse(RecordKind::Txt, &"x".repeat(16_000)).unwrap();
    let mut records = Records::default();
    assert!(records.add(RecordKind::Txt, None, data));
    let records = Some(Arc::new(records));
    // More than a half of what may count.
    let large = |object: &str, created| {
        let link =
            Arc::new(Link { records: records.clone(), ..Link::new(ServiceKey::new("a", "x"), object) });
        let claim = |number: u32| Claim {
            name: ServiceKey::new("a", &format!("{object}{number}.lb.internal")),
            target: Arc::clone(&link),
        };
        Observation::new(created, Uid::from(object), (0..1_500).map(claim).collect())
    };
    let set = |world: &mut World, object: &str, created| {
        world.names.state.set_names(&id("a", object), large(object, created));
        world.names.state.publish();
        world.settle();
        [world.answer("old0"), world.answer("new0")]
    };
    assert_eq!(set(&mut world, "new", 2), ["nothing", "pending"]);
    assert_eq!(set(&mut world, "old", 1), ["pending", "nothing"]);
    let refused = "HostnameRefused: it gets no DNS names: of the Ingresses of its namespace the oldest count, up to 32 \
                   MiB of names and records";
    assert_eq!(world.events(), [refused]);
    set(&mut world, "new", 2);
    assert_eq!((world.events(), world.names.state.list_at), (Vec::new(), None), "nothing is new");
    assert!(world.names.state.objects().contains(&id("a", "new").key), "its end has to be noticed");
    world.remove("a/old");
    assert!(world.names.state.list_at.is_some());
    assert_eq!(set(&mut world, "new", 2), ["nothing", "pending"]);
}
