//! lb-linker against a real kube-apiserver and etcd, over real sockets.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod addresses;
mod answers;
mod command_line;
mod control_plane;
mod convergence;
mod harness;
mod manifests;
mod model;
mod selection;
mod sockets;
mod story;
mod throughput;
mod trouble;
