//! Properties of the answers to arbitrary bytes from a client, shared by the property test and the fuzz target.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::ops::Range;
use std::sync::Arc;

use hickory_proto::op::{Message, OpCode, ResponseCode};
use hickory_proto::rr::Name;
use hickory_proto::serialize::binary::DecodeError;
use lb_linker::dns::chain::handler::Handler;
use lb_linker::dns::message::header::MAX_UDP;
use lb_linker::dns::net::Protocol;
use lb_linker::dns::plugins::setup::ServerContext;
use lb_linker::dns::server::config::first_handler;
use lb_linker::model::hostname::Hostname;
use lb_linker::model::link::{Annotations, Ingress, ObservedService};
use lb_linker::model::service_key::ServiceKey;
use lb_linker::store::cluster::objects::{
    Addressing, Kind as ClusterKind, Port, Protocol as PortProtocol, Service, Slice,
};
use lb_linker::store::cluster::registry::{ClusterRegistry, ClusterSpec};
use lb_linker::store::{Input, OnGone, Store};
use tokio::runtime::Runtime;

/// The length of the DNS header in bytes (RFC 1035 section 4.1.1).
const HEADER: usize = 12;
/// Clients with IPv4, IPv4-mapped and IPv6 addresses.
const CLIENTS: [&str; 4] = ["10.0.0.1:53", "192.0.2.9:40000", "[::ffff:10.0.0.1]:5353", "[2001:db8::9]:1"];
const PROTOCOLS: [Protocol; 2] = [Protocol::Udp, Protocol::Tcp];

/// A handler with links of all kinds, and its runtime.
pub struct Server {
    handler: Arc<Handler>,
    runtime: Runtime,
}

impl Server {
    /// Creates a server without an upstream.
    pub fn start() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        Self { handler: handler(), runtime }
    }

    /// Passes the bytes to the handler as a message from the client and over the protocol that `which` selects.
    /// Returns the rcode, `None` if there is no answer, or the violated property.
    pub fn try_message(&self, message: &[u8], which: usize) -> Result<Option<u16>, String> {
        let protocol = PROTOCOLS[which % PROTOCOLS.len()];
        let client: SocketAddr = CLIENTS[which / PROTOCOLS.len() % CLIENTS.len()].parse().unwrap();
        let answer =
            self.runtime.block_on(self.handler.answer(message.to_vec(), client, None, protocol, true));
        let outcome = if self.handler.server_metrics.panics.get() > 0 {
            Err("the handler panicked".to_owned())
        } else {
            check(message, answer.as_ref().map(|answer| &*answer.bytes), protocol)
        };
        outcome.map_err(|rule| format!("{rule}\nby {protocol} from {client}: {message:02x?}\n{answer:02x?}"))
    }
}

/// Returns a handler with links of all kinds.
pub fn handler() -> Arc<Handler> {
    let name = |text: &str| Name::from_ascii(text).unwrap();
    let link = |service: &str, hostname: Option<&str>, addresses: Vec<IpAddr>, extra: &str| ObservedService {
        key: ServiceKey::new("default", service),
        uid: service.into(),
        created: None,
        resource_version: Some(1),
        ingress: Ingress {
            hostnames: hostname.map(|host| Hostname::from(&name(host))).into_iter().collect(),
            addresses,
        },
        ports: [].into(),
        annotations: Annotations {
            ttl: None,
            hostnames: extra.split_whitespace().map(Into::into).collect(),
            ..Annotations::default()
        },
        refused: false,
        has_finalizer: false,
        persisted: None,
    };
    let addresses = |count: u16| (0..count).map(|i| Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, i).into());
    let mut several: Vec<IpAddr> = vec![[192, 0, 2, 1].into(), [192, 0, 2, 2].into()];
    several.extend(addresses(2));
    let long = [&*"x".repeat(63), &*"y".repeat(63), &*"z".repeat(63), &*"w".repeat(61)].join(".");
    let links = vec![
        link("web", Some("a.example.com."), vec![], "www.lb.internal"),
        link("ips", None, several, "*.any.lb.internal"),
        link("many", None, addresses(300).collect(), ""),
        link("long", Some(&long), vec![], ""),
        link("pending", None, vec![], ""),
        link("inside", Some("web.default.lb.internal."), vec![], ""),
        link("egg", Some("hen.default.lb.internal."), vec![], ""),
        link("hen", Some("egg.default.lb.internal."), vec![], ""),
    ];
    let zone = name("lb.internal.");
    let store = Store::new(OnGone::Kept).with_zones([&zone]);
    store.replace(None, links, vec![], &Default::default());
    store.set_known(Input::Services);
    let site = ServerContext::silent(Arc::new(store)).unwrap();
    let handler = first_handler(COREFILE, &site).unwrap();
    add_cluster(&site.clusters);
    handler
}

const COREFILE: &str = "lb.internal cluster.local 10.in-addr.arpa {
prometheus
lb_linker lb.internal {
ns 192.0.2.53 2001:db8::53
}
kubernetes cluster.local 10.in-addr.arpa {
pods insecure
}
}
";

/// Adds the objects that the plugin *kubernetes* answers from: two Services, of which one is headless, and endpoints.
fn add_cluster(clusters: &ClusterRegistry) {
    let spec = ClusterSpec::default();
    let cluster = clusters.cluster(spec);
    let (web, db) = (ServiceKey::new("a", "web"), ServiceKey::new("a", "db"));
    let ports = || [Port { name: "http".into(), protocol: PortProtocol::Tcp, number: Some(80) }].into();
    let addresses = Addressing::ClusterIps([[10, 0, 0, 1].into()].into());
    cluster.set_namespace("a", true);
    cluster.set_service(&web, Some(Service { addressing: addresses, ports: ports() }), &[]);
    cluster.set_service(&db, Some(Service { addressing: Addressing::Headless, ports: ports() }), &[]);
    let endpoints: Vec<IpAddr> = (1..=200).map(|last| [10, 1, 0, last].into()).collect();
    let names = [(0, "db-0".into())].into();
    let slice = Slice {
        name: "db".into(),
        ports: ports(),
        addresses: endpoints.into(),
        names,
        zones: None,
        cluster: "".into(),
    };
    cluster.set_slice(&db, Some(("db", slice)));
    ClusterKind::ALL.into_iter().for_each(|kind| cluster.set_listed(kind));
    assert!(Arc::strong_count(&cluster) > 1, "the plugin answers from it");
}

/// Checks an answer. Returns its rcode, or `None` if there is no answer.
pub fn check(asked: &[u8], answer: Option<&[u8]>, protocol: Protocol) -> Result<Option<u16>, String> {
    let silence = asked.len() < HEADER || asked[2] & 0x80 != 0;
    let answer = match (silence, answer) {
        (true, None) => return Ok(None),
        (true, Some(_)) => return Err("a response or an incomplete header gets no answer".into()),
        (false, None) => return Err("a complete header without QR gets an answer".into()),
        (false, Some(answer)) => answer,
    };
    let question = decode(asked);
    let decoded =
        Message::from_vec(answer).map_err(|error| format!("the answer can't be decoded: {error}"))?;
    check_header(asked, answer)?;
    check_sections(asked, answer, &decoded)?;
    check_edns(asked, question.as_ref().ok(), &decoded)?;
    check_size(question.as_ref().ok(), answer, &decoded, protocol)?;
    let failed = decoded.metadata.response_code == ResponseCode::ServFail && decoded.answers.is_empty();
    ensure(!failed, "SERVFAIL only for targets that lead in a circle, with records in the answer section")?;
    // Rcode 16 is both BADVERS and BADSIG.
    let rcode = u16::from(decoded.metadata.response_code);
    let version =
        question.as_ref().ok().and_then(|question| question.edns.as_ref()).map_or(0, |edns| edns.version());
    let opcode = OpCode::from_u8(opcode(asked));
    if !matches!(opcode, OpCode::Query | OpCode::Notify) {
        ensure(
            rcode == u16::from(ResponseCode::NotImp),
            "an opcode other than QUERY and NOTIFY gets NOTIMP",
        )?;
    } else if !is_question(asked) || question.is_err() {
        ensure(rcode == u16::from(ResponseCode::FormErr), "a query that can't be decoded gets FORMERR")?;
    } else if version > 0 {
        ensure(
            rcode == u16::from(ResponseCode::BADVERS),
            "another version of EDNS is BADVERS (RFC 6891 section 6.1.3)",
        )?;
    } else if opcode == OpCode::Notify {
        let refusals = [ResponseCode::NotImp, ResponseCode::Refused].map(u16::from);
        ensure(refusals.contains(&rcode), "NOTIFY gets NOTIMP or REFUSED without the plugin secondary")?;
    } else {
        ensure(rcode != u16::from(ResponseCode::FormErr), "a query that can be decoded doesn't get FORMERR")?;
    }
    Ok(Some(rcode))
}

/// Decodes a query. In the OPT record, client subnets of family 0 and prefix length 0 count as options that aren't
/// interpreted: hickory-proto refuses them, CoreDNS and lb-linker don't.
fn decode(asked: &[u8]) -> Result<Message, DecodeError> {
    let mut bytes = asked.to_vec();
    let options = opt_data(asked).unwrap_or_default();
    let (mut at, end) = (options.start, options.end);
    while at + 4 <= end {
        let length = usize::from(count(asked, at + 2));
        let Some(data) = asked[..end].get(at + 4..at + 4 + length) else { break };
        if count(asked, at) == 8 && length >= 4 && data.starts_with(&[0; 3]) {
            bytes[at..at + 2].copy_from_slice(&65001_u16.to_be_bytes());
        }
        at += 4 + length;
    }
    Message::from_vec(&bytes)
}

/// Returns where the options of the first OPT record of the additional section are, if they are complete.
fn opt_data(message: &[u8]) -> Option<Range<usize>> {
    let end_of_name = |mut at: usize| loop {
        match *message.get(at)? {
            0 => return Some(at + 1),
            length @ 1..=63 => at += 1 + usize::from(length),
            192.. => return Some(at + 2),
            _ => return None,
        }
    };
    let mut at = HEADER;
    for _ in 0..count(message, 4) {
        at = end_of_name(at)? + 4;
    }
    let others = u32::from(count(message, 6)) + u32::from(count(message, 8));
    for number in 0..others + u32::from(count(message, 10)) {
        let owner = at;
        let fixed = end_of_name(at)?;
        let data = fixed + 10;
        at = data + usize::from(count(message.get(..data)?, fixed + 8));
        if number >= others && data - owner == 11 && count(message, fixed) == 41 {
            return (at <= message.len()).then_some(data..at);
        }
    }
    None
}

fn ensure(holds: bool, rule: &str) -> Result<(), String> {
    if holds { Ok(()) } else { Err(rule.to_owned()) }
}

fn opcode(message: &[u8]) -> u8 {
    message[2] >> 3 & 0x0f
}

fn count(message: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([message[at], message[at + 1]])
}

/// Returns whether a message has one question (RFC 9619), and no more records in the other sections than CoreDNS
/// accepts.
fn is_question(message: &[u8]) -> bool {
    count(message, 4) == 1 && count(message, 6) <= 1 && count(message, 8) <= 1 && count(message, 10) <= 2
}

fn check_header(asked: &[u8], answer: &[u8]) -> Result<(), String> {
    ensure(answer[..2] == asked[..2], "the id is repeated")?;
    ensure(answer[2] & 0x80 != 0, "an answer has QR set")?;
    ensure(opcode(answer) == opcode(asked), "the opcode is repeated")?;
    ensure(answer[2] & 0x01 == asked[2] & 0x01, "RD is repeated")?;
    ensure(answer[3] & 0x10 == asked[3] & 0x10, "CD is repeated")?;
    ensure(answer[3] & 0x40 == 0, "Z is zero (RFC 1035 section 4.1.1)")?;
    ensure(answer[3] & 0x20 == 0, "AD is zero, because nothing is validated")
}

fn check_sections(asked: &[u8], answer: &[u8], decoded: &Message) -> Result<(), String> {
    let repeated = count(answer, 4);
    ensure(repeated <= 1, "there is one question at most")?;
    if let Some(question) = plain_question(asked) {
        let there = repeated == 1 && answer[HEADER..].starts_with(question);
        ensure(there, "the question is repeated, byte by byte, where it can be read")?;
    }
    let records = decoded.answers.iter().chain(&decoded.authorities);
    ensure(repeated == 1 || records.count() == 0, "an answer without a question section has no records")
}

/// Returns the bytes of the only question, if the question is complete and has no compression pointers.
fn plain_question(message: &[u8]) -> Option<&[u8]> {
    let mut end = HEADER;
    while *message.get(end)? != 0 {
        end += usize::from(message[end]) + 1;
        if message.get(end).is_none_or(|length| *length > 63) || end - HEADER > 254 {
            return None;
        }
    }
    let whole = count(message, 4) == 1 && message[HEADER] <= 63;
    message.get(HEADER..end + 5).filter(|_| whole)
}

fn check_edns(asked: &[u8], question: Option<&Message>, answer: &Message) -> Result<(), String> {
    match (question, &answer.edns) {
        (None, Some(_)) => {
            let opt = asked.windows(3).any(|window| window == [0, 0, 41]);
            ensure(opt, "an answer has OPT only if the query may have OPT")
        }
        (None, None) => Ok(()),
        (Some(question), edns) => {
            ensure(
                question.edns.is_some() == edns.is_some(),
                "an answer has OPT if and only if the query has OPT (RFC 6891 sections 6.1.1 and 7)",
            )?;
            let dnssec_ok = |message: &Message| message.edns.as_ref().map(|edns| edns.flags().dnssec_ok);
            ensure(dnssec_ok(question) == dnssec_ok(answer), "DO is repeated (RFC 3225 section 3)")
        }
    }
}

fn check_size(
    question: Option<&Message>,
    answer: &[u8],
    decoded: &Message,
    protocol: Protocol,
) -> Result<(), String> {
    if protocol != Protocol::Udp {
        return ensure(!decoded.metadata.truncation, "answers by TCP are not truncated");
    }
    let asked = question.and_then(|question| question.edns.as_ref()).map_or(512, |edns| edns.max_payload());
    let limit = asked.clamp(512, MAX_UDP);
    ensure(answer.len() <= limit.into(), "by UDP the answer is no longer than the client takes")
}
