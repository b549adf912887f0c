//! Tests of the controller with an API server stub that refuses everything.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use super::*;
use crate::store::OnGone;
use crate::sync::k8s::labels::SOURCE;
use crate::sync::k8s::watch::Event;
use crate::sync::test_support;

/// Returns a context with a stub that refuses everything, and the number of its requests.
fn refused() -> (SourceAnnotationContext, Arc<AtomicUsize>) {
    let (client, requests) = test_support::refusing(403, "Forbidden", "services is forbidden: no");
    (settings(client), requests)
}

fn settings(client: Client) -> SourceAnnotationContext {
    let leadership = Leadership::always();
    let lists = LinkLists::new(&BTreeSet::new(), ListEpoch { term: leadership.term(), rewinds: 0 });
    let settings = SourceAnnotationContext {
        store: Arc::new(Store::new(OnGone::Kept)),
        client,
        availability: ApiAvailability::default(),
        selection: Arc::default(),
        policy: test_support::policy(None),
        hostname_policy: watch::Sender::new(Arc::default()).subscribe(),
        news: test_support::news(),
        api: test_support::metrics(),
        staleness: test_support::metrics(),
        links_listed: watch::Sender::new(lists).subscribe(),
        rewinds: Rewinds::default(),
        leadership,
    };
    settings.store.set_synced();
    settings
}

fn load_balancer(settings: &SourceAnnotationContext, namespace: &str) {
    let web = service(json!({
        "metadata": {"namespace": namespace, "name": "web", "uid": "web"},
        "spec": {"type": "LoadBalancer"},
        "status": {"loadBalancer": {"ingress": [{"hostname": "cloud.example"}]}},
    }));
    settings.store.apply(web.observe(&Arc::default(), &settings.store).0);
}

fn follower(namespace: &str, name: &str, source: &str) -> Value {
    json!({
        "metadata": {"namespace": namespace, "name": name, "uid": name, "resourceVersion": "5",
            "annotations": {SOURCE: source}},
        "spec": {"type": "ExternalName", "externalName": "old.example"},
    })
}

/// Sends a complete list of a scope, twice: the first one shows that the annotation is used.
fn list(following: &mut SourceAnnotationController, number: usize, followers: &[Value]) {
    for _ in 0..2 {
        following.heed(number, Ok(Event::ListBegins));
        for follower in followers {
            let object = serde_json::from_str(&follower.to_string()).unwrap();
            following.heed(number, Ok(Event::Listed(object)));
        }
        following.heed(number, Ok(Event::ListEnds { version: None, rewound: false }));
    }
}

#[tokio::test(start_paused = true)]
async fn forbidden_list_is_retried_rarely_without_annotations() {
    let (settings, requests) = refused();
    let hours = |number: u64| Duration::from_secs(3600 * number);
    let run = async |settings: SourceAnnotationContext, span| {
        assert!(tokio::time::timeout(span, run(settings, CancellationToken::new())).await.is_err());
        requests.swap(0, Ordering::Relaxed)
    };
    let first = run(settings.clone(), hours(1)).await;
    let all = run(settings, hours(10)).await;
    // The first minute has many requests, as an API server that is starting refuses for a moment.
    assert!((8..40).contains(&first), "{first} in an hour");
    assert!((6 * 9..first + 6 * 9 + 3).contains(&all), "{all} in ten hours, {first} in the first one");
}

fn service(value: Value) -> Service {
    serde_json::from_value(value).unwrap()
}

#[tokio::test(start_paused = true)]
async fn panic_affects_only_its_service() {
    let (settings, requests) = refused();
    load_balancer(&settings, "shop");
    let lists = ListEpoch { term: settings.leadership.term(), rewinds: 0 };
    let mut following = SourceAnnotationController::new(settings, CrossTermState::default(), lists);
    list(&mut following, 0, &["before", "defect", "zafter"].map(|name| follower("shop", name, "web")));
    let key = ServiceKey::new("shop", "defect");
    crate::sync::external_target::reconciler::defect::choose(key.clone());
    following.drain_queue();
    assert_eq!(following.writes.len(), 2);
    while let Some(written) = following.writes.join_next().await {
        following.written(written.unwrap());
    }
    assert_eq!(requests.load(Ordering::Relaxed), 2);
    assert!(following.work_queue.is_backing_off(&key), "the next try comes later");
}

/// Returns a controller for the namespaces `a` and `b`, with a load balancer in each.
fn following_two() -> SourceAnnotationController {
    let (mut settings, _) = refused();
    let namespaces: BTreeSet<String> = ["a", "b"].map(ToOwned::to_owned).into();
    settings.selection = Arc::new(Selection { namespaces, ..Selection::default() });
    load_balancer(&settings, "a");
    load_balancer(&settings, "b");
    let lists = ListEpoch { term: settings.leadership.term(), rewinds: 0 };
    SourceAnnotationController::new(settings, CrossTermState::default(), lists)
}

#[tokio::test(start_paused = true)]
async fn services_wait_for_the_list_of_their_load_balancer() {
    let mut following = following_two();
    let (namespaces, now) = (&following.settings.selection.namespaces, following.lists);
    let mut lists = LinkLists::new(namespaces, now);
    lists.note(Some("b"), ListEpoch { term: now.term + 1, rewinds: 0 }, true);
    lists.note(Some("b"), now, false);
    let links_listed = watch::Sender::new(lists.clone());
    following.settings.links_listed = links_listed.subscribe();
    list(&mut following, 0, &[follower("a", "db", "web")]);
    list(&mut following, 1, &[follower("b", "db", "web")]);
    following.drain_queue();
    assert_eq!(following.work_queue.in_flight(), [ServiceKey::new("a", "db")]);
    lists.note(Some("b"), now, true);
    links_listed.send_replace(lists);
    following.queue_all();
    following.drain_queue();
    assert_eq!(following.writes.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn services_listed_before_a_restore_arent_written() {
    for by_own_watch in [true, false] {
        let mut following = following_two();
        list(&mut following, 0, &[follower("a", "db", "web")]);
        list(&mut following, 1, &[]);
        if by_own_watch {
            following.heed(1, Ok(Event::ListEnds { version: Some(3), rewound: true }));
        } else {
            following.settings.rewinds.note("load balancers");
        }
        assert_eq!(following.settings.rewinds.count(), 1);
        following.drain_queue();
        assert!(following.writes.is_empty() && !following.is_current());
    }
}

#[tokio::test(start_paused = true)]
async fn services_are_listed_again_after_a_restore() {
    let (mut settings, requests) = refused();
    let at =
        |rewinds| LinkLists::new(&BTreeSet::new(), ListEpoch { term: settings.leadership.term(), rewinds });
    let (restored, links_listed) = (at(1), watch::Sender::new(at(0)));
    settings.links_listed = links_listed.subscribe();
    let rewinds = settings.rewinds.clone();
    let asked = async |span| {
        tokio::time::sleep(Duration::from_secs(span)).await;
        requests.swap(0, Ordering::Relaxed)
    };
    let test = async {
        assert!(asked(90).await > 0);
        rewinds.note("load balancers");
        assert_eq!(asked(1200).await, 0, "the load balancers haven't been listed since");
        links_listed.send_replace(restored);
        assert!(asked(10).await > 0);
    };
    tokio::select! {
        _ = run(settings, CancellationToken::new()) => unreachable!(),
        () = test => {}
    }
}

#[tokio::test(start_paused = true)]
async fn services_dont_wait_for_the_list_of_another_namespace() {
    let mut following = following_two();
    list(&mut following, 0, &[follower("a", "db", "web")]);
    assert!(!following.followers.is_listed(1));
    following.drain_queue();
    assert_eq!(following.writes.len(), 1);
}
