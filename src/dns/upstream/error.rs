//! Errors of exchanges with an upstream, with CoreDNS's texts.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use nix::errno::Errno;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::http::HttpRefusal;
use super::socket_budget::NoSocket;
use crate::dns::net::is_out_of_resources;
use crate::model::tls_error;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// The error of an exchange. The text equals CoreDNS's, because `consolidate` and users' alerts match it: `read udp
/// 127.0.0.1:33482->192.0.2.1:53: i/o timeout`.
#[derive(Debug)]
pub(crate) struct ExchangeError {
    operation: Operation,
    error: io::Error,
}

const DIAL: &str = "dial";

#[derive(Clone, Copy, Debug)]
pub(crate) struct Operation {
    verb: &'static str,
    network: &'static str,
    local: Option<SocketAddr>,
    remote: SocketAddr,
}

impl Operation {
    /// Returns the step that opens a socket to an upstream.
    pub(crate) fn dial(network: &'static str, remote: SocketAddr) -> Self {
        Self { verb: DIAL, network, local: None, remote }
    }

    /// Returns the step that waits for data from an upstream.
    pub(crate) fn read(network: &'static str, local: Option<SocketAddr>, remote: SocketAddr) -> Self {
        Self { verb: "read", network, local, remote }
    }

    pub(crate) fn failed(self, error: io::Error) -> ExchangeError {
        ExchangeError { operation: self, error }
    }

    pub(crate) fn late(self) -> ExchangeError {
        self.failed(io::ErrorKind::TimedOut.into())
    }
}

/// The current step of an exchange, and its start.
#[derive(Debug)]
pub(crate) struct ExchangeProgress {
    step: Mutex<(Operation, Instant)>,
}

impl ExchangeProgress {
    pub(crate) fn new(operation: Operation, now: Instant) -> Self {
        Self { step: Mutex::new((operation, now)) }
    }

    pub(crate) fn begin(&self, operation: Operation, now: Instant) {
        *self.step.lock() = (operation, now);
    }

    /// Records the start of a step, unless it repeats the current one.
    pub(crate) fn begin_unless_current(&self, operation: Operation, now: Instant) {
        if self.step().0.verb != operation.verb {
            self.begin(operation, now);
        }
    }

    /// Returns the current step, and the time at which it is late.
    pub(crate) fn due(&self, timeout: Duration) -> (Operation, Instant) {
        let (operation, since) = self.step();
        (operation, since + if operation.verb == DIAL { CONNECT_TIMEOUT } else { timeout })
    }

    /// Returns the network of the current step, and the local address if it is known.
    pub(crate) fn socket(&self) -> (&'static str, Option<SocketAddr>) {
        let (operation, _) = self.step();
        (operation.network, operation.local)
    }

    fn step(&self) -> (Operation, Instant) {
        *self.step.lock()
    }
}

impl ExchangeError {
    /// Returns whether the cause is a lack of sockets, file descriptors or memory on this host, which isn't a failure of
    /// the upstream.
    pub(crate) fn is_shortage(&self) -> bool {
        is_out_of_resources(&self.error) || self.error.get_ref().is_some_and(|error| error.is::<NoSocket>())
    }

    /// Returns whether the upstream has answered by HTTP, but not with a DNS message. Another connection wouldn't help.
    pub(crate) fn is_http_refusal(&self) -> bool {
        self.error.get_ref().is_some_and(|error| error.is::<HttpRefusal>())
    }

    /// Returns whether the deadline has passed. A connection that the kernel gave up (ETIMEDOUT) failed before it.
    pub(crate) fn is_timeout(&self) -> bool {
        self.error.kind() == io::ErrorKind::TimedOut && self.error.raw_os_error().is_none()
    }

    /// Returns the cause, without the operation and the addresses.
    pub(crate) fn reason(&self) -> String {
        match (self.error.raw_os_error(), self.error.kind()) {
            (Some(errno), _) => {
                let verb = self.operation.verb;
                let call = if verb == DIAL { "connect" } else { verb };
                format!("{call}: {}", Errno::from_raw(errno).desc().to_lowercase())
            }
            (None, io::ErrorKind::TimedOut) => "i/o timeout".to_owned(),
            (None, io::ErrorKind::UnexpectedEof) => "EOF".to_owned(),
            (None, _) => tls_error::explain(&self.error).unwrap_or_else(|| self.error.to_string()),
        }
    }
}

impl fmt::Display for ExchangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Operation { verb, network, local, remote } = self.operation;
        write!(f, "{verb} {network} ")?;
        if let Some(local) = local {
            write!(f, "{local}->")?;
        }
        write!(f, "{remote}: {}", self.reason())
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ForwardError {
    /// No upstream has answered in time, or none is reachable; has the text of the last error.
    #[error("{0}")]
    NoAnswer(Arc<str>),
    /// No upstream has answered in time. The look-up of a client's query continues, that of a check has ended.
    #[error("no upstream has answered yet")]
    Late,
    /// Too many look-ups are under way. The beginning of the text equals CoreDNS's.
    #[error("concurrent queries exceeded maximum {maximum}{}", share(*own))]
    Busy {
        maximum: usize,
        /// The number of look-ups that this client holds.
        own: usize,
    },
    /// No query was sent, because the limit of sockets is reached.
    #[error(
        "no socket to an upstream is free for this client (all sockets to upstreams: 60 % of RLIMIT_NOFILE)"
    )]
    NoSocket,
}

impl ForwardError {
    pub(crate) fn no_answer(why: impl Into<Arc<str>>) -> Self {
        Self::NoAnswer(why.into())
    }
}

/// Returns an addition to the text for a client that holds its full share of `own` look-ups; empty if `own` is 0.
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
    fn errors_read_as_in_coredns() {
        let address = |text: &str| text.parse::<SocketAddr>().unwrap();
        let (local, upstream) = (address("127.0.0.1:33482"), address("192.0.2.1:53"));
        let refused = || io::Error::from_raw_os_error(Errno::ECONNREFUSED as i32);
        for (error, text) in [
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
            assert_eq!(error.to_string(), text);
        }
    }

    #[test]
    fn connection_that_the_kernel_gives_up_is_no_timeout() {
        let dialing = Operation::dial("tcp", (std::net::Ipv4Addr::LOCALHOST, 53).into());
        let given_up = dialing.failed(io::Error::from_raw_os_error(Errno::ETIMEDOUT as i32));
        assert!(dialing.late().is_timeout() && !given_up.is_timeout());
        assert!(given_up.reason().starts_with("connect: "), "{}", given_up.reason());
    }
}
