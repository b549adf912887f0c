//! Names from routes at Gateways, with the CRDs of Gateway API and statuses that are patched as a controller would.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use kube::Api;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};

use crate::corefile::server::{CorefileDir, Program, Server};
use crate::harness::cluster::Cluster;
use crate::harness::control_plane::{ControlPlane, Options};
use crate::harness::dns::{answers, short};
use crate::harness::linker::{Linker, run_to_end};
use crate::harness::programs::gateway_api_crds;
use crate::harness::{LINKER, apply_deploy, cluster_with_target, deploy, grant, permission};
use crate::name_sources::{COREFILE, Ingresses, event};

const ABSENT: &str = "Non-Existent Domain";
const GROUP: &str = "gateway.networking.k8s.io";
const V1_6: usize = 0;
const V1_3: usize = 1;

/// Creates the CRDs of a version, and waits until the API server serves them.
fn apply_crds(plane: &ControlPlane, version: usize, kinds: &[&str]) {
    plane.apply_files(&gateway_api_crds()[version]);
    let names: Vec<String> = kinds.iter().map(|kind| format!("{kind}.{GROUP}")).collect();
    plane.wait_for_crds(&names.iter().map(String::as_str).collect::<Vec<_>>());
}

/// The objects of Gateway API in a namespace.
struct Objects<'a> {
    cluster: &'a Cluster,
    namespace: &'a str,
    /// The version of TLSRoutes.
    tls: &'static str,
}

impl Objects<'_> {
    fn api(&self, kind: &str) -> Api<DynamicObject> {
        let version = if kind == "TLSRoute" { self.tls } else { "v1" };
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(GROUP, version, kind));
        Api::namespaced_with(self.cluster.client.clone(), self.namespace, &resource)
    }

    async fn create(&self, kind: &str, name: &str, spec: Value, status: &Value) {
        let version = if kind == "TLSRoute" { self.tls } else { "v1" };
        let object = json!({"apiVersion": format!("{GROUP}/{version}"), "kind": kind, "metadata": {"name": name},
            "spec": spec});
        let object: DynamicObject = serde_json::from_value(object).unwrap();
        self.api(kind).create(&PostParams::default(), &object).await.unwrap();
        self.set_status(kind, name, status).await;
    }

    async fn set_status(&self, kind: &str, name: &str, status: &Value) {
        let patch = Patch::Merge(json!({"status": status}));
        self.api(kind).patch_status(name, &PatchParams::default(), &patch).await.unwrap();
    }

    async fn patch(&self, kind: &str, name: &str, patch: Value) {
        self.api(kind).patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    }

    async fn delete(&self, kind: &str, name: &str) {
        self.api(kind).delete(name, &DeleteParams::default()).await.unwrap();
    }

    /// Creates a Gateway with these listeners and an address.
    async fn gateway(&self, name: &str, listeners: Value, ip: &str) {
        let from = json!({"namespaces": {"from": "All"}});
        let spec = json!({"gatewayClassName": "envoy", "listeners": listeners, "allowedListeners": from});
        self.create("Gateway", name, spec, &addresses(ip)).await;
    }

    /// Creates a route that its parent has accepted, or refused.
    async fn route(&self, kind: &str, name: &str, hosts: &[&str], parent: &Value, accepted: &str) {
        let mut spec = json!({"parentRefs": [parent], "hostnames": hosts});
        if kind == "TLSRoute" {
            spec["rules"] = json!([{"backendRefs": [{"name": "web", "port": 443}]}]);
        }
        let status = json!({"parents": [{"parentRef": parent, "controllerName": "example.com/controller",
            "conditions": [condition("Accepted", accepted)]}]});
        self.create(kind, name, spec, &status).await;
    }
}

fn condition(type_: &str, status: &str) -> Value {
    json!({"type": type_, "status": status, "reason": "Tested", "message": "", "observedGeneration": 1,
        "lastTransitionTime": "2026-01-01T00:00:00Z"})
}

fn addresses(ip: &str) -> Value {
    json!({"addresses": [{"type": "IPAddress", "value": ip}]})
}

fn http(name: &str, hostname: Option<&str>) -> Value {
    json!({"name": name, "port": 80, "protocol": "HTTP", "hostname": hostname,
        "allowedRoutes": {"namespaces": {"from": "All"}}})
}

fn tls(name: &str) -> Value {
    json!({"name": name, "port": 443, "protocol": "TLS", "tls": {"mode": "Passthrough"},
        "allowedRoutes": {"namespaces": {"from": "All"}}})
}

/// Starts lb-linker with names of routes in three namespaces, of which the first may have any name.
async fn start() -> (&'static ControlPlane, Cluster, [String; 3], Linker) {
    static APPLIED: OnceLock<()> = OnceLock::new();
    let (plane, cluster, target) = cluster_with_target().await;
    let kinds = ["gateways", "listenersets", "httproutes", "grpcroutes", "tlsroutes"];
    APPLIED.get_or_init(|| apply_crds(plane, V1_6, &kinds));
    plane.apply_files(&deploy().join("sources"));
    for verb in ["list", "watch"] {
        permission(plane, true, &[verb, "httproutes.gateway.networking.k8s.io", "-A", LINKER]).await;
    }
    let namespaces = [
        cluster.create_namespace("infra").await,
        cluster.create_namespace("shop").await,
        cluster.create_namespace("thief").await,
    ];
    let watched = namespaces.join(",");
    let args = ["--upstream", "none", "--sources", "service,gateway", "--watch-namespaces", &watched];
    let linker =
        Linker::in_cluster(plane, &target, &[&args[..], &["--hostname-namespaces", &namespaces[0]]].concat());
    linker.ready().await;
    (plane, cluster, namespaces, linker)
}

#[tokio::test]
async fn hostnames_of_routes_follow_their_gateway() {
    let (plane, cluster, [infra, shop, _], linker) = start().await;
    let of = |namespace| Objects { cluster: &cluster, namespace, tls: "v1" };
    let (gateways, routes, zone) = (of(&infra), of(&shop), format!("{shop}.lb.internal"));
    let hosts = ["app", "grpc", "tls", "set"].map(|host| format!("{host}.{zone}"));
    let parent = json!({"name": "gw", "namespace": infra});
    routes.route("HTTPRoute", "web", &[&hosts[0], "www.example.com"], &parent, "True").await;
    routes.route("GRPCRoute", "grpc", &[&hosts[1]], &parent, "True").await;
    routes.route("TLSRoute", "tls", &[&hosts[2]], &parent, "True").await;
    gateways.gateway("gw", json!([http("web", None), tls("tls")]), "192.0.2.1").await;
    for host in &hosts[..3] {
        answers(linker.dns, &format!("{host}. A"), "192.0.2.1").await;
    }
    let set = json!({"parentRef": parent, "listeners": [http("set", Some(&format!("*.{zone}")))]});
    let accepted = json!({"conditions": [condition("Accepted", "True")]});
    routes.create("ListenerSet", "set", set, &accepted).await;
    let at_set = json!({"name": "set", "kind": "ListenerSet", "group": GROUP});
    routes.route("HTTPRoute", "set", &[&hosts[3]], &at_set, "True").await;
    answers(linker.dns, &format!("{}. A", hosts[3]), "192.0.2.1").await;
    linker.counts("lb_linker_names{cluster=\"\",source=\"gateway\"}", 4.0).await;
    for watch in ["gateways", "listenersets", "httproutes", "grpcroutes", "tlsroutes"] {
        assert!(linker.metrics().contains(&format!("{{watch=\"{watch}/{shop}\"}}")), "{watch}");
    }

    // All routes follow the Gateway; the log has one line.
    gateways.set_status("Gateway", "gw", &addresses("192.0.2.2")).await;
    for host in &hosts {
        answers(linker.dns, &format!("{host}. A"), "192.0.2.2").await;
    }
    assert_eq!(linker.logged("192.0.2.1 → 192.0.2.2"), 1, "{:#?}", linker.log());
    gateways.set_status("Gateway", "gw", &json!({"addresses": null})).await;
    linker.line(&format!("Gateway {infra}/gw: the status is blank; 192.0.2.2 stays the target")).await;
    let address = |type_: &str, value: &str| json!({"type": type_, "value": value});
    let named = [address("example.com/id", "x"), address("Hostname", "a.example.com")];
    let named = json!({"addresses": named});
    gateways.set_status("Gateway", "gw", &named).await;
    answers(linker.dns, &format!("{}. CNAME", hosts[0]), "a.example.com.").await;
    gateways.set_status("Gateway", "gw", &addresses("192.0.2.3")).await;
    routes.set_status("HTTPRoute", "web", &json!({"parents": []})).await;
    answers(linker.dns, &format!("{}. A", hosts[0]), ABSENT).await;
    gateways.delete("Gateway", "gw").await;
    for host in &hosts {
        answers(linker.dns, &format!("{host}. A"), ABSENT).await;
    }

    let kubeconfig = plane.kubeconfig_for_service_account("lb-linker", "lb-linker");
    let args =
        ["check", "--cluster", "--kubeconfig", kubeconfig.to_str().unwrap(), "--sources", "service,gateway"];
    let output = String::from_utf8(run_to_end(args).stdout).unwrap();
    for expected in ["yes  list listenersets in all namespaces", "yes  watch tlsroutes in all namespaces"] {
        assert!(output.contains(expected), "{output}");
    }
}

#[tokio::test]
async fn host_of_another_namespace_is_refused_on_routes() {
    let (plane, cluster, [infra, shop, thief], linker) = start().await;
    let of = |namespace| Objects { cluster: &cluster, namespace, tls: "v1" };
    let app = format!("app.{shop}.lb.internal");
    let (open, lent) = (json!({"name": "open", "namespace": infra}), format!("*.lent-{shop}.lb.internal"));
    of(&infra).gateway("open", json!([http("open", None), http("lent", Some(&lent))]), "192.0.2.1").await;
    of(&shop).route("HTTPRoute", "web", &[&app], &open, "True").await;
    answers(linker.dns, &format!("{app}. A"), "192.0.2.1").await;

    // At a Gateway of its own, at a listener without hostname, and not accepted by a listener that may have the name.
    let thieves = of(&thief);
    thieves.gateway("own", json!([http("app", Some(&app))]), "192.0.2.66").await;
    let all = format!("*.{shop}.lb.internal");
    let hosts = [&*app, &*all, "lb.internal", "*.lb.internal"];
    thieves.route("HTTPRoute", "own", &hosts, &json!({"name": "own"}), "True").await;
    thieves.route("HTTPRoute", "open", &hosts, &open, "True").await;
    thieves.route("HTTPRoute", "refused", &[&app], &open, "False").await;
    for (route, text) in [
        ("own", format!("namespace {thief} may have names below")),
        ("open", format!("namespace {thief} may have names below")),
        ("refused", format!("Gateway {infra}/open hasn't accepted the route")),
    ] {
        let note = event(plane, &thief, ("HTTPRoute", route), "HostnameRefused").await;
        assert!(note.contains(&text), "{note}");
    }
    // What a Gateway's namespace may have it hands on within the hostname of a listener.
    let handed_on = format!("next.lent-{shop}.lb.internal");
    thieves.route("HTTPRoute", "lent", &[&handed_on], &open, "True").await;
    answers(linker.dns, &format!("{handed_on}. A"), "192.0.2.1").await;
    assert_eq!(short(linker.dns, &format!("{app}. A")).await, "192.0.2.1");
    assert_eq!(short(linker.dns, &format!("absent.{shop}.lb.internal. A")).await, ABSENT);

    let hidden = cluster.create_namespace("hidden").await;
    let parent = json!({"name": "gw", "namespace": hidden});
    of(&shop).route("HTTPRoute", "hidden", &[&format!("hidden.{shop}.lb.internal")], &parent, "True").await;
    let note = event(plane, &shop, ("HTTPRoute", "hidden"), "TargetRefused").await;
    assert!(note.contains(&format!("\"Gateway {hidden}/gw\" isn't served: --watch-namespaces")), "{note}");
}

#[tokio::test]
async fn scan_names_the_gateway_with_a_hostname() {
    let (plane, cluster, [infra, shop, _], _linker) = start().await;
    let gateways = Objects { cluster: &cluster, namespace: &infra, tls: "v1" };
    let (of_status, of_annotation) = (format!("a.{infra}.example.org"), format!("b.{infra}.example.org"));
    gateways.gateway("status", json!([http("web", None)]), "192.0.2.1").await;
    let status = json!({"addresses": [{"type": "Hostname", "value": of_status}]});
    gateways.set_status("Gateway", "status", &status).await;
    gateways.gateway("annotation", json!([http("web", None)]), "192.0.2.1").await;
    let target = json!({"metadata": {"annotations": {"linker.hsj.com/target": of_annotation}}});
    gateways.patch("Gateway", "annotation", target).await;
    for (name, host) in [("one", &of_status), ("two", &of_annotation)] {
        let spec = json!({"type": "ExternalName", "externalName": host});
        cluster.create_service(&shop, json!({"metadata": {"name": name}, "spec": spec})).await;
    }
    let kubeconfig = plane.admin_kubeconfig();
    let args = ["scan", "--upstream", "none", "-o", "json", "-n", &shop, "--kubeconfig"];
    let output = run_to_end([&args[..], &[kubeconfig.to_str().unwrap()]].concat());
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    for (place, gateway) in ["status", "annotation"].into_iter().enumerate() {
        let expected = json!([format!("Gateway {infra}/{gateway}")]);
        assert_eq!(found["targets"][place]["objects"], expected, "{found}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn crds_may_come_later_and_go() {
    let plane = ControlPlane::start(Options::default());
    apply_deploy(&plane);
    plane.apply_files(&deploy().join("sources"));
    let cluster = plane.cluster().await;
    let target = cluster.create_namespace("targets").await;
    grant(&plane, &target);
    let linker = Linker::in_cluster(&plane, &target, &["--upstream", "none", "--sources", "service,gateway"]);
    linker.ready().await;
    linker.line("TLSRoutes aren't served by the API server (no CRD); asked for again every 30 s").await;
    assert_eq!(short(linker.dns, "tls.default.lb.internal. A").await, ABSENT);

    // The only version of TLSRoutes is v1alpha2.
    apply_crds(&plane, V1_3, &["gateways", "httproutes", "grpcroutes", "tlsroutes"]);
    let mut objects = Objects { cluster: &cluster, namespace: "default", tls: "v1alpha2" };
    let parent = json!({"name": "gw"});
    objects.gateway("gw", json!([http("web", None), tls("tls")]), "192.0.2.1").await;
    objects.route("TLSRoute", "tls", &["tls.default.lb.internal"], &parent, "True").await;
    objects.route("HTTPRoute", "web", &["web.default.lb.internal"], &parent, "True").await;
    for host in ["tls", "web"] {
        answers(linker.dns, &format!("{host}.default.lb.internal. A"), "192.0.2.1").await;
    }
    plane.kubectl(&["delete", "crd", &format!("tlsroutes.{GROUP}")]);
    answers(linker.dns, "tls.default.lb.internal. A", ABSENT).await;
    assert_eq!(short(linker.dns, "web.default.lb.internal. A").await, "192.0.2.1");

    apply_crds(&plane, V1_6, &["tlsroutes", "listenersets"]);
    objects.tls = "v1";
    objects.route("TLSRoute", "tls", &["next.default.lb.internal"], &parent, "True").await;
    answers(linker.dns, "next.default.lb.internal. A", "192.0.2.1").await;
    objects.patch("HTTPRoute", "web", json!({"spec": {"hostnames": ["other.default.lb.internal"]}})).await;
    answers(linker.dns, "other.default.lb.internal. A", "192.0.2.1").await;
}

/// With the objects their CRDs and lb-linker's ServiceAccount are gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_end_with_a_second_list_of_an_emptied_etcd() {
    let plane = ControlPlane::start(Options::default());
    plane.back_up();
    apply_crds(&plane, V1_6, &["gateways", "listenersets", "httproutes", "grpcroutes", "tlsroutes"]);
    let cluster = plane.cluster().await;
    let objects = Objects { cluster: &cluster, namespace: "default", tls: "v1" };
    objects.gateway("gw", json!([http("web", None)]), "192.0.2.1").await;
    let names = ["ingress", "route"].map(|name| format!("{name}.default.lb.internal. A"));
    objects.route("HTTPRoute", "web", &["route.default.lb.internal"], &json!({"name": "gw"}), "True").await;
    Ingresses::of(&cluster, "default").create("web", &["ingress.default.lb.internal"], "192.0.2.1").await;
    let kubeconfig = plane.admin_kubeconfig();
    let args = ["--upstream", "none", "--sources", "service,ingress,gateway", "--kubeconfig"];
    let linker = Linker::start([&args[..], &[kubeconfig.to_str().unwrap()]].concat());
    for name in &names {
        answers(linker.dns, name, "192.0.2.1").await;
    }

    plane.restore();
    linker.line("the list of Ingresses in all namespaces lacks suspiciously many").await;
    let doubted = Instant::now();
    while doubted.elapsed() < Duration::from_secs(20) {
        for name in &names {
            assert_eq!(short(linker.dns, name).await, "192.0.2.1");
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    // What is added counts at once.
    let cluster = plane.cluster().await;
    Ingresses::of(&cluster, "default").create("new", &["new.default.lb.internal"], "192.0.2.2").await;
    answers(linker.dns, "new.default.lb.internal. A", "192.0.2.2").await;
    for name in &names {
        answers(linker.dns, name, ABSENT).await;
    }
    assert_eq!(short(linker.dns, "new.default.lb.internal. A").await, "192.0.2.2");
}

#[tokio::test]
async fn manifests_have_names_of_routes() {
    let gateway = |ip: &str| {
        format!(
            "apiVersion: {GROUP}/v1\nkind: Gateway\nmetadata: {{name: gw}}\nspec:\n  gatewayClassName: envoy\n  \
             listeners: [{{name: web, port: 80, protocol: HTTP}}]\nstatus: {{addresses: [{{value: {ip}}}]}}\n"
        )
    };
    let parent = json!({"name": "gw"});
    let route = json!({"apiVersion": format!("{GROUP}/v1"), "kind": "HTTPRoute", "metadata": {"name": "web"},
        "spec": {"parentRefs": [parent], "hostnames": ["app.default.lb.internal"]},
        "status": {"parents": [{"parentRef": parent, "conditions": [{"type": "Accepted", "status": "True"}]}]}});
    let files =
        [("manifests/a-route.json", route.to_string()), ("manifests/gateway.yaml", gateway("192.0.2.1"))];
    let files: Vec<(&str, &str)> = files.iter().map(|(name, content)| (*name, &**content)).collect();
    let site = CorefileDir::new(&COREFILE.replace("OPTIONS", "sources service gateway"), &files);
    let server = Server::start(Program::Linker, &site).await;
    answers(server.dns(), "app.default.lb.internal. A", "192.0.2.1").await;
    site.write("manifests/gateway.yaml", &gateway("192.0.2.2"));
    answers(server.dns(), "app.default.lb.internal. A", "192.0.2.2").await;
    site.write("manifests/gateway.yaml", "");
    answers(server.dns(), "app.default.lb.internal. A", ABSENT).await;
}
