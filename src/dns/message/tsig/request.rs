//! The signatures of a server: it checks those of requests, and signs its replies.

use std::sync::Arc;

use super::error::TsigError;
use super::key::{Algorithm, Hashing, Key, TsigKeys, wire_name_text};
use super::record::{self, FUDGE, TsigRecord, time_octets};

/// The length of the shortest MAC of any algorithm, in octets (RFC 8945 section 5.2.2.1).
const MIN_MAC: usize = 10;

/// A signed request, after the check of its signature.
#[derive(Clone, Debug)]
pub struct CheckedRequest {
    /// The key of the request, or why the signature isn't accepted.
    pub outcome: Result<Arc<Key>, TsigError>,
    /// Signs the reply; `None` if the request has no TSIG record that can be read.
    pub signer: Option<Signer>,
}

/// Signs the messages of the reply to a request, in their order.
#[derive(Clone, Debug)]
pub struct Signer {
    /// Hashes with the key of the request; `None` if the reply's TSIG record has no MAC (RFC 8945 section 5.3.2).
    keyed: Option<Hashing>,
    /// The record of the next message, and the MAC of the message before.
    record: TsigRecord,
    is_first: bool,
}

/// Checks the signature of a request. `now` is in seconds since 1970.
#[must_use]
pub fn check_request(message: &[u8], keys: &TsigKeys, now: u64) -> CheckedRequest {
    let malformed = CheckedRequest { outcome: Err(TsigError::Malformed), signer: None };
    let Ok(Some((start, record))) = record::find(message) else { return malformed };
    let algorithm = Algorithm::of_wire_name(&record.algorithm);
    let (Some(key), Some(algorithm)) = (keys.get(&record.key), algorithm) else {
        return refused(TsigError::BadKey, None, record);
    };
    // RFC 8945 section 5.2.2.1.
    if record.mac.len() > algorithm.length() || record.mac.len() < MIN_MAC.max(algorithm.length() / 2) {
        return malformed;
    }
    let keyed = key.hashing(algorithm);
    let mut hashing = keyed.clone();
    hashing.update_with_message(message, start, record.original_id);
    record.hash(&mut hashing);
    if !hashing.is(&record.mac) {
        return refused(TsigError::BadSig, None, record);
    }
    if now.abs_diff(record.time) > record.fudge.into() {
        return refused(TsigError::BadTime, Some(keyed), record);
    }
    if record.mac.len() < algorithm.length() {
        return refused(TsigError::BadTrunc, Some(keyed), record);
    }
    let signer = Signer::new(Some(keyed), record, 0);
    CheckedRequest { outcome: Ok(Arc::clone(key)), signer: Some(signer) }
}

fn refused(error: TsigError, keyed: Option<Hashing>, record: TsigRecord) -> CheckedRequest {
    CheckedRequest { outcome: Err(error), signer: Some(Signer::new(keyed, record, error.code())) }
}

impl Signer {
    /// Returns the signer of the reply to a request with this record.
    fn new(keyed: Option<Hashing>, record: TsigRecord, error: u16) -> Self {
        let record = TsigRecord { error, other: Vec::new(), ..record };
        Self { keyed, record, is_first: true }
    }

    /// Returns whether the request has a signature that is accepted.
    #[must_use]
    pub fn is_of_valid_request(&self) -> bool {
        self.record.error == 0
    }

    /// Returns the algorithm of the request; `None` if it isn't known.
    #[must_use]
    pub fn algorithm(&self) -> Option<Algorithm> {
        Algorithm::of_wire_name(&self.record.algorithm)
    }

    /// Returns the name of the request's key, for a log.
    #[must_use]
    pub fn key_text(&self) -> String {
        wire_name_text(&self.record.key)
    }

    /// Returns the number of octets that a signature adds to a message.
    #[must_use]
    pub fn length(&self) -> usize {
        let algorithm = self.algorithm().filter(|_| self.keyed.is_some());
        let is_bad_time = self.record.error == TsigError::BadTime.code();
        let other = if is_bad_time { time_octets(0).len() } else { 0 };
        self.record.length_with(algorithm.map_or(0, Algorithm::length), other)
    }

    /// Signs the next message of the reply, which must have a header. `now` is in seconds since 1970.
    pub fn sign(&mut self, message: &mut Vec<u8>, now: u64) {
        let [high, low, ..] = message[..] else { return };
        let record = &mut self.record;
        record.original_id = u16::from_be_bytes([high, low]);
        let prior = std::mem::take(&mut record.mac);
        let Some(keyed) = &self.keyed else {
            record.push(message);
            return;
        };
        // RFC 8945 section 5.2.3: such a reply has the time of the request, so that the client accepts it.
        if record.error == TsigError::BadTime.code() {
            record.other = time_octets(now).to_vec();
        } else {
            (record.time, record.fudge) = (now, FUDGE);
        }
        let mut hashing = keyed.clone();
        hashing.update_with_prior(&prior);
        hashing.update(message);
        if self.is_first {
            record.hash(&mut hashing);
        } else {
            record.hash_timers(&mut hashing);
        }
        self.is_first = false;
        record.mac = hashing.finish();
        record.push(message);
    }
}
