use std::collections::HashSet;
use std::future::poll_fn;

use futures::future::join_all;
use hickory_proto::op::ResponseCode;
use hickory_proto::rr::{Name, RecordType};
use tokio::net::UdpSocket;
use tokio::time::{advance, timeout};

use super::*;
use crate::dns::message::query::UpstreamQuery;
use crate::dns::upstream::socket_budget::SocketBudget;
use crate::dns::upstream::sockets::SentQuery;

const TIMEOUT: Duration = Duration::from_secs(60);

fn query(name: &str) -> Vec<u8> {
    UpstreamQuery::recursive(Name::from_ascii(name).unwrap(), RecordType::A).key().encode(false)
}

fn open(to: &UdpSocket) -> Arc<UpstreamSocket> {
    let permit = SocketBudget::default().check_quota().take().unwrap();
    UpstreamSocket::open_udp(None, to.local_addr().unwrap(), permit, None).unwrap()
}

async fn reply(query: &SentQuery) -> io::Result<UpstreamReply> {
    timeout(TIMEOUT, poll_fn(|context| query.poll_reply(context))).await.expect("a reply or an error")
}

async fn received(upstream: &UdpSocket) -> (Vec<u8>, SocketAddr) {
    let mut query = [0; 512];
    let (length, from) = timeout(TIMEOUT, upstream.recv_from(&mut query)).await.expect("a query").unwrap();
    (query[..length].to_vec(), from)
}

/// Makes a query its own answer.
fn answer(mut query: Vec<u8>) -> Vec<u8> {
    query[2] |= 0x80;
    query
}

#[tokio::test]
async fn replies_in_any_order_reach_their_queries() {
    let upstream = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let socket = open(&upstream);
    let queries: Vec<_> =
        (0..100).map(|number| socket.ask(query(&format!("{number}.example.")), Instant::now())).collect();
    let mut asked = Vec::new();
    for _ in 0..100 {
        asked.push(received(&upstream).await);
    }
    let ids: HashSet<_> = asked.iter().map(|(query, _)| [query[0], query[1]]).collect();
    assert_eq!(ids.len(), 100);
    for (query, from) in asked.into_iter().rev() {
        let labels = usize::from(query[12]);
        let ttl: u8 = str::from_utf8(&query[13..][..labels]).unwrap().parse().unwrap();
        let mut reply = answer(query);
        reply[7] = 1;
        reply.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, ttl, 0, 4, 192, 0, 2, 1]);
        upstream.send_to(&reply, from).await.unwrap();
    }
    for (number, outcome) in join_all(queries.iter().map(reply)).await.into_iter().enumerate() {
        let Ok(UpstreamReply::Answer(message)) = outcome else { panic!("{outcome:?}") };
        assert_eq!(message.decode(None).answers[0].ttl, number as u32);
    }
}

#[tokio::test]
async fn datagrams_that_answer_no_query_end_none() {
    let upstream = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let socket = open(&upstream);
    let asked = socket.ask(query("a.example."), Instant::now());
    let (query, from) = received(&upstream).await;
    let real = answer(query.clone());
    let mut forged: Vec<_> = (0..=u16::MAX)
        .filter(|id| id.to_be_bytes() != query[..2])
        .step_by(97)
        .map(|id| [&id.to_be_bytes(), &real[2..]].concat())
        .collect();
    let mut other_question = real.clone();
    other_question[13] = b'b';
    forged.extend([other_question, query.clone(), Vec::new(), vec![query[0]], real[..11].to_vec()]);
    for datagram in &forged {
        upstream.send_to(datagram, from).await.unwrap();
        yield_now().await;
    }
    upstream.send_to(&real, from).await.unwrap();
    assert!(matches!(reply(&asked).await, Ok(UpstreamReply::Answer(_))));
    let again = socket.ask(query, Instant::now());
    assert_eq!(received(&upstream).await.1, from, "the socket stays in use");
    drop(again);
}

#[tokio::test]
async fn error_without_question_counts_until_a_wrong_guess() {
    let upstream = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let wrong_id =
        |real: &[u8]| (0..=u16::MAX).find(|id| id.to_be_bytes() != real[..2]).unwrap().to_be_bytes();
    for (guess, is_late) in [(None, false), (None, true), (Some("id"), false), (Some("question"), false)] {
        let socket = open(&upstream);
        if is_late {
            let given_up = socket.ask(query("b.example."), Instant::now());
            let (query, from) = received(&upstream).await;
            drop(given_up);
            upstream.send_to(&answer(query), from).await.unwrap();
        }
        let asked = socket.ask(query("a.example."), Instant::now());
        let (query, from) = received(&upstream).await;
        let real = answer(query);
        // FORMERR.
        let mut error = real[..12].to_vec();
        (error[3], error[5]) = (1, 0);
        match guess {
            Some("id") => {
                _ = upstream.send_to(&[&wrong_id(&error), &error[2..]].concat(), from).await.unwrap()
            }
            Some(_) => {
                let mut other = real.clone();
                other[13] = b'c';
                upstream.send_to(&other, from).await.unwrap();
            }
            None => {}
        }
        upstream.send_to(&error, from).await.unwrap();
        upstream.send_to(&real, from).await.unwrap();
        let Ok(UpstreamReply::Answer(answer)) = reply(&asked).await else { panic!() };
        let is_error = answer.metadata.response_code == ResponseCode::FormErr;
        assert_eq!(is_error, guess.is_none(), "late reply before it: {is_late}");
        assert_eq!(!socket.has_room(usize::MAX, Instant::now()), guess.is_some(), "{guess:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn socket_is_used_for_a_limited_time_and_number_of_queries() {
    let upstream = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let sockets = UdpSockets::default();
    let mut ports = HashSet::new();
    for _ in 0..2 {
        let begun = Instant::now();
        let socket = open(&upstream);
        sockets.add(&socket);
        ports.insert(socket.local);
        for _ in 0..MAX_QUERIES {
            let found = sockets.find(begun, None).expect("the socket may have another query");
            drop(found.ask(query("a.example."), begun));
        }
        assert!(sockets.find(begun, None).is_none(), "it has had its number of queries");
    }
    let socket = open(&upstream);
    sockets.add(&socket);
    assert!(sockets.find(Instant::now(), None).is_some());
    assert!(sockets.find(Instant::now(), Some(Instant::now())).is_none(), "it isn't newer");
    advance(MAX_AGE).await;
    assert!(sockets.find(Instant::now(), None).is_none(), "it is too old");
    assert_eq!(ports.len(), 2);
}

#[tokio::test]
async fn crowded_socket_is_used_only_if_there_is_no_other() {
    let upstream = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let (sockets, now) = (UdpSockets::default(), Instant::now());
    sockets.add(&open(&upstream));
    let fill = |find: &dyn Fn() -> Option<Arc<UpstreamSocket>>| -> Vec<SentQuery> {
        std::iter::from_fn(|| Some(find()?.ask(query("a.example."), now))).collect()
    };
    let waiting = fill(&|| sockets.find(now, None));
    assert_eq!(waiting.len(), MAX_WAITING);
    let crowd = fill(&|| sockets.find_crowded(now));
    assert_eq!(crowd.len() + waiting.len(), MAX_QUERIES);
    drop(waiting);
    assert!(sockets.find(now, None).is_none(), "it has had its number of queries");
}

#[tokio::test(start_paused = true)]
async fn unused_socket_is_closed_after_its_last_query() {
    let upstream = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let budget = SocketBudget::default();
    let quota = budget.check_quota();
    let free = || std::iter::from_fn(|| quota.take().ok()).collect::<Vec<_>>().len();
    let all = free();
    let to = upstream.local_addr().unwrap();
    let socket = UpstreamSocket::open_udp(None, to, quota.take().unwrap(), None).unwrap();
    let waiting = socket.ask(query("a.example."), Instant::now());
    tokio::time::sleep(2 * MAX_AGE).await;
    assert_eq!(free(), all - 1, "a query waits");
    drop(waiting);
    tokio::time::sleep(MAX_AGE).await;
    assert_eq!(free(), all);
    let late = socket.ask(query("a.example."), Instant::now());
    assert_eq!(reply(&late).await.unwrap_err().kind(), io::ErrorKind::ConnectionAborted);
}

#[tokio::test]
async fn closed_port_ends_all_queries_of_the_socket() {
    let upstream = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let socket = open(&upstream);
    drop(upstream);
    let queries: Vec<_> = (0..3).map(|_| socket.ask(query("a.example."), Instant::now())).collect();
    for outcome in join_all(queries.iter().map(reply)).await {
        assert_eq!(outcome.unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    }
    assert!(!socket.has_room(usize::MAX, Instant::now()));
}

#[test]
fn end_of_the_runtime_ends_the_queries() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let owner = runtime();
    let (_upstream, asked) = owner.block_on(async {
        let upstream = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let asked = open(&upstream).ask(query("a.example."), Instant::now());
        (upstream, asked)
    });
    drop(owner);
    let outcome = runtime().block_on(reply(&asked));
    assert_eq!(outcome.unwrap_err().kind(), io::ErrorKind::ConnectionAborted);
}

#[tokio::test]
async fn earlier_ports_dont_tell_the_next_one() {
    const NUMBER: usize = 20_000;
    let upstream = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let mut ports = Vec::with_capacity(NUMBER);
    for _ in 0..NUMBER {
        let socket = open(&upstream);
        ports.push(socket.local.unwrap().port());
        socket.retire();
        yield_now().await;
    }
    let (least, most) = (*ports.iter().min().unwrap(), *ports.iter().max().unwrap());
    assert!(most - least > 20_000, "{least} to {most}");
    let parts = |of: &dyn Fn(usize) -> u16| {
        let mut counts = [0_usize; 16];
        (1..NUMBER).for_each(|at| counts[usize::from(of(at) / 256 % 16)] += 1);
        counts
    };
    let differences = parts(&|at| ports[at].wrapping_sub(ports[at - 1]));
    for counts in [parts(&|at| ports[at]), differences] {
        // The standard deviation of a part is about 34.
        let expected = NUMBER / 16;
        assert!(counts.iter().all(|count| count.abs_diff(expected) < 400), "{counts:?}");
    }
    let repeated = (1..NUMBER).filter(|at| ports[*at] == ports[at - 1]).count();
    assert!(repeated < 10, "{repeated}");
}
