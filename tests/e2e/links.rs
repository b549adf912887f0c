//! `lb-linker links`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::symlink;
use std::process::{Command, Output, Stdio};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::answers::with_upstream;
use crate::harness::cluster::Ingress;
use crate::harness::control_plane::ControlPlane;
use crate::harness::dns::{CoreDns, ask_udp, query};
use crate::harness::linker::{Linker, bare, get_from, run_to_end, run_to_end_with};
use crate::harness::port::HeldPort;
use crate::harness::process::Process;
use crate::harness::programs::programs;
use crate::harness::{cluster_with_target, eventually, permission, replace_file};
use crate::recreation::wait_for_external_target;
use crate::source::own_cluster;

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[tokio::test]
async fn links_lists_what_lb_linker_would_serve() {
    let (plane, cluster, target) = cluster_with_target().await;
    let namespace = cluster.create_namespace("listed").await;
    for name in ["denied", "pending", "web"] {
        cluster.create_load_balancer(&namespace, name).await;
    }
    cluster.set_ingress(&namespace, "denied", &[Ingress::Hostname("localhost")]).await;
    cluster.set_ingress(&namespace, "web", &[Ingress::Hostname("a.example.com")]).await;
    let kubeconfig = plane.kubeconfig_for_service_account("lb-linker", "lb-linker");
    let links = |arguments: &[&str]| {
        let common = [
            "links",
            "-n",
            &namespace,
            "--kubeconfig",
            kubeconfig.to_str().unwrap(),
            "--target-namespace",
            &target,
        ];
        run_to_end([&common[..], arguments].concat())
    };

    let output = links(&[]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let table = text(&output.stdout);
    let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["SERVICE", "DNS", "NAME", "TARGET", "EXTERNAL", "TARGET", "STATE", "AGE"]);
    let name = |service: &str| format!("{service}-{namespace}.lb.internal");
    let external = |service: &str| format!("{target}/{service}-{namespace}-ext");
    assert_eq!(rows[1][..5], ["denied", &name("denied"), "<none>", "<none>", "Refused"]);
    assert_eq!(rows[2][..5], ["pending", &name("pending"), "<pending>", "<none>", "Pending"]);
    assert_eq!(rows[3][..5], ["web", &name("web"), "a.example.com", &external("web"), "Degraded"]);
    // On a slow machine it may have minutes.
    let is_age = |age: &str| age.chars().all(|c| c.is_ascii_digit() || c == 's' || c == 'm');
    assert!(is_age(rows[3][5]) && rows.len() == 4, "{table}");
    // The column STATE shows the refusal, so no log line repeats it.
    let errors = text(&output.stderr);
    assert!(!errors.contains(&namespace), "{errors}");

    let items: Value = serde_json::from_slice(&links(&["-o", "json", "web"]).stdout).unwrap();
    assert_eq!(items["items"][0]["target"], "a.example.com");
    assert_eq!(items["items"].as_array().unwrap().len(), 1);
    let detail = text(&links(&["web"]).stdout);
    assert!(
        detail.starts_with(&format!(
            "Service:          {namespace}/web\nState:            Degraded\n\
             Reason:           its external target doesn't exist\n"
        )),
        "{detail}"
    );
    let output = links(&["absent"]);
    assert_eq!(
        (output.status.code(), text(&output.stderr)),
        (Some(1), format!("no load balancer or StableName {namespace}/absent found\n"))
    );
    // Nothing was written.
    assert!(cluster.get_service(&target, &format!("web-{namespace}-ext")).await.is_none());
}

/// The end of the program once closed connections that were in use, and these were logged.
#[tokio::test]
async fn links_logs_no_lost_connection_at_its_end() {
    let (plane, cluster, target) = cluster_with_target().await;
    let namespace = cluster.create_namespace("ended").await;
    let kubeconfig = plane.kubeconfig_for_service_account("lb-linker", "lb-linker");
    let arguments = ["links", "absent", "-n", &namespace, "--target-namespace", &target, "--kubeconfig"];
    let run = || {
        let mut command = bare();
        command.args(arguments).arg(&kubeconfig);
        text(&command.output().unwrap().stderr)
    };
    // Side by side, because the order of two threads matters, and often, because it seldom was the wrong one.
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..8).map(|_| scope.spawn(|| (0..8).map(|_| run()).collect())).collect();
        let errors: Vec<String> =
            running.into_iter().flat_map(|it| -> Vec<String> { it.join().unwrap() }).collect();
        assert_eq!(errors, vec![format!("no load balancer or StableName {namespace}/absent found\n"); 64]);
    });
}

#[tokio::test]
async fn link_is_unresolved_while_its_target_cannot_be_resolved() {
    let upstream = CoreDns::cloud().await;
    let hosts = ["a", "broken", "missing"].map(|host| (host, format!("{{hostname: {host}.example.com}}")));
    let links: Vec<(&str, &str)> = hosts.iter().map(|(name, ingress)| (*name, &**ingress)).collect();
    let fixture = with_upstream(&links, upstream.address).await;
    let admin = fixture.linker.admin().await.to_string();
    for name in ["a", "broken", "missing"] {
        ask_udp(fixture.linker.dns, &query(&format!("{name}-default.lb.internal. A"))).await;
    }
    let failing = |host, rcode| format!("target {host}.example.com A: the upstream answers {rcode}");
    fixture.linker.line(&failing("missing", "NXDOMAIN")).await;
    eventually("the states", || async {
        let output = run_to_end(["links", "--admin-listen", &admin, "-o", "json"]);
        let listed: Value = serde_json::from_slice(&output.stdout).unwrap();
        let shown =
            |i: usize| [&listed["items"][i]["state"], &listed["items"][i]["reason"]].map(Value::clone);
        let is_unresolved = |i: usize, rcode: &str| {
            let [state, reason] = shown(i);
            let why = format!("failed: A: the upstream answers {rcode}");
            state == "Unresolved" && reason.as_str().is_some_and(|reason| reason.ends_with(&why))
        };
        (shown(0)[0] == "Ready" && is_unresolved(1, "SERVFAIL") && is_unresolved(2, "NXDOMAIN")).then_some(())
    })
    .await;
    assert_eq!(fixture.linker.metric("lb_linker_dns_targets_failing"), Some(2.0));
    fixture.set(&links[..1]);
    eventually("no failing target", || async {
        (fixture.linker.metric("lb_linker_dns_targets_failing") == Some(0.0)).then_some(())
    })
    .await;
}

#[tokio::test]
async fn watched_links_are_printed_when_they_change() {
    let (plane, cluster, target) = cluster_with_target().await;
    let namespace = cluster.create_namespace("watched").await;
    cluster.create_load_balancer(&namespace, "web").await;
    let kubeconfig = plane.kubeconfig_for_service_account("lb-linker", "lb-linker");
    let mut command = bare();
    command.args(["links", "-w", "-n", &namespace, "--target-namespace", &target, "--kubeconfig"]);
    command.arg(kubeconfig).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut watching = Process::spawn(command).unwrap();
    let mut lines = BufReader::new(watching.stdout().unwrap()).lines().map(Result::unwrap);
    assert!(lines.next().unwrap().starts_with("SERVICE"));
    assert!(lines.next().unwrap().contains("<pending>"));
    cluster.set_ingress(&namespace, "web", &[Ingress::Hostname("b.example.com")]).await;
    let changed = lines.next().unwrap();
    assert!(changed.starts_with("web ") && changed.contains("b.example.com"), "{changed}");
}

#[test]
fn watch_that_begins_without_links_prints_the_header() {
    let directory = tempfile::tempdir().unwrap();
    let mut command = bare();
    command.args(["links", "-w", "--manifests", directory.path().to_str().unwrap()]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut watching = Process::spawn(command).unwrap();
    let mut errors = BufReader::new(watching.stderr().unwrap()).lines().map(Result::unwrap);
    assert_eq!(errors.next().unwrap(), "no load balancer found");
    let manifest = |name: &str| {
        let text = format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: shop}}\nspec: {{type: LoadBalancer}}\n"
        );
        std::fs::write(directory.path().join(format!("{name}.yaml")), text).unwrap();
    };
    manifest("web");
    let mut lines = BufReader::new(watching.stdout().unwrap()).lines().map(Result::unwrap);
    assert!(lines.next().unwrap().starts_with("NAMESPACE   SERVICE"));
    assert!(lines.next().unwrap().starts_with("shop        web "));
    manifest("db");
    assert!(lines.next().unwrap().starts_with("shop "));
}

#[tokio::test]
async fn other_program_at_the_admin_address_is_reported() {
    let (plane, cluster, target) = cluster_with_target().await;
    let namespace = cluster.create_namespace("passed").await;
    cluster.create_load_balancer(&namespace, "web").await;
    let kubeconfig = plane.kubeconfig_for_service_account("lb-linker", "lb-linker");
    let links = |address: SocketAddr| {
        let variables =
            [("LB_LINKER_ADMIN_LISTEN", &*address.to_string()), ("KUBECONFIG", kubeconfig.to_str().unwrap())];
        run_to_end_with(&variables, ["links", "-n", &namespace, "--target-namespace", &target])
    };
    let about_it = |errors: &str| errors.matches("--admin-listen").count();
    for answer in [
        "200 OK\r\ncontent-length: 14\r\n\r\n{\"\u{1b}[2J\": true}",
        "503 Service Unavailable\r\ncontent-length: 4\r\n\r\nbusy",
        "304 Not Modified\r\n\r\n",
    ] {
        let other = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = other.local_addr().unwrap();
        let answering = std::thread::spawn(move || {
            let (mut stream, _) = other.accept().unwrap();
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            while reader.by_ref().lines().next().is_some_and(|line| !line.unwrap().is_empty()) {}
            stream.write_all(format!("HTTP/1.1 {answer}").as_bytes()).unwrap();
        });
        let output = links(address);
        answering.join().unwrap();
        let errors = text(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{errors}");
        let found = format!("--admin-listen {address}: no answer of an lb-linker of this version: ");
        let is_named = errors.contains("; the links are read from API server http");
        assert!(errors.contains(&found) && is_named, "{errors}");
        assert_eq!(about_it(&errors), 1, "{errors}");
        assert!(text(&output.stdout).contains("\nweb "), "{}", text(&output.stdout));
    }
    // Without a program at the address, one line says so.
    let output = links(HeldPort::take().unwrap().local());
    let errors = text(&output.stderr);
    assert_eq!((output.status.code(), about_it(&errors)), (Some(0), 1), "{errors}");
}

/// Runs `lb-linker links` with these arguments against the lb-linker at this address.
pub fn links_of(linker: SocketAddr, arguments: &[&str]) -> Output {
    run_to_end_with(&[("LB_LINKER_ADMIN_LISTEN", &linker.to_string())], [&["links"][..], arguments].concat())
}

#[tokio::test]
async fn links_of_a_running_lb_linker_have_a_history() {
    let (plane, cluster, target) = cluster_with_target().await;
    let namespace = cluster.create_namespace("told").await;
    let linker = Linker::in_cluster(plane, &target, &["--watch-namespaces", &namespace]);
    let admin = linker.admin().await;
    linker.ready().await;
    cluster.create_load_balancer(&namespace, "web").await;
    for hostname in ["a.example.com", "b.example.com"] {
        cluster.set_ingress(&namespace, "web", &[Ingress::Hostname(hostname)]).await;
        linker.line(&format!("{namespace}/web: ")).await;
        let shows = || async { text(&links_of(admin, &[]).stdout).contains(hostname).then_some(()) };
        eventually("the new target in the table", shows).await;
    }
    // A change is recorded a moment after it is served.
    let recorded = || async {
        let output = links_of(admin, &["web", "-n", &namespace]);
        let detail = text(&output.stdout);
        let history = detail.lines().skip_while(|line| !line.starts_with("History:")).skip(2);
        let history: Vec<Vec<String>> =
            history.map(|line| line.split_whitespace().skip(1).map(str::to_owned).collect()).collect();
        (history.len() >= 3).then_some((output, history))
    };
    let (output, history) = eventually("the last change in the history", recorded).await;
    let expected = [["Pending", "<none>"], ["Ready", "a.example.com"], ["Ready", "b.example.com"]];
    assert_eq!(history, expected);
    let from = text(&output.stderr);
    assert!(from.starts_with("from ") && from.ends_with(&format!(", the lb-linker at {admin}\n")), "{from}");
    let wrong = links_of(admin, &["--zone", "svc.cluster.local"]);
    let refused = "lb-linker: --zone svc.cluster.local lies in cluster.local";
    assert!(wrong.status.code() == Some(2) && text(&wrong.stderr).starts_with(refused), "{wrong:?}");
    // The links that are read from the API server are the same.
    let kubeconfig = plane.kubeconfig_for_service_account("lb-linker", "lb-linker");
    let kubeconfig = kubeconfig.to_str().unwrap();
    let direct = ["-n", &namespace, "-o", "json", "--target-namespace", &target, "--kubeconfig", kubeconfig];
    let are_equal = || async {
        // Until the external target is written, its state may differ.
        let direct: Value = serde_json::from_slice(&links_of(admin, &direct).stdout).unwrap();
        let told: Value = serde_json::from_slice(&links_of(admin, &["-o", "json"]).stdout).unwrap();
        (direct == told && told["items"][0]["state"] == "Ready").then_some(())
    };
    eventually("the same links from both", are_equal).await;
    assert_eq!(get_from(admin, "evil.example", "/api/links").0, 403);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn links_and_events_tell_what_is_wrong_with_a_service() {
    let plane = ControlPlane::lend();
    let cluster = plane.cluster().await;
    let target = "external-targets";
    let namespace = cluster.create_namespace("wrong").await;
    let linker = Linker::in_cluster(&plane, target, &["--upstream", "none", "--instance", "own"]);
    let admin = linker.admin().await;
    linker.ready().await;
    let ingress = |host: &'static str| [Ingress::Hostname(host)];
    for name in ["circle", "foreign", "typo", "well"] {
        cluster.create_load_balancer(&namespace, name).await;
        cluster.set_ingress(&namespace, name, &ingress("a.example.com")).await;
        wait_for_external_target(&cluster, target, &format!("{name}-{namespace}-ext"), "a.example.com").await;
    }
    let foreign = format!("foreign-{namespace}-ext");
    let other = json!({"metadata": {"annotations": {"linker.hsj.com/instance": "other"}}});
    cluster.patch_service(target, &foreign, other).await;
    cluster.set_ingress(&namespace, "foreign", &ingress("b.example.com")).await;
    let typo =
        json!({"metadata": {"annotations": {"linker.hsj.com/ttl": "5m", "linker.hsj.com/hostnam": "a"}}});
    cluster.patch_service(&namespace, "typo", typo).await;
    let own = format!("circle.{namespace}.lb.internal");
    cluster.set_ingress(&namespace, "circle", &[Ingress::Hostname(&own)]).await;

    let rows = || {
        let table = text(&links_of(admin, &["-n", &namespace, "-o", "wide"]).stdout);
        table.lines().skip(1).map(str::to_owned).collect::<Vec<_>>()
    };
    let expected = [
        ("circle ", " Kept ", "a DNS name of this object itself"),
        ("foreign ", " Conflict ", "it points at a.example.com"),
        ("typo ", " Degraded ", "\"5m\""),
        ("well ", " Ready ", "<none>"),
    ];
    let shows = || async {
        let is_expected = |(row, (name, state, reason)): (&String, &(&str, &str, &str))| {
            row.starts_with(name) && row.contains(state) && row.contains(reason)
        };
        let rows = rows();
        (rows.len() == 4 && rows.iter().zip(&expected).all(is_expected)).then_some(())
    };
    eventually(&format!("{expected:#?} in {:#?}", rows()), shows).await;
    assert_eq!(linker.metric("lb_linker_conflicts"), Some(1.0));
    for reason in ["AnnotationIgnored", "Conflict", "TargetRefused"] {
        let is_sent =
            || async { plane.event_reasons(&namespace).iter().any(|sent| sent == reason).then_some(()) };
        eventually(&format!("the Event {reason}"), is_sent).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn links_tell_how_old_they_are_in_an_outage() {
    let plane = ControlPlane::lend();
    let cluster = plane.cluster().await;
    cluster.create_load_balancer("default", "web").await;
    let args = ["--upstream", "none", "--leader-election", "lease", "--instance", "lb-linker/lb-linker"];
    let linker = Linker::in_cluster(&plane, "external-targets", &args);
    let admin = linker.admin().await;
    linker.ready().await;
    let unelected = Linker::in_cluster(&plane, "external-targets", &["--upstream", "none", "--sync", "plan"]);
    let of_unelected = unelected.admin().await;
    unelected.ready().await;
    let errors = || text(&links_of(admin, &[]).stderr);
    assert!(!errors().contains("old"), "{}", errors());
    let is_old = |text: &str| {
        text.contains("what lb-linker knows is ") && text.contains("the API server can't be reached")
    };
    let is_over = || async { (!errors().contains("what lb-linker knows is ")).then_some(()) };
    linker.line("leading now").await;
    // The first requests without an answer are those for the Lease.
    plane.signal_apiserver(Signal::SIGSTOP);
    linker.line("no answer within 5s (update Lease lb-linker/lb-linker)").await;
    eventually("the age of the view", || async { is_old(&errors()).then_some(()) }).await;
    unelected.line("no answer within 5s (get /version)").await;
    let is_told = || async { is_old(&text(&links_of(of_unelected, &[]).stderr)).then_some(()) };
    eventually("the age of the other view", is_told).await;
    plane.signal_apiserver(Signal::SIGCONT);
    eventually("the end of the notice", is_over).await;

    plane.stop_apiserver();
    eventually("the age of the view", || async { is_old(&errors()).then_some(()) }).await;
    let (status, note) = linker.get_ready();
    assert!(status == 200 && is_old(&note), "{note}");
    assert!(text(&links_of(admin, &[]).stdout).contains("web-default.lb.internal"));
    plane.start_apiserver();
    eventually("the end of the notice", is_over).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn followers_are_listed_by_leader_and_by_cluster() {
    let (plane, cluster) = own_cluster().await;
    let namespace = cluster.create_namespace("led").await;
    cluster.create_load_balancer(&namespace, "web").await;
    cluster.set_ingress(&namespace, "web", &[Ingress::Hostname("a.example.com")]).await;
    for (name, source, host) in
        [("db", "web", "by-hand"), ("lost", "absent", "by-hand"), ("right", "web", "a")]
    {
        let service = json!({
            "metadata": {"name": name, "annotations": {"linker.hsj.com/source": source}},
            "spec": {"type": "ExternalName", "externalName": format!("{host}.example.com")},
        });
        cluster.create_service(&namespace, service).await;
    }
    let kubeconfig = plane.kubeconfig_for_service_account("lb-linker", "lb-linker");
    let direct = ["--followers", "-n", &namespace, "--kubeconfig", kubeconfig.to_str().unwrap()];
    let rows = |output: Output| -> Vec<Vec<String>> {
        let table = text(&output.stdout);
        let words = |line: &str| line.split_whitespace().take(4).map(str::to_owned).collect();
        table.lines().skip(1).map(words).collect()
    };
    let source = |name: &str| format!("{namespace}/{name}");
    let row = |cells: [&str; 4]| cells.map(str::to_owned).to_vec();
    let lost = row(["lost", &source("absent"), "by-hand.example.com", "Refused"]);
    let right = row(["right", &source("web"), "a.example.com", "Ready"]);
    let before = run_to_end([&["links"][..], &direct].concat());
    assert!(text(&before.stdout).ends_with("no lb-linker has written it yet\n"), "{before:?}");
    let degraded = row(["db", &source("web"), "by-hand.example.com", "Degraded"]);
    assert_eq!(rows(before), [degraded, lost.clone(), right.clone()]);

    let linker = Linker::in_cluster(&plane, "external-targets", &["--upstream", "none"]);
    let admin = linker.admin().await;
    linker.ready().await;
    let expected = [row(["db", &source("web"), "a.example.com", "Ready"]), lost, right];
    let told =
        || async { (rows(links_of(admin, &["--followers", "-n", &namespace])) == expected).then_some(()) };
    eventually("the followers of the leader", told).await;
    assert_eq!(rows(run_to_end([&["links"][..], &direct].concat())), expected);
    // An lb-linker that doesn't lead doesn't know them: they are read from the API server.
    let off = Linker::in_cluster(&plane, "external-targets", &["--upstream", "none", "--sync", "off"]);
    let (address, path) = (off.admin().await.to_string(), kubeconfig.to_str().unwrap());
    off.ready().await;
    let variables = [("LB_LINKER_ADMIN_LISTEN", &*address), ("KUBECONFIG", path)];
    let output = run_to_end_with(&variables, ["links", "--followers", "-n", &namespace]);
    let errors = text(&output.stderr);
    assert!(errors.contains("doesn't know the Services that follow: only the leader does"), "{errors}");
    assert!(errors.contains("are read from API server http"), "{errors}");
    assert_eq!(rows(output), expected);
}

#[tokio::test]
async fn watched_links_of_a_running_lb_linker_are_printed() {
    let directory = tempfile::tempdir().unwrap();
    let manifest = |hostname: &str| {
        format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{name: web, namespace: shop}}\nspec: {{type: LoadBalancer}}\n\
             status: {{loadBalancer: {{ingress: [{{hostname: {hostname}}}]}}}}\n"
        )
    };
    let path = directory.path().join("web.yaml");
    std::fs::write(&path, manifest("a.example.com")).unwrap();
    let mut linker = Linker::start(["--manifests", directory.path().to_str().unwrap()]);
    let listed = links_of(linker.admin().await, &["--followers"]);
    assert!(listed.status.success() && listed.stdout.is_empty(), "{listed:?}");
    assert!(text(&listed.stderr).ends_with("no Service follows a load balancer by linker.hsj.com/source\n"));
    let admin = linker.admin().await;
    linker.ready().await;
    let mut command = bare();
    command.env("LB_LINKER_ADMIN_LISTEN", admin.to_string());
    command.args(["links", "-w"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut watching = Process::spawn(command).unwrap();
    let mut lines = BufReader::new(watching.stdout().unwrap()).lines().map(Result::unwrap);
    assert!(lines.next().unwrap().starts_with("NAMESPACE"));
    assert!(lines.next().unwrap().contains("a.example.com"));
    replace_file(&path, manifest("b.example.com"));
    assert!(lines.next().unwrap().contains("b.example.com"));
    std::fs::remove_file(&path).unwrap();
    let removed = lines.next().unwrap();
    assert!(removed.starts_with("shop ") && removed.contains(" Removed "), "{removed}");
    // When the lb-linker has stopped, the watch ends with an error.
    linker.stop();
    let errors = BufReader::new(watching.stderr().unwrap()).lines().map(Result::unwrap).last().unwrap();
    // The port closes while a request is under way, or before the next one.
    let messages = ["there is no lb-linker", "no answer of an lb-linker"];
    assert!(messages.iter().any(|message| errors.contains(message)), "{errors}");
}

#[tokio::test]
async fn link_without_external_target_is_degraded_after_a_grace() {
    let (plane, cluster, target) = cluster_with_target().await;
    let namespace = cluster.create_namespace("late").await;
    let linker = Linker::in_cluster(plane, &target, &["--watch-namespaces", &namespace, "--sync", "plan"]);
    let admin = linker.admin().await;
    linker.ready().await;
    cluster.create_load_balancer(&namespace, "web").await;
    let mut command = bare();
    command.env("LB_LINKER_ADMIN_LISTEN", admin.to_string());
    command.args(["links", "-w"]).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut watching = Process::spawn(command).unwrap();
    let mut lines = BufReader::new(watching.stdout().unwrap()).lines().map(Result::unwrap);
    while !lines.next().unwrap().contains("<pending>") {}
    cluster.set_ingress(&namespace, "web", &[Ingress::Hostname("a.example.com")]).await;
    // With `--sync plan` it is never written.
    for state in [" Ready ", " Degraded "] {
        let line = lines.next().unwrap();
        assert!(line.contains("a.example.com") && line.contains(state), "{line}");
    }
}

#[test]
fn status_page_accepts_only_loopback_addresses() {
    for address in ["0.0.0.0:8053", ":8053", "10.0.0.1:8053", "8053"] {
        let output = run_to_end(["--admin-listen", address]);
        assert_eq!(output.status.code(), Some(2));
        let errors = text(&output.stderr);
        assert!(errors.contains("not a loopback address and port such as 127.0.0.1:8053"), "{errors}");
    }
}

#[test]
fn unreachable_api_server_ends_commands_at_once() {
    let held = HeldPort::take().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let kubeconfig = directory.path().join("config");
    let config = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{{name: c, cluster: {{server: \"http://{}\"}}}}]\n\
         contexts: [{{name: c, context: {{cluster: c, user: u}}}}]\nusers: [{{name: u, user: {{}}}}]\n",
        held.local()
    );
    std::fs::write(&kubeconfig, config).unwrap();
    for command in ["links", "scan"] {
        let output = run_to_end([command, "--upstream=none", "--kubeconfig", kubeconfig.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(1));
        let expected = format!(
            "lb-linker: API server http://{}: can't list Services in all namespaces: Connection refused (os error 111)\n",
            held.local()
        );
        assert_eq!(text(&output.stderr), expected);
    }
    let output = run_to_end(["stub", "--kubeconfig", kubeconfig.to_str().unwrap()]);
    let expected = format!(
        "lb-linker: API server http://{} (context \"c\" of {}): can't read the version of the API server: Connection refused \
         (os error 111)\n",
        held.local(),
        kubeconfig.display()
    );
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(1), expected));
}

#[test]
fn silent_api_server_is_named_with_what_was_asked() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = format!("http://{}", silent.local_addr().unwrap());
    let directory = tempfile::tempdir().unwrap();
    let kubeconfig = directory.path().join("config");
    let config = format!(
        "clusters: [{{name: c, cluster: {{server: \"{server}\"}}}}]\ncontexts: [{{name: c, context: {{cluster: c}}}}]\n\
         current-context: c\n"
    );
    std::fs::write(&kubeconfig, config).unwrap();
    let output = run_to_end(["links", "--kubeconfig", kubeconfig.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    let errors = text(&output.stderr);
    let expected =
        format!("lb-linker: API server {server}: it hasn't answered within 10 s, when it was asked for ");
    assert!(errors.starts_with(&expected) && errors.lines().count() == 1, "{errors}");
}

#[tokio::test]
async fn missing_permission_ends_links_and_scan_at_once() {
    let (plane, cluster, _target) = cluster_with_target().await;
    let namespace = cluster.create_namespace("forbidden").await;
    plane.create_service_account(&namespace, "nobody");
    let kubeconfig = plane.kubeconfig_for_service_account(&namespace, "nobody");
    for command in ["links", "scan"] {
        let output = run_to_end([command, "--upstream=none", "--kubeconfig", kubeconfig.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(1));
        let errors = text(&output.stderr);
        assert!(
            errors.contains("can't list Services in all namespaces: the API server forbids it ("),
            "{errors}"
        );
        assert_eq!(errors.lines().count(), 1, "{errors}");
    }
}

#[tokio::test]
async fn refused_external_targets_are_one_warning() {
    let (plane, cluster, target) = cluster_with_target().await;
    let namespace = cluster.create_namespace("narrow").await;
    cluster.create_load_balancer(&namespace, "web").await;
    cluster.set_ingress(&namespace, "web", &[Ingress::Hostname("a.example.com")]).await;
    plane.create_service_account(&namespace, "reader");
    let to = format!("--serviceaccount={namespace}:reader");
    plane.kubectl(&["-n", &namespace, "create", "rolebinding", "reader", "--clusterrole=lb-linker", &to]);
    let user = format!("--as=system:serviceaccount:{namespace}:reader");
    permission(plane, true, &["list", "services", "-n", &namespace, &user]).await;
    let kubeconfig = plane.kubeconfig_for_service_account(&namespace, "reader");
    let arguments =
        ["links", "-n", &namespace, "--watch-namespaces", &namespace, "--target-namespace", &target];
    let output = run_to_end([&arguments[..], &["--kubeconfig", kubeconfig.to_str().unwrap()]].concat());
    let errors = text(&output.stderr);
    assert_eq!(errors.lines().filter(|line| line.contains(&target)).count(), 1, "{errors}");
    let warning = format!("can't list Services in namespace {target}: the API server forbids it (");
    let is_named = errors.contains(&warning) && errors.contains("has no Role in it");
    assert!(is_named && errors.contains("; the links are read without the external targets"), "{errors}");
    let is_ready =
        |table: &str| table.lines().any(|line| line.starts_with("web ") && line.contains(" Ready "));
    let table = text(&output.stdout);
    assert!(is_ready(&table), "{table}");

    // Without EndpointSlices it isn't known which addresses an external target has.
    plane.kubectl(&["-n", &target, "create", "role", &namespace, "--verb=list,watch", "--resource=services"]);
    plane.kubectl(&["-n", &target, "create", "rolebinding", &namespace, &format!("--role={namespace}"), &to]);
    permission(plane, true, &["list", "services", "-n", &target, &user]).await;
    cluster.set_ingress(&namespace, "web", &[Ingress::Ip("192.0.2.1")]).await;
    let output = run_to_end([&arguments[..], &["--kubeconfig", kubeconfig.to_str().unwrap()]].concat());
    let errors = text(&output.stderr);
    let warning = format!("can't list EndpointSlices in namespace {target}: the API server forbids it (");
    assert!(errors.contains(&warning) && errors.contains("their states aren't known"), "{errors}");
    let table = text(&output.stdout);
    assert!(is_ready(&table) && table.contains(" 192.0.2.1 "), "{table}");
}

#[test]
fn named_admin_address_without_an_answer_is_reported_first() {
    let held = HeldPort::take().unwrap();
    let address = held.local().to_string();
    let variables = [("KUBECONFIG", "/nonexistent"), ("HOME", "/nonexistent")];
    let output = run_to_end_with(&variables, ["links", "--admin-listen", &address]);
    let errors = text(&output.stderr);
    let (notice, error) = errors.split_once('\n').unwrap();
    let expected =
        format!("nothing answers at --admin-listen {address}; the links are read from the cluster");
    assert!(notice.contains(&expected) && error.contains("kubeconfig"), "{errors}");
}

#[test]
fn kubectl_finds_the_plugin_through_a_symlink() {
    let directory = tempfile::tempdir().unwrap();
    let manifests = directory.path().join("manifests");
    std::fs::create_dir(&manifests).unwrap();
    let manifest =
        "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: shop}\nspec: {type: LoadBalancer}\n";
    std::fs::write(manifests.join("web.yaml"), manifest).unwrap();
    symlink(env!("CARGO_BIN_EXE_lb-linker"), directory.path().join("kubectl-lb_linker")).unwrap();
    let output = Command::new(&programs().kubectl)
        .args(["lb-linker", "links", "-o", "name", "--manifests"])
        .arg(&manifests)
        .env("PATH", directory.path())
        .output()
        .unwrap();
    assert_eq!(text(&output.stdout), "service/web\n", "{}", text(&output.stderr));
}

/// The server answers as Go's does.
#[test]
fn wrong_url_of_the_api_server_is_reported_at_once() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let answering = std::thread::spawn(move || {
        while let Ok((mut client, _)) = listener.accept() {
            let mut request = [0; 4096];
            let answer = match client.read(&mut request).unwrap_or(0) {
                0 => return,
                _ if request.starts_with(b"GET /wrong/") => "404 Not Found\r\n\r\n404 page not found\n",
                _ => "400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n",
            };
            let _ = write!(client, "HTTP/1.0 {answer}");
        }
    });
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("config");
    for (server, expected) in [
        (format!("http://{address}"), "its URL has to begin with https://"),
        (
            format!("http://{address}/wrong"),
            "answered 404 404 page not found; the path of its URL may be wrong",
        ),
    ] {
        let kubeconfig = format!(
            "clusters: [{{name: c, cluster: {{server: '{server}'}}}}]\nusers: []\n\
             contexts: [{{name: c, context: {{cluster: c, user: ''}}}}]\ncurrent-context: c\n"
        );
        std::fs::write(&path, kubeconfig).unwrap();
        let output = run_to_end(["links", "--kubeconfig", path.to_str().unwrap()]);
        let errors = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{errors}");
        assert!(errors.contains(&format!("API server {server}: ")) && errors.contains(expected), "{errors}");
    }
    drop(std::net::TcpStream::connect(address));
    answering.join().unwrap();
}
