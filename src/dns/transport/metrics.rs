//! Metrics of clients' connections and datagrams.

use std::fmt::Display;
use std::net::SocketAddr;
use std::time::Instant;

use parking_lot::Mutex;
use prometheus::{IntCounter, IntCounterVec, Opts, Registry};
use tracing::warn;

use crate::metrics::{MetricGroup, registered};
use crate::model::line_limit::LineLimit;

/// The reason why a UDP query or its answer was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropReason {
    /// Too many queries wait for an upstream, or for the full handler: all clients' queries or those of this client.
    Busy,
    /// The receive buffer of the kernel was full.
    Queue,
    /// The kernel refused to send the answer: the send buffer was full, or there was no route to the client.
    Send,
    /// The client's address is unreachable, and gets only one answer per second; or the address isn't in the neighbor
    /// table, and the send buffer has no room for an answer that may stay in it.
    Unreachable,
}

/// The labels of the reasons, in their order.
const REASONS: [&str; 4] = ["busy", "queue", "send", "unreachable"];

#[derive(Debug)]
pub struct TransportMetrics {
    pub connections_refused: IntCounter,
    pub connections_evicted: IntCounter,
    pub connections_busy: IntCounter,
    pub connections_unread: IntCounter,
    /// UDP queries for which no kept answer was current.
    pub udp_computed: IntCounter,
    /// UDP queries that were dropped, by `reason`: see [`DropReason`].
    udp_dropped: IntCounterVec,
    drop_log: Mutex<DropLog>,
    refused_headers: IntCounter,
    header_log: Mutex<LineLimit>,
}

/// The UDP queries that were dropped since the last warning, by the first three reasons. Forged source addresses cause
/// the drops for the last one; they don't mean that there are too many queries.
#[derive(Debug, Default)]
struct DropLog {
    numbers: [u64; 3],
    warnings: LineLimit,
}

impl DropLog {
    /// Counts dropped queries, and returns the text of a warning if one is due.
    fn add(&mut self, reason: DropReason, number: u32, now: Instant) -> Option<String> {
        *self.numbers.get_mut(reason as usize)? += u64::from(number);
        self.warnings.take(now)?;
        let [busy, queue, send] = std::mem::take(&mut self.numbers);
        Some(format!(
            "UDP: queries dropped since the last such line: {queue} because the kernel's receive queue was full, {busy} \
             because too many wait to be answered, {send} because the kernel refused to send the answer"
        ))
    }
}

impl MetricGroup for TransportMetrics {
    fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let counter = |name, help| registered(registry, IntCounter::new(name, help));
        let dropped = Opts::new(
            "lb_linker_dns_udp_dropped_total",
            "UDP queries without an answer: too many wait for an upstream (busy), the kernel's queue was full (queue), \
             the kernel refused the answer (send), or the client is unreachable (unreachable).",
        );
        let metrics = Self {
            connections_refused: counter(
                "lb_linker_dns_connections_refused_total",
                "Connections by TCP or QUIC that were refused because there were too many.",
            )?,
            connections_evicted: counter(
                "lb_linker_dns_connections_evicted_total",
                "Idle connections by TCP or QUIC that were closed because there were too many.",
            )?,
            connections_busy: counter(
                "lb_linker_dns_connections_busy_total",
                "Queries by TCP or QUIC that failed because too many wait for an upstream.",
            )?,
            connections_unread: counter(
                "lb_linker_dns_connections_unread_total",
                "Connections by TCP or QUIC that were closed because too many big answers aren't read.",
            )?,
            udp_computed: counter(
                "lb_linker_dns_udp_computed_total",
                "UDP queries for which no kept answer was current, so that the plugins made the answer.",
            )?,
            udp_dropped: registered(registry, IntCounterVec::new(dropped, &["reason"]))?,
            drop_log: Mutex::default(),
            refused_headers: counter(
                "lb_linker_dns_proxy_headers_refused_total",
                "Connections and UDP datagrams that were dropped because of their PROXY header.",
            )?,
            header_log: Mutex::default(),
        };
        for reason in REASONS {
            metrics.udp_dropped.with_label_values(&[reason]);
        }
        Ok(metrics)
    }
}

impl TransportMetrics {
    pub fn dropped(&self, reason: DropReason, number: u32) {
        self.udp_dropped.with_label_values(&[REASONS[reason as usize]]).inc_by(number.into());
        let warning = self.drop_log.lock().add(reason, number, Instant::now());
        if let Some(warning) = warning {
            warn!("{warning}");
        }
    }

    /// Counts a connection or datagram that is dropped because of its PROXY header.
    pub fn refused_header(&self, sender: SocketAddr, why: impl Display) {
        self.refused_headers.inc();
        if let Some(omitted) = self.header_log.lock().take(Instant::now()) {
            warn!(
                "proxyproto: connections and datagrams dropped because of their PROXY header since the last such line: \
                 {}; the newest is of {sender}: {why}",
                omitted + 1
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const LOG_INTERVAL: Duration = Duration::from_secs(60);

    #[test]
    fn drops_are_logged_once_a_minute_with_their_number() {
        let (mut log, start) = (DropLog::default(), Instant::now());
        assert_eq!(log.add(DropReason::Unreachable, 9, start), None);
        let first = log.add(DropReason::Queue, 3, start).unwrap();
        assert!(first.contains("3 because the kernel's receive queue was full, 0 because"), "{first}");
        assert_eq!(log.add(DropReason::Queue, 4, start + LOG_INTERVAL / 2), None);
        assert_eq!(log.add(DropReason::Busy, 5, start + LOG_INTERVAL / 2), None);
        let next = log.add(DropReason::Send, 1, start + LOG_INTERVAL).unwrap();
        assert!(next.contains("4 because the kernel's receive queue was full, 5 because too many"), "{next}");
        assert!(next.contains("answered, 1 because the kernel refused"), "{next}");
    }

    #[test]
    fn each_reason_counts_under_its_own_label() {
        let metrics = TransportMetrics::register(&Registry::new()).unwrap();
        for (number, (reason, label)) in (1..).zip([
            (DropReason::Busy, "busy"),
            (DropReason::Queue, "queue"),
            (DropReason::Send, "send"),
            (DropReason::Unreachable, "unreachable"),
        ]) {
            metrics.dropped(reason, number);
            assert_eq!(metrics.udp_dropped.with_label_values(&[label]).get(), u64::from(number), "{label}");
        }
    }
}
