//! The state of a target's check, which the *forward* lines on the way share.
//!
//! A check sends the query through the plugins once without an upstream, which finds the upstreams of the *forward* line
//! that answers, and then once for each upstream: the other plugins change each upstream's answer as they change a
//! client's.

use std::net::SocketAddr;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::dns::message::query::QueryKey;

/// The result of a target's check at one upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamResult {
    /// `None` if no upstream was asked, for example because the plugin *hosts* has answered.
    pub upstream: Option<SocketAddr>,
    pub outcome: TargetOutcome,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetOutcome {
    /// The hostname has an address that the target policy allows.
    Resolved,
    /// The hostname has no allowed address.
    Failed(String),
    /// The upstream has sent no usable answer. Never the outcome of a check without an upstream.
    NoAnswer(String),
    /// No query was sent, because of a limit of lb-linker itself or a changed configuration. Says nothing about the
    /// target.
    NotAsked(String),
}

#[derive(Debug)]
pub struct TargetCheck {
    goal: Goal,
    timeout: Duration,
    pub(crate) deadline: Instant,
    progress: Mutex<Progress>,
}

#[derive(Debug)]
enum Goal {
    /// To ask the upstream of the `line`th *forward* line that the query comes to, counted from 0; without an upstream,
    /// to find the upstreams.
    Resolve { line: usize, upstream: Option<SocketAddr> },
    /// To ask the upstream another question.
    Probe { upstream: SocketAddr, question: QueryKey },
}

#[derive(Debug, Default)]
struct Progress {
    /// The number of *forward* lines that have passed the query on to the next one.
    passed: usize,
    is_asked: bool,
    found: Option<Vec<SocketAddr>>,
    outcome: Option<TargetOutcome>,
}

/// What a *forward* line does with the query of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CheckStep {
    /// Passes the query to the next plugin.
    PassOn,
    /// Drops the query: the check has found further upstreams.
    Stop,
    Ask(SocketAddr),
    /// Asks the same upstream for the target of a CNAME.
    AskAgain(SocketAddr),
}

/// The end of a check's way through the plugins, if a *forward* line has ended it.
#[derive(Debug)]
pub(crate) enum CheckEnd {
    /// The checks to continue with, one for each upstream.
    Found(Vec<TargetCheck>),
    Outcome(TargetOutcome),
}

impl TargetCheck {
    pub(crate) fn new(timeout: Duration) -> Self {
        Self::of(Goal::Resolve { line: 0, upstream: None }, timeout, Instant::now() + timeout)
    }

    pub(crate) fn new_probe(upstream: SocketAddr, question: QueryKey, timeout: Duration) -> Self {
        Self::of(Goal::Probe { upstream, question }, timeout, Instant::now() + timeout)
    }

    fn of(goal: Goal, timeout: Duration, deadline: Instant) -> Self {
        Self { goal, timeout, deadline, progress: Mutex::default() }
    }

    pub(crate) fn upstream(&self) -> Option<SocketAddr> {
        match self.goal {
            Goal::Resolve { upstream, .. } => upstream,
            Goal::Probe { upstream, .. } => Some(upstream),
        }
    }

    /// Returns the question of a probe.
    pub(crate) fn probe(&self) -> Option<&QueryKey> {
        match &self.goal {
            Goal::Probe { question, .. } => Some(question),
            Goal::Resolve { .. } => None,
        }
    }

    /// Returns what a *forward* line with these upstreams does with the query.
    pub(crate) fn step(&self, upstreams: impl Fn() -> Vec<SocketAddr>) -> CheckStep {
        let mut progress = self.progress.lock();
        let (line, upstream) = match self.goal {
            Goal::Probe { upstream, .. } if upstreams().contains(&upstream) => {
                return CheckStep::Ask(upstream);
            }
            Goal::Probe { .. } => return CheckStep::PassOn,
            Goal::Resolve { line, upstream } => (line, upstream),
        };
        match upstream {
            _ if progress.passed < line => {
                progress.passed += 1;
                CheckStep::PassOn
            }
            Some(upstream) if progress.is_asked => CheckStep::AskAgain(upstream),
            Some(upstream) if progress.passed == line => {
                progress.is_asked = true;
                CheckStep::Ask(upstream)
            }
            _ => {
                progress.found = Some(upstreams());
                CheckStep::Stop
            }
        }
    }

    /// Records that the upstream's answer causes the next *forward* line to be asked.
    pub(crate) fn pass_on(&self) {
        let mut progress = self.progress.lock();
        progress.passed += 1;
        progress.is_asked = false;
    }

    /// Records the outcome if the query has no answer.
    pub(crate) fn end(&self, outcome: TargetOutcome) {
        self.progress.lock().outcome = Some(outcome);
    }

    /// Returns the outcome at the deadline.
    pub(crate) fn no_reply(&self) -> TargetOutcome {
        TargetOutcome::NoAnswer(format!("no reply within {:?}", self.timeout))
    }

    /// Returns how *forward* has ended the check; `None` if the answer counts.
    pub(crate) fn ended(&self) -> Option<CheckEnd> {
        let progress = self.progress.lock();
        if let Some(outcome) = &progress.outcome {
            return Some(CheckEnd::Outcome(outcome.clone()));
        }
        let line = progress.passed;
        let check = |upstream: &SocketAddr| {
            let goal = Goal::Resolve { line, upstream: Some(*upstream) };
            Self::of(goal, self.timeout, self.deadline)
        };
        Some(match progress.found.as_deref()? {
            [] => {
                let why = "the names of the upstreams aren't resolved yet".to_owned();
                CheckEnd::Outcome(TargetOutcome::NotAsked(why))
            }
            found => CheckEnd::Found(found.iter().map(check).collect()),
        })
    }
}
