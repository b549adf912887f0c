//! Looks up Services that the watch lacks before their targets are withdrawn: an incomplete list, or a watch that is
//! behind, withdraws nothing.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use kube::{Client, ResourceExt};
use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;

use crate::model::clusters::{self, cluster_of};
use crate::model::link::Annotations;
use crate::model::service_key::ServiceKey;
use crate::model::uid::Uid;
use crate::sync::controller::turns::Turns;
use crate::sync::k8s::errors::ApiAvailability;
use crate::sync::k8s::forbidden::{Forbidden, LastingRefusal};
use crate::sync::k8s::remotes::Remotes;
use crate::sync::k8s::service::Service;
use crate::sync::k8s::watch::{RequestQuery, find_in_etcd};
use crate::sync::removal::facts::{Facts, Found, Membership, ServiceState, Subject, Which};
use crate::sync::removal::verdict::{Verdict, may_remove};
use crate::sync::source::selection::Selection;

/// Maximum number of concurrent look-ups in a cluster: one that doesn't answer delays none in another cluster.
const MAX_LOOK_UPS: usize = 8;
/// The time between two look-ups of a Service, while they fail or the Service exists: the watch may be behind.
const REPEAT_AFTER: Duration = Duration::from_secs(5);
/// The same time for a Service that exists outside the watch: changed flags may leave out any number of Services.
const REPEAT_UNWATCHED_AFTER: Duration = Duration::from_secs(60);

/// A Service that the watch lacks, and its uid.
type Missing = (ServiceKey, Uid);

/// What is known about the Services that the watch lacks and whose targets StableNames announce.
#[derive(Default)]
pub(super) struct MissingServices {
    states: HashMap<Missing, Absence>,
    /// The Service that each StableName waits for.
    by_object: HashMap<ServiceKey, Missing>,
    /// The Services to look up. Namespaces take turns.
    waiting: Turns<Missing>,
    look_ups_added: u64,
    look_ups: JoinSet<LookUpEnd>,
    /// The number of look-ups under way in each cluster; the home cluster has the name "".
    under_way: HashMap<Box<str>, usize>,
}

#[derive(Default)]
struct Absence {
    /// The StableNames that announce a target of the Service.
    objects: BTreeSet<ServiceKey>,
    /// What the last look-up with an answer has found, or that every one was refused for ten minutes.
    answer: Option<Answer>,
    /// The number of the look-up that waits or is under way.
    pending: Option<u64>,
    /// When the last look-up ended.
    ended: Option<Instant>,
    refusal: LastingRefusal,
}

/// What a look-up has found.
struct Answer {
    found: Found,
    /// The namespaces that may follow the load balancer; `None` if there is none, or it can't be decoded.
    annotations: Option<Annotations>,
    /// Whether the watch selects its namespace and its labels.
    is_watched: bool,
}

impl From<Found> for Answer {
    fn from(found: Found) -> Self {
        Self { found, annotations: None, is_watched: true }
    }
}

/// Where Services are looked up.
#[derive(Clone, Copy)]
pub(super) struct ApiServers<'a> {
    pub(super) client: &'a Client,
    pub(super) availability: &'a ApiAvailability,
    pub(super) remotes: &'a Remotes,
    pub(super) selection: &'a Arc<Selection>,
    /// The name of the home cluster.
    pub(super) home: &'a Arc<str>,
}

/// A look-up that has ended.
pub(super) struct LookUpEnd {
    missing: Missing,
    /// `None` if there was no answer.
    answer: Option<Answer>,
    /// Whether an authorizer has refused it.
    is_refused: bool,
}

impl Absence {
    fn repeat_after(&self) -> Duration {
        let is_unwatched = self.answer.as_ref().is_some_and(|answer| !answer.is_watched);
        if is_unwatched { REPEAT_UNWATCHED_AFTER } else { REPEAT_AFTER }
    }

    /// Returns what is found for the StableName `object`: of a Service in another namespace, also whether its
    /// annotation allow-from lists the namespace of `object`.
    fn found_for(&self, object: &ServiceKey, service: &ServiceKey) -> Option<Found> {
        let Answer { found, annotations, .. } = self.answer.as_ref()?;
        let namespace = object.namespace();
        let allows = || annotations.as_ref().is_none_or(|annotations| annotations.allows(namespace));
        let is_open = *namespace == *service.namespace() || allows();
        Some(match *found {
            Found::Exists { which, membership, .. } => Found::Exists { which, membership, is_open },
            found => found,
        })
    }

    /// Returns whether the end of the Service is confirmed for every StableName.
    fn is_over(&self) -> bool {
        let found = self.answer.as_ref().map(|answer| answer.found);
        let facts = Facts { found, ..Facts::of(Subject::Announcement, ServiceState::Unlisted) };
        matches!(may_remove(&facts, Instant::now().into_std()), Verdict::Remove(_))
    }
}

impl MissingServices {
    /// Returns what the last look-up has found of the Service with this uid, whose target the StableName `object`
    /// announces. Unless the Service is gone, queues a look-up if the last one is old enough.
    pub(super) fn found(&mut self, object: &ServiceKey, service: &ServiceKey, uid: &Uid) -> Option<Found> {
        let missing = (service.clone(), uid.clone());
        if self.by_object.get(object) != Some(&missing) {
            self.forget(object);
            self.by_object.insert(object.clone(), missing.clone());
            // What an earlier look-up has found may be outdated.
            if let Some(known) = self.states.get_mut(&missing) {
                if !known.is_over() {
                    known.answer = None;
                }
                known.ended = None;
            }
        }
        let absence = self.states.entry(missing.clone()).or_default();
        absence.objects.insert(object.clone());
        let is_due = absence.ended.is_none_or(|at| at.elapsed() >= absence.repeat_after());
        if absence.pending.is_none() && is_due && !absence.is_over() {
            self.look_ups_added += 1;
            absence.pending = Some(self.look_ups_added);
            self.waiting.add(service.namespace(), self.look_ups_added, missing);
        }
        absence.found_for(object, service)
    }

    /// Returns when the Service that a StableName waits for may be looked up again; `None` if no look-up has
    /// ended, another one is queued or under way, or the Service is gone.
    pub(super) fn due(&self, object: &ServiceKey) -> Option<Instant> {
        let absence = self.states.get(self.by_object.get(object)?)?;
        let is_over = absence.pending.is_some() || absence.is_over();
        absence.ended.filter(|_| !is_over).map(|at| at + absence.repeat_after())
    }

    /// Forgets a StableName, and its Service if no other StableName waits for it.
    pub(super) fn forget(&mut self, object: &ServiceKey) {
        let Some(missing) = self.by_object.remove(object) else { return };
        if let Some(absence) = self.states.get_mut(&missing) {
            absence.objects.remove(object);
            if absence.objects.is_empty() {
                absence.pending.iter().for_each(|number| self.waiting.remove(missing.0.namespace(), *number));
                self.states.remove(&missing);
            }
        }
    }

    /// Forgets everything: etcd was restored.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Sends the look-ups that wait, up to the limit, to the clusters of their Services.
    pub(super) fn start(&mut self, servers: ApiServers<'_>) {
        let under_way = |all: &HashMap<Box<str>, usize>, namespace: &str| {
            all.get(cluster_of(namespace).unwrap_or_default()).copied().unwrap_or_default()
        };
        while let Some((namespace, missing)) =
            self.waiting.take(|namespace| under_way(&self.under_way, namespace) < MAX_LOOK_UPS)
        {
            let cluster = cluster_of(&namespace);
            *self.under_way.entry(cluster.unwrap_or_default().into()).or_default() += 1;
            let api = match cluster {
                None => Some((servers.client.clone(), servers.availability.clone())),
                Some(cluster) => servers.remotes.client(cluster),
            };
            let (selection, home) = (Arc::clone(servers.selection), Arc::clone(servers.home));
            self.look_ups.spawn(async move {
                let Some((client, availability)) = api else {
                    return LookUpEnd { missing, answer: None, is_refused: false };
                };
                let answer = look_up(client, &availability, (&selection, &home), &missing).await;
                let is_refused = answer.as_ref().is_err_and(Forbidden::lists_services);
                LookUpEnd { missing, answer: answer.ok(), is_refused }
            });
        }
    }

    /// Waits for the end of a look-up; `None` if none is under way.
    pub(super) async fn ended(&mut self) -> Option<Result<LookUpEnd, JoinError>> {
        self.look_ups.join_next().await
    }

    /// Records the end of a look-up. Returns the StableNames to decide about.
    pub(super) fn record(&mut self, ended: LookUpEnd) -> Vec<ServiceKey> {
        let LookUpEnd { missing, answer, is_refused } = ended;
        if let Some(number) = self.under_way.get_mut(missing.0.cluster().unwrap_or_default()) {
            *number = number.saturating_sub(1);
        }
        let Some(absence) = self.states.get_mut(&missing) else { return Vec::new() };
        absence.pending = None;
        absence.refusal.note(is_refused);
        // A Role is deleted with its namespace: if the authorizer has refused for ten minutes, the Service counts as
        // gone.
        let refused = || absence.refusal.is_lasting().then(|| Found::Refused { is_lasting: true }.into());
        if let Some(answer) = answer.or_else(refused) {
            absence.answer = Some(answer);
        }
        absence.ended = Some(Instant::now());
        absence.objects.iter().cloned().collect()
    }
}

/// Looks up a load balancer, selected or not. `home` is the name of the home cluster.
async fn look_up(
    client: Client,
    availability: &ApiAvailability,
    (selection, home): (&Selection, &str),
    (service, uid): &Missing,
) -> kube::Result<Answer> {
    let (namespace, name) = (clusters::split(service.namespace()).1, service.name());
    let found = find_in_etcd::<Service>(client, &RequestQuery::named(namespace, name)).await;
    match &found {
        Ok(_) => availability.report_available(),
        Err(error) => availability.report_error(error),
    }
    let Some(found) = found? else { return Ok(Found::Absent.into()) };
    let is_same = found.uid().is_some_and(|known| *uid == *known.as_str());
    let which = if is_same { Which::Same } else { Which::Another };
    let exists = |membership| Found::Exists { which, membership, is_open: true };
    let is_watched = selection.watches(service.namespace());
    // An undecodable Service isn't gone.
    let Ok(mut found) = found.0 else {
        return Ok(Answer { is_watched, ..exists(Membership::NotSelected).into() });
    };
    found.metadata.namespace = Some(service.namespace().to_owned());
    Ok(Answer {
        found: exists(selection.membership(&found)),
        annotations: Some(Annotations { allow_from: found.allow_from(home).0, ..Annotations::default() }),
        is_watched: is_watched && selection.matches_labels(&found.metadata),
    })
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::future::pending;

    use axum::body::Body;
    use axum::http::{Request, Response};
    use kube::core::Selector;
    use serde_json::{Value, json};
    use tokio::time::{advance, timeout};

    use super::*;
    use crate::sync::test_support::{client, status};

    impl MissingServices {
        /// Returns whether the target of the Service is withdrawn.
        fn confirm_gone(&mut self, object: &ServiceKey, service: &ServiceKey, uid: &Uid) -> bool {
            let found = self.found(object, service, uid);
            let facts = Facts { found, ..Facts::of(Subject::Announcement, ServiceState::Unlisted) };
            matches!(may_remove(&facts, Instant::now().into_std()), Verdict::Remove(_))
        }
    }

    /// The API servers of a leader.
    struct Api {
        client: Client,
        availability: ApiAvailability,
        remotes: Remotes,
        selection: Arc<Selection>,
        home: Arc<str>,
    }

    impl Api {
        fn servers(&self) -> ApiServers<'_> {
            let Self { client, availability, remotes, selection, home } = self;
            ApiServers { client, availability, remotes, selection, home }
        }
    }

    /// Returns an API server with one Service, which in namespace "closed" doesn't permit to list.
    fn api_server(service: Value) -> Api {
        Api {
            client: client_for(service),
            availability: ApiAvailability::default(),
            remotes: Remotes::default(),
            selection: Arc::default(),
            home: "home".into(),
        }
    }

    fn client_for(service: Value) -> Client {
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

    fn key(namespace: &str, name: &str) -> ServiceKey {
        ServiceKey::new(namespace, name)
    }

    /// Returns the result of one look-up of the Service with uid `known`, and whether another one is due later.
    async fn look_up(absences: &mut MissingServices, api: &Api, namespace: &str) -> (bool, bool) {
        let (object, service) = (key("shop", "sn"), key(namespace, "web"));
        absences.confirm_gone(&object, &service, &"known".into());
        absences.start(api.servers());
        let ended = absences.ended().await.unwrap().unwrap();
        assert_eq!(absences.record(ended), std::slice::from_ref(&object));
        (absences.confirm_gone(&object, &service, &"known".into()), absences.due(&object).is_some())
    }

    #[tokio::test(start_paused = true)]
    async fn service_with_another_uid_or_type_is_gone() {
        for (uid, kind, expected) in [
            ("known", "LoadBalancer", false),
            ("known", "ClusterIP", true),
            ("another", "LoadBalancer", true),
        ] {
            let (mut absences, api) = (MissingServices::default(), api_server(service(uid, kind)));
            let (is_confirmed, is_due_later) = look_up(&mut absences, &api, "shop").await;
            assert_eq!((is_confirmed, is_due_later), (expected, !expected), "{uid} {kind}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn living_service_outside_the_watch_is_not_gone() {
        let selection = Selection {
            labels: Selector::from_iter([("tier", "web")]),
            namespaces: BTreeSet::from(["shop".to_owned()]),
            ..Selection::default()
        };
        let mut open = service("known", "LoadBalancer");
        open["metadata"]["annotations"] = json!({"linker.hsj.com/allow-from": "blog"});
        for (namespace, object, expected) in [
            ("shop", key("shop", "sn"), false),
            ("shop", key("blog", "sn"), false),
            ("unwatched", key("blog", "sn"), false),
            ("shop", key("other", "sn"), true),
        ] {
            let (mut absences, api) = (MissingServices::default(), api_server(open.clone()));
            let api = Api { selection: Arc::new(selection.clone()), ..api };
            let missing = (key(namespace, "web"), "known".into());
            assert!(!absences.confirm_gone(&object, &missing.0, &missing.1));
            absences.start(api.servers());
            let ended = absences.ended().await.unwrap().unwrap();
            absences.record(ended);
            assert_eq!(absences.confirm_gone(&object, &missing.0, &missing.1), expected, "{object}");
            let due = absences.due(&object).unwrap();
            assert_eq!(due.duration_since(Instant::now()), REPEAT_UNWATCHED_AFTER);
        }
    }

    /// Returns the API servers of a leader with the remote cluster `west`; nothing exists at home.
    fn with_west(client: Client) -> Api {
        Api { remotes: Remotes::of("west", client), ..api_server(service("another", "LoadBalancer")) }
    }

    #[tokio::test(start_paused = true)]
    async fn service_of_a_remote_cluster_is_looked_up_there() {
        for (uid, allowed, expected) in
            [("known", "home/shop", false), ("known", "shop", true), ("another", "home/shop", true)]
        {
            let mut found = service(uid, "LoadBalancer");
            found["metadata"]["annotations"] = json!({"linker.hsj.com/allow-from": allowed});
            let api = with_west(client(move |request| {
                assert_eq!(request.uri().path(), "/api/v1/namespaces/shop/services");
                (200, json!({"metadata": {"resourceVersion": "5"}, "items": [found.clone()]}))
            }));
            let mut absences = MissingServices::default();
            let (is_confirmed, _) = look_up(&mut absences, &api, "west/shop").await;
            assert_eq!(is_confirmed, expected, "{uid} {allowed}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn look_up_without_an_answer_withdraws_nothing() {
        for namespace in ["west/shop", "east/shop"] {
            let api = with_west(client(|_| status(503, "ServiceUnavailable", "no")));
            let found = look_up(&mut MissingServices::default(), &api, namespace).await;
            assert_eq!(found, (false, true), "{namespace}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn silent_cluster_delays_no_look_up_at_home() {
        let silent = tower::service_fn(|_: Request<kube::client::Body>| {
            pending::<Result<Response<Body>, Infallible>>()
        });
        let (api, mut absences) = (with_west(Client::new(silent, "default")), MissingServices::default());
        for number in 0..2 * MAX_LOOK_UPS {
            let object = key("shop", &number.to_string());
            absences.found(&object, &key("west/shop", &number.to_string()), &"known".into());
        }
        absences.start(api.servers());
        assert_eq!(absences.look_ups.len(), MAX_LOOK_UPS);
        assert!(look_up(&mut absences, &api, "shop").await.0);
    }

    #[tokio::test(start_paused = true)]
    async fn refused_look_ups_confirm_the_absence_after_ten_minutes() {
        let (mut absences, api) = (MissingServices::default(), api_server(json!({})));
        let mut look_ups = 0;
        while !look_up(&mut absences, &api, "closed").await.0 {
            advance(REPEAT_AFTER).await;
            look_ups += 1;
        }
        assert_eq!(look_ups, 120);
    }

    #[tokio::test(start_paused = true)]
    async fn objects_share_the_look_up_of_a_service() {
        let (mut absences, api) =
            (MissingServices::default(), api_server(service("another", "LoadBalancer")));
        let (objects, web) = ([key("shop", "a"), key("shop", "b")], key("shop", "web"));
        for object in &objects {
            assert!(!absences.confirm_gone(object, &web, &"known".into()));
            absences.start(api.servers());
        }
        assert_eq!(absences.look_ups.len(), 1);
        // Another Service is announced before the answer.
        assert!(!absences.confirm_gone(&objects[1], &web, &"new".into()));
        let ended = absences.ended().await.unwrap().unwrap();
        assert_eq!(absences.record(ended), objects[..1]);
        assert!(absences.confirm_gone(&objects[0], &web, &"known".into()));
        assert!(!absences.confirm_gone(&objects[1], &web, &"new".into()));
        objects.iter().for_each(|object| absences.forget(object));
        absences.start(api.servers());
        assert!(timeout(REPEAT_AFTER, absences.ended()).await.unwrap().is_none(), "forgotten");
        assert!(absences.states.is_empty() && absences.by_object.is_empty());
    }

    #[test]
    fn forgotten_service_is_not_looked_up() {
        let mut absences = MissingServices::default();
        let (object, web) = (key("shop", "sn"), key("shop", "web"));
        for _ in 0..3 {
            assert!(!absences.confirm_gone(&object, &web, &"known".into()));
            absences.forget(&object);
        }
        assert!(absences.waiting.is_empty());
        absences.confirm_gone(&object, &web, &"known".into());
        assert!(absences.waiting.take(|_| true).is_some() && absences.waiting.is_empty());
    }
}
