//! # Name
//!
//! *minimal* - removes unnecessary sections from answers. A positive answer loses its authority and additional
//! sections. Errors, NXDOMAIN, NODATA with an SOA record, and delegations (NS records in the authority section and no
//! answer) keep them, and so does, for clients that ask for DNSSEC records, an answer with a signature outside its
//! validity period. It has no arguments.

use async_trait::async_trait;

use super::response_type::ResponseType;
use super::setup::Setup;
use crate::dns::chain::plugin::{Next, Plugin, PluginResult};
use crate::dns::chain::request::Request;
use crate::dns::corefile::CorefileError;
use crate::dns::message::reply::Reply;

const NAME: &str = "minimal";

#[derive(Debug)]
struct Minimal;

pub(super) fn set_up(setup: &mut Setup<'_>) -> Result<(), CorefileError> {
    setup.only_line()?.no_arguments_or_block()?;
    setup.add_reusable(Minimal);
    Ok(())
}

#[async_trait]
impl Plugin for Minimal {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn serve(&self, request: &mut Request, next: Next<'_>) -> PluginResult {
        let mut reply = next.serve(request).await?;
        if is_positive(request, &reply) {
            reply.records.remove_authority_and_additional();
        }
        Ok(reply)
    }
}

/// Returns whether a reply needs only its answer section: the reply has data, or is empty without an SOA or NS record.
fn is_positive(request: &Request, reply: &Reply) -> bool {
    ResponseType::of(request, reply) == ResponseType::Answer
}

#[cfg(test)]
mod tests {
    use std::time::{SystemTime, UNIX_EPOCH};

    use hickory_proto::op::ResponseCode;
    use hickory_proto::rr::rdata::{A, NS, NULL, SOA};
    use hickory_proto::rr::{Name, RData, Record, RecordType};

    use super::super::tests::support::TestServer;
    use super::*;

    fn record(data: RData) -> Record {
        Record::from_rdata(Name::from_ascii("example.org.").unwrap(), 5, data)
    }

    fn address() -> Record {
        record(RData::A(A::new(192, 0, 2, 1)))
    }

    fn ns() -> Record {
        record(RData::NS(NS(Name::root())))
    }

    fn soa() -> Record {
        record(RData::SOA(SOA::new(Name::root(), Name::root(), 1, 2, 3, 4, 5)))
    }

    fn signature(from: u32, to: u32) -> Record {
        let rdata = [&[0; 8][..], &to.to_be_bytes(), &from.to_be_bytes(), &[0; 4]].concat();
        record(RData::Unknown { code: RecordType::RRSIG, rdata: NULL::with(rdata) })
    }

    fn is_stripped(
        context: &TestServer,
        rcode: ResponseCode,
        answers: &[Record],
        authorities: &[Record],
    ) -> bool {
        let request = context.request("example.org. A");
        let mut reply = request.reply("");
        reply.metadata.response_code = rcode;
        (reply.records.answers, reply.records.authorities) = (answers.to_vec(), authorities.to_vec());
        is_positive(&request, &reply)
    }

    #[test]
    fn only_positive_answers_lose_sections() {
        use ResponseCode::{NXDomain, NoError, Refused, ServFail};
        let context = TestServer::block("whoami");
        for (rcode, answers, authorities, expected) in [
            (NoError, &[address()][..], &[ns(), soa()][..], true),
            (NoError, &[], &[], true),
            (NoError, &[], &[soa()], false),
            (NoError, &[], &[ns()], false),
            (NXDomain, &[], &[soa()], false),
            (NXDomain, &[address()], &[soa()], false),
            (ServFail, &[], &[ns()], false),
            (Refused, &[], &[ns()], false),
        ] {
            let found = is_stripped(&context, rcode, answers, authorities);
            assert_eq!(found, expected, "{rcode} {answers:?} {authorities:?}");
        }
        let mut transfer = context.request("example.org. AXFR");
        assert!(!is_positive(&transfer, &transfer.reply("")));
        transfer.query.set_query_type(RecordType::A);
        assert!(is_positive(&transfer, &transfer.reply("")));
    }

    #[test]
    fn answer_with_an_invalid_rrsig_stays_unchanged_for_do_clients() {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as u32;
        let day = 24 * 3600;
        let plain = TestServer::block("whoami");
        let mut wants_dnssec = plain.clone().edns(1232);
        wants_dnssec.request.edns.as_mut().unwrap().set_dnssec_ok(true);
        for (from, to, expected) in [
            (now - day, now + day, true),
            (now - 2 * day, now - day, false),
            (now + day, now + 2 * day, false),
            // 68 years ahead: the greatest distance in serial number arithmetic (RFC 1982).
            (now - day, now.wrapping_add(u32::MAX / 2), true),
        ] {
            let answers = [address(), signature(from, to)];
            assert_eq!(is_stripped(&wants_dnssec, ResponseCode::NoError, &answers, &[]), expected);
            assert!(is_stripped(&plain, ResponseCode::NoError, &answers, &[]));
        }
    }

    #[tokio::test]
    async fn unneeded_sections_are_removed() {
        let context = TestServer::block("minimal\nwhoami");
        assert_eq!(context.ask("example.org. A").await, "NOERROR aa | | |");
    }

    #[test]
    fn arguments_and_braces_are_rejected() {
        assert_eq!(
            TestServer::error("minimal x"),
            "Corefile:2:9: minimal takes no arguments, and here is \"x\""
        );
        assert_eq!(TestServer::error("minimal {\n}"), "Corefile:2:1: minimal takes no braces");
    }
}
