//! The places for transfers.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

/// The maximum number of transfers at once in the process.
const MAX_TRANSFERS: usize = 4;
/// How long a client waits for a place: a server of many zones asks for several at once.
const WAIT: Duration = Duration::from_secs(3);

/// The places for transfers, which all blocks share.
#[derive(Debug, Default)]
pub struct TransferSlots {
    clients: Mutex<Vec<IpAddr>>,
    /// Told when a place is free again.
    released: Notify,
}

/// The place of a client's transfer; dropping it releases the place.
#[derive(Debug)]
pub(super) struct TransferSlot {
    slots: Arc<TransferSlots>,
    client: IpAddr,
}

impl TransferSlots {
    /// Waits for a place for a client's transfer.
    ///
    /// # Errors
    /// Returns why there is none.
    pub(super) async fn take(self: &Arc<Self>, client: IpAddr) -> Result<TransferSlot, &'static str> {
        let until = Instant::now() + WAIT;
        loop {
            // From here on, no release is missed.
            let released = self.released.notified();
            match self.try_take(client) {
                Err(why) if timeout_at(until, released).await.is_err() => return Err(why),
                Err(_) => {}
                taken => return taken,
            }
        }
    }

    fn try_take(self: &Arc<Self>, client: IpAddr) -> Result<TransferSlot, &'static str> {
        let mut clients = self.clients.lock();
        if clients.contains(&client) {
            return Err("it has another transfer under way");
        }
        if clients.len() >= MAX_TRANSFERS {
            return Err("too many transfers are under way");
        }
        clients.push(client);
        Ok(TransferSlot { slots: Arc::clone(self), client })
    }
}

impl Drop for TransferSlot {
    fn drop(&mut self) {
        self.slots.clients.lock().retain(|client| *client != self.client);
        self.slots.released.notify_waiters();
    }
}
