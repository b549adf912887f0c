//! An API server that stops, restarts, or doesn't answer.

use nix::sys::signal::Signal;

use crate::harness::cluster::{Cluster, Ingress};
use crate::harness::control_plane::ControlPlane;
use crate::harness::dns::{answers, short};
use crate::harness::eventually;
use crate::harness::linker::Linker;

const TARGETS: &str = "external-targets";

#[tokio::test]
async fn restarted_api_server_is_watched_again() {
    let plane = ControlPlane::lend();
    let cluster = plane.cluster().await;
    cluster.create_load_balancer("default", "web").await;
    cluster.set_ingress("default", "web", &[Ingress::Hostname("a.example.com")]).await;
    cluster.create_load_balancer("default", "old").await;
    cluster.set_ingress("default", "old", &[Ingress::Hostname("old.example.com")]).await;
    let args = ["--upstream", "none", "--delete-delay", "0s"];
    let linker = Linker::in_cluster(&plane, TARGETS, &args);
    answers(linker.dns, "web-default.lb.internal. CNAME", "a.example.com.").await;

    plane.kill_apiserver();
    linker.line("the API server can't be reached").await;
    assert_eq!(short(linker.dns, "web-default.lb.internal. CNAME").await, "a.example.com.");
    assert_eq!(linker.get_ready().0, 200, "ready doesn't depend on the API server");

    plane.start_apiserver();
    let cluster = plane.cluster().await;
    cluster.set_ingress("default", "web", &[Ingress::Hostname("b.example.com")]).await;
    cluster.delete_service("default", "old").await;
    answers(linker.dns, "web-default.lb.internal. CNAME", "b.example.com.").await;
    answers(linker.dns, "old-default.lb.internal. CNAME", "Non-Existent Domain").await;
    converged_to(&cluster, "web-default-ext", "b.example.com").await;
    eventually("the old object's end", || async {
        cluster.get_service(TARGETS, "old-default-ext").await.is_none().then_some(())
    })
    .await;
}

async fn converged_to(cluster: &Cluster, name: &str, host: &str) {
    let look = || async {
        let spec = cluster.get_service(TARGETS, name).await?.spec?;
        (spec.external_name.as_deref() == Some(host)).then_some(())
    };
    eventually(name, look).await;
}

#[tokio::test]
async fn silent_api_server_doesnt_delay_the_shutdown() {
    let plane = ControlPlane::lend();
    let cluster = plane.cluster().await;
    cluster.create_load_balancer("default", "web").await;
    let mut linker = Linker::in_cluster(&plane, TARGETS, &["--upstream", "none"]);
    linker.ready().await;
    plane.signal_apiserver(Signal::SIGSTOP);
    assert_eq!(short(linker.dns, "web-default.lb.internal. A").await, "No Error");
    assert!(linker.stop().success());
    plane.signal_apiserver(Signal::SIGCONT);
}
