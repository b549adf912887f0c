//! One link in detail, in the manner of `kubectl describe`.

use jiff::Timestamp;

use super::age::age;
use super::view::LinkView;

/// Returns the lines about a link. `now` is in seconds since 1970.
#[must_use]
pub fn detail(link: &LinkView, now: i64) -> Vec<String> {
    let created = link.created.map(|created| {
        let time = Timestamp::from_second(created).map_or_else(|_| String::new(), |time| time.to_string());
        format!("{time} ({} ago)", age(now - created))
    });
    let none = || "<none>".to_owned();
    let mut lines = vec![
        format!("Service:          {}/{}", link.namespace, link.service),
        format!("State:            {}", link.state),
    ];
    lines.extend(link.reason.map(|reason| format!("Reason:           {reason}")));
    lines.push(format!("Target:           {}", link.target.clone().unwrap_or_else(none)));
    lines.push(format!("External target:  {}", link.external_target));
    lines.push(format!("Created:          {}", created.unwrap_or_else(|| "<unknown>".to_owned())));
    for (i, name) in link.dns_names.iter().enumerate() {
        lines.push(format!("{}{name}", if i == 0 { "DNS names:        " } else { "                  " }));
    }
    lines
}
