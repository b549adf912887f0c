//! Classifies answers as CoreDNS's package `response` does.

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::RecordType;

use crate::dns::chain::request::Request;
use crate::dns::message::query::is_transfer;
use crate::dns::message::reply::Reply;
use crate::dns::message::rrsig::{ValidityPeriod, now};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResponseType {
    /// An answer with data, or an empty answer without SOA and NS records.
    Answer,
    Referral,
    /// There are no records of the type.
    NoData,
    /// The name doesn't exist.
    NoName,
    /// All other answers, also answers with an invalid signature for clients with DO.
    Other,
}

impl ResponseType {
    pub(super) fn of(request: &Request, reply: &Reply) -> Self {
        let is_invalid = || request.dnssec_ok() && has_invalid_signature(reply);
        if is_transfer(request.query.query_type()) || is_invalid() {
            return Self::Other;
        }
        let has = |qtype| reply.authorities.iter().any(|record| record.record_type() == qtype);
        match reply.metadata.response_code {
            ResponseCode::NoError if !reply.answers.is_empty() => Self::Answer,
            ResponseCode::NoError if has(RecordType::SOA) => Self::NoData,
            ResponseCode::NoError if has(RecordType::NS) => Self::Referral,
            ResponseCode::NoError => Self::Answer,
            // NXDOMAIN with records is contradictory.
            ResponseCode::NXDomain if reply.answers.is_empty() => Self::NoName,
            _ => Self::Other,
        }
    }
}

fn has_invalid_signature(reply: &Reply) -> bool {
    let now = now();
    reply.sections().into_iter().flatten().filter_map(ValidityPeriod::of).any(|validity| !validity.holds(now))
}
