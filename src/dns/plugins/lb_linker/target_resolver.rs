//! What is behind the targets of links: looked up through the server's own blocks, shared by all clients that ask at once,
//! and remembered for when no upstream answers.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use dashmap::DashMap;
use futures::FutureExt;
use hickory_proto::op::{Query, ResponseCode};
use hickory_proto::rr::{Name, Record, RecordType};
use prometheus::IntGauge;
use tokio::time::{Instant, timeout_at};

use crate::dns::chain::request::{Purpose, Request};
use crate::dns::chain::server::Server;
use crate::dns::message::ede::Ede;
use crate::dns::message::presentation::rcode_text;
use crate::dns::message::query::{QueryKey, UpstreamQuery};
use crate::dns::message::reply::Reply;
use crate::dns::plugins::lb_linker::chase::{ChainEnd, ChainStep, CnameChain, follow};
use crate::dns::plugins::lb_linker::failed_targets::FailedTargets;
use crate::dns::upstream::singleflight::{Call, Group};
use crate::dns::upstream::stale_cache::{STALE_TTL, StaleCache, StaleCaches, StaleEntry};

/// How long the client of a name of ours waits for what is behind it, and a look-up has while there is an older
/// answer to give (RFC 8767 section 5): a CoreDNS in front gives up at 2 s.
pub(super) const CLIENT_TIMEOUT: Duration = Duration::from_millis(1800);

/// What is known of targets, by the view of the server that was asked: another one has other blocks answer, and
/// may be for other clients.
#[derive(Debug)]
pub(super) struct TargetResolvers {
    targets: DashMap<String, Arc<TargetResolver>>,
    stale_caches: StaleCaches,
    failing: Arc<FailedTargets>,
}

/// The targets that are looked up, and what is known of them.
#[derive(Debug)]
pub(super) struct TargetResolver {
    flights: Group<TargetRoute, (IpAddr, LookupResult)>,
    memory: Arc<StaleCache>,
    failing: Arc<FailedTargets>,
}

/// What makes two look-ups one. A look-up with a client is for that client alone.
type TargetRoute = (QueryKey, Option<IpAddr>);

/// What a server's own block answers; nothing where it is silent.
type LookupResult = Option<Arc<Reply>>;

/// What is known of a target.
#[derive(Clone, Debug)]
pub(super) struct Resolved {
    /// The answer.
    pub(super) reply: Arc<Reply>,
    /// Whether it is the last known answer, because no upstream answers now.
    pub(super) stale: bool,
}

/// A look-up: what is asked, and what its asker is content with.
#[derive(Clone, Copy, Debug)]
pub(super) struct ResolveOptions {
    /// When the client doesn't wait any more.
    pub(super) until: Instant,
    /// How old absence may be.
    pub(super) absence: Duration,
    /// Whether anything cached will do.
    pub(super) cached: bool,
}

impl TargetResolvers {
    pub(super) fn new(stale_caches: StaleCaches, targets_failing: IntGauge) -> Self {
        let failing = Arc::new(FailedTargets::new(targets_failing));
        Self { targets: DashMap::new(), stale_caches, failing }
    }

    /// Returns what is known at a server.
    pub(super) fn of(&self, server: &Server) -> Arc<TargetResolver> {
        if let Some(targets) = self.targets.get(&server.view) {
            return Arc::clone(&targets);
        }
        let failing = Arc::clone(&self.failing);
        let memory = Arc::clone(&self.stale_caches.entry(server.view.clone()).or_default());
        let new = || Arc::new(TargetResolver { flights: Group::default(), memory, failing });
        Arc::clone(&self.targets.entry(server.view.clone()).or_insert_with(new))
    }

    /// Forgets what is being looked up about a name, or about all.
    pub(super) fn forget(&self, name: Option<&[u8]>) {
        for targets in &self.targets {
            targets.flights.forget(|(key, _)| name.is_none_or(|name| *key.name() == *name));
        }
        match name {
            Some(name) => self.failing.forget(name),
            None => self.failing.forget_all(),
        }
    }
}

impl TargetResolver {
    /// Looks a target up for a request.
    ///
    /// # Errors
    /// If there is no answer in time, nor one that is remembered: with the reason for the client. The look-up
    /// goes on.
    pub(super) async fn resolve(
        &self,
        request: &Request,
        query: &Query,
        wanted: ResolveOptions,
    ) -> Result<Resolved, Ede> {
        let question = UpstreamQuery { query: query.clone(), ..request.question() };
        let flight = match self.start(request, &question, wanted, None) {
            Started::Landed(landing) => return self.judge(&question, landing),
            Started::Flying(flight) => flight,
        };
        let mut landed = self.wait(&question, wanted, flight).await;
        // That another client has reached its bound says nothing about this one.
        if let Some(Some((begun_for, Some(reply)))) = &landed
            && is_busy(reply)
            && *begun_for != request.account()
        {
            landed = match self.start(request, &question, wanted, Some(request.account())) {
                Started::Landed(landing) => return self.judge(&question, landing),
                Started::Flying(flight) => self.wait(&question, wanted, flight).await,
            };
        }
        match landed {
            Some(landing) => self.judge(&question, landing.and_then(|(_, landing)| landing)),
            None => {
                self.memory.set_failing(&question, true);
                self.memory.get(&question).map(given).ok_or(Ede::NO_UPSTREAM)
            }
        }
    }

    /// Waits for a look-up as long as it is worth it; nothing if it hasn't ended by then.
    async fn wait(
        &self,
        question: &UpstreamQuery,
        wanted: ResolveOptions,
        flight: Call<(IpAddr, LookupResult)>,
    ) -> Option<Option<(IpAddr, LookupResult)>> {
        let last = self.memory.get(question);
        let until = match &last {
            // The look-up before has failed: this one has to prove that it is better.
            Some(StaleEntry { failing: true, .. }) => Instant::now(),
            // With a stale answer at hand no client waits again.
            Some(_) => wanted.until.min(Instant::now() + CLIENT_TIMEOUT.saturating_sub(flight.age())),
            None => wanted.until,
        };
        if until <= Instant::now() {
            flight.landed().now_or_never()
        } else {
            timeout_at(until, flight.landed()).await.ok()
        }
    }

    /// An answer that is none counts less than what was known before (RFC 8767 section 4).
    fn judge(&self, question: &UpstreamQuery, landing: LookupResult) -> Result<Resolved, Ede> {
        let remembered = || self.memory.get(question).map(given);
        match landing {
            Some(reply) if is_lame(&reply, question) => {
                let failed = reply.metadata.response_code == ResponseCode::ServFail || is_busy(&reply);
                let why = reply.ede.filter(|_| failed);
                match (remembered(), why) {
                    (Some(known), _) => Ok(known),
                    (None, Some(why)) => Err(why),
                    (None, None) => Ok(Resolved { reply, stale: false }),
                }
            }
            Some(reply) => Ok(Resolved { reply, stale: false }),
            None => remembered().ok_or(Ede::NO_UPSTREAM),
        }
    }

    /// Takes in that the answer to a question leads back to a name of ours: by itself it may look like none.
    pub(super) fn keep(&self, request: &Request, query: &Query, reply: &Arc<Reply>) {
        let question = UpstreamQuery { query: query.clone(), ..request.question() };
        self.memory.keep(&question.key(), reply);
    }

    /// Looks up a target before a client asks for it.
    pub(super) async fn look_ahead(&self, request: &Request, absence: Duration) {
        let question = request.question();
        let wanted = ResolveOptions { until: Instant::now() + CLIENT_TIMEOUT, absence, cached: true };
        if let Started::Flying(flight) = self.start(request, &question, wanted, None) {
            // The result is cached, or a client will ask again.
            let _ = flight.landed().await;
        }
    }

    /// Joins the look-up that is under way, or begins one; one for a client alone if `only_for` is that client. What is
    /// known here and now needs no task.
    fn start(
        &self,
        request: &Request,
        question: &UpstreamQuery,
        wanted: ResolveOptions,
        only_for: Option<IpAddr>,
    ) -> Started {
        let route = (question.key(), only_for);
        if let Some(flight) = self.flights.under_way(&route) {
            return Started::Flying(flight);
        }
        let account = request.account();
        let (asked, query) = (request.clone(), question.query.clone());
        let purpose = Purpose::Target { absence: wanted.absence, cached: wanted.cached };
        let mut looking = async move { Server::look_up(&asked, query, purpose).await.map(Arc::new) }.boxed();
        let news = self.news(&route.0, question);
        if let Some(landing) = (&mut looking).now_or_never() {
            news(&landing);
            return Started::Landed(landing);
        }
        let look_up = || Ok::<_, std::convert::Infallible>(looking.map(move |landing| (account, landing)));
        match self.flights.join_or_start(&route, look_up, |(_, landing)| news(landing)) {
            Ok(flight) => Started::Flying(flight),
            Err(never) => match never {},
        }
    }

    /// Returns what takes in how a look-up has ended.
    fn news(&self, key: &QueryKey, question: &UpstreamQuery) -> impl FnOnce(&LookupResult) + Send + 'static {
        let (memory, failing) = (Arc::clone(&self.memory), Arc::clone(&self.failing));
        let (key, question) = (key.clone(), question.clone());
        move |landing| {
            let good = landing.as_deref().is_some_and(is_news);
            // A cached answer says nothing about the upstreams now, nor does our own bound.
            if landing.as_deref().is_none_or(|reply| reply.age.is_zero() && !is_busy(reply)) {
                memory.set_failing(&question, !good);
                match landing.as_deref() {
                    Some(_) if good => failing.mark_resolved(&key, &question),
                    Some(reply) => failing.mark_failed(&key, &question, why(reply)),
                    None => failing.mark_failed(&key, &question, Ede::NO_UPSTREAM.text),
                }
            }
            let Some(reply) = landing else { return };
            if reply.metadata.response_code == ResponseCode::NXDomain {
                memory.forget(&question);
            } else if good && let Some(positive) = worth(reply, &question) {
                memory.remember(&key, reply, positive);
            }
        }
    }
}

/// How a look-up has begun.
enum Started {
    /// It has an answer already.
    Landed(LookupResult),
    /// It is under way.
    Flying(Call<(IpAddr, LookupResult)>),
}

fn given(last: StaleEntry) -> Resolved {
    let mut reply = (*last.reply).clone();
    // There is no newer one.
    reply.age = Duration::ZERO;
    for record in reply.sections_mut().into_iter().flatten() {
        record.ttl = STALE_TTL;
    }
    Resolved { reply: Arc::new(reply), stale: true }
}

/// Returns why a look-up has failed, for people.
fn why(reply: &Reply) -> String {
    match (reply.ede, reply.metadata.response_code) {
        (Some(ede), ResponseCode::ServFail | ResponseCode::Refused) => ede.text.to_owned(),
        // A plugin's failure, or no block that answers.
        (_, rcode) if reply.plugin.is_empty() => format!("its look-up ends with {}", rcode_text(rcode)),
        (_, rcode) => format!("the upstream answers {}", rcode_text(rcode)),
    }
}

/// Whether it is our own bound that has refused it.
fn is_busy(reply: &Reply) -> bool {
    matches!(reply.ede, Some(Ede::BUSY | Ede::NO_SOCKET))
}

/// Whether an answer says what there is now (RFC 8767 section 4).
fn is_news(reply: &Reply) -> bool {
    let metadata = &reply.metadata;
    matches!(metadata.response_code, ResponseCode::NoError | ResponseCode::NXDomain)
        && !(metadata.truncation && reply.answers.is_empty())
}

/// Follows an answer to its end, wherever that is.
fn followed(reply: &Reply, question: &UpstreamQuery) -> CnameChain {
    follow(reply, question.query.name(), question.query.query_type(), 0, |_| ChainStep::Upstream)
}

fn is_lame(reply: &Reply, question: &UpstreamQuery) -> bool {
    followed(reply, question).end == ChainEnd::Unresolved
}

/// Returns whether an answer has what was asked for, or says that there is none; `None` if neither.
fn worth(reply: &Reply, question: &UpstreamQuery) -> Option<bool> {
    let followed = followed(reply, question);
    let qtype = question.query.query_type();
    let wanted = |record: &Record| record.record_type() == qtype || qtype == RecordType::ANY;
    match followed.end {
        ChainEnd::Final(ResponseCode::NoError) if followed.answers.iter().any(wanted) => {
            (!reply.metadata.truncation).then_some(true)
        }
        ChainEnd::Final(ResponseCode::NoError) if !followed.authorities.is_empty() => Some(false),
        _ => None,
    }
}

/// A question for a name, as a request has it.
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
    use crate::dns::plugins::tests::support::TestSite;

    #[tokio::test]
    async fn bound_that_one_client_reached_isnt_that_of_another() {
        let context =
            TestSite::corefile(". {\ntemplate IN A {\nanswer \"{{ .Name }} 60 IN A 192.0.2.1\"\n}\n}\n");
        let targets =
            TargetResolvers::new(Arc::default(), IntGauge::new("failing", "-").unwrap()).of(&context.server);
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
            let route = (request.question().key(), None);
            let Ok(begun) = targets.flights.join_or_start(&route, || Ok::<_, Infallible>(busy), |_| {});
            let wanted = ResolveOptions {
                until: Instant::now() + CLIENT_TIMEOUT,
                absence: Duration::from_secs(5),
                cached: true,
            };
            let mut joined = pin!(targets.resolve(&request, &request.query, wanted));
            assert!(futures::poll!(joined.as_mut()).is_pending(), "it has joined the look-up");
            end.send(()).unwrap();
            begun.landed().await;
            let answers = joined.await.map(|known| known.reply.answers.len());
            assert_eq!(answers.ok(), is_answered.then_some(1), "{client}");
        }
    }
}
