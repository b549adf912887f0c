//! How many look-ups and sockets to upstreams one client may have: the other clients must not notice it.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

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
use crate::harness::{PATIENCE, eventually};

/// Names in this zone are never answered.
const SILENT: &str = "silent.example.";
/// Look-ups that may be under way with the default flags.
const MAX_CONCURRENT: usize = 1000;
/// What the process has open beside sockets to upstreams: listeners, probes and its own plumbing. Far more than it
/// needs, and far fewer than the sockets that a flood would open.
const OTHER_FILES: usize = 60;
/// How long a client waits for an answer before it asks again.
const RETRY: Duration = Duration::from_secs(5);

/// Names in this zone are never answered by TCP, and by UDP they are told to come by TCP.
const CUT: &str = "cut.silent.example.";

/// An upstream that answers all names but those in [`SILENT`], with addresses that no cache keeps.
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

/// The names in [`SILENT`] that the upstream was asked for.
fn silent_names(upstream: &FaultyUpstream) -> HashSet<String> {
    let names = upstream.names().into_iter().map(|name| name.to_ascii());
    names.filter(|name| name.ends_with(SILENT)).collect()
}

/// Links `web0` to `web9`, each with a target of its own, at target names of this generation.
fn links(generation: &str) -> String {
    let links: Vec<(String, String)> =
        (0..10).map(|i| (format!("web{i}"), format!("{{hostname: {generation}{i}.example.com}}"))).collect();
    manifests(&links.iter().map(|(name, ingress)| (&**name, &**ingress)).collect::<Vec<_>>())
}

/// lb-linker with the default flags, which may open so many files.
async fn linker(upstream: SocketAddr, files: usize) -> (Linker, TempDir) {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("services.yaml"), links("a")).unwrap();
    let upstream = upstream.to_string();
    let args = ["--manifests", directory.path().to_str().unwrap(), "--upstream", &upstream];
    let linker = Linker::start_with_files(files, args);
    linker.ready().await;
    (linker, directory)
}

/// A client with an address of its own.
struct Client(UdpSocket);

impl Client {
    async fn new(address: impl Into<IpAddr>, server: SocketAddr) -> Self {
        let socket = UdpSocket::bind((address.into(), 0)).await.unwrap();
        socket.connect(server).await.unwrap();
        Self(socket)
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

    /// Asks as a stub resolver does: a datagram may be lost.
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

    async fn resolves(&self, question: &str) {
        let answer = self.ask(question).await;
        let has_address = answer.answers.iter().any(|record| record.data.ip_addr().is_some());
        assert!(has_address, "{question}: {answer:?}");
    }
}

/// The EXTRA-TEXT of a refusal.
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

/// A client that asks for different names that are never answered, until this is dropped.
struct Flood {
    sent: Arc<AtomicUsize>,
    _task: AbortOnDropHandle<()>,
}

impl Flood {
    /// Starts one that sends so many questions each 10 ms, at most.
    async fn start(last: u8, server: SocketAddr, rate: usize) -> Self {
        let client = Client::new(loopback(last), server).await;
        let sent = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&sent);
        let task = tokio::spawn(async move {
            loop {
                for _ in 0..rate {
                    let number = counter.fetch_add(1, Ordering::SeqCst);
                    let zone = if number.is_multiple_of(4) { CUT } else { SILENT };
                    client.send(1, &format!("n{number}.of{last}.{zone} A")).await;
                }
                while client.0.try_recv(&mut [0; 512]).is_ok() {}
                sleep(Duration::from_millis(10)).await;
            }
        });
        Self { sent, _task: AbortOnDropHandle::new(task) }
    }

    /// Waits until so many questions were sent.
    async fn has_sent(&self, number: usize) {
        eventually("a flood", || async { (self.sent.load(Ordering::SeqCst) >= number).then_some(()) }).await;
    }
}

/// Notes how many files are open at most.
struct Watch {
    most: Arc<AtomicUsize>,
    _task: AbortOnDropHandle<()>,
}

impl Watch {
    fn start(linker: &Linker) -> Self {
        let (most, files) = (Arc::new(AtomicUsize::new(0)), format!("/proc/{}/fd", linker.id()));
        let seen = Arc::clone(&most);
        let task = tokio::spawn(async move {
            loop {
                seen.fetch_max(std::fs::read_dir(&files).map_or(0, Iterator::count), Ordering::SeqCst);
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
async fn one_client_leaves_look_ups_and_sockets_to_others() {
    const FILES: usize = 4000;
    let upstream = upstream().await;
    let (linker, _directory) = linker(upstream.address, FILES).await;
    let watch = Watch::start(&linker);
    let other = Client::new(loopback(3), linker.dns).await;
    let flood = Flood::start(2, linker.dns, 40).await;
    flood.has_sent(1500).await;
    let mut number = 0;
    while flood.sent.load(Ordering::SeqCst) < 6000 || number < 20 {
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
    assert_eq!(linker.logged("the process may open"), 0, "so many files are enough");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upstream_sockets_stay_below_60_percent_of_the_files() {
    const FILES: usize = 700;
    let upstream = upstream().await;
    let (linker, directory) = linker(upstream.address, FILES).await;
    linker.line("the process may open 700 files, and 3400 are needed").await;
    let watch = Watch::start(&linker);
    let other = Client::new(loopback(3), linker.dns).await;
    // Clients have asked for these links a moment ago.
    for link in 0..10 {
        other.resolves(&format!("web{link}-default.lb.internal. A")).await;
    }
    let mut floods = Vec::new();
    for last in 10..22 {
        floods.push(Flood::start(last, linker.dns, 2).await);
    }
    let refused = || async {
        let sockets = linker.metric("lb_linker_dns_lookups_refused_total{bound=\"sockets\"}");
        sockets.filter(|refused| *refused > 100.0)
    };
    eventually("look-ups without a socket", refused).await;
    // All sockets for other names are in use, and links resolve.
    for link in 0..10 {
        other.resolves(&format!("web{link}-default.lb.internal. A")).await;
    }
    // New targets are looked up before a client asks for them.
    std::fs::write(directory.path().join("services.yaml"), links("b")).unwrap();
    for link in 0..10 {
        eventually("a look-up without a client", || async {
            (!upstream.asked(&format!("b{link}.example.com. A")).is_empty()).then_some(())
        })
        .await;
    }
    // A client that asks for more than half of all sockets is told why it is refused.
    for number in 0..FILES {
        other.send(1, &format!("n{number}.of3.{SILENT} A")).await;
    }
    let refused = async {
        while ede_text(&other.receive().await).as_deref() != Some("no socket to an upstream is free") {}
    };
    timeout(PATIENCE, refused).await.expect("a refusal");
    assert!(watch.most() < FILES * 60 / 100 + OTHER_FILES, "{} files open", watch.most());
    assert!(watch.most() > FILES * 30 / 100, "{} files open", watch.most());
    assert_eq!(linker.logged("Too many open files"), 0);
    drop(floods);
    // The upstream was never taken for one that is down.
    assert_eq!(linker.metric("coredns_forward_healthcheck_broken_total"), Some(0.0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_server_blocks_together_have_one_bound_on_sockets() {
    const FILES: usize = 800;
    /// A lone client's, half of 30 %.
    const SHARE: usize = FILES * 15 / 100;
    /// Sockets that wait for their next question.
    const IDLE: usize = FILES * 10 / 100;
    let upstream = upstream().await;
    let directory = tempfile::tempdir().unwrap();
    let forward = format!("bind 127.0.0.1\nforward . {0}\n", upstream.address);
    let corefile = format!(
        ".:0 {{\nprometheus 127.0.0.1:0\nhealth 127.0.0.1:0\nready 127.0.0.1:0\n{forward}}}\n\
         of2.{SILENT}:0 {{\n{forward}}}\ncut.{SILENT}:0 {{\n{forward}}}\n"
    );
    let linker = Linker::start_on_corefile(&corefile, directory.path(), Some(FILES));
    linker.ready().await;
    let watch = Watch::start(&linker);
    let client = Client::new(loopback(2), linker.dns).await;
    for number in 0..3 * FILES {
        let zone = ["of1.silent.example.", "of2.silent.example.", CUT][number % 3];
        client.send(1, &format!("n{number}.{zone} A")).await;
        if number % 50 == 0 {
            sleep(Duration::from_millis(5)).await;
        }
    }
    linker.line("no socket to an upstream is free").await;
    // Repeated questions and connections that follow on cut answers are under way by then.
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
async fn a_lone_client_reaches_500_look_ups_and_keeps_them() {
    /// 30 % of them are far more than the look-ups need: the bound on look-ups is what is reached.
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
    // Asks for each of these names until the upstream is asked for it, or it is refused.
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
    // Each datagram may be lost, so each question is repeated: there aren't as many spare sockets.
    eventually("each question for the second time", || async {
        let mut names = HashMap::new();
        upstream.names().into_iter().for_each(|name| *names.entry(name).or_insert(0) += 1);
        names.remove(&Name::root());
        (names.len() == 500 && names.values().all(|times| *times > 1)).then_some(())
    })
    .await;
    // A client by TCP that has gone leaves its look-ups behind.
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
    // The next client has half of what is free, and the first one still has its share.
    ask(&Client::new(loopback(3), linker.dns).await, 1000..1300, 200).await;
    ask(&Client::new(loopback(2), linker.dns).await, 2000..2010, 0).await;
    // It may join: a look-up that is under way costs nothing.
    let joined = Client::new(loopback(2), linker.dns).await;
    joined.send(1, &format!("n0.{SILENT} A")).await;
    assert!(timeout(Duration::from_millis(500), joined.receive()).await.is_err(), "it waits");
}
