//! Metrics of StableNames.

use prometheus::{IntCounterVec, IntGaugeVec, Opts, Registry};

use crate::metrics::{MetricGroup, registered};
use crate::model::service_key::ServiceKey;

/// The labels of metrics of single StableNames.
const OBJECT: [&str; 2] = ["stable_name_namespace", "stable_name"];

#[derive(Debug)]
pub struct FailoverMetrics {
    /// All StableNames, by what they announce.
    pub(super) targets: IntGaugeVec,
    pub(super) checks: IntCounterVec,
    pub(super) switches: IntCounterVec,
    pub(super) ready: IntGaugeVec,
    pub(super) source: IntGaugeVec,
    pub(super) changes: IntCounterVec,
}

impl MetricGroup for FailoverMetrics {
    fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let gauges = |name: &str, help: &str, labels: &[&str]| {
            registered(registry, IntGaugeVec::new(Opts::new(name, help), labels))
        };
        let counters = |name: &str, help: &str, labels: &[&str]| {
            registered(registry, IntCounterVec::new(Opts::new(name, help), labels))
        };
        let targets = gauges(
            "lb_linker_stable_names",
            "StableNames by what their status announces: a verified target, an unverified one, or none.",
            &["state"],
        )?;
        let metrics = Self {
            targets,
            checks: counters(
                "lb_linker_stable_name_checks_total",
                "Checks of targets by the leader.",
                &["check", "result"],
            )?,
            switches: counters(
                "lb_linker_stable_name_switches_total",
                "Changes of announced targets by the leader.",
                &["reason"],
            )?,
            ready: gauges(
                "lb_linker_stable_name_ready",
                "Whether a StableName is Ready, as the leader sees it; for at most 1,000 of them.",
                &OBJECT,
            )?,
            source: gauges(
                "lb_linker_stable_name_source",
                "The place of the source in use in spec.sources, counted from 0; their number if it isn't one of them any more, \
                 and -1 without a target.",
                &OBJECT,
            )?,
            changes: counters(
                "lb_linker_stable_name_changes_total",
                "Changes of the announced target of a StableName.",
                &OBJECT,
            )?,
        };
        metrics.reset_targets();
        Ok(metrics)
    }
}

impl FailoverMetrics {
    /// Sets the numbers of StableNames to 0, before they are counted from a new list.
    pub(super) fn reset_targets(&self) {
        for state in ["verified", "unverified", "none"] {
            self.targets.with_label_values(&[state]).set(0);
        }
    }

    /// Sets the metrics of one StableName. `source` is the position of the source in use.
    pub(super) fn set(&self, key: &ServiceKey, is_ready: bool, source: Option<usize>) {
        let labels = [key.namespace(), key.name()];
        self.ready.with_label_values(&labels).set(is_ready.into());
        let source = source.and_then(|position| i64::try_from(position).ok()).unwrap_or(-1);
        self.source.with_label_values(&labels).set(source);
        self.changes.with_label_values(&labels).inc_by(0);
    }

    /// Counts a change of the announced target.
    pub(super) fn changed(&self, key: &ServiceKey) {
        self.changes.with_label_values(&[key.namespace(), key.name()]).inc();
    }

    /// Removes the metrics of a StableName that is gone, or that gets no metrics of its own any more.
    pub(super) fn remove(&self, key: &ServiceKey) {
        let labels = [key.namespace(), key.name()];
        let _ = self.ready.remove_label_values(&labels);
        let _ = self.source.remove_label_values(&labels);
        let _ = self.changes.remove_label_values(&labels);
    }

    /// Removes the metrics of all single StableNames: a term has begun or ended, or the controller starts.
    pub(super) fn reset(&self) {
        self.ready.reset();
        self.source.reset();
        self.changes.reset();
    }
}
