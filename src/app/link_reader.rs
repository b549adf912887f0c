//! Reads the links of a cluster, or of manifests, without serving DNS and without writing.

use std::fmt::Debug;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::{join, try_join_all};
use hickory_proto::rr::Name;
use kube::api::ListParams;
use kube::core::NamespaceResourceScope;
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::{CancellationToken, DropGuard};
use tower::timeout::error::Elapsed;
use tracing::warn;

use super::sync_metrics::SyncMetrics;
use super::sync_runtime::SyncRuntime;
use super::sync_tasks::{SyncSource, store_for};
use super::target_checks::no_checks;
use crate::app::error::RunError;
use crate::app::list_hints::ListHints;
use crate::cli::flags::Flags;
use crate::dns::plugins::lb_linker::LinkZone;
use crate::dns::server::corefile_source::{CorefileSource, CorefileZones};
use crate::links::facts::LinkFacts;
use crate::metrics::Metrics;
use crate::model::excerpt::sentence;
use crate::model::hostname_policy::HostnamePolicy;
use crate::model::owner::Source;
use crate::store::{Input, Store};
use crate::sync::external_target::decision::SyncMode;
use crate::sync::external_target::missing_namespace::NAMESPACE_HINT;
use crate::sync::k8s::endpoint_slice::EndpointSlice;
use crate::sync::k8s::errors::{ListError, in_place, is_asked_by_http, watch_scopes};
use crate::sync::k8s::service::Service;

/// The time in which all load balancers, external targets and StableNames have to be read.
const READ_TIMEOUT: Duration = Duration::from_secs(10);

/// The pause between two looks at what has been read of remote clusters.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// What a reader reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reads {
    Links,
    /// Links as users see them, and the Services that follow, if asked for.
    Views {
        reads_followers: bool,
    },
    /// As users see them, and the names of all sources.
    Names,
}

/// A store that is kept in step with its source until the `LinkReader` is dropped.
pub struct LinkReader {
    pub store: Arc<Store>,
    pub facts: LinkFacts,
    /// The URL of the API server; `None` for manifests.
    pub server: Option<String>,
    /// The zones in which links have names.
    pub zones: Vec<LinkZone>,
    _policy: watch::Sender<Arc<HostnamePolicy>>,
    _stop: DropGuard,
    _sync: SyncRuntime,
}

/// Returns the zones in which links have names.
///
/// # Errors
/// If the flags or the Corefile can't be used.
pub fn zones_of_links(flags: &Flags) -> Result<Vec<Name>, RunError> {
    Ok(read_zones(flags)?.links.into_iter().map(|zone| zone.origin).collect())
}

fn read_zones(flags: &Flags) -> Result<CorefileZones, RunError> {
    flags.validate()?;
    let corefile = CorefileSource::new(flags.corefile.clone(), || flags.built_in_corefile()).read()?;
    let zones = corefile.zones(&flags.hostname_policy.cluster_domain)?;
    flags.clone().with_connection_of(&zones.links).check_zones(&zones.links)?;
    Ok(zones)
}

/// Asks for one object of a namespace, or of all: a refusal, or an API server that can't be reached, is an error, which a
/// watch would only log. An API server that is overloaded is none.
async fn first_request<K>(client: &Client, what: &str, namespace: Option<&str>) -> Result<(), ListError>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
{
    let api: Api<K> = match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    };
    match api.list_metadata(&ListParams::default().limit(1)).await {
        Err(error @ kube::Error::Api(_)) if is_asked_by_http(&error) => {
            Err(ListError { what: in_place(what, namespace), source: Box::new(error) })
        }
        Err(kube::Error::Api(status)) if !matches!(status.code, 401 | 403 | 404) => Ok(()),
        // The caller's deadline is about as near, and says what was waited for.
        Err(kube::Error::Service(error)) if error.is::<Elapsed>() => pending().await,
        Err(error) => Err(ListError { what: in_place(what, namespace), source: Box::new(error) }),
        Ok(_) => Ok(()),
    }
}

/// Opens the source of the links, and returns it with the URL of the API server, if there is one, and until
/// when it may be read.
///
/// # Errors
/// If the API server can't be reached, or refuses to list the load balancers.
async fn open_readable(flags: Flags) -> Result<(SyncSource, Option<String>, Instant), RunError> {
    let mut source = SyncSource::open(&flags, ListHints::new(false)).await?;
    // The reader doesn't wait for a cluster that has failed.
    source.ask_remotes_once();
    // From here on: a program for credentials may take long.
    let deadline = Instant::now() + READ_TIMEOUT;
    let server = source.cluster().map(|(identity, _)| identity.borrow().server.clone());
    if let (Some(client), Some(server)) = (source.client(), &server) {
        let namespaces = flags.selection().namespaces;
        let services = |namespace| first_request::<Service>(client, "Services", namespace);
        let watched = try_join_all(watch_scopes(&namespaces).map(services));
        let in_targets = Some(&*flags.target_namespace);
        let slices = first_request::<EndpointSlice>(client, "EndpointSlices", in_targets);
        let targets = join(services(in_targets), slices).map(|(services, slices)| services.and(slices));
        let first = timeout_at(deadline, join(watched, targets)).await;
        match first {
            Ok((Err(error), _)) => {
                return Err(RunError::NotListed { server: sentence(server).to_string(), error });
            }
            // Without the slices an external target with addresses would seem to be missing.
            Ok((_, Err(error))) if matches!(error.code(), 401 | 403) => {
                let why = error.explain(NAMESPACE_HINT);
                warn!("{why}; the links are read without the external targets: their states aren't known");
                source.leave_out_external_targets();
            }
            Err(_) => {
                return Err(RunError::Silent { server: sentence(server).to_string(), waited: READ_TIMEOUT });
            }
            Ok(_) => {}
        }
    }
    Ok((source, server, deadline))
}

impl LinkReader {
    /// Reads the links that an lb-linker with these flags has.
    ///
    /// # Errors
    /// If the flags can't be used, the API server can't be reached or refuses to list the load balancers, or they can't be
    /// read within 10 s.
    pub async fn open(flags: Flags) -> Result<Self, RunError> {
        Ok(Self::start(flags, Reads::Links).await?.0)
    }

    /// As [`Self::open`], with the load balancers of remote clusters, unless they can't be read: see
    /// [`LinkFacts::notice_of_reading`].
    ///
    /// # Errors
    /// As [`Self::open`].
    pub async fn open_with_remotes(flags: Flags) -> Result<Self, RunError> {
        let (reader, deadline) = Self::start(flags, Reads::Links).await?;
        reader.wait_for_remotes(deadline).await;
        Ok(reader)
    }

    /// As [`Self::open_for_views`], with the names of all sources. Logs a warning if a source can't be read.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub async fn open_for_names(flags: Flags) -> Result<Self, RunError> {
        let (reader, deadline) = Self::start(flags, Reads::Names).await?;
        reader.wait_for_external_targets(deadline).await;
        let zones = reader.store.zones();
        if timeout_at(deadline, reader.store.sources_listed(&zones)).await.is_err() {
            let mut own = zones.iter().filter(|zone| zone.cluster.is_none());
            let unlisted = own.find_map(|zone| reader.store.unlisted_source(zone));
            let source = unlisted.map(Source::word).unwrap_or_default();
            warn!(
                "the source {source} wasn't read within {} s: its names are missing",
                READ_TIMEOUT.as_secs()
            );
        }
        reader.wait_for_remotes(deadline).await;
        Ok(reader)
    }

    /// Waits until each remote cluster is read or has failed.
    async fn wait_for_remotes(&self, deadline: Instant) {
        while self.waits_for_remotes() && Instant::now() < deadline {
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Returns whether a source of a remote cluster hasn't been read and hasn't failed.
    fn waits_for_remotes(&self) -> bool {
        let failed = self.facts.findings.readiness.sources.lock();
        let is_pending = |source: &Source| failed.keys().all(|(failed, ..)| *failed != source.general());
        self.store.unlisted_remotes().iter().any(is_pending)
    }

    /// As [`Self::open`], and also reads what else `lb-linker links` shows: the external targets and, with
    /// `reads_followers`, the Services that follow by `linker.hsj.com/source`. Logs a warning if the external targets
    /// can't be read.
    ///
    /// # Errors
    /// As [`Self::open`], or if the Services that follow can't be read.
    pub async fn open_for_views(flags: Flags, reads_followers: bool) -> Result<Self, RunError> {
        let (reader, deadline) = Self::start(flags, Reads::Views { reads_followers }).await?;
        reader.wait_for_external_targets(deadline).await;
        reader.wait_for_remotes(deadline).await;
        if reads_followers {
            let known = timeout_at(deadline, reader.facts.followers.known()).await;
            known.map_err(|_| RunError::FollowersNotRead(READ_TIMEOUT))?;
        }
        Ok(reader)
    }

    async fn wait_for_external_targets(&self, deadline: Instant) {
        if timeout_at(deadline, self.facts.external_targets.known()).await.is_err() {
            warn!(
                "the external targets weren't read within {} s: the states don't tell whether they are as they should be",
                READ_TIMEOUT.as_secs()
            );
        }
    }

    /// Returns the reader, and until when it may read.
    async fn start(flags: Flags, reads: Reads) -> Result<(Self, Instant), RunError> {
        let needs_external_targets = flags.sync_mode() != SyncMode::Off;
        let flags = flags.read_only();
        let mut zones = read_zones(&flags)?;
        let flags = flags.with_connection_of(&zones.links);
        if reads != Reads::Names {
            zones.links.iter_mut().for_each(|zone| zone.sources.retain(|source| *source == Source::SERVICES));
        }
        let sync = SyncRuntime::start().map_err(RunError::SyncThread)?;
        let (source, server, deadline) = sync.run(open_readable(flags.clone())).await?;
        let store = Arc::new(store_for(&zones.links, &flags.remote.names(), Some(&source)));
        let metrics = SyncMetrics::register(&Metrics::new()?)?;
        let facts = source.facts(&flags, &store, Arc::default(), &metrics);
        let reads_followers = reads == Reads::Views { reads_followers: true };
        let looks_up = reads != Reads::Links;
        let facts = LinkFacts { needs_external_targets, reads_followers, looks_up, ..facts };
        let policy = watch::Sender::new(Arc::new(flags.hostname_policy(&zones)));
        let stop = CancellationToken::new();
        let (policies, until) = (policy.subscribe(), stop.clone());
        let syncing = source.run(flags, facts.clone(), metrics, policies, no_checks(), until);
        sync.runtime().spawn(syncing);
        let reader = Self {
            store: Arc::clone(&store),
            facts,
            server,
            zones: zones.links,
            _policy: policy,
            _stop: stop.drop_guard(),
            _sync: sync,
        };
        let read = async {
            store.known(Input::Services).await;
            store.known(Input::ExternalTargets).await;
            store.known(Input::StableNames).await;
        };
        timeout_at(deadline, read).await.map_err(|_| RunError::LinksNotRead(READ_TIMEOUT))?;
        Ok((reader, deadline))
    }
}
