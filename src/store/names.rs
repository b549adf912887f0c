//! Which link owns which DNS name, and which name of an external target.

pub(crate) mod allocator;
pub(crate) mod claims;
pub(crate) mod custom_hostnames;
pub(crate) mod owners;
