//! Names from ExternalDNS's DNSEndpoints, with its CRD.

use std::sync::OnceLock;
use std::time::Duration;

use hickory_proto::op::ResponseCode;
use kube::Api;
use kube::api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::corefile::server::{CorefileDir, Program, Server};
use crate::harness::cluster::Cluster;
use crate::harness::control_plane::{ControlPlane, Options};
use crate::harness::dns::{answers, ask_tcp, ask_udp, data, ede, query, short};
use crate::harness::linker::{Linker, run_to_end};
use crate::harness::programs::dns_endpoint_crd;
use crate::harness::{LINKER, apply_deploy, cluster_with_target, deploy, eventually, grant, permission};
use crate::name_sources::COREFILE;

const ABSENT: &str = "Non-Existent Domain";
const CRD: &str = "dnsendpoints.externaldns.k8s.io";

/// The DNSEndpoints of a namespace.
struct DnsEndpoints(Api<DynamicObject>);

impl DnsEndpoints {
    fn of(cluster: &Cluster, namespace: &str) -> Self {
        let kind = GroupVersionKind::gvk("externaldns.k8s.io", "v1alpha1", "DNSEndpoint");
        Self(Api::namespaced_with(cluster.client.clone(), namespace, &ApiResource::from_gvk(&kind)))
    }

    async fn create(&self, name: &str, entries: &[Value]) {
        let object = json!({"apiVersion": "externaldns.k8s.io/v1alpha1", "kind": "DNSEndpoint",
            "metadata": {"name": name}, "spec": {"endpoints": entries}});
        let object: DynamicObject = serde_json::from_value(object).unwrap();
        self.0.create(&PostParams::default(), &object).await.unwrap();
    }

    async fn set(&self, name: &str, entries: &[Value]) {
        let patch = Patch::Merge(json!({"spec": {"endpoints": entries}}));
        self.0.patch(name, &PatchParams::default(), &patch).await.unwrap();
    }

    async fn delete(&self, name: &str) {
        self.0.delete(name, &DeleteParams::default()).await.unwrap();
    }
}

fn entry(name: &str, kind: &str, targets: &[&str]) -> Value {
    json!({"dnsName": name, "recordType": kind, "targets": targets})
}

fn with_ttl(ttl: u32, mut entry: Value) -> Value {
    entry["recordTTL"] = ttl.into();
    entry
}

fn install_crd(plane: &ControlPlane) {
    plane.apply_files(dns_endpoint_crd());
    plane.wait_for_crds(&[CRD]);
}

/// Waits for an Event about a DNSEndpoint, and returns its note.
async fn event(plane: &ControlPlane, namespace: &str, object: &str, reason: &str) -> String {
    let path = format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events");
    let look = || async {
        let is_it = |event: &Value| {
            let regarding = &event["regarding"];
            event["reason"] == reason && regarding["kind"] == "DNSEndpoint" && regarding["name"] == object
        };
        Some(plane.list(&path).into_iter().find(is_it)?["note"].as_str()?.to_owned())
    };
    eventually(&format!("an Event {reason} about {object}"), look).await
}

/// Starts lb-linker with names of DNSEndpoints in two namespaces, of which the second may have any name.
async fn start() -> (&'static ControlPlane, Cluster, [String; 2], Linker) {
    static INSTALLED: OnceLock<()> = OnceLock::new();
    let (plane, cluster, target) = cluster_with_target().await;
    INSTALLED.get_or_init(|| install_crd(plane));
    plane.apply_files(&deploy().join("sources"));
    for verb in ["list", "watch"] {
        permission(plane, true, &[verb, CRD, "-A", LINKER]).await;
    }
    let namespaces = [cluster.create_namespace("shop").await, cluster.create_namespace("free").await];
    let both = namespaces.join(",");
    let args = ["--upstream", "none", "--sources", "service,dnsendpoint", "--watch-namespaces", &both];
    let linker =
        Linker::in_cluster(plane, &target, &[&args[..], &["--hostname-namespaces", &namespaces[1]]].concat());
    linker.ready().await;
    (plane, cluster, namespaces, linker)
}

#[tokio::test]
async fn manifests_have_names_of_dnsendpoints() {
    let object = |name: &str, kind: &str, target: &str| {
        format!(
            "apiVersion: externaldns.k8s.io/v1alpha1\nkind: DNSEndpoint\nmetadata: {{name: a}}\nspec:\n  endpoints:\n  \
             - {{dnsName: {name}.default.lb.internal, recordType: {kind}, targets: [{target}]}}\n"
        )
    };
    let file = "manifests/a.yaml";
    let corefile = COREFILE.replace("OPTIONS", "sources service dnsendpoint");
    let site = CorefileDir::new(&corefile, &[(file, &object("app", "MX", "10 mail.example.com"))]);
    let server = Server::start(Program::Linker, &site).await;
    answers(server.dns(), "app.default.lb.internal. MX", "10 mail.example.com.").await;
    assert_eq!(short(server.dns(), "other.default.lb.internal. TXT").await, ABSENT);
    site.write(file, &object("other", "TXT", "a"));
    answers(server.dns(), "other.default.lb.internal. TXT", "a").await;
    assert_eq!(short(server.dns(), "app.default.lb.internal. MX").await, ABSENT);
}

/// Starts a control plane of its own, with the permissions for the sources and a target namespace.
async fn own_plane() -> (ControlPlane, Cluster, String) {
    let plane = ControlPlane::start(Options::default());
    apply_deploy(&plane);
    plane.apply_files(&deploy().join("sources"));
    let cluster = plane.cluster().await;
    let target = cluster.create_namespace("targets").await;
    grant(&plane, &target);
    (plane, cluster, target)
}

#[tokio::test]
async fn records_of_dnsendpoints_are_answered_by_udp_and_tcp() {
    let (plane, cluster, [shop, _], linker) = start().await;
    let (endpoints, zone) = (DnsEndpoints::of(&cluster, &shop), format!("{shop}.lb.internal"));
    let long = "x".repeat(3000);
    let mail: Vec<String> = (10..70).map(|number| format!("{number} mail-{number}.example.com")).collect();
    let mail: Vec<&str> = mail.iter().map(String::as_str).collect();
    let app = format!("app.{zone}");
    endpoints
        .create(
            "records",
            &[
                with_ttl(60, entry(&app, "A", &["192.0.2.1"])),
                entry(&app, "AAAA", &["2001:db8::1"]),
                entry(&app, "TXT", &["v=spf1 -all", "\"a\" \"b\""]),
                entry(&format!("Alias.{zone}."), "CNAME", &["www.example.com"]),
                entry(&format!("_sip._tcp.{zone}"), "SRV", &[&format!("0 5 5060 {app}.")]),
                entry(&format!("*.mail.{zone}"), "MX", &mail),
                entry(&format!("long.{zone}"), "TXT", &[&long]),
                entry("www.example.com", "A", &["192.0.2.9"]),
                entry(&app, "NS", &["ns.example.com"]),
                with_ttl(7200, entry(&format!("ttl.{zone}"), "A", &["192.0.2.2"])),
            ],
        )
        .await;
    answers(linker.dns, &format!("{app}. A"), "192.0.2.1").await;
    for (question, expected) in [
        (format!("{app}. AAAA"), "2001:db8::1".to_owned()),
        (format!("{app}. TXT"), "v=spf1 -all ab".to_owned()),
        (format!("{app}. ANY"), "192.0.2.1".to_owned()),
        (format!("{app}. MX"), "No Error".to_owned()),
        (format!("alias.{zone}. CNAME"), "www.example.com.".to_owned()),
        (format!("_sip._tcp.{zone}. SRV"), format!("0 5 5060 {app}.")),
        (format!("absent.{zone}. TXT"), ABSENT.to_owned()),
    ] {
        for answer in
            [ask_udp(linker.dns, &query(&question)).await, ask_tcp(linker.dns, &query(&question)).await]
        {
            assert_eq!(data(&answer), expected, "{question}");
        }
    }
    for (question, number) in [(format!("x.mail.{zone}. MX"), 60), (format!("long.{zone}. TXT"), 1)] {
        assert!(ask_udp(linker.dns, &query(&question)).await.metadata.truncation, "{question}");
        assert_eq!(ask_tcp(linker.dns, &query(&question)).await.answers.len(), number, "{question}");
    }
    assert_eq!(ask_udp(linker.dns, &query(&format!("{app}. A"))).await.answers[0].ttl, 60);
    assert_eq!(ask_udp(linker.dns, &query(&format!("ttl.{zone}. A"))).await.answers[0].ttl, 5);
    linker.counts("lb_linker_names{cluster=\"\",source=\"dnsendpoint\"}", 6.0).await;
    assert!(linker.metrics().contains(&format!("{{watch=\"dnsendpoints/{shop}\"}}")));
    let note = event(plane, &shop, "records", "AnnotationIgnored").await;
    for part in ["recordType \"NS\" is ignored", "the recordTTL \"7200\" is ignored"] {
        assert!(note.contains(part), "{note}");
    }

    // What changes is seen, and logged in one line.
    endpoints.set("records", &[entry(&app, "A", &["192.0.2.3"])]).await;
    answers(linker.dns, &format!("{app}. A"), "192.0.2.3").await;
    assert_eq!(short(linker.dns, &format!("{app}. TXT")).await, "No Error");
    assert_eq!(short(linker.dns, &format!("long.{zone}. TXT")).await, ABSENT);
    let names = format!("*.mail.{zone}, _sip._tcp.{zone}, alias.{zone} and 3 more");
    linker.line(&format!("DNSEndpoint {shop}/records: new or changed DNS names: {names}")).await;
    // The objects of a namespace share a name.
    endpoints.create("second", &[entry(&app, "A", &["192.0.2.4"]), entry(&app, "TXT", &["x"])]).await;
    answers(linker.dns, &format!("{app}. A"), "192.0.2.3 192.0.2.4").await;
    let admin = linker.admin().await.to_string();
    let shown = run_to_end(["names", "--admin-listen", &admin, &app]);
    let expected = format!(
        "Name:               {app}\nSource:             dnsendpoint\nObject:             DNSEndpoint {shop}/records\n\
         State:              Ready\nTarget:             192.0.2.3,192.0.2.4\n\
         Shared with:        DNSEndpoint {shop}/second\n"
    );
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.starts_with(&expected), "{shown}");
    endpoints.delete("records").await;
    answers(linker.dns, &format!("{app}. A"), "192.0.2.4").await;
    endpoints.delete("second").await;
    answers(linker.dns, &format!("{app}. A"), ABSENT).await;
    linker.line(&format!("DNSEndpoint {shop}/second: gone, with the DNS names {app}")).await;
    // The status is ExternalDNS's.
    let ours =
        plane.audit_events_with("lb-linker/").into_iter().filter(|seen| seen.resource == "dnsendpoints");
    assert!(ours.map(|seen| seen.verb).all(|verb| ["list", "watch"].contains(&&*verb)));
}

#[tokio::test]
async fn dnsendpoint_steals_no_name_or_target_of_another_namespace() {
    let (plane, cluster, [shop, free], linker) = start().await;
    let (thief, owner) = (DnsEndpoints::of(&cluster, &shop), DnsEndpoints::of(&cluster, &free));
    let app = format!("app-{free}.lb.internal");
    let own = format!("own.{shop}.lb.internal");
    let web = format!("web.{shop}.lb.internal");
    owner.create("app", &[entry(&app, "A", &["192.0.2.1"]), entry(&web, "A", &["192.0.2.8"])]).await;
    answers(linker.dns, &format!("{app}. A"), "192.0.2.1").await;
    for (name, entry, reason) in [
        ("apex", entry("lb.internal", "TXT", &["thief"]), "HostnameRefused"),
        ("wildcard", entry("*.lb.internal", "A", &["192.0.2.66"]), "HostnameRefused"),
        ("host", entry(&app, "A", &["192.0.2.66"]), "HostnameRefused"),
        ("server", entry("ns.dns.lb.internal", "A", &["192.0.2.66"]), "HostnameRefused"),
        ("metadata", entry(&own, "A", &["169.254.169.254"]), "TargetRefused"),
        ("cluster", entry(&own, "CNAME", &["kubernetes.default.svc.cluster.local"]), "TargetRefused"),
        ("withheld", entry(&own, "CNAME", &[&app]), "TargetRefused"),
        ("young", entry(&web, "A", &["192.0.2.66"]), "Conflict"),
    ] {
        // creationTimestamp has a resolution of 1 s.
        if reason == "Conflict" {
            tokio::time::sleep(Duration::from_millis(1100)).await;
        }
        thief.create(name, &[entry]).await;
        event(plane, &shop, name, reason).await;
    }
    assert_eq!(short(linker.dns, "lb.internal. TXT").await, "No Error");
    assert!(!short(linker.dns, "ns.dns.lb.internal. A").await.contains("192.0.2.66"));
    for (question, expected) in [
        (format!("{app}. A"), "192.0.2.1"),
        (format!("{web}. A"), "192.0.2.8"),
        (format!("{own}. A"), ABSENT),
        ("absent.lb.internal. A".to_owned(), ABSENT),
    ] {
        assert_eq!(short(linker.dns, &question).await, expected, "{question}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn crd_of_dnsendpoints_may_come_later_and_go() {
    let (plane, cluster, target) = own_plane().await;
    let endpoints = DnsEndpoints::of(&cluster, "default");
    let args = ["--upstream", "none", "--sources", "service,dnsendpoint"];
    let linker = Linker::in_cluster(&plane, &target, &args);
    // A missing CRD is an empty list.
    linker.ready().await;
    linker.line("DNSEndpoints aren't served by the API server (no CRD); asked for again every 30 s").await;
    assert_eq!(short(linker.dns, "app.default.lb.internal. A").await, ABSENT);
    install_crd(&plane);
    endpoints.create("app", &[entry("app.default.lb.internal", "A", &["192.0.2.1"])]).await;
    let look =
        || async { (short(linker.dns, "app.default.lb.internal. A").await == "192.0.2.1").then_some(()) };
    eventually("the name once the CRD is served", look).await;
    plane.kubectl(&["delete", "crd", CRD]);
    answers(linker.dns, "app.default.lb.internal. A", ABSENT).await;
    assert_eq!(linker.get_ready().0, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_of_dnsendpoints_survive_a_restart_with_a_snapshot() {
    let (plane, cluster, target) = own_plane().await;
    install_crd(&plane);
    let txt = entry("_a.app.default.lb.internal", "TXT", &["\"\\000\" \"x\""]);
    let endpoints = DnsEndpoints::of(&cluster, "default");
    endpoints.create("app", &[entry("app.default.lb.internal", "MX", &["10 mail.example.com"]), txt]).await;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("links");
    let kubeconfig = plane.kubeconfig_for_service_account("lb-linker", "lb-linker");
    let args = ["--kubeconfig", kubeconfig.to_str().unwrap(), "--target-namespace", &target];
    let args = [&args[..], &["--upstream", "none", "--sources", "service,dnsendpoint"]].concat();
    let with_snapshot = [&args[..], &["--snapshot", path.to_str().unwrap()]].concat();
    let mut linker = Linker::start(&with_snapshot);
    answers(linker.dns, "app.default.lb.internal. MX", "10 mail.example.com.").await;
    let read =
        || async { std::fs::read_to_string(&path).ok().filter(|text| text.contains("mail.example.com")) };
    eventually("the records in the snapshot", read).await;
    linker.stop();
    plane.stop_apiserver();
    let linker = Linker::start(&with_snapshot);
    answers(linker.dns, "app.default.lb.internal. MX", "10 mail.example.com.").await;
    let answer = ask_udp(linker.dns, &query("_a.app.default.lb.internal. TXT")).await;
    assert_eq!((answer.answers.len(), ede(&answer)), (1, Some(3)), "{answer:?}");
    let without = Linker::start(&args);
    let answer = ask_udp(without.dns, &query("app.default.lb.internal. MX")).await;
    assert_eq!((answer.metadata.response_code, ede(&answer)), (ResponseCode::ServFail, Some(14)));
    plane.start_apiserver();
    for linker in [&linker, &without] {
        linker.ready().await;
        answers(linker.dns, "app.default.lb.internal. MX", "10 mail.example.com.").await;
    }
}
