//! A server that sends what etcd never sends.

use std::time::Duration;

use serde_json::json;
use tokio::time::{sleep, timeout};

use super::fake_etcd::{FakeEtcd, Fault, header, kv};
use super::following::{A, answers};
use crate::dns::plugins::tests::support::TestServer;

/// Waits for a note with this text.
pub(super) async fn failure(server: &TestServer, expected: &str) {
    let plugin = server.server.plugins().find(|plugin| plugin.name() == "etcd").unwrap();
    let waited = timeout(Duration::from_secs(60), async {
        while !plugin.note().is_some_and(|note| note.contains(expected)) {
            sleep(Duration::from_millis(5)).await;
        }
    });
    assert!(waited.await.is_ok(), "{expected:?} isn't in {:?}", plugin.note());
}

#[tokio::test]
async fn lists_that_arent_etcds_are_refused() {
    let etcd = FakeEtcd::start().await;
    let misplaced = "it sends keys that weren't asked for, or in another order";
    let page = |kvs: &[serde_json::Value]| json!({"header": header(5), "kvs": kvs, "more": true}).to_string();
    for (body, expected) in [
        (page(&[kv("/skydns/z/a", A, 1)]), misplaced),
        (page(&[kv("/skydns/z/b", A, 1), kv("/skydns/z/a", A, 1)]), misplaced),
        (page(&[kv("/other", A, 1)]), misplaced),
        (page(&[]), "its answer isn't that of etcd's gateway (etcd 3.4 or newer): a page without keys"),
        (
            "<html>\u{1b}[31m".to_owned(),
            "its answer isn't that of etcd's gateway (etcd 3.4 or newer): expected value",
        ),
        ("[".repeat(100_000), "invalid type: sequence"),
        (String::new(), "EOF while parsing"),
    ] {
        etcd.set_fault("/v3/kv/range", Some(Fault::Body(body)));
        let (server, _stop, _tasks) = TestServer::running(&etcd.lines());
        failure(&server, expected).await;
    }
    for (status, body, expected) in [
        (
            404,
            "page not found",
            "its answer isn't that of etcd's gateway (etcd 3.4 or newer): status 404 Not Found, page",
        ),
        (
            403,
            r#"{"code":7,"message":"etcdserver: permission denied"}"#,
            "it refuses (7): etcdserver: permission denied: the user",
        ),
        (
            400,
            r#"{"code":3,"message":"etcdserver: user name is empty"}"#,
            "add the option \"credentials USERNAME PASSWORD\"",
        ),
    ] {
        etcd.set_fault("/v3/kv/range", Some(Fault::Status(status, body.to_owned())));
        let (server, _stop, _tasks) = TestServer::running(&etcd.lines());
        failure(&server, expected).await;
    }
}

#[tokio::test]
async fn lines_of_watches_are_limited_and_checked() {
    let etcd = FakeEtcd::start().await;
    etcd.put("/skydns/z/a", A);
    let line = |events: serde_json::Value| {
        json!({"result": {"header": header(9), "events": events}}).to_string() + "\n"
    };
    for (lines, expected) in [
        ("x".repeat(9 << 20), "an answer has more than 8 MiB"),
        ("{}\n".to_owned(), "its answer isn't that of etcd's gateway"),
        (
            "{\"error\":{\"grpc_code\":14,\"message\":\"etcdserver: no leader\"}}\n".to_owned(),
            "it refuses (14): etcdserver: no leader",
        ),
        (line(json!([{"kv": kv("/elsewhere", A, 9)}])), "it sends keys that weren't asked for"),
        (line(json!([{"type": "OTHER", "kv": kv("/skydns/z/a", A, 9)}])), "unknown variant"),
    ] {
        etcd.set_fault("/v3/watch", Some(Fault::Lines(lines)));
        let (server, _stop, _tasks) = TestServer::running(&etcd.lines());
        failure(&server, expected).await;
        assert!(server.ask("a.z. A").await.contains("192.0.2.1"), "{expected}");
    }
}

#[tokio::test]
async fn long_values_are_left_out_whatever_their_length() {
    let etcd = FakeEtcd::start().await;
    etcd.put("/skydns/z/a", A);
    etcd.put("/skydns/z/b", &format!("{{\"text\":\"{}\"}}", "x".repeat(9 << 20)));
    for number in 0..300 {
        etcd.put(
            &format!("/skydns/z/long{number:03}"),
            &format!("{{\"text\":\"{}\"}}", "x".repeat(64 << 10)),
        );
    }
    etcd.put("/skydns/z/z", A);
    let (server, _stop, _tasks) = TestServer::running(&etcd.lines());
    answers(&server, "z.z. A", "192.0.2.1").await;
    assert!(server.ask("a.z. A").await.contains("192.0.2.1"));
    for name in ["b", "long000", "long299"] {
        assert!(server.ask(&format!("{name}.z. TXT")).await.starts_with("SERVFAIL"), "{name}");
    }
    let asked = etcd.asked("/v3/kv/range");
    assert!(asked.iter().any(|asked| asked["keys_only"] == true));
    let limits: Vec<_> = asked.iter().map(|asked| asked["limit"].as_u64()).collect();
    assert!(limits.windows(2).any(|two| two[0] < two[1]), "pages become longer again: {limits:?}");
}

#[tokio::test]
async fn wrong_values_leave_other_keys_in_place() {
    let etcd = FakeEtcd::start().await;
    etcd.put("/skydns/z/a", A);
    let (server, _stop, _tasks) = TestServer::running(&etcd.lines());
    answers(&server, "a.z. A", "192.0.2.1").await;
    etcd.put("/skydns/z/a/x", "\u{1b}[31m");
    answers(&server, "a.z. A", "SERVFAIL").await;
    etcd.put("/skydns/z/a/y", A);
    answers(&server, "a.z. A", "192.0.2.1").await;
    etcd.put("/skydns/z/a/x", r#"{"host":"192.0.2.3"}"#);
    answers(&server, "a.z. A", "192.0.2.3").await;
}
