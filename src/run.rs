//! All wiring: what is started, in which order, and what stops what.
//!
//! DNS outlives sync: the listeners are open before the first load balancer is known, a sync task
//! that fails is started again, and only a dead DNS listener ends the process.

use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use hickory_proto::rr::Name;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::net::{TcpListener, UdpSocket};
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{error, info, warn};

use crate::config::{ConfigError, Flags};
use crate::dns::handler::Handler;
use crate::dns::upstream::Upstream;
use crate::dns::zone::Zone;
use crate::dns::{probes, tcp, udp};
use crate::metrics::Metrics;
use crate::store::{Departed, Store, host_text};
use crate::sync::client::{ClientError, connect};
use crate::sync::directory::DirectoryError;
use crate::sync::election::{Candidacy, Election, Leadership};
use crate::sync::events::{self, Recorder};
use crate::sync::manifests::{self, ManifestSource};
use crate::sync::output::OutputDirectory;
use crate::sync::plan::SyncMode;
use crate::sync::trouble::Outage;
use crate::sync::watch::ClusterSource;
use crate::sync::writer::Keeper;
use crate::sync::{News, SyncError, earlier, follow, reconcile, supervise};

/// How often a port is looked for that is free for UDP and TCP alike.
const PORT_TRIES: usize = 16;

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
    let store = Arc::new(Store::new(departed));

    let sockets = Sockets::open(&flags)?;
    let mut listeners = JoinSet::new();
    start_dns(&mut listeners, &flags, sockets.dns, upstreams, &store, &metrics, &stop)?;
    let mut background = JoinSet::new();
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

/// Where the links come from.
enum Source {
    Cluster { client: kube::Client, outage: Outage, keeper: Keeper, candidacy: Option<Candidacy> },
    Manifests { keeper: Option<Keeper> },
}

impl Source {
    async fn open(flags: &Flags) -> Result<Self, RunError> {
        if let Some(manifests) = &flags.manifests {
            // Whoever starts lb-linker is there to read it; later a broken file keeps what it had.
            let checked = manifests::check(manifests, &flags.selection(), &flags.admission())
                .map_err(|source| RunError::Directory { flag: "manifests", source })?;
            if let Some(error) = checked.errors.into_iter().next() {
                return Err(RunError::Manifest(error));
            }
            let open = |path| {
                OutputDirectory::open(path)
                    .map(Keeper::Directory)
                    .map_err(|source| RunError::Directory { flag: "output", source })
            };
            return Ok(Self::Manifests { keeper: flags.output.clone().map(open).transpose()? });
        }
        let client = connect(flags.kubeconfig.clone(), flags.context.clone()).await?;
        let namespace = flags.target_namespace.clone();
        let outage = Outage::default();
        let keeper = Keeper::Namespace { client: client.clone(), outage: outage.clone(), namespace };
        Ok(Self::Cluster { client, outage, keeper, candidacy: flags.candidacy()? })
    }

    fn keeper(&self) -> Option<&Keeper> {
        match self {
            Self::Cluster { keeper, .. } => Some(keeper),
            Self::Manifests { keeper } => keeper.as_ref(),
        }
    }

    /// Starts what sends Events, where there is a cluster that is written to.
    fn start_recorder(
        &self,
        tasks: &mut JoinSet<()>,
        flags: &Flags,
        leadership: &Leadership,
        metrics: &Arc<Metrics>,
        stop: &CancellationToken,
    ) -> Recorder {
        let Self::Cluster { client, outage, .. } = self else { return Recorder::none() };
        if flags.sync != SyncMode::On {
            return Recorder::none();
        }
        let leadership = leadership.clone();
        let recorder = Recorder::new(metrics.events_dropped.clone(), Arc::new(move || leadership.holds()));
        let sender = events::Sender {
            client: client.clone(),
            outage: outage.clone(),
            recorder: recorder.clone(),
            instance: flags.identity(),
            metrics: Arc::clone(metrics),
        };
        let until = stop.clone();
        tasks.spawn(supervise("the sending of Events", stop.clone(), Arc::clone(metrics), move || {
            until_stopped(until.clone(), sender.clone().run())
        }));
        recorder
    }

    fn start(
        self,
        tasks: &mut JoinSet<()>,
        flags: &Flags,
        store: &Arc<Store>,
        metrics: &Arc<Metrics>,
        stop: &CancellationToken,
    ) {
        let selection = Arc::new(flags.selection());
        let admission = Arc::new(flags.admission());
        let writers = TaskTracker::new();
        let leadership = self.elect(tasks, flags, metrics, &writers, stop);
        let recorder = self.start_recorder(tasks, flags, &leadership, metrics, stop);
        let news = News { metrics: Arc::clone(metrics), recorder };
        // Manifests have no terms: what was read first counts.
        let listed = watch::Sender::new(if flags.manifests.is_some() { leadership.term() } else { 0 });
        if let Some(keeper) = self.keeper() {
            let settings = reconcile::Settings {
                store: Arc::clone(store),
                keeper: keeper.clone(),
                selection: Arc::clone(&selection),
                admission: Arc::clone(&admission),
                policy: flags.policy(),
                news: news.clone(),
                leadership: leadership.clone(),
                links_listed: listed.subscribe(),
            };
            let reconciler_stop = stop.clone();
            let reconciler = supervise("the reconciler", stop.clone(), Arc::clone(metrics), move || {
                reconcile::run(settings.clone(), reconciler_stop.clone())
            });
            tasks.spawn(writers.track_future(reconciler));
        } else {
            // Nothing is kept, so no external target has a holder to wait for.
            store.set_holders_known();
        }
        let (store, metrics) = (Arc::clone(store), Arc::clone(metrics));
        match self {
            Self::Cluster { client, outage, .. } => {
                if flags.sync != SyncMode::Off {
                    let settings = follow::Settings {
                        store: Arc::clone(&store),
                        client: client.clone(),
                        outage: outage.clone(),
                        selection: Arc::clone(&selection),
                        policy: flags.policy(),
                        news: news.clone(),
                        leadership: leadership.clone(),
                        links_listed: listed.subscribe(),
                    };
                    let until = stop.clone();
                    let name = "the following by annotation";
                    let following = supervise(name, stop.clone(), Arc::clone(&metrics), move || {
                        follow::run(settings.clone(), until.clone())
                    });
                    tasks.spawn(writers.track_future(following));
                }
                // Whoever only answers DNS has nothing to do with finalizers.
                if flags.sync != SyncMode::Off {
                    let (client, outage) = (client.clone(), outage.clone());
                    let (selection, until) = (Arc::clone(&selection), stop.clone());
                    let ours = flags.finalizer.then(|| Arc::clone(&store));
                    let name = "the search for finalizers";
                    tasks.spawn(supervise(name, stop.clone(), Arc::clone(&metrics), move || {
                        let selection = Arc::clone(&selection);
                        let look = earlier::look(client.clone(), outage.clone(), selection, ours.clone());
                        until_stopped(until.clone(), look)
                    }));
                }
                let source = ClusterSource {
                    client,
                    outage,
                    selection,
                    admission,
                    guards: flags.finalizer,
                    store,
                    news,
                    leadership,
                    listed,
                };
                let until = stop.clone();
                tasks.spawn(supervise("the watch of load balancers", stop.clone(), metrics, move || {
                    until_stopped(until.clone(), source.clone().run())
                }));
            }
            Self::Manifests { .. } => {
                let directory = flags.manifests.clone().unwrap_or_default();
                let source =
                    ManifestSource { directory, selection, admission, store, news, files: Arc::default() };
                let until = stop.clone();
                tasks.spawn(supervise("the reading of manifests", stop.clone(), metrics, move || {
                    until_stopped(until.clone(), source.clone().run())
                }));
            }
        }
    }
}

impl Source {
    /// Starts the election, if there is one. The lease is given back when `writers` have ended.
    fn elect(
        &self,
        tasks: &mut JoinSet<()>,
        flags: &Flags,
        metrics: &Arc<Metrics>,
        writers: &TaskTracker,
        stop: &CancellationToken,
    ) -> Leadership {
        let Self::Cluster { client, outage, candidacy: Some(candidacy), .. } = self else {
            metrics.leader.set(i64::from(self.keeper().is_some() && flags.sync == SyncMode::On));
            return Leadership::always();
        };
        let election = Election::new(client.clone(), outage.clone(), Arc::clone(metrics), candidacy.clone());
        let leadership = election.leadership();
        let release = CancellationToken::new();
        let (writers, stop, written) = (writers.clone(), stop.clone(), release.clone());
        tasks.spawn(async move {
            stop.cancelled().await;
            writers.close();
            writers.wait().await;
            written.cancel();
        });
        tasks.spawn(supervise("the leader election", release.clone(), Arc::clone(metrics), move || {
            election.clone().run(release.clone())
        }));
        leadership
    }
}

async fn until_stopped(
    stop: CancellationToken,
    source: impl Future<Output = Result<(), SyncError>> + Send,
) -> Result<(), SyncError> {
    stop.run_until_cancelled(source).await.unwrap_or(Ok(()))
}

/// Every socket, opened before anything is started: a port in use ends the program at once.
struct Sockets {
    dns: Vec<(SocketAddr, UdpSocket, TcpListener)>,
    /// Metrics, health, ready.
    probes: [(SocketAddr, TcpListener); 3],
}

impl Sockets {
    fn open(flags: &Flags) -> Result<Self, RunError> {
        let probe = |flag, address| {
            let failed = |source| RunError::Listen { flag, address, transport: "TCP", source };
            let listener = tcp::bind(address).map_err(failed)?;
            Ok::<_, RunError>((listener.local_addr().map_err(failed)?, listener))
        };
        Ok(Self {
            dns: flags.listen.iter().map(|address| open_pair(*address)).collect::<Result<_, _>>()?,
            probes: [
                probe("metrics-listen", flags.metrics_listen)?,
                probe("health-listen", flags.health_listen)?,
                probe("ready-listen", flags.ready_listen)?,
            ],
        })
    }
}

fn start_dns(
    listeners: &mut JoinSet<(SocketAddr, String)>,
    flags: &Flags,
    sockets: Vec<(SocketAddr, UdpSocket, TcpListener)>,
    upstreams: Vec<SocketAddr>,
    store: &Arc<Store>,
    metrics: &Arc<Metrics>,
    stop: &CancellationToken,
) -> Result<(), RunError> {
    let mut addresses: Vec<IpAddr> = flags.listen.iter().map(|listen| listen.ip().to_canonical()).collect();
    addresses.retain(|ip| !ip.is_unspecified());
    addresses.sort();
    addresses.dedup();
    let zones: Arc<[Zone]> = flags
        .zones
        .iter()
        .map(|zone| {
            Zone::new(zone, addresses.clone())
                .map_err(|source| RunError::Zone { zone: Box::new(zone.clone()), source })
        })
        .collect::<Result<_, _>>()?;
    let names: Vec<String> = flags.zones.iter().map(host_text).collect();
    let through: Vec<String> = upstreams.iter().map(ToString::to_string).collect();
    info!(
        "lb-linker {}: zones {}; other names {}",
        env!("CARGO_PKG_VERSION"),
        names.join(" "),
        if through.is_empty() { "are refused".to_owned() } else { format!("through {}", through.join(" ")) },
    );
    let upstream = (!upstreams.is_empty()).then(|| Arc::new(Upstream::new(upstreams)));
    let targets = Arc::new(flags.admission().targets);
    for (address, udp, tcp) in sockets {
        info!("DNS on {address}, by UDP and TCP");
        let handler = Arc::new(Handler {
            zones: Arc::clone(&zones),
            store: Arc::clone(store),
            targets: Arc::clone(&targets),
            upstream: upstream.clone(),
            metrics: Arc::clone(metrics),
            server: server_label(address),
        });
        let serving = udp::serve(udp, Arc::clone(&handler), stop.clone());
        listeners.spawn(async move { (address, ended(tokio::spawn(serving).await)) });
        let serving = tcp::serve(tcp, handler, stop.clone());
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

/// Opens the same port for UDP and TCP; port 0 is any that is free for both.
fn open_pair(address: SocketAddr) -> Result<(SocketAddr, UdpSocket, TcpListener), RunError> {
    let failed =
        |address, transport| move |source| RunError::Listen { flag: "listen", address, transport, source };
    let mut tries = if address.port() == 0 { PORT_TRIES } else { 1 };
    loop {
        tries -= 1;
        let tcp = tcp::bind(address).map_err(failed(address, "TCP"))?;
        let bound = tcp.local_addr().map_err(failed(address, "TCP"))?;
        match udp::bind(bound) {
            Ok(udp) => return Ok((bound, udp, tcp)),
            Err(error) if tries > 0 && error.kind() == io::ErrorKind::AddrInUse => {}
            Err(error) => return Err(failed(address, "UDP")(error)),
        }
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
