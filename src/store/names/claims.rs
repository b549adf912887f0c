//! The claims of links for names, in order of precedence.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;

use smallvec::SmallVec;

use crate::model::service_key::ServiceKey;

/// A link's claim for a name. Claims sort by precedence: the oldest first, then by key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Claim {
    pub(crate) created: i64,
    pub(crate) key: ServiceKey,
}

/// The claims for each name, in order of precedence.
#[derive(Debug)]
pub(crate) struct Claims<N>(HashMap<N, SmallVec<[Claim; 1]>>);

impl<N> Default for Claims<N> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<N: Eq + Hash> Claims<N> {
    pub(crate) fn add(&mut self, name: N, claim: Claim) {
        let claims = self.0.entry(name).or_default();
        if let Err(position) = claims.binary_search(&claim) {
            claims.insert(position, claim);
        }
    }

    pub(crate) fn remove<Q: Eq + Hash + ?Sized>(&mut self, name: &Q, claim: &Claim)
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
    pub(crate) fn claims_for<Q: Eq + Hash + ?Sized>(&self, name: &Q) -> &[Claim]
    where
        N: Borrow<Q>,
    {
        self.0.get(name).map(|claims| &**claims).unwrap_or_default()
    }

    /// Returns the winning claim: that of the present owner, else the first.
    pub(crate) fn winner<Q: Eq + Hash + ?Sized>(
        &self,
        name: &Q,
        is_owner: impl Fn(&ServiceKey) -> bool,
    ) -> Option<&Claim>
    where
        N: Borrow<Q>,
    {
        let claims = self.claims_for(name);
        claims.iter().find(|claim| is_owner(&claim.key)).or(claims.first())
    }
}
