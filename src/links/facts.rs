//! What lb-linker knows about links, of which views are made: the store, and the facts of logs, Events and metrics.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::LinkFilter;
use super::age::age;
use super::followers::{FollowerView, follower_view};
use super::reasons::{Cause, Reasons};
use super::view::{LinkView, ViewState, reasons_of, selected, view};
use crate::dns::plugins::lb_linker::failed_targets::{FailedTargetsGauge, UnresolvedTargets};
use crate::metrics::staleness::Staleness;
use crate::model::excerpt::paragraph;
use crate::model::link::{Link, Target};
use crate::model::object_texts::ObjectTexts;
use crate::model::owner::Source;
use crate::model::service_key::ServiceKey;
use crate::model::uid::Uid;
use crate::readiness::{ForbiddenLists, Readiness};
use crate::store::Store;
use crate::sync::events::findings::Findings;
use crate::sync::external_target::desired::lacks_address;
use crate::sync::external_target::states::{ExternalTargetState, ExternalTargetStates};
use crate::sync::k8s::errors::{ApiAvailability, Outage, UNACCEPTED};
use crate::sync::k8s::watch::OF_TARGETS;
use crate::sync::source::unselected::UnselectedServices;
use crate::sync::source_annotation::followers::{Follower, Followers};

/// The age from which a view without an outage has a notice. The API server sends a bookmark about once a minute.
const MAX_SILENCE: Duration = Duration::from_secs(180);
/// The age in seconds from which a view has a notice while the API server can't be reached, and the step of the age that
/// it shows.
const NOTICE_STEP: u64 = 10;

const PLANNED: &str = "--sync plan writes nothing";
const OF_PLAN: &str = ": the log says what --sync on would write; plan is the default outside a Pod";

/// What is wrong with targets and with Services at present.
pub(super) struct NameProblems {
    unresolved: UnresolvedTargets,
    unread: HashMap<Uid, Arc<str>>,
}

#[derive(Clone)]
pub struct LinkFacts {
    pub store: Arc<Store>,
    pub unselected: Arc<UnselectedServices>,
    pub target_namespace: String,
    pub findings: Findings,
    pub external_targets: Arc<ExternalTargetStates>,
    /// Whether a missing external target is wrong: not with `--sync off`.
    pub needs_external_targets: bool,
    /// Whether the addresses of external targets are in EndpointSlices.
    pub has_slices: bool,
    /// Whether writes are only logged (`--sync plan`).
    pub only_plans: bool,
    /// Whether the Services that follow are read with `--sync off`, too.
    pub reads_followers: bool,
    /// Whether it is looked up which unlisted Services exist.
    pub looks_up: bool,
    pub followers: Arc<Followers>,
    /// The targets that can't be resolved; `None` in a process that doesn't answer DNS.
    pub failed_targets: Option<FailedTargetsGauge>,
    pub availability: ApiAvailability,
}

impl LinkFacts {
    /// Returns the links that a filter selects, ordered by namespace and name; those of remote clusters are the last.
    #[must_use]
    pub fn views(&self, filter: &LinkFilter) -> Vec<LinkView> {
        let problems = self.name_problems();
        let mut views: Vec<LinkView> =
            selected(&self.store, filter).iter().map(|link| self.view(link, &problems)).collect();
        views.extend(self.remote_views(filter, &problems));
        views
    }

    pub(super) fn name_problems(&self) -> NameProblems {
        let unresolved = self.failed_targets.as_ref().map(FailedTargetsGauge::unresolved).unwrap_or_default();
        NameProblems { unresolved, unread: self.unread_services() }
    }

    /// Returns the state of a link, and why it isn't `Ready`.
    pub(super) fn state_of_link(
        &self,
        link: &Arc<Link>,
        problems: &NameProblems,
    ) -> (ViewState, Option<String>) {
        let view = self.view(link, problems);
        (view.state, view.reason.map(Cow::into_owned))
    }

    /// Returns the uids of the Services that can't be read any more, and why.
    fn unread_services(&self) -> HashMap<Uid, Arc<str>> {
        let Some(lists) = self.findings.readiness.load_balancers.load_full() else { return HashMap::new() };
        let note = |key: &ServiceKey| lists.note_for(key).filter(|_| key.cluster().is_none()).cloned();
        let links = self.store.links();
        let services = links.iter().filter_map(Link::service_link);
        let notes = services.filter_map(|service| Some((service.uid.clone(), note(&service.key)?)));
        let notes = notes.chain(self.unselected.uids_with(note));
        notes.filter(|(uid, _)| !uid.is_empty()).collect()
    }

    /// Returns the Services that follow by `linker.hsj.com/source`, ordered by namespace and name; `None` if this
    /// process doesn't know them, because it doesn't lead or may read none.
    #[must_use]
    pub fn followers(&self, filter: &LinkFilter) -> Option<Vec<FollowerView>> {
        let followers = self.followers.list()?.into_iter();
        let selected = followers.filter(|(key, _)| filter.selects(key));
        let view = |(key, follower): (ServiceKey, Follower)| {
            let source = follower.source.as_ref();
            let of_source = source.and_then(|source| self.findings.stable_names.get(source));
            follower_view(&key, follower, of_source.as_deref(), !self.reads_followers)
        };
        Some(selected.map(view).collect())
    }

    /// Returns a line about the namespaces whose Services that follow can't be read.
    #[must_use]
    pub fn followers_notice(&self) -> Option<String> {
        let unread = self.followers.unread().join(", ");
        (!unread.is_empty()).then(|| {
            format!("ExternalName Services may not be listed in {unread}: those that follow are missing here")
        })
    }

    /// Returns a number that grows with each change of the facts beside the links.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.findings
            .version()
            .wrapping_add(self.external_targets.version())
            .wrapping_add(self.followers.version())
            .wrapping_add(self.failed_targets.as_ref().map_or(0, FailedTargetsGauge::version))
    }

    /// Returns a line about the age of the views, if the API server can't be reached or is silent, about manifests that
    /// can't be used, about what can't be read or written, about removals that are held back, and about `--sync plan`.
    #[must_use]
    pub fn notice(&self) -> Option<String> {
        let Findings { readiness, held_removals, .. } = &self.findings;
        let manifests = readiness.manifests.load_full().map(|note| note.to_string());
        let held = held_removals.number();
        let of_removals = (held > 0).then(|| {
            format!(
                "external targets whose removal is held back, because they are many: {held}; if their load balancers \
                 were meant to go, they follow, at once with --max-deletes unlimited"
            )
        });
        let planned = self.only_plans.then(|| format!("{PLANNED}{OF_PLAN}"));
        let of_view =
            readiness.of_view().into_iter().chain(self.of_sources(|_| true)).chain(readiness.of_statuses());
        joined(manifests.into_iter().chain(of_view).chain(of_removals).chain(planned))
    }

    /// Returns the part of [`Self::notice`] about the age of the views.
    #[must_use]
    pub fn notice_of_age(&self) -> Option<String> {
        self.findings.readiness.age()
    }

    /// Returns the part of [`Self::notice`] for a command that reads the cluster itself, about the age of the views and about
    /// the remote clusters that can't be read. The log has the rest.
    #[must_use]
    pub fn notice_of_reading(&self) -> Option<String> {
        let of_remotes = self.of_sources(|source| source.cluster.is_some());
        joined(self.notice_of_age().into_iter().chain(of_remotes))
    }

    fn of_sources(&self, is_meant: impl Fn(&Source) -> bool) -> Vec<String> {
        self.findings.readiness.of_sources(&self.store.unlisted_remotes(), is_meant)
    }

    fn view(&self, link: &Arc<Link>, problems: &NameProblems) -> LinkView {
        let shown = view(link, &self.store, &self.target_namespace);
        let lacks_external_target = !self.needs_external_targets
            && self.external_targets.get(&link.key) == Some(ExternalTargetState::Missing);
        let (state, reason) = self.reasons(link, problems, &shown).judged();
        let external_target = shown.external_target.filter(|_| !lacks_external_target);
        LinkView { external_target, state, reason, ..shown }
    }

    /// Returns everything that is wrong with a link.
    fn reasons(&self, link: &Arc<Link>, problems: &NameProblems, shown: &LinkView) -> Reasons {
        let mut reasons = reasons_of(link, &self.store);
        let Findings { services, stable_names, held_removals, removals, left_out, readiness, .. } =
            &self.findings;
        let about = |texts: &ObjectTexts| texts.get(&link.key).map(|why| paragraph(&why).to_string());
        if link.is_left_out()
            && let Some(of_flag) = left_out.get(&link.key)
        {
            reasons.replace(Cause::LeftOut, of_flag.to_string());
        }
        if let Some(unselected) = self.unselected.get(&link.key)
            && unselected.observed.uid == link.uid
        {
            reasons.replace(Cause::Gone, "the Service exists, and isn't selected any more");
        }
        if link.target.is_some() && shown.dns_names.is_empty() && !link.is_missing_name() {
            reasons.add(Cause::NoZone, self.why_unnamed());
        }
        reasons.extend_pairs(self.external_target_problem(link));
        reasons.extend(Cause::NoAddress, self.missing_addresses(link));
        if shown.overridden_by.is_some() {
            reasons.extend(Cause::Unchecked, self.unchecked());
            reasons.extend(Cause::StableName, about(stable_names));
            reasons.extend(Cause::UnwrittenStatus, about(&readiness.unwritten));
        }
        if link.target.is_some() && link.active_override().is_some_and(|by| by.is_provisional) {
            let why = "no target of its StableName has been read, so the last one is kept";
            reasons.add(Cause::Provisional, why);
        }
        self.add_unread(link, problems, shown.overridden_by.is_some(), &mut reasons);
        reasons.extend(Cause::Object, about(services));
        reasons.extend(Cause::HeldRemoval, about(held_removals));
        reasons.extend(Cause::Removal, about(removals));
        reasons.extend_pairs(self.problem_of_target(link, problems));
        reasons
    }

    /// Returns why a link has no name.
    fn why_unnamed(&self) -> String {
        let zones = self.store.zones();
        let with_services = zones.iter().filter(|zone| zone.has(&Source::SERVICES));
        let of_k8s_gateway: Vec<_> = with_services.filter_map(|zone| zone.k8s_gateway.as_ref()).collect();
        let more = if !zones.iter().any(|zone| zone.has(&Source::SERVICES)) {
            "; no zone has load balancers among its sources or resources"
        } else if of_k8s_gateway.is_empty() {
            ""
        } else if of_k8s_gateway.iter().all(|zone| zone.service_selectors.is_empty()) {
            "; the zones of k8s_gateway leave it out by its label k8s-gateway.dns/ignore or by its hostnames"
        } else {
            "; the zones of k8s_gateway leave it out by its labels (k8s-gateway.dns/ignore, serviceLabelSelectors) or by its \
             hostnames"
        };
        format!("no zone serves a name of it, so DNS doesn't answer with its target{more}")
    }

    /// Adds why the StableName and the Service of a link can't be read.
    fn add_unread(
        &self,
        link: &Arc<Link>,
        problems: &NameProblems,
        is_overridden: bool,
        reasons: &mut Reasons,
    ) {
        let Readiness { stable_names, load_balancers, .. } = &*self.findings.readiness;
        let note = |lists: &ForbiddenLists| lists.note_for(&link.key).cloned();
        let of_stable_name = stable_names.load().as_deref().filter(|_| is_overridden).and_then(note);
        let of_service = match link.active_override() {
            Some(by) => problems.unread.get(&by.service_uid).cloned(),
            None => load_balancers.load().as_deref().filter(|_| link.service_link().is_some()).and_then(note),
        };
        reasons.extend(Cause::UnreadStableName, of_stable_name.map(|note| note.to_string()));
        reasons.extend(Cause::UnreadService, of_service.map(|note| note.to_string()));
    }

    /// Returns why no StableName moves at present, as far as this replica knows.
    fn unchecked(&self) -> Option<String> {
        if let Some(absence) = self.findings.readiness.election.load_full() {
            return Some(format!(
                "not checked: since {:.0} no replica leads, as far as this one knows",
                absence.since
            ));
        }
        lasting_outage(&self.availability).map(|outage| format!("a move may not be seen: {}", outage.reason))
    }

    fn external_target_problem(&self, link: &Link) -> Option<(Cause, String)> {
        let refused = self.findings.readiness.writes.load_full();
        let problem = self.external_targets.problem(&link.key, refused.is_some());
        let (what, failure) = match problem {
            Some((ExternalTargetState::Conflict { why, at }, _)) => {
                let at = at.map(|at| format!("; it points at {at}")).unwrap_or_default();
                let why = format!("its external target is left alone: {}{at}", paragraph(&why));
                return Some((Cause::ForeignExternalTarget, why));
            }
            Some((ExternalTargetState::Missing, _)) if !self.needs_external_targets => return None,
            Some((ExternalTargetState::Missing, failure)) => {
                ("its external target doesn't exist".to_owned(), failure)
            }
            Some((ExternalTargetState::At(at), _)) if link.target.as_ref() == Some(&at) => return None,
            // Watches whose credentials have become invalid end at different times.
            Some((ExternalTargetState::At(at), None)) if self.availability.refusal().is_some() => {
                let what = format!("its external target points at {at}, and DNS may be the older one");
                (what, Some(UNACCEPTED.to_owned()))
            }
            Some((ExternalTargetState::At(at), failure)) => {
                (format!("its external target still points at {at}"), failure)
            }
            // Nothing is compared before the external targets can be listed.
            None if link.target.is_some() && !self.external_targets.is_known() && refused.is_some() => {
                ("its external target isn't known".to_owned(), None)
            }
            None => return None,
        };
        let leaderless =
            self.findings.readiness.election.load().is_some().then(|| "no replica leads".to_owned());
        let planned = self.only_plans.then(|| PLANNED.to_owned());
        let why = failure.or_else(|| refused.map(|refused| refused.to_string())).or(planned).or(leaderless);
        let why = why.map(|why| format!(": {}", paragraph(&why))).unwrap_or_default();
        Some((Cause::ExternalTarget, what + &why))
    }

    /// Returns why the external target of a link has no address.
    fn missing_addresses(&self, link: &Link) -> Option<String> {
        let target = link.target.as_ref().filter(|target| lacks_address(target))?;
        let why = format!(
            "its external target has no address, because the API server refuses {target} in EndpointSlices: only DNS \
             answers with it"
        );
        (self.needs_external_targets && self.has_slices).then_some(why)
    }

    /// Returns why the target of a link brings no addresses.
    pub(super) fn problem_of_target(
        &self,
        link: &Arc<Link>,
        problems: &NameProblems,
    ) -> Option<(Cause, String)> {
        let last = match self.store.last_of_chain(link) {
            Ok(last) => last,
            Err(error) => return Some((Cause::Circle, error.to_string())),
        };
        let Some(Target::Hostname(host)) = &last.target else { return None };
        let failure = problems.unresolved.of(&host.name())?;
        let cause = if failure.is_address { Cause::Unresolved } else { Cause::OtherRecords };
        let why = format!("the last look-up of its target, at {:.0}, failed: {}", failure.at, failure.why);
        Some((cause, why))
    }
}

fn joined(notices: impl Iterator<Item = String>) -> Option<String> {
    Some(notices.collect::<Vec<_>>().join("; ")).filter(|notices| !notices.is_empty())
}

/// Returns the present outage of the API server, or refusal of the credentials, if it has lasted for some seconds.
fn lasting_outage(availability: &ApiAvailability) -> Option<Outage> {
    let known = [availability.outage(), availability.refusal()];
    known.into_iter().flatten().find(|outage| outage.duration().as_secs() >= NOTICE_STEP)
}

/// Lets `readiness` tell how old the links are that these watches have brought.
pub fn tell_age(readiness: &Readiness, availability: ApiAvailability, staleness: Arc<Staleness>) {
    readiness.set_age(move |readiness| {
        let is_refused = readiness.load_balancers.load().is_some();
        let outage = lasting_outage(&availability);
        let seen = match outage {
            Some(_) => staleness.least_recently_connected(&OF_TARGETS)?,
            None => staleness.least_recent(&OF_TARGETS)?,
        };
        // An API server that refuses a watch isn't silent.
        notice(seen.elapsed(), outage).filter(|_| outage.is_some() || !is_refused)
    });
}

fn notice(age_of_view: Duration, outage: Option<Outage>) -> Option<String> {
    let seconds = age_of_view.as_secs();
    let past = seconds - seconds % NOTICE_STEP;
    let shown = |seconds: u64| age(i64::try_from(seconds).unwrap_or(i64::MAX));
    match outage {
        // A watch that goes on brings events also after its credentials have become invalid.
        Some(outage) if seconds >= NOTICE_STEP || outage.reason == UNACCEPTED => {
            let bound = shown(past + NOTICE_STEP);
            Some(format!("what lb-linker knows is up to {bound} old: {}", outage.reason))
        }
        None if age_of_view > MAX_SILENCE => Some(format!(
            "what lb-linker knows may be {} old: its watch has brought no event and no bookmark since",
            shown(past)
        )),
        _ => None,
    }
}

#[cfg(test)]
impl LinkFacts {
    /// Returns the facts of a store about which nothing else is known.
    pub(crate) fn of(store: Arc<Store>) -> Self {
        let (unselected, findings, external_targets, availability): (_, Findings, _, _) = Default::default();
        Self {
            store,
            unselected,
            target_namespace: "external-targets".to_owned(),
            findings,
            external_targets,
            needs_external_targets: true,
            has_slices: true,
            only_plans: false,
            reads_followers: false,
            looks_up: true,
            followers: crate::sync::test_support::metrics(),
            failed_targets: None,
            availability,
        }
    }
}

#[cfg(test)]
mod tests;
