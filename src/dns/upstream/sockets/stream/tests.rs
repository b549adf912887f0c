use std::future::poll_fn;

use hickory_proto::rr::{Name, RecordType};
use tokio::net::TcpListener;
use tokio::task::yield_now;
use tokio::time::timeout;

use super::*;
use crate::dns::message::query::UpstreamQuery;

const TIMEOUT: Duration = Duration::from_secs(60);

/// An upstream, and the connections to it.
struct Pair {
    listener: TcpListener,
    connections: Connections,
    quota: SocketQuota,
}

impl Pair {
    async fn new(pool_config: PoolConfig) -> Self {
        let budget = Arc::new(SocketBudget::default());
        let quota = budget.check_quota();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self { listener, connections: Connections::new(pool_config, budget), quota }
    }

    /// Opens a connection; returns it and its other end.
    async fn connect(&self) -> (Arc<UpstreamSocket>, TcpStream) {
        let stream = TcpStream::connect(self.listener.local_addr().unwrap()).await.unwrap();
        let connection = self.connections.add(Either::Left(stream), self.quota.take().unwrap());
        (connection, self.listener.accept().await.unwrap().0)
    }

    /// Opens a connection that has answered a query.
    async fn connect_and_answer(&self) -> (Arc<UpstreamSocket>, TcpStream) {
        let (connection, mut end) = self.connect().await;
        let asked = connection.ask(query(), Instant::now());
        answer(&mut end).await;
        reply(&asked).await.unwrap();
        (connection, end)
    }

    fn ask(&self) -> Option<SentQuery> {
        self.ask_at(Instant::now())
    }

    fn ask_at(&self, now: Instant) -> Option<SentQuery> {
        self.connections.ask(&query(), &self.quota, now).unwrap()
    }

    /// Returns the number of free permits: for idle connections, and of the quota.
    fn free(&self) -> (usize, usize) {
        // Collected first, so that no permit is released before the next is taken.
        let idle = std::iter::from_fn(|| self.connections.budget.idle()).collect::<Vec<_>>();
        let quota = std::iter::from_fn(|| self.quota.take().ok()).collect::<Vec<_>>();
        (idle.len(), quota.len())
    }

    /// Waits until the permits of this many idle connections, and of this many others, are taken.
    async fn holds(&self, all: (usize, usize), idle: usize, other: usize) {
        let wait = async {
            while self.free() != (all.0 - idle, all.1 - other) {
                yield_now().await;
            }
        };
        timeout(TIMEOUT, wait).await.unwrap_or_else(|_| panic!("{:?} of {all:?} are free", self.free()));
    }
}

fn query() -> Vec<u8> {
    UpstreamQuery::recursive(Name::from_ascii("a.example.").unwrap(), RecordType::A).key().encode(false)
}

async fn reply(query: &SentQuery) -> io::Result<UpstreamReply> {
    timeout(TIMEOUT, poll_fn(|context| query.poll_reply(context))).await.expect("a reply or an error")
}

async fn received(end: &mut TcpStream) -> Vec<u8> {
    let mut query = vec![0; end.read_u16().await.unwrap().into()];
    end.read_exact(&mut query).await.unwrap();
    query
}

/// Makes a query its own answer, with its length before it.
fn framed_answer(mut query: Vec<u8>) -> Vec<u8> {
    query[2] |= 0x80;
    [&u16::try_from(query.len()).unwrap().to_be_bytes(), &query[..]].concat()
}

async fn answer(end: &mut TcpStream) {
    let query = received(end).await;
    end.write_all(&framed_answer(query)).await.unwrap();
}

#[tokio::test]
async fn queries_share_a_connection_once_answers_are_out_of_order() {
    let pair = Pair::new(PoolConfig::default()).await;
    let (connection, mut end) = pair.connect().await;
    let both = [(); 2].map(|()| connection.ask(query(), Instant::now()));
    assert!(pair.ask().is_none());
    let (first, second) = (received(&mut end).await, received(&mut end).await);
    // In pieces, because TCP keeps no bounds of messages.
    for octet in [framed_answer(second), framed_answer(first)].concat() {
        end.write_all(&[octet]).await.unwrap();
        yield_now().await;
    }
    for query in &both {
        assert!(matches!(reply(query).await, Ok(UpstreamReply::Answer(_))));
    }
    drop(both);
    let all: Vec<_> = std::iter::from_fn(|| pair.ask()).collect();
    assert_eq!(all.len(), MAX_WAITING);
    for query in &all {
        answer(&mut end).await;
        assert!(matches!(reply(query).await, Ok(UpstreamReply::Answer(_))));
    }
}

#[tokio::test]
async fn upstream_that_answers_in_order_gets_one_query_at_a_time() {
    let pair = Pair::new(PoolConfig { idle: Duration::from_secs(3600), ..PoolConfig::default() }).await;
    let (connection, mut end) = pair.connect().await;
    let mut now = Instant::now();
    for _ in 0..3 {
        let slow = connection.ask(query(), now);
        assert!(pair.ask_at(now).is_none());
        now += SLOW;
        let trial = pair.ask_at(now).expect("a second query shows whether the upstream answers out of order");
        assert!(pair.ask_at(now).is_none());
        for query in [slow, trial] {
            answer(&mut end).await;
            reply(&query).await.unwrap();
        }
        let alone = pair.ask_at(now).expect("the connection is idle");
        now += SLOW;
        assert!(pair.ask_at(now).is_none(), "the last trial isn't long ago");
        answer(&mut end).await;
        reply(&alone).await.unwrap();
        now += TRIAL_INTERVAL;
    }
}

#[tokio::test]
async fn unused_connection_is_closed_and_releases_its_permit() {
    let idle = Duration::from_millis(50);
    let pair = Pair::new(PoolConfig { idle, ..PoolConfig::default() }).await;
    let all = pair.free();
    for _ in 0..2 {
        let begun = Instant::now();
        let (_, mut end) = pair.connect_and_answer().await;
        assert_eq!(timeout(TIMEOUT, end.read(&mut [0])).await.unwrap().unwrap(), 0);
        assert!(begun.elapsed() >= idle);
        pair.holds(all, 0, 0).await;
        assert_eq!(pair.connections.usable(), 0);
    }
}

#[tokio::test]
async fn idle_connection_ends_when_the_upstream_closes_it() {
    let pair = Pair::new(PoolConfig::default()).await;
    let all = pair.free();
    let (closed, unsolicited) = (pair.connect_and_answer().await, pair.connect_and_answer().await);
    let (kept, _end) = pair.connect_and_answer().await;
    pair.holds(all, 3, 0).await;
    drop(closed);
    let mut end = unsolicited.1;
    let unused = (0..=u16::MAX).find(|id| !unsolicited.0.queries.lock().has_used(*id)).unwrap();
    end.write_all(&[&[0, 2], &unused.to_be_bytes()[..]].concat()).await.unwrap();
    pair.holds(all, 1, 0).await;
    assert_eq!(pair.ask().unwrap().socket.local, kept.local);
}

#[tokio::test]
async fn late_answer_is_ignored_and_nonsense_ends_all_queries() {
    let pair = Pair::new(PoolConfig::default()).await;
    let (connection, mut end) = pair.connect().await;
    let given_up = connection.ask(query(), Instant::now());
    let late = received(&mut end).await;
    drop(given_up);
    let waiting = [(); 3].map(|()| connection.ask(query(), Instant::now()));
    end.write_all(&framed_answer(late)).await.unwrap();
    answer(&mut end).await;
    assert!(matches!(reply(&waiting[0]).await, Ok(UpstreamReply::Answer(_))));
    end.write_all(b"HTTP/1.1 400 Bad Request").await.unwrap();
    end.write_all(&[b' '; 0x4854]).await.unwrap();
    for query in &waiting[1..] {
        assert_eq!(reply(query).await.unwrap_err().to_string(), MISMATCH);
    }
    assert_eq!(pair.connections.usable(), 0);
}

#[tokio::test]
async fn reply_with_another_question_ends_the_use_of_the_connection() {
    let pair = Pair::new(PoolConfig::default()).await;
    let (connection, mut end) = pair.connect().await;
    let both = [(); 2].map(|()| connection.ask(query(), Instant::now()));
    let mut other = framed_answer(received(&mut end).await);
    other[2 + 13] = b'b';
    end.write_all(&other).await.unwrap();
    assert!(matches!(reply(&both[0]).await, Ok(UpstreamReply::Mismatch)));
    assert_eq!(pair.connections.usable(), 0);
    answer(&mut end).await;
    assert!(matches!(reply(&both[1]).await, Ok(UpstreamReply::Answer(_))), "its own reply may be right");
}

#[tokio::test]
async fn idle_connection_takes_the_permit_of_the_look_up() {
    let pair = Pair::new(PoolConfig::default()).await;
    let all = pair.free();
    let (connection, mut end) = pair.connect().await;
    let mut asked = connection.ask(query(), Instant::now());
    for _ in 0..3 {
        pair.holds(all, 0, 1).await;
        answer(&mut end).await;
        reply(&asked).await.unwrap();
        drop(asked);
        pair.holds(all, 1, 0).await;
        asked = pair.ask().unwrap();
    }
    drop((asked, pair.connections.pool.lock().open.pop()));
    connection.retire();
    pair.holds(all, 0, 0).await;
}

#[tokio::test]
async fn number_and_age_of_connections_are_limited() {
    let seconds = Duration::from_secs;
    let pool_config = PoolConfig { idle: seconds(100), age: Some(seconds(150)), max_idle_connections: 1 };
    let pair = Pair::new(pool_config).await;
    let all = pair.free();
    let begun = Instant::now();
    let (_, mut end) = pair.connect_and_answer().await;
    let _second = pair.connect_and_answer().await;
    pair.holds(all, 1, 0).await;
    assert_eq!(pair.connections.usable(), 1, "the pool holds one idle connection");
    let used = pair.ask_at(begun + seconds(99)).expect("the connection was idle for 99 s");
    answer(&mut end).await;
    reply(&used).await.unwrap();
    assert!(pair.ask_at(begun + seconds(190)).is_none(), "the connection is older than 150 s");
    drop(used);
    pair.holds(all, 0, 0).await;
    let _third = pair.connect_and_answer().await;
    pair.holds(all, 1, 0).await;
    assert!(pair.ask_at(Instant::now() + seconds(100)).is_none(), "the connection was idle for 100 s");
    pair.holds(all, 0, 0).await;
}

#[tokio::test]
async fn dropped_connections_are_closed_after_their_last_query() {
    let pair = Pair::new(PoolConfig::default()).await;
    let (connection, mut end) = pair.connect().await;
    let asked = connection.ask(query(), Instant::now());
    let (_, mut idle) = pair.connect_and_answer().await;
    drop(pair);
    assert_eq!(idle.read(&mut [0]).await.unwrap(), 0);
    answer(&mut end).await;
    assert!(matches!(reply(&asked).await, Ok(UpstreamReply::Answer(_))));
    drop(asked);
    assert_eq!(end.read(&mut [0]).await.unwrap(), 0);
}

#[tokio::test]
async fn upstream_that_reads_nothing_delays_no_other_connection() {
    let pair = Pair::new(PoolConfig::default()).await;
    let (connection, _unread) = pair.connect().await;
    let unread: Vec<_> = (0..MAX_QUERIES).map(|_| connection.ask(vec![0; 1000], Instant::now())).collect();
    let (_, _end) = pair.connect_and_answer().await;
    assert!(pair.ask().is_some());
    drop(unread);
}
