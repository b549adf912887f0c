//! Networks with only IPv4 or only IPv6, an interface that goes away, and replicas behind a Service's address.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures::StreamExt;
use hickory_proto::op::Message;
use tempfile::TempDir;
use tokio::net::UdpSocket;
use tokio::time::{sleep, timeout};

use super::{Relay, TARGET, kubeconfig, resolver, resolves_by};
use crate::answers::manifests;
use crate::harness::cluster::Ingress;
use crate::harness::control_plane::{ControlPlane, Options};
use crate::harness::dns::{CoreDns, answers, query, short};
use crate::harness::linker::Linker;
use crate::harness::network::is_own_with_users;
use crate::harness::programs::programs;
use crate::harness::scale::scaled;
use crate::harness::{apply_deploy, eventually};
use crate::recreation::wait_for_external_target;

fn run(program: &str, args: &str) {
    let output = Command::new(program).args(args.split(' ')).output();
    let output = output.unwrap_or_else(|error| panic!("{program}, see CONTRIBUTING.md: {error}"));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {args}: {error}");
}

/// Returns manifests of the link `web`, with this target.
fn one_link(host: &str) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    let text = manifests(&[("web", &format!("{{hostname: {host}}}"))]);
    std::fs::write(directory.path().join("services.yaml"), text).unwrap();
    directory
}

const WEB: &str = "web-default.lb.internal. CNAME";

/// Asserts that the log has no warnings, except about the limit of open files and about an unreachable upstream.
fn assert_no_warnings(linker: &Linker, upstream: &str) {
    let is_alarming = |line: &&String| {
        (line.contains(" WARN ") || line.contains(" ERROR ") || line.starts_with('['))
            && !line.contains("the process may open")
            && !line.contains(&format!("upstream {upstream}"))
            // On a busy machine the self-check is slow.
            && !line.contains("self-check of /health")
    };
    let log = linker.log();
    let alarming: Vec<_> = log.iter().filter(is_alarming).collect();
    assert!(alarming.is_empty(), "{alarming:#?}");
}

/// Starts lb-linker with its default listeners and two upstreams, only one of which has a route.
async fn in_one_family(reachable: SocketAddr, unreachable: &str) {
    let _resolver = resolver(reachable, 9);
    let directory = one_link("a.example.com");
    let upstreams = format!("{unreachable},{reachable}");
    let admin =
        SocketAddr::new(if reachable.is_ipv6() { reachable.ip() } else { Ipv4Addr::LOCALHOST.into() }, 0);
    let args = ["--manifests", directory.path().to_str().unwrap(), "--upstream", &upstreams];
    let linker =
        Linker::start_on_default_ports([&args[..], &["--admin-listen", &admin.to_string()]].concat());
    linker.ready().await;
    let dns = SocketAddr::new(reachable.ip(), 53);
    answers(dns, WEB, "a.example.com.").await;
    for _ in 0..5 {
        resolves_by(dns, 9).await;
    }
    assert_eq!((linker.get_health().0, linker.get_ready().0), (200, 200));
    assert!(linker.metrics().contains("lb_linker_links{"));
    assert_no_warnings(&linker, unreachable);
}

#[tokio::test]
async fn default_listeners_work_with_ipv4_only() {
    if !is_own_with_users("environment::network::default_listeners_work_with_ipv4_only") {
        return;
    }
    for interface in ["all", "default", "lo"] {
        std::fs::write(format!("/proc/sys/net/ipv6/conf/{interface}/disable_ipv6"), "1").unwrap();
    }
    assert!(std::net::UdpSocket::bind("[::1]:0").is_err());
    in_one_family("127.0.0.2:5353".parse().unwrap(), "[fd09::9]:53").await;
}

#[tokio::test]
async fn default_listeners_work_with_ipv6_only() {
    if !is_own_with_users("environment::network::default_listeners_work_with_ipv6_only") {
        return;
    }
    run("ip", "addr del 127.0.0.1/8 dev lo");
    in_one_family("[::1]:5353".parse().unwrap(), "10.9.0.9:53").await;
}

/// Adds an interface with two addresses: `own` for lb-linker, and 10.9.0.2 for the upstream and the API server.
fn add_interface(own: &str) {
    run("ip", "link add near type veth peer name far");
    run("ip", "link set far up");
    run("ip", "link set near up");
    for address in [own, "10.9.0.2"] {
        run("ip", &format!("addr add {address}/24 dev near"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn returning_interface_is_used_without_a_restart() {
    programs();
    if !is_own_with_users("environment::network::returning_interface_is_used_without_a_restart") {
        return;
    }
    add_interface("10.9.0.1");
    let plane = ControlPlane::start(Options::default());
    apply_deploy(&plane);
    let cluster = plane.cluster().await;
    cluster.create_load_balancer("default", "web").await;
    cluster.set_ingress("default", "web", &[Ingress::Hostname("a.example.com")]).await;
    let upstream = SocketAddr::from((Ipv4Addr::new(10, 9, 0, 2), 5353));
    let _resolver = resolver(upstream, 9);
    // The API server's certificate is for 127.0.0.1, so the relay's address isn't checked against it.
    let relay = Relay::start("10.9.0.2:0".parse().unwrap(), plane.address()).await;
    let token = plane.token_for_service_account("lb-linker", "lb-linker", None);
    let files = [("token", token), ("ca.crt", plane.certificate_authority())];
    let mounted = super::MountedVolume::new(&files);
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("config");
    let text = kubeconfig(relay.address, &mounted).replace(
        "\"certificate-authority\"",
        "\"tls-server-name\": \"127.0.0.1\", \"certificate-authority\"",
    );
    std::fs::write(&config, text).unwrap();
    let args =
        ["--kubeconfig", config.to_str().unwrap(), "--upstream", &upstream.to_string(), "--sync", "on"];
    let linker = Linker::start([&args[..], &["--listen", "[::]:5300", "--listen", "10.9.0.1:5301"]].concat());
    linker.ready().await;
    let dns = |ip: [u8; 4], port: u16| SocketAddr::from((Ipv4Addr::from(ip), port));
    answers(dns([10, 9, 0, 1], 5300), WEB, "a.example.com.").await;
    answers(dns([10, 9, 0, 1], 5301), WEB, "a.example.com.").await;
    resolves_by(linker.dns, 9).await;

    for (round, own) in ["10.9.0.1", "10.9.0.77", "10.9.0.1"].into_iter().enumerate() {
        run("ip", "link del near");
        let host = format!("g{round}.example.com");
        cluster.set_ingress("default", "web", &[Ingress::Hostname(&host)]).await;
        let end = Instant::now() + scaled(Duration::from_secs(20), Duration::from_secs(2));
        while Instant::now() < end {
            // Links are still answered on the loopback interface.
            assert_ne!(short(linker.dns, WEB).await, "Server Failure");
            sleep(Duration::from_millis(100)).await;
        }
        add_interface(own);
        let begun = Instant::now();
        let at = dns(own.parse::<Ipv4Addr>().unwrap().octets(), 5300);
        // Answers leave from the new address.
        short(at, WEB).await;
        let listens = begun.elapsed();
        resolves_by(at, 9).await;
        let resolved = begun.elapsed();
        if own != "10.9.0.1" && scaled(false, true) {
            println!(
                "chaos: interface back as {own}: answers after {listens:.1?}, upstream after {resolved:.1?}"
            );
            // Connections from the former address end only after a minute, which is too long for the short form.
            break;
        }
        answers(at, WEB, &format!("{host}.")).await;
        let followed = begun.elapsed();
        wait_for_external_target(&cluster, TARGET, "web-default-ext", &host).await;
        println!(
            "chaos: interface back as {own}: answers after {listens:.1?}, upstream after {resolved:.1?}, API server's \
             change answered after {followed:.1?}, written after {:.1?}",
            begun.elapsed()
        );
        if own == "10.9.0.1" {
            answers(dns([10, 9, 0, 1], 5301), WEB, &format!("{host}.")).await;
        }
    }
    linker.ready().await;
}

/// The address of the Service, and of its two endpoints.
const SERVICE: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 10);
const ENDPOINTS: [&str; 2] = ["10.244.1.1", "10.244.2.1"];

fn nft(script: &str) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("rules");
    std::fs::write(&file, script).unwrap();
    run("nft", &format!("-f {}", file.display()));
}

/// Sends the Service's packets to these endpoints at random, as kube-proxy does. Flows that conntrack knows keep their
/// endpoint.
fn set_endpoints(endpoints: &[&str]) {
    let map: Vec<String> = endpoints.iter().enumerate().map(|(i, ip)| format!("{i} : {ip}")).collect();
    nft(&format!(
        "table ip kube {{}}\ndelete table ip kube\ntable ip kube {{\n chain output {{\n  type nat hook output priority \
         -100;\n  ip daddr {SERVICE} meta l4proto {{ tcp, udp }} dnat to numgen random mod {} map {{ {} }}\n }}\n}}\n",
        endpoints.len(),
        map.join(", ")
    ));
}

/// Drops all packets to an endpoint, as after the death of its node. With `None`, no packets are dropped.
fn set_silent(endpoint: Option<&str>) {
    let rule = endpoint.map(|ip| format!("ip daddr {ip} drop")).unwrap_or_default();
    nft(&format!(
        "table ip dead {{}}\ndelete table ip dead\ntable ip dead {{\n chain input {{\n  type filter hook input priority \
         0;\n  {rule}\n }}\n}}\n"
    ));
}

/// Deletes the flows to an endpoint, as kube-proxy does for UDP when an endpoint is removed.
fn forget_flows(endpoint: &str) {
    let args = ["-D", "-p", "udp", "--orig-dst", &SERVICE.to_string(), "--reply-src", endpoint];
    let output = Command::new("conntrack").args(args).output().expect("conntrack, see CONTRIBUTING.md");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(error.contains("flow entries have been deleted"), "{error}");
}

fn replica(endpoint: &str, manifests: &Path) -> Linker {
    let listen = format!("{endpoint}:53");
    let args = ["--manifests", manifests.to_str().unwrap(), "--upstream", "none", "--listen", &listen];
    Linker::start(args)
}

/// Results of queries at a steady rate. Answers after more than a second are late.
#[derive(Debug, Default)]
struct QueryStats {
    asked: usize,
    failed: usize,
    late: usize,
    slowest: Duration,
}

/// Asks `server` 100 times a second, each time from another port, until `stop` is set. A query without a correct answer
/// within 5 s has failed.
async fn ask_steadily(server: SocketAddr, stop: &AtomicBool) -> QueryStats {
    let asked = query(WEB).to_vec().unwrap();
    let ask = || async {
        let begun = Instant::now();
        let answer = crate::harness::dns::send_udp(server, &asked, Duration::from_secs(5)).await;
        let answer = answer.and_then(|bytes| Message::from_vec(&bytes).ok());
        (answer.is_some_and(|answer| !answer.answers.is_empty()), begun.elapsed())
    };
    let ticks =
        futures::stream::unfold(tokio::time::interval(Duration::from_millis(10)), |mut tick| async move {
            if stop.load(Ordering::Relaxed) {
                return None;
            }
            tick.tick().await;
            Some(((), tick))
        });
    let results = ticks.map(|()| ask()).buffer_unordered(1000);
    results
        .fold(QueryStats::default(), |sum, (good, time)| async move {
            QueryStats {
                asked: sum.asked + 1,
                failed: sum.failed + usize::from(!good),
                late: sum.late + usize::from(good && time > Duration::from_secs(1)),
                slowest: sum.slowest.max(time),
            }
        })
        .await
}

async fn asked_for(server: SocketAddr, duration: Duration) -> QueryStats {
    let stop = Arc::new(AtomicBool::new(false));
    let (outcome, ()) = tokio::join!(ask_steadily(server, &stop), async {
        sleep(duration).await;
        stop.store(true, Ordering::Relaxed);
    });
    outcome
}

/// Asks once from a socket with a fixed port. Returns the answer's target, or `None` if there is no answer within 1 s.
async fn ask_pinned(socket: &UdpSocket) -> Option<String> {
    let asked = query(WEB);
    socket.send(&asked.to_vec().unwrap()).await.ok()?;
    let mut bytes = [0; 4096];
    let receive = async {
        loop {
            let length = socket.recv(&mut bytes).await.ok()?;
            let answer = Message::from_vec(&bytes[..length]).ok()?;
            // An earlier query may be answered late.
            if answer.metadata.id == asked.metadata.id {
                return Some(answer.answers.first()?.data.to_string());
            }
        }
    };
    timeout(Duration::from_secs(1), receive).await.ok()?
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_replica_behind_a_service_loses_few_answers() {
    programs();
    if !is_own_with_users("environment::network::dead_replica_behind_a_service_loses_few_answers") {
        return;
    }
    for address in [&*SERVICE.to_string(), ENDPOINTS[0], ENDPOINTS[1]] {
        run("ip", &format!("addr add {address}/32 dev lo"));
    }
    let links = ["a.example.com", "b.example.com"].map(one_link);
    let mut first = replica(ENDPOINTS[0], links[0].path());
    let second = replica(ENDPOINTS[1], links[1].path());
    for linker in [&first, &second] {
        linker.ready().await;
    }
    let service = SocketAddr::from((SERVICE, 53));
    let dead_for = scaled(Duration::from_secs(5), Duration::from_secs(2));
    let both = format!("{}:53 {}:53", ENDPOINTS[0], ENDPOINTS[1]);
    let service_text = service.to_string();
    let settings = [
        ("service", &*service_text, ""),
        ("service, force_tcp", &service_text, "force_tcp"),
        ("service, expire 1s", &service_text, "expire 1s"),
        ("both endpoints", &both, ""),
    ];
    let rows = scaled(&settings[..], &settings[..1]);
    for is_silent in scaled(&[false, true][..], &[true][..]) {
        for (name, to, option) in rows {
            set_silent(None);
            set_endpoints(&ENDPOINTS);
            let coredns = CoreDns::start(&format!("forward . {to} {{\n{option}\n}}"), "").await;
            let before = asked_for(coredns.address, Duration::from_secs(1)).await;
            if *is_silent {
                set_silent(Some(ENDPOINTS[0]));
            } else {
                first.kill();
            }
            let dead = asked_for(coredns.address, dead_for).await;
            set_endpoints(&ENDPOINTS[1..]);
            let removed = asked_for(coredns.address, dead_for).await;
            forget_flows(ENDPOINTS[0]);
            // CoreDNS checks an unhealthy upstream twice a second.
            sleep(Duration::from_secs(1)).await;
            let forgotten = asked_for(coredns.address, dead_for).await;
            println!(
                "chaos: dead replica ({}), CoreDNS forwards to {name}: before {before:?}, endpoint in the map {dead:?}, \
                 removed {removed:?}, flows deleted {forgotten:?}",
                if *is_silent { "silent" } else { "refuses" }
            );
            assert_eq!((before.failed, forgotten.failed), (0, 0));
            if !*is_silent {
                first = replica(ENDPOINTS[0], links[0].path());
                first.ready().await;
            }
        }
    }

    // A client that keeps its port: its flow stays with the dead endpoint as long as it sends.
    set_silent(None);
    set_endpoints(&ENDPOINTS[..1]);
    let socket = UdpSocket::bind((SERVICE, 0)).await.unwrap();
    socket.connect(service).await.unwrap();
    let look = || async { (ask_pinned(&socket).await.as_deref() == Some("a.example.com.")).then_some(()) };
    eventually("an answer of the first endpoint", look).await;
    set_silent(Some(ENDPOINTS[0]));
    set_endpoints(&ENDPOINTS[1..]);
    let begun = Instant::now();
    let pinned_for = scaled(Duration::from_secs(40), Duration::from_secs(3));
    while begun.elapsed() < pinned_for {
        assert_eq!(ask_pinned(&socket).await, None, "the flow stays with the dead endpoint");
    }
    forget_flows(ENDPOINTS[0]);
    let look = || async { (ask_pinned(&socket).await.as_deref() == Some("b.example.com.")).then_some(()) };
    eventually("an answer of the other endpoint", look).await;
    println!(
        "chaos: a flow that sends each second stayed with the dead endpoint for {pinned_for:.0?}, until it was deleted"
    );
}
