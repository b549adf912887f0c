//! Shortcuts to create and read objects of a control plane.

use k8s_openapi::api::core::v1::{Namespace, Service};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

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

/// Access to a control plane with the permissions of `client`. Failed requests panic with the API server's reason.
#[derive(Clone)]
pub struct Cluster {
    pub client: Client,
}

impl Cluster {
    pub fn new(client: Client) -> Self {
        Self { client }
    }

    /// Creates a namespace with a unique name: `prefix` and a random suffix. It is never deleted, because without a
    /// controller-manager a namespace stays in Terminating.
    pub async fn create_namespace(&self, prefix: &str) -> String {
        let mut namespace = Namespace::default();
        namespace.metadata.generate_name = Some(format!("{prefix}-"));
        let namespaces = Api::<Namespace>::all(self.client.clone());
        let created =
            namespaces.create(&PostParams::default(), &namespace).await.expect("create a namespace");
        created.metadata.name.expect("a created object has a name")
    }

    /// Creates a Service of type LoadBalancer with port 80 and no ingress.
    pub async fn create_load_balancer(&self, namespace: &str, name: &str) -> Service {
        self.create_service(
            namespace,
            json!({
                "metadata": { "name": name },
                "spec": {
                    "type": "LoadBalancer",
                    "ports": [{ "port": 80 }],
                    // All tests share 2,768 node ports.
                    "allocateLoadBalancerNodePorts": false,
                },
            }),
        )
        .await
    }

    pub async fn create_service(&self, namespace: &str, service: Value) -> Service {
        let service: Service = serde_json::from_value(service).expect("a Service");
        self.services(namespace)
            .create(&PostParams::default(), &service)
            .await
            .unwrap_or_else(|error| panic!("create {:?} in {namespace}: {error}", service.metadata.name))
    }

    /// Sets the load balancer status, as a cloud provider does. An empty list makes the status blank.
    pub async fn set_ingress(&self, namespace: &str, name: &str, ingress: &[Ingress<'_>]) -> Service {
        let ingress: Vec<_> = ingress.iter().map(|entry| entry.to_json()).collect();
        let patch = json!({ "status": { "loadBalancer": { "ingress": ingress } } });
        self.services(namespace)
            .patch_status(name, &PatchParams::default(), &Patch::Merge(patch))
            .await
            .unwrap_or_else(|error| panic!("set the ingress of {namespace}/{name}: {error}"))
    }

    /// Applies a JSON merge patch to a Service.
    pub async fn patch_service(&self, namespace: &str, name: &str, patch: Value) -> Service {
        self.services(namespace)
            .patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await
            .unwrap_or_else(|error| panic!("patch {namespace}/{name}: {error}"))
    }

    pub async fn delete_service(&self, namespace: &str, name: &str) {
        self.services(namespace)
            .delete(name, &DeleteParams::default())
            .await
            .unwrap_or_else(|error| panic!("delete {namespace}/{name}: {error}"));
    }

    pub async fn get_service(&self, namespace: &str, name: &str) -> Option<Service> {
        self.services(namespace)
            .get_opt(name)
            .await
            .unwrap_or_else(|error| panic!("get {namespace}/{name}: {error}"))
    }

    /// Returns the API for Services of a namespace, for requests that have no method here.
    pub fn services(&self, namespace: &str) -> Api<Service> {
        Api::namespaced(self.client.clone(), namespace)
    }
}
