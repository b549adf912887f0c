//! The state of a target's check, which the *forward* lines that its query passes share.
//!
//! A check sends the query through the plugins once without an upstream, which finds the upstreams of the *forward* line
//! that answers, and then once for each upstream. So the other plugins change each upstream's answer as they change an
//! answer for a client.

use std::collections::HashSet;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::dns::message::query::QueryKey;
use crate::model::service_key::ServiceKey;

pub(crate) const NOT_RESOLVED: &str = "no server block resolves the hostname";

/// The results of a target's check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TargetResults {
    /// A result for each upstream, or one result without an upstream.
    pub upstreams: Vec<UpstreamResult>,
    /// The links that have the hostname, or a name in its CNAME chain, as a DNS name.
    pub links: HashSet<ServiceKey>,
}

/// The result of a target's check at one upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamResult {
    /// `None` if no upstream was asked, for example because the plugin *hosts* has answered.
    pub upstream: Option<SocketAddr>,
    pub outcome: TargetOutcome,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetOutcome {
    /// The hostname has addresses that the target policy allows. Has the first four, IPv4 addresses first.
    Resolved(Vec<IpAddr>),
    /// The hostname has no allowed address.
    Failed(String),
    /// The upstream has sent no usable answer. Never part of an [`UpstreamResult`] without an upstream.
    NoAnswer(String),
    /// The check says nothing about the target: for example, a limit of lb-linker was reached, the plugins took too
    /// long, the configuration has changed, or a CNAME leads to other upstreams, which failed.
    Inconclusive(String),
}

#[derive(Debug)]
pub struct TargetCheck {
    goal: Goal,
    /// As [`TargetResults::links`]; all checks of the hostname share this set.
    links: Arc<Mutex<HashSet<ServiceKey>>>,
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
    wait: Wait,
    /// How long the check has waited for its turn.
    queued: Duration,
    is_asked: bool,
    /// Whether the last answer came from upstreams that a CNAME has led to.
    is_from_others: bool,
    found: Option<Vec<SocketAddr>>,
    outcome: Option<TargetOutcome>,
}

/// What a check waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Wait {
    #[default]
    Plugins,
    /// For the end of other checks of the upstream.
    Turn,
    Upstream,
    /// For the upstreams of another server block that a CNAME has led to.
    OtherUpstreams,
}

/// What a *forward* line does with the query of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CheckStep {
    /// Passes the query to the next plugin.
    PassOn,
    /// Drops the query: the upstreams of this line are recorded, to be checked one by one.
    Stop,
    Ask(SocketAddr),
    /// Asks the same upstream for the target of a CNAME.
    AskAgain(SocketAddr),
}

/// How a *forward* line has ended a check.
#[derive(Debug)]
pub(crate) enum CheckEnd {
    /// The checks to continue with, one for each upstream.
    Found(Vec<TargetCheck>),
    Outcome(TargetOutcome),
}

impl TargetCheck {
    pub(crate) fn new(links: Arc<Mutex<HashSet<ServiceKey>>>, timeout: Duration) -> Self {
        let goal = Goal::Resolve { line: 0, upstream: None };
        Self { goal, links, timeout, deadline: Instant::now() + timeout, progress: Mutex::default() }
    }

    pub(crate) fn new_probe(upstream: SocketAddr, question: QueryKey, timeout: Duration) -> Self {
        Self { goal: Goal::Probe { upstream, question }, ..Self::new(Arc::default(), timeout) }
    }

    /// Records that the hostname leads to a name of this link.
    pub(crate) fn note_link(&self, link: &ServiceKey) {
        self.links.lock().insert(link.clone());
    }

    pub(crate) fn upstream(&self) -> Option<SocketAddr> {
        match self.goal {
            Goal::Resolve { upstream, .. } => upstream,
            Goal::Probe { upstream, .. } => Some(upstream),
        }
    }

    /// Returns the number of the *forward* line, and the upstream; `None` for a probe, or without an upstream.
    pub(crate) fn line_and_upstream(&self) -> Option<(usize, SocketAddr)> {
        match self.goal {
            Goal::Resolve { line, upstream } => Some((line, upstream?)),
            Goal::Probe { .. } => None,
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

    /// Records the outcome of a check that ends without an answer to judge. The first outcome counts.
    pub(crate) fn end(&self, outcome: TargetOutcome) {
        let mut progress = self.progress.lock();
        let outcome = match outcome {
            TargetOutcome::NoAnswer(why) if progress.is_from_others => Self::outcome_of_other_upstreams(why),
            outcome => outcome,
        };
        progress.outcome.get_or_insert(outcome);
    }

    /// Awaits a future, and records what the check waits for: [`Self::outcome_at_deadline`] reports it.
    pub(crate) async fn wait_for<T>(&self, wait: Wait, future: impl Future<Output = T>) -> T {
        let begun = Instant::now();
        self.progress.lock().wait = wait;
        let result = future.await;
        let mut progress = self.progress.lock();
        progress.wait = Wait::Plugins;
        match wait {
            Wait::Turn => progress.queued += begun.elapsed(),
            Wait::Upstream | Wait::OtherUpstreams => progress.is_from_others = wait == Wait::OtherUpstreams,
            Wait::Plugins => {}
        }
        result
    }

    /// Returns the outcome if the upstream is silent until the deadline.
    pub(crate) fn outcome_without_reply(&self) -> TargetOutcome {
        // After a long wait for its turn, the query may have been sent too late for an answer.
        if self.progress.lock().queued > self.timeout / 2 {
            return Self::not_in_turn();
        }
        TargetOutcome::NoAnswer(format!("no reply within {:?}", self.timeout))
    }

    /// Returns the outcome at the deadline.
    pub(crate) fn outcome_at_deadline(&self) -> TargetOutcome {
        let wait = self.progress.lock().wait;
        match wait {
            Wait::Upstream => self.outcome_without_reply(),
            Wait::Turn => Self::not_in_turn(),
            Wait::Plugins => {
                TargetOutcome::Inconclusive(format!("the plugins have taken {:?}", self.timeout))
            }
            Wait::OtherUpstreams => {
                Self::outcome_of_other_upstreams(format_args!("no reply within {:?}", self.timeout))
            }
        }
    }

    fn not_in_turn() -> TargetOutcome {
        let why = "too many checks of the upstream are under way";
        TargetOutcome::Inconclusive(why.to_owned())
    }

    /// Returns the outcome if a CNAME has led to other upstreams, whose failures say nothing about this upstream.
    pub(crate) fn outcome_of_other_upstreams(why: impl fmt::Display) -> TargetOutcome {
        TargetOutcome::Inconclusive(format!("its CNAME leads to other upstreams: {why}"))
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
            let (links, progress) = (Arc::clone(&self.links), Mutex::default());
            Self { goal, links, timeout: self.timeout, deadline: self.deadline, progress }
        };
        Some(match progress.found.as_deref()? {
            [] => {
                let why = "the names of the upstreams aren't resolved yet".to_owned();
                CheckEnd::Outcome(TargetOutcome::Inconclusive(why))
            }
            found => CheckEnd::Found(found.iter().map(check).collect()),
        })
    }
}
