//! Short ways to put objects into a control plane and to read them back.

use k8s_openapi::api::core::v1::{Namespace, Service};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

/// One entry of a load balancer's status.
#[derive(Clone, Copy, Debug)]
pub enum Ingress<'a> {
    Hostname(&'a str),
    Ip(&'a str),
}

impl Ingress<'_> {
    fn to_json(self) -> Value {
        match self {
            Self::Hostname(hostname) => json!({ "hostname": hostname }),
            Self::Ip(ip) => json!({ "ip": ip }),
        }
    }
}

/// A control plane, with the rights of one client. What isn't possible panics with the server's reason.
#[derive(Clone)]
pub struct Cluster {
    pub client: Client,
}

impl Cluster {
    pub fn new(client: Client) -> Self {
        Self { client }
    }

    /// Makes a namespace that nobody else has: `prefix` and a random end. It is never deleted: without a
    /// controller-manager a namespace stays in Terminating.
    pub async fn create_namespace(&self, prefix: &str) -> String {
        let mut namespace = Namespace::default();
        namespace.metadata.generate_name = Some(format!("{prefix}-"));
        let namespaces = Api::<Namespace>::all(self.client.clone());
        let created =
            namespaces.create(&PostParams::default(), &namespace).await.expect("create a namespace");
        created.metadata.name.expect("a created object has a name")
    }

    /// Makes a Service of type LoadBalancer with port 80, which has no ingress yet.
    pub async fn create_load_balancer(&self, namespace: &str, name: &str) -> Service {
        self.create_service(
            namespace,
            json!({
                "metadata": { "name": name },
                "spec": {
                    "type": "LoadBalancer",
                    "ports": [{ "port": 80 }],
                    // There are 2,768 node ports, for all tests together.
                    "allocateLoadBalancerNodePorts": false,
                },
            }),
        )
        .await
    }

    /// Makes a Service as it is given.
    pub async fn create_service(&self, namespace: &str, service: Value) -> Service {
        let service: Service = serde_json::from_value(service).expect("a Service");
        self.services(namespace)
            .create(&PostParams::default(), &service)
            .await
            .unwrap_or_else(|error| panic!("create {:?} in {namespace}: {error}", service.metadata.name))
    }

    /// Does what a cloud does once its load balancer stands or changes. No entries: its status becomes blank.
    pub async fn set_ingress(&self, namespace: &str, name: &str, ingress: &[Ingress<'_>]) -> Service {
        let ingress: Vec<_> = ingress.iter().map(|entry| entry.to_json()).collect();
        let patch = json!({ "status": { "loadBalancer": { "ingress": ingress } } });
        self.services(namespace)
            .patch_status(name, &PatchParams::default(), &Patch::Merge(patch))
            .await
            .unwrap_or_else(|error| panic!("set the ingress of {namespace}/{name}: {error}"))
    }

    /// Merges `patch` into a Service.
    pub async fn patch_service(&self, namespace: &str, name: &str, patch: Value) -> Service {
        self.services(namespace)
            .patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await
            .unwrap_or_else(|error| panic!("patch {namespace}/{name}: {error}"))
    }

    /// Deletes a Service that is there.
    pub async fn delete_service(&self, namespace: &str, name: &str) {
        self.services(namespace)
            .delete(name, &DeleteParams::default())
            .await
            .unwrap_or_else(|error| panic!("delete {namespace}/{name}: {error}"));
    }

    /// Reads a Service, if it is there.
    pub async fn get_service(&self, namespace: &str, name: &str) -> Option<Service> {
        self.services(namespace)
            .get_opt(name)
            .await
            .unwrap_or_else(|error| panic!("get {namespace}/{name}: {error}"))
    }

    /// The Services of a namespace, for whatever isn't offered here.
    pub fn services(&self, namespace: &str) -> Api<Service> {
        Api::namespaced(self.client.clone(), namespace)
    }
}
