//! The permissions that ExternalDNS and k8s_gateway need for their sources.

use serde_json::Value;

use crate::deploy::objects;
use crate::harness::deploy;

/// A program, one of its permissions, and where `deploy/` has it; empty if lb-linker needs none. ExternalDNS:
/// `charts/external-dns/templates/clusterrole.yaml`, and `kustomize/external-dns-clusterrole.yaml` for Services and
/// Ingresses. k8s_gateway: `README.md:92-155`, `charts/k8s-gateway/templates/rbac.yaml` and
/// `examples/install-clusterwide.yml`.
const PERMISSIONS: [(&str, &str, &str, &str); 18] = [
    ("both", "", "services", "10-rbac.yaml"),
    ("both", "networking.k8s.io", "ingresses", "sources"),
    ("both", "extensions", "ingresses", ""),
    ("both", "gateway.networking.k8s.io", "gateways", "sources"),
    ("both", "gateway.networking.k8s.io", "httproutes", "sources"),
    ("both", "gateway.networking.k8s.io", "grpcroutes", "sources"),
    ("both", "gateway.networking.k8s.io", "tlsroutes", "sources"),
    ("both", "externaldns.k8s.io", "dnsendpoints", "sources"),
    ("both", "externaldns.k8s.io", "dnsendpoints/status", ""),
    // For selectors in allowedRoutes: that a route is accepted suffices.
    ("both", "", "namespaces", ""),
    // A CRD that isn't there is an empty list.
    ("k8s_gateway", "apiextensions.k8s.io", "customresourcedefinitions", ""),
    ("k8s_gateway", "gateway.networking.k8s.io", "*", ""),
    ("ExternalDNS", "gateway.networking.k8s.io", "listenersets", "sources"),
    ("ExternalDNS", "gateway.networking.k8s.io", "tcproutes", ""),
    ("ExternalDNS", "gateway.networking.k8s.io", "udproutes", ""),
    // For Services of other types than LoadBalancer.
    ("ExternalDNS", "", "nodes", ""),
    ("ExternalDNS", "", "pods", ""),
    ("ExternalDNS", "discovery.k8s.io", "endpointslices", ""),
];

#[test]
fn permissions_of_external_dns_and_k8s_gateway_suffice() {
    let has =
        |list: &Value, word: &str| list.as_array().is_some_and(|list| list.iter().any(|one| one == word));
    let granted = |path: &str, group: &str, resource: &str| {
        let roles =
            objects(&deploy().join(path)).into_iter().filter(|object| object["kind"] == "ClusterRole");
        let mut rules = roles.flat_map(|role| role["rules"].as_array().cloned().unwrap_or_default());
        rules.any(|rule| {
            has(&rule["apiGroups"], group)
                && has(&rule["resources"], resource)
                && ["list", "watch"].iter().all(|verb| has(&rule["verbs"], verb))
        })
    };
    for (program, group, resource, place) in PERMISSIONS {
        let places: Vec<&str> =
            ["10-rbac.yaml", "sources"].into_iter().filter(|path| granted(path, group, resource)).collect();
        let expected: Vec<&str> = Some(place).into_iter().filter(|place| !place.is_empty()).collect();
        assert_eq!(places, expected, "{program}: {group}/{resource}");
    }
}
