//! Decides about a StableName: gathers what the pure decision needs, and plans its checks.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use super::super::check_queue::CheckKey;
use super::super::object::{ObservedStableName, TrackedStableName};
use super::super::overrides::annotations;
use super::super::sources::Sources;
use super::super::status_format::from_stored;
use super::super::{FailoverController, sources_of};
use super::LeaderTerm;
use super::state::{DecisionState, UnreportedEvents};
use crate::model::hostname_policy::HostnamePolicy;
use crate::model::link::{Link, Target};
use crate::model::link_override::{Announcement, LinkOverride};
use crate::model::service_key::ServiceKey;
use crate::model::uid::Uid;
use crate::store::Input;
use crate::sync::events::link_log::lost_hostnames_of;
use crate::sync::external_target::states::{ExternalTargetState, WRITE_LAG};
use crate::sync::k8s::listed::{CompletedLists, ListEpoch, Reading};
use crate::sync::removal::facts::{Facts, Found, Lists, ServiceState, Subject};
use crate::sync::removal::verdict::{Verdict, may_remove};
use crate::sync::stable_name::decision::checks::PlannedCheck;
use crate::sync::stable_name::decision::decide::FailoverDecision;
use crate::sync::stable_name::decision::facts::Inputs;
use crate::sync::stable_name::decision::spec::{CheckSettings, Refusal, RefusalReason};
use crate::sync::stable_name::decision::status::{
    AnnouncedTarget, FailoverStatus, MoveReason, NO_EXTERNAL_TARGET, restore_times,
};
use crate::sync::stable_name::decision::times::end_of_wait;

/// The time after which a decision that waits for a complete list is tried again.
const LIST_WAIT: Duration = Duration::from_secs(5);
/// How long a new process waits for the first list of a remote cluster before it decides without. A change of its own about
/// the missing list would be undone by that list.
pub(super) const REMOTE_LIST_WAIT: Duration = Duration::from_secs(30);
/// The longest timer: wall clock times are compared again after it, because the clock may have been set.
const MAX_TIMER: Duration = Duration::from_secs(60);

impl FailoverController {
    /// Returns the present term and rewind count; `None` if this replica doesn't lead.
    fn epoch(&self) -> Option<ListEpoch> {
        Some(ListEpoch { term: self.leader.term?, rewinds: self.context.rewinds.count() })
    }

    /// Returns whether this replica leads, and all lists that a decision about this StableName needs are complete.
    pub(super) fn may_decide(&self, object: &ObservedStableName) -> bool {
        let Some(epoch) = self.epoch() else { return false };
        let (listed, overrides) =
            (self.context.links_listed.borrow(), self.context.overrides_listed.borrow());
        let policy = self.context.hostname_policy.borrow();
        let known = KnownServices::new(&listed, epoch, &policy, &self.listed_remotes);
        overrides.is_settled(epoch)
            && overrides.covers(object.key.namespace(), epoch)
            && self.context.store.is_known(Input::Services)
            && self.context.store.is_known(Input::ExternalTargets)
            && object.services().all(|service| known.may_use(&service, self.started))
    }

    pub(super) fn decide(&mut self, key: &ServiceKey) {
        self.leader.to_decide.stop_timer(key);
        let Some(followed) = self.objects.get(key) else { return };
        let object = &followed.object;
        if !self.may_decide(object) {
            return self.leader.to_decide.add_after(key.clone(), LIST_WAIT);
        }
        let Some(epoch) = self.epoch() else { return };
        let listed = self.context.links_listed.borrow();
        let policy = Arc::clone(&self.context.hostname_policy.borrow());
        let known = KnownServices::new(&listed, epoch, &policy, &self.listed_remotes);
        let (now, all) = (Timestamp::now(), self.objects.len());
        self.leader.upstreams.forget_after(now);
        self.leader.decided_at = now;
        let sources = sources_of(&self.context, &policy);
        let link = self.context.store.get(key);
        let is_known = |uid: &Uid| sources.is_open_to(uid, key.namespace(), followed.services()).is_some();
        let present = present_target(link.as_deref(), is_known);
        let (former, spec) = (from_stored(&object.status), object.failover_spec());
        let write = self.write_state(followed, link.as_deref(), former.target.as_ref(), now);
        let leader = &mut self.leader;
        let state = leader.states.entry(key.clone()).or_insert_with(|| DecisionState::new(object));
        state.decided_at = Some(Instant::now());
        let offers = sources.offers(object, former.target.as_ref(), |it| known.reading(it));
        let denied = |target: &Target| sources.denies(target, former.target.as_ref(), key.namespace());
        let (absences, is_missing) = (RefCell::new(&mut leader.absences), Cell::new(false));
        let is_living = |uid: &Uid| {
            let look_up = |service: &ServiceKey| {
                is_missing.set(true);
                absences.borrow_mut().found(key, service, uid)
            };
            let facts = service_facts(uid, followed, former.target.as_ref(), &sources, known, look_up);
            !matches!(may_remove(&facts, std::time::Instant::now()), Verdict::Remove(_))
        };
        let decision = leader.mass_failure_guard.decide(
            key,
            all,
            &Inputs {
                spec: &spec,
                offers: &offers,
                checks: &state.records,
                upstreams: &leader.upstreams,
                former: &former,
                last: &state.status,
                present_target: present.as_ref().map(|(target, uid)| (target, uid)),
                is_written: write.is_written,
                write_failure: write.failure.as_deref(),
                is_living: &is_living,
                denied: &denied,
                refusal: write.refusal.as_ref(),
                is_first_target_held: may_replace(object, link.as_deref(), known),
                is_failover_held: false,
                now,
            },
        );
        if !is_missing.get() {
            leader.absences.forget(key);
        }
        let again = decision.again.into_iter().chain(write.lag_ends).min();
        let checks = state.apply(decision, &former, now);
        leader.plan_checks(key, &checks, &spec.check, (now, again));
    }

    /// Returns what is known about the external target of a StableName that announces the target `announced`, if any.
    fn write_state(
        &self,
        followed: &TrackedStableName,
        link: Option<&Link>,
        announced: Option<&AnnouncedTarget>,
        now: Timestamp,
    ) -> WriteState {
        let (key, states) = (&followed.object.key, &self.context.external_target_states);
        let is_overridden = link.is_some_and(|link| link.active_override().is_some());
        let external_target = states.get(key).filter(|_| is_overridden);
        let (is_written, lag_ends) = match &external_target {
            // Before the first reconciliation of all links, the stored status counts.
            None if !states.is_known() => (was_written(&followed.object), None),
            external_target => write_progress(announced, link, external_target.as_ref(), now),
        };
        let problem = states.problem(key, false).filter(|_| is_overridden);
        WriteState {
            is_written,
            lag_ends,
            failure: problem.and_then(|(_, why)| why),
            refusal: self.refusal(followed, link, external_target.as_ref()),
        }
    }

    /// Returns why a StableName isn't accepted, apart from its sources.
    fn refusal(
        &self,
        followed: &TrackedStableName,
        link: Option<&Link>,
        external_target: Option<&ExternalTargetState>,
    ) -> Option<Refusal> {
        let conflict = |message| Refusal { reason: RefusalReason::Conflict, message };
        let policy = self.context.hostname_policy.borrow();
        let of_names = annotations(&followed.object, &policy, &followed.inherited).1;
        let link = link.filter(|link| link.active_override().is_some());
        let lost = link.and_then(lost_hostnames_of).map(conflict);
        let taken = match external_target {
            Some(ExternalTargetState::Conflict { why, .. }) => {
                Some(conflict(format!("the external target: {why}")))
            }
            _ => None,
        };
        Refusal::joined([followed.object.invalid.clone(), of_names, lost, taken].into_iter().flatten())
    }
}

/// What a decision needs to know about the external target and the names of a StableName.
struct WriteState {
    /// Whether the external target counts as written.
    is_written: bool,
    /// The end of the time for which a late write counts as made.
    lag_ends: Option<Timestamp>,
    /// Why the last write has failed, if it has.
    failure: Option<String>,
    /// Why the StableName isn't accepted, apart from its sources.
    refusal: Option<Refusal>,
}

impl DecisionState {
    /// Takes over the status and the changes of a decision, and returns its checks. `former` is the stored status.
    fn apply(
        &mut self,
        decision: FailoverDecision,
        former: &FailoverStatus,
        now: Timestamp,
    ) -> Vec<PlannedCheck> {
        let FailoverDecision { status, moved, events, failed_at, checks, .. } = decision;
        self.records.retain(&checks, now);
        self.status = status;
        restore_times(&mut self.status, former);
        self.is_written_target_working =
            former.target.is_some() && failed_at.is_none() && moved != Some(MoveReason::Withdrawn);
        self.changes = UnreportedEvents { events, moved, ..UnreportedEvents::default() };
        checks
    }
}

impl LeaderTerm {
    /// Queues the checks of a StableName that are due, and its next decision: at the next check, or at `again`.
    fn plan_checks(
        &mut self,
        key: &ServiceKey,
        checks: &[PlannedCheck],
        spec: &CheckSettings,
        (now, again): (Timestamp, Option<Timestamp>),
    ) {
        let Some(state) = self.states.get(key) else { return };
        let check_of = |planned: &PlannedCheck| CheckKey {
            target: planned.target.clone(),
            namespace: matches!(planned.target, Target::Hostname(_)).then(|| key.namespace().into()),
            tcp_port: planned.tcp_port,
            timeout: spec.timeout,
        };
        self.check_queue.retain(key, &checks.iter().map(check_of).collect::<Vec<_>>());
        let mut wake = again;
        for planned in checks {
            let due = state.records.next_check(planned, spec, &self.upstreams, now);
            let check = check_of(planned);
            if self.check_queue.is_waiting(&check, key) {
                continue;
            }
            if due <= now {
                self.check_queue.add(check, key.clone());
            } else {
                wake = Some(wake.map_or(due, |wake| wake.min(due)));
            }
        }
        let look_up_in = self.absences.due(key).map(|due| due.saturating_duration_since(Instant::now()));
        if let Some(pause) = look_up_in {
            self.to_decide.add_after(key.clone(), pause);
        }
        if let Some(wake) = wake {
            let pause = Duration::try_from(wake.duration_since(now)).unwrap_or_default();
            // The next decision must come after that time, whatever the clocks' resolutions.
            let pause = pause.saturating_add(Duration::from_millis(1)).min(MAX_TIMER);
            self.to_decide.add_within(key, pause);
        }
    }
}

/// The Services that this process has listed, for this term and rewind count.
#[derive(Clone, Copy)]
struct KnownServices<'a> {
    listed: &'a CompletedLists,
    epoch: ListEpoch,
    /// The names of the remote clusters.
    remotes: &'a [Arc<str>],
    /// The remote clusters whose Services this process has listed.
    listed_remotes: &'a BTreeSet<Arc<str>>,
}

impl<'a> KnownServices<'a> {
    fn new(
        listed: &'a CompletedLists,
        epoch: ListEpoch,
        policy: &'a HostnamePolicy,
        listed_remotes: &'a BTreeSet<Arc<str>>,
    ) -> Self {
        Self { listed, epoch, remotes: &policy.remotes, listed_remotes }
    }

    /// Returns whether a decision needn't wait for the list that has a Service: the list is complete or refused, or that of
    /// a remote cluster is missing for long. `since` is the start of this process.
    fn may_use(&self, service: &ServiceKey, since: Instant) -> bool {
        match service.cluster() {
            None => self.listed.covers(service.namespace(), self.epoch) || self.is_refused(service),
            Some(cluster) => !self.awaits(cluster) || since.elapsed() >= REMOTE_LIST_WAIT,
        }
    }

    /// Returns what the list that has a Service tells. What a remote cluster has listed counts while it can't be reached.
    fn reading(&self, service: &ServiceKey) -> Reading {
        match service.cluster() {
            None => self.listed.reading(service.namespace(), self.epoch),
            Some(cluster) if self.listed_remotes.contains(cluster) => Reading::Permitted,
            Some(_) => Reading::Refused,
        }
    }

    fn is_refused(&self, service: &ServiceKey) -> bool {
        self.reading(service) == Reading::Refused
    }

    /// Returns whether the Service of the announced target may exist although it isn't known. If its key isn't known, it
    /// may be in the namespace of any source, and in any remote cluster.
    fn may_exist(
        &self,
        announced: Option<&ServiceKey>,
        mut sources: impl Iterator<Item = ServiceKey>,
    ) -> bool {
        match announced {
            Some(service) => self.is_refused(service),
            None => {
                self.remotes.iter().any(|cluster| self.awaits(cluster))
                    || sources.any(|service| self.is_refused(&service))
            }
        }
    }

    /// Returns whether the list of a remote cluster is still missing.
    fn awaits(&self, cluster: &str) -> bool {
        self.remotes.iter().any(|remote| **remote == *cluster) && !self.listed_remotes.contains(cluster)
    }
}

/// Returns whether a first target may replace the link of the Service of the same name, which can't be listed.
fn may_replace(object: &ObservedStableName, link: Option<&Link>, known: KnownServices<'_>) -> bool {
    let is_overridden = link.is_some_and(|link| link.active_override().is_some());
    !is_overridden && object.has_own_service() && known.is_refused(&object.key)
}

/// Returns what is known about the Service with the uid of the target in use, of which `announced` is the stored one.
/// `look_up` returns what a look-up of a Service that the watch lacks has found.
fn service_facts(
    uid: &Uid,
    followed: &TrackedStableName,
    announced: Option<&AnnouncedTarget>,
    sources: &Sources<'_>,
    known: KnownServices<'_>,
    look_up: impl FnOnce(&ServiceKey) -> Option<Found>,
) -> Facts {
    let object = &followed.object;
    if let Some(is_open) = sources.is_open_to(uid, object.key.namespace(), followed.services()) {
        return Facts { is_closed: !is_open, ..Facts::of(Subject::Announcement, ServiceState::Exists) };
    }
    let unlisted = Facts::of(Subject::Announcement, ServiceState::Unlisted);
    let seen = followed.former_source.as_ref().filter(|seen| seen.uid == *uid);
    let announced = announced.filter(|announced| announced.uid == *uid);
    let named = || object.service_named(&announced?.source);
    let service = seen.map(|seen| seen.key.clone()).or_else(named);
    if known.may_exist(service.as_ref(), followed.services()) {
        return Facts { lists: Some(Lists::Missing), ..unlisted };
    }
    // A Service without a known name can't be looked up: it counts as gone.
    let Some(service) = service else { return Facts { found: Some(Found::Absent), ..unlisted } };
    Facts { found: look_up(&service), ..unlisted }
}

/// Returns the target of a link's override, and the uid of the Service that has it; `None` if no target is announced. The
/// uid is empty if no Service has it: restored Services have new uids and may have no target yet, and the target in use
/// mustn't be withdrawn for that.
fn present_target(link: Option<&Link>, is_known: impl Fn(&Uid) -> bool) -> Option<(Target, Uid)> {
    let LinkOverride { announced: Announcement::Target(target), service_uid, .. } =
        link?.active_override()?
    else {
        return None;
    };
    let uid = Some(service_uid.clone()).filter(is_known);
    Some((target.clone(), uid.unwrap_or_default()))
}

/// Returns whether the stored status has a target, and doesn't say that the external target is missing.
fn was_written(object: &ObservedStableName) -> bool {
    let status = &object.status;
    let ready = status.conditions.iter().find(|condition| condition.type_ == "Ready");
    status.target.is_some() && ready.is_none_or(|ready| ready.reason != NO_EXTERNAL_TARGET)
}

/// Returns whether the external target counts as written: it exists, and points at the target of the link if a target
/// is announced. Within [`WRITE_LAG`] after an announcement it may point at another target; then the end of that time
/// is returned, too.
fn write_progress(
    announced: Option<&AnnouncedTarget>,
    link: Option<&Link>,
    external_target: Option<&ExternalTargetState>,
    now: Timestamp,
) -> (bool, Option<Timestamp>) {
    let Some(ExternalTargetState::At(target)) = external_target else { return (false, None) };
    // The target policy of this replica may allow only some of the announced addresses.
    if link.is_some_and(|link| link.target.as_ref() == Some(target)) {
        return (true, None);
    }
    let Some(announced) = announced else { return (true, None) };
    let end = end_of_wait(announced.since, WRITE_LAG);
    (end > now, Some(end).filter(|end| *end > now))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::api::stable_name::StableName;
    use crate::model::link_override::OverriddenLink;

    #[test]
    fn stored_status_counts_until_external_targets_are_known() {
        for (target, reason, expected) in [
            (true, "TargetVerified", true),
            (true, "NoExternalTarget", false),
            (true, "", true),
            (false, "NoHealthySource", false),
        ] {
            let ready = json!({"type": "Ready", "status": "True", "reason": reason, "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z"});
            let target = target.then(|| json!({"source": "a", "hostname": "a.example"}));
            let conditions = if reason.is_empty() { vec![] } else { vec![ready] };
            let object: StableName = serde_json::from_value(json!({
                "apiVersion": "linker.hsj.com/v1alpha1", "kind": "StableName",
                "metadata": {"namespace": "shop", "name": "web"},
                "spec": {"sources": [{"name": "a", "hostname": "a.example"}]},
                "status": {"target": target, "conditions": conditions},
            }))
            .unwrap();
            assert_eq!(was_written(&ObservedStableName::new(object)), expected, "{reason}");
        }
    }

    /// Returns the lists of a process without remote clusters.
    fn home(listed: &CompletedLists, epoch: ListEpoch) -> KnownServices<'_> {
        static NONE: BTreeSet<Arc<str>> = BTreeSet::new();
        KnownServices { listed, epoch, remotes: &[], listed_remotes: &NONE }
    }

    #[tokio::test(start_paused = true)]
    async fn first_list_of_a_remote_cluster_is_awaited_for_a_time() {
        let (at, since, remotes) = (ListEpoch::default(), Instant::now(), ["west".into(), "east".into()]);
        let (listed, listed_remotes) =
            (CompletedLists::new(&BTreeSet::new(), at), BTreeSet::from(["east".into()]));
        let known = KnownServices { remotes: &remotes, listed_remotes: &listed_remotes, ..home(&listed, at) };
        let [west, east, unknown] =
            ["west/shop", "east/shop", "north/shop"].map(|namespace| ServiceKey::new(namespace, "web"));
        let may_use = || [&west, &east, &unknown].map(|service| known.may_use(service, since));
        assert_eq!(may_use(), [false, true, true]);
        tokio::time::advance(REMOTE_LIST_WAIT).await;
        assert_eq!(may_use(), [true; 3]);
        let readings = [&west, &east, &unknown].map(|service| known.reading(service));
        assert_eq!(readings, [Reading::Refused, Reading::Permitted, Reading::Refused]);
        let may_exist = |announced| known.may_exist(announced, std::iter::empty());
        assert_eq!(
            [Some(&west), Some(&east), Some(&unknown), None].map(may_exist),
            [true, false, true, true]
        );
        assert!(!home(&listed, at).may_exist(None, std::iter::empty()));
    }

    #[test]
    fn refused_list_delays_only_a_first_target() {
        let (at, [a, b]) =
            (ListEpoch::default(), ["a", "b"].map(|namespace| ServiceKey::new(namespace, "web")));
        let mut listed = CompletedLists::new(&["a", "b"].map(ToOwned::to_owned).into(), None);
        listed.note(Some("a"), at, true);
        listed.note(Some("b"), at, false);
        let now = Instant::now();
        let may_use = |listed: &CompletedLists, service| home(listed, at).may_use(service, now);
        assert!(may_use(&listed, &a));
        assert!(!may_use(&listed, &b), "a single failure may be over soon");
        listed.set_refused(Some("b"), true);
        assert!(may_use(&listed, &b));
        let known = home(&listed, at);
        let of_link = |announced| {
            let by = LinkOverride { announced, ..LinkOverride::default() };
            OverriddenLink { by, service_link: None }.link(&b, None)
        };
        let [pending, withdrawn] = [Announcement::NotYet, Announcement::Withdrawn].map(of_link);
        for (namespace, source, link, expected) in [
            ("b", "web", None, true),
            ("b", "web", Some(&pending), true),
            ("b", "web", Some(&withdrawn), false),
            ("b", "other", None, false),
            ("a", "web", None, false),
        ] {
            let object = json!({
                "apiVersion": "linker.hsj.com/v1alpha1", "kind": "StableName",
                "metadata": {"namespace": namespace, "name": "web"},
                "spec": {"sources": [{"name": "own", "service": {"name": source}}]},
            });
            let object = ObservedStableName::new(serde_json::from_value(object).unwrap());
            assert_eq!(may_replace(&object, link, known), expected, "{namespace} {source} {link:?}");
        }
        let sources = || [a.clone(), b.clone()].into_iter();
        assert!(known.may_exist(Some(&b), sources()) && !known.may_exist(Some(&a), sources()));
        assert!(known.may_exist(None, sources()) && !known.may_exist(None, sources().take(1)));
    }
}
