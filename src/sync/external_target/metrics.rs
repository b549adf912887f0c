use std::time::Instant;

use prometheus::{Histogram, HistogramOpts, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry};

use crate::metrics::{MetricGroup, registered};

/// The first bucket for the duration of a reconciliation in seconds, the factor, and the number of buckets: up to 16 s,
/// beyond the timeout of a request.
const RECONCILE_BUCKETS: (f64, f64, usize) = (0.001, 2.0, 15);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReconcileResult {
    Unchanged,
    Written,
    /// A write is needed, but isn't made now: because of a delay, a backoff, a limit or `--sync plan`, because another
    /// replica leads, or because the watch hasn't delivered the object's present state. Or the external target is kept,
    /// because a flag leaves its Service out or its namespace can't be listed.
    Waiting,
    /// An object that has the name of the external target or of an EndpointSlice isn't ours.
    Conflict,
    /// A write failed and will be retried.
    Failed,
}

impl ReconcileResult {
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

#[derive(Debug)]
pub struct ReconcilerMetrics {
    /// Links that can't be written because a foreign object has the name of their external target or EndpointSlice, or
    /// such an object has a higher term than this process.
    pub conflicts: IntGauge,
    /// Orphans: external targets that lb-linker has never written and that belong to no selected Service.
    pub orphans: IntGauge,
    /// External targets with a removal held back by the deletion budget.
    pub deletes_held: IntGauge,
    /// External targets that stay although a flag leaves their Services out, by `flag`.
    pub left_out: IntGaugeVec,
    objects_of_others: IntGauge,
    reconciles: IntCounterVec,
    reconcile_duration: Histogram,
}

impl MetricGroup for ReconcilerMetrics {
    fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let gauge = |name, help| registered(registry, IntGauge::new(name, help));
        let (first, factor, number) = RECONCILE_BUCKETS;
        let left_out = Opts::new(
            "lb_linker_left_out",
            "External targets that stay until --max-deletes is given, although a flag leaves their Services out.",
        );
        let reconciles = Opts::new("lb_linker_reconciles_total", "Reconciliations of links, by result.");
        let duration = HistogramOpts::new(
            "lb_linker_reconcile_duration_seconds",
            "Duration of the reconciliation of a link in seconds, including its write, if any.",
        )
        .buckets(prometheus::exponential_buckets(first, factor, number)?);
        let metrics = Self {
            conflicts: gauge(
                "lb_linker_conflicts",
                "Links whose external target's name is taken by an object that this installation doesn't manage, or whose \
                 external target a second lb-linker without an election has written.",
            )?,
            orphans: gauge(
                "lb_linker_orphans",
                "External targets with lb-linker's labels that it hasn't written and whose load balancer is gone, \
                 recreated without a target, or not selected.",
            )?,
            deletes_held: gauge(
                "lb_linker_deletes_held",
                "External targets whose removal is held back because there are too many at once.",
            )?,
            left_out: registered(registry, IntGaugeVec::new(left_out, &["flag"]))?,
            objects_of_others: gauge(
                "lb_linker_objects_of_other_instances",
                "External targets and EndpointSlices in the target namespace that belong to other lb-linker instances.",
            )?,
            reconciles: registered(registry, IntCounterVec::new(reconciles, &["result"]))?,
            reconcile_duration: registered(registry, Histogram::with_opts(duration))?,
        };
        for result in ReconcileResult::ALL {
            metrics.reconciles.with_label_values(&[result.label()]);
        }
        Ok(metrics)
    }
}

impl ReconcilerMetrics {
    /// Sets the number of objects in the target namespace that belong to other instances.
    pub fn set_objects_of_others(&self, number: usize) {
        self.objects_of_others.set(i64::try_from(number).unwrap_or(i64::MAX));
    }

    #[cfg(test)]
    pub(crate) fn count(&self, result: ReconcileResult) -> u64 {
        self.reconciles.with_label_values(&[result.label()]).get()
    }

    /// Counts a reconciliation that began at `since` and has ended now.
    pub fn reconciled(&self, result: ReconcileResult, since: Instant) {
        self.reconciles.with_label_values(&[result.label()]).inc();
        self.reconcile_duration.observe(since.elapsed().as_secs_f64());
    }
}
