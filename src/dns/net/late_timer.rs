//! Timers of look-ups, which nearly all end long before: a timer of a UDP thread waits in a queue first, and is registered
//! with the runtime, which costs more, only when it has waited there for a while.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, Sleep, sleep, sleep_until};

/// A timer leaves the queue with the second tick.
const TICK: Duration = Duration::from_millis(100);
/// An earlier timer doesn't wait in the queue, which may take two ticks.
const MIN_DELAY: Duration = Duration::from_millis(300);

thread_local! {
    /// `None` in threads of the shared runtime.
    static QUEUE: RefCell<Option<Arc<Mutex<Queue>>>> = const { RefCell::new(None) };
}

#[derive(Debug, Default)]
struct Queue {
    /// The wakers of the timers, the oldest first; `None` if the timer was dropped.
    wakers: VecDeque<Option<Waker>>,
    /// The number of the first one: timers are numbered in the order in which they were added.
    first: u64,
    /// The number of the first timer since the last tick.
    first_since_tick: u64,
}

/// A future that ends at a time.
#[derive(Debug)]
pub(crate) struct LateTimer {
    deadline: Instant,
    state: State,
}

#[derive(Debug)]
enum State {
    New { may_queue: bool },
    Queued(Arc<Mutex<Queue>>, u64),
    Registered(Pin<Box<Sleep>>),
}

/// Has the timers of its thread wait in a queue until it is dropped. It is a timer that is always registered, so that no
/// other one becomes the earliest: for a new earliest timer the runtime wakes itself, which costs two system calls.
#[derive(Debug)]
pub(crate) struct Ticker(Pin<Box<Sleep>>);

impl Ticker {
    pub(crate) fn new() -> Self {
        QUEUE.set(Some(Arc::default()));
        Self(Box::pin(sleep(TICK)))
    }

    /// Wakes the tasks whose timers leave the queue, if it is time. Has to be called before the thread waits.
    pub(crate) async fn tick(&mut self) {
        poll_fn(|context| {
            if self.0.as_mut().poll(context).is_ready() {
                wake_old();
                self.0.as_mut().reset(Instant::now() + TICK);
                let _ = self.0.as_mut().poll(context);
            }
            Poll::Ready(())
        })
        .await;
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        wake_old();
        wake_old();
        QUEUE.set(None);
    }
}

fn wake_old() {
    let queue = QUEUE.with_borrow(Clone::clone);
    let old = queue.map(|queue| queue.lock().take_old());
    old.into_iter().flatten().for_each(Waker::wake);
}

impl Queue {
    fn add(&mut self, waker: &Waker) -> u64 {
        self.wakers.push_back(Some(waker.clone()));
        self.next() - 1
    }

    fn next(&self) -> u64 {
        self.first + self.wakers.len() as u64
    }

    fn find(&mut self, number: u64) -> Option<&mut Option<Waker>> {
        self.wakers.get_mut(usize::try_from(number.checked_sub(self.first)?).ok()?)
    }

    fn remove(&mut self, number: u64) {
        self.find(number).into_iter().for_each(|waker| *waker = None);
        while self.wakers.pop_front_if(|waker| waker.is_none()).is_some() {
            self.first += 1;
        }
    }

    /// Removes the timers that were there at the last call.
    fn take_old(&mut self) -> Vec<Waker> {
        let number = usize::try_from(self.first_since_tick.saturating_sub(self.first)).unwrap_or_default();
        let old = self.wakers.drain(..number).flatten().collect();
        self.first = self.first.max(self.first_since_tick);
        self.first_since_tick = self.next();
        old
    }
}

impl LateTimer {
    /// Returns a timer; `now` is at most a few milliseconds ago.
    pub(crate) fn new(now: Instant, deadline: Instant) -> Self {
        Self { deadline, state: State::New { may_queue: deadline >= now + MIN_DELAY } }
    }

    pub(crate) fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Waits for a future; `None` if the time comes first.
    pub(crate) async fn limit<F: Future>(&mut self, future: F) -> Option<F::Output> {
        let mut future = pin!(future);
        poll_fn(|context| match future.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending => Pin::new(&mut *self).poll(context).map(|()| None),
        })
        .await
    }
}

impl Future for LateTimer {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        loop {
            let deadline = self.deadline;
            match &mut self.state {
                State::New { may_queue } => {
                    let queue = if *may_queue { QUEUE.with_borrow(Clone::clone) } else { None };
                    let Some(queue) = queue else {
                        self.state = State::Registered(Box::pin(sleep_until(deadline)));
                        continue;
                    };
                    let number = queue.lock().add(context.waker());
                    self.state = State::Queued(queue, number);
                    return Poll::Pending;
                }
                State::Queued(queue, number) => {
                    if let Some(Some(waker)) = queue.lock().find(*number) {
                        waker.clone_from(context.waker());
                        return Poll::Pending;
                    }
                    self.state = State::New { may_queue: false };
                }
                State::Registered(timer) => return timer.as_mut().poll(context),
            }
        }
    }
}

impl Drop for LateTimer {
    fn drop(&mut self) {
        if let State::Queued(queue, number) = &self.state {
            queue.lock().remove(*number);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use futures::FutureExt;
    use tokio::task::yield_now;
    use tokio::time::advance;

    use super::*;

    fn queued() -> usize {
        QUEUE.with_borrow(|queue| queue.as_ref().unwrap().lock().wakers.len())
    }

    #[tokio::test(start_paused = true)]
    async fn timer_is_registered_with_the_second_tick() {
        let mut ticker = Ticker::new();
        let now = Instant::now();
        let timer = |millis| LateTimer::new(now, now + Duration::from_millis(millis));
        let [mut soon, mut one, mut other] = [299, 400, 500].map(timer);
        for timer in [&mut soon, &mut one, &mut other] {
            assert_eq!(timer.now_or_never(), None);
        }
        assert_eq!(queued(), 2);
        drop(one);
        assert_eq!(queued(), 1, "timers before the oldest one that waits are gone");
        for left in [1, 0] {
            ticker.tick().await;
            assert_eq!((queued(), (&mut other).now_or_never()), (1, None), "it isn't time");
            advance(TICK).await;
            ticker.tick().await;
            assert_eq!(queued(), left);
        }
        assert_eq!((&mut other).now_or_never(), None);
        advance(Duration::from_millis(299)).await;
        assert_eq!(((&mut soon).now_or_never(), (&mut other).now_or_never()), (Some(()), None));
        advance(Duration::from_millis(1)).await;
        assert_eq!((&mut other).now_or_never(), Some(()));
    }

    #[tokio::test(start_paused = true)]
    async fn end_of_the_queue_wakes_all_its_timers() {
        let ticker = Ticker::new();
        let now = Instant::now();
        let waiting =
            tokio::spawn(async move { LateTimer::new(now, now + TICK * 5).limit(pending::<()>()).await });
        yield_now().await;
        assert_eq!(queued(), 1);
        drop(ticker);
        assert_eq!(waiting.await.unwrap(), None);
        assert_eq!(now.elapsed(), TICK * 5);
    }
}
