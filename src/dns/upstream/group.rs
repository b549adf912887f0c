//! The client of the upstreams that a directive of the plugin `forward` names: sends a query to them, and returns the
//! first good answer.

use std::future::poll_fn;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use arc_swap::ArcSwap;
use futures::FutureExt;
use hickory_proto::op::ResponseCode;
use smallvec::SmallVec;
use tokio::time::Instant;

use crate::dns::chain::query_limiter::QueryLimiter;
use crate::dns::chain::request::CHECK_ADDRESS;
use crate::dns::chain::target_check::{TargetCheck, Wait};
use crate::dns::message::query::QueryKey;
use crate::dns::message::validity::Section;
use crate::dns::message::wire::WireMessage;
use crate::dns::net::late_timer::LateTimer;
use crate::dns::transport::client_quota::{ClientQuota, QuotaGuard};
use crate::dns::upstream::attempts::{AttemptSchedule, InFlight, SILENT_AFTER};
use crate::dns::upstream::config::ForwardOptions;
use crate::dns::upstream::endpoint::UpstreamEndpoint;
use crate::dns::upstream::error::ForwardError;
use crate::dns::upstream::exchange::{Attempt, ExchangeRecord, ExchangeTimes, is_about_the_name};
use crate::dns::upstream::health::Upstream;
use crate::dns::upstream::lookup_origin::LookupOrigin;
use crate::dns::upstream::metrics::LookupLimit;
use crate::dns::upstream::policy::SelectionPolicy;
use crate::dns::upstream::refusals::RefusedLookups;
use crate::dns::upstream::small_future_set::SmallFutureSet;

/// How long upstreams are tried for one query, as in CoreDNS. The caller may give up earlier.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub struct UpstreamGroup {
    /// Changes when names of upstreams are resolved.
    upstreams: ArcSwap<Vec<Arc<Upstream>>>,
    pub(crate) options: ForwardOptions,
    round_robin: AtomicUsize,
    /// Look-ups for clients' queries. Look-ups of targets have a separate limit, so that a flood of queries doesn't
    /// affect them.
    client_quota: Arc<ClientQuota>,
    target_quota: Arc<ClientQuota>,
    /// For look-ups of targets with rare types: a tenth of the limit, because one client can query every rare type.
    rare_type_quota: Arc<ClientQuota>,
    refusals: RefusedLookups,
}

/// Upstreams in the order in which they are queried.
type UpstreamOrder = SmallVec<[Arc<Upstream>; 2]>;

impl UpstreamGroup {
    #[must_use]
    pub fn new(endpoints: Vec<UpstreamEndpoint>, options: ForwardOptions) -> Self {
        // By TCP each look-up needs a socket: with a limit above the number of sockets, one client could use all of them.
        let chases = options.max_concurrent.min(options.sockets.target_limit());
        let forward = Self {
            upstreams: ArcSwap::default(),
            round_robin: AtomicUsize::new(0),
            client_quota: ClientQuota::new(options.max_concurrent),
            target_quota: ClientQuota::new(chases),
            rare_type_quota: ClientQuota::new(chases.div_ceil(10)),
            refusals: RefusedLookups::default(),
            options,
        };
        forward.set(endpoints);
        forward
    }

    /// Replaces the upstreams. Upstreams that stay keep their connections.
    pub(crate) fn set(&self, endpoints: Vec<UpstreamEndpoint>) {
        let known = self.upstreams.load();
        let upstream = |endpoint: UpstreamEndpoint| {
            let same = known.iter().find(|known| known.endpoint.address == endpoint.address);
            same.map_or_else(|| Arc::new(Upstream::new(endpoint, &self.options)), Arc::clone)
        };
        self.upstreams.store(Arc::new(endpoints.into_iter().map(upstream).collect()));
    }

    /// Reserves a look-up, which uses the client's quota until the guard is dropped. `common` is whether the query is
    /// for addresses or HTTPS records.
    ///
    /// # Errors
    /// `ForwardError::Busy` if the client may not have another look-up.
    pub fn admit(
        &self,
        origin: LookupOrigin,
        common: bool,
        client: IpAddr,
    ) -> Result<QuotaGuard, ForwardError> {
        let places = match (origin, common) {
            (LookupOrigin::Forward | LookupOrigin::ForwardByTcp, _) => &self.client_quota,
            (LookupOrigin::Target, true) => &self.target_quota,
            (LookupOrigin::Target, false) => &self.rare_type_quota,
        };
        places.acquire(client, 1).ok_or_else(|| {
            let own = places.held_by(client);
            let error = ForwardError::Busy { maximum: places.limit(), own };
            if client != CHECK_ADDRESS {
                let bound = if own > 0 { LookupLimit::Client } else { LookupLimit::All };
                self.options.metrics.iter().for_each(|metrics| {
                    metrics.rejects.inc();
                    metrics.refused(bound);
                });
                self.refusals.note(origin, client, &error);
            }
            error
        })
    }

    /// Sends the query to one upstream, and to another one as soon as an upstream has failed or is silent for half a
    /// second, within the rate of the look-up. The sockets use the quota of `client`. Returns, for a client's query, the
    /// first answer with an rcode that isn't in `failover`, or else the last answer; for a target, the first answer with
    /// NOERROR, NXDOMAIN or YXDOMAIN, or else the most informative one. A truncated answer without answer records counts
    /// only if no other upstream answers.
    ///
    /// # Errors
    /// If no upstream has answered in time, no upstream can be asked, or no socket is free.
    pub async fn ask(
        &self,
        question: &QueryKey,
        origin: LookupOrigin,
        client: IpAddr,
        limiter: &QueryLimiter,
    ) -> Result<Arc<WireMessage>, ForwardError> {
        let (upstreams, attempts) = self.order()?;
        let quota = &self.options.sockets.quota_for(origin, client);
        let by_tcp = origin == LookupOrigin::ForwardByTcp && !self.options.prefer_udp;
        let begun = Instant::now();
        let deadline = begun + LOOKUP_TIMEOUT.max(self.options.read_timeout);
        let mut schedule = AttemptSchedule::new(upstreams, attempts, begun);
        let mut tries = SmallFutureSet::new();
        // When the first attempt is due, unless `read_timeout` is shorter.
        let mut timer = LateTimer::new(begun, begun + SILENT_AFTER);
        let mut fallback: Option<Arc<WireMessage>> = None;
        // The clock is read only after waiting, because reading it takes time.
        let mut now = begun;
        loop {
            let next = schedule.next().filter(|_| now.duration_since(begun) < LOOKUP_TIMEOUT);
            if next.is_none() && !schedule.is_waiting() {
                return fallback.ok_or_else(|| self.failed(&schedule, origin, client));
            }
            if let Some(next) = next.filter(|next| next.at <= now) {
                let InFlight { number, upstream, progress, .. } = schedule.record_start(next, now);
                let (number, upstream, progress) = (*number, Arc::clone(upstream), Arc::clone(progress));
                let times = ExchangeTimes { begun: now, deadline };
                // Created inside the block: a future that is moved into a future that awaits it occupies its space
                // twice.
                tries.push(async move {
                    let (upstream, progress) = (&upstream, &progress);
                    let attempt = Attempt { upstream, question, by_tcp, times, progress, quota, limiter };
                    let mut record = ExchangeRecord::of(&attempt);
                    let ended = attempt.exchange().await;
                    limiter.set_upstream(upstream.endpoint.address);
                    if let (Some(record), (_, Ok(answer))) = (&mut record, &ended) {
                        record.answer = Some(Arc::clone(answer));
                    }
                    (number, ended)
                });
                continue;
            }
            tokio::select! {
                biased;
                Some((number, (ended, outcome))) = tries.next() => {
                    now = ended;
                    match schedule.record_outcome(number, outcome, now) {
                        Some(answer) if self.is_final(&answer, origin) => return Ok(answer),
                        Some(answer) if is_better(&answer, fallback.as_deref(), origin) => fallback = Some(answer),
                        _ => {}
                    }
                }
                // Evaluated after each poll of the attempts, because their deadlines may have changed.
                () = poll_fn(|context| {
                    let late_at = schedule.due().unwrap_or(deadline);
                    let due = next.map_or(late_at, |next| next.at.min(late_at));
                    if timer.deadline() != due {
                        timer = LateTimer::new(Instant::now(), due);
                    }
                    timer.poll_unpin(context)
                }) => {
                    now = Instant::now();
                    schedule.give_up_on_late(now);
                }
            }
        }
    }

    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        self.upstreams.load().iter().map(|upstream| upstream.endpoint.address).collect()
    }

    pub(crate) fn find(&self, address: SocketAddr) -> Option<Arc<Upstream>> {
        self.upstreams.load().iter().find(|upstream| upstream.endpoint.address == address).cloned()
    }

    /// Sends the query of a check to one upstream, even if the upstream is down. First waits for a permit of the
    /// upstream's `target_checks`.
    ///
    /// # Errors
    /// If there is no answer: [`ForwardError::Late`] if the upstream is silent until the deadline.
    pub(crate) async fn ask_one(
        &self,
        upstream: Arc<Upstream>,
        question: &QueryKey,
        check: &TargetCheck,
        limiter: &QueryLimiter,
    ) -> Result<Arc<WireMessage>, ForwardError> {
        let permits = Arc::clone(&upstream.target_checks);
        // The semaphore is never closed.
        let _permit = check.wait_for(Wait::Turn, permits.acquire()).await;
        let quota = &self.options.sockets.quota_for(LookupOrigin::Target, CHECK_ADDRESS);
        let begun = Instant::now();
        let (upstream, progress) = (&upstream, &upstream.progress(begun));
        let times = ExchangeTimes { begun, deadline: check.deadline };
        let attempt = Attempt { upstream, question, by_tcp: false, times, progress, quota, limiter };
        let exchange = async {
            let mut exchange = pin!(attempt.exchange());
            if let Some(ended) = LateTimer::new(begun, begun + SILENT_AFTER).limit(&mut exchange).await {
                return ended;
            }
            upstream.start_health_checks();
            exchange.await
        };
        check.wait_for(Wait::Upstream, exchange).await.1.map_err(|error| {
            if error.is_shortage() {
                ForwardError::NoSocket
            } else if error.is_timeout() {
                ForwardError::Late
            } else {
                ForwardError::no_answer(error.reason())
            }
        })
    }

    fn failed(&self, schedule: &AttemptSchedule, origin: LookupOrigin, client: IpAddr) -> ForwardError {
        if !schedule.is_out_of_sockets() {
            return ForwardError::NoAnswer(schedule.error_text());
        }
        if client != CHECK_ADDRESS {
            self.options.metrics.iter().for_each(|metrics| metrics.refused(LookupLimit::Sockets));
            self.refusals.note(origin, client, &ForwardError::NoSocket);
        }
        ForwardError::NoSocket
    }

    /// Returns the upstreams in the order for one query, and the maximum number of failed attempts. Upstreams that are
    /// down are left out; if all are down, the health checks may be at fault, and the order is random.
    fn order(&self) -> Result<(UpstreamOrder, usize), ForwardError> {
        let all = self.upstreams.load();
        let mut up: UpstreamOrder = all.iter().filter(|upstream| !upstream.is_down()).cloned().collect();
        let attempts = match self.options.max_attempts {
            None => 2 * all.len(),
            Some(0) => usize::MAX,
            Some(attempts) => attempts,
        };
        if all.is_empty() {
            return Err(ForwardError::no_answer("the names of the upstreams aren't resolved yet"));
        }
        if !up.is_empty() {
            self.options.policy.order(&mut up, &self.round_robin);
            return Ok((up, attempts));
        }
        self.options.metrics.iter().for_each(|metrics| metrics.all_down.inc());
        if self.options.fail_fast {
            return Err(ForwardError::no_answer("no healthy proxies"));
        }
        up.extend(all.iter().cloned());
        SelectionPolicy::Random.order(&mut up, &self.round_robin);
        Ok((up, attempts.min(all.len())))
    }

    /// Returns whether no other upstream has to be queried.
    fn is_final(&self, answer: &WireMessage, origin: LookupOrigin) -> bool {
        match origin {
            LookupOrigin::Target => is_good(answer),
            _ => {
                !self.options.failover.contains(&answer.metadata.response_code) && !is_cut_to_nothing(answer)
            }
        }
    }
}

/// Returns whether an answer that isn't final replaces the previous answer.
fn is_better(answer: &WireMessage, before: Option<&WireMessage>, origin: LookupOrigin) -> bool {
    // As in CoreDNS, a client gets the last answer.
    origin != LookupOrigin::Target || rank(answer) > before.map_or(0, rank)
}

/// Returns whether an answer decides the look-up of a target, so that no other upstream has to be queried.
pub(crate) fn is_good(answer: &WireMessage) -> bool {
    rank(answer) > 2
}

/// Ranks an answer by its rcode: SERVFAIL is more informative about the name than other errors. Another server may have
/// a better answer than any error.
fn rank(answer: &WireMessage) -> u8 {
    match answer.metadata.response_code {
        rcode if is_about_the_name(rcode) && !is_cut_to_nothing(answer) => 3,
        rcode if is_about_the_name(rcode) || rcode == ResponseCode::ServFail => 2,
        _ => 1,
    }
}

/// Returns whether a truncated answer lacks all records of its answer section.
fn is_cut_to_nothing(answer: &WireMessage) -> bool {
    answer.metadata.truncation && answer.count(Section::Answer) == 0
}

#[cfg(test)]
mod tests {
    use crate::dns::chain::request::INTERNAL_ADDRESS;
    use crate::dns::upstream::endpoint::Transport;
    use hickory_proto::rr::{Name, RecordType};
    use tokio::net::UdpSocket;
    use tokio::time::sleep_until;

    use super::*;
    use crate::dns::message::query::UpstreamQuery;

    #[tokio::test(start_paused = true)]
    async fn next_upstream_is_queried_500_ms_after_a_silent_one() {
        let bind = async || UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let (silent, next) = (bind().await, bind().await);
        let endpoint = |of: &UdpSocket| UpstreamEndpoint {
            address: of.local_addr().unwrap(),
            transport: Transport::Udp,
        };
        let options = ForwardOptions { policy: SelectionPolicy::Sequential, ..ForwardOptions::default() };
        let forward = UpstreamGroup::new(vec![endpoint(&silent), endpoint(&next)], options);
        let question = UpstreamQuery::recursive(Name::from_ascii("a.example.").unwrap(), RecordType::A).key();
        let (mut message, begun, limiter) = ([0; 512], Instant::now(), QueryLimiter::default());
        tokio::select! {
            answer = forward.ask(&question, LookupOrigin::Forward, INTERNAL_ADDRESS, &limiter) => panic!("{answer:?}"),
            asked = next.recv(&mut message) => assert!(asked.is_ok()),
            () = sleep_until(begun + LOOKUP_TIMEOUT) => panic!("the second upstream got no query"),
        }
        let after = begun.elapsed();
        assert!((500..520).contains(&after.as_millis()), "{after:?}");
    }
}
