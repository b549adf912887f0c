//! Looks up Services that the watch lacks before their targets are withdrawn: an incomplete list, or a watch that is
//! behind, withdraws nothing.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use kube::{Client, ResourceExt};
use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;

use crate::model::service_key::ServiceKey;
use crate::model::uid::Uid;
use crate::sync::k8s::errors::{ApiAvailability, root_cause};
use crate::sync::k8s::forbidden::{Forbidden, LastingRefusal};
use crate::sync::k8s::service::Service;
use crate::sync::k8s::watch::{RequestQuery, find_in_etcd};
use crate::sync::source::selection::{Membership, Selection};

/// Maximum number of concurrent look-ups.
const MAX_LOOK_UPS: usize = 8;
/// The time between two look-ups for an ExternalTarget, while the API server refuses them or the Service exists.
pub(super) const REPEAT_AFTER: Duration = Duration::from_secs(5);

/// What is known about the Services that the watch lacks, by the ExternalTarget that announces a target of theirs.
#[derive(Default)]
pub(super) struct Absences {
    states: HashMap<ServiceKey, Absence>,
    waiting: VecDeque<ServiceKey>,
    look_ups: JoinSet<LookUpEnd>,
}

struct Absence {
    uid: Uid,
    /// The Service that has had this uid.
    service: ServiceKey,
    is_confirmed: bool,
    /// Whether a look-up waits or is under way.
    is_asked: bool,
    /// When the last look-up ended without a confirmation.
    answered: Option<Instant>,
    refusal: LastingRefusal,
}

/// A look-up that has ended.
pub(super) struct LookUpEnd {
    object: ServiceKey,
    uid: Uid,
    /// Whether the Service is gone, or isn't a load balancer of the selection any more.
    is_gone: kube::Result<bool>,
}

impl Absences {
    /// Returns whether it is confirmed that the Service with this uid is gone, whose target this ExternalTarget
    /// announces. Else queues a look-up, unless one was made within the last [`REPEAT_AFTER`].
    pub(super) fn is_confirmed(&mut self, object: &ServiceKey, uid: &Uid, service: &ServiceKey) -> bool {
        let is_same = |known: &Absence| known.uid == *uid && known.service == *service;
        if !self.states.get(object).is_some_and(is_same) {
            let absence = Absence {
                uid: uid.clone(),
                service: service.clone(),
                is_confirmed: false,
                is_asked: self.states.get(object).is_some_and(|known| known.is_asked),
                answered: None,
                refusal: LastingRefusal::default(),
            };
            self.states.insert(object.clone(), absence);
        }
        let Some(absence) = self.states.get_mut(object) else { return false };
        let is_due = absence.answered.is_none_or(|at| at.elapsed() >= REPEAT_AFTER);
        if !absence.is_confirmed && !absence.is_asked && is_due {
            absence.is_asked = true;
            self.waiting.push_back(object.clone());
        }
        absence.is_confirmed
    }

    /// Forgets what is known for an ExternalTarget.
    pub(super) fn forget(&mut self, object: &ServiceKey) {
        if self.states.remove(object).is_some_and(|absence| absence.is_asked) {
            self.waiting.retain(|waiting| waiting != object);
        }
    }

    /// Forgets everything: etcd was restored.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Sends the look-ups that wait, up to the limit.
    pub(super) fn start(
        &mut self,
        client: &Client,
        availability: &ApiAvailability,
        selection: &Arc<Selection>,
    ) {
        while self.look_ups.len() < MAX_LOOK_UPS
            && let Some(object) = self.waiting.pop_front()
        {
            let Some(Absence { uid, service, .. }) = self.states.get(&object) else { continue };
            let (uid, service) = (uid.clone(), service.clone());
            let (client, availability) = (client.clone(), availability.clone());
            let selection = Arc::clone(selection);
            self.look_ups.spawn(async move {
                let is_gone = is_gone(client, &availability, &selection, &service, &uid).await;
                LookUpEnd { object, uid, is_gone }
            });
        }
    }

    /// Waits for the end of a look-up; `None` if none is under way.
    pub(super) async fn ended(&mut self) -> Option<Result<LookUpEnd, JoinError>> {
        self.look_ups.join_next().await
    }

    /// Records the end of a look-up. Returns the ExternalTarget to decide about, and after which time.
    pub(super) fn record(&mut self, ended: LookUpEnd) -> Option<(ServiceKey, Duration)> {
        let LookUpEnd { object, uid, is_gone } = ended;
        let absence = self.states.get_mut(&object)?;
        absence.is_asked = false;
        if absence.uid != uid {
            return Some((object, Duration::ZERO));
        }
        let by_authorizer = is_gone.as_ref().is_err_and(Forbidden::lists_services);
        absence.refusal.note(by_authorizer);
        // The permission to list may have gone with the namespace.
        absence.is_confirmed = is_gone.unwrap_or(absence.refusal.is_lasting());
        absence.answered = Some(Instant::now());
        let pause = if absence.is_confirmed { Duration::ZERO } else { REPEAT_AFTER };
        Some((object, pause))
    }
}

/// Looks up whether a Service is gone, or isn't a load balancer of the selection any more.
async fn is_gone(
    client: Client,
    availability: &ApiAvailability,
    selection: &Selection,
    service: &ServiceKey,
    uid: &Uid,
) -> kube::Result<bool> {
    let (namespace, name) = service.parts();
    let found = find_in_etcd::<Service>(client, &RequestQuery::named(namespace, name)).await;
    match &found {
        Ok(_) => availability.report_available(),
        Err(kube::Error::Api(_)) => {}
        Err(error) => availability.report(&root_cause(error)),
    }
    let Some(found) = found?.filter(|found| found.uid().is_some_and(|known| *uid == *known.as_str())) else {
        return Ok(true);
    };
    // A Service that can't be decoded exists.
    let Ok(found) = found.0 else { return Ok(false) };
    Ok(selection.membership(&found) == Membership::Gone || !selection.matches_labels(&found.metadata))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use tokio::time::{advance, timeout};

    use super::*;
    use crate::sync::test_support::{client, status};

    /// Returns a client for an API server with one Service, and in namespace "closed" without the permission to list.
    fn api_server(service: Value) -> Client {
        client(move |request| match request.uri().path().contains("/closed/") {
            true => {
                let message = "services is forbidden: User \"lb-linker\" cannot list resource \"services\" in API \
                    group \"\" in the namespace \"closed\"";
                status(403, "Forbidden", message)
            }
            false => (200, json!({"metadata": {"resourceVersion": "5"}, "items": [service.clone()]})),
        })
    }

    fn service(uid: &str, kind: &str) -> Value {
        json!({"metadata": {"namespace": "shop", "name": "web", "uid": uid}, "spec": {"type": kind}})
    }

    /// Returns the result of one look-up of the Service with uid `known`, and the pause before the next decision.
    async fn look_up(absences: &mut Absences, client: &Client, namespace: &str) -> (bool, Duration) {
        let (object, service) = (ServiceKey::new("shop", "xt"), ServiceKey::new(namespace, "web"));
        absences.is_confirmed(&object, &"known".into(), &service);
        absences.start(client, &ApiAvailability::default(), &Arc::default());
        let ended = absences.ended().await.unwrap().unwrap();
        let (decided, pause) = absences.record(ended).unwrap();
        assert_eq!(decided, object);
        (absences.is_confirmed(&object, &"known".into(), &service), pause)
    }

    #[tokio::test(start_paused = true)]
    async fn service_is_gone_only_if_the_api_server_lacks_it() {
        for (uid, kind, expected) in [
            ("known", "LoadBalancer", false),
            ("known", "ClusterIP", true),
            ("another", "LoadBalancer", true),
        ] {
            let (mut absences, client) = (Absences::default(), api_server(service(uid, kind)));
            let (is_confirmed, pause) = look_up(&mut absences, &client, "shop").await;
            assert_eq!((is_confirmed, pause.is_zero()), (expected, expected), "{uid} {kind}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn refused_look_up_confirms_after_ten_minutes_only() {
        let (mut absences, client) = (Absences::default(), api_server(json!({})));
        let mut look_ups = 0;
        while !look_up(&mut absences, &client, "closed").await.0 {
            advance(REPEAT_AFTER).await;
            look_ups += 1;
        }
        assert_eq!(look_ups, 120);
    }

    #[tokio::test(start_paused = true)]
    async fn one_look_up_is_made_at_a_time_for_an_object() {
        let (mut absences, client) = (Absences::default(), api_server(service("known", "LoadBalancer")));
        let (object, web) = (ServiceKey::new("shop", "xt"), ServiceKey::new("shop", "web"));
        for _ in 0..2 {
            assert!(!absences.is_confirmed(&object, &"known".into(), &web));
            absences.start(&client, &ApiAvailability::default(), &Arc::default());
        }
        assert_eq!(absences.look_ups.len(), 1);
        // Another Service is announced before the answer: that says nothing about it.
        assert!(!absences.is_confirmed(&object, &"another".into(), &web));
        let ended = absences.ended().await.unwrap().unwrap();
        assert_eq!(absences.record(ended), Some((object.clone(), Duration::ZERO)));
        assert!(!absences.is_confirmed(&object, &"another".into(), &web));
        absences.forget(&object);
        absences.start(&client, &ApiAvailability::default(), &Arc::default());
        assert!(timeout(REPEAT_AFTER, absences.ended()).await.unwrap().is_none(), "forgotten");
    }
}
