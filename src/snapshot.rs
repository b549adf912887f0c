//! The snapshot of the links in a file: with it DNS answers after a start without the API server.
//!
//! A snapshot holds only what DNS needs to answer. Its links are in a store of their own
//! (`src/store/snapshot_links.rs`), so nothing is written to the cluster because of the snapshot.

pub(crate) mod contents;
pub mod context;
pub mod file;
pub mod format;
pub mod metrics;
pub mod restore;
mod rules;
mod serving;
pub mod task;
mod writer;
