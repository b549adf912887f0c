//! Requests to the API server over a persistent connection, with the time at which each response arrived.
//!
//! A client library would decode the response before returning it, which takes as long as the measured latencies.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread::{Builder, JoinHandle};
use std::time::Instant;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde::Deserialize;
use serde_json::Value;

/// The address and the credentials of the API server.
#[derive(Clone)]
pub struct Access {
    address: SocketAddr,
    token: String,
    tls: Arc<ClientConfig>,
}

impl Access {
    /// Reads the address and the credentials from a kubeconfig in JSON, as the harness writes it.
    pub fn of(kubeconfig: &Path) -> Self {
        let text = fs::read_to_string(kubeconfig).expect("a kubeconfig");
        let config: Value = serde_json::from_str(&text).expect("a kubeconfig in JSON");
        let (cluster, user) = (&config["clusters"][0]["cluster"], &config["users"][0]["user"]);
        let word = |value: &Value| value.as_str().expect("a string").to_owned();
        let authority = CertificateDer::pem_file_iter(word(&cluster["certificate-authority"]))
            .expect("a CA file that can be read");
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(authority.map(|certificate| certificate.expect("a certificate")));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("the provider knows TLS 1.2 and 1.3")
            .with_root_certificates(roots)
            .with_no_client_auth();
        let server = word(&cluster["server"]);
        let address = server.trim_start_matches("https://").parse().expect("an address");
        Self { address, token: word(&user["token"]), tls: Arc::new(tls) }
    }

    pub fn connect(&self) -> Connection {
        let tcp = TcpStream::connect(self.address).expect("the API server listens");
        tcp.set_nodelay(true).expect("TCP_NODELAY");
        let name = ServerName::from(self.address.ip());
        let tls = ClientConnection::new(Arc::clone(&self.tls), name).expect("a TLS client");
        let handle = tcp.try_clone().expect("a second handle of a socket");
        let headers = format!("Host: {}\r\nAuthorization: Bearer {}\r\n", self.address, self.token);
        let stream = Box::new(StreamOwned::new(tls, tcp));
        Connection { headers, stream, handle: Some(handle), buffer: Vec::new(), read: Instant::now() }
    }

    /// Starts a watch of the Services that match a field selector.
    pub fn watch(&self, selector: &str) -> Watch {
        let path = format!("/api/v1/services?fieldSelector={}", selector.replace('=', "%3D"));
        let mut connection = self.connect();
        let list: Value = connection.json("GET", &format!("{path}&limit=1"), "");
        let version = list["metadata"]["resourceVersion"].as_str().expect("a list has a version").to_owned();
        Watch::start(connection, &format!("{path}&watch=1&timeoutSeconds=3600&resourceVersion={version}"))
    }
}

trait Stream: Read + Write + Send {}
impl<S: Read + Write + Send> Stream for S {}

/// A connection to the API server or to etcd for sequential requests.
pub struct Connection {
    headers: String,
    stream: Box<dyn Stream>,
    /// A second handle of the socket, with which another thread can shut the connection down.
    handle: Option<TcpStream>,
    /// Received bytes that haven't been consumed.
    buffer: Vec<u8>,
    /// The time of the last read.
    read: Instant,
}

/// A response, and the time at which its last byte arrived.
pub struct Answer {
    pub at: Instant,
    pub code: u16,
    pub body: Vec<u8>,
}

impl Connection {
    pub fn unix(path: &Path) -> Self {
        let stream = Box::new(UnixStream::connect(path).expect("etcd listens on the socket"));
        let headers = "Host: localhost\r\n".to_owned();
        Self { headers, stream, handle: None, buffer: Vec::new(), read: Instant::now() }
    }

    pub fn request(&mut self, method: &str, path: &str, body: &str) -> Answer {
        let (code, length) = self.begin(method, path, body);
        let body = match length {
            Some(length) => self.take(length),
            None => {
                let mut body = Vec::new();
                while let Some(chunk) = self.chunk() {
                    body.extend(chunk);
                }
                body
            }
        };
        Answer { at: self.read, code, body }
    }

    /// Sends a request that must succeed. Returns the time of the response.
    pub fn must(&mut self, method: &str, path: &str, body: &str) -> Instant {
        let answer = self.request(method, path, body);
        let said = || String::from_utf8_lossy(&answer.body).into_owned();
        assert!(answer.code / 100 == 2, "{method} {path}: {} {}", answer.code, said());
        answer.at
    }

    /// Sends a request that must succeed. Returns the JSON of the response.
    pub fn json(&mut self, method: &str, path: &str, body: &str) -> Value {
        let answer = self.request(method, path, body);
        let value: Value = serde_json::from_slice(&answer.body).expect("JSON");
        assert!(answer.code / 100 == 2, "{method} {path}: {} {value}", answer.code);
        value
    }

    /// Sends a request. Returns the status code and the length of the body, or `None` for a chunked body.
    fn begin(&mut self, method: &str, path: &str, body: &str) -> (u16, Option<usize>) {
        let kind = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
        let request = format!(
            "{method} {path} HTTP/1.1\r\n{}Accept: application/json\r\nContent-Type: {kind}\r\n\
             Content-Length: {}\r\n\r\n{body}",
            self.headers,
            body.len()
        );
        self.stream.write_all(request.as_bytes()).expect("the server reads");
        let head = self.until(b"\r\n\r\n");
        let head = String::from_utf8_lossy(&head).to_ascii_lowercase();
        let code = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
        let length = head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok());
        (code, length)
    }

    /// Returns the next chunk, or `None` after the last one.
    fn chunk(&mut self) -> Option<Vec<u8>> {
        let line = String::from_utf8_lossy(&self.until(b"\r\n")).trim().to_owned();
        let length = usize::from_str_radix(&line, 16).expect("the length of a chunk");
        let mut chunk = self.take(length + 2);
        chunk.truncate(length);
        (length > 0).then_some(chunk)
    }

    fn until(&mut self, end: &[u8]) -> Vec<u8> {
        loop {
            if let Some(at) = self.buffer.windows(end.len()).position(|window| window == end) {
                return self.buffer.drain(..at + end.len()).collect();
            }
            assert!(self.fill(), "the server has closed the connection");
        }
    }

    fn take(&mut self, length: usize) -> Vec<u8> {
        while self.buffer.len() < length {
            assert!(self.fill(), "the server has closed the connection");
        }
        self.buffer.drain(..length).collect()
    }

    fn fill(&mut self) -> bool {
        let mut bytes = [0; 16384];
        let length = self.stream.read(&mut bytes).unwrap_or(0);
        self.read = Instant::now();
        self.buffer.extend_from_slice(&bytes[..length]);
        length > 0
    }
}

/// A Service in a watch event.
pub struct Seen {
    pub at: Instant,
    pub namespace: String,
    /// The hostname in the Service's status, or its `externalName` if there is none.
    pub target: String,
}

/// A watch of Services, which ends when it is dropped.
pub struct Watch {
    pub seen: Receiver<Seen>,
    tcp: TcpStream,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    fn start(mut connection: Connection, path: &str) -> Self {
        let (code, length) = connection.begin("GET", path, "");
        assert_eq!((code, length), (200, None), "a watch answers in chunks");
        let tcp = connection.handle.take().expect("a connection to the API server");
        let (sender, seen) = channel();
        let follow = move || {
            let mut rest: Vec<u8> = Vec::new();
            loop {
                // The watch ends with its connection.
                while !connection.buffer.windows(2).any(|window| window == b"\r\n") {
                    if !connection.fill() {
                        return;
                    }
                }
                let Some(chunk) = connection.chunk() else { return };
                rest.extend(chunk);
                while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
                    let line: Vec<u8> = rest.drain(..=end).collect();
                    let event: WatchEvent = serde_json::from_slice(&line).expect("an event");
                    // Sending fails when the `Watch` is being dropped.
                    let _ = sender.send(event.object.seen(connection.read));
                }
            }
        };
        let thread = Builder::new().name("bench-watch".to_owned()).spawn(follow).expect("a thread");
        Self { seen, tcp, thread: Some(thread) }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.tcp.shutdown(Shutdown::Both);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

#[derive(Deserialize)]
struct WatchEvent {
    object: Object,
}

#[derive(Deserialize)]
struct Object {
    metadata: Metadata,
    #[serde(default)]
    spec: Spec,
    #[serde(default)]
    status: Status,
}

#[derive(Deserialize)]
struct Metadata {
    namespace: String,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Spec {
    external_name: String,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Status {
    load_balancer: LoadBalancer,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct LoadBalancer {
    ingress: Vec<Ingress>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Ingress {
    hostname: String,
}

impl Object {
    fn seen(mut self, at: Instant) -> Seen {
        let hostname = self.status.load_balancer.ingress.pop().unwrap_or_default().hostname;
        let target = if hostname.is_empty() { self.spec.external_name } else { hostname };
        Seen { at, namespace: self.metadata.namespace, target }
    }
}
