//! Tests of the external targets whose Services `--service-selector` leaves out.

use kube::core::Selector;

use super::*;
use crate::captured_log::CapturedLog;
use crate::sync::external_target::left_out::Flag;
use crate::sync::source::service_links::{end_override, service_link};

/// The namespaces of a test: each Service is in `shop`.
const NAMESPACES: [&str; 2] = ["open", "shop"];

/// Returns a reconciler after its first check, and the lists of load balancers. It has external targets of the existing
/// Services `shop/<name>`; those in `selected` match `--service-selector`. `shop` may be refused.
fn left_out(
    names: &[&str],
    selected: &[&str],
    delay: Duration,
    is_refused: bool,
) -> (Reconciler, watch::Sender<CompletedLists>) {
    let labels = Selector::from_iter([("tier".to_owned(), "web".to_owned())]);
    let namespaces = NAMESPACES.map(ToOwned::to_owned).into();
    let selection = Selection { namespaces, labels, ..Selection::default() };
    left_out_by(selection, names, selected, delay, is_refused)
}

/// As [`left_out`], with another selection.
fn left_out_by(
    selection: Selection,
    names: &[&str],
    selected: &[&str],
    delay: Duration,
    is_refused: bool,
) -> (Reconciler, watch::Sender<CompletedLists>) {
    let metadata = |name: &&str| json!({"metadata": {"namespace": "shop", "name": name, "uid": name}});
    let items: Vec<Value> = names.iter().map(metadata).collect();
    let client = test_support::client(move |request| match request.method().as_str() {
        "GET" => (200, json!({"metadata": {"resourceVersion": "9"}, "items": items})),
        _ => test_support::status(422, "Invalid", "no"),
    });
    let mut reconciler = reconciler(client);
    let own = |name: &&str| {
        let mut object = ObservedObject::of(&external_target_of(&reconciler, name, "1"));
        object.has_our_field_manager = true;
        object
    };
    let objects = names.iter().map(own).collect();
    reconciler.context.store = Arc::new(Store::new(OnGone::Kept));
    reconciler.context.store.set_known(Input::Services);
    reconciler.context.policy.max_deletes = MaxDeletes::Share;
    reconciler.context.policy.delete_delay = delay;
    reconciler.context.policy.prune = true;
    reconciler.start_check = CheckedTargets::new(delay);
    let mut listed = CompletedLists::new(&selection.namespaces, None);
    for namespace in &selection.namespaces {
        listed.note(Some(namespace), reconciler.lists(), !is_refused || namespace == "open");
    }
    let lists = watch::Sender::new(listed);
    reconciler.context.links_listed = lists.subscribe();
    reconciler.context.selection = Arc::new(selection);
    reconciler.on_object_event(ObjectEvent::Listed(ObjectKind::Service, objects));
    reconciler.on_object_event(ObjectEvent::Listed(ObjectKind::EndpointSlice, Vec::new()));
    for name in selected {
        load_balancer(&reconciler, name);
    }
    reconciler.resume_writing();
    (reconciler, lists)
}

fn key(name: &str) -> ServiceKey {
    ServiceKey::new("shop", name)
}

/// Processes the result of the look-up.
async fn look_up(reconciler: &mut Reconciler) {
    let existing = reconciler.start_check.look_ups.join_next().await.unwrap().unwrap();
    reconciler.on_look_up_end(&existing);
}

/// Returns the links that stay until `--max-deletes` is given.
fn protected(reconciler: &Reconciler) -> Vec<String> {
    let CheckedTargets { left_out, kept, .. } = &reconciler.start_check;
    left_out.keys().filter(|key| !kept.contains(key)).map(ToString::to_string).collect()
}

fn announce(reconciler: &mut Reconciler, key: &ServiceKey) {
    let target = Target::Addresses(["192.0.2.9".parse().unwrap()].into());
    let announced = Announcement::Target(target);
    let by = LinkOverride { uid: "s".into(), announced, ..LinkOverride::default() };
    set_override(&reconciler.context.store, key, by, None).unwrap();
    reconciler.reconcile(key);
    assert!(!reconciler.context.store.get(key).unwrap().is_left_out());
}

/// Ends the override and the delay of a left-out Service.
fn end(reconciler: &mut Reconciler, key: &ServiceKey, delay: Duration) -> Arc<Link> {
    end_override(&reconciler.context.store, key, None, Instant::now()).unwrap();
    reconciler.reconcile(key);
    std::thread::sleep(delay);
    reconciler.end_kept();
    reconciler.context.store.get(key).unwrap()
}

#[tokio::test]
async fn left_out_link_ends_although_a_stable_name_came_and_went() {
    let (delay, key) = (Duration::from_millis(30), key("web"));
    let (mut reconciler, _lists) = left_out(&["web"], &[], delay, false);
    look_up(&mut reconciler).await;
    announce(&mut reconciler, &key);
    assert!(end(&mut reconciler, &key, delay).is_gone());

    // The StableName comes before the end of the look-up.
    let (mut reconciler, _lists) = left_out(&["web"], &[], delay, false);
    announce(&mut reconciler, &key);
    look_up(&mut reconciler).await;
    assert!(end(&mut reconciler, &key, delay).is_gone());

    // The delay ends first.
    let (mut reconciler, _lists) = left_out(&["web"], &[], delay, false);
    look_up(&mut reconciler).await;
    announce(&mut reconciler, &key);
    std::thread::sleep(delay);
    reconciler.end_kept();
    assert!(service_link(&reconciler.context.store, &key).unwrap().is_gone());
    assert!(end(&mut reconciler, &key, Duration::ZERO).is_gone());
}

#[tokio::test]
async fn unwatched_namespace_with_external_targets_is_warned_of() {
    let (log, _guard) = CapturedLog::start(tracing::Level::INFO);
    let selection = Selection { namespaces: ["open".to_owned()].into(), ..Selection::default() };
    let (mut reconciler, _lists) = left_out_by(selection, &["web"], &[], Duration::from_secs(60), false);
    look_up(&mut reconciler).await;
    let text = log.text();
    let warning = "WARN lb_linker::sync::external_target::reconciler::start: --watch-namespaces leaves out namespace \
                   shop, where load balancers have external targets: the names of shop/web end after 60s";
    assert_eq!(text.matches(warning).count(), 1, "{text}");
}

#[tokio::test]
async fn left_out_link_behind_a_stable_name_at_the_start_ends() {
    let (delay, key) = (Duration::from_millis(30), key("web"));
    let (mut reconciler, lists) = left_out(&["web"], &[], delay, true);
    insert_left_out(&reconciler.context.store, &key, "web".into(), None, Vec::new()).unwrap();
    reconciler.reconcile(&key);
    announce(&mut reconciler, &key);
    let at = reconciler.lists();
    lists.send_modify(|lists| assert!(lists.note(Some("shop"), at, true)));
    reconciler.on_links_listed();
    assert!(reconciler.start_check.unconfirmed.is_empty());
    end_override(&reconciler.context.store, &key, None, Instant::now()).unwrap();
    reconciler.reconcile(&key);
    look_up(&mut reconciler).await;
    std::thread::sleep(delay);
    reconciler.end_kept();
    assert!(reconciler.context.store.get(&key).unwrap().is_gone());
}

#[tokio::test]
async fn follower_protects_most_targets_of_a_namespace_listed_late() {
    let (mut reconciler, lists) = left_out(&["api", "web"], &[], Duration::from_secs(60), true);
    for name in ["api", "web"] {
        insert_left_out(&reconciler.context.store, &key(name), name.into(), None, Vec::new()).unwrap();
    }
    // Nothing is written without these lists, as without the lease.
    reconciler.context.overrides_listed =
        watch::Sender::new(CompletedLists::new(&BTreeSet::new(), None)).subscribe();
    assert!(reconciler.start_check.unconfirmed.is_empty() && !reconciler.may_write());
    let at = reconciler.lists();
    lists.send_modify(|lists| assert!(lists.note(Some("shop"), at, true)));
    reconciler.on_links_listed();
    look_up(&mut reconciler).await;
    assert_eq!(protected(&reconciler), ["shop/api", "shop/web"]);
}

#[tokio::test]
async fn removal_of_a_left_out_target_uses_the_deletion_budget() {
    let (mut reconciler, _lists) = left_out(&["web"], &[], Duration::from_secs(60), false);
    look_up(&mut reconciler).await;
    // The delay of the leader has ended first.
    let id = reconciler.objects.of_link(&key("web"))[0].id.clone();
    reconciler.on_object_event(ObjectEvent::Deleted { id, uid: "o".to_owned() });
    let mut budget = reconciler.deletion_budget.lock();
    let now = Instant::now();
    assert!(budget.allows(MaxDeletes::Number(1), "shop", "another", 1, now).is_err());
}

#[tokio::test]
async fn next_term_protects_links_left_out_at_the_start() {
    // The link is kept for the delay, or has ended.
    for (delay, is_kept) in [(Duration::from_secs(60), true), (Duration::ZERO, false)] {
        let (mut reconciler, _lists) = left_out(&["api", "db", "web"], &["api", "db"], delay, false);
        look_up(&mut reconciler).await;
        reconciler.end_kept();
        assert_eq!(reconciler.start_check.kept.contains(&key("web")), is_kept);
        assert_eq!(reconciler.context.store.get(&key("web")).unwrap().is_gone(), !is_kept);
        reconciler.context.store.gone(&key("db"), "db", None, Instant::now()).unwrap();
        reconciler.resume_writing();
        look_up(&mut reconciler).await;
        assert_eq!(protected(&reconciler), ["shop/web"]);
        assert!(reconciler.context.store.get(&key("web")).unwrap().is_left_out());
        assert_eq!(reconciler.start_check.postponed, [key("db")].into());
    }
}

#[tokio::test]
async fn later_check_doesnt_end_a_protection_under_way() {
    let (mut reconciler, _lists) = left_out(&["api", "web"], &[], Duration::from_secs(60), false);
    load_balancer(&reconciler, "api");
    reconciler.resume_writing();
    look_up(&mut reconciler).await;
    assert_eq!(protected(&reconciler), ["shop/web"]);
}

#[tokio::test]
async fn flag_of_a_left_out_link_is_named_as_long_as_it_holds() {
    let (mut reconciler, _lists) = left_out(&["web"], &[], Duration::from_secs(60), false);
    look_up(&mut reconciler).await;
    let findings = reconciler.context.link_reporter.findings.clone();
    reconciler.reconcile(&key("web"));
    assert!(findings.left_out.get(&key("web")).is_some());
    // The next look-up begins.
    reconciler.start_check.left_out.remove(&key("web"));
    reconciler.reconcile(&key("web"));
    assert_eq!(findings.left_out.get(&key("web")), None);
}

#[tokio::test]
async fn unwatched_external_targets_have_events_of_their_own() {
    let (mut reconciler, _lists) = left_out(&["web"], &[], Duration::from_secs(60), false);
    look_up(&mut reconciler).await;
    let recorder = Recorder::new(IntCounter::new("dropped", "dropped").unwrap(), Leadership::unconditional());
    reconciler.context.link_reporter.recorder = recorder.clone();
    let mut note = |flag, is_kept: bool| {
        reconciler.start_check.left_out.insert(key("web"), Some(flag));
        if !is_kept {
            reconciler.start_check.kept.forget(&key("web"));
        }
        reconciler.record_left_out_events();
        recorder.take_queued().into_iter().map(|(_, note)| note.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(
        note(Flag::ServiceSelector, true),
        ["--service-selector leaves it out; it counts as deleted after --delete-delay"]
    );
    assert_eq!(note(Flag::WatchNamespaces, true), [""; 0], "this isn't an error");
    assert_eq!(
        note(Flag::WatchNamespaces, false),
        [
            "--watch-namespaces leaves it out; its names stay until --max-deletes is given, its external target also \
          after that"
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn slow_look_up_is_awaited_for_three_seconds() {
    let (mut reconciler, _lists) = left_out(&["web"], &[], Duration::ZERO, false);
    assert!(!reconciler.waits_for_look_up());
    reconciler.context.policy.sync = SyncMode::Off;
    assert!(reconciler.waits_for_look_up());
    tokio::time::advance(Duration::from_secs(3)).await;
    assert!(!reconciler.waits_for_look_up() && !reconciler.start_check.look_ups.is_empty());
}
