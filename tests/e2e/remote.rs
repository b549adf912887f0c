//! Names of remote clusters, each a real API server of its own.

use serde_json::json;

use crate::harness::cluster::{Cluster, Ingress};
use crate::harness::control_plane::ControlPlane;
use crate::harness::dns::{answers, ask_udp, ede, query, short};
use crate::harness::linker::{Linker, run_to_end};
use crate::harness::pool::Lent;
use crate::harness::{LINKER, cluster_with_target, deploy, eventually, permission};
use crate::name_sources::Ingresses;

const ABSENT: &str = "Non-Existent Domain";
const UNKNOWN: &str = "Server Failure";

/// Returns a flag that names a remote cluster.
pub(crate) fn remote(name: &str, plane: &ControlPlane) -> String {
    format!("{name}={}", plane.admin_kubeconfig().display())
}

/// A remote cluster, and a namespace in it.
struct Remote {
    plane: Lent,
    cluster: Cluster,
    namespace: String,
}

impl Remote {
    async fn borrow() -> Self {
        let plane = ControlPlane::lend();
        let cluster = plane.cluster().await;
        let namespace = cluster.create_namespace("shop").await;
        Self { plane, cluster, namespace }
    }

    async fn load_balancer(&self, name: &str, ip: &str) {
        self.cluster.create_load_balancer(&self.namespace, name).await;
        self.cluster.set_ingress(&self.namespace, name, &[Ingress::Ip(ip)]).await;
    }
}

/// Asserts that lb-linker has only read from a remote cluster.
pub(crate) fn assert_only_read(plane: &ControlPlane) {
    let mut events = plane.audit_events_with("lb-linker/");
    events.retain(|event| event.user_agent.starts_with("lb-linker/"));
    assert!(events.iter().any(|event| event.verb == "watch"), "{events:?}");
    let other = events.iter().find(|event| !["list", "watch", "get"].contains(&event.verb.as_str()));
    assert!(other.is_none(), "{other:?}");
    for event in events.iter().filter(|event| event.verb == "get") {
        assert_eq!((event.resource.as_str(), event.name.as_str()), ("namespaces", "kube-system"));
    }
}

#[tokio::test]
async fn remote_cluster_has_names_below_its_own_name() {
    let (plane, home, target) = cluster_with_target().await;
    let west = Remote::borrow().await;
    plane.apply_files(&deploy().join("sources"));
    permission(plane, true, &["watch", "ingresses.networking.k8s.io", "-A", LINKER]).await;
    let (shop, shop_at_home) = (&west.namespace, home.create_namespace("shop").await);
    west.load_balancer("web", "192.0.2.1").await;
    let zone = format!("{shop}.west.lb.internal");
    Ingresses::of(&west.cluster, shop).create("app", &[&format!("*.{zone}")], "192.0.2.2").await;
    let args = ["--upstream", "none", "--sources", "service,ingress", "--watch-namespaces", &shop_at_home];
    let linker = Linker::in_cluster(
        plane,
        &target,
        &[&args[..], &["--remote", &remote("west", &west.plane)]].concat(),
    );
    linker.ready().await;
    answers(linker.dns, &format!("web.{zone}. A"), "192.0.2.1").await;
    answers(linker.dns, &format!("other.{zone}. A"), "192.0.2.2").await;
    for (question, expected) in [
        ("west.lb.internal. A".to_owned(), "No Error"),
        (format!("{zone}. A"), "No Error"),
        (format!("web-{shop}.west.lb.internal. A"), ABSENT),
        (format!("web-{shop}.lb.internal. A"), ABSENT),
        (format!("web.{shop}.lb.internal. A"), ABSENT),
    ] {
        assert_eq!(short(linker.dns, &question).await, expected, "{question}");
    }
    west.cluster.set_ingress(shop, "web", &[Ingress::Hostname("lb.example.com")]).await;
    answers(linker.dns, &format!("web.{zone}. CNAME"), "lb.example.com.").await;
    linker.line(&format!("Service west/{shop}/web: 192.0.2.1 → lb.example.com")).await;
    linker.counts("lb_linker_names{cluster=\"west\",source=\"service\"}", 1.0).await;
    linker.counts("lb_linker_names{cluster=\"west\",source=\"ingress\"}", 1.0).await;
    assert!(linker.metrics().contains("{watch=\"west:load-balancers\"}"));
    let admin = linker.admin().await.to_string();
    let shown = |command: &[&str]| {
        let output = run_to_end([command, &["--admin-listen", &admin]].concat());
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let links = shown(&["links"]);
    let row = links.lines().find(|line| line.contains(&format!("west/{shop}"))).unwrap_or_default();
    let row: Vec<&str> = row.split_whitespace().collect();
    let own = format!("web.{zone}");
    assert_eq!(row[1..6], ["web", &own, "lb.example.com", "<none>", "Ready"], "{links}");
    assert!(shown(&["links", &format!("west/{shop}/web")]).contains(&format!("west/{shop}/web")));
    assert!(shown(&["links", &own]).contains("lb.example.com"));
    let names = shown(&["names", &own]);
    assert!(names.contains(&format!("Service west/{shop}/web")), "{names}");
    let names = shown(&["names", "-n", &format!("west/{shop}")]);
    assert!(names.contains(&format!("Ingress west/{shop}/app")), "{names}");

    west.cluster.delete_service(shop, "web").await;
    answers(linker.dns, &format!("web.{zone}. A"), "192.0.2.2").await;
    assert_only_read(&west.plane);
}

#[tokio::test]
async fn remote_cluster_takes_no_name_of_another_cluster() {
    let (plane, home, target) = cluster_with_target().await;
    let west = Remote::borrow().await;
    let own = home.create_namespace("own").await;
    home.create_load_balancer(&own, "web").await;
    home.set_ingress(&own, "web", &[Ingress::Ip("192.0.2.1")]).await;
    let free = format!("{own},west/{}", west.namespace);
    let annotate = |names: &str| json!({"metadata": {"annotations": {"linker.hsj.com/hostname": names}}});
    home.patch_service(&own, "web", annotate("both.lb.internal,home.west.lb.internal")).await;
    west.load_balancer("thief", "192.0.2.66").await;
    let wanted = [
        format!("web.{own}.lb.internal"),
        format!("web-{own}.lb.internal"),
        format!("_tcp.web.{own}.lb.internal"),
        "both.lb.internal".to_owned(),
        "web.own.east.lb.internal".to_owned(),
        "east.lb.internal".to_owned(),
        "west.lb.internal".to_owned(),
        "x.dns.lb.internal".to_owned(),
        "deleted.lb.internal".to_owned(),
        "free.lb.internal".to_owned(),
    ];
    west.cluster.patch_service(&west.namespace, "thief", annotate(&wanted.join(","))).await;
    let (as_west, as_east) = (remote("west", &west.plane), remote("east", &west.plane));
    let args = ["--upstream", "none", "--watch-namespaces", &own, "--hostname-namespaces", &free];
    let args = [&args[..], &["--remote", &as_west, "--remote", &as_east]].concat();
    let linker = Linker::in_cluster(plane, &target, &args);
    linker.ready().await;
    // The last name of the annotation may be had, so the other ones were looked at, too.
    answers(linker.dns, "free.lb.internal. A", "192.0.2.66").await;
    answers(linker.dns, &format!("thief.{}.east.lb.internal. A", west.namespace), "192.0.2.66").await;
    answers(linker.dns, "both.lb.internal. A", "192.0.2.1").await;
    for name in &wanted[..9] {
        let expected = match name.as_str() {
            "both.lb.internal" => "192.0.2.1",
            "east.lb.internal" | "west.lb.internal" => "No Error",
            name if name.starts_with("web") && name.contains(&own) => "192.0.2.1",
            name if name.starts_with("_tcp") => "No Error",
            _ => ABSENT,
        };
        let found = short(linker.dns, &format!("{name}. A")).await;
        assert!(found == expected || name.starts_with("_tcp") && found == ABSENT, "{name}: {found}");
    }
    assert_eq!(short(linker.dns, "home.west.lb.internal. A").await, ABSENT);
    let reserved = linker.line("home.west.lb.internal").await;
    assert!(reserved.contains("is reserved for cluster west"), "{reserved}");
    assert_only_read(&west.plane);
}

#[tokio::test]
async fn remote_cluster_that_is_away_keeps_its_names() {
    let (plane, home, target) = cluster_with_target().await;
    let west = Remote::borrow().await;
    let own = home.create_namespace("own").await;
    west.load_balancer("web", "192.0.2.1").await;
    let name = format!("web.{}.west.lb.internal. A", west.namespace);
    let flag = remote("west", &west.plane);
    let args = ["--upstream", "none", "--watch-namespaces", &own, "--remote", &flag];
    let linker = Linker::in_cluster(plane, &target, &args);
    answers(linker.dns, &name, "192.0.2.1").await;
    west.plane.stop_apiserver();
    let line = linker.line("the API server can't be reached").await;
    assert!(line.contains("of cluster west"), "{line}");
    assert_eq!(short(linker.dns, &name).await, "192.0.2.1");
    let old = "the load balancers of cluster west are as they were read last, after 2";
    eventually("a note of the age", || async { linker.get_ready().1.contains(old).then_some(()) }).await;
    assert_eq!(linker.get_ready().0, 200);

    // A start without the remote cluster waits for nothing of it.
    let late = Linker::in_cluster(plane, &target, &args);
    late.ready().await;
    let unknown = ask_udp(late.dns, &query(&name)).await;
    assert_eq!(ede(&unknown), Some(14));
    assert_eq!(short(late.dns, &name).await, UNKNOWN);
    assert_eq!(short(late.dns, "absent.lb.internal. A").await, ABSENT);
    eventually("a note of the remote cluster", || async {
        late.get_ready().1.contains("cluster west").then_some(())
    })
    .await;
    assert_eq!(late.get_ready().0, 200);
    west.plane.start_apiserver();
    answers(late.dns, &name, "192.0.2.1").await;
}

#[tokio::test]
async fn home_cluster_as_a_remote_one_is_not_read() {
    let west = Remote::borrow().await;
    west.load_balancer("web", "192.0.2.1").await;
    let kubeconfig = west.plane.admin_kubeconfig();
    let kubeconfig = kubeconfig.to_str().unwrap();
    let flag = remote("west", &west.plane);
    let linker =
        Linker::start(["--kubeconfig", kubeconfig, "--sync", "off", "--upstream", "none", "--remote", &flag]);
    linker.line("remote cluster west is this cluster itself").await;
    answers(linker.dns, &format!("web.{}.lb.internal. A", west.namespace), "192.0.2.1").await;
    let there = format!("web.{}.west.lb.internal. A", west.namespace);
    eventually("no names of the remote cluster", || async {
        (short(linker.dns, &there).await == UNKNOWN).then_some(())
    })
    .await;
    let output = run_to_end(["links", "--kubeconfig", kubeconfig, "--remote", &flag]);
    let problems = String::from_utf8_lossy(&output.stderr);
    assert!(!problems.contains("cluster west isn't read"), "{problems}");
}

#[test]
fn wrong_remote_clusters_are_refused_with_the_place() {
    let path = "/nonexistent/kubeconfig";
    for (args, expected) in [
        (vec!["--remote", "west"], "not a name, a kubeconfig and perhaps a context"),
        (vec!["--remote", "dns=/k"], "dns is reserved below every zone"),
        (vec!["--remote", "home=/k"], "--remote home: it is the name of this cluster"),
        (vec!["--remote", "a=/k,a=/l"], "--remote a is given twice"),
        (vec!["--hostname-namespaces", "west/*"], "--hostname-namespaces west/*: there is no --remote west"),
        (vec!["--remote", "a=/k", "--manifests", "/tmp"], "--manifests"),
    ] {
        let output = run_to_end([&["--kubeconfig", path][..], &args].concat());
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {error}");
        assert!(error.contains(expected), "{args:?}: {error}");
    }
}
