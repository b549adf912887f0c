//! Fuzzes the parser of manifests, YAML and JSON of Services and StableNames, with arbitrary text.

#![no_main]

#[path = "../../tests/mutated/links.rs"]
mod links;
#[path = "../../tests/mutated/manifest.rs"]
mod manifest;

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use links::Links;

static LINKS: LazyLock<Links> = LazyLock::new(Links::start);

fuzz_target!(|bytes: &[u8]| {
    if let Err(rule) = manifest::try_manifest(&LINKS, bytes) {
        panic!("{rule}");
    }
});
