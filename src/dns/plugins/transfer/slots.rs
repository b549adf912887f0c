//! The places for transfers.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

/// The maximum number of transfers at once in the process.
const MAX_TRANSFERS: usize = 4;
/// The maximum number of them for clients that only `*` admits: such clients must not keep the listed ones from a zone.
const MAX_UNLISTED: usize = 2;
/// How long a client waits for a place: a server of many zones asks for several at once.
const WAIT: Duration = Duration::from_secs(3);

/// The places for transfers, which all blocks share.
#[derive(Debug, Default)]
pub struct TransferSlots {
    holders: Mutex<Vec<Holder>>,
    /// Told when a place is free again.
    released: Notify,
}

/// A client that has a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Holder {
    /// Of a client that isn't listed, the /64 of an IPv6 address, any address of which it may have.
    address: IpAddr,
    is_listed: bool,
}

/// The place of a client's transfer; dropping it releases the place.
#[derive(Debug)]
pub(super) struct TransferSlot {
    slots: Arc<TransferSlots>,
    holder: Holder,
}

impl TransferSlots {
    /// Waits for a place for a client's transfer. `is_listed` tells whether the option `to` has its address.
    ///
    /// # Errors
    /// Returns why there is none.
    pub(super) async fn take(
        self: &Arc<Self>,
        client: IpAddr,
        is_listed: bool,
    ) -> Result<TransferSlot, &'static str> {
        let address = match client {
            IpAddr::V6(ip) if !is_listed => Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64).into(),
            _ => client,
        };
        let holder = Holder { address, is_listed };
        let until = Instant::now() + WAIT;
        loop {
            // From here on, no release is missed.
            let released = self.released.notified();
            match self.try_take(holder) {
                Err(why) if timeout_at(until, released).await.is_err() => return Err(why),
                Err(_) => {}
                taken => return taken,
            }
        }
    }

    fn try_take(self: &Arc<Self>, holder: Holder) -> Result<TransferSlot, &'static str> {
        let mut holders = self.holders.lock();
        if holders.contains(&holder) {
            return Err("it has another transfer under way");
        }
        if holders.len() >= MAX_TRANSFERS {
            return Err("too many transfers are under way");
        }
        let unlisted = holders.iter().filter(|holder| !holder.is_listed).count();
        if !holder.is_listed && unlisted >= MAX_UNLISTED {
            return Err("too many transfers to clients that only * admits are under way");
        }
        holders.push(holder);
        Ok(TransferSlot { slots: Arc::clone(self), holder })
    }

    #[cfg(test)]
    pub(super) fn held(&self) -> usize {
        self.holders.lock().len()
    }
}

impl Drop for TransferSlot {
    fn drop(&mut self) {
        self.slots.holders.lock().retain(|holder| *holder != self.holder);
        self.slots.released.notify_waiters();
    }
}
