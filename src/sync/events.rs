//! Kubernetes Events: what happens to a link, told where `kubectl describe service` shows it.
//!
//! The caller puts an Event into a bounded queue and goes on; a task of its own sends
//! it. An Event that can't be sent is dropped: nothing ever waits for one.

mod aggregator;
pub mod link_log;
pub mod metrics;
mod publisher;
mod refused;

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::Mutex;
use prometheus::IntCounter;
use tokio::sync::Notify;

use super::election::Leadership;
use crate::model::link::Link;
use crate::model::service_key::ServiceKey;
pub use publisher::EventPublisher;

/// How many Events may wait to be sent: what many changes at once cost in memory, and no more. Those of one namespace
/// have half of what the others leave.
const QUEUE_CAPACITY: usize = 2000;
/// The longest note that the API server takes, in bytes.
const MAX_NOTE_BYTES: usize = 1024;

/// Why an Event is recorded, in the words that `kubectl` shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// A link that had a target has another.
    TargetChanged,
    /// The status of the Service names no target that is followed any more, and the last one is kept.
    TargetStale,
    /// There was no external target, and there is one now.
    ExternalTargetCreated,
    /// A foreign object has become the external target.
    Adopted,
    /// A name is taken: of the external target, or a DNS name that was asked for.
    Conflict,
    /// The target isn't one that may be pointed at.
    TargetRefused,
    /// The Service asks for a DNS name that it may not have.
    HostnameRefused,
    /// The external target was removed.
    Removed,
    /// The external target would be removed, if there weren't so many of them.
    RemovalHeld,
    /// A flag leaves the Service out, and its external target stays nevertheless.
    LeftOut,
}

impl Reason {
    /// Returns the Event's `type`.
    #[must_use]
    pub fn severity(self) -> &'static str {
        match self {
            Self::TargetChanged | Self::ExternalTargetCreated | Self::Adopted | Self::Removed => "Normal",
            Self::TargetStale
            | Self::Conflict
            | Self::TargetRefused
            | Self::HostnameRefused
            | Self::RemovalHeld
            | Self::LeftOut => "Warning",
        }
    }

    /// Returns the Event's `action`: what lb-linker did about it.
    #[must_use]
    pub fn action(self) -> &'static str {
        match self {
            Self::TargetChanged => "ChangeTarget",
            Self::TargetStale | Self::TargetRefused => "KeepTarget",
            Self::ExternalTargetCreated => "CreateExternalTarget",
            Self::Adopted => "AdoptExternalTarget",
            Self::Conflict => "LeaveAlone",
            Self::HostnameRefused => "IgnoreName",
            Self::Removed => "RemoveExternalTarget",
            Self::RemovalHeld | Self::LeftOut => "HoldRemoval",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// The Service that an Event is about. It may be gone.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Regarding {
    /// Its namespace, which is the Event's as well.
    pub namespace: Box<str>,
    /// Its name.
    pub name: Box<str>,
    /// Its uid: without one `kubectl describe` wouldn't find the Event.
    pub uid: Box<str>,
}

impl Regarding {
    /// Returns the Service with this key and uid.
    #[must_use]
    pub fn new(key: &ServiceKey, uid: &str) -> Self {
        let (namespace, name) = key.parts();
        Self { namespace: namespace.into(), name: name.into(), uid: uid.into() }
    }

    /// Returns the Service of a link; nothing if it was never seen.
    #[must_use]
    pub fn of(link: &Link) -> Option<Self> {
        let Link { key, uid, .. } = link;
        (!uid.is_empty()).then(|| Self::new(key, &uid.to_string()))
    }
}

/// What an Event says. The same again is one more of a series, not another Event.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct EventKey {
    regarding: Regarding,
    reason: Reason,
    note: Box<str>,
}

/// The way to tell something by a Kubernetes Event. All clones share one queue.
#[derive(Clone)]
pub struct Recorder(Option<Arc<EventQueue>>);

impl Recorder {
    /// Returns a recorder whose Events a [`EventPublisher`] sends. Lost Events are counted in `dropped`.
    /// Only the leader records: all replicas see the same things.
    #[must_use]
    pub fn new(dropped: IntCounter, leadership: Leadership) -> Self {
        let waiting = Mutex::new(Waits::default());
        Self(Some(Arc::new(EventQueue { waiting, news: Notify::new(), dropped, leadership })))
    }

    #[cfg(test)]
    fn dropped(&self) -> IntCounter {
        self.0.as_ref().map(|queue| queue.dropped.clone()).unwrap()
    }

    /// Returns a recorder that records nothing: there is no cluster, or it isn't to be written to.
    #[must_use]
    pub fn none() -> Self {
        Self(None)
    }

    /// Records an Event, unless too many wait already, of its namespace or of all.
    pub fn record(&self, regarding: Regarding, reason: Reason, note: &str) {
        let Some(queue) = &self.0 else { return };
        let Some(term) = queue.leadership.held() else { return };
        let event_key = EventKey { regarding, reason, note: cut(note).into() };
        queue.push(Waiting { event_key, at: Timestamp::now(), term });
    }

    /// Records an Event on the Service of a link. One that was never seen has none.
    pub fn about(&self, link: &Link, reason: Reason, note: &str) {
        if let Some(regarding) = Regarding::of(link) {
            self.record(regarding, reason, note);
        }
    }
}

/// An Event that waits to be sent.
#[derive(Debug)]
struct Waiting {
    event_key: EventKey,
    at: Timestamp,
    /// The term in which it happened. It is sent in that one or not at all.
    term: u64,
}

/// The Events that wait. It outlives a [`EventPublisher`] that is started again.
struct EventQueue {
    waiting: Mutex<Waits>,
    news: Notify,
    dropped: IntCounter,
    leadership: Leadership,
}

/// Events that wait, by namespace. The namespaces take turns, so that one with many Events delays no other one.
#[derive(Debug, Default)]
struct Waits {
    by_namespace: HashMap<Box<str>, VecDeque<Waiting>>,
    /// The namespaces with Events, the next one first.
    turns: VecDeque<Box<str>>,
    number: usize,
}

impl Waits {
    /// Adds an Event, if its namespace has fewer waiting than there is room for.
    fn push(&mut self, event: Waiting) -> bool {
        let namespace = &event.event_key.regarding.namespace;
        let of_namespace = self.by_namespace.get(namespace).map_or(0, VecDeque::len);
        if of_namespace >= QUEUE_CAPACITY.saturating_sub(self.number) {
            return false;
        }
        if of_namespace == 0 {
            self.turns.push_back(namespace.clone());
        }
        self.number += 1;
        self.by_namespace.entry(namespace.clone()).or_default().push_back(event);
        true
    }

    fn pop(&mut self) -> Option<Waiting> {
        let namespace = self.turns.pop_front()?;
        let waiting = self.by_namespace.get_mut(&namespace)?;
        let next = waiting.pop_front();
        self.number -= usize::from(next.is_some());
        if waiting.is_empty() {
            self.by_namespace.remove(&namespace);
        } else {
            self.turns.push_back(namespace);
        }
        if self.number == 0 {
            *self = Self::default();
        }
        next
    }
}

impl EventQueue {
    fn push(&self, event: Waiting) {
        if self.waiting.lock().push(event) {
            self.news.notify_one();
        } else {
            self.dropped.inc();
        }
    }

    fn pop(&self) -> Option<Waiting> {
        self.waiting.lock().pop()
    }

    /// Waits for the next one. Only one task may wait.
    async fn next(&self) -> Waiting {
        loop {
            if let Some(next) = self.pop() {
                return next;
            }
            self.news.notified().await;
        }
    }
}

/// Returns as much of a note as the API server takes.
fn cut(note: &str) -> String {
    const MORE: &str = "…";
    if note.len() <= MAX_NOTE_BYTES {
        return note.to_owned();
    }
    format!("{}{MORE}", &note[..note.floor_char_boundary(MAX_NOTE_BYTES - MORE.len())])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::service_key::ServiceKey;

    fn regarding() -> Regarding {
        Regarding { namespace: "default".into(), name: "web".into(), uid: "u".into() }
    }

    fn recorder() -> (Recorder, IntCounter) {
        let dropped = IntCounter::new("dropped", "dropped").unwrap();
        (Recorder::new(dropped.clone(), Leadership::always()), dropped)
    }

    #[test]
    fn note_is_cut_between_characters_to_the_api_limit() {
        assert_eq!(cut("a → b"), "a → b");
        assert_eq!(cut(&"x".repeat(1024)), "x".repeat(1024));
        for filling in ["x", "é", "→", "🦀"] {
            for start in 0..4 {
                let note = format!("{}{}", "x".repeat(start), filling.repeat(2000));
                let short = cut(&note);
                assert!(short.len() <= 1024 && short.len() > 1016, "{filling} {start}: {}", short.len());
                assert!(note.starts_with(short.strip_suffix('…').unwrap()));
            }
        }
    }

    #[test]
    fn a_full_queue_drops_and_counts_and_never_blocks() {
        let (recorder, dropped) = recorder();
        for i in 0..QUEUE_CAPACITY / 2 + 5 {
            recorder.record(regarding(), Reason::TargetChanged, &format!("a → {i}"));
        }
        assert_eq!(dropped.get(), 5);
        let queue = recorder.0.unwrap();
        assert_eq!(&*queue.pop().unwrap().event_key.note, "a → 0", "the first one is the first to be sent");
        assert_eq!(std::iter::from_fn(|| queue.pop()).count(), QUEUE_CAPACITY / 2 - 1);
    }

    #[test]
    fn a_namespace_with_many_events_leaves_room_for_others() {
        let (recorder, dropped) = recorder();
        let record = |namespace: &str, name: usize| {
            let regarding =
                Regarding { namespace: namespace.into(), name: name.to_string().into(), uid: "u".into() };
            let before = dropped.get();
            recorder.record(regarding, Reason::HostnameRefused, namespace);
            dropped.get() == before
        };
        let recorded = (0..10_000).filter(|i| record("tenant", *i)).count();
        assert_eq!(recorded, QUEUE_CAPACITY / 2);
        assert_eq!((0..10_000).filter(|i| record("second", *i)).count(), QUEUE_CAPACITY / 4);
        assert!((0..10).all(|i| record("other", i)));
        let queue = recorder.0.clone().unwrap();
        let order: Vec<_> = (0..6).filter_map(|_| Some(queue.pop()?.event_key.note)).collect();
        assert_eq!(
            order.iter().map(|note| &**note).collect::<Vec<_>>(),
            ["tenant", "second", "other", "tenant", "second", "other"]
        );
        let rest = std::iter::from_fn(|| queue.pop()).count();
        assert_eq!(rest, QUEUE_CAPACITY / 2 + QUEUE_CAPACITY / 4 + 10 - 6);
        assert!(record("tenant", 0), "there is room again");
    }

    #[test]
    fn who_doesnt_lead_records_nothing_and_drops_nothing() {
        let dropped = IntCounter::new("dropped", "dropped").unwrap();
        let (leadership, lead) = Leadership::by_hand();
        let recorder = Recorder::new(dropped.clone(), leadership);
        let queue = recorder.0.clone().unwrap();
        recorder.record(regarding(), Reason::Removed, "");
        assert!(queue.pop().is_none());
        lead(Some(7));
        recorder.record(regarding(), Reason::Removed, "");
        assert_eq!(queue.pop().unwrap().term, 7);
        assert_eq!(dropped.get(), 0);
        Recorder::none().record(regarding(), Reason::Removed, "");
    }

    #[test]
    fn a_link_whose_service_was_never_seen_has_no_events() {
        let (recorder, _) = recorder();
        let link = |uid| Link::new(ServiceKey::new("default", "web"), uid);
        recorder.about(&link(""), Reason::Removed, "ghost");
        recorder.about(&link("u"), Reason::Removed, "seen");
        let queue = recorder.0.unwrap();
        let Waiting { event_key, .. } = queue.pop().unwrap();
        assert_eq!((event_key.regarding, &*event_key.note), (regarding(), "seen"));
        assert!(queue.pop().is_none());
    }

    #[tokio::test]
    async fn who_waits_for_an_event_gets_those_that_came_before_and_after() {
        let (recorder, _) = recorder();
        recorder.record(regarding(), Reason::Removed, "before");
        let queue = recorder.0.clone().unwrap();
        assert_eq!(&*queue.next().await.event_key.note, "before");
        let next = tokio::spawn(async move { queue.next().await.event_key.note });
        tokio::task::yield_now().await;
        recorder.record(regarding(), Reason::Removed, "after");
        assert_eq!(&*next.await.unwrap(), "after");
    }
}
