//! The chain of plugins that answers a query.

pub mod handler;
pub mod labels;
pub mod metrics;
pub mod plugin;
pub mod proxy_sources;
pub(crate) mod query_limiter;
pub(crate) mod request;
pub mod server;
pub mod target_check;
pub mod zone_state;
mod zone_table;
