//! The signatures of a client: it signs its request, and checks those of the reply.

use std::sync::Arc;

use super::error::TsigError;
use super::key::{Hashing, Key};
use super::record::{self, FUDGE, TsigRecord};

/// The maximum number of messages without a signature between two messages with one (RFC 8945 section 5.3.1).
const MAX_UNSIGNED: usize = 99;

/// Checks the messages of the reply to a signed request, in their order.
#[derive(Debug)]
pub struct ReplyChecker {
    key: Arc<Key>,
    /// Has hashed the MAC before, and the messages since then.
    hashing: Hashing,
    is_first: bool,
    /// The number of messages since the last signature.
    unsigned: usize,
}

impl ReplyChecker {
    /// Signs a request, which must have a header, and returns the checker of the reply. `now` is in seconds since 1970.
    #[must_use]
    pub fn sign(key: Arc<Key>, request: &mut Vec<u8>, now: u64) -> Self {
        let mut record = TsigRecord {
            key: key.name().to_vec(),
            algorithm: key.algorithm.wire_name(),
            time: now,
            fudge: FUDGE,
            mac: Vec::new(),
            original_id: request.first_chunk().map_or(0, |id| u16::from_be_bytes(*id)),
            error: 0,
            other: Vec::new(),
        };
        let mut hashing = key.hashing(key.algorithm);
        hashing.update(request);
        record.hash(&mut hashing);
        record.mac = hashing.finish();
        record.push(request);
        let hashing = after(&key, &record.mac);
        Self { key, hashing, is_first: true, unsigned: 0 }
    }

    /// Checks the next message of the reply, and removes its TSIG record. A message of a reply may lack a signature,
    /// but neither the first nor the last one. `now` is in seconds since 1970.
    ///
    /// # Errors
    /// If the signature isn't accepted. Then none of the messages may be used.
    pub fn check(&mut self, message: &mut Vec<u8>, now: u64) -> Result<(), TsigError> {
        let Some((start, record)) = record::find(message)? else {
            self.unsigned += 1;
            if self.is_first || self.unsigned > MAX_UNSIGNED {
                return Err(TsigError::Unsigned);
            }
            self.hashing.update(message);
            return Ok(());
        };
        let algorithm = self.key.algorithm;
        if record.key != *self.key.name() || record.algorithm != algorithm.wire_name() {
            return Err(TsigError::BadKey);
        }
        if record.mac.is_empty() && record.error != 0 {
            return Err(TsigError::ByServer(record.error));
        }
        if record.mac.len() != algorithm.length() {
            return Err(TsigError::BadTrunc);
        }
        let mut hashing = std::mem::replace(&mut self.hashing, after(&self.key, &record.mac));
        hashing.update_with_message(message, start, record.original_id);
        if self.is_first {
            record.hash(&mut hashing);
        } else {
            record.hash_timers(&mut hashing);
        }
        if !hashing.is(&record.mac) {
            return Err(TsigError::BadSig);
        }
        if record.error != 0 {
            return Err(TsigError::ByServer(record.error));
        }
        if now.abs_diff(record.time) > record.fudge.into() {
            return Err(TsigError::BadTime);
        }
        (self.is_first, self.unsigned) = (false, 0);
        record::remove(message, start);
        Ok(())
    }

    /// Returns whether the reply may end: its last message is signed.
    #[must_use]
    pub fn may_end(&self) -> bool {
        !self.is_first && self.unsigned == 0
    }
}

/// Returns what has hashed the MAC of the message before.
fn after(key: &Key, mac: &[u8]) -> Hashing {
    let mut hashing = key.hashing(key.algorithm);
    hashing.update_with_prior(mac);
    hashing
}
