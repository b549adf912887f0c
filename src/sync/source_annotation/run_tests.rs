//! The following against an API server in this process that refuses everything.

use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use super::*;
use crate::store::Departed;
use crate::sync::external_target::desired::SOURCE;
use crate::sync::k8s::watch::Event;
use crate::sync::test_support;

/// Returns what following needs, with an API server that refuses everything, and how often that was asked.
fn refused() -> (Settings, Arc<AtomicUsize>) {
    let (client, requests) = test_support::refusing(403, "Forbidden", "services is forbidden: no");
    let leadership = Leadership::always();
    let settings = Settings {
        store: Arc::new(Store::new(Departed::Kept)),
        client,
        outage: Outage::default(),
        selection: Arc::default(),
        policy: test_support::policy(None),
        news: test_support::news(),
        links_listed: watch::Sender::new(Listed { term: leadership.term(), rewinds: 0 }).subscribe(),
        leadership,
    };
    settings.store.set_synced();
    (settings, requests)
}

#[tokio::test(start_paused = true)]
async fn forbidden_list_of_an_unused_feature_is_seldom_retried() {
    let (settings, requests) = refused();
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

fn service(value: Value) -> Service {
    serde_json::from_value(value).unwrap()
}

#[tokio::test(start_paused = true)]
async fn panic_about_one_service_stops_no_other() {
    let (settings, requests) = refused();
    let web = service(json!({
        "metadata": {"namespace": "shop", "name": "web", "uid": "web"},
        "spec": {"type": "LoadBalancer"},
        "status": {"loadBalancer": {"ingress": [{"hostname": "cloud.example"}]}},
    }));
    settings.store.apply(web.observe(&Arc::default(), &settings.store).0);
    let term = settings.leadership.term();
    let mut following = Following::new(settings, Memory::default(), term);
    // The first list, of metadata, shows that the annotation is used.
    for _ in 0..2 {
        following.heed(0, Ok(Event::ListBegins));
        for name in ["before", "defect", "zafter"] {
            let object = json!({
                "metadata": {"namespace": "shop", "name": name, "uid": name, "annotations": {SOURCE: "web"}},
                "spec": {"type": "ExternalName", "externalName": "old.example"},
            });
            let object = serde_json::from_str(&object.to_string()).unwrap();
            following.heed(0, Ok(Event::Listed(object)));
        }
        following.heed(0, Ok(Event::ListEnds { version: None, rewound: false }));
    }
    let key = ServiceKey::new("shop", "defect");
    crate::sync::external_target::reconciler::defect::choose(key.clone());
    following.work();
    assert_eq!(following.writes.len(), 2);
    while let Some(written) = following.writes.join_next().await {
        following.written(written.unwrap());
    }
    assert_eq!(requests.load(Ordering::Relaxed), 2);
    assert!(following.pace.rests(&key), "the next try comes later");
}
