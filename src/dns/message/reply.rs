//! An answer on its way back through the plugins.

use std::time::Duration;

use hickory_proto::op::{Message, Metadata, Query};
use hickory_proto::rr::Record;
use hickory_proto::rr::rdata::opt::EdnsOption;

use crate::dns::message::ede::Ede;
use crate::dns::message::encode::wire_length;
use crate::dns::message::validity::Validity;

#[derive(Clone, Debug)]
pub struct Reply {
    pub metadata: Metadata,
    pub answers: Vec<Record>,
    pub authorities: Vec<Record>,
    /// The additional section, without OPT.
    pub additionals: Vec<Record>,
    /// The reason for an error or a degraded answer, for clients that use EDNS.
    pub ede: Option<Ede>,
    /// Further options for clients that use EDNS.
    pub options: Vec<EdnsOption>,
    pub plugin: &'static str,
    /// The time that the answer has spent in a cache.
    pub age: Duration,
    pub is_cacheable: bool,
    /// The conditions for reusing the answer without calling the plugins; `None` if it can't be reused.
    pub validity: Option<Box<Validity>>,
}

// === impl Reply ===

impl Reply {
    #[must_use]
    pub fn new(metadata: Metadata, plugin: &'static str) -> Self {
        Self {
            metadata,
            answers: Vec::new(),
            authorities: Vec::new(),
            additionals: Vec::new(),
            ede: None,
            options: Vec::new(),
            plugin,
            age: Duration::ZERO,
            is_cacheable: true,
            validity: None,
        }
    }

    #[must_use]
    pub fn from_message(message: Message, plugin: &'static str) -> Self {
        let Message { metadata, answers, authorities, additionals, .. } = message;
        Self { answers, authorities, additionals, ..Self::new(metadata, plugin) }
    }

    /// Returns the approximate size in memory, in bytes.
    #[must_use]
    pub fn weight(&self) -> usize {
        /// The memory of a record without its data, which is mostly stored inline.
        const RECORD: usize = 300;
        let records = self.answers.len() + self.authorities.len() + self.additionals.len();
        RECORD * (records + 1) + 2 * wire_length(self, &Query::new())
    }

    /// Returns the three sections, in the order of a message.
    #[must_use]
    pub fn sections(&self) -> [&Vec<Record>; 3] {
        [&self.answers, &self.authorities, &self.additionals]
    }

    pub fn sections_mut(&mut self) -> [&mut Vec<Record>; 3] {
        [&mut self.answers, &mut self.authorities, &mut self.additionals]
    }
}
