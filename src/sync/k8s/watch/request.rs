//! The requests of lists and watches.

use std::io;
use std::time::Duration;

use kube::api::{ListParams, WatchParams};
use kube::core::Request;
use kube::{Client, Resource};
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use super::wire::{Events, Page, PageError};

/// Time after which the API server ends a watch, in seconds.
pub(super) const WATCH_SECONDS: u32 = 50;
/// Timeout for a list of one object, including the response body.
const SINGLE_LIST_TIMEOUT: Duration = Duration::from_secs(10);

/// The selection of objects to list and watch.
#[derive(Clone, Debug, Default)]
pub struct RequestQuery {
    /// The namespace; `None` for all.
    pub namespace: Option<String>,
    /// The version of the API, instead of the type's.
    pub version: Option<&'static str>,
    pub fields: String,
    pub labels: String,
    /// Whether to request only the metadata of objects.
    pub metadata_only: bool,
    /// The longest pause before the first list is requested again after a refusal (401, 403, 404).
    pub first_list_pause: Option<Duration>,
}

impl RequestQuery {
    pub(crate) fn named(namespace: &str, name: &str) -> Self {
        let fields = format!("metadata.name={name}");
        Self { namespace: Some(namespace.to_owned()), fields, ..Self::default() }
    }

    /// Returns the path of the objects of a type.
    pub(super) fn path<K: Resource<DynamicType = ()>>(&self) -> String {
        let path = K::url_path(&(), self.namespace.as_deref());
        let prefix = |version: &str| format!("/apis/{}/{version}/", K::group(&()));
        match (self.version, path.strip_prefix(&prefix(&K::version(&())))) {
            (Some(version), Some(rest)) => prefix(version) + rest,
            _ => path,
        }
    }

    pub(super) fn list(&self, limit: u32, token: Option<&str>) -> ListParams {
        let mut params = ListParams::default().limit(limit);
        if !self.fields.is_empty() {
            params = params.fields(&self.fields);
        }
        if !self.labels.is_empty() {
            params = params.labels(&self.labels);
        }
        token.map_or(params.clone(), |token| params.continue_token(token))
    }

    pub(super) fn watch(&self) -> WatchParams {
        WatchParams::default().fields(&self.fields).labels(&self.labels).timeout(WATCH_SECONDS)
    }

    pub(super) fn list_request(
        &self,
        request: &Request,
        limit: u32,
        token: Option<&str>,
    ) -> kube::Result<HttpRequest> {
        self.request_of(request, &self.list(limit, token))
    }

    pub(super) fn request_of(&self, request: &Request, params: &ListParams) -> kube::Result<HttpRequest> {
        let request = if self.metadata_only { request.list_metadata(params) } else { request.list(params) };
        request.map_err(kube::Error::BuildRequest)
    }

    pub(super) fn watch_request(
        &self,
        request: &Request,
        params: &WatchParams,
        version: &str,
    ) -> kube::Result<HttpRequest> {
        let request = if self.metadata_only {
            request.watch_metadata(params, version)
        } else {
            request.watch(params, version)
        };
        request.map_err(kube::Error::BuildRequest)
    }
}

pub(super) type HttpRequest = axum::http::Request<Vec<u8>>;

pub(super) async fn open<K: DeserializeOwned>(
    client: Client,
    request: kube::Result<HttpRequest>,
) -> kube::Result<Events<K>> {
    Ok(Events::new(client.request_stream(request?).await?))
}

pub(super) async fn read_page<K: DeserializeOwned>(
    client: Client,
    request: kube::Result<HttpRequest>,
    limit: u32,
) -> Result<(Page<K>, usize), PageError> {
    Page::read(client.request_stream(request?).await?, limit).await
}

/// Reads a list of at most one object, with a timeout.
pub(super) async fn read_one<K: DeserializeOwned>(
    client: Client,
    request: kube::Result<HttpRequest>,
) -> Result<(Page<K>, usize), PageError> {
    let answer = timeout(SINGLE_LIST_TIMEOUT, read_page(client, request, 1)).await;
    answer.unwrap_or_else(|_| {
        Err(PageError::Kube(broken("the list of one object is incomplete after the timeout")))
    })
}

pub(super) fn broken(what: &'static str) -> kube::Error {
    kube::Error::ReadEvents(io::Error::new(io::ErrorKind::UnexpectedEof, what))
}
