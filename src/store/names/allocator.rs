//! Allocates default names that several links claim: names of external targets, and the labels `<service>-<namespace>`
//! directly below a zone.
//!
//! The owner of a name keeps it, and claims no other one. The owner of an external target's name is the link that the
//! existing object of that name is labelled for; the owner of a label is a link that owns its default external target,
//! never one that owns a hashed name instead. A name without an owner goes to the oldest Service; among Services of the
//! same age, to the first by namespace and name. A link that loses the name of its external target takes its next
//! candidate.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use smallvec::SmallVec;

use super::{Claim, Names, OwnerChange};
use crate::model::names;
use crate::model::service_key::ServiceKey;
use crate::store::owners::OwnerId;

/// A name that has another owner from now on: the link has to be stored again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::store) enum Reassigned {
    /// The link's external target has this name from now on.
    Object(OwnerId, Arc<str>),
    /// The label belongs to this link from now on, or to no link.
    Label(Box<[u8]>, Option<OwnerId>),
}

/// The claims of one link for names of external targets.
#[derive(Debug)]
pub(super) struct DefaultClaims {
    created: i64,
    /// The claimed candidates in their order; the last candidate is the name in use.
    objects: SmallVec<[Arc<str>; 1]>,
}

/// The links by the names of the external targets that are labelled for them.
#[derive(Debug, Default)]
pub(super) struct CurrentOwners {
    owners: HashMap<Box<str>, OwnerId>,
    /// By link, the number of external targets that are labelled for the link and don't have its default name. Few
    /// links have any.
    with_other_names: HashMap<OwnerId, usize>,
}

impl Names {
    /// Claims the default names of a link that was created at this time (seconds since 1970), or has another rank from now
    /// on. Returns the name of its external target, and the changes for other links.
    pub(in crate::store) fn claim(&mut self, owner: OwnerId, created: i64) -> (Arc<str>, Vec<Reassigned>) {
        let mut changes = self.released(owner);
        let claim = Claim { place: 0, created, owner };
        let key = self.key(owner);
        if let Some(label) = key.label() {
            let before = self.label_winner(&label);
            self.labels.add(label.as_slice().into(), claim, &self.owners);
            self.record_label_change(label, before, &mut changes);
        }
        self.rebalance(vec![claim], &mut changes);
        let mut own = default_name(&key);
        changes.retain(|change| match change {
            Reassigned::Object(other, name) if *other == owner => {
                own = name.clone();
                false
            }
            _ => true,
        });
        (own, coalesce(changes))
    }

    /// Gives up the default names of a link. Returns the changes for other links.
    pub(in crate::store) fn release(&mut self, owner: OwnerId) -> Vec<Reassigned> {
        coalesce(self.released(owner))
    }

    fn released(&mut self, owner: OwnerId) -> Vec<Reassigned> {
        let mut changes = Vec::new();
        let Some(claims) = self.default_claims.remove(&owner) else { return changes };
        let claim = Claim { place: 0, created: claims.created, owner };
        if let Some(label) = self.key(owner).label() {
            let before = self.label_winner(&label);
            self.labels.remove(label.as_slice(), &claim);
            self.record_label_change(label, before, &mut changes);
        }
        let mut next = Vec::new();
        for name in claims.objects {
            self.objects.remove(&*name, &claim);
            next.extend(self.object_winner(&name));
        }
        self.rebalance(next, &mut changes);
        changes
    }

    /// Records the link that an external target is labelled for, if any, and the custom hostnames recorded on it. Returns
    /// the changes.
    pub(in crate::store) fn record(
        &mut self,
        object: &str,
        owner: Option<OwnerId>,
        hostnames: &[Arc<str>],
    ) -> (Vec<Reassigned>, Vec<OwnerChange>) {
        let before = self.current.owners.get(object).copied();
        let reassigned = if before == owner { Vec::new() } else { self.pass_object(object, before, owner) };
        let passed = self.record_hostnames(object, owner, hostnames);
        if let Some(before) = before.filter(|before| !self.is_recorded(*before)) {
            self.owners.release(before);
        }
        (reassigned, passed)
    }

    fn pass_object(
        &mut self,
        object: &str,
        before: Option<OwnerId>,
        owner: Option<OwnerId>,
    ) -> Vec<Reassigned> {
        let concerned: Vec<OwnerId> = [before, owner].into_iter().flatten().collect();
        let labels: Vec<Vec<u8>> = concerned.iter().filter_map(|owner| self.key(*owner).label()).collect();
        let winners: Vec<_> = labels.iter().map(|label| self.label_winner(label)).collect();
        let displaced = self.object_winner(object);
        self.set_current(object, owner);
        let mut changes = Vec::new();
        for (label, before) in labels.into_iter().zip(winners) {
            self.record_label_change(label, before, &mut changes);
        }
        let mut dirty: Vec<Claim> = concerned.iter().filter_map(|owner| self.default_claim(*owner)).collect();
        dirty.extend(self.object_winner(object));
        dirty.extend(displaced);
        self.rebalance(dirty, &mut changes);
        coalesce(changes)
    }

    /// Returns the links that claim an object's name.
    pub(in crate::store) fn claimants(&self, object: &str) -> Vec<OwnerId> {
        self.objects.of(object).iter().map(|claim| claim.owner).collect()
    }

    /// Returns whether any external target is labelled for this link.
    pub(in crate::store) fn is_recorded(&self, owner: OwnerId) -> bool {
        self.owns_default_name(owner) || self.current.with_other_names.contains_key(&owner)
    }

    pub(in crate::store) fn has_label(&self, owner: OwnerId) -> bool {
        self.key(owner).label().is_some_and(|label| self.label_winner(&label) == Some(owner))
    }

    /// Gives each of these links the first of its candidates that it wins, and then does the same for each link that
    /// this affects.
    fn rebalance(&mut self, mut dirty: Vec<Claim>, changes: &mut Vec<Reassigned>) {
        while let Some(claim) = dirty.pop() {
            let (owner, key) = (claim.owner, self.key(claim.owner));
            let claimed = self.default_claims.remove(&owner).map(|claims| claims.objects).unwrap_or_default();
            let mut claims = SmallVec::<[Arc<str>; 1]>::new();
            while let Some(candidate) = self.candidate(owner, &key, claims.len()) {
                let before = self.object_winner(&candidate);
                self.objects.add(Arc::clone(&candidate), claim, &self.owners);
                claims.push(candidate.clone());
                if self.object_winner(&candidate) == Some(claim) {
                    dirty.extend(before.filter(|before| *before != claim));
                    break;
                }
            }
            for name in claimed.iter().filter(|name| !claims.contains(name)) {
                self.objects.remove(&**name, &claim);
                dirty.extend(self.object_winner(name));
            }
            if let Some(name) = claims.last().filter(|name| Some(*name) != claimed.last()) {
                changes.push(Reassigned::Object(owner, Arc::clone(name)));
            }
            self.default_claims.insert(owner, DefaultClaims { created: claim.created, objects: claims });
        }
    }

    /// Returns the candidate at this position for the name of the link's external target.
    fn candidate(&self, owner: OwnerId, key: &ServiceKey, place: usize) -> Option<Arc<str>> {
        if let Some(own) = self.own_name(owner, key) {
            return (place == 0).then_some(own);
        }
        let Some(place) = place.checked_sub(1) else { return Some(default_name(key)) };
        let (namespace, name) = key.parts();
        Some(names::external_target_hashed(namespace, name, *names::HASH_DIGITS.get(place)?).into())
    }

    /// Returns the candidate that the link owns already; of several ones the name that the earlier operator cut at 63
    /// characters, then the default name.
    fn own_name(&self, owner: OwnerId, key: &ServiceKey) -> Option<Arc<str>> {
        let default = default_name(key);
        if !self.current.with_other_names.contains_key(&owner) {
            return Some(default).filter(|name| self.owns(owner, name));
        }
        let (namespace, name) = key.parts();
        let earlier = names::earlier_external_target(namespace, name).into();
        let hashed =
            names::HASH_DIGITS.map(|digits| names::external_target_hashed(namespace, name, digits).into());
        [earlier, default].into_iter().chain(hashed).find(|name| self.owns(owner, name))
    }

    fn owns(&self, owner: OwnerId, object: &str) -> bool {
        self.current.owners.get(object) == Some(&owner)
    }

    /// Returns whether the link keeps the name that it got because its default name belonged to another link.
    fn keeps_hashed_name(&self, owner: OwnerId) -> bool {
        if !self.current.with_other_names.contains_key(&owner) {
            return false;
        }
        let key = self.key(owner);
        let (namespace, name) = key.parts();
        let others = [key.external_target(), names::earlier_external_target(namespace, name)];
        self.own_name(owner, &key).is_some_and(|own| !others.iter().any(|other| **other == *own))
    }

    /// Returns the claim of a link, or `None` for an unknown link.
    fn default_claim(&self, owner: OwnerId) -> Option<Claim> {
        self.default_claims.get(&owner).map(|claims| Claim { place: 0, created: claims.created, owner })
    }

    fn object_winner(&self, name: &str) -> Option<Claim> {
        let current = self.current.owners.get(name);
        self.objects.winner(name, |owner| current == Some(&owner)).copied()
    }

    /// Returns the owner of a label: a link that owns its default external target comes first.
    fn label_winner(&self, label: &[u8]) -> Option<OwnerId> {
        let mut claims = self.labels.of(label).iter().map(|claim| claim.owner);
        let first = claims.clone().find(|owner| self.owns_default_name(*owner));
        first.or_else(|| claims.find(|owner| !self.keeps_hashed_name(*owner)))
    }

    fn record_label_change(&self, label: Vec<u8>, before: Option<OwnerId>, changes: &mut Vec<Reassigned>) {
        let now = self.label_winner(&label);
        if now != before {
            changes.push(Reassigned::Label(label.into(), now));
        }
    }

    /// Returns whether the external target with the link's default name is labelled for the link.
    fn owns_default_name(&self, owner: OwnerId) -> bool {
        self.owns(owner, &self.key(owner).external_target())
    }

    /// Records the link that an external target is labelled for, if any.
    fn set_current(&mut self, object: &str, owner: Option<OwnerId>) {
        let has_other_name = |names: &Self, owner: OwnerId| *object != *names.key(owner).external_target();
        let before = match owner {
            Some(owner) => self.current.owners.insert(object.into(), owner),
            None => self.current.owners.remove(object),
        };
        if let Some(owner) = owner.filter(|owner| has_other_name(self, *owner)) {
            *self.current.with_other_names.entry(owner).or_default() += 1;
        }
        if let Some(before) = before.filter(|before| has_other_name(self, *before)) {
            match self.current.with_other_names.get_mut(&before) {
                Some(count @ 2..) => *count -= 1,
                _ => drop(self.current.with_other_names.remove(&before)),
            }
        }
    }

    fn key(&self, owner: OwnerId) -> ServiceKey {
        self.owners.get(owner).0.key
    }
}

/// Returns only the last change of each label, and of the external target of each link.
fn coalesce(changes: Vec<Reassigned>) -> Vec<Reassigned> {
    let (mut labels, mut objects) = (HashSet::new(), HashSet::new());
    let mut last: Vec<Reassigned> = changes
        .into_iter()
        .rev()
        .filter(|change| match change {
            Reassigned::Object(owner, _) => objects.insert(*owner),
            Reassigned::Label(label, _) => labels.insert(label.clone()),
        })
        .collect();
    last.reverse();
    last
}

fn default_name(key: &ServiceKey) -> Arc<str> {
    key.external_target().into()
}
