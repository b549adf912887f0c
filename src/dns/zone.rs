//! Zones: the syntax of zone files (RFC 1035 section 5.1), zones in memory, and what they answer.

mod builder;
mod data;
mod fields;
mod lookup;
mod reader;
pub(super) mod record;
mod transfer;
mod word;

pub(super) use data::Zone;
pub(super) use lookup::Found;
pub(super) use reader::FileVersion;
