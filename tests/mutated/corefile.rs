//! Properties of the Corefile parser for arbitrary text, shared by the property test and the fuzz target.

use std::io;
use std::path::Path;
use std::sync::{Arc, LazyLock};

use lb_linker::dns::corefile::{BlockSource, CorefileError, Directive, FileSources, parse};
use lb_linker::dns::plugins::setup::ServerContext;
use lb_linker::dns::server::config::{configure, text_of};
use lb_linker::store::{OnGone, Store};

/// Sources without files and with one environment variable.
pub static SOURCES: FileSources<'static> = FileSources {
    variable: &|name| (name == "A").then(|| "one two".to_owned()),
    read: &|_| Err(io::ErrorKind::NotFound.into()),
    glob: &|_| Vec::new(),
};

static CONTEXT: LazyLock<ServerContext> =
    LazyLock::new(|| ServerContext::silent(Arc::new(Store::new(OnGone::Kept))).unwrap());

/// Parses the text and builds its server blocks. Returns the kind of outcome, or the violated property.
pub fn try_corefile(bytes: &[u8]) -> Result<&'static str, String> {
    let text = String::from_utf8_lossy(bytes);
    let rule = |rule: String| format!("{rule}\n{text}");
    let blocks = match parse(Path::new("Corefile"), &text, &SOURCES) {
        Ok(blocks) => blocks,
        Err(error) => return check(&error, &text).map(|()| "no language").map_err(rule),
    };
    // Blocks that are written as text and parsed again are the same.
    let again = text_of(&blocks);
    match parse(Path::new("Corefile"), &again, &SOURCES) {
        Ok(found) if tokens(&found) == tokens(&blocks) => {}
        // The text of a variable or a snippet can look like a variable. The syntax can't express a backslash before a
        // quote or at the end of a quoted token.
        _ if again.contains("{$") || again.contains("{%") || again.contains('\\') => {}
        found => return Err(rule(format!("the written text yields other blocks: {found:?}\n{again}"))),
    }
    // Skip Corefiles with paths, so that plugins don't read this machine's files.
    if blocks.iter().any(|block| has_path(&block.lines)) {
        return Ok("with paths");
    }
    match configure(Path::new("Corefile"), &text, &SOURCES, &CONTEXT) {
        Ok(_) => Ok("right"),
        Err(error) => check(&error, &text).map(|()| "wrong").map_err(rule),
    }
}

/// Checks that an error has a position in the file and a message.
pub fn check(error: &CorefileError, text: &str) -> Result<(), String> {
    let (place, message) = (&error.position, &error.message);
    let lines = text.lines().count().max(1);
    if (1..=lines + 1).contains(&place.line) && place.column >= 1 && message.len() > 5 {
        Ok(())
    } else {
        Err(format!("an error without a place or a message: {error:?}"))
    }
}

fn has_path(lines: &[Directive]) -> bool {
    let reads = |line: &Directive| ["auto", "file", "hosts", "root"].contains(&line.name());
    let path = |line: &Directive| {
        line.tokens.iter().any(|word| word.text.contains(['/', '.']) && word.text.contains('/'))
    };
    lines.iter().any(|line| reads(line) || path(line) || line.block.as_deref().is_some_and(has_path))
}

/// Returns the tokens of blocks, without their positions.
fn tokens(blocks: &[BlockSource]) -> Vec<String> {
    fn of_lines(lines: &[Directive], all: &mut Vec<String>) {
        for line in lines {
            all.extend(line.tokens.iter().map(|word| word.text.clone()));
            all.push("\n".to_owned());
            if let Some(block) = &line.block {
                all.push("{".to_owned());
                of_lines(block, all);
                all.push("}".to_owned());
            }
        }
    }
    let mut all = Vec::new();
    for block in blocks {
        all.extend(block.addresses.iter().map(|word| word.text.clone()));
        all.push("{".to_owned());
        of_lines(&block.lines, &mut all);
        all.push("}".to_owned());
    }
    all
}
