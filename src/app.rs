//! All wiring: what is started, in which order, and what stops what.
//!
//! DNS outlives sync: the listeners are open before the first load balancer is known, a sync task
//! that fails is started again, and only a dead DNS listener ends the process.

mod sync_runtime;
mod sync_tasks;
mod zone_updates;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::cli::flags::{ConfigError, Flags};
use crate::dns::corefile::CorefileError;
use crate::dns::net::{ENOUGH_FILES, max_files};
use crate::dns::plugins::lb_linker::LinkZone;
use crate::dns::plugins::setup::Site;
use crate::dns::server::corefile_source::Origin;
use crate::dns::server::invalidation;
use crate::dns::server::reload::Reloader;
use crate::model::hostname::host_text;
use crate::store::{Departed, Store};
use crate::sync::k8s::client::ClientError;
use crate::sync::source::file_watcher::DirectoryError;
use sync_runtime::SyncThread;
use sync_tasks::Source;
use zone_updates::Syncing;

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
    /// The Corefile can't be used.
    #[error(transparent)]
    Corefile(#[from] CorefileError),
    /// A socket can't be opened.
    #[error("{place}can't listen on {address} by {transport}: {source}{}", hint(source))]
    Listen {
        /// Where the Corefile says so.
        place: String,
        /// The address.
        address: SocketAddr,
        /// `UDP` or `TCP`.
        transport: &'static str,
        /// Why.
        source: io::Error,
    },
    /// There is no thread for the lines of `log` and `errors`.
    #[error("there is no thread for the query log: {0}")]
    Lines(io::Error),
    /// There is no thread for sync.
    #[error("there is no thread for the work with load balancers: {0}")]
    Thread(io::Error),
    /// A signal can't be waited for.
    #[error("signals can't be waited for: {0}")]
    Signal(io::Error),
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
        !matches!(
            self,
            Self::Dead { .. } | Self::Metrics(_) | Self::Signal(_) | Self::Lines(_) | Self::Thread(_)
        )
    }
}

fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "; a port below 1024 needs root or the capability NET_BIND_SERVICE"
        }
        io::ErrorKind::AddrInUse => "; another program has it, or this one somewhere else",
        io::ErrorKind::AddrNotAvailable => "; this machine has no such address",
        _ => "",
    }
}

/// Switches the log of DNS to `debug`, or back: the plugin of that name asks for it.
pub type SetDebug = Box<dyn Fn(bool) + Send + Sync>;

/// Runs until `stop` is cancelled, or a DNS listener dies.
///
/// # Errors
/// If it can't start, or a DNS listener dies.
pub async fn run(mut flags: Flags, stop: CancellationToken, set_debug: SetDebug) -> Result<(), RunError> {
    flags.validate()?;
    flags.upstreams()?;
    let origin = Origin::of(&flags);
    let corefile = origin.read()?;
    let zones = corefile.link_zones()?;
    flags.set_zones(&zones)?;
    raise_file_limit();
    let sync = SyncThread::start().map_err(RunError::Thread)?;
    let (source, flags) = sync.open(flags).await?;
    let store = Arc::new(store_for(&flags, &source));
    let (mut site, queue) = Site::new(Arc::clone(&store), flags.log_format)?;
    site.targets = Arc::new(flags.admission().targets);
    site.own_addresses = crate::dns::server::ns_addresses::of_this_server;
    let metrics = Arc::clone(&site.metrics);
    // To the last: it ends when this function does.
    let _writer = queue.write_to(io::stdout()).map_err(RunError::Lines)?;
    let greeting = format!("lb-linker {}: links in {}", env!("CARGO_PKG_VERSION"), names_of(&zones));
    let reloader = Reloader::start(origin, corefile, flags.clone(), zones, site, set_debug)?;
    info!("{greeting}");
    if let Some(notice) = flags.sync_notice() {
        warn!("{notice}");
    }
    let mut background = JoinSet::new();
    let ahead =
        invalidation::run(Arc::clone(&store), reloader.serving.servers(), Handle::current(), stop.clone());
    // Each change wakes it, and few of them lead to a look-up.
    background.spawn_on(ahead, sync.runtime());
    let syncing = Syncing { flags, store, metrics, zones: reloader.zones() };
    background.spawn_on(syncing.run(source, stop.clone()), sync.runtime());
    let outcome = reloader.run(&stop).await;
    stop.cancel();
    while background.join_next().await.is_some() {}
    if outcome.is_ok() {
        info!("stopped");
    }
    outcome
}

fn store_for(flags: &Flags, source: &Source) -> Store {
    let departed = if source.keeper().is_some() { Departed::Kept } else { Departed::Dropped };
    let store = Store::new(departed).with_zones(&flags.zones);
    if source.has_versions() { store.with_versions() } else { store }
}

fn names_of(zones: &[LinkZone]) -> String {
    let names: Vec<String> = zones.iter().map(|zone| host_text(&zone.origin)).collect();
    if names.is_empty() { "no zone".to_owned() } else { names.join(" ") }
}

/// Each TCP client and each question to an upstream is a file. Go programs raise the limit, too.
fn raise_file_limit() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
    if let Err(error) = raised {
        warn!("the limit of open files can't be raised: {error}");
    }
    let files = max_files();
    if files < ENOUGH_FILES {
        warn!(
            "the process may open {files} files, and {ENOUGH_FILES} are needed for 500 look-ups of one client at a \
             time: with fewer, look-ups and clients' connections are refused sooner. Raise the hard limit: \
             `ulimit -Hn {ENOUGH_FILES}`, or LimitNOFILE={ENOUGH_FILES} in a systemd unit"
        );
    }
}
