//! Parses the lines of `lb_linker`.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use hickory_proto::rr::Name;
use ipnet::IpNet;

use crate::dns::corefile::arguments::{suggestion, zones_or_all};
use crate::dns::corefile::{CorefileError, Directive, Token};
use crate::dns::message::arpa::{is_reverse, reverse_origins};
use crate::dns::message::zone_set::ZoneSet;
use crate::dns::plugins::lb_linker::zone::{TTL, Zone, ZoneOptions};
use crate::model::hostname::to_presentation;
use crate::model::owner::{K8sGateway, Source};
use crate::model::rejection::MAX_ENTRY_BYTES;
use crate::model::{names, owner};

const KNOWN: [&str; 8] =
    ["ttl", "apex", "ns", "reverse", "fallthrough", "sources", "ingress_classes", "gateway_classes"];
/// The maximum number of classes of Ingresses, and of Gateways.
const MAX_CLASSES: usize = 100;
/// The maximum TTL in seconds: caches keep an old target for that long.
pub(in crate::dns::plugins) const MAX_TTL: u32 = 3600;
/// The maximum length of a zone's name in characters: the labels of a Service and of a namespace take the rest of the
/// 255 bytes of a DNS name.
const MAX_ZONE_LENGTH: usize = 120;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkZone {
    pub origin: Name,
    /// The label below the origin that is reserved for the zone itself.
    pub apex: String,
    /// The sources of the zone's names, in their order.
    pub sources: Vec<Source>,
    /// The classes of the Ingresses with names in the zone; empty for all.
    pub ingress_classes: Vec<Box<str>>,
    /// The classes of the Gateways whose routes have names in the zone; empty for all.
    pub gateway_classes: Vec<Box<str>>,
    /// What a zone of the plugin *k8s_gateway* has besides; `None` for those of *lb_linker*.
    pub k8s_gateway: Option<K8sGateway>,
    /// The connection of lb-linker to its cluster, if the line names it.
    pub kubeconfig: Option<OwnKubeconfig>,
}

/// A kubeconfig file, and a context of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnKubeconfig {
    pub path: PathBuf,
    /// The current context by default.
    pub context: Option<String>,
}

impl LinkZone {
    /// Returns a zone with the names of load balancers.
    #[must_use]
    pub fn new(origin: Name, apex: &str) -> Self {
        let sources = vec![Source::SERVICES];
        let apex = apex.to_owned();
        Self {
            origin,
            apex,
            sources,
            ingress_classes: Vec::new(),
            gateway_classes: Vec::new(),
            k8s_gateway: None,
            kubeconfig: None,
        }
    }

    /// Returns the plugin whose zone it is.
    #[must_use]
    pub fn plugin(&self) -> &'static str {
        if self.k8s_gateway.is_some() { "k8s_gateway" } else { super::NAME }
    }

    /// Returns the name of the zone's primary name server, without the trailing dot.
    #[must_use]
    pub fn name_server(&self) -> String {
        let first = if self.k8s_gateway.is_some() { "" } else { "ns." };
        format!("{first}{}.{}", self.apex, to_presentation(&self.origin))
    }

    /// Returns how this zone differs from the same zone of another block, which has to be equal.
    pub(in crate::dns::plugins) fn difference(&self, other: &Self) -> Option<String> {
        let zone = to_presentation(&self.origin);
        let (plugin, of_other) = (self.plugin(), other.plugin());
        if plugin != of_other {
            return Some(format!(
                "the zone {zone} is one of {of_other} already: a zone has either lb_linker or k8s_gateway"
            ));
        }
        if other.apex != self.apex {
            let apex = &other.apex;
            return Some(format!(
                "the zone {zone} has the apex {apex:?} in another block; both blocks need the same apex"
            ));
        }
        let words = |zone: &Self| zone.sources.iter().map(Source::word).collect::<Vec<_>>().join(" ");
        let (ingress, gateway) = (&other.ingress_classes, &other.gateway_classes);
        let [own_ones, other_ones] = [self, other].map(|zone| zone.k8s_gateway.clone().unwrap_or_default());
        for (what, differ, known) in [
            ("sources", other.sources != self.sources, words(other)),
            ("ingress_classes", *ingress != self.ingress_classes, ingress.join(" ")),
            ("gateway_classes", *gateway != self.gateway_classes, gateway.join(" ")),
            (
                "secondary",
                other_ones.secondary != own_ones.secondary,
                other_ones.secondary.as_deref().unwrap_or_default().to_owned(),
            ),
            (
                "serviceLabelSelectors",
                other_ones.service_selectors != own_ones.service_selectors,
                other_ones.service_selectors.join(" "),
            ),
        ] {
            if differ {
                let known = if known.is_empty() { "none".to_owned() } else { known };
                return Some(format!(
                    "the zone {zone} has other {what} in another block ({known}); both blocks need the same {what}, \
                     in the same order"
                ));
            }
        }
        None
    }
}

impl From<&LinkZone> for owner::Zone {
    fn from(zone: &LinkZone) -> Self {
        let LinkZone { origin, apex, sources, ingress_classes, gateway_classes, k8s_gateway, .. } =
            zone.clone();
        Self {
            apex: apex.into(),
            sources,
            ingress_classes,
            gateway_classes,
            k8s_gateway,
            ..Self::from(&origin)
        }
    }
}

/// The options of a line of *lb_linker* or *k8s_gateway*.
#[derive(Debug)]
pub(in crate::dns::plugins) struct LinkZoneOptions {
    pub(in crate::dns::plugins) origins: Vec<Name>,
    /// What all zones of the line have; its origin has no meaning.
    pub(in crate::dns::plugins) zone: LinkZone,
    pub(in crate::dns::plugins) ttl: u32,
    ns: Vec<IpAddr>,
    pub(in crate::dns::plugins) reverse: Vec<IpNet>,
    pub(in crate::dns::plugins) fallthrough: Option<ZoneSet>,
}

/// Parses the line of a block with the zones `own`.
pub(in crate::dns::plugins) fn parse(
    line: &Directive,
    own: &[Name],
) -> Result<LinkZoneOptions, CorefileError> {
    let mut options = LinkZoneOptions::new(line, own, names::RESERVED_LABEL, TTL)?;
    let mut sources = Vec::new();
    for option in line.options() {
        option.no_block()?;
        match option.name() {
            "ttl" => {
                let what = "a number of seconds from 0 to 3600";
                options.ttl = option.single_argument(what)?.parse_in_range(0..=MAX_TTL, what)?;
            }
            "apex" => {
                let what = "a label such as dns";
                let word = option.single_argument(what)?;
                options.zone.apex = word.text.to_ascii_lowercase();
                if !names::is_label(&options.zone.apex) || options.zone.apex == names::DELETED {
                    return Err(word.unexpected(what));
                }
            }
            "ns" => options.ns = parse_all(option, "an address such as 192.0.2.53")?,
            "reverse" => options.reverse = networks(option, own)?,
            "sources" => add_sources(option, &mut sources)?,
            "ingress_classes" => {
                add_classes(option, "the name of an IngressClass", &mut options.zone.ingress_classes)?;
            }
            "gateway_classes" => {
                add_classes(option, "the name of a GatewayClass", &mut options.zone.gateway_classes)?;
            }
            "fallthrough" => options.fallthrough = Some(zones_or_all(option.arguments())?),
            _ => return Err(option.unknown(super::NAME, &KNOWN)),
        }
    }
    if !sources.is_empty() {
        options.zone.sources = sources;
    }
    for (name, source) in [("ingress_classes", Source::INGRESSES), ("gateway_classes", Source::GATEWAYS)] {
        let classes = line.options().iter().find(|option| option.name() == name);
        if let Some(classes) = classes.filter(|_| !options.zone.sources.contains(&source)) {
            let source = source.word();
            return Err(classes
                .error(format!("{name} has no effect without the source {source}: add `sources {source}`")));
        }
    }
    Ok(options)
}

fn add_sources(option: &Directive, sources: &mut Vec<Source>) -> Result<(), CorefileError> {
    for word in option.required_arguments("a source, such as service or ingress")? {
        let Some(source) = Source::ALL.into_iter().find(|source| source.word() == word.text) else {
            let known = Source::ALL.map(|source| source.word());
            let known: Vec<&str> = known.iter().map(String::as_str).collect();
            let hint = suggestion(&word.text, &known);
            let hint = hint.unwrap_or_else(|| format!("there are {}", known.join(", ")));
            return Err(word.error(format!("{:?} isn't a source of names; {hint}", word.text)));
        };
        if sources.contains(&source) {
            return Err(word.error(format!("the source {} is there twice", word.text)));
        }
        sources.push(source);
    }
    Ok(())
}

pub(in crate::dns::plugins) fn add_classes(
    option: &Directive,
    what: &str,
    classes: &mut Vec<Box<str>>,
) -> Result<(), CorefileError> {
    for word in option.required_arguments(what)? {
        if classes.iter().any(|known| **known == *word.text) {
            return Err(word.error(format!("the class {:?} is there twice", word.text)));
        }
        if word.text.is_empty() || word.text.len() > MAX_ENTRY_BYTES {
            return Err(word.unexpected(what));
        }
        if classes.len() >= MAX_CLASSES {
            return Err(word.error(format!("there can be {MAX_CLASSES} classes at most")));
        }
        classes.push(word.text.as_str().into());
    }
    Ok(())
}

/// Returns the zones in the arguments, or else the zones of the block that may have links' names.
fn origins(line: &Directive, own: &[Name]) -> Result<Vec<Name>, CorefileError> {
    let mut origins = Vec::new();
    for word in line.arguments() {
        for zone in word.zones()? {
            check_origin(&zone)
                .map_err(|why| word.error(format!("{zone} can't have the links' names: {why}")))?;
            origins.push(zone);
        }
    }
    if line.arguments().is_empty() {
        origins.extend(own.iter().filter(|zone| !zone.is_root() && !is_reverse(zone)).cloned());
        for zone in &origins {
            check_origin(zone)
                .map_err(|why| line.error(format!("{zone} can't have the links' names: {why}")))?;
        }
    }
    if origins.is_empty() {
        return Err(line.missing_argument("a zone for the links' names, such as lb.internal"));
    }
    Ok(origins)
}

fn check_origin(zone: &Name) -> Result<(), &'static str> {
    let text = to_presentation(zone);
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if zone.is_root() {
        Err("it is the root")
    } else if is_reverse(zone) {
        Err("it is a reverse zone: see the option reverse")
    } else if text.len() > MAX_ZONE_LENGTH || !text.chars().all(allowed) {
        Err("it has to consist of letters, digits, hyphens and underscores, 120 characters in all at most")
    } else {
        Ok(())
    }
}

fn parse_all<T: std::str::FromStr>(option: &Directive, what: &str) -> Result<Vec<T>, CorefileError> {
    option.required_arguments(what)?.iter().map(|word| word.parse(what)).collect()
}

/// Parses the networks of `reverse`. Their reverse zones have to be among the zones of the block.
fn networks(option: &Directive, own: &[Name]) -> Result<Vec<IpNet>, CorefileError> {
    let nets: Vec<IpNet> = parse_all(option, "a network such as 10.20.0.0/16")?;
    for (net, word) in nets.iter().zip(option.arguments()) {
        let word: &Token = word;
        if let Some(zone) = reverse_origins(*net).find(|zone| !own.iter().any(|own| own.zone_of(zone))) {
            return Err(word.error(format!(
                "queries for names in {zone} don't reach this block: add {net} to the zones before its opening brace"
            )));
        }
    }
    Ok(nets)
}

impl LinkZoneOptions {
    /// Returns the options of a line without options, in a block with the zones `own`.
    pub(in crate::dns::plugins) fn new(
        line: &Directive,
        own: &[Name],
        apex: &str,
        ttl: u32,
    ) -> Result<Self, CorefileError> {
        let origins = origins(line, own)?;
        let zone = LinkZone::new(Name::root(), apex);
        Ok(Self { origins, zone, ttl, ns: Vec::new(), reverse: Vec::new(), fallthrough: None })
    }

    pub(in crate::dns::plugins) fn link_zones(&self) -> impl Iterator<Item = LinkZone> {
        self.origins.iter().map(|origin| LinkZone { origin: origin.clone(), ..self.zone.clone() })
    }

    /// Builds the zones; `own_addresses` returns the addresses of this server, the default of `ns`. `remotes` are the names
    /// of the remote clusters.
    pub(super) fn zones(
        &self,
        own_addresses: impl FnOnce() -> Vec<IpAddr>,
        remotes: &Arc<[Arc<str>]>,
    ) -> Result<Vec<Zone>, CorefileError> {
        let addresses = if self.ns.is_empty() { own_addresses() } else { self.ns.clone() };
        let mut zones = Vec::new();
        for zone in self.link_zones() {
            let LinkZone { origin, apex, sources, ingress_classes, gateway_classes, k8s_gateway, .. } = zone;
            let (addresses, ttl, remotes) = (addresses.clone(), self.ttl, Arc::clone(remotes));
            let options = ZoneOptions {
                addresses,
                ttl,
                apex,
                sources,
                ingress_classes,
                gateway_classes,
                k8s_gateway,
                remotes,
            };
            // The origin is valid: `check_origin` has accepted it.
            zones.extend(Zone::with_options(&origin, options));
        }
        let reverse: Vec<Zone> = self
            .reverse
            .iter()
            .flat_map(|net| zones.first().map(|zone| zone.reverse(*net)))
            .flatten()
            .collect();
        zones.extend(reverse);
        Ok(zones)
    }
}

#[cfg(test)]
mod tests {
    use crate::dns::plugins::tests::support::TestServer;

    #[test]
    fn invalid_lines_are_rejected_with_their_position() {
        for (lines, expected) in [
            ("lb_linker", "Corefile:2:1: lb_linker needs a zone for the links' names, such as lb.internal"),
            ("lb_linker .", "Corefile:2:11: . can't have the links' names: it is the root"),
            (
                "lb_linker 10.0.0.0/8",
                "Corefile:2:11: 10.in-addr.arpa. can't have the links' names: it is a reverse zone: see the option reverse",
            ),
            (
                "lb_linker lb.internal {\nttl 1h\n}",
                "Corefile:3:5: \"1h\" isn't a number of seconds from 0 to 3600",
            ),
            (
                "lb_linker lb.internal {\nttl 3601\n}",
                "Corefile:3:5: \"3601\" isn't a number of seconds from 0 to 3600",
            ),
            ("lb_linker lb.internal {\napex a.b\n}", "Corefile:3:6: \"a.b\" isn't a label such as dns"),
            ("lb_linker lb.internal {\nns\n}", "Corefile:3:1: ns needs an address such as 192.0.2.53"),
            (
                "lb_linker lb.internal {\nns here\n}",
                "Corefile:3:4: \"here\" isn't an address such as 192.0.2.53",
            ),
            (
                "lb_linker lb.internal {\nreverse 10.0.0.1\n}",
                "Corefile:3:9: \"10.0.0.1\" isn't a network such as 10.20.0.0/16",
            ),
            (
                "lb_linker lb.internal {\nzone x\n}",
                "Corefile:3:1: lb_linker has no option \"zone\"; its options are ttl, apex, ns, reverse, fallthrough, \
                 sources, ingress_classes, gateway_classes",
            ),
            (
                "lb_linker lb.internal {\nsources service ingres\n}",
                "Corefile:3:17: \"ingres\" isn't a source of names; is it ingress?",
            ),
            (
                "lb_linker lb.internal {\nsources certificate\n}",
                "Corefile:3:9: \"certificate\" isn't a source of names; there are service, ingress, gateway, dnsendpoint",
            ),
            (
                "lb_linker lb.internal {\nsources ingress service\nsources ingress\n}",
                "Corefile:4:9: the source ingress is there twice",
            ),
            (
                "lb_linker lb.internal {\nsources\n}",
                "Corefile:3:1: sources needs a source, such as service or ingress",
            ),
            (
                "lb_linker lb.internal {\nsources ingress\ningress_classes nginx nginx\n}",
                "Corefile:4:23: the class \"nginx\" is there twice",
            ),
            (
                "lb_linker lb.internal {\ningress_classes nginx\n}",
                "Corefile:3:1: ingress_classes has no effect without the source ingress: add `sources ingress`",
            ),
            (
                "lb_linker lb.internal {\nsources ingress\ngateway_classes a\n}",
                "Corefile:4:1: gateway_classes has no effect without the source gateway: add `sources gateway`",
            ),
            (
                "lb_linker lb.internal {\nsources gateway\ngateway_classes\n}",
                "Corefile:4:1: gateway_classes needs the name of a GatewayClass",
            ),
            (
                "lb_linker lb.internal\nlb_linker lab.example",
                "Corefile:3:1: lb_linker can be there only once in a block, and it is on line 2 already",
            ),
        ] {
            assert_eq!(TestServer::error(lines), expected, "{lines}");
        }
    }
}
