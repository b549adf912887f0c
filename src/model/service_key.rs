//! The key of an object.

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use crate::model::clusters;
use crate::model::names;

/// The separator of namespace and name, which no name contains.
const SEPARATOR: char = '/';

/// The namespace and the name of an object, such as a LoadBalancer Service. The namespace has its cluster, unless that is
/// the home cluster: see [`clusters`]. Ordered by namespace, then name.
///
/// All copies share one text, because many maps contain the key.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ServiceKey(Arc<str>);

impl ServiceKey {
    #[must_use]
    pub fn new(namespace: &str, name: &str) -> Self {
        Self(format!("{namespace}{SEPARATOR}{name}").into())
    }

    #[must_use]
    pub fn namespace(&self) -> &str {
        self.parts().0
    }

    #[must_use]
    pub fn name(&self) -> &str {
        self.parts().1
    }

    #[must_use]
    pub fn parts(&self) -> (&str, &str) {
        // Every key contains the separator.
        self.0.rsplit_once(SEPARATOR).unwrap_or_default()
    }

    /// Returns the remote cluster of the object; `None` for the home cluster.
    #[must_use]
    pub fn cluster(&self) -> Option<&str> {
        clusters::cluster_of(self.namespace())
    }

    /// Returns whether a Service of the home cluster may have this key. The keys of targets of other sources have a name
    /// with a dot.
    #[must_use]
    pub fn may_be_service(&self) -> bool {
        !self.name().contains('.') && self.cluster().is_none()
    }

    /// Returns the name `<service>.<namespace>` in wire form, which is unique to the Service; in a remote cluster the name
    /// of the cluster follows.
    pub(crate) fn dotted(&self) -> Option<Vec<u8>> {
        let (namespace, name) = self.parts();
        let (cluster, namespace) = clusters::split(namespace);
        names::wire([name, namespace].into_iter().chain(cluster).map(str::as_bytes))
    }

    /// Returns the label `<service>-<namespace>` in wire form.
    pub(crate) fn label(&self) -> Option<Vec<u8>> {
        let (namespace, name) = self.parts();
        names::wire([names::dashed_label(namespace, name).as_bytes()])
    }

    /// Returns the default name of the external target.
    pub(crate) fn external_target(&self) -> String {
        let (namespace, name) = self.parts();
        names::external_target(namespace, name)
    }
}

impl PartialOrd for ServiceKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ServiceKey {
    fn cmp(&self, other: &Self) -> Ordering {
        self.parts().cmp(&other.parts())
    }
}

impl fmt::Debug for ServiceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl fmt::Display for ServiceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_ordered_by_namespace_then_name() {
        let keys = [("a", "b"), ("a", "z"), ("a-b", "a"), ("a/b", "c"), ("b", "")];
        let keys = keys.map(|(namespace, name)| {
            let key = ServiceKey::new(namespace, name);
            assert_eq!((key.namespace(), key.name()), (namespace, name));
            assert_eq!(key.to_string(), format!("{namespace}/{name}"));
            key
        });
        assert!(keys.is_sorted());
        assert_eq!(keys.each_ref().map(ServiceKey::cluster), [None, None, None, Some("a"), None]);
        assert_eq!(keys[3].dotted().as_deref(), Some(&b"\x01c\x01b\x01a"[..]));
    }
}
