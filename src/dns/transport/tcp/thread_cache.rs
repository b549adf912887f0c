//! What a thread has answered by TCP or TLS, and gives again. Any thread of the runtime may serve a connection, and none
//! of them waits for another.

use std::cell::RefCell;
use std::thread::available_parallelism;

use crate::dns::response_cache::wire_response::LONGEST;
use crate::dns::response_cache::{Packets, Room};

/// How many bytes the answers of all threads may take, and those of one at least: there are as many threads as cores, and
/// most clients ask by UDP.
const ALL: usize = 8 << 20;
const LEAST: usize = 128 << 10;

/// What a thread has at hand.
pub(super) struct Desk {
    pub packets: Packets,
    /// Where an answer is written.
    pub out: [u8; LONGEST],
}

thread_local! {
    static DESK: RefCell<Option<Box<Desk>>> = const { RefCell::new(None) };
}

/// Works with what this thread has at hand.
///
/// # Panics
/// If the work asks for that itself.
pub(super) fn with_desk<T>(work: impl FnOnce(&mut Desk) -> T) -> T {
    DESK.with_borrow_mut(|desk| work(desk.get_or_insert_with(new)))
}

fn new() -> Box<Desk> {
    let threads = available_parallelism().map_or(1, usize::from);
    let room = Room { sets: 1024, bytes: (ALL / threads).max(LEAST) };
    Box::new(Desk { packets: Packets::new(room), out: [0; LONGEST] })
}
