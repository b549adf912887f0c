//! The limit of open sockets to all upstreams of all server blocks: UDP, TCP and TLS, including repeated queries and
//! health checks.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::either::Either;

use super::lookup_origin::LookupOrigin;
use crate::dns::net::percent_of_file_limit;
use crate::dns::transport::client_quota::{ClientQuota, QuotaGuard};

/// Sockets for names that clients ask for, in percent of the limit of open files.
const NAMES_PERCENT: usize = 30;
/// Sockets for targets of links, in percent. Separate, so that other names can't use them up.
const TARGETS_PERCENT: usize = 15;
/// Sockets for health checks, in percent. Separate, so that a flood of queries doesn't make upstreams appear down.
const CHECKS_PERCENT: usize = 5;
/// Idle connections in the pools, in percent.
const IDLE_PERCENT: usize = 10;

#[derive(Debug)]
pub struct SocketBudget {
    names: Arc<ClientQuota>,
    targets: Arc<ClientQuota>,
    checks: Arc<Semaphore>,
    idle: Arc<Semaphore>,
}

/// The quota that one look-up or one health check may use.
#[derive(Debug)]
pub(crate) enum SocketQuota {
    Client(Arc<ClientQuota>, IpAddr),
    Checks(Arc<Semaphore>),
}

/// The permit for one open socket, for a client's look-up, or for a health check or an idle connection. Must be dropped
/// after the socket, because the drop allows another socket to be opened.
pub(crate) type SocketPermit = Either<QuotaGuard, OwnedSemaphorePermit>;

#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the limit of sockets to upstreams is reached")]
pub(crate) struct NoSocket;

impl Default for SocketBudget {
    /// Returns a budget of 60 % of the current limit of open files.
    fn default() -> Self {
        let semaphore =
            |percent| Arc::new(Semaphore::new(percent_of_file_limit(percent).min(Semaphore::MAX_PERMITS)));
        let shares = |percent| ClientQuota::new(percent_of_file_limit(percent));
        Self {
            names: shares(NAMES_PERCENT),
            targets: shares(TARGETS_PERCENT),
            checks: semaphore(CHECKS_PERCENT),
            idle: semaphore(IDLE_PERCENT),
        }
    }
}

impl SocketBudget {
    pub(crate) fn quota_for(&self, origin: LookupOrigin, client: IpAddr) -> SocketQuota {
        let shares = match origin {
            LookupOrigin::Forward | LookupOrigin::ForwardByTcp => &self.names,
            LookupOrigin::Target => &self.targets,
        };
        SocketQuota::Client(Arc::clone(shares), client)
    }

    /// Returns the maximum number of sockets for look-ups of links' targets.
    pub(crate) fn target_limit(&self) -> usize {
        self.targets.limit()
    }

    pub(crate) fn check_quota(&self) -> SocketQuota {
        SocketQuota::Checks(Arc::clone(&self.checks))
    }

    /// Returns the permit for an idle connection; `None` if there are too many.
    pub(crate) fn idle(&self) -> Option<SocketPermit> {
        Arc::clone(&self.idle).try_acquire_owned().ok().map(Either::Right)
    }
}

impl SocketQuota {
    /// Returns the permit for a socket without which the query can't be sent.
    ///
    /// # Errors
    /// [`NoSocket`] if the limit is reached.
    pub(crate) fn take(&self) -> io::Result<SocketPermit> {
        self.permit(|shares, client| shares.acquire(client, 1))
    }

    /// Returns the permit for a socket that repeats a query. For clients, only half of the limit applies: see
    /// [`ClientQuota::acquire_spare`]. Without a permit, the query is repeated from the waiting socket.
    ///
    /// # Errors
    /// [`NoSocket`] if the limit is reached.
    pub(crate) fn take_spare(&self) -> io::Result<SocketPermit> {
        self.permit(|shares, client| shares.acquire_spare(client, 1))
    }

    fn permit(
        &self,
        take: impl FnOnce(&Arc<ClientQuota>, IpAddr) -> Option<QuotaGuard>,
    ) -> io::Result<SocketPermit> {
        let permit = match self {
            Self::Client(shares, client) => take(shares, *client).map(Either::Left),
            Self::Checks(checks) => Arc::clone(checks).try_acquire_owned().ok().map(Either::Right),
        };
        permit.ok_or_else(|| io::Error::other(NoSocket))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dns::net::{RECOMMENDED_FILE_LIMIT, max_files, percent_of};
    use crate::dns::upstream::config::ForwardOptions;
    use crate::dns::upstream::group::UpstreamGroup;

    #[test]
    fn all_parts_together_are_60_percent_of_the_file_limit() {
        assert_eq!(NAMES_PERCENT + TARGETS_PERCENT + CHECKS_PERCENT + IDLE_PERCENT, 60);
        let budget = SocketBudget::default();
        let all = budget.names.limit()
            + budget.targets.limit()
            + budget.checks.available_permits()
            + budget.idle.available_permits();
        assert!(all <= max_files() / 100 * 60, "{all}");
    }

    #[test]
    fn lone_client_has_500_sockets_with_enough_files() {
        let held_by_one = |files| {
            let names = ClientQuota::new(percent_of(files, NAMES_PERCENT));
            std::iter::from_fn(|| names.acquire(IpAddr::from([10, 0, 0, 1]), 1)).collect::<Vec<_>>().len()
        };
        for files in [RECOMMENDED_FILE_LIMIT, 4096, 20_000, 524_288, 1_048_576] {
            assert!(held_by_one(files) >= 500, "{files}");
        }
        assert!(held_by_one(RECOMMENDED_FILE_LIMIT - 1) < 500);
    }

    #[test]
    fn look_ups_of_targets_are_no_more_than_their_sockets() {
        let budget = SocketBudget { targets: ClientQuota::new(4), ..SocketBudget::default() };
        let options = ForwardOptions { sockets: Arc::new(budget), ..ForwardOptions::default() };
        let forward = UpstreamGroup::new(Vec::new(), options);
        let admitted = |origin| {
            let admit = |last| forward.admit(origin, true, IpAddr::from([10, 0, 0, last])).ok();
            (1..=50).map_while(admit).collect::<Vec<_>>().len()
        };
        assert_eq!([admitted(LookupOrigin::Target), admitted(LookupOrigin::Forward)], [4, 50]);
    }

    #[test]
    fn each_kind_of_socket_has_a_part_of_its_own() {
        let (client, other) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        let budget = SocketBudget {
            names: ClientQuota::new(4),
            targets: ClientQuota::new(4),
            checks: Arc::new(Semaphore::new(1)),
            idle: Arc::new(Semaphore::new(1)),
        };
        let all = |quota: &SocketQuota| -> Vec<_> { std::iter::from_fn(|| quota.take().ok()).collect() };
        let held = [client, other].map(|client| all(&budget.quota_for(LookupOrigin::Forward, client)));
        assert_eq!(held.each_ref().map(Vec::len), [2, 1]);
        let chased = all(&budget.quota_for(LookupOrigin::Target, client));
        assert_eq!(chased.len(), 2);
        let checks = all(&budget.check_quota());
        assert_eq!(checks.len(), 1);
        let idle = budget.idle();
        assert!(idle.is_some() && budget.idle().is_none());
        drop(held);
        assert_eq!(all(&budget.quota_for(LookupOrigin::ForwardByTcp, client)).len(), 2);
    }
}
