use std::collections::HashSet;
use std::net::Ipv4Addr;

use hickory_proto::op::{Edns, Message, Query};
use hickory_proto::rr::rdata::A;
use hickory_proto::rr::{Name, RData, Record, RecordType};
use nix::sys::socket::getsockopt;
use tokio::net::UdpSocket;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use crate::dns::net::Protocol;
use crate::dns::plugins::setup::ServerContext;
use crate::dns::plugins::tests::support::link;
use crate::dns::server::config::first_handler;
use crate::dns::transport::udp::batch::{OutgoingDatagram, send_all};
use crate::dns::transport::udp::pending::{Backlog, InFlightGuard, Peer, PendingQuery, QueryProgress};
use crate::dns::transport::udp::*;
use crate::model::link::{Ingress, ObservedService};
use crate::store::{Input, OnGone, Store};

const KNOWN: &str = "web.lb.internal.";
const SLOW: &str = "slow.example.";

/// Returns a handler with an upstream that doesn't answer.
async fn handler() -> (Arc<Handler>, UdpSocket) {
    handler_of(Arc::new(Store::new(OnGone::Kept))).await
}

async fn handler_of(store: Arc<Store>) -> (Arc<Handler>, UdpSocket) {
    let silent = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let context = ServerContext::silent(store).unwrap();
    let upstream = silent.local_addr().unwrap();
    let text = format!(
        "lb.internal {{\nbufsize 4096\nlb_linker\n}}\n\
         k8s.example 10.in-addr.arpa {{\nkubernetes\n}}\n. {{\nforward . {upstream}\n}}\n"
    );
    (first_handler(&text, &context).unwrap(), silent)
}

async fn client(last: u8, server: SocketAddr) -> UdpSocket {
    let socket = UdpSocket::bind((Ipv4Addr::new(127, 0, 0, last), 0)).await.unwrap();
    socket.connect(server).await.unwrap();
    socket
}

fn question(name: &str) -> Vec<u8> {
    let mut message = Message::query();
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(Name::from_ascii(name).unwrap(), RecordType::A));
    message.to_vec().unwrap()
}

async fn ask(socket: &UdpSocket, name: &str) {
    socket.send(&question(name)).await.unwrap();
}

const REPLY_TIMEOUT: Duration = Duration::from_secs(60);

async fn answered(socket: &UdpSocket) -> Message {
    let mut answer = [0; 4096];
    let length = timeout(REPLY_TIMEOUT, socket.recv(&mut answer)).await.expect("an answer").unwrap();
    Message::from_vec(&answer[..length]).unwrap()
}

fn dropped(handler: &Handler, reason: &str) -> f64 {
    let page = handler.metrics.render().unwrap();
    let metric = format!("lb_linker_dns_udp_dropped_total{{reason=\"{reason}\"}} ");
    page.lines().find_map(|line| line.strip_prefix(&metric)?.parse().ok()).unwrap()
}

fn busy(handler: &Handler) -> f64 {
    dropped(handler, "busy")
}

#[tokio::test]
async fn waiting_queries_of_a_client_leave_half_of_the_quota() {
    let (handler, _silent) = handler().await;
    let sockets = bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let address = sockets[0].local_addr().unwrap();
    let serving = serve_with(sockets, Arc::clone(&handler), ClientQuota::new(16), CancellationToken::new());
    let _serving = AbortOnDropHandle::new(tokio::spawn(serving));
    let (greedy, modest) = (client(1, address).await, client(2, address).await);
    // The socket of a client's port is always the same, and its thread begins queries in their order.
    for _ in 0..20 {
        ask(&greedy, SLOW).await;
    }
    ask(&greedy, KNOWN).await;
    answered(&greedy).await;
    assert_eq!(busy(&handler), 12.0, "the client has half of the quota");
    for _ in 0..4 {
        ask(&modest, SLOW).await;
    }
    ask(&modest, KNOWN).await;
    answered(&modest).await;
    assert_eq!(busy(&handler), 12.0);
}

/// Adds queries of a client to a backlog; returns how many it takes.
fn push(backlog: &mut Backlog, is_about_own_names: bool, client: u8, number: usize) -> usize {
    let address = (Ipv4Addr::new(127, 0, 0, client), 53).into();
    let peer = Peer { address, client: address, local: None, kernel_drops: 0 };
    let query = || (QueryProgress::Message(vec![u8::from(is_about_own_names)]), peer, None);
    (0..number)
        .filter(|_| backlog.push(is_about_own_names, query(), InFlightGuard::new(&Arc::default())))
        .count()
}

#[test]
fn client_fills_at_most_half_of_the_backlog() {
    let mut backlog = Backlog::new(16);
    assert_eq!(push(&mut backlog, false, 1, 20), 8);
    assert_eq!(push(&mut backlog, false, 2, 4), 4);
    // Queries that have begun don't count.
    let begun: Vec<_> = backlog.take(20).collect();
    assert_eq!(begun.len(), 12);
    assert_eq!(push(&mut backlog, false, 1, 20), 8);
    assert_eq!(push(&mut backlog, true, 1, 1), 1, "queries about links have a part of their own");
    drop(begun);
}

#[test]
fn links_come_first_and_leave_turns_for_other_names() {
    let mut backlog = Backlog::new(4096);
    assert_eq!(push(&mut backlog, true, 1, 2000), 2000);
    assert_eq!(push(&mut backlog, false, 1, 100), 100);
    let mut take = |number| -> [usize; 2] {
        let taken: Vec<_> = backlog.take(number).collect();
        let is_link =
            |one: &&PendingQuery| matches!(&one.progress, QueryProgress::Message(text) if text == &[1]);
        let links = taken.iter().filter(is_link).count();
        [links, taken.len() - links]
    };
    assert_eq!([take(64), take(7), take(8)], [[56, 8], [7, 0], [7, 1]]);
    assert_eq!(take(2000), [1909, 91], "what is left after all others");
    assert_eq!([take(64), take(64)], [[21, 0], [0, 0]]);
}

#[tokio::test]
async fn names_of_links_and_of_the_cluster_are_own_names() {
    let (handler, _silent) = handler().await;
    let server = handler.server.load_full();
    for (name, expected) in [
        (KNOWN, true),
        ("WEB.Lb.Internal.", true),
        ("lb.internal.", true),
        ("web.shop.svc.k8s.example.", true),
        ("1.0.0.10.in-addr.arpa.", true),
        ("1.0.0.11.in-addr.arpa.", false),
        (SLOW, false),
        ("lb.internal.example.", false),
        ("xlb.internal.", false),
        ("internal.", false),
        (".", false),
    ] {
        assert_eq!(server.asks_about_own_names(&question(name)), expected, "{name}");
    }
    let whole = question(KNOWN);
    assert!((0..20).all(|length| !server.asks_about_own_names(&whole[..length])), "a part of a message");
}

#[tokio::test]
async fn answers_that_the_kernel_refuses_are_counted_and_skipped() {
    let (handler, _silent) = handler().await;
    let socket = Arc::new(bind_one((Ipv4Addr::LOCALHOST, 0).into()).unwrap());
    let client = client(1, socket.local_addr().unwrap()).await;
    let socket = AnswerSocket::new(socket, Arc::default(), handler.metrics.group().unwrap());
    let answer = |address| OutgoingDatagram {
        peer: Peer { address, client: address, local: None, kernel_drops: 0 },
        bytes: question(KNOWN),
    };
    // The kernel refuses datagrams to a broadcast address without SO_BROADCAST, and to port 0.
    let refused = [(Ipv4Addr::BROADCAST, 53).into(), (Ipv4Addr::LOCALHOST, 0).into()].map(answer);
    let mut answers: Vec<_> = refused.into_iter().chain([answer(client.local_addr().unwrap())]).collect();
    send_all(&socket, &mut answers);
    answered(&client).await;
    assert_eq!(dropped(&handler, "send"), 2.0);
}

#[tokio::test]
async fn datagrams_that_the_kernel_drops_are_counted_once() {
    let (handler, _silent) = handler().await;
    let socket = Arc::new(bind_one((Ipv4Addr::LOCALHOST, 0).into()).unwrap());
    let socket = AnswerSocket::new(socket, Arc::default(), handler.metrics.group().unwrap());
    // The totals that the kernel reports: unchanged, not reported (0), and beyond 2³².
    for total in [3, 3, 0, 5, u32::MAX, 1] {
        socket.count_queue_drops(total);
    }
    assert_eq!(dropped(&handler, "queue"), 2_f64.powi(32) + 1.0);
}

#[test]
fn send_buffer_is_as_large_as_the_kernel_allows() {
    const WANTED: usize = 4 << 20;
    let limit = std::fs::read_to_string("/proc/sys/net/core/wmem_max").unwrap();
    // socket(7): the kernel doubles the value. CAP_NET_ADMIN lifts the limit.
    let may_exceed =
        setsockopt(&std::net::UdpSocket::bind("127.0.0.1:0").unwrap(), sockopt::SndBufForce, &WANTED).is_ok();
    let expected = if may_exceed { WANTED } else { WANTED.min(limit.trim().parse().unwrap()) };
    let socket = bind_one((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    assert_eq!(getsockopt(&socket, sockopt::SndBuf).unwrap(), 2 * expected);
}

#[tokio::test]
async fn queries_received_before_the_stop_are_answered() {
    let (handler, _silent) = handler().await;
    let sockets = bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let client = client(1, sockets[0].local_addr().unwrap()).await;
    for _ in 0..50 {
        ask(&client, KNOWN).await;
    }
    let stop = CancellationToken::new();
    stop.cancel();
    serve(sockets, handler, stop).await.unwrap();
    for _ in 0..50 {
        answered(&client).await;
    }
}

#[tokio::test]
async fn icmp_error_at_the_stop_leaves_no_query_unanswered() {
    let (handler, silent) = handler().await;
    let socket = Arc::new(bind_one((Ipv4Addr::LOCALHOST, 0).into()).unwrap());
    let client = client(1, socket.local_addr().unwrap()).await;
    // A connected socket accepts packets only from its peer: the kernel reports its port as unreachable to all other
    // senders.
    let closed = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    closed.connect(silent.local_addr().unwrap()).await.unwrap();
    socket.send_to(b"an answer", closed.local_addr().unwrap()).unwrap();
    for _ in 0..50 {
        ask(&client, KNOWN).await;
    }
    let socket = Arc::new(AnswerSocket::new(socket, Arc::default(), handler.metrics.group().unwrap()));
    let worker = Worker {
        socket,
        handler,
        quota: ClientQuota::new(MAX_PENDING_QUERIES),
        pending: Arc::default(),
        stop: Arc::new(AtomicBool::new(true)),
        runtime: Handle::current(),
    };
    let (end, ended) = oneshot::channel();
    thread::spawn(|| worker.run(end));
    ended.await.unwrap().unwrap();
    for _ in 0..50 {
        answered(&client).await;
    }
}

#[test]
fn port_0_is_a_port_that_no_other_socket_has() {
    let sockets: Vec<_> = (0..300).map(|_| bind_one((Ipv4Addr::LOCALHOST, 0).into()).unwrap()).collect();
    let ports: HashSet<u16> = sockets.iter().map(|socket| socket.local_addr().unwrap().port()).collect();
    assert_eq!(ports.len(), sockets.len());
}

/// A server of the link `web` in `default` with the target 192.0.2.1, and a client of the server.
struct TestServer {
    store: Arc<Store>,
    client: UdpSocket,
    upstream: UdpSocket,
    _serving: AbortOnDropHandle<io::Result<()>>,
}

async fn serve_web() -> TestServer {
    let origin = Name::from_ascii("lb.internal.").unwrap();
    let store = Arc::new(Store::new(OnGone::Kept).with_zones([&origin]));
    store.apply(link("web", "192.0.2.1"));
    store.set_known(Input::Services);
    let (handler, upstream) = handler_of(Arc::clone(&store)).await;
    let sockets = bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let client = client(1, sockets[0].local_addr().unwrap()).await;
    let serving = tokio::spawn(serve(sockets, handler, CancellationToken::new()));
    TestServer { store, client, upstream, _serving: AbortOnDropHandle::new(serving) }
}

#[tokio::test]
async fn changed_link_is_answered_by_the_thread_of_the_socket() {
    const NAME: &str = "web.default.lb.internal.";
    let TestServer { store, client, upstream, _serving } = serve_web().await;
    for _ in 0..2 {
        ask(&client, NAME).await;
        answered(&client).await;
    }
    let client = client.into_std().unwrap();
    client.set_nonblocking(false).unwrap();
    client.set_read_timeout(Some(REPLY_TIMEOUT)).unwrap();
    for last in 2..5 {
        let target = format!("192.0.2.{last}");
        store.apply(link("web", &target));
        client.send(&question(NAME)).unwrap();
        // The only thread of the shared runtime blocks here.
        let mut answer = [0; 1232];
        let length = client.recv(&mut answer).expect("an answer");
        let answer = Message::from_vec(&answer[..length]).unwrap();
        assert_eq!(answer.answers[0].data.ip_addr(), target.parse().ok());
    }
    client.set_nonblocking(true).unwrap();
    let client = UdpSocket::from_std(client).unwrap();
    store.apply(link("web", "t.example."));
    ask(&client, NAME).await;
    let mut asked = [0; 1232];
    let (length, from) =
        timeout(REPLY_TIMEOUT, upstream.recv_from(&mut asked)).await.expect("a query").unwrap();
    let asked = Message::from_vec(&asked[..length]).unwrap();
    let mut reply = asked.clone().into_response();
    reply.add_answer(Record::from_rdata(asked.queries[0].name().clone(), 60, RData::A(A::new(192, 0, 2, 9))));
    upstream.send_to(&reply.to_vec().unwrap(), from).await.unwrap();
    let answer = answered(&client).await;
    assert_eq!(answer.answers[1].data.ip_addr(), "192.0.2.9".parse().ok());
}

#[tokio::test]
async fn client_with_larger_payload_gets_the_larger_answer() {
    const NAME: &str = "web.default.lb.internal.";
    let TestServer { store, client, .. } = &serve_web().await;
    let addresses = (1..=100).map(|last| [192, 0, 2, last].into()).collect();
    let many =
        ObservedService { ingress: Ingress { hostnames: vec![], addresses }, ..link("web", "192.0.2.1") };
    let with_room = |room| {
        let mut message = Message::from_vec(&question(NAME)).unwrap();
        let mut edns = Edns::new();
        edns.set_max_payload(room);
        message.set_edns(edns);
        message.to_vec().unwrap()
    };
    // First from the cache, then anew: the link has changed, and has more addresses than fit the default size.
    for addresses in [1, 100] {
        if addresses > 1 {
            store.apply(many.clone());
        }
        for (room, whole) in [(4096, true), (1232, addresses == 1), (4096, true)] {
            client.send(&with_room(room)).await.unwrap();
            let answer = answered(client).await;
            let told = answer.answers.len();
            assert_eq!(told == addresses, whole, "{room} {addresses}: {told}");
            assert_ne!(answer.metadata.truncation, whole);
        }
    }
}

#[tokio::test]
async fn look_up_without_clients_goes_on_after_the_end_of_its_thread() {
    const NAME: &str = "web.default.lb.internal.";
    let store = Arc::new(Store::new(OnGone::Kept).with_zones([&Name::from_ascii("lb.internal.").unwrap()]));
    store.apply(link("web", "t.example."));
    store.set_known(Input::Services);
    let (handler, upstream) = handler_of(store).await;
    let sockets = bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let client = client(1, sockets[0].local_addr().unwrap()).await;
    let stop = CancellationToken::new();
    let serving = tokio::spawn(serve(sockets, Arc::clone(&handler), stop.clone()));
    ask(&client, NAME).await;
    let mut asked = [0; 1232];
    let (length, from) =
        timeout(REPLY_TIMEOUT, upstream.recv_from(&mut asked)).await.expect("a query").unwrap();
    // After 1.8 s the client gets an answer without the address, and the look-up goes on.
    answered(&client).await;
    stop.cancel();
    timeout(REPLY_TIMEOUT, serving).await.expect("the end of the thread's service").unwrap().unwrap();
    let mut joined =
        Box::pin(handler.answer(question(NAME), client.local_addr().unwrap(), None, Protocol::Tcp, true));
    assert!(futures::poll!(joined.as_mut()).is_pending(), "the look-up is under way");
    let query = Message::from_vec(&asked[..length]).unwrap();
    let mut reply = query.clone().into_response();
    reply.add_answer(Record::from_rdata(query.queries[0].name().clone(), 60, RData::A(A::new(192, 0, 2, 9))));
    upstream.send_to(&reply.to_vec().unwrap(), from).await.unwrap();
    let answer = timeout(REPLY_TIMEOUT, joined).await.expect("an answer").unwrap();
    let answer = Message::from_vec(&answer.bytes).unwrap();
    assert_eq!(answer.answers[1].data.ip_addr(), "192.0.2.9".parse().ok());
}

#[tokio::test]
async fn header_names_the_client_of_a_datagram() {
    let context = ServerContext::silent(Arc::new(Store::new(OnGone::Kept))).unwrap();
    let lines = ". {\nproxyproto {\nallow 127.0.0.1\ndefault reject\n}\nwhoami\n}\n";
    let handler = first_handler(lines, &context).unwrap();
    let sockets = bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let address = sockets[0].local_addr().unwrap();
    let serving = serve_with(sockets, Arc::clone(&handler), ClientQuota::new(16), CancellationToken::new());
    let _serving = AbortOnDropHandle::new(tokio::spawn(serving));
    let (proxy, other) = (client(1, address).await, client(2, address).await);
    let query = question(KNOWN);
    let signature = b"\r\n\r\n\0\r\nQUIT\n";
    let header = [signature, &b"\x21\x12\0\x0c"[..], &[192, 0, 2, 7, 0, 0, 0, 0, 0x12, 0x67, 0, 53]].concat();
    let seen = async |socket: &UdpSocket, parts: &[&[u8]]| {
        socket.send(&parts.concat()).await.unwrap();
        answered(socket).await.additionals[0].data.to_string()
    };
    assert_eq!(seen(&proxy, &[&header, &query]).await, "192.0.2.7");
    assert_eq!(seen(&proxy, &[&query]).await, "127.0.0.1");
    assert_eq!(seen(&proxy, &[signature, b"\x20\0\0\0", &query]).await, "127.0.0.1");
    assert_eq!(seen(&other, &[&query]).await, "127.0.0.2");
    for datagram in [
        &[signature, &b"\x22\0\0\0"[..], &query][..],
        &[signature, b"\x21\0\x7f\0", &query],
        &[&header[..20]],
    ] {
        proxy.send(&datagram.concat()).await.unwrap();
    }
    other.send(&[&header[..], &query].concat()).await.unwrap();
    // Datagrams of a sender are read in their order.
    assert_eq!(seen(&proxy, &[&header, &query]).await, "192.0.2.7");
    assert_eq!(seen(&other, &[&query]).await, "127.0.0.2");
    let page = handler.metrics.render().unwrap();
    assert!(page.contains("lb_linker_dns_proxy_headers_refused_total 4"), "{page}");
}
