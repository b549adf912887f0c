//! The DNS server that a Corefile configures: listeners, their server blocks, and the plugins of each block. The plugin
//! `lb_linker` answers authoritatively for the links in the store.

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
pub mod zone;
