//! The state machine of one candidate: returns the next step from the observations and their times.
//!
//! The timestamps in a Lease are never used, because the clocks of machines differ. Only the time since this process
//! saw the Lease change counts, by a local clock that includes suspends.

use std::mem;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::core::{NotUsed, Object};
use serde::Deserialize;

use super::fence::MIN_RENEWAL_PAUSE;
use super::leadership::{LeaderStatus, LeaseWindow};
use super::lease::{LeaseOwner, Timing, claim, duration, holder, owner, released, term};
use crate::boot_clock::BootInstant;
use crate::sync::election::term::{next_term, unix};

/// The part of a Pod that the election needs: decoding the whole type would add half a megabyte to the binary.
pub(super) type Pod = Object<NotUsed, PodStatus>;

#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct PodStatus {
    pub(super) phase: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ElectionStep {
    /// Wait until this time.
    Wait(BootInstant),
    /// Read the Lease.
    Get,
    /// Create the Lease.
    Create,
    /// Replace the Lease as last seen.
    Replace,
    /// Delete the Lease as last seen.
    Delete { uid: Option<String>, resource_version: Option<String> },
    /// Read the Pod of this name, which owns the Lease.
    GetPod(String),
}

impl ElectionStep {
    /// Returns the verb of this step, for logs and metrics.
    pub(super) fn verb(&self) -> &'static str {
        match self {
            Self::Wait(_) => "wait for",
            Self::Get | Self::GetPod(_) => "get",
            Self::Create => "create",
            Self::Replace => "update",
            Self::Delete { .. } => "delete",
        }
    }
}

/// An event for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LeaderEvent {
    Gained,
    Lost(String),
    /// A term above the term of this process was seen, and the Lease still names this process: it continues in the term
    /// of this event, which is above both.
    Raised(u64),
    Resigned,
    /// Another replica leads.
    NewLeader(String),
    /// The Lease of another holder was deleted, and that holder may still lead.
    LeaseDeleted(String),
}

/// The Lease as last seen.
#[derive(Debug)]
struct ObservedLease {
    lease: Lease,
    /// The time at which this process saw the Lease change, or first saw that it was gone.
    changed: BootInstant,
    /// Whether the Lease was read since the last wait: during a long stop of this process it may have been renewed.
    fresh: bool,
    /// Whether the Pod that owns the Lease is alive, if known.
    owner_lives: Option<bool>,
}

#[derive(Debug)]
enum LeaseState {
    Unknown,
    /// No Lease exists, and no replica relies on one.
    Absent,
    Present(Box<ObservedLease>),
    /// The Lease was deleted. Its holder may not have observed that yet.
    Deleted(Box<ObservedLease>),
}

impl LeaseState {
    /// Returns the Lease that exists, or existed.
    fn observed(&mut self) -> Option<&mut ObservedLease> {
        match self {
            Self::Present(observed) | Self::Deleted(observed) => Some(observed),
            Self::Unknown | Self::Absent => None,
        }
    }
}

/// The holder of a Lease that was read a moment ago.
enum LeaseHolder {
    ThisProcess,
    Free,
    /// Another holder, until this time; `None` as long as its Pod is alive.
    Other(Option<BootInstant>),
    /// The holder leads while this Pod is alive, which has to be read.
    UnknownPod(String),
}

/// The handling of a higher term than ours on an external target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dispute {
    None,
    /// The Lease has to be read.
    Raised,
    /// The Lease still names this process, and gets a higher term.
    Won,
}

#[derive(Debug)]
pub(super) struct Elector {
    identity: String,
    /// With leader-for-life: the Pod of this process.
    pod: Option<LeaseOwner>,
    timing: Timing,
    known: LeaseState,
    /// The earliest time of the next request.
    due: BootInstant,
    /// Whether the last write failed because the Lease had changed.
    conflict: bool,
    /// While the lease is held: the time to stop unless it is renewed, and the time from which another replica may take
    /// it.
    held: Option<(BootInstant, BootInstant)>,
    /// Until when some replica may lead, as far as this process knows; `None` if the Pod of the holder has ended.
    led_until: Option<BootInstant>,
    term: u64,
    /// The highest term in the Lease and on external targets.
    highest: u64,
    /// The term in the last claim, until the claim is confirmed.
    claimed: Option<u64>,
    dispute: Dispute,
    /// The time of the last dispute.
    disputed: Option<BootInstant>,
    /// The time since which a writer has been waiting for a renewal.
    renewal_requested: Option<BootInstant>,
    /// The time at which the last renewal that a writer waited for was sent.
    confirmed: Option<BootInstant>,
    /// Whether requests have to wait after a failure.
    is_backing_off: bool,
    logged_leader: Option<String>,
    events: Vec<LeaderEvent>,
}

impl Elector {
    /// Returns a candidate that has observed nothing; `term` is that of its last lease.
    pub(super) fn new(
        me: String,
        pod: Option<LeaseOwner>,
        timing: Timing,
        term: u64,
        now: BootInstant,
    ) -> Self {
        Self {
            identity: me,
            pod,
            timing,
            known: LeaseState::Unknown,
            due: now,
            conflict: false,
            held: None,
            led_until: Some(now + timing.lease),
            term,
            highest: term,
            claimed: None,
            dispute: Dispute::None,
            disputed: None,
            renewal_requested: None,
            confirmed: None,
            is_backing_off: false,
            logged_leader: None,
            events: Vec::new(),
        }
    }

    /// Returns the status for writers.
    pub(super) fn leader_status(&self) -> LeaderStatus {
        let held = self.held.map(|(renewed_by, end)| LeaseWindow::Until { renewed_by, end });
        LeaderStatus { term: self.term, held }
    }

    /// Returns the holder in the Lease, as it was last read or written, while its lease may be valid.
    pub(super) fn current_holder(&self, now: BootInstant) -> Option<&str> {
        match &self.known {
            LeaseState::Present(observed) => holder(&observed.lease).filter(|_| self.is_led(now)),
            LeaseState::Unknown | LeaseState::Absent | LeaseState::Deleted(_) => None,
        }
    }

    /// Returns whether some replica may lead, as far as this process knows.
    pub(super) fn is_led(&self, now: BootInstant) -> bool {
        !self.has_lost_lease() && self.led_until.is_some_and(|end| now < end)
    }

    /// Returns whether the Lease has never been read, or has to be read again because its creation has failed.
    pub(super) fn knows_no_lease(&self) -> bool {
        matches!(self.known, LeaseState::Unknown)
    }

    /// Returns whether this process leads no more, and no other replica has taken the Lease, as far as it knows.
    pub(super) fn has_lost_lease(&self) -> bool {
        match &self.known {
            LeaseState::Present(observed) => {
                self.held.is_none() && holder(&observed.lease) == Some(&*self.identity)
            }
            LeaseState::Unknown | LeaseState::Absent | LeaseState::Deleted(_) => false,
        }
    }

    /// Returns the events since the last call.
    pub(super) fn take_events(&mut self) -> Vec<LeaderEvent> {
        mem::take(&mut self.events)
    }

    /// Returns the time at which the last renewal that a writer waited for was sent.
    pub(super) fn confirmed(&self) -> Option<BootInstant> {
        self.confirmed
    }

    /// Returns the time at which the lease is lost unless it is renewed before.
    pub(super) fn deadline(&self) -> Option<BootInstant> {
        self.held.map(|(renewed_by, _)| renewed_by)
    }

    pub(super) fn next(&mut self, now: BootInstant) -> ElectionStep {
        self.expire(now);
        if now < self.due {
            let ends = [self.deadline(), self.led_until].into_iter().flatten().filter(|end| now < *end);
            return ElectionStep::Wait(ends.fold(self.due, BootInstant::min));
        }
        self.is_backing_off = false;
        let (observed, vanished) = match &self.known {
            LeaseState::Unknown => return ElectionStep::Get,
            LeaseState::Absent => return ElectionStep::Create,
            LeaseState::Present(observed) => (observed, false),
            LeaseState::Deleted(observed) => (observed, true),
        };
        // A renewal needs no read before: its resourceVersion shows whether the Lease has changed.
        let undisputed = !self.conflict && self.dispute == Dispute::None;
        let renews = self.held.is_some() && self.pod.is_none() && undisputed;
        if renews {
            return ElectionStep::Replace;
        }
        if !observed.fresh {
            return ElectionStep::Get;
        }
        match (self.holder_of(observed, vanished, now), &self.pod) {
            (LeaseHolder::ThisProcess | LeaseHolder::Free, _) if vanished => ElectionStep::Create,
            (LeaseHolder::ThisProcess, _) | (LeaseHolder::Free, None) => ElectionStep::Replace,
            (LeaseHolder::Free, Some(_)) => {
                let metadata = &observed.lease.metadata;
                ElectionStep::Delete {
                    uid: metadata.uid.clone(),
                    resource_version: metadata.resource_version.clone(),
                }
            }
            (LeaseHolder::UnknownPod(pod), _) => ElectionStep::GetPod(pod),
            (LeaseHolder::Other(end), _) => {
                let look = now + self.timing.retry;
                self.rest_until(end.map_or(look, |end| end.min(look)));
                ElectionStep::Wait(self.due)
            }
        }
    }

    fn holder_of(&self, observed: &ObservedLease, vanished: bool, now: BootInstant) -> LeaseHolder {
        let ObservedLease { lease, changed, owner_lives, .. } = observed;
        match holder(lease) {
            None => return LeaseHolder::Free,
            // A vanished Lease of ours may have been taken by another replica before its deletion.
            Some(holder) if holder == self.identity && !vanished => return LeaseHolder::ThisProcess,
            Some(_) => {}
        }
        if let (Some(me), Some(owner)) = (&self.pod, owner(lease)) {
            return match owner_lives {
                // The previous process in this Pod has ended.
                _ if owner.uid == me.uid => LeaseHolder::ThisProcess,
                None => LeaseHolder::UnknownPod(owner.name),
                Some(true) => LeaseHolder::Other(None),
                Some(false) => LeaseHolder::Free,
            };
        }
        // With leader-for-life, too, the holder stops after the usual time if it can't read the Lease any more.
        let lasts = duration(lease, self.timing.lease).or(vanished.then_some(self.timing.lease));
        match lasts.map(|lasts| *changed + lasts) {
            Some(end) if end <= now => LeaseHolder::Free,
            end => LeaseHolder::Other(end),
        }
    }

    /// Returns the Lease to write. A renewal keeps its term; any other claim begins a term above all that were seen.
    pub(super) fn claim(&mut self, name: &str, now: Timestamp) -> Lease {
        let there = match &self.known {
            LeaseState::Present(observed) => Some(&observed.lease),
            LeaseState::Unknown | LeaseState::Absent | LeaseState::Deleted(_) => None,
        };
        let seen = there.and_then(|lease| term(lease, now)).unwrap_or_default();
        self.highest = self.highest.max(seen).max(self.term);
        let renews = self.held.is_some() && self.dispute != Dispute::Won;
        let term = if renews { self.term } else { next_term(self.highest, unix(now)) };
        self.highest = self.highest.max(term);
        self.claimed = Some(term);
        claim(there, name, &self.identity, self.pod.as_ref(), self.timing.lease, term, now)
    }

    /// Returns the Lease to write on release, if this process holds it.
    pub(super) fn release(&self, now: Timestamp) -> Option<Lease> {
        match &self.known {
            LeaseState::Present(observed) if holder(&observed.lease) == Some(&*self.identity) => {
                Some(released(observed.lease.clone(), now))
            }
            _ => None,
        }
    }

    /// Records that a writer waits for a renewal that is sent from now on.
    pub(super) fn request_renewal(&mut self, now: BootInstant) {
        if self.held.is_some() {
            self.renewal_requested.get_or_insert(now);
            self.make_due_by(self.confirmed.map_or(now, |last| now.max(last + MIN_RENEWAL_PAUSE)));
        }
    }

    /// Records the highest term on external targets. A term above ours comes from another leader, or was written by
    /// hand: the Lease shows which.
    pub(super) fn observe_term(&mut self, highest: u64, now: BootInstant) {
        self.highest = self.highest.max(highest);
        if self.held.is_some() && highest > self.term && self.dispute == Dispute::None {
            self.dispute = Dispute::Raised;
            if let Some(observed) = self.known.observed() {
                observed.fresh = false;
            }
            // Terms that are repeatedly written by hand cause no more requests than renewals do.
            if self.disputed.replace(now).is_none_or(|last| now >= last + self.timing.lease) {
                self.make_due_by(now);
            }
        }
    }

    /// Makes the next request due at this time or earlier, unless requests are failing.
    fn make_due_by(&mut self, due: BootInstant) {
        if !self.is_backing_off {
            self.due = self.due.min(due);
        }
    }

    /// Processes the answer to [`ElectionStep::Get`]; the request was sent at `sent`.
    pub(super) fn on_lease(&mut self, lease: Option<Lease>, sent: BootInstant, now: BootInstant) {
        self.expire(now);
        let Some(lease) = lease else { return self.on_lease_deleted(now) };
        let version = |lease: &Lease| (lease.metadata.uid.clone(), lease.metadata.resource_version.clone());
        let changed = match &self.known {
            LeaseState::Present(known) if version(&known.lease) == version(&lease) => known.changed,
            _ => now,
        };
        let holder = holder(&lease).map(ToOwned::to_owned);
        let mine = holder.as_ref() == Some(&self.identity);
        let there = term(&lease, Timestamp::now());
        let same_term = there == Some(self.term);
        self.highest = self.highest.max(there.unwrap_or_default());
        match duration(&lease, self.timing.lease) {
            Some(lasts) if holder.is_some() => self.led_until = Some(changed + lasts),
            // A Lease without a duration is valid while the Pod of its holder is alive. A process that reads no Pods
            // assumes one lease time.
            None if mine || holder.is_some() && self.pod.is_none() => {
                self.led_until = Some(now + self.timing.lease);
            }
            _ => {}
        }
        self.known =
            LeaseState::Present(Box::new(ObservedLease { lease, changed, fresh: true, owner_lives: None }));
        (self.due, self.is_backing_off) = (now, false);
        if mine && self.dispute == Dispute::Raised {
            if same_term {
                self.dispute = Dispute::Won;
            } else {
                self.lose("the Lease has another term".to_owned());
            }
        }
        if mine && self.pod.is_some() && self.held.is_some() && self.dispute == Dispute::None {
            // With leader-for-life the Lease is read instead of renewed.
            return self.hold(sent, now);
        }
        if !mine {
            self.lose(holder.as_ref().map_or_else(
                || "the Lease was emptied".to_owned(),
                |holder| format!("{holder} has taken the Lease"),
            ));
        }
        if let Some(holder) = holder.filter(|holder| !mine && self.logged_leader.as_ref() != Some(holder)) {
            self.events.push(LeaderEvent::NewLeader(holder.clone()));
            self.logged_leader = Some(holder);
        }
    }

    /// Processes the Lease after a write that was sent at `sent`.
    pub(super) fn on_written(&mut self, lease: Lease, sent: BootInstant, now: BootInstant) {
        self.expire(now);
        (self.conflict, self.is_backing_off) = (false, false);
        self.led_until = Some(now + self.timing.lease);
        self.known = LeaseState::Present(Box::new(ObservedLease {
            lease,
            changed: now,
            fresh: false,
            owner_lives: None,
        }));
        self.hold(sent, now);
    }

    pub(super) fn deleted(&mut self, now: BootInstant) {
        self.known = LeaseState::Absent;
        self.due = now;
    }

    /// Records that the Lease to write doesn't exist.
    pub(super) fn gone(&mut self, now: BootInstant) {
        self.expire(now);
        self.on_lease_deleted(now);
    }

    /// Processes the Pod that owns the Lease, or its absence.
    pub(super) fn on_pod(&mut self, pod: Option<&Pod>, now: BootInstant) {
        let Some(observed) = self.known.observed() else { return };
        let owner = owner(&observed.lease);
        let lives = pod.is_some_and(|pod| {
            let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
            // An evicted Pod has the phase `Failed`.
            pod.metadata.uid == owner.map(|owner| owner.uid) && !matches!(phase, Some("Succeeded" | "Failed"))
        });
        observed.owner_lives = Some(lives);
        self.led_until = lives.then_some(now + self.timing.lease);
    }

    /// Records that the Lease has changed since the last read, or that another replica has created it.
    pub(super) fn conflict(&mut self, now: BootInstant) {
        self.expire(now);
        // Read the Lease at once, as another replica may lead; but pause after the second conflict in a row, so that
        // frequent writes by another client cause no hot loop.
        let pause = if mem::replace(&mut self.conflict, true) { self.timing.retry } else { Duration::ZERO };
        if matches!(self.known, LeaseState::Absent) {
            self.known = LeaseState::Unknown;
        }
        self.is_backing_off = !pause.is_zero();
        self.rest_until(now + pause);
    }

    /// Records that a request failed. The next request waits for the longer of `pause` and `at_least`. For a leader
    /// both are limited.
    pub(super) fn failed(&mut self, pause: Duration, at_least: Duration, now: BootInstant) {
        self.expire(now);
        if matches!(self.known, LeaseState::Absent) {
            self.known = LeaseState::Unknown;
        }
        // A leader must renew its Lease in time, whatever pause is asked for.
        let (pause, at_least) = match self.held {
            Some(_) => (self.timing.retry.min(pause), (self.timing.renew / 2).min(at_least)),
            None => (pause, at_least),
        };
        self.is_backing_off = true;
        self.rest_until(now + pause.max(at_least));
    }

    pub(super) fn resign(&mut self) {
        if self.held.take().is_some() {
            self.events.push(LeaderEvent::Resigned);
            (self.dispute, self.renewal_requested) = (Dispute::None, None);
        }
    }

    fn on_lease_deleted(&mut self, now: BootInstant) {
        self.due = now;
        let held = self.held.is_some();
        self.lose("the Lease was deleted".to_owned());
        self.known = match mem::replace(&mut self.known, LeaseState::Unknown) {
            LeaseState::Present(observed) if !held => {
                let holder = holder(&observed.lease).filter(|holder| *holder != self.identity);
                self.events.extend(holder.map(|holder| LeaderEvent::LeaseDeleted(holder.to_owned())));
                // The Lease may have been renewed right before its deletion, so its time counts from now. A Pod that
                // has ended stays so, but a Pod that was alive may have ended by now.
                let owner_lives = observed.owner_lives.filter(|lives| !lives);
                LeaseState::Deleted(Box::new(ObservedLease {
                    changed: now,
                    fresh: true,
                    owner_lives,
                    ..*observed
                }))
            }
            LeaseState::Deleted(observed) => {
                LeaseState::Deleted(Box::new(ObservedLease { fresh: true, owner_lives: None, ..*observed }))
            }
            LeaseState::Present(_) | LeaseState::Unknown | LeaseState::Absent => LeaseState::Absent,
        };
    }

    fn rest_until(&mut self, due: BootInstant) {
        self.due = due;
        if let Some(observed) = self.known.observed() {
            observed.fresh = false;
        }
    }

    /// Begins or extends the lease. Its time counts from the sending of the request: other replicas count from the time
    /// at which they saw the effect of the request, which is later.
    fn hold(&mut self, sent: BootInstant, now: BootInstant) {
        let renewed_by = sent + self.timing.renew;
        self.rest_until(sent + self.timing.retry);
        if renewed_by <= now {
            // The answer arrived too late.
            return;
        }
        if self.renewal_requested.take_if(|requested| *requested <= sent).is_some() {
            self.confirmed = Some(sent);
        }
        let claimed = self.claimed.take();
        if self.held.replace((renewed_by, sent + self.timing.lease)).is_none() {
            self.term = claimed.filter(|claimed| *claimed > self.term).unwrap_or(self.term.saturating_add(1));
            self.logged_leader = Some(self.identity.clone());
            self.events.push(LeaderEvent::Gained);
        } else if let Some(claimed) = claimed.filter(|claimed| *claimed > self.term) {
            self.term = claimed;
            self.events.push(LeaderEvent::Raised(claimed));
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
            self.events.push(LeaderEvent::Lost(why));
            (self.dispute, self.renewal_requested) = (Dispute::None, None);
        }
    }
}

#[cfg(test)]
mod tests;
