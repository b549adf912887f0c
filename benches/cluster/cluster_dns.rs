//! lb-linker's and CoreDNS's plugin *kubernetes* with the objects of a large cluster: memory, start, and the cost and
//! the latency of changes.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::dns::{SerialClient, address_question, endpoint};
use crate::figures::{Results, Spread, Table, millis};
use crate::harness::linker;
use crate::harness::port::HeldPort;
use crate::harness::process::Process;
use crate::harness::programs::programs;
use crate::load::{Change, Load};
use crate::objects::{namespace, services};
use crate::plane::Plane;
use crate::process::{Cpu, Memory, memory};
use crate::storm::paced;

const SERVICES: usize = 10_000;
/// Every tenth Service is headless.
const HEADLESS: usize = 10;
/// The endpoints of each Service's EndpointSlice.
const ENDPOINTS: usize = 10;
const PODS: usize = 10_000;
/// The time after readiness until the memory is stable.
const SETTLE_TIME: Duration = Duration::from_secs(30);
const STARTS: usize = 5;
const EVENT_TIMEOUT: Duration = Duration::from_secs(120);
/// Changes of slices per second, and the queries per second for other names.
const CHANGES: u32 = 200;
const QUERIES: u32 = 20_000;
const QUERIED: usize = 1000;
const ROUND: Duration = Duration::from_secs(20);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Program {
    Linker,
    CoreDns,
}

/// What the Corefile asks for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Block {
    NoKubernetes,
    Kubernetes,
    VerifiedPods,
}

/// A running DNS server of the cluster.
struct Server {
    process: Process,
    dns: SocketAddr,
    ready: SocketAddr,
    metrics: SocketAddr,
    _ports: [HeldPort; 3],
    _directory: TempDir,
}

impl Program {
    const BOTH: [Self; 2] = [Self::Linker, Self::CoreDns];

    const fn name(self) -> &'static str {
        match self {
            Self::Linker => "lb-linker",
            Self::CoreDns => "CoreDNS",
        }
    }
}

impl Server {
    fn start(plane: &Plane, program: Program, block: Block) -> Self {
        let ports = [(); 3].map(|()| HeldPort::take().expect("a free port"));
        let [dns, ready, metrics] = [0, 1, 2].map(|at: usize| ports[at].local());
        let pods = if block == Block::VerifiedPods { "verified" } else { "disabled" };
        let kubernetes = format!(
            "kubernetes cluster.local in-addr.arpa ip6.arpa {{\nkubeconfig {} test\npods {pods}\n}}",
            plane.control_plane.admin_kubeconfig().display()
        );
        let kubernetes = if block == Block::NoKubernetes { "whoami" } else { &kubernetes };
        let port = dns.port();
        let corefile =
            format!(".:{port} {{\nbind 127.0.0.1\nready {ready}\nprometheus {metrics}\n{kubernetes}\n}}");
        let directory = tempfile::tempdir().expect("a directory");
        let process = Process::spawn(command(program, &corefile, directory.path())).expect("a program");
        Self { process, dns, ready, metrics, _ports: ports, _directory: directory }
    }

    fn started(plane: &Plane, program: Program, block: Block) -> Self {
        let server = Self::start(plane, program, block);
        server.wait(Duration::from_millis(20));
        server
    }

    /// Waits until the server is ready, and returns that time.
    fn wait(&self, look: Duration) -> Instant {
        let deadline = Instant::now() + EVENT_TIMEOUT;
        // Until the port is open, the request is refused.
        let is_open = || TcpStream::connect(self.ready).is_ok();
        while !is_open() || linker::get(self.ready, "/ready").0 != 200 {
            assert!(Instant::now() < deadline, "the server isn't ready");
            thread::sleep(look);
        }
        Instant::now()
    }

    /// Returns the memory after [`SETTLE_TIME`].
    fn settled(&self) -> Memory {
        thread::sleep(SETTLE_TIME);
        memory(self.process.id())
    }

    /// Returns the number of queries by UDP for which no kept answer was current.
    fn computed(&self) -> f64 {
        let (_, page) = linker::get(self.metrics, "/metrics");
        let line = page.lines().find_map(|line| line.strip_prefix("lb_linker_dns_udp_computed_total "));
        line.and_then(|number| number.parse().ok()).expect("the metric")
    }
}

fn command(program: Program, corefile: &str, directory: &Path) -> Command {
    let file = directory.join("Corefile");
    fs::write(&file, corefile).expect("a file");
    let mut command = match program {
        Program::Linker => {
            let mut command = linker::bare();
            command.args(["run", "--corefile"]);
            command
        }
        Program::CoreDns => {
            let mut command = Command::new(&programs().coredns);
            command.arg("-conf");
            command
        }
    };
    command.arg(file).current_dir(directory).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

pub fn run(plane: &Plane, changes: usize, results: &mut Results) {
    write_services(plane);
    let without = Server::started(plane, Program::Linker, Block::NoKubernetes).settled();
    memory_of(plane, Block::Kubernetes, "10,000 Services", Some(without), [45.0, 75.0], results);
    starts(plane, results);
    costs_of_changes(plane, results);
    propagation(plane, changes, results);
    changes_under_load(plane, results);
    write_pods(plane);
    memory_of(plane, Block::VerifiedPods, "and 10,000 Pods", None, [49.0, 80.0], results);
}

fn write_services(plane: &Plane) {
    plane.each(SERVICES, "Services and EndpointSlices made", |connection, at| {
        let name = format!("web-{at}");
        let mut service = json!({
            "metadata": {"name": name},
            "spec": {"selector": {"app": name}, "ports": [{"name": "http", "port": 80}]},
        });
        if at % HEADLESS == 0 {
            service["spec"]["clusterIP"] = "None".into();
        }
        connection.must("POST", &services(&namespace(at)), &service.to_string());
        let slice = json!({
            "metadata": {"name": name, "labels": {"kubernetes.io/service-name": name}},
            "addressType": "IPv4",
            "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
            "endpoints": endpoints(at, None),
        });
        connection.must("POST", &slices(&namespace(at)), &slice.to_string());
    });
}

fn write_pods(plane: &Plane) {
    for at in 0..crate::objects::NAMESPACES {
        let account = json!({"metadata": {"name": "default"}}).to_string();
        let path = format!("/api/v1/namespaces/{}/serviceaccounts", namespace(at));
        plane.access.connect().request("POST", &path, &account);
    }
    plane.each(PODS, "Pods made", |connection, at| {
        let (name, path) = (format!("web-{at}"), format!("/api/v1/namespaces/{}/pods", namespace(at)));
        let pod =
            json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "web", "image": "web"}]}});
        connection.must("POST", &path, &pod.to_string());
        let ip = address(at * ENDPOINTS);
        let status = json!({"status": {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}]}});
        connection.must("PATCH", &format!("{path}/{name}/status"), &status.to_string());
    });
}

fn slices(namespace: &str) -> String {
    format!("/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices")
}

/// Returns an address that no change sets.
fn address(number: usize) -> String {
    format!("12.{}.{}.{}", number >> 16 & 255, number >> 8 & 255, number & 255)
}

/// Returns the endpoints of a Service; a change replaces the first endpoint's address.
fn endpoints(service: usize, change: Option<u64>) -> Value {
    let first = change.map_or_else(|| address(service * ENDPOINTS), |change| endpoint(change).to_string());
    let others = (1..ENDPOINTS).map(|at| address(service * ENDPOINTS + at));
    let of = |ip| json!({"addresses": [ip], "conditions": {"ready": true}, "nodeName": "node-1"});
    std::iter::once(first).chain(others).map(of).collect()
}

/// Returns the path of a headless Service's slice, the patch of a change, and the query that sees the change.
fn change_of_slice(number: usize, change: u64) -> (String, String, Vec<u8>) {
    let service = number % (SERVICES / HEADLESS) * HEADLESS;
    let path = format!("{}/web-{service}", slices(&namespace(service)));
    let patch = json!({"endpoints": endpoints(service, Some(change))}).to_string();
    (path, patch, address_question(&format!("web-{service}.{}.svc.cluster.local", namespace(service))))
}

fn memory_of(
    plane: &Plane,
    block: Block,
    what: &str,
    without: Option<Memory>,
    [resident, peak]: [f64; 2],
    results: &mut Results,
) {
    let mut table =
        Table::new(&["MB (2^20 bytes), 100,000 endpoints", "resident", "anonymous", "file", "peak"]);
    let row = |name: &str, memory: Memory, table: &mut Table| {
        let Memory { resident, anonymous, file, peak } = memory;
        table.row(name, [resident, anonymous, file, peak].map(|value| format!("{value:.1}")));
    };
    if let Some(without) = without {
        row("lb-linker without kubernetes", without, &mut table);
    }
    for program in Program::BOTH {
        let memory = Server::started(plane, program, block).settled();
        row(&format!("{}, {what}", program.name()), memory, &mut table);
        if program == Program::Linker {
            results.at_most(&format!("resident, {what}"), memory.resident, resident, "MB");
            results.at_most(&format!("peak, {what}"), memory.peak, peak, "MB");
            if let Some(without) = without {
                let added = memory.resident - without.resident;
                results.at_most(&format!("resident, {what}, above a process without"), added, 25.0, "MB");
            }
        }
    }
    results.table("Cluster DNS, memory", table);
}

fn starts(plane: &Plane, results: &mut Results) {
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..STARTS {
        for (program, times) in Program::BOTH.into_iter().zip(&mut times) {
            let since = Instant::now();
            let server = Server::start(plane, program, Block::Kubernetes);
            times.push(millis(since, server.wait(Duration::from_millis(2))));
        }
    }
    let mut table = Table::new(&["milliseconds from exec to ready", "runs", "p50", "p90", "p99", "max"]);
    let [ours, theirs] = times.map(Spread::of);
    table.row("lb-linker", ours.cells());
    table.row("CoreDNS", theirs.cells());
    results.table("Cluster DNS, start", table);
    results.at_most("ready, median", ours.median(), 2000.0, "ms");
    results.at_most("ready after CoreDNS, median", ours.median() - theirs.median(), 500.0, "ms");
}

/// Measures what a change costs that no query asks for.
fn costs_of_changes(plane: &Plane, results: &mut Results) {
    let mut table = Table::new(&["CPU milliseconds per change of a slice", "changes", "cost"]);
    let costs = Program::BOTH.map(|program| {
        let server = Server::started(plane, program, Block::Kubernetes);
        thread::sleep(Duration::from_secs(5));
        let (before, mut connection) = (Cpu::of(server.process.id()), plane.access.connect());
        let made = paced(CHANGES, Instant::now() + ROUND, |number| {
            let (path, patch, _) = change_of_slice(number as usize, number);
            connection.must("PATCH", &path, &patch);
        });
        thread::sleep(Duration::from_secs(1));
        let cost = Cpu::of(server.process.id()).since(&before).total() * 1e3 / made as f64;
        table.row(program.name(), [made.to_string(), format!("{cost:.3}")]);
        cost
    });
    results.table("Cluster DNS, changes", table);
    results.at_most("CPU of a changed slice : CoreDNS", costs[0] / costs[1], 1.0, "×");
}

/// Measures the time from the response to a PATCH of a slice until DNS answers with the new address.
fn propagation(plane: &Plane, changes: usize, results: &mut Results) {
    let servers = Program::BOTH.map(|program| Server::started(plane, program, Block::Kubernetes));
    let mut clients = [0, 1].map(|at: usize| SerialClient::new(servers[at].dns));
    let (mut times, mut connection, mut change) = ([Vec::new(), Vec::new()], plane.access.connect(), 1 << 16);
    for number in 0..changes {
        for which in if number % 2 == 0 { [0, 1] } else { [1, 0] } {
            change += 1;
            let (path, patch, mut question) = change_of_slice(number, change);
            let answered = connection.must("PATCH", &path, &patch);
            let seen = clients[which].until(&mut question, change, EVENT_TIMEOUT);
            times[which].push(millis(answered, seen.expect("the change is seen")));
            thread::sleep(Duration::from_millis(10));
        }
    }
    let mut table = Table::new(&["milliseconds", "changes", "p50", "p90", "p99", "max"]);
    let [ours, theirs] = times.map(Spread::of);
    table.row("PATCH of a slice answered → lb-linker answers", ours.cells());
    table.row("PATCH of a slice answered → CoreDNS answers", theirs.cells());
    results.table("Cluster DNS, propagation", table);
    for (name, share, bound) in [("p50", 0.5, 0.1), ("p99", 0.99, 0.5)] {
        let after = ours.at(share) - theirs.at(share);
        results.at_most(&format!("a slice's change after CoreDNS, {name}"), after, bound, "ms");
    }
}

/// Measures how many queries for other names kept answers settle while slices change, and when changes are seen.
fn changes_under_load(plane: &Plane, results: &mut Results) {
    let server = Server::started(plane, Program::Linker, Block::Kubernetes);
    let other = |at: usize| {
        let service = at * HEADLESS + 1;
        address_question(&format!("web-{service}.{}.svc.cluster.local", namespace(service)))
    };
    let questions: Vec<Vec<u8>> = (0..QUERIED).map(other).collect();
    let warm_up = Load::start(server.dns, QUERIES, questions.clone());
    thread::sleep(Duration::from_secs(3));
    warm_up.stop();
    let head =
        ["20,000 queries/s of other names", "changes", "lost", "without a kept answer, %", "seen p99 ms"];
    let mut table = Table::new(&head);
    for (what, rate, is_asked) in [
        ("nothing changes", 0, false),
        ("200 slices/s change", CHANGES, false),
        ("and are asked for", CHANGES, true),
    ] {
        let (sender, made) = channel();
        let before = server.computed();
        let load = Load::following(server.dns, QUERIES, questions.clone(), made);
        let (mut connection, end) = (plane.access.connect(), Instant::now() + ROUND);
        let mut make = |number| {
            let change = (1 << 20) + number + (u64::from(is_asked) << 16);
            let (path, patch, question) = change_of_slice(number as usize, change);
            let at = connection.must("PATCH", &path, &patch);
            if is_asked {
                // The load ends after the last change.
                let _ = sender.send(Change { at, change, question });
            }
        };
        let changes = if rate == 0 { 0 } else { paced(rate, end, &mut make) };
        thread::sleep(end.saturating_duration_since(Instant::now()));
        let outcome = load.stop();
        let computed = 100.0 * (server.computed() - before) / outcome.answered as f64;
        let lost = outcome.sent.saturating_sub(outcome.answered);
        let seen = if is_asked { format!("{:.2}", outcome.seen.at(0.99)) } else { String::new() };
        // Each query for a change is for a name whose answer has just changed.
        let kept = if is_asked { String::new() } else { format!("{computed:.3}") };
        table.row(what, [changes.to_string(), lost.to_string(), kept, seen]);
        if is_asked {
            results.at_most("a slice's change is seen, p99", outcome.seen.at(0.99), 20.0, "ms");
        } else if rate > 0 {
            results.at_most("queries of other names without a kept answer", computed, 1.0, "%");
        }
    }
    results.table("Cluster DNS, changes under load", table);
}
