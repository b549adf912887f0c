//! Latency of lb-linker behind a real kube-apiserver, and its memory: `make bench-cluster`.
//!
//! `BENCH_ONLY` selects parts by comma-separated substrings of their names; `BENCH_CHANGES` is the number of changes
//! that the part `propagation` measures one by one.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod api;
mod cluster_dns;
mod copies;
mod dns;
mod fed;
mod figures;
mod stable_names;
// The e2e tests use the functions of the harness that this benchmark doesn't use.
#[allow(dead_code)]
#[path = "../../tests/e2e/harness/mod.rs"]
mod harness;
mod kept;
mod links;
mod load;
mod memory;
mod objects;
#[path = "../page.rs"]
mod page;
mod plane;
mod process;
mod propagation;
mod remotes;
mod sources;
mod start;
mod storm;

use std::env::var;
use std::process::Command;

use figures::Results;
use harness::programs::programs;
use plane::Plane;

/// The parts in their order: later parts reuse the objects of earlier parts, and `memory-idle` needs a cluster without
/// links.
const PARTS: [&str; 13] = [
    "storm-store",
    "kept-answers",
    "cluster-dns",
    "remotes",
    "memory-idle",
    "memory-10k",
    "start",
    "links",
    "propagation",
    "storm-api",
    "sources",
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
    let mut results = Results::default();
    // These parts need no control plane, which would use CPU time, or one without links.
    let (alone, parts): (Vec<&str>, Vec<&str>) =
        parts.into_iter().partition(|part| ["storm-store", "kept-answers", "cluster-dns"].contains(part));
    for part in alone {
        eprintln!("--- {part}");
        match part {
            "storm-store" => fed::run(&mut results),
            "kept-answers" => kept::run(&mut results),
            _ => cluster_dns::run(&Plane::start(), changes, &mut results),
        }
    }
    if !parts.is_empty() {
        with_plane(&parts, changes, &mut results);
    }
    let text = results.text();
    println!("{text}");
    if page::is_written()
        && let Err(problem) = page::write("cluster", &format!("{}\n{text}", page::measured_with(versions())))
    {
        eprintln!("bench: {problem}");
        std::process::exit(1);
    }
}

/// Returns the versions of the programs beside lb-linker.
fn versions() -> Vec<String> {
    let programs = programs();
    let said = |program, argument| page::said(Command::new(program).arg(argument));
    let first = |said: String| said.lines().next().unwrap_or_default().trim().to_owned();
    vec![
        first(said(&programs.kube_apiserver, "--version")),
        first(said(&programs.etcd, "--version")),
        first(said(&programs.coredns, "-version")),
    ]
}

fn with_plane(parts: &[&str], changes: usize, results: &mut Results) {
    let mut plane = Plane::start();
    for part in parts {
        eprintln!("--- {part}");
        match *part {
            "remotes" => remotes::run(&plane, results),
            "memory-idle" => memory::idle(&plane, results),
            "memory-10k" => memory::many(&mut plane, results),
            "start" => start::run(&mut plane, results),
            "links" => links::run(&mut plane, results),
            "propagation" => propagation::run(&mut plane, changes, results),
            "storm-api" => storm::run(&mut plane, results),
            "sources" => sources::run(&mut plane, results),
            "memory-100k" => memory::very_many(&mut plane, results),
            _ => stable_names::run(&mut plane, results),
        }
    }
}
