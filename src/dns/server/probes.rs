//! `/health`, `/ready` and `/metrics`, as served by CoreDNS's plugins `health`, `ready` and `prometheus`.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tracing::{debug, error};

use super::invalidation::Servers;
use crate::dns::chain::plugin::ChainPlugin;
use crate::dns::chain::server::Server;
use crate::dns::net::{ACCEPT_RETRY_PAUSE, is_fatal, is_out_of_resources, percent_of_file_limit};
use crate::metrics::Metrics;

/// The media type of Prometheus's text format.
const TEXT_FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The maximum number of connections of one listener. At the maximum, a new connection closes the oldest one. A probe
/// waits only for seconds, so the connection of a waiting probe is among the newest.
const MAX_CONNECTIONS: usize = 300;
/// The same limit in percent of the limit of open files. By default there are four listeners.
const MAX_PERCENT_OF_FILES: usize = 2;

/// The timeout for a client to finish the TLS handshake, and then to send a request. Sending the request and reading
/// the reply may together take twice as long.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

const MAX_HEADER_BYTES: usize = 16 << 10;

/// How long pending requests can delay the stop of a listener.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);

/// Returns the router of `/health`, which never depends on the API server.
pub fn health() -> Router {
    Router::new().route("/health", get(|| async { "OK" }))
}

/// Returns the router of `/ready`: if all plugins are ready, 200 with the notes of the plugins or `OK`; otherwise 503
/// with the names of the plugins that aren't ready, and the notes below.
pub fn ready(servers: watch::Receiver<Servers>) -> Router {
    let answer = move || {
        let (waiting, notes) = (not_ready(&servers.borrow()), notes(&servers.borrow()));
        async move {
            match (waiting.is_empty(), notes.is_empty()) {
                (true, true) => (StatusCode::OK, "OK".to_owned()),
                (true, false) => (StatusCode::OK, notes),
                (false, true) => (StatusCode::SERVICE_UNAVAILABLE, waiting),
                // The first line is as in CoreDNS.
                (false, false) => (StatusCode::SERVICE_UNAVAILABLE, format!("{waiting}\n{notes}")),
            }
        }
    };
    Router::new().route("/ready", get(answer))
}

/// Returns whether all plugins are ready.
pub(super) fn is_ready(servers: &[Arc<Server>]) -> bool {
    plugins(servers).all(|plugin| plugin.is_ready())
}

fn not_ready(servers: &[Arc<Server>]) -> String {
    let waiting = plugins(servers).filter(|plugin| !plugin.is_ready());
    let mut names: Vec<_> = waiting.map(|plugin| plugin.name()).collect();
    names.sort_unstable();
    names.dedup();
    names.join(",")
}

/// Returns the distinct notes of the plugins, one per line.
fn notes(servers: &[Arc<Server>]) -> String {
    let mut notes: Vec<String> = plugins(servers).filter_map(|plugin| plugin.note()).collect();
    notes.sort_unstable();
    notes.dedup();
    notes.join("\n")
}

fn plugins(servers: &[Arc<Server>]) -> impl Iterator<Item = &ChainPlugin> {
    servers.iter().flat_map(|server| server.blocks()).flat_map(|(_, block)| &block.plugins)
}

pub fn metrics(metrics: Arc<Metrics>) -> Router {
    let answer = move || {
        let page = metrics.render();
        async move {
            match page {
                Ok(page) => ([(header::CONTENT_TYPE, TEXT_FORMAT)], page).into_response(),
                Err(problem) => {
                    error!("/metrics: {problem}");
                    StatusCode::INTERNAL_SERVER_ERROR.into_response()
                }
            }
        }
    };
    Router::new().route("/metrics", get(answer))
}

/// Serves a router until `stop`. Each new connection uses the TLS configuration that `tls` then returns, or plain HTTP.
///
/// # Errors
/// If the listener is broken.
pub async fn serve(
    listener: TcpListener,
    tls: impl Fn() -> Option<TlsAcceptor>,
    router: Router,
    stop: CancellationToken,
) -> io::Result<()> {
    let max = percent_of_file_limit(MAX_PERCENT_OF_FILES).min(MAX_CONNECTIONS);
    serve_at_most(max, listener, tls, router, stop).await
}

async fn serve_at_most(
    max: usize,
    listener: TcpListener,
    tls: impl Fn() -> Option<TlsAcceptor>,
    router: Router,
    stop: CancellationToken,
) -> io::Result<()> {
    let mut connections = JoinSet::new();
    let mut by_age: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next() => continue,
            () = stop.cancelled() => break,
        };
        match accepted {
            Ok((stream, _)) => {
                by_age.retain(|connection| !connection.is_finished());
                if by_age.len() >= max
                    && let Some(oldest) = by_age.pop_front()
                {
                    oldest.abort();
                }
                by_age.push_back(connections.spawn(serve_one(stream, tls(), router.clone())));
            }
            Err(error) if is_fatal(&error) => return Err(error),
            Err(error) => {
                debug!("a connection for a probe can't be accepted: {error}");
                if is_out_of_resources(&error) {
                    tokio::time::sleep(ACCEPT_RETRY_PAUSE).await;
                }
            }
        }
    }
    // Frees the port, which a later reload may need.
    drop(listener);
    // A client with an incomplete request must not delay the shutdown.
    let drain = async { while connections.join_next().await.is_some() {} };
    let _ = timeout(SHUTDOWN_TIMEOUT, drain).await;
    Ok(())
}

async fn serve_one(stream: impl AsyncRead + AsyncWrite + Unpin, tls: Option<TlsAcceptor>, router: Router) {
    let Some(tls) = tls else { return answer(stream, router).await };
    match timeout(REQUEST_TIMEOUT, tls.accept(stream)).await {
        Ok(Ok(stream)) => answer(stream, router).await,
        Ok(Err(error)) => debug!("the TLS handshake with a probe has failed: {error}"),
        Err(_) => debug!("a probe doesn't finish the TLS handshake"),
    }
}

/// Answers one request. Probes come seconds apart, so keeping the connection open would gain nothing.
async fn answer(stream: impl AsyncRead + AsyncWrite + Unpin, router: Router) {
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST_TIMEOUT)
        .max_buf_size(MAX_HEADER_BYTES)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    match timeout(2 * REQUEST_TIMEOUT, serving).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => debug!("the connection of a probe has failed: {error}"),
        Err(_) => debug!("a probe doesn't read its answer"),
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use rcgen::{CertificateParams, KeyPair};
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
    use tokio::net::TcpStream;
    use tokio::time::Instant;
    use tokio_util::task::AbortOnDropHandle;

    use super::*;
    use crate::dns::transport::tls::{ClientAuth, Pem, config};

    const REQUEST: &[u8] = b"GET /health HTTP/1.1\r\nHost: test\r\n\r\n";

    /// Reads until the other side closes the connection.
    async fn rest(stream: &mut (impl AsyncRead + Unpin)) -> String {
        let mut bytes = Vec::new();
        let _ = timeout(Duration::from_secs(60), stream.read_to_end(&mut bytes)).await.expect("end of data");
        String::from_utf8(bytes).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn unfinished_request_is_cut_off_after_5_seconds() {
        for sent in [0, 1, REQUEST.len() - 1] {
            let (mut client, server) = duplex(4096);
            let serving = tokio::spawn(serve_one(server, None, health()));
            let start = Instant::now();
            let drip = async {
                for byte in REQUEST[..sent].chunks(1) {
                    client.write_all(byte).await.unwrap_or_default();
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
                std::future::pending().await
            };
            tokio::select! { ended = serving => ended.unwrap(), () = drip => {} }
            assert_eq!(start.elapsed().as_secs(), REQUEST_TIMEOUT.as_secs());
        }
    }

    /// Returns a TLS acceptor with a self-signed certificate.
    fn acceptor() -> TlsAcceptor {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new([]).unwrap().self_signed(&key).unwrap().pem();
        let (key, file) = (key.serialize_pem(), "".as_ref());
        let [certificate, key] = [&certificate, &key].map(|text| Pem { file, bytes: text.as_bytes() });
        config(certificate, key, ClientAuth::None, None).unwrap().into()
    }

    #[tokio::test(start_paused = true)]
    async fn unfinished_tls_handshake_is_cut_off_after_5_seconds() {
        // The header of a TLS record (RFC 8446 section 5.1), and the type of a ClientHello.
        for sent in [&[][..], &[22], &[22, 3, 1, 2, 0, 1]] {
            let (mut client, server) = duplex(4096);
            client.write_all(sent).await.unwrap();
            let start = Instant::now();
            serve_one(server, Some(acceptor()), health()).await;
            assert_eq!(start.elapsed(), REQUEST_TIMEOUT);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn client_without_tls_is_disconnected_at_once() {
        let (mut client, server) = duplex(4096);
        client.write_all(REQUEST).await.unwrap();
        let start = Instant::now();
        serve_one(server, Some(acceptor()), health()).await;
        assert_eq!(start.elapsed(), Duration::ZERO);
        let mut rest = Vec::new();
        client.read_to_end(&mut rest).await.unwrap();
        // The server sends at most a TLS alert.
        assert!(rest.is_empty() || rest[0] == 21 && rest.len() == 7, "{rest:02x?}");
    }

    #[tokio::test(start_paused = true)]
    async fn client_that_does_not_read_is_disconnected() {
        let (mut client, server) = duplex(64);
        let start = Instant::now();
        let serving = tokio::spawn(serve_one(server, None, health()));
        client.write_all(REQUEST).await.unwrap();
        serving.await.unwrap();
        assert_eq!(start.elapsed(), 2 * REQUEST_TIMEOUT);
    }

    #[tokio::test(start_paused = true)]
    async fn endless_request_headers_are_refused() {
        let (mut client, server) = duplex(4096);
        let serving = tokio::spawn(serve_one(server, None, health()));
        client.write_all(b"GET /health HTTP/1.1\r\n").await.unwrap();
        let mut sent = 0;
        while client.write_all(b"X: 0123456789\r\n").await.is_ok() {
            sent += 1;
        }
        serving.await.unwrap();
        assert!(sent < 2000, "{sent} lines");
    }

    #[tokio::test]
    async fn silent_clients_do_not_block_probes() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        let serving = serve_at_most(4, listener, || None, health(), stop.clone());
        let serving = AbortOnDropHandle::new(tokio::spawn(serving));
        let mut silent = Vec::new();
        for _ in 0..20 {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        for _ in 0..3 {
            let mut probe = TcpStream::connect(address).await.unwrap();
            probe.write_all(REQUEST).await.unwrap();
            let answer = rest(&mut probe).await;
            assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("OK"), "{answer}");
        }
        for first in &mut silent[..16] {
            assert_eq!(rest(first).await, "");
        }
        // These connections were closed because of the limit, not by a timeout: newer idle connections still work.
        silent[19].write_all(REQUEST).await.unwrap();
        assert!(rest(&mut silent[19]).await.ends_with("OK"));
        stop.cancel();
        serving.await.unwrap().unwrap();
    }
}
