//! Zone transfers over one connection.

use std::fmt::Write as _;
use std::fs;

use hickory_proto::rr::RData;

use super::*;

/// Returns a handler of a zone with this number of records beside its SOA record, each of 250 bytes.
fn handler_of_zone(records: usize) -> Arc<Handler> {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("db");
    let mut text = "$TTL 60\n@ SOA ns host 7 1 2 3 4\n".to_owned();
    for number in 0..records {
        writeln!(text, "n{number} TXT {}", "x".repeat(220)).unwrap();
    }
    fs::write(&file, text).unwrap();
    let context = ServerContext::silent(Arc::new(Store::new(OnGone::Kept))).unwrap();
    let block = format!("example.org {{\nfile {}\ntransfer {{\nto *\n}}\n}}\n", file.display());
    first_handler(&block, &context).unwrap()
}

/// Asks for a transfer on a connection whose two ends each buffer `bytes` bytes.
async fn transfer(
    handler: &Arc<Handler>,
    bytes: usize,
) -> (DuplexStream, JoinHandle<io::Result<()>>, CancellationToken) {
    let (mut client, server) = duplex(bytes);
    let stop = CancellationToken::new();
    let handler = Arc::clone(handler);
    let (permit, _) =
        Arc::new(ConnectionLimiter::new(handler.metrics.group().unwrap())).admit(CLIENT).unwrap();
    let serving = tokio::spawn(Connection { handler, permit, ..connection(&stop) }.serve(server));
    client.write_all(&framed_query(RecordType::AXFR, 1)).await.unwrap();
    (client, serving, stop)
}

fn framed_query(qtype: RecordType, id: u16) -> Vec<u8> {
    let mut message = Message::query();
    message.metadata.id = id;
    message.add_query(Query::query(Name::from_ascii("example.org.").unwrap(), qtype));
    let message = message.to_vec().unwrap();
    [&u16::try_from(message.len()).unwrap().to_be_bytes(), &*message].concat()
}

fn is_soa(record: Option<&hickory_proto::rr::Record>) -> bool {
    record.is_some_and(|record| matches!(record.data, RData::SOA(_)))
}

async fn read_decoded(client: &mut DuplexStream) -> Message {
    Message::from_vec(&read_answer(client).await).unwrap()
}

#[tokio::test(start_paused = true)]
async fn other_queries_are_answered_during_a_transfer() {
    let handler = handler_of_zone(2000);
    let (mut client, serving, _stop) = transfer(&handler, 4096).await;
    let first = read_decoded(&mut client).await;
    assert!(is_soa(first.answers.first()));
    client.write_all(&framed_query(RecordType::SOA, 2)).await.unwrap();
    let (mut records, mut messages, mut answered_at) = (first.answers.len(), 1, None);
    while records < 2002 {
        let message = read_decoded(&mut client).await;
        if message.metadata.id == 2 {
            answered_at = Some(messages);
            continue;
        }
        messages += 1;
        records += message.answers.len();
        assert_eq!(is_soa(message.answers.last()), records == 2002);
    }
    assert!(answered_at.is_some_and(|at| at < 5 && messages > 20), "{answered_at:?} of {messages}");
    // The connection goes on, with another transfer.
    client.write_all(&framed_query(RecordType::AXFR, 3)).await.unwrap();
    assert_eq!(read_decoded(&mut client).await.metadata.response_code, ResponseCode::NoError);
    drop(client);
    assert!(serving.await.unwrap().is_err());
}

#[tokio::test(start_paused = true)]
async fn stop_ends_a_transfer_with_few_unread_bytes() {
    let handler = handler_of_zone(2000);
    let (mut client, serving, stop) = transfer(&handler, 64).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    stop.cancel();
    let mut unread = Vec::new();
    client.read_to_end(&mut unread).await.unwrap();
    assert!((1..64 << 10).contains(&unread.len()), "{}", unread.len());
    serving.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn unread_transfer_ends_and_releases_its_place() {
    let handler = handler_of_zone(2000);
    let (mut client, serving, _stop) = transfer(&handler, 64).await;
    client.read_u8().await.unwrap();
    let start = Instant::now();
    let (mut second, _second_serving, _stop) = transfer(&handler, 64).await;
    assert_eq!(read_decoded(&mut second).await.metadata.response_code, ResponseCode::Refused);
    assert!(is_timeout(serving.await.unwrap()));
    assert_eq!(start.elapsed().as_secs(), IO_TIMEOUT.as_secs());
    let (mut third, _third_serving, _stop) = transfer(&handler, 64).await;
    assert_eq!(read_decoded(&mut third).await.metadata.response_code, ResponseCode::NoError);
}

#[tokio::test(start_paused = true)]
async fn slow_transfer_ends_after_fifteen_minutes() {
    let handler = handler_of_zone(20_000);
    let (mut client, serving, _stop) = transfer(&handler, 64).await;
    let start = Instant::now();
    let read = async {
        while client.read_exact(&mut [0; 16 << 10]).await.is_ok() {
            tokio::time::sleep(Duration::from_secs(4)).await;
        }
        std::future::pending::<()>().await;
    };
    let ended = tokio::select! { ended = serving => ended.unwrap(), () = read => unreachable!() };
    assert!(is_timeout(ended));
    assert_eq!(start.elapsed().as_secs(), TRANSFER_TIMEOUT.as_secs());
}
