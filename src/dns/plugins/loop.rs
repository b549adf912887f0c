//! # Name
//!
//! *loop* - finds out whether what is forwarded comes back.
//!
//! # Description
//!
//! When its block begins to be served, lb-linker asks itself for a random name in the first zone of the block. If
//! that question comes back to it, from the upstreams, again and again, they lead in a circle: each question would
//! go around until something breaks. Then an error is logged, which says from which address the question has come, and
//! *forward* in this block answers no more: its clients get SERVFAIL with an extended error.
//!
//! While the loop lasts, lb-linker asks again every 10 s, for another random name. When the upstreams have answered such
//! a question, or three of them in a row haven't come back, the loop has ended: that is logged, and *forward* answers
//! again.
//!
//! SIGUSR1 ends the SERVFAIL at once and repeats the check that is made at the start. So does a block that is built
//! anew by *reload*, when the block or the file of its upstreams has changed.
//!
//! The mostly met cause is an upstream that is lb-linker itself, such as 127.0.0.1 or, in a cluster, the address of
//! a Service in front of it, or a resolver on the node (systemd-resolved) that forwards to it. Name the resolvers
//! that the node itself uses.
//!
//! The question is of type HINFO. At the start it is asked every 3 s, for up to 30 s, until there is an answer other
//! than SERVFAIL and REFUSED. A loop that begins later isn't found before the next SIGUSR1.
//!
//! Difference from CoreDNS: the process doesn't end. lb-linker's own names need no upstream, and must not fail because
//! an upstream in resolv.conf is wrong. And the question enters the block directly, without the socket.
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
//! - `lb_linker_dns_looping{}` - server blocks that have a loop now.
//!
//! # Examples
//!
//! ```text
//! . {
//!     loop
//!     forward . /etc/resolv.conf
//! }
//! ```

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use hickory_proto::op::{Query, ResponseCode};
use hickory_proto::rr::{Name, RecordType};
use parking_lot::Mutex;
use prometheus::{IntCounter, IntGauge, Registry};
use rand::RngExt;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

use super::setup::Setup;
use crate::dns::chain::plugin::{Next, Plugin, PluginResult};
use crate::dns::chain::request::Request;
use crate::dns::chain::server::Server;
use crate::dns::corefile::CorefileError;
use crate::dns::net::Protocol;
use crate::metrics::{MetricGroup, registered};

const NAME: &str = "loop";

/// How often the question is seen without a loop: when it is asked, and once more for a resolver that asks around.
const MAX_HARMLESS_RETURNS: u32 = 2;
/// How long a loop is looked for at the start.
const SEARCH_DURATION: Duration = Duration::from_secs(30);
/// How long an answer is waited for.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
/// The pause after a probe without an answer at the start.
const PROBE_PAUSE: Duration = Duration::from_secs(1);
/// The pause between two probes while a loop lasts.
const LOOP_PAUSE: Duration = Duration::from_secs(10);
/// Probes in a row that neither come back nor are answered before a loop counts as ended.
const SILENT_PROBES: u32 = 3;

#[derive(Debug)]
struct Loop(Arc<Detector>);

/// Finds out whether questions come back.
#[derive(Debug)]
struct Detector {
    zone: Name,
    state: Arc<LoopState>,
    restart: Notify,
    /// The probe under way has come back: there is no answer to wait for.
    returned: Notify,
    metrics: Arc<LoopMetrics>,
}

/// Whether the questions of a block come back.
#[derive(Debug, Default)]
pub struct LoopState {
    /// The same as `since`, for each question.
    is_looping: AtomicBool,
    probe: Mutex<Probe>,
}

/// The question that must not come back.
#[derive(Debug, Default)]
struct Probe {
    /// Nothing while there is none.
    name: Option<Name>,
    seen: u32,
    /// Since when there is a loop.
    since: Option<Instant>,
}

/// What has become of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProbeResult {
    /// It has come back.
    Returned,
    /// An upstream has answered it.
    Answered,
    /// Neither.
    Silent,
}

#[derive(Debug)]
struct LoopMetrics {
    loops: IntCounter,
    looping: IntGauge,
}

impl MetricGroup for LoopMetrics {
    fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let loops = IntCounter::new(
            "lb_linker_dns_loops_total",
            "Times that the forwarded questions of a server block were found to come back.",
        );
        let looping = IntGauge::new(
            "lb_linker_dns_looping",
            "Server blocks whose forwarded questions come back now: their forward answers SERVFAIL.",
        );
        Ok(Self { loops: registered(registry, loops)?, looping: registered(registry, looping)? })
    }
}

pub(super) fn set_up(setup: &mut Setup<'_>) -> Result<(), CorefileError> {
    let line = setup.only_line()?;
    line.alone()?;
    let zone = setup.zones.first().cloned().unwrap_or_else(Name::root);
    if random_name(&zone).is_none() {
        return Err(line.error(format!("{zone} has no room for two labels more")));
    }
    let state = Arc::<LoopState>::default();
    setup.builder.looping = Some(Arc::clone(&state));
    let detector = Arc::new(Detector {
        zone,
        state,
        restart: Notify::new(),
        returned: Notify::new(),
        metrics: setup.metrics()?,
    });
    let own = Arc::clone(&detector);
    setup.run(|server, stop| async move { own.run(&server, &stop).await });
    setup.add(Loop(detector));
    Ok(())
}

/// Returns a name below a zone that can't be guessed; nothing if it would be too long.
fn random_name(zone: &Name) -> Option<Name> {
    // So many digits that all names are about as long.
    let label = || (rand::rng().random::<u64>() >> 2 | 1 << 61).to_string();
    Name::from_ascii(format!("{}.{}", label(), label())).and_then(|name| name.append_domain(zone)).ok()
}

#[async_trait]
impl Plugin for Loop {
    fn name(&self) -> &'static str {
        NAME
    }

    fn reusable(&self) -> bool {
        true
    }

    async fn serve(&self, request: &mut Request, next: Next<'_>) -> PluginResult {
        self.0.see(request);
        next.serve(request).await
    }

    fn restart(&self) {
        self.0.restart.notify_one();
    }
}

impl LoopState {
    /// Returns whether `forward` has to refuse a question because of a loop. Probes pass, for only they tell when it
    /// ends.
    #[must_use]
    pub fn refuses(&self, query: &Query) -> bool {
        self.is_looping.load(Ordering::Relaxed) && !self.probe.lock().is(query)
    }
}

impl Probe {
    fn is(&self, query: &Query) -> bool {
        query.query_type() == RecordType::HINFO && self.name.as_ref() == Some(query.name())
    }
}

impl Detector {
    /// Looks for loops, and for their ends, until `stop`.
    async fn run(&self, server: &Arc<Server>, stop: &CancellationToken) {
        let detecting = async {
            loop {
                tokio::select! {
                    () = self.detect(server) => self.restart.notified().await,
                    () = self.restart.notified() => {}
                }
                self.end("looking for a loop afresh");
            }
        };
        stop.run_until_cancelled(detecting).await;
        self.end("the server block isn't served any more");
    }

    /// Looks for a loop and, where there is one, for its end; until there is none.
    async fn detect(&self, server: &Arc<Server>) {
        while self.finds_loop(server).await {
            self.wait_for_end(server).await;
        }
    }

    /// Asks until there is an answer, and returns whether there is a loop.
    async fn finds_loop(&self, server: &Arc<Server>) -> bool {
        let until = Instant::now() + SEARCH_DURATION;
        while Instant::now() < until {
            match self.probe(server).await {
                ProbeResult::Returned => return true,
                ProbeResult::Answered => return false,
                ProbeResult::Silent => sleep(PROBE_PAUSE).await,
            }
        }
        false
    }

    async fn wait_for_end(&self, server: &Arc<Server>) {
        let mut silent = 0;
        while silent < SILENT_PROBES {
            sleep(LOOP_PAUSE).await;
            match self.probe(server).await {
                ProbeResult::Returned => silent = 0,
                ProbeResult::Answered => return self.end("an upstream answers"),
                ProbeResult::Silent => silent += 1,
            }
        }
        self.end("questions don't come back any more");
    }

    /// Asks once, for a new name: the one before may be cached, or be under way still.
    async fn probe(&self, server: &Arc<Server>) -> ProbeResult {
        let Some(name) = random_name(&self.zone) else { return ProbeResult::Answered };
        {
            let mut probe = self.state.probe.lock();
            (probe.name, probe.seen) = (Some(name.clone()), 0);
        }
        let mut request = server.own_request(Query::query(name, RecordType::HINFO));
        request.protocol = Protocol::Udp;
        request.edns = None;
        let mut returned = pin!(self.returned.notified());
        returned.as_mut().enable();
        let reply = tokio::select! {
            reply = timeout(PROBE_TIMEOUT, Server::serve(&mut request)) => reply.ok().flatten(),
            () = returned => None,
        };
        let mut probe = self.state.probe.lock();
        probe.name = None;
        if probe.seen > MAX_HARMLESS_RETURNS {
            return ProbeResult::Returned;
        }
        // A failure may be that of a resolver in the circle, or our own.
        let is_answer = |rcode| !matches!(rcode, ResponseCode::ServFail | ResponseCode::Refused);
        match reply {
            Some(reply) if is_answer(reply.metadata.response_code) => ProbeResult::Answered,
            _ => ProbeResult::Silent,
        }
    }

    /// Takes in a question that has come.
    fn see(&self, request: &Request) {
        if request.query.query_type() != RecordType::HINFO {
            return;
        }
        let mut probe = self.state.probe.lock();
        if !probe.is(&request.query) {
            return;
        }
        probe.seen += 1;
        if probe.seen <= MAX_HARMLESS_RETURNS {
            return;
        }
        self.returned.notify_waiters();
        if probe.since.is_some() {
            return;
        }
        probe.since = Some(Instant::now());
        self.state.is_looping.store(true, Ordering::Relaxed);
        drop(probe);
        self.metrics.loops.inc();
        self.metrics.looping.inc();
        let server = &request.server.label;
        // CoreDNS logs the same, and ends.
        error!(
            "plugin/loop: Loop ({} -> {}) detected for zone {:?}, see https://coredns.io/plugins/loop#troubleshooting. \
             Query: \"HINFO {}\"; until that is mended, forward answers SERVFAIL in this block; trying again every {} s",
            request.client,
            server.split_once("://").map_or(&**server, |(_, address)| address),
            self.zone.to_ascii(),
            request.query.name().to_ascii(),
            LOOP_PAUSE.as_secs(),
        );
    }

    /// Has `forward` answer again, if there is a loop.
    fn end(&self, why: &str) {
        let mut probe = self.state.probe.lock();
        probe.name = None;
        let Some(since) = probe.since.take() else { return };
        self.state.is_looping.store(false, Ordering::Relaxed);
        drop(probe);
        self.metrics.looping.dec();
        info!(
            "plugin/loop: the loop for zone {:?} has ended after {} s: {why}; forward answers again in this block",
            self.zone.to_ascii(),
            since.elapsed().as_secs(),
        );
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::sync::atomic::AtomicU32;

    use futures::FutureExt;
    use tokio::net::UdpSocket;
    use tokio::task::JoinHandle;

    use super::super::tests::support::TestSite;
    use super::*;
    use crate::dns::chain::plugin::PluginError;
    use crate::dns::chain::request::Purpose;
    use crate::dns::chain::server;
    use crate::dns::message::zone_set::ZoneSet;

    /// What the upstreams of a block do with a probe.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum UpstreamsState {
        Looping,
        Answering,
        Failing,
        Silent,
    }

    /// A plugin in the place of `forward`.
    #[derive(Debug)]
    struct Upstreams {
        mood: Mutex<UpstreamsState>,
        probes: AtomicU32,
        state: Arc<LoopState>,
    }

    #[async_trait]
    impl Plugin for Upstreams {
        fn name(&self) -> &'static str {
            "upstreams"
        }

        async fn serve(&self, request: &mut Request, _next: Next<'_>) -> PluginResult {
            if self.state.refuses(&request.query) {
                return Err(PluginError::servfail("loop"));
            }
            let mood = *self.mood.lock();
            let is_first = request.client == request.server.own_request(request.query.clone()).client;
            if request.query.query_type() == RecordType::HINFO && is_first {
                self.probes.fetch_add(1, Ordering::Relaxed);
                if mood == UpstreamsState::Looping {
                    for _ in 0..MAX_HARMLESS_RETURNS {
                        let mut again = request.clone();
                        again.client.set_port(1);
                        assert_eq!(Server::serve(&mut again).now_or_never().map(drop), None);
                    }
                }
            }
            match mood {
                UpstreamsState::Looping | UpstreamsState::Silent => pending().await,
                UpstreamsState::Answering => Ok(request.reply("upstreams")),
                UpstreamsState::Failing => Err(PluginError::servfail("")),
            }
        }
    }

    /// A block with a loop or without, its upstreams, and the task of the plugin.
    struct ProbedBlock {
        context: TestSite,
        upstreams: Arc<Upstreams>,
        plugin: Arc<dyn Plugin>,
        stop: CancellationToken,
        task: JoinHandle<()>,
    }

    fn block(mood: UpstreamsState) -> ProbedBlock {
        let (mut context, configuration) = TestSite::configured(". {\nloop\n}\n");
        let mut builder = configuration.blocks.into_iter().next().unwrap().builder;
        let state = builder.looping.clone().unwrap();
        let upstreams = Arc::new(Upstreams { mood: Mutex::new(mood), probes: AtomicU32::new(0), state });
        let plugin = Arc::clone(&builder.plugins[0]);
        let plugins = vec![Arc::clone(&plugin), Arc::clone(&upstreams) as Arc<dyn Plugin>];
        let block = server::ServerBlock {
            plugins,
            zones: vec![Name::root()],
            link_zones: ZoneSet::default(),
            debug: false,
        };
        let report = context.shared.metrics.family().unwrap();
        let server = Arc::new(Server::new(String::new(), &[(Name::root(), Arc::new(block))], report));
        context.request.server = Arc::clone(&server);
        let stop = CancellationToken::new();
        let task = tokio::spawn(builder.tasks.remove(0)(server, stop.clone()));
        ProbedBlock { context, upstreams, plugin, stop, task }
    }

    impl ProbedBlock {
        fn set(&self, mood: UpstreamsState) {
            *self.upstreams.mood.lock() = mood;
        }

        /// Returns how many loops there were and are, and how many probes were sent, after so many seconds.
        async fn after(&self, seconds: u64) -> (String, u32) {
            sleep(Duration::from_secs(seconds)).await;
            let [looping, loops] =
                ["looping", "loops_total"].map(|name| self.context.metrics(name).remove(0));
            let value = |line: &str| line.rsplit(' ').next().unwrap().to_owned();
            let probes = self.upstreams.probes.load(Ordering::Relaxed);
            (format!("{}, {} now", value(&loops), value(&looping)), probes)
        }

        async fn refuses(&self) -> bool {
            let reply = self.context.reply("www.example. A").now_or_never();
            reply.is_some_and(|reply| reply.unwrap().metadata.response_code == ResponseCode::ServFail)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_loop_is_probed_every_10_s_and_ends_when_answered() {
        let block = block(UpstreamsState::Looping);
        assert_eq!(block.after(1).await, ("1, 1 now".to_owned(), 1));
        assert!(block.refuses().await);
        assert_eq!(block.after(120).await, ("1, 1 now".to_owned(), 13));
        block.set(UpstreamsState::Answering);
        assert_eq!(block.after(12).await, ("1, 0 now".to_owned(), 15), "and once more to make sure");
        assert!(!block.refuses().await);
        assert_eq!(block.after(100).await, ("1, 0 now".to_owned(), 15));
    }

    #[tokio::test(start_paused = true)]
    async fn a_loop_ends_when_three_probes_are_lost() {
        let block = block(UpstreamsState::Looping);
        assert_eq!(block.after(1).await.0, "1, 1 now");
        block.set(UpstreamsState::Silent);
        assert_eq!(block.after(34).await.0, "1, 1 now");
        assert_eq!(block.after(2).await.0, "1, 0 now");
        // A loop that begins again at once is found.
        block.set(UpstreamsState::Looping);
        assert_eq!(block.after(5).await.0, "2, 1 now");
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_of_an_upstream_doesnt_end_a_loop_at_once() {
        let block = block(UpstreamsState::Looping);
        assert_eq!(block.after(1).await.0, "1, 1 now");
        block.set(UpstreamsState::Failing);
        assert_eq!(block.after(20).await.0, "1, 1 now");
        block.set(UpstreamsState::Looping);
        assert_eq!(block.after(100).await.0, "1, 1 now");
    }

    #[tokio::test(start_paused = true)]
    async fn a_restart_forgives_a_loop_and_looks_for_one_again() {
        let block = block(UpstreamsState::Looping);
        assert_eq!(block.after(5).await, ("1, 1 now".to_owned(), 1));
        block.plugin.restart();
        assert_eq!(block.after(1).await, ("2, 1 now".to_owned(), 2), "it is there still");
        block.set(UpstreamsState::Answering);
        block.plugin.restart();
        assert_eq!(block.after(1).await, ("2, 0 now".to_owned(), 3));
        // A loop that begins later is found then.
        block.set(UpstreamsState::Looping);
        assert_eq!(block.after(100).await, ("2, 0 now".to_owned(), 3));
        block.plugin.restart();
        assert_eq!(block.after(1).await, ("3, 1 now".to_owned(), 4));
    }

    #[tokio::test(start_paused = true)]
    async fn a_block_that_isnt_served_any_more_has_no_loop() {
        let block = block(UpstreamsState::Looping);
        assert_eq!(block.after(1).await.0, "1, 1 now");
        block.stop.cancel();
        assert_eq!(block.after(1).await.0, "1, 0 now");
        block.task.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn silent_upstreams_are_asked_for_30_s() {
        let block = block(UpstreamsState::Silent);
        assert_eq!(block.after(200).await, ("0, 0 now".to_owned(), 10));
    }

    #[tokio::test]
    async fn forward_refuses_all_but_probes_while_there_is_a_loop() {
        let upstream = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = upstream.local_addr().unwrap();
        let (context, tasks) = TestSite::with_tasks(&format!("loop\nforward . {address}"));
        let stop = CancellationToken::new();
        let tasks: Vec<_> = tasks
            .into_iter()
            .map(|task| tokio::spawn(task(Arc::clone(&context.server), stop.clone())))
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
            let request = Request { query, purpose: Purpose::Client, ..context.request.clone() };
            for _ in 0..2 {
                let mut request = request.clone();
                let served = Server::serve(&mut request).now_or_never();
                assert!(served.is_none(), "it is forwarded: {served:?}");
            }
            break;
        }
        let reply = context.reply("www.example. A").await.unwrap();
        assert_eq!(reply.metadata.response_code, ResponseCode::ServFail);
        assert_eq!(reply.ede.unwrap().text, "what is forwarded comes back");
        assert_eq!(context.metrics("loops_total"), ["lb_linker_dns_loops_total 1"]);
        stop.cancel();
        for task in tasks {
            task.await.unwrap();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_question_that_is_answered_is_no_loop() {
        let block = block(UpstreamsState::Answering);
        assert_eq!(block.after(100).await, ("0, 0 now".to_owned(), 1));
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
            assert_eq!(TestSite::error(lines), error, "{lines}");
        }
    }
}
