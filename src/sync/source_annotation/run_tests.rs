//! Tests of the controller with an API server stub that refuses everything.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};

use hickory_proto::rr::Name;
use serde_json::{Value, json};

use super::*;
use crate::model::hostname::Hostname;
use crate::model::link::Target;
use crate::model::link_override::{Announcement, LinkOverride};
use crate::store::{Input, OnGone};
use crate::sync::events::Recorder;
use crate::sync::k8s::labels::SOURCE;
use crate::sync::k8s::service::PREFIX;
use crate::sync::k8s::watch::Event;
use crate::sync::source::service_links::set_override;
use crate::sync::test_support;

/// Returns a context with a stub that refuses everything, and the number of its requests.
fn refused() -> (SourceAnnotationContext, Arc<AtomicUsize>) {
    let (client, requests) = test_support::refusing(403, "Forbidden", "services is forbidden: no");
    (context(client), requests)
}

fn context(client: Client) -> SourceAnnotationContext {
    let leadership = Leadership::unconditional();
    let lists = CompletedLists::new(&BTreeSet::new(), ListEpoch { term: leadership.term(), rewinds: 0 });
    let context = SourceAnnotationContext {
        followers: test_support::metrics(),
        persisted: Arc::default(),
        store: Arc::new(Store::new(OnGone::Kept)),
        client,
        availability: ApiAvailability::default(),
        selection: Arc::default(),
        policy: test_support::policy(None),
        hostname_policy: watch::Sender::new(Arc::default()).subscribe(),
        link_reporter: test_support::link_reporter(),
        api: test_support::metrics(),
        staleness: test_support::metrics(),
        links_listed: watch::Sender::new(lists.clone()).subscribe(),
        overrides_listed: watch::Sender::new(lists).subscribe(),
        rewinds: RestoreCounter::default(),
        leadership,
    };
    context.store.set_known(Input::Services);
    context
}

fn load_balancer(context: &SourceAnnotationContext, namespace: &str) {
    let web = service(json!({
        "metadata": {"namespace": namespace, "name": "web", "uid": "web"},
        "spec": {"type": "LoadBalancer"},
        "status": {"loadBalancer": {"ingress": [{"hostname": "cloud.example"}]}},
    }));
    context.store.apply(web.observe(&Arc::default(), &context.store).0);
}

fn follower(namespace: &str, name: &str, source: &str) -> Value {
    json!({
        "metadata": {"namespace": namespace, "name": name, "uid": name, "resourceVersion": "5",
            "annotations": {SOURCE: source}},
        "spec": {"type": "ExternalName", "externalName": "old.example"},
    })
}

/// Sends a complete list of a scope, twice: the first one shows that the annotation is used.
fn list(controller: &mut SourceAnnotationController, number: usize, annotated: &[Value]) {
    for _ in 0..2 {
        controller.on_watch_item(number, Ok(Event::ListBegins));
        for follower in annotated {
            let object = serde_json::from_str(&follower.to_string()).unwrap();
            controller.on_watch_item(number, Ok(Event::Listed(object)));
        }
        controller.on_watch_item(number, Ok(Event::ListEnds { version: None, rewound: false }));
    }
}

#[test]
fn service_of_a_gone_source_stays_or_leads_to_the_tombstone() {
    for (name, expected) in [
        ("old.example", "shop/web is gone: the Service stays as it is"),
        ("deleted.lb.internal", "shop/web is gone: the Service leads to deleted.lb.internal"),
    ] {
        let service = json!({
            "metadata": {"namespace": "shop", "name": "db", "annotations": {SOURCE: "web"}},
            "spec": {"type": "ExternalName", "externalName": name},
        });
        let service = serde_json::from_value(service).unwrap();
        let follower = AnnotatedService::of(&service, Some("targets")).unwrap().ok().unwrap();
        let policy = SyncPolicy { tombstone: "deleted.lb.internal".to_owned(), ..test_support::policy(None) };
        let state = shown_state(&follower, &Decision::Leave, None, &policy);
        assert_eq!(state, FollowerState::Kept(expected.to_owned()));
    }
}

#[tokio::test(start_paused = true)]
async fn forbidden_list_is_retried_rarely_without_annotations() {
    let (context, requests) = refused();
    let hours = |number: u64| Duration::from_secs(3600 * number);
    let run = async |context: SourceAnnotationContext, span| {
        assert!(tokio::time::timeout(span, run(context, CancellationToken::new())).await.is_err());
        requests.swap(0, Ordering::Relaxed)
    };
    let first = run(context.clone(), hours(1)).await;
    let all = run(context, hours(10)).await;
    // The first minute has many requests, as an API server that is starting refuses for a moment.
    assert!((8..40).contains(&first), "{first} in an hour");
    assert!((6 * 9..first + 6 * 9 + 3).contains(&all), "{all} in ten hours, {first} in the first one");
}

fn service(value: Value) -> Service {
    serde_json::from_value(value).unwrap()
}

#[tokio::test(start_paused = true)]
async fn ignored_annotation_of_a_follower_has_an_event_and_a_reason() {
    let (mut context, _) = refused();
    let dropped = prometheus::IntCounter::new("dropped", "Dropped.").unwrap();
    let recorder = Recorder::new(dropped, context.leadership.clone());
    context.link_reporter.recorder = recorder.clone();
    load_balancer(&context, "shop");
    let lists = ListEpoch { term: context.leadership.term(), rewinds: 0 };
    let followers = Arc::clone(&context.followers);
    let mut controller = SourceAnnotationController::new(context, CrossTermState::default(), lists);
    let mut done = follower("shop", "done", "web");
    done["spec"]["externalName"] = "cloud.example".into();
    list(&mut controller, 0, &[done.clone()]);
    controller.drain_queue();
    followers.set_unread(Some(Vec::new()));
    let mut apply = |done: &Value| {
        let object = serde_json::from_str(&done.to_string()).unwrap();
        controller.on_watch_item(0, Ok(Event::Applied(object)));
        controller.drain_queue();
        let shown = followers.list().unwrap().remove(0).1;
        let counts = ["ready", "degraded", "refused"].map(|label| followers.count(label));
        (recorder.take_queued(), shown.ignored, counts)
    };
    assert_eq!(apply(&done), (vec![], None, [1, 0, 0]));
    let misspelled = format!("{PREFIX}sorce");
    done["metadata"]["annotations"][&misspelled] = "web".into();
    let why = format!("the annotation \"{misspelled}\" is ignored: ExternalName Services have {SOURCE}");
    let event = |reason, why: &str| (reason, Box::from(why));
    let ignored = event(Reason::AnnotationIgnored, &why);
    assert_eq!(apply(&done), (vec![ignored], Some(why.clone()), [0, 1, 0]));
    assert_eq!(apply(&done), (vec![], Some(why.clone()), [0, 1, 0]), "once");
    done["metadata"]["annotations"][SOURCE] = "a/b/c".into();
    let refused = "annotation linker.hsj.com/source \"a/b/c\" isn't [<namespace>/]<service>";
    let refused = event(Reason::TargetRefused, refused);
    assert_eq!(apply(&done), (vec![refused], Some(why), [0, 0, 1]));
    done["metadata"]["annotations"] = json!({SOURCE: "web"});
    assert_eq!(apply(&done), (vec![], None, [1, 0, 0]));
}

#[tokio::test(start_paused = true)]
async fn followers_are_shown_with_what_became_of_them() {
    let (mut context, requests) = refused();
    context.policy.sync = SyncMode::Off;
    load_balancer(&context, "shop");
    let (lists, followers) =
        (ListEpoch { term: context.leadership.term(), rewinds: 0 }, Arc::clone(&context.followers));
    let mut controller = SourceAnnotationController::new(context, CrossTermState::default(), lists);
    let mut done = follower("shop", "done", "web");
    done["spec"]["externalName"] = "cloud.example".into();
    let all = [
        done,
        follower("shop", "late", "web"),
        follower("app", "foreign", "shop/web"),
        follower("shop", "none", "absent"),
        follower("shop", "typo", "a/b/c"),
    ];
    list(&mut controller, 0, &all);
    controller.drain_queue();
    assert_eq!(followers.list(), None, "nothing is told before all is listed");
    followers.set_unread(Some(Vec::new()));
    let shown: Vec<_> = followers.list().unwrap().into_iter().map(|(key, seen)| (key, seen.state)).collect();
    let state = |namespace: &str, name: &str| {
        let key = ServiceKey::new(namespace, name);
        shown.iter().find(|(known, _)| *known == key).map(|(_, state)| state.clone()).unwrap()
    };
    assert_eq!(state("shop", "done"), FollowerState::Follows);
    assert_eq!(
        state("shop", "late"),
        FollowerState::Outdated { name: "cloud.example".to_owned(), failure: None }
    );
    for (namespace, name, why) in [
        ("app", "foreign", "may not follow"),
        ("shop", "none", "no load balancer"),
        ("shop", "typo", "isn't"),
    ] {
        let FollowerState::Refused(found) = state(namespace, name) else { panic!("{namespace}/{name}") };
        assert!(found.contains(why), "{found}");
    }
    let counts = |followers: &Followers| FollowerState::LABELS.map(|label| followers.count(label));
    assert_eq!(counts(&followers), [1, 1, 0, 3]);
    assert_eq!(requests.load(Ordering::Relaxed), 0, "nothing is written with --sync off");
    controller.forget(&ServiceKey::new("shop", "done"));
    assert_eq!(followers.list().unwrap().len(), 4);
    assert_eq!(counts(&followers), [0, 1, 0, 3]);
    followers.clear();
    assert_eq!(counts(&followers), [0; 4]);
    assert_eq!(followers.list(), None);
}

#[tokio::test(start_paused = true)]
async fn refused_writes_are_shown_with_their_reason() {
    let message = "services \"a\" is forbidden: User \"x\" cannot patch resource \"services\" in API group \"\" in \
                   the namespace \"shop\"";
    let context = context(test_support::refusing(403, "Forbidden", message).0);
    load_balancer(&context, "shop");
    let lists = ListEpoch { term: context.leadership.term(), rewinds: 0 };
    let followers = Arc::clone(&context.followers);
    followers.set_unread(Some(Vec::new()));
    let mut controller = SourceAnnotationController::new(context, CrossTermState::default(), lists);
    let names: Vec<String> = (0..20).map(|number| format!("s{number}")).collect();
    let all: Vec<Value> = names.iter().map(|name| follower("shop", name, "web")).collect();
    list(&mut controller, 0, &all);
    let unexplained = || {
        let explained = |(_, follower): &(ServiceKey, Follower)| {
            let FollowerState::Outdated { failure, .. } = &follower.state else { return false };
            failure.as_ref().is_some_and(|why| why.contains("the API server forbids it"))
        };
        names.len() - followers.list().unwrap().iter().filter(|follower| explained(follower)).count()
    };
    let begun = tokio::time::Instant::now();
    while {
        controller.drain_queue();
        unexplained() > 0
    } {
        let ended = controller.runtime.event().await.unwrap();
        ended.into_iter().for_each(|ended| controller.written(ended));
        assert!(begun.elapsed() < Duration::from_secs(30), "{} have no reason", unexplained());
    }
}

#[tokio::test(start_paused = true)]
async fn panic_affects_only_its_service() {
    let (context, requests) = refused();
    load_balancer(&context, "shop");
    let lists = ListEpoch { term: context.leadership.term(), rewinds: 0 };
    let mut controller = SourceAnnotationController::new(context, CrossTermState::default(), lists);
    list(&mut controller, 0, &["before", "defect", "zafter"].map(|name| follower("shop", name, "web")));
    let key = ServiceKey::new("shop", "defect");
    crate::sync::controller::runtime::defect::choose(key.clone());
    controller.drain_queue();
    assert_eq!(controller.runtime.queue.in_flight().len(), 2);
    while let Some(written) = controller.runtime.drained().await.unwrap() {
        controller.written(written);
    }
    assert_eq!(requests.load(Ordering::Relaxed), 2);
    assert!(controller.runtime.queue.is_backing_off(&key), "the next try comes later");
}

#[tokio::test(start_paused = true)]
async fn write_whose_answer_was_lost_is_logged_once_it_is_seen() {
    let (client, _) = test_support::refusing(504, "Timeout", "the request has timed out");
    let context = context(client);
    load_balancer(&context, "shop");
    let lists = ListEpoch { term: context.leadership.term(), rewinds: 0 };
    let mut controller = SourceAnnotationController::new(context, CrossTermState::default(), lists);
    let (mut db, key) = (follower("shop", "db", "web"), ServiceKey::new("shop", "db"));
    list(&mut controller, 0, &[db.clone()]);
    controller.drain_queue();
    let written = controller.runtime.drained().await.unwrap().unwrap();
    controller.written(written);
    controller.drain_queue();
    let names = ("old.example".to_owned(), "cloud.example".to_owned());
    assert_eq!(controller.lost_answers.get(&key), Some(&names), "the watch shows nothing yet");
    db["spec"]["externalName"] = "cloud.example".into();
    db["metadata"]["resourceVersion"] = "6".into();
    let seen = serde_json::from_str(&db.to_string()).unwrap();
    controller.on_watch_item(0, Ok(Event::Applied(seen)));
    controller.runtime.queue.changed(&key);
    controller.runtime.queue.add(&key);
    controller.drain_queue();
    assert!(controller.lost_answers.is_empty());
}

/// Returns a controller for the namespaces `a` and `b`, with a load balancer in each.
fn following_two() -> SourceAnnotationController {
    let (mut context, _) = refused();
    let namespaces: BTreeSet<String> = ["a", "b"].map(ToOwned::to_owned).into();
    context.selection = Arc::new(Selection { namespaces, ..Selection::default() });
    load_balancer(&context, "a");
    load_balancer(&context, "b");
    let lists = ListEpoch { term: context.leadership.term(), rewinds: 0 };
    SourceAnnotationController::new(context, CrossTermState::default(), lists)
}

#[tokio::test(start_paused = true)]
async fn services_wait_for_the_list_of_their_load_balancer() {
    let mut controller = following_two();
    let (namespaces, now) = (&controller.context.selection.namespaces, controller.lists);
    let mut lists = CompletedLists::new(namespaces, now);
    lists.note(Some("b"), ListEpoch { term: now.term + 1, rewinds: 0 }, true);
    lists.note(Some("b"), now, false);
    let links_listed = watch::Sender::new(lists.clone());
    controller.context.links_listed = links_listed.subscribe();
    list(&mut controller, 0, &[follower("a", "db", "web")]);
    list(&mut controller, 1, &[follower("b", "db", "web")]);
    controller.drain_queue();
    assert_eq!(controller.runtime.queue.in_flight(), [ServiceKey::new("a", "db")]);
    lists.note(Some("b"), now, true);
    links_listed.send_replace(lists);
    controller.queue_all();
    controller.drain_queue();
    assert_eq!(controller.runtime.queue.in_flight().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn overridden_load_balancer_waits_for_a_list_of_this_term() {
    let mut controller = following_two();
    let (now, web) = (controller.lists, ServiceKey::new("a", "web"));
    let announce = |is_provisional| {
        let host = Hostname::from(&Name::from_ascii("standby.example.").unwrap());
        let announced = Announcement::Target(Target::Hostname(host));
        LinkOverride { uid: "sn".into(), announced, is_provisional, ..LinkOverride::default() }
    };
    let mut lists =
        CompletedLists::new(&BTreeSet::new(), ListEpoch { term: now.term - 1, rewinds: now.rewinds });
    let overrides_listed = watch::Sender::new(lists.clone());
    controller.context.overrides_listed = overrides_listed.subscribe();
    drop(set_override(&controller.context.store, &web, announce(false), None));
    list(&mut controller, 0, &[follower("a", "db", "web")]);
    list(&mut controller, 1, &[follower("b", "db", "web")]);
    controller.drain_queue();
    assert_eq!(controller.runtime.queue.in_flight(), [ServiceKey::new("b", "db")]);
    lists.note(None, now, true);
    overrides_listed.send_replace(lists);
    for (is_provisional, writes) in [(true, 1), (false, 2)] {
        drop(set_override(&controller.context.store, &web, announce(is_provisional), None));
        controller.queue_all();
        controller.drain_queue();
        assert_eq!(controller.runtime.queue.in_flight().len(), writes, "provisional: {is_provisional}");
    }
}

#[tokio::test(start_paused = true)]
async fn list_of_external_targets_queues_the_waiting_services() {
    let patches = Arc::new(AtomicUsize::new(0));
    let made = Arc::clone(&patches);
    let client = test_support::client(move |request| {
        if request.method() == "PATCH" {
            made.fetch_add(1, Ordering::Relaxed);
            return (403, json!({"kind": "Status", "code": 403, "message": "no", "reason": "Forbidden"}));
        }
        // This API server has no streaming lists.
        match request.uri().query().unwrap_or_default().contains("watch=") {
            true => (422, json!({"kind": "Status", "code": 422, "message": "no", "reason": "Invalid"})),
            false => {
                let items = [follower("shop", "db", "web")];
                (200, json!({"metadata": {"resourceVersion": "5"}, "items": items}))
            }
        }
    });
    let mut context = context(client);
    load_balancer(&context, "shop");
    let complete = context.overrides_listed.borrow().clone();
    let now = ListEpoch { term: context.leadership.term(), rewinds: 0 };
    let mut failed = CompletedLists::new(&BTreeSet::new(), None);
    failed.note(None, now, false);
    let overrides_listed = watch::Sender::new(failed);
    context.overrides_listed = overrides_listed.subscribe();
    let standby = Hostname::from(&Name::from_ascii("standby.example.").unwrap());
    let announced = Announcement::Target(Target::Hostname(standby));
    let stable_name = LinkOverride { uid: "sn".into(), announced, ..LinkOverride::default() };
    drop(set_override(&context.store, &ServiceKey::new("shop", "web"), stable_name, None));
    let test = async {
        tokio::time::sleep(Duration::from_secs(100)).await;
        assert_eq!(patches.load(Ordering::Relaxed), 0, "the StableNames haven't been listed in this term");
        overrides_listed.send_replace(complete);
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(patches.load(Ordering::Relaxed), 1);
    };
    tokio::select! {
        _ = run(context, CancellationToken::new()) => unreachable!(),
        () = test => {}
    }
}

#[tokio::test(start_paused = true)]
async fn services_listed_before_a_restore_arent_written() {
    for by_own_watch in [true, false] {
        let mut controller = following_two();
        list(&mut controller, 0, &[follower("a", "db", "web")]);
        list(&mut controller, 1, &[]);
        if by_own_watch {
            controller.on_watch_item(1, Ok(Event::ListEnds { version: Some(3), rewound: true }));
        } else {
            controller.context.rewinds.record_restore("load balancers");
        }
        assert_eq!(controller.context.rewinds.count(), 1);
        controller.drain_queue();
        assert!(!controller.runtime.is_writing() && !controller.is_current());
    }
}

#[tokio::test(start_paused = true)]
async fn services_are_listed_again_after_a_restore() {
    let (mut context, requests) = refused();
    let at = |rewinds| {
        CompletedLists::new(&BTreeSet::new(), ListEpoch { term: context.leadership.term(), rewinds })
    };
    let (restored, links_listed) = (at(1), watch::Sender::new(at(0)));
    let overrides_listed = watch::Sender::new(at(0));
    context.links_listed = links_listed.subscribe();
    context.overrides_listed = overrides_listed.subscribe();
    let rewinds = context.rewinds.clone();
    let asked = async |span| {
        tokio::time::sleep(Duration::from_secs(span)).await;
        requests.swap(0, Ordering::Relaxed)
    };
    let test = async {
        assert!(asked(90).await > 0);
        rewinds.record_restore("load balancers");
        assert_eq!(asked(1200).await, 0, "the load balancers haven't been listed since");
        links_listed.send_replace(restored.clone());
        assert_eq!(asked(1200).await, 0, "the StableNames haven't been listed since");
        overrides_listed.send_replace(restored);
        assert!(asked(10).await > 0);
    };
    tokio::select! {
        _ = run(context, CancellationToken::new()) => unreachable!(),
        () = test => {}
    }
}

#[tokio::test(start_paused = true)]
async fn services_dont_wait_for_the_list_of_another_namespace() {
    let mut controller = following_two();
    list(&mut controller, 0, &[follower("a", "db", "web")]);
    assert!(!controller.annotated.is_listed(1));
    controller.drain_queue();
    assert_eq!(controller.runtime.queue.in_flight().len(), 1);
}
