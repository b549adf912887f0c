use std::fs;
use std::sync::Arc;
use std::time::Duration;

use hickory_proto::rr::Name;
use jiff::Timestamp;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::*;
use crate::model::hostname::Hostname;
use crate::model::hostname_policy::HostnamePolicy;
use crate::model::link::{Annotations, Ingress, Link, ObservedService};
use crate::model::owner::{Claims, Owner, Source, Zone};
use crate::model::service_key::ServiceKey;
use crate::model::target_policy::TargetPolicy;
use crate::snapshot::contents::saved_owners;
use crate::snapshot::format::{Head, RecordedFlags, Snapshot, decode, encode};
use crate::store::{Input, OnGone, Store};
use crate::sync::k8s::client::ClusterIdentity;
use crate::sync::source::first_list::FirstList;
use crate::sync::test_support;

const PATIENCE: Duration = Duration::from_secs(600);

struct Fixture {
    _directory: tempfile::TempDir,
    context: SnapshotContext,
    policy: watch::Sender<Arc<HostnamePolicy>>,
    first_list: watch::Sender<FirstList>,
    stop: CancellationToken,
}

fn store() -> Arc<Store> {
    Arc::new(Store::new(OnGone::Kept).with_zones([&zone()]))
}

fn zone() -> Name {
    Name::from_ascii("lb.internal.").unwrap()
}

fn link(target: &str) -> ObservedService {
    let host = Hostname::from(&Name::from_ascii(target).unwrap());
    ObservedService {
        key: ServiceKey::new("default", "web"),
        uid: "u".into(),
        created: None,
        resource_version: None,
        ingress: Ingress { hostnames: vec![host], addresses: vec![] },
        ports: [].into(),
        annotations: Annotations::default(),
        refused: false,
        has_finalizer: false,
        persisted: None,
    }
}

impl Fixture {
    /// Returns a fixture with a snapshot of this age in seconds, or without a snapshot.
    fn new(age: Option<i64>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("links");
        if let Some(age) = age {
            let store = store();
            store.apply(link("old.example."));
            let head = Head {
                taken: Timestamp::from_second(Timestamp::now().as_second() - age).unwrap(),
                program: String::new(),
                cluster: ClusterIdentity::default(),
                recorded_flags: RecordedFlags::default(),
                serial: 7,
                last_change: None,
            };
            let links = store.links();
            let encoded = encode(&head, || saved_owners(&links, &[])).unwrap();
            fs::write(&path, encoded.bytes).unwrap();
        }
        let targets = TargetPolicy { zones: vec![zone()], ..Default::default() };
        let policy = watch::Sender::new(Arc::new(HostnamePolicy { targets, ..Default::default() }));
        let first_list = watch::Sender::default();
        let context = SnapshotContext {
            path,
            max_age: Duration::from_secs(3600),
            cluster: watch::channel(ClusterIdentity::default()).1,
            selection: Arc::default(),
            policy: policy.subscribe(),
            first_list: first_list.subscribe(),
            store: store(),
            staleness: test_support::metrics(),
            metrics: test_support::metrics(),
        };
        Self { _directory: directory, context, policy, first_list, stop: CancellationToken::new() }
    }

    fn start(&self) -> JoinHandle<Result<(), SyncError>> {
        tokio::spawn(run(self.context.clone(), self.stop.clone()))
    }

    /// Waits until `is_so` returns `true`; `what` describes it in the panic message.
    async fn until(&self, what: &str, is_so: impl Fn(&SnapshotContext) -> bool) {
        let wait = async {
            while !is_so(&self.context) {
                sleep(Duration::from_millis(100)).await;
            }
        };
        timeout(PATIENCE, wait).await.unwrap_or_else(|_| panic!("waited in vain: {what}"));
    }

    fn written(&self) -> Option<Snapshot> {
        decode(&fs::read(&self.context.path).ok()?).ok()
    }

    /// Returns the target in the file.
    fn target(&self) -> Option<String> {
        let snapshot = self.written()?;
        let link = snapshot.links.first()?;
        Some(format!("{:?}", link.target))
    }

    async fn end(self, task: JoinHandle<Result<(), SyncError>>) {
        self.stop.cancel();
        timeout(PATIENCE, task).await.unwrap().unwrap().unwrap();
    }
}

fn failed(code: u16) -> FirstList {
    FirstList::Failed { code, what: "LoadBalancer Services".into() }
}

#[tokio::test(start_paused = true)]
async fn snapshot_is_served_when_the_list_is_refused_or_late() {
    for (state, reason) in [
        (failed(403), "the API server answers 403 to the list of LoadBalancer Services"),
        (failed(401), "the API server answers 401 to the list of LoadBalancer Services"),
        (failed(503), "the API server answers 503 to the list of LoadBalancer Services"),
        (failed(0), "the API server doesn't answer"),
        (failed(429), "the API server answers 429 to the list of LoadBalancer Services"),
        (FirstList::Awaited, "the API server doesn't answer"),
        (FirstList::Arriving, "the list of load balancers isn't complete yet"),
    ] {
        let setting = Fixture::new(Some(60));
        setting.first_list.send_replace(state.clone());
        let begun = tokio::time::Instant::now();
        let task = setting.start();
        setting.until("a snapshot", |context| context.store.fallback().is_some()).await;
        assert_eq!(begun.elapsed() < Duration::from_secs(1), state.is_refused(), "{state:?}");
        assert!(begun.elapsed() < Duration::from_secs(3));
        let snapshot_links = setting.context.store.fallback().unwrap();
        assert_eq!(*snapshot_links.reason.lock(), reason);
        assert!(snapshot_links.age() >= Duration::from_secs(60));
        assert_eq!(setting.context.store.links().len(), 0);

        setting.first_list.send_replace(failed(500));
        setting
            .until("another reason", |_| {
                *snapshot_links.reason.lock()
                    == "the API server answers 500 to the list of LoadBalancer Services"
            })
            .await;
        setting.context.store.apply(link("new.example."));
        setting.context.store.set_known(Input::Services);
        setting.context.store.set_known(Input::StableNames);
        setting.until("a write", |_| setting.target().is_some_and(|target| target.contains("new"))).await;
        assert!(setting.context.store.fallback().is_none());
        setting.end(task).await;
    }
}

#[tokio::test(start_paused = true)]
async fn snapshot_isnt_served_if_the_first_list_is_in_time() {
    let setting = Fixture::new(Some(60));
    setting.context.store.set_known(Input::Services);
    setting.context.store.set_known(Input::StableNames);
    let task = setting.start();
    setting.until("a write", |_| setting.written().is_some_and(|it| it.links.is_empty())).await;
    assert!(setting.context.store.fallback().is_none());
    setting.end(task).await;
}

#[tokio::test(start_paused = true)]
async fn old_future_or_foreign_snapshot_isnt_served() {
    for (age, server) in [(3700, ""), (-400, ""), (60, "https://other.example")] {
        let mut setting = Fixture::new(Some(age));
        let identity = ClusterIdentity { server: server.to_owned(), authorities: Vec::new() };
        setting.context.cluster = watch::channel(identity).1;
        setting.first_list.send_replace(failed(403));
        let task = setting.start();
        sleep(Duration::from_secs(10)).await;
        assert!(setting.context.store.fallback().is_none(), "{age} {server}");
        assert_eq!(setting.written().unwrap().links.len(), 1);
        setting.end(task).await;
    }
}

#[tokio::test(start_paused = true)]
async fn served_snapshot_ends_at_its_maximum_age() {
    let setting = Fixture::new(Some(60));
    let task = setting.start();
    setting.until("a snapshot", |context| context.store.fallback().is_some()).await;
    sleep(Duration::from_secs(3500)).await;
    assert!(setting.context.store.fallback().is_some());
    sleep(Duration::from_secs(60)).await;
    assert!(setting.context.store.fallback().is_none());
    setting.end(task).await;
}

#[tokio::test(start_paused = true)]
async fn changed_zones_apply_to_a_served_snapshot() {
    let setting = Fixture::new(Some(60));
    let task = setting.start();
    setting.until("a snapshot", |context| context.store.fallback().is_some()).await;
    let host = Name::from_ascii("web.default.other.internal.").unwrap();
    let find = |context: &SnapshotContext| context.store.fallback()?.store.link_of_host(&host);
    assert!(find(&setting.context).is_none());
    let zones = vec![Name::from_ascii("other.internal.").unwrap()];
    let targets = TargetPolicy { zones, ..Default::default() };
    setting.policy.send_replace(Arc::new(HostnamePolicy { targets, ..Default::default() }));
    setting.until("the new zone", |context| find(context).is_some()).await;
    setting.end(task).await;
}

#[tokio::test(start_paused = true)]
async fn damaged_snapshot_is_set_aside() {
    let setting = Fixture::new(Some(60));
    let mut bytes = fs::read(&setting.context.path).unwrap();
    bytes.pop();
    fs::write(&setting.context.path, &bytes).unwrap();
    let task = setting.start();
    sleep(Duration::from_secs(10)).await;
    assert!(setting.context.store.fallback().is_none() && !setting.context.path.exists());
    assert_eq!(fs::read(setting.context.path.with_extension("damaged")).unwrap(), bytes);
    setting.context.store.set_known(Input::Services);
    setting.context.store.set_known(Input::StableNames);
    setting.until("a write", |_| setting.written().is_some()).await;
    setting.end(task).await;
}

#[tokio::test(start_paused = true)]
async fn pending_change_is_written_before_the_task_stops() {
    let setting = Fixture::new(None);
    setting.context.store.set_known(Input::Services);
    setting.context.store.set_known(Input::StableNames);
    let task = setting.start();
    setting.until("a write", |_| setting.written().is_some()).await;
    setting.context.store.apply(link("last.example."));
    setting.stop.cancel();
    timeout(PATIENCE, task).await.unwrap().unwrap().unwrap();
    assert!(setting.target().unwrap().contains("last.example"));
}

#[tokio::test(start_paused = true)]
async fn first_write_waits_for_the_external_targets() {
    let setting = Fixture::new(Some(60));
    setting.context.store.apply(link("new.example."));
    setting.context.store.set_known(Input::Services);
    let task = setting.start();
    sleep(Duration::from_secs(50)).await;
    assert!(setting.target().unwrap().contains("old.example"));
    setting.stop.cancel();
    timeout(PATIENCE, task).await.unwrap().unwrap().unwrap();
    assert!(setting.target().unwrap().contains("old.example"));
    // The StableNames stay unread: after a minute the snapshot is written without them.
    let setting = Fixture { stop: CancellationToken::new(), ..setting };
    let task = setting.start();
    setting.until("a write", |_| setting.target().unwrap().contains("new.example")).await;
    setting.end(task).await;
}

#[tokio::test(start_paused = true)]
async fn failed_writes_are_retried_until_one_succeeds() {
    let setting = Fixture::new(Some(60));
    let temporary = setting.context.path.with_extension("tmp");
    fs::create_dir(&temporary).unwrap();
    let store = &setting.context.store;
    store.apply(link("new.example."));
    store.set_known(Input::Services);
    store.set_known(Input::StableNames);
    let task = setting.start();
    setting.until("failures", |context| context.metrics.failures.get() >= 3).await;
    assert!(setting.target().unwrap().contains("old.example"));
    fs::remove_dir(&temporary).unwrap();
    setting.until("a write", |_| setting.target().unwrap().contains("new.example")).await;
    setting.end(task).await;
}

#[tokio::test(start_paused = true)]
async fn unchanged_links_are_written_again_while_the_watch_lives() {
    let setting = Fixture::new(None);
    let watch = setting.context.staleness.watch("load-balancers");
    setting.context.store.set_known(Input::Services);
    setting.context.store.set_known(Input::StableNames);
    let task = setting.start();
    setting.until("a write", |_| setting.written().is_some()).await;
    fs::remove_file(&setting.context.path).unwrap();
    // The watch stays silent for an hour, so the snapshot isn't written again.
    sleep(Duration::from_secs(3600)).await;
    assert!(!setting.context.path.exists());
    watch.note();
    setting.until("a renewal", |_| setting.written().is_some()).await;
    setting.end(task).await;
}

/// Returns a fixture with a snapshot of a load balancer and of an Ingress in this zone, and a store with the zone.
fn with_ingress(zone: &Zone) -> Fixture {
    let mut setting = Fixture::new(None);
    let new_store = || Arc::new(Store::new(OnGone::Kept).with_zones([zone.clone()]));
    let saved = new_store();
    saved.apply(link("old.example."));
    let owner = Owner { source: Source::INGRESSES, key: ServiceKey::new("default", "x.default.lb.internal") };
    let target = Arc::new(Link::new(ServiceKey::new("default", "web.ingress"), "u"));
    let claims = Claims { created: 1, names: ["x.default.lb.internal".into()].into(), ..Default::default() };
    saved.observe(&owner, &claims, &target, None);
    let head = Head {
        taken: Timestamp::now(),
        program: String::new(),
        cluster: ClusterIdentity::default(),
        recorded_flags: RecordedFlags::default(),
        serial: 7,
        last_change: None,
    };
    let (links, others) = (saved.links(), saved.other_owners());
    fs::write(&setting.context.path, encode(&head, || saved_owners(&links, &others)).unwrap().bytes).unwrap();
    setting.context.store = new_store();
    setting.first_list.send_replace(failed(403));
    setting
}

#[tokio::test(start_paused = true)]
async fn changed_classes_apply_to_a_served_snapshot() {
    let zone = Zone { sources: vec![Source::SERVICES, Source::INGRESSES], ..(&zone()).into() };
    let setting = with_ingress(&zone);
    let task = setting.start();
    let host = Name::from_ascii("x.default.lb.internal.").unwrap();
    let find = |context: &SnapshotContext| context.store.fallback()?.store.link_of_host(&host);
    setting.until("the name", |context| find(context).is_some()).await;
    setting.context.store.set_zones([Zone { ingress_classes: vec!["nginx".into()], ..zone }]);
    setting.until("its end", |context| find(context).is_none()).await;
    assert!(setting.context.store.fallback().is_some(), "the load balancer stays");
    setting.end(task).await;
}

#[tokio::test(start_paused = true)]
async fn snapshot_with_names_of_ingresses_stays_until_they_are_listed() {
    let zone = Zone { sources: vec![Source::SERVICES, Source::INGRESSES], ..(&zone()).into() };
    let setting = with_ingress(&zone);
    let task = setting.start();
    setting.until("a snapshot", |context| context.store.fallback().is_some()).await;
    let store = Arc::clone(&setting.context.store);
    store.set_known(Input::Services);
    store.set_known(Input::StableNames);
    sleep(Duration::from_secs(100)).await;
    assert!(store.fallback().is_some_and(|it| it.to_string().contains("sources of names aren't read")));
    assert_eq!(setting.written().unwrap().links.len(), 2, "the file keeps its names");
    store.set_listed(&Source::INGRESSES, &[zone]);
    assert!(store.fallback().is_none());
    setting.until("a write", |_| setting.written().unwrap().links.is_empty()).await;
    setting.end(task).await;
}
