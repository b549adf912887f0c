//! Keeps a wrong flag from removing most external targets at once: checks, at the start and at the beginning of each
//! term, how many external targets would be removed, and which of their Services exist.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::model::link::Link;
use crate::model::service_key::ServiceKey;
use crate::sync::external_target::left_out::{Flag, LookupResult};
use crate::sync::external_target::metrics::ReconcilerMetrics;
use crate::sync::removal::facts::StartCheck;
use crate::sync::source::kept_services::KeptServices;

/// How long the states of external targets wait for the first look-up.
pub(super) const MAX_WAIT: Duration = Duration::from_secs(3);

#[derive(Default)]
pub(super) struct CheckedTargets {
    /// Links with an unlisted Service, which may exist or not.
    pub(super) unconfirmed: HashSet<ServiceKey>,
    /// Links with an existing Service that a flag leaves out, and the flag, if it is known.
    pub(super) left_out: BTreeMap<ServiceKey, Option<Flag>>,
    /// Those links of `left_out` that end after `--delete-delay`.
    pub(super) kept: KeptServices,
    /// Links with an external target that stays longer than `--delete-delay`.
    pub(super) postponed: HashSet<ServiceKey>,
    /// Links that a look-up has ended: the Service is gone, opts out, or is left out by a flag and `--max-deletes` is
    /// given. If the namespace isn't watched, the store has forgotten the link.
    pub(super) ended: HashSet<ServiceKey>,
    /// The look-up of the links in `look_up_keys`: at most one task.
    pub(super) look_ups: JoinSet<LookupResult>,
    pub(super) look_up_keys: HashSet<ServiceKey>,
    /// The time until which states of external targets wait for a look-up.
    pub(super) awaited_until: Option<Instant>,
    /// Whether most external targets would have been removed at the last check, or at one before it whose look-up hasn't
    /// ended, and `--max-deletes unlimited` isn't set.
    pub(super) most: bool,
    /// The number of external targets that would be removed, and the number of all, at that check.
    pub(super) counted: (usize, usize),
}

impl CheckedTargets {
    pub(super) fn new(delete_delay: Duration) -> Self {
        Self { kept: KeptServices::new(delete_delay), ..Self::default() }
    }

    /// Returns whether a look-up is under way that isn't slow yet.
    pub(super) fn is_awaited(&self) -> bool {
        !self.look_ups.is_empty() && self.awaited_until.is_some_and(|until| Instant::now() < until)
    }

    /// Returns what the check says about the external target of a link.
    pub(super) fn of(&self, key: &ServiceKey) -> StartCheck {
        if self.left_out.get(key) == Some(&Some(Flag::IpTargets)) {
            StartCheck::LeftOut
        } else if self.postponed.contains(key) {
            StartCheck::MostGone
        } else {
            StartCheck::Passed
        }
    }

    /// Updates the state of a link. `link` is `None` if the store has forgotten the link.
    pub(super) fn settle(&mut self, key: &ServiceKey, link: Option<&Arc<Link>>, metrics: &ReconcilerMetrics) {
        let is_alive = |link: &Arc<Link>| link.service_gone_since().is_none() && !link.is_left_out();
        if link.is_none_or(is_alive) {
            self.postponed.remove(key);
        }
        if link.is_some_and(is_alive) {
            self.ended.remove(key);
        }
        if !self.left_out.contains_key(key) {
            return;
        }
        let is_kept = || self.of(key) == StartCheck::LeftOut;
        // A StableName that overrides the link may go before the Service.
        let is_left_out = link.and_then(Link::service_link).is_some_and(|service| service.is_left_out());
        let stays = is_left_out || link.is_some_and(|link| is_kept() && !link.is_gone());
        if !stays {
            self.left_out.remove(key);
            self.kept.forget(key);
            self.set_gauges(metrics);
        }
    }

    /// Returns the links with external targets that are kept or postponed.
    pub(super) fn links(&self) -> impl Iterator<Item = &ServiceKey> {
        self.left_out.keys().chain(&self.postponed)
    }

    pub(super) fn set_gauges(&self, metrics: &ReconcilerMetrics) {
        for flag in Flag::ALL {
            let stays =
                |(key, by): &(&ServiceKey, &Option<Flag>)| **by == Some(flag) && !self.kept.contains(key);
            let number = self.left_out.iter().filter(stays).count();
            let gauge = metrics.left_out.with_label_values(&[&flag.to_string()]);
            gauge.set(i64::try_from(number).unwrap_or(i64::MAX));
        }
    }
}
