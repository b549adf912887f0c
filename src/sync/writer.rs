//! The place where external targets are kept: a namespace of a cluster, or a directory.

use std::time::Duration;

use futures::StreamExt;
use futures::stream::BoxStream;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::DeserializeGuard;
use kube::runtime::watcher::Event;
use kube::{Api, Client, ResourceExt};

use super::desired::{FIELD_MANAGER, Write, merge_patch};
use super::output::OutputDirectory;
use super::service::Service;
use super::trouble::{Complaints, Trouble, explain, explain_watch, watch_code};
use super::watch::{readable, services};

/// What happened to the objects there.
#[derive(Debug)]
pub enum ObjectEvent {
    /// A complete list.
    Listed(Vec<Service>),
    /// They can't be seen now; the reason has been logged.
    Unseen,
    /// An object is new or changed.
    Applied(Box<Service>),
    /// An object is gone.
    Deleted {
        /// Its name.
        name: String,
        /// Its uid; empty where there are none.
        uid: String,
    },
}

/// Why a write failed.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The object isn't as it was seen last, or exists already: the watch will say how it is.
    #[error("the object has changed meanwhile")]
    Conflict,
    /// The object is gone.
    #[error("the object is gone")]
    Gone,
    /// Every object has the same trouble: the API server is away, the namespace or the right is
    /// missing.
    #[error("{message}")]
    Everywhere {
        /// The HTTP code; 0 if there was no answer.
        code: u16,
        /// One sentence.
        message: String,
    },
    /// Anything else.
    #[error("{message}")]
    Other {
        /// One sentence.
        message: String,
        /// When the API server asks to be left alone until then.
        retry_after: Option<Duration>,
    },
}

impl WriteError {
    /// Returns the HTTP status that the metrics show.
    fn code(error: &kube::Error) -> u16 {
        match error {
            kube::Error::Api(status) => status.code,
            _ => 0,
        }
    }
}

/// Where external targets are kept.
#[derive(Clone)]
pub enum Keeper {
    /// A namespace of a cluster.
    Namespace {
        /// The client.
        client: Client,
        /// The target namespace.
        namespace: String,
    },
    /// A directory of YAML files.
    Directory(OutputDirectory),
}

impl Keeper {
    /// Follows the objects that are there; the first event is a complete list.
    #[must_use]
    pub fn events(&self) -> BoxStream<'static, ObjectEvent> {
        match self {
            Self::Namespace { client, namespace } => {
                let api = Api::namespaced(client.clone(), namespace);
                namespace_events(api, namespace.clone()).boxed()
            }
            Self::Directory(directory) => directory.events().boxed(),
        }
    }

    /// Returns how an object is called in the log.
    #[must_use]
    pub fn describe(&self, object: &str) -> String {
        match self {
            Self::Namespace { namespace, .. } => format!("{namespace}/{object}"),
            Self::Directory(directory) => directory.file(object).display().to_string(),
        }
    }

    /// Carries out one write. Returns the object as it is afterwards, or nothing if it is gone,
    /// and the HTTP code for the metrics.
    pub async fn write(&self, write: Write) -> (u16, Result<Option<Service>, WriteError>) {
        match self {
            Self::Namespace { client, namespace } => {
                let api: Api<Service> = Api::namespaced(client.clone(), namespace);
                let created = matches!(write, Write::Create(_));
                match send(&api, write).await {
                    Ok(object) => (if created { 201 } else { 200 }, Ok(object)),
                    Err(error) => (WriteError::code(&error), Err(sort(error, created, namespace))),
                }
            }
            Self::Directory(directory) => (0, directory.write(write).await),
        }
    }
}

async fn send(api: &Api<Service>, write: Write) -> kube::Result<Option<Service>> {
    match write {
        Write::Create(service) => {
            let params = PostParams { field_manager: Some(FIELD_MANAGER.into()), ..Default::default() };
            api.create(&params, &service).await.map(Some)
        }
        Write::Change { desired, only } => {
            let params = PatchParams { field_manager: Some(FIELD_MANAGER.into()), ..Default::default() };
            let name = desired.metadata.name.as_deref().unwrap_or_default();
            api.patch(name, &params, &Patch::Merge(merge_patch(&desired, &only))).await.map(Some)
        }
        Write::Delete { name, only } => {
            let params = DeleteParams {
                preconditions: Some(Preconditions { uid: only.uid, resource_version: only.resource_version }),
                ..Default::default()
            };
            // What is left is held by a finalizer of somebody else.
            let left = api.delete(&name, &params).await?.left();
            Ok(left.filter(|object| object.metadata.deletion_timestamp.is_some()))
        }
    }
}

fn sort(error: kube::Error, created: bool, namespace: &str) -> WriteError {
    let doing = format!("write external targets in namespace {namespace}");
    let code = WriteError::code(&error);
    match &error {
        kube::Error::Api(status) => match code {
            409 => WriteError::Conflict,
            404 if !created => WriteError::Gone,
            // A ServiceAccount is told "forbidden" of a namespace that doesn't exist.
            403 => WriteError::Everywhere {
                code,
                message: explain(
                    &error,
                    &doing,
                    "either the namespace doesn't exist or lb-linker has no Role in it, and deploy/ has both",
                ),
            },
            404 => WriteError::Everywhere {
                code,
                message: format!("can't {doing}: there is no such namespace (404 {})", status.message),
            },
            401 => WriteError::Everywhere { code, message: explain(&error, &doing, "") },
            // RFC 9110 section 10.2.3; the API server repeats it in the body.
            _ => WriteError::Other {
                retry_after: status
                    .details
                    .as_ref()
                    .filter(|details| details.retry_after_seconds > 0)
                    .map(|details| Duration::from_secs(details.retry_after_seconds.into())),
                message: format!("the API server answered {code} {}", status.message),
            },
        },
        _ => WriteError::Everywhere { code, message: explain(&error, &doing, "") },
    }
}

fn namespace_events(
    api: Api<DeserializeGuard<Service>>,
    namespace: String,
) -> impl futures::Stream<Item = ObjectEvent> + Send {
    let mut trouble = Trouble::default();
    let mut complaints = Complaints::default();
    let mut list = Vec::new();
    services(api, "", "").filter_map(move |event| {
        let event = match event {
            Ok(event) => event,
            Err(error) => {
                trouble.report(
                    watch_code(&error),
                    explain_watch(
                        &error,
                        &format!("Services in namespace {namespace}"),
                        "lb-linker needs the Role of deploy/ there",
                    ),
                );
                return std::future::ready(Some(ObjectEvent::Unseen));
            }
        };
        if !matches!(event, Event::Init) {
            trouble.over(&format!("the Services in namespace {namespace} can be read again"));
        }
        std::future::ready(match event {
            Event::Init => {
                list = Vec::new();
                None
            }
            Event::InitApply(object) => {
                list.extend(readable(object, &mut complaints));
                None
            }
            Event::InitDone => Some(ObjectEvent::Listed(std::mem::take(&mut list))),
            Event::Apply(object) => {
                readable(object, &mut complaints).map(|object| ObjectEvent::Applied(Box::new(object)))
            }
            Event::Delete(object) => {
                Some(ObjectEvent::Deleted { name: object.name_any(), uid: object.uid().unwrap_or_default() })
            }
        })
    })
}
