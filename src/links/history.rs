//! The changes of links since the start of this process.

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::broadcast::error::RecvError;
use tokio_util::sync::CancellationToken;

use super::view::{LinkEvent, state_of};
use crate::model::link::{Link, LinkChange};
use crate::model::service_key::ServiceKey;
use crate::store::{Input, Store};

/// The maximum number of changes kept for one link. The oldest change is dropped first.
const MAX_EVENTS_PER_LINK: usize = 16;

/// The last changes of each link.
#[derive(Debug)]
pub struct History {
    started: Timestamp,
    records: Mutex<Records>,
    /// The number of processed changes and rescans.
    version: AtomicU64,
}

#[derive(Debug)]
struct Records {
    events: HashMap<ServiceKey, VecDeque<LinkEvent>>,
    /// Since when links without events are known to be as they are.
    unchanged_since: Timestamp,
    /// Whether the first list is complete: a link that is new from then on had no target before.
    is_listed: bool,
}

impl History {
    /// Returns an empty history of a process that started at this time. The first change of a link also records the
    /// state before the change.
    #[must_use]
    pub fn new(started: Timestamp) -> Self {
        let records = Records { events: HashMap::new(), unchanged_since: started, is_listed: false };
        Self { started, records: Mutex::new(records), version: AtomicU64::new(0) }
    }

    /// Returns the time when the history began.
    #[must_use]
    pub fn started(&self) -> Timestamp {
        self.started
    }

    /// Returns a number that grows with each recorded change of the store. A caller that reads the number before the
    /// links can tell later whether the links may have changed.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Returns the changes of a link, the oldest first, also those from before its Service was recreated.
    #[must_use]
    pub fn events(&self, key: &ServiceKey) -> Vec<LinkEvent> {
        self.records.lock().events.get(key).into_iter().flatten().cloned().collect()
    }

    /// Records the changes of a store, from this call on, until `stop`.
    pub fn record(
        self: Arc<Self>,
        store: Arc<Store>,
        stop: CancellationToken,
    ) -> impl Future<Output = ()> + Send {
        let mut feed = store.subscribe();
        async move {
            // Adds the changes between the end of an earlier recording and this call.
            self.rescan(&store, Timestamp::now());
            let mut are_known = false;
            loop {
                // The changes of the first list precede its end.
                if are_known && feed.is_empty() {
                    self.records.lock().is_listed = true;
                }
                let changes = tokio::select! {
                    () = stop.cancelled() => return,
                    () = store.known(Input::Services), if !are_known => {
                        are_known = true;
                        continue;
                    }
                    changes = feed.recv() => changes,
                };
                match changes {
                    Ok(changes) => changes.iter().for_each(|change| self.add(change, Timestamp::now())),
                    Err(RecvError::Lagged(_)) => self.rescan(&store, Timestamp::now()),
                    Err(RecvError::Closed) => return,
                }
            }
        }
    }

    fn add(&self, change: &LinkChange, now: Timestamp) {
        let Some(key) = change.service() else {
            // Names of other sources have no history, but lists of names have changed.
            self.version.fetch_add(1, Ordering::Release);
            return;
        };
        let mut records = self.records.lock();
        let since = records.unchanged_since;
        match (&change.before, &change.after) {
            (_, None) => {
                records.events.remove(key);
            }
            // In the first list, a Service that is older than this process isn't a change.
            (None, Some(after)) if !records.is_listed && !self.is_new(after) => records.unchanged_since = now,
            (before, Some(after)) => {
                let (before, after) = (before.as_deref().map(|link| event(link, since)), event(after, now));
                if !before.as_ref().is_some_and(|before| is_alike(before, &after)) {
                    let events = records.events.entry(key.clone()).or_default();
                    if events.is_empty() {
                        events.extend(before);
                    }
                    push(events, after);
                }
            }
        }
        drop(records);
        self.version.fetch_add(1, Ordering::Release);
    }

    /// Records missed changes of links that already have a history. The missed first change of a link stays
    /// unrecorded.
    fn rescan(&self, store: &Store, now: Timestamp) {
        let mut records = self.records.lock();
        records.unchanged_since = now;
        records.events.retain(|key, events| {
            let Some(link) = store.get(key) else { return false };
            let event = event(&link, now);
            if !events.back().is_some_and(|last| is_alike(last, &event)) {
                push(events, event);
            }
            true
        });
        drop(records);
        self.version.fetch_add(1, Ordering::Release);
    }

    fn is_new(&self, link: &Link) -> bool {
        link.created_at().is_some_and(|created| created >= self.started.as_second())
    }
}

fn event(link: &Link, time: Timestamp) -> LinkEvent {
    // Whole seconds, as in Kubernetes' timestamps.
    let time = Timestamp::from_second(time.as_second()).unwrap_or(time);
    LinkEvent { time, state: state_of(link), target: link.target.as_ref().map(ToString::to_string) }
}

fn is_alike(one: &LinkEvent, other: &LinkEvent) -> bool {
    (one.state, &one.target) == (other.state, &other.target)
}

fn push(events: &mut VecDeque<LinkEvent>, event: LinkEvent) {
    if events.len() == MAX_EVENTS_PER_LINK {
        events.pop_front();
    }
    events.push_back(event);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::links::view::ViewState;
    use crate::model::hostname::Hostname;
    use crate::model::link::{Annotations, Ingress, ObservedService};
    use crate::store::OnGone;
    use crate::sync::source::service_links::set_has_finalizer;
    use hickory_proto::rr::Name;

    const START: i64 = 1_700_000_000;

    fn history() -> History {
        History::new(at(0))
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(START + second).unwrap()
    }

    fn key() -> ServiceKey {
        ServiceKey::new("shop", "web")
    }

    /// Applies the Service shop/web, created at this second, with this hostname.
    fn apply(store: &Store, created: i64, hostname: Option<&str>) -> LinkChange {
        let hostnames =
            hostname.map(|name| Hostname::from(&Name::from_ascii(name).unwrap())).into_iter().collect();
        let observed = ObservedService {
            key: key(),
            uid: "uid".into(),
            created: Some(START + created),
            resource_version: None,
            ingress: Ingress { hostnames, addresses: Vec::new() },
            ports: Arc::default(),
            annotations: Annotations::default(),
            refused: false,
            has_finalizer: false,
            persisted: None,
        };
        store.apply(observed).unwrap()
    }

    fn short(history: &History) -> Vec<(i64, ViewState, Option<String>)> {
        let events = history.events(&key()).into_iter();
        events.map(|event| (event.time.as_second() - START, event.state, event.target)).collect()
    }

    #[test]
    fn history_has_each_change_of_state_and_target() {
        let (store, history) = (Store::new(OnGone::Kept), history());
        history.add(&apply(&store, -10, Some("a.example.")), at(1));
        assert_eq!(short(&history), [], "the first observation of an old Service isn't a change");
        history.add(&apply(&store, -10, Some("b.example.")), at(2));
        history.add(&apply(&store, -10, None), at(3));
        assert_eq!(
            short(&history),
            [
                (1, ViewState::Ready, Some("a.example".to_owned())),
                (2, ViewState::Ready, Some("b.example".to_owned())),
                (3, ViewState::Kept, Some("b.example".to_owned()))
            ]
        );
        history.add(&set_has_finalizer(&store, &key(), "uid", true).unwrap(), at(4));
        assert_eq!((short(&history).len(), history.version()), (3, 4));
    }

    #[test]
    fn history_goes_on_when_the_service_is_recreated() {
        let (store, history) = (Store::new(OnGone::Kept), history());
        history.add(&apply(&store, 1, Some("a.example.")), at(1));
        history.add(&store.gone(&key(), "uid", None, std::time::Instant::now()).unwrap(), at(2));
        history.add(&apply(&store, 3, Some("b.example.")), at(3));
        let target = |name: &str| Some(name.to_owned());
        let expected = [
            (1, ViewState::Ready, target("a.example")),
            (2, ViewState::Gone, None),
            (3, ViewState::Ready, target("b.example")),
        ];
        assert_eq!(short(&history), expected);
    }

    #[test]
    fn history_of_a_new_service_begins_with_its_creation() {
        let (store, history) = (Store::new(OnGone::Kept), history());
        history.add(&apply(&store, 5, None), at(5));
        assert_eq!(short(&history), [(5, ViewState::Pending, None)]);
    }

    #[test]
    fn only_the_last_16_changes_are_kept() {
        let (store, history) = (Store::new(OnGone::Kept), history());
        for i in 0..50 {
            history.add(&apply(&store, 0, Some(&format!("h{i}.example."))), at(i));
        }
        let kept = short(&history);
        assert_eq!((kept.len(), kept[0].0, kept[15].0), (MAX_EVENTS_PER_LINK, 34, 49));
    }

    #[test]
    fn removed_link_has_no_history() {
        let (store, history) = (Store::new(OnGone::Dropped), history());
        history.add(&apply(&store, 0, Some("a.example.")), at(1));
        history.add(&store.gone(&key(), "uid", None, std::time::Instant::now()).unwrap(), at(2));
        assert!(history.records.lock().events.is_empty());
    }

    #[tokio::test]
    async fn service_that_opts_in_had_no_target_before() {
        let (store, history) = (Arc::new(Store::new(OnGone::Dropped)), Arc::new(history()));
        let stop = CancellationToken::new();
        let recording = Arc::clone(&history).record(Arc::clone(&store), stop.clone());
        apply(&store, -10, Some("a.example."));
        let recording = tokio::spawn(recording);
        let begun = Timestamp::now().as_second() - START;
        store.set_known(Input::Services);
        while !history.records.lock().is_listed {
            tokio::task::yield_now().await;
        }
        assert_eq!(short(&history), [], "the first list is no change");
        store.gone(&key(), "uid", None, std::time::Instant::now()).unwrap();
        apply(&store, -10, Some("b.example."));
        apply(&store, -10, Some("c.example."));
        while short(&history).len() < 2 {
            tokio::task::yield_now().await;
        }
        let told = short(&history);
        let targets = told.iter().map(|(_, state, target)| (*state, target.as_deref()));
        let expected = ["b.example", "c.example"].map(|target| (ViewState::Ready, Some(target)));
        assert_eq!(targets.collect::<Vec<_>>(), expected);
        assert!(told[0].0 >= begun, "{told:?}");
        stop.cancel();
        recording.await.unwrap();
    }

    #[test]
    fn state_before_the_first_change_begins_when_it_was_read() {
        let (store, history) = (Store::new(OnGone::Kept), history());
        history.add(&apply(&store, -10, Some("a.example.")), at(60));
        history.add(&apply(&store, -10, Some("b.example.")), at(90));
        let times: Vec<i64> = short(&history).into_iter().map(|(time, ..)| time).collect();
        assert_eq!(times, [60, 90]);
    }

    #[test]
    fn rescan_records_missed_changes_and_removals() {
        let (store, history) = (Store::new(OnGone::Dropped), history());
        history.add(&apply(&store, 0, Some("a.example.")), at(1));
        history.rescan(&store, at(2));
        assert_eq!(short(&history).len(), 1);
        apply(&store, 0, Some("b.example."));
        history.rescan(&store, at(3));
        assert_eq!(short(&history)[1], (3, ViewState::Ready, Some("b.example".to_owned())));
        store.gone(&key(), "uid", None, std::time::Instant::now()).unwrap();
        history.rescan(&store, at(4));
        assert_eq!(short(&history), []);
    }

    #[tokio::test]
    async fn changes_of_the_store_are_recorded_until_the_stop() {
        let (store, history) = (Arc::new(Store::new(OnGone::Kept)), Arc::new(history()));
        let stop = CancellationToken::new();
        let recording = Arc::clone(&history).record(Arc::clone(&store), stop.clone());
        apply(&store, 0, Some("a.example."));
        let recording = tokio::spawn(recording);
        while history.events(&key()).is_empty() {
            tokio::task::yield_now().await;
        }
        stop.cancel();
        recording.await.unwrap();
    }
}
