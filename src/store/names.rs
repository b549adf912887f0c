//! Which owner has which name: holders, ranks and conflicts. No I/O, and nothing about what is behind the names.
//!
//! The owner of a custom hostname keeps it among the owners whose source comes first in the name's zone: the link on
//! whose external target the name is recorded. A name without a recorded owner goes to the oldest; among owners of the
//! same age, to the first by namespace and name. So a restart, or another replica, gives the same result.

mod allocator;

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::sync::Arc;

use smallvec::SmallVec;

use super::owners::{OwnerId, Owners};
use crate::model::link::LinkChange;
use crate::model::names;
use crate::model::owner::{self, Source};
pub(super) use allocator::Reassigned;
use allocator::{CurrentOwners, DefaultClaims};

/// The names of all owners. Custom hostnames are absolute, in lower case, without the trailing dot.
#[derive(Debug, Default)]
pub(super) struct Names {
    pub(super) owners: Arc<Owners>,
    /// The claims for the names of external targets.
    objects: Claims<Arc<str>>,
    /// The claims for labels directly below each zone, in wire form.
    labels: Claims<Box<[u8]>>,
    /// The claims of each link for default names.
    default_claims: HashMap<OwnerId, DefaultClaims>,
    current: CurrentOwners,
    /// The claims for custom hostnames.
    hostnames: Claims<Arc<str>>,
    requests: HashMap<OwnerId, HostnameRequest>,
    /// By external target: the link that it is labelled for, and the hostnames recorded on it.
    recorded: HashMap<Box<str>, (OwnerId, Vec<Arc<str>>)>,
    /// By hostname: the link of each external target on which the hostname is recorded. While one external target
    /// replaces another, a link may be listed twice.
    recorded_owners: HashMap<Arc<str>, SmallVec<[OwnerId; 1]>>,
    /// The newest resourceVersion that the present writer has applied.
    pub(super) version: Option<u64>,
    /// The remote cluster of that resourceVersion; `None` for the home cluster.
    pub(super) cluster: Option<Arc<str>>,
    /// The newest resourceVersion of each cluster.
    versions: HashMap<Option<Arc<str>>, u64>,
    /// The changes that the present writer has made. They are sent at its end, because each send wakes the subscribers of
    /// the feed.
    pub(super) changes: Vec<LinkChange>,
}

/// An owner's claim for a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Claim {
    /// The place of the owner's source for this name.
    place: u16,
    owner: OwnerId,
    created: i64,
}

/// The claims for each name, in order of precedence: by place, then the oldest first, then by owner.
#[derive(Debug)]
struct Claims<N>(HashMap<N, SmallVec<[Claim; 1]>>);

/// The custom hostnames that an owner asks for, with the place of its source for each; without one, the owner has no
/// claim.
#[derive(Debug)]
struct HostnameRequest {
    created: i64,
    names: Box<[(Arc<str>, Option<u16>)]>,
    listed: Option<Box<Source>>,
}

/// A name that has another owner from now on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OwnerChange {
    pub(super) name: Arc<str>,
    pub(super) from: Option<OwnerId>,
    pub(super) to: Option<OwnerId>,
}

/// The limit of a resourceVersion that counts: no revision of etcd comes near it, and a sum can't overflow.
const MAX_VERSION: u64 = 1 << 56;

impl Names {
    /// Takes the resourceVersion of the present writer. Returns the sum of the newest ones of all clusters.
    pub(super) fn take_version(&mut self) -> Option<u64> {
        let cluster = self.cluster.take();
        let version = self.version.take()?.min(MAX_VERSION);
        let newest = self.versions.entry(cluster).or_default();
        *newest = version.max(*newest);
        Some(self.versions.values().sum())
    }

    /// Continues with an earlier resourceVersion of the home cluster. Returns the sum, as [`Self::take_version`] does.
    pub(super) fn restart_version(&mut self, version: u64) -> u64 {
        self.versions.insert(None, version.min(MAX_VERSION));
        self.versions.values().sum()
    }

    /// Records the custom hostnames that an owner asks for; none if the owner is removed. `place` returns the place of the
    /// owner's source for a hostname in wire form, if the source may have the hostname. Returns the changes.
    pub(super) fn request(
        &mut self,
        owner: OwnerId,
        claims: &owner::Claims,
        place: impl Fn(&[u8], &Source) -> Option<u16>,
    ) -> Vec<OwnerChange> {
        let owner::Claims { created, ref names, ref listed } = *claims;
        let before = self.requests.get(&owner);
        if before.is_none() && names.is_empty() {
            return Vec::new();
        }
        let source = listed.as_deref().cloned().unwrap_or_else(|| self.owners.get(owner).0.source);
        let with_place = |name: &Arc<str>| Some((Arc::clone(name), place(&names::wire_of(name)?, &source)));
        let names: Box<[(Arc<str>, Option<u16>)]> = names.iter().filter_map(with_place).collect();
        let concerned = before.iter().flat_map(|before| &before.names).chain(&names);
        let concerned = concerned.map(|(name, _)| Arc::clone(name)).collect();
        self.changes_of(concerned, |all| {
            // Not before the change, because `holder` reads the requests.
            if let Some(HostnameRequest { created, names, .. }) = all.requests.remove(&owner) {
                for (name, place) in names {
                    let Some(place) = place else { continue };
                    all.hostnames.remove(&*name, &Claim { place, owner, created });
                }
            }
            for (name, place) in &names {
                let Some(place) = *place else { continue };
                all.hostnames.add(Arc::clone(name), Claim { place, owner, created }, &all.owners);
            }
            if !names.is_empty() {
                all.requests.insert(owner, HostnameRequest { created, names, listed: listed.clone() });
            }
        })
    }

    /// Returns the custom hostnames that an owner asks for and doesn't get: it may have them and doesn't hold them, or it
    /// holds them and they aren't free.
    pub(super) fn lost_by(
        &self,
        owner: OwnerId,
        is_free: impl Fn(&str) -> bool,
    ) -> impl Iterator<Item = &Arc<str>> {
        let requested = self.requests.get(&owner).into_iter().flat_map(|requested| &requested.names);
        let lost = requested.filter(move |(name, place)| match self.holder(name) {
            Some(holder) if holder == owner => !is_free(name),
            _ => place.is_some(),
        });
        lost.map(|(name, _)| name)
    }

    /// Returns the custom hostnames that an owner asks for and holds.
    pub(super) fn hostnames_of(&self, owner: OwnerId) -> Vec<Arc<str>> {
        let requested = self.requests.get(&owner).into_iter().flat_map(|requested| &requested.names);
        let held = requested.filter(|(name, _)| self.holder(name) == Some(owner));
        held.map(|(name, _)| Arc::clone(name)).collect()
    }

    /// Returns the custom hostnames that an owner asks for, and its rank.
    pub(super) fn claims_of(&self, owner: OwnerId) -> owner::Claims {
        let Some(HostnameRequest { created, names, listed }) = self.requests.get(&owner) else {
            return owner::Claims::default();
        };
        let names = names.iter().map(|(name, _)| Arc::clone(name)).collect();
        owner::Claims { created: *created, names, listed: listed.clone() }
    }

    /// Returns the custom hostnames that owners ask for.
    pub(super) fn asked(&self) -> Vec<Arc<str>> {
        self.hostnames.0.keys().cloned().collect()
    }

    /// Returns the owners that ask for a custom hostname, the holder first.
    pub(super) fn asking(&self, name: &str) -> Vec<OwnerId> {
        let holder = self.holder(name);
        let mut all = self.requesters(name);
        all.sort_by_key(|id| Some(*id) != holder);
        all
    }

    /// Returns the owners that ask for a custom hostname.
    pub(super) fn requesters(&self, name: &str) -> Vec<OwnerId> {
        self.hostnames.of(name).iter().map(|claim| claim.owner).collect()
    }

    /// Records the custom hostnames that an external target carries, and its link; `None` if the external target is gone.
    /// Returns the changes.
    fn record_hostnames(
        &mut self,
        object: &str,
        owner: Option<OwnerId>,
        names: &[Arc<str>],
    ) -> Vec<OwnerChange> {
        let before = self.recorded.remove(object);
        let names: Vec<Arc<str>> =
            names.iter().filter(|name| names::wire_of(name).is_some()).cloned().collect();
        let now = owner.map(|owner| (owner, names)).filter(|(_, names)| !names.is_empty());
        let concerned = before.iter().chain(&now).flat_map(|(_, names)| names).cloned().collect();
        self.changes_of(concerned, |all| {
            let recorded_owners = &mut all.recorded_owners;
            if let Some((owner, names)) = &before {
                for name in names {
                    let Some(owners) = recorded_owners.get_mut(name) else { continue };
                    if let Some(position) = owners.iter().position(|other| other == owner) {
                        owners.swap_remove(position);
                    }
                    if owners.is_empty() {
                        recorded_owners.remove(name);
                    }
                }
            }
            if let Some((owner, names)) = now {
                for name in &names {
                    recorded_owners.entry(Arc::clone(name)).or_default().push(owner);
                }
                all.recorded.insert(object.into(), (owner, names));
            }
        })
    }

    /// Returns the owner that holds a custom hostname: of those whose source comes first, the first recorded one that asks
    /// for it, in order of precedence, else the first one.
    fn holder(&self, name: &str) -> Option<OwnerId> {
        let claims = self.hostnames.of(name);
        let place = claims.first()?.place;
        let recorded = self.recorded_owners.get(name).into_iter().flatten();
        let positions = recorded.filter_map(|owner| {
            let claim = Claim { place, owner: *owner, created: self.requests.get(owner)?.created };
            claims.binary_search_by(|other| other.compare(&claim, &self.owners)).ok()
        });
        claims.get(positions.min().unwrap_or(0)).map(|claim| claim.owner)
    }

    /// Applies a change, and returns how the holders of these hostnames have changed.
    fn changes_of(&mut self, names: BTreeSet<Arc<str>>, change: impl FnOnce(&mut Self)) -> Vec<OwnerChange> {
        let before: Vec<(Arc<str>, Option<OwnerId>)> = names
            .into_iter()
            .map(|name| {
                let holder = self.holder(&name);
                (name, holder)
            })
            .collect();
        change(self);
        before
            .into_iter()
            .map(|(name, from)| {
                let to = self.holder(&name);
                OwnerChange { name, from, to }
            })
            .filter(|passed| passed.from != passed.to)
            .collect()
    }
}

impl Claim {
    fn compare(&self, other: &Self, owners: &Owners) -> Ordering {
        let by_age = (self.place, self.created).cmp(&(other.place, other.created));
        by_age.then_with(|| match self.owner == other.owner {
            true => Ordering::Equal,
            false => owners.get(self.owner).0.cmp(&owners.get(other.owner).0),
        })
    }
}

impl<N> Default for Claims<N> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<N: Eq + Hash> Claims<N> {
    fn add(&mut self, name: N, claim: Claim, owners: &Owners) {
        let claims = self.0.entry(name).or_default();
        if let Err(position) = claims.binary_search_by(|other| other.compare(&claim, owners)) {
            claims.insert(position, claim);
        }
    }

    fn remove<Q: Eq + Hash + ?Sized>(&mut self, name: &Q, claim: &Claim)
    where
        N: Borrow<Q>,
    {
        let Some(claims) = self.0.get_mut(name) else { return };
        claims.retain(|other| other != claim);
        if claims.is_empty() {
            self.0.remove(name);
        }
    }

    /// Returns the claims for a name, in order of precedence.
    fn of<Q: Eq + Hash + ?Sized>(&self, name: &Q) -> &[Claim]
    where
        N: Borrow<Q>,
    {
        self.0.get(name).map(|claims| &**claims).unwrap_or_default()
    }

    /// Returns the winning claim: that of the present owner, else the first.
    fn winner<Q: Eq + Hash + ?Sized>(&self, name: &Q, is_owner: impl Fn(OwnerId) -> bool) -> Option<&Claim>
    where
        N: Borrow<Q>,
    {
        let claims = self.of(name);
        claims.iter().find(|claim| is_owner(claim.owner)).or(claims.first())
    }
}

#[cfg(test)]
mod tests;
