//! Keys, and the MACs that they make.

use std::fmt;
use std::sync::Arc;

use hickory_proto::rr::Name;
use hickory_proto::serialize::binary::{BinDecodable, BinDecoder};
use hmac::{Hmac, KeyInit, Mac};
use indexmap::IndexMap;
use sha1::Sha1;
use sha2::{Sha224, Sha256, Sha384, Sha512};

use crate::dns::message::header::HEADER;
use crate::dns::message::presentation::lower_name_text;
use crate::dns::message::query::{whole_wire_name, wire_name};
use crate::dns::message::zone_set::ZoneSet;
use crate::model::names;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    Sha1,
    Sha224,
    Sha256,
    Sha384,
    Sha512,
}

/// A secret that two peers share. It signs with its algorithm, and checks signatures of every algorithm, as in
/// CoreDNS.
#[derive(Debug)]
pub struct Key {
    /// In wire form, in lower case.
    name: Box<[u8]>,
    pub(super) algorithm: Algorithm,
    /// For each algorithm, in the order of [`Algorithm::ALL`].
    keyed: Vec<Hashing>,
}

/// The keys of a server block, and the zones that they are for.
#[derive(Clone, Debug, Default)]
pub struct TsigKeys {
    zones: ZoneSet,
    keys: IndexMap<Box<[u8]>, Arc<Key>>,
}

/// A MAC under way.
#[derive(Clone)]
pub(super) enum Hashing {
    Sha1(Hmac<Sha1>),
    Sha224(Hmac<Sha224>),
    Sha256(Hmac<Sha256>),
    Sha384(Hmac<Sha384>),
    Sha512(Hmac<Sha512>),
}

// === impl Algorithm ===

impl Algorithm {
    pub const ALL: [Self; 5] = [Self::Sha1, Self::Sha224, Self::Sha256, Self::Sha384, Self::Sha512];

    /// Returns the name, as in RFC 8945 section 6.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Sha1 => "hmac-sha1",
            Self::Sha224 => "hmac-sha224",
            Self::Sha256 => "hmac-sha256",
            Self::Sha384 => "hmac-sha384",
            Self::Sha512 => "hmac-sha512",
        }
    }

    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|algorithm| algorithm.name().eq_ignore_ascii_case(name))
    }

    pub(super) fn of_wire_name(name: &[u8]) -> Option<Self> {
        Self::ALL.into_iter().find(|algorithm| algorithm.wire_name() == name)
    }

    pub(super) fn wire_name(self) -> Vec<u8> {
        let mut name = Vec::with_capacity(16);
        names::push_label(self.name().as_bytes(), &mut name);
        name.push(0);
        name
    }

    /// Returns the length of a MAC that isn't cut, in octets.
    pub(super) fn length(self) -> usize {
        match self {
            Self::Sha1 => 20,
            Self::Sha224 => 28,
            Self::Sha256 => 32,
            Self::Sha384 => 48,
            Self::Sha512 => 64,
        }
    }
}

// === impl Key ===

impl Key {
    /// Returns a key; `None` if the secret can't be one.
    #[must_use]
    pub fn new(name: &Name, algorithm: Algorithm, secret: &[u8]) -> Option<Self> {
        let keyed = Algorithm::ALL.into_iter().map(|algorithm| Hashing::new(algorithm, secret));
        Some(Self { name: whole_wire_name(name).into(), algorithm, keyed: keyed.collect::<Option<_>>()? })
    }

    /// Returns the name, in wire form and in lower case.
    #[must_use]
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// Returns the name, for a log.
    #[must_use]
    pub fn name_text(&self) -> String {
        wire_name_text(&self.name)
    }

    pub(super) fn hashing(&self, algorithm: Algorithm) -> Hashing {
        self.keyed[algorithm as usize].clone()
    }
}

// === impl TsigKeys ===

impl TsigKeys {
    /// Returns no keys, for names in `zones`.
    #[must_use]
    pub fn new(zones: ZoneSet) -> Self {
        Self { zones, keys: IndexMap::new() }
    }

    /// Adds a key. Returns `false` if there is one with the same name.
    pub fn insert(&mut self, key: Key) -> bool {
        let is_new = !self.keys.contains_key(key.name());
        if is_new {
            self.keys.insert(key.name.clone(), Arc::new(key));
        }
        is_new
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    #[must_use]
    pub fn zones(&self) -> &ZoneSet {
        &self.zones
    }

    /// Returns the key that signs requests of lb-linker for a zone, and NOTIFY: of several, the key whose name has the
    /// most labels in common with the zone's name, from the right or from the left, and of such keys the first.
    #[must_use]
    pub fn for_zone(&self, zone: &Name) -> Option<Arc<Key>> {
        if !self.zones.contains(zone) {
            return None;
        }
        let zone = wire_name(zone);
        let common = |key: &&Arc<Key>| common_labels(&key.name[..key.name.len() - 1], &zone);
        // The last one of several greatest values is taken.
        self.keys.values().rev().max_by_key(common).cloned()
    }

    pub(super) fn get(&self, name: &[u8]) -> Option<&Arc<Key>> {
        self.keys.get(name)
    }
}

/// Returns how many labels two names, in wire form without the root label, have in common at one end.
fn common_labels(one: &[u8], other: &[u8]) -> usize {
    let [one, other]: [Vec<&[u8]>; 2] = [one, other].map(|name| names::labels(name).collect());
    let from_left = one.iter().zip(&other).take_while(|(one, other)| one == other).count();
    let from_right = one.iter().rev().zip(other.iter().rev()).take_while(|(one, other)| one == other).count();
    from_left.max(from_right)
}

// === impl Hashing ===

impl Hashing {
    fn new(algorithm: Algorithm, secret: &[u8]) -> Option<Self> {
        fn keyed<M: KeyInit>(secret: &[u8]) -> Option<M> {
            M::new_from_slice(secret).ok()
        }
        Some(match algorithm {
            Algorithm::Sha1 => Self::Sha1(keyed(secret)?),
            Algorithm::Sha224 => Self::Sha224(keyed(secret)?),
            Algorithm::Sha256 => Self::Sha256(keyed(secret)?),
            Algorithm::Sha384 => Self::Sha384(keyed(secret)?),
            Algorithm::Sha512 => Self::Sha512(keyed(secret)?),
        })
    }

    pub(super) fn update(&mut self, octets: &[u8]) {
        match self {
            Self::Sha1(mac) => mac.update(octets),
            Self::Sha224(mac) => mac.update(octets),
            Self::Sha256(mac) => mac.update(octets),
            Self::Sha384(mac) => mac.update(octets),
            Self::Sha512(mac) => mac.update(octets),
        }
    }

    /// Hashes the MAC of the message before (RFC 8945 sections 5.3 and 5.3.1).
    pub(super) fn update_with_prior(&mut self, mac: &[u8]) {
        self.update(&u16::try_from(mac.len()).unwrap_or_default().to_be_bytes());
        self.update(mac);
    }

    /// Hashes a message with a TSIG record from `start` on, as it was before it had this record (RFC 8945 section
    /// 4.3.2).
    pub(super) fn update_with_message(&mut self, message: &[u8], start: usize, original_id: u16) {
        let additionals = u16::from_be_bytes([message[10], message[11]]).saturating_sub(1);
        self.update(&original_id.to_be_bytes());
        self.update(&message[2..10]);
        self.update(&additionals.to_be_bytes());
        self.update(&message[HEADER..start]);
    }

    pub(super) fn finish(self) -> Vec<u8> {
        match self {
            Self::Sha1(mac) => mac.finalize().into_bytes().to_vec(),
            Self::Sha224(mac) => mac.finalize().into_bytes().to_vec(),
            Self::Sha256(mac) => mac.finalize().into_bytes().to_vec(),
            Self::Sha384(mac) => mac.finalize().into_bytes().to_vec(),
            Self::Sha512(mac) => mac.finalize().into_bytes().to_vec(),
        }
    }

    /// Compares the MAC with one that may be cut, in a time that doesn't depend on the octets.
    pub(super) fn is(self, expected: &[u8]) -> bool {
        match self {
            Self::Sha1(mac) => mac.verify_truncated_left(expected).is_ok(),
            Self::Sha224(mac) => mac.verify_truncated_left(expected).is_ok(),
            Self::Sha256(mac) => mac.verify_truncated_left(expected).is_ok(),
            Self::Sha384(mac) => mac.verify_truncated_left(expected).is_ok(),
            Self::Sha512(mac) => mac.verify_truncated_left(expected).is_ok(),
        }
    }
}

impl fmt::Debug for Hashing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hashing")
    }
}

/// Returns the text of a key's name in wire form, for a log.
pub(super) fn wire_name_text(name: &[u8]) -> String {
    let name = Name::read(&mut BinDecoder::new(name));
    name.map_or_else(|_| "-".to_owned(), |name| lower_name_text(&name))
}
