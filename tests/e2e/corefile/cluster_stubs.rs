//! Stub resolvers in a Pod of a cluster, with its search domains and `ndots:5`: their results, and the number of their
//! queries, are the same with lb-linker and with CoreDNS.

use std::fs;
use std::net::IpAddr;
use std::path::Path;
use std::process::{Command, Stdio};

use hickory_proto::op::ResponseCode;
use serde_json::json;

use super::cluster_names::write;
use super::server::{CorefileDir, Program, Server};
use super::upstreams::Upstreams;
use crate::harness::control_plane::{ControlPlane, Options};
use crate::harness::dns::{ask_udp, query, udp_sockets};
use crate::harness::programs::{programs, stubs};
use crate::harness::{eventually, network};

const COREFILE: &str = "
    .:53 {
        bind {$ADDRESS}
        errors
        prometheus 127.0.0.1:{$METRICS}
        AUTOPATH
        kubernetes cluster.local in-addr.arpa ip6.arpa {
            kubeconfig {$CLUSTER_CONFIG} test
            pods verified
            fallthrough in-addr.arpa ip6.arpa
        }
        forward . {$UPSTREAM}
    }";
const ADDRESSES: [&str; 2] = ["127.0.0.2", "127.0.0.3"];
/// The names as an application writes them. The last two don't exist.
const NAMES: [&str; 8] = [
    "web",
    "web.shop",
    "web.shop.svc",
    "web.shop.svc.cluster.local.",
    "a.example.org",
    "a.example.org.",
    "absent",
    "absent.example.org",
];

async fn start(plane: &ControlPlane, upstreams: &Upstreams, autopath: &str) -> Vec<Server> {
    let mut servers = Vec::new();
    for (program, address) in [Program::CoreDns, Program::Linker].into_iter().zip(ADDRESSES) {
        let site = CorefileDir::new(&COREFILE.replace("AUTOPATH", autopath), &[]);
        let site = upstreams.name(site).with("ADDRESS", address);
        let site = site.with("CLUSTER_CONFIG", plane.admin_kubeconfig().display());
        let before = udp_sockets(53);
        servers.push(Server::start(program, &site).await);
        eventually("the port", || async { (udp_sockets(53) > before).then_some(()) }).await;
        for name in ["web.shop.svc.cluster.local. A", "127-0-0-1.shop.pod.cluster.local. A"] {
            let dns = format!("{address}:53").parse().unwrap();
            let answer = || async { ask_udp(dns, &query(name)).await.metadata.response_code };
            eventually(name, || async { (answer().await == ResponseCode::NoError).then_some(()) }).await;
        }
    }
    servers
}

/// Returns the number of queries that a server has counted.
fn questions(server: &Server) -> f64 {
    let page = server.metrics();
    let counted = page.lines().filter(|line| line.starts_with("coredns_dns_requests_total{"));
    counted.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum()
}

/// Looks up a name, and returns the sorted addresses, or why there are none.
fn look_up(stub: &Path, name: &str, address: &str) -> Vec<String> {
    let resolver = format!(
        "nameserver {address}\nsearch shop.svc.cluster.local svc.cluster.local cluster.local\noptions ndots:5\n"
    );
    fs::write("/etc/resolv.conf", resolver).unwrap();
    let output = Command::new(stub).args(["any", name]).stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    // Go's errors name the server.
    let printed = String::from_utf8(output.stdout).unwrap().replace(address, "SERVER");
    let mut words: Vec<String> = printed.split_whitespace().map(str::to_owned).collect();
    words.sort_unstable();
    words
}

/// Looks up all names through both servers.
async fn compare(libc: &str, stub: &Path, servers: &[Server]) {
    let before: Vec<f64> = servers.iter().map(questions).collect();
    for name in NAMES {
        let [coredns, subject] = ADDRESSES.map(|address| look_up(stub, name, address));
        assert_eq!(subject, coredns, "{libc}, {name}");
        let is_found = subject[0].parse::<IpAddr>().is_ok();
        assert_eq!(is_found, !name.starts_with("absent"), "{libc}, {name}: {subject:?}");
        // CoreDNS counts a query after it has answered it.
        let new = |at: usize| questions(&servers[at]) - before[at];
        eventually(&format!("{libc}: as many queries for {name}"), || async {
            (new(0) == new(1)).then_some(())
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stub_resolvers_find_what_they_find_through_coredns() {
    programs();
    stubs();
    if !network::is_own("corefile::cluster_stubs::stub_resolvers_find_what_they_find_through_coredns") {
        return;
    }
    let (plane, upstreams) = (ControlPlane::start(Options::default()), Upstreams::start().await);
    let client = plane.admin_client().await;
    plane.create_namespace("shop");
    let service =
        json!({ "kind": "Service", "metadata": { "name": "web" }, "spec": { "ports": [{ "port": 80 }] } });
    write(&client, "shop", service).await;
    let pod = json!({ "kind": "Pod", "metadata": { "name": "client" },
        "spec": { "containers": [{ "name": "c", "image": "i" }] },
        "status": { "phase": "Running", "podIP": "127.0.0.1", "podIPs": [{ "ip": "127.0.0.1" }] } });
    write(&client, "shop", pod).await;
    let mut counted = Vec::new();
    for autopath in ["", "autopath @kubernetes"] {
        let servers = start(&plane, &upstreams, autopath).await;
        let before = questions(&servers[1]);
        compare("glibc", &stubs().glibc, &servers).await;
        compare("musl", &stubs().musl, &servers).await;
        compare("Go", &stubs().go, &servers).await;
        counted.push(questions(&servers[1]) - before);
    }
    assert!(counted[1] < counted[0], "autopath saves queries: {counted:?}");
}
