use hickory_proto::rr::Name;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use tokio::sync::Notify;

use super::*;
use crate::dns::message::tsig::Algorithm;
use crate::dns::plugins::secondary::tests::{ORIGIN, Primary, answer, framed, soa, whole_zone};

/// Transfers a zone from a server that sends what `script` returns. Returns the serial, or the error.
async fn outcome(script: impl Fn(u16, RecordType) -> Vec<u8> + Send + Sync + 'static) -> String {
    let primary = Primary::start(Box::new(script)).await;
    match transfer(primary.address, ORIGIN, None, None, ZoneMemory::default()).await {
        Ok((zone, _)) => format!("serial {}", zone.serial()),
        Err(error) => error.to_string(),
    }
}

#[tokio::test]
async fn whole_zone_is_accepted() {
    assert_eq!(outcome(|id, _| whole_zone(id, 7)).await, "serial 7");
    assert_eq!(outcome(|id, _| [whole_zone(id, 7), vec![0xff; 70_000]].concat()).await, "serial 7");
}

#[tokio::test]
async fn hostile_server_gets_no_zone_accepted() {
    const CUT: &str = "the transfer ends before the last SOA record";
    const MALFORMED: &str = "a message is cut, or has a malformed name";
    for cut in [0, 1, 2, 20, 60, 90] {
        assert_eq!(outcome(move |id, _| whole_zone(id, 7)[..cut].to_vec()).await, CUT, "{cut}");
    }
    assert_eq!(outcome(|id, _| whole_zone(!id, 7)).await, "a message doesn't answer the question");
    assert_eq!(
        outcome(|id, _| framed(&answer(id, RecordType::AXFR, &[])).repeat(100)).await,
        "a message has no records"
    );
    assert_eq!(outcome(|_, _| vec![0; 1 << 16]).await, MALFORMED);
    assert_eq!(outcome(|_, _| b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec()).await, CUT);
    let changed = |id, _| {
        let (before, after) = (soa(1), soa(2));
        let parts = [&[&*before, "a.example.org. 1 IN A 192.0.2.1"][..], &[&*after]];
        parts.map(|records| framed(&answer(id, RecordType::AXFR, records))).concat()
    };
    assert_eq!(
        outcome(changed).await,
        "the last SOA record isn't the first one: the zone has changed during the transfer"
    );
    let outside = |id, _| {
        framed(&answer(id, RecordType::AXFR, &[&soa(1), "www.example.net. 60 IN A 192.0.2.1", &soa(1)]))
    };
    assert_eq!(outcome(outside).await, "www.example.net. A: its owner is outside the zone");
    // The owner is a pointer to itself.
    let looped = |id, _| {
        let mut message = answer(id, RecordType::AXFR, &[&soa(1)]);
        message[7] += 1;
        let at = u16::try_from(message.len()).unwrap();
        message.extend((0xc000 | at).to_be_bytes());
        message.extend([0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 192, 0, 2, 1]);
        framed(&message)
    };
    assert_eq!(outcome(looped).await, MALFORMED);
}

#[tokio::test]
async fn serial_is_asked_for_by_tcp() {
    let primary = Primary::start(Box::new(|id, qtype| framed(&answer(id, qtype, &[&soa(9)])))).await;
    assert_eq!(serial(primary.address, ORIGIN, None).await.unwrap(), 9);
    let address = primary.end().await;
    let error = serial(address, ORIGIN, None).await.unwrap_err();
    assert_eq!(error.failure(), Failure::NoAnswer);
    assert!(error.to_string().starts_with("no connection: "), "{error}");
}

#[tokio::test]
async fn answer_without_a_signature_is_refused_with_a_key() {
    let primary = Primary::start(Box::new(|id, qtype| match qtype {
        RecordType::SOA => framed(&answer(id, qtype, &[&soa(9)])),
        _ => whole_zone(id, 9),
    }));
    let (primary, name) = (primary.await, Name::from_ascii("key.").unwrap());
    let key = Arc::new(Key::new(&name, Algorithm::Sha256, b"secret").unwrap());
    let errors = [
        serial(primary.address, ORIGIN, Some(Arc::clone(&key))).await.unwrap_err(),
        transfer(primary.address, ORIGIN, Some(key), None, ZoneMemory::default()).await.unwrap_err(),
    ];
    for error in errors {
        assert_eq!(
            (error.to_string().as_str(), error.failure()),
            ("a message isn't signed", Failure::NoAnswer)
        );
    }
}

/// A transfer that breaks off late is as expensive as a zone that isn't accepted.
#[tokio::test]
async fn transfer_that_breaks_off_counts_as_a_refused_zone() {
    let key = Arc::new(Key::new(&Name::from_ascii("key.").unwrap(), Algorithm::Sha256, b"secret").unwrap());
    for (key, first, expected) in [
        (None, true, Failure::RefusedZone),
        (None, false, Failure::NoAnswer),
        (Some(key), true, Failure::NoAnswer),
    ] {
        let script = move |id, _| match first {
            true => [framed(&answer(id, RecordType::AXFR, &[&soa(1)])), framed(&whole_zone(!id, 1))].concat(),
            false => whole_zone(!id, 1),
        };
        let primary = Primary::start(Box::new(script)).await;
        let error = transfer(primary.address, ORIGIN, key, None, ZoneMemory::default()).await.unwrap_err();
        assert_eq!(error.failure(), expected, "{error}");
    }
}

/// A server sends the beginning of a transfer, and nothing more.
#[tokio::test(start_paused = true)]
async fn server_that_falls_silent_is_given_up() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, accepted) = (listener.local_addr().unwrap(), Arc::new(Notify::new()));
    let serving = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(&[0]).await.unwrap();
        accepted.notify_one();
        std::future::pending::<()>().await;
    };
    let passing = async {
        accepted.notified().await;
        // The clock of a test stands still while a thread waits for messages.
        loop {
            tokio::time::advance(Duration::from_millis(10)).await;
        }
    };
    tokio::select! {
        ended = transfer(address, ORIGIN, None, None, ZoneMemory::default()) => {
            assert_eq!(ended.unwrap_err().to_string(), "no message within 20 s");
        }
        () = serving => {}
        () = passing => {}
    }
}
