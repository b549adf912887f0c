//! The tasks of quinn.

use std::future::Future;
use std::io;
use std::net::UdpSocket;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use quinn::{AsyncTimer, AsyncUdpSocket, Connecting, Incoming, Runtime, ServerConfig, TokioRuntime};
use tokio::task::AbortHandle;

use crate::dns::transport::client_quota::SharedGuard;

/// Spawns quinn's tasks so that the one of a connection can be aborted, which frees the connection.
#[derive(Debug, Default)]
pub(super) struct Tasks {
    /// What the next task keeps until its end.
    kept: Mutex<Option<SharedGuard>>,
    newest: Mutex<Option<AbortHandle>>,
}

impl Tasks {
    /// Accepts a connection, and returns its task, too. quinn has freed the connection when `kept` is released.
    pub fn accept(
        &self,
        incoming: Incoming,
        server: Arc<ServerConfig>,
        kept: SharedGuard,
    ) -> Option<(Connecting, AbortHandle)> {
        *self.kept.lock() = Some(kept);
        let connecting = incoming.accept_with(server);
        *self.kept.lock() = None;
        // quinn has spawned the task meanwhile.
        Some((connecting.ok()?, self.newest.lock().take()?))
    }
}

impl Runtime for Tasks {
    fn new_timer(&self, at: Instant) -> Pin<Box<dyn AsyncTimer>> {
        TokioRuntime.new_timer(at)
    }

    fn spawn(&self, future: Pin<Box<dyn Future<Output = ()> + Send>>) {
        let kept = self.kept.lock().take();
        let task = tokio::spawn(async move {
            future.await;
            drop(kept);
        });
        *self.newest.lock() = Some(task.abort_handle());
    }

    fn wrap_udp_socket(&self, socket: UdpSocket) -> io::Result<Arc<dyn AsyncUdpSocket>> {
        TokioRuntime.wrap_udp_socket(socket)
    }

    fn now(&self) -> Instant {
        TokioRuntime.now()
    }
}
