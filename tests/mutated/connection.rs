//! A server for TCP in the test process, and connections with arbitrary bytes.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use lb_linker::dns::transport::connections::connection_limit::ConnectionLimiter;
use lb_linker::dns::transport::connections::{ConnectionConfig, ConnectionLimits, HttpConfig};
use lb_linker::dns::transport::tcp;
use lb_linker::metrics::Metrics;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::question::handler;

/// The time limit for all answers; long enough for a busy machine.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// A DNS server for TCP, or for HTTP without TLS, on loopback.
pub struct ConnectionServer {
    address: SocketAddr,
    runtime: Runtime,
}

impl ConnectionServer {
    pub fn start(is_https: bool) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let _context = runtime.enter();
        let listener = tcp::bind((Ipv4Addr::LOCALHOST, 0).into(), false).unwrap();
        let address = listener.local_addr().unwrap();
        let limiter = Arc::new(ConnectionLimiter::new(Metrics::new().unwrap().group().unwrap()));
        // A pause of the test must not end a connection.
        let (read, write, idle) = (ANSWER_TIMEOUT, ANSWER_TIMEOUT, ANSWER_TIMEOUT);
        let limits = ConnectionLimits { read, write, idle, ..ConnectionLimits::default() };
        let http = is_https.then(|| HttpConfig::https(Some(usize::MAX)));
        let config = ConnectionConfig { limits, http, ..Default::default() };
        let config = Arc::new(ArcSwap::from_pointee(config));
        runtime.spawn(tcp::serve(listener, config, limiter, handler(), CancellationToken::new()));
        Self { address, runtime }
    }

    /// Sends the bytes in two parts, of which the first has `split % (bytes.len() + 1)` bytes, ends the sending
    /// direction, and returns everything that the server sends.
    pub fn answers(&self, bytes: &[u8], split: usize) -> Result<Vec<u8>, String> {
        let answers = self.runtime.block_on(async {
            timeout(ANSWER_TIMEOUT, self.exchange(bytes, split % (bytes.len() + 1))).await
        });
        answers.map_err(|_| format!("the connection stays open: {bytes:02x?}"))
    }

    async fn exchange(&self, bytes: &[u8], split: usize) -> Vec<u8> {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        // A reset at the end leaves no connection in TIME-WAIT, which would keep its port.
        stream.set_zero_linger().unwrap();
        let (mut answers, (first, second)) = (Vec::new(), bytes.split_at(split));
        for part in [first, second] {
            // The server may have closed the connection.
            let _ = stream.write_all(part).await;
            tokio::task::yield_now().await;
        }
        let _ = stream.shutdown().await;
        let _ = stream.read_to_end(&mut answers).await;
        answers
    }
}
