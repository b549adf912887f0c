//! The following against an API server in this process that doesn't let anything be listed.

use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::http::{Request, Response, StatusCode};
use kube::client::Body;
use serde_json::json;

use super::*;
use crate::metrics::Metrics;
use crate::store::Departed;
use crate::sync::brakes::MaxDeletes;
use crate::sync::desired::IpTargets;
use crate::sync::events::Recorder;
use crate::sync::plan::OnDelete;
use crate::sync::service_log::ServiceLog;

#[tokio::test(start_paused = true)]
async fn forbidden_list_of_an_unused_feature_is_seldom_retried() {
    let requests = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&requests);
    let service = tower::service_fn(move |_: Request<Body>| {
        counted.fetch_add(1, Ordering::Relaxed);
        let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": 403,
            "reason": "Forbidden", "message": "services is forbidden: no"});
        let mut response = Response::new(axum::body::Body::from(status.to_string()));
        *response.status_mut() = StatusCode::FORBIDDEN;
        std::future::ready(Ok::<_, Infallible>(response))
    });
    let leadership = Leadership::always();
    let settings = Settings {
        store: Arc::new(Store::new(Departed::Kept)),
        client: Client::new(service, "default"),
        outage: Outage::default(),
        selection: Arc::default(),
        policy: Policy {
            sync: SyncMode::On,
            on_delete: OnDelete::Delete,
            delete_delay: Duration::ZERO,
            finalizer: false,
            tombstone: "deleted.lb.internal".to_owned(),
            max_deletes: MaxDeletes::Unlimited,
            ip_targets: IpTargets::Headless,
            prune: false,
            instance: None,
        },
        news: News {
            metrics: Arc::new(Metrics::new().unwrap()),
            recorder: Recorder::none(),
            log: ServiceLog::default(),
        },
        links_listed: watch::Sender::new(Listed { term: leadership.term(), rewinds: 0 }).subscribe(),
        leadership,
    };
    settings.store.set_synced();
    let hours = |number: u64| Duration::from_secs(3600 * number);
    let run = async |settings: Settings, span| {
        assert!(tokio::time::timeout(span, run(settings, CancellationToken::new())).await.is_err());
        requests.swap(0, Ordering::Relaxed)
    };
    let first = run(settings.clone(), hours(1)).await;
    let all = run(settings, hours(10)).await;
    // Within a minute often: an API server that starts refuses for a moment.
    assert!((8..40).contains(&first), "{first} in an hour");
    assert!((6 * 9..first + 6 * 9 + 3).contains(&all), "{all} in ten hours, {first} in the first one");
}
