//! The decisions of one candidate: what to do next, given what was seen and when.
//!
//! The moments of a Lease are never read: clocks of machines differ. What counts is how long ago, by a clock of this
//! machine that also counts suspends, this process saw the Lease change.

use std::mem;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::core::{NotUsed, Object};
use serde::Deserialize;

use super::clock::BootInstant;
use super::fence::POLL_INTERVAL;
use super::leadership::{LeaderStatus, LeaseWindow};
use super::lease::{LeaseOwner, claim, duration, holder, owner, released, term};
use crate::sync::election::term::{above, unix};

/// How long things last.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timing {
    /// How long a Lease lasts after its last change.
    pub(super) lease: Duration,
    /// How long its holder goes on without having renewed it.
    pub(super) renew: Duration,
    /// How often the holder renews it and the others look at it.
    pub(super) retry: Duration,
}

impl Timing {
    /// What Kubernetes' own components take.
    pub(super) const DEFAULT: Self = Self {
        lease: Duration::from_secs(15),
        renew: Duration::from_secs(10),
        retry: Duration::from_secs(2),
    };
}

/// A Pod, as far as it counts here: to read all of it would take the program half a megabyte.
pub(super) type Pod = Object<NotUsed, PodStatus>;

/// `status` of a Pod.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct PodStatus {
    /// `phase`.
    pub(super) phase: Option<String>,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ElectionStep {
    /// Nothing before this moment.
    Wait(BootInstant),
    /// Read the Lease.
    Look,
    /// Create it.
    Create,
    /// Replace it as it was seen last.
    Replace,
    /// Delete it as it was seen last.
    Delete { uid: Option<String>, resource_version: Option<String> },
    /// Read the Pod of this name, which owns it.
    LookAtPod(String),
}

impl ElectionStep {
    /// Returns what is done, for the log.
    pub(super) fn verb(&self) -> &'static str {
        match self {
            Self::Wait(_) => "wait for",
            Self::Look | Self::LookAtPod(_) => "get",
            Self::Create => "create",
            Self::Replace => "update",
            Self::Delete { .. } => "delete",
        }
    }
}

/// What people and writers need to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LeaderEvent {
    Gained,
    Lost(String),
    /// A higher term than ours was seen, and the Lease still names us: we go on with this one.
    Raised(u64),
    Resigned,
    /// Another replica leads.
    Leads(String),
    /// The Lease of another holder was deleted, and that holder may still lead.
    Vanished(String),
}

/// A Lease as it was seen last.
#[derive(Debug)]
struct ObservedLease {
    lease: Lease,
    /// When this process saw it change, or first saw that it wasn't there any more.
    changed: BootInstant,
    /// Whether it was read since the last wait. A process that was stopped for long may see it renewed.
    fresh: bool,
    /// Whether the Pod that owns it lives, if that is known.
    owner_lives: Option<bool>,
}

#[derive(Debug)]
enum LeaseState {
    Nothing,
    /// There is none, and no replica relies on it.
    Absent,
    There(Box<ObservedLease>),
    /// There is none any more. Its holder doesn't know that yet.
    Vanished(Box<ObservedLease>),
}

impl LeaseState {
    /// Returns the Lease that is there, or was.
    fn observed(&mut self) -> Option<&mut ObservedLease> {
        match self {
            Self::There(observed) | Self::Vanished(observed) => Some(observed),
            Self::Nothing | Self::Absent => None,
        }
    }
}

/// Whose a Lease is that was read a moment ago.
enum LeaseHolder {
    Mine,
    Nobodys,
    /// Another holder's, up to this moment if it ends.
    Theirs(Option<BootInstant>),
    /// That of the process in this Pod, while the Pod lives.
    Pods(String),
}

/// What follows from a higher term than ours on an external target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dispute {
    /// There is none.
    None,
    /// The Lease has to be read.
    Raised,
    /// The Lease still names us, and gets a higher term.
    Won,
}

/// One candidate.
#[derive(Debug)]
pub(super) struct Elector {
    me: String,
    /// With leader-for-life: the Pod that this is.
    pod: Option<LeaseOwner>,
    timing: Timing,
    known: LeaseState,
    /// Nothing is asked before.
    due: BootInstant,
    /// Whether the last write was refused because the Lease had changed.
    conflict: bool,
    /// Until when it is held, and from when on others may have it.
    held: Option<(BootInstant, BootInstant)>,
    term: u64,
    /// The highest term in the Lease and on external targets.
    highest: u64,
    /// The term in the claim that was written last.
    claimed: Option<u64>,
    dispute: Dispute,
    /// When the last dispute was raised.
    disputed: Option<BootInstant>,
    /// Since when a writer has waited for a renewal.
    asked: Option<BootInstant>,
    /// When the last renewal that a writer had waited for was sent.
    confirmed: Option<BootInstant>,
    /// Whether requests have to wait after one that failed.
    resting: bool,
    /// The leader that was logged last.
    leader: Option<String>,
    news: Vec<LeaderEvent>,
}

impl Elector {
    /// Returns a candidate that knows nothing; `term` is that of its last lease.
    pub(super) fn new(
        me: String,
        pod: Option<LeaseOwner>,
        timing: Timing,
        term: u64,
        now: BootInstant,
    ) -> Self {
        Self {
            me,
            pod,
            timing,
            known: LeaseState::Nothing,
            due: now,
            conflict: false,
            held: None,
            term,
            highest: term,
            claimed: None,
            dispute: Dispute::None,
            disputed: None,
            asked: None,
            confirmed: None,
            resting: false,
            leader: None,
            news: Vec::new(),
        }
    }

    /// Returns what writers are told.
    pub(super) fn leader_status(&self) -> LeaderStatus {
        let held = self.held.map(|(renewed_by, end)| LeaseWindow::Until { renewed_by, end });
        LeaderStatus { term: self.term, held }
    }

    /// Returns what is new since the last call.
    pub(super) fn take_news(&mut self) -> Vec<LeaderEvent> {
        mem::take(&mut self.news)
    }

    /// Returns when the last renewal that a writer had waited for was sent.
    pub(super) fn confirmed(&self) -> Option<BootInstant> {
        self.confirmed
    }

    /// Returns the moment at which the lease is lost unless it is renewed before.
    pub(super) fn deadline(&self) -> Option<BootInstant> {
        self.held.map(|(renewed_by, _)| renewed_by)
    }

    // === what to do ===

    /// Decides the next step.
    pub(super) fn next(&mut self, now: BootInstant) -> ElectionStep {
        self.expire(now);
        if now < self.due {
            return ElectionStep::Wait(self.deadline().map_or(self.due, |deadline| deadline.min(self.due)));
        }
        self.resting = false;
        let (observed, vanished) = match &self.known {
            LeaseState::Nothing => return ElectionStep::Look,
            LeaseState::Absent => return ElectionStep::Create,
            LeaseState::There(observed) => (observed, false),
            LeaseState::Vanished(observed) => (observed, true),
        };
        // The version in it says whether it is still the newest.
        let undisputed = !self.conflict && self.dispute == Dispute::None;
        let renews = self.held.is_some() && self.pod.is_none() && undisputed;
        if renews {
            return ElectionStep::Replace;
        }
        if !observed.fresh {
            return ElectionStep::Look;
        }
        match (self.whose(observed, vanished, now), &self.pod) {
            (LeaseHolder::Mine | LeaseHolder::Nobodys, _) if vanished => ElectionStep::Create,
            (LeaseHolder::Mine, _) | (LeaseHolder::Nobodys, None) => ElectionStep::Replace,
            (LeaseHolder::Nobodys, Some(_)) => {
                let metadata = &observed.lease.metadata;
                ElectionStep::Delete {
                    uid: metadata.uid.clone(),
                    resource_version: metadata.resource_version.clone(),
                }
            }
            (LeaseHolder::Pods(pod), _) => ElectionStep::LookAtPod(pod),
            (LeaseHolder::Theirs(end), _) => {
                let look = now + self.timing.retry;
                self.rest_until(end.map_or(look, |end| end.min(look)));
                ElectionStep::Wait(self.due)
            }
        }
    }

    fn whose(&self, observed: &ObservedLease, vanished: bool, now: BootInstant) -> LeaseHolder {
        let ObservedLease { lease, changed, owner_lives, .. } = observed;
        match holder(lease) {
            None => return LeaseHolder::Nobodys,
            // One that has vanished may have been taken before.
            Some(holder) if holder == self.me && !vanished => return LeaseHolder::Mine,
            Some(_) => {}
        }
        if let (Some(me), Some(owner)) = (&self.pod, owner(lease)) {
            return match owner_lives {
                // What ran in this Pod before has ended.
                _ if owner.uid == me.uid => LeaseHolder::Mine,
                None => LeaseHolder::Pods(owner.name),
                Some(true) => LeaseHolder::Theirs(None),
                Some(false) => LeaseHolder::Nobodys,
            };
        }
        // With leader-for-life the holder stops as early as with a timed lease when it can't read the Lease any more.
        let lasts = duration(lease, self.timing.lease).or(vanished.then_some(self.timing.lease));
        match lasts.map(|lasts| *changed + lasts) {
            Some(end) if end <= now => LeaseHolder::Nobodys,
            end => LeaseHolder::Theirs(end),
        }
    }

    /// Returns the Lease as it is to be written. A renewal goes on with its term; any other claim begins one that
    /// is higher than all that were seen.
    pub(super) fn claim(&mut self, name: &str, now: Timestamp) -> Lease {
        let there = match &self.known {
            LeaseState::There(observed) => Some(&observed.lease),
            LeaseState::Nothing | LeaseState::Absent | LeaseState::Vanished(_) => None,
        };
        let seen = there.and_then(|lease| term(lease, now)).unwrap_or_default();
        self.highest = self.highest.max(seen).max(self.term);
        let renews = self.held.is_some() && self.dispute != Dispute::Won;
        let term = if renews { self.term } else { above(self.highest, unix(now)) };
        self.highest = self.highest.max(term);
        self.claimed = Some(term);
        claim(there, name, &self.me, self.pod.as_ref(), self.timing.lease, term, now)
    }

    /// Returns the Lease as it is to be left, if it is ours.
    pub(super) fn release(&self, now: Timestamp) -> Option<Lease> {
        match &self.known {
            LeaseState::There(observed) if holder(&observed.lease) == Some(&*self.me) => {
                Some(released(observed.lease.clone(), now))
            }
            _ => None,
        }
    }

    // === what writers say ===

    /// Takes in that a writer waits for a renewal that is sent from now on.
    pub(super) fn ask(&mut self, now: BootInstant) {
        if self.held.is_some() {
            self.asked.get_or_insert(now);
            self.hasten(self.confirmed.map_or(now, |last| now.max(last + POLL_INTERVAL)));
        }
    }

    /// Takes in the highest term on external targets. One above ours is another leader's, or was written by hand: the
    /// Lease says which.
    pub(super) fn see(&mut self, highest: u64, now: BootInstant) {
        self.highest = self.highest.max(highest);
        if self.held.is_some() && highest > self.term && self.dispute == Dispute::None {
            self.dispute = Dispute::Raised;
            if let Some(observed) = self.known.observed() {
                observed.fresh = false;
            }
            // Terms that are written by hand again and again cause no more requests than a renewal does.
            if self.disputed.replace(now).is_none_or(|last| now >= last + self.timing.lease) {
                self.hasten(now);
            }
        }
    }

    /// Has the Lease asked for at this moment or earlier, unless requests fail.
    fn hasten(&mut self, due: BootInstant) {
        if !self.resting {
            self.due = self.due.min(due);
        }
    }

    // === what was seen ===

    /// Takes over an answer to [`ElectionStep::Look`] that was asked for at `sent`.
    pub(super) fn saw(&mut self, lease: Option<Lease>, sent: BootInstant, now: BootInstant) {
        self.expire(now);
        let Some(lease) = lease else { return self.is_absent(now) };
        let version = |lease: &Lease| (lease.metadata.uid.clone(), lease.metadata.resource_version.clone());
        let changed = match &self.known {
            LeaseState::There(known) if version(&known.lease) == version(&lease) => known.changed,
            _ => now,
        };
        let holder = holder(&lease).map(ToOwned::to_owned);
        let mine = holder.as_ref() == Some(&self.me);
        let there = term(&lease, Timestamp::now());
        let same_term = there == Some(self.term);
        self.highest = self.highest.max(there.unwrap_or_default());
        self.known =
            LeaseState::There(Box::new(ObservedLease { lease, changed, fresh: true, owner_lives: None }));
        (self.due, self.resting) = (now, false);
        if mine && self.dispute == Dispute::Raised {
            if same_term {
                self.dispute = Dispute::Won;
            } else {
                self.lose("the Lease has another term".to_owned());
            }
        }
        if mine && self.pod.is_some() && self.held.is_some() && self.dispute == Dispute::None {
            // With leader-for-life the Lease isn't renewed, but looked at.
            return self.hold(sent, now);
        }
        if !mine {
            self.lose(holder.as_ref().map_or_else(
                || "the Lease was emptied".to_owned(),
                |holder| format!("{holder} has taken the Lease"),
            ));
        }
        if let Some(holder) = holder.filter(|holder| !mine && self.leader.as_ref() != Some(holder)) {
            self.news.push(LeaderEvent::Leads(holder.clone()));
            self.leader = Some(holder);
        }
    }

    /// Takes over the Lease as it is after a write of ours that was sent at `sent`.
    pub(super) fn wrote(&mut self, lease: Lease, sent: BootInstant, now: BootInstant) {
        self.expire(now);
        (self.conflict, self.resting) = (false, false);
        self.known = LeaseState::There(Box::new(ObservedLease {
            lease,
            changed: now,
            fresh: false,
            owner_lives: None,
        }));
        self.hold(sent, now);
    }

    /// Takes over that the Lease was deleted.
    pub(super) fn deleted(&mut self, now: BootInstant) {
        self.known = LeaseState::Absent;
        self.due = now;
    }

    /// Takes over that there was none to write.
    pub(super) fn gone(&mut self, now: BootInstant) {
        self.expire(now);
        self.is_absent(now);
    }

    /// Takes over the Pod that owns the Lease, as it is.
    pub(super) fn saw_pod(&mut self, pod: Option<&Pod>) {
        let Some(observed) = self.known.observed() else { return };
        let owner = owner(&observed.lease);
        let lives = pod.is_some_and(|pod| {
            let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
            // One that was evicted has failed.
            pod.metadata.uid == owner.map(|owner| owner.uid) && !matches!(phase, Some("Succeeded" | "Failed"))
        });
        observed.owner_lives = Some(lives);
    }

    /// Takes over that the Lease isn't as it was seen last, or has been created by another replica.
    pub(super) fn conflict(&mut self, now: BootInstant) {
        self.expire(now);
        // At once: another replica may lead. But where the Lease is written all the time, not in a loop.
        let pause = if mem::replace(&mut self.conflict, true) { self.timing.retry } else { Duration::ZERO };
        if matches!(self.known, LeaseState::Absent) {
            self.known = LeaseState::Nothing;
        }
        self.resting = !pause.is_zero();
        self.rest_until(now + pause);
    }

    /// Takes over that a request failed: after that `pause` is due for a replica that doesn't lead, and
    /// `at_least` for any.
    pub(super) fn failed(&mut self, pause: Duration, at_least: Duration, now: BootInstant) {
        self.expire(now);
        if matches!(self.known, LeaseState::Absent) {
            self.known = LeaseState::Nothing;
        }
        let pause = if self.held.is_some() { self.timing.retry.min(pause) } else { pause };
        self.resting = true;
        self.rest_until(now + pause.max(at_least));
    }

    /// Gives the lease up.
    pub(super) fn resign(&mut self) {
        if self.held.take().is_some() {
            self.news.push(LeaderEvent::Resigned);
            (self.dispute, self.asked) = (Dispute::None, None);
        }
    }

    fn is_absent(&mut self, now: BootInstant) {
        self.due = now;
        let held = self.held.is_some();
        self.lose("the Lease was deleted".to_owned());
        self.known = match mem::replace(&mut self.known, LeaseState::Nothing) {
            LeaseState::There(observed) if !held => {
                let holder = holder(&observed.lease).filter(|holder| *holder != self.me);
                self.news.extend(holder.map(|holder| LeaderEvent::Vanished(holder.to_owned())));
                // It may have been renewed right before it was deleted, so what counts is now.
                // A Pod that is over doesn't come back; one that lived may be over by now.
                let owner_lives = observed.owner_lives.filter(|lives| !lives);
                LeaseState::Vanished(Box::new(ObservedLease {
                    changed: now,
                    fresh: true,
                    owner_lives,
                    ..*observed
                }))
            }
            LeaseState::Vanished(observed) => {
                LeaseState::Vanished(Box::new(ObservedLease { fresh: true, owner_lives: None, ..*observed }))
            }
            LeaseState::There(_) | LeaseState::Nothing | LeaseState::Absent => LeaseState::Absent,
        };
    }

    fn rest_until(&mut self, due: BootInstant) {
        self.due = due;
        if let Some(observed) = self.known.observed() {
            observed.fresh = false;
        }
    }

    // === the lease ===

    /// Counts from when the request was sent: others count from when they saw what it did, which is
    /// later.
    fn hold(&mut self, sent: BootInstant, now: BootInstant) {
        let renewed_by = sent + self.timing.renew;
        self.rest_until(sent + self.timing.retry);
        if renewed_by <= now {
            // An answer that took too long.
            return;
        }
        if self.asked.take_if(|asked| *asked <= sent).is_some() {
            self.confirmed = Some(sent);
        }
        let claimed = self.claimed.take();
        if self.held.replace((renewed_by, sent + self.timing.lease)).is_none() {
            self.term = claimed.filter(|claimed| *claimed > self.term).unwrap_or(self.term.saturating_add(1));
            self.leader = Some(self.me.clone());
            self.news.push(LeaderEvent::Gained);
        } else if let Some(claimed) = claimed.filter(|claimed| *claimed > self.term) {
            self.term = claimed;
            self.news.push(LeaderEvent::Raised(claimed));
        }
        if self.dispute == Dispute::Won {
            self.dispute = Dispute::None;
        }
    }

    fn expire(&mut self, now: BootInstant) {
        if self.deadline().is_some_and(|deadline| deadline <= now) {
            let verb = if self.pod.is_some() { "read" } else { "renewed" };
            self.lose(format!("the Lease couldn't be {verb} for {} s", self.timing.renew.as_secs()));
        }
    }

    fn lose(&mut self, why: String) {
        if self.held.take().is_some() {
            self.news.push(LeaderEvent::Lost(why));
            (self.dispute, self.asked) = (Dispute::None, None);
        }
    }
}

#[cfg(test)]
mod tests;
