//! Remote clusters: their memory, and the readiness and changes beside API servers that don't answer.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::dns::{SerialClient, question};
use crate::figures::{Results, Spread, Table, millis};
use crate::harness::linker::Linker;
use crate::memory::settled;
use crate::objects::{namespace, status, status_patch};
use crate::plane::{LINKS, Plane, ready};
use crate::process::Memory;

/// The load balancers of each of many remote clusters.
const MANY: usize = 1000;
/// The remote clusters that answer. There are 16 in all.
const HEALTHY: usize = 13;
const STARTS: usize = 5;
const CHANGES: usize = 300;
/// The bytes per second of a slow API server: its list of 1,000 load balancers takes some 30 s.
const SLOW: usize = 50_000;
const EVENT_TIMEOUT: Duration = Duration::from_secs(60);

pub fn run(plane: &Plane, results: &mut Results) {
    let mut remote = Plane::start();
    remote.grow(MANY);
    many(plane, &remote, results);
    remote.grow(LINKS);
    let flag = format!("west={}", remote.control_plane.admin_kubeconfig().display());
    let rows = [
        ("without remote clusters", measure(plane, &["--sync", "off"], None)),
        (
            "one remote cluster with 10,000",
            measure(plane, &["--sync", "off", "--remote", &flag], Some("west")),
        ),
    ];
    let mut table = Table::new(&["MB (2^20 bytes)", "resident", "anonymous", "file", "peak"]);
    for (name, Memory { resident, anonymous, file, peak }) in &rows {
        let cells = [resident, anonymous, file, peak].map(|value| format!("{value:.1}"));
        table.row(name, cells);
    }
    results.table("Remote clusters, memory", table);
    let more = rows[1].1.resident - rows[0].1.resident;
    results.at_most("resident, for one remote cluster with 10,000 load balancers", more, 15.0, "MB");
}

fn measure(plane: &Plane, args: &[&str], cluster: Option<&str>) -> Memory {
    let mut linker = plane.linker(args);
    ready(&linker, Duration::from_millis(20));
    cluster.into_iter().for_each(|cluster| wait_for(&linker, cluster, LINKS));
    let memory = settled("remotes", &linker);
    linker.stop();
    memory
}

fn of_remote(cluster: &str, link: usize) -> Vec<u8> {
    question(&format!("svc-{link}.{}.{cluster}.lb.internal", namespace(link)))
}

/// Waits until the load balancers of a remote cluster are answered.
fn wait_for(linker: &Linker, cluster: &str, links: usize) {
    let (mut client, deadline) = (SerialClient::new(linker.dns), Instant::now() + EVENT_TIMEOUT);
    for link in (0..links).step_by(links / 100) {
        while client.ask(&mut of_remote(cluster, link)).is_none() {
            assert!(Instant::now() < deadline, "svc-{link} of {cluster} has no target");
            thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Measures with 16 remote clusters, three of which don't answer as they should.
fn many(plane: &Plane, remote: &Plane, results: &mut Results) {
    let healthy = remote.control_plane.admin_kubeconfig();
    let api = remote.control_plane.address();
    let account = json!({"metadata": {"name": "powerless"}});
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    remote.access.connect().must("POST", accounts, &account.to_string());
    let refusing = remote.control_plane.kubeconfig_for_service_account("default", "powerless");
    let (silent, slow) =
        (with_server(&healthy, "silent", silent()), with_server(&healthy, "slow", slow(api)));
    let mut flags: Vec<String> = (0..HEALTHY).map(|at| format!("r{at}={}", healthy.display())).collect();
    let others = [("silent", silent), ("refusing", refusing), ("slow", slow)];
    flags.extend(others.map(|(name, path)| format!("{name}={}", path.display())));
    let all: Vec<&str> =
        ["--sync", "off"].into_iter().chain(flags.iter().flat_map(|flag| ["--remote", flag])).collect();
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..STARTS {
        for (args, times) in [&["--sync", "off"][..], &all].into_iter().zip(&mut times) {
            let since = Instant::now();
            let mut linker = plane.linker(args);
            times.push(millis(since, ready(&linker, Duration::from_millis(1))));
            linker.stop();
        }
    }
    let [without, with] = times.map(Spread::of);
    let mut table = Table::new(&["milliseconds", "runs", "p50", "p90", "p99", "max"]);
    table.row("exec → ready, without remote clusters", without.cells());
    table.row("exec → ready, with 16", with.cells());
    let linker = plane.linker(&all);
    ready(&linker, Duration::from_millis(20));
    (0..HEALTHY).for_each(|at| wait_for(&linker, &format!("r{at}"), MANY));
    // The slow list goes on meanwhile.
    let changes = changes(remote, &linker);
    table.row("PATCH in a remote cluster answered → DNS answers", changes.cells());
    results.table(
        "Remote clusters: 13 with 1,000 load balancers each, one silent, one refusing, one slow",
        table,
    );
    let more = with.median() / without.median();
    results.at_most("ready with 16 remote clusters : without, medians", more, 1.1, "×");
    results.at_most("a change in a remote cluster is answered, p99", changes.at(0.99), 20.0, "ms");
    wait_for(&linker, "slow", MANY);
}

fn changes(remote: &Plane, linker: &Linker) -> Spread {
    let (mut client, mut connection) = (SerialClient::new(linker.dns), remote.access.connect());
    let change = |number: usize| {
        let (link, change) = (number % MANY, 1 + number as u64);
        let answered = connection.must("PATCH", &status(link), &status_patch(change, link));
        let mut question = of_remote(&format!("r{}", number % HEALTHY), link);
        let seen = client.until(&mut question, change, EVENT_TIMEOUT).expect("the change is seen");
        millis(answered, seen)
    };
    Spread::of((0..CHANGES).map(change).collect())
}

/// Writes a copy of a kubeconfig with another server.
fn with_server(kubeconfig: &std::path::Path, name: &str, server: SocketAddr) -> PathBuf {
    let text = std::fs::read_to_string(kubeconfig).expect("a kubeconfig");
    let mut config: Value = serde_json::from_str(&text).expect("JSON");
    config["clusters"][0]["cluster"]["server"] = format!("https://{server}").into();
    let path = kubeconfig.with_file_name(format!("{name}.kubeconfig"));
    std::fs::write(&path, config.to_string()).expect("write a kubeconfig");
    path
}

/// Returns the address of a server that accepts connections and never answers.
fn silent() -> SocketAddr {
    let (listener, address) = listen();
    thread::spawn(move || listener.incoming().collect::<Vec<_>>());
    address
}

/// Returns the address of a server that hands on what a server answers, [`SLOW`] bytes a second.
fn slow(server: SocketAddr) -> SocketAddr {
    let (listener, address) = listen();
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let server = TcpStream::connect(server).expect("the API server");
            for (from, to, rate) in [
                (client.try_clone().expect("a socket"), server.try_clone().expect("a socket"), usize::MAX),
                (server, client, SLOW),
            ] {
                thread::spawn(move || hand_on(from, to, rate));
            }
        }
    });
    address
}

fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a socket");
    let address = listener.local_addr().expect("an address");
    (listener, address)
}

fn hand_on(mut from: TcpStream, mut to: TcpStream, rate: usize) {
    let mut buffer = [0; 4096];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        thread::sleep(Duration::from_secs_f64(length as f64 / rate as f64));
        if to.write_all(&buffer[..length]).is_err() {
            return;
        }
    }
}
