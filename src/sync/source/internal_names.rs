//! Tells load balancers which of their internal hostnames other objects have.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::model::excerpt::examples;
use crate::model::link::LinkChange;
use crate::model::owner::{Owner, Source};
use crate::model::service_key::ServiceKey;
use crate::store::{Input, Store};
use crate::sync::events::Reason;
use crate::sync::events::link_log::LinkReporter;

/// The internal hostnames that load balancers ask for and don't have.
#[derive(Debug, Default)]
pub struct LostInternalNames {
    /// By load balancer: the names about which it was told.
    told: BTreeMap<ServiceKey, Vec<Arc<str>>>,
    is_started: bool,
}

impl LostInternalNames {
    /// Takes what is so when the load balancers become known: it is logged without Events.
    pub fn start(&mut self, store: &Store, reporter: &LinkReporter) {
        if !self.is_started && store.is_known(Input::Services) {
            self.check_all(store, reporter);
            self.is_started = true;
        }
    }

    /// Takes a change of the store.
    pub fn on_change(&mut self, change: &LinkChange, store: &Store, reporter: &LinkReporter) {
        if change.owner.source == Source::INTERNAL && self.is_started {
            self.check(&change.owner.key, store, reporter);
        }
    }

    /// Checks all load balancers.
    pub fn check_all(&mut self, store: &Store, reporter: &LinkReporter) {
        let mut keys = store.owners_of(&Source::INTERNAL);
        keys.extend(self.told.keys().cloned());
        keys.iter().for_each(|key| self.check(key, store, reporter));
    }

    fn check(&mut self, key: &ServiceKey, store: &Store, reporter: &LinkReporter) {
        let lost = store.lost_names(&Owner { source: Source::INTERNAL, key: key.clone() });
        let told = match lost.is_empty() {
            true => self.told.remove(key),
            false => self.told.insert(key.clone(), lost.clone()),
        };
        let told = told.unwrap_or_default();
        let new: Vec<Arc<str>> = lost.into_iter().filter(|name| !told.contains(name)).collect();
        if new.is_empty() {
            return;
        }
        let note =
            format!("it doesn't get internal DNS names that another object has: {}", examples(new.iter()));
        reporter.log.warn(key, format_args!("link {key}: {note}"));
        if let Some(link) = store.get(key).filter(|_| self.is_started) {
            reporter.recorder.about(&link, Reason::Conflict, &note);
        }
    }
}
