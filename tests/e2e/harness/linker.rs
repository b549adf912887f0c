//! A running lb-linker process.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::control_plane::ControlPlane;
use super::process::Process;
use super::{EVENT_TIMEOUT, eventually};

/// The path of the tested program, unless `LB_LINKER_TEST_PROGRAM` is set.
const PROGRAM: &str = env!("CARGO_BIN_EXE_lb-linker");

/// A running lb-linker with its own ports.
pub struct Linker {
    process: Process,
    log: Arc<Mutex<Vec<String>>>,
    /// The address for DNS queries.
    pub dns: SocketAddr,
    /// The address of `/metrics`.
    pub metrics: SocketAddr,
    /// The address of `/health`.
    pub health: SocketAddr,
    ready: SocketAddr,
}

/// Prints the end of the log if the test fails.
impl Drop for Linker {
    fn drop(&mut self) {
        if thread::panicking() {
            let log = self.log();
            eprintln!("the log of lb-linker at {}:", self.dns);
            log.iter().skip(log.len().saturating_sub(30)).for_each(|line| eprintln!("    {line}"));
        }
    }
}

/// Runs lb-linker with these arguments until it exits.
pub fn run_to_end<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Output {
    run_to_end_with(&[], args)
}

/// Like [`run_to_end`], with these environment variables.
pub fn run_to_end_with<S: AsRef<OsStr>>(
    variables: &[(&str, &str)],
    args: impl IntoIterator<Item = S>,
) -> Output {
    let mut command = bare();
    command.envs(variables.iter().copied());
    command.args(args).stdin(Stdio::null()).output().expect("lb-linker can be started")
}

/// Returns the errors that `lb-linker check` has found in the cluster, each with a newline.
pub fn cluster_errors(output: &Output) -> String {
    let printed = String::from_utf8_lossy(&output.stdout);
    printed.lines().filter_map(|line| Some(format!("{}\n", line.strip_prefix("error: ")?))).collect()
}

/// Returns a command for the program, without the variables in the environment of the tests that lb-linker reads.
pub(crate) fn bare() -> Command {
    bare_program(&std::env::var_os("LB_LINKER_TEST_PROGRAM").unwrap_or_else(|| PROGRAM.into()))
}

/// Like [`bare`], for another version of the program.
fn bare_program(program: &OsStr) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        let ours = text.starts_with("LB_LINKER_") || text.to_ascii_lowercase().ends_with("_proxy");
        if ours
            || [
                "KUBECONFIG",
                "KUBERNETES_SERVICE_HOST",
                "POD_NAME",
                "POD_NAMESPACE",
                "POD_IP",
                "POD_IPS",
                "RUST_LOG",
            ]
            .contains(&&*text)
        {
            command.env_remove(&name);
        }
    }
    // A port of its own for each process.
    command.env("LB_LINKER_ADMIN_LISTEN", "127.0.0.1:0");
    command
}

/// Like [`bare`], with this limit of open files.
fn limited(files: usize) -> Command {
    wrapped("ulimit -n \"$0\"", &files.to_string())
}

/// Like [`bare`], after a shell command, in which `$0` is `argument`.
fn wrapped(before: &str, argument: &str) -> Command {
    let program = bare();
    let mut command = Command::new("sh");
    for (name, value) in program.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command.args(["-ec", &format!("{before}; exec \"$@\""), argument]).arg(program.get_program());
    command
}

/// Like [`bare`], in a mount namespace with a tmpfs of 64 KiB at this directory.
fn on_small_disk(directory: &Path) -> Command {
    let program = bare();
    let mut command = Command::new("unshare");
    for (name, value) in program.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let mount = "mount -t tmpfs -o size=64k tmpfs \"$0\"; exec \"$@\"";
    command
        .args(["--map-root-user", "--mount", "sh", "-ec", mount])
        .arg(directory)
        .arg(program.get_program());
    command
}

fn with_ports(command: &mut Command) {
    for flag in ["--listen", "--metrics-listen", "--health-listen", "--ready-listen"] {
        command.args([flag, "127.0.0.1:0"]);
    }
}

impl Linker {
    /// Starts lb-linker with these arguments on free ports, and waits until its ports are open.
    pub fn start<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Self {
        Self::start_with(&[], args)
    }

    /// Like [`Linker::start`], with these environment variables. Writes are enabled unless an argument disables them:
    /// outside a Pod, as in tests, lb-linker doesn't write by default.
    pub fn start_with<S: AsRef<OsStr>>(
        variables: &[(&str, &str)],
        args: impl IntoIterator<Item = S>,
    ) -> Self {
        Self::start_bare(&[&[("LB_LINKER_SYNC", "on")], variables].concat(), args)
    }

    /// Like [`Linker::start_with`], without a default that enables writes.
    pub fn start_bare<S: AsRef<OsStr>>(
        variables: &[(&str, &str)],
        args: impl IntoIterator<Item = S>,
    ) -> Self {
        let mut command = bare();
        command.envs(variables.iter().copied());
        let args: Vec<S> = args.into_iter().collect();
        // A Corefile sets the addresses itself.
        if args.iter().all(|arg| arg.as_ref() != "--corefile") {
            with_ports(&mut command);
        }
        command.args(args);
        Self::spawn(command)
    }

    /// Like [`Linker::start`], with another version of the program.
    pub fn start_version<S: AsRef<OsStr>>(program: &Path, args: impl IntoIterator<Item = S>) -> Self {
        let mut command = bare_program(program.as_os_str());
        command.env("LB_LINKER_SYNC", "on");
        with_ports(&mut command);
        command.args(args);
        Self::spawn(command)
    }

    /// Like [`Linker::start_bare`], with this limit of open files and no variables.
    pub fn start_with_files<S: AsRef<OsStr>>(files: usize, args: impl IntoIterator<Item = S>) -> Self {
        let mut command = limited(files);
        with_ports(&mut command);
        command.args(args);
        Self::spawn(command)
    }

    /// Like [`Linker::start`], with a tmpfs of 64 KiB at this directory, which only the process sees.
    pub fn start_on_small_disk<S: AsRef<OsStr>>(directory: &Path, args: impl IntoIterator<Item = S>) -> Self {
        let mut command = on_small_disk(directory);
        command.env("LB_LINKER_SYNC", "on");
        with_ports(&mut command);
        command.args(args);
        Self::spawn(command)
    }

    /// Like [`Linker::start_bare`], in the cgroup with this directory and without variables.
    pub fn start_in_cgroup<S: AsRef<OsStr>>(cgroup: &Path, args: impl IntoIterator<Item = S>) -> Self {
        let mut command = wrapped("echo $$ > \"$0\"/cgroup.procs", cgroup.to_str().expect("a path of ours"));
        with_ports(&mut command);
        command.args(args);
        Self::spawn(command)
    }

    /// Starts lb-linker on its default ports in a Pod. Only for use in an isolated network, see [`super::network`].
    pub fn start_on_default_ports<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Self {
        let mut command = bare();
        command.env("KUBERNETES_SERVICE_HOST", "127.0.0.1").args(args);
        Self::spawn(command)
    }

    /// Starts lb-linker with a Corefile, which sets the addresses of DNS, `/metrics`, `/health` and `/ready`, and with
    /// this limit of open files, if given.
    pub fn start_on_corefile(corefile: &str, directory: &Path, files: Option<usize>) -> Self {
        let path = directory.join("Corefile");
        std::fs::write(&path, corefile).unwrap();
        let mut command = files.map_or_else(bare, limited);
        command.arg("--manifests").arg(directory).arg("--corefile").arg(path);
        Self::spawn(command)
    }

    /// Starts lb-linker on manifests, with a port for DNS only.
    pub fn start_without_http(manifests: &Path) -> Self {
        let mut command = bare();
        command.arg("--manifests").arg(manifests).args(["--upstream", "none", "--listen", "127.0.0.1:0"]);
        for flag in ["--metrics-listen", "--health-listen", "--ready-listen", "--admin-listen"] {
            command.args([flag, "none"]);
        }
        Self::spawn_with(command, |port| {
            let unused = SocketAddr::from(([127, 0, 0, 1], 0));
            (port("DNS on "), [unused; 3])
        })
    }

    fn spawn(command: Command) -> Self {
        Self::spawn_with(command, |port| {
            (port("DNS on "), ["/metrics on ", "/health on ", "/ready on "].map(port))
        })
    }

    /// Starts the process. `ports` reads the addresses of DNS, `/metrics`, `/health` and `/ready` from the log: it gets
    /// a function that waits for the address after a text.
    fn spawn_with(
        mut command: Command,
        ports: impl FnOnce(&mut dyn FnMut(&str) -> SocketAddr) -> (SocketAddr, [SocketAddr; 3]),
    ) -> Self {
        command.stderr(Stdio::piped());
        let mut process = Process::spawn(command).expect("lb-linker can be started");
        let stderr = process.stderr().expect("it is piped");
        let log: Arc<Mutex<Vec<String>>> = Arc::default();
        let lines = Arc::clone(&log);
        thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                lines.lock().unwrap().push(line);
            }
        });
        let mut port = |what: &str| -> SocketAddr {
            let deadline = Instant::now() + EVENT_TIMEOUT;
            loop {
                let log = log.lock().unwrap().clone();
                let found = log.iter().find_map(|line| line.split_once(what)).map(|(_, rest)| rest);
                if let Some(address) = found.and_then(|rest| rest.split([',', ' ', '"']).next()?.parse().ok())
                {
                    return address;
                }
                let goes_on = process.ended().is_none() && Instant::now() < deadline;
                assert!(goes_on, "lb-linker hasn't opened its ports: {log:#?}");
                thread::sleep(Duration::from_millis(5));
            }
        };
        let (dns, [metrics, health, ready]) = ports(&mut port);
        Self { dns, metrics, health, ready, log, process }
    }

    /// Starts lb-linker in a cluster, with the permissions of `deploy/` and this target namespace. Removals of external
    /// targets are unlimited unless the arguments limit them: on the shared control plane all tests delete load
    /// balancers, together more than the deletion budget allows.
    pub fn in_cluster(cluster: &ControlPlane, target_namespace: &str, args: &[&str]) -> Self {
        let unlimited = ["--max-deletes", "unlimited"];
        let default = if args.contains(&"--max-deletes") { &[][..] } else { &unlimited[..] };
        Self::in_cluster_as_given(cluster, target_namespace, &[default, args].concat())
    }

    /// Like [`Linker::in_cluster`], without a default for `--max-deletes`.
    pub fn in_cluster_as_given(cluster: &ControlPlane, target_namespace: &str, args: &[&str]) -> Self {
        // Every lb-linker writes to the annotated Services of all namespaces that it watches, also to those of tests
        // that run at the same time. All of these processes write the same values, except for deleted load balancers.
        let is_limited = !args.contains(&"tombstone") || args.contains(&"--watch-namespaces");
        assert!(is_limited, "--on-delete tombstone needs --watch-namespaces in tests");
        let kubeconfig = cluster.kubeconfig_for_service_account("lb-linker", "lb-linker");
        let mut all = vec!["--kubeconfig", kubeconfig.to_str().expect("a path of ours")];
        all.extend(["--target-namespace", target_namespace]);
        all.extend(args);
        Self::start(all)
    }

    pub fn log(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }

    /// Returns the number of log lines that contain `text`.
    pub fn logged(&self, text: &str) -> usize {
        self.log().iter().filter(|line| line.contains(text)).count()
    }

    /// Returns the warnings so far. On a busy machine the self-check of `/health` is slow, too.
    pub fn warnings(&self) -> Vec<String> {
        let mut log = self.log();
        log.retain(|line| line.contains("WARN") && !line.contains("self-check of /health"));
        log
    }

    /// Waits for a log line that contains `text`, and returns it.
    pub async fn line(&self, text: &str) -> String {
        let found = || async { self.log().into_iter().find(|line| line.contains(text)) };
        eventually(&format!("a log line with {text:?} in {:#?}", self.log()), found).await
    }

    /// Waits for the status page, and returns its address.
    pub async fn admin(&self) -> SocketAddr {
        let line = self.line("status page on http://").await;
        let address = line.split("http://").nth(1).and_then(|rest| rest.trim_end_matches('/').parse().ok());
        address.expect("an address")
    }

    /// Waits until lb-linker is ready.
    pub async fn ready(&self) {
        eventually("readiness", || async { (self.get_ready().0 == 200).then_some(()) }).await;
    }

    /// Returns the status and body of `/ready`.
    pub fn get_ready(&self) -> (u16, String) {
        get(self.ready, "/ready")
    }

    /// Returns the status and body of `/health`.
    pub fn get_health(&self) -> (u16, String) {
        get(self.health, "/health")
    }

    /// Returns the value of a metric, given with its labels as in Prometheus's text format.
    pub fn metric(&self, name: &str) -> Option<f64> {
        self.metrics().lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
    }

    /// Returns the page of `/metrics`.
    pub fn metrics(&self) -> String {
        let (code, page) = get(self.metrics, "/metrics");
        assert_eq!(code, 200);
        page
    }

    /// Waits until a metric has this value, because a log line may appear before the metric changes.
    pub async fn counts(&self, name: &str, value: f64) {
        eventually(&format!("{name} {value}"), || async { (self.metric(name) == Some(value)).then_some(()) })
            .await;
    }

    /// Returns the number of attempted writes, except Events, which may be late, and writes of the Lease.
    pub fn writes(&self) -> f64 {
        let page = self.metrics();
        let value = |line: &str| {
            let (labels, value) = line.strip_prefix("lb_linker_api_writes_total{")?.split_once("} ")?;
            let counts = ["kind=\"Event\"", "kind=\"Lease\""].iter().all(|kind| !labels.contains(kind));
            counts.then(|| value.parse::<f64>().ok())?
        };
        page.lines().filter_map(value).sum()
    }

    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Returns the resident memory (`VmRSS` of proc(5)), or its maximum (`VmHWM`), in KiB.
    pub fn memory(&self, field: &str) -> usize {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.id())).unwrap();
        let value = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        value.unwrap().trim().trim_end_matches(" kB").parse().unwrap()
    }

    pub fn signal(&mut self, signal: Signal) {
        self.process.signal(signal);
    }

    /// Sends SIGTERM and waits for the process to exit.
    pub fn stop(&mut self) -> ExitStatus {
        self.process.stop(EVENT_TIMEOUT)
    }

    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Waits until the process has exited by itself.
    pub async fn ended(&mut self) -> ExitStatus {
        let deadline = Instant::now() + EVENT_TIMEOUT;
        loop {
            if let Some(status) = self.process.ended() {
                return status;
            }
            assert!(Instant::now() < deadline, "lb-linker is still running");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

pub(crate) fn get(address: SocketAddr, path: &str) -> (u16, String) {
    get_from(address, "test", path)
}

/// Requests a path with this Host header, and returns the status and the body.
pub(crate) fn get_from(address: SocketAddr, host: &str, path: &str) -> (u16, String) {
    // A wildcard address is reached by the loopback address of either family.
    let loopback = [IpAddr::from(Ipv6Addr::LOCALHOST), IpAddr::from(Ipv4Addr::LOCALHOST)];
    let addresses = if address.ip().is_unspecified() {
        loopback.map(|ip| SocketAddr::new(ip, address.port())).to_vec()
    } else {
        vec![address]
    };
    // HTTP/1.0, so that the response isn't chunked.
    let request = format!("GET {path} HTTP/1.0\r\nHost: {host}\r\n\r\n");
    let deadline = Instant::now() + EVENT_TIMEOUT;
    let answer = loop {
        let mut stream = TcpStream::connect(&*addresses).expect("the port is open");
        stream.set_read_timeout(Some(EVENT_TIMEOUT)).unwrap();
        let mut answer = String::new();
        let exchanged =
            stream.write_all(request.as_bytes()).and_then(|()| stream.read_to_string(&mut answer));
        if exchanged.as_ref().is_ok_and(|length| *length > 0) {
            break answer;
        }
        // lb-linker closes a connection if the request is late.
        assert!(Instant::now() < deadline, "no answer from {address}{path}: {exchanged:?}");
        thread::sleep(Duration::from_millis(50));
    };
    let (head, body) = answer.split_once("\r\n\r\n").expect("an HTTP answer");
    let code = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
    (code, body.to_owned())
}
