//! Owners of names: the objects that ask for names.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use hickory_proto::rr::Name;

use crate::model::names;
use crate::model::service_key::ServiceKey;

/// Where owners come from: objects of one kind in one cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Source {
    /// The name of the cluster; `None` for the cluster whose load balancers are links.
    pub cluster: Option<Arc<str>>,
    pub kind: Cow<'static, str>,
}

impl Source {
    /// The load balancers of the own cluster. Only they have default names and external targets.
    pub const SERVICES: Self = Self { cluster: None, kind: Cow::Borrowed("Service") };
}

/// An object that asks for names. Its uid isn't part of it: an object that is recreated keeps its rank.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Owner {
    pub source: Source,
    pub key: ServiceKey,
}

impl Owner {
    /// Returns whether the owner is a load balancer of the own cluster.
    #[must_use]
    pub fn is_service(&self) -> bool {
        self.source == Source::SERVICES
    }
}

impl From<&ServiceKey> for Owner {
    fn from(key: &ServiceKey) -> Self {
        Self { source: Source::SERVICES, key: key.clone() }
    }
}

impl From<&Owner> for Owner {
    fn from(owner: &Owner) -> Self {
        owner.clone()
    }
}

impl PartialOrd for Owner {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Owner {
    /// Orders by namespace and name, then by source.
    fn cmp(&self, other: &Self) -> Ordering {
        self.key.cmp(&other.key).then_with(|| self.source.cmp(&other.source))
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Source { cluster, kind } = &self.source;
        write!(f, "{kind} {}", self.key)?;
        cluster.as_ref().map_or(Ok(()), |cluster| write!(f, " of cluster {cluster}"))
    }
}

/// The names that an owner asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claims {
    /// When the owner was created, in seconds since 1970: a name without a recorded owner goes to the oldest.
    pub created: i64,
    /// Absolute names in lower case, without the trailing dot; the first label may be `*`.
    pub names: Arc<[Arc<str>]>,
}

/// A zone, and which sources come first for its names.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Zone {
    /// The origin, in the form of [`crate::model::names::wire`].
    pub origin: Box<[u8]>,
    /// The label below the origin that is reserved for the zone itself; empty if it isn't known.
    pub apex: Box<str>,
    /// The sources in their order. All sources that aren't listed come last, without an order.
    pub sources: Vec<Source>,
}

impl From<&Name> for Zone {
    /// Returns a zone in which the own load balancers come first.
    fn from(origin: &Name) -> Self {
        // A `Name` has no label that the wire form can't have.
        let origin = names::wire(origin.iter()).unwrap_or_default().into();
        Self { origin, apex: Box::default(), sources: vec![Source::SERVICES] }
    }
}

impl Zone {
    /// Returns the place of a source for a name in wire form among these zones: 0 comes first. The closest zone counts.
    #[must_use]
    pub fn place(zones: &[Self], name: &[u8], source: &Source) -> u16 {
        let closest =
            zones.iter().filter(|zone| zone.below(name).is_some()).max_by_key(|zone| zone.origin.len());
        let place = match closest {
            Some(zone) => {
                zone.sources.iter().position(|listed| listed == source).unwrap_or(zone.sources.len())
            }
            None => usize::from(*source != Source::SERVICES),
        };
        u16::try_from(place).unwrap_or(u16::MAX)
    }

    /// Returns whether no link has a name here; `below` is the part of the name below the origin.
    #[must_use]
    pub fn reserves(&self, below: &[u8]) -> bool {
        names::labels(below).last().is_none_or(|top| names::is_reserved(top, self.apex.as_bytes()))
    }

    /// Returns the part of a name in wire form below the origin; `None` if the name isn't in the zone.
    #[must_use]
    pub fn below<'a>(&self, name: &'a [u8]) -> Option<&'a [u8]> {
        let mut rest = name.strip_suffix(&*self.origin)?;
        let below = rest;
        // A zone must end at a label boundary: the part of the name below it consists of whole labels.
        while let Some((length, labels)) = rest.split_first() {
            rest = labels.get(usize::from(*length)..)?;
        }
        Some(below)
    }
}
