//! The pure part of the reconciler: decides the next write that brings the actual state closer to the desired state.

use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::deletion_budget::MaxDeletes;
use super::desired::{
    Desired, HEADLESS, IPV4, IPV6, IpTargets, Precondition, has_our_field_manager, link_of_labels,
    placeholder_name, service_differs, slice_differs, slice_name,
};
use super::removal_facts::{facts_of_link, facts_of_object};
use crate::model::excerpt::{sentence, value};
use crate::model::link::Link;
use crate::model::service_key::ServiceKey;
use crate::sync::election::term::{RecordedTerm, TERM};
use crate::sync::k8s::endpoint_slice::EndpointSlice;
use crate::sync::k8s::instance::{INSTANCE, instance_of, other_instance};
use crate::sync::k8s::labels::{MANAGED_BY, SOURCE};
use crate::sync::k8s::object::{Object, ObjectId, ObjectKind};
use crate::sync::k8s::service::{EXTERNAL_NAME, Service, Spec};
use crate::sync::removal::facts::{Facts, Subject, Surplus};
use crate::sync::removal::verdict::{Verdict, may_remove};

/// Writes that the API server refuses together.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum WriteClass {
    /// All creates in the target namespace, which fail together if the namespace is missing.
    AllCreates,
    /// The writes in the target namespace with this verb, of objects of this kind.
    OfKind(&'static str, ObjectKind),
    /// Writes of the finalizer of the load balancers of this namespace.
    Finalizers(Arc<str>),
}

/// The classes of creates in the target namespace, by kind.
pub(crate) const CREATES: [WriteClass; 2] = [
    WriteClass::OfKind("create", ObjectKind::Service),
    WriteClass::OfKind("create", ObjectKind::EndpointSlice),
];

/// One write of an external target or EndpointSlice, or of the finalizer of a load balancer.
#[derive(Clone, Debug, PartialEq)]
pub enum Write {
    /// Create this object.
    Create(Object),
    /// Set the fields of an existing object that are ours to those of `desired`.
    Change {
        desired: Object,
        precondition: Precondition,
    },
    Delete {
        id: ObjectId,
        precondition: Precondition,
    },
    /// Set only the annotations that every write sets: the instance and the term.
    Annotate {
        id: ObjectId,
        precondition: Precondition,
    },
    /// Add our finalizer to a load balancer, or remove it.
    Finalizer {
        service: ServiceKey,
        uid: Box<str>,
        add: bool,
    },
}

impl Write {
    #[must_use]
    pub fn id(&self) -> ObjectId {
        match self {
            Self::Create(desired) | Self::Change { desired, .. } => desired.id(),
            Self::Delete { id, .. } | Self::Annotate { id, .. } => id.clone(),
            Self::Finalizer { service, .. } => {
                ObjectId { kind: ObjectKind::LoadBalancer, name: service.to_string() }
            }
        }
    }

    /// Returns the verb of the Kubernetes API, for logs and metrics.
    #[must_use]
    pub fn verb(&self) -> &'static str {
        match self {
            Self::Create(_) => "create",
            Self::Change { .. } | Self::Annotate { .. } | Self::Finalizer { .. } => "patch",
            Self::Delete { .. } => "delete",
        }
    }

    /// Returns the class of the write for the circuit breaker.
    #[must_use]
    pub(crate) fn class(&self) -> WriteClass {
        match self {
            Self::Finalizer { service, .. } => WriteClass::Finalizers(service.namespace().into()),
            _ => WriteClass::OfKind(self.verb(), self.id().kind),
        }
    }

    /// Returns all classes that the write belongs to.
    #[must_use]
    pub(crate) fn classes(&self) -> Vec<WriteClass> {
        let all = matches!(self, Self::Create(_)).then_some(WriteClass::AllCreates);
        [self.class()].into_iter().chain(all).collect()
    }

    /// Returns whether only the lease protects the write: the write has no resourceVersion, or removes the object
    /// together with its term.
    #[must_use]
    pub fn is_unprotected(&self) -> bool {
        match self {
            Self::Create(_) | Self::Delete { .. } | Self::Finalizer { .. } => true,
            Self::Change { .. } | Self::Annotate { .. } => false,
        }
    }

    /// Returns the uid of the object that the write is meant for, or an empty string.
    #[must_use]
    pub fn uid(&self) -> &str {
        match self {
            Self::Create(_) => "",
            Self::Change { precondition, .. }
            | Self::Delete { precondition, .. }
            | Self::Annotate { precondition, .. } => precondition.uid.as_deref().unwrap_or_default(),
            Self::Finalizer { uid, .. } => uid,
        }
    }

    #[must_use]
    pub fn resource_version(&self) -> Option<&str> {
        match self {
            Self::Create(_) | Self::Finalizer { .. } => None,
            Self::Change { precondition, .. }
            | Self::Delete { precondition, .. }
            | Self::Annotate { precondition, .. } => precondition.resource_version.as_deref(),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum NextStep {
    /// Nothing to do.
    Done,
    /// Make this write, then decide again.
    Write(Write),
    /// Decide again at this time.
    Wait(Instant),
    /// An object that has the name of the external target or of an EndpointSlice isn't ours and is left alone.
    Conflict {
        object: ObjectId,
        /// The reason why the object isn't ours.
        why: String,
    },
    /// The Service and its external target are gone: the store may forget the link.
    Forget,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Actual<'a> {
    /// The object with the external target's name, of any owner.
    pub named: Option<&'a Service>,
    /// Whether `named` is labelled for the link although it isn't ours: then it is left alone.
    pub is_named_foreign: bool,
    /// Services with other names that are labelled for the link and count as ours.
    pub other_services: &'a [&'a Service],
    /// The EndpointSlices that are labelled for the link.
    pub slices: &'a [&'a EndpointSlice],
    /// EndpointSlices with names that the link needs, labelled for another link or for no link.
    pub foreign_slices: &'a [&'a EndpointSlice],
    /// Whether a former leader has created all objects that are labelled for the link: see `UnwantedObjects`.
    pub is_of_former_leader: bool,
}

/// The next step, and the facts about what it removes, or about the target that it replaces because the Service is
/// gone.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    pub step: NextStep,
    pub removal: Option<Facts>,
}

impl From<NextStep> for Decision {
    fn from(step: NextStep) -> Self {
        Self { step, removal: None }
    }
}

/// The handling of the external target of a deleted Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnDelete {
    /// It is removed after --delete-delay.
    Delete,
    /// It stays as it is until the load balancer comes back.
    Retain,
    /// It points at `deleted.<zone>`, which doesn't exist, until the load balancer comes back.
    Tombstone,
}

/// Whether external targets are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncMode {
    /// They are written.
    On,
    /// The writes are only logged.
    Plan,
    /// Only DNS is answered.
    Off,
}

#[derive(Clone, Debug)]
pub struct SyncPolicy {
    pub sync: SyncMode,
    pub on_delete: OnDelete,
    /// Time between the end of a Service and the removal of its external target.
    pub delete_delay: Duration,
    /// Time between the withdrawal of a StableName's target and the removal of the external target. Unlike
    /// `delete_delay` it isn't zero with `--finalizer`.
    pub withdrawal_delay: Duration,
    /// Whether a load balancer stays until its external target is gone.
    pub finalizer: bool,
    /// The `externalName` of a tombstone, `deleted.<zone>`: the API server refuses an empty `externalName`.
    pub tombstone: String,
    pub max_deletes: MaxDeletes,
    /// The kind of external target for addresses.
    pub ip_targets: IpTargets,
    /// Whether a foreign object with our labels counts as ours when its Service is gone (`--prune`).
    pub prune: bool,
    /// The name of this instance: objects of other instances are foreign. `None` if there are no instances.
    pub instance: Option<String>,
}

/// Returns the step of [`decide`].
#[must_use]
pub fn next_step(link: &Link, actual: Actual<'_>, policy: &SyncPolicy, now: Instant) -> NextStep {
    decide(link, actual, policy, now).step
}

/// Decides about the next write for a link.
#[must_use]
pub fn decide(link: &Link, actual: Actual<'_>, policy: &SyncPolicy, now: Instant) -> Decision {
    if link.active_override().is_some_and(|by| by.is_provisional) {
        return NextStep::Done.into();
    }
    let decision = Case { link, actual, policy, now }.target_step();
    let is_overridden = link.active_override().is_some();
    let is_settled = match (&decision.step, link.is_gone()) {
        (NextStep::Done, false) | (NextStep::Forget, true) => true,
        // The finalizer of an overridden Service doesn't wait: the external target belongs to the StableName.
        (NextStep::Wait(_) | NextStep::Conflict { .. }, false) => is_overridden,
        // An external target that stays after the end of its Service is as it should be.
        (NextStep::Done, true) => policy.on_delete != OnDelete::Delete,
        _ => false,
    };
    if !policy.finalizer || link.uid.is_empty() {
        return decision;
    }
    let write = |add| {
        let (service, uid) = (link.key.clone(), link.uid.to_string().into());
        NextStep::Write(Write::Finalizer { service, uid, add })
    };
    if !link.has_finalizer {
        let is_wanted = is_settled && !link.is_gone() && !is_overridden;
        return if is_wanted { write(true).into() } else { decision };
    }
    let facts = facts_of_link(Subject::Finalizer { is_settled }, link, policy);
    match may_remove(&facts, now) {
        Verdict::Remove(_) | Verdict::Ask(_) => Decision { step: write(false), removal: Some(facts) },
        Verdict::Keep(_) | Verdict::Wait(..) => decision,
    }
}

/// A link, its objects, and the settings.
#[derive(Clone, Copy)]
struct Case<'a> {
    link: &'a Link,
    actual: Actual<'a>,
    policy: &'a SyncPolicy,
    now: Instant,
}

impl<'a> Case<'a> {
    /// Decides about the next write of an external target.
    fn target_step(&self) -> Decision {
        match (self.link.service_gone_since(), &self.link.target) {
            (Some(_), _) => self.gone_step(),
            // Only a new target or the end of the Service replaces the last target.
            (_, None) => NextStep::Done.into(),
            (_, Some(target)) => {
                let in_use = self.actual.named.map(|named| &named.spec);
                self.step_to(&Desired::of(self.link, target, self.policy.ip_targets, in_use))
            }
        }
    }

    /// Returns the Service that is the external target and doesn't belong to another instance.
    fn ours(&self) -> Option<&'a Service> {
        ours_of(self.link, self.actual, self.policy.instance.as_deref())
    }

    /// Returns the removal of an object, as far as the facts allow it.
    fn remove(&self, subject: Subject, surplus: Option<Surplus>, metadata: &ObjectMeta) -> Decision {
        let is_of_former_leader = self.actual.is_of_former_leader;
        let facts = facts_of_object(subject, self.link, metadata, self.policy, is_of_former_leader);
        let facts = Facts { surplus, ..facts };
        let kind = match subject {
            Subject::Slice => ObjectKind::EndpointSlice,
            _ => ObjectKind::Service,
        };
        let (id, precondition) = (ObjectId::of(kind, metadata), Precondition::of(metadata));
        let step = match may_remove(&facts, self.now) {
            Verdict::Remove(_) | Verdict::Ask(_) => NextStep::Write(Write::Delete { id, precondition }),
            Verdict::Wait(_, until) => NextStep::Wait(until),
            Verdict::Keep(_) => NextStep::Done,
        };
        Decision { step, removal: Some(facts) }
    }

    fn remove_slice(&self, slice: &EndpointSlice, surplus: Surplus) -> Decision {
        self.remove(Subject::Slice, Some(surplus), &slice.metadata)
    }

    /// Decides about the objects of a gone Service.
    fn gone_step(&self) -> Decision {
        let Self { link, actual, policy, now } = *self;
        // EndpointSlices are removed after their Service, so that none is left behind.
        let named = self.ours().map(|ours| (Subject::ExternalTarget, &ours.metadata));
        let other = || actual.other_services.first().map(|other| (Subject::FormerName, &other.metadata));
        let slice = || actual.slices.first().map(|slice| (Subject::Slice, &slice.metadata));
        let Some((subject, metadata)) = named.or_else(other).or_else(slice) else {
            return if link.is_gone() { NextStep::Forget.into() } else { NextStep::Done.into() };
        };
        // If the link has another name by now, and no object has that name, the tombstone gets that name.
        let has_room = named.is_some() || subject != Subject::Slice && actual.named.is_none();
        if policy.on_delete != OnDelete::Tombstone || actual.is_of_former_leader || !has_room {
            return self.remove(subject, None, metadata);
        }
        let replaced = facts_of_object(Subject::Target, link, metadata, policy, false);
        if let Verdict::Wait(_, until) = may_remove(&replaced, now) {
            return Decision { step: NextStep::Wait(until), removal: Some(replaced) };
        }
        let Decision { step, removal } = self.step_to(&Desired::tombstone(link, &policy.tombstone));
        let is_write = matches!(step, NextStep::Write(_));
        Decision { removal: removal.or(is_write.then_some(replaced)), step }
    }

    /// Returns the next step to these objects.
    fn step_to(&self, desired: &Desired) -> Decision {
        let Self { link, actual, policy, .. } = *self;
        let (own, ours) = (policy.instance.as_deref(), self.ours());
        let service = || match (&desired.service, ours) {
            (Some(desired), _) => service_step(link, desired, actual.named, ours, own).into(),
            (None, Some(ours)) => {
                self.remove(Subject::ExternalTarget, Some(Surplus::IpTargets), &ours.metadata)
            }
            (None, None) => NextStep::Done.into(),
        };
        let conflict: Decision = service();
        if let NextStep::Conflict { .. } = conflict.step {
            // kube-proxy routes a Service to the EndpointSlices that name it: a foreign Service mustn't get any of
            // ours.
            let theirs = |slice: &&&EndpointSlice| {
                let name = slice.metadata.name.as_deref();
                [IPV4, IPV6].iter().any(|end| name == Some(&slice_name(&link.external_target(), end)))
            };
            let slice = actual.slices.iter().find(theirs);
            return slice.map_or(conflict, |slice| self.remove_slice(slice, Surplus::ForeignService));
        }
        // Objects under a former name are removed only when the new external target exists.
        let new_exists =
            desired.service.is_none() || ours.is_some_and(|ours| ours.metadata.deletion_timestamp.is_none());
        let leftovers = || match actual.other_services.first().filter(|_| new_exists) {
            Some(former) => self.remove(Subject::FormerName, Some(Surplus::FormerName), &former.metadata),
            None => NextStep::Done.into(),
        };
        // When changing to addresses, write the slices before the Service; when changing away from addresses, in
        // reverse order. So the name always resolves.
        let wanted_slices = || {
            let mut steps = desired.slices.iter().map(|slice| self.slice_step(slice));
            steps.find(|decision| decision.step != NextStep::Done).unwrap_or(NextStep::Done.into())
        };
        let unwanted_slices = || {
            let wanted = |slice: &EndpointSlice| {
                desired.slices.iter().any(|desired| desired.metadata.name == slice.metadata.name)
            };
            let unwanted = actual.slices.iter().find(|slice| !wanted(slice));
            unwanted.map_or(NextStep::Done.into(), |slice| self.remove_slice(slice, Surplus::UnwantedSlice))
        };
        first_of([&wanted_slices, &service, &unwanted_slices, &leftovers])
    }

    fn slice_step(&self, desired: &EndpointSlice) -> Decision {
        let (actual, own) = (self.actual, self.policy.instance.as_deref());
        let same_name = |slice: &&&EndpointSlice| slice.metadata.name == desired.metadata.name;
        let ours = actual.slices.iter().find(same_name);
        let stranger = actual.foreign_slices.iter().find(same_name);
        let there = match (ours, stranger) {
            (Some(ours), _) => ours,
            // lb-linker has written this EndpointSlice, which has lost its labels.
            (None, Some(lost))
                if has_our_field_manager(&lost.metadata)
                    && link_of_labels(&lost.metadata).is_none()
                    && other_instance(&lost.metadata, own).is_none() =>
            {
                lost
            }
            (None, Some(stranger)) => {
                let why = match other_instance(&stranger.metadata, own) {
                    Some(other) => belongs_to(other),
                    None => "an EndpointSlice that lb-linker doesn't manage has its name".to_owned(),
                };
                let object = ObjectId::of(ObjectKind::EndpointSlice, &stranger.metadata);
                return NextStep::Conflict { object, why }.into();
            }
            (None, None) => return NextStep::Write(Write::Create(desired.clone().into())).into(),
        };
        if there.metadata.deletion_timestamp.is_some() {
            return NextStep::Done.into();
        }
        if there.address_type != desired.address_type {
            // The address type is immutable.
            return self.remove_slice(there, Surplus::UnwantedSlice);
        }
        if !slice_differs(there, desired) {
            return NextStep::Done.into();
        }
        let precondition = Precondition::of(&there.metadata);
        NextStep::Write(Write::Change { desired: desired.clone().into(), precondition }).into()
    }
}

/// Returns the Service that is the external target of a link and doesn't belong to another instance.
fn ours_of<'a>(link: &Link, actual: Actual<'a>, own: Option<&str>) -> Option<&'a Service> {
    let named = actual.named.filter(|object| link_of_labels(&object.metadata).as_ref() == Some(&link.key));
    named.filter(|object| !actual.is_named_foreign && other_instance(&object.metadata, own).is_none())
}

/// Returns the write that adds this instance's name to an object that names no instance: the earlier operator or an
/// older version of lb-linker has written the object. Returns `None` for the link of a gone Service.
#[must_use]
pub fn adoption(link: &Link, actual: Actual<'_>, policy: &SyncPolicy) -> Option<Write> {
    let own = policy.instance.as_deref().filter(|_| !link.is_gone())?;
    let service = ours_of(link, actual, Some(own)).map(|service| (ObjectKind::Service, &service.metadata));
    let slices = actual.slices.iter().map(|slice| (ObjectKind::EndpointSlice, &slice.metadata));
    let mut objects = service.into_iter().chain(slices);
    let names_no_instance =
        |metadata: &ObjectMeta| instance_of(metadata).is_none() && metadata.deletion_timestamp.is_none();
    let (kind, metadata) = objects.find(|(_, metadata)| names_no_instance(metadata))?;
    Some(Write::Annotate { id: ObjectId::of(kind, metadata), precondition: Precondition::of(metadata) })
}

/// Returns the write that repairs an unusable term on an object of a link: no number, or more than a day ahead of `now`
/// (Unix time in seconds). `term` is this leader's: after the clock was set back it may itself be too far ahead, and
/// writing it again wouldn't help.
#[must_use]
pub fn term_repair(
    link: &Link,
    actual: Actual<'_>,
    policy: &SyncPolicy,
    term: u64,
    now: u64,
) -> Option<Write> {
    let own = policy.instance.as_deref()?;
    let own_term = term.to_string();
    let is_own = |metadata: &ObjectMeta| {
        metadata.annotations.as_ref().and_then(|all| all.get(TERM)) == Some(&own_term)
    };
    let service = ours_of(link, actual, Some(own)).map(|service| (ObjectKind::Service, &service.metadata));
    let slices = actual.slices.iter().map(|slice| (ObjectKind::EndpointSlice, &slice.metadata));
    let (kind, metadata) = service.into_iter().chain(slices).find(|(_, metadata)| {
        metadata.deletion_timestamp.is_none()
            && RecordedTerm::of(metadata, now) == RecordedTerm::Unusable
            && !is_own(metadata)
    })?;
    Some(Write::Annotate { id: ObjectId::of(kind, metadata), precondition: Precondition::of(metadata) })
}

/// Returns the whole sequence of writes for a link.
#[must_use]
pub fn all_writes(link: &Link, actual: Actual<'_>, policy: &SyncPolicy, now: Instant) -> Vec<Write> {
    let mut named = actual.named.cloned();
    let mut others: Vec<Service> = actual.other_services.iter().map(|service| (*service).clone()).collect();
    let mut slices: Vec<EndpointSlice> = actual.slices.iter().map(|slice| (*slice).clone()).collect();
    let mut writes: Vec<Write> = Vec::new();
    loop {
        let (other_services, slice_refs): (Vec<_>, Vec<_>) =
            (others.iter().collect(), slices.iter().collect());
        let actual =
            Actual { named: named.as_ref(), other_services: &other_services, slices: &slice_refs, ..actual };
        let NextStep::Write(write) = next_step(link, actual, policy, now) else { return writes };
        if writes.contains(&write) {
            return writes;
        }
        match &write {
            Write::Create(Object::Service(made)) | Write::Change { desired: Object::Service(made), .. } => {
                named = Some((**made).clone());
            }
            Write::Create(Object::EndpointSlice(made))
            | Write::Change { desired: Object::EndpointSlice(made), .. } => {
                slices.retain(|slice| slice.metadata.name != made.metadata.name);
                slices.push((**made).clone());
            }
            Write::Annotate { .. } | Write::Finalizer { .. } => {}
            Write::Delete { id, .. } => {
                let is_it = |name: &Option<String>| name.as_ref() == Some(&id.name);
                match id.kind {
                    ObjectKind::EndpointSlice => slices.retain(|slice| !is_it(&slice.metadata.name)),
                    ObjectKind::LoadBalancer => {}
                    ObjectKind::Service => {
                        others.retain(|service| !is_it(&service.metadata.name));
                        named.take_if(|service| is_it(&service.metadata.name));
                    }
                }
            }
        }
        let last = matches!(write, Write::Finalizer { .. });
        writes.push(write);
        if last {
            return writes;
        }
    }
}

fn first_of(decisions: [&dyn Fn() -> Decision; 4]) -> Decision {
    let mut decisions = decisions.iter().map(|decide| decide());
    decisions.find(|decision| decision.step != NextStep::Done).unwrap_or(NextStep::Done.into())
}

fn service_step(
    link: &Link,
    desired: &Service,
    named: Option<&Service>,
    ours: Option<&Service>,
    own: Option<&str>,
) -> NextStep {
    let Some(object) = named else {
        return NextStep::Write(Write::Create(desired.clone().into()));
    };
    let ours = match (ours, foreign_reason(object, own)) {
        (Some(ours), _) => ours,
        (None, None) => object,
        (None, Some(why)) => {
            return NextStep::Conflict { object: ObjectId::service(&link.external_target()), why };
        }
    };
    if ours.metadata.deletion_timestamp.is_some() || !service_differs(ours, desired) {
        // An object that is being deleted can't be kept: it is created again when the watch reports its deletion.
        return NextStep::Done;
    }
    let mut desired = desired.clone();
    let allocated = ours.spec.cluster_ip.as_deref().is_some_and(|ip| !ip.is_empty() && ip != HEADLESS.1);
    if allocated && desired.spec.cluster_ip.is_some() {
        // An allocated clusterIP can't be changed to `None` directly, only through type ExternalName.
        desired.spec = Spec::external_name(&placeholder_name(&link.external_target()));
    }
    NextStep::Write(Write::Change { desired: desired.into(), precondition: Precondition::of(&ours.metadata) })
}

/// Returns the reason why an object with the external target's name is foreign; `None` for an ExternalName Service made
/// by hand, which is adopted, and for an object of ours that has lost its labels, which is taken back.
fn foreign_reason(object: &Service, own: Option<&str>) -> Option<String> {
    let metadata = &object.metadata;
    // Without an instance of its own, lb-linker knows those of the objects that aren't labelled for the link.
    if let Some(other) = instance_of(metadata).filter(|instance| own != Some(*instance)) {
        return Some(belongs_to(other));
    }
    let owner = metadata.owner_references.iter().flatten().next();
    match (object.label(MANAGED_BY.0), link_of_labels(metadata), owner) {
        (_, Some(key), _) => Some(format!("it is labelled as the external target of {key}")),
        (Some(manager), ..) if manager != MANAGED_BY.1 => {
            Some(format!("its label {} says {}", MANAGED_BY.0, value(manager)))
        }
        (.., Some(owner)) => {
            let (kind, name) = (sentence(&owner.kind), sentence(&owner.name));
            Some(format!("{kind} {name} owns it (ownerReferences)"))
        }
        _ if object.annotation(SOURCE).is_some() => {
            Some(format!("it follows what its annotation {SOURCE} says"))
        }
        _ if object.spec.type_.as_deref() == Some(EXTERNAL_NAME) => None,
        // A headless Service that we have written. A load balancer, to which we write our finalizer, isn't headless.
        _ if object.spec.cluster_ip.as_deref() == Some(HEADLESS.1) && has_our_field_manager(metadata) => None,
        _ => Some(format!("it is no {EXTERNAL_NAME} Service and doesn't carry lb-linker's labels")),
    }
}

/// Returns the reason for an object of another instance.
fn belongs_to(instance: &str) -> String {
    format!("it belongs to the lb-linker instance {} (annotation {INSTANCE})", value(instance))
}

#[cfg(test)]
mod tests;
