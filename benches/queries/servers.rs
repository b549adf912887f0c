//! The compared servers, which run on the servers' core.

use std::fs::{self, File};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::client::Client;
use crate::cpu;
use crate::fixtures::{self, ServerFiles};
use crate::h2load;
use crate::harness::certificates;
use crate::harness::linker;
use crate::harness::port::HeldPort;
use crate::harness::process::Process;
use crate::sets::{Names, Question, Set, ZONE};

/// A row of the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Server {
    Linker,
    Floor,
    Knot,
    Nsd,
    File,
    FileBare,
    Kubernetes,
    KubernetesCache,
    Forward,
    ForwardCache,
    Dnsdist,
    Unbound,
    Dnsmasq,
}

impl Server {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Linker => "lb-linker",
            Self::Floor => "floor",
            Self::Knot => "Knot",
            Self::Nsd => "NSD",
            Self::File => "CoreDNS file",
            Self::FileBare => "CoreDNS file, no metrics",
            Self::Kubernetes => "CoreDNS kubernetes",
            Self::KubernetesCache => "CoreDNS kubernetes+cache",
            Self::Forward => "CoreDNS forward",
            Self::ForwardCache => "CoreDNS forward+cache",
            Self::Dnsdist => "dnsdist",
            Self::Unbound => "Unbound",
            Self::Dnsmasq => "dnsmasq",
        }
    }

    /// Returns the servers that can answer a set.
    pub const fn of(set: Set) -> &'static [Self] {
        use Server::*;
        match set {
            Set::Cname => &[Linker, Floor, Knot, Nsd, File, FileBare, Kubernetes, KubernetesCache],
            Set::CnameAnywhere | Set::MixAnywhere => &[Linker, Floor],
            Set::Chase => &[Linker, Floor, Knot, Nsd, File, KubernetesCache, ForwardCache],
            Set::Cached => &[Linker, Floor, ForwardCache, Dnsdist, Unbound, Dnsmasq],
            Set::Uncached => &[Linker, Forward, Dnsdist, Unbound, Dnsmasq],
            Set::Absent | Set::Mix => &[Linker, Floor, Knot, Nsd, File, Kubernetes, KubernetesCache],
            Set::Tcp | Set::LargeZone => &[Linker, Knot, Nsd, File],
            Set::Tls | Set::Https => &[Linker, File],
            Set::Zone => &[Linker, Floor, Knot, Nsd, File],
            Set::Cluster | Set::Search => &[Linker, Floor, Kubernetes, KubernetesCache],
            Set::LargeCluster => &[Linker, Kubernetes],
        }
    }

    pub const fn names(self) -> Names {
        match self {
            Self::Kubernetes | Self::KubernetesCache => Names::Cluster,
            _ => Names::Linked,
        }
    }
}

/// The paths of the programs that are installed.
#[derive(Debug, Default)]
pub struct Programs {
    pub knot: Option<PathBuf>,
    pub nsd: Option<PathBuf>,
    pub coredns: Option<PathBuf>,
    pub dnsdist: Option<PathBuf>,
    pub unbound: Option<PathBuf>,
    pub dnsmasq: Option<PathBuf>,
}

impl Programs {
    pub fn of(&self, server: Server) -> Option<PathBuf> {
        match server {
            Server::Linker => Some(env!("CARGO_BIN_EXE_lb-linker").into()),
            Server::Floor => std::env::current_exe().ok(),
            Server::Knot => self.knot.clone(),
            Server::Nsd => self.nsd.clone(),
            Server::Dnsdist => self.dnsdist.clone(),
            Server::Unbound => self.unbound.clone(),
            Server::Dnsmasq => self.dnsmasq.clone(),
            _ => self.coredns.clone(),
        }
    }
}

/// The environment of the servers.
pub struct Environment {
    pub programs: Programs,
    /// The directory for the files of all servers.
    pub directory: PathBuf,
    /// The address of the forwarders' upstream.
    pub upstream: SocketAddr,
    /// The kubeconfig of the cluster, for `kubernetes`.
    pub kubeconfig: Option<PathBuf>,
}

/// A running server, which is stopped when it is dropped.
pub struct Running {
    pub server: Server,
    pub process: Process,
    pub address: SocketAddr,
    /// The address for DNS over TLS or HTTPS, in the sets of these.
    pub encrypted: SocketAddr,
    pub questions: Vec<Question>,
    /// The file with the queries for dnsperf.
    pub data: PathBuf,
    _ports: Ports,
}

/// The ports of a server, all on 127.0.0.1.
struct Ports {
    dns: SocketAddr,
    metrics: SocketAddr,
    encrypted: SocketAddr,
    /// The sockets that reserve the ports.
    _held: Vec<HeldPort>,
    _on_other_address: Option<(UdpSocket, TcpListener)>,
}

impl Ports {
    /// Reserves the ports of a server.
    fn take(server: Server) -> io::Result<Self> {
        let (metrics, encrypted) = (HeldPort::take()?, HeldPort::take()?);
        if matches!(server, Server::Nsd | Server::Dnsmasq) {
            let (dns, on_other_address) = reserve_on_other_address()?;
            return Ok(Self {
                dns,
                metrics: metrics.local(),
                encrypted: encrypted.local(),
                _held: vec![metrics, encrypted],
                _on_other_address: Some(on_other_address),
            });
        }
        let dns = HeldPort::take()?;
        Ok(Self {
            dns: dns.local(),
            metrics: metrics.local(),
            encrypted: encrypted.local(),
            _held: vec![dns, metrics, encrypted],
            _on_other_address: None,
        })
    }
}

/// Reserves a port on 127.0.0.2 for a server on 127.0.0.1 that doesn't set SO_REUSEPORT: NSD with one process, dnsmasq.
/// The kernel then assigns the port to no socket that is bound to every address.
fn reserve_on_other_address() -> io::Result<(SocketAddr, (UdpSocket, TcpListener))> {
    let reserve = || -> io::Result<_> {
        let udp = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = udp.local_addr()?;
        TcpListener::bind(address)?;
        let beside = (Ipv4Addr::new(127, 0, 0, 2), address.port());
        Ok((address, (UdpSocket::bind(beside)?, TcpListener::bind(beside)?)))
    };
    loop {
        match reserve() {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            reserved => return reserved,
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // NSD's child processes end only if the first process is terminated by a signal that it can handle.
        self.process.stop(std::time::Duration::from_secs(5));
    }
}

impl Environment {
    /// Starts a server for a set, and waits until the server answers the first query.
    pub fn start(&self, server: Server, set: Set) -> Result<Running, String> {
        let text = |error: io::Error| error.to_string();
        let directory =
            self.directory.join(format!("{}-{}", set.name(), server.name().replace([' ', ','], "-")));
        fs::create_dir_all(&directory).map_err(text)?;
        let ports = Ports::take(server).map_err(text)?;
        let command = self.command(server, set, &directory, &ports).map_err(text)?;
        let questions = set.questions(server.names());
        let data = directory.join("questions");
        if set == Set::Https {
            h2load::write_requests(&data, ports.encrypted, &questions).map_err(text)?;
        } else {
            fixtures::write_questions(&data, &questions).map_err(text)?;
        }
        if set.encrypted_scheme().is_some() {
            certificates::write(&directory).map_err(text)?;
        }
        let process = spawn(&command, cpu::SERVER, &directory).map_err(text)?;
        let (address, encrypted) = (ports.dns, ports.encrypted);
        let mut running = Running { server, process, address, encrypted, questions, data, _ports: ports };
        let client = Client::new(address).map_err(text)?;
        let ready = client.wait_for(&running.questions[0], &mut || running.process.ended().is_some());
        ready.map_err(|problem| format!("{problem}\n{}", log(&directory)))?;
        Ok(running)
    }

    /// Returns the command of a server, and writes its files.
    fn command(&self, server: Server, set: Set, directory: &Path, ports: &Ports) -> io::Result<Command> {
        let port = ports.dns.port();
        let files = &ServerFiles { directory, port };
        let program = self.programs.of(server).ok_or(io::ErrorKind::NotFound)?;
        let mut command = Command::new(program);
        let host = if set.anywhere() { "[::]" } else { "127.0.0.1" };
        let write = |name: &str, content: String| fs::write(directory.join(name), content);
        match server {
            Server::Linker => {
                command = linker::bare();
                write("services.yaml", fixtures::manifests())?;
                // Move the manifest away from the other files, which aren't manifests.
                let manifests = directory.join("manifests");
                fs::create_dir_all(&manifests)?;
                fs::rename(directory.join("services.yaml"), manifests.join("services.yaml"))?;
                command.arg("--manifests").arg(manifests);
                if set == Set::Uncached || set.is_zone() || set.is_cluster() {
                    write("zone", fixtures::zone(set.zone_names()))?;
                    write("Corefile", self.corefile(server, set, ports))?;
                    command.arg("--corefile").arg(directory.join("Corefile"));
                } else {
                    command.args(["--listen", &format!("{host}:{port}")]);
                    command.args(["--upstream", &self.upstream.to_string()]);
                    for flag in ["--metrics-listen", "--health-listen", "--ready-listen"] {
                        command.args([flag, "127.0.0.1:0"]);
                    }
                }
            }
            Server::Floor => {
                command.args(["floor", &format!("{host}:{port}")]).arg(self.answers(set));
            }
            Server::Knot => {
                write("zone", fixtures::zone(set.zone_names()))?;
                write("knot.conf", fixtures::knot(files))?;
                command.arg("-c").arg(directory.join("knot.conf"));
            }
            Server::Nsd => {
                write("zone", fixtures::zone(set.zone_names()))?;
                write("nsd.conf", fixtures::nsd(files))?;
                command.arg("-d").arg("-c").arg(directory.join("nsd.conf"));
            }
            Server::Dnsdist => {
                write("dnsdist.conf", fixtures::dnsdist(files, self.upstream, set == Set::Cached))?;
                command.args(["--supervised", "--disable-syslog", "-C"]).arg(directory.join("dnsdist.conf"));
            }
            Server::Unbound => {
                write("unbound.conf", fixtures::unbound(files, self.upstream, set == Set::Cached))?;
                command.arg("-d").arg("-c").arg(directory.join("unbound.conf"));
            }
            Server::Dnsmasq => {
                let cached = if set == Set::Cached { fixtures::CACHED } else { 0 };
                command.args([
                    "--keep-in-foreground",
                    "--conf-file=/dev/null",
                    "--log-facility=-",
                    "--user=root",
                ]);
                command.args([
                    "--bind-interfaces",
                    "--listen-address=127.0.0.1",
                    "--no-resolv",
                    "--no-hosts",
                ]);
                command.arg(format!("--pid-file={}", directory.join("pid").display()));
                command.arg(format!("--port={port}")).arg(format!("--cache-size={cached}"));
                command.arg("--dns-forward-max=1000");
                command.arg(format!("--server={}#{}", self.upstream.ip(), self.upstream.port()));
            }
            _ => {
                write("zone", fixtures::zone(set.zone_names()))?;
                write("Corefile", self.corefile(server, set, ports))?;
                command.arg("-conf").arg(directory.join("Corefile"));
            }
        }
        command.current_dir(directory);
        Ok(command)
    }

    /// Returns a Corefile for CoreDNS and for lb-linker: a block for DNS, and one for TLS or HTTPS in the sets of these.
    fn corefile(&self, server: Server, set: Set, ports: &Ports) -> String {
        let forward = format!("forward . {}", self.upstream);
        let kubernetes = || {
            let kubeconfig = self.kubeconfig.as_deref().unwrap_or(Path::new(""));
            format!("kubernetes cluster.local {{\n kubeconfig {}\n }}\n {forward}", kubeconfig.display())
        };
        let plugins = match server {
            Server::File | Server::FileBare => format!("file zone {ZONE}"),
            Server::Linker if set.is_zone() => format!("file zone {ZONE}"),
            Server::Linker if set.is_cluster() => kubernetes(),
            Server::Kubernetes => kubernetes(),
            Server::KubernetesCache => format!("cache 30\n {}", kubernetes()),
            Server::ForwardCache => format!("cache 30\n {forward}"),
            _ => forward,
        };
        let metrics = match server {
            Server::FileBare => String::new(),
            _ => format!("prometheus {}", ports.metrics),
        };
        let port = ports.dns.port();
        let block = |address: &str, more: &str| {
            format!("{address} {{\n bind 127.0.0.1\n errors\n {metrics}\n {more}{plugins}\n}}\n")
        };
        let encrypted = set.encrypted_scheme().map(|scheme| {
            let address = format!("{scheme}://.:{}", ports.encrypted.port());
            block(&address, "tls apiserver.crt apiserver.key\n ")
        });
        block(&format!(".:{port}"), "") + &encrypted.unwrap_or_default()
    }

    /// Returns the file with the floor's answers to a set.
    pub fn answers(&self, set: Set) -> PathBuf {
        self.directory.join(format!("{}-answers", set.name()))
    }
}

/// Starts Knot as the upstream of all forwarders, on the load generator's core, so that its CPU time isn't counted as
/// the forwarders'.
pub fn start_upstream(program: &Path, directory: &Path, port: u16) -> io::Result<Process> {
    fs::create_dir_all(directory)?;
    fs::write(directory.join("zone"), fixtures::zone(0))?;
    fs::write(directory.join("knot.conf"), fixtures::knot(&ServerFiles { directory, port }))?;
    let mut command = Command::new(program);
    command.arg("-c").arg(directory.join("knot.conf"));
    spawn(&command, cpu::LOAD, directory)
}

fn spawn(command: &Command, core: usize, directory: &Path) -> io::Result<Process> {
    let mut pinned = Command::new("taskset");
    pinned.args(["-c", &core.to_string()]).arg(command.get_program()).args(command.get_args());
    pinned.current_dir(directory);
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => pinned.env(name, value),
            None => pinned.env_remove(name),
        };
    }
    let log = File::create(directory.join("log"))?;
    pinned.stdout(log.try_clone()?).stderr(log);
    Process::spawn(pinned)
}

fn log(directory: &Path) -> String {
    let log = fs::read(directory.join("log")).unwrap_or_default();
    let log = String::from_utf8_lossy(&log);
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(10)..].join("\n")
}
