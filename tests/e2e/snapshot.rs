//! `--snapshot`: DNS after a start without the API server.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use hickory_proto::op::ResponseCode;
use nix::sys::signal::Signal;
use serde_json::json;
use tempfile::TempDir;

use crate::failover::{Shop, shortest_check};
use crate::harness::cluster::Ingress;
use crate::harness::dns::{
    IN_CLIENT_TIMEOUT, answers, ask_repeatedly, ask_udp, ask_within, ede, query, short, show,
    without_foreign_ttls,
};
use crate::harness::linker::{Linker, run_to_end, run_to_end_with};
use crate::harness::{LINKER, apply_deploy, eventually, permission};
use crate::recreation::wait_for_external_target;

/// The metric with the age of the snapshot that is served.
const AGE: &str = "lb_linker_snapshot_age_seconds";

/// The file of a snapshot, in a directory of its own, and the arguments of a replica that uses it.
struct SnapshotFile {
    directory: TempDir,
    args: Vec<String>,
}

impl SnapshotFile {
    /// Returns a file that doesn't exist yet. The kubeconfig is made now, because that needs the API server.
    fn new(shop: &Shop) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let kubeconfig = shop.plane.kubeconfig_for_service_account("lb-linker", "lb-linker");
        let upstream = shop.upstream.resolver.address.to_string();
        let path = directory.path().join("links");
        let args = ["--kubeconfig", kubeconfig.to_str().unwrap(), "--upstream", &upstream];
        let args = [&args[..], &["--snapshot", path.to_str().unwrap()]].concat();
        Self { directory, args: args.into_iter().map(str::to_owned).collect() }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("links")
    }

    /// Waits until the file has this text.
    async fn has(&self, text: &str) {
        has(&self.path(), text).await;
    }

    async fn start(&self) -> Linker {
        let linker = Linker::start(&self.args);
        linker.ready().await;
        linker
    }
}

async fn has(path: &Path, text: &str) {
    let read = || async { fs::read_to_string(path).ok().filter(|content| content.contains(text)) };
    eventually(&format!("{text} in {}", path.display()), read).await;
}

/// Checks that all answers to a question are from a snapshot, also those of caches.
async fn assert_from_snapshot(linker: &Linker, question: &str, expected: &str) {
    let message = query(question);
    for answer in ask_repeatedly(linker.dns, &message).await {
        assert_eq!(without_foreign_ttls(&show(&answer)), expected, "{question}");
        assert_eq!(ede(&answer), Some(3), "{question}");
    }
    // Only clients with EDNS get the extended error.
    let mut plain = message;
    plain.edns = None;
    assert!(ask_udp(linker.dns, &plain).await.edns.is_none());
}

/// Asks a question without pause until `end` is set, and checks that each answer is one of `expected`.
async fn ask_until(linker: &Linker, question: &'static str, expected: [&'static str; 2], end: &AtomicBool) {
    while !end.load(Ordering::Relaxed) {
        let answer = short(linker.dns, question).await;
        assert!(expected.contains(&&*answer), "{question}: {answer}");
    }
}

/// Why the API server doesn't answer.
#[derive(Clone, Copy, Debug, PartialEq)]
enum ApiServerOutage {
    /// The API server refuses connections.
    Stopped,
    /// The API server accepts connections, but answers no request.
    Silent,
}

async fn start_without_api_server(outage: ApiServerOutage) {
    let shop = Shop::open(&[]).await;
    let file = SnapshotFile::new(&shop);
    shop.load_balancer("shop", "web", "a.example.com").await;
    shop.load_balancer("shop", "old", "b.example.com").await;
    shop.cluster.create_load_balancer("shop", "ips").await;
    shop.cluster.set_ingress("shop", "ips", &[Ingress::Ip("192.0.2.7")]).await;
    // The StableName announces its second source, because `pin` names this source.
    shop.create(
        "pinned",
        json!({
            "sources": [
                {"name": "first", "hostname": "first.example.com"},
                {"name": "second", "hostname": "second.example.com"},
            ],
            "pin": "second", "check": shortest_check(),
        }),
    )
    .await;
    let linker = file.start().await;
    answers(linker.dns, "pinned-shop.lb.internal. CNAME", "second.example.com.").await;
    for text in ["a.example.com", "b.example.com", "192.0.2.7", "second.example.com"] {
        file.has(text).await;
    }
    assert_eq!(linker.metric(AGE), Some(0.0));
    linker.counts("lb_linker_snapshot_links", 4.0).await;
    eventually("the time of the last write", || async {
        (linker.metric("lb_linker_snapshot_last_write_timestamp_seconds")? > 1e9).then_some(())
    })
    .await;
    assert_eq!(fs::metadata(file.path()).unwrap().mode() & 0o777, 0o600);
    drop(linker);

    // The next lb-linker can't learn of these changes before the API server answers.
    shop.cluster.set_ingress("shop", "web", &[Ingress::Hostname("new.example.com")]).await;
    shop.cluster.delete_service("shop", "old").await;
    match outage {
        ApiServerOutage::Stopped => shop.plane.stop_apiserver(),
        ApiServerOutage::Silent => shop.plane.signal_apiserver(Signal::SIGSTOP),
    }
    let linker = file.start().await;
    let (code, note) = linker.get_ready();
    assert_eq!(code, 200);
    assert!(note.starts_with("serving a snapshot of 20"), "{note}");
    assert!(note.ends_with(" old: the API server doesn't answer"), "{note}");
    assert!(linker.metric(AGE).unwrap() >= 1.0);
    for (name, target) in [("web", "a"), ("old", "b"), ("pinned", "second")] {
        for name in [format!("{name}-shop"), format!("{name}.shop")] {
            let alias = format!("{name}.lb.internal. 5 IN CNAME {target}.example.com.");
            let question = format!("{name}.lb.internal. CNAME");
            assert_from_snapshot(&linker, &question, &format!("No Error aa rd ra | {alias} |  | ")).await;
            let address = format!("{target}.example.com. TTL IN A 192.0.2.1");
            let mut records = [address, alias];
            records.sort();
            let expected = format!("No Error aa rd ra | {} |  | ", records.join(", "));
            let question = format!("{name}.lb.internal. A");
            let first = ask_within(IN_CLIENT_TIMEOUT, linker.dns, &query(&question)).await;
            assert_eq!((without_foreign_ttls(&show(&first)), ede(&first)), (expected.clone(), Some(3)));
            assert_from_snapshot(&linker, &question, &expected).await;
        }
    }
    let expected = "No Error aa rd ra | ips.shop.lb.internal. 5 IN A 192.0.2.7 |  | ";
    assert_from_snapshot(&linker, "ips.shop.lb.internal. A", expected).await;
    let absence_of_ipv6 = ask_udp(linker.dns, &query("ips-shop.lb.internal. AAAA")).await;
    assert_eq!(absence_of_ipv6.metadata.response_code, ResponseCode::NoError);
    assert_eq!((absence_of_ipv6.answers.len(), ede(&absence_of_ipv6)), (0, Some(3)));
    // Names that aren't in the snapshot may exist, so the answer isn't NXDOMAIN.
    for question in ["none-shop.lb.internal. A", "shop.lb.internal. A", "none.shop.lb.internal. CNAME"] {
        let answer = ask_udp(linker.dns, &query(question)).await;
        assert_eq!(answer.metadata.response_code, ResponseCode::ServFail, "{question}");
        assert_eq!(ede(&answer), Some(14), "{question}");
    }
    let line = linker.line("DNS answers from the snapshot").await;
    assert!(line.contains("the API server doesn't answer: ") && line.contains("(links: 4); other"), "{line}");

    let (linker, end) = (Arc::new(linker), Arc::new(AtomicBool::new(false)));
    let asking = |question, expected| {
        let (linker, end) = (Arc::clone(&linker), Arc::clone(&end));
        tokio::spawn(async move { ask_until(&linker, question, expected, &end).await })
    };
    let web = asking("web-shop.lb.internal. CNAME", ["a.example.com.", "new.example.com."]);
    let pinned = asking("pinned-shop.lb.internal. CNAME", ["second.example.com."; 2]);
    match outage {
        ApiServerOutage::Stopped => shop.plane.start_apiserver(),
        ApiServerOutage::Silent => shop.plane.signal_apiserver(Signal::SIGCONT),
    }
    answers(linker.dns, "web-shop.lb.internal. CNAME", "new.example.com.").await;
    for (question, expected) in [
        ("web-shop.lb.internal. CNAME", "new.example.com."),
        ("web.shop.lb.internal. A", "new.example.com. 192.0.2.1"),
        ("pinned.shop.lb.internal. CNAME", "second.example.com."),
        ("ips-shop.lb.internal. A", "192.0.2.7"),
    ] {
        answers(linker.dns, question, expected).await;
        for answer in ask_repeatedly(linker.dns, &query(question)).await {
            assert_eq!(ede(&answer), None, "{question}");
        }
    }
    // Its last target stays until a look-up has shown that its Service is gone.
    answers(linker.dns, "old-shop.lb.internal. A", "No Error").await;
    assert_eq!(ede(&ask_udp(linker.dns, &query("old-shop.lb.internal. A")).await), None);
    end.store(true, Ordering::Relaxed);
    web.await.unwrap();
    pinned.await.unwrap();
    assert_eq!(linker.get_ready(), (200, "OK".to_owned()));
    linker.counts(AGE, 0.0).await;
    linker.line("the load balancers are read: DNS doesn't use the snapshot").await;
    file.has("new.example.com").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn start_without_api_server_answers_from_the_snapshot() {
    start_without_api_server(ApiServerOutage::Stopped).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn start_with_silent_api_server_answers_from_the_snapshot() {
    start_without_api_server(ApiServerOutage::Silent).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn snapshot_causes_no_write_while_the_list_is_forbidden() {
    let shop = Shop::open(&[]).await;
    let file = SnapshotFile::new(&shop);
    shop.load_balancer("shop", "web", "a.example.com").await;
    shop.load_balancer("shop", "old", "b.example.com").await;
    let linker = file.start().await;
    file.has("b.example.com").await;
    for (name, host) in [("web-shop-ext", "a.example.com"), ("old-shop-ext", "b.example.com")] {
        wait_for_external_target(&shop.cluster, "external-targets", name, host).await;
    }
    drop(linker);

    // The snapshot differs from what the external targets say, and from what the load balancers say.
    let drift = json!({"spec": {"externalName": "drift.example.com"}});
    shop.cluster.patch_service("external-targets", "web-shop-ext", drift).await;
    shop.cluster.delete_service("external-targets", "old-shop-ext").await;
    shop.cluster.delete_service("shop", "old").await;
    shop.plane.kubectl(&["delete", "clusterrolebinding", "lb-linker"]);
    permission(&shop.plane, false, &["list", "services", "-A", LINKER]).await;
    let before = shop.plane.audit_events().len();
    let linker = file.start().await;
    assert_eq!(linker.get_ready().0, 200);
    let is_refused = || async {
        linker
            .get_ready()
            .1
            .ends_with(": the API server answers 403 to the list of LoadBalancer Services in all namespaces")
            .then_some(())
    };
    eventually("a note about the refusal", is_refused).await;
    let alias = "web-shop.lb.internal. 5 IN CNAME a.example.com.";
    assert_from_snapshot(
        &linker,
        "web-shop.lb.internal. CNAME",
        &format!("No Error aa rd ra | {alias} |  | "),
    )
    .await;
    // lb-linker tries the list several times; writes could follow each try.
    let forbidden = || async {
        let events = shop.plane.audit_events().split_off(before);
        let lists = events.iter().filter(|it| it.is_list() && it.resource == "services" && it.code == 403);
        (lists.count() >= 3).then_some(())
    };
    eventually("forbidden lists", forbidden).await;
    let events = shop.plane.audit_events().split_off(before);
    let writes = events.iter().filter(|event| event.is_write() && event.user.contains("lb-linker"));
    let writes: Vec<_> = writes.filter(|event| event.resource != "leases").collect();
    assert!(writes.is_empty(), "{writes:#?}");
    assert_eq!(linker.writes(), 0.0);
    assert_eq!(linker.metric(r#"lb_linker_links{state="live"}"#), Some(0.0));

    apply_deploy(&shop.plane);
    wait_for_external_target(&shop.cluster, "external-targets", "web-shop-ext", "a.example.com").await;
    assert_eq!(linker.get_ready(), (200, "OK".to_owned()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_snapshot_is_set_aside_at_the_start() {
    let shop = Shop::open(&[]).await;
    let file = SnapshotFile::new(&shop);
    shop.load_balancer("shop", "web", "a.example.com").await;
    let linker = file.start().await;
    file.has("a.example.com").await;
    drop(linker);
    let damaged = fs::read_to_string(file.path()).unwrap().replace("a.example.com", "b.example.com");
    fs::write(file.path(), &damaged).unwrap();
    let linker = file.start().await;
    let path = file.path();
    let path = path.display();
    let line = format!(
        "the snapshot {path} isn't used: its checksum doesn't match its content; it was renamed to {path}.damaged, and a new one \
         will be written"
    );
    linker.line(&line).await;
    assert_eq!(linker.logged(&line), 1, "{:#?}", linker.log());
    assert_eq!(fs::read_to_string(format!("{path}.damaged")).unwrap(), damaged);
    answers(linker.dns, "web-shop.lb.internal. CNAME", "a.example.com.").await;
    file.has("a.example.com").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_disk_keeps_the_last_snapshot_and_delays_no_sync() {
    let shop = Shop::open(&[]).await;
    shop.load_balancer("shop", "web", "a.example.com").await;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("links");
    let kubeconfig = shop.plane.kubeconfig_for_service_account("lb-linker", "lb-linker");
    let linker = Linker::start_on_small_disk(
        directory.path(),
        [
            "--kubeconfig",
            kubeconfig.to_str().unwrap(),
            "--snapshot",
            path.to_str().unwrap(),
            "--upstream",
            "none",
        ],
    );
    linker.ready().await;
    // The directory as the process sees it.
    let inside = PathBuf::from(format!("/proc/{}/root{}", linker.id(), directory.path().display()));
    let (file, filler) = (inside.join("links"), inside.join("filler"));
    has(&file, "a.example.com").await;
    let before = fs::read(&file).unwrap();
    let full = (0..1_000).find(|_| {
        let mut filled = fs::read(&filler).unwrap_or_default();
        filled.extend([0; 1024]);
        fs::write(&filler, filled).is_err()
    });
    assert!(full.is_some());

    shop.cluster.set_ingress("shop", "web", &[Ingress::Hostname("b.example.com")]).await;
    answers(linker.dns, "web-shop.lb.internal. CNAME", "b.example.com.").await;
    let line = linker.line("can't be written: No space left on device").await;
    assert!(line.contains("it stays as it was; retrying"), "{line}");
    let failures = "lb_linker_snapshot_write_failures_total";
    eventually("two failures", || async { (linker.metric(failures)? >= 2.0).then_some(()) }).await;
    assert_eq!(linker.logged("can't be written"), 1);
    assert_eq!(fs::read(&file).unwrap(), before);
    wait_for_external_target(&shop.cluster, "external-targets", "web-shop-ext", "b.example.com").await;

    fs::remove_file(filler).unwrap();
    has(&file, "b.example.com").await;
    linker.line("is written again").await;
}

#[test]
fn check_rejects_unusable_snapshot_flags() {
    let directory = tempfile::tempdir().unwrap();
    let kubeconfig = directory.path().join("config");
    let text = "{apiVersion: v1, kind: Config, current-context: a, contexts: [{name: a, context: {cluster: a, user: \
                a}}], clusters: [{name: a, cluster: {server: https://192.0.2.1}}], users: [{name: a}]}";
    fs::write(&kubeconfig, text).unwrap();
    let check = |args: &[&str]| {
        let output = run_to_end([&["check", "--kubeconfig", kubeconfig.to_str().unwrap()], args].concat());
        let [out, err] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
        (output.status.code(), out, err)
    };
    let path = directory.path().join("links");
    let (code, out, err) = check(&["--snapshot", path.to_str().unwrap()]);
    assert_eq!((code, &*err), (Some(0), ""));
    assert!(
        out.contains(&format!("{}\n", path.display())) && out.contains("--snapshot-max-age  24h"),
        "{out}"
    );
    for (args, expected) in [
        (
            ["--snapshot", "/nonexistent/links"],
            "--snapshot /nonexistent: the directory can't be used; create it, or name another one: No such file or directory",
        ),
        (["--snapshot", directory.path().to_str().unwrap()], ": this is a directory; name a file in it"),
        (["--snapshot-max-age", "day"], "not a duration such as 0s, 90s, 10m or 1h30m"),
    ] {
        let (code, _, err) = check(&args);
        assert!(code == Some(2) && err.contains(expected), "{code:?} {err}");
    }
    let (code, _, err) = check(&["--snapshot", path.to_str().unwrap(), "--snapshot-max-age", "0s"]);
    assert!(
        code == Some(2) && err.contains("--snapshot-max-age 0s: no snapshot would ever be used"),
        "{err}"
    );
    let (code, _, err) = check(&["--snapshot-max-age", "0s"]);
    assert_eq!((code, &*err), (Some(0), ""), "without --snapshot the time has no effect");
    let conflict = run_to_end(["check", "--manifests", "/tmp", "--snapshot", "links"]);
    assert_eq!(conflict.status.code(), Some(2));
    let variables = [("LB_LINKER_SNAPSHOT", "/nonexistent/links"), ("LB_LINKER_SNAPSHOT_MAX_AGE", "2h")];
    let output = run_to_end_with(&variables, ["check", "--kubeconfig", kubeconfig.to_str().unwrap()]);
    assert!(String::from_utf8(output.stdout).unwrap().contains("--snapshot-max-age  2h"));
}
