//! What the owner of a StableName wants, and what its sources offer.

use std::time::Duration;

use crate::model::link::Target;
use crate::model::uid::Uid;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailoverSpec {
    /// `metadata.generation`.
    pub generation: i64,
    /// The distinct, nonempty names of the sources, the preferred one first. Empty if the specification is invalid.
    pub sources: Vec<String>,
    pub check: CheckSettings,
    /// `cutover.maxWaitSeconds`: how long a new target may take until it passes a check.
    pub max_wait: Duration,
    pub failback: Failback,
    pub pin: Option<String>,
}

/// How long a check that is due may wait for its turn, unless the leader is overloaded.
const MAX_QUEUE_DELAY: Duration = Duration::from_secs(1);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckSettings {
    pub period: Duration,
    pub timeout: Duration,
    /// The number of failures in a row after which a target has failed.
    pub failure_threshold: u32,
    /// The number of passes in a row that make an unhealthy source healthy.
    pub success_threshold: u32,
    /// The port that must accept a connection.
    pub tcp_port: Option<u16>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failback {
    /// Back to a source that precedes the source in use, once it has been healthy for this time.
    Automatic {
        after: Duration,
    },
    Manual,
}

impl CheckSettings {
    /// Returns the longest time that a check takes: one timeout each for the look-up, for a second question to
    /// upstreams that gave no answer, and, with a port, for the connection.
    fn longest_check(&self) -> Duration {
        self.timeout.saturating_mul(if self.tcp_port.is_some() { 3 } else { 2 })
    }

    /// Returns the longest time between the starts of two checks.
    fn longest_pause(&self) -> Duration {
        self.period.max(self.longest_check())
    }

    /// Returns the maximum age of a result: the next check ends before that, even if no upstream answers.
    pub(super) fn max_age(&self) -> Duration {
        self.longest_pause().saturating_add(self.longest_check()).saturating_add(MAX_QUEUE_DELAY)
    }

    /// Returns the time without a pass or a failure after which a check is late: [`Self::max_age`] and the time until
    /// the start of one more check.
    pub(super) fn late_after(&self) -> Duration {
        self.longest_pause().saturating_add(self.max_age())
    }
}

/// What a source offers at present.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offer {
    /// The uid of the Service; empty for fixed targets, and without a permitted Service. While the Service can't be
    /// listed, that of the announced target.
    pub uid: Uid,
    /// The target; `None` while the load balancer is pending, and without a permitted Service. A target that was announced
    /// stays while the status of its Service is blank.
    pub target: Option<Target>,
    /// Why the source can't be used.
    pub refusal: Option<Refusal>,
    /// Whether the source is the Service with the name of the StableName, and its own link is still in place: DNS
    /// answers with this target already.
    pub is_live_link: bool,
    /// Whether the status of the Service is blank, and `target` is the last one.
    pub is_blank: bool,
    /// Why changes of the Service aren't seen at present, if they aren't.
    pub unread: Option<String>,
}

impl Offer {
    #[must_use]
    pub fn is_refused_for(&self, reason: RefusalReason) -> bool {
        self.refusal.as_ref().is_some_and(|refusal| refusal.reason == reason)
    }
}

/// Why a source, or the StableName, isn't accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub reason: RefusalReason,
    pub message: String,
}

impl Refusal {
    /// Returns the refusal with the name of its source in the message.
    #[must_use]
    pub fn of_source(&self, name: &str) -> Self {
        Self { reason: self.reason, message: format!("source {name}: {}", self.message) }
    }

    /// Returns several refusals as one, with the reason of the first; `None` if there are none.
    #[must_use]
    pub fn joined(refusals: impl IntoIterator<Item = Self>) -> Option<Self> {
        refusals.into_iter().reduce(|all, next| {
            let message = format!("{}; {}", all.message, next.message);
            Self { message, ..all }
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalReason {
    /// The Service doesn't exist, or doesn't let the namespace of the StableName follow it.
    RefNotPermitted,
    /// lb-linker may not list the Services of the namespace.
    Forbidden,
    /// This process hasn't listed the Services of the other cluster.
    NotListed,
    /// The target policy denies the offered target.
    TargetRefused,
    /// The Service lacks the TCP port of the check, or the namespace may not check fixed targets by TCP.
    CheckRefused,
    /// The hostname policy denies a custom hostname.
    HostnameRefused,
    /// A custom hostname, or the name of the external target, belongs to another object.
    Conflict,
    /// The specification breaks a rule: none of its sources is used.
    InvalidSpec,
}

impl RefusalReason {
    pub const ALL: [Self; 8] = [
        Self::RefNotPermitted,
        Self::Forbidden,
        Self::NotListed,
        Self::TargetRefused,
        Self::CheckRefused,
        Self::HostnameRefused,
        Self::Conflict,
        Self::InvalidSpec,
    ];

    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::RefNotPermitted => "RefNotPermitted",
            Self::Forbidden => "Forbidden",
            Self::NotListed => "NotListed",
            Self::TargetRefused => "TargetRefused",
            Self::CheckRefused => "CheckRefused",
            Self::HostnameRefused => "HostnameRefused",
            Self::Conflict => "Conflict",
            Self::InvalidSpec => "InvalidSpec",
        }
    }
}
