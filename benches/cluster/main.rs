//! Latency of lb-linker behind a real kube-apiserver, and its memory: `make bench-cluster`.
//!
//! `BENCH_ONLY` selects parts by comma-separated substrings of their names; `BENCH_CHANGES` is the number of changes
//! that the part `propagation` measures one by one.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod api;
mod copies;
mod dns;
mod external_targets;
mod fed;
mod figures;
// The e2e tests use the functions of the harness that this benchmark doesn't use.
#[allow(dead_code)]
#[path = "../../tests/e2e/harness/mod.rs"]
mod harness;
mod links;
mod load;
mod memory;
mod plane;
mod process;
mod propagation;
mod start;
mod storm;

use std::env::var;

use figures::Verdicts;
use plane::Plane;

/// The parts in their order: later parts reuse the objects of earlier parts, and `memory-idle` needs a cluster without
/// links.
const PARTS: [&str; 9] = [
    "storm-store",
    "memory-idle",
    "memory-10k",
    "start",
    "links",
    "propagation",
    "storm-api",
    "memory-100k",
    "external-targets",
];

fn main() {
    let only = var("BENCH_ONLY").unwrap_or_default();
    let words: Vec<&str> = only.split(',').map(str::trim).filter(|word| !word.is_empty()).collect();
    let wanted = |part: &&str| words.is_empty() || words.iter().any(|word| part.contains(word));
    let parts: Vec<&str> = PARTS.into_iter().filter(wanted).collect();
    if parts.is_empty() {
        eprintln!("BENCH_ONLY {only:?} matches none of the parts {}", PARTS.join(", "));
        std::process::exit(2);
    }
    let changes = match var("BENCH_CHANGES").map(|number| number.parse()) {
        Err(_) => 500,
        Ok(Ok(changes)) => changes,
        Ok(Err(error)) => {
            eprintln!("BENCH_CHANGES isn't a number of changes: {error}");
            std::process::exit(2);
        }
    };
    let mut verdicts = Verdicts::default();
    let (store_storm, parts): (Vec<&str>, Vec<&str>) =
        parts.into_iter().partition(|part| *part == "storm-store");
    // This part needs no control plane, which would use CPU time.
    if !store_storm.is_empty() {
        eprintln!("--- storm-store");
        fed::run(&mut verdicts);
    }
    if !parts.is_empty() {
        with_plane(&parts, changes, &mut verdicts);
    }
    verdicts.print();
}

fn with_plane(parts: &[&str], changes: usize, verdicts: &mut Verdicts) {
    let mut plane = Plane::start();
    for part in parts {
        eprintln!("--- {part}");
        match *part {
            "memory-idle" => memory::idle(&plane, verdicts),
            "memory-10k" => memory::many(&mut plane, verdicts),
            "start" => start::run(&mut plane, verdicts),
            "links" => links::run(&mut plane, verdicts),
            "propagation" => propagation::run(&mut plane, changes, verdicts),
            "storm-api" => storm::run(&mut plane, verdicts),
            "memory-100k" => memory::very_many(&mut plane, verdicts),
            _ => external_targets::run(&mut plane, verdicts),
        }
    }
}
