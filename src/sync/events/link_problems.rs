//! Reports in the log and in Events what is wrong between links: targets that lead in a circle or through too many links,
//! and names that the domain of a remote cluster hides.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use tokio::sync::broadcast::error::RecvError;
use tracing::warn;

use super::Reason;
use super::link_log::LinkReporter;
use crate::model::link::Link;
use crate::model::names;
use crate::model::owner::Zone;
use crate::model::service_key::ServiceKey;
use crate::store::target_chain::ChainError;
use crate::store::{Input, Store};

/// What is reported.
struct Problems {
    store: Arc<Store>,
    link_reporter: LinkReporter,
    /// The links whose target leads in a circle, each with the first link of the circle in alphabetical order.
    circles: HashMap<ServiceKey, ServiceKey>,
    /// The links whose target led through too many links when they last changed.
    too_long: HashSet<ServiceKey>,
    /// The links with a hidden name.
    hidden: HashSet<ServiceKey>,
}

/// Reports from the first complete list on. What is wrong by then has log lines, and no Events.
pub async fn report(store: Arc<Store>, link_reporter: LinkReporter) {
    store.known(Input::Services).await;
    let mut feed = store.subscribe();
    let (circles, too_long, hidden) = Default::default();
    let mut problems = Problems { store, link_reporter, circles, too_long, hidden };
    problems.scan();
    loop {
        match feed.recv().await {
            Ok(changes) => {
                changes.iter().filter_map(|change| change.service()).for_each(|key| problems.look(key, true));
            }
            Err(RecvError::Lagged(_)) => problems.scan(),
            Err(RecvError::Closed) => return,
        }
    }
}

impl Problems {
    /// Looks at all links. Hidden names have a line for each cluster.
    fn scan(&mut self) {
        let store = Arc::clone(&self.store);
        let is_there = |key: &ServiceKey| store.get(key).is_some();
        self.hidden.retain(is_there);
        self.too_long.retain(is_there);
        self.circles.retain(|key, _| is_there(key));
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
            self.too_long.remove(key);
            return self.leave_circle(key);
        };
        if let Some(note) = self.new_hidden_name(&link) {
            self.tell(&link, Reason::Conflict, &note, is_news);
        }
        let chain = self.store.last_of_chain(&link);
        if !matches!(chain, Err(ChainError::TooLong)) {
            self.too_long.remove(key);
        } else if self.too_long.insert(key.clone()) {
            self.tell(&link, Reason::TargetCircle, &ChainError::TooLong.to_string(), is_news);
        }
        match chain {
            Err(ChainError::Circle(circle)) => self.enter_circle(&link, circle, is_news),
            Ok(_) | Err(ChainError::TooLong) => self.leave_circle(key),
        }
    }

    /// Returns the links of the circle that the target of a link leads in.
    fn circle_of(&self, link: &Arc<Link>) -> Option<Vec<ServiceKey>> {
        match self.store.last_of_chain(link) {
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
        // One line for all links of the circle, and an Event for each link whose target leads in it.
        self.circles.extend(circle.iter().map(|key| (key.clone(), first.clone())));
        self.tell(link, Reason::TargetCircle, &ChainError::Circle(circle).to_string(), is_news);
        if !is_news || is_known {
            return;
        }
        for into in self.store.links().iter().filter(|into| into.key != link.key) {
            if let Some(circle) = self.circle_of(into).filter(|circle| circle.contains(&first)) {
                self.circles.insert(into.key.clone(), first.clone());
                let note = ChainError::Circle(circle).to_string();
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

/// Returns which names of a link the domain of a remote cluster contains.
pub(crate) fn hidden_name(link: &Link, store: &Store) -> Option<String> {
    let (namespace, service) = link.key.parts();
    let zones = store.zones();
    let is_hidden = |zone: &&Zone| zone.cluster.as_deref() == Some(namespace);
    let domain = zones.iter().find(is_hidden).filter(|_| !link.is_gone())?;
    let zone = names::text(&domain.origin);
    let zone = zone.split_once('.').map_or(&*zone, |(_, zone)| zone);
    let short = names::dashed_label(namespace, service);
    Some(format!(
        "{service}.{namespace}.{zone} isn't a name of it: the names below {namespace}.{zone} are those of remote \
         cluster {namespace}. Give the cluster another name, or let clients use {short}.{zone}"
    ))
}

#[cfg(test)]
mod tests {
    use hickory_proto::rr::Name;

    use super::*;
    use crate::model::hostname::Hostname;
    use crate::model::link::{Annotations, Ingress, ObservedService};
    use crate::store::OnGone;
    use crate::sync::election::Leadership;
    use crate::sync::events::Recorder;
    use crate::sync::test_support;

    fn problems() -> Problems {
        let zone = Zone::from(&Name::from_ascii("lb.internal.").unwrap());
        let store = Store::new(OnGone::Kept).with_zones(zone.with_remotes(&["west".into()]));
        let dropped = prometheus::IntCounter::new("dropped", "Dropped.").unwrap();
        let recorder = Recorder::new(dropped, Leadership::unconditional());
        let link_reporter = LinkReporter { recorder, ..test_support::link_reporter() };
        let (circles, too_long, hidden) = Default::default();
        Problems { store: Arc::new(store), link_reporter, circles, too_long, hidden }
    }

    /// Applies a Service with this hostname, and returns the Events that follow.
    fn apply(problems: &mut Problems, key: &str, host: &str) -> Vec<(Reason, String)> {
        let (namespace, name) = key.split_once('/').unwrap();
        let key = ServiceKey::new(namespace, name);
        let hostnames = vec![Hostname::from(&Name::from_ascii(host).unwrap())];
        problems.store.apply(ObservedService {
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
        problems.look(&key, true);
        let queued = problems.link_reporter.recorder.take_queued();
        queued.into_iter().map(|(reason, note)| (reason, note.into())).collect()
    }

    #[test]
    fn each_link_of_a_circle_has_one_event_until_it_ends() {
        let mut problems = problems();
        assert_eq!(apply(&mut problems, "shop/a", "b.shop.lb.internal."), []);
        let closed = apply(&mut problems, "shop/b", "a.shop.lb.internal.");
        let event = |path: &str| {
            (Reason::TargetCircle, format!("its target leads in a circle, so DNS answers SERVFAIL: {path}"))
        };
        assert_eq!(closed, [event("shop/b → shop/a → shop/b"), event("shop/a → shop/b → shop/a")]);
        assert_eq!(apply(&mut problems, "shop/b", "a-shop.lb.internal."), [], "it is the same circle");
        assert_eq!(apply(&mut problems, "shop/a", "b-shop.lb.internal."), []);
        let into = apply(&mut problems, "shop/c", "a.shop.lb.internal.");
        assert_eq!(into.len(), 1, "its clients get SERVFAIL, too");
        assert_eq!(apply(&mut problems, "shop/c", "c.example."), []);
        assert_eq!(problems.circles.len(), 2);
        assert_eq!(apply(&mut problems, "shop/a", "a.example."), []);
        assert!(problems.circles.is_empty());
        assert_eq!(apply(&mut problems, "shop/d", "a.shop.lb.internal."), []);
        let closed = apply(&mut problems, "shop/a", "b.shop.lb.internal.");
        assert_eq!(closed.len(), 3, "also for the link that led into it before");
        assert_eq!(problems.circles.len(), 3);
        assert_eq!(apply(&mut problems, "shop/d", "b.shop.lb.internal."), [], "it is the same circle");
    }

    #[test]
    fn chain_that_is_too_long_has_one_event_until_it_is_shorter() {
        let mut problems = problems();
        assert_eq!(apply(&mut problems, "shop/n0", "a.example."), []);
        for number in 1..7 {
            let next = format!("n{}.shop.lb.internal.", number - 1);
            assert_eq!(apply(&mut problems, &format!("shop/n{number}"), &next), [], "{number}");
        }
        let note = "its target needs more than 8 look-ups, so DNS answers SERVFAIL".to_owned();
        let told = apply(&mut problems, "shop/n7", "n6.shop.lb.internal.");
        assert_eq!(told, [(Reason::TargetCircle, note.clone())]);
        assert_eq!(apply(&mut problems, "shop/n7", "n6-shop.lb.internal."), [], "as before");
        assert_eq!(apply(&mut problems, "shop/n7", "n5.shop.lb.internal."), []);
        let told = apply(&mut problems, "shop/n7", "n6.shop.lb.internal.");
        assert_eq!(told, [(Reason::TargetCircle, note)]);
    }

    #[test]
    fn name_below_a_remote_cluster_is_told_at_once() {
        let mut problems = problems();
        let told = apply(&mut problems, "west/web", "a.example.");
        let note = "web.west.lb.internal isn't a name of it: the names below west.lb.internal are those of remote \
                    cluster west. Give the cluster another name, or let clients use web-west.lb.internal";
        assert_eq!(told, [(Reason::Conflict, note.to_owned())]);
        assert_eq!(apply(&mut problems, "west/web", "b.example."), [], "once");
        problems.store.gone(&ServiceKey::new("west", "web"), "web", None, std::time::Instant::now());
        let mut of_a_scan = Problems { hidden: problems.hidden.clone(), ..self::problems() };
        of_a_scan.scan();
        assert!(of_a_scan.hidden.is_empty(), "a link is gone, of which no event has told");
        problems.look(&ServiceKey::new("west", "web"), true);
        assert!(problems.hidden.is_empty());
        problems.scan();
        assert_eq!(problems.link_reporter.recorder.take_queued(), []);
    }
}
