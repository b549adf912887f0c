//! Servers under test, started with the same Corefile.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use nix::sys::signal::Signal;
use tempfile::TempDir;

use crate::harness::dns::{socket_count, udp_sockets};
use crate::harness::linker;
use crate::harness::port::HeldPort;
use crate::harness::process::Process;
use crate::harness::programs::programs;
use crate::harness::{EVENT_TIMEOUT, replace_file};

/// The variables for ports in a Corefile, such as `{$PORT}`. Each server has its own ports.
const PORTS: [&str; 7] = ["PORT", "PORT2", "PORT3", "TLS", "METRICS", "HEALTH", "READY"];
/// The variable for the port of DNS over QUIC. lb-linker chooses it, because it shares the port with no other socket.
const QUIC: &str = "QUIC";

/// The program that a test runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    CoreDns,
    Linker,
}

impl Program {
    /// Returns the program that is compared with CoreDNS: lb-linker, or CoreDNS itself with
    /// `COREFILE_SUBJECT=coredns`.
    pub fn subject() -> Self {
        match std::env::var("COREFILE_SUBJECT").as_deref() {
            Ok("coredns") => Self::CoreDns,
            Ok(other) => panic!("COREFILE_SUBJECT is {other:?}, and can only be coredns"),
            Err(_) => Self::Linker,
        }
    }
}

/// A directory with a Corefile and the files that the Corefile needs.
#[derive(Debug)]
pub struct CorefileDir {
    directory: TempDir,
    variables: BTreeMap<String, String>,
}

impl CorefileDir {
    /// Creates a directory with a Corefile and these files.
    pub fn new(corefile: &str, files: &[(&str, &str)]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let site = Self { directory, variables: BTreeMap::new() };
        site.write("Corefile", corefile);
        for (name, content) in files {
            site.write(name, content);
        }
        site
    }

    /// Adds an environment variable for the Corefile.
    pub fn with(mut self, name: &str, value: impl ToString) -> Self {
        self.variables.insert(name.to_owned(), value.to_string());
        self
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    fn corefile(&self) -> PathBuf {
        self.path().join("Corefile")
    }

    /// Returns the directory of the Service manifests, and creates it if needed.
    fn manifests(&self) -> PathBuf {
        let path = self.path().join("manifests");
        fs::create_dir_all(&path).unwrap();
        path
    }

    pub fn write(&self, name: &str, content: &str) {
        let path = self.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        replace_file(&path, content);
    }
}

/// A running CoreDNS or lb-linker with its own ports.
pub struct Server {
    process: Process,
    log: Arc<Mutex<Vec<String>>>,
    ports: BTreeMap<&'static str, HeldPort>,
    quic: Option<u16>,
}

impl Server {
    /// Starts a program with the Corefile of a directory, and waits until the program listens on all ports in the
    /// Corefile.
    pub async fn start(which: Program, site: &CorefileDir) -> Self {
        let ports: BTreeMap<_, _> = PORTS
            .into_iter()
            .chain([QUIC])
            .map(|name| (name, HeldPort::take().expect("a free port")))
            .collect();
        let mut command = command(which, site);
        for (name, port) in &ports {
            let is_chosen = *name == QUIC && which == Program::Linker;
            command.env(name, if is_chosen { "0".to_owned() } else { port.number().to_string() });
        }
        let mut process = Process::spawn(command).expect("the program can be started");
        let log: Arc<Mutex<Vec<String>>> = Arc::default();
        let mut readers = vec![
            follow(process.stdout().expect("stdout is piped"), &log),
            follow(process.stderr().expect("stderr is piped"), &log),
        ];
        let text = fs::read_to_string(site.corefile()).unwrap();
        let has = |name: &str| text.contains(&format!("{{${name}}}"));
        let quic = (has(QUIC) && which == Program::CoreDns).then(|| ports[QUIC].number());
        let mut server = Self { process, log, ports, quic };
        let deadline = Instant::now() + EVENT_TIMEOUT;
        for name in PORTS.into_iter().chain([QUIC]).filter(|name| has(name)) {
            while !server.listens(name) {
                let ended = server.process.ended();
                if ended.is_some() {
                    // The pipes are closed, so the readers end after the last line.
                    readers.drain(..).for_each(|reader| reader.join().expect("the reader doesn't panic"));
                }
                let is_over = ended.is_some() || Instant::now() > deadline;
                assert!(!is_over, "{which:?} doesn't listen on {name} ({ended:?}): {:#?}", server.log());
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
        }
        server
    }

    /// Returns whether the server listens on this port, on any address. A test connection would change the server's
    /// metrics.
    fn listens(&mut self, name: &str) -> bool {
        if name == QUIC {
            let log = self.log();
            let chosen =
                log.iter().find_map(|line| line.split_once(", by QUIC")?.0.rsplit_once(':')?.1.parse().ok());
            self.quic = self.quic.or(chosen);
            return self.quic.is_some_and(|port| udp_sockets(port) > usize::from(chosen.is_none()));
        }
        let port = self.port(name);
        // One of the UDP sockets is the test's own, which reserves the port.
        socket_count("tcp", "0A", port) > 0 && (!name.starts_with("PORT") || udp_sockets(port) > 1)
    }

    pub fn port(&self, name: &str) -> u16 {
        self.quic.filter(|_| name == QUIC).unwrap_or_else(|| self.ports[name].number())
    }

    pub fn address(&self, name: &str) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port(name)).into()
    }

    pub fn dns(&self) -> SocketAddr {
        self.address("PORT")
    }

    pub fn metrics(&self) -> String {
        let (code, page) = linker::get(self.address("METRICS"), "/metrics");
        assert_eq!(code, 200, "{page}");
        page
    }

    /// Returns the value of a metric with its labels, in the text format of Prometheus.
    pub fn metric(&self, name: &str) -> Option<f64> {
        self.metrics().lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
    }

    /// Returns all lines that the server has written to stdout and stderr.
    pub fn log(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }

    /// Replaces the server's ports by their variables' names.
    pub fn without_ports(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for name in self.ports.keys() {
            text = text.replace(&format!(":{}", self.port(name)), &format!(":{name}"));
        }
        text
    }

    pub fn signal(&mut self, signal: Signal) {
        self.process.signal(signal);
    }

    pub fn is_running(&mut self) -> bool {
        self.process.ended().is_none()
    }
}

fn command(which: Program, site: &CorefileDir) -> Command {
    let mut command = match which {
        Program::CoreDns => {
            let mut command = Command::new(&programs().coredns);
            command.arg("-conf").arg(site.corefile());
            command
        }
        Program::Linker => {
            let mut command = linker::bare();
            command.args(["run", "--corefile"]).arg(site.corefile());
            // The Services come from a cluster if the environment has a kubeconfig, otherwise from files.
            if !site.variables.contains_key("LB_LINKER_KUBECONFIG") {
                command.arg("--manifests").arg(site.manifests());
            }
            command
        }
    };
    command.current_dir(site.path()).envs(&site.variables).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn follow(stream: impl Read + Send + 'static, log: &Arc<Mutex<Vec<String>>>) -> JoinHandle<()> {
    let log = Arc::clone(log);
    thread::spawn(move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            log.lock().unwrap().push(line);
        }
    })
}

/// Runs `lb-linker check` on the Corefile of a directory, with arbitrary ports.
pub fn check(site: &CorefileDir) -> Output {
    let mut command = linker::bare();
    command.args(["check", "--corefile"]).arg(site.corefile());
    command.arg("--manifests").arg(site.manifests());
    command.envs(PORTS.iter().chain([&QUIC]).zip(5301..).map(|(name, port)| (name, port.to_string())));
    command.current_dir(site.path()).envs(&site.variables).stdin(Stdio::null());
    command.output().expect("lb-linker can be started")
}
