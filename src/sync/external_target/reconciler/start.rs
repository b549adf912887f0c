//! Check of the external targets at a start and at the beginning of a term: looks up which of the unlisted Services
//! exist, before their external targets are removed.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tracing::warn;

use super::Reconciler;
use super::context::ReconcilerContext;
use super::start_check::MAX_WAIT;
use crate::model::excerpt::examples;
use crate::model::link::Link;
use crate::model::service_key::ServiceKey;
use crate::model::uid::Uid;
use crate::store::Store;
use crate::sync::events::Reason;
use crate::sync::events::link_log::{LinkReporter, log_change};
use crate::sync::external_target::decision::OnDelete;
use crate::sync::external_target::deletion_budget::MaxDeletes;
use crate::sync::external_target::left_out::{
    Flag, LookupError, LookupResult, ServiceLookup, allows_external_target,
};
use crate::sync::k8s::errors::ApiAvailability;
use crate::sync::k8s::forbidden::{LastingRefusal, REFUSED_AFTER};
use crate::sync::k8s::labels::SERVICE_UID;
use crate::sync::k8s::object::ObjectKind;
use crate::sync::removal::facts::{Facts, StartCheck};
use crate::sync::removal::reason::RemovalReason;
use crate::sync::removal::verdict::{Verdict, may_remove};
use crate::sync::source::relist_guard::is_suspicious_removal;
use crate::sync::source::selection::Selection;
use crate::sync::source::service_links::{
    delete_left_out, insert_gone, insert_left_out, is_present, service_link,
};
use crate::sync::task::backoff::Backoff;

/// The first and the longest pause before the next look-up of Services.
const RETRY_BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// The fate of an external target if nothing protects it.
enum TargetFate {
    Stays,
    /// This process has observed no selected Service for the link.
    Unlisted,
    /// The Service is gone.
    ServiceGone,
    /// The Service exists, and `--ip-targets` allows no external target for its addresses.
    IpTargetsExcluded,
}

impl Reconciler {
    /// Checks all external targets, and adds links for external targets without a Service. `begins` is whether this is
    /// the start or the beginning of a term: a look-up then shows which unlisted Services exist. If most external targets
    /// would be removed, the removals are postponed, unless `--max-deletes unlimited` is set.
    pub(crate) fn check_external_targets(&mut self, begins: bool) {
        let policy = &self.context.policy;
        let begins = begins && self.context.looks_up;
        let is_limited = policy.max_deletes != MaxDeletes::Unlimited;
        let (mut unlisted, mut outlived, mut not_shown) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        for key in self.objects.links() {
            match self.fate(&key) {
                TargetFate::Stays => {}
                TargetFate::Unlisted => drop(unlisted.insert(key)),
                TargetFate::ServiceGone => drop(outlived.insert(key)),
                TargetFate::IpTargetsExcluded => drop(not_shown.insert(key)),
            }
        }
        let mut present = self.objects.number_of_links();
        for going in [&mut unlisted, &mut outlived] {
            let before = going.len();
            going.retain(|key| self.has_own_object(key));
            present -= before - going.len();
        }
        let going = unlisted.len() + outlived.len() + not_shown.len();
        let most = is_limited && is_suspicious_removal(going, present);
        // The result of a look-up that is under way may depend on an earlier check.
        if begins && (most || self.start_check.unconfirmed.is_empty()) {
            self.start_check.most = most;
            self.start_check.counted = (going, present);
        }
        for key in unlisted {
            self.check_unlisted(key, begins);
        }
        let most = begins && self.start_check.most;
        if most {
            let new: Vec<ServiceKey> =
                outlived.into_iter().filter(|key| self.start_check.postponed.insert(key.clone())).collect();
            self.report_gone(&new);
        }
        if most && self.protects_left_out() {
            let left_out = not_shown.into_iter().map(|key| (key, Some(Flag::IpTargets)));
            let new: BTreeMap<ServiceKey, Option<Flag>> =
                left_out.filter(|(key, _)| !self.start_check.left_out.contains_key(key)).collect();
            self.report_left_out(&new);
            self.start_check.left_out.extend(new);
        }
        self.start_check.set_gauges(&self.context.metrics);
        self.look_up();
    }

    /// Checks the external target of an unlisted Service.
    fn check_unlisted(&mut self, key: ServiceKey, begins: bool) {
        let link = self.context.store.get(&key);
        if !begins {
            if link.is_none() && self.has_removable_object(&key) {
                self.adopt(&key);
            }
            return;
        }
        if self.start_check.left_out.contains_key(&key) {
            if !self.protects_left_out() || !self.start_check.kept.contains(&key) {
                return;
            }
            self.start_check.kept.forget(&key);
            self.start_check.left_out.remove(&key);
        }
        match link {
            Some(link) if link.is_left_out() => {}
            Some(_) if !self.protects_left_out() => {
                if !self.start_check.most || !self.has_removable_object(&key) {
                    return;
                }
                self.start_check.postponed.insert(key.clone());
            }
            _ => self.keep_left_out(&key),
        }
        self.start_check.unconfirmed.insert(key);
    }

    /// Returns whether external targets of Services that a flag leaves out stay until `--max-deletes` is given.
    pub(super) fn protects_left_out(&self) -> bool {
        self.start_check.most && self.context.policy.max_deletes == MaxDeletes::Share
    }

    /// Initializes the deletion budget with the number of removals that wait at the start.
    pub(super) fn initialize_budget(&mut self) {
        let links = self.context.store.links();
        let protects = self.protects_left_out();
        let may_be_gone = |link: &Link| {
            link.service_gone_since().is_some()
                || !protects && link.is_left_out() && self.start_check.unconfirmed.contains(&link.key)
        };
        let waits_for_removal =
            |link: &Arc<Link>| link.is_gone() || may_be_gone(link) && self.has_removable_object(&link.key);
        let waiting = links.into_iter().filter(waits_for_removal).count();
        let (max, present) = (self.context.policy.max_deletes, self.objects.number_of_links());
        self.deletion_budget.lock().use_up_if_exceeded(max, waiting, present, Instant::now());
    }

    fn fate(&self, key: &ServiceKey) -> TargetFate {
        let store: &Store = &self.context.store;
        let ended = self.start_check.ended.contains(key);
        // Nothing is written for a namespace that can't be listed. Its list causes another check.
        let is_unlisted = self.are_links_unlisted(key.namespace());
        let Some(link) = store.get(key) else {
            let stays = ended || is_unlisted || is_present(store, key);
            return if stays { TargetFate::Stays } else { TargetFate::Unlisted };
        };
        let is_unknown = link.is_left_out() || link.is_gone() && link.was_never_observed() && !ended;
        match &link.target {
            _ if is_unknown && is_unlisted => TargetFate::Stays,
            _ if is_unknown => TargetFate::Unlisted,
            _ if link.service_gone_since().is_some() => TargetFate::ServiceGone,
            Some(target) if !allows_external_target(target, self.context.policy.ip_targets) => {
                TargetFate::IpTargetsExcluded
            }
            _ => TargetFate::Stays,
        }
    }

    /// Returns whether a link has an object that is ours: see [`Self::is_own_object`].
    fn has_own_object(&self, key: &ServiceKey) -> bool {
        self.objects.of_link(key).iter().any(|object| self.is_own_object(key, object.has_our_field_manager))
    }

    /// Returns whether an object that is labelled for a link is ours: it has our field manager, or `--prune` is set and
    /// the namespace of the link is watched.
    pub(crate) fn is_own_object(&self, key: &ServiceKey, has_our_field_manager: bool) -> bool {
        let is_watched = self.context.selection.watches(key.namespace());
        has_our_field_manager || is_watched && self.context.policy.prune
    }

    /// Adds a link for a Service that was deleted while no lb-linker was running.
    fn adopt(&self, key: &ServiceKey) {
        if insert_gone(&self.context.store, key, self.recorded_hostnames(key)).is_some() {
            self.log_gone(key);
        }
    }

    fn log_gone(&self, key: &ServiceKey) {
        let line = format_args!("link {key}: its Service is gone, its external target is still there");
        self.context.link_reporter.log.info(key, line);
    }

    /// Keeps a left-out link with the uid, target and hostnames that its external target records.
    fn keep_left_out(&self, key: &ServiceKey) {
        // A uid from the API server takes precedence over the recorded one.
        let known = self.context.store.get(key).filter(|link| link.is_left_out());
        let uid = known.map_or_else(|| self.recorded_uid(key), |link| link.uid.clone());
        let (target, hostnames) = (self.recorded_target(key), self.recorded_hostnames(key));
        if let Some(change) = insert_left_out(&self.context.store, key, uid, target, hostnames) {
            log_change(&self.context.link_reporter, &change);
        }
    }

    /// Looks up which of the unconfirmed Services exist.
    fn look_up(&mut self) {
        let ReconcilerContext { service_lookup, selection, backend, .. } = &self.context;
        let wanted = self.start_check.unconfirmed.clone();
        if wanted.is_empty()
            || !self.start_check.look_ups.is_empty() && wanted == self.start_check.look_up_keys
        {
            return;
        }
        self.start_check.look_up_keys.clone_from(&wanted);
        self.start_check.awaited_until.get_or_insert_with(|| tokio::time::Instant::now() + MAX_WAIT);
        // A look-up that is in flight lacks some of these Services: abort it.
        self.start_check.look_ups = JoinSet::new();
        let (service_lookup, selection, availability) =
            (service_lookup.clone(), Arc::clone(selection), backend.availability());
        self.start_check.look_ups.spawn(async move {
            look_up_with_retries(service_lookup, wanted, &selection, availability).await
        });
    }

    /// Processes the result of a look-up.
    pub(super) fn on_look_up_end(&mut self, existing: &LookupResult) {
        let (most, protects) = (self.start_check.most, self.protects_left_out());
        let (mut left_out, mut gone, mut unknown) = (BTreeMap::new(), Vec::new(), HashSet::new());
        for key in std::mem::take(&mut self.start_check.unconfirmed) {
            let ReconcilerContext { store, selection, .. } = &self.context;
            let Some((link, uid)) = self.unreported(&key) else { continue };
            let (now, found) = (Instant::now(), existing.found(&key, &uid));
            let check = if protects { StartCheck::LeftOut } else { StartCheck::Passed };
            let facts = self.start_check.kept.facts(&key, "", found);
            match may_remove(&Facts { check, ..facts }, now) {
                // The link stays as it is, and is looked up again.
                Verdict::Keep(RemovalReason::Unconfirmed) => drop(unknown.insert(key.clone())),
                Verdict::Keep(reason) | Verdict::Wait(reason, _) if link.is_left_out() => {
                    if let Some(uid) = existing.uid(&key) {
                        let hostnames = link.annotations.hostnames.to_vec();
                        let _ = insert_left_out(store, &key, uid, link.target.clone(), hostnames);
                    }
                    left_out.insert(key.clone(), existing.flag(&key));
                    self.start_check.postponed.remove(&key);
                    if reason == RemovalReason::NotSelected {
                        self.keep_for_delay(&key);
                    }
                }
                Verdict::Remove(reason @ RemovalReason::NotSelected) if link.is_left_out() => {
                    self.end_link(&key, now, reason);
                }
                Verdict::Remove(reason @ RemovalReason::OptedOut) => {
                    // The Service opts out: its external target is removed without the delay.
                    self.end_link(&key, self.start_check.kept.long_ago(), reason);
                }
                Verdict::Remove(reason @ RemovalReason::ServiceGone) => {
                    let is_postponed = most && selection.watches(key.namespace());
                    self.end_link(&key, now, reason);
                    if is_postponed {
                        self.start_check.postponed.insert(key.clone());
                        gone.push(key.clone());
                    }
                }
                _ => drop(self.start_check.postponed.remove(&key)),
            }
            self.runtime.queue.add(&key);
        }
        gone.sort();
        match protects {
            true => self.report_left_out(&left_out),
            false => self.report_unwatched(&left_out),
        }
        self.report_gone(&gone);
        self.start_check.left_out.extend(left_out);
        self.start_check.unconfirmed = unknown;
        self.start_check.set_gauges(&self.context.metrics);
        self.record_left_out_events();
        self.look_up();
    }

    /// Returns the link of a looked-up Service, and the uid that the Service had; `None` if a watch has reported the
    /// Service meanwhile.
    fn unreported(&self, key: &ServiceKey) -> Option<(Arc<Link>, Uid)> {
        let link = self.context.store.get(key)?;
        let service = link.service_link().filter(|service| service.is_left_out() || link.is_gone())?;
        // The external target of an overridden link may record another Service.
        let is_overridden = link.overridden.is_some();
        let uid = if is_overridden { service.uid.clone() } else { self.recorded_uid(key) };
        Some((Arc::clone(service), uid))
    }

    /// Keeps the left-out link of an existing Service for `--delete-delay`.
    fn keep_for_delay(&mut self, key: &ServiceKey) {
        let (kept, ReconcilerContext { selection, link_reporter, .. }) =
            (&mut self.start_check.kept, &self.context);
        if kept.keep(key, "") && selection.watches(key.namespace()) {
            link_reporter.log.info(key, kept.notice(key));
        }
    }

    /// Ends the links that were kept for `--delete-delay`.
    pub(super) fn end_kept(&mut self) {
        for (key, _, since) in self.start_check.kept.take_expired(Instant::now()) {
            self.start_check.left_out.remove(&key);
            if service_link(&self.context.store, &key).is_some_and(|link| link.is_left_out()) {
                self.end_link(&key, since, RemovalReason::NotSelected);
            }
            self.runtime.queue.add(&key);
        }
    }

    /// Ends the link of a Service that counts as gone since `since`. In a namespace that isn't watched, the link is
    /// forgotten, and its external target stays as it is.
    fn end_link(&mut self, key: &ServiceKey, since: Instant, reason: RemovalReason) {
        let ReconcilerContext { store, selection, link_reporter, .. } = &self.context;
        let is_watched = selection.watches(key.namespace());
        let change = if is_watched { delete_left_out(store, key, since) } else { store.forget(key) };
        match change {
            Some(_) if is_watched && reason == RemovalReason::ServiceGone => self.log_gone(key),
            change => change.iter().for_each(|change| log_change(link_reporter, change)),
        }
        self.start_check.postponed.remove(key);
        // A flag may turn out to be wrong at a later check.
        if !is_watched || reason != RemovalReason::NotSelected {
            self.start_check.ended.insert(key.clone());
        }
    }

    /// Returns the uid of the Service that the external target of a link was written for, or an empty uid if none is
    /// recorded.
    fn recorded_uid(&self, key: &ServiceKey) -> Uid {
        let objects = self.objects.of_link(key).into_iter();
        let mut services = objects.filter(|object| object.id.kind == ObjectKind::Service);
        services.find_map(|object| object.annotation(SERVICE_UID)).unwrap_or_default().into()
    }

    /// Updates a left-out link from its external target, or forgets the link if the external target is gone. In a
    /// namespace that can't be listed, the link may be from a snapshot, and stays. Once it is listed, the Service is
    /// looked up: the list lacks a Service that was deleted meanwhile.
    pub(super) fn follow_recorded(&mut self, link: &Link) {
        let services = self.objects.of_link(&link.key).into_iter();
        let is_there = services.filter(|object| object.id.kind == ObjectKind::Service).count() > 0;
        if is_there {
            self.keep_left_out(&link.key);
            let is_known = self.start_check.left_out.contains_key(&link.key);
            if !is_known
                && self.context.looks_up
                && self.are_links_listed(link.key.namespace())
                && self.start_check.unconfirmed.insert(link.key.clone())
            {
                self.look_up();
            }
        } else if !self.are_links_unlisted(link.key.namespace())
            && let Some(change) = self.context.store.forget(&link.key)
        {
            log_change(&self.context.link_reporter, &change);
        }
    }

    /// Records an Event on each Service that a flag leaves out, and the reason for users. Only the leader sends Events.
    pub(super) fn record_left_out_events(&self) {
        let LinkReporter { recorder, findings, .. } = &self.context.link_reporter;
        for (key, flag) in &self.start_check.left_out {
            if let (Some(link), Some(flag)) = (service_link(&self.context.store, key), flag) {
                let ends = self.start_check.kept.contains(key);
                let effect = match (flag, ends) {
                    (Flag::WatchNamespaces, true) => {
                        "its names end after --delete-delay, its external target stays"
                    }
                    (Flag::WatchNamespaces, false) => {
                        "its names stay until --max-deletes is given, its external target also after that"
                    }
                    (_, true) => "it counts as deleted after --delete-delay",
                    (_, false) => "its external target stays until --max-deletes is given",
                };
                let note = format!("{flag} leaves it out; {effect}");
                findings.left_out.set(key, Some(&note));
                // Nothing is removed in a namespace that isn't watched, and a narrower flag is usually meant.
                if !ends || *flag != Flag::WatchNamespaces {
                    recorder.about(&link, Reason::LeftOut, &note);
                }
            }
        }
    }

    fn report_left_out(&self, left_out: &BTreeMap<ServiceKey, Option<Flag>>) {
        let (going, present) = self.start_check.counted;
        for flag in Flag::ALL {
            let keys: Vec<&ServiceKey> =
                left_out.iter().filter(|(_, by)| **by == Some(flag)).map(|(key, _)| key).collect();
            if keys.is_empty() {
                continue;
            }
            let (exist, them) = match flag {
                // lb-linker may lack the permission to look up Services in namespaces that it doesn't watch.
                Flag::WatchNamespaces => {
                    ("exist or can't be looked up", "their names go, but not the targets")
                }
                _ => ("exist", "them go"),
            };
            warn!(
                "{going} of {present} external targets would go; {} of them because {flag} leaves out their load \
                 balancers, which {exist}: {}; DNS goes on answering with the last targets, and nothing is \
                 removed; correct {flag}, or give --max-deletes to let {them} ({})",
                keys.len(),
                examples(&keys),
                RemovalReason::LeftOut
            );
        }
    }

    /// Warns once of the links that end because their namespaces aren't watched: the flag may have a typing error.
    fn report_unwatched(&self, left_out: &BTreeMap<ServiceKey, Option<Flag>>) {
        let is_new = |(key, flag): &(&ServiceKey, &Option<Flag>)| {
            **flag == Some(Flag::WatchNamespaces) && !self.start_check.left_out.contains_key(*key)
        };
        let keys: Vec<&ServiceKey> = left_out.iter().filter(is_new).map(|(key, _)| key).collect();
        if keys.is_empty() {
            return;
        }
        let namespaces: BTreeSet<&str> = keys.iter().map(|key| key.namespace()).collect();
        let noun = if namespaces.len() == 1 { "namespace" } else { "namespaces" };
        warn!(
            "{} leaves out {noun} {}, where load balancers have external targets: the names of {} end after {:?}, the \
             external targets stay ({}); correct the flag, or delete these external targets",
            Flag::WatchNamespaces,
            examples(&namespaces),
            examples(&keys),
            self.context.policy.delete_delay,
            RemovalReason::NotWatched
        );
    }

    fn report_gone(&self, gone: &[ServiceKey]) {
        let (going, present) = self.start_check.counted;
        if gone.is_empty() || self.context.policy.on_delete == OnDelete::Retain {
            return;
        }
        warn!(
            "{going} of {present} external targets would go; {} of them because their load balancers are gone: {}; \
             they stay for ten minutes more than --delete-delay; --max-deletes unlimited lifts this ({})",
            gone.len(),
            examples(gone),
            RemovalReason::MostGone
        );
    }
}

/// Looks up which Services exist, and repeats failed look-ups. While an authorizer refuses a namespace, the look-up is
/// repeated for [`REFUSED_AFTER`]; after that, the result lacks the Services of this namespace.
async fn look_up_with_retries(
    service_lookup: ServiceLookup,
    wanted: HashSet<ServiceKey>,
    selection: &Selection,
    availability: Option<ApiAvailability>,
) -> LookupResult {
    let mut pauses = Backoff::new(RETRY_BACKOFF);
    let mut logged_codes = BTreeSet::new();
    let mut refusal = LastingRefusal::default();
    let mut existing = LookupResult::default();
    loop {
        let ended = service_lookup.look_up(&wanted, selection, &mut existing).await;
        let is_incomplete = ended.is_ok() && existing.is_incomplete();
        refusal.note(is_incomplete);
        match ended {
            Ok(()) if is_incomplete && !refusal.has_lasted(REFUSED_AFTER) => {}
            Ok(()) => return existing,
            Err(LookupError::List(error)) if matches!(error.code(), 0 | 401) => {
                availability.iter().for_each(|availability| availability.report_error(&error.source));
            }
            // The continue token has expired: list again from the first page.
            Err(LookupError::List(error)) if error.code() == 410 => {}
            Err(LookupError::List(error)) => {
                if logged_codes.insert(error.code()) {
                    let sentence = error.explain("lb-linker needs the permissions of deploy/ there");
                    warn!(
                        "{sentence}; until then the external targets of unlisted load balancers stay as they are"
                    );
                }
            }
            Err(error) => {
                warn!("{error}; until then the external targets of unlisted load balancers stay as they are")
            }
        }
        tokio::time::sleep(pauses.next()).await;
    }
}
