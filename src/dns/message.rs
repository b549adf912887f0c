//! DNS messages: headers, queries, replies, and their encoding.

pub(crate) mod address_range;
pub(crate) mod alias;
pub(crate) mod arpa;
mod compress;
pub(crate) mod ede;
pub mod encode;
pub mod freshness;
pub mod grpc;
pub mod header;
pub mod https;
pub mod presentation;
pub mod proxy_header;
pub mod query;
pub mod records;
pub mod reply;
pub(crate) mod rrsig;
pub mod sections;
pub mod tsig;
pub mod upstream_reply;
pub mod validity;
pub mod wire;
pub(crate) mod wire_name;
pub mod zone_record;
pub mod zone_set;
