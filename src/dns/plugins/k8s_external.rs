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
//! - A hostname of a load balancer is a CNAME for each type but SRV, as an ExternalName is in *kubernetes*, unless the
//!   Service has an external address, of the type for A and AAAA. Only the first hostname counts, as a name can't have
//!   several CNAME records. CoreDNS adds CNAME records to addresses, and answers NODATA for other types.
//! - An address with a PTR record, and `_tcp.<service>` of a headless Service, are NODATA for other types. CoreDNS answers
//!   NXDOMAIN; `fallthrough` passes them on.
//! - `namespace_labels` hides PTR records, too. A PTR record is only at the exact name of the address.
//! - Until all objects are listed, names that aren't known are SERVFAIL; CoreDNS answers NXDOMAIN.
//! - A [transfer](#transfer) has what is answered for each name that it has. CoreDNS sends SRV records twice, or those of
//!   one port alone, and `_._tcp` for a port without a name. A name with a CNAME record has no other one there, and an
//!   alias for one family of addresses alone is left out.
//!
//! # Syntax
//!
//! Syntax: `k8s_external [ZONES...]`. Options:
//!
//! - `apex NAME`: the name in the zone below which its own names are, `dns` by default.
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

use std::sync::Arc;

use async_trait::async_trait;
use hickory_proto::rr::Name;

use super::kubernetes::Kubernetes;
use super::kubernetes::external_zones::ExternalZones;
use super::kubernetes::reply::ZoneReply;
use super::setup::Setup;
use crate::dns::chain::plugin::{Next, Plugin, PluginResult};
use crate::dns::chain::request::Request;
use crate::dns::corefile::arguments::zones_or_all;
use crate::dns::corefile::{CorefileError, Directive, Token};
use crate::dns::message::query::whole_wire_name;
use crate::dns::message::zone_set::ZoneSet;
use crate::model::hostname::to_presentation;
use crate::model::names;
use crate::store::cluster::answer::{is_reverse, zone_of};
use crate::store::cluster::external::ExternalRules;

const NAME: &str = "k8s_external";
const KNOWN: [&str; 4] = ["apex", "fallthrough", "headless", "ttl"];
/// The maximum TTL of records, in seconds.
const MAX_TTL: u32 = 3600;

#[derive(Debug)]
struct External {
    zones: Arc<ExternalZones>,
    fallthrough: Option<ZoneSet>,
}

pub(super) fn set_up(setup: &mut Setup<'_>) -> Result<(), CorefileError> {
    let lines = setup.lines;
    let [earlier @ .., line] = lines else { return Ok(()) };
    let Some(kubernetes) = setup.block.iter().find(|line| line.name() == "kubernetes") else {
        return Err(line.error(
            "k8s_external reads the objects of kubernetes, and this block has no kubernetes: add a line such as \"kubernetes \
             cluster.local\"",
        ));
    };
    for line in earlier {
        setup
            .builder
            .warnings
            .push(line.error("the zones of the last line count, and the options of all, as in CoreDNS"));
    }
    let own = setup.cluster_zones(line)?;
    let of_kubernetes = setup.zones_or_own(kubernetes.arguments())?;
    let zones = own.all().iter().map(|zone| whole_wire_name(zone).into()).collect();
    let mut rules = ExternalRules { zones, apex: "dns".into(), ttl: 5, headless: false };
    let mut fallthrough = None;
    for option in lines.iter().flat_map(Directive::options) {
        option.no_block()?;
        match option.name() {
            "apex" => {
                let what = "a name such as dns";
                let word = first_word(option, what, &mut setup.builder.warnings)?;
                let name = word.text.to_ascii_lowercase();
                if names::wire_of(&name).is_none() {
                    return Err(word.unexpected(what));
                }
                rules.apex = name.into();
            }
            "ttl" => {
                let what = "a number of seconds from 0 to 3600";
                let word = first_word(option, what, &mut setup.builder.warnings)?;
                rules.ttl = word.parse_in_range(0..=MAX_TTL, what)?;
            }
            "headless" => {
                option.no_arguments()?;
                rules.headless = true;
            }
            "fallthrough" => fallthrough = Some(zones_or_all(option.arguments())?),
            _ => return Err(option.unknown(NAME, &KNOWN)),
        }
    }
    let hidden = hidden(&own, &of_kubernetes, fallthrough.as_ref());
    setup.builder.warnings.extend(hidden.map(|zone| {
        line.error(format!(
            "kubernetes (line {}) gets no question for {} here: k8s_external answers them before it. Name another zone",
            kubernetes.position().line,
            to_presentation(zone)
        ))
    }));
    let zones = Arc::new(ExternalZones::new(rules, setup.transferred(&own)));
    setup.builder.external = Some(Arc::clone(&zones));
    setup.add_reusable(External { zones, fallthrough });
    Ok(())
}

/// Returns the first zone of `kubernetes` whose questions all end at `k8s_external`.
fn hidden<'a>(own: &ZoneSet, of_kubernetes: &'a ZoneSet, fallthrough: Option<&ZoneSet>) -> Option<&'a Name> {
    let is_passed = |zone: &Name| fallthrough.is_some_and(|zones| zones.contains(zone));
    let mut forward = of_kubernetes.all().iter().filter(|zone| !is_reverse(&whole_wire_name(zone)));
    forward.find(|zone| own.contains(zone) && !is_passed(zone))
}

fn first_word<'a>(
    option: &'a Directive,
    what: &str,
    warnings: &mut Vec<CorefileError>,
) -> Result<&'a Token, CorefileError> {
    let [first, further @ ..] = option.required_arguments(what)? else {
        return Err(option.missing_argument(what));
    };
    warnings
        .extend(further.first().map(|word| word.error("only the first word has an effect, as in CoreDNS")));
    Ok(first)
}

#[async_trait]
impl Plugin for External {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn serve(&self, request: &mut Request, next: Next<'_>) -> PluginResult {
        let name = whole_wire_name(request.query.name());
        let zone = zone_of(&self.zones.rules.zones, &name);
        let (Some(origin), Some(kubernetes)) = (zone, next.plugin::<Kubernetes>()) else {
            return next.serve(request).await;
        };
        let cluster = &kubernetes.cluster;
        let is_transferred = self.zones.transferred.iter().any(|zone| **zone == *origin);
        let serial = kubernetes.serial(self.zones.view(), is_transferred);
        let zone = self.zones.reply(&kubernetes.rules, origin, serial);
        let zone = ZoneReply { limits: kubernetes.ttls_for(request), ..zone };
        let qtype = request.query.query_type().into();
        let answer = || cluster.external_answer(&kubernetes.rules, &self.zones.rules, origin, &name, qtype);
        kubernetes.respond(&zone, self.fallthrough.as_ref(), &name, request, next, answer).await
    }
}
