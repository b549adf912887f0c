//! Where `lb-linker links` reads the links: a running lb-linker, the API server, or manifests.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::sync::broadcast;
use tokio::sync::broadcast::error::TryRecvError;
use tokio::time::sleep;
use tracing::warn;

use super::link_reader::LinkReader;
use crate::admin::client::{ClientError, InstanceClient};
use crate::app::error::RunError;
use crate::cli::flags::Flags;
use crate::links::LinkFilter;
use crate::links::view::{LinkView, views};
use crate::model::excerpt::sentence;
use crate::model::link::LinkChange;

/// The interval between two requests to a running lb-linker.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// A source of the links that a filter selects.
pub struct LinkSource {
    filter: LinkFilter,
    origin: OpenSource,
}

enum OpenSource {
    /// A running lb-linker, with the links of its last answer.
    Instance {
        address: SocketAddr,
        client: InstanceClient,
        name: String,
        links: Vec<LinkView>,
    },
    Reader {
        reader: Box<LinkReader>,
        changes: broadcast::Receiver<LinkChange>,
        target_namespace: String,
    },
}

impl LinkSource {
    /// Opens the lb-linker at `--admin-listen`. If that is `none`, no lb-linker of this version answers there, or a flag
    /// names a cluster or manifests, opens the cluster or the manifests. Logs a warning if it opens the cluster because
    /// the connection to `--admin-listen` timed out, or another program or version answered.
    ///
    /// # Errors
    /// If the flags can't be used, or the links can't be read.
    pub async fn open(flags: Flags, filter: LinkFilter) -> Result<Self, RunError> {
        let mut foreign = None;
        let is_named = flags.manifests.is_some() || flags.kubeconfig.is_some() || flags.context.is_some();
        if let (false, Some(address)) = (is_named, flags.admin_listen.address()) {
            let mut client = InstanceClient::new(address, filter.clone());
            match client.links().await {
                Ok(listing) => {
                    let (name, links) =
                        listing.map(|listing| (listing.instance, listing.items)).unwrap_or_default();
                    return Ok(Self {
                        filter,
                        origin: OpenSource::Instance { address, client, name, links },
                    });
                }
                Err(error @ ClientError::NotReady(_)) => return Err(RunError::Instance { address, error }),
                Err(error) if error.is_absent() => {}
                Err(error) => foreign = Some(format!("--admin-listen {address}: {error}")),
            }
        }
        let target_namespace = flags.target_namespace.clone();
        let reader = Box::new(LinkReader::open(flags).await?);
        if let (Some(foreign), Some(server)) = (foreign, &reader.server) {
            warn!("{foreign}; the links are read from API server {} instead", sentence(server));
        }
        let changes = reader.store.subscribe();
        Ok(Self { filter, origin: OpenSource::Reader { reader, changes, target_namespace } })
    }

    /// Returns the name and the address of the running lb-linker that the links come from; `None` if they come from a
    /// cluster or from manifests.
    #[must_use]
    pub fn instance(&self) -> Option<(&str, SocketAddr)> {
        match &self.origin {
            OpenSource::Instance { address, name, .. } => Some((name, *address)),
            OpenSource::Reader { .. } => None,
        }
    }

    /// Returns the present links, or those of the last answer of the running lb-linker.
    #[must_use]
    pub fn links(&self) -> Vec<LinkView> {
        match &self.origin {
            OpenSource::Instance { links, .. } => links.clone(),
            OpenSource::Reader { reader, target_namespace, .. } => {
                views(&reader.store, target_namespace, &self.filter)
            }
        }
    }

    /// Waits until the links may have changed.
    ///
    /// # Errors
    /// If the links come from a running lb-linker that doesn't answer any more.
    pub async fn changed(&mut self) -> Result<(), RunError> {
        match &mut self.origin {
            OpenSource::Instance { address, client, links, .. } => loop {
                sleep(POLL_INTERVAL).await;
                let listing = client.links().await;
                if let Some(listing) =
                    listing.map_err(|error| RunError::Instance { address: *address, error })?
                {
                    *links = listing.items;
                    return Ok(());
                }
            },
            OpenSource::Reader { changes, .. } => {
                // `Lagged` also means a change. `Closed` can't occur, because the store of the reader has the sender.
                let _ = changes.recv().await;
                // Discard the changes until now: one list covers all of them.
                while !matches!(changes.try_recv(), Err(TryRecvError::Empty | TryRecvError::Closed)) {}
                Ok(())
            }
        }
    }
}
