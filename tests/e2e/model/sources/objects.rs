//! Objects of all kinds in a real API server. Statuses are patched as controllers would.

use std::collections::BTreeMap;
use std::net::IpAddr;

use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use serde_json::{Map, Value, json};

use super::rules::{Change, Cluster, Content, Id, Kind, split};

/// The address of a cloud's metadata service, which lb-linker denies.
const DENIED: &str = "169.254.169.254";

pub struct Executor {
    /// The clients of the clusters.
    pub clients: BTreeMap<Cluster, Client>,
}

impl Executor {
    /// Returns the creationTimestamp of a created object, in seconds since 1970.
    pub async fn execute(&self, id: Id, change: &Change) -> i64 {
        let api = self.api(id);
        match change {
            Change::Delete => {
                delete(&api, id).await;
                0
            }
            Change::Create(content) => create(&api, id, content).await,
            Change::Recreate(content) => {
                delete(&api, id).await;
                create(&api, id, content).await
            }
            Change::Set(content) => {
                let patch = Patch::Merge(object(id, content));
                let patched = api.patch(id.name, &PatchParams::default(), &patch).await;
                patched.unwrap_or_else(|error| panic!("{id:?}: {error}"));
                set_status(&api, id, content).await;
                0
            }
        }
    }

    fn api(&self, id: Id) -> Api<DynamicObject> {
        let (group, version, kind) = gvk(id.kind);
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        let (cluster, namespace) = split(id.namespace);
        Api::namespaced_with(self.clients[&cluster].clone(), namespace, &resource)
    }
}

fn gvk(kind: Kind) -> (&'static str, &'static str, &'static str) {
    match kind {
        Kind::Service => ("", "v1", "Service"),
        Kind::StableName => ("linker.hsj.com", "v1alpha1", "StableName"),
        Kind::Ingress => ("networking.k8s.io", "v1", "Ingress"),
        Kind::Gateway => ("gateway.networking.k8s.io", "v1", "Gateway"),
        Kind::HttpRoute => ("gateway.networking.k8s.io", "v1", "HTTPRoute"),
        Kind::DnsEndpoint => ("externaldns.k8s.io", "v1alpha1", "DNSEndpoint"),
    }
}

async fn delete(api: &Api<DynamicObject>, id: Id) {
    let deleted = api.delete(id.name, &DeleteParams::default()).await;
    deleted.unwrap_or_else(|error| panic!("{id:?}: {error}"));
}

async fn create(api: &Api<DynamicObject>, id: Id, content: &Content) -> i64 {
    let mut object = object(id, content);
    if let Some(annotations) = object["metadata"]["annotations"].as_object_mut() {
        annotations.retain(|_, text| !text.is_null());
    }
    let object: DynamicObject = serde_json::from_value(object).unwrap();
    let created = api.create(&PostParams::default(), &object).await;
    let created = created.unwrap_or_else(|error| panic!("{id:?}: {error}"));
    set_status(api, id, content).await;
    created.metadata.creation_timestamp.expect("the API server sets it").0.as_second()
}

async fn set_status(api: &Api<DynamicObject>, id: Id, content: &Content) {
    if let Some(status) = status(id.kind, content) {
        let patch = Patch::Merge(json!({"status": status}));
        let patched = api.patch_status(id.name, &PatchParams::default(), &patch).await;
        patched.unwrap_or_else(|error| panic!("the status of {id:?}: {error}"));
    }
}

/// Returns an object without its status. A value that the object lacks is null, as a merge patch needs.
fn object(id: Id, content: &Content) -> Value {
    let (group, version, kind) = gvk(id.kind);
    let api_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    let mut annotations = Map::new();
    if !matches!(id.kind, Kind::StableName | Kind::Gateway | Kind::DnsEndpoint) {
        annotations.insert("linker.hsj.com/ttl".to_owned(), json!(content.ttl.to_string()));
    }
    if id.kind == Kind::Service {
        let hosts = (!content.hosts.is_empty()).then(|| content.hosts.join(","));
        annotations.insert("linker.hsj.com/hostname".to_owned(), json!(hosts));
    }
    if id.kind.has_status() {
        let targets = if content.is_annotated { targets(content) } else { Vec::new() };
        let text = (!targets.is_empty()).then(|| targets.join(","));
        annotations.insert("linker.hsj.com/target".to_owned(), json!(text));
    }
    annotations.insert("linker.hsj.com/managed".to_owned(), json!(content.is_opted_out.then_some("false")));
    json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": id.name, "annotations": annotations},
        "spec": spec(id.kind, content)})
}

fn spec(kind: Kind, content: &Content) -> Value {
    let Content { hosts, target, ttl, .. } = content;
    match kind {
        Kind::Service => {
            json!({"type": "LoadBalancer", "ports": [{"port": 80}], "allocateLoadBalancerNodePorts": false})
        }
        Kind::StableName => {
            json!({"sources": [{"name": "fixed", "addresses": target.ips}], "hostnames": hosts, "ttlSeconds": ttl})
        }
        Kind::Ingress => {
            let rules: Vec<Value> = hosts.iter().map(|host| json!({"host": host})).collect();
            json!({"defaultBackend": {"service": {"name": "web", "port": {"number": 80}}}, "rules": rules})
        }
        Kind::Gateway => {
            let mut listener = json!({"name": "web", "port": 80, "protocol": "HTTP",
                "allowedRoutes": {"namespaces": {"from": "All"}}});
            if let Some(host) = hosts.first() {
                listener["hostname"] = json!(host);
            }
            json!({"gatewayClassName": "test", "listeners": [listener]})
        }
        Kind::HttpRoute => json!({"parentRefs": [parent(content)], "hostnames": hosts}),
        Kind::DnsEndpoint => json!({"endpoints": entries(content)}),
    }
}

fn parent(content: &Content) -> Value {
    let (gateway, _) = content.parent.expect("a route has one");
    json!({"name": gateway.name, "namespace": split(gateway.namespace).1})
}

/// Returns the entries of a DNSEndpoint, by name and type.
fn entries(Content { hosts, target, is_denied, ttl, .. }: &Content) -> Vec<Value> {
    let mut records: Vec<(&str, Vec<String>)> = Vec::new();
    for (kind, is_ipv4) in [("A", true), ("AAAA", false)] {
        let of_family = target.ips.iter().filter(|ip| ip.is_ipv4() == is_ipv4);
        records.push((kind, of_family.map(ToString::to_string).collect()));
    }
    records.push(("CNAME", target.hosts.clone()));
    if *is_denied {
        records.push(("A", vec![DENIED.to_owned()]));
    }
    records.retain(|(_, targets)| !targets.is_empty());
    let of_host = |host: &&'static str| {
        let host = *host;
        let entry = move |(kind, targets): &(&str, Vec<String>)| json!({"dnsName": host, "recordType": kind, "targets": targets, "recordTTL": ttl});
        records.iter().map(entry).collect::<Vec<_>>()
    };
    hosts.iter().flat_map(of_host).collect()
}

/// Returns the addresses and the hostnames.
fn targets(Content { target, is_denied, .. }: &Content) -> Vec<String> {
    let ips = target.ips.iter().map(ToString::to_string).chain(is_denied.then(|| DENIED.to_owned()));
    ips.chain(target.hosts.iter().cloned()).collect()
}

fn status(kind: Kind, content: &Content) -> Option<Value> {
    let targets = if content.is_annotated { Vec::new() } else { targets(content) };
    let entries = |entry: fn(&str, bool) -> Value| {
        let all: Vec<Value> =
            targets.iter().map(|target| entry(target, target.parse::<IpAddr>().is_ok())).collect();
        (!all.is_empty()).then_some(all)
    };
    match kind {
        Kind::Service | Kind::Ingress => {
            let entry = |target: &str, is_ip| json!({ if is_ip { "ip" } else { "hostname" }: target });
            Some(json!({"loadBalancer": {"ingress": entries(entry)}}))
        }
        Kind::Gateway => {
            let address = |target: &str, is_ip| json!({"type": if is_ip { "IPAddress" } else { "Hostname" }, "value": target});
            Some(json!({ "addresses": entries(address) }))
        }
        Kind::HttpRoute => {
            let (_, is_accepted) = content.parent.expect("a route has one");
            let condition = json!({"type": "Accepted", "status": if is_accepted { "True" } else { "False" },
                "reason": "Tested", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"});
            Some(
                json!({"parents": [{"parentRef": parent(content), "controllerName": "example.com/controller",
                "conditions": [condition]}]}),
            )
        }
        Kind::StableName | Kind::DnsEndpoint => None,
    }
}
