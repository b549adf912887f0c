//! Names from Ingresses, whose statuses are patched as a controller would.

use std::time::Duration;

use hickory_proto::op::ResponseCode;
use k8s_openapi::api::networking::v1::Ingress;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::corefile::server::{CorefileDir, Program, Server};
use crate::harness::cluster::Cluster;
use crate::harness::control_plane::{ControlPlane, Options};
use crate::harness::dns::{answers, ask_udp, ede, query, short};
use crate::harness::linker::{self, Linker, run_to_end};
use crate::harness::{LINKER, apply_deploy, cluster_with_target, deploy, eventually, permission};

const ABSENT: &str = "Non-Existent Domain";

/// The Ingresses of a namespace.
pub(crate) struct Ingresses(Api<Ingress>);

impl Ingresses {
    pub(crate) fn of(cluster: &Cluster, namespace: &str) -> Self {
        Self(Api::namespaced(cluster.client.clone(), namespace))
    }

    /// Creates an Ingress with these hosts and addresses.
    pub(crate) async fn create(&self, name: &str, hosts: &[&str], ip: &str) {
        let backend = json!({"service": {"name": "web", "port": {"number": 80}}});
        let http = json!({"paths": [{"path": "/", "pathType": "Prefix", "backend": backend}]});
        let rules: Vec<Value> = hosts.iter().map(|host| json!({"host": host, "http": http})).collect();
        let object = json!({"metadata": {"name": name}, "spec": {"rules": rules}});
        let object: Ingress = serde_json::from_value(object).unwrap();
        self.0.create(&PostParams::default(), &object).await.unwrap();
        self.set_status(name, &json!([{ "ip": ip }])).await;
    }

    async fn set_status(&self, name: &str, entries: &Value) {
        let patch = json!({"status": {"loadBalancer": {"ingress": entries}}});
        self.0.patch_status(name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    }

    async fn annotate(&self, name: &str, annotation: &str, text: &str) {
        let patch = json!({"metadata": {"annotations": {annotation: text}}});
        self.0.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    }

    async fn delete(&self, name: &str) {
        self.0.delete(name, &DeleteParams::default()).await.unwrap();
    }
}

/// Waits for an Event about an object, and returns its note.
pub(crate) async fn event(
    plane: &ControlPlane,
    namespace: &str,
    (kind, name): (&str, &str),
    reason: &str,
) -> String {
    let path = format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events");
    let look = || async {
        let is_it = |event: &Value| {
            let regarding = &event["regarding"];
            event["reason"] == reason && regarding["kind"] == kind && regarding["name"] == name
        };
        let events = plane.list(&path);
        Some(events.into_iter().find(is_it)?["note"].as_str()?.to_owned())
    };
    eventually(&format!("an Event {reason} about {name}"), look).await
}

/// Starts lb-linker with names of Ingresses in two namespaces, of which any may have any name with `anywhere`.
async fn start(anywhere: bool) -> (&'static ControlPlane, Cluster, [String; 2], Linker) {
    let (plane, cluster, target) = cluster_with_target().await;
    plane.apply_files(&deploy().join("sources"));
    for verb in ["list", "watch"] {
        permission(plane, true, &[verb, "ingresses.networking.k8s.io", "-A", LINKER]).await;
    }
    let namespaces = [cluster.create_namespace("shop").await, cluster.create_namespace("thief").await];
    let both = namespaces.join(",");
    let free = if anywhere { &both } else { "free" };
    let args = ["--upstream", "none", "--sources", "service,ingress", "--watch-namespaces", &both];
    let args = [&args[..], &["--hostname-namespaces", free]].concat();
    let linker = Linker::in_cluster(plane, &target, &args);
    linker.ready().await;
    (plane, cluster, namespaces, linker)
}

#[tokio::test]
async fn hosts_of_ingresses_follow_their_status() {
    let (plane, cluster, [shop, _], linker) = start(false).await;
    let (ingresses, zone) = (Ingresses::of(&cluster, &shop), format!("{shop}.lb.internal"));
    let (app, other) = (format!("app.{zone}"), format!("x.deep.{zone}"));
    ingresses.create("web", &[&app, "www.example.com", &format!("*.deep.{zone}")], "192.0.2.1").await;
    answers(linker.dns, &format!("{app}. A"), "192.0.2.1").await;
    assert_eq!(short(linker.dns, &format!("{other}. A")).await, "192.0.2.1");
    assert_eq!(short(linker.dns, &format!("deep.{zone}. A")).await, "No Error");
    linker.counts("lb_linker_names{cluster=\"\",source=\"ingress\"}", 2.0).await;
    assert!(linker.metrics().contains(&format!("{{watch=\"ingresses/{shop}\"}}")));

    ingresses.set_status("web", &json!([{"hostname": "a.example.com"}])).await;
    answers(linker.dns, &format!("{app}. CNAME"), "a.example.com.").await;
    linker.line(&format!("Ingress {shop}/web: 192.0.2.1 → a.example.com")).await;
    ingresses.set_status("web", &json!([{"ip": "192.0.2.2"}, {"ip": "192.0.2.3"}])).await;
    eventually("both addresses", || async {
        let mut shown: Vec<String> =
            short(linker.dns, &format!("{app}. A")).await.split(' ').map(ToOwned::to_owned).collect();
        shown.sort();
        (shown.join(" ").replace([','], "") == "192.0.2.2 192.0.2.3").then_some(())
    })
    .await;

    // A blank or denied status changes nothing.
    ingresses.set_status("web", &json!([{"ip": "192.0.2.9"}])).await;
    answers(linker.dns, &format!("{app}. A"), "192.0.2.9").await;
    ingresses.set_status("web", &Value::Null).await;
    let note = event(plane, &shop, ("Ingress", "web"), "TargetStale").await;
    assert_eq!(note, "the status is blank; 192.0.2.9 stays the target");
    ingresses.set_status("web", &json!([{"ip": "169.254.169.254"}])).await;
    event(plane, &shop, ("Ingress", "web"), "TargetRefused").await;
    assert_eq!(short(linker.dns, &format!("{app}. A")).await, "192.0.2.9");

    // Annotations are as on load balancers; several Ingresses of a namespace share a name.
    ingresses.annotate("web", "linker.hsj.com/hostname", &format!("more.{zone}")).await;
    answers(linker.dns, &format!("more.{zone}. A"), "192.0.2.9").await;
    ingresses.create("second", &[&app], "192.0.2.10").await;
    eventually("both addresses", || async {
        let shown = short(linker.dns, &format!("{app}. A")).await;
        (shown.contains("192.0.2.9") && shown.contains("192.0.2.10")).then_some(())
    })
    .await;
    ingresses.annotate("web", "linker.hsj.com/managed", "false").await;
    answers(linker.dns, &format!("{app}. A"), "192.0.2.10").await;
    assert_eq!(short(linker.dns, &format!("more.{zone}. A")).await, ABSENT);
    ingresses.delete("second").await;
    answers(linker.dns, &format!("{app}. A"), ABSENT).await;
}

#[tokio::test]
async fn host_of_another_namespace_is_refused() {
    let (plane, cluster, [shop, thief], linker) = start(false).await;
    let app = format!("app.{shop}.lb.internal");
    Ingresses::of(&cluster, &shop).create("web", &[&app], "192.0.2.1").await;
    answers(linker.dns, &format!("{app}. A"), "192.0.2.1").await;
    let hosts = [&app, &format!("*.{shop}.lb.internal"), "lb.internal", "*.lb.internal"];
    let thieves = Ingresses::of(&cluster, &thief);
    thieves.create("web", &hosts, "192.0.2.66").await;
    let note = event(plane, &thief, ("Ingress", "web"), "HostnameRefused").await;
    assert!(note.contains(&format!("\"{app}\" isn't served")) || note.contains("and 1 more"), "{note}");
    thieves.annotate("web", "linker.hsj.com/hostname", &app).await;
    thieves.create("next", &[&format!("next.{thief}.lb.internal")], "192.0.2.67").await;
    answers(linker.dns, &format!("next.{thief}.lb.internal. A"), "192.0.2.67").await;
    assert_eq!(short(linker.dns, &format!("{app}. A")).await, "192.0.2.1");
    assert_eq!(short(linker.dns, &format!("absent.{shop}.lb.internal. A")).await, ABSENT);
    assert_eq!(short(linker.dns, "lb.internal. A").await, "No Error");
}

#[tokio::test]
async fn older_namespace_has_a_host_of_both() {
    let (plane, cluster, [shop, thief], linker) = start(true).await;
    let app = format!("app-{shop}.lb.internal");
    let (owners, thieves) = (Ingresses::of(&cluster, &shop), Ingresses::of(&cluster, &thief));
    owners.create("web", &[&app], "192.0.2.1").await;
    answers(linker.dns, &format!("{app}. A"), "192.0.2.1").await;
    // creationTimestamp has a resolution of 1 s.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    thieves.create("web", &[&app], "192.0.2.66").await;
    let note = event(plane, &thief, ("Ingress", "web"), "Conflict").await;
    assert_eq!(note, format!("it doesn't get DNS names that another object has: {app}"));
    assert_eq!(short(linker.dns, &format!("{app}. A")).await, "192.0.2.1");
    // A load balancer's default name goes before all sources.
    let default = format!("web.{shop}.lb.internal");
    owners.create("default", &[&default], "192.0.2.2").await;
    answers(linker.dns, &format!("{default}. A"), "192.0.2.2").await;
    cluster.create_load_balancer(&shop, "web").await;
    event(plane, &shop, ("Ingress", "default"), "Conflict").await;
    assert_eq!(short(linker.dns, &format!("{default}. A")).await, "No Error");
    cluster.delete_service(&shop, "web").await;
    owners.delete("web").await;
    answers(linker.dns, &format!("{app}. A"), "192.0.2.66").await;
}

/// `lb-linker names` prints the same from a running lb-linker and from the cluster.
#[tokio::test]
async fn names_tell_which_objects_ask_for_them() {
    let (plane, cluster, [shop, thief], linker) = start(true).await;
    let app = format!("app-{shop}.lb.internal");
    let (owners, thieves) = (Ingresses::of(&cluster, &shop), Ingresses::of(&cluster, &thief));
    owners.create("web", &[&app], "192.0.2.1").await;
    // creationTimestamp has a resolution of 1 s.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    thieves.create("web", &[&app], "192.0.2.66").await;
    owners.create("second", &[&app], "192.0.2.2").await;
    cluster.create_load_balancer(&shop, "lb").await;
    event(plane, &thief, ("Ingress", "web"), "Conflict").await;
    let admin = linker.admin().await.to_string();
    let kubeconfig = plane.kubeconfig_for_service_account("lb-linker", "lb-linker");
    let namespaces = format!("{shop},{thief}");
    let from_cluster = ["--sources", "service,ingress", "--hostname-namespaces", &namespaces];
    let from_cluster = [
        &from_cluster[..],
        &["--watch-namespaces", &namespaces, "--kubeconfig", kubeconfig.to_str().unwrap()],
    ]
    .concat();
    for from in [&["--admin-listen", &*admin][..], &from_cluster] {
        let names = |arguments: &[&str]| run_to_end([&["names"], from, arguments].concat());
        eventually("all names", || async {
            let listed: Value = serde_json::from_slice(&names(&["-o", "json"]).stdout).ok()?;
            let items = listed["items"].as_array()?;
            let found: Vec<&str> = items.iter().filter_map(|item| item["name"].as_str()).collect();
            let default = [format!("lb-{shop}.lb.internal"), format!("lb.{shop}.lb.internal")];
            (found == [&*app, &default[0], &default[1]]).then_some(())
        })
        .await;
        let output = names(&[&app]);
        let expected = format!(
            "Name:               {app}\nSource:             ingress\nObject:             Ingress {shop}/web\n\
             State:              Ready\nTarget:             192.0.2.1,192.0.2.2\n\
             Shared with:        Ingress {shop}/second\nAlso asked for by:  Ingress {thief}/web\n"
        );
        assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
        let absent = names(&["absent.lb.internal"]);
        let error = String::from_utf8(absent.stderr).unwrap();
        assert_eq!(absent.status.code(), Some(1));
        assert!(error.ends_with("no name absent.lb.internal found\n"), "{error}");
    }
}

pub(crate) const COREFILE: &str = "
    lb.internal:{$PORT} {
        bind 127.0.0.1
        errors
        ready 127.0.0.1:{$READY}
        prometheus 127.0.0.1:{$METRICS}
        lb_linker {
            OPTIONS
        }
    }";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reload_adds_and_removes_ingresses() {
    let plane = ControlPlane::start(Options::default());
    let cluster = plane.cluster().await;
    let ingresses = Ingresses::of(&cluster, "default");
    for (number, host) in ["a", "b"].into_iter().enumerate() {
        ingresses.create(host, &[&format!("{host}.default.lb.internal")], &format!("192.0.2.{number}")).await;
    }
    cluster.create_load_balancer("default", "web").await;
    let corefile = |options: &str| COREFILE.replace("OPTIONS", options);
    let kubeconfig = plane.admin_kubeconfig();
    let site = CorefileDir::new(&corefile("ttl 5"), &[]).with("LB_LINKER_KUBECONFIG", kubeconfig.display());
    let mut server = Server::start(Program::Linker, &site).await;
    answers(server.dns(), "web.default.lb.internal. A", "No Error").await;
    assert_eq!(short(server.dns(), "a.default.lb.internal. A").await, ABSENT);
    assert!(plane.audit_events_with("\"lb-linker/").iter().all(|seen| seen.resource != "ingresses"));
    for (options, expected) in [
        ("sources service ingress", "192.0.2.0"),
        ("sources ingress", "192.0.2.0"),
        // Without the CRDs of Gateway API there are no routes.
        ("sources gateway ingress", "192.0.2.0"),
        ("sources ingress service\ningress_classes nginx", ABSENT),
        ("sources ingress service", "192.0.2.0"),
        ("sources service", ABSENT),
    ] {
        site.write("Corefile", &corefile(options));
        server.signal(Signal::SIGUSR1);
        // Names that no object has stay absent, and a ready process stays ready.
        let look = || async {
            let absent = ask_udp(server.dns(), &query("c.default.lb.internal. A")).await;
            assert_eq!(absent.metadata.response_code, ResponseCode::NXDomain, "{options}");
            assert_eq!(linker::get(server.address("READY"), "/ready").0, 200, "{options}");
            (short(server.dns(), "a.default.lb.internal. A").await == expected).then_some(())
        };
        eventually(&format!("{expected} with {options}"), look).await;
        let default = if options.contains("service") { "No Error" } else { ABSENT };
        answers(server.dns(), "web.default.lb.internal. A", default).await;
    }
    eventually("the end of the watch", || async {
        (!server.metrics().contains("watch=\"ingresses\"")).then_some(())
    })
    .await;
}

#[tokio::test]
async fn manifests_have_names_of_ingresses() {
    let ingress = |host: &str, ip: &str| {
        format!(
            "apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {{name: web}}\nspec: {{rules: [{{host: {host}}}]}}\n\
             status: {{loadBalancer: {{ingress: [{{ip: {ip}}}]}}}}\n"
        )
    };
    let corefile = |options: &str| COREFILE.replace("OPTIONS", options);
    let file = "manifests/web.yaml";
    let content = ingress("app.default.lb.internal", "192.0.2.1");
    let site = CorefileDir::new(&corefile("sources service ingress"), &[(file, &content)]);
    let mut server = Server::start(Program::Linker, &site).await;
    answers(server.dns(), "app.default.lb.internal. A", "192.0.2.1").await;
    assert_eq!(short(server.dns(), "other.default.lb.internal. A").await, ABSENT);
    site.write(file, &ingress("other.default.lb.internal", "192.0.2.2"));
    answers(server.dns(), "other.default.lb.internal. A", "192.0.2.2").await;
    assert_eq!(short(server.dns(), "app.default.lb.internal. A").await, ABSENT);
    for (options, expected) in [("sources service", ABSENT), ("sources ingress", "192.0.2.2")] {
        site.write("Corefile", &corefile(options));
        server.signal(Signal::SIGUSR1);
        answers(server.dns(), "other.default.lb.internal. A", expected).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_right_leaves_unknown_names_unanswered() {
    let plane = ControlPlane::start(Options::default());
    apply_deploy(&plane);
    let cluster = plane.cluster().await;
    let target = cluster.create_namespace("targets").await;
    crate::harness::grant(&plane, &target);
    cluster.create_load_balancer("default", "web").await;
    Ingresses::of(&cluster, "default").create("app", &["app.default.lb.internal"], "192.0.2.1").await;
    let args = ["--upstream", "none", "--sources", "service,ingress"];
    let linker = Linker::in_cluster(&plane, &target, &args);
    answers(linker.dns, "web.default.lb.internal. A", "No Error").await;
    let look = || async {
        let (code, page) = linker.get_ready();
        (code == 503 && page.contains("deploy/sources/ grants the permission")).then_some(page)
    };
    let page = eventually("the reason on /ready", look).await;
    assert!(page.contains("can't list Ingresses in all namespaces: the API server forbids it"), "{page}");
    let answer = ask_udp(linker.dns, &query("app.default.lb.internal. A")).await;
    assert_eq!((answer.metadata.response_code, ede(&answer)), (ResponseCode::ServFail, Some(14)));
    linker.line("deploy/sources/ grants the permission").await;
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(linker.logged("deploy/sources/ grants the permission"), 1, "{:#?}", linker.log());
    plane.apply_files(&deploy().join("sources"));
    linker.ready().await;
    answers(linker.dns, "app.default.lb.internal. A", "192.0.2.1").await;
    assert_eq!(short(linker.dns, "absent.default.lb.internal. A").await, ABSENT);
}
