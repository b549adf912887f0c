//! What lb-linker counts, and how it is shown to Prometheus.

pub mod sharded;
pub mod staleness;

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use prometheus::core::Collector;
use prometheus::process_collector::ProcessCollector;
use prometheus::{
    Encoder, Gauge, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry, TextEncoder,
};

use crate::model::link::State;
use crate::store::Store;
use staleness::Staleness;

/// Buckets for the duration of a reconcile, in seconds: 1 ms doubled 15 times, past the timeout of
/// a request.
const RECONCILE_BUCKETS: (f64, f64, usize) = (0.001, 2.0, 15);

/// What a look at a link has led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reconciled {
    /// Nothing had to be written.
    Unchanged,
    /// A write was made.
    Written,
    /// Something has to be written, and not yet: at the end of a delay or a pause, or when the
    /// watch has shown the object as it is now.
    Waiting,
    /// The object of the link's name isn't ours.
    Conflict,
    /// A write failed; it will be tried again.
    Failed,
}

impl Reconciled {
    const ALL: [Self; 5] = [Self::Unchanged, Self::Written, Self::Waiting, Self::Conflict, Self::Failed];

    fn label(self) -> &'static str {
        match self {
            Self::Unchanged => "unchanged",
            Self::Written => "written",
            Self::Waiting => "waiting",
            Self::Conflict => "conflict",
            Self::Failed => "failed",
        }
    }
}

/// Why a UDP question was dropped, or the answer to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dropped {
    /// Too many wait for an upstream.
    Busy,
    /// The kernel's queue was full.
    Queue,
    /// The kernel refused to send the answer: the send buffer was full, or there was no way to the client.
    Send,
    /// The client's address is unreachable: it gets one answer a second.
    Unreachable,
}

impl Dropped {
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

/// Metrics that belong together, and are shown from when they are first needed.
pub trait Family: Send + Sync + Sized + 'static {
    /// Registers them, all zero.
    ///
    /// # Errors
    /// If one of that name is there already.
    fn register(registry: &Registry) -> Result<Self, prometheus::Error>;
}

/// Registers a metric of a [`Family`].
///
/// # Errors
/// If it can't be one, or one of that name is there already.
pub fn registered<M: Collector + Clone + 'static>(
    registry: &Registry,
    metric: Result<M, prometheus::Error>,
) -> Result<M, prometheus::Error> {
    let metric = metric?;
    registry.register(Box::new(metric.clone()))?;
    Ok(metric)
}

/// The metrics of one process. Those of DNS bear CoreDNS's names and labels, so that its
/// dashboards work.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    families: Mutex<HashMap<TypeId, Arc<dyn Any + Send + Sync>>>,
    links: IntGaugeVec,
    /// Targets of links that changed.
    pub target_changes: IntCounter,
    /// Writes to the API server, by `verb`, `kind` and HTTP `code` (0: no answer).
    pub api_writes: IntCounterVec,
    /// Links whose external target's name is taken by an object that isn't ours.
    pub conflicts: IntGauge,
    /// External targets whose Service is gone and that lb-linker hasn't written.
    pub orphans: IntGauge,
    objects_of_others: IntGauge,
    names_lost: IntGauge,
    targets_refused: IntGauge,
    /// External targets whose removal is held back because there are too many at once.
    pub deletes_held: IntGauge,
    /// External targets that stay although a flag leaves their Services out, by `flag`.
    pub left_out: IntGaugeVec,
    /// Kubernetes Events that were dropped.
    pub events_dropped: IntCounter,
    reconciles: IntCounterVec,
    reconcile_duration: Histogram,
    watch_events: IntCounter,
    watch_last_event: Gauge,
    /// When each watch has heard something last.
    pub staleness: Staleness,
    /// 1 while this process may write external targets.
    pub leader: IntGauge,
    /// Sync tasks that ended and were started again, by `task`.
    pub sync_restarts: IntCounterVec,
    /// Targets, by name and type, whose last look-up has failed.
    pub targets_failing: IntGauge,
    /// Answers of earlier times that were given because no upstream answered.
    pub stale_answers: IntCounter,
    /// TCP connections that were refused because there were too many.
    pub tcp_refused: IntCounter,
    /// Idle TCP connections that were closed because there were too many.
    pub tcp_evicted: IntCounter,
    /// TCP questions that failed because too many wait for an upstream.
    pub tcp_busy: IntCounter,
    /// TCP connections that were closed because too many big answers aren't read.
    pub tcp_unread: IntCounter,
    /// UDP questions that were dropped, by `reason`: see [`Dropped`].
    udp_dropped: IntCounterVec,
}

impl Metrics {
    /// Returns the metrics of this process, all zero.
    ///
    /// # Errors
    /// Only if two of them had one name.
    pub fn new() -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        let reconcile_buckets =
            prometheus::exponential_buckets(RECONCILE_BUCKETS.0, RECONCILE_BUCKETS.1, RECONCILE_BUCKETS.2)?;
        let metrics = Self {
            links: IntGaugeVec::new(Opts::new("lb_linker_links", "Links by state."), &["state"])?,
            target_changes: IntCounter::new("lb_linker_target_changes_total", "Changes of links' targets.")?,
            api_writes: IntCounterVec::new(
                Opts::new("lb_linker_api_writes_total", "Writes to the API server."),
                &["verb", "kind", "code"],
            )?,
            conflicts: IntGauge::new(
                "lb_linker_conflicts",
                "Links whose external target's name is taken by an object that this installation doesn't manage.",
            )?,
            orphans: IntGauge::new(
                "lb_linker_orphans",
                "External targets with lb-linker's labels that it hasn't written and whose load balancer is gone, \
                 recreated without a target, or not selected.",
            )?,
            objects_of_others: IntGauge::new(
                "lb_linker_objects_of_other_instances",
                "External targets and EndpointSlices in the target namespace that belong to other lb-linker instances.",
            )?,
            names_lost: IntGauge::new(
                "lb_linker_names_lost",
                "Links without a name that they would have, because another link has it.",
            )?,
            targets_refused: IntGauge::new(
                "lb_linker_targets_refused",
                "Links whose Service names a target that isn't followed.",
            )?,
            deletes_held: IntGauge::new(
                "lb_linker_deletes_held",
                "External targets whose removal is held back because there are too many at once.",
            )?,
            left_out: IntGaugeVec::new(
                Opts::new(
                    "lb_linker_left_out",
                    "External targets that stay until --max-deletes is given, although a flag leaves their Services out.",
                ),
                &["flag"],
            )?,
            events_dropped: IntCounter::new(
                "lb_linker_events_dropped_total",
                "Kubernetes Events that were dropped: too many, refused, or not answered.",
            )?,
            reconciles: IntCounterVec::new(
                Opts::new("lb_linker_reconciles_total", "Looks at links, by what they have led to."),
                &["result"],
            )?,
            reconcile_duration: Histogram::with_opts(
                HistogramOpts::new(
                    "lb_linker_reconcile_duration_seconds",
                    "Seconds from a look at a link to the answer to the write that it led to, if any.",
                )
                .buckets(reconcile_buckets),
            )?,
            staleness: Staleness::register(&registry)?,
            watch_last_event: Gauge::new(
                "lb_linker_watch_last_event_timestamp_seconds",
                "Unix time of the last event from the watch of LoadBalancer Services.",
            )?,
            leader: IntGauge::new("lb_linker_leader", "1 while this instance leads: it alone writes.")?,
            watch_events: IntCounter::new(
                "lb_linker_watch_events_total",
                "Events from the watch of LoadBalancer Services.",
            )?,
            sync_restarts: IntCounterVec::new(
                Opts::new("lb_linker_sync_restarts_total", "Sync tasks that ended and were started again."),
                &["task"],
            )?,
            targets_failing: IntGauge::new(
                "lb_linker_dns_targets_failing",
                "Targets, by name and type, that can't be resolved: their last look-up has failed.",
            )?,
            stale_answers: IntCounter::new(
                "lb_linker_dns_stale_answers_total",
                "Last known addresses that were given because no upstream answered.",
            )?,
            tcp_refused: IntCounter::new(
                "lb_linker_dns_tcp_refused_total",
                "TCP connections that were refused because there were too many.",
            )?,
            tcp_evicted: IntCounter::new(
                "lb_linker_dns_tcp_evicted_total",
                "Idle TCP connections that were closed because there were too many.",
            )?,
            tcp_busy: IntCounter::new(
                "lb_linker_dns_tcp_busy_total",
                "TCP questions that failed because too many wait for an upstream.",
            )?,
            tcp_unread: IntCounter::new(
                "lb_linker_dns_tcp_unread_total",
                "TCP connections that were closed because too many big answers aren't read.",
            )?,
            udp_dropped: IntCounterVec::new(
                Opts::new(
                    "lb_linker_dns_udp_dropped_total",
                    "UDP questions without an answer: too many wait for an upstream (busy), the kernel's queue was full (queue), \
                     the kernel refused the answer (send), or the client is unreachable (unreachable).",
                ),
                &["reason"],
            )?,
            registry,
            families: Mutex::default(),
        };
        let build = IntGaugeVec::new(Opts::new("lb_linker_build_info", "Always 1."), &["version"])?;
        build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1);
        let registry = &metrics.registry;
        registry.register(Box::new(build))?;
        registry.register(Box::new(ProcessCollector::for_self()))?;
        registry.register(Box::new(metrics.links.clone()))?;
        registry.register(Box::new(metrics.target_changes.clone()))?;
        registry.register(Box::new(metrics.api_writes.clone()))?;
        registry.register(Box::new(metrics.conflicts.clone()))?;
        registry.register(Box::new(metrics.orphans.clone()))?;
        registry.register(Box::new(metrics.objects_of_others.clone()))?;
        registry.register(Box::new(metrics.names_lost.clone()))?;
        registry.register(Box::new(metrics.targets_refused.clone()))?;
        registry.register(Box::new(metrics.deletes_held.clone()))?;
        registry.register(Box::new(metrics.left_out.clone()))?;
        registry.register(Box::new(metrics.events_dropped.clone()))?;
        registry.register(Box::new(metrics.reconciles.clone()))?;
        for result in Reconciled::ALL {
            metrics.reconciles.with_label_values(&[result.label()]);
        }
        registry.register(Box::new(metrics.reconcile_duration.clone()))?;
        registry.register(Box::new(metrics.leader.clone()))?;
        registry.register(Box::new(metrics.watch_events.clone()))?;
        registry.register(Box::new(metrics.watch_last_event.clone()))?;
        registry.register(Box::new(metrics.sync_restarts.clone()))?;
        registry.register(Box::new(metrics.targets_failing.clone()))?;
        registry.register(Box::new(metrics.stale_answers.clone()))?;
        registry.register(Box::new(metrics.tcp_refused.clone()))?;
        registry.register(Box::new(metrics.tcp_evicted.clone()))?;
        registry.register(Box::new(metrics.tcp_busy.clone()))?;
        registry.register(Box::new(metrics.tcp_unread.clone()))?;
        registry.register(Box::new(metrics.udp_dropped.clone()))?;
        for reason in Dropped::ALL {
            metrics.udp_dropped.with_label_values(&[reason.label()]);
        }
        Ok(metrics)
    }

    /// Returns metrics that belong together; all who ask get the same.
    ///
    /// # Errors
    /// Only if two metrics had one name.
    pub fn family<F: Family>(&self) -> Result<Arc<F>, prometheus::Error> {
        let mut families = self.families.lock();
        let known = families.get(&TypeId::of::<F>()).cloned();
        if let Some(family) = known.and_then(|family| family.downcast().ok()) {
            return Ok(family);
        }
        let family = Arc::new(F::register(&self.registry)?);
        families.insert(TypeId::of::<F>(), Arc::clone(&family) as Arc<dyn Any + Send + Sync>);
        Ok(family)
    }

    /// Counts an event of the watch of LoadBalancer Services.
    pub fn watched(&self) {
        self.watch_events.inc();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.watch_last_event.set(now.as_secs_f64());
    }

    /// Sets how many objects of the target namespace belong to other instances.
    pub fn set_objects_of_others(&self, number: usize) {
        self.objects_of_others.set(i64::try_from(number).unwrap_or(i64::MAX));
    }

    /// Counts a look at a link that was begun at `since` and has ended now.
    pub fn reconciled(&self, result: Reconciled, since: Instant) {
        self.reconciles.with_label_values(&[result.label()]).inc();
        self.reconcile_duration.observe(since.elapsed().as_secs_f64());
    }

    /// Counts UDP questions that were dropped.
    pub fn dropped(&self, reason: Dropped, number: u32) {
        self.udp_dropped.with_label_values(&[reason.label()]).inc_by(number.into());
    }

    /// Returns the page that Prometheus scrapes, in its text format 0.0.4.
    ///
    /// # Errors
    /// If a metric can't be written, which only a defect of ours can cause.
    pub fn render(&self, store: &Arc<Store>) -> Result<String, prometheus::Error> {
        let mut count = [("live", 0), ("pending", 0), ("stale", 0), ("left_out", 0), ("gone", 0)];
        let (mut refused, mut lost) = (0, 0);
        for link in store.links() {
            refused += i64::from(link.refused);
            lost += i64::from(link.lacks_a_name());
            let state = match (link.state, &link.target) {
                (State::Live | State::Recreated(_), Some(_)) => 0,
                (State::Live | State::Recreated(_), None) => 1,
                (State::Stale, _) => 2,
                (State::LeftOut, _) => 3,
                (State::Gone(_), _) => 4,
            };
            count[state].1 += 1;
        }
        self.targets_refused.set(refused);
        self.staleness.show();
        self.names_lost.set(lost);
        for (state, number) in count {
            self.links.with_label_values(&[state]).set(number);
        }
        let mut page = Vec::new();
        TextEncoder::new().encode(&self.registry.gather(), &mut page)?;
        String::from_utf8(page).map_err(|error| prometheus::Error::Msg(error.to_string()))
    }
}
