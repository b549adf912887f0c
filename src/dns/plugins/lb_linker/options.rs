//! Parses the lines of `lb_linker`.

use std::net::IpAddr;
use std::sync::Arc;

use hickory_proto::rr::Name;
use ipnet::IpNet;

use crate::dns::corefile::arguments::{suggestion, zones_or_all};
use crate::dns::corefile::{BlockSource, CorefileError, Directive, Token, addresses};
use crate::dns::message::arpa::{is_reverse, reverse_origins};
use crate::dns::message::zone_set::ZoneSet;
use crate::dns::plugins::lb_linker::zone::{TTL, Zone, ZoneOptions};
use crate::model::cluster_domain::conflict;
use crate::model::hostname::to_presentation;
use crate::model::owner::Source;
use crate::model::rejection::MAX_ENTRY_BYTES;
use crate::model::{names, owner};

const KNOWN: [&str; 8] =
    ["ttl", "apex", "ns", "reverse", "fallthrough", "sources", "ingress_classes", "gateway_classes"];
/// The maximum number of classes of Ingresses, and of Gateways.
const MAX_CLASSES: usize = 100;
/// The maximum TTL in seconds: caches keep an old target for that long.
const MAX_TTL: u32 = 3600;
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
}

impl LinkZone {
    /// Returns a zone with the names of load balancers.
    #[must_use]
    pub fn new(origin: Name, apex: &str) -> Self {
        let sources = vec![Source::SERVICES];
        let apex = apex.to_owned();
        Self { origin, apex, sources, ingress_classes: Vec::new(), gateway_classes: Vec::new() }
    }

    /// Returns how this zone differs from the same zone of another block, which has to be equal.
    fn difference(&self, other: &Self) -> Option<String> {
        let zone = to_presentation(&self.origin);
        if other.apex != self.apex {
            let apex = &other.apex;
            return Some(format!(
                "the zone {zone} has the apex {apex:?} in another block; both blocks need the same apex"
            ));
        }
        let words = |zone: &Self| zone.sources.iter().map(Source::word).collect::<Vec<_>>().join(" ");
        let (ingress, gateway) = (&other.ingress_classes, &other.gateway_classes);
        for (what, differ, known) in [
            ("sources", other.sources != self.sources, words(other)),
            ("ingress_classes", *ingress != self.ingress_classes, ingress.join(" ")),
            ("gateway_classes", *gateway != self.gateway_classes, gateway.join(" ")),
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
        let LinkZone { origin, apex, sources, ingress_classes, gateway_classes } = zone.clone();
        Self { apex: apex.into(), sources, ingress_classes, gateway_classes, ..Self::from(&origin) }
    }
}

/// Returns the distinct zones of a Corefile that contain links' names, in order.
///
/// # Errors
/// Fails for an invalid line of `lb_linker`, an invalid address of its block, a zone outside of those of the block, a zone
/// that differs in two blocks in its apex or its sources, a zone that lies in another zone, and a zone with names of the cluster's own
/// domain.
pub fn link_zones(blocks: &[BlockSource], cluster_domain: &Name) -> Result<Vec<LinkZone>, CorefileError> {
    let mut all: Vec<(LinkZone, &Directive)> = Vec::new();
    let reached = reached_zones(blocks)?;
    for block in blocks {
        for line in block.lines.iter().filter(|line| line.name() == super::NAME) {
            let mut own = Vec::new();
            for word in &block.addresses {
                own.extend(addresses(word)?.into_iter().map(|address| address.zone));
            }
            let options = parse(line, &own)?;
            check_reach(block, line, [&own, &reached], &options)?;
            for zone in options.link_zones() {
                let known = all.iter().map(|(known, _)| known).find(|known| known.origin == zone.origin);
                match known.map(|known| zone.difference(known)) {
                    None => all.push((zone, line)),
                    Some(difference) => difference.map_or(Ok(()), |why| Err(line.error(why)))?,
                }
            }
        }
    }
    for (inner, line) in &all {
        if let Some(conflict) = conflict(&inner.origin, cluster_domain) {
            return Err(line.error(format!("the zone {conflict}")));
        }
        let contains = |outer: &LinkZone| outer != inner && outer.origin.zone_of(&inner.origin);
        if let Some((outer, _)) = all.iter().find(|(outer, _)| contains(outer)) {
            return Err(line.error(format!(
                "the zone {} lies in {}, whose names it would hide",
                to_presentation(&inner.origin),
                to_presentation(&outer.origin)
            )));
        }
    }
    Ok(all.into_iter().map(|(zone, _)| zone).collect())
}

/// The plugins that bring names from outside of the block's zones to `lb_linker`.
const CHANGING_NAMES: [&str; 2] = ["rewrite", "autopath"];

/// Returns the zones of all blocks with `lb_linker`.
fn reached_zones(blocks: &[BlockSource]) -> Result<Vec<Name>, CorefileError> {
    let mut reached = Vec::new();
    for block in blocks.iter().filter(|block| block.lines.iter().any(|line| line.name() == super::NAME)) {
        for word in &block.addresses {
            reached.extend(addresses(word)?.into_iter().map(|address| address.zone));
        }
    }
    Ok(reached)
}

/// Checks that queries for names in each zone reach a block with `lb_linker`. The zones of this block are `own`, and those of
/// all such blocks `reached`.
fn check_reach(
    block: &BlockSource,
    line: &Directive,
    [own, reached]: [&[Name]; 2],
    options: &LinkZoneOptions,
) -> Result<(), CorefileError> {
    // Zones of links may be there only for the names in PTR records.
    let is_for_pointers = !options.reverse.is_empty() && own.iter().all(is_reverse);
    if is_for_pointers || block.lines.iter().any(|line| CHANGING_NAMES.contains(&line.name())) {
        return Ok(());
    }
    for word in line.arguments() {
        let is_outside =
            |zone: &Name| !reached.iter().any(|other| other.zone_of(zone) || zone.zone_of(other));
        if let Some(zone) = word.zones()?.into_iter().find(is_outside) {
            let of_block: Vec<String> = own.iter().map(to_presentation).collect();
            return Err(word.error(format!(
                "{} lies outside of the zones of this block ({}), so no query for its names arrives here: correct it, or \
                 add it to the zones before the opening brace",
                to_presentation(&zone),
                of_block.join(" ")
            )));
        }
    }
    Ok(())
}

#[derive(Debug)]
pub(super) struct LinkZoneOptions {
    origins: Vec<Name>,
    ttl: u32,
    apex: String,
    ns: Vec<IpAddr>,
    reverse: Vec<IpNet>,
    sources: Vec<Source>,
    ingress_classes: Vec<Box<str>>,
    gateway_classes: Vec<Box<str>>,
    pub(super) fallthrough: Option<ZoneSet>,
}

/// Parses the line of a block with the zones `own`.
pub(super) fn parse(line: &Directive, own: &[Name]) -> Result<LinkZoneOptions, CorefileError> {
    let mut options = LinkZoneOptions {
        origins: origins(line, own)?,
        ttl: TTL,
        apex: names::RESERVED_LABEL.to_owned(),
        ns: Vec::new(),
        reverse: Vec::new(),
        sources: Vec::new(),
        ingress_classes: Vec::new(),
        gateway_classes: Vec::new(),
        fallthrough: None,
    };
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
                options.apex = word.text.to_ascii_lowercase();
                if !names::is_label(&options.apex) || options.apex == names::DELETED {
                    return Err(word.unexpected(what));
                }
            }
            "ns" => options.ns = parse_all(option, "an address such as 192.0.2.53")?,
            "reverse" => options.reverse = networks(option, own)?,
            "sources" => add_sources(option, &mut options.sources)?,
            "ingress_classes" => {
                add_classes(option, "the name of an IngressClass", &mut options.ingress_classes)?;
            }
            "gateway_classes" => {
                add_classes(option, "the name of a GatewayClass", &mut options.gateway_classes)?;
            }
            "fallthrough" => options.fallthrough = Some(zones_or_all(option.arguments())?),
            _ => return Err(option.unknown(super::NAME, &KNOWN)),
        }
    }
    if options.sources.is_empty() {
        options.sources.push(Source::SERVICES);
    }
    for (name, source) in [("ingress_classes", Source::INGRESSES), ("gateway_classes", Source::GATEWAYS)] {
        let classes = line.options().iter().find(|option| option.name() == name);
        if let Some(classes) = classes.filter(|_| !options.sources.contains(&source)) {
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

fn add_classes(option: &Directive, what: &str, classes: &mut Vec<Box<str>>) -> Result<(), CorefileError> {
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
    fn link_zones(&self) -> impl Iterator<Item = LinkZone> {
        let zone = |origin: &Name| LinkZone {
            origin: origin.clone(),
            apex: self.apex.clone(),
            sources: self.sources.clone(),
            ingress_classes: self.ingress_classes.clone(),
            gateway_classes: self.gateway_classes.clone(),
        };
        self.origins.iter().map(zone)
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
        for LinkZone { origin, apex, sources, ingress_classes, gateway_classes } in self.link_zones() {
            let (addresses, ttl, remotes) = (addresses.clone(), self.ttl, Arc::clone(remotes));
            let options =
                ZoneOptions { addresses, ttl, apex, sources, ingress_classes, gateway_classes, remotes };
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
    use std::path::Path;

    use hickory_proto::rr::Name;

    use super::link_zones;
    use crate::dns::corefile::{FileSources, parse};
    use crate::dns::plugins::tests::support::TestServer;

    #[test]
    fn nested_zone_is_rejected_at_its_own_line() {
        let text = "outer.example {\nlb_linker\n}\ninner.outer.example {\nwhoami\nlb_linker\n}\n";
        let blocks = parse(Path::new("Corefile"), text, &FileSources::SYSTEM).unwrap();
        assert_eq!(
            link_zones(&blocks, &Name::root()).unwrap_err().to_string(),
            "Corefile:6:1: the zone inner.outer.example lies in outer.example, whose names it would hide"
        );
    }

    #[test]
    fn blocks_with_one_zone_need_equal_sources() {
        for (first, second, expected) in [
            ("", "sources service", None),
            ("sources ingress service", "sources ingress service", None),
            (
                "sources ingress service",
                "sources service ingress",
                Some("other sources in another block (ingress service)"),
            ),
            ("", "sources ingress", Some("other sources in another block (service)")),
            (
                "sources ingress",
                "sources ingress\ningress_classes a",
                Some("other ingress_classes in another block (none)"),
            ),
            (
                "sources gateway",
                "sources gateway\ngateway_classes a",
                Some("other gateway_classes in another block (none)"),
            ),
        ] {
            let block =
                |port: u16, lines: &str| format!("lb.internal:{port} {{\nlb_linker {{\n{lines}\n}}\n}}\n");
            let text = block(1, first) + &block(2, second);
            let blocks = parse(Path::new("Corefile"), &text, &FileSources::SYSTEM).unwrap();
            let found = link_zones(&blocks, &Name::root());
            match expected {
                None => assert_eq!(found.unwrap().len(), 1, "{text}"),
                Some(expected) => {
                    let error = found.unwrap_err().to_string();
                    assert!(error.starts_with("Corefile:7:1: the zone lb.internal has"), "{error}");
                    assert!(error.contains(expected), "{error}");
                }
            }
        }
    }

    #[test]
    fn zone_with_names_of_the_cluster_is_rejected_at_its_line() {
        let domain = Name::from_ascii("cluster.local.").unwrap();
        for (text, expected) in [
            (
                "cluster.local {\nlb_linker\n}\n",
                Some("2:1: the zone cluster.local equals cluster.local, the domain"),
            ),
            ("local {\nerrors\nlb_linker\n}\n", Some("3:1: the zone local holds cluster.local, the domain")),
            (
                ". {\nlb_linker lb.internal lb.cluster.local\n}\n",
                Some("2:1: the zone lb.cluster.local lies in cluster.local, the domain"),
            ),
            ("cluster.local lb.internal {\nlb_linker lb.internal\n}\n", None),
        ] {
            let blocks = parse(Path::new("Corefile"), text, &FileSources::SYSTEM).unwrap();
            let found = link_zones(&blocks, &domain).err().map(|error| error.to_string());
            let is_expected = |found: &String| {
                expected.is_some_and(|expected| found.starts_with(&format!("Corefile:{expected}")))
            };
            assert_eq!(found.as_ref().map(is_expected), expected.map(|_| true), "{text}: {found:?}");
        }
    }

    #[test]
    fn zone_outside_of_its_block_is_rejected_at_its_word() {
        let remedy = "so no query for its names arrives here: correct it, or add it to the zones before the opening brace";
        let outside = |zone: &str, block: &str| {
            Some(format!("{zone} lies outside of the zones of this block ({block}), {remedy}"))
        };
        for (text, expected) in [
            ("lb.internal:5300 {\nlb_linker lb.internl\n}\n", outside("lb.internl", "lb.internal")),
            (
                "a.b 10.0.0.0/8 {\nlb_linker a.c {\nreverse 10.0.0.0/8\n}\n}\n",
                outside("a.c", "a.b 10.in-addr.arpa"),
            ),
            ("10.0.0.0/8 {\nlb_linker lb.internal\n}\n", outside("lb.internal", "10.in-addr.arpa")),
            ("10.0.0.0/8 {\nlb_linker lb.internal {\nreverse 10.0.0.0/8\n}\n}\n", None),
            (
                "a.b 10.0.0.0/8 {\nlb_linker lb.internal {\nreverse 10.0.0.0/8\n}\n}\nlb.internal {\nlb_linker\n}\n",
                None,
            ),
            ("lb.internal {\nlb_linker LB.internal\n}\n", None),
            ("lb.internal {\nlb_linker sub.lb.internal\n}\n", None),
            ("a.lb.internal {\nlb_linker lb.internal\n}\n", None),
            (". {\nlb_linker lb.internal\n}\n", None),
            ("example.org {\nrewrite name suffix example.org lb.internal\nlb_linker lb.internal\n}\n", None),
        ] {
            let blocks = parse(Path::new("Corefile"), text, &FileSources::SYSTEM).unwrap();
            let found = link_zones(&blocks, &Name::root()).err().map(|error| error.to_string());
            assert_eq!(found, expected.map(|expected| format!("Corefile:2:11: {expected}")), "{text}");
        }
    }

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
                "Corefile:3:1: lb_linker has no option \"zone\"; it has ttl, apex, ns, reverse, fallthrough, sources, \
                 ingress_classes, gateway_classes",
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
