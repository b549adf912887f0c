//! All naming rules, as pure functions.

use sha2::{Digest, Sha256};

/// The maximum length of a label in octets (RFC 1035 section 2.3.4), and of the name of a Service.
pub const MAX_LABEL: usize = 63;

/// The numbers of hexadecimal digits of the hash in a name. More digits are used if the shorter name is taken, too.
pub const HASH_DIGITS: [usize; 3] = [8, 16, 32];

/// The label below each zone that contains the names of the zone's name servers, unless the Corefile sets another one.
/// CoreDNS's default.
pub const RESERVED_LABEL: &str = "dns";

/// The label below each zone that never exists: the external target of a deleted Service may point to it.
pub const DELETED: &str = "deleted";

/// Returns the default name of a link's external target: `<service>-<namespace>-ext`.
///
/// Characters that a Service name can't contain become `-`. A name that exceeds the length of a label is cut, and ends
/// in a hash of `namespace/service`, so that long names with the same beginning stay distinct.
#[must_use]
pub fn external_target(namespace: &str, service: &str) -> String {
    let whole = external_target_uncut(namespace, service);
    if whole.len() <= MAX_LABEL {
        return whole;
    }
    cut_with_hash(&whole, namespace, service, HASH_DIGITS[0])
}

/// Returns the alternative name of a link's external target, for the case that the default name belongs to another
/// link: the same name with this number of digits of a hash of `namespace/service` at the end.
#[must_use]
pub fn external_target_hashed(namespace: &str, service: &str, digits: usize) -> String {
    cut_with_hash(&external_target_uncut(namespace, service), namespace, service, digits)
}

/// Returns the name that the earlier operator gave the external target: cut off at 63 characters.
#[must_use]
pub fn earlier_external_target(namespace: &str, service: &str) -> String {
    let whole = external_target_uncut(namespace, service);
    let cut: String = whole.chars().take(MAX_LABEL).collect();
    cut.trim_matches('-').to_owned()
}

fn external_target_uncut(namespace: &str, service: &str) -> String {
    sanitize(format!("{service}-{namespace}-ext"))
}

/// Returns the label of a link directly below a zone: `<service>-<namespace>`.
///
/// The label is ambiguous (`x-y` in `z` and `x` in `y-z`): the store decides which link owns it.
#[must_use]
pub fn dashed_label(namespace: &str, service: &str) -> String {
    let label = format!("{service}-{namespace}").to_ascii_lowercase();
    if label.len() <= MAX_LABEL {
        return label;
    }
    cut_with_hash(&label, namespace, service, HASH_DIGITS[0])
}

/// The maximum number of hyphens at the cut, which a cut name lacks, that [`may_be_cut`] takes into account.
const MAX_CUT_HYPHENS: usize = 8;

/// Returns whether a label directly below a zone may be one that [`dashed_label`] has cut: it ends in a hash, and is as
/// long as a label may be, but for hyphens at the cut.
#[must_use]
pub fn may_be_cut(label: &[u8]) -> bool {
    let Some((prefix, hash)) = label.split_last_chunk::<{ HASH_DIGITS[0] }>() else { return false };
    label.len() > MAX_LABEL - MAX_CUT_HYPHENS
        && prefix.ends_with(b"-")
        && hash.iter().all(u8::is_ascii_hexdigit)
}

/// Returns whether `text` is an RFC 1123 label, as Kubernetes requires: 1 to 63 lower-case letters, digits and hyphens,
/// without a hyphen at either end.
#[must_use]
pub fn is_label(text: &str) -> bool {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    (1..=MAX_LABEL).contains(&text.len())
        && text.chars().all(allowed)
        && !text.starts_with('-')
        && !text.ends_with('-')
}

/// Returns whether the domain `label` directly below a zone, including all names below it, is reserved: the zone's own
/// label, [`DELETED`], or a label that begins with `_`, as in SRV names (RFC 8552 section 1.1).
#[must_use]
pub fn is_reserved(label: &[u8], apex: &[u8]) -> bool {
    label == apex || label == DELETED.as_bytes() || label.starts_with(b"_")
}

/// Returns a name in wire form, in lower case and without the root label: the form that the store's look-ups take.
/// `None` if a label is empty or exceeds 63 octets.
#[must_use]
pub fn wire<'a>(labels: impl IntoIterator<Item = &'a [u8]>) -> Option<Vec<u8>> {
    let mut name = Vec::with_capacity(64);
    for label in labels {
        if label.is_empty() || label.len() > MAX_LABEL {
            return None;
        }
        push_label(label, &mut name);
    }
    name.make_ascii_lowercase();
    Some(name)
}

/// Returns a requested name as links have it: in lower case and without a dot at its end.
#[must_use]
pub fn in_stored_form(name: &str) -> String {
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

/// Returns a name without the trailing dot in the form of [`wire`], or `None` if a label is empty or exceeds 63 octets.
#[must_use]
pub fn wire_of(name: &str) -> Option<Vec<u8>> {
    wire(name.split('.').map(str::as_bytes))
}

/// Returns the labels of a name in the form of [`wire`], the leftmost one first.
pub fn labels(name: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = name;
    std::iter::from_fn(move || {
        let (label, parent) = split(rest)?;
        rest = parent;
        Some(label)
    })
}

/// Returns the part of a name in the form of [`wire`] below a domain; `None` if the name isn't there.
#[must_use]
pub fn below<'a>(name: &'a [u8], domain: &[u8]) -> Option<&'a [u8]> {
    let below = name.strip_suffix(domain)?;
    let mut rest = below;
    // A domain must begin at a label boundary: the part of the name below it consists of whole labels.
    while let Some((length, labels)) = rest.split_first() {
        rest = labels.get(usize::from(*length)..)?;
    }
    Some(below)
}

/// Splits a name in the form of [`wire`] into its first label and its parent; `None` for the root.
#[must_use]
pub fn split(name: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = name.split_first()?;
    rest.split_at_checked(usize::from(*length))
}

/// Returns the text of a name in wire form, without the trailing dot and without escapes: it equals the text of a
/// custom hostname if the names are equal.
#[must_use]
pub fn text(mut wire: &[u8]) -> String {
    let mut text = String::with_capacity(wire.len());
    while let Some((length, rest)) = wire.split_first() {
        let (label, rest) = rest.split_at(usize::from(*length).min(rest.len()));
        if !text.is_empty() {
            text.push('.');
        }
        text.push_str(&String::from_utf8_lossy(label));
        wire = rest;
    }
    text
}

/// Writes labels in wire form and lower case. No label may exceed 63 octets.
pub fn push_labels<'a>(labels: impl IntoIterator<Item = &'a [u8]>, to: &mut Vec<u8>) {
    let start = to.len();
    labels.into_iter().for_each(|label| push_label(label, to));
    // Length octets are at most 63, so they are never letters.
    to[start..].make_ascii_lowercase();
}

/// Writes one label in wire form, with its case unchanged.
pub fn push_label(label: &[u8], to: &mut Vec<u8>) {
    to.reserve(1 + label.len());
    to.push(u8::try_from(label.len()).unwrap_or_default());
    to.extend_from_slice(label);
}

fn sanitize(name: String) -> String {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    // Fast path: no character needs sanitizing.
    if name.bytes().all(allowed) && !name.starts_with('-') && !name.ends_with('-') {
        return name;
    }
    let name: String = name
        .to_ascii_lowercase()
        .chars()
        .map(|c| if c.is_ascii_lowercase() || c.is_ascii_digit() { c } else { '-' })
        .collect();
    name.trim_matches('-').to_owned()
}

/// Returns the SHA-256 hash of a text, or of bytes, in hexadecimal digits. Each version of lb-linker computes the same
/// hash.
#[must_use]
pub fn hash_of(text: impl AsRef<[u8]>) -> String {
    Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn cut_with_hash(name: &str, namespace: &str, service: &str, digits: usize) -> String {
    let hash = hash_of(format!("{namespace}/{service}"));
    let room = MAX_LABEL - 1 - digits;
    let prefix: String = name.chars().take(room).collect();
    format!("{}-{}", prefix.trim_end_matches('-'), &hash[..digits])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn external_targets_are_named_after_service_and_namespace() {
        for (namespace, service, expected) in [
            ("default", "my-sample-lb", "my-sample-lb-default-ext"),
            ("elk", "kibana", "kibana-elk-ext"),
            ("Team_A", "web.v2", "web-v2-team-a-ext"),
            ("ns", "-x", "x-ns-ext"),
        ] {
            assert_eq!(external_target(namespace, service), expected);
        }
    }

    #[test]
    fn names_above_63_characters_are_cut_with_a_hash() {
        let namespace = "n".repeat(20);
        let fits = external_target(&namespace, &"s".repeat(63 - 20 - 5));
        assert_eq!(fits.len(), 63);
        assert!(fits.ends_with("-ext"));

        let cut = external_target(&namespace, &"s".repeat(63 - 20 - 4));
        assert_eq!(cut.len(), 63);
        assert!(!cut.ends_with("-ext"));
        assert_ne!(cut, external_target(&namespace, &"s".repeat(63 - 20 - 3)));
    }

    #[test]
    fn a_cut_never_leaves_a_hyphen_before_the_hash() {
        let service = format!("{}-{}", "s".repeat(53), "t".repeat(9));
        let name = external_target("ns", &service);
        assert!(!name.contains("--"), "{name}");
        // The digits at the end are the first ones of sha256("ns/" + service).
        let digest = Sha256::digest(format!("ns/{service}"));
        assert!(
            name.ends_with(&format!("-{:02x}{:02x}{:02x}{:02x}", digest[0], digest[1], digest[2], digest[3]))
        );
    }

    #[test]
    fn dashed_labels_are_cut_only_above_63_octets() {
        assert_eq!(dashed_label("default", "my-sample-lb"), "my-sample-lb-default");
        assert_eq!(dashed_label(&"n".repeat(31), &"s".repeat(31)).len(), 63);
        let cut = dashed_label(&"n".repeat(32), &"s".repeat(31));
        assert_eq!(cut.len(), 63);
        assert_ne!(cut, dashed_label(&"n".repeat(33), &"s".repeat(31)));
        assert!(may_be_cut(cut.as_bytes()));
        let after_hyphens = dashed_label("namespace", &format!("{}--{}", "s".repeat(52), "t".repeat(9)));
        assert!(after_hyphens.len() < MAX_LABEL && may_be_cut(after_hyphens.as_bytes()), "{after_hyphens}");
        assert!(!may_be_cut(b"my-sample-lb-default") && !may_be_cut(b"web-pr-1a2b3c4d"));
    }

    #[test]
    fn names_in_wire_form_are_lower_case_and_keep_label_borders() {
        assert_eq!(wire([&b"Ab"[..], b"c"]).unwrap(), b"\x02ab\x01c");
        assert_ne!(wire([&b"a.b"[..]]), wire([&b"a"[..], b"b"]));
        assert_eq!(wire([&b""[..]]), None);
        assert_eq!(wire([&[b'x'; 64][..]]), None);
        assert_eq!(text(b"\x01*\x02ab\x01c"), "*.ab.c");
    }

    #[test]
    fn labels_of_the_zone_are_reserved() {
        for label in ["dns", "deleted", "_tcp"] {
            assert!(is_reserved(label.as_bytes(), b"dns"));
        }
        assert!(!is_reserved(b"default", b"dns"));
    }
}
