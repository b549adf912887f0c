//! A set of concurrent futures, nearly always of only one, that needs no separate wakers.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

use smallvec::SmallVec;

/// Futures that are polled together.
pub(crate) struct SmallFutureSet<F>(SmallVec<[Pin<Box<F>>; 1]>);

impl<F: Future> SmallFutureSet<F> {
    pub(crate) fn new() -> Self {
        Self(SmallVec::new())
    }

    pub(crate) fn push(&mut self, future: F) {
        self.0.push(Box::pin(future));
    }

    /// Waits for the first future that completes, and removes it; `None` if the set is empty.
    pub(crate) async fn next(&mut self) -> Option<F::Output> {
        poll_fn(|context| {
            for (at, future) in self.0.iter_mut().enumerate() {
                if let Poll::Ready(output) = future.as_mut().poll(context) {
                    drop(self.0.swap_remove(at));
                    return Poll::Ready(Some(output));
                }
            }
            if self.0.is_empty() { Poll::Ready(None) } else { Poll::Pending }
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use std::future::{Ready, pending, ready};

    use futures::FutureExt;
    use futures::future::Either;

    use super::*;

    #[test]
    fn completed_future_is_removed() {
        let mut few: SmallFutureSet<Either<_, Ready<u8>>> = SmallFutureSet::new();
        assert_eq!(few.next().now_or_never(), Some(None));
        few.push(Either::Left(pending()));
        few.push(Either::Right(ready(1)));
        few.push(Either::Right(ready(2)));
        assert_eq!(few.next().now_or_never(), Some(Some(1)));
        assert_eq!(few.next().now_or_never(), Some(Some(2)));
        assert_eq!(few.next().now_or_never(), None, "one future is still pending");
    }
}
