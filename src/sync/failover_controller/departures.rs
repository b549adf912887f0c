//! Deleted ExternalTargets: a look at discovery tells whether the objects were deleted, or the resource itself.

use std::collections::HashMap;
use std::future::pending;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use kube::{Client, Resource};
use tokio::time::{Instant, timeout};

use crate::api::external_target::ExternalTarget;
use crate::model::service_key::ServiceKey;
use crate::model::uid::Uid;
use crate::sync::k8s::discovery::is_served;

/// The time between two looks at discovery while an answer is needed.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Timeout of a look at discovery.
const LOOK_TIMEOUT: Duration = Duration::from_secs(10);

/// An ExternalTarget that is missing. Discovery tells whether the object was deleted, or the CRD.
#[derive(Debug)]
pub(super) struct Departure {
    pub(super) uid: Uid,
    pub(super) since: std::time::Instant,
}

#[derive(Default)]
pub(super) struct Departures {
    waiting: HashMap<ServiceKey, Departure>,
    look: Option<BoxFuture<'static, kube::Result<bool>>>,
    /// When the last look began.
    began: Option<std::time::Instant>,
    /// Whether the API server has answered a look.
    is_answered: bool,
    /// When the next request is due before the regular one: the last one failed, or an ExternalTarget was deleted after
    /// it was sent.
    look_due: Option<Instant>,
    /// Since when the API server doesn't serve ExternalTargets, and until when their last targets stay.
    unserved: Option<(std::time::Instant, Option<Instant>)>,
}

impl Departures {
    /// Records that an ExternalTarget was deleted, and looks at discovery.
    pub(super) fn add(&mut self, key: ServiceKey, uid: Uid, client: &Client) {
        self.waiting.insert(key, Departure { uid, since: std::time::Instant::now() });
        self.look(client);
    }

    /// Records that an ExternalTarget with this key exists.
    pub(super) fn forget(&mut self, key: &ServiceKey) {
        self.waiting.remove(key);
    }

    pub(super) fn look(&mut self, client: &Client) {
        self.look_due = None;
        if self.look.is_none() {
            self.began = Some(std::time::Instant::now());
            let client = client.clone();
            let look = async move {
                let (version, plural) = (ExternalTarget::api_version(&()), ExternalTarget::plural(&()));
                is_served(client, &version, &plural).await
            };
            let look = timeout(LOOK_TIMEOUT, look);
            let answer = look.map(|answer| match answer {
                Ok(answer) => answer,
                Err(elapsed) => Err(kube::Error::Service(elapsed.into())),
            });
            self.look = Some(answer.boxed());
        }
    }

    /// Begins another look, because the answer of one under way may be from before a restore of etcd.
    pub(super) fn look_again(&mut self, client: &Client) {
        self.look = None;
        self.look(client);
    }

    /// Waits for the answer of a look; for ever if none is under way.
    pub(super) async fn looked(&mut self) -> kube::Result<bool> {
        let Some(look) = &mut self.look else { return pending().await };
        let served = look.await;
        self.look = None;
        self.is_answered |= matches!(served, Ok(_) | Err(kube::Error::Api(_)));
        if served.is_err() && (!self.waiting.is_empty() || !self.is_answered) {
            self.look_due = after(RETRY_INTERVAL);
        }
        served
    }

    /// Returns when a discovery request is due before the regular one.
    pub(super) fn look_due(&self) -> Option<Instant> {
        self.look_due
    }

    /// Processes that the API server serves ExternalTargets. Returns the ExternalTargets deleted before the request was
    /// sent; another request is due for the rest.
    pub(super) fn served(&mut self) -> HashMap<ServiceKey, Departure> {
        self.unserved = None;
        let began = self.began;
        let is_before = |departure: &Departure| began.is_some_and(|began| departure.since <= began);
        let departed = self.waiting.extract_if(|_, departure| is_before(departure)).collect();
        self.look_due = after(Duration::ZERO).filter(|_| !self.waiting.is_empty());
        departed
    }

    /// Processes that the API server doesn't serve ExternalTargets: their last targets stay for `delay`.
    pub(super) fn unserved(&mut self, delay: Duration) {
        self.waiting.clear();
        self.unserved.get_or_insert_with(|| (std::time::Instant::now(), after(delay)));
    }

    /// Returns whether the API server's last answer was that it doesn't serve ExternalTargets.
    pub(super) fn is_unserved(&self) -> bool {
        self.unserved.is_some()
    }

    /// Returns until when the last targets stay.
    pub(super) fn unserved_until(&self) -> Option<Instant> {
        self.unserved.and_then(|(_, until)| until)
    }

    /// Returns since when the API server doesn't serve ExternalTargets; from now on their targets don't stay.
    pub(super) fn end_wait(&mut self) -> Option<std::time::Instant> {
        let (since, until) = self.unserved.as_mut()?;
        *until = None;
        Some(*since)
    }
}

/// Returns when a wait is over; `None` if that time can't be represented.
pub(super) fn after(pause: Duration) -> Option<Instant> {
    Instant::now().checked_add(pause)
}
