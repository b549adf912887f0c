//! The Corefile of the cluster DNS as text: adds and removes the blocks that forward the zones. Pure functions.

mod sections;

use std::fmt;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use self::sections::{Section, own_sections};
pub use self::sections::{ZoneLines, default_lines, text_of_zones, zone_lines};
use super::DNS_PORT;
use crate::dns::corefile::{
    BlockSource, CorefileError, Directive, FileSources, Position, Snippets, Token, parse,
    parse_with_snippets, tokenize,
};
use crate::dns::plugins::unknown_to_core_dns;

/// A Corefile with the places of lb-linker's lines.
#[derive(Debug)]
pub struct Corefile<'a> {
    /// The name in error messages.
    file: Arc<Path>,
    text: &'a str,
    blocks: Vec<BlockSource>,
    sections: Vec<Section>,
    /// The snippets of the Corefile that imports this one.
    inherited: Snippets,
    /// These snippets and its own.
    snippets: Snippets,
}

/// A zone of a plugin.
#[derive(Clone, Debug)]
pub struct PluginZone {
    /// In lower case and without a dot at the end.
    pub zone: String,
    pub position: Position,
    /// Whether the block may have port 53.
    pub has_dns_port: bool,
}

impl PluginZone {
    /// Returns whether no environment variable decides the zone.
    #[must_use]
    pub fn is_known(&self) -> bool {
        !self.zone.contains(VARIABLE)
    }
}

/// A port on which a Corefile answers for all names by plain DNS, and the `bind` there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    pub port: u16,
    pub bind: Bind,
}

impl Default for Listener {
    fn default() -> Self {
        Self { port: DNS_PORT, bind: Bind::default() }
    }
}

/// What a block has of `bind`. CoreDNS has a server for each address and port: a query reaches only the blocks of the
/// server with the most specific address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bind {
    /// The lines with their indentation; empty without `bind`.
    lines: String,
    /// The addresses, and the interfaces with their `except`.
    pub addresses: Vec<String>,
}

impl Bind {
    fn of(block: &BlockSource) -> Self {
        let lines = || block.lines.iter().filter(|line| line.name() == "bind");
        Self { lines: text_of(lines(), 1), addresses: lines().flat_map(addresses_of).collect() }
    }

    /// Returns whether CoreDNS certainly accepts blocks of the same zone and port with these two.
    #[must_use]
    pub fn is_apart_from(&self, other: &Self) -> bool {
        let is_known = |bind: &Self| {
            !bind.addresses.is_empty() && bind.addresses.iter().all(|it| it.parse::<IpAddr>().is_ok())
        };
        is_known(self) && is_known(other) && !self.addresses.iter().any(|it| other.addresses.contains(it))
    }
}

impl fmt::Display for Bind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<&str> = self.lines.split_whitespace().collect();
        f.write_str(&if words.is_empty() { "no bind".to_owned() } else { words.join(" ") })
    }
}

fn addresses_of(bind: &Directive) -> impl Iterator<Item = String> {
    let options = bind.block.iter().flatten();
    let except: Vec<&str> = options.flat_map(Directive::arguments).map(|it| &*it.text).collect();
    bind.arguments().iter().map(|argument| &*argument.text).filter_map(move |argument| {
        if except.is_empty() || argument.parse::<IpAddr>().is_ok() {
            // An IPv6 address has several forms.
            let address = argument.parse().map_or_else(|_| argument.to_owned(), |it: IpAddr| it.to_string());
            (!except.contains(&argument)).then_some(address)
        } else {
            Some(format!("{argument} except {}", except.join(" ")))
        }
    })
}

/// An import of files, not of a snippet.
struct FileImport {
    files: Token,
    /// The zones of the block or the name of the snippet in which it stands; `None` outside of both.
    zones: Option<Vec<String>>,
}

/// The server block of a zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZoneBlock {
    pub zone: String,
    /// The ports on which the block has the zone, among those that were asked for; empty if they aren't known.
    pub ports: Vec<u16>,
    /// `None`: that of the other blocks, from which the cluster DNS makes this one.
    pub bind: Option<Bind>,
    pub line: usize,
    /// The upstreams to which the block forwards all names of the zone; empty if it doesn't forward them.
    pub upstreams: Vec<String>,
    /// Whether lb-linker has added the block.
    pub is_ours: bool,
}

impl<'a> Corefile<'a> {
    /// Parses a Corefile, without the files that it imports. `name` is the file name in errors.
    ///
    /// # Errors
    /// If the syntax or the markers are wrong.
    pub fn parse(name: &str, text: &'a str) -> Result<Self, CorefileError> {
        Self::parse_after(Snippets::default(), name, text)
    }

    /// As [`Self::parse`], for a file that this Corefile imports, with the snippets of this one.
    ///
    /// # Errors
    /// As for [`Self::parse`].
    pub fn parse_imported<'b>(&self, name: &str, text: &'b str) -> Result<Corefile<'b>, CorefileError> {
        Corefile::parse_after(self.snippets.clone(), name, text)
    }

    fn parse_after(inherited: Snippets, name: &str, text: &'a str) -> Result<Self, CorefileError> {
        let file: Arc<Path> = Path::new(name).into();
        let (blocks, snippets) = parse_with_snippets(&file, text, &WITHOUT_FILES, inherited.clone())?;
        let sections = own_sections(&file, text, &blocks)?;
        Ok(Self { file, text, blocks, sections, inherited, snippets })
    }

    /// Returns whether the Corefile imports other server blocks, such as by `import custom/*.server`.
    #[must_use]
    pub fn imports_servers(&self) -> bool {
        self.imports().iter().any(|it| it.zones.is_none() && it.files.text.ends_with("*.server"))
    }

    /// Returns whether server blocks import lines, such as by `import custom/*.override`.
    #[must_use]
    pub fn imports_overrides(&self) -> bool {
        self.imports().iter().any(|it| it.zones.is_some() && it.files.text.ends_with(".override"))
    }

    /// Checks that no import which isn't known may have a `bind` for the root zone, or a block for one of these zones.
    /// `knows_custom`: whether the keys of `coredns-custom` are known.
    ///
    /// # Errors
    /// If there is one, with its place.
    pub fn check_imports(&self, zones: &[String], knows_custom: bool) -> Result<(), CorefileError> {
        let matters = |zone: &String| zone.is_empty() || zone.starts_with(['(', '{']) || zones.contains(zone);
        let is_unknown = |it: &&FileImport| match &it.zones {
            None => !(knows_custom && it.files.text.ends_with("*.server")),
            Some(of_block) => {
                of_block.iter().any(matters) && !(knows_custom && it.files.text.ends_with(".override"))
            }
        };
        self.imports().iter().find(is_unknown).map_or(Ok(()), |FileImport { files, .. }| {
            Err(files.position.error(format!(
                "{} is a file that isn't known here, and may have a bind or a block for the zone: write its lines instead \
                 of the import, or add the block for the zone by hand",
                files.text
            )))
        })
    }

    fn imports(&self) -> Vec<FileImport> {
        let tokens = tokenize(&self.file, self.text);
        let (mut depth, mut zones, mut imports) = (0_u32, Vec::new(), Vec::new());
        for pair in tokens.windows(2) {
            match &*pair[0].text {
                "{" => depth += 1,
                "}" => {
                    depth = depth.saturating_sub(1);
                    if depth == 0 {
                        zones.clear();
                    }
                }
                "import" if self.snippets.contains_key(&pair[1].text) => {}
                "import" => imports
                    .push(FileImport { files: pair[1].clone(), zones: (depth > 0).then(|| zones.clone()) }),
                address if depth == 0 => zones.extend(zone_of(address.trim_end_matches(','))),
                _ => {}
            }
        }
        imports
    }

    /// Returns whether a server block has the plugin *reload*.
    #[must_use]
    pub fn reloads(&self) -> bool {
        self.blocks.iter().any(|block| block.lines.iter().any(|line| line.name() == "reload"))
    }

    /// Returns the addresses of the blocks of the root zone, as [`Bind`] has them.
    #[must_use]
    pub fn bind(&self) -> Vec<String> {
        let is_root = |block: &&BlockSource| block.addresses.iter().any(|address| is_root(&address.text));
        self.blocks.iter().filter(is_root).flat_map(|block| Bind::of(block).addresses).collect()
    }

    /// Returns the blocks of these zones, by plain DNS on one of these ports; on any port if `ports` is `None`.
    #[must_use]
    pub fn blocks_of(&self, zones: &[String], ports: Option<&[u16]>) -> Vec<ZoneBlock> {
        let block_of = |zone: &String, block: &BlockSource| {
            let of_zone = |address: &&Token| zone_of(&address.text).as_ref() == Some(zone);
            let mut of_zone = block.addresses.iter().filter(of_zone).map(port_of).peekable();
            of_zone.peek()?;
            // A port that isn't known may be each of these ports.
            let own: Vec<Option<u16>> = of_zone.map(|port| port.ok().flatten()).collect();
            let is_own = |port: &u16| own.iter().any(|own| own.is_none_or(|own| own == *port));
            let served: Vec<u16> = ports.unwrap_or_default().iter().copied().filter(is_own).collect();
            (ports.is_none() || !served.is_empty()).then(|| ZoneBlock {
                zone: zone.clone(),
                ports: served,
                bind: Some(Bind::of(block)),
                line: line_of(block),
                upstreams: upstreams(block, zone),
                is_ours: self.is_ours(block),
            })
        };
        let all = zones.iter().flat_map(|zone| self.blocks.iter().map(move |block| (zone, block)));
        all.filter_map(|(zone, block)| block_of(zone, block)).collect()
    }

    /// Returns whether the Corefile has lines that lb-linker has added for one of these zones.
    #[must_use]
    pub fn has_own(&self, zones: &[String]) -> bool {
        self.sections.iter().any(|section| section.zones.iter().any(|zone| zones.contains(zone)))
    }

    /// Returns the zones for which lb-linker has added lines.
    pub fn own_zones(&self) -> impl Iterator<Item = &String> {
        self.sections.iter().flat_map(|section| &section.zones)
    }

    /// Returns an error for each line whose plugin CoreDNS doesn't have, unless its image was built with it.
    #[must_use]
    pub fn unknown_plugins(&self) -> Vec<CorefileError> {
        let lines = self.blocks.iter().flat_map(|block| &block.lines);
        let unknown = lines.filter_map(|line| Some(line.error(unknown_to_core_dns(line)?)));
        unknown.collect()
    }

    /// As [`Self::unknown_plugins`], for a file that blocks of this Corefile import.
    #[must_use]
    pub fn unknown_plugins_of_override(&self, name: &str, text: &str) -> Vec<CorefileError> {
        let block = format!(". {{\n{text}\n}}\n");
        let unknown = self.parse_imported(name, &block).map(|block| block.unknown_plugins());
        let mut unknown = unknown.unwrap_or_default();
        // The file lacks the line above; a snippet of the Corefile keeps its place.
        let own = unknown.iter_mut().filter(|error| *error.position.file == *Path::new(name));
        own.for_each(|error| error.position.line -= 1);
        unknown
    }

    /// Returns the zones that a plugin has which takes them as arguments.
    #[must_use]
    pub fn zones_of(&self, plugin: &str) -> Vec<PluginZone> {
        let is_dns = |address: &Token| {
            let port = port_of(address).ok().flatten();
            zone_of(&address.text).is_some() && port.is_none_or(|port| port == DNS_PORT)
        };
        let zone = |token: &Token, has_dns_port| {
            Some(PluginZone { zone: zone_of(&token.text)?, position: token.position.clone(), has_dns_port })
        };
        let of_line = |block: &BlockSource, line: &Directive| -> Vec<PluginZone> {
            let arguments = line.arguments();
            // Without arguments the plugin has the zones of its block.
            if arguments.is_empty() {
                return block.addresses.iter().filter_map(|it| zone(it, is_dns(it))).collect();
            }
            let has_dns_port = block.addresses.iter().any(is_dns);
            arguments.iter().filter_map(|it| zone(it, has_dns_port)).collect()
        };
        let of_block = |block: &BlockSource| -> Vec<PluginZone> {
            let lines = block.lines.iter().filter(|line| line.name() == plugin);
            lines.flat_map(|line| of_line(block, line)).collect()
        };
        self.blocks.iter().flat_map(of_block).collect()
    }

    /// Returns the text with these lines: those for a zone in the place of lb-linker's present ones for it, or at the end.
    ///
    /// # Errors
    /// If the present lines for a zone are also for a zone that isn't among these, or if the result isn't the former
    /// Corefile with these blocks instead of lb-linker's present blocks.
    pub fn with_lines(&self, new: &[ZoneLines]) -> Result<String, CorefileError> {
        let lines: Vec<&str> = self.text.split_inclusive('\n').collect();
        let (mut text, mut next, mut rest) = (String::new(), 0, new.iter().collect::<Vec<_>>());
        let replaced = self.replaced(new)?;
        for section in &replaced {
            text.extend(lines[next..section.first - 1].iter().copied());
            let (here, others) = rest.into_iter().partition(|new| section.zones.contains(&new.zone));
            let here: Vec<&ZoneLines> = here;
            text.extend(here.into_iter().map(|new| new.lines.as_str()));
            (next, rest) = (section.last, others);
        }
        text.extend(lines[next..].iter().copied());
        for new in rest.into_iter().filter(|new| !new.lines.is_empty()) {
            if !text.is_empty() && !text.ends_with('\n') {
                text.push('\n');
            }
            text += &new.lines;
        }
        self.check(&text, &replaced, new)?;
        Ok(text)
    }

    /// Returns the text without lb-linker's lines for these zones.
    ///
    /// # Errors
    /// As for [`Corefile::with_lines`].
    pub fn without(&self, zones: &[String]) -> Result<String, CorefileError> {
        let gone = |zone: &String| ZoneLines { zone: zone.clone(), lines: String::new() };
        self.with_lines(&zones.iter().map(gone).collect::<Vec<_>>())
    }

    /// Returns the sections in whose place new lines come.
    fn replaced(&self, new: &[ZoneLines]) -> Result<Vec<&Section>, CorefileError> {
        let is_new = |zone: &String| new.iter().any(|new| new.zone == *zone);
        let replaced: Vec<&Section> =
            self.sections.iter().filter(|section| section.zones.iter().any(is_new)).collect();
        match replaced.iter().find(|section| !section.zones.iter().all(is_new)) {
            Some(section) => Err(self.position(section.first).error(format!(
                "lb-linker has added this block for {} together: give all of them by --zone",
                section.zones.join(", ")
            ))),
            None => Ok(replaced),
        }
    }

    /// Checks that a changed text has exactly the new blocks, and the present ones that aren't in replaced sections.
    fn check(&self, text: &str, replaced: &[&Section], new: &[ZoneLines]) -> Result<(), CorefileError> {
        let changed = parse_with_snippets(&self.file, text, &WITHOUT_FILES, self.inherited.clone())?.0;
        let stays = |block: &&BlockSource| !replaced.iter().any(|section| section.has(block));
        let mut expected: Vec<String> = self.blocks.iter().filter(stays).map(shape).collect();
        for new in new {
            expected.extend(parse(&self.file, &new.lines, &WITHOUT_FILES)?.iter().map(shape));
        }
        let mut found: Vec<String> = changed.iter().map(shape).collect();
        expected.sort_unstable();
        found.sort_unstable();
        if expected == found {
            return Ok(());
        }
        let line = replaced.first().map_or_else(|| self.text.lines().count(), |section| section.first);
        Err(self.position(line.max(1)).error(
            "a block at this place would change other blocks: put braces around each block, and lb-linker's two \
             marker lines around its own block only",
        ))
    }

    fn is_ours(&self, block: &BlockSource) -> bool {
        self.sections.iter().any(|section| section.has(block))
    }

    fn position(&self, line: usize) -> Position {
        Position { file: Arc::clone(&self.file), line, column: 1 }
    }
}

/// Returns where a cluster DNS with these Corefiles answers for all names by plain DNS: the ports and `bind` lines of the
/// blocks of the root zone; without such a block, those of all blocks.
///
/// # Errors
/// If an environment variable decides it, or if no block is for plain DNS.
pub fn listeners<'a>(
    corefiles: impl IntoIterator<Item = &'a Corefile<'a>>,
) -> Result<Vec<Listener>, CorefileError> {
    let foreign =
        |corefile: &'a Corefile<'a>| corefile.blocks.iter().filter(|block| !corefile.is_ours(block));
    let blocks: Vec<&BlockSource> = corefiles.into_iter().flat_map(foreign).collect();
    let plain = plain_addresses(&blocks)?;
    let is_known =
        |address: &PlainAddress<'_>| !address.zone.contains(VARIABLE) && address.listener.is_some();
    let has_root = plain.iter().any(|address| address.zone.is_empty() && is_known(address));
    let mut all: Vec<Listener> = Vec::new();
    for address in plain.iter().filter(|it| is_known(it) && (it.zone.is_empty() || !has_root)) {
        all.extend(address.listener.clone().filter(|listener| !all.contains(listener)));
    }
    for address in plain.iter().filter(|it| !is_known(it)) {
        let may_be_root = address.zone.is_empty() || address.zone.contains(VARIABLE);
        let is_covered = address.listener.as_ref().is_some_and(|listener| all.contains(listener));
        if !is_covered && (may_be_root || !has_root) {
            return Err(address.token.error(format!(
                "{} has an environment variable of CoreDNS, whose value isn't known here, and so the ports for DNS aren't \
                 known: write the value instead, or add the block for the zone by hand",
                address.token.text
            )));
        }
    }
    let overlaps = |address: &&PlainAddress<'_>| {
        let port = address.listener.as_ref().map(|listener| listener.port);
        address.has_view && all.iter().filter(|listener| Some(listener.port) == port).count() > 1
    };
    if let Some(address) = plain.iter().find(overlaps) {
        return Err(address.token.error(
            "on this port, blocks with view and with other addresses in bind may overlap: add the block for the zone by \
             hand",
        ));
    }
    match blocks.iter().flat_map(|block| &block.addresses).next() {
        Some(address) if all.is_empty() => Err(address.error(
            "no block answers by plain DNS, and so there is no port for the zone: add the block for the zone by hand",
        )),
        _ if all.is_empty() => Ok(vec![Listener::default()]),
        _ => Ok(all),
    }
}

/// What the parser leaves of an environment variable.
const VARIABLE: &str = "{$";

/// An address of a block for plain DNS.
struct PlainAddress<'a> {
    token: &'a Token,
    /// As [`zone_of`] returns it.
    zone: String,
    /// `None` if an environment variable decides the port.
    listener: Option<Listener>,
    has_view: bool,
}

fn plain_addresses<'a>(blocks: &[&'a BlockSource]) -> Result<Vec<PlainAddress<'a>>, CorefileError> {
    let mut plain = Vec::new();
    for block in blocks {
        let bind = Bind::of(block);
        let has_view = block.lines.iter().any(|line| line.name() == "view");
        for token in &block.addresses {
            let Some(zone) = zone_of(&token.text) else { continue };
            let listener = port_of(token)?.map(|port| Listener { port, bind: bind.clone() });
            plain.push(PlainAddress { token, zone, listener, has_view });
        }
    }
    Ok(plain)
}

/// Returns directives as lines of a Corefile.
fn text_of<'a>(directives: impl IntoIterator<Item = &'a Directive>, depth: usize) -> String {
    let indentation = "    ".repeat(depth);
    let text = |directive: &Directive| {
        let words: Vec<String> = directive.tokens.iter().map(word).collect();
        let block = directive.block.as_ref().map(|block| text_of(block, depth + 1));
        let block = block.map_or_else(String::new, |block| format!(" {{\n{block}{indentation}}}"));
        format!("{indentation}{}{block}\n", words.join(" "))
    };
    directives.into_iter().map(text).collect()
}

fn word(token: &Token) -> String {
    let text = &token.text;
    let needs_quotes =
        text.is_empty() || text.contains(|c: char| c.is_whitespace() || matches!(c, '#' | '"'));
    if needs_quotes { format!("\"{}\"", text.replace('"', "\\\"")) } else { text.clone() }
}

/// Reads no imported files and no environment: those of this process aren't those of the cluster DNS. See
/// [`Corefile::check_imports`].
const WITHOUT_FILES: FileSources<'static> = FileSources {
    variable: &|name| Some(format!("{{${name}}}")),
    read: &|_| Ok(String::new()),
    glob: &|_| Vec::new(),
};

fn line_of(block: &BlockSource) -> usize {
    block.addresses.first().map_or(1, |address| address.position.line)
}

fn is_root(address: &str) -> bool {
    zone_of(address).is_some_and(|zone| zone.is_empty())
}

/// Returns the zone of an address such as `dns://lb.internal.:53`, without the dot at its end and in lower case; `None`
/// for transports other than plain DNS.
fn zone_of(address: &str) -> Option<String> {
    let address = match address.split_once("://") {
        Some(("dns", rest)) => rest,
        Some(_) => return None,
        None => address,
    };
    let zone = port_text(address).map_or(address, |(zone, _)| zone);
    Some(zone.trim_end_matches('.').to_ascii_lowercase())
}

/// Returns the port of an address; `None` if an environment variable decides it.
fn port_of(address: &Token) -> Result<Option<u16>, CorefileError> {
    let rest = address.text.split_once("://").map_or(&*address.text, |(_, rest)| rest);
    match port_text(rest) {
        Some((_, port)) if port.contains(VARIABLE) => Ok(None),
        Some((_, port)) => {
            let number = port.parse().map_err(|_| address.error("a port is a number from 0 to 65535"))?;
            Ok(Some(number))
        }
        // The variable may have the port, too.
        None if rest.contains(VARIABLE) => Ok(None),
        None => Ok(Some(DNS_PORT)),
    }
}

/// Splits an address into its zone and its port; `None` without a port.
fn port_text(address: &str) -> Option<(&str, &str)> {
    let (zone, port) = address.rsplit_once(':')?;
    let is_number = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    (is_number || port.contains(VARIABLE)).then_some((zone, port))
}

/// Returns the upstreams that a block forwards all names of a zone to.
fn upstreams(block: &BlockSource, zone: &str) -> Vec<String> {
    let forwards = block.lines.iter().filter(|line| line.name() == "forward");
    let arguments = forwards.filter_map(|line| line.arguments().split_first());
    let of_zone = arguments.filter(|(from, _)| zone_of(&from.text).is_some_and(|from| is_below(zone, &from)));
    of_zone.flat_map(|(_, to)| to.iter().map(|argument| argument.text.clone())).collect()
}

fn is_below(zone: &str, parent: &str) -> bool {
    parent.is_empty() || zone == parent || zone.strip_suffix(parent).is_some_and(|rest| rest.ends_with('.'))
}

/// Returns the tokens of a block in a form that can be compared.
fn shape(block: &BlockSource) -> String {
    let addresses: Vec<&str> = block.addresses.iter().map(|address| &*address.text).collect();
    format!("{addresses:?} {}", shape_of_lines(&block.lines))
}

fn shape_of_lines(lines: &[Directive]) -> String {
    let of = |line: &Directive| {
        let tokens: Vec<&str> = line.tokens.iter().map(|token| &*token.text).collect();
        format!("{tokens:?} {}", line.block.as_deref().map_or_else(String::new, shape_of_lines))
    };
    format!("{{{}}}", lines.iter().map(of).collect::<String>())
}

#[cfg(test)]
mod tests;
