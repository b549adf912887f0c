//! Overload: too many queries, too many changes, too few files, too little memory. Answers for the zone fail last, and
//! lb-linker recovers without a restart.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures::StreamExt;
use hickory_proto::op::{Message, ResponseCode};
use kube::api::{Api, PostParams};
use lb_linker::api::stable_name::StableName;
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpSocket, TcpStream, UdpSocket};
use tokio::time::{interval, sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

use crate::answers::manifests;
use crate::failover::Shop;
use crate::harness::cluster::{Cluster, Ingress};
use crate::harness::dns::{FaultyUpstream, answers, ask_tcp, query, send_udp};
use crate::harness::linker::Linker;
use crate::harness::proxy::{ApiFault, FaultyApi};
use crate::harness::scale::scaled;
use crate::harness::{cluster_with_target, eventually};
use crate::recreation::wait_for_external_target;

/// Names in this zone are never answered by [`partial_upstream`].
const SILENT: &str = "silent.example.";
/// Time after which a stub resolver repeats a query.
const RETRY: Duration = Duration::from_secs(2);

/// Starts an upstream that knows `*.example.com`, and answers nothing else.
async fn partial_upstream() -> FaultyUpstream {
    FaultyUpstream::start(|asked, _| {
        let name = asked.queries[0].name().to_ascii();
        if name.ends_with("example.com.") { vec![crate::harness::dns::address(asked, 9, 60)] } else { vec![] }
    })
    .await
}

/// Queries names of the zone one after the other, as a stub resolver does, until it is dropped.
struct ZoneClient {
    /// The numbers of answers, and of queries that had to be repeated.
    answered: Arc<AtomicUsize>,
    repeated: Arc<AtomicUsize>,
    task: AbortOnDropHandle<()>,
}

impl ZoneClient {
    fn start(server: SocketAddr, names: Vec<String>, expected: ResponseCode) -> Self {
        let [answered, repeated] = [(); 2].map(|()| Arc::<AtomicUsize>::default());
        let counters = [Arc::clone(&answered), Arc::clone(&repeated)];
        let task = tokio::spawn(async move {
            for name in names.iter().cycle() {
                let asked = query(&format!("{name} CNAME")).to_vec().unwrap();
                let mut tries = 0;
                let answer = loop {
                    if let Some(answer) = send_udp(server, &asked, RETRY).await {
                        break answer;
                    }
                    tries += 1;
                    counters[1].fetch_add(1, Ordering::Relaxed);
                    assert!(tries < scaled(5, 20), "{name}: {tries} queries without an answer");
                };
                let answer = Message::from_vec(&answer).unwrap();
                assert_eq!(answer.metadata.response_code, expected, "{name}");
                counters[0].fetch_add(1, Ordering::Relaxed);
                sleep(Duration::from_millis(5)).await;
            }
        });
        Self { answered, repeated, task: AbortOnDropHandle::new(task) }
    }

    fn counts(&self) -> (usize, usize) {
        // The task ends only by a failed assertion.
        assert!(!self.task.is_finished(), "the zone isn't answered");
        (self.answered.load(Ordering::Relaxed), self.repeated.load(Ordering::Relaxed))
    }

    async fn gets_answers(&self, number: usize) {
        let (before, _) = self.counts();
        let look = || async { (self.counts().0 >= before + number).then_some(()) };
        eventually(&format!("{number} more answers for the zone"), look).await;
    }
}

/// Sets the hostname of the load balancers `svc-0`, `svc-1`, …, and with `create` creates them first.
async fn set_all(cluster: &Cluster, namespace: &str, number: usize, host: &str, create: bool) {
    let change = async |i: usize| {
        let name = format!("svc-{i}");
        if create {
            cluster.create_load_balancer(namespace, &name).await;
        }
        cluster.set_ingress(namespace, &name, &[Ingress::Hostname(host)]).await;
    };
    futures::stream::iter(0..number).for_each_concurrent(8, change).await;
}

/// Returns how many external targets of a namespace have this hostname.
async fn written(cluster: &Cluster, target: &str, host: &str) -> usize {
    let services = cluster.services(target).list(&Default::default()).await.unwrap();
    let is_it = |name: Option<&String>| name.is_some_and(|name| name == host);
    let specs = services.items.iter().filter_map(|service| service.spec.as_ref());
    specs.filter(|spec| is_it(spec.external_name.as_ref())).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn overloaded_api_server_delays_writes_and_no_answer() {
    let links = scaled(200, 40);
    let (plane, cluster, target) = cluster_with_target().await;
    let namespace = cluster.create_namespace("throttled").await;
    set_all(&cluster, &namespace, links, "one.example.com", true).await;
    let (is_overloaded, requests) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let injector = {
        let (is_overloaded, requests) = (Arc::clone(&is_overloaded), Arc::clone(&requests));
        move |line: &str| {
            // The overload doesn't affect watches.
            if !is_overloaded.load(Ordering::Relaxed) || line.contains("watch=true") {
                return ApiFault::Pass;
            }
            match requests.fetch_add(1, Ordering::Relaxed) % 9 {
                0..4 => ApiFault::Throttle(Some(1)),
                4..6 => ApiFault::Throttle(None),
                6 => ApiFault::Answer(500, "InternalError"),
                7 => ApiFault::Answer(503, "ServiceUnavailable"),
                _ => ApiFault::Late(Duration::from_secs(5)),
            }
        }
    };
    let api = FaultyApi::start(plane, Arc::new(injector)).await;
    let args = ["--kubeconfig", api.kubeconfig(), "--watch-namespaces", &namespace, "--upstream", "none"];
    let more = ["--target-namespace", &target, "--leader-election", "lease", "--identity", "a"];
    let linker = Linker::start([&args[..], &more].concat());
    linker.ready().await;
    let all_written = async |host: &str| {
        let look = || async { (written(&cluster, &target, host).await == links).then_some(()) };
        eventually(&format!("external targets with {host}"), look).await;
    };
    all_written("one.example.com").await;
    let lines = linker.log().len();

    is_overloaded.store(true, Ordering::Relaxed);
    let begun = Instant::now();
    set_all(&cluster, &namespace, links, "two.example.com", false).await;
    for i in 0..links {
        answers(linker.dns, &format!("svc-{i}-{namespace}.lb.internal. CNAME"), "two.example.com.").await;
    }
    let followed = begun.elapsed();
    let landed = written(&cluster, &target, "two.example.com").await;
    assert!(landed < links, "the writes wait");
    linker.line("answered 429").await;
    sleep(scaled(Duration::from_secs(60), Duration::from_secs(6)).saturating_sub(begun.elapsed())).await;
    let (tried, during) = (requests.load(Ordering::Relaxed), linker.log().len() - lines);
    is_overloaded.store(false, Ordering::Relaxed);
    let over = Instant::now();
    all_written("two.example.com").await;
    println!(
        "chaos: overloaded API server: {links} changes answered within {followed:.1?}, {tried} requests and {during} log \
         lines while it lasted, all written {:.1?} after its end",
        over.elapsed()
    );
    // At most five lines a minute about each kind of request and HTTP code, and as many about the end of the errors.
    let is_change = |line: &&String| line.contains(" INFO link ") || line.contains(" INFO external target ");
    let about_it = linker.log().iter().skip(lines).filter(|line| !is_change(line)).count();
    assert!(about_it <= scaled(80, 40), "{about_it}: {:#?}", linker.log());
    assert_eq!(linker.get_ready().0, 200);
}

/// Sets the limit of open files of a running process.
fn limit_files(linker: &Linker, files: usize) {
    let mut prlimit = Command::new("prlimit");
    prlimit.arg(format!("--pid={}", linker.id())).arg(format!("--nofile={files}:64"));
    assert!(prlimit.status().expect("there is prlimit, of util-linux").success());
}

fn open_files(linker: &Linker) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", linker.id())).unwrap().count()
}

async fn connect(last: u8, to: SocketAddr) -> Option<TcpStream> {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((Ipv4Addr::new(127, 0, 78, last), 0).into()).unwrap();
    timeout(RETRY, socket.connect(to)).await.ok()?.ok()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exhausted_files_stop_neither_zone_nor_watch() {
    let (plane, cluster, target) = cluster_with_target().await;
    let namespace = cluster.create_namespace("files").await;
    set_all(&cluster, &namespace, 3, "one.example.com", true).await;
    let upstream = partial_upstream().await;
    let kubeconfig = plane.kubeconfig_for_service_account("lb-linker", "lb-linker");
    let upstream_address = upstream.address.to_string();
    let args = ["--kubeconfig", kubeconfig.to_str().unwrap(), "--upstream", &upstream_address];
    let more = ["--watch-namespaces", &namespace, "--target-namespace", &target, "--sync", "on"];
    let linker = Linker::start_with_files(64, [&args[..], &more].concat());
    linker.ready().await;
    let object = format!("svc-0-{namespace}-ext");
    wait_for_external_target(&cluster, &target, &object, "one.example.com").await;
    let name = |i: usize| format!("svc-{i}-{namespace}.lb.internal.");
    let client = ZoneClient::start(linker.dns, (0..3).map(name).collect(), ResponseCode::NoError);

    // Half-sent queries by TCP, and look-ups that are never answered.
    let mut idle_connections = Vec::new();
    for i in 0..200 {
        let Some(mut stream) = connect(i % 20, linker.dns).await else { continue };
        drop(stream.write_all(&[0, 40, 1]).await);
        idle_connections.push(stream);
    }
    let lookups = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    lookups.connect(linker.dns).await.unwrap();
    for i in 0..200 {
        lookups.send(&query(&format!("n{i}.{SILENT} A")).to_vec().unwrap()).await.unwrap();
    }
    client.gets_answers(50).await;
    let most = open_files(&linker);
    assert_eq!(linker.get_health().0, 200);
    cluster.set_ingress(&namespace, "svc-0", &[Ingress::Hostname("two.example.com")]).await;
    answers(linker.dns, &format!("{} CNAME", name(0)), "two.example.com.").await;
    wait_for_external_target(&cluster, &target, &object, "two.example.com").await;

    // Now no file is left at all.
    limit_files(&linker, open_files(&linker).min(40));
    let _one_more = connect(77, linker.dns).await;
    client.gets_answers(50).await;
    cluster.set_ingress(&namespace, "svc-0", &[Ingress::Hostname("three.example.com")]).await;
    answers(linker.dns, &format!("{} CNAME", name(0)), "three.example.com.").await;
    // In the long form this is longer than a watch lasts, so that lb-linker needs a new watch.
    sleep(scaled(Duration::from_secs(90), Duration::from_secs(5))).await;
    client.gets_answers(50).await;
    let exhausted = linker.log().len();

    limit_files(&linker, 64);
    let begun = Instant::now();
    drop(idle_connections);
    let answer = eventually("an answer by TCP", || async {
        let stream = connect(1, linker.dns).await?;
        drop(stream);
        timeout(RETRY, ask_tcp(linker.dns, &query(&format!("{} CNAME", name(1))))).await.ok()
    })
    .await;
    assert_eq!(answer.metadata.response_code, ResponseCode::NoError);
    cluster.set_ingress(&namespace, "svc-0", &[Ingress::Hostname("four.example.com")]).await;
    answers(linker.dns, &format!("{} CNAME", name(0)), "four.example.com.").await;
    wait_for_external_target(&cluster, &target, &object, "four.example.com").await;
    answers(linker.dns, "new.example.com. A", "192.0.2.9").await;
    linker.ready().await;
    let (answered, repeated) = client.counts();
    println!(
        "chaos: 64 files: at most {most} open before none was left, {answered} zone answers, {repeated} queries repeated, \
         {exhausted} log lines, everything works again {:.1?} after the limit was raised",
        begun.elapsed()
    );
}

/// Sends queries without waiting for answers until it is dropped. Each client is a thread, because the runtime of the
/// test also runs the client that is measured.
struct Flood {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicUsize>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Flood {
    /// Starts clients with an address each; client `i` sends `name(i, number)` for increasing numbers, and pauses for
    /// 10 ms after each `burst` queries.
    fn start(
        clients: u8,
        burst: usize,
        server: SocketAddr,
        name: impl Fn(u8, usize) -> String + Send + Sync + 'static,
    ) -> Self {
        let (stop, sent, name) =
            (Arc::new(AtomicBool::new(false)), Arc::<AtomicUsize>::default(), Arc::new(name));
        let client = |i: u8| {
            let (stop, sent, name) = (Arc::clone(&stop), Arc::clone(&sent), Arc::clone(&name));
            std::thread::spawn(move || {
                let socket = std::net::UdpSocket::bind((Ipv4Addr::new(127, 0, 79, i), 0)).unwrap();
                socket.connect(server).unwrap();
                socket.set_nonblocking(true).unwrap();
                let mut answer = [0; 4096];
                for number in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let mut asked = query(&name(i, number));
                    asked.metadata.id = (number % 65536) as u16;
                    if socket.send(&asked.to_vec().unwrap()).is_ok() {
                        sent.fetch_add(1, Ordering::Relaxed);
                    }
                    while socket.recv(&mut answer).is_ok() {}
                    if number % burst == burst - 1 {
                        std::thread::sleep(Duration::from_millis(10));
                    }
                }
            })
        };
        let threads = (0..clients).map(client).collect();
        Self { stop, sent, threads }
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flood_of_lookups_is_shed_before_zone_answers() {
    let upstream = partial_upstream().await;
    let directory = tempfile::tempdir().unwrap();
    let links: Vec<(String, String)> =
        (0..50).map(|i| (format!("web{i}"), format!("{{hostname: t{i}.example.com}}"))).collect();
    let links: Vec<(&str, &str)> = links.iter().map(|(name, ingress)| (&**name, &**ingress)).collect();
    std::fs::write(directory.path().join("services.yaml"), manifests(&links)).unwrap();
    let upstream_address = upstream.address.to_string();
    let args = ["--manifests", directory.path().to_str().unwrap(), "--upstream", &upstream_address];
    let linker = Linker::start(args);
    linker.ready().await;
    let names = (0..50).map(|i| format!("web{i}-default.lb.internal.")).collect();
    let client = ZoneClient::start(linker.dns, names, ResponseCode::NoError);
    client.gets_answers(20).await;

    let (clients, burst) = scaled((8, 60), (3, 10));
    // Each client sends different names that no upstream answers, so that the look-ups exceed the clients' shares of
    // `max_concurrent`.
    let flood =
        Flood::start(clients, burst, linker.dns, |client, number| format!("n{number}.of{client}.{SILENT} A"));
    let begun = Instant::now();
    let (before, _) = client.counts();
    let duration = scaled(Duration::from_secs(60), Duration::from_secs(5));
    let mut tick = interval(Duration::from_millis(100));
    while begun.elapsed() < duration {
        tick.tick().await;
        client.counts();
    }
    client.gets_answers(20).await;
    let (answered, repeated) = client.counts();
    let sent = flood.sent.load(Ordering::Relaxed);
    let metrics = linker.metrics();
    let sum = |name: &str| -> f64 {
        let values = metrics.lines().filter(|line| line.starts_with(name));
        values.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum()
    };
    let refused = sum("lb_linker_dns_lookups_refused_total");
    let dropped = sum("lb_linker_dns_udp_dropped_total");
    assert!(refused > 0.0, "look-ups are refused");
    assert!(answered - before >= 20, "{answered} answers for the zone");
    let lines =
        linker.logged("look-ups refused since the last such line") + linker.logged("UDP: queries dropped");
    let minutes = usize::try_from(begun.elapsed().as_secs() / 60).unwrap();
    assert!(lines >= 1 && lines <= 4 * (minutes + 1), "{:#?}", linker.log());
    drop(flood);

    let over = Instant::now();
    answers(linker.dns, "new.example.com. A", "192.0.2.9").await;
    let recovered = over.elapsed();
    answers(linker.dns, "web1-default.lb.internal. A", "t1.example.com. 192.0.2.9").await;
    println!(
        "chaos: flood of look-ups: {:.0} queries/s, {refused} refused, {dropped} dropped; {} zone answers, {repeated} \
         queries repeated; look-ups again {recovered:.1?} after its end",
        sent as f64 / duration.as_secs_f64(),
        answered - before
    );
}

/// The limit of the cgroup in bytes: that of the Pod in `deploy/`.
const MEMORY_LIMIT: usize = 256 << 20;

/// A memory cgroup (v1, or v2 if v1 isn't mounted). It is removed on drop.
struct MemoryCgroup {
    path: std::path::PathBuf,
    is_v2: bool,
}

impl MemoryCgroup {
    /// Creates a cgroup with a limit in bytes. Returns `None` if this machine allows no new cgroup.
    fn create(limit: usize) -> Option<Self> {
        let name = format!("lb-linker-test-{}", std::process::id());
        for (parent, is_v2, file) in [
            ("/sys/fs/cgroup/memory", false, "memory.limit_in_bytes"),
            ("/sys/fs/cgroup", true, "memory.max"),
        ] {
            let path = std::path::Path::new(parent).join(&name);
            // A test process that was killed may have left a cgroup of this name.
            let _ = std::fs::remove_dir(&path);
            if std::fs::create_dir(&path).is_err() {
                continue;
            }
            // In an ordinary folder nothing is limited.
            let is_cgroup = path.join("cgroup.procs").exists();
            if is_cgroup && std::fs::write(path.join(file), limit.to_string()).is_ok() {
                return Some(Self { path, is_v2 });
            }
            let _ = std::fs::remove_dir(&path);
        }
        None
    }

    /// Returns the line with the number of processes that the kernel has killed for lack of memory, and the largest use
    /// in bytes.
    fn oom_kills_and_peak(&self) -> (String, String) {
        let read = |name: &str| std::fs::read_to_string(self.path.join(name)).unwrap_or_default();
        let line =
            |text: String| text.lines().find(|line| line.starts_with("oom_kill ")).unwrap_or("").to_owned();
        if self.is_v2 {
            (line(read("memory.events")), read("memory.peak"))
        } else {
            (line(read("memory.oom_control")), read("memory.max_usage_in_bytes").trim().to_owned())
        }
    }
}

impl Drop for MemoryCgroup {
    fn drop(&mut self) {
        // A killed process leaves its cgroup a moment later.
        for _ in 0..100 {
            if std::fs::remove_dir(&self.path).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn floods_stay_within_the_memory_limit_of_deploy() {
    // Without a cgroup the resident memory must stay within the same limit.
    let cgroup = MemoryCgroup::create(MEMORY_LIMIT);
    let upstream = FaultyUpstream::start(|asked, by_tcp| {
        let mut answer = crate::harness::dns::address(asked, 1, 3600);
        let name = asked.queries[0].name();
        if name.to_ascii().starts_with("large") {
            if !by_tcp {
                answer.answers.clear();
                answer.metadata.truncation = true;
                return vec![answer];
            }
            let record = answer.answers[0].clone();
            answer.answers = (0..1000u16)
                .map(|i| {
                    let [high, low] = i.to_be_bytes();
                    let mut record = record.clone();
                    record.data =
                        hickory_proto::rr::RData::A(hickory_proto::rr::rdata::A::new(10, 0, high, low));
                    record
                })
                .collect();
        }
        vec![answer]
    })
    .await;
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(
        directory.path().join("services.yaml"),
        manifests(&[("web", "{hostname: t.example.com}")]),
    )
    .unwrap();
    let upstream_address = upstream.address.to_string();
    let args = ["--manifests", directory.path().to_str().unwrap(), "--upstream", &upstream_address];
    let mut linker = match &cgroup {
        Some(cgroup) => Linker::start_in_cgroup(&cgroup.path, args),
        None => Linker::start(args),
    };
    linker.ready().await;
    let client =
        ZoneClient::start(linker.dns, vec!["web-default.lb.internal.".to_owned()], ResponseCode::NoError);
    client.gets_answers(10).await;
    let begun = Instant::now();
    let duration = scaled(Duration::from_secs(60), Duration::from_secs(6));
    // Clients that hold connections and half a query, or don't read large answers.
    let mut idle_connections = Vec::new();
    for i in 0..500usize {
        let Some(mut stream) = connect(u8::try_from(i % 50).unwrap(), linker.dns).await else { continue };
        drop(stream.write_all(&[0, 200, 1, 2, 3]).await);
        idle_connections.push(stream);
    }
    let flood = Flood::start(scaled(4, 2), 10, linker.dns, |client, number| {
        format!("n{number}.of{client}.example. A")
    });
    let mut number = 0;
    while begun.elapsed() < duration {
        let Some(mut stream) = connect(200, linker.dns).await else { continue };
        for _ in 0..20 {
            number += 1;
            let asked = query(&format!("large{number}.example. A")).to_vec().unwrap();
            let length = u16::try_from(asked.len()).unwrap();
            drop(stream.write_all(&[&length.to_be_bytes()[..], &asked].concat()).await);
        }
        if idle_connections.len() < 700 {
            idle_connections.push(stream);
        }
        sleep(Duration::from_millis(20)).await;
        client.counts();
    }
    client.gets_answers(10).await;
    let sent = flood.sent.load(Ordering::Relaxed);
    drop(flood);
    let most = linker.memory("VmHWM");
    let (answered, repeated) = client.counts();
    let entries = linker.metrics();
    let entries =
        entries.lines().filter(|line| line.starts_with("coredns_cache_entries")).collect::<Vec<_>>();
    println!(
        "chaos: 256 MiB of memory ({}): {sent} names and {number} large answers, at most {most} KiB resident, {answered} zone \
         answers, {repeated} queries repeated; {:?}; {entries:?}",
        cgroup.as_ref().map_or("no cgroup can be created", |cgroup| if cgroup.is_v2 { "v2" } else { "v1" }),
        cgroup.as_ref().map(MemoryCgroup::oom_kills_and_peak)
    );
    assert!(most < MEMORY_LIMIT / 1024, "{most} KiB");
    if let Some(cgroup) = &cgroup {
        assert_eq!(cgroup.oom_kills_and_peak().0, "oom_kill 0");
    }
    drop(idle_connections);
    answers(linker.dns, "after.example. A", "192.0.2.1").await;
    drop(client);
    assert!(linker.stop().success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_tenant_loses_its_metrics_before_a_small_tenant() {
    const MANY: usize = 1_000;
    let shop = Shop::open(&[]).await;
    let spec = || {
        serde_json::from_value(json!({"sources": [{"name": "fixed", "hostname": "a.example.com"}]})).unwrap()
    };
    let of = |namespace: &str| Api::<StableName>::namespaced(shop.cluster.client.clone(), namespace);
    let (few, many) = (of("shop"), of("shop-dr"));
    let create = |targets: &Api<StableName>, name: &str| {
        let (targets, object) = (targets.clone(), StableName::new(name, spec()));
        async move { targets.create(&PostParams::default(), &object).await.map(drop).unwrap() }
    };
    create(&few, "web").await;
    let names: Vec<String> = (0..MANY).map(|number| format!("t-{number}")).collect();
    futures::stream::iter(&names).for_each_concurrent(16, |name| create(&many, name)).await;
    // With `--sync plan` lb-linker writes nothing, which makes the test cheaper.
    let linker = shop.linker(&["--sync", "plan"]).await;
    let exported = |namespace: &str| {
        let label = format!("stable_name_namespace=\"{namespace}\"");
        let page = linker.metrics();
        let lines = page.lines().filter(|line| line.starts_with("lb_linker_stable_name_ready{"));
        lines.filter(|line| line.contains(&label)).count()
    };
    let are_exported = async |expected: [usize; 2]| {
        let what = format!("metrics of {expected:?} StableNames");
        eventually(&what, async || ([exported("shop"), exported("shop-dr")] == expected).then_some(())).await;
    };
    linker.line("there are more than 1000 StableNames").await;
    are_exported([1, 0]).await;
}
