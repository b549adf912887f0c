//! `lb-linker stub`, with a real CoreDNS in the roles of the cluster DNS and of NodeLocal DNSCache.

mod sources;

use std::cell::Cell;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use hickory_proto::op::Message;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::harness::cluster::Ingress;
use crate::harness::control_plane::{ControlPlane, Options};
use crate::harness::dns::{self, query, send_udp, short};
use crate::harness::linker::{Linker, run_to_end, run_to_end_with};
use crate::harness::network;
use crate::harness::port::HeldPort;
use crate::harness::process::Process;
use crate::harness::programs::programs;
use crate::harness::{EVENT_TIMEOUT, apply_deploy, deploy, eventually};
use crate::laptop::api_server;

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

/// Returns what a change with `--yes` prints on standard error.
fn without_question(kubeconfig: &Path) -> String {
    api_server(kubeconfig.to_str().unwrap()) + "\n"
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
    let mut maps = plane.list("/api/v1/namespaces/kube-system/configmaps");
    maps.retain(|map| map["metadata"]["name"] == config_map);
    assert_eq!(maps.len(), 1, "ConfigMaps {config_map}");
    maps[0]["data"].take()
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
    plane.apply_files(&deploy().join("stub"));
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
    plane.create_namespace("shop");
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
        out.contains(
            "    # BEGIN lb-linker stub lb.internal\n    lb.internal:53 {\n        bind 10.0.0.11\n"
        ),
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
    let question = format!(
        "Change ConfigMap kube-system/coredns, ConfigMap kube-system/node-local-dns at {}? [y/N] \n",
        api_server(admin.to_str().unwrap())
    );
    assert_eq!(err, question + "lb-linker: nothing was changed; --yes leaves out the question\n");
    assert_eq!(corefile(&plane, "coredns"), core_dns_corefile());

    let (code, out, err) = text(&stub(&admin, &["--apply", "--yes"]));
    assert_eq!((code, err), (Some(0), without_question(&admin)), "{out}");
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
    assert_eq!((code, err), (Some(0), without_question(&admin)), "{out}");
    assert_eq!(data(&plane, "coredns"), json!({"Corefile": core_dns_corefile()}));
    assert_eq!(data(&plane, "node-local-dns"), json!({"Corefile": node_local_corefile()}));
    let (code, out, _) = text(&stub(&admin, &["--remove", "--yes"]));
    assert_eq!(
        (code, out.as_str()),
        (
            Some(0),
            "no ConfigMap of the cluster DNS has a block of lb-linker for lb.internal; what was added by hand has to be \
             taken out by hand\n"
        )
    );
}

#[tokio::test]
async fn imported_block_is_created_and_removed() {
    let plane = ControlPlane::lend();
    let directory = tempfile::tempdir().unwrap();
    let custom = directory.path().join("custom");
    let main = format!(
        ".:53 {{\n    reload\n    import {0}/*.override\n}}\nimport {0}/*.server\n",
        custom.display()
    );
    plane.apply(&config_map("coredns", json!({"Corefile": main})).to_string());
    let admin = plane.admin_kubeconfig();
    let (code, out, err) = text(&stub(&admin, &["--apply", "--yes"]));
    assert_eq!((code, err), (Some(0), without_question(&admin)), "{out}");
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
    assert_eq!((code, err), (Some(0), without_question(&admin)), "{out}");
    assert_eq!(data(&plane, "coredns-custom"), Value::Null);
}

#[tokio::test]
async fn zone_with_names_of_the_cluster_is_refused() {
    let plane = ControlPlane::lend();
    let block =
        |domain: &str| format!(".:53 {{\n    kubernetes {domain} in-addr.arpa ip6.arpa\n    reload\n}}\n");
    let apply =
        |corefile: &str| plane.apply(&config_map("coredns", json!({"Corefile": corefile})).to_string());
    apply(&block("cluster.local"));
    let admin = plane.admin_kubeconfig();
    for (zone, verb) in [("cluster.local", "equals"), ("svc.cluster.local", "lies in"), ("local", "holds")] {
        for action in [&["--apply", "--yes"][..], &["--verify"], &[]] {
            let (code, out, err) = text(&stub(&admin, &[action, &["--zone", zone]].concat()));
            assert_eq!((code, out.as_str()), (Some(2), ""), "{err}");
            let reason = format!(
                "lb-linker: --zone {zone} {verb} cluster.local, the domain of the cluster's own names"
            );
            assert!(err.starts_with(&reason) && err.lines().count() == 1, "{err}");
        }
        assert_eq!(corefile(&plane, "coredns"), block("cluster.local"));
    }
    apply(&block("corp.example"));
    let (code, out, err) = text(&stub(&admin, &["--apply", "--yes", "--zone", "svc.corp.example"]));
    assert_eq!((code, out.as_str()), (Some(2), ""), "{err}");
    let reason = "lb-linker: kube-system/coredns:Corefile:2:16: the plugin kubernetes answers for corp.example here; --zone \
                  svc.corp.example lies in it, and would hide names of the cluster: give a zone outside of it\n";
    assert_eq!(err, reason);
    assert_eq!(corefile(&plane, "coredns"), block("corp.example"));

    // What an earlier version added can be removed.
    let harmful = "# BEGIN lb-linker stub\ncluster.local:53 {\n    errors\n    forward . 10.0.0.53\n}\n# END lb-linker stub\n";
    let directory = tempfile::tempdir().unwrap();
    let own = directory.path().join("Corefile");
    fs::write(&own, "cluster.local:53 {\n    lb_linker\n}\n").unwrap();
    for zone in [["--zone", "cluster.local"], ["--corefile", own.to_str().unwrap()]] {
        apply(&(block("cluster.local") + harmful));
        let (code, out, err) = text(&stub(&admin, &[&["--remove", "--yes"][..], &zone].concat()));
        assert_eq!((code, err), (Some(0), without_question(&admin)), "{out}");
        assert_eq!(corefile(&plane, "coredns"), block("cluster.local"));
    }
}

#[tokio::test]
async fn second_zone_is_applied_beside_the_first() {
    let plane = ControlPlane::lend();
    let main = ".:53 {\n    errors\n    reload\n}\n";
    plane.apply(&config_map("coredns", json!({"Corefile": main})).to_string());
    let admin = plane.admin_kubeconfig();
    let lines = |zone: &str| {
        let address = service_address(&plane);
        format!(
            "# BEGIN lb-linker stub {zone}\n{zone}:53 {{\n    errors\n    forward . {address}\n}}\n# END lb-linker stub {zone}\n"
        )
    };
    let run = |arguments: &[&str]| {
        let (code, out, err) = text(&stub(&admin, &[arguments, &["--yes"]].concat()));
        let told = if out.contains(" is changed; ") { without_question(&admin) } else { String::new() };
        // The flags of the Deployment name the default zone.
        let lacks = arguments == ["--apply", "--zone", "lab.internal"];
        let unserved = "lb-linker: Deployment lb-linker/lb-linker serves lb.internal, and not lab.internal: give it --zone \
                        lab.internal, too\n";
        let told = if lacks { unserved.to_owned() + &told } else { told };
        assert_eq!((code, err), (Some(0), told), "{out}");
        out
    };
    run(&["--apply"]);
    run(&["--apply", "--zone", "lab.internal"]);
    assert_eq!(
        corefile(&plane, "coredns"),
        format!("{main}{}{}", lines("lb.internal"), lines("lab.internal"))
    );
    let out = run(&["--remove", "--zone", "lab.internal"]);
    assert!(
        out.contains("\n- # BEGIN lb-linker stub lab.internal\n")
            && !out.contains("\n- # BEGIN lb-linker stub lb.internal"),
        "{out}"
    );
    let stay = "\nlb-linker's blocks for lb.internal stay: --zone lb.internal takes them out\n";
    assert!(out.contains(stay), "{out}");
    assert_eq!(corefile(&plane, "coredns"), format!("{main}{}", lines("lb.internal")));
    let out = run(&["--remove", "--zone", "lab.internal"]);
    assert!(out.ends_with(stay), "{out}");
    run(&["--remove"]);
    assert_eq!(data(&plane, "coredns"), json!({"Corefile": main}));
}

#[tokio::test]
async fn no_restart_is_advised_for_a_corefile_with_a_wrong_line() {
    let plane = ControlPlane::lend();
    plane.apply(&config_map("coredns", json!({"Corefile": ".:53 {\n    cahce 30\n}\n"})).to_string());
    service_address(&plane);
    for (action, done) in [("--apply", true), ("--remove", true), ("--remove", false)] {
        let (code, out, err) = text(&stub(&plane.admin_kubeconfig(), &[action, "--yes"]));
        assert_eq!(code, Some(0), "{out}{err}");
        assert!(err.contains("Corefile:2:5: CoreDNS has no plugin \"cahce\""), "{action}: {err}");
        let changed = "is changed, but CoreDNS loads it only without the errors above\n";
        assert_eq!(out.ends_with(changed), done, "{action}: {out}");
        assert!(!out.contains("rollout restart"), "{action}: {out}");
    }
}

#[tokio::test]
async fn coredns_starts_with_a_block_made_by_hand() {
    let plane = ControlPlane::lend();
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
    assert_eq!((code, err), (Some(0), without_question(&plane.admin_kubeconfig())), "{out}");
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
    let mut services = plane.list("/api/v1/namespaces/lb-linker/services");
    services.retain(|service| service["metadata"]["name"] == "lb-linker");
    services[0]["spec"]["clusterIP"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn config_maps_managed_by_another_program_are_left_alone() {
    let plane = ControlPlane::lend_bare();
    let admin = plane.admin_kubeconfig();
    let (code, _, err) = text(&stub(&admin, &["--apply", "--yes"]));
    assert_eq!(code, Some(1));
    let reasons = "lb-linker: lb-linker's Service wasn't found: no Service in namespace lb-linker has the label \
                   app.kubernetes.io/name=lb-linker; no ClusterRoleBinding has the label \
                   app.kubernetes.io/name=lb-linker; install lb-linker first, or name its Service by --service \
                   NAMESPACE/NAME\n";
    assert_eq!(err, reasons);
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
    let block = "# BEGIN lb-linker stub lb.internal\nlb.internal:53 {\n    forward . 10.0.0.53\n}\n\
                 # END lb-linker stub lb.internal\n";
    map["data"]["Corefile"] = json!(corefile_text.to_owned() + block);
    plane.apply(&map.to_string());
    let (code, out, err) = text(&stub(&admin, &["--remove", "--yes"]));
    assert_eq!(code, Some(1));
    assert!(out.contains("\n- # BEGIN lb-linker stub lb.internal\n"), "{out}");
    assert!(err.contains("take these lines out of what Helm installs"), "{err}");
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

    let mut second = service("lb-linker", "second", Ipv4Addr::new(10, 0, 7, 8));
    second["metadata"]["labels"] = json!({"app.kubernetes.io/name": "lb-linker"});
    plane.apply(&second.to_string());
    let (code, _, err) = text(&stub(&admin, &[]));
    assert_eq!(code, Some(1));
    let several = "name one by --service NAMESPACE/NAME: lb-linker/lb-linker, lb-linker/second\n";
    assert!(err.ends_with(several), "{err}");
    plane.apply(&service("default", "lb-linker", Ipv4Addr::new(10, 0, 7, 7)).to_string());
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
    assert!(err.contains("can't read ConfigMap kube-system/coredns, kube-system/"), "{err}");
    assert_eq!(err.matches("; deploy/stub/ grants the permissions\n").count(), 1, "{err}");
}

/// The label of lb-linker's own objects.
const LABEL: &str = "app.kubernetes.io/name";

/// Creates a namespace with a user who may do everything with these kinds there. Returns kubectl's flag for the user.
fn tenant(plane: &ControlPlane, namespace: &str) -> String {
    let account = format!("--serviceaccount={namespace}:eve");
    plane.create_namespace(namespace);
    plane.create_service_account(namespace, "eve");
    let resources = "--resource=services,pods,configmaps,endpoints,deployments.apps";
    plane.kubectl(&["-n", namespace, "create", "role", "eve", "--verb=*", resources]);
    plane.kubectl(&["-n", namespace, "create", "rolebinding", "eve", "--role=eve", &account]);
    format!("--as=system:serviceaccount:{namespace}:eve")
}

/// Creates 50 Services with lb-linker's label as a tenant; the last is for DNS, and selects the tenant's Pods, which claim
/// lb-linker's labels and the name of its ServiceAccount.
fn imitate(plane: &ControlPlane, namespace: &str, user: &str) {
    let labels = json!({LABEL: "lb-linker", "app.kubernetes.io/instance": "lb-linker"});
    let mut items: Vec<Value> = (10..60)
        .map(|i| {
            let port = if i == 59 { json!({"port": 53, "protocol": "UDP"}) } else { json!({"port": 80}) };
            json!({"apiVersion": "v1", "kind": "Service",
                "metadata": {"name": format!("lb-linker-{i}"), "namespace": namespace, "labels": labels},
                "spec": {"ports": [port], "selector": {LABEL: "lb-linker"}}})
        })
        .collect();
    for account in ["eve", "lb-linker"] {
        items.push(json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": account, "namespace": namespace, "labels": labels},
            "spec": {"serviceAccountName": account, "containers": [{"name": "lb-linker", "image": "lb-linker"}]}}));
    }
    let list = json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string();
    plane.kubectl_stdin(&[user, "create", "-f", "-"], &list);
}

#[tokio::test]
async fn service_with_the_label_of_a_tenant_isnt_taken() {
    let plane = ControlPlane::lend_bare();
    let admin = plane.admin_kubeconfig();
    let main = ".:53 {\n    errors\n    reload\n}\n";
    plane.apply(&config_map("coredns", json!({"Corefile": main})).to_string());
    // It precedes all other namespaces in lists.
    let user = tenant(&plane, "a-tenant");
    imitate(&plane, "a-tenant", &user);
    let binding = ["create", "clusterrolebinding", "lb-linker", "--clusterrole=lb-linker", "--user=eve"];
    assert!(plane.try_kubectl(&[&[user.as_str()][..], &binding].concat()).is_err());
    let refused = |reasons: &[&str]| {
        let (code, out, err) = text(&stub(&admin, &["--apply", "--yes"]));
        assert_eq!((code, out.as_str()), (Some(1), ""), "{err}");
        let foreign = "Services in other namespaces aren't taken for it, because each user of a namespace can set the label \
                       there: a-tenant/lb-linker-10, a-tenant/lb-linker-11, a-tenant/lb-linker-12 and 47 more; install \
                       lb-linker first, or name its Service by --service NAMESPACE/NAME\n";
        let reasons = reasons.join("; ");
        assert_eq!(err, format!("lb-linker: lb-linker's Service wasn't found: {reasons}; {foreign}"));
        assert_eq!(corefile(&plane, "coredns"), main);
    };
    let without_label = "no Service in namespace lb-linker has the label app.kubernetes.io/name=lb-linker";
    refused(&[without_label, "no ClusterRoleBinding has the label app.kubernetes.io/name=lb-linker"]);
    apply_deploy(&plane);
    let address = service_address(&plane);
    let pod = plane.kubeconfig_for_service_account("lb-linker", "lb-linker");
    let (code, out, _) = text(&stub(&pod, &[]));
    assert_eq!(code, Some(0));
    assert!(out.contains(&format!(" forward lb.internal to {address}, ")), "{out}");

    // An administrator gives the tenant lb-linker's permissions by a copy of its ClusterRoleBinding.
    let mut copy = plane.list("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings");
    copy.retain(|binding| binding["metadata"]["name"] == "lb-linker");
    let mut copy = copy.remove(0);
    copy["apiVersion"] = "rbac.authorization.k8s.io/v1".into();
    copy["kind"] = "ClusterRoleBinding".into();
    copy["metadata"] = json!({"name": "lb-linker-readers", "labels": copy["metadata"]["labels"]});
    copy["subjects"][0] = json!({"kind": "ServiceAccount", "name": "eve", "namespace": "a-tenant"});
    plane.kubectl_stdin(&["create", "-f", "-"], &copy.to_string());
    plane.kubectl(&["-n", "lb-linker", "delete", "service", "lb-linker"]);
    let copied =
        "ClusterRoleBinding lb-linker-readers isn't that of a release, because its role is lb-linker";
    let unselected = "no Service with a cluster IP and a UDP port for DNS selects Pods of ServiceAccount \
                      lb-linker/lb-linker, which a ClusterRoleBinding of lb-linker names";
    refused(&[without_label, copied, unselected]);
    plane.apply_files(&deploy().join("30-service.yaml"));
    let address = service_address(&plane);
    let (code, out, err) = text(&stub(&admin, &["--apply", "--yes"]));
    assert_eq!((code, err), (Some(0), without_question(&admin)), "{out}");
    assert!(corefile(&plane, "coredns").contains(&format!("    forward . {address}\n")));
}

mod release {
    use super::*;
    use crate::harness::programs::helm;
    use crate::release::chart::{CHART, Helm};

    #[tokio::test]
    async fn service_of_a_release_is_found_by_its_service_account() {
        let plane = ControlPlane::lend_bare();
        let admin = plane.admin_kubeconfig();
        let user = tenant(&plane, "a-tenant");
        imitate(&plane, "a-tenant", &user);
        plane.create_namespace("external-targets");
        let helm = Helm::new(&helm()[1], &admin);
        let common = "--set=crds.enabled=false,keepTargets.enabled=false,targetNamespace.create=false,alerts.enabled=true,\
                      source.enabled=true,stub.enabled=true";
        let install = |release: &str, namespace: &str, values: &[&str]| {
            let template = ["template", release, CHART, "--namespace", namespace, common];
            let objects = helm.run(&[&template, values].concat());
            plane.kubectl_stdin(&["apply", "-f", "-"], &objects);
            // There is no controller that makes Pods of Deployments.
            let deployment =
                plane.list(&format!("/apis/apps/v1/namespaces/{namespace}/deployments")).remove(0);
            let mut pod = deployment["spec"]["template"].clone();
            pod["metadata"]["name"] = "pod".into();
            pod["metadata"]["namespace"] = namespace.into();
            (pod["apiVersion"], pod["kind"]) = ("v1".into(), "Pod".into());
            plane.kubectl_stdin(&["create", "-f", "-"], &pod.to_string());
            objects
        };
        let found = || {
            let (code, out, err) = text(&stub(&admin, &[]));
            assert_eq!(code, Some(0), "{err}");
            let service = out.split(" the address of Service").nth(1).unwrap_or_else(|| panic!("{out}"));
            service.split_whitespace().next().unwrap().trim_end_matches('.').to_owned()
        };
        for (release, namespace, values, service) in [
            ("blue", "dns-blue", "--set=podLabels.a=b", "dns-blue/blue-lb-linker"),
            ("lb-linker", "dns-green", "--set=serviceAccount.name=mine", "dns-green/lb-linker"),
            ("red", "dns-red", "--set=fullnameOverride=dns-red", "dns-red/dns-red"),
            (
                "x",
                "dns-x",
                "--set=serviceAccount.create=false,serviceAccount.name=theirs",
                "dns-x/x-lb-linker",
            ),
        ] {
            plane.create_namespace(namespace);
            let objects = install(release, namespace, &[values]);
            assert_eq!(found(), service);
            // Another Service for the same Pods, such as one for the nodes' network.
            let public = json!({"apiVersion": "v1", "kind": "Service",
                "metadata": {"name": "public", "namespace": namespace},
                "spec": {"type": "NodePort", "ports": [{"port": 53, "protocol": "UDP"}],
                    "selector": {LABEL: "lb-linker"}}});
            plane.kubectl_stdin(&["create", "-f", "-"], &public.to_string());
            assert_eq!(found(), service);
            if release != "x" {
                plane.kubectl_stdin(&["delete", "-f", "-"], &objects);
                let (code, _, err) = text(&stub(&admin, &[]));
                assert_eq!(code, Some(1), "{err}");
            }
        }
        // A user's namespace that is called lb-linker: its Service isn't taken, also while no Pod of the release runs.
        let user = tenant(&plane, "lb-linker");
        imitate(&plane, "lb-linker", &user);
        assert_eq!(found(), "dns-x/x-lb-linker");
        plane.kubectl(&["-n", "dns-x", "delete", "pod", "pod", "--now"]);
        let (code, _, err) = text(&stub(&admin, &[]));
        assert_eq!(code, Some(1));
        let reasons = [
            "no Service with a cluster IP and a UDP port for DNS selects Pods of ServiceAccount dns-x/theirs, which a",
            "; lb-linker/lb-linker-59 isn't taken for it, because the ClusterRoleBindings of lb-linker name ServiceAccounts of",
        ];
        assert!(reasons.iter().all(|reason| err.contains(reason)), "{err}");
        apply_deploy(&plane);
        let (code, _, err) = text(&stub(&admin, &[]));
        assert_eq!(code, Some(1));
        let several = "lb-linker: several Services of lb-linker were found: name one by --service NAMESPACE/NAME: \
                       lb-linker/lb-linker, lb-linker/lb-linker-59\n";
        assert_eq!(err, several);
    }
}

#[tokio::test]
async fn service_in_the_namespace_of_the_pod_is_taken() {
    programs();
    if !network::is_own("stub::service_in_the_namespace_of_the_pod_is_taken") {
        return;
    }
    let plane = ControlPlane::start(Options::default());
    apply_deploy(&plane);
    let user = tenant(&plane, "a-tenant");
    imitate(&plane, "a-tenant", &user);
    plane.create_namespace("dns");
    plane.create_service_account("dns", "lb-linker");
    let account = "--serviceaccount=dns:lb-linker";
    plane.kubectl(&["create", "clusterrolebinding", "dns", "--clusterrole=lb-linker", account]);
    // In the test's own mount namespace.
    let mounted = Command::new("mount").args(["-t", "tmpfs", "none", "/var/run"]).status().unwrap();
    assert!(mounted.success());
    let files = Path::new("/var/run/secrets/kubernetes.io/serviceaccount");
    fs::create_dir_all(files).unwrap();
    fs::write(files.join("ca.crt"), plane.certificate_authority()).unwrap();
    fs::write(files.join("token"), plane.token_for_service_account("dns", "lb-linker", None)).unwrap();
    fs::write(files.join("namespace"), "dns").unwrap();
    let (host, port) = (plane.address().ip().to_string(), plane.address().port().to_string());
    let in_pod = |arguments: &[&str]| {
        let variables = [("KUBERNETES_SERVICE_HOST", &*host), ("KUBERNETES_SERVICE_PORT", &*port)];
        text(&run_to_end_with(&variables, [&["stub"], arguments].concat()))
    };
    let is_found = |(code, out, err): (Option<i32>, String, String), service: &str| {
        assert_eq!(code, Some(0), "{err}");
        assert!(out.replace('\n', " ").contains(&format!(" the address of Service {service}. ")), "{out}");
    };
    is_found(in_pod(&[]), "lb-linker/lb-linker");
    plane.apply(&service("dns", "lb-linker", Ipv4Addr::new(10, 0, 7, 7)).to_string());
    is_found(in_pod(&[]), "dns/lb-linker");
    let kubeconfig = plane.kubeconfig_for_service_account("dns", "lb-linker");
    is_found(in_pod(&["--kubeconfig", kubeconfig.to_str().unwrap()]), "lb-linker/lb-linker");
    let mut second = service("dns", "second", Ipv4Addr::new(10, 0, 7, 8));
    second["metadata"]["labels"] = json!({LABEL: "lb-linker"});
    plane.apply(&second.to_string());
    let (code, _, err) = in_pod(&[]);
    assert_eq!(code, Some(1));
    assert!(err.ends_with("name one by --service NAMESPACE/NAME: dns/lb-linker, dns/second\n"), "{err}");
    is_found(in_pod(&["--service", "dns/second"]), "dns/second");

    let address = Ipv4Addr::new(10, 0, 7, 7);
    network::add_loopback_address(address).unwrap();
    let linker = start_linker(&plane, address);
    linker.ready().await;
    let (_, _, err) =
        in_pod(&["--service", "dns/lb-linker", "--zone", "lb.internal", "--zone", "lab.internal"]);
    let unserved =
        "lb-linker: Service dns/lb-linker at 10.0.7.7 doesn't serve lab.internal: start lb-linker with";
    assert!(err.contains(unserved), "{err}");
}

#[tokio::test]
async fn zone_is_added_on_each_port_of_coredns() {
    programs();
    if !network::is_own("stub::zone_is_added_on_each_port_of_coredns") {
        return;
    }
    for address in [NODE_LOCAL, KUBE_DNS_UPSTREAM, LB_LINKER[0]] {
        network::add_loopback_address(address).unwrap();
    }
    let plane = ControlPlane::start(Options::default());
    apply_deploy(&plane);
    plane.kubectl(&["-n", "lb-linker", "delete", "service", "lb-linker"]);
    plane.apply(&service("lb-linker", "lb-linker", LB_LINKER[0]).to_string());
    let cluster = plane.cluster().await;
    plane.create_namespace("shop");
    cluster.create_load_balancer("shop", "web").await;
    cluster.set_ingress("shop", "web", &[Ingress::Hostname("lb-1.example.com")]).await;
    let linker = start_linker(&plane, LB_LINKER[0]);
    linker.ready().await;
    let block = |port: u16, bind: &str| {
        format!(
            ".:{port} {{\n    bind {bind}\n    template ANY ANY {{\n        rcode NXDOMAIN\n    }}\n    reload\n}}\n"
        )
    };
    let except = format!("lo {{\n        except {NODE_LOCAL}\n    }}");
    let main = block(5353, &except) + &block(53, &KUBE_DNS_UPSTREAM.to_string());
    plane.apply(&config_map("coredns", json!({"Corefile": main})).to_string());
    let admin = plane.admin_kubeconfig();
    let (code, out, err) = text(&stub(&admin, &["--apply", "--yes"]));
    assert_eq!((code, err), (Some(0), without_question(&admin)), "{out}");
    let directory = tempfile::tempdir().unwrap();
    let mut core_dns =
        CoreDns::start(&plane, "coredns", directory.path().join("coredns"), KUBE_DNS_UPSTREAM).await;
    let wait_for = |address: Ipv4Addr, port: u16, expected: &'static str| async move {
        let server = (address, port).into();
        // CoreDNS opens its ports one after the other.
        let question = query(&format!("{NAME} A")).to_vec().unwrap();
        eventually(&format!("{server}: {expected:?}"), || async {
            let answer = send_udp(server, &question, Duration::from_secs(5)).await?;
            let answer = Message::from_vec(&answer).unwrap();
            (dns::data(&answer) == expected).then_some(())
        })
        .await;
    };
    for port in [53, 5353] {
        wait_for(KUBE_DNS_UPSTREAM, port, "lb-1.example.com.").await;
    }
    assert!(TcpStream::connect((NODE_LOCAL, 5353)).await.is_err(), "{}", corefile(&plane, "coredns"));
    let (code, out, _) = text(&stub(&admin, &["--apply", "--yes"]));
    assert_eq!(
        (code, out.as_str()),
        (Some(0), "ConfigMap kube-system/coredns forwards lb.internal already\n")
    );
    let (code, out, err) = text(&stub(&admin, &["--remove", "--yes"]));
    assert_eq!((code, err), (Some(0), without_question(&admin)), "{out}");
    assert_eq!(data(&plane, "coredns"), json!({"Corefile": main}));

    // A block made by hand answers only where it listens, and no second one may be added beside one without bind.
    let root = block(5353, &KUBE_DNS_UPSTREAM.to_string());
    let by_hand = |bind: &str| format!("lb.internal:5353 {{\n{bind}    forward . {}\n}}\n", LB_LINKER[0]);
    let main = root.clone() + &by_hand("");
    plane.apply(&config_map("coredns", json!({"Corefile": main})).to_string());
    core_dns.reload(&plane);
    let at_other_addresses = || async { TcpStream::connect((NODE_LOCAL, 5353)).await.ok() };
    eventually("the block made by hand", at_other_addresses).await;
    wait_for(NODE_LOCAL, 5353, "lb-1.example.com.").await;
    wait_for(KUBE_DNS_UPSTREAM, 5353, "Non-Existent Domain").await;
    let (code, _, err) = text(&stub(&admin, &["--apply", "--yes"]));
    let reason = "lb-linker: kube-system/coredns:Corefile:8: lb.internal on port 5353 has no bind, but the block for all \
                  names has bind 10.0.0.11, ";
    assert!(code == Some(1) && err.starts_with(reason), "{err}");
    let elsewhere = by_hand(&format!("    bind {NODE_LOCAL}\n"));
    plane.apply(&config_map("coredns", json!({"Corefile": root + &elsewhere})).to_string());
    let (code, out, err) = text(&stub(&admin, &["--apply", "--yes"]));
    assert_eq!((code, err), (Some(0), without_question(&admin)), "{out}");
    core_dns.reload(&plane);
    for address in [KUBE_DNS_UPSTREAM, NODE_LOCAL] {
        wait_for(address, 5353, "lb-1.example.com.").await;
    }

    // The environment of CoreDNS isn't known.
    let main = ".:{$PORT} {\n    reload\n}\n";
    plane.apply(&config_map("coredns", json!({"Corefile": main})).to_string());
    let (code, out, err) = text(&stub(&admin, &["--apply", "--yes"]));
    assert_eq!((code, out.as_str()), (Some(1), ""), "{err}");
    let reason =
        "lb-linker: kube-system/coredns:Corefile:1:1: .:{$PORT} has an environment variable of CoreDNS";
    assert!(err.starts_with(reason), "{err}");
    assert_eq!(corefile(&plane, "coredns"), main);
}
