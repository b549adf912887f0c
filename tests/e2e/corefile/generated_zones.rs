//! Generated zone files, and the zone files of `tests/zones`, in lb-linker and in CoreDNS: each answer is the same, or
//! differs for a reason of [`explanation`].
//!
//! `LB_LINKER_ZONES` sets the number of generated zones (20), `LB_LINKER_ZONE_SEED` the seed, `LB_LINKER_ZONE_FILES`
//! another directory in place of `tests/zones` (the file `root` is the root zone), and `LB_LINKER_ZONE_QUESTIONS` the
//! number of questions for each zone (170). With the paths of knotd and nsd in `LB_LINKER_KNOT` and `LB_LINKER_NSD`, an
//! answer that differs from CoreDNS's must be Knot's or NSD's instead.

mod judges;
mod zone;

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::path::PathBuf;
use std::time::Duration;

use hickory_proto::op::{Edns, Message, Query, ResponseCode};
use hickory_proto::rr::{Name, Record, RecordType};
use hickory_proto::serialize::binary::{BinEncodable, BinEncoder, NameEncoding};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};

use super::server::{CorefileDir, Program, Server};
use judges::Judge;
use zone::GeneratedZone;

const ZONE_FILES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/zones");

/// The compared parts of an answer. TTLs aren't compared, nor is the order of records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Answer {
    rcode: String,
    aa: bool,
    tc: bool,
    /// Records without TTLs, in lower case, each once.
    sections: [BTreeSet<String>; 3],
}

/// A query, by UDP and by TCP.
#[derive(Clone, Debug)]
struct Question {
    name: Name,
    qtype: RecordType,
    dnssec: bool,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn generated_zone_files_are_answered_as_by_coredns() {
    let number = |name: &str, default: u64| {
        std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
    };
    let (zones, seed) = (number("LB_LINKER_ZONES", 20), number("LB_LINKER_ZONE_SEED", 1));
    eprintln!("generated zones: seed {seed}, {zones} zones");
    let mut random = StdRng::seed_from_u64(seed);
    let mut zones: Vec<GeneratedZone> =
        (0..zones).map(|number| GeneratedZone::new(number, &mut random)).collect();
    let files = std::env::var_os("LB_LINKER_ZONE_FILES").map(PathBuf::from);
    zones.extend(GeneratedZone::of_files(&files.unwrap_or_else(|| ZONE_FILES.into())));
    let questions = usize::try_from(number("LB_LINKER_ZONE_QUESTIONS", 170)).expect("a small number");
    let block = |zone: &GeneratedZone| format!("    file {} {}.\n", zone.file, zone.origin);
    let blocks: String = zones.iter().map(block).collect();
    let site = CorefileDir::new(&format!(".:{{$PORT}} {{\n    bind 127.0.0.1\n{blocks}}}\n"), &[]);
    for zone in &zones {
        site.write(&zone.file, &zone.text);
    }
    let (coredns, subject) =
        tokio::join!(Server::start(Program::CoreDns, &site), Server::start(Program::subject(), &site));
    let judges = Judge::start_all(site.path(), &zones);
    let servers = [coredns.dns(), subject.dns()];
    let (asked, unexplained) =
        tokio::task::spawn_blocking(move || compare(&zones, questions, servers, &judges, &mut random))
            .await
            .expect("the comparison doesn't panic");
    eprintln!("generated zones: {asked} questions");
    let shown: Vec<&String> = unexplained.iter().take(5).collect();
    assert!(unexplained.is_empty(), "seed {seed}: {} differences: {shown:#?}", unexplained.len());
}

/// Returns the number of questions, and the differences without an explanation.
fn compare(
    zones: &[GeneratedZone],
    questions: usize,
    [coredns, subject]: [SocketAddr; 2],
    judges: &[Judge],
    random: &mut StdRng,
) -> (usize, Vec<String>) {
    let [coredns, subject] = [coredns, subject].map(Client::new);
    let (mut asked, mut unexplained) = (0, Vec::new());
    for zone in zones {
        for _ in 0..questions {
            let question = zone.question(random);
            let by_tcp = random.random_bool(0.1);
            let [theirs, ours] = [&coredns, &subject].map(|client| client.ask(&question, by_tcp));
            asked += 1;
            if theirs == ours || (theirs.tc || ours.tc) && !by_tcp {
                continue;
            }
            let judged: Vec<(&str, Answer)> =
                judges.iter().map(|judge| (judge.name, judge.client.ask(&question, true))).collect();
            let is_explained = if judged.is_empty() {
                explanation(zone, &question, &theirs, &ours).is_some()
            } else {
                judged.iter().any(|(_, judged)| agrees(&ours, judged)) || is_at_discretion(&question, &ours)
            };
            if !is_explained {
                let Question { name, qtype, dnssec } = &question;
                unexplained.push(format!(
                    "{name} {qtype} do={dnssec}\n CoreDNS {theirs:?}\n    ours {ours:?}\n  judges {judged:?}"
                ));
            }
        }
    }
    (asked, unexplained)
}

/// Returns whether an answer says the same as a judge's: NS records beside an answer and additional records are at the
/// server's discretion.
fn agrees(ours: &Answer, judged: &Answer) -> bool {
    let said = |answer: &Answer| {
        let is_needed = |record: &&String| answer.sections[0].is_empty() || !record.contains(" NS ");
        let authority: BTreeSet<String> = answer.sections[1].iter().filter(is_needed).cloned().collect();
        (answer.rcode.clone(), answer.sections[0].clone(), without_signed_ns(authority))
    };
    let (own, theirs) = (said(ours), said(judged));
    // Knot leaves out the proof that a name that begins with an asterisk, and comes from a wildcard, doesn't exist.
    let is_asterisk = ours.sections[0].iter().any(|record| record.starts_with("*."));
    let has_more_proofs = is_asterisk
        && own.2.is_superset(&theirs.2)
        && own
            .2
            .difference(&theirs.2)
            .all(|record| record.contains(" NSEC ") || record.contains(" RRSIG 002f"));
    (&own.0, &own.1) == (&theirs.0, &theirs.1) && (own.2 == theirs.2 || has_more_proofs)
}

fn without_signed_ns(mut authority: BTreeSet<String>) -> BTreeSet<String> {
    if !authority.iter().any(|record| record.contains(" NS ")) {
        authority.retain(|record| !record.contains(" RRSIG 0002"));
    }
    authority
}

/// Returns whether each server may have an answer of its own: an endless chain of aliases is cut somewhere, and nothing
/// says which NSEC records prove that a wildcard's NSEC record is the answer.
fn is_at_discretion(question: &Question, ours: &Answer) -> bool {
    const MAX_ALIASES: usize = 8;
    let aliases = ours.sections[0].iter().filter(|record| record.contains(" CNAME ")).count();
    aliases > MAX_ALIASES || question.qtype == RecordType::NSEC
}

/// Returns why CoreDNS has another answer; `None` if no known reason applies.
fn explanation(
    zone: &GeneratedZone,
    question: &Question,
    theirs: &Answer,
    ours: &Answer,
) -> Option<&'static str> {
    let has = |answer: &Answer, section: usize, rtype: &str| {
        answer.sections[section].iter().any(|record| record.contains(&format!(" {rtype} ")))
    };
    let is_same_answer = theirs.rcode == ours.rcode && theirs.sections[0] == ours.sections[0];
    let has_more_proofs = ours.sections[1].is_superset(&theirs.sections[1]) && has(ours, 1, "NSEC");
    let reasons = [
        (
            question.name.to_lowercase() == zone.origin_name()
                && (&*theirs.rcode, &*ours.rcode) == ("Non-Existent Domain", "No Error"),
            "the origin of a zone with no other names exists",
        ),
        (is_at_discretion(question, ours), "a long chain of aliases, or a query for NSEC"),
        (
            is_same_answer && has(ours, 0, "CNAME") && has(ours, 1, "SOA") && !has(theirs, 1, "SOA"),
            "a denial after an alias has the SOA record",
        ),
        (is_same_answer && question.dnssec && has_more_proofs, "NSEC records prove all of a denial"),
        (
            zone.has_names_below(&question.name)
                && ours.sections[0].is_empty()
                && ours.rcode == "No Error"
                && ["No Error", "Server Failure"].contains(&&*theirs.rcode),
            "a wildcard isn't used for an empty non-terminal",
        ),
        (
            theirs.rcode == "Server Failure"
                && (has(ours, 0, "DNAME") && theirs.sections[0].is_empty() || is_circle(&ours.sections[0])),
            "aliases that lead in a circle are answered",
        ),
        (
            theirs.sections[0].iter().any(|record| record.starts_with("*.") && record.contains(" RRSIG ")),
            "the signature of a synthesized CNAME has the owner of the CNAME",
        ),
    ];
    reasons.into_iter().find(|(applies, _)| *applies).map(|(_, reason)| reason)
}

/// Returns whether each alias leads to another one.
fn is_circle(answers: &BTreeSet<String>) -> bool {
    let aliases = || answers.iter().filter_map(|record| record.split_once(" CNAME "));
    let owners: Vec<String> = aliases()
        .map(|(owner, _)| owner.trim_end_matches('.').split('.').map(str::as_bytes))
        .map(|labels| hex(&Name::from_labels(labels).expect("a name").to_bytes().expect("a name")))
        .collect();
    aliases().count() > 0 && aliases().all(|(_, target)| owners.iter().any(|owner| owner == target))
}

struct Client {
    server: SocketAddr,
    socket: UdpSocket,
}

impl Client {
    fn new(server: SocketAddr) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(server).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        Self { server, socket }
    }

    fn ask(&self, question: &Question, by_tcp: bool) -> Answer {
        let mut message = Message::query();
        message.metadata.id = rand::random();
        message.add_query(Query::query(question.name.clone(), question.qtype));
        let mut edns = Edns::new();
        edns.set_max_payload(1232).set_dnssec_ok(question.dnssec);
        message.set_edns(edns);
        let query = message.to_vec().unwrap();
        let mut reply = vec![0; 65535];
        if by_tcp {
            let mut stream = TcpStream::connect(self.server).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
            let length = u16::try_from(query.len()).unwrap();
            stream.write_all(&[&length.to_be_bytes()[..], &query].concat()).unwrap();
            let mut length = [0; 2];
            stream.read_exact(&mut length).unwrap();
            reply.truncate(u16::from_be_bytes(length).into());
            stream.read_exact(&mut reply).unwrap();
        } else {
            self.socket.send(&query).unwrap();
            let length = self
                .socket
                .recv(&mut reply)
                .unwrap_or_else(|error| panic!("{question:?} to {}: {error}", self.server));
            reply.truncate(length);
        }
        assert_eq!(reply[..2], query[..2], "{question:?}: another id");
        Answer::of(&Message::from_vec(&reply).unwrap_or_else(|error| panic!("{question:?}: {error}")))
    }
}

impl Answer {
    fn of(message: &Message) -> Self {
        let section = |records: &[Record]| records.iter().map(text).collect();
        let rcode: ResponseCode = message.metadata.response_code;
        Self {
            rcode: rcode.to_string(),
            aa: message.metadata.authoritative,
            tc: message.metadata.truncation,
            sections: [
                section(&message.answers),
                section(&message.authorities),
                section(&message.additionals),
            ],
        }
    }
}

fn text(record: &Record) -> String {
    let mut data = Vec::new();
    let mut encoder = BinEncoder::new(&mut data);
    encoder.set_name_encoding(NameEncoding::UncompressedLowercase);
    record.data.emit(&mut encoder).expect("the data was decoded");
    format!("{} {} {}", record.name.to_lowercase().to_ascii(), record.record_type(), hex(&data))
}

fn hex(octets: &[u8]) -> String {
    octets.iter().map(|octet| format!("{octet:02x}")).collect()
}

impl GeneratedZone {
    /// Returns a question about one of the zone's names, or a name near it.
    fn question(&self, random: &mut StdRng) -> Question {
        const TYPES: [RecordType; 12] = [
            RecordType::A,
            RecordType::AAAA,
            RecordType::TXT,
            RecordType::MX,
            RecordType::SRV,
            RecordType::NS,
            RecordType::SOA,
            RecordType::DS,
            RecordType::CNAME,
            RecordType::HTTPS,
            RecordType::PTR,
            RecordType::NSEC,
        ];
        let name = self.names.choose(random).expect("a zone has names");
        let name = match random.random_range(0..8) {
            0 => format!("q.{name}"),
            1 => format!("q.r.{name}"),
            2 => name.split_once('.').map_or(name.as_str(), |(_, parent)| parent).to_owned(),
            3 => format!("b.{name}"),
            4 => name.to_ascii_uppercase(),
            _ => name.clone(),
        };
        // Below the root.
        let name = name.replace("..", ".");
        let is_inside = name.to_ascii_lowercase().ends_with(&format!("{}.", self.origin)) && name.len() < 255;
        let name = if is_inside { name } else { format!("{}.", self.origin) };
        let qtype = *TYPES.choose(random).expect("there are types");
        let labels = name.split('.').filter(|label| !label.is_empty()).map(str::as_bytes);
        Question { name: Name::from_labels(labels).unwrap(), qtype, dnssec: random.random_bool(0.5) }
    }
}
