//! Execution of operations on a real API server.

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use lb_linker::model::names;
use lb_linker::model::service_key::ServiceKey;
use serde_json::{Value, json};

use super::observe::{owner, version};
use super::operations::{Action, Operation, Outcome};
use super::rules::default_name;
use super::world::ServiceType;
use crate::harness::cluster::{Cluster, Ingress};

/// The label that the test's `--service-selector` excludes.
pub const HIDDEN: &str = "model.example.com/hidden";
const FINALIZER: &str = "model.example.com/hold";

#[derive(Clone)]
pub struct Executor {
    pub cluster: Cluster,
    pub target_namespace: String,
}

impl Executor {
    pub async fn execute(&self, operation: &Operation) -> Outcome {
        let Operation { key, action } = operation;
        let (cluster, namespace, name) = (&self.cluster, key.namespace(), key.name());
        let patch = |patch: Value| cluster.patch_service(namespace, name, patch);
        let annotate = |annotation: &str, value: Option<&str>| {
            patch(json!({"metadata": {"annotations": {annotation: value}}}))
        };
        match action {
            Action::Create => return self.create(key).await,
            Action::Recreate => {
                cluster.delete_service(namespace, name).await;
                return self.create(key).await;
            }
            Action::Delete => cluster.delete_service(namespace, name).await,
            Action::SetHosts(hosts) => {
                let ingress: Vec<Ingress> = hosts.iter().map(|host| Ingress::Hostname(host)).collect();
                cluster.set_ingress(namespace, name, &ingress).await;
            }
            Action::SetAddresses(ips) => {
                let ips: Vec<String> = ips.iter().map(ToString::to_string).collect();
                let ingress: Vec<Ingress> = ips.iter().map(|ip| Ingress::Ip(ip)).collect();
                cluster.set_ingress(namespace, name, &ingress).await;
            }
            Action::Blank => drop(cluster.set_ingress(namespace, name, &[]).await),
            Action::SetUnservable(host) => {
                drop(cluster.set_ingress(namespace, name, &[Ingress::Hostname(host)]).await);
            }
            Action::SetPort(port) => drop(patch(json!({"spec": {"ports": [port_of(*port)]}})).await),
            Action::ChangeType(kind) => {
                let spec = match kind {
                    ServiceType::LoadBalancer => json!({"type": "LoadBalancer", "externalName": null,
                        "allocateLoadBalancerNodePorts": false}),
                    ServiceType::ClusterIp => json!({"type": "ClusterIP", "externalName": null}),
                    ServiceType::ExternalName => {
                        json!({"type": "ExternalName", "externalName": "elsewhere.example.com",
                        "clusterIP": null, "clusterIPs": null})
                    }
                };
                drop(patch(json!({"spec": spec})).await);
            }
            Action::OptOut => drop(annotate("linker.hsj.com/managed", Some("false")).await),
            Action::OptIn => drop(annotate("linker.hsj.com/managed", None).await),
            Action::AllowFrom(all) => {
                drop(annotate("linker.hsj.com/allow-from", all.then_some("*")).await);
            }
            Action::Claim(claim) => {
                let claim = claim.as_ref().map(|claim| format!("{claim}.lb.internal"));
                drop(annotate("linker.hsj.com/hostname", claim.as_deref()).await);
            }
            Action::Hide => drop(patch(json!({"metadata": {"labels": {HIDDEN: "yes"}}})).await),
            Action::Show => drop(patch(json!({"metadata": {"labels": {HIDDEN: null}}})).await),
            Action::Hold => {
                patch(json!({"metadata": {"finalizers": [FINALIZER]}})).await;
                cluster.delete_service(namespace, name).await;
            }
            Action::Release => drop(patch(json!({"metadata": {"finalizers": null}})).await),
            Action::DeleteObject => {
                return Outcome { touched: self.delete_object(key, true).await, ..Outcome::default() };
            }
            Action::DeleteService => {
                return Outcome { touched: self.delete_object(key, false).await, ..Outcome::default() };
            }
            Action::SetWrongHost(host) => {
                let spec = json!({"type": "ExternalName", "externalName": host, "clusterIP": null,
                    "clusterIPs": null, "ports": null});
                return self.edit_object(key, spec).await;
            }
            Action::SetWrongSpec(how) => return self.edit_object(key, distortion(*how)).await,
            Action::DeleteSlice => {
                let touched = self.delete_slices(key).await;
                return Outcome { touched, ..Outcome::default() };
            }
            Action::EditSlice(ip) => {
                let endpoints = json!([{"addresses": [ip], "conditions": {"ready": true}}]);
                return self.edit_slice(key, json!({"endpoints": endpoints})).await;
            }
            Action::RemoveSliceLabels => {
                let labels = json!({"original-service-name": null, "kubernetes.io/service-name": null});
                return self.edit_slice(key, json!({"metadata": {"labels": labels}})).await;
            }
            Action::CreateForeign => {
                let theirs = json!({"metadata": {"name": default_name(key),
                        "labels": {"app.kubernetes.io/managed-by": "Helm"}},
                    "spec": {"selector": {"app": "theirs"}, "ports": [{"port": 1}]}});
                return self.replace_with_foreign(key, theirs).await;
            }
            Action::CreateAdoptable => {
                let theirs = json!({"metadata": {"name": default_name(key)},
                    "spec": {"type": "ExternalName", "externalName": "by-hand.example.com"}});
                return self.replace_with_foreign(key, theirs).await;
            }
            Action::DeleteForeign => {
                let services = cluster.services(&self.target_namespace);
                let name = default_name(key);
                if services.get_opt(&name).await.unwrap().is_some_and(|there| owner(&there).is_none()) {
                    services.delete(&name, &DeleteParams::default()).await.unwrap();
                }
            }
            Action::Follow { source, target } => {
                let source = format!("{}/{}", source.namespace(), source.name());
                let follower = json!({"metadata": {"name": name,
                        "annotations": {"linker.hsj.com/source": source}},
                    "spec": {"type": "ExternalName", "externalName": target}});
                drop(cluster.create_service(namespace, follower).await);
            }
            Action::Unfollow => cluster.delete_service(namespace, name).await,
        }
        Outcome::default()
    }

    async fn create(&self, key: &ServiceKey) -> Outcome {
        let service = json!({
            "metadata": {"name": key.name()},
            "spec": {"type": "LoadBalancer", "ports": [port_of(80)], "allocateLoadBalancerNodePorts": false},
        });
        let made = self.cluster.create_service(key.namespace(), service).await;
        let created = made.metadata.creation_timestamp.as_ref().map_or(0, |time| time.0.as_second());
        Outcome { uid: made.uid().unwrap(), created, done: true, ..Outcome::default() }
    }

    fn slices(&self) -> Api<EndpointSlice> {
        Api::namespaced(self.cluster.client.clone(), &self.target_namespace)
    }

    /// Returns the name of the Service that is labelled for a link.
    async fn object_of(&self, key: &ServiceKey) -> Option<String> {
        for name in names_of(key) {
            let there = self.cluster.get_service(&self.target_namespace, &name).await;
            if there.is_some_and(|there| owner(&there) == Some(key.clone())) {
                return Some(name);
            }
        }
        None
    }

    async fn delete_object(&self, key: &ServiceKey, with_slices: bool) -> bool {
        let mut touched = false;
        if let Some(name) = self.object_of(key).await {
            let services = self.cluster.services(&self.target_namespace);
            touched |= services.delete(&name, &DeleteParams::default()).await.is_ok();
        }
        if with_slices {
            touched |= self.delete_slices(key).await;
        }
        touched
    }

    /// Deletes the EndpointSlices of a link, and returns whether there were any.
    async fn delete_slices(&self, key: &ServiceKey) -> bool {
        let slices = self.slices();
        let mut touched = false;
        for name in slice_names(key) {
            let slice = slices.get_opt(&name).await.unwrap();
            if slice.is_some_and(|slice| owner(&slice) == Some(key.clone())) {
                touched |= slices.delete(&name, &DeleteParams::default()).await.is_ok();
            }
        }
        touched
    }

    async fn edit_object(&self, key: &ServiceKey, spec: Value) -> Outcome {
        let Some(name) = self.object_of(key).await else { return Outcome::default() };
        let services = self.cluster.services(&self.target_namespace);
        let patch = Patch::Merge(json!({"spec": spec}));
        // The patch may fail because of a concurrent write by lb-linker.
        let touched = services.patch(&name, &PatchParams::default(), &patch).await.is_ok();
        Outcome { touched, ..Outcome::default() }
    }

    /// Patches the first existing EndpointSlice for IPv4 of a link.
    async fn edit_slice(&self, key: &ServiceKey, patch: Value) -> Outcome {
        let slices = self.slices();
        for name in slice_names(key).into_iter().filter(|name| name.ends_with("4")) {
            if slices.get_opt(&name).await.unwrap().is_some_and(|slice| owner(&slice) == Some(key.clone())) {
                let patched = slices.patch(&name, &PatchParams::default(), &Patch::Merge(&patch)).await;
                return Outcome { touched: patched.is_ok(), ..Outcome::default() };
            }
        }
        Outcome::default()
    }

    /// Replaces a link's external target, if any, with a Service that lb-linker doesn't own.
    async fn replace_with_foreign(&self, key: &ServiceKey, service: Value) -> Outcome {
        let touched = self.delete_object(key, true).await;
        let service: Service = serde_json::from_value(service).unwrap();
        let services = self.cluster.services(&self.target_namespace);
        match services.create(&PostParams::default(), &service).await {
            Ok(made) => Outcome { touched, done: true, version: version(&made), ..Outcome::default() },
            // lb-linker has created its own object first.
            Err(_) => Outcome { touched, ..Outcome::default() },
        }
    }
}

fn names_of(key: &ServiceKey) -> [String; 2] {
    [default_name(key), names::external_target_hashed(key.namespace(), key.name(), names::HASH_DIGITS[0])]
}

fn slice_names(key: &ServiceKey) -> Vec<String> {
    names_of(key).iter().flat_map(|name| ["ipv4", "ipv6"].map(|end| format!("{name}-{end}"))).collect()
}

fn port_of(port: u16) -> Value {
    json!({"name": format!("p{port}"), "port": port})
}

/// Returns a manual change of an external target's spec.
fn distortion(how: usize) -> Value {
    match how {
        0 => json!({"type": "ClusterIP", "clusterIP": "None", "externalName": null}),
        1 => json!({"selector": {"app": "theirs"}}),
        // Without `clusterIP`, the API server allocates an address.
        2 => json!({"type": "ClusterIP", "externalName": null, "ports": [{"port": 7}]}),
        _ => json!({"ports": [{"name": "a", "port": 7}, {"name": "b", "port": 8}]}),
    }
}
