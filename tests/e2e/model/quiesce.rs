//! The expected state at a quiet point: the external targets, the followers and the DNS answers of the model's links
//! when lb-linker has nothing left to do.

use std::collections::{BTreeMap, BTreeSet};

use lb_linker::model::service_key::ServiceKey;
use lb_linker::sync::external_target::decision::OnDelete;

use super::rules::{Link, Model, Observed, TOMBSTONE, ZONE, default_name, hashed_name, label};
use super::world::{Ingress, PLACEHOLDER, Target, TargetObjects, TargetService};

/// The numbers of compared items, with which a test asserts that it has compared enough.
#[derive(Clone, Debug, Default)]
pub struct ComparedCounts {
    pub hostnames: usize,
    pub addresses: usize,
    pub stale: usize,
    pub pending: usize,
    pub retained: usize,
    pub tombstones: usize,
    pub hashed: usize,
    pub foreign: usize,
    pub conflicts: usize,
    pub followers: usize,
    /// Links with several allowed external targets.
    pub either: usize,
    pub links: usize,
}

impl Model {
    /// Returns the model at this quiet point. Where several outcomes are allowed, the model adopts the observed
    /// outcome if it is one of them.
    ///
    /// # Errors
    /// The differences between the model and the observed state.
    pub fn settle(&self, observed: &Observed) -> Result<(Self, ComparedCounts), Vec<String>> {
        let mut next = self.clone();
        let (mut wrong, mut checked) = (Vec::new(), ComparedCounts::default());
        for (key, link) in self.links.iter().filter(|(_, link)| link.target.is_none()) {
            let now: Vec<(&String, &TargetObjects)> = observed.of(key).collect();
            let absent = [TargetObjects::default()];
            let may_be = self.possible.get(key).map_or(&absent[..], Vec::as_slice);
            checked.either += usize::from(may_be.len() > 1);
            match (self.on_delete, link.is_orphaned()) {
                // `remove_gone` removes the objects of these links.
                (OnDelete::Delete, true) => continue,
                (OnDelete::Tombstone, true) => {
                    // EndpointSlices are written before the Service, and EndpointSlices alone don't become a
                    // tombstone.
                    let may_be_absent = may_be.iter().any(|shape| shape.service.is_none());
                    if now.is_empty() && !may_be_absent {
                        wrong.push(format!("{key} is gone and has no tombstone"));
                    }
                }
                (OnDelete::Retain, true) | (_, false) => {
                    let right = match now[..] {
                        [] => may_be.iter().any(TargetObjects::is_absent),
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
        next.adopt_hashed_names(observed);
        next.forget_adopted(observed);
        next.settle_objects();
        wrong.extend(next.differences(observed));
        wrong.extend(next.settle_followers(observed, &mut checked));
        next.count(&mut checked);
        next.possible.clear();
        next.recently_deleted.clear();
        next.possible_follower_targets.clear();
        for key in next.links.keys().cloned().collect::<Vec<_>>() {
            next.record_current(&key);
        }
        if wrong.is_empty() { Ok((next, checked)) } else { Err(wrong) }
    }

    /// Returns the defects in the target namespace after lb-linker has ended at any point of its work.
    pub fn defects_after_stop(&self, observed: &Observed) -> Vec<String> {
        let mut wrong = self.touched_foreign(observed);
        for ((name, key), shape) in &observed.ours {
            if *name != default_name(key) && *name != hashed_name(key) {
                wrong.push(format!("{name} is labelled for {key}"));
            }
            let mut may_be = self.possible.get(key).cloned().unwrap_or_default();
            // An object under another name may be partly written or partly deleted.
            may_be.push(TargetObjects::default());
            if may_be.iter().any(|shape| matches!(shape.service, Some(TargetService::Headless(_)))) {
                // A clusterIP is immutable: on the way to a headless Service there is this name.
                may_be.push(TargetObjects::named(&format!("{name}{PLACEHOLDER}")));
            }
            if !shape.is_made_of(&may_be) && !matches!(shape.service, Some(TargetService::Other(..))) {
                wrong.push(format!("{name} of {key} is {shape:?} and may be {may_be:?}"));
            }
        }
        wrong
    }

    /// Returns the links that have two objects while lb-linker isn't running. The model doesn't define which object
    /// has the last target.
    pub fn links_with_two_objects(observed: &Observed) -> BTreeSet<ServiceKey> {
        let keys = observed.ours.keys().map(|(_, key)| key);
        keys.clone().filter(|key| keys.clone().filter(|other| other == key).count() > 1).cloned().collect()
    }

    /// Adopts hashed names of links whose default name another link's external target had at the last quiet point or
    /// start. If that one has gone since, lb-linker's pace decides which name a link without an external target got.
    fn adopt_hashed_names(&mut self, observed: &Observed) {
        let is_held_by_another = |name: &String, key: &ServiceKey| {
            let mut held =
                self.objects.iter().filter(|((held, _), shape)| held == name && shape.service.is_some());
            held.any(|((_, owner), _)| owner != key)
        };
        let is_adopted = |((name, key), shape): &(&(String, ServiceKey), &TargetObjects)| {
            *name == hashed_name(key)
                && shape.service.is_some()
                && is_held_by_another(&default_name(key), key)
        };
        let adopted: Vec<_> =
            observed.ours.iter().filter(is_adopted).map(|(id, shape)| (id.clone(), shape.clone())).collect();
        self.objects.extend(adopted);
    }

    /// Applies the rules until the model no longer changes.
    fn settle_objects(&mut self) {
        // Each round removes or renames a link, so far fewer rounds suffice.
        for _ in 0..1000 {
            if self.remove_gone() {
                continue;
            }
            let names = self.assign_names();
            let before = self.objects.clone();
            for (key, name) in &names {
                let link = &self.links[key];
                let desired = match &link.target {
                    Some(target) => TargetObjects::of(target, link.port),
                    None if link.gone && self.on_delete == OnDelete::Tombstone => {
                        TargetObjects::named(TOMBSTONE)
                    }
                    // lb-linker creates no tombstone for an existing Service; it only overwrites an existing object.
                    None if link.recreated && self.on_delete == OnDelete::Tombstone => {
                        if !self.objects.keys().any(|(_, owner)| owner == key) {
                            continue;
                        }
                        TargetObjects::named(TOMBSTONE)
                    }
                    None => continue,
                };
                if self.foreign.get(name).is_some_and(|stranger| stranger.adoptable) && !link.gone {
                    self.foreign.remove(name);
                }
                if self.foreign.contains_key(name) {
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
        panic!("the model never stops changing: {self:#?}");
    }

    /// Removes the objects of links without a Service as `--on-delete` demands, then the links with neither a Service
    /// nor objects. Returns whether a link was removed.
    fn remove_gone(&mut self) -> bool {
        if self.on_delete == OnDelete::Delete {
            let links = &self.links;
            self.objects.retain(|(_, owner), _| !links.get(owner).is_some_and(Link::is_orphaned));
        }
        if self.on_delete == OnDelete::Tombstone {
            let has_service = |(_, shape): &(_, &TargetObjects)| shape.service.is_some();
            let with_service: BTreeSet<ServiceKey> =
                self.objects.iter().filter(has_service).map(|((_, owner), _)| owner.clone()).collect();
            let is_orphaned = |owner: &ServiceKey| self.links.get(owner).is_some_and(Link::is_orphaned);
            self.objects.retain(|(_, owner), _| with_service.contains(owner) || !is_orphaned(owner));
        }
        let owners: BTreeSet<ServiceKey> = self.objects.keys().map(|(_, owner)| owner.clone()).collect();
        let before = self.links.len();
        self.links.retain(|key, link| !link.gone || owners.contains(key));
        self.links.len() != before
    }

    /// Returns the name of each link's external target. A link with an external target keeps its name. Of the other
    /// links with the same default name the oldest one gets it, unless a link has it.
    fn assign_names(&self) -> BTreeMap<ServiceKey, String> {
        let winner = |name: &String| self.winner(|key| default_name(key) == *name);
        self.links
            .keys()
            .map(|key| {
                let first = default_name(key);
                let wins = winner(&first) == Some(key);
                (key.clone(), if wins { first } else { hashed_name(key) })
            })
            .collect()
    }

    /// Returns the link that has a default name: of the external target, or of a label.
    fn winner(&self, wants: impl Fn(&ServiceKey) -> bool) -> Option<&ServiceKey> {
        let has = |key: &ServiceKey, name: String| {
            let held = self.objects.get(&(name, key.clone()));
            held.is_some_and(|shape| shape.service.is_some())
        };
        let holds = |key: &ServiceKey| has(key, default_name(key));
        let keeps_hashed = |key: &ServiceKey| !holds(key) && has(key, hashed_name(key));
        let wanting = self.links.iter().filter(|(key, _)| wants(key) && !keeps_hashed(key));
        let first = wanting.min_by_key(|(key, link)| {
            (!holds(key), link.created.unwrap_or(i64::MAX), key.namespace().to_owned(), key.name().to_owned())
        });
        first.map(|(key, _)| key)
    }

    fn differences(&self, observed: &Observed) -> Vec<String> {
        let mut wrong = self.touched_foreign(observed);
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
        for name in observed.foreign.keys().filter(|name| !self.foreign.contains_key(*name)) {
            wrong.push(format!("{name} is labelled for no link and shouldn't be there"));
        }
        let mut owners: BTreeMap<&str, &ServiceKey> = BTreeMap::new();
        for (name, key) in observed.ours.keys() {
            if let Some(other) = owners.insert(name, key) {
                wrong.push(format!("{name} is shared by {key} and {other}"));
            }
        }
        wrong
    }

    fn touched_foreign(&self, observed: &Observed) -> Vec<String> {
        let mut wrong = Vec::new();
        for (name, stranger) in self.foreign.iter().filter(|(_, stranger)| !stranger.adoptable) {
            let now = observed.foreign.get(name);
            if now != Some(&stranger.version) {
                wrong.push(format!("{name} of a stranger was {} and is {now:?}", stranger.version));
            }
        }
        wrong
    }

    fn settle_followers(&mut self, observed: &Observed, checked: &mut ComparedCounts) -> Vec<String> {
        let mut wrong = Vec::new();
        for key in self.followers.keys().cloned().collect::<Vec<_>>() {
            checked.followers += 1;
            let required = self.required_target(&key);
            let now = observed.followers.get(&key).cloned().unwrap_or_default();
            let follower = self.followers.get_mut(&key).expect("it is one of them");
            // Watches aren't ordered relative to each other, so lb-linker may still write an earlier target of the
            // source.
            follower
                .allowed_targets
                .extend(self.possible_follower_targets.get(&follower.source).into_iter().flatten().cloned());
            let gone = self.links.get(&follower.source).is_none_or(|link| link.gone);
            if self.on_delete == OnDelete::Tombstone && gone {
                follower.allowed_targets.push(TOMBSTONE.to_owned());
            }
            let right = required
                .as_ref()
                .map_or(follower.allowed_targets.contains(&now), |required| *required == now);
            if !right {
                let may = &follower.allowed_targets;
                wrong.push(format!("{key} leads to {now}, should lead to {required:?} and may to {may:?}"));
            }
            follower.allowed_targets = vec![now];
        }
        wrong
    }

    fn count(&self, checked: &mut ComparedCounts) {
        let names = self.assign_names();
        checked.links = self.links.len();
        checked.foreign = self.foreign.len();
        for (key, link) in &self.links {
            let stands = self.objects.keys().any(|(_, owner)| owner == key);
            let status = self.balancers.get(key).map(|balancer| &balancer.ingress);
            checked.stale += usize::from(link.target.is_some() && status == Some(&Ingress::default()));
            checked.hashed += usize::from(names[key] == hashed_name(key) && stands);
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

    /// Returns the expected DNS answers by `name type`: the record data in any order, or the rcode.
    pub fn answers(&self, keys: &BTreeSet<ServiceKey>) -> BTreeMap<String, BTreeSet<String>> {
        let mut answers = BTreeMap::new();
        let labels: BTreeSet<String> = keys.iter().map(label).collect();
        for key in keys {
            let name = format!("{}.{}.{ZONE}.", key.name(), key.namespace());
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
            let exists = self.links.keys().any(|key| key.namespace() == name);
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
