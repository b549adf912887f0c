//! Zones: the syntax of zone files (RFC 1035 section 5.1), zones in memory, and what they answer.

mod builder;
mod data;
mod fields;
mod lookup;
pub mod memory;
mod reader;
pub(super) mod record;
mod transfer;
pub mod transferred;
mod word;

pub use data::Zone;
pub(super) use lookup::Found;
pub(super) use reader::FileVersion;
