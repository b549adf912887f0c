//! The limit of the queries that one look-up sends to one upstream, whatever the upstream answers.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::time::{Instant, sleep_until};

use crate::dns::message::query::QueryKey;
use crate::dns::message::wire::WireMessage;

/// A query by UDP and its repetition from another port, or without EDNS; and two by TCP: over an idle connection, which
/// may be dead, and over a new one.
const MAX_QUERIES: usize = 4;
/// Longer than a second, because queries may be delayed on their way: no second has more of them at the upstream either.
const WINDOW: Duration = Duration::from_millis(1100);

/// The upstreams that a look-up has queried within [`WINDOW`], with the times, and what observes it.
#[derive(Debug, Default)]
pub struct QueryLimiter {
    sent: Mutex<SmallVec<[(SocketAddr, Instant); 2]>>,
    /// The upstream that has answered or failed last.
    upstream: Mutex<Option<SocketAddr>>,
    observer: Option<ExchangeObserver>,
}

/// A query to an upstream, and its answer if there was one.
#[derive(Debug)]
pub(crate) struct Exchange<'a> {
    pub(crate) begun: SystemTime,
    /// `udp` or `tcp`.
    pub(crate) network: &'static str,
    pub(crate) local: Option<SocketAddr>,
    pub(crate) upstream: SocketAddr,
    pub(crate) question: &'a QueryKey,
    pub(crate) answer: Option<Arc<WireMessage>>,
}

type ExchangeFn = dyn Fn(&Exchange<'_>) + Send + Sync;

/// A function that gets each query of a look-up once it has ended or was given up.
struct ExchangeObserver(Box<ExchangeFn>);

impl fmt::Debug for ExchangeObserver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ExchangeObserver")
    }
}

impl QueryLimiter {
    pub(crate) fn observed_by(observe: impl Fn(&Exchange<'_>) + Send + Sync + 'static) -> Self {
        Self { observer: Some(ExchangeObserver(Box::new(observe))), ..Self::default() }
    }

    /// Returns the function that gets each query of the look-up once it has ended or was given up, if there is one.
    pub(crate) fn observer(&self) -> Option<&ExchangeFn> {
        self.observer.as_ref().map(|observer| &*observer.0)
    }

    /// Counts what another look-up has sent, too.
    pub(crate) fn add(&self, other: &Self) {
        let sent = other.sent.lock().clone();
        self.sent.lock().extend(sent);
        *self.upstream.lock() = other.upstream();
    }

    pub(crate) fn set_upstream(&self, upstream: SocketAddr) {
        *self.upstream.lock() = Some(upstream);
    }

    /// Returns the upstream that has answered or failed last.
    pub(crate) fn upstream(&self) -> Option<SocketAddr> {
        *self.upstream.lock()
    }

    /// Counts a query that is sent now.
    ///
    /// # Errors
    /// If it may not be sent yet: the time from which on it may.
    pub(crate) fn take(&self, to: SocketAddr, now: Instant) -> Result<(), Instant> {
        let mut sent = self.sent.lock();
        sent.retain(|(_, at)| now.duration_since(*at) < WINDOW);
        let mut recent = sent.iter().filter(|(upstream, _)| *upstream == to).map(|(_, at)| *at);
        match (recent.clone().count(), recent.next()) {
            (MAX_QUERIES.., Some(first)) => Err(first + WINDOW),
            _ => {
                sent.push((to, now));
                Ok(())
            }
        }
    }

    /// Waits until a query may be sent, and counts it.
    pub(crate) async fn wait(&self, to: SocketAddr) {
        while let Err(at) = self.take(to, Instant::now()) {
            sleep_until(at).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn upstream_gets_four_queries_in_each_second() {
        let limiter = QueryLimiter::default();
        let (one, other) = (([192, 0, 2, 1], 53).into(), ([192, 0, 2, 2], 53).into());
        let begun = Instant::now();
        let mut sent = Vec::new();
        for _ in 0..40 {
            limiter.wait(one).await;
            sent.push(Instant::now());
            advance(Duration::from_millis(30)).await;
        }
        assert_eq!(sent[3] - begun, Duration::from_millis(90), "the first four aren't delayed");
        for (first, fifth) in sent.iter().zip(&sent[4..]) {
            assert!(*fifth - *first > Duration::from_secs(1), "{:?}", *fifth - *first);
        }
        assert!(sent[39] - begun < Duration::from_secs(11), "no query waits longer than it has to");
        assert!(limiter.take(other, Instant::now()).is_ok(), "each upstream has its own limit");
    }
}
