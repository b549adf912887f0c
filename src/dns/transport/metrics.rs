//! Metrics of clients' connections and datagrams.

use prometheus::{IntCounter, IntCounterVec, Opts, Registry};

use crate::metrics::{MetricGroup, registered};

/// The reason why a UDP query or its answer was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DropReason {
    /// Too many queries wait for an upstream.
    Busy,
    /// The receive buffer of the kernel was full.
    Queue,
    /// The kernel refused to send the answer: the send buffer was full, or there was no route to the client.
    Send,
    /// The client's address is unreachable, so it gets only one answer per second.
    Unreachable,
}

impl DropReason {
    const ALL: [Self; 4] = [Self::Busy, Self::Queue, Self::Send, Self::Unreachable];

    fn label(self) -> &'static str {
        match self {
            Self::Busy => "busy",
            Self::Queue => "queue",
            Self::Send => "send",
            Self::Unreachable => "unreachable",
        }
    }
}

#[derive(Debug)]
pub struct TransportMetrics {
    pub tcp_refused: IntCounter,
    pub tcp_evicted: IntCounter,
    pub tcp_busy: IntCounter,
    pub tcp_unread: IntCounter,
    /// UDP queries that were dropped, by `reason`: see [`DropReason`].
    udp_dropped: IntCounterVec,
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
            tcp_refused: counter(
                "lb_linker_dns_tcp_refused_total",
                "TCP connections that were refused because there were too many.",
            )?,
            tcp_evicted: counter(
                "lb_linker_dns_tcp_evicted_total",
                "Idle TCP connections that were closed because there were too many.",
            )?,
            tcp_busy: counter(
                "lb_linker_dns_tcp_busy_total",
                "TCP queries that failed because too many wait for an upstream.",
            )?,
            tcp_unread: counter(
                "lb_linker_dns_tcp_unread_total",
                "TCP connections that were closed because too many big answers aren't read.",
            )?,
            udp_dropped: registered(registry, IntCounterVec::new(dropped, &["reason"]))?,
        };
        for reason in DropReason::ALL {
            metrics.udp_dropped.with_label_values(&[reason.label()]);
        }
        Ok(metrics)
    }
}

impl TransportMetrics {
    pub fn dropped(&self, reason: DropReason, number: u32) {
        self.udp_dropped.with_label_values(&[reason.label()]).inc_by(number.into());
    }
}
