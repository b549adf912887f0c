//! How upstreams are asked.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::Name;
use tokio::time::Instant;

use crate::dns::upstream::metrics::ForwardMetrics;
use crate::dns::upstream::policy::SelectionPolicy;
use crate::dns::upstream::socket_budget::SocketBudget;
use crate::dns::upstream::stream_pool::StreamConnection;

/// How upstreams are asked.
#[derive(Clone, Debug)]
pub struct ForwardOptions {
    /// In which order.
    pub policy: SelectionPolicy,
    /// Failed health checks in a row after which an upstream counts as down; 0 for never.
    pub max_fails: u32,
    /// How an upstream that has failed is checked.
    pub health_check: HealthCheck,
    /// How long connections are kept, and how many.
    pub keep: PoolConfig,
    /// How long an upstream may take to answer.
    pub read_timeout: Duration,
    /// How many attempts may fail for one question; `None` for two with each upstream.
    pub max_attempts: Option<usize>,
    /// Questions of a kind that may be under way at once; a client may hold at most half of the places that other
    /// clients don't hold. Each costs a socket for every time that it is sent.
    pub max_concurrent: usize,
    /// The sockets that all upstreams of the process may have.
    pub sockets: Arc<SocketBudget>,
    /// Whether queries fail at once while all upstreams are down.
    pub fail_fast: bool,
    /// The codes that have a client's question go to the next upstream.
    pub failover: Vec<ResponseCode>,
    /// Whether clients' questions by TCP are asked by UDP first, too.
    pub prefer_udp: bool,
    /// The address that they are asked from.
    pub source: Option<IpAddr>,
    /// Where all that is counted.
    pub metrics: Option<Arc<ForwardMetrics>>,
}

impl Default for ForwardOptions {
    /// CoreDNS's defaults, and the bound of its own Corefile.
    fn default() -> Self {
        Self {
            policy: SelectionPolicy::Random,
            max_fails: 2,
            health_check: HealthCheck::default(),
            keep: PoolConfig::default(),
            read_timeout: Duration::from_secs(2),
            max_attempts: None,
            max_concurrent: 1000,
            sockets: Arc::default(),
            fail_fast: false,
            failover: Vec::new(),
            prefer_udp: false,
            source: None,
            metrics: None,
        }
    }
}

/// What an answer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LookupOrigin {
    /// A client's question.
    Forward,
    /// The same, by a client that has asked by TCP.
    ForwardByTcp,
    /// The target of a link.
    Chase,
}

/// How long connections are kept, and how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolConfig {
    /// How long one is kept that isn't used.
    pub idle: Duration,
    /// How long one is kept at all.
    pub age: Option<Duration>,
    /// How many are kept that aren't used.
    pub number: usize,
    /// How many UDP sockets are, for a moment.
    pub sockets: usize,
}

impl Default for PoolConfig {
    /// As CoreDNS, but bounded: more than these are needed at once only in a storm.
    fn default() -> Self {
        Self { idle: Duration::from_secs(10), age: None, number: 100, sockets: 1000 }
    }
}

impl PoolConfig {
    /// Returns whether a connection that is idle since then may be used again.
    pub(crate) fn holds(&self, since: Instant, connection: &StreamConnection) -> bool {
        since.elapsed() < self.idle && self.age.is_none_or(|age| connection.opened.elapsed() <= age)
    }
}

/// How upstreams are checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    /// The pause between two health checks.
    pub pause: Duration,
    /// RD of the question.
    pub recursion_desired: bool,
    /// The name whose name servers are asked for.
    pub domain: Name,
}

impl Default for HealthCheck {
    /// As CoreDNS.
    fn default() -> Self {
        Self { pause: Duration::from_millis(500), recursion_desired: true, domain: Name::root() }
    }
}
