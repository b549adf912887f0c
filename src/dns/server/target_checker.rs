//! Checks targets of links at the upstreams of the current configuration.

#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use hickory_proto::rr::Name;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use crate::dns::chain::server::Server;
use crate::dns::chain::target_check::{TargetOutcome, TargetResults, UpstreamResult};
use crate::dns::plugins::lb_linker::LbLinker;
use crate::dns::server::invalidation::Servers;

/// Checks targets through the server blocks that are served now, also after a reload of the Corefile.
#[derive(Clone, Debug)]
pub struct TargetChecker {
    servers: watch::Receiver<Servers>,
    /// The runtime of the sockets to upstreams.
    dns: Handle,
}

impl TargetChecker {
    #[must_use]
    pub fn new(servers: watch::Receiver<Servers>, dns: Handle) -> Self {
        Self { servers, dns }
    }

    /// Checks a hostname, without caches, at each upstream that would be asked for it on behalf of a client that queries
    /// a link in `namespace`. Returns at least one result; listeners with different blocks may have different results
    /// for an upstream.
    pub async fn check(&self, name: &Name, namespace: &str, timeout: Duration) -> TargetResults {
        let checks = self.views().into_iter().map(|(server, links)| {
            let (name, namespace) = (name.clone(), namespace.to_owned());
            self.on_dns(async move { links.check_target(&server, &name, &namespace, timeout).await })
        });
        let views = join_all(checks).await;
        let is_aborted = views.iter().any(Option::is_none);
        let (mut all, mut links) = (Vec::new(), HashSet::new());
        for view in views.into_iter().flatten() {
            all.extend(view.upstreams);
            links.extend(view.links);
        }
        let says_nothing = |result: &UpstreamResult| {
            result.upstream.is_none() && matches!(result.outcome, TargetOutcome::Inconclusive(_))
        };
        // Clients of a view without upstreams get the CNAME alone; the other views decide.
        let is_decided = all.iter().any(|result| !says_nothing(result));
        let mut results: Vec<UpstreamResult> = Vec::new();
        for result in all.into_iter().filter(|result| !is_decided || !says_nothing(result)) {
            if !results.iter().any(|known| is_same(known, &result)) {
                results.push(result);
            }
        }
        if is_aborted {
            let outcome = TargetOutcome::Inconclusive("the check was aborted".to_owned());
            results.push(UpstreamResult { upstream: None, outcome });
        }
        if results.is_empty() {
            let outcome = TargetOutcome::Inconclusive("no server block has lb_linker".to_owned());
            results.push(UpstreamResult { upstream: None, outcome });
        }
        TargetResults { upstreams: results, links }
    }

    /// Asks `upstream`, which a check of `name` has asked before, for the A record of the name `other`, without caches.
    /// Returns whether an answer with NOERROR, NXDOMAIN or YXDOMAIN came in time.
    pub async fn is_answering(
        &self,
        name: &Name,
        upstream: SocketAddr,
        other: &Name,
        timeout: Duration,
    ) -> bool {
        for (server, links) in self.views() {
            let (name, other) = (name.clone(), other.clone());
            let probe = async move { links.probe_upstream(&server, &name, upstream, other, timeout).await };
            if let Some(is_answering) = self.on_dns(probe).await.flatten() {
                return is_answering;
            }
        }
        false
    }

    /// Returns one server of each group, with its first `lb_linker` of each view, which resolves the targets of links.
    fn views(&self) -> Vec<(Arc<Server>, Arc<LbLinker>)> {
        let mut views: Vec<(Arc<Server>, Arc<LbLinker>)> = Vec::new();
        for server in &*self.servers.borrow().clone() {
            for links in LbLinker::all_of(server) {
                let is_same = |(known, other): &(Arc<Server>, Arc<LbLinker>)| {
                    known.group == server.group && other.view_name() == links.view_name()
                };
                if !views.iter().any(is_same) {
                    views.push((Arc::clone(server), links));
                }
            }
        }
        views
    }

    /// Runs a task on the runtime of the sockets; `None` if the task panicked, or if the runtime has ended.
    async fn on_dns<T: Send + 'static>(&self, task: impl Future<Output = T> + Send + 'static) -> Option<T> {
        AbortOnDropHandle::new(self.dns.spawn(task)).await.ok()
    }
}

/// Returns whether two results are the same. Addresses aren't compared: an upstream may send them in another order.
fn is_same(one: &UpstreamResult, other: &UpstreamResult) -> bool {
    let are_resolved =
        || [one, other].into_iter().all(|result| matches!(result.outcome, TargetOutcome::Resolved(_)));
    one.upstream == other.upstream && (one.outcome == other.outcome || are_resolved())
}
