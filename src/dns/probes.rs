//! `/health`, `/ready` and `/metrics`, as CoreDNS's plugins of those names serve them.

use std::future::IntoFuture;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tracing::error;

use crate::metrics::Metrics;
use crate::store::Store;

/// The media type of Prometheus's text format.
const TEXT_FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// How long requests under way may take to end when lb-linker is told to stop.
const FAREWELL: Duration = Duration::from_secs(1);

/// Returns `/health`: the process answers. It never depends on the API server.
pub fn health() -> Router {
    Router::new().route("/health", get(|| async { "OK" }))
}

/// Returns `/ready`: 200 once the links are known, 503 and who isn't ready before.
pub fn ready(store: Arc<Store>) -> Router {
    let answer = move || {
        let ready = store.is_synced();
        async move { if ready { (StatusCode::OK, "OK") } else { (StatusCode::SERVICE_UNAVAILABLE, "lb_linker") } }
    };
    Router::new().route("/ready", get(answer))
}

/// Returns `/metrics`.
pub fn metrics(metrics: Arc<Metrics>, store: Arc<Store>) -> Router {
    let answer = move || {
        let page = metrics.render(&store);
        async move {
            match page {
                Ok(page) => ([(header::CONTENT_TYPE, TEXT_FORMAT)], page).into_response(),
                Err(problem) => {
                    error!("/metrics: {problem}");
                    StatusCode::INTERNAL_SERVER_ERROR.into_response()
                }
            }
        }
    };
    Router::new().route("/metrics", get(answer))
}

/// Serves one of them until `stop`.
pub async fn serve(listener: TcpListener, router: Router, stop: CancellationToken) -> io::Result<()> {
    let until = stop.clone();
    let serving = axum::serve(listener, router).with_graceful_shutdown(until.cancelled_owned());
    // A client that has sent half a request doesn't keep us from stopping.
    let overdue = async {
        stop.cancelled().await;
        tokio::time::sleep(FAREWELL).await;
    };
    tokio::select! {
        served = serving.into_future() => served,
        () = overdue => Ok(()),
    }
}
