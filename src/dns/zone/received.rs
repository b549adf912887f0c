//! Reads a zone from the messages of a transfer (AXFR, RFC 5936). Nothing in them is trusted.

use std::fmt;

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::{DNSClass, Name, RecordType};
use hickory_proto::serialize::binary::{BinDecodable, BinDecoder};

use super::builder::{MAX_OCTETS, MAX_RECORDS, ZoneBuilder, is_same_soa};
use super::data::Zone;
use super::memory::{MAX_KEPT, MAX_RECEIVED, Share, ZoneMemory};
use super::reader::{FileRecord, MAX_TTL};
use super::record::is_valid;
use crate::dns::message::header::{HEADER, question};
use crate::dns::message::presentation::{class_text, name_text, rcode_text, type_text};
use crate::dns::message::wire_name::{self, RdataPart};
use crate::model::names;

/// The size of type, class, TTL and data length, in bytes (RFC 1035 section 4.1.3).
const FIXED: usize = 10;
/// The maximum size of all messages of a transfer, in bytes: the names of a zone may be repeated, and each record has
/// fixed fields.
const MAX_BYTES: usize = 2 * MAX_OCTETS;
/// The maximum number of records that are sent: some may be there twice.
const MAX_SENT: usize = 2 * MAX_RECORDS;

/// The reason why a zone isn't accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransferError {
    #[error("the answer is {}", rcode_text(*.0))]
    Rcode(ResponseCode),
    #[error("a message doesn't answer the question")]
    Mismatch,
    #[error("a message is cut, or has a malformed name")]
    Malformed,
    #[error("a message has no records")]
    Empty,
    #[error("the first record isn't the SOA record of the zone")]
    NoSoa,
    #[error("the last SOA record isn't the first one: the zone has changed during the transfer")]
    OtherSoa,
    #[error("records follow the last SOA record")]
    AfterEnd,
    #[error("{0}")]
    Record(RecordError),
    #[error("a zone is sent in at most {MAX_SENT} records, and {MAX_BYTES} bytes")]
    TooLarge,
    #[error("zones take at most {} MiB of memory while they are received", MAX_RECEIVED >> 20)]
    ReceivedMemory,
    #[error("the zones of all primary servers take at most {} MiB of memory", MAX_KEPT >> 20)]
    KeptMemory,
    #[error("the transfer ends before the last SOA record")]
    Incomplete,
    #[error("{0}")]
    Zone(String),
}

/// A record that can't be in the zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordError {
    owner: Box<[u8]>,
    rtype: RecordType,
    why: String,
}

impl fmt::Display for RecordError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let owner = Name::read(&mut BinDecoder::new(&self.owner)).map(|name| name_text(&name));
        write!(f, "{} {}: {}", owner.unwrap_or_default(), type_text(self.rtype), self.why)
    }
}

/// Reads the messages of a transfer, one after the other.
#[derive(Debug)]
pub struct TransferReader {
    origin: Box<[u8]>,
    builder: ZoneBuilder,
    memory: ZoneMemory,
    received: Share,
    /// The id of the query; without one that of the first message.
    id: Option<u16>,
    /// The data of the first record.
    soa: Option<Vec<u8>>,
    is_complete: bool,
    bytes: usize,
    records: usize,
    /// Buffers for a record.
    owner: Vec<u8>,
    data: Vec<u8>,
}

impl TransferReader {
    /// `origin` is in wire form, in lower case.
    #[must_use]
    pub fn new(origin: &[u8], id: Option<u16>, memory: ZoneMemory) -> Self {
        Self {
            origin: origin.into(),
            builder: ZoneBuilder::new(origin),
            received: memory.receive(),
            memory,
            id,
            soa: None,
            is_complete: false,
            bytes: 0,
            records: 0,
            owner: Vec::new(),
            data: Vec::new(),
        }
    }

    /// Reads a message. Returns whether it is the last one.
    ///
    /// # Errors
    /// If the message can't be a part of the transfer.
    pub fn read(&mut self, message: &[u8]) -> Result<bool, TransferError> {
        self.bytes += message.len();
        if self.bytes > MAX_BYTES {
            return Err(TransferError::TooLarge);
        }
        let is_first = self.soa.is_none();
        let asked = Question { origin: &self.origin, qtype: RecordType::AXFR, id: self.id };
        let Answers { id, start, count } = asked.answers(message, is_first)?;
        self.id = Some(id);
        if count == 0 {
            return Err(TransferError::Empty);
        }
        let mut at = start;
        for _ in 0..count {
            at = self.record(message, at)?;
        }
        if !self.received.resize(self.builder.bytes(), MAX_RECEIVED) {
            return Err(TransferError::ReceivedMemory);
        }
        Ok(self.is_complete)
    }

    /// Reads the record at `start`, and returns its end.
    fn record(&mut self, message: &[u8], start: usize) -> Result<usize, TransferError> {
        self.records += 1;
        if self.is_complete {
            return Err(TransferError::AfterEnd);
        }
        if self.records > MAX_SENT {
            return Err(TransferError::TooLarge);
        }
        let record = RawRecord::read(message, start, &mut self.owner, &mut self.data)?;
        let RawRecord { rtype, class, ttl, end } = record;
        let error = |why: String| {
            TransferError::Record(RecordError { owner: self.owner.as_slice().into(), rtype, why })
        };
        if class != DNSClass::IN {
            return Err(error(format!("its class is {}, and a zone has only class IN", class_text(class))));
        }
        if !is_valid(rtype, &self.data) {
            return Err(error("its octets are no data of this type".to_owned()));
        }
        let is_soa = rtype == RecordType::SOA && *self.owner == *self.origin;
        match &self.soa {
            None if !is_soa => return Err(TransferError::NoSoa),
            None => self.soa = Some(self.data.clone()),
            Some(first) if is_soa && !is_same_soa(first, &self.data) => return Err(TransferError::OtherSoa),
            Some(_) if is_soa => {
                self.is_complete = true;
                return Ok(end);
            }
            Some(_) => {}
        }
        let added = FileRecord { owner: &self.owner, rtype, ttl, data: &self.data };
        self.builder.add(&added).map_err(error)?;
        Ok(end)
    }

    /// Returns the zone.
    ///
    /// # Errors
    /// If it isn't complete, or there is no memory for it.
    pub fn finish(self) -> Result<Zone, TransferError> {
        if !self.is_complete {
            return Err(TransferError::Incomplete);
        }
        let memory = self.memory.keep(self.builder.bytes()).ok_or(TransferError::KeptMemory)?;
        let zone = self.builder.build().map_err(TransferError::Zone)?;
        Ok(Zone { memory: Some(memory), ..zone })
    }
}

/// Returns the serial in the answer to a query for the SOA record of a zone, whose origin is in wire form and in lower
/// case.
///
/// # Errors
/// If the message has no such record.
pub(in crate::dns) fn serial_in(message: &[u8], origin: &[u8], id: u16) -> Result<u32, TransferError> {
    let asked = Question { origin, qtype: RecordType::SOA, id: Some(id) };
    let Answers { start, count, .. } = asked.answers(message, true)?;
    let (mut owner, mut data, mut at) = (Vec::new(), Vec::new(), start);
    for _ in 0..count {
        let record = RawRecord::read(message, at, &mut owner, &mut data)?;
        if record.rtype == RecordType::SOA && record.class == DNSClass::IN && owner == origin {
            let numbers = is_valid(record.rtype, &data).then(|| data.last_chunk::<20>()).flatten();
            let serial = numbers.and_then(|numbers| numbers.first_chunk());
            return serial.map(|serial| u32::from_be_bytes(*serial)).ok_or(TransferError::Malformed);
        }
        at = record.end;
    }
    Err(TransferError::NoSoa)
}

/// Returns whether a serial is newer than another one (RFC 1982 section 3.2).
pub(in crate::dns) fn is_newer(serial: u32, than: u32) -> bool {
    (1..1 << 31).contains(&serial.wrapping_sub(than))
}

/// A question to a primary server.
struct Question<'a> {
    /// In wire form, in lower case.
    origin: &'a [u8],
    qtype: RecordType,
    id: Option<u16>,
}

/// The answer section of a message.
struct Answers {
    id: u16,
    start: usize,
    count: u16,
}

impl Question<'_> {
    /// Returns the answer section of a message that answers the question. Messages after the first one may lack the
    /// question (RFC 5936 section 2.2.1).
    fn answers(&self, message: &[u8], is_first: bool) -> Result<Answers, TransferError> {
        const QR: u8 = 0x80;
        const TC: u8 = 0x02;
        let header: &[u8; HEADER] = message.first_chunk().ok_or(TransferError::Malformed)?;
        let number = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
        let (id, questions) = (number(0), number(4));
        // QR is set, the opcode is 0.
        if self.id.is_some_and(|asked| asked != id) || header[2] & 0xf8 != QR {
            return Err(TransferError::Mismatch);
        }
        let rcode = header[3] & 0x0f;
        if rcode != 0 {
            return Err(TransferError::Rcode(ResponseCode::from(0, rcode)));
        }
        if header[2] & TC != 0 {
            return Err(TransferError::Malformed);
        }
        let mut start = HEADER;
        if questions != 0 || is_first {
            let found = question(message).ok_or(TransferError::Mismatch)?;
            let numbers = [self.qtype.into(), DNSClass::IN.into()].map(u16::to_be_bytes);
            let (name, rest) = found.split_at_checked(self.origin.len()).ok_or(TransferError::Mismatch)?;
            if !name.eq_ignore_ascii_case(self.origin) || rest != numbers.as_flattened() {
                return Err(TransferError::Mismatch);
            }
            start += found.len();
        }
        Ok(Answers { id, start, count: number(6) })
    }
}

/// What a record has beside its owner and its data.
struct RawRecord {
    rtype: RecordType,
    class: DNSClass,
    /// In seconds.
    ttl: u32,
    end: usize,
}

impl RawRecord {
    /// Reads the record at `start`. Its owner, in lower case, and its data are written to the buffers, without name
    /// compression.
    fn read(
        message: &[u8],
        start: usize,
        owner: &mut Vec<u8>,
        data: &mut Vec<u8>,
    ) -> Result<Self, TransferError> {
        const MALFORMED: TransferError = TransferError::Malformed;
        owner.clear();
        data.clear();
        let name = wire_name::read(message, start, |_| true, |label| names::push_label(label, owner));
        let name = name.map_err(|_| MALFORMED)?;
        owner.push(0);
        owner.make_ascii_lowercase();
        let fixed: &[u8; FIXED] = message[name.end..].first_chunk().ok_or(MALFORMED)?;
        let number = |at: usize| u16::from_be_bytes([fixed[at], fixed[at + 1]]);
        let (rtype, class, begin) = (number(0), number(2), name.end + FIXED);
        let end = begin + usize::from(number(8));
        message.get(begin..end).ok_or(MALFORMED)?;
        let write = |part: RdataPart<'_>| part.write(data);
        wire_name::read_rdata(message, rtype, begin..end, |_| true, write).map_err(|_| MALFORMED)?;
        let ttl = u32::from_be_bytes([fixed[4], fixed[5], fixed[6], fixed[7]]);
        // RFC 2181 section 8: with the highest bit, a TTL counts as 0.
        let ttl = if ttl > MAX_TTL { 0 } else { ttl };
        Ok(Self { rtype: rtype.into(), class: class.into(), ttl, end })
    }
}

#[cfg(test)]
mod tests;
