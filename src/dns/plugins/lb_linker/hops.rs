//! Which names a chain may lead to, for one client: the target policy, the links' `allow-from`, and the `acl` of the
//! block that the name is for. The same rules hold for each name of a chain, whichever answer it is from.

use std::any::Any;

use hickory_proto::rr::{Name, RecordType};
use prometheus::Registry;
use smallvec::SmallVec;

use super::{LbLinker, query_for};
use crate::dns::chain::request::Request;
use crate::dns::chain::server::LookUp;
use crate::dns::message::ede::Ede;
use crate::dns::message::reply::Reply;
use crate::dns::message::validity::ClientScope;
use crate::dns::plugins::lb_linker::zone::{Hop, Zone, ZoneDependencies};
use crate::metrics::MetricGroup;
use crate::metrics::sharded::ShardedCounterVec;

/// What a client asks for that has got the name of a host.
const ADDRESS_TYPES: [RecordType; 2] = [RecordType::A, RecordType::AAAA];

/// Why a chain ends at a name, or a record is left out of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Denial {
    /// The name lies in the cluster's own domain, or is `localhost`.
    Name,
    /// It is a name of another namespace's link, whose Service doesn't allow it.
    Namespace,
    /// An `acl` denies the client that name.
    Acl,
    /// It is an address that no target may have.
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

    /// Returns what clients that speak EDNS are told.
    const fn ede(self) -> Ede {
        match self {
            Self::Address => Ede::FILTERED,
            _ => Ede::BLOCKED,
        }
    }
}

/// Counts answers in which something of a target was denied.
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
    /// Counts an answer from which something is left out, now and each time it is repeated, and says so to the client.
    pub(super) fn count(&self, reply: &mut Reply, denial: Denial) {
        let counter = self.0.with(&[denial.label()]);
        counter.add(0, 1);
        if let Some(repeat) = &mut reply.repeat {
            repeat.counts.push(counter);
        }
        reply.ede = Some(denial.ede());
    }
}

/// What looking at the names of an answer has shown.
#[derive(Debug, Default)]
pub(super) struct HopCheck {
    /// Why something was left out, if it was.
    pub(super) denial: Option<Denial>,
    /// For which clients an `acl` says the same.
    clients: Vec<ClientScope>,
    /// Which links and names it depended on.
    dependencies: Vec<ZoneDependencies>,
    /// Whether it isn't known how long it holds.
    is_for_now: bool,
}

impl HopCheck {
    /// Has an answer hold as long as this does.
    pub(super) fn bind(self, reply: &mut Reply) {
        reply.repeat.take_if(|_| self.is_for_now);
        let Some(repeat) = &mut reply.repeat else { return };
        repeat.clients.extend(self.clients);
        for ZoneDependencies { links, names } in self.dependencies {
            repeat.links.extend(links);
            repeat.rest_on_names(names);
        }
    }
}

impl LbLinker {
    /// Returns the zone of this listener that a name is in, and the name relative to it. One of its own comes first.
    pub(super) fn place_of<'a>(&'a self, request: &'a Request, name: &Name) -> Option<(&'a Zone, Vec<u8>)> {
        let other = || {
            let plugins = request.server.plugins().map(|plugin| -> &dyn Any { &**plugin });
            plugins.filter_map(<dyn Any>::downcast_ref::<Self>).find_map(|plugin| plugin.zone_of(name))
        };
        self.zone_of(name).or_else(other)
    }

    /// Looks at a name outside our zones that a chain leads to; returns whether it may.
    pub(super) fn allows_name(&self, request: &Request, name: &Name, looked: &mut HopCheck) -> bool {
        if self.policy.check_name(name).is_err() {
            looked.denial = Some(Denial::Name);
            return false;
        }
        let is_denied = self.denies(request, name, request.query.query_type(), looked);
        if is_denied {
            looked.denial = Some(Denial::Acl);
        }
        !is_denied
    }

    /// Looks at the names that lead to the host of a link's SRV records, or at a zone's name server. Returns for which
    /// types of addresses the client may ask at each of them.
    ///
    /// # Errors
    /// If one of the names is denied, or no type is left.
    pub(super) fn address_types(
        &self,
        request: &Request,
        hops: &[Hop],
        looked: &mut HopCheck,
    ) -> Result<SmallVec<[RecordType; 2]>, Denial> {
        let mut types = SmallVec::from(ADDRESS_TYPES);
        for Hop { name, target_of } in hops {
            if let Some(link) = target_of
                && let Some(denial) = self.denial_of_target(request, link.key.namespace(), name, looked)
            {
                return Err(denial);
            }
            types.retain(|qtype| !self.denies(request, name, *qtype, looked));
        }
        if types.is_empty() { Err(Denial::Acl) } else { Ok(types) }
    }

    /// Looks at a name in the data of a record of a link in `namespace`, which the client will ask for addresses of;
    /// returns whether it may stay.
    pub(super) fn allows_data(
        &self,
        request: &Request,
        namespace: &str,
        name: &Name,
        looked: &mut HopCheck,
    ) -> bool {
        let mut denial = self.denial_of_target(request, namespace, name, looked);
        // Where the client may ask for one family, it may have the name.
        if denial.is_none()
            && ADDRESS_TYPES.into_iter().all(|qtype| self.denies(request, name, qtype, looked))
        {
            denial = Some(Denial::Acl);
        }
        looked.denial = denial.or(looked.denial);
        denial.is_none()
    }

    /// Returns why a name is no target for a link in `namespace`, whichever client asks.
    fn denial_of_target(
        &self,
        request: &Request,
        namespace: &str,
        name: &Name,
        looked: &mut HopCheck,
    ) -> Option<Denial> {
        if self.policy.check_name(name).is_err() {
            return Some(Denial::Name);
        }
        if let Some((zone, relative)) = self.place_of(request, name) {
            let found = zone.answer(&self.store, name, &relative, RecordType::ANY);
            let is_open = found.is_open_to(namespace);
            match found.dependencies {
                Some(dependencies) => looked.dependencies.push(dependencies),
                None => looked.is_for_now = true,
            }
            if !is_open {
                return Some(Denial::Namespace);
            }
        }
        None
    }

    /// Returns whether an `acl` denies the client a question.
    pub(super) fn denies(
        &self,
        request: &Request,
        name: &Name,
        qtype: RecordType,
        looked: &mut HopCheck,
    ) -> bool {
        let mut query = query_for(request, name);
        query.set_query_type(qtype);
        let is_ours = self.place_of(request, name).is_some();
        let look_up = if is_ours { LookUp::Stored } else { LookUp::Target };
        let access = request.server.access(&query, request, look_up);
        looked.clients.extend(access.clients);
        access.is_denied
    }
}
