use std::fs;
use std::str::FromStr;

use hickory_proto::op::{Message, MessageType, OpCode};
use hickory_proto::rr::RData;

use super::*;
use crate::dns::plugins::tests::support::TestServer;

fn running(options: &str) -> (tempfile::TempDir, CancellationToken, JoinSet<()>) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("db");
    fs::write(&file, "$TTL 60\n@ SOA ns host 7 1 2 3 4\n@ NS ns\n").unwrap();
    let lines = format!("file {} example.org {{\nreload 0s\n}}\ntransfer {{\n{options}\n}}", file.display());
    let (_, stop, tasks) = TestServer::running(&lines);
    (directory, stop, tasks)
}

async fn received(socket: &UdpSocket) -> (Message, SocketAddr) {
    let mut bytes = [0; 512];
    let (length, from) = socket.recv_from(&mut bytes).await.unwrap();
    (Message::from_vec(&bytes[..length]).unwrap(), from)
}

#[tokio::test(start_paused = true)]
async fn notify_is_repeated_five_times_without_an_answer() {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let to = socket.local_addr().unwrap();
    let (_directory, _stop, _tasks) = running(&format!("to * {to}\nsource 127.0.0.1"));
    for _ in 0..TRIES {
        let (message, from) = received(&socket).await;
        assert_eq!(message.metadata.op_code, OpCode::Notify);
        assert!(message.metadata.authoritative && message.metadata.message_type == MessageType::Query);
        assert_eq!(message.queries[0].name().to_ascii(), "example.org.");
        assert_eq!(message.queries[0].query_type(), RecordType::SOA);
        assert!(matches!(&message.answers[0].data, RData::SOA(soa) if soa.serial == 7));
        assert_eq!(from.ip(), IpAddr::from_str("127.0.0.1").unwrap());
        // Neither another id nor a query is an answer.
        let mut wrong = message.clone();
        socket.send_to(&wrong.to_vec().unwrap(), from).await.unwrap();
        wrong.metadata.message_type = MessageType::Response;
        wrong.metadata.id ^= 1;
        socket.send_to(&wrong.to_vec().unwrap(), from).await.unwrap();
    }
    tokio::time::sleep(Duration::from_secs(1000)).await;
    assert!(socket.try_recv(&mut [0; 512]).is_err());
}

#[tokio::test]
async fn answered_notify_is_not_repeated() {
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let shared = Arc::new(Shared::default());
    let to = socket.local_addr().unwrap();
    let origin = Name::from_ascii("example.org.").unwrap();
    let message = message(&origin, None);
    let telling = tokio::spawn(Secondary { origin, to, source: None }.notify(message, shared));
    let (mut message, from) = received(&socket).await;
    message.metadata.message_type = MessageType::Response;
    socket.send_to(&message.to_vec().unwrap(), from).await.unwrap();
    telling.await.unwrap();
}
