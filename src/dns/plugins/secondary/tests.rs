use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use hickory_proto::op::{Message, MessageType, Query};
use hickory_proto::rr::RecordType;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::dns::chain::server::Server;
use crate::dns::plugins::tests::support::{TestServer, show};
use crate::dns::zone::record::parse;

pub(super) const ORIGIN: &[u8] = b"\x07example\x03org\x00";

pub(super) fn origin() -> Name {
    Name::from_ascii("example.org.").unwrap()
}

/// Returns an answer of a primary server with these records.
pub(super) fn answer(id: u16, qtype: RecordType, records: &[&str]) -> Vec<u8> {
    let mut message = Message::new(id, MessageType::Response, OpCode::Query);
    message.metadata.authoritative = true;
    message.add_query(Query::query(origin(), qtype));
    for record in records {
        message.add_answer(parse(record).unwrap());
    }
    message.to_vec().unwrap()
}

pub(super) fn framed(message: &[u8]) -> Vec<u8> {
    [&u16::try_from(message.len()).unwrap().to_be_bytes(), message].concat()
}

pub(super) fn soa(serial: u32) -> String {
    format!("example.org. 300 IN SOA ns.example.org. host.example.org. {serial} 3600 900 86400 60")
}

/// Returns the whole transfer of a zone with one address.
pub(super) fn whole_zone(id: u16, serial: u32) -> Vec<u8> {
    let soa = soa(serial);
    let address = format!("www.example.org. 60 IN A 192.0.2.{serial}");
    let first = answer(id, RecordType::AXFR, &[&soa, "example.org. 60 IN NS ns.example.org."]);
    let last = answer(id, RecordType::AXFR, &[&address, &soa]);
    [framed(&first), framed(&last)].concat()
}

/// Returns what a primary server sends to a question with this id and type, before it closes the connection.
pub(super) type Script = Box<dyn Fn(u16, RecordType) -> Vec<u8> + Send + Sync>;

/// A primary server. Dropping it frees its port.
pub(super) struct Primary {
    pub(super) address: SocketAddr,
    task: JoinHandle<()>,
}

impl Drop for Primary {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Primary {
    pub(super) async fn start(script: Script) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                Self::serve(stream, &script).await;
            }
        });
        Self { address, task }
    }

    async fn serve(mut stream: TcpStream, script: &Script) {
        let length = stream.read_u16().await.unwrap();
        let mut query = vec![0; length.into()];
        stream.read_exact(&mut query).await.unwrap();
        let query = Message::from_vec(&query).unwrap();
        let sent = script(query.metadata.id, query.queries[0].query_type());
        // The client may have closed the connection.
        let _ = stream.write_all(&sent).await;
    }

    /// Starts a server of a zone with a serial that changes, and counts the transfers.
    pub(super) async fn of_zone(serial: &Arc<AtomicU32>, transfers: &Arc<AtomicU32>) -> Self {
        let (serial, transfers) = (Arc::clone(serial), Arc::clone(transfers));
        Self::start(Box::new(move |id, qtype| {
            let serial = serial.load(Ordering::Relaxed);
            if qtype == RecordType::SOA {
                return framed(&answer(id, qtype, &[&soa(serial)]));
            }
            transfers.fetch_add(1, Ordering::Relaxed);
            whole_zone(id, serial)
        }))
        .await
    }

    /// Ends the server, and returns its address, which refuses connections now.
    pub(super) async fn end(mut self) -> SocketAddr {
        self.task.abort();
        let _ = (&mut self.task).await;
        self.address
    }
}

#[test]
fn lines_without_a_usable_server_are_refused() {
    const ADDRESS: &str = "the address of a server, such as 192.0.2.53 or [2001:db8::53]:5353";
    for (lines, expected) in [
        ("secondary", "2:1: secondary needs a primary server, such as: transfer from 192.0.2.53".to_owned()),
        (
            "secondary {\ncatalog\n}",
            "3:1: catalog isn't supported: name the zones of the catalog, as in: secondary example.org example.net"
                .to_owned(),
        ),
        ("secondary {\ntransfer from *\n}", format!("3:15: \"*\" isn't {ADDRESS}")),
        ("secondary {\ntransfer from 192.0.2.1:0\n}", format!("3:15: \"192.0.2.1:0\" isn't {ADDRESS}")),
        ("secondary {\ntransfer from ns.example.org\n}", format!("3:15: \"ns.example.org\" isn't {ADDRESS}")),
        (
            "secondary a.example b.example {\ntransfer from 192.0.2.1\n}\nsecondary b.example {\ntransfer from 192.0.2.2\n}",
            "5:1: the zone b.example. is on line 2 already: name it once".to_owned(),
        ),
    ] {
        assert_eq!(TestServer::error(lines), format!("Corefile:{expected}"), "{lines}");
    }
    for lines in
        ["secondary {\ntransfer\n}", "secondary {\ntransfer from\n}", "secondary {\ntransfer to *\n}"]
    {
        let error = TestServer::error(lines);
        assert!(error.starts_with("Corefile:3:"), "{error}");
    }
    let own = TestServer::error("secondary a.example {\ntransfer from 127.0.0.1\n}");
    assert!(own.contains("is this block's own listener"), "{own}");
    let lines =
        "secondary {\ntransfer from 192.0.2.1 2001:db8::1\ntransfer from [2001:db8::1]:53 192.0.2.1:5353\n}";
    let builder = TestServer::builder(lines);
    let primaries: Vec<String> = builder.upstreams.iter().map(|(address, _)| address.to_string()).collect();
    assert_eq!(primaries, ["192.0.2.1:53", "[2001:db8::1]:53", "[2001:db8::1]:53", "192.0.2.1:5353"]);
}

/// Returns the zone of a server with these primary servers, without a key.
fn known(server: &TestServer, primaries: &[SocketAddr]) -> Arc<SecondaryZone> {
    let source = Source::new(primaries, None, &[], &[53], None);
    server.shared.secondaries.zone(origin(), primaries.into(), source).0
}

/// A server with one zone, whose checks the test makes.
struct Fixture {
    server: TestServer,
    zone: Arc<SecondaryZone>,
}

impl Fixture {
    fn new(primaries: &[SocketAddr], more: &str) -> Self {
        let words: Vec<String> = primaries.iter().map(ToString::to_string).collect();
        let lines =
            format!("secondary example.org {{\ntransfer from {}\n{more}\n}}\nwhoami", words.join(" "));
        let server = TestServer::block(&lines).edns(1232);
        let zone = known(&server, primaries);
        Self { server, zone }
    }

    async fn check(&self) {
        self.zone.check_now(&self.following()).await;
    }

    fn following(&self) -> Following {
        Following { secondaries: self.server.shared.secondaries.clone(), key: None }
    }

    async fn address(&self) -> String {
        self.server.ask("www.example.org. A").await
    }

    /// Sends NOTIFY, and returns the reply.
    async fn notify(&self, client: &str, name: &str) -> String {
        let mut request = self.server.clone().from(client).request(&format!("{name} SOA"));
        request.metadata.op_code = OpCode::Notify;
        let reply = Server::serve(&mut request).await.unwrap();
        assert_eq!(reply.metadata.op_code, OpCode::Notify);
        show(&reply)
    }
}

fn address(serial: u32) -> String {
    format!(
        "NOERROR aa | www.example.org. 60 IN A 192.0.2.{serial} | example.org. 60 IN NS ns.example.org. |"
    )
}

#[tokio::test]
async fn zone_is_answered_from_its_transfer_on() {
    let (serial, transfers) = (Arc::new(AtomicU32::new(5)), Arc::default());
    let primary = Primary::of_zone(&serial, &transfers).await;
    let fixture = Fixture::new(&[primary.address], "");
    let reply = fixture.server.reply("www.example.org. A").await.unwrap();
    assert_eq!((show(&reply), reply.ede.unwrap().code), ("SERVFAIL | | |".to_owned(), 14));
    let plugin =
        |server: &TestServer| server.server.plugins().find(|plugin| plugin.name() == NAME).unwrap().note();
    assert_eq!(plugin(&fixture.server).unwrap(), "zones of secondary that can't be served: example.org.");
    fixture.check().await;
    assert_eq!(fixture.address().await, address(5));
    assert_eq!(plugin(&fixture.server), None);
    assert_eq!(fixture.server.ask("example.net. A").await.split(' ').next(), Some("NOERROR"), "whoami");
    let kept = fixture.server.reply("www.example.org. A").await.unwrap().validity.unwrap();
    fixture.check().await;
    assert!(!kept.is_outdated());
    assert_eq!(transfers.load(Ordering::Relaxed), 1, "the serial hasn't changed");
    serial.store(6, Ordering::Relaxed);
    fixture.check().await;
    assert_eq!(fixture.address().await, address(6));
    assert!(kept.is_outdated());
    serial.store(4, Ordering::Relaxed);
    fixture.check().await;
    assert_eq!(fixture.address().await, address(6), "an older zone isn't transferred");
    assert_eq!(transfers.load(Ordering::Relaxed), 2);
    // A block that is built again serves the same zone.
    let again = known(&fixture.server, &[primary.address]);
    assert!(Arc::ptr_eq(&again, &fixture.zone));
}

#[tokio::test]
async fn servers_are_asked_in_turn() {
    let (serial, transfers) = (Arc::new(AtomicU32::new(5)), Arc::default());
    let refusing = Primary::start(Box::new(|id, qtype| {
        let mut refused = answer(id, qtype, &[]);
        refused[3] |= 5;
        framed(&refused)
    }));
    let (refusing, primary) = (refusing.await, Primary::of_zone(&serial, &transfers).await);
    let dead = Primary::of_zone(&serial, &transfers).await.end().await;
    let fixture = Fixture::new(&[dead, refusing.address, primary.address], "");
    fixture.check().await;
    assert_eq!(fixture.address().await, address(5));
    serial.store(6, Ordering::Relaxed);
    fixture.check().await;
    assert_eq!(fixture.address().await, address(6));
    let last = primary.end().await;
    fixture.check().await;
    assert_eq!(fixture.address().await, address(6), "the zone before stays");
    let text = fixture.zone.failure().await.unwrap();
    let expected = format!("the zone before stays: {dead}: no connection: ");
    assert!(text.starts_with(&expected), "{text}");
    assert!(
        text.contains(&format!("; {}: the answer is REFUSED; {last}: no connection: ", refusing.address))
    );
}

#[tokio::test]
async fn block_serves_no_zone_of_another_view() {
    let (serial, transfers) = (Arc::new(AtomicU32::new(5)), Arc::default());
    let primary = Primary::of_zone(&serial, &transfers).await;
    let dead = Primary::of_zone(&serial, &transfers).await.end().await;
    let inside = format!(
        "example.org {{\nview inside {{\nexpr incidr(client_ip(), '10.0.0.0/8')\n}}\nsecondary {{\ntransfer from \
         {}\n}}\n}}\n",
        primary.address
    );
    let server = TestServer::corefile(&inside);
    let source = Source::new(&[primary.address], None, &[], &[53], Some("inside"));
    let zone = server.shared.secondaries.zone(origin(), [primary.address].into(), source).0;
    zone.check_now(&Following { secondaries: server.shared.secondaries.clone(), key: None }).await;
    let everyone = format!("example.org {{\nsecondary {{\ntransfer from {dead}\n}}\n}}\n");
    let server = server.changed(&(inside + &everyone));
    assert_eq!(server.ask("www.example.org. A").await, address(5));
    assert_eq!(server.from("192.0.2.1").ask("www.example.org. A").await, "SERVFAIL | | |");
}

#[tokio::test]
async fn zone_that_gets_a_view_is_for_no_other_block() {
    let (serial, transfers) = (Arc::new(AtomicU32::new(5)), Arc::default());
    let primary = Primary::of_zone(&serial, &transfers).await;
    let dead = Primary::of_zone(&serial, &transfers).await.end().await;
    let block = |view: &str, primary| {
        format!("example.org {{\n{view}\nsecondary {{\ntransfer from {primary}\n}}\n}}\n")
    };
    let inside = block("view inside {\nexpr incidr(client_ip(), '10.0.0.0/8')\n}", primary.address);
    let everyone = block("", dead);
    for (is_first, text) in [(true, inside.clone() + &everyone), (false, everyone.clone() + &inside)] {
        let server = TestServer::corefile(&block("", primary.address));
        let zone = known(&server, &[primary.address]);
        zone.check_now(&Following { secondaries: server.shared.secondaries.clone(), key: None }).await;
        assert_eq!(server.ask("www.example.org. A").await, address(5));
        let server = server.changed(&text);
        if is_first {
            assert_eq!(server.ask("www.example.org. A").await, address(5));
        }
        let reply = server.from("192.0.2.1").reply("www.example.org. A").await.unwrap();
        assert_eq!((show(&reply), reply.ede.unwrap().code), ("SERVFAIL | | |".to_owned(), 14), "{text}");
    }
}

#[tokio::test]
async fn notify_counts_only_from_a_primary_server() {
    let (serial, transfers) = (Arc::new(AtomicU32::new(5)), Arc::default());
    let primary = Primary::of_zone(&serial, &transfers).await;
    let fixture = Fixture::new(&[primary.address], "");
    for (client, name, expected) in [
        ("127.0.0.2", "example.org.", "REFUSED | | |"),
        ("127.0.0.1", "example.net.", "NOTAUTH | | |"),
        ("127.0.0.1", "www.example.org.", "NOTAUTH | | |"),
        ("127.0.0.1", "Example.org.", "NOERROR aa | | |"),
        ("::ffff:127.0.0.1", "example.org.", "NOERROR aa | | |"),
    ] {
        assert_eq!(fixture.notify(client, name).await, expected, "{client} {name}");
    }
    let mut request = fixture.server.clone().from("127.0.0.1").request("example.org. A");
    request.metadata.op_code = OpCode::Notify;
    assert_eq!(show(&Server::serve(&mut request).await.unwrap()), "FORMERR | | |");
    for qtype in [RecordType::AXFR, RecordType::IXFR] {
        let mut request = fixture.server.request("example.org. SOA");
        request.query.set_query_type(qtype);
        assert_eq!(show(&Server::serve(&mut request).await.unwrap()), "REFUSED | | |");
    }
}

#[tokio::test]
async fn notify_causes_a_check_at_once() {
    let (serial, transfers) = (Arc::new(AtomicU32::new(5)), Arc::default());
    let primary = Primary::of_zone(&serial, &transfers).await;
    let fixture = Fixture::new(&[primary.address], "");
    let stop = CancellationToken::new();
    let source = Source::new(&[primary.address], None, &[], &[53], None);
    let following = Arc::clone(&fixture.zone).follow(fixture.following(), source, stop.clone());
    let following = tokio::spawn(following);
    for serial_now in [5, 6, 7] {
        serial.store(serial_now, Ordering::Relaxed);
        fixture.notify("127.0.0.1", "example.org.").await;
        fixture.notify("127.0.0.1", "example.org.").await;
        while fixture.address().await != address(serial_now) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    assert_eq!(transfers.load(Ordering::Relaxed), 3);
    stop.cancel();
    following.await.unwrap();
}

#[tokio::test]
async fn names_that_dont_exist_may_fall_through() {
    let (serial, transfers) = (Arc::new(AtomicU32::new(5)), Arc::default());
    let primary = Primary::of_zone(&serial, &transfers).await;
    let fixture = Fixture::new(&[primary.address], "fallthrough");
    fixture.check().await;
    let reply = fixture.server.reply("none.example.org. A").await.unwrap();
    assert_eq!(reply.plugin, "whoami");
    assert_eq!(fixture.address().await, address(5));
}
