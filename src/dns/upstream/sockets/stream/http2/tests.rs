use std::slice::from_ref;
use std::time::Duration;

use h2::server::{self, SendResponse};
use h2::{Ping, Reason};
use hickory_proto::rr::{Name, RecordType};
use hyper::header::{AGE, CONTENT_LENGTH, CONTENT_TYPE};
use hyper::{Method, Request, Response};
use rustls::RootCertStore;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::{JoinHandle, yield_now};
use tokio::time::timeout;
use tokio_util::either::Either;

use super::super::{Connections, MAX_OPENING, POOLED_STREAM_TIMEOUT};
use super::*;
use crate::dns::message::query::UpstreamQuery;
use crate::dns::upstream::config::PoolConfig;
use crate::dns::upstream::endpoint::TlsClient;
use crate::dns::upstream::http::{HttpClient, HttpFormat};
use crate::dns::upstream::socket_budget::{NoSocket, SocketBudget, SocketQuota};
use crate::dns::upstream::sockets::SentQuery;
use crate::dns::upstream::tls::connector;

const TIMEOUT: Duration = Duration::from_secs(60);
const DNS: &str = "application/dns-message";

/// An upstream without TLS, and the connections to it.
struct Pair {
    listener: TcpListener,
    connections: Connections,
    quota: SocketQuota,
}

/// A request at the upstream.
struct Asked {
    request: Request<RecvStream>,
    response: SendResponse<Bytes>,
}

impl Pair {
    async fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let tls = TlsClient { connector: connector(Some(RootCertStore::empty()), None).unwrap(), name: None };
        let format = HttpFormat::Dns { path: "/dns-query".to_owned(), by_get: false };
        let client = HttpClient { tls: Some(tls), host: None, format };
        let budget = Arc::new(SocketBudget::default());
        let quota = budget.check_quota();
        let requests = client.requests_to(listener.local_addr().unwrap());
        Self { listener, connections: Connections::new(PoolConfig::default(), budget, Some(requests)), quota }
    }

    /// Sends a query over a new connection; returns it and the other end of the connection.
    async fn connect(&self) -> (SentQuery, TcpStream) {
        let stream = TcpStream::connect(self.listener.local_addr().unwrap()).await.unwrap();
        let permit = self.quota.take().unwrap();
        let asked = self.connections.ask_over(Either::Left(stream), permit, &query(), false);
        (asked, self.listener.accept().await.unwrap().0)
    }

    /// Sends a query over an open connection, if there is one.
    fn ask(&self) -> Option<SentQuery> {
        self.ask_at(Instant::now())
    }

    fn ask_at(&self, now: Instant) -> Option<SentQuery> {
        self.connections.ask(&query(), || self.quota.take(), now, None).unwrap().map(|(query, _)| query)
    }

    /// Waits until this many connections are idle.
    async fn has_idle(&self, number: usize) {
        let wait = async {
            while self.connections.idle() != number {
                yield_now().await;
            }
        };
        timeout(TIMEOUT, wait).await.unwrap_or_else(|_| panic!("{} are idle", self.connections.idle()));
    }
}

impl Asked {
    /// Reads the query; returns its answer, without records.
    async fn answer(&mut self) -> Vec<u8> {
        let mut message = Vec::new();
        while let Some(data) = self.request.body_mut().data().await {
            message.extend_from_slice(&data.unwrap());
        }
        message[2] |= 0x80;
        message
    }

    fn respond(&mut self, response: Response<()>, body: Vec<u8>) {
        let mut sending = self.response.send_response(response, false).unwrap();
        // The client may reset the stream before.
        let _ = sending.send_data(body.into(), true);
    }

    async fn respond_well(&mut self) {
        let answer = self.answer().await;
        self.respond(ok().body(()).unwrap(), answer);
    }
}

fn ok() -> hyper::http::response::Builder {
    Response::builder().header(CONTENT_TYPE, DNS)
}

fn query() -> Vec<u8> {
    UpstreamQuery::recursive(Name::from_ascii("a.example.").unwrap(), RecordType::A).key().encode(false)
}

async fn reply(query: &SentQuery) -> io::Result<UpstreamReply> {
    timeout(TIMEOUT, poll_fn(|context| query.poll_reply(context))).await.expect("a reply or an error")
}

async fn is_answered(query: &SentQuery) -> bool {
    matches!(reply(query).await, Ok(UpstreamReply::Answer(_)))
}

/// Serves a connection, on which the client may have `streams` requests at a time, until the connection ends or a
/// message to end it comes.
fn serve(end: TcpStream, streams: u32) -> (UnboundedReceiver<Asked>, oneshot::Sender<()>, JoinHandle<()>) {
    let (sender, receiver) = unbounded_channel();
    let (end_it, mut ending) = oneshot::channel();
    let serving = tokio::spawn(async move {
        let builder = server::Builder::new().max_concurrent_streams(streams).handshake::<_, Bytes>(end);
        let mut connection = builder.await.unwrap();
        loop {
            tokio::select! {
                asked = connection.accept() => match asked {
                    Some(Ok((request, response))) => _ = sender.send(Asked { request, response }),
                    _ => return,
                },
                Ok(()) = &mut ending, if !ending.is_terminated() => connection.graceful_shutdown(),
            }
        }
    });
    (receiver, end_it, serving)
}

#[tokio::test]
async fn queries_share_a_connection_from_the_start() {
    let pair = Pair::new().await;
    let (first, end) = pair.connect().await;
    let (mut asked, _open, _) = serve(end, 200);
    let second = pair.ask_at(first.sent).expect("the connection is shared");
    let (mut one, mut two) = (asked.recv().await.unwrap(), asked.recv().await.unwrap());
    let uri = format!("https://{}/dns-query", pair.listener.local_addr().unwrap());
    assert_eq!((one.request.method(), one.request.uri()), (&Method::POST, &uri.parse().unwrap()));
    assert_eq!(one.answer().await[..2], [0, 0]);
    two.respond_well().await;
    assert!(is_answered(&second).await);
    let third = pair.ask().unwrap();
    asked.recv().await.unwrap().respond_well().await;
    assert!(is_answered(&third).await);
    let mut answer = query();
    answer[2] |= 0x80;
    one.respond(ok().body(()).unwrap(), answer);
    assert!(is_answered(&first).await);
    pair.has_idle(1).await;
    let now = Instant::now();
    let all: Vec<_> = std::iter::from_fn(|| pair.ask_at(now)).collect();
    assert_eq!(all.len(), MAX_STREAMS);
    for query in &all {
        asked.recv().await.unwrap().respond_well().await;
        assert!(is_answered(query).await);
    }
    let waiting = pair.ask().unwrap();
    assert!(pair.ask_at(waiting.sent + Duration::from_millis(100)).is_none(), "the connection is silent");
    for is_shared in [false, true] {
        assert!(!pair.connections.doubt(&waiting.socket, Instant::now(), is_shared));
        assert!(pair.connections.doubt(&waiting.socket, now, is_shared), "it has answered since then");
    }
    assert!(pair.ask_at(waiting.sent).is_some(), "it is shared, whatever the order of its answers");
}

#[tokio::test]
async fn repeated_query_gets_no_connection_that_may_be_dead() {
    let pair = Pair::new().await;
    let (first, end) = pair.connect().await;
    let (mut asked, _open, _) = serve(end, 100);
    asked.recv().await.unwrap().respond_well().await;
    assert!(is_answered(&first).await);
    pair.has_idle(1).await;
    let sent = Instant::now();
    let repeat = || pair.connections.ask(&query(), || pair.quota.take(), Instant::now(), Some(sent)).unwrap();
    let resumed = pair.ask_at(sent).unwrap();
    let _shared = pair.ask_at(sent).expect("it is shared");
    assert!(repeat().is_none(), "no reply has come since then");
    asked.recv().await.unwrap().respond_well().await;
    assert!(is_answered(&resumed).await);
    assert!(repeat().is_some());
}

#[tokio::test]
async fn permit_is_taken_for_an_idle_connection_alone() {
    let pair = Pair::new().await;
    let (first, end) = pair.connect().await;
    let (mut asked, _open, _) = serve(end, 100);
    let refuse = || Err(io::Error::other(NoSocket));
    let ask = || pair.connections.ask(&query(), refuse, Instant::now(), None);
    let shared = ask().unwrap().unwrap().0;
    for query in [first, shared] {
        asked.recv().await.unwrap().respond_well().await;
        assert!(is_answered(&query).await);
    }
    pair.has_idle(1).await;
    assert!(ask().is_err());
    assert!(pair.ask().is_some());
}

#[tokio::test(start_paused = true)]
async fn few_connections_are_opened_at_a_time() {
    let pair = Pair::new().await;
    let mut permits = vec![pair.connections.wait_to_open().await.unwrap()];
    assert!(timeout(POOLED_STREAM_TIMEOUT / 2, pair.connections.wait_to_open()).await.is_err());
    while permits.len() < MAX_OPENING {
        permits.push(pair.connections.wait_to_open().await.unwrap());
    }
    for _ in 0..MAX_OPENING {
        let mut waiting = pin!(pair.connections.wait_to_open());
        assert!(timeout(TIMEOUT, &mut waiting).await.is_err(), "all are taken");
        drop(permits.remove(0));
        permits.push(timeout(TIMEOUT, waiting).await.expect("a permit").unwrap());
    }
}

#[tokio::test]
async fn upstream_sets_the_number_of_queries_at_a_time() {
    let pair = Pair::new().await;
    let (first, end) = pair.connect().await;
    let (mut asked, _open, _) = serve(end, 2);
    asked.recv().await.unwrap().respond_well().await;
    assert!(is_answered(&first).await);
    pair.has_idle(1).await;
    let now = Instant::now();
    assert_eq!(std::iter::from_fn(|| pair.ask_at(now)).collect::<Vec<_>>().len(), 2);
}

#[tokio::test]
async fn given_up_query_resets_its_stream() {
    let pair = Pair::new().await;
    let (slow, end) = pair.connect().await;
    let (mut asked, _open, serving) = serve(end, 100);
    let quick = pair.ask().unwrap();
    let (mut one, mut two) = (asked.recv().await.unwrap(), asked.recv().await.unwrap());
    two.respond_well().await;
    assert!(is_answered(&quick).await);
    drop(slow);
    let reset = timeout(TIMEOUT, poll_fn(|context| one.response.poll_reset(context)));
    assert_eq!(reset.await.expect("a reset").unwrap(), Reason::CANCEL);
    pair.has_idle(1).await;
    drop(pair.ask().unwrap());
    timeout(TIMEOUT, serving).await.expect("a silent connection ends").unwrap();
    assert_eq!(pair.connections.idle(), 0);
}

#[tokio::test]
async fn response_that_is_no_answer_ends_only_its_query() {
    let pair = Pair::new().await;
    let (mut query, end) = pair.connect().await;
    let (mut asked, _open, _) = serve(end, 100);
    let status = |code: u16| ok().status(code).body(()).unwrap();
    let of_type = |text: &str| Response::builder().header(CONTENT_TYPE, text).body(()).unwrap();
    let of_length = |length: usize| ok().header(CONTENT_LENGTH, length).body(()).unwrap();
    let too_long = "the body of the HTTP response has more than 65,535 bytes";
    for (response, body, error) in [
        (status(503), vec![], "the HTTP status is 503 Service Unavailable, and not 200 OK"),
        (status(301), vec![], "the HTTP status is 301 Moved Permanently, and not 200 OK"),
        (
            of_type("text/html"),
            vec![0; 100],
            "the content type of the HTTP response isn't application/dns-message",
        ),
        (of_length(70_000), vec![0; 10], too_long),
        (status(200), vec![0; 65_536], too_long),
        (status(200), vec![0; 100_000], too_long),
        (of_length(50), vec![0; 40], "http2: unspecific protocol error detected"),
        (of_length(50), vec![0; 60], "http2: unspecific protocol error detected"),
        (status(200), vec![0; 65_535], ""),
        (status(200), vec![], ""),
    ] {
        let mut asked = asked.recv().await.unwrap();
        asked.answer().await;
        asked.respond(response, body);
        match reply(&query).await {
            Err(found) => assert_eq!(found.to_string(), error),
            Ok(found) => assert!(matches!(found, UpstreamReply::Mismatch) && error.is_empty(), "{error}"),
        }
        pair.has_idle(1).await;
        query = pair.ask().unwrap();
    }
    asked.recv().await.unwrap().respond_well().await;
    assert!(is_answered(&query).await);
}

#[tokio::test]
async fn bodies_that_arrive_by_turns_become_whole() {
    let pair = Pair::new().await;
    let (first, end) = pair.connect().await;
    let (mut asked, _open, _) = serve(end, 100);
    let mut queries: Vec<_> = (0..8).map(|_| pair.ask_at(first.sent).unwrap()).collect();
    queries.push(first);
    let mut small = asked.recv().await.unwrap();
    let mut large = Vec::new();
    for _ in 0..8 {
        let mut asked = asked.recv().await.unwrap();
        large.push(asked.response.send_response(ok().body(()).unwrap(), false).unwrap());
    }
    for is_end in [false, true] {
        for body in &mut large {
            body.send_data(vec![0; 30_000].into(), is_end).unwrap();
        }
    }
    small.respond_well().await;
    let mut answered = 0;
    for query in &queries {
        answered += usize::from(is_answered(query).await);
    }
    assert_eq!(answered, 1);
}

#[tokio::test]
async fn age_of_a_response_reduces_ttls() {
    let pair = Pair::new().await;
    let (query, end) = pair.connect().await;
    let (mut asked, _open, _) = serve(end, 100);
    let mut asked = asked.recv().await.unwrap();
    let mut answer = asked.answer().await;
    answer[7] = 1;
    answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 192, 0, 2, 1]);
    asked.respond(ok().header(AGE, "50").body(()).unwrap(), answer);
    let Ok(UpstreamReply::Answer(answer)) = reply(&query).await else { panic!() };
    assert_eq!(answer.lowest_ttl(), Some(10));
}

#[tokio::test]
async fn goaway_lets_the_queries_under_way_end() {
    let pair = Pair::new().await;
    let (first, end) = pair.connect().await;
    let (mut asked, end_it, serving) = serve(end, 100);
    let mut asked = asked.recv().await.unwrap();
    end_it.send(()).unwrap();
    let is_leaving = async {
        while !first.socket.queries.lock().is_retired {
            yield_now().await;
        }
    };
    timeout(TIMEOUT, is_leaving).await.expect("the connection takes no further query");
    assert!(pair.ask_at(first.sent).is_none());
    asked.respond_well().await;
    let reply = reply(&first).await;
    assert!(matches!(reply, Ok(UpstreamReply::Answer(_))), "{reply:?}");
    timeout(TIMEOUT, serving).await.expect("the connection ends").unwrap();
}

#[tokio::test]
async fn upstream_may_measure_and_close_an_idle_connection() {
    let pair = Pair::new().await;
    let (query, end) = pair.connect().await;
    let serving = tokio::spawn(async move {
        let mut connection = server::handshake(end).await.unwrap();
        let (request, response) = connection.accept().await.unwrap().unwrap();
        Asked { request, response }.respond_well().await;
        let mut ping = connection.ping_pong().unwrap();
        tokio::select! {
            pong = ping.ping(Ping::opaque()) => drop(pong.unwrap()),
            _ = connection.accept() => panic!("no pong"),
        }
    });
    assert!(is_answered(&query).await);
    timeout(TIMEOUT, serving).await.expect("a pong").unwrap();
    pair.has_idle(0).await;
    assert!(pair.ask().is_none());
}

/// Returns a frame of HTTP/2 (RFC 9113 section 4.1).
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let [_, length @ ..] = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PUSH_PROMISE: u8 = 5;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 4;
/// `:status: 200`, and `:status: 103` as a literal (RFC 7541 appendix A, section 6.2.2).
const STATUS_200: &[u8] = &[0x88];
const STATUS_103: &[u8] = b"\x08\x03103";
/// A header `x` with a value of 100 bytes (RFC 7541 section 6.2.2).
fn header() -> Vec<u8> {
    [b"\x00\x01x\x64".to_vec(), vec![b'a'; 100]].concat()
}

/// Sends `start`, and then `rest` again and again until the connection ends.
async fn attack(end: TcpStream, start: Vec<u8>, rest: Vec<u8>) {
    let (mut reader, mut writer) = end.into_split();
    // The client's preface and frames.
    let reading = tokio::spawn(async move { tokio::io::copy(&mut reader, &mut tokio::io::sink()).await });
    let writing = async {
        writer.write_all(&start).await?;
        while !rest.is_empty() {
            writer.write_all(&rest).await?;
        }
        io::Result::Ok(())
    };
    let _ = writing.await;
    let _ = reading.await;
}

#[tokio::test]
async fn hostile_upstream_gets_an_error_and_limited_bytes() {
    let settings = frame(SETTINGS, 0, 0, &[]);
    let begin = |frames: &[Vec<u8>]| [settings.clone(), frames.concat()].concat();
    let head = frame(HEADERS, END_HEADERS, 1, STATUS_200);
    let large = [STATUS_200, &header().repeat(200)[..]].concat();
    let (first, rest) = large.split_at(16_000);
    let of_another_protocol = "http2: it doesn't speak HTTP/2, or only with TLS";
    let goaway = [&[0, 0, 0, 0, 0, 0, 0, 11][..], &[b'x'; 16_000]].concat();
    for (start, rest, error) in [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n".repeat(3), vec![], of_another_protocol),
        // The alert protocol_version of TLS.
        (vec![21, 3, 3, 0, 2, 2, 70], vec![], of_another_protocol),
        (begin(&[]), frame(99, 0, 0, &[0; 100]), ""),
        // Headers of 20 KB, and without an end.
        (begin(&[frame(HEADERS, 0, 1, first), frame(CONTINUATION, END_HEADERS, 1, rest)]), vec![], "http2: "),
        (begin(&[frame(HEADERS, 0, 1, STATUS_200)]), frame(CONTINUATION, 0, 1, &header()), "http2: "),
        (begin(&[frame(HEADERS, 0, 1, STATUS_200)]), frame(CONTINUATION, 0, 1, &[]), "http2: "),
        // More than the window, empty frames, and padding.
        (begin(from_ref(&head)), frame(DATA, 0, 1, &[0; 16_000]), ""),
        (begin(from_ref(&head)), frame(DATA, 0, 1, &[]), "http2: "),
        (begin(from_ref(&head)), frame(DATA, 8, 1, &[200; 201]), "http2: "),
        // Informational responses, PING and settings without an end.
        (begin(&[]), frame(HEADERS, END_HEADERS, 1, STATUS_103), ""),
        (begin(&[]), frame(PING, 0, 0, &[0; 8]), ""),
        (begin(&[]), settings.clone(), ""),
        (begin(&[]), frame(PUSH_PROMISE, END_HEADERS, 1, &[0, 0, 0, 2, 0x82]), "http2: "),
        (begin(&[frame(RST_STREAM, 0, 1, &[0, 0, 0, 7])]), vec![], "http2: refused stream before processing"),
        (begin(&[frame(GOAWAY, 0, 0, &goaway)]), vec![], "http2: "),
        (begin(&[frame(HEADERS, END_HEADERS, 7, STATUS_200)]), vec![], "http2: "),
    ] {
        let pair = Pair::new().await;
        let (query, end) = pair.connect().await;
        let what = format!("{:02x?} {:02x?}", &start[..start.len().min(40)], &rest[..rest.len().min(20)]);
        let attacking = tokio::spawn(attack(end, start, rest));
        let replied =
            timeout(Duration::from_millis(if error.is_empty() { 200 } else { 60_000 }), reply(&query));
        match replied.await {
            Ok(reply) => {
                let found = reply.map(|reply| format!("{reply:?}")).unwrap_err().to_string();
                assert!(found.starts_with(error) && found.len() < 200, "{what}: {found}");
            }
            Err(_) => assert!(error.is_empty(), "{what}: it takes all"),
        }
        drop(query);
        drop(pair);
        timeout(TIMEOUT, attacking)
            .await
            .unwrap_or_else(|_| panic!("{what}: the connection stays open"))
            .unwrap();
    }
}

#[tokio::test]
async fn upstream_that_reads_nothing_ends_with_its_query() {
    let pair = Pair::new().await;
    let (query, end) = pair.connect().await;
    let mut held = end;
    drop(query);
    let mut sink = Vec::new();
    timeout(TIMEOUT, held.read_to_end(&mut sink)).await.expect("the connection is closed").unwrap();
    assert!(sink.is_empty() || sink.starts_with(b"PRI * HTTP/2.0"));
}
