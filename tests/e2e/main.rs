//! lb-linker against a real kube-apiserver and etcd, over real sockets.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod addresses;
mod annotations;
mod answers;
mod api_errors;
mod api_faults;
mod bounds;
mod client_quota;
mod clients;
mod command_line;
mod connections;
mod control_plane;
mod convergence;
mod corefile;
mod datagrams;
mod deletion_limits;
mod deploy;
mod events;
mod finalizer;
#[allow(dead_code, reason = "the benches use the rest of it")]
mod harness;
mod instances;
mod leader;
mod left_out;
mod load;
mod loops;
mod manifests;
mod model;
mod policy;
mod recreation;
mod refusals;
mod selection;
mod sidecar;
mod sockets;
mod source;
mod stubs;
mod takeover;
mod throughput;
mod tiers;
mod tls;
mod undecodable_objects;
mod upstreams;
mod watches;
mod workstation;
mod zone_answers;
