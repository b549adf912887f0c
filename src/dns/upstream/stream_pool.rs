//! The pool of idle connections to an upstream.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_rustls::client::TlsStream;
use tokio_util::either::Either;

use super::idle::IdlePool;
use super::socket_budget::{SocketBudget, SocketPermit};
use crate::dns::upstream::config::PoolConfig;

/// The interval of the search for expired connections.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct StreamConnection {
    pub(crate) stream: Stream,
    pub(crate) opened: Instant,
    /// Dropped after the stream.
    pub(crate) _permit: SocketPermit,
}

/// A TCP stream, with or without TLS.
pub(crate) type Stream = Either<TcpStream, Box<TlsStream<TcpStream>>>;

impl StreamConnection {
    /// Returns the connection with another permit, and releases the previous permit.
    pub(crate) fn with(self, permit: SocketPermit) -> Self {
        Self { _permit: permit, ..self }
    }

    pub(crate) fn local(&self) -> Option<SocketAddr> {
        let socket = match &self.stream {
            Either::Left(socket) => socket,
            Either::Right(tls) => tls.get_ref().0,
        };
        socket.local_addr().ok()
    }

    /// Returns whether the connection, which has been idle since `since`, may be reused.
    fn is_reusable(&self, since: Instant, limits: &PoolConfig) -> bool {
        since.elapsed() < limits.idle && limits.age.is_none_or(|age| self.opened.elapsed() <= age)
    }

    /// Returns whether the upstream has closed the connection, or has sent unsolicited data.
    fn is_over(&mut self) -> bool {
        let mut byte = [0];
        let mut context = Context::from_waker(Waker::noop());
        // Reading processes TLS messages without data, such as session tickets (RFC 8446 section 4.6.1).
        Pin::new(&mut self.stream).poll_read(&mut context, &mut ReadBuf::new(&mut byte)).is_ready()
    }
}

#[derive(Debug)]
pub(crate) struct StreamPool {
    /// The connections, each with the time at which it became idle; the connection used last is at the end.
    idle: IdlePool<(Instant, StreamConnection)>,
    pool_config: PoolConfig,
    budget: Arc<SocketBudget>,
}

impl StreamPool {
    pub(crate) fn new(pool_config: PoolConfig, budget: Arc<SocketBudget>) -> Self {
        Self { idle: IdlePool::default(), pool_config, budget }
    }

    /// Takes the most recently used connection, which the other end is least likely to have closed.
    pub(crate) fn take(&self) -> Option<StreamConnection> {
        let mut connections = self.idle.items();
        connections.retain(|(since, connection)| connection.is_reusable(*since, &self.pool_config));
        connections.pop().map(|(_, connection)| connection)
    }

    pub(crate) fn put(&self, connection: StreamConnection) {
        let pool_config = self.pool_config;
        let item = || Some((Instant::now(), connection.with(self.budget.idle()?)));
        // Expired connections are closed even in an unused pool, because each holds a permit that other upstreams could
        // use.
        let is_over = move |(since, connection): &mut (Instant, StreamConnection), _| {
            !connection.is_reusable(*since, &pool_config) || connection.is_over()
        };
        self.idle.put(pool_config.max_idle_connections, item, SWEEP_INTERVAL, is_over);
    }

    /// Closes the connections that have been idle since before `time`.
    pub(crate) fn close_idle_since(&self, time: Instant) {
        self.idle.items().retain(|(since, _)| *since > time);
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;
    use tokio::time::{advance, sleep, timeout};

    use super::*;

    async fn connection(listener: &TcpListener) -> StreamConnection {
        let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let permit = SocketBudget::default().check_quota().take().unwrap();
        StreamConnection { stream: Either::Left(stream), opened: Instant::now(), _permit: permit }
    }

    /// Returns the number of free permits for idle connections.
    fn free(budget: &SocketBudget) -> usize {
        // Collected first, so that no permit is released before the next is taken.
        std::iter::from_fn(|| budget.idle()).collect::<Vec<_>>().len()
    }

    /// Waits until an unused pool holds `number` permits.
    async fn holds(budget: &SocketBudget, all: usize, number: usize) {
        let wait = async {
            while free(budget) != all - number {
                sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(Duration::from_secs(30), wait).await.expect("the pool releases its permits");
    }

    #[tokio::test(start_paused = true)]
    async fn idle_connections_are_closed_in_an_unused_pool() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let budget = Arc::new(SocketBudget::default());
        let all = free(&budget);
        let pool_config = PoolConfig { idle: Duration::from_secs(10), ..PoolConfig::default() };
        let pool = StreamPool::new(pool_config, Arc::clone(&budget));
        // In the second round, the task of the first round has ended.
        for _ in 0..2 {
            for _ in 0..2 {
                pool.put(connection(&listener).await);
            }
            let put = Instant::now();
            holds(&budget, all, 0).await;
            assert!(
                put.elapsed() >= pool_config.idle && put.elapsed() < pool_config.idle + 2 * SWEEP_INTERVAL
            );
        }
    }

    #[tokio::test]
    async fn idle_connection_ends_when_the_upstream_closes_it() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let budget = Arc::new(SocketBudget::default());
        let all = free(&budget);
        let pool =
            StreamPool::new(PoolConfig { idle: Duration::MAX, ..PoolConfig::default() }, Arc::clone(&budget));
        let mut ends = Vec::new();
        for _ in 0..3 {
            pool.put(connection(&listener).await);
            ends.push(listener.accept().await.unwrap().0);
        }
        // The upstream closes one connection, sends an unsolicited byte on another, and leaves the third one open.
        drop(ends.pop());
        ends[1].write_all(&[0]).await.unwrap();
        holds(&budget, all, 1).await;
        let kept = pool.take().expect("the upstream has left one connection open");
        assert_eq!(kept.local(), Some(ends[0].peer_addr().unwrap()));
    }

    #[tokio::test]
    async fn connection_taken_from_the_pool_frees_its_idle_permit() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let budget = Arc::new(SocketBudget::default());
        let all = free(&budget);
        let pool = StreamPool::new(PoolConfig::default(), Arc::clone(&budget));
        pool.put(connection(&listener).await);
        assert_eq!(free(&budget), all - 1);
        let permit = budget.check_quota().take().unwrap();
        let _used = pool.take().unwrap().with(permit);
        assert_eq!(free(&budget), all);
    }

    #[tokio::test(start_paused = true)]
    async fn number_and_age_of_connections_are_limited() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let seconds = Duration::from_secs;
        let pool_config = PoolConfig { idle: seconds(10), age: Some(seconds(15)), max_idle_connections: 1 };
        let pool = StreamPool::new(pool_config, Arc::default());
        pool.put(connection(&listener).await);
        let second = connection(&listener).await;
        pool.put(second);
        advance(seconds(9)).await;
        let kept = pool.take().expect("the connection is 9 s old and was idle for 9 s");
        assert!(pool.take().is_none(), "the pool holds one connection");
        pool.put(kept);
        advance(seconds(7)).await;
        assert!(pool.take().is_none(), "the connection is 16 s old, which is over the limit of 15 s");
        pool.put(connection(&listener).await);
        advance(seconds(10)).await;
        assert!(pool.take().is_none(), "the connection was idle for 10 s");
    }
}
