//! How long clients get the old target, behind the caches of a cluster: NodeLocal DNSCache, CoreDNS, a sidecar.
//!
//! docs/limits.md has the tables that the first test prints:
//!
//!     LB_LINKER_STALE_ROUNDS=9 cargo test --locked --release --test e2e tiers -- --nocapture

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs};

use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::harness::cluster::Ingress;
use crate::harness::control_plane::ControlPlane;
use crate::harness::dns::{IN_CLIENT_TIMEOUT, answers, ask_within, data, query, short};
use crate::harness::linker::Linker;
use crate::harness::network;
use crate::harness::process::Process;
use crate::harness::programs::{programs, stubs};
use crate::harness::{EVENT_TIMEOUT, cluster_with_target, deploy, eventually};

const LB_LINKER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 53);
const CLOUD: Ipv4Addr = Ipv4Addr::new(127, 0, 1, 9);
const SIDECAR: Ipv4Addr = Ipv4Addr::LOCALHOST;
/// CoreDNS with a stub block, without and with `cache`.
const STUB: Ipv4Addr = Ipv4Addr::new(127, 0, 1, 1);
const CACHING_STUB: Ipv4Addr = Ipv4Addr::new(127, 0, 1, 2);
/// CoreDNS that answers for ExternalName Services, with `ttl 30` and `cache 30` as in kubeadm's Corefile, and with
/// `ttl 5` and `cache 5`.
const KUBEADM: Ipv4Addr = Ipv4Addr::new(127, 0, 1, 3);
const SHORT: Ipv4Addr = Ipv4Addr::new(127, 0, 1, 4);
/// As KUBEADM, but `cache` leaves out the cluster's names, as in newer Corefiles of kubeadm.
const NEW_KUBEADM: Ipv4Addr = Ipv4Addr::new(127, 0, 1, 5);
/// NodeLocal DNSCache before STUB and KUBEADM, and before CACHING_STUB and SHORT.
const NODE_LOCAL: Ipv4Addr = Ipv4Addr::new(169, 254, 20, 10);
const NODE_LOCAL_CACHING: Ipv4Addr = Ipv4Addr::new(169, 254, 20, 11);

const ZONE: &str = "$ORIGIN example.com.
@    60 IN SOA ns.example.com. root.example.com. 1 7200 1800 86400 60
@    60 IN NS ns.example.com.
old  60 IN A 192.0.2.1
new  60 IN A 192.0.2.2
";

/// The TTL of lb-linker's records.
const TTL: Duration = Duration::from_secs(5);
/// The TTL of external targets in kubeadm's Corefile.
const LONG_TTL: Duration = Duration::from_secs(30);
/// How much later than the caches allow a client may see the new target, on a busy machine.
const SLACK: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(20);

/// The servers between the client and the target.
#[derive(Clone, Copy)]
struct ResolutionPath {
    name: &'static str,
    server: Ipv4Addr,
    /// Whether the client asks for the external target instead of the name in `lb.internal`.
    external_target: bool,
    /// The number of caches between the client and lb-linker.
    caches: u32,
    /// How long each cache keeps an answer.
    cache_ttl: Duration,
}

const fn zone_path(name: &'static str, server: Ipv4Addr, caches: u32) -> ResolutionPath {
    ResolutionPath { name, server, external_target: false, caches, cache_ttl: TTL }
}

const fn external_target_path(
    name: &'static str,
    server: Ipv4Addr,
    caches: u32,
    cache_ttl: Duration,
) -> ResolutionPath {
    ResolutionPath { name, server, external_target: true, caches, cache_ttl }
}

const OURS: [ResolutionPath; 5] = [
    zone_path("sidecar", SIDECAR, 0),
    zone_path("CoreDNS, stub block", STUB, 0),
    zone_path("CoreDNS, stub block with cache 30", CACHING_STUB, 1),
    zone_path("NodeLocal, CoreDNS", NODE_LOCAL, 1),
    zone_path("NodeLocal, CoreDNS with cache 30", NODE_LOCAL_CACHING, 2),
];
const STABLE_NAMES: [ResolutionPath; 5] = [
    external_target_path("external target, CoreDNS with ttl 30, cluster.local uncached", NEW_KUBEADM, 0, TTL),
    external_target_path("external target, CoreDNS with ttl 5, cache 5", SHORT, 1, TTL),
    external_target_path("external target, CoreDNS with ttl 30, cache 30", KUBEADM, 1, LONG_TTL),
    external_target_path(
        "external target, NodeLocal, CoreDNS with ttl 5, cache 5",
        NODE_LOCAL_CACHING,
        2,
        TTL,
    ),
    external_target_path(
        "external target, NodeLocal, CoreDNS with ttl 30, cache 30",
        NODE_LOCAL,
        2,
        LONG_TTL,
    ),
];

fn dns(server: Ipv4Addr) -> SocketAddr {
    (server, 53).into()
}

/// The Corefile of NodeLocal DNSCache, as its manifest renders it, with a block for `lb.internal`.
fn node_local(address: Ipv4Addr, stub: Ipv4Addr, cluster: Ipv4Addr) -> String {
    let block = |zone: &str, cache: &str, upstream: Ipv4Addr| {
        format!(
            "{zone}:53 {{\n    errors\n    {cache}\n    reload\n    bind {address}\n    forward . {upstream} {{\n        \
             force_tcp\n    }}\n}}\n"
        )
    };
    let times = "cache {\n        success 9984 30\n        denial 9984 5\n    }";
    block("lb.internal", "cache 30", stub) + &block("cluster.local", times, cluster)
}

/// The Corefile of the cluster's CoreDNS in all variants, and of the cloud's resolver.
fn core_dns(kubeconfig: &Path) -> String {
    let stub = |address: Ipv4Addr, more: &str| {
        format!("lb.internal:53 {{\n    bind {address}\n    errors\n    forward . {LB_LINKER}\n{more}}}\n")
    };
    let cluster = |address: Ipv4Addr, seconds: u32, cache: &str| {
        format!(
            ".:53 {{\n    bind {address}\n    errors\n    kubernetes cluster.local {{\n        kubeconfig {} test\n        \
             ttl {seconds}\n    }}\n    forward . {CLOUD}\n    cache {seconds} {cache}\n}}\n",
            kubeconfig.display()
        )
    };
    let cloud = format!("example.com:53 {{\n    bind {CLOUD}\n    file db example.com\n}}\n");
    stub(STUB, "")
        + &stub(CACHING_STUB, "    cache 30\n")
        + &cluster(KUBEADM, 30, "")
        + &cluster(SHORT, 5, "")
        + &cluster(NEW_KUBEADM, 30, "{\n disable success cluster.local\n disable denial cluster.local\n }")
        + &cloud
}

fn start_core_dns(directory: &Path, corefile: &str) -> Process {
    fs::create_dir(directory).unwrap();
    fs::write(directory.join("Corefile"), corefile).unwrap();
    fs::write(directory.join("db"), ZONE).unwrap();
    let mut command = Command::new(&programs().coredns);
    command.current_dir(directory).stdout(Stdio::null()).stderr(Stdio::null());
    Process::spawn(command).unwrap()
}

async fn wait_for_port(server: Ipv4Addr) {
    eventually(&format!("a server on {server}"), || async { TcpStream::connect(dns(server)).await.ok() })
        .await;
}

/// Asks until the server answers with this address, and returns the time of that answer. Panics after `limit`.
async fn first_answer(server: Ipv4Addr, question: String, address: &str, limit: Duration) -> Instant {
    let deadline = Instant::now() + limit;
    loop {
        let answer = short(dns(server), &question).await;
        if answer.ends_with(address) {
            return Instant::now();
        }
        assert!(Instant::now() < deadline, "{server} answers {question} with {answer}");
        sleep(POLL).await;
    }
}

/// Returns a number from 0 to 1. The results for consecutive arguments are spread evenly (golden ratio).
fn golden_ratio_sequence(number: usize) -> f64 {
    (f64::from(u32::try_from(number).unwrap()) * 0.618_034).fract()
}

fn glibc(name: &str) -> String {
    let output = Command::new(&stubs().glibc).args(["ipv4", name]).stdin(Stdio::null()).output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[tokio::test]
async fn clients_see_a_new_target_through_each_cache() {
    // Built before the test enters its network namespace, where nothing can be downloaded.
    programs();
    stubs();
    if !network::is_own("tiers::clients_see_a_new_target_through_each_cache") {
        return;
    }
    for address in [NODE_LOCAL, NODE_LOCAL_CACHING] {
        network::add_loopback_address(address).unwrap();
    }
    let rounds: Option<usize> = env::var("LB_LINKER_STALE_ROUNDS").ok().map(|rounds| rounds.parse().unwrap());
    // The caches of 30 s are only measured with LB_LINKER_STALE_ROUNDS: each round then takes more than a minute.
    let paths = if rounds.is_some() { [&OURS[..], &STABLE_NAMES].concat() } else { OURS.to_vec() };

    let (plane, cluster, target) = cluster_with_target().await;
    let namespace = cluster.create_namespace("tiers").await;
    cluster.create_load_balancer(&namespace, "web").await;
    cluster.set_ingress(&namespace, "web", &[Ingress::Hostname("old.example.com")]).await;
    let directory = tempfile::tempdir().unwrap();
    let _coredns = start_core_dns(&directory.path().join("coredns"), &core_dns(&plane.admin_kubeconfig()));
    let _node_locals = [(NODE_LOCAL, STUB, KUBEADM), (NODE_LOCAL_CACHING, CACHING_STUB, SHORT)].map(
        |(address, stub, cluster)| {
            let directory = directory.path().join(address.to_string());
            start_core_dns(&directory, &node_local(address, stub, cluster))
        },
    );
    let linker = start_linker(plane, &target);
    linker.ready().await;
    let sidecar = start_sidecar(directory.path());
    sidecar.ready().await;
    for server in [CLOUD, STUB, CACHING_STUB, KUBEADM, SHORT, NEW_KUBEADM, NODE_LOCAL, NODE_LOCAL_CACHING] {
        wait_for_port(server).await;
    }
    let name = format!("web-{namespace}.lb.internal.");
    let external = format!("web-{namespace}-ext.{target}.svc.cluster.local.");
    let question =
        |path: &ResolutionPath| format!("{} A", if path.external_target { &external } else { &name });

    let mut windows = vec![Vec::new(); paths.len()];
    let mut targets = ["old", "new"].into_iter().zip(["192.0.2.1", "192.0.2.2"]).cycle();
    let mut current = targets.next().unwrap();
    for round in 0..rounds.unwrap_or(1) {
        // Fill all caches with the current target.
        for path in &paths {
            first_answer(path.server, question(path), current.1, EVENT_TIMEOUT).await;
        }
        current = targets.next().unwrap();
        let mut waiting = JoinSet::new();
        for (index, path) in paths.iter().enumerate() {
            let (server, question) = (path.server, question(path));
            let delay = path.cache_ttl.mul_f64(golden_ratio_sequence(3 * round + index));
            waiting.spawn(async move {
                if rounds.is_some() {
                    sleep(delay).await;
                }
                (index, first_answer(server, question, current.1, EVENT_TIMEOUT + LONG_TTL * 5).await)
            });
        }
        if rounds.is_some() {
            // During this pause the waiting clients fill each cache several times.
            sleep(LONG_TTL * 2 + LONG_TTL.mul_f64(golden_ratio_sequence(round))).await;
        }
        let host = format!("{}.example.com", current.0);
        cluster.set_ingress(&namespace, "web", &[Ingress::Hostname(&host)]).await;
        first_answer(LB_LINKER, format!("{name} A"), current.1, EVENT_TIMEOUT).await;
        let begin = Instant::now();
        // On a path without caches, the next look-up finds the new target. The first query may join an earlier look-up.
        for path in paths.iter().filter(|path| path.caches == 0 && !path.external_target) {
            let question = query(&question(path));
            ask_within(IN_CLIENT_TIMEOUT, dns(path.server), &question).await;
            let answer = data(&ask_within(IN_CLIENT_TIMEOUT, dns(path.server), &question).await);
            assert!(answer.ends_with(current.1), "{}: {answer}", path.name);
        }
        while let Some(measured) = waiting.join_next().await {
            let (index, time) = measured.unwrap();
            windows[index].push(time - begin);
        }
        for server in [NODE_LOCAL, SIDECAR] {
            fs::write("/etc/resolv.conf", format!("nameserver {server}\n")).unwrap();
            assert_eq!(glibc(&name), current.1, "by {server}");
        }
    }
    println!("{:60} {:>8} {:>8}", "path", "median", "longest");
    for (path, windows) in paths.iter().zip(&mut windows) {
        windows.sort_unstable();
        let (median, longest) = (windows[windows.len() / 2], windows[windows.len() - 1]);
        println!("{:60} {:>6.2} s {:>6.2} s", path.name, median.as_secs_f64(), longest.as_secs_f64());
        if !path.external_target {
            assert!(longest < TTL * path.caches + SLACK, "{}: {longest:?}", path.name);
        }
    }
}

/// Also prints what sidecars cost, for docs/sidecar.md: `LB_LINKER_SIDECARS=20 LB_LINKER_QUESTIONS=2000`.
#[tokio::test]
async fn sidecar_sends_one_query_for_each_question() {
    programs();
    if !network::is_own("tiers::sidecar_sends_one_query_for_each_question") {
        return;
    }
    let number = |name: &str, default: u8| -> u32 {
        env::var(name).map_or(default.into(), |number| number.parse().unwrap())
    };
    let (sidecars, questions) = (number("LB_LINKER_SIDECARS", 3), number("LB_LINKER_QUESTIONS", 20));
    let directory = tempfile::tempdir().unwrap();
    let cloud = format!("example.com:53 {{\n    bind {CLOUD}\n    file db example.com\n}}\n");
    let _cloud = start_core_dns(&directory.path().join("cloud"), &cloud);
    wait_for_port(CLOUD).await;
    let manifest = "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {type: LoadBalancer}\n\
                    status: {loadBalancer: {ingress: [{hostname: old.example.com}]}}\n";
    let manifests = directory.path().join("manifests");
    fs::create_dir(&manifests).unwrap();
    fs::write(manifests.join("web.yaml"), manifest).unwrap();
    let (listen, upstream) = (dns(LB_LINKER).to_string(), CLOUD.to_string());
    let manifests = manifests.to_str().unwrap();
    let central = Linker::start(["--manifests", manifests, "--listen", &listen, "--upstream", &upstream]);
    central.ready().await;
    let mut running = Vec::new();
    for sidecar in 1..=sidecars {
        let address = Ipv4Addr::from_bits(Ipv4Addr::new(127, 0, 2, 0).to_bits() + sidecar);
        let directory = directory.path().join(address.to_string());
        fs::create_dir(&directory).unwrap();
        running.push((address, start_sidecar_on(&directory, address)));
    }
    let asked = || {
        let labels = format!(
            "family=\"1\",proto=\"udp\",server=\"dns://{LB_LINKER}:53\",type=\"A\",view=\"\",zone=\"lb.internal.\""
        );
        central.metric(&format!("coredns_dns_requests_total{{{labels}}}")).unwrap_or_default()
    };
    // The central lb-linker looks up the target for the first client.
    answers(dns(LB_LINKER), "web-default.lb.internal. A", "old.example.com. 192.0.2.1").await;
    let total = f64::from(sidecars * questions);
    let mut attempts = 0;
    let cost = loop {
        let (cpu, before) = (processor_time(central.id()), asked());
        for _ in 0..questions {
            for (address, _) in &running {
                answers(dns(*address), "web-default.lb.internal. A", "old.example.com. 192.0.2.1").await;
                answers(dns(*address), "new.example.com. A", "192.0.2.2").await;
            }
        }
        let number = asked() - before;
        attempts += 1;
        assert!(number >= total && attempts <= 5, "{number} queries for {total} questions");
        // On a busy machine a sidecar repeats a datagram after half a second.
        if number == total {
            break processor_time(central.id()) - cpu;
        }
    };
    println!(
        "central Service: {total} queries, {:.1} us of processor time each, {} KiB resident",
        1e6 * cost / total,
        central.memory("VmRSS")
    );
    let mut memory: Vec<usize> = running.iter().map(|(_, sidecar)| sidecar.memory("VmRSS")).collect();
    memory.sort_unstable();
    println!("{sidecars} sidecars: {} to {} KiB resident", memory[0], memory[memory.len() - 1]);
}

/// Returns the processor time of a process in seconds (`utime` and `stime` of proc(5)).
fn processor_time(process: u32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
    let ticks: f64 = fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap();
    ticks / 100.0
}

fn start_linker(plane: &ControlPlane, target: &str) -> Linker {
    let (listen, upstream) = (dns(LB_LINKER).to_string(), CLOUD.to_string());
    Linker::in_cluster(plane, target, &["--listen", &listen, "--upstream", &upstream])
}

fn start_sidecar(directory: &Path) -> Linker {
    start_sidecar_on(directory, SIDECAR)
}

/// Starts a sidecar with the Corefile of `deploy/sidecar/`, on this address.
fn start_sidecar_on(directory: &Path, address: Ipv4Addr) -> Linker {
    let corefile = fs::read_to_string(deploy().join("sidecar/component/Corefile")).unwrap();
    // The harness needs the port of /health, and several sidecars share the network.
    let corefile = corefile
        .replace("bind 127.0.0.1", &format!("bind {address}"))
        .replace("ready :18181", &format!("ready {address}:18181\n    health {address}:18080"))
        .replace("prometheus :19153", &format!("prometheus {address}:19153"));
    let path = directory.join("Corefile");
    fs::write(&path, corefile).unwrap();
    let addresses = [LB_LINKER, CLOUD].map(|address| IpAddr::from(address).to_string());
    let variables = [("LB_LINKER_SERVICE", addresses[0].as_str()), ("CLUSTER_DNS", addresses[1].as_str())];
    Linker::start_bare(&variables, ["--corefile", path.to_str().unwrap()])
}
