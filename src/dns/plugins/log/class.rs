//! Classifies answers as CoreDNS's package `response` does.

use crate::dns::chain::request::Request;
use crate::dns::message::reply::Reply;
use crate::dns::plugins::response_type::ResponseType;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// An answer with data, a referral, or an empty NOERROR answer without an SOA record.
    Success,
    /// NXDOMAIN without records in the answer section, or NODATA.
    Denial,
    /// Any other answer, or no answer.
    Error,
}

impl Class {
    pub const ALL: [Self; 3] = [Self::Success, Self::Denial, Self::Error];

    pub fn of(request: &Request, reply: Option<&Reply>) -> Self {
        let Some(reply) = reply else { return Self::Error };
        match ResponseType::of(request, reply) {
            ResponseType::Answer | ResponseType::Referral => Self::Success,
            ResponseType::NoData | ResponseType::NoName => Self::Denial,
            ResponseType::Other => Self::Error,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{SystemTime, UNIX_EPOCH};

    use hickory_proto::op::ResponseCode;
    use hickory_proto::rr::rdata::{A, NS, NULL, SOA};
    use hickory_proto::rr::{Name, RData, Record, RecordType};

    use super::*;
    use crate::dns::plugins::tests::support::TestServer;

    fn record(data: RData) -> Record {
        Record::from_rdata(Name::root(), 5, data)
    }

    fn signature(inception: u64, expiration: u64) -> Record {
        let mut bytes = vec![0; 8];
        for time in [expiration, inception] {
            bytes.extend(u32::try_from(time & u64::from(u32::MAX)).unwrap().to_be_bytes());
        }
        record(RData::Unknown { code: RecordType::RRSIG, rdata: NULL::with(bytes) })
    }

    #[test]
    fn answers_are_classed_as_in_coredns() {
        let context = TestServer::block("whoami");
        let request = context.request("example.org. A");
        let a = || record(RData::A(A::new(192, 0, 2, 1)));
        let ns = || record(RData::NS(NS(Name::root())));
        let soa = || record(RData::SOA(SOA::new(Name::root(), Name::root(), 1, 1, 1, 1, 1)));
        let class = |rcode, answers: Vec<Record>, authorities: Vec<Record>| {
            let mut reply = request.reply("");
            (reply.records.answers, reply.records.authorities) = (answers, authorities);
            reply.metadata.response_code = rcode;
            Class::of(&request, Some(&reply))
        };
        use ResponseCode::{NXDomain, NoError, NotImp, Refused, ServFail};
        for (rcode, answers, authorities, expected) in [
            (NoError, vec![a()], vec![], Class::Success),
            (NoError, vec![a()], vec![soa()], Class::Success),
            (NoError, vec![], vec![], Class::Success),
            (NoError, vec![], vec![ns()], Class::Success),
            (NoError, vec![], vec![soa()], Class::Denial),
            (NXDomain, vec![], vec![soa()], Class::Denial),
            (NXDomain, vec![], vec![], Class::Denial),
            (NXDomain, vec![a()], vec![soa()], Class::Error),
            (ServFail, vec![], vec![], Class::Error),
            (NotImp, vec![], vec![], Class::Error),
            (Refused, vec![a()], vec![], Class::Error),
        ] {
            let what = format!("{rcode} {answers:?} {authorities:?}");
            assert_eq!(class(rcode, answers, authorities), expected, "{what}");
        }
        assert_eq!(Class::of(&request, None), Class::Error);
        let transfer = context.request("example.org. AXFR");
        assert_eq!(Class::of(&transfer, Some(&transfer.reply(""))), Class::Error);
    }

    #[test]
    fn answers_with_invalid_signatures_are_errors_for_do_clients() {
        let mut context = TestServer::block("whoami").edns(1232);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let (past, future) = (now - 1000, now + 1000);
        for (inception, expiration, valid) in [
            (past, future, true),
            (past - 1, past, false),
            (future, future + 1, false),
            // 34 years before and after now: within the range of serial number arithmetic, 68 years.
            (now - (1 << 30), now + (1 << 30), true),
        ] {
            for dnssec_ok in [false, true] {
                context.request.edns.as_mut().unwrap().set_dnssec_ok(dnssec_ok);
                let request = context.request("example.org. A");
                let mut reply = request.reply("");
                reply.records.authorities.push(signature(inception, expiration));
                let expected = if valid || !dnssec_ok { Class::Success } else { Class::Error };
                assert_eq!(Class::of(&request, Some(&reply)), expected);
            }
        }
    }
}
