//! Where `lb-linker links` reads the links, and `lb-linker names` the names: a running lb-linker, the API server, or
//! manifests.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::broadcast;
use tokio::sync::broadcast::error::TryRecvError;
use tokio::time::{sleep, timeout};
use tracing::warn;

use super::link_reader::LinkReader;
use crate::admin::api::{LinkListing, NameListing};
use crate::admin::client::{ClientError, InstanceClient};
use crate::app::error::RunError;
use crate::cli::flags::Flags;
use crate::links::LinkFilter;
use crate::links::followers::FollowerView;
use crate::links::names::{NameFilter, NameView};
use crate::links::view::LinkView;
use crate::model::excerpt::sentence;
use crate::model::link::LinkChange;

/// The interval between two requests to a running lb-linker, and between two looks at the facts beside the links.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// A source of the links that a filter selects.
pub struct LinkSource {
    filter: LinkFilter,
    origin: OpenSource,
}

enum OpenSource {
    /// A running lb-linker, with the links of its last answer.
    Instance { address: SocketAddr, client: Box<InstanceClient>, listing: Box<LinkListing> },
    Reader {
        reader: Box<LinkReader>,
        changes: broadcast::Receiver<Arc<[LinkChange]>>,
        /// The version of the facts beside the links, and the notice, when they last changed.
        seen: (u64, Option<String>),
    },
}

/// A running lb-linker that was asked, or the reason why the cluster or the manifests are read instead.
enum Asked<T> {
    Instance { address: SocketAddr, client: Box<InstanceClient>, listing: Box<T> },
    None { foreign: Option<String> },
}

/// Asks the lb-linker at `--admin-listen`, unless that is `none`, or a flag names a cluster or manifests. Flags that `run`
/// refuses are an error, although a running lb-linker has its own.
async fn ask<T: Default>(
    flags: &Flags,
    what: &str,
    client: impl FnOnce(SocketAddr) -> InstanceClient,
    list: impl AsyncFnOnce(&mut InstanceClient) -> Result<Option<T>, ClientError>,
) -> Result<Asked<T>, RunError> {
    flags.validate()?;
    let is_named = flags.manifests.is_some() || flags.kubeconfig.is_some() || flags.context.is_some();
    let (false, Some(address)) = (is_named, flags.admin_listen.address()) else {
        return Ok(Asked::None { foreign: None });
    };
    let mut client = Box::new(client(address));
    match list(&mut client).await {
        Ok(listing) => {
            let listing = Box::new(listing.unwrap_or_default());
            return Ok(Asked::Instance { address, client, listing });
        }
        Err(error @ ClientError::NotReady(_)) => return Err(RunError::Instance { address, error }),
        // At its default address a running lb-linker is optional.
        Err(error) if error.is_absent() && flags.named_admin_listen().is_none() => {}
        Err(error) if error.is_absent() => {
            warn!(
                "nothing answers at --admin-listen {address}; the {what} are read from the cluster instead"
            );
        }
        Err(error) => return Ok(Asked::None { foreign: Some(format!("--admin-listen {address}: {error}")) }),
    }
    Ok(Asked::None { foreign: None })
}

/// Returns the names that a filter selects, the name of the running lb-linker that they come from, and its address; and a
/// line about their age. They come from a running lb-linker, the cluster or manifests, as [`LinkSource::open`] says.
///
/// # Errors
/// If the flags can't be used, or the names can't be read.
pub async fn read_names(flags: Flags, filter: &NameFilter) -> Result<NamesRead, RunError> {
    let client = |address| InstanceClient::of_names(address, filter);
    let asked = ask(&flags, "names", client, async |client| client.names().await).await?;
    match asked {
        Asked::Instance { address, listing, .. } => {
            let NameListing { instance, notice, page, unread } = *listing;
            let instance = Some((instance, address));
            let mut read = NamesRead { instance, notice, names: page.items, unread };
            let mut next = page.next;
            while let Some(after) = next {
                let filter = NameFilter { after: Some(after), ..filter.clone() };
                let further = InstanceClient::of_names(address, &filter).names().await;
                let further = further.map_err(|error| RunError::Instance { address, error })?;
                let page = further.unwrap_or_default().page;
                read.names.extend(page.items);
                next = page.next;
            }
            Ok(read)
        }
        Asked::None { foreign } => {
            let reader = LinkReader::open_for_names(flags).await?;
            warn_of_foreign(foreign, &reader, "names");
            let (mut names, mut after) = (Vec::new(), filter.after.clone());
            loop {
                let page = reader.facts.names(&NameFilter { after, ..filter.clone() });
                names.extend(page.items);
                after = page.next;
                if after.is_none() {
                    let name = filter.name.as_deref();
                    let unread = name.and_then(|name| reader.facts.unread_of_name(name));
                    let notice = reader.facts.notice_of_reading();
                    return Ok(NamesRead { instance: None, notice, names, unread });
                }
            }
        }
    }
}

/// The names that a filter selects.
pub struct NamesRead {
    /// The name and the address of the running lb-linker that they come from.
    pub instance: Option<(String, SocketAddr)>,
    /// A line about their age.
    pub notice: Option<String>,
    pub names: Vec<NameView>,
    /// Which objects haven't been read, if one of them may have the name that was asked for, and isn't found.
    pub unread: Option<String>,
}

fn warn_of_foreign(foreign: Option<String>, reader: &LinkReader, what: &str) {
    if let (Some(foreign), Some(server)) = (foreign, &reader.server) {
        warn!("{foreign}; the {what} are read from API server {} instead", sentence(server));
    }
}

impl LinkSource {
    /// Opens the lb-linker at `--admin-listen`. If that is `none`, no lb-linker of this version answers there, or a flag
    /// names a cluster or manifests, opens the cluster or the manifests. Logs a warning if it opens the cluster because
    /// the connection to `--admin-listen` timed out, or another program or version answered. With `reads_followers`
    /// opens the cluster, too, if the lb-linker doesn't know the Services that follow.
    ///
    /// # Errors
    /// If the flags can't be used, or the links can't be read.
    pub async fn open(flags: Flags, filter: LinkFilter, reads_followers: bool) -> Result<Self, RunError> {
        let client = |address| InstanceClient::of_links(address, &filter);
        let asked = ask(&flags, "links", client, async |client| client.links().await).await?;
        let mut is_led = false;
        let foreign = match asked {
            Asked::Instance { address, client, listing }
                if !reads_followers || listing.followers.is_some() =>
            {
                return Ok(Self { filter, origin: OpenSource::Instance { address, client, listing } });
            }
            Asked::Instance { address, listing, .. } => {
                let name = sentence(&listing.instance).to_string();
                let why = "doesn't know the Services that follow: only the leader does";
                is_led = true;
                Some(format!("{name} at {address} {why}"))
            }
            Asked::None { foreign } => foreign,
        };
        if reads_followers && flags.manifests.is_some() {
            return Err(RunError::FollowersOfManifests);
        }
        let mut reader = Box::new(LinkReader::open_for_views(flags, reads_followers).await?);
        // Another replica lets Services follow: a Service that it has never had to write is as it should be.
        reader.facts.reads_followers &= !is_led;
        warn_of_foreign(foreign, &reader, "links");
        let changes = reader.store.subscribe();
        let seen = (reader.facts.version(), reader.facts.notice());
        Ok(Self { filter, origin: OpenSource::Reader { reader, changes, seen } })
    }

    /// Returns the name and the address of the running lb-linker that the links come from; `None` if they come from a
    /// cluster or from manifests.
    #[must_use]
    pub fn instance(&self) -> Option<(&str, SocketAddr)> {
        match &self.origin {
            OpenSource::Instance { address, listing, .. } => Some((&listing.instance, *address)),
            OpenSource::Reader { .. } => None,
        }
    }

    /// Returns the present links, or those of the last answer of the running lb-linker.
    #[must_use]
    pub fn links(&self) -> Vec<LinkView> {
        match &self.origin {
            OpenSource::Instance { listing, .. } => listing.items.clone(),
            OpenSource::Reader { reader, .. } => reader.facts.views(&self.filter),
        }
    }

    /// Returns which objects haven't been read, if one of them may be the load balancer that was asked for, and isn't
    /// found.
    #[must_use]
    pub fn unread(&self) -> Option<String> {
        match &self.origin {
            OpenSource::Instance { listing, .. } => listing.unread.clone(),
            OpenSource::Reader { reader, .. } => reader.facts.unread_of_link(&self.filter),
        }
    }

    /// Returns the Services that follow; none unless they were asked for.
    #[must_use]
    pub fn followers(&self) -> Vec<FollowerView> {
        match &self.origin {
            OpenSource::Instance { listing, .. } => listing.followers.clone(),
            OpenSource::Reader { reader, .. } => reader.facts.followers(&self.filter),
        }
        .unwrap_or_default()
    }

    /// Returns a line about the namespaces whose Services that follow can't be read.
    #[must_use]
    pub fn followers_notice(&self) -> Option<String> {
        match &self.origin {
            OpenSource::Instance { listing, .. } => listing.followers_notice.clone(),
            OpenSource::Reader { reader, .. } => reader.facts.followers_notice(),
        }
    }

    /// Returns the part of [`Self::notice`] that may come later.
    #[must_use]
    pub fn later_notice(&self) -> Option<String> {
        match &self.origin {
            OpenSource::Instance { listing, .. } => listing.notice.clone(),
            OpenSource::Reader { reader, .. } => reader.facts.notice_of_age(),
        }
    }

    /// Returns a line about the age of the links, if the API server can't be reached or is silent, about remote clusters that
    /// can't be read, and about what else the running lb-linker can't read or write: without one, the log on standard
    /// error has that.
    #[must_use]
    pub fn notice(&self) -> Option<String> {
        match &self.origin {
            OpenSource::Instance { listing, .. } => listing.notice.clone(),
            OpenSource::Reader { reader, .. } => reader.facts.notice_of_reading(),
        }
    }

    /// Waits until the links may have changed.
    ///
    /// # Errors
    /// If the links come from a running lb-linker that doesn't answer any more.
    pub async fn changed(&mut self) -> Result<(), RunError> {
        match &mut self.origin {
            OpenSource::Instance { address, client, listing } => loop {
                sleep(POLL_INTERVAL).await;
                let answer = client.links().await;
                if let Some(newer) =
                    answer.map_err(|error| RunError::Instance { address: *address, error })?
                {
                    **listing = newer;
                    return Ok(());
                }
            },
            OpenSource::Reader { reader, changes, seen } => loop {
                // Facts beside the links, and the age of the links, change without a change of a link.
                // `Lagged` also means a change. `Closed` can't occur, because the store of the reader has the sender.
                let has_change = timeout(POLL_INTERVAL, changes.recv()).await.is_ok();
                // Discard the changes until now: one list covers all of them.
                while !matches!(changes.try_recv(), Err(TryRecvError::Empty | TryRecvError::Closed)) {}
                let now = (reader.facts.version(), reader.facts.notice());
                if has_change || now != *seen {
                    *seen = now;
                    return Ok(());
                }
            },
        }
    }
}
