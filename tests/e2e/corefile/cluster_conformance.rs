//! What the conformance tests of Kubernetes for DNS (`[sig-network] DNS`) ask of a cluster's DNS, by UDP and TCP.

use k8s_openapi::api::core::v1::Service;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use super::cluster_names::write;
use super::server::{CorefileDir, Program, Server};
use crate::harness::control_plane::{ControlPlane, Options};
use crate::harness::dns::{answers, ask_tcp, data, query};

const COREFILE: &str = "
    .:{$PORT} {
        bind 127.0.0.1
        kubernetes cluster.local in-addr.arpa ip6.arpa {
            kubeconfig {$CLUSTER_CONFIG} test
            pods insecure
            fallthrough in-addr.arpa ip6.arpa
            ttl 30
        }
    }";

/// The test of Kubernetes, a query in which `IP` is the cluster IP and `PI` its reverse name, and the expected data.
const EXPECTED: [(&str, &str, &str); 16] = [
    ("the cluster", "kubernetes.default.svc.cluster.local. A", "KUBERNETES"),
    ("the cluster", "10-0-0-9.dns-1.pod.cluster.local. A", "10.0.0.9"),
    ("Services, headless", "dns-test-service.dns-1.svc.cluster.local. A", "10.0.0.9"),
    ("Services, regular", "test-service-2.dns-1.svc.cluster.local. A", "IP"),
    (
        "Services, headless",
        "_http._tcp.dns-test-service.dns-1.svc.cluster.local. SRV",
        "0 100 80 dns-querier-1.dns-test-service.dns-1.svc.cluster.local.",
    ),
    (
        "Services, regular",
        "_http._tcp.test-service-2.dns-1.svc.cluster.local. SRV",
        "0 100 80 test-service-2.dns-1.svc.cluster.local.",
    ),
    ("Services, regular", "PI. PTR", "test-service-2.dns-1.svc.cluster.local."),
    ("Hostname", "dns-querier-1.dns-test-service.dns-1.svc.cluster.local. A", "10.0.0.9"),
    ("Hostname", "dns-querier-1.dns-test-service.dns-1.svc.cluster.local. AAAA", "No Error"),
    ("Hostname", "other.dns-test-service.dns-1.svc.cluster.local. A", "Non-Existent Domain"),
    ("Subdomain", "9.0.0.10.in-addr.arpa. PTR", "dns-querier-1.dns-test-service.dns-1.svc.cluster.local."),
    (
        "partial names",
        "kubernetes.default.svc.cluster.local.dns-1.svc.cluster.local. A",
        "Non-Existent Domain",
    ),
    ("partial names", "test-service-2.svc.cluster.local. A", "Non-Existent Domain"),
    ("ExternalName", "dns-test-service-3.dns-1.svc.cluster.local. CNAME", "foo.example.com."),
    ("the schema", "dns-version.cluster.local. TXT", "1.1.0"),
    ("the schema", "absent.dns-1.svc.cluster.local. A", "Non-Existent Domain"),
];

fn service(name: &str, spec: Value) -> Value {
    json!({ "kind": "Service", "metadata": { "name": name }, "spec": spec })
}

fn ports() -> Value {
    json!([{ "name": "http", "port": 80, "protocol": "TCP" }])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conformance_tests_of_kubernetes_get_their_answers() {
    const NAMESPACE: &str = "dns-1";
    let plane = ControlPlane::start(Options::default());
    let client = plane.admin_client().await;
    plane.create_namespace(NAMESPACE);
    let headless = json!({ "clusterIP": "None", "ports": ports() });
    write(&client, NAMESPACE, service("dns-test-service", headless)).await;
    write(&client, NAMESPACE, service("test-service-2", json!({ "ports": ports() }))).await;
    let alias = json!({ "type": "ExternalName", "externalName": "foo.example.com" });
    write(&client, NAMESPACE, service("dns-test-service-3", alias)).await;
    let slice = json!({ "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": { "name": "a", "labels": { "kubernetes.io/service-name": "dns-test-service" } },
        "ports": [{ "name": "http", "port": 80, "protocol": "TCP" }],
        "endpoints": [{ "addresses": ["10.0.0.9"], "hostname": "dns-querier-1", "conditions": { "ready": true } }] });
    write(&client, NAMESPACE, slice).await;
    let services = Api::<Service>::namespaced(client.clone(), NAMESPACE);
    let ip = |service: Service| service.spec.unwrap().cluster_ip.unwrap();
    let cluster_ip = ip(services.get("test-service-2").await.unwrap());
    let kubernetes = Api::<Service>::namespaced(client.clone(), "default").get("kubernetes").await.unwrap();
    let site = CorefileDir::new(COREFILE, &[]).with("CLUSTER_CONFIG", plane.admin_kubeconfig().display());
    let server = Server::start(Program::subject(), &site).await;
    let reverse: Vec<&str> = cluster_ip.split('.').rev().collect();
    let filled = |text: &str| match text {
        "IP" => cluster_ip.clone(),
        "KUBERNETES" => ip(kubernetes.clone()),
        text => text.replace("PI.", &format!("{}.in-addr.arpa.", reverse.join("."))),
    };
    for (test, question, expected) in EXPECTED {
        let (question, expected) = (filled(question), filled(expected));
        answers(server.dns(), &question, &expected).await;
        assert_eq!(data(&ask_tcp(server.dns(), &query(&question)).await), expected, "{test}: {question}");
    }
    // An ExternalName Service changes its target, and then its type.
    let changed = [
        (json!({ "externalName": "bar.example.com" }), "CNAME"),
        (
            json!({ "type": "ClusterIP", "externalName": null, "clusterIP": "10.0.0.77", "ports": ports() }),
            "A",
        ),
    ];
    for (spec, kind) in changed {
        let patch = Patch::Merge(json!({ "spec": spec }));
        let service = services.patch("dns-test-service-3", &PatchParams::default(), &patch).await.unwrap();
        let expected = if kind == "CNAME" { "bar.example.com.".to_owned() } else { ip(service) };
        answers(
            server.dns(),
            &format!("dns-test-service-3.{NAMESPACE}.svc.cluster.local. {kind}"),
            &expected,
        )
        .await;
    }
}
