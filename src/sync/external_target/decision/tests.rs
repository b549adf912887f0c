use std::net::IpAddr;

use hickory_proto::rr::Name;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

use crate::model::hostname::Hostname;
use crate::model::link::{LinkState, Port, Target};
use crate::model::link_override::{Announcement, LinkOverride, OverriddenLink};
use crate::model::service_key::ServiceKey;
use crate::sync::election::term::TERM;
use crate::sync::external_target::decision::*;
use crate::sync::external_target::desired::{Stamp, merge_patch};
use crate::sync::k8s::labels::{ORIGINAL_NAME, SERVICE_UID, STABLE_NAME_UID};

const DELAY: Duration = Duration::from_secs(600);

fn policy() -> SyncPolicy {
    SyncPolicy {
        sync: SyncMode::On,
        on_delete: OnDelete::Delete,
        delete_delay: DELAY,
        withdrawal_delay: DELAY,
        finalizer: false,
        tombstone: "deleted.lb.internal".to_owned(),
        max_deletes: MaxDeletes::Unlimited,
        ip_targets: IpTargets::Headless,
        prune: false,
        instance: None,
    }
}

fn link(target: Option<Target>) -> Link {
    let http = Port { name: Some("http".into()), protocol: "TCP".into(), port: 80, app_protocol: None };
    Link { target, ports: [http].into(), ..Link::new(ServiceKey::new("default", "web"), "u") }
}

fn host(name: &str) -> Link {
    link(Some(Target::Hostname(Hostname::from(&Name::from_ascii(name).unwrap()))))
}

fn ips(ips: &[&str]) -> Link {
    link(Some(Target::Addresses(ips.iter().map(|ip| ip.parse::<IpAddr>().unwrap()).collect())))
}

fn gone(since: Instant) -> Link {
    Link { state: LinkState::Gone(since), ..link(None) }
}

/// Returns an object as the API server stores it.
fn stored<K: serde::de::DeserializeOwned + serde::Serialize>(object: &K) -> K {
    let mut value = serde_json::to_value(object).unwrap();
    value["metadata"]["uid"] = "o".into();
    value["metadata"]["resourceVersion"] = "7".into();
    value["metadata"]["managedFields"] = json!([{"manager": "lb-linker"}]);
    serde_json::from_value(value).unwrap()
}

fn service(link: &Link, policy: &SyncPolicy) -> Service {
    let desired = Desired::first(link, policy.ip_targets);
    stored(&desired.service.unwrap())
}

fn slices(link: &Link) -> Vec<EndpointSlice> {
    let desired = Desired::first(link, IpTargets::Headless);
    desired.slices.iter().map(stored).collect()
}

fn object(host_name: &str) -> Service {
    service(&host(host_name), &policy())
}

fn step(link: &Link, named: Option<&Service>) -> NextStep {
    next_step(link, Actual { named, ..Default::default() }, &policy(), Instant::now())
}

/// Returns a step in short form: verb, kind, name.
fn show(step: NextStep) -> String {
    match step {
        NextStep::Write(write) => {
            let id = write.id();
            format!("{} {} {}", write.verb(), id.kind, id.name)
        }
        NextStep::Conflict { why, .. } => format!("conflict: {why}"),
        other => format!("{other:?}"),
    }
}

#[test]
fn missing_object_is_created_with_labels_and_target() {
    let NextStep::Write(Write::Create(made)) = step(&host("a.example."), None) else { panic!() };
    assert_eq!(
        serde_json::to_value(made).unwrap(),
        json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {"name": "web-default-ext", "labels": {
                "app.kubernetes.io/managed-by": "lb-linker-operator",
                "original-service-name": "web", "original-service-namespace": "default"},
                "annotations": {"linker.hsj.com/service-uid": "u"}},
            "spec": {"type": "ExternalName", "externalName": "a.example"},
        })
    );
}

#[test]
fn equal_objects_cause_no_write() {
    assert_eq!(step(&host("a.example."), Some(&object("a.example."))), NextStep::Done);
    let mut dotted = object("a.example.");
    dotted.spec.external_name = Some("a.example.".into());
    assert_eq!(step(&host("a.example."), Some(&dotted)), NextStep::Done);
    assert_eq!(step(&link(None), None), NextStep::Done, "pending");
    assert_eq!(step(&link(None), Some(&object("old.example."))), NextStep::Done, "last target stays");
}

#[test]
fn any_difference_is_patched_with_a_precondition() {
    let drifted = [
        json!({"externalName": "b.example"}),
        json!({"selector": {"app": "web"}}),
        json!({"clusterIP": "10.0.0.1"}),
        json!({"ports": [{"port": 80}]}),
        json!({"type": "ClusterIP"}),
    ];
    for drift in drifted {
        let mut object = serde_json::to_value(object("a.example.")).unwrap();
        for (field, value) in drift.as_object().unwrap() {
            object["spec"][field] = value.clone();
        }
        let object: Service = serde_json::from_value(object).unwrap();
        let NextStep::Write(Write::Change { desired, precondition }) =
            step(&host("a.example."), Some(&object))
        else {
            panic!("{drift}")
        };
        assert_eq!(
            merge_patch(&desired, &precondition, &Stamp::default()),
            json!({
                "metadata": {"uid": "o", "resourceVersion": "7", "labels": {
                    "app.kubernetes.io/managed-by": "lb-linker-operator",
                    "original-service-name": "web", "original-service-namespace": "default"},
                    "annotations": {"linker.hsj.com/hostname": null, "linker.hsj.com/service-uid": "u",
                        "linker.hsj.com/stable-name-uid": null}},
                "spec": {"type": "ExternalName", "externalName": "a.example",
                    "clusterIP": null, "clusterIPs": null, "ports": null, "selector": null,
                    "loadBalancerSourceRanges": null},
            })
        );
    }
}

#[test]
fn foreign_object_is_left_alone_and_reported() {
    let relabelled = |label: &str, value: Value| {
        let mut object = serde_json::to_value(object("a.example.")).unwrap();
        object["metadata"]["labels"][label] = value;
        serde_json::from_value::<Service>(object).unwrap()
    };
    let by_hand = |metadata: Value, spec: Value| {
        serde_json::from_value::<Service>(json!({"metadata": metadata, "spec": spec})).unwrap()
    };
    let owned = json!([{"apiVersion": "v1", "kind": "Secret", "name": "theirs", "uid": "1"}]);
    for (object, reason) in [
        (by_hand(json!({}), json!({"type": "ClusterIP"})), "doesn't carry lb-linker's labels"),
        (
            by_hand(
                json!({"managedFields": [{"manager": "lb-linker"}]}),
                json!({"type": "LoadBalancer", "clusterIP": "10.0.0.1"}),
            ),
            "doesn't carry lb-linker's labels",
        ),
        (
            by_hand(json!({"ownerReferences": owned}), json!({"type": "ExternalName"})),
            "Secret theirs owns it",
        ),
        (by_hand(json!({"annotations": {SOURCE: "web"}}), json!({"type": "ExternalName"})), "follows"),
        (relabelled(MANAGED_BY.0, "helm".into()), "\"helm\""),
        (relabelled(ORIGINAL_NAME, "other".into()), "default/other"),
    ] {
        let message = show(step(&host("b.example."), Some(&object)));
        assert!(message.starts_with("conflict: ") && message.contains(reason), "{message}");
        assert_eq!(step(&gone(Instant::now()), Some(&object)), NextStep::Forget);
    }
}

#[test]
fn hand_made_service_is_adopted_and_lost_labels_are_restored() {
    let by_hand = json!({
        "metadata": {"name": "web-default-ext", "uid": "o", "resourceVersion": "7", "labels": {"team": "a"}},
        "spec": {"type": "ExternalName", "externalName": "a.example"},
    });
    let mut stripped = by_hand.clone();
    stripped["spec"] = json!({"type": "ClusterIP", "clusterIP": "None", "ports": [{"port": 80}]});
    stripped["metadata"]["managedFields"] = json!([{"manager": "lb-linker"}]);
    let mut half = by_hand.clone();
    half["metadata"]["labels"] = json!({MANAGED_BY.0: MANAGED_BY.1});
    for object in [by_hand, stripped, half] {
        let object: Service = serde_json::from_value(object).unwrap();
        let message = show(step(&host("a.example."), Some(&object)));
        assert!(message.contains("patch"), "{message}");
        let mut terminating = object;
        terminating.metadata.deletion_timestamp = Some(Time(jiff::Timestamp::UNIX_EPOCH));
        assert_eq!(step(&host("a.example."), Some(&terminating)), NextStep::Done, "being deleted");
    }
}

#[test]
fn custom_hostnames_are_recorded_on_the_external_target() {
    let named = Link { hostnames: ["a.example".into(), "*.b.example".into()].into(), ..host("t.example.") };
    let noted = service(&named, &policy());
    assert_eq!(noted.annotation("linker.hsj.com/hostname"), Some("a.example,*.b.example"));
    assert_eq!(step(&named, Some(&noted)), NextStep::Done);
    let NextStep::Write(Write::Change { desired, precondition }) = step(&host("t.example."), Some(&noted))
    else {
        panic!("the annotation must be removed")
    };
    let patch = merge_patch(&desired, &precondition, &Stamp::default());
    assert_eq!(patch["metadata"]["annotations"]["linker.hsj.com/hostname"], Value::Null);
}

#[test]
fn missing_uid_annotation_causes_no_write_but_another_uid_does() {
    let link = host("a.example.");
    let mut earlier = service(&link, &policy());
    earlier.metadata.annotations = None;
    assert_eq!(step(&link, Some(&earlier)), NextStep::Done);
    let recreated = Link { uid: "v".into(), ..link.clone() };
    let message = show(step(&recreated, Some(&service(&link, &policy()))));
    assert_eq!(message, "patch Service web-default-ext", "the target now belongs to the recreated Service");
}

/// Returns the link, overridden by a StableName that uses a Service with this uid.
fn overridden(link: Link, service_uid: &str) -> Link {
    let announced = link.target.clone().map_or(Announcement::Withdrawn, Announcement::Target);
    let by = LinkOverride {
        uid: "sn".into(),
        announced,
        service_uid: service_uid.into(),
        ..LinkOverride::default()
    };
    Link { overridden: Some(OverriddenLink { by, service_link: None }.into()), ..link }
}

#[test]
fn external_target_of_an_overridden_link_records_both_uids() {
    let (own, from_dr) = (host("a.example."), overridden(host("a.example."), "dr"));
    let fixed = overridden(host("a.example."), "");
    let recorded = |link: &Link| {
        let object = service(link, &policy());
        assert_eq!(step(link, Some(&object)), NextStep::Done);
        [SERVICE_UID, STABLE_NAME_UID].map(|key| object.annotation(key).map(str::to_owned))
    };
    assert_eq!(recorded(&own), [Some("u".to_owned()), None]);
    assert_eq!(recorded(&from_dr), ["dr", "sn"].map(|uid| Some(uid.to_owned())));
    assert_eq!(recorded(&fixed), [None, Some("sn".to_owned())]);
    for (before, after, uids) in [
        (&own, &from_dr, [json!("dr"), json!("sn")]),
        (&from_dr, &own, [json!("u"), Value::Null]),
        (&from_dr, &fixed, [Value::Null, json!("sn")]),
        (&fixed, &from_dr, [json!("dr"), json!("sn")]),
        (&fixed, &own, [json!("u"), Value::Null]),
    ] {
        let NextStep::Write(Write::Change { desired, precondition }) =
            step(after, Some(&service(before, &policy())))
        else {
            panic!("{uids:?} must be written")
        };
        let patch = merge_patch(&desired, &precondition, &Stamp::default());
        let annotations = &patch["metadata"]["annotations"];
        assert_eq!([SERVICE_UID, STABLE_NAME_UID].map(|key| annotations[key].clone()), uids);
    }
}

#[test]
fn finalizer_is_taken_off_the_service_of_an_overridden_link() {
    let policy = SyncPolicy { finalizer: true, ..policy() };
    let now = Instant::now();
    let (overridden, object) = (overridden(host("a.example."), "dr"), object("a.example."));
    let bound = Link { has_finalizer: true, ..overridden.clone() };
    let object = Service { metadata: service(&overridden, &policy).metadata, ..object };
    let step = |link: &Link, named| {
        let actual = Actual { named, ..Default::default() };
        next_step(link, actual, &policy, now)
    };
    let service = ServiceKey::new("default", "web");
    let removed = NextStep::Write(Write::Finalizer { service, uid: "u".to_owned().into(), add: false });
    assert_eq!(step(&bound, Some(&object)), removed);
    assert_eq!(step(&overridden, Some(&object)), NextStep::Done, "no finalizer is added");
    assert_eq!(show(step(&bound, None)), "create Service web-default-ext", "the target comes first");
    // Neither the delay of a withdrawn target nor a foreign object holds the Service.
    let withdrawn = Link { target: None, state: LinkState::Recreated(now), ..bound.clone() };
    assert_eq!(step(&withdrawn, Some(&object)), removed);
    assert_eq!(
        step(&Link { has_finalizer: false, ..withdrawn }, Some(&object)),
        NextStep::Wait(now + DELAY),
        "the external target is treated like that of a deleted Service"
    );
    let mut foreign = object.clone();
    foreign.metadata.labels = None;
    foreign.spec.type_ = Some("ClusterIP".to_owned());
    assert_eq!(step(&bound, Some(&foreign)), removed);
    assert!(matches!(step(&overridden, Some(&foreign)), NextStep::Conflict { .. }));
    let unknown = Link { uid: "".into(), ..bound };
    assert_eq!(step(&unknown, Some(&object)), NextStep::Done);
}

#[test]
fn objects_of_a_gone_service_are_removed_after_the_delay() {
    let now = Instant::now();
    let (there, slices) = (object("a.example."), slices(&ips(&["192.0.2.1"])));
    let slices: Vec<&EndpointSlice> = slices.iter().collect();
    let at = |named, slices, now_| {
        show(next_step(&gone(now), Actual { named, slices, ..Default::default() }, &policy(), now_))
    };
    assert_eq!(at(Some(&there), &slices, now), format!("Wait({:?})", now + DELAY));
    assert_eq!(at(Some(&there), &slices, now + DELAY), "delete Service web-default-ext");
    assert_eq!(at(None, &slices, now + DELAY), "delete EndpointSlice web-default-ext-ipv4");
    assert_eq!(at(None, &[], now), "Forget");

    let NextStep::Write(Write::Delete { precondition, .. }) =
        next_step(&gone(now), Actual { named: Some(&there), ..Default::default() }, &policy(), now + DELAY)
    else {
        panic!()
    };
    assert_eq!(
        (precondition.uid.as_deref(), precondition.resource_version.as_deref()),
        (Some("o"), Some("7"))
    );
}

#[test]
fn terminating_object_is_waited_for() {
    let mut leaving = object("old.example.");
    leaving.metadata.deletion_timestamp = Some(Time(jiff::Timestamp::UNIX_EPOCH));
    assert_eq!(step(&host("a.example."), Some(&leaving)), NextStep::Done);
}

#[test]
fn object_of_a_former_name_is_removed_once_the_new_one_exists() {
    let mut former = object("a.example.");
    former.metadata.name = Some("former".into());
    let with = |named: Option<&Service>| {
        let actual = Actual { named, other_services: &[&former], ..Default::default() };
        show(next_step(&host("a.example."), actual, &policy(), Instant::now()))
    };
    assert_eq!(with(None), "create Service web-default-ext");
    assert_eq!(with(Some(&object("a.example."))), "delete Service former");
    let mut leaving = object("a.example.");
    leaving.metadata.deletion_timestamp = Some(Time(jiff::Timestamp::UNIX_EPOCH));
    assert_eq!(with(Some(&leaving)), "Done");
    let pending = Actual { other_services: &[&former], ..Default::default() };
    assert_eq!(next_step(&link(None), pending, &policy(), Instant::now()), NextStep::Done, "pending");
}

#[test]
fn addresses_become_a_headless_service_and_a_slice_per_family() {
    let link = ips(&["192.0.2.1", "2001:db8::1", "192.0.2.2"]);
    let desired = Desired::first(&link, IpTargets::Headless);
    let service = serde_json::to_value(desired.service.unwrap()).unwrap();
    let ports = json!([{"name": "http", "protocol": "TCP", "port": 80}]);
    assert_eq!(service["spec"], json!({"type": "ClusterIP", "clusterIP": "None", "ports": ports}));
    let slices = serde_json::to_value(&desired.slices).unwrap();
    let endpoint = |ip: &str| json!({"addresses": [ip], "conditions": {"ready": true}});
    assert_eq!(slices[0]["metadata"]["name"], "web-default-ext-ipv4");
    assert_eq!(slices[0]["metadata"]["labels"]["kubernetes.io/service-name"], "web-default-ext");
    assert_eq!(slices[0]["addressType"], "IPv4");
    assert_eq!(slices[0]["endpoints"], json!([endpoint("192.0.2.1"), endpoint("192.0.2.2")]));
    assert_eq!(slices[0]["ports"], ports);
    assert_eq!(slices[1]["metadata"]["name"], "web-default-ext-ipv6");
    assert_eq!(slices[1]["endpoints"], json!([endpoint("2001:db8::1")]));
    assert_eq!(slices.as_array().unwrap().len(), 2);
}

#[test]
fn unknown_ports_of_a_source_change_no_external_target() {
    let (known, target) = (ips(&["192.0.2.1"]), "192.0.2.2");
    let unknown = |addresses: &[&str], uid| overridden(Link { ports: [].into(), ..ips(addresses) }, uid);
    let written = overridden(known, "u");
    let (object, slices) = (service(&written, &policy()), slices(&written));
    let actual =
        Actual { named: Some(&object), slices: &slices.iter().collect::<Vec<_>>(), ..Default::default() };
    let step = |link: &Link| next_step(link, actual, &policy(), Instant::now());
    assert_eq!(step(&unknown(&["192.0.2.1"], "u")), NextStep::Done);
    for (uid, ports) in [("u", json!([{"name": "http", "protocol": "TCP", "port": 80}])), ("", json!([]))] {
        let NextStep::Write(Write::Change { desired: Object::EndpointSlice(desired), .. }) =
            step(&unknown(&[target], uid))
        else {
            panic!("the address must be written")
        };
        assert_eq!(
            serde_json::to_value(&desired.ports).unwrap(),
            ports,
            "a fixed target has no ports: {uid:?}"
        );
    }
}

/// Makes the writes one after another, like the reconciler, and returns them. Asserts that [`all_writes`] plans the
/// same writes.
fn run(
    link: &Link,
    policy: &SyncPolicy,
    named: &mut Option<Service>,
    there: &mut Vec<EndpointSlice>,
) -> Vec<String> {
    let slices: Vec<EndpointSlice> = there.clone();
    let slices: Vec<&EndpointSlice> = slices.iter().collect();
    let before = named.clone();
    let actual = Actual { named: before.as_ref(), slices: &slices, ..Default::default() };
    let planned = all_writes(link, actual, policy, Instant::now());
    let planned: Vec<String> = planned.into_iter().map(|write| show(NextStep::Write(write))).collect();
    let mut steps = Vec::new();
    loop {
        let slices: Vec<&EndpointSlice> = there.iter().collect();
        let actual = Actual { named: named.as_ref(), slices: &slices, ..Default::default() };
        let step = next_step(link, actual, policy, Instant::now());
        let NextStep::Write(write) = step.clone() else { break };
        steps.push(show(step));
        assert!(steps.len() < 10, "{steps:?}");
        match write {
            Write::Annotate { .. } | Write::Finalizer { .. } => panic!("unexpected write"),
            Write::Create(Object::Service(made)) => *named = Some(stored(&*made)),
            Write::Change { desired: Object::Service(made), .. } => *named = Some(stored(&*made)),
            Write::Create(Object::EndpointSlice(made)) => there.push(stored(&*made)),
            Write::Change { desired: Object::EndpointSlice(made), .. } => {
                there.retain(|slice| slice.metadata.name != made.metadata.name);
                there.push(stored(&*made));
            }
            Write::Delete { id, .. } => {
                there.retain(|slice| slice.metadata.name.as_ref() != Some(&id.name));
                named.take_if(|service| service.metadata.name.as_ref() == Some(&id.name));
            }
        }
    }
    assert_eq!(planned, steps);
    steps
}

#[test]
fn hostname_and_addresses_replace_each_other_without_a_gap() {
    let (mut named, mut there) = (None, Vec::new());
    let mut next = |link: &Link| run(link, &policy(), &mut named, &mut there);
    assert_eq!(next(&host("a.example.")), ["create Service web-default-ext"]);
    assert_eq!(
        next(&ips(&["192.0.2.1", "2001:db8::1"])),
        [
            "create EndpointSlice web-default-ext-ipv4",
            "create EndpointSlice web-default-ext-ipv6",
            "patch Service web-default-ext"
        ]
    );
    assert_eq!(next(&ips(&["192.0.2.1", "2001:db8::1"])), [""; 0]);
    assert_eq!(
        next(&ips(&["192.0.2.9"])),
        ["patch EndpointSlice web-default-ext-ipv4", "delete EndpointSlice web-default-ext-ipv6"]
    );
    assert_eq!(
        next(&host("b.example.")),
        ["patch Service web-default-ext", "delete EndpointSlice web-default-ext-ipv4"]
    );
    assert_eq!(next(&host("b.example.")), [""; 0]);
}

#[test]
fn allocated_cluster_ip_is_changed_through_external_name() {
    let link = ips(&["192.0.2.1"]);
    let mut allocated = service(&link, &policy());
    allocated.spec.cluster_ip = Some("10.0.0.7".into());
    let (mut named, mut there) = (Some(allocated), slices(&link));
    let steps = run(&link, &policy(), &mut named, &mut there);
    assert_eq!(steps, ["patch Service web-default-ext", "patch Service web-default-ext"]);
    assert_eq!(named.unwrap().spec.cluster_ip.as_deref(), Some("None"));
}

#[test]
fn addresses_can_be_an_external_name_or_skipped() {
    let as_name = SyncPolicy { ip_targets: IpTargets::ExternalName, ..policy() };
    let skip = SyncPolicy { ip_targets: IpTargets::Skip, ..policy() };
    let both = ips(&["2001:db8::1", "192.0.2.1"]);
    assert_eq!(service(&both, &as_name).spec.external_name.as_deref(), Some("192.0.2.1"));
    let (mut named, mut there) = (None, Vec::new());
    assert_eq!(run(&both, &as_name, &mut named, &mut there), ["create Service web-default-ext"]);
    // After a change of the policy the previous objects are removed.
    assert_eq!(run(&both, &skip, &mut named, &mut there), ["delete Service web-default-ext"]);
    run(&both, &policy(), &mut named, &mut there);
    assert_eq!(
        run(&both, &skip, &mut named, &mut there),
        [
            "delete Service web-default-ext",
            "delete EndpointSlice web-default-ext-ipv4",
            "delete EndpointSlice web-default-ext-ipv6"
        ]
    );
    assert_eq!(run(&ips(&["2001:db8::1"]), &as_name, &mut named, &mut there), [""; 0], "no IPv4 address");
}

#[test]
fn objects_of_a_gone_service_can_be_retained_or_tombstoned() {
    let retain = SyncPolicy { on_delete: OnDelete::Retain, ..policy() };
    let tombstone = SyncPolicy { on_delete: OnDelete::Tombstone, ..policy() };
    let long_gone = gone(Instant::now());
    let (mut named, mut there) = (None, Vec::new());
    run(&ips(&["192.0.2.1"]), &policy(), &mut named, &mut there);
    assert_eq!(run(&long_gone, &retain, &mut named, &mut there), [""; 0]);
    assert_eq!(
        run(&long_gone, &tombstone, &mut named, &mut there),
        ["patch Service web-default-ext", "delete EndpointSlice web-default-ext-ipv4"]
    );
    assert_eq!(named.as_ref().unwrap().spec.external_name.as_deref(), Some("deleted.lb.internal"));
    // The load balancer comes back, at first without a target.
    assert_eq!(run(&link(None), &tombstone, &mut named, &mut there), [""; 0]);
    assert_eq!(
        run(&host("b.example."), &tombstone, &mut named, &mut there),
        ["patch Service web-default-ext"]
    );
    // The object is removed by hand: there is nothing left to keep.
    for policy in [retain, tombstone] {
        assert_eq!(next_step(&long_gone, Actual::default(), &policy, Instant::now()), NextStep::Forget);
    }
}

#[test]
fn pending_recreated_service_is_handled_like_a_gone_service() {
    let since = Instant::now();
    let pending = Link { state: LinkState::Recreated(since), ..link(None) };
    let retain = SyncPolicy { on_delete: OnDelete::Retain, ..policy() };
    let tombstone = SyncPolicy { on_delete: OnDelete::Tombstone, ..policy() };
    let at_once = SyncPolicy { delete_delay: Duration::ZERO, ..policy() };
    let before = object("a.example.");
    let decide = |policy: &SyncPolicy, named: Option<&Service>, after: Duration| {
        next_step(&pending, Actual { named, ..Default::default() }, policy, since + after)
    };
    assert_eq!(decide(&policy(), Some(&before), Duration::ZERO), NextStep::Wait(since + DELAY));
    assert_eq!(show(decide(&policy(), Some(&before), DELAY)), "delete Service web-default-ext");
    assert_eq!(show(decide(&at_once, Some(&before), Duration::ZERO)), "delete Service web-default-ext");
    assert_eq!(decide(&retain, Some(&before), 2 * DELAY), NextStep::Done);
    assert_eq!(show(decide(&tombstone, Some(&before), Duration::ZERO)), "patch Service web-default-ext");
    for policy in [&policy(), &retain, &tombstone, &at_once] {
        assert_eq!(decide(policy, None, DELAY), NextStep::Done, "there is nothing to remove");
    }
    // The slices are removed with the Service; if a hostname arrives first, the Service is patched and only the slices
    // are removed.
    let (mut named, mut there) = (None, Vec::new());
    run(&ips(&["192.0.2.1"]), &policy(), &mut named, &mut there);
    let (mut left, mut left_slices) = (named.clone(), there.clone());
    assert_eq!(
        run(&pending, &at_once, &mut left, &mut left_slices),
        ["delete Service web-default-ext", "delete EndpointSlice web-default-ext-ipv4"]
    );
    assert_eq!(
        run(&host("b.example."), &policy(), &mut named, &mut there),
        ["patch Service web-default-ext", "delete EndpointSlice web-default-ext-ipv4"]
    );
}

#[test]
fn tombstone_moves_to_the_new_name_of_its_link() {
    let tombstone = SyncPolicy { on_delete: OnDelete::Tombstone, ..policy() };
    let mut former = object("deleted.lb.internal.");
    former.metadata.name = Some("former".into());
    let step = |named: Option<&Service>| {
        let actual = Actual { named, other_services: &[&former], ..Default::default() };
        show(next_step(&gone(Instant::now()), actual, &tombstone, Instant::now()))
    };
    assert_eq!(step(None), "create Service web-default-ext");
    assert_eq!(step(Some(&object("deleted.lb.internal."))), "delete Service former");
}

#[test]
fn foreign_service_gets_no_endpoint_slice_of_ours() {
    let link = ips(&["192.0.2.1", "2001:db8::1"]);
    let mut theirs = object("theirs.example.");
    theirs.metadata.labels = Some([(MANAGED_BY.0.to_owned(), "helm".to_owned())].into());
    let (mut named, mut there) = (Some(theirs.clone()), Vec::new());
    assert_eq!(run(&link, &policy(), &mut named, &mut there), [""; 0]);
    // Another client has replaced our Service.
    there = slices(&link);
    let steps = run(&link, &policy(), &mut named, &mut there);
    assert_eq!(
        steps,
        ["delete EndpointSlice web-default-ext-ipv4", "delete EndpointSlice web-default-ext-ipv6"]
    );
    assert_eq!(named, Some(theirs));
}

#[test]
fn foreign_slice_is_a_conflict_unlike_an_unlabelled_own_slice() {
    let link = ips(&["192.0.2.1"]);
    let mut slice = slices(&link).remove(0);
    (slice.metadata.labels, slice.metadata.managed_fields) = (None, None);
    let with = |slice: &EndpointSlice| {
        show(next_step(
            &link,
            Actual { foreign_slices: &[slice], ..Default::default() },
            &policy(),
            Instant::now(),
        ))
    };
    assert_eq!(with(&slice), "conflict: an EndpointSlice that lb-linker doesn't manage has its name");
    slice.metadata.managed_fields = serde_json::from_value(json!([{"manager": "lb-linker"}])).unwrap();
    assert_eq!(with(&slice), "patch EndpointSlice web-default-ext-ipv4");
}

/// Returns the policy of the instance `own`.
fn own() -> SyncPolicy {
    SyncPolicy { instance: Some("own".to_owned()), ..policy() }
}

fn annotate(metadata: &mut ObjectMeta, key: &str, value: &str) {
    metadata.annotations.get_or_insert_default().insert(key.to_owned(), value.to_owned());
}

#[test]
fn objects_of_another_instance_are_conflicts() {
    let link = ips(&["192.0.2.1"]);
    let (mut service, mut slices) = (service(&link, &policy()), slices(&link));
    annotate(&mut service.metadata, INSTANCE, "other");
    let why = r#"it belongs to the lb-linker instance "other""#;
    for policy in [own(), SyncPolicy { on_delete: OnDelete::Tombstone, ..own() }] {
        let actual = Actual { named: Some(&service), ..Default::default() };
        // The conflict of the Service comes before the creation of its EndpointSlice.
        assert!(show(next_step(&link, actual, &policy, Instant::now())).contains(why));
        let dead = gone(Instant::now());
        assert_eq!(next_step(&dead, actual, &policy, Instant::now()), NextStep::Forget, "not ours to remove");
        assert_eq!(adoption(&link, actual, &policy), None);
    }
    // With `--sync off` an external target of the same link counts as ours, whatever its instance is.
    let actual = Actual { named: Some(&service), ..Default::default() };
    assert!(!show(next_step(&link, actual, &policy(), Instant::now())).contains(why));
    let mut of_another_link = service.clone();
    of_another_link.metadata.labels.get_or_insert_default().insert(ORIGINAL_NAME.to_owned(), "db".to_owned());
    let actual = Actual { named: Some(&of_another_link), ..Default::default() };
    assert!(show(next_step(&link, actual, &policy(), Instant::now())).contains(why));
    annotate(&mut slices[0].metadata, INSTANCE, "other");
    slices[0].metadata.labels = None;
    slices[0].metadata.managed_fields = serde_json::from_value(json!([{"manager": "lb-linker"}])).unwrap();
    let foreign: Vec<&EndpointSlice> = slices.iter().collect();
    let actual = Actual { foreign_slices: &foreign, ..Default::default() };
    assert!(show(next_step(&link, actual, &own(), Instant::now())).contains(why));
    let taken_back = next_step(&link, actual, &policy(), Instant::now());
    assert!(matches!(taken_back, NextStep::Write(Write::Change { .. })), "there are no instances");
}

#[test]
fn objects_without_an_instance_are_adopted_in_turn() {
    let link = ips(&["192.0.2.1", "2001:db8::1"]);
    let (mut service, mut slices) = (service(&link, &policy()), slices(&link));
    let adopted = |service: &Service, slices: &[EndpointSlice], link: &Link, policy: &SyncPolicy| {
        let slices: Vec<&EndpointSlice> = slices.iter().collect();
        let actual = Actual { named: Some(service), slices: &slices, ..Default::default() };
        // The missing annotation alone causes no other write.
        assert!(link.is_gone() || next_step(link, actual, policy, Instant::now()) == NextStep::Done);
        adoption(link, actual, policy).map(|write| write.id().name)
    };
    let name = "web-default-ext";
    assert_eq!(adopted(&service, &slices, &link, &own()).as_deref(), Some(name));
    assert_eq!(adopted(&service, &slices, &link, &policy()), None, "there are no instances");
    assert_eq!(adopted(&service, &slices, &gone(Instant::now()), &own()), None);
    annotate(&mut service.metadata, INSTANCE, "own");
    annotate(&mut slices[0].metadata, INSTANCE, "own");
    assert_eq!(adopted(&service, &slices, &link, &own()), Some(format!("{name}-ipv6")));
    annotate(&mut slices[1].metadata, INSTANCE, "own");
    assert_eq!(adopted(&service, &slices, &link, &own()), None);
}

#[test]
fn only_an_unusable_term_causes_a_write() {
    let (link, now) = (host("a.example."), 1_790_000_000);
    for (term, is_repaired) in [("1", false), ("1790086400", false), ("1790086401", true), ("x", true)] {
        let mut object = object("a.example.");
        annotate(&mut object.metadata, TERM, term);
        let actual = Actual { named: Some(&object), ..Default::default() };
        assert_eq!(next_step(&link, actual, &own(), Instant::now()), NextStep::Done);
        assert_eq!(term_repair(&link, actual, &own(), now, now).is_some(), is_repaired, "{term}");
        // The clock was set back since this leader's term began.
        assert_eq!(term_repair(&link, actual, &own(), 1_790_086_401, now).is_some(), term == "x", "{term}");
    }
}

#[test]
fn each_write_records_the_instance_and_the_term() {
    let stamp = Stamp { instance: Some("own".to_owned()), term: Some(7) };
    let link = ips(&["192.0.2.1"]);
    let precondition = Precondition { uid: Some("u".into()), resource_version: Some("1".into()) };
    let stamped = json!({INSTANCE: "own", TERM: "7"});
    assert_eq!(
        stamp.patch(&precondition),
        json!({"metadata": {"uid": "u", "resourceVersion": "1", "annotations": stamped}})
    );
    let desired = Desired::first(&link, IpTargets::Headless);
    let slice: Object = desired.slices[0].clone().into();
    assert_eq!(merge_patch(&slice, &precondition, &stamp)["metadata"]["annotations"], stamped);
    let mut service: Object = desired.service.unwrap().into();
    let patch = merge_patch(&service, &precondition, &stamp);
    assert_eq!(patch["metadata"]["annotations"][TERM], "7");
    assert_eq!(patch["metadata"]["annotations"]["linker.hsj.com/service-uid"], "u");
    stamp.put_on(&mut service);
    assert_eq!(service.meta().annotations.as_ref().unwrap().len(), 3);
}
