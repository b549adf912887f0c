//! A small API server: objects in memory, merge patches, and watches. It has what lb-linker asks for, and no more.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use futures::stream::{self, StreamExt};
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

/// The collections that can be listed and watched.
const RESOURCES: [&str; 3] = ["services", "endpointslices", "stablenames"];
/// The list of resources by which lb-linker finds StableNames.
const DISCOVERY: &str = "/apis/linker.hsj.com/v1alpha1";

/// A running API server, which ends with the process.
#[derive(Debug)]
pub struct ApiServer {
    pub address: SocketAddr,
    objects: Shared,
}

type Shared = Arc<Mutex<Objects>>;

/// The objects by path, such as `/api/v1/namespaces/default/services/web`.
#[derive(Debug, Default)]
struct Objects {
    version: u64,
    by_path: BTreeMap<String, Value>,
    /// The watched collections.
    watches: Vec<(String, UnboundedSender<Value>)>,
}

impl ApiServer {
    /// Starts the server on a free port of 127.0.0.1.
    ///
    /// # Errors
    /// If no port can be bound.
    pub async fn start() -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let server = Self { address: listener.local_addr()?, objects: Arc::default() };
        let router = Router::new().fallback(answer).with_state(Arc::clone(&server.objects));
        tokio::spawn(async move {
            loop {
                // An error concerns one client only.
                let Ok((stream, _)) = listener.accept().await else { continue };
                let service = TowerToHyperService::new(router.clone());
                tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
            }
        });
        Ok(server)
    }

    /// Returns a kubeconfig for this server.
    pub fn kubeconfig(&self) -> String {
        let server = format!("http://{}", self.address);
        let context = json!({"name": "demo", "context": {"cluster": "demo", "user": "demo"}});
        json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "demo", "contexts": [context],
            "clusters": [{"name": "demo", "cluster": {"server": server}}],
            "users": [{"name": "demo", "user": {}}],
        })
        .to_string()
    }

    pub fn create(&self, path: &str, object: Value) {
        lock(&self.objects).store(path, object);
    }

    pub fn patch(&self, path: &str, patch: &Value) {
        let _ = lock(&self.objects).patch(path, patch);
    }

    pub fn get(&self, path: &str) -> Value {
        lock(&self.objects).by_path.get(path).cloned().unwrap_or_default()
    }
}

impl Objects {
    /// Stores an object, tells the watches, and returns the object as stored.
    fn store(&mut self, path: &str, mut object: Value) -> Value {
        self.version += 1;
        let is_new = !self.by_path.contains_key(path);
        let version = self.version.to_string();
        if is_new {
            let namespace = path.rsplit('/').nth(2);
            merge(
                &mut object,
                &json!({"metadata": {"namespace": namespace, "uid": version, "generation": 1}}),
            );
        }
        object["metadata"]["resourceVersion"] = json!(version);
        self.by_path.insert(path.to_owned(), object.clone());
        let event = json!({"type": if is_new { "ADDED" } else { "MODIFIED" }, "object": object});
        self.watches
            .retain(|(collection, watch)| !is_in(path, collection) || watch.send(event.clone()).is_ok());
        object
    }

    /// Applies a merge patch (RFC 7386).
    ///
    /// # Errors
    /// If there is no such object, or it has another resourceVersion than the patch.
    fn patch(&mut self, path: &str, patch: &Value) -> Result<Value, StatusCode> {
        let mut object = self.by_path.get(path).cloned().ok_or(StatusCode::NOT_FOUND)?;
        let version = &patch["metadata"]["resourceVersion"];
        if !version.is_null() && *version != object["metadata"]["resourceVersion"] {
            return Err(StatusCode::CONFLICT);
        }
        merge(&mut object, patch);
        Ok(self.store(path, object))
    }

    fn list(&self, collection: &str) -> Vec<Value> {
        let listed = self.by_path.iter().filter(|(path, _)| is_in(path, collection));
        listed.map(|(_, object)| object.clone()).collect()
    }
}

fn lock(objects: &Shared) -> MutexGuard<'_, Objects> {
    objects.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns whether an object is in a collection, of its namespace or of all namespaces.
fn is_in(path: &str, collection: &str) -> bool {
    let parts: Vec<&str> = path.split('/').collect();
    let [group @ .., namespaces, namespace, resource, _] = parts.as_slice() else { return false };
    let group = group.join("/");
    collection == format!("{group}/{resource}")
        || collection == format!("{group}/{namespaces}/{namespace}/{resource}")
}

/// Merges a patch into a value (RFC 7386).
fn merge(value: &mut Value, patch: &Value) {
    let Value::Object(fields) = patch else {
        *value = patch.clone();
        return;
    };
    if !value.is_object() {
        *value = json!({});
    }
    for (name, field) in fields {
        match value.as_object_mut() {
            Some(object) if field.is_null() => drop(object.remove(name)),
            _ => merge(&mut value[name.as_str()], field),
        }
    }
}

async fn answer(State(objects): State<Shared>, method: Method, uri: Uri, body: Bytes) -> Response {
    let (path, query) = (uri.path(), uri.query().unwrap_or_default());
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    let is_collection = RESOURCES.iter().any(|resource| path.ends_with(&format!("/{resource}")));
    let object = path.strip_suffix("/status").unwrap_or(path);
    let mut stored = lock(&objects);
    let answer = match (method, body["metadata"]["name"].as_str()) {
        (Method::GET, _) if path == DISCOVERY => {
            let resource = json!({"name": "stablenames", "singularName": "stablename",
                "namespaced": true, "kind": "StableName", "verbs": ["create", "list", "watch"]});
            Ok(
                json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "linker.hsj.com/v1alpha1",
                "resources": [resource]}),
            )
        }
        (Method::GET, _) if is_collection && query.contains("watch=true") => return watch(&mut stored, path),
        (Method::GET, _) if is_collection => {
            let version = stored.version.to_string();
            let items = stored.list(path);
            Ok(json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": version},
                "items": items}))
        }
        (Method::GET, _) => stored.by_path.get(path).cloned().ok_or(StatusCode::NOT_FOUND),
        (Method::POST, Some(name)) => Ok(stored.store(&format!("{path}/{name}"), body.clone())),
        (Method::PATCH, _) => stored.patch(object, &body),
        _ => Err(StatusCode::NOT_FOUND),
    };
    answer.map_or_else(refuse, |object| reply(StatusCode::OK, &object))
}

fn reply(code: StatusCode, body: &Value) -> Response {
    (code, [(CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}

fn refuse(code: StatusCode) -> Response {
    // The reasons of the API: `NotFound`, `Conflict`.
    let reason = code.canonical_reason().unwrap_or_default().replace(' ', "");
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": reason, "reason": reason, "code": code.as_u16()});
    reply(code, &status)
}

/// Sends the objects of a collection, a bookmark as the end of the list, and then each change.
fn watch(objects: &mut Objects, collection: &str) -> Response {
    let (sender, receiver) = unbounded_channel();
    let listed =
        objects.list(collection).into_iter().map(|object| json!({"type": "ADDED", "object": object}));
    let end = json!({"type": "BOOKMARK", "object": {"metadata": {
        "resourceVersion": objects.version.to_string(),
        "annotations": {"k8s.io/initial-events-end": "true"},
    }}});
    objects.watches.push((collection.to_owned(), sender));
    let changes = stream::unfold(receiver, async |mut receiver| Some((receiver.recv().await?, receiver)));
    let events = stream::iter(listed.chain([end]).collect::<Vec<_>>()).chain(changes);
    let lines = events.map(|event| Ok::<_, Infallible>(format!("{event}\n")));
    Body::from_stream(lines).into_response()
}
