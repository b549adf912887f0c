//! # Name
//!
//! *kubernetes* - answers for the cluster's own names, as the DNS specification of Kubernetes defines them: Services,
//! their endpoints and, if wanted, Pods.
//!
//! # Description
//!
//! The objects come from the API server, and the answers are CoreDNS's. At a start `/ready` waits until all of
//! them are listed; a reload that adds *kubernetes* leaves a ready process ready, and `/ready` says what can't be read.
//! Until they are listed, and for at most `startup_timeout`, up to 1,000 questions wait; after that time names that are known are
//! answered, and all others get SERVFAIL with the extended error 14. A reload waits as long, and the blocks before it
//! answer meanwhile. Without the API server the answers stay as they are.
//! No link has a name in these zones as its target.
//! A list that lacks more than ten objects, or a fifth if that is more, counts when a second list, 30 s later, confirms
//! it; Pods go at once.
//!
//! Differences from CoreDNS:
//!
//! - An ExternalName is a CNAME for each type, with the records behind it, which are looked up through the server block of
//!   the same listener that is responsible for it. The response code is that of the end of the chain, SERVFAIL if no
//!   upstream answers or the names lead in a circle. CoreDNS answers NOERROR, with the bare CNAME or with nothing.
//! - A name that has only records of other types, or has names below it, is NODATA: `dns.<zone>`, `dns-version` for A, the
//!   zone for TXT, `_tcp.<service>`, `_zone.<service>` with `zonal`, an address with a PTR record for A. CoreDNS answers
//!   NXDOMAIN, and NOERROR for the SOA record of a name that doesn't exist. `fallthrough` passes all of these on; NXDOMAIN
//!   of the next plugin then is NODATA for a name that exists.
//! - `namespace_labels` hides PTR records, too, and chooses ServiceImports by their namespaces, not by their own labels.
//!   Each address of a Pod counts. EndpointSlices with names instead of addresses (FQDN), and without the label of a
//!   Service, are left out.
//! - *cache* keeps no names of these zones, only what ExternalNames lead to and what `fallthrough` passes on, so TTLs
//!   don't count down; its bounds of TTLs hold. An answer is reused until an object changes that it rests on.
//! - Endpoints of a ServiceImport count also if their slice lacks the label of its cluster; CoreDNS then gives no answer if
//!   the slice has ports.
//! - A PTR record is only at the exact name of the address; CoreDNS allows up to three more labels before an IPv6 address.
//! - Before the first lists are complete, `fallthrough` passes on nothing.
//! - A [transfer](#transfer) has what is answered for each name that it has: also the names of endpoints of Services with a
//!   cluster IP, SRV records at names of Services and endpoints, `dns-version`, and the PTR records of a reverse zone,
//!   where CoreDNS sends names of Services. As in CoreDNS it has no names of Pods and of topology zones. Until all objects
//!   are listed there is none. The serial of a zone that *transfer* names is shown when its second is over.
//! - The name servers are the Services in front of the addresses in `POD_IPS`, if that is set; without such a Service,
//!   as outside of a cluster, this server itself.
//!
//! # Syntax
//!
//! Syntax: `kubernetes [ZONES...]`; it can be there once in a block, and needs a zone that isn't a reverse zone. The first
//! such zone is that of the targets of PTR records. Options:
//!
//! - `kubeconfig FILE [CONTEXT]`, or else `endpoint URL` with `tls CERT KEY CACERT`: the API server. Without either it is
//!   that of lb-linker. Files are read again when they change.
//! - `apiserver_qps NUMBER`, `apiserver_burst NUMBER`, `apiserver_max_inflight NUMBER`: limits on the requests to the API
//!   server; 0, the default, means none. In CoreDNS 1.14 they have no effect.
//! - `namespaces NAME...`, or `namespace_labels SELECTOR`: only these namespaces have names. `labels SELECTOR`: only
//!   Services, EndpointSlices and Pods with these labels count.
//! - `pods disabled|insecure|verified`: whether `10-0-0-1.<namespace>.pod.<zone>` doesn't exist (the default), exists for
//!   each address, or only if a Pod of the namespace has the address. `verified` watches Pods.
//! - `endpoint_pod_names`: an endpoint without a hostname has the name of its Pod instead of its dashed address.
//! - `ttl SECONDS`: 0 to 3600, 5 by default. `startup_timeout DURATION`: 5s by default.
//! - `zonal`: `<zone>.pin._zone.<service>.<namespace>.svc.<zone of names>` has those endpoints of a headless Service that
//!   are in this topology zone, which may have dots, and is NODATA without any; with `prefer` instead of `pin` it then has
//!   all endpoints. It can't be combined with `noendpoints`.
//! - `multicluster ZONES...`: the Services in these zones, which are among those of the plugin, are the ServiceImports
//!   (`multicluster.x-k8s.io/v1alpha1`), and endpoints have names `<endpoint>.<cluster>.<service>`. An API server without
//!   ServiceImports has none; they are looked for again every 30 s.
//! - `noendpoints`: endpoints aren't watched; headless Services and endpoints don't exist.
//! - `ignore empty_service`: a Service with a cluster IP and no ready endpoint doesn't exist.
//! - `fallthrough [ZONES...]` passes names that don't exist to the next plugin; with **ZONES**, only names in these.
//!

mod client;
pub(super) mod external_zones;
mod options;
pub(super) use options::{check_kubeconfig, missing_for, verifies_pods};
pub(super) mod reply;
#[cfg(test)]
pub(super) mod tests;
mod transfers;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use async_trait::async_trait;
use hickory_proto::op::ResponseCode;
use hickory_proto::rr::{DNSClass, Name};
use hickory_proto::serialize::binary::{BinDecodable, BinDecoder};

use super::setup::Setup;
use super::ttl_limits::{TtlLimits, TtlRange};
use crate::dns::chain::labels::LabelSubject;
use crate::dns::chain::plugin::{Next, Plugin, PluginError, PluginResult, SearchPath};
use crate::dns::chain::request::Request;
use crate::dns::chain::zone_state::{SharedCopy, TransferredZone};
use crate::dns::corefile::CorefileError;
use crate::dns::message::query::whole_wire_name;
use crate::dns::message::validity::RestsOn;
use crate::dns::message::zone_set::ZoneSet;
use crate::store::change_time::ChangeSerial;
use crate::store::cluster::answer::{Answer, Outcome, Rules, zone_of};
use crate::store::cluster::first_lists::FirstLists;
use crate::store::cluster::{Cluster, View};
use external_zones::ExternalZones;
use reply::ZoneReply;
use transfers::TransferredClusterZone;

const NAME: &str = "kubernetes";
/// The maximum TTL of the SOA record, in seconds.
const MAX_SOA_TTL: u32 = 300;

#[derive(Debug)]
pub(super) struct Kubernetes {
    pub(super) cluster: Arc<Cluster>,
    pub(super) rules: Arc<Rules>,
    fallthrough: Option<ZoneSet>,
    first_lists: Arc<FirstLists>,
    ttl_limits: Option<TtlLimits>,
    /// The zones of `k8s_external` in the block.
    external: Option<Arc<ExternalZones>>,
    /// The zones that are transferred, in wire form.
    transferred: Vec<Box<[u8]>>,
    /// Their serials, and those of zones of `k8s_external`, in the order of [`View::ALL`].
    serials: [ChangeSerial; 4],
    /// The objects for transfers that are under way.
    copy: Arc<SharedCopy<Cluster>>,
}

pub(super) fn set_up(setup: &mut Setup<'_>) -> Result<(), CorefileError> {
    let options::Options { spec, zones, rules, fallthrough, startup_timeout } = options::parse(setup)?;
    let registry = setup.context.clusters.clone();
    let cluster = registry.cluster(spec);
    let first_lists = Arc::new(FirstLists::new(Arc::clone(&cluster), startup_timeout));
    setup.builder.first_lists.push(Arc::clone(&first_lists));
    let served = Arc::clone(&first_lists);
    setup.add_task(move |_, stop| async move {
        served.begin();
        let _served = registry.serve(Arc::clone(served.cluster()));
        stop.cancelled().await;
    });
    let (ttl_limits, external) = (setup.builder.ttl_limits.clone(), setup.builder.external.clone());
    let transferred = setup.transferred(&zones);
    let serials = View::ALL.map(|view| ChangeSerial::new(cluster.serial(view)));
    if !transferred.is_empty() || external.as_ref().is_some_and(|zones| !zones.transferred.is_empty()) {
        let cluster = Arc::clone(&cluster);
        setup.show_serials(serials.to_vec(), move || cluster.note_other_answers());
    }
    let rules = Arc::new(rules);
    setup.add_reusable(Kubernetes {
        cluster,
        rules,
        fallthrough,
        first_lists,
        ttl_limits,
        external,
        transferred,
        serials,
        copy: Arc::default(),
    });
    Ok(())
}

/// Returns how replies in a zone are made, but for the bounds of TTLs.
fn zone_reply<'a>(rules: &Rules, origin: &'a [u8], serial: &'a Arc<AtomicU64>) -> ZoneReply<'a> {
    ZoneReply {
        plugin: NAME,
        origin,
        server: b"\x02ns\x03dns",
        mailbox: b"\x0ahostmaster",
        soa_ttl: rules.ttl.min(MAX_SOA_TTL),
        absence: rules.ttl,
        alias_ttl: rules.ttl,
        limits: None,
        serial,
    }
}

#[async_trait]
impl Plugin for Kubernetes {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn serve(&self, request: &mut Request, next: Next<'_>) -> PluginResult {
        let name = whole_wire_name(request.query.name());
        let Some(zone) = zone_of(&self.rules.zones, &name) else { return next.serve(request).await };
        let serial = self.serial(self.view(zone), self.transferred.iter().any(|known| **known == *zone));
        let zone = ZoneReply { limits: self.ttls_for(request), ..zone_reply(&self.rules, zone, serial) };
        let qtype = request.query.query_type().into();
        let answer = || self.cluster.answer(&self.rules, zone.origin, &name, qtype);
        self.respond(&zone, self.fallthrough.as_ref(), &name, request, next, answer).await
    }

    fn transferred_zone(&self, origin: &Name) -> Option<Arc<dyn TransferredZone>> {
        let origin = whole_wire_name(origin);
        let is_in = |zones: &[Box<[u8]>]| zones.iter().any(|zone| **zone == *origin);
        // Names go to `k8s_external` first.
        let external = self.external.clone().filter(|zones| is_in(&zones.transferred));
        if external.is_none() && !is_in(&self.transferred) {
            return None;
        }
        let view = external.as_ref().map_or_else(|| self.view(&origin), |zones| zones.view());
        Some(Arc::new(TransferredClusterZone {
            cluster: Arc::clone(&self.cluster),
            rules: Arc::clone(&self.rules),
            external,
            origin: origin.into(),
            serial: self.serials[view as usize].clone(),
            ttl_limits: self.ttl_limits.clone(),
            copy: Arc::clone(&self.copy),
        }))
    }

    fn transferred_origins(&self) -> Vec<Name> {
        let of_external = self.external.iter().flat_map(|zones| &zones.transferred);
        let all = self.transferred.iter().chain(of_external);
        all.filter_map(|zone| Name::read(&mut BinDecoder::new(zone)).ok()).collect()
    }

    fn is_ready(&self) -> bool {
        self.first_lists.is_ready()
    }

    fn note(&self) -> Option<String> {
        self.cluster.failure()
    }

    fn label(&self, label: &str, subject: &LabelSubject) -> Option<String> {
        self.label_of(label, &subject.name, subject.client)
    }

    fn search_path(&self, request: &Request) -> Option<SearchPath> {
        self.search_path_of(request.query.name(), request.client.ip().to_canonical())
    }
}

impl Kubernetes {
    fn view(&self, zone: &[u8]) -> View {
        if self.rules.is_multicluster(zone) { View::Imports } else { View::Inside }
    }

    /// Returns the serial of a zone, which shows this of the objects.
    pub(super) fn serial(&self, view: View, is_transferred: bool) -> &Arc<AtomicU64> {
        if !is_transferred {
            return self.cluster.serial(view);
        }
        let serial = &self.serials[view as usize];
        serial.advance();
        serial.shown()
    }

    /// Returns the bounds that `cache` sets for TTLs of records, and of their absence.
    pub(super) fn ttls_for(&self, request: &Request) -> Option<[TtlRange; 2]> {
        self.ttl_limits.as_ref()?.at(request.query.name())
    }

    /// Answers a question for a name in a zone, in wire form, from the objects of the cluster.
    pub(super) async fn respond(
        &self,
        zone: &ZoneReply<'_>,
        fallthrough: Option<&ZoneSet>,
        name: &[u8],
        request: &mut Request,
        next: Next<'_>,
        answer: impl FnOnce() -> Answer + Send,
    ) -> PluginResult {
        if request.query.query_class() != DNSClass::IN {
            return Err(PluginError::new(ResponseCode::Refused, ""));
        }
        if !self.cluster.is_listed() {
            self.first_lists.wait_in_queue().await;
        }
        // What is found after this was listed, or is there already.
        let is_listed = self.cluster.is_listed();
        let answer = answer();
        if !is_listed && matches!(answer.outcome, Outcome::Absent | Outcome::Empty) {
            return Ok(zone.unknown(request));
        }
        if answer.is_passed && fallthrough.is_some_and(|zones| zones.contains(request.query.name())) {
            let reply = passed(&answer, request, next).await?;
            // The next plugin denies a name that exists here.
            if answer.outcome == Outcome::Absent || reply.metadata.response_code != ResponseCode::NXDomain {
                return Ok(reply);
            }
            let mut own = zone.reply(request, name, answer).await?;
            own.is_cacheable = reply.is_cacheable;
            own.rests_on = reply.rests_on;
            own.validity = own.validity.zip(reply.validity).map(|(mut validity, other)| {
                validity.add_dependencies(&other);
                validity
            });
            return Ok(own);
        }
        let mut reply = zone.reply(request, name, answer).await?;
        if !is_listed {
            reply.validity = None;
        }
        Ok(reply)
    }
}

/// Passes a name on that doesn't exist, or not for this type. It may exist at any time.
async fn passed(answer: &Answer, request: &mut Request, next: Next<'_>) -> PluginResult {
    let mut reply = next.serve(request).await?;
    let mut rests_on =
        RestsOn { flags: answer.flags.clone(), names: answer.names.clone().into_iter().collect() };
    if let Some(validity) = &mut reply.validity {
        validity.add_rests_on(&rests_on);
    }
    if let Some(other) = &reply.rests_on {
        rests_on.add(other);
    }
    reply.rests_on = Some(Arc::new(rests_on));
    Ok(reply)
}
