//! Listening addresses, and the source addresses of answers.

use std::net::SocketAddr;
use std::time::Duration;

use hickory_proto::op::Message;
use nix::sys::signal::Signal;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

use crate::harness::dns::{query, send_udp, show};
use crate::harness::eventually;
use crate::harness::has_ipv6;
use crate::harness::linker::Linker;

const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

fn listening_on(address: &str, directory: &tempfile::TempDir) -> Linker {
    let args = ["--listen", address, "--upstream", "none", "--manifests", directory.path().to_str().unwrap()];
    Linker::start(args)
}

/// Sends a query from a connected socket, which accepts answers only from the queried address.
async fn query_connected(server: SocketAddr) {
    let socket = UdpSocket::bind((server.ip(), 0)).await.unwrap();
    socket.connect(server).await.unwrap();
    socket.send(&query("default.lb.internal. A").to_vec().unwrap()).await.unwrap();
    let mut answer = vec![0; 1232];
    let length =
        timeout(ANSWER_TIMEOUT, socket.recv(&mut answer)).await.expect("an answer of this server").unwrap();
    assert!(show(&Message::from_vec(&answer[..length]).unwrap()).starts_with("Non-Existent Domain"));
}

#[tokio::test]
async fn answers_leave_from_the_address_that_was_asked() {
    let directory = tempfile::tempdir().unwrap();
    for (listen, ask) in [
        (
            "[::]:0",
            if has_ipv6() { &["127.0.0.1", "127.0.0.2", "127.8.9.10", "::1"][..] } else { &["127.0.0.2"] },
        ),
        ("0.0.0.0:0", &["127.0.0.1", "127.0.0.2"][..]),
        ("127.0.0.3:0", &["127.0.0.3"][..]),
    ] {
        let linker = listening_on(listen, &directory);
        linker.ready().await;
        // The log has the harness's own --listen first and this test's --listen after it.
        let port = linker
            .log()
            .iter()
            .filter_map(|line| line.split_once("DNS on ")?.1.split_once(',')?.0.parse::<SocketAddr>().ok())
            .next_back()
            .unwrap()
            .port();
        for ip in ask {
            query_connected(SocketAddr::new(ip.parse().unwrap(), port)).await;
        }
    }
}

#[tokio::test]
async fn incomplete_requests_dont_delay_the_shutdown() {
    let directory = tempfile::tempdir().unwrap();
    let mut linker = listening_on("127.0.0.1:0", &directory);
    linker.ready().await;
    let mut probe = TcpStream::connect(linker.health).await.unwrap();
    probe.write_all(b"GET /hea").await.unwrap();
    let mut question = TcpStream::connect(linker.dns).await.unwrap();
    question.write_all(&[0, 40, 1, 2, 3]).await.unwrap();
    assert!(linker.stop().success());
}

#[tokio::test]
async fn empty_datagram_is_ignored() {
    let directory = tempfile::tempdir().unwrap();
    let linker = listening_on("127.0.0.1:0", &directory);
    linker.ready().await;
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    socket.connect(linker.dns).await.unwrap();
    let asked = query("default.lb.internal. A");
    for bytes in [vec![], vec![], asked.to_vec().unwrap()] {
        socket.send(&bytes).await.unwrap();
    }
    let mut answer = vec![0; 1232];
    let length = timeout(ANSWER_TIMEOUT, socket.recv(&mut answer)).await.expect("an answer").unwrap();
    assert_eq!(Message::from_vec(&answer[..length]).unwrap().metadata.id, asked.metadata.id);
}

#[tokio::test]
async fn datagrams_dropped_by_the_kernel_are_counted() {
    let directory = tempfile::tempdir().unwrap();
    let mut linker = listening_on("127.0.0.1:0", &directory);
    linker.ready().await;
    let dropped = "lb_linker_dns_udp_dropped_total{reason=\"queue\"}";
    assert_eq!(linker.metric(dropped), Some(0.0));
    linker.signal(Signal::SIGSTOP);
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    socket.connect(linker.dns).await.unwrap();
    // A datagram takes at least 768 bytes of the socket's receive buffer, which has at most 2 MiB.
    for _ in 0..4000 {
        socket.send(&[0]).await.unwrap();
    }
    linker.signal(Signal::SIGCONT);
    // The kernel reports the drop counter with the next datagram (SO_RXQ_OVFL).
    eventually("a count of dropped datagrams", || async {
        let asked = query("default.lb.internal. A").to_vec().unwrap();
        send_udp(linker.dns, &asked, Duration::from_millis(100)).await;
        linker.metric(dropped).filter(|dropped| *dropped > 0.0)
    })
    .await;
}

#[tokio::test]
async fn sighup_is_ignored_as_in_coredns() {
    let directory = tempfile::tempdir().unwrap();
    let mut linker = listening_on("127.0.0.1:0", &directory);
    linker.signal(Signal::SIGHUP);
    // SIGUSR1, which is sent later, is handled later than SIGHUP.
    linker.signal(Signal::SIGUSR1);
    linker.line("is in force").await;
    assert!(linker.stop().success());
}
