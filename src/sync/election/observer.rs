//! Looks at the Lease of another installation's leader, without taking part in its election: a process without an
//! election writes only while no other process leads by the Lease of its installation.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::leadership::Leadership;
use super::lease::Timing;
use super::{ElectionMetrics, KnownLeader, RequestFailure, ask, lease};
use crate::boot_clock::{self, BootInstant};
use crate::model::excerpt::value;
use crate::readiness::Readiness;
use crate::sync::election::term::unix_now;
use crate::sync::k8s::errors::ThrottledLog;
use crate::sync::task::supervisor::SyncError;

/// Time between two reads of a Lease whose state isn't known yet.
const FIRST_INTERVAL: Duration = Duration::from_secs(1);
/// The longest duration of a Lease that is waited for.
const MAX_WAIT: Duration = Duration::from_secs(60);
/// How much longer a Lease must be free after another process has led: its next leader comes first.
const HANDOVER: Duration = Duration::from_secs(30);

/// The Lease of the leader whose objects this process would write, too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignLease {
    pub namespace: String,
    pub name: String,
}

impl ForeignLease {
    /// Returns the note about another leader.
    fn note(&self, holder: &str) -> String {
        let Self { namespace, name } = self;
        format!(
            "{} leads by Lease {namespace}/{name}, and this process, which takes part in no election, would write the \
             same objects: it writes nothing meanwhile",
            value(holder)
        )
    }

    /// Returns the sentence about another leader.
    fn led_by(&self, holder: &str) -> String {
        let (Self { namespace, name }, note) = (self, self.note(holder));
        format!(
            "{note}; give --sync plan, or --leader-election lease --instance \
             {namespace}/{name} to take part, or an --instance NAME and a --target-namespace of its own, with other \
             load balancers than the leader's if there are StableNames (--watch-namespaces)"
        )
    }

    async fn get(&self, client: &Client) -> Result<Option<Lease>, RequestFailure> {
        let leases: Api<Lease> = Api::namespaced(client.clone(), &self.namespace);
        ask(leases.get_opt(&self.name)).await
    }

    fn explain(&self, failure: &RequestFailure) -> String {
        let hint = "the Role of deploy/ grants get on leases for the name lb-linker";
        failure.sentence(&format!("get Lease {}/{}", self.namespace, self.name), hint)
    }

    /// Returns a sentence about the holder of the Lease, if it renews the Lease.
    ///
    /// # Errors
    /// If the Lease can't be read, with the reason.
    pub async fn find_leader(&self, client: &Client) -> Result<Option<String>, String> {
        let mut observer = LeaseObserver::default();
        loop {
            let lease = self.get(client).await.map_err(|failure| self.explain(&failure))?;
            match observer.observe(lease.as_ref(), Instant::now()) {
                LeaseUse::Free => return Ok(None),
                LeaseUse::Led(holder) => return Ok(Some(self.led_by(&holder))),
                LeaseUse::Unknown => sleep(FIRST_INTERVAL).await,
            }
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum LeaseUse {
    /// The holder may have ended without releasing the Lease.
    Unknown,
    Free,
    /// This holder renews it, or did until a moment ago.
    Led(String),
}

/// What this process has seen of a Lease.
///
/// The clocks of this host and of the holder may differ. So a Lease has expired only if it isn't renewed for its duration
/// while it is observed, as for candidates; a Lease that its holder has released is known at once.
#[derive(Debug, Default)]
struct LeaseObserver {
    /// The Lease, and since when it hasn't changed.
    seen: Option<(Option<LeaseSpec>, Instant)>,
    leader: Option<String>,
    /// Since when the permission to read the Lease is refused.
    refused_since: Option<Instant>,
}

impl LeaseObserver {
    fn observe(&mut self, lease: Option<&Lease>, now: Instant) -> LeaseUse {
        self.refused_since = None;
        let holder = lease.and_then(lease::holder);
        let spec = lease.and_then(|lease| lease.spec.clone());
        let before = self.seen.take();
        let has_changed = before.as_ref().is_some_and(|(seen, _)| *seen != spec);
        let since = before.filter(|_| !has_changed).map_or(now, |(_, since)| since);
        self.seen = Some((spec, since));
        let lasts = match lease {
            // With leader-for-life the Lease is deleted with the Pod of its holder.
            Some(lease) if holder.is_some() => lease::duration(lease, Timing::DEFAULT.lease),
            _ => Some(Duration::ZERO),
        };
        if let Some(holder) = holder.filter(|_| has_changed || lasts.is_none()) {
            self.leader = Some(holder.to_owned());
        }
        let handover = self.leader.as_ref().map(|_| HANDOVER).unwrap_or_default();
        if lasts.is_some_and(|lasts| now.duration_since(since) >= lasts.min(MAX_WAIT) + handover) {
            self.leader = None;
            return LeaseUse::Free;
        }
        self.leader.clone().map_or(LeaseUse::Unknown, LeaseUse::Led)
    }

    /// Takes note of a request that failed, with 403 if `is_refused`. `holds`: whether this process may write.
    fn observe_failure(&mut self, is_refused: bool, holds: bool, now: Instant) -> LeaseUse {
        if !holds {
            // The leader couldn't renew the Lease in an outage either: it has the Lease's time after that.
            self.seen = None;
        }
        if !is_refused {
            self.refused_since = None;
            return LeaseUse::Unknown;
        }
        if let Some(leader) = &self.leader {
            return LeaseUse::Led(leader.clone());
        }
        // An API server that has just started refuses everything until it has read the roles.
        let since = *self.refused_since.get_or_insert(now);
        if now.duration_since(since) < Timing::DEFAULT.lease { LeaseUse::Unknown } else { LeaseUse::Free }
    }
}

/// Permits the writes of a process without an election while no other process leads by the Lease of its installation.
#[derive(Clone)]
pub struct WriteGuard {
    client: Client,
    lease: ForeignLease,
    leadership: Leadership,
    /// Whether the first round of requests has ended.
    settled: watch::Sender<bool>,
    metrics: Arc<ElectionMetrics>,
    known_leader: KnownLeader,
    readiness: Arc<Readiness>,
}

impl WriteGuard {
    #[must_use]
    pub fn new(
        client: Client,
        lease: ForeignLease,
        metrics: Arc<ElectionMetrics>,
        known_leader: KnownLeader,
        readiness: Arc<Readiness>,
    ) -> Self {
        let settled = watch::Sender::new(false);
        let leadership = Leadership::guarded(settled.subscribe());
        Self { client, lease, leadership, settled, metrics, known_leader, readiness }
    }

    /// Returns the handle that writers check before each write.
    #[must_use]
    pub fn leadership(&self) -> Leadership {
        self.leadership.clone()
    }

    /// Looks at the Lease until `stop` is cancelled.
    ///
    /// # Errors
    /// Never: failed requests are repeated.
    pub async fn run(self, stop: CancellationToken) -> Result<(), SyncError> {
        stop.run_until_cancelled(self.watch()).await;
        Ok(())
    }

    async fn watch(&self) {
        let (mut observer, mut logged) = (LeaseObserver::default(), Logged::default());
        loop {
            let sent = boot_clock::now();
            let answer = self.lease.get(&self.client).await;
            self.settled.send_replace(true);
            let (now, holds) = (Instant::now(), self.leadership.holds());
            let former = observer.leader.clone();
            let found = match &answer {
                Ok(lease) => observer.observe(lease.as_ref(), now),
                Err(failure) => observer.observe_failure(failure.code() == 403, holds, now),
            };
            match found {
                LeaseUse::Free => self.on_free(answer.as_ref().err(), sent, former.is_some(), &mut logged),
                LeaseUse::Led(holder) => {
                    self.leadership.revoke();
                    if former.as_ref() != Some(&holder) {
                        warn!("{}", self.lease.led_by(&holder));
                        self.readiness.other_leader.store(Some(Arc::new(self.lease.note(&holder))));
                    }
                }
                // The permission ends by the clock.
                LeaseUse::Unknown if holds => {}
                LeaseUse::Unknown => self.on_unknown(answer.as_ref().err(), &mut logged),
            }
            self.known_leader.0.lock().clone_from(&observer.leader);
            self.metrics.leader.set(i64::from(self.leadership.holds()));
            sleep(Timing::DEFAULT.retry).await;
        }
    }

    /// Permits writes. `led`: whether another process led until now.
    fn on_free(&self, failure: Option<&RequestFailure>, sent: BootInstant, led: bool, logged: &mut Logged) {
        let begun = self.leadership.grant(sent, unix_now());
        self.readiness.other_leader.store(None);
        let waited = std::mem::take(&mut logged.is_waiting);
        match failure {
            Some(failure) if !std::mem::replace(&mut logged.is_refused, true) => {
                let why = self.lease.explain(failure);
                warn!("{why}; a leader in the cluster may write the same objects, and isn't noticed");
            }
            Some(_) => {}
            None => {
                logged.is_refused = false;
                if let Some(term) = begun.filter(|_| led || waited) {
                    let ForeignLease { namespace, name } = &self.lease;
                    let ended = if led { " any more" } else { "" };
                    info!(
                        "no process leads by Lease {namespace}/{name}{ended}: this one writes in term {term}"
                    );
                }
            }
        }
    }

    /// Permits no writes: whether another process leads isn't known, and the last permission has ended.
    fn on_unknown(&self, failure: Option<&RequestFailure>, logged: &mut Logged) {
        let has_ended = self.leadership.revoke();
        logged.is_waiting |= has_ended;
        match failure {
            None if !std::mem::replace(&mut logged.is_waiting, true) => {
                let ForeignLease { namespace, name } = &self.lease;
                info!(
                    "waiting for Lease {namespace}/{name}: whether another process renews it shows within the duration \
                     of the Lease, 15 s by default; nothing is written before"
                );
            }
            // Watches and probes report an API server that can't be reached, or doesn't accept the credentials.
            Some(failure) if has_ended || !matches!(failure.code(), 0 | 401 | 403) => {
                let why = format!("{}; nothing is written meanwhile", self.lease.explain(failure));
                logged.errors.report(failure.code(), &why);
            }
            _ => {}
        }
    }
}

/// What the log says already.
#[derive(Default)]
struct Logged {
    /// The permission to read the Lease is refused.
    is_refused: bool,
    /// Writes wait until the use of the Lease is known.
    is_waiting: bool,
    errors: ThrottledLog,
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, OwnerReference};

    use super::*;

    fn lease(holder: &str, renewed: i64, lasts: Option<i32>) -> Lease {
        let spec = LeaseSpec {
            holder_identity: Some(holder.to_owned()),
            lease_duration_seconds: lasts,
            renew_time: Some(MicroTime(Timestamp::from_second(renewed).unwrap())),
            ..LeaseSpec::default()
        };
        Lease { spec: Some(spec), ..Lease::default() }
    }

    /// Returns what an observer says about a Lease that it sees at these seconds.
    fn observed(seen: &[(u64, Option<Lease>)]) -> Vec<String> {
        let (mut observer, start) = (LeaseObserver::default(), Instant::now());
        let observe = |(at, lease): &(u64, Option<Lease>)| match observer
            .observe(lease.as_ref(), start + Duration::from_secs(*at))
        {
            LeaseUse::Led(holder) => holder,
            other => format!("{other:?}"),
        };
        seen.iter().map(observe).collect()
    }

    #[test]
    fn lease_is_led_while_it_is_renewed_and_a_while_after() {
        let of = |holder, renewed| Some(lease(holder, renewed, Some(3)));
        let seen = [
            (0, None),
            (1, of("a", 1)),
            (2, of("b", 2)),
            (3, of("", 3)),
            (32, of("", 3)),
            (33, of("", 3)),
            (40, of("c", 40)),
            (72, of("c", 40)),
            (73, of("c", 40)),
        ];
        assert_eq!(observed(&seen), ["Free", "a", "b", "b", "b", "Free", "c", "c", "Free"]);
    }

    #[test]
    fn lease_at_the_start_may_be_that_of_a_dead_leader() {
        let of = |holder, renewed| Some(lease(holder, renewed, Some(3)));
        assert_eq!(
            observed(&[(0, of("a", 1)), (2, of("a", 1)), (3, of("a", 1))]),
            ["Unknown", "Unknown", "Free"]
        );
        assert_eq!(observed(&[(0, of("a", 1)), (2, of("a", 2))]), ["Unknown", "a"]);
        assert_eq!(observed(&[(0, of("", 1))]), ["Free"], "it was released");
        let mut for_life = lease("a", 1, None);
        let pod =
            OwnerReference { api_version: "v1".to_owned(), kind: "Pod".to_owned(), ..Default::default() };
        for_life.metadata.owner_references = Some(vec![pod]);
        assert_eq!(observed(&[(0, Some(for_life))]), ["a"]);
    }

    #[test]
    fn leader_has_time_to_renew_its_lease_after_an_outage() {
        let (mut observer, start) = (LeaseObserver::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        let renewed = |seconds| lease("a", seconds, Some(15));
        observer.observe(Some(&renewed(1)), at(0));
        let led = || LeaseUse::Led("a".to_owned());
        assert_eq!(observer.observe(Some(&renewed(2)), at(2)), led());
        assert_eq!(observer.observe_failure(false, false, at(4)), LeaseUse::Unknown);
        assert_eq!(observer.observe(Some(&renewed(2)), at(100)), led());
        // The permission to read the Lease is gone, and the leader isn't.
        assert_eq!(observer.observe_failure(true, false, at(102)), led());
        assert_eq!(observer.observe_failure(true, false, at(200)), led());
        observer.observe(Some(&renewed(2)), at(300));
        assert_eq!(observer.observe(Some(&renewed(2)), at(345)), LeaseUse::Free);
    }

    #[test]
    fn refusal_of_the_lease_counts_once_it_lasts() {
        let (mut observer, start) = (LeaseObserver::default(), Instant::now());
        let mut fails = |is_refused, seconds| {
            observer.observe_failure(is_refused, false, start + Duration::from_secs(seconds))
        };
        assert_eq!([fails(true, 0), fails(true, 14)], [LeaseUse::Unknown, LeaseUse::Unknown]);
        assert_eq!([fails(false, 15), fails(true, 16)], [LeaseUse::Unknown, LeaseUse::Unknown]);
        assert_eq!([fails(true, 30), fails(true, 31)], [LeaseUse::Unknown, LeaseUse::Free]);
    }
}
