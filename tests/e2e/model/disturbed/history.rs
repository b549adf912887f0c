//! The states of each name with their times, and what an answer may say at a time.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::{RData, RecordType};

use super::address_of;
use crate::harness::scale::scaled;

/// A state may be answered for this long after it has ended, while nothing disturbs lb-linker. From the beginning of a
/// disturbance until this long after all replicas have converged, the states just before the disturbance may be
/// answered, too.
pub fn bound() -> Duration {
    if std::env::var_os("LB_LINKER_SOAK_MINUTES").is_some() {
        return Duration::from_secs(10);
    }
    scaled(Duration::from_secs(10), Duration::from_secs(60))
}
/// How long after an outage of the upstream answers may lack an address.
const AFTER_OUTAGE: Duration = Duration::from_secs(60);
/// How long after a change a snapshot may lack the change.
fn snapshot_delay() -> Duration {
    scaled(Duration::from_secs(5), Duration::from_secs(15))
}
/// How long states are kept after their end.
const KEPT: Duration = Duration::from_secs(900);

/// What a name stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    Absent,
    /// The Service is deleted; its external target may still exist.
    Gone,
    Pending,
    /// A StableName with these hostnames. Perhaps none of them is announced yet.
    Announcing(Vec<String>),
    /// Any of these hostnames.
    Hosts(Vec<String>),
    Ips(Vec<IpAddr>),
}

/// What an answer says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    NoName,
    NoData,
    Alias(String),
    Addresses(BTreeSet<IpAddr>),
    Other(String),
}

impl Seen {
    /// Returns what an answer says, and whether the answer lacks the address of its alias.
    pub fn of(answer: &Message, qtype: RecordType) -> (Self, bool) {
        let code = answer.metadata.response_code;
        let mut addresses = BTreeSet::new();
        let mut alias = None;
        for record in &answer.answers {
            match &record.data {
                RData::CNAME(target) if alias.is_none() => {
                    alias = Some(target.0.to_ascii().trim_end_matches('.').to_owned());
                }
                data => match data.ip_addr() {
                    Some(ip) => drop(addresses.insert(ip)),
                    None => return (Self::Other(answer.to_string()), false),
                },
            }
        }
        match alias {
            Some(host) => {
                let right = address_of(&host, qtype);
                if addresses.iter().any(|ip| *ip != right) {
                    return (Self::Other(format!("a mix: {answer}")), false);
                }
                (Self::Alias(host), addresses.is_empty() && qtype != RecordType::CNAME)
            }
            None if !addresses.is_empty() => (Self::Addresses(addresses), false),
            None => match code {
                ResponseCode::NoError => (Self::NoData, false),
                ResponseCode::NXDomain => (Self::NoName, false),
                code => (Self::Other(code.to_string()), false),
            },
        }
    }
}

impl State {
    /// Returns whether an answer to a query of this type may say `seen` in this state.
    pub fn allows(&self, seen: &Seen, qtype: RecordType) -> bool {
        match self {
            Self::Absent => *seen == Seen::NoName,
            Self::Gone => matches!(seen, Seen::NoName | Seen::NoData),
            Self::Pending => *seen == Seen::NoData,
            Self::Announcing(hosts) => match seen {
                Seen::Alias(host) => hosts.contains(host),
                seen => matches!(seen, Seen::NoName | Seen::NoData),
            },
            Self::Hosts(hosts) => matches!(seen, Seen::Alias(host) if hosts.contains(host)),
            Self::Ips(ips) => {
                let of_type = |ip: &&IpAddr| match qtype {
                    RecordType::A => ip.is_ipv4(),
                    RecordType::AAAA => ip.is_ipv6(),
                    _ => false,
                };
                let ips: BTreeSet<IpAddr> = ips.iter().filter(of_type).copied().collect();
                match seen {
                    Seen::Addresses(seen) => *seen == ips,
                    seen => ips.is_empty() && *seen == Seen::NoData,
                }
            }
        }
    }

    fn has_target(&self) -> bool {
        matches!(self, Self::Hosts(_) | Self::Ips(_))
    }
}

#[derive(Debug)]
struct Entry {
    state: State,
    from: Instant,
    until: Option<Instant>,
}

/// A change of a name.
pub struct Change {
    /// A state that the name has only for a moment.
    pub passing: Option<State>,
    /// Whether replicas may keep an earlier target: any recent target, because a replica without a connection to the
    /// API server may have missed the latest targets.
    pub keeps_targets: bool,
    /// The state afterwards; `None` if an earlier target is surely kept.
    pub state: Option<State>,
}

/// The beginning of a period, and its end unless the period still lasts.
type Period = (Instant, Option<Instant>);

/// The states of all names.
#[derive(Debug, Default)]
pub struct History {
    entries: Vec<Vec<Entry>>,
    /// The beginning of a change whose outcome isn't known yet.
    changing: Option<Instant>,
    disturbances: Vec<Period>,
    outages: Vec<Period>,
    /// From the start of a replica until all replicas have converged, by replica.
    starts: [Vec<Period>; 2],
    /// When a replica ended before its last start, by replica.
    ends: [Option<Instant>; 2],
}

impl History {
    /// Adds a name that is absent, and returns its number.
    pub fn add(&mut self) -> usize {
        self.entries.push(vec![Entry { state: State::Absent, from: Instant::now(), until: None }]);
        self.entries.len() - 1
    }

    pub fn begin_change(&mut self) {
        self.changing = Some(Instant::now());
    }

    /// Records the state of a name after the change that has begun.
    pub fn end_change(&mut self, subject: usize, state: State) {
        self.record(subject, Change { passing: None, keeps_targets: false, state: Some(state) });
    }

    pub fn record(&mut self, subject: usize, Change { passing, keeps_targets, state }: Change) {
        let now = Instant::now();
        let from = self.changing.take().expect("a change has begun");
        let oldest = self.oldest(from);
        let entries = &mut self.entries[subject];
        for entry in entries.iter_mut() {
            let is_recent = entry.until.is_none_or(|until| until >= oldest);
            if keeps_targets && entry.state.has_target() && is_recent {
                entry.until = None;
            } else if entry.until.is_none() {
                entry.until = Some(now);
            }
        }
        entries.extend(passing.map(|state| Entry { state, from, until: Some(now) }));
        entries.extend(state.map(|state| Entry { state, from, until: None }));
        entries.retain(|entry| entry.until.is_none_or(|until| until + KEPT > now));
    }

    /// Ends a change that changes no name.
    pub fn end_other_change(&mut self) {
        self.changing = None;
    }

    /// Returns the present states of a name: several after a change that a replica may have missed.
    pub fn present(&self, subject: usize) -> Vec<State> {
        let open = self.entries[subject].iter().filter(|entry| entry.until.is_none());
        open.map(|entry| entry.state.clone()).collect()
    }

    pub fn begin_disturbance(&mut self) {
        self.disturbances.push((Instant::now(), None));
    }

    /// Ends the disturbances: all replicas answer the present states.
    pub fn end_disturbances(&mut self) {
        end(&mut self.disturbances);
        self.end_starts();
    }

    /// Records that a replica starts, which ended at `end` and may answer from a snapshot: names that the snapshot lacks
    /// get SERVFAIL.
    pub fn begin_start(&mut self, replica: usize, end: Instant) {
        self.starts[replica].push((Instant::now(), None));
        self.ends[replica] = Some(end);
    }

    /// Records that no replica answers from a snapshot any more.
    pub fn end_starts(&mut self) {
        self.starts.iter_mut().for_each(end);
    }

    pub fn begin_outage(&mut self) {
        self.outages.push((Instant::now(), None));
    }

    pub fn end_outage(&mut self) {
        end(&mut self.outages);
    }

    /// Returns until when answers can be judged: what happened later may not have been recorded.
    pub fn known_until(&self) -> Instant {
        self.changing.unwrap_or_else(Instant::now)
    }

    /// Returns the earliest end of a state that may still be answered to a query sent at this time.
    fn oldest(&self, sent: Instant) -> Instant {
        let disturbed = self.disturbances.iter().rev().find(|period| reaches(period, sent, bound()));
        disturbed.map_or(sent, |(begun, _)| *begun).min(sent) - bound()
    }

    /// Returns whether an answer of a replica may say `seen`.
    pub fn allows(
        &self,
        subject: usize,
        seen: &Seen,
        qtype: RecordType,
        replica: usize,
        (sent, received): (Instant, Instant),
    ) -> bool {
        self.was_true(subject, seen, qtype, (self.oldest(sent), received))
            || *seen == Seen::Other(ResponseCode::ServFail.to_string())
                && self.may_lack(subject, replica, sent)
    }

    /// Returns whether the name may be missing in the snapshot of a replica that has started: at some time between
    /// [`snapshot_delay`] before the end of the replica and its start the name had no target.
    fn may_lack(&self, subject: usize, replica: usize, sent: Instant) -> bool {
        let starts = self.starts[replica].iter().rev();
        let Some((begun, _)) = starts.into_iter().find(|start| reaches(start, sent, Duration::ZERO)) else {
            return false;
        };
        let since = self.ends[replica].unwrap_or(*begun).min(*begun) - snapshot_delay();
        let before = |entry: &&Entry| entry.from <= *begun && entry.until.is_none_or(|end| end >= since);
        let mut before = self.entries[subject].iter().filter(before).peekable();
        let is_new = before.peek().is_none_or(|first| first.from > since);
        is_new || before.any(|entry| !entry.state.has_target())
    }

    /// Returns whether an answer could say `seen` at some time of a period.
    pub fn was_true(
        &self,
        subject: usize,
        seen: &Seen,
        qtype: RecordType,
        (since, until): (Instant, Instant),
    ) -> bool {
        self.entries[subject].iter().any(|entry| {
            entry.from <= until
                && entry.until.is_none_or(|end| end >= since)
                && entry.state.allows(seen, qtype)
        })
    }

    /// Returns whether the answer to a query sent at this time may lack the address of its alias, because the upstream
    /// failed.
    pub fn is_outage(&self, sent: Instant) -> bool {
        self.outages.iter().rev().any(|period| reaches(period, sent, AFTER_OUTAGE))
    }

    /// Returns the states of a name in words.
    pub fn explain(&self, subject: usize) -> String {
        let state = |entry: &Entry| {
            let until = entry.until.map_or("now".to_owned(), |until| format!("{:.1?} ago", until.elapsed()));
            format!("{:?} from {:.1?} ago until {until}", entry.state, entry.from.elapsed())
        };
        let last = self.entries[subject].iter().rev().take(4).map(state);
        let disturbance =
            self.disturbances.last().map(|(begun, end)| (begun.elapsed(), end.map(|end| end.elapsed())));
        format!("{}; disturbance: {disturbance:.1?}", last.collect::<Vec<_>>().join("; "))
    }
}

fn reaches((begun, end): &Period, at: Instant, longer: Duration) -> bool {
    *begun <= at && end.is_none_or(|end| end + longer >= at)
}

fn end(periods: &mut Vec<Period>) {
    let now = Instant::now();
    for (_, end) in periods.iter_mut() {
        end.get_or_insert(now);
    }
    periods.retain(|(_, end)| end.is_none_or(|end| end + KEPT > now));
}

#[test]
fn ended_state_is_true_only_until_its_end() {
    let mut history = History::default();
    let subject = history.add();
    let before = Instant::now();
    for host in ["a", "b"] {
        history.begin_change();
        history.end_change(subject, State::Hosts(vec![host.to_owned()]));
    }
    let after = Instant::now() + Duration::from_millis(1);
    let was_true = |host: &str, since| {
        history.was_true(subject, &Seen::Alias(host.to_owned()), RecordType::A, (since, after))
    };
    assert!(was_true("b", after) && !was_true("a", after));
    assert!(was_true("a", before));
    assert!(!was_true("c", before));
}
