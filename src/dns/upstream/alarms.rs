//! Timers that are used again and again: to put off one that is set already costs next to nothing, and nearly all
//! questions are answered before theirs rings.

use std::pin::Pin;
use std::task::{Context, Poll};

use parking_lot::Mutex;
use tokio::time::{Instant, Sleep, sleep_until};

/// How many are kept: as many as sockets. Until it rings, each holds the memory of the question that it was set for.
const IDLE: usize = 1000;

/// Timers that no task waits for. Each fires once more, within the time that queries wait, and is then reused.
#[derive(Debug, Default)]
pub(crate) struct Alarms(Mutex<Vec<Pin<Box<Sleep>>>>);

/// A timer that a task waits for.
pub(crate) struct Alarm<'a> {
    /// It is there until the end.
    timer: Option<Pin<Box<Sleep>>>,
    alarms: &'a Alarms,
}

impl Alarms {
    /// Returns one that rings then.
    pub(crate) fn at(&self, deadline: Instant) -> Alarm<'_> {
        let idle = self.0.lock().pop();
        let timer = match idle {
            Some(mut timer) => {
                timer.as_mut().reset(deadline);
                timer
            }
            None => Box::pin(sleep_until(deadline)),
        };
        Alarm { timer: Some(timer), alarms: self }
    }
}

impl Future for Alarm<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.timer.as_mut().map_or(Poll::Ready(()), |timer| timer.as_mut().poll(context))
    }
}

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        let mut idle = self.alarms.0.lock();
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
    async fn alarm_that_is_set_again_rings_at_the_new_time() {
        let alarms = Alarms::default();
        let number = || alarms.0.lock().len();
        let mut begun = Instant::now();
        for (until, rings) in [(3, false), (5, true), (2, true), (9, false), (4, true), (1, true)] {
            let after = Duration::from_secs(until);
            let alarm = alarms.at(begun + after);
            if rings {
                alarm.await;
                assert_eq!(begun.elapsed(), after);
                begun = Instant::now();
            } else {
                drop(alarm);
            }
            assert_eq!(number(), 1);
        }
        let many: Vec<_> = (0..=IDLE).map(|_| alarms.at(begun)).collect();
        drop(many);
        assert_eq!(number(), IDLE);
    }
}
