//! Names of Ingresses, of routes at Gateways and of DNSEndpoints beside links: memory, start, and changes.

use std::fs;
use std::path::Path;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::api::Connection;
use crate::dns::{SerialClient, address_question, endpoint};
use crate::figures::{Results, Spread, Table, millis};
use crate::harness::deploy;
use crate::harness::linker::Linker;
use crate::harness::programs::{dns_endpoint_crd, gateway_api_crds};
use crate::load::{Change, Load};
use crate::memory::settled;
use crate::objects::{link_question, namespace};
use crate::plane::{LINKS, Plane, ready};
use crate::process::{Cpu, Memory};
use crate::storm::paced;

const SOURCES: [&str; 3] = ["--sources", "service,ingress,gateway,dnsendpoint", "--sync=on"];
const INGRESSES: usize = 10_000;
const GATEWAYS: usize = 10;
/// Routes with two names each; half of them are at the first Gateway.
const ROUTES: usize = 10_000;
const ENDPOINTS: usize = 2_000;
const ENTRIES: usize = 5;
const STARTS: usize = 5;
/// Changes of the first Gateway's address, and how many of its routes are asked after each.
const MOVES: usize = 20;
const ASKED: usize = 100;
/// When all names of the first Gateway have to answer its new address.
const MOVED_WITHIN: Duration = Duration::from_millis(100);
/// Changes of statuses per second, and the queries per second for other names.
const CHANGES: u32 = 200;
const QUERIES: u32 = 20_000;
const QUERIED: usize = 1000;
const ROUND: Duration = Duration::from_secs(20);
const EVENT_TIMEOUT: Duration = Duration::from_secs(30);

/// A kind of objects whose targets change.
#[derive(Clone, Copy)]
enum Kind {
    Ingress,
    Gateway,
    DnsEndpoint,
}

pub fn run(plane: &mut Plane, results: &mut Results) {
    plane.grow(LINKS);
    drop(plane.synced_linker());
    let without = started(plane, &["--sync=on"]);
    write_objects(plane);
    let with = started(plane, &SOURCES);
    let mut table = Table::new(&["MB (2^20 bytes)", "resident", "anonymous", "file", "peak"]);
    for (name, Memory { resident, anonymous, file, peak }) in [("without", without), ("with", with)] {
        let cells = [resident, anonymous, file, peak].map(|value| format!("{value:.1}"));
        table.row(&format!("10,000 links, {name} 40,000 names of other sources"), cells);
    }
    results.table("Sources, memory", table);
    results.at_most("resident, above a process without", with.resident - without.resident, 18.0, "MB");
    results.at_most("peak, above a process without", with.peak - without.peak, 30.0, "MB");
    starts(plane, results);
    let linker = plane.linker(&SOURCES);
    ready(&linker, Duration::from_millis(20));
    gateway_moves(plane, &linker, results);
    changes_under_load(plane, &linker, results);
    kept_answers(plane, &linker, results);
}

fn started(plane: &Plane, args: &[&str]) -> Memory {
    let mut linker = plane.linker(args);
    ready(&linker, Duration::from_millis(20));
    let memory = settled("sources", &linker);
    linker.stop();
    memory
}

fn write_objects(plane: &Plane) {
    plane.control_plane.apply_files(&deploy().join("sources"));
    for crds in [&*gateway_api_crds()[0], dns_endpoint_crd()] {
        plane.control_plane.apply_files(crds);
    }
    let of_gateways = ["gateways", "httproutes"].map(|plural| format!("{plural}.gateway.networking.k8s.io"));
    let [gateways, routes] = &of_gateways;
    plane.control_plane.wait_for_crds(&[gateways, routes, "dnsendpoints.externaldns.k8s.io"]);
    plane.each(INGRESSES, "Ingresses made", |connection, at| {
        let rules = json!([{"host": host("i", at), "http": {"paths": [{"path": "/", "pathType": "Prefix",
            "backend": {"service": {"name": "web", "port": {"number": 80}}}}]}}]);
        let object = json!({"metadata": {"name": name("i", at)}, "spec": {"rules": rules}});
        connection.must("POST", &Kind::Ingress.path(at), &object.to_string());
        Kind::Ingress.change(connection, at, 0);
    });
    for at in 0..GATEWAYS {
        let listeners = json!([{"name": "http", "protocol": "HTTP", "port": 80,
            "allowedRoutes": {"namespaces": {"from": "All"}}}]);
        let object = json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
            "metadata": {"name": name("g", at)}, "spec": {"gatewayClassName": "bench", "listeners": listeners}});
        let mut connection = plane.access.connect();
        connection.must("POST", &Kind::Gateway.path(at), &object.to_string());
        Kind::Gateway.change(&mut connection, at, 0);
    }
    plane.each(ROUTES, "HTTPRoutes made", |connection, at| {
        let gateway = gateway_of(at);
        let parent = json!({"name": name("g", gateway), "namespace": namespace(gateway)});
        let object = json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
            "metadata": {"name": name("r", at)},
            "spec": {"parentRefs": [parent], "hostnames": [host("ra", at), host("rb", at)]}});
        let path = format!("/apis/gateway.networking.k8s.io/v1/namespaces/{}/httproutes", namespace(at));
        connection.must("POST", &path, &object.to_string());
        let accepted = json!([{"type": "Accepted", "status": "True", "reason": "Accepted", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
        let status = json!({"status": {"parents": [
            {"parentRef": parent, "controllerName": "example.com/bench", "conditions": accepted}]}});
        connection.must("PATCH", &format!("{path}/{}/status", name("r", at)), &status.to_string());
    });
    plane.each(ENDPOINTS, "DNSEndpoints made", |connection, at| {
        let object = json!({"apiVersion": "externaldns.k8s.io/v1alpha1", "kind": "DNSEndpoint",
            "metadata": {"name": name("d", at)}, "spec": {"endpoints": entries(at, 0)}});
        connection.must("POST", &Kind::DnsEndpoint.path(at), &object.to_string());
    });
}

fn name(prefix: &str, at: usize) -> String {
    format!("{prefix}-{at}")
}

fn host(prefix: &str, at: usize) -> String {
    format!("{prefix}-{at}.{}.lb.internal", namespace(at))
}

/// Returns the Gateway of a route.
fn gateway_of(route: usize) -> usize {
    if route.is_multiple_of(2) { 0 } else { 1 + route / 2 % (GATEWAYS - 1) }
}

fn entries(endpoint_object: usize, change: u64) -> Value {
    let entry = |number: usize| {
        let prefix = format!("d{number}");
        let target = endpoint(change).to_string();
        json!({"dnsName": host(&prefix, endpoint_object), "recordType": "A", "targets": [target]})
    };
    (0..ENTRIES).map(entry).collect()
}

impl Kind {
    const ALL: [Self; 3] = [Self::Ingress, Self::Gateway, Self::DnsEndpoint];

    /// Returns the path of the objects in the namespace of an object.
    fn path(self, at: usize) -> String {
        let (api, plural) = match self {
            Self::Ingress => ("networking.k8s.io/v1", "ingresses"),
            Self::Gateway => ("gateway.networking.k8s.io/v1", "gateways"),
            Self::DnsEndpoint => ("externaldns.k8s.io/v1alpha1", "dnsendpoints"),
        };
        format!("/apis/{api}/namespaces/{}/{plural}", namespace(at))
    }

    /// Gives an object the address of a change. Returns when the API server has answered.
    fn change(self, connection: &mut Connection, at: usize, change: u64) -> Instant {
        let ip = endpoint(change).to_string();
        let (prefix, part, patch) = match self {
            Self::Ingress => ("i", "/status", json!({"status": {"loadBalancer": {"ingress": [{"ip": ip}]}}})),
            Self::Gateway => {
                ("g", "/status", json!({"status": {"addresses": [{"type": "IPAddress", "value": ip}]}}))
            }
            Self::DnsEndpoint => ("d", "", json!({"spec": {"endpoints": entries(at, change)}})),
        };
        let path = format!("{}/{}{part}", self.path(at), name(prefix, at));
        connection.must("PATCH", &path, &patch.to_string())
    }

    /// Returns an object of the kind, and a query that sees its change.
    fn object(self, number: u64) -> (usize, Vec<u8>) {
        let number = number as usize;
        match self {
            Self::Ingress => (number % INGRESSES, address_question(&host("i", number % INGRESSES))),
            // Not the first Gateway, which has half of the routes.
            Self::Gateway => {
                let route = 2 * (number % (GATEWAYS - 1)) + 1;
                (gateway_of(route), address_question(&host("ra", route)))
            }
            Self::DnsEndpoint => (number % ENDPOINTS, address_question(&host("d0", number % ENDPOINTS))),
        }
    }
}

fn starts(plane: &Plane, results: &mut Results) {
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..STARTS {
        for (args, times) in [&["--sync=on"][..], &SOURCES].into_iter().zip(&mut times) {
            let since = Instant::now();
            let mut linker = plane.linker(args);
            times.push(millis(since, ready(&linker, Duration::from_millis(1))));
            linker.stop();
        }
    }
    let mut table = Table::new(&["milliseconds from exec to ready", "runs", "p50", "p90", "p99", "max"]);
    let [without, with] = times.map(Spread::of);
    table.row("without other sources", without.cells());
    table.row("with all sources", with.cells());
    results.table("Sources, start", table);
    results.at_most("ready with all sources, median", with.median(), 1500.0, "ms");
}

/// Measures how soon the names of 5,000 routes answer the new address of their Gateway.
fn gateway_moves(plane: &Plane, linker: &Linker, results: &mut Results) {
    let routes: Vec<usize> = (0..ROUTES).filter(|route| gateway_of(*route) == 0).collect();
    let questions = |prefix: &'static str| routes.iter().map(move |at| address_question(&host(prefix, *at)));
    let mut all: Vec<Vec<u8>> = questions("ra").chain(questions("rb")).collect();
    let (mut client, mut connection) = (SerialClient::new(linker.dns), plane.access.connect());
    let (mut times, mut late) = (Vec::new(), 0);
    let lines = || linker.log().iter().filter(|line| line.contains("Gateway ")).count();
    let before = lines();
    for number in 0..MOVES {
        let change = 1 + number as u64;
        let answered = Kind::Gateway.change(&mut connection, 0, change);
        let sample = all.iter_mut().step_by(2 * routes.len() / ASKED);
        let seen = sample.map(|question| client.until(question, change, EVENT_TIMEOUT).expect("it is seen"));
        times.push(millis(answered, seen.max().expect("a name")));
        thread::sleep(MOVED_WITHIN.saturating_sub(answered.elapsed()));
        late += all
            .iter_mut()
            .filter_map(|question| (client.ask(question) != Some(change)).then_some(()))
            .count();
    }
    // The last line may come after the last answer.
    let told = Instant::now() + Duration::from_secs(5);
    while lines() < before + MOVES && Instant::now() < told {
        thread::sleep(Duration::from_millis(50));
    }
    let logged = (lines() - before) as f64 / MOVES as f64;
    let mut table = Table::new(&["milliseconds", "moves", "p50", "p90", "p99", "max"]);
    let times = Spread::of(times);
    table.row("PATCH of a Gateway with 5,000 routes answered → 100 of 10,000 names answer", times.cells());
    results.table("Sources, a Gateway's address", table);
    results.at_most("names that answer late, in all moves", late as f64, 0.0, "names");
    results.at_most("all asked names answer the new address, max", times.at(1.0), 100.0, "ms");
    results.at_most("lines of the log per move", logged, 1.0, "lines");
}

/// Measures when changes of all kinds are seen, while other names are asked for.
fn changes_under_load(plane: &Plane, linker: &Linker, results: &mut Results) {
    let (sender, made) = channel();
    let questions: Vec<Vec<u8>> =
        (0..QUERIED).map(|at| address_question(&host("i", INGRESSES - 1 - at))).collect();
    let load = Load::following(linker.dns, QUERIES, questions, made);
    let (mut connection, end) = (plane.access.connect(), Instant::now() + ROUND);
    let changes = paced(CHANGES, end, |number| {
        let (kind, change) = (Kind::ALL[number as usize % 3], (1 << 16) + number);
        let (at, question) = kind.object(number / 3);
        let at = kind.change(&mut connection, at, change);
        // The load ends after the last change.
        let _ = sender.send(Change { at, change, question });
    });
    let outcome = load.stop();
    let mut table =
        Table::new(&["20,000 queries/s of other names", "changes", "lost", "seen p50 ms", "p99 ms"]);
    let seen = [0.5, 0.99].map(|share| format!("{:.2}", outcome.seen.at(share)));
    let lost = outcome.sent.saturating_sub(outcome.answered).to_string();
    table.row(
        "200 changes/s of Ingresses, Gateways and DNSEndpoints",
        [changes.to_string(), lost].into_iter().chain(seen),
    );
    results.table("Sources, changes under load", table);
    results.at_most("a change is seen, p99", outcome.seen.at(0.99), 20.0, "ms");
    results.at_most("changes that are never seen", outcome.never as f64, 0.0, "changes");
}

/// Compares the cost of kept answers with that of links.
/// Starts lb-linker with these names in a zone of *k8s_gateway*.
fn of_k8s_gateway(plane: &Plane, directory: &Path) -> Linker {
    let corefile = directory.join("Corefile");
    let server = "bind 127.0.0.1\nprometheus 127.0.0.1:0\nhealth 127.0.0.1:0\nready 127.0.0.1:0\nk8s_gateway";
    fs::write(&corefile, format!("lb.internal:0 {{\n{server}\n}}\n")).expect("a file");
    let [kubeconfig, corefile] = [plane.kubeconfig(), &corefile].map(|path| path.to_str().expect("UTF-8"));
    let linker = Linker::start(["--kubeconfig", kubeconfig, "--corefile", corefile, "--sync=off"]);
    ready(&linker, Duration::from_millis(20));
    linker
}

fn kept_answers(plane: &Plane, linker: &Linker, results: &mut Results) {
    let directory = tempfile::tempdir().expect("a directory");
    let of_k8s_gateway = of_k8s_gateway(plane, directory.path());
    let links: Vec<Vec<u8>> = (0..QUERIED).map(link_question).collect();
    let names: Vec<Vec<u8>> = (0..QUERIED).map(|at| address_question(&host("i", at))).collect();
    let cost = |linker: &Linker, questions: &[Vec<u8>]| {
        let load = Load::start(linker.dns, QUERIES, questions.to_vec());
        thread::sleep(Duration::from_secs(2));
        let before = Cpu::of(linker.id());
        thread::sleep(ROUND / 2);
        let cpu = Cpu::of(linker.id()).since(&before).total();
        load.stop();
        cpu * 1e6 / (f64::from(QUERIES) * (ROUND / 2).as_secs_f64())
    };
    let (mut ratios, mut ratios_of_k8s_gateway) = (Vec::new(), Vec::new());
    let mut table = Table::new(&["20,000 kept answers/s", "CPU µs/query"]);
    for _ in 0..3 {
        let [of_links, of_names] = [&links, &names].map(|questions| cost(linker, questions));
        let of_free_names = cost(&of_k8s_gateway, &names);
        table.row("links", [format!("{of_links:.2}")]);
        table.row("Ingresses", [format!("{of_names:.2}")]);
        table.row("Ingresses, in a zone of k8s_gateway", [format!("{of_free_names:.2}")]);
        ratios.push(of_names / of_links);
        ratios_of_k8s_gateway.push(of_free_names / of_links);
    }
    results.table("Sources, kept answers", table);
    results.at_most(
        "a kept answer of an Ingress : of a link, median",
        Spread::of(ratios).median(),
        1.05,
        "×",
    );
    results.at_most(
        "a kept answer of an Ingress in a zone of k8s_gateway : of a link, median",
        Spread::of(ratios_of_k8s_gateway).median(),
        1.06,
        "×",
    );
}
