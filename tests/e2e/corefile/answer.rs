//! The compared parts of an answer.

use std::collections::BTreeMap;

use hickory_proto::op::{Message, MessageType};
use hickory_proto::rr::rdata::opt::EdnsOption;
use hickory_proto::rr::{RData, Record, RecordType};

use super::question::{Question, Reply};

/// The compared parts of an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// Whether the server didn't answer.
    silence: bool,
    rcode: String,
    flags: String,
    question: String,
    /// The records of each section: the keys are records without their TTL, the values are the TTLs of equal records.
    sections: [BTreeMap<String, Vec<u32>>; 3],
    opt: String,
    /// The outcome of the check of the signature.
    signature: String,
}

/// A difference between two answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// `silence`, `rcode`, `flags`, `question`, `answer`, `authority`, `additional`, `ttl`, `opt` or `signature`.
    pub field: &'static str,
    pub coredns: String,
    pub subject: String,
}

impl Answer {
    pub fn of(question: &Question, reply: &Reply) -> Self {
        let Some(bytes) = &reply.answer else { return Self { silence: true, ..Self::default() } };
        let message = Message::from_vec(bytes)
            .unwrap_or_else(|error| panic!("{}: {error}: {bytes:02x?}", question.text));
        assert_eq!(bytes[..2], question.message[..2], "{}: another id", question.text);
        let metadata = &message.metadata;
        let flags = [
            ("qr", metadata.message_type == MessageType::Response),
            ("aa", metadata.authoritative),
            ("tc", metadata.truncation),
            ("rd", metadata.recursion_desired),
            ("ra", metadata.recursion_available),
            ("ad", metadata.authentic_data),
            ("cd", metadata.checking_disabled),
        ];
        let set: Vec<&str> = flags.iter().filter(|(_, set)| *set).map(|(flag, _)| *flag).collect();
        let asked = message.queries.iter().map(|query| {
            let name = in_case(question, query.name().to_ascii());
            format!("{name} {} {}", query.query_class(), u16::from(query.query_type()))
        });
        let section = |records: &[Record]| {
            let mut section: BTreeMap<String, Vec<u32>> = BTreeMap::new();
            // The TSIG record has the time and the MAC.
            for record in records.iter().filter(|record| record.record_type() != RecordType::TSIG) {
                section.entry(text(question, record)).or_default().push(record.ttl);
            }
            section.values_mut().for_each(|ttls| ttls.sort_unstable());
            section
        };
        Self {
            silence: false,
            rcode: format!("{} opcode {}", u16::from(metadata.response_code), u8::from(metadata.op_code)),
            flags: set.join(" "),
            question: asked.collect::<Vec<_>>().join(", "),
            sections: [
                section(&message.answers),
                section(&message.authorities),
                section(&message.additionals),
            ],
            opt: opt(&message),
            signature: format!("{:?}", reply.signature),
        }
    }

    /// Returns the differences between this answer, which is CoreDNS's, and the answer of the program under test. TTLs
    /// may differ by 1 s.
    pub fn differences(&self, other: &Self) -> Vec<Difference> {
        if self.silence != other.silence {
            return vec![difference("silence", self.show(), other.show())];
        }
        let mut differences = Vec::new();
        let fields = [
            ("rcode", &self.rcode, &other.rcode),
            ("flags", &self.flags, &other.flags),
            ("question", &self.question, &other.question),
            ("opt", &self.opt, &other.opt),
            ("signature", &self.signature, &other.signature),
        ];
        for (field, coredns, subject) in fields {
            if coredns != subject {
                differences.push(difference(field, coredns.clone(), subject.clone()));
            }
        }
        let mut ttls_differ = false;
        let sections = self.sections.iter().zip(&other.sections);
        for (field, (coredns, subject)) in ["answer", "authority", "additional"].into_iter().zip(sections) {
            let counts = |section: &BTreeMap<String, Vec<u32>>| -> Vec<(String, usize)> {
                section.iter().map(|(record, ttls)| (record.clone(), ttls.len())).collect()
            };
            if counts(coredns) == counts(subject) {
                let pairs = coredns.values().flatten().zip(subject.values().flatten());
                ttls_differ |= pairs.into_iter().any(|(one, other)| one.abs_diff(*other) > 1);
            } else {
                differences.push(difference(field, show(coredns), show(subject)));
            }
        }
        if ttls_differ {
            differences.push(difference("ttl", self.show(), other.show()));
        }
        differences
    }

    pub fn is_silence(&self) -> bool {
        self.silence
    }

    pub fn show(&self) -> String {
        if self.silence {
            return "no answer".to_owned();
        }
        let sections: Vec<String> = self.sections.iter().map(show).collect();
        format!("{} {} ?{} | {} | {}", self.rcode, self.flags, self.question, sections.join(" | "), self.opt)
    }
}

fn difference(field: &'static str, coredns: String, subject: String) -> Difference {
    Difference { field, coredns, subject }
}

fn show(section: &BTreeMap<String, Vec<u32>>) -> String {
    let records = section.iter().map(|(record, ttls)| format!("{record} {ttls:?}"));
    records.collect::<Vec<_>>().join(", ")
}

/// Returns a record without its TTL as text.
fn text(question: &Question, record: &Record) -> String {
    let owner = in_case(question, record.name.to_ascii());
    let data = match &record.data {
        // `whoami` answers with the client's source port, which differs for each server.
        RData::SRV(srv) if srv.target.is_root() => format!("{} {} PORT .", srv.priority, srv.weight),
        RData::TXT(txt) => {
            let strings: Vec<_> = txt.txt_data.iter().map(|text| String::from_utf8_lossy(text)).collect();
            format!("{strings:?}")
        }
        RData::CNAME(_) | RData::NS(_) | RData::PTR(_) | RData::MX(_) | RData::SRV(_) | RData::SOA(_) => {
            in_case(question, record.data.to_string())
        }
        data => data.to_string(),
    };
    format!("{owner} {} {} {data}", record.dns_class, u16::from(record.record_type()))
}

fn in_case(question: &Question, text: String) -> String {
    if question.case { text } else { text.to_ascii_lowercase() }
}

/// Returns whether the answer has EDNS, and its NSID. Other EDNS fields aren't compared.
fn opt(message: &Message) -> String {
    let Some(edns) = &message.edns else { return "no EDNS".to_owned() };
    let mut text = "EDNS".to_owned();
    for (_, option) in edns.options().as_ref() {
        // CoreDNS without `nsid` returns the client's empty NSID option.
        if let EdnsOption::NSID(nsid) = option
            && !nsid.as_ref().is_empty()
        {
            text += &format!(" nsid {:?}", String::from_utf8_lossy(nsid.as_ref()));
        }
    }
    text
}
