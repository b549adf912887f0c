//! The paths of the status page and of the status API, and what they answer.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Query, Request, State};
use axum::http::header::{self, HeaderName};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::sync::{Semaphore, watch};
use tokio::task::{JoinError, spawn_blocking};
use tracing::error;

use crate::dns::server::corefile_source::CorefileZones;
use crate::links::LinkFilter;
use crate::links::facts::LinkFacts;
use crate::links::followers::FollowerView;
use crate::links::history::History;
use crate::links::names::{NameFilter, NamePage};
use crate::links::view::LinkView;
use crate::model::hostname::to_presentation;
use crate::model::service_key::ServiceKey;
use crate::store::Input;
use crate::store::cluster::registry::ClusterRegistry;
use crate::sync::election::{ElectionMetrics, KnownLeader};

/// The path of the links.
pub(super) const LINKS_PATH: &str = "/api/links";
/// The path of the DNS names.
pub(super) const NAMES_PATH: &str = "/api/names";

const JSON: &str = "application/json";
/// The beginning of the text of a 503 before the first list.
pub(super) const NOT_READ: &str = "the load balancers haven't been read yet";

/// The headers of every answer except the 403 of [`check_host`]: a browser runs no script but that of the page, shows
/// the page in no frame, and revalidates a stored answer before each use.
const HEADERS: [(HeaderName, &str); 5] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (header::CACHE_CONTROL, "no-cache"),
];

/// What the status API reads.
#[derive(Clone)]
pub struct Status {
    pub facts: LinkFacts,
    pub history: Arc<History>,
    pub zones: watch::Receiver<CorefileZones>,
    pub clusters: ClusterRegistry,
    /// The name of this replica.
    pub identity: String,
    pub leader: KnownLeader,
    pub election: Arc<ElectionMetrics>,
}

/// The answer of `/api/instance`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Instance {
    version: &'static str,
    /// The name of this replica.
    identity: String,
    started: Timestamp,
    zones: Vec<String>,
    target_namespace: String,
    /// Whether all load balancers have been read.
    synced: bool,
    /// Whether this replica writes.
    leads: bool,
    /// The holder of the Lease.
    #[serde(skip_serializing_if = "Option::is_none")]
    leader: Option<String>,
    /// The number of objects that *kubernetes* answers from, by kind.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    cluster_objects: BTreeMap<&'static str, usize>,
}

/// The answer of `/api/links`.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct LinkListing {
    /// The name of the replica that answers.
    pub instance: String,
    /// How old the items are, and why; `None` while the API server tells each change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notice: Option<String>,
    pub items: Vec<LinkView>,
    /// Without items, which objects haven't been read, if one of them may be the load balancer of the filter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unread: Option<String>,
    /// The Services that follow by `linker.hsj.com/source`; `None` if this replica doesn't lead, or may read none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub followers: Option<Vec<FollowerView>>,
    /// Where the Services that follow can't be read.
    #[serde(default, rename = "followersNotice", skip_serializing_if = "Option::is_none")]
    pub followers_notice: Option<String>,
}

/// The answer of `/api/names`.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct NameListing {
    /// The name of the replica that answers.
    pub instance: String,
    /// How old the items are, and why; `None` while the API server tells each change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notice: Option<String>,
    #[serde(flatten)]
    pub page: NamePage,
    /// Without names, which objects haven't been read, if one of them may have the name of the filter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unread: Option<String>,
}

impl Status {
    fn instance(&self) -> Instance {
        Instance {
            version: env!("CARGO_PKG_VERSION"),
            identity: self.identity.clone(),
            started: self.history.started(),
            zones: self.zones.borrow().links.iter().map(|zone| to_presentation(&zone.origin)).collect(),
            target_namespace: self.facts.target_namespace.clone(),
            synced: self.facts.store.is_known(Input::Services),
            leads: self.election.leader.get() == 1,
            leader: self.leader.get(),
            cluster_objects: self.clusters.numbers(),
        }
    }

    /// Returns the links that a filter selects, with their history if the filter has the name of a Service.
    fn links(&self, filter: &LinkFilter) -> LinkListing {
        let mut items = self.facts.views(filter);
        if filter.service.is_some() {
            for link in &mut items {
                let key = ServiceKey::new(&link.namespace, &link.service);
                let mut events = self.history.events(&key);
                // The history records changes of the store, which doesn't know whether a target can be resolved.
                if let Some(newest) = events.last_mut().filter(|newest| newest.target == link.target) {
                    newest.state = link.state;
                }
                link.history = Some(events);
            }
        }
        LinkListing {
            instance: self.identity.clone(),
            notice: self.facts.notice(),
            unread: self.facts.unread_of_link(filter).filter(|_| items.is_empty()),
            items,
            followers: self.facts.followers(filter),
            followers_notice: self.facts.followers_notice(),
        }
    }

    fn names(&self, filter: &NameFilter) -> NameListing {
        let page = self.facts.names(filter);
        let name = filter.name.as_deref().filter(|_| page.items.is_empty());
        NameListing {
            instance: self.identity.clone(),
            notice: self.facts.notice(),
            unread: name.and_then(|name| self.facts.unread_of_name(name)),
            page,
        }
    }

    /// Returns the ETag of the links and the names at present.
    fn etag(&self) -> String {
        // The zones of the store determine the names of the links. After a reload of the Corefile, `self.zones` changes
        // before them.
        let mut facts = DefaultHasher::new();
        self.facts.store.zones().hash(&mut facts);
        (self.facts.version(), self.facts.notice()).hash(&mut facts);
        let started = self.history.started().as_nanosecond();
        format!("\"{started:x}-{:x}-{:x}\"", self.history.version(), facts.finish())
    }
}

/// Returns the router of the status page and of the status API.
pub fn router(status: Status) -> Router {
    let asset = |media_type: &'static str, text: &'static str| {
        get(move || async move { ([(header::CONTENT_TYPE, media_type)], text) })
    };
    let state = Shared { status: Arc::new(status), list_permit: Arc::new(Semaphore::new(1)) };
    Router::new()
        .route("/", asset("text/html; charset=utf-8", include_str!("page/index.html")))
        .route("/page.js", asset("text/javascript; charset=utf-8", include_str!("page/page.js")))
        .route("/page.css", asset("text/css; charset=utf-8", include_str!("page/page.css")))
        .route("/api/instance", get(instance))
        .route(LINKS_PATH, get(links))
        .route(NAMES_PATH, get(names))
        .with_state(state)
        .layer(from_fn(check_host))
        .layer(from_fn(with_headers))
}

#[derive(Clone)]
struct Shared {
    status: Arc<Status>,
    /// The permit to list links: one list at a time, because a list takes processor time and memory.
    list_permit: Arc<Semaphore>,
}

async fn instance(State(shared): State<Shared>) -> Response {
    json(&shared.status.instance())
}

async fn links(
    State(shared): State<Shared>,
    Query(filter): Query<LinkFilter>,
    headers: HeaderMap,
) -> Response {
    list(shared, &headers, move |status| json(&status.links(&filter))).await
}

async fn names(
    State(shared): State<Shared>,
    Query(filter): Query<NameFilter>,
    headers: HeaderMap,
) -> Response {
    list(shared, &headers, move |status| json(&status.names(&filter))).await
}

/// Returns a list, unless the client has it already, or the load balancers haven't been read.
async fn list(
    Shared { status, list_permit }: Shared,
    headers: &HeaderMap,
    list: impl FnOnce(&Status) -> Response + Send + 'static,
) -> Response {
    let store = &status.facts.store;
    if !store.is_known(Input::Services) {
        let reason = status.facts.findings.readiness.list.load_full().map(|why| format!(": {why}"));
        let note = store.fallback().map(|snapshot_links| format!("; DNS goes on, {snapshot_links}"));
        let why = format!("{NOT_READ}{}{}\n", reason.unwrap_or_default(), note.unwrap_or_default());
        return (StatusCode::SERVICE_UNAVAILABLE, why).into_response();
    }
    // Read before the list, so that the ETag is never newer than the list.
    let etag = status.etag();
    if headers.get(header::IF_NONE_MATCH).is_some_and(|known| known.as_bytes() == etag.as_bytes()) {
        return (StatusCode::NOT_MODIFIED, [(header::ETAG, etag)]).into_response();
    }
    match one_at_a_time(list_permit, move || list(&status)).await {
        Ok(mut answer) => {
            answer.headers_mut().extend(HeaderValue::from_str(&etag).map(|etag| (header::ETAG, etag)));
            answer
        }
        Err(panic) => {
            error!("the status API: {panic}");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

/// Returns the result of `list`, which runs after all earlier lists have ended. A list keeps the permit to its end,
/// even if the client disconnects.
///
/// # Errors
/// If `list` panics.
async fn one_at_a_time<T: Send + 'static>(
    list_permit: Arc<Semaphore>,
    list: impl FnOnce() -> T + Send + 'static,
) -> Result<T, JoinError> {
    // Fails only if the semaphore is closed, which never happens.
    let permit = list_permit.acquire_owned().await.ok();
    // A list of 10,000 links takes some 100 ms, which would block a thread of the async runtime.
    spawn_blocking(move || {
        let result = list();
        drop(permit);
        result
    })
    .await
}

fn json(value: &impl Serialize) -> Response {
    match serde_json::to_vec(value) {
        Ok(body) => ([(header::CONTENT_TYPE, JSON)], body).into_response(),
        Err(problem) => {
            error!("the status can't be written as JSON: {problem}");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

async fn with_headers(request: Request, next: Next) -> Response {
    let mut answer = next.run(request).await;
    let headers = HEADERS.map(|(name, value)| (name, HeaderValue::from_static(value)));
    answer.headers_mut().extend(headers);
    answer
}

/// Refuses requests for other hosts: a web page of another site whose name resolves to 127.0.0.1 (DNS rebinding) could
/// read the links otherwise.
async fn check_host(request: Request, next: Next) -> Response {
    let hosts: Vec<&HeaderValue> = request.headers().get_all(header::HOST).iter().collect();
    if let [host] = hosts[..]
        && host.to_str().is_ok_and(is_loopback)
    {
        return next.run(request).await;
    }
    (StatusCode::FORBIDDEN, "the Host header must be localhost or a loopback address\n").into_response()
}

/// Returns whether a Host header, with or without a port, names this machine.
fn is_loopback(host: &str) -> bool {
    let Ok(authority) = host.parse::<Authority>() else { return false };
    if authority.as_str().contains('@') {
        return false;
    }
    let name = authority.host();
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    name.eq_ignore_ascii_case("localhost")
        || address.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests;
