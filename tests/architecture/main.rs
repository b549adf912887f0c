//! Checks the layout of `src`: the order of the folders, the size of import cycles, the imports between plugins, the
//! crates that each folder may use, and the files with unsafe code.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod bench_load;
mod crd;
mod docs;
mod imports;
mod monitoring;

use std::collections::{BTreeMap, BTreeSet};

use docs::{files_below, read, root};
use imports::{File, files};
use proc_macro2::{TokenStream, TokenTree};

/// The folders in their order: each folder may use the folders before it. `sync` and `dns` don't use each other; both
/// use `store`. `app`, `commands`, `main.rs` and `lib.rs` come last.
const FOLDERS: [&str; 43] = [
    "model",
    "api",
    "boot_clock",
    "metrics",
    "object_log",
    "readiness",
    "file_watcher",
    "label_selector",
    "store",
    "sync/k8s",
    "sync/removal",
    "sync/task",
    "sync/election",
    "sync/controller",
    "sync/events",
    "sync/source",
    "sync/stable_name/decision",
    "sync/external_target",
    "sync/source_annotation",
    "sync/alerts",
    "sync/stable_name/controller",
    "sync",
    "snapshot",
    "dns/query_log",
    "dns/net",
    "dns/message",
    "dns/zone",
    "dns/corefile",
    "dns/response_cache",
    "dns/chain",
    "dns/transport",
    "dns/upstream",
    "dns/plugins",
    "dns/server",
    "dns",
    "links",
    "admin",
    "query",
    "stub",
    "cli",
    "takeover",
    "scan",
    "compare",
];

/// The maximum number of files in an import cycle.
const MAX_CYCLE: usize = 3;

/// Returns the folder of a file: the longest folder in [`FOLDERS`] that is a prefix of the file's path, or else `app`.
fn folder(file: &str) -> &str {
    let path = file.strip_suffix(".rs").unwrap_or(file);
    let contains = |folder: &&&str| {
        path.strip_prefix(**folder).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    FOLDERS.iter().filter(contains).max_by_key(|folder| folder.len()).copied().unwrap_or("app")
}

fn may_use(user: &str, used: &str) -> bool {
    let place = |folder: &str| FOLDERS.iter().position(|known| *known == folder).unwrap_or(FOLDERS.len());
    let top = |folder: &'static str| move |path: &str| path.split('/').next() == Some(folder);
    place(used) <= place(user) && !(top("dns")(user) && top("sync")(used))
}

/// Returns the plugin that a file belongs to: a folder or a file directly below `dns/plugins`. `setup` and
/// `tests` aren't plugins.
fn plugin(file: &str) -> Option<&str> {
    let path = file.strip_prefix("dns/plugins/")?;
    let name = path.split('/').next()?;
    let name = name.strip_suffix(".rs").unwrap_or(name);
    (!matches!(name, "setup" | "tests")).then_some(name)
}

/// Returns the files that a file uses, directly or indirectly.
fn reachable<'a>(files: &'a BTreeMap<String, File>, start: &'a str) -> BTreeSet<&'a str> {
    let (mut seen, mut open) = (BTreeSet::new(), vec![start]);
    while let Some(file) = open.pop() {
        let Some(file) = files.get(file) else { continue };
        open.extend(file.uses.iter().map(String::as_str).filter(|used| seen.insert(*used)));
    }
    seen
}

#[test]
fn folders_use_only_earlier_folders() {
    let wrong = |(name, file): (&String, &File)| -> Vec<String> {
        let used = file.uses.iter().map(|used| folder(used));
        used.filter(|used| !may_use(folder(name), used)).map(|used| format!("{name} -> {used}")).collect()
    };
    let wrong: BTreeSet<String> = files().iter().flat_map(wrong).collect();
    assert!(wrong.is_empty(), "these files use a folder that stands after their own: {wrong:#?}");
}

#[test]
fn import_cycles_have_at_most_three_files() {
    let files = files();
    let reachable: BTreeMap<&str, BTreeSet<&str>> =
        files.keys().map(|file| (file.as_str(), reachable(&files, file))).collect();
    let circle = |file: &&str| -> BTreeSet<&str> {
        reachable[*file].iter().copied().filter(|other| reachable[other].contains(*file)).collect()
    };
    let largest = reachable.keys().map(circle).max_by_key(BTreeSet::len).unwrap_or_default();
    assert!(largest.len() <= MAX_CYCLE, "these files import each other in a circle: {largest:#?}");
}

#[test]
fn model_uses_neither_clap_nor_kube_nor_tokio() {
    let foreign = |(name, file): (&String, &File)| -> Vec<String> {
        let crates = file.crates.iter().filter(|name| matches!(name.as_str(), "clap" | "kube" | "tokio"));
        crates.map(|used| format!("{name} -> {used}")).collect()
    };
    let files = files();
    let model = files.iter().filter(|(name, _)| folder(name) == "model");
    let foreign: BTreeSet<String> = model.flat_map(foreign).collect();
    assert!(foreign.is_empty(), "these files of model use a crate that it may not use: {foreign:#?}");
}

#[test]
fn clap_is_used_only_by_cli_and_commands() {
    let files = files();
    let users = files.iter().filter(|(_, file)| file.crates.contains("clap")).map(|(name, _)| name.as_str());
    let wrong: Vec<&str> =
        users.filter(|name| !name.starts_with("commands") && folder(name) != "cli").collect();
    assert!(wrong.is_empty(), "these files use clap, which only cli and commands may use: {wrong:#?}");
}

#[test]
fn plugins_dont_import_each_other_in_a_circle() {
    let mut plugins: BTreeMap<String, File> = BTreeMap::new();
    for (name, file) in &files() {
        let Some(user) = plugin(name) else { continue };
        let used = file.uses.iter().filter_map(|used| plugin(used)).filter(|used| *used != user);
        plugins.entry(user.to_owned()).or_default().uses.extend(used.map(str::to_owned));
    }
    let is_in_circle = |name: &&String| reachable(&plugins, name).contains(name.as_str());
    let circle: Vec<&String> = plugins.keys().filter(is_in_circle).collect();
    assert!(circle.is_empty(), "these plugins import each other in a circle: {circle:?}");
}

/// The files that may have unsafe code: the UDP front end passes buffers to the kernel, sockets to upstreams are
/// registered with the runtime for reading only, and jemalloc finds its settings by the name of a symbol.
const UNSAFE_FILES: [&str; 3] = ["dns/net/readable.rs", "dns/transport/udp/batch.rs", "main.rs"];

#[test]
fn unsafe_code_is_in_three_files_only() {
    fn has_unsafe(tokens: TokenStream) -> bool {
        tokens.into_iter().any(|token| match token {
            TokenTree::Ident(word) => word == "unsafe" || word == "unsafe_code",
            TokenTree::Group(group) => has_unsafe(group.stream()),
            TokenTree::Punct(_) | TokenTree::Literal(_) => false,
        })
    }
    let src = root().join("src");
    let files = files_below(&src, ".rs").into_iter();
    let files = files.filter(|path| has_unsafe(read(path).parse().unwrap()));
    let files: Vec<String> =
        files.map(|path| path.strip_prefix(&src).unwrap().to_str().unwrap().to_owned()).collect();
    assert_eq!(files, UNSAFE_FILES);
    // In all other files, unsafe code is a compile error.
    assert!(read("Cargo.toml").contains("\nunsafe_code = \"deny\"\n"));
}
