//! `lb-linker query`: sends one query to a DNS server, and formats the answer.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hickory_proto::op::{Edns, Message, Query, ResponseCode};
use hickory_proto::rr::rdata::opt::EdnsOption;
use hickory_proto::rr::rdata::{CNAME, NS, PTR};
use hickory_proto::rr::{DNSClass, Name, RData, Record, RecordType};
use hickory_proto::serialize::binary::{BinDecoder, Restrict};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

use crate::dns::message::presentation::{
    class_text, name_text, parse_name, parse_type_or_number, rcode_text, type_text,
};
use crate::dns::message::sections::Sections;
use crate::dns::message::upstream_reply::{UpstreamReply, parse_datagram, parse_reply};
use crate::dns::message::validity::Section;
use crate::dns::message::wire::{WireError, WireMessage};
use crate::dns::upstream::exchange::is_about_the_name;
use crate::model::excerpt::{printable, sentence};

/// The port of DNS (RFC 1035 section 4.2).
const DNS_PORT: u16 = 53;
/// The server that is asked by default: an lb-linker on the same machine, or in the same Pod.
const DEFAULT_SERVER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), DNS_PORT);
/// The timeout by UDP and by TCP: longer than the 1.8 s that lb-linker waits for the look-up of a link's target.
const TIMEOUT: Duration = Duration::from_secs(3);
/// The advertised UDP payload size in bytes (DNS flag day 2020).
const MAX_UDP: u16 = 1232;

/// The option of dig that prints only the data of the answer.
pub const SHORT: &str = "+short";

/// A question, and the server that it is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    pub server: SocketAddr,
    pub name: Name,
    pub qtype: RecordType,
}

/// An argument of `lb-linker query` that can't be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuestionError {
    #[error("{0:?} isn't a server such as @127.0.0.1, @127.0.0.1:5301 or @[::1]:5301")]
    Server(String),
    #[error("{0} is the address of a server: @{0} asks it")]
    ServerWithoutAt(SocketAddr),
    #[error("{0:?} isn't known: of dig's options there is only {SHORT}")]
    Option(String),
    #[error("one server can be asked, and there is another one: {0}")]
    ServerTwice(String),
    #[error("{0:?} isn't a DNS name such as my-sample-lb-default.lb.internal")]
    Name(String),
    #[error("{0:?} isn't a type such as A, AAAA, CNAME, SRV or TYPE65280")]
    Type(String),
    #[error("a name is missing, such as my-sample-lb-default.lb.internal")]
    NoName,
    #[error("a name and a type are enough, and there is another argument: {0}")]
    TooMany(String),
}

/// The reason why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum QueryError {
    #[error("no answer from {server} within {} s; @ADDRESS or @ADDRESS:PORT names another server", TIMEOUT.as_secs())]
    Timeout { server: SocketAddr },
    #[error("{server}: {source}; @ADDRESS or @ADDRESS:PORT names another server")]
    Io { server: SocketAddr, source: io::Error },
    #[error("the answer of {server} is malformed: {source}")]
    Malformed { server: SocketAddr, source: WireError },
    #[error("{server} answers another question by TCP")]
    Mismatch { server: SocketAddr },
}

impl QueryError {
    /// Returns the cause, without the server.
    #[must_use]
    pub fn reason(&self) -> String {
        match self {
            Self::Timeout { .. } => "no answer".to_owned(),
            Self::Io { source, .. } => source.to_string(),
            Self::Malformed { source, .. } => format!("the answer is malformed: {source}"),
            Self::Mismatch { .. } => "an answer to another question".to_owned(),
        }
    }
}

/// The answer to a question.
#[derive(Debug)]
pub struct Answer {
    question: Question,
    message: WireMessage,
    transport: AnswerTransport,
    took: Duration,
}

#[derive(Debug)]
enum AnswerTransport {
    Udp,
    /// The answer by UDP was truncated.
    Tcp,
    /// The answer by UDP is truncated, and there is none by TCP for this reason.
    UdpAfterTcp(String),
}

impl Question {
    /// Parses the arguments of `lb-linker query`: `[@SERVER] NAME [TYPE]`, without [`SHORT`]. As in dig, the server may stand anywhere.
    ///
    /// # Errors
    /// If an argument can't be used, or the name is missing.
    pub fn parse(arguments: &[String]) -> Result<Self, QuestionError> {
        let (mut server, mut name, mut qtype) = (None, None, None);
        for argument in arguments {
            if let Some(address) = argument.strip_prefix('@') {
                let address = parse_server(address).ok_or_else(|| QuestionError::Server(argument.clone()))?;
                if server.replace(address).is_some() {
                    return Err(QuestionError::ServerTwice(argument.clone()));
                }
            } else if argument.starts_with('+') {
                return Err(QuestionError::Option(argument.clone()));
            } else if let Ok(server) = argument.parse() {
                return Err(QuestionError::ServerWithoutAt(server));
            } else if name.is_none() {
                name = Some(parse_name(argument).ok_or_else(|| QuestionError::Name(argument.clone()))?);
            } else if qtype.is_none() {
                let parsed = parse_type_or_number(&argument.to_ascii_uppercase());
                qtype = Some(parsed.ok_or_else(|| QuestionError::Type(argument.clone()))?);
            } else {
                return Err(QuestionError::TooMany(argument.clone()));
            }
        }
        Ok(Self {
            server: server.unwrap_or(DEFAULT_SERVER),
            name: name.ok_or(QuestionError::NoName)?,
            qtype: qtype.unwrap_or(RecordType::A),
        })
    }

    /// Sends the question by UDP, and again by TCP if the answer is truncated. If that fails, or gives an error or another
    /// truncated answer, the whole records of the truncated answer are the answer.
    ///
    /// # Errors
    /// If there is no valid answer by UDP within 3 s.
    pub async fn ask(self) -> Result<Answer, QueryError> {
        let server = self.server;
        let query = self.query().map_err(|source| QueryError::Io { server, source })?;
        let asked = Instant::now();
        let received = match timeout(TIMEOUT, by_udp(server, &query)).await {
            Ok(received) => received?,
            Err(_) => return Err(QueryError::Timeout { server }),
        };
        let (message, transport) = if received.metadata.truncation {
            let by_tcp = timeout(TIMEOUT, by_tcp(server, &query)).await;
            match by_tcp.unwrap_or(Err(QueryError::Timeout { server })) {
                Ok(by_tcp) => match why_unfit(&by_tcp).filter(|_| received.count(Section::Answer) > 0) {
                    Some(why) => (received, AnswerTransport::UdpAfterTcp(why)),
                    None => (by_tcp, AnswerTransport::Tcp),
                },
                Err(error) => (received, AnswerTransport::UdpAfterTcp(error.reason())),
            }
        } else {
            (received, AnswerTransport::Udp)
        };
        Ok(Answer { question: self, message, transport, took: asked.elapsed() })
    }

    /// Sends the question by TCP.
    ///
    /// # Errors
    /// If there is no valid answer within 3 s.
    pub async fn ask_by_tcp(self) -> Result<Answer, QueryError> {
        let server = self.server;
        let query = self.query().map_err(|source| QueryError::Io { server, source })?;
        let asked = Instant::now();
        let received = timeout(TIMEOUT, by_tcp(server, &query)).await;
        let message = received.unwrap_or(Err(QueryError::Timeout { server }))?;
        Ok(Answer { question: self, message, transport: AnswerTransport::Tcp, took: asked.elapsed() })
    }

    fn query(&self) -> io::Result<Vec<u8>> {
        let mut query = Message::query();
        query.metadata.recursion_desired = true;
        query.add_query(Query::query(self.name.clone(), self.qtype));
        let mut edns = Edns::new();
        edns.set_max_payload(MAX_UDP);
        query.set_edns(edns);
        query.to_vec().map_err(io::Error::other)
    }
}

impl Answer {
    /// Returns the rcode, extended by EDNS.
    #[must_use]
    pub fn rcode(&self) -> ResponseCode {
        self.message.metadata.response_code
    }

    /// Returns why the answer is truncated: there is none by TCP.
    #[must_use]
    pub fn truncated(&self) -> Option<String> {
        match &self.transport {
            AnswerTransport::UdpAfterTcp(why) => {
                Some(format!("the answer is truncated, and there is none by TCP: {why}"))
            }
            AnswerTransport::Udp | AnswerTransport::Tcp => None,
        }
    }

    #[must_use]
    pub fn is_by_tcp(&self) -> bool {
        matches!(self.transport, AnswerTransport::Tcp)
    }

    /// Returns the names of the flags that are set.
    #[must_use]
    pub fn flags(&self) -> Vec<&'static str> {
        let metadata = &self.message.metadata;
        [
            (metadata.authoritative, "aa"),
            (metadata.truncation, "tc"),
            (metadata.recursion_desired, "rd"),
            (metadata.recursion_available, "ra"),
            (metadata.authentic_data, "ad"),
        ]
        .into_iter()
        .filter_map(|(set, flag)| set.then_some(flag))
        .collect()
    }

    /// Returns the data of the records of the answer section, a line for each, as dig's `+short` prints them.
    #[must_use]
    pub fn short(&self) -> String {
        self.sections().answers.iter().map(|record| data_text(record) + "\n").collect()
    }

    /// Returns the records, without the OPT record.
    #[must_use]
    pub fn sections(&self) -> Sections {
        self.message.decode(None)
    }
}

/// Formats the answer in the manner of dig. Comments begin with `;;`, and each record stands in one line, with control
/// characters escaped.
impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Question { server, name, qtype } = &self.question;
        let (rcode, flags) = (rcode_text(self.rcode()), self.flags().join(" "));
        let transport = if self.is_by_tcp() { ", by TCP" } else { "" };
        writeln!(f, ";; {rcode}, flags {flags}; from {server} in {:.1?}{transport}", self.took)?;
        if let Some(why) = self.truncated() {
            writeln!(f, ";; {why}")?;
        }
        for option in &self.message.extended_errors {
            if let EdnsOption::Unknown(_, data) = option
                && let Some((code, text)) = data.split_first_chunk()
            {
                let text = String::from_utf8_lossy(text);
                writeln!(f, ";; extended error {}: {}", u16::from_be_bytes(*code), sentence(&text))?;
            }
        }
        write!(f, ";; question\n;{} {} {}", name_text(name), class_text(DNSClass::IN), type_text(*qtype))?;
        let sections = self.sections();
        for (title, records) in [
            ("answer", &sections.answers),
            ("authority", &sections.authorities),
            ("additional", &sections.additionals),
        ] {
            if !records.is_empty() {
                write!(f, "\n;; {title}")?;
            }
            for record in records {
                write!(f, "\n{}", record_text(record))?;
            }
        }
        Ok(())
    }
}

/// Returns why an answer by TCP doesn't replace the records of a truncated answer.
fn why_unfit(by_tcp: &WireMessage) -> Option<String> {
    let rcode = by_tcp.metadata.response_code;
    if !is_about_the_name(rcode) {
        return Some(format!("an answer with {}", rcode_text(rcode)));
    }
    by_tcp.metadata.truncation.then(|| "an answer that is truncated, too".to_owned())
}

/// Formats a record as in a zone file, in one line.
fn record_text(record: &Record) -> String {
    format!(
        "{} {} {} {} {}",
        name_text(&record.name),
        record.ttl,
        class_text(record.dns_class),
        type_text(record.record_type()),
        data_text(record)
    )
}

/// Formats the data of a record, in one line.
pub(crate) fn data_text(record: &Record) -> String {
    let data = match &record.data {
        RData::Unknown { code, rdata } => opaque_text(*code, &rdata.anything),
        RData::CNAME(CNAME(name)) | RData::NS(NS(name)) | RData::PTR(PTR(name)) => name_text(name),
        data => data.to_string(),
    };
    printable(&data, &[])
}

/// Formats data that isn't decoded: TXT as quoted strings, other types in the format of hickory-proto if it knows them,
/// and all other data as hexadecimal digits (RFC 3597 section 5).
fn opaque_text(rtype: RecordType, data: &[u8]) -> String {
    let known = || {
        let length = Restrict::new(u16::try_from(data.len()).ok()?);
        match RData::read(&mut BinDecoder::new(data), rtype, length).ok()? {
            RData::Unknown { .. } | RData::NULL(_) => None,
            data => Some(data.to_string()),
        }
    };
    let text = if rtype == RecordType::TXT { character_strings(data) } else { known() };
    text.unwrap_or_else(|| {
        let hex: String = data.iter().map(|octet| format!("{octet:02X}")).collect();
        format!("\\# {} {hex}", data.len()).trim_end().to_owned()
    })
}

/// Formats the character strings of a TXT record (RFC 1035 section 5.1); `None` if the data is malformed.
fn character_strings(mut data: &[u8]) -> Option<String> {
    let mut strings = Vec::new();
    while let Some((length, rest)) = data.split_first() {
        let (octets, rest) = rest.split_at_checked((*length).into())?;
        let escaped: String = octets
            .iter()
            .map(|octet| match octet {
                b'"' | b'\\' => format!("\\{}", char::from(*octet)),
                b' '..=b'~' => char::from(*octet).to_string(),
                other => format!("\\{other:03}"),
            })
            .collect();
        strings.push(format!("\"{escaped}\""));
        data = rest;
    }
    (!strings.is_empty()).then(|| strings.join(" "))
}

/// Parses the address of a server; its port is 53 by default.
#[must_use]
pub fn parse_server(text: &str) -> Option<SocketAddr> {
    let without_port = || text.parse::<IpAddr>().ok().map(|ip| SocketAddr::new(ip, DNS_PORT));
    text.parse().ok().or_else(without_port)
}

/// Returns the answer by UDP, perhaps truncated. Packets that don't match the query are ignored: they may be forged.
async fn by_udp(server: SocketAddr, query: &[u8]) -> Result<WireMessage, QueryError> {
    let io_error = |source| QueryError::Io { server, source };
    let any: IpAddr =
        if server.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).await.map_err(io_error)?;
    socket.connect(server).await.map_err(io_error)?;
    socket.send(query).await.map_err(io_error)?;
    let mut buffer = vec![0; usize::from(u16::MAX)];
    loop {
        let length = socket.recv(&mut buffer).await.map_err(io_error)?;
        // No datagram is larger than the buffer.
        match parse_datagram(query, &buffer[..length], false) {
            UpstreamReply::Answer(message) | UpstreamReply::Truncated(message) => {
                return Ok(Arc::unwrap_or_clone(message));
            }
            UpstreamReply::Malformed(source) => return Err(QueryError::Malformed { server, source }),
            UpstreamReply::Mismatch => {}
        }
    }
}

/// Returns the answer by TCP (RFC 1035 section 4.2.2).
async fn by_tcp(server: SocketAddr, query: &[u8]) -> Result<WireMessage, QueryError> {
    let exchange = async {
        let mut stream = TcpStream::connect(server).await?;
        let length = u16::try_from(query.len()).map_err(io::Error::other)?;
        stream.write_all(&[&length.to_be_bytes()[..], query].concat()).await?;
        let mut reply = vec![0; stream.read_u16().await?.into()];
        stream.read_exact(&mut reply).await?;
        Ok(reply)
    };
    let reply = exchange.await.map_err(|source| QueryError::Io { server, source })?;
    match parse_reply(query, &reply) {
        UpstreamReply::Answer(message) | UpstreamReply::Truncated(message) => {
            Ok(Arc::unwrap_or_clone(message))
        }
        UpstreamReply::Malformed(source) => Err(QueryError::Malformed { server, source }),
        UpstreamReply::Mismatch => Err(QueryError::Mismatch { server }),
    }
}

#[cfg(test)]
mod tests;
