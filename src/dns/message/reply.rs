//! An answer on its way back through the plugins.

use std::time::Duration;

use hickory_proto::op::{Message, Metadata, Query};
use hickory_proto::rr::Record;
use hickory_proto::rr::rdata::opt::EdnsOption;

use crate::dns::message::ede::Ede;
use crate::dns::message::encode::wire_length;
use crate::dns::message::validity::Validity;

/// An answer on its way back.
#[derive(Clone, Debug)]
pub struct Reply {
    /// Id, flags and response code.
    pub metadata: Metadata,
    /// The answer section.
    pub answers: Vec<Record>,
    /// The authority section.
    pub authorities: Vec<Record>,
    /// The additional section, without OPT.
    pub additionals: Vec<Record>,
    /// Why there is no better answer, for clients that speak EDNS.
    pub ede: Option<Ede>,
    /// What else clients that speak EDNS are told.
    pub options: Vec<EdnsOption>,
    /// The plugin that the answer is of.
    pub plugin: &'static str,
    /// How long it has been kept.
    pub age: Duration,
    /// Whether it may be kept.
    pub is_cacheable: bool,
    /// What has to hold for it to be given again without asking the plugins; nothing if they are to be asked.
    pub repeat: Option<Box<Validity>>,
}

// === impl Reply ===

impl Reply {
    /// Returns an answer without records.
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
            repeat: None,
        }
    }

    /// Returns the answer that came in an upstream's message.
    #[must_use]
    pub fn of(message: Message, plugin: &'static str) -> Self {
        let Message { metadata, answers, authorities, additionals, .. } = message;
        Self { answers, authorities, additionals, ..Self::new(metadata, plugin) }
    }

    /// Returns about how many bytes it takes in memory.
    #[must_use]
    pub fn weight(&self) -> usize {
        /// A record beside its data; most data is in there, too.
        const RECORD: usize = 300;
        let records = self.answers.len() + self.authorities.len() + self.additionals.len();
        RECORD * (records + 1) + 2 * wire_length(self, &Query::new())
    }

    /// Returns the three sections, in the order of a message.
    #[must_use]
    pub fn sections(&self) -> [&Vec<Record>; 3] {
        [&self.answers, &self.authorities, &self.additionals]
    }

    /// The same, to be changed.
    pub fn sections_mut(&mut self) -> [&mut Vec<Record>; 3] {
        [&mut self.answers, &mut self.authorities, &mut self.additionals]
    }
}
