//! Services that have left the watch. The API server sends the same event for a deleted Service and for one that has
//! left the selection, so a LIST by name decides: a Service that exists and isn't selected any more keeps its link for
//! a while. The same applies to a Service that is missing from the list after an interruption of the watch.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::model::excerpt::value;
use crate::model::service_key::ServiceKey;
use crate::object_log::ObjectLog;
use crate::sync::k8s::errors::{ApiAvailability, ThrottledLog, describe, retry_after};
use crate::sync::k8s::forbidden::{Forbidden, LastingRefusal};
use crate::sync::k8s::service::{LOAD_BALANCER, Service};
use crate::sync::k8s::watch::{RequestQuery, find};
use crate::sync::removal::facts::{Found, Membership, Which};
use crate::sync::removal::verdict::{Verdict, may_remove};
use crate::sync::source::kept_services::KeptServices;
use crate::sync::source::selection::Selection;
use crate::sync::task::backoff::Backoff;
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use kube::Client;
use tokio::time::{Instant as Due, sleep_until};

/// Maximum number of concurrent LISTs: many Services may be deleted together.
const MAX_CONCURRENT_LOOKUPS: usize = 8;
/// The first and the longest pause after a failed LIST.
const RETRY_BACKOFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

/// A Service that was reported as deleted, that a list lacks, or that isn't selected any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DepartedService {
    pub(super) key: ServiceKey,
    pub(super) uid: String,
    pub(super) version: Option<u64>,
}

/// A Service with a pending LIST.
struct PendingLookup {
    deleted: DepartedService,
    /// The number of this look-up: answers to an earlier look-up of the same key are ignored.
    number: u64,
    /// The time of the LIST; `None` while it is in flight.
    due: Option<Due>,
    pauses: Backoff,
    refusal: LastingRefusal,
}

/// The result of a LIST: the number of the [`PendingLookup`], the Service, and the answer.
type LookupResult = (u64, DepartedService, kube::Result<Found>);

/// The Services that have left the selection, or may have.
pub(super) struct RemovalChecks {
    client: Client,
    availability: ApiAvailability,
    selection: Arc<Selection>,
    /// The Services without an answer to their LIST.
    pending: HashMap<ServiceKey, PendingLookup>,
    /// The Services of `pending` without a LIST in flight, by the time of their next LIST.
    waiting: BTreeSet<(Due, ServiceKey)>,
    in_flight: FuturesUnordered<BoxFuture<'static, LookupResult>>,
    /// The number of the last look-up.
    last_number: u64,
    /// One log for all Services, because the look-ups of a deleted namespace fail together; a new one after the last
    /// pending look-up.
    error_log: ThrottledLog,
    /// Services that are selected again according to the LIST, but not yet according to the watch.
    reselected: HashSet<ServiceKey>,
    pub(super) kept: KeptServices,
    log: ObjectLog,
    list_hint: &'static str,
}

impl RemovalChecks {
    pub(super) fn new(
        client: Client,
        availability: ApiAvailability,
        selection: Arc<Selection>,
        delay: Duration,
        log: ObjectLog,
        list_hint: &'static str,
    ) -> Self {
        Self {
            client,
            availability,
            selection,
            pending: HashMap::new(),
            waiting: BTreeSet::new(),
            in_flight: FuturesUnordered::new(),
            last_number: 0,
            error_log: ThrottledLog::default(),
            reselected: HashSet::new(),
            kept: KeptServices::new(delay),
            log,
            list_hint,
        }
    }

    /// Looks up whether a Service is gone, or has only left the selection. A pending look-up keeps its schedule.
    pub(super) fn start_check(&mut self, deleted: DepartedService) {
        if let Some(pending) = self.pending.get_mut(&deleted.key) {
            pending.deleted = deleted;
            return;
        }
        if self.pending.is_empty() {
            self.error_log = ThrottledLog::default();
        }
        let (key, due) = (deleted.key.clone(), Due::now());
        self.last_number += 1;
        self.waiting.insert((due, key.clone()));
        let (pauses, refusal) = (Backoff::new(RETRY_BACKOFF), LastingRefusal::default());
        let pending = PendingLookup { deleted, number: self.last_number, due: Some(due), pauses, refusal };
        self.pending.insert(key, pending);
        self.ask_next();
    }

    /// Sends the LISTs that are due, up to the limit.
    fn ask_next(&mut self) {
        let now = Due::now();
        while self.in_flight.len() < MAX_CONCURRENT_LOOKUPS
            && self.waiting.first().is_some_and(|(due, _)| *due <= now)
            && let Some((_, key)) = self.waiting.pop_first()
        {
            let Some(pending) = self.pending.get_mut(&key) else { continue };
            pending.due = None;
            let (number, deleted) = (pending.number, pending.deleted.clone());
            let (client, availability) = (self.client.clone(), self.availability.clone());
            let (selection, log) = (Arc::clone(&self.selection), self.log.clone());
            let in_flight = async move {
                let answer = look_up(client, &availability, &selection, &log, &deleted).await;
                (number, deleted, answer)
            };
            self.in_flight.push(Box::pin(in_flight));
        }
    }

    /// Waits for the next answer to [`RemovalChecks::start_check`]. A Service that was observed again meanwhile gets no
    /// answer.
    pub(super) async fn answer(&mut self) -> (DepartedService, Found) {
        loop {
            self.ask_next();
            let has_room = self.in_flight.len() < MAX_CONCURRENT_LOOKUPS;
            let due = self.waiting.first().map(|(due, _)| *due).filter(|_| has_room);
            let next_is_due = async {
                match due {
                    Some(due) => sleep_until(due).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                Some(tried) = self.in_flight.next() => {
                    if let Some(answer) = self.take(tried) {
                        return answer;
                    }
                }
                () = next_is_due => {}
            }
        }
    }

    /// Processes the result of a LIST. Returns the answer, unless it is outdated or decides nothing.
    fn take(&mut self, (number, deleted, answer): LookupResult) -> Option<(DepartedService, Found)> {
        let pending = self.pending.get_mut(&deleted.key).filter(|pending| pending.number == number)?;
        let pause = match answer {
            Ok(found) if pending.deleted == deleted => {
                self.pending.remove(&deleted.key);
                if found == Found::same(Membership::Selected) {
                    self.reselected.insert(deleted.key.clone());
                }
                return Some((deleted, found));
            }
            // Another event has arrived since the LIST was sent.
            Ok(_) => {
                pending.refusal.note(false);
                Duration::ZERO
            }
            Err(error) => {
                let is_refused = Forbidden::lists_services(&error);
                pending.refusal.note(is_refused);
                let refused = Found::Refused { is_lasting: pending.refusal.is_lasting() };
                let found = if is_refused { refused } else { Found::Failed };
                let facts = self.kept.facts(&deleted.key, &deleted.uid, found);
                if let Verdict::Remove(reason) = may_remove(&facts, Instant::now()) {
                    // The namespace may have been deleted, together with the permission to list its Services.
                    let line = format_args!(
                        "Service {} counts as gone: it has left the watch, and for ten minutes the API server has \
                         refused every LIST of it ({reason})",
                        deleted.key
                    );
                    self.log.warn(&deleted.key, line);
                    self.pending.remove(&deleted.key);
                    return Some((deleted, found));
                }
                if let kube::Error::Api(status) = &error {
                    let doing = format!("list Service {} by its name", deleted.key);
                    self.error_log.report(status.code, &describe(&error, &doing, self.list_hint));
                }
                pending.pauses.next().max(retry_after(&error).unwrap_or_default())
            }
        };
        let due = Due::now() + pause;
        pending.due = Some(due);
        self.waiting.insert((due, deleted.key));
        None
    }

    /// Cancels the look-up of a Service. Returns whether there was one.
    fn cancel_check(&mut self, key: &ServiceKey) -> bool {
        let Some(pending) = self.pending.remove(key) else { return false };
        if let Some(due) = pending.due {
            self.waiting.remove(&(due, key.clone()));
        }
        true
    }

    /// Keeps the link of a Service that has left the selection. Returns whether it wasn't kept before.
    pub(super) fn keep(&mut self, key: &ServiceKey, uid: &str) -> bool {
        self.cancel_check(key);
        self.kept.keep(key, uid)
    }

    /// Forgets a Service after an event has shown its state. Returns whether the Service was reported as deleted since
    /// the watch last returned it.
    pub(super) fn forget(&mut self, key: &ServiceKey) -> bool {
        self.kept.forget(key);
        let (was_asked, is_back) = (self.cancel_check(key), self.reselected.remove(key));
        was_asked || is_back
    }

    /// Returns the Services with links that stay although a list lacks them.
    pub(super) fn keys(&self) -> impl Iterator<Item = &ServiceKey> {
        self.pending.keys().chain(self.kept.keys())
    }
}

/// Sends a LIST by name. A Service of another type, which counts as gone, is logged.
async fn look_up(
    client: Client,
    availability: &ApiAvailability,
    selection: &Selection,
    log: &ObjectLog,
    deleted: &DepartedService,
) -> kube::Result<Found> {
    let (namespace, name) = deleted.key.parts();
    let found = find::<Service>(client, &RequestQuery::named(namespace, name)).await;
    match &found {
        Ok(_) => availability.report_available(),
        Err(error) => availability.report_error(error),
    }
    let Some(found) = found? else { return Ok(Found::Absent) };
    let is_same = kube::Resource::meta(&found).uid.as_deref() == Some(&*deleted.uid);
    let which = if is_same { Which::Same } else { Which::Another };
    // A Service that can't be decoded exists: it counts as not selected, not as gone.
    let Ok(service) = found.0 else {
        return Ok(Found::Exists { which, membership: Membership::NotSelected, is_open: true });
    };
    if is_same
        && service.metadata.deletion_timestamp.is_none()
        && let Some(type_) = service.spec.type_.as_deref().filter(|type_| *type_ != LOAD_BALANCER)
    {
        let key = &deleted.key;
        log.info(key, format_args!("Service {key} is of type {} now: it counts as gone", value(type_)));
    }
    Ok(Found::Exists { which, membership: selection.membership(&service), is_open: true })
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use axum::body::Body;
    use axum::http::{Request, Response};
    use parking_lot::Mutex;
    use serde_json::{Value, json};
    use tokio::time::timeout;

    use super::*;
    use crate::sync::k8s::errors::WatchLog;

    /// The URIs of the requests to the API server stub.
    type Requests = Arc<Mutex<Vec<String>>>;

    /// Returns a `RemovalChecks` with an API server stub, which answers by namespace: "open" has no Services, "closed"
    /// gets 403, "revoked" gets 403 for lack of permission, "busy" gets 429, and any other namespace gets no answer.
    fn leaving(delay: u64) -> (RemovalChecks, Requests) {
        let requests = Requests::default();
        let log = Arc::clone(&requests);
        let service = tower::service_fn(move |request: Request<kube::client::Body>| {
            let uri = request.uri().to_string();
            let namespace = uri.split('/').nth(4).unwrap_or_default().to_owned();
            log.lock().push(uri);
            async move {
                let status = |code: u16, details: Value| {
                    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                        "code": code, "reason": "r", "message": "m", "details": details});
                    (code, status)
                };
                let (code, body) = match namespace.as_str() {
                    "open" => (200, json!({"metadata": {"resourceVersion": "1"}, "items": []})),
                    "closed" => status(403, json!({})),
                    "revoked" => {
                        let (code, mut status) = status(403, json!({}));
                        status["message"] =
                            "services \"web\" is forbidden: User \"lb-linker\" cannot list resource \
                            \"services\" in API group \"\" in the namespace \"revoked\""
                                .into();
                        (code, status)
                    }
                    "busy" => status(429, json!({"retryAfterSeconds": 100})),
                    _ => std::future::pending().await,
                };
                let response = Response::builder().status(code).body(Body::from(body.to_string()));
                Ok::<_, Infallible>(response.unwrap())
            }
        });
        let client = Client::new(service, "default");
        (
            RemovalChecks::new(
                client,
                ApiAvailability::default(),
                Arc::default(),
                Duration::from_secs(delay),
                ObjectLog::default(),
                WatchLog::READING,
            ),
            requests,
        )
    }

    fn deleted(namespace: &str, name: &str, uid: &str) -> DepartedService {
        DepartedService { key: ServiceKey::new(namespace, name), uid: uid.to_owned(), version: None }
    }

    /// Returns the answers of the next `seconds` seconds.
    async fn answers(leaving: &mut RemovalChecks, seconds: u64) -> Vec<(DepartedService, Found)> {
        let end = Due::now() + Duration::from_secs(seconds);
        let mut all = Vec::new();
        while let Ok(answer) = tokio::time::timeout_at(end, leaving.answer()).await {
            all.push(answer);
        }
        all
    }

    #[tokio::test(start_paused = true)]
    async fn refused_look_ups_dont_delay_other_look_ups() {
        let (mut leaving, requests) = leaving(0);
        let refused: Vec<DepartedService> =
            (0..=MAX_CONCURRENT_LOOKUPS).map(|number| deleted("closed", &number.to_string(), "u")).collect();
        refused.iter().for_each(|refused| leaving.start_check(refused.clone()));
        let granted = deleted("open", "web", "u");
        leaving.start_check(granted.clone());
        let answer = timeout(Duration::from_millis(100), leaving.answer()).await;
        assert_eq!(answer.ok(), Some((granted, Found::Absent)));

        // Pauses of 0.5, 1, 2, 4, 8, 16, 30 s and so on, each with a jitter of at most its own length.
        assert_eq!(answers(&mut leaving, 300).await, []);
        for refused in &refused {
            let named = format!("metadata.name%3D{}", refused.key.parts().1);
            let times = requests.lock().iter().filter(|uri| uri.contains(&named)).count();
            assert!((12..=20).contains(&times), "{times} times {named}");
        }
        let before = requests.lock().len();
        assert!(refused.iter().all(|refused| leaving.forget(&refused.key)));
        assert!(leaving.waiting.is_empty());
        assert_eq!(answers(&mut leaving, 300).await, []);
        assert_eq!(requests.lock().len(), before, "forgotten Services aren't looked up any more");
    }

    #[tokio::test(start_paused = true)]
    async fn look_up_without_permission_ends_after_ten_minutes() {
        let (mut leaving, _) = leaving(0);
        let (web, denied) = (deleted("revoked", "web", "u"), deleted("closed", "web", "u"));
        leaving.start_check(web.clone());
        leaving.start_check(denied);
        assert_eq!(answers(&mut leaving, 599).await, []);
        assert_eq!(answers(&mut leaving, 62).await, [(web, Found::Refused { is_lasting: true })]);
        assert_eq!(answers(&mut leaving, 3600).await, [], "a 403 by a policy says nothing about permissions");
    }

    #[tokio::test(start_paused = true)]
    async fn look_ups_honor_retry_after() {
        let (mut leaving, requests) = leaving(0);
        leaving.start_check(deleted("busy", "web", "u"));
        assert_eq!(answers(&mut leaving, 99).await, []);
        assert_eq!(requests.lock().len(), 1);
        assert_eq!(answers(&mut leaving, 100).await, []);
        assert_eq!(requests.lock().len(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn repeated_look_up_of_a_key_makes_one_request() {
        let (mut leaving, requests) = leaving(0);
        let web = deleted("open", "web", "u");
        leaving.start_check(web.clone());
        leaving.start_check(web.clone());
        assert_eq!(answers(&mut leaving, 60).await, [(web.clone(), Found::Absent)]);
        assert_eq!(requests.lock().len(), 1);

        // The second event arrives after the LIST was sent, so this LIST answers only the first one.
        let another = deleted("open", "web", "another");
        leaving.start_check(web);
        leaving.start_check(another.clone());
        assert_eq!(answers(&mut leaving, 60).await, [(another, Found::Absent)]);
        assert_eq!(requests.lock().len(), 3);
    }

    #[tokio::test]
    async fn kept_link_expires_after_the_delay() {
        let ((mut leaving, _), key) = (leaving(600), ServiceKey::new("a", "web"));
        assert!(leaving.keep(&key, "1"));
        assert!(!leaving.keep(&key, "1"), "the delay counts from the first time");
        let due = leaving.kept.due().unwrap();
        assert!(leaving.kept.take_expired(due - Duration::from_secs(1)).is_empty());
        let [(over, uid, since)] = &leaving.kept.take_expired(due)[..] else { panic!() };
        assert_eq!((over, uid.as_str(), *since + Duration::from_secs(600)), (&key, "1", due));
        assert_eq!(leaving.kept.due(), None);
        assert!(leaving.keep(&key, "1") && leaving.keep(&key, "2"), "another Service of that name");
        assert!(!leaving.forget(&key), "the Service was never reported as deleted");
        assert_eq!(leaving.keys().count(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn concurrent_look_ups_are_limited_and_deduplicated() {
        let (mut leaving, requests) = leaving(0);
        for number in 0..20 {
            leaving.start_check(deleted("a", &(number % 15).to_string(), &number.to_string()));
        }
        assert_eq!((leaving.in_flight.len(), leaving.keys().count()), (MAX_CONCURRENT_LOOKUPS, 15));
        assert_eq!(leaving.waiting.len(), 15 - MAX_CONCURRENT_LOOKUPS);
        assert_eq!(answers(&mut leaving, 1).await, []);
        assert_eq!(requests.lock().len(), MAX_CONCURRENT_LOOKUPS);
        assert!(leaving.forget(&ServiceKey::new("a", "0")));
        assert_eq!(leaving.keys().count(), 14);
    }
}
