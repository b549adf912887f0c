//! The timeouts and limits for connections.

use std::time::Duration;

/// The maximum size of a query in bytes, by TCP, TLS and QUIC.
pub(in crate::dns::transport) const MAX_QUERY_BYTES: u16 = 4096;
/// How long a zone transfer may take: a client that reads a little in each write timeout would keep its place for
/// hours.
pub(in crate::dns::transport) const TRANSFER_TIMEOUT: Duration = Duration::from_mins(15);
/// The minimum pause after each message of a zone transfer.
const MIN_TRANSFER_PAUSE: Duration = Duration::from_millis(1);
/// How many times as long as the encoding of a message the pause after it is: otherwise a few transfers would take all
/// cores from the threads that answer by UDP.
const PAUSE_FACTOR: u32 = 3;

/// Returns the pause after a message of a zone transfer that took `encoding`.
pub(in crate::dns::transport) fn transfer_pause(encoding: Duration) -> Duration {
    MIN_TRANSFER_PAUSE.max(encoding * PAUSE_FACTOR)
}

/// The timeouts and limits for connections of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// The timeout for the rest of a partial query, and for a TLS handshake.
    pub read: Duration,
    /// The timeout for the client to read answers.
    pub write: Duration,
    /// The timeout between queries (RFC 7766 section 6.2.3).
    pub idle: Duration,
    /// The maximum number of queries on one connection.
    pub queries: u64,
}

/// The timeouts and limits that a block sets; `None` leaves a limit unchanged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timeouts {
    /// For a client to send the rest of a partial query, and for a TLS handshake.
    pub read: Option<Duration>,
    /// For a client to read an answer.
    pub write: Option<Duration>,
    /// Between queries.
    pub idle: Option<Duration>,
    /// The number of queries on one connection; `u64::MAX` means no limit.
    pub queries: Option<u64>,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        let io_timeout = Duration::from_secs(5);
        Self { read: io_timeout, write: io_timeout, idle: Duration::from_secs(30), queries: u64::MAX }
    }
}

impl ConnectionLimits {
    /// Returns these limits, overridden by the limits that a block sets.
    #[must_use]
    pub fn with(self, timeouts: Timeouts) -> Self {
        Self {
            read: timeouts.read.unwrap_or(self.read),
            write: timeouts.write.unwrap_or(self.write),
            idle: timeouts.idle.unwrap_or(self.idle),
            queries: timeouts.queries.unwrap_or(self.queries),
        }
    }

    /// Returns TCP_USER_TIMEOUT in milliseconds: twice the write timeout, so that lb-linker closes the connection
    /// before the kernel does.
    pub(in crate::dns::transport) fn tcp_user_timeout_ms(&self) -> u32 {
        u32::try_from((2 * self.write).as_millis()).unwrap_or(u32::MAX)
    }
}
