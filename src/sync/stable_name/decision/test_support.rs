//! Helpers for the tests of decisions.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use hickory_proto::rr::Name;
use jiff::Timestamp;

use super::checks::{CheckOutcome, CheckRecords, CheckResult};
use super::decide::{FailoverDecision, decide};
use super::facts::Inputs;
use super::spec::{CheckSettings, Failback, FailoverSpec, Offer, Refusal, RefusalReason};
use super::status::{ConditionStatus, ConditionType, FailoverStatus, SourceState};
use super::upstream_answers::UpstreamAnswers;
use crate::model::hostname::Hostname;
use crate::model::link::Target;
use crate::model::uid::Uid;

/// Returns the time this many seconds after second 0 of the tests.
pub(super) fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + second).unwrap()
}

pub(super) fn hostname(text: &str) -> Hostname {
    Hostname::from(&Name::from_ascii(format!("{text}.")).unwrap())
}

/// Addresses if the text begins with a digit, else a hostname.
pub(super) fn target(text: &str) -> Target {
    if text.starts_with(|c: char| c.is_ascii_digit()) {
        return Target::Addresses(text.split(',').map(|ip| ip.parse().unwrap()).collect());
    }
    Target::Hostname(hostname(text))
}

pub(super) fn upstream(number: u8) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, number], 53))
}

/// One StableName, its inputs, and its status as the API server has it.
pub(super) struct Harness {
    pub(super) spec: FailoverSpec,
    pub(super) offers: Vec<Offer>,
    pub(super) checks: CheckRecords,
    pub(super) upstreams: UpstreamAnswers,
    pub(super) status: FailoverStatus,
    /// The last decision, if it isn't written.
    pub(super) last: Option<FailoverStatus>,
    pub(super) present_target: Option<(Target, Uid)>,
    pub(super) is_written: bool,
    pub(super) write_failure: Option<&'static str>,
    /// The uids of further existing Services, which needn't be sources.
    pub(super) other_living_uids: Vec<Uid>,
    pub(super) denied: Vec<Target>,
    pub(super) refusal: Option<Refusal>,
    pub(super) is_first_target_held: bool,
    pub(super) is_failover_held: bool,
    pub(super) now: Timestamp,
}

impl Harness {
    /// A StableName with these sources, by name and offered target; `""` offers none. The settings are the
    /// defaults of the API.
    pub(super) fn new(sources: &[(&str, &str)]) -> Self {
        let check = CheckSettings {
            period: Duration::from_secs(30),
            timeout: Duration::from_secs(2),
            failure_threshold: 3,
            success_threshold: 2,
            tcp_port: None,
        };
        Self {
            spec: FailoverSpec {
                generation: 1,
                sources: sources.iter().map(|(name, _)| (*name).to_owned()).collect(),
                check,
                max_wait: Duration::from_secs(300),
                failback: Failback::Automatic { after: Duration::from_secs(300) },
                pin: None,
            },
            offers: sources.iter().map(|(name, target)| offer(name, target)).collect(),
            checks: CheckRecords::default(),
            upstreams: UpstreamAnswers::default(),
            status: FailoverStatus::default(),
            last: None,
            present_target: None,
            is_written: true,
            write_failure: None,
            other_living_uids: Vec::new(),
            denied: Vec::new(),
            refusal: None,
            is_first_target_held: false,
            is_failover_held: false,
            now: at(0),
        }
    }

    /// A StableName whose sources have passed three checks, the last one at second 0. The first source is
    /// announced.
    pub(super) fn settled(sources: &[(&str, &str)]) -> Self {
        let mut harness = Self::new(sources);
        for second in [-60, -30, 0] {
            harness.now = at(second);
            harness.decide();
            sources.iter().for_each(|(_, target)| harness.pass(target));
            harness.decide();
        }
        harness
    }

    /// Decides at this second, and writes the status.
    pub(super) fn decide_at(&mut self, second: i64) -> FailoverDecision {
        self.now = at(second);
        self.decide()
    }

    /// Decides and writes the status. A second decision must change nothing.
    pub(super) fn decide(&mut self) -> FailoverDecision {
        let decision = self.peek();
        self.status = decision.status.clone();
        let checks = self.assert_settled(&decision).checks;
        self.checks.retain(&checks, self.now);
        let second = self.assert_settled(&decision);
        FailoverDecision { again: second.again, checks: second.checks, ..decision }
    }

    /// Decides again with the decided status, which must change nothing, except that the target before a written move
    /// isn't checked any more.
    fn assert_settled(&self, decision: &FailoverDecision) -> FailoverDecision {
        let second = self.peek();
        assert_eq!(second.status, decision.status, "the second decision differs");
        assert_eq!((second.moved, &second.events[..]), (None, &[][..]));
        let still = decision.checks.iter().filter(|check| second.checks.contains(check));
        assert!(second.checks.iter().eq(still));
        assert!(second.checks.len() == decision.checks.len() || decision.moved.is_some());
        second
    }

    /// Decides without writing the status.
    pub(super) fn peek(&self) -> FailoverDecision {
        self.with_inputs(decide)
    }

    pub(super) fn with_inputs(
        &self,
        decide: impl FnOnce(&Inputs<'_>) -> FailoverDecision,
    ) -> FailoverDecision {
        decide(&Inputs {
            spec: &self.spec,
            offers: &self.offers,
            checks: &self.checks,
            upstreams: &self.upstreams,
            former: &self.status,
            last: self.last.as_ref().unwrap_or(&self.status),
            present_target: self.present_target.as_ref().map(|(target, uid)| (target, uid)),
            is_written: self.is_written,
            write_failure: self.write_failure,
            is_living: &|uid| {
                let offered = self.offers.iter().filter(|offer| is_permitted(offer)).map(|offer| &offer.uid);
                offered.chain(&self.other_living_uids).any(|living| living == uid)
            },
            denied: &|target| self.denied.contains(target),
            refusal: self.refusal.as_ref(),
            is_first_target_held: self.is_first_target_held,
            is_failover_held: self.is_failover_held,
            now: self.now,
        })
    }

    /// Edits the specification.
    pub(super) fn edit(&mut self, edit: impl FnOnce(&mut FailoverSpec)) {
        edit(&mut self.spec);
        self.spec.generation += 1;
    }

    /// Puts the sources into this order; sources that aren't named leave the list.
    pub(super) fn reorder(&mut self, names: &[&str]) {
        self.other_living_uids = self.offers.iter().map(|offer| offer.uid.clone()).collect();
        let position = |name: &&str| self.spec.sources.iter().position(|known| known == name).unwrap();
        self.offers = names.iter().map(|name| self.offers[position(name)].clone()).collect();
        self.edit(|spec| spec.sources = names.iter().map(|name| (*name).to_owned()).collect());
    }

    pub(super) fn offer(&mut self, source: &str) -> &mut Offer {
        let position = self.spec.sources.iter().position(|name| name == source).unwrap();
        &mut self.offers[position]
    }

    pub(super) fn record(&mut self, target: &str, outcomes: &[CheckOutcome]) {
        let result = CheckResult { at: self.now, outcomes: outcomes.to_vec() };
        let target = self::target(target);
        // If connections to the target aren't permitted, its record has no port.
        for tcp_port in [None, self.spec.check.tcp_port].into_iter().collect::<BTreeSet<_>>() {
            self.checks.record(&target, tcp_port, result.clone(), &self.upstreams);
        }
    }

    pub(super) fn pass(&mut self, target: &str) {
        self.record(target, &[CheckOutcome::Passed]);
    }

    pub(super) fn fail(&mut self, target: &str) {
        self.record(target, &[CheckOutcome::Failed("NXDOMAIN".to_owned())]);
    }

    /// Lets a check fail three times, the default of `failureThreshold`.
    pub(super) fn fail_thrice(&mut self, target: &str) {
        (0..3).for_each(|_| self.fail(target));
    }

    /// Replaces the leader by a new one, which knows only the status.
    pub(super) fn restart(&mut self) {
        self.checks = CheckRecords::default();
        self.upstreams = UpstreamAnswers::default();
    }

    /// Returns source and target; empty while nothing is announced.
    pub(super) fn announced(&self) -> String {
        let target = self.status.target.as_ref();
        target.map_or_else(String::new, |target| format!("{} {}", target.source, target.target))
    }

    /// Returns the place of the source in use.
    pub(super) fn place(&self) -> Option<usize> {
        self.status.place_of(&self.status.target.as_ref()?.source)
    }

    pub(super) fn condition(&self, kind: ConditionType) -> (ConditionStatus, &str) {
        let condition = self.status.condition(kind).unwrap();
        (condition.status, condition.reason.as_str())
    }

    pub(super) fn state(&self, source: &str) -> SourceState {
        self.status.source(source).unwrap().state
    }
}

/// Returns the offer of a Service with the uid `name`; `""` as `target` means no target.
pub(super) fn offer(name: &str, target: &str) -> Offer {
    let target = (!target.is_empty()).then(|| self::target(target));
    Offer { uid: Uid::from(name), target, ..Offer::default() }
}

pub(super) fn is_permitted(offer: &Offer) -> bool {
    !offer.is_refused_for(RefusalReason::RefNotPermitted)
}

pub(super) fn refusal(reason: RefusalReason) -> Option<Refusal> {
    Some(Refusal { reason, message: "refused".to_owned() })
}
