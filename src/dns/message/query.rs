//! A query for an upstream or the cache, and the key that equal queries share.

use std::sync::Arc;

use hickory_proto::op::Query;
use hickory_proto::rr::{Name, RecordType};

use super::header::{HEADER, OPT_LENGTH, opt};
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
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct QueryKey(
    /// Type, class and flags, followed by the name: one slice is hashed faster than separate fields.
    Arc<[u8]>,
);

/// The offsets of the flags and of the name in a key.
const FLAGS: usize = 4;
const NAME: usize = FLAGS + 1;
const RECURSION_DESIRED: u8 = 1;
const CHECKING_DISABLED: u8 = 2;
const DNSSEC_OK: u8 = 4;
/// Never sent; see [`QueryKey::by_stream`].
const BY_STREAM: u8 = 8;

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
        let flags = [
            (self.recursion_desired, RECURSION_DESIRED),
            (self.checking_disabled, CHECKING_DISABLED),
            (self.dnssec_ok, DNSSEC_OK),
        ];
        let mut key = Vec::with_capacity(NAME + self.query.name().len());
        key.extend(u16::from(self.query.query_type()).to_be_bytes());
        key.extend(u16::from(self.query.query_class()).to_be_bytes());
        key.push(flags.into_iter().filter_map(|(is_set, flag)| is_set.then_some(flag)).sum());
        names::push_labels(self.query.name(), &mut key);
        QueryKey(key.into())
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
    /// Returns the query as a message for an upstream; the socket sets its id. The client's EDNS options aren't forwarded:
    /// cookies, keepalive and padding are hop-by-hop (RFC 7873 section 5, RFC 7828 section 3.2.1, RFC 7830 section 3).
    pub(crate) fn encode(&self, with_edns: bool) -> Vec<u8> {
        const AUTHENTIC_DATA: u8 = 0x20;
        let checking_disabled = u8::from(self.has(CHECKING_DISABLED)) << 4;
        let mut message = Vec::with_capacity(HEADER + self.0.len() + OPT_LENGTH);
        message.extend([0, 0, u8::from(self.has(RECURSION_DESIRED))]);
        message.push(AUTHENTIC_DATA | checking_disabled);
        message.extend([0, 1, 0, 0, 0, 0, 0, u8::from(with_edns)]);
        message.extend(self.name());
        message.push(0);
        message.extend(&self.0[..FLAGS]);
        if with_edns {
            message.extend(opt(self.has(DNSSEC_OK)));
        }
        message
    }

    /// Returns the name in wire form without the root octet, in lower case.
    #[must_use]
    pub fn name(&self) -> &[u8] {
        &self.0[NAME..]
    }

    /// Returns another key for the same query by TCP or TLS, for failures that say nothing about UDP.
    pub(crate) fn by_stream(&self) -> Self {
        let mut key = self.0.to_vec();
        key[FLAGS] |= BY_STREAM;
        Self(key.into())
    }

    pub(crate) fn qtype(&self) -> RecordType {
        u16::from_be_bytes([self.0[0], self.0[1]]).into()
    }

    fn has(&self, flag: u8) -> bool {
        self.0[FLAGS] & flag != 0
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

/// Returns whether the type is a zone transfer (RFC 5936, RFC 1995).
#[must_use]
pub fn is_transfer(qtype: RecordType) -> bool {
    matches!(qtype, RecordType::AXFR | RecordType::IXFR)
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
}
