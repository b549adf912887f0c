//! Properties of the answers to arbitrary bytes on a TCP connection, shared by the property test and the fuzz target.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use lb_linker::dns::net::Protocol;
use lb_linker::dns::transport::tcp;
use lb_linker::dns::transport::tcp::connection_limit::ConnectionLimiter;
use lb_linker::dns::transport::tcp::{ConnectionConfig, ConnectionLimits};
use lb_linker::metrics::Metrics;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::question::{check, handler};

/// The maximum length of a query on a connection, in bytes.
const MAX_QUERY: usize = 4096;
/// The time limit for all answers; long enough for a busy machine.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// A DNS server for TCP on loopback.
pub struct StreamServer {
    address: SocketAddr,
    runtime: Runtime,
}

impl StreamServer {
    pub fn start() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let _context = runtime.enter();
        let listener = tcp::bind((Ipv4Addr::LOCALHOST, 0).into(), false).unwrap();
        let address = listener.local_addr().unwrap();
        let limiter = Arc::new(ConnectionLimiter::new(Metrics::new().unwrap().group().unwrap()));
        // A pause of the test must not end a connection.
        let (read, write, idle) = (ANSWER_TIMEOUT, ANSWER_TIMEOUT, ANSWER_TIMEOUT);
        let limits = ConnectionLimits { read, write, idle, ..ConnectionLimits::default() };
        let config = Arc::new(ArcSwap::from_pointee(ConnectionConfig { limits, ..Default::default() }));
        runtime.spawn(tcp::serve(listener, config, limiter, handler(), CancellationToken::new()));
        Self { address, runtime }
    }

    /// Sends the bytes in two parts, of which the first has `split % (bytes.len() + 1)` bytes, ends the sending
    /// direction, and reads all answers. Returns the kind of outcome, or the violated property.
    pub fn try_stream(&self, bytes: &[u8], split: usize) -> Result<&'static str, String> {
        let answers = self.runtime.block_on(async {
            timeout(ANSWER_TIMEOUT, self.exchange(bytes, split % (bytes.len() + 1))).await
        });
        let answers = answers.map_err(|_| format!("the connection stays open: {bytes:02x?}"))?;
        check_answers(bytes, &answers).map_err(|rule| format!("{rule}\n{bytes:02x?}\n{answers:02x?}"))
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

/// Splits a stream into its messages (RFC 1035 section 4.2.2). Returns the rest, too: it begins with an incomplete
/// message, or with one that is longer than `limit`.
fn frames(mut bytes: &[u8], limit: usize) -> (Vec<&[u8]>, &[u8]) {
    let mut all = Vec::new();
    while let Some((length, rest)) = bytes.split_first_chunk() {
        let length = usize::from(u16::from_be_bytes(*length));
        if length > limit || rest.len() < length {
            break;
        }
        let (frame, rest) = rest.split_at(length);
        all.push(frame);
        bytes = rest;
    }
    (all, bytes)
}

fn check_answers(asked: &[u8], answers: &[u8]) -> Result<&'static str, String> {
    let (queries, rest) = frames(asked, MAX_QUERY);
    let (answers, incomplete) = frames(answers, usize::MAX);
    if !incomplete.is_empty() {
        return Err("each answer is complete".to_owned());
    }
    let mut next = answers.iter();
    for query in queries {
        let is_silent = matches!(check(query, None, Protocol::Tcp), Ok(None));
        // No query waits for an upstream, so the answers have the order of the queries.
        let answer = if is_silent { None } else { next.next().copied() };
        check(query, answer, Protocol::Tcp)?;
    }
    if next.next().is_some() {
        return Err("each answer belongs to a query".to_owned());
    }
    Ok(match (answers.len(), rest.is_empty()) {
        (0, _) => "no answer",
        (_, true) => "answers",
        (_, false) => "answers, and a rest",
    })
}
