//! The sources of load balancers: the cluster, or files with manifests.

pub mod cluster;
pub mod cluster_dns;
pub mod dns_endpoint;
pub mod first_list;
pub mod gateway;
pub mod ingress;
pub(crate) mod internal_names;
pub(crate) mod kept_services;
pub mod manifests;
pub mod metrics;
pub mod missing_namespaces;
pub mod names;
pub(crate) mod own_targets;
pub mod persisted_targets;
pub(crate) mod relist_guard;
pub mod remote_service;
pub mod selection;
pub mod service_links;
pub mod unselected;
