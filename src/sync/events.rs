//! Kubernetes Events about Services and StableNames, which `kubectl describe` shows.
//!
//! The caller puts an Event into a bounded queue and continues; a separate task sends it. An Event that can't be sent
//! is dropped: recording never blocks.

mod aggregator;
pub mod asking_objects;
pub mod findings;
pub mod link_log;
pub mod link_problems;
pub mod metrics;
mod namespace_breakers;
mod publisher;

use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::Mutex;
use prometheus::IntCounter;
use tokio::sync::Notify;

use super::controller::turns::Turns;
use super::election::Leadership;
use crate::model::link::Link;
use crate::model::service_key::ServiceKey;
use crate::model::uid::Uid;
pub use publisher::EventPublisher;

/// Maximum number of queued Events, which bounds their memory. A namespace may use half of the room that the other
/// namespaces leave.
const QUEUE_CAPACITY: usize = 2000;
/// The maximum length of a note that the API server accepts, in bytes.
const MAX_NOTE_BYTES: usize = 1024;

/// The reason of an Event, as `kubectl` shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The target of a link has changed.
    TargetChanged,
    /// The status of the Service names no allowed target any more, and the last target is kept.
    TargetStale,
    /// The external target was created.
    ExternalTargetCreated,
    /// An object that lb-linker hadn't written has become the external target.
    Adopted,
    /// A name belongs to another link or object: the name of the external target, or a requested DNS name.
    Conflict,
    /// The target policy denies the target.
    TargetRefused,
    /// The targets of several load balancers lead in a circle, or through too many of them.
    TargetCircle,
    /// The Service requests a DNS name that the hostname policy denies.
    HostnameRefused,
    /// An annotation of the Service is invalid, or isn't one that load balancers have.
    AnnotationIgnored,
    /// The external target was removed.
    Removed,
    /// The removal of the external target exceeds the deletion budget.
    RemovalHeld,
    /// A flag leaves the Service out, but its external target stays.
    LeftOut,
    /// A StableName overrides the link of the Service.
    Led,
    /// The target of a StableName has failed, and another source replaces it.
    FailedOver,
    /// A preferred source of a StableName works again and is in use.
    FailedBack,
    /// The first target of a StableName, or a new target of its source in use, hasn't passed a check in time.
    CutoverTimedOut,
    /// The target of a StableName has failed or was withdrawn, and no source can replace it.
    NoHealthySource,
    /// The target of a StableName has failed, and stays because of `spec.pin` although another source is healthy.
    PinnedTargetFailed,
    /// The target of a StableName has failed, and the failover is held, because too many would fail over at once.
    FailoverHeld,
    /// A source of a StableName isn't permitted.
    RefNotPermitted,
    /// The API server forbids to write the external target, or to list the Services of a source of a StableName.
    Forbidden,
    /// The check that a StableName asks for isn't permitted.
    CheckRefused,
    /// The spec of a StableName breaks a rule.
    InvalidSpec,
}

impl Reason {
    /// Returns the Event's `type`.
    #[must_use]
    pub fn event_type(self) -> &'static str {
        match self {
            Self::TargetChanged
            | Self::ExternalTargetCreated
            | Self::Adopted
            | Self::Removed
            | Self::Led
            | Self::FailedBack => "Normal",
            Self::TargetStale
            | Self::Conflict
            | Self::TargetRefused
            | Self::TargetCircle
            | Self::HostnameRefused
            | Self::AnnotationIgnored
            | Self::RemovalHeld
            | Self::LeftOut
            | Self::FailedOver
            | Self::CutoverTimedOut
            | Self::NoHealthySource
            | Self::PinnedTargetFailed
            | Self::FailoverHeld
            | Self::RefNotPermitted
            | Self::Forbidden
            | Self::CheckRefused
            | Self::InvalidSpec => "Warning",
        }
    }

    /// Returns the Event's `action`: the reaction of lb-linker.
    #[must_use]
    pub fn action(self) -> &'static str {
        match self {
            Self::TargetChanged | Self::FailedOver | Self::FailedBack => "ChangeTarget",
            // The former target may stay.
            Self::CutoverTimedOut => "EndWait",
            Self::TargetStale
            | Self::TargetRefused
            | Self::TargetCircle
            | Self::PinnedTargetFailed
            | Self::FailoverHeld => "KeepTarget",
            // The target may have been withdrawn.
            Self::NoHealthySource => "AwaitSource",
            Self::Led => "LeadLink",
            Self::RefNotPermitted | Self::CheckRefused | Self::InvalidSpec => "RefuseSource",
            Self::Forbidden => "AwaitPermission",
            Self::ExternalTargetCreated => "CreateExternalTarget",
            Self::Adopted => "AdoptExternalTarget",
            Self::Conflict => "LeaveAlone",
            Self::HostnameRefused => "IgnoreName",
            Self::AnnotationIgnored => "IgnoreAnnotation",
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

/// The kind of the object that an Event is about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RegardingKind {
    #[default]
    Service,
    StableName,
    Ingress,
    Gateway,
    ListenerSet,
    HttpRoute,
    GrpcRoute,
    TlsRoute,
    DnsEndpoint,
}

impl RegardingKind {
    /// Returns the API version and the kind of the object.
    #[must_use]
    pub fn api(self) -> (&'static str, &'static str) {
        match self {
            Self::Service => ("v1", "Service"),
            Self::StableName => ("linker.hsj.com/v1alpha1", "StableName"),
            Self::Ingress => ("networking.k8s.io/v1", "Ingress"),
            Self::Gateway => ("gateway.networking.k8s.io/v1", "Gateway"),
            Self::ListenerSet => ("gateway.networking.k8s.io/v1", "ListenerSet"),
            Self::HttpRoute => ("gateway.networking.k8s.io/v1", "HTTPRoute"),
            Self::GrpcRoute => ("gateway.networking.k8s.io/v1", "GRPCRoute"),
            Self::TlsRoute => ("gateway.networking.k8s.io/v1", "TLSRoute"),
            Self::DnsEndpoint => ("externaldns.k8s.io/v1alpha1", "DNSEndpoint"),
        }
    }
}

/// The object that an Event is about. The object may be gone.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Regarding {
    pub kind: RegardingKind,
    /// The namespace of the object and of the Event.
    pub namespace: Box<str>,
    pub name: Box<str>,
    /// The uid of the object: `kubectl describe` finds Events by uid.
    pub uid: Box<str>,
}

impl Regarding {
    /// Returns the reference to a Service.
    #[must_use]
    pub fn new(key: &ServiceKey, uid: &str) -> Self {
        let (namespace, name) = key.parts();
        let kind = RegardingKind::Service;
        Self { kind, namespace: namespace.into(), name: name.into(), uid: uid.into() }
    }

    #[must_use]
    pub fn stable_name(key: &ServiceKey, uid: &Uid) -> Self {
        Self { kind: RegardingKind::StableName, ..Self::new(key, &uid.to_string()) }
    }

    /// Returns the Service of a link, or the StableName that overrides it; `None` if this process has never
    /// observed the object.
    #[must_use]
    pub fn of(link: &Link) -> Option<Self> {
        let Link { key, uid, .. } = link;
        match link.active_override() {
            Some(by) => Some(Self::stable_name(key, &by.uid)),
            None => (!uid.is_empty()).then(|| Self::new(key, &uid.to_string())),
        }
    }
}

/// The contents of an Event. Another Event with equal contents extends the series.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct EventKey {
    regarding: Regarding,
    reason: Reason,
    note: Box<str>,
}

/// Records Kubernetes Events. All clones share a queue.
#[derive(Clone)]
pub struct Recorder(Option<Arc<EventQueue>>);

impl Recorder {
    /// Returns a recorder for an [`EventPublisher`]. Lost Events are counted in `dropped`. Only the leader records
    /// Events, as all replicas observe the same changes.
    #[must_use]
    pub fn new(dropped: IntCounter, leadership: Leadership) -> Self {
        let waiting = Mutex::new(QueuedEvents::default());
        Self(Some(Arc::new(EventQueue { waiting, notify: Notify::new(), dropped, leadership })))
    }

    #[cfg(test)]
    fn dropped(&self) -> IntCounter {
        self.0.as_ref().map(|queue| queue.dropped.clone()).unwrap()
    }

    /// Returns the reasons and notes of the queued Events.
    #[cfg(test)]
    pub(crate) fn take_queued(&self) -> Vec<(Reason, Box<str>)> {
        let queue = self.0.as_ref().unwrap();
        let queued = std::iter::from_fn(|| queue.pop(|_| false));
        queued.map(|event| (event.event_key.reason, event.event_key.note)).collect()
    }

    /// Returns a recorder that records nothing, for use without a cluster or without writes to it.
    #[must_use]
    pub fn none() -> Self {
        Self(None)
    }

    /// Records an Event if this replica leads. The Event is dropped if the queue has no room for its namespace.
    pub fn record(&self, regarding: Regarding, reason: Reason, note: &str) {
        let Some(queue) = &self.0 else { return };
        let Some(term) = queue.leadership.held() else { return };
        let event_key = EventKey { regarding, reason, note: cut(note).into() };
        queue.push(QueuedEvent { event_key, at: Timestamp::now(), term });
    }

    /// Records an Event about the Service of a link, or about the StableName that overrides the link, if this
    /// process has observed that object.
    pub fn about(&self, link: &Link, reason: Reason, note: &str) {
        if let Some(regarding) = Regarding::of(link) {
            self.record(regarding, reason, note);
        }
    }
}

/// An Event that waits to be sent, and the time at which it happened.
#[derive(Debug)]
struct QueuedEvent {
    event_key: EventKey,
    at: Timestamp,
    /// The term in which the Event was recorded. The Event is sent in this term or dropped.
    term: u64,
}

/// The queue of Events. It survives restarts of the [`EventPublisher`].
struct EventQueue {
    waiting: Mutex<QueuedEvents>,
    notify: Notify,
    dropped: IntCounter,
    leadership: Leadership,
}

/// The queued Events. Namespaces take turns.
#[derive(Debug, Default)]
struct QueuedEvents {
    turns: Turns<QueuedEvent>,
    number: usize,
    /// The number of Events that were ever added.
    added: u64,
}

impl QueuedEvents {
    /// Adds an Event. Returns false if there is no room for its namespace.
    fn push(&mut self, event: QueuedEvent) -> bool {
        let namespace = event.event_key.regarding.namespace.clone();
        if self.turns.number_in(&namespace) >= QUEUE_CAPACITY.saturating_sub(self.number) {
            return false;
        }
        self.number += 1;
        self.added += 1;
        self.turns.add(&namespace, self.added, event);
        true
    }

    /// Removes the next Event of a namespace for which `is_held` is false.
    fn pop(&mut self, is_held: impl Fn(&str) -> bool) -> Option<QueuedEvent> {
        let (_, next) = self.turns.take(|namespace| !is_held(namespace))?;
        self.number -= 1;
        if self.number == 0 {
            self.turns = Turns::default();
        }
        Some(next)
    }
}

impl EventQueue {
    fn push(&self, event: QueuedEvent) {
        if self.waiting.lock().push(event) {
            self.notify.notify_one();
        } else {
            self.dropped.inc();
        }
    }

    fn pop(&self, is_held: impl Fn(&str) -> bool) -> Option<QueuedEvent> {
        self.waiting.lock().pop(is_held)
    }

    fn is_empty(&self) -> bool {
        self.waiting.lock().number == 0
    }

    /// Waits for the next Event of a namespace for which `is_held` is false. Only one task may wait.
    async fn next(&self, is_held: impl Fn(&str) -> bool) -> QueuedEvent {
        loop {
            if let Some(next) = self.pop(&is_held) {
                return next;
            }
            self.notify.notified().await;
        }
    }
}

/// Truncates a note to the length that the API server accepts.
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
        Regarding::new(&ServiceKey::new("default", "web"), "u")
    }

    fn recorder() -> (Recorder, IntCounter) {
        let dropped = IntCounter::new("dropped", "dropped").unwrap();
        (Recorder::new(dropped.clone(), Leadership::unconditional()), dropped)
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
    fn event_without_room_for_its_namespace_is_dropped_and_counted() {
        let (recorder, dropped) = recorder();
        for i in 0..QUEUE_CAPACITY / 2 + 5 {
            recorder.record(regarding(), Reason::TargetChanged, &format!("a → {i}"));
        }
        assert_eq!(dropped.get(), 5);
        let queue = recorder.0.unwrap();
        assert_eq!(&*queue.pop(|_| false).unwrap().event_key.note, "a → 0", "the first Event is sent first");
        assert_eq!(std::iter::from_fn(|| queue.pop(|_| false)).count(), QUEUE_CAPACITY / 2 - 1);
    }

    #[test]
    fn busy_namespace_leaves_room_for_other_namespaces() {
        let (recorder, dropped) = recorder();
        let record = |namespace: &str, name: usize| {
            let regarding = Regarding::new(&ServiceKey::new(namespace, &name.to_string()), "u");
            let before = dropped.get();
            recorder.record(regarding, Reason::HostnameRefused, namespace);
            dropped.get() == before
        };
        let recorded = (0..10_000).filter(|i| record("tenant", *i)).count();
        assert_eq!(recorded, QUEUE_CAPACITY / 2);
        assert_eq!((0..10_000).filter(|i| record("second", *i)).count(), QUEUE_CAPACITY / 4);
        assert!((0..10).all(|i| record("other", i)));
        let queue = recorder.0.clone().unwrap();
        let order: Vec<_> = (0..6).filter_map(|_| Some(queue.pop(|_| false)?.event_key.note)).collect();
        assert_eq!(
            order.iter().map(|note| &**note).collect::<Vec<_>>(),
            ["tenant", "second", "other", "tenant", "second", "other"]
        );
        let rest = std::iter::from_fn(|| queue.pop(|_| false)).count();
        assert_eq!(rest, QUEUE_CAPACITY / 2 + QUEUE_CAPACITY / 4 + 10 - 6);
        assert!(record("tenant", 0), "there is room again");
    }

    #[test]
    fn non_leader_records_and_drops_no_events() {
        let dropped = IntCounter::new("dropped", "dropped").unwrap();
        let (leadership, lead) = Leadership::by_hand();
        let recorder = Recorder::new(dropped.clone(), leadership);
        let queue = recorder.0.clone().unwrap();
        recorder.record(regarding(), Reason::Removed, "");
        assert!(queue.pop(|_| false).is_none());
        lead(Some(7));
        recorder.record(regarding(), Reason::Removed, "");
        assert_eq!(queue.pop(|_| false).unwrap().term, 7);
        assert_eq!(dropped.get(), 0);
        Recorder::none().record(regarding(), Reason::Removed, "");
    }

    #[test]
    fn unobserved_service_has_no_events() {
        let (recorder, _) = recorder();
        let link = |uid| Link::new(ServiceKey::new("default", "web"), uid);
        recorder.about(&link(""), Reason::Removed, "ghost");
        recorder.about(&link("u"), Reason::Removed, "seen");
        let queue = recorder.0.unwrap();
        let QueuedEvent { event_key, .. } = queue.pop(|_| false).unwrap();
        assert_eq!((event_key.regarding, &*event_key.note), (regarding(), "seen"));
        assert!(queue.pop(|_| false).is_none());
    }

    #[tokio::test]
    async fn next_returns_events_recorded_before_and_during_the_wait() {
        let (recorder, _) = recorder();
        recorder.record(regarding(), Reason::Removed, "before");
        let queue = recorder.0.clone().unwrap();
        assert_eq!(&*queue.next(|_| false).await.event_key.note, "before");
        let next = tokio::spawn(async move { queue.next(|_| false).await.event_key.note });
        tokio::task::yield_now().await;
        recorder.record(regarding(), Reason::Removed, "after");
        assert_eq!(&*next.await.unwrap(), "after");
    }
}
