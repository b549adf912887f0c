//! Signatures of messages by shared keys: TSIG (RFC 8945).
//!
//! A server checks a request with [`check_request`], and signs the messages of its reply with the [`Signer`] that it
//! gets. A client signs a request with [`ReplyChecker::sign`], and checks the messages of the reply with it.

mod error;
mod key;
mod record;
mod reply;
mod request;
#[cfg(test)]
mod tests;

use std::time::{SystemTime, UNIX_EPOCH};

pub use error::TsigError;
pub use key::{Algorithm, Key, TsigKeys};
pub use record::is_signed;
pub use reply::ReplyChecker;
pub use request::{CheckedRequest, Signer, check_request};

/// Returns the time for signatures, in seconds since 1970.
#[must_use]
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
