//! The client of upstream servers.

pub(crate) mod attempts;
pub(crate) mod bootstrap;
pub(crate) mod config;
pub(crate) mod endpoint;
pub(crate) mod error;
pub(crate) mod exchange;
pub mod group;
pub(crate) mod health;
pub(crate) mod http;
pub(crate) mod lookup_origin;
pub(crate) mod metrics;
pub(crate) mod policy;
pub(crate) mod refusals;
pub(crate) mod sharded_cache;
pub(crate) mod shared_lookups;
pub(crate) mod singleflight;
pub(crate) mod small_future_set;
pub(crate) mod socket_budget;
pub(crate) mod sockets;
pub mod stale_cache;
pub(crate) mod tls;
