//! Answers and log lines that depend on the Pod of the client, in lb-linker and in CoreDNS: *autopath* with
//! `@kubernetes`, and the labels of *metadata*.

use std::collections::BTreeSet;
use std::time::Duration;

use kube::Client;
use serde_json::json;
use tokio::time::sleep;

use super::Servers;
use super::generator::write;
use super::questions::Answer;
use crate::corefile::question::{Question, table};
use crate::corefile::server::{CorefileDir, Program, Server};
use crate::corefile::upstreams::Upstreams;
use crate::harness::cluster::Cluster;
use crate::harness::control_plane::ControlPlane;

const COREFILE: &str = r#"
    .:{$PORT} {
        bind 127.0.0.1
        prometheus 127.0.0.1:{$METRICS}
        metadata
        log . "labels {name} {type} {rcode} kind={/kubernetes/kind} namespace={/kubernetes/namespace} service={/kubernetes/service} endpoint={/kubernetes/endpoint} port={/kubernetes/port-name} protocol={/kubernetes/protocol} error={/kubernetes/parse-error} client={/kubernetes/client-namespace}/{/kubernetes/client-pod-name} upstream={/forward/upstream}"
        autopath @kubernetes
        template IN TXT meta.test {
            answer "{{ .Name }} 5 IN TXT \"{{ .Meta `kubernetes/client-namespace` }}/{{ .Meta `kubernetes/service` }}/{{ .Meta `none` }}\""
        }
        template IN TXT web.meta.svc.cluster.local {
            answer "{{ .Name }} 5 IN TXT \"{{ .Meta `kubernetes/client-namespace` }}/{{ .Meta `kubernetes/service` }}\""
        }
        kubernetes cluster.local in-addr.arpa {
            kubeconfig {$CLUSTER_CONFIG}
            pods verified
            fallthrough in-addr.arpa
        }
        forward . {$UPSTREAM}
    }"#;

/// Each is asked by the Pods of shop and web, and by a client that is no Pod.
const QUESTIONS: &str = "
    front.shop.svc.cluster.local. A
    front.shop.svc.cluster.local. AAAA
    front.shop.svc.cluster.local. A tcp
    Front.Shop.svc.cluster.local. A case
    front.web.svc.cluster.local. A
    front.shop.shop.svc.cluster.local. A
    front.shop.web.svc.cluster.local. A edns
    front.shop.svc.shop.svc.cluster.local. A
    front.shop.svc.cluster.local.shop.svc.cluster.local. A
    front.shop.web.svc.cluster.local. AAAA
    _http._tcp.front.shop.svc.cluster.local. SRV
    _http._tcp.front.shop.web.svc.cluster.local. SRV
    a.example.org.shop.svc.cluster.local. A
    chain.example.org.web.svc.cluster.local. A
    x.denied.test.shop.svc.cluster.local. A
    x.denied.test.web.svc.cluster.local. TXT
    front.shop.svc.cluster.local.cluster.local. A
    front.svc.cluster.local. A
    front.absent.svc.cluster.local. A
    x.shop.pod.cluster.local. A
    cluster.local. A
    svc.cluster.local. A
    x.meta.test. TXT
    web.meta.svc.cluster.local. TXT
    a.example.org. A
    99.9.0.10.in-addr.arpa. PTR";

/// Answers that differ from CoreDNS's, with the reason.
const DIFFERENT: [(&str, &str); 4] = [
    ("shop.svc.cluster.local. A from=127.0.0.9", "the search domain itself is answered"),
    ("web.svc.cluster.local. A from=127.0.0.10", "the search domain itself is answered"),
    ("out.shop.svc.cluster.local. AAAA from=127.0.0.9", "an ExternalName is a CNAME for each type"),
    ("out.shop.svc.cluster.local. A from=127.0.0.9", "the alias is added once"),
];

async fn write_objects(client: &Client) {
    for (namespace, ip) in [("shop", "127.0.0.9"), ("web", "127.0.0.10")] {
        let service = json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": "front" },
            "spec": { "ports": [{ "name": "http", "port": 80 }] } });
        write(client, namespace, service).await;
        write(client, namespace, pod("client", ip)).await;
    }
    let out = json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": "out" },
        "spec": { "type": "ExternalName", "externalName": "a.example.org" } });
    write(client, "shop", out).await;
}

fn pod(name: &str, ip: &str) -> serde_json::Value {
    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
        "spec": { "containers": [{ "name": "c", "image": "i" }] },
        "status": { "phase": "Running", "podIP": ip, "podIPs": [{ "ip": ip }] } })
}

async fn start(plane: &ControlPlane, upstreams: &Upstreams) -> Servers {
    let site = upstreams.name(CorefileDir::new(COREFILE, &[]));
    let site = site.with("CLUSTER_CONFIG", plane.admin_kubeconfig().display());
    let (coredns, subject) =
        tokio::join!(Server::start(Program::CoreDns, &site), Server::start(Program::subject(), &site));
    Servers { coredns, subject }
}

/// Waits until both complete this name for its client, or neither does.
async fn wait_until(servers: &Servers, line: &str, completes: bool) {
    let question = Question::parse(line);
    for _ in 0..600 {
        let (coredns, subject) = servers.ask(&question).await;
        if [&coredns, &subject].iter().all(|answer| answer.sections[0].is_empty() != completes) {
            return sleep(Duration::from_millis(300)).await;
        }
        sleep(Duration::from_millis(50)).await;
    }
    panic!("not both have seen the change: {line}");
}

/// Returns the distinct lines of the log with labels.
fn labels(server: &Server) -> BTreeSet<String> {
    let lines = server.log().into_iter().map(|line| server.without_ports(&line));
    lines.filter_map(|line| Some(line.split_once("labels ")?.1.to_owned())).collect()
}

fn success(server: &Server) -> f64 {
    let page = server.metrics();
    let of = |line: &str| line.rsplit_once(' ').and_then(|(_, number)| number.parse::<f64>().ok());
    page.lines()
        .filter(|line| line.starts_with("coredns_autopath_success_total{server="))
        .filter_map(of)
        .sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_get_corednss_answers_and_labels() {
    let plane = ControlPlane::start(super::dual_stack());
    let client = plane.admin_client().await;
    super::World::write_namespaces(&client).await;
    write_objects(&client).await;
    let upstreams = Upstreams::start().await;
    let servers = start(&plane, &upstreams).await;
    wait_until(&servers, "front.web.shop.svc.cluster.local. A from=127.0.0.9", true).await;
    wait_until(&servers, "front.shop.web.svc.cluster.local. A from=127.0.0.10", true).await;
    let lines: Vec<String> = table(QUESTIONS).into_iter().map(|question| question.text).collect();
    let of_clients = ["from=127.0.0.9", "from=127.0.0.10", "from=127.0.0.1"];
    // Kept answers are asked for once more.
    for from in of_clients.into_iter().chain(of_clients) {
        let before = [success(&servers.coredns), success(&servers.subject)];
        for line in &lines {
            assert_same(&servers, &format!("{line} {from}")).await;
        }
        let counted = [success(&servers.coredns) - before[0], success(&servers.subject) - before[1]];
        assert!((counted[0] - counted[1]).abs() < 0.5, "{from}: {counted:?}");
    }
    let same = || async { (labels(&servers.coredns) == labels(&servers.subject)).then_some(()) };
    let difference = || {
        let (coredns, subject) = (labels(&servers.coredns), labels(&servers.subject));
        coredns.symmetric_difference(&subject).cloned().collect::<Vec<_>>()
    };
    let mut tries = 0;
    while same().await.is_none() {
        tries += 1;
        assert!(tries < 50, "{:#?}", difference());
        sleep(Duration::from_millis(100)).await;
    }
    assert!(labels(&servers.subject).len() > 50);
    for (line, why) in DIFFERENT {
        let (coredns, subject) = servers.ask(&Question::parse(line)).await;
        assert!(is_different(line, &servers).await, "{line}: {why}: {} {}", coredns.show(), subject.show());
    }
    follows_pods(&plane, &servers).await;
}

/// Compares whole messages: the records of [`Answer`] are sets.
async fn is_different(line: &str, servers: &Servers) -> bool {
    let question = Question::parse(line);
    let (coredns, subject) = tokio::join!(question.ask(&servers.coredns), question.ask(&servers.subject));
    let [coredns, subject] =
        [coredns, subject].map(|reply| crate::corefile::answer::Answer::of(&question, &reply));
    !coredns.differences(&subject).is_empty()
}

async fn assert_same(servers: &Servers, line: &str) {
    let (coredns, subject): (Answer, Answer) = servers.ask(&Question::parse(line)).await;
    assert!(
        coredns == subject,
        "{line}\n    CoreDNS:   {}\n    lb-linker: {}",
        coredns.show(),
        subject.show()
    );
}

/// A Pod's address moves to a Pod of another namespace.
async fn follows_pods(plane: &ControlPlane, servers: &Servers) {
    let cluster: Cluster = plane.cluster().await;
    let pods = |namespace: &str| {
        kube::Api::<k8s_openapi::api::core::v1::Pod>::namespaced(cluster.client.clone(), namespace)
    };
    let now = kube::api::DeleteParams { grace_period_seconds: Some(0), ..Default::default() };
    pods("shop").delete("client", &now).await.unwrap();
    wait_until(servers, "front.web.shop.svc.cluster.local. A from=127.0.0.9", false).await;
    write(&cluster.client, "web", pod("other", "127.0.0.9")).await;
    wait_until(servers, "front.shop.web.svc.cluster.local. A from=127.0.0.9", true).await;
    assert_same(servers, "front.web.shop.svc.cluster.local. A from=127.0.0.9").await;
}
