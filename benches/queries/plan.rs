//! The run of the benchmark: its settings, the programs, and one set of queries after the other.

use std::env;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::unistd::Pid;

use crate::client::Client;
use crate::harness::control_plane::{ControlPlane, Options};
use crate::harness::data_dir::DataDir;
use crate::harness::port::HeldPort;
use crate::harness::process::Process;
use crate::harness::programs::programs;
use crate::rounds::{Measured, Tools};
use crate::servers::{Environment, Programs, Server, start_upstream};
use crate::sets::{Names, Set};
use crate::{cpu, fixtures, page, report, verdicts, versions};

/// The settings from the environment.
pub struct Settings {
    rounds: usize,
    time: Duration,
    only: Vec<String>,
    write: bool,
}

impl Settings {
    fn from_env() -> Result<Self, String> {
        let number = |name: &str, default: f64| match env::var(name) {
            Ok(text) => text.parse::<f64>().map_err(|_| format!("{name} is {text:?}, but must be a number")),
            Err(_) => Ok(default),
        };
        let only = env::var("BENCH_ONLY").unwrap_or_default().to_lowercase();
        Ok(Self {
            rounds: number("BENCH_ROUNDS", 9.0)?.max(1.0) as usize,
            time: Duration::from_secs_f64(number("BENCH_SECONDS", 2.0)?.max(0.1)),
            write: page::is_written(),
            only: only
                .split(',')
                .map(|word| word.trim().to_owned())
                .filter(|word| !word.is_empty())
                .collect(),
        })
    }

    /// Returns the rows of a set. Words in BENCH_ONLY that are part of a set's name select sets, the other words
    /// select rows; a complete name selects only that set or row.
    fn rows(&self, set: Set) -> Vec<Server> {
        let (sets, rows): (Vec<&str>, Vec<&str>) = self
            .only
            .iter()
            .map(String::as_str)
            .partition(|word| Set::ALL.iter().any(|set| set.name().contains(word)));
        let names = Set::ALL.map(Set::name);
        if !sets.is_empty() && !sets.iter().any(|word| chosen(word, set.name(), &names)) {
            return Vec::new();
        }
        let all = Server::of(set);
        let names: Vec<String> = all.iter().map(|server| server.name().to_lowercase()).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let of = |name: &str| rows.is_empty() || rows.iter().any(|word| chosen(word, name, &names));
        all.iter().zip(&names).filter(|(_, name)| of(name)).map(|(server, _)| *server).collect()
    }
}

fn chosen(word: &str, name: &str, names: &[&str]) -> bool {
    if names.contains(&word) { name == word } else { name.contains(word) }
}

pub fn run() -> Result<(), String> {
    let settings = Settings::from_env()?;
    if settings.write && !settings.only.is_empty() {
        return Err(
            "BENCH_WRITE writes all tables, but BENCH_ONLY selects some of them: don't set both".to_owned()
        );
    }
    let sets: Vec<(Set, Vec<Server>)> = Set::ALL.into_iter().map(|set| (set, settings.rows(set))).collect();
    let wanted = |server: Server| sets.iter().any(|(_, rows)| rows.contains(&server));
    if sets.iter().all(|(_, rows)| rows.is_empty()) {
        return Err(
            "BENCH_ONLY matches no set and no row: docs/performance.md lists the sets of queries".to_owned()
        );
    }
    pin()?;
    let dnsperf =
        find("dnsperf").ok_or("dnsperf, which makes the load, isn't installed: apt-get install dnsperf")?;
    let tools = Tools { dnsperf, h2load: find_peer("h2load", "nghttp2-client") };
    let programs = find_peers();
    let temporary =
        DataDir::create().map_err(|error| format!("no directory for the servers' files: {error}"))?;
    let port = HeldPort::take().map_err(|error| format!("no port for the upstream: {error}"))?;
    let upstream = port.local();
    let _upstream = upstream_of(&programs, temporary.path(), upstream)?;
    let of_cluster = sets.iter().any(|(set, rows)| set.is_cluster() && !rows.is_empty());
    let kubernetes = of_cluster || wanted(Server::Kubernetes) || wanted(Server::KubernetesCache);
    let plane = (kubernetes && programs.coredns.is_some()).then(cluster);
    let stage = Environment {
        programs,
        directory: temporary.path().to_owned(),
        upstream,
        kubeconfig: plane.as_ref().map(ControlPlane::admin_kubeconfig),
    };
    let (mut all, mut text) = (Vec::new(), String::new());
    for (set, rows) in sets {
        let there = |server: &Server| match server {
            Server::Linker | Server::Floor => true,
            _ => stage.programs.of(*server).is_some(),
        };
        let rows: Vec<Server> = rows.into_iter().filter(there).collect();
        // Without an upstream, queries can't be forwarded.
        let possible = match set {
            Set::Cname | Set::CnameAnywhere | Set::Tcp | Set::Tls => true,
            Set::Https => tools.h2load.is_some(),
            _ if set.is_cluster() => plane.is_some(),
            _ => stage.programs.knot.is_some(),
        };
        if rows.is_empty() || !possible {
            continue;
        }
        let measured = measure(&stage, &settings, &tools, set, &rows);
        let table = report::table_of(&measured);
        println!("{table}");
        text += &format!("{table}\n");
        all.push(measured);
    }
    let verdicts: String = verdicts::lines(&all).iter().map(|line| format!("- {line}\n")).collect();
    println!("{verdicts}");
    if settings.write {
        let machine = page::measured_with(versions::of(&stage.programs, &tools));
        let rounds = settings.rounds;
        let about = format!("{machine}Figures are medians of {rounds} rounds.\n");
        page::write("queries", &format!("{about}\n{text}### Bounds of the queries\n\n{verdicts}"))?;
    }
    let problems: usize = all.iter().map(|measured| measured.problems.len()).sum();
    if problems == 0 { Ok(()) } else { Err(format!("{problems} rows of the tables are missing, see above")) }
}

fn measure(stage: &Environment, settings: &Settings, tools: &Tools, set: Set, rows: &[Server]) -> Measured {
    let mut measured = Measured::new(set);
    let mut running = Vec::new();
    for &server in rows {
        let ready = if server == Server::Floor { capture(stage, set) } else { Ok(()) };
        match ready.and_then(|()| stage.start(server, set)) {
            Ok(server) => running.push(server),
            Err(problem) => measured.leave_out(server, &problem),
        }
    }
    measured.run(settings.rounds, settings.time, tools, running);
    measured.problems.iter().for_each(|problem| eprintln!("bench: {problem}"));
    measured
}

/// Records lb-linker's answers to a set, so that the floor can send the same bytes.
fn capture(stage: &Environment, set: Set) -> Result<(), String> {
    let linker = stage.start(Server::Linker, set)?;
    let client = Client::new(linker.address).map_err(|error| error.to_string())?;
    let answers = client.ask_all(&linker.questions)?;
    fixtures::write_answers(&stage.answers(set), &linker.questions, &answers)
        .map_err(|error| error.to_string())
}

/// Pins this process to the core of the load; its children inherit this, unless they are pinned to another core.
fn pin() -> Result<(), String> {
    cpu::pin(Pid::from_raw(0), cpu::LOAD)
        .map_err(|error| format!("two cores are needed, one for the servers and one for the load: {error}"))
}

fn find_peer(program: &str, package: &str) -> Option<PathBuf> {
    let found = find(program);
    if found.is_none() {
        eprintln!("bench: {program} isn't installed, and is left out: apt-get install {package}");
    }
    found
}

fn find_peers() -> Programs {
    Programs {
        knot: find_peer("knotd", "knot"),
        nsd: find_peer("nsd", "nsd"),
        dnsdist: find_peer("dnsdist", "dnsdist"),
        unbound: find_peer("unbound", "unbound"),
        dnsmasq: find_peer("dnsmasq", "dnsmasq-base"),
        // Builds CoreDNS if it is missing; this needs Go, and prints an error without Go.
        coredns: std::panic::catch_unwind(|| programs().coredns.clone()).ok(),
    }
}

/// Searches the PATH and /usr/sbin, where Debian installs servers.
fn find(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let directories = env::split_paths(&path).chain([PathBuf::from("/usr/sbin")]);
    directories.map(|directory| directory.join(program)).find(|path| path.is_file())
}

fn upstream_of(
    programs: &Programs,
    directory: &Path,
    address: SocketAddr,
) -> Result<Option<Process>, String> {
    let Some(knot) = &programs.knot else {
        eprintln!("bench: without Knot there is no upstream: only CNAME and TCP are measured");
        return Ok(None);
    };
    let process = start_upstream(knot, &directory.join("upstream"), address.port());
    let mut process = process.map_err(|error| format!("{}: {error}", knot.display()))?;
    let client = Client::new(address).map_err(|error| error.to_string())?;
    let question = &Set::Cached.questions(Names::Linked)[0];
    client.wait_for(question, &mut || process.ended().is_some()).map_err(|error| format!("Knot: {error}"))?;
    cpu::pin_threads(process.id(), cpu::LOAD).map_err(|error| format!("Knot: {error}"))?;
    Ok(Some(process))
}

/// Starts a control plane with the objects of [`fixtures::cluster`].
fn cluster() -> ControlPlane {
    eprintln!("bench: starting a control plane with Services and endpoints");
    let plane = ControlPlane::start(Options::default());
    plane.kubectl(&["create", "namespace", "bench"]);
    plane.kubectl_stdin(&["create", "-f", "-"], &fixtures::cluster());
    plane
}
