//! A limit of lines in the log about one matter.

use std::time::{Duration, Instant};

/// How long a number of lines has to last.
const WINDOW: Duration = Duration::from_secs(60);

/// So many lines a minute; the others are counted.
#[derive(Debug)]
pub(crate) struct LineLimit {
    most: usize,
    since: Option<Instant>,
    said: usize,
    omitted: usize,
}

impl LineLimit {
    /// Returns a limit of `most` lines a minute.
    pub(crate) fn new(most: usize) -> Self {
        Self { most, since: None, said: 0, omitted: 0 }
    }

    /// Returns whether another line may be written now, and then how many were omitted before it.
    pub(crate) fn take(&mut self, now: Instant) -> Option<usize> {
        if self.since.is_none_or(|since| now.duration_since(since) >= WINDOW) {
            (self.since, self.said) = (Some(now), 0);
        }
        if self.said >= self.most {
            self.omitted += 1;
            return None;
        }
        self.said += 1;
        Some(std::mem::take(&mut self.omitted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_over_the_limit_are_counted_until_the_next_minute() {
        let (mut limit, now) = (LineLimit::new(3), Instant::now());
        let said: Vec<_> = (0..10).map(|_| limit.take(now)).collect();
        assert_eq!(said[..4], [Some(0), Some(0), Some(0), None]);
        assert_eq!(limit.take(now + WINDOW / 2), None);
        assert_eq!(limit.take(now + WINDOW), Some(8));
        assert_eq!(limit.take(now + WINDOW), Some(0));
    }
}
