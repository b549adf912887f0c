//! Sinks that connect to lb-linker, for `dnstap listen`.

use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::either::Either;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::queue::{FrameQueue, Frames, queue};
use super::sink::{Endpoint, GRACE, Sink, SinkError, SinkStream, TIMEOUT, until_stopped};
use super::tap::Tap;
use crate::dns::net::ipv6_is_off;
use crate::dns::plugins::refusal_log::RefusalLog;

/// The maximum number of sinks of a listener; more wait until one ends.
const MAX_SINKS: usize = 16;
/// The pause after an address can't be opened, or a connection can't be accepted.
const PAUSE: Duration = Duration::from_millis(100);

/// Accepts sinks until the block ends.
pub(super) struct Incoming {
    pub endpoint: Endpoint,
    /// The TLS server, for [`Endpoint::Tls`].
    pub tls: Option<TlsAcceptor>,
}

enum Listener {
    Unix(UnixListener),
    Tcp(TcpListener),
}

/// The queue of a connected sink. At its end, also by a cancelled task, what waits is lost.
struct Added<'a> {
    tap: &'a Tap,
    queue: FrameQueue,
    frames: Frames,
}

impl Drop for Added<'_> {
    fn drop(&mut self) {
        self.tap.remove(&self.queue);
        self.tap.lost.add(self.frames.waiting());
    }
}

impl Incoming {
    pub async fn run(self, tap: Arc<Tap>, stop: &CancellationToken) {
        let (this, failures) = (Arc::new(self), Arc::new(RefusalLog::default()));
        let Some(listener) = stop.run_until_cancelled(this.open(&failures)).await else { return };
        info!("plugin/dnstap: sinks may connect to {}", this.endpoint);
        let mut sinks = JoinSet::new();
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                Some(_) = sinks.join_next() => {}
                accepted = listener.accept(), if sinks.len() < MAX_SINKS => match accepted {
                    Ok(stream) => {
                        let (this, tap, stop) = (Arc::clone(&this), Arc::clone(&tap), stop.clone());
                        let failures = Arc::clone(&failures);
                        sinks.spawn(async move {
                            until_stopped(this.serve(stream, &tap, &failures, &stop), &stop).await;
                        });
                    }
                    Err(error) => {
                        this.warn(&failures, "a sink can't be accepted", &error);
                        sleep(PAUSE).await;
                    }
                },
            }
        }
        if let Endpoint::Unix(path) = &this.endpoint {
            let _ = std::fs::remove_file(path);
        }
        drop(listener);
        while sinks.join_next().await.is_some() {}
    }

    /// Opens the address, and tries it again until it is free.
    async fn open(&self, failures: &RefusalLog) -> Listener {
        let (begun, mut is_first) = (Instant::now(), true);
        loop {
            let opened = match &self.endpoint {
                // After a reload the block before has it for a moment, and would take a probe for a sink.
                Endpoint::Unix(path) if is_first => UnixListener::bind(path).map(Listener::Unix),
                Endpoint::Unix(path) => open_unix(path).await.map(Listener::Unix),
                Endpoint::Tcp(address) | Endpoint::Tls(address) => bind(address).await.map(Listener::Tcp),
            };
            match opened {
                Ok(listener) => return listener,
                Err(error) if error.kind() == io::ErrorKind::AddrInUse && begun.elapsed() < GRACE => {}
                Err(error) => self.warn(failures, "it can't be opened", &error),
            }
            is_first = false;
            sleep(PAUSE).await;
        }
    }

    async fn serve(
        &self,
        stream: Either<UnixStream, TcpStream>,
        tap: &Tap,
        failures: &RefusalLog,
        stop: &CancellationToken,
    ) {
        let opening = async {
            let stream: SinkStream = match (stream, &self.tls) {
                (Either::Left(stream), _) => Either::Left(stream),
                (Either::Right(stream), None) => Either::Right(Either::Left(stream)),
                (Either::Right(stream), Some(tls)) => {
                    Either::Right(Either::Right(tls.accept(stream).await?.into()))
                }
            };
            Sink::open(stream).await
        };
        let opened = timeout(TIMEOUT, opening).await.unwrap_or(Err(SinkError::NoConnection));
        let outcome = match opened {
            Ok(sink) => {
                let (queue, frames) = queue(1);
                tap.add(queue.clone());
                let mut added = Added { tap, queue, frames };
                sink.send(&mut added.frames, &tap.lost, stop).await
            }
            Err(error) => Err(error),
        };
        if let Err(error) = outcome {
            self.warn(failures, "a sink is given up", &error);
        }
    }

    fn warn(&self, failures: &RefusalLog, what: &str, error: &dyn std::fmt::Display) {
        if failures.count().is_some() {
            warn!("plugin/dnstap: listen {}: {what}: {error}", self.endpoint);
        }
    }
}

impl Listener {
    async fn accept(&self) -> io::Result<Either<UnixStream, TcpStream>> {
        match self {
            Self::Unix(listener) => listener.accept().await.map(|(stream, _)| Either::Left(stream)),
            Self::Tcp(listener) => listener.accept().await.map(|(stream, _)| Either::Right(stream)),
        }
    }
}

/// Opens an address; `[::]` falls back to `0.0.0.0` where IPv6 is disabled.
async fn bind(address: &str) -> io::Result<TcpListener> {
    match (TcpListener::bind(address).await, address.strip_prefix("[::]:")) {
        (Err(error), Some(port)) if ipv6_is_off(&error) => TcpListener::bind(format!("0.0.0.0:{port}")).await,
        (result, _) => result,
    }
}

/// Opens a socket; first removes one that a process has left behind.
async fn open_unix(path: &Path) -> io::Result<UnixListener> {
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
    let refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
    if is_socket && UnixStream::connect(path).await.is_err_and(refused) {
        std::fs::remove_file(path)?;
    }
    UnixListener::bind(path)
}
