//! What the sources of a StableName offer.

use std::collections::{BTreeSet, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use super::object::ObservedStableName;
use crate::api::stable_name::Source;
use crate::model::clusters;
use crate::model::hostname::Hostname;
use crate::model::hostname_policy::HostnamePolicy;
use crate::model::link::{Annotations, Link, LinkState, Port, Target};
use crate::model::service_key::ServiceKey;
use crate::model::target_policy::Denied;
use crate::model::uid::Uid;
use crate::store::Store;
use crate::sync::k8s::annotations::ALLOW_FROM;
use crate::sync::k8s::listed::Reading;
use crate::sync::k8s::service::host_name;
use crate::sync::source::selection::Selection;
use crate::sync::source::service_links::service_link;
use crate::sync::source::unselected::{UnselectedService, UnselectedServices};
use crate::sync::stable_name::decision::spec::{Offer, Refusal, RefusalReason};
use crate::sync::stable_name::decision::status::AnnouncedTarget;

/// Where sources are looked up, and which of them are permitted.
#[derive(Clone, Copy)]
pub(super) struct Sources<'a> {
    pub(super) store: &'a Store,
    pub(super) unselected: &'a UnselectedServices,
    pub(super) selection: &'a Selection,
    pub(super) policy: &'a HostnamePolicy,
    /// The namespaces in which fixed targets may be checked by TCP; `*` for all.
    pub(super) tcp_check_namespaces: &'a BTreeSet<String>,
}

/// A living LoadBalancer Service, selected or not.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct SourceService {
    key: ServiceKey,
    pub(super) uid: Uid,
    target: Option<Target>,
    /// Whether the status of the Service is blank, and `target` is the last one.
    is_blank: bool,
    /// Whether the status of the Service names a target that isn't allowed.
    is_refused: bool,
    pub(super) ports: Arc<[Port]>,
    pub(super) annotations: Annotations,
}

impl SourceService {
    fn of_link(link: &Link) -> Option<Self> {
        let is_observed = !link.is_gone() && !link.is_left_out() && !link.was_never_observed();
        is_observed.then(|| Self {
            key: link.key.clone(),
            uid: link.uid.clone(),
            target: link.target.clone(),
            is_blank: link.state == LinkState::Stale && !link.refused,
            is_refused: link.refused,
            ports: Arc::clone(&link.ports),
            annotations: link.annotations.clone(),
        })
    }

    fn is_open_to(&self, namespace: &str) -> bool {
        self.key.namespace() == namespace || self.annotations.allows(namespace)
    }

    fn has_tcp_port(&self, port: u16) -> bool {
        self.ports.iter().any(|known| known.port == port && *known.protocol == *"TCP")
    }
}

impl Sources<'_> {
    /// Returns a living Service. `announced` is the target in use, which stays while its Service still has it.
    pub(super) fn service(&self, key: &ServiceKey, announced: Option<&Target>) -> Option<SourceService> {
        if let Some(service) = self.unselected.get(key) {
            let UnselectedService { observed, is_blank } = &*service;
            return Some(SourceService {
                key: key.clone(),
                uid: observed.uid.clone(),
                target: observed.ingress.clone().choose(announced),
                is_blank: *is_blank,
                is_refused: observed.refused,
                ports: Arc::clone(&observed.ports),
                annotations: observed.annotations.clone(),
            });
        }
        SourceService::of_link(&*service_link(self.store, key)?)
    }

    /// Returns whether the Service with this uid lets the namespace follow it; `None` if there is no such Service. The
    /// `likely` Services are searched first.
    pub(super) fn is_open_to(
        &self,
        uid: &Uid,
        namespace: &str,
        likely: impl IntoIterator<Item = ServiceKey>,
    ) -> Option<bool> {
        let found = likely.into_iter().filter_map(|key| self.service(&key, None));
        let found = found.into_iter().find(|service| service.uid == *uid);
        let found = found.or_else(|| self.service(&self.key_of(uid)?, None));
        found.map(|service| service.is_open_to(namespace))
    }

    /// Returns the key of the living Service with this uid.
    pub(super) fn key_of(&self, uid: &Uid) -> Option<ServiceKey> {
        if let Some(key) = self.unselected.key_of(uid) {
            return Some(key);
        }
        let links = self.store.links();
        let mut services = links.iter().filter_map(Link::service_link);
        services.find(|service| service.uid == *uid && !service.is_gone()).map(|service| service.key.clone())
    }

    /// Returns what each source offers, in the order of the spec. `reading` tells how far the Services beside a Service are
    /// known. Where lists are refused, only the announced target counts: what else was observed there may be outdated.
    pub(super) fn offers(
        &self,
        object: &ObservedStableName,
        announced: Option<&AnnouncedTarget>,
        reading: impl Fn(&ServiceKey) -> Reading,
    ) -> Vec<Offer> {
        let sources = object.sources().iter();
        sources.map(|source| self.offer(object, source, announced, &reading)).collect()
    }

    fn offer(
        &self,
        object: &ObservedStableName,
        source: &Source,
        announced: Option<&AnnouncedTarget>,
        reading: impl Fn(&ServiceKey) -> Reading,
    ) -> Offer {
        match object.service_of(source) {
            Some(key) => self.service_offer(object, &key, announced, reading(&key)),
            None => self.fixed_offer(object, source),
        }
    }

    fn service_offer(
        &self,
        object: &ObservedStableName,
        key: &ServiceKey,
        announced: Option<&AnnouncedTarget>,
        reading: Reading,
    ) -> Offer {
        let namespace = object.key.namespace();
        let in_use = announced.map(|announced| &announced.target);
        let is_announced = |service: &SourceService| {
            announced.is_some_and(|it| it.uid == service.uid && service.target.as_ref() == Some(&it.target))
        };
        let service = self.service(key, in_use).filter(|service| service.is_open_to(namespace));
        let service = service.filter(|service| reading != Reading::Refused || is_announced(service));
        let unread = (reading != Reading::Permitted).then(|| self.unread(key));
        let Some(service) = service.filter(|_| self.selection.watches(key.namespace())) else {
            return match unread {
                // Whether the Service has the announced target isn't known: the target is checked as before.
                Some(unread) if reading == Reading::Refused => {
                    let uid = announced.map(|announced| announced.uid.clone()).unwrap_or_default();
                    Offer { uid, refusal: Some(unread), ..Offer::default() }
                }
                unread => {
                    let unread = unread.map(|unread| format!("; {}", unread.message)).unwrap_or_default();
                    let absent = self.absent(key, namespace);
                    refused(RefusalReason::RefNotPermitted, format!("{absent}{unread}"))
                }
            };
        };
        let unread = unread.map(|unread| unread.message);
        let uid = service.uid.clone();
        let tcp_port = object.failover_spec().check.tcp_port;
        if let Some(port) = tcp_port.filter(|port| !service.has_tcp_port(*port)) {
            let message = format!("Service {} has no TCP port {port}", name_for(key, namespace));
            let refused = refused(RefusalReason::CheckRefused, message);
            return Offer { uid, target: service.target, ..refused };
        }
        let own_link = (*key == object.key).then(|| self.store.get(key)).flatten();
        let is_live_link =
            own_link.is_some_and(|link| link.active_override().is_none() && link.target == service.target);
        let allowed = service.target.as_ref().map(|target| self.check(target, namespace)).transpose();
        let refusal = match allowed {
            Ok(_) if service.is_refused => "its status names a target that isn't allowed".to_owned(),
            Ok(_) => {
                // A process that has begun while the status was blank knows the last target if it is in use.
                let is_last =
                    |it: &&AnnouncedTarget| service.target.is_none() && it.uid == uid && !uid.is_empty();
                let last = announced.filter(is_last);
                let last = last.and_then(|it| self.allowed(&it.target, false, namespace));
                let is_blank = service.is_blank || last.is_some();
                let target = service.target.or(last);
                return Offer { uid, target, refusal: None, is_live_link, is_blank, unread };
            }
            Err(why) => why,
        };
        Offer { uid, target: service.target, ..refused(RefusalReason::TargetRefused, refusal) }
    }

    /// Returns why the Services beside a Service aren't known, or not any more.
    fn unread(&self, key: &ServiceKey) -> Refusal {
        let Some(cluster) = key.cluster() else {
            let message = format!("lb-linker may not list the Services of namespace {}", key.namespace());
            return Refusal { reason: RefusalReason::Forbidden, message };
        };
        let is_remote = self.policy.remotes.iter().any(|remote| **remote == *cluster);
        let message = match is_remote {
            true => format!("the Services of cluster {cluster} aren't listed yet"),
            false => self.unknown(cluster),
        };
        Refusal { reason: RefusalReason::NotListed, message }
    }

    /// Returns a message about a cluster without `--remote`.
    fn unknown(&self, cluster: &str) -> String {
        let HostnamePolicy { home, remotes, .. } = self.policy;
        if **home == *cluster {
            return format!("cluster {cluster} is the one of the StableName: leave out the field cluster");
        }
        let known = if remotes.is_empty() { "none".to_owned() } else { remotes.join(", ") };
        format!("no flag --remote names cluster {cluster}; the remote clusters are: {known}")
    }

    /// Returns a message about a Service that the namespace can't use.
    fn absent(&self, key: &ServiceKey, namespace: &str) -> String {
        if key.cluster().is_some() {
            // One text: tenants mustn't learn which Services of other namespaces exist.
            let entry = clusters::in_cluster(Some(&self.policy.home), namespace);
            return format!("no LoadBalancer Service {key} lists {entry} in {ALLOW_FROM}");
        }
        if !self.selection.watches(key.namespace()) {
            return format!(
                "--watch-namespaces leaves out namespace {}, so its Services aren't known",
                key.namespace()
            );
        }
        if key.namespace() != namespace {
            return format!("no LoadBalancer Service {key} lets namespace {namespace} follow it");
        }
        let labels =
            if self.selection.labels.selects_all() { "" } else { " with the labels of --service-selector" };
        format!("there is no LoadBalancer Service {}{labels}", key.name())
    }

    fn fixed_offer(&self, object: &ObservedStableName, source: &Source) -> Offer {
        let namespace = object.key.namespace();
        let Some(target) = fixed_target(source) else { return Offer::default() };
        let is_permitted =
            ["*", namespace].iter().any(|allowed| self.tcp_check_namespaces.contains(*allowed));
        if object.failover_spec().check.tcp_port.is_some() && !is_permitted {
            let message = format!("TCP checks of fixed targets need {namespace} in --tcp-check-namespaces");
            return Offer { target: Some(target), ..refused(RefusalReason::CheckRefused, message) };
        }
        match self.check_fixed(&target, namespace) {
            Ok(()) => Offer { target: Some(target), ..Offer::default() },
            Err(why) => Offer { target: Some(target), ..refused(RefusalReason::TargetRefused, why) },
        }
    }

    /// Checks a target against the target policy.
    ///
    /// # Errors
    /// The reason why it is denied.
    fn check(&self, target: &Target, namespace: &str) -> Result<(), String> {
        let policy = &self.policy.targets;
        match target {
            Target::Hostname(host) => {
                self.check_host(host, namespace).map_err(|denied| format!("{host}: {denied}"))
            }
            Target::Addresses(addresses) => addresses.iter().try_for_each(|address| {
                policy.check_address(*address).map_err(|denied| format!("{address}: {denied}"))
            }),
        }
    }

    fn check_host(&self, host: &Hostname, namespace: &str) -> Result<(), Denied> {
        self.policy.targets.check_host(namespace, &host.name(), |name| self.store.link_of_host(name))
    }

    /// Checks a fixed target, which must lie outside the zones of links.
    fn check_fixed(&self, target: &Target, namespace: &str) -> Result<(), String> {
        if let Target::Hostname(host) = target
            && self.policy.targets.zones.iter().any(|zone| zone.zone_of(&host.name()))
        {
            return Err(format!("{host}: it lies in lb-linker's own zone"));
        }
        self.check(target, namespace)
    }

    /// Returns whether this replica's target policy denies a target. `announced` is the target in use, if there is one.
    pub(super) fn denies(
        &self,
        target: &Target,
        announced: Option<&AnnouncedTarget>,
        namespace: &str,
    ) -> bool {
        let fixed = announced.filter(|announced| announced.target == *target && announced.uid.is_empty());
        self.allowed(target, fixed.is_some(), namespace).is_none()
    }

    /// Returns the part of an announced target that this replica's target policy allows. A target in a zone of links
    /// stays while the Service that owns its name is left out: what that Service allows isn't known.
    pub(super) fn allowed(&self, announced: &Target, is_fixed: bool, namespace: &str) -> Option<Target> {
        let checked = match announced {
            Target::Addresses(_) => return self.policy.targets.allowed(announced.clone()),
            Target::Hostname(_) if is_fixed => self.check_fixed(announced, namespace),
            Target::Hostname(host) => match self.check_host(host, namespace) {
                Err(Denied::OtherNamespace { owner, .. })
                    if self.store.get(&owner).is_some_and(|link| link.is_left_out()) =>
                {
                    Ok(())
                }
                checked => checked.map_err(|denied| denied.to_string()),
            },
        };
        checked.is_ok().then(|| announced.clone())
    }
}

fn refused(reason: RefusalReason, message: String) -> Offer {
    Offer { refusal: Some(Refusal { reason, message }), ..Offer::default() }
}

fn name_for(key: &ServiceKey, namespace: &str) -> String {
    if key.namespace() == namespace { key.name().to_owned() } else { key.to_string() }
}

/// Returns the target of a source without a Service. The spec has been validated.
fn fixed_target(source: &Source) -> Option<Target> {
    if let Some(host) = &source.hostname {
        return Some(Target::Hostname(Hostname::from(&host_name(host).ok()?)));
    }
    let addresses: Option<Vec<IpAddr>> =
        source.addresses.iter().flatten().map(|text| text.parse().ok()).collect();
    let mut known = HashSet::new();
    let distinct: Box<[IpAddr]> = addresses?.into_iter().filter(|address| known.insert(*address)).collect();
    (!distinct.is_empty()).then_some(Target::Addresses(distinct))
}

#[cfg(test)]
mod tests {
    use std::slice::from_ref;

    use hickory_proto::rr::Name;
    use serde_json::json;

    use super::*;
    use crate::model::target_policy::TargetPolicy;
    use crate::store::OnGone;
    use crate::sync::k8s::service::Service;
    use crate::sync::source::service_links::insert_left_out;
    use crate::sync::stable_name::controller::status_format::{PublishedNames, from_stored, to_stored};
    use crate::sync::stable_name::decision::status::FailoverStatus;

    #[test]
    fn announced_name_of_a_left_out_service_stays_allowed() {
        let name = |text| Name::from_ascii(text).unwrap();
        let store = Store::new(OnGone::Kept).with_zones(&[name("lb.internal.")]);
        let targets = TargetPolicy { zones: vec![name("lb.internal.")], ..TargetPolicy::default() };
        let policy = HostnamePolicy { targets, ..HostnamePolicy::default() };
        let sources = Sources {
            store: &store,
            policy: &policy,
            selection: &Selection::default(),
            unselected: &UnselectedServices::default(),
            tcp_check_namespaces: &BTreeSet::new(),
        };
        let announced = Target::Hostname(Hostname::from(&name("lb.infra.lb.internal.")));
        let is_allowed = || sources.allowed(&announced, false, "shop").is_some();
        assert!(!is_allowed(), "the name has no owner");
        let address = Some(Target::Addresses(["192.0.2.1".parse().unwrap()].into()));
        insert_left_out(&store, &ServiceKey::new("infra", "lb"), "u".into(), address, Vec::new()).unwrap();
        assert!(is_allowed(), "what the owner allows isn't known");
        assert!(sources.check(&announced, "shop").is_err(), "no new target");
    }

    #[test]
    fn absent_service_is_unread_only_while_its_list_is_refused() {
        let (store, policy) = (Store::new(OnGone::Kept), HostnamePolicy::default());
        let sources = Sources {
            store: &store,
            policy: &policy,
            selection: &Selection::default(),
            unselected: &UnselectedServices::default(),
            tcp_check_namespaces: &BTreeSet::new(),
        };
        let object = json!({
            "apiVersion": "linker.hsj.com/v1alpha1", "kind": "StableName",
            "metadata": {"namespace": "shop", "name": "far"},
            "spec": {"sources": [{"name": "seoul", "service": {"name": "web"}}]},
            "status": {"target": {"source": "seoul", "hostname": "a.example", "serviceUID": "u"}},
        });
        let object = ObservedStableName::new(serde_json::from_value(object).unwrap());
        let announced = from_stored(&object.status).target;
        assert_eq!(announced.as_ref().unwrap().uid, Uid::from("u"));
        let offer = |reading| {
            let offer = sources.offers(&object, announced.as_ref(), |_| reading).remove(0);
            let Refusal { reason, message } = offer.refusal.unwrap();
            (offer.uid, reason, message)
        };
        let (absent, unread) =
            ("there is no LoadBalancer Service web", "lb-linker may not list the Services of namespace shop");
        let (none, of_target) = (Uid::default(), Uid::from("u"));
        let unpermitted = RefusalReason::RefNotPermitted;
        assert_eq!(offer(Reading::Permitted), (none.clone(), unpermitted, absent.to_owned()));
        assert_eq!(offer(Reading::Outdated), (none, unpermitted, format!("{absent}; {unread}")));
        assert_eq!(offer(Reading::Refused), (of_target, RefusalReason::Forbidden, unread.to_owned()));
    }

    #[test]
    fn service_of_a_remote_cluster_must_allow_the_home_namespace() {
        let (store, unselected) = (Store::new(OnGone::Kept), UnselectedServices::default());
        let policy = HostnamePolicy {
            home: "home".into(),
            remotes: ["west".into()].into(),
            ..HostnamePolicy::default()
        };
        let sources = Sources {
            store: &store,
            policy: &policy,
            selection: &Selection { namespaces: ["shop".to_owned()].into(), ..Selection::default() },
            unselected: &unselected,
            tcp_check_namespaces: &BTreeSet::new(),
        };
        let offer = |cluster: &str, reading| {
            let object = json!({
                "apiVersion": "linker.hsj.com/v1alpha1", "kind": "StableName",
                "metadata": {"namespace": "shop", "name": "far"},
                "spec": {"sources": [{"name": "a", "service": {"cluster": cluster, "name": "web"}}]},
            });
            let object = ObservedStableName::new(serde_json::from_value(object).unwrap());
            let offer = sources.offers(&object, None, |_| reading).remove(0);
            offer.refusal.map(|refusal| (refusal.reason, refusal.message))
        };
        let closed = "no LoadBalancer Service west/shop/web lists home/shop in linker.hsj.com/allow-from";
        let closed = Some((RefusalReason::RefNotPermitted, closed.to_owned()));
        let unlisted = |why: &str| Some((RefusalReason::NotListed, why.to_owned()));
        assert_eq!(offer("west", Reading::Permitted), closed, "it doesn't exist");
        for (allowed, expected) in [
            ("shop", &closed),
            ("west/shop", &closed),
            ("home/other", &closed),
            ("*", &closed),
            ("home/shop", &None),
            ("home/*", &None),
        ] {
            let annotations = json!({"linker.hsj.com/allow-from": allowed});
            let metadata = json!({"namespace": "west/shop", "name": "web", "annotations": annotations});
            let service = json!({"metadata": metadata, "spec": {"type": "LoadBalancer"}});
            let service: Service = serde_json::from_value(service).unwrap();
            unselected.insert(service.observe(&policy, &store).0);
            assert_eq!(offer("west", Reading::Permitted), *expected, "{allowed}");
        }
        let missing = "the Services of cluster west aren't listed yet";
        assert_eq!(offer("west", Reading::Refused), unlisted(missing));
        let unknown = "no flag --remote names cluster east; the remote clusters are: west";
        assert_eq!(offer("east", Reading::Refused), unlisted(unknown));
        let own = "cluster home is the one of the StableName: leave out the field cluster";
        assert_eq!(offer("home", Reading::Refused), unlisted(own));
    }

    #[test]
    fn blank_service_offers_its_last_target_also_without_a_link() {
        let name = |text| Hostname::from(&Name::from_ascii(text).unwrap());
        let announced = |uid: &str| AnnouncedTarget {
            source: "seoul".to_owned(),
            target: Target::Hostname(name("a.example.")),
            uid: uid.into(),
            since: jiff::Timestamp::UNIX_EPOCH,
            verified: true,
        };
        let policy = HostnamePolicy::default();
        let offer = |statuses: &[serde_json::Value], is_selected, announced: Option<AnnouncedTarget>| {
            let (store, unselected) = (Store::new(OnGone::Kept), UnselectedServices::default());
            for ingress in statuses {
                let service = json!({"metadata": {"namespace": "shop", "name": "web", "uid": "u"},
                    "spec": {"type": "LoadBalancer"}, "status": {"loadBalancer": {"ingress": ingress}}});
                let service: Service = serde_json::from_value(service).unwrap();
                let observed = service.observe(&policy, &store).0;
                if is_selected {
                    store.apply(observed);
                } else {
                    unselected.insert(observed);
                }
            }
            let sources = Sources {
                store: &store,
                policy: &policy,
                selection: &Selection::default(),
                unselected: &unselected,
                tcp_check_namespaces: &BTreeSet::new(),
            };
            let object = json!({
                "apiVersion": "linker.hsj.com/v1alpha1", "kind": "StableName",
                "metadata": {"namespace": "shop", "name": "far"},
                "spec": {"sources": [{"name": "seoul", "service": {"name": "web"}}]},
            });
            let object = ObservedStableName::new(serde_json::from_value(object).unwrap());
            let offer = sources.offers(&object, announced.as_ref(), |_| Reading::Permitted).remove(0);
            (offer.target.map(|target| target.to_string()), offer.is_blank)
        };
        let (full, blank) = (json!([{"hostname": "a.example"}]), json!([]));
        let last = (Some("a.example".to_owned()), true);
        assert_eq!(offer(from_ref(&full), true, None), (last.0.clone(), false));
        assert_eq!(offer(&[full, blank.clone()], true, None), last, "the link has it");
        for is_selected in [true, false] {
            let offer = |announced| offer(from_ref(&blank), is_selected, announced);
            assert_eq!(offer(Some(announced("u"))), last, "the status has it");
            assert_eq!(offer(Some(announced("another"))), (None, false));
            assert_eq!(offer(None), (None, false));
        }
    }

    #[test]
    fn source_outside_of_the_watched_namespaces_names_the_flag() {
        let (store, policy) = (Store::new(OnGone::Kept), HostnamePolicy::default());
        let sources = Sources {
            store: &store,
            policy: &policy,
            selection: &Selection { namespaces: ["shop".to_owned()].into(), ..Selection::default() },
            unselected: &UnselectedServices::default(),
            tcp_check_namespaces: &BTreeSet::new(),
        };
        for (namespace, why) in [
            ("shop", "there is no LoadBalancer Service web"),
            ("far", "--watch-namespaces leaves out namespace far, so its Services aren't known"),
        ] {
            assert_eq!(sources.absent(&ServiceKey::new(namespace, "web"), "shop"), why);
        }
    }

    #[test]
    fn repeated_addresses_count_once_as_in_the_status() {
        let addresses = json!(["2001:db8::1", "192.0.2.1", "2001:DB8:0::1", "192.0.2.1"]);
        let source = json!({"name": "fixed", "addresses": addresses});
        let target = fixed_target(&serde_json::from_value(source).unwrap()).unwrap();
        let expected = ["2001:db8::1", "192.0.2.1"].map(|text| text.parse().unwrap());
        assert_eq!(target, Target::Addresses(expected.into()));
        let announced = AnnouncedTarget {
            source: "fixed".to_owned(),
            target,
            uid: Uid::default(),
            since: jiff::Timestamp::UNIX_EPOCH,
            verified: true,
        };
        let status = FailoverStatus { target: Some(announced), ..FailoverStatus::default() };
        let stored = to_stored(&status, &PublishedNames { service: "", dns_names: &[] });
        assert_eq!(from_stored(&stored).target, status.target);
    }
}
