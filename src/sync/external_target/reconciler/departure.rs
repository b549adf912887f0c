//! Looks a gone Service up just before its external target is removed: after a restore of etcd to an earlier revision a
//! watch may be silent although the Service exists again. The garbage collector of Kubernetes reads
//! an owner in the same way before it deletes a dependent.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Client, Resource};

use super::context::ReconcilerContext;
use crate::model::link::{Link, LinkState};
use crate::model::service_key::ServiceKey;
use crate::model::uid::Uid;
use crate::sync::external_target::left_out::ServiceLookup;
use crate::sync::k8s::errors::{ApiAvailability, WatchLog, describe, retry_after};
use crate::sync::k8s::forbidden::Forbidden;
use crate::sync::k8s::service::{LOAD_BALANCER, Service, Spec};
use crate::sync::k8s::watch::{RequestQuery, find_in_etcd};
use crate::sync::removal::facts::{Found, Which};
use crate::sync::source::selection::Selection;

/// Time within which the watch of load balancers should report a Service that the API server has.
pub(crate) const WATCH_LAG: Duration = Duration::from_secs(5);
/// Minimum pause between two complete relists because a Service counts as gone although the API server has it.
const RELIST_INTERVAL: Duration = Duration::from_secs(150);

/// The look-up of a Service that counts as gone.
pub(crate) struct GoneCheck {
    client: Client,
    availability: ApiAvailability,
    selection: Arc<Selection>,
    key: ServiceKey,
    /// The uid of the Service's successor, if the watch has reported one.
    successor: Option<Uid>,
    /// Whether an authorizer has refused every look-up for ten minutes.
    is_refused: bool,
}

/// The answer to a look-up.
#[derive(Debug)]
pub(crate) struct LookUp {
    pub(crate) found: Found,
    /// The resourceVersion of the Service, if there is one.
    pub(crate) version: String,
    /// The error of the API server, if it answered with one.
    pub(crate) error: Option<LookUpError>,
}

#[derive(Debug)]
pub(crate) struct LookUpError {
    pub(crate) code: u16,
    pub(crate) message: String,
    pub(crate) retry_after: Option<Duration>,
}

impl GoneCheck {
    /// Returns the look-up of a link's Service; `None` if there is no cluster.
    pub(crate) fn of(link: &Link, context: &ReconcilerContext, is_refused: bool) -> Option<Self> {
        let ServiceLookup::Cluster(client) = &context.service_lookup else { return None };
        Some(Self {
            client: client.clone(),
            availability: context.backend.availability()?,
            selection: Arc::clone(&context.selection),
            key: link.key.clone(),
            successor: matches!(link.state, LinkState::Recreated(_)).then(|| link.uid.clone()),
            is_refused,
        })
    }

    /// Looks up the Service by a LIST, which needs no other permission than the watch.
    pub(crate) async fn look_up(&self) -> LookUp {
        let (namespace, name) = self.key.parts();
        let mut query = RequestQuery::named(namespace, name);
        query.fields.push_str(&format!(",spec.type={LOAD_BALANCER}"));
        query.metadata_only = true;
        let answer = find_in_etcd::<Service>(self.client.clone(), &query).await;
        match &answer {
            Ok(_) => self.availability.report_available(),
            Err(error) => self.availability.report_error(error),
        }
        let failed = |found, error| LookUp { found, version: String::new(), error };
        match answer {
            Ok(None) => failed(Found::Absent, None),
            Ok(Some(found)) => self.found(found.meta().clone()),
            Err(error) => {
                let found = match Forbidden::lists_services(&error) {
                    true => Found::Refused { is_lasting: self.is_refused },
                    false => Found::Failed,
                };
                let kube::Error::Api(status) = &error else { return failed(found, None) };
                let code = status.code;
                let message =
                    describe(&error, &format!("list Service {} by its name", self.key), WatchLog::READING);
                failed(found, Some(LookUpError { code, message, retry_after: retry_after(&error) }))
            }
        }
    }

    /// Returns the answer for the metadata of a load balancer that exists.
    fn found(&self, metadata: ObjectMeta) -> LookUp {
        let spec = Spec { type_: Some(LOAD_BALANCER.to_owned()), ..Spec::default() };
        let service = Service { metadata, spec, ..Service::default() };
        let is_successor = self.successor.as_ref().is_some_and(|uid| *uid == *service.uid());
        let which = if is_successor { Which::Successor } else { Which::Another };
        let membership = self.selection.membership(&service);
        let found = Found::Exists { which, membership, is_open: true };
        LookUp { found, version: service.metadata.resource_version.unwrap_or_default(), error: None }
    }
}

/// Services that count as gone although the API server has them.
#[derive(Debug, Default)]
pub(crate) struct UnreportedServices {
    /// The resourceVersion of each Service, and since when look-ups have found this version.
    found: HashMap<ServiceKey, (String, Instant)>,
    /// The time of the last complete relist because of such a Service.
    listed: Option<Instant>,
}

/// The reaction to a Service that counts as gone although the API server has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Remedy {
    /// Wait: the watch may report the Service at any moment.
    Wait,
    /// List everything again, as the watch is silent.
    List,
    /// Wait longer: a recent relist changed nothing.
    WaitLonger,
}

impl UnreportedServices {
    /// Records that the API server has a Service that counts as gone, in this resourceVersion. Returns the reaction.
    pub(crate) fn note(&mut self, key: &ServiceKey, version: String, now: Instant) -> Remedy {
        let (known, since) = self.found.entry(key.clone()).or_insert_with(|| (version.clone(), now));
        if *known != version {
            // The Service has just changed, so the watch couldn't report it earlier.
            (*known, *since) = (version, now);
        }
        if now.duration_since(*since) < WATCH_LAG {
            return Remedy::Wait;
        }
        if self.listed.is_some_and(|at| now.duration_since(at) < RELIST_INTERVAL) {
            return Remedy::WaitLonger;
        }
        self.listed = Some(now);
        self.found.clear();
        Remedy::List
    }

    /// Records that a Service doesn't count as gone any more, or is gone.
    pub(super) fn remove(&mut self, key: &ServiceKey) {
        self.found.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Selector;
    use serde_json::{Value, json};

    use super::*;
    use crate::sync::removal::facts::{Budget, Facts, Lists, Owner, ServiceState};
    use crate::sync::removal::verdict::{Question, Verdict, may_remove};

    fn gone_check(successor: Option<&str>) -> GoneCheck {
        let service = tower::service_fn(|_: axum::http::Request<kube::client::Body>| {
            std::future::pending::<Result<axum::http::Response<kube::client::Body>, std::convert::Infallible>>(
            )
        });
        let labels = Selector::from_iter([("tier".to_owned(), "web".to_owned())]);
        GoneCheck {
            client: Client::new(service, "default"),
            availability: ApiAvailability::default(),
            selection: Arc::new(Selection { labels, ..Selection::default() }),
            key: ServiceKey::new("shop", "web"),
            successor: successor.map(Into::into),
            is_refused: false,
        }
    }

    /// Returns whether the external target of a gone Service may be removed if the API server has a Service with these
    /// changes of its metadata.
    fn is_gone(successor: Option<&str>, changes: &[(&str, Value)]) -> bool {
        let mut metadata = json!({"namespace": "shop", "name": "web", "uid": "u", "resourceVersion": "7",
            "labels": {"tier": "web"}});
        for (field, value) in changes {
            metadata[*field] = value.clone();
        }
        let look_up = gone_check(successor).found(serde_json::from_value(metadata).unwrap());
        assert_eq!(look_up.version, "7");
        let (now, service) = (Instant::now(), ServiceState::Gone);
        let facts = Facts {
            owner: Owner::Ours,
            service,
            since: Some(now),
            delay: Some(Duration::ZERO),
            ..Facts::default()
        };
        let (lists, budget) = (Some(Lists::Complete), Some(Budget::Free));
        let verdict = |found| may_remove(&Facts { lists, budget, found, ..facts }, now);
        assert_eq!(verdict(None), Verdict::Ask(Question::Service));
        matches!(verdict(Some(look_up.found)), Verdict::Remove(_))
    }

    #[tokio::test]
    async fn existing_selected_service_is_not_confirmed_as_gone() {
        assert!(!is_gone(None, &[]));
        assert!(!is_gone(None, &[("uid", json!("another"))]), "the watch will report it");
        assert!(is_gone(None, &[("labels", json!({"tier": "db"}))]));
        assert!(is_gone(None, &[("annotations", json!({"linker.hsj.com/managed": "false"}))]));
        assert!(is_gone(None, &[("deletionTimestamp", json!("2026-01-01T00:00:00Z"))]));
        assert!(is_gone(Some("u"), &[]), "its predecessor is gone");
        assert!(!is_gone(Some("another"), &[]), "the watch has reported another successor");
    }

    #[test]
    fn late_watch_causes_a_single_relist() {
        let (mut unreported_services, start) = (UnreportedServices::default(), Instant::now());
        let (web, api) = (ServiceKey::new("shop", "web"), ServiceKey::new("shop", "api"));
        let mut note = |key: &ServiceKey, version: &str, seconds| {
            unreported_services.note(key, version.to_owned(), start + Duration::from_secs(seconds))
        };
        assert_eq!(note(&web, "7", 0), Remedy::Wait);
        assert_eq!(note(&web, "7", 4), Remedy::Wait);
        assert_eq!(note(&web, "8", 5), Remedy::Wait, "it has changed meanwhile");
        assert_eq!(note(&api, "5", 5), Remedy::Wait);
        assert_eq!(note(&web, "8", 10), Remedy::List);
        assert_eq!(note(&web, "8", 11), Remedy::Wait, "the relist has just begun");
        assert_eq!(note(&api, "5", 12), Remedy::Wait);
        assert_eq!(note(&api, "5", 20), Remedy::WaitLonger, "the relist was recent");
        assert_eq!(note(&api, "5", 160), Remedy::List);
        unreported_services.remove(&api);
        unreported_services.remove(&web);
        assert!(unreported_services.found.is_empty());
    }
}
