//! The options for queries to upstreams.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::Name;

use crate::dns::upstream::metrics::ForwardMetrics;
use crate::dns::upstream::policy::SelectionPolicy;
use crate::dns::upstream::socket_budget::SocketBudget;

#[derive(Clone, Debug)]
pub struct ForwardOptions {
    /// The order in which upstreams are queried.
    pub policy: SelectionPolicy,
    /// The number of consecutive failed health checks above which an upstream is down; 0 for never.
    pub max_fails: u32,
    pub health_check: HealthCheck,
    /// The limits of idle connections.
    pub pool_config: PoolConfig,
    pub read_timeout: Duration,
    /// The maximum number of failed attempts for one query: `None` for two with each upstream, 0 for no limit.
    pub max_attempts: Option<usize>,
    /// The maximum number of concurrent look-ups for clients' queries. Look-ups of links' targets have a separate
    /// limit: the same number, but at most the number of sockets for targets. A client may use at most half of the
    /// look-ups that other clients leave free. By TCP a look-up may take
    /// a connection.
    pub max_concurrent: usize,
    /// The limit of sockets to all upstreams of the process.
    pub sockets: Arc<SocketBudget>,
    /// Whether queries fail at once if all upstreams are down.
    pub fail_fast: bool,
    /// The rcodes that cause a client's query to be sent to the next upstream.
    pub failover: Vec<ResponseCode>,
    /// Whether UDP is tried first for queries that clients sent by TCP.
    pub prefer_udp: bool,
    pub source: Option<IpAddr>,
    pub metrics: Option<Arc<ForwardMetrics>>,
}

impl Default for ForwardOptions {
    /// Returns CoreDNS's defaults, and the `max_concurrent` of its default Corefile.
    fn default() -> Self {
        Self {
            policy: SelectionPolicy::Random,
            max_fails: 2,
            health_check: HealthCheck::default(),
            pool_config: PoolConfig::default(),
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

/// The limits of idle connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolConfig {
    /// How long an idle connection is kept.
    pub idle: Duration,
    /// The maximum age of a connection; `None` for no limit.
    pub age: Option<Duration>,
    pub max_idle_connections: usize,
}

impl Default for PoolConfig {
    /// Returns CoreDNS's defaults for `idle` and `age`, and numbers that only bursts of queries exceed.
    fn default() -> Self {
        Self { idle: Duration::from_secs(10), age: None, max_idle_connections: 100 }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    pub pause: Duration,
    /// The RD bit of the query.
    pub recursion_desired: bool,
    /// The name for the NS query.
    pub domain: Name,
}

impl Default for HealthCheck {
    /// Returns CoreDNS's defaults.
    fn default() -> Self {
        Self { pause: Duration::from_millis(500), recursion_desired: true, domain: Name::root() }
    }
}
