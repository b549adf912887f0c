//! glibc's stub resolver, a CoreDNS with the block of `lb-linker stub`, and lb-linker with a name of each source.

use std::net::IpAddr;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use super::{CoreDns, KUBE_DNS, LB_LINKER, config_map, dns, fs, service, stub, text};
use crate::harness::control_plane::{ControlPlane, Options};
use crate::harness::dns::CoreDns as Resolver;
use crate::harness::linker::Linker;
use crate::harness::programs::{dns_endpoint_crd, gateway_api_crds, programs, stubs};
use crate::harness::{apply_deploy, deploy, eventually, network};

/// The zone of the cloud's resolver.
const CLOUD: &str = "$ORIGIN example.com.
@    3600 IN SOA ns.example.com. root.example.com. 1 7200 1800 86400 3600
@    3600 IN NS ns.example.com.
lb     60 IN A 192.0.2.20
lb     60 IN AAAA 2001:db8::20
";
const GATEWAY_API: &str = "gateway.networking.k8s.io";

/// What a status has, and the addresses that a stub resolver gets. A hostname goes before addresses.
const TARGETS: [(&str, &[&str], Option<&str>, &str); 3] = [
    ("address", &["192.0.2.1", "2001:db8::1"], None, "192.0.2.1 2001:db8::1"),
    ("hostname", &[], Some("lb.example.com"), "192.0.2.20 2001:db8::20"),
    ("both", &["192.0.2.2"], Some("lb.example.com"), "192.0.2.20 2001:db8::20"),
];

/// Creates an object, and sets its status.
fn create(plane: &ControlPlane, api_version: &str, kind: &str, name: &str, spec: &Value, status: &Value) {
    let metadata = json!({"name": name, "namespace": "shop"});
    let object = json!({"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": spec});
    plane.apply(&object.to_string());
    if !status.is_null() {
        let patch = json!({ "status": status }).to_string();
        let patch = ["patch", kind, name, "--subresource=status", "--type=merge", "-p", &patch];
        plane.kubectl(&[&["-n", "shop"], &patch[..]].concat());
    }
}

/// Creates the names `<source>-<target>.shop.lb.internal`.
fn create_names(plane: &ControlPlane, target: &str, ips: &[&str], host: Option<&str>) {
    let name = |source: &str| format!("{source}-{target}");
    let dns_name = |source: &str| format!("{}.shop.lb.internal", name(source));
    let ingress: Vec<Value> = ips
        .iter()
        .map(|ip| json!({ "ip": ip }))
        .chain(host.map(|host| json!({ "hostname": host })))
        .collect();
    let load_balancer = json!({"loadBalancer": {"ingress": ingress}});
    let spec = json!({"type": "LoadBalancer", "ports": [{"port": 80}]});
    create(plane, "v1", "Service", &name("service"), &spec, &load_balancer);

    let backend = json!({"service": {"name": "web", "port": {"number": 80}}});
    let spec = json!({"defaultBackend": backend, "rules": [{"host": dns_name("ingress")}]});
    create(plane, "networking.k8s.io/v1", "Ingress", target, &spec, &load_balancer);

    let version = format!("{GATEWAY_API}/v1");
    let address = |kind: &str, value: &str| json!({"type": kind, "value": value});
    let addresses: Vec<Value> = ips
        .iter()
        .map(|ip| address("IPAddress", ip))
        .chain(host.map(|host| address("Hostname", host)))
        .collect();
    let listener = json!({"name": "web", "port": 80, "protocol": "HTTP"});
    let spec = json!({"gatewayClassName": "test", "listeners": [listener]});
    create(plane, &version, "Gateway", target, &spec, &json!({ "addresses": addresses }));
    let parent = json!({ "name": target });
    let accepted = json!({"type": "Accepted", "status": "True", "reason": "Accepted", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z"});
    let status = json!({"parents": [{"parentRef": parent, "controllerName": "example.com/controller",
        "conditions": [accepted]}]});
    let spec = json!({"parentRefs": [parent], "hostnames": [dns_name("gateway")]});
    create(plane, &version, "HTTPRoute", target, &spec, &status);

    let entry = |kind: &str, target: &str| json!({"dnsName": dns_name("dnsendpoint"), "recordType": kind, "targets": [target]});
    let of_ip = |ip: &&str| entry(if ip.contains(':') { "AAAA" } else { "A" }, ip);
    let entries: Vec<Value> = ips.iter().map(of_ip).chain(host.map(|host| entry("CNAME", host))).collect();
    let spec = json!({ "endpoints": entries });
    create(plane, "externaldns.k8s.io/v1alpha1", "DNSEndpoint", target, &spec, &Value::Null);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn glibc_gets_addresses_of_each_source_through_coredns() {
    programs();
    stubs();
    let (crds, endpoints) = (&gateway_api_crds()[0], dns_endpoint_crd());
    if !network::is_own("stub::sources::glibc_gets_addresses_of_each_source_through_coredns") {
        return;
    }
    for address in [KUBE_DNS, LB_LINKER[0]] {
        network::add_loopback_address(address).unwrap();
    }
    // This file is mounted over the machine's /etc/resolv.conf in the test's own mount namespace.
    fs::write("/etc/resolv.conf", format!("nameserver {KUBE_DNS}\n")).unwrap();
    let plane = ControlPlane::start(Options::default());
    apply_deploy(&plane);
    plane.apply_files(crds);
    plane.apply_files(endpoints);
    let kinds = ["gateways", "listenersets", "httproutes", "grpcroutes", "tlsroutes"];
    let names: Vec<String> = kinds.iter().map(|kind| format!("{kind}.{GATEWAY_API}")).collect();
    let names = names.iter().map(String::as_str).chain(["dnsendpoints.externaldns.k8s.io"]);
    plane.wait_for_crds(&names.collect::<Vec<_>>());
    plane.apply_files(&deploy().join("sources"));
    plane.kubectl(&["-n", "lb-linker", "delete", "service", "lb-linker"]);
    let corefile = format!(".:53 {{\n    bind {KUBE_DNS}\n    errors\n    cache 30\n}}\n");
    for object in [
        config_map("coredns", json!({ "Corefile": corefile })),
        service("kube-system", "kube-dns", KUBE_DNS),
        service("lb-linker", "lb-linker", LB_LINKER[0]),
    ] {
        plane.apply(&object.to_string());
    }
    let (code, _, err) = text(&stub(&plane.admin_kubeconfig(), &["--apply", "--yes"]));
    assert_eq!(code, Some(0), "{err}");
    plane.create_namespace("shop");
    for (target, ips, host, _) in TARGETS {
        create_names(&plane, target, ips, host);
    }
    let upstream = Resolver::start("file db example.com", CLOUD).await;
    let listen = dns(LB_LINKER[0]).to_string();
    let args = ["--listen", &listen, "--upstream", &upstream.address.to_string(), "--sync", "off"];
    let sources = ["--sources", "service,ingress,gateway,dnsendpoint"];
    let linker = Linker::in_cluster(&plane, "external-targets", &[&args[..], &sources].concat());
    linker.ready().await;
    let directory = tempfile::tempdir().unwrap();
    let _core_dns = CoreDns::start(&plane, "coredns", directory.path().join("coredns"), KUBE_DNS).await;

    for source in ["service", "ingress", "gateway", "dnsendpoint"] {
        for (target, .., expected) in TARGETS {
            let name = format!("{source}-{target}.shop.lb.internal.");
            eventually(&format!("{name}: {expected}"), || async {
                (look_up(&name) == expected).then_some(())
            })
            .await;
        }
    }
    assert_eq!(look_up("absent.shop.lb.internal."), "no address");
}

/// Returns what glibc's stub resolver finds, sorted.
fn look_up(name: &str) -> String {
    let output = Command::new(&stubs().glibc).args(["any", name]).stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let printed = String::from_utf8(output.stdout).unwrap();
    let mut words: Vec<&str> = printed.split_whitespace().collect();
    if words[0].parse::<IpAddr>().is_ok() {
        words.sort_unstable();
    }
    words.join(" ")
}
