//! A query for an upstream or the cache, and the key that equal queries share.

use std::hash::{BuildHasher, BuildHasherDefault, Hash, Hasher, RandomState};
use std::sync::{Arc, LazyLock};

use hickory_proto::op::Query;
use hickory_proto::rr::{Name, RecordType};

use super::header::{HEADER, OPT_LENGTH, opt};
use super::wire::has_name_in_any_case;
use crate::model::names;

#[derive(Clone, Debug)]
pub struct UpstreamQuery {
    pub query: Query,
    /// RD: recursion is desired (RFC 1035 section 4.1.1).
    pub recursion_desired: bool,
    /// CD: checking is disabled (RFC 4035 section 3.2.2).
    pub checking_disabled: bool,
    /// AD: the client understands AD (RFC 6840 section 5.7).
    pub authentic_data: bool,
    /// DO: the client wants the DNSSEC records (RFC 3225).
    pub dnssec_ok: bool,
}

/// The key of a query: queries with equal keys share one answer and one query to an upstream.
///
/// AD isn't part of the key: it only shows what the client understands, and is set in all queries to upstreams.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueryKey {
    /// The hash of the octets, computed once for all maps. [`NAME_BITS`] depend on the name alone.
    hash: u64,
    /// Type, class and flags, followed by the name, and by the root octet and EDNS options if there are any.
    octets: Arc<[u8]>,
}

/// For maps whose keys begin with a [`QueryKey`].
pub(crate) type QueryKeyHashing = BuildHasherDefault<QueryKeyHasher>;

/// Mixes further parts of a key into the hash of a [`QueryKey`], which is secret, so that no client can choose keys with
/// equal hashes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct QueryKeyHasher(u64);

/// The flags of a query that are part of its key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyFlags(u8);

/// The random key of all hashes.
static HASHING: LazyLock<RandomState> = LazyLock::new(RandomState::new);
/// Neither the highest nor the lowest bits, which choose a place in a map.
const NAME_BITS: u64 = 0xffff << 32;

/// The offsets of the flags and of the name in a key.
const FLAGS: usize = 4;
const NAME: usize = FLAGS + 1;
const RECURSION_DESIRED: u8 = 1;
const CHECKING_DISABLED: u8 = 2;
const DNSSEC_OK: u8 = 4;
/// Never sent; see [`QueryKey::by_stream`].
const BY_STREAM: u8 = 8;
/// Never sent: EDNS options follow the name.
const HAS_OPTIONS: u8 = 16;

impl UpstreamQuery {
    /// Returns a query with RD set and no other flag.
    #[must_use]
    pub fn recursive(name: Name, qtype: RecordType) -> Self {
        Self {
            query: Query::query(name, qtype),
            recursion_desired: true,
            checking_disabled: false,
            authentic_data: false,
            dnssec_ok: false,
        }
    }

    #[must_use]
    pub fn key(&self) -> QueryKey {
        QueryKey::of(&self.query, self.flags(), &[])
    }

    fn flags(&self) -> KeyFlags {
        KeyFlags::new(self.recursion_desired, self.checking_disabled, self.dnssec_ok)
    }

    /// Returns this query, and then the queries that differ only in DO and CD.
    pub(crate) fn variants(&self) -> impl Iterator<Item = Self> + use<'_> {
        [(false, false), (false, true), (true, false), (true, true)].into_iter().map(
            |(other_do, other_cd)| Self {
                dnssec_ok: self.dnssec_ok ^ other_do,
                checking_disabled: self.checking_disabled ^ other_cd,
                ..self.clone()
            },
        )
    }
}

impl QueryKey {
    fn new(octets: Arc<[u8]>) -> Self {
        let mut hasher = HASHING.build_hasher();
        let (name, options) = octets[NAME..].split_at(name_length(&octets));
        hasher.write(name);
        let of_name = hasher.finish() & NAME_BITS;
        hasher.write(&octets[..NAME]);
        hasher.write(options);
        Self { hash: hasher.finish() & !NAME_BITS | of_name, octets }
    }

    /// Returns the key of a query with these EDNS options, in wire form.
    pub(crate) fn of(query: &Query, flags: KeyFlags, options: &[u8]) -> Self {
        let mut key = Vec::with_capacity(NAME + query.name().len() + options.len());
        key.extend(fixed_octets(query, flags));
        names::push_labels(query.name(), &mut key);
        if !options.is_empty() {
            key[FLAGS] |= HAS_OPTIONS;
            key.push(0);
            key.extend(options);
        }
        Self::new(key.into())
    }

    /// Returns whether this is the key of a query without EDNS options.
    pub(crate) fn is_of(&self, query: &Query, flags: KeyFlags) -> bool {
        self.octets[..NAME] == fixed_octets(query, flags) && has_name_in_any_case(self.name(), query.name())
    }

    /// Returns a number that is the same for all queries about a name.
    pub(crate) fn name_hash(&self) -> usize {
        name_bits(self.hash)
    }

    /// Returns the query as a message for an upstream; the socket sets its id. It has the EDNS options of *rewrite* alone,
    /// and none of the client's: cookies, keepalive and padding are hop-by-hop (RFC 7873 section 5, RFC 7828 section
    /// 3.2.1, RFC 7830 section 3).
    pub(crate) fn encode(&self, with_edns: bool) -> Vec<u8> {
        const AUTHENTIC_DATA: u8 = 0x20;
        let checking_disabled = u8::from(self.has(CHECKING_DISABLED)) << 4;
        let mut message = Vec::with_capacity(HEADER + self.octets.len() + OPT_LENGTH);
        message.extend([0, 0, u8::from(self.has(RECURSION_DESIRED))]);
        message.push(AUTHENTIC_DATA | checking_disabled);
        message.extend([0, 1, 0, 0, 0, 0, 0, u8::from(with_edns)]);
        message.extend(self.name());
        message.push(0);
        message.extend(&self.octets[..FLAGS]);
        if with_edns {
            let options = self.options();
            let [fixed @ .., _, _] = opt(self.has(DNSSEC_OK));
            message.extend(fixed);
            message.extend(u16::try_from(options.len()).unwrap_or_default().to_be_bytes());
            message.extend(options);
        }
        message
    }

    /// Returns the name in wire form without the root octet, in lower case.
    #[must_use]
    pub fn name(&self) -> &[u8] {
        &self.octets[NAME..][..name_length(&self.octets)]
    }

    /// Returns the EDNS options in wire form.
    fn options(&self) -> &[u8] {
        // The root octet is between the name and the options.
        self.octets[NAME + self.name().len()..].get(1..).unwrap_or_default()
    }

    /// Returns another key for the same query by TCP or TLS, for failures that say nothing about UDP.
    pub(crate) fn by_stream(&self) -> Self {
        let mut octets = self.octets.to_vec();
        octets[FLAGS] |= BY_STREAM;
        Self::new(octets.into())
    }

    pub(crate) fn qtype(&self) -> RecordType {
        u16::from_be_bytes([self.octets[0], self.octets[1]]).into()
    }

    fn has(&self, flag: u8) -> bool {
        self.octets[FLAGS] & flag != 0
    }

    /// Returns whether the query is for addresses or for HTTPS records, which can contain addresses (RFC 9460 section
    /// 7.3).
    pub(crate) fn is_address_or_https(&self) -> bool {
        matches!(self.qtype(), RecordType::A | RecordType::AAAA | RecordType::HTTPS)
    }

    /// Returns whether the query has the most common form: for addresses or HTTPS records, without DO and CD.
    pub(crate) fn is_plain_address_query(&self) -> bool {
        self.is_address_or_https() && !self.has(DNSSEC_OK) && !self.has(CHECKING_DISABLED)
    }

    /// Returns whether clients of a load balancer may need the answer.
    pub(crate) fn is_kept_stale(&self) -> bool {
        let others = [RecordType::SVCB, RecordType::SRV, RecordType::TXT, RecordType::MX];
        self.is_address_or_https() || others.contains(&self.qtype())
    }

    /// Returns whether the answer may be cached. A zone transfer may not, and an answer to a query without RD may not,
    /// because it contains only what a server happens to have cached.
    pub(crate) fn is_cacheable(&self) -> bool {
        self.has(RECURSION_DESIRED) && !is_transfer(self.qtype())
    }
}

impl KeyFlags {
    pub(crate) fn new(recursion_desired: bool, checking_disabled: bool, dnssec_ok: bool) -> Self {
        let flag = |is_set, flag: u8| if is_set { flag } else { 0 };
        Self(
            flag(recursion_desired, RECURSION_DESIRED)
                | flag(checking_disabled, CHECKING_DISABLED)
                | flag(dnssec_ok, DNSSEC_OK),
        )
    }
}

/// Returns the octets of a key before the name.
fn fixed_octets(query: &Query, flags: KeyFlags) -> [u8; NAME] {
    let [a, b] = u16::from(query.query_type()).to_be_bytes();
    let [c, d] = u16::from(query.query_class()).to_be_bytes();
    [a, b, c, d, flags.0]
}

/// Returns the length of the name in a key, without the root octet.
fn name_length(octets: &[u8]) -> usize {
    let name = &octets[NAME..];
    if octets[FLAGS] & HAS_OPTIONS == 0 {
        return name.len();
    }
    let mut at = 0;
    while let Some(length @ 1..) = name.get(at) {
        at += 1 + usize::from(*length);
    }
    at.min(name.len())
}

impl Hash for QueryKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

impl Hasher for QueryKeyHasher {
    fn write(&mut self, octets: &[u8]) {
        for chunk in octets.chunks(8) {
            self.write_u64(chunk.iter().fold(0, |number, octet| number << 8 | u64::from(*octet)));
        }
    }

    fn write_u64(&mut self, number: u64) {
        /// The golden ratio.
        const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
        let (low, high) = (self.0 ^ number).carrying_mul(FACTOR, 0);
        self.0 = low ^ high;
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// Returns [`QueryKey::name_hash`] of a name in wire form without the root octet, in lower case.
pub(crate) fn name_hash(name: &[u8]) -> usize {
    let mut hasher = HASHING.build_hasher();
    hasher.write(name);
    name_bits(hasher.finish())
}

fn name_bits(hash: u64) -> usize {
    ((hash & NAME_BITS) >> NAME_BITS.trailing_zeros()) as usize
}

/// Returns whether the type is a zone transfer (RFC 5936, RFC 1995).
#[must_use]
pub fn is_transfer(qtype: RecordType) -> bool {
    matches!(qtype, RecordType::AXFR | RecordType::IXFR)
}

/// Returns whether lb-linker never answers a query type: the type of a record that describes a message (RFC 6891 section
/// 6.1.1, RFC 8945 section 4.1, RFC 2930 section 2), or an obsolete type (MAILB, MAILA).
#[must_use]
pub fn is_never_answered(qtype: RecordType) -> bool {
    const TKEY: u16 = 249;
    const MAIL: [u16; 2] = [253, 254];
    let number = u16::from(qtype);
    matches!(qtype, RecordType::OPT | RecordType::TSIG) || number == TKEY || MAIL.contains(&number)
}

/// Returns whether the first question of a message is about a name in one of the zones, which are in wire form without
/// the root octet, in lower case. Looks only at the labels; the message may be malformed.
#[must_use]
pub fn asks_about(message: &[u8], zones: &[Box<[u8]>]) -> bool {
    /// The longest label and the longest name in wire form (RFC 1035 section 2.3.4).
    const MAX_LABEL: u8 = 63;
    const MAX_NAME: usize = 255;
    let mut rest = message.get(HEADER..).unwrap_or_default();
    rest = &rest[..rest.len().min(MAX_NAME)];
    loop {
        let is_zone = |zone: &[u8]| {
            rest.get(..zone.len()).is_some_and(|name| name.eq_ignore_ascii_case(zone))
                && rest.get(zone.len()) == Some(&0)
        };
        if zones.iter().any(|zone| is_zone(zone)) {
            return true;
        }
        match rest.split_first() {
            Some((&length @ 1..=MAX_LABEL, labels)) if labels.len() >= length.into() => {
                rest = &labels[usize::from(length)..];
            }
            _ => return false,
        }
    }
}

/// Returns a name in wire form with the root octet, in lower case.
#[must_use]
pub(crate) fn whole_wire_name(name: &Name) -> Vec<u8> {
    [&wire_name(name)[..], &[0]].concat()
}

/// Returns a name in wire form without the root octet, in lower case.
#[must_use]
pub fn wire_name(name: &Name) -> Box<[u8]> {
    // The capacity is exact, so that the conversion to a box doesn't reallocate.
    let mut wire = Vec::with_capacity(if name.is_root() { 0 } else { name.len() });
    names::push_labels(name, &mut wire);
    wire.into()
}

#[cfg(test)]
mod tests {
    use hickory_proto::op::{Edns, Message};
    use hickory_proto::rr::DNSClass;

    use super::super::header::MAX_UDP;
    use super::*;

    #[test]
    fn upstream_query_is_lower_case_with_ad_and_edns() {
        let mut question =
            UpstreamQuery::recursive(Name::from_ascii("A.Example.").unwrap(), RecordType::AAAA);
        for (recursion, checking_disabled, dnssec_ok, with_edns) in
            [(true, false, false, true), (false, true, true, true), (true, true, true, false)]
        {
            question.recursion_desired = recursion;
            (question.checking_disabled, question.dnssec_ok) = (checking_disabled, dnssec_ok);
            let bytes = question.key().encode(with_edns);
            let mut expected = Message::query();
            expected.metadata.id = u16::from_be_bytes([bytes[0], bytes[1]]);
            expected.metadata.recursion_desired = recursion;
            expected.metadata.checking_disabled = checking_disabled;
            expected.metadata.authentic_data = true;
            expected.add_query(Query::query(Name::from_ascii("a.example.").unwrap(), RecordType::AAAA));
            if with_edns {
                let mut edns = Edns::new();
                edns.set_max_payload(MAX_UDP);
                edns.set_dnssec_ok(dnssec_ok);
                expected.set_edns(edns);
            }
            assert_eq!(bytes, expected.to_vec().unwrap());
        }
        question.query.set_name(Name::root());
        assert_eq!(question.key().encode(false)[HEADER..], [0, 0, 28, 0, 1]);
    }

    #[test]
    fn key_is_of_its_own_query_alone() {
        let query = |name: &str| UpstreamQuery::recursive(Name::from_ascii(name).unwrap(), RecordType::A);
        let key = query("www.a.example.").key();
        let same = [
            query("www.a.example."),
            query("WWW.a.Example."),
            UpstreamQuery { authentic_data: true, ..query("www.a.example.") },
        ];
        for same in same {
            assert!(key.is_of(&same.query, same.flags()) && same.key() == key, "{same:?}");
            assert!(!key.by_stream().is_of(&same.query, same.flags()));
        }
        let mut others: Vec<UpstreamQuery> =
            ["wwx.a.example.", "a.example.", "x.www.a.example.", "www.a.exampl.e.", "wwwa.example.", "."]
                .into_iter()
                .map(query)
                .collect();
        let changed = |change: fn(&mut UpstreamQuery)| {
            let mut other = query("www.a.example.");
            change(&mut other);
            other
        };
        others.extend([
            changed(|other| _ = other.query.set_query_type(RecordType::AAAA)),
            changed(|other| _ = other.query.set_query_class(DNSClass::CH)),
            changed(|other| other.recursion_desired = false),
            changed(|other| other.checking_disabled = true),
            changed(|other| other.dnssec_ok = true),
        ]);
        for other in others {
            assert!(!key.is_of(&other.query, other.flags()) && other.key() != key, "{other:?}");
        }
    }

    #[test]
    fn options_are_part_of_the_key_and_of_the_message() {
        let option = [0xff, 0xee, 0, 2, 7, 0];
        for name in ["a.example.", "."] {
            let query = UpstreamQuery::recursive(Name::from_ascii(name).unwrap(), RecordType::A);
            let key = |options: &[u8]| QueryKey::of(&query.query, query.flags(), options);
            let (plain, with, other) = (key(&[]), key(&option), key(&option[..4]));
            assert_eq!((with.name(), with.name_hash()), (plain.name(), plain.name_hash()));
            assert!(with == key(&option) && with != plain && with != other);
            assert!(with.hash != plain.hash && with.hash != other.hash);
            assert!(!with.is_of(&query.query, query.flags()));
            let message = plain.encode(true);
            assert_eq!(with.encode(true), [&message[..message.len() - 2], &[0, 6], &option].concat());
            assert_eq!(with.encode(false), plain.encode(false));
        }
    }

    #[test]
    fn only_the_name_hash_ignores_type_flags_and_transport() {
        let key = |name: &str, qtype| UpstreamQuery::recursive(Name::from_ascii(name).unwrap(), qtype).key();
        let one = key("a.example.", RecordType::A);
        assert_eq!(one, key("A.Example.", RecordType::A));
        assert_eq!(one.hash, key("A.Example.", RecordType::A).hash);
        let others = [key("a.example.", RecordType::AAAA), key("a.example.", RecordType::A).by_stream()];
        for other in &others {
            assert_eq!(one.name_hash(), name_hash(other.name()));
            assert_ne!(one.hash & !NAME_BITS, other.hash & !NAME_BITS);
        }
        let hashing = QueryKeyHashing::default();
        let clients = [None, Some([10, 0, 0, 1]), Some([10, 0, 0, 2])];
        let hashes = clients.map(|client| hashing.hash_one((&one, client)));
        assert!(hashes[0] != hashes[1] && hashes[1] != hashes[2], "{hashes:?}");
    }
}
