//! Internal hostnames of load balancers.

use super::*;
use crate::model::link::InternalNames;
use crate::model::link_override::{Announcement, LinkOverride};
use crate::sync::source::service_links::set_override;

/// Returns a load balancer that asks for these internal hostnames, with this cluster IP.
fn internal(service: ObservedService, names: &[&str], ip: &str) -> ObservedService {
    let hostnames = names.iter().map(|name| Arc::from(*name)).collect();
    let addresses = [ip.parse().unwrap()].into();
    let internal = InternalNames { hostnames, addresses, refused: false };
    ObservedService {
        annotations: Annotations { internal: Some(internal.into()), ttl: Some(60), ..service.annotations },
        ..service
    }
}

fn created(service: ObservedService, created: i64) -> ObservedService {
    ObservedService { created: Some(created), ..service }
}

fn store() -> Store {
    let store = Store::new(OnGone::Kept).with_zones([zone_with(&[Source::SERVICES, Source::INGRESSES])]);
    store.set_known(Input::Services);
    store
}

fn web(uid: &str) -> ObservedService {
    seen("shop", "web", uid, &["cloud.example."])
}

#[test]
fn internal_hostname_follows_the_cluster_ip_of_its_service() {
    let store = store();
    let at = || target(&store, &["int", "shop"]);
    store.apply(internal(web("1"), &["int.shop.lb.internal"], "10.96.0.1"));
    assert_eq!(at().as_deref(), Some("10.96.0.1"));
    assert_eq!(target(&store, &["web", "shop"]).as_deref(), Some("cloud.example"));
    let link = store.link_of_host(&Name::from_ascii("int.shop.lb.internal.").unwrap()).unwrap();
    assert_eq!((link.annotations.ttl, link.key.to_string()), (Some(60), "shop/web.internal".to_owned()));
    let before = store.serial();
    store.apply(internal(web("1"), &["int.shop.lb.internal"], "10.96.0.2"));
    assert!(link.is_outdated() && store.serial() > before);
    assert_eq!(at().as_deref(), Some("10.96.0.2"));
    store.apply(internal(web("1"), &["other.shop.lb.internal"], "10.96.0.2"));
    assert_eq!((at(), target(&store, &["other", "shop"]).as_deref()), (None, Some("10.96.0.2")));
    store.apply(web("1"));
    assert_eq!(target(&store, &["other", "shop"]), None);
    assert!(store.owners_of(&Source::INTERNAL).is_empty() && store.other_owners().is_empty());
}

#[test]
fn internal_hostname_ends_with_its_service_and_comes_back() {
    for on_gone in [OnGone::Kept, OnGone::Dropped] {
        let store = Store::new(on_gone).with_zones([zone_with(&[Source::SERVICES])]);
        store.set_known(Input::Services);
        let at = || target(&store, &["int", "shop"]);
        let names = ["int.shop.lb.internal"];
        store.apply(internal(web("1"), &names, "10.96.0.1"));
        store.gone(&ServiceKey::new("shop", "web"), "1", None, Instant::now());
        assert_eq!(at(), None, "{on_gone:?}");
        store.apply(internal(web("2"), &names, "10.96.0.2"));
        assert_eq!(at().as_deref(), Some("10.96.0.2"));
        store.replace(None, [internal(web("2"), &names, "10.96.0.3")], Vec::new(), &HashSet::new());
        assert_eq!(at().as_deref(), Some("10.96.0.3"));
        store.replace(None, [], Vec::new(), &HashSet::new());
        assert_eq!(at(), None, "{on_gone:?}");
        store.forget(&ServiceKey::new("shop", "web"));
        assert!(store.owners_of(&Source::INTERNAL).is_empty());
    }
}

#[test]
fn internal_hostname_belongs_to_the_oldest_load_balancer() {
    let store = store();
    let name = ["x.lb.internal"];
    let at = || target(&store, &["x"]);
    let lost = |service: &str| {
        let key = ServiceKey::new("shop", service);
        store.lost_names(&Owner { source: Source::INTERNAL, key }).len()
    };
    store.apply(internal(created(seen("shop", "young", "1", &[]), 3), &name, "10.96.0.3"));
    observe_ingress(&store, "shop", "x.lb.internal", 1);
    assert_eq!(at().as_deref(), Some("10.96.0.3"), "the source of load balancers comes first");
    store.apply(internal(created(seen("shop", "old", "2", &[]), 2), &name, "10.96.0.2"));
    assert_eq!((at().as_deref(), lost("young"), lost("old")), (Some("10.96.0.2"), 1, 0));
    let hostname = asking(created(seen("shop", "oldest", "3", &["cloud.example."]), 1), &name);
    store.apply(hostname);
    assert_eq!((at().as_deref(), lost("old")), (Some("cloud.example"), 1));
    store.gone(&ServiceKey::new("shop", "oldest"), "3", None, Instant::now());
    store.forget(&ServiceKey::new("shop", "oldest"));
    assert_eq!((at().as_deref(), lost("old")), (Some("10.96.0.2"), 0));
    store.apply(seen("x", "default", "4", &["other.example."]));
    store.apply(internal(web("5"), &["default.x.lb.internal"], "10.96.0.5"));
    assert_eq!(target(&store, &["default", "x"]).as_deref(), Some("other.example"));
    assert_eq!(lost("web"), 1, "the name is the default name of another load balancer");
    store.set_zones([zone_with(&[Source::INGRESSES])]);
    assert_eq!(at().as_deref(), Some("pending"), "load balancers have no names in the zone any more");
}

#[test]
fn stable_name_leaves_internal_hostnames_to_the_service() {
    let store = store();
    let at = || target(&store, &["int", "shop"]);
    let key = ServiceKey::new("shop", "web");
    store.apply(internal(web("1"), &["int.shop.lb.internal"], "10.96.0.1"));
    let announced = Announcement::Target(Target::Hostname(host("dr.example.")));
    set_override(&store, &key, LinkOverride { announced, uid: "n".into(), ..LinkOverride::default() }, None);
    assert_eq!(target(&store, &["web", "shop"]).as_deref(), Some("dr.example"));
    assert_eq!(at().as_deref(), Some("10.96.0.1"));
    store.gone(&key, "1", None, Instant::now());
    assert_eq!(at(), None);
    assert_eq!(target(&store, &["web", "shop"]).as_deref(), Some("dr.example"));
}
