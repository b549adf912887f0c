//! What an answer says, as CoreDNS's package `response` sorts them.

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::RecordType;

use crate::dns::chain::request::Request;
use crate::dns::message::query::is_transfer;
use crate::dns::message::reply::Reply;
use crate::dns::message::rrsig::{ValidityPeriod, now};

/// What an answer says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResponseType {
    /// What was asked for, or nothing at all.
    Answer,
    /// A referral.
    Referral,
    /// That there is nothing of that type.
    NoData,
    /// That there is no such name.
    NoName,
    /// Anything else: a signature that isn't valid, too, for a reader that checks them.
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
            // A name that doesn't exist can't have records.
            ResponseCode::NXDomain if reply.answers.is_empty() => Self::NoName,
            _ => Self::Other,
        }
    }
}

fn has_invalid_signature(reply: &Reply) -> bool {
    let now = now();
    reply.sections().into_iter().flatten().filter_map(ValidityPeriod::of).any(|validity| !validity.holds(now))
}
