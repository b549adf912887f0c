//! The states of external targets, as the reconciler sees them.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dashmap::DashMap;
use parking_lot::Mutex;
use tokio::sync::{broadcast, watch};
use tokio::time::Instant;

use super::decision::{Actual, NextStep, Write};
use super::desired::current_target;
use crate::model::link::{Link, Target};
use crate::model::service_key::ServiceKey;
use crate::sync::k8s::forbidden::Forbidden;
use crate::sync::k8s::object::Object;

/// Capacity of the feed of changes. A subscriber that falls behind has to look at all links.
const FEED_CAPACITY: usize = 1024;
/// How long the external target may lag behind its link before users see that.
pub const WRITE_LAG: Duration = Duration::from_secs(10);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExternalTargetState {
    /// The external target points at this target.
    At(Target),
    /// There is no external target although the link has a target, or it has no target that this version can read.
    Missing,
    /// An object that isn't ours has the name of the external target.
    Conflict {
        /// The reason why it isn't ours.
        why: String,
        /// The target that it points at, if it has one.
        at: Option<Target>,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    state: ExternalTargetState,
    /// The target of the link.
    wanted: Option<Target>,
    /// Whether a StableName overrides the link.
    is_overridden: bool,
    /// The time from which users see that the external target isn't as it should be; `None` if it is.
    shown_from: Option<Instant>,
    /// Why the last write of the wanted target has failed, if one has since the external target isn't as it should be.
    failure: Option<String>,
    /// Which part of the API server has refused such a write, as the last Event says.
    reported: Option<Forbidden>,
}

#[derive(Debug)]
pub struct ExternalTargetStates {
    states: DashMap<ServiceKey, Entry>,
    feed: broadcast::Sender<ServiceKey>,
    version: AtomicU64,
    /// The times of `shown_from` that were in the future, in order.
    graces: Mutex<VecDeque<(Instant, ServiceKey)>>,
    /// Whether each link of the first lists has been reconciled once.
    known: watch::Sender<bool>,
}

impl Default for ExternalTargetStates {
    fn default() -> Self {
        let (states, version, graces, known) = Default::default();
        Self { states, feed: broadcast::Sender::new(FEED_CAPACITY), version, graces, known }
    }
}

impl ExternalTargetStates {
    /// Returns the state of the external target of a link; `None` if the link has no target or hasn't been reconciled
    /// yet, and, unless a StableName overrides the link, also if the external target is as it should be.
    #[must_use]
    pub fn get(&self, key: &ServiceKey) -> Option<ExternalTargetState> {
        self.states.get(key).map(|entry| entry.state.clone())
    }

    /// Returns the state of an external target that isn't as it should be, and hasn't been for [`WRITE_LAG`], and why
    /// the last write has failed, if one has. A state that was found at the start, a conflict and a failed write count
    /// at once, and so does every state if nothing can be written (`are_writes_refused`).
    #[must_use]
    pub fn problem(
        &self,
        key: &ServiceKey,
        are_writes_refused: bool,
    ) -> Option<(ExternalTargetState, Option<String>)> {
        let entry = self.states.get(key)?;
        let is_shown = entry.shown_from.is_some_and(|from| are_writes_refused || from <= Instant::now());
        is_shown.then(|| (entry.state.clone(), entry.failure.clone()))
    }

    /// Subscribes to the keys of links that a StableName overrides, or did, when the state of their external target
    /// changes, or the reason why its write has failed.
    #[must_use]
    pub fn subscribe(&self) -> broadcast::Receiver<ServiceKey> {
        self.feed.subscribe()
    }

    /// Returns a number that grows with each change, also with those of [`Self::problem`] by the time.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.end_graces();
        self.version.load(Ordering::Acquire)
    }

    fn end_graces(&self) {
        let (mut graces, now) = (self.graces.lock(), Instant::now());
        while let Some((end, key)) = graces.pop_front_if(|(end, _)| *end <= now) {
            if self.states.get(&key).is_some_and(|entry| entry.shown_from == Some(end)) {
                self.version.fetch_add(1, Ordering::Release);
            }
        }
    }

    /// Waits until each link of the first lists has been reconciled once, or there are no external targets.
    pub async fn known(&self) {
        // The sender lives as long as `self`.
        let _ = self.known.subscribe().wait_for(|known| *known).await;
    }

    /// Returns whether each link of the first lists has been reconciled once, or there are no external targets.
    #[must_use]
    pub fn is_known(&self) -> bool {
        *self.known.borrow()
    }

    /// Records that each link of the first lists has been reconciled once, or that there are no external targets.
    pub fn set_known(&self) {
        self.known.send_replace(true);
    }

    /// Sets the state of the external target of a link, from its objects and the next step for them.
    pub(super) fn update(&self, link: &Link, step: &NextStep, actual: Actual<'_>) {
        let (state, is_overridden) = (state_of(link, step, actual), link.active_override().is_some());
        self.set(&link.key, state, link.target.as_ref(), is_overridden);
    }

    /// Sets the state of an external target that should be at `wanted`.
    pub(crate) fn set(
        &self,
        key: &ServiceKey,
        state: Option<ExternalTargetState>,
        wanted: Option<&Target>,
        is_overridden: bool,
    ) {
        let is_conflict = matches!(state, Some(ExternalTargetState::Conflict { .. }));
        let is_wanted = |wanted| matches!(&state, Some(ExternalTargetState::At(at)) if at == wanted);
        let is_problem = is_conflict || wanted.is_some_and(|wanted| !is_wanted(wanted));
        let now = Instant::now();
        let due = if is_conflict || !*self.known.borrow() { now } else { now + WRITE_LAG };
        let former = self.states.get(key).map(|entry| entry.clone());
        let earlier = former.as_ref().and_then(|entry| entry.shown_from);
        let shown_from = is_problem.then(|| earlier.map_or(due, |earlier| earlier.min(due)));
        self.end_graces();
        if let Some(from) = shown_from.filter(|from| *from > now && earlier != Some(*from)) {
            self.graces.lock().push_back((from, key.clone()));
        }
        let state = state.filter(|_| is_overridden || is_problem);
        let former = former.filter(|entry| is_problem && entry.wanted.as_ref() == wanted);
        let (failure, reported) = former.map_or((None, None), |entry| (entry.failure, entry.reported));
        let wanted = wanted.cloned();
        let entry = state.map(|state| Entry { state, wanted, is_overridden, shown_from, failure, reported });
        let before = match entry.clone() {
            Some(entry) => self.states.insert(key.clone(), entry),
            None => self.states.remove(key).map(|(_, before)| before),
        };
        if before == entry {
            return;
        }
        self.version.fetch_add(1, Ordering::Release);
        let of_override =
            |entry: Option<Entry>| entry.filter(|entry| entry.is_overridden).map(|entry| entry.state);
        if of_override(before) != of_override(entry) {
            self.announce(key);
        }
    }

    fn announce(&self, key: &ServiceKey) {
        // The send fails if there are no subscribers, which is fine.
        let _ = self.feed.send(key.clone());
    }

    /// Records why a write for a link has failed, if its external target isn't as it should be: users see it at once.
    pub(crate) fn set_failure(&self, key: &ServiceKey, why: String) {
        let Some(mut entry) = self.states.get_mut(key).filter(|entry| entry.shown_from.is_some()) else {
            return;
        };
        let before = entry.clone();
        entry.shown_from = entry.shown_from.min(Some(Instant::now()));
        entry.failure = Some(why);
        let (is_changed, is_overridden) = (*entry != before, entry.is_overridden);
        drop(entry);
        if is_changed {
            self.version.fetch_add(1, Ordering::Release);
        }
        if is_changed && is_overridden {
            self.announce(key);
        }
    }

    /// Returns whether an Event is due about this refusal of a write for a link, and counts it as recorded. A refusal
    /// with another text only isn't reported again.
    pub(crate) fn report_refusal(&self, key: &ServiceKey, by: Forbidden) -> bool {
        let entry = self.states.get_mut(key).filter(|entry| entry.shown_from.is_some());
        entry.is_some_and(|mut entry| entry.reported.replace(by) != Some(by))
    }
}

/// Returns whether the external target points at the wanted target, whatever else of it has to be written.
fn keeps_target(step: &NextStep, actual: Actual<'_>) -> bool {
    match step {
        NextStep::Done => true,
        NextStep::Write(Write::Change { desired: Object::Service(desired), .. }) => {
            let wanted = desired.spec.external_name.as_ref();
            let named = actual.named.and_then(|named| named.spec.external_name.as_ref());
            wanted.is_some() && named == wanted
        }
        _ => false,
    }
}

/// Returns the state of the external target of a link. `None` if it is as it should be, and the link has no target.
fn state_of(link: &Link, step: &NextStep, actual: Actual<'_>) -> Option<ExternalTargetState> {
    let present = || current_target(actual.named?, actual.slices.iter().copied());
    match step {
        NextStep::Conflict { why, .. } => {
            Some(ExternalTargetState::Conflict { why: why.clone(), at: present() })
        }
        _ if keeps_target(step, actual) => link.target.clone().map(ExternalTargetState::At),
        _ => Some(present().map_or(ExternalTargetState::Missing, ExternalTargetState::At)),
    }
}

#[cfg(test)]
mod tests {
    use hickory_proto::rr::Name;

    use super::*;
    use crate::model::hostname::Hostname;

    fn target(name: &str) -> Target {
        Target::Hostname(Hostname::from(&Name::from_ascii(name).unwrap()))
    }

    #[tokio::test(start_paused = true)]
    async fn lag_is_a_problem_only_after_a_grace() {
        let states = ExternalTargetStates::default();
        let (key, other) = (ServiceKey::new("shop", "web"), ServiceKey::new("shop", "db"));
        let (missing, old) = (ExternalTargetState::Missing, ExternalTargetState::At(target("a.example.")));
        let (a, b) = (target("a.example."), target("b.example."));
        let set = |key, state: &ExternalTargetState, wanted| {
            states.set(key, Some(state.clone()), Some(wanted), true)
        };
        let shown = |key| states.problem(key, false).map(|(state, _)| state);
        set(&other, &missing, &a);
        assert_eq!(shown(&other), Some(missing.clone()), "it was found at the start");
        states.set_known();
        set(&key, &old, &a);
        set(&key, &old, &b);
        assert_eq!(shown(&key), None);
        tokio::time::advance(WRITE_LAG / 2).await;
        // The target changes again, and the external target is deleted.
        set(&key, &missing, &a);
        tokio::time::advance(WRITE_LAG / 2 - Duration::from_millis(1)).await;
        let version = states.version();
        assert_eq!(shown(&key), None);
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!((shown(&key), states.version()), (Some(missing.clone()), version + 1));
        set(&key, &old, &a);
        assert_eq!(shown(&key), None);
        set(&key, &old, &b);
        assert_eq!(shown(&key), None, "each change has its grace");
        set(&key, &old, &a);
        let version = states.version();
        tokio::time::advance(WRITE_LAG).await;
        assert_eq!(states.version(), version, "it was written in time");
        let conflict = ExternalTargetState::Conflict { why: "it isn't ours".to_owned(), at: None };
        set(&key, &conflict, &a);
        assert_eq!(shown(&key), Some(conflict));
        assert!(states.graces.lock().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn failed_write_has_no_grace_and_a_reason() {
        let states = ExternalTargetStates::default();
        states.set_known();
        let (key, wanted) = (ServiceKey::new("shop", "web"), target("a.example."));
        let set = |state| states.set(&key, Some(state), Some(&wanted), false);
        states.set_failure(&key, "no".to_owned());
        set(ExternalTargetState::Missing);
        assert_eq!(states.problem(&key, false), None);
        assert_eq!(states.problem(&key, true), Some((ExternalTargetState::Missing, None)));
        let version = states.version();
        states.set_failure(&key, "no".to_owned());
        assert_ne!(states.version(), version);
        let version = states.version();
        states.set_failure(&key, "no".to_owned());
        assert_eq!(states.version(), version, "nothing has changed");
        set(ExternalTargetState::Missing);
        let expected = Some((ExternalTargetState::Missing, Some("no".to_owned())));
        assert_eq!(states.problem(&key, false), expected);
        let other = target("b.example.");
        states.set(&key, Some(ExternalTargetState::Missing), Some(&other), false);
        assert_eq!(states.problem(&key, false), Some((ExternalTargetState::Missing, None)));
        states.set_failure(&key, "no".to_owned());
        set(ExternalTargetState::At(wanted.clone()));
        set(ExternalTargetState::Missing);
        assert_eq!(states.problem(&key, true), Some((ExternalTargetState::Missing, None)));
    }

    #[test]
    fn failed_write_is_in_the_feed_once() {
        let states = ExternalTargetStates::default();
        let (key, wanted) = (ServiceKey::new("shop", "web"), target("a.example."));
        let mut feed = states.subscribe();
        for is_overridden in [false, true] {
            states.set(&key, Some(ExternalTargetState::Missing), Some(&wanted), is_overridden);
            while feed.try_recv().is_ok() {}
            let why = format!("no permission: {is_overridden}");
            states.set_failure(&key, why.clone());
            assert_eq!(feed.try_recv().is_ok(), is_overridden);
            states.set_failure(&key, why);
            assert!(feed.try_recv().is_err(), "nothing has changed");
        }
    }

    #[test]
    fn feed_has_only_links_that_are_or_were_overridden() {
        let states = ExternalTargetStates::default();
        let mut feed = states.subscribe();
        let key = ServiceKey::new("shop", "web");
        let missing = || Some(ExternalTargetState::Missing);
        for (state, is_overridden, is_sent) in [
            (missing(), false, false),
            (None, false, false),
            (missing(), true, true),
            (missing(), true, false),
            (missing(), false, true),
            (None, false, false),
            (missing(), true, true),
            (None, false, true),
        ] {
            states.set(&key, state, Some(&target("a.example.")), is_overridden);
            assert_eq!(feed.try_recv().is_ok(), is_sent);
        }
        assert_eq!(states.version(), 7);
    }
}
