use std::fs;
use std::str::FromStr;

use hickory_proto::op::{Message, MessageType, OpCode};
use hickory_proto::rr::RData;

use super::*;
use crate::captured_log::CapturedLog;
use crate::dns::message::tsig::{Algorithm, check_request};
use crate::dns::message::zone_set::ZoneSet;
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
async fn notify_has_the_serial_of_the_blocks_own_view() {
    let sockets =
        [UdpSocket::bind("127.0.0.1:0").await.unwrap(), UdpSocket::bind("127.0.0.1:0").await.unwrap()];
    let directory = tempfile::tempdir().unwrap();
    let mut text = String::new();
    for (view, (socket, serial)) in ["view v {\nexpr false\n}", ""].iter().zip(sockets.iter().zip([7, 8])) {
        let file = directory.path().join(serial.to_string());
        fs::write(&file, format!("$TTL 60\n@ SOA ns host {serial} 1 2 3 4\n@ NS ns\n")).unwrap();
        let (file, to) = (file.display(), socket.local_addr().unwrap());
        text += &format!("example.org {{\n{view}\nfile {file}\ntransfer {{\nto {to}\n}}\n}}\n");
    }
    let (server, mut configuration) = TestServer::configured(&text);
    let (stop, mut running) = (CancellationToken::new(), JoinSet::new());
    for task in configuration.blocks.iter_mut().flat_map(|built| std::mem::take(&mut built.builder.tasks)) {
        running.spawn(task(Arc::clone(&server.server), stop.clone()));
    }
    for (socket, serial) in sockets.iter().zip([7, 8]) {
        let (message, _) = received(socket).await;
        assert!(matches!(&message.answers[0].data, RData::SOA(soa) if soa.serial == serial));
    }
}

#[tokio::test(start_paused = true)]
async fn silence_is_logged_though_changes_replace_the_messages() {
    let (log, _guard) = CapturedLog::start(tracing::Level::WARN);
    let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("db");
    // The size tells versions of one moment apart.
    let write = |serial: u32| {
        let padding = ";".repeat(serial.try_into().unwrap());
        fs::write(&file, format!("$TTL 60\n@ SOA ns host {serial} 1 2 3 4\n@ NS ns\n{padding}\n")).unwrap();
    };
    write(7);
    let to = socket.local_addr().unwrap();
    let lines = format!("file {} example.org {{\nreload 0s\n}}\ntransfer {{\nto {to}\n}}", file.display());
    let (server, _stop, _tasks) = TestServer::running(&lines);
    for serial in 8..8 + 2 * TRIES {
        received(&socket).await;
        write(serial);
        server.shared.zones.zone(file.clone(), Name::from_ascii("example.org.").unwrap()).refresh(true);
    }
    assert_eq!(log.text().matches("doesn't answer NOTIFY").count(), 1, "{}", log.text());
}

#[test]
fn warnings_say_whether_notify_was_sent_or_its_answer_is_wrong() {
    let unassigned = || io::Error::from(ErrorKind::AddrNotAvailable);
    for (error, expected) in [
        (
            NotifyError::NotSent(IpAddr::from([192, 0, 2, 1]), unassigned()),
            "gets no NOTIFY: it can't be sent from 192.0.2.1: address not available",
        ),
        (NotifyError::NoAnswer(ErrorKind::TimedOut.into()), "doesn't answer NOTIFY: timed out"),
        (
            NotifyError::NotAccepted(TsigError::BadKey, "lb-key.".to_owned()),
            "gives an answer to NOTIFY that isn't accepted: BADKEY: the key or the algorithm isn't known; does it have \
             the key lb-key.?",
        ),
    ] {
        assert_eq!(error.to_string(), expected);
    }
}

#[tokio::test]
async fn notify_from_an_address_of_another_machine_is_not_sent() {
    let origin = Name::from_ascii("example.org.").unwrap();
    let source = Some(IpAddr::from([192, 0, 2, 1]));
    let to = SocketAddr::from(([127, 0, 0, 1], 53));
    let secondary = Secondary { origin, to, source, key: None, unanswered: Arc::default() };
    let error = secondary.exchange(&[0; 12]).await.unwrap_err();
    assert!(matches!(error, NotifyError::NotSent(from, _) if Some(from) == source), "{error}");
}

#[tokio::test]
async fn answered_notify_is_not_repeated() {
    for is_signed in [false, true] {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let shared = Arc::new(Shared::default());
        let to = socket.local_addr().unwrap();
        let origin = Name::from_ascii("example.org.").unwrap();
        let mut keys = TsigKeys::new(ZoneSet::new([origin.clone()]));
        keys.insert(Key::new(&origin, Algorithm::Sha256, b"a secret of some length").unwrap());
        let key = keys.for_zone(&origin).filter(|_| is_signed);
        let message = message(&origin, None);
        let secondary = Secondary { origin, to, source: None, key, unanswered: Arc::default() };
        let telling = tokio::spawn(secondary.notify(message, shared));
        let mut bytes = [0; 512];
        let (length, from) = socket.recv_from(&mut bytes).await.unwrap();
        let request = &bytes[..length];
        let mut answer = request[..12 + 13 + 4].to_vec();
        answer[2] |= 0x80;
        answer[10..12].fill(0);
        if is_signed {
            let checked = check_request(request, &keys, tsig::now());
            assert!(checked.outcome.is_ok());
            checked.signer.unwrap().sign(&mut answer, tsig::now());
        }
        socket.send_to(&answer, from).await.unwrap();
        telling.await.unwrap();
    }
}
