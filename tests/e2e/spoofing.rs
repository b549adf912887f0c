//! Forged replies: an attacker that sends from the upstream's address gets no answer of its own to a client, and the ids of
//! earlier queries don't tell the next one.

use std::collections::HashSet;
use std::io::IoSlice;
use std::net::{SocketAddr, SocketAddrV4, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use hickory_proto::op::Message;
use nix::sys::socket::{MsgFlags, MultiHeaders, SockaddrIn, sendmmsg};

use crate::harness::dns::{address, data, query};
use crate::harness::linker::Linker;
use crate::harness::network::{self, FAR};
use crate::harness::scale::scaled;

const CLIENTS: usize = 4;
/// The forged replies to each query.
const FORGED: usize = 100;
/// The last octet of the address in real answers, and in forged ones.
const LAST_OCTETS: (u8, u8) = (9, 66);

/// The queries that the upstream has got, each with its port and its id; and the number of forged replies.
#[derive(Default)]
struct Seen {
    queries: Vec<(u16, u16)>,
    forged: usize,
}

/// Answers each query, after forged replies: with wrong ids, on wrong ports, and about other names, types and classes.
fn serve(upstream: &UdpSocket, is_over: &AtomicBool) -> Seen {
    upstream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    let (mut seen, mut buffer) = (Seen::default(), [0; 512]);
    let mut headers = MultiHeaders::<SockaddrIn>::preallocate(FORGED, None);
    while !is_over.load(Ordering::Relaxed) {
        let Ok((length, SocketAddr::V4(from))) = upstream.recv_from(&mut buffer) else { continue };
        let asked = Message::from_vec(&buffer[..length]).unwrap();
        let reply = |last| address(&asked, last, 60).to_vec().unwrap();
        let forged: Vec<_> = (0..FORGED).map(|number| forge(reply(LAST_OCTETS.1), from, number)).collect();
        let slices: Vec<_> = forged.iter().map(|(reply, _)| [IoSlice::new(reply)]).collect();
        let to: Vec<_> = forged.iter().map(|(_, to)| Some(SockaddrIn::from(*to))).collect();
        let sent =
            sendmmsg(upstream.as_raw_fd(), &mut headers, &slices, to, [], MsgFlags::empty()).unwrap().count();
        upstream.send_to(&reply(LAST_OCTETS.0), from).unwrap();
        seen.forged += sent;
        seen.queries.push((from.port(), asked.metadata.id));
    }
    seen
}

/// Changes what identifies a reply; returns it with the address that it is sent to.
fn forge(mut reply: Vec<u8>, mut to: SocketAddrV4, number: usize) -> (Vec<u8>, SocketAddrV4) {
    let change = u16::try_from(number + 1).unwrap() * rand::random_range(1..=600);
    let (label_length, id) = (usize::from(reply[12]), u16::from_be_bytes([reply[0], reply[1]]));
    // Behind the name `LABEL.example.`.
    let qtype = 12 + 1 + label_length + 9;
    match number % 6 {
        0 | 1 => reply[..2].copy_from_slice(&(id ^ change).to_be_bytes()),
        2 => to.set_port((to.port() ^ change).max(1)),
        3 => reply[13] ^= 0x10,
        4 => reply[qtype + 1] = 28,
        _ => reply[qtype + 3] = 3,
    }
    (reply, to)
}

/// Asks for new names one after the other, and expects the real answers.
fn ask(server: SocketAddr, client: usize, number: usize) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.connect(server).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    for at in 0..number {
        let asked = query(&format!("n{client}-{at}.example. A"));
        let mut buffer = [0; 1232];
        let answer = (0..10).find_map(|_| {
            socket.send(&asked.to_vec().unwrap()).unwrap();
            let length = socket.recv(&mut buffer).ok()?;
            Some(Message::from_vec(&buffer[..length]).unwrap())
        });
        let answer = answer.unwrap_or_else(|| panic!("no answer in 20 s to query {at} of client {client}"));
        assert_eq!(answer.metadata.id, asked.metadata.id, "a repeated query may be answered twice");
        assert_eq!(data(&answer), format!("192.0.2.{}", LAST_OCTETS.0));
    }
}

/// Returns how much the values differ from a uniform distribution, in standard deviations of the chi-squared statistic.
fn deviation(values: impl Iterator<Item = u8>) -> f64 {
    let mut counts = [0_f64; 256];
    values.for_each(|value| counts[usize::from(value)] += 1.0);
    let expected = counts.iter().sum::<f64>() / 256.0;
    let chi_squared: f64 = counts.iter().map(|count| (count - expected).powi(2) / expected).sum();
    (chi_squared - 255.0) / (2.0_f64 * 255.0).sqrt()
}

#[test]
fn forged_replies_reach_no_client() {
    if !network::is_own("spoofing::forged_replies_reach_no_client") {
        return;
    }
    let queries = scaled(100_000, 2_000);
    let upstream = network::on_far_host(|| UdpSocket::bind((FAR.0, 0)).unwrap());
    let directory = tempfile::tempdir().unwrap();
    let to = upstream.local_addr().unwrap().to_string();
    let linker = Linker::start(["--manifests", directory.path().to_str().unwrap(), "--upstream", &to]);
    let is_over = AtomicBool::new(false);
    let seen = thread::scope(|scope| {
        let served = scope.spawn(|| serve(&upstream, &is_over));
        let server = linker.dns;
        let clients: [_; CLIENTS] =
            std::array::from_fn(|client| scope.spawn(move || ask(server, client, queries / CLIENTS)));
        let ended = clients.map(|client| client.join());
        is_over.store(true, Ordering::Relaxed);
        ended.into_iter().for_each(|end| end.expect("each client gets the real answers"));
        served.join().unwrap()
    });
    let ports: HashSet<_> = seen.queries.iter().map(|(port, _)| port).collect();
    let ids = || seen.queries.iter().map(|(_, id)| *id);
    let differences = || ids().zip(ids().skip(1)).map(|(one, next)| next.wrapping_sub(one));
    println!(
        "chaos: {} forged replies to {} queries from {} ports: none reached a client",
        seen.forged,
        seen.queries.len(),
        ports.len()
    );
    let name = format!("lb_linker_dns_upstream_ignored_replies_total{{to=\"{to}\"}}");
    // Five of six forged replies are sent to the right port. A full receive buffer drops some.
    let ignored = linker.metric(&name).unwrap_or_default();
    assert!(ignored > seen.forged as f64 / 4.0, "{ignored} of {}", seen.forged);
    assert!(ports.len() > queries / 1000, "{ports:?}");
    for (octet, name) in [(0, "first"), (1, "second")] {
        for (values, what) in [(ids().collect::<Vec<_>>(), "ids"), (differences().collect(), "differences")] {
            let deviation = deviation(values.iter().map(|value| value.to_be_bytes()[octet]));
            // Of random values, one in 10^20.
            assert!(deviation < 10.0, "the {name} octets of {what} aren't random: {deviation}");
        }
    }
}
