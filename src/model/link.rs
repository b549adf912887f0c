//! A link: the state of one LoadBalancer Service.

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, OnceLock, Weak};
use std::time::{Duration, Instant};

use parking_lot::RwLock;
use serde::{Deserialize, Deserializer, Serialize};

use crate::model::clusters;
use crate::model::hostname::Hostname;
use crate::model::link_override::OverriddenLink;
use crate::model::names;
use crate::model::owner::Owner;
use crate::model::persisted_target::PersistedTarget;
use crate::model::records::Records;
use crate::model::service_key::ServiceKey;
use crate::model::uid::Uid;

/// [`Link::created`] of a link whose Service was never observed: the last rank for names.
pub(crate) const RANK_NEVER_OBSERVED: i64 = i64::MAX;

/// [`Link::created`] of a link whose Service has no creation time: the first rank for names. The keys decide between
/// such links.
pub(crate) const RANK_WITHOUT_CREATION_TIME: i64 = i64::MIN;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Port {
    /// The name; `None` if it is empty.
    #[serde(default, deserialize_with = "empty_is_none", skip_serializing_if = "Option::is_none")]
    pub name: Option<Box<str>>,
    /// `TCP`, `UDP` or `SCTP`.
    #[serde(default = "tcp", deserialize_with = "null_is_tcp")]
    pub protocol: Box<str>,
    pub port: u16,
    /// The value of `appProtocol`; `None` if it is empty.
    #[serde(default, deserialize_with = "empty_is_none", skip_serializing_if = "Option::is_none")]
    pub app_protocol: Option<Box<str>>,
}

pub(crate) fn tcp() -> Box<str> {
    "TCP".into()
}

/// Deserializes the protocol of a port. Kubernetes treats an explicit `null` as absent, which means TCP.
pub(crate) fn null_is_tcp<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Box<str>, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_else(tcp))
}

/// Deserializes an optional text of the API, where an empty text means `None`.
pub(crate) fn empty_is_none<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Box<str>>, D::Error> {
    Ok(Option::<Box<str>>::deserialize(deserializer)?.filter(|text| !text.is_empty()))
}

/// A LoadBalancer Service as observed by a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedService {
    pub key: ServiceKey,
    /// `metadata.uid`; empty if the source has none (manifests).
    pub uid: Uid,
    /// `metadata.creationTimestamp` in seconds since 1970, if the source has one.
    pub created: Option<i64>,
    /// `metadata.resourceVersion`, if the source has one.
    pub resource_version: Option<u64>,
    /// The usable part of `status.loadBalancer.ingress`.
    pub ingress: Ingress,
    /// `spec.ports`, sorted.
    pub ports: Arc<[Port]>,
    pub annotations: Annotations,
    /// Whether a target in the Service's status is invalid, or denied by the target policy.
    pub refused: bool,
    pub has_finalizer: bool,
    /// The external target that an earlier process left; `None` if there is none, or if this process already has a link
    /// for the Service.
    pub persisted: Option<Box<PersistedTarget>>,
}

/// The granted settings in the annotations of a Service. The lists are sorted, because their order means nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Annotations {
    /// The TTL of the Service's records, in seconds.
    pub ttl: Option<u32>,
    /// Custom hostnames: absolute, lower-case, without the trailing dot; the first label may be `*`.
    pub hostnames: Arc<[Arc<str>]>,
    /// The namespaces in which Services may refer to this one as their source or target; `*` for all.
    pub allow_from: Arc<[Arc<str>]>,
    /// The internal hostnames of a load balancer, if it asks for any.
    pub internal: Option<Arc<InternalNames>>,
}

/// The names of a load balancer that lead to its cluster IPs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InternalNames {
    /// The names, in the form of [`Annotations::hostnames`], sorted.
    pub hostnames: Arc<[Arc<str>]>,
    /// The cluster IPs that are allowed.
    pub addresses: Box<[IpAddr]>,
    /// Whether a cluster IP is denied by the target policy.
    pub refused: bool,
}

impl Annotations {
    /// Returns whether Services of another namespace may refer to this one.
    #[must_use]
    pub fn allows(&self, namespace: &str) -> bool {
        self.allow_from.iter().any(|allowed| clusters::means(allowed, namespace))
    }
}

/// The usable entries of `status.loadBalancer.ingress`, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ingress {
    pub hostnames: Vec<Hostname>,
    pub addresses: Vec<IpAddr>,
}

impl Ingress {
    /// Chooses the target: the current hostname while it is listed, else the first hostname, else all addresses, in the
    /// current order while they are the same; `None` while the load balancer is pending.
    #[must_use]
    pub fn choose(self, in_use: Option<&Target>) -> Option<Target> {
        if let Some(Target::Hostname(name)) = in_use
            && self.hostnames.contains(name)
        {
            return Some(Target::Hostname(name.clone()));
        }
        if let Some(name) = self.hostnames.into_iter().next() {
            return Some(Target::Hostname(name));
        }
        let target =
            Target::Addresses(Some(self.addresses).filter(|addresses| !addresses.is_empty())?.into());
        Some(in_use.filter(|in_use| **in_use == target).cloned().unwrap_or(target))
    }
}

/// The hostname or the addresses of a load balancer. Load balancers list the same addresses in any order: targets with
/// the same addresses are equal.
#[derive(Clone, Debug, Eq)]
pub enum Target {
    Hostname(Hostname),
    /// One or more distinct IPv4 or IPv6 addresses, in the order of the answers.
    Addresses(Box<[IpAddr]>),
}

impl PartialEq for Target {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Hostname(one), Self::Hostname(other)) => one == other,
            (Self::Addresses(one), Self::Addresses(other)) => has_same_entries(one, other),
            (Self::Hostname(_), Self::Addresses(_)) | (Self::Addresses(_), Self::Hostname(_)) => false,
        }
    }
}

/// Returns whether two lists have the same entries, in any order.
pub(crate) fn has_same_entries<T: Ord>(one: &[T], other: &[T]) -> bool {
    let sorted = |list: &'_ [T]| {
        let mut entries: Vec<_> = (0..list.len()).collect();
        entries.sort_unstable_by(|a, b| list[*a].cmp(&list[*b]));
        entries
    };
    one == other
        || one.len() == other.len()
            && sorted(one).into_iter().zip(sorted(other)).all(|(a, b)| one[a] == other[b])
}

/// Maximum number of addresses in the text of a target.
pub const MAX_SHOWN_ADDRESSES: usize = 8;

impl fmt::Display for Target {
    /// Formats the target for the user, with the addresses in ascending order, whatever that of the answers is: of many
    /// addresses, the first eight and the number of the remaining ones.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hostname(host) => host.fmt(f),
            Self::Addresses(addresses) => {
                let mut addresses = addresses.clone();
                addresses.sort_unstable();
                for (i, address) in addresses.iter().take(MAX_SHOWN_ADDRESSES).enumerate() {
                    write!(f, "{}{address}", if i == 0 { "" } else { "," })?;
                }
                match addresses.len().saturating_sub(MAX_SHOWN_ADDRESSES) {
                    0 => Ok(()),
                    more => write!(f, " and {more} more"),
                }
            }
        }
    }
}

/// When a link's addresses were last queried, for each family: in seconds since `START`, plus 1; 0 means never.
/// Ignored by comparisons of links.
#[derive(Debug, Default)]
pub struct LastQueried([AtomicU32; 2]);

impl Clone for LastQueried {
    fn clone(&self) -> Self {
        Self(self.0.each_ref().map(|last| AtomicU32::new(last.load(Ordering::Relaxed))))
    }
}

impl PartialEq for LastQueried {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for LastQueried {}

/// The reference time of [`LastQueried`]: the first use of a [`LastQueried`] in this process.
static START: LazyLock<Instant> = LazyLock::new(Instant::now);

impl LastQueried {
    pub fn note(&self, family: IpFamily) {
        self.note_at(family, Instant::now());
    }

    /// Records a query for addresses of a family at the time `now`.
    pub fn note_at(&self, family: IpFamily, now: Instant) {
        let (last, now) = (&self.0[family as usize], Self::seconds(now));
        // Writing an equal value would still invalidate the cache line of other cores.
        if last.load(Ordering::Relaxed) != now {
            last.store(now, Ordering::Relaxed);
        }
    }

    /// Returns whether addresses of a family were queried at most `within` ago.
    #[must_use]
    pub fn is_recent(&self, family: IpFamily, within: Duration) -> bool {
        let last = self.0[family as usize].load(Ordering::Relaxed);
        last != 0 && u64::from(Self::seconds(Instant::now()).saturating_sub(last)) <= within.as_secs()
    }

    fn seconds(at: Instant) -> u32 {
        u32::try_from(at.duration_since(*START).as_secs()).unwrap_or(u32::MAX).saturating_add(1)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpFamily {
    V4,
    V6,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkState {
    /// The Service exists, and its target is known or still pending. Or a StableName overrides the link, and its
    /// target isn't withdrawn.
    Live,
    /// The Service exists, but its status has no allowed target any more: the link keeps the last allowed target.
    Stale,
    /// The Service was deleted and recreated, and has no target yet. An existing external target is that of the earlier
    /// Service, which was gone at this time at the latest. Or a StableName overrides the link, and its target was
    /// withdrawn at this time. Or the override ended at this time at the latest, and the Service has no target yet.
    Recreated(Instant),
    /// The Service wasn't listed: a flag may leave it out, or its namespace can't be listed. The link keeps the target
    /// of the existing external target, or of the snapshot.
    LeftOut,
    /// The Service was gone at this time; the link keeps its names until its external target is deleted.
    Gone(Instant),
}

/// The state of one LoadBalancer Service. Immutable: each change creates a new link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    pub key: ServiceKey,
    /// The target of the Service, or of the StableName that overrides the link; `None` while the load balancer is
    /// pending, and once the Service is gone or the target withdrawn.
    pub target: Option<Target>,
    pub annotations: Annotations,
    pub last_queried: LastQueried,
    /// Whether a target in the Service's status is invalid, or denied by the target policy.
    pub refused: bool,
    /// Whether the Service has lb-linker's finalizer, which delays its deletion until its external target is deleted.
    pub has_finalizer: bool,
    /// Whether one of the link's names already leads to a newer version, or to another link.
    pub(crate) outdated: OutdatedFlag,
    pub state: LinkState,
    /// The ports of the Service with this target, sorted. The external target has ports only if the target consists of
    /// addresses.
    pub ports: Arc<[Port]>,
    /// The custom hostnames that the link holds: other links may hold some of the requested ones.
    pub hostnames: Box<[Arc<str>]>,
    /// The Service's uid; empty if unknown. For an overridden link, the uid of the Service of the same name.
    pub uid: Uid,
    /// When a Service or a StableName with this key was first created, in seconds since 1970, or one of the
    /// `RANK_` constants. A name that no link owns goes to the oldest of the links that request it.
    pub created: i64,
    /// When the present Service, or the StableName that the link belongs to, was created, in seconds since 1970, if
    /// known. Shown to users.
    pub object_created: Option<i64>,
    /// The name of the external target, if it isn't the default name. Unrelated to the override by a StableName.
    pub(crate) external_target_override: Option<Arc<str>>,
    /// The records that DNSEndpoints declare beside the target; `None` for all other objects.
    pub records: Option<Arc<Records>>,
    /// The override by a StableName, if there is one, and the link of the Service itself. Boxed because few links
    /// have an override.
    pub overridden: Option<Box<OverriddenLink>>,
}

/// Whether a link is outdated, and the newest version of it, if all its names lead to that. A clone of an outdated link isn't
/// outdated.
#[derive(Debug, Default)]
pub(crate) struct OutdatedFlag {
    is_set: AtomicBool,
    /// The versions of a link share this. An old version, which a kept answer may hold for long, keeps no newer one.
    newest: OnceLock<Arc<RwLock<Weak<Link>>>>,
}

impl Clone for OutdatedFlag {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl PartialEq for OutdatedFlag {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for OutdatedFlag {}

impl Link {
    /// Returns the link of a Service of which only the key and the uid are known, with the default name for its
    /// external target.
    #[must_use]
    pub fn new(key: ServiceKey, uid: &str) -> Self {
        Self {
            uid: uid.into(),
            created: RANK_WITHOUT_CREATION_TIME,
            object_created: None,
            target: None,
            ports: Arc::default(),
            annotations: Annotations::default(),
            hostnames: Box::default(),
            refused: false,
            has_finalizer: false,
            state: LinkState::Live,
            external_target_override: None,
            records: None,
            overridden: None,
            last_queried: LastQueried::default(),
            outdated: OutdatedFlag::default(),
            key,
        }
    }

    /// Returns whether the link has a target or records.
    #[must_use]
    pub fn has_data(&self) -> bool {
        self.target.is_some() || self.records.as_ref().is_some_and(|records| !records.is_empty())
    }

    /// Returns the name of the external target, which no other link has.
    #[must_use]
    pub fn external_target(&self) -> Cow<'_, str> {
        self.external_target_override.as_deref().map_or_else(|| self.key.external_target().into(), Cow::from)
    }

    pub(crate) fn rename(&mut self, external_target: Arc<str>) {
        let is_default = *external_target == *self.key.external_target();
        self.external_target_override = (!is_default).then_some(external_target);
    }

    /// Returns whether one of the link's names already leads to a newer version, or to another link. A link may become
    /// outdated during a look-up; the next look-up then finds the newer version.
    #[must_use]
    pub fn is_outdated(&self) -> bool {
        self.outdated.is_set.load(Ordering::Acquire)
    }

    pub(crate) fn set_outdated(&self) {
        self.outdated.is_set.store(true, Ordering::Release);
    }

    /// Lets the names of all versions of this link lead to a newer version, as long as that lives elsewhere. Does nothing if
    /// the newer version is the same one, or has been among the versions of another link.
    pub(crate) fn set_next(&self, next: &Arc<Self>) {
        let newest = self.outdated.newest.get_or_init(Arc::default);
        if std::ptr::eq(self, &raw const **next) || next.outdated.newest.set(Arc::clone(newest)).is_err() {
            return;
        }
        *newest.write() = Arc::downgrade(next);
        self.set_outdated();
    }

    /// Returns the version that the names of a link lead to.
    #[must_use]
    pub(crate) fn newest(link: &Arc<Self>) -> Arc<Self> {
        let newest = link.outdated.newest.get().and_then(|newest| newest.read().upgrade());
        newest.unwrap_or_else(|| Arc::clone(link))
    }

    /// Returns whether load balancers of a namespace may have a name of this link as their target: always in its own
    /// namespace, in other namespaces if `linker.hsj.com/allow-from` lists them.
    #[must_use]
    pub fn is_open_to(&self, namespace: &str) -> bool {
        self.key.namespace() == namespace || self.annotations.allows(namespace)
    }

    #[must_use]
    pub fn is_gone(&self) -> bool {
        matches!(self.state, LinkState::Gone(_))
    }

    /// Returns whether the link is in [`LinkState::LeftOut`].
    #[must_use]
    pub fn is_left_out(&self) -> bool {
        self.state == LinkState::LeftOut
    }

    /// Returns the time since which the Service of the external target is gone: the link's Service, or its predecessor
    /// of the same name if the recreated Service has no target yet. `None` if that Service isn't gone. For an
    /// overridden link, returns the time since which its target is withdrawn.
    #[must_use]
    pub fn service_gone_since(&self) -> Option<Instant> {
        match self.state {
            LinkState::Recreated(since) | LinkState::Gone(since) => Some(since),
            LinkState::Live | LinkState::Stale | LinkState::LeftOut => None,
        }
    }

    /// Returns whether another link holds a name that this link should have: the name of its external target, or a
    /// custom hostname.
    #[must_use]
    pub fn is_missing_name(&self) -> bool {
        !self.is_gone()
            && (self.lacks_its_external_target() || self.hostnames.len() < self.annotations.hostnames.len())
    }

    /// Returns whether the external target has neither its default name nor the name that the earlier operator used.
    #[must_use]
    pub fn lacks_its_external_target(&self) -> bool {
        let (namespace, name) = self.key.parts();
        self.external_target_override
            .as_ref()
            .is_some_and(|own| **own != *names::earlier_external_target(namespace, name))
    }

    /// Returns when a Service or a StableName with this key was first created, in seconds since 1970, if known.
    #[must_use]
    pub fn created_at(&self) -> Option<i64> {
        let is_rank = [RANK_NEVER_OBSERVED, RANK_WITHOUT_CREATION_TIME].contains(&self.created);
        (!is_rank).then_some(self.created)
    }

    /// Returns whether this process has never observed the Service, but only its external target.
    #[must_use]
    pub fn was_never_observed(&self) -> bool {
        self.created == RANK_NEVER_OBSERVED
    }
}

/// A change of what is behind the names of an owner, or of its names, as the change feed delivers it.
#[derive(Clone, Debug)]
pub struct LinkChange {
    pub owner: Owner,
    /// The previous link; `None` if the owner is new.
    pub before: Option<Arc<Link>>,
    /// The current link; `None` if the store has removed the owner.
    pub after: Option<Arc<Link>>,
}

impl LinkChange {
    /// Returns the key of the Service whose link has changed; `None` for an owner of another kind or cluster.
    #[must_use]
    pub fn service(&self) -> Option<&ServiceKey> {
        self.owner.is_service().then_some(&self.owner.key)
    }

    /// Returns the previous and the current target, if they differ.
    #[must_use]
    pub fn target_change(&self) -> Option<(Option<&Target>, Option<&Target>)> {
        let before = self.before.as_ref().and_then(|link| link.target.as_ref());
        let after = self.after.as_ref().and_then(|link| link.target.as_ref());
        (before != after).then_some((before, after))
    }
}

impl fmt::Display for LinkChange {
    /// Formats the line for the log: `link default/my-sample-lb: old.example → new.example`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The type of a Service was changed and changed back, or it is selected again.
        let is_back = match (&self.before, &self.after) {
            (Some(before), Some(after)) => before.is_gone() && before.uid == after.uid,
            _ => false,
        };
        let side = |link: Option<&Link>, why: &str| match link {
            None => "none".to_owned(),
            Some(Link { state: LinkState::Gone(_), .. }) => "gone".to_owned(),
            Some(link @ Link { target: None, .. }) if link.active_override().is_some() => {
                "withdrawn".to_owned()
            }
            Some(Link { state: LinkState::Recreated(_), .. }) => format!("pending{why}"),
            Some(Link { target: None, .. }) => "pending".to_owned(),
            Some(Link { target: Some(target), state: LinkState::LeftOut, .. }) => {
                format!("{target} (kept: the Service isn't followed)")
            }
            Some(Link { target: Some(target), state: LinkState::Stale, refused, .. }) => {
                let why = if *refused {
                    "the Service's new target isn't allowed"
                } else {
                    "the Service's status is blank"
                };
                format!("{target} (kept: {why})")
            }
            Some(Link { target: Some(target), .. }) => target.to_string(),
        };
        let key = &self.owner.key;
        if self.after.is_none() {
            return write!(f, "link {key}: forgotten");
        }
        let why = if is_back { " (followed again)" } else { " (recreated)" };
        let (before, after) = (side(self.before.as_deref(), ""), side(self.after.as_deref(), why));
        // The link keeps its target: only the reason is new.
        if after.strip_prefix(&*before).is_some_and(|reason| reason.starts_with(" (kept")) {
            return write!(f, "link {key}: {after}");
        }
        write!(f, "link {key}: {before} → {after}")
    }
}

#[cfg(test)]
mod tests {
    use hickory_proto::rr::Name;

    use super::*;

    fn host(name: &str) -> Hostname {
        Hostname::from(&Name::from_ascii(name).unwrap())
    }

    #[test]
    fn the_hostname_in_use_stays_while_it_is_listed() {
        let (a, b) = (host("a.example."), host("b.example."));
        let both = Ingress { hostnames: vec![a.clone(), b.clone()], addresses: vec![] };
        let in_use = Target::Hostname(b.clone());
        assert_eq!(both.clone().choose(Some(&in_use)), Some(in_use.clone()));
        assert_eq!(both.choose(None), Some(Target::Hostname(a.clone())));
        let only_a = Ingress { hostnames: vec![a.clone()], addresses: vec![] };
        assert_eq!(only_a.choose(Some(&in_use)), Some(Target::Hostname(a)));
    }

    #[test]
    fn log_line_of_a_kept_target_has_the_reason_of_its_own_side() {
        let key = ServiceKey::new("default", "web");
        let link = |state, refused, name| {
            let target = Some(Target::Hostname(host(name)));
            Some(Arc::new(Link { state, refused, target, ..Link::new(key.clone(), "u") }))
        };
        let line = |before: &Option<Arc<Link>>, after: &Option<Arc<Link>>| {
            LinkChange { owner: Owner::from(&key), before: before.clone(), after: after.clone() }.to_string()
        };
        let denied = link(LinkState::Stale, true, "a.example.");
        let blank = link(LinkState::Stale, false, "a.example.");
        let live = link(LinkState::Live, false, "b.example.");
        let why = "(kept: the Service's new target isn't allowed)";
        assert_eq!(line(&denied, &live), format!("link default/web: a.example {why} → b.example"));
        let blank_line = "a.example (kept: the Service's status is blank)";
        assert_eq!(line(&blank, &denied), format!("link default/web: {blank_line} → a.example {why}"));
    }

    #[test]
    fn log_line_tells_a_recreated_service_from_one_that_is_back() {
        let key = ServiceKey::new("default", "web");
        let link = |state, uid| Arc::new(Link { state, target: None, ..Link::new(key.clone(), uid) });
        let line = |before: Arc<Link>, after: Arc<Link>| {
            LinkChange { owner: Owner::from(&key), before: Some(before), after: Some(after) }.to_string()
        };
        let now = Instant::now();
        let (gone, pending) = (LinkState::Gone(now), LinkState::Recreated(now));
        let of = |uid| line(link(gone, "1"), link(pending, uid));
        assert_eq!(of("1"), "link default/web: gone → pending (followed again)");
        assert_eq!(of("2"), "link default/web: gone → pending (recreated)");
        let target = Some(Target::Hostname(host("b.example.")));
        let live = Arc::new(Link { target, ..Link::new(key.clone(), "1") });
        assert_eq!(line(link(pending, "1"), live), "link default/web: pending → b.example");
    }

    #[test]
    fn addresses_are_shown_in_order_and_many_as_eight_and_a_count() {
        let target = |number: u8| Target::Addresses((0..number).map(|i| [192, 0, 2, i].into()).collect());
        assert_eq!(target(2).to_string(), "192.0.2.0,192.0.2.1");
        let unsorted = ["2001:db8::1", "192.0.2.10", "192.0.2.9"].map(|ip| ip.parse().unwrap());
        assert_eq!(Target::Addresses(unsorted.into()).to_string(), "192.0.2.9,192.0.2.10,2001:db8::1");
        assert!(target(8).to_string().ends_with(",192.0.2.7"));
        assert!(target(250).to_string().ends_with(",192.0.2.7 and 242 more"));
    }

    #[test]
    fn hostname_precedes_addresses_and_empty_ingress_has_no_target() {
        let ip: IpAddr = "192.0.2.1".parse().unwrap();
        let both = Ingress { hostnames: vec![host("a.example.")], addresses: vec![ip] };
        assert_eq!(both.choose(None), Some(Target::Hostname(host("a.example."))));
        let addresses = Ingress { hostnames: vec![], addresses: vec![ip] };
        assert_eq!(addresses.choose(None), Some(Target::Addresses([ip].into())));
        assert_eq!(Ingress::default().choose(None), None);
    }
}
