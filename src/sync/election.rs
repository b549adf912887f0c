//! Leader election: one replica writes; the other replicas watch and answer DNS.
//!
//! `elector` makes the decisions and does no I/O. [`Election::run`] sends the requests to the API server. Each writer
//! checks a [`Leadership`] before it writes. Losing the lease stops the writes and nothing else.

mod elector;
mod fence;
mod leadership;
mod lease;
pub mod observer;
pub mod term;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1;
use kube::api::{ApiResource, DeleteParams, PostParams, Preconditions};
use kube::{Api, Client, ResourceExt};
use parking_lot::Mutex;
use prometheus::{IntGauge, Registry};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::k8s::errors::{
    ApiAvailability, ThrottledLog, WARN_OF_REFUSAL_AFTER, describe, is_unreachable, no_answer, retry_after,
};
use super::k8s::forbidden::LastingRefusal;
use super::k8s::labels::FIELD_MANAGER;
use super::task::backoff::Backoff;
use super::task::supervisor::SyncError;
use crate::boot_clock::{self, BootInstant, Clock};
use crate::metrics::{MetricGroup, registered};
use crate::readiness::{LeaderAbsence, Readiness};
use crate::sync::k8s::metrics::ApiMetrics;
use elector::{ElectionStep, Elector, LeaderEvent, Pod};
use fence::Fence;
use leadership::LeaderStatus;
pub use leadership::{Leadership, NotLeading};
use lease::{LeaseOwner, Timing};

/// Timeout of a request for the Lease or its Pod.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// The first and the longest pause after a failed request of a replica that isn't the leader.
const RETRY_BACKOFF: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(15));

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ElectionConfig {
    pub namespace: String,
    pub lease: String,
    /// The human-readable part of the holder identity.
    pub identity: String,
    /// With leader-for-life: the name of this process's Pod, in the same namespace.
    pub pod: Option<String>,
    /// Whether this is the Lease of a process outside the cluster for which no flag names one.
    pub is_default_outside: bool,
}

#[derive(Debug)]
pub struct ElectionMetrics {
    /// 1 while this process may write external targets.
    pub leader: IntGauge,
    /// 1 if the leader writes external targets: then an alert fires while no replica leads.
    pub sync_enabled: IntGauge,
}

/// The holder of the Lease, as this process has last read it, while its lease may be valid. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct KnownLeader(Arc<Mutex<Option<String>>>);

impl KnownLeader {
    /// Returns the holder identity; `None` if there is no holder, or no election.
    #[must_use]
    pub fn get(&self) -> Option<String> {
        self.0.lock().clone()
    }
}

impl ElectionConfig {
    /// Returns which permissions the election needs.
    fn hint(&self) -> &'static str {
        match &self.pod {
            None if self.is_default_outside => {
                "lb-linker needs get, create and update on leases there, as the Role of deploy/ grants in its namespace \
                 for the name lb-linker; to take part in the election of deploy/, give --instance lb-linker/lb-linker"
            }
            None => {
                "lb-linker needs get, create and update on leases there, as the Role of deploy/ grants for the name \
                 lb-linker"
            }
            Some(_) => {
                "lb-linker needs get, create, update and delete on leases and get on pods there, as the Roles \
                 of deploy/ and deploy/life/ grant for a Lease with the name lb-linker"
            }
        }
    }
}

impl MetricGroup for ElectionMetrics {
    fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let leader = IntGauge::new("lb_linker_leader", "1 while this instance leads: it alone writes.");
        let sync_enabled =
            IntGauge::new("lb_linker_sync_enabled", "1 if the leader writes external targets.");
        Ok(Self { leader: registered(registry, leader)?, sync_enabled: registered(registry, sync_enabled)? })
    }
}

#[derive(Clone)]
pub struct Election {
    client: Client,
    availability: ApiAvailability,
    metrics: Arc<ElectionMetrics>,
    api: Arc<ApiMetrics>,
    election_config: ElectionConfig,
    /// The identity and a random suffix, so that two processes never have the same holder identity.
    holder: String,
    known_leader: KnownLeader,
    readiness: Arc<Readiness>,
    leader_status: watch::Sender<LeaderStatus>,
    /// Whether the first round of requests has ended.
    settled: watch::Sender<bool>,
    fence: Arc<Fence>,
    clock: Clock,
}

impl Election {
    /// Returns an election in which this process isn't the leader yet.
    #[must_use]
    pub fn new(
        client: Client,
        availability: ApiAvailability,
        metrics: Arc<ElectionMetrics>,
        api: Arc<ApiMetrics>,
        election_config: ElectionConfig,
        known_leader: KnownLeader,
        readiness: Arc<Readiness>,
    ) -> Self {
        let holder = format!("{}_{:08x}", election_config.identity, rand::random::<u32>());
        let leader_status = watch::Sender::new(LeaderStatus::default());
        let settled = watch::Sender::new(false);
        let (fence, clock) = (Arc::default(), boot_clock::now as Clock);
        Self {
            client,
            availability,
            metrics,
            api,
            election_config,
            holder,
            known_leader,
            readiness,
            leader_status,
            settled,
            fence,
            clock,
        }
    }

    /// Returns the handle that writers check before each write.
    #[must_use]
    pub fn leadership(&self) -> Leadership {
        Leadership::new(
            self.leader_status.subscribe(),
            self.settled.subscribe(),
            Arc::clone(&self.fence),
            self.clock,
        )
    }

    /// Takes part until `stop` is cancelled, then releases the lease. All writers must have ended by then.
    ///
    /// # Errors
    /// Never: failed requests are retried.
    pub async fn run(self, stop: CancellationToken) -> Result<(), SyncError> {
        let mut lease_client = LeaseClient::new(&self);
        let Some(owner) = stop.run_until_cancelled(lease_client.owner()).await else { return Ok(()) };
        let term = self.leader_status.borrow().term;
        let mut elector = Elector::new(self.holder.clone(), owner, Timing::DEFAULT, term, (self.clock)());
        let mut seen = self.fence.subscribe_highest_term();
        loop {
            elector.observe_term(*seen.borrow_and_update(), (self.clock)());
            let step = elector.next((self.clock)());
            self.publish(&mut elector);
            let now = (self.clock)();
            // The first round has ended: this process leads, another replica does, or the request failed.
            let has_ended = matches!(step, ElectionStep::Wait(_));
            if has_ended {
                self.settled.send_replace(true);
            }
            // A loss shows at once: the next request may take some seconds.
            let is_lost = elector.has_lost_lease() && self.readiness.election.load().is_none();
            if has_ended || is_lost {
                *self.known_leader.0.lock() = elector.current_holder(now).map(ToOwned::to_owned);
                // A process that may not read the Lease doesn't learn of a leader later either.
                let is_barred = lease_client.is_refused && elector.knows_no_lease();
                self.show_absence(is_barred || !elector.is_led(now), lease_client.failure.as_deref());
            }
            let done = async {
                match step {
                    ElectionStep::Wait(until) => tokio::select! {
                        () = lease_client.wait(until) => {}
                        () = self.fence.renewal_requested.notified() => elector.request_renewal((self.clock)()),
                        // The new term is read at the top of the loop. The sender lives as long as `self`.
                        _ = seen.changed() => {}
                    },
                    step => lease_client.carry_out(&mut elector, step).await,
                }
            };
            if stop.run_until_cancelled(done).await.is_none() {
                break;
            }
            self.publish(&mut elector);
        }
        elector.resign();
        self.publish(&mut elector);
        lease_client.release(&elector).await;
        Ok(())
    }

    /// Tells users that no replica leads, and why, or that one does.
    fn show_absence(&self, is_absent: bool, why: Option<&str>) {
        let note = is_absent.then(|| {
            let why = why.map(|why| format!(" ({why})")).unwrap_or_default();
            format!(
                "no replica leads, as far as this one knows: nothing is written, and StableNames aren't checked{why}"
            )
        });
        let shown = &self.readiness.election;
        let before = shown.load_full();
        if before.as_ref().map(|before| &before.note) != note.as_ref() {
            let since = before.map_or_else(Timestamp::now, |before| before.since);
            shown.store(note.map(|note| Arc::new(LeaderAbsence { note, since })));
        }
    }

    /// Publishes the state to writers, and logs events.
    fn publish(&self, elector: &mut Elector) {
        let leader_status = elector.leader_status();
        self.metrics.leader.set(i64::from(leader_status.held.is_some()));
        self.leader_status.send_if_modified(|known| {
            // Renewals don't notify the writers.
            let news =
                known.term != leader_status.term || known.held.is_some() != leader_status.held.is_some();
            *known = leader_status;
            news
        });
        self.fence.confirmed.send_if_modified(|known| {
            let is_new = *known != elector.confirmed();
            *known = elector.confirmed();
            is_new
        });
        for news in elector.take_events() {
            match news {
                LeaderEvent::Gained => info!("leading now as {} in term {}", self.holder, leader_status.term),
                LeaderEvent::Raised(term) => warn!(
                    "an external target has a higher term than this leader, but this process still holds the Lease; it \
                     continues in term {term} and lists all objects again; if that repeats, another lb-linker with this \
                     --instance writes by another Lease: stop one of the two"
                ),
                LeaderEvent::Lost(why) => warn!("not leading any more: {why}"),
                LeaderEvent::Resigned => info!("not leading any more: lb-linker is stopping"),
                LeaderEvent::NewLeader(holder) => {
                    info!("{holder} leads{}", predecessor(&holder, &self.election_config.identity));
                }
                LeaderEvent::LeaseDeleted(holder) => {
                    warn!(
                        "the Lease of {holder} was deleted, and {holder} may still lead; waiting until its lease ends"
                    );
                }
            }
        }
    }
}

/// Returns the end of a sentence about a holder with the identity of this process, of which it may be an earlier run.
fn predecessor(holder: &str, identity: &str) -> &'static str {
    match holder.rsplit_once('_') {
        Some((of_holder, _)) if of_holder == identity => {
            "; it has the identity of this process: if it is an earlier run that has died, its Lease ends without a renewal"
        }
        _ => "",
    }
}

/// Sends the requests of a candidate to the API server.
struct LeaseClient<'a> {
    election: &'a Election,
    leases: Api<Lease>,
    pods: Api<Pod>,
    error_log: ThrottledLog,
    /// The refusals (403) since the last other answer.
    refusal: LastingRefusal,
    pauses: Backoff,
    /// Why a request of the present round has failed.
    failure: Option<String>,
    /// Whether the API server has refused the last request that failed.
    is_refused: bool,
    /// Whether a round of requests has ended.
    waited: bool,
}

impl<'a> LeaseClient<'a> {
    fn new(election: &'a Election) -> Self {
        let namespace = &election.election_config.namespace;
        Self {
            election,
            leases: Api::namespaced(election.client.clone(), namespace),
            pods: Api::namespaced_with(
                election.client.clone(),
                namespace,
                &ApiResource::erase::<v1::Pod>(&()),
            ),
            error_log: ThrottledLog::default(),
            refusal: LastingRefusal::default(),
            pauses: Backoff::new(RETRY_BACKOFF),
            failure: None,
            is_refused: false,
            waited: false,
        }
    }

    /// With leader-for-life: returns the Pod of this process, which owns the Lease while this process leads.
    async fn owner(&mut self) -> Option<LeaseOwner> {
        let name = self.election.election_config.pod.as_deref()?;
        let led_until = (self.election.clock)() + Timing::DEFAULT.lease;
        loop {
            let doing = format!("get Pod {}/{name}", self.election.election_config.namespace);
            match ask(self.pods.get(name)).await {
                Ok(pod) => {
                    self.election.availability.report_available();
                    return Some(LeaseOwner { name: name.to_owned(), uid: pod.uid().unwrap_or_default() });
                }
                Err(failure) => {
                    let pause = self.failed(&failure, &doing).max(failure.retry_after());
                    let is_led = (self.election.clock)() < led_until;
                    self.election.show_absence(self.is_refused || !is_led, self.failure.as_deref());
                    sleep(pause).await;
                }
            }
        }
    }

    /// Waits until the given time. Timers stand still during a suspend, so the caller checks the clock afterwards.
    async fn wait(&mut self, until: BootInstant) {
        // A round in which a request failed isn't a recovery, even if its read succeeded.
        if self.failure.is_none() {
            self.succeeded();
        }
        self.waited = true;
        sleep(until.saturating_duration_since((self.election.clock)())).await;
    }

    async fn carry_out(&mut self, elector: &mut Elector, step: ElectionStep) {
        if let ElectionStep::Wait(until) = step {
            return self.wait(until).await;
        }
        if std::mem::take(&mut self.waited) {
            (self.failure, self.is_refused) = (None, false);
        }
        match self.request(elector, &step).await {
            Ok(()) => self.election.availability.report_available(),
            Err(failure) => self.on_failure(elector, &step, &failure),
        }
    }

    /// Sends the request of a step, and passes the answer on.
    async fn request(&self, elector: &mut Elector, step: &ElectionStep) -> Result<(), RequestFailure> {
        let clock = self.election.clock;
        let sent = clock();
        let name = &*self.election.election_config.lease;
        let post = PostParams { field_manager: Some(FIELD_MANAGER.into()), ..Default::default() };
        let remaining = self.remaining_until(elector.deadline());
        match step {
            ElectionStep::Wait(_) => {}
            ElectionStep::Get => {
                let lease = ask_until(remaining, self.leases.get_opt(name)).await?;
                elector.on_lease(lease, sent, clock());
            }
            ElectionStep::Create | ElectionStep::Replace => {
                let lease = elector.claim(name, Timestamp::now());
                let written = match step {
                    ElectionStep::Create => ask(self.leases.create(&post, &lease)).await,
                    _ => ask_until(remaining, self.leases.replace(name, &post, &lease)).await,
                };
                self.count(step.verb(), &written);
                elector.on_written(written?, sent, clock());
            }
            ElectionStep::Delete { uid, resource_version } => {
                let only = Preconditions { uid: uid.clone(), resource_version: resource_version.clone() };
                let delete = DeleteParams { preconditions: Some(only), ..Default::default() };
                let deleted = ask(self.leases.delete(name, &delete)).await;
                self.count(step.verb(), &deleted);
                deleted?;
                elector.deleted(clock());
            }
            ElectionStep::GetPod(pod) => {
                let pod = ask(self.pods.get_opt(pod)).await?;
                elector.on_pod(pod.as_ref(), clock());
            }
        }
        Ok(())
    }

    /// Passes a failure of a step on, and logs one that isn't an answer about the Lease.
    fn on_failure(&mut self, elector: &mut Elector, step: &ElectionStep, failure: &RequestFailure) {
        let now = (self.election.clock)();
        match (step, failure.code()) {
            (ElectionStep::Create | ElectionStep::Replace | ElectionStep::Delete { .. }, 409) => {
                elector.conflict(now)
            }
            (ElectionStep::Replace | ElectionStep::Delete { .. }, 404) => elector.gone(now),
            _ => {
                let ElectionConfig { namespace, lease, .. } = &self.election.election_config;
                let object = match step {
                    ElectionStep::GetPod(pod) => format!("Pod {namespace}/{pod}"),
                    _ => format!("Lease {namespace}/{lease}"),
                };
                let pause = self.failed(failure, &format!("{} {object}", step.verb()));
                elector.failed(pause, failure.retry_after(), now);
            }
        }
    }

    fn remaining_until(&self, deadline: Option<BootInstant>) -> Option<Duration> {
        deadline.map(|deadline| deadline.saturating_duration_since((self.election.clock)()))
    }

    fn count<T>(&self, verb: &str, answer: &Result<T, RequestFailure>) {
        let code = match answer {
            Ok(_) if verb == "create" => 201,
            Ok(_) => 200,
            Err(failure) => failure.code(),
        };
        self.election.api.count_write(verb, "Lease", code);
    }

    /// Releases the Lease, so that another replica can take over at once.
    async fn release(&mut self, elector: &Elector) {
        let name = &self.election.election_config.lease;
        let deadline = (self.election.clock)() + REQUEST_TIMEOUT;
        let empty = async |lease: Lease| {
            let post = PostParams { field_manager: Some(FIELD_MANAGER.into()), ..Default::default() };
            let written =
                ask_until(self.remaining_until(Some(deadline)), self.leases.replace(name, &post, &lease))
                    .await;
            self.count("update", &written);
            written.map(drop)
        };
        let release = async {
            let Some(lease) = elector.release(Timestamp::now()) else { return Ok(()) };
            match empty(lease).await {
                // The last renewal was cancelled before its answer arrived, and has changed the Lease.
                Err(failure) if failure.code() == 409 => {}
                written => return written,
            }
            let lease = ask_until(self.remaining_until(Some(deadline)), self.leases.get(name)).await?;
            if lease::holder(&lease) == Some(&*self.election.holder) {
                empty(lease::released(lease, Timestamp::now())).await?;
            }
            Ok(())
        };
        if let Err(failure) = release.await {
            let doing = format!("release Lease {}/{name}", self.election.election_config.namespace);
            warn!(
                "{}; another replica takes the Lease over after its expiry or, with leader-for-life, after the end of \
                 this Pod",
                failure.sentence(&doing, "")
            );
        }
    }

    fn succeeded(&mut self) {
        let ElectionConfig { namespace, lease, .. } = &self.election.election_config;
        self.refusal.note(false);
        self.error_log.recovered(&format!("Lease {namespace}/{lease} can be used again"));
        self.election.availability.report_available();
        self.pauses = Backoff::new(RETRY_BACKOFF);
    }

    /// Logs the failure, and returns the pause before the next request.
    fn failed(&mut self, failure: &RequestFailure, doing: &str) -> Duration {
        let pause = match failure {
            // The API server may be back at any time. Refused connections cost it nothing, and a request without an
            // answer has lasted for some seconds already.
            RequestFailure::Unanswered => RETRY_BACKOFF.0,
            RequestFailure::Kube(error) if is_unreachable(error) => RETRY_BACKOFF.0,
            _ => self.pauses.next(),
        };
        let sentence = failure.sentence(doing, self.election.election_config.hint());
        self.refusal.note(failure.code() == 403);
        match failure {
            // The first sign of an API server that is silent: other requests are rarer.
            RequestFailure::Unanswered => {
                let cause = format!("{} ({doing})", no_answer(REQUEST_TIMEOUT));
                self.election.availability.report(&cause);
            }
            RequestFailure::Kube(error) => {
                self.election.availability.report_error(error);
                match failure.code() {
                    0 => {}
                    403 if !self.refusal.has_lasted(WARN_OF_REFUSAL_AFTER) => debug!("{sentence}"),
                    code => self.error_log.report(code, &sentence),
                }
            }
        }
        (self.failure, self.is_refused) = (Some(sentence), matches!(failure.code(), 401 | 403 | 404));
        pause
    }
}

enum RequestFailure {
    Unanswered,
    Kube(kube::Error),
}

impl RequestFailure {
    fn code(&self) -> u16 {
        match self {
            Self::Kube(kube::Error::Api(status)) => status.code,
            _ => 0,
        }
    }

    /// Returns the pause that the API server requests.
    fn retry_after(&self) -> Duration {
        match self {
            Self::Unanswered => Duration::ZERO,
            Self::Kube(error) => retry_after(error).unwrap_or_default(),
        }
    }

    fn sentence(&self, doing: &str, hint: &str) -> String {
        match self {
            Self::Unanswered => format!("can't {doing}: {}", no_answer(REQUEST_TIMEOUT)),
            Self::Kube(error) => describe(error, doing, hint),
        }
    }
}

async fn ask<T>(request: impl Future<Output = kube::Result<T>>) -> Result<T, RequestFailure> {
    let answer = timeout(REQUEST_TIMEOUT, request).await;
    answer.map_err(|_| RequestFailure::Unanswered)?.map_err(RequestFailure::Kube)
}

/// Like [`ask`], but doesn't wait longer than `left`: a leader can't wait for an answer beyond the end of its lease.
async fn ask_until<T>(
    left: Option<Duration>,
    request: impl Future<Output = kube::Result<T>>,
) -> Result<T, RequestFailure> {
    match left {
        Some(left) => timeout(left, ask(request)).await.unwrap_or(Err(RequestFailure::Unanswered)),
        None => ask(request).await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::test_support;

    /// Returns an election at an API server that answers with this code.
    fn election(code: u16) -> Election {
        let config = ElectionConfig {
            namespace: "lb-linker".to_owned(),
            lease: "lb-linker".to_owned(),
            identity: "host".to_owned(),
            pod: None,
            is_default_outside: false,
        };
        let client = test_support::client(move |_| test_support::status(code, "No", "no permission"));
        let (metrics, api) = (test_support::metrics(), test_support::metrics());
        let (known_leader, readiness) = Default::default();
        Election {
            clock: boot_clock::by_hand::now,
            ..Election::new(client, ApiAvailability::default(), metrics, api, config, known_leader, readiness)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn refused_first_read_of_the_lease_is_told_at_once() {
        for (code, why) in
            [(403, Some("(can't get Lease lb-linker/lb-linker: the API server forbids it")), (503, None)]
        {
            let election = election(code);
            let readiness = Arc::clone(&election.readiness);
            tokio::select! {
                _ = election.run(CancellationToken::new()) => unreachable!(),
                () = sleep(Duration::from_secs(1)) => {}
            }
            let note = readiness.election.load_full().map(|absence| absence.note.clone());
            let is_told = note.as_ref().zip(why).is_some_and(|(note, why)| note.contains(why));
            assert_eq!((note.is_some(), is_told), (why.is_some(), why.is_some()), "{note:?}");
        }
    }

    /// Otherwise the note that no replica leads has an old reason for some time.
    #[tokio::test]
    async fn silent_api_server_is_asked_again_soon() {
        let election = election(200);
        let mut lease_client = LeaseClient::new(&election);
        for _ in 0..5 {
            assert_eq!(lease_client.failed(&RequestFailure::Unanswered, "get Lease"), RETRY_BACKOFF.0);
        }
        assert_eq!(lease_client.failure.as_deref(), Some("can't get Lease: no answer within 5s"));
    }

    #[test]
    fn hint_outside_the_cluster_names_the_instance_of_deploy() {
        let names_instance = |is_default_outside| {
            let config = ElectionConfig {
                namespace: "external-targets".to_owned(),
                lease: "lb-linker".to_owned(),
                identity: "host".to_owned(),
                pod: None,
                is_default_outside,
            };
            config.hint().contains("--instance lb-linker/lb-linker")
        };
        assert_eq!([true, false].map(names_instance), [true, false]);
    }

    #[test]
    fn holder_with_the_own_identity_may_be_an_earlier_run() {
        assert!(
            predecessor("my_host_0a1b2c3d", "my_host").starts_with("; it has the identity of this process")
        );
        assert_eq!(predecessor("my_host_0a1b2c3d", "my"), "");
        assert_eq!(predecessor("other", "other"), "");
    }
}
