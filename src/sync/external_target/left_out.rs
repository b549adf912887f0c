//! Decides about the external targets at a start that would remove most of them: a flag may leave their Services out by
//! mistake, or the Services may all be gone. Pure functions, and the look-up of the Services.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Client, Resource};

use super::decision::{NextStep, OnDelete, SyncPolicy, Write};
use super::desired::IpTargets;
use crate::model::link::Target;
use crate::model::service_key::ServiceKey;
use crate::model::uid::Uid;
use crate::sync::k8s::deserialize_guard::RawDeserializeGuard;
use crate::sync::k8s::errors::{ListError, in_place};
use crate::sync::k8s::forbidden::Forbidden;
use crate::sync::k8s::service::{LOAD_BALANCER, MANAGED, Service};
use crate::sync::k8s::watch::{RequestQuery, key_of, list_pages};
use crate::sync::source::file_watcher::DirectoryError;
use crate::sync::source::manifests;
use crate::sync::source::selection::Selection;

/// Additional delay, beyond `--delete-delay`, before the removal of an external target if most external targets would
/// be removed at a start.
pub const EXTRA_DELETE_DELAY: Duration = Duration::from_secs(600);

/// A flag that leaves Services out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Flag {
    WatchNamespaces,
    ServiceSelector,
    Selection,
    /// `--ip-targets`, which leaves out only the external target.
    IpTargets,
}

impl Flag {
    pub const ALL: [Self; 4] =
        [Self::WatchNamespaces, Self::ServiceSelector, Self::Selection, Self::IpTargets];

    /// Returns the flag that leaves out an existing Service with this metadata; `None` if none does.
    #[must_use]
    fn of(key: &ServiceKey, metadata: &ObjectMeta, selection: &Selection) -> Option<Self> {
        if !selection.watches(key.namespace()) {
            Some(Self::WatchNamespaces)
        } else if !selection.matches_labels(metadata) {
            Some(Self::ServiceSelector)
        } else if selection.annotated_only && managed(metadata) != Some("true") {
            Some(Self::Selection)
        } else {
            None
        }
    }
}

impl fmt::Display for Flag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::WatchNamespaces => "--watch-namespaces",
            Self::ServiceSelector => "--service-selector",
            Self::Selection => "--selection",
            Self::IpTargets => "--ip-targets",
        })
    }
}

/// The result of the look-up of a load balancer that isn't selected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The Service exists, or may exist in a namespace that lb-linker may not read.
    Exists {
        /// The uid, if the Service could be listed.
        uid: Option<Uid>,
        flag: Option<Flag>,
    },
    /// The namespace is watched, and an authorizer refuses to list it at present.
    Unknown,
    /// The Service exists and opts out by its annotation.
    OptedOut,
    /// The Service is gone, isn't a load balancer any more, or is another Service of the same name.
    Gone,
}

/// What is kept of an existing Service. Its labels and annotations may be large, and aren't kept.
#[derive(Clone, Debug)]
struct FoundService {
    uid: Uid,
    has_opted_out: bool,
    flag: Option<Flag>,
}

/// The looked-up load balancers that exist.
#[derive(Clone, Debug, Default)]
pub struct LookupResult {
    services: HashMap<ServiceKey, FoundService>,
    /// Namespaces that aren't watched and may not be listed.
    forbidden: BTreeSet<String>,
    /// Watched namespaces that an authorizer has refused to list.
    refused: BTreeSet<String>,
}

impl LookupResult {
    /// Decides about a load balancer, given the uid `recorded` on its external target. Without a recorded uid any
    /// Service of the same name counts as the same.
    #[must_use]
    pub fn judge(&self, key: &ServiceKey, recorded: &Uid) -> Verdict {
        if self.refused.contains(key.namespace()) {
            return Verdict::Unknown;
        }
        if self.forbidden.contains(key.namespace()) {
            return Verdict::Exists { uid: None, flag: Some(Flag::WatchNamespaces) };
        }
        match self.services.get(key) {
            Some(service) if !recorded.is_empty() && service.uid != *recorded => Verdict::Gone,
            Some(service) if service.has_opted_out => Verdict::OptedOut,
            Some(service) => Verdict::Exists { uid: Some(service.uid.clone()), flag: service.flag },
            None => Verdict::Gone,
        }
    }

    /// Returns whether watched namespaces were refused.
    #[must_use]
    pub fn is_incomplete(&self) -> bool {
        !self.refused.is_empty()
    }

    fn add(
        &mut self,
        wanted: &HashSet<ServiceKey>,
        key: ServiceKey,
        metadata: &ObjectMeta,
        selection: &Selection,
    ) {
        // A Service that is being deleted counts as gone.
        if metadata.deletion_timestamp.is_none() && wanted.contains(&key) {
            let found = FoundService {
                uid: metadata.uid.as_deref().unwrap_or_default().into(),
                has_opted_out: managed(metadata) == Some("false"),
                flag: Flag::of(&key, metadata, selection),
            };
            self.services.insert(key, found);
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum LookupError {
    #[error(transparent)]
    List(#[from] ListError),
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// The task that reads the directory panicked.
    #[error("{0}")]
    Panic(#[from] tokio::task::JoinError),
}

/// The place to look up load balancers.
#[derive(Clone)]
pub enum ServiceLookup {
    Cluster(Client),
    Manifests(PathBuf),
}

impl ServiceLookup {
    /// Looks up which of the `wanted` load balancers exist, regardless of the flags, by a single list of the metadata
    /// of all load balancers. If this list is forbidden and `--watch-namespaces` is set, lists each watched namespace
    /// of `wanted`; the namespaces that aren't watched count as `LookupResult::forbidden`. If an authorizer refuses the
    /// list of a watched namespace, the look-up continues with the next namespace.
    ///
    /// # Errors
    /// If a list fails for another reason, or the directory can't be read.
    pub async fn look_up(
        &self,
        wanted: &HashSet<ServiceKey>,
        selection: &Selection,
    ) -> Result<LookupResult, LookupError> {
        let mut existing = LookupResult::default();
        let client = match self {
            Self::Cluster(client) => client,
            Self::Manifests(directory) => {
                let directory = directory.clone();
                let read =
                    tokio::task::spawn_blocking(move || manifests::load_balancers(&directory)).await??;
                for service in &read {
                    existing.add(wanted, service.key(), &service.metadata, selection);
                }
                return Ok(existing);
            }
        };
        let forbidden = match list(client, None, wanted, selection, &mut existing).await {
            Err(error) if error.code() == 403 && !selection.namespaces.is_empty() => error,
            listed => return Ok(listed.map(|()| existing)?),
        };
        let namespaces: BTreeSet<&str> = wanted.iter().map(ServiceKey::namespace).collect();
        for namespace in namespaces {
            if !selection.watches(namespace) {
                existing.forbidden.insert(namespace.to_owned());
                continue;
            }
            match list(client, Some(namespace), wanted, selection, &mut existing).await {
                Err(error) if Forbidden::lists_services(&error.source) => {
                    existing.refused.insert(namespace.to_owned());
                }
                listed => listed?,
            }
        }
        tracing::debug!("only the watched namespaces are looked at: {forbidden}");
        Ok(existing)
    }
}

fn managed(metadata: &ObjectMeta) -> Option<&str> {
    metadata.annotations.as_ref()?.get(MANAGED).map(String::as_str)
}

/// Adds the `wanted` load balancers of a namespace, or of all namespaces, to `existing`: lists only their metadata,
/// page by page.
async fn list(
    client: &Client,
    namespace: Option<&str>,
    wanted: &HashSet<ServiceKey>,
    selection: &Selection,
    existing: &mut LookupResult,
) -> Result<(), ListError> {
    let query = RequestQuery {
        namespace: namespace.map(ToOwned::to_owned),
        fields: format!("spec.type={LOAD_BALANCER}"),
        metadata_only: true,
        ..RequestQuery::default()
    };
    let on_page = |page: Vec<RawDeserializeGuard<Service>>| {
        for service in page {
            existing.add(wanted, key_of(&service), service.meta(), selection);
        }
    };
    let listed = list_pages(client.clone(), &query, on_page).await;
    listed
        .map_err(|source| ListError { what: in_place("load balancers", namespace), source: Box::new(source) })
}

/// Returns whether `--ip-targets` allows an external target for a Service with this target.
#[must_use]
pub fn allows_external_target(target: &Target, how: IpTargets) -> bool {
    match (target, how) {
        (Target::Hostname(_), _) | (Target::Addresses(_), IpTargets::Headless) => true,
        (Target::Addresses(ips), IpTargets::ExternalName) => ips.iter().any(|ip| ip.is_ipv4()),
        (Target::Addresses(_), IpTargets::Skip) => false,
    }
}

/// Returns the postponed step for the link of a Service that is gone together with most other Services: the removal
/// waits ten minutes longer than `--delete-delay`, and other writes wait ten minutes. Changes of the finalizer don't
/// wait.
#[must_use]
pub fn postponed(step: NextStep, since: Instant, policy: &SyncPolicy, now: Instant) -> NextStep {
    if !matches!(step, NextStep::Write(_) | NextStep::Wait(_))
        || matches!(step, NextStep::Write(Write::Finalizer { .. }))
    {
        return step;
    }
    let delay = if policy.on_delete == OnDelete::Delete { policy.delete_delay } else { Duration::ZERO };
    match since.checked_add(delay).and_then(|due| due.checked_add(EXTRA_DELETE_DELAY)) {
        Some(due) if due <= now => step,
        Some(due) => NextStep::Wait(due),
        // The end of the delay is beyond the range of `Instant`: the removal is never due.
        None => NextStep::Done,
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Selector;
    use serde_json::json;

    use super::*;

    use crate::sync::external_target::deletion_budget::MaxDeletes;
    use crate::sync::external_target::desired::Precondition;
    use crate::sync::k8s::object::{ObjectId, ObjectKind};
    use crate::sync::test_support;

    fn existing(services: &[serde_json::Value], wanted: &[&str], selection: &Selection) -> LookupResult {
        let wanted = wanted.iter().map(|name| ServiceKey::new("shop", name)).collect();
        let mut existing = LookupResult::default();
        for metadata in services {
            let metadata: ObjectMeta = serde_json::from_value(metadata.clone()).unwrap();
            let key = ServiceKey::new("shop", metadata.name.as_deref().unwrap());
            existing.add(&wanted, key, &metadata, selection);
        }
        existing
    }

    fn selection(labels: &[(&str, &str)], annotated_only: bool, namespaces: &[&str]) -> Selection {
        Selection {
            labels: Selector::from_iter(
                labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())),
            ),
            annotated_only,
            namespaces: namespaces.iter().map(|name| (*name).to_owned()).collect(),
            target_namespace: None,
        }
    }

    #[test]
    fn verdict_names_the_flag_that_leaves_a_service_out() {
        let web = json!({"namespace": "shop", "name": "web", "uid": "u", "labels": {"tier": "web"}});
        let key = ServiceKey::new("shop", "web");
        for (selection, flag) in [
            (selection(&[], false, &[]), None),
            (selection(&[], false, &["shop"]), None),
            (selection(&[], false, &["shpo"]), Some(Flag::WatchNamespaces)),
            (selection(&[("tire", "web")], false, &[]), Some(Flag::ServiceSelector)),
            (selection(&[("tier", "web")], false, &[]), None),
            (selection(&[("tier", "web")], true, &[]), Some(Flag::Selection)),
        ] {
            let existing = existing(std::slice::from_ref(&web), &["web"], &selection);
            for recorded in ["u", ""] {
                let verdict = existing.judge(&key, &recorded.into());
                assert_eq!(verdict, Verdict::Exists { uid: Some("u".into()), flag }, "{selection:?}");
            }
            assert_eq!(existing.judge(&key, &"earlier".into()), Verdict::Gone, "recreated");
        }
    }

    #[test]
    fn verdict_distinguishes_opted_out_from_gone_services() {
        let managed = |value: &str| json!({MANAGED: value});
        let services = [
            json!({"namespace": "shop", "name": "out", "uid": "u", "annotations": managed("false")}),
            json!({"namespace": "shop", "name": "in", "uid": "u", "annotations": managed("true")}),
            json!({"namespace": "shop", "name": "going", "uid": "u", "deletionTimestamp": "2026-01-01T00:00:00Z"}),
            json!({"namespace": "shop", "name": "unasked", "uid": "u"}),
        ];
        let wanted = ["out", "in", "going", "gone"];
        let mut existing = existing(&services, &wanted, &selection(&[], true, &[]));
        let judge =
            |existing: &LookupResult, name| existing.judge(&ServiceKey::new("shop", name), &Uid::default());
        assert_eq!(judge(&existing, "out"), Verdict::OptedOut);
        assert_eq!(judge(&existing, "in"), Verdict::Exists { uid: Some("u".into()), flag: None });
        for name in ["going", "gone", "unasked"] {
            assert_eq!(judge(&existing, name), Verdict::Gone, "{name}");
        }
        existing.forbidden.insert("shop".to_owned());
        let may_exist = Verdict::Exists { uid: None, flag: Some(Flag::WatchNamespaces) };
        assert_eq!(judge(&existing, "gone"), may_exist, "it may not be looked up");
    }

    #[tokio::test]
    async fn refused_namespace_is_unknown_and_stops_no_look_up() {
        let (_, refusal) = test_support::status(
            403,
            "Forbidden",
            "services is forbidden: User \"lb-linker\" cannot list resource \"services\" in API group \"\"",
        );
        let client = test_support::client(move |request| match request.uri().path().contains("/open/") {
            true => (200, json!({"metadata": {"resourceVersion": "5"}, "items": []})),
            false => (403, refusal.clone()),
        });
        let key = |namespace| ServiceKey::new(namespace, "web");
        let wanted = ["closed", "open", "unwatched"].map(key).into();
        let selection = selection(&[], false, &["closed", "open"]);
        let existing = ServiceLookup::Cluster(client).look_up(&wanted, &selection).await.unwrap();
        assert!(existing.is_incomplete());
        let judge = |namespace| existing.judge(&key(namespace), &Uid::default());
        assert_eq!((judge("closed"), judge("open")), (Verdict::Unknown, Verdict::Gone));
        let flag = Some(Flag::WatchNamespaces);
        assert_eq!(judge("unwatched"), Verdict::Exists { uid: None, flag });
    }

    #[test]
    fn removal_of_most_targets_waits_ten_minutes_longer() {
        let since = Instant::now();
        let precondition = Precondition { uid: None, resource_version: None };
        let delete = NextStep::Write(Write::Delete {
            id: ObjectId { kind: ObjectKind::Service, name: "web-shop-ext".into() },
            precondition,
        });
        let minutes = |number: u64| Duration::from_secs(60 * number);
        for (on_delete, delay, due) in [
            (OnDelete::Delete, minutes(0), minutes(10)),
            (OnDelete::Delete, minutes(10), minutes(20)),
            (OnDelete::Tombstone, minutes(10), minutes(10)),
        ] {
            let policy = SyncPolicy { on_delete, delete_delay: delay, ..policy() };
            for step in [delete.clone(), NextStep::Wait(since + delay)] {
                let at = |after| postponed(step.clone(), since, &policy, since + after);
                assert_eq!(at(Duration::ZERO), NextStep::Wait(since + due), "{on_delete:?} {delay:?}");
                assert_eq!(at(due - Duration::from_millis(1)), NextStep::Wait(since + due));
                assert_eq!(at(due), step);
            }
        }
        let never = SyncPolicy { delete_delay: Duration::MAX, ..policy() };
        assert_eq!(postponed(delete, since, &never, since), NextStep::Done);
        for step in [NextStep::Done, NextStep::Forget] {
            assert_eq!(postponed(step.clone(), since, &policy(), since), step);
        }
    }

    fn policy() -> SyncPolicy {
        SyncPolicy { max_deletes: MaxDeletes::Share, ..test_support::policy(None) }
    }
}
