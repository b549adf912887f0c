//! Which Service owns which DNS name.

pub(crate) mod allocator;
pub(crate) mod claims;
pub(crate) mod custom_hostnames;
pub(crate) mod owners;
