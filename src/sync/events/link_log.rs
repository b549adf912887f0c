//! Reports changes of links in the log and as Kubernetes Events.

use std::sync::Arc;

use tracing::{debug, info};

use super::findings::Findings;
use super::{Reason, Recorder};
use crate::model::excerpt::examples;
use crate::model::link::{Link, LinkChange, LinkState};
use crate::object_log::ObjectLog;
use crate::store::Store;
use crate::sync::events::metrics::EventMetrics;

/// Destinations of reports about links.
#[derive(Clone)]
pub struct LinkReporter {
    pub metrics: Arc<EventMetrics>,
    pub recorder: Recorder,
    /// Log lines about single Services and StableNames.
    pub log: ObjectLog,
    pub findings: Findings,
}

pub(crate) fn log_changes(link_reporter: &LinkReporter, changes: impl IntoIterator<Item = LinkChange>) {
    for change in changes {
        log_change(link_reporter, &change);
    }
}

pub(crate) fn log_change(link_reporter: &LinkReporter, change: &LinkChange) {
    let key = &change.owner.key;
    let state = |link: &Option<Arc<Link>>| link.as_ref().map(|link| link.state);
    let (before, after) = (state(&change.before), state(&change.after));
    let retargeted = change.target_change();
    if change.before.is_some() && retargeted.is_some() {
        link_reporter.metrics.target_changes.inc();
    }
    if before != after && after == Some(LinkState::Stale) {
        // The link continues with its last target, but needs attention.
        link_reporter.log.warn(key, change);
    } else if (retargeted.is_some() || before != after) && !is_refused_from_the_start(change) {
        link_reporter.log.info(key, change);
    } else {
        debug!("link {key}: same target; another TTL, other ports, names or settings");
    }
    let Some(link) = &change.after else { return };
    if let Some(note) = lost_hostnames(change) {
        link_reporter.log.warn(key, format_args!("link {key}: {note}"));
        link_reporter.recorder.about(link, Reason::Conflict, &note);
    }
    if let (Some(target), Some(LinkState::Stale)) = (&link.target, after)
        && before != after
    {
        let why = if link.refused { "the new target isn't allowed" } else { "the status is blank" };
        let note = format!("{why}; {target} stays the target");
        link_reporter.recorder.about(link, Reason::TargetStale, &note);
    }
}

/// Returns whether a new link has no target because its target isn't allowed, which has a line of its own.
fn is_refused_from_the_start(change: &LinkChange) -> bool {
    change.before.is_none()
        && change.after.as_ref().is_some_and(|link| link.refused && link.target.is_none() && !link.is_gone())
}

/// Returns a note about the DNS names that a link requests and doesn't own, if these have changed.
pub(crate) fn lost_hostnames(change: &LinkChange) -> Option<String> {
    let lost = |link: &Option<Arc<Link>>| link.as_deref().map(lost).unwrap_or_default();
    let link = change.after.as_deref().filter(|_| lost(&change.after) != lost(&change.before))?;
    lost_hostnames_of(link)
}

/// Returns a note about the DNS names that a link requests and doesn't own.
pub(crate) fn lost_hostnames_of(link: &Link) -> Option<String> {
    let lost = lost(link);
    let note = || format!("it doesn't get DNS names that another object has: {}", examples(lost.clone()));
    (!lost.is_empty()).then(note)
}

fn lost(link: &Link) -> Vec<Arc<str>> {
    link.annotations.hostnames.iter().filter(|name| !link.hostnames.contains(name)).cloned().collect()
}

/// Logs the first list as a single line, and a line for each link that lacks requested DNS names.
pub(crate) fn log_first_list(store: &Store, link_reporter: &LinkReporter, changes: &[LinkChange]) {
    for change in changes {
        debug!("{change}");
        if let Some(note) = lost_hostnames(change) {
            let key = &change.owner.key;
            link_reporter.log.warn(key, format_args!("link {key}: {note}"));
        }
    }
    let links = store.links();
    let services = links.iter().filter_map(|link| link.service_link());
    let present = services.filter(|service| !service.is_gone() && !service.is_left_out()).count();
    info!("ready: load balancers: {present}");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::captured_log::CapturedLog;
    use crate::model::link::{Annotations, Ingress, ObservedService};
    use crate::model::owner::Owner;
    use crate::model::service_key::ServiceKey;
    use crate::store::OnGone;
    use crate::sync::source::service_links::{insert_gone, insert_left_out};
    use crate::sync::test_support;

    #[test]
    fn new_link_with_a_refused_target_has_no_line() {
        for (refused, expected) in [(true, false), (false, true)] {
            let (log_text, _logging) = CapturedLog::start(tracing::Level::INFO);
            let key = ServiceKey::new("shop", "web");
            let link = Link { refused, ..Link::new(key.clone(), "1") };
            let change = LinkChange { owner: Owner::from(&key), before: None, after: Some(Arc::new(link)) };
            log_change(&test_support::link_reporter(), &change);
            let text = log_text.text();
            assert_eq!(text.contains("link shop/web: none → pending"), expected, "{text}");
        }
    }

    #[test]
    fn note_names_the_hostnames_that_a_link_lacks() {
        let names = ["a", "b"].map(|label| Arc::from(format!("{label}.lb.internal")));
        let annotations = Annotations { hostnames: names.to_vec().into(), ..Annotations::default() };
        let hostnames = [Arc::clone(&names[0])].into();
        let link = Link { annotations, hostnames, ..Link::new(ServiceKey::new("shop", "web"), "1") };
        let note = "it doesn't get DNS names that another object has: b.lb.internal";
        assert_eq!(lost_hostnames_of(&link).as_deref(), Some(note));
    }

    #[test]
    fn ready_counts_only_present_load_balancers() {
        let (log_text, _logging) = CapturedLog::start(tracing::Level::INFO);
        let store = Store::new(OnGone::Kept);
        let key = |name| ServiceKey::new("shop", name);
        store.apply(ObservedService {
            key: key("present"),
            uid: "1".into(),
            created: None,
            resource_version: None,
            ingress: Ingress::default(),
            ports: Arc::default(),
            annotations: Annotations::default(),
            refused: false,
            has_finalizer: false,
            persisted: None,
        });
        insert_gone(&store, &key("gone"), Vec::new());
        insert_left_out(&store, &key("left-out"), "2".into(), None, Vec::new());
        log_first_list(&store, &test_support::link_reporter(), &[]);
        let text = log_text.text();
        assert!(text.contains("ready: load balancers: 1\n"), "{text}");
    }
}
