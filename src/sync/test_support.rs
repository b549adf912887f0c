//! Test support for several controllers: an API server stub, a policy, metrics, and a link reporter without Events.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::http::{Request, Response};
use kube::Client;
use kube::client::Body as Sent;
use serde_json::{Value, json};

use crate::metrics::{MetricGroup, Metrics};
use crate::sync::events::Recorder;
use crate::sync::events::link_log::LinkReporter;
use crate::sync::external_target::decision::{OnDelete, SyncMode, SyncPolicy};
use crate::sync::external_target::deletion_budget::MaxDeletes;
use crate::sync::external_target::desired::IpTargets;

/// Returns a client for an API server stub that answers each request with this HTTP code and JSON.
pub(crate) fn client(answer: impl Fn(&Request<Sent>) -> (u16, Value) + Send + Sync + 'static) -> Client {
    let service = tower::service_fn(move |request: Request<Sent>| {
        let (code, body) = answer(&request);
        let response = Response::builder().status(code).body(Body::from(body.to_string()));
        std::future::ready(Ok::<_, Infallible>(response.unwrap()))
    });
    Client::new(service, "default")
}

/// Returns a client for an API server stub that refuses every request with this status, and the number of requests so
/// far.
pub(crate) fn refusing(code: u16, reason: &str, message: &str) -> (Client, Arc<AtomicUsize>) {
    let requests = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&requests);
    let (code, body) = status(code, reason, message);
    let client = client(move |_| {
        counted.fetch_add(1, Ordering::Relaxed);
        (code, body.clone())
    });
    (client, requests)
}

/// Returns the code and the body of a failed request.
pub(crate) fn status(code: u16, reason: &str, message: &str) -> (u16, Value) {
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": code,
        "reason": reason, "message": message});
    (code, status)
}

/// Returns a policy with sync on, immediate and unlimited removals, and this instance, without finalizers and pruning.
pub(crate) fn policy(instance: Option<&str>) -> SyncPolicy {
    SyncPolicy {
        sync: SyncMode::On,
        on_delete: OnDelete::Delete,
        delete_delay: Duration::ZERO,
        withdrawal_delay: Duration::ZERO,
        finalizer: false,
        tombstone: "deleted.lb.internal".to_owned(),
        max_deletes: MaxDeletes::Unlimited,
        ip_targets: IpTargets::Headless,
        prune: false,
        instance: instance.map(ToOwned::to_owned),
    }
}

pub(crate) fn metrics<F: MetricGroup>() -> Arc<F> {
    Metrics::new().unwrap().group().unwrap()
}

/// Returns a link reporter that drops all Events.
pub(crate) fn link_reporter() -> LinkReporter {
    let (log, findings) = Default::default();
    LinkReporter { metrics: metrics(), recorder: Recorder::none(), log, findings }
}
