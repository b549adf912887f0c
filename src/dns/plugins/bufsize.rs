//! # Name
//!
//! *bufsize* - limits the size of UDP answers. With EDNS a client announces the maximum size of a UDP answer. Long
//! answers travel in fragments, which get lost and can be forged. This plugin lowers the announced size to `SIZE`, also
//! for the plugins after it; longer answers are truncated, and the client asks again by TCP. No client gets more than
//! it accepts. Without it no UDP answer has more than 1232 bytes; `bufsize 4096` allows more.
//!
//! # Syntax
//!
//! Syntax: `bufsize [SIZE]`, 512 to 4096 bytes. The default, 1232, is carried unfragmented by nearly every path (DNS
//! flag day 2020).

use async_trait::async_trait;

use super::setup::Setup;
use crate::dns::chain::plugin::{Next, Plugin, PluginResult};
use crate::dns::chain::request::Request;
use crate::dns::corefile::CorefileError;
use crate::dns::message::header::MAX_UDP;

const NAME: &str = "bufsize";

#[derive(Debug)]
struct Bufsize {
    size: u16,
}

pub(super) fn set_up(setup: &mut Setup<'_>) -> Result<(), CorefileError> {
    const RANGE: &str = "a number of bytes from 512 to 4096";
    let line = setup.only_line()?;
    line.no_block()?;
    let size = match line.at_most(1)? {
        [word] => word.parse_in_range(512..=4096, RANGE)?,
        _ => MAX_UDP,
    };
    setup.add_reusable(Bufsize { size });
    Ok(())
}

#[async_trait]
impl Plugin for Bufsize {
    fn name(&self) -> &'static str {
        NAME
    }

    /// The changes of the request stay after the call: they apply when the answer is encoded.
    async fn serve(&self, request: &mut Request, next: Next<'_>) -> PluginResult {
        request.max_udp = self.size;
        if let Some(edns) = request.edns.as_mut().filter(|edns| edns.max_payload() > self.size) {
            edns.set_max_payload(self.size);
        }
        next.serve(request).await
    }
}

#[cfg(test)]
mod tests {
    use hickory_proto::op::Edns;

    use super::super::tests::support::TestServer;
    use crate::dns::chain::server::Server;

    /// Returns the announced size after the plugin has changed it, and the resulting limit of the answer.
    async fn sizes(lines: &str, payload: Option<u16>) -> (Option<u16>, u16) {
        let mut context = TestServer::block(&format!("{lines}\nwhoami"));
        if let Some(payload) = payload {
            context = context.edns(payload);
        }
        let mut request = context.request("example.org. A");
        Server::serve(&mut request).await.unwrap();
        (request.edns.as_ref().map(Edns::max_payload), request.limit())
    }

    #[tokio::test]
    async fn udp_answers_are_limited_by_the_plugin_and_the_client() {
        for (lines, payload, expected) in [
            ("", Some(4096), (Some(4096), 1232)),
            ("bufsize", Some(4096), (Some(1232), 1232)),
            ("bufsize 4096", Some(65000), (Some(4096), 4096)),
            ("bufsize 4096", Some(1400), (Some(1400), 1400)),
            ("bufsize 512", Some(1232), (Some(512), 512)),
            ("bufsize 4096", None, (None, 512)),
        ] {
            assert_eq!(sizes(lines, payload).await, expected, "{lines} {payload:?}");
        }
    }

    #[test]
    fn invalid_lines_are_rejected_with_their_position() {
        for (lines, expected) in [
            ("bufsize 511", "Corefile:2:9: \"511\" isn't a number of bytes from 512 to 4096"),
            ("bufsize 4097", "Corefile:2:9: \"4097\" isn't a number of bytes from 512 to 4096"),
            ("bufsize 70000", "Corefile:2:9: \"70000\" isn't a number of bytes from 512 to 4096"),
            ("bufsize big", "Corefile:2:9: \"big\" isn't a number of bytes from 512 to 4096"),
            ("bufsize 512 512", "Corefile:2:13: bufsize takes 1 argument at most, and here is \"512\""),
            ("bufsize {\n}", "Corefile:2:1: bufsize takes no braces"),
        ] {
            assert_eq!(TestServer::error(lines), expected);
        }
    }
}
