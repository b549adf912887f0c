//! One object that can't be decoded, or brings a defect of lb-linker to light, costs no other anything.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::Stdio;

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::harness::cluster::Ingress;
use crate::harness::cluster_with_target;
use crate::harness::control_plane::ControlPlane;
use crate::harness::dns::{answers, short};
use crate::harness::linker::Linker;
use crate::harness::process::Process;
use crate::story::external_target;

#[tokio::test]
async fn a_reconcile_that_panics_stops_no_other_and_dns_doesnt_notice() {
    let (plane, cluster, target) = cluster_with_target().await;
    let namespace = cluster.create_namespace("panic").await;
    let poisoned = format!("{namespace}/poisoned");
    let kubeconfig = plane.kubeconfig_for_service_account("lb-linker", "lb-linker");
    let linker = Linker::start_with(
        &[("LB_LINKER_TEST_PANIC", &poisoned)],
        ["--kubeconfig", kubeconfig.to_str().unwrap(), "--target-namespace", &target, "--upstream", "none"],
    );
    for name in ["before", "poisoned", "zafter"] {
        cluster.create_load_balancer(&namespace, name).await;
        cluster.set_ingress(&namespace, name, &[Ingress::Hostname(&format!("{name}.example.com"))]).await;
    }
    for name in ["before", "zafter"] {
        let object = format!("{name}-{namespace}-ext");
        external_target(&cluster, &target, &object, &format!("{name}.example.com")).await;
    }
    linker.line(&format!("link {poisoned}: its reconciling has panicked, a defect of lb-linker")).await;
    let question = format!("poisoned.{namespace}.lb.internal. CNAME");
    assert_eq!(short(linker.dns, &question).await, "poisoned.example.com.");
    cluster.set_ingress(&namespace, "poisoned", &[Ingress::Hostname("new.example.com")]).await;
    cluster.set_ingress(&namespace, "before", &[Ingress::Hostname("new.example.com")]).await;
    answers(linker.dns, &question, "new.example.com.").await;
    external_target(&cluster, &target, &format!("before-{namespace}-ext"), "new.example.com").await;
    assert!(cluster.get_service(&target, &format!("poisoned-{namespace}-ext")).await.is_none());
    let restarts = "lb_linker_sync_restarts_total{task=\"the reconciler\"}";
    assert_eq!(linker.metric(restarts), None, "the task itself went on");
}

/// The port that the poisoned Service has, and what is made of it on its way: as long, and no port at all.
const PORT: (&[u8], &[u8]) = (b"\"port\":54321", b"\"port\":94321");

/// The API server, but that some bytes of what it says are others: a real one never says anything that can't
/// be decoded.
struct Garbling {
    _kubectl: Process,
    _tasks: JoinSet<()>,
    address: SocketAddr,
}

impl Garbling {
    async fn start(plane: &ControlPlane) -> Self {
        // It speaks TLS to the API server, and with us plain HTTP.
        let mut command = plane.kubectl_command();
        command.args(["proxy", "--port=0"]).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut kubectl = Process::spawn(command).unwrap();
        let mut line = String::new();
        BufReader::new(kubectl.stdout().unwrap()).read_line(&mut line).unwrap();
        let behind: SocketAddr = line.trim().rsplit(' ').next().unwrap().parse().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (client, _) = listener.accept().await.unwrap();
                connections.spawn(garble(client, behind));
            }
        });
        Self { _kubectl: kubectl, _tasks: tasks, address }
    }
}

async fn garble(client: TcpStream, behind: SocketAddr) {
    let server = TcpStream::connect(behind).await.unwrap();
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let up = async { drop(tokio::io::copy(&mut from_client, &mut to_server).await) };
    let down = async {
        let (mut held, mut buffer) = (Vec::new(), vec![0; 65536]);
        while let Ok(read @ 1..) = from_server.read(&mut buffer).await {
            held.extend_from_slice(&buffer[..read]);
            while let Some(at) = held.windows(PORT.0.len()).position(|window| window == PORT.0) {
                held[at..at + PORT.0.len()].copy_from_slice(PORT.1);
            }
            // What is cut off in the middle waits for the rest.
            let cut = (1..PORT.0.len()).rev().find(|length| held.ends_with(&PORT.0[..*length])).unwrap_or(0);
            let rest = held.split_off(held.len() - cut);
            if to_client.write_all(&held).await.is_err() {
                return;
            }
            held = rest;
        }
    };
    tokio::select! { () = up => {}, () = down => {} }
}

#[tokio::test]
async fn a_service_that_cant_be_decoded_stays_as_it_was_and_stops_no_other() {
    let (plane, cluster, target) = cluster_with_target().await;
    let namespace = cluster.create_namespace("garbled").await;
    let garbling = Garbling::start(plane).await;
    let kubeconfig = tempfile::NamedTempFile::new().unwrap();
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "garbled",
        "clusters": [{"name": "garbled", "cluster": {"server": format!("http://{}", garbling.address)}}],
        "users": [{"name": "nobody", "user": {}}],
        "contexts": [{"name": "garbled", "context": {"cluster": "garbled", "user": "nobody"}}],
    });
    std::fs::write(kubeconfig.path(), config.to_string()).unwrap();
    for name in ["good", "bad"] {
        cluster.create_load_balancer(&namespace, name).await;
        cluster.set_ingress(&namespace, name, &[Ingress::Hostname(&format!("{name}.example.com"))]).await;
    }
    let linker = Linker::start([
        "--kubeconfig",
        kubeconfig.path().to_str().unwrap(),
        "--target-namespace",
        &target,
        "--watch-namespaces",
        &namespace,
        "--upstream",
        "none",
    ]);
    for name in ["good", "bad"] {
        let object = format!("{name}-{namespace}-ext");
        external_target(&cluster, &target, &object, &format!("{name}.example.com")).await;
    }
    // From here on nobody can read it; what it says now isn't known.
    let ports = json!({"spec": {"ports": [{"port": 54321}]}});
    cluster.patch_service(&namespace, "bad", ports).await;
    linker.line(&format!("Service {namespace}/bad: it can't be read and counts as it was")).await;
    cluster.set_ingress(&namespace, "bad", &[Ingress::Hostname("unread.example.com")]).await;
    cluster.set_ingress(&namespace, "good", &[Ingress::Hostname("new.example.com")]).await;
    external_target(&cluster, &target, &format!("good-{namespace}-ext"), "new.example.com").await;
    external_target(&cluster, &target, &format!("bad-{namespace}-ext"), "bad.example.com").await;
    assert_eq!(short(linker.dns, &format!("bad.{namespace}.lb.internal. CNAME")).await, "bad.example.com.");
    assert_eq!(short(linker.dns, &format!("good.{namespace}.lb.internal. CNAME")).await, "new.example.com.");
}
