//! A record of a zone in wire form.

/// A record of class IN. Owner and data are in wire form, without name compression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZoneRecord {
    pub owner: Box<[u8]>,
    pub rtype: u16,
    /// In seconds.
    pub ttl: u32,
    pub data: Box<[u8]>,
}

impl ZoneRecord {
    /// Returns the serial of an SOA record (RFC 1035 section 3.3.13): the first of the five numbers after its two names.
    #[must_use]
    pub fn serial(&self) -> Option<u32> {
        let (_, numbers) = self.data.split_last_chunk::<20>()?;
        numbers.first_chunk().map(|serial| u32::from_be_bytes(*serial))
    }
}
