use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use data_encoding::BASE64URL_NOPAD;
use hickory_proto::op::{Message, Query, ResponseCode};
use hickory_proto::rr::{Name, RecordType};
use http_body_util::{BodyExt, Full};
use hyper::StatusCode;
use hyper::body::Bytes;
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper::header::{CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap};
use tokio::io::{DuplexStream, duplex};
use tokio::net::UdpSocket;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::*;
use crate::dns::chain::handler::Handler;
use crate::dns::message::grpc;
use crate::dns::message::https::MEDIA_TYPE;
use crate::dns::plugins::setup::ServerContext;
use crate::dns::plugins::tests::support::link;
use crate::dns::server::config::first_handler;
use crate::dns::transport::connections::ConnectionLimits;
use crate::dns::transport::connections::connection_limit::ConnectionLimiter;
use crate::store::{Input, OnGone, Store};

const CLIENT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 5353);
const IDLE: u64 = 30;
const IO_TIMEOUT: u64 = 5;

/// Returns a handler of the zone `lb.internal` with the link `web`, which forwards other names to `upstream`.
fn handler(upstream: SocketAddr) -> Arc<Handler> {
    let store = Arc::new(Store::new(OnGone::Kept));
    store.set_zones([&Name::from_ascii("lb.internal.").unwrap()]);
    store.set_known(Input::Services);
    store.apply(link("web", "192.0.2.1"));
    let context = ServerContext::silent(store).unwrap();
    let forward = format!(". {{\nforward . {upstream} {{\nprefer_udp\n}}\n}}\n");
    first_handler(&format!("lb.internal {{\nlb_linker\n}}\n{forward}"), &context).unwrap()
}

/// A connection: the client's end, the server's task, and the stop.
struct Served {
    client: DuplexStream,
    serving: JoinHandle<io::Result<()>>,
    stop: CancellationToken,
}

fn served(upstream: SocketAddr, queries: u64, buffer: usize) -> Served {
    served_by(HttpConfig::https(None), upstream, queries, buffer)
}

fn served_by(config: HttpConfig, upstream: SocketAddr, queries: u64, buffer: usize) -> Served {
    let (client, server) = duplex(buffer);
    let (handler, stop) = (handler(upstream), CancellationToken::new());
    let (permit, _) =
        Arc::new(ConnectionLimiter::new(handler.metrics.group().unwrap())).admit(CLIENT).unwrap();
    let limits = ConnectionLimits { queries, ..Default::default() };
    let connection = Connection { client: CLIENT, local: None, limits, handler, permit, stop: stop.clone() };
    Served { client, serving: tokio::spawn(serve(connection, server, None, config)), stop }
}

/// Like [`served`], without an upstream.
fn connected() -> Served {
    served(CLIENT, u64::MAX, 1 << 16)
}

fn query(name: &str, id: u16) -> Vec<u8> {
    let mut message = Message::query();
    message.metadata.id = id;
    message.add_query(Query::query(Name::from_ascii(name).unwrap(), RecordType::A));
    message.to_vec().unwrap()
}

fn get(name: &str) -> String {
    format!("/dns-query?dns={}", BASE64URL_NOPAD.encode(&query(name, 0)))
}

/// Sends bytes, and returns everything that the server sends until it closes the connection.
async fn exchange(mut served: Served, sent: &[u8]) -> String {
    let mut replies = Vec::new();
    served.client.write_all(sent).await.unwrap();
    served.client.read_to_end(&mut replies).await.unwrap();
    String::from_utf8_lossy(&replies).into_owned()
}

async fn http2(client: DuplexStream) -> SendRequest<Full<Bytes>> {
    let (sender, connection) = handshake(TokioExecutor::new(), TokioIo::new(client)).await.unwrap();
    tokio::spawn(connection);
    sender
}

fn post(name: &str, id: u16) -> Request<Full<Bytes>> {
    let body = Full::new(query(name, id).into());
    Request::post("http://dns.example/dns-query").header(CONTENT_TYPE, MEDIA_TYPE).body(body).unwrap()
}

async fn ask(sender: &mut SendRequest<Full<Bytes>>, name: &str, id: u16) -> (HeaderMap, Message) {
    let response = sender.send_request(post(name, id)).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    let (head, body) = response.into_parts();
    (head.headers, Message::from_vec(&body.collect().await.unwrap().to_bytes()).unwrap())
}

#[tokio::test]
async fn answers_have_the_id_and_a_lifetime_and_failures_none() {
    let mut sender = http2(connected().client).await;
    for (name, lifetime, rcode) in [
        ("web.default.lb.internal.", "private, max-age=5", ResponseCode::NoError),
        ("none.default.lb.internal.", "private, max-age=5", ResponseCode::NXDomain),
        ("a.example.", "no-store", ResponseCode::ServFail),
    ] {
        // From the second query on the answer may come from the response cache.
        for id in [0, 7, 0xffff] {
            let (headers, answer) = ask(&mut sender, name, id).await;
            assert_eq!((answer.metadata.id, answer.metadata.response_code), (id, rcode), "{name}");
            let text = |name| headers[name].to_str().unwrap();
            assert_eq!((text(CONTENT_TYPE), text(CACHE_CONTROL)), (MEDIA_TYPE, lifetime), "{name}");
        }
    }
}

#[tokio::test]
async fn requests_by_http_1_get_their_status_and_a_sentence() {
    let good = get("web.default.lb.internal.");
    let response = BASE64URL_NOPAD.encode(&[0, 0, 0x80, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
    let response = format!("/dns-query?dns={response}");
    let dns = "Content-Type: application/dns-message\r\nContent-Length: ";
    for (method, path, rest, status) in [
        ("GET", &*good, String::new(), "200 OK"),
        ("HEAD", &good, String::new(), "200 OK"),
        ("GET", "/dns-query", String::new(), "400 Bad Request"),
        ("GET", "/dns-query?dns=AAAA", String::new(), "400 Bad Request"),
        ("GET", &response, String::new(), "400 Bad Request"),
        ("GET", "/", String::new(), "404 Not Found"),
        ("DELETE", &good, String::new(), "405 Method Not Allowed"),
        ("POST", "/dns-query", format!("{dns}100000000\r\n"), "413 Payload Too Large"),
        ("POST", "/dns-query", format!("{dns}3\r\n\r\nabc"), "400 Bad Request"),
        ("POST", "/dns-query", "Content-Length: 3\r\n\r\nabc".to_owned(), "415 Unsupported Media Type"),
    ] {
        let sent = format!("{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{rest}\r\n");
        let reply = exchange(connected(), sent.as_bytes()).await;
        let (head, body) = reply.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with(&format!("HTTP/1.1 {status}\r\n")), "{sent}: {reply}");
        assert_eq!(head.contains("allow: GET, HEAD, POST"), method == "DELETE", "{reply}");
        assert!(head.contains("content-length: "), "{reply}");
        if status == "200 OK" {
            assert_eq!(body.is_empty(), method == "HEAD");
        } else {
            assert!(head.contains("cache-control: no-store"), "{reply}");
            assert!(head.contains("text/plain") && body.ends_with(".\n"), "{reply}");
        }
    }
}

#[tokio::test]
async fn body_without_a_length_is_cut_off_at_the_maximum() {
    let chunk = format!("1000\r\n{}\r\n", "a".repeat(0x1000)).repeat(17);
    let head = "POST /dns-query HTTP/1.1\r\nHost: x\r\nContent-Type: application/dns-message\r\n\
        Transfer-Encoding: chunked\r\n\r\n";
    let reply = exchange(connected(), format!("{head}{chunk}").as_bytes()).await;
    assert!(reply.starts_with("HTTP/1.1 413 "), "{reply}");
}

#[tokio::test(start_paused = true)]
async fn idle_and_unfinished_requests_end_the_connection_in_time() {
    let head = "POST /dns-query HTTP/1.1\r\nHost: x\r\nContent-Type: application/dns-message\r\n";
    let whole = format!("GET {} HTTP/1.1\r\nHost: x\r\n\r\n", get("web.default.lb.internal."));
    for (sent, seconds, status) in [
        (String::new(), IDLE, ""),
        ("G".to_owned(), IO_TIMEOUT, ""),
        ("P".to_owned(), IO_TIMEOUT, ""),
        (head.to_owned(), IO_TIMEOUT, ""),
        (format!("{head}Content-Length: 30\r\n\r\nabc"), IO_TIMEOUT, "HTTP/1.1 408"),
        (whole, IDLE, "HTTP/1.1 200"),
    ] {
        let start = Instant::now();
        let reply = exchange(connected(), sent.as_bytes()).await;
        assert!(reply.starts_with(status) && reply.is_empty() == status.is_empty(), "{sent:?}: {reply}");
        assert_eq!(start.elapsed().as_secs(), seconds, "{sent:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn idle_connection_of_http_2_ends_after_30_seconds() {
    let Served { client, serving, .. } = connected();
    let mut sender = http2(client).await;
    ask(&mut sender, "web.default.lb.internal.", 0).await;
    let start = Instant::now();
    // The client may end the connection first, once it learns of the end.
    let _ = serving.await.unwrap();
    assert_eq!(start.elapsed().as_secs(), IDLE);
}

#[tokio::test(start_paused = true)]
async fn client_that_does_not_read_is_disconnected() {
    let is_late = |ended: io::Result<()>| ended.is_err_and(|error| error.kind() == io::ErrorKind::TimedOut);
    // Without room in the connection.
    let Served { mut client, serving, .. } = served(CLIENT, u64::MAX, 64);
    let start = Instant::now();
    let whole = format!("GET {} HTTP/1.1\r\nHost: x\r\n\r\n", get("web.default.lb.internal."));
    client.write_all(whole.as_bytes()).await.unwrap();
    assert!(is_late(serving.await.unwrap()));
    assert_eq!(start.elapsed().as_secs(), IO_TIMEOUT);

    // Without room in the stream of HTTP/2.
    let Served { client, serving, .. } = connected();
    let start = Instant::now();
    let mut builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
    let (mut sender, connection) =
        builder.initial_stream_window_size(0).handshake(TokioIo::new(client)).await.unwrap();
    tokio::spawn(connection);
    let _response = sender.send_request(post("web.default.lb.internal.", 0)).await.unwrap();
    assert!(is_late(serving.await.unwrap()));
    assert_eq!(start.elapsed().as_secs(), IO_TIMEOUT);
}

#[tokio::test]
async fn connection_ends_after_its_last_allowed_query() {
    let whole = format!("GET {} HTTP/1.1\r\nHost: x\r\n\r\n", get("web.default.lb.internal."));
    let reply = exchange(served(CLIENT, 2, 1 << 16), whole.repeat(3).as_bytes()).await;
    assert_eq!(reply.matches("HTTP/1.1 200 OK").count(), 2, "{reply}");

    let Served { client, serving, .. } = served(CLIENT, 2, 1 << 16);
    let mut sender = http2(client).await;
    for id in [1, 2] {
        ask(&mut sender, "web.default.lb.internal.", id).await;
    }
    let _ = serving.await.unwrap();
    assert!(sender.send_request(post("web.default.lb.internal.", 3)).await.is_err());
}

#[tokio::test]
async fn answer_under_way_is_sent_after_the_stop() {
    let upstream = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let Served { client, serving, stop } = served(upstream.local_addr().unwrap(), u64::MAX, 1 << 16);
    let mut sender = http2(client).await;
    let answering = tokio::spawn({
        let mut sender = sender.clone();
        async move { ask(&mut sender, "a.example.", 5).await }
    });
    let mut bytes = [0; 512];
    let (length, from) = upstream.recv_from(&mut bytes).await.unwrap();
    ask(&mut sender, "web.default.lb.internal.", 6).await;
    stop.cancel();
    // An answer with RA and NXDOMAIN.
    (bytes[2], bytes[3]) = (bytes[2] | 0x80, 0x83);
    upstream.send_to(&bytes[..length], from).await.unwrap();
    let (_, answer) = answering.await.unwrap();
    assert_eq!((answer.metadata.id, answer.metadata.response_code), (5, ResponseCode::NXDomain));
    let _ = serving.await.unwrap();
}

#[tokio::test]
async fn request_in_the_kernel_at_the_stop_is_answered() {
    let whole = format!("GET {} HTTP/1.1\r\nHost: x\r\n\r\n", get("web.default.lb.internal."));
    for _ in 0..10 {
        let served = connected();
        served.stop.cancel();
        // The server's task hasn't run yet.
        let reply = exchange(served, whole.as_bytes()).await;
        assert!(reply.starts_with("HTTP/1.1 200"), "{reply}");
    }
}

#[tokio::test]
async fn client_that_sends_no_more_gets_its_answer() {
    let upstream = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let Served { mut client, serving, .. } = served(upstream.local_addr().unwrap(), u64::MAX, 1 << 16);
    let asked = format!("GET {} HTTP/1.1\r\nHost: x\r\n\r\n", get("a.example."));
    client.write_all(asked.as_bytes()).await.unwrap();
    client.shutdown().await.unwrap();
    let mut bytes = [0; 512];
    let (length, from) = upstream.recv_from(&mut bytes).await.unwrap();
    (bytes[2], bytes[3]) = (bytes[2] | 0x80, 0x83);
    upstream.send_to(&bytes[..length], from).await.unwrap();
    let mut reply = Vec::new();
    client.read_to_end(&mut reply).await.unwrap();
    assert!(reply.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&reply));
    serving.await.unwrap().unwrap();
}

#[tokio::test]
async fn refused_body_ends_only_its_stream_of_http_2() {
    let mut sender = http2(connected().client).await;
    let mut large = post("web.default.lb.internal.", 0);
    *large.body_mut() = Full::new(vec![0; 70_000].into());
    let response = sender.send_request(large).await.unwrap();
    assert_eq!(response.status(), StatusCode::PAYLOAD_TOO_LARGE);
    for id in 1..=5 {
        ask(&mut sender, "web.default.lb.internal.", id).await;
    }
}

#[tokio::test]
async fn body_of_a_waiting_get_delays_no_other_body() {
    let upstream = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let mut sender = http2(served(upstream.local_addr().unwrap(), u64::MAX, 1 << 16).client).await;
    let uri = format!("http://dns.example{}", get("a.example."));
    let body = Full::new(vec![0; WINDOW_BYTES as usize].into());
    let waiting = tokio::spawn({
        let mut sender = sender.clone();
        async move { sender.send_request(Request::get(uri).body(body).unwrap()).await }
    });
    upstream.recv_from(&mut [0; 512]).await.unwrap();
    ask(&mut sender, "web.default.lb.internal.", 7).await;
    assert!(!waiting.is_finished());
}

#[tokio::test]
async fn silent_and_idle_connections_end_at_the_stop() {
    for sent in ["", "PRI * HT", "G"] {
        let Served { mut client, serving, stop } = connected();
        client.write_all(sent.as_bytes()).await.unwrap();
        tokio::task::yield_now().await;
        stop.cancel();
        serving.await.unwrap().unwrap();
    }
    let Served { client, serving, stop } = connected();
    let mut sender = http2(client).await;
    ask(&mut sender, "web.default.lb.internal.", 1).await;
    stop.cancel();
    let _ = serving.await.unwrap();
}

#[tokio::test]
async fn first_bytes_decide_the_version_however_they_arrive() {
    for (bytes, expected) in [
        (PREFACE, true),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r!", false),
        (b"PROPFIND / HTTP/1.1", false),
        (b"PRI", false),
    ] {
        let (mut client, mut server) = duplex(64);
        let mut first = Vec::new();
        let writing = async {
            for byte in bytes {
                client.write_all(&[*byte]).await.unwrap();
                tokio::task::yield_now().await;
            }
            drop(client);
        };
        let (found, ()) = tokio::join!(has_preface(&mut server, &mut first), writing);
        assert_eq!(found.unwrap(), expected);
        assert!(bytes.starts_with(&first));
    }
}

/// A connection of DNS over gRPC.
fn by_grpc(upstream: SocketAddr) -> Served {
    served_by(HttpConfig::grpc(None, None), upstream, u64::MAX, 1 << 16)
}

fn call(body: Vec<u8>) -> Request<Full<Bytes>> {
    let request = Request::post(format!("http://dns.example{}", grpc::PATH));
    request.header(CONTENT_TYPE, grpc::MEDIA_TYPE).body(Full::new(body.into())).unwrap()
}

/// Returns the HTTP status, the status of gRPC, the sentence about it, and the body.
async fn call_status(
    sender: &mut SendRequest<Full<Bytes>>,
    request: Request<Full<Bytes>>,
) -> (u16, String, String, Bytes) {
    let (head, body) = sender.send_request(request).await.unwrap().into_parts();
    assert_eq!(head.headers[CONTENT_TYPE], grpc::MEDIA_TYPE);
    assert!(!head.headers.contains_key(CONTENT_LENGTH));
    let body = body.collect().await.unwrap();
    let trailers = body.trailers().cloned().unwrap_or(head.headers);
    let text = |name| trailers.get(name).map_or_else(String::new, |value| value.to_str().unwrap().to_owned());
    (head.status.as_u16(), text(grpc::STATUS), text(grpc::STATUS_MESSAGE), body.to_bytes())
}

#[tokio::test]
async fn calls_of_grpc_get_answers_with_their_id() {
    let mut sender = http2(by_grpc(CLIENT).client).await;
    for (name, rcode) in [
        ("web.default.lb.internal.", ResponseCode::NoError),
        ("none.default.lb.internal.", ResponseCode::NXDomain),
        ("a.example.", ResponseCode::ServFail),
    ] {
        // From the second query on the answer may come from the response cache.
        for id in [0, 7, 0xffff] {
            let asked = call(grpc::encode(&query(name, id)));
            let (http, status, _, body) = call_status(&mut sender, asked).await;
            assert_eq!((http, &*status), (200, "0"), "{name}");
            let answer = Message::from_vec(grpc::decode(&body).unwrap()).unwrap();
            assert_eq!((answer.metadata.id, answer.metadata.response_code), (id, rcode), "{name}");
        }
    }
}

#[tokio::test]
async fn wrong_calls_of_grpc_get_a_status_and_a_sentence() {
    let whole = grpc::encode(&query("web.default.lb.internal.", 1));
    let mut compressed = whole.clone();
    compressed[0] = 1;
    let mut answer = query("web.default.lb.internal.", 1);
    answer[2] |= 0x80;
    for (body, expected) in [
        (grpc::encode(b"no query"), "3"),
        (grpc::encode(&answer), "3"),
        (vec![0; 100_000], "8"),
        (grpc::encode(&[0; 65_536]), "8"),
        (compressed, "12"),
        (whole.repeat(2), "12"),
        (vec![], "13"),
        (whole[..whole.len() - 1].to_vec(), "13"),
        (vec![0, 0, 0, 0, 1, 0xff], "13"),
    ] {
        let mut sender = http2(by_grpc(CLIENT).client).await;
        let (http, status, sentence, body) = call_status(&mut sender, call(body)).await;
        assert_eq!((http, &*status), (200, expected), "{sentence}");
        assert!(sentence.ends_with('.') && body.is_empty(), "{sentence}");
        let (http, status, ..) = call_status(&mut sender, post("web.default.lb.internal.", 1)).await;
        assert_eq!((http, &*status), (415, "3"));
        // Neither of them ended the connection.
        assert_eq!(call_status(&mut sender, call(whole.clone())).await.1, "0");
    }
}

#[tokio::test]
async fn connections_of_grpc_end_at_the_stop_and_without_http_2() {
    for sent in ["", "PRI * HT", "GET / HTTP/1.1\r\nHost: x\r\n\r\n"] {
        let Served { mut client, serving, stop } = by_grpc(CLIENT);
        client.write_all(sent.as_bytes()).await.unwrap();
        tokio::task::yield_now().await;
        if !sent.starts_with("GET") {
            stop.cancel();
        }
        let _ = serving.await.unwrap();
    }
}

#[tokio::test]
async fn client_learns_the_maximum_of_queries_at_a_time() {
    for (config, expected) in [
        (HttpConfig::https(None), 100),
        (HttpConfig::grpc(None, None), 256),
        (HttpConfig::grpc(None, Some(7)), 7),
    ] {
        let mut client = served_by(config, CLIENT, u64::MAX, 1 << 16).client;
        // An empty SETTINGS frame follows (RFC 9113 section 3.4).
        client.write_all(&[PREFACE, &[0, 0, 0, 4, 0, 0, 0, 0, 0]].concat()).await.unwrap();
        let mut head = [0; 9];
        client.read_exact(&mut head).await.unwrap();
        let mut settings = vec![0; usize::from(head[2])];
        client.read_exact(&mut settings).await.unwrap();
        // SETTINGS_MAX_CONCURRENT_STREAMS (RFC 9113 section 6.5.2).
        let max = settings.chunks(6).find_map(|setting| setting.strip_prefix(&[0, 3]));
        assert_eq!((head[3], max), (4, Some(&u32::to_be_bytes(expected)[..])));
    }
}
