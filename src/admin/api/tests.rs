use hickory_proto::rr::Name;
use std::net::{Ipv4Addr, SocketAddr};

use axum::body::{Body, to_bytes};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tower::ServiceExt;

use super::*;
use crate::admin::client::{ClientError, InstanceClient};
use crate::dns::plugins::lb_linker::LinkZone;
use crate::metrics::Metrics;
use crate::model::hostname::Hostname;
use crate::model::link::{Annotations, Ingress, ObservedService};
use crate::store::cluster::objects::{Addressing, Service};
use crate::store::cluster::registry::ClusterSpec;
use crate::store::{Input, OnGone, Store};

/// A status API with a store, without a listener.
struct Api {
    store: Arc<Store>,
    facts: LinkFacts,
    history: Arc<History>,
    zones: watch::Sender<CorefileZones>,
    clusters: ClusterRegistry,
    stop: CancellationToken,
}

impl Api {
    fn new() -> Self {
        let origin = Name::from_ascii("lb.internal.").unwrap();
        let store = Arc::new(Store::new(OnGone::Kept).with_zones([&origin]));
        let links = vec![LinkZone::new(origin, "ns")];
        let zones = watch::Sender::new(CorefileZones { links, ..CorefileZones::default() });
        let history = Arc::new(History::new(Timestamp::from_second(1_700_000_000).unwrap()));
        let facts = LinkFacts::of(Arc::clone(&store));
        Self {
            store,
            facts,
            history,
            zones,
            clusters: ClusterRegistry::default(),
            stop: CancellationToken::new(),
        }
    }

    fn status(&self) -> Status {
        Status {
            facts: self.facts.clone(),
            history: Arc::clone(&self.history),
            zones: self.zones.subscribe(),
            clusters: self.clusters.clone(),
            identity: "replica-1".to_owned(),
            leader: KnownLeader::default(),
            election: Metrics::new().unwrap().group().unwrap(),
        }
    }

    /// Applies a Service with this hostname, and returns when the history has recorded it.
    async fn apply(&self, namespace: &str, name: &str, hostname: &str) {
        let version = self.history.version();
        self.store.apply(ObservedService {
            key: ServiceKey::new(namespace, name),
            uid: "uid".into(),
            created: Some(1_700_000_001),
            resource_version: None,
            ingress: Ingress {
                hostnames: vec![Hostname::from(&Name::from_ascii(hostname).unwrap())],
                addresses: Vec::new(),
            },
            ports: Arc::default(),
            annotations: Annotations::default(),
            refused: false,
            has_finalizer: false,
            persisted: None,
        });
        while self.history.version() == version {
            tokio::task::yield_now().await;
        }
    }

    /// Records the history, and returns when the recording has begun.
    async fn record(&self) -> AbortOnDropHandle<()> {
        let recording = Arc::clone(&self.history).record(Arc::clone(&self.store), self.stop.clone());
        let recording = AbortOnDropHandle::new(tokio::spawn(recording));
        while self.history.version() == 0 {
            tokio::task::yield_now().await;
        }
        recording
    }

    async fn ask(&self, request: Request<Body>) -> Response {
        router(self.status()).oneshot(request).await.unwrap()
    }
}

fn get_from(host: &str, path: &str) -> Request<Body> {
    Request::get(path).header(header::HOST, host).body(Body::empty()).unwrap()
}

async fn body(answer: Response) -> Value {
    assert_eq!(answer.status(), StatusCode::OK);
    serde_json::from_slice(&to_bytes(answer.into_body(), usize::MAX).await.unwrap()).unwrap()
}

#[tokio::test]
async fn only_loopback_hosts_are_answered() {
    let api = Api::new();
    for host in ["localhost", "LOCALHOST:8053", "127.0.0.1:8053", "127.1.2.3", "[::1]:8053", "[::1]"] {
        assert_eq!(api.ask(get_from(host, "/")).await.status(), StatusCode::OK, "{host}");
    }
    for host in [
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "10.0.0.1",
        "[2001:db8::1]",
        "evil.example@localhost",
        "",
        "localhost,evil.example",
        "::1",
    ] {
        for path in ["/", "/api/links", "/api/instance", "/page.js", "/absent"] {
            assert_eq!(api.ask(get_from(host, path)).await.status(), StatusCode::FORBIDDEN, "{host} {path}");
        }
    }
    let without = Request::get("/").body(Body::empty()).unwrap();
    assert_eq!(api.ask(without).await.status(), StatusCode::FORBIDDEN);
    let mut twice = get_from("localhost", "/");
    twice.headers_mut().append(header::HOST, HeaderValue::from_static("evil.example"));
    assert_eq!(api.ask(twice).await.status(), StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn methods_other_than_get_and_head_are_refused() {
    let api = Api::new();
    for path in ["/", "/api/links", "/api/instance"] {
        for method in ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"] {
            let request = Request::builder().method(method).uri(path).header(header::HOST, "localhost");
            let answer = api.ask(request.body(Body::empty()).unwrap()).await;
            assert_eq!(answer.status(), StatusCode::METHOD_NOT_ALLOWED, "{method} {path}");
        }
    }
}

#[tokio::test]
async fn answers_keep_foreign_scripts_and_frames_out() {
    let api = Api::new();
    for path in ["/", "/page.css", "/page.js", "/api/instance", "/api/links", "/absent"] {
        let answer = api.ask(get_from("localhost", path)).await;
        let header = |name: &str| answer.headers().get(name).unwrap().to_str().unwrap().to_owned();
        let policy = header("content-security-policy");
        assert!(policy.starts_with("default-src 'none'; script-src 'self';"), "{path}: {policy}");
        assert!(!policy.contains("unsafe") && policy.contains("frame-ancestors 'none'"), "{path}: {policy}");
        assert_eq!(header("x-content-type-options"), "nosniff", "{path}");
        assert_eq!(header("cross-origin-resource-policy"), "same-origin", "{path}");
        assert!(answer.headers().get("access-control-allow-origin").is_none(), "{path}");
    }
}

#[tokio::test]
async fn only_the_list_of_one_service_includes_history() {
    let api = Api::new();
    let _recording = api.record().await;
    let unread = api.ask(get_from("localhost", "/api/links")).await;
    assert_eq!(unread.status(), StatusCode::SERVICE_UNAVAILABLE);
    api.facts.findings.readiness.list.store(Some(Arc::new("the API server answers 403".into())));
    let unread =
        to_bytes(api.ask(get_from("localhost", "/api/links")).await.into_body(), 1000).await.unwrap();
    assert_eq!(unread, "the load balancers haven't been read yet: the API server answers 403\n");
    api.store.set_known(Input::Services);
    api.apply("shop", "web", "a.example.").await;
    api.apply("shop", "web", "b.example.").await;
    api.apply("default", "db", "c.example.").await;
    let all = body(api.ask(get_from("localhost", "/api/links")).await).await;
    assert_eq!(all["instance"], "replica-1");
    let names: Vec<&str> =
        all["items"].as_array().unwrap().iter().map(|it| it["service"].as_str().unwrap()).collect();
    assert_eq!(names, ["db", "web"]);
    assert_eq!(all["items"][1]["created"], "2023-11-14T22:13:21Z");
    assert!(all["items"][1].get("history").is_none());
    let one = body(api.ask(get_from("localhost", "/api/links?namespace=shop&service=web")).await).await;
    let history = one["items"][0]["history"].as_array().unwrap();
    let targets: Vec<&str> = history.iter().map(|event| event["target"].as_str().unwrap()).collect();
    assert_eq!((targets, one["items"].as_array().unwrap().len()), (vec!["a.example", "b.example"], 1));
}

#[tokio::test]
async fn unchanged_links_are_not_sent_again() {
    let api = Api::new();
    let _recording = api.record().await;
    api.store.set_known(Input::Services);
    api.apply("shop", "web", "a.example.").await;
    let answer = api.ask(get_from("localhost", "/api/links")).await;
    let etag = answer.headers()[header::ETAG].clone();
    let again = || {
        let mut request = get_from("localhost", "/api/links");
        request.headers_mut().insert(header::IF_NONE_MATCH, etag.clone());
        api.ask(request)
    };
    assert_eq!(again().await.status(), StatusCode::NOT_MODIFIED);
    api.apply("shop", "web", "b.example.").await;
    assert_eq!(again().await.status(), StatusCode::OK);
}

#[tokio::test]
async fn facts_beside_the_links_change_the_etag() {
    let api = Api::new();
    api.store.set_known(Input::Services);
    let mut before = api.status().etag();
    let mut assert_changed = |what: &str| {
        let etag = api.status().etag();
        assert_ne!(std::mem::replace(&mut before, etag.clone()), etag, "{what}");
    };
    let key = ServiceKey::new("shop", "web");
    api.facts.findings.services.set(&key, Some("annotation linker.hsj.com/ttl"));
    assert_changed("a finding about a Service");
    api.facts.findings.stable_names.set(&key, Some("TargetUnhealthy"));
    assert_changed("a condition of a StableName");
    api.facts.findings.services.set(&key, None);
    assert_changed("the end of a finding");
    api.facts.followers.set_unread(Some(Vec::new()));
    assert_changed("the list of followers");
    api.facts.followers.set_unread(Some(vec!["namespace b".to_owned()]));
    assert_changed("a refused list of followers");
    let listing = body(api.ask(get_from("localhost", "/api/links")).await).await;
    assert_eq!(listing["followers"], json!([]));
    assert!(listing["followersNotice"].as_str().unwrap().contains("in namespace b:"), "{listing}");
}

#[tokio::test]
async fn replica_that_doesnt_lead_lists_no_followers() {
    let api = Api::new();
    api.store.set_known(Input::Services);
    let listing = body(api.ask(get_from("localhost", "/api/links")).await).await;
    assert_eq!(listing.get("followers"), None);
    assert_eq!(listing.get("notice"), None);
}

#[tokio::test]
async fn changed_zones_change_the_etag() {
    let api = Api::new();
    api.store.set_known(Input::Services);
    let before = api.status().etag();
    // After a reload of the Corefile, the API has the new zones before the store and the names of the links have them.
    let origin = Name::from_ascii("lb.example.").unwrap();
    api.zones.send_modify(|zones| zones.links[0].origin = origin.clone());
    assert_eq!(api.status().etag(), before);
    api.store.set_zones([&origin]);
    assert_ne!(api.status().etag(), before);
}

#[tokio::test]
async fn list_of_a_disconnected_client_delays_the_next_list() {
    let lists = Arc::new(Semaphore::new(1));
    let (begun, has_begun) = oneshot::channel();
    let (end, ends) = std::sync::mpsc::channel::<()>();
    let first = tokio::spawn(one_at_a_time(Arc::clone(&lists), move || {
        begun.send(()).unwrap();
        let _ = ends.recv();
    }));
    has_begun.await.unwrap();
    first.abort();
    assert!(first.await.unwrap_err().is_cancelled());
    assert_eq!(lists.available_permits(), 0, "the first list still runs");
    let second = one_at_a_time(lists, || "second");
    drop(end);
    assert_eq!(second.await.unwrap(), "second");
}

#[tokio::test]
async fn instance_has_leadership_zones_and_start() {
    let api = Api::new();
    let status = api.status();
    status.election.leader.set(1);
    let answer = router(status).oneshot(get_from("localhost", "/api/instance")).await.unwrap();
    let instance = body(answer).await;
    assert_eq!((&instance["leads"], &instance["synced"]), (&Value::Bool(true), &Value::Bool(false)));
    assert_eq!(
        (&instance["zones"][0], &instance["started"]),
        (&"lb.internal".into(), &"2023-11-14T22:13:20Z".into())
    );
    assert_eq!(instance.get("clusterObjects"), None, "the Corefile has no kubernetes");
}

#[tokio::test]
async fn objects_of_clusters_are_numbers_of_the_instance_alone() {
    let api = Api::new();
    api.store.set_known(Input::Services);
    let spec = |labels: &str| ClusterSpec { labels: labels.to_owned(), ..ClusterSpec::default() };
    let clusters = [api.clusters.cluster(spec("")), api.clusters.cluster(spec("a=b"))];
    clusters[0].set_namespace("shop", true);
    for cluster in &clusters {
        let service = Service { addressing: Addressing::Headless, ports: [].into() };
        cluster.set_service(&ServiceKey::new("shop", "hidden"), Some(service), &[]);
    }
    let page = async |path: &str| {
        body(router(api.status()).oneshot(get_from("localhost", path)).await.unwrap()).await
    };
    let expected = serde_json::json!({ "services": 2, "endpointslices": 0, "namespaces": 1 });
    assert_eq!(page("/api/instance").await["clusterObjects"], expected);
    for path in ["/api/instance", "/api/links"] {
        assert!(!page(path).await.to_string().contains("hidden"), "{path}");
    }
}

/// Serves a router on loopback. Returns the address, and the task, which ends when it is dropped.
async fn listening(router: Router, stop: &CancellationToken) -> (SocketAddr, AbortOnDropHandle<()>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let stop = stop.clone();
    let serving =
        async move { crate::dns::server::probes::serve(listener, || None, router, stop).await.unwrap() };
    (address, AbortOnDropHandle::new(tokio::spawn(serving)))
}

#[tokio::test]
async fn client_reads_the_links_and_notices_changes() {
    let api = Api::new();
    let _recording = api.record().await;
    let (address, _serving) = listening(router(api.status()), &api.stop).await;
    let mut client = InstanceClient::of_links(address, &LinkFilter::default());
    let error = client.links().await.unwrap_err();
    assert!(
        matches!(&error, ClientError::NotReady(why) if why == "the load balancers haven't been read yet"),
        "{error}"
    );
    api.store.set_known(Input::Services);
    api.apply("shop", "web", "a.example.").await;
    let listing = client.links().await.unwrap().unwrap();
    assert_eq!((listing.instance.as_str(), listing.items.len()), ("replica-1", 1));
    assert!(client.links().await.unwrap().is_none());
    api.apply("shop", "web", "b.example.").await;
    assert_eq!(client.links().await.unwrap().unwrap().items[0].target.as_deref(), Some("b.example"));
}

#[tokio::test]
async fn client_recognizes_another_program() {
    let stop = CancellationToken::new();
    let other = Router::new().route("/api/links", get(|| async { "<html>" }));
    let (address, _serving) = listening(other, &stop).await;
    let error = InstanceClient::of_links(address, &LinkFilter::default()).links().await.unwrap_err();
    assert!(matches!(error, ClientError::UnexpectedAnswer(_)), "{error}");
    let (address, _serving) = listening(Router::new(), &stop).await;
    let error = InstanceClient::of_links(address, &LinkFilter::default()).links().await.unwrap_err();
    assert!(matches!(error, ClientError::UnexpectedAnswer(_)), "{error}");
    let held = crate::held_port::HeldPort::take().unwrap();
    let error = InstanceClient::of_links(held.local(), &LinkFilter::default()).links().await.unwrap_err();
    assert!(matches!(error, ClientError::Unreachable(_)), "{error}");
}

#[tokio::test]
async fn newest_change_of_a_link_has_its_present_state() {
    let api = Api::new();
    let _recording = api.record().await;
    api.store.set_known(Input::Services);
    for host in ["a.example.", "b.example."] {
        api.apply("shop", "web", host).await;
    }
    let why = Some("annotation linker.hsj.com/ttl is ignored");
    api.facts.findings.services.set(&ServiceKey::new("shop", "web"), why);
    let listed = body(api.ask(get_from("localhost", "/api/links?namespace=shop&service=web")).await).await;
    let link = &listed["items"][0];
    let states: Vec<&Value> =
        link["history"].as_array().unwrap().iter().map(|event| &event["state"]).collect();
    assert_eq!((&link["state"], states), (&json!("Degraded"), vec![&json!("Ready"), &json!("Degraded")]));
}
