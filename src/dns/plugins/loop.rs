//! # Name
//!
//! *loop* - finds out whether what is forwarded comes back.
//!
//! # Description
//!
//! When its block begins to be served, lb-linker asks itself for a random name in the first zone of the block. If
//! that question comes back to it, from the upstreams, again and again, they lead in a circle: each question would
//! go around until something breaks. Then an error is logged, which says who has sent the question, and *forward*
//! in this block answers no more: its clients get SERVFAIL with an extended error. Only a block that is built anew
//! looks again: *reload* does that when the block or the file of its upstreams has changed.
//!
//! The mostly met cause is an upstream that is lb-linker itself, such as 127.0.0.1 or, in a cluster, the address of
//! a Service in front of it, or a resolver on the node (systemd-resolved) that forwards to it. Name the resolvers
//! that the node itself uses.
//!
//! The question is of type HINFO, and is repeated for up to 30 s until it is answered. What doesn't loop by then
//! isn't found.
//!
//! Difference from CoreDNS: the process doesn't end. lb-linker's own names need no upstream, and who asks for them
//! shall not suffer because one in resolv.conf is wrong. And the question enters the block directly, without the
//! socket.
//!
//! # Syntax
//!
//! ```text
//! loop
//! ```
//!
//! # Metrics
//!
//! - `lb_linker_dns_loops_total{}` - loops that were found.
//!
//! # Examples
//!
//! ```text
//! . {
//!     loop
//!     forward . /etc/resolv.conf
//! }
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use hickory_proto::op::Query;
use hickory_proto::rr::{Name, RecordType};
use hickory_server::net::xfer::Protocol;
use prometheus::{IntCounter, Registry};
use rand::RngExt;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::error;

use super::setup::Setup;
use crate::dns::corefile::CorefileError;
use crate::dns::plugin::{Next, Outcome, Plugin, Request};
use crate::dns::server::Server;
use crate::metrics::{Family, registered};

const NAME: &str = "loop";

/// How often the question is seen without a loop: when it is asked, and once more for a resolver that asks around.
const HARMLESS: u32 = 2;
/// How long it is tried.
const TRIES: Duration = Duration::from_secs(30);
/// How long an answer is waited for, and the pause after that.
const ANSWER: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(1));

#[derive(Debug)]
struct Loop(Arc<Probe>);

/// The question that must not come back.
#[derive(Debug)]
struct Probe {
    zone: Name,
    name: Name,
    seen: AtomicU32,
    is_over: AtomicBool,
    looping: Arc<AtomicBool>,
    loops: Arc<Loops>,
}

#[derive(Debug)]
struct Loops(IntCounter);

impl Family for Loops {
    fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let loops = IntCounter::new(
            "lb_linker_dns_loops_total",
            "Server blocks whose forwarded questions came back: their forward answers SERVFAIL.",
        );
        Ok(Self(registered(registry, loops)?))
    }
}

pub(super) fn set_up(setup: &mut Setup<'_>) -> Result<(), CorefileError> {
    let line = setup.only_line()?;
    line.alone()?;
    let zone = setup.zones.first().cloned().unwrap_or_else(Name::root);
    let label = || (rand::rng().random::<u64>() >> 2).to_string();
    let name = Name::from_ascii(format!("{}.{}", label(), label()))
        .and_then(|name| name.append_domain(&zone))
        .map_err(|error| line.error(format!("{zone} has no room for two labels more: {error}")))?;
    let looping = Arc::new(AtomicBool::new(false));
    setup.draft.looping = Some(Arc::clone(&looping));
    let probe = Arc::new(Probe {
        zone,
        name,
        seen: AtomicU32::new(0),
        is_over: AtomicBool::new(false),
        looping,
        loops: setup.metrics()?,
    });
    let own = Arc::clone(&probe);
    setup.run(|server, stop| async move { own.send(&server, &stop).await });
    setup.add(Loop(probe));
    Ok(())
}

#[async_trait]
impl Plugin for Loop {
    fn name(&self) -> &'static str {
        NAME
    }

    fn repeats(&self) -> bool {
        true
    }

    async fn serve(&self, request: &mut Request, next: Next<'_>) -> Outcome {
        self.0.see(request);
        next.serve(request).await
    }
}

impl Probe {
    /// Asks until there is an answer.
    async fn send(&self, server: &Arc<Server>, stop: &CancellationToken) {
        let asking = async {
            let until = Instant::now() + TRIES;
            while Instant::now() < until {
                let mut request = server.own_request(Query::query(self.name.clone(), RecordType::HINFO));
                request.protocol = Protocol::Udp;
                request.edns = None;
                if timeout(ANSWER.0, Server::serve(&mut request)).await.is_ok() {
                    break;
                }
                self.seen.store(0, Ordering::Relaxed);
                sleep(ANSWER.1).await;
            }
        };
        stop.run_until_cancelled(asking).await;
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// Takes in a question that has come.
    fn see(&self, request: &Request) {
        let query = &request.query;
        if query.query_type() != RecordType::HINFO
            || *query.name() != self.name
            || self.is_over.load(Ordering::Relaxed)
            || self.seen.fetch_add(1, Ordering::Relaxed) < HARMLESS
            || self.looping.swap(true, Ordering::Relaxed)
        {
            return;
        }
        self.loops.0.inc();
        let server = &request.server.label;
        // As in CoreDNS, which dies by it.
        error!(
            "plugin/loop: Loop ({} -> {}) detected for zone {:?}, see https://coredns.io/plugins/loop#troubleshooting. \
             Query: \"HINFO {}\"; until that is mended, forward answers SERVFAIL in this block",
            request.client,
            server.split_once("://").map_or(&**server, |(_, address)| address),
            self.zone.to_ascii(),
            self.name.to_ascii(),
        );
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::UdpSocket;

    use super::super::testing::Site;
    use super::*;
    use crate::dns::plugin::Purpose;

    /// A block whose upstream brings the question back, and the tasks of it.
    #[tokio::test]
    async fn a_question_that_comes_back_again_and_again_has_forward_fail() {
        let upstream = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = upstream.local_addr().unwrap();
        let (site, tasks) = Site::with_tasks(&format!("loop\nforward . {address}"));
        let stop = CancellationToken::new();
        let tasks: Vec<_> = tasks
            .into_iter()
            .map(|task| tokio::spawn(task(Arc::clone(&site.server), stop.clone())))
            .collect();
        let mut bytes = [0; 512];
        // The question goes around: each that is sent comes from a client.
        loop {
            let length = upstream.recv(&mut bytes).await.unwrap();
            let asked = hickory_proto::op::Message::from_vec(&bytes[..length]).unwrap();
            let query = asked.queries[0].clone();
            if query.query_type() != RecordType::HINFO {
                continue;
            }
            assert_eq!(query.name().num_labels(), 2, "{query}");
            let request = Request { query, purpose: Purpose::Client, ..site.request.clone() };
            for _ in 0..2 {
                let mut request = request.clone();
                let _ = timeout(Duration::from_millis(1), Server::serve(&mut request)).await;
            }
            break;
        }
        let reply = site.reply("www.example. A").await.unwrap();
        assert_eq!(reply.metadata.response_code, hickory_proto::op::ResponseCode::ServFail);
        assert_eq!(reply.ede.unwrap().text, "what is forwarded comes back");
        assert_eq!(site.metrics("loops_total"), ["lb_linker_dns_loops_total 1"]);
        stop.cancel();
        for task in tasks {
            task.await.unwrap();
        }
    }

    #[tokio::test]
    async fn a_question_that_is_answered_is_no_loop() {
        let (site, tasks) = Site::with_tasks("loop\nwhoami");
        for task in tasks {
            task(Arc::clone(&site.server), CancellationToken::new()).await;
        }
        assert_eq!(site.metrics("loops_total"), ["lb_linker_dns_loops_total 0"]);
    }

    #[test]
    fn it_takes_nothing_and_comes_once() {
        for (lines, error) in [
            ("loop x", "Corefile:2:6: loop takes no arguments, and here is \"x\""),
            ("loop {\n}", "Corefile:2:1: loop takes no braces"),
            (
                "loop\nloop",
                "Corefile:3:1: loop can be there only once in a block, and it is on line 2 already",
            ),
        ] {
            assert_eq!(Site::error(lines), error, "{lines}");
        }
    }
}
