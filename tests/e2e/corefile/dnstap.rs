//! The messages of the plugin `dnstap` of both programs after the same queries.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::{Arc, Mutex};

use hickory_proto::op::Message;
use rustls::pki_types::ServerName;
use rustls::version::TLS13;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixListener};
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;
use tokio_util::either::Either;

use super::expected::Expectations;
use super::question::table;
use super::server::{CorefileDir, Program, Server};
use super::upstreams::Upstreams;
use crate::harness::dns::show;
use crate::harness::eventually;
use crate::tls::{Certificates, client_config};

const COREFILE: &str = r#"
    .:{$PORT} {
        bind 127.0.0.1
        metadata
        dnstap unix://{$TAP} full 2 3 {
            identity "the tested one"
            version v1
            extra "{name} {type} {class} {proto} {remote} {>do} {>bufsize} {>opcode} {rcode} {rsize} {>rflags} {duration} {/forward/upstream} {unknown}"
        }
        dnstap {$BRIEF} {
            identity brief
            version v2
        }
        dnstap listen tls://127.0.0.1:{$TLS} {
            identity encrypted
            version v3
            tls tls.crt tls.key
        }
        dnstap listen tcp://127.0.0.1:{$READY} full {
            identity listening
            version v4
        }
        rewrite name old.common.test new.common.test
        template IN A common.test {
            answer "{{ .Name }} 60 IN A 192.0.2.1"
        }
        template IN A fail.test {
            rcode SERVFAIL
        }
        acl drop.test {
            drop
        }
        forward odd {$ODD}
        forward dead {$DEAD}
        forward . {$UPSTREAM}
    }"#;

const QUESTIONS: &str = "
    a.common.test. A
    b.common.test. A tcp
    c.common.test. A edns=4096 do
    D.Common.Test. A
    old.common.test. A
    e.common.test. A cd
    common.test. MX
    x.fail.test. A
    x.drop.test. A silent
    a.example.org. A
    b.example.org. A tcp
    a.example.org. A edns=1232 do
    nowhere.example.org. A
    x.servfail.test. A
    x.dead. A
    end.common.test. A";

/// The names in [`QUESTIONS`] that CoreDNS sends no message of an answer for: there is none, or its server makes it, for a
/// plugin that has failed.
const UNTOLD: [&str; 3] = ["x.fail.test.", "x.drop.test.", "x.dead."];

/// The type of a message about an answer to a client.
const CLIENT_RESPONSE: u8 = 6;

/// A sink, and the frames that it has got.
#[derive(Clone, Default)]
struct Sink(Arc<Mutex<Vec<Vec<u8>>>>);

/// Reads a frame; a control frame begins with its type. `None` at the end.
async fn frame(stream: &mut (impl AsyncRead + Unpin)) -> Option<(bool, Vec<u8>)> {
    let mut length = stream.read_u32().await.ok()?;
    let is_control = length == 0;
    if is_control {
        length = stream.read_u32().await.ok()?;
    }
    let mut body = vec![0; usize::try_from(length).unwrap()];
    stream.read_exact(&mut body).await.ok()?;
    Some((is_control, body))
}

impl Sink {
    /// Accepts connections at a path, one after the other.
    fn at(path: &Path, tasks: &mut JoinSet<()>) -> Self {
        let (sink, listener) = (Self::default(), UnixListener::bind(path).unwrap());
        let taking = sink.clone();
        tasks.spawn(async move {
            loop {
                taking.take(listener.accept().await.unwrap().0).await;
            }
        });
        sink
    }

    /// Connects to a server by TCP, and by TLS with certificates.
    async fn connect(server: &Server, certificates: Option<&Certificates>, tasks: &mut JoinSet<()>) -> Self {
        let port = if certificates.is_some() { "TLS" } else { "READY" };
        let stream = TcpStream::connect(server.address(port)).await.unwrap();
        let mut stream = match certificates {
            None => Either::Left(stream),
            Some(certificates) => {
                let config = client_config(certificates, &TLS13, None);
                let name = ServerName::try_from("dns.example").unwrap();
                Either::Right(TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap())
            }
        };
        shake(&mut stream).await.expect("a handshake");
        let sink = Self::default();
        let taking = sink.clone();
        tasks.spawn(async move { taking.frames(stream).await });
        sink
    }

    async fn take(&self, mut stream: impl AsyncRead + AsyncWrite + Unpin) {
        if shake(&mut stream).await.is_some() {
            self.frames(stream).await;
        }
    }

    async fn frames(&self, mut stream: impl AsyncRead + AsyncWrite + Unpin) {
        while let Some((is_control, body)) = frame(&mut stream).await {
            if is_control {
                assert_eq!(body, [0, 0, 0, 3], "STOP");
                let _ = stream.write_all(&[0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 5]).await;
                return;
            }
            self.0.lock().unwrap().push(body);
        }
    }

    /// Returns how many answers to clients the sink knows of.
    fn answers(&self) -> usize {
        let frames = self.0.lock().unwrap();
        let is_answer = |frame: &&Vec<u8>| fields(&fields(frame)[&14])[&1].last() == Some(&CLIENT_RESPONSE);
        frames.iter().filter(is_answer).count()
    }

    /// Returns the sorted messages in text form, each with how often it came.
    fn lines(&self, upstreams: &Upstreams) -> Vec<String> {
        let mut lines: BTreeMap<String, usize> = BTreeMap::new();
        for frame in &*self.0.lock().unwrap() {
            *lines.entry(line(frame, upstreams)).or_default() += 1;
        }
        lines.into_iter().map(|(line, number)| format!("{number} {line}")).collect()
    }
}

/// The handshake: READY, ACCEPT with the same content type, START. `None` if the connection ends.
async fn shake(stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) -> Option<()> {
    let (_, mut ready) = frame(stream).await?;
    assert_eq!(ready[..4], [0, 0, 0, 4]);
    ready[3] = 1;
    let length = u32::try_from(ready.len()).unwrap().to_be_bytes();
    stream.write_all(&[&[0; 4], &length[..], &ready].concat()).await.ok()?;
    let (_, start) = frame(stream).await?;
    assert_eq!((&start[..4], &start[4..]), (&[0, 0, 0, 2][..], &ready[4..]));
    Some(())
}

/// The fields of a message of Protocol Buffers by number; a number is in network byte order.
fn fields(mut bytes: &[u8]) -> BTreeMap<u64, Vec<u8>> {
    fn varint(bytes: &mut &[u8]) -> u64 {
        let mut number = 0;
        for shift in (0..).step_by(7) {
            let byte = bytes[0];
            *bytes = &bytes[1..];
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                break;
            }
        }
        number
    }
    let mut fields = BTreeMap::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        let value = if key & 7 == 0 {
            varint(&mut bytes).to_be_bytes().to_vec()
        } else {
            let length = if key & 7 == 2 { usize::try_from(varint(&mut bytes)).unwrap() } else { 4 };
            let (value, rest) = bytes.split_at(length);
            bytes = rest;
            value.to_vec()
        };
        assert!(fields.insert(key >> 3, value).is_none(), "each field is there once");
    }
    fields
}

/// Formats a message: kind, family, protocol, addresses, identity, version, extra, and the DNS message.
fn line(frame: &[u8], upstreams: &Upstreams) -> String {
    let dnstap = fields(frame);
    let text = |number| dnstap.get(&number).map(|text: &Vec<u8>| String::from_utf8(text.clone()).unwrap());
    let message = fields(&dnstap[&14]);
    assert_eq!(dnstap[&15].last(), Some(&1), "a MESSAGE");
    let kind = match *message[&1].last().unwrap() {
        5 => "CLIENT_QUERY",
        CLIENT_RESPONSE => "CLIENT_RESPONSE",
        7 => "FORWARDER_QUERY",
        8 => "FORWARDER_RESPONSE",
        other => panic!("type {other}"),
    };
    assert!(message.contains_key(&8) && message.contains_key(&9), "the time of the query");
    let has_response_time = message.contains_key(&12) && message.contains_key(&13);
    assert_eq!(has_response_time, kind.ends_with("_RESPONSE"));
    let address = |ip, port| {
        let ip: &Vec<u8> = message.get(&ip)?;
        let ip: IpAddr = match <[u8; 4]>::try_from(&**ip) {
            Ok(ip) => ip.into(),
            Err(_) => <[u8; 16]>::try_from(&**ip).unwrap().into(),
        };
        let port = u16::from_be_bytes(*message[&port].last_chunk().unwrap());
        Some(SocketAddr::new(ip, port))
    };
    let from =
        address(4, 6).map(|from| format!("{}:{}", from.ip(), if from.port() > 0 { "PORT" } else { "0" }));
    let dns = message.get(&10).or(message.get(&14)).map(|bytes| {
        let dns = Message::from_vec(bytes).unwrap();
        let (query, cd) = (&dns.queries[0], dns.metadata.checking_disabled);
        let edns = dns.edns.as_ref().map(|edns| edns.flags().dnssec_ok);
        match kind {
            // lb-linker repeats neither the client's flags nor its EDNS to an upstream.
            "FORWARDER_QUERY" => query.to_string(),
            "FORWARDER_RESPONSE" => format!("{query} {}", show(&dns)),
            _ => format!("{query} cd={cd} do={edns:?} {}", show(&dns)),
        }
    });
    let line = format!(
        "{kind} family={:?} protocol={:?} {from:?} {:?} {:?} {:?} {:?} query={} response={} {dns:?}",
        message.get(&2).and_then(|family| family.last()),
        message.get(&3).and_then(|protocol| protocol.last()),
        address(5, 7),
        text(1),
        text(2),
        text(3),
        message.contains_key(&10),
        message.contains_key(&14),
    );
    let names = [
        (upstreams.coredns.dns().to_string(), "UPSTREAM"),
        (upstreams.faulty.address.to_string(), "ODD"),
        (upstreams.dead.local().to_string(), "DEAD"),
    ];
    names.iter().fold(line, |line, (address, name)| line.replace(address, name))
}

#[tokio::test]
async fn sinks_get_the_messages_that_coredns_sends() {
    let upstreams = Upstreams::start().await;
    let (directory, mut tasks) = (tempfile::tempdir().unwrap(), JoinSet::new());
    let (certificates, mut lines) = (Certificates::make(), Vec::new());
    for (name, which) in [("coredns", Program::CoreDns), ("subject", Program::subject())] {
        let [tap, brief] = ["tap", "brief"].map(|kind| directory.path().join(format!("{name}.{kind}")));
        let site = upstreams.name(CorefileDir::new(COREFILE, &[]));
        let site = site.with("TAP", tap.display()).with("BRIEF", brief.display());
        for file in ["tls.crt", "tls.key"] {
            site.write(file, &fs::read_to_string(certificates.file(file)).unwrap());
        }
        let [tap, brief] = [tap, brief].map(|path| Sink::at(&path, &mut tasks));
        let server = Server::start(which, &site).await;
        let listening = Sink::connect(&server, None, &mut tasks).await;
        let encrypted = Sink::connect(&server, Some(&certificates), &mut tasks).await;
        // CoreDNS adds a sink after its handshake, and writes to a sink that connects without a lock, also after it has
        // answered: messages of two queries at the same time destroy the stream. The last line of the block has the last
        // sink that gets a message.
        let started = Cell::new(0);
        let connected = || async {
            let (start, lines) = (format!("start{}.", started.get()), listening.lines(&upstreams));
            let is_told = lines.iter().any(|line| line.contains(&start) && line.contains("CLIENT_RESPONSE"));
            let is_empty = |sink: &Sink| sink.0.lock().unwrap().is_empty();
            if is_told && !is_empty(&tap) && !is_empty(&brief) && !is_empty(&encrypted) {
                return Some(());
            }
            if is_told || lines.is_empty() {
                started.set(started.get() + 1);
                table(&format!("start{}.common.test. A", started.get()))[0].ask(&server).await;
            }
            None
        };
        eventually("the first messages", connected).await;
        for question in table(QUESTIONS) {
            let before = listening.answers();
            question.ask(&server).await;
            if UNTOLD.iter().any(|name| question.text.starts_with(name)) {
                continue;
            }
            let told = || async { (listening.answers() > before).then_some(()) };
            eventually(&format!("the message of the answer to {}", question.text), told).await;
        }
        let mut shown = Vec::new();
        for sink in [&tap, &listening] {
            let is_end = |line: &String| line.contains("end.common.test") && line.contains("CLIENT_RESPONSE");
            let all = || async {
                let lines = sink.lines(&upstreams);
                lines.iter().any(is_end).then_some(lines)
            };
            let lines = eventually("the last message", all).await;
            shown.extend(lines.into_iter().filter(|line| !line.contains("start")));
        }
        // Without DNS messages, the last one isn't known.
        for sink in [&brief, &encrypted] {
            let all = || async {
                let lines = sink.lines(&upstreams);
                let has = |text: &str| lines.iter().any(|line| line.contains(text));
                (has("FORWARDER_RESPONSE") && has("DEAD")).then_some(lines)
            };
            let lines = eventually("the messages", all).await;
            shown.extend(lines.into_iter().map(|line| line.split_once(' ').unwrap().1.to_owned()));
        }
        shown.sort();
        lines.push(shown);
    }
    let mut expected = Expectations::of(["dnstap"]);
    for (program, own, other) in [("CoreDNS", &lines[0], &lines[1]), ("lb-linker", &lines[1], &lines[0])] {
        for line in own.iter().filter(|line| !other.contains(line)) {
            expected.record("dnstap", line, program, "");
        }
    }
    eprintln!("corefile: {} kinds of messages of dnstap", lines[0].len());
    expected.check();
}
