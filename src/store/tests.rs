use std::collections::{HashMap, HashSet};
use std::time::Instant;

use hickory_proto::rr::Name;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};

use crate::model::hostname::Hostname;
use crate::model::link::{Annotations, Ingress, LinkState, ObservedService, Port};
use crate::model::owner::{Claims, Owner, Source, Zone};
use crate::model::persisted_target::{PersistedTarget, TargetOwner};
use crate::model::target_policy::TargetPolicy;
use crate::store::*;
use crate::sync::source::service_links::{
    apply_persisted_target, delete_left_out, insert_gone, insert_left_out, insert_terminating, missing_from,
};

mod internal_names;
mod link_override;
mod model;

fn seen(namespace: &str, name: &str, uid: &str, hosts: &[&str]) -> ObservedService {
    ObservedService {
        key: ServiceKey::new(namespace, name),
        uid: uid.into(),
        created: None,
        resource_version: None,
        ingress: Ingress { hostnames: hosts.iter().map(|name| host(name)).collect(), addresses: vec![] },
        ports: [].into(),
        annotations: Annotations::default(),
        refused: false,
        has_finalizer: false,
        persisted: None,
    }
}

fn host(name: &str) -> Hostname {
    Hostname::from(&Name::from_ascii(name).unwrap())
}

fn find(store: &Store, labels: &[&str]) -> Lookup {
    store.find(
        &crate::model::names::wire(labels.iter().map(|label| label.as_bytes())).unwrap(),
        b"\x02lb\x08internal",
        true,
    )
}

fn target(store: &Store, labels: &[&str]) -> Option<String> {
    match find(store, labels) {
        Lookup::Link(link) => Some(link.target.as_ref().map_or("pending".into(), Target::to_string)),
        _ => None,
    }
}

fn owner(store: &Store, labels: &[&str]) -> Option<String> {
    match find(store, labels) {
        Lookup::Link(link) => Some(link.key.to_string()),
        _ => None,
    }
}

#[test]
fn link_is_found_under_both_default_names() {
    let store = Store::new(OnGone::Kept);
    store.apply(seen("default", "web", "1", &["a.example."]));
    assert_eq!(target(&store, &["web-default"]).as_deref(), Some("a.example"));
    assert_eq!(target(&store, &["web", "default"]).as_deref(), Some("a.example"));
    assert_eq!(find(&store, &["default"]), Lookup::EmptyNonTerminal);
    assert_eq!(find(&store, &["web"]), Lookup::Nothing);
}

#[test]
fn new_target_is_published_and_sent_to_the_feed() {
    let store = Store::new(OnGone::Kept);
    store.apply(seen("default", "web", "1", &["a.example."]));
    let mut feed = store.subscribe();
    let change = store.apply(seen("default", "web", "1", &["b.example."])).unwrap();
    assert_eq!(change.to_string(), "link default/web: a.example → b.example");
    assert_eq!(feed.try_recv().unwrap()[0].to_string(), change.to_string());
    assert_eq!(target(&store, &["web-default"]).as_deref(), Some("b.example"));
    assert!(store.apply(seen("default", "web", "1", &["b.example."])).is_none());
    assert!(feed.try_recv().is_err());
}

fn with_addresses(addresses: &[&str]) -> ObservedService {
    let addresses = addresses.iter().map(|ip| ip.parse().unwrap()).collect();
    ObservedService {
        ingress: Ingress { hostnames: Vec::new(), addresses },
        ..seen("default", "web", "1", &[])
    }
}

#[test]
fn addresses_keep_their_order_until_the_set_changes() {
    let store = Store::new(OnGone::Kept);
    store.apply(with_addresses(&["192.0.2.2", "2001:db8::1", "192.0.2.1"]));
    let mut feed = store.subscribe();
    let shown = || format!("{:?}", store.get(&ServiceKey::new("default", "web")).unwrap().target);
    let before = store.get(&ServiceKey::new("default", "web")).unwrap();
    assert!(store.apply(with_addresses(&["192.0.2.1", "192.0.2.2", "2001:db8::1"])).is_none());
    assert!(Arc::ptr_eq(&before, &store.get(&before.key).unwrap()));
    assert!(feed.try_recv().is_err());

    let annotations = Annotations { ttl: Some(7), ..Annotations::default() };
    let observed = with_addresses(&["192.0.2.1", "192.0.2.2", "2001:db8::1"]);
    let change = store.apply(ObservedService { annotations, ..observed }).unwrap();
    assert_eq!(change.target_change(), None);
    assert_eq!(shown(), "Some(Addresses([192.0.2.2, 2001:db8::1, 192.0.2.1]))");
    store.apply(with_addresses(&["192.0.2.1", "192.0.2.2"]));
    assert_eq!(shown(), "Some(Addresses([192.0.2.1, 192.0.2.2]))");
}

#[test]
fn blank_status_keeps_the_target_of_the_same_service_only() {
    let store = Store::new(OnGone::Kept);
    store.apply(seen("default", "web", "1", &["a.example."]));
    store.apply(seen("default", "web", "1", &[]));
    let link = store.get(&ServiceKey::new("default", "web")).unwrap();
    assert_eq!(link.state, LinkState::Stale);
    assert_eq!(target(&store, &["web-default"]).as_deref(), Some("a.example"));

    store.apply(seen("default", "web", "2", &[]));
    assert_eq!(target(&store, &["web-default"]).as_deref(), Some("pending"));
}

fn last(host: &str, written_for: TargetOwner) -> PersistedTarget {
    let target = Some(Target::Hostname(self::host(host)));
    PersistedTarget {
        target,
        owner: written_for,
        hostnames: Box::default(),
        is_removable: true,
        overridden_by: None,
    }
}

fn noted(uid: &str) -> TargetOwner {
    TargetOwner::Uid(uid.into())
}

#[test]
fn persisted_target_belongs_to_the_service_it_was_written_for() {
    for (written_for, expected) in [
        (noted("1"), "a.example"),
        (noted("0"), "pending"),
        (TargetOwner::CreatedUntil(5), "a.example"),
        (TargetOwner::CreatedUntil(4), "pending"),
        (TargetOwner::Unknown, "a.example"),
    ] {
        let store = Store::new(OnGone::Kept);
        let persisted = Some(Box::new(last("a.example.", written_for.clone())));
        store.apply(ObservedService { created: Some(5), persisted, ..seen("default", "web", "1", &[]) });
        assert_eq!(target(&store, &["web-default"]).as_deref(), Some(expected), "{written_for:?}");
    }
}

#[test]
fn late_external_target_restores_the_target_of_a_blank_service() {
    let store = Store::new(OnGone::Kept);
    let key = ServiceKey::new("default", "web");
    store.apply(seen("default", "web", "1", &[]));
    store.set_known(Input::Services);
    assert!(
        apply_persisted_target(&store, &key, last("a.example.", TargetOwner::Unknown)).is_none(),
        "the external target may be that of a predecessor"
    );
    assert!(apply_persisted_target(&store, &key, last("a.example.", noted("1"))).is_some());
    assert_eq!(store.get(&key).unwrap().state, LinkState::Stale);
    assert!(
        apply_persisted_target(&store, &key, last("b.example.", noted("1"))).is_none(),
        "the link has a target"
    );
}

/// Returns the time since which the Service behind default/web's external target is gone.
fn outlived_since(store: &Store) -> Option<Instant> {
    store.get(&ServiceKey::new("default", "web")).unwrap().service_gone_since()
}

fn key(name: &str) -> ServiceKey {
    ServiceKey::new("default", name)
}

#[test]
fn left_out_service_keeps_its_names_and_target_through_lists() {
    let store = store_with_zone();
    let web = key("web");
    let host = Some(Target::Hostname(host("a.example.")));
    let names = || vec![Arc::from("shop.default.lb.internal")];
    assert!(insert_left_out(&store, &web, "1".into(), host.clone(), names()).is_some());
    assert!(insert_left_out(&store, &web, "1".into(), host.clone(), names()).is_none(), "nothing changes");
    for name in [&["web-default"][..], &["web", "default"], &["shop", "default"]] {
        assert_eq!(target(&store, name).as_deref(), Some("a.example"));
    }
    // A left-out Service is in no list, and its absence from one doesn't mean that it is gone.
    assert_eq!(missing_from(&store, [].into_iter(), None), (0, HashSet::new()));
    store.replace(None, vec![], vec![], &HashSet::new());
    assert_eq!(target(&store, &["web-default"]).as_deref(), Some("a.example"));
    assert!(insert_gone(&store, &web, vec![]).is_none());
    assert!(store.gone(&web, "another", None, Instant::now()).is_none());

    // A blank status of the same Service keeps the target, a blank status of another Service doesn't. If no uid was
    // recorded, each Service of the name counts as the same.
    store.apply(seen("default", "web", "1", &[]));
    assert_eq!(store.get(&web).unwrap().state, LinkState::Stale);
    assert!(insert_left_out(&store, &web, "1".into(), host.clone(), names()).is_none(), "it is followed");
    for (noted, uid, expected) in [("1", "1", "a.example"), ("", "2", "a.example"), ("1", "2", "pending")] {
        let store = Store::new(OnGone::Kept);
        insert_left_out(&store, &web, noted.into(), host.clone(), vec![]);
        store.apply(seen("default", "web", uid, &[]));
        assert_eq!(target(&store, &["web-default"]).as_deref(), Some(expected), "{noted:?} {uid}");
    }
}

#[test]
fn left_out_service_can_be_deleted_and_forgotten() {
    let host = Some(Target::Hostname(host("a.example.")));
    let left_out = || {
        let store = Store::new(OnGone::Kept);
        insert_gone(&store, &key("web"), vec![]);
        assert!(insert_left_out(&store, &key("web"), "1".into(), host.clone(), vec![]).is_some());
        assert_eq!(target(&store, &["web-default"]).as_deref(), Some("a.example"));
        store
    };
    let since = Instant::now();
    for by_event in [false, true] {
        let store = left_out();
        let change = if by_event {
            store.gone(&key("web"), "1", None, Instant::now())
        } else {
            delete_left_out(&store, &key("web"), since)
        };
        assert!(change.is_some());
        let link = store.get(&key("web")).unwrap();
        assert!(link.is_gone());
        assert_eq!(link.service_gone_since() == Some(since), !by_event);
        assert_eq!(target(&store, &["web-default"]).as_deref(), Some("pending"));
        assert!(delete_left_out(&store, &key("web"), since).is_none());
    }
    let store = left_out();
    assert!(store.forget(&key("web")).is_some());
    assert_eq!(target(&store, &["web-default"]), None);
    // A link that becomes left out still records our finalizer.
    let store = Store::new(OnGone::Kept);
    insert_terminating(&store, &key("web"), "1", true);
    insert_left_out(&store, &key("web"), "1".into(), host.clone(), vec![]);
    assert!(store.get(&key("web")).unwrap().has_finalizer);
}

#[test]
fn predecessors_external_target_marks_service_as_recreated() {
    for (written_for, is_predecessors) in [
        (noted("1"), false),
        (noted("0"), true),
        (TargetOwner::CreatedUntil(5), false),
        (TargetOwner::CreatedUntil(4), true),
        (TargetOwner::Unknown, false),
    ] {
        let key = ServiceKey::new("default", "web");
        let pending = || ObservedService { created: Some(5), ..seen("default", "web", "1", &[]) };
        let before = Instant::now();
        // The external target is observed before the Service, or after it; its target may be denied by now.
        for target in [last("a.example.", TargetOwner::Unknown).target, None] {
            let last =
                || PersistedTarget { target: target.clone(), ..last("a.example.", written_for.clone()) };
            let early = Store::new(OnGone::Kept);
            early.apply(ObservedService { persisted: Some(Box::new(last())), ..pending() });
            early.set_known(Input::Services);
            let late = Store::new(OnGone::Kept);
            late.apply(pending());
            late.set_known(Input::Services);
            apply_persisted_target(&late, &key, last());
            for store in [early, late] {
                let since = outlived_since(&store);
                assert_eq!(since.is_some(), is_predecessors, "{written_for:?}");
                assert!(since.is_none_or(|since| since >= before));
                store.apply(seen("default", "web", "1", &["b.example."]));
                assert_eq!(outlived_since(&store), None, "it has a target");
                store.apply(seen("default", "web", "1", &[]));
                assert_eq!(outlived_since(&store), None, "the Service keeps its target");
            }
        }
    }
}

#[test]
fn recreated_service_keeps_the_end_time_of_its_predecessor() {
    let store = Store::new(OnGone::Kept);
    store.apply(seen("default", "web", "1", &["a.example."]));
    assert_eq!(outlived_since(&store), None);
    store.gone(&ServiceKey::new("default", "web"), "1", None, Instant::now());
    let end = outlived_since(&store).unwrap();
    for uid in ["2", "3"] {
        store.apply(seen("default", "web", uid, &[]));
        assert_eq!(outlived_since(&store), Some(end));
        store.apply(with_port(81, seen("default", "web", uid, &[])));
        assert_eq!(outlived_since(&store), Some(end));
        assert_eq!(target(&store, &["web-default"]).as_deref(), Some("pending"));
    }
    store.gone(&ServiceKey::new("default", "web"), "3", None, Instant::now());
    assert_eq!(outlived_since(&store), Some(end));

    // No event announced the end of the first Service.
    let store = Store::new(OnGone::Kept);
    store.apply(seen("default", "web", "1", &["a.example."]));
    let before = Instant::now();
    store.apply(seen("default", "web", "2", &[]));
    assert!(outlived_since(&store).unwrap() >= before);
}

#[test]
fn initially_blank_service_keeps_its_persisted_target() {
    let store = Store::new(OnGone::Kept);
    let persisted = Some(Box::new(last("a.example.", noted("1"))));
    store.apply(ObservedService { persisted, ..seen("default", "web", "1", &[]) });
    assert_eq!(store.get(&key("web")).unwrap().state, LinkState::Stale);
    assert_eq!(target(&store, &["web-default"]).as_deref(), Some("a.example"));
    store.apply(seen("default", "web", "1", &["b.example."]));
    assert_eq!(target(&store, &["web-default"]).as_deref(), Some("b.example"));
}

#[test]
fn owner_keeps_its_names_against_an_older_service() {
    let store = Store::new(OnGone::Kept);
    store.set_owner("x-y-z-ext", Some(&ServiceKey::new("y-z", "x")), &[]);
    store.apply(ObservedService { created: Some(1), ..seen("z", "x-y", "1", &["a.example."]) });
    store.apply(ObservedService { created: Some(2), ..seen("y-z", "x", "2", &["b.example."]) });
    assert_eq!(owner(&store, &["x-y-z"]).as_deref(), Some("y-z/x"));
    let mut feed = store.subscribe();
    store.set_owner("x-y-z-ext", None, &[]);
    assert_eq!(owner(&store, &["x-y-z"]).as_deref(), Some("z/x-y"));
    let changes = feed.try_recv().unwrap();
    let mut renamed: Vec<String> = changes
        .iter()
        .map(|change| format!("{} {}", change.owner.key, change.after.as_ref().unwrap().external_target()))
        .collect();
    renamed.sort();
    let hashed = crate::model::names::external_target_hashed("y-z", "x", 8);
    assert_eq!(renamed, [format!("y-z/x {hashed}"), "z/x-y x-y-z-ext".to_owned()]);
}

#[test]
fn claimants_returns_the_present_owner() {
    let store = Store::new(OnGone::Kept);
    let wanting = |name: &str| store.claimants(name).iter().map(ToString::to_string).collect::<Vec<_>>();
    store.set_owner("x-y-z-ext", Some(&ServiceKey::new("y-z", "x")), &[]);
    store.apply(ObservedService { created: Some(1), ..seen("z", "x-y", "1", &["a.example."]) });
    store.apply(ObservedService { created: Some(2), ..seen("y-z", "x", "2", &["b.example."]) });
    let hashed = crate::model::names::external_target_hashed("z", "x-y", 8);
    assert_eq!((wanting("x-y-z-ext"), wanting(&hashed)), (vec!["y-z/x".into()], vec!["z/x-y".into()]));
    store.set_owner("x-y-z-ext", None, &[]);
    assert_eq!((wanting("x-y-z-ext"), wanting(&hashed)), (vec!["z/x-y".into()], vec![]));
    let gone = ServiceKey::new("z", "x-y");
    store.gone(&gone, "1", None, Instant::now());
    assert_eq!(wanting("x-y-z-ext"), ["z/x-y"], "until it is forgotten");
    store.forget(&gone);
    assert_eq!(wanting("x-y-z-ext"), ["y-z/x"]);
}

#[test]
fn gone_service_keeps_its_names_until_forgotten() {
    let store = Store::new(OnGone::Kept);
    let key = ServiceKey::new("default", "web");
    store.apply(seen("default", "web", "1", &["a.example."]));
    assert!(store.gone(&key, "0", None, Instant::now()).is_none(), "another Service's end");
    assert_eq!(
        store.gone(&key, "1", None, Instant::now()).unwrap().to_string(),
        "link default/web: a.example → gone"
    );
    assert_eq!(target(&store, &["web", "default"]).as_deref(), Some("pending"));
    store.forget(&key).unwrap();
    assert_eq!(find(&store, &["web", "default"]), Lookup::Nothing);
    assert_eq!(find(&store, &["default"]), Lookup::Nothing);
    assert_eq!(find(&store, &["web-default"]), Lookup::Nothing);
    assert!(store.links().is_empty());
}

#[test]
fn gone_service_takes_no_name_of_a_living_service() {
    let store = Store::new(OnGone::Kept);
    let ghost = ServiceKey::new("z", "x-y");
    let object = |key: &ServiceKey| store.get(key).unwrap().external_target().into_owned();
    store.apply(ObservedService { created: Some(5), ..seen("y-z", "x", "1", &["a.example."]) });
    insert_gone(&store, &ghost, vec![]).unwrap();
    assert_eq!(owner(&store, &["x-y-z"]).as_deref(), Some("y-z/x"));
    assert_eq!(&*object(&ServiceKey::new("y-z", "x")), "x-y-z-ext");
    assert_eq!(*object(&ghost), *crate::model::names::external_target_hashed("z", "x-y", 8));
    // The gone Service comes back, and is the older one.
    store.apply(ObservedService { created: Some(1), ..seen("z", "x-y", "2", &["b.example."]) });
    assert_eq!(owner(&store, &["x-y-z"]).as_deref(), Some("z/x-y"));
    assert_eq!(&*object(&ghost), "x-y-z-ext");
    assert_eq!(
        *object(&ServiceKey::new("y-z", "x")),
        *crate::model::names::external_target_hashed("y-z", "x", 8)
    );
}

#[test]
fn undecodable_service_isnt_gone() {
    let store = Store::new(OnGone::Kept);
    let key = ServiceKey::new("default", "web");
    store.replace(None, vec![], vec![key.clone()], &HashSet::new());
    assert!(insert_gone(&store, &key, vec![]).is_none());
    let mut feed = store.subscribe();
    store.gone(&key, "1", None, Instant::now());
    assert_eq!(feed.try_recv().unwrap()[0].owner.key, key, "its external target has to be looked at");
    assert!(insert_gone(&store, &key, vec![]).is_some());
}

#[test]
fn living_service_isnt_forgotten() {
    let store = Store::new(OnGone::Kept);
    store.apply(seen("default", "web", "1", &["a.example."]));
    assert!(store.forget(&ServiceKey::new("default", "web")).is_none());
}

#[test]
fn gone_link_is_dropped_without_external_targets() {
    let store = Store::new(OnGone::Dropped);
    store.apply(seen("default", "web", "1", &["a.example."]));
    store.gone(&ServiceKey::new("default", "web"), "1", None, Instant::now());
    assert_eq!(find(&store, &["web-default"]), Lookup::Nothing);
}

#[test]
fn list_replaces_the_links_of_its_namespace() {
    let store = Store::new(OnGone::Dropped);
    store.apply(seen("default", "old", "1", &["a.example."]));
    store.apply(seen("default", "same", "2", &["b.example."]));
    store.apply(seen("default", "unreadable", "4", &["d.example."]));
    let list =
        vec![seen("default", "same", "2", &["b.example."]), seen("default", "new", "3", &["c.example."])];
    store.apply(seen("elsewhere", "other", "5", &["e.example."]));
    let changes =
        store.replace(Some("default"), list, vec![ServiceKey::new("default", "unreadable")], &HashSet::new());
    let mut lines: Vec<String> = changes.iter().map(ToString::to_string).collect();
    lines.sort();
    assert_eq!(lines, ["link default/new: none → c.example", "link default/old: forgotten"]);
}

#[test]
fn ambiguous_name_goes_to_the_older_service_in_any_order() {
    let x = || ObservedService { created: Some(1), ..seen("z", "x-y", "1", &["a.example."]) };
    let y = || ObservedService { created: Some(2), ..seen("y-z", "x", "2", &["b.example."]) };
    for list in [vec![x(), y()], vec![y(), x()]] {
        let store = Store::new(OnGone::Kept);
        for observed in list {
            store.apply(observed);
        }
        assert_eq!(owner(&store, &["x-y-z"]).as_deref(), Some("z/x-y"));
        assert_eq!(owner(&store, &["x", "y-z"]).as_deref(), Some("y-z/x"));
        let name = |ns: &str, svc: &str| {
            store.get(&ServiceKey::new(ns, svc)).unwrap().external_target().into_owned()
        };
        assert_eq!(&*name("z", "x-y"), "x-y-z-ext");
        assert_eq!(*name("y-z", "x"), *crate::model::names::external_target_hashed("y-z", "x", 8));

        // The winner goes: the next link gets both names, but only once the winner is forgotten.
        let key = ServiceKey::new("z", "x-y");
        store.gone(&key, "1", None, Instant::now());
        assert_eq!(owner(&store, &["x-y-z"]).as_deref(), Some("z/x-y"));
        store.forget(&key);
        assert_eq!(owner(&store, &["x-y-z"]).as_deref(), Some("y-z/x"));
        assert_eq!(&*name("y-z", "x"), "x-y-z-ext");
    }
}

#[test]
fn recreated_load_balancer_keeps_its_rank() {
    let store = Store::new(OnGone::Kept);
    store.apply(ObservedService { created: Some(1), ..seen("z", "x-y", "1", &["a.example."]) });
    store.apply(ObservedService { created: Some(2), ..seen("y-z", "x", "2", &["b.example."]) });
    store.gone(&ServiceKey::new("z", "x-y"), "1", None, Instant::now());
    store.apply(ObservedService { created: Some(3), ..seen("z", "x-y", "3", &["c.example."]) });
    assert_eq!(owner(&store, &["x-y-z"]).as_deref(), Some("z/x-y"));
    let link = store.get(&ServiceKey::new("z", "x-y")).unwrap();
    assert_eq!((link.created, link.object_created), (1, Some(3)), "users see the age of the new one");
}

#[test]
fn reserved_namespace_has_no_dotted_names() {
    let store = Store::new(OnGone::Kept);
    store.apply(seen("deleted", "x", "1", &["a.example."]));
    assert_eq!(find(&store, &["x", "deleted"]), Lookup::Nothing);
    assert_eq!(find(&store, &["deleted"]), Lookup::Nothing);
    assert_eq!(owner(&store, &["x-deleted"]).as_deref(), Some("deleted/x"));
}

#[test]
fn serial_is_the_newest_version_and_never_decreases() {
    let store = Store::new(OnGone::Kept);
    let at = |version| ObservedService { resource_version: Some(version), ..seen("a", "b", "1", &[]) };
    let newest = (1 << 32) + 7;
    store.apply(at(newest));
    store.apply(at(5));
    assert_eq!(store.serial(), newest);

    // Changes without a resourceVersion don't switch the serial to the clock.
    store.apply(ObservedService { resource_version: Some((1 << 32) + 8), ..seen("a", "gone", "2", &[]) });
    store.gone(&ServiceKey::new("a", "gone"), "2", Some((1 << 32) + 9), Instant::now());
    store.forget(&ServiceKey::new("a", "gone"));
    assert_eq!(store.serial(), newest + 2);

    // Later changes advance the serial also without a newer resourceVersion.
    store.set_known(Input::Services);
    store.apply(ObservedService { resource_version: Some(6), ..seen("a", "late", "3", &[]) });
    assert_eq!(store.serial(), newest + 3);
    store.apply(ObservedService {
        resource_version: Some(newest + 9),
        ..seen("a", "late", "3", &["a.example."])
    });
    assert_eq!(store.serial(), newest + 9, "replicas agree again");

    let clock = Store::new(OnGone::Kept);
    clock.apply(seen("a", "b", "", &["a.example."]));
    let first = clock.serial();
    clock.apply(seen("a", "b", "", &["b.example."]));
    let second = clock.serial();
    assert!(second > first && first > 1_700_000_000);
    clock.replace(None, vec![], vec![], &HashSet::new());
    assert!(clock.serial() > second, "a removal is a change");
}

#[test]
fn serial_is_the_sum_of_the_newest_versions_of_all_clusters() {
    let store = Store::new(OnGone::Kept);
    store.continue_at(100);
    store.set_known(Input::Services);
    let observe = |cluster: Option<&str>, name: &str, version: u64| {
        let source = Source { cluster: cluster.map(Into::into), ..Source::INGRESSES };
        store.observe_all(&source, [(ServiceKey::new("a", name), None)], Some(version));
        store.serial()
    };
    assert_eq!(observe(Some("west"), "x", 1000), 1100);
    assert_eq!(observe(None, "x", 150), 1150);
    assert_eq!(observe(Some("east"), "x", 7), 1157);
    assert_eq!(observe(Some("west"), "x", 900), 1157, "an older version of one cluster");
    assert_eq!(observe(Some("west"), "x", 1001), 1158);
    // etcd of the home cluster is restored.
    store.continue_at(20);
    assert_eq!(store.serial(), 1159);
    assert_eq!(observe(Some("east"), "x", u64::MAX), 20 + 1001 + (1 << 56));
    assert_eq!(observe(Some("west"), "x", u64::MAX), 20 + 2 * (1 << 56));
}

#[test]
fn serial_follows_versions_of_owners_of_other_kinds() {
    let key = ServiceKey::new("a", "b");
    let source = |cluster: Option<&str>| Source { kind: "Ingress".into(), cluster: cluster.map(Arc::from) };
    let owner = |cluster: Option<&str>| Owner { source: source(cluster), key: key.clone() };
    let claims = Claims { created: 0, names: ["x.lb.internal".into()].into(), ..Default::default() };
    let target = Arc::new(Link::new(ServiceKey::new("a", "b.ingress"), ""));
    let store = store_with_zone();
    store.set_zones([zone_with(&[Source::SERVICES, source(None), source(Some("west"))])]);
    store.continue_at(0);
    store.observe(&owner(None), &claims, &target, Some(70));
    store.observe(&owner(Some("west")), &claims, &target, None);
    store.set_known(Input::Services);
    assert_eq!(store.serial(), 70);
    store.observe(&owner(None), &Claims { created: 1, ..claims.clone() }, &target, Some(71));
    assert_eq!(store.serial(), 71);
    let moved = Arc::new(Link::clone(&target));
    store.observe(&owner(None), &claims, &moved, Some(80));
    assert_eq!(store.serial(), 80);
    store.forget(owner(None));
    assert_eq!(store.serial(), 81, "the name leads to the other cluster's target");
}

fn zone_with(sources: &[Source]) -> Zone {
    Zone { sources: sources.to_vec(), ..(&Name::from_ascii("lb.internal.").unwrap()).into() }
}

fn ingress(namespace: &str, host: &str) -> Owner {
    Owner { source: Source::INGRESSES, key: ServiceKey::new(namespace, host) }
}

fn observe_ingress(store: &Store, namespace: &str, host: &str, created: i64) -> Owner {
    let owner = ingress(namespace, host);
    let target = Arc::new(Link::new(ServiceKey::new(namespace, "web"), ""));
    store.observe(
        &owner,
        &Claims { created, names: [host.into()].into(), ..Default::default() },
        &target,
        None,
    );
    owner
}

#[test]
fn owner_is_told_when_another_owner_takes_its_name() {
    let store = store_with_zone();
    store.set_zones([zone_with(&[Source::SERVICES, Source::INGRESSES])]);
    let lost = |owner: &Owner| store.lost_names(owner).len();
    let young = observe_ingress(&store, "b", "web.a.lb.internal", 2);
    let mut feed = store.subscribe();
    let mut told = || {
        let batches = std::iter::from_fn(|| feed.try_recv().ok());
        batches.map(|changes| changes.iter().filter(|change| change.owner == young).count()).sum::<usize>()
    };
    let old = observe_ingress(&store, "c", "web.a.lb.internal", 1);
    assert_eq!((lost(&young), lost(&old), told()), (1, 0, 1), "the oldest has the name");
    store.forget(&old);
    assert_eq!((lost(&young), told()), (0, 1));
    store.apply(seen("a", "web", "1", &["a.example."]));
    assert_eq!((lost(&young), told()), (1, 1), "it is a default name now");
    store.set_zones([zone_with(&[Source::INGRESSES])]);
    assert_eq!((lost(&young), told()), (0, 1), "load balancers have no names in the zone any more");
    store.set_zones([zone_with(&[Source::SERVICES])]);
    assert_eq!(lost(&young), 0, "nothing is asked for in zones of other sources");
}

#[test]
fn superseded_target_ends_at_all_its_names_at_once() {
    let store = store_with_zone();
    store.set_zones([zone_with(&[Source::INGRESSES])]);
    let target = || Arc::new(Link::new(ServiceKey::new("a", "web"), ""));
    let [first, second, third, other] = [target(), target(), target(), target()];
    let observe = |host: &str, target: &Arc<Link>| {
        let claims = Claims { created: 1, names: [host.into()].into(), ..Default::default() };
        store.observe(&ingress("a", host), &claims, target, None);
    };
    let hosts = ["x.a.lb.internal", "y.a.lb.internal"];
    hosts.iter().for_each(|host| observe(host, &first));
    let origin = crate::model::names::wire_of("lb.internal").unwrap();
    let kept = |label: &str| {
        let (found, names) =
            store.find_to_keep(&crate::model::names::wire_of(label).unwrap(), &origin, false);
        let Lookup::Link(link) = found else { panic!("{label}") };
        (link, names.unwrap())
    };
    let is_current = |(link, names): &(Arc<Link>, NameDependency)| !link.is_outdated() && names.is_current();
    let (before, serial) = (kept("x.a"), store.serial());
    let mut feed = store.subscribe();
    store.supersede(&first, &second);
    assert!(!is_current(&before));
    let middle = kept("y.a");
    assert!(Arc::ptr_eq(&middle.0, &second) && is_current(&middle));
    store.supersede(&second, &third);
    assert!(!is_current(&middle));
    let (x, y) = (kept("x.a"), kept("y.a"));
    assert!([&x, &y].iter().all(|kept| Arc::ptr_eq(&kept.0, &third) && is_current(kept)));
    store.supersede(&third, &first);
    assert!(is_current(&x), "an earlier version doesn't come back");

    assert!(feed.try_recv().is_err() && store.serial() == serial, "the owners tell it");
    observe(hosts[0], &third);
    assert!(is_current(&x) && store.serial() > serial, "nothing has changed for kept answers");
    assert!(feed.try_recv().unwrap()[0].before.as_ref().is_some_and(|before| Arc::ptr_eq(before, &first)));
    observe(hosts[1], &other);
    assert!(!is_current(&y), "this name has left the target that others have");
    assert!(is_current(&x) && Arc::ptr_eq(&kept("y.a").0, &other));
}

#[test]
fn zone_waits_for_its_own_sources_as_they_are_configured() {
    let store = store_with_zone();
    let both = zone_with(&[Source::SERVICES, Source::INGRESSES]);
    store.set_zones([both.clone()]);
    let unlisted = |zone: &Zone| store.unlisted_source(zone).is_some();
    assert!(unlisted(&both) && !unlisted(&zone_with(&[Source::SERVICES])));
    store.set_listed(&Source::INGRESSES, std::slice::from_ref(&both));
    assert!(!unlisted(&both));
    let of_class = Zone { ingress_classes: vec!["nginx".into()], ..both.clone() };
    assert!(!store.has_listed(std::slice::from_ref(&of_class)));
    store.set_zones([of_class.clone()]);
    assert!(unlisted(&of_class) && !unlisted(&both), "the block before answers");
    store.set_zones([both.clone()]);
    assert!(!unlisted(&both), "its names are there still");
    store.set_zones([of_class.clone()]);
    store.set_listed(&Source::INGRESSES, std::slice::from_ref(&of_class));
    assert!(!unlisted(&of_class) && !unlisted(&both));
    store.set_zones([both.clone()]);
    assert!(unlisted(&both), "the last list was for another zone");
    store.set_zones([zone_with(&[Source::SERVICES])]);
    assert!(unlisted(&both), "blocks before whose zone was never listed");
    store.set_zones([both.clone()]);
    store.set_listed(&Source::INGRESSES, std::slice::from_ref(&both));
    store.set_zones([zone_with(&[Source::SERVICES])]);
    store.forget_source(&Source::INGRESSES);
    assert!(!unlisted(&both), "the block before answers without the source, which isn't read any more");
    store.set_zones([both.clone()]);
    assert!(unlisted(&both), "its names were forgotten");
    let owner = observe_ingress(&store, "a", "x.a.lb.internal", 1);
    store.forget_source(&Source::INGRESSES);
    assert!(unlisted(&both) && store.owners_of(&Source::INGRESSES).is_empty());
    assert_eq!(find(&store, &["x", "a"]), Lookup::Nothing, "{owner}");
}

/// Returns the owner of a name in the zone `lb.internal`: a Service's name, `.` for an empty non-terminal, or an empty
/// string.
fn leads(store: &Store, name: &str) -> String {
    match find(store, &name.split('.').collect::<Vec<_>>()) {
        Lookup::Link(link) => link.key.name().to_string(),
        Lookup::EmptyNonTerminal => ".".to_owned(),
        Lookup::Nothing => String::new(),
    }
}

fn asking(service: ObservedService, names: &[&str]) -> ObservedService {
    let hostnames = names.iter().map(|name| Arc::from(*name)).collect();
    ObservedService { annotations: Annotations { hostnames, ..Default::default() }, ..service }
}

#[test]
fn custom_hostnames_rank_below_default_names() {
    let store = Store::new(OnGone::Kept);
    let names = ["shop.a.default.lb.internal", "*.w.lb.internal", "api.default.lb.internal"];
    store.apply(asking(seen("default", "web", "1", &["a.example."]), &names));
    for (name, expected) in [
        ("shop.a.default", "web"),
        ("a.default", "."),
        ("x.a.default", ""),
        ("x.shop.a.default", ""),
        ("api.default", "web"),
        ("w", "."),
        ("x.w", "web"),
        ("y.x.w", "web"),
        ("_acme-challenge.x.w", ""),
        ("x._tcp.w", ""),
        ("*.w", "web"),
        ("v", ""),
    ] {
        assert_eq!(leads(&store, name), expected, "{name}");
    }
    // The origin counts: the same name in another zone isn't requested.
    assert_eq!(store.find(b"\x03api\x07default", b"\x05other", true), Lookup::Nothing);

    // Default names come first, and return to the requester when their Service is forgotten.
    store.apply(seen("default", "api", "2", &["b.example."]));
    store.apply(seen("w", "x", "3", &["b.example."]));
    assert_eq!(leads(&store, "api.default"), "api");
    assert_eq!(leads(&store, "x.w"), "x");
    assert_eq!(leads(&store, "y.x.w"), "", "x.w is closer than the wildcard");
    assert_eq!(leads(&store, "y.w"), "web");
    store.gone(&ServiceKey::new("default", "api"), "2", None, Instant::now());
    assert_eq!(leads(&store, "api.default"), "api", "it holds its name until its external target is gone");
    store.forget(&ServiceKey::new("default", "api"));
    assert_eq!(leads(&store, "api.default"), "web");

    store.apply(seen("default", "web", "1", &["a.example."]));
    for name in ["shop.a.default", "a.default", "x.w.x", "y.w", "api.default"] {
        assert_eq!(leads(&store, name), "", "{name}: web no longer requests the name");
    }
}

#[test]
fn contested_hostname_goes_to_its_owner_else_the_older_link() {
    let store = Store::new(OnGone::Kept);
    let name = ["shop.lb.internal"];
    let ask = |service, created| {
        store.apply(ObservedService {
            created: Some(created),
            ..asking(seen("default", service, service, &["a.example."]), &name)
        })
    };
    ask("young", 2);
    assert_eq!(leads(&store, "shop"), "young");
    ask("old", 1);
    assert_eq!(leads(&store, "shop"), "old");
    let has = |service| store.get(&ServiceKey::new("default", service)).unwrap().hostnames.len();
    assert_eq!((has("old"), has("young")), (1, 0));

    let young = ServiceKey::new("default", "young");
    store.set_owner("young-default-ext", Some(&young), &name.map(Arc::from));
    assert_eq!(leads(&store, "shop"), "young");
    assert_eq!((has("old"), has("young")), (0, 1));
    store.gone(&young, "young", None, Instant::now());
    assert_eq!(leads(&store, "shop"), "young", "a load balancer that is recreated gets its name back");
    store.set_owner("young-default-ext", None, &[]);
    store.forget(&young);
    assert_eq!(leads(&store, "shop"), "old");
}

fn store_with_zone() -> Store {
    Store::new(OnGone::Kept).with_zones([&Name::from_ascii("lb.internal.").unwrap()])
}

/// Parts of names that are bound to clash: joined by hyphens they give the same label in many ways.
const PARTS: [&str; 3] = ["a", "a-a", "a-a-a"];

/// Returns one of several Services with clashing names, and custom hostnames for it, some of which are default names of
/// Services.
fn clashing(random: &mut StdRng) -> (ServiceKey, Vec<Arc<str>>) {
    let mut part = || PARTS[random.random_range(0..PARTS.len())];
    let key = ServiceKey::new(part(), part());
    let own = format!("{}.{}.lb.internal", part(), part());
    let dashed = format!("{}-{}.lb.internal", part(), part());
    let all = [own, dashed, "shop.lb.internal".to_owned(), "*.shop.lb.internal".to_owned()];
    (key, all.iter().filter(|_| random.random_bool(0.5)).map(|name| Arc::from(&**name)).collect())
}

/// Checks the owner of every name that a link has by default or requests.
fn check_names(store: &Store, context: &str) {
    let links = store.links();
    let objects: HashSet<_> = links.iter().map(|link| link.external_target()).collect();
    assert_eq!(objects.len(), links.len(), "{context}: two links share an external target");
    let owner = |name: &str| match find(store, &name.split('.').collect::<Vec<_>>()) {
        Lookup::Link(link) => Some(link.key.clone()),
        _ => None,
    };
    let mut labels: HashMap<String, Vec<&Arc<Link>>> = HashMap::new();
    let mut taken: HashSet<String> = HashSet::new();
    for link in &links {
        let (namespace, name) = link.key.parts();
        let (dotted, dashed) =
            (format!("{name}.{namespace}"), crate::model::names::dashed_label(namespace, name));
        assert_eq!(owner(&dotted), Some(link.key.clone()), "{context}: {dotted}");
        taken.insert(dotted);
        labels.entry(dashed).or_default().push(link);
    }
    for (label, wanted_by) in labels {
        // Links that keep hashed names leave the label to a hostname that asks for it.
        if wanted_by.iter().any(|link| !link.lacks_its_external_target()) {
            assert!(
                wanted_by.iter().any(|link| Some(&link.key) == owner(&label).as_ref()),
                "{context}: {label}"
            );
            taken.insert(label);
        }
    }
    let mut asked: HashMap<&str, Vec<&Arc<Link>>> = HashMap::new();
    for link in &links {
        for name in &*link.annotations.hostnames {
            asked.entry(name).or_default().push(link);
        }
    }
    for (name, askers) in asked {
        let has: Vec<_> =
            askers.iter().filter(|link| link.hostnames.iter().any(|own| **own == *name)).collect();
        let relative = name.strip_suffix(".lb.internal").unwrap();
        if taken.contains(relative) {
            assert!(has.is_empty(), "{context}: {has:?} have {name}, a default name");
        } else {
            assert_eq!(has.len(), 1, "{context}: {name} is had by {has:?}");
            assert_eq!(owner(relative), Some(has[0].key.clone()), "{context}: {name}");
        }
    }
}

#[test]
fn names_are_unique_after_random_changes() {
    for seed in 0..40 {
        let mut random = StdRng::seed_from_u64(seed);
        let mut store = store_with_zone();
        let mut written: HashMap<String, (ServiceKey, Vec<Arc<str>>)> = HashMap::new();
        let mut living: HashMap<ServiceKey, ObservedService> = HashMap::new();
        for step in 0..120 {
            let (key, hostnames) = clashing(&mut random);
            let link = store.get(&key);
            match random.random_range(0..10) {
                0..4 => {
                    let created = Some(random.random_range(0..3));
                    let known = living.get(&key).map(|known| (known.uid.clone(), known.created));
                    let (uid, created) = known.unwrap_or_else(|| (step.to_string().as_str().into(), created));
                    let host = format!("t{step}.example.");
                    let annotations = Annotations { hostnames: hostnames.into(), ..Default::default() };
                    let service = ObservedService {
                        uid,
                        created,
                        annotations,
                        ..seen(key.namespace(), key.name(), "", &[&host])
                    };
                    living.insert(key, service.clone());
                    store.apply(service);
                }
                4..6 => {
                    if let Some(known) = living.remove(&key) {
                        store.gone(&key, &known.uid.to_string(), None, Instant::now());
                    }
                }
                6..8 => {
                    // The Service's external target is written, under the name that the link has.
                    if let Some(link) = link.filter(|link| !link.is_gone()) {
                        let noted = (key.clone(), link.hostnames.to_vec());
                        store.set_owner(&link.external_target(), Some(&key), &noted.1);
                        written.insert(link.external_target().to_string(), noted);
                    }
                }
                8 => {
                    // The Service's external targets are removed, and then its link is forgotten.
                    for (object, _) in written.extract_if(|_, (holder, _)| *holder == key) {
                        store.set_owner(&object, None, &[]);
                    }
                    store.forget(&key);
                }
                _ => {
                    // A restart: the cluster's objects are listed, in any order.
                    store = store_with_zone();
                    for (object, (holder, noted)) in &written {
                        store.set_owner(object, Some(holder), noted);
                    }
                    let mut list: Vec<ObservedService> = living.values().cloned().collect();
                    list.shuffle(&mut random);
                    store.replace(None, list, vec![], &HashSet::new());
                    store.set_known(Input::Services);
                    for (holder, noted) in written.values() {
                        insert_gone(&store, holder, noted.clone());
                    }
                }
            }
            check_names(&store, &format!("seed {seed}, step {step}"));
        }
    }
}

fn with_port(port: u16, service: ObservedService) -> ObservedService {
    let http = Port { name: Some("http".into()), protocol: "TCP".into(), port, app_protocol: None };
    ObservedService { ports: [http].into(), ..service }
}

#[test]
fn new_ports_of_a_hostname_target_are_a_change() {
    let store = store_with_zone();
    let key = ServiceKey::new("default", "web");
    let web = |host| asking(seen("default", "web", "1", &[host]), &["shop.default.lb.internal"]);
    store.apply(with_port(80, web("a.example.")));
    let mut feed = store.subscribe();
    let serial = store.serial();
    let change = store.apply(with_port(81, web("a.example."))).unwrap();
    assert_eq!((change.target_change(), feed.try_recv().is_ok()), (None, true));
    assert!(store.serial() > serial, "the zone has changed");
    for name in ["web-default", "web.default", "shop.default"] {
        let Lookup::Link(link) = find(&store, &name.split('.').collect::<Vec<_>>()) else { panic!("{name}") };
        assert_eq!(link.ports[0].port, 81, "{name}");
    }
    assert_eq!(store.get(&key).unwrap().ports[0].port, 81);
}

#[test]
fn loser_of_a_label_stays_published_under_its_other_names() {
    // From 60 bytes on the names of external targets end in hashes and don't clash: only the label changes its owner.
    for length in 56..=64 {
        let store = Store::new(OnGone::Kept);
        let middle = "y".repeat(length - 4);
        let created = |created, observed| ObservedService { created: Some(created), ..observed };
        store.apply(created(200, seen("z", &format!("x-{middle}"), "1", &["a.example."])));
        store.apply(created(100, seen(&format!("{middle}-z"), "x", "2", &["b.example."])));
        let key = ServiceKey::new("z", &format!("x-{middle}"));
        let loser = store.get(&key).unwrap();
        assert!(!loser.is_outdated(), "a label of {length} bytes");
        if let Lookup::Link(shown) = find(&store, &[key.name(), "z"]) {
            assert!(Arc::ptr_eq(&shown, &loser), "a label of {length} bytes");
        }
    }
}

#[test]
fn target_in_our_zone_needs_its_links_permission() {
    let policy =
        TargetPolicy { zones: vec![Name::from_ascii("lb.internal.").unwrap()], ..Default::default() };
    let store = Store::new(OnGone::Kept).with_zones(&policy.zones);
    for (namespace, name, allowed) in [
        ("default", "own", ""),
        ("other", "closed", "third"),
        ("other", "open", "default"),
        ("other", "all", "*"),
    ] {
        let allow_from = allowed.split(',').filter(|word| !word.is_empty()).map(Arc::from).collect();
        let hostnames = [Arc::from(format!("{name}-extra.lb.internal"))].into();
        let annotations = Annotations { allow_from, hostnames, ..Annotations::default() };
        store.apply(ObservedService { annotations, ..seen(namespace, name, "u", &["lb.example."]) });
    }
    for (name, why) in [
        ("own.default.lb.internal", ""),
        ("own-default.lb.internal", ""),
        ("own-extra.lb.internal", ""),
        ("OPEN.other.lb.internal", ""),
        ("open-other.lb.internal", ""),
        ("open-extra.lb.internal", ""),
        ("all.other.lb.internal", ""),
        ("closed.other.lb.internal", "belongs to Service other/closed"),
        ("closed-extra.lb.internal", "allow-from doesn't list namespace default"),
        // No link has the name: only a Service in its namespace can ever have it.
        ("later.default.lb.internal", ""),
        ("a.later.Default.LB.internal", ""),
        ("later.other.lb.internal", "belongs to no object: such a target must be below default.lb.internal"),
        ("later-default.lb.internal", "belongs to no object"),
        ("default.lb.internal", "belongs to no object"),
        ("lb.internal", "belongs to no object"),
    ] {
        let host = Name::from_ascii(format!("{name}.")).unwrap();
        let checked = policy.check_host("default", &host, |host| store.link_of_host(host));
        let found = checked.err().map_or_else(String::new, |refusal| refusal.to_string());
        assert!(if why.is_empty() { found.is_empty() } else { found.contains(why) }, "{name}: {found}");
    }
}
