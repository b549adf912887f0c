//! Errors of the flags, and of the files and the cluster that the flags name.

use std::net::SocketAddr;
use std::path::PathBuf;

use crate::dns::corefile::CorefileError;
use crate::file_watcher::DirectoryError;
use crate::sync::k8s::client::ClientError;
use crate::sync::k8s::remotes::RemoteError;

/// Flags that are valid one by one, but not in combination, or whose file can't be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("--upstream none can't be combined with other upstreams")]
    NoneAndOthers,
    #[error("--client-nets any can't be combined with networks")]
    AnyAndNets,
    /// A resolv.conf can't be used.
    #[error("--upstream {}: {why}; name a resolver's address, or \"none\"", path.display())]
    ResolvConf {
        /// The file that the flag names.
        path: PathBuf,
        why: String,
    },
    /// A zone lies in another zone.
    #[error("--zone {inner}: it lies in --zone {outer}, whose names it would hide")]
    NestedZones {
        /// The zone that lies in `outer`.
        inner: String,
        outer: String,
    },
    /// Services with the finalizer could never be deleted.
    #[error("--finalizer with --max-deletes 0: a deleted Service would wait forever for its external target")]
    FinalizerWithoutDeletes,
    /// The API server would refuse the externalName of a tombstone.
    #[error(
        "--on-delete tombstone with --zone {0}: deleted.{0} can't be an externalName, which has letters, digits and \
         hyphens only; give another zone first"
    )]
    Tombstone(String),
    /// A block of *k8s_gateway* names another connection than the flags, or than at the start.
    #[error(
        "k8s_gateway names the kubeconfig {0}, and lb-linker has one connection to read names by, {1}: make them equal, or leave \
         one out; a change needs a restart"
    )]
    OtherConnection(String, String),
    /// A zone has names of the cluster's own domain.
    #[error("--zone {0}")]
    ClusterDomain(String),
    #[error("--zone {0} is given twice")]
    ZoneTwice(String),
    #[error("--sources: {0} is given twice")]
    SourceTwice(String),
    #[error("--remote: {number} clusters; there can be {max} at most")]
    TooManyRemotes { number: usize, max: usize },
    #[error("--remote {0} is given twice; each cluster needs a name of its own")]
    RemoteTwice(String),
    #[error("--remote {0}: it is the name of this cluster; change one of them, this one by --cluster-name")]
    RemoteIsHome(String),
    #[error("--hostname-namespaces {namespace}: there is no --remote {cluster}")]
    UnknownRemote { namespace: String, cluster: String },
    /// The cluster's domain would hide the zone's own records.
    #[error(
        "--remote {name}: the zone {zone} has its own records below {name}.{zone}; give the cluster another name, or the zone another apex"
    )]
    RemoteIsApex { name: String, zone: String },
    #[error("--listen {0} is given twice")]
    ListenTwice(SocketAddr),
    /// Leader-for-life is set without `POD_NAME` and `POD_NAMESPACE`.
    #[error(
        "--leader-election life works in a Pod only, which the variables POD_NAME and POD_NAMESPACE have to \
         name (deploy/ sets them)"
    )]
    LifeOutsideAPod,
    #[error(
        "--snapshot-max-age 0s: no snapshot would ever be used; give a longer time, or leave out --snapshot"
    )]
    SnapshotWithoutAge,
    /// The files that lb-linker writes would be read as manifests.
    #[error(
        "--output {}: this is the directory of --manifests; name another one, because its files would be read as manifests",
        .0.display()
    )]
    OutputInManifests(PathBuf),
    /// An upstream is one of lb-linker's own listeners.
    #[error("--upstream {upstream} is lb-linker's own --listen {listen}: every query would loop")]
    OwnListener {
        /// The upstream's address.
        upstream: SocketAddr,
        listen: SocketAddr,
    },
}

#[derive(Debug, thiserror::Error)]
pub enum InputError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error(transparent)]
    Remote(#[from] RemoteError),
    #[error("--{flag} {source}")]
    Directory {
        /// The flag that names the directory, without the hyphens.
        flag: &'static str,
        source: DirectoryError,
    },
    #[error("{0}")]
    Manifest(String),
    #[error(transparent)]
    Corefile(#[from] CorefileError),
    /// A metric is registered twice: a bug in lb-linker.
    #[error("metrics: {0}")]
    Metrics(#[from] prometheus::Error),
}

impl InputError {
    /// Returns whether the user's input is the cause.
    #[must_use]
    pub fn is_input(&self) -> bool {
        !matches!(self, Self::Metrics(_))
    }
}
