//! The keys are listed, and their changes followed.

use std::sync::Arc;
use std::time::Duration;

use hickory_proto::op::ResponseCode;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::fake_etcd::{FakeEtcd, Fault, header, kv};
use super::hostile::failure;
use crate::dns::plugins::tests::fake_upstream::{FakeUpstream, address, error};
use crate::dns::plugins::tests::support::TestServer;

pub(super) const A: &str = r#"{"host":"192.0.2.1"}"#;
const B: &str = r#"{"host":"192.0.2.2"}"#;

/// Waits until a question gets an answer with this text.
pub(super) async fn answers(server: &TestServer, question: &str, expected: &str) {
    let answered = async {
        loop {
            let found = server.ask(question).await;
            if found.contains(expected) {
                return;
            }
            sleep(Duration::from_millis(5)).await;
        }
    };
    // A debug build reads 28 MB of values for some of these tests, beside other tests.
    if timeout(Duration::from_secs(180), answered).await.is_err() {
        panic!("{question}: {expected:?} isn't in {:?}", server.ask(question).await);
    }
}

#[tokio::test]
async fn keys_are_listed_and_changes_end_kept_answers() {
    let etcd = FakeEtcd::start().await;
    etcd.put("/skydns/z/a", A);
    etcd.put("/skydns/other/a", A);
    let (server, _stop, _tasks) = TestServer::running(&etcd.lines());
    let reply = server.reply("a.z. A").await.unwrap();
    assert_eq!(reply.records.answers[0].to_string(), "a.z. 300 IN A 192.0.2.1");
    let (validity, rests_on) = (reply.validity.unwrap(), reply.rests_on.unwrap());
    assert!(!validity.is_outdated() && !rests_on.is_outdated());
    let absent = server.reply("b.z. A").await.unwrap();
    assert_eq!(absent.metadata.response_code, ResponseCode::NXDomain);
    etcd.put("/skydns/z/a/x", B);
    answers(&server, "a.z. A", "192.0.2.2").await;
    assert!(validity.is_outdated() && rests_on.is_outdated() && absent.validity.unwrap().is_outdated());
    etcd.delete("/skydns/z/a/x");
    answers(&server, "a.z. A", "192.0.2.1").await;
    etcd.delete("/skydns/z/a");
    answers(&server, "a.z. A", "NXDOMAIN").await;
    assert_eq!(etcd.lists(), 1);
    assert_eq!(server.reply("a.other. A").await.unwrap().metadata.response_code, ResponseCode::ServFail);
}

#[tokio::test]
async fn answers_stay_while_etcd_is_away() {
    let etcd = FakeEtcd::start().await;
    etcd.put("/skydns/z/a", A);
    let (server, _stop, _tasks) = TestServer::running(&etcd.lines());
    answers(&server, "a.z. A", "192.0.2.1").await;
    let plugin = || server.server.plugins().find(|plugin| plugin.name() == "etcd").unwrap().note();
    for path in ["/v3/watch", "/v3/kv/range"] {
        etcd.set_fault(path, Some(Fault::Close));
    }
    etcd.close_watches();
    timeout(Duration::from_secs(60), async {
        while !plugin().is_some_and(|note| note.contains("the connection has failed")) {
            sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .unwrap();
    let note = plugin().unwrap();
    assert!(
        note.starts_with(&format!("etcd: http://{}: the connection has failed: ", etcd.address)),
        "{note}"
    );
    assert!(note.ends_with("; the keys before stay"), "{note}");
    answers(&server, "a.z. A", "192.0.2.1").await;
    etcd.put("/skydns/z/a", B);
    for path in ["/v3/watch", "/v3/kv/range"] {
        etcd.set_fault(path, None);
    }
    answers(&server, "a.z. A", "192.0.2.2").await;
    assert_eq!(plugin(), None);
    assert_eq!(etcd.lists(), 1, "the watch goes on at its revision");
}

#[tokio::test]
async fn keys_are_listed_again_after_a_compaction() {
    let etcd = FakeEtcd::start().await;
    etcd.put("/skydns/z/a", A);
    let (server, _stop, _tasks) = TestServer::running(&etcd.lines());
    answers(&server, "a.z. A", "192.0.2.1").await;
    etcd.set_fault("/v3/watch", Some(Fault::Close));
    etcd.close_watches();
    etcd.put_silently("/skydns/z/a", B);
    etcd.compact();
    etcd.set_fault("/v3/watch", None);
    answers(&server, "a.z. A", "192.0.2.2").await;
}

#[tokio::test]
async fn restored_backup_is_listed_again() {
    let etcd = FakeEtcd::start().await;
    etcd.set_revision(100);
    etcd.put("/skydns/z/a", A);
    let (server, _stop, _tasks) = TestServer::running(&etcd.lines());
    answers(&server, "a.z. A", "192.0.2.1").await;
    // The same key with the same revision, but another value.
    etcd.set_revision(100);
    etcd.put_silently("/skydns/z/a", B);
    etcd.set_revision(50);
    etcd.close_watches();
    answers(&server, "a.z. A", "192.0.2.2").await;
}

#[tokio::test]
async fn second_server_is_asked_when_the_first_is_away() {
    let (away, etcd) = (FakeEtcd::start().await, FakeEtcd::start().await);
    away.set_fault("/v3/kv/range", Some(Fault::Close));
    etcd.put("/skydns/z/a", A);
    let lines = format!("etcd z {{\nendpoint http://{} http://{}\n}}", away.address, etcd.address);
    let (server, _stop, _tasks) = TestServer::running(&lines);
    answers(&server, "a.z. A", "192.0.2.1").await;
    assert_eq!(away.lists(), 1);
}

#[tokio::test]
async fn lines_of_a_block_have_zones_of_their_own() {
    let (one, other) = (FakeEtcd::start().await, FakeEtcd::start().await);
    one.put("/skydns/z/a", A);
    other.put("/skydns/y/a", B);
    let lines = format!("{}\n{}", one.lines(), other.lines().replace("etcd z", "etcd y"));
    let (server, _stop, _tasks) = TestServer::running(&lines);
    answers(&server, "a.z. A", "192.0.2.1").await;
    answers(&server, "a.y. A", "192.0.2.2").await;
}

#[tokio::test]
async fn user_gets_a_token() {
    let etcd = FakeEtcd::start().await;
    etcd.put("/skydns/z/a", A);
    let lines = format!("etcd z {{\nendpoint http://{}\ncredentials dns hunter2\n}}", etcd.address);
    let (server, _stop, _tasks) = TestServer::running(&lines);
    answers(&server, "a.z. A", "192.0.2.1").await;
    let asked = etcd.asked("/v3/auth/authenticate");
    assert_eq!(asked[0], serde_json::json!({"name": "dns", "password": "hunter2"}));
}

#[tokio::test]
async fn names_without_keys_fall_through() {
    let etcd = FakeEtcd::start().await;
    etcd.put("/skydns/z/a/x", A);
    let upstream = FakeUpstream::start(|asked, _| {
        let is_known = asked.queries[0].name().to_string() == "b.z.";
        Some(if is_known { address(asked, 9) } else { error(asked, ResponseCode::NXDomain) })
    });
    let upstream = upstream.await;
    let lines = etcd.lines().replace("etcd z {", "etcd z {\nfallthrough");
    let lines = format!("{lines}\nforward . {}", upstream.address);
    let (server, _stop, _tasks) = TestServer::running(&lines);
    answers(&server, "a.z. A", "192.0.2.1").await;
    let reply = server.reply("b.z. A").await.unwrap();
    assert_eq!(reply.records.answers.len(), 1);
    let rests_on = reply.rests_on.unwrap();
    assert!(server.ask("c.z. A").await.starts_with("NXDOMAIN"));
    assert!(
        server.ask("a.z. CNAME").await.starts_with("NOERROR aa | | z. 30 IN SOA ns.dns.z. hostmaster.z.")
    );
    etcd.put("/skydns/z/b", A);
    answers(&server, "b.z. A", "192.0.2.1").await;
    assert!(rests_on.is_outdated());
}

#[tokio::test]
async fn block_that_is_built_again_has_the_same_keys() {
    let etcd = FakeEtcd::start().await;
    etcd.put("/skydns/z/a", A);
    let lines = etcd.lines();
    let blocks = format!(". {{\n{lines}\n}}\n.:54 {{\n{lines}\n}}\n");
    let (server, mut configuration) = TestServer::configured(&blocks);
    let mut run = |block: usize| {
        let (stop, mut tasks) = (CancellationToken::new(), JoinSet::new());
        for task in std::mem::take(&mut configuration.blocks[block].builder.tasks) {
            tasks.spawn(task(Arc::clone(&server.server), stop.clone()));
        }
        (stop, tasks)
    };
    let (stop, mut tasks) = run(0);
    answers(&server, "a.z. A", "192.0.2.1").await;
    let (_stop, _tasks) = run(1);
    stop.cancel();
    tasks.join_next().await;
    assert!(server.ask("a.z. A").await.contains("192.0.2.1"), "the last answers");
    etcd.put("/skydns/z/a", B);
    answers(&server, "a.z. A", "192.0.2.2").await;
    assert_eq!(etcd.lists(), 1);
}

#[tokio::test(start_paused = true)]
async fn server_that_becomes_silent_is_noted() {
    let etcd = FakeEtcd::start().await;
    etcd.put("/skydns/z/a", A);
    let (server, _stop, _tasks) = TestServer::running(&etcd.lines());
    answers(&server, "a.z. A", "192.0.2.1").await;
    let begins_and_is_silent = Fault::Lines(String::new());
    for (watch, list, value, expected) in
        [(Fault::Silence, Some(Fault::Silence), B, "192.0.2.2"), (begins_and_is_silent, None, A, "192.0.2.1")]
    {
        etcd.set_fault("/v3/watch", Some(watch));
        etcd.set_fault("/v3/kv/range", list);
        etcd.close_watches();
        failure(&server, "no answer within 10 s; the keys before stay").await;
        ["/v3/watch", "/v3/kv/range"].iter().for_each(|path| etcd.set_fault(path, None));
        etcd.put("/skydns/z/a", value);
        answers(&server, "a.z. A", expected).await;
    }
    assert_eq!(etcd.lists(), 1);
}

#[tokio::test]
async fn member_that_lags_behind_is_watched() {
    let etcd = FakeEtcd::start().await;
    etcd.set_revision(100);
    etcd.put("/skydns/z/a", A);
    let created = json!({"result": {"header": header(50), "created": true}});
    let change = json!({"result": {"header": header(102), "events": [{"kv": kv("/skydns/z/a", B, 102)}]}});
    etcd.set_fault("/v3/watch", Some(Fault::Lines(format!("{created}\n{change}\n"))));
    let (server, _stop, _tasks) = TestServer::running(&etcd.lines());
    answers(&server, "a.z. A", "192.0.2.2").await;
    assert_eq!(etcd.lists(), 1);
}

#[tokio::test(start_paused = true)]
async fn watch_that_misses_changes_is_replaced() {
    let etcd = FakeEtcd::start().await;
    etcd.put("/skydns/z/a", A);
    let (server, _stop, _tasks) = TestServer::running(&etcd.lines());
    answers(&server, "a.z. A", "192.0.2.1").await;
    etcd.put_silently("/skydns/z/b", B);
    answers(&server, "b.z. A", "192.0.2.2").await;
}

#[tokio::test(start_paused = true)]
async fn silent_server_is_left() {
    let etcd = FakeEtcd::start().await;
    etcd.set_fault("/v3/kv/range", Some(Fault::Silence));
    let (server, _stop, _tasks) = TestServer::running(&etcd.lines());
    let plugin = server.server.plugins().find(|plugin| plugin.name() == "etcd").unwrap();
    assert_eq!(plugin.note().as_deref(), Some("etcd: the keys below /skydns aren't listed yet"));
    timeout(Duration::from_secs(60), async {
        while !plugin.note().is_some_and(|note| note.contains("no answer within 10 s; no keys are known")) {
            sleep(Duration::from_millis(100)).await;
        }
    })
    .await
    .unwrap();
    assert!(plugin.is_ready());
    let reply = server.reply("a.z. A").await.unwrap();
    assert_eq!(reply.ede.map(|ede| ede.code), Some(14));
    for number in 0..300 {
        etcd.put_silently(&format!("/skydns/y/{number}"), B);
    }
    etcd.put_silently("/skydns/z/a", A);
    etcd.set_fault("/v3/kv/range", None);
    answers(&server, "a.z. A", "192.0.2.1").await;
    let limits: Vec<_> = etcd.asked("/v3/kv/range").iter().map(|asked| asked["limit"].as_u64()).collect();
    assert_eq!(limits[..2], [Some(1000), Some(125)], "it asks for less");
    assert!(limits.is_sorted_by(|before, after| before >= after), "{limits:?}");
}
