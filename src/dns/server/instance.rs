//! Serves a configuration, and replaces it by the next one without losing queries.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use arc_swap::ArcSwap;
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::{info, warn};

use super::http::Http;
use super::sockets::{ListenerSocket, MainSocket, PortReservation, open};
use crate::dns::chain::handler::Handler;
use crate::dns::chain::metrics::ServerMetrics;
use crate::dns::chain::server::{Server, ServerBlock};
use crate::dns::corefile::Scheme;
use crate::dns::plugins::setup::{
    BlockBuilder, HttpEndpoint, HttpKind, OnRestart, Reload, ServerContext, Task,
};
use crate::dns::server::config::{BlockFingerprint, Configuration, ListenAddress, Listener};
use crate::dns::server::error::ServerError;
use crate::dns::server::invalidation::Servers;
use crate::dns::transport::connections::ConnectionConfig;
use crate::dns::transport::connections::connection_limit::ConnectionLimiter;
use crate::dns::transport::quic::{self, QuicLimits};
use crate::dns::transport::{tcp, udp};

/// The running listeners and blocks of a configuration.
pub(crate) struct Instance {
    context: ServerContext,
    metrics: Arc<ServerMetrics>,
    connection_limiter: Arc<ConnectionLimiter>,
    quic_limits: Arc<QuicLimits>,
    listeners: Vec<BoundListener>,
    blocks: Vec<RunningBlock>,
    http: Http,
    /// The files of the HTTP ports' TLS configurations, and their contents.
    tls_files: Vec<(PathBuf, Vec<u8>)>,
    servers: watch::Sender<Servers>,
    set_debug: SetDebug,
    /// The tasks of the listeners; a task that ends by itself means a dead listener.
    serving: JoinSet<(u64, String)>,
    next: u64,
    /// The number and the port of each removed listener whose sockets may still be open.
    draining: Vec<(u64, u16)>,
    tasks: JoinSet<()>,
    pub(crate) reload: Option<Reload>,
    /// The `lameduck` duration: how long lb-linker serves after it was told to stop.
    pub(crate) lameduck: Duration,
}

pub(crate) struct ReloadSummary {
    blocks: usize,
    new: usize,
    gone: usize,
}

impl fmt::Display for ReloadSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { blocks, new, gone } = self;
        write!(f, "{} of {blocks} server blocks unchanged, {new} new, {gone} gone", blocks - new)
    }
}

/// A running listener. Dropping it stops the listener.
struct BoundListener {
    /// Identifies the listener, because a later one may have the same address.
    number: u64,
    at: ListenAddress,
    bound: ListenAddress,
    handler: Arc<Handler>,
    connection_config: Arc<ArcSwap<ConnectionConfig>>,
    port_reservation: PortReservation,
    _guard: DropGuard,
}

/// A block that is served. Dropping it stops its tasks.
struct RunningBlock {
    fingerprint: BlockFingerprint,
    block: Arc<ServerBlock>,
    on_restart: Vec<OnRestart>,
    _guard: DropGuard,
}

impl Instance {
    pub(crate) fn new(context: ServerContext, set_debug: SetDebug) -> Result<Self, ServerError> {
        let metrics = context.metrics.group::<ServerMetrics>()?;
        let (servers, _) = watch::channel(Servers::from([]));
        let connection_limiter = Arc::new(ConnectionLimiter::new(context.metrics.group()?));
        Ok(Self {
            metrics,
            quic_limits: Arc::new(QuicLimits::new(&connection_limiter)),
            connection_limiter,
            listeners: Vec::new(),
            blocks: Vec::new(),
            http: Http::new(&context, servers.subscribe())?,
            tls_files: Vec::new(),
            servers,
            set_debug,
            serving: JoinSet::new(),
            next: 0,
            draining: Vec::new(),
            tasks: JoinSet::new(),
            reload: None,
            lameduck: Duration::ZERO,
            context,
        })
    }

    /// Returns the files that the plugins of the blocks have read, and their contents.
    pub(crate) fn files(&self) -> Vec<(PathBuf, Vec<u8>)> {
        self.blocks.iter().flat_map(|live| live.fingerprint.files()).chain(&self.tls_files).cloned().collect()
    }

    /// Returns the files that may be missing, and their contents when their blocks were built.
    pub(crate) fn optional_files(&self) -> Vec<(PathBuf, Vec<u8>)> {
        self.blocks.iter().flat_map(|live| live.fingerprint.optional_files()).cloned().collect()
    }

    pub(crate) fn servers(&self) -> watch::Receiver<Servers> {
        self.servers.subscribe()
    }

    /// Applies a configuration. Listeners and blocks that it shares with the previous configuration keep running.
    ///
    /// # Errors
    /// If a port can't be opened; the previous configuration then stays in force.
    pub(crate) fn apply(&mut self, mut configuration: Configuration) -> Result<ReloadSummary, ServerError> {
        let endpoints: Vec<HttpEndpoint> =
            configuration.blocks.iter().flat_map(|built| built.builder.endpoints.clone()).collect();
        // The steps that can fail come first.
        let (fresh, http) = match (self.open(&configuration.listeners), self.http.open(&endpoints)) {
            (Ok(fresh), Ok(http)) => (fresh, http),
            (fresh, http) => {
                let errors = fresh.err().into_iter().chain(http.err()).flatten();
                return Err(ServerError::of_all(errors.collect()));
            }
        };

        let mut old = std::mem::take(&mut self.blocks);
        let mut starting: Vec<(Vec<Task>, CancellationToken, Arc<ServerBlock>)> = Vec::new();
        for built in &mut configuration.blocks {
            let same = old.iter().position(|live| live.fingerprint == built.fingerprint);
            let live = match same {
                // Takes the first equal block, so that each of several equal blocks keeps its port.
                Some(at) => old.remove(at),
                None => {
                    let stop = CancellationToken::new();
                    let tasks = std::mem::take(&mut built.builder.tasks);
                    starting.push((tasks, stop.clone(), Arc::clone(&built.block)));
                    RunningBlock {
                        fingerprint: built.fingerprint.clone(),
                        block: Arc::clone(&built.block),
                        on_restart: built.builder.on_restart.clone(),
                        _guard: stop.drop_guard(),
                    }
                }
            };
            built.block = Arc::clone(&live.block);
            self.blocks.push(live);
        }
        for warning in configuration.blocks.iter().flat_map(|built| &built.builder.warnings) {
            warn!("{warning}");
        }
        // Frees the tasks that have already ended.
        while self.tasks.try_join_next().is_some() {}
        let applied = ReloadSummary { blocks: self.blocks.len(), new: starting.len(), gone: old.len() };
        self.listen(&configuration, fresh);
        let servers: Servers = self.listeners.iter().map(|live| live.handler.server.load_full()).collect();
        self.servers.send_replace(servers);
        for (tasks, stop, block) in starting {
            let server = self.server_of(&block);
            for task in tasks {
                self.tasks.spawn(task(Arc::clone(&server), stop.clone()));
            }
        }
        self.http.serve(http, &endpoints);
        let tls = endpoints.iter().filter_map(|endpoint| endpoint.tls.as_ref());
        self.tls_files = tls.flat_map(|tls| tls.files.clone()).collect();
        self.metrics.set_enabled(self.enabled());
        let builders = || configuration.blocks.iter().map(|built| &built.builder);
        (self.set_debug)(builders().any(|builder| builder.debug));
        self.reload = builders().find_map(|builder: &BlockBuilder| builder.reload);
        self.lameduck = endpoints.iter().map(lameduck).max().unwrap_or_default();
        Ok(applied)
    }

    /// Opens the sockets of the listeners that don't exist yet. Returns all errors, if there are some.
    fn open(&self, wanted: &[Listener]) -> Result<Vec<(usize, ListenerSocket)>, Vec<ServerError>> {
        let (mut fresh, mut errors) = (Vec::new(), Vec::new());
        for (number, listener) in wanted.iter().enumerate() {
            if !self.listeners.iter().any(|live| live.at == listener.at) {
                match self.open_sharing_port(wanted, listener) {
                    Ok(opened) => fresh.push((number, opened)),
                    Err(error) => errors.push(error),
                }
            }
        }
        if errors.is_empty() { Ok(fresh) } else { Err(errors) }
    }

    /// Opens the sockets of a listener. A listener that is about to be removed may still use the port, with another
    /// address or another scheme.
    fn open_sharing_port(
        &self,
        wanted: &[Listener],
        listener: &Listener,
    ) -> Result<ListenerSocket, ServerError> {
        let port = listener.at.address.port();
        let is_leaving = |live: &&BoundListener| !wanted.iter().any(|listener| listener.at == live.at);
        let share = |share| {
            let leaving = self.listeners.iter().filter(is_leaving);
            leaving.filter(|live| live.port_reservation.share(port, share)).count() > 0
        };
        let reuse_port = share(true) || self.draining.iter().any(|(_, gone)| *gone == port);
        open(listener.at, &listener.position, reuse_port).inspect_err(|_| {
            share(false);
        })
    }

    /// Updates the server of each listener, starts new listeners, and stops listeners that are no longer configured.
    fn listen(&mut self, configuration: &Configuration, fresh: Vec<(usize, ListenerSocket)>) {
        self.listeners.retain(|live| {
            let wanted = configuration.listeners.iter().find(|listener| listener.at == live.at);
            match wanted {
                Some(listener) => {
                    let server = configuration.server(listener, live.bound, Arc::clone(&self.metrics));
                    live.handler.server.store(Arc::new(server));
                    live.connection_config.store(Arc::new(configuration.connection_config(listener)));
                }
                None => {
                    info!("DNS on {}: removed", live.bound.address);
                    let port = live.bound.address.port();
                    live.port_reservation.share(port, true);
                    self.draining.push((live.number, port));
                    // Queries that still arrive at the draining listener are answered like those of its successor.
                    let next = fresh.iter().find(|(_, socket)| {
                        let bound = socket.bound;
                        bound.address.port() == port && bound.scheme.shares_ports_with(live.bound.scheme)
                    });
                    if let Some((number, socket)) = next {
                        let listener = &configuration.listeners[*number];
                        let server = configuration.server(listener, socket.bound, Arc::clone(&self.metrics));
                        live.handler.server.store(Arc::new(server));
                    }
                }
            }
            wanted.is_some()
        });
        for (number, socket) in fresh {
            let listener = &configuration.listeners[number];
            let bound = socket.bound;
            let handler = Arc::new(configuration.handler(listener, bound, &self.context, &self.metrics));
            let stop = CancellationToken::new();
            self.next += 1;
            let connection_config =
                Arc::new(ArcSwap::from_pointee(configuration.connection_config(listener)));
            let port_reservation = socket.port_reservation();
            // Clears SO_REUSEPORT so that no other process can bind the port.
            port_reservation.share(bound.address.port(), false);
            self.start(socket, &connection_config, &handler, &stop);
            self.listeners.push(BoundListener {
                number: self.next,
                at: listener.at,
                bound,
                handler,
                connection_config,
                port_reservation,
                _guard: stop.drop_guard(),
            });
        }
    }

    fn start(
        &mut self,
        socket: ListenerSocket,
        connection_config: &Arc<ArcSwap<ConnectionConfig>>,
        handler: &Arc<Handler>,
        stop: &CancellationToken,
    ) {
        let bound = socket.bound;
        let number = self.next;
        let how = match bound.scheme {
            Scheme::Dns => "UDP and TCP",
            Scheme::Tls if connection_config.load().tls.is_some() => "TLS",
            Scheme::Tls => "TCP without TLS",
            Scheme::Https if connection_config.load().tls.is_some() => "HTTPS",
            Scheme::Https => "HTTP without TLS",
            Scheme::Grpc if connection_config.load().tls.is_some() => "gRPC",
            Scheme::Grpc => "gRPC without TLS",
            Scheme::Quic => "QUIC",
        };
        info!("DNS on {}, by {how}", bound.address);
        if !socket.udp.is_empty() {
            let serving = udp::serve(socket.udp, Arc::clone(handler), stop.clone());
            self.serving.spawn(async move { (number, ended(tokio::spawn(serving).await)) });
        }
        let (config, handler, stop) = (Arc::clone(connection_config), Arc::clone(handler), stop.clone());
        let serving = match socket.main {
            MainSocket::Tcp(listener) => {
                let limiter = Arc::clone(&self.connection_limiter);
                tokio::spawn(tcp::serve(listener, config, limiter, handler, stop))
            }
            MainSocket::Quic(socket) => {
                let limits = Arc::clone(&self.quic_limits);
                tokio::spawn(quic::serve(socket, config, limits, handler, stop))
            }
        };
        self.serving.spawn(async move { (number, ended(serving.await)) });
    }

    /// Returns a server of this block alone, for its tasks: the tasks of an unchanged block outlive a reload, and
    /// mustn't keep replaced blocks alive.
    fn server_of(&self, block: &Arc<ServerBlock>) -> Arc<Server> {
        let servers = self.servers.borrow();
        let is_own = |other: &Arc<ServerBlock>| Arc::ptr_eq(other, block);
        let server = servers.iter().find(|server| server.blocks().any(|(_, other)| is_own(other)));
        // Every block belongs to a server; the default is never used.
        let (label, group) =
            server.map(|server| (server.label.clone(), server.group.clone())).unwrap_or_default();
        let zones: Vec<_> = block.zones.iter().map(|zone| (zone.clone(), Arc::clone(block))).collect();
        Arc::new(Server::new(label, &zones, Arc::clone(&self.metrics)).with_group(group))
    }

    /// Returns server, zone and view of every enabled plugin; as in CoreDNS, only for blocks with *prometheus*, and only
    /// for the first zone of a block.
    fn enabled(&self) -> Vec<([String; 3], &'static str)> {
        let mut all = Vec::new();
        for live in &self.listeners {
            for (zone, block) in live.handler.server.load().blocks() {
                let names: Vec<_> = block.plugins.iter().map(|plugin| plugin.name()).collect();
                if block.zones.first() == Some(zone) && names.contains(&"prometheus") {
                    let view = block.plugins.iter().find_map(|plugin| plugin.view());
                    let view = view.as_deref().unwrap_or_default().to_owned();
                    let labels = [live.bound.to_string(), zone.to_ascii(), view];
                    all.extend(names.iter().map(|name| (labels.clone(), *name)));
                }
            }
        }
        all
    }

    /// Runs the `on_restart` functions of all blocks, including unchanged blocks.
    pub(crate) fn restart(&self) {
        self.blocks.iter().flat_map(|live| &live.on_restart).for_each(|restart| restart());
    }

    /// Waits until a listener dies by itself; returns its address and the reason.
    pub(crate) async fn wait_for_stopped_listener(&mut self) -> (SocketAddr, String) {
        loop {
            match self.serving.join_next().await {
                None => std::future::pending().await,
                Some(Err(panic)) => {
                    let first = self.listeners.first().map(|live| live.bound.address);
                    return (first.unwrap_or_else(|| ([0, 0, 0, 0], 0).into()), panic.to_string());
                }
                Some(Ok((number, why))) => {
                    self.draining.retain(|(gone, _)| *gone != number);
                    if let Some(live) = self.listeners.iter().find(|live| live.number == number) {
                        return (live.bound.address, why);
                    }
                }
            }
        }
    }

    /// Stops everything, after pending replies are sent.
    pub(crate) async fn end(mut self) {
        self.listeners.clear();
        while self.serving.join_next().await.is_some() {}
        self.blocks.clear();
        while self.tasks.join_next().await.is_some() {}
        self.http.end().await;
    }
}

fn lameduck(endpoint: &HttpEndpoint) -> Duration {
    match endpoint.kind {
        HttpKind::Health { lameduck } => lameduck,
        HttpKind::Metrics | HttpKind::Ready => Duration::ZERO,
    }
}

fn ended(how: Result<io::Result<()>, JoinError>) -> String {
    match how {
        Ok(Ok(())) => "it has stopped".to_owned(),
        Ok(Err(error)) => error.to_string(),
        Err(panic) => panic.to_string(),
    }
}

/// Sets the log level of DNS to `debug` if the argument is `true`, or else resets it. The argument is whether a block
/// has the plugin `debug`.
pub type SetDebug = Box<dyn Fn(bool) + Send + Sync>;

#[cfg(test)]
mod tests;
