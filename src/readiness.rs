//! What keeps sync from its work at present: `/ready` shows it.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwapOption;
use jiff::Timestamp;
use parking_lot::Mutex;

use crate::model::object_texts::ObjectTexts;
use crate::model::owner::Source;
use crate::model::service_key::ServiceKey;

/// Lists that the API server forbids.
#[derive(Debug)]
pub struct ForbiddenLists {
    pub note: String,
    /// The namespace and the note of each list; no namespace for a list of all namespaces.
    lists: Vec<(Option<String>, Arc<str>)>,
}

impl ForbiddenLists {
    /// Returns the lists with these namespaces, reasons and effects, if there are any. The note has the first reason and
    /// effect in full.
    #[must_use]
    pub fn of<'a>(lists: impl Iterator<Item = (Option<&'a str>, &'a str, &'a str)>) -> Option<Self> {
        let lists: Vec<_> = lists.collect();
        let others = match lists.len() {
            0 | 1 => String::new(),
            number => format!(" (and in {} more namespaces)", number - 1),
        };
        let (_, reason, effect) = lists.first()?;
        let note = format!("{reason}{others}; {effect}");
        let of_list = |(namespace, reason, effect): (Option<&str>, &str, &str)| {
            (namespace.map(ToOwned::to_owned), format!("{reason}; {effect}").into())
        };
        Some(Self { note, lists: lists.into_iter().map(of_list).collect() })
    }

    /// Returns why an object of this key isn't read; `None` if it is.
    #[must_use]
    pub fn note_for(&self, key: &ServiceKey) -> Option<&Arc<str>> {
        let mut lists = self.lists.iter();
        let found =
            lists.find(|(namespace, _)| namespace.as_deref().is_none_or(|it| *it == *key.namespace()));
        found.map(|(_, note)| note)
    }
}

/// The absence of a leader, as far as this replica knows.
#[derive(Debug, PartialEq, Eq)]
pub struct LeaderAbsence {
    pub note: String,
    pub since: Timestamp,
}

type Note = Box<dyn Fn(&Readiness) -> Option<String> + Send + Sync>;

/// Returns a note about the age of what was read, while the API server can't be reached or is silent.
#[derive(Default)]
struct AgeNote(OnceLock<Note>);

impl fmt::Debug for AgeNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AgeNote")
    }
}

/// A source of names, a kind of its objects, and their namespace, if not all are read.
pub type SourceList = (Source, &'static str, Option<String>);

/// The notes of sync, each a clause or a sentence.
#[derive(Debug, Default)]
pub struct Readiness {
    age: AgeNote,
    /// Why the first list of load balancers isn't complete yet; `None` if that isn't known.
    pub list: ArcSwapOption<Cow<'static, str>>,
    /// Why manifests aren't used as they are now.
    pub manifests: ArcSwapOption<String>,
    /// Why load balancers that were listed before can't be read any more.
    pub load_balancers: ArcSwapOption<ForbiddenLists>,
    /// Why the objects of other sources of names can't be read.
    pub sources: Mutex<BTreeMap<SourceList, String>>,
    /// Why StableNames can't be listed.
    pub stable_names: ArcSwapOption<ForbiddenLists>,
    /// Why the last targets of StableNames stay: they went with their CRD.
    pub crd: ArcSwapOption<String>,
    /// That this replica takes part in an election and knows no leader.
    pub election: ArcSwapOption<LeaderAbsence>,
    /// That another process leads, and this one, which takes part in no election, writes nothing.
    pub other_leader: ArcSwapOption<String>,
    /// What keeps external targets from being written.
    pub writes: ArcSwapOption<String>,
    /// Why statuses of StableNames can't be written; only the leader knows it.
    pub unwritten: ObjectTexts,
}

impl Readiness {
    /// Sets what tells the age of what was read. The first call counts.
    pub fn set_age(&self, note: impl Fn(&Self) -> Option<String> + Send + Sync + 'static) {
        // A second value is dropped: a process has one source of links.
        let _ = self.age.0.set(Box::new(note));
    }

    /// Returns a note about the age of what was read, while the API server can't be reached or is silent.
    #[must_use]
    pub fn age(&self) -> Option<String> {
        self.age.0.get()?(self)
    }

    /// Returns the notes about what is old, or else about what can't be read or written: an old state explains these.
    #[must_use]
    pub fn of_view(&self) -> Vec<String> {
        let Some(age) = self.age() else { return self.of_cluster() };
        let election = self.election.load_full().map(|absence| absence.note.clone());
        [age].into_iter().chain(election).collect()
    }

    /// Returns the notes about what can't be read from the API server or written. DNS answers anyway.
    #[must_use]
    pub fn of_cluster(&self) -> Vec<String> {
        let text = |note: &ArcSwapOption<String>| note.load_full().map(|note| note.to_string());
        let forbidden = |lists: &ArcSwapOption<ForbiddenLists>| Some(lists.load_full()?.note.clone());
        let notes = [
            self.election.load_full().map(|absence| absence.note.clone()),
            text(&self.other_leader),
            forbidden(&self.load_balancers),
            text(&self.crd),
            forbidden(&self.stable_names),
            text(&self.writes),
        ];
        notes.into_iter().flatten().collect()
    }

    /// Returns the notes about the sources of names that can't be read, as far as they are meant, and about those of
    /// `unlisted` that have no other note.
    #[must_use]
    pub fn of_sources<'a>(
        &self,
        unlisted: impl IntoIterator<Item = &'a Source>,
        is_meant: impl Fn(&Source) -> bool,
    ) -> Vec<String> {
        let known = self.sources.lock();
        let mut by_source: BTreeMap<&Source, (String, usize)> = BTreeMap::new();
        for ((source, ..), why) in known.iter().filter(|((source, ..), _)| is_meant(source)) {
            by_source.entry(source).or_insert_with(|| (why.clone(), 0)).1 += 1;
        }
        let waiting = unlisted.into_iter().filter(|source| match &source.cluster {
            Some(cluster) => by_source.keys().all(|known| known.cluster.as_ref() != Some(cluster)),
            None => !by_source.contains_key(&source.general()),
        });
        let waiting: BTreeSet<String> = waiting.map(Source::unread).collect();
        let note = |(why, lists): (String, usize)| match lists {
            1 => why,
            more => format!("{why} (other such lists: {})", more - 1),
        };
        by_source.into_values().map(note).chain(waiting).collect()
    }

    /// Forgets what keeps the objects of a source from being read.
    pub fn forget_source(&self, source: &Source) {
        self.sources.lock().retain(|(known, ..), _| known != source);
    }

    /// Returns the note about the StableNames that don't move.
    #[must_use]
    pub fn of_statuses(&self) -> Option<String> {
        let number = self.unwritten.number();
        (number > 0)
            .then(|| format!("StableNames that don't move, because their status can't be written: {number}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_about_a_source_end_with_it() {
        let readiness = Readiness::default();
        let waiting = Some(&Source::GATEWAYS);
        assert_eq!(readiness.of_sources(waiting, |_| true), ["the Gateway objects haven't been read yet"]);
        for (source, kind, namespace) in [
            (Source::INGRESSES, "Ingress", None),
            (Source::GATEWAYS, "GRPCRoute", Some("a")),
            (Source::GATEWAYS, "HTTPRoute", Some("a")),
        ] {
            let why = format!("can't list {kind}");
            readiness.sources.lock().insert((source, kind, namespace.map(str::to_owned)), why);
        }
        let of_routes = "can't list GRPCRoute (other such lists: 1)";
        assert_eq!(readiness.of_sources(waiting, |_| true), [of_routes, "can't list Ingress"]);
        readiness.forget_source(&Source::GATEWAYS);
        assert_eq!(readiness.of_sources(None, |_| true), ["can't list Ingress"]);
        let of_west = |source: Source| Source { cluster: Some("west".into()), ..source };
        let remote = [Source::SERVICES, Source::INGRESSES].map(of_west);
        let unread = "cluster west isn't read";
        assert_eq!(readiness.of_sources(&remote, |_| true), ["can't list Ingress", unread]);
        let why = "can't reach west".to_owned();
        readiness.sources.lock().insert((remote[0].clone(), "Service", None), why);
        assert_eq!(readiness.of_sources(&remote, |_| true), ["can't list Ingress", "can't reach west"]);
        let is_remote = |source: &Source| source.cluster.is_some();
        assert_eq!(readiness.of_sources(&remote, is_remote), ["can't reach west"]);
    }

    #[test]
    fn note_of_a_forbidden_list_has_its_own_effect() {
        let lists = [(Some("a"), "no a", "nothing is written"), (Some("b"), "no b", "names stay")];
        let forbidden = ForbiddenLists::of(lists.into_iter()).unwrap();
        assert_eq!(forbidden.note, "no a (and in 1 more namespaces); nothing is written");
        let note = |namespace| forbidden.note_for(&ServiceKey::new(namespace, "web")).map(|note| &**note);
        assert_eq!(note("a"), Some("no a; nothing is written"));
        assert_eq!(note("b"), Some("no b; names stay"));
        assert_eq!(note("c"), None);
    }
}
