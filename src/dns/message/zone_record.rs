//! A record of a zone in wire form.

use hickory_proto::ProtoError;
use hickory_proto::rr::Record;

use super::encode::typed::write_data;
use super::query::whole_wire_name;

/// A record of class IN. Owner and data are in wire form, without name compression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZoneRecord {
    pub owner: Box<[u8]>,
    pub rtype: u16,
    /// In seconds.
    pub ttl: u32,
    pub data: Box<[u8]>,
}

/// Records that are made as they are read. `None` stands for a name without records, so that reading can be interrupted.
pub type ZoneRecords = Box<dyn Iterator<Item = Option<ZoneRecord>> + Send>;

/// Returns the records of a name as [`ZoneRecords`] have them.
pub fn of_name(records: Vec<ZoneRecord>) -> impl Iterator<Item = Option<ZoneRecord>> {
    let none = records.is_empty().then_some(None);
    records.into_iter().map(Some).chain(none)
}

impl ZoneRecord {
    /// Returns the serial of an SOA record (RFC 1035 section 3.3.13): the first of the five numbers after its two names.
    #[must_use]
    pub fn serial(&self) -> Option<u32> {
        let (_, numbers) = self.data.split_last_chunk::<20>()?;
        numbers.first_chunk().map(|serial| u32::from_be_bytes(*serial))
    }
}

impl TryFrom<&Record> for ZoneRecord {
    type Error = ProtoError;

    fn try_from(record: &Record) -> Result<Self, ProtoError> {
        let mut data = Vec::new();
        write_data(&record.data, &mut data)?;
        let owner = whole_wire_name(&record.name).into();
        Ok(Self { owner, rtype: record.record_type().into(), ttl: record.ttl, data: data.into() })
    }
}
