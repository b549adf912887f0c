//! Checks each name of a chain for a client: by the target policy, by the links' `allow-from`, and by the `acl` of the
//! block that is responsible for the name. The same rules apply to all names of a chain, whichever answer they are
//! from.

use std::any::Any;
use std::fmt::Display;

use hickory_proto::rr::{Name, RecordType};
use prometheus::Registry;
use smallvec::SmallVec;

use super::{LbLinker, query_for};
use crate::dns::chain::request::{Purpose, Request};
use crate::dns::chain::server::LookUp;
use crate::dns::chain::target_check::TargetOutcome;
use crate::dns::message::ede::Ede;
use crate::dns::message::reply::Reply;
use crate::dns::message::validity::ClientScope;
use crate::dns::plugins::lb_linker::zone::{Hop, Zone, ZoneDependencies};
use crate::metrics::MetricGroup;
use crate::metrics::sharded::ShardedCounterVec;
use crate::model::hostname::to_presentation;

/// The types that a client queries for a host's addresses.
pub(super) const ADDRESS_TYPES: [RecordType; 2] = [RecordType::A, RecordType::AAAA];

/// The reason why a chain ends at a name, or why a record is left out of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Denial {
    /// The name is in the cluster's own domain, or is `localhost`.
    Name,
    /// The name belongs to the zone itself, or to a link in another namespace whose `allow-from` doesn't list the
    /// namespace of the link that leads to the name.
    Namespace,
    /// An `acl` denies this name to the client.
    Acl,
    /// The target policy denies the address.
    Address,
}

impl Denial {
    const fn label(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Namespace => "namespace",
            Self::Acl => "acl",
            Self::Address => "address",
        }
    }

    const fn ede(self) -> Ede {
        match self {
            Self::Address => Ede::FILTERED,
            _ => Ede::BLOCKED,
        }
    }
}

/// Counts answers from which a target's name or address was left out.
#[derive(Debug)]
pub(super) struct Denials(ShardedCounterVec);

impl MetricGroup for Denials {
    fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let (name, help) = (
            "lb_linker_dns_targets_denied_total",
            "Answers about links without a name or an address that the target policy, allow-from or an acl denies.",
        );
        Ok(Self(ShardedCounterVec::register(registry, name, help, &["reason"])?))
    }
}

impl Denials {
    /// Counts an answer from which records are left out, also each time it is reused, and sets its extended DNS error.
    /// Answers of checks aren't counted, because no client gets them.
    pub(super) fn count(&self, request: &Request, reply: &mut Reply, denial: Denial) {
        reply.ede = Some(denial.ede());
        if request.is_check() {
            return;
        }
        let counter = self.0.with(&[denial.label()]);
        counter.add(0, 1);
        if let Some(validity) = &mut reply.validity {
            validity.counters.push(counter);
        }
    }
}

/// The result of checking the names of an answer.
#[derive(Debug, Default)]
pub(super) struct HopCheck {
    pub(super) denial: Option<Denial>,
    /// For each `acl` that was checked, the clients for which its decision is the same.
    clients: Vec<ClientScope>,
    dependencies: Vec<ZoneDependencies>,
    /// Whether the answer must not be reused, because a dependency is unknown.
    is_uncacheable: bool,
}

impl HopCheck {
    /// Makes the reuse of an answer depend on this result.
    pub(super) fn limit_reuse(self, reply: &mut Reply) {
        reply.validity.take_if(|_| self.is_uncacheable);
        let Some(validity) = &mut reply.validity else { return };
        validity.clients.extend(self.clients);
        for ZoneDependencies { links, names } in self.dependencies {
            validity.links.extend(links);
            validity.add_names(names);
        }
    }
}

/// Ends the check of a target whose chain leads to a denied name. Does nothing for a client's query.
pub(super) fn fail_check<T: Display>(request: &Request, name: &Name, why: impl FnOnce() -> T) {
    if let Purpose::Check(check) = &request.purpose {
        check.end(TargetOutcome::Failed(format!("leads to {}: {}", to_presentation(name), why())));
    }
}

pub(super) fn denied_by_acl(request: &Request, name: &Name) -> Denial {
    fail_check(request, name, || "an acl denies it to all clients");
    Denial::Acl
}

impl LbLinker {
    /// Returns the zone of this listener that contains a name, and the name relative to the zone. This plugin's zones
    /// go first.
    pub(super) fn find_zone<'a>(&'a self, request: &'a Request, name: &Name) -> Option<(&'a Zone, Vec<u8>)> {
        let other = || {
            let plugins = request.server.plugins().map(|plugin| -> &dyn Any { &**plugin });
            plugins.filter_map(<dyn Any>::downcast_ref::<Self>).find_map(|plugin| plugin.zone_of(name))
        };
        self.zone_of(name).or_else(other)
    }

    /// Checks a name outside our zones in a chain; returns whether the chain may continue there.
    pub(super) fn allows_name(&self, request: &Request, name: &Name, hop_check: &mut HopCheck) -> bool {
        let qtype = request.query.query_type();
        let denial = match self.check_name(request, name) {
            Ok(()) if self.is_denied_by_acl(request, name, qtype, hop_check) => {
                Some(denied_by_acl(request, name))
            }
            checked => checked.err(),
        };
        hop_check.denial = denial.or(hop_check.denial);
        denial.is_none()
    }

    /// Checks any name of a chain against the target policy.
    ///
    /// # Errors
    /// Fails if the name is denied.
    pub(super) fn check_name(&self, request: &Request, name: &Name) -> Result<(), Denial> {
        self.policy.check_name(name).map_err(|denied| {
            fail_check(request, name, || denied);
            Denial::Name
        })
    }

    /// Checks the names on the way to the host of a link's SRV records, or the name of a zone's name server. Returns
    /// the address types that the client may query for all of these names.
    ///
    /// # Errors
    /// Fails if one of the names is denied, or if no type is left.
    pub(super) fn address_types(
        &self,
        request: &Request,
        hops: &[Hop],
        hop_check: &mut HopCheck,
    ) -> Result<SmallVec<[RecordType; 2]>, Denial> {
        let mut types = SmallVec::from(ADDRESS_TYPES);
        for Hop { name, target_of } in hops {
            if let Some(link) = target_of
                && let Some(denial) = self.denial_of_target(request, link.key.namespace(), name, hop_check)
            {
                return Err(denial);
            }
            types.retain(|qtype| !self.is_denied_by_acl(request, name, *qtype, hop_check));
        }
        if types.is_empty() { Err(Denial::Acl) } else { Ok(types) }
    }

    /// Checks a host name in a record of a link in `namespace`; returns whether the record may stay.
    pub(super) fn allows_data(
        &self,
        request: &Request,
        namespace: &str,
        name: &Name,
        hop_check: &mut HopCheck,
    ) -> bool {
        let mut denial = self.denial_of_target(request, namespace, name, hop_check);
        // The name may stay if the client may query at least one address family.
        if denial.is_none()
            && ADDRESS_TYPES.into_iter().all(|qtype| self.is_denied_by_acl(request, name, qtype, hop_check))
        {
            denial = Some(Denial::Acl);
        }
        hop_check.denial = denial.or(hop_check.denial);
        denial.is_none()
    }

    /// Returns the reason, independent of the client, why a name can't be a target of a link in `namespace`.
    fn denial_of_target(
        &self,
        request: &Request,
        namespace: &str,
        name: &Name,
        hop_check: &mut HopCheck,
    ) -> Option<Denial> {
        if self.policy.check_name(name).is_err() {
            return Some(Denial::Name);
        }
        if let Some((zone, relative)) = self.find_zone(request, name) {
            let found = zone.answer(&self.store, name, &relative, RecordType::ANY);
            let is_open = found.is_open_to(namespace);
            match found.dependencies {
                Some(dependencies) => hop_check.dependencies.push(dependencies),
                None => hop_check.is_uncacheable = true,
            }
            if !is_open {
                return Some(Denial::Namespace);
            }
        }
        None
    }

    pub(super) fn is_denied_by_acl(
        &self,
        request: &Request,
        name: &Name,
        qtype: RecordType,
        hop_check: &mut HopCheck,
    ) -> bool {
        let mut query = query_for(request, name);
        query.set_query_type(qtype);
        let is_ours = self.find_zone(request, name).is_some();
        let look_up = if is_ours { LookUp::Stored } else { LookUp::Target };
        let access = request.server.access(&query, request, look_up);
        hop_check.clients.extend(access.clients);
        access.is_denied
    }
}
