use std::net::Ipv4Addr;

use hickory_proto::op::{Message, Query};
use hickory_proto::rr::{Name, RecordType};
use tokio::net::UdpSocket;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

use super::*;
use crate::dns::configuration::first_handler;
use crate::dns::plugins::setup::Site;
use crate::store::{Departed, Store};

const KNOWN: &str = "web.lb.internal.";
const SLOW: &str = "slow.example.";

/// What answers, with an upstream that doesn't.
async fn handler() -> (Arc<Handler>, UdpSocket) {
    let silent = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let site = Site::silent(Arc::new(Store::new(Departed::Kept))).unwrap();
    let upstream = silent.local_addr().unwrap();
    let text = format!("lb.internal {{\nlb_linker\n}}\n. {{\nforward . {upstream}\n}}\n");
    (first_handler(&text, &site).unwrap(), silent)
}

async fn client(last: u8, server: SocketAddr) -> UdpSocket {
    let socket = UdpSocket::bind((Ipv4Addr::new(127, 0, 0, last), 0)).await.unwrap();
    socket.connect(server).await.unwrap();
    socket
}

async fn ask(socket: &UdpSocket, name: &str) {
    let mut message = Message::query();
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(Name::from_ascii(name).unwrap(), RecordType::A));
    socket.send(&message.to_vec().unwrap()).await.unwrap();
}

async fn answered(socket: &UdpSocket) {
    let answer = timeout(Duration::from_secs(60), socket.recv(&mut [0; 1232])).await;
    answer.expect("an answer").unwrap();
}

fn busy(handler: &Handler) -> f64 {
    let page = handler.metrics.render(&Arc::new(Store::new(Departed::Kept))).unwrap();
    let value =
        |line: &str| line.strip_prefix("lb_linker_dns_udp_dropped_total{reason=\"busy\"} ")?.parse().ok();
    page.lines().find_map(value).unwrap()
}

#[tokio::test]
async fn a_client_whose_questions_wait_leaves_room_for_those_of_others() {
    let (handler, _silent) = handler().await;
    let sockets = bind((Ipv4Addr::LOCALHOST, 0).into(), false).unwrap();
    let address = sockets[0].local_addr().unwrap();
    let serving = serve_with(sockets, Arc::clone(&handler), Shares::new(16), CancellationToken::new());
    let _serving = AbortOnDropHandle::new(tokio::spawn(serving));
    let (greedy, modest) = (client(1, address).await, client(2, address).await);
    for _ in 0..20 {
        ask(&greedy, SLOW).await;
    }
    // Questions are taken in their order.
    ask(&greedy, KNOWN).await;
    answered(&greedy).await;
    assert_eq!(busy(&handler), 12.0, "it has half");
    for _ in 0..4 {
        ask(&modest, SLOW).await;
    }
    ask(&modest, KNOWN).await;
    answered(&modest).await;
    assert_eq!(busy(&handler), 12.0);
}

#[tokio::test]
async fn what_had_come_when_told_to_stop_is_answered() {
    let (handler, _silent) = handler().await;
    let sockets = bind((Ipv4Addr::LOCALHOST, 0).into(), false).unwrap();
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
async fn a_crowd_of_questions_lets_other_tasks_have_their_turn() {
    const CROWD: usize = 200;
    let (handler, _silent) = handler().await;
    let sockets = bind((Ipv4Addr::LOCALHOST, 0).into(), false).unwrap();
    let client = client(1, sockets[0].local_addr().unwrap()).await;
    for _ in 0..CROWD {
        ask(&client, KNOWN).await;
    }
    let stop = CancellationToken::new();
    let _serving = AbortOnDropHandle::new(tokio::spawn(serve(sockets, handler, stop)));
    // One thread: by the time it is this task's turn again, what has been answered was answered in one go.
    let at_once = || std::iter::from_fn(|| client.try_recv(&mut [0; 1232]).ok()).count();
    let mut most = 0;
    let all = async {
        let mut all = 0;
        while all < CROWD {
            tokio::task::yield_now().await;
            let answered = at_once();
            (most, all) = (most.max(answered), all + answered);
        }
    };
    timeout(Duration::from_secs(60), all).await.expect("all answers");
    assert!(most <= 128, "{most} at once");
}
