//! Decides about the external targets at a start that would remove most of them: a flag may leave their Services out by
//! mistake, or the Services may all be gone. Pure functions, and the look-up of the Services.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt;
use std::path::PathBuf;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Client, Resource};

use super::desired::IpTargets;
use crate::file_watcher::DirectoryError;
use crate::model::link::Target;
use crate::model::service_key::ServiceKey;
use crate::model::uid::Uid;
use crate::sync::k8s::deserialize_guard::RawDeserializeGuard;
use crate::sync::k8s::errors::{ListError, in_place};
use crate::sync::k8s::forbidden::Forbidden;
use crate::sync::k8s::service::{LOAD_BALANCER, Service};
use crate::sync::k8s::watch::{RequestQuery, key_of, list_pages};
use crate::sync::removal::facts::{Found, Membership, Which};
use crate::sync::source::manifests;
use crate::sync::source::selection::Selection;

/// A flag that leaves Services out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Flag {
    WatchNamespaces,
    ServiceSelector,
    Selection,
    LoadBalancerClasses,
    /// `--ip-targets`, which leaves out only the external target.
    IpTargets,
}

impl Flag {
    pub const ALL: [Self; 5] = [
        Self::WatchNamespaces,
        Self::ServiceSelector,
        Self::Selection,
        Self::LoadBalancerClasses,
        Self::IpTargets,
    ];

    /// Returns the flag that leaves out an existing Service with this metadata, and this `spec.loadBalancerClass` if
    /// `--load-balancer-classes` is set; `None` if none does.
    #[must_use]
    fn of(
        key: &ServiceKey,
        metadata: &ObjectMeta,
        class: Option<&str>,
        selection: &Selection,
    ) -> Option<Self> {
        if !selection.watches(key.namespace()) {
            Some(Self::WatchNamespaces)
        } else if !selection.matches_labels(metadata) {
            Some(Self::ServiceSelector)
        } else if selection.annotated_only && selection.opted(metadata) != Some("true") {
            Some(Self::Selection)
        } else if !selection.matches_class(class) {
            Some(Self::LoadBalancerClasses)
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
            Self::LoadBalancerClasses => "--load-balancer-classes",
            Self::IpTargets => "--ip-targets",
        })
    }
}

/// What is kept of an existing Service. Its labels and annotations may be large, and aren't kept.
#[derive(Clone, Debug)]
struct FoundService {
    uid: Uid,
    has_opted_out: bool,
    /// The flag that leaves it out.
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
    /// Watched namespaces that were listed one by one.
    listed: BTreeSet<String>,
}

impl LookupResult {
    /// Returns what was found of a load balancer, given the uid `recorded` on its external target. Without a recorded
    /// uid any Service of the same name counts as the same.
    #[must_use]
    pub fn found(&self, key: &ServiceKey, recorded: &Uid) -> Found {
        if self.refused.contains(key.namespace()) {
            return Found::Refused { is_lasting: false };
        }
        if self.forbidden.contains(key.namespace()) {
            return Found::same(Membership::NotSelected);
        }
        let Some(FoundService { uid, has_opted_out, flag }) = self.services.get(key) else {
            return Found::Absent;
        };
        let is_same = recorded.is_empty() || uid == recorded;
        let membership = match flag {
            _ if *has_opted_out => Membership::OptedOut,
            Some(_) => Membership::NotSelected,
            None => Membership::Selected,
        };
        let which = if is_same { Which::Same } else { Which::Another };
        Found::Exists { which, membership, is_open: true }
    }

    /// Returns the uid of a load balancer, if it could be listed.
    #[must_use]
    pub fn uid(&self, key: &ServiceKey) -> Option<Uid> {
        self.services.get(key).map(|service| service.uid.clone())
    }

    /// Returns the flag that leaves out a load balancer that exists, or may exist in a namespace that lb-linker may not
    /// read.
    #[must_use]
    pub fn flag(&self, key: &ServiceKey) -> Option<Flag> {
        let is_forbidden = self.forbidden.contains(key.namespace());
        let flag = self.services.get(key).and_then(|service| service.flag);
        flag.or(is_forbidden.then_some(Flag::WatchNamespaces))
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
        class: Option<&str>,
        selection: &Selection,
    ) {
        // A Service that is being deleted counts as gone.
        if metadata.deletion_timestamp.is_none() && wanted.contains(&key) {
            let found = FoundService {
                uid: metadata.uid.as_deref().unwrap_or_default().into(),
                has_opted_out: selection.opted(metadata) == Some("false"),
                flag: Flag::of(&key, metadata, class, selection),
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
    /// list of a watched namespace, the look-up continues with the next namespace. After an error, another call with the
    /// same `existing` doesn't list the namespaces again that are listed already.
    ///
    /// # Errors
    /// If a list fails for another reason, or the directory can't be read.
    pub async fn look_up(
        &self,
        wanted: &HashSet<ServiceKey>,
        selection: &Selection,
        existing: &mut LookupResult,
    ) -> Result<(), LookupError> {
        let mut all = LookupResult::default();
        let client = match self {
            Self::Cluster(client) => client,
            Self::Manifests(directory) => {
                let directory = directory.clone();
                let read =
                    tokio::task::spawn_blocking(move || manifests::load_balancers(&directory)).await??;
                for service in &read {
                    let class = service.spec.load_balancer_class.as_deref();
                    all.add(wanted, service.key(), &service.metadata, class, selection);
                }
                *existing = all;
                return Ok(());
            }
        };
        let forbidden = match list(client, None, wanted, selection, &mut all).await {
            Err(error) if error.code() == 403 && !selection.namespaces.is_empty() => error,
            listed => return Ok(listed.map(|()| *existing = all)?),
        };
        existing.refused.clear();
        let namespaces: BTreeSet<&str> = wanted.iter().map(ServiceKey::namespace).collect();
        for namespace in namespaces {
            if existing.listed.contains(namespace) {
                continue;
            }
            if !selection.watches(namespace) {
                existing.forbidden.insert(namespace.to_owned());
                continue;
            }
            let mut found = LookupResult::default();
            match list(client, Some(namespace), wanted, selection, &mut found).await {
                Err(error) if Forbidden::lists_services(&error.source) => {
                    existing.refused.insert(namespace.to_owned());
                }
                listed => {
                    listed?;
                    existing.services.extend(found.services);
                    existing.listed.insert(namespace.to_owned());
                }
            }
        }
        tracing::debug!("only the watched namespaces are looked at: {forbidden}");
        Ok(())
    }
}

/// Adds the `wanted` load balancers of a namespace, or of all namespaces, to `existing`: lists only their metadata,
/// unless `--load-balancer-classes` is set, page by page.
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
        metadata_only: selection.classes.is_empty(),
        ..RequestQuery::default()
    };
    let on_page = |page: Vec<RawDeserializeGuard<Service>>| {
        for service in page {
            let spec = service.0.as_ref().ok().map(|service| &service.spec);
            let class = spec.and_then(|spec| spec.load_balancer_class.as_deref());
            existing.add(wanted, key_of(&service), service.meta(), class, selection);
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use kube::core::Selector;
    use parking_lot::Mutex;
    use serde_json::json;

    use super::*;

    use crate::sync::k8s::service::MANAGED;
    use crate::sync::test_support;

    fn existing(services: &[serde_json::Value], wanted: &[&str], selection: &Selection) -> LookupResult {
        let wanted = wanted.iter().map(|name| ServiceKey::new("shop", name)).collect();
        let mut existing = LookupResult::default();
        for metadata in services {
            let metadata: ObjectMeta = serde_json::from_value(metadata.clone()).unwrap();
            let key = ServiceKey::new("shop", metadata.name.as_deref().unwrap());
            existing.add(&wanted, key, &metadata, None, selection);
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
            ..Selection::default()
        }
    }

    #[test]
    fn look_up_names_the_flag_that_leaves_a_service_out() {
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
            let membership = if flag.is_some() { Membership::NotSelected } else { Membership::Selected };
            for recorded in ["u", ""] {
                assert_eq!(existing.found(&key, &recorded.into()), Found::same(membership), "{selection:?}");
            }
            assert_eq!((existing.uid(&key), existing.flag(&key)), (Some("u".into()), flag));
            let recreated = existing.found(&key, &"earlier".into());
            assert!(matches!(recreated, Found::Exists { which: Which::Another, .. }), "{recreated:?}");
        }
        let selection = Selection { classes: ["none".to_owned()].into(), ..Selection::default() };
        let metadata: ObjectMeta = serde_json::from_value(web).unwrap();
        for (class, flag) in [(None, None), (Some("tailscale"), Some(Flag::LoadBalancerClasses))] {
            let mut existing = LookupResult::default();
            existing.add(&[key.clone()].into(), key.clone(), &metadata, class, &selection);
            assert_eq!(existing.flag(&key), flag);
        }
    }

    #[test]
    fn look_up_distinguishes_opted_out_from_gone_services() {
        let managed = |value: &str| json!({MANAGED: value});
        let services = [
            json!({"namespace": "shop", "name": "out", "uid": "u", "annotations": managed("false")}),
            json!({"namespace": "shop", "name": "in", "uid": "u", "annotations": managed("true")}),
            json!({"namespace": "shop", "name": "going", "uid": "u", "deletionTimestamp": "2026-01-01T00:00:00Z"}),
            json!({"namespace": "shop", "name": "unasked", "uid": "u"}),
        ];
        let wanted = ["out", "in", "going", "gone"];
        let mut existing = existing(&services, &wanted, &selection(&[], true, &[]));
        let found =
            |existing: &LookupResult, name| existing.found(&ServiceKey::new("shop", name), &Uid::default());
        assert_eq!(found(&existing, "out"), Found::same(Membership::OptedOut));
        assert_eq!(found(&existing, "in"), Found::same(Membership::Selected));
        for name in ["going", "gone", "unasked"] {
            assert_eq!(found(&existing, name), Found::Absent, "{name}");
        }
        existing.forbidden.insert("shop".to_owned());
        assert_eq!(found(&existing, "gone"), Found::same(Membership::NotSelected), "it may not be looked up");
        assert_eq!(existing.flag(&ServiceKey::new("shop", "gone")), Some(Flag::WatchNamespaces));
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
        let mut existing = LookupResult::default();
        ServiceLookup::Cluster(client).look_up(&wanted, &selection, &mut existing).await.unwrap();
        assert!(existing.is_incomplete());
        let found = |namespace| existing.found(&key(namespace), &Uid::default());
        assert_eq!((found("closed"), found("open")), (Found::Refused { is_lasting: false }, Found::Absent));
        assert_eq!(found("unwatched"), Found::same(Membership::NotSelected));
        assert_eq!(existing.flag(&key("unwatched")), Some(Flag::WatchNamespaces));
    }

    #[tokio::test]
    async fn look_up_after_an_error_continues_with_the_failed_namespace() {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&asked);
        let client = test_support::client(move |request| {
            let namespace = request.uri().path().split('/').nth(4).unwrap_or_default().to_owned();
            let mut asked = log.lock();
            asked.push(namespace.clone());
            let item = json!({"metadata": {"namespace": namespace, "name": "web", "uid": "u"}});
            match &*namespace {
                "services" | "" => test_support::status(403, "Forbidden", "no"),
                "b" if asked.iter().filter(|asked| *asked == "b").count() == 1 => {
                    test_support::status(500, "InternalError", "no")
                }
                _ => (200, json!({"metadata": {"resourceVersion": "5"}, "items": [item]})),
            }
        });
        let key = |namespace| ServiceKey::new(namespace, "web");
        let (wanted, selection) = (["a", "b", "c"].map(key).into(), selection(&[], false, &["a", "b", "c"]));
        let (look_up, mut existing) = (ServiceLookup::Cluster(client), LookupResult::default());
        assert!(look_up.look_up(&wanted, &selection, &mut existing).await.is_err());
        look_up.look_up(&wanted, &selection, &mut existing).await.unwrap();
        assert_eq!(*asked.lock(), ["", "a", "b", "", "b", "c"]);
        for namespace in ["a", "b", "c"] {
            assert_eq!(existing.uid(&key(namespace)), Some("u".into()), "{namespace}");
        }
    }
}
