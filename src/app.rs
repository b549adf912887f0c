//! Wiring: the order in which the parts start and stop.
//!
//! DNS outlives sync: the DNS listeners open before the first load balancer is known, a failed sync task is restarted,
//! and only a dead DNS listener ends the process.

mod cluster_dns;
pub mod error;
pub mod link_reader;
pub mod link_source;
mod list_hints;
mod name_sources;
mod sync_metrics;
mod sync_runtime;
mod sync_tasks;
mod target_checks;
mod zone_updates;

use std::future::Future;
use std::io;
use std::sync::Arc;

use futures::FutureExt;
use jiff::Timestamp;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::admin;
use crate::admin::api::Status;
use crate::cli::flags::{Flags, without_links};
use crate::cli::mistyped_variables::mistyped_variables;
use crate::dns::net::{RECOMMENDED_FILE_LIMIT, max_files};
use crate::dns::plugins::lb_linker::{LinkZone, failed_targets};
use crate::dns::plugins::setup::ServerContext;
use crate::dns::query_log::LineQueue;
use crate::dns::server::corefile_source::CorefileSource;
use crate::dns::server::instance::SetDebug;
use crate::dns::server::invalidation;
use crate::dns::server::reload::{CheckZones, Reloader};
use crate::dns::server::target_checker::TargetChecker;
use crate::links::facts::LinkFacts;
use crate::links::history::History;
use crate::metrics::tasks::TaskMetrics;
use crate::model::hostname::to_presentation;
use crate::model::hostname_policy::HostnamePolicy;
use crate::snapshot;
use crate::snapshot::context::SnapshotContext;
use crate::store::Store;
use crate::sync::task::supervisor::{SupervisorMetrics, SyncError, supervise};
use cluster_dns::ClusterDns;
use error::RunError;
use list_hints::ListHints;
use sync_metrics::SyncMetrics;
use sync_runtime::SyncRuntime;
use sync_tasks::{SyncSource, store_for};
use target_checks::check_dns;

/// Runs until `stop` is cancelled or a DNS listener fails.
///
/// # Errors
/// If lb-linker can't start, or a DNS listener fails.
pub async fn run(flags: Flags, stop: CancellationToken, set_debug: SetDebug) -> Result<(), RunError> {
    flags.validate()?;
    flags.upstreams()?;
    let corefile_source = CorefileSource::new(flags.corefile.clone(), || flags.built_in_corefile());
    let corefile = corefile_source.read()?;
    let zones = corefile.zones(&flags.hostname_policy.cluster_domain)?;
    let flags = flags.with_connection_of(&zones.links);
    flags.check_zones(&zones.links)?;
    let hostname_policy = flags.hostname_policy(&zones);
    let mistyped = mistyped_variables(corefile.variables());
    raise_file_limit();
    let sync = SyncRuntime::start().map_err(RunError::SyncThread)?;
    let has_cluster_dns = corefile.has_plugin("kubernetes");
    let source = if flags.reads_links(&zones.links, has_cluster_dns) {
        let flags = flags.clone();
        let hints = ListHints::new(flags.is_cluster_dns(has_cluster_dns));
        // A program for credentials may take a minute.
        tokio::select! {
            source = sync.run(async move { SyncSource::open(&flags, hints).await }) => Some(source?),
            () = stop.cancelled() => return Ok(()),
        }
    } else {
        None
    };
    let store = Arc::new(store_for(&zones.links, &flags.remote.names(), source.as_ref()));
    let (context, queue) = server_context(&flags, &store, &hostname_policy)?;
    let readiness = Arc::clone(&context.readiness);
    let cluster_dns = ClusterDns::new(&flags, &context)?;
    let supervisor = context.metrics.group()?;
    let runtimes = vec![("dns", Handle::current()), ("sync", sync.runtime().clone())];
    context.metrics.register(TaskMetrics::new(runtimes)?)?;
    let metrics = &context.metrics;
    let with_metrics =
        |source| Ok::<_, RunError>((source, SyncMetrics::register(metrics)?, failed_targets(metrics)?));
    let source = source.map(with_metrics).transpose()?;
    if let Some(address) = flags.named_admin_listen().filter(|_| source.is_some()) {
        admin::server::check_address(address).await?;
    }
    // Dropped when this function returns: the drop flushes the query log.
    let _writer = queue.write_to(io::stdout()).map_err(RunError::QueryLogThread)?;
    let with_links = |_| format!("links in {}", names_of(&zones.links));
    let links = source.as_ref().map_or_else(|| without_links(has_cluster_dns).to_owned(), with_links);
    let check_zones = zone_check(flags.clone(), source.is_some());
    let reloader = Reloader::start(corefile_source, corefile, check_zones, zones, context, set_debug)?;
    log_start(&links, &mistyped, &reloader.zones().borrow().links);
    let mut background =
        Background { tasks: JoinSet::new(), sync: sync.runtime().clone(), stop: stop.clone(), supervisor };
    background.start_invalidation(Arc::clone(&store), &reloader);
    let own = source.as_ref().and_then(|(source, ..)| source.connection());
    background.start_cluster_dns(cluster_dns.with_own(own, &sync).await?);
    if let Some((source, metrics, failed_targets)) = source {
        let facts = source.facts(&flags, &store, readiness, &metrics);
        let facts = LinkFacts { failed_targets: Some(failed_targets), ..facts };
        background.start_sync(flags, source, (facts, metrics), hostname_policy, &reloader);
    }
    let outcome = reloader.run(&stop).await;
    stop.cancel();
    while background.tasks.join_next().await.is_some() {}
    outcome?;
    info!("stopped");
    Ok(())
}

/// Returns the state that all blocks share, and the queue of the lines that they log.
fn server_context(
    flags: &Flags,
    store: &Arc<Store>,
    hostname_policy: &HostnamePolicy,
) -> Result<(ServerContext, LineQueue), RunError> {
    let (mut context, queue) = ServerContext::new(Arc::clone(store), flags.log_format.into())?;
    context.targets = Arc::new(hostname_policy.targets.clone());
    context.own_addresses = crate::dns::server::ns_addresses::of_this_server;
    context.has_own_cluster = flags.manifests.is_none();
    context.remotes = flags.remote.names();
    if let Some(snapshot) = &flags.snapshot {
        context.secondaries.keep_beside(snapshot);
    }
    Ok((context, queue))
}

/// The tasks beside the DNS listeners.
struct Background {
    tasks: JoinSet<()>,
    /// The runtime of most of these tasks.
    sync: Handle,
    stop: CancellationToken,
    supervisor: Arc<SupervisorMetrics>,
}

impl Background {
    fn spawn<F>(&mut self, name: &'static str, task: impl FnMut() -> F + Send + 'static)
    where
        F: Future<Output = Result<(), SyncError>> + Send + 'static,
    {
        let task = supervise(name, self.stop.clone(), Arc::clone(&self.supervisor), task);
        self.tasks.spawn_on(task, &self.sync);
    }

    /// Runs on the sync runtime: every change of the store wakes this task, but few changes cause a look-up.
    fn start_invalidation(&mut self, store: Arc<Store>, reloader: &Reloader) {
        let (servers, dns, until) = (reloader.instance.servers(), Handle::current(), self.stop.clone());
        let mut is_restart = false;
        self.spawn("the cache invalidation", move || {
            let is_restart = std::mem::replace(&mut is_restart, true);
            invalidation::run(Arc::clone(&store), servers.clone(), dns.clone(), until.clone(), is_restart)
                .map(Ok)
        });
    }

    /// Starts what reads the objects of the plugin *kubernetes*, as long as the Corefile has it.
    fn start_cluster_dns(&mut self, cluster_dns: ClusterDns) {
        let until = self.stop.clone();
        self.spawn("the cluster's DNS", move || cluster_dns.clone().run(until.clone()));
    }

    /// Starts what reads links, and what shows and keeps them.
    fn start_sync(
        &mut self,
        flags: Flags,
        source: SyncSource,
        (facts, metrics): (LinkFacts, SyncMetrics),
        hostname_policy: HostnamePolicy,
        reloader: &Reloader,
    ) {
        if let Some(notice) = flags.sync_notice() {
            warn!("{notice}");
        }
        if let Some(notice) = flags.upstream_notice() {
            info!("{notice}");
        }
        let policy = watch::Sender::new(Arc::new(hostname_policy));
        let history = Arc::new(History::new(Timestamp::now()));
        let status = Status {
            facts: facts.clone(),
            history: Arc::clone(&history),
            zones: reloader.zones(),
            clusters: reloader.clusters(),
            identity: flags.identity(),
            leader: source.leader(),
            election: Arc::clone(&metrics.election),
        };
        let (store, until) = (Arc::clone(&facts.store), self.stop.clone());
        self.spawn("the history of links", move || {
            Arc::clone(&history).record(Arc::clone(&store), until.clone()).map(Ok)
        });
        if let Some(address) = flags.admin_listen.address() {
            let until = self.stop.clone();
            let serving = move || admin::server::serve(address, status.clone(), until.clone()).map(Ok);
            let (stop, supervisor) = (self.stop.clone(), Arc::clone(&self.supervisor));
            self.tasks.spawn(supervise("the status page", stop, supervisor, serving));
        }
        if let (Some(path), Some((cluster, first_list))) = (flags.snapshot.clone(), source.cluster()) {
            let context = SnapshotContext {
                path,
                max_age: flags.snapshot_max_age,
                cluster,
                selection: Arc::new(flags.selection()),
                policy: policy.subscribe(),
                first_list,
                store: Arc::clone(&facts.store),
                staleness: Arc::clone(&metrics.staleness),
                metrics: Arc::clone(&metrics.snapshot),
            };
            let until = self.stop.clone();
            self.spawn("the snapshot", move || snapshot::task::run(context.clone(), until.clone()));
        }
        let store = Arc::clone(&facts.store);
        let check_dns = check_dns(TargetChecker::new(reloader.instance.servers(), Handle::current()));
        let (zones, until) = (reloader.zones(), self.stop.clone());
        let syncing = source.run(flags.clone(), facts, metrics, policy.subscribe(), check_dns, until.clone());
        self.tasks.spawn_on(syncing, &self.sync);
        self.spawn("the zones of links", move || {
            zone_updates::run(flags.clone(), Arc::clone(&store), policy.clone(), zones.clone(), until.clone())
                .map(Ok)
        });
    }
}

/// Returns the check of the zones of a reloaded Corefile.
fn zone_check(flags: Flags, has_source: bool) -> CheckZones {
    Arc::new(move |zones| {
        if !has_source && !zones.is_empty() {
            return Err("the Corefile had neither lb_linker nor k8s_gateway when lb-linker started, so no load balancers are \
                        read: restart lb-linker to use them"
                .to_owned());
        }
        flags.check_zones(zones).map_err(|error| error.to_string())
    })
}

fn names_of(zones: &[LinkZone]) -> String {
    let names: Vec<String> = zones.iter().map(|zone| to_presentation(&zone.origin)).collect();
    if names.is_empty() { "no zone".to_owned() } else { names.join(" ") }
}

fn log_start(links: &str, mistyped: &[String], zones: &[LinkZone]) {
    info!("lb-linker {}: {links}", env!("CARGO_PKG_VERSION"));
    mistyped.iter().for_each(|warning| warn!("{warning}"));
    note_of_free_zones(zones).iter().for_each(|note| info!("{note}"));
}

/// Returns a note about the zones of *k8s_gateway*; `None` if there are none.
fn note_of_free_zones(zones: &[LinkZone]) -> Option<String> {
    let free: Vec<LinkZone> = zones.iter().filter(|zone| zone.k8s_gateway.is_some()).cloned().collect();
    let note =
        format!("every namespace may have any name in {}, by the rules of k8s_gateway", names_of(&free));
    (!free.is_empty()).then_some(note)
}

/// Raises the limit of open files to the hard limit, as Go programs do: each TCP client and each query to an upstream
/// needs a file descriptor.
fn raise_file_limit() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
    if let Err(error) = raised {
        warn!("the limit of open files can't be raised: {error}");
    }
    let files = max_files();
    if files < RECOMMENDED_FILE_LIMIT {
        warn!(
            "the process may open {files} files, and {RECOMMENDED_FILE_LIMIT} are needed for 500 look-ups of one client at a \
             time: with fewer, look-ups and clients' connections are refused sooner. Raise the hard limit: \
             `ulimit -Hn {RECOMMENDED_FILE_LIMIT}`, or LimitNOFILE={RECOMMENDED_FILE_LIMIT} in a systemd unit"
        );
    }
}
