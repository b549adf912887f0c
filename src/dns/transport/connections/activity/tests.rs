use std::net::Ipv4Addr;

use tokio_util::sync::CancellationToken;

use super::*;
use crate::dns::plugins::setup::ServerContext;
use crate::dns::server::config::first_handler;
use crate::dns::transport::connections::connection_limit::ConnectionLimiter;
use crate::dns::transport::metrics::TransportMetrics;
use crate::store::{OnGone, Store};

const CLIENT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 5353);

fn limiter() -> (Arc<Handler>, Arc<ConnectionLimiter>, Arc<TransportMetrics>) {
    let context = ServerContext::silent(Arc::new(Store::new(OnGone::Kept))).unwrap();
    let handler = first_handler(". {\nwhoami\n}\n", &context).unwrap();
    let metrics: Arc<TransportMetrics> = handler.metrics.group().unwrap();
    (handler, Arc::new(ConnectionLimiter::new(Arc::clone(&metrics))), metrics)
}

fn activity(
    (handler, limiter, _): &(Arc<Handler>, Arc<ConnectionLimiter>, Arc<TransportMetrics>),
) -> Arc<Activity> {
    admitted(handler, limiter, CLIENT, false)
}

fn admitted(
    handler: &Arc<Handler>,
    limiter: &Arc<ConnectionLimiter>,
    client: SocketAddr,
    is_http2: bool,
) -> Arc<Activity> {
    let permit = limiter.admit(client).unwrap().0;
    let (limits, stop) = (ConnectionLimits::default(), CancellationToken::new());
    let connection = Connection { client, local: None, limits, handler: Arc::clone(handler), permit, stop };
    Activity::new(connection, Protocol::Https, is_http2)
}

/// Returns in how many seconds the connection reaches its deadline, and why.
async fn deadline(activity: &Activity) -> Option<(u64, Overdue)> {
    let (deadline, why) = activity.state.lock().deadline(&activity.limits)?;
    Some(((deadline - Instant::now()).as_secs(), why))
}

async fn pass(seconds: u64) {
    tokio::time::advance(Duration::from_secs(seconds)).await;
}

#[tokio::test(start_paused = true)]
async fn deadline_depends_on_requests_and_unread_answers() {
    let activity = activity(&limiter());
    assert_eq!(deadline(&activity).await, Some((30, Overdue::Idle)));
    pass(10).await;
    activity.received(1);
    assert_eq!(deadline(&activity).await, Some((5, Overdue::Late)));
    pass(2).await;
    activity.received(1);
    assert_eq!(deadline(&activity).await, Some((3, Overdue::Late)));
    let open = activity.begin().unwrap();
    assert_eq!(deadline(&activity).await, None);
    let [first, second] = [1, 2].map(|byte| activity.hold(vec![byte]).unwrap());
    pass(4).await;
    assert_eq!(deadline(&activity).await, Some((1, Overdue::Late)));
    drop(first);
    assert_eq!(deadline(&activity).await, Some((5, Overdue::Late)));
    drop(open);
    drop(second);
    assert_eq!(deadline(&activity).await, Some((30, Overdue::Idle)));
    assert!(matches!(activity.next_step(false), Step::Wait(_)));
    assert!(matches!(activity.next_step(true), Step::Close));
    assert_eq!(deadline(&activity).await, Some((1, Overdue::Closed)));
    assert!(activity.begin().is_some());
    pass(1).await;
    assert!(activity.begin().is_none());
    assert!(matches!(activity.next_step(true), Step::End));
}

#[tokio::test]
async fn unread_answers_take_quota_that_other_clients_share() {
    let site = limiter();
    let (first, second) = (activity(&site), activity(&site));
    let small = || vec![0; 100];
    let held: Vec<Bytes> = std::iter::from_fn(|| first.hold(small()).ok()).collect();
    assert!((7000..9000).contains(&held.len()), "{}", held.len());
    assert!(matches!(first.next_step(false), Step::Fail(_)));
    assert_eq!(site.2.connections_unread.get(), 1);
    // The first answers of a connection need no quota.
    assert!(second.hold(small()).is_ok());
    assert!(matches!(second.next_step(false), Step::Wait(_)));
    drop(held);
    assert!(first.hold(vec![0; 60_000]).is_ok());
}

#[tokio::test]
async fn requests_wait_within_the_quota_of_pending_queries() {
    let activity = activity(&limiter());
    let mut open: Vec<OpenRequest> = (0..3000).map(|_| activity.begin().unwrap()).collect();
    let waiting = open.iter_mut().map(OpenRequest::may_ask).take_while(|may_wait| *may_wait).count();
    // The first one, and half of 4,096.
    assert_eq!(waiting, 2049);
    open.truncate(10);
    assert!(activity.begin().unwrap().may_ask());
    drop(open);
    let state = activity.state.lock();
    assert_eq!((state.requests, state.waiting), (0, 0));
}

#[tokio::test]
async fn http_2_bytes_without_requests_end_the_connection() {
    let (handler, limiter, _) = limiter();
    let activity = admitted(&handler, &limiter, CLIENT, true);
    for _ in 0..1000 {
        activity.received(4000);
        drop(activity.begin());
    }
    activity.received(MAX_EXTRA_BYTES);
    assert!(matches!(activity.next_step(false), Step::Wait(_)));
    activity.received(1);
    assert!(matches!(activity.next_step(false), Step::Fail(_)));
}

#[tokio::test]
async fn http_2_connection_closes_if_memory_for_frames_is_short() {
    let (handler, limiter, _) = limiter();
    let busy: Vec<Arc<Activity>> = (0..20).map(|_| admitted(&handler, &limiter, CLIENT, true)).collect();
    let open = |activity: &Activity| matches!(activity.next_step(false), Step::Wait(_));
    let ask = |activity: &Arc<Activity>, requests| {
        for _ in 0..requests {
            activity.received(REQUEST_BYTES);
            drop(activity.begin());
        }
    };
    busy.iter().for_each(|activity| ask(activity, 10_000));
    // Half of the memory.
    assert_eq!(busy.iter().filter(|activity| open(activity)).count(), 16);
    let other = SocketAddr::new(Ipv4Addr::new(10, 0, 0, 1).into(), 5353);
    let first = admitted(&handler, &limiter, other, true);
    ask(&first, 10_000);
    assert!(open(&first));
    let short = admitted(&handler, &limiter, CLIENT, true);
    ask(&short, KEPT_STEP / REQUEST_BYTES - 1);
    assert!(open(&short));
    ask(&short, 1);
    assert!(matches!(short.next_step(false), Step::Close));
    // No further request makes up for bytes.
    ask(&short, 2 * MAX_EXTRA_BYTES / REQUEST_BYTES);
    assert!(matches!(short.next_step(false), Step::Fail(_)));
    drop(busy);
    let next = admitted(&handler, &limiter, CLIENT, true);
    ask(&next, 10_000);
    assert!(open(&next));
}

#[tokio::test(start_paused = true)]
async fn closing_connection_ends_with_open_requests_too() {
    let activity = activity(&limiter());
    assert!(matches!(activity.next_step(true), Step::Close));
    let mut open = activity.begin().unwrap();
    assert!(open.may_ask());
    let mut unread = activity.hold(vec![1]).unwrap();
    let mut ended_after = None;
    for second in 1..20 {
        pass(1).await;
        // The client always reads an answer, and asks again.
        unread = activity.hold(unread.to_vec()).unwrap();
        if !matches!(activity.next_step(true), Step::Wait(_)) {
            ended_after = Some(second);
            break;
        }
    }
    // CLOSE_TIMEOUT, `read` and `write`.
    assert_eq!(ended_after, Some(11));
}

#[tokio::test]
async fn body_under_way_protects_no_connection_from_eviction() {
    let (handler, _, metrics) = limiter();
    let limiter = Arc::new(ConnectionLimiter::with(Arc::clone(&metrics), 4));
    let of = |last| SocketAddr::new(Ipv4Addr::new(10, 0, 0, last).into(), 5353);
    let all: Vec<Arc<Activity>> = (1..=4).map(|last| admitted(&handler, &limiter, of(last), true)).collect();
    let mut open: Vec<OpenRequest> = all.iter().map(|activity| activity.begin().unwrap()).collect();
    assert!(open.iter_mut().all(OpenRequest::may_wait));
    let fifth = limiter.admit(of(5));
    assert!(fifth.is_some());
    assert_eq!(metrics.connections_evicted.get(), 1);
    assert!(open[1..].iter_mut().all(OpenRequest::may_ask));
    drop(fifth);
    let mut sixth = limiter.admit(of(6)).unwrap().0;
    sixth.set_busy();
    assert!(limiter.admit(of(7)).is_none());
}

#[tokio::test]
async fn bytes_by_quic_and_aborted_requests_are_limited() {
    let site = limiter();
    let (many, aborted) = (activity(&site), activity(&site));
    for number in 1..=100 {
        drop(many.begin());
        // Streams that are read at a time note the same bytes.
        many.transferred(number * REQUEST_BYTES, 0);
        many.transferred(number * REQUEST_BYTES, 0);
    }
    // What the client acknowledges doesn't make up for what it sends later.
    many.transferred(200 * REQUEST_BYTES, 1 << 30);
    assert!(matches!(many.next_step(false), Step::Wait(_)));
    many.transferred(200 * REQUEST_BYTES + MAX_EXTRA_BYTES, 1 << 30);
    assert!(matches!(many.next_step(false), Step::Fail(_)));
    for _ in 0..MAX_EXTRA_BYTES / (2 * REQUEST_BYTES) {
        aborted.request_aborted();
    }
    assert!(matches!(aborted.next_step(false), Step::Wait(_)));
    aborted.request_aborted();
    assert!(matches!(aborted.next_step(false), Step::Fail(_)));
}

#[tokio::test]
async fn query_for_which_too_many_wait_gets_no_answer() {
    let upstream = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let context = ServerContext::silent(Arc::new(Store::new(OnGone::Kept))).unwrap();
    let corefile = format!(". {{\nforward . {}\n}}\n", upstream.local_addr().unwrap());
    let handler = first_handler(&corefile, &context).unwrap();
    let limiter = Arc::new(ConnectionLimiter::new(handler.metrics.group().unwrap()));
    let activity = admitted(&handler, &limiter, CLIENT, true);
    let mut waiting: Vec<OpenRequest> = (0..2049).map(|_| activity.begin().unwrap()).collect();
    assert!(waiting.iter_mut().all(OpenRequest::may_ask));
    // A query for "a. A".
    let query = [&[0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0][..], b"\x01a\0\0\x01\0\x01"].concat();
    let answered = query::answer(&activity, &mut activity.begin().unwrap(), query).await;
    assert_eq!(answered.err(), Some(query::NoAnswer::Busy));
}
