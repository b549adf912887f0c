//! # Name
//!
//! *cancel* - ends queries that take too long for the client. If the plugins after this one haven't answered within the
//! timeout, the client gets SERVFAIL, and they stop working on the query. Most clients wait for five seconds and then
//! ask again, or give up.
//!
//! Differences from CoreDNS: there each plugin checks the timeout itself, and most don't. Here all plugins after this
//! one are cancelled: `errors` and `log` don't log the query, and `prometheus` doesn't count it.
//!
//! # Syntax
//!
//! Syntax: `cancel [TIMEOUT]`, longer than 0; the default is `5001ms`.

use std::time::Duration;

use async_trait::async_trait;
use tokio::time::timeout;

use super::setup::Setup;
use crate::dns::chain::plugin::{Next, Plugin, PluginError, PluginResult};
use crate::dns::chain::request::Request;
use crate::dns::corefile::CorefileError;

const NAME: &str = "cancel";
/// CoreDNS's default: most clients wait for five seconds.
const TIMEOUT: Duration = Duration::from_millis(5001);

#[derive(Debug)]
struct Cancel {
    timeout: Duration,
}

pub(super) fn set_up(setup: &mut Setup<'_>) -> Result<(), CorefileError> {
    let line = setup.only_line()?;
    line.no_block()?;
    let timeout = match line.at_most(1)? {
        [word] => word.duration()?,
        _ => TIMEOUT,
    };
    if timeout.is_zero() {
        return Err(line.error("a timeout of 0 leaves no time for an answer; the default is 5001ms"));
    }
    setup.add_reusable(Cancel { timeout });
    Ok(())
}

#[async_trait]
impl Plugin for Cancel {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn serve(&self, request: &mut Request, next: Next<'_>) -> PluginResult {
        let original = request.clone();
        match timeout(self.timeout, next.serve(request)).await {
            Ok(outcome) => outcome,
            Err(_) => {
                // Cancelled plugins can't undo their changes of the request.
                *request = original;
                Err(PluginError::servfail(format!("no answer within {:?}", self.timeout)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use hickory_proto::op::ResponseCode;
    use hickory_proto::rr::{Name, RecordType};
    use tokio::time::Instant;

    use super::super::tests::support::TestServer;
    use super::*;
    use crate::dns::chain::plugin::ChainPlugin;
    use crate::dns::chain::server::{Server, ServerBlock};
    use crate::dns::message::zone_set::ZoneSet;

    /// Rewrites the query, and answers after a delay.
    #[derive(Debug)]
    struct Slow(Duration);

    #[async_trait]
    impl Plugin for Slow {
        fn name(&self) -> &'static str {
            "slow"
        }

        async fn serve(&self, request: &mut Request, _next: Next<'_>) -> PluginResult {
            request.query.set_name(Name::root());
            tokio::time::sleep(self.0).await;
            Ok(request.reply("slow"))
        }
    }

    /// Sends a query to `cancel`, which is followed by a slow plugin. Returns the rcode, the time until the answer, and
    /// the query name of the request afterwards.
    async fn ask(lines: &str, slow: Duration) -> (ResponseCode, Duration, String) {
        let context = TestServer::block(lines);
        let (zone, block) = context.server.blocks().next().unwrap();
        let mut plugins = block.plugins.clone();
        plugins.push(ChainPlugin::new(Arc::new(Slow(slow))));
        let block = ServerBlock {
            plugins,
            access_rules: Vec::new(),
            zones: block.zones.clone(),
            link_zones: ZoneSet::default(),
            cluster_zones: ZoneSet::default(),
            labeled: ZoneSet::default(),
            debug: false,
        };
        let metrics = context.shared.metrics.group().unwrap();
        let server = Server::new(String::new(), &[(zone.clone(), Arc::new(block))], metrics);
        let mut request = context.request("example.org. A");
        request.server = Arc::new(server);
        let started = Instant::now();
        let reply = Server::serve(&mut request).await.unwrap();
        assert_eq!(request.query.query_type(), RecordType::A);
        (reply.metadata.response_code, started.elapsed(), request.query.name().to_string())
    }

    #[tokio::test(start_paused = true)]
    async fn slow_query_is_cancelled_and_its_request_restored() {
        let millis = Duration::from_millis;
        let failed = |after| (ResponseCode::ServFail, millis(after), "example.org.".to_owned());
        let answered = |after| (ResponseCode::NoError, millis(after), ".".to_owned());
        for (lines, slow, expected) in [
            ("cancel", 6000, failed(5001)),
            ("cancel", 5000, answered(5000)),
            ("cancel 1s", 2000, failed(1000)),
            ("cancel 10s", 6000, answered(6000)),
        ] {
            assert_eq!(ask(lines, millis(slow)).await, expected, "{lines} {slow}");
        }
    }

    #[test]
    fn invalid_lines_are_rejected_with_their_position() {
        for (lines, expected) in [
            ("cancel 0s", "Corefile:2:1: a timeout of 0 leaves no time for an answer; the default is 5001ms"),
            ("cancel -1s", "Corefile:2:8: \"-1s\" isn't a duration such as 30s, 1m30s or 500ms"),
            ("cancel 5", "Corefile:2:8: \"5\" isn't a duration such as 30s, 1m30s or 500ms"),
            ("cancel 1s 2s", "Corefile:2:11: cancel takes 1 argument at most, and here is \"2s\""),
            ("cancel {\n}", "Corefile:2:1: cancel takes no braces"),
        ] {
            assert_eq!(TestServer::error(lines), expected);
        }
    }
}
