//! DNS over HTTPS and gRPC: reloads, and hostile clients. Other clients aren't affected, and memory stays within the
//! limit of `deploy/`. The frames of HTTP/2 (RFC 9113) are written by hand.
//!
//! Memory and times are printed (`-- --nocapture https::`).

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use data_encoding::BASE64URL_NOPAD;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::{http1, http2};
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::{Request, Response, Version};
use hyper_util::rt::{TokioExecutor, TokioIo};
use lb_linker::dns::message::grpc;
use rustls::pki_types::ServerName;
use rustls::version::TLS13;
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream, UdpSocket};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::harness::dns::{ask_udp, query, show};
use crate::harness::linker::Linker;
use crate::harness::{EVENT_TIMEOUT, eventually, replace_file};
use crate::tls::{Certificates, client_config};

/// The memory limit of `deploy/20-deployment.yaml`, in KiB.
pub(crate) const MEMORY_LIMIT: usize = 256 << 10;
const QUESTION: &str = "a.test. A";
const MAX_CONNECTIONS: usize = 40;
/// The size of a body in bytes that no client needs.
const LARGE: usize = 100_000_000;
/// The ports of lb-linker other than those for DNS.
pub(crate) const HTTP_PORTS: &str = "prometheus 127.0.0.1:0\nhealth 127.0.0.1:0\nready 127.0.0.1:0\n";

/// A client of DNS over HTTPS.
pub(crate) enum Client {
    One(http1::SendRequest<Full<Bytes>>),
    Two(http2::SendRequest<Full<Bytes>>),
}

impl Client {
    /// Sends a request with a path instead of a URI.
    pub(crate) async fn send(&mut self, mut request: Request<Full<Bytes>>) -> Response<Incoming> {
        let sending = async {
            match self {
                Self::One(sender) => {
                    request.headers_mut().insert(HOST, "dns.example".parse().unwrap());
                    sender.send_request(request).await
                }
                Self::Two(sender) => {
                    let uri = format!("https://dns.example{}", request.uri());
                    *request.uri_mut() = uri.parse().unwrap();
                    sender.send_request(request).await
                }
            }
        };
        timeout(EVENT_TIMEOUT, sending).await.expect("a response").unwrap()
    }
}

/// Connects by HTTP, or by HTTPS with the CA of these certificates.
pub(crate) async fn connect(address: SocketAddr, tls: Option<&Certificates>, version: Version) -> Client {
    let stream = TcpStream::connect(address).await.unwrap();
    let Some(certificates) = tls else { return http(stream, version).await };
    let mut config = client_config(certificates, &TLS13, None);
    let alpn = if version == Version::HTTP_2 { "h2" } else { "http/1.1" };
    config.alpn_protocols = vec![alpn.into()];
    let name = ServerName::try_from("dns.example").unwrap();
    let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap();
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(alpn.as_bytes()));
    http(stream, version).await
}

async fn http(stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static, version: Version) -> Client {
    let stream = TokioIo::new(stream);
    if version == Version::HTTP_2 {
        let (sender, connection) = http2::handshake(TokioExecutor::new(), stream).await.unwrap();
        tokio::spawn(connection);
        Client::Two(sender)
    } else {
        let (sender, connection) = http1::handshake(stream).await.unwrap();
        tokio::spawn(connection);
        Client::One(sender)
    }
}

fn path(question: &str) -> String {
    format!("/dns-query?dns={}", BASE64URL_NOPAD.encode(&query(question).to_vec().unwrap()))
}

async fn is_answered(client: &mut Client) -> bool {
    let request = Request::get(path(QUESTION)).body(Full::default()).unwrap();
    client.send(request).await.status() == 200
}

/// lb-linker with DNS and with DNS over HTTP or gRPC without TLS, with an answer of 60 KB to `big.test. TXT`.
struct Site {
    linker: Linker,
    http: SocketAddr,
    is_grpc: bool,
    _directory: TempDir,
}

impl Site {
    async fn start() -> Self {
        Self::with(MAX_CONNECTIONS, "").await
    }

    async fn with(max_connections: usize, line: &str) -> Self {
        Self::serving(false, max_connections, line).await
    }

    /// Starts servers of DNS over HTTPS and over gRPC.
    async fn both() -> [Self; 2] {
        [Self::start().await, Self::serving(true, MAX_CONNECTIONS, "").await]
    }

    async fn serving(is_grpc: bool, max_connections: usize, line: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let text = "a".repeat(250);
        let big: String = (0..230).map(|number| format!("big 60 IN TXT {number}{text}\n")).collect();
        let zone =
            format!("$ORIGIN test.\n@ 60 IN SOA ns h 1 2 3 4 5\n@ 60 IN NS ns\na 60 IN A 192.0.2.1\n{big}");
        let db = directory.path().join("db");
        std::fs::write(&db, zone).unwrap();
        let db = db.display();
        let (scheme, plugin, how) = if is_grpc {
            ("grpc", "grpc_server", ", by gRPC without TLS")
        } else {
            ("https", "https", ", by HTTP without TLS")
        };
        let corefile = format!(
            ".:0 {{\nbind 127.0.0.1\n{HTTP_PORTS}file {db} test\n}}\n\
             {scheme}://.:0 {{\nbind 127.0.0.1\n{plugin} {{\nmax_connections {max_connections}\n}}\n\
             timeouts {{\nread 2s\nwrite 2s\nidle 10s\n}}\nfile {db} test\n{line}\n}}\n"
        );
        let linker = Linker::start_on_corefile(&corefile, directory.path(), None);
        linker.ready().await;
        let http = listener(&linker, how).await;
        Self { linker, http, is_grpc, _directory: directory }
    }

    /// Returns the header fields and the body of a request with a question.
    fn request(&self, question: &str) -> (Vec<u8>, Vec<u8>) {
        if !self.is_grpc {
            return (fields("GET", &path(question)), Vec::new());
        }
        (self.posted(), grpc::encode(&query(question).to_vec().unwrap()))
    }

    /// Returns the header fields of a request with a body.
    fn posted(&self) -> Vec<u8> {
        let (path, media_type) = if self.is_grpc {
            (grpc::PATH, grpc::MEDIA_TYPE)
        } else {
            ("/dns-query", "application/dns-message")
        };
        [fields("POST", path), field("content-type", media_type)].concat()
    }

    /// Returns the frames of a request with a question.
    fn frames(&self, stream: u32, question: &str) -> Vec<u8> {
        let (fields, body) = self.request(question);
        if body.is_empty() {
            return frame(HEADERS, END_HEADERS | END_STREAM, stream, &fields);
        }
        [frame(HEADERS, END_HEADERS, stream, &fields), frame(DATA, END_STREAM, stream, &body)].concat()
    }

    async fn connect(&self) -> TcpStream {
        timeout(EVENT_TIMEOUT, TcpStream::connect(self.http)).await.expect("a connection").unwrap()
    }

    /// Starts a connection of HTTP/2 with these settings.
    async fn http2(&self, settings: &[u8]) -> TcpStream {
        self.http2_from(Ipv4Addr::LOCALHOST, settings).await
    }

    async fn http2_from(&self, client: Ipv4Addr, settings: &[u8]) -> TcpStream {
        let begin = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &*frame(SETTINGS, 0, 0, settings)].concat();
        // A test without CPU time can be later than the listener's read timeout: then it connects anew.
        let connecting = async {
            loop {
                let socket = TcpSocket::new_v4().unwrap();
                socket.bind((client, 0).into()).unwrap();
                let mut stream = socket.connect(self.http).await.unwrap();
                if stream.write_all(&begin).await.is_ok() {
                    return stream;
                }
            }
        };
        timeout(EVENT_TIMEOUT, connecting).await.expect("a connection")
    }

    /// Returns whether a new client gets an answer.
    async fn is_answered(&self, version: Version) -> bool {
        let mut client = connect(self.http, None, version).await;
        if !self.is_grpc {
            return is_answered(&mut client).await;
        }
        let body = grpc::encode(&query(QUESTION).to_vec().unwrap());
        let request = Request::post(grpc::PATH).header(CONTENT_TYPE, grpc::MEDIA_TYPE);
        let response = client.send(request.body(Full::new(body.into())).unwrap()).await;
        response.into_body().collect().await.unwrap().trailers().is_some_and(|it| it[grpc::STATUS] == "0")
    }

    /// Asserts that UDP and DNS over HTTPS or gRPC are served, and that memory is within the limit.
    async fn check(&self, what: &str) {
        let start = Instant::now();
        let answer = ask_udp(self.linker.dns, &query(QUESTION)).await;
        let udp = start.elapsed();
        assert!(show(&answer).starts_with("No Error"), "{}", show(&answer));
        assert!(self.is_grpc || self.is_answered(Version::HTTP_11).await, "{what}");
        assert!(self.is_answered(Version::HTTP_2).await, "{what}");
        let most = self.linker.memory("VmHWM");
        let how = if self.is_grpc { "grpc" } else { "https" };
        eprintln!("{how}: {what}: at most {most} KiB; then UDP {udp:.1?}, HTTP {:.1?}", start.elapsed());
        assert!(most < MEMORY_LIMIT, "{what}: {most} KiB");
    }
}

/// Returns the address in the log line of a listener.
pub(crate) async fn listener(linker: &Linker, how: &str) -> SocketAddr {
    let line = linker.line(how).await;
    line.split_once("DNS on ").unwrap().1.split_once(',').unwrap().0.parse().unwrap()
}

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
/// SETTINGS_INITIAL_WINDOW_SIZE of 0 (RFC 9113 section 6.5.2): no answer may be sent.
const NO_WINDOW: [u8; 6] = [0, 4, 0, 0, 0, 0];
const ENHANCE_YOUR_CALM: u32 = 11;

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Returns a header field as a literal that isn't indexed (RFC 7541 section 6.2.2).
fn field(name: &str, value: &str) -> Vec<u8> {
    let text = |text: &str| {
        // An integer with a prefix of 7 bits (RFC 7541 section 5.1).
        let mut rest = text.len();
        let mut bytes = if rest < 127 { vec![rest as u8] } else { vec![127] };
        if rest >= 127 {
            rest -= 127;
            while rest >= 128 {
                bytes.push((rest % 128) as u8 | 128);
                rest /= 128;
            }
            bytes.push(rest as u8);
        }
        bytes.extend(text.as_bytes());
        bytes
    };
    [vec![0], text(name), text(value)].concat()
}

fn fields(method: &str, path: &str) -> Vec<u8> {
    let all = [(":method", method), (":scheme", "http"), (":authority", "dns.example"), (":path", path)];
    all.map(|(name, value)| field(name, value)).concat()
}

/// Reads frames until the end of the connection. Returns the error code of GOAWAY, if the server has sent one.
async fn goaway(stream: &mut (impl AsyncRead + Unpin)) -> Option<u32> {
    let reading = async {
        let mut code = None;
        loop {
            let mut head = [0; 9];
            if stream.read_exact(&mut head).await.is_err() {
                return code;
            }
            let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
            if stream.read_exact(&mut payload).await.is_err() {
                return code;
            }
            if head[3] == GOAWAY {
                code = payload[4..].first_chunk().map(|code| u32::from_be_bytes(*code));
            }
        }
    };
    timeout(EVENT_TIMEOUT, reading).await.expect("the end of the connection")
}

/// Waits until the peer has closed a connection.
async fn wait_for_close(stream: &mut (impl AsyncRead + Unpin)) {
    let mut rest = [0; 4096];
    while timeout(EVENT_TIMEOUT, stream.read(&mut rest)).await.expect("an end").is_ok_and(|read| read > 0) {}
}

/// Writes until the peer closes the connection, or all is written. Returns how many bytes were written.
async fn flood(stream: &mut (impl AsyncWrite + Unpin), bytes: &[u8], times: usize) -> usize {
    for number in 0..times {
        if timeout(EVENT_TIMEOUT, stream.write_all(bytes)).await.expect("a write or the end").is_err() {
            return number * bytes.len();
        }
    }
    times * bytes.len()
}

#[tokio::test]
async fn unfinished_https_and_grpc_requests_lock_no_client_out() {
    for site in Site::both().await {
        unfinished_requests(site).await;
    }
}

async fn unfinished_requests(site: Site) {
    let mut crowd = Vec::new();
    for number in 0..MAX_CONNECTIONS * 5 {
        let mut stream = if number % 2 == 0 { site.connect().await } else { site.http2(&[]).await };
        let _ = stream.write_all(b"P").await;
        crowd.push(stream);
    }
    site.check("many unfinished requests").await;
    let evicted = site.linker.metric("lb_linker_dns_connections_evicted_total").unwrap();
    // Some may have ended by their timeout before.
    assert!(evicted > 0.0, "{evicted}");
    let protocol = if site.is_grpc { "gRPC" } else { "HTTPS" };
    site.linker.line(&format!("{protocol}: too many connections: ")).await;
    wait_for_close(&mut crowd[0]).await;
    // A body that doesn't arrive.
    let mut stream = site.http2(&[]).await;
    let fields = site.posted();
    let opened = (0..300).flat_map(|number| frame(HEADERS, END_HEADERS, 2 * number + 1, &fields));
    let _ = stream.write_all(&opened.collect::<Vec<_>>()).await;
    site.check("bodies that don't arrive").await;
    goaway(&mut stream).await;
}

#[tokio::test]
async fn client_that_resets_its_streams_is_disconnected() {
    for site in Site::both().await {
        rapid_resets(site).await;
    }
}

async fn rapid_resets(site: Site) {
    let mut stream = site.http2(&[]).await;
    let (mut reader, mut writer) = stream.split();
    let writing = async {
        for part in 0..200 {
            let ids = (0..100).map(|number| 2 * (part * 100 + number) + 1);
            let resets: Vec<u8> = ids
                .flat_map(|id| {
                    [site.frames(id, QUESTION), frame(RST_STREAM, 0, id, &8_u32.to_be_bytes())].concat()
                })
                .collect();
            if writer.write_all(&resets).await.is_err() {
                return part;
            }
        }
        200
    };
    let (code, written) = tokio::join!(goaway(&mut reader), writing);
    eprintln!("rapid resets: the connection ended with {code:?} before {} streams", (written + 1) * 100);
    // The kernel may reset the connection before the client has read the frame.
    assert!(code.is_none_or(|code| code == ENHANCE_YOUR_CALM), "{code:?}");
    assert!(written < 200);
    site.check("rapid resets").await;
}

#[tokio::test]
async fn endless_headers_end_the_connection() {
    for site in Site::both().await {
        endless_headers(site).await;
    }
}

async fn endless_headers(site: Site) {
    let (fields, _) = site.request(QUESTION);
    let mut stream = site.http2(&[]).await;
    // An answer to a PING that the server hasn't sent.
    stream.write_all(&frame(PING, 1, 0, &[0; 8])).await.unwrap();
    stream.write_all(&frame(HEADERS, 0, 1, &fields)).await.unwrap();
    let more = frame(CONTINUATION, 0, 1, &field("x-a", "0123456789"));
    let (mut reader, mut writer) = stream.split();
    let (_, small) = tokio::join!(goaway(&mut reader), flood(&mut writer, &more, 1_000_000));
    let mut stream = site.http2(&[]).await;
    stream.write_all(&frame(HEADERS, 0, 1, &fields)).await.unwrap();
    let (mut reader, mut writer) = stream.split();
    let empty = frame(CONTINUATION, 0, 1, &[]);
    let (_, none) = tokio::join!(goaway(&mut reader), flood(&mut writer, &empty, 1_000_000));
    let mut stream = site.connect().await;
    stream.write_all(b"GET / HTTP/1.1\r\n").await.unwrap();
    let (mut reader, mut writer) = stream.split();
    let line = "X-A: 0123456789\r\n".repeat(100);
    let (_, lines) = tokio::join!(wait_for_close(&mut reader), flood(&mut writer, line.as_bytes(), 100_000));
    eprintln!("endless headers: closed after {small}, {none} and {lines} bytes at most");
    assert!(small < 4_000_000 && none < 4_000_000 && lines < 10_000_000);
    site.check("endless headers").await;
    assert_eq!(site.linker.warnings(), [""; 0]);
}

#[tokio::test]
async fn body_of_100_mb_is_refused_unread() {
    let [site, grpc] = Site::both().await;
    large_bodies_of_http_1(&site).await;
    for site in [site, grpc] {
        let mut stream = site.http2(&[]).await;
        stream.write_all(&frame(HEADERS, END_HEADERS, 1, &site.posted())).await.unwrap();
        let (mut reader, mut writer) = stream.split();
        // The client ignores the window.
        let data = frame(DATA, 0, 1, &[0; 16_384]);
        let (_, sent) = tokio::join!(goaway(&mut reader), flood(&mut writer, &data, LARGE / data.len()));
        assert!(sent < LARGE - data.len(), "{sent}");
        site.check("bodies of 100 MB").await;
    }
}

async fn large_bodies_of_http_1(site: &Site) {
    let head = "POST /dns-query HTTP/1.1\r\nHost: x\r\nContent-Type: application/dns-message\r\n";
    let chunk = "a".repeat(0x10000);
    for (head, part) in [
        (format!("{head}Content-Length: {LARGE}\r\n\r\n"), chunk.clone()),
        (format!("{head}Transfer-Encoding: chunked\r\n\r\n"), format!("10000\r\n{chunk}\r\n")),
    ] {
        let mut stream = site.connect().await;
        stream.write_all(head.as_bytes()).await.unwrap();
        let (mut reader, mut writer) = stream.split();
        let reading = async {
            let mut reply = Vec::new();
            let _ = reader.read_to_end(&mut reply).await;
            String::from_utf8_lossy(&reply).into_owned()
        };
        let (reply, sent) = tokio::join!(reading, flood(&mut writer, part.as_bytes(), LARGE / part.len()));
        assert!(reply.starts_with("HTTP/1.1 413 "), "{reply}");
        assert!(sent < 10_000_000, "{sent}");
    }
}

#[tokio::test]
async fn https_and_grpc_clients_that_do_not_read_are_disconnected() {
    for site in Site::both().await {
        clients_that_do_not_read(site).await;
    }
}

async fn clients_that_do_not_read(site: Site) {
    let mut crowd = Vec::new();
    // The answers wait for a window that doesn't open.
    for _ in 0..MAX_CONNECTIONS / 2 {
        let mut stream = site.http2(&NO_WINDOW).await;
        let asked = (0..100).flat_map(|number| site.frames(2 * number + 1, "big.test. TXT"));
        let _ = stream.write_all(&asked.collect::<Vec<_>>()).await;
        crowd.push(stream);
    }
    site.check("answers without a window").await;
    for stream in &mut crowd {
        goaway(stream).await;
    }
    assert!(site.linker.metric("lb_linker_dns_connections_unread_total").unwrap() > 0.0);
    // The window is open, and the client doesn't read.
    let mut stream = site.connect().await;
    let asked = format!("GET {} HTTP/1.1\r\nHost: x\r\n\r\n", path("big.test. TXT"));
    let written = flood(&mut stream, asked.as_bytes(), 1_000_000).await;
    // PING frames, whose answers the client doesn't read.
    let mut stream = site.http2(&[]).await;
    let pings = frame(PING, 0, 0, &[0; 8]).repeat(1000);
    let pinged = flood(&mut stream, &pings, 100_000).await;
    eprintln!("without reading: closed after {written} bytes of requests and {pinged} bytes of PING");
    site.check("clients that don't read").await;
}

/// Returns a request with the path in the table of header fields (RFC 7541 section 6.2.1), in a frame of maximum size.
fn kept_frame(number: u32) -> Vec<u8> {
    let path = format!("/{number:03}");
    let others = [(":method", "GET"), (":scheme", "http"), (":authority", "dns.example")];
    let fields: Vec<u8> = others.iter().flat_map(|(name, value)| field(name, value)).collect();
    let fields = [fields, vec![0x44, 4], path.into()].concat();
    let rest = field("x-a", &"a".repeat(16_384 - fields.len() - 8));
    frame(HEADERS, END_HEADERS | END_STREAM, 16 * number + 1, &[fields, rest].concat())
}

#[tokio::test]
async fn header_tables_keep_no_memory_beyond_the_limit() {
    let site = Site::with(200, "").await;
    let small = fields("GET", &path(QUESTION));
    for with_requests in [false, true] {
        let connections = (0..200).map(|_| async {
            let mut stream = site.http2(&[]).await;
            let (mut reader, mut writer) = stream.split();
            let writing = async {
                for number in 0..120 {
                    // Small requests make up for the large frame.
                    let ids = (1..=if with_requests { 5 } else { 0 }).map(|more| 16 * number + 2 * more + 1);
                    let more = ids.flat_map(|id| frame(HEADERS, END_HEADERS | END_STREAM, id, &small));
                    let bytes = [kept_frame(number), more.collect()].concat();
                    if writer.write_all(&bytes).await.is_err() {
                        break;
                    }
                }
            };
            tokio::join!(goaway(&mut reader), writing);
        });
        futures::future::join_all(connections).await;
        site.check("header tables").await;
        let most = site.linker.memory("VmHWM");
        assert!(most < 180 << 10, "{most} KiB");
    }
}

#[tokio::test]
async fn waiting_queries_keep_no_headers() {
    // Answers nothing.
    let upstream = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let forward = format!("forward . {}", upstream.local_addr().unwrap());
    let site = Site::with(200, &forward).await;
    let many: Vec<u8> = (0..430).flat_map(|number| field(&format!("{number:03}"), "")).collect();
    let fields = [fields("GET", &path("a.example. A")), many].concat();
    let asked: Vec<u8> = (0..25)
        .flat_map(|number| frame(HEADERS, END_HEADERS | END_STREAM, 2 * number + 1, &fields))
        .collect();
    let mut crowd = Vec::new();
    for number in 0..200 {
        let mut stream = site.http2_from(Ipv4Addr::new(127, 0, 0, 1 + number % 8), &[]).await;
        stream.write_all(&asked).await.unwrap();
        crowd.push(stream);
    }
    site.check("waiting queries with many headers").await;
}

#[tokio::test]
async fn reload_renews_the_certificate_and_removes_the_https_listener() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| directory.path().join(name);
    let copy = |certificates: &Certificates| {
        for name in ["tls.key", "tls.crt"] {
            replace_file(&file(name), std::fs::read_to_string(certificates.file(name)).unwrap());
        }
    };
    let (first, second) = (Certificates::make(), Certificates::make());
    copy(&first);
    let dns = &format!(".:0 {{\nbind 127.0.0.1\nreload 2s 0\n{HTTP_PORTS}whoami\n}}\n");
    let https = format!(
        "https://.:0 {{\nbind 127.0.0.1\ntls {} {}\nwhoami\n}}\n",
        file("tls.crt").display(),
        file("tls.key").display()
    );
    let mut linker = Linker::start_on_corefile(&format!("{dns}{https}"), directory.path(), None);
    linker.ready().await;
    let address = listener(&linker, ", by HTTPS").await;
    let mut old = connect(address, Some(&first), Version::HTTP_2).await;
    assert!(is_answered(&mut old).await);

    copy(&second);
    let trusts = |certificates| async move {
        let mut config = client_config(certificates, &TLS13, None);
        config.alpn_protocols = vec!["h2".into()];
        let stream = TcpStream::connect(address).await.unwrap();
        let name = ServerName::try_from("dns.example").unwrap();
        TlsConnector::from(Arc::new(config)).connect(name, stream).await.is_ok()
    };
    eventually("the new certificate", || async { trusts(&second).await.then_some(()) }).await;
    assert!(!trusts(&first).await);
    // The connection with the certificate before goes on.
    assert!(is_answered(&mut old).await);

    replace_file(&file("Corefile"), dns);
    linker.line("DNS on").await;
    let is_gone = || async { TcpStream::connect(address).await.is_err().then_some(()) };
    eventually("the end of the listener", is_gone).await;
    assert!(linker.stop().success());
}
