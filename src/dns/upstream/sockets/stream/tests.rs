use std::future::poll_fn;

use hickory_proto::rr::{Name, RecordType};
use tokio::net::TcpListener;
use tokio::task::yield_now;
use tokio::time::timeout;

use super::*;
use crate::dns::message::query::UpstreamQuery;
use crate::dns::upstream::socket_budget::SocketQuota;

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
        Self { listener, connections: Connections::new(pool_config, budget, None), quota }
    }

    /// Sends a query over a new connection; returns it and the other end of the connection.
    async fn connect(&self) -> (SentQuery, TcpStream) {
        let stream = TcpStream::connect(self.listener.local_addr().unwrap()).await.unwrap();
        let (permit, stream) = (self.quota.take().unwrap(), Either::Left(stream));
        let asked = self.connections.ask_over(stream, permit, &query(), false);
        (asked, self.listener.accept().await.unwrap().0)
    }

    /// Opens a connection that has answered a query, and is idle; returns it and its other end.
    async fn connect_and_answer(&self) -> (Arc<UpstreamSocket>, TcpStream) {
        let idle = self.connections.idle();
        let (asked, mut end) = self.connect().await;
        answer(&mut end).await;
        reply(&asked).await.unwrap();
        self.has_idle(idle + 1).await;
        (Arc::clone(&asked.socket), end)
    }

    /// Waits until this many connections are idle.
    async fn has_idle(&self, number: usize) {
        let wait = async {
            while self.connections.idle() != number {
                yield_now().await;
            }
        };
        timeout(TIMEOUT, wait).await.unwrap_or_else(|_| panic!("{} are idle", self.connections.idle()));
    }

    fn ask(&self) -> Option<SentQuery> {
        self.ask_at(Instant::now())
    }

    fn ask_at(&self, now: Instant) -> Option<SentQuery> {
        self.connections.ask(&query(), || self.quota.take(), now, None).unwrap().map(|(query, _)| query)
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

fn unused_id(connection: &UpstreamSocket) -> [u8; 2] {
    let queries = connection.queries.lock();
    (0..=u16::MAX).find(|id| !queries.has_used(*id)).unwrap().to_be_bytes()
}

async fn answer(end: &mut TcpStream) {
    let query = received(end).await;
    end.write_all(&framed_answer(query)).await.unwrap();
}

/// Answers two queries of a new connection out of order; returns its other end.
async fn answer_out_of_order(pair: &Pair) -> TcpStream {
    let (asked, mut end) = pair.connect().await;
    let both = [asked.socket.ask(query(), Instant::now()), asked];
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
    pair.has_idle(1).await;
    end
}

#[tokio::test]
async fn queries_share_a_connection_once_answers_are_out_of_order() {
    let pair = Pair::new(PoolConfig::default()).await;
    let mut end = answer_out_of_order(&pair).await;
    let now = Instant::now();
    let all: Vec<_> = std::iter::from_fn(|| pair.ask_at(now)).collect();
    assert_eq!(all.len(), MAX_SHARING);
    for query in &all {
        answer(&mut end).await;
        assert!(matches!(reply(query).await, Ok(UpstreamReply::Answer(_))));
    }
    pair.has_idle(1).await;
    let waiting = pair.ask().unwrap();
    assert!(pair.ask_at(waiting.sent + SLOW).is_none(), "the connection is silent");
    let begun = waiting.sent + Duration::from_secs(1);
    assert!(!pair.connections.doubt(&waiting.socket, begun, false));
    assert!(pair.ask_at(waiting.sent).is_some(), "a query that shares nothing says nothing of the sharing");
    assert!(!pair.connections.doubt(&waiting.socket, begun, true));
    assert!(pair.ask_at(waiting.sent).is_none(), "the upstream may answer in order by now");
}

#[tokio::test]
async fn upstream_that_answers_in_order_gets_one_query_at_a_time() {
    let pair = Pair::new(PoolConfig { idle: Duration::from_secs(3600), ..PoolConfig::default() }).await;
    let (mut slow, mut end) = pair.connect().await;
    let mut now = slow.sent;
    for _ in 0..3 {
        assert!(pair.ask_at(now).is_none());
        now += SLOW;
        let trial = pair.ask_at(now).expect("a second query shows whether the upstream answers out of order");
        assert!(pair.ask_at(now).is_none());
        for query in [slow, trial] {
            answer(&mut end).await;
            reply(&query).await.unwrap();
        }
        pair.has_idle(1).await;
        let alone = pair.ask_at(now).expect("the connection is idle");
        now += SLOW;
        assert!(pair.ask_at(now).is_none(), "the last trial isn't long ago");
        answer(&mut end).await;
        reply(&alone).await.unwrap();
        pair.has_idle(1).await;
        now += TRIAL_INTERVAL;
        slow = pair.ask_at(now).expect("the connection is idle");
    }
}

#[tokio::test]
async fn given_up_query_ends_a_connection_that_may_wait_for_it() {
    let pair = Pair::new(PoolConfig::default()).await;
    let (given_up, mut end) = pair.connect().await;
    drop(given_up);
    // The query is there, or was never sent.
    let mut octets = Vec::new();
    timeout(TIMEOUT, end.read_to_end(&mut octets)).await.expect("the connection is closed").unwrap();
    let mut end = answer_out_of_order(&pair).await;
    let now = Instant::now();
    let (given_up, other) = (pair.ask_at(now).unwrap(), pair.ask_at(now).unwrap());
    let late = received(&mut end).await;
    answer(&mut end).await;
    reply(&other).await.unwrap();
    drop((given_up, other));
    pair.has_idle(1).await;
    // In pieces, and the next query is sent between them.
    let late = framed_answer(late);
    end.write_all(&late[..20]).await.unwrap();
    let next = pair.ask().expect("the upstream answers out of order");
    let asked = received(&mut end).await;
    end.write_all(&[&late[20..], &framed_answer(asked)].concat()).await.unwrap();
    assert!(matches!(reply(&next).await, Ok(UpstreamReply::Answer(_))));
}

#[tokio::test]
async fn unused_connection_is_closed_and_releases_its_permit() {
    let idle = Duration::from_millis(50);
    let pair = Pair::new(PoolConfig { idle, ..PoolConfig::default() }).await;
    let all = pair.free();
    for _ in 0..2 {
        let begun = Instant::now();
        let (asked, mut end) = pair.connect().await;
        answer(&mut end).await;
        reply(&asked).await.unwrap();
        assert_eq!(timeout(TIMEOUT, end.read(&mut [0])).await.unwrap().unwrap(), 0);
        assert!(begun.elapsed() >= idle);
        pair.holds(all, 0, 0).await;
        assert_eq!(pair.connections.idle(), 0);
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
    end.write_all(&[&[0, 2], &unused_id(&unsolicited.0)[..]].concat()).await.unwrap();
    pair.holds(all, 1, 0).await;
    assert_eq!(pair.ask().unwrap().socket.local, kept.local);
}

#[tokio::test]
async fn nonsense_ends_all_queries_of_a_connection() {
    let pair = Pair::new(PoolConfig::default()).await;
    let (asked, mut end) = pair.connect().await;
    let waiting = [asked.socket.ask(query(), Instant::now()), asked];
    let unused = unused_id(&waiting[0].socket);
    end.write_all(&[&[0, 24], &unused[..], b"/1.1 400 Bad Request\r\n"].concat()).await.unwrap();
    for query in &waiting {
        assert_eq!(reply(query).await.unwrap_err().to_string(), MISMATCH);
    }
}

#[tokio::test]
async fn reply_with_another_question_ends_the_use_of_the_connection() {
    let pair = Pair::new(PoolConfig::default()).await;
    let (asked, mut end) = pair.connect().await;
    let next = asked.socket.ask(query(), Instant::now());
    let mut other = framed_answer(received(&mut end).await);
    other[2 + 13] = b'b';
    end.write_all(&other).await.unwrap();
    assert!(matches!(reply(&asked).await, Ok(UpstreamReply::Mismatch)));
    answer(&mut end).await;
    assert!(matches!(reply(&next).await, Ok(UpstreamReply::Answer(_))), "its own reply may be right");
    assert_eq!(timeout(TIMEOUT, end.read(&mut [0])).await.unwrap().unwrap(), 0);
    assert_eq!(pair.connections.idle(), 0);
}

#[tokio::test]
async fn idle_connection_takes_the_permit_of_the_look_up() {
    let pair = Pair::new(PoolConfig::default()).await;
    let all = pair.free();
    let (mut asked, mut end) = pair.connect().await;
    for _ in 0..3 {
        pair.holds(all, 0, 1).await;
        answer(&mut end).await;
        reply(&asked).await.unwrap();
        pair.holds(all, 1, 0).await;
        asked = pair.ask().unwrap();
    }
    drop(asked);
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
    let (asked, mut second) = pair.connect().await;
    answer(&mut second).await;
    reply(&asked).await.unwrap();
    assert_eq!(timeout(TIMEOUT, second.read(&mut [0])).await.unwrap().unwrap(), 0, "one may be idle");
    pair.holds(all, 1, 0).await;
    let used = pair.ask_at(begun + seconds(99)).expect("the connection was idle for 99 s");
    answer(&mut end).await;
    reply(&used).await.unwrap();
    pair.has_idle(1).await;
    assert!(pair.ask_at(begun + seconds(190)).is_none(), "the connection is older than 150 s");
    pair.holds(all, 0, 0).await;
    let _third = pair.connect_and_answer().await;
    assert!(pair.ask_at(Instant::now() + seconds(100)).is_none(), "the connection was idle for 100 s");
    pair.holds(all, 0, 0).await;
}

#[tokio::test]
async fn dropped_connections_are_closed_after_their_last_query() {
    let pair = Pair::new(PoolConfig::default()).await;
    let (_, mut idle) = pair.connect_and_answer().await;
    let (asked, mut end) = pair.connect().await;
    drop(pair);
    assert_eq!(idle.read(&mut [0]).await.unwrap(), 0);
    answer(&mut end).await;
    assert!(matches!(reply(&asked).await, Ok(UpstreamReply::Answer(_))));
    assert_eq!(end.read(&mut [0]).await.unwrap(), 0);
}

#[tokio::test]
async fn upstream_that_reads_nothing_delays_no_other_connection() {
    let pair = Pair::new(PoolConfig::default()).await;
    let (asked, _unread) = pair.connect().await;
    let unread: Vec<_> = (1..MAX_QUERIES).map(|_| asked.socket.ask(vec![0; 1000], Instant::now())).collect();
    let _other = pair.connect_and_answer().await;
    assert!(pair.ask().is_some());
    drop(unread);
}
