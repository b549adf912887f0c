//! The rules for fields, as CEL expressions that the API server evaluates; [`super::validation`] has the same rules in
//! Rust. Also the schemas of lists and maps whose entries have rules or limits.
//!
//! The API server estimates the cost of each expression from the maximum sizes in the schema, so every text and list
//! that a rule reads has a maximum size.

use kube::core::{Message, Rule, validate};
use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::json;

use super::limits::{
    MAX_ADDRESS, MAX_ADDRESSES, MAX_ALERT_LABEL, MAX_CONDITIONS, MAX_DNS_NAME, MAX_LABELS, MAX_MESSAGE,
    MAX_NAMES, MAX_STATE_TEXT,
};
use crate::model::names::MAX_LABEL;

/// A CEL expression, and the message if it is false.
#[derive(Clone, Copy)]
pub(super) struct FieldRule {
    expression: &'static str,
    pub(super) message: &'static str,
    /// The field that an error names, relative to the value with the rule; `None` for this value itself.
    field: Option<&'static str>,
}

impl FieldRule {
    const fn new(expression: &'static str, message: &'static str) -> Self {
        Self { expression, message, field: None }
    }
}

impl From<FieldRule> for Rule {
    fn from(rule: FieldRule) -> Self {
        let FieldRule { expression, message, field } = rule;
        Self { field_path: field.map(str::to_owned), ..Self::new(expression).message(message) }
    }
}

pub(super) const OBJECT_NAME: FieldRule = FieldRule::new(
    "self.metadata.name.matches('^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$')",
    "metadata.name must be a DNS label: 1 to 63 lower-case letters, digits and hyphens, without a hyphen at either \
     end",
);

pub(super) const PIN: FieldRule = FieldRule {
    field: Some(".pin"),
    ..FieldRule::new(
        "!has(self.pin) || self.sources.exists(source, source.name == self.pin)",
        "must be the name of a source",
    )
};

pub(super) const UNIQUE_NAMES: FieldRule = FieldRule::new(
    "self.all(source, self.exists_one(other, other.name == source.name))",
    "each source needs a name of its own",
);

pub(super) const ONE_KIND: FieldRule = FieldRule::new(
    "[has(self.service), has(self.hostname), has(self.addresses)].exists_one(given, given)",
    "exactly one of service, hostname and addresses must be given",
);

pub(super) const LABEL: FieldRule = FieldRule::new(
    "self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",
    "must be a DNS label: 1 to 63 lower-case letters, digits and hyphens, without a hyphen at either end",
);

pub(super) const LABEL_OR_ALL: FieldRule = FieldRule::new(
    "self == '*' || self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",
    "must be the name of a namespace, or *",
);

/// An IP address breaks only the rule [`NO_ADDRESS`], and a hostname that ends in a number breaks only [`NO_NUMBER`],
/// so that there is one message.
pub(super) const HOSTNAME: FieldRule = FieldRule::new(
    "isIP(self) || \
     self.matches('^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?([.][a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)+$')",
    "must be a DNS name in lower case, with a dot in it and none at its end",
);

pub(super) const NO_ADDRESS: FieldRule = FieldRule::new("!isIP(self)", "use addresses for an IP address");

/// inet_aton(3) reads `127.1` and `0x7f.1` as addresses, and so do some clients of an external target.
pub(super) const NO_NUMBER: FieldRule = FieldRule::new(
    "isIP(self) || !self.matches('^[-.a-z0-9]+[.]([0-9]+|0x[0-9a-f]*)$')",
    "must not end in a number: some programs read it as an IPv4 address",
);

/// The message follows the quoted address.
pub(super) const ADDRESS: FieldRule = FieldRule::new(
    "isIP(self) && ip.isCanonical(self) && ip(self).isGlobalUnicast()",
    "can't be a target, which has to be an IPv4 or IPv6 address in canonical form, not loopback, link-local, multicast or \
     unspecified",
);

/// Prometheus refuses rules with the label `__name__`.
pub(super) const ALERT_LABELS: FieldRule = FieldRule::new(
    "self.all(name, name.matches('^[a-zA-Z_][a-zA-Z0-9_]{0,62}$') && name != '__name__' \
     && !self[name].contains('{{'))",
    "labels of alerts are Prometheus label names, without templates in their values",
);

/// Alertmanager distinguishes alerts by their labels: the alerts of one tenant must not have the labels of another
/// tenant's alerts.
pub(super) const RESERVED_ALERT_LABELS: FieldRule = FieldRule::new(
    "self.all(name, !(name in ['alertname', 'cluster', 'stable_name', 'stable_name_namespace']))",
    "alertname, cluster, stable_name and stable_name_namespace are set by lb-linker",
);

pub(super) const OBJECT_LABELS: FieldRule = FieldRule::new(
    "self.all(name, \
     name.matches('^([a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?\
     [a-zA-Z0-9]([-a-zA-Z0-9_.]{0,61}[a-zA-Z0-9])?$') \
     && name.indexOf('/') <= 253 && self[name].matches('^([a-zA-Z0-9]([-a-zA-Z0-9_.]*[a-zA-Z0-9])?)?$'))",
    "must be labels of a Kubernetes object, such as release: monitoring or example.com/team: shop",
);

// === Schemas ===

fn with_rule(mut schema: Schema, rule: impl Into<Rule>) -> Schema {
    // Fails only if the rule can't be serialized.
    let _ = validate(&mut schema, rule);
    schema
}

pub(super) fn addresses_schema(_: &mut SchemaGenerator) -> Schema {
    let FieldRule { expression, message, .. } = ADDRESS;
    let message = Message::Expression(format!("strings.quote(self) + \" {message}\""));
    let rule = Rule { message: Some(message), ..Rule::new(expression) };
    let address = with_rule(json_schema!({"type": "string", "maxLength": MAX_ADDRESS}), rule);
    json_schema!({"type": "array", "minItems": 1, "maxItems": MAX_ADDRESSES, "items": address})
}

pub(super) fn hostnames_schema(_: &mut SchemaGenerator) -> Schema {
    let hostname = json!({"type": "string", "maxLength": MAX_DNS_NAME});
    json_schema!({"type": "array", "maxItems": MAX_NAMES, "items": hostname})
}

pub(super) fn namespaces_schema(_: &mut SchemaGenerator) -> Schema {
    let namespace = with_rule(json_schema!({"type": "string", "maxLength": MAX_LABEL}), LABEL_OR_ALL);
    json_schema!({"type": "array", "maxItems": MAX_NAMES, "items": namespace})
}

pub(super) fn object_labels_schema(_: &mut SchemaGenerator) -> Schema {
    with_rule(labels_schema(MAX_LABEL), OBJECT_LABELS)
}

pub(super) fn alert_labels_schema(_: &mut SchemaGenerator) -> Schema {
    with_rule(with_rule(labels_schema(MAX_ALERT_LABEL), ALERT_LABELS), RESERVED_ALERT_LABELS)
}

fn labels_schema(max_length: usize) -> Schema {
    let value = json!({"type": "string", "maxLength": max_length});
    json_schema!({"type": "object", "maxProperties": MAX_LABELS, "additionalProperties": value})
}

/// Allows only the failback modes that this version of lb-linker knows.
pub(super) fn failback_mode_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "enum": ["Automatic", "Manual"]})
}

/// Times in UTC, as Kubernetes writes them: the format `date-time` alone also accepts invalid offsets.
pub(super) fn time_schema(_: &mut SchemaGenerator) -> Schema {
    let pattern = "^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]{1,9})?Z$";
    json_schema!({"type": "string", "format": "date-time", "pattern": pattern})
}

fn described(description: &str, mut schema: Schema) -> Schema {
    schema.insert("description".to_owned(), description.into());
    schema
}

/// The conditions as in metav1.Condition; a list map, so that other controllers can have conditions of their own.
pub(super) fn conditions_schema(generator: &mut SchemaGenerator) -> Schema {
    let text = |description: &str, max_length: usize| {
        described(description, json_schema!({"type": "string", "maxLength": max_length}))
    };
    let time =
        described("The time at which the status of the condition last changed.", time_schema(generator));
    let generation = "The metadata.generation of the spec for which the condition was written.";
    let generation = described(generation, json_schema!({"type": "integer", "format": "int64"}));
    json_schema!({
        "type": "array",
        "maxItems": MAX_CONDITIONS,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": {
            "description": "A condition is one aspect of the state of the StableName.",
            "type": "object",
            "required": ["lastTransitionTime", "message", "reason", "status", "type"],
            "properties": {
                "type": text("The name of the condition.", 316),
                "status": text("True, False or Unknown.", MAX_STATE_TEXT),
                "reason": text("The reason for the status of the condition, as one word.", MAX_MESSAGE),
                "message": text("The reason for the status of the condition, for people; it may be empty.", 32_768),
                "lastTransitionTime": time,
                "observedGeneration": generation,
            },
        },
    })
}
