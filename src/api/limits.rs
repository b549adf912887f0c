//! The sizes and numbers that the fields of a StableName may have: the CRD has them, and so do [`super::validation`] and
//! the decoding of a status.

use crate::model::rejection::MAX_ENTRIES;

/// Maximum number of sources of a StableName.
pub const MAX_SOURCES: usize = 8;
/// Maximum number of addresses of a fixed source.
pub const MAX_ADDRESSES: usize = 32;
/// Maximum number of `hostnames`, and of `allowFrom`: as in the annotations of a Service.
pub const MAX_NAMES: usize = MAX_ENTRIES;
/// Maximum number of labels in each of `alerts.ruleLabels` and `alerts.labels`.
pub const MAX_LABELS: usize = 16;
/// Maximum number of characters in the value of a label of an alert.
pub const MAX_ALERT_LABEL: usize = 256;
/// Maximum number of characters of a DNS name (RFC 1035 section 3.1), and of a Kubernetes name.
pub const MAX_DNS_NAME: usize = 253;
/// Maximum number of characters of an IPv6 address: eight groups of four digits.
pub const MAX_ADDRESS: usize = 39;

/// The smallest and the largest value of a field.
pub type Bounds = (i32, i32);
pub const PERIOD_SECONDS: Bounds = (5, 3600);
pub const TIMEOUT_SECONDS: Bounds = (1, 30);
pub const THRESHOLD: Bounds = (1, 100);
pub const TCP_PORT: Bounds = (1, 65_535);
pub const WAIT_SECONDS: Bounds = (0, 86_400);
pub const TTL_SECONDS: Bounds = (0, 3600);

/// Maximum number of characters of the message of a source, of a target as text, and of the reason of a condition.
pub const MAX_MESSAGE: usize = 1024;
/// Maximum number of characters of a state, of the reason of a move, of a UID, and of the status of a condition.
pub const MAX_STATE_TEXT: usize = 64;
/// Maximum number of addresses of the target: as many as lb-linker reads from the status of a Service.
pub const MAX_TARGET_ADDRESSES: usize = 1000;
/// Maximum number of former targets.
pub const MAX_HISTORY: usize = 10;
/// Maximum number of DNS names that are listed.
pub const MAX_DNS_NAMES: usize = 128;
/// Maximum number of conditions: more than this version has.
pub const MAX_CONDITIONS: usize = 16;
