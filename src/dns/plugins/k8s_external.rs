//! # Name
//!
//! *k8s_external* - answers for the external addresses of Services, in zones of their own.
//!
//! # Description
//!
//! `<service>.<namespace>.<zone>` has the addresses in `spec.externalIPs` and `status.loadBalancer` of a Service, and
//! `_<port>._<protocol>.` before it an SRV record. An external address has PTR records in the reverse zones among
//! **ZONES**, whose targets are in the first zone. The objects, their namespaces, the time before they are listed, and
//! the API server are those of *kubernetes* in the same block, which has to be there; names go to this plugin first.
//! *lb_linker* answers for the load balancers of several clusters instead, and keeps their names when they move.
//!
//! The zone has an SOA record, and an NS record for `ns1.dns`: the external addresses of the Services in front of
//! `POD_IPS`, or else this server's own.
//!
//! Differences from CoreDNS:
//!
//! - A hostname of a load balancer is a CNAME for each type but SRV, as an ExternalName is in *kubernetes*. It has one if
//!   the Service has no external address; only the first hostname counts. CoreDNS adds CNAME records to addresses, and
//!   answers NODATA for other types.
//! - An address with a PTR record, and `_tcp.<service>` of a headless Service, are NODATA for other types. CoreDNS answers
//!   NXDOMAIN; `fallthrough` passes them on.
//! - `namespace_labels` hides PTR records, too. A PTR record is only at the exact name of the address.
//! - Until all objects are listed, names that aren't known are SERVFAIL; CoreDNS answers NXDOMAIN.
//! - There are no zone transfers.
//!
//! # Syntax
//!
//! Syntax: `k8s_external [ZONES...]`; it can be there once in a block. Options:
//!
//! - `apex LABEL`: the label of the zone's own names, `dns` by default.
//! - `ttl SECONDS`: 0 to 3600, 5 by default. CNAME and SRV records have the `ttl` of *kubernetes*.
//! - `headless`: headless Services without external addresses have the addresses of their endpoints, and endpoints of all
//!   Services without external addresses have names.
//! - `fallthrough [ZONES...]` passes names that don't exist to the next plugin; with **ZONES**, only names in these.
//!   `apex` and what is below it isn't passed on.
//!
//! # Examples
//!
//! ```text
//! . {
//!     kubernetes cluster.local
//!     k8s_external example.org
//! }
//! ```

#[cfg(test)]
mod tests;

use async_trait::async_trait;
use hickory_proto::rr::Name;

use super::kubernetes::Kubernetes;
use super::kubernetes::reply::ZoneReply;
use super::setup::Setup;
use crate::dns::chain::plugin::{Next, Plugin, PluginResult};
use crate::dns::chain::request::Request;
use crate::dns::corefile::arguments::zones_or_all;
use crate::dns::corefile::{CorefileError, Directive};
use crate::dns::message::query::whole_wire_name;
use crate::dns::message::zone_set::ZoneSet;
use crate::model::names;
use crate::store::cluster::answer::zone_of;
use crate::store::cluster::external::ExternalRules;

const NAME: &str = "k8s_external";
const KNOWN: [&str; 4] = ["apex", "fallthrough", "headless", "ttl"];
/// The maximum TTL of records, in seconds.
const MAX_TTL: u32 = 3600;

#[derive(Debug)]
struct External {
    rules: ExternalRules,
    fallthrough: Option<ZoneSet>,
    /// The labels of the name server and the mailbox of a zone, in wire form.
    server: Vec<u8>,
    mailbox: Vec<u8>,
}

pub(super) fn set_up(setup: &mut Setup<'_>) -> Result<(), CorefileError> {
    let line = setup.only_line()?.clone();
    if !setup.block.iter().any(|line| line.name() == "kubernetes") {
        return Err(line.error(
            "k8s_external reads the objects of kubernetes, and this block has no kubernetes: add a line such as \"kubernetes \
             cluster.local\"",
        ));
    }
    let zones = setup.zones_or_own(line.arguments())?;
    let is_link_zone = |zone: &&Name| setup.builder.link_zones.all().contains(zone);
    if let Some(zone) = zones.all().iter().find(is_link_zone) {
        return Err(
            line.error(format!("lb_linker answers for the zone {zone} already: leave it out here, or there"))
        );
    }
    setup.builder.cluster_zones.extend(zones.all().iter().cloned());
    let zones = zones.all().iter().map(|zone| whole_wire_name(zone).into()).collect();
    let mut rules = ExternalRules { zones, apex: "dns".into(), ttl: 5, headless: false };
    let mut fallthrough = None;
    for option in line.options() {
        option.no_block()?;
        match option.name() {
            "apex" => rules.apex = apex(option)?,
            "ttl" => {
                let what = "a number of seconds from 0 to 3600";
                rules.ttl = option.single_argument(what)?.parse_in_range(0..=MAX_TTL, what)?;
            }
            "headless" => {
                option.no_arguments()?;
                rules.headless = true;
            }
            "fallthrough" => fallthrough = Some(zones_or_all(option.arguments())?),
            _ => return Err(option.unknown(NAME, &KNOWN)),
        }
    }
    let labels = |first: &str| {
        let mut wire = Vec::new();
        names::push_labels([first.as_bytes(), rules.apex.as_bytes()], &mut wire);
        wire
    };
    let (server, mailbox) = (labels("ns1"), labels("hostmaster"));
    setup.add_reusable(External { rules, fallthrough, server, mailbox });
    Ok(())
}

fn apex(option: &Directive) -> Result<Box<str>, CorefileError> {
    let what = "a label such as dns";
    let word = option.single_argument(what)?;
    let label = word.text.to_ascii_lowercase();
    if names::is_label(&label) { Ok(label.into()) } else { Err(word.unexpected(what)) }
}

#[async_trait]
impl Plugin for External {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn serve(&self, request: &mut Request, next: Next<'_>) -> PluginResult {
        let name = whole_wire_name(request.query.name());
        let zone = zone_of(&self.rules.zones, &name);
        let (Some(origin), Some(kubernetes)) = (zone, next.plugin::<Kubernetes>()) else {
            return next.serve(request).await;
        };
        let cluster = &kubernetes.cluster;
        let zone = ZoneReply {
            plugin: NAME,
            origin,
            server: &self.server,
            mailbox: &self.mailbox,
            soa_ttl: self.rules.ttl,
            absence: self.rules.ttl,
            alias_ttl: kubernetes.rules.ttl,
            serial: cluster.external_serial(),
        };
        let qtype = request.query.query_type().into();
        let answer = || cluster.external_answer(&kubernetes.rules, &self.rules, origin, &name, qtype);
        kubernetes.respond(&zone, self.fallthrough.as_ref(), &name, request, next, answer).await
    }
}
