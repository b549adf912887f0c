//! When each upstream last answered, to tell a broken upstream from a broken name: SERVFAIL or no reply for one name
//! says something about this name only if the upstream answers other questions.

use std::collections::HashMap;
use std::net::SocketAddr;

use jiff::Timestamp;

use crate::model::hostname::Hostname;

#[derive(Debug, Default)]
pub struct UpstreamAnswers(HashMap<SocketAddr, LastAnswers>);

/// The last answers of an upstream for two different names: enough to know the last answer for a name other than a
/// given one.
#[derive(Debug)]
struct LastAnswers {
    newest: (Hostname, Timestamp),
    other: Option<(Hostname, Timestamp)>,
}

impl UpstreamAnswers {
    /// Records an answer that can be used: SERVFAIL and REFUSED, for example, are no answers. Answers may be recorded
    /// in any order: the answers of a check are recorded when its connections have ended.
    pub fn record(&mut self, upstream: SocketAddr, question: &Hostname, at: Timestamp) {
        let answer = (question.clone(), at);
        let Some(last) = self.0.get_mut(&upstream) else {
            self.0.insert(upstream, LastAnswers { newest: answer, other: None });
            return;
        };
        let older = if last.newest.1 <= at { std::mem::replace(&mut last.newest, answer) } else { answer };
        if older.0 != last.newest.0 && last.other.as_ref().is_none_or(|other| other.1 <= older.1) {
            last.other = Some(older);
        }
    }

    /// Forgets the upstreams whose newest answer is later than `now`: the clock was set back. Call this before
    /// decisions, and before answers are recorded.
    pub fn forget_after(&mut self, now: Timestamp) {
        self.0.retain(|_, last| last.newest.1 <= now);
    }

    /// Returns whether the upstream has answered a question about another name after `since`.
    pub(super) fn has_answered_other(
        &self,
        upstream: SocketAddr,
        question: &Hostname,
        since: Timestamp,
    ) -> bool {
        self.0.get(&upstream).is_some_and(|last| {
            let answers = std::iter::once(&last.newest).chain(&last.other);
            answers.into_iter().any(|(name, at)| name != question && *at > since)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::stable_name::decision::test_support::{at, hostname, upstream};

    #[test]
    fn only_later_answers_for_another_name_count() {
        let mut answers = UpstreamAnswers::default();
        let after = |answers: &UpstreamAnswers, since| {
            answers.has_answered_other(upstream(1), &hostname("a.example"), at(since))
        };
        assert!(!after(&answers, 0));
        answers.record(upstream(1), &hostname("a.example"), at(10));
        answers.record(upstream(2), &hostname("b.example"), at(10));
        assert!(!after(&answers, 0), "an answer for the same name, and one of another upstream");
        answers.record(upstream(1), &hostname("b.example"), at(20));
        assert!(after(&answers, 19));
        assert!(!after(&answers, 20));
        answers.record(upstream(1), &hostname("a.example"), at(30));
        answers.record(upstream(1), &hostname("a.example"), at(31));
        assert!(after(&answers, 19), "the answer for the other name isn't forgotten");
    }

    #[test]
    fn late_record_of_an_answer_erases_no_newer_one() {
        let mut answers = UpstreamAnswers::default();
        let (seoul, busan) = (hostname("seoul.example"), hostname("busan.example"));
        answers.record(upstream(1), &hostname("example"), at(11));
        answers.record(upstream(1), &seoul, at(8));
        answers.record(upstream(1), &busan, at(7));
        assert!(answers.has_answered_other(upstream(1), &busan, at(10)), "the answer at 11");
        assert!(answers.has_answered_other(upstream(1), &hostname("example"), at(7)), "the answer at 8");
        answers.record(upstream(1), &hostname("example"), at(9));
        assert!(answers.has_answered_other(upstream(1), &hostname("example"), at(7)), "the answer at 8");
    }

    #[test]
    fn answers_later_than_now_are_forgotten() {
        let mut answers = UpstreamAnswers::default();
        answers.record(upstream(1), &hostname("b.example"), at(1_000));
        answers.record(upstream(2), &hostname("b.example"), at(10));
        answers.forget_after(at(10));
        let has_answered =
            |number| answers.has_answered_other(upstream(number), &hostname("a.example"), at(9));
        assert_eq!([1, 2].map(has_answered), [false, true]);
    }
}
