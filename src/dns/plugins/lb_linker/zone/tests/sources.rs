//! Zones with names of other sources than load balancers.

use super::*;
use crate::model::owner::{Claims, Owner};
use crate::store::fallback::Fallback;

fn zone_of(sources: &[Source]) -> Zone {
    let options = ZoneOptions { sources: sources.to_vec(), ..Default::default() };
    Zone::with_options(&name("lb.internal."), options).unwrap()
}

/// Returns a store with a load balancer `default/web` and an Ingress with the host `app.default.lb.internal`.
fn store_for(zone: &Zone) -> Store {
    let store = Store::new(OnGone::Kept).with_zones([zone.configured().clone()]);
    let custom = asking(&["custom.default.lb.internal"], link("default", "web", &[], &["192.0.2.1"]));
    store.replace(None, [custom], vec![], &Default::default());
    store.set_known(Input::Services);
    let app = "app.default.lb.internal";
    let owner = Owner { source: Source::INGRESSES, key: ServiceKey::new("default", app) };
    let target = Some(Target::Addresses(ips(&["192.0.2.2"]).into()));
    let target = Arc::new(Link { target, ..Link::new(ServiceKey::new("default", "app.ingress"), "") });
    store.observe(
        &owner,
        &Claims { created: 0, names: [app.into()].into(), ..Default::default() },
        &target,
        None,
    );
    store
}

fn rcode(zone: &Zone, store: &Store, below: &str) -> (ResponseCode, usize, bool) {
    let name = name(&format!("{below}.lb.internal."));
    let answer = zone.answer(store, &name, &zone.relative(&name).unwrap(), RecordType::A);
    (answer.rcode, answer.answers.len(), answer.ede.is_some())
}

const FOUND: (ResponseCode, usize, bool) = (ResponseCode::NoError, 1, false);
const ABSENT: (ResponseCode, usize, bool) = (ResponseCode::NXDomain, 0, false);

#[test]
fn unknown_names_arent_denied_before_all_sources_are_listed() {
    let zone = zone_of(&[Source::SERVICES, Source::INGRESSES]);
    let store = store_for(&zone);
    for known in ["web.default", "web-default", "custom.default", "app.default"] {
        assert_eq!(rcode(&zone, &store, known), FOUND, "{known}");
    }
    for unknown in ["absent.default", "default", "x.app.default"] {
        assert_eq!(rcode(&zone, &store, unknown), (ResponseCode::ServFail, 0, true), "{unknown}");
    }
    store.set_listed(&Source::INGRESSES, &[zone.configured().clone()]);
    assert_eq!(rcode(&zone, &store, "absent.default"), ABSENT);
    assert_eq!(rcode(&zone, &store, "default"), (ResponseCode::NoError, 0, false));
}

#[test]
fn names_that_an_unlisted_source_may_have_are_servfail() {
    const UNLISTED: (ResponseCode, usize, bool) = (ResponseCode::ServFail, 0, true);
    for (sources, custom, app) in [
        ([Source::SERVICES, Source::INGRESSES], FOUND, FOUND),
        ([Source::INGRESSES, Source::SERVICES], UNLISTED, FOUND),
    ] {
        let zone = zone_of(&sources);
        let store = store_for(&zone);
        store.apply(asking(&["*.default.lb.internal"], link("default", "wild", &[], &["192.0.2.3"])));
        let check = |wildcard, custom| {
            for (name, expected) in [
                ("web.default", FOUND),
                ("web-default", FOUND),
                ("custom.default", custom),
                ("app.default", app),
                ("x.default", wildcard),
            ] {
                assert_eq!(rcode(&zone, &store, name), expected, "{name} with {sources:?}");
            }
        };
        check(UNLISTED, custom);
        store.set_listed(&Source::INGRESSES, &[zone.configured().clone()]);
        check(FOUND, FOUND);
    }
}

#[test]
fn names_of_k8s_gateway_wait_for_sources_before_their_own() {
    const UNLISTED: (ResponseCode, usize, bool) = (ResponseCode::ServFail, 0, true);
    for (sources, web) in
        [([Source::SERVICES, Source::INGRESSES], FOUND), ([Source::INGRESSES, Source::SERVICES], UNLISTED)]
    {
        let options = ZoneOptions {
            apex: "dns1.kube-system".to_owned(),
            sources: sources.to_vec(),
            k8s_gateway: Some(K8sGateway::default()),
            ..Default::default()
        };
        let zone = Zone::with_options(&name("lb.internal."), options).unwrap();
        let store = Store::new(OnGone::Kept).with_zones([zone.configured().clone()]);
        let web_itself = asking(&["web.default.lb.internal"], link("default", "web", &[], &["192.0.2.1"]));
        store.replace(None, [web_itself], vec![], &Default::default());
        assert_eq!(rcode(&zone, &store, "web.default"), UNLISTED, "another load balancer may be older");
        store.set_known(Input::Services);
        assert_eq!(rcode(&zone, &store, "web.default"), web, "{sources:?}");
        assert_eq!(rcode(&zone, &store, "web-default"), UNLISTED);
        store.set_listed(&Source::INGRESSES, &[zone.configured().clone()]);
        assert_eq!(rcode(&zone, &store, "web.default"), FOUND);
        assert_eq!(rcode(&zone, &store, "web-default"), ABSENT);
    }
}

#[test]
fn zone_has_only_names_of_its_sources() {
    for (sources, service, ingress) in [
        (&[Source::INGRESSES][..], ABSENT, FOUND),
        (&[Source::SERVICES], FOUND, ABSENT),
        (&[Source::INGRESSES, Source::SERVICES], FOUND, FOUND),
    ] {
        let zone = zone_of(sources);
        let store = store_for(&zone);
        store.set_listed(&Source::INGRESSES, &[zone.configured().clone()]);
        for name in ["web.default", "web-default", "custom.default"] {
            assert_eq!(rcode(&zone, &store, name), service, "{name} with {sources:?}");
        }
        assert_eq!(rcode(&zone, &store, "app.default"), ingress, "{sources:?}");
    }
}

#[test]
fn snapshot_answers_for_an_unlisted_source_alone() {
    let zone = zone_of(&[Source::SERVICES, Source::INGRESSES]);
    let saved = store_for(&zone);
    saved.apply(link("default", "gone", &[], &["192.0.2.9"]));
    let store = Store::new(OnGone::Kept).with_zones([zone.configured().clone()]);
    let fallback = Fallback {
        store: Arc::new(saved),
        taken: jiff::Timestamp::UNIX_EPOCH,
        age_then: std::time::Duration::ZERO,
        since: std::time::Instant::now(),
        reason: parking_lot::Mutex::new("".into()),
    };
    assert!(store.set_fallback(Some(Arc::new(fallback))));
    store.set_known(Input::Services);
    assert_eq!(rcode(&zone, &store, "app.default"), (ResponseCode::NoError, 1, true));
    for unknown in ["gone.default", "custom.default", "absent.default"] {
        assert_eq!(rcode(&zone, &store, unknown), (ResponseCode::ServFail, 0, true), "{unknown}");
    }
    store.set_listed(&Source::INGRESSES, &[zone.configured().clone()]);
    for absent in ["app.default", "gone.default"] {
        assert_eq!(rcode(&zone, &store, absent), ABSENT, "{absent}");
    }
}
