use std::time::Instant;

use hickory_proto::rr::Name;
use serde_json::{Value, json};

use crate::model::hostname::Hostname;
use crate::model::link::{Link, LinkState, Port, Target};
use crate::sync::external_target::decision::{Actual, NextStep, Write, adoption, next_step, term_repair};
use crate::sync::external_target::desired::{
    Desired, IpTargets, current_target, service_differs, slice_differs,
};
use crate::sync::external_target::observed_object::*;
use crate::sync::external_target::orphans::orphan_of;
use crate::sync::source::selection::Selection;
use crate::sync::test_support;

/// The present time in these tests, in Unix seconds like the terms: a term far ahead of it would be ignored.
const NOW: u64 = 1_790_000_100;

/// Returns links with a hostname, with addresses, and without a Service.
fn links(now: Instant) -> [Link; 3] {
    let http = Port { name: Some("http".into()), protocol: "TCP".into(), port: 80, app_protocol: None };
    let link = Link { ports: [http].into(), ..Link::new(ServiceKey::new("default", "web"), "u") };
    let host = Target::Hostname(Hostname::from(&Name::from_ascii("a.example.").unwrap()));
    let addresses = ["10.0.0.1", "10.0.0.2"].map(|ip| ip.parse().unwrap());
    [
        Link { target: Some(host), ..link.clone() },
        Link { target: Some(Target::Addresses(addresses.into())), ..link.clone() },
        Link { state: LinkState::Gone(now), ..link },
    ]
}

fn service(value: Value) -> Service {
    serde_json::from_value(value).unwrap()
}

fn slice(value: Value) -> EndpointSlice {
    serde_json::from_value(value).unwrap()
}

/// Returns an object as the API server stores it.
fn stored(object: &impl serde::Serialize) -> Value {
    let mut value = serde_json::to_value(object).unwrap();
    value["metadata"]["namespace"] = "targets".into();
    value["metadata"]["uid"] = "0b4f3c1e-52a7-4d0e-9f57-2b1d6a1c9e11".into();
    value["metadata"]["resourceVersion"] = "123456789".into();
    value["metadata"]["creationTimestamp"] = "2026-11-01T00:00:00Z".into();
    value["metadata"]["managedFields"] = json!([{"manager": "kubectl"}, {"manager": "lb-linker"}]);
    value["metadata"]["annotations"][SERVICE_UID] = "u".into();
    value["metadata"]["annotations"][INSTANCE] = "own".into();
    value["metadata"]["annotations"][TERM] = "1790000000".into();
    value
}

/// Returns an object with each change alone and each pair of changes: paths and values; `null` removes a field.
fn variants(object: &Value, changes: &[(&[&str], Value)]) -> Vec<Value> {
    let changed = |mut object: Value, (path, value): &(&[&str], Value)| {
        let field = path.iter().fold(&mut object, |object, field| &mut object[*field]);
        *field = value.clone();
        object
    };
    let once = changes.iter().map(|change| changed(object.clone(), change));
    let twice =
        once.clone().flat_map(|object| changes.iter().map(move |change| changed(object.clone(), change)));
    once.chain(twice).collect()
}

/// Returns changes of the metadata of every object.
fn metadata_changes() -> Vec<(&'static [&'static str], Value)> {
    vec![
        (&["metadata", "uid"], Value::Null),
        (&["metadata", "uid"], json!("0B4F3C1E-52A7-4D0E-9F57-2B1D6A1C9E11")),
        (&["metadata", "resourceVersion"], json!("no number")),
        (&["metadata", "creationTimestamp"], Value::Null),
        (&["metadata", "deletionTimestamp"], json!("2026-11-02T00:00:00Z")),
        (&["metadata", "labels"], Value::Null),
        (&["metadata", "labels", "their"], json!("label")),
        (&["metadata", "labels", MANAGED_BY.0], json!("another")),
        (&["metadata", "labels", ORIGINAL_NAME], json!("api")),
        (&["metadata", "labels", ORIGINAL_NAMESPACE], json!("")),
        (&["metadata", "annotations"], Value::Null),
        (&["metadata", "annotations", "their"], json!("annotation")),
        (&["metadata", "annotations", HOSTNAME], json!("web.example.com,api.example.com")),
        (&["metadata", "annotations", SERVICE_UID], json!("another")),
        (&["metadata", "annotations", STABLE_NAME_UID], json!("another")),
        (&["metadata", "annotations", INSTANCE], json!("")),
        (&["metadata", "annotations", INSTANCE], json!("another")),
        (&["metadata", "annotations", TERM], json!("no number")),
        (&["metadata", "annotations", SOURCE], json!("default/web")),
        (&["metadata", "managedFields"], json!([{"manager": "kubectl"}])),
        (
            &["metadata", "ownerReferences"],
            json!([{"apiVersion": "v1", "kind": "A", "name": "a", "uid": "1"}]),
        ),
        (&["metadata", "finalizers"], json!(["their/finalizer"])),
    ]
}

/// Checks the fields that [`ObservedObject`] keeps of an object of either kind, and returns the restored object.
fn check_metadata(object: &Object) -> Object {
    let (observed, before) = (ObservedObject::of(object), object.meta());
    let after = observed.to_object();
    assert_eq!((&observed.id, observed.version()), (&object.id(), object.version()));
    assert!(observed.uid == *object.uid());
    assert_eq!(observed.labelled_for, link_of_labels(before));
    assert_eq!(observed.has_our_field_manager, has_our_field_manager(before));
    for key in ANNOTATIONS {
        let value = before.annotations.as_ref().and_then(|all| all.get(key));
        assert_eq!(observed.annotation(key), value.map(String::as_str));
    }
    assert_eq!((after.id(), after.uid(), after.version()), (object.id(), object.uid(), object.version()));
    assert_eq!(after.meta().creation_timestamp, before.creation_timestamp);
    assert_eq!(after.meta().deletion_timestamp, before.deletion_timestamp);
    let orphan = |metadata| orphan_of(metadata, &Selection::default(), Some("own"));
    assert_eq!(orphan(after.meta()), orphan(before));
    after
}

fn decisions(link: &Link, actual: Actual<'_>, now: Instant) -> (NextStep, Option<Write>, Option<Write>) {
    let policy = test_support::policy(Some("own"));
    let repair = term_repair(link, actual, &policy, 7, NOW);
    (next_step(link, actual, &policy, now), adoption(link, actual, &policy), repair)
}

#[test]
fn observed_service_is_enough_for_every_decision() {
    let now = Instant::now();
    let links = links(now);
    let mut changes = metadata_changes();
    changes.extend([
        (&["spec", "type"][..], json!("ClusterIP")),
        (&["spec", "type"], Value::Null),
        (&["spec", "externalName"], json!("a.example.")),
        (&["spec", "externalName"], Value::Null),
        (&["spec", "clusterIP"], json!("10.96.0.7")),
        (&["spec", "clusterIP"], json!("")),
        (&["spec", "ports"], json!([{"name": "", "port": 80}])),
        (&["spec", "selector"], json!({"app": "web"})),
        (&["status"], json!({"loadBalancer": {"ingress": [{"ip": "10.0.0.3"}]}})),
    ]);
    for made in &links[..2] {
        let made = Desired::first(made, IpTargets::Headless).service.unwrap();
        for value in variants(&stored(&made), &changes) {
            let before = service(value.clone());
            let after = check_metadata(&before.clone().into());
            let after = after.as_service().unwrap();
            assert_eq!(after.spec, before.spec, "{value}");
            assert_eq!(current_target(after, [].iter()), current_target(&before, [].iter()), "{value}");
            assert_eq!(service_differs(after, &made), service_differs(&before, &made), "{value}");
            for link in &links {
                let of = |named| decisions(link, Actual { named: Some(named), ..Actual::default() }, now);
                assert_eq!(of(after), of(&before), "{value}");
                let of = |other| {
                    let actual = Actual { other_services: &[other], ..Actual::default() };
                    decisions(link, actual, now)
                };
                assert_eq!(of(after), of(&before), "{value}");
            }
        }
    }
}

#[test]
fn observed_slice_is_enough_for_every_decision() {
    let now = Instant::now();
    let links = links(now);
    let made = Desired::first(&links[1], IpTargets::Headless);
    let [made] = &made.slices[..] else { panic!("{:?}", made.slices) };
    let mut changes = metadata_changes();
    changes.extend([
        (&["metadata", "labels", SERVICE_NAME][..], json!("another")),
        (&["metadata", "labels", SLICE_MANAGED_BY.0], json!("another")),
        (&["metadata", "name"], json!("another")),
        (&["addressType"], json!("IPv6")),
        (&["endpoints"], Value::Null),
        (&["endpoints"], json!([{"addresses": ["10.0.0.1"], "conditions": {"ready": false}}, {}])),
        (&["ports"], Value::Null),
        (&["ports"], json!([{"name": "web", "appProtocol": "http"}, {"port": -1, "protocol": "UDP"}])),
    ]);
    for value in variants(&stored(made), &changes) {
        let before = slice(value.clone());
        let after = check_metadata(&before.clone().into());
        let after = after.as_slice().unwrap();
        assert_eq!(after.address_type, before.address_type, "{value}");
        assert_eq!((&after.endpoints, &after.ports), (&before.endpoints, &before.ports), "{value}");
        assert_eq!(slice_differs(after, made), slice_differs(&before, made), "{value}");
        for link in &links {
            let of = |slice| decisions(link, Actual { slices: &[slice], ..Actual::default() }, now);
            assert_eq!(of(after), of(&before), "{value}");
            let of = |slice| decisions(link, Actual { foreign_slices: &[slice], ..Actual::default() }, now);
            assert_eq!(of(after), of(&before), "{value}");
        }
    }
}

#[test]
fn observed_object_is_small_and_drops_what_is_never_read() {
    assert!(size_of::<ObservedObject>() <= 160, "{}", size_of::<ObservedObject>());
    let large = "x".repeat(100_000);
    let value = json!({"metadata": {"name": "web", "labels": {"their": large},
        "annotations": {"their.example/notes": large, "linker.hsj.com/unknown": large},
        "finalizers": [large], "managedFields": [{"manager": large}]}});
    let observed = ObservedObject::of(&service(value).into());
    assert!(format!("{observed:?}").len() < 1000);
    assert!(observed.values.is_empty());
    let metadata = observed.to_object().meta().clone();
    assert!(metadata.labels.unwrap().is_empty() && metadata.annotations.unwrap().is_empty());
}
