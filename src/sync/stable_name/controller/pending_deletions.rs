//! Missing StableNames: discovery tells whether the objects were deleted, or the CRD.

use std::collections::{HashMap, HashSet};
use std::future::pending;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use kube::{Client, Resource};
use tokio::time::{Instant, timeout};

use crate::api::stable_name::StableName;
use crate::model::service_key::ServiceKey;
use crate::model::uid::Uid;
use crate::sync::k8s::discovery::is_served;
use crate::sync::k8s::errors::retry_after;
use crate::sync::removal::facts::{Facts, ServiceState, Subject};
use crate::sync::removal::verdict::{Verdict, may_remove};

/// The first and the longest pause after a failed discovery request, unless the API server requests another one.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
const MAX_RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// The number of refusals in a row (403) after which a permission counts as missing. An API server that has just
/// started refuses everything for a moment, because it hasn't read the roles yet.
pub(super) const REFUSALS_UNTIL_FORBIDDEN: u32 = 4;
/// Timeout of a discovery request.
const DISCOVERY_TIMEOUT: Duration = Duration::from_secs(10);

/// A StableName that is missing.
#[derive(Debug)]
pub(super) struct PendingDeletion {
    pub(super) uid: Uid,
    pub(super) since: std::time::Instant,
}

#[derive(Default)]
pub(super) struct PendingDeletions {
    waiting: HashMap<ServiceKey, PendingDeletion>,
    discovery: Option<BoxFuture<'static, kube::Result<bool>>>,
    /// When the last discovery request was sent.
    began: Option<std::time::Instant>,
    /// The number of requests in a row that were refused (403).
    refusals: u32,
    /// The number of requests in a row that failed otherwise.
    failures: u32,
    /// When the next request is due before the regular one: the last one failed, a list was refused, or an
    /// StableName was deleted after the last one was sent.
    discovery_due: Option<Instant>,
    /// Since when the API server doesn't serve StableNames, and until when their last targets stay.
    unserved: Option<(std::time::Instant, Option<Instant>)>,
    /// Whether the API server serves StableNames again, before that time.
    is_back: bool,
    /// The StableNames that the lists after the return of the CRD lack.
    awaited: HashSet<ServiceKey>,
}

impl PendingDeletions {
    /// Records that a StableName is missing, and sends a discovery request unless one is under way.
    pub(super) fn add(&mut self, key: ServiceKey, uid: Uid, client: &Client) {
        self.waiting.insert(key, PendingDeletion { uid, since: std::time::Instant::now() });
        self.discover(client);
    }

    /// Records that a StableName with this key exists.
    pub(super) fn cancel(&mut self, key: &ServiceKey) {
        self.waiting.remove(key);
        self.awaited.remove(key);
    }

    /// Records a StableName that a list after the return of the CRD lacks. Returns whether its last target stays, as
    /// announced: this list is no proof of a deletion.
    pub(super) fn await_return(&mut self, key: &ServiceKey) -> bool {
        let stays = self.unserved_until().is_some();
        if stays {
            self.awaited.insert(key.clone());
        }
        stays
    }

    /// Returns whether the CRD and all StableNames that the lists contained are back.
    pub(super) fn are_all_back(&self) -> bool {
        self.is_back && self.awaited.is_empty()
    }

    /// Returns whether the API server doesn't serve StableNames, as far as discovery has told.
    pub(super) fn is_unserved(&self) -> bool {
        self.unserved.is_some() && !self.is_back
    }

    /// Forgets that the API server didn't serve StableNames.
    pub(super) fn forget_unserved(&mut self) {
        (self.unserved, self.is_back) = (None, false);
        self.awaited.clear();
    }

    pub(super) fn discover(&mut self, client: &Client) {
        self.discovery_due = None;
        if self.discovery.is_none() {
            self.began = Some(std::time::Instant::now());
            let client = client.clone();
            let request = async move {
                let (version, plural) = (StableName::api_version(&()), StableName::plural(&()));
                is_served(client, &version, &plural).await
            };
            let request = timeout(DISCOVERY_TIMEOUT, request);
            let answer = request.map(|answer| match answer {
                Ok(answer) => answer,
                Err(elapsed) => Err(kube::Error::Service(elapsed.into())),
            });
            self.discovery = Some(answer.boxed());
        }
    }

    /// Drops the discovery request under way, whose answer may be older than the term or than a restore of etcd, and
    /// sends a new one.
    pub(super) fn restart_discovery(&mut self, client: &Client) {
        self.discovery = None;
        self.discover(client);
    }

    /// Waits for the answer to a discovery request; forever if none is under way.
    pub(super) async fn discovered(&mut self) -> kube::Result<bool> {
        let Some(discovery) = &mut self.discovery else { return pending().await };
        let served = discovery.await;
        self.discovery = None;
        let is_refused = matches!(&served, Err(kube::Error::Api(status)) if status.code == 403);
        self.refusals = if is_refused { self.refusals.saturating_add(1) } else { 0 };
        self.failures = if is_refused || served.is_ok() { 0 } else { self.failures.saturating_add(1) };
        if let Err(error) = &served
            && (!self.waiting.is_empty() || !self.is_forbidden())
        {
            let times = self.failures.max(self.refusals).max(1);
            let pause = RETRY_INTERVAL.saturating_mul(times).min(MAX_RETRY_INTERVAL);
            self.discovery_due = deadline_after(retry_after(error).unwrap_or(pause));
        }
        served
    }

    /// Returns whether the permission for discovery counts as missing.
    pub(super) fn is_forbidden(&self) -> bool {
        self.refusals >= REFUSALS_UNTIL_FORBIDDEN
    }

    /// Makes another request due before the regular one.
    pub(super) fn retry_soon(&mut self) {
        self.discovery_due = deadline_after(RETRY_INTERVAL);
    }

    /// Returns when a discovery request is due before the regular one.
    pub(super) fn discovery_due(&self) -> Option<Instant> {
        self.discovery_due
    }

    /// Processes that the API server serves StableNames. Returns the StableNames deleted before the request was
    /// sent; another request is due for the rest.
    pub(super) fn served(&mut self) -> HashMap<ServiceKey, PendingDeletion> {
        match self.unserved_until() {
            Some(_) => self.is_back = true,
            None => self.forget_unserved(),
        }
        let began = self.began;
        let is_deleted = |deletion: &PendingDeletion| {
            let is_served = began.filter(|began| deletion.since <= *began).map(|_| true);
            let facts = Facts { is_served, ..Facts::of(Subject::Override, ServiceState::Unlisted) };
            matches!(may_remove(&facts, deletion.since), Verdict::Remove(_))
        };
        let deleted = self.waiting.extract_if(|_, deletion| is_deleted(deletion)).collect();
        self.discovery_due = deadline_after(Duration::ZERO).filter(|_| !self.waiting.is_empty());
        deleted
    }

    /// Processes that the API server doesn't serve StableNames: their last targets stay for `delay`. Returns whether it
    /// served them before.
    pub(super) fn unserved(&mut self, delay: Duration) -> bool {
        self.waiting.clear();
        if self.is_unserved() {
            return false;
        }
        self.forget_unserved();
        let since = Instant::now().into_std();
        let (is_served, delay) = (Some(false), Some(delay));
        let facts = Facts::of(Subject::Override, ServiceState::Unlisted);
        let until = match may_remove(&Facts { is_served, since: Some(since), delay, ..facts }, since) {
            Verdict::Wait(_, until) => Some(until.into()),
            Verdict::Remove(_) => Some(since.into()),
            Verdict::Keep(_) | Verdict::Ask(_) => None,
        };
        self.unserved = Some((since, until));
        true
    }

    /// Returns until when the last targets stay.
    pub(super) fn unserved_until(&self) -> Option<Instant> {
        self.unserved.and_then(|(_, until)| until)
    }

    /// Ends the time for which the last targets stay. Returns since when the API server doesn't serve StableNames.
    pub(super) fn end_wait(&mut self) -> Option<std::time::Instant> {
        let (since, until) = self.unserved.as_mut()?;
        *until = None;
        Some(*since)
    }
}

/// Returns when a wait is over; `None` if that time can't be represented.
pub(super) fn deadline_after(pause: Duration) -> Option<Instant> {
    Instant::now().checked_add(pause)
}
