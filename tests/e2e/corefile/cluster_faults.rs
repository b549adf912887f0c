//! The names of a cluster while its API server is away, and after it has come back otherwise.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hickory_proto::op::ResponseCode;
use serde_json::json;

use super::server::{CorefileDir, Program, Server};
use crate::harness::cluster::Cluster;
use crate::harness::control_plane::{ControlPlane, Options};
use crate::harness::dns::{ask_udp, data, query};
use crate::harness::eventually;
use crate::harness::scale::scaled;
use crate::harness::steady_load::{Asked, ask_steadily};

const COREFILE: &str = "
    cluster.local:{$PORT} in-addr.arpa:{$PORT} {
        bind 127.0.0.1
        errors
        kubernetes cluster.local in-addr.arpa {
            kubeconfig {$CLUSTER_CONFIG} test
        }
    }";
const SERVICES: usize = 30;

async fn start(plane: &ControlPlane) -> (CorefileDir, Server) {
    let site = CorefileDir::new(COREFILE, &[]).with("CLUSTER_CONFIG", plane.admin_kubeconfig().display());
    let server = Server::start(Program::Linker, &site).await;
    (site, server)
}

fn question(number: usize) -> String {
    format!("web-{number}.default.svc.cluster.local. A")
}

async fn create(cluster: &Cluster, names: impl Iterator<Item = usize>) {
    for number in names {
        let name = format!("web-{number}");
        let service = json!({ "metadata": { "name": name }, "spec": { "ports": [{ "port": 80 }] } });
        cluster.create_service("default", service).await;
    }
}

async fn has(server: &Server, number: usize, expected: ResponseCode) {
    let name = question(number);
    let answer = || async { ask_udp(server.dns(), &query(&name)).await.metadata.response_code };
    eventually(&name, || async { (answer().await == expected).then_some(()) }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_api_server_loses_and_changes_no_answer() {
    let plane = ControlPlane::start(Options::default());
    create(&plane.cluster().await, 0..SERVICES).await;
    let (_site, server) = start(&plane).await;
    let mut before = Vec::new();
    for number in 0..SERVICES {
        has(&server, number, ResponseCode::NoError).await;
        before.push(data(&ask_udp(server.dns(), &query(&question(number))).await));
    }
    let over = Arc::new(AtomicBool::new(false));
    let questions = (0..SERVICES).map(question).collect();
    let is_same = move |number: usize, answer: &_| data(answer) == before[number];
    let load = ask_steadily(server.dns(), scaled(2000, 200), questions, is_same, Arc::clone(&over));
    let load = tokio::spawn(load);
    plane.kill_apiserver();
    tokio::time::sleep(Duration::from_secs(scaled(60, 3))).await;
    plane.start_apiserver();
    create(&plane.cluster().await, [SERVICES].into_iter()).await;
    has(&server, SERVICES, ResponseCode::NoError).await;
    over.store(true, Ordering::Relaxed);
    let Asked { sent: asked, wrong: changed, lost } = load.await.unwrap();
    println!("chaos: names of the cluster: {asked} queries, {changed} changed, {lost} lost");
    // In the short form other tests make the machine busy, and the kernel may drop datagrams.
    assert!(changed == 0 && lost <= scaled(0, 20), "{changed} changed, {lost} lost of {asked}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn emptied_etcd_counts_after_a_second_list() {
    let plane = ControlPlane::start(Options::default());
    plane.back_up();
    create(&plane.cluster().await, 0..SERVICES).await;
    let (_site, server) = start(&plane).await;
    for number in 0..SERVICES {
        has(&server, number, ResponseCode::NoError).await;
    }
    plane.restore();
    let is_doubted = || async {
        server.log().iter().any(|line| line.contains("lacks suspiciously many")).then_some(Instant::now())
    };
    let doubted = eventually("the line about the list", is_doubted).await;
    while doubted.elapsed() < Duration::from_secs(20) {
        for number in 0..SERVICES {
            let answer = ask_udp(server.dns(), &query(&question(number))).await;
            assert_eq!(answer.metadata.response_code, ResponseCode::NoError);
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    // What is added counts at once.
    create(&plane.cluster().await, [SERVICES].into_iter()).await;
    has(&server, SERVICES, ResponseCode::NoError).await;
    for number in 0..SERVICES {
        has(&server, number, ResponseCode::NXDomain).await;
    }
    has(&server, SERVICES, ResponseCode::NoError).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn single_name_that_a_restored_etcd_lacks_stays_at_first() {
    let plane = ControlPlane::start(Options::default());
    create(&plane.cluster().await, 0..3).await;
    plane.back_up();
    create(&plane.cluster().await, 3..4).await;
    let (_site, server) = start(&plane).await;
    has(&server, 3, ResponseCode::NoError).await;
    plane.restore();
    let is_doubted = || async {
        let is_line =
            |line: &String| line.contains("lacks suspiciously many") && line.contains("default/web-3");
        server.log().iter().any(is_line).then_some(Instant::now())
    };
    let doubted = eventually("the line about the list", is_doubted).await;
    while doubted.elapsed() < Duration::from_secs(5) {
        for number in 0..4 {
            let answer = ask_udp(server.dns(), &query(&question(number))).await;
            assert_eq!(answer.metadata.response_code, ResponseCode::NoError);
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    has(&server, 3, ResponseCode::NXDomain).await;
    for number in 0..3 {
        has(&server, number, ResponseCode::NoError).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_certificates_of_the_api_server_are_followed() {
    let plane = ControlPlane::start(Options::default());
    let (_site, server) = start(&plane).await;
    create(&plane.cluster().await, 0..1).await;
    has(&server, 0, ResponseCode::NoError).await;
    plane.renew_certificates();
    create(&plane.cluster().await, 1..2).await;
    has(&server, 1, ResponseCode::NoError).await;
}
