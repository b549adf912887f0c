//! Recorded objects of clusters, for tests.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::Forwarding;
use super::platform::ClusterDns;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/platforms")
}

/// Returns the names of the recorded clusters, in order.
pub fn platforms() -> Vec<String> {
    let files = std::fs::read_dir(folder()).unwrap();
    let mut names: Vec<String> =
        files.map(|file| file.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned()).collect();
    names.sort();
    names
}

/// Returns the objects of a recorded cluster.
pub fn recorded(name: &str) -> ClusterDns {
    let text = std::fs::read_to_string(folder().join(format!("{name}.yaml"))).unwrap();
    let mut dns = ClusterDns::default();
    for document in text.split("\n---\n") {
        let object: Value = serde_saphyr::from_str(document).unwrap();
        match object["kind"].as_str().unwrap() {
            "Version" => object["gitVersion"].as_str().unwrap().clone_into(&mut dns.server_version),
            "ConfigMap" => dns.config_maps.push(serde_json::from_value(object).unwrap()),
            "Service" => dns.services.push(serde_json::from_value(object).unwrap()),
            "Deployment" => dns.deployments.push(serde_json::from_value(object).unwrap()),
            "Node" => dns.nodes.push(serde_json::from_value(object["metadata"].clone()).unwrap()),
            "DNS" => dns.dns_operator = Some(serde_json::from_value(object).unwrap()),
            kind => panic!("{name}: {kind}"),
        }
    }
    dns
}

pub fn forwarding() -> Forwarding {
    Forwarding {
        zones: vec!["lb.internal".to_owned()],
        service: "lb-linker/lb-linker".to_owned(),
        addresses: vec!["10.96.77.7".parse().unwrap()],
        port: 53,
    }
}
