//! The state of each source.

use super::facts::Facts;
use super::spec::Refusal;
use super::status::{SourceState, SourceStatus};
use crate::model::link::Target;

/// The message of addresses without `tcpPort`.
pub(super) const NOT_CHECKED: &str = "not checked: no tcpPort";

/// Returns the status of each source. A new leader begins with the former states.
pub(super) fn statuses(facts: &Facts<'_>) -> Vec<SourceStatus> {
    facts.places().map(|place| status(facts, place)).collect()
}

fn status(facts: &Facts<'_>, place: usize) -> SourceStatus {
    let name = facts.name(place);
    let former = facts.input.former.source(name);
    let offered = facts.offered(place);
    let offers = offered.map(Target::to_string);
    let known = former.filter(|former| former.offers == offers);
    let (state, message) = match (offered, &facts.input.offers[place].refusal) {
        (Some(target), _) => checked(facts, target, known),
        (None, Some(Refusal { message, .. })) => (SourceState::Refused, message.clone()),
        // The sources know why: this is the case only until they look at a changed policy.
        (None, None) if facts.input.offers[place].target.is_some() => {
            (SourceState::Refused, "the target policy denies its target".to_owned())
        }
        (None, None) => (SourceState::Pending, "offers no target".to_owned()),
    };
    let since = known.filter(|known| known.state == state).map_or(facts.second(), |known| known.since);
    SourceStatus { name: name.to_owned(), state, offers, since, message }
}

/// Returns the state of a source that offers a target. As for load balancers of clouds, the first pass makes a new
/// target healthy, and `successThreshold` counts on the way back from unhealthy. A new target is pending for
/// `maxWaitSeconds`, because clouds announce hostnames before they resolve.
fn checked(facts: &Facts<'_>, target: &Target, known: Option<&SourceStatus>) -> (SourceState, String) {
    let spec = facts.input.spec;
    if !spec.check.applies_to(target) {
        return (SourceState::Healthy, NOT_CHECKED.to_owned());
    }
    let former = known.map_or(SourceState::Pending, |known| known.state);
    let tally = facts.tally(target);
    let passes = match former {
        SourceState::Unhealthy => spec.check.success_threshold as usize,
        _ => 1,
    };
    let state = match former {
        _ if tally.passes >= passes => SourceState::Healthy,
        SourceState::Pending | SourceState::Refused => {
            let since = known.map_or(facts.second(), |known| known.since);
            let is_unhealthy = facts.has_failed(target) && facts.is_over(since, spec.max_wait);
            if is_unhealthy { SourceState::Unhealthy } else { SourceState::Pending }
        }
        _ if facts.has_failed(target) => SourceState::Unhealthy,
        former => former,
    };
    let former = known.filter(|known| known.state == state).map(|known| known.message.as_str());
    let message = match state {
        SourceState::Healthy => "",
        _ => tally.message.or(former).unwrap_or("not checked yet"),
    };
    (state, message.to_owned())
}
