//! # Name
//!
//! *any* - answers queries of type ANY with one small record. The answer to ANY can be many times as long as the query,
//! which reflection attacks exploit (RFC 5358). This plugin answers it, for every name, with one HINFO record (RFC 8482
//! section 4.2): `example.org. 8482 IN HINFO "ANY obsoleted" "See RFC 8482"`. Queries of other types go to the next
//! plugin. It has no arguments.

use async_trait::async_trait;
use hickory_proto::rr::rdata::HINFO;
use hickory_proto::rr::{RData, Record, RecordType};

use super::setup::Setup;
use crate::dns::chain::plugin::{Next, Plugin, PluginResult};
use crate::dns::chain::request::Request;
use crate::dns::corefile::CorefileError;

const NAME: &str = "any";
/// In seconds, as in CoreDNS: the number of the RFC.
const TTL: u32 = 8482;

#[derive(Debug)]
struct Any;

pub(super) fn set_up(setup: &mut Setup<'_>) -> Result<(), CorefileError> {
    setup.only_line()?.no_arguments_or_block()?;
    setup.add_reusable(Any);
    Ok(())
}

#[async_trait]
impl Plugin for Any {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn serve(&self, request: &mut Request, next: Next<'_>) -> PluginResult {
        if request.query.query_type() != RecordType::ANY {
            return next.serve(request).await;
        }
        let mut reply = request.reply(NAME);
        let why = HINFO::new("ANY obsoleted".to_owned(), "See RFC 8482".to_owned());
        reply.records.answers.push(Record::from_rdata(request.query.name().clone(), TTL, RData::HINFO(why)));
        Ok(reply)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::support::TestServer;

    #[tokio::test]
    async fn only_queries_of_type_any_are_answered_with_hinfo() {
        let context = TestServer::block("whoami\nany");
        assert_eq!(
            context.ask("Example.org. ANY").await,
            "NOERROR | Example.org. 8482 IN HINFO ANY obsoleted See RFC 8482 | |"
        );
        assert!(context.ask("example.org. HINFO").await.starts_with("NOERROR aa | | | example.org. 0 IN A"));
    }

    #[test]
    fn arguments_and_braces_are_rejected() {
        for (lines, expected) in [
            ("any x", "Corefile:2:5: any takes no arguments, and here is \"x\""),
            ("any {\n}", "Corefile:2:1: any takes no braces"),
            ("any\nany", "Corefile:3:1: any can be there only once in a block, and it is on line 2 already"),
        ] {
            assert_eq!(TestServer::error(lines), expected);
        }
    }
}
