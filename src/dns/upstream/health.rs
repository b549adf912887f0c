//! An upstream and its health, which is checked only after a query that failed or got no answer in time.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use hickory_proto::rr::RecordType;
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep};
use tokio_util::task::AbortOnDropHandle;
use tracing::{info, warn};

use super::config::ForwardOptions;
use super::endpoint::UpstreamEndpoint;
use super::error::ExchangeError;
use super::exchange::ping;
use super::metrics::UpstreamCounters;
use super::socket_budget::SocketBudget;
use super::sockets::stream::Connections;
use super::sockets::udp::UdpSockets;
use crate::dns::message::query::UpstreamQuery;
use crate::dns::net::shared_runtime::shared_runtime;
use crate::dns::upstream::config::HealthCheck;

const CHECK_TIMEOUT: Duration = Duration::from_secs(1);
/// The maximum number of concurrent look-ups at one upstream for checks of targets.
const MAX_TARGET_CHECKS: usize = 128;
/// The minimum pause between two health checks. With a pause of 0, CoreDNS checks in a busy loop.
const MIN_PAUSE: Duration = Duration::from_millis(10);

#[derive(Debug)]
pub(crate) struct Upstream {
    pub(crate) endpoint: UpstreamEndpoint,
    pub(crate) connections: Connections,
    pub(crate) sockets: UdpSockets,
    pub(crate) budget: Arc<SocketBudget>,
    pub(crate) reply_timeout: Duration,
    pub(crate) source: Option<IpAddr>,
    pub(crate) metrics: Option<Arc<UpstreamCounters>>,
    /// The number of consecutive failed health checks.
    fails: AtomicU32,
    max_fails: u32,
    check: HealthCheck,
    checks: Mutex<Option<AbortOnDropHandle<()>>>,
    /// The limit of look-ups for checks of targets. Each upstream has its own limit, so that a silent upstream doesn't
    /// delay checks of other upstreams.
    pub(crate) target_checks: Arc<Semaphore>,
}

impl Upstream {
    pub(crate) fn new(endpoint: UpstreamEndpoint, options: &ForwardOptions) -> Self {
        let address = endpoint.address;
        // With few sockets, a part of them stays free for other look-ups and for other upstreams.
        let sockets = options.sockets.target_limit() / 4;
        let target_checks = options.max_concurrent.min(sockets).clamp(1, MAX_TARGET_CHECKS);
        Self {
            connections: Connections::new(
                options.pool_config,
                Arc::clone(&options.sockets),
                endpoint.requests(),
            ),
            endpoint,
            sockets: UdpSockets::default(),
            budget: Arc::clone(&options.sockets),
            reply_timeout: options.read_timeout,
            source: options.source,
            metrics: options.metrics.clone().map(|metrics| Arc::new(UpstreamCounters::new(metrics, address))),
            fails: AtomicU32::new(0),
            max_fails: options.max_fails,
            check: options.health_check.clone(),
            checks: Mutex::default(),
            target_checks: Arc::new(Semaphore::new(target_checks)),
        }
    }

    /// Returns whether too many health checks have failed in a row.
    pub(crate) fn is_down(&self) -> bool {
        self.max_fails != 0 && self.fails.load(Ordering::Relaxed) > self.max_fails
    }

    /// Starts health checks, which run until one succeeds, unless they already run or `max_fails` is 0.
    pub(crate) fn start_health_checks(self: &Arc<Self>) {
        if self.max_fails == 0 {
            return;
        }
        let mut checks = self.checks.lock();
        if checks.as_ref().is_none_or(AbortOnDropHandle::is_finished)
            && let Some(runtime) = shared_runtime()
        {
            // A weak reference, so that the task doesn't keep the upstream alive.
            let upstream = Arc::downgrade(self);
            *checks = Some(AbortOnDropHandle::new(runtime.spawn(async move {
                while let Some(upstream) = upstream.upgrade() {
                    if upstream.check().await {
                        return;
                    }
                    let pause = upstream.check.pause.max(MIN_PAUSE);
                    drop(upstream);
                    sleep(pause).await;
                }
            })));
        }
    }

    /// Sends an NS query. Returns whether the upstream has answered; as in CoreDNS, any answer counts.
    async fn check(self: &Arc<Self>) -> bool {
        let mut question = UpstreamQuery::recursive(self.check.domain.clone(), RecordType::NS);
        question.recursion_desired = self.check.recursion_desired;
        let reply = ping(self, &question.key(), Instant::now() + CHECK_TIMEOUT).await;
        if reply.as_ref().is_err_and(ExchangeError::is_shortage) {
            // The query wasn't sent.
            return false;
        }
        let was_down = self.is_down();
        if reply.is_ok() {
            self.fails.store(0, Ordering::Relaxed);
        } else {
            // An overflow would take over a year.
            self.fails.fetch_add(1, Ordering::Relaxed);
            self.metrics.iter().for_each(|metrics| metrics.record_failed_check());
        }
        match (was_down, &reply) {
            (false, Err(error)) if self.is_down() => {
                warn!("upstream {} fails health checks: {error}", self.endpoint);
            }
            (true, Ok(())) => info!("upstream {} answers again", self.endpoint),
            _ => {}
        }
        reply.is_ok()
    }
}
