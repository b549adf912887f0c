//! # Name
//!
//! *loop* - detects forwarding loops. When lb-linker begins to serve a block, it queries itself for a random name in
//! the first zone of the block, with the type HINFO. If this probe comes back from the upstreams again and again, they
//! form a loop. lb-linker then logs an error with the address that the probe came from, and *forward* in this block
//! stops: its clients get SERVFAIL with an extended error.
//!
//! While the loop lasts, a probe with a new name is sent every 10 s. When the upstreams have answered one, or three in
//! a row haven't come back, the loop has ended: lb-linker logs that, and *forward* answers again. SIGUSR1, and *reload*
//! when it rebuilds the block or the file of its upstreams has changed, end the SERVFAIL at once and repeat the check
//! of the start: for up to 30 s a probe with a timeout of 2 s, the next one 1 s later, until there is an answer other
//! than SERVFAIL and REFUSED. A loop that begins later isn't detected before the next SIGUSR1.
//!
//! Most often an upstream is lb-linker itself, such as 127.0.0.1 or the address of its Service, or a resolver on the
//! node (systemd-resolved) that forwards to it. Configure the resolvers that the node itself uses.
//!
//! Difference from CoreDNS: the process doesn't exit, because lb-linker's own names need no upstream. The probe enters
//! the block directly, without a socket. It has no arguments.

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

/// How often a probe may be seen without a loop: when it is sent, and once more through a resolver that queries several
/// servers.
const MAX_HARMLESS_RETURNS: u32 = 2;
/// How long the check at the start lasts.
const SEARCH_DURATION: Duration = Duration::from_secs(30);
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
/// The pause after a probe without an answer at the start.
const PROBE_PAUSE: Duration = Duration::from_secs(1);
/// The pause between two probes while a loop lasts.
const LOOP_PAUSE: Duration = Duration::from_secs(10);
/// A loop counts as ended after this many consecutive probes that neither came back nor got an answer.
const SILENT_PROBES: u32 = 3;

#[derive(Debug)]
struct Loop(Arc<Detector>);

/// Sends probes and detects whether they come back.
#[derive(Debug)]
struct Detector {
    zone: Name,
    state: Arc<LoopState>,
    restart: Notify,
    /// Notified when the current probe has come back, so that waiting for its answer is pointless.
    returned: Notify,
    metrics: Arc<LoopMetrics>,
}

/// The state of a block's loop detection, shared with `forward`.
#[derive(Debug, Default)]
pub struct LoopState {
    /// Whether `probe.since` is set; readable for each query without a lock.
    is_looping: AtomicBool,
    probe: Mutex<Probe>,
}

#[derive(Debug, Default)]
struct Probe {
    /// The queried name; `None` without a probe in flight.
    name: Option<Name>,
    seen: u32,
    /// The time at which the loop was detected.
    since: Option<Instant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProbeResult {
    Returned,
    Answered,
    /// The probe has neither come back nor been answered.
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
            "Forwarding loops that were found: queries that a server block forwarded came back to it.",
        );
        let looping = IntGauge::new(
            "lb_linker_dns_looping",
            "Server blocks with a forwarding loop now: their forward answers SERVFAIL.",
        );
        Ok(Self { loops: registered(registry, loops)?, looping: registered(registry, looping)? })
    }
}

pub(super) fn set_up(setup: &mut Setup<'_>) -> Result<(), CorefileError> {
    let line = setup.only_line()?;
    line.no_arguments_or_block()?;
    let zone = setup.zones.first().cloned().unwrap_or_else(Name::root);
    if random_name(&zone).is_none() {
        return Err(line.error(format!("{zone} has no room for two more labels")));
    }
    let state = Arc::<LoopState>::default();
    setup.builder.loop_state = Some(Arc::clone(&state));
    let detector = Arc::new(Detector {
        zone,
        state,
        restart: Notify::new(),
        returned: Notify::new(),
        metrics: setup.metrics()?,
    });
    let own = Arc::clone(&detector);
    setup.builder.on_restart.push(Arc::new(move || own.restart.notify_one()));
    let own = Arc::clone(&detector);
    setup.add_task(|server, stop| async move { own.run(&server, &stop).await });
    setup.add_reusable(Loop(detector));
    Ok(())
}

/// Returns an unguessable name below a zone; `None` if the name would be too long.
fn random_name(zone: &Name) -> Option<Name> {
    // The labels always have 19 digits, so that the length doesn't depend on chance.
    let label = || (rand::rng().random::<u64>() >> 2 | 1 << 61).to_string();
    Name::from_ascii(format!("{}.{}", label(), label())).and_then(|name| name.append_domain(zone)).ok()
}

#[async_trait]
impl Plugin for Loop {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn serve(&self, request: &mut Request, next: Next<'_>) -> PluginResult {
        self.0.observe(request);
        next.serve(request).await
    }
}

impl LoopState {
    /// Returns whether `forward` has to refuse a query because of a loop. Probes pass, because they detect the end of
    /// the loop.
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
    /// Detects loops and their ends until `stop` is cancelled.
    async fn run(&self, server: &Arc<Server>, stop: &CancellationToken) {
        let detecting = async {
            loop {
                tokio::select! {
                    () = self.detect(server) => self.restart.notified().await,
                    () = self.restart.notified() => {}
                }
                self.end("looking for a loop afresh; forward answers again in this block");
            }
        };
        stop.run_until_cancelled(detecting).await;
        self.end("the server block isn't served any more");
    }

    /// Detects a loop and waits for its end, until there is no loop.
    async fn detect(&self, server: &Arc<Server>) {
        while self.finds_loop(server).await {
            self.wait_for_end(server).await;
        }
    }

    /// Sends probes until a probe is answered or has come back, for at most `SEARCH_DURATION`. Returns whether there is
    /// a loop.
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
                ProbeResult::Answered => {
                    return self.end("an upstream answers; forward answers again in this block");
                }
                ProbeResult::Silent => silent += 1,
            }
        }
        self.end("queries don't come back any more; forward answers again in this block");
    }

    /// Sends a probe with a new name: the previous name may be cached, or its query still in flight.
    async fn probe(&self, server: &Arc<Server>) -> ProbeResult {
        let Some(name) = random_name(&self.zone) else { return ProbeResult::Answered };
        {
            let mut probe = self.state.probe.lock();
            (probe.name, probe.seen) = (Some(name.clone()), 0);
        }
        let mut request = server.internal_request(Query::query(name, RecordType::HINFO));
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
        // The failure may come from a resolver in the loop, or from lb-linker itself.
        let is_answer = |rcode| !matches!(rcode, ResponseCode::ServFail | ResponseCode::Refused);
        match reply {
            Some(reply) if is_answer(reply.metadata.response_code) => ProbeResult::Answered,
            _ => ProbeResult::Silent,
        }
    }

    /// Counts how often the current probe has passed, and reports a loop if that is too often.
    fn observe(&self, request: &Request) {
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
        // CoreDNS logs the same message, and exits.
        error!(
            "plugin/loop: Loop ({} -> {}) detected for zone {:?}, see https://coredns.io/plugins/loop#troubleshooting. \
             Query: \"HINFO {}\"; until this is fixed, forward answers SERVFAIL in this block; trying again every {} s",
            request.client,
            server.split_once("://").map_or(&**server, |(_, address)| address),
            self.zone.to_ascii(),
            request.query.name().to_ascii(),
            LOOP_PAUSE.as_secs(),
        );
    }

    /// Ends a loop, so that `forward` answers again.
    fn end(&self, why: &str) {
        let mut probe = self.state.probe.lock();
        probe.name = None;
        let Some(since) = probe.since.take() else { return };
        self.state.is_looping.store(false, Ordering::Relaxed);
        drop(probe);
        self.metrics.looping.dec();
        info!(
            "plugin/loop: the loop for zone {:?} has ended after {} s: {why}",
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

    use super::super::tests::support::TestServer;
    use super::*;
    use crate::dns::chain::plugin::ChainPlugin;
    use crate::dns::chain::plugin::PluginError;
    use crate::dns::chain::request::Purpose;
    use crate::dns::chain::server;
    use crate::dns::chain::target_check::{CheckEnd, TargetCheck, TargetOutcome};
    use crate::dns::message::zone_set::ZoneSet;
    use crate::dns::plugins::setup::OnRestart;

    /// The reaction of the upstreams to a probe.
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
        behavior: Mutex<UpstreamsState>,
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
            let behavior = *self.behavior.lock();
            let is_first = request.client == request.server.internal_request(request.query.clone()).client;
            if request.query.query_type() == RecordType::HINFO && is_first {
                self.probes.fetch_add(1, Ordering::Relaxed);
                if behavior == UpstreamsState::Looping {
                    for _ in 0..MAX_HARMLESS_RETURNS {
                        let mut again = request.clone();
                        again.client.set_port(1);
                        assert_eq!(Server::serve(&mut again).now_or_never().map(drop), None);
                    }
                }
            }
            match behavior {
                UpstreamsState::Looping | UpstreamsState::Silent => pending().await,
                UpstreamsState::Answering => Ok(request.reply("upstreams")),
                UpstreamsState::Failing => Err(PluginError::servfail("")),
            }
        }
    }

    /// A block with or without a loop, its upstreams, and the task of the plugin.
    struct ProbedBlock {
        context: TestServer,
        upstreams: Arc<Upstreams>,
        restart: OnRestart,
        stop: CancellationToken,
        task: JoinHandle<()>,
    }

    fn block(behavior: UpstreamsState) -> ProbedBlock {
        let (mut context, configuration) = TestServer::configured(". {\nloop\n}\n");
        let mut builder = configuration.blocks.into_iter().next().unwrap().builder;
        let state = builder.loop_state.clone().unwrap();
        let upstreams =
            Arc::new(Upstreams { behavior: Mutex::new(behavior), probes: AtomicU32::new(0), state });
        let restart = Arc::clone(&builder.on_restart[0]);
        let plugins =
            vec![builder.plugins[0].clone(), ChainPlugin::new(Arc::clone(&upstreams) as Arc<dyn Plugin>)];
        let block = server::ServerBlock {
            plugins,
            access_rules: Vec::new(),
            zones: vec![Name::root()],
            link_zones: ZoneSet::default(),
            cluster_zones: ZoneSet::default(),
            labeled: ZoneSet::default(),
            debug: false,
        };
        let metrics = context.shared.metrics.group().unwrap();
        let server = Arc::new(Server::new(String::new(), &[(Name::root(), Arc::new(block))], metrics));
        context.request.server = Arc::clone(&server);
        let stop = CancellationToken::new();
        let task = tokio::spawn(builder.tasks.remove(0)(server, stop.clone()));
        ProbedBlock { context, upstreams, restart, stop, task }
    }

    impl ProbedBlock {
        fn set(&self, behavior: UpstreamsState) {
            *self.upstreams.behavior.lock() = behavior;
        }

        /// Waits, and returns the counts of past and present loops and of probes.
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
    async fn loop_is_probed_every_10_s_and_ends_with_an_answer() {
        let block = block(UpstreamsState::Looping);
        assert_eq!(block.after(1).await, ("1, 1 now".to_owned(), 1));
        assert!(block.refuses().await);
        assert_eq!(block.after(120).await, ("1, 1 now".to_owned(), 13));
        block.set(UpstreamsState::Answering);
        assert_eq!(
            block.after(12).await,
            ("1, 0 now".to_owned(), 15),
            "after the end, one more probe finds no loop"
        );
        assert!(!block.refuses().await);
        assert_eq!(block.after(100).await, ("1, 0 now".to_owned(), 15));
    }

    #[tokio::test(start_paused = true)]
    async fn loop_ends_when_three_probes_are_lost() {
        let block = block(UpstreamsState::Looping);
        assert_eq!(block.after(1).await.0, "1, 1 now");
        block.set(UpstreamsState::Silent);
        assert_eq!(block.after(34).await.0, "1, 1 now");
        assert_eq!(block.after(2).await.0, "1, 0 now");
        // A new loop is detected at once.
        block.set(UpstreamsState::Looping);
        assert_eq!(block.after(5).await.0, "2, 1 now");
    }

    #[tokio::test(start_paused = true)]
    async fn upstream_failure_does_not_end_a_loop_at_once() {
        let block = block(UpstreamsState::Looping);
        assert_eq!(block.after(1).await.0, "1, 1 now");
        block.set(UpstreamsState::Failing);
        assert_eq!(block.after(20).await.0, "1, 1 now");
        block.set(UpstreamsState::Looping);
        assert_eq!(block.after(100).await.0, "1, 1 now");
    }

    #[tokio::test(start_paused = true)]
    async fn restart_ends_a_loop_and_repeats_the_check() {
        let block = block(UpstreamsState::Looping);
        assert_eq!(block.after(5).await, ("1, 1 now".to_owned(), 1));
        (block.restart)();
        assert_eq!(block.after(1).await, ("2, 1 now".to_owned(), 2), "the loop still exists");
        block.set(UpstreamsState::Answering);
        (block.restart)();
        assert_eq!(block.after(1).await, ("2, 0 now".to_owned(), 3));
        // A loop that begins later is detected by the next restart.
        block.set(UpstreamsState::Looping);
        assert_eq!(block.after(100).await, ("2, 0 now".to_owned(), 3));
        (block.restart)();
        assert_eq!(block.after(1).await, ("3, 1 now".to_owned(), 4));
    }

    #[tokio::test(start_paused = true)]
    async fn block_that_is_not_served_any_more_has_no_loop() {
        let block = block(UpstreamsState::Looping);
        assert_eq!(block.after(1).await.0, "1, 1 now");
        block.stop.cancel();
        assert_eq!(block.after(1).await.0, "1, 0 now");
        block.task.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn silent_upstreams_are_probed_for_30_s() {
        let block = block(UpstreamsState::Silent);
        assert_eq!(block.after(200).await, ("0, 0 now".to_owned(), 10));
    }

    #[tokio::test]
    async fn forward_refuses_all_but_probes_during_a_loop() {
        let upstream = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = upstream.local_addr().unwrap();
        let (context, tasks) = TestServer::with_tasks(&format!("errors\nloop\nforward . {address}"));
        let stop = CancellationToken::new();
        let tasks: Vec<_> = tasks
            .into_iter()
            .map(|task| tokio::spawn(task(Arc::clone(&context.server), stop.clone())))
            .collect();
        let mut bytes = [0; 512];
        // Return the first probe to the block twice, as a client's query.
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
                assert!(served.is_none(), "the probe is forwarded: {served:?}");
            }
            break;
        }
        let reply = context.reply("www.example. A").await.unwrap();
        assert_eq!(reply.metadata.response_code, ResponseCode::ServFail);
        assert_eq!(reply.ede.unwrap().text, "forwarded queries come back");
        assert_eq!(context.metrics("loops_total"), ["lb_linker_dns_loops_total 1"]);
        assert_eq!(context.lines().len(), 1, "the error of the client's query");
        let check = Arc::new(TargetCheck::new(Arc::default(), Duration::from_secs(5)));
        let request =
            Request { purpose: Purpose::Check(Arc::clone(&check)), ..context.request("t.example. A") };
        assert!(Server::serve(&mut request.clone()).await.is_none());
        let Some(CheckEnd::Outcome(outcome)) = check.ended() else { panic!("{check:?}") };
        assert_eq!(outcome, TargetOutcome::Inconclusive("forwarded queries come back".to_owned()));
        assert!(context.lines().is_empty(), "no error is logged");
        stop.cancel();
        for task in tasks {
            task.await.unwrap();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn answered_probe_is_no_loop() {
        let block = block(UpstreamsState::Answering);
        assert_eq!(block.after(100).await, ("0, 0 now".to_owned(), 1));
    }

    #[test]
    fn arguments_braces_and_repetition_are_rejected() {
        for (lines, error) in [
            ("loop x", "Corefile:2:6: loop takes no arguments, and here is \"x\""),
            ("loop {\n}", "Corefile:2:1: loop takes no braces"),
            (
                "loop\nloop",
                "Corefile:3:1: loop can be there only once in a block, and it is on line 2 already",
            ),
        ] {
            assert_eq!(TestServer::error(lines), error, "{lines}");
        }
    }
}
