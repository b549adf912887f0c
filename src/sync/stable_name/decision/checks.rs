//! The results of the checks of one StableName's targets: how they count, and when each target is checked next.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::SocketAddr;
use std::time::Duration;

use jiff::Timestamp;

use super::spec::CheckSettings;
use super::status::text_of;
use super::times::later;
use super::upstream_answers::UpstreamAnswers;
use crate::model::link::Target;

/// The time between two checks of a target while a decision waits for the result.
const AWAITED: Duration = Duration::from_secs(2);

/// The time between two checks of a target while it isn't decided whether it has failed.
const UNDECIDED: Duration = Duration::from_secs(5);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedCheck {
    pub target: Target,
    /// The port at which one of the target's addresses must accept a connection; `None` if only DNS is checked.
    pub tcp_port: Option<u16>,
    pub urgency: Urgency,
}

/// How soon a check is made: see [`CheckRecords::next_check`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Urgency {
    Routine,
    /// It isn't decided whether the target has failed.
    Undecided,
    /// A decision waits for the result.
    Awaited,
}

/// What one upstream, or a connection to the target, says about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CheckOutcome {
    Passed,
    /// The target doesn't work: NXDOMAIN, no allowed address, or no connection.
    Failed(String),
    /// The upstream has sent no reply, or none that can be used, such as SERVFAIL, REFUSED or a referral.
    NoAnswer {
        upstream: SocketAddr,
        message: String,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckResult {
    /// When the upstreams had answered or timed out. The connection came after that.
    pub at: Timestamp,
    /// For a hostname one outcome for each upstream, for addresses one pass; one more outcome for a failed connection.
    /// Without the passes if this process had no file or memory for a connection.
    pub outcomes: Vec<CheckOutcome>,
}

/// The check results of each target, since this leader began to check it.
#[derive(Debug, Default)]
pub struct CheckRecords {
    namespace: Box<str>,
    records: Vec<CheckRecord>,
}

#[derive(Debug)]
struct CheckRecord {
    target: Target,
    /// The port that the checks connected to: results for another port, or without one, don't count.
    tcp_port: Option<u16>,
    /// This field and the next three count the results before the newest one, as in [`CheckTally`].
    passes: usize,
    failures: usize,
    decided: Timestamp,
    message: Option<String>,
    newest: Option<CheckResult>,
    /// Whether the verdict about the newest result was settled when it came.
    is_settled: bool,
}

/// The results of a target, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CheckTally<'a> {
    /// The passes since the last failure.
    pub(super) passes: usize,
    /// The failures since the last pass.
    pub(super) failures: usize,
    /// Whether the newest result is a pass.
    newest_passed: bool,
    newest: Option<Timestamp>,
    /// When the newest result came that is a pass or a failure; without one, when the checks began.
    pub(super) decided: Option<Timestamp>,
    /// The message of the newest failure, if no pass came after it.
    pub(super) message: Option<&'a str>,
    /// The upstream that has given the newest check no answer, and how, if that check is neither a pass nor a failure.
    unanswered: Option<(SocketAddr, &'a str)>,
}

// === impl CheckResult ===

impl CheckResult {
    /// Returns `Ok` if the check passed at each upstream that answered, or the message of the first failure; `None` if
    /// no upstream answered. A missing answer is a failure once that upstream has answered another question.
    fn verdict(&self, target: &Target, upstreams: &UpstreamAnswers) -> Option<Result<(), &str>> {
        let mut verdict = None;
        for outcome in &self.outcomes {
            match (outcome, target) {
                (CheckOutcome::Passed, _) => verdict = Some(Ok(())),
                (CheckOutcome::Failed(message), _) => return Some(Err(message)),
                (CheckOutcome::NoAnswer { upstream, message }, Target::Hostname(host))
                    if upstreams.has_answered_other(*upstream, host, self.at) =>
                {
                    return Some(Err(message));
                }
                (CheckOutcome::NoAnswer { .. }, _) => {}
            }
        }
        verdict
    }

    /// Returns the first upstream that has given no answer, and how.
    fn unanswered(&self) -> Option<(SocketAddr, &str)> {
        self.outcomes.iter().find_map(|outcome| match outcome {
            CheckOutcome::NoAnswer { upstream, message } => Some((*upstream, &**message)),
            CheckOutcome::Passed | CheckOutcome::Failed(_) => None,
        })
    }

    /// Returns the label of the metric; `None` while the verdict may change: a missing answer may become a failure.
    #[must_use]
    pub fn settled_label(&self, target: &Target, upstreams: &UpstreamAnswers) -> Option<&'static str> {
        let verdict = self.verdict(target, upstreams);
        let is_missing = |outcome: &CheckOutcome| matches!(outcome, CheckOutcome::NoAnswer { .. });
        let is_settled = verdict.is_some_and(|verdict| verdict.is_err());
        (is_settled || !self.outcomes.iter().any(is_missing)).then(|| label(verdict))
    }
}

fn label(verdict: Option<Result<(), &str>>) -> &'static str {
    match verdict {
        Some(Ok(())) => "passed",
        Some(Err(_)) => "failed",
        None => "unknown",
    }
}

// === impl CheckRecord ===

impl CheckRecord {
    fn new(target: Target, tcp_port: Option<u16>, now: Timestamp) -> Self {
        Self {
            target,
            tcp_port,
            passes: 0,
            failures: 0,
            decided: now,
            message: None,
            newest: None,
            is_settled: true,
        }
    }

    fn is_of(&self, target: &Target, tcp_port: Option<u16>) -> bool {
        self.tcp_port == tcp_port && self.target == *target
    }

    /// Records a result. From now on it is settled whether a missing answer in the former result is a failure:
    /// otherwise all results of an outage of the upstreams would become failures when the outage ends. Returns the label
    /// of the metric for the former result, unless it was settled when it came.
    fn record(&mut self, result: CheckResult, upstreams: &UpstreamAnswers) -> Option<&'static str> {
        let former = self.newest.as_ref().filter(|_| !self.is_settled);
        let settled = former.map(|former| label(former.verdict(&self.target, upstreams)));
        self.is_settled = result.settled_label(&self.target, upstreams).is_some();
        let CheckTally { passes, failures, decided, message, .. } = self.tally(upstreams);
        let message = message.map(str::to_owned);
        (self.passes, self.failures, self.message) = (passes, failures, message);
        // The clock may have been set back.
        self.decided = decided.unwrap_or(self.decided).min(result.at);
        self.newest = Some(result);
        settled
    }

    /// Returns the counted results, the newest one included.
    fn tally(&self, upstreams: &UpstreamAnswers) -> CheckTally<'_> {
        let newest = self.newest.as_ref();
        let mut tally = CheckTally {
            passes: self.passes,
            failures: self.failures,
            newest_passed: false,
            newest: newest.map(|result| result.at),
            decided: Some(self.decided),
            message: self.message.as_deref(),
            unanswered: None,
        };
        // A result that is neither a pass nor a failure doesn't end a row.
        let verdict = newest.and_then(|result| result.verdict(&self.target, upstreams));
        tally.unanswered = newest.filter(|_| verdict.is_none()).and_then(CheckResult::unanswered);
        if let Some(result) = newest
            && let Some(verdict) = verdict
        {
            tally.newest_passed = verdict.is_ok();
            tally.decided = Some(result.at);
            tally.message = verdict.err();
            (tally.passes, tally.failures) =
                if verdict.is_ok() { (tally.passes + 1, 0) } else { (0, tally.failures + 1) };
        }
        tally
    }
}

// === impl CheckRecords ===

impl CheckRecords {
    /// Returns the records of a StableName in `namespace`, before the first check.
    pub fn new(namespace: &str) -> Self {
        Self { namespace: namespace.into(), records: Vec::new() }
    }

    /// Keeps only the records of these checks, and begins a record at `now` for each check that has none.
    pub fn retain(&mut self, checks: &[PlannedCheck], now: Timestamp) {
        let mut former = std::mem::take(&mut self.records);
        for check in checks {
            let known = former.iter().position(|record| record.is_of(&check.target, check.tcp_port));
            let new = || CheckRecord::new(check.target.clone(), check.tcp_port, now);
            self.records.push(known.map_or_else(new, |index| former.swap_remove(index)));
        }
    }

    /// Records the result of a check; ignored if the target isn't checked any more at this port. If an answer is
    /// missing, first ask that upstream about another name, and record its answer in `upstreams`: otherwise a pass at
    /// another upstream makes the check a pass. Returns the label of the metric for the former result, if it is settled
    /// only now ([`CheckResult::settled_label`]).
    pub fn record(
        &mut self,
        target: &Target,
        tcp_port: Option<u16>,
        result: CheckResult,
        upstreams: &UpstreamAnswers,
    ) -> Option<&'static str> {
        let record = self.records.iter_mut().find(|record| record.is_of(target, tcp_port));
        record.and_then(|record| record.record(result, upstreams))
    }

    /// Returns the counted results of a target; an empty tally if the target isn't checked at this port.
    pub(super) fn tally(
        &self,
        target: &Target,
        tcp_port: Option<u16>,
        upstreams: &UpstreamAnswers,
    ) -> CheckTally<'_> {
        let record = self.records.iter().find(|record| record.is_of(target, tcp_port));
        record.map(|record| record.tally(upstreams)).unwrap_or_default()
    }

    /// Returns when a planned check is made next.
    #[must_use]
    pub fn next_check(
        &self,
        check: &PlannedCheck,
        settings: &CheckSettings,
        upstreams: &UpstreamAnswers,
        now: Timestamp,
    ) -> Timestamp {
        let tally = self.tally(&check.target, check.tcp_port, upstreams);
        let is_undecided = !tally.newest_passed && tally.failures < settings.failure_threshold as usize;
        let urgency = if is_undecided { check.urgency.max(Urgency::Undecided) } else { check.urgency };
        match (tally.newest, urgency) {
            (None, Urgency::Awaited) => now,
            // The clock was set back.
            (Some(newest), _) if newest > now => now,
            (Some(newest), Urgency::Awaited) => later(newest, AWAITED.min(settings.period)),
            (Some(newest), Urgency::Undecided) => later(newest, UNDECIDED.min(settings.period)),
            (newest, _) => {
                let after = newest.or(tally.decided).unwrap_or(now).min(now);
                next_slot(&check.target, &self.namespace, after, settings.period)
            }
        }
    }
}

/// Returns the next time after `after` for the routine check of a target. Different checks have times that are spread
/// out over the period; equal checks of several StableNames have the same times, so that one check is enough.
fn next_slot(target: &Target, namespace: &str, after: Timestamp, period: Duration) -> Timestamp {
    let mut hasher = DefaultHasher::new();
    text_of(target).hash(&mut hasher);
    if matches!(target, Target::Hostname(_)) {
        namespace.hash(&mut hasher);
    }
    let period = i64::try_from(period.as_millis()).unwrap_or(i64::MAX).max(1);
    // Halved to fit into `i64`.
    let offset = i64::try_from(hasher.finish() / 2).unwrap_or_default().rem_euclid(period);
    let since = (after.as_millisecond() - offset).rem_euclid(period);
    later(after, Duration::from_millis(u64::try_from(period - since).unwrap_or_default()))
}

impl CheckTally<'_> {
    /// Returns why the newest check is neither a pass nor a failure, if an upstream is the cause.
    pub(super) fn why_undecided(&self) -> Option<String> {
        self.unanswered.map(|(upstream, message)| format!("{message} (upstream {upstream})"))
    }

    /// Returns whether no check has ended yet.
    pub(super) fn is_empty(&self) -> bool {
        self.newest.is_none()
    }

    /// Returns whether the newest check with a verdict passed, less than [`CheckSettings::max_age`] ago.
    pub(super) fn passed_recently(&self, settings: &CheckSettings, now: Timestamp) -> bool {
        self.decided.is_some_and(|at| at <= now)
            && self.pass_expires_at(settings).is_some_and(|end| now < end)
    }

    /// Returns when the newest pass becomes too old for [`Self::passed_recently`]; `None` if a failure came after it,
    /// or if there is no pass.
    pub(super) fn pass_expires_at(&self, settings: &CheckSettings) -> Option<Timestamp> {
        self.decided.filter(|_| self.passes > 0).map(|at| later(at, settings.max_age()))
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::seq::IndexedRandom;
    use rand::{RngExt, SeedableRng};

    use super::*;
    use crate::sync::stable_name::decision::test_support::{at, hostname, target, upstream};

    const HOST: &str = "a.example";

    fn planned(host: &str, tcp_port: Option<u16>, urgency: Urgency) -> PlannedCheck {
        PlannedCheck { target: target(host), tcp_port, urgency }
    }

    fn routine(host: &str) -> PlannedCheck {
        planned(host, None, Urgency::Routine)
    }

    fn settings() -> CheckSettings {
        CheckSettings {
            period: Duration::from_secs(30),
            timeout: Duration::from_secs(2),
            failure_threshold: 3,
            success_threshold: 2,
            tcp_port: None,
        }
    }

    fn failed() -> CheckOutcome {
        CheckOutcome::Failed("NXDOMAIN".to_owned())
    }

    fn silent(number: u8) -> CheckOutcome {
        CheckOutcome::NoAnswer { upstream: upstream(number), message: "SERVFAIL".to_owned() }
    }

    /// The records of one target with these results, one every ten seconds.
    fn records(results: &[&[CheckOutcome]]) -> CheckRecords {
        let mut records = CheckRecords::default();
        records.retain(&[routine(HOST)], at(0));
        for (second, outcomes) in (0..).step_by(10).zip(results) {
            let result = CheckResult { at: at(second), outcomes: outcomes.to_vec() };
            records.record(&target(HOST), None, result, &UpstreamAnswers::default());
        }
        records
    }

    fn counted(records: &CheckRecords, upstreams: &UpstreamAnswers) -> (usize, usize) {
        let tally = records.tally(&target(HOST), None, upstreams);
        (tally.passes, tally.failures)
    }

    #[test]
    fn tally_counts_passes_and_failures_in_a_row() {
        let pass = || CheckOutcome::Passed;
        for (results, expected) in [
            (&[][..], (0, 0)),
            (&[&[pass()][..], &[pass()]][..], (2, 0)),
            (&[&[pass()], &[failed()], &[failed()]], (0, 2)),
            (&[&[failed()], &[failed()], &[pass()]], (1, 0)),
            (&[&[failed()], &[silent(1)], &[failed()]], (0, 2)),
            (&[&[pass(), failed()]], (0, 1)),
            (&[&[pass(), silent(1)]], (1, 0)),
            (&[&[silent(1), silent(2)]], (0, 0)),
            (&[&[]], (0, 0)),
        ] {
            assert_eq!(counted(&records(results), &UpstreamAnswers::default()), expected, "{results:?}");
        }
    }

    #[test]
    fn missing_answer_counts_if_its_upstream_answers_another_name() {
        let mut records = records(&[&[CheckOutcome::Passed], &[CheckOutcome::Passed, silent(1)]]);
        let mut upstreams = UpstreamAnswers::default();
        for (number, name, second, expected) in
            [(2, "b.example", 30, (2, 0)), (1, HOST, 30, (2, 0)), (1, "b.example", 10, (2, 0))]
        {
            upstreams.record(upstream(number), &hostname(name), at(second));
            assert_eq!(counted(&records, &upstreams), expected, "{number} {name} {second}");
        }
        upstreams.record(upstream(1), &hostname("b.example"), at(11));
        assert_eq!(counted(&records, &upstreams), (0, 1));
        let result = |second| CheckResult { at: at(second), outcomes: vec![silent(1)] };
        records.record(&target(HOST), None, result(20), &upstreams);
        assert_eq!(counted(&records, &upstreams), (0, 1), "settled as a failure");
    }

    #[test]
    fn label_of_a_missing_answer_is_the_verdict_that_counts() {
        let (mut records, mut upstreams) = (CheckRecords::default(), UpstreamAnswers::default());
        records.retain(&[routine(HOST)], at(0));
        let result = |second| CheckResult { at: at(second), outcomes: vec![CheckOutcome::Passed, silent(1)] };
        let mut record = |upstreams: &UpstreamAnswers, second| {
            let settled = result(second).settled_label(&target(HOST), upstreams);
            (settled, records.record(&target(HOST), None, result(second), upstreams))
        };
        assert_eq!(record(&upstreams, 0), (None, None));
        upstreams.record(upstream(1), &hostname("b.example"), at(1));
        assert_eq!(record(&upstreams, 10), (None, Some("failed")));
        assert_eq!(record(&upstreams, 20), (None, Some("passed")));
        upstreams.record(upstream(1), &hostname("b.example"), at(31));
        assert_eq!(record(&upstreams, 30), (Some("failed"), Some("failed")));
        assert_eq!(record(&upstreams, 40), (None, None), "the former one was settled when it came");
    }

    #[test]
    fn end_of_an_outage_is_one_failure_at_most() {
        let records = records(&[&[CheckOutcome::Passed], &[silent(1)], &[silent(1)], &[silent(1)]]);
        let mut upstreams = UpstreamAnswers::default();
        upstreams.record(upstream(1), &hostname("b.example"), at(31));
        assert_eq!(counted(&records, &upstreams), (0, 1));
    }

    #[test]
    fn results_of_another_target_or_port_dont_count() {
        let mut records = records(&[&[failed()], &[failed()]]);
        let (new, upstreams) = (target("new.example"), UpstreamAnswers::default());
        let failure = |second| CheckResult { at: at(second), outcomes: vec![failed()] };
        records.retain(&[routine(HOST), routine("new.example")], at(20));
        assert!(records.tally(&new, None, &upstreams).is_empty());
        assert_eq!(counted(&records, &upstreams), (0, 2));
        records.retain(&[routine("new.example")], at(21));
        records.record(&target(HOST), None, failure(22), &upstreams);
        records.retain(&[routine(HOST)], at(23));
        assert_eq!(counted(&records, &upstreams), (0, 0));
        records.record(&target(HOST), None, failure(24), &upstreams);
        records.record(&target(HOST), Some(443), failure(24), &upstreams);
        assert_eq!(counted(&records, &upstreams), (0, 1));
        records.retain(&[planned(HOST, Some(443), Urgency::Routine)], at(25));
        assert_eq!(records.tally(&target(HOST), Some(443), &upstreams).failures, 0);
    }

    #[test]
    fn next_check_time_depends_on_results_and_urgency() {
        let pass = || CheckOutcome::Passed;
        let slot = |after| next_slot(&target(HOST), "", at(after), settings().period);
        let (routine, undecided, awaited) = (Urgency::Routine, Urgency::Undecided, Urgency::Awaited);
        for (results, urgency, now, expected) in [
            (&[][..], awaited, 5, at(5)),
            (&[], routine, 5, slot(0)),
            (&[&[pass()][..]], routine, 5, slot(0)),
            (&[&[pass()]], undecided, 1, at(5)),
            (&[&[pass()]], awaited, 1, at(2)),
            (&[&[failed()]], routine, 1, at(5)),
            (&[&[failed()]], awaited, 1, at(2)),
            (&[&[silent(1)]], routine, 1, at(5)),
            (&[&[failed()], &[failed()], &[failed()]], routine, 21, slot(20)),
            (&[&[failed()], &[failed()], &[failed()]], undecided, 21, at(25)),
            (&[&[pass()]], routine, -1, at(-1)),
            (&[], routine, -1_000, slot(-1_000)),
        ] {
            let check = planned(HOST, None, urgency);
            let upstreams = UpstreamAnswers::default();
            let next = records(results).next_check(&check, &settings(), &upstreams, at(now));
            assert_eq!(next, expected, "{results:?}, {urgency:?}");
        }
    }

    #[test]
    fn slow_checks_leave_no_gap_without_a_pass() {
        for seed in 0..500 {
            let mut random = StdRng::seed_from_u64(seed);
            let period = *[5, 30, 60, 91].choose(&mut random).unwrap();
            let timeout = *[1, 2, 30].choose(&mut random).unwrap();
            let tcp_port = random.random::<bool>().then_some(443);
            println!("seed {seed}: period {period}, timeout {timeout}, port {tcp_port:?}");
            let settings = CheckSettings {
                period: Duration::from_secs(period),
                timeout: Duration::from_secs(timeout),
                tcp_port,
                ..settings()
            };
            // A step takes the whole timeout if an upstream or a host is silent.
            let mut step = || {
                let millis = timeout * 1000;
                Duration::from_millis(if random.random() { millis } else { random.random_range(0..=millis) })
            };
            let check = planned(HOST, tcp_port, Urgency::Routine);
            let (mut records, upstreams) = (CheckRecords::default(), UpstreamAnswers::default());
            let mut now = at(0);
            records.retain(std::slice::from_ref(&check), now);
            for number in 0..20 {
                let start = records.next_check(&check, &settings, &upstreams, now).max(now);
                let answered = later(start, step());
                now = later(answered, step());
                if tcp_port.is_some() {
                    now = later(now, step());
                }
                let tally = records.tally(&check.target, tcp_port, &upstreams);
                assert!(number == 0 || tally.passed_recently(&settings, now), "after check {number}");
                let outcomes = vec![CheckOutcome::Passed, silent(1)];
                records.record(&check.target, tcp_port, CheckResult { at: answered, outcomes }, &upstreams);
            }
        }
    }

    #[test]
    fn routine_checks_are_spread_out_over_the_period() {
        let period = Duration::from_secs(30);
        let mut seconds = [0; 30];
        for number in 0..3_000 {
            let target = target(&format!("lb-{number}.example"));
            let slot = next_slot(&target, "", at(0), period);
            assert!(slot > at(0) && slot <= at(30));
            assert_eq!(next_slot(&target, "", slot, period), later(slot, period));
            let millisecond = slot.as_millisecond() - at(0).as_millisecond() - 1;
            seconds[usize::try_from(millisecond / 1000).unwrap()] += 1;
        }
        assert!(seconds.iter().all(|number| (50..150).contains(number)), "{seconds:?}");
    }
}
