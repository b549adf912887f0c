//! The task that sends Events to the API server.

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
use tower::timeout::error::Elapsed;
use tracing::debug;

use super::series::{Limit, Memory, Todo};
use super::{Happening, Recorder, Regarding};
use crate::metrics::Metrics;
use crate::sync::desired::FIELD_MANAGER;
use crate::sync::trouble::{Outage, Trouble, explain, root_cause};
use crate::sync::{Pauses, SyncError};

/// Who says it. Kubernetes wants a qualified name here.
const CONTROLLER: &str = "lb-linker";
/// The longest `reportingInstance`.
const INSTANCE: usize = 128;
/// How often an Event is sent that gets no answer, and the pauses in between.
const TRIES: usize = 3;
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));
/// How often series are looked at that go on.
const LOOK: Duration = Duration::from_secs(15);

/// Sends what a [`Recorder`] takes in.
#[derive(Clone)]
pub struct Sender {
    /// The client.
    pub client: Client,
    /// Where it is said that the API server is away.
    pub outage: Outage,
    /// What is sent.
    pub recorder: Recorder,
    /// Which replica this is.
    pub instance: String,
    /// What is counted.
    pub metrics: Arc<Metrics>,
}

/// What has become of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// The API server has the Event.
    Sent,
    /// There is no Event of that name any more: the API server keeps them for an hour.
    Expired,
    /// It isn't to be sent again.
    Refused,
    /// There was no answer, or one that asks for another try after so long.
    Again(Duration),
}

impl Sender {
    /// Sends Events as they come, for ever.
    ///
    /// # Errors
    /// Never: what can't be sent is dropped.
    pub async fn run(self) -> Result<(), SyncError> {
        let Some(queue) = self.recorder.0.clone() else { return Ok(()) };
        let (mut memory, mut trouble) = (Memory::default(), Trouble::default());
        let mut limit = Limit::new(Instant::now());
        let mut look = interval(LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let todo = tokio::select! {
                (happening, at) = queue.next() => {
                    let todo = memory.see(&happening, at, Instant::now());
                    vec![(happening, todo)]
                }
                _ = look.tick() => memory.due(Instant::now()),
            };
            for (happening, mut todo) in todo {
                if todo == Todo::Nothing {
                    continue;
                }
                sleep(limit.take(Instant::now())).await;
                let mut outcome = self.deliver(&happening, &todo, &mut trouble).await;
                if let (Outcome::Expired, Todo::Count { last, .. }) = (outcome, &todo) {
                    memory.forget(&happening);
                    todo = memory.see(&happening, *last, Instant::now());
                    outcome = self.deliver(&happening, &todo, &mut trouble).await;
                }
                if outcome != Outcome::Sent {
                    queue.dropped.inc();
                    memory.forget(&happening);
                }
            }
        }
    }

    /// Sends one Event, and again where that may help.
    async fn deliver(&self, happening: &Happening, todo: &Todo, trouble: &mut Trouble) -> Outcome {
        let mut pauses = Pauses::new(RETRY);
        for _ in 1..TRIES {
            match self.send(happening, todo, trouble).await {
                Outcome::Again(at_least) => sleep(pauses.next().max(at_least)).await,
                outcome => return outcome,
            }
        }
        self.send(happening, todo, trouble).await
    }

    async fn send(&self, happening: &Happening, todo: &Todo, trouble: &mut Trouble) -> Outcome {
        let namespace = &happening.regarding.namespace;
        let api: Api<Event> = Api::namespaced(self.client.clone(), namespace);
        let (verb, sent) = match todo {
            Todo::Nothing => return Outcome::Sent,
            Todo::Create(at) => {
                let event = self.event(happening, *at);
                let post = PostParams { field_manager: Some(FIELD_MANAGER.into()), ..Default::default() };
                ("create", api.create(&post, &event).await)
            }
            Todo::Count { first, count, last } => {
                // Nothing else of an Event can be changed.
                let series = EventSeries { count: *count, last_observed_time: MicroTime(*last) };
                let patch = PatchParams { field_manager: Some(FIELD_MANAGER.into()), ..Default::default() };
                (
                    "patch",
                    api.patch(&name(happening, *first), &patch, &Patch::Merge(json!({ "series": series })))
                        .await,
                )
            }
        };
        let code = match &sent {
            Ok(_) if verb == "create" => 201,
            Ok(_) => 200,
            Err(kube::Error::Api(status)) => status.code,
            Err(_) => 0,
        };
        self.metrics.api_writes.with_label_values(&[verb, "Event", &code.to_string()]).inc();
        let Err(error) = sent else {
            self.outage.over();
            trouble.over("Events can be recorded again");
            return Outcome::Sent;
        };
        self.sort(&error, verb, namespace, trouble)
    }

    /// Decides what a failed request means, and says what people should know.
    fn sort(&self, error: &kube::Error, verb: &str, namespace: &str, trouble: &mut Trouble) -> Outcome {
        let status = match error {
            kube::Error::Api(status) => status,
            kube::Error::Service(error) if error.is::<Elapsed>() => return Outcome::Again(Duration::ZERO),
            error => {
                self.outage.report(&root_cause(error));
                return Outcome::Again(Duration::ZERO);
            }
        };
        let doing = format!("{verb} Events in namespace {namespace}");
        match status.code {
            // The try before this one had arrived.
            409 => Outcome::Sent,
            404 if verb == "patch" => Outcome::Expired,
            // The namespace is gone, or about to go: so is the Service, and nobody will look.
            404 => Outcome::Refused,
            403 if status.message.contains("being terminated") => {
                debug!("no Events in namespace {namespace}: {}", status.message);
                Outcome::Refused
            }
            // A missing right, in RBAC's words; quotas and admission say 403, too.
            403 if status.message.contains(" cannot ") => {
                let right = "lb-linker needs the ClusterRole of deploy/, which grants create and patch of \
                             events in events.k8s.io; links and DNS don't need it";
                trouble.report(403, &explain(error, &doing, right));
                Outcome::Refused
            }
            429 | 500.. => {
                trouble.report(status.code, &explain(error, &doing, ""));
                // Where the API server sends a Status, it repeats RFC 9110's Retry-After there.
                let seconds = status.details.as_ref().map_or(0, |details| details.retry_after_seconds);
                Outcome::Again(Duration::from_secs(seconds.into()).min(RETRY.1))
            }
            code => {
                let message = &status.message;
                trouble.report(code, &format!("can't {doing}: the API server answered {code} {message}"));
                Outcome::Refused
            }
        }
    }

    fn event(&self, happening: &Happening, at: Timestamp) -> Event {
        let Happening { regarding: Regarding { namespace, name: service, uid }, reason, note } = happening;
        let namespace = Some(namespace.to_string());
        let instance = &self.instance[..self.instance.floor_char_boundary(INSTANCE)];
        Event {
            metadata: ObjectMeta {
                name: Some(name(happening, at)),
                namespace: namespace.clone(),
                ..Default::default()
            },
            event_time: Some(MicroTime(at)),
            type_: Some(reason.severity().to_owned()),
            reason: Some(reason.to_string()),
            action: Some(reason.action().to_owned()),
            note: Some(note.to_string()),
            regarding: Some(ObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("Service".to_owned()),
                namespace,
                name: Some(service.to_string()),
                uid: Some(uid.to_string()),
                ..Default::default()
            }),
            reporting_controller: Some(CONTROLLER.to_owned()),
            // It can't be empty.
            reporting_instance: Some(if instance.is_empty() { CONTROLLER } else { instance }.to_owned()),
            ..Default::default()
        }
    }
}

/// The name of an Event that happened first at that time, as kube and client-go name them.
fn name(happening: &Happening, at: Timestamp) -> String {
    format!("{}.{:x}", happening.regarding.name, at.as_nanosecond())
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::{Mutex, PoisonError};

    use axum::http::{Request, Response};
    use kube::client::Body;
    use tokio::sync::mpsc;

    use super::super::Reason;
    use super::*;

    /// What the API server does to a request. A real one can't be made to do most of it.
    #[derive(Clone, Copy)]
    enum Answer {
        Nothing,
        Status(u16, &'static str),
    }

    const CREATED: Answer = Answer::Status(201, "");

    /// Runs a sender against an API server that answers so, and then always that all is well. Returns
    /// the recorder, what was asked, and how many Events were dropped.
    fn sender(
        answers: &[Answer],
    ) -> (Recorder, mpsc::UnboundedReceiver<(String, String)>, Arc<Metrics>, impl Drop) {
        let (asked, requests) = mpsc::unbounded_channel();
        let answers = Arc::new(Mutex::new(VecDeque::from(answers.to_vec())));
        let service = tower::service_fn(move |request: Request<Body>| {
            let (asked, answers) = (asked.clone(), Arc::clone(&answers));
            async move {
                let path = request.uri().path().to_owned();
                let answer = answers.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
                let body = request.into_body().collect_bytes().await.unwrap();
                let sent: serde_json::Value = serde_json::from_slice(&body).unwrap();
                let what = sent["note"].as_str().map_or_else(|| sent.to_string(), ToOwned::to_owned);
                asked.send((path, what)).unwrap();
                let (code, body) = match answer.unwrap_or(CREATED) {
                    Answer::Nothing => return Err(std::io::Error::other("connection reset")),
                    Answer::Status(code @ 200..300, _) => (code, sent),
                    Answer::Status(code, message) => {
                        let (status, reason) = ("Failure", "");
                        (code, json!({"status": status, "message": message, "reason": reason, "code": code}))
                    }
                };
                let body = Body::from(serde_json::to_vec(&body).unwrap());
                Ok(Response::builder().status(code).body(body).unwrap())
            }
        });
        let metrics = Arc::new(Metrics::new().unwrap());
        let recorder = Recorder::new(metrics.events_dropped.clone(), Arc::new(|| true));
        let sender = Sender {
            client: Client::new(service, "default"),
            outage: Outage::default(),
            recorder: recorder.clone(),
            instance: "x".repeat(200),
            metrics: Arc::clone(&metrics),
        };
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn(sender.run());
        (recorder, requests, metrics, tasks)
    }

    fn record(recorder: &Recorder, note: &str) {
        let regarding = Regarding { namespace: "default".into(), name: "web".into(), uid: "u".into() };
        recorder.record(regarding, Reason::TargetChanged, note);
    }

    #[tokio::test(start_paused = true)]
    async fn an_event_without_an_answer_is_sent_again_under_its_name_and_then_given_up() {
        let (recorder, mut requests, metrics, _tasks) = sender(&[Answer::Nothing; TRIES]);
        record(&recorder, "first");
        record(&recorder, "second");
        let start = Instant::now();
        let mut asked = Vec::new();
        for _ in 0..=TRIES {
            asked.push(requests.recv().await.unwrap().1);
        }
        assert_eq!(asked, ["first", "first", "first", "second"]);
        assert!(start.elapsed() >= Duration::from_secs(3), "1 s, then 2 s at least");
        assert!(start.elapsed() <= RETRY.1 * 2);
        assert_eq!(metrics.events_dropped.get(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn an_event_whose_answer_was_lost_is_no_loss() {
        let answers = [Answer::Nothing, Answer::Status(409, "already exists"), CREATED];
        let (recorder, mut requests, metrics, _tasks) = sender(&answers);
        record(&recorder, "first");
        record(&recorder, "second");
        for note in ["first", "first", "second"] {
            assert_eq!(requests.recv().await.unwrap().1, note);
        }
        assert_eq!(metrics.events_dropped.get(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_event_isnt_sent_again_and_an_overloaded_api_server_gets_a_pause() {
        let answers = [
            Answer::Status(403, "User \"x\" cannot create resource \"events\""),
            Answer::Status(404, "namespaces \"default\" not found"),
            Answer::Status(422, "Invalid"),
            Answer::Status(429, "too many requests"),
            CREATED,
        ];
        let (recorder, mut requests, metrics, _tasks) = sender(&answers);
        for note in ["forbidden", "gone", "invalid", "busy"] {
            record(&recorder, note);
        }
        for note in ["forbidden", "gone", "invalid", "busy"] {
            assert_eq!(requests.recv().await.unwrap().1, note);
        }
        let start = Instant::now();
        assert_eq!(requests.recv().await.unwrap().1, "busy");
        assert!(start.elapsed() >= RETRY.0);
        assert_eq!(metrics.events_dropped.get(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn a_series_goes_on_in_the_event_that_it_began_with() {
        let (recorder, mut requests, _metrics, _tasks) = sender(&[]);
        record(&recorder, "again");
        let (path, note) = requests.recv().await.unwrap();
        assert_eq!((&*path, &*note), ("/apis/events.k8s.io/v1/namespaces/default/events", "again"));
        for _ in 0..1000 {
            record(&recorder, "again");
            tokio::task::yield_now().await;
        }
        let (path, series) = requests.recv().await.unwrap();
        assert!(path.starts_with("/apis/events.k8s.io/v1/namespaces/default/events/web."), "{path}");
        assert!(series.starts_with(r#"{"series":{"count":2,"#), "{series}");
        let start = Instant::now();
        let (again, series) = requests.recv().await.unwrap();
        assert_eq!(again, path);
        assert!(series.starts_with(r#"{"series":{"count":1001,"#), "{series}");
        assert!(start.elapsed() >= Duration::from_secs(50), "{:?}", start.elapsed());
    }
}
