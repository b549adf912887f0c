//! The command line: flags, and the subcommand `check`.

pub(crate) mod built_in_corefile;
pub mod check;
pub(crate) mod client_nets_flag;
mod effective;
pub(crate) mod election;
pub(crate) mod election_flags;
pub mod error;
pub mod flags;
pub mod http_listen;
pub mod mistyped_variables;
pub(crate) mod parsers;
pub(crate) mod policy_flags;
pub mod remote_flags;
pub mod replaced_flags;
pub(crate) mod upstream_flag;
mod upstreams;
mod values;
