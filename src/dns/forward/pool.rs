//! Connections to an upstream that wait for their next question.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_rustls::client::TlsStream;
use tokio_util::either::Either;

use super::socket_budget::{SocketBudget, SocketPermit};

/// A connection that is open.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) stream: Stream,
    pub(super) opened: Instant,
    /// Dropped after the stream.
    pub(super) _permit: SocketPermit,
}

/// With TLS or without.
pub(super) type Stream = Either<TcpStream, Box<TlsStream<TcpStream>>>;

impl Connection {
    /// Returns the same connection for the holder of this permit. The permit that it had is free at once.
    pub(super) fn with(self, permit: SocketPermit) -> Self {
        Self { _permit: permit, ..self }
    }

    pub(super) fn local(&self) -> Option<SocketAddr> {
        let socket = match &self.stream {
            Either::Left(socket) => socket,
            Either::Right(tls) => tls.get_ref().0,
        };
        socket.local_addr().ok()
    }
}

/// How long connections are kept, and how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keep {
    /// How long one is kept that isn't used.
    pub idle: Duration,
    /// How long one is kept at all.
    pub age: Option<Duration>,
    /// How many are kept that aren't used.
    pub number: usize,
    /// How many UDP sockets are, for a moment.
    pub sockets: usize,
}

impl Default for Keep {
    /// As CoreDNS, but bounded: more than these are needed at once only in a storm.
    fn default() -> Self {
        Self { idle: Duration::from_secs(10), age: None, number: 100, sockets: 1000 }
    }
}

/// The idle connections, and since when they are; the youngest comes last.
#[derive(Debug)]
pub(super) struct Pool {
    idle: Mutex<Vec<(Instant, Connection)>>,
    keep: Keep,
    budget: Arc<SocketBudget>,
}

impl Pool {
    pub(super) fn new(keep: Keep, budget: Arc<SocketBudget>) -> Self {
        Self { idle: Mutex::default(), keep, budget }
    }

    /// Takes the connection that was used last: it is the least likely to be closed at the other end.
    pub(super) fn take(&self) -> Option<Connection> {
        let mut idle = self.idle();
        let is_young = |opened: Instant| self.keep.age.is_none_or(|age| opened.elapsed() <= age);
        idle.retain(|(since, connection)| since.elapsed() < self.keep.idle && is_young(connection.opened));
        idle.pop().map(|(_, connection)| connection)
    }

    pub(super) fn put(&self, connection: Connection) {
        let mut idle = self.idle();
        if idle.len() < self.keep.number
            && let Some(permit) = self.budget.idle()
        {
            idle.push((Instant::now(), connection.with(permit)));
        }
    }

    pub(super) fn clear(&self) {
        self.idle().clear();
    }

    fn idle(&self) -> MutexGuard<'_, Vec<(Instant, Connection)>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;
    use tokio::time::advance;

    use super::*;

    async fn connection(listener: &TcpListener) -> Connection {
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let permit = SocketBudget::default().of_checks().take().unwrap();
        Connection { stream: Either::Left(stream), opened: Instant::now(), _permit: permit }
    }

    #[tokio::test]
    async fn connection_in_use_leaves_its_permit_to_an_idle_one() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let budget = Arc::new(SocketBudget::default());
        // All at once, or each would be free again before the next is taken.
        let free = || std::iter::from_fn(|| budget.idle()).collect::<Vec<_>>().len();
        let all = free();
        let pool = Pool::new(Keep::default(), Arc::clone(&budget));
        pool.put(connection(&listener).await);
        assert_eq!(free(), all - 1);
        let permit = budget.of_checks().take().unwrap();
        let _used = pool.take().unwrap().with(permit);
        assert_eq!(free(), all);
    }

    #[tokio::test(start_paused = true)]
    async fn connections_are_kept_so_long_and_so_many() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let seconds = Duration::from_secs;
        let keep = Keep { idle: seconds(10), age: Some(seconds(15)), number: 1, ..Keep::default() };
        let pool = Pool::new(keep, Arc::default());
        pool.put(connection(&listener).await);
        let second = connection(&listener).await;
        pool.put(second);
        advance(seconds(9)).await;
        let kept = pool.take().expect("it is young and was used");
        assert!(pool.take().is_none(), "there is room for one");
        pool.put(kept);
        advance(seconds(7)).await;
        assert!(pool.take().is_none(), "16 s are too old, however it was used");
        pool.put(connection(&listener).await);
        advance(seconds(10)).await;
        assert!(pool.take().is_none(), "it wasn't used for 10 s");
    }
}
