//! # Name
//!
//! *whoami* - tells clients their own address, port and transport. Every query gets an empty answer. The additional
//! section has the client's address, as an A or AAAA record, and its port and transport, as an SRV record. This shows
//! the path between a client and lb-linker, and tests whether lb-linker answers at all. It has no arguments. The answer
//! to `example.org A` has `example.org. 0 IN A 10.240.0.1` and `_udp.example.org. 0 IN SRV 0 0 40212 .` there.

use std::net::IpAddr;

use async_trait::async_trait;
use hickory_proto::rr::rdata::SRV;
use hickory_proto::rr::{Name, RData, Record};

use super::setup::Setup;
use crate::dns::chain::plugin::{Next, Plugin, PluginError, PluginResult};
use crate::dns::chain::request::Request;
use crate::dns::corefile::CorefileError;

const NAME: &str = "whoami";

#[derive(Debug)]
struct Whoami;

pub(super) fn set_up(setup: &mut Setup<'_>) -> Result<(), CorefileError> {
    setup.only_line()?.no_arguments_or_block()?;
    setup.add(Whoami);
    Ok(())
}

#[async_trait]
impl Plugin for Whoami {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn serve(&self, request: &mut Request, _next: Next<'_>) -> PluginResult {
        let mut reply = request.reply(NAME);
        reply.metadata.authoritative = true;
        let name = request.query.name();
        let address = match request.client.ip() {
            IpAddr::V4(ip) => RData::A(ip.into()),
            IpAddr::V6(ip) => RData::AAAA(ip.into()),
        };
        let transport = if request.protocol.is_over_udp() { "_udp" } else { "_tcp" };
        let service =
            Name::from_ascii(transport).and_then(|label| label.append_domain(name)).map_err(|error| {
                PluginError::servfail(format!("{name} is too long for another label: {error}"))
            })?;
        let port = SRV::new(0, 0, request.client.port(), Name::root());
        for (owner, data) in [(name.clone(), address), (service, RData::SRV(port))] {
            let mut record = Record::from_rdata(owner, 0, data);
            record.dns_class = request.query.query_class();
            reply.records.additionals.push(record);
        }
        Ok(reply)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::support::TestServer;

    #[tokio::test]
    async fn client_gets_its_address_port_and_transport() {
        let context = TestServer::block("whoami");
        assert_eq!(
            context.ask("example.org. A").await,
            "NOERROR aa | | | example.org. 0 IN A 10.0.0.1, _udp.example.org. 0 IN SRV 0 0 5353 ."
        );
        assert_eq!(
            context.from("2001:db8::1").ask("example.org. TXT").await,
            "NOERROR aa | | | example.org. 0 IN AAAA 2001:db8::1, _udp.example.org. 0 IN SRV 0 0 5353 ."
        );
    }

    #[test]
    fn arguments_are_rejected() {
        assert_eq!(
            TestServer::error("whoami x"),
            "Corefile:2:8: whoami takes no arguments, and here is \"x\""
        );
    }
}
