//! What lb-linker knows of one LoadBalancer Service.

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use arcstr::ArcStr;
use serde::{Deserialize, Deserializer, Serialize};

use crate::model::hostname::Hostname;
use crate::model::names;
use crate::model::service_key::ServiceKey;
use crate::model::uid::Uid;

/// The rank of a link whose Service was never seen: the last.
pub(crate) const NEVER: i64 = i64::MAX;

/// The rank of a link whose Service doesn't say when it was created: only its name counts.
pub(crate) const UNKNOWN: i64 = i64::MIN;

/// A port of a Service.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Port {
    /// Its name, where it has one.
    #[serde(default, deserialize_with = "empty_is_none", skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// `TCP`, `UDP` or `SCTP`.
    #[serde(default = "tcp", deserialize_with = "null_is_tcp")]
    pub protocol: String,
    /// Its number.
    pub port: u16,
    /// The protocol above that.
    #[serde(default, deserialize_with = "empty_is_none", skip_serializing_if = "Option::is_none")]
    pub app_protocol: Option<String>,
}

pub(crate) fn tcp() -> String {
    "TCP".to_owned()
}

/// Reads the protocol of a port: Kubernetes takes an explicit `null` for "not given", which means TCP.
pub(crate) fn null_is_tcp<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_else(tcp))
}

/// Reads a text that is optional in the API, where an empty one is none.
pub(crate) fn empty_is_none<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    Ok(Option::<String>::deserialize(deserializer)?.filter(|text| !text.is_empty()))
}

/// A LoadBalancer Service as a source saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedService {
    /// Which Service it is.
    pub key: ServiceKey,
    /// `metadata.uid`; empty where the source has none (manifests).
    pub uid: Uid,
    /// `metadata.creationTimestamp` in seconds since 1970, where the source has one.
    pub created: Option<i64>,
    /// `metadata.resourceVersion`, where the source has one.
    pub resource_version: Option<u64>,
    /// The usable part of `status.loadBalancer.ingress`.
    pub ingress: Ingress,
    /// `spec.ports`.
    pub ports: Arc<[Port]>,
    /// What the Service asks for in annotations.
    pub annotations: Annotations,
    /// Whether the Service names a target that isn't followed.
    pub refused: bool,
    /// Whether the Service carries our finalizer.
    pub has_finalizer: bool,
}

/// What a Service asks for in annotations, as far as it may.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Annotations {
    /// The TTL of its records, in seconds.
    pub ttl: Option<u32>,
    /// Further DNS names: absolute, lower-case, without the trailing dot; the first label may be `*`.
    pub hostnames: Box<[Box<str>]>,
    /// The namespaces whose Services may follow it; `*` for all.
    pub allow_from: Box<[Box<str>]>,
}

/// What nearly every Service asks for.
static NO_ANNOTATIONS: LazyLock<Arc<Annotations>> = LazyLock::new(Arc::default);

impl Annotations {
    /// Returns the same, which takes no memory where there are none.
    #[must_use]
    pub(crate) fn shared(self) -> Arc<Self> {
        if self == **NO_ANNOTATIONS { Arc::clone(&NO_ANNOTATIONS) } else { Arc::new(self) }
    }

    /// Returns whether Services of another namespace may follow this one.
    #[must_use]
    pub fn allows(&self, namespace: &str) -> bool {
        self.allow_from.iter().any(|allowed| &**allowed == "*" || **allowed == *namespace)
    }
}

/// The entries of `status.loadBalancer.ingress` that DNS can carry, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ingress {
    /// Absolute host names.
    pub hostnames: Vec<Hostname>,
    /// Distinct addresses.
    pub addresses: Vec<IpAddr>,
}

impl Ingress {
    /// Chooses the target: the hostname that is in use stays while it is listed, else the first
    /// hostname, else all addresses; `None` while the load balancer is pending.
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
        (!self.addresses.is_empty()).then_some(Target::Addresses(self.addresses.into()))
    }
}

/// What a load balancer is reached at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// An absolute host name.
    Hostname(Hostname),
    /// One or more distinct IPv4 or IPv6 addresses.
    Addresses(Box<[IpAddr]>),
}

/// How many addresses of a target are shown.
const MAX_SHOWN_ADDRESSES: usize = 8;

impl fmt::Display for Target {
    /// For people: of many addresses the first eight, and how many follow.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hostname(host) => host.fmt(f),
            Self::Addresses(addresses) => {
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

/// When a link's addresses were last asked for. It is no part of what makes links differ.
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

/// What [`LastQueried`] counts from, in seconds. Never is zero.
static START: LazyLock<Instant> = LazyLock::new(Instant::now);

impl LastQueried {
    /// Takes in that the addresses of a family are asked for now.
    pub fn note(&self, family: IpFamily) {
        self.note_at(family, Instant::now());
    }

    /// Takes in that the addresses of a family are asked for at that time, about now.
    pub fn note_at(&self, family: IpFamily, now: Instant) {
        let (last, now) = (&self.0[family as usize], Self::seconds(now));
        // A store of the same value would still take the cache line from the other cores.
        if last.load(Ordering::Relaxed) != now {
            last.store(now, Ordering::Relaxed);
        }
    }

    /// Returns whether the addresses of a family were asked for in the last `within`.
    #[must_use]
    pub fn is_recent(&self, family: IpFamily, within: Duration) -> bool {
        let last = self.0[family as usize].load(Ordering::Relaxed);
        last != 0 && u64::from(Self::seconds(Instant::now()).saturating_sub(last)) <= within.as_secs()
    }

    fn seconds(at: Instant) -> u32 {
        u32::try_from(at.duration_since(*START).as_secs()).unwrap_or(u32::MAX).saturating_add(1)
    }
}

/// A family of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpFamily {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// A moment in nanoseconds since the start of the process: 8 bytes, where an [`Instant`] takes 16 beside a tag. With
/// it a [`Link`] stays as small as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(i64);

impl From<Instant> for Moment {
    fn from(at: Instant) -> Self {
        let nanos = |span: Duration| i64::try_from(span.as_nanos()).unwrap_or(i64::MAX);
        match at.checked_duration_since(*START) {
            Some(after) => Self(nanos(after)),
            None => Self(-nanos(START.duration_since(at))),
        }
    }
}

impl From<Moment> for Instant {
    fn from(Moment(nanos): Moment) -> Self {
        let span = Duration::from_nanos(nanos.unsigned_abs());
        let at = if nanos < 0 { START.checked_sub(span) } else { START.checked_add(span) };
        at.unwrap_or(*START)
    }
}

/// Where a link stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkState {
    /// The Service exists and says what its target is, or that it has none yet.
    Live,
    /// The Service exists but names no target that can be followed any more: the last one is kept.
    Stale,
    /// The Service was deleted and created again, and has no target yet. An external target that stands is the
    /// earlier Service's, which is gone since then at the latest.
    Recreated(Moment),
    /// The Service isn't followed, perhaps because a flag leaves it out: the target is what its external
    /// target records, and both stay.
    LeftOut,
    /// The Service is gone since then; the link holds its names until its external target is gone.
    Gone(Moment),
}

/// What lb-linker knows of one LoadBalancer Service. Immutable: a change makes a new one.
///
/// It stays as small as it is: with the counts of its [`Arc`] it takes 160 bytes, and the next larger piece of memory
/// has 192. The fields are in this order because a look-up reads the key and then the reference
/// count.
#[derive(Clone, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Link {
    /// Which Service it is.
    pub key: ServiceKey,
    /// What the load balancer is reached at; `None` while it is pending and once it is gone.
    pub target: Option<Target>,
    /// What the Service asks for in annotations.
    pub annotations: Arc<Annotations>,
    /// When its addresses were last asked for.
    pub last_queried: LastQueried,
    /// Whether the Service names a target that isn't followed.
    pub refused: bool,
    /// Whether the Service carries our finalizer, which keeps it until its external target is gone.
    pub has_finalizer: bool,
    /// Whether one of its names leads to another version of it by now, or to another link.
    pub(crate) outdated: Superseded,
    /// Where the link stands.
    pub state: LinkState,
    /// The Service's ports. They belong to the external target only where the target is addresses.
    pub ports: Arc<[Port]>,
    /// Those of the DNS names it asks for that it has: another link may have come first.
    pub hostnames: Box<[Box<str>]>,
    /// The Service's uid; empty where there is none.
    pub uid: Uid,
    /// When the Service of this key was first created, in seconds since 1970, as far as it is known: the older Service
    /// gets a name that two links want.
    pub created: i64,
    /// The name of its external target, where that isn't the default name.
    pub(crate) external_target_override: Option<ArcStr>,
}

/// What a link is allocated with: it doesn't grow by chance.
const _: () = assert!(size_of::<Link>() + 2 * size_of::<usize>() <= 160);

/// Whether something is shown no more. A copy is shown anew.
#[derive(Debug, Default)]
pub(crate) struct Superseded(AtomicBool);

impl Clone for Superseded {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl PartialEq for Superseded {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Superseded {}

impl Link {
    /// Returns the link of a Service of which nothing else is known, with the name of its external
    /// target that it would like best.
    #[must_use]
    pub fn new(key: ServiceKey, uid: &str) -> Self {
        Self {
            uid: uid.into(),
            created: UNKNOWN,
            target: None,
            ports: Arc::default(),
            annotations: Annotations::default().shared(),
            hostnames: Box::default(),
            refused: false,
            has_finalizer: false,
            state: LinkState::Live,
            external_target_override: None,
            last_queried: LastQueried::default(),
            outdated: Superseded::default(),
            key,
        }
    }

    /// Returns the name of the external target that belongs to this link and no other.
    #[must_use]
    pub fn external_target(&self) -> Cow<'_, str> {
        self.external_target_override.as_deref().map_or_else(|| self.key.external_target().into(), Cow::from)
    }

    pub(crate) fn rename(&mut self, external_target: ArcStr) {
        let is_first = self.key.is_external_target(external_target.as_bytes());
        self.external_target_override = (!is_first).then_some(external_target);
    }

    /// Returns whether what is known of it here isn't what its names lead to any more, or was so before a look-up
    /// ended: then the next look-up knows better.
    #[must_use]
    pub fn is_outdated(&self) -> bool {
        self.outdated.0.load(Ordering::Acquire)
    }

    pub(crate) fn set_outdated(&self) {
        self.outdated.0.store(true, Ordering::Release);
    }

    /// Returns whether load balancers of a namespace may have a name of this one as their target: those of its own
    /// namespace always, others if `linker.hsj.com/allow-from` lists theirs.
    #[must_use]
    pub fn is_open_to(&self, namespace: &str) -> bool {
        self.key.namespace() == namespace || self.annotations.allows(namespace)
    }

    /// Returns whether the Service is gone.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        matches!(self.state, LinkState::Gone(_))
    }

    /// Returns whether the Service isn't followed, and its external target says what the target is.
    #[must_use]
    pub fn is_left_out(&self) -> bool {
        self.state == LinkState::LeftOut
    }

    /// Returns since when the Service is gone that the link's external target was written for: this one, or an
    /// earlier one of its name that has left it to a Service without a target.
    #[must_use]
    pub fn outlived_since(&self) -> Option<Instant> {
        match self.state {
            LinkState::Recreated(since) | LinkState::Gone(since) => Some(since.into()),
            LinkState::Live | LinkState::Stale | LinkState::LeftOut => None,
        }
    }

    /// Returns whether another link has a name that this one would have: that of its external target, or a custom
    /// hostname.
    #[must_use]
    pub fn is_missing_name(&self) -> bool {
        !self.is_gone()
            && (self.lacks_its_external_target() || self.hostnames.len() < self.annotations.hostnames.len())
    }

    /// Returns whether its external target has neither the name that it would have nor the one that the earlier
    /// operator gave it.
    #[must_use]
    pub fn lacks_its_external_target(&self) -> bool {
        let (namespace, name) = self.key.parts();
        self.external_target_override
            .as_ref()
            .is_some_and(|own| **own != *names::earlier_external_target(namespace, name))
    }

    /// Returns whether this process has never seen the Service: only what it left behind.
    #[must_use]
    pub fn was_never_seen(&self) -> bool {
        self.created == NEVER
    }
}

/// One change of a link, as the change feed delivers it.
#[derive(Clone, Debug)]
pub struct LinkChange {
    /// Which link.
    pub key: ServiceKey,
    /// The link before; `None` if it is new.
    pub before: Option<Arc<Link>>,
    /// The link now; `None` if lb-linker has forgotten it.
    pub after: Option<Arc<Link>>,
}

impl LinkChange {
    /// Returns the target before and now, if it is not the same.
    #[must_use]
    pub fn target_change(&self) -> Option<(Option<&Target>, Option<&Target>)> {
        let before = self.before.as_ref().and_then(|link| link.target.as_ref());
        let after = self.after.as_ref().and_then(|link| link.target.as_ref());
        (before != after).then_some((before, after))
    }
}

impl fmt::Display for LinkChange {
    /// The line for the log: `link default/my-sample-lb: old.example → new.example`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let side = |link: Option<&Link>| match link {
            None => "none".to_owned(),
            Some(Link { state: LinkState::Gone(_), .. }) => "gone".to_owned(),
            Some(Link { state: LinkState::Recreated(_), .. }) => "pending (recreated)".to_owned(),
            Some(Link { target: None, .. }) => "pending".to_owned(),
            Some(Link { target: Some(target), state: LinkState::LeftOut, .. }) => {
                format!("{target} (kept: the Service isn't followed)")
            }
            Some(Link { target: Some(target), state: LinkState::Stale, .. }) => {
                let why = if self.after.as_ref().is_some_and(|link| link.refused) {
                    "the Service's new one isn't followed"
                } else {
                    "the Service's status is blank"
                };
                format!("{target} (kept: {why})")
            }
            Some(Link { target: Some(target), .. }) => target.to_string(),
        };
        if self.after.is_none() {
            return write!(f, "link {}: forgotten", self.key);
        }
        write!(f, "link {}: {} → {}", self.key, side(self.before.as_deref()), side(self.after.as_deref()))
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
    fn a_moment_is_the_instant_it_was_made_of() {
        let now = Instant::now();
        for at in
            [now, now + Duration::from_secs(1 << 30), now.checked_sub(Duration::from_secs(60)).unwrap_or(now)]
        {
            assert_eq!(Instant::from(Moment::from(at)), at);
        }
    }

    #[test]
    fn many_addresses_are_shown_as_eight_and_a_count() {
        let target = |number: u8| Target::Addresses((0..number).map(|i| [192, 0, 2, i].into()).collect());
        assert_eq!(target(2).to_string(), "192.0.2.0,192.0.2.1");
        assert!(target(8).to_string().ends_with(",192.0.2.7"));
        assert!(target(250).to_string().ends_with(",192.0.2.7 and 242 more"));
    }

    #[test]
    fn hostnames_come_before_addresses_and_nothing_is_pending() {
        let ip: IpAddr = "192.0.2.1".parse().unwrap();
        let both = Ingress { hostnames: vec![host("a.example.")], addresses: vec![ip] };
        assert_eq!(both.choose(None), Some(Target::Hostname(host("a.example."))));
        let addresses = Ingress { hostnames: vec![], addresses: vec![ip] };
        assert_eq!(addresses.choose(None), Some(Target::Addresses([ip].into())));
        assert_eq!(Ingress::default().choose(None), None);
    }
}
