//! Decides the next step of a list/watch loop, without I/O.

use std::time::Duration;

use tokio::time::Instant;

/// Maximum time without an event, a bookmark or a list before everything is listed again.
const MAX_SILENCE: Duration = Duration::from_secs(150);
/// Maximum factor by which [`MAX_SILENCE`] grows after lists without changes: the API server sends bookmarks only if
/// the resourceVersion has advanced, so a quiet cluster looks like a dead watch.
const MAX_SILENCE_FACTOR: u32 = 4;
/// A watch that ends sooner counts as refused, whatever its HTTP status.
const SHORT_WATCH: Duration = Duration::from_secs(1);
/// A watch that has lasted this long counts as healthy, and resets the failure counts.
const HEALTHY_WATCH: Duration = Duration::from_secs(30);

/// The longest step of the backoff while nothing listens at the API server's address: 2 s. The API server may be back
/// at any time, and refused connections don't burden it.
const UNREACHABLE_STEP: u32 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WatchInput<'a> {
    Listed {
        version: &'a str,
        objects: u64,
        /// The newest resourceVersion of an object in the list, if all are numbers.
        newest: Option<u64>,
    },
    /// A list has failed, with this HTTP code or 0.
    ListFailed(u16),
    /// The connection for a list was refused.
    ListUnreachable,
    /// The API server has started to answer a watch.
    WatchBegan,
    Event {
        version: &'a str,
        change: ObjectChange,
    },
    Bookmark(&'a str),
    /// A watch event is malformed, or lacks the namespace, the name or the resourceVersion of its object.
    Unidentified,
    /// The watch was refused, or sent an error, with this HTTP code or 0.
    WatchFailed(u16),
    /// The connection for a watch was refused.
    WatchUnreachable,
    WatchEnded,
    Silence,
    /// The API server's newest resourceVersion.
    Newest(&'a str),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectChange {
    Added,
    Modified,
    Deleted,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WatchStep {
    Continue,
    /// Start a watch, after this step of the backoff; 0 means at once, 1 the first pause.
    Watch(u32),
    /// Request the newest resourceVersion, after this step of the backoff; 0 means at once, 1 the first pause.
    AskNewest(u32),
    /// List everything, after this step of the backoff; 0 means at once, 1 the first pause.
    List(u32),
}

#[derive(Debug)]
pub(super) struct WatchProgress {
    /// The resourceVersion from which the next watch continues: that of the last list, event or bookmark.
    version: Option<String>,
    objects: u64,
    /// The time of the last event, bookmark or list.
    last_activity: Instant,
    /// The maximum time between `last_activity` and the next list.
    max_silence: Duration,
    /// The start of the present watch.
    began: Option<Instant>,
    /// The number of consecutive watches that ended within [`SHORT_WATCH`], with or without events.
    short: u32,
    failures: u32,
    /// The number of lists since the last healthy watch that were caused by a 410, an older resourceVersion or an
    /// unidentified event.
    restarts: u32,
    /// Whether a watch, or a request for the newest resourceVersion, has failed since the last sign of life: the API
    /// server may have been down during a restore of etcd, and then a watch from a future resourceVersion stays silent.
    may_be_restored: bool,
    /// The number of connections that were refused since the last sign of life.
    refusals: u32,
    /// Whether a connection was refused since the last sign of life, or since `restarts` was last counted. A restarted
    /// API server answers the resourceVersions from before its restart with 410, which is no reason for a longer
    /// pause: `restarts` counts from zero again.
    was_unreachable: bool,
}

impl WatchProgress {
    /// Returns the state of a loop that begins with a list.
    pub(super) fn new(now: Instant) -> Self {
        Self {
            version: None,
            objects: 0,
            last_activity: now,
            max_silence: MAX_SILENCE,
            began: None,
            short: 0,
            failures: 0,
            restarts: 0,
            may_be_restored: false,
            refusals: 0,
            was_unreachable: false,
        }
    }

    /// Returns the resourceVersion from which a watch starts; `None` before the first list.
    pub(super) fn version(&self) -> Option<&str> {
        self.version.as_deref()
    }

    /// Returns the time at which a silent watch is replaced by a list.
    pub(super) fn deadline(&self) -> Instant {
        self.last_activity + self.max_silence
    }

    /// Returns whether a resourceVersion is older than the last one, as after a restore of etcd to an earlier revision.
    /// resourceVersions are numbers since Kubernetes 1.35 (KEP-5504); other values can't be compared.
    pub(super) fn rewinds(&self, version: &str) -> bool {
        number(version).zip(self.version().and_then(number)).is_some_and(|(new, known)| new < known)
    }

    /// Processes an input, and returns the next step.
    pub(super) fn take(&mut self, input: WatchInput<'_>, now: Instant) -> WatchStep {
        match input {
            WatchInput::Listed { version, objects, newest } => {
                self.record_list(version, objects, newest, now);
                WatchStep::Watch(0)
            }
            WatchInput::ListFailed(410) => self.list_again(),
            WatchInput::ListFailed(_) => WatchStep::List(self.failed()),
            WatchInput::ListUnreachable => WatchStep::List(self.unreachable()),
            WatchInput::WatchBegan => {
                self.began = Some(now);
                WatchStep::Continue
            }
            WatchInput::Event { version, .. } | WatchInput::Bookmark(version) if self.rewinds(version) => {
                self.end_watch(now);
                self.list_again()
            }
            WatchInput::Event { version, change } => {
                self.objects = match change {
                    ObjectChange::Added => self.objects + 1,
                    ObjectChange::Modified => self.objects,
                    ObjectChange::Deleted => self.objects.saturating_sub(1),
                };
                self.max_silence = MAX_SILENCE;
                self.record_activity(version, now);
                WatchStep::Continue
            }
            WatchInput::Bookmark(version) => {
                self.max_silence = MAX_SILENCE;
                self.record_activity(version, now);
                WatchStep::Continue
            }
            WatchInput::Unidentified | WatchInput::WatchFailed(410) => {
                self.end_watch(now);
                self.list_again()
            }
            WatchInput::Newest(version) if self.rewinds(version) => self.list_again(),
            WatchInput::Newest(_) => {
                self.may_be_restored = false;
                WatchStep::Watch(0)
            }
            WatchInput::WatchFailed(_) | WatchInput::WatchUnreachable => {
                let short = self.end_watch(now);
                // The API server may come back with an earlier state, so silence is suspicious again.
                self.max_silence = MAX_SILENCE;
                self.may_be_restored = true;
                let pause = match input {
                    WatchInput::WatchUnreachable => self.unreachable(),
                    _ => self.failed().max(short),
                };
                self.watch(pause, now)
            }
            WatchInput::WatchEnded => {
                let pause = self.end_watch(now);
                self.watch(pause, now)
            }
            WatchInput::Silence => WatchStep::List(0),
        }
    }

    fn record_list(&mut self, version: &str, objects: u64, newest: Option<u64>, now: Instant) {
        self.max_silence = if self.differs(version, objects, newest) {
            MAX_SILENCE
        } else {
            (self.max_silence * 2).min(MAX_SILENCE * MAX_SILENCE_FACTOR)
        };
        self.objects = objects;
        self.record_activity(version, now);
    }

    /// Returns whether a list contains changes that the watch has missed. Certainty would need a comparison of all
    /// objects; version and count are a sufficient hint.
    fn differs(&self, version: &str, objects: u64, newest: Option<u64>) -> bool {
        let Some(known) = self.version().and_then(number) else { return true };
        let is_older = number(version).is_none_or(|version| version < known);
        is_older || objects != self.objects || newest.is_none_or(|newest| newest > known)
    }

    fn record_activity(&mut self, version: &str, now: Instant) {
        self.version = Some(version.to_owned());
        self.last_activity = now;
        self.failures = 0;
        self.may_be_restored = false;
        (self.refusals, self.was_unreachable) = (0, false);
    }

    fn watch(&self, pause: u32, now: Instant) -> WatchStep {
        if self.version.is_none() || now >= self.deadline() {
            WatchStep::List(pause)
        } else if self.may_be_restored {
            WatchStep::AskNewest(pause)
        } else {
            WatchStep::Watch(pause)
        }
    }

    fn list_again(&mut self) -> WatchStep {
        if std::mem::take(&mut self.was_unreachable) {
            self.restarts = 0;
        }
        WatchStep::List(self.count_restart())
    }

    fn failed(&mut self) -> u32 {
        self.failures = self.failures.saturating_add(1);
        self.failures
    }

    fn unreachable(&mut self) -> u32 {
        self.was_unreachable = true;
        self.refusals = self.refusals.saturating_add(1);
        // A longer pause after other failures isn't shortened.
        self.failures.max(self.failures.saturating_add(self.refusals).min(UNREACHABLE_STEP))
    }

    fn count_restart(&mut self) -> u32 {
        self.restarts = self.restarts.saturating_add(1);
        self.restarts
    }

    /// Records the end of a watch; a healthy watch resets the failure counts. Returns the number of consecutive short
    /// watches.
    fn end_watch(&mut self, now: Instant) -> u32 {
        let Some(began) = self.began.take() else { return self.short };
        let lasted = now.duration_since(began);
        self.short = if lasted < SHORT_WATCH { self.short.saturating_add(1) } else { 0 };
        if lasted >= HEALTHY_WATCH {
            (self.failures, self.restarts) = (0, 0);
        }
        self.short
    }
}

/// Returns a resourceVersion as a number, which increases with each change.
pub(super) fn number(version: &str) -> Option<u64> {
    version.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(version: &str, objects: u64, newest: u64) -> WatchInput<'_> {
        WatchInput::Listed { version, objects, newest: Some(newest) }
    }

    fn modified(version: &str) -> WatchInput<'_> {
        WatchInput::Event { version, change: ObjectChange::Modified }
    }

    /// Processes each input the given number of milliseconds after the previous one, and compares the steps.
    fn run(steps: &[(u64, WatchInput<'_>, WatchStep)]) -> (WatchProgress, Instant) {
        let mut now = Instant::now();
        let mut progress = WatchProgress::new(now);
        for (number, (pause, input, expected)) in steps.iter().enumerate() {
            now += Duration::from_millis(*pause);
            assert_eq!(progress.take(*input, now), *expected, "step {number}: {input:?}");
        }
        (progress, now)
    }

    const LISTED: (u64, WatchInput<'_>, WatchStep) =
        (0, WatchInput::Listed { version: "100", objects: 2, newest: Some(90) }, WatchStep::Watch(0));
    const BEGAN: (u64, WatchInput<'_>, WatchStep) = (0, WatchInput::WatchBegan, WatchStep::Continue);

    #[test]
    fn watch_continues_from_the_last_version() {
        let (progress, _) = run(&[
            LISTED,
            BEGAN,
            (10, modified("101"), WatchStep::Continue),
            (10, WatchInput::Bookmark("107"), WatchStep::Continue),
            (50_000, WatchInput::WatchEnded, WatchStep::Watch(0)),
        ]);
        assert_eq!(progress.version(), Some("107"));
    }

    #[test]
    fn short_watches_back_off() {
        let short = |pause| (10, WatchInput::WatchEnded, WatchStep::Watch(pause));
        run(&[LISTED, BEGAN, short(1), BEGAN, short(2), BEGAN, short(3)]);
        // Events, bookmarks and the kind of the end make no difference.
        let event = (10, modified("101"), WatchStep::Continue);
        let bookmark = (10, WatchInput::Bookmark("101"), WatchStep::Continue);
        let broken = |pause| (10, WatchInput::WatchFailed(0), WatchStep::AskNewest(pause));
        let newest = (0, WatchInput::Newest("101"), WatchStep::Watch(0));
        run(&[LISTED, BEGAN, event, short(1), BEGAN, bookmark, short(2), BEGAN, event, broken(3), newest]);
        let mut steps = vec![LISTED];
        (1..=9).for_each(|pause| steps.extend([BEGAN, event, broken(pause), newest]));
        // A proxy that ends each watch after a second or more causes no delay.
        steps.extend([
            BEGAN,
            event,
            (1000, WatchInput::WatchEnded, WatchStep::Watch(0)),
            BEGAN,
            event,
            short(1),
        ]);
        run(&steps);
        let long = (30_000, WatchInput::WatchEnded, WatchStep::Watch(0));
        run(&[LISTED, BEGAN, short(1), BEGAN, long, BEGAN, short(1)]);
    }

    #[test]
    fn code_410_causes_a_list_with_backoff() {
        let gone = |pause| (10, WatchInput::WatchFailed(410), WatchStep::List(pause));
        run(&[
            LISTED,
            gone(1),
            LISTED,
            BEGAN,
            gone(2),
            (10, WatchInput::ListFailed(410), WatchStep::List(3)),
            LISTED,
            BEGAN,
            (30_000, WatchInput::WatchFailed(410), WatchStep::List(1)),
        ]);
    }

    #[test]
    fn refused_connections_back_off_for_two_seconds_at_most() {
        let refused = |pause| (10, WatchInput::WatchUnreachable, WatchStep::AskNewest(pause));
        let failed = |pause| (10, WatchInput::WatchFailed(503), WatchStep::AskNewest(pause));
        run(&[
            LISTED,
            refused(1),
            refused(2),
            refused(3),
            refused(3),
            refused(3),
            failed(1),
            refused(3),
            failed(2),
            failed(3),
            failed(4),
            refused(4),
        ]);
        let refused = |pause| (10, WatchInput::ListUnreachable, WatchStep::List(pause));
        run(&[refused(1), refused(2), refused(3), refused(3)]);
    }

    #[test]
    fn each_restart_of_the_api_server_costs_one_short_pause() {
        let gone = |pause| (10, WatchInput::WatchFailed(410), WatchStep::List(pause));
        let mut steps = vec![LISTED, BEGAN, gone(1), LISTED, BEGAN, gone(2)];
        for _ in 0..20 {
            steps.extend([
                LISTED,
                BEGAN,
                (5000, WatchInput::WatchFailed(0), WatchStep::AskNewest(1)),
                (10, WatchInput::WatchUnreachable, WatchStep::AskNewest(2)),
                (10, WatchInput::Newest("100"), WatchStep::Watch(0)),
                BEGAN,
                gone(1),
            ]);
        }
        run(&steps);
    }

    #[test]
    fn failures_back_off_until_a_sign_of_life() {
        let failed = |pause| (10, WatchInput::WatchFailed(0), WatchStep::AskNewest(pause));
        run(&[
            (0, WatchInput::ListFailed(403), WatchStep::List(1)),
            (0, WatchInput::ListFailed(0), WatchStep::List(2)),
            LISTED,
            failed(1),
            failed(2),
            BEGAN,
            failed(3),
            BEGAN,
            (0, WatchInput::Bookmark("100"), WatchStep::Continue),
            (1000, WatchInput::WatchFailed(0), WatchStep::AskNewest(1)),
        ]);
        let (progress, now) =
            run(&[LISTED, failed(1), (149_990, WatchInput::WatchFailed(503), WatchStep::List(2))]);
        assert!(progress.deadline() <= now, "after such a long silence only a list shows the current state");
    }

    #[test]
    fn newest_version_is_requested_after_a_failure() {
        let failed = (10, WatchInput::WatchFailed(0), WatchStep::AskNewest(1));
        run(&[
            LISTED,
            failed,
            (10, WatchInput::Newest("100"), WatchStep::Watch(0)),
            BEGAN,
            (10, WatchInput::WatchEnded, WatchStep::Watch(1)),
        ]);
        run(&[LISTED, BEGAN, failed, (10, WatchInput::Newest("99"), WatchStep::List(1))]);
        // An event of the watch proves that etcd wasn't restored: the newest version isn't requested.
        run(&[
            LISTED,
            failed,
            BEGAN,
            (0, modified("101"), WatchStep::Continue),
            (10, WatchInput::WatchEnded, WatchStep::Watch(1)),
        ]);
    }

    #[test]
    fn decreasing_version_causes_a_list() {
        run(&[LISTED, BEGAN, (10, modified("99"), WatchStep::List(1))]);
        run(&[LISTED, BEGAN, (10, WatchInput::Bookmark("99"), WatchStep::List(1))]);
        run(&[
            LISTED,
            BEGAN,
            (10, WatchInput::Bookmark("100"), WatchStep::Continue),
            (0, modified("9"), WatchStep::List(1)),
        ]);
        // resourceVersions that aren't numbers can't be compared.
        let odd = (0, WatchInput::Listed { version: "b", objects: 0, newest: None }, WatchStep::Watch(0));
        run(&[odd, BEGAN, (10, modified("a"), WatchStep::Continue)]);
        let (progress, _) = run(&[LISTED]);
        assert!(progress.rewinds("99") && !progress.rewinds("100") && !progress.rewinds("a"));
        let (progress, _) = run(&[LISTED, (0, listed("50", 2, 50), WatchStep::Watch(0))]);
        assert_eq!(
            progress.version(),
            Some("50"),
            "a list replaces the known version, even by an older version"
        );
    }

    #[test]
    fn unidentified_event_causes_a_list_with_backoff() {
        run(&[
            LISTED,
            BEGAN,
            (10, WatchInput::Unidentified, WatchStep::List(1)),
            LISTED,
            BEGAN,
            (10, WatchInput::Unidentified, WatchStep::List(2)),
        ]);
    }

    #[test]
    fn unchanged_lists_double_the_allowed_silence() {
        let silent = |seconds| {
            let (mut progress, now) = run(&[LISTED]);
            let mut steps = vec![];
            let mut now = now;
            for _ in 0..seconds {
                now = progress.deadline();
                assert_eq!(progress.take(WatchInput::Silence, now), WatchStep::List(0));
                steps.push(progress.max_silence.as_secs());
                progress.take(listed("200", 2, 90), now);
            }
            (progress, now, steps)
        };
        let (mut progress, now, steps) = silent(5);
        assert_eq!(steps, [150, 300, 600, 600, 600]);
        progress.take(WatchInput::Bookmark("201"), now);
        assert_eq!(progress.deadline(), now + MAX_SILENCE, "a bookmark resets the allowed silence");
        for (case, input) in [
            ("an older version", listed("99", 2, 90)),
            ("another object", listed("300", 3, 90)),
            ("one less", listed("300", 1, 90)),
            ("a newer object", listed("300", 2, 250)),
            ("versions that are no numbers", WatchInput::Listed { version: "x", objects: 2, newest: None }),
        ] {
            let (mut progress, now, _) = silent(2);
            progress.take(input, now);
            assert_eq!(progress.deadline(), now + MAX_SILENCE, "{case}");
        }
    }

    #[test]
    fn list_that_matches_the_events_counts_as_unchanged() {
        let (mut progress, now) = run(&[
            LISTED,
            BEGAN,
            (0, WatchInput::Event { version: "110", change: ObjectChange::Added }, WatchStep::Continue),
            (0, WatchInput::Event { version: "120", change: ObjectChange::Added }, WatchStep::Continue),
            (0, WatchInput::Event { version: "130", change: ObjectChange::Deleted }, WatchStep::Continue),
        ]);
        progress.take(listed("140", 3, 120), now);
        assert_eq!(progress.max_silence, 2 * MAX_SILENCE);
    }
}
