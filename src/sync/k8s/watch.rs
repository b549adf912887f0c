//! A list/watch loop on kube's client, for every watch of lb-linker.
//!
//! kube's own watcher hides bookmarks, fixes the size of pages, has no way back from a streamed list, begins a watch
//! anew without a pause when one is answered 200 and closed, and never gives up a version that the API server has
//! called gone in answer to the request. A watch that has died in silence, as after etcd was restored to an earlier
//! revision, it doesn't notice. Here a watch has to prove that it lives: see `progress`.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::BoxStream;
use kube::api::{ListParams, VersionMatch, WatchParams};
use kube::core::{Request, Status};
use kube::{Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep_until, timeout};

use super::deserialize_guard::RawDeserializeGuard;
use super::errors::retry_after;
use crate::metrics::staleness::LastHeard;
use crate::model::service_key::ServiceKey;
use crate::sync::k8s::errors::ObjectErrors;
use progress::{ObjectChange, WatchInput, WatchProgress, WatchStep, number};
use wire::{Page, PageError, PageSize, WireEvent};

mod progress;
mod wire;

/// Seconds after which the API server ends a watch.
const WATCH_SECONDS: u32 = 50;
/// How long a watch may last: when its end hasn't come by then, the connection has died. That keeps the silence of a
/// dead connection below a minute.
const WATCH_TIMEOUT: Duration = Duration::from_secs(WATCH_SECONDS as u64 + 5);
/// How long a streamed list may pause.
const STREAM_IDLE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the answer to a list of one object may take, with its body.
const SINGLE_LIST_TIMEOUT: Duration = Duration::from_secs(10);
/// How long it is remembered that the API server can't stream lists.
const STREAM_RETRY_INTERVAL: Duration = Duration::from_secs(3600);
/// The first and the longest pause after trouble.
const RELIST_BACKOFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

/// Why a list or a watch has failed. The next one follows, after a pause.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// The list was refused, or not answered.
    #[error("the list has failed: {0}")]
    List(#[source] kube::Error),
    /// The watch was refused, or not answered.
    #[error("the watch has failed: {0}")]
    Watch(#[source] kube::Error),
    /// The API server has ended the watch.
    #[error("the API server has ended the watch: {} {}", .0.code, .0.message)]
    Ended(Box<Status>),
    /// An event doesn't say which object it is about, or which version of it.
    #[error("an event without a name or a resourceVersion")]
    Unidentified,
}

impl WatchError {
    /// Returns the HTTP code; 0 if there was no answer, or none that is an error.
    #[must_use]
    pub fn code(&self) -> u16 {
        match self {
            Self::List(kube::Error::Api(status)) | Self::Watch(kube::Error::Api(status)) => status.code,
            Self::Ended(status) => status.code,
            Self::List(_) | Self::Watch(_) | Self::Unidentified => 0,
        }
    }

    /// Returns how long the API server asks to be left alone.
    fn retry_after(&self) -> Duration {
        match self {
            Self::List(error) | Self::Watch(error) => retry_after(error).unwrap_or_default(),
            Self::Ended(status) => retry_after(&kube::Error::Api(status.clone())).unwrap_or_default(),
            Self::Unidentified => Duration::ZERO,
        }
    }
}

/// What a list/watch loop tells.
#[derive(Clone, Debug)]
pub enum Event<K> {
    /// A list begins: what came of an earlier one that hasn't ended doesn't count.
    ListBegins,
    /// An object of the list. Of several versions of an object the last one counts.
    Listed(K),
    /// The list is complete. It is the truth, whatever its version.
    ListEnds {
        /// The list's version, if it is a number.
        version: Option<u64>,
        /// Whether that is older than what this watch heard before: etcd has been restored to an earlier revision.
        rewound: bool,
    },
    /// An object is new, or has changed.
    Applied(K),
    /// An object is gone, or isn't selected any more.
    Deleted(K),
}

/// What is said next: an event, or what has failed.
pub type WatchItem<K> = Result<Event<RawDeserializeGuard<K>>, WatchError>;

/// The events of a list/watch loop; they never end.
pub type Events<K> = BoxStream<'static, WatchItem<K>>;

/// Which objects are listed and watched.
#[derive(Clone, Debug, Default)]
pub struct RequestQuery {
    /// The namespace; without one it is all.
    pub namespace: Option<String>,
    /// The field selector.
    pub fields: String,
    /// The label selector.
    pub labels: String,
    /// Whether only the metadata of objects is wanted.
    pub metadata_only: bool,
}

impl RequestQuery {
    /// Returns the query for one object.
    pub(crate) fn named(namespace: &str, name: &str) -> Self {
        let fields = format!("metadata.name={name}");
        Self { namespace: Some(namespace.to_owned()), fields, ..Self::default() }
    }

    fn list(&self, limit: u32, token: Option<&str>) -> ListParams {
        let mut params = ListParams::default().limit(limit);
        if !self.fields.is_empty() {
            params = params.fields(&self.fields);
        }
        if !self.labels.is_empty() {
            params = params.labels(&self.labels);
        }
        token.map_or(params.clone(), |token| params.continue_token(token))
    }

    fn watch(&self) -> WatchParams {
        WatchParams::default().fields(&self.fields).labels(&self.labels).timeout(WATCH_SECONDS)
    }

    fn list_request(&self, request: &Request, limit: u32, token: Option<&str>) -> kube::Result<HttpRequest> {
        self.request_of(request, &self.list(limit, token))
    }

    fn request_of(&self, request: &Request, params: &ListParams) -> kube::Result<HttpRequest> {
        let request = if self.metadata_only { request.list_metadata(params) } else { request.list(params) };
        request.map_err(kube::Error::BuildRequest)
    }

    fn watch_request(
        &self,
        request: &Request,
        params: &WatchParams,
        version: &str,
    ) -> kube::Result<HttpRequest> {
        let request = if self.metadata_only {
            request.watch_metadata(params, version)
        } else {
            request.watch(params, version)
        };
        request.map_err(kube::Error::BuildRequest)
    }
}

type HttpRequest = axum::http::Request<Vec<u8>>;

async fn open<K: DeserializeOwned>(
    client: Client,
    request: kube::Result<HttpRequest>,
) -> kube::Result<wire::Events<K>> {
    Ok(wire::Events::new(client.request_stream(request?).await?))
}

async fn read_page<K: DeserializeOwned>(
    client: Client,
    request: kube::Result<HttpRequest>,
    limit: u32,
) -> Result<(Page<K>, usize), PageError> {
    Page::read(client.request_stream(request?).await?, limit).await
}

/// Reads a list of at most one object, which mustn't stall.
async fn read_one<K: DeserializeOwned>(
    client: Client,
    request: kube::Result<HttpRequest>,
) -> Result<(Page<K>, usize), PageError> {
    let answer = timeout(SINGLE_LIST_TIMEOUT, read_page(client, request, 1)).await;
    answer.unwrap_or_else(|_| Err(PageError::Kube(broken("the list of one object doesn't come to its end"))))
}

/// Lists the objects of a query, and watches them from there on. `sign` learns when something has been heard.
pub fn list_watch<K>(client: Client, query: RequestQuery, sign: Arc<LastHeard>) -> Events<K>
where
    K: Resource<DynamicType = ()> + DeserializeOwned + Send + 'static,
{
    let request = Request::new(K::url_path(&(), query.namespace.as_deref()));
    let now = Instant::now();
    let list_watch = ListWatch {
        client,
        request,
        query,
        sign,
        progress: WatchProgress::new(now),
        pages: PageSize::default(),
        streams: Streams::default(),
        state: ListWatchState::Rest { until: now, step: WatchStep::List(0) },
        said: VecDeque::new(),
    };
    let items = futures::stream::unfold(list_watch, |mut list_watch| async move {
        Some((list_watch.next().await, list_watch))
    });
    items.boxed()
}

/// Lists the objects of a query once, in pages that are told one by one.
///
/// # Errors
/// If a page can't be had: 410 where the list has taken too long.
pub async fn list_pages<K>(
    client: Client,
    query: &RequestQuery,
    mut told: impl FnMut(Vec<RawDeserializeGuard<K>>),
) -> kube::Result<()>
where
    K: Resource<DynamicType = ()> + DeserializeOwned,
{
    let request = Request::new(K::url_path(&(), query.namespace.as_deref()));
    let (mut size, mut token) = (PageSize::default(), None);
    loop {
        let limit = size.objects();
        let page = query.list_request(&request, limit, token.as_deref());
        match read_page::<K>(client.clone(), page, limit).await {
            Ok((page, bytes)) => {
                size = size.after(page.items.len(), bytes);
                told(page.items);
                token = page.metadata.continue_.filter(|token| !token.is_empty());
                if token.is_none() {
                    return Ok(());
                }
            }
            Err(PageError::TooLarge) => size = size.smaller(),
            Err(PageError::Kube(error)) => return Err(error),
        }
    }
}

/// Finds the object of a query ([`RequestQuery::named`]), as it is now: with the right to list alone.
///
/// # Errors
/// If the API server refuses, or hasn't sent the whole answer after ten seconds.
pub(crate) async fn find<K>(
    client: Client,
    query: &RequestQuery,
) -> kube::Result<Option<RawDeserializeGuard<K>>>
where
    K: Resource<DynamicType = ()> + DeserializeOwned,
{
    Ok(find_at::<K>(client, query, None).await?.0)
}

/// Does what [`find`] does, but believes etcd alone that there is no such object.
///
/// An API server answers from its watch cache once that has reached etcd's revision. After etcd was restored to an
/// earlier state, the cache of an API server that wasn't restarted is ahead of it and counts as fresh. A list of one
/// name in exactly one version is always read from etcd, which refuses a version that it hasn't reached (504).
///
/// # Errors
/// As of [`find`], and if etcd hasn't reached the version of the first answer.
pub(crate) async fn find_in_etcd<K>(
    client: Client,
    query: &RequestQuery,
) -> kube::Result<Option<RawDeserializeGuard<K>>>
where
    K: Resource<DynamicType = ()> + DeserializeOwned,
{
    match find_at(client.clone(), query, None).await? {
        (None, Some(version)) => Ok(find_at(client, query, Some(&version)).await?.0),
        (found, _) => Ok(found),
    }
}

/// Finds the object of a query, as it is now or was in a version. Returns also the version of the answer, if it has one.
async fn find_at<K>(
    client: Client,
    query: &RequestQuery,
    version: Option<&str>,
) -> kube::Result<(Option<RawDeserializeGuard<K>>, Option<String>)>
where
    K: Resource<DynamicType = ()> + DeserializeOwned,
{
    let request = Request::new(K::url_path(&(), query.namespace.as_deref()));
    let mut params = query.list(1, None);
    if let Some(version) = version {
        params = params.at(version).matching(VersionMatch::Exact);
    }
    match read_one::<K>(client, query.request_of(&request, &params)).await {
        Ok((page, _)) => {
            let version = page.metadata.resource_version.filter(|version| !version.is_empty());
            Ok((page.items.into_iter().next(), version))
        }
        Err(PageError::Kube(error)) => Err(error),
        Err(PageError::TooLarge) => Err(broken("the object is too large")),
    }
}

/// Whether lists are streamed.
#[derive(Debug, Default)]
struct Streams {
    /// Until when they aren't, because the API server can't.
    refused_until: Option<Instant>,
    /// Whether the last one has failed, for whatever reason.
    failed: bool,
}

impl Streams {
    fn may(&self, now: Instant) -> bool {
        !self.failed && self.refused_until.is_none_or(|until| now >= until)
    }

    /// Takes over that a streamed list has failed: the next one comes in pages, and where the API server can't stream
    /// them, those of the next hour.
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
    sign: Arc<LastHeard>,
    progress: WatchProgress,
    pages: PageSize,
    streams: Streams,
    state: ListWatchState<K>,
    /// What is told before anything else is done.
    said: VecDeque<WatchItem<K>>,
}

/// What a list has had so far.
#[derive(Debug, Default)]
struct ListProgress {
    objects: u64,
    /// The newest version; nothing once one was no number.
    newest: Option<u64>,
}

impl ListProgress {
    fn new() -> Self {
        Self { objects: 0, newest: Some(0) }
    }

    fn add<K: Resource>(&mut self, object: &RawDeserializeGuard<K>) {
        self.objects += 1;
        self.see(object);
    }

    /// Takes in another version of an object that is counted.
    fn see<K: Resource>(&mut self, object: &RawDeserializeGuard<K>) {
        let version = object.meta().resource_version.as_deref().and_then(number);
        self.newest = self.newest.zip(version).map(|(newest, version)| newest.max(version));
    }
}

enum ListWatchState<K> {
    /// Nothing is asked before.
    Rest { until: Instant, step: WatchStep },
    /// A streamed list is asked for.
    BeginStream,
    /// A list is read page by page.
    Pages {
        token: Option<String>,
        items: VecDeque<RawDeserializeGuard<K>>,
        version: Option<String>,
        count: ListProgress,
    },
    /// A streamed list is read, and after it the watch that it is part of. What has gone meanwhile is told later.
    Stream { events: wire::Events<K>, over: Instant, count: ListProgress, gone: Vec<RawDeserializeGuard<K>> },
    /// A watch is read.
    Watch { events: wire::Events<K>, over: Instant },
}

/// What comes of one step of the loop.
#[expect(clippy::large_enum_variant, reason = "nearly all are objects, and there is one at a time")]
enum StepResult<K> {
    /// Something to tell, now or later.
    Say(WatchItem<K>),
    /// Nothing yet.
    Quiet,
}

impl<K> ListWatch<K>
where
    K: Resource<DynamicType = ()> + DeserializeOwned + Send + 'static,
{
    /// Returns what is to be told next. A call that is given up loses nothing: the state is changed after what is
    /// waited for has come.
    async fn next(&mut self) -> WatchItem<K> {
        loop {
            if let Some(said) = self.said.pop_front() {
                return said;
            }
            if let StepResult::Say(said) = self.advance().await {
                return said;
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
                Some(object) => StepResult::Say(Ok(Event::Listed(object))),
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
                return self.go_on(WatchInput::Silence);
            }
            return match step {
                WatchStep::AskNewest(_) => self.ask_newest().await,
                _ => self.begin_watch().await,
            };
        }
        // This is said before the request is made: what is written from here on may be newer than the list.
        self.state = if self.streams.may(Instant::now()) {
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
        StepResult::Say(Ok(Event::ListBegins))
    }

    // === lists ===

    async fn begin_stream(&mut self) -> StepResult<K> {
        // Without a version: at least as new as this moment, whatever has been heard before.
        let params = self.query.watch().initial_events();
        match open(self.client.clone(), self.query.watch_request(&self.request, &params, "")).await {
            Ok(events) => {
                self.progress.take(WatchInput::WatchBegan, Instant::now());
                let over = Instant::now() + WATCH_TIMEOUT;
                self.state =
                    ListWatchState::Stream { events, over, count: ListProgress::new(), gone: Vec::new() };
                StepResult::Quiet
            }
            Err(error) => self.stream_failed(error),
        }
    }

    async fn next_of_stream(&mut self) -> StepResult<K> {
        let ListWatchState::Stream { events, over, count, gone } = &mut self.state else {
            return StepResult::Quiet;
        };
        let sent = match timeout(STREAM_IDLE_TIMEOUT, events.next()).await {
            Ok(Ok(Some(sent))) => sent,
            Ok(Ok(None)) => return self.stream_failed(broken("the streamed list has no end")),
            Ok(Err(error)) => return self.stream_failed(kube::Error::ReadEvents(error)),
            Err(_) => {
                // It looks like an API server that streams and never sends the bookmark at the end.
                self.streams.note_failure(true, Instant::now());
                return self
                    .stream_failed(broken("the streamed list goes on neither with an object nor its end"));
            }
        };
        match sent {
            WireEvent::Object(_, object) if identified(&object).is_none() => self
                .stream_failed(broken("the streamed list has an object without a name or a resourceVersion")),
            WireEvent::Object(ObjectChange::Deleted, object) => {
                count.objects = count.objects.saturating_sub(1);
                gone.push(object);
                StepResult::Quiet
            }
            WireEvent::Object(change, object) => {
                match change {
                    ObjectChange::Modified => count.see(&object),
                    ObjectChange::Added | ObjectChange::Deleted => count.add(&object),
                }
                StepResult::Say(Ok(Event::Listed(object)))
            }
            WireEvent::Bookmark { ends_list: false, .. } => StepResult::Quiet,
            WireEvent::Bookmark { version, ends_list: true } => {
                let over = *over;
                let (count, gone) = (std::mem::take(count), std::mem::take(gone));
                let ListWatchState::Stream { events, .. } = std::mem::replace(
                    &mut self.state,
                    ListWatchState::Rest { until: over, step: WatchStep::List(0) },
                ) else {
                    return StepResult::Quiet;
                };
                self.state = ListWatchState::Watch { events, over };
                let said = self.listed(&version, &count);
                self.said.extend(gone.into_iter().map(|object| Ok(Event::Deleted(object))));
                said
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
        // An API server that doesn't know streamed lists, or has them switched off, refuses their parameters.
        let refused = matches!(code, 400 | 422);
        if refused {
            self.streams.note_failure(true, now);
            self.state = ListWatchState::Rest { until: now, step: WatchStep::List(0) };
            return StepResult::Quiet;
        }
        // These say nothing about streams.
        if !matches!(code, 401 | 403 | 404 | 429) {
            self.streams.note_failure(false, now);
        }
        self.fail(WatchInput::ListFailed(code), WatchError::List(error))
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
                return self.fail(WatchInput::ListFailed(code(&error)), WatchError::List(error));
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

    /// Takes over that a list is complete.
    fn listed(&mut self, version: &str, count: &ListProgress) -> StepResult<K> {
        let rewound = self.progress.rewinds(version);
        let &ListProgress { objects, newest } = count;
        self.progress.take(WatchInput::Listed { version, objects, newest }, Instant::now());
        self.streams.failed = false;
        self.sign.note();
        StepResult::Say(Ok(Event::ListEnds { version: number(version), rewound }))
    }

    /// Asks for the newest resourceVersion, which a list of one object without a version tells.
    async fn ask_newest(&mut self) -> StepResult<K> {
        let request = self.query.list_request(&self.request, 1, None);
        match read_one::<K>(self.client.clone(), request).await {
            Ok((page, _)) => {
                let version = page.metadata.resource_version.unwrap_or_default();
                self.go_on(WatchInput::Newest(&version))
            }
            // It is the newest all the same, but only the whole list tells which.
            Err(PageError::TooLarge) => self.go_on(WatchInput::Silence),
            Err(PageError::Kube(error)) => {
                self.fail(WatchInput::WatchFailed(code(&error)), WatchError::List(error))
            }
        }
    }

    // === watches ===

    async fn begin_watch(&mut self) -> StepResult<K> {
        let Some(version) = self.progress.version().map(ToOwned::to_owned) else {
            self.state = ListWatchState::Rest { until: Instant::now(), step: WatchStep::List(0) };
            return StepResult::Quiet;
        };
        let request = self.query.watch_request(&self.request, &self.query.watch(), &version);
        match open(self.client.clone(), request).await {
            Ok(events) => {
                self.progress.take(WatchInput::WatchBegan, Instant::now());
                self.state = ListWatchState::Watch { events, over: Instant::now() + WATCH_TIMEOUT };
                StepResult::Quiet
            }
            Err(error) => self.fail(WatchInput::WatchFailed(code(&error)), WatchError::Watch(error)),
        }
    }

    async fn next_of_watch(&mut self) -> StepResult<K> {
        let deadline = self.progress.deadline();
        let ListWatchState::Watch { events, over } = &mut self.state else { return StepResult::Quiet };
        let sent = tokio::select! {
            // What has come before it could be read counts first.
            biased;
            sent = events.next() => sent,
            () = sleep_until(deadline) => return self.go_on(WatchInput::Silence),
            () = sleep_until(*over) => return self.go_on(WatchInput::WatchEnded),
        };
        match sent {
            Ok(Some(sent)) => self.sent(sent),
            Ok(None) => self.go_on(WatchInput::WatchEnded),
            Err(error) => {
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
                self.sign.note();
                let step = self.go_on(WatchInput::Event { version: &version, change });
                if !matches!(self.state, ListWatchState::Watch { .. }) {
                    return step;
                }
                StepResult::Say(Ok(match change {
                    ObjectChange::Deleted => Event::Deleted(object),
                    ObjectChange::Added | ObjectChange::Modified => Event::Applied(object),
                }))
            }
            WireEvent::Bookmark { version, .. } => {
                self.sign.note();
                self.go_on(WatchInput::Bookmark(&version))
            }
            WireEvent::Error(status) => {
                self.fail(WatchInput::WatchFailed(status.code), WatchError::Ended(status))
            }
            WireEvent::Unidentified => self.fail(WatchInput::Unidentified, WatchError::Unidentified),
        }
    }

    // === what next ===

    fn go_on(&mut self, input: WatchInput<'_>) -> StepResult<K> {
        self.follow(input, Duration::ZERO);
        StepResult::Quiet
    }

    fn fail(&mut self, input: WatchInput<'_>, error: WatchError) -> StepResult<K> {
        self.follow(input, error.retry_after());
        StepResult::Say(Err(error))
    }

    fn follow(&mut self, input: WatchInput<'_>, at_least: Duration) {
        let now = Instant::now();
        let step = self.progress.take(input, now);
        let until = match step {
            WatchStep::Continue => return,
            // However short the watches are, a list comes in its time.
            WatchStep::Watch(doublings) | WatchStep::AskNewest(doublings) => {
                (now + pause(doublings)).min(self.progress.deadline())
            }
            WatchStep::List(doublings) => now + pause(doublings),
        };
        self.state = ListWatchState::Rest { until: until.max(now + at_least), step };
    }
}

/// Returns the version of an object that says which one it is.
fn identified<K: Resource>(object: &RawDeserializeGuard<K>) -> Option<&str> {
    let meta = object.meta();
    let text = |text: &'_ Option<String>| text.as_deref().is_some_and(|text| !text.is_empty());
    let is_named = text(&meta.namespace) && text(&meta.name);
    meta.resource_version.as_deref().filter(|version| is_named && !version.is_empty())
}

/// Returns a pause, with jitter: the first one is doubled so often, less one.
fn pause(doublings: u32) -> Duration {
    let Some(doublings) = doublings.checked_sub(1) else { return Duration::ZERO };
    let pause = RELIST_BACKOFF
        .0
        .saturating_mul(1_u32.checked_shl(doublings).unwrap_or(u32::MAX))
        .min(RELIST_BACKOFF.1);
    // Half of it at random: many replicas shall not come back at the same moment.
    pause.mul_f64(rand::random_range(0.5..=1.0))
}

fn code(error: &kube::Error) -> u16 {
    match error {
        kube::Error::Api(status) => status.code,
        _ => 0,
    }
}

fn broken(what: &'static str) -> kube::Error {
    kube::Error::ReadEvents(io::Error::new(io::ErrorKind::UnexpectedEof, what))
}

/// Returns how a watch of a namespace, or of all, is called in the metrics.
pub(crate) fn in_namespace(watch: &str, namespace: Option<&str>) -> String {
    namespace.map_or(watch.to_owned(), |namespace| format!("{watch}/{namespace}"))
}

/// Waits until a moment; without one, for ever.
pub(crate) async fn sleep_until_opt(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

/// Returns the object, or reports it: one that can't be read must not stop the others.
pub(crate) fn readable<K: Resource>(
    object: RawDeserializeGuard<K>,
    object_errors: &mut ObjectErrors,
) -> Option<K> {
    let key = key_of(&object);
    let complain =
        |error| object_errors.set(&key, Some(format!("it can't be read and counts as it was: {error}")));
    object.0.map_err(complain).ok()
}

pub(crate) fn key_of<K: Resource>(object: &RawDeserializeGuard<K>) -> ServiceKey {
    ServiceKey::new(&object.namespace().unwrap_or_default(), &object.name_any())
}

#[cfg(test)]
mod tests;
