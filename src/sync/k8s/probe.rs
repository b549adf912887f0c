//! Requests that only show whether the API server answers, for a process without an election: watches alone find a
//! silent one after up to a minute.

use std::time::Duration;

use axum::http::Request;
use kube::Client;
use tokio::time::{sleep, timeout};

use super::errors::{ApiAvailability, no_answer};

const INTERVAL: Duration = Duration::from_secs(10);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// By default all clients may read it.
const PATH: &str = "/version";

/// Asks the API server every 10 s for its version, and records whether it answers.
pub async fn probe(client: Client, availability: ApiAvailability) {
    loop {
        sleep(INTERVAL).await;
        let Ok(request) = Request::get(PATH).body(Vec::new()) else { return };
        match timeout(REQUEST_TIMEOUT, client.request_text(request)).await {
            Ok(Ok(_)) => availability.report_available(),
            Ok(Err(error)) => availability.report_error(&error),
            Err(_) => availability.report(&format!("{} (get {PATH})", no_answer(REQUEST_TIMEOUT))),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::future::pending;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use axum::http::Response;
    use kube::client::Body;
    use tokio_util::task::AbortOnDropHandle;
    use tower::service_fn;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn silent_api_server_is_an_outage_after_15_seconds() {
        let is_silent = Arc::new(AtomicBool::new(false));
        let silent = Arc::clone(&is_silent);
        let service = service_fn(move |request: Request<Body>| {
            let is_silent = silent.load(Ordering::Relaxed);
            assert_eq!(request.uri().path(), PATH);
            async move {
                if is_silent {
                    pending::<()>().await;
                }
                // An API server that refuses the request answers, too.
                Ok::<_, Infallible>(Response::builder().status(403).body(Body::empty()).unwrap())
            }
        });
        let availability = ApiAvailability::default();
        let probing = probe(Client::new(service, "default"), availability.clone());
        let _probing = AbortOnDropHandle::new(tokio::spawn(probing));
        sleep(Duration::from_secs(60)).await;
        assert!(availability.outage().is_none());
        is_silent.store(true, Ordering::Relaxed);
        let outage_begins = async {
            while availability.outage().is_none() {
                sleep(Duration::from_millis(100)).await;
            }
        };
        timeout(INTERVAL + REQUEST_TIMEOUT + Duration::from_secs(1), outage_begins).await.unwrap();
        is_silent.store(false, Ordering::Relaxed);
        sleep(INTERVAL + REQUEST_TIMEOUT).await;
        assert!(availability.outage().is_none());
    }
}
