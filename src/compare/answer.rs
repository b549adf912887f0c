//! The compared parts of an answer.

use std::hash::{DefaultHasher, Hash, Hasher};

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::{Record, RecordType};

use crate::dns::message::presentation::{lower_name_text, rcode_text, type_text};
use crate::model::excerpt::sentence;
use crate::query;

/// The maximum number of records of a section that are shown.
const MAX_RECORDS: usize = 10;
/// The third field of an SOA record. Serials depend on when a server has seen changes.
const SERIAL: usize = 2;
/// The maximum size of the names and the data of an answer, in bytes: compressed names may stand for many times the size
/// of the message.
const MAX_SIZE: usize = 1 << 20;

/// What a server has answered: a set of records for each section, because neither order nor repetition mean anything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub rcode: ResponseCode,
    pub flags: Vec<&'static str>,
    pub sections: [Vec<Entry>; 3],
}

/// A record, in lower case, without the serial of an SOA record.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// Without the final dot.
    pub owner: String,
    pub rtype: RecordType,
    pub data: String,
    pub ttl: u32,
}

/// An answer for a comparison of its TTLs.
#[derive(Debug, PartialEq, Eq)]
pub struct Shape {
    /// The hash of everything but the TTLs.
    pub content: u64,
    pub ttls: Vec<u32>,
}

/// An answer, or why there is none.
pub type Reply = Result<Answer, String>;

impl Answer {
    /// # Errors
    /// If the records are too large.
    pub fn of(answer: &query::Answer) -> Reply {
        // RD and AD aren't compared: CoreDNS copies them from upstreams.
        let flags = answer.flags().into_iter().filter(|flag| !["rd", "ad"].contains(flag)).collect();
        let (records, mut size) = (answer.sections(), 0);
        let mut sections: [Vec<Entry>; 3] = Default::default();
        for (records, entries) in records.all().into_iter().zip(&mut sections) {
            for record in records {
                let entry = Entry::of(record);
                size += entry.owner.len() + entry.data.len();
                if size > MAX_SIZE {
                    return Err("the answer is too large to be compared".to_owned());
                }
                entries.push(entry);
            }
            entries.sort();
            entries.dedup();
        }
        Ok(Self { rcode: answer.rcode(), flags, sections })
    }

    #[must_use]
    pub fn is_nodata(&self) -> bool {
        self.rcode == ResponseCode::NoError && self.sections[0].is_empty()
    }

    #[must_use]
    pub fn is_authoritative(&self) -> bool {
        self.flags.contains(&"aa")
    }

    /// Returns the answer with only the records that `is_kept`.
    #[must_use]
    pub fn retaining(&self, is_kept: impl Fn(&Entry) -> bool) -> Self {
        let mut answer = self.clone();
        answer.sections.iter_mut().for_each(|section| section.retain(&is_kept));
        answer
    }

    #[must_use]
    pub fn shape(&self) -> Shape {
        let mut hasher = DefaultHasher::new();
        (u16::from(self.rcode), &self.flags).hash(&mut hasher);
        for section in &self.sections {
            section.len().hash(&mut hasher);
            section.iter().for_each(|entry| (&entry.owner, entry.rtype, &entry.data).hash(&mut hasher));
        }
        let ttls = self.sections.iter().flatten().map(|entry| entry.ttl).collect();
        Shape { content: hasher.finish(), ttls }
    }
}

impl Entry {
    fn of(record: &Record) -> Self {
        let mut data = query::data_text(record).to_ascii_lowercase();
        if record.record_type() == RecordType::SOA {
            let fields = data.split(' ').enumerate();
            data = fields
                .map(|(at, field)| if at == SERIAL { "SERIAL" } else { field })
                .collect::<Vec<_>>()
                .join(" ");
        }
        let owner = lower_name_text(&record.name).trim_end_matches('.').to_owned();
        Self { owner, rtype: record.record_type(), data, ttl: record.ttl }
    }

    fn line(&self) -> String {
        let Self { owner, rtype, data, ttl } = self;
        format!("{owner}. {ttl} IN {} {}", type_text(*rtype), sentence(data))
    }
}

/// Returns the lines about a question that is answered differently. Besides the answer section only sections that
/// differ are shown.
#[must_use]
pub fn describe(question: &str, servers: &[String; 2], replies: &[Reply; 2]) -> Vec<String> {
    let mut lines = vec![question.to_owned()];
    for (server, reply) in servers.iter().zip(replies) {
        let answer = match reply {
            Ok(answer) => answer,
            Err(why) => {
                lines.push(format!("  {server}: {}", sentence(why)));
                continue;
            }
        };
        let flags = if answer.flags.is_empty() { "none".to_owned() } else { answer.flags.join(" ") };
        lines.push(format!("  {server}: {}, flags {flags}", rcode_text(answer.rcode)));
        for (at, title) in ["", "authority: ", "additional: "].into_iter().enumerate() {
            let section = |reply: &Reply| reply.as_ref().ok().map(|answer| answer.sections[at].clone());
            if at > 0 && section(&replies[0]) == section(&replies[1]) {
                continue;
            }
            let entries = &answer.sections[at];
            lines
                .extend(entries.iter().take(MAX_RECORDS).map(|entry| format!("    {title}{}", entry.line())));
            if let Some(more @ 1..) = entries.len().checked_sub(MAX_RECORDS) {
                lines.push(format!("    {title}and {more} more"));
            }
        }
    }
    lines
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Makes an answer of `RCODE [FLAG...]`, and of records in sections that `;` separates, such as `a. 5 A 10.0.0.1`.
    pub fn answer(head: &str, sections: &[&[&str]]) -> Answer {
        let mut words = head.split(' ');
        let rcode = match words.next().unwrap() {
            "NOERROR" => ResponseCode::NoError,
            "NXDOMAIN" => ResponseCode::NXDomain,
            "SERVFAIL" => ResponseCode::ServFail,
            "REFUSED" => ResponseCode::Refused,
            other => panic!("{other}"),
        };
        let flags =
            words.map(|flag| ["aa", "ra"].into_iter().find(|known| *known == flag).unwrap()).collect();
        let entry = |text: &&str| {
            let fields: Vec<&str> = text.splitn(4, ' ').collect();
            let owner = fields[0].trim_end_matches('.').to_owned();
            let (ttl, rtype) = (fields[1].parse().unwrap(), fields[2].parse().unwrap());
            Entry { owner, rtype, data: fields[3].to_owned(), ttl }
        };
        let section = |at: usize| sections.get(at).map(|records| records.iter().map(entry).collect());
        Answer { rcode, flags, sections: [0, 1, 2].map(|at| section(at).unwrap_or_default()) }
    }

    #[test]
    fn differing_answers_are_shown_with_what_differs() {
        let servers = ["192.0.2.1:53", "192.0.2.2:53"].map(str::to_owned);
        let soa = "c.local. 5 SOA ns.dns.c.local. h.c.local. SERIAL 1";
        let a = answer("NOERROR aa", &[&["web.c.local. 5 A 10.0.0.1"], &[soa]]);
        let b = answer("NXDOMAIN", &[&[], &[soa], &["ns.c.local. 9 A 10.0.0.2"]]);
        assert_eq!(
            describe("web.c.local. A", &servers, &[Ok(a.clone()), Ok(b)]).join("\n"),
            "\
web.c.local. A
  192.0.2.1:53: NOERROR, flags aa
    web.c.local. 5 IN A 10.0.0.1
  192.0.2.2:53: NXDOMAIN, flags none
    additional: ns.c.local. 9 IN A 10.0.0.2"
        );
        let lines = describe("web.c.local. A", &servers, &[Ok(a), Err("no answer\u{1b}[2J".to_owned())]);
        assert_eq!(lines[4], "  192.0.2.2:53: no answer\\u{1b}[2J");
    }

    #[test]
    fn many_records_are_cut_with_their_number() {
        let servers = ["a", "b"].map(str::to_owned);
        let records: Vec<String> =
            (0..400).map(|i| format!("web.c.local. 5 TXT \"{i}{}\"", "x".repeat(900))).collect();
        let records: Vec<&str> = records.iter().map(String::as_str).collect();
        let (many, none) = (answer("NOERROR", &[&records]), answer("NOERROR", &[]));
        let lines = describe("web.c.local. TXT", &servers, &[Ok(many), Ok(none)]);
        assert_eq!((lines.len(), &*lines[12]), (14, "    and 390 more"));
        assert!(lines.iter().all(|line| line.len() < 700));
    }
}
