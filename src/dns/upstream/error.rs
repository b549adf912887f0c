//! What has gone wrong between us and an upstream, in CoreDNS's words.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use std::{fmt, io};

use nix::errno::Errno;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::socket_budget::NoSocket;
use crate::dns::net::is_shortage;

/// How long a connection may take to be there.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Why an upstream hasn't answered. It reads as in CoreDNS, for people have `consolidate` and alerts look for
/// that: `read udp 127.0.0.1:33482->192.0.2.1:53: i/o timeout`.
#[derive(Debug)]
pub(crate) struct ExchangeError {
    doing: Operation,
    error: io::Error,
}

const DIAL: &str = "dial";

/// A step of an exchange.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operation {
    verb: &'static str,
    network: &'static str,
    local: Option<SocketAddr>,
    remote: SocketAddr,
}

impl Operation {
    /// Gets a socket that leads to an upstream.
    pub(crate) fn dial(network: &'static str, remote: SocketAddr) -> Self {
        Self { verb: DIAL, network, local: None, remote }
    }

    /// Waits for what comes from an upstream.
    pub(crate) fn read(network: &'static str, local: Option<SocketAddr>, remote: SocketAddr) -> Self {
        Self { verb: "read", network, local, remote }
    }

    /// Returns that this has failed.
    pub(crate) fn failed(self, error: io::Error) -> ExchangeError {
        ExchangeError { doing: self, error }
    }

    /// Returns that this has taken too long.
    pub(crate) fn late(self) -> ExchangeError {
        self.failed(io::ErrorKind::TimedOut.into())
    }
}

/// How far an exchange is, and since when.
#[derive(Debug)]
pub(crate) struct ExchangeProgress {
    step: Mutex<(Operation, Instant)>,
    /// Whether the upstream has been silent for so long that it is checked.
    is_silent: AtomicBool,
}

impl ExchangeProgress {
    pub(crate) fn new(doing: Operation, now: Instant) -> Self {
        Self { step: Mutex::new((doing, now)), is_silent: AtomicBool::new(false) }
    }

    /// Takes in that the upstream has been silent for so long that it is checked.
    pub(crate) fn falls_silent(&self) {
        self.is_silent.store(true, Ordering::Relaxed);
    }

    /// Returns whether it has been.
    pub(crate) fn is_silent(&self) -> bool {
        self.is_silent.load(Ordering::Relaxed)
    }

    /// Takes in that a step begins.
    pub(crate) fn begins(&self, doing: Operation, now: Instant) {
        *self.step.lock() = (doing, now);
    }

    /// The same, unless it is the repetition of one that has begun.
    pub(crate) fn first(&self, doing: Operation, now: Instant) {
        if self.step().0.verb != doing.verb {
            self.begins(doing, now);
        }
    }

    /// Returns what is being done, and when that has taken too long.
    pub(crate) fn due(&self, patience: Duration) -> (Operation, Instant) {
        let (doing, since) = self.step();
        (doing, since + if doing.verb == DIAL { CONNECT_TIMEOUT } else { patience })
    }

    fn step(&self) -> (Operation, Instant) {
        *self.step.lock()
    }
}

impl ExchangeError {
    /// Whether it says nothing about the upstream: there is no socket for it.
    pub(crate) fn is_shortage(&self) -> bool {
        is_shortage(&self.error) || self.error.get_ref().is_some_and(|error| error.is::<NoSocket>())
    }
}

impl fmt::Display for ExchangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Operation { verb, network, local, remote } = self.doing;
        write!(f, "{verb} {network} ")?;
        if let Some(local) = local {
            write!(f, "{local}->")?;
        }
        write!(f, "{remote}: ")?;
        match (self.error.raw_os_error(), self.error.kind()) {
            (Some(errno), _) => {
                let call = if verb == DIAL { "connect" } else { verb };
                write!(f, "{call}: {}", Errno::from_raw(errno).desc().to_lowercase())
            }
            (None, io::ErrorKind::TimedOut) => f.write_str("i/o timeout"),
            (None, io::ErrorKind::UnexpectedEof) => f.write_str("EOF"),
            (None, _) => self.error.fmt(f),
        }
    }
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ForwardError {
    /// No upstream has answered in time, or none can be reached: the last trouble there was.
    #[error("{0}")]
    NoAnswer(Arc<str>),
    /// None has answered so far: the look-up goes on.
    #[error("no upstream has answered yet")]
    Late,
    /// Too many questions are under way. The text begins as CoreDNS's.
    #[error("concurrent queries exceeded maximum {maximum}{}", share(*own))]
    Busy {
        /// The bound for all clients.
        maximum: usize,
        /// Questions of this client among them.
        own: usize,
    },
    /// No upstream was asked, because the bound on sockets is reached.
    #[error(
        "no socket to an upstream is free for this client (all sockets to upstreams: 60 % of RLIMIT_NOFILE)"
    )]
    NoSocket,
}

impl ForwardError {
    /// Returns that there is no answer, and why.
    pub(crate) fn none(why: impl Into<Arc<str>>) -> Self {
        Self::NoAnswer(why.into())
    }
}

/// Returns what is added where a client has its share.
pub(crate) fn share(own: usize) -> String {
    if own == 0 {
        return String::new();
    }
    format!("; this client holds {own}, the most that one client may hold now")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn troubles_read_as_in_coredns() {
        let address = |text: &str| text.parse::<SocketAddr>().unwrap();
        let (local, upstream) = (address("127.0.0.1:33482"), address("192.0.2.1:53"));
        let refused = || io::Error::from_raw_os_error(Errno::ECONNREFUSED as i32);
        for (trouble, text) in [
            (
                Operation::read("udp", Some(local), upstream).late(),
                "read udp 127.0.0.1:33482->192.0.2.1:53: i/o timeout",
            ),
            (
                Operation::read("udp", Some(local), upstream).failed(refused()),
                "read udp 127.0.0.1:33482->192.0.2.1:53: read: connection refused",
            ),
            (
                Operation::dial("tcp", upstream).failed(refused()),
                "dial tcp 192.0.2.1:53: connect: connection refused",
            ),
            (Operation::dial("tcp", address("[::1]:853")).late(), "dial tcp [::1]:853: i/o timeout"),
            (
                Operation::read("tcp", Some(local), upstream).failed(io::ErrorKind::UnexpectedEof.into()),
                "read tcp 127.0.0.1:33482->192.0.2.1:53: EOF",
            ),
        ] {
            assert_eq!(trouble.to_string(), text);
        }
    }
}
