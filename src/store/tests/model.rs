//! Compares the store with a naive model after random observations of owners of several kinds, in two zones. The model
//! computes holders, conflicts and answers anew from everything that was observed.
//!
//! A failure prints the seed. `STORE_MODEL_SEED=<seed>` runs this seed alone.

use std::collections::BTreeMap;

use super::*;
use crate::model::names::{self, HASH_DIGITS};
use crate::model::owner::{Claims, Owner, Source, Zone};

const PARTS: [&str; 3] = ["a", "a-a", "b"];
const HOSTS: [&str; 10] = ["a.a", "b.a", "a-a", "a-b", "x", "x.a", "*.a", "*.x", "y.x.a", "_t.a"];
const ASKED: [&str; 8] = ["a", "z.a", "z.x", "z.y.x.a", "_t.z.x", "z", "a-a-a", "b.b"];
const ZONES: [&str; 2] = ["lb.internal", "west.internal"];

/// What was observed of a Service.
#[derive(Clone, Debug)]
struct KnownService {
    uid: String,
    created: i64,
    hostnames: Vec<Arc<str>>,
    /// The name of the target; `None` once the Service is gone.
    target: Option<String>,
}

/// Everything that was observed.
#[derive(Clone, Debug, Default)]
struct Model {
    zones: Vec<(&'static str, Vec<Source>)>,
    services: BTreeMap<ServiceKey, KnownService>,
    others: BTreeMap<Owner, (Claims, usize)>,
    /// By external target: its link, and the hostnames recorded on it.
    recorded: BTreeMap<String, (ServiceKey, Vec<Arc<str>>)>,
    /// The targets of owners that aren't Services: many owners share one.
    gateways: Vec<String>,
}

fn source(cluster: Option<&str>, kind: &'static str) -> Source {
    Source { cluster: cluster.map(Arc::from), kind: kind.into() }
}

fn sources() -> [Source; 4] {
    [Source::SERVICES, source(None, "Ingress"), source(None, "HTTPRoute"), source(Some("west"), "Service")]
}

/// Returns what users see of a target.
fn shown(key: &ServiceKey, target: Option<&str>) -> String {
    format!("{key} {}", target.unwrap_or("without target"))
}

impl Model {
    /// Returns the place of a source for an absolute name, if the source may have it.
    fn place(&self, name: &str, source: &Source) -> Option<usize> {
        let within = |zone: &str| name.ends_with(&format!(".{zone}"));
        match self.zones.iter().find(|(zone, _)| within(zone)) {
            Some((_, sources)) => sources.iter().position(|it| it == source),
            None => (*source == Source::SERVICES).then_some(0),
        }
    }

    /// Returns whether load balancers have names in a zone.
    fn has_services(&self, zone: &str) -> bool {
        self.zones.iter().any(|(known, sources)| *known == zone && sources.contains(&Source::SERVICES))
    }

    /// Returns the owner that holds a custom hostname.
    fn holder(&self, name: &str) -> Option<Owner> {
        let services = self.services.iter().map(|(key, it)| (Owner::from(key), it.created, &*it.hostnames));
        let others = self.others.iter().map(|(owner, (it, _))| (owner.clone(), it.created, &*it.names));
        let asking = services.chain(others).filter(|(_, _, names)| names.iter().any(|it| **it == *name));
        let is_recorded = |owner: &Owner| {
            let on = |(key, names): &(ServiceKey, Vec<Arc<str>>)| {
                Owner::from(key) == *owner && names.iter().any(|it| **it == *name)
            };
            self.recorded.values().any(on)
        };
        let rank = |(owner, created, _): &(Owner, i64, _)| {
            (self.place(name, &owner.source), !is_recorded(owner), *created, owner.clone())
        };
        let may = |(owner, ..): &(Owner, i64, _)| self.place(name, &owner.source).is_some();
        asking.filter(may).min_by_key(rank).map(|(owner, ..)| owner)
    }

    /// Returns the Service with a default name, given as the part below a zone.
    fn default_holder(&self, relative: &str) -> Option<&ServiceKey> {
        let is_dotted = |key: &ServiceKey| format!("{}.{}", key.name(), key.namespace()) == relative;
        if let Some(key) = self.services.keys().find(|key| is_dotted(key)) {
            return Some(key);
        }
        let has_label = |key: &ServiceKey| names::dashed_label(key.namespace(), key.name()) == relative;
        let owns = |key: &ServiceKey, object| self.recorded.get(&object).is_some_and(|it| it.0 == *key);
        // A Service keeps a hashed name, and lets the default names go.
        let keeps_hashed =
            |key: &ServiceKey| HASH_DIGITS.iter().any(|digits| owns(key, hashed_name(key, *digits)));
        let owns = |key: &ServiceKey| owns(key, key.external_target());
        let claims =
            self.services.iter().filter(|(key, _)| has_label(key) && (owns(key) || !keeps_hashed(key)));
        claims.min_by_key(|(key, it)| (!owns(key), it.created, (*key).clone())).map(|(key, _)| key)
    }

    fn is_default(&self, name: &str) -> bool {
        self.zones.iter().filter(|(zone, _)| self.has_services(zone)).any(|(zone, _)| {
            let relative = name.strip_suffix(zone).and_then(|relative| relative.strip_suffix('.'));
            relative.is_some_and(|relative| self.default_holder(relative).is_some())
        })
    }

    /// Returns what is behind a custom hostname.
    fn custom(&self, name: &str) -> Option<String> {
        let owner = self.holder(name).filter(|_| !self.is_default(name))?;
        if let Some((_, gateway)) = self.others.get(&owner) {
            return Some(shown(&gateway_key(*gateway), Some(&self.gateways[*gateway])));
        }
        Some(shown(&owner.key, self.services[&owner.key].target.as_deref()))
    }

    fn default_names(&self) -> impl Iterator<Item = String> {
        let names = self.services.keys().flat_map(|key| {
            let (namespace, name) = key.parts();
            [format!("{name}.{namespace}"), names::dashed_label(namespace, name)]
        });
        names.filter(|name| self.default_holder(name).is_some())
    }

    /// Returns whether a name exists, given as the part below a zone.
    fn exists(&self, relative: &str, zone: &str) -> bool {
        let is_at = |name: &str, domain: &str| name == domain || name.ends_with(&format!(".{domain}"));
        let absolute = format!("{relative}.{zone}");
        let asked = self.services.values().flat_map(|it| it.hostnames.iter());
        let mut asked = asked.chain(self.others.values().flat_map(|(it, _)| it.names.iter()));
        self.has_services(zone) && self.default_names().any(|name| is_at(&name, relative))
            || asked.any(|name| is_at(name, &absolute) && self.holder(name).is_some())
    }

    /// Returns the answer about a name, given as the part below a zone.
    fn answer(&self, relative: &str, zone: &str) -> String {
        if let Some(key) = self.default_holder(relative).filter(|_| self.has_services(zone)) {
            return shown(key, self.services[key].target.as_deref());
        }
        if let Some(answer) = self.custom(&format!("{relative}.{zone}")) {
            return answer;
        }
        if self.exists(relative, zone) {
            return "empty".to_owned();
        }
        let mut rest = relative;
        // RFC 4592 section 3.3.1: only the wildcard at the closest encloser counts.
        while !rest.starts_with('_') {
            let parent = rest.split_once('.').map_or("", |(_, parent)| parent);
            let below = if parent.is_empty() { zone.to_owned() } else { format!("{parent}.{zone}") };
            if let Some(answer) = self.custom(&format!("*.{below}")) {
                return answer;
            }
            if parent.is_empty() || self.exists(parent, zone) {
                break;
            }
            rest = parent;
        }
        "nothing".to_owned()
    }
}

fn hashed_name(key: &ServiceKey, digits: usize) -> String {
    names::external_target_hashed(key.namespace(), key.name(), digits)
}

fn gateway_key(number: usize) -> ServiceKey {
    ServiceKey::new("gateways", &format!("gateway-{number}"))
}

fn gateway(number: usize, host: &str) -> Arc<Link> {
    let target = Some(Target::Hostname(super::host(&format!("{host}."))));
    Arc::new(Link { target, ..Link::new(gateway_key(number), "") })
}

/// The store, the model, and what was kept of earlier look-ups.
struct World {
    random: StdRng,
    store: Store,
    model: Model,
    gateways: Vec<Arc<Link>>,
    kept: Vec<(String, &'static str, Lookup, Option<NameDependency>)>,
    feed: broadcast::Receiver<Arc<[LinkChange]>>,
    /// What the feed has told so far.
    told: BTreeMap<Owner, Arc<Link>>,
    /// The answers of the last check, by name, and the serial then.
    answers: BTreeMap<String, String>,
    serial: u64,
    has_versions: bool,
    step: usize,
}

impl World {
    fn new(seed: u64) -> Self {
        let gateways: Vec<String> = (0..2).map(|number| format!("g{number}.example")).collect();
        let model = Model { gateways: gateways.clone(), ..Model::default() };
        let gateways = gateways.iter().enumerate().map(|(number, host)| gateway(number, host)).collect();
        let (mut random, store) = (StdRng::seed_from_u64(seed), Store::new(OnGone::Kept));
        let has_versions = random.random_bool(0.8);
        if has_versions {
            store.continue_at(0);
        }
        store.set_known(Input::Services);
        let mut world = Self {
            random,
            model,
            gateways,
            kept: Vec::new(),
            feed: store.subscribe(),
            told: BTreeMap::new(),
            answers: BTreeMap::new(),
            serial: store.serial(),
            has_versions,
            step: 0,
            store,
        };
        world.set_zones();
        world
    }

    fn key(&mut self) -> ServiceKey {
        let mut part = || PARTS[self.random.random_range(0..PARTS.len())];
        ServiceKey::new(part(), part())
    }

    /// Returns the resourceVersion of the next observation, which may be older than those before: each kind of object has a
    /// watch of its own.
    fn version(&mut self) -> Option<u64> {
        let late = self.random.random_range(0..4);
        self.has_versions.then(|| (self.step as u64).saturating_sub(late))
    }

    fn hostnames(&mut self) -> Vec<Arc<str>> {
        let count = self.random.random_range(0..4);
        let all =
            ZONES.iter().chain(&["elsewhere"]).flat_map(|zone| HOSTS.map(|host| format!("{host}.{zone}")));
        let mut all: Vec<Arc<str>> = all.map(Arc::from).collect();
        all.shuffle(&mut self.random);
        all.truncate(count);
        all.sort();
        all
    }

    fn set_zones(&mut self) {
        let mut zones = Vec::new();
        for zone in ZONES {
            let mut order = sources().to_vec();
            order.shuffle(&mut self.random);
            order.truncate(self.random.random_range(0..=order.len()));
            zones.push((zone, order));
        }
        zones.truncate(self.random.random_range(1..=zones.len()));
        self.store.set_zones(zones.iter().map(|(zone, sources)| Zone {
            cluster: None,
            origin: names::wire_of(zone).unwrap().into(),
            apex: Box::default(),
            sources: sources.clone(),
            ingress_classes: Vec::new(),
            gateway_classes: Vec::new(),
            k8s_gateway: None,
        }));
        let before = std::mem::replace(&mut self.model.zones, zones);
        // A zone with or without default names is in another block, which keeps answers of its own.
        let before = Model { zones: before, ..Model::default() };
        self.kept.retain(|(_, zone, ..)| before.has_services(zone) == self.model.has_services(zone));
    }

    fn apply_service(&mut self) {
        let (key, hostnames, step) = (self.key(), self.hostnames(), self.step);
        let created = self.random.random_range(0..3);
        let target = format!("t{step}.example");
        // A recreated Service keeps its rank as long as its link isn't forgotten.
        let known = self.model.services.get(&key);
        let rank = known.map_or(created, |known| known.created);
        let is_same = known.is_some_and(|known| known.target.is_some()) && self.random.random_bool(0.7);
        let uid = known.filter(|_| is_same).map_or_else(|| step.to_string(), |known| known.uid.clone());
        let resource_version = self.version();
        self.store.apply(ObservedService {
            created: Some(created),
            resource_version,
            annotations: Annotations { hostnames: hostnames.clone().into(), ..Default::default() },
            ..seen(key.namespace(), key.name(), &uid, &[&format!("{target}.")])
        });
        let known = KnownService { uid, created: rank, hostnames, target: Some(target) };
        self.model.services.insert(key, known);
    }

    fn end_service(&mut self) {
        let (key, version) = (self.key(), self.version());
        match self.model.services.get_mut(&key) {
            Some(known) if known.target.is_some() => {
                self.store.gone(&key, &known.uid, version, Instant::now());
                known.target = None;
            }
            Some(_) => {
                self.store.forget(&key);
                self.model.services.remove(&key);
            }
            None => assert!(self.store.forget(&key).is_none()),
        }
    }

    fn observe_other(&mut self) {
        let sources = sources();
        let number = self.random.random_range(1..sources.len());
        let owner = Owner { source: sources[number].clone(), key: self.key() };
        if self.random.random_bool(0.3) {
            self.store.forget(&owner);
            self.model.others.remove(&owner);
            return;
        }
        let (created, gateway) = (self.random.random_range(0..3), self.random.random_range(0..2));
        let claims = Claims { created, names: self.hostnames().into(), ..Default::default() };
        // Another cluster has other resourceVersions.
        let version = self.version().filter(|_| owner.source.cluster.is_none());
        self.store.observe(&owner, &claims, &self.gateways[gateway], version);
        let (changes, serial) = (self.feed.len(), self.store.serial());
        self.store.observe(&owner, &claims, &self.gateways[gateway], version);
        assert_eq!((self.feed.len(), self.store.serial()), (changes, serial), "nothing has changed");
        self.model.others.insert(owner, (claims, gateway));
    }

    /// Gives another target to a gateway, and with it to all its owners.
    fn move_gateway(&mut self) {
        let number = self.random.random_range(0..2);
        let host = format!("g{number}-{}.example", self.step);
        self.gateways[number] = gateway(number, &host);
        self.model.gateways[number] = host;
        let version = self.version();
        for (owner, (claims, _)) in self.model.others.iter().filter(|(_, (_, it))| *it == number) {
            self.store.observe(owner, claims, &self.gateways[number], version);
        }
    }

    fn record(&mut self) {
        let (key, other) = (self.key(), self.key());
        let object = match self.random.random_range(0..6) {
            digits @ 0..3 => hashed_name(&other, HASH_DIGITS[digits]),
            _ => other.external_target(),
        };
        if self.random.random_bool(0.4) {
            self.store.set_owner(&object, None, &[]);
            self.model.recorded.remove(&object);
        } else {
            let hostnames = self.hostnames();
            self.store.set_owner(&object, Some(&key), &hostnames);
            self.model.recorded.insert(object, (key, hostnames));
        }
    }

    fn change(&mut self) {
        match self.random.random_range(0..20) {
            0..6 => self.apply_service(),
            6..10 => self.end_service(),
            10..15 => self.observe_other(),
            15..18 => self.record(),
            18 => self.move_gateway(),
            _ => self.set_zones(),
        }
    }

    fn find(&self, relative: &str, zone: &str) -> (Lookup, Option<NameDependency>) {
        let wire = |name: &str| names::wire_of(name).unwrap();
        let has_services = self.model.has_services(zone);
        let (found, names) = self.store.find_to_keep(&wire(relative), &wire(zone), has_services);
        assert_eq!(found, self.store.find(&wire(relative), &wire(zone), has_services));
        (found, names)
    }

    /// Compares all answers, the hostnames of all Services, and what is kept of earlier answers.
    fn check(&mut self, context: &str) {
        let relatives = PARTS.iter().flat_map(|name| PARTS.map(|namespace| format!("{name}.{namespace}")));
        let relatives: Vec<String> = relatives.collect();
        let labels = relatives.iter().map(|name| name.replace('.', "-"));
        let hosts = HOSTS.iter().chain(&ASKED).map(ToString::to_string).chain(labels);
        let relatives: HashSet<String> = hosts.chain(relatives.iter().cloned()).collect();
        let mut answers = BTreeMap::new();
        for (zone, _) in &self.model.zones {
            for relative in &relatives {
                let answer = match self.find(relative, zone).0 {
                    Lookup::Link(link) => {
                        shown(&link.key, link.target.as_ref().map(Target::to_string).as_deref())
                    }
                    Lookup::EmptyNonTerminal => "empty".to_owned(),
                    Lookup::Nothing => "nothing".to_owned(),
                };
                assert_eq!(answer, self.model.answer(relative, zone), "{context}: {relative}.{zone}");
                answers.insert(format!("{relative}.{zone}"), answer);
            }
        }
        self.check_serial(answers, context);
        assert_eq!(self.store.links().len(), self.model.services.len(), "{context}");
        for (key, known) in &self.model.services {
            let holds = |name: &&Arc<str>| {
                self.model.holder(name) == Some(Owner::from(key)) && !self.model.is_default(name)
            };
            let held: Vec<Arc<str>> = known.hostnames.iter().filter(holds).cloned().collect();
            let link = self.store.get(key).unwrap();
            assert_eq!(*link.hostnames, *held, "{context}: {key}");
            assert!(!link.is_outdated(), "{context}: {key}");
        }
        let others: BTreeMap<Owner, Claims> =
            self.store.other_owners().into_iter().map(|(owner, claims, _)| (owner, claims)).collect();
        for (owner, (claims, _)) in &self.model.others {
            let known = others.get(owner).unwrap();
            assert_eq!(known.names, claims.names, "{context}: {owner}");
        }
        assert_eq!(others.len(), self.model.others.len(), "{context}");
        self.check_feed(context);
        self.check_kept(context);
    }

    /// The serial grows whenever an answer changes, and never decreases.
    fn check_serial(&mut self, answers: BTreeMap<String, String>, context: &str) {
        let before = std::mem::replace(&mut self.answers, answers);
        let last = std::mem::replace(&mut self.serial, self.store.serial());
        assert!(self.serial >= last, "{context}: {} after {last}", self.serial);
        let is_other = |(name, now): &(&String, &String)| before.get(*name).is_some_and(|it| it != *now);
        if let Some((name, now)) = self.answers.iter().find(is_other) {
            assert!(self.serial > last, "{context}: {name} is {now} now, and was {}", before[name]);
        }
    }

    /// Each change begins where the last one of its owner has ended, and together they lead to the present state.
    fn check_feed(&mut self, context: &str) {
        let batches = std::iter::from_fn(|| self.feed.try_recv().ok());
        for LinkChange { owner, before, after } in batches.flat_map(|changes| changes.to_vec()) {
            assert_eq!(self.told.get(&owner), before.as_ref(), "{context}: {owner}");
            match after {
                Some(after) => drop(self.told.insert(owner, after)),
                None => drop(self.told.remove(&owner)),
            }
        }
        let links = self.store.links().into_iter().map(|link| (Owner::from(&link.key), link));
        let others = self.store.other_owners().into_iter().map(|(owner, _, target)| (owner, target));
        assert_eq!(self.told, links.chain(others).collect(), "{context}");
    }

    /// An answer that is kept is current only while a new look-up gives the same.
    fn check_kept(&mut self, context: &str) {
        let is_current = |found: &Lookup, names: &Option<NameDependency>| {
            let is_link_current = !matches!(found, Lookup::Link(link) if link.is_outdated());
            is_link_current && names.as_ref().is_none_or(NameDependency::is_current)
        };
        let mut kept = std::mem::take(&mut self.kept);
        kept.retain(|(relative, zone, found, names)| {
            let is_kept = is_current(found, names);
            assert!(!is_kept || self.find(relative, zone).0 == *found, "{context}: kept {relative}.{zone}");
            is_kept
        });
        for _ in 0..4 {
            let all = [&HOSTS[..], &ASKED[..]].concat();
            let relative = all[self.random.random_range(0..all.len())].to_owned();
            let zone = self.model.zones[self.random.random_range(0..self.model.zones.len())].0;
            let (found, names) = self.find(&relative, zone);
            assert!(is_current(&found, &names), "{context}: {relative}.{zone} can be kept");
            kept.push((relative, zone, found, names));
        }
        self.kept = kept;
    }
}

#[test]
fn random_owners_match_the_naive_model() {
    let given = std::env::var("STORE_MODEL_SEED").ok().and_then(|seed| seed.parse::<u64>().ok());
    let seeds = given.map_or_else(|| (0..40).map(|_| rand::random()).collect(), |seed| vec![seed]);
    for seed in seeds {
        let mut world = World::new(seed);
        for step in 0..120 {
            world.step = step;
            world.change();
            world.check(&format!("STORE_MODEL_SEED={seed}, step {step}"));
        }
    }
}
