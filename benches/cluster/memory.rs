//! Resident memory of lb-linker by the number of links.

use std::thread;
use std::time::Duration;

use crate::figures::{Results, Table};
use crate::harness::linker::Linker;
use crate::plane::{LINKS, Plane, check, ready};
use crate::process::{Memory, memory};

/// The time after readiness until the memory is stable.
const SETTLE_TIME: Duration = Duration::from_secs(30);

/// The largest number of links with a bound.
const VERY_MANY: usize = 100_000;

/// The anonymous memory of a process without links, in MB: what a further Pod of a node costs. The pages of the program's
/// file are shared.
const EMPTY: f64 = 6.0;

/// What docs/operations.md adds to the memory limit for 10,000 links, in MB.
const MANY_LINKS: f64 = 25.0;

/// Waits for [`SETTLE_TIME`], then returns the memory of lb-linker.
pub fn settled(what: &str, linker: &Linker) -> Memory {
    for left in (1..=SETTLE_TIME.as_secs()).rev() {
        let now = memory(linker.id());
        if left % 10 == 0 {
            eprintln!("{what}: {:.1} MB, peak {:.1} MB, {left} s to go", now.resident, now.peak);
        }
        thread::sleep(Duration::from_secs(1));
    }
    memory(linker.id())
}

/// Returns the memory of an lb-linker that starts with existing objects and has nothing to write.
fn started(plane: &Plane, sync: &str, links: usize) -> Memory {
    let mut linker = plane.linker(&["--sync", sync]);
    ready(&linker, Duration::from_millis(20));
    if links > 0 {
        check(linker.dns, links);
    }
    let memory = settled(&format!("{links} links, --sync {sync}"), &linker);
    linker.stop();
    memory
}

fn print(links: &str, rows: &[(&str, Memory)], results: &mut Results) {
    let mut table = Table::new(&["MB (2^20 bytes)", "resident", "anonymous", "file", "peak"]);
    for (name, memory) in rows {
        let Memory { resident, anonymous, file, peak } = memory;
        let cells = [resident, anonymous, file, peak].map(|value| format!("{value:.1}"));
        table.row(&format!("{links} links, {name}"), cells);
    }
    results.table("Memory", table);
}

/// Measures without links.
pub fn idle(plane: &Plane, results: &mut Results) {
    let on = started(plane, "on", 0);
    let off = started(plane, "off", 0);
    print("no", &[("--sync on", on), ("--sync off", off)], results);
    results.at_most("anonymous, no links, --sync on", on.anonymous, EMPTY, "MB");
}

/// Measures with 10,000 links.
pub fn many(plane: &mut Plane, results: &mut Results) {
    plane.grow(LINKS);
    let off = started(plane, "off", LINKS);
    let mut linker = plane.synced_linker();
    let wrote = settled("10,000 links, all written", &linker);
    linker.stop();
    let on = started(plane, "on", LINKS);
    let rows = [("--sync off", off), ("--sync on, wrote all", wrote), ("--sync on, all written before", on)];
    print("10,000", &rows, results);
    results.at_most("anonymous, 10,000 links, --sync on", on.anonymous, EMPTY + MANY_LINKS, "MB");
    results.at_most("anonymous, 10,000 links, --sync off", off.anonymous, EMPTY + MANY_LINKS, "MB");
}

/// Measures with 100,000 links.
pub fn very_many(plane: &mut Plane, results: &mut Results) {
    plane.grow(LINKS);
    drop(plane.synced_linker());
    plane.multiply(VERY_MANY);
    let off = started(plane, "off", VERY_MANY);
    let on = started(plane, "on", VERY_MANY);
    print("100,000", &[("--sync off", off), ("--sync on, all written before", on)], results);
    results.at_most("anonymous, 100,000 links, --sync on", on.anonymous, EMPTY + 10.0 * MANY_LINKS, "MB");
    results.at_most("anonymous, 100,000 links, --sync off", off.anonymous, EMPTY + 10.0 * MANY_LINKS, "MB");
}
