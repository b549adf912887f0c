//! What a thread has answered by TCP or TLS, and gives again. Any thread of the runtime may serve a connection, and none
//! of them waits for another.

use std::cell::RefCell;
use std::thread::available_parallelism;

use crate::dns::response_cache::wire_response::MAX_RESPONSE_BYTES;
use crate::dns::response_cache::{Capacity, ResponseCache};

/// How many bytes the answers of all threads may take, and those of one at least: there are as many threads as cores, and
/// most clients ask by UDP.
const MAX_BYTES_ALL_THREADS: usize = 8 << 20;
const MIN_BYTES_PER_THREAD: usize = 128 << 10;

/// What a thread has at hand.
pub(super) struct ThreadCache {
    pub response_cache: ResponseCache,
    /// Where an answer is written.
    pub out: [u8; MAX_RESPONSE_BYTES],
}

thread_local! {
    static DESK: RefCell<Option<Box<ThreadCache>>> = const { RefCell::new(None) };
}

/// Works with what this thread has at hand.
///
/// # Panics
/// If the work asks for that itself.
pub(super) fn with_desk<T>(work: impl FnOnce(&mut ThreadCache) -> T) -> T {
    DESK.with_borrow_mut(|desk| work(desk.get_or_insert_with(new)))
}

fn new() -> Box<ThreadCache> {
    let threads = available_parallelism().map_or(1, usize::from);
    let room = Capacity { sets: 1024, bytes: (MAX_BYTES_ALL_THREADS / threads).max(MIN_BYTES_PER_THREAD) };
    Box::new(ThreadCache { response_cache: ResponseCache::new(room), out: [0; MAX_RESPONSE_BYTES] })
}
