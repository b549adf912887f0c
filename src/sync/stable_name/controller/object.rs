//! A StableName as the API server delivers it.

use crate::api::stable_name::{Source, StableName, StableNameSpec};
use crate::api::status::StableNameStatus;
use crate::api::validation::validate;
use crate::model::clusters;
use crate::model::link::Annotations;
use crate::model::service_key::ServiceKey;
use crate::model::uid::Uid;
use crate::sync::stable_name::decision::spec::{
    CheckSettings, Failback, FailoverSpec, Refusal, RefusalReason,
};

/// A StableName, and what every replica knows about it.
#[derive(Debug)]
pub(super) struct TrackedStableName {
    pub(super) object: ObservedStableName,
    /// The settings of the Service of the same name, as it was seen last as a source.
    pub(super) inherited: Annotations,
    /// The Service whose target is announced, if the spec doesn't list it.
    pub(super) former_source: Option<FormerSource>,
    /// The refusal that this process has logged last, in whatever term.
    pub(super) logged_refusal: Option<StoredRefusal>,
}

/// The reason and the message of the condition Accepted, if it is False.
pub(super) type StoredRefusal = (String, String);

/// A Service that isn't a source any more, as it was seen last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FormerSource {
    pub(super) key: ServiceKey,
    pub(super) uid: Uid,
}

impl TrackedStableName {
    /// Returns the Services that are sources, and the former source whose target is announced.
    pub(super) fn services(&self) -> impl Iterator<Item = ServiceKey> {
        self.object.services().chain(self.former_source.iter().map(|former| former.key.clone()))
    }
}

/// The finalizers of the garbage collector of Kubernetes: for foreground deletion, and for deletion with orphans.
const COLLECTOR_FINALIZERS: [&str; 2] = ["foregroundDeletion", "orphan"];

/// The parts of a StableName that lb-linker reads.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ObservedStableName {
    pub(super) key: ServiceKey,
    pub(super) uid: Uid,
    /// Whether the garbage collector is deleting the object, and first removes its dependents or their references to it.
    pub(super) is_collected: bool,
    /// `metadata.creationTimestamp` in seconds since 1970.
    pub(super) created: Option<i64>,
    /// `metadata.resourceVersion`.
    pub(super) version: String,
    pub(super) generation: i64,
    pub(super) spec: StableNameSpec,
    /// The rule that the spec breaks, if it breaks one.
    pub(super) invalid: Option<Refusal>,
    /// The status; empty if the object has none.
    pub(super) status: StableNameStatus,
}

impl ObservedStableName {
    pub(super) fn new(object: StableName) -> Self {
        let StableName { metadata, spec, status } = object;
        let key = ServiceKey::new(
            metadata.namespace.as_deref().unwrap_or_default(),
            metadata.name.as_deref().unwrap_or_default(),
        );
        let invalid = validate(key.name(), &spec).err().map(|invalid| {
            let message = invalid.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
            Refusal { reason: RefusalReason::InvalidSpec, message }
        });
        Self {
            key,
            uid: metadata.uid.as_deref().unwrap_or_default().into(),
            is_collected: metadata.deletion_timestamp.is_some()
                && metadata.finalizers.iter().flatten().any(|name| COLLECTOR_FINALIZERS.contains(&&**name)),
            created: metadata.creation_timestamp.map(|time| time.0.as_second()),
            version: metadata.resource_version.unwrap_or_default(),
            generation: metadata.generation.unwrap_or_default(),
            spec,
            invalid,
            status: status.unwrap_or_default(),
        }
    }

    /// Returns `metadata.resourceVersion` as a number, which increases with each change.
    pub(super) fn revision(&self) -> Option<u64> {
        self.version.parse().ok()
    }

    /// Returns the sources that may be used; none if the spec breaks a rule.
    pub(super) fn sources(&self) -> &[Source] {
        if self.invalid.is_some() { &[] } else { &self.spec.sources }
    }

    /// Returns the Services that are sources.
    pub(super) fn services(&self) -> impl Iterator<Item = ServiceKey> {
        self.sources().iter().filter_map(|source| self.service_of(source))
    }

    pub(super) fn service_of(&self, source: &Source) -> Option<ServiceKey> {
        let service = source.service.as_ref()?;
        let namespace = service.namespace.as_deref().unwrap_or_else(|| self.key.namespace());
        Some(ServiceKey::new(&clusters::in_cluster(service.cluster.as_deref(), namespace), &service.name))
    }

    /// Returns the Service of the source with this name.
    pub(super) fn service_named(&self, source: &str) -> Option<ServiceKey> {
        self.service_of(self.sources().iter().find(|known| known.name == source)?)
    }

    /// Returns whether the Service with the name of the StableName is a source.
    pub(super) fn has_own_service(&self) -> bool {
        self.services().any(|service| service == self.key)
    }

    /// Returns what decisions need of the spec.
    pub(super) fn failover_spec(&self) -> FailoverSpec {
        let spec = &self.spec;
        let check = spec.check.clone().unwrap_or_default();
        let failback = spec.failback.clone().unwrap_or_default();
        FailoverSpec {
            generation: self.generation,
            sources: self.sources().iter().map(|source| source.name.clone()).collect(),
            check: CheckSettings {
                period: check.period(),
                timeout: check.timeout(),
                failure_threshold: check.failure_threshold().max(1),
                success_threshold: check.success_threshold().max(1),
                tcp_port: check.tcp_port.and_then(|port| u16::try_from(port).ok()),
            },
            max_wait: spec.cutover.clone().unwrap_or_default().max_wait(),
            failback: match failback.is_automatic() {
                true => Failback::Automatic { after: failback.after() },
                false => Failback::Manual,
            },
            pin: spec.pin.clone(),
        }
    }
}
