//! The lines of lb-linker in a Corefile, between marker lines that name the zone.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use super::{Listener, line_of, shape_of_lines, zone_of};
use crate::dns::corefile::{BlockSource, CorefileError, Position};
use crate::stub::Forwarding;

/// The first line of what lb-linker adds for a zone; the zone follows.
const BEGIN: &str = "# BEGIN lb-linker stub";
/// The last line of what lb-linker adds for a zone; the zone follows.
const END: &str = "# END lb-linker stub";

/// What lb-linker has added for a zone.
#[derive(Debug)]
pub(super) struct Section {
    /// The zone in the marker lines. Older versions wrote markers without a zone: then those of the blocks between them.
    pub(super) zones: Vec<String>,
    /// The line numbers of the two markers, from 1.
    pub(super) first: usize,
    pub(super) last: usize,
}

/// What the lines of lb-linker for a zone become.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZoneLines {
    pub zone: String,
    /// With the marker lines; empty to remove the lines.
    pub lines: String,
}

impl Section {
    pub(super) fn has(&self, block: &BlockSource) -> bool {
        (self.first..=self.last).contains(&line_of(block))
    }
}

/// Returns the sections between marker lines, in order.
pub(super) fn own_sections(
    file: &Arc<Path>,
    text: &str,
    blocks: &[BlockSource],
) -> Result<Vec<Section>, CorefileError> {
    let position = |line| Position { file: Arc::clone(file), line, column: 1 };
    let unpaired = |line| {
        Err(position(line).error(format!(
            "one line {BEGIN:?} has to stand before one line {END:?}, both with the same zone: correct these lines by hand"
        )))
    };
    let mut sections: Vec<Section> = Vec::new();
    let mut open = None;
    for (number, line) in (1..).zip(text.lines()) {
        match (open, zone_in(line, BEGIN), zone_in(line, END)) {
            (_, None, None) => {}
            (None, Some(zone), _) => open = Some((number, zone)),
            (Some((first, zone)), _, Some(end)) if end == zone => {
                let Some(section) = section_of(blocks, zone, (first, number)) else {
                    return Err(position(first).error(
                        "only the block that lb-linker has added may stand between its marker lines: move everything \
                         else out, or delete the two lines",
                    ));
                };
                if section.zones.iter().any(|zone| sections.iter().any(|other| other.zones.contains(zone))) {
                    return Err(
                        position(first).error("lb-linker has added a block for this zone above: delete one")
                    );
                }
                sections.push(section);
                open = None;
            }
            _ => return unpaired(number),
        }
    }
    open.map_or(Ok(sections), |(first, _)| unpaired(first))
}

/// Returns the zone in a marker line, empty without a zone; `None` for other lines.
fn zone_in<'a>(line: &'a str, marker: &str) -> Option<&'a str> {
    let rest = line.trim().strip_prefix(marker)?;
    (rest.is_empty() || rest.starts_with(' ')).then(|| rest.trim())
}

/// Returns the section between two lines; `None` unless it has only blocks that lb-linker writes for this zone: one for
/// each `bind`, all with the same `forward`.
fn section_of(blocks: &[BlockSource], zone: &str, (first, last): (usize, usize)) -> Option<Section> {
    let section = Section { zones: Vec::new(), first, last };
    let ours: Vec<&BlockSource> = blocks.iter().filter(|block| section.has(block)).collect();
    let of = |block: &BlockSource, name: &str| -> Vec<String> {
        let lines = block.lines.iter().filter(|line| line.name() == name);
        lines.map(|line| shape_of_lines(std::slice::from_ref(line))).collect()
    };
    let is_made = |(index, block): (usize, &&BlockSource)| {
        let forward = of(block, "forward");
        let is_alike = forward == of(ours[0], "forward")
            && (index == 0 || forward.len() == 1)
            && ours[..index].iter().all(|other| of(other, "bind") != of(block, "bind"));
        is_alike && block.lines.iter().all(|line| matches!(line.name(), "bind" | "errors" | "forward"))
    };
    let addresses = ours.iter().flat_map(|block| &block.addresses);
    let zones: Option<BTreeSet<String>> = addresses.map(|address| zone_of(&address.text)).collect();
    let zones: Vec<String> = zones?.into_iter().collect();
    let is_of_zone = zone.is_empty() || zones == [zone];
    (!ours.is_empty() && is_of_zone && ours.iter().enumerate().all(is_made))
        .then_some(Section { zones, ..section })
}

/// Returns the lines for each zone: blocks that forward it, each where it is needed, between the marker lines; a block
/// for each `bind`. They are empty for a zone that isn't `wanted`. `by_tcp` lets the blocks forward by TCP only.
#[must_use]
pub fn zone_lines(forwarding: &Forwarding, wanted: &[(String, Listener)], by_tcp: bool) -> Vec<ZoneLines> {
    let of_zone = |zone: &String| {
        let listeners: Vec<&Listener> =
            wanted.iter().filter(|(wanted, _)| wanted == zone).map(|(_, listener)| listener).collect();
        let blocks = blocks(forwarding, zone, &listeners, by_tcp);
        let lines = format!("{BEGIN} {zone}\n{blocks}{END} {zone}\n");
        ZoneLines { zone: zone.clone(), lines: if listeners.is_empty() { String::new() } else { lines } }
    };
    forwarding.zones.iter().map(of_zone).collect()
}

fn blocks(forwarding: &Forwarding, zone: &str, listeners: &[&Listener], by_tcp: bool) -> String {
    let options = if by_tcp { " {\n        force_tcp\n    }" } else { "" };
    let mut binds: Vec<&str> = Vec::new();
    for Listener { bind, .. } in listeners {
        if !binds.contains(&&*bind.lines) {
            binds.push(&bind.lines);
        }
    }
    let mut lines = String::new();
    for bind in binds {
        let here = listeners.iter().filter(|listener| listener.bind.lines == bind);
        let addresses: Vec<String> = here.map(|Listener { port, .. }| format!("{zone}:{port}")).collect();
        let (addresses, upstream) = (addresses.join(" "), forwarding.upstream());
        lines += &format!("{addresses} {{\n{bind}    errors\n    forward . {upstream}{options}\n}}\n");
    }
    lines
}

/// Returns blocks that forward the zones on port 53, as [`zone_lines`] does.
#[must_use]
pub fn default_lines(forwarding: &Forwarding, by_tcp: bool) -> String {
    let zones = forwarding.zones.iter();
    let wanted: Vec<_> = zones.map(|zone| (zone.clone(), Listener::default())).collect();
    text_of_zones(&zone_lines(forwarding, &wanted, by_tcp))
}

/// Returns the lines for all zones.
#[must_use]
pub fn text_of_zones(zones: &[ZoneLines]) -> String {
    zones.iter().map(|zone| zone.lines.as_str()).collect()
}
