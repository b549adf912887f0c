//! DNS queries over real sockets, and upstream resolvers for lb-linker.

use std::cell::Cell;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hickory_proto::op::{Edns, Message, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::opt::EdnsOption;
use hickory_proto::rr::rdata::{A, AAAA, SOA};
use hickory_proto::rr::{Name, RData, Record, RecordType};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream, UdpSocket};
use tokio::runtime::{Builder, Runtime};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};

use super::control_plane::ControlPlane;
use super::port::HeldPort;
use super::process::Process;
use super::programs::programs;
use super::{EVENT_TIMEOUT, eventually, replace_file};

/// An answer within this time isn't due to a timeout of lb-linker for an upstream.
pub const IN_TIME: Duration = Duration::from_millis(900);
/// An answer within this time isn't due to the end of the 1.8 s that a client waits for the records of a target.
pub const IN_CLIENT_TIMEOUT: Duration = Duration::from_millis(1700);

/// Returns a query with RD and EDNS, like `dig`. `question` is a name and a type.
pub fn query(question: &str) -> Message {
    let (name, qtype) = question.split_once(' ').expect("a name and a type");
    let mut message = Message::query();
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(Name::from_ascii(name).unwrap(), qtype.parse::<RecordType>().unwrap()));
    let mut edns = Edns::new();
    edns.set_max_payload(1232);
    message.set_edns(edns);
    message
}

/// Sends bytes by UDP and returns the response, or `None` after `reply_timeout`, or if nothing listens there.
pub async fn send_udp(server: SocketAddr, bytes: &[u8], reply_timeout: Duration) -> Option<Vec<u8>> {
    let any = if server.is_ipv4() { "127.0.0.1:0" } else { "[::1]:0" };
    let socket = UdpSocket::bind(any).await.unwrap();
    socket.connect(server).await.unwrap();
    socket.send(bytes).await.unwrap();
    let mut answer = vec![0; 65535];
    let length = match timeout(reply_timeout, socket.recv(&mut answer)).await.ok()? {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => return None,
        received => received.unwrap(),
    };
    answer.truncate(length);
    Some(answer)
}

/// Sends a query by UDP, and returns the answer. A process that was stopped under load has lost datagrams, so the query
/// is sent again after 5 s. The timeout is shorter than that of [`answers`], so that a missing answer and a wrong answer
/// panic with different messages there.
pub async fn ask_udp(server: SocketAddr, message: &Message) -> Message {
    let query = message.to_vec().unwrap();
    let mut bytes = None;
    for _ in 0..9 {
        bytes = send_udp(server, &query, EVENT_TIMEOUT / 36).await;
        if bytes.is_some() {
            break;
        }
    }
    let bytes = bytes.unwrap_or_else(|| panic!("no answer by UDP: {:?}", message.queries));
    let answer = Message::from_vec(&bytes).unwrap();
    assert_eq!(answer.metadata.id, message.metadata.id);
    answer
}

/// Like [`ask_udp`], but asks again if the answer took longer than `limit`: if an upstream or a process pauses, a timeout
/// of lb-linker ends, and the answer is an error.
pub async fn ask_within(limit: Duration, server: SocketAddr, message: &Message) -> Message {
    let deadline = Instant::now() + EVENT_TIMEOUT;
    loop {
        let begun = Instant::now();
        let answer = ask_udp(server, message).await;
        if begun.elapsed() < limit {
            return answer;
        }
        assert!(Instant::now() < deadline, "each answer takes more than {limit:?}: {:?}", message.queries);
    }
}

pub async fn ask_tcp(server: SocketAddr, message: &Message) -> Message {
    let mut stream = TcpStream::connect(server).await.unwrap();
    write_message(&mut stream, &message.to_vec().unwrap()).await;
    let answer = timeout(EVENT_TIMEOUT, read_message(&mut stream)).await.expect("an answer by TCP").unwrap();
    Message::from_vec(&answer).unwrap()
}

/// Sends a query three times by UDP and three times by TCP, with one socket for each protocol, and returns the answers:
/// a repeated answer may come from a cache.
pub async fn ask_repeatedly(server: SocketAddr, message: &Message) -> Vec<Message> {
    ask_repeatedly_from(Ipv4Addr::LOCALHOST.into(), server, message).await
}

/// Like [`ask_repeatedly`], from this local address.
pub async fn ask_repeatedly_from(source: IpAddr, server: SocketAddr, message: &Message) -> Vec<Message> {
    let bytes = message.to_vec().unwrap();
    let udp = UdpSocket::bind((source, 0)).await.unwrap();
    udp.connect(server).await.unwrap();
    let tcp = if source.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }.unwrap();
    tcp.bind((source, 0).into()).unwrap();
    let mut tcp = tcp.connect(server).await.unwrap();
    let mut answers = Vec::new();
    for _ in 0..3 {
        udp.send(&bytes).await.unwrap();
        let mut answer = [0; 4096];
        let length = timeout(EVENT_TIMEOUT, udp.recv(&mut answer)).await.expect("an answer by UDP").unwrap();
        answers.push(Message::from_vec(&answer[..length]).unwrap());
        write_message(&mut tcp, &bytes).await;
        let answer = timeout(EVENT_TIMEOUT, read_message(&mut tcp)).await.expect("an answer by TCP").unwrap();
        answers.push(Message::from_vec(&answer).unwrap());
    }
    answers
}

/// Returns a message with its TCP length prefix (RFC 1035 section 4.2.2).
pub fn framed(message: &[u8]) -> Vec<u8> {
    [&u16::try_from(message.len()).unwrap().to_be_bytes(), message].concat()
}

/// Writes a message with its TCP length prefix.
pub async fn write_message(stream: &mut TcpStream, message: &[u8]) {
    stream.write_all(&framed(message)).await.unwrap();
}

/// Reads a message; `None` at the end of the connection.
pub async fn read_message(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let length = stream.read_u16().await.ok()?;
    let mut message = vec![0; length.into()];
    stream.read_exact(&mut message).await.ok()?;
    Some(message)
}

/// Returns an answer in one line: rcode, flags, then the sorted sections, with name, TTL, type and data of each record.
pub fn show(answer: &Message) -> String {
    let flags = [
        ("aa", answer.metadata.authoritative),
        ("tc", answer.metadata.truncation),
        ("rd", answer.metadata.recursion_desired),
        ("ra", answer.metadata.recursion_available),
        ("ad", answer.metadata.authentic_data),
    ];
    let flags: Vec<&str> = flags.iter().filter(|(_, set)| *set).map(|(flag, _)| *flag).collect();
    let sections = [&answer.answers, &answer.authorities, &answer.additionals].map(|section| {
        let mut records: Vec<String> = section.iter().map(ToString::to_string).collect();
        records.sort();
        records.join(", ")
    });
    format!("{} {} | {}", answer.metadata.response_code, flags.join(" "), sections.join(" | "))
}

/// Replaces the TTLs of records outside of lb.internal by `TTL` in a result of [`show`]: cached TTLs decrease.
pub fn without_foreign_ttls(shown: &str) -> String {
    let (mut shown, mut rest) = (String::new(), shown);
    while let Some((before, after)) = rest.split_once(" IN ") {
        let (start, ttl) = before.rsplit_once(' ').unwrap();
        let ours = start.to_ascii_lowercase().ends_with("lb.internal.");
        shown.extend([start, " ", if ours { ttl } else { "TTL" }, " IN "]);
        rest = after;
    }
    shown + rest
}

/// Queries a name and type by UDP. Returns the data of the answer section, with sorted addresses at the end, such as
/// `a.example. 192.0.2.1 192.0.2.2`; if the section is empty, the rcode, such as `No Error`.
pub async fn short(server: SocketAddr, question: &str) -> String {
    data(&ask_udp(server, &query(question)).await)
}

/// Returns the answer section of an answer as [`short`] does.
pub fn data(answer: &Message) -> String {
    let addresses = answer.answers.iter().filter_map(|record| record.data.ip_addr());
    let others = answer.answers.iter().filter(|record| record.data.ip_addr().is_none());
    let mut addresses: Vec<_> = addresses.collect();
    addresses.sort();
    let data: Vec<String> = others
        .map(|record| record.data.to_string())
        .chain(addresses.iter().map(ToString::to_string))
        .collect();
    if data.is_empty() { answer.metadata.response_code.to_string() } else { data.join(" ") }
}

/// Waits until [`short`] returns this answer.
pub async fn answers(server: SocketAddr, question: &str, expected: &str) {
    let last = Cell::new(String::new());
    let look = || async {
        last.set(short(server, question).await);
        let answer = last.take();
        let right = answer == expected;
        last.set(answer);
        right.then_some(())
    };
    let waiting = eventually(question, look);
    if timeout(EVENT_TIMEOUT / 2, waiting).await.is_err() {
        panic!("{question}: the answer should become {expected:?} and is {:?}", last.take());
    }
}

/// Returns the number of unconnected UDP sockets at this port of any address.
pub fn udp_sockets(port: u16) -> usize {
    socket_count("udp", "07", port)
}

/// Returns the number of sockets of this kind and state at this port. proc(5): local address, remote address, state; 0A
/// is TCP_LISTEN, 07 an unconnected UDP socket.
pub fn socket_count(kind: &str, state: &str, port: u16) -> usize {
    let port = format!(":{port:04X}");
    let tables = ["", "6"]
        .map(|family| std::fs::read_to_string(format!("/proc/net/{kind}{family}")).unwrap_or_default());
    let here = |line: &&str| {
        let mut words = line.split_whitespace().skip(1);
        words.next().is_some_and(|local| local.ends_with(&port)) && words.nth(1) == Some(state)
    };
    tables.iter().map(|table| table.lines().filter(here).count()).sum()
}

/// A CoreDNS process.
pub struct CoreDns {
    process: Process,
    directory: TempDir,
    _port: HeldPort,
    pub address: SocketAddr,
}

impl CoreDns {
    /// Starts CoreDNS with the plugins of a server block; the plugin `file` can use the zone file `db`.
    pub async fn start(plugins: &str, db: &str) -> Self {
        Self::start_with_scheme("", plugins, db).await
    }

    /// Like [`CoreDns::start`], with a scheme such as `tls://` before the port, or an empty string.
    pub async fn start_with_scheme(scheme: &str, plugins: &str, db: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let port = HeldPort::take().unwrap();
        std::fs::write(directory.path().join("db"), db).unwrap();
        let address = port.local();
        let process = Self::run(&directory, scheme, plugins, address).await;
        Self { process, directory, _port: port, address }
    }

    /// Restarts CoreDNS at the same address, with these plugins.
    pub async fn restart(&mut self, plugins: &str) {
        self.process.kill();
        self.process = Self::run(&self.directory, "", plugins, self.address).await;
    }

    /// Ends CoreDNS. [`CoreDns::restart`] starts it again.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Replaces the zone file `db`.
    pub fn write_db(&self, db: &str) {
        replace_file(&self.directory.path().join("db"), db);
    }

    async fn run(directory: &TempDir, scheme: &str, plugins: &str, address: SocketAddr) -> Process {
        let corefile = format!("{scheme}.:{} {{\n bind 127.0.0.1\n{plugins}\n}}", address.port());
        std::fs::write(directory.path().join("Corefile"), corefile).unwrap();
        let mut command = Command::new(&programs().coredns);
        command.current_dir(directory.path()).stdout(Stdio::null()).stderr(Stdio::null());
        let process = Process::spawn(command).unwrap();
        eventually("CoreDNS", || async { TcpStream::connect(address).await.ok() }).await;
        // CoreDNS opens the UDP port last. One socket at this port is the test's own, which reserves it.
        if scheme.is_empty() {
            let is_open = || async { (udp_sockets(address.port()) > 1).then_some(()) };
            eventually("the UDP port of CoreDNS", is_open).await;
        }
        process
    }

    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Starts CoreDNS as the DNS of a cluster, which also resolves the cloud provider's names.
    pub async fn of_cluster(plane: &ControlPlane) -> Self {
        let kubeconfig = plane.admin_kubeconfig();
        let plugins = format!(
            "kubernetes cluster.local {{
               kubeconfig {} test
             }}
             file db example.com",
            kubeconfig.display()
        );
        Self::start(&plugins, CLOUD).await
    }

    /// Starts CoreDNS as the resolver for the cloud provider's names.
    pub async fn cloud() -> Self {
        Self::start(
            "file db example.com
             template ANY ANY broken.example.com {
               rcode SERVFAIL
             }
             template ANY ANY refused.example.com {
               rcode REFUSED
             }",
            &format!(
                "{CLOUD}{}",
                (1..=100).map(|i| format!("many 60 IN A 192.0.2.{i}\n")).collect::<String>()
            ),
        )
        .await
    }
}

/// The zone of the cloud provider's resolver. Negative answers may be cached for an hour, as at large cloud providers.
const CLOUD: &str = "$ORIGIN example.com.
@     3600 IN SOA ns.example.com. root.example.com. 1 7200 1800 86400 3600
@     3600 IN NS ns.example.com.
a       60 IN A 192.0.2.10
b       60 IN A 192.0.2.20
b       60 IN AAAA 2001:db8::20
chain   60 IN CNAME a.example.com.
back    60 IN CNAME web-default.lb.internal.
";

/// An upstream with behavior that a real resolver can't be made to show. It stops on drop.
pub struct FaultyUpstream {
    _thread: OwnThread,
    pub address: SocketAddr,
    asked: Arc<Mutex<Vec<Message>>>,
}

/// A runtime with a thread of its own: what the test does doesn't delay the answers.
struct OwnThread(Option<Runtime>);

impl OwnThread {
    fn start() -> Self {
        Self(Some(Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()))
    }

    fn spawn<T: Send + 'static>(&self, task: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
        self.0.as_ref().expect("it runs until the drop").spawn(task)
    }
}

impl Drop for OwnThread {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

impl FaultyUpstream {
    /// Starts the upstream. `fault` returns the responses, perhaps none, to a query that arrived by UDP (`false`) or
    /// TCP (`true`).
    pub async fn start(fault: impl Fn(&Message, bool) -> Vec<Message> + Send + Sync + 'static) -> Self {
        Self::start_with_delay(Duration::ZERO, fault).await
    }

    /// Starts an upstream that delays each response. Only queries of the same TCP connection wait for each other.
    pub async fn start_with_delay(
        delay: Duration,
        fault: impl Fn(&Message, bool) -> Vec<Message> + Send + Sync + 'static,
    ) -> Self {
        let thread = OwnThread::start();
        let binding = thread.spawn(async {
            loop {
                let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
                if let Ok(udp) = UdpSocket::bind(tcp.local_addr().unwrap()).await {
                    return (tcp, Arc::new(udp));
                }
            }
        });
        let (tcp, udp) = binding.await.unwrap();
        let address = tcp.local_addr().unwrap();
        let asked: Arc<Mutex<Vec<Message>>> = Arc::default();
        let log = Arc::clone(&asked);
        let answer = Arc::new(move |bytes: &[u8], by_tcp: bool| {
            let message = Message::from_vec(bytes).unwrap();
            let answers = fault(&message, by_tcp);
            log.lock().unwrap().push(message);
            answers.into_iter().map(|answer| answer.to_vec().unwrap()).collect::<Vec<_>>()
        });
        let by_udp = Arc::clone(&answer);
        thread.spawn(async move {
            let mut under_way = JoinSet::new();
            let mut buffer = vec![0; 65535];
            loop {
                let (length, client) = udp.recv_from(&mut buffer).await.unwrap();
                let (answers, udp) = (by_udp(&buffer[..length], false), Arc::clone(&udp));
                under_way.spawn(async move {
                    sleep(delay).await;
                    for answer in answers {
                        // The client may have closed its socket.
                        let _ = udp.send_to(&answer, client).await;
                    }
                });
                while under_way.try_join_next().is_some() {}
            }
        });
        thread.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (mut stream, _) = tcp.accept().await.unwrap();
                let answer = Arc::clone(&answer);
                connections.spawn(async move {
                    while let Some(asked) = read_message(&mut stream).await {
                        sleep(delay).await;
                        for answer in answer(&asked, true) {
                            write_message(&mut stream, &answer).await;
                        }
                    }
                });
            }
        });
        Self { _thread: thread, address, asked }
    }

    /// Forgets the queries so far, in tests with millions of them.
    pub fn forget(&self) {
        self.asked.lock().unwrap().clear();
    }

    /// Returns the names of all queries so far, with repetitions.
    pub fn names(&self) -> Vec<Name> {
        let asked = self.asked.lock().unwrap();
        asked.iter().flat_map(|message| &message.queries).map(|query| query.name().clone()).collect()
    }

    /// Returns the queries so far for this name and type.
    pub fn asked(&self, question: &str) -> Vec<Message> {
        let wanted = query(question).queries;
        let asked = self.asked.lock().unwrap();
        asked.iter().filter(|message| message.queries == wanted).cloned().collect()
    }
}

/// Returns an answer with the address 192.0.2.`last` or 2001:db8::`last`, and this TTL.
pub fn address(asked: &Message, last: u8, ttl: u32) -> Message {
    let mut answer = Message::response(asked.metadata.id, OpCode::Query);
    answer.add_queries(asked.queries.clone());
    let data = match asked.queries[0].query_type() {
        RecordType::AAAA => RData::AAAA(AAAA::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last.into())),
        _ => RData::A(A::new(192, 0, 2, last)),
    };
    answer.add_answer(Record::from_rdata(asked.queries[0].name().clone(), ttl, data));
    answer
}

/// Returns an empty answer with this rcode.
pub fn error(asked: &Message, rcode: ResponseCode) -> Message {
    let mut answer = Message::error_msg(asked.metadata.id, OpCode::Query, rcode);
    answer.add_queries(asked.queries.clone());
    answer
}

/// Returns a negative answer, NXDOMAIN or NODATA, that may be cached for an hour.
pub fn absence(asked: &Message, rcode: ResponseCode) -> Message {
    let mut answer = error(asked, rcode);
    let name = |text| Name::from_ascii(text).unwrap();
    let soa = SOA::new(name("ns.example.com."), name("root.example.com."), 1, 7200, 1800, 86400, 3600);
    answer.add_authority(Record::from_rdata(name("example.com."), 3600, RData::SOA(soa)));
    answer
}

/// Returns the INFO-CODE of an Extended DNS Error (RFC 8914).
pub fn ede(answer: &Message) -> Option<u16> {
    answer.edns.as_ref()?.options().as_ref().iter().find_map(|(_, option)| match option {
        EdnsOption::Unknown(15, data) => Some(u16::from_be_bytes([data[0], data[1]])),
        _ => None,
    })
}
