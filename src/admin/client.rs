//! Reads the status API of a running lb-linker.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode, header};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use super::api::{LINKS_PATH, LinkListing, NAMES_PATH, NOT_READ, NameListing};
use crate::links::LinkFilter;
use crate::links::names::NameFilter;
use crate::model::excerpt::sentence;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// The time for the request and the whole answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum length of an answer, in bytes: some 200,000 links.
const MAX_BODY: usize = 64 << 20;

/// A client for a path of the status API of a running lb-linker.
#[derive(Debug)]
pub struct InstanceClient {
    address: SocketAddr,
    /// The path that is read, with its parameters.
    path: String,
    /// The ETag of the last answer.
    etag: Option<String>,
}

/// The reason why an instance can't be read.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No connection could be opened: nothing listens at the address, or the attempt timed out.
    #[error("there is no lb-linker: {0}")]
    Unreachable(io::Error),
    /// The open connection failed, no answer came in time, or the answer isn't that of an lb-linker of this version.
    #[error("no answer of an lb-linker of this version: {0}")]
    UnexpectedAnswer(String),
    /// The load balancers haven't been read yet: the text of a 503.
    #[error("{0}")]
    NotReady(String),
}

impl ClientError {
    /// Returns whether the connection failed, but not by a timeout: nothing listens at the address.
    #[must_use]
    pub fn is_absent(&self) -> bool {
        matches!(self, Self::Unreachable(error) if error.kind() != io::ErrorKind::TimedOut)
    }
}

impl InstanceClient {
    /// Returns a client for the links that a filter selects.
    #[must_use]
    pub fn of_links(address: SocketAddr, filter: &LinkFilter) -> Self {
        let LinkFilter { namespace, service } = filter;
        Self::new(address, path(LINKS_PATH, &[("namespace", namespace), ("service", service)]))
    }

    /// Returns a client for the names that a filter selects.
    #[must_use]
    pub fn of_names(address: SocketAddr, filter: &NameFilter) -> Self {
        let NameFilter { name, namespace, search, after } = filter;
        let parameters = [("name", name), ("namespace", namespace), ("search", search), ("after", after)];
        Self::new(address, path(NAMES_PATH, &parameters))
    }

    fn new(address: SocketAddr, path: String) -> Self {
        Self { address, path, etag: None }
    }

    /// Asks for the links. Returns `None` if they haven't changed since the last call.
    ///
    /// # Errors
    /// If no lb-linker of this version answers, or it hasn't read the load balancers yet.
    pub async fn links(&mut self) -> Result<Option<LinkListing>, ClientError> {
        self.get().await
    }

    /// Asks for the names. Returns `None` if they haven't changed since the last call.
    ///
    /// # Errors
    /// If no lb-linker of this version answers, or it hasn't read the load balancers yet.
    pub async fn names(&mut self) -> Result<Option<NameListing>, ClientError> {
        self.get().await
    }

    async fn get<T: DeserializeOwned>(&mut self) -> Result<Option<T>, ClientError> {
        let stream = timeout(CONNECT_TIMEOUT, TcpStream::connect(self.address)).await;
        let stream = stream.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        let stream = stream.map_err(ClientError::Unreachable)?;
        match timeout(REQUEST_TIMEOUT, self.request(stream)).await {
            Ok(answer) => answer,
            Err(_) => Err(ClientError::UnexpectedAnswer(format!(
                "no answer within {} s",
                REQUEST_TIMEOUT.as_secs()
            ))),
        }
    }

    async fn request<T: DeserializeOwned>(&mut self, stream: TcpStream) -> Result<Option<T>, ClientError> {
        // The text of the error may quote the answer: `sentence` limits its length and escapes it.
        let foreign =
            |error: &dyn ToString| ClientError::UnexpectedAnswer(sentence(&error.to_string()).to_string());
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|error| foreign(&error))?;
        // A failure of the connection is reported by the request.
        let _connection = AbortOnDropHandle::new(tokio::spawn(connection));
        let mut request = Request::get(&self.path).header(header::HOST, self.address.to_string());
        if let Some(etag) = &self.etag {
            request = request.header(header::IF_NONE_MATCH, etag);
        }
        let request = request.body(Body::empty()).map_err(|error| foreign(&error))?;
        let answer = sender.send_request(request).await.map_err(|error| foreign(&error))?;
        let (head, body) = answer.into_parts();
        let body = to_bytes(Body::new(body), MAX_BODY).await.map_err(|error| foreign(&error))?;
        match head.status {
            StatusCode::NOT_MODIFIED if self.etag.is_some() => return Ok(None),
            StatusCode::OK => {}
            StatusCode::SERVICE_UNAVAILABLE if body.starts_with(NOT_READ.as_bytes()) => {
                return Err(ClientError::NotReady(
                    sentence(String::from_utf8_lossy(&body).trim_end()).to_string(),
                ));
            }
            status => return Err(foreign(&format_args!("status {status} for {}", self.path))),
        }
        let listing = serde_json::from_slice(&body).map_err(|error| foreign(&error))?;
        self.etag = head.headers.get(header::ETAG).and_then(|etag| etag.to_str().ok()).map(ToOwned::to_owned);
        Ok(Some(listing))
    }
}

/// Returns a path with the parameters that have values.
fn path(path: &str, parameters: &[(&str, &Option<String>)]) -> String {
    let mut path = path.to_owned();
    let given = parameters.iter().filter_map(|(name, value)| Some((name, value.as_ref()?)));
    for (number, (name, value)) in given.enumerate() {
        let value: String = value.bytes().map(escaped).collect();
        path += &format!("{}{name}={value}", if number == 0 { '?' } else { '&' });
    }
    path
}

fn escaped(byte: u8) -> String {
    if byte.is_ascii_alphanumeric() || b"-._".contains(&byte) {
        char::from(byte).to_string()
    } else {
        format!("%{byte:02X}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filter_becomes_escaped_parameters() {
        let path = |namespace: Option<&str>, service: Option<&str>| {
            let (namespace, service) = (namespace.map(str::to_owned), service.map(str::to_owned));
            let address = SocketAddr::from(([127, 0, 0, 1], 1));
            InstanceClient::of_links(address, &LinkFilter { namespace, service }).path
        };
        assert_eq!(path(None, None), "/api/links");
        assert_eq!(path(Some("shop"), Some("web")), "/api/links?namespace=shop&service=web");
        assert_eq!(path(None, Some("a&b=c/ö")), "/api/links?service=a%26b%3Dc%2F%C3%B6");
    }
}
