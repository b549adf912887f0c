//! The model test of all sources of names: objects of all kinds come, change and go, and ask for the same names, while
//! two replicas restart and lose the API server. At quiet points both replicas answer exactly as the model says.

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
use crate::harness::dns::{ask_udp, query};
use crate::harness::faulty_link::{ConnectionFault, FaultyLink, LinkState};
use crate::harness::linker::Linker;
use crate::harness::pool::Lent;
use crate::harness::programs::{dns_endpoint_crd, gateway_api_crds};
use crate::harness::{EVENT_TIMEOUT, LINKER, PollPauses, deploy, permission};
use generator::Generator;
use objects::Executor;
use rules::{Change, FREE, Id, Kind, Model, OWN, REPLICAS};

/// What happens in the middle of a batch of changes.
#[derive(Clone, Copy, Debug)]
enum Disturbance {
    Nothing,
    /// The connections of a replica to the API server break.
    Cut,
    /// A replica has no API server.
    HalfOpen,
    Restart,
    ApiRestart,
    /// A replica starts while the API server is away.
    StartWithoutApi,
}

const DISTURBANCES: [(Disturbance, u32); 6] = [
    (Disturbance::Nothing, 10),
    (Disturbance::Cut, 3),
    (Disturbance::HalfOpen, 2),
    (Disturbance::Restart, 5),
    (Disturbance::ApiRestart, 1),
    (Disturbance::StartWithoutApi, 2),
];

struct Replica {
    name: &'static str,
    link: FaultyLink,
    directory: TempDir,
    linker: Linker,
}

impl Replica {
    async fn start(plane: &Lent, name: &'static str, sources: &str) -> Self {
        let link = FaultyLink::start(plane, "lb-linker", "lb-linker").await;
        let directory = tempfile::tempdir().unwrap();
        let linker = run(&link, &directory, name, sources);
        linker.ready().await;
        Self { name, link, directory, linker }
    }
}

fn run(link: &FaultyLink, directory: &TempDir, name: &str, sources: &str) -> Linker {
    let snapshot = directory.path().join("links");
    let free = FREE.join(",");
    Linker::start([
        "--kubeconfig",
        link.kubeconfig(),
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
    names: BTreeSet<String>,
    /// The changes since the last quiet point, for the failure message.
    journal: Vec<String>,
    operations: usize,
    tally: BTreeMap<String, usize>,
    /// Dropped after the programs that use it.
    plane: Lent,
}

/// Returns a control plane with the CRDs and permissions of all sources.
async fn prepare() -> Lent {
    let plane = block_in_place(|| control_plane(true));
    plane.apply_files(&gateway_api_crds()[0]);
    plane.apply_files(dns_endpoint_crd());
    plane.apply_files(&deploy().join("sources"));
    let gateway = |kind: &str| format!("{kind}.gateway.networking.k8s.io");
    let kinds = ["gateways", "listenersets", "httproutes", "grpcroutes", "tlsroutes"].map(gateway);
    let endpoints = "dnsendpoints.externaldns.k8s.io";
    plane.wait_for_crds(&kinds.iter().map(String::as_str).chain([endpoints]).collect::<Vec<_>>());
    for verb in ["list", "watch"] {
        permission(&plane, true, &[verb, endpoints, "-A", LINKER]).await;
    }
    for namespace in FREE.into_iter().chain([OWN]) {
        plane.create_namespace(namespace);
    }
    plane
}

impl Run {
    async fn start(seed: u64) -> Self {
        let mut generator = Generator::new(seed);
        let mut order = vec![Kind::Service, Kind::Ingress, Kind::HttpRoute, Kind::DnsEndpoint];
        order.shuffle(&mut generator.random);
        let source = |kind: &Kind| match kind {
            Kind::Ingress => "ingress",
            Kind::HttpRoute => "gateway",
            Kind::DnsEndpoint => "dnsendpoint",
            _ => "service",
        };
        let sources = order.iter().map(source).collect::<Vec<_>>().join(",");
        let plane = prepare().await;
        let replicas =
            [Replica::start(&plane, "a", &sources).await, Replica::start(&plane, "b", &sources).await];
        Self {
            seed,
            executor: Executor { client: plane.admin_client().await },
            replicas,
            model: Model::new(order),
            names: generator.names(),
            generator,
            journal: Vec::new(),
            operations: 0,
            tally: BTreeMap::new(),
            plane,
            sources,
        }
    }

    async fn batch(&mut self) {
        let changes = self.generator.batch();
        let (before, after) = changes.split_at(self.generator.random.random_range(0..=changes.len()));
        self.execute(before).await;
        let random = &mut self.generator.random;
        let chosen = DISTURBANCES.choose_weighted(random, |(_, weight)| *weight);
        let (disturbance, replica) =
            (chosen.expect("there are some").0, self.generator.random.random_range(0..REPLICAS));
        self.count(&format!("{disturbance:?}"), 1);
        self.journal.push(format!("--- {disturbance:?} of replica {}", self.replicas[replica].name));
        match disturbance {
            Disturbance::Nothing => self.execute(after).await,
            Disturbance::Cut => {
                self.replicas[replica].link.inject(ConnectionFault::Cut);
                self.execute(after).await;
            }
            Disturbance::HalfOpen => {
                self.replicas[replica].link.set(LinkState::HalfOpen);
                self.replicas[replica].link.inject(ConnectionFault::Cut);
                self.execute(after).await;
                self.replicas[replica].link.set(LinkState::Up);
                // Connections that were opened meanwhile stay dead.
                self.replicas[replica].link.inject(ConnectionFault::Cut);
            }
            Disturbance::Restart => {
                self.stop(replica);
                self.execute(after).await;
                self.launch(replica);
                self.await_start(replica).await;
            }
            Disturbance::ApiRestart => {
                block_in_place(|| self.plane.stop_apiserver());
                self.return_api_server().await;
                self.execute(after).await;
            }
            Disturbance::StartWithoutApi => {
                block_in_place(|| self.plane.stop_apiserver());
                self.stop(replica);
                self.launch(replica);
                self.return_api_server().await;
                self.await_start(replica).await;
                self.execute(after).await;
            }
        }
        self.end_batch().await;
    }

    async fn end_batch(&mut self) {
        let marks = self.generator.mark();
        self.execute(&marks).await;
        self.wait_for_quiet_point().await;
    }

    async fn return_api_server(&mut self) {
        block_in_place(|| self.plane.start_apiserver());
        self.executor.client = self.plane.admin_client().await;
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
        let Replica { name, link, directory, linker } = &mut self.replicas[replica];
        *linker = run(link, directory, name, &self.sources);
    }

    /// Waits until a replica that has started knows all objects.
    async fn await_start(&mut self, replica: usize) {
        self.replicas[replica].linker.ready().await;
        self.model.start(replica);
        // With a snapshot it is ready before the lists are complete.
        self.end_batch().await;
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
        if !is_complete {
            return;
        }
        let kinds = Kind::ALL.into_iter().flat_map(|kind| {
            ["Create", "Recreate", "Set", "Delete"].map(|what| (format!("{what} {kind:?}"), 3))
        });
        let others = [
            ("contested name", 300),
            ("shared name", 20),
            ("kept target", 50),
            ("target that one replica keeps", 20),
            ("Cut", 5),
            ("HalfOpen", 3),
            ("Restart", 10),
            ("ApiRestart", 1),
            ("StartWithoutApi", 3),
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
