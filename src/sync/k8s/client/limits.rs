//! Limits on the requests of a client, and their metrics.

use std::sync::Arc;
use std::time::Duration;

use axum::http::Request;
use kube::Client;
use kube::client::Body;
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep_until};
use tower::service_fn;

use crate::store::cluster::registry::ApiLimits;
use crate::sync::k8s::errors::ApiAvailability;
use crate::sync::k8s::metrics::RequestMetrics;

/// The defaults of Kubernetes's client library: requests per second, and at once.
const DEFAULT_RATE: (f64, u32) = (5.0, 10);

/// The time at which the next request may be sent, as if each had its place in a queue that `burst` requests may be
/// ahead of.
struct Pace {
    interval: Duration,
    burst: u32,
    next: Mutex<Instant>,
}

/// Returns a client whose requests wait for these limits, and are counted.
pub(crate) fn limited(
    client: Client,
    limits: &ApiLimits,
    server: ApiAvailability,
    metrics: Arc<RequestMetrics>,
) -> Client {
    let has_rate = limits.qps > 0.0 || limits.burst > 0;
    let pace = has_rate.then(|| Arc::new(Pace::new(limits)));
    let places = (limits.max_inflight > 0).then(|| Arc::new(Semaphore::new(limits.max_inflight)));
    let namespace = client.default_namespace().to_owned();
    let service = service_fn(move |request: Request<Body>| {
        let (client, pace, places) = (client.clone(), pace.clone(), places.clone());
        let (metrics, verb, host) = (Arc::clone(&metrics), request.method().clone(), server.host());
        async move {
            let began = Instant::now();
            if let Some(pace) = pace {
                sleep_until(pace.take(Instant::now())).await;
            }
            let _place = match &places {
                Some(places) => places.acquire().await.ok(),
                None => None,
            };
            metrics.waited(verb.as_str(), &host, began.elapsed());
            let sent = Instant::now();
            let answer = client.send(request).await;
            let code = answer.as_ref().ok().map(|answer| answer.status().as_u16());
            metrics.answered(verb.as_str(), &host, code, sent.elapsed());
            answer
        }
    });
    Client::new(service, namespace)
}

impl Pace {
    fn new(limits: &ApiLimits) -> Self {
        let qps = if limits.qps > 0.0 { limits.qps } else { DEFAULT_RATE.0 };
        let burst = if limits.burst > 0 { limits.burst } else { DEFAULT_RATE.1 };
        let interval = Duration::try_from_secs_f64(1.0 / qps).unwrap_or(Duration::from_secs(3600));
        Self { interval, burst, next: Mutex::new(Instant::now()) }
    }

    /// Returns when a request may be sent.
    fn take(&self, now: Instant) -> Instant {
        let ahead = self.interval.saturating_mul(self.burst.saturating_sub(1));
        let mut next = self.next.lock();
        let place = (*next).max(now.checked_sub(ahead).unwrap_or(now));
        *next = place + self.interval;
        place
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_beyond_the_burst_wait_for_the_rate() {
        let pace = Pace::new(&ApiLimits { qps: 2.0, burst: 3, max_inflight: 0 });
        let now = Instant::now() + Duration::from_secs(60);
        let waits: Vec<Duration> = (0..5).map(|_| pace.take(now).saturating_duration_since(now)).collect();
        assert_eq!(waits, [0, 0, 0, 500, 1000].map(Duration::from_millis));
    }

    #[test]
    fn burst_alone_has_the_rate_of_the_client_library() {
        let pace = Pace::new(&ApiLimits { qps: 0.0, burst: 1, max_inflight: 0 });
        let now = Instant::now() + Duration::from_secs(60);
        let waits: Vec<Duration> = (0..3).map(|_| pace.take(now).saturating_duration_since(now)).collect();
        assert_eq!(waits, [0, 200, 400].map(Duration::from_millis));
    }
}
