//! Changes in the environment of a running lb-linker: resolvers, credentials, addresses, clocks, interfaces.

mod credential_programs;
mod network;

use std::cell::Cell;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use rustls::pki_types::ServerName;
use rustls::version::TLS13;
use serde_json::json;
use tempfile::TempDir;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_rustls::TlsConnector;
use tokio_util::task::AbortOnDropHandle;

use crate::failover::{Shop, seoul_and_fixed, shortest_check};
use crate::harness::clients::client;
use crate::harness::clock::ShiftedClock;
use crate::harness::cluster::{Cluster, Ingress};
use crate::harness::control_plane::ControlPlane;
use crate::harness::dns::{address, answers, short};
use crate::harness::linker::Linker;
use crate::harness::pool::Lent;
use crate::harness::scale::scaled;
use crate::harness::{eventually, network as netns};
use crate::links::{links_of, text};
use crate::recreation::wait_for_external_target;
use crate::tls::{Certificates, client_config};

const TARGET: &str = "external-targets";

/// A directory with files as the kubelet mounts them: symbolic links through `..data`, which is replaced by a rename.
struct MountedVolume {
    directory: TempDir,
    version: Cell<usize>,
}

impl MountedVolume {
    fn new(files: &[(&str, String)]) -> Self {
        let mounted = Self { directory: tempfile::tempdir().unwrap(), version: Cell::new(0) };
        mounted.replace(files);
        for (name, _) in files {
            std::os::unix::fs::symlink(format!("..data/{name}"), mounted.file(name)).unwrap();
        }
        mounted
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn replace(&self, files: &[(&str, String)]) {
        self.version.set(self.version.get() + 1);
        let version = format!("..version-{}", self.version.get());
        std::fs::create_dir(self.file(&version)).unwrap();
        for (name, text) in files {
            std::fs::write(self.file(&version).join(name), text).unwrap();
        }
        std::os::unix::fs::symlink(&version, self.file("..new")).unwrap();
        std::fs::rename(self.file("..new"), self.file("..data")).unwrap();
    }
}

/// Replaces a file by a rename, as NetworkManager and `kubectl config` do.
fn replace(file: &Path, text: &str) {
    let new = file.with_extension("new");
    std::fs::write(&new, text).unwrap();
    std::fs::rename(new, file).unwrap();
}

/// Starts a resolver that answers every A query with 192.0.2.`last` and TTL 0.
fn resolver(at: SocketAddr, last: u8) -> AbortOnDropHandle<()> {
    let socket = std::net::UdpSocket::bind(at).unwrap();
    socket.set_nonblocking(true).unwrap();
    let socket = UdpSocket::from_std(socket).unwrap();
    AbortOnDropHandle::new(tokio::spawn(async move {
        let mut asked = [0; 4096];
        loop {
            // The socket reports an ICMP error about an earlier answer, or that the network is down: keep running.
            let Ok((length, client)) = socket.recv_from(&mut asked).await else { continue };
            let Ok(asked) = hickory_proto::op::Message::from_vec(&asked[..length]) else { continue };
            let _ = socket.send_to(&address(&asked, last, 0).to_vec().unwrap(), client).await;
        }
    }))
}

/// Waits until new names are answered by this resolver.
async fn resolves_by(dns: SocketAddr, last: u8) {
    let number = Cell::new(rand::random::<u32>());
    let look = || async {
        number.set(number.get().wrapping_add(1));
        let answer = short(dns, &format!("n{}.example. A", number.get())).await;
        (answer == format!("192.0.2.{last}")).then_some(())
    };
    eventually(&format!("answers of resolver {last}"), look).await;
}

#[tokio::test]
async fn replaced_resolv_conf_is_followed() {
    if !netns::is_own_with_users("environment::replaced_resolv_conf_is_followed") {
        return;
    }
    // In this network a resolver can have port 53, the only port that resolv.conf can name.
    let _resolvers = [1, 2, 3].map(|last| resolver(SocketAddr::from(([127, 0, 0, last + 10], 53)), last));
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("resolv.conf");
    let text = |last: u8| format!("search example\nnameserver 127.0.0.{}\n", last + 10);
    replace(&file, &text(1));
    let manifests = tempfile::tempdir().unwrap();
    let args = ["--manifests", manifests.path().to_str().unwrap(), "--upstream", file.to_str().unwrap()];
    let linker = Linker::start(args);
    let corefile = format!(
        ".:0 {{\nbind 127.0.0.1\nprometheus 127.0.0.1:0\nhealth 127.0.0.1:0\nready 127.0.0.1:0\nreload 2s 0\nforward . {}\n}}\n",
        file.display()
    );
    let with_corefile = Linker::start_on_corefile(&corefile, directory.path(), None);
    let follow = async |last: u8| {
        let begun = Instant::now();
        resolves_by(linker.dns, last).await;
        let flags = begun.elapsed();
        resolves_by(with_corefile.dns, last).await;
        println!("chaos: resolv.conf followed in {flags:.1?} with flags");
    };
    follow(1).await;
    replace(&file, &text(2));
    follow(2).await;
    // The file is written in place, and is empty for some time.
    std::fs::write(&file, "").unwrap();
    linker.line("the new configuration from the flags can't be applied").await;
    with_corefile.line("the new Corefile can't be applied").await;
    resolves_by(linker.dns, 2).await;
    std::fs::write(&file, text(3)).unwrap();
    follow(3).await;
    std::fs::remove_file(&file).unwrap();
    resolves_by(linker.dns, 3).await;
    replace(&file, &text(1));
    follow(1).await;
}

/// Creates a Secret. Returns the names and contents of two files: a token of lb-linker that is valid as long as the
/// Secret exists, and the CA.
async fn credentials(plane: &ControlPlane, secret: &str) -> Vec<(&'static str, String)> {
    let secrets: Api<Secret> = Api::namespaced(plane.admin_client().await, "lb-linker");
    let object = serde_json::from_value(json!({"metadata": {"name": secret}})).unwrap();
    secrets.create(&PostParams::default(), &object).await.unwrap();
    let token = plane.token_for_service_account("lb-linker", "lb-linker", Some(secret));
    vec![("token", token), ("ca.crt", plane.certificate_authority())]
}

/// Returns a kubeconfig for this server that names the token and the CA in a mounted directory.
fn kubeconfig(server: SocketAddr, mounted: &MountedVolume) -> String {
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "test",
        "clusters": [{"name": "test", "cluster": {
            "server": format!("https://{server}"), "certificate-authority": mounted.file("ca.crt"),
        }}],
        "users": [{"name": "test", "user": {"tokenFile": mounted.file("token")}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
    })
    .to_string()
}

/// Deletes a Secret, which makes its token invalid.
async fn revoke(plane: &ControlPlane, secret: &str) {
    let secrets: Api<Secret> = Api::namespaced(plane.admin_client().await, "lb-linker");
    secrets.delete(secret, &DeleteParams::default()).await.unwrap();
}

/// A control plane with a load balancer `default/web`, and an lb-linker that leads by a Lease.
struct TokenFixture {
    cluster: Cluster,
    mounted: MountedVolume,
    kubeconfig: PathBuf,
    _directory: TempDir,
    linker: Linker,
    generation: Cell<usize>,
    plane: Lent,
}

impl TokenFixture {
    /// Starts lb-linker with a kubeconfig that names mounted files, and the address that `server` returns for the
    /// control plane.
    async fn start(server: impl AsyncFnOnce(&ControlPlane) -> SocketAddr) -> Self {
        let plane = ControlPlane::lend();
        let bind = ["--clusterrole=cluster-admin", "--serviceaccount=lb-linker:lb-linker"];
        plane.kubectl(&[&["-n", TARGET, "create", "rolebinding", "lease"], &bind[..]].concat());
        let cluster = plane.cluster().await;
        cluster.create_load_balancer("default", "web").await;
        let mounted = MountedVolume::new(&credentials(&plane, "one").await);
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("config");
        let server = server(&plane).await;
        replace(&path, &kubeconfig(server, &mounted));
        let args = ["--kubeconfig", path.to_str().unwrap(), "--upstream", "none"];
        let linker = Linker::start([&args[..], &["--leader-election", "lease", "--identity", "a"]].concat());
        linker.ready().await;
        linker.line("leading now as a_").await;
        let stage = Self {
            cluster,
            mounted,
            kubeconfig: path,
            _directory: directory,
            linker,
            generation: Cell::new(0),
            plane,
        };
        stage.change_is_applied().await;
        stage
    }

    /// Changes the load balancer, and returns its new hostname.
    async fn change(&self) -> String {
        self.generation.set(self.generation.get() + 1);
        let host = format!("g{}.example.com", self.generation.get());
        self.cluster.set_ingress("default", "web", &[Ingress::Hostname(&host)]).await;
        host
    }

    /// Changes the load balancer, and waits until the change is answered and written. Returns how long both took.
    async fn change_is_applied(&self) -> [Duration; 2] {
        let begun = Instant::now();
        let host = self.change().await;
        self.is_applied(&host, begun).await
    }

    /// Waits until a hostname is answered and written. Returns how long both took.
    async fn is_applied(&self, host: &str, begun: Instant) -> [Duration; 2] {
        answers(self.linker.dns, "web.default.lb.internal. CNAME", &format!("{host}.")).await;
        let answered = begun.elapsed();
        wait_for_external_target(&self.cluster, TARGET, "web-default-ext", host).await;
        [answered, begun.elapsed()]
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_token_is_used_before_and_after_the_old_token_ends() {
    let stage = TokenFixture::start(async |plane| plane.address()).await;
    // Without an election a request for the version is what shows that the credentials aren't accepted.
    let args = ["--kubeconfig", stage.kubeconfig.to_str().unwrap(), "--upstream", "none", "--sync", "off"];
    let reader = Linker::start(args);
    reader.ready().await;
    let token = std::fs::read_to_string(stage.mounted.file("token")).unwrap();
    let former = MountedVolume::new(&[("token", token), ("ca.crt", stage.plane.certificate_authority())]);
    let config = stage.kubeconfig.with_extension("former");
    std::fs::write(&config, kubeconfig(stage.plane.address(), &former)).unwrap();
    // The kubelet, too, writes the next token long before the previous token ends.
    stage.mounted.replace(&credentials(&stage.plane, "two").await);
    stage.linker.line("the credentials for the API server have changed").await;
    revoke(&stage.plane, "one").await;
    let refused = || async {
        let services: Api<k8s_openapi::api::core::v1::Service> = Api::all(client(&config).await);
        services.list(&Default::default()).await.is_err().then_some(())
    };
    eventually("the end of the first token", refused).await;
    stage.change_is_applied().await;
    assert_eq!(stage.linker.logged("(401"), 0, "{:#?}", stage.linker.log());

    // The token ends before the next token is written.
    revoke(&stage.plane, "two").await;
    stage.linker.line("doesn't accept lb-linker's credentials (401").await;
    let host = stage.change().await;
    answers(stage.linker.dns, "web.default.lb.internal. CNAME", &format!("{host}.")).await;
    let is_told = |text: &str| {
        text.contains("what lb-linker knows is up to ")
            && text.contains(" old: the API server doesn't accept lb-linker's credentials")
    };
    let replicas = [&stage.linker, &reader];
    for replica in replicas {
        let told = || async { is_told(&replica.get_ready().1).then_some(()) };
        eventually("the age of the view", told).await;
        assert!(is_told(&text(&links_of(replica.admin().await, &[]).stderr)));
    }
    let begun = Instant::now();
    stage.mounted.replace(&credentials(&stage.plane, "three").await);
    wait_for_external_target(&stage.cluster, TARGET, "web-default-ext", &host).await;
    println!("chaos: token ended before its rotation: written {:.1?} after the rotation", begun.elapsed());
    for replica in replicas {
        let is_over = || async { (!replica.get_ready().1.contains("old")).then_some(()) };
        eventually("the end of the notice", is_over).await;
    }
    stage.linker.line("the API server accepts lb-linker's credentials again").await;
    for replica in replicas {
        let of_all_requests = replica.logged("(401 Unauthorized): https://");
        assert_eq!(replica.logged("(401"), of_all_requests, "{:#?}", replica.log());
    }
    let [answered, written] = stage.change_is_applied().await;
    println!("chaos: then a change is answered in {answered:.1?} and written in {written:.1?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rotated_ca_and_certificate_are_used_without_a_restart() {
    let mut stage = TokenFixture::start(async |plane| plane.address()).await;
    stage.plane.renew_certificates();
    stage.cluster = stage.plane.cluster().await;
    // lb-linker doesn't trust the new certificate until it has the new CA.
    stage.linker.line("the API server can't be reached").await;
    let host = stage.change().await;
    let begun = Instant::now();
    stage.mounted.replace(&credentials(&stage.plane, "two").await);
    let [answered, written] = stage.is_applied(&host, begun).await;
    println!("chaos: rotated CA: answered {answered:.1?} and written {written:.1?} after the rotation");
    stage.change_is_applied().await;
    let errors: Vec<String> = stage.linker.log().into_iter().filter(|line| line.contains("ERROR")).collect();
    assert!(errors.is_empty(), "{errors:#?}");
}

#[tokio::test]
async fn rotated_certificate_of_a_listener_is_served() {
    let [first, second] = [Certificates::make(), Certificates::make()];
    let files = |of: &Certificates| {
        ["tls.crt", "tls.key"].map(|name| (name, std::fs::read_to_string(of.file(name)).unwrap())).to_vec()
    };
    let mounted = MountedVolume::new(&files(&first));
    let corefile = format!(
        "tls://.:0 {{\nbind 127.0.0.1\ntls {} {}\nprometheus 127.0.0.1:0\nhealth 127.0.0.1:0\nready 127.0.0.1:0\n\
         reload 2s 0\nwhoami\n}}\n",
        mounted.file("tls.crt").display(),
        mounted.file("tls.key").display()
    );
    let directory = tempfile::tempdir().unwrap();
    let linker = Linker::start_on_corefile(&corefile, directory.path(), None);
    let trusted = async |by: &Certificates| {
        let connector = TlsConnector::from(Arc::new(client_config(by, &TLS13, None)));
        let stream = TcpStream::connect(linker.dns).await.unwrap();
        connector.connect(ServerName::try_from("dns.example").unwrap(), stream).await.is_ok()
    };
    eventually("the first certificate", || async { trusted(&first).await.then_some(()) }).await;
    assert!(!trusted(&second).await);
    mounted.replace(&files(&second));
    eventually("the second certificate", || async { trusted(&second).await.then_some(()) }).await;
    assert!(!trusted(&first).await);
}

/// A TCP relay to the API server.
struct Relay {
    address: SocketAddr,
    /// The first change silences the connections that are open at that time, the second change closes them.
    change: watch::Sender<()>,
    _task: AbortOnDropHandle<()>,
}

impl Relay {
    async fn start(at: SocketAddr, to: SocketAddr) -> Self {
        let listener = TcpListener::bind(at).await.unwrap();
        let address = listener.local_addr().unwrap();
        let change = watch::Sender::new(());
        let changes = change.subscribe();
        let task = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let Ok((mut client, _)) = listener.accept().await else { continue };
                let mut changes = changes.clone();
                changes.mark_unchanged();
                connections.spawn(async move {
                    let Ok(mut server) = TcpStream::connect(to).await else { return };
                    tokio::select! {
                        _ = copy_bidirectional(&mut client, &mut server) => return,
                        _ = changes.changed() => {}
                    }
                    let _ = changes.changed().await;
                });
            }
        });
        Self { address, change, _task: AbortOnDropHandle::new(task) }
    }
}

fn any_port() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

/// Starts lb-linker with a relay between it and the API server.
async fn behind_relay() -> (TokenFixture, Relay) {
    let relay = Cell::new(None);
    let stage = TokenFixture::start(async |plane| {
        let started = Relay::start(any_port(), plane.address()).await;
        let address = started.address;
        relay.set(Some(started));
        address
    })
    .await;
    (stage, relay.take().expect("the relay was started"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubeconfig_with_another_address_is_followed() {
    let (stage, relay) = behind_relay().await;
    let second = Relay::start(any_port(), stage.plane.address()).await;
    // lb-linker ignores an incomplete kubeconfig, and continues.
    std::fs::write(&stage.kubeconfig, "apiVersion: v1\nclusters:\n- name: te").unwrap();
    stage.linker.line("the changed configuration for the API server isn't used").await;
    stage.change_is_applied().await;
    drop(relay);
    stage.linker.line("the API server can't be reached").await;
    let host = stage.change().await;
    let begun = Instant::now();
    replace(&stage.kubeconfig, &kubeconfig(second.address, &stage.mounted));
    let [answered, written] = stage.is_applied(&host, begun).await;
    println!("chaos: another API server address: answered {answered:.1?} and written {written:.1?} later");
    stage.linker.line(&format!("API server https://{} ", second.address)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_fall_silent_are_replaced() {
    let (stage, relay) = behind_relay().await;
    // Old connections become silent, and new connections work, as after a change of the endpoint behind the Service
    // `kubernetes`.
    relay.change.send_replace(());
    let begun = Instant::now();
    let host = stage.change().await;
    if scaled(false, true) {
        sleep(Duration::from_secs(3)).await;
        relay.change.send_replace(());
    }
    answers(stage.linker.dns, "web.default.lb.internal. CNAME", &format!("{host}.")).await;
    let answered = begun.elapsed();
    wait_for_external_target(&stage.cluster, TARGET, "web-default-ext", &host).await;
    println!(
        "chaos: silent API connections: answered {answered:.1?} and written {:.1?} later",
        begun.elapsed()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jumps_of_the_wall_clock_delay_no_failover() {
    const HOUR: i64 = 3600;
    const HOSTS: [&str; 2] = ["a.example.com", "b.example.com"];
    let shop = Shop::open(&[]).await;
    shop.load_balancer("shop", "web", HOSTS[0]).await;
    let clock = ShiftedClock::new();
    let variables = clock.variables();
    let variables = variables.each_ref().map(|(name, value)| (*name, &**value));
    let mut a = shop.replica("a", &variables);
    a.line("leading now as a_").await;
    let b = shop.replica("b", &[]);
    b.line(" leads").await;
    b.ready().await;
    let sources = seoul_and_fixed(HOSTS[1]);
    let failback = json!({"mode": "Manual"});
    shop.create("web", json!({"sources": sources, "check": shortest_check(), "failback": failback})).await;
    shop.wait_until_announced("web", HOSTS[0]).await;
    let mut at = 0;
    // The clock is never set to a time before the true time, at which the API server's certificate wasn't valid yet.
    let all = [HOUR, 0, 24 * HOUR, 0];
    for ahead in scaled(&all[..], &all[2..4]) {
        clock.set_wall_clock(*ahead);
        let begun = Instant::now();
        // The present target fails, and the other one is announced. The third failover waits until two minutes after
        // the first one.
        shop.upstream.kill(HOSTS[at]);
        at = 1 - at;
        shop.wait_until_announced("web", HOSTS[at]).await;
        for linker in [&a, &b] {
            answers(linker.dns, "web.shop.lb.internal. CNAME", &format!("{}.", HOSTS[at])).await;
        }
        let leader = if b.logged("leading now") == 0 { "a, which has this clock" } else { "b" };
        println!("chaos: wall clock at {ahead:+} s: failover in {:.1?}, led by {leader}", begun.elapsed());
        shop.upstream.revive(HOSTS[1 - at]);
        let condition = shop.condition("web", "Ready", "True").await;
        assert_eq!(condition, "TargetVerified");
        // A cached name is still answered with the right address.
        answers(a.dns, "cached.example.com. A", "192.0.2.1").await;
    }
    // On a busy machine a leader may lose its Lease without any jump.
    if scaled(true, false) {
        assert_eq!(b.logged("leading now"), 0, "{:#?}", b.log());
        assert_eq!(a.logged("leading now"), 1, "{:#?}", a.log());
    }

    // A leader with a clock that is a day ahead is killed, and a replica with the right clock takes over.
    clock.set_wall_clock(24 * HOUR);
    let begun = Instant::now();
    a.kill();
    b.line("leading now as b_").await;
    let led = begun.elapsed();
    assert_eq!(at, 0, "the Service's target is announced");
    shop.cluster.set_ingress("shop", "web", &[Ingress::Hostname("c.example.com")]).await;
    shop.wait_until_announced("web", "c.example.com").await;
    answers(b.dns, "web.shop.lb.internal. CNAME", "c.example.com.").await;
    wait_for_external_target(&shop.cluster, TARGET, "web-shop-ext", "c.example.com").await;
    println!(
        "chaos: after a leader with a clock a day ahead: leading after {led:.1?}, cutover after {:.1?}",
        begun.elapsed()
    );
}
