//! Zone transfers and NOTIFY, over real sockets.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use hickory_proto::op::{Message, MessageType, OpCode, ResponseCode};
use hickory_proto::rr::rdata::SOA;
use hickory_proto::rr::{Name, RData, Record, RecordType};
use tokio::net::{TcpSocket, TcpStream, UdpSocket};
use tokio::time::timeout;

use crate::corefile::server::{CorefileDir, Program, Server};
use crate::harness::EVENT_TIMEOUT;
use crate::harness::dns::{ask_udp, query, read_message, send_udp, write_message};

const COREFILE: &str = "example.org:{$PORT} {
    bind 127.0.0.1
    file db {
        reload 1s
    }
    transfer {
        to *
    }
}";

const ZONE: &str = r#"$TTL 1h
$ORIGIN example.org.
@       5m IN SOA ns1 hostmaster 7 2h 30m 2w 5m
        NS  ns1
        NS  ns2.example.net.
        MX  10 mail
        TXT "v=spf1 -all" "a;b" unquoted
        CAA 0 issue "ca.example.net"
ns1     300 A 192.0.2.53
mail    A   192.0.2.25
        AAAA 2001:db8::25
www     CNAME @
a.b.c   A   192.0.2.3
*.wild  TXT wild
Upper   A   192.0.2.6
_sip._tcp SRV 1 2 5060 mail
svc     HTTPS 1 mail alpn=h2,h3 port=8443 ipv4hint=192.0.2.8
child   NS  ns.child
        DS  12345 8 2 49FD46E6C4B45C55D4AC49FD46E6C4B45C55D4AC49FD46E6C4B45C55D4AC0000
ns.child A  192.0.2.9
below.child A 192.0.2.10
old     DNAME new
multi   A   192.0.2.12
multi   A   192.0.2.13
key     DNSKEY 256 3 8 AwEAAbOF
        RRSIG DNSKEY 8 3 3600 20300101000000 20200101000000 12345 example.org. AwEAAbOF
odd     TYPE65300 \# 3 010203
"#;

/// Returns a query for IXFR by a client whose zone has this serial.
fn incremental(serial: u32) -> Message {
    let name = Name::from_ascii("example.org.").unwrap();
    let soa = SOA::new(name.clone(), name.clone(), serial, 1, 1, 1, 1);
    let mut message = query("example.org. AXFR");
    message.queries[0].set_query_type(RecordType::IXFR);
    message.add_authority(Record::from_rdata(name, 0, RData::SOA(soa)));
    message
}

fn serial(record: &Record) -> Option<u32> {
    match &record.data {
        RData::SOA(soa) => Some(soa.serial),
        _ => None,
    }
}

/// Connects from a local address.
async fn connect(from: IpAddr, to: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((from, 0).into()).unwrap();
    socket.connect(to).await.unwrap()
}

/// Sends a query by TCP, and returns the records of the answer, up to the second SOA record or the end of the message if it
/// has only one record.
pub(crate) async fn transferred(server: SocketAddr, question: &Message) -> Result<Vec<Record>, ResponseCode> {
    let mut stream = TcpStream::connect(server).await.unwrap();
    write_message(&mut stream, &question.to_vec().unwrap()).await;
    let mut records: Vec<Record> = Vec::new();
    loop {
        let bytes = timeout(EVENT_TIMEOUT, read_message(&mut stream)).await.expect("a message").unwrap();
        let message = Message::from_vec(&bytes).unwrap();
        assert_eq!(message.metadata.id, question.metadata.id);
        if message.metadata.response_code != ResponseCode::NoError {
            return Err(message.metadata.response_code);
        }
        records.extend(message.answers);
        // CoreDNS doesn't set AA beside the SOA record alone.
        assert!(message.metadata.authoritative || records.len() == 1);
        if records.len() == 1 || records[1..].iter().any(|record| serial(record).is_some()) {
            return Ok(records);
        }
    }
}

#[tokio::test]
async fn zone_is_transferred_as_by_coredns() {
    let site = CorefileDir::new(COREFILE, &[("db", ZONE)]);
    let (coredns, linker) =
        (Server::start(Program::CoreDns, &site).await, Server::start(Program::Linker, &site).await);
    for (question, is_whole) in
        [(query("example.org. AXFR"), true), (incremental(6), true), (incremental(7), false)]
    {
        let [expected, found] = [
            transferred(coredns.dns(), &question).await.unwrap(),
            transferred(linker.dns(), &question).await.unwrap(),
        ];
        assert_eq!(found.len() > 1, is_whole, "{:?}", question.queries);
        assert_eq!(found.first(), found.last());
        let texts = |records: &[Record]| -> BTreeSet<String> {
            records.iter().map(|record| record.to_string().to_lowercase()).collect()
        };
        assert_eq!(texts(&found), texts(&expected));
        assert_eq!(found.len(), expected.len());
    }
    for (name, expected) in
        [("www.example.org. AXFR", ResponseCode::Refused), ("example.net. AXFR", ResponseCode::Refused)]
    {
        assert_eq!(transferred(linker.dns(), &query(name)).await, Err(expected));
    }
    let by_udp = ask_udp(linker.dns(), &query("example.org. AXFR")).await;
    assert_eq!(by_udp.metadata.response_code, ResponseCode::Refused);
    // RFC 1995 section 2: the client comes by TCP.
    let by_udp = ask_udp(linker.dns(), &incremental(1)).await;
    assert_eq!(by_udp.answers.iter().map(serial).collect::<Vec<_>>(), [Some(7)]);
}

async fn notified(secondary: &UdpSocket) -> u32 {
    let mut bytes = [0; 512];
    let received = timeout(EVENT_TIMEOUT, secondary.recv_from(&mut bytes)).await.expect("a NOTIFY");
    let (length, from) = received.unwrap();
    let mut message = Message::from_vec(&bytes[..length]).unwrap();
    assert_eq!(message.metadata.op_code, OpCode::Notify);
    assert_eq!(message.queries[0].name().to_ascii(), "example.org.");
    let serial = serial(&message.answers[0]).unwrap();
    message.metadata.message_type = MessageType::Response;
    secondary.send_to(&message.to_vec().unwrap(), from).await.unwrap();
    serial
}

#[tokio::test]
async fn secondary_server_is_notified_at_the_start_and_of_changes() {
    let secondary = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let corefile = COREFILE.replace("to *", "to {$SECONDARY}");
    let site =
        CorefileDir::new(&corefile, &[("db", ZONE)]).with("SECONDARY", secondary.local_addr().unwrap());
    let server = Server::start(Program::Linker, &site).await;
    assert_eq!(notified(&secondary).await, 7);
    for next in [8, 9] {
        site.write("db", &ZONE.replacen("hostmaster 7", &format!("hostmaster {next}"), 1));
        assert_eq!(notified(&secondary).await, next);
        let records = transferred(server.dns(), &incremental(next - 1)).await.unwrap();
        assert_eq!(serial(&records[0]), Some(next));
        assert!(records.len() > 1);
    }
}

#[tokio::test]
async fn slow_readers_delay_no_answer_and_lose_their_place() {
    let mut zone = ZONE.to_owned();
    for number in 0..20_000 {
        writeln!(zone, "n{number} TXT {}", "x".repeat(200)).unwrap();
    }
    let corefile = COREFILE.replace("file db", "timeouts {\nwrite 1s\n}\nfile db");
    let site = CorefileDir::new(&corefile, &[("db", &zone)]);
    let server = Server::start(Program::Linker, &site).await;
    let question = query("example.org. AXFR").to_vec().unwrap();
    let mut open = Vec::new();
    // The last ones wait for the places of the first ones.
    for last in 1..=10 {
        let mut stream = connect([127, 0, 0, last].into(), server.dns()).await;
        write_message(&mut stream, &question).await;
        let first = timeout(EVENT_TIMEOUT, read_message(&mut stream)).await.expect("a message").unwrap();
        assert_eq!(Message::from_vec(&first).unwrap().metadata.response_code, ResponseCode::NoError);
        open.push(stream);
    }
    let answer = send_udp(server.dns(), &query("ns1.example.org. A").to_vec().unwrap(), EVENT_TIMEOUT).await;
    assert_eq!(Message::from_vec(&answer.unwrap()).unwrap().answers.len(), 1);
    let ended = |line: &String| line.contains("the connection ended after");
    let looks = async {
        while server.log().iter().filter(|line| ended(line)).count() < 10 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(EVENT_TIMEOUT, looks).await.expect("slow transfers end");
    let records = transferred(server.dns(), &query("example.org. AXFR")).await.unwrap();
    assert!(records.len() > 20_000, "{}", records.len());
    drop(open);
}
