//! The time that `lb-linker links` takes to list all links.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::figures::{Results, Spread, Table, millis};
use crate::harness::linker::run_to_end_with;
use crate::objects::TARGETS;
use crate::plane::{LINKS, Plane, ready};

const RUNS: usize = 7;

pub fn run(plane: &mut Plane, results: &mut Results) {
    plane.grow(LINKS);
    let linker = plane.linker(&["--sync", "off"]);
    ready(&linker, Duration::from_millis(20));
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let admin = runtime.block_on(linker.admin()).to_string();
    let mut times = [Vec::new(), Vec::new()];
    for run in 1..=RUNS {
        for (kubeconfig, times) in [None, Some(plane.kubeconfig())].into_iter().zip(&mut times) {
            let took = list(&admin, kubeconfig);
            eprintln!("links {run} of {RUNS}: {took:.0} ms");
            times.push(took);
        }
    }
    let mut table = Table::new(&["milliseconds", "runs", "p50", "p90", "p99", "max"]);
    let [told, read] = times.map(Spread::of);
    table.row("lb-linker links, from a running lb-linker", told.cells());
    table.row("lb-linker links, from the API server", read.cells());
    results.table(&format!("From exec, {LINKS} links"), table);
    results.at_most(
        &format!("list {LINKS} links of a running lb-linker, median"),
        told.median(),
        1000.0,
        "ms",
    );
    results.at_most(&format!("list {LINKS} links from the API server, median"), read.median(), 1000.0, "ms");
}

/// Lists all links, from the API server of `kubeconfig` or else from the running lb-linker with the admin address
/// `admin`. Returns the time in milliseconds.
fn list(admin: &str, kubeconfig: Option<&Path>) -> f64 {
    let mut arguments = vec!["links", "--target-namespace", TARGETS];
    arguments.extend(
        kubeconfig.into_iter().flat_map(|path| ["--kubeconfig", path.to_str().expect("a UTF-8 path")]),
    );
    let since = Instant::now();
    let output = run_to_end_with(&[("LB_LINKER_ADMIN_LISTEN", admin)], arguments);
    let took = millis(since, Instant::now());
    let lines = output.stdout.iter().filter(|byte| **byte == b'\n').count();
    assert_eq!(lines, LINKS + 1, "{}", String::from_utf8_lossy(&output.stderr));
    took
}
