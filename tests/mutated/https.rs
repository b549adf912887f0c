//! Properties of the responses to arbitrary bytes on a connection for DNS over HTTPS, shared by the property test and
//! the fuzz target.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use lb_linker::dns::transport::tcp;
use lb_linker::dns::transport::tcp::connection_limit::ConnectionLimiter;
use lb_linker::dns::transport::tcp::{ConnectionConfig, ConnectionLimits};
use lb_linker::metrics::Metrics;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::question::handler;

/// The time limit for all responses; long enough for a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);
/// The maximum size of all responses to one input, in bytes: the inputs have some kilobytes.
const MAX_BYTES: usize = 4 << 20;

/// A server for DNS over HTTP without TLS on loopback.
pub struct HttpsServer {
    address: SocketAddr,
    runtime: Runtime,
}

impl HttpsServer {
    pub fn start() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let _context = runtime.enter();
        let listener = tcp::bind((Ipv4Addr::LOCALHOST, 0).into(), false).unwrap();
        let address = listener.local_addr().unwrap();
        let limiter = Arc::new(ConnectionLimiter::new(Metrics::new().unwrap().group().unwrap()));
        // A pause of the test must not end a connection.
        let limits = ConnectionLimits { read: TIMEOUT, write: TIMEOUT, idle: TIMEOUT, ..Default::default() };
        let config = ConnectionConfig { limits, https_connections: Some(usize::MAX), ..Default::default() };
        let config = Arc::new(ArcSwap::from_pointee(config));
        runtime.spawn(tcp::serve(listener, config, limiter, handler(), CancellationToken::new()));
        Self { address, runtime }
    }

    /// Sends the bytes in two parts, of which the first has `split % (bytes.len() + 1)` bytes, ends the sending
    /// direction, and reads all responses. Returns the kind of outcome, or the violated property.
    pub fn try_connection(&self, bytes: &[u8], split: usize) -> Result<&'static str, String> {
        let responses = self
            .runtime
            .block_on(async { timeout(TIMEOUT, self.exchange(bytes, split % (bytes.len() + 1))).await });
        let responses = responses.map_err(|_| format!("the connection stays open: {bytes:02x?}"))?;
        kind(&responses).map_err(|rule| format!("{rule}\n{bytes:02x?}\n{responses:02x?}"))
    }

    async fn exchange(&self, bytes: &[u8], split: usize) -> Vec<u8> {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        // A reset at the end leaves no connection in TIME-WAIT, which would keep its port.
        stream.set_zero_linger().unwrap();
        let (mut responses, (first, second)) = (Vec::new(), bytes.split_at(split));
        for part in [first, second] {
            // The server may have closed the connection.
            let _ = stream.write_all(part).await;
            tokio::task::yield_now().await;
        }
        let _ = stream.shutdown().await;
        let _ = stream.read_to_end(&mut responses).await;
        responses
    }
}

/// Returns the kind of the first final response, or the violated property.
fn kind(mut responses: &[u8]) -> Result<&'static str, String> {
    if responses.len() > MAX_BYTES {
        return Err(format!("{} bytes in response", responses.len()));
    }
    while let Some(rest) = responses.strip_prefix(b"HTTP/1.1 100 Continue\r\n\r\n") {
        responses = rest;
    }
    if responses.is_empty() {
        return Ok("no response");
    }
    if let Some(rest) = responses.strip_prefix(b"HTTP/1.") {
        return match rest.get(2..5) {
            Some(b"200") => Ok("an answer by HTTP/1.1"),
            Some(b"400" | b"404" | b"405" | b"408" | b"413" | b"414" | b"415" | b"431" | b"503" | b"500") => {
                Ok("an error by HTTP/1.1")
            }
            _ => Err("the status is one of those that the manual has".to_owned()),
        };
    }
    // The server's SETTINGS begin a connection of HTTP/2 (RFC 9113 section 3.4).
    match frames(responses) {
        Some(kinds) if kinds.first() != Some(&4) => Err("the first frame has settings".to_owned()),
        Some(kinds) if kinds.contains(&0) => Ok("an answer by HTTP/2"),
        Some(_) => Ok("no answer by HTTP/2"),
        None => Err("each frame is complete".to_owned()),
    }
}

/// Returns the kinds of the frames of HTTP/2 (RFC 9113 section 4.1); `None` if the last one is incomplete.
fn frames(mut bytes: &[u8]) -> Option<Vec<u8>> {
    let mut kinds = Vec::new();
    while !bytes.is_empty() {
        let ([high, middle, low, kind, ..], rest) = bytes.split_first_chunk::<9>()?;
        kinds.push(*kind);
        bytes = rest.get(u32::from_be_bytes([0, *high, *middle, *low]) as usize..)?;
    }
    Some(kinds)
}
