//! One link in detail, in the manner of `kubectl describe`.

use super::age::age;
use super::view::{LinkEvent, LinkView};
use crate::model::excerpt::printable;

/// Printed instead of the history if the link wasn't read from a running lb-linker.
const UNKNOWN_HISTORY: &str = "<unknown>: run this command in a Pod of lb-linker (kubectl -n lb-linker exec deployment/lb-linker -- /lb-linker links …)";

/// Returns the lines about a link. `now` is in seconds since 1970.
#[must_use]
pub fn detail(link: &LinkView, now: i64) -> Vec<String> {
    let created = link.created.map(|created| format!("{created} ({} ago)", age(now - created.as_second())));
    let none = || "<none>".to_owned();
    let subject = match &link.overridden_by {
        Some(by) => format!("Led by:           {by}"),
        None => format!("Service:          {}/{}", link.namespace, link.service),
    };
    let mut lines = vec![subject, format!("State:            {}", link.state)];
    lines.extend(link.reason.as_ref().map(|reason| format!("Reason:           {reason}")));
    lines.push(format!("Target:           {}", link.target.clone().unwrap_or_else(none)));
    lines.push(format!("External target:  {}", link.external_target.as_deref().unwrap_or("<none>")));
    lines.push(format!("Created:          {}", created.unwrap_or_else(|| "<unknown>".to_owned())));
    for (i, name) in link.dns_names.iter().enumerate() {
        lines.push(format!("{}{name}", if i == 0 { "DNS names:        " } else { "                  " }));
    }
    match link.history.as_deref() {
        None => lines.push(format!("History:          {UNKNOWN_HISTORY}")),
        Some([]) => lines.push("History:          no change since lb-linker has started".to_owned()),
        Some(events) => {
            lines
                .push("History:          without former times as Degraded, Unresolved or Unnamed".to_owned());
            lines.push(format!("  {:8}  {:10}  {}", "AGE", "STATE", "TARGET"));
            lines.extend(events.iter().map(|event| event_line(event, now)));
        }
    }
    // Escape control characters: the link may come from another program that listens at `--admin-listen`.
    lines.iter().map(|line| printable(line, &[])).collect()
}

fn event_line(event: &LinkEvent, now: i64) -> String {
    let target = event.target.as_deref().unwrap_or("<none>");
    format!("  {:8}  {:10}  {target}", age(now - event.time.as_second()), event.state)
}
