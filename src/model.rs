//! The data model of links: names, hostnames, and the policies for them.

pub mod api_server;
pub mod cluster_domain;
pub mod clusters;
pub mod excerpt;
pub mod hostname;
pub mod hostname_policy;
pub(crate) mod line_limit;
pub mod link;
pub mod link_override;
pub mod names;
pub mod object_texts;
mod observed_service;
pub mod outdated;
pub mod owner;
pub mod persisted_target;
pub mod records;
pub mod rejection;
pub mod remote;
pub mod service_key;
pub mod target_policy;
pub mod tls_error;
pub mod uid;
