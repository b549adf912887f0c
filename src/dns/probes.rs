//! `/health`, `/ready` and `/metrics`, as CoreDNS's plugins of those names serve them.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

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
pub fn serve(
    listener: TcpListener,
    router: Router,
    stop: CancellationToken,
) -> impl Future<Output = io::Result<()>> + Send {
    let service = router.into_make_service_with_connect_info::<SocketAddr>();
    async move { axum::serve(listener, service).with_graceful_shutdown(stop.cancelled_owned()).await }
}
