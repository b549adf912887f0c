//! Finds strings in manifests that kubectl reads as another type: it reads YAML 1.1, in which a plain `n` is a boolean
//! and `1e3` is a number. A manifest that kubectl would read differently is rejected with the position.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_saphyr::{Location, Spanned};

/// The strings and numbers of a Service, or of the items of a List, that lb-linker reads.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Document {
    api_version: Option<String>,
    kind: Option<String>,
    metadata: Option<Metadata>,
    spec: Option<Spec>,
    status: Option<Status>,
    items: Option<Vec<Self>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    name: Option<Text>,
    namespace: Option<Text>,
    uid: Option<Text>,
    resource_version: Option<Text>,
    #[serde(default)]
    labels: StringMap,
    #[serde(default)]
    annotations: StringMap,
    finalizers: Option<Vec<Text>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    #[serde(rename = "type")]
    type_: Option<Text>,
    external_name: Option<Text>,
    #[serde(rename = "clusterIP")]
    cluster_ip: Option<Text>,
    ports: Option<Vec<Port>>,
    #[serde(default)]
    selector: StringMap,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Port {
    name: Option<Text>,
    protocol: Option<Text>,
    app_protocol: Option<Text>,
    port: Option<Text>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Status {
    load_balancer: Option<LoadBalancer>,
}

#[derive(Debug, Deserialize)]
struct LoadBalancer {
    ingress: Option<Vec<Ingress>>,
}

#[derive(Debug, Deserialize)]
struct Ingress {
    hostname: Option<Text>,
    ip: Option<Text>,
}

/// A scalar as spelled; `None` for null.
type Text = Spanned<Option<String>>;

#[derive(Debug, Default)]
struct StringMap(Vec<(Text, Text)>);

/// A scalar that kubectl reads as another type.
#[derive(Debug)]
pub(super) struct Misread {
    pub(super) place: Location,
    /// The error, and the correct spelling.
    pub(super) why: String,
}

/// The type as which kubectl reads a plain scalar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ScalarKind {
    String,
    Boolean,
    Number,
    Null,
}

impl Document {
    /// Returns the first scalar in the content that kubectl reads as another type.
    pub(super) fn misread(&self, content: &str) -> Option<Misread> {
        let mut found = Vec::new();
        let mut check = Check { content, found: &mut found };
        match &self.items {
            Some(items) => {
                items.iter().filter(|item| item.is_service()).for_each(|item| item.check(&mut check))
            }
            None => self.check(&mut check),
        }
        found.into_iter().min_by_key(|misread| (misread.place.line(), misread.place.column()))
    }

    /// Returns whether an item is a Service. Items of a ServiceList may omit apiVersion and kind.
    fn is_service(&self) -> bool {
        let is = |field: &Option<String>, what| field.as_deref().is_none_or(|found| found == what);
        is(&self.api_version, "v1") && is(&self.kind, "Service")
    }

    fn check(&self, check: &mut Check<'_>) {
        if let Some(metadata) = &self.metadata {
            check.string("metadata.name", &metadata.name);
            check.string("metadata.namespace", &metadata.namespace);
            check.string("metadata.uid", &metadata.uid);
            check.string("metadata.resourceVersion", &metadata.resource_version);
            check.entries("metadata.labels", &metadata.labels);
            check.entries("metadata.annotations", &metadata.annotations);
            for finalizer in metadata.finalizers.iter().flatten() {
                check.text("metadata.finalizers", finalizer);
            }
        }
        if let Some(spec) = &self.spec {
            check.string("spec.type", &spec.type_);
            check.string("spec.externalName", &spec.external_name);
            check.string("spec.clusterIP", &spec.cluster_ip);
            check.entries("spec.selector", &spec.selector);
            for port in spec.ports.iter().flatten() {
                check.string("spec.ports.name", &port.name);
                check.string("spec.ports.protocol", &port.protocol);
                check.string("spec.ports.appProtocol", &port.app_protocol);
                check.number("spec.ports.port", &port.port);
            }
        }
        let balancer = self.status.iter().filter_map(|status| status.load_balancer.as_ref());
        for ingress in balancer.filter_map(|balancer| balancer.ingress.as_ref()).flatten() {
            check.string("status.loadBalancer.ingress.hostname", &ingress.hostname);
            check.string("status.loadBalancer.ingress.ip", &ingress.ip);
        }
    }
}

/// A pass through a document.
struct Check<'a> {
    content: &'a str,
    found: &'a mut Vec<Misread>,
}

impl Check<'_> {
    fn string(&mut self, field: &str, text: &Option<Text>) {
        text.iter().for_each(|text| self.text(field, text));
    }

    /// Checks that a string is a string to kubectl, too.
    fn text(&mut self, field: &str, text: &Text) {
        let Some(value) = &text.value else { return };
        if let Some(why) = misread_string(self.content, field, value, text.defined) {
            self.found.push(Misread { place: text.referenced, why });
        }
    }

    /// Checks a map. kubectl converts keys to strings, which may differ from the spelling: `on` becomes `true`, and
    /// `017` becomes `15`.
    fn entries(&mut self, field: &str, entries: &StringMap) {
        for (key, value) in &entries.0 {
            if key.value.as_deref().is_some_and(|key| !is_same_key(key)) {
                self.text(field, key);
            }
            self.text(field, value);
        }
    }

    /// Checks a number: in quotes it is a string to kubectl.
    fn number(&mut self, field: &str, text: &Option<Text>) {
        let Some(Spanned { value: Some(value), referenced, defined }) = text else { return };
        if length(*defined) != value.chars().count() && !is_tagged(self.content, *defined) {
            let why = format!("{field}: {value:?} is a string, and has to be a number: write {value}");
            self.found.push(Misread { place: *referenced, why });
        }
    }
}

/// Returns why kubectl doesn't read a string as a string, if it doesn't: the scalar has neither quotes nor a tag.
pub(super) fn misread_string(content: &str, field: &str, value: &str, defined: Location) -> Option<String> {
    let kind = kind(value);
    let is_misread = kind != ScalarKind::String
        && length(defined) == value.chars().count()
        && !is_tagged(content, defined);
    is_misread.then(|| {
        format!(
            "{field}: {value} is {} to kubectl, which reads YAML 1.1, and has to be a string: write \"{value}\"",
            kind.name()
        )
    })
}

/// Returns whether a tag, or the header of a block scalar, precedes a scalar, perhaps with an anchor in between.
fn is_tagged(content: &str, scalar: Location) -> bool {
    let (before, _) = content.split_at(byte_offset(content, scalar.span().offset()));
    let mut words = before.split_whitespace().rev().filter(|word| !word.starts_with('&'));
    let before = words.next().unwrap_or_default().trim_start_matches(['[', '{', ',']);
    before.starts_with(['!', '|', '>'])
}

/// Returns the text of a scalar as the file spells it.
pub(super) fn spelled(content: &str, scalar: Location) -> &str {
    let (_, from) = content.split_at(byte_offset(content, scalar.span().offset()));
    from.split_at(byte_offset(from, scalar.span().len())).0
}

fn byte_offset(content: &str, chars: u64) -> usize {
    let chars = usize::try_from(chars).unwrap_or(usize::MAX);
    content.char_indices().nth(chars).map_or(content.len(), |(at, _)| at)
}

impl ScalarKind {
    fn name(self) -> &'static str {
        match self {
            Self::String => "a string",
            Self::Boolean => "a boolean",
            Self::Number => "a number",
            Self::Null => "null",
        }
    }
}

/// Returns the number of characters of a scalar in the file, including quotes.
pub(super) fn length(scalar: Location) -> usize {
    usize::try_from(scalar.span().len()).unwrap_or(usize::MAX)
}

/// Returns whether kubectl converts a plain key to the same string.
pub(super) fn is_same_key(key: &str) -> bool {
    match kind(key) {
        ScalarKind::String => true,
        ScalarKind::Boolean => matches!(key, "true" | "false"),
        ScalarKind::Number => key.parse::<i64>().is_ok_and(|number| number.to_string() == key),
        ScalarKind::Null => false,
    }
}

/// Returns the type as which kubectl reads a plain scalar, like `resolve` of go-yaml v2, which sigs.k8s.io/yaml uses.
/// A date counts as a string: go-yaml resolves it as a timestamp, but decodes it as a string.
fn kind(plain: &str) -> ScalarKind {
    match plain {
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" | "n" | "N"
        | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => ScalarKind::Boolean,
        "" | "~" | "null" | "Null" | "NULL" => ScalarKind::Null,
        ".nan" | ".NaN" | ".NAN" | ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" | "-.inf"
        | "-.Inf" | "-.INF" => ScalarKind::Number,
        _ => {
            let is_number = match plain.as_bytes()[0] {
                b'.' => has_digits_around_underscores(plain) && is_float(&plain.replace('_', "")),
                b'+' | b'-' | b'0'..=b'9' => {
                    let plain = plain.replace('_', "");
                    is_integer(&plain) || is_float(&plain)
                }
                _ => false,
            };
            if is_number { ScalarKind::Number } else { ScalarKind::String }
        }
    }
}

/// Returns whether Go's `strconv.ParseInt` or `ParseUint` accepts the text, with base 0 and 64 bits.
fn is_integer(text: &str) -> bool {
    let (digits, largest) = match text.as_bytes().first() {
        Some(b'-') => (&text[1..], 1 << 63),
        Some(b'+') => (&text[1..], u128::from(i64::MAX.unsigned_abs())),
        _ => (text, u128::from(u64::MAX)),
    };
    let (radix, digits) = match digits.as_bytes() {
        [b'0', b'x' | b'X', _, ..] => (16, &digits[2..]),
        [b'0', b'o' | b'O', _, ..] => (8, &digits[2..]),
        [b'0', b'b' | b'B', _, ..] => (2, &digits[2..]),
        [b'0', _, ..] => (8, &digits[1..]),
        _ => (10, digits),
    };
    let is_digits = !digits.is_empty() && digits.chars().all(|digit| digit.is_digit(radix));
    is_digits && u128::from_str_radix(digits, radix).is_ok_and(|number| number <= largest)
}

/// Returns whether the text is a finite decimal number of 64 bits, such as `1.5`, `.5`, `1.` or `1e3`.
fn is_float(text: &str) -> bool {
    let only = |byte: u8| byte.is_ascii_digit() || matches!(byte, b'+' | b'-' | b'.' | b'e' | b'E');
    text.bytes().all(only) && text.parse::<f64>().is_ok_and(f64::is_finite)
}

/// Returns whether each underscore stands between two digits, as Go's `strconv.ParseFloat` requires.
fn has_digits_around_underscores(text: &str) -> bool {
    let bytes = text.as_bytes();
    let is_digit = |at: Option<usize>| at.and_then(|at| bytes.get(at)).is_some_and(u8::is_ascii_digit);
    let mut underscores = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'_');
    underscores.all(|(at, _)| is_digit(at.checked_sub(1)) && is_digit(Some(at + 1)))
}

impl<'de> Deserialize<'de> for StringMap {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct All;

        impl<'de> Visitor<'de> for All {
            type Value = StringMap;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of strings")
            }

            fn visit_unit<E>(self) -> Result<StringMap, E> {
                Ok(StringMap::default())
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<StringMap, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(StringMap(entries))
            }
        }

        deserializer.deserialize_map(All)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the error for a Service with this value of the annotation `k`.
    fn misread(value: &str) -> Option<String> {
        let content = format!("metadata:\n  annotations:\n    \u{e4}: \u{f6}\n    k: {value}\n");
        let document = serde_saphyr::read::<_, Document>(&mut content.as_bytes()).next()?.ok()?;
        let Misread { place, why } = document.misread(&content)?;
        Some(format!("{}:{}: {why}", place.line(), place.column()))
    }

    #[test]
    fn plain_scalars_have_the_type_that_kubectl_reads() {
        for (kind_, scalars) in [
            (
                ScalarKind::Boolean,
                "n N no No NO y Y yes Yes YES on On ON off Off OFF true True TRUE false False FALSE",
            ),
            (ScalarKind::Null, "~ null Null NULL"),
            (
                ScalarKind::Number,
                "1 -1 +1 0 -0 00 017 08 0o17 0O17 0x1f 0X1F 0b11 0B11 -0b11 1_000 1_ 1__0 0_7 0x_1f 0b_1 0o_7 -1_0 1e3 \
                 1E3 1e+3 1e3_0 1_000.5 1.5 1. 0. .5 .5_0 +.5 12345678901234567890 123456789012345678901234567890 .inf \
                 .Inf .INF +.inf -.inf .nan .NaN .NAN",
            ),
            (
                ScalarKind::String,
                "yEs nO oN oFF tRUE nULL .iNF +.nan nan NaN inf Infinity +inf _1 _ . + 1e 1e3.5 1e400 0x 0xg 0o8 0b12 \
                 0x1.8p1 0x1p-2 0xfffffffffffffffff .5_ .5__0 1.2.3 1.2.3.4 2001-01-01 2001-1-1 2001-01-01T00:00:00Z \
                 12:30:45 190:20:30 1:2 1,000 << = a web-1",
            ),
        ] {
            for scalar in scalars.split_whitespace() {
                assert_eq!(kind(scalar), kind_, "{scalar}");
            }
        }
        assert_eq!(kind(""), ScalarKind::Null);
    }

    #[test]
    fn only_plain_scalars_are_misread() {
        for value in
            ["\"n\"", "'n'", "!!str n", "!!str &a 1e3", "&a !!str n", "|-\n      n", ">\n      n", "~", "web"]
        {
            assert_eq!(misread(value), None, "{value}");
        }
        for value in ["n", "&a n"] {
            let found = misread(value).unwrap();
            let column = 4 + value.len() + 3;
            assert_eq!(
                found,
                format!(
                    "4:{column}: metadata.annotations: n is a boolean to kubectl, which reads YAML 1.1, and has to be a \
                     string: write \"n\""
                )
            );
        }
        assert!(misread("1e3").unwrap().contains(": 1e3 is a number to kubectl"));
    }

    #[test]
    fn keys_are_misread_if_kubectl_changes_them() {
        for (key, same) in
            [("on", false), ("017", false), ("1e3", false), ("true", true), ("17", true), ("a", true)]
        {
            assert_eq!(is_same_key(key), same, "{key}");
        }
    }
}
