//! The time from the start of lb-linker until it is ready.

use std::time::{Duration, Instant};

use crate::figures::{Results, Spread, Table, millis};
use crate::plane::{LINKS, Plane, check, ready};

const RUNS: usize = 7;

pub fn run(plane: &mut Plane, results: &mut Results) {
    plane.grow(LINKS);
    // Writes all external targets before the measured runs, so that these have nothing to write.
    drop(plane.synced_linker());
    let mut times = [Vec::new(), Vec::new()];
    for run in 1..=RUNS {
        for (sync, times) in ["on", "off"].iter().zip(&mut times) {
            let since = Instant::now();
            let mut linker = plane.linker(&["--sync", sync]);
            let took = millis(since, ready(&linker, Duration::from_millis(1)));
            eprintln!("start {run} of {RUNS}, --sync {sync}: {took:.0} ms");
            times.push(took);
            check(linker.dns, LINKS);
            linker.stop();
        }
    }
    let mut table = Table::new(&["milliseconds", "runs", "p50", "p90", "p99", "max"]);
    let [on, off] = times.map(Spread::of);
    table.row("ready, --sync on", on.cells());
    table.row("ready, --sync off", off.cells());
    results.table(&format!("From exec, {LINKS} links"), table);
    results.at_most(&format!("ready with {LINKS} links, median, --sync on"), on.median(), 1000.0, "ms");
    results.at_most(&format!("ready with {LINKS} links, median, --sync off"), off.median(), 1000.0, "ms");
}
