//! The records of a reply, in wire form as an upstream has sent them, or decoded.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, OnceLock};

use hickory_proto::op::{Metadata, Query};
use hickory_proto::rr::rdata::opt::EdnsOption;
use hickory_proto::rr::{Name, RecordType};

use super::rrsig::ValidityPeriod;
use super::sections::Sections;
use super::validity::Section;
use super::wire::WireMessage;

/// The records of a reply. Reading a section (`Deref`) decodes records that are in wire form; a mutable borrow
/// (`DerefMut`) decodes them, too, and drops the wire form.
#[derive(Clone, Debug, Default)]
pub struct Records {
    wire: Option<WireRecords>,
    sections: OnceLock<Sections>,
}

/// Records in wire form, with the changes that need no decoding.
#[derive(Clone, Debug)]
pub(super) struct WireRecords {
    pub(super) message: Arc<WireMessage>,
    /// The TTL that replaces all TTLs, in seconds; `None` keeps the message's TTLs.
    pub(super) ttl: Option<u32>,
    /// The last section that is part of the reply.
    pub(super) last: Section,
    /// The client's spelling of the question's name, if it differs from the spelling in the message.
    spelling: Option<Box<Name>>,
}

// === impl WireRecords ===

impl WireRecords {
    fn decode(&self) -> Sections {
        let mut sections = self.message.decode_until(self.spelling.as_deref(), self.last);
        if let Some(ttl) = self.ttl {
            sections.all_mut().into_iter().flatten().for_each(|record| record.ttl = ttl);
        }
        sections
    }

    /// Returns the message without the sections that aren't part of the reply.
    fn message_until_last(&self) -> Arc<WireMessage> {
        let has_more =
            Section::ALL.iter().any(|section| *section > self.last && self.message.count(*section) > 0);
        if has_more { Arc::new(self.message.until(self.last)) } else { Arc::clone(&self.message) }
    }

    /// Returns the number of records in a section, as far as it is part of the reply.
    pub(super) fn count(&self, section: Section) -> usize {
        if section > self.last { 0 } else { self.message.count(section) }
    }
}

// === impl Records ===

impl From<Sections> for Records {
    fn from(sections: Sections) -> Self {
        Self { wire: None, sections: sections.into() }
    }
}

impl Deref for Records {
    type Target = Sections;

    fn deref(&self) -> &Sections {
        self.sections.get_or_init(|| self.wire.as_ref().map(WireRecords::decode).unwrap_or_default())
    }
}

impl DerefMut for Records {
    fn deref_mut(&mut self) -> &mut Sections {
        let decoded = || self.wire.take().map(|wire| wire.decode()).unwrap_or_default();
        let sections = self.sections.take().unwrap_or_else(decoded);
        self.wire = None;
        self.sections = sections.into();
        match self.sections.get_mut() {
            Some(sections) => sections,
            None => unreachable!("the sections are set above"),
        }
    }
}

impl Records {
    /// Returns the records of a message, for a client that asks for `name`, which differs from the name in the
    /// message's question at most in case.
    #[must_use]
    pub fn of_wire(message: Arc<WireMessage>, name: &Name) -> Self {
        let spelling = (!message.is_spelled(name)).then(|| Box::new(name.clone()));
        let wire = WireRecords { message, ttl: None, last: Section::Additional, spelling };
        Self { wire: Some(wire), sections: OnceLock::new() }
    }

    /// Returns the records in wire form, if they are the reply to this question, and whether it has the same spelling
    /// there.
    pub(super) fn wire_for(&self, question: &Query) -> Option<(&WireRecords, bool)> {
        self.wire.as_ref().and_then(|wire| Some((wire, wire.message.spells(question)?)))
    }

    /// Returns whether the records are in wire form, as the reply to this question.
    #[must_use]
    pub fn is_wire_for(&self, question: &Query) -> bool {
        self.wire_for(question).is_some()
    }

    /// Returns the records as a message in wire form, shared if they are unchanged; `None` if they don't fit into 64
    /// KiB, or can't be encoded.
    #[must_use]
    pub fn to_wire(
        &self,
        metadata: &Metadata,
        question: &Query,
        extended_errors: &[EdnsOption],
    ) -> Option<Arc<WireMessage>> {
        if let Some((wire, _)) = self.wire_for(question)
            && wire.ttl.is_none()
            && *wire.message.extended_errors == *extended_errors
        {
            return Some(wire.message_until_last());
        }
        WireMessage::of_sections(metadata, self, question, extended_errors).map(Arc::new)
    }

    /// Returns whether the reply is in wire form, and exceeds this number of bytes even without authority and
    /// additional section.
    #[must_use]
    pub fn has_longer_answer_than(&self, bytes: u16) -> bool {
        self.wire.as_ref().is_some_and(|wire| wire.message.length(Section::Answer) > usize::from(bytes))
    }

    /// Returns the size without name compression in bytes, if the records are in wire form.
    pub(super) fn uncompressed_wire_length(&self) -> Option<usize> {
        self.wire.as_ref().map(|wire| wire.message.uncompressed_length(wire.last))
    }

    /// Returns the number of records in a section.
    #[must_use]
    pub fn count(&self, section: Section) -> usize {
        self.wire.as_ref().map_or_else(|| self.of(section).len(), |wire| wire.count(section))
    }

    /// Returns the numbers of records in the three sections.
    #[must_use]
    pub fn counts(&self) -> [usize; 3] {
        Section::ALL.map(|section| self.count(section))
    }

    /// Returns whether a section has a record of a type.
    #[must_use]
    pub fn has(&self, section: Section, rtype: RecordType) -> bool {
        match &self.wire {
            Some(wire) => section <= wire.last && wire.message.has(section, rtype),
            None => self.of(section).iter().any(|record| record.record_type() == rtype),
        }
    }

    /// Returns whether a signature is cut, or isn't valid at `now` (RFC 4035 section 5.3.1).
    pub(crate) fn has_invalid_signature(&self, now: u32) -> bool {
        match &self.wire {
            Some(wire) => wire.message.has_invalid_signature(wire.last, now),
            None => {
                let is_valid = |record| ValidityPeriod::of(record).is_some_and(|period| period.holds(now));
                let mut all = self.all().into_iter().flatten();
                all.any(|record| record.record_type() == RecordType::RRSIG && !is_valid(record))
            }
        }
    }

    /// Sets the TTL of all records, in seconds.
    pub fn set_ttl(&mut self, ttl: u32) {
        match &mut self.wire {
            Some(wire) => {
                wire.ttl = Some(ttl);
                self.sections = OnceLock::new();
            }
            None => self.all_mut().into_iter().flatten().for_each(|record| record.ttl = ttl),
        }
    }

    /// Removes the authority and the additional section.
    pub fn remove_authority_and_additional(&mut self) {
        match &mut self.wire {
            Some(wire) => {
                wire.last = Section::Answer;
                self.sections = OnceLock::new();
            }
            None => {
                self.authorities.clear();
                self.additionals.clear();
            }
        }
    }

    /// Shuffles the addresses of a reply in wire form, and returns their number. Returns 0 if the reply has neither
    /// addresses nor MX records.
    ///
    /// Returns `None`, and changes nothing, if the reply isn't in wire form. For a reply with addresses or MX records,
    /// returns `None`, too, if the answer section isn't CNAME records followed by addresses of one name and one family,
    /// if the authority section has addresses, or if the additional section isn't empty.
    pub fn shuffle_wire(&mut self) -> Option<usize> {
        let wire = self.wire.as_mut()?;
        let message = wire.message_until_last();
        if !message.has_addresses_or_exchangers() {
            return Some(0);
        }
        let (shuffled, number) = message.with_shuffled_addresses()?;
        (wire.message, wire.last) = (Arc::new(shuffled), Section::Additional);
        self.sections = OnceLock::new();
        Some(number)
    }

    /// Returns the approximate size in memory, in bytes.
    #[must_use]
    pub fn memory_size(&self) -> usize {
        /// The size of a decoded record in bytes. Most record data is stored inline.
        const RECORD: usize = 400;
        let wire = self.wire.as_ref().map_or(0, |wire| wire.message.memory_size());
        let decoded: usize = self.sections.get().map_or(0, |sections| sections.counts().iter().sum());
        // The data of decoded records that isn't stored inline has at most the uncompressed size.
        let with_data = self.wire.as_ref().filter(|_| decoded > 0);
        wire + RECORD * decoded + with_data.map_or(0, |wire| wire.message.uncompressed_length(wire.last))
    }
}
