//! Which addresses are listened on and answered from.

use std::net::SocketAddr;
use std::time::Duration;

use hickory_proto::op::Message;
use tokio::net::UdpSocket;
use tokio::time::timeout;

use crate::harness::dns::{answers, ask_tcp, query, show};
use crate::harness::linker::Linker;

const PATIENCE: Duration = Duration::from_secs(5);

fn listening_on(address: &str, directory: &tempfile::TempDir) -> Linker {
    let args = ["--listen", address, "--upstream", "none", "--manifests", directory.path().to_str().unwrap()];
    Linker::start(args)
}

/// Asks from a connected socket, which takes answers from the address that was asked and no other.
async fn ask_at(server: SocketAddr) {
    let socket = UdpSocket::bind((server.ip(), 0)).await.unwrap();
    socket.connect(server).await.unwrap();
    socket.send(&query("default.lb.internal. A").to_vec().unwrap()).await.unwrap();
    let mut answer = vec![0; 1232];
    let length = timeout(PATIENCE, socket.recv(&mut answer)).await.expect("an answer from there").unwrap();
    assert!(show(&Message::from_vec(&answer[..length]).unwrap()).starts_with("Non-Existent Domain"));
}

#[tokio::test]
async fn answers_leave_from_the_address_that_was_asked() {
    let directory = tempfile::tempdir().unwrap();
    for (listen, ask) in [
        ("[::]:0", &["127.0.0.1", "127.0.0.2", "127.8.9.10", "::1"][..]),
        ("0.0.0.0:0", &["127.0.0.1", "127.0.0.2"][..]),
        ("127.0.0.3:0", &["127.0.0.3"][..]),
    ] {
        let linker = listening_on(listen, &directory);
        linker.ready().await;
        // The harness's own --listen comes first in the log, this test's after it.
        let port = linker
            .log()
            .iter()
            .filter_map(|line| line.split_once("DNS on ")?.1.split_once(',')?.0.parse::<SocketAddr>().ok())
            .next_back()
            .unwrap()
            .port();
        for ip in ask {
            ask_at(SocketAddr::new(ip.parse().unwrap(), port)).await;
        }
    }
}

#[tokio::test]
async fn one_address_is_as_good_as_another() {
    let directory = tempfile::tempdir().unwrap();
    let linker = listening_on("127.0.0.1:0", &directory);
    linker.ready().await;
    answers(linker.dns, "default.lb.internal. A", "Non-Existent Domain").await;
    let answer = ask_tcp(linker.dns, &query("default.lb.internal. A")).await;
    assert!(show(&answer).starts_with("Non-Existent Domain"));
}
