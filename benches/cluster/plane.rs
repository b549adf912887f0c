//! The control plane with its links, and the DNS servers that use it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::api::{Access, Connection};
use crate::copies;
use crate::dns::{SerialClient, host};
use crate::harness::apply_deploy;
use crate::harness::control_plane::{ControlPlane, Options};
use crate::harness::dns::CoreDns;
use crate::harness::linker::Linker;
use crate::objects::{
    NAMESPACES, PEER, TARGETS, link_question, namespace, peer_question, services, status, status_patch,
};

/// The number of links in most parts.
pub const LINKS: usize = 10_000;
/// The number of concurrent writers. The API server handles 200 concurrent requests, and needs room for other
/// clients.
const WRITERS: usize = 8;
/// The timeout for the start of a server; lb-linker also writes all external targets in this time.
const EVENT_TIMEOUT: Duration = Duration::from_secs(1800);

/// A control plane with load balancers.
pub struct Plane {
    pub control_plane: ControlPlane,
    pub access: Access,
    kubeconfig: PathBuf,
    links: usize,
    peers: usize,
}

impl Plane {
    pub fn start() -> Self {
        eprintln!("starting etcd and kube-apiserver");
        let args = [
            // Enough addresses for 100,000 load balancers: the API server allows no larger range.
            "--service-cluster-ip-range=10.0.0.0/12",
            // The audit log isn't read here, and writing it costs as much as the requests.
            "--audit-log-path=",
        ];
        let control_plane = ControlPlane::start(Options {
            apiserver_args: args.map(str::to_owned).to_vec(),
            ..Options::default()
        });
        apply_deploy(&control_plane);
        let access = Access::of(&control_plane.admin_kubeconfig());
        for name in (0..NAMESPACES).map(namespace).chain([PEER.to_owned()]) {
            let namespace = json!({"metadata": {"name": name}}).to_string();
            access.connect().must("POST", "/api/v1/namespaces", &namespace);
        }
        let kubeconfig = control_plane.kubeconfig_for_service_account("lb-linker", "lb-linker");
        Self { control_plane, access, kubeconfig, links: 0, peers: 0 }
    }

    /// Returns a kubeconfig with lb-linker's permissions.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Creates load balancers with a hostname until there are `links`.
    pub fn grow(&mut self, links: usize) {
        let first = self.links;
        if links <= first {
            return;
        }
        self.each(links - first, "load balancers made", |connection, at| {
            let link = first + at;
            let name = format!("svc-{link}");
            let service = json!({
                "metadata": {"name": name, "labels": {"app": name}},
                "spec": {
                    "type": "LoadBalancer",
                    "ports": [{"name": "http", "port": 80}, {"name": "https", "port": 443}],
                    "selector": {"app": name},
                    // There are only 2,768 node ports.
                    "allocateLoadBalancerNodePorts": false,
                },
            });
            connection.must("POST", &services(&namespace(link)), &service.to_string());
            connection.must("PATCH", &status(link), &status_patch(0, link));
        });
        self.links = links;
    }

    /// Creates links, with their external targets, as copies in etcd until there are `links`. The API server counts
    /// all allocated addresses at each allocation, so 100,000 requests would take hours.
    pub fn multiply(&mut self, links: usize) {
        copies::make(&self.access, &self.control_plane.etcd_socket(), self.links..links);
        self.links = links;
    }

    /// Creates ExternalName Services for CoreDNS until there are `peers`.
    pub fn grow_peers(&mut self, peers: usize) {
        let first = self.peers;
        if peers <= first {
            return;
        }
        self.each(peers - first, "ExternalName Services made", |connection, at| {
            let peer = first + at;
            let service = json!({
                "metadata": {"name": format!("ext-{peer}")},
                "spec": {"type": "ExternalName", "externalName": host(0, peer)},
            });
            connection.must("POST", &services(PEER), &service.to_string());
        });
        self.peers = peers;
    }

    /// Calls `work` with each index below `number`, over several connections at once. `what` names the objects in the
    /// progress messages.
    pub fn each(&self, number: usize, what: &str, work: impl Fn(&mut Connection, usize) + Sync) {
        let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let since = Instant::now();
        thread::scope(|scope| {
            for _ in 0..WRITERS {
                scope.spawn(|| {
                    let mut connection = self.access.connect();
                    loop {
                        let at = next.fetch_add(1, Ordering::Relaxed);
                        if at >= number {
                            break;
                        }
                        work(&mut connection, at);
                        let done = done.fetch_add(1, Ordering::Relaxed) + 1;
                        if done.is_multiple_of((number / 10).max(1000)) {
                            eprintln!("{done} of {number} {what}, {:.0} s", since.elapsed().as_secs_f64());
                        }
                    }
                });
            }
        });
    }

    /// Starts lb-linker. Its ports are open when this returns, but it may not be ready.
    pub fn linker(&self, args: &[&str]) -> Linker {
        self.linker_with("none", args)
    }

    /// Like [`Self::linker`], with this upstream.
    pub fn linker_with(&self, upstream: &str, args: &[&str]) -> Linker {
        let kubeconfig = self.kubeconfig.to_str().expect("a UTF-8 path");
        let mut all = vec!["--kubeconfig", kubeconfig, "--target-namespace", TARGETS, "--upstream", upstream];
        all.extend(args);
        Linker::start(all)
    }

    /// Starts lb-linker with sync on, and waits until every external target has been written.
    pub fn synced_linker(&self) -> Linker {
        let linker = self.linker(&["--sync", "on"]);
        ready(&linker, Duration::from_millis(20));
        let (deadline, mut told) = (Instant::now() + EVENT_TIMEOUT, Instant::now());
        loop {
            let targets = self.external_targets();
            if targets >= self.links {
                return linker;
            }
            assert!(Instant::now() < deadline, "{targets} external targets only: {:#?}", linker.log().last());
            if told.elapsed() > Duration::from_secs(5) {
                told = Instant::now();
                eprintln!("{targets} of {} external targets written", self.links);
            }
            thread::sleep(Duration::from_millis(500));
        }
    }

    /// Returns the number of external targets: a page with one object tells the number of the remaining objects.
    fn external_targets(&self) -> usize {
        let list = self.access.connect().json("GET", &format!("{}?limit=1", services(TARGETS)), "");
        let rest = list["metadata"]["remainingItemCount"].as_u64().unwrap_or(0);
        list["items"].as_array().map_or(0, Vec::len) + rest as usize
    }

    /// Starts CoreDNS with the plugin `kubernetes`, and waits until it serves the ExternalName Services.
    pub fn coredns(&self) -> CoreDns {
        let kubeconfig = self.control_plane.admin_kubeconfig();
        let plugins = format!(
            "prometheus 127.0.0.1:0\nkubernetes cluster.local {{\nkubeconfig {} test\n}}",
            kubeconfig.display()
        );
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let coredns = runtime.block_on(CoreDns::start(&plugins, ""));
        let (mut asker, mut question) = (SerialClient::new(coredns.address), peer_question(0));
        // Another part may have changed the target.
        let deadline = Instant::now() + EVENT_TIMEOUT;
        while asker.ask(&mut question).is_none() {
            assert!(Instant::now() < deadline, "CoreDNS doesn't answer for the ExternalName Service");
            thread::sleep(Duration::from_millis(20));
        }
        coredns
    }
}

/// Asks lb-linker whether it is ready, with the pause `look` between two requests. Returns the time of the first answer
/// that says so.
pub fn ready(linker: &Linker, look: Duration) -> Instant {
    let deadline = Instant::now() + EVENT_TIMEOUT;
    loop {
        let (code, said) = linker.get_ready();
        let now = Instant::now();
        if code == 200 {
            return now;
        }
        assert!(now < deadline, "lb-linker isn't ready: {said}");
        thread::sleep(look);
    }
}

/// Sends queries for about 100 of the links, to check that lb-linker answers with targets.
pub fn check(server: SocketAddr, links: usize) {
    let mut asker = SerialClient::new(server);
    for link in (0..links).step_by(links / 100) {
        assert!(asker.ask(&mut link_question(link)).is_some(), "svc-{link} has no target");
    }
}
