//! The objects of a control plane in its etcd, by etcd's JSON gateway, and etcd servers of their own.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use k8s_openapi::ByteString;
use nix::sys::signal::Signal;
use serde::Deserialize;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::EVENT_TIMEOUT;
use super::port::HeldPort;
use super::process::Process;
use super::programs::programs;

/// A revision of etcd: JSON has no integers of 64 bits, so they are texts.
pub type Revision = String;

/// Objects by their keys, such as `/registry/services/specs/default/web`.
pub type Objects = BTreeMap<String, Object>;

#[derive(Debug)]
pub struct Object {
    /// Empty if only keys were asked for.
    pub value: ByteString,
    pub revision: Revision,
}

/// etcd's default for the maximum number of changes in a transaction.
const MAX_CHANGES: usize = 128;

/// Returns all objects of a control plane.
///
/// # Errors
/// If etcd doesn't answer.
pub fn objects(socket: &Path, keys_only: bool) -> io::Result<Objects> {
    #[derive(Deserialize)]
    struct Range {
        #[serde(default)]
        kvs: Vec<KeyValue>,
    }
    #[derive(Deserialize)]
    struct KeyValue {
        key: ByteString,
        #[serde(default)]
        value: ByteString,
        mod_revision: Revision,
    }
    // The end of the range is the first key without the prefix `/registry/`.
    let range = json!({"key": bytes("/registry/"), "range_end": bytes("/registry0"), "keys_only": keys_only});
    let found: Range = serde_json::from_value(ask(socket, "range", &range)?)?;
    let object = |KeyValue { key, value, mod_revision }| {
        (String::from_utf8_lossy(&key.0).into_owned(), Object { value, revision: mod_revision })
    };
    Ok(found.kvs.into_iter().map(object).collect())
}

/// Writes objects, or deletes those without a value. Returns the revision of each change, in their order.
///
/// # Errors
/// If etcd doesn't answer, or refuses.
pub fn write(socket: &Path, changes: &[(String, Option<ByteString>)]) -> io::Result<Vec<Revision>> {
    let mut revisions = Vec::new();
    for changes in changes.chunks(MAX_CHANGES) {
        let operation = |(key, value): &(String, Option<ByteString>)| match value {
            Some(value) => json!({"request_put": {"key": bytes(key), "value": value}}),
            None => json!({"request_delete_range": {"key": bytes(key)}}),
        };
        let operations: Vec<_> = changes.iter().map(operation).collect();
        let answer = ask(socket, "txn", &json!({"success": operations}))?;
        let revision = answer["header"]["revision"].as_str().ok_or(io::ErrorKind::InvalidData)?;
        revisions.resize(revisions.len() + changes.len(), revision.to_owned());
    }
    Ok(revisions)
}

/// An etcd server on loopback. Dropping it stops it and removes its data.
#[derive(Debug)]
pub struct EtcdServer {
    process: Option<Process>,
    port: HeldPort,
    /// The arguments for TLS.
    tls: Vec<String>,
    data: TempDir,
}

impl EtcdServer {
    /// Starts a server by HTTP. Blocking.
    ///
    /// # Panics
    /// If it can't be started.
    pub fn start() -> Self {
        Self::with_tls(&[], tempfile::tempdir().unwrap())
    }

    /// Starts a server by HTTPS with these arguments and this directory for its data. Blocking.
    ///
    /// # Panics
    /// If it can't be started.
    pub fn with_tls(tls: &[String], data: TempDir) -> Self {
        let mut server = Self { process: None, port: HeldPort::take().unwrap(), tls: tls.to_vec(), data };
        server.run();
        server
    }

    /// Starts the server again, with the same port and data. Blocking.
    ///
    /// # Panics
    /// If it can't be started.
    pub fn run(&mut self) {
        let socket = self.socket();
        let _ = std::fs::remove_file(&socket);
        let mut etcd = Command::new(&programs().etcd);
        etcd.arg("--data-dir").arg(self.data.path().join("etcd")).args(&self.tls);
        etcd.arg(format!("--listen-client-urls={},unix://{}", self.url(), socket.display()));
        etcd.args(["--listen-peer-urls=http://127.0.0.1:0", "--advertise-client-urls=http://127.0.0.1:0"]);
        etcd.args(["--unsafe-no-fsync", "--log-level=warn", "--socket-reuse-port", "--socket-reuse-address"]);
        let log = std::fs::File::create(self.data.path().join("etcd.log")).unwrap();
        etcd.stdout(log.try_clone().unwrap()).stderr(log);
        let mut process = Process::spawn(etcd).expect("etcd can be started");
        let deadline = Instant::now() + EVENT_TIMEOUT;
        while call(&socket, "/v3/kv/range", &json!({"key": bytes("x")}), None).is_err_and(|error| {
            // With users, this is refused.
            !error.to_string().contains("HTTP/1.0 4")
        }) {
            let is_over = process.ended().is_some() || Instant::now() > deadline;
            let log = || std::fs::read_to_string(self.data.path().join("etcd.log"));
            assert!(!is_over, "etcd doesn't start: {}", log().unwrap_or_default());
            std::thread::sleep(Duration::from_millis(10));
        }
        self.process = Some(process);
    }

    pub fn kill(&mut self) {
        self.process = None;
    }

    pub fn signal(&mut self, signal: Signal) {
        self.process.as_mut().unwrap().signal(signal);
    }

    pub fn url(&self) -> String {
        format!("{}://{}", if self.tls.is_empty() { "http" } else { "https" }, self.port.local())
    }

    fn socket(&self) -> PathBuf {
        self.data.path().join("etcd.sock")
    }

    /// Sets the values of keys; `None` deletes a key.
    ///
    /// # Panics
    /// If etcd refuses.
    pub fn write(&self, changes: &[(&str, Option<&str>)]) {
        let changes = changes.iter().map(|(key, value)| ((*key).to_owned(), value.map(bytes)));
        write(&self.socket(), &changes.collect::<Vec<_>>()).unwrap();
    }

    /// Sets the value of a key with a new lease of some seconds.
    ///
    /// # Panics
    /// If etcd refuses.
    pub fn write_with_lease(&self, key: &str, value: &str, seconds: u32) {
        let lease = self.call("/v3/lease/grant", &json!({"TTL": seconds}), None);
        let pair = json!({"key": bytes(key), "value": bytes(value), "lease": lease["ID"]});
        self.call("/v3/kv/put", &pair, None);
    }

    /// Asks a question at a path such as `/v3/kv/range`, with the token of a user or without.
    ///
    /// # Panics
    /// If etcd refuses.
    pub fn call(&self, path: &str, question: &Value, token: Option<&str>) -> Value {
        call(&self.socket(), path, question, token).unwrap()
    }
}

/// Returns a text in Base64, as the gateway has it.
pub fn bytes(text: &str) -> ByteString {
    ByteString(text.as_bytes().to_vec())
}

fn ask(socket: &Path, what: &str, question: &Value) -> io::Result<Value> {
    call(socket, &format!("/v3/kv/{what}"), question, None)
}

fn call(socket: &Path, path: &str, question: &Value, token: Option<&str>) -> io::Result<Value> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(EVENT_TIMEOUT))?;
    let question = question.to_string();
    let length = question.len();
    // HTTP/1.0, so that the response isn't chunked.
    let token = token.map_or(String::new(), |token| format!("Authorization: {token}\r\n"));
    let head = format!("POST {path} HTTP/1.0\r\nHost: etcd\r\n{token}Content-Length: {length}\r\n\r\n");
    stream.write_all((head + &question).as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    match answer.split_once("\r\n\r\n") {
        Some((head, body)) if head.contains(" 200 OK") => Ok(serde_json::from_str(body)?),
        _ => Err(io::Error::other(format!("{path}: {answer}"))),
    }
}
