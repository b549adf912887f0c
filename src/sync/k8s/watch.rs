//! A list/watch loop on kube's client, for every watch of lb-linker.
//!
//! kube's own watcher hides bookmarks, has a fixed page size, doesn't fall back from streamed lists to pages, restarts
//! a watch without a pause if it was answered with 200 and closed, and keeps using a resourceVersion for which the API
//! server answers a watch request with 410. It doesn't notice a watch that is silently dead, as after a restore of etcd
//! to an earlier revision. Here a watch has to prove that it is alive: see `progress`.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use kube::core::Request;
use kube::{Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep_until, timeout};

use super::deserialize_guard::RawDeserializeGuard;
use super::errors::{ApiAvailability, ObjectErrors, SETTLED_AFTER, is_lost, is_unreachable, retry_after};
use crate::metrics::staleness::LastActivity;
use crate::model::service_key::ServiceKey;
pub use find::list_pages;
pub(crate) use find::{find, find_in_etcd};
pub use item::{Event, WatchError, WatchItem, WatchStream};
use progress::{ObjectChange, WatchInput, WatchProgress, WatchStep, number};
pub use request::RequestQuery;
use request::{WATCH_SECONDS, broken, open, read_one, read_page};
use wire::{PageError, PageSize, WireEvent};

mod find;
pub(crate) mod item;
mod progress;
mod request;
pub mod wire;

/// Maximum duration of a watch: if it hasn't ended by then, the connection is dead. This limits the silence of a dead
/// connection to less than a minute.
const WATCH_TIMEOUT: Duration = Duration::from_secs(WATCH_SECONDS as u64 + 5);
/// Maximum pause within a streamed list.
const STREAM_IDLE_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for which lists aren't streamed after the API server has refused to stream a list, or has paused within a
/// streamed list for [`STREAM_IDLE_TIMEOUT`].
const STREAM_RETRY_INTERVAL: Duration = Duration::from_secs(3600);
/// The first and the longest pause after a failure.
const RELIST_BACKOFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

/// Lists the objects of a query, and watches them afterwards. `activity` records the time of each sign of life, and
/// `availability` the answers that cause no event: a resumed watch, and bookmarks.
pub fn list_watch<K>(
    client: Client,
    query: RequestQuery,
    activity: Arc<LastActivity>,
    availability: ApiAvailability,
) -> WatchStream<K>
where
    K: Resource<DynamicType = ()> + DeserializeOwned + Send + 'static,
{
    let request = Request::new(query.path::<K>());
    let now = Instant::now();
    let list_watch = ListWatch {
        client,
        request,
        query,
        activity,
        availability,
        progress: WatchProgress::new(now),
        pages: PageSize::default(),
        streams: Streams::default(),
        state: ListWatchState::Rest { until: now, step: WatchStep::List(0) },
        has_failed: false,
        settles_at: None,
        pending: VecDeque::new(),
    };
    let items = futures::stream::unfold(list_watch, |mut list_watch| async move {
        Some((list_watch.next().await, list_watch))
    });
    items.boxed()
}

/// Whether lists are streamed.
#[derive(Debug, Default)]
struct Streams {
    /// The time until which lists aren't streamed, because the API server can't stream them.
    refused_until: Option<Instant>,
    /// Whether the last streamed list failed, other than with 401, 403, 404 or 429: the next list is read in pages.
    failed: bool,
}

impl Streams {
    fn may_stream(&self, now: Instant) -> bool {
        !self.failed && self.refused_until.is_none_or(|until| now >= until)
    }

    /// Records that a streamed list has failed: the next list is read in pages, and, if the API server can't stream
    /// lists, so are the lists of the next hour.
    fn note_failure(&mut self, refused: bool, now: Instant) {
        self.failed = true;
        if refused {
            self.refused_until = Some(now + STREAM_RETRY_INTERVAL);
        }
    }
}

struct ListWatch<K> {
    client: Client,
    request: Request,
    query: RequestQuery,
    activity: Arc<LastActivity>,
    availability: ApiAvailability,
    progress: WatchProgress,
    pages: PageSize,
    streams: Streams,
    state: ListWatchState<K>,
    /// Whether the last request or the last watch has failed.
    has_failed: bool,
    /// When the present watch shows that the API server can be reached, unless that is known.
    settles_at: Option<Instant>,
    /// Items to return before the next step.
    pending: VecDeque<WatchItem<K>>,
}

/// The counts of an incomplete list.
#[derive(Debug, Default)]
struct ListProgress {
    objects: u64,
    /// The newest resourceVersion; `None` if a resourceVersion isn't a number.
    newest: Option<u64>,
}

impl ListProgress {
    fn new() -> Self {
        Self { objects: 0, newest: Some(0) }
    }

    fn add<K: Resource>(&mut self, object: &RawDeserializeGuard<K>) {
        self.objects += 1;
        self.note_version(object);
    }

    /// Adds another version of an object that has been counted already.
    fn note_version<K: Resource>(&mut self, object: &RawDeserializeGuard<K>) {
        let version = object.meta().resource_version.as_deref().and_then(number);
        self.newest = self.newest.zip(version).map(|(newest, version)| newest.max(version));
    }
}

enum ListWatchState<K> {
    /// Waiting for the next request.
    Rest { until: Instant, step: WatchStep },
    /// About to request a streamed list.
    BeginStream,
    /// Reading a list page by page.
    Pages {
        token: Option<String>,
        items: VecDeque<RawDeserializeGuard<K>>,
        version: Option<String>,
        count: ListProgress,
    },
    /// Reading a streamed list, which continues as a watch. Deletions are returned after the list.
    Stream {
        events: wire::Events<K>,
        ends_at: Instant,
        count: ListProgress,
        deleted: Vec<RawDeserializeGuard<K>>,
    },
    /// Reading a watch.
    Watch { events: wire::Events<K>, ends_at: Instant },
}

#[expect(clippy::large_enum_variant, reason = "nearly all are objects, and there is one at a time")]
enum StepResult<K> {
    Item(WatchItem<K>),
    Quiet,
}

impl<K> ListWatch<K>
where
    K: Resource<DynamicType = ()> + DeserializeOwned + Send + 'static,
{
    /// Returns the next item. Cancel-safe: the state changes only after an await has completed.
    async fn next(&mut self) -> WatchItem<K> {
        loop {
            if let Some(item) = self.pending.pop_front() {
                return item;
            }
            if let StepResult::Item(item) = self.advance().await {
                return item;
            }
        }
    }

    async fn advance(&mut self) -> StepResult<K> {
        match &mut self.state {
            ListWatchState::Rest { until, step } => {
                let step = *step;
                sleep_until(*until).await;
                self.begin(step).await
            }
            ListWatchState::Pages { items, .. } => match items.pop_front() {
                Some(object) => StepResult::Item(Ok(Event::Listed(object))),
                None => self.next_page().await,
            },
            ListWatchState::BeginStream => self.begin_stream().await,
            ListWatchState::Stream { .. } => self.next_of_stream().await,
            ListWatchState::Watch { .. } => self.next_of_watch().await,
        }
    }

    async fn begin(&mut self, step: WatchStep) -> StepResult<K> {
        if !matches!(step, WatchStep::List(_)) {
            if Instant::now() >= self.progress.deadline() {
                return self.on_input(WatchInput::Silence);
            }
            return match step {
                WatchStep::AskNewest(_) => self.ask_newest().await,
                _ => self.begin_watch().await,
            };
        }
        // Return `ListBegins` before the request: writes from here on may be newer than the list.
        self.state = if self.streams.may_stream(Instant::now()) {
            ListWatchState::BeginStream
        } else {
            self.streams.failed = false;
            ListWatchState::Pages {
                token: None,
                items: VecDeque::new(),
                version: None,
                count: ListProgress::new(),
            }
        };
        StepResult::Item(Ok(Event::ListBegins))
    }

    async fn begin_stream(&mut self) -> StepResult<K> {
        // Without a resourceVersion the list is at least as new as this moment.
        let params = self.query.watch().initial_events();
        match open(self.client.clone(), self.query.watch_request(&self.request, &params, "")).await {
            Ok(events) => {
                self.progress.take(WatchInput::WatchBegan, Instant::now());
                let ends_at = Instant::now() + WATCH_TIMEOUT;
                self.state = ListWatchState::Stream {
                    events,
                    ends_at,
                    count: ListProgress::new(),
                    deleted: Vec::new(),
                };
                StepResult::Quiet
            }
            Err(error) => self.stream_failed(error),
        }
    }

    async fn next_of_stream(&mut self) -> StepResult<K> {
        let ListWatchState::Stream { events, ends_at, count, deleted } = &mut self.state else {
            return StepResult::Quiet;
        };
        let sent = match timeout(STREAM_IDLE_TIMEOUT, events.next()).await {
            Ok(Ok(Some(sent))) => sent,
            Ok(Ok(None)) => return self.stream_failed(broken("the streamed list ended too early")),
            Ok(Err(error)) => return self.stream_failed(kube::Error::ReadEvents(error)),
            Err(_) => {
                // Probably an API server that streams objects but never sends the bookmark at the end.
                self.streams.note_failure(true, Instant::now());
                return self
                    .stream_failed(broken("the streamed list sends neither another object nor its end"));
            }
        };
        match sent {
            WireEvent::Object(_, object) if identified(&object).is_none() => self.stream_failed(broken(
                "the streamed list has an object without a namespace, a name or a resourceVersion",
            )),
            WireEvent::Object(ObjectChange::Deleted, object) => {
                count.objects = count.objects.saturating_sub(1);
                deleted.push(object);
                StepResult::Quiet
            }
            WireEvent::Object(change, object) => {
                match change {
                    ObjectChange::Modified => count.note_version(&object),
                    ObjectChange::Added | ObjectChange::Deleted => count.add(&object),
                }
                StepResult::Item(Ok(Event::Listed(object)))
            }
            WireEvent::Bookmark { ends_list: false, .. } => StepResult::Quiet,
            WireEvent::Bookmark { version, ends_list: true } => {
                let ends_at = *ends_at;
                let (count, deleted) = (std::mem::take(count), std::mem::take(deleted));
                let ListWatchState::Stream { events, .. } = std::mem::replace(
                    &mut self.state,
                    ListWatchState::Rest { until: ends_at, step: WatchStep::List(0) },
                ) else {
                    return StepResult::Quiet;
                };
                self.state = ListWatchState::Watch { events, ends_at };
                self.settles_at = Some(Instant::now() + SETTLED_AFTER);
                let item = self.listed(&version, &count);
                self.pending.extend(deleted.into_iter().map(|object| Ok(Event::Deleted(object))));
                item
            }
            WireEvent::Error(status) => self.stream_failed(kube::Error::Api(status)),
            WireEvent::Unidentified => {
                self.stream_failed(broken("the streamed list has an event that can't be read"))
            }
        }
    }

    fn stream_failed(&mut self, error: kube::Error) -> StepResult<K> {
        let now = Instant::now();
        let code = code(&error);
        // An API server without streamed lists refuses their parameters.
        let refused = matches!(code, 400 | 422);
        if refused {
            self.streams.note_failure(true, now);
            self.state = ListWatchState::Rest { until: now, step: WatchStep::List(0) };
            return StepResult::Quiet;
        }
        // These codes are independent of streaming.
        if !matches!(code, 401 | 403 | 404 | 429) {
            self.streams.note_failure(false, now);
        }
        self.fail(list_failed(&error), WatchError::List(error))
    }

    async fn next_page(&mut self) -> StepResult<K> {
        let ListWatchState::Pages { token, version, .. } = &self.state else { return StepResult::Quiet };
        if let (None, Some(version)) = (token, version) {
            let version = version.clone();
            let ListWatchState::Pages { count, .. } = std::mem::replace(
                &mut self.state,
                ListWatchState::Rest { until: Instant::now(), step: WatchStep::Watch(0) },
            ) else {
                return StepResult::Quiet;
            };
            return self.listed(&version, &count);
        }
        let limit = self.pages.objects();
        let request = self.query.list_request(&self.request, limit, token.as_deref());
        let page = match read_page(self.client.clone(), request, limit).await {
            Ok((page, bytes)) => {
                self.pages = self.pages.after(page.items.len(), bytes);
                page
            }
            Err(PageError::TooLarge) => {
                self.pages = self.pages.smaller();
                return StepResult::Quiet;
            }
            Err(PageError::Kube(error)) => {
                return self.fail(list_failed(&error), WatchError::List(error));
            }
        };
        let ListWatchState::Pages { token, items, version, count } = &mut self.state else {
            return StepResult::Quiet;
        };
        page.items.iter().for_each(|object| count.add(object));
        *items = page.items.into();
        *token = page.metadata.continue_.filter(|token| !token.is_empty());
        *version = Some(page.metadata.resource_version.unwrap_or_default());
        StepResult::Quiet
    }

    fn listed(&mut self, version: &str, count: &ListProgress) -> StepResult<K> {
        let rewound = self.progress.rewinds(version);
        let &ListProgress { objects, newest } = count;
        self.progress.take(WatchInput::Listed { version, objects, newest }, Instant::now());
        self.streams.failed = false;
        self.has_failed = false;
        self.activity.note();
        StepResult::Item(Ok(Event::ListEnds { version: number(version), rewound }))
    }

    /// Reads the newest resourceVersion from a list of one object without a resourceVersion.
    async fn ask_newest(&mut self) -> StepResult<K> {
        let request = self.query.list_request(&self.request, 1, None);
        match read_one::<K>(self.client.clone(), request).await {
            Ok((page, _)) => {
                let version = page.metadata.resource_version.unwrap_or_default();
                self.on_input(WatchInput::Newest(&version))
            }
            // Unreachable: for a list of one object `Page::read` returns another error.
            Err(PageError::TooLarge) => self.on_input(WatchInput::Silence),
            Err(PageError::Kube(error)) => self.fail(watch_failed(&error), WatchError::List(error)),
        }
    }

    async fn begin_watch(&mut self) -> StepResult<K> {
        let Some(version) = self.progress.version().map(ToOwned::to_owned) else {
            self.state = ListWatchState::Rest { until: Instant::now(), step: WatchStep::List(0) };
            return StepResult::Quiet;
        };
        let request = self.query.watch_request(&self.request, &self.query.watch(), &version);
        match open(self.client.clone(), request).await {
            Ok(events) => {
                self.availability.report_available();
                self.activity.note_connection();
                self.progress.take(WatchInput::WatchBegan, Instant::now());
                self.state = ListWatchState::Watch { events, ends_at: Instant::now() + WATCH_TIMEOUT };
                self.settles_at = Some(Instant::now() + SETTLED_AFTER);
                match std::mem::take(&mut self.has_failed) {
                    true => StepResult::Item(Ok(Event::Resumed)),
                    false => StepResult::Quiet,
                }
            }
            Err(error) => self.fail(watch_failed(&error), WatchError::Watch(error)),
        }
    }

    async fn next_of_watch(&mut self) -> StepResult<K> {
        let deadline = self.progress.deadline();
        let ListWatchState::Watch { events, ends_at } = &mut self.state else { return StepResult::Quiet };
        let sent = tokio::select! {
            // Prefer events that have arrived to the timers.
            biased;
            sent = events.next() => sent,
            () = sleep_until(deadline) => return self.on_input(WatchInput::Silence),
            () = sleep_until(*ends_at) => return self.on_input(WatchInput::WatchEnded),
            () = sleep_until_opt(self.settles_at) => {
                self.settles_at = None;
                self.availability.report_alive();
                return StepResult::Quiet;
            }
        };
        match sent {
            Ok(Some(sent)) => self.sent(sent),
            Ok(None) => {
                self.activity.note_connection();
                self.on_input(WatchInput::WatchEnded)
            }
            Err(error) => {
                if !is_lost(&error) {
                    self.activity.note_connection();
                }
                self.fail(WatchInput::WatchFailed(0), WatchError::Watch(kube::Error::ReadEvents(error)))
            }
        }
    }

    fn sent(&mut self, sent: WireEvent<K>) -> StepResult<K> {
        match sent {
            WireEvent::Object(change, object) => {
                let Some(version) = identified(&object).map(ToOwned::to_owned) else {
                    return self.fail(WatchInput::Unidentified, WatchError::Unidentified);
                };
                self.activity.note();
                self.follow(WatchInput::Event { version: &version, change }, Duration::ZERO);
                if !matches!(self.state, ListWatchState::Watch { .. }) {
                    return StepResult::Quiet;
                }
                StepResult::Item(Ok(match change {
                    ObjectChange::Deleted => Event::Deleted(object),
                    ObjectChange::Added | ObjectChange::Modified => Event::Applied(object),
                }))
            }
            WireEvent::Bookmark { version, .. } => {
                self.activity.note();
                self.availability.report_alive();
                self.on_input(WatchInput::Bookmark(&version))
            }
            WireEvent::Error(status) => {
                self.fail(WatchInput::WatchFailed(status.code), WatchError::Ended(status))
            }
            WireEvent::Unidentified => self.fail(WatchInput::Unidentified, WatchError::Unidentified),
        }
    }

    fn on_input(&mut self, input: WatchInput<'_>) -> StepResult<K> {
        self.follow(input, Duration::ZERO);
        StepResult::Quiet
    }

    fn fail(&mut self, input: WatchInput<'_>, error: WatchError) -> StepResult<K> {
        self.has_failed = true;
        let requested = requested_pause(&error);
        self.follow(input, requested);
        if let (Some(longest), ListWatchState::Rest { until, .. }) =
            (self.query.first_list_pause, &mut self.state)
            && self.progress.version().is_none()
            && matches!(error.code(), 401 | 403 | 404)
        {
            *until = (*until).min(Instant::now() + longest.max(requested));
        }
        StepResult::Item(Err(error))
    }

    fn follow(&mut self, input: WatchInput<'_>, at_least: Duration) {
        let now = Instant::now();
        let step = self.progress.take(input, now);
        let until = match step {
            WatchStep::Continue => return,
            // Limit the pause, so that pauses between short watches don't delay the list beyond the deadline.
            WatchStep::Watch(step) | WatchStep::AskNewest(step) => {
                (now + pause(step)).min(self.progress.deadline())
            }
            WatchStep::List(step) => now + pause(step),
        };
        self.state = ListWatchState::Rest { until: until.max(now + at_least), step };
    }
}

/// Returns the resourceVersion of an object, if the object has a namespace, unless it is one, a name and a
/// resourceVersion.
fn identified<K: Resource<DynamicType = ()>>(object: &RawDeserializeGuard<K>) -> Option<&str> {
    let meta = object.meta();
    let text = |text: &'_ Option<String>| text.as_deref().is_some_and(|text| !text.is_empty());
    let is_named = text(&meta.name) && (text(&meta.namespace) || K::plural(&()) == "namespaces");
    meta.resource_version.as_deref().filter(|version| is_named && !version.is_empty())
}

/// Returns the pause after this number of failures in a row, with jitter: zero after none, then doubled each time, up
/// to the maximum of [`RELIST_BACKOFF`].
fn pause(failures: u32) -> Duration {
    let Some(step) = failures.checked_sub(1) else { return Duration::ZERO };
    let pause =
        RELIST_BACKOFF.0.saturating_mul(1_u32.checked_shl(step).unwrap_or(u32::MAX)).min(RELIST_BACKOFF.1);
    // Half of the pause is random, so that many replicas don't reconnect at the same time.
    pause.mul_f64(rand::random_range(0.5..=1.0))
}

/// Returns the pause that the API server requests after an error.
fn requested_pause(error: &WatchError) -> Duration {
    match error {
        WatchError::List(error) | WatchError::Watch(error) => retry_after(error).unwrap_or_default(),
        WatchError::Ended(status) => retry_after(&kube::Error::Api(status.clone())).unwrap_or_default(),
        WatchError::Unidentified => Duration::ZERO,
    }
}

fn list_failed(error: &kube::Error) -> WatchInput<'static> {
    if is_unreachable(error) { WatchInput::ListUnreachable } else { WatchInput::ListFailed(code(error)) }
}

fn watch_failed(error: &kube::Error) -> WatchInput<'static> {
    if is_unreachable(error) { WatchInput::WatchUnreachable } else { WatchInput::WatchFailed(code(error)) }
}

fn code(error: &kube::Error) -> u16 {
    match error {
        kube::Error::Api(status) => status.code,
        _ => 0,
    }
}

/// The name of the watches of LoadBalancer Services.
pub(crate) const LOAD_BALANCERS: &str = "load-balancers";
/// The name of the watches of StableNames.
pub(crate) const STABLE_NAMES: &str = "stable-names";
/// The name of the watches of Ingresses.
pub(crate) const INGRESSES: &str = "ingresses";
/// The names of the watches of Gateways, of ListenerSets, and of routes.
pub(crate) const GATEWAYS: &str = "gateways";
pub(crate) const LISTENER_SETS: &str = "listenersets";
pub(crate) const HTTP_ROUTES: &str = "httproutes";
pub(crate) const GRPC_ROUTES: &str = "grpcroutes";
pub(crate) const TLS_ROUTES: &str = "tlsroutes";
/// The name of the watches of DNSEndpoints.
pub(crate) const DNS_ENDPOINTS: &str = "dnsendpoints";
/// The watches on which names and targets depend: they are as current as the watch that has been silent for longest.
pub(crate) const OF_TARGETS: [&str; 9] = [
    LOAD_BALANCERS,
    STABLE_NAMES,
    INGRESSES,
    GATEWAYS,
    LISTENER_SETS,
    HTTP_ROUTES,
    GRPC_ROUTES,
    TLS_ROUTES,
    DNS_ENDPOINTS,
];

/// Returns the name of the watch of a namespace, or of all namespaces, for the metrics.
pub(crate) fn watch_name(watch: &str, namespace: Option<&str>) -> String {
    namespace.map_or(watch.to_owned(), |namespace| format!("{watch}/{namespace}"))
}

/// Waits until this time; forever if there is none.
pub(crate) async fn sleep_until_opt(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

/// Returns the object, or reports that it can't be decoded.
pub(crate) fn readable<K: Resource>(
    object: RawDeserializeGuard<K>,
    object_errors: &mut ObjectErrors,
) -> Option<K> {
    let key = key_of(&object);
    let complain =
        |error| object_errors.set(&key, Some(format!("it can't be read and counts as it was: {error}")));
    object.0.map_err(complain).ok()
}

/// As [`readable`], for a watch that reports no other errors of objects: also removes the error of an object that can
/// be decoded.
pub(crate) fn decoded<K: Resource>(
    object: RawDeserializeGuard<K>,
    object_errors: &mut ObjectErrors,
) -> Option<K> {
    let key = key_of(&object);
    let object = readable(object, object_errors);
    if object.is_some() {
        object_errors.set(&key, None);
    }
    object
}

pub(crate) fn key_of<K: Resource>(object: &RawDeserializeGuard<K>) -> ServiceKey {
    ServiceKey::new(&object.namespace().unwrap_or_default(), &object.name_any())
}

/// Returns `metadata.resourceVersion` as a number, which increases with each change.
pub(crate) fn version_of<K: Resource>(object: &RawDeserializeGuard<K>) -> Option<u64> {
    object.resource_version()?.parse().ok()
}

#[cfg(test)]
mod tests;
