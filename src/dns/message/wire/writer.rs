//! Makes a message of records in wire form.

use hickory_proto::op::Metadata;
use hickory_proto::rr::{DNSClass, RecordType};

use super::WireMessage;
use crate::dns::message::compress::CompressingWriter;
use crate::dns::message::validity::Section;

/// A reply in the making. Its sections are written in their order.
pub(crate) struct ReplyWriter {
    writer: CompressingWriter,
    question: Vec<u8>,
    counts: [usize; 3],
    /// Whether a record of the answer section didn't fit.
    is_cut: bool,
}

impl ReplyWriter {
    /// Returns a reply to a question of class IN. `name` is in wire form.
    pub(crate) fn new(name: &[u8], qtype: RecordType) -> Self {
        let fixed = [u16::from(qtype), DNSClass::IN.into()].map(u16::to_be_bytes);
        let question = [name, fixed.as_flattened()].concat();
        Self { writer: CompressingWriter::new(&question), question, counts: [0; 3], is_cut: false }
    }

    /// Adds a record of class IN. Owner and data have no compressed names. Returns false, and adds nothing, if the
    /// message would exceed 64 KiB.
    pub(crate) fn add(&mut self, section: Section, owner: &[u8], rtype: u16, ttl: u32, data: &[u8]) -> bool {
        if self.is_cut {
            return false;
        }
        let mut fixed = [0; 8];
        fixed[..2].copy_from_slice(&rtype.to_be_bytes());
        fixed[2..4].copy_from_slice(&u16::from(DNSClass::IN).to_be_bytes());
        fixed[4..].copy_from_slice(&ttl.to_be_bytes());
        let is_added = self.writer.record(owner, fixed, data, u16::MAX.into()).is_some();
        self.counts[section as usize] += usize::from(is_added);
        self.is_cut |= !is_added && section == Section::Answer;
        is_added
    }

    /// Returns the reply; `None` if its answer section exceeds 64 KiB.
    pub(crate) fn finish(self, metadata: &Metadata) -> Option<WireMessage> {
        let Self { writer, question, counts, is_cut } = self;
        let message = WireMessage::of_written(writer, counts, &question).filter(|_| !is_cut)?;
        Some(WireMessage { metadata: *metadata, ..message })
    }
}
