//! The model: what lb-linker's external targets and answers have to be at a quiet point, as a pure function of
//! what was done to the cluster. It knows no watch, no queue and no write, only DESIGN's rules.

use std::collections::{BTreeMap, BTreeSet};

use lb_linker::names;
use lb_linker::store::ServiceKey;
use lb_linker::sync::plan::OnDelete;

use super::operations::{Action, Operation, Outcome};
use super::world::{Balancer, Follower, Front, Ingress, Kind, Shape, Target};

/// The zone of the tests.
const ZONE: &str = "lb.internal";
/// Where tombstones point.
const TOMBSTONE: &str = "deleted.lb.internal";

/// What lb-linker knows of a load balancer.
#[derive(Clone, Debug)]
pub struct Link {
    uid: String,
    /// When the first Service of this key was created; `None` for one that lb-linker never saw.
    created: Option<i64>,
    pub target: Option<Target>,
    pub gone: bool,
    port: u16,
}

/// The target namespace as it is: what tells it from what the model says is a defect.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// Ours, by name and by the link that they are labelled for.
    pub ours: BTreeMap<(String, ServiceKey), Shape>,
    /// Everything else, by kind and name, with its uid and resourceVersion.
    pub strangers: BTreeMap<String, String>,
    /// Everything, with uid and resourceVersion.
    pub versions: BTreeMap<String, String>,
    /// Where the followers lead.
    pub followers: BTreeMap<ServiceKey, String>,
}

impl Observed {
    fn of<'a>(&'a self, key: &'a ServiceKey) -> impl Iterator<Item = (&'a String, &'a Shape)> {
        self.ours.iter().filter(move |((_, owner), _)| owner == key).map(|((name, _), shape)| (name, shape))
    }
}

/// A stranger's Service of a link's name.
#[derive(Clone, Debug)]
pub struct Stranger {
    pub version: String,
    /// An ExternalName Service that nobody manages.
    adoptable: bool,
}

#[derive(Clone, Debug)]
pub struct Model {
    on_delete: OnDelete,
    /// Whether lb-linker is there to see what happens.
    running: bool,
    pub balancers: BTreeMap<ServiceKey, Balancer>,
    links: BTreeMap<ServiceKey, Link>,
    /// Our external targets at the last quiet point.
    objects: BTreeMap<(String, ServiceKey), Shape>,
    /// For each link how its external target may have been since the last quiet point.
    since: BTreeMap<ServiceKey, Vec<Shape>>,
    pub strangers: BTreeMap<String, Stranger>,
    pub followers: BTreeMap<ServiceKey, Follower>,
}

// === what happens ===

impl Model {
    pub fn new(on_delete: OnDelete) -> Self {
        Self {
            on_delete,
            running: false,
            balancers: BTreeMap::new(),
            links: BTreeMap::new(),
            objects: BTreeMap::new(),
            since: BTreeMap::new(),
            strangers: BTreeMap::new(),
            followers: BTreeMap::new(),
        }
    }

    /// An operation was carried out.
    pub fn apply(&mut self, operation: &Operation, outcome: &Outcome) {
        let Operation { key, action } = operation;
        match action {
            Action::Create | Action::Recreate => {
                self.balancers.remove(key);
                self.observe(key);
                self.balancers.insert(
                    key.clone(),
                    Balancer {
                        uid: outcome.uid.clone(),
                        created: outcome.created,
                        port: 80,
                        ..Balancer::default()
                    },
                );
                self.observe(key);
            }
            Action::Delete | Action::Release => {
                self.balancers.remove(key);
                self.observe(key);
            }
            Action::DeleteObject => self.removed_by_hand(key, outcome),
            Action::DeleteService => self.changed_by_hand(key, outcome, |shape| shape.front = None),
            Action::Misdirect(host) => self.changed_by_hand(key, outcome, |shape| {
                shape.front = Some(Front::ExternalName(host.clone()));
            }),
            Action::Distort(_) => self.changed_by_hand(key, outcome, |shape| {
                shape.front = Some(Front::Other(String::new(), None));
            }),
            Action::DeleteSlice => self.changed_by_hand(key, outcome, |shape| shape.ipv4 = None),
            Action::EditSlice(ip) => self.changed_by_hand(key, outcome, |shape| {
                if let Some((ips, _)) = &mut shape.ipv4 {
                    *ips = vec![*ip];
                }
            }),
            // It is without an owner until lb-linker labels it again.
            Action::StripSlice => self.changed_by_hand(key, outcome, |shape| shape.ipv4 = None),
            Action::StrangerComes | Action::AdoptableComes => {
                self.removed_by_hand(key, outcome);
                if outcome.done {
                    let adoptable = matches!(action, Action::AdoptableComes);
                    let version = outcome.version.clone();
                    self.strangers.insert(first_choice(key), Stranger { version, adoptable });
                }
            }
            Action::StrangerGoes => {
                self.strangers.remove(&first_choice(key));
                if let Some(link) = self.links.get(key).filter(|_| self.running)
                    && let Some(target) = &link.target
                {
                    let shape = Shape::of(target, link.port);
                    self.note(key, shape);
                }
            }
            Action::Follow { source, lead } => {
                let follower = Follower { source: source.clone(), may_lead_to: vec![lead.clone()] };
                self.followers.insert(key.clone(), follower);
            }
            Action::Unfollow => drop(self.followers.remove(key)),
            _ => {
                let Some(balancer) = self.balancers.get_mut(key) else { return };
                match action {
                    Action::SetHosts(hosts) => {
                        balancer.ingress = Ingress { hosts: hosts.clone(), ips: vec![] }
                    }
                    Action::SetAddresses(ips) => {
                        balancer.ingress = Ingress { hosts: vec![], ips: ips.clone() }
                    }
                    Action::Blank | Action::SetUnservable(_) => balancer.ingress = Ingress::default(),
                    Action::SetPort(port) => balancer.port = *port,
                    Action::ChangeType(kind) => {
                        balancer.kind = *kind;
                        balancer.ingress = Ingress::default();
                    }
                    Action::OptOut => balancer.opted_out = true,
                    Action::OptIn => balancer.opted_out = false,
                    Action::Hide => balancer.hidden = true,
                    Action::Show => balancer.hidden = false,
                    Action::Hold => balancer.terminating = true,
                    Action::AllowFrom(all) => balancer.followable = *all,
                    Action::Claim(name) => balancer.claims.clone_from(name),
                    _ => unreachable!("handled above"),
                }
                self.observe(key);
            }
        }
    }

    /// lb-linker ends, or is killed: from now on it sees nothing.
    pub fn stop(&mut self) {
        self.running = false;
    }

    /// lb-linker starts: it knows what the API server knows, and nothing of its own.
    pub fn start(&mut self, observed: &Observed) {
        self.running = true;
        self.links.clear();
        self.since.clear();
        self.objects = observed.ours.clone();
        let left: BTreeMap<ServiceKey, Option<Target>> =
            self.objects.iter().map(|((_, key), shape)| (key.clone(), shape.points_at())).collect();
        for (key, balancer) in self.balancers.iter().filter(|(_, balancer)| balancer.is_selected()) {
            let last = left.get(key).cloned().flatten();
            let last = last.filter(|target| *target != Target::Host(TOMBSTONE.to_owned()));
            self.links.insert(
                key.clone(),
                Link {
                    uid: balancer.uid.clone(),
                    created: Some(balancer.created),
                    target: Target::choose(&balancer.ingress, last.as_ref()).or(last),
                    gone: false,
                    port: balancer.port,
                },
            );
        }
        for key in left.into_keys() {
            let gone = Link { uid: String::new(), created: None, target: None, gone: true, port: 0 };
            self.links.entry(key).or_insert(gone);
        }
        for key in self.links.keys().cloned().collect::<Vec<_>>() {
            self.note_now(&key);
        }
        self.note_leads();
    }

    /// What lb-linker makes of a Service that has changed.
    fn observe(&mut self, key: &ServiceKey) {
        if !self.running {
            return;
        }
        let known = self.links.get(key);
        let Some(balancer) = self.balancers.get(key).filter(|balancer| balancer.is_selected()) else {
            if known.is_some_and(|link| !link.gone) {
                let link = self.links.get_mut(key).expect("it is known");
                (link.gone, link.target) = (true, None);
                match self.on_delete {
                    OnDelete::Delete => self.note(key, Shape::default()),
                    OnDelete::Tombstone => self.note(key, Shape::named(TOMBSTONE)),
                    OnDelete::Retain => {}
                }
            }
            return;
        };
        let same = known.filter(|link| link.uid == balancer.uid && !link.gone);
        let in_use = same.and_then(|link| link.target.clone());
        let link = Link {
            uid: balancer.uid.clone(),
            created: known.and_then(|link| link.created).or(Some(balancer.created)),
            target: Target::choose(&balancer.ingress, in_use.as_ref()).or(in_use),
            gone: false,
            port: balancer.port,
        };
        let shape = link.target.as_ref().map(|target| Shape::of(target, link.port));
        self.links.insert(key.clone(), link);
        self.note_now(key);
        if let Some(shape) = shape {
            self.note(key, shape);
        }
        self.note_leads();
    }

    /// Somebody deletes a link's external target with its EndpointSlices.
    fn removed_by_hand(&mut self, key: &ServiceKey, outcome: &Outcome) {
        self.changed_by_hand(key, outcome, |shape| *shape = Shape::default());
    }

    fn changed_by_hand(&mut self, key: &ServiceKey, outcome: &Outcome, change: impl Fn(&mut Shape)) {
        if !outcome.touched {
            return;
        }
        self.note_now(key);
        let link = self.links.get(key);
        let live = link.is_some_and(|link| link.target.is_some());
        let buried = link.is_some_and(|link| link.gone) && self.on_delete == OnDelete::Tombstone;
        let shapes = self.since.get_mut(key).expect("it has just been noted");
        let mut changed = shapes.clone();
        changed.iter_mut().for_each(&change);
        // Where nobody writes it and it was known, it is known again.
        if self.running && !live && shapes.len() == 1 {
            *shapes = changed;
        } else {
            shapes.extend(changed);
        }
        if buried && shapes.iter().any(|shape| !shape.is_absent()) {
            self.note(key, Shape::named(TOMBSTONE));
        }
        // Whom an object isn't labelled for any more doesn't hold its name.
        self.objects.retain(|(_, owner), shape| {
            if owner == key {
                change(shape);
            }
            !shape.is_absent()
        });
    }

    /// Notes how the external target may be before anything more happens to it.
    fn note_now(&mut self, key: &ServiceKey) {
        if !self.since.contains_key(key) {
            let now =
                self.objects.iter().find(|((_, owner), _)| owner == key).map(|(_, shape)| shape.clone());
            self.since.insert(key.clone(), vec![now.unwrap_or_default()]);
        }
    }

    fn note(&mut self, key: &ServiceKey, shape: Shape) {
        self.note_now(key);
        let shapes = self.since.get_mut(key).expect("it has just been noted");
        if !shapes.contains(&shape) {
            shapes.push(shape);
        }
    }

    /// Notes where each follower may lead by now.
    fn note_leads(&mut self) {
        let leads: Vec<_> =
            self.followers.keys().filter_map(|key| Some((key.clone(), self.lead(key)?))).collect();
        for (key, lead) in leads {
            self.followers.get_mut(&key).expect("it is one of them").may_lead_to.push(lead);
        }
    }

    /// Where a follower has to lead, if its source says so.
    fn lead(&self, key: &ServiceKey) -> Option<String> {
        let source = &self.followers.get(key)?.source;
        let followable = source.namespace == key.namespace
            || self.balancers.get(source).is_some_and(|balancer| balancer.followable);
        match &self.links.get(source)?.target {
            Some(Target::Host(host)) if followable => Some(host.clone()),
            Some(Target::Ips(ips)) if followable => {
                ips.iter().find(|ip| ip.is_ipv4()).map(ToString::to_string)
            }
            _ => None,
        }
    }
}

// === what has to be ===

/// What was compared, so that a test can say that it compared something.
#[derive(Clone, Debug, Default)]
pub struct Checked {
    pub hostnames: usize,
    pub addresses: usize,
    pub stale: usize,
    pub pending: usize,
    pub retained: usize,
    pub tombstones: usize,
    pub hashed: usize,
    pub strangers: usize,
    pub conflicts: usize,
    pub followers: usize,
    /// Links whose external target may be one of several things.
    pub either: usize,
    pub links: usize,
}

impl Model {
    /// The model at this quiet point: what of it only lb-linker's pace decides is taken from what is there, if
    /// that is one of the things that may be there.
    ///
    /// # Errors
    /// What isn't as it has to be.
    pub fn settle(&self, observed: &Observed) -> Result<(Self, Checked), Vec<String>> {
        let mut next = self.clone();
        let (mut wrong, mut checked) = (Vec::new(), Checked::default());
        for (key, link) in self.links.iter().filter(|(_, link)| link.target.is_none()) {
            let now: Vec<(&String, &Shape)> = observed.of(key).collect();
            let absent = [Shape::default()];
            let may_be = self.since.get(key).map_or(&absent[..], Vec::as_slice);
            checked.either += usize::from(may_be.len() > 1);
            match (self.on_delete, link.gone) {
                // The rules below say it all.
                (OnDelete::Delete, true) => continue,
                (OnDelete::Tombstone, true) => {
                    // Its EndpointSlices come before its Service, and alone are nothing to keep.
                    let may_be_absent = may_be.iter().any(|shape| shape.front.is_none());
                    if now.is_empty() && !may_be_absent {
                        wrong.push(format!("{key} is gone and has no tombstone"));
                    }
                }
                (OnDelete::Retain, true) | (_, false) => {
                    let right = match now[..] {
                        [] => may_be.iter().any(Shape::is_absent),
                        [(_, shape)] => shape.is_made_of(may_be),
                        _ => false,
                    };
                    if !right {
                        wrong.push(format!("{key} has no target; it has {now:?} and may have {may_be:?}"));
                    }
                }
            }
            next.objects.retain(|(_, owner), _| owner != key);
            for (name, shape) in now {
                next.objects.insert((name.clone(), key.clone()), shape.clone());
            }
        }
        next.reach_rest();
        wrong.extend(next.differences(observed));
        wrong.extend(next.settle_followers(observed, &mut checked));
        next.count(&mut checked);
        next.since.clear();
        for key in next.links.keys().cloned().collect::<Vec<_>>() {
            next.note_now(&key);
        }
        if wrong.is_empty() { Ok((next, checked)) } else { Err(wrong) }
    }

    /// What is wrong with the target namespace when lb-linker has just ended, amid whatever it did.
    pub fn implausible(&self, observed: &Observed) -> Vec<String> {
        let mut wrong = self.touched_strangers(observed);
        for ((name, key), shape) in &observed.ours {
            if *name != first_choice(key) && *name != second_choice(key) {
                wrong.push(format!("{name} is labelled for {key}"));
            }
            let mut may_be = self.since.get(key).cloned().unwrap_or_default();
            // Under another name it may just be begun, or nearly gone.
            may_be.push(Shape::default());
            if !shape.is_made_of(&may_be) && !matches!(shape.front, Some(Front::Other(..))) {
                wrong.push(format!("{name} of {key} is {shape:?} and may be {may_be:?}"));
            }
        }
        wrong
    }

    /// Links that have two objects at a moment when lb-linker isn't there: which of them says what the last
    /// target was is left open.
    pub fn torn(observed: &Observed) -> BTreeSet<ServiceKey> {
        let keys = observed.ours.keys().map(|(_, key)| key);
        keys.clone().filter(|key| keys.clone().filter(|other| other == key).count() > 1).cloned().collect()
    }

    /// Applies the rules until nothing changes any more.
    fn reach_rest(&mut self) {
        // Each round ends a link, or names one otherwise: there are far fewer than this.
        for _ in 0..1000 {
            if self.end_gone() {
                continue;
            }
            let names = self.allot();
            let before = self.objects.clone();
            for (key, name) in &names {
                let link = &self.links[key];
                let desired = match &link.target {
                    Some(target) => Shape::of(target, link.port),
                    None if link.gone && self.on_delete == OnDelete::Tombstone => Shape::named(TOMBSTONE),
                    None => continue,
                };
                if self.strangers.get(name).is_some_and(|stranger| stranger.adoptable) && !link.gone {
                    self.strangers.remove(name);
                }
                if self.strangers.contains_key(name) {
                    self.objects.remove(&(name.clone(), key.clone()));
                    continue;
                }
                self.objects.retain(|(_, owner), _| owner != key);
                self.objects.insert((name.clone(), key.clone()), desired);
            }
            if self.objects == before {
                return;
            }
        }
        panic!("the model finds no rest: {self:#?}");
    }

    /// Forgets links that are gone with everything of theirs; returns whether there were any.
    fn end_gone(&mut self) -> bool {
        if self.on_delete == OnDelete::Delete {
            let links = &self.links;
            self.objects.retain(|(_, owner), _| !links.get(owner).is_some_and(|link| link.gone));
        }
        if self.on_delete == OnDelete::Tombstone {
            let fronted = |(_, shape): &(_, &Shape)| shape.front.is_some();
            let standing: BTreeSet<ServiceKey> =
                self.objects.iter().filter(fronted).map(|((_, owner), _)| owner.clone()).collect();
            let gone = |owner: &ServiceKey| self.links.get(owner).is_some_and(|link| link.gone);
            self.objects.retain(|(_, owner), _| standing.contains(owner) || !gone(owner));
        }
        let owners: BTreeSet<ServiceKey> = self.objects.keys().map(|(_, owner)| owner.clone()).collect();
        let before = self.links.len();
        self.links.retain(|key, link| !link.gone || owners.contains(key));
        self.links.len() != before
    }

    /// Which name each link's external target has: of those that want one the holder gets it, else the oldest.
    fn allot(&self) -> BTreeMap<ServiceKey, String> {
        let winner = |name: &String| self.winner(|key| first_choice(key) == *name);
        self.links
            .keys()
            .map(|key| {
                let first = first_choice(key);
                let wins = winner(&first) == Some(key);
                (key.clone(), if wins { first } else { second_choice(key) })
            })
            .collect()
    }

    fn winner(&self, wants: impl Fn(&ServiceKey) -> bool) -> Option<&ServiceKey> {
        let holds = |key: &ServiceKey| {
            let held = self.objects.get(&(first_choice(key), key.clone()));
            held.is_some_and(|shape| shape.front.is_some())
        };
        let wanting = self.links.iter().filter(|(key, _)| wants(key));
        let first = wanting.min_by_key(|(key, link)| {
            (!holds(key), link.created.unwrap_or(i64::MAX), key.namespace.clone(), key.name.clone())
        });
        first.map(|(key, _)| key)
    }

    fn differences(&self, observed: &Observed) -> Vec<String> {
        let mut wrong = self.touched_strangers(observed);
        for ((name, key), shape) in &self.objects {
            let id = (name.clone(), key.clone());
            if observed.ours.get(&id) != Some(shape) {
                wrong
                    .push(format!("{name} of {key} should be {shape:?} and is {:?}", observed.ours.get(&id)));
            }
        }
        for (id, shape) in observed.ours.iter().filter(|(id, _)| !self.objects.contains_key(*id)) {
            wrong.push(format!("{} of {} shouldn't be there and is {shape:?}", id.0, id.1));
        }
        for name in observed.strangers.keys().filter(|name| !self.strangers.contains_key(*name)) {
            wrong.push(format!("{name} is labelled for nobody and shouldn't be there"));
        }
        let mut owners: BTreeMap<&str, &ServiceKey> = BTreeMap::new();
        for (name, key) in observed.ours.keys() {
            if let Some(other) = owners.insert(name, key) {
                wrong.push(format!("{name} is shared by {key} and {other}"));
            }
        }
        wrong
    }

    fn touched_strangers(&self, observed: &Observed) -> Vec<String> {
        let mut wrong = Vec::new();
        for (name, stranger) in self.strangers.iter().filter(|(_, stranger)| !stranger.adoptable) {
            let now = observed.strangers.get(name);
            if now != Some(&stranger.version) {
                wrong.push(format!("{name} of a stranger was {} and is {now:?}", stranger.version));
            }
        }
        wrong
    }

    fn settle_followers(&mut self, observed: &Observed, checked: &mut Checked) -> Vec<String> {
        let mut wrong = Vec::new();
        for key in self.followers.keys().cloned().collect::<Vec<_>>() {
            checked.followers += 1;
            let lead = self.lead(&key);
            let now = observed.followers.get(&key).cloned().unwrap_or_default();
            let follower = self.followers.get_mut(&key).expect("it is one of them");
            let gone = self.links.get(&follower.source).is_none_or(|link| link.gone);
            if self.on_delete == OnDelete::Tombstone && gone {
                follower.may_lead_to.push(TOMBSTONE.to_owned());
            }
            let right = lead.as_ref().map_or(follower.may_lead_to.contains(&now), |lead| *lead == now);
            if !right {
                let may = &follower.may_lead_to;
                wrong.push(format!("{key} leads to {now}, should lead to {lead:?} and may to {may:?}"));
            }
            follower.may_lead_to = vec![now];
        }
        wrong
    }

    fn count(&self, checked: &mut Checked) {
        let names = self.allot();
        checked.links = self.links.len();
        checked.strangers = self.strangers.len();
        for (key, link) in &self.links {
            let stands = self.objects.keys().any(|(_, owner)| owner == key);
            let status = self.balancers.get(key).map(|balancer| &balancer.ingress);
            checked.stale += usize::from(link.target.is_some() && status == Some(&Ingress::default()));
            checked.hashed += usize::from(names[key] == second_choice(key) && stands);
            checked.conflicts += usize::from(link.target.is_some() && !stands);
            match &link.target {
                Some(Target::Host(_)) => checked.hostnames += 1,
                Some(Target::Ips(_)) => checked.addresses += 1,
                None if !link.gone => checked.pending += 1,
                None if self.on_delete == OnDelete::Retain => checked.retained += 1,
                None => checked.tombstones += 1,
            }
        }
    }

    /// What DNS has to answer to whom: `name type`, and the data in any order or the rcode.
    pub fn answers(&self, keys: &BTreeSet<ServiceKey>) -> BTreeMap<String, BTreeSet<String>> {
        let mut answers = BTreeMap::new();
        let labels: BTreeSet<String> = keys.iter().map(label).collect();
        for key in keys {
            let name = format!("{}.{}.{ZONE}.", key.name, key.namespace);
            answers.extend(of_name(&name, self.links.get(key), "Non-Existent Domain"));
            if let Some(balancer) = self.balancers.get(key).filter(|balancer| balancer.is_selected())
                && let Some(claim) = &balancer.claims
            {
                answers.extend(of_name(&format!("{claim}.{ZONE}."), self.links.get(key), ""));
            }
        }
        for name in labels {
            let owner = self.winner(|key| label(key) == name);
            // RFC 8020: a name with names below it exists.
            let exists = self.links.keys().any(|key| *key.namespace == *name);
            let otherwise = if exists { "No Error" } else { "Non-Existent Domain" };
            answers.extend(of_name(&format!("{name}.{ZONE}."), owner.map(|key| &self.links[key]), otherwise));
        }
        answers
    }
}

fn of_name(name: &str, link: Option<&Link>, otherwise: &str) -> Vec<(String, BTreeSet<String>)> {
    let only = |text: &str| BTreeSet::from([text.to_owned()]);
    match link.map(|link| &link.target) {
        None => vec![(format!("{name} A"), only(otherwise))],
        Some(None) => vec![(format!("{name} A"), only("No Error"))],
        Some(Some(Target::Host(host))) => vec![(format!("{name} CNAME"), only(&format!("{host}.")))],
        Some(Some(Target::Ips(ips))) => [("A", true), ("AAAA", false)]
            .into_iter()
            .map(|(qtype, ipv4)| {
                let ips: BTreeSet<String> =
                    ips.iter().filter(|ip| ip.is_ipv4() == ipv4).map(ToString::to_string).collect();
                (format!("{name} {qtype}"), if ips.is_empty() { only("No Error") } else { ips })
            })
            .collect(),
    }
}

/// The name that a link's external target has unless another link has it.
pub fn first_choice(key: &ServiceKey) -> String {
    names::external_target(&key.namespace, &key.name)
}

fn second_choice(key: &ServiceKey) -> String {
    names::external_target_hashed(&key.namespace, &key.name, names::HASH_DIGITS[0])
}

fn label(key: &ServiceKey) -> String {
    names::dashed_label(&key.namespace, &key.name)
}

/// Whether a Service is sure to have a target, whatever lb-linker has seen of it.
pub fn surely_has_target(balancer: &Balancer) -> bool {
    let Balancer { kind, ingress, .. } = balancer;
    *kind == Kind::LoadBalancer && balancer.is_selected() && *ingress != Ingress::default()
}
