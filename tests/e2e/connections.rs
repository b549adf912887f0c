//! Many connections, and clients that exceed their share: other clients aren't affected.
//!
//! Memory and times are printed (`-- --nocapture connections::`).

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use futures::StreamExt;
use hickory_proto::op::Message;
use hickory_proto::rr::rdata::A;
use hickory_proto::rr::{RData, Record};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

use crate::harness::dns::{
    FaultyUpstream, address, ask_udp, framed, query, read_message, show, write_message,
};
use crate::harness::linker::Linker;
use crate::harness::{EVENT_TIMEOUT, eventually};

const MAX_OF_A_CLIENT: usize = 1000;
/// The maximum number of all connections, if the limit of open files allows it.
const MAX: usize = 10_000;
/// The idle timeout of a connection.
const IDLE: Duration = Duration::from_secs(30);
/// Maximum resident memory in KiB, far more than lb-linker needs with all connections.
const MAX_RESIDENT: usize = 100 << 10;

const TOO_MANY: &str = "TCP: too many connections: ";
const QUESTION: &str = "nobody.default.lb.internal. A";
const ANSWER: &str = "Non-Existent Domain aa rd |";

fn linker() -> (Linker, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let linker = Linker::start(["--upstream", "none", "--manifests", directory.path().to_str().unwrap()]);
    (linker, directory)
}

/// Raises this process's limit of open files to the hard limit, and returns this limit. lb-linker inherits it.
fn raise_file_limit() -> usize {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).unwrap();
    hard.try_into().unwrap_or(usize::MAX)
}

fn client(number: usize) -> IpAddr {
    Ipv4Addr::new(127, 0, 77, u8::try_from(number).unwrap()).into()
}

async fn connect(from: IpAddr, to: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((from, 0).into()).unwrap();
    timeout(EVENT_TIMEOUT, socket.connect(to)).await.expect("a connection").unwrap()
}

async fn ask_on(stream: &mut TcpStream) -> Option<Message> {
    write_message(stream, &query(QUESTION).to_vec().unwrap()).await;
    let answer = timeout(EVENT_TIMEOUT, read_message(stream)).await.expect("an answer or the end")?;
    let answer = Message::from_vec(&answer).unwrap();
    assert!(show(&answer).starts_with(ANSWER), "{}", show(&answer));
    Some(answer)
}

async fn connect_and_query(from: IpAddr, to: SocketAddr) -> TcpStream {
    let mut stream = connect(from, to).await;
    ask_on(&mut stream).await.expect("an answer");
    stream
}

async fn connect_and_send_part(from: IpAddr, to: SocketAddr) -> TcpStream {
    let mut stream = connect(from, to).await;
    let question = query(QUESTION).to_vec().unwrap();
    stream.write_all(&framed(&question)[..22]).await.unwrap();
    stream
}

/// Waits until the peer has closed a connection.
async fn wait_for_close(stream: &mut TcpStream) {
    let mut rest = [0; 4096];
    while timeout(EVENT_TIMEOUT, stream.read(&mut rest)).await.expect("an end").is_ok_and(|read| read > 0) {}
}

#[tokio::test]
async fn idle_and_half_sent_connections_lock_no_client_out() {
    // Leave some files for concurrent tests.
    let files = raise_file_limit();
    let total = (MAX + MAX_OF_A_CLIENT).min(files.saturating_sub(2000));
    let (idle, half) = (total - total / 11, total / 11);
    if total < MAX + MAX_OF_A_CLIENT {
        eprintln!("connections: only {files} files may be open, so {idle} and {half} instead");
    }
    let (mut linker, _directory) = linker();
    linker.ready().await;
    ask_udp(linker.dns, &query(QUESTION)).await;
    let before = linker.memory("VmRSS");

    let to = linker.dns;
    let begun = Instant::now();
    let mut crowd: Vec<TcpStream> = futures::stream::iter(0..idle)
        .map(|i| connect_and_query(client(i % 10), to))
        .buffered(64)
        .collect()
        .await;
    let opened = begun.elapsed();
    let halves: Vec<TcpStream> = futures::stream::iter(0..half)
        .map(|_| connect_and_send_part(client(10), to))
        .buffered(64)
        .collect()
        .await;

    let start = Instant::now();
    let by_udp = ask_udp(to, &query(QUESTION)).await;
    let udp = start.elapsed();
    assert!(show(&by_udp).starts_with(ANSWER));
    let start = Instant::now();
    let _newcomer = connect_and_query(client(11), to).await;
    let tcp = start.elapsed();
    let most = linker.memory("VmHWM");
    let evicted = linker.metric("lb_linker_dns_connections_evicted_total").unwrap();
    let took = begun.elapsed();
    let open = linker.metric("process_open_fds").unwrap();
    eprintln!(
        "connections: {idle} idle, opened in {opened:.1?}, and {half} half-sent: {open} files open, {evicted} \
         evicted, {before} KiB before, at most {most} KiB; then UDP {udp:.1?}, TCP {tcp:.1?}"
    );
    assert!(most < MAX_RESIDENT, "{most} KiB");

    // The connection that was idle longest is closed, and the newest connection stays. On a very slow machine the idle
    // timeout may close connections before any has to be evicted.
    assert!(evicted >= 1.0 || took > IDLE, "{evicted} in {took:?}");
    assert_eq!(linker.metric("lb_linker_dns_connections_refused_total"), Some(0.0));
    if evicted > 0.0 {
        linker.line(TOO_MANY).await;
    }
    wait_for_close(&mut crowd[0]).await;
    ask_on(crowd.last_mut().unwrap()).await.expect("an answer");
    drop(halves);
    assert!(linker.stop().success());
}

#[tokio::test]
async fn client_has_at_most_1000_connections() {
    let files = raise_file_limit();
    // A client has a quarter of the connections, which are 30 % of the files.
    if files < 14 * MAX_OF_A_CLIENT {
        eprintln!("connections: only {files} files may be open: nothing is tested");
        return;
    }
    let (linker, _directory) = linker();
    linker.ready().await;
    let to = linker.dns;
    let mut all: Vec<TcpStream> = futures::stream::iter(0..MAX_OF_A_CLIENT)
        .map(|_| connect_and_query(client(20), to))
        .buffered(64)
        .collect()
        .await;
    for _ in 0..3 {
        wait_for_close(&mut connect(client(20), linker.dns).await).await;
    }
    linker.counts("lb_linker_dns_connections_refused_total", 3.0).await;
    // The three refused connections cause a single log line.
    linker.line(TOO_MANY).await;
    assert_eq!(linker.logged(TOO_MANY), 1);
    connect_and_query(client(21), linker.dns).await;
    // Existing connections are still served, and closing one makes room for another.
    ask_on(&mut all[0]).await.expect("an answer");
    all.truncate(MAX_OF_A_CLIENT - 1);
    eventually("room for one more", || async {
        ask_on(&mut connect(client(20), linker.dns).await).await.map(drop)
    })
    .await;
}

#[tokio::test]
async fn clients_that_never_read_are_closed_in_bounded_memory() {
    const CLIENTS: usize = 200;
    let (linker, _directory) = linker();
    linker.ready().await;
    let before = linker.memory("VmRSS");
    let question = query(QUESTION).to_vec().unwrap();
    let many = framed(&question).repeat(1000);
    let flood = |i: usize| {
        let many = &many;
        async move {
            let socket = TcpSocket::new_v4().unwrap();
            socket.set_recv_buffer_size(4096).unwrap();
            socket.set_send_buffer_size(4096).unwrap();
            socket.bind((client(i % 10), 0).into()).unwrap();
            let mut stream = socket.connect(linker.dns).await.unwrap();
            let mut sent = 0;
            // The write fails when lb-linker closes the connection.
            while let Ok(written) = stream.write(&many[sent % many.len()..]).await {
                sent += written;
            }
            sent
        }
    };
    let floods = futures::stream::iter(0..CLIENTS).map(flood).buffer_unordered(CLIENTS);
    let sent: Vec<usize> = timeout(2 * EVENT_TIMEOUT, floods.collect()).await.expect("all are cut off");
    let most = linker.memory("VmHWM");
    let taken = sent.iter().max().unwrap();
    eprintln!(
        "connections: {CLIENTS} that never read: {before} KiB before, at most {most} KiB; at most {taken} bytes of each taken"
    );
    assert!(most < MAX_RESIDENT, "{most} KiB");
    ask_udp(linker.dns, &query(QUESTION)).await;
}

#[tokio::test]
async fn unread_answers_that_waited_take_bounded_memory() {
    const ROUNDS: usize = 20;
    // With all their queries these connections have the share of a client that may wait for an upstream.
    const CONNECTIONS: usize = 16;
    const QUERIES: usize = 128;
    // All queries for a name arrive before its first answer.
    let upstream = FaultyUpstream::start_with_delay(Duration::from_millis(200), |asked, by_tcp| {
        let mut answer = address(asked, 1, 3600);
        let record = answer.answers[0].clone();
        let with_address = |i| Record::from_rdata(record.name.clone(), 3600, RData::A(A::new(192, 0, 2, i)));
        answer.answers = if by_tcp { (0..240).map(with_address).collect() } else { Vec::new() };
        answer.metadata.truncation = !by_tcp;
        vec![answer]
    })
    .await;
    let directory = tempfile::tempdir().unwrap();
    // On a slow machine the answers of a few rounds take longer than the default timeouts, which end connections, too.
    let corefile = format!(
        ".:0 {{\nbind 127.0.0.1\nprometheus 127.0.0.1:0\nhealth 127.0.0.1:0\nready 127.0.0.1:0\ntimeouts {{\nwrite 1h\nidle \
         1h\n}}\ncache\nlb_linker lb.internal\nforward . {}\n}}\n",
        upstream.address
    );
    let linker = Linker::start_on_corefile(&corefile, directory.path(), None);
    linker.ready().await;
    let before = linker.memory("VmRSS");
    let mut unread = Vec::new();
    for round in 0..ROUNDS {
        let question = query(&format!("n{round}.unread.example. A")).to_vec().unwrap();
        let queries = framed(&question).repeat(QUERIES);
        let connections = (0..CONNECTIONS).map(|_| async {
            let socket = TcpSocket::new_v4().unwrap();
            socket.set_recv_buffer_size(4096).unwrap();
            socket.bind((client(40), 0).into()).unwrap();
            let mut stream =
                timeout(EVENT_TIMEOUT, socket.connect(linker.dns)).await.expect("a connection").unwrap();
            // lb-linker may close the connection.
            let _ = stream.write_all(&queries).await;
            timeout(EVENT_TIMEOUT, stream.readable()).await.expect("an answer or the end").unwrap();
            stream
        });
        unread.extend(futures::future::join_all(connections).await);
    }
    let most = linker.memory("VmHWM");
    eprintln!(
        "connections: {} with {QUERIES} unread answers of 4 KB each: {before} KiB before, at most {most} KiB",
        unread.len()
    );
    assert!(most < MAX_RESIDENT, "{most} KiB");
    assert!(linker.metric("lb_linker_dns_connections_unread_total") > Some(0.0));
    ask_udp(linker.dns, &query(QUESTION)).await;
}
