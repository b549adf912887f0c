//! Checks of targets: DNS through a function from `src/app`, because `sync` doesn't use `dns`; TCP here.

use std::collections::{BTreeSet, HashSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use futures::future::{BoxFuture, join_all};
use jiff::Timestamp;
use nix::errno::Errno;
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::check_queue::CheckKey;
use crate::model::hostname::Hostname;
use crate::model::link::Target;
use crate::model::service_key::ServiceKey;
use crate::sync::stable_name::decision::checks::CheckOutcome;

/// Maximum number of addresses of a target that are connected to.
const MAX_CONNECTIONS: usize = 4;
const LEADS_BACK: &str = "leads back to the StableName";

/// The result of a check: of DNS for a hostname, and of a connection if the check has a port.
#[derive(Clone, Debug)]
pub struct TargetCheckResult {
    /// When the answers had come, before upstreams without an answer were asked another question and before connections
    /// were made.
    pub at: Timestamp,
    /// For a hostname one outcome for each upstream that was asked, for addresses one pass; and one more if no address
    /// accepts a connection. Without the passes if this process had no file or memory for a connection.
    pub outcomes: Vec<CheckOutcome>,
    /// The addresses to connect to. For a hostname the first ones of each upstream's answer that the target policy
    /// allows.
    pub addresses: Vec<IpAddr>,
    /// The upstreams that have answered, with the question and the time.
    pub answers: Vec<(SocketAddr, Hostname, Timestamp)>,
    /// The links that own the hostname, or a later name of its CNAME chain.
    pub links: HashSet<ServiceKey>,
}

/// Checks a hostname at each upstream, without caches, with a timeout, as a client of a link in the namespace asks.
pub type CheckDns =
    Arc<dyn Fn(Hostname, Arc<str>, Duration) -> BoxFuture<'static, TargetCheckResult> + Send + Sync>;

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

    /// Returns the outcomes for one of the StableNames that wait for the check. The check fails if the hostname
    /// leads back to the link of that StableName.
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
        Target::Hostname(host) => {
            check_dns(host.clone(), key.namespace.clone().unwrap_or_default(), key.timeout).await
        }
        Target::Addresses(addresses) => {
            // Sorted: StableNames that list the same addresses in another order share the check.
            let addresses: BTreeSet<IpAddr> = addresses.iter().copied().collect();
            let addresses = addresses.into_iter().take(MAX_CONNECTIONS).collect();
            TargetCheckResult::new(Timestamp::now(), vec![CheckOutcome::Passed], addresses)
        }
    };
    let is_passed = result.outcomes.contains(&CheckOutcome::Passed);
    if let Some(port) = key.tcp_port.filter(|_| is_passed) {
        match connect(&result.addresses, port, key.timeout).await {
            Connected::Accepted => {}
            // DNS alone is no pass.
            Connected::OutOfResources => result.outcomes.retain(|outcome| *outcome != CheckOutcome::Passed),
            Connected::Failed(why) => result.outcomes.push(CheckOutcome::Failed(why)),
        }
    }
    FinishedCheck { key, result }
}

#[derive(Debug, PartialEq, Eq)]
enum Connected {
    Accepted,
    /// This process had no file or memory for a connection, which says nothing about the target.
    OutOfResources,
    Failed(String),
}

/// Connects to the first [`MAX_CONNECTIONS`] different addresses in parallel, and closes the connections. Returns
/// `Accepted` if an address accepts a connection, else `OutOfResources` if an attempt ended so, else the error of the
/// first address.
async fn connect(addresses: &[IpAddr], port: u16, limit: Duration) -> Connected {
    // Several upstreams may have answered with the same addresses.
    let mut known = HashSet::new();
    let distinct = addresses.iter().filter(|address| known.insert(**address));
    let connections = distinct.take(MAX_CONNECTIONS).map(|address| async move {
        let address = SocketAddr::new(*address, port);
        match timeout(limit, TcpStream::connect(address)).await {
            Ok(Ok(_)) => Connected::Accepted,
            Ok(Err(error)) if is_out_of_resources(&error) => Connected::OutOfResources,
            Ok(Err(error)) => Connected::Failed(format!("no connection to {address}: {error}")),
            Err(_) => Connected::Failed(format!("no connection to {address} within {limit:?}")),
        }
    });
    decisive(join_all(connections).await)
        .unwrap_or_else(|| Connected::Failed(format!("no address to connect to at port {port}")))
}

/// Returns the result that decides; `None` without results.
fn decisive(results: Vec<Connected>) -> Option<Connected> {
    results.into_iter().min_by_key(|result| match result {
        Connected::Accepted => 0,
        Connected::OutOfResources => 1,
        Connected::Failed(_) => 2,
    })
}

/// Returns whether file descriptors or memory are exhausted.
fn is_out_of_resources(error: &io::Error) -> bool {
    let errnos = [Errno::EMFILE, Errno::ENFILE, Errno::ENOBUFS, Errno::ENOMEM];
    errnos.iter().any(|errno| error.raw_os_error() == Some(*errno as i32))
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
        let addresses = [closed, closed, closed, closed, open];
        assert_eq!(connect(&addresses, port, limit).await, Connected::Accepted);
        assert!(matches!(connect(&[closed], port, limit).await, Connected::Failed(_)));
    }

    #[tokio::test]
    async fn order_of_addresses_doesnt_decide_the_check() {
        let check_dns: CheckDns = Arc::new(|_, _, _| Box::pin(async { TargetCheckResult::without_answer() }));
        let ip = |last| IpAddr::from([192, 0, 2, last]);
        let six = IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1]);
        for listed in [[six, ip(1), ip(2), ip(3), ip(10)], [ip(10), ip(3), six, ip(2), ip(1)]] {
            let target = Target::Addresses(listed.into());
            let timeout = Duration::from_secs(20);
            let key = CheckKey { target, namespace: None, tcp_port: None, timeout };
            let checked = check(key, Arc::clone(&check_dns)).await;
            assert_eq!(checked.result.addresses, [ip(1), ip(2), ip(3), ip(10)]);
        }
    }

    #[test]
    fn exhausted_files_are_no_connection_failure() {
        assert!(is_out_of_resources(&io::Error::from_raw_os_error(Errno::EMFILE as i32)));
        assert!(!is_out_of_resources(&io::Error::from_raw_os_error(Errno::ECONNREFUSED as i32)));
        let failed = |why: &str| Connected::Failed(why.to_owned());
        assert_eq!(decisive(vec![failed("a"), Connected::OutOfResources]), Some(Connected::OutOfResources));
        assert_eq!(decisive(vec![Connected::OutOfResources, Connected::Accepted]), Some(Connected::Accepted));
        assert_eq!(decisive(vec![failed("a"), failed("b")]), Some(failed("a")));
        assert_eq!(decisive(Vec::new()), None);
    }

    #[test]
    fn hostname_fails_only_for_links_that_it_leads_back_to() {
        let links = HashSet::from([ServiceKey::new("shop", "web")]);
        let passed = TargetCheckResult::new(Timestamp::now(), vec![CheckOutcome::Passed], Vec::new());
        let result = TargetCheckResult { links, ..passed };
        assert_eq!(result.outcomes_for(&ServiceKey::new("other", "web")), [CheckOutcome::Passed]);
        let failed = CheckOutcome::Failed("leads back to the StableName".to_owned());
        assert_eq!(result.outcomes_for(&ServiceKey::new("shop", "web")), [failed, CheckOutcome::Passed]);
    }
}
