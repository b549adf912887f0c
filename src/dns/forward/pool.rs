//! Connections to an upstream that wait for their next question.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_rustls::client::TlsStream;
use tokio_util::either::Either;

/// A connection, with TLS or without.
pub(super) type Connection = Either<TcpStream, Box<TlsStream<TcpStream>>>;

/// Connections that are kept at most: more were needed at once only in a storm.
const MAX_IDLE: usize = 100;

/// The idle connections, and since when they are; the youngest comes last.
#[derive(Debug)]
pub(super) struct Pool {
    idle: Mutex<Vec<(Instant, Connection)>>,
    expire: Duration,
}

impl Pool {
    pub(super) fn new(expire: Duration) -> Self {
        Self { idle: Mutex::default(), expire }
    }

    /// Takes the connection that was used last: it is the least likely to be closed at the other end.
    pub(super) fn take(&self) -> Option<Connection> {
        let mut idle = self.idle();
        idle.retain(|(since, _)| since.elapsed() < self.expire);
        idle.pop().map(|(_, connection)| connection)
    }

    pub(super) fn put(&self, connection: Connection) {
        let mut idle = self.idle();
        if idle.len() < MAX_IDLE {
            idle.push((Instant::now(), connection));
        }
    }

    pub(super) fn clear(&self) {
        self.idle().clear();
    }

    fn idle(&self) -> MutexGuard<'_, Vec<(Instant, Connection)>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
