//! The DNS names of all zones, as users see them.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use hickory_proto::rr::Name;
use serde::{Deserialize, Serialize};

use super::facts::{LinkFacts, NameProblems};
use super::reasons::{Cause, Reasons};
use super::view::{ViewState, override_of};
use crate::model::excerpt::paragraph;
use crate::model::link::{Link, LinkState};
use crate::model::names;
use crate::model::owner::{Owner, Source};
use crate::model::service_key::ServiceKey;
use crate::store::Store;
use crate::sync::events::RegardingKind;

/// Maximum number of names of a page.
pub const MAX_NAMES: usize = 1000;

/// Which names are shown.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct NameFilter {
    /// Only this name, or the wildcard that answers it.
    pub name: Option<String>,
    /// Only names of objects of this namespace.
    pub namespace: Option<String>,
    /// Only names that contain each of these words.
    pub search: Option<String>,
    /// Only names after this one.
    pub after: Option<String>,
}

/// A DNS name, and the objects that ask for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NameView {
    pub name: String,
    /// The source of the object that has the name, as in the flag `--sources`.
    pub source: String,
    /// The object that has the name. If several share it, the oldest.
    pub object: ObjectView,
    /// The hostname, or the addresses with commas; without both, the types of the records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    pub state: ViewState,
    /// Why the state isn't `Ready`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The further objects of the namespace that share the name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shared_with: Vec<ObjectView>,
    /// The objects that ask for the name and don't get it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub also_asking: Vec<ObjectView>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectView {
    pub kind: String,
    pub namespace: String,
    pub name: String,
}

impl ObjectView {
    fn new(kind: &str, key: &ServiceKey) -> Self {
        let (namespace, name) = key.parts();
        Self { kind: kind.to_owned(), namespace: namespace.to_owned(), name: name.to_owned() }
    }

    /// Returns the object as `Ingress shop/web`.
    #[must_use]
    pub fn text(&self) -> String {
        let Self { kind, namespace, name } = self;
        format!("{kind} {namespace}/{name}")
    }
}

/// A number of names, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamePage {
    pub items: Vec<NameView>,
    /// The name after which the next page begins, if there are more names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

impl LinkFacts {
    /// Returns the first names that a filter selects, [`MAX_NAMES`] at most.
    #[must_use]
    pub fn names(&self, filter: &NameFilter) -> NamePage {
        let problems = self.name_problems();
        let mut items: Vec<NameView> = Vec::new();
        let wanted = filter.name.as_deref().map(|name| name.trim_end_matches('.').to_ascii_lowercase());
        let all = all_names(&self.store).into_iter();
        // Each page reads all names: to sort them all for each of a hundred pages would take seconds.
        let number = if filter.namespace.is_none() { MAX_NAMES + 1 } else { usize::MAX };
        let names = match wanted {
            Some(name) => closest(&all.collect(), &name).into_iter().collect(),
            None => smallest(all.filter(|name| filter.takes(name)), number),
        };
        for name in &names {
            let Some(view) = self.name(name, &problems) else { continue };
            if filter.namespace.as_deref().is_some_and(|namespace| !view.is_of(namespace)) {
                continue;
            }
            if items.len() == MAX_NAMES {
                let next = items.last().map(|last| last.name.clone());
                return NamePage { items, next };
            }
            items.push(view);
        }
        let next = names.last().filter(|_| names.len() == number).map(|last| last.to_string());
        NamePage { items, next }
    }

    /// Returns what users see of a name; `None` if no object has it.
    fn name(&self, name: &str, problems: &NameProblems) -> Option<NameView> {
        let link = self.store.link_of_host(&Name::from_ascii(name).ok()?)?;
        let mut owners = self.store.owners_asking(name);
        // A default name of a load balancer goes before all others.
        let is_of_service = link.key.may_be_service();
        let position = match is_of_service {
            true => owners.iter().position(|owner| owner.is_service() && owner.key == link.key),
            false => (!owners.is_empty()).then_some(0),
        };
        let holder = position.map_or_else(|| Owner::from(&link.key), |position| owners.remove(position));
        let mut objects = self.objects(&holder, &link).into_iter();
        let (state, reason) = match holder.is_service() {
            true => self.state_of_link(&link, problems),
            false if holder.source == Source::INTERNAL => state_of_internal(&link),
            false => self.state_of_name(&holder, &link, problems),
        };
        Some(NameView {
            name: name.to_owned(),
            source: holder.source.clone().listed().word(),
            object: objects.next()?,
            target: shown_target(&link),
            state,
            reason,
            shared_with: objects.collect(),
            also_asking: owners.iter().flat_map(|owner| self.objects(owner, &link)).collect(),
        })
    }

    /// Returns the objects of an owner that ask for its name, the oldest first.
    fn objects(&self, owner: &Owner, link: &Arc<Link>) -> Vec<ObjectView> {
        if owner.is_service() {
            let is_led = owner.key == link.key && override_of(link).is_some();
            return vec![ObjectView::new(if is_led { "StableName" } else { "Service" }, &owner.key)];
        }
        if owner.source == Source::INTERNAL {
            return vec![ObjectView::new("Service", &owner.key)];
        }
        let objects = self.findings.asking.of(owner).into_iter();
        objects.map(|(kind, key)| ObjectView::new(kind.api().1, &key)).collect()
    }

    /// Returns the state of a name of an owner that isn't a load balancer, and why it isn't `Ready`.
    pub(super) fn state_of_name(
        &self,
        owner: &Owner,
        link: &Arc<Link>,
        problems: &NameProblems,
    ) -> (ViewState, Option<String>) {
        let mut reasons = reasons_of_target(link);
        reasons.extend_pairs(self.problem_of_target(link, problems));
        let asking = &self.findings.asking;
        let of_object = |(position, (kind, key)): (usize, (RegardingKind, ServiceKey))| {
            let text = asking.texts(key.cluster(), kind).get(&key)?;
            let text = paragraph(&text);
            // The first object is the one that is shown.
            Some(if position == 0 { text.to_string() } else { format!("{} {key}: {text}", kind.api().1) })
        };
        reasons.extend(Cause::Object, asking.of(owner).into_iter().enumerate().filter_map(of_object));
        let (state, reason) = reasons.judged();
        (state, reason.map(Cow::into_owned))
    }
}

/// Returns why an owner that isn't a load balancer of the home cluster has no new target.
fn reasons_of_target(link: &Link) -> Reasons {
    const REFUSED: &str = "the target that it names isn't allowed";
    let mut reasons = Reasons::default();
    match (&link.target, link.state) {
        (Some(_), LinkState::Stale) if link.refused => reasons.add(Cause::Kept, REFUSED),
        (Some(_), LinkState::Stale) => reasons.add(Cause::Kept, "its status is blank"),
        _ if link.has_data() => {}
        _ if link.refused => reasons.add(Cause::Refused, REFUSED),
        _ => reasons.add(Cause::Pending, "its status names no target yet"),
    }
    reasons
}

fn shown_target(link: &Link) -> Option<String> {
    let records = link.records.as_ref().filter(|records| !records.is_empty());
    link.target.as_ref().map(ToString::to_string).or_else(|| records.map(ToString::to_string))
}

/// Returns the state of an internal hostname of a load balancer.
fn state_of_internal(link: &Link) -> (ViewState, Option<String>) {
    let (state, why) = match &link.target {
        Some(_) => return (ViewState::Ready, None),
        None if link.refused => (ViewState::Refused, "its load balancer's cluster IP isn't allowed"),
        None => (ViewState::Pending, "its load balancer has no cluster IP"),
    };
    (state, Some(why.to_owned()))
}

impl NameView {
    fn is_of(&self, namespace: &str) -> bool {
        let Self { object, shared_with, also_asking, .. } = self;
        let mut all = shared_with.iter().chain(also_asking).chain([object]);
        all.any(|object| object.namespace == namespace)
    }
}

impl NameFilter {
    fn takes(&self, name: &str) -> bool {
        let Self { search, after, .. } = self;
        let mut words = search.iter().flat_map(|words| words.split_whitespace());
        after.as_deref().is_none_or(|after| *name > *after)
            && words.all(|word| name.contains(&word.to_ascii_lowercase()))
    }
}

/// Returns all names, and names that lead nowhere, such as the short name of a load balancer that another one has. Some
/// occur twice.
fn all_names(store: &Store) -> Vec<Arc<str>> {
    let mut all = store.asked_names();
    let zones = store.zones();
    let zones: Vec<String> =
        zones.iter().filter(|zone| zone.has_default_names()).map(|zone| names::text(&zone.origin)).collect();
    for link in store.links() {
        let (namespace, service) = link.key.parts();
        for zone in &zones {
            all.push(format!("{}.{zone}", names::dashed_label(namespace, service)).into());
            all.push(format!("{service}.{namespace}.{zone}").into());
        }
    }
    all
}

/// Returns a number of names, the first ones in their order.
fn smallest(all: impl Iterator<Item = Arc<str>>, number: usize) -> BTreeSet<Arc<str>> {
    let mut smallest = BTreeSet::new();
    for name in all {
        if smallest.len() < number || smallest.last().is_some_and(|last| name < *last) {
            smallest.insert(name);
            if smallest.len() > number {
                smallest.pop_last();
            }
        }
    }
    smallest
}

/// Returns the name itself, or the closest wildcard that matches it.
fn closest(all: &BTreeSet<Arc<str>>, name: &str) -> Option<Arc<str>> {
    let known = |name: &str| all.get(name).cloned();
    let mut rest = name;
    let parents = std::iter::from_fn(|| {
        rest = rest.split_once('.')?.1;
        Some(format!("*.{rest}"))
    });
    known(name).or_else(|| parents.filter_map(|wildcard| known(&wildcard)).next())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::link::{Annotations, InternalNames, Target};
    use crate::model::owner::{Claims, Zone};
    use crate::model::records::{RecordData, RecordKind, Records};
    use crate::store::{Input, OnGone};

    fn link(key: &str, address: &str) -> Arc<Link> {
        let (namespace, name) = key.split_once('/').unwrap();
        let target = Some(Target::Addresses([address.parse().unwrap()].into()));
        Arc::new(Link { target, ..Link::new(ServiceKey::new(namespace, name), "u") })
    }

    /// Facts about a load balancer and Ingresses in a zone.
    fn facts() -> LinkFacts {
        let sources = vec![Source::SERVICES, Source::INGRESSES];
        let zone = Zone { sources, ..(&Name::from_ascii("lb.internal.").unwrap()).into() };
        let store = Arc::new(Store::new(OnGone::Dropped).with_zones([zone]));
        store.set_known(Input::Services);
        let web = Owner::from(&ServiceKey::new("shop", "web"));
        let custom = Claims { created: 1, names: ["own.lb.internal".into()].into(), ..Default::default() };
        store.observe(&web, &custom, &link("shop/web", "192.0.2.1"), None);
        for (namespace, name, created, target) in [
            ("a", "x.lb.internal", 1, link("a/x.ingress", "192.0.2.2")),
            ("b", "x.lb.internal", 2, link("b/x.ingress", "192.0.2.3")),
            ("a", "own.lb.internal", 1, link("a/own.ingress", "192.0.2.4")),
            ("a", "*.w.lb.internal", 1, Arc::new(Link::new(ServiceKey::new("a", "w.ingress"), "u"))),
        ] {
            let owner = Owner { source: Source::INGRESSES, key: ServiceKey::new(namespace, name) };
            store.observe(
                &owner,
                &Claims { created, names: [name.into()].into(), ..Default::default() },
                &target,
                None,
            );
        }
        let facts = LinkFacts { needs_external_targets: false, ..LinkFacts::of(store) };
        facts.findings.asking.set(Source::INGRESSES, |name| {
            let object = |object: &str| (RegardingKind::Ingress, ServiceKey::new(name.namespace(), object));
            if name.name() == "x.lb.internal" {
                vec![object("one"), object("two")]
            } else {
                vec![object("one")]
            }
        });
        facts
    }

    fn shown(page: &NamePage) -> Vec<String> {
        let texts =
            |objects: &[ObjectView]| objects.iter().map(ObjectView::text).collect::<Vec<_>>().join(",");
        let line = |view: &NameView| {
            let NameView { name, source, object, target, state, shared_with, also_asking, .. } = view;
            let (target, object) = (target.as_deref().unwrap_or("none"), object.text());
            let (shared, also) = (texts(shared_with), texts(also_asking));
            format!("{name} {source} {object} {target} {state} [{shared}] [{also}]")
        };
        page.items.iter().map(line).collect()
    }

    #[test]
    fn names_of_all_sources_have_holders_and_further_askers() {
        let expected = [
            "*.w.lb.internal ingress Ingress a/one none Pending [] []",
            "own.lb.internal service Service shop/web 192.0.2.1 Ready [] [Ingress a/one]",
            "web-shop.lb.internal service Service shop/web 192.0.2.1 Ready [] []",
            "web.shop.lb.internal service Service shop/web 192.0.2.1 Ready [] []",
            "x.lb.internal ingress Ingress a/one 192.0.2.2 Ready [Ingress a/two] [Ingress b/one,Ingress b/two]",
        ];
        assert_eq!(shown(&facts().names(&NameFilter::default())), expected);
    }

    #[test]
    fn name_with_records_alone_is_ready_and_shows_their_types() {
        let mut records = Records::default();
        for (kind, text) in [(RecordKind::Mx, "0 ."), (RecordKind::Txt, "a")] {
            assert!(records.add(kind, None, RecordData::parse(kind, text).unwrap()));
        }
        let records = Some(Arc::new(records));
        let facts = facts();
        let owner = Owner { source: Source::INGRESSES, key: ServiceKey::new("a", "mail.lb.internal") };
        let claims = Claims { created: 1, names: ["mail.lb.internal".into()].into(), ..Default::default() };
        let link = Link { records, ..Link::new(ServiceKey::new("a", "mail.ingress"), "u") };
        facts.store.observe(&owner, &claims, &Arc::new(link), None);
        let filter = NameFilter { name: Some("mail.lb.internal".to_owned()), ..NameFilter::default() };
        assert_eq!(
            shown(&facts.names(&filter)),
            ["mail.lb.internal ingress Ingress a/one TXT, MX Ready [] []"]
        );
    }

    #[test]
    fn internal_hostnames_are_names_of_their_load_balancer() {
        let facts = facts();
        for (service, created, ips, refused) in
            [("one", 1, &["10.96.0.1"][..], false), ("two", 2, &["10.96.0.2"], false), ("new", 3, &[], true)]
        {
            let hostnames = [if created < 3 { "int.lb.internal" } else { "new.lb.internal" }];
            let internal = InternalNames {
                hostnames: hostnames.map(Arc::from).into(),
                addresses: ips.iter().map(|ip| ip.parse().unwrap()).collect(),
                refused,
            };
            let key = ServiceKey::new("int", service);
            let annotations = Annotations { internal: Some(internal.into()), ..Annotations::default() };
            let behind = Arc::new(Link { annotations, ..Link::new(key.clone(), "u") });
            let claims = Claims { created, names: Arc::default(), ..Default::default() };
            facts.store.observe(&Owner::from(&key), &claims, &behind, None);
        }
        let filter = |name: &str| NameFilter { name: Some(name.to_owned()), ..NameFilter::default() };
        let expected = ["int.lb.internal service Service int/one 10.96.0.1 Ready [] [Service int/two]"];
        assert_eq!(shown(&facts.names(&filter("int.lb.internal"))), expected);
        let page = facts.names(&filter("new.lb.internal"));
        assert_eq!(shown(&page), ["new.lb.internal service Service int/new none Refused [] []"]);
        assert_eq!(page.items[0].reason.as_deref(), Some("its load balancer's cluster IP isn't allowed"));
    }

    #[test]
    fn denied_parts_of_an_object_are_a_reason() {
        let facts = facts();
        let texts = facts.findings.asking.texts(None, RegardingKind::Ingress);
        let version = facts.version();
        texts.set(&ServiceKey::new("a", "one"), Some("the host \"z\" isn't served"));
        texts.set(&ServiceKey::new("a", "two"), Some("the host \"y\" isn't served"));
        assert_ne!(facts.version(), version);
        let page =
            facts.names(&NameFilter { name: Some("x.lb.internal".to_owned()), ..NameFilter::default() });
        let NameView { state, reason, .. } = &page.items[0];
        let expected = "the host \"z\" isn't served; Ingress a/two: the host \"y\" isn't served";
        assert_eq!((*state, reason.as_deref()), (ViewState::Degraded, Some(expected)));
    }

    #[test]
    fn name_filters_select_by_name_namespace_and_words() {
        let facts = facts();
        let number = |filter: NameFilter| facts.names(&filter).items.len();
        let found = |name: &str| {
            let page = facts.names(&NameFilter { name: Some(name.to_owned()), ..NameFilter::default() });
            page.items.first().map(|view| view.name.clone())
        };
        assert_eq!(found("X.lb.internal."), Some("x.lb.internal".to_owned()));
        assert_eq!(found("a.b.w.lb.internal"), Some("*.w.lb.internal".to_owned()));
        assert_eq!(found("absent.lb.internal"), None);
        let of =
            |namespace: &str| NameFilter { namespace: Some(namespace.to_owned()), ..NameFilter::default() };
        assert_eq!([number(of("shop")), number(of("b")), number(of("c"))], [3, 1, 0]);
        let with = |words: &str| NameFilter { search: Some(words.to_owned()), ..NameFilter::default() };
        assert_eq!([number(with("shop WEB")), number(with("")), number(with("shop absent"))], [2, 5, 0]);
    }

    #[test]
    fn names_come_in_pages() {
        let facts = facts();
        let names: Vec<String> = (0..2500).map(|number| format!("n{number:04}.lb.internal")).collect();
        for name in &names {
            let owner = Owner { source: Source::INGRESSES, key: ServiceKey::new("a", name) };
            let claims = Claims { created: 1, names: [(**name).into()].into(), ..Default::default() };
            facts.store.observe(&owner, &claims, &link("a/many.ingress", "192.0.2.9"), None);
        }
        let mut filter = NameFilter { search: Some("n".to_owned()), ..NameFilter::default() };
        let mut sizes = Vec::new();
        loop {
            let page = facts.names(&filter);
            sizes.push(page.items.len());
            filter.after = page.next;
            if filter.after.is_none() {
                break;
            }
        }
        assert_eq!(sizes.iter().sum::<usize>(), 2505);
        assert_eq!(sizes, [MAX_NAMES, MAX_NAMES, 505]);
    }
}
