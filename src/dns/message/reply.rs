//! The reply that plugins return along the chain.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use hickory_proto::op::Metadata;
use hickory_proto::rr::rdata::opt::EdnsOption;
use parking_lot::Mutex;

use crate::dns::message::ede::Ede;
use crate::dns::message::records::Records;
use crate::dns::message::validity::{OutdatedFlag, RestsOn, Validity};
use crate::dns::message::zone_record::{ZoneRecord, ZoneRecords};

/// The maximum number of CNAME records to follow in an answer. Cloud providers use two or three; the limit bounds the
/// work for a hostile upstream.
pub(crate) const MAX_CNAMES_IN_ANSWER: usize = 16;

/// A reply, and what the preceding plugins have to know about it.
#[derive(Clone, Debug)]
pub struct Reply {
    /// The fields of the header, without the numbers of records.
    pub metadata: Metadata,
    pub records: Records,
    /// The reason for an error or a degraded answer, for clients that use EDNS.
    pub ede: Option<Ede>,
    /// Further options for clients that use EDNS.
    pub options: Vec<EdnsOption>,
    /// The plugin that answered, for metrics and logs.
    pub plugin: &'static str,
    /// The time that the answer has spent in a cache.
    pub age: Duration,
    /// Whether *cache* may store the reply.
    pub is_cacheable: bool,
    /// What has to stay as it is while *cache* gives the reply, beside its TTL; `None` if nothing.
    pub rests_on: Option<Arc<RestsOn>>,
    /// The conditions for reusing the answer without calling the plugins; `None` if it can't be reused.
    pub validity: Option<Box<Validity>>,
    /// The answers of a reply by TCP that may need several messages; `records` has the first of them.
    pub stream: Option<RecordStream>,
}

/// The records of a zone transfer. They are taken once.
#[derive(Clone)]
pub struct RecordStream(Arc<Mutex<Option<ZoneRecords>>>);

// === impl Reply ===

impl Reply {
    /// Returns a plugin's reply, without records. *cache* may store the reply.
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
            rests_on: None,
            validity: None,
            stream: None,
        }
    }

    /// Ends the reuse of the answer, if it may be reused, when the flag is set.
    pub fn rest_on(&mut self, flag: OutdatedFlag) {
        if let Some(validity) = &mut self.validity {
            validity.zones.push(flag);
        }
    }

    /// Returns whether *cache* may store a reply that has records of this one.
    #[must_use]
    pub fn may_be_part_of_cached(&self) -> bool {
        self.is_cacheable && self.rests_on.is_none()
    }
}

// === impl RecordStream ===

impl RecordStream {
    #[must_use]
    pub fn new(records: impl Iterator<Item = Option<ZoneRecord>> + Send + 'static) -> Self {
        Self(Arc::new(Mutex::new(Some(Box::new(records)))))
    }

    /// Returns the records; `None` if they were taken before.
    #[must_use]
    pub fn take(&self) -> Option<ZoneRecords> {
        self.0.lock().take()
    }
}

impl fmt::Debug for RecordStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RecordStream")
    }
}
