//! lb-linker against a real kube-apiserver and etcd, over real sockets.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod addresses;
mod answers;
mod bounds;
mod brakes;
mod client_quota;
mod clients;
mod command_line;
mod connections;
mod control_plane;
mod convergence;
mod corefile;
mod datagrams;
mod events;
mod finalizer;
#[allow(dead_code, reason = "the benches use the rest of it")]
mod harness;
mod instances;
mod leader;
mod left_out;
mod loops;
mod manifests;
mod meddling;
mod model;
mod poison;
mod policy;
mod refusals;
mod selection;
mod sockets;
mod source;
mod storm;
mod story;
mod stubs;
mod takeover;
mod throughput;
mod tls;
mod trouble;
mod upstreams;
mod watches;
mod wishes;
mod workstation;
mod zone_answers;
