//! The demo: a load balancer is recreated, and two clients go on asking for it. Then a hostname is announced before it
//! resolves.

use std::error::Error;
use std::fs;
use std::io::{self, IsTerminal};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hickory_proto::rr::Name;
use tempfile::TempDir;
use tokio::time::sleep;

use crate::client::{self, Client, Counts, Resolver};
use crate::cloud::{Cloud, LoadBalancer, load_balancers};
use crate::cutover;
use crate::linker::Linker;
use crate::screen::{BOLD, DIM, GREEN, RED, Screen};

const MANIFEST: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/manifests/my-sample-lb.yaml");
const OLD: &str = "default-my-sample-lb-4-fb5d0.kr.lb.example-cloud.com";
pub const NEW: &str = "default-my-sample-lb-4-9c1e7.kr.lb.example-cloud.com";
pub const STABLE: &str = "my-sample-lb-default.lb.internal";
pub const EXTERNAL_TARGET: &str = "my-sample-lb-default-ext";

/// How long the first client's resolver keeps an address, like the cache of many clusters' DNS.
const CACHE: Duration = Duration::from_secs(30);
/// How long there is no load balancer.
const GONE: Duration = Duration::from_millis(400);
/// How long the clients are watched before and after.
const BEFORE: u64 = 2;
const AFTER: u64 = 5;
/// Timeout for what lb-linker is expected to do within milliseconds.
pub const EVENT_TIMEOUT: Duration = Duration::from_secs(10);
pub const POLL: Duration = Duration::from_millis(2);

/// What runs in the demo.
pub struct Stage {
    // The fields are dropped in this order: lb-linker ends before its directory is removed.
    linker: Linker,
    pub directory: TempDir,
    pub cloud: Cloud,
    pub balancers: Vec<LoadBalancer>,
    dns: SocketAddr,
}

/// Runs the demo. It stays after the end, with `is_over` set, if standard output is a terminal and nothing is recorded.
///
/// # Errors
/// If something isn't as expected.
pub async fn tell(recording: Option<&Path>, is_over: &AtomicBool) -> Result<(), Box<dyn Error>> {
    let mut screen = Screen::new(recording.is_some());
    let mut stage = Stage::set().await?;
    introduce(&mut screen, &stage)?;
    let [written_down, stable] = stage.clients()?;
    let begin = Instant::now();
    for _ in 0..BEFORE {
        sleep(Duration::from_secs(1)).await;
        status(&mut screen, begin, [&written_down, &stable])?;
    }
    let before = [written_down.counts(), stable.counts()];
    if before.iter().any(|counts| counts.failed > 0 || counts.succeeded == 0) {
        return Err(format!("all requests should succeed before anything changes: {before:?}").into());
    }

    screen.line("")?;
    screen.line(
        &screen
            .paint(BOLD, "The load balancer is deleted and recreated: the cloud gives it another hostname"),
    )?;
    let announced = stage.recreate().await?;
    let answered = wait_for_answer(stage.dns, &stage.balancers[0]).await?.duration_since(announced);
    screen.line(&format!("  {NEW} → {}", stage.balancers[0].address.ip()))?;
    for _ in 0..AFTER {
        sleep(Duration::from_secs(1)).await;
        status(&mut screen, begin, [&written_down, &stable])?;
    }
    stage.expect_external_target(NEW).await?;
    conclude(&mut screen, before, [written_down.counts(), stable.counts()], announced, answered)?;
    cutover::tell(&mut screen, &stage).await?;
    if let Some(path) = recording {
        screen.save_svg(path)?;
    } else if io::stdout().is_terminal() {
        invite(&mut screen, &stage)?;
        is_over.store(true, Ordering::Relaxed);
        while stage.linker.next_line().await.is_some() {}
        return Err("lb-linker has ended".into());
    }
    stage.end()
}

fn introduce(screen: &mut Screen, stage: &Stage) -> io::Result<()> {
    screen.line(&screen.paint(BOLD, "A load balancer is recreated, and two clients go on using it"))?;
    let notes = [
        "No cluster: lb-linker, the real program, reads Services from files. The cloud's DNS and the"
            .to_owned(),
        "load balancers are small servers of this demo on loopback addresses.".to_owned(),
    ];
    for note in notes {
        screen.line(&screen.paint(DIM, &note))?;
    }
    screen.line("")?;
    screen.line(&format!("  load balancer    {OLD} → {}", stage.balancers[0].address.ip()))?;
    screen.line(&format!("  external target  {EXTERNAL_TARGET} → {OLD}"))?;
    screen.line("")?;
    screen.line("Both clients connect every 200 ms.")?;
    screen.line(&format!("  A  has {OLD}"))?;
    screen.line("     in its configuration, and resolves it through a DNS cache of 30 s")?;
    screen.line(&format!("  B  has {STABLE}, and asks lb-linker"))?;
    screen.line("")
}

fn status(screen: &mut Screen, begin: Instant, clients: [&Client; 2]) -> io::Result<()> {
    let show = |counts: Counts| {
        let failed = format!("{:3} failed", counts.failed);
        let failed = if counts.failed > 0 { screen.paint(RED, &failed) } else { failed };
        format!("{:3} ok {failed}", counts.succeeded)
    };
    let [a, b] = clients.map(|client| show(client.counts()));
    let line = format!("  {:4.1} s   A {a}    B {b}", begin.elapsed().as_secs_f64());
    screen.line(&line)
}

fn conclude(
    screen: &mut Screen,
    before: [Counts; 2],
    after: [Counts; 2],
    announced: Instant,
    answered: Duration,
) -> Result<(), Box<dyn Error>> {
    let failed = [0, 1].map(|client| after[client].failed - before[client].failed);
    let switched = after[1].switched.filter(|at| *at > announced);
    let switched = switched.ok_or("client B hasn't reached the new load balancer")?.duration_since(announced);
    if after[0].succeeded > before[0].succeeded + 1 {
        return Err("client A shouldn't reach a load balancer that is gone".into());
    }
    screen.line("")?;
    let verdict =
        format!("A  {} requests failed. All requests fail until its configuration is changed", failed[0]);
    screen.line(&screen.paint(RED, &verdict))?;
    let verdict = format!(
        "B  {} requests failed, while there was no load balancer for {} ms. lb-linker answered with the",
        failed[1],
        GONE.as_millis()
    );
    screen.line(&screen.paint(GREEN, &verdict))?;
    let verdict = format!(
        "   new one {} ms after its hostname was announced; B was connected after {} ms",
        answered.as_millis(),
        switched.as_millis()
    );
    screen.line(&screen.paint(GREEN, &verdict))?;
    screen.line(&format!("   external target  {EXTERNAL_TARGET} → {NEW}"))?;
    Ok(())
}

fn invite(screen: &mut Screen, stage: &Stage) -> io::Result<()> {
    let (ip, port) = (stage.dns.ip(), stage.dns.port());
    screen.line("")?;
    screen.line(&screen.paint(BOLD, "Your turn, until Ctrl-C"))?;
    screen.line(&format!("  dig @{ip} -p {port} {STABLE}"))?;
    screen.line(&format!("  dig @{ip} -p {port} my-sample-lb.default.lb.internal CNAME"))?;
    screen.line(&format!("  edit {}", stage.manifest().display()))?;
    screen.line(&format!("  look at {}/", stage.external_targets().display()))
}

impl Stage {
    /// Starts the cloud and lb-linker, and waits until lb-linker answers.
    async fn set() -> Result<Self, Box<dyn Error>> {
        let directory = tempfile::Builder::new().prefix("lb-linker-demo-").tempdir()?;
        fs::create_dir(directory.path().join("manifests"))?;
        fs::copy(MANIFEST, directory.path().join("manifests/my-sample-lb.yaml"))?;
        let cloud = Cloud::start().await?;
        let balancers = Vec::from(load_balancers().await?);
        cloud.create(absolute(OLD)?, ipv4(&balancers[0])?);
        let upstream = cloud.dns.to_string();
        let source = [["--manifests", "manifests"], ["--output", "external-targets"]];
        let mut linker = Linker::start(directory.path(), &arguments(&upstream, source))?;
        let (dns, _) = linker.dns_address().await?;
        let stage = Self { linker, directory, cloud, balancers, dns };
        wait_for_answer(dns, &stage.balancers[0]).await?;
        stage.expect_external_target(OLD).await?;
        Ok(stage)
    }

    fn manifest(&self) -> PathBuf {
        self.directory.path().join("manifests/my-sample-lb.yaml")
    }

    fn external_targets(&self) -> PathBuf {
        self.directory.path().join("external-targets")
    }

    /// Starts the client that has the hostname in its configuration, and the one with the stable name.
    fn clients(&self) -> Result<[Client; 2], Box<dyn Error>> {
        let port = self.balancers[0].address.port();
        let written_down = Resolver { server: self.cloud.dns, name: absolute(OLD)?, cache: CACHE };
        let stable = Resolver { server: self.dns, name: absolute(STABLE)?, cache: Duration::ZERO };
        Ok([Client::start(written_down, port), Client::start(stable, port)])
    }

    /// Deletes the load balancer, and creates another one for the same Service. Returns when its hostname was announced.
    async fn recreate(&mut self) -> Result<Instant, Box<dyn Error>> {
        let manifest = fs::read_to_string(self.manifest())?;
        self.balancers.remove(0);
        self.cloud.delete(&absolute(OLD)?);
        fs::remove_file(self.manifest())?;
        sleep(GONE).await;
        self.cloud.create(absolute(NEW)?, ipv4(&self.balancers[0])?);
        // A rename, so that lb-linker never reads half a file.
        let partial = self.directory.path().join("my-sample-lb.yaml");
        fs::write(&partial, manifest.replace(OLD, NEW))?;
        fs::rename(partial, self.manifest())?;
        Ok(Instant::now())
    }

    /// Waits until the external target points at a hostname.
    async fn expect_external_target(&self, host: &str) -> Result<(), Box<dyn Error>> {
        let path = self.external_targets().join(format!("{EXTERNAL_TARGET}.yaml"));
        let deadline = Instant::now() + EVENT_TIMEOUT;
        loop {
            let text = fs::read_to_string(&path).unwrap_or_default();
            if text.contains(&format!("externalName: {host}")) {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(format!("{} should point at {host}:\n{text}", path.display()).into());
            }
            sleep(POLL).await;
        }
    }

    /// Stops lb-linker.
    fn end(mut self) -> Result<(), Box<dyn Error>> {
        let status = self.linker.stop()?;
        if status.success() {
            Ok(())
        } else {
            Err(format!("lb-linker ended with {status} after SIGTERM").into())
        }
    }
}

/// Returns the arguments of lb-linker, with two more that say where load balancers are read and external targets written.
pub fn arguments<'a>(upstream: &'a str, source: [[&'a str; 2]; 2]) -> Vec<&'a str> {
    let common = [
        ["--listen", "127.0.0.1:0"],
        ["--upstream", upstream],
        // Loopback addresses are denied by default: a Pod that follows them reaches itself.
        ["--allowed-nets", "127.0.0.0/8"],
        ["--metrics-listen", "127.0.0.1:0"],
        ["--health-listen", "127.0.0.1:0"],
        ["--ready-listen", "127.0.0.1:0"],
        ["--admin-listen", "127.0.0.1:0"],
    ];
    [source.as_flattened(), common.as_flattened()].concat()
}

/// Waits until lb-linker answers with a load balancer's address. Returns when it did.
///
/// # Errors
/// If it doesn't within 10 s.
pub async fn wait_for_answer(dns: SocketAddr, balancer: &LoadBalancer) -> Result<Instant, Box<dyn Error>> {
    let (name, expected) = (absolute(STABLE)?, ipv4(balancer)?);
    let deadline = Instant::now() + EVENT_TIMEOUT;
    loop {
        let answer = client::ipv4(dns, &name).await;
        if answer.as_ref().is_ok_and(|address| *address == expected) {
            return Ok(Instant::now());
        }
        if Instant::now() > deadline {
            return Err(format!("lb-linker should answer {STABLE} with {expected}, but: {answer:?}").into());
        }
        sleep(POLL).await;
    }
}

/// Returns the address of a load balancer.
///
/// # Errors
/// If it is an IPv6 address.
pub fn ipv4(balancer: &LoadBalancer) -> Result<Ipv4Addr, Box<dyn Error>> {
    match balancer.address.ip() {
        IpAddr::V4(ip) => Ok(ip),
        IpAddr::V6(_) => Err("load balancers have IPv4 addresses".into()),
    }
}

/// Returns a hostname as an absolute name.
///
/// # Errors
/// If it isn't a DNS name.
pub fn absolute(host: &str) -> Result<Name, Box<dyn Error>> {
    let mut name = Name::from_ascii(host)?;
    name.set_fqdn(true);
    Ok(name)
}
