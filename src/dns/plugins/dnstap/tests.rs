use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use hickory_proto::op::{Message, OpCode, Query};
use hickory_proto::rr::{Name, RecordType};
use rcgen::{CertificateParams, KeyPair};
use rustls::DEFAULT_VERSIONS;
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::task::yield_now;
use tokio::time::sleep;
use tokio_rustls::TlsAcceptor;
use tokio_util::either::Either;

use super::frames::{Control, control};
use crate::captured_log::CapturedLog;
use crate::dns::chain::handler::Handler;
use crate::dns::net::Protocol;
use crate::dns::plugins::tests::fake_upstream::{FakeUpstream, address};
use crate::dns::plugins::tests::support::TestServer;
use crate::dns::transport::tls::{ClientAuth, Pem, server_config};

const CLIENT: &str = "192.0.2.7:5353";

/// Answers messages as a listener does.
async fn answer(server: &TestServer, id: u16, question: &str) -> Option<Vec<u8>> {
    answer_by(Protocol::Udp, server, id, question).await
}

async fn answer_by(protocol: Protocol, server: &TestServer, id: u16, question: &str) -> Option<Vec<u8>> {
    let (name, qtype) = question.split_once(' ').unwrap();
    let mut message = Message::query();
    message.metadata.id = id;
    message.metadata.recursion_desired = true;
    message.metadata.op_code = OpCode::Query;
    message.add_query(Query::query(Name::from_ascii(name).unwrap(), qtype.parse::<RecordType>().unwrap()));
    let handler = Handler {
        server: ArcSwap::new(Arc::clone(&server.server)),
        bound: ([127, 0, 0, 1], 53).into(),
        metrics: Arc::clone(&server.shared.metrics),
        server_metrics: server.shared.metrics.group().unwrap(),
    };
    let client: SocketAddr = CLIENT.parse().unwrap();
    let reply = handler.answer(message.to_vec().unwrap(), client, None, protocol, true).await?;
    assert!(reply.wire_response.is_none(), "answers aren't kept");
    Some(reply.bytes)
}

/// A sink after its handshake.
struct TestSink<S>(S);

impl<S: AsyncRead + AsyncWrite + Unpin> TestSink<S> {
    async fn accept(mut stream: S) -> Self {
        assert_eq!(frame(&mut stream).await, Some(control(Control::Ready)[8..].to_vec()));
        let mut accept = control(Control::Ready);
        accept[11] = Control::Accept as u8;
        stream.write_all(&accept).await.unwrap();
        assert_eq!(frame(&mut stream).await, Some(control(Control::Start)[8..].to_vec()));
        Self(stream)
    }

    /// Returns the next message in text form.
    async fn next(&mut self) -> String {
        show(&frame(&mut self.0).await.expect("a frame"))
    }

    /// Checks that the messages of a query come, and then the end of the block.
    async fn is_told_of_a_query_and_the_end(&mut self) {
        assert_eq!(self.next().await, "me v - 5/1/1 192.0.2.7:5353 -");
        assert_eq!(self.next().await, "me v - 6/1/1 192.0.2.7:5353 -");
        assert_eq!(frame(&mut self.0).await, Some(vec![0, 0, 0, 3]));
        self.0.write_all(&control(Control::Finish)).await.unwrap();
    }
}

/// Returns the next frame, a control frame without its marks; `None` at the end.
async fn frame(stream: &mut (impl AsyncRead + Unpin)) -> Option<Vec<u8>> {
    let mut length = stream.read_u32().await.ok()?;
    if length == 0 {
        length = stream.read_u32().await.ok()?;
    }
    let mut body = vec![0; usize::try_from(length).unwrap()];
    stream.read_exact(&mut body).await.ok()?;
    Some(body)
}

/// Reads the fields of a message of Protocol Buffers; numbers become their bytes in network byte order.
fn fields(mut bytes: &[u8]) -> Vec<(u64, Vec<u8>)> {
    fn varint(bytes: &mut &[u8]) -> u64 {
        let (mut number, mut shift) = (0, 0);
        loop {
            let byte = bytes[0];
            *bytes = &bytes[1..];
            number |= u64::from(byte & 0x7f) << shift;
            shift += 7;
            if byte < 0x80 {
                return number;
            }
        }
    }
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        let value = match key & 7 {
            0 => varint(&mut bytes).to_be_bytes().to_vec(),
            2 => {
                let length = usize::try_from(varint(&mut bytes)).unwrap();
                let (value, rest) = bytes.split_at(length);
                bytes = rest;
                value.to_vec()
            }
            _ => {
                let (value, rest) = bytes.split_at(4);
                bytes = rest;
                value.to_vec()
            }
        };
        fields.push((key >> 3, value));
    }
    fields
}

/// Formats a message: `IDENTITY VERSION EXTRA TYPE/FAMILY/PROTOCOL FROM TO query|response ID NAME`.
fn show(bytes: &[u8]) -> String {
    let whole = fields(bytes);
    let of = |fields: &[(u64, Vec<u8>)], number| {
        fields.iter().find(|(field, _)| *field == number).map(|(_, value)| value.clone())
    };
    let text = |number| of(&whole, number).map_or("-".to_owned(), |text| String::from_utf8(text).unwrap());
    let message = fields(&of(&whole, 14).unwrap());
    let number =
        |field| of(&message, field).map_or("-".to_owned(), |value| value.last().unwrap().to_string());
    let address = |ip, port| match (of(&message, ip), of(&message, port)) {
        (Some(ip), Some(port)) => {
            let port = u16::from_be_bytes(*port.last_chunk().unwrap());
            format!("{}:{port}", ip.iter().map(u8::to_string).collect::<Vec<_>>().join("."))
        }
        _ => "-".to_owned(),
    };
    let wire = |field, what| {
        of(&message, field).map_or(String::new(), |bytes| {
            let message = Message::from_vec(&bytes).unwrap();
            format!(" {what} {} {}", message.metadata.id, message.queries[0].name())
        })
    };
    assert!(of(&message, 8).is_some() && of(&message, 9).is_some());
    assert_eq!(of(&message, 12).is_some(), matches!(&*number(1), "6" | "8"));
    let kind = format!("{}/{}/{}", number(1), number(2), number(3));
    let ends = format!("{} {}", address(4, 6), address(5, 7));
    let dns = wire(10, "query") + &wire(14, "response");
    format!("{} {} {} {kind} {ends}{dns}", text(1), text(2), text(3))
}

fn socket() -> (TempDir, UnixListener, String) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tap.sock");
    let listener = UnixListener::bind(&path).unwrap();
    (directory, listener, path.to_str().unwrap().to_owned())
}

#[tokio::test]
async fn queries_and_answers_are_sent_to_a_sink() {
    let (_directory, listener, path) = socket();
    let lines = format!(
        "dnstap unix://{path} full {{\nidentity me\nversion v1\nextra \"{{name}} {{rcode}} {{rsize}}\"\n}}\nacl {{\n\
         drop type MX\n}}\ntemplate IN TXT {{\nrcode SERVFAIL\n}}\nwhoami"
    );
    let (server, stop, mut running) = TestServer::running(&lines);
    let mut sink = TestSink::accept(listener.accept().await.unwrap().0).await;
    for question in ["Www.Example. A", "b. MX", "c. TXT"] {
        answer(&server, 7, question).await;
    }
    let message =
        |extra: &str, kind: &str, dns: &str| format!("me v1 {extra} {kind}/1/1 192.0.2.7:5353 - {dns}");
    for expected in [
        message("www.example. - -", "5", "query 7 Www.Example."),
        message("www.example. - -", "6", "response 7 Www.Example."),
        message("b. - -", "5", "query 7 b."),
        message("c. - -", "5", "query 7 c."),
        message("c. - -", "6", "response 7 c."),
    ] {
        assert_eq!(sink.next().await, expected);
    }
    // What waits is sent before the end.
    answer(&server, 8, "d. A").await;
    stop.cancel();
    assert_eq!(sink.next().await, message("d. - -", "5", "query 8 d."));
    assert_eq!(sink.next().await, message("d. - -", "6", "response 8 d."));
    assert_eq!(frame(&mut sink.0).await, Some(vec![0, 0, 0, 3]));
    sink.0.write_all(&control(Control::Finish)).await.unwrap();
    running.join_next().await.unwrap().unwrap();
    assert_eq!(server.metrics("dnstap_messages_dropped"), ["lb_linker_dns_dnstap_messages_dropped_total 0"]);
}

#[tokio::test]
async fn queries_to_upstreams_are_sent_to_a_sink() {
    let upstream = FakeUpstream::start(|asked, _| Some(address(asked, 1))).await;
    let of = upstream.address;
    let (_directory, listener, path) = socket();
    let extra = "{\nidentity me\nversion v\nextra {/forward/upstream}\n}";
    let lines = format!("metadata\ndnstap {path} full {extra}\ncache\nforward . {of}");
    let (server, _stop, _running) = TestServer::running(&lines);
    let mut sink = TestSink::accept(listener.accept().await.unwrap().0).await;
    answer(&server, 7, "a. A").await;
    let asked = sink.next().await;
    assert_eq!(asked, "me v - 5/1/1 192.0.2.7:5353 - query 7 a.");
    let (query, response) = (sink.next().await, sink.next().await);
    let start = format!("me v {of} 7/1/1 127.0.0.1:");
    let id = upstream.asked.lock().unwrap()[0].0.metadata.id;
    assert!(query.starts_with(&start) && query.ends_with(&format!(" query {id} a.")), "{query} {id}");
    let expected = query.replace(" 7/1/1 ", " 8/1/1 ").replace(" query ", " response ");
    assert_eq!(response, expected, "addresses and id are those of the query");
    assert_eq!(sink.next().await, format!("me v {of} 6/1/1 192.0.2.7:5353 - response 7 a."));
    // The cache asks no upstream.
    answer(&server, 8, "a. A").await;
    assert_eq!(sink.next().await, "me v - 5/1/1 192.0.2.7:5353 - query 8 a.");
    assert_eq!(sink.next().await, "me v - 6/1/1 192.0.2.7:5353 - response 8 a.");
}

#[tokio::test(start_paused = true)]
async fn messages_come_until_the_queries_of_the_block_have_ended() {
    let (_directory, listener, path) = socket();
    let (server, stop, mut running) =
        TestServer::running(&format!("dnstap {path} {{\nidentity me\nversion v\n}}\nwhoami"));
    let mut sink = TestSink::accept(listener.accept().await.unwrap().0).await;
    stop.cancel();
    // The tasks see it before the query is answered.
    for _ in 0..10 {
        yield_now().await;
    }
    answer(&server, 7, "a. A").await;
    sink.is_told_of_a_query_and_the_end().await;
    running.join_next().await.unwrap().unwrap();
}

#[tokio::test]
async fn messages_that_wait_in_a_pause_are_sent_before_the_end() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tap.sock");
    let lines = format!("dnstap {} {{\nidentity me\nversion v\n}}\nwhoami", path.display());
    let (server, stop, mut running) = TestServer::running(&lines);
    answer(&server, 7, "a. A").await;
    // There is no sink yet: the next attempt waits for its time.
    for _ in 0..10 {
        yield_now().await;
    }
    let listener = UnixListener::bind(&path).unwrap();
    stop.cancel();
    let mut sink = TestSink::accept(listener.accept().await.unwrap().0).await;
    sink.is_told_of_a_query_and_the_end().await;
    running.join_next().await.unwrap().unwrap();
    assert_eq!(server.metrics("dnstap_messages_dropped"), ["lb_linker_dns_dnstap_messages_dropped_total 0"]);
}

#[tokio::test]
async fn sink_is_connected_again_after_it_has_left() {
    let (_directory, listener, path) = socket();
    let (server, _stop, _running) =
        TestServer::running(&format!("dnstap {path} {{\nidentity me\n}}\nwhoami"));
    drop(listener.accept().await.unwrap());
    // A sink that doesn't take dnstap is given up, too.
    let mut other = listener.accept().await.unwrap().0;
    frame(&mut other).await.unwrap();
    other.write_all(&[0, 0, 0, 0, 0, 0, 0, 13, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, b'x']).await.unwrap();
    let mut sink = TestSink::accept(listener.accept().await.unwrap().0).await;
    answer(&server, 7, "a. A").await;
    let version = concat!("lb-linker-", env!("CARGO_PKG_VERSION"));
    assert_eq!(sink.next().await, format!("me {version} - 5/1/1 192.0.2.7:5353 -"));
    assert_eq!(sink.next().await, format!("me {version} - 6/1/1 192.0.2.7:5353 -"));
}

#[tokio::test]
async fn queries_without_room_in_the_queue_are_answered_and_counted() {
    let (server, _tasks) = TestServer::with_tasks("dnstap /nowhere.sock\nwhoami");
    for _ in 0..10_003 {
        assert!(server.reply("a. A").await.is_some());
    }
    assert_eq!(server.metrics("dnstap_messages_dropped"), ["lb_linker_dns_dnstap_messages_dropped_total 3"]);
}

#[tokio::test]
async fn sink_that_never_answers_delays_no_end() {
    let (_directory, listener, path) = socket();
    let (server, stop, mut running) = TestServer::running(&format!("dnstap {path}\nwhoami"));
    let sink = TestSink::accept(listener.accept().await.unwrap().0).await;
    answer(&server, 7, "a. A").await;
    stop.cancel();
    running.join_next().await.unwrap().unwrap();
    drop(sink);
}

#[tokio::test]
async fn sinks_that_connect_get_all_messages_until_they_leave() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tap.sock");
    // A process has left its socket behind.
    drop(UnixListener::bind(&path).unwrap());
    let lines = format!("dnstap listen {} {{\nidentity me\nversion v\n}}\nwhoami", path.display());
    let (server, stop, mut running) = TestServer::running(&lines);
    answer(&server, 6, "a. A").await;
    let connect = async || loop {
        match UnixStream::connect(&path).await {
            Ok(stream) => return TestSink::accept(stream).await,
            Err(_) => yield_now().await,
        }
    };
    let (mut one, mut other) = (connect().await, connect().await);
    // A sink gets what is sent after its handshake.
    let asking = async {
        loop {
            answer(&server, 7, "a. A").await;
            yield_now().await;
        }
    };
    tokio::select! {
        seen = async { tokio::join!(one.next(), other.next()) } => {
            let messages = ["me v - 5/1/1 192.0.2.7:5353 -", "me v - 6/1/1 192.0.2.7:5353 -"];
            assert!(messages.contains(&&*seen.0) && messages.contains(&&*seen.1), "{seen:?}");
        }
        () = asking => {}
    }
    drop(one);
    stop.cancel();
    while frame(&mut other.0).await.expect("a frame") != [0, 0, 0, 3] {}
    other.0.write_all(&control(Control::Finish)).await.unwrap();
    running.join_next().await.unwrap().unwrap();
    assert!(!path.exists());
}

#[tokio::test(start_paused = true)]
async fn address_of_a_block_before_is_taken_without_a_warning() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tap.sock");
    let lines = format!("dnstap listen {}\nwhoami", path.display());
    let (_before, end_of_before, mut tasks_before) = TestServer::running(&lines);
    while !path.exists() {
        yield_now().await;
    }
    let (log, _guard) = CapturedLog::start(tracing::Level::WARN);
    let (_server, stop, mut running) = TestServer::running(&lines);
    for _ in 0..10 {
        yield_now().await;
    }
    end_of_before.cancel();
    tasks_before.join_next().await.unwrap().unwrap();
    while !path.exists() {
        sleep(Duration::from_millis(10)).await;
    }
    TestSink::accept(UnixStream::connect(&path).await.unwrap()).await;
    assert_eq!(log.text(), "");
    // An address that another program has is told.
    stop.cancel();
    running.join_next().await.unwrap().unwrap();
    let _other = UnixListener::bind(&path).unwrap();
    let (_server, _stop, _running) = TestServer::running(&lines);
    while !log.text().contains("it can't be opened: Address already in use") {
        sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test]
async fn messages_of_a_sink_that_is_given_up_are_counted() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tap.sock");
    let (server, stop, mut running) =
        TestServer::running(&format!("dnstap listen {}\nwhoami", path.display()));
    let sink = loop {
        match UnixStream::connect(&path).await {
            Ok(stream) => break TestSink::accept(stream).await,
            Err(_) => yield_now().await,
        }
    };
    // They are more than a single write takes, and the sink's task runs only after the sink has left.
    for id in 0..1000 {
        answer(&server, id, "a. A").await;
    }
    drop(sink);
    stop.cancel();
    running.join_next().await.unwrap().unwrap();
    let dropped = server.metrics("dnstap_messages_dropped");
    assert_eq!(dropped, ["lb_linker_dns_dnstap_messages_dropped_total 2000"]);
}

#[tokio::test]
async fn queries_by_quic_are_those_by_udp() {
    let (_directory, listener, path) = socket();
    let (server, _stop, _running) =
        TestServer::running(&format!("dnstap {path} {{\nidentity me\nversion v\n}}\nwhoami"));
    let mut sink = TestSink::accept(listener.accept().await.unwrap().0).await;
    for (protocol, number) in [(Protocol::Quic, 1), (Protocol::Tls, 2)] {
        answer_by(protocol, &server, 7, "a. A").await;
        assert_eq!(sink.next().await, format!("me v - 5/1/{number} 192.0.2.7:5353 -"));
        assert_eq!(sink.next().await, format!("me v - 6/1/{number} 192.0.2.7:5353 -"));
    }
}

#[tokio::test]
async fn sinks_are_reached_by_tcp_and_tls() {
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(["tap.example".to_owned()]).unwrap().self_signed(&key).unwrap();
    let (certificate, key) = (certificate.pem(), key.serialize_pem());
    let [certificate, key] =
        [&certificate, &key].map(|pem| Pem { file: "x".as_ref(), bytes: pem.as_bytes() });
    let provider = rustls::crypto::ring::default_provider();
    let config = server_config(certificate, key, ClientAuth::None, None, provider, DEFAULT_VERSIONS).unwrap();
    let tls = TlsAcceptor::from(Arc::new(config));
    for (scheme, host) in [("tcp", "127.0.0.1"), ("tls", "127.0.0.1"), ("tcp", ""), ("tls", "")] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = format!("{host}:{}", listener.local_addr().unwrap().port());
        let lines =
            format!("dnstap {scheme}://{at} full 1 2 {{\nidentity me\nversion v\nskipverify\n}}\nwhoami");
        let (server, _stop, _running) = TestServer::running(&lines);
        let stream = listener.accept().await.unwrap().0;
        let stream = if scheme == "tls" {
            Either::Left(tls.accept(stream).await.unwrap())
        } else {
            Either::Right(stream)
        };
        let mut sink = TestSink::accept(stream).await;
        answer(&server, 7, "a. A").await;
        assert_eq!(sink.next().await, "me v - 5/1/1 192.0.2.7:5353 - query 7 a.", "{scheme}");
    }
}

#[test]
fn invalid_lines_are_rejected_with_their_position() {
    let socket =
        "a socket such as unix:///run/dnstap.sock, tcp://192.0.2.1:6000 or tls://tap.example.com:6000";
    for (lines, expected) in [
        ("dnstap", format!("2:1: dnstap needs {socket}")),
        ("dnstap listen", format!("2:8: listen needs {socket}")),
        ("dnstap tcp://127.0.0.1", format!("2:8: \"tcp://127.0.0.1\" isn't {socket}")),
        ("dnstap tcp://::1:6000", format!("2:8: \"tcp://::1:6000\" isn't {socket}")),
        ("dnstap tcp://a:0", format!("2:8: \"tcp://a:0\" isn't {socket}")),
        ("dnstap http://a:1", format!("2:8: \"http://a:1\" isn't {socket}")),
        ("dnstap unix://", format!("2:8: \"unix://\" isn't {socket}")),
        (
            "dnstap a 1",
            "2:10: \"1\" isn't full, which stands before the sizes of buffer and queue".to_owned(),
        ),
        ("dnstap a full 0", "2:15: \"0\" isn't a number of MiB from 1 to 1024".to_owned()),
        ("dnstap a full 1025", "2:15: \"1025\" isn't a number of MiB from 1 to 1024".to_owned()),
        (
            "dnstap a full 1 4097",
            "2:17: \"4097\" isn't a number from 1 to 4096, for 10,000 messages each".to_owned(),
        ),
        (
            "dnstap a full 1 1 1",
            "2:19: dnstap takes 4 arguments at most: SOCKET full WRITEBUFFER QUEUE".to_owned(),
        ),
        (
            "dnstap a {\ntls c k\n}",
            "3:1: tls is only for sinks that connect to this server: dnstap listen tls://…".to_owned(),
        ),
        (
            "dnstap listen tls://:1",
            "2:1: dnstap listen tls:// needs a line with its certificate: tls CERT KEY [CA]".to_owned(),
        ),
        (
            "dnstap listen tls://:1 {\ntls c\n}",
            "3:1: tls needs the files of a certificate and of its key: tls CERT KEY [CA]".to_owned(),
        ),
        ("dnstap a {\nextras x\n}", "3:1: dnstap has no option \"extras\"; is it extra?".to_owned()),
        ("dnstap a {\nidentity\n}", "3:1: identity needs the name of this server".to_owned()),
        ("dnstap a {\nskipverify x\n}", "3:12: skipverify takes no arguments, and here is \"x\"".to_owned()),
    ] {
        assert_eq!(TestServer::error(lines), format!("Corefile:{expected}"), "{lines}");
    }
}

#[test]
fn options_without_effect_are_warned_of() {
    for (lines, expected) in [
        ("dnstap a {\nskipverify\n}", "3:1: skipverify has no effect here: the socket isn't tls://"),
        ("dnstap listen a {\ntls c k\n}", "3:1: tls has no effect here: the socket isn't tls://"),
        (
            "dnstap listen a full 1 2",
            "2:22: the sizes of buffer and queue have no effect here: sinks of listen have the default",
        ),
        (
            "dnstap a {\nextra {/forward/upstream}\n}",
            "3:7: {/forward/upstream} has no effect here: the block has no metadata",
        ),
    ] {
        let [found] = &TestServer::builder(lines).warnings[..] else { panic!("{lines}") };
        assert_eq!(found.to_string(), format!("Corefile:{expected}"));
    }
    assert!(
        TestServer::builder("dnstap tls://a:1 full 1024 4096 {\nskipverify\n}\ndnstap b").warnings.is_empty()
    );
}
