//! A host name in a compact form.

use std::fmt;

use hickory_proto::rr::Name;

use crate::model::names;
use crate::model::rejection::MAX_ENTRY_BYTES;

/// An absolute host name in lower case.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Hostname(
    /// In wire form without the root label, a third of the size of a [`Name`].
    Box<[u8]>,
);

impl Hostname {
    #[must_use]
    pub fn name(&self) -> Name {
        // The labels are those of a valid name.
        Name::from_labels(self.labels()).unwrap_or_default()
    }

    /// Returns whether this is the name with this wire form in lower case, without the root label.
    #[must_use]
    pub fn is(&self, wire: &[u8]) -> bool {
        *self.0 == *wire
    }

    /// Returns the size of the name in wire form, in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.0.len() + 1
    }

    fn labels(&self) -> impl Iterator<Item = &[u8]> {
        let mut rest = &*self.0;
        std::iter::from_fn(move || {
            let (length, label) = rest.split_first()?;
            let (label, others) = label.split_at_checked(usize::from(*length))?;
            rest = others;
            Some(label)
        })
    }

    /// Returns whether the labels consist of letters, digits and hyphens and begin with no hyphen: then no character
    /// has to be escaped (RFC 1035 section 5.1). `false` for the root.
    fn is_plain(&self) -> bool {
        let plain = |label: &[u8]| {
            let letters = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'-';
            label.iter().all(letters) && label.first() != Some(&b'-')
        };
        !self.0.is_empty() && self.labels().all(plain)
    }
}

impl From<&Name> for Hostname {
    fn from(name: &Name) -> Self {
        // Labels of a valid name always fit.
        Self(names::wire(name.iter()).unwrap_or_default().into())
    }
}

impl fmt::Debug for Hostname {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Hostname {
    /// Formats the name as Kubernetes does: without the trailing dot.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.is_plain() {
            return f.write_str(&to_presentation(&self.name()));
        }
        for (place, label) in self.labels().enumerate() {
            f.write_str(if place == 0 { "" } else { "." })?;
            f.write_str(str::from_utf8(label).unwrap_or_default())?;
        }
        Ok(())
    }
}

/// Parses a hostname to an absolute name in lower case. The API server accepts labels of 64 and more characters, which
/// DNS can't carry.
///
/// # Errors
/// What is wrong with the hostname.
pub fn host_name(host: &str) -> Result<Name, String> {
    if host.strip_suffix('.').unwrap_or(host).len() > MAX_ENTRY_BYTES {
        return Err(format!("longer than {MAX_ENTRY_BYTES} characters"));
    }
    let has_long_label = || host.split('.').any(|label| label.len() > names::MAX_LABEL);
    let mut name = Name::from_ascii(host.to_ascii_lowercase()).map_err(|_| match has_long_label() {
        true => format!("not a DNS name: a label has more than {} characters", names::MAX_LABEL),
        false => "not a DNS name".to_owned(),
    })?;
    if name.is_root() {
        return Err("the root isn't a host".to_owned());
    }
    name.set_fqdn(true);
    Ok(name)
}

/// Formats a name as Kubernetes does: without the trailing dot.
#[must_use]
pub fn to_presentation(name: &Name) -> String {
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
    fn hostname_converts_to_the_same_name_in_lower_case() {
        let long = format!("{}.{}.example.", "x".repeat(63), "y".repeat(63));
        let odd = [r"a\.b.example.", "*.example.", "_a.b_c.example.", "."];
        for text in ["a.example.", "xn--bcher-kva.example.", &long].into_iter().chain(odd) {
            let name = Name::from_ascii(text).unwrap();
            assert_eq!(Hostname::from(&name).name(), name);
            assert!(Hostname::from(&name).name().is_fqdn());
            assert_eq!(Hostname::from(&name).to_string(), to_presentation(&name));
        }
        let name = Name::from_ascii("A.Example.").unwrap();
        assert_eq!(Hostname::from(&name).to_string(), "a.example");
    }
}
