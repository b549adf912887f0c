//! `lb-linker scan`.

use std::process::Output;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::harness::cluster::{Cluster, Ingress};
use crate::harness::control_plane::ControlPlane;
use crate::harness::eventually;
use crate::harness::linker::{Linker, run_to_end};
use crate::harness::proxy::{ApiFault, FaultyApi};
use crate::laptop::api_server;
use crate::source::{own_cluster, wait_for_target};

/// The number of namespaces with hand-made Services: four in each.
const NAMESPACES: usize = 10;

/// Starts a DNS server for which no name exists, except `alive.lb.example-cloud.com`.
fn start_dns() -> (Linker, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let corefile = "\
.:0 {
    bind 127.0.0.1
    prometheus 127.0.0.1:0
    health 127.0.0.1:0
    ready 127.0.0.1:0
    template IN A alive.lb.example-cloud.com {
        answer \"{{ .Name }} 60 IN A 192.0.2.1\"
    }
    template ANY ANY {
        rcode NXDOMAIN
    }
}
";
    let linker = Linker::start_on_corefile(corefile, directory.path(), None);
    (linker, directory)
}

fn scan(plane: &ControlPlane, dns: &Linker, arguments: &[&str]) -> Output {
    let (kubeconfig, upstream) = (plane.admin_kubeconfig(), dns.dns.to_string());
    let common = ["scan", "--kubeconfig", kubeconfig.to_str().unwrap(), "--upstream", &upstream];
    run_to_end([&common[..], arguments].concat())
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Returns `<namespace>/<service>` of each item of a section.
fn keys(found: &Value, section: &str) -> Vec<String> {
    let key = |item: &Value| {
        format!("{}/{}", item["namespace"].as_str().unwrap(), item["service"].as_str().unwrap())
    };
    found[section].as_array().unwrap().iter().map(key).collect()
}

fn hostname(i: usize, generation: &str) -> String {
    format!("lb{i}-{generation}.lb.example-cloud.com")
}

/// Creates 20 load balancers in namespace `lbs`, and in each of ten namespaces four ExternalName Services: two have
/// hostnames of load balancers, two have hostnames that no load balancer has any more. Returns the keys of the former
/// and of the latter.
async fn create_hand_made(cluster: &Cluster, plane: &ControlPlane) -> (Vec<String>, Vec<String>) {
    plane.create_namespace("lbs");
    let (mut exact, mut stale) = (Vec::new(), Vec::new());
    for i in 0..NAMESPACES {
        let namespace = format!("team-{i}");
        plane.create_namespace(&namespace);
        for j in 0..2 {
            let number = 2 * i + j;
            let load_balancer = format!("lb{number}");
            cluster.create_load_balancer("lbs", &load_balancer).await;
            let present = hostname(number, "new");
            cluster.set_ingress("lbs", &load_balancer, &[Ingress::Hostname(&present)]).await;
            let former = hostname(number, "old");
            for (name, hostname, keys) in [("current", present, &mut exact), ("stale", former, &mut stale)] {
                let name = format!("{name}-{j}");
                let spec = json!({"type": "ExternalName", "externalName": hostname});
                cluster.create_service(&namespace, json!({"metadata": {"name": name}, "spec": spec})).await;
                keys.push(format!("{namespace}/{name}"));
            }
        }
    }
    (exact, stale)
}

#[tokio::test]
async fn scan_finds_hand_made_services_and_lets_them_follow() {
    let (plane, cluster) = own_cluster().await;
    let (dns, _directory) = start_dns();
    let (exact, stale) = create_hand_made(&cluster, &plane).await;
    // Neither of these Services names a load balancer of this cluster.
    for (name, external_name) in [("elsewhere", "db.example.net"), ("alive", "alive.lb.example-cloud.com")] {
        let spec = json!({"type": "ExternalName", "externalName": external_name});
        cluster.create_service("team-0", json!({"metadata": {"name": name}, "spec": spec})).await;
    }

    let scanned = async || {
        let look = || async {
            let output = scan(&plane, &dns, &["-o", "json"]);
            assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), String::new()));
            let found: Value = serde_json::from_slice(&output.stdout).unwrap();
            // A query without an answer within 3 s is reported, too.
            let mut items = found["probable"].as_array().unwrap().iter();
            if items.any(|item| item["dns"].as_str().is_some_and(|dns| dns.contains("no answer"))) {
                return None;
            }
            let mut items = found["probable"].as_array().unwrap().iter();
            assert!(items.all(|item| item["dns"] == "NXDOMAIN"), "{found}");
            Some(found)
        };
        eventually("a scan with all answers", look).await
    };
    let found = scanned().await;
    assert_eq!((keys(&found, "exact"), keys(&found, "probable")), (exact.clone(), stale.clone()));
    let report = text(&scan(&plane, &dns, &["-n", "team-3"]).stdout);
    assert!(report.starts_with("Probably stale: "), "{report}");
    let command = "  kubectl -n team-3 annotate service current-1 linker.hsj.com/source=lbs/lb7\n";
    assert!(report.contains(command) && !report.contains("team-4"), "{report}");

    // Standard input is empty, so the question of `--apply` isn't answered.
    let output = scan(&plane, &dns, &["--apply"]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    let asked = text(&output.stderr);
    let server = api_server(plane.admin_kubeconfig().to_str().unwrap());
    let end =
        format!(" at {server}? [y/N] \nlb-linker: nothing was changed; --yes leaves out the question\n");
    // The load balancers that allow further namespaces come first.
    assert!(asked.contains("Change Service lbs/lb") && asked.ends_with(&end), "{asked}");
    let output = scan(&plane, &dns, &["--apply", "--yes"]);
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), server + "\n"));
    let again = scanned().await;
    assert_eq!((keys(&again, "exact"), keys(&again, "probable")), (Vec::new(), stale));

    let _linker = Linker::in_cluster(&plane, "external-targets", &["--upstream", "none"]);
    for (number, key) in exact.iter().enumerate() {
        let next = hostname(number, "next");
        cluster.set_ingress("lbs", &format!("lb{number}"), &[Ingress::Hostname(&next)]).await;
        let (namespace, service) = key.split_once('/').unwrap();
        wait_for_target(&cluster, namespace, service, &next).await;
    }
}

#[tokio::test]
async fn scan_adds_a_namespace_to_allow_from_and_keeps_the_rest() {
    let (plane, cluster) = own_cluster().await;
    let (dns, _directory) = start_dns();
    for namespace in ["lbs", "shop"] {
        plane.create_namespace(namespace);
    }
    cluster.create_load_balancer("lbs", "web").await;
    let allow =
        json!({"metadata": {"annotations": {"linker.hsj.com/allow-from": "billing, Not a namespace"}}});
    cluster.patch_service("lbs", "web", allow).await;
    cluster.set_ingress("lbs", "web", &[Ingress::Hostname("web.lb.example-cloud.com")]).await;
    let spec = json!({"type": "ExternalName", "externalName": "web.lb.example-cloud.com."});
    cluster.create_service("shop", json!({"metadata": {"name": "db"}, "spec": spec})).await;
    let output = scan(&plane, &dns, &["--apply", "--yes"]);
    let report = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(report.ends_with("shop/db: linker.hsj.com/source=lbs/web\n"), "{report}");
    let annotations = cluster.get_service("lbs", "web").await.unwrap().metadata.annotations.unwrap();
    assert_eq!(annotations["linker.hsj.com/allow-from"], "billing,Not a namespace,shop");
}

#[tokio::test]
async fn service_isnt_annotated_if_allow_from_is_full() {
    let (plane, cluster) = own_cluster().await;
    let (dns, _directory) = start_dns();
    for namespace in ["lbs", "shop"] {
        plane.create_namespace(namespace);
    }
    cluster.create_load_balancer("lbs", "web").await;
    let allowed: Vec<String> = (0..100).map(|i| format!("team-{i}")).collect();
    let allow = json!({"metadata": {"annotations": {"linker.hsj.com/allow-from": allowed.join(",")}}});
    cluster.patch_service("lbs", "web", allow).await;
    cluster.set_ingress("lbs", "web", &[Ingress::Hostname("web.lb.example-cloud.com")]).await;
    let spec = json!({"type": "ExternalName", "externalName": "web.lb.example-cloud.com."});
    for namespace in ["lbs", "shop"] {
        let service = json!({"metadata": {"name": "db"}, "spec": spec});
        cluster.create_service(namespace, service).await;
    }
    let output = scan(&plane, &dns, &["--apply", "--yes"]);
    let (report, errors) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(1), "{errors}");
    let expected = "lb-linker: Service lbs/web: linker.hsj.com/allow-from would have 101 entries, and lb-linker ignores \
                    all but the first 100: take out some, or replace all by *\n\
                    lb-linker: Service shop/db isn't annotated, because lbs/web doesn't allow its namespace\n";
    assert!(errors.starts_with("API server https://") && errors.ends_with(expected), "{errors}");
    assert!(report.ends_with("\nlbs/db: linker.hsj.com/source=lbs/web\n"), "{report}");
    let annotations = cluster.get_service("shop", "db").await.unwrap().metadata.annotations;
    assert_eq!(annotations.unwrap_or_default().get("linker.hsj.com/source"), None);
    let annotations = cluster.get_service("lbs", "web").await.unwrap().metadata.annotations.unwrap();
    assert_eq!(annotations["linker.hsj.com/allow-from"], allowed.join(","));
}

#[tokio::test(flavor = "multi_thread")]
async fn scan_names_undecodable_services() {
    let (plane, cluster) = own_cluster().await;
    let (dns, _directory) = start_dns();
    plane.create_namespace("shop");
    let service = json!({"metadata": {"name": "bad"}, "spec": {"ports": [{"port": 54321}]}});
    cluster.create_service("shop", service).await;
    let garble = |_: &str| ApiFault::Garble(b"\"port\":54321", b"\"port\":94321");
    let api = FaultyApi::start(&plane, Arc::new(garble)).await;
    let upstream = dns.dns.to_string();
    let output = run_to_end(["scan", "--kubeconfig", api.kubeconfig(), "--upstream", &upstream]);
    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{errors}");
    assert!(errors.contains("lb-linker: Services that can't be read are left out: shop/bad ("), "{errors}");
}

#[tokio::test]
async fn scan_reports_a_missing_permission() {
    let (plane, _cluster) = own_cluster().await;
    let kubeconfig = plane.kubeconfig_for_service_account("lb-linker", "lb-linker");
    let common = ["scan", "--upstream", "none", "--kubeconfig", kubeconfig.to_str().unwrap()];
    let output = run_to_end(common);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let errors = text(&output.stderr);
    for kind in ["EndpointSlices", "Endpoints"] {
        let sentence = format!("lb-linker: can't list {kind} in all namespaces: the API server forbids it");
        assert!(errors.contains(&sentence), "{errors}");
    }
}
