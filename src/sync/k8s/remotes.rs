//! Connections to remote clusters, which are only read.

use std::sync::Arc;

use futures::future::try_join_all;
use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Client, ResourceExt};
use tokio::sync::watch;

use super::client::{ClientConnection, ClientError, ClusterIdentity, connect_to_remote};
use super::errors::ApiAvailability;
use crate::model::remote::RemoteCluster;

/// The namespace whose uid tells clusters apart.
pub const KUBE_SYSTEM: &str = "kube-system";

/// A remote cluster.
#[derive(Clone)]
pub struct Remote {
    pub name: Arc<str>,
    pub client: Client,
    pub availability: ApiAvailability,
    /// The identity of the cluster. The address in it may change.
    pub identity: watch::Receiver<ClusterIdentity>,
    /// The API server, as the log names it.
    pub server: String,
}

/// The remote clusters, in the order of the flags.
#[derive(Clone, Default)]
pub struct Remotes(Arc<[Remote]>);

/// A remote cluster whose configuration can't be used.
#[derive(Debug, thiserror::Error)]
#[error("--remote {name}: {source}")]
pub struct RemoteError {
    pub name: Arc<str>,
    pub source: Box<ClientError>,
}

impl Remotes {
    /// Makes a client for each cluster. Doesn't connect yet.
    ///
    /// # Errors
    /// If a kubeconfig can't be used.
    pub async fn open(clusters: &[RemoteCluster]) -> Result<Self, RemoteError> {
        // At the same time: a program for credentials may take seconds.
        Ok(Self(try_join_all(clusters.iter().map(open)).await?.into()))
    }

    /// Returns one cluster.
    #[cfg(test)]
    pub(crate) fn of(name: &str, client: Client) -> Self {
        let (availability, identity) = (ApiAvailability::default(), watch::Sender::default().subscribe());
        Self([Remote { name: name.into(), client, availability, identity, server: String::new() }].into())
    }

    #[must_use]
    pub fn all(&self) -> &[Remote] {
        &self.0
    }

    /// Returns the client of a cluster, and whether its API server answers.
    #[must_use]
    pub fn client(&self, cluster: &str) -> Option<(Client, ApiAvailability)> {
        let remote = self.0.iter().find(|remote| *remote.name == *cluster)?;
        Some((remote.client.clone(), remote.availability.clone()))
    }
}

async fn open(RemoteCluster { name, kubeconfig, context }: &RemoteCluster) -> Result<Remote, RemoteError> {
    let opened = connect_to_remote(name, kubeconfig.clone(), context.clone()).await;
    let ClientConnection { client, server, identity } =
        opened.map_err(|source| RemoteError { name: Arc::clone(name), source: source.into() })?;
    let (of_server, cluster) = (identity.clone(), Arc::clone(name));
    let describe = move || format!("{} of cluster {cluster}", of_server.borrow().server);
    Ok(Remote {
        name: Arc::clone(name),
        client,
        availability: ApiAvailability::of(describe),
        identity,
        server: server.to_string(),
    })
}

/// Returns the uid of the namespace kube-system, which tells clusters apart.
///
/// # Errors
/// If the API server doesn't answer, or forbids it.
pub async fn uid_of_cluster(client: &Client) -> kube::Result<Option<String>> {
    let namespace = Api::<Namespace>::all(client.clone()).get_metadata(KUBE_SYSTEM).await?;
    Ok(namespace.uid())
}
