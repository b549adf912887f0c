//! Checks of targets: DNS through a function from `src/app`, because `sync` doesn't use `dns`; TCP here.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, join_all};
use hickory_proto::rr::Name;
use jiff::Timestamp;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::check_queue::CheckKey;
use crate::model::hostname::Hostname;
use crate::model::link::Target;
use crate::sync::failover::checks::CheckOutcome;

/// Maximum number of addresses of a target that are connected to.
const MAX_CONNECTIONS: usize = 4;

/// The result of a check: of DNS for a hostname, and of a connection if the check has a port.
#[derive(Clone, Debug)]
pub struct TargetCheckResult {
    /// When the answers had come, before upstreams without an answer were asked another question and before connections
    /// were made.
    pub at: Timestamp,
    /// For a hostname one outcome for each upstream that was asked, for addresses one pass; and one more if no address
    /// accepts a connection.
    pub outcomes: Vec<CheckOutcome>,
    /// The addresses to connect to. For a hostname the first ones of each upstream's answer that the target policy
    /// allows.
    pub addresses: Vec<IpAddr>,
    /// The upstreams that have answered, with the question and the time.
    pub answers: Vec<(SocketAddr, Hostname, Timestamp)>,
}

/// Checks a hostname at each upstream, without caches, with a timeout. The names are the DNS names of the
/// ExternalTargets that wait for the check: the hostname mustn't lead back to them.
pub type CheckDns =
    Arc<dyn Fn(Hostname, Vec<Name>, Duration) -> BoxFuture<'static, TargetCheckResult> + Send + Sync>;

impl TargetCheckResult {
    /// Returns the result of a check that says nothing about the target.
    #[must_use]
    pub fn without_answer() -> Self {
        Self { at: Timestamp::now(), outcomes: Vec::new(), addresses: Vec::new(), answers: Vec::new() }
    }
}

/// A check that has ended.
#[derive(Debug)]
pub(super) struct CheckEnd {
    pub(super) key: CheckKey,
    pub(super) result: TargetCheckResult,
}

/// Checks a target. Returns the check and its result.
pub(super) async fn check(key: CheckKey, own: Vec<Name>, check_dns: CheckDns) -> CheckEnd {
    let mut result = match &key.target {
        Target::Hostname(host) => check_dns(host.clone(), own, key.timeout).await,
        Target::Addresses(addresses) => {
            let addresses = addresses.iter().take(MAX_CONNECTIONS).copied().collect();
            let at = Timestamp::now();
            TargetCheckResult { at, outcomes: vec![CheckOutcome::Passed], addresses, answers: Vec::new() }
        }
    };
    let is_passed = result.outcomes.contains(&CheckOutcome::Passed);
    if let Some(port) = key.tcp_port.filter(|_| is_passed)
        && let Err(why) = connect(&result.addresses, port, key.timeout).await
    {
        result.outcomes.push(CheckOutcome::Failed(why));
    }
    CheckEnd { key, result }
}

/// Connects to the first [`MAX_CONNECTIONS`] addresses in parallel, and closes the connections.
///
/// # Errors
/// If no address accepts a connection: the error of the first one.
async fn connect(addresses: &[IpAddr], port: u16, limit: Duration) -> Result<(), String> {
    let connections = addresses.iter().take(MAX_CONNECTIONS).map(|address| async move {
        match timeout(limit, TcpStream::connect((*address, port))).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(format!("no connection to {}: {error}", SocketAddr::new(*address, port))),
            Err(_) => Err(format!("no connection to {} within {limit:?}", SocketAddr::new(*address, port))),
        }
    });
    let results = join_all(connections).await;
    if results.iter().any(Result::is_ok) {
        return Ok(());
    }
    results.into_iter().next().unwrap_or_else(|| Err(format!("no address to connect to at port {port}")))
}
