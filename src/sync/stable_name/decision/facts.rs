//! The inputs of a decision, and what the rules ask about them.

use std::cell::Cell;
use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::checks::{CheckRecords, CheckTally};
use super::spec::{FailoverSpec, Offer, Refusal, RefusalReason};
use super::status::{AnnouncedTarget, FailoverStatus, SourceState, SourceStatus};
use super::times::{end_of_wait, later, whole_second};
use super::upstream_answers::UpstreamAnswers;
use crate::model::link::Target;
use crate::model::uid::Uid;
use crate::sync::removal;
use crate::sync::removal::facts::{Found, ServiceState, Subject};
use crate::sync::removal::reason::RemovalReason;
use crate::sync::removal::verdict::{Verdict, may_remove};

/// The inputs of a decision.
pub struct Inputs<'a> {
    pub spec: &'a FailoverSpec,
    /// What each source of the specification offers, in the same order. Decide only after the Services are listed: the
    /// target of an absent Service is withdrawn.
    pub offers: &'a [Offer],
    pub checks: &'a CheckRecords,
    pub upstreams: &'a UpstreamAnswers,
    /// The status that the API server has; empty if the object has none. A move counts once it is written: until then
    /// each decision is made anew.
    pub former: &'a FailoverStatus,
    /// The last decision of this term, written or not: what checks have shown counts at once, and writes may be slow. At
    /// the beginning of a term, and after another client's change, as `former`.
    pub last: &'a FailoverStatus,
    /// What the external target points at, if it was written for a StableName of this name, and the uid of the
    /// Service that the target is from: empty for fixed targets, and where it isn't known.
    pub present_target: Option<(&'a Target, &'a Uid)>,
    /// Whether the external target exists and points at the target of the status.
    pub is_written: bool,
    /// Why the last write of the external target has failed, if it isn't as it should be.
    pub write_failure: Option<&'a str>,
    /// Whether the Service with this uid exists and lets the namespace follow it, whatever the specification lists. A
    /// Service that can be looked up counts as existing until its deletion is confirmed.
    pub is_living: &'a dyn Fn(&Uid) -> bool,
    /// Whether the target policy denies a target.
    pub denied: &'a dyn Fn(&Target) -> bool,
    /// Why the StableName isn't accepted, apart from its sources.
    pub refusal: Option<&'a Refusal>,
    /// Whether a first target has to wait, because the Service of the same name can't be listed: its link may be in
    /// place.
    pub is_first_target_held: bool,
    /// Whether a failover is held: [`super::mass_failure::MassFailureGuard::decide`] decides that.
    pub is_failover_held: bool,
    pub now: Timestamp,
}

/// The inputs, and the earliest end of a wait that isn't over: then the decision must be made again.
pub(super) struct Facts<'a> {
    pub(super) input: &'a Inputs<'a>,
    next: Cell<Option<Timestamp>>,
}

impl<'a> Facts<'a> {
    pub(super) fn new(input: &'a Inputs<'a>) -> Self {
        Self { input, next: Cell::new(None) }
    }

    /// Returns the current time in whole seconds, as the status stores it.
    pub(super) fn now_second(&self) -> Timestamp {
        whole_second(self.input.now)
    }

    /// Returns the earliest end of a wait that isn't over.
    pub(super) fn next(&self) -> Option<Timestamp> {
        self.next.get()
    }

    /// Returns whether a time has passed. If it hasn't, it counts for [`Self::next`].
    pub(super) fn has_passed(&self, at: Timestamp) -> bool {
        let is_over = at <= self.input.now;
        if !is_over {
            self.next.set(Some(self.next.get().map_or(at, |next| next.min(at))));
        }
        is_over
    }

    pub(super) fn wait_is_over(&self, since: Timestamp, wait: Duration) -> bool {
        self.has_passed(end_of_wait(since, wait))
    }

    pub(super) fn positions(&self) -> std::ops::Range<usize> {
        0..self.input.spec.sources.len().min(self.input.offers.len())
    }

    pub(super) fn name(&self, position: usize) -> &'a str {
        &self.input.spec.sources[position]
    }

    pub(super) fn position_of(&self, source: &str) -> Option<usize> {
        self.positions().find(|position| self.name(*position) == source)
    }

    /// Returns the target that a source offers; `None` if the source is refused, or the target policy denies the
    /// target.
    pub(super) fn offered(&self, position: usize) -> Option<&'a Target> {
        let offer = self.input.offers.get(position)?;
        let target = offer.target.as_ref().filter(|_| offer.refusal.is_none())?;
        (!(self.input.denied)(target)).then_some(target)
    }

    pub(super) fn is_offered(&self, position: usize, target: &Target) -> bool {
        self.offered(position).is_some_and(|offered| offered == target)
    }

    /// Returns why a target must be withdrawn; `None` if it stays. The last target of a Service stays while the status
    /// of the Service is empty or names a denied target, and after an edit that removes the Service from the
    /// specification.
    pub(super) fn withdrawal(&self, current: &AnnouncedTarget) -> Option<&'static str> {
        let is_denied = (self.input.denied)(&current.target);
        let is_living = || current.uid.is_empty() || (self.input.is_living)(&current.uid);
        let service = if is_denied || is_living() { ServiceState::Exists } else { ServiceState::Unlisted };
        let facts = removal::facts::Facts::of(Subject::Announcement, service);
        let facts = removal::facts::Facts { is_denied, found: Some(Found::Absent), ..facts };
        match may_remove(&facts, Instant::now()) {
            Verdict::Remove(RemovalReason::TargetDenied) => Some("the target policy denies it"),
            // One text: tenants mustn't learn which Services of other namespaces exist.
            Verdict::Remove(_) => Some("its Service is gone, or doesn't allow the namespace any more"),
            Verdict::Keep(_) | Verdict::Wait(..) | Verdict::Ask(_) => None,
        }
    }

    pub(super) fn tally(&self, target: &Target) -> CheckTally<'a> {
        self.input.checks.tally(target, self.tcp_port(target), self.input.upstreams)
    }

    /// Returns the port that a check of a target connects to; `None` if only DNS is checked. A port needs a source that
    /// offers the target, or the Service of the announced target: otherwise a tenant could make lb-linker connect to
    /// any address.
    pub(super) fn tcp_port(&self, target: &Target) -> Option<u16> {
        let is_of_living_source = |announced: &AnnouncedTarget| {
            let position = self.position_of(&announced.source).filter(|_| announced.target == *target);
            position.map(|position| &self.input.offers[position]).is_some_and(|offer| {
                let forbidding = [RefusalReason::CheckRefused, RefusalReason::RefNotPermitted];
                let is_refused = forbidding.into_iter().any(|reason| offer.is_refused_for(reason));
                !is_refused && !offer.uid.is_empty() && offer.uid == announced.uid
            })
        };
        let port = self.input.spec.check.tcp_port?;
        let is_permitted = self.positions().any(|position| self.is_offered(position, target))
            || self.input.former.target.as_ref().is_some_and(is_of_living_source);
        is_permitted.then_some(port)
    }

    /// Returns whether there is something to check: addresses without a port are healthy by themselves.
    pub(super) fn is_checked(&self, target: &Target) -> bool {
        matches!(target, Target::Hostname(_)) || self.tcp_port(target).is_some()
    }

    /// Returns whether a target passes its checks: the newest pass or failure is a pass, and younger than
    /// [`super::spec::CheckSettings::max_age`]. A target that isn't checked passes.
    pub(super) fn is_passing(&self, target: &Target) -> bool {
        let settings = &self.input.spec.check;
        !self.is_checked(target) || self.tally(target).passed_recently(settings, self.input.now)
    }

    /// Makes [`Self::next`] no later than the time at which the newest pass of a target becomes too old.
    pub(super) fn schedule_pass_expiry(&self, target: &Target) {
        let end = self.tally(target).pass_expires_at(&self.input.spec.check);
        if let Some(end) = end.filter(|_| self.is_checked(target)) {
            self.has_passed(end);
        }
    }

    /// Returns whether a target has failed `failureThreshold` times in a row. Old results don't count: the leader may
    /// have been suspended.
    pub(super) fn has_failed(&self, target: &Target) -> bool {
        let (settings, tally) = (&self.input.spec.check, self.tally(target));
        self.is_checked(target)
            && tally.failures >= settings.failure_threshold as usize
            && !self.is_late(target)
    }

    /// Returns whether a check is late: see [`super::spec::CheckSettings::late_after`].
    pub(super) fn is_late(&self, target: &Target) -> bool {
        let limit = self.input.spec.check.late_after();
        self.tally(target).decided.is_some_and(|at| self.has_passed(later(at, limit)))
    }

    /// Returns the end of the wait for the target that a source offers: `maxWaitSeconds` after it was offered. The wait
    /// for an unhealthy source is over.
    pub(super) fn waits_until(&self, source: &SourceStatus) -> Timestamp {
        match source.state {
            SourceState::Unhealthy => Timestamp::MIN,
            _ => end_of_wait(source.since, self.input.spec.max_wait),
        }
    }

    /// Returns whether the wait for the target that a source offers is over.
    pub(super) fn is_wait_over(&self, source: &SourceStatus) -> bool {
        self.has_passed(self.waits_until(source))
    }
}
