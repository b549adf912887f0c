//! Zones: the syntax of zone files (RFC 1035 section 5.1), zones in memory, and what they answer.

mod builder;
mod data;
mod fields;
mod lookup;
pub mod memory;
mod reader;
pub mod received;
pub(super) mod record;
mod sent_records;
mod word;

pub use data::Zone;
pub(super) use lookup::Found;
pub(super) use reader::FileVersion;
