//! The listener of the status page.

use std::net::SocketAddr;

use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::api::{Status, router};
use crate::dns::server::probes;

/// Serves the status page until `stop`. Logs a warning and returns if the address can't be bound or the listener fails.
pub async fn serve(address: SocketAddr, status: Status, stop: CancellationToken) {
    let served = async {
        let listener = TcpListener::bind(address).await?;
        info!("status page on http://{}/", listener.local_addr()?);
        probes::serve(listener, || None, router(status), stop).await
    };
    if let Err(error) = served.await {
        warn!(
            "--admin-listen {address}: {error}; the status page isn't served, DNS and the external targets are"
        );
    }
}
