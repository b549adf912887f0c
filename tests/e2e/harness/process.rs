//! Child processes that never outlive the test process.

use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::{OnceLock, mpsc};
use std::thread;
use std::time::{Duration, Instant};
use std::{fs, io};

use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getpid, getppid};

/// A running child process. Dropping it kills it.
#[derive(Debug)]
pub struct Process(Child);

impl Process {
    /// Starts `command`, without standard input. The kernel kills the child when the test process ends without running
    /// its destructors (by a signal or `process::exit`).
    ///
    /// # Errors
    /// If the program can't be started.
    pub fn spawn(mut command: Command) -> io::Result<Self> {
        command.stdin(Stdio::null());
        die_with_parent(&mut command);
        // The death signal is sent when the *thread* that started the child ends, and a test's thread ends with the
        // test. So a single thread, which lives as long as the process, starts all children.
        type Order = (Command, mpsc::Sender<io::Result<Child>>);
        static KEEPER: OnceLock<mpsc::Sender<Order>> = OnceLock::new();
        let keeper = KEEPER.get_or_init(|| {
            let (orders, inbox) = mpsc::channel::<Order>();
            thread::Builder::new()
                .name("keeper".to_owned())
                .spawn(move || {
                    for (mut command, reply) in inbox {
                        // Without a receiver for the reply the child has no owner, and must be killed.
                        if let Err(mpsc::SendError(Ok(child))) = reply.send(command.spawn()) {
                            drop(Process(child));
                        }
                    }
                })
                .expect("a thread can be started");
            orders
        });
        let (reply, answer) = mpsc::channel();
        keeper.send((command, reply)).expect("the keeper lives as long as the process");
        answer.recv().expect("the keeper answers").map(Self)
    }

    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// Returns the standard error, if it is piped; only once.
    pub fn stderr(&mut self) -> Option<ChildStderr> {
        self.0.stderr.take()
    }

    /// Returns the standard output, if it is piped; only once.
    pub fn stdout(&mut self) -> Option<ChildStdout> {
        self.0.stdout.take()
    }

    /// Sends a signal; does nothing if the process has ended already.
    pub fn signal(&mut self, signal: Signal) {
        // The process isn't reaped yet, so its id can't belong to another process.
        if self.ended().is_none() {
            let pid = Pid::from_raw(self.id().try_into().expect("process ids fit"));
            kill(pid, signal).expect("a child of ours can be signalled");
            // The threads stop one after the other.
            while signal == Signal::SIGSTOP && self.ended().is_none() && !self.is_stopped() {
                thread::sleep(Duration::from_millis(1));
            }
        }
    }

    /// Returns whether every thread is stopped: `T` is the third field of its stat, after a name in parentheses.
    fn is_stopped(&self) -> bool {
        let threads = fs::read_dir(format!("/proc/{}/task", self.id())).into_iter().flatten().flatten();
        let stats = threads.filter_map(|thread| fs::read_to_string(thread.path().join("stat")).ok());
        stats.into_iter().all(|stat| stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T')))
    }

    /// Returns the exit status, if the process has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.0.try_wait().expect("a child of ours can be waited for")
    }

    /// Sends SIGTERM, and kills the process if it hasn't ended within `grace`.
    pub fn stop(&mut self, grace: Duration) -> ExitStatus {
        self.signal(Signal::SIGTERM);
        let deadline = Instant::now() + grace;
        while Instant::now() < deadline {
            if let Some(status) = self.ended() {
                return status;
            }
            thread::sleep(Duration::from_millis(10));
        }
        self.kill()
    }

    /// Kills the process and waits for its end.
    pub fn kill(&mut self) -> ExitStatus {
        // Fails only if the process has ended.
        let _ = self.0.kill();
        self.0.wait().expect("a child of ours can be waited for")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

fn die_with_parent(command: &mut Command) {
    let parent = getpid();
    let prepare = move || {
        set_pdeathsig(Signal::SIGKILL)?;
        // If the parent ended before the line above, no signal is sent any more.
        if getppid() == parent { Ok(()) } else { Err(io::ErrorKind::BrokenPipe.into()) }
    };
    // SAFETY: between fork and exec only async-signal-safe calls are allowed. `prepare` makes two system
    // calls (prctl, getppid), allocates nothing, takes no lock and touches no memory that it shares with
    // another thread.
    #[allow(unsafe_code)]
    unsafe {
        command.pre_exec(prepare);
    }
}
