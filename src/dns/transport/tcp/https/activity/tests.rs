use std::net::Ipv4Addr;

use super::*;
use crate::dns::plugins::setup::ServerContext;
use crate::dns::server::config::first_handler;
use crate::dns::transport::metrics::TransportMetrics;
use crate::dns::transport::tcp::connection_limit::ConnectionLimiter;
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
    let permit = limiter.admit(CLIENT).unwrap().0;
    Activity::new(CLIENT, None, ConnectionLimits::default(), Arc::clone(handler), permit)
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
    activity.received();
    assert_eq!(deadline(&activity).await, Some((5, Overdue::Late)));
    pass(2).await;
    activity.received();
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
    assert_eq!(site.2.tcp_unread.get(), 1);
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
    let waiting = open.iter_mut().map(OpenRequest::may_wait).take_while(|may_wait| *may_wait).count();
    // The first one, and half of 4,096.
    assert_eq!(waiting, 2049);
    open.truncate(10);
    assert!(activity.begin().unwrap().may_wait());
    drop(open);
    let state = activity.state.lock();
    assert_eq!((state.requests, state.waiting), (0, 0));
}
