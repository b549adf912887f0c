//! Reloads the Corefile on SIGUSR1, and periodically with the plugin `reload`.

use std::fmt::Write;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use prometheus::{IntCounter, IntGaugeVec, Opts, Registry};
use rand::RngExt;
use sha2::{Digest, Sha512};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::corefile_source::{CorefileSource, CorefileZones, LoadedCorefile};
use super::instance::Instance;
use super::probes::is_ready;
use crate::dns::corefile::CorefileError;
use crate::dns::plugins::lb_linker::LinkZone;
use crate::dns::plugins::setup::{Reload, ServerContext};
use crate::dns::server::config::Configuration;
use crate::dns::server::error::ServerError;
use crate::dns::server::instance::SetDebug;
use crate::metrics::MetricGroup;
use crate::model::owner::Zone;
use crate::store::cluster::first_lists::FirstLists;
use crate::store::cluster::registry::{ClusterRegistry, ServedCluster};

/// How long a reload waits until the sources of names are listed, as for the plugin *kubernetes*.
const FIRST_NAMES_TIMEOUT: Duration = Duration::from_secs(5);

struct ReloadMetrics {
    failed: IntCounter,
    version: IntGaugeVec,
}

impl MetricGroup for ReloadMetrics {
    fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let failed = IntCounter::new(
            "coredns_reload_failed_total",
            "Counter of the number of failed reload attempts.",
        )?;
        let version = IntGaugeVec::new(
            Opts::new("coredns_reload_version_info", "A metric with value and type of hash."),
            &["hash", "value"],
        )?;
        registry.register(Box::new(failed.clone()))?;
        registry.register(Box::new(version.clone()))?;
        Ok(Self { failed, version })
    }
}

pub(crate) struct Reloader {
    pub(crate) instance: Instance,
    source: CorefileSource,
    check_zones: CheckZones,
    zones: watch::Sender<CorefileZones>,
    context: ServerContext,
    metrics: Arc<ReloadMetrics>,
    /// The hash of the Corefile in force, or the error of the last reload.
    last: Result<String, String>,
    sigusr1: Signal,
    /// The hash of a Corefile that couldn't be applied.
    failed: Option<String>,
    /// Keeps up to date what the blocks of a Corefile that couldn't be applied answer from, for the next attempt.
    pending: Vec<ServedCluster>,
}

/// Returns an error if the zones of links conflict with the flags.
pub(crate) type CheckZones = Arc<dyn Fn(&[LinkZone]) -> Result<(), String> + Send + Sync>;

#[derive(Debug, thiserror::Error)]
enum ReloadError {
    #[error(transparent)]
    Corefile(#[from] CorefileError),
    #[error("{0}")]
    Zones(String),
    #[error(transparent)]
    Run(#[from] ServerError),
    #[error("lb-linker panicked while it read the Corefile: {0}")]
    Panic(#[from] tokio::task::JoinError),
}

/// A Corefile that was read again, with its hash; without a configuration if it is unchanged.
struct LoadedConfig {
    hash: String,
    zones: CorefileZones,
    configuration: Option<Configuration>,
}

impl Reloader {
    /// Applies the Corefile for the first time.
    ///
    /// # Errors
    /// If the Corefile can't be applied.
    pub(crate) fn start(
        source: CorefileSource,
        corefile: LoadedCorefile,
        check_zones: CheckZones,
        zones: CorefileZones,
        context: ServerContext,
        set_debug: SetDebug,
    ) -> Result<Self, ServerError> {
        let requested = signal(SignalKind::user_defined1()).map_err(ServerError::Signal)?;
        let metrics = context.metrics.group()?;
        let mut serving = Instance::new(context.clone(), set_debug)?;
        let hash = hash(&corefile);
        serving.apply(corefile.configure(&context)?)?;
        let zones = watch::Sender::new(zones);
        Ok(Self {
            instance: serving,
            source,
            check_zones,
            zones,
            context,
            metrics,
            last: Ok(hash),
            sigusr1: requested,
            failed: None,
            pending: Vec::new(),
        })
    }

    /// Returns the clusters of all blocks.
    pub(crate) fn clusters(&self) -> ClusterRegistry {
        self.context.clusters.clone()
    }

    /// Returns a receiver of the zones of the Corefile, which is notified when a reload changes them.
    pub(crate) fn zones(&self) -> watch::Receiver<CorefileZones> {
        self.zones.subscribe()
    }

    /// Serves until `stop` and for the lameduck duration, or until a listener dies.
    ///
    /// # Errors
    /// If a listener dies.
    pub(crate) async fn run(mut self, stop: &CancellationToken) -> Result<(), ServerError> {
        let outcome = loop {
            let pause = self.instance.reload.map_or(Duration::MAX, pause);
            tokio::select! {
                biased;
                () = stop.cancelled() => break Ok(()),
                (address, why) = self.instance.wait_for_stopped_listener() => {
                    break Err(ServerError::ListenerStopped { address, why })
                }
                Some(()) = self.sigusr1.recv() => {
                    self.reload(true, stop).await;
                    self.instance.restart();
                }
                () = sleep(pause) => self.reload(false, stop).await,
            }
        };
        let lameduck = self.instance.lameduck;
        if outcome.is_ok() && !lameduck.is_zero() {
            info!("lameduck: serving for another {lameduck:?}");
            tokio::select! {
                () = sleep(lameduck) => {}
                // A dead listener ends the lameduck.
                _ = self.instance.wait_for_stopped_listener() => {}
            }
        }
        self.instance.end().await;
        outcome
    }

    /// Reads and applies the Corefile again. `stop` interrupts the reading, because a file system may not respond. If
    /// an error repeats, it is logged and counted again only after SIGUSR1 (`requested`).
    async fn reload(&mut self, requested: bool, stop: &CancellationToken) {
        let Some(loaded) = stop.run_until_cancelled(self.load(requested)).await else { return };
        let outcome = match loaded {
            Ok(LoadedConfig { configuration: None, .. }) => return,
            Ok(LoadedConfig { hash, zones, configuration: Some(configuration) }) => {
                let all = configuration.blocks.iter().flat_map(|built| built.builder.first_lists.clone());
                let all: Vec<Arc<FirstLists>> = all.collect();
                if is_ready(&self.instance.servers().borrow()) {
                    all.iter().for_each(|lists| lists.set_optional());
                    let names = configuration.blocks.iter().flat_map(|built| &built.builder.first_names);
                    names.for_each(|names| names.set_optional());
                }
                let before = self.zones.borrow().clone();
                // Each attempt would list all objects twice, and meanwhile names of the blocks in force wouldn't be known.
                let is_repeated = !requested && self.failed.as_ref() == Some(&hash);
                let listed = async {
                    let names = async {
                        if !is_repeated {
                            self.first_names(&zones).await;
                        }
                    };
                    tokio::join!(first_lists(all.clone(), &self.context.clusters), names).0
                };
                let Some(served) = stop.run_until_cancelled(listed).await else { return };
                let applied = self.instance.apply(configuration);
                if applied.is_err() {
                    self.set_zones(before);
                }
                self.failed = applied.is_err().then(|| hash.clone());
                // From here on the blocks keep the objects up to date themselves.
                self.pending = if applied.is_ok() { Vec::new() } else { served };
                applied.map(|summary| (hash, zones, summary, all)).map_err(ReloadError::from)
            }
            Err(problem) => {
                self.pending.clear();
                Err(problem)
            }
        };
        match outcome {
            Ok((hash, zones, summary, first_lists)) => {
                self.set_zones(zones);
                info!("the {} was read again and is in force: {summary}", self.source.log_name());
                first_lists.iter().for_each(|lists| warn_if_unlisted(lists));
                self.metrics.version.reset();
                self.metrics.version.with_label_values(&["sha512", &hash]).set(1);
                self.last = Ok(hash);
            }
            Err(problem) => {
                let problem = problem.to_string();
                if requested || self.last.as_ref().err() != Some(&problem) {
                    self.metrics.failed.inc();
                    error!(
                        "the new {} can't be applied, the previous one stays in force: {problem}",
                        self.source.log_name()
                    );
                }
                self.last = Err(problem);
            }
        }
    }

    fn set_zones(&self, zones: CorefileZones) {
        self.zones.send_if_modified(|known| {
            let changed = *known != zones;
            *known = zones;
            changed
        });
    }

    /// Waits until the sources of these zones are listed, or the time for that is over. The sources of the zones are read
    /// from here on, also those of the zones before.
    async fn first_names(&self, zones: &CorefileZones) {
        let wanted: Vec<Zone> = zones.links.iter().map(Zone::from).collect();
        if self.context.store.has_listed(&wanted) {
            return;
        }
        let mut both = zones.clone();
        let before = self.zones.borrow().clone();
        let is_new = |zone: &LinkZone| !zones.links.iter().any(|known| known.origin == zone.origin);
        both.links.extend(before.links.into_iter().filter(is_new));
        both.cluster.extend(before.cluster.into_iter().filter(|zone| !zones.cluster.contains(zone)));
        self.set_zones(both);
        // After that, names that aren't known get SERVFAIL.
        let _ = timeout(FIRST_NAMES_TIMEOUT, self.context.store.sources_listed(&wanted)).await;
    }

    /// Reads the Corefile. Builds its configuration after SIGUSR1 (`requested`), or if the Corefile or a file that its
    /// plugins read has changed.
    async fn load(&self, requested: bool) -> Result<LoadedConfig, ReloadError> {
        let (source, check_zones, context) =
            (self.source.clone(), Arc::clone(&self.check_zones), self.context.clone());
        let known = self.last.as_ref().ok().cloned();
        let (files, optional_files) = (self.instance.files(), self.instance.optional_files());
        // Reading large files may block.
        spawn_blocking(move || {
            let corefile = source.read()?;
            let hash = hash(&corefile);
            let is_same =
                |(path, bytes): &(PathBuf, Vec<u8>)| content_is(path, bytes).is_ok_and(|is_same| is_same);
            // While the file is missing, its last content stays in use.
            let is_changed =
                |(path, bytes): &(PathBuf, Vec<u8>)| content_is(path, bytes).is_ok_and(|is_same| !is_same);
            if !requested
                && known.as_ref() == Some(&hash)
                && files.iter().all(is_same)
                && !optional_files.iter().any(is_changed)
            {
                return Ok(LoadedConfig { hash, zones: CorefileZones::default(), configuration: None });
            }
            let zones = corefile.zones(&context.targets.cluster_domain)?;
            check_zones(&zones.links).map_err(ReloadError::Zones)?;
            Ok(LoadedConfig { hash, zones, configuration: Some(corefile.configure(&context)?) })
        })
        .await?
    }
}

/// Waits until the objects that blocks answer from are listed, or the time for that is over. They are kept up to date as
/// long as the returned values live.
async fn first_lists(all: Vec<Arc<FirstLists>>, clusters: &ClusterRegistry) -> Vec<ServedCluster> {
    let served = all.iter().map(|lists| clusters.serve(Arc::clone(lists.cluster()))).collect();
    join_all(all.iter().map(|lists| lists.wait())).await;
    served
}

/// Warns of a block that answers before its objects are listed.
fn warn_if_unlisted(lists: &FirstLists) {
    let cluster = lists.cluster();
    if !cluster.is_listed() {
        let why = cluster.failure().unwrap_or_else(|| "not all objects are listed yet".to_owned());
        warn!("names of kubernetes that aren't known are SERVFAIL until all objects are listed: {why}");
    }
}

/// Returns whether a file has this content. Reads no more of it than that takes.
fn content_is(path: &Path, bytes: &[u8]) -> io::Result<bool> {
    let mut now = Vec::new();
    File::open(path)?.take(bytes.len() as u64 + 1).read_to_end(&mut now)?;
    Ok(now == bytes)
}

/// Returns the pause before the next check, with jitter so that replicas don't reload at the same time.
fn pause(Reload { interval, jitter }: Reload) -> Duration {
    let shift = jitter.mul_f64(rand::rng().random_range(0.0..=1.0));
    (interval + shift).saturating_sub(jitter / 2)
}

/// Returns the hash of a Corefile with its imports and without comments.
fn hash(corefile: &LoadedCorefile) -> String {
    let digest = Sha512::digest(corefile.text());
    let mut hex = String::new();
    for byte in digest {
        let _ = write!(hex, "{byte:02x}");
    }
    hex
}

#[cfg(test)]
mod tests;
