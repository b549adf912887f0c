//! Wakers for the parts of a thread's work: while it works they only note that a part can go on. A wake-up of the runtime by
//! its own thread would cost a system call, and another round.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures::task::AtomicWaker;

/// Has the waker of the thread while it waits for an event.
#[derive(Debug, Default)]
pub(crate) struct ThreadWaker(Arc<AtomicWaker>);

/// The waker of one part.
#[derive(Debug)]
pub(crate) struct PartWaker {
    can_go_on: AtomicBool,
    thread: Arc<AtomicWaker>,
}

impl ThreadWaker {
    pub(crate) fn part(&self) -> Arc<PartWaker> {
        Arc::new(PartWaker { can_go_on: AtomicBool::new(false), thread: Arc::clone(&self.0) })
    }

    /// Waits until one of the parts can go on, or `poll` is ready, or has woken the task.
    pub(crate) async fn event(
        &self,
        parts: [&PartWaker; 2],
        mut poll: impl FnMut(&mut Context<'_>) -> Poll<()>,
    ) {
        let mut is_first = true;
        poll_fn(|context| {
            // The waker is registered before the parts are read, so that no wake-up is lost.
            self.0.register(context.waker());
            let is_over = !std::mem::take(&mut is_first)
                || parts.iter().any(|part| part.can_go_on())
                || poll(context).is_ready();
            if is_over { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        drop(self.0.take());
    }
}

impl PartWaker {
    /// Polls the part, twice if it is woken meanwhile: `FuturesUnordered` wakes itself when it has polled all its futures.
    pub(crate) fn poll(self: &Arc<Self>, mut poll: impl FnMut(&mut Context<'_>)) {
        let waker = Waker::from(Arc::clone(self));
        for _ in 0..2 {
            self.can_go_on.store(false, Ordering::SeqCst);
            poll(&mut Context::from_waker(&waker));
            if !self.can_go_on() {
                return;
            }
        }
    }

    /// Returns whether the part was woken since it was polled.
    pub(crate) fn can_go_on(&self) -> bool {
        self.can_go_on.load(Ordering::SeqCst)
    }
}

impl Wake for PartWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.can_go_on.store(true, Ordering::SeqCst);
        self.thread.wake();
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::sync::atomic::AtomicUsize;

    use futures::StreamExt;
    use futures::stream::FuturesUnordered;

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn part_wakes_the_thread_only_while_it_waits() {
        let (thread, count) = (ThreadWaker::default(), Arc::new(Count::default()));
        let (one, other) = (thread.part(), thread.part());
        let (runtime, mut waker) = (Waker::from(Arc::clone(&count)), None);
        let mut context = Context::from_waker(&runtime);
        one.poll(|context| waker = Some(context.waker().clone()));
        let waker = waker.unwrap();
        waker.wake_by_ref();
        assert!(one.can_go_on() && !other.can_go_on() && count.0.load(Ordering::SeqCst) == 0);
        let wait = || Box::pin(thread.event([&one, &other], |_| Poll::Pending));
        assert!(wait().as_mut().poll(&mut context).is_ready(), "a part can go on already");
        one.poll(|_| {});
        let mut waiting = wait();
        assert!(waiting.as_mut().poll(&mut context).is_pending());
        waker.wake_by_ref();
        assert_eq!(count.0.load(Ordering::SeqCst), 1);
        assert!(waiting.as_mut().poll(&mut context).is_ready());
        waker.wake();
        assert_eq!(count.0.load(Ordering::SeqCst), 1, "the thread works again");
        let mut futures: FuturesUnordered<_> = [pending::<()>()].into_iter().collect();
        one.poll(|context| assert!(futures.poll_next_unpin(context).is_pending()));
        assert!(!one.can_go_on(), "no future can go on");
    }
}
