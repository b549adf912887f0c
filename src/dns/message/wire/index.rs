//! Validates and indexes a message.

use hickory_proto::op::{Header, Metadata, ResponseCode};
use hickory_proto::rr::RecordType;
use hickory_proto::rr::rdata::opt::EdnsOption;
use hickory_proto::serialize::binary::{BinDecodable, BinDecoder};
use smallvec::SmallVec;

use super::{
    Missing, OPT, Rewrite, SIG, TSIG, WireError, WireMessage, WireRecord, has_name, never_changes, rtype_at,
};
use crate::dns::message::alias::is_alias_type;
use crate::dns::message::compress::{FIXED, RecordOffset};
use crate::dns::message::ede::extended_errors;
use crate::dns::message::header::{HEADER, QUESTION_NAME};
use crate::dns::message::validity::Section;
use crate::dns::message::wire_name::{self, MalformedName, RdataForm};

/// The bit that makes a TTL invalid (RFC 2181 section 8).
const INVALID_TTL: u8 = 0x80;

impl WireMessage {
    /// Validates and indexes a message. `question` is its question in wire form, empty for a reply without a question.
    pub(super) fn index(message: &[u8], question: &[u8]) -> Result<(Self, Rewrite), WireError> {
        let Header { metadata, counts } =
            Header::read(&mut BinDecoder::new(message)).map_err(|_| WireError::Question)?;
        let name = question.get(..question.len().saturating_sub(4)).unwrap_or_default();
        let question_end = HEADER + question.len();
        let mut index = Index {
            message,
            name,
            asked: rtype_at(question, name.len()),
            question_end,
            metadata,
            extended_errors: Box::default(),
            opt_start: None,
            records: SmallVec::new(),
            length: question_end,
            rewrite: Rewrite::None,
            missing: Missing::Nothing,
        };
        let (mut section_ends, mut uncompressed) = ([0; 3], [0; 3]);
        let mut at = question_end;
        let counts = [counts.answers, counts.authorities, counts.additionals];
        for (section, count) in Section::ALL.into_iter().zip(counts) {
            for _ in 0..count {
                at = index.add(section, at)?;
            }
            section_ends[section as usize] =
                u16::try_from(index.records.len()).map_err(|_| WireError::Cut)?;
            uncompressed[section as usize] = u32::try_from(index.length).unwrap_or(u32::MAX);
        }
        if index.is_incomplete(section_ends[Section::Answer as usize].into()) {
            return Err(WireError::Incomplete);
        }
        index.end(section_ends, uncompressed)
    }
}

/// The records of a message that have been read so far.
struct Index<'a> {
    message: &'a [u8],
    /// The question's name, and its type.
    name: &'a [u8],
    asked: Option<u16>,
    question_end: usize,
    metadata: Metadata,
    extended_errors: Box<[EdnsOption]>,
    opt_start: Option<usize>,
    records: SmallVec<[WireRecord; 16]>,
    /// The size without name compression.
    length: usize,
    rewrite: Rewrite,
    /// What is missing because a record was removed.
    missing: Missing,
}

impl Index<'_> {
    /// Reads the record at `start`, and returns its end.
    fn add(&mut self, section: Section, start: usize) -> Result<usize, WireError> {
        let (message, question_end) = (self.message, self.question_end);
        let is_stable = |range| never_changes(message, &self.records, question_end, range);
        let owner = wire_name::read(message, start, is_stable, |_| {});
        let owner_end = match owner {
            Ok(owner) => owner.end,
            Err(_) => wire_name::end(message, start).ok_or(WireError::Owner)?,
        };
        let fixed = message.get(owner_end..owner_end + FIXED).ok_or(WireError::Cut)?;
        let rtype = u16::from_be_bytes([fixed[0], fixed[1]]);
        let data = owner_end + FIXED;
        let end = data + usize::from(u16::from_be_bytes([fixed[8], fixed[9]]));
        let rdata = message.get(data..end).ok_or(WireError::Cut)?;
        match rtype {
            OPT if self.opt_start.is_some() || !owner.is_ok_and(|owner| owner.length == 1) => {
                return Err(WireError::Opt);
            }
            OPT => {
                let rcode = &mut self.metadata.response_code;
                *rcode = ResponseCode::from(fixed[4], rcode.low());
                self.extended_errors = extended_errors(rdata).into();
                self.opt_start = Some(start);
                return Ok(end);
            }
            TSIG => return Err(WireError::Signed),
            // SIG(0) covers no type (RFC 2931 section 3).
            SIG if rdata.starts_with(&[0, 0]) => return Err(WireError::Signed),
            _ => {}
        }
        let Ok(owner) = owner else {
            self.leave_out(section, rtype);
            return Ok(end);
        };
        let record = WireRecord::of(RecordOffset { start, ttl: owner.end + 4, end });
        self.records.push(record.ok_or(WireError::Cut)?);
        let is_stable = |range| never_changes(message, &self.records, question_end, range);
        let form = match wire_name::read_rdata(message, rtype, data..end, is_stable, |_| {}) {
            Ok(form) => form,
            // A pointer in malformed data would lead elsewhere after a rewrite, or into a TTL.
            Err(MalformedName { has_pointer: true }) => {
                self.records.pop();
                self.leave_out(section, rtype);
                return Ok(end);
            }
            Err(_) => RdataForm { length: rdata.len(), has_forbidden_pointer: false },
        };
        self.length += owner.length + FIXED + form.length;
        if form.has_forbidden_pointer {
            self.rewrite = Rewrite::Necessary;
        }
        // The root is shorter than a pointer to it.
        if owner.length == self.name.len()
            && owner.length > 1
            && message[start..].first_chunk() != Some(&QUESTION_NAME)
            && has_name(message, start, self.name)
        {
            self.rewrite = self.rewrite.max(Rewrite::Spelling);
        }
        Ok(end)
    }

    /// Notes that the message has to be written anew without a record.
    fn leave_out(&mut self, section: Section, rtype: u16) {
        let missing = match RecordType::from(rtype) {
            _ if section == Section::Additional => Missing::Nothing,
            _ if section == Section::Authority => Missing::Other,
            rtype if is_alias_type(rtype) => Missing::Alias,
            _ if Some(rtype) == self.asked => Missing::Asked,
            _ => Missing::Other,
        };
        (self.rewrite, self.missing) = (Rewrite::Necessary, self.missing.max(missing));
    }

    /// Returns whether the message without the removed records could say that the name has no data (RFC 2308 section 2.2).
    fn is_incomplete(&self, answers: usize) -> bool {
        let answers = &self.records[..answers];
        let rtype = |record: &WireRecord| rtype_at(self.message, record.fixed_start());
        let is_alias = |record| rtype(record).is_some_and(|rtype| is_alias_type(rtype.into()));
        match self.missing {
            Missing::Nothing => false,
            Missing::Other => answers.is_empty(),
            Missing::Asked => {
                let is_chain = answers.iter().any(is_alias);
                let is_at_end =
                    |record: &WireRecord| is_chain || has_name(self.message, record.start.into(), self.name);
                !answers.iter().any(|record| rtype(record) == self.asked && is_at_end(record))
            }
            Missing::Alias => true,
        }
    }

    fn end(
        mut self,
        section_ends: [u16; 3],
        uncompressed: [u32; 3],
    ) -> Result<(WireMessage, Rewrite), WireError> {
        // Octets after the last record aren't part of the message.
        let end = self.records.last().map_or(self.question_end, |record| usize::from(record.end));
        if self.opt_start.is_some_and(|start| start < end) {
            self.rewrite = Rewrite::Necessary;
        }
        let mut bytes = SmallVec::from_slice(&self.message[..end]);
        for ttl in self.records.iter().map(|record| usize::from(record.ttl)) {
            if bytes[ttl] & INVALID_TTL != 0 {
                bytes[ttl..ttl + 4].fill(0);
            }
        }
        let indexed = WireMessage {
            metadata: self.metadata,
            extended_errors: self.extended_errors,
            bytes,
            records: self.records.as_slice().into(),
            section_ends,
            question_end: u16::try_from(self.question_end).map_err(|_| WireError::Question)?,
            uncompressed,
        };
        Ok((indexed, self.rewrite))
    }
}
