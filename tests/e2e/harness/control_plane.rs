//! A kube-apiserver with etcd as child processes on loopback, with RBAC and an audit log.
//!
//! There is no controller-manager, except where a test starts one: namespaces are never deleted completely, objects
//! aren't garbage-collected, and namespaces get no default ServiceAccount. Tests that share a control plane use
//! their own namespaces; tests that need one alone borrow it, see [`super::pool`].

use std::fs::{self, File};
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use nix::sys::signal::Signal;

use super::audit::{self, AuditEvent, LogStart};
use super::certificates;
use super::data_dir::DataDir;
use super::port::HeldPort;
use super::process::Process;
use super::programs::programs;

/// Timeout for each step of a start, which takes 2 to 3 s on an idle machine.
const READY_TIMEOUT: Duration = Duration::from_secs(180);

/// Maximum time for a kube-apiserver to exit after SIGTERM. It waits for requests, but not for watches.
const STOP_GRACE: Duration = Duration::from_secs(5);

#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Additional flags for kube-apiserver. They are the last ones, so they override the flags of this module.
    pub apiserver_args: Vec<String>,
    /// Whether the admission plugin ServiceAccount is enabled. With it a Pod needs a ServiceAccount that exists:
    /// without a controller-manager, namespaces have no default ServiceAccount.
    pub admits_service_accounts: bool,
}

/// A running control plane. Dropping it stops it and removes its data.
#[derive(Debug)]
pub struct ControlPlane {
    options: Options,
    pub(super) port: HeldPort,
    /// Where the audit log of the current test begins.
    log_start: Mutex<LogStart>,
    /// Whether a test has done more than change objects and restart the API server.
    is_disturbed: AtomicBool,
    // The fields are dropped in this order.
    apiserver: Mutex<Option<Process>>,
    etcd: Mutex<Option<Process>>,
    data: DataDir,
}

/// A control plane in a static, which isn't dropped: a function registered with atexit(3) ends it.
type AtExit = OnceLock<Result<ControlPlane, String>>;

fn end_at_exit(plane: &AtExit) {
    if let Some(Ok(plane)) = plane.get() {
        plane.end();
    }
}

/// Makes `end`, which uses only a static and values that it creates itself, run after the last test.
pub(super) fn at_exit(end: extern "C" fn()) {
    // SAFETY: `end` has the type that atexit requires and doesn't unwind. It runs in `exit`.
    #[allow(unsafe_code)]
    let registered = unsafe { nix::libc::atexit(end) };
    assert_eq!(registered, 0, "atexit takes at least 32 functions");
}

// Start and end.

impl ControlPlane {
    /// Returns the control plane that most tests of this process share. The first call starts it, blocking; it stops
    /// with the process.
    ///
    /// # Panics
    /// If it can't be started.
    pub fn shared() -> &'static Self {
        static SHARED: AtExit = AtExit::new();
        extern "C" fn end() {
            end_at_exit(&SHARED);
        }
        Self::start_once(&SHARED, end)
    }

    /// Returns the control plane that tests of StableNames share. [`ControlPlane::shared`] doesn't have the CRD of
    /// StableNames.
    ///
    /// # Panics
    /// If it can't be started.
    pub fn shared_for_stable_names() -> &'static Self {
        static SHARED: AtExit = AtExit::new();
        extern "C" fn end() {
            end_at_exit(&SHARED);
        }
        Self::start_once(&SHARED, end)
    }

    fn start_once(plane: &'static AtExit, end: extern "C" fn()) -> &'static Self {
        let started = plane.get_or_init(|| {
            at_exit(end);
            Self::try_start(Options::default())
        });
        started.as_ref().unwrap_or_else(|error| panic!("{error}"))
    }

    /// Starts a control plane for one test, such as a test that stops the API server or changes its flags. Blocking.
    ///
    /// # Panics
    /// If it can't be started.
    pub fn start(options: Options) -> Self {
        Self::try_start(options).unwrap_or_else(|error| panic!("{error}"))
    }

    fn try_start(options: Options) -> Result<Self, String> {
        let port = HeldPort::take().map_err(|error| format!("no free port: {error}"))?;
        let data = DataDir::create().map_err(|error| format!("no data directory: {error}"))?;
        let (log_start, is_disturbed) = Default::default();
        let (apiserver, etcd) = Default::default();
        let plane = Self { options, port, log_start, is_disturbed, apiserver, etcd, data };
        plane.write_files().map_err(|error| format!("{}: {error}", plane.data.path().display()))?;
        plane.start_etcd()?;
        plane.try_start_apiserver()?;
        Ok(plane)
    }

    fn write_files(&self) -> io::Result<()> {
        let token = format!("{:032x}", rand::random::<u128>());
        fs::write(self.file("tokens.csv"), format!("{token},admin,admin,system:masters\n"))?;
        fs::write(self.file("audit-policy.json"), audit::POLICY)?;
        certificates::write(&self.file("certs"))?;
        self.write_kubeconfig(&self.admin_kubeconfig(), "default", &token)
    }

    fn start_etcd(&self) -> Result<(), String> {
        let socket = self.etcd_socket();
        let mut etcd = Command::new(&programs().etcd);
        etcd.arg("--data-dir").arg(self.file("etcd"));
        etcd.arg(format!("--listen-client-urls=unix://{}", socket.display()));
        // etcd requires peer addresses, although there are no peers. Port 0 means any free port.
        etcd.args(["--listen-peer-urls=http://127.0.0.1:0", "--advertise-client-urls=http://127.0.0.1:0"]);
        etcd.args(["--unsafe-no-fsync", "--log-level=warn"]);
        // Threads that wake each other and garbage collections are a quarter of its processor time.
        etcd.env("GOMAXPROCS", "1").env("GOGC", "300");
        let mut etcd = self.spawn(etcd, "etcd.log")?;
        let deadline = Instant::now() + READY_TIMEOUT;
        while UnixStream::connect(&socket).is_err() {
            if etcd.ended().is_some() || Instant::now() > deadline {
                return Err(self.not_ready("etcd.log"));
            }
            thread::sleep(Duration::from_millis(10));
        }
        *lock(&self.etcd) = Some(etcd);
        Ok(())
    }

    fn try_start_apiserver(&self) -> Result<(), String> {
        let path = |name| self.file(name).display().to_string();
        let mut command = Command::new(&programs().kube_apiserver);
        // Fewer garbage collections save a fifth of the processor time of a start.
        command.env("GOGC", "300");
        command.args([
            format!("--etcd-servers=unix://{}", self.etcd_socket().display()),
            "--bind-address=127.0.0.1".to_owned(),
            "--advertise-address=127.0.0.1".to_owned(),
            format!("--secure-port={}", self.port.number()),
            "--permit-port-sharing".to_owned(),
            format!("--cert-dir={}", path("certs")),
            "--service-cluster-ip-range=10.0.0.0/16".to_owned(),
            // The TLS key also signs tokens.
            format!("--service-account-key-file={}", path("certs/tokens.pub")),
            format!("--service-account-signing-key-file={}", path("certs/apiserver.key")),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            format!("--token-auth-file={}", path("tokens.csv")),
            "--authorization-mode=RBAC".to_owned(),
            format!("--audit-policy-file={}", path("audit-policy.json")),
            format!("--audit-log-path={}", path("audit.log")),
            // In megabytes: a limit so large that the log isn't rotated.
            "--audit-log-maxsize=100000".to_owned(),
            // The reconciler would write the API server's address to the endpoints of the Service `kubernetes`, which
            // can't be loopback addresses.
            "--endpoint-reconciler-type=none".to_owned(),
        ]);
        if !self.options.admits_service_accounts {
            command.arg("--disable-admission-plugins=ServiceAccount");
        }
        command.args(&self.options.apiserver_args);
        let mut apiserver = lock(&self.apiserver);
        assert!(apiserver.is_none(), "the API server runs already");
        *apiserver = Some(self.spawn(command, "kube-apiserver.log")?);
        drop(apiserver);
        self.wait_until_ready()
    }

    pub(super) fn spawn(&self, mut command: Command, log: &str) -> Result<Process, String> {
        let program = command.get_program().to_owned();
        let log = File::options().create(true).append(true).open(self.file(log));
        log.and_then(|log| {
            command.stdout(log.try_clone()?).stderr(log);
            Process::spawn(command)
        })
        .map_err(|error| format!("{}: {error}", program.display()))
    }

    fn wait_until_ready(&self) -> Result<(), String> {
        let deadline = Instant::now() + READY_TIMEOUT;
        let mut listens = false;
        loop {
            // A client needs the certificate, which exists before the port is open.
            listens = listens || TcpStream::connect(self.port.local()).is_ok();
            if listens && self.is_ready() {
                return Ok(());
            }
            let ended = lock(&self.apiserver).as_mut().is_none_or(|apiserver| apiserver.ended().is_some());
            if ended || Instant::now() > deadline {
                return Err(self.not_ready("kube-apiserver.log"));
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Returns an error with the end of a log.
    fn not_ready(&self, log: &str) -> String {
        let text = fs::read(self.file(log)).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<_> = text.lines().collect();
        let tail = lines[lines.len().saturating_sub(30)..].join("\n");
        format!("the control plane isn't ready; the end of {log}:\n{tail}")
    }

    /// Returns the path of etcd's socket, for tests that write to etcd directly because the API server is too slow.
    pub fn etcd_socket(&self) -> PathBuf {
        self.file("etcd.sock")
    }

    /// Returns the path of a file in the data directory.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.data.path().join(name)
    }

    fn end(&self) {
        // The data isn't needed any more, so there is nothing to wait for.
        *lock(&self.apiserver) = None;
        *lock(&self.etcd) = None;
        self.data.remove();
    }
}

// Stop and restart of the API server.

impl ControlPlane {
    /// Stops the API server as an upgrade does. Its port stays reserved: connections are refused.
    pub fn stop_apiserver(&self) {
        if let Some(mut apiserver) = lock(&self.apiserver).take() {
            apiserver.stop(STOP_GRACE);
        }
    }

    pub fn kill_apiserver(&self) {
        *lock(&self.apiserver) = None;
    }

    /// Sends a signal to the API server: after SIGSTOP it doesn't answer until SIGCONT.
    pub fn signal_apiserver(&self, signal: Signal) {
        if let Some(apiserver) = lock(&self.apiserver).as_mut() {
            apiserver.signal(signal);
        }
    }

    /// Starts the API server again, on the same port with the same data, and waits until it is ready. Blocking.
    ///
    /// # Panics
    /// If it is running already, or can't be started.
    pub fn start_apiserver(&self) {
        self.try_start_apiserver().unwrap_or_else(|error| panic!("{error}"));
    }

    /// Restarts the API server with other options. The audit log begins anew. Blocking.
    ///
    /// # Panics
    /// If it can't be started.
    pub fn restart_apiserver(&mut self, options: Options) {
        self.stop_apiserver();
        self.options = options;
        self.start_apiserver();
        self.forget_audit_events();
    }

    /// Returns the address of the API server.
    pub fn address(&self) -> SocketAddr {
        self.port.local()
    }

    /// Returns, in PEM, the API server's certificate and the certificate of the CA that signed it.
    pub fn certificate_authority(&self) -> String {
        fs::read_to_string(self.file("certs/apiserver.crt")).expect("the certificate of the API server")
    }

    /// Restarts the API server with another CA, certificate and key for tokens: all earlier tokens of ServiceAccounts
    /// are invalid. Blocking.
    ///
    /// # Panics
    /// If it can't be started.
    pub fn renew_certificates(&self) {
        self.stop_apiserver();
        certificates::write(&self.file("certs")).expect("certificates can be written");
        self.start_apiserver();
    }

    /// Stops API server and etcd, copies etcd's data, and starts both again. Blocking.
    ///
    /// # Panics
    /// If they can't be started.
    pub fn back_up(&self) {
        self.stop_apiserver();
        self.stop_etcd();
        // A control plane that is lent may have the backup of an earlier test.
        let _ = fs::remove_dir_all(self.file("backup"));
        copy_directory(&self.file("etcd"), &self.file("backup")).expect("the data can be copied");
        self.start_etcd_and_apiserver();
    }

    /// Stops API server and etcd, restores the data that [`ControlPlane::back_up`] has copied, and starts both again:
    /// resourceVersions go backwards. Blocking.
    ///
    /// # Panics
    /// If they can't be started.
    pub fn restore(&self) {
        self.stop_apiserver();
        self.replace_etcd();
        self.start_apiserver();
    }

    /// Like [`ControlPlane::restore`] for etcd alone: the API server keeps running, with its watch cache of the earlier
    /// state. Blocking.
    ///
    /// # Panics
    /// If etcd can't be started.
    pub fn restore_etcd(&self) {
        self.disturb();
        self.replace_etcd();
    }

    fn replace_etcd(&self) {
        self.stop_etcd();
        fs::remove_dir_all(self.file("etcd")).expect("etcd's data can be removed");
        copy_directory(&self.file("backup"), &self.file("etcd")).expect("the data can be copied");
        self.start_etcd().unwrap_or_else(|error| panic!("{error}"));
    }

    fn stop_etcd(&self) {
        if let Some(mut etcd) = lock(&self.etcd).take() {
            etcd.stop(READY_TIMEOUT);
        }
    }

    fn start_etcd_and_apiserver(&self) {
        self.start_etcd().unwrap_or_else(|error| panic!("{error}"));
        self.start_apiserver();
    }

    /// Returns all requests so far, without the requests that [`audit::POLICY`] leaves out. A request is logged when it
    /// completes, perhaps a moment after its answer arrives. A control plane that is lent has the requests of the
    /// current test alone.
    pub fn audit_events(&self) -> Vec<AuditEvent> {
        self.audit_events_with("")
    }

    /// Like [`Self::audit_events`], only those whose line in the audit log contains `text`, such as the name of a user:
    /// to decode the whole log of a shared control plane takes seconds.
    pub fn audit_events_with(&self, text: &str) -> Vec<AuditEvent> {
        audit::read(&self.file("audit.log"), *lock(&self.log_start), text)
    }

    /// Lets [`ControlPlane::audit_events`] leave out all requests so far.
    pub(super) fn forget_audit_events(&self) {
        let bytes = fs::metadata(self.file("audit.log")).map_or(0, |log| log.len());
        *lock(&self.log_start) = LogStart { bytes, time: Timestamp::now() };
    }

    /// Prevents that another test uses this control plane.
    pub(super) fn disturb(&self) {
        self.is_disturbed.store(true, Ordering::SeqCst);
    }

    /// Returns whether another test can use this control plane: the API server runs, and follows etcd.
    pub(super) fn is_undisturbed(&self) -> bool {
        !self.is_disturbed.load(Ordering::SeqCst) && self.is_ready()
    }
}

/// Locks a mutex even after a panic of another test: the protected value is never half changed.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn copy_directory(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir(to)?;
    // etcd refuses data that other users may read.
    fs::set_permissions(to, fs::metadata(from)?.permissions())?;
    for entry in fs::read_dir(from)? {
        let (entry, to) = (entry?, to);
        let to = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_directory(&entry.path(), &to)?;
        } else {
            fs::copy(entry.path(), to)?;
        }
    }
    Ok(())
}
