//! The runtime for what outlives the thread of a UDP socket: health checks, connections to upstreams, and refreshes of
//! cached answers.

use std::cell::RefCell;
use std::future::Future;

use futures::future::Either;
use tokio::runtime::Handle;
use tokio_util::context::TokioContext;

thread_local! {
    /// Set in threads that have a runtime of their own.
    static SHARED: RefCell<Option<Handle>> = const { RefCell::new(None) };
}

/// Sets the shared runtime for this thread, which has a runtime of its own.
pub(crate) fn set_shared_runtime(runtime: Handle) {
    SHARED.set(Some(runtime));
}

/// Returns the shared runtime; `None` outside all runtimes.
pub(crate) fn shared_runtime() -> Option<Handle> {
    SHARED.with_borrow(Clone::clone).or_else(|| Handle::try_current().ok())
}

/// Returns a future whose sockets, timers and tasks belong to the shared runtime, whichever thread polls it.
pub(crate) fn on_shared_runtime<F: Future>(future: F) -> Either<TokioContext<F>, F> {
    match SHARED.with_borrow(Clone::clone) {
        Some(runtime) => Either::Left(TokioContext::new(future, runtime)),
        None => Either::Right(future),
    }
}
