//! Checks whether a hostname resolves at each upstream that a client's chase may ask.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use hickory_proto::op::{Query, ResponseCode};
use hickory_proto::rr::{Name, RecordType};
use tokio::time::timeout_at;

use super::LbLinker;
use super::hops::ADDRESS_TYPES;
use super::target_resolver::{is_busy, query_for};
use crate::dns::chain::request::Purpose;
use crate::dns::chain::server::{LookUp, MAX_LOOKUPS_PER_QUERY, Server};
use crate::dns::chain::target_check::{CheckEnd, TargetCheck, TargetOutcome, UpstreamResult};
use crate::dns::message::presentation::rcode_text;
use crate::dns::message::query::UpstreamQuery;
use crate::dns::message::reply::Reply;
use crate::dns::plugins::lb_linker::chase::{ChainEnd, ChainStep, follow};
use crate::model::hostname::to_presentation;

/// The maximum length of a message in characters: upstreams may be hostile.
const MAX_MESSAGE: usize = 200;
const NXDOMAIN: &str = "NXDOMAIN";
const NO_ADDRESSES: &str = "no addresses";

/// The outcome for one address family, at one upstream.
type FamilyResult = (Option<SocketAddr>, TargetOutcome);

impl LbLinker {
    /// Checks a hostname at each upstream of the *forward* line that a client's chase of it would ask, without caches.
    /// The hostname passes at an upstream if the upstream has an allowed address of either family.
    pub async fn check_target(
        &self,
        server: &Arc<Server>,
        name: &Name,
        timeout: Duration,
    ) -> Vec<UpstreamResult> {
        if let Err(denied) = self.policy.check_name(name) {
            let outcome = TargetOutcome::Failed(bounded(denied.to_string()));
            return vec![UpstreamResult { upstream: None, outcome }];
        }
        let [v4, v6] = ADDRESS_TYPES.map(|qtype| Query::query(name.clone(), qtype));
        let (v4, v6) =
            tokio::join!(self.check_family(server, &v4, timeout), self.check_family(server, &v6, timeout));
        merged(&v4, &v6)
    }

    /// Asks an upstream of the *forward* line that a client's chase of `name` would ask for the address of another
    /// name. Returns whether a reply other than SERVFAIL has come; `None` if the upstream wasn't asked.
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
                Some(CheckEnd::Outcome(TargetOutcome::Resolved)) => return Some(true),
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
        timeout: Duration,
    ) -> Vec<FamilyResult> {
        let request = server.internal_request(query.clone());
        if !server.is_link_name(query.name())
            && server.offers_recursion(query, &request, LookUp::Target) == Some(false)
        {
            return vec![(None, TargetOutcome::Failed("no server block resolves the hostname".to_owned()))];
        }
        let mut results = Vec::new();
        let mut checks = FuturesUnordered::new();
        checks.push(self.check_once(server, query, TargetCheck::new(timeout), timeout));
        while let Some((upstream, end)) = checks.next().await {
            match end {
                CheckEnd::Found(further) => {
                    checks.extend(
                        further.into_iter().map(|check| self.check_once(server, query, check, timeout)),
                    );
                }
                CheckEnd::Outcome(outcome) => results.push((upstream, bounded_outcome(upstream, outcome))),
            }
        }
        results
    }

    async fn check_once(
        &self,
        server: &Arc<Server>,
        query: &Query,
        check: TargetCheck,
        timeout: Duration,
    ) -> (Option<SocketAddr>, CheckEnd) {
        let check = Arc::new(check);
        let end = match timeout_at(check.deadline, self.follow_target(server, query, &check)).await {
            Ok(end) => end,
            Err(_) if check.upstream().is_none() => {
                CheckEnd::Outcome(TargetOutcome::NotAsked(format!("the plugins have taken {timeout:?}")))
            }
            Err(_) => CheckEnd::Outcome(check.no_reply()),
        };
        (check.upstream(), end)
    }

    /// Looks the hostname up, and follows a chain that leads from an upstream's answer to our zones.
    async fn follow_target(&self, server: &Arc<Server>, query: &Query, check: &Arc<TargetCheck>) -> CheckEnd {
        let request = server.internal_request(query.clone());
        let mut name = query.name().clone();
        for _ in 0..MAX_LOOKUPS_PER_QUERY {
            let purpose = Purpose::Check(Arc::clone(check));
            let reply = Server::look_up(&request, query_for(&request, &name), purpose).await;
            match (check.ended(), reply) {
                (Some(end), _) => return end,
                (None, None) => return failed("the query is dropped"),
                (None, Some(reply)) => match self.judge(server, &reply, &name, query.query_type()) {
                    Ok(next) => name = next,
                    Err(outcome) => return CheckEnd::Outcome(outcome),
                },
            }
        }
        failed("its CNAME chain is too long")
    }

    /// Returns the name in our zones that an answer leads to.
    ///
    /// # Errors
    /// Returns the outcome if the answer decides it.
    fn judge(
        &self,
        server: &Server,
        reply: &Reply,
        name: &Name,
        qtype: RecordType,
    ) -> Result<Name, TargetOutcome> {
        let mut denial = None;
        let step = |name: &Name| {
            if server.is_link_name(name) {
                return ChainStep::Ours;
            }
            match self.policy.check_name(name) {
                Ok(()) => ChainStep::Upstream,
                Err(denied) => {
                    denial = Some(format!("leads to {}: {denied}", to_presentation(name)));
                    ChainStep::Denied
                }
            }
        };
        let chain = follow(reply, name, qtype, 0, step);
        let addresses: Vec<IpAddr> =
            chain.answers.iter().filter_map(|record| record.data.ip_addr()).collect();
        if addresses.iter().any(|ip| self.policy.check_address(*ip).is_ok()) {
            return Err(TargetOutcome::Resolved);
        }
        let rcode = reply.metadata.response_code;
        Err(match chain.end {
            ChainEnd::BackToOurZone(next) => return Ok(next),
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
            ChainEnd::Unresolved if is_busy(reply) => {
                TargetOutcome::NotAsked(reply.ede.map_or("", |ede| ede.text).to_owned())
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

/// Limits the message. Without an upstream, a missing answer is a failure, because no upstream can be at fault.
fn bounded_outcome(upstream: Option<SocketAddr>, outcome: TargetOutcome) -> TargetOutcome {
    match outcome {
        TargetOutcome::Resolved => TargetOutcome::Resolved,
        TargetOutcome::NoAnswer(why) if upstream.is_some() => TargetOutcome::NoAnswer(bounded(why)),
        TargetOutcome::NoAnswer(why) | TargetOutcome::Failed(why) => TargetOutcome::Failed(bounded(why)),
        TargetOutcome::NotAsked(why) => TargetOutcome::NotAsked(bounded(why)),
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
    let result = |upstream| {
        let outcomes = [v4, v6].into_iter().filter_map(|family| outcome_at(family, upstream));
        let outcome = outcomes.max_by_key(weight)?;
        Some(UpstreamResult { upstream, outcome })
    };
    // An answer without an upstream counts at each upstream that is asked for the other family.
    all.into_iter().filter(|upstream| upstream.is_some() == has_upstreams).filter_map(result).collect()
}

/// Returns the outcome for one family at an upstream. If only other *forward* lines were asked for the family, their
/// success counts.
fn outcome_at(family: &[FamilyResult], upstream: Option<SocketAddr>) -> Option<TargetOutcome> {
    let at = |upstream| family.iter().find(|(at, _)| *at == upstream).map(|(_, outcome)| outcome.clone());
    let is_resolved = || family.iter().all(|(_, outcome)| *outcome == TargetOutcome::Resolved);
    at(upstream).or_else(|| at(None)).or_else(|| is_resolved().then_some(TargetOutcome::Resolved))
}

/// Ranks the outcome for one family: the outcome with the higher weight decides. NXDOMAIN holds for both families; any
/// other failure decides only if the outcome for the other family is known.
fn weight(outcome: &TargetOutcome) -> u8 {
    match outcome {
        TargetOutcome::Resolved => 5,
        TargetOutcome::Failed(why) if why == NXDOMAIN => 4,
        TargetOutcome::NotAsked(_) => 3,
        TargetOutcome::NoAnswer(_) => 2,
        TargetOutcome::Failed(why) if why != NO_ADDRESSES => 1,
        TargetOutcome::Failed(_) => 0,
    }
}
