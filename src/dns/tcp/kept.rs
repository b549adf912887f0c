//! What a thread has answered by TCP or TLS, and gives again. Any thread of the runtime may serve a connection, and none
//! of them waits for another.

use std::cell::RefCell;

use super::places::SMALL;
use crate::dns::packets::{Packets, Room};

/// There are as many threads as cores, and most clients ask by UDP.
const ROOM: Room = Room { sets: 1024, bytes: 2 << 20 };

/// What a thread has at hand.
pub(super) struct Desk {
    pub packets: Packets,
    /// Where an answer is written.
    pub out: [u8; SMALL],
}

thread_local! {
    static DESK: RefCell<Option<Box<Desk>>> = const { RefCell::new(None) };
}

/// Works with what this thread has at hand.
///
/// # Panics
/// If the work asks for that itself.
pub(super) fn with_desk<T>(work: impl FnOnce(&mut Desk) -> T) -> T {
    let new = || Box::new(Desk { packets: Packets::new(ROOM), out: [0; SMALL] });
    DESK.with_borrow_mut(|desk| work(desk.get_or_insert_with(new)))
}
