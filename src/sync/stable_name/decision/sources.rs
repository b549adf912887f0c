//! The state of each source.

use super::facts::Facts;
use super::spec::Refusal;
use super::status::{AnnouncedTarget, FailoverStatus, SourceState, SourceStatus, cut, text_of};
use crate::api::limits::MAX_MESSAGE;
use crate::model::link::Target;

/// The message of addresses without `tcpPort`.
pub(super) const NOT_CHECKED: &str = "not checked: no tcpPort";

const NOT_CHECKED_YET: &str = "not checked yet";

/// Returns the status of each source while `current` is announced. A new leader begins with the states in the status.
pub(super) fn statuses(facts: &Facts<'_>, current: Option<&AnnouncedTarget>) -> Vec<SourceStatus> {
    facts.positions().map(|position| status(facts, position, current)).collect()
}

fn status(facts: &Facts<'_>, position: usize, current: Option<&AnnouncedTarget>) -> SourceStatus {
    let name = facts.name(position);
    let former = facts.input.last.source(name);
    let offered = facts.offered(position);
    let offers = offered.map(text_of);
    let known = former.filter(|former| former.offers == offers);
    let (state, message) = match (offered, &facts.input.offers[position].refusal) {
        (Some(target), _) => checked(facts, position, target, known, current),
        (None, Some(Refusal { message, .. })) => (SourceState::Refused, message.clone()),
        // The offer has a target and no refusal: `Inputs::denied` denies the target.
        (None, None) if facts.input.offers[position].target.is_some() => {
            (SourceState::Refused, "the target policy denies its target".to_owned())
        }
        (None, None) => (SourceState::Pending, "offers no target".to_owned()),
    };
    let since = known.filter(|known| known.state == state).map_or(facts.now_second(), |known| known.since);
    SourceStatus { name: name.to_owned(), state, offers, since, message: cut(message, MAX_MESSAGE) }
}

/// Returns the state and the message of a source that offers a target. As for load balancers of clouds, the first pass
/// makes a new target healthy, and `successThreshold` counts on the way back from unhealthy, but not for a target that
/// this decision announces, as for the condition Resolved. Clouds announce hostnames before they resolve: a new target of
/// the source in use, and each target while none is announced, is pending for `maxWaitSeconds`.
fn checked(
    facts: &Facts<'_>,
    position: usize,
    target: &Target,
    known: Option<&SourceStatus>,
    current: Option<&AnnouncedTarget>,
) -> (SourceState, String) {
    let spec = facts.input.spec;
    let is_standby = current.is_some_and(|current| current.source != facts.name(position));
    let has_target =
        |status: &FailoverStatus| status.target.as_ref().is_some_and(|known| known.target == *target);
    let is_new = current.is_some_and(|current| current.target == *target)
        && ![facts.input.former, facts.input.last].into_iter().any(has_target);
    if !facts.is_checked(target) {
        return (SourceState::Healthy, NOT_CHECKED.to_owned());
    }
    let former = known.map_or(SourceState::Pending, |known| known.state);
    let tally = facts.tally(target);
    let passes = match former {
        SourceState::Unhealthy if !is_new => spec.check.success_threshold as usize,
        _ => 1,
    };
    let state = match former {
        _ if tally.passes >= passes => SourceState::Healthy,
        SourceState::Pending | SourceState::Refused => {
            let since = known.map_or(facts.now_second(), |known| known.since);
            let is_unhealthy =
                facts.has_failed(target) && (is_standby || facts.wait_is_over(since, spec.max_wait));
            if is_unhealthy { SourceState::Unhealthy } else { SourceState::Pending }
        }
        _ if facts.has_failed(target) => SourceState::Unhealthy,
        former => former,
    };
    if state == SourceState::Healthy {
        return (state, String::new());
    }
    // The first message of a state stays, so that errors that alternate cause no writes.
    let former = known.filter(|known| known.state == state).map(|known| known.message.as_str());
    let former = former.filter(|message| !message.is_empty() && *message != NOT_CHECKED_YET);
    let (undecided, decided): (Option<&str>, _) = match former {
        Some(former) if former.starts_with(NOT_CHECKED_YET) => (Some(former), None),
        former => (None, former),
    };
    let message = decided.or(tally.message).or(undecided).map(str::to_owned);
    let why = || Some(format!("{NOT_CHECKED_YET}: {}", tally.why_undecided()?));
    (state, message.or_else(why).unwrap_or_else(|| NOT_CHECKED_YET.to_owned()))
}
