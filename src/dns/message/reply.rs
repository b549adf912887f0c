//! An answer on its way back through the plugins.

use std::time::Duration;

use hickory_proto::op::Metadata;
use hickory_proto::rr::rdata::opt::EdnsOption;

use crate::dns::message::ede::Ede;
use crate::dns::message::records::Records;
use crate::dns::message::validity::Validity;

/// The maximum number of CNAME records to follow in an answer. Cloud providers use two or three; hundreds would be an
/// attack.
pub(crate) const MAX_CNAMES_IN_ANSWER: usize = 16;

#[derive(Clone, Debug)]
pub struct Reply {
    pub metadata: Metadata,
    pub records: Records,
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
            records: Records::default(),
            ede: None,
            options: Vec::new(),
            plugin,
            age: Duration::ZERO,
            is_cacheable: true,
            validity: None,
        }
    }
}
