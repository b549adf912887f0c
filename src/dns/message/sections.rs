//! The records of a message, decoded.

use hickory_proto::rr::Record;

use super::validity::Section;

/// Decoded records, by section.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sections {
    pub answers: Vec<Record>,
    pub authorities: Vec<Record>,
    /// The additional section, without OPT.
    pub additionals: Vec<Record>,
}

impl Sections {
    /// Returns the three sections, in the order of a message.
    #[must_use]
    pub fn all(&self) -> [&Vec<Record>; 3] {
        [&self.answers, &self.authorities, &self.additionals]
    }

    /// Returns the three sections for changes, in the order of a message.
    pub fn all_mut(&mut self) -> [&mut Vec<Record>; 3] {
        [&mut self.answers, &mut self.authorities, &mut self.additionals]
    }

    /// Returns the numbers of records in the three sections.
    #[must_use]
    pub fn counts(&self) -> [usize; 3] {
        self.all().map(Vec::len)
    }

    pub(super) fn of(&self, section: Section) -> &[Record] {
        self.all()[section as usize]
    }
}
