//! Decodes the records of a message in wire form.

use std::borrow::Cow;

use hickory_proto::rr::rdata::{A, AAAA, NULL};
use hickory_proto::rr::{DNSClass, Name, RData, Record, RecordType};
use hickory_proto::serialize::binary::{BinDecodable, BinDecoder, Restrict};

use super::{WireMessage, WireRecord};
use crate::dns::message::encode::typed::write_data;
use crate::dns::message::header::{HEADER, QUESTION_NAME};
use crate::dns::message::sections::Sections;
use crate::dns::message::validity::Section;

impl WireMessage {
    /// Decodes the records. With `spelling`, the question's name gets this spelling, and with it the names that are
    /// compressed by a pointer into the question.
    ///
    /// A record of a type that no plugin reads, or whose data hickory-proto can't represent exactly, becomes
    /// `RData::Unknown` with the same data, in which compressed names are written in full.
    #[must_use]
    pub fn decode(&self, spelling: Option<&Name>) -> Sections {
        self.decode_until(spelling, Section::Additional)
    }

    /// Decodes the sections up to `last`, as [`Self::decode`] does.
    pub(crate) fn decode_until(&self, spelling: Option<&Name>, last: Section) -> Sections {
        let mut bytes = Cow::Borrowed(&*self.bytes);
        if let Some(name) = spelling {
            spell(&mut bytes.to_mut()[HEADER..usize::from(self.question_end) - 4], name);
        }
        let question_name = name_at(&bytes, HEADER);
        let records = |section| {
            if section > last {
                return Vec::new();
            }
            let decode = |record: &WireRecord| {
                let owner = match bytes[usize::from(record.start)..].first_chunk() {
                    Some(&QUESTION_NAME) => question_name.clone(),
                    _ => name_at(&bytes, record.start.into()),
                };
                Some(self.decode_record(&bytes, record, owner?))
            };
            // No record is dropped: hickory-proto reads all names that the validation accepts.
            self.records_in(section).iter().filter_map(decode).collect()
        };
        Sections {
            answers: records(Section::Answer),
            authorities: records(Section::Authority),
            additionals: records(Section::Additional),
        }
    }

    fn decode_record(&self, bytes: &[u8], record: &WireRecord, owner: Name) -> Record {
        let rtype = self.rtype(record);
        let class = DNSClass::from(u16::from_be_bytes(self.octets_at(record.fixed_start() + 2)));
        let expanded = self.expand(bytes, record);
        let opaque = |octets: Vec<u8>| {
            // `NULL::with` panics without octets.
            let rdata = if octets.is_empty() { NULL::new() } else { NULL::with(octets) };
            RData::Unknown { code: rtype, rdata }
        };
        let data = decode_data(rtype, &expanded).unwrap_or_else(|| opaque(expanded));
        let mut decoded =
            Record::from_rdata(owner, u32::from_be_bytes(self.octets_at(record.ttl.into())), data);
        decoded.dns_class = class;
        decoded
    }
}

/// Writes the labels of a name over an equal name in wire form.
fn spell(wire: &mut [u8], name: &Name) {
    let mut at = 1;
    for label in name {
        if let Some(own) = wire.get_mut(at..at + label.len()) {
            own.copy_from_slice(label);
        }
        at += 1 + label.len();
    }
}

fn name_at(bytes: &[u8], at: usize) -> Option<Name> {
    Name::read(&mut BinDecoder::new(bytes).clone(u16::try_from(at).ok()?)).ok()
}

/// Returns the data of a record of one of the types that plugins look into, if hickory-proto represents it exactly.
fn decode_data(rtype: RecordType, rdata: &[u8]) -> Option<RData> {
    // All types of `is_undecoded` in `chase.rs` except DNAME belong here: *lb_linker* leaves out their records that
    // aren't decoded.
    match rtype {
        RecordType::A => return rdata.try_into().ok().map(|octets: [u8; 4]| RData::A(A(octets.into()))),
        RecordType::AAAA => {
            return rdata.try_into().ok().map(|octets: [u8; 16]| RData::AAAA(AAAA(octets.into())));
        }
        RecordType::CNAME
        | RecordType::NS
        | RecordType::PTR
        | RecordType::MX
        | RecordType::SOA
        | RecordType::SRV
        | RecordType::NAPTR
        | RecordType::SVCB
        | RecordType::HTTPS => {}
        _ => return None,
    }
    let length = u16::try_from(rdata.len()).ok()?;
    let data = RData::read(&mut BinDecoder::new(rdata), rtype, Restrict::new(length)).ok()?;
    let mut encoded = Vec::with_capacity(rdata.len());
    write_data(&data, &mut encoded).ok()?;
    (encoded == rdata).then_some(data)
}
