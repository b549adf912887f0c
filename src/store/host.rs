//! A host name, as small as it goes.

use std::fmt;

use hickory_proto::rr::Name;

use crate::names;

/// An absolute host name in lower case.
#[derive(Clone, PartialEq, Eq)]
pub struct Host(
    /// In wire form, without the root label: a [`Name`] takes three times as much.
    Box<[u8]>,
);

impl Host {
    /// Returns it as answers need it.
    #[must_use]
    pub fn name(&self) -> Name {
        let mut rest = &*self.0;
        let labels = std::iter::from_fn(|| {
            let (length, label) = rest.split_first()?;
            let (label, others) = label.split_at_checked(usize::from(*length))?;
            rest = others;
            Some(label)
        });
        // It was made of a name: no label of it is refused.
        Name::from_labels(labels).unwrap_or_default()
    }
}

impl From<&Name> for Host {
    fn from(name: &Name) -> Self {
        // No label of a name is too long.
        Self(names::wire(name.iter()).unwrap_or_default().into())
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Host {
    /// As Kubernetes writes it: without the trailing dot.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&host_text(&self.name()))
    }
}

/// Returns a host name as Kubernetes writes it: without the trailing dot.
#[must_use]
pub fn host_text(name: &Name) -> String {
    let mut text = name.to_ascii();
    if text.len() > 1 && text.ends_with('.') {
        text.pop();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_the_name_that_it_was_made_of_in_lower_case() {
        let long = format!("{}.{}.example.", "x".repeat(63), "y".repeat(63));
        for text in ["a.example.", "xn--bcher-kva.example.", r"a\.b.example.", "*.example.", &long] {
            let name = Name::from_ascii(text).unwrap();
            assert_eq!(Host::from(&name).name(), name);
            assert!(Host::from(&name).name().is_fqdn());
            assert_eq!(Host::from(&name).to_string(), host_text(&name));
        }
        let name = Name::from_ascii("A.Example.").unwrap();
        assert_eq!(Host::from(&name).to_string(), "a.example");
    }
}
