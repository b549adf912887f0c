use futures::future::join_all;
use h2::RecvStream;
use h2::server::SendResponse;
use hickory_proto::rr::{Name, RecordType};
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderMap};
use hyper::{Request, Response};
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::task::{JoinSet, yield_now};
use tokio::time::{advance, sleep};

use super::*;
use crate::dns::message::grpc;
use crate::dns::message::header::HEADER;
use crate::dns::message::query::UpstreamQuery;
use crate::dns::upstream::config::ForwardOptions;
use crate::dns::upstream::endpoint::UpstreamEndpoint;
use crate::dns::upstream::error::ForwardError;
use crate::dns::upstream::group::UpstreamGroup;
use crate::dns::upstream::http::HttpFormat;
use crate::dns::upstream::lookup_origin::LookupOrigin;
use crate::dns::upstream::tls::connector;
use crate::held_port::HeldPort;

fn upstream(address: SocketAddr, transport: Transport) -> Arc<Upstream> {
    let options = ForwardOptions { max_fails: 0, ..ForwardOptions::default() };
    Arc::new(Upstream::new(UpstreamEndpoint { address, transport }, &options))
}

/// Sends one query to an upstream, and returns the answer.
async fn ask(upstream: &Arc<Upstream>, quota: &SocketQuota) -> Result<Arc<WireMessage>, ExchangeError> {
    ask_for(Duration::from_secs(30), upstream, quota).await
}

/// As [`ask`], with the time until the deadline.
async fn ask_for(
    time: Duration,
    upstream: &Arc<Upstream>,
    quota: &SocketQuota,
) -> Result<Arc<WireMessage>, ExchangeError> {
    let begun = Instant::now();
    let times = ExchangeTimes { begun, deadline: begun + time };
    let (progress, question, limiter) = (&upstream.progress(begun), &question(), &QueryLimiter::default());
    let by_tcp = matches!(upstream.endpoint.transport, Transport::Tcp);
    Attempt { upstream, question, by_tcp, times, progress, quota, limiter }.exchange().await.1
}

#[tokio::test]
async fn slow_answer_leaves_the_idle_connections_open() {
    let read = async |stream: &mut TcpStream| {
        let mut message = vec![0; usize::from(stream.read_u16().await.unwrap())];
        stream.read_exact(&mut message).await.unwrap();
        message
    };
    let answer = async |stream: &mut TcpStream, mut message: Vec<u8>| {
        message[2] |= 0x80;
        stream.write_u16(message.len().try_into().unwrap()).await.unwrap();
        stream.write_all(&message).await.unwrap();
    };
    for (is_answered_by_old, idle) in [(true, 2), (false, 1)] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let upstream = upstream(listener.local_addr().unwrap(), Transport::Tcp);
        let quota = upstream.budget.check_quota();
        let has_idle = async |number| {
            let wait = async {
                while upstream.connections.idle() != number {
                    yield_now().await;
                }
            };
            timeout(Duration::from_secs(60), wait).await.expect("this number of idle connections");
        };
        let mut accepted = Vec::new();
        for number in 1..=2 {
            let (stream, permit) = (upstream.connect().await.unwrap(), quota.take().unwrap());
            let _asked = upstream.connections.ask_over(stream, permit, &question().encode(false), false);
            let mut stream = listener.accept().await.unwrap().0;
            let message = read(&mut stream).await;
            answer(&mut stream, message).await;
            has_idle(number).await;
            accepted.push(stream);
        }
        let answering = async {
            let mut old = accepted.pop().unwrap();
            let mut message = read(&mut old).await;
            let (mut new, _) = listener.accept().await.unwrap();
            let answered = if is_answered_by_old { &mut old } else { &mut new };
            if !is_answered_by_old {
                message = read(answered).await;
            }
            answer(answered, message).await;
            (old, new)
        };
        let (answer, _open) = tokio::join!(ask(&upstream, &quota), answering);
        answer.unwrap();
        has_idle(idle).await;
    }
}

#[tokio::test(start_paused = true)]
async fn query_is_repeated_though_no_socket_is_spare() {
    let upstream_socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let upstream = upstream(upstream_socket.local_addr().unwrap(), Transport::Udp);
    let quota = upstream.budget.quota_for(LookupOrigin::Forward, [10, 0, 0, 1].into());
    let _in_use: Vec<SocketPermit> = std::iter::from_fn(|| quota.take_spare().ok()).collect();
    let answering = async {
        let mut message = [0; 512];
        let (_, first) = upstream_socket.recv_from(&mut message).await.unwrap();
        // This datagram gets no answer, as if it were lost.
        let (length, second) = upstream_socket.recv_from(&mut message).await.unwrap();
        assert_eq!(first, second, "the query is repeated from the same socket");
        message[2] |= 0x80;
        upstream_socket.send_to(&message[..length], second).await.unwrap();
    };
    let asking = async { tokio::join!(ask(&upstream, &quota), answering) };
    let (answer, ()) = timeout(Duration::from_secs(60), asking).await.expect("the query is repeated");
    assert!(answer.is_ok(), "{answer:?}");
}

#[tokio::test(start_paused = true)]
async fn query_is_repeated_though_its_reused_socket_has_failed() {
    advance(Duration::from_secs(1)).await;
    let silent = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let upstream = upstream(silent.local_addr().unwrap(), Transport::Udp);
    let quota = upstream.budget.check_quota();
    let broken = upstream.open_udp(quota.take().unwrap()).unwrap();
    upstream.sockets.add(&broken);
    let hearing = async {
        silent.recv(&mut [0; 512]).await.unwrap();
        broken.fail(|| io::ErrorKind::ConnectionRefused.into());
        silent.recv(&mut [0; 512]).await.unwrap();
    };
    tokio::select! {
        () = hearing => {}
        answer = ask(&upstream, &quota) => panic!("{answer:?}"),
    }
}

/// Returns an upstream by HTTP/2.
fn http_upstream(listener: &TcpListener, by_tls: bool) -> Arc<Upstream> {
    let connector = connector(Some(rustls::RootCertStore::empty()), None).unwrap();
    let tls = by_tls.then_some(TlsClient { connector, name: None });
    let client = HttpClient { tls, host: None, format: HttpFormat::Grpc };
    upstream(listener.local_addr().unwrap(), Transport::Http(client))
}

async fn answer_by_grpc(request: Request<RecvStream>, mut response: SendResponse<Bytes>) {
    let (mut body, mut bytes) = (request.into_body(), Vec::new());
    while let Some(data) = body.data().await {
        bytes.extend_from_slice(&data.unwrap());
    }
    let answer = addresses(grpc::decode(&bytes).unwrap(), 1);
    let head = Response::builder().header(CONTENT_TYPE, grpc::MEDIA_TYPE).body(()).unwrap();
    let mut sending = response.send_response(head, false).unwrap();
    sending.send_data(grpc::encode(&answer).into(), false).unwrap();
    let mut trailers = HeaderMap::new();
    trailers.insert(grpc::STATUS, "0".parse().unwrap());
    sending.send_trailers(trailers).unwrap();
}

#[tokio::test]
async fn queries_of_a_failed_connection_share_the_next_one() {
    const QUERIES: usize = 10;
    for is_silent in [false, true] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let upstream = http_upstream(&listener, false);
        let quota = upstream.budget.check_quota();
        let accept = async || h2::server::handshake(listener.accept().await.unwrap().0).await.unwrap();
        let answering = async {
            let (mut first, mut unanswered, mut answers) = (accept().await, Vec::new(), JoinSet::new());
            let (request, response) = first.accept().await.unwrap().unwrap();
            answers.spawn(answer_by_grpc(request, response));
            while unanswered.len() < QUERIES {
                unanswered.push(first.accept().await.unwrap().unwrap());
            }
            let _open = is_silent.then_some((unanswered, first));
            let mut next = accept().await;
            loop {
                tokio::select! {
                    asked = next.accept() => {
                        let (request, response) = asked.unwrap().unwrap();
                        answers.spawn(answer_by_grpc(request, response));
                    }
                    _ = listener.accept() => panic!("there is a third connection"),
                }
            }
        };
        let asking = async {
            ask(&upstream, &quota).await.unwrap();
            join_all((0..QUERIES).map(|_| ask(&upstream, &quota))).await
        };
        tokio::select! {
            answers = asking => answers.into_iter().for_each(|answer| drop(answer.unwrap())),
            () = answering => {}
        }
    }
}

#[tokio::test]
async fn query_opens_a_connection_beside_a_slow_handshake() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let upstream = http_upstream(&listener, true);
    let quota = upstream.budget.check_quota();
    let accepting = async { (listener.accept().await.unwrap(), listener.accept().await.unwrap()) };
    tokio::select! {
        _ = accepting => {}
        answers = join_all([ask(&upstream, &quota), ask(&upstream, &quota)]) => panic!("{answers:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn query_that_waits_for_a_connection_ends_at_its_deadline() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let upstream = http_upstream(&listener, true);
    let quota = upstream.budget.check_quota();
    let _opening = upstream.connections.wait_to_open().await.unwrap();
    let asking = ask_for(POOLED_STREAM_TIMEOUT / 3, &upstream, &quota);
    let answer = timeout(POOLED_STREAM_TIMEOUT / 2, asking).await.expect("it ends");
    assert!(answer.is_err_and(|error| error.is_timeout()));
}

#[tokio::test(start_paused = true)]
async fn silent_handshakes_are_few() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let upstream = http_upstream(&listener, true);
    let quota = upstream.budget.check_quota();
    let asking = timeout(Duration::from_secs(10), join_all((0..20).map(|_| ask(&upstream, &quota))));
    assert!(asking.await.is_err(), "all wait");
    let mut accepted = 0;
    while let Ok(connection) = timeout(Duration::from_secs(1), listener.accept()).await {
        drop(connection.unwrap());
        accepted += 1;
    }
    assert_eq!(accepted, 3);
}

#[tokio::test(start_paused = true)]
async fn connections_of_an_outage_have_time_to_open() {
    const QUERIES: u32 = 300;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let options = ForwardOptions { max_fails: 0, ..ForwardOptions::default() };
    let group = UpstreamGroup::new(vec![http_upstream(&listener, true).endpoint.clone()], options);
    let asked = &question();
    let ask = async |number: u32| {
        sleep(Duration::from_millis(50) * number).await;
        group.ask(asked, LookupOrigin::Forward, [10, 0, 0, 1].into(), &QueryLimiter::default()).await
    };
    let mut accepted = Vec::new();
    let accepting = async {
        loop {
            accepted.push(listener.accept().await.unwrap());
        }
    };
    tokio::select! {
        () = accepting => {}
        answers = join_all((0..QUERIES).map(ask)) => assert!(answers.iter().all(Result::is_err)),
    }
    let number = accepted.len();
    assert!(number < 60, "{number} connections in 20 s: three at a time, each of at least a second");
}

/// An upstream that answers with octets of the test's choice.
struct RawUpstream {
    address: SocketAddr,
    /// When the queries arrived.
    arrivals: Arc<Mutex<Vec<Instant>>>,
    _port: HeldPort,
    _tasks: JoinSet<()>,
}

/// Returns the reply to a query; `None` for silence.
type React = fn(&[u8]) -> Option<Vec<u8>>;

impl RawUpstream {
    /// Starts an upstream. Without `by_tcp`, its TCP port is closed.
    fn start(by_udp: React, by_tcp: Option<React>) -> Self {
        let port = HeldPort::take().unwrap();
        let address = port.local();
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::DGRAM, None).unwrap();
        socket.set_reuse_port(true).unwrap();
        socket.set_nonblocking(true).unwrap();
        socket.bind(&address.into()).unwrap();
        let udp = UdpSocket::from_std(socket.into()).unwrap();
        let arrivals: Arc<Mutex<Vec<Instant>>> = Arc::default();
        let mut tasks = JoinSet::new();
        let arrived = Arc::clone(&arrivals);
        tasks.spawn(async move {
            let mut query = [0; 512];
            loop {
                let (length, from) = udp.recv_from(&mut query).await.unwrap();
                arrived.lock().push(Instant::now());
                if let Some(reply) = by_udp(&query[..length]) {
                    udp.send_to(&reply, from).await.unwrap();
                }
            }
        });
        if let Some(react) = by_tcp {
            let socket = TcpSocket::new_v4().unwrap();
            socket.set_reuseaddr(true).unwrap();
            socket.bind(address).unwrap();
            let (listener, arrived) = (socket.listen(16).unwrap(), Arc::clone(&arrivals));
            tasks.spawn(async move {
                let mut connections = JoinSet::new();
                loop {
                    let (stream, _) = listener.accept().await.unwrap();
                    connections.spawn(converse(stream, react, Arc::clone(&arrived)));
                }
            });
        }
        Self { address, arrivals, _port: port, _tasks: tasks }
    }

    fn endpoint(&self) -> UpstreamEndpoint {
        UpstreamEndpoint { address: self.address, transport: Transport::Udp }
    }

    async fn ask(&self, origin: LookupOrigin) -> Result<Arc<WireMessage>, ForwardError> {
        let options = ForwardOptions { max_fails: 0, max_attempts: Some(0), ..ForwardOptions::default() };
        let group = UpstreamGroup::new(vec![self.endpoint()], options);
        group.ask(&question(), origin, [10, 0, 0, 1].into(), &QueryLimiter::default()).await
    }
}

async fn converse(mut stream: TcpStream, react: React, arrivals: Arc<Mutex<Vec<Instant>>>) {
    while let Ok(length) = stream.read_u16().await {
        let mut query = vec![0; usize::from(length)];
        stream.read_exact(&mut query).await.unwrap();
        arrivals.lock().push(Instant::now());
        if let Some(reply) = react(&query) {
            let framed = [&u16::try_from(reply.len()).unwrap().to_be_bytes(), &reply[..]].concat();
            // The client may have closed the connection.
            let _ = stream.write_all(&framed).await;
        }
    }
}

fn question() -> QueryKey {
    UpstreamQuery::recursive(Name::from_ascii("a.example.").unwrap(), RecordType::A).key()
}

/// The size of the header and of the question in a message about `a.example.`.
const QUESTION_END: usize = HEADER + 11 + 4;
const ADDRESS: &[u8] = &[0xc0, 0x0c, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 192, 0, 2, 1];
const OPT: &[u8] = &[0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 0];

/// Returns a reply with these addresses.
fn addresses(query: &[u8], number: u16) -> Vec<u8> {
    let mut reply = query[..QUESTION_END].to_vec();
    reply[2] |= 0x80;
    reply[6..HEADER].fill(0);
    reply[6..8].copy_from_slice(&number.to_be_bytes());
    reply.extend(ADDRESS.repeat(number.into()));
    reply
}

fn changed(query: &[u8], number: u16, change: fn(&mut Vec<u8>)) -> Option<Vec<u8>> {
    let mut reply = addresses(query, number);
    change(&mut reply);
    Some(reply)
}

const SILENT: React = |_| None;
const FORMERR: React = |query| changed(query, 0, |reply| reply[3] |= 1);
const SERVFAIL: React = |query| changed(query, 0, |reply| reply[3] |= 2);
const REFUSED: React = |query| changed(query, 0, |reply| reply[3] |= 5);
const TC: React = |query| changed(query, 0, |reply| reply[2] |= 2);
const TWO_OPTS: React = |query| {
    changed(query, 0, |reply| {
        reply[11] = 2;
        reply.extend(OPT.repeat(2));
    })
};
/// Addresses of more octets than the buffer.
const LARGE: React = |query| Some(addresses(query, 401));
/// It ends within the third record.
const CUT: React = |query| changed(query, 3, |reply| reply.truncate(reply.len() - 3));
const OTHER_QUESTION: React = |query| changed(query, 1, |reply| reply[HEADER + 1] = b'b');
const NONSENSE: React = |_| Some(b"HTTP/1.1 400 Bad Request".to_vec());

#[tokio::test(start_paused = true)]
async fn cut_reply_is_requested_by_tcp_or_given_as_far_as_it_is_whole() {
    // What fits into 4,096 octets, and what precedes the cut.
    let fitting = (4096 - QUESTION_END) / ADDRESS.len();
    for (by_udp, whole, so_far) in [(LARGE, 401, fitting), (CUT, 3, 2), (TC, 3, 0)] {
        let upstream = RawUpstream::start(by_udp, Some(|query| Some(addresses(query, 401))));
        let answer = upstream.ask(LookupOrigin::Forward).await.unwrap();
        assert_eq!((answer.count(Section::Answer), answer.metadata.truncation), (401, false), "{whole}");
        let errors = [SERVFAIL, REFUSED, FORMERR].map(Some);
        let further = [None, Some(SILENT), Some(NONSENSE), Some(OTHER_QUESTION), Some(TC)];
        for by_tcp in errors.into_iter().chain(further) {
            for origin in [LookupOrigin::Forward, LookupOrigin::Target] {
                let answer = RawUpstream::start(by_udp, by_tcp).ask(origin).await.unwrap();
                let seen = (answer.count(Section::Answer), answer.metadata.truncation);
                assert_eq!(seen, (so_far, true), "{origin:?}");
                assert_eq!(answer.metadata.response_code, ResponseCode::NoError);
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn truncated_reply_isnt_lost_if_the_read_timeout_is_short() {
    let upstream = RawUpstream::start(CUT, Some(SILENT));
    let options = ForwardOptions {
        max_fails: 0,
        read_timeout: Duration::from_millis(200),
        ..ForwardOptions::default()
    };
    let group = UpstreamGroup::new(vec![upstream.endpoint()], options);
    let (client, limiter) = ([10, 0, 0, 1].into(), QueryLimiter::default());
    let answer = group.ask(&question(), LookupOrigin::Forward, client, &limiter).await.unwrap();
    assert_eq!((answer.count(Section::Answer), answer.metadata.truncation), (2, true));
}

#[tokio::test]
async fn cut_reply_to_another_question_is_ignored() {
    let udp = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let endpoint = UpstreamEndpoint { address: udp.local_addr().unwrap(), transport: Transport::Udp };
    let group = UpstreamGroup::new(vec![endpoint], ForwardOptions::default());
    let (asked, limiter) = (question(), QueryLimiter::default());
    let asking = group.ask(&asked, LookupOrigin::Forward, [10, 0, 0, 1].into(), &limiter);
    let answering = async {
        let mut query = [0; 512];
        let (length, from) = udp.recv_from(&mut query).await.unwrap();
        let query = &query[..length];
        let mut other_id = LARGE(query).unwrap();
        other_id[0] ^= 1;
        let mut other_question = LARGE(query).unwrap();
        other_question[HEADER + 1] = b'b';
        let within_the_question = addresses(query, 1)[..QUESTION_END - 1].to_vec();
        for forged in [other_id, other_question, within_the_question, addresses(query, 1)] {
            udp.send_to(&forged, from).await.unwrap();
        }
    };
    let (answer, ()) = tokio::join!(asking, answering);
    let answer = answer.unwrap();
    assert_eq!((answer.count(Section::Answer), answer.metadata.truncation), (1, false));
}

#[tokio::test(start_paused = true)]
async fn look_up_sends_an_upstream_no_burst_of_queries() {
    for by_udp in [SILENT, FORMERR, TC, TWO_OPTS, LARGE, CUT, OTHER_QUESTION] {
        for by_tcp in [None, Some(SILENT), Some(NONSENSE), Some(FORMERR), Some(OTHER_QUESTION), Some(TC)] {
            for origin in [LookupOrigin::Forward, LookupOrigin::ForwardByTcp, LookupOrigin::Target] {
                let upstream = RawUpstream::start(by_udp, by_tcp);
                let outcome = upstream.ask(origin).await;
                let arrivals = upstream.arrivals.lock();
                for five in arrivals.windows(5) {
                    // The paused clock may jump between the sending of a query and its arrival.
                    let is_burst = five[4] - five[0] < Duration::from_millis(500);
                    assert!(!is_burst, "{origin:?} {outcome:?} {arrivals:?}");
                }
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn health_check_has_one_rule_for_all_transports() {
    let is_alive = async |react: React, transport| {
        let upstream = RawUpstream::start(react, Some(react));
        let endpoint = UpstreamEndpoint { address: upstream.address, transport };
        let checked = Arc::new(Upstream::new(endpoint, &ForwardOptions::default()));
        ping(&checked, &question(), Instant::now() + Duration::from_secs(1)).await.is_ok()
    };
    let unknown_label: React = |query| changed(query, 1, |reply| reply[QUESTION_END] = 0x40);
    let without_question: React = |query| {
        changed(query, 0, |reply| {
            reply.truncate(HEADER);
            (reply[3], reply[5]) = (2, 0);
        })
    };
    for works in [TC, TWO_OPTS, LARGE, CUT, FORMERR, unknown_label, without_question] {
        for transport in [Transport::Udp, Transport::Tcp] {
            assert!(is_alive(works, transport.clone()).await, "{transport:?}");
        }
    }
    let repeated: React = |query| Some(query.to_vec());
    for fails in [SILENT, OTHER_QUESTION, NONSENSE, repeated] {
        for transport in [Transport::Udp, Transport::Tcp] {
            assert!(!is_alive(fails, transport.clone()).await, "{transport:?}");
        }
    }
}
