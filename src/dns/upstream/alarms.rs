//! Reusable timers: postponing a timer that is already set costs almost nothing, and nearly all queries are answered
//! before their timer fires.

use std::pin::Pin;
use std::task::{Context, Poll};

use parking_lot::Mutex;
use tokio::time::{Instant, Sleep, sleep_until};

/// The maximum number of idle timers, equal to the number of sockets. Until it fires, a timer holds the memory of the
/// query that it was set for.
const IDLE: usize = 1000;

/// Idle timers. Each fires once more, within the timeout of queries, and can be reused.
#[derive(Debug, Default)]
pub(crate) struct TimerPool(Mutex<Vec<Pin<Box<Sleep>>>>);

pub(crate) struct PooledTimer<'a> {
    /// `None` only after the drop.
    timer: Option<Pin<Box<Sleep>>>,
    timers: &'a TimerPool,
}

impl TimerPool {
    pub(crate) fn at(&self, deadline: Instant) -> PooledTimer<'_> {
        let idle = self.0.lock().pop();
        let timer = match idle {
            Some(mut timer) => {
                timer.as_mut().reset(deadline);
                timer
            }
            None => Box::pin(sleep_until(deadline)),
        };
        PooledTimer { timer: Some(timer), timers: self }
    }
}

impl Future for PooledTimer<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.timer.as_mut().map_or(Poll::Ready(()), |timer| timer.as_mut().poll(context))
    }
}

impl Drop for PooledTimer<'_> {
    fn drop(&mut self) {
        let mut idle = self.timers.0.lock();
        if idle.len() < IDLE {
            idle.extend(self.timer.take());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn reused_timer_fires_at_its_new_deadline() {
        let timers = TimerPool::default();
        let number = || timers.0.lock().len();
        let mut begun = Instant::now();
        for (until, rings) in [(3, false), (5, true), (2, true), (9, false), (4, true), (1, true)] {
            let after = Duration::from_secs(until);
            let alarm = timers.at(begun + after);
            if rings {
                alarm.await;
                assert_eq!(begun.elapsed(), after);
                begun = Instant::now();
            } else {
                drop(alarm);
            }
            assert_eq!(number(), 1);
        }
        let many: Vec<_> = (0..=IDLE).map(|_| timers.at(begun)).collect();
        drop(many);
        assert_eq!(number(), IDLE);
    }
}
