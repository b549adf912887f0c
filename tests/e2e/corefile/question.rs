//! Queries written as lines of text.
//!
//! A line is `NAME TYPE`, followed by any of these words, separated by blanks:
//!
//! - a class: `CH`, `HS`, `ANY`, `CLASS7`
//! - `tcp`: the query is sent over TCP; otherwise over UDP
//! - `edns`, or `edns=SIZE`: the query has EDNS; `do`, `option=CODE:HEX`, `nsid` and `version=N` add EDNS, too
//! - `cd`, `ad`: the flag is set; `nord`: the flag RD, which is set by default, isn't
//! - `opcode=N`: another opcode than 0, QUERY
//! - `from=IP`, `to=IP`: other addresses of the client and the server; `port2`, `port3`, `port-tls`: other ports of the
//!   server
//! - `case`: the comparison of the answer is case-sensitive
//! - `key=NAME`: the query is signed with this key, whose secret is the name; `algorithm=NAME` is its algorithm, and
//!   `behind=SECONDS` says how far the client's clock is behind
//! - `proxy=HEADER`: the query is behind a PROXY header: `v1/IP` or `v2/IP` with the address of the client, `unknown`,
//!   `local`, or `bad`
//! - `wait=MS`: the pause before the query, in ms
//! - `silent`: the server must not answer
//! - `each`, as the last word: the query is sent in each of [`VARIANTS`]

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hickory_proto::rr::{DNSClass, Name, RecordType};
use lb_linker::dns::message::tsig::{Algorithm, Key, ReplyChecker, TsigError, now};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, UdpSocket};
use tokio::time::timeout;

use super::server::Server;
use crate::harness::EVENT_TIMEOUT;

/// The variants of a query with `each`.
const VARIANTS: [&str; 11] = [
    "",
    "tcp",
    "edns",
    "edns tcp",
    "edns=4096 do",
    "edns=512",
    "cd",
    "edns ad",
    "edns option=65001:0102",
    "edns version=1",
    "edns=4096 nsid",
];

/// How long the test waits for an answer to a query with `silent`.
const SILENCE: Duration = Duration::from_millis(500);

#[derive(Clone, Debug)]
pub struct Question {
    /// The line of the table, which is also the name of the query.
    pub text: String,
    pub message: Vec<u8>,
    /// The PROXY header before the message.
    header: Vec<u8>,
    pub tcp: bool,
    from: IpAddr,
    to: IpAddr,
    port: &'static str,
    pub wait: Duration,
    pub silent: bool,
    /// Whether the comparison of the answer is case-sensitive.
    pub case: bool,
    /// The name of the key that signs the query.
    key: Option<String>,
    algorithm: Algorithm,
    /// How far the client's clock is behind, in seconds.
    behind: u64,
}

/// The result of a query.
#[derive(Clone, Debug)]
pub struct Reply {
    /// The answer, or `None` if there was none.
    pub answer: Option<Vec<u8>>,
    /// The outcome of the check of its signature; `None` if the query isn't signed.
    pub signature: Option<Result<(), TsigError>>,
    pub took: Duration,
}

/// Returns the queries of a table with one query per line. Empty lines and text after `;` are ignored.
pub fn table(text: &str) -> Vec<Question> {
    let mut questions = Vec::new();
    for line in text.lines().map(|line| line.split(';').next().unwrap_or_default().trim()) {
        if line.is_empty() {
            continue;
        }
        match line.strip_suffix(" each") {
            Some(line) => {
                let each = VARIANTS.iter().map(|variant| Question::parse(format!("{line} {variant}").trim()));
                questions.extend(each);
            }
            None => questions.push(Question::parse(line)),
        }
    }
    questions
}

impl Question {
    pub fn parse(text: &str) -> Self {
        let mut words = text.split_whitespace();
        let name = words.next().unwrap();
        let qtype = number(words.next().unwrap_or_else(|| panic!("{text}: a type")), "TYPE", |word| {
            word.parse().ok().map(|qtype: RecordType| qtype.into())
        });
        let mut question = Self {
            text: text.to_owned(),
            message: Vec::new(),
            header: Vec::new(),
            tcp: false,
            from: Ipv4Addr::LOCALHOST.into(),
            to: Ipv4Addr::LOCALHOST.into(),
            port: "PORT",
            wait: Duration::ZERO,
            silent: false,
            case: false,
            key: None,
            algorithm: Algorithm::Sha256,
            behind: 0,
        };
        let (mut qclass, mut opcode, mut rd, mut low) = (1_u16, 0_u16, 1_u16, 0_u16);
        let (mut edns, mut proxy) = (None, "");
        for word in words {
            let (key, value) = word.split_once('=').unwrap_or((word, ""));
            match key {
                "tcp" => question.tcp = true,
                "edns" => opt(&mut edns).0 = if value.is_empty() { 1232 } else { value.parse().unwrap() },
                "do" => opt(&mut edns).1 = 0x8000,
                "version" => opt(&mut edns).2 = value.parse().unwrap(),
                "nsid" => opt(&mut edns).3.extend([0, 3, 0, 0]),
                "option" => {
                    let (code, data) = value.split_once(':').unwrap();
                    let hex = |at: usize| u8::from_str_radix(&data[at..at + 2], 16).unwrap();
                    let data: Vec<u8> = (0..data.len()).step_by(2).map(hex).collect();
                    let length = u16::try_from(data.len()).unwrap();
                    let head = [code.parse::<u16>().unwrap().to_be_bytes(), length.to_be_bytes()];
                    opt(&mut edns).3.extend(head.concat().into_iter().chain(data));
                }
                "ad" => low |= 0x20,
                "cd" => low |= 0x10,
                "nord" => rd = 0,
                "opcode" => opcode = value.parse().unwrap(),
                "from" => question.from = value.parse().unwrap(),
                "to" => question.to = value.parse().unwrap(),
                "port2" => question.port = "PORT2",
                "port3" => question.port = "PORT3",
                "port-tls" => question.port = "TLS",
                "proxy" => proxy = value,
                "wait" => question.wait = Duration::from_millis(value.parse().unwrap()),
                "silent" => question.silent = true,
                "case" => question.case = true,
                "key" => question.key = Some(value.to_owned()),
                "algorithm" => question.algorithm = Algorithm::of_name(value).unwrap(),
                "behind" => question.behind = value.parse().unwrap(),
                class => qclass = number(class, "CLASS", |class| class.parse().ok().map(u16_of_class)),
            }
        }
        let flags = opcode << 11 | rd << 8 | low;
        let counts = [1, 0, 0, u16::from(edns.is_some())];
        let mut message = rand::random::<u16>().to_be_bytes().to_vec();
        message.extend(flags.to_be_bytes());
        message.extend(counts.into_iter().flat_map(u16::to_be_bytes));
        for label in name.split('.').filter(|label| !label.is_empty()) {
            message.push(u8::try_from(label.len()).unwrap());
            message.extend(label.as_bytes());
        }
        message.push(0);
        message.extend([qtype, qclass].into_iter().flat_map(u16::to_be_bytes));
        if let Some((size, flags, version, options)) = edns {
            // The OPT record: RFC 6891 section 6.1.2.
            message.extend([0, 0, 41]);
            message.extend(size.to_be_bytes());
            message.extend([0, version]);
            message.extend(flags.to_be_bytes());
            message.extend(u16::try_from(options.len()).unwrap().to_be_bytes());
            message.extend(options);
        }
        question.message = message;
        question.header = proxy_header(proxy, question.tcp);
        question
    }

    /// Returns the message and, if it is signed, the checker of the answer.
    fn signed(&self) -> (Vec<u8>, Option<ReplyChecker>) {
        let mut message = self.message.clone();
        let checker = self.key.as_ref().map(|name| {
            let key = Key::new(&Name::from_ascii(name).unwrap(), self.algorithm, name.as_bytes()).unwrap();
            ReplyChecker::sign(Arc::new(key), &mut message, self.time())
        });
        (message, checker)
    }

    /// Returns the time of the client's clock, in seconds since 1970.
    fn time(&self) -> u64 {
        now() - self.behind
    }

    pub async fn ask(&self, server: &Server) -> Reply {
        let (message, checker) = self.signed();
        let server = SocketAddr::new(self.to, server.port(self.port));
        let since = Instant::now();
        let reply_timeout = if self.silent { SILENCE } else { EVENT_TIMEOUT };
        let mut answer = if self.tcp {
            let socket = TcpSocket::new_v4().unwrap();
            // connect(2) finds a port where bind(2) doesn't: connections in TIME_WAIT to other servers keep none from it.
            if self.from != Ipv4Addr::LOCALHOST {
                socket.bind((self.from, 0).into()).unwrap();
            }
            let mut stream =
                socket.connect(server).await.unwrap_or_else(|error| panic!("{}: {error}", self.text));
            let length = u16::try_from(message.len()).unwrap();
            stream.write_all(&[&*self.header, &length.to_be_bytes(), &*message].concat()).await.unwrap();
            let read = async {
                let length = stream.read_u16().await.ok()?;
                let mut answer = vec![0; length.into()];
                stream.read_exact(&mut answer).await.ok()?;
                Some(answer)
            };
            timeout(reply_timeout, read).await.unwrap_or_default()
        } else {
            let socket = UdpSocket::bind((self.from, 0)).await.unwrap();
            socket.connect(server).await.unwrap();
            socket.send(&[&*self.header, &*message].concat()).await.unwrap();
            let mut answer = vec![0; 65535];
            let read = async {
                let length = socket.recv(&mut answer).await.ok()?;
                answer.truncate(length);
                Some(answer)
            };
            timeout(reply_timeout, read).await.unwrap_or_default()
        };
        let took = since.elapsed();
        let signature =
            checker.zip(answer.as_mut()).map(|(mut checker, answer)| checker.check(answer, self.time()));
        Reply { answer, signature, took }
    }
}

fn proxy_header(what: &str, tcp: bool) -> Vec<u8> {
    let (version, ip) = what.split_once('/').unwrap_or((what, ""));
    let transport = if tcp { 1 } else { 2 };
    let binary = |command: u8, family: u8, addresses: &[u8]| {
        let length = u16::try_from(addresses.len()).unwrap().to_be_bytes();
        [b"\r\n\r\n\0\r\nQUIT\n", &[command, family][..], &length, addresses].concat()
    };
    let ports = [0x12, 0x67, 0, 53];
    match (version, ip.parse()) {
        ("", _) => Vec::new(),
        ("v1", Ok(IpAddr::V4(ip))) => format!("PROXY TCP4 {ip} 192.0.2.53 4711 53\r\n").into_bytes(),
        ("v1", Ok(IpAddr::V6(ip))) => format!("PROXY TCP6 {ip} 2001:db8::53 4711 53\r\n").into_bytes(),
        ("v2", Ok(IpAddr::V4(ip))) => {
            binary(0x21, 0x10 | transport, &[&ip.octets()[..], &[192, 0, 2, 53], &ports].concat())
        }
        ("v2", Ok(IpAddr::V6(ip))) => {
            binary(0x21, 0x20 | transport, &[&ip.octets()[..], &[0; 16], &ports].concat())
        }
        ("unknown", _) => b"PROXY UNKNOWN\r\n".to_vec(),
        ("local", _) => binary(0x20, 0, &[]),
        ("bad", _) => binary(0x2f, 0x10 | transport, &[0; 12]),
        _ => panic!("{what}"),
    }
}

/// The client's UDP payload size, the EDNS flags, the EDNS version and the options.
type Opt = (u16, u16, u8, Vec<u8>);

fn opt(edns: &mut Option<Opt>) -> &mut Opt {
    edns.get_or_insert_with(|| (1232, 0, 0, Vec::new()))
}

fn number(word: &str, prefix: &str, known: impl Fn(&str) -> Option<u16>) -> u16 {
    let by_number = word.strip_prefix(prefix).and_then(|number| number.parse().ok());
    by_number
        .or_else(|| known(word))
        .unwrap_or_else(|| panic!("{word} is neither a {prefix} nor a known word"))
}

fn u16_of_class(class: DNSClass) -> u16 {
    class.into()
}
