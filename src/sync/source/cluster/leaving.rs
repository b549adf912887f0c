//! Services that have left the selection. The API server sends the same event for a deleted Service, so one
//! LIST by name decides: a Service that lives and isn't selected any more keeps its link for a while. A list lacks both
//! as well, where the watch was away when they left.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use kube::Client;
use tokio::time::sleep;

use crate::model::service_key::ServiceKey;
use crate::sync::controller::backoff::Pauses;
use crate::sync::k8s::errors::{Outage, Trouble, WatchTrouble, explain, root_cause};
use crate::sync::k8s::service::Service;
use crate::sync::k8s::watch::{Query, find};
use crate::sync::source::selection::{Membership, Selection};

/// LISTs under way at once: many Services may be deleted together.
const AT_ONCE: usize = 8;
/// The first and the longest pause after a LIST that has failed.
const RETRY: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

/// A Service that an event has called deleted, or that a list lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Deleted {
    pub(super) key: ServiceKey,
    pub(super) uid: String,
    pub(super) version: Option<u64>,
}

/// The Services that have left the selection, or may have.
pub(super) struct Leaving {
    client: Client,
    outage: Outage,
    selection: Arc<Selection>,
    /// How long links of Services are kept that aren't selected any more.
    delay: Duration,
    /// Services whose LIST hasn't been answered; `waiting` are the ones whose LIST hasn't been sent either.
    asked: HashMap<ServiceKey, Deleted>,
    waiting: VecDeque<Deleted>,
    asking: FuturesUnordered<BoxFuture<'static, (Deleted, Membership)>>,
    /// Services that the LIST has shown as selected again, and the watch hasn't yet.
    back: HashSet<ServiceKey>,
    /// Services that live and aren't selected, with their uid, since then.
    kept: HashMap<ServiceKey, (String, Instant)>,
}

impl Leaving {
    pub(super) fn new(client: Client, outage: Outage, selection: Arc<Selection>, delay: Duration) -> Self {
        Self {
            client,
            outage,
            selection,
            delay,
            asked: HashMap::new(),
            waiting: VecDeque::new(),
            asking: FuturesUnordered::new(),
            back: HashSet::new(),
            kept: HashMap::new(),
        }
    }

    /// Asks whether a Service is gone, or only not selected any more.
    pub(super) fn ask(&mut self, deleted: Deleted) {
        self.asked.insert(deleted.key.clone(), deleted.clone());
        self.waiting.push_back(deleted);
        self.ask_next();
    }

    fn ask_next(&mut self) {
        while self.asking.len() < AT_ONCE
            && let Some(deleted) = self.waiting.pop_front()
        {
            if self.asked.get(&deleted.key) != Some(&deleted) {
                continue;
            }
            let (client, outage) = (self.client.clone(), self.outage.clone());
            let selection = Arc::clone(&self.selection);
            let asking = async move {
                let membership = look_up(client, outage, &selection, &deleted).await;
                (deleted, membership)
            };
            self.asking.push(Box::pin(asking));
        }
    }

    /// Waits for the next answer to [`Leaving::ask`]. Of a Service that has been heard of since there is none.
    pub(super) async fn answer(&mut self) -> (Deleted, Membership) {
        loop {
            let Some((deleted, membership)) = self.asking.next().await else {
                return std::future::pending().await;
            };
            self.ask_next();
            if self.asked.get(&deleted.key) == Some(&deleted) {
                self.asked.remove(&deleted.key);
                if membership == Membership::Selected {
                    self.back.insert(deleted.key.clone());
                }
                return (deleted, membership);
            }
        }
    }

    /// Keeps the link of a Service that isn't selected any more. Returns whether that is news.
    pub(super) fn keep(&mut self, key: &ServiceKey, uid: &str) -> bool {
        self.asked.remove(key);
        if self.kept.get(key).is_some_and(|(known, _)| known == uid) {
            return false;
        }
        self.kept.insert(key.clone(), (uid.to_owned(), Instant::now()));
        true
    }

    /// Takes over that it is known again how a Service stands. Returns whether an event has called it deleted since the
    /// watch showed it last.
    pub(super) fn forget(&mut self, key: &ServiceKey) -> bool {
        self.kept.remove(key);
        let (was_asked, is_back) = (self.asked.remove(key).is_some(), self.back.remove(key));
        was_asked || is_back
    }

    /// Returns the Services that a list lacks and whose links stay all the same.
    pub(super) fn keys(&self) -> impl Iterator<Item = &ServiceKey> {
        self.asked.keys().chain(self.kept.keys())
    }

    /// Returns when the next link has been kept long enough.
    pub(super) fn due(&self) -> Option<Instant> {
        self.kept.values().filter_map(|(_, since)| since.checked_add(self.delay)).min()
    }

    /// Returns the Services whose links have been kept long enough, with their uid and since when.
    pub(super) fn over(&mut self, now: Instant) -> Vec<(ServiceKey, String, Instant)> {
        let is_over = |since: &Instant| since.checked_add(self.delay).is_some_and(|due| due <= now);
        let over = self.kept.extract_if(|_, (_, since)| is_over(since));
        over.map(|(key, (uid, since))| (key, uid, since)).collect()
    }

    /// Returns how long links are kept.
    pub(super) fn delay(&self) -> Duration {
        self.delay
    }

    /// Returns since when a Service counts as gone whose external target goes at once.
    pub(super) fn long_ago(&self) -> Instant {
        let now = Instant::now();
        now.checked_sub(self.delay).unwrap_or(now)
    }
}

/// Asks until there is an answer.
async fn look_up(client: Client, outage: Outage, selection: &Selection, deleted: &Deleted) -> Membership {
    let (namespace, name) = deleted.key.parts();
    let query = Query::named(namespace, name);
    let (mut pauses, mut trouble) = (Pauses::new(RETRY), Trouble::default());
    loop {
        let error = match find::<Service>(client.clone(), &query).await {
            Ok(found) => {
                outage.over();
                let Some(found) = found else { return Membership::Gone };
                if kube::Resource::meta(&found).uid.as_deref() != Some(&*deleted.uid) {
                    return Membership::Gone;
                }
                // What can't be read lives.
                return found.0.map_or(Membership::NotSelected, |service| selection.membership(&service));
            }
            Err(error) => error,
        };
        match &error {
            kube::Error::Api(status) => {
                let doing = format!("list Service {} by its name", deleted.key);
                trouble.report(status.code, &explain(&error, &doing, WatchTrouble::READING));
            }
            error => outage.report(&root_cause(error)),
        }
        sleep(pauses.next()).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaving(delay: u64) -> Leaving {
        let service = tower::service_fn(|_: axum::http::Request<kube::client::Body>| {
            std::future::pending::<Result<axum::http::Response<kube::client::Body>, std::convert::Infallible>>(
            )
        });
        let client = Client::new(service, "default");
        Leaving::new(client, Outage::default(), Arc::default(), Duration::from_secs(delay))
    }

    #[tokio::test]
    async fn a_kept_link_is_over_after_the_delay() {
        let (mut leaving, key) = (leaving(600), ServiceKey::new("a", "web"));
        assert!(leaving.keep(&key, "1"));
        assert!(!leaving.keep(&key, "1"), "the delay counts from the first time");
        let due = leaving.due().unwrap();
        assert!(leaving.over(due - Duration::from_secs(1)).is_empty());
        let [(over, uid, since)] = &leaving.over(due)[..] else { panic!() };
        assert_eq!((over, uid.as_str(), *since + Duration::from_secs(600)), (&key, "1", due));
        assert_eq!(leaving.due(), None);
        assert!(leaving.keep(&key, "1") && leaving.keep(&key, "2"), "another Service of that name");
        assert!(!leaving.forget(&key), "it was never called deleted");
        assert_eq!(leaving.keys().count(), 0);
    }

    #[tokio::test]
    async fn few_are_asked_about_at_once_and_each_once() {
        let mut leaving = leaving(0);
        for number in 0..20 {
            let key = ServiceKey::new("a", &(number % 15).to_string());
            leaving.ask(Deleted { key, uid: number.to_string(), version: None });
        }
        assert_eq!((leaving.asking.len(), leaving.keys().count()), (AT_ONCE, 15));
        assert!(leaving.forget(&ServiceKey::new("a", "0")));
        assert_eq!(leaving.keys().count(), 14);
    }
}
