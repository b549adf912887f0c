//! How fast lb-linker follows a real kube-apiserver, and what memory that takes: `make bench-cluster`.
//!
//! `BENCH_ONLY` selects parts, by words of their names with commas between them; `BENCH_CHANGES` says how many
//! changes are followed one by one.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod api;
mod dns;
mod figures;
// The tests use the rest of it.
#[allow(dead_code)]
#[path = "../../tests/e2e/harness/mod.rs"]
mod harness;
mod load;
mod memory;
mod plane;
mod process;
mod propagation;
mod start;

use std::env::var;

use figures::Verdicts;
use plane::Plane;

/// The parts in their order: each may need what the ones before have made.
const PARTS: [&str; 4] = ["memory-idle", "memory-10000", "start", "propagation"];

fn main() {
    let only = var("BENCH_ONLY").unwrap_or_default();
    let words: Vec<&str> = only.split(',').map(str::trim).filter(|word| !word.is_empty()).collect();
    let wanted = |part: &&str| words.is_empty() || words.iter().any(|word| part.contains(word));
    let parts: Vec<&str> = PARTS.into_iter().filter(wanted).collect();
    if parts.is_empty() {
        eprintln!("BENCH_ONLY is {only:?}, and the parts are {}", PARTS.join(", "));
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
    let mut plane = Plane::start();
    let mut verdicts = Verdicts::default();
    for part in parts {
        eprintln!("--- {part}");
        match part {
            "memory-idle" => memory::idle(&plane, &mut verdicts),
            "memory-10000" => memory::many(&mut plane, &mut verdicts),
            "start" => start::run(&mut plane, &mut verdicts),
            _ => propagation::run(&mut plane, changes, &mut verdicts),
        }
    }
    verdicts.print();
}
