//! The response cache of a thread for TCP, TLS, HTTPS, gRPC and QUIC. Any thread of the runtime may serve a
//! connection, and no thread waits for another thread's cache.

use std::cell::RefCell;
use std::thread::available_parallelism;

use crate::dns::response_cache::wire_response::MAX_RESPONSE_BYTES;
use crate::dns::response_cache::{Capacity, ResponseCache};

/// The memory limit of the caches of all threads, and the minimum for one thread, in bytes. There are as many threads
/// as cores, and most clients use UDP.
const MAX_BYTES_ALL_THREADS: usize = 8 << 20;
const MIN_BYTES_PER_THREAD: usize = 128 << 10;

pub(in crate::dns::transport) struct ThreadCache {
    pub response_cache: ResponseCache,
    pub out: [u8; MAX_RESPONSE_BYTES],
}

thread_local! {
    static THREAD_CACHE: RefCell<Option<Box<ThreadCache>>> = const { RefCell::new(None) };
}

/// Calls `work` with the response cache and the answer buffer of this thread.
///
/// # Panics
/// If `work` calls this function.
pub(in crate::dns::transport) fn with_thread_cache<T>(work: impl FnOnce(&mut ThreadCache) -> T) -> T {
    THREAD_CACHE.with_borrow_mut(|cache| work(cache.get_or_insert_with(new)))
}

fn new() -> Box<ThreadCache> {
    let threads = available_parallelism().map_or(1, usize::from);
    let capacity =
        Capacity { sets: 1024, bytes: (MAX_BYTES_ALL_THREADS / threads).max(MIN_BYTES_PER_THREAD) };
    Box::new(ThreadCache { response_cache: ResponseCache::new(capacity), out: [0; MAX_RESPONSE_BYTES] })
}
