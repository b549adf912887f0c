//! Differential tests against the pinned CoreDNS: both programs get the same Corefile and the same queries in the
//! same order.
//!
//! Every remaining difference is in [`expected`], with its reason. An unexpected difference fails a test, and so does
//! an expected difference that no longer occurs.
//!
//! With `COREFILE_SUBJECT=coredns` in the environment, CoreDNS is compared with itself. This shows which parts of a
//! new group vary and must be left out.

mod answer;
mod compare;
mod expected;
mod question;
pub(crate) mod server;
mod upstreams;

mod autopath;
mod blocks;
mod cache;
mod chains;
mod cluster_changes;
mod cluster_conformance;
mod cluster_faults;
mod cluster_names;
mod cluster_stubs;
mod corpus;
mod forward;
mod generated_zones;
mod grpc;
mod hosts;
mod https;
mod load;
mod logs;
mod metrics;
mod metrics_tls;
mod quic;
mod reload;
mod rewrite;
mod small_plugins;
mod stub_domains;
mod template;
mod tsig;
mod zone_files;
