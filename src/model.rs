//! What links are made of: names, hostnames, and the policies that decide about them.

pub(crate) mod allowance;
pub mod excerpt;
pub(crate) mod hostname;
pub mod hostname_policy;
pub(crate) mod line_limit;
pub(crate) mod link;
pub mod names;
pub mod rejection;
pub(crate) mod service_key;
pub mod target_policy;
