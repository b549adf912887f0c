//! The lb-linker instance that an object of the target namespace belongs to.
//!
//! Several instances may share a target namespace. Each instance records its name in the annotation [`INSTANCE`] of its
//! external targets and EndpointSlices, and leaves the objects of other instances alone.

use std::collections::HashMap;
use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// The annotation with the instance that an external target or EndpointSlice belongs to.
pub const INSTANCE: &str = "linker.hsj.com/instance";
/// Maximum length of an instance name: a namespace, a slash and the name of a Lease.
const MAX_INSTANCE_BYTES: usize = 63 + 1 + 253;

/// Returns whether `name` is a valid instance name: 1 to 317 ASCII letters, digits and `-_./`.
#[must_use]
pub fn is_name(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
    !name.is_empty() && name.len() <= MAX_INSTANCE_BYTES && name.chars().all(allowed)
}

/// Returns the instance that an object belongs to. An empty annotation counts as none.
#[must_use]
pub fn instance_of(metadata: &ObjectMeta) -> Option<&str> {
    let instance = metadata.annotations.as_ref()?.get(INSTANCE)?;
    Some(instance.as_str()).filter(|instance| !instance.is_empty())
}

/// Returns the instance that an object belongs to, if it isn't `own`. Without `own` every object counts as ours: files
/// have no instances, and `--sync off` reads the objects of all instances.
#[must_use]
pub fn other_instance<'a>(metadata: &'a ObjectMeta, own: Option<&str>) -> Option<&'a str> {
    instance_of(metadata).filter(|instance| own.is_some_and(|own| own != *instance))
}

/// Another instance, which owns more than half of the external targets and EndpointSlices of a target namespace. Its
/// `Display` text says how to solve that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherOwner {
    pub namespace: String,
    pub own: String,
    pub other: String,
    pub owned: usize,
    pub total: usize,
}

impl OtherOwner {
    /// Returns the instance that owns more than half of the objects, unless it is `own`. `objects` has the instance of
    /// each object; `None` if the object has no instance.
    pub fn find<T: AsRef<str>>(
        namespace: &str,
        own: &str,
        objects: impl Iterator<Item = Option<T>>,
    ) -> Option<Self> {
        let mut total = 0;
        let mut owned: HashMap<String, usize> = HashMap::new();
        for instance in objects {
            total += 1;
            let Some(instance) = instance else { continue };
            let instance = instance.as_ref();
            match owned.get_mut(instance) {
                Some(number) => *number += 1,
                None => drop(owned.insert(instance.to_owned(), 1)),
            }
        }
        let (other, owned) = owned.into_iter().max_by_key(|(_, number)| *number)?;
        let (namespace, own) = (namespace.to_owned(), own.to_owned());
        (other != own && owned > total / 2).then_some(Self { namespace, own, other, owned, total })
    }
}

impl fmt::Display for OtherOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { namespace, own, other, owned, total } = self;
        // An annotation may contain any text, but only a valid name can be the value of a flag.
        let (shown, flag) = if is_name(other) {
            (other.clone(), format!("--instance={other}"))
        } else {
            (
                format!("{:?}", other.chars().take(MAX_INSTANCE_BYTES).collect::<String>()),
                "--instance=OLD".to_owned(),
            )
        };
        write!(
            f,
            "{owned} of {total} external targets and EndpointSlices in namespace {namespace} belong to the lb-linker \
             instance {shown} (annotation {INSTANCE}), this is {own}, and they are left alone; if this is the same \
             installation under a new name, start it with {flag}; if {shown} isn't there any more: \
             kubectl -n {namespace} annotate services,endpointslices --all {INSTANCE}-"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(objects: &[&str]) -> Option<(String, usize, usize)> {
        let objects = objects.iter().map(|instance| (!instance.is_empty()).then_some(instance));
        let found = OtherOwner::find("targets", "a/own", objects)?;
        Some((found.other, found.owned, found.total))
    }

    #[test]
    fn another_owner_of_most_objects_is_found() {
        assert_eq!(find(&[]), None);
        assert_eq!(find(&["", ""]), None);
        assert_eq!(find(&["a/own", "a/own", "b"]), None);
        assert_eq!(find(&["b", "a/own"]), None, "half is not most");
        assert_eq!(find(&["b", "c", ""]), None);
        assert_eq!(find(&["b", "b", "a/own"]), Some(("b".to_owned(), 2, 3)));
    }

    #[test]
    fn text_about_another_owner_names_both_remedies() {
        let found = |other: &str| OtherOwner::find("targets", "a/own", [Some(other)].into_iter()).unwrap();
        let text = found("old/lb-linker").to_string();
        assert!(text.contains("--instance=old/lb-linker;"), "{text}");
        let command = "kubectl -n targets annotate services,endpointslices --all linker.hsj.com/instance-";
        assert!(text.ends_with(command), "{text}");
        let text = found(&format!("\u{1b}[2J{}", "x".repeat(10_000))).to_string();
        assert!(text.contains("--instance=OLD;") && !text.contains('\u{1b}') && text.len() < 2000, "{text}");
    }

    #[test]
    fn instance_name_has_1_to_317_allowed_characters() {
        for name in ["lb-linker/lb-linker", "a", "A_b.c/d", &"x".repeat(317)] {
            assert!(is_name(name), "{name}");
        }
        for name in ["", " ", "a b", "ä", "a\n", "a;b", &"x".repeat(318)] {
            assert!(!is_name(name), "{name}");
        }
    }
}
