//! Bounds of TTLs: those of *rewrite*, and those of *cache*, also for answers that it never keeps.

use hickory_proto::rr::Name;

use crate::dns::message::zone_set::ZoneSet;

/// Bounds in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TtlRange {
    pub min: u32,
    pub max: u32,
}

#[derive(Clone, Debug)]
pub struct TtlLimits {
    pub zones: ZoneSet,
    /// For records that exist.
    pub success: TtlRange,
    /// For the absence of records.
    pub denial: TtlRange,
}

impl TtlRange {
    #[must_use]
    pub fn clamp(self, ttl: u32) -> u32 {
        ttl.max(self.min).min(self.max)
    }
}

impl TtlLimits {
    /// Returns the bounds for records that exist, and for the absence of records, at a name.
    #[must_use]
    pub fn at(&self, name: &Name) -> Option<[TtlRange; 2]> {
        self.zones.contains(name).then_some([self.success, self.denial])
    }
}
