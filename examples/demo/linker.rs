//! The lb-linker program as a child process, and its log.

use std::error::Error;
use std::io::{self, BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::timeout;

/// The time that lb-linker may take to open its ports, and to end.
const EVENT_TIMEOUT: Duration = Duration::from_secs(10);
/// The interval for polling whether lb-linker has ended.
const POLL: Duration = Duration::from_millis(5);

/// A running lb-linker, which is stopped when it is dropped.
#[derive(Debug)]
pub struct Linker {
    child: Child,
    log: UnboundedReceiver<String>,
}

impl Linker {
    /// Starts lb-linker in `directory` with these arguments, and without LB_LINKER_ variables from the environment.
    ///
    /// # Errors
    /// If the program can't be found or started.
    pub fn start(directory: &Path, arguments: &[&str]) -> Result<Self, Box<dyn Error>> {
        let program = program()?;
        let mut command = Command::new(&program);
        for (variable, _) in std::env::vars_os() {
            if variable.to_string_lossy().starts_with("LB_LINKER_") {
                command.env_remove(variable);
            }
        }
        command.env_remove("RUST_LOG").current_dir(directory).args(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| format!("{}: {error}", program.display()))?;
        let (sender, log) = unbounded_channel();
        if let Some(stderr) = child.stderr.take() {
            thread::spawn(move || {
                for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                    // Without a receiver, the lines are still read, because lb-linker must be able to write its log.
                    let _ = sender.send(line);
                }
            });
        }
        Ok(Self { child, log })
    }

    /// Returns the next line of the log, or `None` when lb-linker has ended.
    pub async fn next_line(&mut self) -> Option<String> {
        self.log.recv().await
    }

    /// Waits until lb-linker has opened its ports. Returns its DNS address, and the lines of its log so far.
    ///
    /// # Errors
    /// If lb-linker ends, or takes longer than 10 s.
    pub async fn dns_address(&mut self) -> Result<(SocketAddr, Vec<String>), Box<dyn Error>> {
        let mut lines = Vec::new();
        let told = timeout(EVENT_TIMEOUT, async {
            while let Some(line) = self.next_line().await {
                let address = dns_address(&line);
                lines.push(line);
                if address.is_some() {
                    return address;
                }
            }
            None
        });
        match told.await {
            Ok(Some(address)) => Ok((address, lines)),
            Ok(None) => Err(format!("lb-linker has ended at once, and said: {}", lines.join("\n")).into()),
            Err(_) => Err(format!("lb-linker hasn't opened its DNS port within {EVENT_TIMEOUT:?}").into()),
        }
    }

    /// Returns the exit status of lb-linker, if lb-linker has ended.
    ///
    /// # Errors
    /// If the status can't be read.
    pub fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }

    /// Stops lb-linker with SIGTERM, or with SIGKILL if lb-linker doesn't end within 10 s.
    ///
    /// # Errors
    /// If the status can't be read.
    pub fn stop(&mut self) -> io::Result<ExitStatus> {
        if let Some(status) = self.ended()? {
            return Ok(status);
        }
        // The child hasn't been waited for, so its process id can't have been reused.
        if let Ok(id) = self.child.id().try_into() {
            kill(Pid::from_raw(id), Signal::SIGTERM)?;
        }
        let deadline = Instant::now() + EVENT_TIMEOUT;
        while Instant::now() < deadline {
            if let Some(status) = self.ended()? {
                return Ok(status);
            }
            thread::sleep(POLL);
        }
        self.child.kill()?;
        self.child.wait()
    }

    /// Ends lb-linker with SIGKILL: after SIGTERM it would answer for another 5 s.
    ///
    /// # Errors
    /// If lb-linker had ended before, or its status can't be read.
    pub fn kill(mut self) -> Result<(), Box<dyn Error>> {
        if let Some(status) = self.ended()? {
            return Err(format!("lb-linker has ended with {status}").into());
        }
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Linker {
    fn drop(&mut self) {
        let _ = self.stop();
    }
}

/// Returns the path of the program: `$LB_LINKER`, or the program beside this example (`target/debug/examples/demo`).
fn program() -> Result<PathBuf, Box<dyn Error>> {
    if let Some(path) = std::env::var_os("LB_LINKER") {
        // The path must be absolute, because the program is started in another directory.
        return Ok(std::path::absolute(path)?);
    }
    let this = std::env::current_exe()?;
    let beside = this.ancestors().nth(2).map(|profile| profile.join("lb-linker"));
    match beside {
        Some(path) if path.exists() => Ok(path),
        _ => Err("there is no lb-linker program beside the demo: `cargo build` makes it, \
                  or LB_LINKER names another one"
            .into()),
    }
}

/// Reads the address in `… DNS on 127.0.0.1:41234, by UDP and TCP`.
fn dns_address(line: &str) -> Option<SocketAddr> {
    let (_, rest) = line.split_once("DNS on ")?;
    rest.split(',').next()?.parse().ok()
}
