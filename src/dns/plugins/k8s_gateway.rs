//! # Name
//!
//! *k8s_gateway* - answers for Ingresses, load balancers, routes and DNSEndpoints, by the rules of the plugin k8s_gateway.
//!
//! # Description
//!
//! [k8s_gateway](https://github.com/k8s-gateway/k8s_gateway) is a plugin that CoreDNS's own image lacks. Its Corefile
//! needs no change here, unless it has `resources Node` or `nodeAddressType`. The zones are zones of
//! [*lb_linker*](#lb_linker) with the rules of k8s_gateway 1.8;
//! [moving.md](moving.md) compares them. They have names of the home cluster alone: for them `--remote` serves only the
//! sources of StableNames. Every namespace may have any name in them, which the log says at each start:
//!
//! - A load balancer has the names in its annotation `coredns.io/hostname`, or else
//!   `external-dns.alpha.kubernetes.io/hostname`; without both `<service>.<namespace>`. It has no other default names.
//! - An Ingress has the hosts of its rules, a route its hostnames, at each Gateway that has accepted it, and a DNSEndpoint
//!   those of its entries.
//! - A name that lies in none of lb-linker's zones counts below each zone of this plugin: `web.shop` as
//!   `web.shop.example.com`.
//! - The label `k8s-gateway.dns/ignore: "true"` takes an object out of these zones.
//!
//! lb-linker's own annotations have their effects, too: `linker.hsj.com/hostname` adds names. A name belongs to the objects
//! of one namespace: of the first of `resources` that asks for it, and of the oldest among these
//! ([rules](sources.md#which-object-gets-a-name)).
//!
//! A zone has either this plugin or *lb_linker*; a Corefile may have both. Names of a zone can't lie in another zone.
//!
//! # Syntax
//!
//! Syntax: `k8s_gateway [ZONES...]`: by default the zones of the block, without the root and reverse zones. Options:
//!
//! - `resources RESOURCE...`: `Ingress`, `Service`, `HTTPRoute`, `GRPCRoute`, `TLSRoute` and `DNSEndpoint`, in the order in
//!   which they get a name; `Ingress Service` by default. `Node` isn't supported.
//! - `ingressClasses CLASS...`, `gatewayClasses CLASS...`: only Ingresses, and routes at Gateways, of these classes have
//!   names. They have no effect on other resources.
//! - `serviceLabelSelectors SELECTOR...`: only load balancers that one of these label selectors selects have names, such as
//!   `tier=web "env in (a,b)"`.
//! - `ttl SECONDS`: 0 to 3600, 60 by default. The zone's own records and negative answers always have 60.
//! - `apex NAME`: the primary name server, below each zone, `dns1.kube-system` by default; `secondary NAME`: a second one. They
//!   have the addresses of the Services with these names, `<service>.<namespace>`, and no object has these names. A
//!   Service with a hostname instead makes the name a CNAME, which NS records can't lead to: the log says so.
//! - `kubeconfig FILE [CONTEXT]`: lb-linker's own connection to the API server, as the flags `--kubeconfig` and `--context`,
//!   which have to be equal if they are there.
//! - `fallthrough [ZONES...]` passes queries for names that don't exist to the next plugin; with **ZONES**, only names
//!   in these.
//!
//! # Examples
//!
//! ```text
//! .:53 {
//!     errors
//!     ready
//!     k8s_gateway example.com {
//!         resources Ingress Service
//!         ttl 30
//!         apex exdns-1-k8s-gateway.kube-system
//!         secondary exdns-2-k8s-gateway.kube-system
//!     }
//!     forward . /etc/resolv.conf
//! }
//! ```

#[cfg(test)]
mod tests;

use std::path::PathBuf;

use hickory_proto::rr::Name;

use super::kubernetes::check_kubeconfig;
use super::setup::Setup;
use crate::dns::corefile::arguments::zones_or_all;
use crate::dns::corefile::{CorefileError, Directive};
use crate::dns::plugins::lb_linker::{LinkZoneOptions, MAX_TTL, OwnKubeconfig, add_classes, add_link_zones};
use crate::label_selector::selector;
use crate::model::names;
use crate::model::owner::{K8sGateway, Source};

pub(super) const NAME: &str = "k8s_gateway";
const KNOWN: [&str; 9] = [
    "resources",
    "ingressClasses",
    "gatewayClasses",
    "serviceLabelSelectors",
    "ttl",
    "apex",
    "secondary",
    "kubeconfig",
    "fallthrough",
];
const RESOURCES: [(&str, Source); 6] = [
    ("Ingress", Source::INGRESSES),
    ("Service", Source::SERVICES),
    ("HTTPRoute", Source::HTTP_ROUTES),
    ("GRPCRoute", Source::GRPC_ROUTES),
    ("TLSRoute", Source::TLS_ROUTES),
    ("DNSEndpoint", Source::DNS_ENDPOINTS),
];
/// The name of the primary name server below the zone.
const APEX: &str = "dns1.kube-system";
/// The TTL of records in seconds.
const TTL: u32 = 60;
/// The maximum number of label selectors: each load balancer is compared with them.
const MAX_SELECTORS: usize = 100;
/// The maximum length of the name of a name server, without the zone.
const MAX_SERVER_LENGTH: usize = 127;

pub(super) fn set_up(setup: &mut Setup<'_>) -> Result<(), CorefileError> {
    let line = setup.only_line()?.clone();
    let options = parse(&line, setup.zones)?;
    for option in line.options().iter().filter(|option| option.name() == "kubeconfig") {
        if !setup.context.has_own_cluster {
            return Err(
                option.error("with --manifests no API server is read: leave kubeconfig out, or --manifests")
            );
        }
        if let [file, context @ ..] = option.arguments() {
            check_kubeconfig(file, file.text.as_ref(), context.first())?;
        }
    }
    add_link_zones(setup, options, NAME)
}

/// Parses the line of a block with the zones `own`.
pub(super) fn parse(line: &Directive, own: &[Name]) -> Result<LinkZoneOptions, CorefileError> {
    let mut options = LinkZoneOptions::new(line, own, APEX, TTL)?;
    options.zone.sources = vec![Source::INGRESSES, Source::SERVICES];
    let mut rules = K8sGateway::default();
    for option in line.options() {
        option.no_block()?;
        match option.name() {
            "resources" => options.zone.sources = resources(option)?,
            "ingressClasses" => {
                add_classes(option, "the name of an IngressClass", &mut options.zone.ingress_classes)?;
            }
            "gatewayClasses" => {
                add_classes(option, "the name of a GatewayClass", &mut options.zone.gateway_classes)?;
            }
            "serviceLabelSelectors" => add_selectors(option, &mut rules.service_selectors)?,
            "ttl" => {
                let what = "a number of seconds from 0 to 3600";
                options.ttl = option.single_argument(what)?.parse_in_range(0..=MAX_TTL, what)?;
            }
            "apex" => options.zone.apex = server(option)?,
            "secondary" => rules.secondary = Some(server(option)?.into()),
            "kubeconfig" => options.zone.kubeconfig = Some(kubeconfig(option)?),
            "fallthrough" => options.fallthrough = Some(zones_or_all(option.arguments())?),
            "nodeAddressType" => {
                return Err(option.error("lb-linker has no names of Nodes: leave nodeAddressType out"));
            }
            _ => return Err(option.unknown(NAME, &KNOWN)),
        }
    }
    options.zone.k8s_gateway = Some(rules);
    Ok(options)
}

fn resources(option: &Directive) -> Result<Vec<Source>, CorefileError> {
    let mut sources = Vec::new();
    for word in option.required_arguments("a resource, such as Ingress")? {
        if word.text == "Node" {
            return Err(word.error("lb-linker has no names of Nodes: leave Node out, or write a DNSEndpoint"));
        }
        let Some((_, source)) = RESOURCES.iter().find(|(name, _)| *name == word.text) else {
            let known = RESOURCES.map(|(name, _)| name);
            return Err(word.unexpected_of(&format!("one of the resources {}", known.join(", ")), &known));
        };
        if !sources.contains(source) {
            sources.push(source.clone());
        }
    }
    Ok(sources)
}

fn add_selectors(option: &Directive, selectors: &mut Vec<Box<str>>) -> Result<(), CorefileError> {
    for word in option.required_arguments("a label selector such as app=web")? {
        if word.text.is_empty() {
            return Err(word.unexpected("a label selector such as app=web"));
        }
        let selector = selector(&word.text).map_err(|why| word.error(format!("{:?} is {why}", word.text)))?;
        if selectors.len() >= MAX_SELECTORS {
            return Err(word.error(format!("there can be {MAX_SELECTORS} label selectors at most")));
        }
        selectors.push(selector.to_string().into());
    }
    Ok(())
}

/// Returns the name of a name server below the zone.
fn server(option: &Directive) -> Result<String, CorefileError> {
    let what = "a name such as dns1.kube-system, below the zone";
    let word = option.single_argument(what)?;
    let name = names::in_stored_form(&word.text);
    let top = name.rsplit('.').next().unwrap_or_default();
    let is_name = name.len() <= MAX_SERVER_LENGTH && name.split('.').all(names::is_label);
    if is_name && top != names::DELETED { Ok(name) } else { Err(word.unexpected(what)) }
}

fn kubeconfig(option: &Directive) -> Result<OwnKubeconfig, CorefileError> {
    let [path, context @ ..] = option.at_most(2)? else {
        return Err(option.missing_argument("a kubeconfig file, and perhaps a context"));
    };
    let context = context.first().map(|word| word.text.clone());
    Ok(OwnKubeconfig { path: PathBuf::from(&path.text), context })
}
