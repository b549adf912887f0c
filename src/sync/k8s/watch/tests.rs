use std::convert::Infallible;
use std::sync::Mutex;

use axum::body::Body;
use axum::http::{Response, StatusCode};
use kube::ResourceExt;
use serde_json::{Value, json};

use crate::sync::k8s::service::Service;
use crate::sync::k8s::watch::*;

/// A stubbed response: a status and lines, after which the response ends or stays open.
struct StubResponse {
    status: u16,
    lines: Vec<Value>,
    ends: bool,
}

fn closed(lines: Vec<Value>) -> StubResponse {
    StubResponse { status: 200, lines, ends: true }
}

fn open_ended(lines: Vec<Value>) -> StubResponse {
    StubResponse { status: 200, lines, ends: false }
}

fn refused(status: u16) -> StubResponse {
    StubResponse { status, lines: vec![failure(status)], ends: true }
}

fn failure(code: u16) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": code, "reason": "r",
        "message": "m"})
}

/// Returns a page of a list.
fn page(version: &str, token: &str, names: &[&str]) -> StubResponse {
    let items: Vec<Value> = names.iter().map(|name| object(name, version)).collect();
    closed(vec![
        json!({"kind": "ServiceList", "metadata": {"resourceVersion": version, "continue": token}, "items": items}),
    ])
}

fn object(name: &str, version: &str) -> Value {
    json!({"metadata": {"namespace": "a", "name": name, "uid": name, "resourceVersion": version}})
}

fn event(kind: &str, name: &str, version: &str) -> Value {
    json!({"type": kind, "object": object(name, version)})
}

fn bookmark(version: &str, ends_list: bool) -> Value {
    let annotations = if ends_list { json!({"k8s.io/initial-events-end": "true"}) } else { json!({}) };
    json!({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": version, "annotations": annotations}}})
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestKind {
    Stream,
    Page,
    Watch,
}

/// The requests to the stub: kind, query, and the time in seconds.
#[derive(Clone, Default)]
struct RequestLog(Arc<Mutex<Vec<(RequestKind, String, u64)>>>);

impl RequestLog {
    fn of(&self, asked: RequestKind) -> Vec<u64> {
        let all = self.0.lock().unwrap();
        all.iter().filter(|(what, ..)| *what == asked).map(|(.., at)| *at).collect()
    }

    fn queries(&self) -> Vec<String> {
        self.0.lock().unwrap().iter().map(|(_, query, _)| query.clone()).collect()
    }
}

/// Returns the requests to an API server stub, and a list/watch loop on the stub. `answer` gets the kind of a request,
/// and the number of earlier requests of this kind.
fn api_server(
    answer: impl Fn(RequestKind, usize) -> StubResponse + Send + Sync + 'static,
) -> (RequestLog, WatchStream<Service>) {
    api_server_for(&ApiAvailability::default(), answer)
}

fn api_server_for(
    availability: &ApiAvailability,
    answer: impl Fn(RequestKind, usize) -> StubResponse + Send + Sync + 'static,
) -> (RequestLog, WatchStream<Service>) {
    let requests = RequestLog::default();
    let (log, start, answer) = (requests.clone(), Instant::now(), Arc::new(answer));
    let service = tower::service_fn(move |request: axum::http::Request<kube::client::Body>| {
        let query = request.uri().query().unwrap_or_default().to_owned();
        let asked = match query.contains("watch=true") {
            true if query.contains("sendInitialEvents=true") => RequestKind::Stream,
            true => RequestKind::Watch,
            false => RequestKind::Page,
        };
        let before = log.of(asked).len();
        log.0.lock().unwrap().push((asked, query, start.elapsed().as_secs()));
        let StubResponse { status, lines, ends } = answer(asked, before);
        let lines = lines.into_iter().map(|line| Ok::<_, Infallible>(format!("{line}\n")));
        let lines = futures::stream::iter(lines);
        let body = if ends {
            Body::from_stream(lines)
        } else {
            Body::from_stream(lines.chain(futures::stream::pending()))
        };
        let mut response = Response::new(body);
        *response.status_mut() = StatusCode::from_u16(status).unwrap();
        std::future::ready(Ok::<_, Infallible>(response))
    });
    let client = Client::new(service, "default");
    let staleness = crate::sync::test_support::metrics::<crate::metrics::staleness::Staleness>();
    let activity = staleness.watch("test");
    (requests, list_watch(client, RequestQuery::default(), activity, availability.clone()))
}

/// Returns an item in short form.
fn said(item: &WatchItem<Service>) -> String {
    match item {
        Ok(Event::ListBegins) => "begins".to_owned(),
        Ok(Event::Listed(object)) => format!("listed {}", object.name_any()),
        Ok(Event::ListEnds { rewound: false, .. }) => "ends".to_owned(),
        Ok(Event::ListEnds { version, rewound: true }) => format!("ends, rewound to {}", version.unwrap()),
        Ok(Event::Resumed) => "resumed".to_owned(),
        Ok(Event::Applied(object)) => format!("applied {}", object.name_any()),
        Ok(Event::Deleted(object)) => format!("deleted {}", object.name_any()),
        Err(WatchError::Unidentified) => "unidentified".to_owned(),
        Err(error) => format!("error {}", error.code()),
    }
}

/// Returns the items of the next `seconds` seconds.
async fn said_for(events: &mut WatchStream<Service>, seconds: u64) -> Vec<String> {
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut all = Vec::new();
    while let Ok(Some(item)) = tokio::time::timeout_at(end, events.next()).await {
        all.push(said(&item));
    }
    all
}

#[test]
fn error_ends_when_the_object_can_be_decoded() {
    let mut object_errors = ObjectErrors::default();
    let key = ServiceKey::new("", "web");
    for (ports, is_error) in [(json!(5), true), (json!([]), false), (json!(5), true)] {
        let object = json!({"metadata": {"name": "web"}, "spec": {"ports": ports}});
        let object: RawDeserializeGuard<Service> = serde_json::from_str(&object.to_string()).unwrap();
        assert_eq!(decoded(object, &mut object_errors).is_none(), is_error);
        assert_eq!(object_errors.of(&key).is_some(), is_error);
    }
}

#[tokio::test(start_paused = true)]
async fn streamed_list_continues_as_a_watch() {
    let (requests, mut events) = api_server(|asked, before| match (asked, before) {
        (RequestKind::Stream, 0) => open_ended(vec![
            event("ADDED", "web", "5"),
            event("ADDED", "api", "3"),
            event("DELETED", "web", "6"),
            bookmark("4", false),
            bookmark("6", true),
            event("MODIFIED", "api", "7"),
            event("DELETED", "api", "8"),
            bookmark("9", false),
        ]),
        (RequestKind::Watch, 0) => open_ended(vec![event("ADDED", "db", "10")]),
        other => panic!("{other:?}"),
    });
    let said = said_for(&mut events, 100).await;
    let expected = [
        "begins",
        "listed web",
        "listed api",
        "ends",
        "deleted web",
        "applied api",
        "deleted api",
        "applied db",
    ];
    assert_eq!(said, expected);
    let queries = requests.queries();
    assert!(queries[0].contains("resourceVersionMatch=NotOlderThan"), "{queries:?}");
    assert!(
        queries[0].ends_with("resourceVersion=") && queries[1].ends_with("resourceVersion=9"),
        "{queries:?}"
    );
    assert!(queries.iter().all(|query| query.contains("allowWatchBookmarks=true")), "{queries:?}");
}

#[tokio::test(start_paused = true)]
async fn modified_object_of_a_streamed_list_counts_once() {
    let (requests, mut events) = api_server(|asked, _| match asked {
        RequestKind::Stream => {
            open_ended(vec![event("ADDED", "web", "3"), event("MODIFIED", "web", "5"), bookmark("5", true)])
        }
        RequestKind::Page => page("5", "", &["web"]),
        RequestKind::Watch => open_ended(vec![]),
    });
    said_for(&mut events, 2000).await;
    // Lists without changes follow after 150, 300, 600 and 600 s.
    assert_eq!(requests.of(RequestKind::Stream), [0, 150, 450, 1050, 1650]);
}

#[tokio::test(start_paused = true)]
async fn unidentified_object_in_a_streamed_list_causes_paging() {
    for field in ["namespace", "name", "resourceVersion"] {
        let (requests, mut events) = api_server(move |asked, _| match asked {
            RequestKind::Stream => {
                let mut lost = event("ADDED", "web", "5");
                lost["object"]["metadata"][field] = "".into();
                open_ended(vec![lost, bookmark("5", true)])
            }
            RequestKind::Page => page("5", "", &["web"]),
            RequestKind::Watch => open_ended(vec![]),
        });
        assert_eq!(said_for(&mut events, 40).await, ["begins", "error 0", "begins", "listed web", "ends"]);
        assert_eq!(
            (requests.of(RequestKind::Stream).len(), requests.of(RequestKind::Page).len()),
            (1, 1),
            "{field}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn refused_stream_causes_paging_for_an_hour() {
    let (requests, mut events) = api_server(|asked, before| match (asked, before) {
        (RequestKind::Stream, _) => refused(422),
        (RequestKind::Page, before) if before % 2 == 0 => page("100", "next", &["web"]),
        (RequestKind::Page, _) => page("100", "", &["api"]),
        // The older version causes another list.
        (RequestKind::Watch, _) => open_ended(vec![event("MODIFIED", "web", "1")]),
    });
    let said = said_for(&mut events, 3500).await;
    assert_eq!(said[..5], ["begins", "begins", "listed web", "listed api", "ends"]);
    assert_eq!(requests.of(RequestKind::Stream), [0]);
    assert!(requests.of(RequestKind::Page).len() > 10);
    let first_pages: Vec<String> =
        requests.queries().into_iter().filter(|query| !query.contains("watch")).take(2).collect();
    assert!(
        first_pages[0].contains("limit=10") && !first_pages[0].contains("resourceVersion"),
        "{first_pages:?}"
    );
    assert!(first_pages[1].contains("continue=next"), "{first_pages:?}");
    said_for(&mut events, 200).await;
    assert_eq!(requests.of(RequestKind::Stream).len(), 2);
}

#[tokio::test(start_paused = true)]
async fn stream_without_an_end_causes_paging() {
    let (requests, mut events) = api_server(|asked, _| match asked {
        RequestKind::Stream => open_ended(vec![event("ADDED", "web", "5")]),
        RequestKind::Page => page("100", "", &["web"]),
        RequestKind::Watch => open_ended(vec![event("ADDED", "api", "101")]),
    });
    let said = said_for(&mut events, 49).await;
    assert_eq!(said, ["begins", "listed web", "error 0", "begins", "listed web", "ends", "applied api"]);
    assert_eq!((requests.of(RequestKind::Stream), requests.of(RequestKind::Page).len()), (vec![0], 1));
}

#[tokio::test(start_paused = true)]
async fn resumed_watch_without_events_ends_an_outage() {
    let availability = ApiAvailability::default();
    let (_, mut events) = api_server_for(&availability, |asked, _| match asked {
        RequestKind::Stream => closed(vec![bookmark("5", true)]),
        RequestKind::Page => page("5", "", &[]),
        RequestKind::Watch => open_ended(vec![]),
    });
    for expected in ["begins", "ends"] {
        assert_eq!(said(&events.next().await.unwrap()), expected);
    }
    availability.report("connection refused");
    assert_eq!(said_for(&mut events, 5).await, [""; 0]);
    assert!(availability.outage().is_none());
}

#[tokio::test(start_paused = true)]
async fn watch_accepted_after_a_failure_is_resumed() {
    let (_, mut events) = api_server(|asked, before| match (asked, before) {
        (RequestKind::Stream, _) => closed(vec![bookmark("5", true)]),
        (RequestKind::Watch, 0) => refused(500),
        (RequestKind::Watch, _) => open_ended(vec![event("ADDED", "web", "6")]),
        (RequestKind::Page, _) => page("5", "", &[]),
    });
    let said = said_for(&mut events, 20).await;
    assert_eq!(said, ["begins", "ends", "error 500", "resumed", "applied web"], "it isn't listed again");
}

#[tokio::test(start_paused = true)]
async fn watch_that_closes_at_once_backs_off() {
    let (requests, mut events) = api_server(|asked, _| match asked {
        RequestKind::Stream => closed(vec![bookmark("5", true)]),
        RequestKind::Page => page("100", "", &[]),
        RequestKind::Watch => closed(vec![]),
    });
    said_for(&mut events, 600).await;
    let watches = requests.of(RequestKind::Watch).len();
    assert!((10..60).contains(&watches), "{watches} in ten minutes");
}

#[tokio::test(start_paused = true)]
async fn code_410_causes_lists_with_backoff() {
    type Answers = fn(RequestKind, usize) -> StubResponse;
    let cases: [(&str, Answers); 4] = [
        ("at the start of the watch", |asked, _| match asked {
            RequestKind::Stream => closed(vec![bookmark("5", true)]),
            RequestKind::Page => page("5", "", &[]),
            RequestKind::Watch => refused(410),
        }),
        ("in the watch", |asked, _| match asked {
            RequestKind::Stream => closed(vec![bookmark("5", true)]),
            RequestKind::Page => page("5", "", &[]),
            RequestKind::Watch => closed(vec![json!({"type": "ERROR", "object": failure(410)})]),
        }),
        ("of a page", |asked, before| match (asked, before % 2) {
            (RequestKind::Stream, _) => refused(422),
            (RequestKind::Page, 0) => page("5", "next", &["web"]),
            _ => refused(410),
        }),
        ("of a stream", |asked, _| match asked {
            RequestKind::Stream => closed(vec![json!({"type": "ERROR", "object": failure(410)})]),
            _ => refused(410),
        }),
    ];
    for (place, answers) in cases {
        let (requests, mut events) = api_server(answers);
        let said = said_for(&mut events, 600).await;
        let lists = said.iter().filter(|said| *said == "begins").count();
        assert!((10..70).contains(&lists), "{lists} lists in ten minutes, {place}");
        assert!(requests.queries().len() < 200, "{} requests, {place}", requests.queries().len());
        assert!(said.contains(&"error 410".to_owned()), "{place}: {said:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn silent_watch_is_relisted_at_growing_intervals() {
    let (requests, mut events) = api_server(|asked, _| match asked {
        RequestKind::Stream => refused(400),
        RequestKind::Page => page("5", "", &["web"]),
        RequestKind::Watch => open_ended(vec![]),
    });
    said_for(&mut events, 2000).await;
    // Lists follow after 150, 300, 600 and 600 s.
    assert_eq!(requests.of(RequestKind::Page), [0, 150, 450, 1050, 1650]);
    let watches = requests.of(RequestKind::Watch).len();
    assert!((36..45).contains(&watches), "each lasts for 55 s: {watches}");
}

#[tokio::test(start_paused = true)]
async fn older_list_replaces_state_and_reports_a_rewind() {
    let (_, mut events) = api_server(|asked, before| match (asked, before) {
        (RequestKind::Stream, _) => refused(422),
        (RequestKind::Page, 0) => page("500", "", &["web", "api"]),
        (RequestKind::Page, _) => page("100", "", &["web"]),
        (RequestKind::Watch, _) => open_ended(vec![]),
    });
    let said = said_for(&mut events, 200).await;
    let expected = [
        "begins",
        "begins",
        "listed web",
        "listed api",
        "ends",
        "begins",
        "listed web",
        "ends, rewound to 100",
    ];
    assert_eq!(said, expected);
}

#[tokio::test(start_paused = true)]
async fn restore_of_etcd_is_noticed_after_an_outage() {
    let (requests, mut events) = api_server(|asked, before| match (asked, before) {
        (RequestKind::Stream, 0) => closed(vec![event("ADDED", "new", "500"), bookmark("500", true)]),
        (RequestKind::Stream, _) => open_ended(vec![event("ADDED", "old", "90"), bookmark("100", true)]),
        (RequestKind::Watch, _) | (RequestKind::Page, 0..3) => refused(503),
        (RequestKind::Page, _) => page("100", "more", &["old"]),
    });
    let said = said_for(&mut events, 40).await;
    let expected = [
        "begins",
        "listed new",
        "ends",
        "error 503",
        "error 503",
        "error 503",
        "error 503",
        "begins",
        "listed old",
        "ends, rewound to 100",
    ];
    assert_eq!(said, expected);
    assert_eq!(
        requests.of(RequestKind::Watch).len(),
        1,
        "no watch continues from the version before the restore"
    );
    assert_eq!(requests.of(RequestKind::Page).len(), 4);
}

#[tokio::test(start_paused = true)]
async fn event_without_key_or_version_causes_a_list() {
    for lost in [
        json!({"type": "ADDED", "object": {"metadata": {"namespace": "a", "resourceVersion": "9"}}}),
        json!({"type": "ADDED", "object": {"metadata": {"name": "web", "resourceVersion": "9"}}}),
        json!({"type": "ADDED", "object": {"metadata": {"namespace": "a", "name": "web"}}}),
        json!({"type": "ADDED", "object": {"metadata": {"namespace": "a", "name": "web", "resourceVersion": ""}}}),
        json!({"type": "ADDED", "object": 5}),
        json!(["nonsense"]),
    ] {
        let sent = lost.clone();
        let (requests, mut events) = api_server(move |asked, before| match (asked, before) {
            (RequestKind::Stream, 0) => open_ended(vec![bookmark("5", true), sent.clone()]),
            (RequestKind::Stream, _) => open_ended(vec![event("ADDED", "web", "9"), bookmark("9", true)]),
            other => panic!("{other:?}"),
        });
        let said = said_for(&mut events, 40).await;
        assert_eq!(said, ["begins", "ends", "unidentified", "begins", "listed web", "ends"], "{lost}");
        assert_eq!(requests.of(RequestKind::Stream).len(), 2);
    }
    // An undecodable object is passed on if its key and its resourceVersion are readable.
    let broken = json!({"type": "ADDED", "object": {"metadata": {"namespace": "a", "name": "web", "resourceVersion": "9"}, "spec": 5}});
    let (_, mut events) = api_server(move |_, _| open_ended(vec![bookmark("5", true), broken.clone()]));
    assert_eq!(said_for(&mut events, 40).await, ["begins", "ends", "applied web"]);
}

#[tokio::test(start_paused = true)]
async fn retry_after_is_respected() {
    let (requests, mut events) = api_server(|_, _| {
        let mut status = failure(429);
        status["details"] = json!({"retryAfterSeconds": 100});
        StubResponse { status: 429, lines: vec![status], ends: true }
    });
    said_for(&mut events, 350).await;
    assert_eq!(requests.of(RequestKind::Stream), [0, 100, 200, 300]);
}

#[tokio::test(start_paused = true)]
async fn find_times_out_on_a_stalled_body() {
    let service = tower::service_fn(|_: axum::http::Request<kube::client::Body>| {
        let begin = futures::stream::iter([Ok::<_, Infallible>("{\"items\": [")]);
        let body = Body::from_stream(begin.chain(futures::stream::pending()));
        std::future::ready(Ok::<_, Infallible>(Response::new(body)))
    });
    let (client, query) = (Client::new(service, "default"), RequestQuery::named("a", "web"));
    let found = timeout(Duration::from_secs(11), find::<Service>(client, &query)).await;
    assert!(matches!(found, Ok(Err(kube::Error::ReadEvents(_)))), "{:?}", found.map(|found| found.is_ok()));
}
