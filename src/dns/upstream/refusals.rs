//! Logs refused look-ups, at most one line per minute; and the limit itself, for other repeated errors.

use std::net::IpAddr;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::warn;

use super::error::ForwardError;
use super::lookup_origin::LookupOrigin;

const LOG_INTERVAL: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(crate) struct RefusedLookups(LineLimit);

/// Allows one log line per minute.
#[derive(Debug, Default)]
pub(crate) struct LineLimit(Mutex<LineState>);

#[derive(Debug, Default)]
struct LineState {
    /// The number of events since the last line.
    number: u64,
    logged_at: Option<Instant>,
}

impl RefusedLookups {
    pub(crate) fn note(&self, origin: LookupOrigin, client: IpAddr, why: &ForwardError) {
        if let Some(number) = self.0.due() {
            let what = if origin == LookupOrigin::Target { "look-ups of targets" } else { "look-ups" };
            warn!(
                "plugin/forward: {what} refused since the last such line: {number}; the newest, of {client}: {why}"
            );
        }
    }
}

impl LineLimit {
    /// Counts an event. Returns the number since the last line, if a line is due.
    pub(crate) fn due(&self) -> Option<u64> {
        let mut state = self.0.lock();
        state.number += 1;
        if state.logged_at.is_some_and(|at| at.elapsed() < LOG_INTERVAL) {
            return None;
        }
        state.logged_at = Some(Instant::now());
        Some(std::mem::take(&mut state.number))
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_line_a_minute_counts_all_refusals() {
        let refusals = LineLimit::default();
        let lines: Vec<_> = (0..5).map(|_| refusals.due()).collect();
        assert_eq!(lines, [Some(1), None, None, None, None]);
        advance(LOG_INTERVAL).await;
        assert_eq!(refusals.due(), Some(5));
    }
}
