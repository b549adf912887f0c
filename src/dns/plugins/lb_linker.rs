//! # Name
//!
//! *lb_linker* - answers for the links: the names of load balancers, and the records of their targets.
//!
//! # Description
//!
//! Each LoadBalancer Service that lb-linker follows has its names in every zone of this plugin;
//! [concepts.md](concepts.md#names) describes the names, [DNS answers](concepts.md#dns-answers) the answers. A query
//! with RD for other types than CNAME also gets the records of the CNAME's target: the hostname is looked up through
//! the server block of the same listener that is responsible for it, so a block with `forward` is needed for that, as
//! in the [example](corefile.md).
//!
//! Each name in a chain of CNAME records is [checked](concepts.md#the-whole-chain-is-checked). Besides, a chain ends at
//! a name that belongs to a zone itself (`apex`), and at a name for which an `acl` of the responsible block denies the
//! client the query. Addresses in the additional section for SRV and NS records, and in the hints of SVCB and HTTPS
//! records, are left out if an `acl` denies the client a query for them.
//!
//! CoreDNS has no such plugin; it stands before `k8s_external` in the order. `cache` never caches its answers,
//! but the targets' records under their own names. All blocks answer from the same links. A custom hostname may be in a
//! zone of any block.
//!
//! [*transfer*](#transfer) may name the zones, reverse zones too: see [zone transfers](transfers.md).
//!
//! # Syntax
//!
//! Syntax: `lb_linker [ZONES...]`: the zones with the links' names, by default those of the block without reverse zones
//! and the root. A zone that equals, holds or lies in the cluster's own domain (`--cluster-domain`), or a zone of
//! *kubernetes* on the same address, is refused: one would hide names of the other. Options:
//!
//! - `ttl SECONDS`: the TTL of records and negative answers, 0 to 3600, 5 by default. A Service's annotation overrides
//!   it.
//! - `apex LABEL`: the label below each zone that is reserved for the zone itself, `dns` by default: its name server is
//!   `ns.LABEL.<zone>`. `ns ADDRESS...`: the addresses of that name server, by default those that the block is bound
//!   to, or else those of the Pod (POD_IPS), or else those of the machine.
//! - `reverse CIDR...`: networks with reverse zones to answer: an address of a load balancer has a PTR record with the
//!   load balancer's name in the first of **ZONES**. The zones of the block have to include these reverse zones:
//!   `lb.internal 10.20.0.0/16` for `reverse 10.20.0.0/16`.
//! - `sources SOURCE...`: the [sources](sources.md) of the names, `service`, `ingress`, `gateway` and `dnsendpoint`, in
//!   the order in which they get a name; `service` by default. `ingress_classes CLASS...`: only Ingresses of these classes
//!   have names here. `gateway_classes CLASS...`: only routes at Gateways of these classes. Blocks with the same zone need
//!   the same sources and classes.
//! - `fallthrough [ZONES...]` passes queries for names that don't exist to the next plugin; with **ZONES**, only names
//!   in these.

pub mod chase;
pub(crate) mod failed_targets;
mod hops;
mod options;
mod target_check;
mod target_resolver;
#[cfg(test)]
mod tests;
pub mod zone;

use std::any::Any;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use async_trait::async_trait;
use hickory_proto::op::{Query, ResponseCode};
use hickory_proto::rr::{DNSClass, Name, Record, RecordType};
use prometheus::{IntCounter, IntGauge, Registry};
use tokio::time::Instant;

use super::clients::{self, ProhibitedQueries};
use super::setup::{LinkLine, Setup};
use crate::dns::chain::plugin::{ChainPlugin, Next, Plugin, PluginError, PluginResult};
use crate::dns::chain::request::{Purpose, Request};
use crate::dns::chain::server::{LookUp, Server};
use crate::dns::chain::target_check::{NOT_RESOLVED, TargetOutcome};
use crate::dns::chain::zone_state::{SharedCopy, TransferredZone};
use crate::dns::corefile::CorefileError;
use crate::dns::message::alias::is_alias;
use crate::dns::message::ede::{Ede, pass_on};
use crate::dns::message::reply::Reply;
use crate::dns::message::validity::{Section, Serial, TtlCountdown, Validity};
use crate::dns::message::zone_set::ZoneSet;
use crate::dns::net::Protocol;
use crate::dns::plugins::lb_linker::chase::{
    ChainEnd, ChainStep, CnameChain, drop_denied, drop_hints, follow, negative_ttl,
};
use crate::dns::plugins::lb_linker::zone::state::TransferredLinkZone;
use crate::dns::plugins::lb_linker::zone::{Zone, ZoneAnswer, closest_first};
use crate::metrics::{self, registered};
use crate::model::link::{IpFamily, Link};
use crate::model::service_key::ServiceKey;
use crate::model::target_policy::TargetPolicy;
use crate::readiness::Readiness;
use crate::store::sources::FirstNames;
use crate::store::target_chain::MAX_LOOK_UPS;
use crate::store::{Input, Store};
use failed_targets::FailedTargetsGauge;
use hops::{Denial, Denials, HopCheck, denied_by_acl, fail_check};
use target_resolver::{CLIENT_TIMEOUT, ResolveOptions, Resolved, TargetResolvers, query_for};

pub use options::{LinkZone, OwnKubeconfig};
pub(super) use options::{LinkZoneOptions, MAX_TTL, add_classes, parse};

pub(super) const NAME: &str = "lb_linker";

/// The plugin *lb_linker*, or *k8s_gateway*, whose zones have other rules.
#[derive(Debug)]
pub struct LbLinker {
    plugin: &'static str,
    /// The name of the block's view.
    view: Option<Arc<str>>,
    /// The zones, the most specific first.
    zones: Arc<[Zone]>,
    fallthrough: Option<ZoneSet>,
    first_names: Arc<FirstNames>,
    store: Arc<Store>,
    readiness: Arc<Readiness>,
    policy: Arc<TargetPolicy>,
    denials: Arc<Denials>,
    prohibited: Arc<ProhibitedQueries>,
    targets: TargetResolvers,
    stale_answers: IntCounter,
    /// The store for transfers that are under way.
    copy: Arc<SharedCopy<Store>>,
}

#[derive(Debug)]
struct LbLinkerMetrics {
    targets_failing: FailedTargetsGauge,
    stale_answers: IntCounter,
}

impl metrics::MetricGroup for LbLinkerMetrics {
    fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let failing = IntGauge::new(
            "lb_linker_dns_targets_failing",
            "Targets, by name and type, that can't be resolved: their last look-up has failed.",
        );
        let stale = IntCounter::new(
            "lb_linker_dns_stale_answers_total",
            "Last known addresses that were given because no upstream answered.",
        );
        Ok(Self {
            targets_failing: registered(registry, failing.map(FailedTargetsGauge::new))?,
            stale_answers: registered(registry, stale)?,
        })
    }
}

/// Returns the targets of links whose last look-up has failed.
///
/// # Errors
/// If two metrics have the same name.
pub fn failed_targets(metrics: &metrics::Metrics) -> Result<FailedTargetsGauge, prometheus::Error> {
    Ok(metrics.group::<LbLinkerMetrics>()?.targets_failing.clone())
}

pub(super) fn set_up(setup: &mut Setup<'_>) -> Result<(), CorefileError> {
    let options = parse(setup.only_line()?, setup.zones)?;
    add_link_zones(setup, options, NAME)
}

/// Adds the zones of a line to the block.
pub(super) fn add_link_zones(
    setup: &mut Setup<'_>,
    options: LinkZoneOptions,
    plugin: &'static str,
) -> Result<(), CorefileError> {
    let mut zones =
        options.zones(|| (setup.context.own_addresses)(&setup.builder.bind), &setup.context.remotes)?;
    closest_first(&mut zones);
    let serial = setup.context.store.change_serial();
    let transferred = zones.iter_mut().filter(|zone| setup.is_transferred(zone.origin()));
    if transferred.map(|zone| zone.set_serial(serial.clone())).count() > 0 {
        let store = Arc::clone(&setup.context.store);
        setup.show_serials(vec![serial], move || store.note_other_answers());
    }
    let (denials, prohibited) = (setup.metrics()?, setup.metrics()?);
    let metrics = setup.metrics::<LbLinkerMetrics>()?;
    let context = setup.context;
    let first_names = Arc::new(FirstNames::of(zones.iter().map(|zone| zone.configured().clone()).collect()));
    setup.builder.first_names.push(Arc::clone(&first_names));
    let line = setup.only_line()?.position().clone();
    let view = setup.view();
    let lb_linker = Arc::new(LbLinker {
        plugin,
        view: view.clone(),
        zones: zones.into(),
        first_names,
        fallthrough: options.fallthrough,
        store: Arc::clone(&context.store),
        readiness: Arc::clone(&context.readiness),
        policy: Arc::clone(&context.targets),
        denials,
        prohibited,
        targets: TargetResolvers::new(
            Arc::clone(&context.stale_caches),
            view,
            &metrics.targets_failing,
            Arc::clone(&context.targets),
        ),
        stale_answers: metrics.stale_answers.clone(),
        copy: Arc::default(),
    });
    let origins = || lb_linker.zones.iter().map(|zone| zone.origin().clone());
    setup.builder.link_zones = ZoneSet::new(setup.builder.link_zones.all().iter().cloned().chain(origins()));
    setup.builder.link_lines.extend(origins().map(|zone| LinkLine { zone, plugin, position: line.clone() }));
    setup.builder.plugins.push(ChainPlugin::reusable(lb_linker));
    Ok(())
}

#[async_trait]
impl Plugin for LbLinker {
    fn name(&self) -> &'static str {
        self.plugin
    }

    async fn serve(&self, request: &mut Request, next: Next<'_>) -> PluginResult {
        let name = request.query.name();
        let Some((zone, relative)) = self.zone_of(name) else { return next.serve(request).await };
        if request.query.query_class() != DNSClass::IN {
            return Err(PluginError::new(ResponseCode::Refused, ""));
        }
        let ttl = zone.negative_ttl();
        let falls_through = self.fallthrough.as_ref().is_some_and(|zones| zones.contains(name));
        let mut reply = request.reply(self.plugin);
        reply.is_cacheable = false;
        reply.metadata.authoritative = true;
        let anywhere = Query::query(Name::root(), RecordType::A);
        let access = request.server.access(&anywhere, request, LookUp::Query);
        reply.metadata.recursion_available = access.allows_recursion == Some(true);
        let family = family_of(request.query.query_type());
        reply.validity = Some(Box::new(Validity { clients: access.clients, family, ..Validity::default() }));
        let is_missing =
            self.follow(request, &mut reply, Some((zone, relative)), ChaseState::new(ttl, None)).await;
        if is_missing && falls_through {
            if self.prohibits(request) {
                self.prohibited.record(request);
                return Ok(clients::refusal(request, self.plugin));
            }
            let mut reply = next.serve(request).await?;
            // A link may get this name at any time.
            reply.is_cacheable = false;
            reply.validity = None;
            if reply.records.count(Section::Answer) == 0 {
                reply.records.authorities.iter_mut().for_each(|record| record.ttl = record.ttl.min(ttl));
            }
            return Ok(reply);
        }
        Ok(reply)
    }

    fn transferred_zone(&self, origin: &Name) -> Option<Arc<dyn TransferredZone>> {
        let zone = self.zones.iter().find(|zone| zone.origin() == origin && zone.serial().is_some())?;
        let (all, store, policy) =
            (Arc::clone(&self.zones), Arc::clone(&self.store), Arc::clone(&self.policy));
        let copy = Arc::clone(&self.copy);
        Some(Arc::new(TransferredLinkZone { zone: zone.clone(), all, store, policy, copy }))
    }

    fn transferred_origins(&self) -> Vec<Name> {
        self.zones.iter().filter(|zone| zone.serial().is_some()).map(|zone| zone.origin().clone()).collect()
    }

    fn is_ready(&self) -> bool {
        let is_known = self.store.is_known(Input::Services) && self.first_names.is_ready(&self.store);
        is_known || self.store.fallback().is_some()
    }

    fn note(&self) -> Option<String> {
        let snapshot_links = self.store.fallback();
        let is_reading = !self.store.is_known(Input::Services) && snapshot_links.is_none();
        let reading = self.readiness.list.load_full().filter(|_| is_reading);
        let reading = reading.map(|why| format!("the load balancers haven't been read yet: {why}"));
        let remotes = self.store.unlisted_remotes();
        let unlisted = self.first_names.unlisted(&self.store).into_iter().chain(&remotes);
        let snapshot = snapshot_links.map(|snapshot_links| snapshot_links.to_string());
        let start = snapshot.or(reading);
        let manifests = self.readiness.manifests.load_full().map(|note| note.to_string());
        // The note about the start says how old the links are.
        let of_cluster = if start.is_some() { self.readiness.of_cluster() } else { self.readiness.of_view() };
        let notes = start.into_iter().chain(self.readiness.of_sources(unlisted, |_| true)).chain(manifests);
        let notes: Vec<String> = notes.chain(of_cluster).chain(self.readiness.of_statuses()).collect();
        (!notes.is_empty()).then(|| notes.join("\n"))
    }

    fn invalidate(&self, name: Option<&[u8]>) {
        self.targets.forget(name, |name| self.store.is_target(name));
    }
}

impl LbLinker {
    #[must_use]
    pub fn all_of(server: &Server) -> Vec<Arc<Self>> {
        let mut all: Vec<Arc<Self>> = Vec::new();
        for plugin in server.plugins() {
            let plugin: Arc<dyn Any + Send + Sync> = Arc::<dyn Plugin>::clone(plugin);
            if let Ok(plugin) = plugin.downcast::<Self>()
                && !all.iter().any(|known| Arc::ptr_eq(known, &plugin))
            {
                all.push(plugin);
            }
        }
        all
    }

    /// Resolves a link's new target before clients query it.
    pub async fn prefetch(&self, server: &Arc<Server>, link: &ServiceKey, query: Query) {
        let absence = self.zones.iter().map(Zone::negative_ttl).min().unwrap_or_default();
        if self.policy.check_name(query.name()).is_err() {
            return;
        }
        // This request isn't from a client, so no `acl` applies; each client that gets the answer is checked.
        let request = self.own_request(server, query);
        if server.allows_recursion(&request.query, &request, LookUp::Target) == Some(false) {
            return;
        }
        self.targets.of(server).prefetch(link, &request, Duration::from_secs(absence.into())).await;
    }

    /// Returns the name of the block's view; `None` without one.
    #[must_use]
    pub fn view_name(&self) -> Option<&str> {
        self.view.as_deref()
    }

    /// Returns a request of lb-linker itself, in the view of the block.
    fn own_request(&self, server: &Arc<Server>, query: Query) -> Request {
        Request { view: self.view.clone(), ..server.internal_request(query) }
    }

    /// Returns whether *clients* refuses a name that falls through, because such a name counts as outside the zones.
    fn prohibits(&self, request: &Request) -> bool {
        clients::is_client_query(request)
            && request.server.allows_recursion(&request.query, request, LookUp::Query) == Some(false)
    }

    /// Returns the most specific zone that contains a name, and the name relative to the zone.
    fn zone_of(&self, name: &Name) -> Option<(&Zone, Vec<u8>)> {
        self.zones.iter().find_map(|zone| Some((zone, zone.relative(name)?)))
    }

    /// Follows the chain from the queried name, at `place` in our zones or outside of them. Answers with authority, and
    /// resolves a CNAME's target, because a stub resolver doesn't. Returns whether the queried name itself doesn't
    /// exist.
    async fn follow(
        &self,
        request: &Request,
        reply: &mut Reply,
        mut place: Option<(&Zone, Vec<u8>)>,
        mut chase: ChaseState<'_>,
    ) -> bool {
        let qtype = request.query.query_type();
        let mut name = request.query.name().clone();
        let mut seen: Vec<Name> = Vec::new();
        // A client comes to a checked name from a link, whose own name counts, too.
        let depth = request.depth + usize::from(chase.checked_for.is_some());
        while !seen.contains(&name) && depth + seen.len() < MAX_LOOK_UPS {
            let next = match place {
                Some((zone, relative)) => {
                    let mut answer = zone.answer(&self.store, &name, &relative, qtype);
                    if let Some(namespace) = chase.namespace()
                        && !answer.is_open_to(namespace)
                    {
                        fail_check(request, &name, || answer.denied_to(namespace));
                        answer.answers.clear();
                        self.add_dependencies(reply, zone, &mut answer);
                        self.deny(request, reply, &mut chase, Denial::Namespace);
                        return false;
                    }
                    if !request.is_check() {
                        answer.link.iter().for_each(|link| record_queried_family(link, qtype));
                    }
                    self.add_dependencies(reply, zone, &mut answer);
                    if !answer.hops.is_empty() {
                        self.filter_srv_records(request, reply, zone, &mut answer);
                    }
                    reply.metadata.response_code = answer.rcode;
                    // If an earlier part of the chain is stale, its EDE stays.
                    reply.ede = answer.ede.or(reply.ede);
                    reply.records.answers.extend(answer.answers);
                    reply.records.authorities = answer.authorities;
                    reply.records.additionals = answer.additionals;
                    chase.link = answer.link;
                    answer.target
                }
                // Boxed, because this future is large and most queries don't need it.
                None => Box::pin(self.chase(request, reply, &name, &mut chase)).await,
            };
            let Some(next) = next else {
                chase.cap_alias_ttls(reply);
                return seen.is_empty() && reply.metadata.response_code == ResponseCode::NXDomain;
            };
            place = self.find_zone(request, &next);
            match self.step(request, reply, &next, place.is_some()) {
                Ok(true) => {}
                Ok(false) => return false,
                Err(denial) => {
                    self.deny(request, reply, &mut chase, denial);
                    return false;
                }
            }
            seen.push(name);
            name = next;
        }
        fail(reply, Ede::LOOP);
        false
    }

    /// Returns whether a chain continues at a name, in our zones or outside of them.
    ///
    /// # Errors
    /// Fails if the name is denied.
    fn step(&self, request: &Request, reply: &mut Reply, name: &Name, is_ours: bool) -> Result<bool, Denial> {
        if !is_ours && !request.metadata.recursion_desired {
            return Ok(false);
        }
        if let Purpose::Check(check) = &request.purpose
            && let Some(link) = self.store.link_of_host(name)
        {
            check.note_link(&link.key);
        }
        self.check_name(request, name)?;
        let query = query_for(request, name);
        let look_up = match query.query_type() {
            _ if is_ours => LookUp::Stored,
            qtype if is_for_every_client(qtype) => LookUp::Target,
            _ => LookUp::Query,
        };
        let access = request.server.access(&query, request, look_up);
        if let Some(validity) = &mut reply.validity {
            validity.clients.extend(access.clients);
        }
        if access.is_denied {
            return Err(denied_by_acl(request, name));
        }
        if is_ours || access.allows_recursion != Some(false) {
            return Ok(true);
        }
        if let Purpose::Check(check) = &request.purpose {
            check.end(TargetOutcome::Inconclusive(NOT_RESOLVED.to_owned()));
        }
        if look_up == LookUp::Query
            && request.server.allows_recursion(&query, request, LookUp::Target) != Some(false)
        {
            reply.ede = Some(Ede::PROHIBITED);
        }
        Ok(false)
    }

    /// Ends a chain at a denied name: the client gets the CNAME records before that name.
    fn deny(&self, request: &Request, reply: &mut Reply, chase: &mut ChaseState<'_>, denial: Denial) {
        reply.metadata.response_code = ResponseCode::NoError;
        reply.records.authorities.clear();
        reply.records.additionals.clear();
        if let Some(validity) = &mut reply.validity {
            validity.replace_authority(0, None, u32::MAX);
        }
        self.denials.count(request, reply, denial);
        // Caches must not keep a denial longer than the negative TTL: `allow-from` may change.
        chase.alias_only_is_nodata = true;
        chase.cap_alias_ttls(reply);
    }

    /// Removes a link's SRV records if their host is denied, or is reached through a denied name. Removes the addresses
    /// of an SRV record's host or of a zone's name server that the client may not query.
    fn filter_srv_records(&self, request: &Request, reply: &mut Reply, zone: &Zone, answer: &mut ZoneAnswer) {
        let mut hop_check = HopCheck::default();
        let denial = match self.address_types(request, &answer.hops, &mut hop_check) {
            Ok(types) => {
                let number = answer.additionals.len();
                answer.additionals.retain(|record| types.contains(&record.record_type()));
                (answer.additionals.len() < number).then_some(Denial::Acl)
            }
            // All SRV records of a link have the same host, so the answer becomes empty.
            Err(denial) if answer.link.is_some() => {
                let store = Arc::clone(answer.snapshot.as_ref().unwrap_or(&self.store));
                zone.clear(&store, answer);
                Some(denial)
            }
            Err(denial) => {
                let number = answer.additionals.drain(..).count();
                (number > 0).then_some(denial)
            }
        };
        if let Some(denial) = denial {
            self.denials.count(request, reply, denial);
        }
        hop_check.limit_reuse(reply);
        if answer.answers.is_empty()
            && let Some(validity) = &mut reply.validity
        {
            validity.serial = self.serial_of(zone, answer, 0);
        }
    }

    /// Adds the dependencies of a zone's answer to the reply; must run before the records are added to the reply.
    fn add_dependencies(&self, reply: &mut Reply, zone: &Zone, answer: &mut ZoneAnswer) {
        let (Some(validity), Some(dependencies)) = (&mut reply.validity, answer.dependencies.take()) else {
            reply.validity = None;
            return;
        };
        validity.links.extend(dependencies.links);
        validity.add_names(dependencies.names);
        validity.replace_authority(0, None, u32::MAX);
        validity.serial = self.serial_of(zone, answer, reply.records.answers.len());
    }

    /// Returns where the SOA record of an answer will be in the reply, after `start` other records; `None` without an
    /// SOA record, or if its serial never changes, because it is that of a snapshot.
    fn serial_of(&self, zone: &Zone, answer: &ZoneAnswer, start: usize) -> Option<Serial> {
        let current = match zone.serial() {
            Some(serial) => serial.shown(),
            None if answer.snapshot.is_some() => return None,
            None => self.store.current_serial(),
        };
        soa_position(current, start, &answer.answers, &answer.authorities)
    }

    /// Adds a target's records; returns the next name if the chain leads back to a name in our zones. The response code
    /// is that of the last name in the chain (RFC 6604 section 3).
    async fn chase(
        &self,
        request: &Request,
        reply: &mut Reply,
        name: &Name,
        chase: &mut ChaseState<'_>,
    ) -> Option<Name> {
        let query = query_for(request, name);
        let found = match self.resolve_present_target(request, &query, chase).await {
            Ok(found) => found,
            Err(ede) => {
                fail(reply, ede);
                return None;
            }
        };
        let is_absence = found.is_absence(&query);
        let TargetAnswer { resolved: known, mut chain, check: hop_check } = found;
        if known.stale {
            self.stale_answers.inc();
            reply.ede = Some(Ede::STALE);
        } else if matches!(chain.end, ChainEnd::InLinkZone(_)) && !request.is_check() {
            self.targets.of(&request.server).remember(request, &query, &known.reply);
        }
        if known.stale || chain.end == ChainEnd::Unresolved {
            reply.validity = None;
        }
        if let Some(denial) = hop_check.denial.filter(|_| chain.end != ChainEnd::Denied) {
            self.denials.count(request, reply, denial);
        }
        let denial = hop_check.denial;
        hop_check.limit_reuse(reply);
        add_target_dependencies(reply, &known.reply, &chain, chase, is_absence);
        let is_cut =
            known.reply.metadata.truncation && matches!(chain.end, ChainEnd::Final(_) | ChainEnd::Unresolved);
        if is_cut && request.protocol != Protocol::Udp && !request.is_check() {
            // Only a UDP client repeats its query by TCP.
            fail(reply, Ede::TRUNCATED);
            return None;
        }
        if is_cut && let Purpose::Check(check) = &request.purpose {
            // Clients that repeat their query by TCP get no address.
            check.end(target_resolver::unresolved(&known.reply));
        }
        reply.records.answers.append(&mut chain.answers);
        reply.records.authorities = chain.authorities;
        // The extended errors of a stale answer are outdated.
        if !known.stale {
            pass_on(&known.reply.options, &mut reply.options);
        }
        reply.metadata.truncation |= is_cut;
        let refused = known.reply.metadata.response_code == ResponseCode::Refused;
        chase.alias_only_is_nodata = !refused;
        match chain.end {
            ChainEnd::Final(rcode) => reply.metadata.response_code = rcode,
            ChainEnd::InLinkZone(name) => return Some(name),
            ChainEnd::Denied => self.deny(request, reply, chase, denial.unwrap_or(Denial::Name)),
            // The upstream refused the query: answer with the CNAMEs alone, so that the client can ask another server.
            ChainEnd::Unresolved if refused && !request.is_check() => {}
            // The client asks again by TCP.
            ChainEnd::Unresolved if is_cut && known.reply.metadata.response_code == ResponseCode::NoError => {
            }
            ChainEnd::Unresolved => {
                fail(reply, Ede::TARGET_FAILED);
                if let Purpose::Check(check) = &request.purpose {
                    check.end(target_resolver::unresolved(&known.reply));
                }
            }
        }
        None
    }

    /// Resolves a target. A target that doesn't exist is resolved again if that was found out too long ago.
    async fn resolve_present_target(
        &self,
        request: &Request,
        query: &Query,
        chase: &ChaseState<'_>,
    ) -> Result<TargetAnswer, Ede> {
        let found = self.resolve_target(request, query, chase, true).await?;
        // The cache doesn't see every denial as such, for example if all addresses of an answer are denied.
        let is_outdated = found.is_absence(query) && !found.age().is_zero() && found.age() >= chase.absence();
        if !is_outdated {
            return Ok(found);
        }
        Ok(self.resolve_target(request, query, chase, false).await.unwrap_or(found))
    }

    /// Resolves a target, and extracts the records that belong to it.
    async fn resolve_target(
        &self,
        request: &Request,
        query: &Query,
        chase: &ChaseState<'_>,
        accepts_cached: bool,
    ) -> Result<TargetAnswer, Ede> {
        let wanted = ResolveOptions {
            link: chase.link.as_ref().map(|link| &link.key),
            deadline: chase.deadline,
            max_negative_age: chase.absence(),
            accepts_cached,
        };
        let known = if request.is_check() {
            // Boxed, so that clients' queries don't need space for this future.
            let reply = Box::pin(Server::look_up(request, query.clone(), request.purpose.clone())).await;
            Resolved { reply: Arc::new(reply.ok_or(Ede::NO_UPSTREAM)?), stale: false }
        } else {
            self.targets.of(&request.server).resolve(request, query, wanted).await?
        };
        let mut hop_check = HopCheck::default();
        let step = |name: &Name| {
            if request.server.is_link_name(name) {
                ChainStep::LinkZone
            } else if self.allows_name(request, name, &mut hop_check) {
                ChainStep::InAnswer
            } else {
                ChainStep::Denied
            }
        };
        let mut chain = follow(&known.reply, query.name(), query.query_type(), chase.negative_ttl, step);
        let server = &request.server;
        chain.drop_records_about_our_zones(
            |name| server.is_link_name(name),
            |name| server.has_link_zones_below(name),
        );
        // A chain outside our zones started at a link, or at the target of a check.
        let namespace = chase.namespace().unwrap_or_default();
        let found: Vec<IpAddr> = match request.is_check() {
            true => chain.answers.iter().filter_map(|record| record.data.ip_addr()).collect(),
            false => Vec::new(),
        };
        let allows = |name: &Name| self.allows_data(request, namespace, name, &mut hop_check);
        let has_denied_addresses = drop_denied(&mut chain.answers, &self.policy, allows);
        if has_denied_addresses {
            hop_check.denial.get_or_insert(Denial::Address);
            if let Purpose::Check(check) = &request.purpose
                && !known.reply.metadata.truncation
                && !chain.answers.iter().any(|record| record.data.ip_addr().is_some())
            {
                check.end(target_resolver::only_denied(&found));
            }
        }
        let allows = |host: &Name, qtype| !self.is_denied_by_acl(request, host, qtype, &mut hop_check);
        if drop_hints(&mut chain.answers, allows) {
            hop_check.denial.get_or_insert(Denial::Acl);
        }
        Ok(TargetAnswer { resolved: known, chain, check: hop_check })
    }
}

/// The state that all look-ups of a query share.
struct ChaseState<'a> {
    /// The time at which the client gets an answer, even if a look-up is still under way.
    deadline: Instant,
    /// The maximum negative TTL, in seconds.
    negative_ttl: u32,
    /// Whether a reply that has only CNAME and DNAME records means NODATA. Otherwise the client looks the target up.
    alias_only_is_nodata: bool,
    /// The link that leads to the current name of the chain.
    link: Option<Arc<Link>>,
    /// For a check, the namespace of the links that lead to the queried name.
    checked_for: Option<&'a str>,
}

impl<'a> ChaseState<'a> {
    fn new(negative_ttl: u32, checked_for: Option<&'a str>) -> Self {
        Self {
            deadline: Instant::now() + CLIENT_TIMEOUT,
            negative_ttl,
            alias_only_is_nodata: false,
            link: None,
            checked_for,
        }
    }

    /// Returns the namespace that the next name of the chain must be open to; `None` if a client has asked for that
    /// name.
    fn namespace(&self) -> Option<&str> {
        self.link.as_ref().map(|link| link.key.namespace()).or(self.checked_for)
    }

    fn absence(&self) -> Duration {
        Duration::from_secs(self.negative_ttl.into())
    }

    /// Limits the TTLs of a reply that has only aliases: without an SOA record, some caches use the aliases' TTL as the
    /// negative TTL.
    fn cap_alias_ttls(&self, reply: &mut Reply) {
        if self.alias_only_is_nodata
            && reply.records.authorities.is_empty()
            && reply.records.answers.iter().all(is_alias)
        {
            reply
                .records
                .answers
                .iter_mut()
                .for_each(|record| record.ttl = record.ttl.min(self.negative_ttl));
            for countdown in reply.validity.iter_mut().flat_map(|validity| &mut validity.countdown) {
                countdown.cap = countdown.cap.min(self.negative_ttl);
            }
        }
    }
}

/// Adds the dependencies of a target's answer to the reply; must run before the records are added to the reply.
fn add_target_dependencies(
    reply: &mut Reply,
    target: &Reply,
    chain: &CnameChain,
    chase: &ChaseState<'_>,
    is_absence: bool,
) {
    let (start, number) = (reply.records.answers.len(), chain.answers.len());
    let Some(validity) = &mut reply.validity else { return };
    let countdown = target.validity.as_deref().and_then(|target| Some((target, target.common_countdown()?)));
    let Some((target_validity, countdown)) = countdown else {
        reply.validity = None;
        return;
    };
    validity.add_dependencies(target_validity);
    if is_absence {
        validity.limit_until(Some(Instant::now() + chase.absence().saturating_sub(target.age)));
    }
    if let Some((since, ttl)) = countdown {
        let records = start..start + number;
        validity.countdown.push(TtlCountdown {
            section: Section::Answer,
            records,
            since,
            ttl,
            cap: u32::MAX,
        });
    }
    let cap = negative_ttl(&chain.authorities, chase.negative_ttl);
    validity.replace_authority(chain.authorities.len(), countdown, cap);
    // The target is a name in a zone of links of another server block.
    if let Some(Serial { current, .. }) = &target_validity.serial {
        validity.serial = soa_position(current, start, &chain.answers, &chain.authorities);
    }
}

/// Makes a reply SERVFAIL, which isn't reused.
fn fail(reply: &mut Reply, ede: Ede) {
    reply.metadata.response_code = ResponseCode::ServFail;
    reply.ede = Some(ede);
    reply.validity = None;
}

/// Returns where the SOA record of our zone will be in the reply: `answers` are appended after `start` records, and
/// `authorities` replace the authority section.
fn soa_position(
    serial: &Arc<AtomicU64>,
    start: usize,
    answers: &[Record],
    authorities: &[Record],
) -> Option<Serial> {
    let soa = |records: &[Record]| records.iter().position(|record| record.record_type() == RecordType::SOA);
    let authority = soa(authorities).map(|at| (Section::Authority, at));
    let (section, record) = authority.or_else(|| soa(answers).map(|at| (Section::Answer, start + at)))?;
    Some(Serial { section, record, current: Arc::clone(serial) })
}

struct TargetAnswer {
    resolved: Resolved,
    chain: CnameChain,
    /// The result of checking the names, with the reason if records were left out.
    check: HopCheck,
}

impl TargetAnswer {
    fn age(&self) -> Duration {
        self.resolved.reply.age
    }

    /// Returns whether there are no records of the queried type.
    fn is_absence(&self, query: &Query) -> bool {
        let qtype = query.query_type();
        let wanted = |record: &Record| record.record_type() == qtype || qtype == RecordType::ANY;
        matches!(self.chain.end, ChainEnd::Final(_)) && !self.chain.answers.iter().any(wanted)
    }
}

/// Returns whether records of a type are looked up at the targets of links for every client: a CNAME alone is of no use
/// to a stub resolver. Other types are only for clients that may query names outside the zones.
fn is_for_every_client(qtype: RecordType) -> bool {
    matches!(qtype, RecordType::A | RecordType::AAAA | RecordType::HTTPS | RecordType::SVCB)
}

fn record_queried_family(link: &Link, qtype: RecordType) {
    if let Some(family) = family_of(qtype) {
        link.last_queried.note(family);
    }
}

fn family_of(qtype: RecordType) -> Option<IpFamily> {
    match qtype {
        RecordType::A => Some(IpFamily::V4),
        RecordType::AAAA => Some(IpFamily::V6),
        _ => None,
    }
}
