//! Reads a hosts file and notices its changes.

use std::fs::File;
use std::io::{self, Read as _};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use arc_swap::ArcSwap;
use hickory_proto::rr::Name;
use parking_lot::Mutex;
use prometheus::{Gauge, GaugeVec, Opts, Registry};
use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error};

use super::map::{HostsMap, address_of};
use crate::dns::message::query::wire_name;
use crate::dns::message::validity::OutdatedFlag;
use crate::dns::message::zone_set::ZoneSet;
use crate::metrics::{MetricGroup, registered};

/// A hosts file, and the entries in the Corefile.
#[derive(Debug)]
pub(super) struct HostsFile {
    path: PathBuf,
    zones: ZoneSet,
    /// Whether PTR records are served.
    reverse: bool,
    inline: HostsMap,
    map: ArcSwap<HostsMap>,
    /// Outdates the answers that rest on the map.
    outdated: ArcSwap<OutdatedFlag>,
    /// The version of the file that was read last.
    last_read: Mutex<Option<Version>>,
}

/// The metadata that shows a change of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Version {
    modified: SystemTime,
    size: u64,
}

#[derive(Debug)]
pub(super) struct FileCounters {
    entries: GaugeVec,
    reloaded: Gauge,
}

impl MetricGroup for FileCounters {
    fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let entries =
            Opts::new("coredns_hosts_entries", "The combined number of entries in hosts and Corefile.");
        let reloaded = Gauge::new(
            "coredns_hosts_reload_timestamp_seconds",
            "The timestamp of the last reload of hosts file.",
        );
        Ok(Self {
            entries: registered(registry, GaugeVec::new(entries, &["hostsfile"]))?,
            reloaded: registered(registry, reloaded)?,
        })
    }
}

impl HostsFile {
    /// Returns the entries of a file, which is read if it exists.
    pub(super) fn new(path: PathBuf, zones: ZoneSet, reverse: bool, inline: HostsMap) -> Self {
        let file = Self {
            path,
            zones,
            reverse,
            inline,
            map: ArcSwap::default(),
            outdated: ArcSwap::default(),
            last_read: Mutex::default(),
        };
        // An unreadable file may become readable later; `set_up` has warned about a missing file.
        let _ = file.refresh();
        file
    }

    /// Returns the flag of the entries that are read after this call.
    pub(super) fn outdated(&self) -> OutdatedFlag {
        OutdatedFlag::clone(&self.outdated.load())
    }

    /// Returns the addresses of a name: those in the file come first.
    pub(super) fn addresses(&self, name: &Name) -> Vec<IpAddr> {
        let name = wire_name(name);
        self.map.load().addresses(&name).chain(self.inline.addresses(&name)).collect()
    }

    /// Returns the names of the address that a reverse name stands for.
    pub(super) fn names(&self, name: &Name) -> Vec<Name> {
        let Some(address) = address_of(name) else { return Vec::new() };
        [self.map.load().names(address), self.inline.names(address)].concat()
    }

    /// Checks the file once per `every`, and reads it if it has changed, until `stop` is cancelled; with a zero
    /// interval, never. Also sets the metrics.
    pub(super) async fn watch(
        self: Arc<Self>,
        every: Duration,
        counters: &FileCounters,
        stop: &CancellationToken,
    ) {
        self.count(counters);
        if every.is_zero() {
            return;
        }
        let file = Arc::clone(&self);
        poll(&self.path, every, move || file.refresh(), || self.count(counters), stop).await;
    }

    /// Reads the file if it has changed, and returns whether it has.
    fn refresh(&self) -> io::Result<bool> {
        let mut file = File::open(&self.path)?;
        let metadata = file.metadata()?;
        let version = Version { modified: metadata.modified()?, size: metadata.len() };
        if *self.last_read.lock() == Some(version) {
            return Ok(false);
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        let map = HostsMap::parse(&String::from_utf8_lossy(&bytes), &self.zones, self.reverse);
        debug!(path = %self.path.display(), entries = map.len(), "hosts file read");
        self.map.store(Arc::new(map));
        self.outdated.swap(Arc::default()).set();
        *self.last_read.lock() = Some(version);
        Ok(true)
    }

    #[expect(clippy::cast_precision_loss, reason = "a hosts file has fewer than 2^53 entries")]
    fn count(&self, counters: &FileCounters) {
        let Some(version) = *self.last_read.lock() else { return };
        let entries = self.inline.len() + self.map.load().len();
        counters.entries.with_label_values(&[&*self.path.to_string_lossy()]).set(entries as f64);
        let modified = version.modified.duration_since(UNIX_EPOCH).unwrap_or_default();
        counters.reloaded.set(modified.as_secs_f64());
    }
}

/// Calls `refresh` at this interval until `stop` is cancelled, and `on_change` each time it has returned true.
pub(super) async fn poll(
    path: &Path,
    every: Duration,
    refresh: impl Fn() -> io::Result<bool> + Clone + Send + 'static,
    on_change: impl Fn(),
    stop: &CancellationToken,
) {
    let mut ticks = interval_at(Instant::now() + every, every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while stop.run_until_cancelled(ticks.tick()).await.is_some() {
        // Reading may block.
        let read = tokio::task::spawn_blocking(refresh.clone()).await;
        match read {
            Ok(Ok(true)) => on_change(),
            Ok(Ok(false)) => {}
            Ok(Err(error)) => debug!(path = %path.display(), "can't read the hosts file: {error}"),
            Err(error) => error!(path = %path.display(), "reading the hosts file failed: {error}"),
        }
    }
}
