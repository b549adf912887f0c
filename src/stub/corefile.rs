//! The Corefile of the cluster DNS as text: adds and removes the block that forwards the zones. Pure functions.

use std::path::Path;
use std::sync::Arc;

use super::Forwarding;
use crate::dns::corefile::{BlockSource, CorefileError, Directive, FileSources, Position, parse, tokenize};

/// The first line of what lb-linker adds.
const BEGIN: &str = "# BEGIN lb-linker stub";
/// The port of DNS (RFC 1035 section 4.2).
pub(super) const DNS_PORT: &str = "53";
/// The last line of what lb-linker adds.
const END: &str = "# END lb-linker stub";

/// A Corefile with the place of lb-linker's lines.
#[derive(Debug)]
pub struct Corefile<'a> {
    /// The name in error messages.
    file: Arc<Path>,
    text: &'a str,
    blocks: Vec<BlockSource>,
    /// The line numbers of the two markers, from 1.
    own_lines: Option<(usize, usize)>,
}

/// The server block of a zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZoneBlock {
    pub zone: String,
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
        let file: Arc<Path> = Path::new(name).into();
        let blocks = parse(&file, text, &WITHOUT_FILES)?;
        let own_lines = markers(&file, text)?;
        let corefile = Self { file, text, blocks, own_lines };
        corefile.check_ours()?;
        Ok(corefile)
    }

    /// Returns whether the Corefile imports other server blocks, such as by `import custom/*.server`.
    #[must_use]
    pub fn imports_servers(&self) -> bool {
        let tokens = tokenize(&self.file, self.text);
        let mut depth = 0_u32;
        tokens.windows(2).any(|pair| {
            match &*pair[0].text {
                "{" => depth += 1,
                "}" => depth = depth.saturating_sub(1),
                _ => {}
            }
            depth == 0 && pair[0].text == "import" && pair[1].text.ends_with(".server")
        })
    }

    /// Returns whether a server block has the plugin *reload*.
    #[must_use]
    pub fn reloads(&self) -> bool {
        self.blocks.iter().any(|block| block.lines.iter().any(|line| line.name() == "reload"))
    }

    /// Returns the arguments of `bind` in the root block: the block of the root zone, or else the first block.
    #[must_use]
    pub fn bind(&self) -> Vec<&str> {
        let binds = self.root().into_iter().flat_map(|block| &block.lines);
        binds
            .filter(|line| line.name() == "bind")
            .flat_map(|line| line.arguments().iter().map(|argument| &*argument.text))
            .collect()
    }

    /// Returns the lines to add: a block that forwards the zones, on the port and the `bind` addresses of the root
    /// block. `by_tcp` lets the block forward by TCP only.
    #[must_use]
    pub fn lines_to_add(&self, forwarding: &Forwarding, by_tcp: bool) -> String {
        lines(forwarding, self.port(), &self.bind(), by_tcp)
    }

    /// Returns the port of the root block.
    fn port(&self) -> &str {
        let root = self.root().and_then(|block| {
            let mut addresses = block.addresses.iter();
            addresses.clone().find(|address| is_root(&address.text)).or_else(|| addresses.next())
        });
        root.and_then(|address| port_of(&address.text)).unwrap_or(DNS_PORT)
    }

    /// Returns the blocks of these zones, on the port of the root block.
    #[must_use]
    pub fn blocks_of(&self, zones: &[String]) -> Vec<ZoneBlock> {
        self.blocks_on(self.port(), zones)
    }

    /// Returns the blocks of these zones in a file that this Corefile imports. An imported file may have blocks on other
    /// ports only, so the port is that of this Corefile.
    #[must_use]
    pub fn blocks_of_imported(&self, imported: &Corefile<'_>, zones: &[String]) -> Vec<ZoneBlock> {
        imported.blocks_on(self.port(), zones)
    }

    fn blocks_on(&self, port: &str, zones: &[String]) -> Vec<ZoneBlock> {
        let found = zones.iter().filter_map(|zone| {
            let block = self.blocks.iter().find(|block| serves(block, zone, port))?;
            let (line, is_ours) = (line_of(block), self.is_ours(block));
            Some(ZoneBlock { zone: zone.clone(), line, upstreams: upstreams(block, zone), is_ours })
        });
        found.collect()
    }

    /// Returns whether the Corefile has lines that lb-linker has added.
    #[must_use]
    pub fn has_own_block(&self) -> bool {
        self.own_lines.is_some()
    }

    /// Returns the text with these lines instead of lb-linker's present ones, or at the end.
    ///
    /// # Errors
    /// If the result isn't the former Corefile with this block instead of lb-linker's present block.
    pub fn with_block(&self, lines: &str) -> Result<String, CorefileError> {
        let (before, after) = self.around_own_block();
        let text = if self.own_lines.is_some() || before.is_empty() || before.ends_with('\n') {
            format!("{before}{lines}{after}")
        } else {
            format!("{before}\n{lines}{after}")
        };
        self.check(&text, &parse(&self.file, lines, &WITHOUT_FILES)?)?;
        Ok(text)
    }

    /// Returns the text without lb-linker's lines.
    ///
    /// # Errors
    /// If the result isn't the former Corefile without lb-linker's blocks.
    pub fn without_block(&self) -> Result<String, CorefileError> {
        let (before, after) = self.around_own_block();
        let text = format!("{before}{after}");
        self.check(&text, &[])?;
        Ok(text)
    }

    /// Checks that one block stands between the markers, and has only directives that lb-linker writes.
    fn check_ours(&self) -> Result<(), CorefileError> {
        let Some((first, _)) = self.own_lines else { return Ok(()) };
        let mut blocks = self.blocks.iter().filter(|block| self.is_ours(block));
        let is_made = |block: &BlockSource| {
            block.lines.iter().all(|line| matches!(line.name(), "bind" | "errors" | "forward"))
        };
        match (blocks.next(), blocks.next()) {
            (Some(block), None) if is_made(block) => Ok(()),
            _ => Err(self.position(first).error(
                "only the block that lb-linker has added may stand between its marker lines: move everything else \
                 out, or delete the two lines",
            )),
        }
    }

    /// Checks that a changed text has exactly the blocks `added` and those of the Corefile that aren't lb-linker's.
    fn check(&self, text: &str, added: &[BlockSource]) -> Result<(), CorefileError> {
        let changed = parse(&self.file, text, &WITHOUT_FILES)?;
        let foreign = self.blocks.iter().filter(|block| !self.is_ours(block));
        let mut expected: Vec<String> = foreign.chain(added).map(shape).collect();
        let mut found: Vec<String> = changed.iter().map(shape).collect();
        expected.sort_unstable();
        found.sort_unstable();
        if expected == found {
            return Ok(());
        }
        let line = self.own_lines.map_or_else(|| self.text.lines().count(), |(first, _)| first);
        Err(self.position(line.max(1)).error(
            "a block at this place would change other blocks: put braces around each block, and lb-linker's two \
             marker lines around its own block only",
        ))
    }

    /// Returns the text before and after lb-linker's lines.
    fn around_own_block(&self) -> (&'a str, &'a str) {
        let Some((first, last)) = self.own_lines else { return (self.text, "") };
        let offset = |lines: usize| self.text.split_inclusive('\n').take(lines).map(str::len).sum::<usize>();
        (&self.text[..offset(first - 1)], &self.text[offset(last)..])
    }

    /// Returns the block of the root zone; the first block if there is none.
    fn root(&self) -> Option<&BlockSource> {
        let has_root = |block: &&BlockSource| block.addresses.iter().any(|address| is_root(&address.text));
        self.blocks.iter().find(has_root).or_else(|| self.blocks.first())
    }

    fn is_ours(&self, block: &BlockSource) -> bool {
        self.own_lines.is_some_and(|(first, last)| (first..=last).contains(&line_of(block)))
    }

    fn position(&self, line: usize) -> Position {
        Position { file: Arc::clone(&self.file), line, column: 1 }
    }
}

/// Returns a block that forwards the zones, between the marker lines. `by_tcp` lets it forward by TCP only.
#[must_use]
pub fn lines(forwarding: &Forwarding, port: &str, bind: &[&str], by_tcp: bool) -> String {
    let zones: Vec<String> = forwarding.zones.iter().map(|zone| format!("{zone}:{port}")).collect();
    let bind = if bind.is_empty() { String::new() } else { format!("    bind {}\n", bind.join(" ")) };
    let options = if by_tcp { " {\n        force_tcp\n    }" } else { "" };
    format!(
        "{BEGIN}\n{} {{\n{bind}    errors\n    forward . {}{options}\n}}\n{END}\n",
        zones.join(" "),
        forwarding.upstream()
    )
}

/// Reads no imported files and no environment: those of this process aren't those of the cluster DNS.
const WITHOUT_FILES: FileSources<'static> = FileSources {
    variable: &|name| Some(format!("{{${name}}}")),
    read: &|_| Ok(String::new()),
    glob: &|_| Vec::new(),
};

/// Returns the line numbers of the two markers, from 1; `None` without markers.
fn markers(file: &Arc<Path>, text: &str) -> Result<Option<(usize, usize)>, CorefileError> {
    let is_marker = |line: &str, marker: &str| line.trim() == marker;
    let of = |marker: &str| -> Vec<usize> {
        let lines = text.lines().enumerate().filter(|(_, line)| is_marker(line, marker));
        lines.map(|(index, _)| index + 1).collect()
    };
    let (begins, ends) = (of(BEGIN), of(END));
    match (&*begins, &*ends) {
        ([], []) => Ok(None),
        (&[first], &[last]) if first < last => Ok(Some((first, last))),
        _ => {
            let line = *begins.first().or(ends.first()).unwrap_or(&1);
            Err(Position { file: Arc::clone(file), line, column: 1 }.error(format!(
                "one line {BEGIN:?} has to stand before one line {END:?}: correct these lines by hand"
            )))
        }
    }
}

fn line_of(block: &BlockSource) -> usize {
    block.addresses.first().map_or(1, |address| address.position.line)
}

fn is_root(address: &str) -> bool {
    zone_of(address).is_some_and(|zone| zone.is_empty())
}

/// Returns whether a block is for a zone, by plain DNS on this port.
fn serves(block: &BlockSource, zone: &str, port: &str) -> bool {
    block.addresses.iter().any(|address| {
        zone_of(&address.text).is_some_and(|found| found == zone)
            && port_of(&address.text).unwrap_or(DNS_PORT) == port
    })
}

/// Returns the zone of an address such as `dns://lb.internal.:53`, without the dot at its end and in lower case; `None`
/// for transports other than plain DNS.
fn zone_of(address: &str) -> Option<String> {
    let address = match address.split_once("://") {
        Some(("dns", rest)) => rest,
        Some(_) => return None,
        None => address,
    };
    let zone = address.rsplit_once(':').map_or(address, |(zone, _)| zone);
    Some(zone.trim_end_matches('.').to_ascii_lowercase())
}

fn port_of(address: &str) -> Option<&str> {
    let (_, port) = address.rsplit_once(':')?;
    (!port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit())).then_some(port)
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
