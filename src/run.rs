//! All wiring: what is started, in which order, and what stops what.
//!
//! DNS outlives sync: the listeners are open before the first load balancer is known, a sync task
//! that fails is started again, and only a dead DNS listener ends the process.

mod addresses;
mod sockets;
mod source;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use hickory_proto::rr::Name;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::net::{TcpListener, UdpSocket};
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::config::{ConfigError, Flags};
use crate::dns::ahead;
use crate::dns::cache::{Cache, CacheOptions};
use crate::dns::forward::{Endpoint, Forward, ForwardOptions};
use crate::dns::handler::Handler;
use crate::dns::resolver::Resolver;
use crate::dns::tcp::places::Places;
use crate::dns::zone::{Zone, closest_first};
use crate::dns::{probes, tcp, udp};
use crate::metrics::Metrics;
use crate::store::{Departed, Store, host_text};
use crate::sync::client::ClientError;
use crate::sync::directory::DirectoryError;
use sockets::Sockets;
use source::Source;

/// How long answers of upstreams are cached at most, in seconds: the built-in `cache 30`.
const CACHE_TTL: u32 = 30;

/// Why lb-linker doesn't run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The flags can't be used together.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// There is no client of the cluster.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// A directory can't be used.
    #[error("--{flag} {source}")]
    Directory {
        /// The flag that names it.
        flag: &'static str,
        /// Why.
        source: DirectoryError,
    },
    /// A manifest can't be understood.
    #[error("{0}")]
    Manifest(String),
    /// A zone's name is too long.
    #[error("--zone {zone}: too long for the names below it: {source}")]
    Zone {
        /// The zone.
        zone: Box<Name>,
        /// Why.
        source: hickory_proto::ProtoError,
    },
    /// A socket can't be opened.
    #[error("--{flag} {address}: can't listen there by {transport}: {source}{}", hint(source))]
    Listen {
        /// The flag that names it.
        flag: &'static str,
        /// The address.
        address: SocketAddr,
        /// `UDP` or `TCP`.
        transport: &'static str,
        /// Why.
        source: io::Error,
    },
    /// A metric is registered twice: a defect of ours.
    #[error("metrics: {0}")]
    Metrics(#[from] prometheus::Error),
    /// A DNS listener has ended.
    #[error("the DNS listener on {address} is dead: {why}")]
    Dead {
        /// Its address.
        address: SocketAddr,
        /// Why.
        why: String,
    },
}

impl RunError {
    /// Returns whether what the user wrote is at fault, rather than what happened later.
    #[must_use]
    pub fn is_input(&self) -> bool {
        !matches!(self, Self::Dead { .. } | Self::Metrics(_))
    }
}

fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "; a port below 1024 needs root or the capability NET_BIND_SERVICE"
        }
        io::ErrorKind::AddrInUse => "; another program has it, or another flag of this one",
        io::ErrorKind::AddrNotAvailable => "; this machine has no such address",
        _ => "",
    }
}

/// Runs until `stop` is cancelled, or a DNS listener dies.
///
/// # Errors
/// If it can't start, or a DNS listener dies.
pub async fn run(flags: Flags, stop: CancellationToken) -> Result<(), RunError> {
    flags.validate()?;
    let upstreams = flags.upstreams()?;
    raise_file_limit();
    let metrics = Arc::new(Metrics::new()?);
    let source = Source::open(&flags).await?;
    let departed = if source.keeper().is_some() { Departed::Kept } else { Departed::Dropped };
    let mut store = Store::new(departed).with_zones(&flags.zones);
    if source.has_versions() {
        store = store.with_versions();
    }
    let store = Arc::new(store);

    let sockets = Sockets::open(&flags)?;
    let mut listeners = JoinSet::new();
    let mut background = JoinSet::new();
    start_dns((&mut listeners, &mut background), &flags, sockets.dns, upstreams, &store, &metrics, &stop)?;
    start_probes(&mut background, sockets.probes, &store, &metrics, &stop);
    source.start(&mut background, &flags, &store, &metrics, &stop);

    let dead = tokio::select! {
        // A listener that ends because it was told to isn't dead.
        biased;
        () = stop.cancelled() => None,
        Some(ended) = listeners.join_next() => Some(ended),
    };
    stop.cancel();
    while listeners.join_next().await.is_some() {}
    while background.join_next().await.is_some() {}
    match dead {
        None => {
            info!("stopped");
            Ok(())
        }
        Some(Ok((address, why))) => Err(RunError::Dead { address, why }),
        Some(Err(panic)) => Err(RunError::Dead { address: flags.listen[0], why: panic.to_string() }),
    }
}

/// Each TCP client and each question to an upstream is a file. Go programs raise the limit, too.
fn raise_file_limit() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
    if let Err(error) = raised {
        warn!("the limit of open files can't be raised: {error}");
    }
}

fn start_dns(
    (listeners, background): (&mut JoinSet<(SocketAddr, String)>, &mut JoinSet<()>),
    flags: &Flags,
    sockets: Vec<(SocketAddr, UdpSocket, TcpListener)>,
    upstreams: Vec<Endpoint>,
    store: &Arc<Store>,
    metrics: &Arc<Metrics>,
    stop: &CancellationToken,
) -> Result<(), RunError> {
    let addresses = addresses::of_this_server(sockets.iter().map(|(address, ..)| *address));
    let mut zones: Vec<Zone> = flags
        .zones
        .iter()
        .map(|zone| {
            Zone::new(zone, addresses.clone())
                .map_err(|source| RunError::Zone { zone: Box::new(zone.clone()), source })
        })
        .collect::<Result<_, _>>()?;
    closest_first(&mut zones);
    let zones: Arc<[Zone]> = zones.into();
    let names: Vec<String> = flags.zones.iter().map(host_text).collect();
    let through: Vec<String> = upstreams.iter().map(ToString::to_string).collect();
    info!(
        "lb-linker {}: zones {}; other names {}",
        env!("CARGO_PKG_VERSION"),
        names.join(" "),
        if through.is_empty() { "are refused".to_owned() } else { format!("through {}", through.join(" ")) },
    );
    let resolver = (!upstreams.is_empty()).then(|| {
        let forward = Forward::new(upstreams, ForwardOptions::default());
        let cache = Cache::new(CacheOptions::capped(CACHE_TTL));
        Arc::new(Resolver::new(Arc::new(forward), Some(cache), metrics))
    });
    if let Some(resolver) = &resolver {
        let following = ahead::run(Arc::clone(store), Arc::clone(&zones), Arc::clone(resolver), stop.clone());
        background.spawn(following);
    }
    let targets = Arc::new(flags.admission().targets);
    let places = Arc::new(Places::new(Arc::clone(metrics)));
    for (address, udp, tcp) in sockets {
        info!("DNS on {address}, by UDP and TCP");
        let handler = Arc::new(Handler {
            zones: Arc::clone(&zones),
            store: Arc::clone(store),
            targets: Arc::clone(&targets),
            resolver: resolver.clone(),
            metrics: Arc::clone(metrics),
            server: server_label(address),
        });
        let serving = udp::serve(udp, Arc::clone(&handler), stop.clone());
        listeners.spawn(async move { (address, ended(tokio::spawn(serving).await)) });
        let serving = tcp::serve(tcp, None, Arc::clone(&places), handler, stop.clone());
        listeners.spawn(async move { (address, ended(tokio::spawn(serving).await)) });
    }
    Ok(())
}

fn ended(how: Result<io::Result<()>, JoinError>) -> String {
    match how {
        Ok(Ok(())) => "it has stopped".to_owned(),
        Ok(Err(error)) => error.to_string(),
        Err(panic) => panic.to_string(),
    }
}

/// CoreDNS leaves out the address where it is all of them.
fn server_label(address: SocketAddr) -> String {
    if address.ip().is_unspecified() {
        format!("dns://:{}", address.port())
    } else {
        format!("dns://{address}")
    }
}

fn start_probes(
    tasks: &mut JoinSet<()>,
    [for_metrics, for_health, for_ready]: [(SocketAddr, TcpListener); 3],
    store: &Arc<Store>,
    metrics: &Arc<Metrics>,
    stop: &CancellationToken,
) {
    for (path, (address, listener), router) in [
        ("/metrics", for_metrics, probes::metrics(Arc::clone(metrics), Arc::clone(store))),
        ("/health", for_health, probes::health()),
        ("/ready", for_ready, probes::ready(Arc::clone(store))),
    ] {
        info!("{path} on {address}");
        let serving = probes::serve(listener, router, stop.clone());
        tasks.spawn(async move {
            if let Err(problem) = serving.await {
                error!("{path} on {address} isn't served any more: {problem}");
            }
        });
    }
}
