//! DNS messages: headers, questions, replies, and their encoding.

pub mod decode;
pub mod encode;
pub mod header;
pub mod presentation;
pub mod query;
pub(crate) mod rrsig;
pub mod validity;
pub mod zone_set;
