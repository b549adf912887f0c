use hickory_proto::op::ResponseCode;
use hickory_proto::rr::rdata::{A, CAA, CNAME, NULL, TXT};
use tokio::net::TcpListener;

use super::*;
use crate::dns::message::ede::extended_error;
use crate::held_port::HeldPort;

fn parse(arguments: &[&str]) -> Result<Question, QuestionError> {
    Question::parse(&arguments.iter().map(|&argument| argument.to_owned()).collect::<Vec<_>>())
}

fn name(text: &str) -> Name {
    parse_name(text).unwrap()
}

#[test]
fn server_may_stand_anywhere_and_type_is_a_by_default() {
    let question = |server: &str, qtype| Question {
        server: server.parse().unwrap(),
        name: name("a.lb.internal"),
        qtype,
    };
    for (arguments, expected) in [
        (&["a.lb.internal"][..], question("127.0.0.1:53", RecordType::A)),
        (&["a.lb.internal.", "cname"], question("127.0.0.1:53", RecordType::CNAME)),
        (&["@192.0.2.1", "a.lb.internal"], question("192.0.2.1:53", RecordType::A)),
        (&["a.lb.internal", "@[2001:db8::1]:5301", "AAAA"], question("[2001:db8::1]:5301", RecordType::AAAA)),
        (&["a.lb.internal", "TYPE65280", "@2001:db8::1"], question("[2001:db8::1]:53", 65280.into())),
    ] {
        assert_eq!(parse(arguments).as_ref(), Ok(&expected), "{arguments:?}");
    }
}

#[test]
fn unusable_argument_is_named() {
    for (arguments, expected) in [
        (&[][..], "a name is missing, such as my-sample-lb-default.lb.internal"),
        (&["@192.0.2.1"], "a name is missing, such as my-sample-lb-default.lb.internal"),
        (
            &["@ns.example", "a"],
            "\"@ns.example\" isn't a server such as @127.0.0.1, @127.0.0.1:5301 or @[::1]:5301",
        ),
        (&["192.0.2.1:5301", "a"], "192.0.2.1:5301 is the address of a server: @192.0.2.1:5301 asks it"),
        (&["@::1", "@::2", "a"], "one server can be asked, and there is another one: @::2"),
        (&["a..b"], "\"a..b\" isn't a DNS name such as my-sample-lb-default.lb.internal"),
        (&["a", "B"], "\"B\" isn't a type such as A, AAAA, CNAME, SRV or TYPE65280"),
        (&["a", "A", "IN"], "a name and a type are enough, and there is another argument: IN"),
    ] {
        assert_eq!(parse(arguments).unwrap_err().to_string(), expected, "{arguments:?}");
    }
}

/// Answers the query with records that have an attacker's text, and unknown data.
fn answer(query: &[u8]) -> Message {
    let query = Message::from_vec(query).unwrap();
    let asked = query.queries[0].name().clone();
    let mut message = Message::response(query.metadata.id, query.metadata.op_code);
    message.add_query(query.queries[0].clone());
    message.metadata.authoritative = true;
    message.metadata.response_code = ResponseCode::NoError;
    let opaque = RData::Unknown { code: 65280.into(), rdata: NULL::with(vec![1, 0xab]) };
    message.answers = vec![
        Record::from_rdata(asked, 5, RData::CNAME(CNAME(name("b\\027.example")))),
        Record::from_rdata(name("b\\027.example"), 5, RData::A(A::new(192, 0, 2, 1))),
        Record::from_rdata(
            name("c.example"),
            5,
            RData::TXT(TXT::new(vec!["v=1 \"".to_owned(), "\x1b[2J".to_owned()])),
        ),
        Record::from_rdata(name("d.example"), 5, opaque),
        Record::from_rdata(name("e.example"), 5, RData::CAA(CAA::new_issue(false, None, vec![]))),
    ];
    message
}

#[tokio::test]
async fn answer_is_printed_without_control_characters() {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let mut question = parse(&["A.lb.internal"]).unwrap();
    question.server = socket.local_addr().unwrap();
    let server = async {
        let mut buffer = [0; 512];
        let (length, client) = socket.recv_from(&mut buffer).await.unwrap();
        let mut message = answer(&buffer[..length]);
        let mut edns = Edns::new();
        edns.options_mut().insert(extended_error(3, "old\x1b\nanswer"));
        message.set_edns(edns);
        // Another id: a forged answer.
        let mut forged = message.clone();
        forged.metadata.id = forged.metadata.id.wrapping_add(1);
        for message in [forged, message] {
            socket.send_to(&message.to_vec().unwrap(), client).await.unwrap();
        }
    };
    let (answer, ()) = tokio::join!(question.ask(), server);
    let text = answer.unwrap().to_string();
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with(";; NOERROR, flags aa; from 127.0.0.1:"), "{text}");
    assert_eq!(
        lines[1..],
        [
            ";; extended error 3: old\\u{1b}\\nanswer",
            ";; question",
            ";A.lb.internal. IN A",
            ";; answer",
            "A.lb.internal. 5 IN CNAME b\\027.example.",
            "b\\027.example. 5 IN A 192.0.2.1",
            r#"c.example. 5 IN TXT "v=1 \"" "\027[2J""#,
            "d.example. 5 IN TYPE65280 \\# 2 01AB",
            "e.example. 5 IN CAA 0 issue \";\"",
        ]
    );
}

/// Asks a server whose answer by UDP is truncated after `number` records, and whose answer by TCP is changed.
async fn ask_truncating(number: usize, change: impl Fn(&mut Message)) -> Answer {
    let (udp, tcp) = loop {
        let tcp = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        // The same port may be in use for UDP.
        if let Ok(udp) = UdpSocket::bind(tcp.local_addr().unwrap()).await {
            break (udp, tcp);
        }
    };
    let mut question = parse(&["a.lb.internal"]).unwrap();
    question.server = udp.local_addr().unwrap();
    let server = async {
        let mut buffer = [0; 512];
        let (length, client) = udp.recv_from(&mut buffer).await.unwrap();
        let mut truncated = answer(&buffer[..length]);
        truncated.answers.truncate(number);
        truncated.metadata.truncation = true;
        udp.send_to(&truncated.to_vec().unwrap(), client).await.unwrap();
        let (mut stream, _) = tcp.accept().await.unwrap();
        let mut query = vec![0; stream.read_u16().await.unwrap().into()];
        stream.read_exact(&mut query).await.unwrap();
        let mut reply = answer(&query);
        change(&mut reply);
        let reply = reply.to_vec().unwrap();
        stream.write_u16(reply.len().try_into().unwrap()).await.unwrap();
        stream.write_all(&reply).await.unwrap();
    };
    let (answer, ()) = tokio::join!(question.ask(), server);
    answer.unwrap()
}

#[tokio::test]
async fn truncated_answer_is_asked_for_again_by_tcp() {
    for number in [0, 2] {
        let answer = ask_truncating(number, |_| ()).await;
        assert_eq!(answer.sections().answers.len(), 5);
        assert!(answer.to_string().lines().next().unwrap().ends_with(", by TCP"), "{answer}");
    }
}

#[tokio::test]
async fn useless_answer_by_tcp_doesnt_replace_records() {
    let servfail = |reply: &mut Message| {
        reply.answers.clear();
        reply.metadata.response_code = ResponseCode::ServFail;
    };
    let cut = |reply: &mut Message| {
        reply.answers.truncate(1);
        reply.metadata.truncation = true;
    };
    let why = "the answer is truncated, and there is none by TCP: an answer ";
    let answer = ask_truncating(2, servfail).await;
    assert_eq!((answer.rcode(), answer.sections().answers.len()), (ResponseCode::NoError, 2));
    assert_eq!(answer.truncated(), Some(format!("{why}with SERVFAIL")));
    let answer = ask_truncating(2, cut).await;
    assert_eq!(answer.sections().answers.len(), 2);
    assert_eq!(answer.truncated(), Some(format!("{why}that is truncated, too")));
    let answer = ask_truncating(0, servfail).await;
    assert_eq!((answer.rcode(), answer.truncated()), (ResponseCode::ServFail, None));
}

#[tokio::test]
async fn closed_port_is_reported_with_the_server() {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let server = socket.local_addr().unwrap();
    // A connected socket refuses packets of all other addresses.
    socket.connect((Ipv4Addr::LOCALHOST, 1)).await.unwrap();
    let question = Question { server, ..parse(&["a"]).unwrap() };
    let error = question.ask().await.unwrap_err().to_string();
    assert!(error.starts_with(&format!("{server}: Connection refused")), "{error}");
    assert!(error.ends_with("names another server"), "{error}");
}

/// Returns a socket by UDP. The TCP port of the same number stays closed until the held port is dropped.
fn udp_only() -> (UdpSocket, HeldPort) {
    let port = HeldPort::take().unwrap();
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::DGRAM, None).unwrap();
    socket.set_reuse_port(true).unwrap();
    socket.set_nonblocking(true).unwrap();
    socket.bind(&port.local().into()).unwrap();
    (UdpSocket::from_std(socket.into()).unwrap(), port)
}

#[tokio::test]
async fn truncated_answer_is_printed_if_tcp_fails() {
    let (udp, _port) = udp_only();
    let question = Question { server: udp.local_addr().unwrap(), ..parse(&["a.lb.internal"]).unwrap() };
    let server = async {
        let mut buffer = [0; 512];
        let (length, client) = udp.recv_from(&mut buffer).await.unwrap();
        let whole = answer(&buffer[..length]).to_vec().unwrap();
        // It ends within the last record, and has no TC.
        udp.send_to(&whole[..whole.len() - 1], client).await.unwrap();
    };
    let (answer, ()) = tokio::join!(question.ask(), server);
    let text = answer.unwrap().to_string();
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with(";; NOERROR, flags aa tc; from 127.0.0.1:"), "{text}");
    assert!(
        lines[1].starts_with(";; the answer is truncated, and there is none by TCP: Connection refused"),
        "{text}"
    );
    assert_eq!(lines[4], ";; answer");
    assert_eq!(lines.len(), 5 + 4, "{text}");
}
