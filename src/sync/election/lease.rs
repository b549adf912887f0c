//! Reads and writes Leases in the same way as client-go, so that `kubectl get leases` shows the same as for other
//! controllers.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, OwnerReference};

use crate::sync::election::term::{RecordedTerm, TERM, unix};

#[derive(Clone, Copy, Debug)]
pub(super) struct Timing {
    /// Validity of a Lease after its last change.
    pub(super) lease: Duration,
    /// Time after which a holder that couldn't renew the Lease stops.
    pub(super) renew: Duration,
    /// Interval of renewals by the holder, and of reads by the other replicas.
    pub(super) retry: Duration,
}

impl Timing {
    /// The defaults of Kubernetes' own components.
    pub(super) const DEFAULT: Self = Self {
        lease: Duration::from_secs(15),
        renew: Duration::from_secs(10),
        retry: Duration::from_secs(2),
    };
}

/// The Pod that owns a Lease, with leader-for-life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LeaseOwner {
    pub(super) name: String,
    pub(super) uid: String,
}

/// Returns the holder of a Lease; `None` if the holder is missing or empty.
pub(super) fn holder(lease: &Lease) -> Option<&str> {
    lease.spec.as_ref()?.holder_identity.as_deref().filter(|holder| !holder.is_empty())
}

pub(super) fn owner(lease: &Lease) -> Option<LeaseOwner> {
    let mut owners = lease.metadata.owner_references.iter().flatten();
    let pod = owners.find(|owner| is_pod(owner))?;
    Some(LeaseOwner { name: pod.name.clone(), uid: pod.uid.clone() })
}

/// Returns the term recorded on a Lease, if it is usable at `now`.
pub(super) fn term(lease: &Lease, now: Timestamp) -> Option<u64> {
    RecordedTerm::of(&lease.metadata, unix(now)).term()
}

/// Returns the duration of a Lease after its last change: `usual` if the Lease names none, `None` for a Lease that ends
/// with its Pod.
pub(super) fn duration(lease: &Lease, usual: Duration) -> Option<Duration> {
    let seconds = lease.spec.as_ref().and_then(|spec| spec.lease_duration_seconds);
    match seconds.and_then(|seconds| u64::try_from(seconds).ok()) {
        Some(seconds) => Some(Duration::from_secs(seconds)),
        None if owner(lease).is_some() => None,
        None => Some(usual),
    }
}

/// Returns the Lease as its holder writes it in this term, based on the present Lease. With leader-for-life the Lease
/// has no duration.
pub(super) fn claim(
    there: Option<&Lease>,
    name: &str,
    identity: &str,
    pod: Option<&LeaseOwner>,
    duration: Duration,
    term: u64,
    now: Timestamp,
) -> Lease {
    let mut lease = there.cloned().unwrap_or_default();
    lease.metadata.name = Some(name.to_owned());
    lease.metadata.annotations.get_or_insert_default().insert(TERM.to_owned(), term.to_string());
    let owners = lease.metadata.owner_references.take().unwrap_or_default();
    let owners: Vec<_> = owners
        .into_iter()
        .filter(|owner| !is_pod(owner))
        .chain(pod.map(|pod| OwnerReference {
            api_version: "v1".to_owned(),
            kind: "Pod".to_owned(),
            name: pod.name.clone(),
            uid: pod.uid.clone(),
            ..Default::default()
        }))
        .collect();
    lease.metadata.owner_references = (!owners.is_empty()).then_some(owners);
    let spec = lease.spec.get_or_insert_with(LeaseSpec::default);
    if there.is_none_or(|there| holder(there) != Some(identity)) {
        spec.lease_transitions = Some(match there {
            Some(_) => spec.lease_transitions.unwrap_or_default().saturating_add(1),
            None => 0,
        });
        spec.acquire_time = Some(MicroTime(now));
    }
    spec.holder_identity = Some(identity.to_owned());
    spec.lease_duration_seconds =
        pod.is_none().then(|| i32::try_from(duration.as_secs()).unwrap_or(i32::MAX));
    spec.renew_time = Some(MicroTime(now));
    lease
}

pub(super) fn released(mut lease: Lease, now: Timestamp) -> Lease {
    let spec = lease.spec.get_or_insert_with(LeaseSpec::default);
    spec.holder_identity = Some(String::new());
    // The API server accepts no shorter duration.
    spec.lease_duration_seconds = Some(1);
    spec.acquire_time = Some(MicroTime(now));
    spec.renew_time = Some(MicroTime(now));
    lease
}

fn is_pod(owner: &OwnerReference) -> bool {
    owner.api_version == "v1" && owner.kind == "Pod"
}
