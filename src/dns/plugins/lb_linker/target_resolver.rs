//! Resolves the targets of links through the server's own blocks. Concurrent queries share a look-up, and the last good
//! answers are kept for upstream outages.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use dashmap::DashMap;
use futures::FutureExt;
use hickory_proto::op::{Query, ResponseCode};
use hickory_proto::rr::{Name, Record, RecordType};
use tokio::time::{Instant, timeout_at};

use crate::dns::chain::request::{Purpose, Request};
use crate::dns::chain::server::Server;
use crate::dns::chain::target_check::TargetOutcome;
use crate::dns::message::ede::Ede;
use crate::dns::message::presentation::rcode_text;
use crate::dns::message::query::{QueryKey, UpstreamQuery};
use crate::dns::message::reply::Reply;
use crate::dns::plugins::lb_linker::chase::{ChainEnd, ChainStep, CnameChain, follow};
use crate::dns::plugins::lb_linker::failed_targets::{FailedTargets, FailedTargetsGauge};
use crate::dns::upstream::singleflight::{Call, Group};
use crate::dns::upstream::stale_cache::{STALE_TTL, StaleCache, StaleCaches, StaleEntry};
use crate::model::excerpt::examples;
use crate::model::hostname::to_presentation;
use crate::model::service_key::ServiceKey;
use crate::model::target_policy::TargetPolicy;

/// How long a query waits for the look-ups of targets before the client gets a stale answer or an error: the client
/// response timer of RFC 8767 section 5. A CoreDNS that forwards to lb-linker gives up after 2 s.
pub(super) const CLIENT_TIMEOUT: Duration = Duration::from_millis(1800);

/// The resolvers by group of servers. Groups don't share one, because each has its own server blocks, perhaps for its
/// own clients.
#[derive(Debug)]
pub(super) struct TargetResolvers {
    resolvers: DashMap<String, Arc<TargetResolver>>,
    stale_caches: StaleCaches,
    /// The name of the view of the block, whose look-ups reach no other view.
    view: Option<Arc<str>>,
    failing: Arc<FailedTargets>,
    policy: Arc<TargetPolicy>,
}

/// The look-ups in flight and the last known answers in one group of servers.
#[derive(Debug)]
pub(super) struct TargetResolver {
    look_ups: Group<TargetRoute, (IpAddr, LookupResult)>,
    stale_cache: Arc<StaleCache>,
    failing: Arc<FailedTargets>,
    policy: Arc<TargetPolicy>,
}

/// The singleflight key. With an address, the look-up is for this client alone.
type TargetRoute = (QueryKey, Option<IpAddr>);

/// The reply of a server block; `None` if the query was dropped.
type LookupResult = Option<Arc<Reply>>;

#[derive(Clone, Debug)]
pub(super) struct Resolved {
    pub(super) reply: Arc<Reply>,
    /// Whether the reply is the last known answer, because the look-up has failed or isn't complete in time.
    pub(super) stale: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct ResolveOptions<'a> {
    /// The link that has the target.
    pub(super) link: Option<&'a ServiceKey>,
    /// The latest time at which the client gets an answer or an error.
    pub(super) deadline: Instant,
    /// The maximum age of a cached negative answer.
    pub(super) max_negative_age: Duration,
    /// Whether a cached answer is acceptable.
    pub(super) accepts_cached: bool,
}

impl TargetResolvers {
    pub(super) fn new(
        stale_caches: StaleCaches,
        view: Option<Arc<str>>,
        targets_failing: &FailedTargetsGauge,
        policy: Arc<TargetPolicy>,
    ) -> Self {
        let failing = targets_failing.new_set();
        Self { resolvers: DashMap::new(), stale_caches, view, failing, policy }
    }

    pub(super) fn of(&self, server: &Server) -> Arc<TargetResolver> {
        if let Some(targets) = self.resolvers.get(&server.group) {
            return Arc::clone(&targets);
        }
        let (failing, policy) = (Arc::clone(&self.failing), Arc::clone(&self.policy));
        let view = self.view.as_ref().map(|view| format!(" {view}")).unwrap_or_default();
        let of_view = format!("{}{view}", server.group);
        let stale_cache = Arc::clone(&*self.stale_caches.entry(of_view).or_default());
        let new = || Arc::new(TargetResolver { look_ups: Group::default(), stale_cache, failing, policy });
        Arc::clone(&self.resolvers.entry(server.group.clone()).or_insert_with(new))
    }

    /// Abandons the look-ups in flight for a name, and removes the name from the failing targets unless it is a target;
    /// `None` stands for all names.
    pub(super) fn forget(&self, name: Option<&[u8]>, is_target: impl FnOnce(&[u8]) -> bool) {
        for targets in &self.resolvers {
            targets.look_ups.forget(|(key, _)| name.is_none_or(|name| *key.name() == *name));
        }
        match name {
            Some(name) if self.failing.contains(name) && !is_target(name) => self.failing.forget(name),
            Some(_) => {}
            None => self.failing.forget_all(),
        }
    }
}

impl TargetResolver {
    /// Resolves a target for a request.
    ///
    /// # Errors
    /// Returns the extended DNS error for the client if the look-up fails, or isn't complete in time, and there is no
    /// stale answer. A look-up that isn't complete continues in the background.
    pub(super) async fn resolve(
        &self,
        request: &Request,
        query: &Query,
        wanted: ResolveOptions<'_>,
    ) -> Result<Resolved, Ede> {
        let question = UpstreamQuery { query: query.clone(), ..request.upstream_query() };
        let call = match self.start(request, &question, wanted, None) {
            LookupStart::Completed(result) => return self.choose_answer(&question, result),
            LookupStart::InFlight(call) => call,
        };
        let mut outcome = self.wait(&question, wanted, call).await;
        // If another client has exceeded its quota, the result doesn't apply to this client: start a look-up for this
        // client alone.
        if let Some(Some((begun_for, Some(reply)))) = &outcome
            && is_busy(reply)
            && *begun_for != request.quota_client()
        {
            outcome = match self.start(request, &question, wanted, Some(request.quota_client())) {
                LookupStart::Completed(result) => return self.choose_answer(&question, result),
                LookupStart::InFlight(call) => self.wait(&question, wanted, call).await,
            };
        }
        match outcome {
            Some(result) => self.choose_answer(&question, result.and_then(|(_, result)| result)),
            None => {
                self.stale_cache.set_failing(&question, true);
                self.stale_cache.get(&question).map(stale_reply).ok_or(Ede::NO_UPSTREAM)
            }
        }
    }

    /// Waits for a look-up until the deadline for this query; returns `None` if the look-up is still in flight.
    async fn wait(
        &self,
        question: &UpstreamQuery,
        wanted: ResolveOptions<'_>,
        call: Call<(IpAddr, LookupResult)>,
    ) -> Option<Option<(IpAddr, LookupResult)>> {
        let last = self.stale_cache.get(question);
        let until = match &last {
            // The previous look-up failed a moment ago: serve the stale answer at once unless this look-up has already ended.
            Some(StaleEntry { failing: true, .. }) => Instant::now(),
            // With a stale answer available, each client waits only for the rest of the look-up's time limit.
            Some(_) => wanted.deadline.min(Instant::now() + CLIENT_TIMEOUT.saturating_sub(call.age())),
            None => wanted.deadline,
        };
        if until <= Instant::now() {
            call.wait().now_or_never()
        } else {
            timeout_at(until, call.wait()).await.ok()
        }
    }

    /// Prefers the stale answer to an answer that doesn't resolve the target (RFC 8767 section 4).
    fn choose_answer(&self, question: &UpstreamQuery, result: LookupResult) -> Result<Resolved, Ede> {
        let stale_answer = || self.stale_cache.get(question).map(stale_reply);
        match result {
            Some(reply) if is_unresolved(&reply, question) => {
                let failed = reply.metadata.response_code == ResponseCode::ServFail || is_busy(&reply);
                let why = reply.ede.filter(|_| failed);
                match (stale_answer(), why) {
                    (Some(known), _) => Ok(known),
                    (None, Some(why)) => Err(why),
                    (None, None) => Ok(Resolved { reply, stale: false }),
                }
            }
            Some(reply) => Ok(Resolved { reply, stale: false }),
            None => stale_answer().ok_or(Ede::NO_UPSTREAM),
        }
    }

    /// Keeps, for upstream outages, an answer whose chain leads back to our zones. `outcome_recorder` doesn't store
    /// such an answer, because the answer has no records of the queried type.
    pub(super) fn remember(&self, request: &Request, query: &Query, reply: &Arc<Reply>) {
        let question = UpstreamQuery { query: query.clone(), ..request.upstream_query() };
        self.stale_cache.remember_back_to_zone(&question.key(), reply);
    }

    /// Resolves a target before a client queries it.
    pub(super) async fn prefetch(&self, link: &ServiceKey, request: &Request, max_negative_age: Duration) {
        let question = request.upstream_query();
        let wanted = ResolveOptions {
            link: Some(link),
            deadline: Instant::now() + CLIENT_TIMEOUT,
            max_negative_age,
            accepts_cached: true,
        };
        if let LookupStart::InFlight(call) = self.start(request, &question, wanted, None) {
            // If the prefetch fails, the next query of a client repeats the look-up.
            let _ = call.wait().await;
        }
    }

    /// Joins the look-up in flight, or starts a look-up, which is for one client alone if `only_for` is set. A look-up
    /// that completes at once needs no task.
    fn start(
        &self,
        request: &Request,
        question: &UpstreamQuery,
        wanted: ResolveOptions<'_>,
        only_for: Option<IpAddr>,
    ) -> LookupStart {
        let route = (question.key(), only_for);
        if let Some(call) = self.look_ups.in_flight(&route) {
            return LookupStart::InFlight(call);
        }
        let account = request.quota_client();
        let (mut outer_request, query) = (request.clone(), question.query.clone());
        // Other clients may share the look-up.
        outer_request.alias_look_up_tries = OnceLock::new();
        let purpose = Purpose::Target {
            max_negative_age: wanted.max_negative_age,
            may_use_cached: wanted.accepts_cached,
        };
        let mut future =
            async move { Server::look_up(&outer_request, query, purpose).await.map(Arc::new) }.boxed();
        let record_outcome = self.outcome_recorder(request, wanted.link, &route.0, question);
        if let Some(result) = (&mut future).now_or_never() {
            record_outcome(&result);
            return LookupStart::Completed(result);
        }
        let look_up = || Ok::<_, std::convert::Infallible>(future.map(move |result| (account, result)));
        match self.look_ups.join_or_start(&route, look_up, |(_, result)| record_outcome(result)) {
            Ok(call) => LookupStart::InFlight(call),
            Err(never) => match never {},
        }
    }

    /// Returns a callback that records the outcome of a look-up.
    fn outcome_recorder(
        &self,
        request: &Request,
        link: Option<&ServiceKey>,
        key: &QueryKey,
        question: &UpstreamQuery,
    ) -> impl FnOnce(&LookupResult) + Send + 'static {
        let (stale_cache, failing) = (Arc::clone(&self.stale_cache), Arc::clone(&self.failing));
        let (link, key, question) = (link.cloned(), key.clone(), question.clone());
        let (server, policy) = (Arc::clone(&request.server), Arc::clone(&self.policy));
        move |result| {
            let good = result.as_deref().is_some_and(replaces_stale);
            // Only an uncached answer within the quota shows the present state of the upstreams.
            if result.as_deref().is_none_or(|reply| reply.age.is_zero() && !is_busy(reply)) {
                stale_cache.set_failing(&question, !good);
                let link = link.as_ref();
                match result.as_deref() {
                    Some(reply) if good && !is_absent(reply, &question, &server) => {
                        match denial(reply, &question, &policy, &server) {
                            Some(why) if !has_other_family(&stale_cache, &question, &policy, &server) => {
                                failing.mark_denied(link, &key, &question, &why);
                            }
                            denied => {
                                failing.mark_resolved(&key, &question);
                                if denied.is_none() && has_address(reply, &question) {
                                    failing.mark_reachable(&question);
                                }
                            }
                        }
                    }
                    Some(reply) => failing.mark_failed(link, &key, &question, failure_reason(reply)),
                    None => failing.mark_failed(link, &key, &question, Ede::NO_UPSTREAM.text),
                }
            }
            let Some(reply) = result else { return };
            if reply.metadata.response_code == ResponseCode::NXDomain {
                stale_cache.forget(&question);
            } else if good && let Some(positive) = cacheable_as_positive(reply, &question) {
                stale_cache.remember(&key, reply, positive);
            }
        }
    }
}

/// The state of a look-up after its start.
enum LookupStart {
    Completed(LookupResult),
    InFlight(Call<(IpAddr, LookupResult)>),
}

fn stale_reply(last: StaleEntry) -> Resolved {
    let mut reply = (*last.reply).clone();
    // With age 0 the caller doesn't ask for a newer answer: there is none.
    reply.age = Duration::ZERO;
    for record in reply.records.all_mut().into_iter().flatten() {
        record.ttl = STALE_TTL;
    }
    Resolved { reply: Arc::new(reply), stale: true }
}

/// Returns the reason of a failed look-up for the log.
fn failure_reason(reply: &Reply) -> String {
    match (reply.ede, reply.metadata.response_code) {
        _ if reply.metadata.truncation => Ede::TRUNCATED.text.to_owned(),
        (Some(ede), ResponseCode::ServFail | ResponseCode::Refused) => ede.text.to_owned(),
        // An empty plugin name means that a plugin failed, or that no block answered.
        (_, rcode) if reply.plugin.is_empty() => format!("its look-up ends with {}", rcode_text(rcode)),
        (_, rcode) => format!("the upstream answers {}", rcode_text(rcode)),
    }
}

/// Returns the outcome of a check for an answer that can't be followed.
pub(super) fn unresolved(answer: &Reply) -> TargetOutcome {
    let rcode = answer.metadata.response_code;
    match rcode {
        _ if is_busy(answer) || matches!(answer.ede, Some(Ede::NOT_READY | Ede::SOURCE_NOT_READY)) => {
            TargetOutcome::Inconclusive(answer.ede.map_or("", |ede| ede.text).to_owned())
        }
        // RFC 6672 section 2.2: a DNAME makes the name too long.
        ResponseCode::YXDomain => TargetOutcome::Failed(rcode_text(rcode).into_owned()),
        ResponseCode::NoError => {
            TargetOutcome::NoAnswer("the answer is a referral, truncated, or a CNAME loop".to_owned())
        }
        _ => TargetOutcome::NoAnswer(rcode_text(rcode).into_owned()),
    }
}

/// Returns the outcome of a check if all addresses at the end of a chain are denied.
pub(super) fn only_denied(addresses: &[IpAddr]) -> TargetOutcome {
    let denied: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    TargetOutcome::Failed(format!("only denied addresses: {}", denied.join(", ")))
}

/// Returns why the policy leaves nothing of an answer for any client; `None` if it leaves something.
fn denial(reply: &Reply, question: &UpstreamQuery, policy: &TargetPolicy, server: &Server) -> Option<String> {
    let mut denied = None;
    let step = |name: &Name| match policy.check_name(name) {
        // The store answers for these, not the upstream.
        Ok(()) if server.is_link_name(name) => ChainStep::LinkZone,
        Ok(()) => ChainStep::InAnswer,
        Err(why) => {
            denied = Some(format!("leads to {}: {why}", to_presentation(name)));
            ChainStep::Denied
        }
    };
    let chain = follow(reply, question.query.name(), question.query.query_type(), 0, step);
    let addresses: BTreeSet<IpAddr> =
        chain.answers.iter().filter_map(|record| record.data.ip_addr()).collect();
    let denials: Vec<_> = addresses.iter().filter_map(|ip| policy.check_address(*ip).err()).collect();
    let first = denials.first().filter(|_| denials.len() == addresses.len());
    denied
        .or_else(|| first.map(|why| format!("only denied addresses: {}: {why}", examples(addresses.iter()))))
}

/// Returns whether the last answer for the other address family has an allowed address: clients reach the target then.
fn has_other_family(
    stale_cache: &StaleCache,
    question: &UpstreamQuery,
    policy: &TargetPolicy,
    server: &Server,
) -> bool {
    let other = match question.query.query_type() {
        RecordType::A => RecordType::AAAA,
        RecordType::AAAA => RecordType::A,
        _ => return false,
    };
    let mut question = question.clone();
    question.query.set_query_type(other);
    let known = stale_cache.get(&question);
    known.is_some_and(|known| {
        has_address(&known.reply, &question) && denial(&known.reply, &question, policy, server).is_none()
    })
}

/// Returns whether our own limits refused the query.
pub(super) fn is_busy(reply: &Reply) -> bool {
    matches!(reply.ede, Some(Ede::BUSY | Ede::NO_SOCKET))
}

/// Returns whether an answer may replace a stale answer (RFC 8767 section 4).
fn replaces_stale(reply: &Reply) -> bool {
    let metadata = &reply.metadata;
    matches!(metadata.response_code, ResponseCode::NoError | ResponseCode::NXDomain)
        && !(metadata.truncation && reply.records.answers.is_empty())
}

fn has_address(reply: &Reply, question: &UpstreamQuery) -> bool {
    chain_of(reply, question).answers.iter().any(|record| record.data.ip_addr().is_some())
}

/// Returns whether an upstream answers that the name at the end of the chain doesn't exist. It doesn't know the names in
/// our own zones.
fn is_absent(reply: &Reply, question: &UpstreamQuery, server: &Server) -> bool {
    let step = |name: &Name| match server.is_link_name(name) {
        true => ChainStep::LinkZone,
        false => ChainStep::InAnswer,
    };
    let end = || follow(reply, question.query.name(), question.query.query_type(), 0, step).end;
    reply.metadata.response_code == ResponseCode::NXDomain && end() == ChainEnd::Final(ResponseCode::NXDomain)
}

/// Follows the chain to its end, also through our own zones and denied names.
fn chain_of(reply: &Reply, question: &UpstreamQuery) -> CnameChain {
    follow(reply, question.query.name(), question.query.query_type(), 0, |_| ChainStep::InAnswer)
}

fn is_unresolved(reply: &Reply, question: &UpstreamQuery) -> bool {
    chain_of(reply, question).end == ChainEnd::Unresolved
}

/// Returns `true` for an answer with data, `false` for NODATA with an SOA record; `None` for answers that can't be
/// cached. NXDOMAIN is never cached.
fn cacheable_as_positive(reply: &Reply, question: &UpstreamQuery) -> Option<bool> {
    let chain = chain_of(reply, question);
    let qtype = question.query.query_type();
    let wanted = |record: &Record| record.record_type() == qtype || qtype == RecordType::ANY;
    match chain.end {
        ChainEnd::Final(ResponseCode::NoError) if chain.answers.iter().any(wanted) => {
            (!reply.metadata.truncation).then_some(true)
        }
        ChainEnd::Final(ResponseCode::NoError) if !chain.authorities.is_empty() => Some(false),
        _ => None,
    }
}

pub(super) fn query_for(request: &Request, name: &Name) -> Query {
    let mut query = request.query.clone();
    query.set_name(name.clone());
    query
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::pin::pin;

    use tokio::sync::oneshot;

    use super::*;
    use crate::dns::plugins::tests::support::TestServer;

    #[tokio::test]
    async fn exceeded_quota_of_one_client_does_not_refuse_other_clients() {
        let context =
            TestServer::corefile(". {\ntemplate IN A {\nanswer \"{{ .Name }} 60 IN A 192.0.2.1\"\n}\n}\n");
        let gauge = FailedTargetsGauge::new(prometheus::IntGauge::new("failing", "-").unwrap());
        let targets = TargetResolvers::new(Arc::default(), None, &gauge, Arc::default()).of(&context.server);
        for (client, is_answered) in [("10.0.0.1", false), ("10.0.0.2", true)] {
            let request = context.clone().from(client).request("t.example. A");
            let mut refused = request.reply("forward");
            refused.metadata.response_code = ResponseCode::Refused;
            refused.ede = Some(Ede::NO_SOCKET);
            let (end, ended) = oneshot::channel::<()>();
            let busy = async move {
                let _ = ended.await;
                (IpAddr::from([10, 0, 0, 1]), Some(Arc::new(refused)))
            };
            let route = (request.upstream_query().key(), None);
            let Ok(begun) = targets.look_ups.join_or_start(&route, || Ok::<_, Infallible>(busy), |_| {});
            let wanted = ResolveOptions {
                link: None,
                deadline: Instant::now() + CLIENT_TIMEOUT,
                max_negative_age: Duration::from_secs(5),
                accepts_cached: true,
            };
            let mut joined = pin!(targets.resolve(&request, &request.query, wanted));
            assert!(futures::poll!(joined.as_mut()).is_pending(), "the query has joined the look-up");
            end.send(()).unwrap();
            begun.wait().await;
            let answers = joined.await.map(|known| known.reply.records.answers.len());
            assert_eq!(answers.ok(), is_answered.then_some(1), "{client}");
        }
    }
}
