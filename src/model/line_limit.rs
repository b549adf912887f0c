//! A rate limit for log lines about one subject.

use std::time::{Duration, Instant};

/// The time span that the limit applies to.
const WINDOW: Duration = Duration::from_secs(60);

/// Allows `most` lines per minute, and counts the omitted lines.
#[derive(Debug)]
pub(crate) struct LineLimit {
    most: usize,
    since: Option<Instant>,
    logged: usize,
    omitted: usize,
}

impl Default for LineLimit {
    /// Returns a limit of one line per minute.
    fn default() -> Self {
        Self::new(1)
    }
}

impl LineLimit {
    pub(crate) fn new(most: usize) -> Self {
        Self { most, since: None, logged: 0, omitted: 0 }
    }

    /// Returns the number of lines omitted before this one, if a line may be written now; otherwise counts an omitted
    /// line.
    pub(crate) fn take(&mut self, now: Instant) -> Option<usize> {
        if self.since.is_none_or(|since| now.duration_since(since) >= WINDOW) {
            (self.since, self.logged) = (Some(now), 0);
        }
        if self.logged >= self.most {
            self.omitted += 1;
            return None;
        }
        self.logged += 1;
        Some(std::mem::take(&mut self.omitted))
    }

    /// Counts lines that are omitted for another reason, or that weren't reported after [`Self::take`].
    pub(crate) fn leave_out(&mut self, lines: usize) {
        self.omitted += lines;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_over_the_limit_are_counted_until_the_next_minute() {
        let (mut limit, now) = (LineLimit::new(3), Instant::now());
        let logged: Vec<_> = (0..10).map(|_| limit.take(now)).collect();
        assert_eq!(logged[..4], [Some(0), Some(0), Some(0), None]);
        assert_eq!(limit.take(now + WINDOW / 2), None);
        assert_eq!(limit.take(now + WINDOW), Some(8));
        assert_eq!(limit.take(now + WINDOW), Some(0));
        let mut one = LineLimit::default();
        assert_eq!([(); 5].map(|()| one.take(now)), [Some(0), None, None, None, None]);
        assert_eq!(one.take(now + WINDOW), Some(4));
    }
}
