//! Owners of names: the objects that ask for names.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

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
