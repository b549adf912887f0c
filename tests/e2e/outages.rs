//! What works while other parts are down: the rows of docs/reliability.md that have no other test.

use futures::future::join_all;
use nix::sys::signal::Signal;

use crate::harness::cluster::Ingress;
use crate::harness::cluster_with_target;
use crate::harness::dns::{CoreDns, IN_CLIENT_TIMEOUT, answers, ask_udp, ask_within, data, query, short};
use crate::harness::linker::Linker;
use crate::recreation::wait_for_external_target;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn external_targets_resolve_without_any_replica() {
    let (plane, cluster, target) = cluster_with_target().await;
    let namespace = cluster.create_namespace("outage").await;
    for (name, ingress) in [("web", Ingress::Hostname("a.example.com")), ("ips", Ingress::Ip("192.0.2.77"))] {
        cluster.create_load_balancer(&namespace, name).await;
        cluster.set_ingress(&namespace, name, &[ingress]).await;
    }
    let args = ["--upstream", "none", "--watch-namespaces", &namespace];
    let mut replicas: Vec<_> = (0..2).map(|_| Linker::in_cluster(plane, &target, &args)).collect();
    join_all(replicas.iter().map(Linker::ready)).await;
    wait_for_external_target(&cluster, &target, &format!("web-{namespace}-ext"), "a.example.com").await;
    let dns = CoreDns::of_cluster(plane).await;
    let question = |service: &str| format!("{service}-{namespace}-ext.{target}.svc.cluster.local. A");
    answers(dns.address, &question("web"), "a.example.com. 192.0.2.10").await;
    answers(dns.address, &question("ips"), "192.0.2.77").await;

    replicas.iter_mut().for_each(Linker::kill);
    assert_eq!(short(dns.address, &question("web")).await, "a.example.com. 192.0.2.10");
    // A CoreDNS that starts now reads the external targets from the API server.
    let restarted = CoreDns::of_cluster(plane).await;
    answers(restarted.address, &question("web"), "a.example.com. 192.0.2.10").await;
    answers(restarted.address, &question("ips"), "192.0.2.77").await;
    // The external targets stay as they are until a replica runs again.
    cluster.set_ingress(&namespace, "web", &[Ingress::Hostname("b.example.com")]).await;
    assert_eq!(short(restarted.address, &question("web")).await, "a.example.com. 192.0.2.10");
    let linker = Linker::in_cluster(plane, &target, &args);
    linker.ready().await;
    wait_for_external_target(&cluster, &target, &format!("web-{namespace}-ext"), "b.example.com").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_dns_answers_with_one_of_two_replicas_silent() {
    let (plane, cluster, target) = cluster_with_target().await;
    let namespace = cluster.create_namespace("node").await;
    cluster.create_load_balancer(&namespace, "web").await;
    cluster.set_ingress(&namespace, "web", &[Ingress::Hostname("a.example.com")]).await;
    let args = ["--upstream", "none", "--watch-namespaces", &namespace];
    let mut replicas: Vec<_> = (0..2).map(|_| Linker::in_cluster(plane, &target, &args)).collect();
    join_all(replicas.iter().map(Linker::ready)).await;
    let plugins = format!("forward lb.internal {} {}", replicas[0].dns, replicas[1].dns);
    let dns = CoreDns::start(&plugins, "").await;
    let question = format!("web-{namespace}.lb.internal. CNAME");
    answers(dns.address, &question, "a.example.com.").await;

    // A dead node sends nothing, not even ICMP errors about closed ports.
    replicas[0].signal(Signal::SIGSTOP);
    let mut failed = Vec::new();
    for _ in 0..20 {
        let answer = short(dns.address, &question).await;
        failed.extend((answer != "a.example.com.").then_some(answer));
    }
    // CoreDNS gives up after 5 s: on a busy machine that may happen before it notices the silence.
    assert!(failed.len() <= 2 && failed.iter().all(|answer| answer == "Server Failure"), "{failed:?}");
    replicas[0].signal(Signal::SIGCONT);
}

#[tokio::test]
async fn links_resolve_while_the_cluster_dns_is_away() {
    let (plane, cluster, target) = cluster_with_target().await;
    let namespace = cluster.create_namespace("dns").await;
    cluster.create_load_balancer(&namespace, "web").await;
    cluster.set_ingress(&namespace, "web", &[Ingress::Hostname("a.example.com")]).await;
    let (cloud, cluster_dns) = (CoreDns::cloud().await, CoreDns::of_cluster(plane).await);
    let directory = tempfile::tempdir().unwrap();
    let corefile = directory.path().join("Corefile");
    let text = format!(
        "lb.internal:0 {{\n bind 127.0.0.1\n prometheus 127.0.0.1:0\n health 127.0.0.1:0\n ready 127.0.0.1:0\n lb_linker\n}}\n\
         cluster.local:0 {{\n bind 127.0.0.1\n forward . {}\n}}\n\
         .:0 {{\n bind 127.0.0.1\n cache\n forward . {}\n}}\n",
        cluster_dns.address, cloud.address
    );
    std::fs::write(&corefile, text).unwrap();
    let kubeconfig = plane.kubeconfig_for_service_account("lb-linker", "lb-linker");
    let args = ["--kubeconfig", kubeconfig.to_str().unwrap(), "--corefile", corefile.to_str().unwrap()];
    let args = [&args[..], &["--target-namespace", &target, "--watch-namespaces", &namespace]].concat();
    let linker = Linker::start(args);
    linker.ready().await;
    let object = format!("web-{namespace}-ext");
    wait_for_external_target(&cluster, &target, &object, "a.example.com").await;
    let of_cluster = format!("{object}.{target}.svc.cluster.local. A");
    answers(linker.dns, &of_cluster, "a.example.com. 192.0.2.10").await;

    drop(cluster_dns);
    let question = format!("web-{namespace}.lb.internal. A");
    for _ in 0..3 {
        let answer = ask_within(IN_CLIENT_TIMEOUT, linker.dns, &query(&question)).await;
        assert_eq!(data(&answer), "a.example.com. 192.0.2.10");
    }
    assert_eq!(linker.get_ready().0, 200);
    let failed = ask_udp(linker.dns, &query(&of_cluster)).await;
    assert!(failed.answers.is_empty(), "{failed}");
}
