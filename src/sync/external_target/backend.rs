//! The storage of external targets: a namespace of a cluster, or a directory.

use std::fmt::Debug;
use std::time::Duration;

use futures::stream::BoxStream;
use futures::{Stream, StreamExt};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::Request;
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::decision::Write;
use super::desired::{Stamp, merge_patch};
use super::observed_object::ObservedObject;
use super::output_dir::OutputDirectory;
use crate::metrics::staleness::Staleness;
use crate::model::service_key::ServiceKey;
use crate::object_log::ObjectLog;
use crate::sync::controller::write_error::{WriteError, WriteRequest, failed};
use crate::sync::k8s::endpoint_slice::EndpointSlice;
use crate::sync::k8s::errors::{ApiAvailability, ObjectErrors, WatchLog};
use crate::sync::k8s::labels::FIELD_MANAGER;
use crate::sync::k8s::object::{Object, ObjectId, ObjectKind};
use crate::sync::k8s::service::{FINALIZER, Service};
use crate::sync::k8s::watch::{Event, RequestQuery, WatchStream, decoded, key_of, list_watch};

/// The longest pause before the first list in the target namespace is requested again after a refusal: nothing is written
/// before that list, and the namespace may be created together with its Role.
const FIRST_LIST_PAUSE: Duration = Duration::from_secs(5);

/// The manifest that grants the permission to change finalizers of load balancers.
const FINALIZER_PERMISSION_HINT: &str = "--finalizer needs the permissions of deploy/finalizer/ there";

#[derive(Debug)]
pub enum ObjectEvent {
    /// A list of the objects of a kind begins.
    ListBegins(ObjectKind),
    /// A list of the objects of a kind is older than earlier data: etcd was restored.
    Rewound(ObjectKind),
    /// A complete list of the objects of a kind.
    Listed(ObjectKind, Vec<ObservedObject>),
    /// The objects of some kind can't be read at present, for this HTTP code; the reason has been logged.
    Unseen(u16),
    /// An object was added or modified.
    Applied(Object),
    /// An object was deleted.
    Deleted {
        id: ObjectId,
        /// The uid of the object; empty for files.
        uid: String,
    },
}

/// The storage of external targets.
#[derive(Clone)]
pub enum Backend {
    Namespace {
        client: Client,
        /// Reports an unreachable API server.
        availability: ApiAvailability,
        namespace: String,
        /// How a missing permission to list them is granted.
        list_hint: &'static str,
    },
    Directory(OutputDirectory),
}

impl Backend {
    /// Returns the events about the objects in the backend, starting with complete lists. `staleness` tracks the age of
    /// the watches' data.
    #[must_use]
    pub fn events(&self, staleness: &Staleness) -> BoxStream<'static, ObjectEvent> {
        match self {
            Self::Namespace { client, availability, namespace, list_hint } => {
                let query = RequestQuery {
                    namespace: Some(namespace.clone()),
                    first_list_pause: Some(FIRST_LIST_PAUSE),
                    ..RequestQuery::default()
                };
                let activity = staleness.watch("external-targets");
                let services =
                    list_watch::<Service>(client.clone(), query.clone(), activity, availability.clone());
                let activity = staleness.watch("endpoint-slices");
                let slices =
                    list_watch::<EndpointSlice>(client.clone(), query, activity, availability.clone());
                let log = |kind: ObjectKind| {
                    WatchLog::new(
                        availability.clone(),
                        format!("{kind}s in namespace {namespace}"),
                        list_hint,
                    )
                };
                futures::stream::select(
                    namespace_events(services, ObjectKind::Service, log(ObjectKind::Service)),
                    namespace_events(slices, ObjectKind::EndpointSlice, log(ObjectKind::EndpointSlice)),
                )
                .boxed()
            }
            Self::Directory(directory) => directory.events().boxed(),
        }
    }

    /// Returns the log for an unreachable API server, if there is an API server.
    #[must_use]
    pub fn availability(&self) -> Option<ApiAvailability> {
        match self {
            Self::Namespace { availability, .. } => Some(availability.clone()),
            Self::Directory(_) => None,
        }
    }

    /// Returns the name of an object for the log.
    #[must_use]
    pub fn describe(&self, object: &str) -> String {
        match self {
            Self::Namespace { namespace, .. } => format!("{namespace}/{object}"),
            Self::Directory(directory) => directory.file(object).display().to_string(),
        }
    }

    /// Makes a write. In a cluster it leaves `stamp` on the object, except for finalizers. `hint` says what grants the
    /// permission in the target namespace. Returns the HTTP code for the metrics, which is 0 without an answer and for a
    /// directory, and the object afterwards; `None` if it is gone.
    pub async fn write(
        &self,
        write: Write,
        stamp: &Stamp,
        hint: &str,
    ) -> (u16, Result<Option<Object>, WriteError>) {
        let (client, availability, namespace) = match self {
            Self::Namespace { client, availability, namespace, .. } => {
                (client.clone(), availability, namespace)
            }
            Self::Directory(directory) => return (0, directory.write(write).await),
        };
        let created = matches!(write, Write::Create(_));
        let (verb, resource) = (write.verb(), write.id().kind.resource());
        let doing = format!("{} {}s in namespace {namespace}", write.verb(), write.id().kind);
        if let Write::Finalizer { service, uid, add } = write {
            let patch = Patch::Strategic(finalizer_patch(&uid, add));
            return patch_service(client, availability, &service, &patch, FINALIZER_PERMISSION_HINT).await;
        }
        let sent = match write.id().kind {
            ObjectKind::Service | ObjectKind::LoadBalancer => {
                send::<Service>(&Api::namespaced(client, namespace), write, stamp).await
            }
            ObjectKind::EndpointSlice => {
                send::<EndpointSlice>(&Api::namespaced(client, namespace), write, stamp).await
            }
        };
        match sent {
            Ok(object) => {
                availability.report_available();
                (if created { 201 } else { 200 }, Ok(object))
            }
            Err(error) => failed(error, availability, WriteRequest { verb, resource, doing: &doing, hint }),
        }
    }
}

/// Patches a Service outside the target namespace. Returns the HTTP code for the metrics, and the Service afterwards.
/// `hint` names the manifest that grants the permission.
pub(crate) async fn patch_service(
    client: Client,
    availability: &ApiAvailability,
    service: &ServiceKey,
    patch: &Patch<Value>,
    hint: &str,
) -> (u16, Result<Option<Object>, WriteError>) {
    let api: Api<Service> = Api::namespaced(client, service.namespace());
    let params = PatchParams { field_manager: Some(FIELD_MANAGER.into()), ..Default::default() };
    let doing = format!("patch Services in namespace {}", service.namespace());
    match api.patch(service.name(), &params, patch).await {
        Ok(service) => {
            availability.report_available();
            (200, Ok(Some(service.into())))
        }
        Err(error) => failed(
            error,
            availability,
            WriteRequest { verb: "patch", resource: "services", doing: &doing, hint },
        ),
    }
}

/// Returns a strategic merge patch that adds or removes only our finalizer. The API server refuses it for another uid
/// (422).
fn finalizer_patch(uid: &str, add: bool) -> Value {
    let key = if add { "finalizers" } else { "$deleteFromPrimitiveList/finalizers" };
    json!({"metadata": {"uid": uid, key: [FINALIZER]}})
}

async fn send<K>(api: &Api<K>, write: Write, stamp: &Stamp) -> kube::Result<Option<Object>>
where
    K: Resource + Clone + DeserializeOwned + Debug + Into<Object>,
{
    let post = PostParams { field_manager: Some(FIELD_MANAGER.into()), ..Default::default() };
    let patch = PatchParams { field_manager: Some(FIELD_MANAGER.into()), ..Default::default() };
    match write {
        Write::Create(mut object) => {
            stamp.put_on(&mut object);
            let body = serde_json::to_vec(&object).map_err(kube::Error::SerdeError)?;
            let request = Request::new(api.resource_url()).create(&post, body);
            let request = request.map_err(kube::Error::BuildRequest)?;
            api.clone().into_client().request::<K>(request).await.map(|object| Some(object.into()))
        }
        Write::Change { desired, precondition } => {
            let body = Patch::Merge(merge_patch(&desired, &precondition, stamp));
            api.patch(&desired.id().name, &patch, &body).await.map(|object| Some(object.into()))
        }
        Write::Annotate { id, precondition } => {
            let body = Patch::Merge(stamp.patch(&precondition));
            api.patch(&id.name, &patch, &body).await.map(|object| Some(object.into()))
        }
        Write::Delete { id, precondition } => {
            let params = DeleteParams {
                preconditions: Some(Preconditions {
                    uid: precondition.uid,
                    resource_version: precondition.resource_version,
                }),
                ..Default::default()
            };
            // A foreign finalizer still holds the object.
            let left = api.delete(&id.name, &params).await?.left().map(Into::into);
            Ok(left.filter(Object::is_terminating))
        }
        // `Backend::write` sends finalizers itself, to another namespace.
        Write::Finalizer { .. } => Ok(None),
    }
}

fn namespace_events<K: Resource<DynamicType = ()> + Into<Object>>(
    events: WatchStream<K>,
    kind: ObjectKind,
    mut watch_log: WatchLog,
) -> impl Stream<Item = ObjectEvent> + Send + use<K> {
    let mut object_errors = ObjectErrors::of_kind(kind.name(), ObjectLog::default());
    let mut list = Vec::new();
    events.filter_map(move |event| {
        // The reconciler waits until a temporary failure is over, but not for missing credentials, a permission or a
        // namespace.
        let code = event.as_ref().err().map(|error| error.code());
        let unseen = code.filter(|code| matches!(code, 401 | 403 | 404)).map(ObjectEvent::Unseen);
        let Some(event) = watch_log.log_failure(event) else {
            return std::future::ready(unseen);
        };
        std::future::ready(match event {
            Event::ListBegins => {
                list = Vec::new();
                Some(ObjectEvent::ListBegins(kind))
            }
            Event::Listed(object) => {
                let object = decoded(object, &mut object_errors);
                list.extend(object.map(|object| ObservedObject::of(&object.into())));
                None
            }
            Event::Resumed => None,
            // Everything is listed again, so this list isn't needed.
            Event::ListEnds { rewound: true, .. } => Some(ObjectEvent::Rewound(kind)),
            Event::ListEnds { rewound: false, .. } => {
                Some(ObjectEvent::Listed(kind, std::mem::take(&mut list)))
            }
            Event::Applied(object) => {
                let object = decoded(object, &mut object_errors);
                object.map(|object| ObjectEvent::Applied(object.into()))
            }
            Event::Deleted(object) => {
                object_errors.set(&key_of(&object), None);
                Some(ObjectEvent::Deleted {
                    id: ObjectId { kind, name: object.name_any() },
                    uid: object.uid().unwrap_or_default(),
                })
            }
        })
    })
}
