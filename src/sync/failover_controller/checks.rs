//! Checks of targets: DNS through a function from `src/app`, because `sync` doesn't use `dns`; TCP here.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, join_all};
use jiff::Timestamp;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::check_queue::CheckKey;
use crate::model::hostname::Hostname;
use crate::model::link::Target;
use crate::model::service_key::ServiceKey;
use crate::sync::failover::checks::CheckOutcome;

/// Maximum number of addresses of a target that are connected to.
const MAX_CONNECTIONS: usize = 4;
const LEADS_BACK: &str = "leads back to the ExternalTarget";

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
    /// The links that own the hostname, or a later name of its CNAME chain.
    pub links: HashSet<ServiceKey>,
}

/// Checks a hostname at each upstream, without caches, with a timeout.
pub type CheckDns = Arc<dyn Fn(Hostname, Duration) -> BoxFuture<'static, TargetCheckResult> + Send + Sync>;

impl TargetCheckResult {
    /// Returns the result of a check that says nothing about the target.
    #[must_use]
    pub fn without_answer() -> Self {
        Self::new(Timestamp::now(), Vec::new(), Vec::new())
    }

    /// Returns a result without a DNS answer.
    fn new(at: Timestamp, outcomes: Vec<CheckOutcome>, addresses: Vec<IpAddr>) -> Self {
        Self { at, outcomes, addresses, answers: Vec::new(), links: HashSet::new() }
    }

    /// Returns the outcomes for one of the ExternalTargets that wait for the check. The check fails if the hostname
    /// leads back to the link of that ExternalTarget.
    pub(super) fn outcomes_for(&self, waiter: &ServiceKey) -> Vec<CheckOutcome> {
        let mut outcomes = self.outcomes.clone();
        if self.links.contains(waiter) {
            outcomes.insert(0, CheckOutcome::Failed(LEADS_BACK.to_owned()));
        }
        outcomes
    }
}

/// A check that has ended.
#[derive(Debug)]
pub(super) struct FinishedCheck {
    pub(super) key: CheckKey,
    pub(super) result: TargetCheckResult,
}

/// Checks a target. Returns the check and its result.
pub(super) async fn check(key: CheckKey, check_dns: CheckDns) -> FinishedCheck {
    let mut result = match &key.target {
        Target::Hostname(host) => check_dns(host.clone(), key.timeout).await,
        Target::Addresses(addresses) => {
            let addresses = addresses.iter().take(MAX_CONNECTIONS).copied().collect();
            TargetCheckResult::new(Timestamp::now(), vec![CheckOutcome::Passed], addresses)
        }
    };
    let is_passed = result.outcomes.contains(&CheckOutcome::Passed);
    if let Some(port) = key.tcp_port.filter(|_| is_passed)
        && let Err(why) = connect(&result.addresses, port, key.timeout).await
    {
        result.outcomes.push(CheckOutcome::Failed(why));
    }
    FinishedCheck { key, result }
}

/// Connects to the first [`MAX_CONNECTIONS`] different addresses in parallel, and closes the connections.
///
/// # Errors
/// If no address accepts a connection: the error of the first address.
async fn connect(addresses: &[IpAddr], port: u16, limit: Duration) -> Result<(), String> {
    // Several upstreams may have answered with the same addresses.
    let mut known = HashSet::new();
    let distinct = addresses.iter().filter(|address| known.insert(**address));
    let connections = distinct.take(MAX_CONNECTIONS).map(|address| async move {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn repeated_addresses_count_once() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (open, closed) = (IpAddr::from([127, 0, 0, 1]), IpAddr::from([127, 0, 0, 2]));
        let port = listener.local_addr().unwrap().port();
        let limit = Duration::from_secs(20);
        assert_eq!(connect(&[closed, closed, closed, closed, open], port, limit).await, Ok(()));
        assert!(connect(&[closed], port, limit).await.is_err());
    }

    #[test]
    fn hostname_fails_only_for_links_that_it_leads_back_to() {
        let links = HashSet::from([ServiceKey::new("shop", "web")]);
        let passed = TargetCheckResult::new(Timestamp::now(), vec![CheckOutcome::Passed], Vec::new());
        let result = TargetCheckResult { links, ..passed };
        assert_eq!(result.outcomes_for(&ServiceKey::new("other", "web")), [CheckOutcome::Passed]);
        let failed = CheckOutcome::Failed("leads back to the ExternalTarget".to_owned());
        assert_eq!(result.outcomes_for(&ServiceKey::new("shop", "web")), [failed, CheckOutcome::Passed]);
    }
}
