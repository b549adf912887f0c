//! Finds the zones of links: those of `lb_linker` and of `k8s_gateway`.

use hickory_proto::rr::Name;

use crate::dns::corefile::{BlockSource, CorefileError, Directive, addresses};
use crate::dns::message::arpa::is_reverse;
use crate::dns::plugins::k8s_gateway::{NAME as K8S_GATEWAY, parse as parse_k8s_gateway};
use crate::dns::plugins::lb_linker::{
    LinkZone, LinkZoneOptions, NAME as LB_LINKER, parse as parse_lb_linker,
};
use crate::model::cluster_domain::conflict;
use crate::model::hostname::to_presentation;

/// Returns the distinct zones of a Corefile that contain links' names, in order.
///
/// # Errors
/// Fails for an invalid line, an invalid address of its block, a zone outside of those of the block, a zone that differs in
/// two blocks, such as in its plugin or its sources, a zone that lies in another zone, a zone with names of the cluster's
/// own domain, and for lines that name different API servers.
pub fn link_zones(blocks: &[BlockSource], cluster_domain: &Name) -> Result<Vec<LinkZone>, CorefileError> {
    let mut all: Vec<(LinkZone, &Directive)> = Vec::new();
    for block in blocks {
        for line in &block.lines {
            let parse = match line.name() {
                LB_LINKER => parse_lb_linker,
                K8S_GATEWAY => parse_k8s_gateway,
                _ => continue,
            };
            let own = zones_of(block)?;
            let options = parse(line, &own)?;
            check_reach(block, line, [&own, &reached_zones(blocks, line.name())?], &options)?;
            let with_kubeconfig = |known: &&(LinkZone, &Directive)| known.0.kubeconfig.is_some();
            if let Some((known, at)) = all.iter().find(with_kubeconfig)
                && options.zone.kubeconfig.is_some()
                && options.zone.kubeconfig != known.kubeconfig
            {
                return Err(line.error(format!(
                    "its kubeconfig or context differs from that of line {}: lb-linker reads names from one cluster",
                    at.position().line
                )));
            }
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

/// The plugins that bring names from outside of the block's zones to others.
const CHANGING_NAMES: [&str; 2] = ["rewrite", "autopath"];

/// Returns the zones of a block.
fn zones_of(block: &BlockSource) -> Result<Vec<Name>, CorefileError> {
    let mut zones = Vec::new();
    for word in &block.addresses {
        zones.extend(addresses(word)?.into_iter().map(|address| address.zone));
    }
    Ok(zones)
}

/// Returns the zones of all blocks with a plugin.
fn reached_zones(blocks: &[BlockSource], plugin: &str) -> Result<Vec<Name>, CorefileError> {
    let mut reached = Vec::new();
    for block in blocks.iter().filter(|block| block.lines.iter().any(|line| line.name() == plugin)) {
        reached.extend(zones_of(block)?);
    }
    Ok(reached)
}

/// Checks that queries for names in each zone reach a block with the plugin of a line. The zones of this block are `own`,
/// and those of all such blocks `reached`.
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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use hickory_proto::rr::Name;

    use super::link_zones;
    use crate::dns::corefile::{FileSources, parse};

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
}
