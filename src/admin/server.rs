//! The listener of the status page.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::info;

use super::api::{Status, router};
use crate::dns::server::error::ServerError;
use crate::dns::server::probes;
use crate::sync::k8s::errors::ThrottledLog;
use crate::sync::task::backoff::Backoff;

/// The first and the longest pause before the address is bound again.
const RETRY_BACKOFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

/// Checks whether an address can be bound.
///
/// # Errors
/// If it can't.
pub async fn check_address(address: SocketAddr) -> Result<(), ServerError> {
    let failed = |source| ServerError::Listen {
        place: "--admin-listen: ".to_owned(),
        address,
        transport: "TCP",
        source,
    };
    TcpListener::bind(address).await.map(drop).map_err(failed)
}

/// Serves the status page until `stop`. If the address can't be bound, or the listener fails, logs a warning and tries
/// again: in the network of the host, the port is busy until the previous Pod has ended.
pub async fn serve(address: SocketAddr, status: Status, stop: CancellationToken) {
    let (mut pauses, mut log) = (Backoff::new(RETRY_BACKOFF), ThrottledLog::default());
    loop {
        let served = async {
            let listener = TcpListener::bind(address).await?;
            let line = format!("status page on http://{}/", listener.local_addr()?);
            if !log.recovered(&line) {
                info!("{line}");
            }
            pauses = Backoff::new(RETRY_BACKOFF);
            probes::serve(listener, || None, router(status.clone()), stop.clone()).await
        };
        let Err::<(), io::Error>(error) = served.await else { return };
        log.report(
            0,
            &format!(
                "--admin-listen {address}: {error}; the status page isn't served, DNS and the external targets are: give \
                 another address, to `lb-linker links`, too, or none"
            ),
        );
        if stop.run_until_cancelled(sleep(pauses.next())).await.is_none() {
            return;
        }
    }
}

#[cfg(test)]
mod tests;
