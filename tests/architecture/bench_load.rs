//! When a round of `make bench` is disturbed: a benchmark has no tests of its own.

#[expect(dead_code, reason = "only the benchmark reads all figures")]
#[path = "../../benches/queries/load.rs"]
mod load;

use load::{CoreShares, LoadResult};

fn result(own: f64, core: CoreShares, lost: f64) -> LoadResult {
    LoadResult {
        cpu: 5.0,
        own,
        other_processes: core.other_processes(own),
        per_second: 150_000.0,
        mean: 1_000.0,
        answered: 300_000.0 - lost,
        lost,
        wanted: None,
    }
}

fn full(own: f64) -> CoreShares {
    CoreShares { idle: (1.0 - own).max(0.0), sampled: own }
}

#[test]
fn queries_lost_at_saturation_dont_disturb_a_round() {
    for (lost, expected) in [(0.0, false), (1.0, false), (17.0, false), (30.0, false), (31.0, true)] {
        assert_eq!(result(0.95, full(0.95), lost).is_disturbed(), expected, "{lost}");
    }
}

#[test]
fn only_time_of_other_processes_disturbs_a_round() {
    let core = |idle, sampled| CoreShares { idle, sampled };
    for (what, own, core, expected) in [
        ("a full core", 0.97, core(0.0, 1.0), 0.03),
        ("a full core whose idle time grew late", 0.97, core(0.8, 1.0), 0.0),
        ("a full core, and more idle time than time", 0.97, core(5.0, 1.0), 0.0),
        ("a round of 1 s that waited 5 s for a lost query", 0.16, core(0.83, 0.17), 0.01),
        ("a server that sleeps at the ticks", 0.3, core(0.7, 0.02), 0.0),
        ("idle time that is missing", 0.3, core(0.2, 0.05), 0.05),
        ("a build", 0.5, core(0.0, 1.0), 0.5),
        ("a build beside a server that sleeps at the ticks", 0.2, core(0.5, 0.35), 0.3),
    ] {
        let result = result(own, core, 0.0);
        assert!((result.other_processes - expected).abs() < 1e-9, "{what}: {result:?}");
        assert_eq!(result.is_disturbed(), expected > 0.1, "{what}: {result:?}");
    }
}

#[test]
fn server_at_its_limit_isnt_taken_for_a_disturbed_one() {
    let paced = |own, per_second, lost| LoadResult {
        per_second,
        wanted: Some(20_000),
        ..result(own, full(own), lost)
    };
    assert!(!paced(0.3, 19_900.0, 0.0).is_disturbed());
    assert!(paced(0.3, 17_000.0, 0.0).is_disturbed(), "the load was late");
    assert!(paced(0.3, 19_900.0, 100.0).is_disturbed(), "queries were lost with room to spare");
    assert!(!paced(0.98, 12_000.0, 50_000.0).is_disturbed(), "the server can't do more");
}
