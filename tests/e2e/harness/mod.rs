//! What the tests stand on: a real control plane, and short ways to put things into it.

pub mod audit;
pub mod clients;
pub mod cluster;
pub mod control_plane;
mod data_dir;
pub mod process;
pub mod programs;
