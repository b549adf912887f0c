//! Answers DNS as a Corefile says: listeners, the server blocks behind them, and in each block plugins, one of which
//! answers for the links of the store with authority.

pub mod chain;
pub mod corefile;
pub mod message;
pub mod net;
pub mod plugins;
pub mod query_log;
pub mod response_cache;
pub mod server;
pub mod transport;
pub mod upstream;
