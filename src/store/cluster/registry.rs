//! The clusters whose objects DNS needs. Blocks with the same connection and selection share one.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::watch;

use super::Cluster;
use super::objects::Kind;

/// What is read from which API server.
#[derive(Clone, Debug, PartialEq)]
pub struct ClusterSpec {
    pub connection: Connection,
    pub limits: ApiLimits,
    /// The label selector of Services, slices and Pods; empty for all.
    pub labels: String,
    /// The label selector of namespaces; empty for all.
    pub namespace_labels: String,
    pub has_endpoints: bool,
    pub has_pods: bool,
    /// Whether endpoints without a hostname have the names of their Pods.
    pub names_endpoints_by_pods: bool,
    pub has_imports: bool,
    /// Whether the topology zones of endpoints are read.
    pub has_zones: bool,
}

/// Limits on the requests to the API server; 0 for none.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ApiLimits {
    pub qps: f64,
    pub burst: u32,
    pub max_inflight: usize,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Connection {
    /// That of lb-linker itself.
    #[default]
    Own,
    Kubeconfig {
        path: PathBuf,
        context: Option<String>,
    },
    /// The URL of the API server.
    Endpoint {
        url: String,
        tls: Option<ClientTls>,
    },
}

/// The files of a connection by TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientTls {
    pub certificate: PathBuf,
    pub key: PathBuf,
    pub authority: PathBuf,
}

/// The clusters of all blocks. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct ClusterRegistry(Arc<Clusters>);

#[derive(Debug, Default)]
struct Clusters {
    known: Mutex<Vec<Weak<Cluster>>>,
    /// Those of the blocks that are served, each as often as it is.
    served: watch::Sender<Vec<Arc<Cluster>>>,
}

/// Keeps a cluster's objects up to date until it is dropped.
#[derive(Debug)]
pub struct ServedCluster {
    registry: ClusterRegistry,
    cluster: Arc<Cluster>,
}

/// What a block without options reads.
impl Default for ClusterSpec {
    fn default() -> Self {
        Self {
            connection: Connection::default(),
            limits: ApiLimits::default(),
            labels: String::new(),
            namespace_labels: String::new(),
            has_endpoints: true,
            has_pods: false,
            names_endpoints_by_pods: false,
            has_imports: false,
            has_zones: false,
        }
    }
}

impl ClusterSpec {
    /// Returns whether objects of a kind are read.
    #[must_use]
    pub fn has(&self, kind: Kind) -> bool {
        match kind {
            Kind::Services | Kind::Namespaces => true,
            Kind::Slices => self.has_endpoints || self.has_imports,
            Kind::Imports => self.has_imports,
            Kind::Pods => self.has_pods,
        }
    }
}

impl ClusterRegistry {
    /// Returns the cluster with this connection and selection.
    #[must_use]
    pub fn cluster(&self, spec: ClusterSpec) -> Arc<Cluster> {
        let mut known = self.0.known.lock();
        known.retain(|cluster| cluster.strong_count() > 0);
        let found = known.iter().filter_map(Weak::upgrade).find(|cluster| *cluster.spec() == spec);
        found.unwrap_or_else(|| {
            let cluster = Arc::new(Cluster::new(spec));
            known.push(Arc::downgrade(&cluster));
            cluster
        })
    }

    /// Lets later blocks have a new cluster instead of one that isn't kept up to date any more. A question under way may
    /// still hold it.
    pub fn forget(&self, cluster: &Arc<Cluster>) {
        self.0.known.lock().retain(|known| !std::ptr::eq(known.as_ptr(), Arc::as_ptr(cluster)));
    }

    /// Returns whether a cluster is read by lb-linker's own connection.
    #[must_use]
    pub fn has_own(&self) -> bool {
        self.known().iter().any(|cluster| cluster.spec().connection == Connection::Own)
    }

    /// Returns all clusters.
    #[must_use]
    pub fn known(&self) -> Vec<Arc<Cluster>> {
        self.0.known.lock().iter().filter_map(Weak::upgrade).collect()
    }

    /// Returns the number of objects in all clusters, by the names of the kinds that are read.
    #[must_use]
    pub fn numbers(&self) -> BTreeMap<&'static str, usize> {
        let mut numbers = BTreeMap::new();
        for cluster in self.known() {
            for kind in Kind::ALL.into_iter().filter(|kind| cluster.spec().has(*kind)) {
                *numbers.entry(kind.resource()).or_default() += cluster.number(kind);
            }
        }
        numbers
    }

    /// Keeps a cluster's objects up to date as long as the returned value lives.
    #[must_use]
    pub fn serve(&self, cluster: Arc<Cluster>) -> ServedCluster {
        self.0.served.send_modify(|served| served.push(Arc::clone(&cluster)));
        ServedCluster { registry: self.clone(), cluster }
    }

    /// Returns the clusters whose objects have to be kept up to date, each at least once.
    #[must_use]
    pub fn served(&self) -> watch::Receiver<Vec<Arc<Cluster>>> {
        self.0.served.subscribe()
    }
}

impl Drop for ServedCluster {
    fn drop(&mut self) {
        self.registry.0.served.send_modify(|served| {
            if let Some(at) = served.iter().position(|cluster| Arc::ptr_eq(cluster, &self.cluster)) {
                served.swap_remove(at);
            }
        });
    }
}
