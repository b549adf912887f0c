//! From the lines of a Corefile to plugins: what all of them need for that.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use futures::future::BoxFuture;
use hickory_proto::rr::Name;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use super::r#loop::LoopState;
use crate::dns::chain::plugin::Plugin;
use crate::dns::chain::server::Server;
use crate::dns::corefile::arguments::zones;
use crate::dns::corefile::{CorefileError, Directive, Position, Token};
use crate::dns::message::zone_set::ZoneSet;
use crate::dns::query_log::{LineFormat, LineQueue, QueryLog};
use crate::dns::transport::tcp::Timeouts;
use crate::dns::upstream::socket_budget::SocketBudget;
use crate::dns::upstream::stale_cache::StaleCaches;
use crate::metrics::{MetricGroup, Metrics};
use crate::model::target_policy::TargetPolicy;
use crate::store::Store;
use crate::store::metrics::LinkMetrics;

/// What all blocks share.
#[derive(Clone, Debug)]
pub struct ServerContext {
    /// The links.
    pub store: Arc<Store>,
    /// Which addresses behind a link's target are given.
    pub targets: Arc<TargetPolicy>,
    /// What targets were last known to have.
    pub stale_caches: StaleCaches,
    /// The sockets that the upstreams of all blocks may have.
    pub upstream_sockets: Arc<SocketBudget>,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// Returns the addresses that this process is reached at where it listens on these; on none means on all.
    pub own_addresses: fn(&[IpAddr]) -> Vec<IpAddr>,
    /// Where what is logged for log parsers goes.
    pub lines: QueryLog,
}

/// A plugin's part of a block, which it turns into something that answers.
///
/// Nothing is started by that: no port is opened, no task spawned, no server asked. Files are read.
pub struct Setup<'a> {
    /// The lines of this plugin, in order; there is at least one.
    pub lines: &'a [Directive],
    /// The zones of the block.
    pub zones: &'a [Name],
    /// The block so far: of the plugins before this one.
    pub builder: &'a mut BlockBuilder,
    /// What all blocks share.
    pub context: &'a ServerContext,
}

/// A block before it is served.
#[derive(Default)]
pub struct BlockBuilder {
    /// The plugins that answer, in order.
    pub plugins: Vec<Arc<dyn Plugin>>,
    /// The zones with links' names.
    pub link_zones: ZoneSet,
    /// The directory of relative paths; empty for the working directory.
    pub root: PathBuf,
    /// What it is bound to, instead of all addresses.
    pub bind: Vec<IpAddr>,
    /// How its TLS listeners speak TLS.
    pub tls: Option<TlsAcceptor>,
    /// How long its TCP and TLS clients may take, and how much they may ask.
    pub timeouts: Timeouts,
    /// Whether `debug` is on.
    pub debug: bool,
    /// What is served by HTTP.
    pub endpoints: Vec<HttpEndpoint>,
    /// What runs as long as the block is served.
    pub tasks: Vec<Task>,
    /// How often the Corefile is looked at again.
    pub reload: Option<Reload>,
    /// The upstreams whose addresses the Corefile says, and where it does: none of them may be a listener of ours.
    pub upstreams: Vec<(SocketAddr, Position)>,
    /// What `loop` has found out.
    pub looping: Option<Arc<LoopState>>,
    /// What may be a mistake: a file that isn't there yet, and is looked for again later.
    pub warnings: Vec<CorefileError>,
    /// The files that were read, and what was in them.
    pub read: Vec<(PathBuf, Vec<u8>)>,
}

/// What runs as long as a block is served, until the token is cancelled. It is started once, with a server that the
/// block is behind.
pub type Task = Box<dyn FnOnce(Arc<Server>, CancellationToken) -> BoxFuture<'static, ()> + Send>;

/// Something that is served by HTTP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpEndpoint {
    /// What.
    pub kind: HttpKind,
    /// Where.
    pub address: SocketAddr,
    /// Where the Corefile says so.
    pub place: Position,
}

/// What is served by HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HttpKind {
    /// `/metrics`.
    Metrics,
    /// `/health`; for so long after the end has begun.
    Health {
        /// The pause between being told to stop and stopping.
        lameduck: Duration,
    },
    /// `/ready`.
    Ready,
}

/// How often the Corefile is looked at again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reload {
    /// The pause.
    pub interval: Duration,
    /// What is added to it at most, at random.
    pub jitter: Duration,
}

// === impl Site ===

impl ServerContext {
    /// Returns a site of these links, which counts for itself alone and follows all targets; and the lines that its
    /// blocks log.
    ///
    /// # Errors
    /// Only if two metrics had one name.
    pub fn new(store: Arc<Store>, format: LineFormat) -> Result<(Self, LineQueue), prometheus::Error> {
        let metrics = Arc::new(Metrics::new()?);
        metrics.register(LinkMetrics::new(Arc::clone(&store))?)?;
        let (lines, queue) = QueryLog::new(format, &metrics)?;
        Ok((
            Self {
                store,
                targets: Arc::default(),
                stale_caches: StaleCaches::default(),
                upstream_sockets: Arc::default(),
                metrics,
                lines,
                own_addresses: |_| Vec::new(),
            },
            queue,
        ))
    }

    /// Returns a site whose blocks log nothing.
    ///
    /// # Errors
    /// Only if two metrics had one name.
    pub fn silent(store: Arc<Store>) -> Result<Self, prometheus::Error> {
        Self::new(store, LineFormat::Text).map(|(context, _)| context)
    }
}

// === impl Draft ===

impl fmt::Debug for BlockBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Draft").field("plugins", &self.plugins).finish_non_exhaustive()
    }
}

// === impl Setup ===

impl Setup<'_> {
    /// Returns the only line of the plugin.
    ///
    /// # Errors
    /// If there are several.
    pub fn only_line(&self) -> Result<&Directive, CorefileError> {
        match self.lines {
            [first, second, ..] => Err(second.error(format!(
                "{} can be there only once in a block, and it is on line {} already",
                second.name(),
                first.place().line
            ))),
            lines => Ok(&lines[0]),
        }
    }

    /// Returns these zones, or those of the block if there are none.
    ///
    /// # Errors
    /// If a word is no zone.
    pub fn zones_or_own(&self, words: &[Token]) -> Result<ZoneSet, CorefileError> {
        if words.is_empty() { Ok(ZoneSet::new(self.zones.iter().cloned())) } else { zones(words) }
    }

    /// Returns the metrics of that kind.
    ///
    /// # Errors
    /// If two have one name: a defect of ours.
    pub fn metrics<F: MetricGroup>(&self) -> Result<Arc<F>, CorefileError> {
        self.context.metrics.family().map_err(|error| self.lines[0].error(format!("metrics: {error}")))
    }

    /// Returns a path as `root` has it.
    #[must_use]
    pub fn path(&self, path: &str) -> PathBuf {
        self.builder.root.join(path)
    }

    /// Reads a file. The block is another one when the file has changed.
    ///
    /// # Errors
    /// If it can't be read.
    pub fn read(&mut self, path: &Path) -> io::Result<Vec<u8>> {
        let bytes = std::fs::read(path)?;
        self.builder.read.push((path.to_owned(), bytes.clone()));
        Ok(bytes)
    }

    /// Notes that something is to be served by HTTP, at the address of the only line, or that one.
    ///
    /// # Errors
    /// If the line has something else.
    pub fn serve_http(&mut self, kind: HttpKind, default: &str) -> Result<(), CorefileError> {
        let line = self.only_line()?;
        let what = "an address and port such as :9153, localhost:9153 or 127.0.0.1:9153";
        let (text, word) = match line.at_most(1)? {
            [word] => (&*word.text, Some(word)),
            _ => (default, None),
        };
        let wrong = || word.map_or_else(|| line.error(what), |word| word.isnt(what));
        let address = http_address(text).ok_or_else(wrong)?;
        let place = line.place().clone();
        self.builder.endpoints.push(HttpEndpoint { kind, address, place });
        Ok(())
    }

    /// Adds the plugin to the block.
    pub fn add(&mut self, plugin: impl Plugin + 'static) {
        self.builder.plugins.push(Arc::new(plugin));
    }

    /// Adds what runs as long as the block is served.
    pub fn run<F>(&mut self, task: impl FnOnce(Arc<Server>, CancellationToken) -> F + Send + 'static)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.builder.tasks.push(Box::new(|server, stop| Box::pin(task(server, stop))));
    }
}

/// Parses `ADDRESS:PORT`; no address is all of them, and `localhost` the loopback.
fn http_address(text: &str) -> Option<SocketAddr> {
    let (host, port) = text.rsplit_once(':')?;
    let port = port.parse().ok()?;
    match host {
        "" => Some((Ipv6Addr::UNSPECIFIED, port).into()),
        "localhost" => Some((Ipv4Addr::LOCALHOST, port).into()),
        _ => text.parse().ok(),
    }
}
