//! Checks whether a hostname resolves at each upstream that may be asked for it on behalf of a client.

use std::cmp;
use std::collections::{BTreeSet, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use hickory_proto::op::{Query, ResponseCode};
use hickory_proto::rr::{Name, RecordType};
use parking_lot::Mutex;
use tokio::time::timeout_at;

use super::hops::ADDRESS_TYPES;
use super::target_resolver::is_busy;
use super::{ChaseState, LbLinker, NAME};
use crate::dns::chain::request::{Purpose, Request};
use crate::dns::chain::server::Server;
use crate::dns::chain::target_check::{CheckEnd, TargetCheck, TargetOutcome, TargetResults, UpstreamResult};
use crate::dns::message::ede::Ede;
use crate::dns::message::presentation::rcode_text;
use crate::dns::message::query::UpstreamQuery;
use crate::dns::message::reply::Reply;

/// The maximum number of addresses in a result.
const MAX_ADDRESSES: usize = 4;
/// The maximum length of a message in characters: upstreams may be hostile.
const MAX_MESSAGE: usize = 200;
const NXDOMAIN: &str = "NXDOMAIN";
const NO_ADDRESSES: &str = "no addresses";

/// The outcome for one address family, at one upstream.
type FamilyResult = (Option<SocketAddr>, TargetOutcome);

impl LbLinker {
    /// Checks a hostname, without caches, at each upstream of the *forward* lines that would be asked for it on behalf
    /// of a client that queries a link in `namespace`. The hostname passes at an upstream if the upstream has an allowed
    /// address of either family. The StableNames of a namespace may share a check, so the results contain the links
    /// that the hostname leads to: each StableName looks there for its own link.
    pub async fn check_target(
        &self,
        server: &Arc<Server>,
        name: &Name,
        namespace: &str,
        timeout: Duration,
    ) -> TargetResults {
        let links = Arc::new(Mutex::new(HashSet::new()));
        let family = |qtype| {
            let check = TargetCheck::new(Arc::clone(&links), timeout);
            self.check_family(server, Query::query(name.clone(), qtype), namespace, check)
        };
        let [v4, v6] = ADDRESS_TYPES.map(family);
        let (v4, v6) = tokio::join!(v4, v6);
        let links = std::mem::take(&mut *links.lock());
        TargetResults { upstreams: merged(&v4, &v6), links }
    }

    /// Asks `upstream` for the A record of the name `other`, if a client's query for `name` would reach this upstream.
    /// Returns `Some(true)` if the answer is usable, `Some(false)` if it isn't (SERVFAIL, for example) or if the query
    /// times out, and `None` if the upstream can't be asked.
    pub async fn probe_upstream(
        &self,
        server: &Arc<Server>,
        name: &Name,
        upstream: SocketAddr,
        other: Name,
        timeout: Duration,
    ) -> Option<bool> {
        let question = UpstreamQuery::recursive(other, RecordType::A).key();
        for qtype in ADDRESS_TYPES {
            let check = Arc::new(TargetCheck::new_probe(upstream, question.clone(), timeout));
            let request = self.own_request(server, Query::query(name.clone(), qtype));
            let look_up =
                Server::look_up(&request, request.query.clone(), Purpose::Check(Arc::clone(&check)));
            let in_time = timeout_at(check.deadline, look_up).await;
            match check.ended() {
                Some(CheckEnd::Outcome(TargetOutcome::Resolved(_))) => return Some(true),
                Some(CheckEnd::Outcome(TargetOutcome::NoAnswer(_))) => return Some(false),
                _ if in_time.is_err() => return Some(false),
                _ => {}
            }
        }
        None
    }

    async fn check_family(
        &self,
        server: &Arc<Server>,
        query: Query,
        namespace: &str,
        check: TargetCheck,
    ) -> Vec<FamilyResult> {
        let mut results = Vec::new();
        let mut checks = FuturesUnordered::new();
        let mut begun = HashSet::new();
        let check_once = |check| self.check_once(server, query.clone(), namespace, check);
        checks.push(check_once(check));
        while let Some((upstream, end)) = checks.next().await {
            match end {
                CheckEnd::Found(further) => {
                    // The answers of several upstreams may pass the query on to the same next *forward* line.
                    let new = further.into_iter().filter(|check| begun.insert(check.line_and_upstream()));
                    checks.extend(new.map(check_once));
                }
                CheckEnd::Outcome(outcome) => results.push((upstream, bounded_outcome(upstream, outcome))),
            }
        }
        // The order mustn't depend on the speed of the upstreams.
        results.sort_by_key(|(upstream, _)| *upstream);
        results
    }

    async fn check_once(
        &self,
        server: &Arc<Server>,
        query: Query,
        namespace: &str,
        check: TargetCheck,
    ) -> (Option<SocketAddr>, CheckEnd) {
        let check = Arc::new(check);
        let purpose = Purpose::Check(Arc::clone(&check));
        let request = Request { purpose, ..self.own_request(server, query) };
        let chased = timeout_at(check.deadline, self.chase_target(&request, namespace)).await;
        let end = match (check.ended(), chased) {
            (Some(end), Ok(_)) => end,
            (None, Ok(reply)) => CheckEnd::Outcome(outcome_of(&reply)),
            (_, Err(_)) => CheckEnd::Outcome(check.outcome_at_deadline()),
        };
        (check.upstream(), end)
    }

    /// Returns the records that the queried name adds to the answer for a link in `namespace` with this target.
    async fn chase_target(&self, request: &Request, namespace: &str) -> Reply {
        let name = request.query.name();
        let mut reply = request.reply(NAME);
        let place = self.find_zone(request, name);
        if self.step(request, &mut reply, name, place.is_some()) == Ok(true) {
            self.follow(request, &mut reply, place, ChaseState::new(0, Some(namespace))).await;
        }
        reply
    }
}

/// Returns the outcome of a check whose chain was followed to its end.
fn outcome_of(reply: &Reply) -> TargetOutcome {
    let addresses = reply.records.answers.iter().filter_map(|record| record.data.ip_addr());
    let addresses: Vec<IpAddr> = addresses.take(MAX_ADDRESSES).collect();
    if !addresses.is_empty() {
        return TargetOutcome::Resolved(addresses);
    }
    let rcode = reply.metadata.response_code;
    match (rcode, reply.ede) {
        (ResponseCode::NXDomain, _) => TargetOutcome::Failed(NXDOMAIN.to_owned()),
        (_, Some(ede)) if is_busy(reply) || [Ede::NOT_READY, Ede::SOURCE_NOT_READY].contains(&ede) => {
            TargetOutcome::Inconclusive(ede.text.to_owned())
        }
        (_, Some(ede)) => TargetOutcome::Failed(ede.text.to_owned()),
        (ResponseCode::NoError, None) => TargetOutcome::Failed(NO_ADDRESSES.to_owned()),
        (_, None) => TargetOutcome::Failed(rcode_text(rcode).into_owned()),
    }
}

/// Limits the length of the message. Without an upstream, a missing answer is a failure, because no upstream can be at
/// fault.
fn bounded_outcome(upstream: Option<SocketAddr>, outcome: TargetOutcome) -> TargetOutcome {
    match outcome {
        TargetOutcome::Resolved(addresses) => TargetOutcome::Resolved(addresses),
        TargetOutcome::NoAnswer(why) if upstream.is_some() => TargetOutcome::NoAnswer(bounded(why)),
        TargetOutcome::NoAnswer(why) | TargetOutcome::Failed(why) => TargetOutcome::Failed(bounded(why)),
        TargetOutcome::Inconclusive(why) => TargetOutcome::Inconclusive(bounded(why)),
    }
}

fn bounded(message: String) -> String {
    if message.chars().count() <= MAX_MESSAGE {
        return message;
    }
    message.chars().take(MAX_MESSAGE - 1).chain(['…']).collect()
}

/// Merges the results for both address families, sorted by upstream.
fn merged(v4: &[FamilyResult], v6: &[FamilyResult]) -> Vec<UpstreamResult> {
    let all: BTreeSet<Option<SocketAddr>> = v4.iter().chain(v6).map(|(upstream, _)| *upstream).collect();
    let has_upstreams = all.iter().any(Option::is_some);
    let result = |upstream: Option<SocketAddr>| {
        let own_v4 = upstream.is_some() && v4.iter().any(|(at, _)| *at == upstream);
        let outcome = match (outcome_at(v4, upstream)?, outcome_at(v6, upstream)?) {
            (TargetOutcome::Resolved(mut addresses), TargetOutcome::Resolved(v6)) => {
                addresses.extend(v6);
                addresses.truncate(MAX_ADDRESSES);
                TargetOutcome::Resolved(addresses)
            }
            (_, TargetOutcome::Resolved(v6)) => TargetOutcome::Resolved(v6),
            // NXDOMAIN for A holds for both families. NXDOMAIN for AAAA doesn't: some servers send it for names with A
            // records.
            (TargetOutcome::Failed(why), _) if own_v4 && why == NXDOMAIN => TargetOutcome::Failed(why),
            (v4, v6) => cmp::max_by_key(v4, v6, weight),
        };
        Some(UpstreamResult { upstream, outcome })
    };
    // An answer without an upstream counts at each upstream that is asked for the other family.
    all.into_iter().filter(|upstream| upstream.is_some() == has_upstreams).filter_map(result).collect()
}

/// Returns the outcome for one family at an upstream. If the upstream wasn't asked for the family, the best outcome
/// without an upstream or of other *forward* lines counts.
fn outcome_at(family: &[FamilyResult], upstream: Option<SocketAddr>) -> Option<TargetOutcome> {
    let best = |is_counted: &dyn Fn(Option<SocketAddr>) -> bool| {
        let outcomes = family.iter().filter(|(at, _)| is_counted(*at)).map(|(_, outcome)| outcome);
        outcomes.max_by_key(|outcome| weight(outcome)).cloned()
    };
    best(&|at| at == upstream).or_else(|| {
        best(&|_| true).map(|outcome| match outcome {
            // Another upstream sent no usable answer; that says nothing about this upstream.
            TargetOutcome::NoAnswer(why) => TargetOutcome::Inconclusive(format!("another upstream: {why}")),
            outcome => outcome,
        })
    })
}

/// Ranks the outcome for one family: the outcome with the higher weight decides. A failure has the lowest weight: it
/// decides only if the other family has failed, too.
fn weight(outcome: &TargetOutcome) -> u8 {
    match outcome {
        TargetOutcome::Resolved(_) => 4,
        TargetOutcome::Inconclusive(_) => 3,
        TargetOutcome::NoAnswer(_) => 2,
        TargetOutcome::Failed(why) if why != NO_ADDRESSES => 1,
        TargetOutcome::Failed(_) => 0,
    }
}
