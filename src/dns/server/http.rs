//! The HTTP listeners for `/metrics`, `/health` and `/ready`.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn};
use axum::response::IntoResponse;
use prometheus::{Histogram, HistogramOpts, IntCounter, Registry};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::{error, info, warn};

use super::sockets::{PortReservation, open_http};
use crate::dns::plugins::setup::{HttpEndpoint, ServerContext};
use crate::dns::server::error::ServerError;
use crate::dns::server::invalidation::Servers;
use crate::dns::server::probes;
use crate::metrics::{MetricGroup, Metrics};

/// The interval and the timeout of the self-check of `/health`, as in CoreDNS.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
const CHECK_TIMEOUT: Duration = Duration::from_secs(3);

pub(crate) struct Http {
    metrics: Arc<Metrics>,
    servers: watch::Receiver<Servers>,
    checks: Arc<HealthMetrics>,
    live: Vec<HttpListener>,
    tasks: JoinSet<()>,
}

/// A listener on one address. Dropping it stops the listener.
struct HttpListener {
    place: HttpAddress,
    content: watch::Sender<Content>,
    port_reservation: PortReservation,
    _guard: DropGuard,
}

/// The address of a listener. Each path with port 0 has a listener of its own.
#[derive(Clone, Copy, PartialEq, Eq)]
struct HttpAddress {
    address: SocketAddr,
    path_of_port_0: Option<&'static str>,
}

/// What a listener serves.
struct Content {
    /// The distinct paths, sorted.
    paths: Vec<&'static str>,
    tls: Option<TlsAcceptor>,
}

impl HttpAddress {
    fn of(endpoint: &HttpEndpoint) -> Self {
        let address = endpoint.address;
        Self { address, path_of_port_0: (address.port() == 0).then(|| endpoint.kind.path()) }
    }
}

/// The metrics of the self-check of `/health`.
struct HealthMetrics {
    duration: Histogram,
    failures: IntCounter,
}

impl MetricGroup for HealthMetrics {
    fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let buckets = prometheus::exponential_buckets(0.000_25, 10.0, 5)?;
        let help = "Histogram of the time (in seconds) each request took.";
        let duration = HistogramOpts::new("coredns_health_request_duration_seconds", help).buckets(buckets);
        let duration = Histogram::with_opts(duration)?;
        let help = "The number of times the health check failed.";
        let failures = IntCounter::new("coredns_health_request_failures_total", help)?;
        registry.register(Box::new(duration.clone()))?;
        registry.register(Box::new(failures.clone()))?;
        Ok(Self { duration, failures })
    }
}

/// A port that was opened but isn't served yet.
pub(crate) struct OpenedPort {
    place: HttpAddress,
    bound: SocketAddr,
    listener: TcpListener,
}

/// Returns what is configured for an address.
fn content(endpoints: &[HttpEndpoint], place: HttpAddress) -> Content {
    let here = || endpoints.iter().filter(|it| HttpAddress::of(it) == place);
    let mut paths: Vec<_> = here().map(|it| it.kind.path()).collect();
    paths.sort_unstable();
    paths.dedup();
    let tls = here().find_map(|it| it.tls.as_ref()).map(|tls| Arc::clone(&tls.config).into());
    Content { paths, tls }
}

impl Http {
    pub(crate) fn new(
        context: &ServerContext,
        servers: watch::Receiver<Servers>,
    ) -> Result<Self, ServerError> {
        Ok(Self {
            metrics: Arc::clone(&context.metrics),
            servers,
            checks: context.metrics.group()?,
            live: Vec::new(),
            tasks: JoinSet::new(),
        })
    }

    /// Opens the ports that aren't open yet. Returns all errors, if there are some.
    pub(crate) fn open(&self, endpoints: &[HttpEndpoint]) -> Result<Vec<OpenedPort>, Vec<ServerError>> {
        let (mut opened, mut errors, mut tried) = (Vec::new(), Vec::new(), Vec::new());
        for endpoint in endpoints {
            let place = HttpAddress::of(endpoint);
            if !self.live.iter().any(|live| live.place == place) && !tried.contains(&place) {
                tried.push(place);
                let port = endpoint.address.port();
                let is_leaving = |live: &&HttpListener| content(endpoints, live.place).paths.is_empty();
                let share = |share| {
                    let leaving = self.live.iter().filter(is_leaving);
                    leaving.filter(|live| live.port_reservation.share(port, share)).count() > 0
                };
                let reuse_port = share(true);
                match open_http(endpoint, reuse_port) {
                    Ok((bound, listener)) => opened.push(OpenedPort { place, bound, listener }),
                    Err(error) => {
                        share(false);
                        errors.push(error);
                    }
                }
            }
        }
        if errors.is_empty() { Ok(opened) } else { Err(errors) }
    }

    /// Serves the opened ports, and stops listeners that are no longer configured.
    pub(crate) fn serve(&mut self, opened: Vec<OpenedPort>, endpoints: &[HttpEndpoint]) {
        self.live.retain(|live| {
            let content = content(endpoints, live.place);
            let wanted = !content.paths.is_empty();
            live.content.send_replace(content);
            wanted
        });
        for OpenedPort { place, bound, listener } in opened {
            let (content, served) = watch::channel(content(endpoints, place));
            let names = content.borrow().paths.join(", ");
            let how = if content.borrow().tls.is_some() { ", by TLS" } else { "" };
            info!("{names} on {bound}{how}");
            let stop = CancellationToken::new();
            let port_reservation = PortReservation::of(bound.port(), listener.as_fd());
            // Clears SO_REUSEPORT so that no other process can bind the port.
            port_reservation.share(bound.port(), false);
            let router = self.router(served.clone());
            let secured = served.clone();
            let tls = move || secured.borrow().tls.clone();
            let serving = probes::serve(listener, tls, router, stop.clone());
            self.tasks.spawn(async move {
                if let Err(problem) = serving.await {
                    error!("{names} on {bound} isn't served any more: {problem}");
                }
            });
            let (checks, until) = (Arc::clone(&self.checks), stop.clone());
            self.tasks.spawn(async move {
                until.run_until_cancelled(check(bound, served, checks)).await;
            });
            self.live.push(HttpListener { place, content, port_reservation, _guard: stop.drop_guard() });
        }
    }

    /// Returns a router that answers only the paths that are currently configured.
    fn router(&self, served: watch::Receiver<Content>) -> Router {
        let only_served = move |request: Request, next: Next| {
            let found = served.borrow().paths.contains(&request.uri().path());
            async move { if found { next.run(request).await } else { StatusCode::NOT_FOUND.into_response() } }
        };
        probes::metrics(Arc::clone(&self.metrics))
            .merge(probes::health())
            .merge(probes::ready(self.servers.clone()))
            .layer(from_fn(only_served))
    }

    pub(crate) async fn end(mut self) {
        self.live.clear();
        while self.tasks.join_next().await.is_some() {}
    }
}

/// Requests `/health` periodically: a slow reply is a sign of overload.
async fn check(address: SocketAddr, served: watch::Receiver<Content>, checks: Arc<HealthMetrics>) {
    let mut ticks = interval(CHECK_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks.tick().await;
    loop {
        ticks.tick().await;
        if !served.borrow().paths.contains(&"/health") {
            continue;
        }
        let since = Instant::now();
        let answer = timeout(CHECK_TIMEOUT, ask(address)).await;
        let elapsed = since.elapsed();
        checks.duration.observe(elapsed.as_secs_f64());
        match answer {
            Ok(Ok(())) if elapsed > CHECK_INTERVAL => warn!("the self-check of /health took {elapsed:?}"),
            Ok(Ok(())) => {}
            Ok(Err(problem)) => {
                checks.failures.inc();
                warn!("the self-check of /health has failed: {problem}");
            }
            Err(_) => {
                checks.failures.inc();
                warn!("the self-check of /health has got no answer within {CHECK_TIMEOUT:?}");
            }
        }
    }
}

async fn ask(address: SocketAddr) -> std::io::Result<()> {
    let mut address = address;
    match address.ip() {
        ip if !ip.is_unspecified() => {}
        std::net::IpAddr::V4(_) => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        std::net::IpAddr::V6(_) => address.set_ip(Ipv6Addr::LOCALHOST.into()),
    }
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await?;
    let mut answer = Vec::new();
    stream.take(4096).read_to_end(&mut answer).await?;
    if answer.starts_with(b"HTTP/1.1 200") { Ok(()) } else { Err(std::io::Error::other("status isn't 200")) }
}
