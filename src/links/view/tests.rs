use std::sync::Arc;

use hickory_proto::rr::Name;

use super::*;
use crate::dns::plugins::lb_linker::LinkZone;
use crate::model::hostname::Hostname;
use crate::model::link::{Annotations, Ingress, ObservedService, Target};
use crate::model::link_override::{Announcement, LinkOverride};
use crate::model::owner::{Claims, Owner, Source, Zone};
use crate::model::service_key::ServiceKey;
use crate::store::OnGone;
use crate::sync::source::service_links::{end_override, set_override};

const ZONE: &str = "lb.internal.";

fn zone() -> Name {
    Name::from_ascii(ZONE).unwrap()
}

fn observed(namespace: &str, name: &str, hostname: Option<&str>) -> ObservedService {
    let hostnames =
        hostname.map(|name| Hostname::from(&Name::from_ascii(name).unwrap())).into_iter().collect();
    ObservedService {
        key: ServiceKey::new(namespace, name),
        uid: format!("{namespace}/{name}").as_str().into(),
        created: Some(1_700_000_000),
        resource_version: None,
        ingress: Ingress { hostnames, addresses: Vec::new() },
        ports: Arc::default(),
        annotations: Annotations::default(),
        refused: false,
        has_finalizer: false,
        persisted: None,
    }
}

fn all(store: &Store) -> Vec<LinkView> {
    views(store, "external-targets", &LinkFilter::default())
}

fn state_and_reason(link: &LinkView) -> (ViewState, Option<String>) {
    (link.state, link.reason.as_deref().map(str::to_owned))
}

#[test]
fn ready_link_has_its_names_and_its_target() {
    let store = Store::new(OnGone::Kept).with_zones([&zone()]);
    let mut service = observed("shop", "web", Some("a.example."));
    service.annotations.hostnames = [Arc::from("www.shop.lb.internal")].into();
    store.apply(service);
    store.apply(observed("default", "db", None));
    let expected = LinkView {
        namespace: "shop".to_owned(),
        service: "web".to_owned(),
        dns_names: ["web-shop.lb.internal", "web.shop.lb.internal", "www.shop.lb.internal"]
            .map(str::to_owned)
            .into(),
        target: Some("a.example".to_owned()),
        external_target: Some("external-targets/web-shop-ext".to_owned()),
        state: ViewState::Ready,
        reason: None,
        overridden_by: None,
        created: Timestamp::from_second(1_700_000_000).ok(),
        history: None,
    };
    let links = all(&store);
    assert_eq!(links[1], expected);
    assert_eq!((links[0].state, &links[0].target), (ViewState::Pending, &None));
    assert_eq!(links[0].external_target, None, "none was ever written");
    let key = ServiceKey::new(&links[0].namespace, &links[0].service);
    store.set_owner("db-default-ext", Some(&key), &[]);
    assert!(all(&store)[0].external_target.is_some(), "an earlier process has written it");
    store.set_owner("db-default-ext", None, &[]);
    let in_shop = LinkFilter { namespace: Some("shop".to_owned()), service: Some("web".to_owned()) };
    assert_eq!(views(&store, "external-targets", &in_shop), [expected]);
    let of = |namespace: Option<&str>, name: &str| {
        let (namespace, service) = (namespace.map(str::to_owned), Some(name.to_owned()));
        let found = views(&store, "external-targets", &LinkFilter { namespace, service });
        found.into_iter().map(|link| link.service).collect::<Vec<_>>()
    };
    for name in ["web-shop.lb.internal", "WEB.shop.lb.internal.", "www.shop.lb.internal"] {
        assert_eq!(
            (of(None, name), of(Some("shop"), name)),
            (vec!["web".to_owned()], of(None, "web")),
            "{name}"
        );
        assert!(of(Some("default"), name).is_empty(), "{name}");
    }
    assert!(of(None, "absent-shop.lb.internal").is_empty());
    let absent = LinkFilter { service: Some("we".to_owned()), ..LinkFilter::default() };
    assert_eq!(views(&store, "external-targets", &absent), []);
}

#[test]
fn state_tells_why_a_target_is_missing_or_old() {
    let store = Store::new(OnGone::Kept).with_zones([&zone()]);
    let states = || all(&store).iter().map(state_and_reason).collect::<Vec<_>>();
    store.apply(ObservedService { refused: true, ..observed("shop", "web", None) });
    let refused = "the target that the Service names isn't allowed";
    assert_eq!(states(), [(ViewState::Refused, Some(refused.to_owned()))]);
    store.apply(observed("shop", "web", Some("a.example.")));
    assert_eq!(states(), [(ViewState::Ready, None)]);
    store.apply(observed("shop", "web", None));
    assert_eq!(states(), [(ViewState::Kept, Some("the Service's status is blank".to_owned()))]);
    store.apply(ObservedService { refused: true, ..observed("shop", "web", None) });
    assert_eq!(states(), [(ViewState::Kept, Some(refused.to_owned()))]);
    store.gone(&ServiceKey::new("shop", "web"), "shop/web", None, std::time::Instant::now());
    assert_eq!(
        states(),
        [(
            ViewState::Gone,
            Some(
                "the Service is gone, isn't a load balancer any more, or isn't selected any more".to_owned()
            )
        )]
    );
}

#[test]
fn name_of_another_link_is_left_out_and_reported() {
    let store = Store::new(OnGone::Kept).with_zones([&zone()]);
    store.apply(ObservedService { created: Some(1_600_000_000), ..observed("z", "x-y", Some("a.example.")) });
    store.apply(observed("y-z", "x", Some("b.example.")));
    let links = all(&store);
    assert_eq!(links[0].dns_names, ["x.y-z.lb.internal"]);
    assert_eq!(
        state_and_reason(&links[0]),
        (ViewState::Conflict, Some("x-y-z.lb.internal belongs to link z/x-y".to_owned()))
    );
    assert_eq!(links[1].dns_names, ["x-y-z.lb.internal", "x-y.z.lb.internal"]);
    assert_eq!(links[1].state, ViewState::Ready);
    let shop = [Arc::from("shop.lb.internal")];
    for (name, created) in [("old", 1_600_000_000), ("young", 1_700_000_000)] {
        let mut service =
            ObservedService { created: Some(created), ..observed("shop", name, Some("c.example.")) };
        service.annotations.hostnames = shop.clone().into();
        store.apply(service);
    }
    let young = all(&store).into_iter().find(|link| link.service == "young").unwrap();
    let expected = "shop.lb.internal belongs to link shop/old";
    assert_eq!(state_and_reason(&young), (ViewState::Conflict, Some(expected.to_owned())));
}

#[test]
fn name_of_an_ingress_is_reported_as_such() {
    let sources = vec![Source::INGRESSES, Source::SERVICES];
    let store = Store::new(OnGone::Kept).with_zones([Zone { sources, ..(&zone()).into() }]);
    let owner = Owner { source: Source::INGRESSES, key: ServiceKey::new("shop", "x.lb.internal") };
    let claims = Claims { created: 1, names: ["x.lb.internal".into()].into(), ..Claims::default() };
    let link = Link::new(ServiceKey::new("shop", "i1.ingress"), "i1");
    store.observe(&owner, &claims, &Arc::new(link), None);
    let mut service =
        ObservedService { created: Some(1_700_000_000), ..observed("a", "web", Some("c.example.")) };
    service.annotations.hostnames = [Arc::from("x.lb.internal")].into();
    store.apply(service);
    let expected = "x.lb.internal belongs to Ingress shop/i1";
    assert_eq!(state_and_reason(&all(&store)[0]), (ViewState::Conflict, Some(expected.to_owned())));
}

#[test]
fn reserved_name_is_left_out_and_finds_no_link() {
    let apex = |label: &str| LinkZone::new(zone(), label);
    let store = Store::new(OnGone::Kept).with_zones([&apex("dns")]);
    store.apply(observed("dns", "web", Some("a.example.")));
    let found = |store: &Store| {
        let service = Some("web.dns.lb.internal".to_owned());
        views(store, "external-targets", &LinkFilter { service, ..LinkFilter::default() }).len()
    };
    assert_eq!((all(&store)[0].dns_names.join(" "), found(&store)), ("web-dns.lb.internal".to_owned(), 0));
    assert_eq!(all(&store)[0].state, ViewState::Ready);
    store.set_zones([&apex("infra")]);
    let both = "web-dns.lb.internal web.dns.lb.internal".to_owned();
    assert_eq!((all(&store)[0].dns_names.join(" "), found(&store)), (both, 1));
}

#[test]
fn hashed_name_says_how_the_free_name_is_got() {
    let store = Store::new(OnGone::Kept).with_zones([&zone()]);
    let hashed = names::external_target_hashed("y-z", "x", 8);
    store.set_owner(&hashed, Some(&ServiceKey::new("y-z", "x")), &[]);
    store.apply(observed("y-z", "x", Some("b.example.")));
    let link = all(&store).swap_remove(0);
    let expected = format!(
        "x-y-z-ext is free: the link gets it, and the name x-y-z.lb.internal, once its external target {hashed} is \
         deleted; point Pods at x.y-z.lb.internal first"
    );
    assert_eq!(state_and_reason(&link), (ViewState::Conflict, Some(expected)));
    assert_eq!(link.dns_names, ["x.y-z.lb.internal"]);
    store.set_owner(&hashed, None, &[]);
    assert_eq!(state_and_reason(&all(&store)[0]), (ViewState::Ready, None));
}

#[test]
fn overridden_link_names_its_stable_name_and_reason() {
    let store = Store::new(OnGone::Kept).with_zones([&zone()]);
    let key = ServiceKey::new("shop", "web");
    let shown = || {
        let link = all(&store).swap_remove(0);
        let by = link.overridden_by.as_ref().map(ToString::to_string).unwrap_or_default();
        (by, link.state, link.reason.map(|reason| reason.to_string()).unwrap_or_default())
    };
    set_override(&store, &key, LinkOverride::default(), None);
    let waiting = "the StableName announces no target yet".to_owned();
    assert_eq!(shown(), ("StableName shop/web".to_owned(), ViewState::Pending, waiting));
    // The Service keeps the link until the StableName has a target.
    store.apply(observed("shop", "web", Some("a.example.")));
    assert_eq!(shown(), (String::new(), ViewState::Ready, String::new()));
    let host = Hostname::from(&Name::from_ascii("b.example.").unwrap());
    let announced = Announcement::Target(Target::Hostname(host));
    let link_override = LinkOverride { announced, source: "busan".into(), ..LinkOverride::default() };
    set_override(&store, &key, link_override, None);
    let by = "StableName shop/web, source busan".to_owned();
    assert_eq!(shown(), (by, ViewState::Ready, String::new()));
    let withdrawn = LinkOverride { announced: Announcement::Withdrawn, ..LinkOverride::default() };
    set_override(&store, &key, withdrawn.clone(), None);
    let reason = "the target of the StableName is withdrawn".to_owned();
    assert_eq!(shown(), ("StableName shop/web".to_owned(), ViewState::Pending, reason));
    assert!(all(&store)[0].external_target.is_some(), "it stays for --delete-delay");
    set_override(&store, &key, LinkOverride { is_provisional: true, ..withdrawn.clone() }, None);
    let reason = "its StableName hasn't been read, and its external target has no target".to_owned();
    assert_eq!(shown(), ("StableName shop/web".to_owned(), ViewState::Pending, reason));
    set_override(&store, &key, LinkOverride { refused: true, ..withdrawn }, None);
    let reason = "the target of the StableName isn't allowed".to_owned();
    assert_eq!(shown(), ("StableName shop/web".to_owned(), ViewState::Refused, reason));
}

#[test]
fn deleted_stable_name_has_a_reason_of_its_own() {
    let store = Store::new(OnGone::Kept).with_zones([&zone()]);
    let key = ServiceKey::new("shop", "web");
    let host = Hostname::from(&Name::from_ascii("b.example.").unwrap());
    let announced = Announcement::Target(Target::Hostname(host));
    set_override(&store, &key, LinkOverride { announced, uid: "1".into(), ..LinkOverride::default() }, None);
    end_override(&store, &key, None, std::time::Instant::now());
    let shown = all(&store).iter().map(state_and_reason).collect::<Vec<_>>();
    let reason = "the Service or the StableName is gone".to_owned();
    assert_eq!(shown, [(ViewState::Gone, Some(reason))]);
}

#[test]
fn changes_are_removed_new_and_changed_links() {
    let links = |services: &[(&str, &str)]| {
        let store = Store::new(OnGone::Kept).with_zones([&zone()]);
        for (name, hostname) in services {
            store.apply(observed("shop", name, Some(hostname)));
        }
        all(&store)
    };
    let before = links(&[("a", "a.example."), ("b", "b.example."), ("c", "c.example.")]);
    let after = links(&[("a", "a.example."), ("c", "new.example."), ("d", "d.example.")]);
    assert_eq!(changes(&before, &before), []);
    assert_eq!(changes(&before, &after), [before[1].removed(), after[1].clone(), after[2].clone()]);
    assert_eq!(changes(&[], &after), after);
}
