//! The records of a zone, for zone transfers (RFC 5936).

use std::fmt;

use hickory_proto::ProtoError;
use hickory_proto::rr::Record;
use hickory_proto::serialize::binary::{BinEncodable, BinEncoder, NameEncoding};

use crate::dns::message::query::whole_wire_name;

/// A zone that can be transferred.
pub trait TransferredZone: Send + Sync {
    /// Returns the serial of the zone; `None` while the zone can't be served.
    fn serial(&self) -> Option<u32>;

    /// Returns the zone as it is now. This may take some milliseconds; the records are made as the iterator is read. `None` while the zone can't be served.
    fn state(&self) -> Option<ZoneState>;
}

/// One state of a zone, which stays as it is though the zone changes.
pub struct ZoneState {
    pub soa: ZoneRecord,
    /// The other records, each once.
    pub records: Box<dyn Iterator<Item = ZoneRecord> + Send>,
}

/// A record of class IN. Owner and data are in wire form, without name compression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZoneRecord {
    pub owner: Box<[u8]>,
    pub rtype: u16,
    /// In seconds.
    pub ttl: u32,
    pub data: Box<[u8]>,
}

impl TryFrom<&Record> for ZoneRecord {
    type Error = ProtoError;

    fn try_from(record: &Record) -> Result<Self, ProtoError> {
        let mut data = Vec::new();
        let mut encoder = BinEncoder::new(&mut data);
        encoder.set_name_encoding(NameEncoding::Uncompressed);
        record.data.emit(&mut encoder)?;
        let (rtype, ttl) = (record.record_type().into(), record.ttl);
        Ok(Self { owner: whole_wire_name(&record.name).into(), rtype, ttl, data: data.into() })
    }
}

impl fmt::Debug for ZoneState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZoneState").field("soa", &self.soa).finish_non_exhaustive()
    }
}
