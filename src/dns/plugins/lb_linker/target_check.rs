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

use super::LbLinker;
use super::hops::ADDRESS_TYPES;
use super::target_resolver::{is_busy, query_for};
use crate::dns::chain::request::Purpose;
use crate::dns::chain::server::{LookUp, MAX_LOOKUP_DEPTH, Server};
use crate::dns::chain::target_check::{
    CheckEnd, NOT_RESOLVED, TargetCheck, TargetOutcome, TargetResults, UpstreamResult,
};
use crate::dns::message::ede::Ede;
use crate::dns::message::presentation::rcode_text;
use crate::dns::message::query::UpstreamQuery;
use crate::dns::message::reply::Reply;
use crate::dns::plugins::lb_linker::chase::{ChainEnd, ChainStep, follow};
use crate::model::hostname::to_presentation;

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
    /// of a client. The hostname passes at an upstream if the upstream has an allowed address of either family.
    /// ExternalTargets may share a check, so the results contain the links that the hostname leads to: each
    /// ExternalTarget looks there for its own link.
    pub async fn check_target(&self, server: &Arc<Server>, name: &Name, timeout: Duration) -> TargetResults {
        if let Err(denied) = self.policy.check_name(name) {
            let outcome = TargetOutcome::Failed(bounded(denied.to_string()));
            let upstreams = vec![UpstreamResult { upstream: None, outcome }];
            return TargetResults { upstreams, ..TargetResults::default() };
        }
        let links = Arc::new(Mutex::new(HashSet::new()));
        let [v4, v6] = ADDRESS_TYPES.map(|qtype| Query::query(name.clone(), qtype));
        let check = || {
            let check = TargetCheck::new(Arc::clone(&links), timeout);
            self.note_link_of(name, &check);
            check
        };
        let (v4, v6) =
            tokio::join!(self.check_family(server, &v4, check()), self.check_family(server, &v6, check()));
        let links = std::mem::take(&mut *links.lock());
        TargetResults { upstreams: merged(&v4, &v6), links }
    }

    /// Records the link with the name `name`, a name of a chain, if there is such a link.
    pub(super) fn note_link_of(&self, name: &Name, check: &TargetCheck) {
        if let Some(link) = self.store.link_of_host(name) {
            check.note_link(&link.key);
        }
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
            let request = server.internal_request(Query::query(name.clone(), qtype));
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
        query: &Query,
        check: TargetCheck,
    ) -> Vec<FamilyResult> {
        let request = server.internal_request(query.clone());
        if !server.is_link_name(query.name())
            && server.allows_recursion(query, &request, LookUp::Target) == Some(false)
        {
            return vec![(None, TargetOutcome::Inconclusive(NOT_RESOLVED.to_owned()))];
        }
        let mut results = Vec::new();
        let mut checks = FuturesUnordered::new();
        let mut begun = HashSet::new();
        checks.push(self.check_once(server, query, check));
        while let Some((upstream, end)) = checks.next().await {
            match end {
                CheckEnd::Found(further) => {
                    // The answers of several upstreams may pass the query on to the same next *forward* line.
                    let new = further.into_iter().filter(|check| begun.insert(check.line_and_upstream()));
                    checks.extend(new.map(|check| self.check_once(server, query, check)));
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
        query: &Query,
        check: TargetCheck,
    ) -> (Option<SocketAddr>, CheckEnd) {
        let check = Arc::new(check);
        let end = timeout_at(check.deadline, self.follow_target(server, query, &check)).await;
        (check.upstream(), end.unwrap_or_else(|_| CheckEnd::Outcome(check.outcome_at_deadline())))
    }

    /// Looks the hostname up, and follows a chain that leads from an upstream's answer to our zones.
    async fn follow_target(&self, server: &Arc<Server>, query: &Query, check: &Arc<TargetCheck>) -> CheckEnd {
        let request = server.internal_request(query.clone());
        let mut name = query.name().clone();
        let mut looked_up = HashSet::new();
        for _ in 0..MAX_LOOKUP_DEPTH {
            if !looked_up.insert(name.clone()) {
                return failed("its CNAME chain is a loop");
            }
            let purpose = Purpose::Check(Arc::clone(check));
            let reply = Server::look_up(&request, query_for(&request, &name), purpose).await;
            match (check.ended(), reply) {
                (Some(end), _) => return end,
                (None, None) => return failed("the query is dropped"),
                (None, Some(reply)) => {
                    match self.next_zone_name(server, &reply, &name, query.query_type(), check) {
                        Ok(next) => name = next,
                        Err(outcome) => return CheckEnd::Outcome(outcome),
                    }
                }
            }
        }
        failed("its CNAME chain is too long")
    }

    /// Returns the name in our zones that an answer leads to.
    ///
    /// # Errors
    /// Returns the outcome of the check if the chain doesn't lead to our zones.
    fn next_zone_name(
        &self,
        server: &Server,
        reply: &Reply,
        name: &Name,
        qtype: RecordType,
        check: &TargetCheck,
    ) -> Result<Name, TargetOutcome> {
        let mut denial = None;
        let step = |name: &Name| {
            self.note_link_of(name, check);
            if server.is_link_name(name) {
                return ChainStep::LinkZone;
            }
            match self.policy.check_name(name) {
                Ok(()) => ChainStep::InAnswer,
                Err(denied) => {
                    denial = Some(format!("leads to {}: {denied}", to_presentation(name)));
                    ChainStep::Denied
                }
            }
        };
        let chain = follow(reply, name, qtype, 0, step);
        let addresses: Vec<IpAddr> =
            chain.answers.iter().filter_map(|record| record.data.ip_addr()).collect();
        let allowed = addresses.iter().copied().filter(|ip| self.policy.check_address(*ip).is_ok());
        let allowed: Vec<IpAddr> = allowed.take(MAX_ADDRESSES).collect();
        if !allowed.is_empty() {
            return Err(TargetOutcome::Resolved(allowed));
        }
        let rcode = reply.metadata.response_code;
        Err(match chain.end {
            ChainEnd::InLinkZone(next) => return Ok(next),
            ChainEnd::Denied => TargetOutcome::Failed(denial.unwrap_or_default()),
            ChainEnd::Final(ResponseCode::NXDomain) => TargetOutcome::Failed(NXDOMAIN.to_owned()),
            ChainEnd::Final(_) if !addresses.is_empty() => {
                let denied: Vec<String> = addresses.iter().map(ToString::to_string).collect();
                TargetOutcome::Failed(format!("only denied addresses: {}", denied.join(", ")))
            }
            // In an answer of our own zones, the extended error is the reason.
            ChainEnd::Final(_) => {
                TargetOutcome::Failed(reply.ede.map_or(NO_ADDRESSES, |ede| ede.text).to_owned())
            }
            ChainEnd::Unresolved if is_busy(reply) || reply.ede == Some(Ede::NOT_READY) => {
                TargetOutcome::Inconclusive(reply.ede.map_or("", |ede| ede.text).to_owned())
            }
            // RFC 6672 section 2.2: a DNAME makes the name too long.
            ChainEnd::Unresolved if rcode == ResponseCode::YXDomain => {
                TargetOutcome::Failed(rcode_text(rcode).into_owned())
            }
            ChainEnd::Unresolved if rcode == ResponseCode::NoError => {
                TargetOutcome::NoAnswer("the answer is a referral, truncated, or a CNAME loop".to_owned())
            }
            ChainEnd::Unresolved => TargetOutcome::NoAnswer(rcode_text(rcode).into_owned()),
        })
    }
}

fn failed(why: &str) -> CheckEnd {
    CheckEnd::Outcome(TargetOutcome::Failed(why.to_owned()))
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
