//! lb-linker against a real kube-apiserver and etcd, over real sockets.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod control_plane;
mod harness;
mod story;
