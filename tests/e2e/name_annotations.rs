//! Annotations that replace the target of an object, ask for names of cluster IPs, or are another program's.

use std::time::Duration;

use k8s_openapi::api::networking::v1::Ingress as IngressObject;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::failover::{Shop, shortest_check};
use crate::harness::cluster::{Cluster, Ingress};
use crate::harness::control_plane::ControlPlane;
use crate::harness::dns::{answers, short};
use crate::harness::linker::{Linker, run_to_end};
use crate::harness::{LINKER, cluster_with_target, deploy, eventually, permission};
use crate::recreation::wait_for_external_target;
use crate::source::{follower, wait_for_target};

const ABSENT: &str = "Non-Existent Domain";
const TARGET: &str = "linker.hsj.com/target";
const INTERNAL: &str = "linker.hsj.com/internal-hostname";

fn annotations(all: &[(&str, Option<&str>)]) -> Value {
    let all: serde_json::Map<String, Value> =
        all.iter().map(|(key, value)| ((*key).to_owned(), json!(value))).collect();
    json!({"metadata": {"annotations": all}})
}

async fn annotate(cluster: &Cluster, namespace: &str, name: &str, key: &str, value: Option<&str>) {
    cluster.patch_service(namespace, name, annotations(&[(key, value)])).await;
}

fn ingresses(cluster: &Cluster, namespace: &str) -> Api<IngressObject> {
    Api::namespaced(cluster.client.clone(), namespace)
}

/// Creates an Ingress with a host, these annotations and this address in its status.
async fn create_ingress(cluster: &Cluster, (namespace, name): (&str, &str), host: &str, metadata: &Value) {
    let backend = json!({"service": {"name": "web", "port": {"number": 80}}});
    let http = json!({"paths": [{"path": "/", "pathType": "Prefix", "backend": backend}]});
    let mut object = metadata.clone();
    object["metadata"]["name"] = json!(name);
    object["spec"] = json!({"rules": [{"host": host, "http": http}]});
    let object: IngressObject = serde_json::from_value(object).unwrap();
    let all = ingresses(cluster, namespace);
    all.create(&PostParams::default(), &object).await.unwrap();
    let status = json!({"status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}}});
    all.patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
}

/// Waits for an Event about an object whose note contains a text.
async fn event(plane: &ControlPlane, namespace: &str, (kind, name): (&str, &str), reason: &str, part: &str) {
    let path = format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events");
    let look = || async {
        let is_it = |event: &Value| {
            let regarding = &event["regarding"];
            event["reason"] == reason
                && regarding["kind"] == kind
                && regarding["name"] == name
                && event["note"].as_str().is_some_and(|note| note.contains(part))
        };
        plane.list(&path).iter().any(is_it).then_some(())
    };
    eventually(&format!("an Event {reason} about {kind} {name} with {part:?}"), look).await;
}

/// Starts lb-linker with names of load balancers and Ingresses in two namespaces.
async fn start(args: &[&str]) -> (&'static ControlPlane, Cluster, [String; 2], Linker) {
    let (plane, cluster, target) = cluster_with_target().await;
    plane.apply_files(&deploy().join("sources"));
    for verb in ["list", "watch"] {
        permission(plane, true, &[verb, "ingresses.networking.k8s.io", "-A", LINKER]).await;
    }
    let namespaces = [cluster.create_namespace("shop").await, cluster.create_namespace("thief").await];
    let both = namespaces.join(",");
    let common = ["--upstream", "none", "--sources", "service,ingress", "--watch-namespaces", &both];
    let linker = Linker::in_cluster(plane, &target, &[&common[..], args].concat());
    linker.ready().await;
    (plane, cluster, namespaces, linker)
}

/// The external target, a Service that follows and a StableName have the target of the annotation.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn target_annotation_takes_the_place_of_the_status() {
    let shop = Shop::open(&[]).await;
    shop.plane.apply_files(&deploy().join("source"));
    let cluster = &shop.cluster;
    shop.load_balancer("shop", "web", "status.example.com").await;
    annotate(cluster, "shop", "web", TARGET, Some("own.example.com")).await;
    follower(cluster, "shop", "database", "web").await;
    let sources = json!([{"name": "seoul", "service": {"name": "web"}}]);
    shop.create("stable", json!({"sources": sources, "healthCheck": shortest_check()})).await;
    let linker = shop.linker(&[]).await;
    let is_at = async |host: &str| {
        answers(linker.dns, "web.shop.lb.internal. CNAME", &format!("{host}.")).await;
        wait_for_external_target(cluster, "external-targets", "web-shop-ext", host).await;
        wait_for_target(cluster, "shop", "database", host).await;
        shop.wait_until_announced("stable", host).await;
        answers(linker.dns, "stable.shop.lb.internal. CNAME", &format!("{host}.")).await;
    };
    is_at("own.example.com").await;
    annotate(cluster, "shop", "web", TARGET, Some("192.0.2.7,new.example.com")).await;
    is_at("new.example.com").await;
    // A wrong annotation is as a denied status: the status doesn't count.
    annotate(cluster, "shop", "web", TARGET, Some("http://other.example.com")).await;
    let wrong = "the entry in annotation linker.hsj.com/target \"http://other.example.com\" isn't served: neither a \
                 hostname nor an IPv4 or IPv6 address";
    event(&shop.plane, "shop", ("Service", "web"), "TargetRefused", wrong).await;
    cluster.set_ingress("shop", "web", &[Ingress::Hostname("later.example.com")]).await;
    is_at("new.example.com").await;
    annotate(cluster, "shop", "web", TARGET, None).await;
    is_at("later.example.com").await;
}

/// Neither load balancers nor Ingresses get a target by the annotation that their status couldn't name.
#[tokio::test]
async fn target_annotation_steals_no_name() {
    let (plane, cluster, [shop, thief], linker) = start(&[]).await;
    cluster.create_load_balancer(&shop, "web").await;
    cluster.set_ingress(&shop, "web", &[Ingress::Ip("192.0.2.1")]).await;
    let owner = format!("web.{shop}.lb.internal");
    answers(linker.dns, &format!("{owner}. A"), "192.0.2.1").await;
    cluster.create_load_balancer(&thief, "web").await;
    let host = format!("app.{thief}.lb.internal");
    create_ingress(&cluster, (&thief, "app"), &host, &json!({})).await;
    answers(linker.dns, &format!("{host}. A"), "192.0.2.1").await;
    let own = format!("web.{thief}.lb.internal");
    for (target, why) in [
        ("169.254.169.254", "169.254.169.254"),
        ("kubernetes.default.svc.cluster.local", "cluster's own domain"),
        (&owner, "allow-from"),
    ] {
        annotate(&cluster, &thief, "web", TARGET, Some(target)).await;
        event(plane, &thief, ("Service", "web"), "TargetRefused", why).await;
        let patch = Patch::Merge(annotations(&[(TARGET, Some(target))]));
        ingresses(&cluster, &thief).patch("app", &PatchParams::default(), &patch).await.unwrap();
        event(plane, &thief, ("Ingress", "app"), "TargetRefused", why).await;
        assert_eq!(short(linker.dns, &format!("{own}. A")).await, "No Error", "{target}");
        assert_eq!(short(linker.dns, &format!("{host}. A")).await, "192.0.2.1", "{target}");
        assert_eq!(short(linker.dns, &format!("{owner}. A")).await, "192.0.2.1", "{target}");
    }
    // The owner may let the namespace use its name.
    annotate(&cluster, &shop, "web", "linker.hsj.com/allow-from", Some(&thief)).await;
    answers(linker.dns, &format!("{own}. CNAME"), &format!("{owner}.")).await;
    answers(linker.dns, &format!("{host}. CNAME"), &format!("{owner}.")).await;
}

#[tokio::test]
async fn internal_hostname_answers_the_cluster_ips() {
    let (plane, cluster, [shop, other], linker) = start(&["--hostname-namespaces", "*"]).await;
    let created = cluster.create_load_balancer(&shop, "web").await;
    let ips = created.spec.unwrap().cluster_ips.unwrap();
    let internal = format!("int-{shop}.lb.internal");
    annotate(&cluster, &shop, "web", INTERNAL, Some(&format!("{internal},*.{internal}"))).await;
    let question = format!("{internal}. A");
    answers(linker.dns, &question, &ips[0]).await;
    assert_eq!(short(linker.dns, &format!("x.{internal}. A")).await, ips[0]);
    assert_eq!(short(linker.dns, &format!("web.{shop}.lb.internal. A")).await, "No Error");
    cluster.set_ingress(&shop, "web", &[Ingress::Hostname("a.example.com")]).await;
    answers(linker.dns, &format!("web.{shop}.lb.internal. CNAME"), "a.example.com.").await;
    assert_eq!(short(linker.dns, &question).await, ips[0]);

    // creationTimestamp has a resolution of 1 s.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    cluster.create_load_balancer(&other, "young").await;
    annotate(&cluster, &other, "young", INTERNAL, Some(&internal)).await;
    let conflict = format!("it doesn't get internal DNS names that another object has: {internal}");
    event(plane, &other, ("Service", "young"), "Conflict", &conflict).await;
    annotate(&cluster, &other, "young", INTERNAL, Some(&format!("{internal},web.{shop}.lb.internal"))).await;
    event(plane, &other, ("Service", "young"), "Conflict", &format!("web.{shop}.lb.internal")).await;
    assert_eq!(short(linker.dns, &question).await, ips[0]);
    let admin = linker.admin().await.to_string();
    let output = run_to_end(["names", "--admin-listen", &admin, &internal]);
    let expected = format!(
        "Name:               {internal}\nSource:             service\nObject:             Service {shop}/web\n\
         State:              Ready\nTarget:             {}\nAlso asked for by:  Service {other}/young\n",
        ips.join(",")
    );
    assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
    cluster.delete_service(&shop, "web").await;
    let young = cluster.get_service(&other, "young").await.unwrap().spec.unwrap().cluster_ip.unwrap();
    answers(linker.dns, &question, &young).await;
    annotate(&cluster, &other, "young", INTERNAL, None).await;
    answers(linker.dns, &question, ABSENT).await;
}

#[tokio::test]
async fn annotations_of_external_dns_count_behind_ours() {
    let (new, old) = ("external-dns.kubernetes.io", "external-dns.alpha.kubernetes.io");
    let prefixes = format!("{new}/,{old}/");
    let (plane, cluster, [shop, _], linker) = start(&["--annotation-prefixes", &prefixes]).await;
    let name = |label: &str| format!("{label}.{shop}.lb.internal");
    let key = |name: &str| (format!("{new}/{name}"), format!("{old}/{name}"));
    let ((hostname, old_hostname), (target, old_target)) = (key("hostname"), key("target"));
    let ((ttl, _), (controller, old_controller)) = (key("ttl"), key("controller"));
    cluster.create_load_balancer(&shop, "web").await;
    let all = [
        (&*hostname, Some(&*name("a"))),
        (&old_hostname, Some(&name("b"))),
        ("linker.hsj.com/hostname", Some(&name("c"))),
        (&target, Some("192.0.2.1")),
        (&old_target, Some("192.0.2.2")),
        (&ttl, Some("1m30s")),
        (&key("internal-hostname").1, Some(&name("int"))),
        (&key("alias").0, Some("true")),
    ];
    let web = cluster.patch_service(&shop, "web", annotations(&all)).await;
    for label in ["a", "b", "c", "web"] {
        answers(linker.dns, &format!("{}. A", name(label)), "192.0.2.1").await;
    }
    answers(linker.dns, &format!("{}. A", name("int")), &web.spec.unwrap().cluster_ip.unwrap()).await;
    annotate(&cluster, &shop, "web", TARGET, Some("192.0.2.3")).await;
    answers(linker.dns, &format!("{}. A", name("a")), "192.0.2.3").await;
    assert_eq!(linker.warnings(), [""; 0], "annotations of others that have no effect aren't reported");

    let metadata = annotations(&[
        (&key("ingress-hostname-source").0, Some("annotation-only")),
        (&hostname, Some(&name("i"))),
    ]);
    create_ingress(&cluster, (&shop, "app"), &name("spec"), &metadata).await;
    answers(linker.dns, &format!("{}. A", name("i")), "192.0.2.1").await;
    assert_eq!(short(linker.dns, &format!("{}. A", name("spec"))).await, ABSENT);
    let of_others = Patch::Merge(annotations(&[(&old_controller, Some("other"))]));
    ingresses(&cluster, &shop).patch("app", &PatchParams::default(), &of_others).await.unwrap();
    answers(linker.dns, &format!("{}. A", name("i")), ABSENT).await;
    annotate(&cluster, &shop, "web", &controller, Some("dns-controller")).await;
    annotate(&cluster, &shop, "web", &ttl, Some("2h")).await;
    event(plane, &shop, ("Service", "web"), "AnnotationIgnored", "\"2h\" is ignored").await;
    assert_eq!(short(linker.dns, &format!("{}. A", name("a"))).await, "192.0.2.3");
    annotate(&cluster, &shop, "web", &controller, Some("other")).await;
    answers(linker.dns, &format!("{}. A", name("a")), ABSENT).await;
    answers(linker.dns, &format!("{}. A", name("int")), ABSENT).await;
}

#[test]
fn check_reports_wrong_annotations_of_manifests() {
    let directory = tempfile::tempdir().unwrap();
    let object = |api: &str, kind: &str, name: &str, annotations: &str, rest: &str| {
        format!(
            "---\napiVersion: {api}\nkind: {kind}\nmetadata: {{name: {name}, annotations: {{{annotations}}}}}\n{rest}\n"
        )
    };
    let internal = format!("{INTERNAL}: int.default.lb.internal");
    let balancer = "spec: {type: LoadBalancer}";
    let all = [
        object("v1", "Service", "web", &format!("{TARGET}: 'a b'"), balancer),
        object("v1", "Service", "pending", &internal, balancer),
        object(
            "networking.k8s.io/v1",
            "Ingress",
            "app",
            "external-dns.kubernetes.io/target: '192.0.2.999'",
            "spec: {}",
        ),
    ];
    std::fs::write(directory.path().join("all.yaml"), all.concat()).unwrap();
    let args = ["check", "--upstream", "192.0.2.1", "--sources", "service,ingress", "--manifests"];
    let prefixes = ["--annotation-prefixes", "external-dns.kubernetes.io/"];
    let output = run_to_end([&args[..], &[directory.path().to_str().unwrap()], &prefixes].concat());
    let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    for part in [
        "the entry in annotation linker.hsj.com/target \"a b\" isn't served: neither a hostname nor an IPv4 or IPv6 address",
        "\"int.default.lb.internal\" isn't served: the load balancer has no cluster IP",
        "Ingress default/app: the entry in annotation external-dns.kubernetes.io/target \"192.0.2.999\" isn't served",
        "--annotation-prefixes  external-dns.kubernetes.io/",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let wrong = run_to_end(["check", "--annotation-prefixes", "external-dns.kubernetes.io"]);
    let text = String::from_utf8(wrong.stderr).unwrap();
    assert!(wrong.status.code() == Some(2) && text.contains("with the slash at its end"), "{text}");
}
