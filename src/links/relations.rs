//! Reports in the log and in Events what is wrong between links: targets that lead in a circle, and names that the
//! domain of a remote cluster hides.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use tokio::sync::broadcast::error::RecvError;
use tracing::warn;

use super::facts::{ChainError, IN_A_CIRCLE, last_of_chain};
use super::view::hidden_name;
use crate::model::link::Link;
use crate::model::service_key::ServiceKey;
use crate::store::{Input, Store};
use crate::sync::events::Reason;
use crate::sync::events::link_log::LinkReporter;

/// Maximum number of links of a circle that are named.
const MAX_NAMED: usize = 4;

/// What is reported.
struct Relations {
    store: Arc<Store>,
    link_reporter: LinkReporter,
    /// The links whose target leads in a circle, each with the first link of the circle in alphabetical order.
    circles: HashMap<ServiceKey, ServiceKey>,
    /// The links with a hidden name.
    hidden: HashSet<ServiceKey>,
}

/// Reports from the first complete list on. What is wrong by then has log lines, and no Events.
pub async fn report(store: Arc<Store>, link_reporter: LinkReporter) {
    store.known(Input::Services).await;
    let mut feed = store.subscribe();
    let mut relations = Relations { store, link_reporter, circles: HashMap::new(), hidden: HashSet::new() };
    relations.scan();
    loop {
        match feed.recv().await {
            Ok(changes) => {
                changes
                    .iter()
                    .filter_map(|change| change.service())
                    .for_each(|key| relations.look(key, true));
            }
            Err(RecvError::Lagged(_)) => relations.scan(),
            Err(RecvError::Closed) => return,
        }
    }
}

impl Relations {
    /// Looks at all links. Hidden names have a line for each cluster.
    fn scan(&mut self) {
        let mut of_clusters: HashMap<Box<str>, String> = HashMap::new();
        for link in self.store.links() {
            if let Some(note) = self.new_hidden_name(&link) {
                of_clusters
                    .entry(link.key.namespace().into())
                    .or_insert_with(|| format!("link {}: {note}", link.key));
            }
            self.look(&link.key, false);
        }
        of_clusters.values().for_each(|line| warn!("{line}"));
    }

    fn look(&mut self, key: &ServiceKey, is_news: bool) {
        let Some(link) = self.store.get(key) else {
            self.hidden.remove(key);
            return self.leave_circle(key);
        };
        if let Some(note) = self.new_hidden_name(&link) {
            self.tell(&link, Reason::Conflict, &note, is_news);
        }
        match self.circle_of(&link) {
            None => self.leave_circle(key),
            Some(circle) => self.enter_circle(&link, circle, is_news),
        }
    }

    /// Returns the links of the circle that the target of a link leads in.
    fn circle_of(&self, link: &Arc<Link>) -> Option<Vec<ServiceKey>> {
        match last_of_chain(&self.store, link) {
            Err(ChainError::Circle(circle)) => Some(circle),
            Ok(_) | Err(ChainError::TooLong) => None,
        }
    }

    /// Returns the note about the hidden name of a link, if it hasn't been returned before.
    fn new_hidden_name(&mut self, link: &Link) -> Option<String> {
        match hidden_name(link, &self.store) {
            Some(note) => self.hidden.insert(link.key.clone()).then_some(note),
            None => {
                self.hidden.remove(&link.key);
                None
            }
        }
    }

    fn enter_circle(&mut self, link: &Link, circle: Vec<ServiceKey>, is_news: bool) {
        let Some(first) = circle.iter().min().cloned() else { return };
        if self.circles.insert(link.key.clone(), first.clone()).as_ref() == Some(&first) {
            return;
        }
        let is_known = self.circles.iter().any(|(key, known)| *known == first && *key != link.key);
        let named = circle.iter().take(MAX_NAMED).chain(circle.first().filter(|_| circle.len() <= MAX_NAMED));
        let named: Vec<String> = named.map(ToString::to_string).collect();
        let more = if circle.len() > MAX_NAMED { " → …" } else { "" };
        let note = format!("{IN_A_CIRCLE}: {}{more}", named.join(" → "));
        // One line for all links of the circle, and an Event for each link whose target leads in it.
        self.circles.extend(circle.into_iter().map(|key| (key, first.clone())));
        self.tell(link, Reason::TargetCircle, &note, is_news);
        if !is_news || is_known {
            return;
        }
        for into in self.store.links().iter().filter(|into| into.key != link.key) {
            if self.circle_of(into).is_some_and(|circle| circle.contains(&first)) {
                self.circles.insert(into.key.clone(), first.clone());
                self.link_reporter.recorder.about(into, Reason::TargetCircle, &note);
            }
        }
    }

    fn leave_circle(&mut self, key: &ServiceKey) {
        let Some(first) = self.circles.remove(key) else { return };
        let lasts = self.store.get(&first).is_some_and(|link| self.circle_of(&link).is_some());
        if !lasts {
            self.circles.retain(|_, known| *known != first);
        }
    }

    fn tell(&self, link: &Link, reason: Reason, note: &str, is_news: bool) {
        self.link_reporter.log.warn(&link.key, format_args!("link {}: {note}", link.key));
        if is_news {
            self.link_reporter.recorder.about(link, reason, note);
        }
    }
}

#[cfg(test)]
mod tests {
    use hickory_proto::rr::Name;

    use super::*;
    use crate::model::hostname::Hostname;
    use crate::model::link::{Annotations, Ingress, ObservedService};
    use crate::model::owner::Zone;
    use crate::store::OnGone;
    use crate::sync::election::Leadership;
    use crate::sync::events::Recorder;
    use crate::sync::test_support;

    fn relations() -> Relations {
        let zone = Zone::from(&Name::from_ascii("lb.internal.").unwrap());
        let store = Store::new(OnGone::Kept).with_zones(zone.with_remotes(&["west".into()]));
        let dropped = prometheus::IntCounter::new("dropped", "Dropped.").unwrap();
        let recorder = Recorder::new(dropped, Leadership::unconditional());
        let link_reporter = LinkReporter { recorder, ..test_support::link_reporter() };
        let (circles, hidden) = Default::default();
        Relations { store: Arc::new(store), link_reporter, circles, hidden }
    }

    /// Applies a Service with this hostname, and returns the Events that follow.
    fn apply(relations: &mut Relations, key: &str, host: &str) -> Vec<(Reason, String)> {
        let (namespace, name) = key.split_once('/').unwrap();
        let key = ServiceKey::new(namespace, name);
        let hostnames = vec![Hostname::from(&Name::from_ascii(host).unwrap())];
        relations.store.apply(ObservedService {
            key: key.clone(),
            uid: name.into(),
            created: None,
            resource_version: None,
            ingress: Ingress { hostnames, addresses: Vec::new() },
            ports: Arc::default(),
            annotations: Annotations::default(),
            refused: false,
            has_finalizer: false,
            persisted: None,
        });
        relations.look(&key, true);
        let queued = relations.link_reporter.recorder.take_queued();
        queued.into_iter().map(|(reason, note)| (reason, note.into())).collect()
    }

    #[test]
    fn each_link_of_a_circle_has_one_event_until_it_ends() {
        let mut relations = relations();
        assert_eq!(apply(&mut relations, "shop/a", "b.shop.lb.internal."), []);
        let closed = apply(&mut relations, "shop/b", "a.shop.lb.internal.");
        let note = format!("{IN_A_CIRCLE}: shop/b → shop/a → shop/b");
        assert_eq!(closed, [(Reason::TargetCircle, note.clone()), (Reason::TargetCircle, note)]);
        assert_eq!(apply(&mut relations, "shop/b", "a-shop.lb.internal."), [], "it is the same circle");
        assert_eq!(apply(&mut relations, "shop/a", "b-shop.lb.internal."), []);
        let into = apply(&mut relations, "shop/c", "a.shop.lb.internal.");
        assert_eq!(into.len(), 1, "its clients get SERVFAIL, too");
        assert_eq!(apply(&mut relations, "shop/c", "c.example."), []);
        assert_eq!(relations.circles.len(), 2);
        assert_eq!(apply(&mut relations, "shop/a", "a.example."), []);
        assert!(relations.circles.is_empty());
        assert_eq!(apply(&mut relations, "shop/d", "a.shop.lb.internal."), []);
        let closed = apply(&mut relations, "shop/a", "b.shop.lb.internal.");
        assert_eq!(closed.len(), 3, "also for the link that led into it before");
        assert_eq!(relations.circles.len(), 3);
        assert_eq!(apply(&mut relations, "shop/d", "b.shop.lb.internal."), [], "it is the same circle");
    }

    #[test]
    fn name_below_a_remote_cluster_is_told_at_once() {
        let mut relations = relations();
        let told = apply(&mut relations, "west/web", "a.example.");
        let note = "web.west.lb.internal isn't a name of it: the names below west.lb.internal are those of remote \
                    cluster west. Give the cluster another name, or let clients use web-west.lb.internal";
        assert_eq!(told, [(Reason::Conflict, note.to_owned())]);
        assert_eq!(apply(&mut relations, "west/web", "b.example."), [], "once");
        relations.store.gone(&ServiceKey::new("west", "web"), "web", None, std::time::Instant::now());
        relations.look(&ServiceKey::new("west", "web"), true);
        assert!(relations.hidden.is_empty());
        relations.scan();
        assert_eq!(relations.link_reporter.recorder.take_queued(), []);
    }
}
