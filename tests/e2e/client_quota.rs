//! Limits of the look-ups and upstream sockets of a client: other clients aren't affected.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::Name;
use hickory_proto::rr::rdata::opt::EdnsOption;
use tempfile::TempDir;
use tokio::net::{TcpSocket, UdpSocket};
use tokio::time::{sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

use crate::answers::manifests;
use crate::harness::dns::{FaultyUpstream, address, error, query, write_message};
use crate::harness::linker::Linker;
use crate::harness::{EVENT_TIMEOUT, eventually, replace_file};

/// The upstream never answers queries for names in this zone, except in [`CUT`] by UDP.
const SILENT: &str = "silent.example.";
/// The maximum number of concurrent look-ups with the default flags.
const MAX_CONCURRENT: usize = 1000;
/// An upper bound of the open files besides upstream sockets: listeners, probes and internal files. Far more than
/// needed, and far fewer than the sockets that a flood would open.
const OTHER_FILES: usize = 60;
/// Time after which a client repeats a query.
const RETRY: Duration = Duration::from_secs(5);
/// Time after which a query without an answer counts as lost.
const LOST_AFTER: Duration = Duration::from_secs(10);

/// The upstream never answers queries for names in this zone by TCP, and gives truncated answers by UDP.
const CUT: &str = "cut.silent.example.";

/// Starts an upstream that answers all names except those in [`SILENT`], with TTL 0.
async fn upstream() -> FaultyUpstream {
    FaultyUpstream::start(|asked, by_tcp| {
        let name = asked.queries[0].name().to_ascii();
        if !name.ends_with(SILENT) {
            return vec![address(asked, 9, 0)];
        }
        let is_cut = name.ends_with(CUT) && !by_tcp;
        let mut cut = error(asked, ResponseCode::NoError);
        cut.metadata.truncation = true;
        if is_cut { vec![cut] } else { vec![] }
    })
    .await
}

/// Returns the names in [`SILENT`] that the upstream has received.
fn silent_names(upstream: &FaultyUpstream) -> HashSet<String> {
    let names = upstream.names().into_iter().map(|name| name.to_ascii());
    names.filter(|name| name.ends_with(SILENT)).collect()
}

/// Returns manifests of the links `web0` to `web9`, with different targets, which contain the generation.
fn links(generation: &str) -> String {
    let links: Vec<(String, String)> =
        (0..10).map(|i| (format!("web{i}"), format!("{{hostname: {generation}{i}.example.com}}"))).collect();
    manifests(&links.iter().map(|(name, ingress)| (&**name, &**ingress)).collect::<Vec<_>>())
}

/// Starts lb-linker with the default flags and a limit of open files.
async fn linker(upstream: SocketAddr, files: usize) -> (Linker, TempDir) {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("services.yaml"), links("a")).unwrap();
    let upstream = upstream.to_string();
    let args = ["--manifests", directory.path().to_str().unwrap(), "--upstream", &upstream];
    let linker = Linker::start_with_files(files, args);
    linker.ready().await;
    (linker, directory)
}

/// A client with its own address, the number of its questions with an address, and how often it had to repeat them.
struct Client(UdpSocket, AtomicUsize, AtomicUsize);

impl Client {
    async fn new(address: impl Into<IpAddr>, server: SocketAddr) -> Self {
        let socket = UdpSocket::bind((address.into(), 0)).await.unwrap();
        socket.connect(server).await.unwrap();
        Self(socket, AtomicUsize::new(0), AtomicUsize::new(0))
    }

    async fn send(&self, id: u16, question: &str) {
        let mut message = query(question);
        message.metadata.id = id;
        self.0.send(&message.to_vec().unwrap()).await.unwrap();
    }

    async fn receive(&self) -> Message {
        let mut bytes = [0; 4096];
        let length = self.0.recv(&mut bytes).await.unwrap();
        Message::from_vec(&bytes[..length]).unwrap()
    }

    /// Sends a query and repeats it like a stub resolver: a datagram may be lost.
    async fn ask(&self, question: &str) -> Message {
        for id in 1..10 {
            self.send(id, question).await;
            let answer = async {
                loop {
                    let answer = self.receive().await;
                    if answer.queries == query(question).queries {
                        return answer;
                    }
                }
            };
            if let Ok(answer) = timeout(RETRY, answer).await {
                return answer;
            }
        }
        panic!("no answer to {question}");
    }

    /// Asks until an answer has an address: if the upstream is late, it has none. A refusal is a failure.
    async fn resolves(&self, question: &str) {
        let deadline = Instant::now() + EVENT_TIMEOUT;
        loop {
            let answer = self.ask(question).await;
            if answer.answers.iter().any(|record| record.data.ip_addr().is_some()) {
                let answered = self.1.fetch_add(1, Ordering::Relaxed) + 1;
                let repeated = self.2.load(Ordering::Relaxed);
                assert!(repeated <= 2 + answered / 10, "{repeated} repeated for {answered} questions");
                return;
            }
            self.2.fetch_add(1, Ordering::Relaxed);
            let goes_on =
                answer.metadata.response_code == ResponseCode::ServFail && Instant::now() < deadline;
            assert!(goes_on, "{question}: {answer:?}");
        }
    }
}

fn ede_text(answer: &Message) -> Option<String> {
    let edns = answer.edns.as_ref().filter(|_| answer.metadata.response_code == ResponseCode::Refused)?;
    edns.options().as_ref().iter().find_map(|(_, option)| match option {
        EdnsOption::Unknown(15, data) => Some(String::from_utf8_lossy(&data[2..]).into_owned()),
        _ => None,
    })
}

fn loopback(last: u8) -> Ipv4Addr {
    Ipv4Addr::new(127, 0, 0, last)
}

/// A client that sends queries for different names that are never answered, until it is dropped.
struct Flood {
    sent: Arc<AtomicUsize>,
    _task: AbortOnDropHandle<()>,
}

impl Flood {
    /// Starts a flood of at most `rate` queries per 10 ms. At most `open` queries are without an answer: a server with
    /// too little CPU time would lose queries of all clients.
    async fn start(last: u8, server: SocketAddr, rate: usize, open: usize) -> Self {
        let client = Client::new(loopback(last), server).await;
        let sent = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&sent);
        let task = tokio::spawn(async move {
            let mut sent_at = HashMap::new();
            loop {
                let mut answer = [0; 512];
                while client.0.try_recv(&mut answer).is_ok() {
                    sent_at.remove(&u16::from_be_bytes([answer[0], answer[1]]));
                }
                // The answer, or the query, was lost.
                sent_at.retain(|_, sent: &mut Instant| sent.elapsed() < LOST_AFTER);
                for _ in 0..rate.min(open - sent_at.len()) {
                    let number = counter.fetch_add(1, Ordering::SeqCst);
                    let zone = if number.is_multiple_of(4) { CUT } else { SILENT };
                    let id = u16::try_from(number % 65536).unwrap();
                    sent_at.insert(id, Instant::now());
                    client.send(id, &format!("n{number}.of{last}.{zone} A")).await;
                }
                sleep(Duration::from_millis(10)).await;
            }
        });
        Self { sent, _task: AbortOnDropHandle::new(task) }
    }

    /// Waits until this many queries have been sent.
    async fn has_sent(&self, number: usize) {
        eventually("a flood", || async { (self.sent.load(Ordering::SeqCst) >= number).then_some(()) }).await;
    }
}

/// Records the maximum number of open files.
struct OpenFileWatch {
    most: Arc<AtomicUsize>,
    _task: AbortOnDropHandle<()>,
}

impl OpenFileWatch {
    fn start(linker: &Linker) -> Self {
        let (most, files) = (Arc::new(AtomicUsize::new(0)), format!("/proc/{}/fd", linker.id()));
        let seen = Arc::clone(&most);
        // The size of this directory is the number of open files since Linux 6.2: less work than counting the entries.
        let count = move || match std::fs::metadata(&files).map_or(0, |directory| directory.len()) {
            0 => std::fs::read_dir(&files).map_or(0, Iterator::count),
            number => usize::try_from(number).unwrap(),
        };
        let task = tokio::spawn(async move {
            loop {
                seen.fetch_max(count(), Ordering::SeqCst);
                sleep(Duration::from_millis(5)).await;
            }
        });
        Self { most, _task: AbortOnDropHandle::new(task) }
    }

    fn most(&self) -> usize {
        self.most.load(Ordering::SeqCst)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flooding_client_leaves_look_ups_and_sockets_to_other_clients() {
    const FILES: usize = 4000;
    let upstream = upstream().await;
    let (linker, _directory) = linker(upstream.address, FILES).await;
    let watch = OpenFileWatch::start(&linker);
    let other = Client::new(loopback(3), linker.dns).await;
    let flood = Flood::start(2, linker.dns, 40, 600).await;
    flood.has_sent(1500).await;
    let mut number = 0;
    while flood.sent.load(Ordering::SeqCst) < 2500 || number < 20 {
        other.resolves(&format!("live{number}.example. A")).await;
        other.resolves(&format!("web{}-default.lb.internal. A", number % 10)).await;
        number += 1;
    }
    let refused = || async {
        let refused = linker.metric("lb_linker_dns_lookups_refused_total{bound=\"client\"}");
        refused.filter(|refused| *refused > 500.0)
    };
    eventually("refused look-ups of the flood", refused).await;
    linker
        .line("plugin/forward: look-ups refused since the last such line: 1; the newest, of 127.0.0.2:")
        .await;
    assert!(watch.most() < FILES * 60 / 100 + OTHER_FILES, "{} files open", watch.most());
    assert_eq!(
        linker.logged("the process may open"),
        0,
        "the limit of open files is high enough for all look-ups"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upstream_sockets_stay_below_60_percent_of_the_file_limit() {
    const FILES: usize = 700;
    let upstream = upstream().await;
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("services.yaml"), links("a")).unwrap();
    // By TCP each look-up has a socket.
    let corefile = format!(
        ".:0 {{\nbind 127.0.0.1\nprometheus 127.0.0.1:0\nhealth 127.0.0.1:0\nready 127.0.0.1:0\n\
         lb_linker lb.internal\nforward . {} {{\nforce_tcp\n}}\n}}\n",
        upstream.address
    );
    let linker = Linker::start_on_corefile(&corefile, directory.path(), Some(FILES));
    linker.ready().await;
    linker.line("the process may open 700 files, and 3400 are needed").await;
    let watch = OpenFileWatch::start(&linker);
    let other = Client::new(loopback(3), linker.dns).await;
    // lb-linker looks up a new target in advance only if the link was queried recently.
    for link in 0..10 {
        other.resolves(&format!("web{link}-default.lb.internal. A")).await;
    }
    let mut floods = Vec::new();
    for last in 10..22 {
        floods.push(Flood::start(last, linker.dns, 2, 60).await);
    }
    let refused = || async {
        let sockets = linker.metric("lb_linker_dns_lookups_refused_total{bound=\"sockets\"}");
        sockets.filter(|refused| *refused > 100.0)
    };
    eventually("look-ups without a socket", refused).await;
    // All sockets for names that aren't targets of links are in use, and links still resolve.
    for link in 0..10 {
        other.resolves(&format!("web{link}-default.lb.internal. A")).await;
    }
    // New targets are looked up before a client queries them.
    replace_file(&directory.path().join("services.yaml"), links("b"));
    for link in 0..10 {
        eventually("a look-up without a client", || async {
            (!upstream.asked(&format!("b{link}.example.com. A")).is_empty()).then_some(())
        })
        .await;
    }
    // A client for which no socket is free gets a REFUSED answer with the reason.
    for number in 0..FILES {
        other.send(1, &format!("n{number}.of3.{SILENT} A")).await;
    }
    let refused = async {
        while ede_text(&other.receive().await).as_deref() != Some("no socket to an upstream is free") {}
    };
    timeout(EVENT_TIMEOUT, refused).await.expect("a refusal");
    assert!(watch.most() < FILES * 60 / 100 + OTHER_FILES, "{} files open", watch.most());
    assert!(watch.most() > FILES * 30 / 100, "{} files open", watch.most());
    assert_eq!(linker.logged("Too many open files"), 0);
    drop(floods);
    // The upstream was never considered down.
    assert_eq!(linker.metric("coredns_forward_healthcheck_broken_total"), Some(0.0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_blocks_share_the_limit_of_sockets() {
    const FILES: usize = 800;
    /// The share of a single client: half of 30 %.
    const SHARE: usize = FILES * 15 / 100;
    /// The maximum number of idle sockets.
    const IDLE: usize = FILES * 10 / 100;
    let upstream = upstream().await;
    let directory = tempfile::tempdir().unwrap();
    // By TCP each look-up has a socket.
    let forward = format!("bind 127.0.0.1\nforward . {} {{\nforce_tcp\n}}\n", upstream.address);
    let corefile = format!(
        ".:0 {{\nprometheus 127.0.0.1:0\nhealth 127.0.0.1:0\nready 127.0.0.1:0\n{forward}}}\n\
         of2.{SILENT}:0 {{\n{forward}}}\ncut.{SILENT}:0 {{\n{forward}}}\n"
    );
    let linker = Linker::start_on_corefile(&corefile, directory.path(), Some(FILES));
    linker.ready().await;
    let watch = OpenFileWatch::start(&linker);
    let client = Client::new(loopback(2), linker.dns).await;
    for number in 0..3 * FILES {
        let zone = ["of1.silent.example.", "of2.silent.example.", CUT][number % 3];
        client.send(1, &format!("n{number}.{zone} A")).await;
        if number % 50 == 0 {
            sleep(Duration::from_millis(5)).await;
        }
    }
    // A metric shows the limit that was reached: the log has only one line a minute about refused look-ups.
    let refused = r#"lb_linker_dns_lookups_refused_total{bound="sockets"}"#;
    eventually("a look-up without a socket", || async {
        linker.metric(refused).filter(|count| *count > 0.0)
    })
    .await;
    eventually("the end of all look-ups", || async {
        let names = upstream.names().len();
        sleep(RETRY).await;
        (upstream.names().len() == names).then_some(())
    })
    .await;
    let most = watch.most();
    assert!((SHARE..SHARE + IDLE + OTHER_FILES).contains(&most), "{most} files open");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn single_client_reaches_500_look_ups_and_keeps_them() {
    /// The limit of open files. 30 % of it are more sockets than the look-ups need, so the limit of look-ups is reached
    /// first.
    const FILES: usize = 10_000;
    let upstream = upstream().await;
    let directory = tempfile::tempdir().unwrap();
    // As with the default flags, but look-ups last longer than the test.
    let corefile = format!(
        ".:0 {{\nbind 127.0.0.1\nprometheus 127.0.0.1:0\nhealth 127.0.0.1:0\nready 127.0.0.1:0\nforward . {} \
         {{\nmax_concurrent {MAX_CONCURRENT}\nread_timeout 10m\n}}\n}}\n",
        upstream.address
    );
    let linker = Linker::start_on_corefile(&corefile, directory.path(), Some(FILES));
    linker.ready().await;

    let mut refused = HashSet::new();
    // Repeats queries for these names until each has reached the upstream or was refused.
    let mut ask = async |client: &Client, names: Range<usize>, expected: usize| {
        let name = |number: usize| format!("n{number}.{SILENT}");
        loop {
            let asked = silent_names(&upstream);
            let is_open = |number: &usize| !asked.contains(&name(*number)) && !refused.contains(number);
            let open: Vec<usize> = names.clone().filter(is_open).collect();
            if open.is_empty() {
                assert_eq!(names.filter(|number| asked.contains(&name(*number))).count(), expected);
                return;
            }
            for number in open {
                client.send(u16::try_from(number).unwrap(), &format!("{} A", name(number))).await;
                if number % 50 == 0 {
                    sleep(Duration::from_millis(5)).await;
                }
            }
            while let Ok(answer) = timeout(Duration::from_millis(200), client.receive()).await {
                assert_eq!(answer.metadata.response_code, ResponseCode::Refused, "{answer:?}");
                refused.insert(usize::from(answer.metadata.id));
            }
        }
    };
    let client = Client::new(loopback(2), linker.dns).await;
    ask(&client, 0..600, 500).await;
    // lb-linker repeats each query, because a datagram may be lost: without a spare socket, from the same socket.
    eventually("each question for the second time", || async {
        let mut names = HashMap::new();
        upstream.names().into_iter().for_each(|name| *names.entry(name).or_insert(0) += 1);
        names.remove(&Name::root());
        (names.len() == 500 && names.values().all(|times| *times > 1)).then_some(())
    })
    .await;
    // The look-ups of a closed TCP connection continue.
    drop(client);
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((loopback(4), 0).into()).unwrap();
    let mut gone = socket.connect(linker.dns).await.unwrap();
    for number in 0..100 {
        write_message(&mut gone, &query(&format!("t{number}.{SILENT} A")).to_vec().unwrap()).await;
    }
    eventually("100 look-ups by TCP", || async {
        let asked = silent_names(&upstream);
        (asked.iter().filter(|name| name.starts_with('t')).count() == 100).then_some(())
    })
    .await;
    drop(gone);
    // The next client gets half of the free look-ups, and the first client keeps its share.
    ask(&Client::new(loopback(3), linker.dns).await, 1000..1300, 200).await;
    ask(&Client::new(loopback(2), linker.dns).await, 2000..2010, 0).await;
    // Joining a look-up in flight is free. Any of the first 600 names may be among the 100 refused ones.
    let asked = silent_names(&upstream);
    let in_flight = (0..600).map(|number| format!("n{number}.{SILENT}")).find(|name| asked.contains(name));
    let joined = Client::new(loopback(2), linker.dns).await;
    joined.send(1, &format!("{} A", in_flight.expect("a look-up in flight"))).await;
    let early = timeout(Duration::from_millis(500), joined.receive()).await;
    assert!(early.is_err(), "it waits: {early:?}");
}
