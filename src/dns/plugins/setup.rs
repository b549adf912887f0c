//! The context that plugins are set up in: the shared state of all blocks and the builder of one block.

use std::fs::File;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use futures::future::BoxFuture;
use hickory_proto::rr::Name;
use rustls::ServerConfig;
use tokio::time::{MissedTickBehavior, interval};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use super::dnstap::tap::Taps;
use super::etcd::keys::SharedKeys;
use super::file::ZoneRegistry;
use super::geoip::database::Databases;
use super::kubernetes::external_zones::ExternalZones;
use super::r#loop::LoopState;
use super::secondary::zone::Secondaries;
use super::transfer::slots::TransferSlots;
use super::ttl_limits::TtlLimits;
use crate::dns::chain::plugin::{ChainPlugin, Plugin};
use crate::dns::chain::proxy_sources::ProxySources;
use crate::dns::chain::server::{AccessRule, Server};
use crate::dns::corefile::arguments::zones;
use crate::dns::corefile::{CorefileError, Directive, Position, Token};
use crate::dns::message::query::whole_wire_name;
use crate::dns::message::tsig::TsigKeys;
use crate::dns::message::zone_set::ZoneSet;
use crate::dns::query_log::{LineFormat, LineQueue, QueryLog};
use crate::dns::transport::connections::Timeouts;
use crate::dns::upstream::socket_budget::SocketBudget;
use crate::dns::upstream::stale_cache::StaleCaches;
use crate::metrics::{MetricGroup, Metrics};
use crate::model::hostname::to_presentation;
use crate::model::target_policy::TargetPolicy;
use crate::readiness::Readiness;
use crate::store::Store;
use crate::store::change_time::ChangeSerial;
use crate::store::cluster::answer::is_reverse;
use crate::store::cluster::first_lists::FirstLists;
use crate::store::cluster::metrics::ClusterMetrics;
use crate::store::cluster::registry::ClusterRegistry;
use crate::store::metrics::LinkMetrics;
use crate::store::sources::FirstNames;

/// The maximum size of a file that is read during set-up, in bytes.
const MAX_FILE: u64 = 16 << 20;
/// How often serials of transferred zones are brought up to date: they are Unix times in seconds.
const SERIAL_INTERVAL: Duration = Duration::from_secs(1);

/// The state that all blocks share.
#[derive(Clone, Debug)]
pub struct ServerContext {
    pub store: Arc<Store>,
    /// What keeps sync from filling the store, or from writing.
    pub readiness: Arc<Readiness>,
    /// The policy for names and addresses in answers for targets of links.
    pub targets: Arc<TargetPolicy>,
    pub stale_caches: StaleCaches,
    pub upstream_sockets: Arc<SocketBudget>,
    pub zones: ZoneRegistry,
    pub secondaries: Secondaries,
    pub etcds: SharedKeys,
    pub clusters: ClusterRegistry,
    pub transfer_slots: Arc<TransferSlots>,
    /// The databases of `geoip`.
    pub databases: Databases,
    /// The names of the remote clusters, which have domains below the zones of links.
    pub remotes: Arc<[Arc<str>]>,
    /// Whether lb-linker itself reads a cluster, not manifests.
    pub has_own_cluster: bool,
    pub metrics: Arc<Metrics>,
    /// Returns the addresses at which clients reach this process if it listens on the given addresses; an empty slice
    /// means all addresses.
    pub own_addresses: fn(&[IpAddr]) -> Vec<IpAddr>,
    /// The queue of the lines that `log` and `errors` write.
    pub query_log: QueryLog,
}

/// The input and output of a plugin's set-up function.
///
/// Set-up has no side effects but reading files: it opens no port, spawns no task and queries no server.
pub struct Setup<'a> {
    /// The lines of this plugin, in the order of the Corefile; there is at least one.
    pub lines: &'a [Directive],
    /// The lines of all plugins of the block.
    pub block: &'a [Directive],
    pub zones: &'a [Name],
    /// The block with the plugins that were set up before this plugin.
    pub builder: &'a mut BlockBuilder,
    pub context: &'a ServerContext,
}

/// A zone of `kubernetes` or `k8s_external`, and the line that names it.
pub struct ClusterZone {
    pub zone: Name,
    pub plugin: String,
    pub position: Position,
}

/// A zone with names of links, and the line of `lb_linker` or `k8s_gateway` that names it.
pub struct LinkLine {
    pub zone: Name,
    pub plugin: &'static str,
    pub position: Position,
}

/// The servers that resolve the host names of a line's upstreams: not all of them may be lb-linker itself.
pub struct HostResolvers {
    pub servers: Vec<SocketAddr>,
    /// Whether the Corefile names them, not resolv.conf.
    pub are_named: bool,
    pub position: Position,
}

/// A server block during set-up, before it is served.
#[derive(Default)]
pub struct BlockBuilder {
    pub plugins: Vec<ChainPlugin>,
    pub access_rules: Vec<Arc<dyn AccessRule>>,
    pub on_restart: Vec<OnRestart>,
    /// The zones in which links have names.
    pub link_zones: ZoneSet,
    /// The lines with these zones.
    pub link_lines: Vec<LinkLine>,
    /// The zones of `kubernetes` and `k8s_external`: no listener may have links' names there, too.
    pub cluster_zones: Vec<ClusterZone>,
    /// The zones of `k8s_external`, which `kubernetes` transfers.
    pub(super) external: Option<Arc<ExternalZones>>,
    /// The bounds of TTLs by `cache`.
    pub(super) ttl_limits: Option<TtlLimits>,
    /// The lines of `dnstap`.
    pub(super) taps: Option<Taps>,
    /// The keys of `tsig`.
    pub tsig: Option<Arc<TsigKeys>>,
    /// The zones of `metadata`.
    pub labeled: ZoneSet,
    /// The directory that relative paths start from; empty for the working directory.
    pub root: PathBuf,
    /// The listen addresses; empty for all addresses.
    pub bind: Vec<IpAddr>,
    pub ports: Vec<u16>,
    pub tls: Option<TlsAcceptor>,
    pub timeouts: Timeouts,
    /// The sources of PROXY headers that `proxyproto` names.
    pub proxies: Option<Arc<ProxySources>>,
    /// The maximum number of connections that `https` sets.
    pub https_connections: Option<usize>,
    /// The maximum numbers of connections, and of queries at a time on each, that `grpc_server` sets.
    pub grpc_connections: Option<usize>,
    pub grpc_streams: Option<u32>,
    /// The maximum number of streams at a time on a connection that `quic` sets.
    pub quic_streams: Option<u32>,
    pub debug: bool,
    /// Whether the view of the block has expressions, so that it may not be for all queries.
    pub has_expressions: bool,
    pub endpoints: Vec<HttpEndpoint>,
    pub tasks: Vec<Task>,
    pub reload: Option<Reload>,
    /// What a reload waits for, while the blocks before answer.
    pub first_lists: Vec<Arc<FirstLists>>,
    pub first_names: Vec<Arc<FirstNames>>,
    /// The upstreams that the Corefile names by address, with their positions: none of them may be a listener of this
    /// block.
    pub upstreams: Vec<(SocketAddr, Position)>,
    pub host_resolvers: Vec<HostResolvers>,
    pub loop_state: Option<Arc<LoopState>>,
    /// Possible mistakes, such as a file that doesn't exist yet and is looked for again later.
    pub warnings: Vec<CorefileError>,
    /// The files that were read during set-up, and their contents.
    pub files_read: Vec<(PathBuf, Vec<u8>)>,
    /// The files that may be missing, and their contents during set-up; empty for a missing file.
    pub optional_files: Vec<(PathBuf, Vec<u8>)>,
}

impl BlockBuilder {
    /// Returns the name of the view that the block is for; `None` if it is for all queries.
    #[must_use]
    pub fn view(&self) -> Option<Arc<str>> {
        self.plugins.iter().find_map(|plugin| plugin.view())
    }
}

/// A function that SIGUSR1 calls: it resets failure state that would otherwise persist.
pub type OnRestart = Arc<dyn Fn() + Send + Sync>;

/// A task that runs as long as a block is served, until the token is cancelled. The task starts once, with a server
/// that serves the block.
pub type Task = Box<dyn FnOnce(Arc<Server>, CancellationToken) -> BoxFuture<'static, ()> + Send>;

#[derive(Clone, Debug)]
pub struct HttpEndpoint {
    pub kind: HttpKind,
    pub address: SocketAddr,
    pub position: Position,
    /// `None` for plain HTTP.
    pub tls: Option<HttpTls>,
}

#[derive(Clone, Debug)]
pub struct HttpTls {
    /// The files that were read, and their contents; the Corefile names the first file.
    pub files: Vec<(PathBuf, Vec<u8>)>,
    pub config: Arc<ServerConfig>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HttpKind {
    Metrics,
    Health {
        /// How long the process keeps serving after the shutdown has begun.
        lameduck: Duration,
    },
    Ready,
}

/// How often the Corefile is checked for changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reload {
    pub interval: Duration,
    /// The range of the random shift of the interval, half of it in either direction.
    pub jitter: Duration,
}

// === impl HttpKind ===

impl HttpKind {
    /// Returns the flag for the address in the built-in Corefile.
    #[must_use]
    pub fn flag(self) -> &'static str {
        match self {
            Self::Metrics => "--metrics-listen",
            Self::Health { .. } => "--health-listen",
            Self::Ready => "--ready-listen",
        }
    }

    #[must_use]
    pub fn path(self) -> &'static str {
        match self {
            Self::Metrics => "/metrics",
            Self::Health { .. } => "/health",
            Self::Ready => "/ready",
        }
    }
}

// === impl ServerContext ===

impl ServerContext {
    /// Returns a context with metrics of its own and the default target policy, and the queue of the lines that its
    /// blocks log.
    ///
    /// # Errors
    /// Fails if two metrics have the same name.
    pub fn new(store: Arc<Store>, format: LineFormat) -> Result<(Self, LineQueue), prometheus::Error> {
        let metrics = Arc::new(Metrics::new()?);
        metrics.register(LinkMetrics::new(Arc::clone(&store))?)?;
        let clusters = ClusterRegistry::default();
        metrics.register(ClusterMetrics::new(clusters.clone())?)?;
        let (lines, queue) = QueryLog::new(format, &metrics)?;
        Ok((
            Self {
                store,
                readiness: Arc::default(),
                targets: Arc::default(),
                stale_caches: StaleCaches::default(),
                upstream_sockets: Arc::default(),
                zones: ZoneRegistry::default(),
                secondaries: Secondaries::default(),
                etcds: SharedKeys::default(),
                transfer_slots: Arc::default(),
                databases: Databases::default(),
                clusters,
                remotes: Arc::default(),
                has_own_cluster: true,
                metrics,
                query_log: lines,
                own_addresses: |_| Vec::new(),
            },
            queue,
        ))
    }

    /// Returns a context that discards the lines of `log` and `errors`.
    ///
    /// # Errors
    /// Fails if two metrics have the same name.
    pub fn silent(store: Arc<Store>) -> Result<Self, prometheus::Error> {
        Self::new(store, LineFormat::Text).map(|(context, _)| context)
    }
}

// === impl BlockBuilder ===

impl fmt::Debug for BlockBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockBuilder").field("plugins", &self.plugins).finish_non_exhaustive()
    }
}

// === impl Setup ===

impl Setup<'_> {
    /// Returns the line of a plugin that may be in a block only once.
    ///
    /// # Errors
    /// Fails if there are several lines.
    pub fn only_line(&self) -> Result<&Directive, CorefileError> {
        match self.lines {
            [first, second, ..] => Err(second.error(format!(
                "{} can be there only once in a block, and it is on line {} already",
                second.name(),
                first.position().line
            ))),
            lines => Ok(&lines[0]),
        }
    }

    /// Returns the error for a zone of `line` that another line of the plugin has already.
    #[must_use]
    pub fn repeated_zone(&self, line: &Directive, zone: &Name) -> CorefileError {
        let has = |words: &Directive| {
            self.zones_or_own(words.arguments()).is_ok_and(|zones| zones.all().contains(zone))
        };
        let first = self.lines.iter().find(|words| has(words)).unwrap_or(line).position().line;
        line.error(format!("the zone {zone} is on line {first} already: name it once"))
    }

    /// Parses zones; without words, returns the zones of the block.
    ///
    /// # Errors
    /// Fails if a word isn't a zone.
    pub fn zones_or_own(&self, words: &[Token]) -> Result<ZoneSet, CorefileError> {
        if words.is_empty() { Ok(ZoneSet::new(self.zones.iter().cloned())) } else { zones(words) }
    }

    /// Returns the zones of a line of `kubernetes` or `k8s_external`, see [`Setup::zones_or_own`].
    ///
    /// # Errors
    /// Fails if a word isn't a zone.
    pub fn cluster_zones(&mut self, line: &Directive) -> Result<ZoneSet, CorefileError> {
        let zones = self.zones_or_own(line.arguments())?;
        let named = zones.all().iter().map(|zone| ClusterZone {
            zone: zone.clone(),
            plugin: line.name().to_owned(),
            position: line.position().clone(),
        });
        self.builder.cluster_zones.extend(named);
        let of_block = ZoneSet::new(self.zones.iter().cloned());
        let is_reached = |zone: &Name| {
            is_reverse(&whole_wire_name(zone))
                || of_block.contains(zone)
                || of_block.all().iter().any(|own| zone.zone_of(own))
        };
        if let Some(zone) = zones.all().iter().find(|zone| !is_reached(zone)) {
            let own: Vec<String> = of_block.all().iter().map(to_presentation).collect();
            self.builder.warnings.push(line.error(format!(
                "no question reaches {} for {}: the block has only {}",
                line.name(),
                to_presentation(zone),
                own.join(", ")
            )));
        }
        Ok(zones)
    }

    /// Returns the metric group of type `F`, which all plugins share.
    ///
    /// # Errors
    /// Fails if two metrics have the same name, which is a bug in lb-linker.
    pub fn metrics<F: MetricGroup>(&self) -> Result<Arc<F>, CorefileError> {
        self.context.metrics.group().map_err(|error| self.lines[0].error(format!("metrics: {error}")))
    }

    /// Resolves a path against the directory of `root`.
    #[must_use]
    pub fn path(&self, path: &str) -> PathBuf {
        self.builder.root.join(path)
    }

    /// Reads a file, and notes its content so that a reload can see whether the file has changed.
    ///
    /// # Errors
    /// Fails if the file can't be read, or has more than 16 MiB.
    pub fn read(&mut self, path: &Path) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        File::open(path)?.take(MAX_FILE + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > MAX_FILE {
            return Err(io::Error::other(format!("it has more than {MAX_FILE} bytes")));
        }
        self.builder.files_read.push((path.to_owned(), bytes.clone()));
        Ok(bytes)
    }

    /// Reads a file that `word` names, see [`Setup::read`].
    ///
    /// # Errors
    /// Fails if the file can't be read.
    pub fn read_named(&mut self, word: &Token, file: &Path) -> Result<Vec<u8>, CorefileError> {
        self.read(file).map_err(|error| word.error(format!("{}: can't be read: {error}", file.display())))
    }

    /// Adds an HTTP endpoint. The address is the argument of the plugin's only line, or else `default`.
    ///
    /// # Errors
    /// Fails if the plugin has several lines, or if the line has more than one argument, or an argument that isn't an
    /// address with a port.
    pub fn serve_http(
        &mut self,
        kind: HttpKind,
        default: &str,
        tls: Option<HttpTls>,
    ) -> Result<(), CorefileError> {
        let line = self.only_line()?;
        let what = "an address and port such as :9153, localhost:9153 or 127.0.0.1:9153";
        let (text, word) = match line.at_most(1)? {
            [word] => (&*word.text, Some(word)),
            _ => (default, None),
        };
        let wrong = || word.map_or_else(|| line.error(what), |word| word.unexpected(what));
        let address = http_address(text).ok_or_else(wrong)?;
        let place = line.position().clone();
        self.builder.endpoints.push(HttpEndpoint { kind, address, position: place, tls });
        Ok(())
    }

    /// Returns the name of the block's view; `None` without one. Errors in its line are told by *view*.
    #[must_use]
    pub fn view(&self) -> Option<Arc<str>> {
        let line = self.block.iter().find(|line| line.name() == "view")?;
        Some(line.arguments().first()?.text.as_str().into())
    }

    /// Adds a plugin that has to be called for each request.
    pub fn add(&mut self, plugin: impl Plugin + 'static) {
        self.builder.plugins.push(ChainPlugin::new(Arc::new(plugin)));
    }

    /// Adds a plugin that lets answers be reused, see [`ChainPlugin`].
    pub fn add_reusable(&mut self, plugin: impl Plugin + 'static) {
        self.builder.plugins.push(ChainPlugin::reusable(Arc::new(plugin)));
    }

    /// Adds a plugin with its access rule. `chained` is [`ChainPlugin::new`] or [`ChainPlugin::reusable`].
    pub fn add_with_access_rule<P: Plugin + AccessRule + 'static>(
        &mut self,
        plugin: P,
        chained: fn(Arc<dyn Plugin>) -> ChainPlugin,
    ) {
        let plugin = Arc::new(plugin);
        self.builder.access_rules.push(Arc::clone(&plugin) as Arc<dyn AccessRule>);
        self.builder.plugins.push(chained(plugin));
    }

    /// Returns whether a line of `transfer` in the block is for a zone. Errors in such a line are told by that plugin.
    #[must_use]
    pub fn is_transferred(&self, zone: &Name) -> bool {
        let mut lines = self.block.iter().filter(|line| line.name() == "transfer");
        lines.any(|line| self.zones_or_own(line.arguments()).is_ok_and(|zones| zones.contains(zone)))
    }

    /// Returns those of some zones for which [`Self::is_transferred`], in wire form.
    pub(super) fn transferred(&self, zones: &ZoneSet) -> Vec<Box<[u8]>> {
        let named = zones.all().iter().filter(|zone| self.is_transferred(zone));
        named.map(|zone| whole_wire_name(zone).into()).collect()
    }

    /// Adds a task that brings the serials of transferred zones up to date each second, so that kept answers show them. It
    /// calls `begin` first: answers may differ from those of a block before.
    pub(super) fn show_serials(&mut self, serials: Vec<ChangeSerial>, begin: impl FnOnce() + Send + 'static) {
        self.add_task(move |_, stop| async move {
            begin();
            let mut ticks = interval(SERIAL_INTERVAL);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            while stop.run_until_cancelled(ticks.tick()).await.is_some() {
                for serial in &serials {
                    serial.advance();
                }
            }
        });
    }

    /// Adds a task that runs as long as the block is served.
    pub fn add_task<F>(&mut self, task: impl FnOnce(Arc<Server>, CancellationToken) -> F + Send + 'static)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.builder.tasks.push(Box::new(|server, stop| Box::pin(task(server, stop))));
    }
}

/// Parses `ADDRESS:PORT`; an empty address is the wildcard address, and `localhost` is 127.0.0.1.
fn http_address(text: &str) -> Option<SocketAddr> {
    let (host, port) = text.rsplit_once(':')?;
    let port = port.parse().ok()?;
    match host {
        "" => Some((Ipv6Addr::UNSPECIFIED, port).into()),
        "localhost" => Some((Ipv4Addr::LOCALHOST, port).into()),
        _ => text.parse().ok(),
    }
}
