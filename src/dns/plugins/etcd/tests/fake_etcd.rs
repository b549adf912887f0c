//! A server with the part of etcd's gateway that the plugin uses, and with faults.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use data_encoding::BASE64;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// What a question gets instead of its answer.
#[derive(Clone, Debug)]
pub(super) enum Fault {
    /// This body.
    Body(String),
    /// This status and body.
    Status(u16, String),
    /// For a watch: these lines, and then no more.
    Lines(String),
    Silence,
    Close,
}

#[derive(Debug, Default)]
struct State {
    keys: BTreeMap<String, (String, u64)>,
    revision: u64,
    /// Lines of watches, with their revisions.
    changes: Vec<(u64, String)>,
    /// The faults of paths, such as `/v3/watch`.
    faults: BTreeMap<String, Fault>,
    /// The paths and bodies of all questions.
    asked: Vec<(String, Value)>,
}

pub(super) struct FakeEtcd {
    pub(super) address: SocketAddr,
    state: Arc<Mutex<State>>,
    /// The number of changes, and how often watches were closed.
    changed: watch::Sender<(u64, u64)>,
    _tasks: JoinSet<()>,
}

impl FakeEtcd {
    pub(super) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(Mutex::new(State { revision: 1, ..State::default() }));
        let changed = watch::Sender::new((0, 0));
        let mut tasks = JoinSet::new();
        let (shared, changes) = (Arc::clone(&state), changed.clone());
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                connections.spawn(serve(stream, Arc::clone(&shared), changes.subscribe()));
            }
        });
        Self { address, state, changed, _tasks: tasks }
    }

    /// Returns the lines of the plugin, for the zone `z`.
    pub(super) fn lines(&self) -> String {
        format!("etcd z {{\nendpoint http://{}\n}}", self.address)
    }

    /// Sets a key without telling watches.
    pub(super) fn put_silently(&self, key: &str, value: &str) -> u64 {
        let mut state = self.state.lock();
        state.revision += 1;
        let revision = state.revision;
        state.keys.insert(key.to_owned(), (value.to_owned(), revision));
        revision
    }

    pub(super) fn put(&self, key: &str, value: &str) {
        let revision = self.put_silently(key, value);
        self.announce(revision, &json!({"kv": kv(key, value, revision)}));
    }

    pub(super) fn delete(&self, key: &str) {
        let mut state = self.state.lock();
        state.revision += 1;
        state.keys.remove(key);
        let revision = state.revision;
        drop(state);
        self.announce(revision, &json!({"type": "DELETE", "kv": kv(key, "", revision)}));
    }

    fn announce(&self, revision: u64, event: &Value) {
        self.send_line(
            revision,
            &json!({"result": {"header": header(revision), "events": [event]}}).to_string(),
        );
    }

    /// Sends a line to all watches from before a revision.
    pub(super) fn send_line(&self, revision: u64, line: &str) {
        self.state.lock().changes.push((revision, line.to_owned()));
        self.changed.send_modify(|(changes, _)| *changes += 1);
    }

    /// Forgets all changes, so that watches from earlier revisions end.
    pub(super) fn compact(&self) {
        let mut state = self.state.lock();
        state.revision += 1;
        state.changes.clear();
    }

    /// Sets the revision, as a restored backup does.
    pub(super) fn set_revision(&self, revision: u64) {
        let mut state = self.state.lock();
        state.revision = revision;
        state.changes.retain(|(changed, _)| *changed <= revision);
    }

    /// Closes the connections of all watches.
    pub(super) fn close_watches(&self) {
        self.changed.send_modify(|(_, closed)| *closed += 1);
    }

    pub(super) fn set_fault(&self, path: &str, fault: Option<Fault>) {
        let mut state = self.state.lock();
        match fault {
            Some(fault) => state.faults.insert(path.to_owned(), fault),
            None => state.faults.remove(path),
        };
    }

    /// Returns how often the keys were listed.
    pub(super) fn lists(&self) -> usize {
        let asked = self.asked("/v3/kv/range");
        asked.iter().filter(|body| body["count_only"] != true).count()
    }

    /// Returns the bodies of the questions at a path so far.
    pub(super) fn asked(&self, path: &str) -> Vec<Value> {
        let asked = self.state.lock();
        asked.asked.iter().filter(|(known, _)| known == path).map(|(_, body)| body.clone()).collect()
    }
}

pub(super) fn header(revision: u64) -> Value {
    json!({"cluster_id": "14841639068965178418", "revision": revision.to_string()})
}

pub(super) fn kv(key: &str, value: &str, revision: u64) -> Value {
    json!({"key": BASE64.encode(key.as_bytes()), "value": BASE64.encode(value.as_bytes()), "mod_revision": revision.to_string()})
}

fn decoded(value: &Value) -> String {
    String::from_utf8(BASE64.decode(value.as_str().unwrap_or_default().as_bytes()).unwrap()).unwrap()
}

async fn serve(stream: TcpStream, state: Arc<Mutex<State>>, mut changed: watch::Receiver<(u64, u64)>) {
    let mut stream = BufReader::new(stream);
    while let Some((path, body)) = request(&mut stream).await {
        state.lock().asked.push((path.clone(), body.clone()));
        let fault = state.lock().faults.get(&path).cloned();
        let (status, text) = match fault {
            Some(Fault::Close) => return,
            Some(Fault::Silence) => return std::future::pending().await,
            Some(Fault::Status(status, text)) => (status, text),
            Some(Fault::Body(text)) => (200, text),
            Some(Fault::Lines(lines)) => {
                let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n";
                let _ = stream.write_all((head.to_owned() + &lines).as_bytes()).await;
                return std::future::pending().await;
            }
            None if path == "/v3/watch" => return send_changes(stream, &state, &mut changed, &body).await,
            None => (200, answer(&state.lock(), &path, &body).to_string()),
        };
        let head = format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\n\r\n", text.len());
        if stream.write_all((head + &text).as_bytes()).await.is_err() {
            return;
        }
    }
}

/// Reads a request, and returns its path and body.
async fn request(stream: &mut BufReader<TcpStream>) -> Option<(String, Value)> {
    let (mut path, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).await.ok()? == 0 {
            return None;
        }
        let line = line.trim_end().to_ascii_lowercase();
        if let Some(post) = line.strip_prefix("post ") {
            path = post.split(' ').next()?.to_owned();
        } else if let Some(number) = line.strip_prefix("content-length: ") {
            length = number.parse().ok()?;
        } else if line.is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.ok()?;
    Some((path, serde_json::from_slice(&body).ok()?))
}

fn answer(state: &State, path: &str, body: &Value) -> Value {
    if path != "/v3/kv/range" {
        return json!({"header": header(state.revision), "token": "secret", "TTL": "50", "grantedTTL": "60"});
    }
    let (start, end) = (decoded(&body["key"]), decoded(&body["range_end"]));
    let limit = usize::try_from(body["limit"].as_u64().unwrap_or_default()).unwrap();
    let all: Vec<_> = state.keys.range(start..end).collect();
    if body["count_only"] == true {
        return json!({"header": header(state.revision), "count": all.len().to_string()});
    }
    let value = |value: &str| if body["keys_only"] == true { String::new() } else { value.to_owned() };
    let kvs: Vec<Value> =
        all.iter().take(limit).map(|(key, (text, revision))| kv(key, &value(text), *revision)).collect();
    json!({"header": header(state.revision), "kvs": kvs, "more": all.len() > limit, "count": all.len().to_string()})
}

async fn send_changes(
    mut stream: BufReader<TcpStream>,
    state: &Mutex<State>,
    changed: &mut watch::Receiver<(u64, u64)>,
    body: &Value,
) {
    let start: u64 = body["create_request"]["start_revision"].as_str().unwrap().parse().unwrap();
    let revision = state.lock().revision;
    let mut text = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n".to_owned();
    text += &json!({"result": {"header": header(revision), "created": true}}).to_string();
    text += "\n";
    let (_, closed) = *changed.borrow_and_update();
    let (mut sent, is_compacted) = {
        let state = state.lock();
        let oldest = state.changes.first().map(|(revision, _)| *revision);
        (0, start <= revision && oldest.is_none_or(|oldest| oldest > start))
    };
    if is_compacted {
        let end = json!({"result": {"header": header(revision), "canceled": true, "compact_revision": revision.to_string()}});
        let _ = stream.write_all((text + &end.to_string() + "\n").as_bytes()).await;
        return std::future::pending().await;
    }
    loop {
        {
            let state = state.lock();
            let new = state.changes.iter().skip(sent).filter(|(revision, _)| *revision >= start);
            text.extend(new.map(|(_, line)| line.clone() + "\n"));
            sent = state.changes.len();
        }
        if stream.write_all(text.as_bytes()).await.is_err() || changed.changed().await.is_err() {
            return;
        }
        text.clear();
        if changed.borrow_and_update().1 != closed {
            return;
        }
    }
}
