//! The rules of the CRD in Rust, for StableNames that no API server has checked: objects of manifests, and objects
//! that were stored before a rule existed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::net::IpAddr;

use super::limits::{
    Bounds, MAX_ADDRESS, MAX_ADDRESSES, MAX_ALERT_LABEL, MAX_DNS_NAME, MAX_LABELS, MAX_NAMES, MAX_SOURCES,
    PERIOD_SECONDS, TCP_PORT, THRESHOLD, TIMEOUT_SECONDS, TTL_SECONDS, WAIT_SECONDS,
};
use super::rules;
use super::stable_name::{FailbackMode, Source, StableNameSpec};
use crate::model::excerpt::value;
use crate::model::names::{MAX_LABEL, is_label};

/// A field of a StableName that breaks a rule. The message is that of the API server, which puts the value before
/// the message and doesn't escape control characters.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message}")]
pub struct InvalidField {
    /// The path of the field, such as `spec.sources[0].hostname`.
    pub field: String,
    pub message: String,
}

/// Checks the name and the spec of a StableName.
///
/// # Errors
/// All fields that break a rule.
pub fn validate(name: &str, spec: &StableNameSpec) -> Result<(), Vec<InvalidField>> {
    let mut checker = Checker::default();
    checker.require("metadata.name", is_label(name), rules::OBJECT_NAME.message);
    checker.sources(&spec.sources);
    checker.numbers(spec);
    if let Some(FailbackMode::Unknown(_)) = spec.failback.as_ref().and_then(|failback| failback.mode.as_ref())
    {
        checker.refuse("spec.failback.mode", "supported values: \"Automatic\", \"Manual\"");
    }
    if let Some(pin) = &spec.pin
        && checker.check_length("spec.pin", pin, MAX_LABEL)
    {
        let is_source = spec.sources.iter().any(|source| source.name == *pin);
        checker.require("spec.pin", is_source, rules::PIN.message);
    }
    checker.list("spec.hostnames", spec.hostnames.as_deref(), MAX_NAMES, |checker, field, name| {
        checker.check_length(field, name, MAX_DNS_NAME);
    });
    checker.list("spec.allowFrom", spec.allow_from.as_deref(), MAX_NAMES, |checker, field, namespace| {
        if checker.check_length(field, namespace, MAX_LABEL) {
            let is_name = namespace == "*" || is_label(namespace);
            checker.require(field, is_name, rules::LABEL_OR_ALL.message);
        }
    });
    if let Some(alerts) = &spec.alerts {
        if checker.labels("spec.alerts.ruleLabels", alerts.rule_labels.as_ref(), MAX_LABEL) {
            let are_usable =
                alerts.rule_labels.iter().flatten().all(|(name, text)| is_object_label(name, text));
            checker.require("spec.alerts.ruleLabels", are_usable, rules::OBJECT_LABELS.message);
        }
        if checker.labels("spec.alerts.labels", alerts.labels.as_ref(), MAX_ALERT_LABEL) {
            let are_usable = alerts.labels.iter().flatten().all(|(name, text)| is_alert_label(name, text));
            checker.require("spec.alerts.labels", are_usable, rules::ALERT_LABELS.message);
            let are_free = alerts.labels.iter().flatten().all(|(name, _)| !is_reserved_alert_label(name));
            checker.require("spec.alerts.labels", are_free, rules::RESERVED_ALERT_LABELS.message);
        }
    }
    if checker.invalid.is_empty() { Ok(()) } else { Err(checker.invalid) }
}

/// Collects invalid fields. Methods that return a bool return whether the field is valid; as in the API server, rules
/// apply only to values within the limits.
#[derive(Default)]
struct Checker {
    invalid: Vec<InvalidField>,
}

impl Checker {
    fn refuse(&mut self, field: &str, message: impl Display) {
        self.invalid.push(InvalidField { field: field.to_owned(), message: message.to_string() });
    }

    fn require(&mut self, field: &str, is_valid: bool, message: impl Display) -> bool {
        if !is_valid {
            self.refuse(field, message);
        }
        is_valid
    }

    /// The API server counts characters, although its message calls them bytes.
    fn check_length(&mut self, field: &str, text: &str, max_length: usize) -> bool {
        let is_short = text.chars().count() <= max_length;
        self.require(field, is_short, format_args!("may not be more than {max_length} bytes"))
    }

    fn check_count(&mut self, field: &str, number: usize, max: usize) -> bool {
        self.require(field, number <= max, format_args!("must have at most {max} items"))
    }

    fn check_range(&mut self, field: &str, number: Option<i32>, (min, max): Bounds) {
        let Some(number) = number else { return };
        self.require(field, number >= min, format_args!("should be greater than or equal to {min}"));
        self.require(field, number <= max, format_args!("should be less than or equal to {max}"));
    }

    fn list(
        &mut self,
        field: &str,
        entries: Option<&[String]>,
        max: usize,
        check: impl Fn(&mut Self, &str, &str),
    ) {
        let entries = entries.unwrap_or_default();
        if self.check_count(field, entries.len(), max) {
            for (i, entry) in entries.iter().enumerate() {
                check(self, &format!("{field}[{i}]"), entry);
            }
        }
    }

    fn labels(&mut self, field: &str, labels: Option<&BTreeMap<String, String>>, max_length: usize) -> bool {
        let Some(labels) = labels else { return true };
        self.check_count(field, labels.len(), MAX_LABELS)
            && labels.iter().fold(true, |valid, (name, text)| {
                self.check_length(&format!("{field}.{name}"), text, max_length) && valid
            })
    }

    fn numbers(&mut self, spec: &StableNameSpec) {
        let check = spec.check.clone().unwrap_or_default();
        let max_wait = spec.cutover.as_ref().and_then(|cutover| cutover.max_wait_seconds);
        let after = spec.failback.as_ref().and_then(|failback| failback.after_seconds);
        let not_ready_for = spec.alerts.as_ref().and_then(|alerts| alerts.not_ready_for_seconds);
        let failed_over_for = spec.alerts.as_ref().and_then(|alerts| alerts.failed_over_for_seconds);
        for (field, number, bounds) in [
            ("spec.check.periodSeconds", check.period_seconds, PERIOD_SECONDS),
            ("spec.check.timeoutSeconds", check.timeout_seconds, TIMEOUT_SECONDS),
            ("spec.check.failureThreshold", check.failure_threshold, THRESHOLD),
            ("spec.check.successThreshold", check.success_threshold, THRESHOLD),
            ("spec.check.tcpPort", check.tcp_port, TCP_PORT),
            ("spec.cutover.maxWaitSeconds", max_wait, WAIT_SECONDS),
            ("spec.failback.afterSeconds", after, WAIT_SECONDS),
            ("spec.ttlSeconds", spec.ttl_seconds, TTL_SECONDS),
            ("spec.alerts.notReadyForSeconds", not_ready_for, WAIT_SECONDS),
            ("spec.alerts.failedOverForSeconds", failed_over_for, WAIT_SECONDS),
        ] {
            self.check_range(field, number, bounds);
        }
    }

    fn sources(&mut self, sources: &[Source]) {
        let field = "spec.sources";
        self.require(field, !sources.is_empty(), "should have at least 1 items");
        if !self.check_count(field, sources.len(), MAX_SOURCES) {
            return;
        }
        let names: BTreeSet<&str> = sources.iter().map(|source| &*source.name).collect();
        self.require(field, names.len() == sources.len(), rules::UNIQUE_NAMES.message);
        for (i, source) in sources.iter().enumerate() {
            self.source(&format!("{field}[{i}]"), source);
        }
    }

    fn source(&mut self, field: &str, source: &Source) {
        let Source { name, service, hostname, addresses } = source;
        let kinds = [service.is_some(), hostname.is_some(), addresses.is_some()];
        let has_one_kind = kinds.into_iter().filter(|given| *given).count() == 1;
        self.require(field, has_one_kind, rules::ONE_KIND.message);
        self.label(&format!("{field}.name"), name);
        if let Some(service) = service {
            self.label(&format!("{field}.service.name"), &service.name);
            let further = [("namespace", &service.namespace), ("cluster", &service.cluster)];
            for (name, label) in further.into_iter().filter_map(|(name, label)| Some((name, label.as_ref()?)))
            {
                self.label(&format!("{field}.service.{name}"), label);
            }
        }
        if let Some(hostname) = hostname {
            self.hostname(&format!("{field}.hostname"), hostname);
        }
        let field = format!("{field}.addresses");
        let is_empty = addresses.as_ref().is_some_and(Vec::is_empty);
        self.require(&field, !is_empty, "should have at least 1 items");
        self.list(&field, addresses.as_deref(), MAX_ADDRESSES, |checker, field, address| {
            if checker.check_length(field, address, MAX_ADDRESS) {
                let message = format_args!("{} {}", value(address), rules::ADDRESS.message);
                checker.require(field, is_target_address(address), message);
            }
        });
    }

    fn label(&mut self, field: &str, text: &str) {
        if self.check_length(field, text, MAX_LABEL) {
            self.require(field, is_label(text), rules::LABEL.message);
        }
    }

    fn hostname(&mut self, field: &str, hostname: &str) {
        if !self.check_length(field, hostname, MAX_DNS_NAME) {
            return;
        }
        let is_address = parse_address(hostname).is_some();
        let is_name = hostname.contains('.') && hostname.split('.').all(is_label);
        let is_plain =
            hostname.bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || b"-.".contains(&c));
        let last_label = hostname.rsplit_once('.').filter(|(before, _)| !before.is_empty());
        let ends_in_number = is_plain && last_label.is_some_and(|(_, last)| is_number(last));
        self.require(field, !is_address, rules::NO_ADDRESS.message);
        self.require(field, is_address || is_name, rules::HOSTNAME.message);
        self.require(field, is_address || !ends_in_number, rules::NO_NUMBER.message);
    }
}

/// Parses an address as CEL does, which rejects IPv4-mapped IPv6 addresses.
fn parse_address(text: &str) -> Option<IpAddr> {
    text.parse().ok().filter(|ip: &IpAddr| ip.to_canonical() == *ip)
}

/// Returns whether a text is a canonical address (RFC 5952) that Kubernetes accepts in an EndpointSlice. The target
/// policy denies more addresses, except those of `--allowed-nets`.
fn is_target_address(text: &str) -> bool {
    let is_usable = |ip: IpAddr| match ip {
        IpAddr::V4(v4) => !v4.is_link_local() && !v4.is_broadcast(),
        IpAddr::V6(v6) => !v6.is_unicast_link_local(),
    };
    parse_address(text).is_some_and(|ip| {
        ip.to_string() == text
            && !ip.is_unspecified()
            && !ip.is_loopback()
            && !ip.is_multicast()
            && is_usable(ip)
    })
}

/// Returns whether a label can be that of an alert: a label name of Prometheus, and no template in the value.
pub(crate) fn is_alert_label(name: &str, text: &str) -> bool {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let is_name = name.starts_with(|c: char| !c.is_ascii_digit()) && name.chars().all(is_allowed);
    is_name && name.len() <= MAX_LABEL && name != "__name__" && !text.contains("{{")
}

/// Returns whether lb-linker sets this label of an alert.
pub(crate) fn is_reserved_alert_label(name: &str) -> bool {
    ["alertname", "cluster", "stable_name", "stable_name_namespace"].contains(&name)
}

/// Returns whether a label can be that of a Kubernetes object: a name, perhaps with a domain before it, and a value.
pub(crate) fn is_object_label(name: &str, text: &str) -> bool {
    let is_within = |word: &str, ends: fn(char) -> bool, further: &str| {
        let is_inner = |c| ends(c) || further.contains(c);
        word.starts_with(ends) && word.ends_with(ends) && word.chars().all(is_inner)
    };
    let is_part =
        |word: &str| word.len() <= MAX_LABEL && is_within(word, |c| c.is_ascii_alphanumeric(), "-_.");
    let is_domain_part =
        |label: &str| is_within(label, |c| c.is_ascii_lowercase() || c.is_ascii_digit(), "-");
    let is_domain = |domain: &str| domain.len() <= MAX_DNS_NAME && domain.split('.').all(is_domain_part);
    let is_name = name
        .split_once('/')
        .map_or_else(|| is_part(name), |(domain, name)| is_domain(domain) && is_part(name));
    is_name && (text.is_empty() || is_part(text))
}

/// Returns whether a label is decimal digits, or `0x` with hexadecimal digits, as the schema's pattern `NO_NUMBER`.
fn is_number(label: &str) -> bool {
    let is_decimal = !label.is_empty() && label.bytes().all(|c| c.is_ascii_digit());
    is_decimal
        || label
            .strip_prefix("0x")
            .is_some_and(|digits| digits.bytes().all(|c| c.is_ascii_digit() || (b'a'..=b'f').contains(&c)))
}

#[cfg(test)]
#[path = "../../tests/e2e/stable_names/bad_input.rs"]
pub(crate) mod bad_input;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_input_is_refused_with_field_and_message() {
        for case in bad_input::cases() {
            let spec: StableNameSpec = serde_json::from_value(case.spec).unwrap();
            let found = validate(&case.name, &spec).unwrap_err();
            let found: Vec<_> = found.iter().map(|invalid| (&*invalid.field, &*invalid.message)).collect();
            assert_eq!(found, [(&*case.field, &*case.message)], "{}", case.given);
        }
    }

    #[test]
    fn good_input_is_accepted() {
        for (given, name, spec) in bad_input::accepted() {
            let spec: StableNameSpec = serde_json::from_value(spec).unwrap();
            assert_eq!(validate(&name, &spec), Ok(()), "{given}");
        }
    }
}
