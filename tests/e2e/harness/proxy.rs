//! A real API server behind a proxy that injects faults.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tempfile::NamedTempFile;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::control_plane::ControlPlane;
use super::process::Process;

#[derive(Clone, Debug)]
pub enum ApiFault {
    /// Forwards the request and the response unchanged.
    Pass,
    /// Answers with this status and `reason`, without forwarding the request.
    Answer(u16, &'static str),
    /// Answers with 429 and plain text, as API Priority and Fairness does, with the header Retry-After if it is given.
    Throttle(Option<u32>),
    /// Forwards the request after this time.
    Late(Duration),
    /// Forwards the request, and the response after this time.
    LateAnswer(Duration),
    /// Forwards the request and drops the response.
    LoseAnswer,
    /// Replaces bytes in the response by other bytes of the same length.
    Garble(&'static [u8], &'static [u8]),
}

/// Decides about each request by its first line: `GET /api/v1/… HTTP/1.1`.
pub type ApiFaultInjector = Arc<dyn Fn(&str) -> ApiFault + Send + Sync>;

/// A proxy in front of a real API server. It stops on drop.
pub struct FaultyApi {
    _kubectl: Process,
    _tasks: JoinSet<()>,
    kubeconfig: NamedTempFile,
    /// Closes the open connections.
    end: watch::Sender<()>,
}

impl FaultyApi {
    /// Starts the proxy. Its clients have all permissions without credentials.
    pub async fn start(plane: &ControlPlane, injector: ApiFaultInjector) -> Self {
        // kubectl uses TLS to the API server, and plain HTTP to this proxy.
        let mut command = plane.kubectl_command();
        command.args(["proxy", "--port=0"]).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut kubectl = Process::spawn(command).unwrap();
        let mut line = String::new();
        BufReader::new(kubectl.stdout().unwrap()).read_line(&mut line).unwrap();
        let api_server: SocketAddr = line.trim().rsplit(' ').next().unwrap().parse().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut tasks = JoinSet::new();
        let end = watch::Sender::new(());
        let ends = end.subscribe();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (client, _) = listener.accept().await.unwrap();
                let (mut ends, injector) = (ends.clone(), Arc::clone(&injector));
                ends.mark_unchanged();
                connections.spawn(async move {
                    tokio::select! {
                        () = serve(client, api_server, injector) => {}
                        _ = ends.changed() => {}
                    }
                });
            }
        });
        let kubeconfig = NamedTempFile::new().unwrap();
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "faulty",
            "clusters": [{"name": "faulty", "cluster": {"server": format!("http://{address}")}}],
            "users": [{"name": "nobody", "user": {}}],
            "contexts": [{"name": "faulty", "context": {"cluster": "faulty", "user": "nobody"}}],
        });
        std::fs::write(kubeconfig.path(), config.to_string()).unwrap();
        Self { _kubectl: kubectl, _tasks: tasks, kubeconfig, end }
    }

    /// Closes all connections, including watches.
    pub fn disconnect(&self) {
        self.end.send_replace(());
    }

    pub fn kubeconfig(&self) -> &str {
        self.kubeconfig.path().to_str().unwrap()
    }
}

/// Serves one request; the client has to reconnect for the next.
async fn serve(mut client: TcpStream, api_server: SocketAddr, injector: ApiFaultInjector) {
    let Some(request) = read_request(&mut client).await else { return };
    let line = String::from_utf8_lossy(&request[..request.iter().position(|byte| *byte == b'\r').unwrap()]);
    let fault = injector(&line);
    if let ApiFault::Answer(code, reason) = fault {
        let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code,
            "reason": reason, "message": format!("{reason}, says the test")});
        let body = status.to_string();
        let head = format!(
            "HTTP/1.1 {code} Faulty\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            body.len()
        );
        drop(client.write_all(&[head.as_bytes(), body.as_bytes()].concat()).await);
        return;
    }
    if let ApiFault::Throttle(seconds) = fault {
        let retry_after = seconds.map(|seconds| format!("Retry-After: {seconds}\r\n")).unwrap_or_default();
        let body = "Too many requests, please try again later.\n";
        let answer = format!(
            "HTTP/1.1 429 Too Many Requests\r\nContent-Type: text/plain; charset=utf-8\r\n{retry_after}Content-Length: \
             {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        );
        drop(client.write_all(answer.as_bytes()).await);
        return;
    }
    if let ApiFault::Late(delay) = fault {
        tokio::time::sleep(delay).await;
    }
    let mut server = TcpStream::connect(api_server).await.unwrap();
    let end = request.windows(2).position(|bytes| bytes == b"\r\n").unwrap() + 2;
    let closing = [&request[..end], b"Connection: close\r\n", &request[end..]].concat();
    if server.write_all(&closing).await.is_err() {
        return;
    }
    if let ApiFault::LateAnswer(delay) = fault {
        tokio::time::sleep(delay).await;
    }
    let (mut held, mut buffer) = (Vec::new(), vec![0; 65536]);
    while let Ok(read @ 1..) = server.read(&mut buffer).await {
        held.extend_from_slice(&buffer[..read]);
        let kept = match fault {
            ApiFault::LoseAnswer => {
                held.clear();
                0
            }
            ApiFault::Garble(from, to) => garble(&mut held, from, to),
            ApiFault::Pass
            | ApiFault::Late(_)
            | ApiFault::LateAnswer(_)
            | ApiFault::Throttle(_)
            | ApiFault::Answer(..) => 0,
        };
        let rest = held.split_off(held.len() - kept);
        if client.write_all(&held).await.is_err() {
            return;
        }
        held = rest;
    }
}

/// Reads a request with its body.
async fn read_request(client: &mut TcpStream) -> Option<Vec<u8>> {
    let mut request = Vec::new();
    let head = loop {
        let mut buffer = [0; 4096];
        let read = client.read(&mut buffer).await.ok().filter(|read| *read > 0)?;
        request.extend_from_slice(&buffer[..read]);
        if let Some(end) = request.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
            break end + 4;
        }
    };
    let headers = String::from_utf8_lossy(&request[..head]).to_ascii_lowercase();
    let length = headers.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok());
    let missing = (head + length.unwrap_or(0)).saturating_sub(request.len());
    let mut body = vec![0; missing];
    client.read_exact(&mut body).await.ok()?;
    request.extend(body);
    Some(request)
}

/// Replaces bytes, and returns the length of a possible partial match at the end.
fn garble(bytes: &mut [u8], from: &[u8], to: &[u8]) -> usize {
    while let Some(at) = bytes.windows(from.len()).position(|window| window == from) {
        bytes[at..at + from.len()].copy_from_slice(to);
    }
    (1..from.len()).rev().find(|length| bytes.ends_with(&from[..*length])).unwrap_or(0)
}
