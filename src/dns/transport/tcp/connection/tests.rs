use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use futures::future::Abortable;
use hickory_proto::op::{Message, Query, ResponseCode};
use hickory_proto::rr::{Name, RecordType};
use tokio::io::{AsyncReadExt, DuplexStream, duplex};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::dns::chain::handler::Handler;
use crate::dns::plugins::setup::ServerContext;
use crate::dns::plugins::tests::support::link;
use crate::dns::response_cache::key::WireKey;
use crate::dns::server::config::first_handler;
use crate::dns::transport::connections::connection_limit::ConnectionLimiter;
use crate::dns::transport::metrics::TransportMetrics;
use crate::dns::transport::tcp::connection::*;
use crate::store::{Input, OnGone, Store};

const IDLE: Duration = Duration::from_secs(30);
/// The default timeout for the rest of a query, and for the client to read answers.
const IO_TIMEOUT: Duration = Duration::from_secs(5);
const CLIENT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 5353);

/// Returns a handler of the zone `lb.internal`, which forwards queries for other names to `upstream`, if any.
fn handler(upstream: Option<SocketAddr>) -> Arc<Handler> {
    let context = ServerContext::silent(Arc::new(Store::new(OnGone::Kept))).unwrap();
    let forward = upstream.map(|upstream| format!(". {{\nforward . {upstream}\n}}\n")).unwrap_or_default();
    first_handler(&format!("lb.internal {{\nlb_linker\n}}\n{forward}"), &context).unwrap()
}

fn connection(stop: &CancellationToken) -> Connection {
    let handler = handler(None);
    let (permit, _) =
        Arc::new(ConnectionLimiter::new(handler.metrics.group().unwrap())).admit(CLIENT).unwrap();
    let limits = ConnectionLimits::default();
    Connection { client: CLIENT, local: None, limits, handler, permit, stop: stop.clone() }
}

/// Serves a connection whose two ends each buffer `bytes` bytes. Returns the client's end, the task and the stop token.
fn connected(bytes: usize) -> (DuplexStream, JoinHandle<io::Result<()>>, CancellationToken) {
    limited(bytes, ConnectionLimits::default())
}

fn limited(
    bytes: usize,
    limits: ConnectionLimits,
) -> (DuplexStream, JoinHandle<io::Result<()>>, CancellationToken) {
    let (client, server) = duplex(bytes);
    let stop = CancellationToken::new();
    let serving = tokio::spawn(Connection { limits, ..connection(&stop) }.serve(server));
    (client, serving, stop)
}

/// Returns a query with its length prefix.
fn framed() -> Vec<u8> {
    framed_question("web.lb.internal.", 0)
}

fn framed_question(name: &str, id: u16) -> Vec<u8> {
    let mut message = Message::query();
    message.metadata.id = id;
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(Name::from_ascii(name).unwrap(), RecordType::A));
    let message = message.to_vec().unwrap();
    [&u16::try_from(message.len()).unwrap().to_be_bytes(), &*message].concat()
}

async fn read_answer(stream: &mut (impl AsyncRead + Unpin)) -> Vec<u8> {
    let mut answer = vec![0; stream.read_u16().await.unwrap().into()];
    stream.read_exact(&mut answer).await.unwrap();
    answer
}

fn is_timeout(ended: io::Result<()>) -> bool {
    ended.is_err_and(|error| error.kind() == io::ErrorKind::TimedOut)
}

#[tokio::test(start_paused = true)]
async fn an_idle_connection_is_closed_after_30_seconds() {
    let (mut client, serving, _stop) = connected(4096);
    let mut start = Instant::now();
    for _ in 0..2 {
        tokio::time::sleep(Duration::from_secs(20)).await;
        start = Instant::now();
        client.write_all(&framed()).await.unwrap();
        read_answer(&mut client).await;
    }
    serving.await.unwrap().unwrap();
    assert_eq!(start.elapsed().as_secs(), IDLE.as_secs());
    assert_eq!(client.read(&mut [0]).await.unwrap(), 0);
}

fn handler_of(store: &Arc<Store>) -> Arc<Handler> {
    store.set_zones([&Name::from_ascii("lb.internal.").unwrap()]);
    store.set_known(Input::Services);
    let context = ServerContext::silent(Arc::clone(store)).unwrap();
    first_handler("lb.internal {\nlb_linker\n}\n", &context).unwrap()
}

#[tokio::test]
async fn cached_answer_is_reused_and_counts_as_a_query() {
    let store = Arc::new(Store::new(OnGone::Kept));
    store.apply(link("web", "192.0.2.1"));
    let handler = handler_of(&store);
    // The cache holds the answer to `web` under the key of `www`, so an address of `www` can come only from the cache.
    let (web, www) = ("web.default.lb.internal.", "www.default.lb.internal.");
    let asked = framed_question(web, 0)[2..].to_vec();
    let wire_response =
        handler.answer(asked, CLIENT, None, Protocol::Tcp, true).await.unwrap().wire_response.unwrap();
    let mut key = WireKey::default();
    assert!(key.read(&framed_question(www, 0)[2..], false));
    with_thread_cache(|cache| {
        cache.response_cache.insert(key.as_bytes().into(), CLIENT.ip(), *wire_response, Instant::now())
    });

    let (mut client, serving) = duplex(4096);
    let stop = CancellationToken::new();
    let limits = ConnectionLimits { queries: 6, ..ConnectionLimits::default() };
    let serving = tokio::spawn(Connection { handler, limits, ..connection(&stop) }.serve(serving));
    let names = [www, www, "none.default.lb.internal.", www, web, web, web];
    let questions = (0..).zip(names).map(|(id, name)| framed_question(name, id));
    client.write_all(&questions.collect::<Vec<_>>().concat()).await.unwrap();
    let mut answers = Vec::new();
    client.read_to_end(&mut answers).await.unwrap();
    let mut rest = &answers[..];
    let mut seen = Vec::new();
    while let Some((length, after)) = rest.split_first_chunk() {
        let (answer, after) = after.split_at(u16::from_be_bytes(*length).into());
        let answer = Message::from_vec(answer).unwrap();
        assert_eq!(answer.queries[0].name().to_ascii(), names[usize::from(answer.metadata.id)]);
        seen.push((answer.metadata.id, answer.answers.len()));
        rest = after;
    }
    assert_eq!(
        seen,
        [(0, 1), (1, 1), (2, 0), (3, 1), (4, 1), (5, 1)],
        "the seventh query exceeds the limit of six"
    );
    drop(client);
    serving.await.unwrap().unwrap();
}

#[tokio::test]
async fn repeated_query_gets_the_current_answer() {
    let store = Arc::new(Store::new(OnGone::Kept));
    let handler = handler_of(&store);
    let (mut client, serving) = duplex(4096);
    let stop = CancellationToken::new();
    let serving = tokio::spawn(Connection { handler, ..connection(&stop) }.serve(serving));
    for target in ["192.0.2.1", "192.0.2.2"] {
        store.apply(link("web", target));
        for id in 0..3 {
            let question = framed_question("web.default.lb.internal.", id);
            client.write_all(&question).await.unwrap();
            let answer = Message::from_vec(&read_answer(&mut client).await).unwrap();
            assert_eq!(answer.metadata.id, id);
            assert_eq!(answer.answers[0].data.ip_addr(), target.parse().ok());
        }
    }
    drop(client);
    serving.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn slow_partial_query_closes_the_connection_after_5_seconds() {
    for whole_ones in 0..2 {
        let (mut client, serving, _stop) = connected(4096);
        for _ in 0..whole_ones {
            client.write_all(&framed()).await.unwrap();
        }
        let start = Instant::now();
        let drip = async {
            for byte in framed().chunks(1) {
                client.write_all(byte).await.unwrap_or_default();
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        };
        let ended = tokio::select! { ended = serving => ended.unwrap(), () = drip => panic!("not closed") };
        assert!(is_timeout(ended));
        assert_eq!(start.elapsed().as_secs(), IO_TIMEOUT.as_secs());
    }
}

#[tokio::test(start_paused = true)]
async fn a_listener_may_have_limits_of_its_own() {
    let seconds = Duration::from_secs;
    let limits = ConnectionLimits {
        read: seconds(20),
        write: seconds(60),
        idle: seconds(2),
        ..ConnectionLimits::default()
    };
    // An idle client, a partial query, and unread answers.
    let flood = framed().repeat(100);
    for (asked, room, after) in [(vec![], 4096, 2), (vec![0, 40, 1], 4096, 20), (flood, 64, 60)] {
        let (mut client, serving, _stop) = limited(room, limits);
        let start = Instant::now();
        let asking = tokio::spawn(async move {
            client.write_all(&asked).await.unwrap_or_default();
            client
        });
        assert_eq!(is_timeout(serving.await.unwrap()), after > 2);
        assert_eq!(start.elapsed().as_secs(), after);
        asking.await.unwrap();
    }
    let (_silent, handshaking, _stop) = handshaking(limits);
    let start = Instant::now();
    assert!(is_timeout(handshaking.await.unwrap()));
    assert_eq!(start.elapsed().as_secs(), 20);
}

#[tokio::test(start_paused = true)]
async fn connection_closes_after_its_last_allowed_query() {
    let (mut client, serving, _stop) =
        limited(4096, ConnectionLimits { queries: 3, ..ConnectionLimits::default() });
    client.write_all(&framed()).await.unwrap();
    read_answer(&mut client).await;
    // Three more queries and a partial one; two of them are answered.
    client.write_all(&[framed().repeat(3), vec![0, 40, 1]].concat()).await.unwrap();
    let mut answers = Vec::new();
    client.read_to_end(&mut answers).await.unwrap();
    assert_eq!(answers.len(), 2 * framed().len());
    // Further data of the client is read, because unread data could make the kernel drop the answers.
    client.write_all(&framed()).await.unwrap();
    drop(client);
    serving.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn client_that_exceeds_its_query_limit_is_disconnected() {
    let (mut client, serving, _stop) =
        limited(4096, ConnectionLimits { queries: 1, ..ConnectionLimits::default() });
    let start = Instant::now();
    let keep_sending = async {
        while client.write_all(&framed()).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let (ended, ()) = tokio::join!(serving, keep_sending);
    ended.unwrap().unwrap();
    assert_eq!(start.elapsed().as_secs(), DRAIN_TIMEOUT.as_secs());
}

/// Returns messages that get no reply: an empty one, one shorter than a header, and a response.
fn unanswerable() -> Vec<Vec<u8>> {
    let mut answer = framed();
    answer[4] |= 0x80;
    vec![vec![0, 0], vec![0, 3, 1, 2, 3], answer]
}

#[tokio::test(start_paused = true)]
async fn unanswerable_messages_do_not_prevent_the_idle_timeout() {
    for frame in unanswerable() {
        // Complete messages; then, with shift 1, writes that each end with the first byte of the next message.
        for shift in 0..2 {
            let (mut client, serving, _stop) = connected(4096);
            let start = Instant::now();
            client.write_all(&frame[..shift]).await.unwrap();
            let keep_sending = async {
                for _ in 0..20 {
                    tokio::time::sleep(Duration::from_secs(4)).await;
                    let next = [&frame[shift..], &frame[..shift]].concat();
                    client.write_all(&next).await.unwrap_or_default();
                }
                panic!("not closed");
            };
            let ended =
                tokio::select! { ended = serving => ended.unwrap(), () = keep_sending => unreachable!() };
            assert_eq!(is_timeout(ended), shift > 0);
            assert!(start.elapsed() <= IDLE + IO_TIMEOUT, "{:?}", start.elapsed());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn unanswerable_messages_do_not_prevent_eviction() {
    let (handler, stop) = (handler(None), CancellationToken::new());
    let limiter = Arc::new(ConnectionLimiter::with(handler.metrics.group().unwrap(), 2));
    let limits = ConnectionLimits::default();
    let connect = |last: u8| {
        let client = SocketAddr::from(([10, 0, 0, last], 5353));
        let (permit, registration) = limiter.admit(client).unwrap();
        let connection = Connection {
            client,
            local: None,
            limits,
            handler: Arc::clone(&handler),
            permit,
            stop: stop.clone(),
        };
        let (client, server) = duplex(4096);
        (client, tokio::spawn(Abortable::new(connection.serve(server), registration)))
    };
    let ((mut first, first_serving), (mut second, _second_serving)) = (connect(1), connect(2));
    // A valid query moves its connection to the end of the queue of idle connections; a message without a reply
    // doesn't.
    second.write_all(&framed()).await.unwrap();
    read_answer(&mut second).await;
    first.write_all(&unanswerable().concat()).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let _third = connect(3);
    assert!(first_serving.await.unwrap().is_err(), "the first connection is evicted");
    second.write_all(&framed()).await.unwrap();
    read_answer(&mut second).await;
}

#[tokio::test(start_paused = true)]
async fn waiting_queries_do_not_delay_known_answers() {
    let silent = tokio::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let handler = handler(Some(silent.local_addr().unwrap()));
    let metrics = handler.metrics.group::<TransportMetrics>().unwrap();
    let (permit, _) = Arc::new(ConnectionLimiter::new(Arc::clone(&metrics))).admit(CLIENT).unwrap();
    let connection = Connection { handler, permit, ..connection(&CancellationToken::new()) };
    let (mut client, server) = duplex(65535);
    let start = Instant::now();
    let max = u16::try_from(MAX_PIPELINED).unwrap();
    let slow = |id| framed_question("slow.example.", id);
    client.write_all(&(0..max + 2).flat_map(slow).collect::<Vec<_>>()).await.unwrap();
    client.write_all(&framed_question("web.lb.internal.", 1000)).await.unwrap();
    let serving = tokio::spawn(connection.serve(server));
    for expected in [max, max + 1, 1000] {
        let answer = Message::from_vec(&read_answer(&mut client).await).unwrap();
        assert_eq!(answer.metadata.id, expected);
        assert_eq!(answer.metadata.response_code, ResponseCode::ServFail);
        assert_eq!(answer.queries.len(), 1);
    }
    assert_eq!(start.elapsed(), Duration::ZERO);
    assert_eq!(metrics.connections_busy.get(), 2);
    // The first `max` queries keep waiting, and are answered in the end.
    client.shutdown().await.unwrap();
    for _ in 0..max {
        read_answer(&mut client).await;
    }
    serving.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn queries_received_before_the_stop_are_answered() {
    // More queries than one read takes.
    let (mut client, server) = duplex(64 << 10);
    client.write_all(&framed().repeat(500)).await.unwrap();
    let stop = CancellationToken::new();
    stop.cancel();
    connection(&stop).serve(server).await.unwrap();
    let mut answers = Vec::new();
    client.read_to_end(&mut answers).await.unwrap();
    assert_eq!(answers.len(), 500 * framed().len());
}

#[tokio::test(start_paused = true)]
async fn client_that_does_not_read_is_disconnected() {
    // The buffer holds far fewer bytes than the answers have.
    let (mut client, serving, _stop) = connected(64);
    let start = Instant::now();
    let mut sent = 0;
    let flood = async {
        while client.write_all(&framed()).await.is_ok() {
            sent += 1;
        }
        std::future::pending::<()>().await;
    };
    let ended = tokio::select! { ended = serving => ended.unwrap(), () = flood => unreachable!() };
    assert!(is_timeout(ended));
    assert_eq!(start.elapsed().as_secs(), IO_TIMEOUT.as_secs());
    assert!(sent < 500, "{sent} queries were taken");
}

#[tokio::test(start_paused = true)]
async fn slow_reader_gets_every_answer() {
    let (mut client, serving, _stop) = connected(64);
    let (mut reader, mut writer) = tokio::io::split(&mut client);
    let ask = async {
        for _ in 0..200 {
            writer.write_all(&framed()).await.unwrap();
        }
    };
    let read = async {
        for _ in 0..200 {
            read_answer(&mut reader).await;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::join!(ask, read);
    drop(client);
    serving.await.unwrap().unwrap();
}

/// Sends answers of `sizes` bytes to a client that reads `bytes_per_second`. Returns the result of the connection.
async fn write_answers(sizes: &[usize], bytes_per_second: usize) -> io::Result<()> {
    let (mut client, server) = duplex(64);
    let mut session = Session::new(connection(&CancellationToken::new()), Protocol::Tcp);
    for size in sizes {
        session.output.push(&vec![0; *size], None);
    }
    let mut rest: usize = sizes.iter().map(|size| size + 2).sum();
    let read = async move {
        let mut bytes = vec![0; bytes_per_second];
        while rest > 0 && client.read_exact(&mut bytes[..rest.min(bytes_per_second)]).await.is_ok() {
            rest = rest.saturating_sub(bytes_per_second);
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    let (ended, ()) = tokio::join!(session.run(server, std::future::pending()), read);
    ended
}

#[tokio::test(start_paused = true)]
async fn each_large_answer_has_a_write_timeout_of_its_own() {
    write_answers(&[60_000; 20], 30_000).await.unwrap();
    assert!(is_timeout(write_answers(&[60_000; 20], 10_000).await));
}

#[tokio::test(start_paused = true)]
async fn small_answers_have_no_more_time_than_a_large_one() {
    write_answers(&[60; 60], 1000).await.unwrap();
    assert!(is_timeout(write_answers(&[60; 60], 62).await));
}

#[tokio::test(start_paused = true)]
async fn answers_without_quota_are_limited_by_the_unread_bytes() {
    let mut session = Session::new(connection(&CancellationToken::new()), Protocol::Tcp);
    let small = || Some(BufferedReply { bytes: vec![0; 1000], held: None, following: None });
    for _ in 0..5 {
        session.answered(small()).unwrap();
    }
    assert!(session.answered(small()).is_err());
    assert_eq!(
        session.connection.handler.metrics.group::<TransportMetrics>().unwrap().connections_unread.get(),
        1
    );
}

#[tokio::test(start_paused = true)]
async fn queries_before_the_end_of_stream_are_answered() {
    let (mut client, serving, stop) = connected(4096);
    client.write_all(&[framed(), framed()].concat()).await.unwrap();
    client.shutdown().await.unwrap();
    read_answer(&mut client).await;
    read_answer(&mut client).await;
    serving.await.unwrap().unwrap();
    assert!(!stop.is_cancelled());
}

#[tokio::test(start_paused = true)]
async fn stop_ends_partial_queries_and_handshakes_at_once() {
    let (mut client, serving, stop) = connected(4096);
    client.write_all(&[0, 40, 1]).await.unwrap();
    let (_silent, handshaking, stop_tls) = handshaking(ConnectionLimits::default());
    let start = Instant::now();
    stop.cancel();
    stop_tls.cancel();
    serving.await.unwrap().unwrap();
    handshaking.await.unwrap().unwrap();
    assert_eq!(start.elapsed(), Duration::ZERO);
}

fn handshaking(limits: ConnectionLimits) -> (DuplexStream, JoinHandle<io::Result<()>>, CancellationToken) {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let no_certificate = Arc::new(rustls::server::ResolvesServerCertUsingSni::new());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_cert_resolver(no_certificate);
    let (client, server) = duplex(4096);
    let stop = CancellationToken::new();
    let connection = Connection { limits, ..connection(&stop) };
    let serving = tokio::spawn(connection.serve_tls(server, Arc::new(config).into()));
    (client, serving, stop)
}

#[tokio::test(start_paused = true)]
async fn a_handshake_that_does_not_end_is_cut_off_after_5_seconds() {
    let (mut client, serving, _stop) = handshaking(ConnectionLimits::default());
    let start = Instant::now();
    // The header of a handshake record (RFC 8446 section 5.1) without the body.
    client.write_all(&[22, 3, 1, 1, 0]).await.unwrap();
    assert!(is_timeout(serving.await.unwrap()));
    assert_eq!(start.elapsed().as_secs(), IO_TIMEOUT.as_secs());
}

#[tokio::test(start_paused = true)]
async fn plain_query_to_a_tls_listener_closes_the_connection() {
    let (mut client, serving, _stop) = handshaking(ConnectionLimits::default());
    let start = Instant::now();
    client.write_all(&framed()).await.unwrap();
    assert!(serving.await.unwrap().is_err());
    assert_eq!(start.elapsed(), Duration::ZERO);
}

mod transfers;
