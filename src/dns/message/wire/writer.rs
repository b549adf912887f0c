//! Makes a message of records in wire form.

use hickory_proto::op::Metadata;
use hickory_proto::rr::{DNSClass, RecordType};

use super::{WireMessage, WireRecord};
use crate::dns::message::compress::{CompressingWriter, FIXED, fixed};
use crate::dns::message::header::HEADER;
use crate::dns::message::validity::Section;

/// A reply in the making. Its sections are written in their order.
pub(crate) struct ReplyWriter {
    writer: CompressingWriter,
    question_end: usize,
    records: Vec<WireRecord>,
    section_ends: [u16; 3],
    /// The size up to the end of each section without name compression, in bytes.
    uncompressed: [usize; 3],
    /// Whether a record of the answer section didn't fit.
    is_cut: bool,
}

impl ReplyWriter {
    /// Returns a reply to a question of class IN. `name` is in wire form.
    pub(crate) fn new(name: &[u8], qtype: RecordType) -> Self {
        let fixed = [u16::from(qtype), DNSClass::IN.into()].map(u16::to_be_bytes);
        let question = [name, fixed.as_flattened()].concat();
        let question_end = HEADER + question.len();
        Self {
            writer: CompressingWriter::new(&question),
            question_end,
            records: Vec::with_capacity(8),
            section_ends: [0; 3],
            uncompressed: [question_end; 3],
            is_cut: false,
        }
    }

    /// Adds a record of class IN. Owner and data have no compressed names. Returns false, and adds nothing, if the
    /// message would exceed 64 KiB.
    pub(crate) fn add(&mut self, section: Section, owner: &[u8], rtype: u16, ttl: u32, data: &[u8]) -> bool {
        if self.is_cut {
            return false;
        }
        let fixed = fixed(rtype, DNSClass::IN.into(), ttl);
        let added = self.writer.record(owner, fixed, data, u16::MAX.into()).and_then(WireRecord::of);
        self.is_cut |= added.is_none() && section == Section::Answer;
        let Some(record) = added else { return false };
        self.records.push(record);
        self.section_ends[section as usize..].iter_mut().for_each(|end| *end += 1);
        let length = owner.len() + FIXED + data.len();
        self.uncompressed[section as usize..].iter_mut().for_each(|size| *size += length);
        true
    }

    /// Returns the reply; `None` if its answer section exceeds 64 KiB.
    pub(crate) fn finish(self, metadata: &Metadata) -> Option<WireMessage> {
        if self.is_cut {
            return None;
        }
        Some(WireMessage {
            metadata: *metadata,
            extended_errors: Box::default(),
            bytes: self.writer.bytes.into(),
            records: self.records.into(),
            section_ends: self.section_ends,
            question_end: self.question_end.try_into().ok()?,
            uncompressed: self.uncompressed.map(|size| size.try_into().unwrap_or(u32::MAX)),
        })
    }
}
