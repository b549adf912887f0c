//! Which Service a link belongs to.

use std::cmp::Ordering;
use std::fmt;

use arcstr::ArcStr;

/// What stands between the two parts. No namespace of the API server's has it.
const SEPARATOR: char = '/';

/// The namespace and name of a LoadBalancer Service. Ordered by namespace, then name.
///
/// One pointer, to a text that all copies share: many maps have it.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ServiceKey(ArcStr);

impl ServiceKey {
    /// Returns the key of the Service `name` in `namespace`.
    #[must_use]
    pub fn new(namespace: &str, name: &str) -> Self {
        Self(arcstr::format!("{namespace}{SEPARATOR}{name}"))
    }

    /// Returns the Service's namespace.
    #[must_use]
    pub fn namespace(&self) -> &str {
        self.parts().0
    }

    /// Returns the Service's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.parts().1
    }

    /// Returns the namespace and the name.
    #[must_use]
    pub fn parts(&self) -> (&str, &str) {
        // There is one in every key.
        self.0.split_once(SEPARATOR).unwrap_or_default()
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
    fn keys_are_in_order_of_their_namespaces_and_then_of_their_names() {
        let keys = [("a", "b"), ("a", "b/c"), ("a", "z"), ("a-b", "a"), ("b", "")];
        let keys = keys.map(|(namespace, name)| {
            let key = ServiceKey::new(namespace, name);
            assert_eq!((key.namespace(), key.name()), (namespace, name));
            assert_eq!(key.to_string(), format!("{namespace}/{name}"));
            key
        });
        assert!(keys.is_sorted());
    }
}
