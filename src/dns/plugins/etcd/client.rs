//! Asks an etcd server, by the JSON of its gRPC gateway over HTTP/1.1.

use std::fmt;
use std::io;
use std::time::Duration;

use axum::http::{Request, StatusCode, header};
use data_encoding::BASE64;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use secrecy::{ExposeSecret, SecretString};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_util::either::Either;
use tokio_util::task::AbortOnDropHandle;

use super::gateway::{LeaseTime, Page, Refusal, Token, WatchAnswer, WatchLine};
use super::index::{KeyError, KeyRange};
use crate::model::excerpt::sentence;
use crate::model::tls_error;

/// The default port of etcd.
pub const PORT: u16 = 2379;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The time for a request and the whole answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum size of an answer, and of a line of a watch, in bytes.
const MAX_ANSWER: usize = 8 << 20;
/// When a silent peer is asked whether it is there, how often then, and how many times.
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(10), Duration::from_secs(5), 3);

/// Codes of gRPC.
const INVALID_ARGUMENT: u32 = 3;
const PERMISSION_DENIED: u32 = 7;
const OUT_OF_RANGE: u32 = 11;
/// The token isn't valid any more.
pub const UNAUTHENTICATED: u32 = 16;

/// The address of an etcd server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    pub is_tls: bool,
    /// A name or an address, without brackets.
    pub host: String,
    pub port: u16,
}

/// Name and password of a user.
#[derive(Clone, Debug)]
pub struct Credentials {
    pub user: String,
    pub password: SecretString,
}

/// Why etcd doesn't answer as it should.
#[derive(Debug, thiserror::Error)]
pub enum EtcdError {
    #[error("no connection: {}", .0)]
    Connect(io::Error),
    #[error("no TLS: {}", tls_error::explain(.0).unwrap_or_else(|| sentence(&.0.to_string()).to_string()))]
    Tls(io::Error),
    #[error("the connection has failed: {}", sentence(&.0.to_string()))]
    Connection(#[from] hyper::Error),
    #[error("no answer within {} s", .0.as_secs())]
    Silent(Duration),
    #[error("it has ended the watch")]
    Ended,
    #[error("an answer has more than {} MiB", MAX_ANSWER >> 20)]
    TooLong,
    #[error("its answer isn't that of etcd's gateway (etcd 3.4 or newer): {}", sentence(.0))]
    Foreign(String),
    #[error("{}", refusal_text(.0))]
    Refused(Refusal),
    #[error("{0}")]
    Keys(#[from] KeyError),
    /// The changes after the last one that is known aren't kept any more.
    #[error("the changes that are missing were compacted")]
    Compacted,
    #[error("its state is older than what it had, or that of another cluster")]
    Rewound,
    #[error("the watch doesn't send all changes")]
    Missed,
}

fn refusal_text(Refusal { code, message }: &Refusal) -> String {
    let text = sentence(message);
    let remedy = match *code {
        PERMISSION_DENIED => {
            ": the user of \"credentials\" needs the permission to read all keys below the path"
        }
        INVALID_ARGUMENT if message.contains("user name is empty") => {
            ": it wants a user: add the option \"credentials USERNAME PASSWORD\""
        }
        INVALID_ARGUMENT if message.contains("authentication failed") => ": see the option \"credentials\"",
        _ => "",
    };
    // The end of a watch has a reason alone.
    let code = if *code == 0 { String::new() } else { format!(" ({code})") };
    format!("it refuses{code}: {text}{remedy}")
}

/// A connection to a server.
pub struct Connection {
    sender: http1::SendRequest<Full<Bytes>>,
    host: String,
    _driver: AbortOnDropHandle<()>,
}

/// A watch of the keys.
pub struct Watch {
    body: Incoming,
    lines: Lines,
    _connection: Connection,
}

/// The lines of a stream.
#[derive(Debug, Default)]
pub struct Lines {
    buffer: Vec<u8>,
    /// Where the next line begins.
    begin: usize,
    /// Where the end of this line is searched for.
    searched: usize,
}

// === impl Endpoint ===

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scheme, port) = (if self.is_tls { "https" } else { "http" }, self.port);
        if self.host.contains(':') {
            write!(f, "{scheme}://[{}]:{port}", self.host)
        } else {
            write!(f, "{scheme}://{}:{port}", self.host)
        }
    }
}

// === impl EtcdError ===

impl EtcdError {
    /// Returns whether the keys have to be listed again, from the same server.
    pub fn asks_for_list(&self) -> bool {
        matches!(self, Self::Compacted | Self::Rewound | Self::Missed)
    }
}

impl From<Refusal> for EtcdError {
    fn from(refusal: Refusal) -> Self {
        match refusal.code {
            OUT_OF_RANGE if refusal.message.contains("compacted") => Self::Compacted,
            _ => Self::Refused(refusal),
        }
    }
}

impl From<serde_json::Error> for EtcdError {
    fn from(error: serde_json::Error) -> Self {
        Self::Foreign(error.to_string())
    }
}

// === impl Connection ===

impl Connection {
    /// Connects to a server; `tls` is there for servers with TLS.
    pub async fn open(endpoint: &Endpoint, tls: Option<&TlsConnector>) -> Result<Self, EtcdError> {
        let opening = async {
            let stream =
                TcpStream::connect((&*endpoint.host, endpoint.port)).await.map_err(EtcdError::Connect)?;
            let (time, interval, retries) = KEEPALIVE;
            let keepalive = TcpKeepalive::new().with_time(time).with_interval(interval).with_retries(retries);
            SockRef::from(&stream).set_tcp_keepalive(&keepalive).map_err(EtcdError::Connect)?;
            stream.set_nodelay(true).map_err(EtcdError::Connect)?;
            let stream = match tls.filter(|_| endpoint.is_tls) {
                None => Either::Left(stream),
                Some(tls) => {
                    let name = ServerName::try_from(endpoint.host.clone());
                    let name = name.map_err(|error| EtcdError::Tls(io::Error::other(error)))?;
                    Either::Right(tls.connect(name, stream).await.map_err(EtcdError::Tls)?)
                }
            };
            Ok::<_, EtcdError>(http1::handshake(TokioIo::new(stream)).await?)
        };
        let opened =
            timeout(CONNECT_TIMEOUT, opening).await.map_err(|_| EtcdError::Silent(CONNECT_TIMEOUT))?;
        let (sender, connection) = opened?;
        // A failure of the connection is reported by the request.
        let driver = tokio::spawn(async move { drop(connection.await) });
        Ok(Self { sender, host: authority(endpoint), _driver: AbortOnDropHandle::new(driver) })
    }

    /// Sends a request, and returns the body of the answer if etcd accepts it.
    async fn post(&mut self, path: &str, body: &Value, token: Option<&str>) -> Result<Incoming, EtcdError> {
        let foreign = |error: &dyn fmt::Display| EtcdError::Foreign(error.to_string());
        let mut request = Request::post(path)
            .header(header::HOST, &self.host)
            .header(header::CONTENT_TYPE, "application/json")
            // A server that has lost its cluster ends the watch.
            .header("Grpc-Metadata-hasleader", "true");
        if let Some(token) = token {
            request = request.header(header::AUTHORIZATION, token);
        }
        let request = request.body(Full::from(body.to_string())).map_err(|error| foreign(&error))?;
        let answer = self.sender.send_request(request).await?;
        let (head, body) = answer.into_parts();
        if head.status == StatusCode::OK {
            return Ok(body);
        }
        let text = collect(body).await?;
        match serde_json::from_slice::<Refusal>(&text) {
            Ok(refusal) if refusal.code != 0 => Err(refusal.into()),
            _ => Err(foreign(&format_args!("status {}, {}", head.status, String::from_utf8_lossy(&text)))),
        }
    }

    async fn ask<T: DeserializeOwned>(
        &mut self,
        path: &str,
        body: &Value,
        token: Option<&str>,
    ) -> Result<T, EtcdError> {
        let asking = async {
            let body = self.post(path, body, token).await?;
            Ok(serde_json::from_slice(&collect(body).await?)?)
        };
        timeout(REQUEST_TIMEOUT, asking).await.map_err(|_| EtcdError::Silent(REQUEST_TIMEOUT))?
    }

    /// Returns the token of a user.
    pub async fn token(&mut self, credentials: &Credentials) -> Result<String, EtcdError> {
        let body = json!({"name": credentials.user, "password": credentials.password.expose_secret()});
        Ok(self.ask::<Token>("/v3/auth/authenticate", &body, None).await?.token)
    }

    /// Returns at most `limit` keys of the range from `start` on, as they are at a revision; 0 is the present one.
    pub async fn page(
        &mut self,
        range: &KeyRange,
        start: &[u8],
        (limit, keys_only): (usize, bool),
        revision: u64,
        token: Option<&str>,
    ) -> Result<Page, EtcdError> {
        let (_, end) = range.bounds();
        let body = json!({
            "key": BASE64.encode(start), "range_end": BASE64.encode(end), "limit": limit, "keys_only": keys_only,
            "revision": revision.to_string(),
        });
        self.ask("/v3/kv/range", &body, token).await
    }

    /// Returns the number of keys, without them.
    pub async fn count(&mut self, range: &KeyRange, token: Option<&str>) -> Result<Page, EtcdError> {
        let (start, end) = range.bounds();
        let body = json!({"key": BASE64.encode(start), "range_end": BASE64.encode(end), "count_only": true});
        self.ask("/v3/kv/range", &body, token).await
    }

    pub async fn lease(&mut self, lease: i64, token: Option<&str>) -> Result<LeaseTime, EtcdError> {
        self.ask("/v3/lease/timetolive", &json!({"ID": lease.to_string()}), token).await
    }

    /// Begins to watch the keys from a revision on. Also returns the first answer.
    pub async fn watch(
        mut self,
        range: &KeyRange,
        revision: u64,
        token: Option<&str>,
    ) -> Result<(Watch, WatchAnswer), EtcdError> {
        let (start, end) = range.bounds();
        let body = json!({"create_request": {
            "key": BASE64.encode(start), "range_end": BASE64.encode(end), "start_revision": revision.to_string(),
            "progress_notify": true, "fragment": true,
        }});
        let beginning = async {
            let body = self.post("/v3/watch", &body, token).await?;
            let mut watch = Watch { body, lines: Lines::default(), _connection: self };
            let first = watch.next().await?;
            Ok((watch, first))
        };
        timeout(REQUEST_TIMEOUT, beginning).await.map_err(|_| EtcdError::Silent(REQUEST_TIMEOUT))?
    }
}

/// Returns the host and port for the header.
fn authority(endpoint: &Endpoint) -> String {
    let text = endpoint.to_string();
    text.split_once("://").map_or(String::new(), |(_, authority)| authority.to_owned())
}

async fn collect(body: Incoming) -> Result<Bytes, EtcdError> {
    match Limited::new(body, MAX_ANSWER).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(EtcdError::TooLong),
        Err(error) => match error.downcast::<hyper::Error>() {
            Ok(error) => Err((*error).into()),
            Err(error) => Err(EtcdError::Foreign(error.to_string())),
        },
    }
}

// === impl Watch ===

impl Watch {
    /// Returns the next answer.
    pub async fn next(&mut self) -> Result<WatchAnswer, EtcdError> {
        loop {
            if let Some(line) = self.lines.next() {
                return match WatchLine::parse(&line)? {
                    WatchLine::Result(answer) if answer.canceled && answer.compact_revision > 0 => {
                        Err(EtcdError::Compacted)
                    }
                    WatchLine::Result(answer) if answer.canceled => {
                        Err(EtcdError::Refused(Refusal { code: 0, message: answer.cancel_reason }))
                    }
                    WatchLine::Result(answer) => Ok(answer),
                    WatchLine::Error(refusal) => Err(refusal.into()),
                };
            }
            let frame = self.body.frame().await.ok_or(EtcdError::Ended)??;
            if let Ok(bytes) = frame.into_data() {
                self.lines.add(&bytes)?;
            }
        }
    }
}

// === impl Lines ===

impl Lines {
    /// Adds bytes.
    ///
    /// # Errors
    /// If a line is too long.
    pub fn add(&mut self, bytes: &[u8]) -> Result<(), EtcdError> {
        if self.begin > 0 {
            self.buffer = self.buffer.split_off(self.begin);
            self.searched -= std::mem::take(&mut self.begin);
        }
        if self.buffer.len() + bytes.len() > MAX_ANSWER {
            return Err(EtcdError::TooLong);
        }
        self.buffer.extend(bytes);
        Ok(())
    }
}

impl Iterator for Lines {
    type Item = Vec<u8>;

    /// Returns the next whole line, but no empty one.
    fn next(&mut self) -> Option<Vec<u8>> {
        loop {
            let Some(end) = self.buffer[self.searched..].iter().position(|byte| *byte == b'\n') else {
                self.searched = self.buffer.len();
                return None;
            };
            self.searched += end + 1;
            let begin = std::mem::replace(&mut self.begin, self.searched);
            let line = &self.buffer[begin..self.searched];
            if !line.trim_ascii().is_empty() {
                return Some(line.to_vec());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_stream_are_found_in_any_pieces() {
        let mut lines = Lines::default();
        for (piece, expected) in
            [("a", &[][..]), ("b\n\nc\nd", &["ab\n", "c\n"]), ("", &[]), ("\n", &["d\n"]), ("e\n", &["e\n"])]
        {
            lines.add(piece.as_bytes()).unwrap();
            let found: Vec<String> = lines.by_ref().map(|line| String::from_utf8(line).unwrap()).collect();
            assert_eq!(found, expected, "{piece:?}");
        }
        let many = b"\n".repeat(MAX_ANSWER);
        for _ in 0..2 {
            lines.add(&many).unwrap();
            assert_eq!(lines.next(), None);
        }
        lines.add(&b"{\n".repeat(MAX_ANSWER / 2)).unwrap();
        assert_eq!(lines.by_ref().count(), MAX_ANSWER / 2);
        lines.add(&b"x".repeat(MAX_ANSWER)).unwrap();
        assert!(matches!(lines.add(b"x"), Err(EtcdError::TooLong)));
    }
}
