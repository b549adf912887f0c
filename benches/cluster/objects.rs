//! The objects of the links: their namespaces and names, their paths, and the queries for them.

use serde_json::json;

use crate::dns::{host, question};

pub const NAMESPACES: usize = 100;
/// The target namespace.
pub const TARGETS: &str = "external-targets";
/// The namespace of the ExternalName Services that CoreDNS serves.
pub const PEER: &str = "peer";

/// Returns the path of the Services of a namespace.
pub fn services(namespace: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/services")
}

pub fn namespace(link: usize) -> String {
    format!("team-{}", link % NAMESPACES)
}

/// Returns the path of a link's status.
pub fn status(link: usize) -> String {
    format!("{}/svc-{link}/status", services(&namespace(link)))
}

/// Returns the merge patch that sets a link's target to `host(change, link)`.
pub fn status_patch(change: u64, link: usize) -> String {
    json!({"status": {"loadBalancer": {"ingress": [{"hostname": host(change, link)}]}}}).to_string()
}

pub fn link_question(link: usize) -> Vec<u8> {
    question(&format!("svc-{link}.{}.lb.internal", namespace(link)))
}

/// Returns a query for an ExternalName Service in CoreDNS.
pub fn peer_question(peer: usize) -> Vec<u8> {
    question(&format!("ext-{peer}.{PEER}.svc.cluster.local"))
}
