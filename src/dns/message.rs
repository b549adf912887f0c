//! DNS messages: headers, queries, replies, and their encoding.

pub(crate) mod arpa;
pub mod decode;
pub(crate) mod ede;
pub mod encode;
pub mod header;
pub mod presentation;
pub mod query;
pub mod reply;
pub(crate) mod rrsig;
pub mod validity;
pub mod zone_set;
