//! `lb-linker stub`, with a real CoreDNS in the roles of the cluster DNS and of NodeLocal DNSCache.

use std::cell::Cell;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::harness::cluster::Ingress;
use crate::harness::control_plane::{ControlPlane, Options};
use crate::harness::dns::short;
use crate::harness::linker::{Linker, run_to_end};
use crate::harness::network;
use crate::harness::port::HeldPort;
use crate::harness::process::Process;
use crate::harness::programs::programs;
use crate::harness::{EVENT_TIMEOUT, apply_deploy, deploy, eventually};

/// The cluster IPs of lb-linker's Service, before and after it is recreated.
const LB_LINKER: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 0, 0, 53), Ipv4Addr::new(10, 0, 0, 54)];
/// The cluster IP of `kube-dns`, at which NodeLocal DNSCache answers on the node.
const KUBE_DNS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 10);
/// The cluster IP at which NodeLocal DNSCache asks CoreDNS.
const KUBE_DNS_UPSTREAM: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 11);
const NODE_LOCAL: Ipv4Addr = Ipv4Addr::new(169, 254, 20, 10);
const NAME: &str = "web-shop.lb.internal.";

fn dns(server: Ipv4Addr) -> SocketAddr {
    (server, 53).into()
}

fn stub(kubeconfig: &Path, arguments: &[&str]) -> Output {
    let common = ["stub", "--kubeconfig", kubeconfig.to_str().unwrap()];
    run_to_end([&common[..], arguments].concat())
}

/// Returns the exit code, standard output and standard error.
fn text(output: &Output) -> (Option<i32>, String, String) {
    let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8(text.clone()).unwrap());
    (output.status.code(), out, err)
}

fn service(namespace: &str, name: &str, address: Ipv4Addr) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": namespace, "labels": {"app.kubernetes.io/name": name}},
        "spec": {
            "clusterIP": address,
            "ports": [
                {"name": "dns", "port": 53, "protocol": "UDP"},
                {"name": "dns-tcp", "port": 53, "protocol": "TCP"},
            ],
        },
    })
}

fn config_map(name: &str, data: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "kube-system"}, "data": data})
}

fn core_dns_corefile() -> String {
    format!(
        ".:53 {{\n    bind {KUBE_DNS_UPSTREAM}\n    errors\n    template ANY ANY {{\n        rcode NXDOMAIN\n        \
         authority \". 30 IN SOA a. b. 1 2 3 4 30\"\n    }}\n    cache 30\n    reload\n}}\n"
    )
}

fn node_local_corefile() -> String {
    let block = |zone: &str| {
        format!(
            "{zone}:53 {{\n    errors\n    cache 30\n    reload\n    bind {NODE_LOCAL} {KUBE_DNS}\n    \
             forward . {KUBE_DNS_UPSTREAM} {{\n            force_tcp\n    }}\n    }}\n"
        )
    };
    block("cluster.local") + &block(".")
}

/// A CoreDNS whose Corefile is a ConfigMap, as the kubelet mounts it.
struct CoreDns {
    process: Process,
    config_map: &'static str,
    directory: PathBuf,
}

impl CoreDns {
    async fn start(plane: &ControlPlane, config_map: &'static str, directory: PathBuf, at: Ipv4Addr) -> Self {
        fs::create_dir(&directory).unwrap();
        fs::write(directory.join("Corefile"), corefile(plane, config_map)).unwrap();
        let mut command = Command::new(&programs().coredns);
        command.current_dir(&directory).stdout(Stdio::null()).stderr(Stdio::null());
        let process = Process::spawn(command).unwrap();
        eventually(&format!("{config_map} on {at}"), || async { TcpStream::connect(dns(at)).await.ok() })
            .await;
        Self { process, config_map, directory }
    }

    /// Writes the present ConfigMap to the Corefile, and sends SIGUSR1, so that CoreDNS reloads it before the
    /// plugin *reload* would.
    fn reload(&mut self, plane: &ControlPlane) {
        fs::write(self.directory.join("Corefile"), corefile(plane, self.config_map)).unwrap();
        self.process.signal(Signal::SIGUSR1);
    }
}

fn data(plane: &ControlPlane, config_map: &str) -> Value {
    let object = plane.kubectl(&["-n", "kube-system", "get", "configmap", config_map, "-o", "json"]);
    serde_json::from_str::<Value>(&object).unwrap()["data"].clone()
}

fn corefile(plane: &ControlPlane, config_map: &str) -> String {
    data(plane, config_map)["Corefile"].as_str().unwrap().to_owned()
}

fn start_linker(plane: &ControlPlane, address: Ipv4Addr) -> Linker {
    Linker::in_cluster(
        plane,
        "external-targets",
        &["--listen", &dns(address).to_string(), "--upstream", "none", "--sync", "off"],
    )
}

async fn wait_for_answer(server: Ipv4Addr, expected: &str) {
    eventually(&format!("{server}: {expected:?}"), || async {
        (short(dns(server), &format!("{NAME} A")).await == expected).then_some(())
    })
    .await;
}

/// Repeats `stub --verify` until its exit code and its errors are as expected: it waits for each answer for 3 s only.
async fn verified(
    kubeconfig: &Path,
    is_expected: impl Fn(Option<i32>, &str) -> bool,
) -> (Option<i32>, String, String) {
    let last = Cell::new(String::new());
    let look = || async {
        let (code, out, err) = text(&stub(kubeconfig, &["--verify"]));
        let result = is_expected(code, &err).then(|| (code, out.clone(), err.clone()));
        last.set(format!("{code:?}: {out}{err}"));
        result
    };
    match timeout(EVENT_TIMEOUT / 2, eventually("stub --verify", look)).await {
        Ok(result) => result,
        Err(_) => panic!("stub --verify gives {}", last.take()),
    }
}

#[tokio::test]
async fn zone_is_added_verified_and_removed_on_each_tier() {
    programs();
    if !network::is_own("stub::zone_is_added_verified_and_removed_on_each_tier") {
        return;
    }
    for address in [NODE_LOCAL, KUBE_DNS, KUBE_DNS_UPSTREAM, LB_LINKER[0], LB_LINKER[1]] {
        network::add_loopback_address(address).unwrap();
    }
    // This file is mounted over the machine's /etc/resolv.conf in the test's own mount namespace.
    assert_eq!(fs::read_to_string("/etc/resolv.conf").unwrap(), "nameserver 127.0.0.1\n");
    fs::write(
        "/etc/resolv.conf",
        format!("nameserver {NODE_LOCAL}\nsearch shop.svc.cluster.local svc.cluster.local cluster.local\n"),
    )
    .unwrap();
    let plane = ControlPlane::start(Options::default());
    apply_deploy(&plane);
    plane.kubectl(&["apply", "-f", deploy().join("stub").to_str().unwrap()]);
    plane.kubectl(&["-n", "lb-linker", "delete", "service", "lb-linker"]);
    for object in [
        config_map("coredns", json!({"Corefile": core_dns_corefile()})),
        config_map("node-local-dns", json!({"Corefile": node_local_corefile()})),
        service("kube-system", "kube-dns", KUBE_DNS),
        service("kube-system", "kube-dns-upstream", KUBE_DNS_UPSTREAM),
        service("lb-linker", "lb-linker", LB_LINKER[0]),
    ] {
        plane.apply(&object.to_string());
    }
    let cluster = plane.cluster().await;
    plane.kubectl(&["create", "namespace", "shop"]);
    cluster.create_load_balancer("shop", "web").await;
    cluster.set_ingress("shop", "web", &[Ingress::Hostname("lb-1.example.com")]).await;
    let directory = tempfile::tempdir().unwrap();
    let mut core_dns =
        CoreDns::start(&plane, "coredns", directory.path().join("coredns"), KUBE_DNS_UPSTREAM).await;
    let mut node_local =
        CoreDns::start(&plane, "node-local-dns", directory.path().join("node-local"), NODE_LOCAL).await;
    let linker = start_linker(&plane, LB_LINKER[0]);
    linker.ready().await;
    let admin = plane.admin_kubeconfig();
    // As in a Pod of lb-linker, with the permissions of deploy/ and deploy/stub/.
    let pod = plane.kubeconfig_for_service_account("lb-linker", "lb-linker");

    let (code, out, err) = text(&stub(&admin, &[]));
    assert_eq!((code, err.as_str()), (Some(0), ""));
    assert!(
        out.contains("    # BEGIN lb-linker stub\n    lb.internal:53 {\n        bind 10.0.0.11\n"),
        "{out}"
    );
    assert!(out.contains("        bind 169.254.20.10 10.0.0.10\n"), "{out}");

    let expected = "web-shop.lb.internal A: the load balancer is lb-1.example.com\n\
                    RESOLVER               ADDRESS         ANSWER             TTL\n\
                    lb-linker              10.0.0.53       lb-1.example.com   5\n\
                    cluster DNS            10.0.0.11       NXDOMAIN           30\n";
    let problems = "lb-linker: cluster DNS at 10.0.0.11 answers wrongly: NXDOMAIN, TTL 30\n\
                    lb-linker: kube-system/coredns:Corefile has no block for lb.internal\n\
                    lb-linker: kube-system/node-local-dns:Corefile has no block for lb.internal\n";
    let (_, out, _) = verified(&pod, |code, err| code == Some(1) && err == problems).await;
    assert!(out.starts_with(expected), "{out}");

    // Standard input is empty, so the question of `--apply` isn't answered.
    let (code, out, err) = text(&stub(&admin, &["--apply"]));
    assert_eq!(code, Some(1), "{out}{err}");
    assert!(out.contains("\n+ lb.internal:53 {\n+     bind 10.0.0.11\n"), "{out}");
    assert!(err.ends_with("lb-linker: nothing was changed; --yes leaves out the question\n"), "{err}");
    assert_eq!(corefile(&plane, "coredns"), core_dns_corefile());

    let (code, out, err) = text(&stub(&admin, &["--apply", "--yes"]));
    assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
    assert_eq!(data(&plane, "coredns")["Corefile.before-lb-linker"], core_dns_corefile());
    let (code, out, err) = text(&stub(&admin, &["--apply", "--yes"]));
    assert_eq!((code, err.as_str()), (Some(0), ""));
    let done = "ConfigMap kube-system/coredns forwards lb.internal already\n\
                ConfigMap kube-system/node-local-dns forwards lb.internal already\n";
    assert_eq!(out, done);
    core_dns.reload(&plane);
    node_local.reload(&plane);
    for server in [KUBE_DNS_UPSTREAM, KUBE_DNS, NODE_LOCAL] {
        wait_for_answer(server, "lb-1.example.com.").await;
    }
    let (_, out, _) = verified(&pod, |code, err| code == Some(0) && err.is_empty()).await;
    for tier in ["lb-linker              10.0.0.53", "cluster DNS            10.0.0.11"] {
        assert!(out.contains(&format!("\n{tier}       lb-1.example.com   5\n")), "{out}");
    }
    for tier in ["NodeLocal DNSCache", "resolver of this Pod"] {
        let row = out.lines().find(|line| line.starts_with(tier)).unwrap_or_else(|| panic!("{out}"));
        assert!(row.contains(" 169.254.20.10 ") && row.contains(" lb-1.example.com "), "{out}");
    }
    // A new target is answered at once: no tier caches the names of lb.internal.
    cluster.set_ingress("shop", "web", &[Ingress::Hostname("lb-2.example.com")]).await;
    wait_for_answer(LB_LINKER[0], "lb-2.example.com.").await;
    assert_eq!(short(dns(NODE_LOCAL), &format!("{NAME} A")).await, "lb-2.example.com.");

    // The Service of lb-linker is recreated, with another cluster IP.
    plane.kubectl(&["-n", "lb-linker", "delete", "service", "lb-linker"]);
    plane.apply(&service("lb-linker", "lb-linker", LB_LINKER[1]).to_string());
    drop(linker);
    let linker = start_linker(&plane, LB_LINKER[1]);
    linker.ready().await;
    let wrong = "lb-linker: cluster DNS at 10.0.0.11 answers wrongly: ";
    let (_, _, err) = verified(&pod, |code, err| code == Some(1) && err.starts_with(wrong)).await;
    for map in ["coredns", "node-local-dns"] {
        let end = "lb.internal is forwarded to 10.0.0.53, and Service lb-linker/lb-linker has the address 10.0.0.54\n";
        let line =
            err.lines().find(|line| line.starts_with(&format!("lb-linker: kube-system/{map}:Corefile:")));
        assert!(line.is_some_and(|line| line.ends_with(end.trim_end())), "{err}");
    }
    let (code, out, _) = text(&stub(&admin, &["--apply", "--yes"]));
    assert_eq!(code, Some(0));
    assert!(out.contains("\n-     forward . 10.0.0.53\n+     forward . 10.0.0.54\n"), "{out}");
    core_dns.reload(&plane);
    node_local.reload(&plane);
    for server in [KUBE_DNS_UPSTREAM, KUBE_DNS, NODE_LOCAL] {
        wait_for_answer(server, "lb-2.example.com.").await;
    }
    verified(&pod, |code, err| code == Some(0) && err.is_empty()).await;

    // The blocks can be removed also after lb-linker was uninstalled.
    plane.kubectl(&["-n", "lb-linker", "delete", "service", "lb-linker"]);
    let (code, out, err) = text(&stub(&admin, &["--remove", "--yes"]));
    assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
    assert_eq!(data(&plane, "coredns"), json!({"Corefile": core_dns_corefile()}));
    assert_eq!(data(&plane, "node-local-dns"), json!({"Corefile": node_local_corefile()}));
    let (code, out, _) = text(&stub(&admin, &["--remove", "--yes"]));
    assert_eq!(
        (code, out.as_str()),
        (
            Some(0),
            "no ConfigMap of the cluster DNS has a block of lb-linker; what was added by hand has to be taken out by hand\n"
        )
    );
}

#[tokio::test]
async fn imported_block_is_created_and_removed() {
    let plane = ControlPlane::start(Options::default());
    apply_deploy(&plane);
    let directory = tempfile::tempdir().unwrap();
    let custom = directory.path().join("custom");
    let main = format!(
        ".:53 {{\n    reload\n    import {0}/*.override\n}}\nimport {0}/*.server\n",
        custom.display()
    );
    plane.apply(&config_map("coredns", json!({"Corefile": main})).to_string());
    let admin = plane.admin_kubeconfig();
    let (code, out, err) = text(&stub(&admin, &["--apply", "--yes"]));
    assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
    assert!(out.ends_with("its Pods read it within about two minutes\n"), "{out}");
    assert_eq!(corefile(&plane, "coredns"), main);
    let address = service_address(&plane);
    let block = data(&plane, "coredns-custom")["lb-linker.server"].as_str().unwrap().to_owned();
    assert!(block.contains(&format!("    forward . {address}\n")), "{block}");
    // `lb-linker check` reads the block through the import, as CoreDNS does.
    fs::create_dir(&custom).unwrap();
    fs::write(custom.join("lb-linker.server"), &block).unwrap();
    let path = directory.path().join("Corefile");
    fs::write(&path, &main).unwrap();
    let checked = run_to_end(["check", "--corefile", path.to_str().unwrap()]);
    assert!(text(&checked).1.contains("\nlb.internal:53 {\n"), "{:?}", text(&checked));
    let (code, out, err) = text(&stub(&admin, &["--remove", "--yes"]));
    assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
    assert_eq!(data(&plane, "coredns-custom"), Value::Null);
}

#[tokio::test]
async fn coredns_starts_with_a_block_made_by_hand() {
    let plane = ControlPlane::start(Options::default());
    apply_deploy(&plane);
    let directory = tempfile::tempdir().unwrap();
    let [port, other_port] = [HeldPort::take().unwrap(), HeldPort::take().unwrap()];
    let main =
        format!(".:{} {{\n    bind 127.0.0.1\n    reload\n}}\nimport custom/*.server\n", port.number());
    plane.apply(&config_map("coredns", json!({"Corefile": main})).to_string());
    let address = service_address(&plane);
    let block = |zone: &str, port: &HeldPort| {
        format!("{zone}:{} {{\n    bind 127.0.0.1\n    forward . {address}\n}}\n", port.number())
    };
    let by_hand = block("corp.example", &other_port) + &block("lb.internal", &port);
    plane.apply(&config_map("coredns-custom", json!({"mine.server": by_hand})).to_string());
    let (code, out, err) = text(&stub(&plane.admin_kubeconfig(), &["--apply", "--yes"]));
    assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
    assert_eq!(data(&plane, "coredns-custom"), json!({"mine.server": by_hand}));

    // A block on another port serves no Pod.
    let by_hand = block("lb.internal", &other_port);
    plane.apply(&config_map("coredns-custom", json!({"mine.server": by_hand})).to_string());
    let (code, out, err) = text(&stub(&plane.admin_kubeconfig(), &["--apply", "--yes"]));
    assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
    let added = data(&plane, "coredns-custom")["lb-linker.server"].clone();
    assert!(added.as_str().unwrap().contains(&format!("lb.internal:{} {{", port.number())), "{added}");
    let custom = directory.path().join("custom");
    fs::create_dir(&custom).unwrap();
    for (key, value) in data(&plane, "coredns-custom").as_object().unwrap() {
        fs::write(custom.join(key), value.as_str().unwrap()).unwrap();
    }
    fs::write(directory.path().join("Corefile"), &main).unwrap();
    let mut command = Command::new(&programs().coredns);
    command.current_dir(directory.path()).stdout(Stdio::null()).stderr(Stdio::null());
    let _core_dns = Process::spawn(command).unwrap();
    eventually("CoreDNS", || async { TcpStream::connect(port.local()).await.ok() }).await;
}

/// Returns the cluster IP of lb-linker's Service.
fn service_address(plane: &ControlPlane) -> String {
    plane.kubectl(&["-n", "lb-linker", "get", "service", "lb-linker", "-o", "jsonpath={.spec.clusterIP}"])
}

#[tokio::test]
async fn config_maps_managed_by_another_program_are_left_alone() {
    let plane = ControlPlane::start(Options::default());
    let admin = plane.admin_kubeconfig();
    let (code, _, err) = text(&stub(&admin, &["--apply", "--yes"]));
    assert_eq!(code, Some(1));
    assert!(
        err.starts_with("lb-linker: no Service with the label app.kubernetes.io/name=lb-linker"),
        "{err}"
    );
    apply_deploy(&plane);
    let corefile_text = ".:53 {\n    errors\n}\n";
    let mut map = config_map("coredns", json!({"Corefile": corefile_text}));
    map["metadata"]["annotations"] = json!({"meta.helm.sh/release-name": "coredns"});
    plane.apply(&map.to_string());
    let (code, out, err) = text(&stub(&admin, &["--apply", "--yes"]));
    assert_eq!((code, out.as_str()), (Some(1), ""));
    assert!(
        err.contains("ConfigMap kube-system/coredns is managed by Helm, which would undo a change"),
        "{err}"
    );
    plane.kubectl(&["-n", "kube-system", "delete", "configmap", "coredns"]);
    // A field manager, too, shows that the ConfigMap is managed.
    plane.kubectl_stdin(
        &["apply", "--server-side", "--field-manager=argocd-controller", "-f", "-"],
        &config_map("coredns", json!({"Corefile": corefile_text})).to_string(),
    );
    let (code, _, err) = text(&stub(&admin, &["--apply", "--yes"]));
    assert_eq!(code, Some(1));
    assert!(err.contains("is managed by Argo CD"), "{err}");
    assert_eq!(corefile(&plane, "coredns"), corefile_text);

    let second = service("default", "lb-linker", Ipv4Addr::new(10, 0, 7, 7)).to_string();
    plane.apply(&second);
    let (code, _, err) = text(&stub(&admin, &[]));
    assert_eq!(code, Some(1));
    assert!(err.ends_with("name one by --service: default/lb-linker, lb-linker/lb-linker\n"), "{err}");
    let (code, out, _) = text(&stub(&admin, &["--service", "default/lb-linker"]));
    assert_eq!(code, Some(0));
    assert!(out.starts_with("The cluster DNS has to forward lb.internal to 10.0.7.7, "), "{out}");
    let (code, _, err) = text(&stub(&admin, &["--service", "default/other"]));
    assert_eq!(code, Some(1));
    assert!(
        err.ends_with("Service default/other doesn't exist, has no cluster IP, or has no UDP port for DNS\n"),
        "{err}"
    );

    // lb-linker's own permissions don't suffice for ConfigMaps without deploy/stub/.
    let pod = plane.kubeconfig_for_service_account("lb-linker", "lb-linker");
    let (_, _, err) = text(&stub(&pod, &["--service", "lb-linker/lb-linker"]));
    assert!(err.contains("can't read ConfigMap kube-system/coredns: the API server forbids it"), "{err}");
    assert!(err.contains("; deploy/stub/ grants the permissions\n"), "{err}");
}
