//! Many StableNames whose Services get new hostnames at once: the time and the number of writes until DNS and all
//! external targets have the new hostnames.

use std::thread;
use std::time::{Duration, Instant};

use crate::dns::{SerialClient, change_of};
use crate::figures::{Results, millis};
use crate::harness::deploy;
use crate::harness::dns::{FaultyUpstream, address};
use crate::harness::linker::Linker;
use crate::objects::{TARGETS, link_question, namespace, services, status, status_patch};
use crate::plane::{Plane, ready};
use serde_json::json;

const OBJECTS: usize = 2_000;
/// The time after the changes in which nothing may be written.
const QUIET: Duration = Duration::from_secs(60);
const TIMEOUT: Duration = Duration::from_secs(300);
/// The first change number of this part. Other parts use other numbers for the same Services.
const FIRST: u64 = 900_000;

pub fn run(plane: &mut Plane, results: &mut Results) {
    plane.grow(OBJECTS);
    let crd = deploy().join("crd");
    plane.control_plane.kubectl(&["apply", "-f", crd.to_str().expect("a UTF-8 path")]);
    plane.control_plane.wait_for_crds(&["stablenames.linker.hsj.com"]);
    change(plane, FIRST);
    plane.each(OBJECTS, "StableNames made", |connection, number| {
        let source = json!({"name": "only", "service": {"name": format!("svc-{number}")}});
        let object = json!({
            "apiVersion": "linker.hsj.com/v1alpha1", "kind": "StableName",
            "metadata": {"name": format!("svc-{number}")}, "spec": {"sources": [source]},
        });
        let path = format!("/apis/linker.hsj.com/v1alpha1/namespaces/{}/stablenames", namespace(number));
        connection.must("POST", &path, &object.to_string());
    });
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let upstream = runtime.block_on(FaultyUpstream::start(|asked, _| vec![address(asked, 1, 60)]));
    let upstream = upstream.address.to_string();
    let linker = plane.linker_with(&upstream, &[]);
    ready(&linker, Duration::from_millis(20));
    finish(plane, &linker, FIRST);
    settle(&linker);

    let before = writes(&linker);
    let begun = Instant::now();
    change(plane, FIRST + 1);
    eprintln!("all hostnames changed after {:.1} s", begun.elapsed().as_secs_f64());
    finish(plane, &linker, FIRST + 1);
    let took = millis(begun, Instant::now()) / 1000.0;
    let after = writes(&linker);
    thread::sleep(QUIET);
    let later = writes(&linker);
    let bound = |results: &mut Results, what: &str, value, bound, unit: &str| {
        results.at_most(&format!("{OBJECTS} StableNames with new hostnames: {what}"), value, bound, unit);
    };
    bound(results, "DNS and external targets", took, 30.0, "s");
    bound(results, "statuses", after.0 - before.0, 2_500.0, "writes");
    bound(results, "external targets", after.1 - before.1, 2_100.0, "writes");
    let rest = later.0 + later.1 - after.0 - after.1;
    bound(results, "the minute after", rest, 0.0, "writes");
}

/// Gives every Service the hostname of a change.
fn change(plane: &Plane, change: u64) {
    plane.each(OBJECTS, "hostnames changed", |connection, number| {
        connection.must("PATCH", &status(number), &status_patch(change, number));
    });
}

/// Waits until every external target and every answer has the hostname of a change.
fn finish(plane: &Plane, linker: &Linker, change: u64) {
    let deadline = Instant::now() + TIMEOUT;
    let mut asker = SerialClient::new(linker.dns);
    for number in 0..OBJECTS {
        while asker.ask(&mut link_question(number)) != Some(change) {
            assert!(Instant::now() < deadline, "svc-{number} has another target");
            thread::sleep(Duration::from_millis(5));
        }
    }
    let mut connection = plane.access.connect();
    loop {
        let list = connection.json("GET", &services(TARGETS), "");
        let items = list["items"].as_array().map_or(&[][..], Vec::as_slice);
        let hosts = items.iter().filter_map(|item| item["spec"]["externalName"].as_str());
        let written = hosts.filter(|host| change_of(host) == Some(change)).count();
        if written >= OBJECTS {
            return;
        }
        assert!(Instant::now() < deadline, "only {written} external targets have the new hostname");
        thread::sleep(Duration::from_millis(50));
    }
}

/// Waits until nothing has been written for 12 s.
fn settle(linker: &Linker) {
    let mut before = None;
    while before != Some(writes(linker)) {
        before = Some(writes(linker));
        thread::sleep(Duration::from_secs(12));
    }
}

/// Returns the numbers of writes of statuses, and of external targets.
fn writes(linker: &Linker) -> (f64, f64) {
    let page = linker.metrics();
    let of = |kind: &str| -> f64 {
        let lines = page.lines().filter(|line| line.starts_with("lb_linker_api_writes_total{"));
        let lines = lines.filter(|line| line.contains(&format!("kind=\"{kind}\"")));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    };
    (of("StableName"), of("Service"))
}
