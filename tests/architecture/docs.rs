//! Checks that the documentation matches the program: the tables of docs/reference.md, the paths and the folders in
//! docs/architecture.md, the tests in docs/reliability.md, the links between pages, and the length of README.md.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use clap::{Args, Command};
use regex::Regex;

use lb_linker::cli::flags::Flags;

use crate::FOLDERS;

/// The maximum length of README.md, in lines.
const README_LINES: usize = 150;

pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

pub(crate) fn read(path: impl AsRef<Path>) -> String {
    let path = root().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the files below a folder with names that end in `end`, sorted.
pub(crate) fn files_below(folder: &Path, end: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(files_below(&path, end));
        } else if path.to_string_lossy().ends_with(end) {
            files.push(path);
        }
    }
    files.sort();
    files
}

/// Returns the texts of the files of `src` that aren't tests, without the tests at their ends.
fn sources() -> Vec<String> {
    let is_test = |path: &Path| {
        let parts = path.strip_prefix(root()).unwrap().iter();
        parts.map(|part| part.to_string_lossy()).any(|part| part == "tests" || part == "tests.rs")
    };
    let files = files_below(&root().join("src"), ".rs");
    let files = files.iter().filter(|path| !is_test(path));
    files.map(|path| read(path).split("#[cfg(test)]\nmod tests {").next().unwrap().to_owned()).collect()
}

/// Returns the first groups of all matches of a pattern in the sources.
fn found_in_sources(pattern: &str) -> BTreeSet<String> {
    let pattern = Regex::new(pattern).unwrap();
    let found =
        |text: &String| pattern.captures_iter(text).map(|found| found[1].to_owned()).collect::<Vec<_>>();
    sources().iter().flat_map(found).collect()
}

fn section(page: &str, heading: &str) -> String {
    let text = read(page);
    let level = heading.split(' ').next().unwrap().len();
    let lines = text.lines().skip_while(|line| *line != heading).skip(1);
    let is_next = |line: &&str| {
        let depth = line.chars().take_while(|c| *c == '#').count();
        depth > 0 && depth <= level
    };
    let lines: Vec<&str> = lines.take_while(|line| !is_next(line)).collect();
    assert!(!lines.is_empty(), "{page} has no section {heading:?}");
    lines.join("\n")
}

/// Returns the rows of the tables in a section, each as a list of cells. The first row of each table is its header.
pub(crate) fn rows(page: &str, heading: &str) -> Vec<Vec<String>> {
    let text = section(page, heading);
    let rows = text.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"));
    rows.map(|row| row.split(" | ").map(|cell| cell.trim().to_owned()).collect()).collect()
}

/// Returns the code at the start of a cell, without its backticks; `None` if the cell doesn't begin with code.
pub(crate) fn code(cell: &str) -> Option<&str> {
    cell.strip_prefix('`')?.split('`').next()
}

#[test]
fn reference_has_every_flag_with_its_default_and_values() {
    let rows: BTreeMap<String, Vec<String>> = rows("docs/reference.md", "## Flags")
        .into_iter()
        .filter_map(|row| Some((code(&row[0])?.to_owned(), row)))
        .collect();
    let command = Flags::augment_args(Command::new("lb-linker"));
    let flags: BTreeMap<String, _> =
        command.get_arguments().filter_map(|arg| Some((format!("--{}", arg.get_long()?), arg))).collect();
    assert_eq!(rows.keys().collect::<Vec<_>>(), flags.keys().collect::<Vec<_>>());
    for (flag, arg) in flags {
        let row = &rows[&flag];
        let variable = format!("LB_LINKER_{}", flag[2..].replace('-', "_").to_uppercase());
        assert_eq!(arg.get_env(), Some(variable.as_ref()), "{flag}");
        let defaults: Vec<_> = arg.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
        if arg.get_action().takes_values() && !defaults.is_empty() {
            assert_eq!(code(&row[1]), Some(&*defaults.join(",")), "the default of {flag}");
        }
        if arg.get_action().takes_values() {
            for value in arg.get_possible_values() {
                assert!(row[2].contains(&format!("`{}`", value.get_name())), "{flag}: {}", value.get_name());
            }
        }
    }
}

#[test]
fn reference_has_every_metric() {
    let rows = rows("docs/reference.md", "## Metrics");
    let names = rows.iter().filter_map(|row| code(&row[0])?.split('{').next());
    let documented: BTreeSet<String> = names.map(str::to_owned).collect();
    // A name with a variable part matches several metrics.
    let registered = found_in_sources(r#""((?:lb_linker|coredns)_[a-z0-9_{}]+)""#);
    let patterns: Vec<Regex> = registered
        .iter()
        .map(|name| Regex::new(&format!("^{}$", Regex::new(r"\{\w*\}").unwrap().replace_all(name, "[a-z]+"))))
        .map(Result::unwrap)
        .collect();
    let unknown: Vec<_> =
        documented.iter().filter(|name| !patterns.iter().any(|pattern| pattern.is_match(name))).collect();
    assert!(unknown.is_empty(), "docs/reference.md has metrics that the program doesn't have: {unknown:?}");
    let missing: Vec<_> = registered
        .iter()
        .zip(&patterns)
        .filter(|(_, pattern)| !documented.iter().any(|name| pattern.is_match(name)))
        .map(|(name, _)| name)
        .collect();
    assert!(missing.is_empty(), "docs/reference.md lacks metrics: {missing:?}");
}

#[test]
fn reference_has_every_event_reason() {
    let rows = rows("docs/reference.md", "## Events");
    let documented: BTreeSet<&str> = rows.iter().filter_map(|row| code(&row[0])).collect();
    let text = read("src/sync/events.rs");
    let reasons = text.split_once("pub enum Reason {").unwrap().1.split_once("\n}").unwrap().0;
    let reasons: BTreeSet<&str> = reasons
        .lines()
        .filter_map(|line| line.trim().strip_suffix(','))
        .filter(|line| !line.contains(' '))
        .collect();
    assert_eq!(documented, reasons);
}

#[test]
fn concepts_has_every_reason_of_removals() {
    let rows = rows("docs/concepts.md", "## Deletion");
    let documented: BTreeSet<&str> = rows.iter().filter_map(|row| code(&row[0])).collect();
    let text = read("src/sync/removal/reason.rs");
    let reasons = text.split_once("pub enum RemovalReason {").unwrap().1.split_once("\n}").unwrap().0;
    let reasons: BTreeSet<&str> = reasons.lines().filter_map(|line| line.trim().strip_suffix(',')).collect();
    assert!(reasons.len() > 20, "{reasons:?}");
    assert_eq!(documented, reasons);
}

#[test]
fn reference_has_every_extended_dns_error() {
    let rows = rows("docs/reference.md", "## Extended DNS errors");
    let documented: BTreeSet<(String, String)> = rows
        .iter()
        .filter_map(|row| Some((row[0].split(' ').next()?.to_owned(), row[1].clone())))
        .filter(|(code, _)| code.parse::<u16>().is_ok())
        .collect();
    let pattern = Regex::new(r#"code: (\d+),\s*text: "([^"]+)""#).unwrap();
    let used = |text: &String| {
        let errors = pattern.captures_iter(text).map(|found| (found[1].to_owned(), found[2].to_owned()));
        errors.collect::<Vec<_>>()
    };
    let used: BTreeSet<(String, String)> = sources().iter().flat_map(used).collect();
    assert_eq!(documented, used);
}

#[test]
fn reference_has_every_annotation() {
    let section = section("docs/reference.md", "## Labels and annotations");
    for key in found_in_sources(r#""(linker\.hsj\.com/[a-z-]+|lb-linker/finalizer)""#) {
        assert!(section.contains(&format!("`{key}`")), "{key}");
    }
}

#[test]
fn architecture_names_only_paths_that_exist() {
    let text = read("docs/architecture.md") + &read("CONTRIBUTING.md");
    let paths = Regex::new(r"(?:src|tests|deploy)/[A-Za-z0-9_./-]*").unwrap();
    let paths = paths.find_iter(&text).map(|path| path.as_str().trim_end_matches(['.', '/']));
    // `NAME` stands for a plugin's name.
    let missing: BTreeSet<&str> = paths
        .filter(|path| !path.contains("NAME"))
        .filter(|path| !root().join(path).exists() && !root().join(format!("{path}.rs")).exists())
        .collect();
    assert!(
        missing.is_empty(),
        "docs/architecture.md or CONTRIBUTING.md names paths that don't exist: {missing:?}"
    );
}

#[test]
fn architecture_places_names_in_files_that_have_them() {
    let text = read("docs/architecture.md") + &read("CONTRIBUTING.md");
    let places = Regex::new(r"`([A-Za-z_:]+)`\s+in\s+`((?:src|tests)/[A-Za-z0-9_./-]+\.rs)`").unwrap();
    let places: Vec<_> = places.captures_iter(&text).map(|found| found.extract().1).collect();
    assert!(places.len() >= 10, "{places:?}");
    for [name, file] in places {
        let last = name.rsplit("::").next().unwrap_or(name);
        assert!(read(file).contains(last), "docs/architecture.md or CONTRIBUTING.md: {name} isn't in {file}");
    }
}

#[test]
fn architecture_has_the_folders_in_their_order() {
    let rows = rows("docs/architecture.md", "## Folders and their order");
    let folders: Vec<&str> = rows.iter().filter_map(|row| code(&row[0])?.strip_prefix("src/")).collect();
    let expected: Vec<&str> = FOLDERS.into_iter().chain(["app"]).collect();
    assert_eq!(folders, expected);
}

#[test]
fn readme_has_at_most_150_lines() {
    assert!(read("README.md").lines().count() <= README_LINES);
}

/// Returns the lines of a page that aren't code.
#[test]
fn pages_name_the_versions_of_kube_apiserver_in_go_mod() {
    let version = Regex::new(r"k8s\.io/kubernetes v(1\.\d+)\.").unwrap();
    for folder in ["control-plane", "control-plane-oldest"] {
        let modules = read(format!("tests/{folder}/go.mod"));
        let named = format!("kube-apiserver {}", &version.captures(&modules).unwrap()[1]);
        for page in ["README.md", "README.ko.md", "docs/operations.md"] {
            assert!(read(page).contains(&named), "{page} doesn't name {named}");
        }
    }
}

/// Returns the contrast to black of a colour in hexadecimal digits, with this opacity (WCAG 2.2, 1.4.3).
fn contrast_to_black(colour: &str, opacity: f64) -> f64 {
    let channel = |at: usize| {
        let value = opacity * f64::from(u8::from_str_radix(&colour[at..at + 2], 16).unwrap()) / 255.0;
        if value <= 0.04045 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
    };
    (0.2126 * channel(0) + 0.7152 * channel(2) + 0.0722 * channel(4) + 0.05) / 0.05
}

#[test]
fn texts_of_the_demo_picture_are_readable() {
    let picture = read("docs/demo.svg");
    assert!(picture.contains(".bg { fill: #000000 }"));
    let style = |pattern: &str| {
        let pattern = Regex::new(pattern).unwrap();
        pattern.captures_iter(&picture).map(|found| found[1].to_owned()).collect::<Vec<_>>()
    };
    let opacity: f64 = style(r"\.dimmed \{ opacity: ([\d.]+); \}")[0].parse().unwrap();
    let plain = style(r"\.fg \{ fill: #(\w{6}) \}");
    assert!(contrast_to_black(&plain[0], opacity) >= 4.5, "dimmed: {opacity}");
    for colour in style(r"\.fg[\w-]* \{ fill: #(\w{6}) \}") {
        assert!(contrast_to_black(&colour, 1.0) >= 4.5, "{colour}");
    }
}

fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut in_code = false;
    text.lines().filter(move |line| {
        in_code ^= line.starts_with("```");
        !in_code && !line.starts_with("    ")
    })
}

/// Returns the anchors of a page's headings, as GitHub makes them.
fn anchors(text: &str) -> BTreeSet<String> {
    let is_kept = |c: &char| c.is_alphanumeric() || " -_".contains(*c);
    let heading = |line: &str| line.trim_start_matches('#').strip_prefix(' ').map(str::to_lowercase);
    let headings = prose(text).filter(|line| line.starts_with('#')).filter_map(heading);
    headings
        .map(|heading| heading.trim().chars().filter(is_kept).collect::<String>().replace(' ', "-"))
        .collect()
}

#[test]
fn links_between_pages_name_existing_files_and_headings() {
    let mut pages = files_below(&root().join("docs"), ".md");
    let others = ["README.md", "README.ko.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"];
    pages.extend(others.map(|page| root().join(page)));
    pages.push(root().join("charts/lb-linker/README.md"));
    let (link, code) = (Regex::new(r"\]\(([^)\s]+)\)").unwrap(), Regex::new("`[^`]*`").unwrap());
    let mut broken = Vec::new();
    for page in pages {
        let text = prose(&read(&page)).collect::<Vec<_>>().join("\n");
        let text = code.replace_all(&text, "``");
        for link in link.captures_iter(&text).map(|found| found[1].to_owned()) {
            if link.contains("://") {
                continue;
            }
            let (path, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target = if path.is_empty() { page.clone() } else { page.parent().unwrap().join(path) };
            let has_anchor = || anchor.is_empty() || anchors(&read(&target)).contains(anchor);
            if !target.exists() || !has_anchor() {
                broken.push(format!("{}: {link}", page.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

/// Returns the full names of all tests, such as `e2e leader::dead_leader_is_succeeded_when_its_lease_has_ended`: the
/// program (`lib` for unit tests), and the path of the test.
fn test_names() -> BTreeSet<String> {
    let function = Regex::new(r"#\[(?:tokio::)?test(?:\([^)]*\))?\][^{;]*?\bfn (\w+)").unwrap();
    let mut names = BTreeSet::new();
    for (folder, program) in [
        ("src", "lib"),
        ("tests/e2e", "e2e"),
        ("tests/mutated", "mutated"),
        ("tests/architecture", "architecture"),
    ] {
        let folder = root().join(folder);
        for path in files_below(&folder, ".rs") {
            let module = path.strip_prefix(&folder).unwrap().with_extension("");
            let module: Vec<_> = module.iter().map(|part| part.to_str().unwrap()).collect();
            let module: Vec<_> =
                module.into_iter().filter(|part| *part != "main" && *part != "mod").collect();
            let module: String = module.iter().map(|part| format!("{part}::")).collect();
            let text = read(&path);
            for found in function.captures_iter(&text) {
                names.insert(format!("{program} {module}{}", &found[1]));
                // Unit tests at the end of a file are in a module of their own.
                names.insert(format!("{program} {module}tests::{}", &found[1]));
            }
        }
    }
    names
}

#[test]
fn tests_named_in_the_page_of_reliability_exist() {
    let known = test_names();
    let name = Regex::new(r"`((?:lib|e2e|mutated|architecture) [\w:]+)`").unwrap();
    let page = read("docs/reliability.md");
    let named: BTreeSet<&str> =
        name.captures_iter(&page).map(|found| found.get(1).unwrap().as_str()).collect();
    let unknown: Vec<_> = named.iter().filter(|name| !known.contains(**name)).collect();
    assert!(unknown.is_empty(), "docs/reliability.md names tests that don't exist: {unknown:#?}");
    // Each row names a test.
    for row in rows("docs/reliability.md", "## What is promised").iter().skip(1) {
        assert!(name.is_match(&row[1]), "{row:?}");
    }
    for row in rows("docs/reliability.md", "## What works when what is down").iter().skip(1) {
        assert!(name.is_match(row.last().unwrap()), "{row:?}");
    }
}
