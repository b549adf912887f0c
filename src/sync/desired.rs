//! The pure half of the reconciler: what a link's external target should be, and which one write
//! brings what is there closer to it.

use std::time::{Duration, Instant};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};

use super::service::{EXTERNAL_NAME, Service, Spec, host_name};
use crate::store::{Link, ServiceKey, State, Target, host_text};

/// The field manager of every write.
pub const FIELD_MANAGER: &str = "lb-linker";
/// The label that says who keeps an object, and our value of it (the earlier operator's, whose
/// objects are taken over in place).
pub const MANAGED_BY: (&str, &str) = ("app.kubernetes.io/managed-by", "lb-linker-operator");
/// The label that holds the name of the link's Service.
pub const ORIGINAL_NAME: &str = "original-service-name";
/// The label that holds the namespace of the link's Service.
pub const ORIGINAL_NAMESPACE: &str = "original-service-namespace";

/// The version of an object that a write is meant for: another one is refused by the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Precondition {
    /// `metadata.uid`.
    pub uid: Option<String>,
    /// `metadata.resourceVersion`.
    pub resource_version: Option<String>,
}

/// One write to the target namespace.
#[derive(Clone, Debug, PartialEq)]
pub enum Write {
    /// Create this object.
    Create(Box<Service>),
    /// Make the object of this name like this one, in the fields that are ours.
    Change {
        /// What it should be.
        desired: Box<Service>,
        /// Which version of it.
        only: Precondition,
    },
    /// Remove the object `name`.
    Delete {
        /// The object's name.
        name: String,
        /// Which version of it.
        only: Precondition,
    },
}

impl Write {
    /// Returns the name of the object that is written.
    #[must_use]
    pub fn object(&self) -> &str {
        match self {
            Self::Create(desired) | Self::Change { desired, .. } => {
                desired.metadata.name.as_deref().unwrap_or_default()
            }
            Self::Delete { name, .. } => name,
        }
    }

    /// Returns the HTTP verb, for logs and metrics.
    #[must_use]
    pub fn verb(&self) -> &'static str {
        match self {
            Self::Create(_) => "create",
            Self::Change { .. } => "patch",
            Self::Delete { .. } => "delete",
        }
    }

    /// Returns the version of the object that the write is meant for.
    #[must_use]
    pub fn resource_version(&self) -> Option<&str> {
        match self {
            Self::Create(_) => None,
            Self::Change { only, .. } | Self::Delete { only, .. } => only.resource_version.as_deref(),
        }
    }
}

impl Precondition {
    /// Returns the version that `object` has.
    #[must_use]
    pub fn of(object: &Service) -> Self {
        Self { uid: object.metadata.uid.clone(), resource_version: object.metadata.resource_version.clone() }
    }
}

/// Returns the JSON merge patch (RFC 7386) that sets every field that is ours and nulls what
/// doesn't belong to an ExternalName Service. It carries its precondition: the API server refuses
/// it for another uid (422) and another version (409).
#[must_use]
pub fn merge_patch(desired: &Service, only: &Precondition) -> Value {
    json!({
        "metadata": {
            "uid": only.uid,
            "resourceVersion": only.resource_version,
            "labels": desired.metadata.labels,
        },
        "spec": {
            "type": desired.spec.type_,
            "externalName": desired.spec.external_name,
            "clusterIP": null,
            "clusterIPs": null,
            "ports": null,
            "selector": null,
        },
    })
}

/// What to do next about a link.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Nothing differs.
    Done,
    /// This write; then look again.
    Write(Write),
    /// Look again at this moment.
    Wait(Instant),
    /// The object of the link's name isn't ours and is left alone.
    Conflict {
        /// The object's name.
        object: String,
        /// Why it isn't ours.
        why: String,
    },
    /// The Service and its external target are gone: the store may forget the link.
    Forget,
}

/// Returns the link that an external target is labelled for, if it carries our managed-by label.
#[must_use]
pub fn labelled_for(object: &Service) -> Option<ServiceKey> {
    (object.label(MANAGED_BY.0) == Some(MANAGED_BY.1))
        .then(|| Some(ServiceKey::new(object.label(ORIGINAL_NAMESPACE)?, object.label(ORIGINAL_NAME)?)))
        .flatten()
}

/// Returns the target that an external target points at.
#[must_use]
pub fn points_at(object: &Service) -> Option<Target> {
    let host = object
        .spec
        .external_name
        .as_deref()
        .filter(|_| object.spec.type_.as_deref() == Some(EXTERNAL_NAME))?;
    host_name(host).ok().map(Target::Hostname)
}

/// Returns whether lb-linker itself has written to the object.
#[must_use]
pub fn written_by_us(object: &Service) -> bool {
    object
        .metadata
        .managed_fields
        .iter()
        .flatten()
        .any(|entry| entry.manager.as_deref() == Some(FIELD_MANAGER))
}

/// Decides the next step for a link.
///
/// `named` is the object of the link's external target name, `others` are objects under other
/// names that are labelled for the link and that lb-linker has written.
#[must_use]
pub fn next_step(
    link: &Link,
    named: Option<&Service>,
    others: &[&Service],
    delete_delay: Duration,
    now: Instant,
) -> Step {
    let ours = named.filter(|object| labelled_for(object).as_ref() == Some(&link.key));
    if let State::Gone(since) = link.state {
        let Some(object) = ours.or(others.first().copied()) else { return Step::Forget };
        return match since.checked_add(delete_delay) {
            Some(due) if due > now => Step::Wait(due),
            Some(_) => remove(object),
            // A delay past the end of the clock: never.
            None => Step::Done,
        };
    }
    let next = match &link.target {
        // Only a new target or the end of the Service replaces the last one.
        None => Step::Done,
        Some(Target::Hostname(host)) => point_at(link, &host_text(host), named, ours),
        Some(Target::Addresses(_)) => ours.map_or(Step::Done, remove),
    };
    match next {
        Step::Done => others.first().map_or(Step::Done, |object| remove(object)),
        next => next,
    }
}

fn point_at(link: &Link, host: &str, named: Option<&Service>, ours: Option<&Service>) -> Step {
    let Some(object) = named else {
        return Step::Write(Write::Create(Box::new(desired(link, host))));
    };
    let Some(ours) = ours else {
        return Step::Conflict { object: link.external_target.to_string(), why: stranger(object) };
    };
    if ours.metadata.deletion_timestamp.is_some() {
        // It can't be saved: the watch says when it is gone, and it is made anew then.
        return Step::Done;
    }
    if !differs(ours, host) {
        return Step::Done;
    }
    Step::Write(Write::Change { desired: Box::new(desired(link, host)), only: Precondition::of(ours) })
}

fn remove(object: &Service) -> Step {
    if object.metadata.deletion_timestamp.is_some() {
        return Step::Done;
    }
    Step::Write(Write::Delete {
        name: object.metadata.name.clone().unwrap_or_default(),
        only: Precondition::of(object),
    })
}

fn stranger(object: &Service) -> String {
    match (object.label(MANAGED_BY.0), labelled_for(object)) {
        (_, Some(key)) => format!("it is labelled as the external target of {key}"),
        (Some(manager), None) if manager != MANAGED_BY.1 => {
            format!("its label {} says {manager:?}", MANAGED_BY.0)
        }
        _ => format!(
            "it doesn't carry the labels {}={}, {ORIGINAL_NAMESPACE} and {ORIGINAL_NAME}",
            MANAGED_BY.0, MANAGED_BY.1
        ),
    }
}

/// Returns the external target of a link with a hostname.
#[must_use]
pub fn desired(link: &Link, host: &str) -> Service {
    Service {
        metadata: ObjectMeta {
            name: Some(link.external_target.to_string()),
            labels: Some(labels(link).into_iter().map(|(key, value)| (key.into(), value.into())).collect()),
            ..Default::default()
        },
        spec: Spec {
            type_: Some(EXTERNAL_NAME.into()),
            external_name: Some(host.into()),
            ..Default::default()
        },
        ..Default::default()
    }
}

fn labels(link: &Link) -> std::collections::BTreeMap<&'static str, &str> {
    [MANAGED_BY, (ORIGINAL_NAME, &link.key.name), (ORIGINAL_NAMESPACE, &link.key.namespace)].into()
}

/// The labels need no look: who carries others isn't the link's object.
fn differs(object: &Service, host: &str) -> bool {
    let Spec { type_, external_name, cluster_ip, ports, selector } = &object.spec;
    // The API server keeps a trailing dot that somebody wrote.
    let pointed_at = external_name.as_deref().map(|name| name.strip_suffix('.').unwrap_or(name));
    type_.as_deref() != Some(EXTERNAL_NAME)
        || pointed_at != Some(host)
        || cluster_ip.as_deref().is_some_and(|ip| !ip.is_empty())
        || !ports.is_empty()
        || !selector.is_empty()
}

#[cfg(test)]
mod tests {
    use hickory_proto::rr::Name;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use serde::de::IgnoredAny;

    use super::*;

    const DELAY: Duration = Duration::from_secs(600);

    fn link(target: Option<&str>) -> Link {
        Link {
            key: ServiceKey::new("default", "web"),
            uid: "u".into(),
            created: None,
            target: target.map(|host| Target::Hostname(Name::from_ascii(host).unwrap())),
            state: State::Live,
            external_target: "web-default-ext".into(),
        }
    }

    fn object(host: &str) -> Service {
        let mut object = desired(&link(None), host);
        object.metadata.uid = Some("o".into());
        object.metadata.resource_version = Some("7".into());
        object
    }

    fn step(link: &Link, named: Option<&Service>) -> Step {
        next_step(link, named, &[], DELAY, Instant::now())
    }

    #[test]
    fn a_missing_object_is_created_with_labels_and_target() {
        let Step::Write(Write::Create(made)) = step(&link(Some("a.example.")), None) else { panic!() };
        assert_eq!(
            serde_json::to_value(made).unwrap(),
            json!({
                "apiVersion": "v1", "kind": "Service",
                "metadata": {"name": "web-default-ext", "labels": {
                    "app.kubernetes.io/managed-by": "lb-linker-operator",
                    "original-service-name": "web", "original-service-namespace": "default"}},
                "spec": {"type": "ExternalName", "externalName": "a.example"},
            })
        );
    }

    #[test]
    fn nothing_is_written_where_nothing_differs() {
        assert_eq!(step(&link(Some("a.example.")), Some(&object("a.example"))), Step::Done);
        assert_eq!(
            step(&link(Some("a.example.")), Some(&object("a.example."))),
            Step::Done,
            "a trailing dot"
        );
        assert_eq!(step(&link(None), None), Step::Done, "pending");
        assert_eq!(step(&link(None), Some(&object("old.example"))), Step::Done, "pending keeps the last");
    }

    #[test]
    fn whatever_differs_is_set_by_one_patch_with_its_precondition() {
        let mut drifted = vec![
            object("b.example"),
            object("a.example"),
            object("a.example"),
            object("a.example"),
            object("a.example"),
        ];
        drifted[1].spec.selector.insert("app".into(), "web".into());
        drifted[2].spec.cluster_ip = Some("10.0.0.1".into());
        drifted[3].spec.ports.push(IgnoredAny);
        drifted[4].spec.type_ = Some("ClusterIP".into());
        for object in drifted {
            let Step::Write(write) = step(&link(Some("a.example.")), Some(&object)) else {
                panic!("{object:?}")
            };
            assert_eq!(write.object(), "web-default-ext");
            let Write::Change { desired, only } = write else { panic!("{write:?}") };
            assert_eq!(
                merge_patch(&desired, &only),
                json!({
                    "metadata": {"uid": "o", "resourceVersion": "7", "labels": {
                        "app.kubernetes.io/managed-by": "lb-linker-operator",
                        "original-service-name": "web", "original-service-namespace": "default"}},
                    "spec": {"type": "ExternalName", "externalName": "a.example",
                        "clusterIP": null, "clusterIPs": null, "ports": null, "selector": null},
                })
            );
        }
    }

    #[test]
    fn an_object_that_isnt_ours_is_left_alone_and_named() {
        let mut unlabelled = object("a.example");
        unlabelled.metadata.labels = None;
        let mut foreign = object("a.example");
        foreign.metadata.labels.as_mut().unwrap().insert(MANAGED_BY.0.into(), "helm".into());
        let mut neighbour = object("a.example");
        neighbour.metadata.labels.as_mut().unwrap().insert(ORIGINAL_NAME.into(), "other".into());
        for (object, reason) in
            [(unlabelled, "doesn't carry"), (foreign, "\"helm\""), (neighbour, "default/other")]
        {
            let Step::Conflict { why, .. } = step(&link(Some("b.example.")), Some(&object)) else { panic!() };
            assert!(why.contains(reason), "{why}");
            let gone = Link { state: State::Gone(Instant::now()), ..link(None) };
            assert_eq!(step(&gone, Some(&object)), Step::Forget);
        }
    }

    #[test]
    fn a_gone_service_takes_its_object_along_after_the_delay() {
        let now = Instant::now();
        let gone = Link { state: State::Gone(now), ..link(None) };
        let there = object("a.example");
        assert_eq!(next_step(&gone, Some(&there), &[], DELAY, now), Step::Wait(now + DELAY));
        let Step::Write(Write::Delete { name, only }) =
            next_step(&gone, Some(&there), &[], DELAY, now + DELAY)
        else {
            panic!()
        };
        assert_eq!(name, "web-default-ext");
        assert_eq!((only.uid.as_deref(), only.resource_version.as_deref()), (Some("o"), Some("7")));
        assert_eq!(next_step(&gone, None, &[], DELAY, now), Step::Forget);
    }

    #[test]
    fn an_object_that_is_being_deleted_is_waited_for() {
        let mut leaving = object("old.example");
        leaving.metadata.deletion_timestamp = Some(Time(jiff::Timestamp::UNIX_EPOCH));
        assert_eq!(step(&link(Some("a.example.")), Some(&leaving)), Step::Done);
    }

    #[test]
    fn addresses_have_no_external_target_yet() {
        let mut link = link(None);
        link.target = Some(Target::Addresses(vec!["192.0.2.1".parse().unwrap()]));
        assert_eq!(step(&link, None), Step::Done);
        assert!(matches!(step(&link, Some(&object("a.example"))), Step::Write(Write::Delete { .. })));
    }

    #[test]
    fn an_object_under_a_name_that_the_link_had_before_goes_when_the_new_one_stands() {
        let mut former = object("a.example");
        former.metadata.name = Some("former".into());
        let link = link(Some("a.example."));
        let create = next_step(&link, None, &[&former], DELAY, Instant::now());
        assert!(matches!(create, Step::Write(Write::Create(_))));
        let now = next_step(&link, Some(&object("a.example")), &[&former], DELAY, Instant::now());
        assert!(matches!(now, Step::Write(Write::Delete { name, .. }) if name == "former"));
    }
}
