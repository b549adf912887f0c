//! Tasks that the thread of a UDP socket polls itself, in its rounds: a wake-up of another task of its runtime would cost
//! a system call.

use std::cell::RefCell;
use std::panic::AssertUnwindSafe;

use futures::future::{BoxFuture, FutureExt};
use tokio::runtime::Handle;
use tracing::error;

thread_local! {
    /// The tasks that the thread hasn't taken yet; `None` in threads of the shared runtime.
    static NEW: RefCell<Option<Vec<BoxFuture<'static, ()>>>> = const { RefCell::new(None) };
}

/// Lets this thread poll its tasks itself, with [`take`].
pub(crate) fn begin() {
    NEW.set(Some(Vec::new()));
}

/// Starts a task on this thread, or on the shared runtime. Without a runtime, at the end of the process, the task is
/// dropped.
pub(crate) fn spawn(task: impl Future<Output = ()> + Send + 'static) {
    NEW.with_borrow_mut(|new| match (new, Handle::try_current()) {
        (Some(new), _) => {
            // A panic must end nothing else on this thread.
            let task = AssertUnwindSafe(task).catch_unwind();
            new.push(
                task.map(|end| end.unwrap_or_else(|_| error!("a task of a UDP thread panicked"))).boxed(),
            );
        }
        (None, Ok(runtime)) => drop(runtime.spawn(task)),
        (None, Err(_)) => {}
    });
}

/// Returns the tasks that were started on this thread since the last call.
pub(crate) fn take() -> Vec<BoxFuture<'static, ()>> {
    NEW.with_borrow_mut(|new| new.as_mut().map(std::mem::take)).unwrap_or_default()
}
