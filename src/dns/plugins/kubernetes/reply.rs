//! Makes replies of what the cluster's objects say.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::future::join_all;
use hickory_proto::op::{Metadata, Query, ResponseCode};
use hickory_proto::rr::{Name, RecordType};
use hickory_proto::serialize::binary::{BinDecodable, BinDecoder};

use crate::dns::chain::plugin::{PluginError, PluginResult};
use crate::dns::chain::request::Request;
use crate::dns::chain::server::Server;
use crate::dns::chain::zone_state::ZoneRecord;
use crate::dns::message::ede::Ede;
use crate::dns::message::records::Records;
use crate::dns::message::reply::Reply;
use crate::dns::message::validity::{Section, Serial, TtlCountdown, Validity};
use crate::dns::message::wire::WireMessage;
use crate::dns::message::wire::writer::ReplyWriter;
use crate::dns::plugins::ttl_limits::TtlRange;
use crate::store::cluster::answer::{Answer, Outcome, Record};

/// The timers of the SOA record, in seconds: refresh, retry and expire.
const SOA_TIMERS: [u32; 3] = [7200, 1800, 86400];

/// How replies about names in a zone are made.
pub(in crate::dns::plugins) struct ZoneReply<'a> {
    pub(in crate::dns::plugins) plugin: &'static str,
    /// The zone, in wire form.
    pub(in crate::dns::plugins) origin: &'a [u8],
    /// The labels of the name server and the mailbox in the SOA record, in wire form without the zone.
    pub(in crate::dns::plugins) server: &'a [u8],
    pub(in crate::dns::plugins) mailbox: &'a [u8],
    /// The TTL of the SOA record, and its time for names that don't exist, in seconds.
    pub(in crate::dns::plugins) soa_ttl: u32,
    pub(in crate::dns::plugins) absence: u32,
    /// The TTL of CNAME records, in seconds.
    pub(in crate::dns::plugins) alias_ttl: u32,
    /// The bounds of the TTLs of records, and of their absence.
    pub(in crate::dns::plugins) limits: Option<[TtlRange; 2]>,
    pub(in crate::dns::plugins) serial: &'a Arc<AtomicU64>,
}

/// The records of a reply.
struct Parts<'a> {
    answers: &'a [Record],
    /// The section of the SOA record, if there is one, and its TTL and data.
    soa: Option<(Section, u32, Vec<u8>)>,
}

impl ZoneReply<'_> {
    /// Makes the reply for a name of which it isn't known yet whether it exists.
    pub(super) fn unknown(&self, request: &Request) -> Reply {
        let mut reply = request.reply(self.plugin);
        reply.is_cacheable = false;
        reply.metadata.response_code = ResponseCode::ServFail;
        reply.ede = Some(Ede::CLUSTER_NOT_READY);
        reply
    }

    /// Makes the reply to a question for a name in wire form.
    pub(super) async fn reply(
        &self,
        request: &Request,
        name: &[u8],
        Answer { outcome, flags, names, .. }: Answer,
    ) -> PluginResult {
        let mut reply = request.reply(self.plugin);
        reply.is_cacheable = false;
        reply.metadata.authoritative = true;
        let existing = |ttl| self.existing(ttl);
        let soa = |section| {
            let ttl = match (section, self.limits) {
                // RFC 2308 section 5: the lower one of both counts.
                (Section::Authority, Some([_, denial])) => denial.clamp(self.soa_ttl.min(self.absence)),
                _ => existing(self.soa_ttl),
            };
            Some((section, ttl, self.soa()))
        };
        let alias;
        let parts = match &outcome {
            Outcome::Absent => {
                reply.metadata.response_code = ResponseCode::NXDomain;
                Parts { answers: &[], soa: soa(Section::Authority) }
            }
            Outcome::Empty => Parts { answers: &[], soa: soa(Section::Authority) },
            Outcome::Soa => Parts { answers: &[], soa: soa(Section::Answer) },
            Outcome::Records { records, is_cut, .. } => {
                reply.metadata.truncation = *is_cut;
                Parts { answers: records, soa: None }
            }
            Outcome::Alias(target) => {
                alias = [Record {
                    is_additional: false,
                    owner: name.into(),
                    rtype: RecordType::CNAME.into(),
                    ttl: self.alias_ttl,
                    data: (&**target).into(),
                }];
                Parts { answers: &alias, soa: None }
            }
        };
        let serial = parts.soa.as_ref().map(|(section, ..)| Serial {
            section: *section,
            record: 0,
            current: Arc::clone(self.serial),
        });
        let qtype = request.query.query_type();
        let message = parts.message(&mut reply.metadata, name, self.origin, qtype, existing);
        let message = message.ok_or_else(|| PluginError::servfail("the answer exceeds 64 KiB"))?;
        reply.records = Records::of_wire(Arc::new(message), request.query.name());
        reply.validity = Some(Box::new(Validity { zones: flags, names, serial, ..Validity::default() }));
        match (&outcome, request.query.query_type()) {
            (Outcome::Alias(_), RecordType::CNAME | RecordType::ANY) => {}
            (Outcome::Alias(target), _) => add_target(&mut reply, request, target).await,
            (Outcome::Records { hosts, .. }, _) if !hosts.is_empty() => {
                add_addresses(&mut reply, request, hosts).await;
            }
            _ => {}
        }
        Ok(reply)
    }

    /// Returns the TTL of a record that exists.
    fn existing(&self, ttl: u32) -> u32 {
        self.limits.map_or(ttl, |[success, _]| success.clamp(ttl))
    }

    /// Returns the records of an answer for a name, for a zone transfer; of the answer's further records, only the records
    /// of names that `is_glue` wants.
    pub(super) fn records(
        &self,
        name: &[u8],
        outcome: &Outcome,
        is_glue: impl Fn(&[u8]) -> bool,
    ) -> Vec<ZoneRecord> {
        let record = |owner: &[u8], rtype: RecordType, ttl: u32, data: &[u8]| ZoneRecord {
            owner: owner.into(),
            rtype: rtype.into(),
            ttl: self.existing(ttl),
            data: data.into(),
        };
        match outcome {
            Outcome::Absent | Outcome::Empty => Vec::new(),
            Outcome::Soa => vec![record(self.origin, RecordType::SOA, self.soa_ttl, &self.soa())],
            Outcome::Alias(target) => vec![record(name, RecordType::CNAME, self.alias_ttl, target)],
            Outcome::Records { records, .. } => {
                let own = |one: &&Record| !one.is_additional || is_glue(&one.owner);
                let records = records.iter().filter(own);
                records.map(|one| record(&one.owner, one.rtype.into(), one.ttl, &one.data)).collect()
            }
        }
    }

    /// Returns the NS record of a zone whose name server has no address, as where only clients on the same machine reach it:
    /// questions get none then, but a zone without one is refused by secondary servers.
    pub(super) fn name_server(&self) -> ZoneRecord {
        let data = [self.server, self.origin].concat().into();
        ZoneRecord { owner: self.origin.into(), rtype: RecordType::NS.into(), ttl: self.soa_ttl, data }
    }

    /// Returns the data of the SOA record.
    fn soa(&self) -> Vec<u8> {
        let mut data = [self.server, self.origin, self.mailbox, self.origin].concat();
        let serial = self.serial.load(Ordering::Relaxed).to_be_bytes();
        data.extend_from_slice(&serial[4..]);
        for timer in SOA_TIMERS.into_iter().chain([self.absence]) {
            data.extend_from_slice(&timer.to_be_bytes());
        }
        data
    }
}

impl Parts<'_> {
    /// Returns the message, with the TTLs of answers and additional records by `ttl`. Answers that don't fit into 64 KiB
    /// are left out, and TC is set.
    fn message(
        &self,
        metadata: &mut Metadata,
        name: &[u8],
        zone: &[u8],
        qtype: RecordType,
        ttl: impl Fn(u32) -> u32,
    ) -> Option<WireMessage> {
        let in_section = |is_additional| {
            let records = self.answers.iter().filter(move |record| record.is_additional == is_additional);
            records.collect::<Vec<_>>()
        };
        let (answers, additionals) = (in_section(false), in_section(true));
        let mut number = answers.len();
        loop {
            let mut writer = ReplyWriter::new(name, qtype);
            for record in &answers[..number] {
                writer.add(Section::Answer, &record.owner, record.rtype, ttl(record.ttl), &record.data);
            }
            if let Some((section, soa_ttl, data)) = &self.soa {
                writer.add(*section, zone, RecordType::SOA.into(), *soa_ttl, data);
            }
            for record in &additionals {
                writer.add(Section::Additional, &record.owner, record.rtype, ttl(record.ttl), &record.data);
            }
            match writer.finish(metadata) {
                None if number > 0 => {
                    number -= number.div_ceil(8);
                    metadata.truncation = true;
                }
                message => return message,
            }
        }
    }
}

/// Adds the answer for an alias's target, in wire form. The rcode is that of the last look-up (RFC 6604 section 3).
async fn add_target(reply: &mut Reply, request: &Request, target: &[u8]) {
    let Some(mut found) = Server::look_up_wire_alias(request, target).await else {
        reply.metadata.response_code = ResponseCode::ServFail;
        reply.ede = Some(Ede::LOOP);
        reply.validity = None;
        return;
    };
    if found.metadata.response_code == ResponseCode::ServFail {
        // Each look-up of a loop has its records.
        let known = &reply.records.answers;
        found.records.answers.retain(|record| !known.contains(record));
    }
    let [answers, authorities, _] = found.records.counts();
    let places = vec![(Section::Answer, 1..1 + answers), (Section::Authority, 0..authorities)];
    add_dependencies(reply, &mut found, places);
    reply.metadata.truncation |= found.metadata.truncation;
    reply.ede = reply.ede.or(found.ede);
    let rcode = found.metadata.response_code;
    reply.metadata.response_code = match rcode {
        ResponseCode::NoError | ResponseCode::NXDomain => rcode,
        _ => ResponseCode::ServFail,
    };
    let is_denial = rcode == ResponseCode::NoError && found.records.answers.is_empty();
    if is_denial || rcode == ResponseCode::NXDomain {
        reply.records.authorities = std::mem::take(&mut found.records.authorities);
    }
    reply.records.answers.append(&mut found.records.answers);
}

/// Adds the addresses of the targets of SRV records that are outside of the cluster, given in wire form; of the first eight,
/// as a question has at most 16 look-ups.
async fn add_addresses(reply: &mut Reply, request: &Request, hosts: &[Box<[u8]>]) {
    let names = hosts.iter().filter_map(|host| Name::read(&mut BinDecoder::new(host)).ok());
    let queries = names
        .flat_map(|name| [RecordType::A, RecordType::AAAA].map(|qtype| Query::query(name.clone(), qtype)));
    let all = join_all(queries.map(|query| Server::look_up_alias(request, query))).await;
    for found in all {
        let Some(mut found) = found else {
            reply.validity = None;
            continue;
        };
        let first = reply.records.additionals.len();
        for record in std::mem::take(&mut found.records.answers) {
            if !reply.records.additionals.contains(&record) {
                reply.records.additionals.push(record);
            }
        }
        let added = first..reply.records.additionals.len();
        add_dependencies(reply, &mut found, vec![(Section::Additional, added)]);
    }
}

/// Adds what another answer rests on, whose records are at these places of the reply. An answer that can't be reused makes
/// the whole one so.
fn add_dependencies(reply: &mut Reply, found: &mut Reply, places: Vec<(Section, Range<usize>)>) {
    let (Some(mut validity), Some(other)) = (reply.validity.take(), found.validity.take()) else { return };
    let Some(countdown) = other.common_countdown() else { return };
    validity.add_dependencies(&other);
    let is_authority = |section: Section| section == Section::Authority;
    let has_authorities = places.iter().any(|(section, _)| is_authority(*section));
    validity.serial = other.serial.filter(|serial| has_authorities && is_authority(serial.section));
    if let Some((since, ttl)) = countdown {
        let of = |(section, records)| TtlCountdown { section, records, since, ttl, cap: u32::MAX };
        validity.countdown.extend(places.into_iter().map(of));
    }
    reply.validity = Some(validity);
}
