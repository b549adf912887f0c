//! The plugin *kubernetes* over time: changes, reloads, outages of the API server, and missing permissions.

use std::collections::BTreeSet;
use std::process::Output;
use std::time::{Duration, Instant};

use hickory_proto::op::ResponseCode;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Api;
use kube::api::PostParams;
use nix::sys::signal::Signal;
use serde_json::json;
use tokio::time::sleep;

use super::server::{CorefileDir, Program, Server, check};
use crate::failover::{Shop, seoul_and_fixed, shortest_check};
use crate::harness::cluster::{Cluster, Ingress};
use crate::harness::control_plane::{ControlPlane, Options};
use crate::harness::dns::{answers, ask_udp, query, short};
use crate::harness::{deploy, eventually, linker};

const COREFILE: &str = "
    cluster.local:{$PORT} {
        bind 127.0.0.1
        errors
        ready 127.0.0.1:{$READY}
        prometheus 127.0.0.1:{$METRICS}
        OPTIONS
    }";

fn corefile(options: &str) -> String {
    COREFILE.replace("OPTIONS", options)
}

async fn start(plane: &ControlPlane, options: &str) -> (CorefileDir, Server) {
    let kubeconfig = plane.admin_kubeconfig();
    let site = CorefileDir::new(&corefile(options), &[]).with("LB_LINKER_KUBECONFIG", kubeconfig.display());
    let server = Server::start(Program::Linker, &site).await;
    (site, server)
}

async fn create(cluster: &Cluster, name: &str) {
    let service = json!({ "metadata": { "name": name }, "spec": { "ports": [{ "port": 80 }] } });
    cluster.create_service("default", service).await;
}

async fn rcode(server: &Server, name: &str) -> ResponseCode {
    let question = query(&format!("{name}.default.svc.cluster.local. A"));
    ask_udp(server.dns(), &question).await.metadata.response_code
}

/// Waits until a name has this response code.
async fn has(server: &Server, name: &str, expected: ResponseCode) {
    let look = || async { (rcode(server, name).await == expected).then_some(()) };
    eventually(&format!("{expected} of {name}"), look).await;
}

fn is_ready(server: &Server) -> (u16, String) {
    linker::get(server.address("READY"), "/ready")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubernetes_alone_reads_no_load_balancers_and_reloads() {
    let plane = ControlPlane::start(Options::default());
    let cluster = plane.cluster().await;
    create(&cluster, "web").await;
    let (site, mut server) = start(&plane, "kubernetes").await;
    has(&server, "web", ResponseCode::NoError).await;
    assert_eq!(is_ready(&server).0, 200);
    assert!(server.metric("lb_linker_cluster_objects{kind=\"services\"}").unwrap() >= 2.0);
    assert!(server.metrics().contains("lb_linker_watch_staleness_seconds{watch=\"cluster-services\"}"));
    let requests = || plane.audit_events_with("\"lb-linker/");
    let seen = eventually("the requests", || async { Some(requests()).filter(|seen| seen.len() >= 3) }).await;
    let is_expected = |resource: &str| ["services", "namespaces", "endpointslices"].contains(&resource);
    for request in &seen {
        assert!(is_expected(&request.resource) && !request.uri.contains("LoadBalancer"), "{}", request.uri);
    }
    for (options, expected) in [
        ("whoami", ResponseCode::NoError),
        ("kubernetes {\nnamespaces other\n}", ResponseCode::NXDomain),
        ("kubernetes", ResponseCode::NoError),
    ] {
        site.write("Corefile", &corefile(options));
        server.signal(Signal::SIGUSR1);
        has(&server, "web", expected).await;
        let counted = server.metrics().contains("lb_linker_cluster_objects{");
        if options == "whoami" {
            let is_gone = || async { (!server.metrics().contains("cluster-services")).then_some(()) };
            eventually("the end of the watches", is_gone).await;
        } else {
            assert!(counted, "{options}");
        }
    }
    create(&cluster, "later").await;
    has(&server, "later", ResponseCode::NoError).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_stay_without_the_api_server_and_follow_it_again() {
    let plane = ControlPlane::start(Options::default());
    let cluster = plane.cluster().await;
    create(&cluster, "web").await;
    let (_site, server) = start(&plane, "kubernetes").await;
    has(&server, "web", ResponseCode::NoError).await;
    let before = short(server.dns(), "web.default.svc.cluster.local. A").await;
    plane.kill_apiserver();
    for _ in 0..50 {
        assert_eq!(short(server.dns(), "web.default.svc.cluster.local. A").await, before);
        assert_eq!(rcode(&server, "none").await, ResponseCode::NXDomain);
        sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(is_ready(&server).0, 200, "it stays ready");
    plane.start_apiserver();
    create(&cluster, "later").await;
    has(&server, "later", ResponseCode::NoError).await;
    cluster.delete_service("default", "web").await;
    has(&server, "web", ResponseCode::NXDomain).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_right_to_pods_leaves_services() {
    let plane = ControlPlane::start(Options::default());
    let cluster = plane.cluster().await;
    create(&cluster, "web").await;
    let folder = deploy().join("cluster-dns");
    plane.apply_files(&folder.join("10-rbac.yaml"));
    let kubeconfig = plane.kubeconfig_for_service_account("kube-system", "lb-linker-cluster-dns");
    let options =
        format!("kubernetes {{\nkubeconfig {}\npods verified\nstartup_timeout 1s\n}}", kubeconfig.display());
    let site = CorefileDir::new(&corefile(&options), &[]);
    let server = Server::start(Program::Linker, &site).await;
    has(&server, "web", ResponseCode::NoError).await;
    assert_eq!(rcode(&server, "none").await, ResponseCode::ServFail);
    let why = eventually("the note", || async {
        let (code, page) = is_ready(&server);
        assert_eq!(code, 503);
        page.contains("pods is forbidden").then_some(page)
    });
    let page = why.await;
    let hint = "; deploy/cluster-dns/pods/ grants the permission, for `pods verified`";
    assert!(page.contains(hint), "{page}");
    let logged = || server.log().iter().filter(|line| line.contains(hint)).count();
    eventually("the log line", || async { (logged() > 0).then_some(()) }).await;
    plane.apply_files(&folder.join("pods"));
    let ready = || async { (is_ready(&server).0 == 200).then_some(()) };
    eventually("the list of Pods", ready).await;
    assert_eq!(logged(), 1);
}

#[tokio::test]
async fn check_asks_for_the_rights_that_the_corefile_needs() {
    let plane = ControlPlane::start(Options::default());
    plane.apply_files(&deploy().join("cluster-dns/10-rbac.yaml"));
    plane.kubectl(&["-n", "default", "create", "serviceaccount", "nothing"]);
    let kubeconfig = plane.kubeconfig_for_service_account("kube-system", "lb-linker-cluster-dns");
    let without = plane.kubeconfig_for_service_account("default", "nothing");
    let [kubeconfig, without] = [&kubeconfig, &without].map(|path| path.to_str().unwrap());
    let of_kubernetes = ["endpointslices", "namespaces", "services"];
    let with_pods = ["endpointslices", "namespaces", "pods", "services"];
    let elsewhere = |options: &str| format!("kubernetes {{\nkubeconfig {kubeconfig}\n{options}\n}}");
    // The second block has no permission of its own to ask for.
    let twice = format!(
        "{}\n}}\nb.example:{{$PORT}} {{\nbind 127.0.0.1\n{}",
        elsewhere("noendpoints"),
        elsewhere("noendpoints\nlabels a=b").replacen("kubernetes", "kubernetes b.example", 1)
    );
    let of_folder = "deploy/cluster-dns/";
    let of_pods = "deploy/cluster-dns/pods/, for `pods verified`";
    let of_imports = "deploy/cluster-dns/serviceimports/, for `multicluster`";
    let with_imports = ["endpointslices", "namespaces", "serviceimports", "services"];
    for (options, own, expected, missing, folder) in [
        ("kubernetes", kubeconfig, &of_kubernetes[..], 0, ""),
        ("kubernetes {\nnoendpoints\n}", kubeconfig, &["namespaces", "services"], 0, ""),
        ("kubernetes {\npods verified\n}", kubeconfig, &with_pods, 2, of_pods),
        (
            "kubernetes cluster.local clusterset.local {\nmulticluster clusterset.local\n}",
            kubeconfig,
            &with_imports,
            2,
            of_imports,
        ),
        ("lb_linker lb.internal\nkubernetes cluster.local", kubeconfig, &of_kubernetes, 0, ""),
        ("lb_linker lb.internal\nkubernetes cluster.local", without, &of_kubernetes, 6, of_folder),
        ("lb_linker lb.internal", kubeconfig, &["services"], 0, ""),
        ("lb_linker lb.internal", without, &["services"], 2, "deploy/"),
        (&elsewhere("noendpoints"), without, &["namespaces", "services"], 0, ""),
        (&twice, without, &["namespaces", "services"], 0, ""),
    ] {
        let output = check_cluster(options, own);
        let printed = String::from_utf8_lossy(&output.stdout);
        for verb in ["list", "watch"] {
            let mut asked: Vec<&str> = printed
                .lines()
                .filter_map(|line| line.strip_prefix("yes  ").or(line.strip_prefix("NO   ")))
                .filter_map(|permission| permission.strip_suffix(" in all namespaces"))
                .filter_map(|permission| permission.strip_prefix(verb)?.strip_prefix(' '))
                .collect();
            asked.sort_unstable();
            assert_eq!(asked, expected, "{options}: {printed}");
        }
        let errors = linker::cluster_errors(&output);
        assert_eq!(errors.lines().count(), missing, "{options}: {errors}");
        let folder = format!("is missing; it is in {folder}");
        assert!(errors.lines().all(|line| line.ends_with(&folder)), "{options}: {errors}");
    }
    // A connection that can't be used doesn't keep the report about the other ones back.
    let unusable = json!({
        "clusters": [{"name": "a", "cluster": {"server": "https://127.0.0.1:1", "certificate-authority": "/absent"}}],
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
        "users": [{"name": "a", "user": {}}],
        "current-context": "a",
    });
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), unusable.to_string()).unwrap();
    let of_file = format!("kubernetes b.example {{\nkubeconfig {}\n}}", file.path().display());
    let output = check_cluster(
        &format!("kubernetes\n}}\nb.example:{{$PORT}} {{\nbind 127.0.0.1\n{of_file}"),
        kubeconfig,
    );
    let [printed, errors] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    assert_eq!(printed.matches("yes  ").count(), 6, "{printed}");
    assert!(errors.contains("/absent") && output.status.code() == Some(2), "{output:?}");
}

/// Runs `check --cluster` with a block that has these plugins, by this kubeconfig.
fn check_cluster(options: &str, kubeconfig: &str) -> Output {
    let mut text = corefile(options);
    if options.starts_with("lb_linker") {
        text = text.replacen("cluster.local:{$PORT}", "cluster.local:{$PORT} lb.internal:{$PORT}", 1);
    }
    let site = CorefileDir::new(&text.replace("{$PORT}", "53"), &[]);
    let path = site.path().join("Corefile");
    let variables = [("READY", "1"), ("METRICS", "2"), ("LB_LINKER_KUBECONFIG", kubeconfig)];
    linker::run_to_end_with(
        &variables,
        ["check", "--cluster", "--sync=off", "--corefile", path.to_str().unwrap()],
    )
}

/// Creates a headless Service, and a slice of it with the time of what caused it.
async fn create_timed(cluster: &Cluster, name: &str) {
    let service = json!({ "metadata": { "name": name }, "spec": { "clusterIP": "None" } });
    cluster.create_service("default", service).await;
    // The watches of Services and slices are apart.
    sleep(Duration::from_millis(500)).await;
    let cause =
        json!({ "endpoints.kubernetes.io/last-change-trigger-time": jiff::Timestamp::now().to_string() });
    let slice = json!({
        "metadata": { "name": name, "labels": { "kubernetes.io/service-name": name }, "annotations": cause },
        "addressType": "IPv4", "endpoints": [{ "addresses": ["10.9.9.9"] }], "ports": [],
    });
    let slices = Api::<EndpointSlice>::namespaced(cluster.client.clone(), "default");
    slices.create(&PostParams::default(), &serde_json::from_value(slice).unwrap()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_of_the_plugin_have_corednss_names_and_labels() {
    const COUNT: &str =
        "coredns_kubernetes_dns_programming_duration_seconds_count{service_kind=\"headless_with_selector\"}";
    let plane = ControlPlane::start(Options::default());
    let cluster = plane.cluster().await;
    create_timed(&cluster, "before").await;
    let options = format!("kubernetes {{\nkubeconfig {}\n}}", plane.admin_kubeconfig().display());
    let site = CorefileDir::new(&corefile(&options), &[]);
    let (coredns, subject) =
        tokio::join!(Server::start(Program::CoreDns, &site), Server::start(Program::subject(), &site));
    for server in [&coredns, &subject] {
        has(server, "before", ResponseCode::NoError).await;
    }
    assert_eq!(subject.metric(COUNT), None, "the first list doesn't count");
    create_timed(&cluster, "later").await;
    for server in [&coredns, &subject] {
        has(server, "later", ResponseCode::NoError).await;
        eventually("the metric", || async { server.metric(COUNT) }).await;
    }
    assert_eq!(subject.metric(COUNT), Some(1.0));
    let series = |server: &Server| -> BTreeSet<String> {
        let page = server.metrics();
        let names = page.lines().filter_map(|line| Some(line.rsplit_once(' ')?.0.to_owned()));
        names
            .filter(|name| name.starts_with("coredns_kubernetes_") || name.contains(" coredns_kubernetes_"))
            .collect()
    };
    let (expected, found) = (series(&coredns), series(&subject));
    let lacking: Vec<_> = expected.difference(&found).collect();
    assert!(lacking.is_empty(), "{lacking:#?} {found:#?}");
    let further: Vec<_> = found.difference(&expected).filter(|name| !name.contains("duration")).collect();
    assert!(further.is_empty(), "{further:#?}");
}

#[test]
fn kubernetes_alone_without_a_cluster_suggests_no_manifests() {
    let site = CorefileDir::new(&corefile("kubernetes").replace("{$PORT}", "0"), &[]);
    let path = site.path().join("Corefile");
    let variables = [("READY", "0"), ("METRICS", "0"), ("HOME", "/nonexistent")];
    for command in [&["check", "--cluster"][..], &["run"]] {
        let output =
            linker::run_to_end_with(&variables, [command, &["--corefile", path.to_str().unwrap()]].concat());
        let errors = String::from_utf8_lossy(&output.stderr);
        let remedy =
            "name one with --kubeconfig, or in the Corefile with the option kubeconfig of kubernetes";
        assert!(errors.contains(remedy) && !errors.contains("--manifests"), "{output:?}");
        assert_eq!(output.status.code(), Some(2), "{output:?}");
    }
}

#[test]
fn kubernetes_with_manifests_needs_an_api_server_of_its_own() {
    let output = check(&CorefileDir::new(&corefile("kubernetes"), &[]));
    let errors = String::from_utf8_lossy(&output.stderr);
    let expected =
        ":7:9: kubernetes reads an API server, and with --manifests there is none: name one with the option";
    assert!(!output.status.success() && errors.contains(expected), "{output:?}");
    let output = check(&CorefileDir::new(&corefile("kubernetes {\nendpoint 192.0.2.1:6443\n}"), &[]));
    assert!(output.status.success(), "{output:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kept_answers_are_used_until_their_objects_change() {
    const TIMES: usize = 300;
    let plane = ControlPlane::start(Options::default());
    let cluster = plane.cluster().await;
    create(&cluster, "web").await;
    let (_site, server) = start(&plane, "kubernetes").await;
    has(&server, "web", ResponseCode::NoError).await;
    let computed = || server.metric("lb_linker_dns_udp_computed_total").unwrap();
    for round in 0..3 {
        let before = computed();
        for number in 0..TIMES {
            let (name, expected) = match number % 2 {
                0 => ("web", ResponseCode::NoError),
                _ => ("none", ResponseCode::NXDomain),
            };
            assert_eq!(rcode(&server, name).await, expected);
        }
        // Each thread keeps its own answers.
        let new = computed() - before;
        assert!(new <= 40.0, "{new} of {TIMES} answers were made anew in round {round}");
        create(&cluster, &format!("other{round}")).await;
        has(&server, &format!("other{round}"), ResponseCode::NoError).await;
    }
    cluster.delete_service("default", "web").await;
    create(&cluster, "none").await;
    has(&server, "web", ResponseCode::NXDomain).await;
    has(&server, "none", ResponseCode::NoError).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn links_and_names_of_the_cluster_are_answered_by_one_process() {
    let plane = ControlPlane::start(Options::default());
    let cluster = plane.cluster().await;
    cluster.create_load_balancer("default", "lb").await;
    cluster.set_ingress("default", "lb", &[Ingress::Ip("192.0.2.7")]).await;
    cluster.create_load_balancer("default", "inside").await;
    let own = Ingress::Hostname("kubernetes.default.svc.cluster.local");
    cluster.set_ingress("default", "inside", &[own]).await;
    let text = format!("{}\nlb.internal:{{$PORT}} {{\nbind 127.0.0.1\nlb_linker\n}}", corefile("kubernetes"));
    let kubeconfig = plane.admin_kubeconfig();
    let site = CorefileDir::new(&text, &[]).with("LB_LINKER_KUBECONFIG", kubeconfig.display());
    let site = site.with("LB_LINKER_SYNC", "off").with("LB_LINKER_CLUSTER_DOMAIN", "other.test");
    let server = Server::start(Program::Linker, &site).await;
    has(&server, "lb", ResponseCode::NoError).await;
    answers(server.dns(), "lb-default.lb.internal. A", "192.0.2.7").await;
    let ready = || async { (is_ready(&server).0 == 200).then_some(()) };
    eventually("the end of both first lists", ready).await;
    let is_denied = |line: &String| line.contains("it lies in the cluster's own domain cluster.local");
    let denied = || async { server.log().iter().find(|line| is_denied(line)).cloned() };
    eventually("the target in the zone of kubernetes is denied", denied).await;
    let answer = ask_udp(server.dns(), &query("inside-default.lb.internal. A")).await;
    assert!(answer.answers.is_empty(), "{answer}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_that_fail_over_are_answered_as_by_the_leader() {
    let shop = Shop::open(&[]).await;
    shop.plane.apply_files(&deploy().join("cluster-dns/10-rbac.yaml"));
    shop.load_balancer("shop", "web", "a.example.com").await;
    let leader = shop.linker(&[]).await;
    shop.create("web", json!({"sources": seoul_and_fixed("b.example.com"), "check": shortest_check()})).await;
    let kubeconfig = shop.plane.kubeconfig_for_service_account("kube-system", "lb-linker-cluster-dns");
    let links = "lb.internal:{$PORT} {\nbind 127.0.0.1\nlb_linker\n}";
    let upstream = shop.upstream.resolver.address;
    let others = format!(".:{{$PORT}} {{\nbind 127.0.0.1\nforward . {upstream}\n}}");
    let site = CorefileDir::new(&format!("{}\n{links}\n{others}", corefile("kubernetes")), &[])
        .with("LB_LINKER_KUBECONFIG", kubeconfig.display())
        .with("LB_LINKER_SYNC", "off");
    let server = Server::start(Program::Linker, &site).await;
    let question = "web.shop.lb.internal. CNAME";
    for (host, ends) in [("a.example.com", true), ("b.example.com", false)] {
        shop.wait_until_announced("web", host).await;
        for address in [leader.dns, server.dns()] {
            answers(address, question, &format!("{host}.")).await;
        }
        if ends {
            shop.cluster.delete_service("shop", "web").await;
        }
    }
    has(&server, "kubernetes", ResponseCode::NoError).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn old_blocks_answer_until_a_reload_has_listed_or_waited() {
    let plane = ControlPlane::start(Options::default());
    let cluster = plane.cluster().await;
    create(&cluster, "web").await;
    let (site, mut server) = start(&plane, "kubernetes {\nstartup_timeout 4s\n}").await;
    has(&server, "web", ResponseCode::NoError).await;
    plane.signal_apiserver(Signal::SIGSTOP);
    site.write("Corefile", &corefile("kubernetes {\nlabels !absent\nstartup_timeout 4s\n}"));
    server.signal(Signal::SIGUSR1);
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(2) {
        assert_eq!(rcode(&server, "web").await, ResponseCode::NoError);
        sleep(Duration::from_millis(20)).await;
    }
    has(&server, "web", ResponseCode::ServFail).await;
    assert!(began.elapsed() >= Duration::from_secs(4), "{:?}", began.elapsed());
    plane.signal_apiserver(Signal::SIGCONT);
    has(&server, "web", ResponseCode::NoError).await;
}

#[tokio::test]
async fn process_stays_ready_if_a_reload_adds_what_cant_be_listed() {
    let site = CorefileDir::new(&corefile("whoami"), &[]);
    let mut server = Server::start(Program::Linker, &site).await;
    assert_eq!(is_ready(&server).0, 200);
    let options = "kubernetes {\n endpoint http://127.0.0.1:1\n startup_timeout 10ms\n }";
    site.write("Corefile", &corefile(options));
    server.signal(Signal::SIGUSR1);
    has(&server, "web", ResponseCode::ServFail).await;
    assert_eq!(is_ready(&server).0, 200, "{:?}", is_ready(&server));
    let server = Server::start(Program::Linker, &site).await;
    assert_eq!(is_ready(&server).0, 503, "a process that begins so isn't ready");
}
