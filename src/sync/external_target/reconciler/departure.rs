//! Confirms the end of a Service by a live read before its external target is removed: after a restore of etcd to an
//! earlier revision a watch may be silent although the Service exists again. The garbage collector of Kubernetes reads
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
use crate::sync::external_target::decision::Write;
use crate::sync::external_target::left_out::ServiceLookup;
use crate::sync::k8s::errors::{ApiAvailability, WatchLog, describe, retry_after, root_cause};
use crate::sync::k8s::forbidden::Forbidden;
use crate::sync::k8s::service::{LOAD_BALANCER, Service, Spec};
use crate::sync::k8s::watch::{RequestQuery, find_in_etcd};
use crate::sync::source::selection::{Membership, Selection};

/// Time within which the watch of load balancers should report a Service that the API server has.
pub(crate) const WATCH_LAG: Duration = Duration::from_secs(5);
/// Minimum pause between two complete relists because a Service counts as gone although the API server has it.
const RELIST_INTERVAL: Duration = Duration::from_secs(150);

/// A Service that counts as gone, and the means to confirm it.
pub(crate) struct GoneCheck {
    client: Client,
    availability: ApiAvailability,
    selection: Arc<Selection>,
    key: ServiceKey,
    /// The uid of the Service's successor, if the watch has reported one.
    successor: Option<Uid>,
    /// Whether another refusal by an authorizer counts as confirmation.
    accepts_refusal: bool,
}

/// The confirmation that a Service is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Confirmed {
    /// The API server doesn't have the Service.
    Absent,
    /// The watch has reported the deletion, and an authorizer refuses every read.
    Refused,
}

/// The reason why the end of a Service isn't confirmed.
#[derive(Debug)]
pub(crate) enum Unconfirmed {
    /// The API server has the Service in this resourceVersion, and the watch hasn't reported it.
    Exists { version: String },
    /// There was no answer, which has been logged.
    Unanswered,
    /// The API server has refused the read with this HTTP code.
    Refused { code: u16, by_authorizer: bool, message: String, retry_after: Option<Duration> },
}

impl GoneCheck {
    /// Returns the confirmation that a write of a link needs; `None` if the write doesn't depend on the end of a
    /// Service, or if there is no cluster. `is_refused`: whether an authorizer has refused every read for ten minutes.
    pub(crate) fn of(
        link: &Link,
        write: &Write,
        context: &ReconcilerContext,
        is_refused: bool,
    ) -> Option<Self> {
        let ServiceLookup::Cluster(client) = &context.service_lookup else { return None };
        if !needs_confirmation(link, write) {
            return None;
        }
        let successor = matches!(link.state, LinkState::Recreated(_)).then(|| link.uid.clone());
        Some(Self {
            client: client.clone(),
            availability: context.backend.availability()?,
            selection: Arc::clone(&context.selection),
            key: link.key.clone(),
            successor,
            accepts_refusal: is_refused && is_deletion_reported(link),
        })
    }

    /// Looks up the Service by a LIST, which needs no other permission than the watch.
    pub(crate) async fn confirm(&self) -> Result<Confirmed, Unconfirmed> {
        let (namespace, name) = self.key.parts();
        let mut query = RequestQuery::named(namespace, name);
        query.fields.push_str(&format!(",spec.type={LOAD_BALANCER}"));
        query.metadata_only = true;
        match find_in_etcd::<Service>(self.client.clone(), &query).await {
            Ok(found) => {
                self.availability.report_available();
                self.judge(found.map(|found| found.meta().clone()))
            }
            Err(error @ kube::Error::Api(_)) => {
                self.availability.report_available();
                let by_authorizer = Forbidden::lists_services(&error);
                if by_authorizer && self.accepts_refusal {
                    return Ok(Confirmed::Refused);
                }
                let message =
                    describe(&error, &format!("list Service {} by its name", self.key), WatchLog::READING);
                let code = if let kube::Error::Api(status) = &error { status.code } else { 0 };
                Err(Unconfirmed::Refused { code, by_authorizer, message, retry_after: retry_after(&error) })
            }
            Err(error) => {
                self.availability.report(&root_cause(&error));
                Err(Unconfirmed::Unanswered)
            }
        }
    }

    /// Decides by the metadata of the load balancer; `None` if the API server doesn't have the load balancer.
    fn judge(&self, found: Option<ObjectMeta>) -> Result<Confirmed, Unconfirmed> {
        let Some(metadata) = found else { return Ok(Confirmed::Absent) };
        let spec = Spec { type_: Some(LOAD_BALANCER.to_owned()), ..Spec::default() };
        let service = Service { metadata, spec, ..Service::default() };
        let is_successor = self.successor.as_ref().is_some_and(|uid| *uid == *service.uid());
        // A Service that opts out, has left the selection or is being deleted isn't a link.
        if self.selection.membership(&service) != Membership::Selected || is_successor {
            return Ok(Confirmed::Absent);
        }
        Err(Unconfirmed::Exists { version: service.metadata.resource_version.unwrap_or_default() })
    }
}

/// Returns whether a write of a link depends on the end of its Service. The target of an overridden link is withdrawn
/// by the status of its StableName, and the Service of the same name may exist.
fn needs_confirmation(link: &Link, write: &Write) -> bool {
    let adds_finalizer = matches!(write, Write::Finalizer { add: true, .. });
    link.service_gone_since().is_some() && link.active_override().is_none() && !adds_finalizer
}

/// Returns whether a watch or a list of this process has reported the deletion of a link's Service. The report stays
/// true, because a uid is never used again, except after a restore of etcd.
pub(crate) fn is_deletion_reported(link: &Link) -> bool {
    link.is_gone() && !link.was_never_observed()
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
    use crate::model::link_override::{Announcement, LinkOverride, OverriddenLink};

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
            accepts_refusal: false,
        }
    }

    /// Returns whether the end of a Service is confirmed if the API server has a Service with these changes of its
    /// metadata.
    fn is_gone(successor: Option<&str>, changes: &[(&str, Value)]) -> bool {
        let mut metadata = json!({"namespace": "shop", "name": "web", "uid": "u", "resourceVersion": "7",
            "labels": {"tier": "web"}});
        for (field, value) in changes {
            metadata[*field] = value.clone();
        }
        match gone_check(successor).judge(Some(serde_json::from_value(metadata).unwrap())) {
            Ok(_) => true,
            Err(Unconfirmed::Exists { version }) => {
                assert_eq!(version, "7");
                false
            }
            Err(error) => panic!("{error:?}"),
        }
    }

    #[tokio::test]
    async fn existing_selected_service_is_not_confirmed_as_gone() {
        assert!(gone_check(None).judge(None).is_ok());
        assert!(!is_gone(None, &[]));
        assert!(!is_gone(None, &[("uid", json!("another"))]), "the watch will report it");
        assert!(is_gone(None, &[("labels", json!({"tier": "db"}))]));
        assert!(is_gone(None, &[("annotations", json!({"linker.hsj.com/managed": "false"}))]));
        assert!(is_gone(None, &[("deletionTimestamp", json!("2026-01-01T00:00:00Z"))]));
        assert!(is_gone(Some("u"), &[]), "its predecessor is gone");
        assert!(!is_gone(Some("another"), &[]), "the watch has reported another successor");
    }

    #[test]
    fn withdrawn_target_of_an_overridden_link_needs_no_look_up() {
        let since = LinkState::Recreated(Instant::now());
        let recreated = Link { state: since, ..Link::new(ServiceKey::new("shop", "web"), "u") };
        let finalizer =
            |add| Write::Finalizer { service: recreated.key.clone(), uid: "u".to_owned().into(), add };
        assert!(needs_confirmation(&recreated, &finalizer(false)));
        assert!(!needs_confirmation(&recreated, &finalizer(true)));
        let announced = Announcement::Withdrawn;
        let overridden =
            OverriddenLink { by: LinkOverride { announced, ..LinkOverride::default() }, service_link: None };
        let withdrawn = Link { overridden: Some(overridden.into()), ..recreated.clone() };
        assert!(!needs_confirmation(&withdrawn, &finalizer(false)));
        assert!(
            needs_confirmation(&withdrawn.to_gone(Instant::now()), &finalizer(false)),
            "the override has ended"
        );
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
