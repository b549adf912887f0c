//! Checks that `docs/plugins.md`, which `make docs` writes, equals the manuals of the plugins.

use std::path::{Path, PathBuf};

use crate::dns::plugins::{ORDER, import, no_effect};

/// The headings of a manual, in order; the flag marks the mandatory headings. The page leaves them out;
/// docs/reference.md has the metrics.
const HEADINGS: [(&str, bool); 4] =
    [("Name", true), ("Description", false), ("Syntax", false), ("Examples", false)];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn page() -> PathBuf {
    root().join("docs/plugins.md")
}

/// Returns the module comment of a plugin's file, or of `plugins.rs`.
fn comment(name: &str) -> String {
    let path = root().join("src/dns/plugins").join(name).with_extension("rs");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let lines = text.lines().map_while(|line| line.strip_prefix("//!"));
    lines.map(|line| format!("{}\n", line.strip_prefix(' ').unwrap_or(line))).collect()
}

/// Returns the names of the plugins with a manual, sorted.
fn plugins() -> Vec<&'static str> {
    let supported = ORDER.iter().filter(|(_, set_up)| set_up.is_some()).map(|(name, _)| *name);
    let mut names: Vec<_> = supported.chain([import::NAME]).collect();
    names.retain(|name| !no_effect::NAMES.contains(name));
    names.sort_unstable();
    names
}

/// Splits a manual into pairs of heading and text. A `#` in a code block isn't a heading.
fn parts(manual: &str) -> Vec<(String, String)> {
    let mut parts: Vec<(String, String)> = Vec::new();
    let mut in_code = false;
    for line in manual.lines() {
        in_code ^= line.starts_with("```");
        match line.strip_prefix("# ") {
            Some(heading) if !in_code => parts.push((heading.to_owned(), String::new())),
            _ => {
                if let Some((_, text)) = parts.last_mut() {
                    text.push_str(line);
                    text.push('\n');
                }
            }
        }
    }
    parts
}

fn generated_page() -> String {
    let mut text = String::from("# Plugins\n\n");
    let introduction = comment("../plugins");
    text.push_str(introduction.split_once("\n\n").map_or("", |(_, rest)| rest).trim());
    text.push('\n');
    for name in plugins() {
        text.push_str(&format!("\n## {name}\n"));
        for (_, part) in parts(&comment(name)) {
            text.push_str(&format!("\n{}\n", part.trim()));
        }
    }
    text
}

#[test]
fn every_plugin_has_a_manual_with_the_headings_of_coredns() {
    for name in plugins() {
        let headings: Vec<String> = parts(&comment(name)).into_iter().map(|(heading, _)| heading).collect();
        let expected: Vec<&str> = HEADINGS
            .iter()
            .filter(|(heading, needed)| *needed || headings.iter().any(|found| found == heading))
            .map(|(heading, _)| *heading)
            .collect();
        assert_eq!(headings, expected, "{name}");
        let manual = comment(name);
        assert!(manual.contains(&format!("*{name}* - ")), "{name}: its first line says what it does");
    }
}

#[test]
fn page_of_plugins_equals_their_manuals() {
    if std::env::var_os("LB_LINKER_WRITE_DOCS").is_some() {
        std::fs::create_dir_all(page().parent().unwrap()).unwrap();
        std::fs::write(page(), generated_page()).unwrap();
    }
    let found = std::fs::read_to_string(page()).unwrap_or_default();
    assert!(found == generated_page(), "docs/plugins.md isn't what the manuals say: run `make docs`");
}
