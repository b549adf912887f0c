//! The model test of all sources of names: objects of all kinds come, change and go in the home cluster and in a remote
//! one, and ask for the same names, while two replicas restart and lose an API server. At quiet points both replicas answer
//! exactly as the model says.

mod generator;
mod objects;
mod rules;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use futures::StreamExt;
use rand::RngExt;
use rand::seq::{IndexedRandom, SliceRandom};
use tempfile::TempDir;
use tokio::task::block_in_place;

use super::disturbed::{TARGETS, control_plane};
use super::{COMPLETE, OPERATIONS, from_env};
use crate::harness::control_plane::ControlPlane;
use crate::harness::dns::{ask_udp, query};
use crate::harness::faulty_link::{ConnectionFault, FaultyLink, LinkState};
use crate::harness::linker::Linker;
use crate::harness::pool::Lent;
use crate::harness::programs::{dns_endpoint_crd, gateway_api_crds};
use crate::harness::{EVENT_TIMEOUT, LINKER, PollPauses, deploy, permission};
use crate::remote::assert_only_read;
use generator::Generator;
use objects::Executor;
use rules::{CLUSTERS, Change, Cluster, FREE, Id, Kind, Model, OWN, REPLICAS, split};

/// What happens in the middle of a batch of changes.
#[derive(Clone, Copy, Debug)]
enum Disturbance {
    Nothing,
    /// The connections of a replica to an API server break.
    Cut(Cluster),
    /// A replica has no API server.
    HalfOpen(Cluster),
    Restart,
    ApiRestart(Cluster),
    /// A replica starts while an API server is away.
    StartWithoutApi(Cluster),
}

/// The disturbances, each with its weight: first each one happens once.
const DISTURBANCES: [(Disturbance, u32); 10] = [
    (Disturbance::Nothing, 9),
    (Disturbance::Cut(Cluster::Home), 3),
    (Disturbance::Cut(Cluster::West), 2),
    (Disturbance::HalfOpen(Cluster::Home), 2),
    (Disturbance::HalfOpen(Cluster::West), 1),
    (Disturbance::Restart, 4),
    (Disturbance::ApiRestart(Cluster::Home), 1),
    (Disturbance::ApiRestart(Cluster::West), 1),
    (Disturbance::StartWithoutApi(Cluster::Home), 2),
    (Disturbance::StartWithoutApi(Cluster::West), 2),
];

const REMOTE_LINKER: &str = "--as=system:serviceaccount:lb-linker-remote:lb-linker-remote";

/// Something for each cluster.
type PerCluster<T> = BTreeMap<Cluster, T>;

struct Replica {
    name: &'static str,
    links: PerCluster<FaultyLink>,
    directory: TempDir,
    linker: Linker,
}

impl Replica {
    async fn start(planes: &PerCluster<Lent>, name: &'static str, sources: &str) -> Self {
        let mut links = PerCluster::new();
        for (cluster, plane) in planes {
            let account = if *cluster == Cluster::Home { "lb-linker" } else { "lb-linker-remote" };
            links.insert(*cluster, FaultyLink::start(plane, account, account).await);
        }
        let directory = tempfile::tempdir().unwrap();
        let linker = run(&links, &directory, name, sources);
        linker.ready().await;
        Self { name, links, directory, linker }
    }
}

fn run(links: &PerCluster<FaultyLink>, directory: &TempDir, name: &str, sources: &str) -> Linker {
    let snapshot = directory.path().join("links");
    let free = FREE.join(",");
    let remote = format!("west={}", links[&Cluster::West].kubeconfig());
    Linker::start([
        "--kubeconfig",
        links[&Cluster::Home].kubeconfig(),
        "--remote",
        &remote,
        "--target-namespace",
        TARGETS,
        "--upstream",
        "none",
        "--sources",
        sources,
        "--hostname-namespaces",
        &free,
        "--delete-delay",
        "0s",
        "--max-deletes",
        "unlimited",
        "--leader-election",
        "lease",
        "--identity",
        name,
        "--snapshot",
        snapshot.to_str().unwrap(),
    ])
}

struct Run {
    seed: u64,
    sources: String,
    executor: Executor,
    replicas: [Replica; REPLICAS],
    model: Model,
    generator: Generator,
    /// The disturbances that come before random ones.
    first: Vec<Disturbance>,
    names: BTreeSet<String>,
    /// The changes since the last quiet point, for the failure message.
    journal: Vec<String>,
    operations: usize,
    tally: BTreeMap<String, usize>,
    /// Dropped after the programs that use them.
    planes: PerCluster<Lent>,
}

/// Returns a control plane with the CRDs and permissions of all sources.
async fn prepare(cluster: Cluster) -> Lent {
    let plane = block_in_place(|| match cluster {
        Cluster::Home => control_plane(true),
        Cluster::West => ControlPlane::lend(),
    });
    plane.apply_files(&gateway_api_crds()[0]);
    plane.apply_files(dns_endpoint_crd());
    for folder in if cluster == Cluster::Home { &["sources", "remote/home"][..] } else { &["remote"] } {
        plane.apply_files(&deploy().join(folder).join("rbac.yaml"));
    }
    let gateway = |kind: &str| format!("{kind}.gateway.networking.k8s.io");
    let kinds = ["gateways", "listenersets", "httproutes", "grpcroutes", "tlsroutes"].map(gateway);
    let endpoints = "dnsendpoints.externaldns.k8s.io";
    plane.wait_for_crds(&kinds.iter().map(String::as_str).chain([endpoints]).collect::<Vec<_>>());
    let account = if cluster == Cluster::Home { LINKER } else { REMOTE_LINKER };
    for verb in ["list", "watch"] {
        permission(&plane, true, &[verb, endpoints, "-A", account]).await;
    }
    for namespace in FREE.into_iter().chain(OWN).map(split).filter(|(at, _)| *at == cluster) {
        plane.create_namespace(namespace.1);
    }
    plane
}

impl Run {
    async fn start(seed: u64) -> Self {
        let mut generator = Generator::new(seed);
        let mut order = vec![Kind::Service, Kind::Ingress, Kind::HttpRoute, Kind::DnsEndpoint];
        order.shuffle(&mut generator.random);
        let mut first = DISTURBANCES.map(|(disturbance, _)| disturbance).to_vec();
        first.shuffle(&mut generator.random);
        let source = |kind: &Kind| match kind {
            Kind::Ingress => "ingress",
            Kind::HttpRoute => "gateway",
            Kind::DnsEndpoint => "dnsendpoint",
            _ => "service",
        };
        let sources = order.iter().map(source).collect::<Vec<_>>().join(",");
        let (mut planes, mut clients) = (PerCluster::new(), PerCluster::new());
        for cluster in CLUSTERS {
            let plane = prepare(cluster).await;
            clients.insert(cluster, plane.admin_client().await);
            planes.insert(cluster, plane);
        }
        let replicas =
            [Replica::start(&planes, "a", &sources).await, Replica::start(&planes, "b", &sources).await];
        Self {
            seed,
            executor: Executor { clients },
            replicas,
            model: Model::new(order),
            names: generator.names(),
            generator,
            first,
            journal: Vec::new(),
            operations: 0,
            tally: BTreeMap::new(),
            planes,
            sources,
        }
    }

    async fn batch(&mut self) {
        let changes = self.generator.batch();
        let (before, after) = changes.split_at(self.generator.random.random_range(0..=changes.len()));
        self.execute(before).await;
        let random = &mut self.generator.random;
        let chosen = DISTURBANCES.choose_weighted(random, |(_, weight)| *weight);
        let disturbance = self.first.pop().unwrap_or(chosen.expect("there are some").0);
        let replica = random.random_range(0..REPLICAS);
        self.count(&format!("{disturbance:?}"), 1);
        self.journal.push(format!("--- {disturbance:?} of replica {}", self.replicas[replica].name));
        match disturbance {
            Disturbance::Nothing => self.execute(after).await,
            Disturbance::Cut(cluster) => {
                self.replicas[replica].links[&cluster].inject(ConnectionFault::Cut);
                self.execute(after).await;
            }
            Disturbance::HalfOpen(cluster) => {
                self.replicas[replica].links[&cluster].set(LinkState::HalfOpen);
                self.replicas[replica].links[&cluster].inject(ConnectionFault::Cut);
                self.execute(after).await;
                self.replicas[replica].links[&cluster].set(LinkState::Up);
                // Connections that were opened meanwhile stay dead.
                self.replicas[replica].links[&cluster].inject(ConnectionFault::Cut);
            }
            Disturbance::Restart => {
                self.stop(replica);
                self.execute(after).await;
                self.launch(replica);
                self.await_start(replica, &CLUSTERS).await;
            }
            Disturbance::ApiRestart(cluster) => self.without_api(cluster, None, after).await,
            Disturbance::StartWithoutApi(cluster) => self.without_api(cluster, Some(replica), after).await,
        }
        self.end_batch(&CLUSTERS).await;
    }

    /// Stops the API server of a cluster, and perhaps restarts a replica, while the other cluster changes.
    async fn without_api(&mut self, away: Cluster, restarted: Option<usize>, changes: &[(Id, Change)]) {
        let (later, now): (Vec<_>, Vec<_>) =
            changes.iter().cloned().partition(|(id, _)| id.cluster() == away);
        let other = if away == Cluster::Home { Cluster::West } else { Cluster::Home };
        block_in_place(|| self.planes[&away].stop_apiserver());
        if let Some(replica) = restarted {
            self.stop(replica);
            self.launch(replica);
        }
        self.execute(&now).await;
        match restarted {
            // It doesn't know the home cluster.
            Some(_) if away == Cluster::Home => {}
            Some(replica) => self.await_start(replica, &[other]).await,
            None => self.end_batch(&[other]).await,
        }
        block_in_place(|| self.planes[&away].start_apiserver());
        self.executor.clients.insert(away, self.planes[&away].admin_client().await);
        match restarted {
            Some(replica) if away == Cluster::Home => self.await_start(replica, &CLUSTERS).await,
            _ => self.model.read_west(),
        }
        self.execute(&later).await;
    }

    /// Compares all answers once the changes in these clusters have reached the replicas.
    async fn end_batch(&mut self, clusters: &[Cluster]) {
        for cluster in clusters {
            let marks = self.generator.mark(*cluster);
            self.execute(&marks).await;
        }
        self.wait_for_quiet_point().await;
    }

    /// Stops or kills a replica, and perhaps removes its snapshot.
    fn stop(&mut self, replica: usize) {
        self.model.stop(replica);
        let kill = self.generator.random.random_bool(0.5);
        let keeps_snapshot = self.generator.random.random_bool(0.5);
        let Replica { linker, directory, .. } = &mut self.replicas[replica];
        if kill {
            linker.kill();
        } else {
            assert!(block_in_place(|| linker.stop()).success());
        }
        let snapshot = directory.path().join("links");
        let exists = snapshot.exists();
        if exists && !keeps_snapshot {
            std::fs::remove_file(&snapshot).unwrap();
        }
        let keeps_snapshot = exists && keeps_snapshot;
        let how = if kill { "kill" } else { "stop" };
        self.count(how, 1);
        self.count(if keeps_snapshot { "start with a snapshot" } else { "start without a snapshot" }, 1);
        self.journal.push(format!("--- {how}, with the snapshot: {keeps_snapshot}"));
    }

    fn launch(&mut self, replica: usize) {
        let Replica { name, links, directory, linker } = &mut self.replicas[replica];
        *linker = run(links, directory, name, &self.sources);
    }

    /// Waits until a replica that has started knows all objects of these clusters, among them the home cluster.
    async fn await_start(&mut self, replica: usize, clusters: &[Cluster]) {
        self.replicas[replica].linker.ready().await;
        self.model.start(replica, clusters.contains(&Cluster::West));
        // With a snapshot it is ready before the lists are complete.
        self.end_batch(clusters).await;
    }

    async fn execute(&mut self, changes: &[(Id, Change)]) {
        for (id, change) in changes {
            let created = self.executor.execute(*id, change).await;
            self.model.apply(*id, change, created);
            self.operations += 1;
            let text = format!("{change:?}");
            let what = text.split('(').next().unwrap_or_default();
            self.count(&format!("{what} {:?}", id.kind), 1);
            self.journal.push(format!("{:?} {}/{} of {created}: {text}", id.kind, id.namespace, id.name));
        }
    }

    async fn wait_for_quiet_point(&mut self) {
        let deadline = Instant::now() + EVENT_TIMEOUT / 2;
        let mut pauses = PollPauses::new();
        loop {
            let mut wrong = Vec::new();
            for (number, replica) in self.replicas.iter().enumerate() {
                let answers = self.model.answers(number, &self.names);
                wrong.extend(wrong_answers(replica, answers).await);
            }
            if wrong.is_empty() {
                break;
            }
            if Instant::now() > deadline {
                self.fail(&wrong);
            }
            pauses.next().await;
        }
        let counts = self.model.counts();
        self.count("quiet point", 1);
        self.count("contested name", counts.contested);
        self.count("shared name", counts.shared);
        self.count("kept target", counts.kept);
        self.count("target that one replica keeps", counts.forgotten);
        self.count("name that the remote cluster has elsewhere", counts.granted);
        let not_ready = self.replicas.iter().find(|replica| replica.linker.get_ready().0 != 200);
        assert!(not_ready.is_none(), "{:?}", not_ready.map(|replica| replica.linker.get_ready()));
        self.journal.clear();
    }

    fn count(&mut self, what: &str, number: usize) {
        *self.tally.entry(what.to_owned()).or_default() += number;
    }

    fn fail(&self, wrong: &[String]) -> ! {
        let logs = self.replicas.each_ref().map(|replica| {
            let log = replica.linker.log();
            log[log.len().saturating_sub(40)..].join("\n")
        });
        panic!(
            "model sources: LB_LINKER_MODEL_SEED={}, --sources {}, after {} operations:\n{}\n\nsince the quiet \
             point:\n{}\n\nthe model:\n{:#?}\n\nthe logs' ends:\n{}",
            self.seed,
            self.sources,
            self.operations,
            wrong.join("\n"),
            self.journal.join("\n"),
            self.model,
            logs.join("\n\n")
        );
    }

    fn finish(mut self, is_complete: bool) {
        for replica in &mut self.replicas {
            let mut log = replica.linker.log();
            log.retain(|line| line.contains("panicked"));
            assert!(log.is_empty(), "{log:#?}");
            assert!(block_in_place(|| replica.linker.stop()).success());
        }
        assert_only_read(&self.planes[&Cluster::West]);
        if !is_complete {
            return;
        }
        let kinds = Kind::ALL.into_iter().flat_map(|kind| {
            ["Create", "Recreate", "Set", "Delete"].map(|what| (format!("{what} {kind:?}"), 1))
        });
        let others = [
            ("contested name", 300),
            ("shared name", 5),
            ("kept target", 50),
            ("target that one replica keeps", 20),
            ("name that the remote cluster has elsewhere", 10),
            ("Cut(Home)", 3),
            ("Cut(West)", 2),
            ("HalfOpen(Home)", 2),
            ("HalfOpen(West)", 1),
            ("Restart", 5),
            ("ApiRestart(Home)", 1),
            ("ApiRestart(West)", 1),
            ("StartWithoutApi(Home)", 2),
            ("StartWithoutApi(West)", 2),
            ("kill", 5),
            ("stop", 5),
            ("start with a snapshot", 5),
            ("start without a snapshot", 5),
        ];
        for (what, least) in kinds.chain(others.map(|(what, least)| (what.to_owned(), least))) {
            let number = self.tally.get(&what).copied().unwrap_or(0);
            assert!(number >= least, "{what}: {number} times, and {least} are wanted: {:#?}", self.tally);
        }
    }
}

/// Sends all queries, and returns the differences from the expected answers.
async fn wrong_answers(replica: &Replica, expected: BTreeMap<String, BTreeSet<String>>) -> Vec<String> {
    let ask = |(question, expected): (String, BTreeSet<String>)| async move {
        let answer = ask_udp(replica.linker.dns, &query(&question)).await;
        let record = |record: &hickory_proto::rr::Record| format!("{} {}", record.ttl, record.data);
        let mut data: BTreeSet<String> = answer.answers.iter().map(record).collect();
        if data.is_empty() {
            data.insert(answer.metadata.response_code.to_string());
        }
        let is_wrong = data != expected;
        is_wrong
            .then(|| format!("replica {}: {question}: should be {expected:?} and is {data:?}", replica.name))
    };
    let asked = futures::stream::iter(expected).map(ask).buffer_unordered(16);
    asked.filter_map(std::future::ready).collect().await
}

pub async fn run_model(seed: u64) {
    let seed = from_env("LB_LINKER_MODEL_SEED").unwrap_or(seed);
    let wanted = from_env("LB_LINKER_MODEL_OPS").map_or(OPERATIONS, |number| number.try_into().unwrap());
    let started = Instant::now();
    let mut run = Run::start(seed).await;
    while run.operations < wanted {
        run.batch().await;
    }
    eprintln!(
        "model sources: seed {seed}, --sources {}, {} operations, {:.1} s: {:?}",
        run.sources,
        run.operations,
        started.elapsed().as_secs_f64(),
        run.tally
    );
    run.finish(wanted >= COMPLETE);
}
