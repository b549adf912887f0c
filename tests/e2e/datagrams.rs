//! Answers by UDP to clients on the local network, reachable or not, and to forged packets.

use std::collections::HashSet;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use lb_linker::dns::chain::handler::Handler;
use lb_linker::dns::plugins::setup::ServerContext;
use lb_linker::dns::server::config::first_handler;
use lb_linker::dns::transport::udp;
use lb_linker::store::{OnGone, Store};
use nix::sys::socket::{getsockopt, setsockopt, sockopt};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::harness::EVENT_TIMEOUT;
use crate::harness::dns::query;
use crate::harness::forging::Forger;
use crate::harness::network::{self, FAR, NEAR, ROUTED};

/// The default size of a socket's send buffer in bytes (net.core.wmem_default).
const STOCK_SEND_BUFFER: usize = 212_992;

/// The maximum size of an answer in bytes: with the headers of IPv6 and UDP an answer of this size fits into 1,500
/// bytes, Ethernet's MTU, but not into 1,280.
const LARGE: u16 = 1452;

/// A UDP server on all addresses. It stops on drop.
struct UdpServer {
    handler: Arc<Handler>,
    port: u16,
    _stop: DropGuard,
}

impl UdpServer {
    /// Starts a server that answers `few.example` with one address, `many.example` with 66 (1,097 bytes), and
    /// `more.example` with 85 (1,401 bytes).
    fn start() -> Self {
        let addresses = |number, name: &str| -> String {
            (1..=number).map(|last| format!("192.0.2.{last} {name}.example\n")).collect()
        };
        let (many, more) = (addresses(66, "many"), addresses(85, "more"));
        let text = format!(
            ". {{\nbufsize {LARGE}\nhosts /nonexistent {{\n192.0.2.1 few.example\n{many}{more}}}\n}}\n"
        );
        let store = Arc::new(Store::new(OnGone::Kept));
        let handler = first_handler(&text, &ServerContext::silent(Arc::clone(&store)).unwrap()).unwrap();
        let sockets = udp::bind("[::]:0".parse().unwrap()).unwrap();
        for socket in &sockets {
            // The kernel doubles this value.
            setsockopt(socket, sockopt::SndBuf, &(STOCK_SEND_BUFFER / 2)).unwrap();
            assert_eq!(getsockopt(socket, sockopt::SndBuf).unwrap(), STOCK_SEND_BUFFER);
        }
        let port = sockets[0].local_addr().unwrap().port();
        let stop = CancellationToken::new();
        tokio::spawn(udp::serve(sockets, Arc::clone(&handler), stop.clone()));
        Self { handler, port, _stop: stop.drop_guard() }
    }

    fn near(&self) -> SocketAddrV4 {
        SocketAddrV4::new(NEAR.0, self.port)
    }

    /// Returns the number of queries without an answer for this reason.
    fn dropped(&self, reason: &str) -> f64 {
        let page = self.handler.metrics.render().unwrap();
        let name = format!("lb_linker_dns_udp_dropped_total{{reason=\"{reason}\"}} ");
        page.lines().find_map(|line| line.strip_prefix(&*name)?.parse().ok()).unwrap()
    }
}

/// Sends 100 queries per second from `client`, a live host, and between them 1,500 per second from `dead` addresses of
/// the local network that belong to no host. Returns the share of the live host's queries without an answer.
fn loss(server: SocketAddrV4, client: &UdpSocket, forger: &Forger, dead: u32) -> f64 {
    const STEP: Duration = Duration::from_millis(10);
    const STEPS: u16 = 800;
    const FORGED: u32 = 15;
    let mut question = query("few.example. A");
    let mut ask = |id: u16| {
        question.metadata.id = id;
        question.to_vec().unwrap()
    };
    client.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    let has_sent_all = AtomicBool::new(false);
    thread::scope(|scope| {
        let answered = scope.spawn(|| {
            let (mut ids, mut answer) = (HashSet::new(), [0; 1232]);
            // The thread receives answers until none has arrived for two seconds after the last query.
            let deadline = Instant::now() + EVENT_TIMEOUT;
            while ids.len() < usize::from(STEPS) && Instant::now() < deadline {
                let has_sent_all = has_sent_all.load(Ordering::SeqCst);
                match client.recv(&mut answer) {
                    Ok(length) => {
                        assert!(length > 12);
                        ids.insert([answer[0], answer[1]]);
                    }
                    Err(_) if has_sent_all => break,
                    Err(_) => {}
                }
            }
            ids.len()
        });
        let mut next = Instant::now();
        for step in 0..STEPS {
            for forged in 0..FORGED {
                let number = (u32::from(step) * FORGED + forged) % dead;
                let address = Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 9, 1, 0)) + number);
                // A different port each time, so that the kernel chooses different sockets of the server.
                let port = 1024 + step * 15 + u16::try_from(forged).unwrap();
                forger.udp(SocketAddrV4::new(address, port), server, &ask(step));
            }
            client.send_to(&ask(step), server).unwrap();
            // A busy machine reduces the rate, but never causes a burst.
            next = (next + STEP).max(Instant::now());
            thread::sleep(next.saturating_duration_since(Instant::now()));
        }
        has_sent_all.store(true, Ordering::SeqCst);
        1.0 - answered.join().unwrap() as f64 / f64::from(STEPS)
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn queries_from_dead_addresses_cost_a_client_no_answers() {
    if !network::is_own("datagrams::queries_from_dead_addresses_cost_a_client_no_answers") {
        return;
    }
    let (neighbor, routed, forger) = network::on_far_host(|| {
        let client = |address| UdpSocket::bind((address, 0)).unwrap();
        (client(FAR.0), client(ROUTED.1), Forger::new())
    });
    network::add_route();
    // With 12,000 dead addresses each address sends one query. The last client has an address of the local network's
    // prefix, but is behind a router.
    for (dead, client) in [(100, &neighbor), (1, &neighbor), (12_000, &neighbor), (12_000, &routed)] {
        // A run is repeated if the machine was too busy to accept all queries, or if the server could read the neighbor
        // table only after its send buffer was full: other tests configure networks at the same time, and lock the
        // table. The latter is accepted in at most three runs.
        let mut refused_runs = 0;
        let judged = (0..5).find_map(|_| {
            let served = UdpServer::start();
            let loss = loss(served.near(), client, &forger, dead);
            let unreachable = served.dropped("unreachable");
            eprintln!(
                "{dead} dead: {:.1} % lost, {unreachable} withheld, {} refused, {} too many",
                100.0 * loss,
                served.dropped("send"),
                served.dropped("queue"),
            );
            refused_runs += u8::from(served.dropped("send") > 0.0);
            assert!(refused_runs <= 3, "the send buffer was full in {refused_runs} runs");
            let is_conclusive = ["queue", "send"].iter().all(|reason| served.dropped(reason) == 0.0);
            is_conclusive.then_some((loss, unreachable))
        });
        let (loss, unreachable) = judged.expect("a run in which all queries are accepted");
        assert!(loss < 0.05, "{dead} dead addresses, {client:?}: {loss}");
        assert!(unreachable > 0.0, "{dead} dead addresses: no answer was withheld");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn only_this_host_reports_a_client_unreachable() {
    if !network::is_own("datagrams::only_this_host_reports_a_client_unreachable") {
        return;
    }
    let (client, forger) = network::on_far_host(|| (UdpSocket::bind((FAR.0, 0)).unwrap(), Forger::new()));
    let served = UdpServer::start();
    let SocketAddr::V4(living) = client.local_addr().unwrap() else { panic!("not an IPv4 socket") };
    let question = query("few.example. A").to_vec().unwrap();
    let mut answer = [0; 1232];
    client.set_read_timeout(Some(EVENT_TIMEOUT)).unwrap();
    for _ in 0..10 {
        forger.host_unreachable(served.near(), living);
        client.send_to(&question, served.near()).unwrap();
        client.recv(&mut answer).expect("an answer, whatever was forged");
    }
    assert_eq!(served.dropped("unreachable"), 0.0);
    // Few answers are pending, so the send buffer doesn't fill up and the server doesn't read the neighbor table. ARP
    // fails after three seconds, and the kernel reports the failure on the socket.
    let dead = SocketAddrV4::new(Ipv4Addr::new(10, 9, 1, 1), 1024);
    let deadline = Instant::now() + EVENT_TIMEOUT;
    while served.dropped("unreachable") == 0.0 {
        assert!(Instant::now() < deadline, "no answer to the dead address is withheld");
        forger.udp(dead, served.near(), &question);
        thread::sleep(Duration::from_millis(250));
    }
    client.send_to(&question, served.near()).unwrap();
    client.recv(&mut answer).expect("an answer to another client");
}

/// Like the previous test, with IPv6: an ICMPv6 error with an address of this host as its source may come from
/// another host.
#[tokio::test(flavor = "multi_thread")]
async fn only_this_host_reports_an_ipv6_client_unreachable() {
    if !network::is_own("datagrams::only_this_host_reports_an_ipv6_client_unreachable") {
        return;
    }
    let (client, forger) = network::on_far_host(|| (UdpSocket::bind((FAR.1, 0)).unwrap(), Forger::new()));
    let served = UdpServer::start();
    let near = SocketAddrV6::new(NEAR.1, served.port, 0, 0);
    let SocketAddr::V6(living) = client.local_addr().unwrap() else { panic!("not an IPv6 socket") };
    let question = query("few.example. A").to_vec().unwrap();
    let mut answer = [0; 1232];
    client.set_read_timeout(Some(EVENT_TIMEOUT)).unwrap();
    for _ in 0..10 {
        forger.address_unreachable(near, living);
        client.send_to(&question, near).unwrap();
        client.recv(&mut answer).expect("an answer, whatever was forged");
    }
    assert_eq!(served.dropped("unreachable"), 0.0);
    let dead = SocketAddrV6::new(Ipv6Addr::new(0xfd09, 0, 0, 0, 0, 0, 1, 1), 1024, 0, 0);
    let deadline = Instant::now() + EVENT_TIMEOUT;
    while served.dropped("unreachable") == 0.0 {
        assert!(Instant::now() < deadline, "no answer to the dead address is withheld");
        forger.udp6(dead, near, &question);
        thread::sleep(Duration::from_millis(250));
    }
    client.send_to(&question, near).unwrap();
    client.recv(&mut answer).expect("an answer to another client");
}

/// Returns the numbers of IPv4 and IPv6 fragments that this host has created (/proc/net/snmp and /proc/net/snmp6).
fn fragments() -> (u64, u64) {
    let ipv4 = std::fs::read_to_string("/proc/net/snmp").unwrap();
    let mut rows = ipv4.lines().filter(|line| line.starts_with("Ip:")).map(str::split_whitespace);
    let (names, values) = (rows.next().unwrap(), rows.next().unwrap());
    let ipv4 = names.zip(values).find(|(name, _)| *name == "FragCreates").unwrap().1;
    let ipv6 = std::fs::read_to_string("/proc/net/snmp6").unwrap();
    let ipv6 = ipv6.lines().find_map(|line| line.strip_prefix("Ip6FragCreates")).unwrap();
    (ipv4.parse().unwrap(), ipv6.trim().parse().unwrap())
}

/// Sends a query with a large answer, and returns the length of the answer in bytes.
fn ask_for(name: &str, client: &UdpSocket, server: SocketAddr) -> usize {
    let mut question = query(&format!("{name}. A"));
    question.edns.as_mut().unwrap().set_max_payload(LARGE);
    let question = question.to_vec().unwrap();
    let mut answer = [0; 2 * LARGE as usize];
    client.set_read_timeout(Some(EVENT_TIMEOUT)).unwrap();
    client.send_to(&question, server).unwrap();
    loop {
        // Datagrams from the socket `plain` of the tests have only zeros: they are no answers.
        let length = client.recv(&mut answer).unwrap();
        if answer[..2] == question[..2] && answer[2] & 0x80 != 0 {
            return length;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn forged_icmp_causes_no_fragmented_answer() {
    if !network::is_own("datagrams::forged_icmp_causes_no_fragmented_answer") {
        return;
    }
    let (ipv4, forger) = network::on_far_host(|| (UdpSocket::bind((FAR.0, 0)).unwrap(), Forger::new()));
    let served = UdpServer::start();
    let SocketAddr::V4(client) = ipv4.local_addr().unwrap() else { panic!("not an IPv4 socket") };
    // An ICMP error for the packet of one socket lowers the path MTU for all sockets of the host.
    let plain = UdpSocket::bind((NEAR.0, 0)).unwrap();
    let SocketAddr::V4(local) = plain.local_addr().unwrap() else { panic!("not an IPv4 socket") };
    let fragments_of_plain = || {
        let before = fragments().0;
        plain.send_to(&[0; 1100], client).unwrap();
        fragments().0 - before
    };
    assert_eq!(fragments_of_plain(), 0);
    let deadline = Instant::now() + EVENT_TIMEOUT;
    while fragments_of_plain() == 0 {
        assert!(Instant::now() < deadline, "the forged packet has no effect");
        // The kernel may ignore the first forged packet.
        forger.fragmentation_needed(local, client, 552);
        thread::sleep(Duration::from_millis(10));
    }
    let before = fragments();
    for _ in 0..5 {
        forger.fragmentation_needed(served.near(), client, 552);
        assert_eq!(ask_for("many.example", &ipv4, served.near().into()), 1097);
    }
    assert_eq!(fragments(), before);
}

/// Like the previous test, with IPv6: packets of up to 1,280 bytes are never fragmented, so only answers that are
/// larger because of `bufsize` can be fragmented.
#[tokio::test(flavor = "multi_thread")]
async fn forged_icmpv6_causes_no_fragmented_answer() {
    if !network::is_own("datagrams::forged_icmpv6_causes_no_fragmented_answer") {
        return;
    }
    let (ipv6, forger) = network::on_far_host(|| (UdpSocket::bind((FAR.1, 0)).unwrap(), Forger::new()));
    let served = UdpServer::start();
    let near = SocketAddrV6::new(NEAR.1, served.port, 0, 0);
    let SocketAddr::V6(client) = ipv6.local_addr().unwrap() else { panic!("not an IPv6 socket") };
    let fragments_of_answer = |name: &str, length: usize| {
        let before = fragments().1;
        assert_eq!(ask_for(name, &ipv6, near.into()), length);
        fragments().1 - before
    };
    let plain = UdpSocket::bind((NEAR.1, 0)).unwrap();
    let SocketAddr::V6(local) = plain.local_addr().unwrap() else { panic!("not an IPv6 socket") };
    let fragments_of_plain = || {
        let before = fragments().1;
        plain.send_to(&[0; 1400], client).unwrap();
        fragments().1 - before
    };
    assert_eq!(fragments_of_plain(), 0);
    let of_larger = fragments_of_answer("more.example", 1401);
    let deadline = Instant::now() + EVENT_TIMEOUT;
    while fragments_of_plain() == 0 {
        assert!(Instant::now() < deadline, "the forged packet has no effect");
        // The kernel may ignore the first forged packet.
        forger.packet_too_big(local, client, 1280);
        thread::sleep(Duration::from_millis(10));
    }
    for mtu in [1280, 1279, 576] {
        forger.packet_too_big(near, client, mtu);
        assert_eq!(fragments_of_answer("many.example", 1097), 0, "{mtu}");
        assert_eq!(fragments_of_answer("more.example", 1401), of_larger, "{mtu}");
    }
}
