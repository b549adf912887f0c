//! Classifies answers as CoreDNS's package `response` does.

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::RecordType;

use crate::dns::chain::request::Request;
use crate::dns::message::query::is_transfer;
use crate::dns::message::reply::Reply;
use crate::dns::message::rrsig::now;
use crate::dns::message::validity::Section;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResponseType {
    /// An answer with data, or an empty answer without SOA and NS records.
    Answer,
    Referral,
    /// There are no records of the type.
    NoData,
    /// The name doesn't exist, and there are no records in the answer section.
    NoName,
    /// All other answers, also answers with an invalid signature for clients with DO.
    Other,
}

impl ResponseType {
    pub(super) fn of(request: &Request, reply: &Reply) -> Self {
        let is_invalid = || request.dnssec_ok() && reply.records.has_invalid_signature(now());
        if is_transfer(request.query.query_type()) || is_invalid() {
            return Self::Other;
        }
        let has = |rtype| reply.records.has(Section::Authority, rtype);
        let has_answers = reply.records.count(Section::Answer) > 0;
        match reply.metadata.response_code {
            ResponseCode::NoError if has_answers => Self::Answer,
            ResponseCode::NoError if has(RecordType::SOA) => Self::NoData,
            ResponseCode::NoError if has(RecordType::NS) => Self::Referral,
            ResponseCode::NoError => Self::Answer,
            // As in CoreDNS, NXDOMAIN after a CNAME chain isn't `NoName`, although RFC 6604 section 3 allows it.
            ResponseCode::NXDomain if !has_answers => Self::NoName,
            _ => Self::Other,
        }
    }
}
