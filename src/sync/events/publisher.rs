//! Sends Events to the API server.

use std::collections::VecDeque;
use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::{Event, EventSeries};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};
use tokio_util::sync::CancellationToken;
use tower::timeout::error::Elapsed;
use tracing::{debug, warn};

use super::aggregator::{EventAggregator, EventWrite, ReasonQuota, TokenBucket};
use super::namespace_breakers::NamespaceBreakers;
use super::{EventKey, EventQueue, QueuedEvent, Recorder, Regarding};
use crate::model::excerpt::sentence;
use crate::sync::k8s::errors::{ApiAvailability, describe, retry_after, root_cause};
use crate::sync::k8s::forbidden::{Forbidden, is_of_admission};
use crate::sync::k8s::labels::FIELD_MANAGER;
use crate::sync::k8s::metrics::ApiMetrics;
use crate::sync::k8s::watch::sleep_until_opt;
use crate::sync::task::backoff::Backoff;
use crate::sync::task::supervisor::SyncError;

/// `reportingController`: Kubernetes requires a qualified name.
const CONTROLLER: &str = "lb-linker";
const MAX_INSTANCE_BYTES: usize = 128;
/// Maximum number of attempts to send an Event while failures are temporary, and the pauses in between: the first and
/// the longest.
const MAX_ATTEMPTS: usize = 3;
const RETRY_BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));
/// Interval at which ongoing series are checked.
const SERIES_CHECK_INTERVAL: Duration = Duration::from_secs(15);

/// Maximum time for the queued Events at shutdown.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// Sends the Events of a [`Recorder`].
#[derive(Clone)]
pub struct EventPublisher {
    pub client: Client,
    /// Reports an unreachable API server.
    pub availability: ApiAvailability,
    pub recorder: Recorder,
    pub instance: String,
    pub metrics: Arc<ApiMetrics>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SendResult {
    /// The API server has accepted the Event.
    Sent,
    /// The Event doesn't exist any more: the API server keeps Events for an hour.
    Expired,
    /// Permanent failure.
    Refused,
    /// Temporary failure: retry no earlier than after this pause.
    Again(Duration),
}

struct PublisherState {
    /// The term of `memory`: another leader may have recorded equal Events in between.
    term: u64,
    memory: EventAggregator,
    quota: ReasonQuota,
    namespaces: NamespaceBreakers,
    limit: TokenBucket,
    /// The series to update. After each new Event one of them has a turn, so that many series delay no new Event.
    series: VecDeque<EventKey>,
    under_way: u64,
}

impl EventPublisher {
    /// Sends Events as they are recorded. `stop` is cancelled after all recorders have ended: from then on, the queued
    /// Events are sent for at most two seconds.
    ///
    /// # Errors
    /// Never: Events that can't be sent are dropped.
    pub async fn run(self, stop: CancellationToken) -> Result<(), SyncError> {
        let Some(queue) = self.recorder.0.clone() else { return Ok(()) };
        let mut known = PublisherState {
            term: 0,
            memory: EventAggregator::default(),
            quota: ReasonQuota::default(),
            namespaces: NamespaceBreakers::default(),
            limit: TokenBucket::new(Instant::now()),
            series: VecDeque::new(),
            under_way: 0,
        };
        let late = async {
            stop.cancelled().await;
            sleep(SHUTDOWN_TIMEOUT).await;
        };
        tokio::select! {
            () = self.send_all(&queue, &mut known, &stop) => {}
            () = late => {}
        }
        let queued = known.series.len() + std::iter::from_fn(|| queue.pop(|_| false)).count();
        let unsent = known.under_way + queued as u64;
        if unsent > 0 {
            queue.dropped.inc_by(unsent);
            warn!("stopping although {unsent} Kubernetes Events haven't been sent; they are dropped");
        }
        Ok(())
    }

    /// Sends Events until `stop` is cancelled and the queue is empty.
    async fn send_all(&self, queue: &EventQueue, known: &mut PublisherState, stop: &CancellationToken) {
        let mut look = interval(SERIES_CHECK_INTERVAL);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let resumes = known.namespaces.next_to_resume(Instant::now());
            // After `stop` each queued Event is tried, also in namespaces that are held.
            let is_held =
                |namespace: &str| !stop.is_cancelled() && known.namespaces.is_held(namespace, Instant::now());
            let new = tokio::select! {
                biased;
                QueuedEvent { event_key, at, term } = queue.next(is_held) => {
                    if term != known.term {
                        (known.term, known.memory) = (term, EventAggregator::default());
                        known.series.clear();
                    }
                    let todo = known.memory.observe(&event_key, at, Instant::now(), &known.quota);
                    Some((event_key, todo))
                }
                () = ready(()), if !known.series.is_empty() => None,
                () = stop.cancelled() => {
                    if queue.is_empty() {
                        return;
                    }
                    None
                }
                () = sleep_until_opt(resumes) => None,
                _ = look.tick() => {
                    known.series.extend(known.memory.due(Instant::now()));
                    None
                }
            };
            if let Some((event_key, todo)) = new {
                self.process(queue, &event_key, todo, known).await;
            }
            // The series of a namespace that is held stays due.
            if let Some(event_key) = known.series.pop_front()
                && !known.namespaces.is_held(&event_key.regarding.namespace, Instant::now())
            {
                let todo = known.memory.update(&event_key, Instant::now());
                self.process(queue, &event_key, todo, known).await;
            }
        }
    }

    async fn process(
        &self,
        queue: &EventQueue,
        event_key: &EventKey,
        todo: EventWrite,
        known: &mut PublisherState,
    ) {
        match todo {
            EventWrite::Nothing => {}
            EventWrite::Drop => queue.dropped.inc(),
            EventWrite::Create(_) | EventWrite::Count { .. } => {
                known.under_way = 1;
                if !self.sent(event_key, todo, known).await {
                    queue.dropped.inc();
                    known.memory.forget(event_key);
                }
                known.under_way = 0;
            }
        }
    }

    /// Sends an Event. Returns false if the Event is dropped.
    async fn sent(&self, event_key: &EventKey, todo: EventWrite, known: &mut PublisherState) -> bool {
        if known.namespaces.is_dropping(&event_key.regarding.namespace, Instant::now()) {
            return false;
        }
        sleep(known.limit.take(Instant::now())).await;
        let mut outcome = self.deliver(event_key, &todo, known).await;
        if let (SendResult::Expired, EventWrite::Count { last, .. }) = (outcome, &todo) {
            known.memory.forget(event_key);
            let todo = known.memory.observe(event_key, *last, Instant::now(), &known.quota);
            if todo == EventWrite::Drop {
                return false;
            }
            outcome = self.deliver(event_key, &todo, known).await;
        }
        outcome == SendResult::Sent
    }

    /// Sends an Event, with retries after temporary failures. There are no retries if all attempts for the last Event
    /// of the namespace have failed.
    async fn deliver(
        &self,
        event_key: &EventKey,
        todo: &EventWrite,
        known: &mut PublisherState,
    ) -> SendResult {
        let namespace = &event_key.regarding.namespace;
        let mut pauses = Backoff::new(RETRY_BACKOFF);
        let attempts = if known.namespaces.has_failed(namespace) { 1 } else { MAX_ATTEMPTS };
        for _ in 1..attempts {
            match self.send(event_key, todo, known).await {
                SendResult::Again(at_least) => sleep(pauses.next().max(at_least)).await,
                outcome => return outcome,
            }
        }
        let outcome = self.send(event_key, todo, known).await;
        if let SendResult::Again(at_least) = outcome {
            known.namespaces.fail(namespace, at_least, Instant::now());
        }
        outcome
    }

    async fn send(&self, event_key: &EventKey, todo: &EventWrite, known: &mut PublisherState) -> SendResult {
        let namespace = &event_key.regarding.namespace;
        let verb = if matches!(todo, EventWrite::Create(_)) { "create" } else { "patch" };
        let Some(leadership) = self.recorder.0.as_ref().map(|queue| &queue.leadership) else {
            return SendResult::Refused;
        };
        // An Event has no resourceVersion that would reject the write if another replica leads.
        let Ok(sent) = leadership.write_confirmed(known.term, self.request(event_key, todo)).await else {
            return SendResult::Refused;
        };
        let code = match &sent {
            Ok(()) if verb == "create" => 201,
            Ok(()) => 200,
            Err(kube::Error::Api(status)) => status.code,
            Err(_) => 0,
        };
        self.metrics.count_write(verb, "Event", code);
        let Err(error) = sent else {
            self.availability.report_available();
            known.namespaces.on_accepted(namespace);
            if verb == "create" {
                known.quota.count(event_key, Instant::now());
            }
            return SendResult::Sent;
        };
        self.classify(&error, verb, namespace, &mut known.namespaces)
    }

    async fn request(&self, event_key: &EventKey, todo: &EventWrite) -> kube::Result<()> {
        let api: Api<Event> = Api::namespaced(self.client.clone(), &event_key.regarding.namespace);
        match todo {
            EventWrite::Nothing | EventWrite::Drop => Ok(()),
            EventWrite::Create(at) => {
                let event = self.event(event_key, *at);
                let post = PostParams { field_manager: Some(FIELD_MANAGER.into()), ..Default::default() };
                api.create(&post, &event).await.map(drop)
            }
            EventWrite::Count { first, count, last } => {
                // The API server allows no other change of an Event.
                let series = EventSeries { count: *count, last_observed_time: MicroTime(*last) };
                let params = PatchParams { field_manager: Some(FIELD_MANAGER.into()), ..Default::default() };
                let patch = Patch::Merge(json!({ "series": series }));
                api.patch(&name(event_key, *first), &params, &patch).await.map(drop)
            }
        }
    }

    /// Classifies the error of a request, and logs it.
    fn classify(
        &self,
        error: &kube::Error,
        verb: &str,
        namespace: &str,
        namespaces: &mut NamespaceBreakers,
    ) -> SendResult {
        let status = match error {
            kube::Error::Api(status) => status,
            kube::Error::Service(error) if error.is::<Elapsed>() => return SendResult::Again(Duration::ZERO),
            error => {
                self.availability.report(&root_cause(error));
                return SendResult::Again(Duration::ZERO);
            }
        };
        let doing = format!("{verb} Events in namespace {namespace}");
        let now = Instant::now();
        let forbidden = Forbidden::of(error, verb, "events");
        match status.code {
            // An earlier attempt has arrived. A quota that is being updated answers 409 Conflict.
            409 if verb == "create" && status.reason == "AlreadyExists" => SendResult::Sent,
            404 if verb == "patch" => SendResult::Expired,
            // The namespace, and so the Service, is gone or being deleted.
            404 => SendResult::Refused,
            403 if forbidden == Some(Forbidden::NamespaceTerminating) => {
                debug!("no Events in namespace {namespace}: {}", sentence(&status.message));
                SendResult::Refused
            }
            401 if is_of_admission(&status.message, "events") => {
                let sentence =
                    format!("can't {doing}: the API server answered 401 {}", sentence(&status.message));
                namespaces.event_log.refused(403, &sentence);
                SendResult::Refused
            }
            code @ (401 | 403) => {
                self.availability.report_status(status);
                let hint = match forbidden {
                    Some(Forbidden::Authorizer) => {
                        "lb-linker needs the permissions of deploy/ there, create and patch of events in \
                         events.k8s.io; links and DNS don't need it"
                    }
                    _ => "",
                };
                let sentence = describe(error, &doing, hint);
                // A policy rejects this Event; credentials, permissions and quotas concern every Event of the
                // namespace.
                if forbidden == Some(Forbidden::Admission) {
                    namespaces.event_log.refused(code, &sentence);
                } else {
                    namespaces.error_log(namespace, now).refused(code, &sentence);
                    namespaces.refuse(namespace, now);
                }
                SendResult::Refused
            }
            409 | 429 | 500.. => {
                namespaces.error_log(namespace, now).report(status.code, &describe(error, &doing, ""));
                SendResult::Again(retry_after(error).unwrap_or_default().min(RETRY_BACKOFF.1))
            }
            code => {
                namespaces.event_log.refused(code, &describe(error, &doing, ""));
                SendResult::Refused
            }
        }
    }

    fn event(&self, event_key: &EventKey, at: Timestamp) -> Event {
        let EventKey { regarding: Regarding { kind, namespace, name: object, uid }, reason, note } =
            event_key;
        let (api_version, kind) = kind.api();
        let namespace = Some(namespace.to_string());
        let instance = &self.instance[..self.instance.floor_char_boundary(MAX_INSTANCE_BYTES)];
        Event {
            metadata: ObjectMeta {
                name: Some(name(event_key, at)),
                namespace: namespace.clone(),
                ..Default::default()
            },
            event_time: Some(MicroTime(at)),
            type_: Some(reason.event_type().to_owned()),
            reason: Some(reason.to_string()),
            action: Some(reason.action().to_owned()),
            note: Some(note.to_string()),
            regarding: Some(ObjectReference {
                api_version: Some(api_version.to_owned()),
                kind: Some(kind.to_owned()),
                namespace,
                name: Some(object.to_string()),
                uid: Some(uid.to_string()),
                ..Default::default()
            }),
            reporting_controller: Some(CONTROLLER.to_owned()),
            // The API server rejects an empty value.
            reporting_instance: Some(if instance.is_empty() { CONTROLLER } else { instance }.to_owned()),
            ..Default::default()
        }
    }
}

/// Returns the name of an Event that first happened at this time, in the format of kube and client-go.
fn name(event_key: &EventKey, at: Timestamp) -> String {
    format!("{}.{:x}", event_key.regarding.name, at.as_nanosecond())
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;
    use std::collections::VecDeque;

    use axum::http::{Request, Response};
    use kube::client::Body;
    use tokio::sync::mpsc;

    use super::super::{Reason, RegardingKind};
    use prometheus::IntCounter;
    use tower::ServiceBuilder;
    use tower::timeout::TimeoutLayer;

    use super::*;
    use crate::sync::election::Leadership;
    use crate::sync::events::metrics::EventMetrics;
    use crate::sync::test_support;

    /// The API server's response to a request. A real API server can't be made to give most of these responses.
    #[derive(Clone, Copy)]
    enum StubResponse {
        Nothing,
        Never,
        Status(u16, &'static str),
        Conflict(&'static str),
    }

    const CREATED: StubResponse = StubResponse::Status(201, "");
    const MISSING_RIGHT: &str = "events.events.k8s.io is forbidden: User \"x\" cannot create resource \"events\" in API \
                                 group \"events.k8s.io\" in the namespace \"refusing\"";

    type Requests = mpsc::UnboundedReceiver<(String, String)>;

    /// Runs a publisher against a stub that gives these responses, and succeeds afterwards. Returns the recorder, the
    /// received requests, and the counter of dropped Events.
    fn sender(answers: &[StubResponse]) -> (Recorder, Requests, IntCounter, impl Drop + use<>) {
        let (sender, requests) = idle_sender(answers, Leadership::unconditional());
        let (recorder, metrics) = (sender.recorder.clone(), sender.recorder.dropped());
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn(sender.run(CancellationToken::new()));
        (recorder, requests, metrics, tasks)
    }

    fn idle_sender(answers: &[StubResponse], leadership: Leadership) -> (EventPublisher, Requests) {
        let mut answers = VecDeque::from(answers.to_vec());
        sender_to(move |_| answers.pop_front(), leadership)
    }

    /// Returns a publisher for a stub that gives these responses by path, and otherwise succeeds.
    fn sender_to(
        answer: impl FnMut(&str) -> Option<StubResponse> + Send + 'static,
        leadership: Leadership,
    ) -> (EventPublisher, Requests) {
        let (received, requests) = mpsc::unbounded_channel();
        let answer = Arc::new(Mutex::new(answer));
        let service = tower::service_fn(move |request: Request<Body>| {
            let (received, answer) = (received.clone(), Arc::clone(&answer));
            async move {
                let path = request.uri().path().to_owned();
                let answer = (*answer.lock())(&path);
                let body = request.into_body().collect_bytes().await.unwrap();
                let sent: serde_json::Value = serde_json::from_slice(&body).unwrap();
                let what = sent["note"].as_str().map_or_else(|| sent.to_string(), ToOwned::to_owned);
                received.send((path, what)).unwrap();
                let failure = |code: u16, message, reason| {
                    let status = "Failure";
                    json!({"status": status, "message": message, "reason": reason, "code": code})
                };
                let (code, body) = match answer.unwrap_or(CREATED) {
                    StubResponse::Never => return std::future::pending().await,
                    StubResponse::Nothing => return Err(std::io::Error::other("connection reset")),
                    StubResponse::Status(code @ 200..300, _) => (code, sent),
                    StubResponse::Status(code, message) => (code, failure(code, message, "")),
                    StubResponse::Conflict(reason) => (409, failure(409, "already exists", reason)),
                };
                let body = Body::from(serde_json::to_vec(&body).unwrap());
                Ok(Response::builder().status(code).body(body).unwrap())
            }
        });
        let service =
            ServiceBuilder::new().layer(TimeoutLayer::new(Duration::from_secs(10))).service(service);
        let dropped = test_support::metrics::<EventMetrics>().dropped.clone();
        let recorder = Recorder::new(dropped, leadership);
        let sender = EventPublisher {
            client: Client::new(service, "default"),
            availability: ApiAvailability::default(),
            recorder,
            instance: "x".repeat(200),
            metrics: test_support::metrics(),
        };
        (sender, requests)
    }

    fn record(recorder: &Recorder, note: &str) {
        record_in("default", recorder, note);
    }

    fn record_in(namespace: &str, recorder: &Recorder, note: &str) {
        let name = format!("web-{note}").into();
        let regarding =
            Regarding { kind: RegardingKind::Service, namespace: namespace.into(), name, uid: "u".into() };
        recorder.record(regarding, Reason::TargetChanged, note);
    }

    #[tokio::test(start_paused = true)]
    async fn unanswered_event_is_sent_three_times_and_then_dropped() {
        let (recorder, mut requests, metrics, _tasks) = sender(&[StubResponse::Nothing; MAX_ATTEMPTS]);
        record(&recorder, "first");
        record(&recorder, "second");
        let start = Instant::now();
        let mut received = Vec::new();
        for _ in 0..=MAX_ATTEMPTS {
            received.push(requests.recv().await.unwrap().1);
        }
        assert_eq!(received, ["first", "first", "first", "second"]);
        assert!(start.elapsed() >= Duration::from_secs(3), "1 s, then 2 s at least");
        assert!(start.elapsed() <= RETRY_BACKOFF.1 * 2);
        assert_eq!(metrics.get(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn event_with_lost_answer_isnt_counted_as_dropped() {
        let answers = [StubResponse::Nothing, StubResponse::Conflict("AlreadyExists"), CREATED];
        let (recorder, mut requests, metrics, _tasks) = sender(&answers);
        record(&recorder, "first");
        record(&recorder, "second");
        for note in ["first", "first", "second"] {
            assert_eq!(requests.recv().await.unwrap().1, note);
        }
        assert_eq!(metrics.get(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn event_that_meets_an_update_of_a_quota_is_resent() {
        let (recorder, mut requests, metrics, _tasks) =
            sender(&[StubResponse::Conflict("Conflict"), CREATED]);
        record(&recorder, "first");
        record(&recorder, "second");
        for note in ["first", "first", "second"] {
            assert_eq!(requests.recv().await.unwrap().1, note);
        }
        assert_eq!(metrics.get(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn refused_event_isnt_resent_and_overload_causes_a_pause() {
        let answers = [
            StubResponse::Status(404, "namespaces \"default\" not found"),
            StubResponse::Status(422, "Invalid"),
            StubResponse::Status(429, "too many requests"),
            CREATED,
        ];
        let (recorder, mut requests, metrics, _tasks) = sender(&answers);
        for note in ["gone", "invalid", "busy"] {
            record(&recorder, note);
        }
        for note in ["gone", "invalid", "busy"] {
            assert_eq!(requests.recv().await.unwrap().1, note);
        }
        let start = Instant::now();
        assert_eq!(requests.recv().await.unwrap().1, "busy");
        assert!(start.elapsed() >= RETRY_BACKOFF.0);
        assert_eq!(metrics.get(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn refusing_namespace_is_skipped_for_a_while() {
        let forbidden = StubResponse::Status(403, MISSING_RIGHT);
        let (recorder, mut requests, metrics, _tasks) = sender(&[forbidden, CREATED, CREATED, CREATED]);
        let mut received = async || {
            let (path, note) = requests.recv().await.unwrap();
            (path.contains("/namespaces/refusing/"), note)
        };
        for i in 0..10 {
            record_in("refusing", &recorder, &i.to_string());
        }
        record(&recorder, "elsewhere");
        assert_eq!(received().await, (true, "0".to_owned()));
        assert_eq!(received().await, (false, "elsewhere".to_owned()));
        assert_eq!(metrics.get(), 10);
        sleep(Duration::from_secs(3)).await;
        for note in ["later", "last"] {
            record_in("refusing", &recorder, note);
            assert_eq!(received().await, (true, note.to_owned()));
        }
        assert_eq!(metrics.get(), 10);
    }

    #[tokio::test(start_paused = true)]
    async fn namespace_without_answers_delays_other_events_only_once() {
        let answers = |path: &str| path.contains("/slow/").then_some(StubResponse::Never);
        let (sender, mut requests) = sender_to(answers, Leadership::unconditional());
        let (recorder, metrics) = (sender.recorder.clone(), sender.recorder.dropped());
        for number in 0..20 {
            record_in("slow", &recorder, &number.to_string());
        }
        record_in("other", &recorder, "first");
        let start = Instant::now();
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn(sender.run(CancellationToken::new()));
        for note in ["0", "0", "0", "first"] {
            assert_eq!(requests.recv().await.unwrap().1, note);
        }
        assert!(start.elapsed() < Duration::from_secs(40), "{:?}", start.elapsed());
        assert_eq!(metrics.get(), 1);
        let start = Instant::now();
        record_in("other", &recorder, "second");
        assert_eq!(requests.recv().await.unwrap().1, "second");
        assert_eq!(start.elapsed(), Duration::ZERO);
        for number in ["1", "2"] {
            assert_eq!(requests.recv().await.unwrap().1, number, "one attempt of each");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn events_of_a_held_namespace_are_tried_at_the_stop() {
        let (sender, mut requests) =
            idle_sender(&[StubResponse::Nothing; MAX_ATTEMPTS], Leadership::unconditional());
        let (recorder, metrics) = (sender.recorder.clone(), sender.recorder.dropped());
        for number in 0..3 {
            record(&recorder, &number.to_string());
        }
        let stop = CancellationToken::new();
        let running = tokio::spawn(sender.run(stop.clone()));
        for _ in 0..MAX_ATTEMPTS {
            assert_eq!(requests.recv().await.unwrap().1, "0");
        }
        // Let the publisher process the last failure: then the namespace is held.
        sleep(Duration::from_millis(1)).await;
        stop.cancel();
        for number in ["1", "2"] {
            assert_eq!(requests.recv().await.unwrap().1, number);
        }
        running.await.unwrap().unwrap();
        assert_eq!(metrics.get(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn queued_events_survive_an_outage_of_the_api_server() {
        let (recorder, mut requests, metrics, _tasks) = sender(&[StubResponse::Nothing; MAX_ATTEMPTS + 1]);
        for number in 0..10 {
            record(&recorder, &number.to_string());
        }
        for note in ["0", "0", "0", "1", "2", "3", "4", "5", "6", "7", "8", "9"] {
            assert_eq!(requests.recv().await.unwrap().1, note);
        }
        assert_eq!(metrics.get(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn namespace_with_1000_services_delays_no_other_event() {
        let (sender, mut requests) = idle_sender(&[], Leadership::unconditional());
        let (recorder, metrics) = (sender.recorder.clone(), sender.recorder.dropped());
        for note in 0..3 {
            for service in 0..1000 {
                let name = format!("svc-{service}").into();
                let regarding = Regarding {
                    kind: RegardingKind::Service,
                    namespace: "tenant".into(),
                    name,
                    uid: "u".into(),
                };
                recorder.record(regarding, Reason::HostnameRefused, &note.to_string());
            }
        }
        assert_eq!(metrics.get(), 2000);
        record(&recorder, "other");
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn(sender.run(CancellationToken::new()));
        let sent = [requests.recv().await.unwrap().1, requests.recv().await.unwrap().1];
        assert_eq!(sent, ["0", "other"]);
    }

    #[tokio::test(start_paused = true)]
    async fn series_of_a_namespace_delay_no_new_event() {
        const SERIES: usize = 200;
        let (recorder, mut requests, metrics, _tasks) = sender(&[]);
        let notes: Vec<String> = (0..SERIES).map(|number| number.to_string()).collect();
        // The first two occurrences are sent at once, the third one is an update of the series.
        for _ in 0..3 {
            notes.iter().for_each(|note| record_in("tenant", &recorder, note));
        }
        for _ in 0..2 * SERIES {
            requests.recv().await.unwrap();
        }
        assert!(requests.recv().await.unwrap().1.contains("\"count\":3"));
        record(&recorder, "new");
        let mut sent = Vec::new();
        for _ in 0..SERIES {
            sent.push(requests.recv().await.unwrap().1);
        }
        // A burst of updates may be sent before the Event is recorded.
        let place = sent.iter().position(|note| note == "new");
        assert!(place.is_some_and(|place| place < SERIES / 2), "{place:?}");
        assert_eq!(sent.iter().filter(|note| note.contains("\"count\":3")).count(), SERIES - 1);
        assert_eq!(metrics.get(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn rejected_event_delays_no_other_event() {
        let denied = "events.events.k8s.io \"web.1\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' \
                      denied request: events.events.k8s.io is forbidden: User \"x\" cannot create resource \"events\"";
        let (recorder, mut requests, metrics, _tasks) =
            sender(&[StubResponse::Status(403, denied), CREATED, CREATED]);
        for note in ["denied", "second", "third"] {
            record(&recorder, note);
        }
        for note in ["denied", "second", "third"] {
            assert_eq!(requests.recv().await.unwrap().1, note);
        }
        assert_eq!(metrics.get(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn event_is_sent_in_its_own_term_or_dropped() {
        let (leadership, lead) = Leadership::by_hand();
        let (sender, mut requests) = idle_sender(&[], leadership);
        let (recorder, metrics) = (sender.recorder.clone(), sender.recorder.dropped());
        lead(Some(1));
        for note in ["a", "b", "c"] {
            record(&recorder, note);
        }
        lead(None);
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn(sender.run(CancellationToken::new()));
        sleep(Duration::from_secs(1)).await;
        assert_eq!(metrics.get(), 3);
        lead(Some(2));
        record(&recorder, "a");
        assert_eq!(requests.recv().await.unwrap().1, "a");
        // Another leader may have recorded an equal Event since: this Event starts a new series.
        lead(None);
        lead(Some(3));
        record(&recorder, "a");
        assert_eq!(requests.recv().await.unwrap().1, "a");
        assert!(requests.try_recv().is_err(), "nothing else was sent");
        assert_eq!(metrics.get(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn events_queued_at_shutdown_are_sent_or_counted() {
        let (sender, mut requests) = idle_sender(&[], Leadership::unconditional());
        let (recorder, metrics) = (sender.recorder.clone(), sender.recorder.dropped());
        let stop = CancellationToken::new();
        stop.cancel();
        for i in 0..10 {
            record(&recorder, &i.to_string());
        }
        sender.run(stop.clone()).await.unwrap();
        assert_eq!(std::iter::from_fn(|| requests.try_recv().ok()).count(), 10);
        assert_eq!(metrics.get(), 0);

        let (sender, _requests) = idle_sender(&[CREATED, StubResponse::Never], Leadership::unconditional());
        let (recorder, metrics) = (sender.recorder.clone(), sender.recorder.dropped());
        for i in 0..10 {
            record(&recorder, &i.to_string());
        }
        let start = Instant::now();
        sender.run(stop).await.unwrap();
        assert_eq!(start.elapsed(), SHUTDOWN_TIMEOUT);
        assert_eq!(metrics.get(), 9, "including the Event under way");
    }

    #[tokio::test(start_paused = true)]
    async fn series_updates_its_first_event() {
        let (recorder, mut requests, _metrics, _tasks) = sender(&[]);
        record(&recorder, "again");
        let (path, note) = requests.recv().await.unwrap();
        assert_eq!((&*path, &*note), ("/apis/events.k8s.io/v1/namespaces/default/events", "again"));
        for _ in 0..1000 {
            record(&recorder, "again");
            tokio::task::yield_now().await;
        }
        let (path, series) = requests.recv().await.unwrap();
        assert!(path.starts_with("/apis/events.k8s.io/v1/namespaces/default/events/web-again."), "{path}");
        assert!(series.starts_with(r#"{"series":{"count":2,"#), "{series}");
        let start = Instant::now();
        let (again, series) = requests.recv().await.unwrap();
        assert_eq!(again, path);
        assert!(series.starts_with(r#"{"series":{"count":1001,"#), "{series}");
        assert!(start.elapsed() >= Duration::from_secs(50), "{:?}", start.elapsed());
    }
}
