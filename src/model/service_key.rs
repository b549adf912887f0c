//! Which Service a link belongs to.

use std::cmp::Ordering;
use std::fmt;

use arcstr::ArcStr;

use crate::model::names;

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

    /// Returns it as bytes, which no other key has.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }

    /// Returns the name `<service>.<namespace>` in wire form. No two links can want the same one.
    pub(crate) fn dotted(&self) -> Option<Vec<u8>> {
        let (namespace, name) = self.parts();
        names::wire([name.as_bytes(), namespace.as_bytes()])
    }

    /// Returns whether that is its name `<service>.<namespace>` in wire form.
    pub(crate) fn is_dotted(&self, wire: &[u8]) -> bool {
        let (namespace, name) = self.parts();
        names::is_wire(wire, [name.as_bytes(), namespace.as_bytes()])
    }

    /// Returns the label `<service>-<namespace>` in wire form.
    pub(crate) fn label(&self) -> Option<Vec<u8>> {
        let (namespace, name) = self.parts();
        names::wire([names::dashed_label(namespace, name).as_bytes()])
    }

    /// Returns the name of its external target that it likes best.
    pub(crate) fn external_target(&self) -> String {
        let (namespace, name) = self.parts();
        names::external_target(namespace, name)
    }

    /// Returns whether that is the name of its external target that it likes best.
    pub(crate) fn is_external_target(&self, object: &[u8]) -> bool {
        let (namespace, name) = self.parts();
        std::str::from_utf8(object).is_ok_and(|object| names::is_external_target(object, namespace, name))
    }

    /// Returns whether that is its label `<service>-<namespace>` in wire form.
    pub(crate) fn is_label(&self, wire: &[u8]) -> bool {
        let (namespace, name) = self.parts();
        let is_it = |label: &[u8]| names::is_dashed_label(label, namespace, name);
        wire.split_first().is_some_and(|(length, label)| usize::from(*length) == label.len() && is_it(label))
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
