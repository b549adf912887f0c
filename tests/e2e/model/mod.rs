//! The model test: runs a seeded random sequence of operations on a real API server, restarts and kills lb-linker in
//! between, and at quiet points compares the objects and the DNS answers exactly with a small pure model. At a quiet
//! point lb-linker has nothing left to write.
//!
//! A seed determines the operations; how far lb-linker has got at each operation depends on the machine. Each
//! `--on-delete` value has a fixed seed, so that the suite always runs the same operations, `make test` the first 600 of
//! the 2,000 of `make test-release`; other seeds find more:
//!
//!     LB_LINKER_MODEL_SEED=7 LB_LINKER_MODEL_OPS=20000 cargo test --test e2e -- model:: --nocapture
//!
//! A failure prints its seed, the differences, and the operations since the last quiet point; the same seed repeats
//! the operations.
//!
//! The sources of names have a model of their own (`sources.rs`), which compares the answers of two replicas.
//!
//! Where the outcome depends on lb-linker's pace, the model allows several outcomes: the external target of a load
//! balancer that is gone, or pending again, may be any that the link has had since the last quiet point. Where names
//! clash the order of changes matters, so only one of the Services with the same default name changes between two
//! quiet points. A started lb-linker knows only the state in the API server: the model then starts from the existing
//! objects, after a check that the previous process may have left these objects.

pub(crate) mod disturbed;
mod executor;
mod generator;
mod observe;
mod operations;
mod quiesce;
mod rules;
mod soak;
mod sources;
mod suspend;
mod world;

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use futures::StreamExt;
use lb_linker::model::service_key::ServiceKey;
use lb_linker::sync::external_target::decision::OnDelete;
use nix::sys::signal::Signal;

use crate::harness::control_plane::ControlPlane;
use crate::harness::linker::Linker;
use crate::harness::pool::Lent;
use crate::harness::{EVENT_TIMEOUT, PollPauses, deploy, grant};
use executor::{Executor, HIDDEN};
use generator::{Batch, Generator, Restart, Universe};
use observe::{observe, wrong_answers};
use operations::{Action, Operation, Outcome};
use quiesce::ComparedCounts;
use rules::{Model, Observed};

/// The number of operations of a run, unless `LB_LINKER_MODEL_OPS` has another.
const OPERATIONS: usize = 400;
/// The number of operations in which each kind of operation and of check occurs often enough.
const COMPLETE: usize = 2000;
/// The number of concurrent requests to the API server.
const CONCURRENT_REQUESTS: usize = 8;
/// The time without writes after which lb-linker counts as idle, and for which it must then stay idle.
const IDLE_PERIOD: Duration = Duration::from_millis(30);
const LATE_COUNT: &str = "late count";
/// How often in a run a write may be counted after its object was seen.
const MAX_LATE_COUNTS: usize = 5;

#[tokio::test]
async fn random_operations_match_the_model_with_delete() {
    run("delete", OnDelete::Delete, 1).await;
}

#[tokio::test]
async fn random_operations_match_the_model_with_retain() {
    run("retain", OnDelete::Retain, 2).await;
}

#[tokio::test]
async fn random_operations_match_the_model_with_tombstone() {
    run("tombstone", OnDelete::Tombstone, 3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_objects_of_all_sources_match_the_model() {
    sources::run_model(6).await;
}

/// Returns the control plane that the model tests share. Other tests don't use it, because the model tests make
/// thousands of operations.
fn plane() -> Arc<Lent> {
    static PLANE: Mutex<Weak<Lent>> = Mutex::new(Weak::new());
    let mut shared = PLANE.lock().unwrap_or_else(PoisonError::into_inner);
    shared.upgrade().unwrap_or_else(|| {
        let plane = Arc::new(ControlPlane::lend());
        // lb-linker needs these permissions to write followers.
        plane.apply_files(&deploy().join("source"));
        *shared = Arc::downgrade(&plane);
        plane
    })
}

fn from_env(name: &str) -> Option<u64> {
    let text = env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} isn't a number")))
}

async fn run(name: &str, on_delete: OnDelete, seed: u64) {
    let seed = from_env("LB_LINKER_MODEL_SEED").unwrap_or(seed);
    let wanted = from_env("LB_LINKER_MODEL_OPS").map_or(OPERATIONS, |number| number.try_into().unwrap());
    let started = Instant::now();
    let universe = Universe::new(name);
    let mut run = Run::start(name, on_delete, seed, &universe).await;
    let mut generator = Generator::new(seed, on_delete);
    while run.operations < wanted {
        let batch = generator.batch(&universe, true);
        run.execute_batch(batch, &generator).await;
        let marks = generator.mark(&universe);
        run.execute(&marks, None).await;
        run.wait_for_quiet_point().await;
    }
    eprintln!(
        "model {name}: seed {seed}, {} operations, {} quiet points, {:.1} s",
        run.operations,
        run.tally["quiet point"],
        started.elapsed().as_secs_f64()
    );
    eprintln!("model {name}: {:?}", run.tally);
    run.finish(wanted >= COMPLETE);
}

fn target_namespace(name: &str) -> String {
    format!("{name}-targets")
}

/// Creates the namespaces of a run, and grants lb-linker its permissions in the target namespace.
fn prepare(name: &str, universe: &Universe) -> Arc<Lent> {
    let plane = plane();
    let target = target_namespace(name);
    for namespace in universe.namespaces.iter().chain([&target]) {
        plane.create_namespace(namespace);
    }
    grant(&plane, &target);
    plane
}

fn args(name: &str, on_delete: OnDelete, universe: &Universe, kubeconfig: &Path) -> Vec<String> {
    let on_delete = on_delete.to_possible_value().expect("none is hidden");
    [
        "--kubeconfig",
        kubeconfig.to_str().unwrap(),
        "--target-namespace",
        &target_namespace(name),
        "--watch-namespaces",
        &universe.namespaces.join(","),
        "--service-selector",
        &format!("!{HIDDEN}"),
        "--upstream",
        "none",
        "--on-delete",
        on_delete.get_name(),
        "--delete-delay",
        "0s",
        "--max-deletes",
        "unlimited",
    ]
    .map(ToOwned::to_owned)
    .into()
}

struct Run<'a> {
    name: String,
    seed: u64,
    universe: &'a Universe,
    executor: Executor,
    args: Vec<String>,
    linker: Linker,
    model: Model,
    /// The operations since the last quiet point, for the failure message.
    journal: Vec<String>,
    operations: usize,
    /// The numbers of operations and checks, by kind.
    tally: BTreeMap<String, usize>,
    _plane: Arc<Lent>,
}

impl<'a> Run<'a> {
    async fn start(name: &str, on_delete: OnDelete, seed: u64, universe: &'a Universe) -> Self {
        let plane = prepare(name, universe);
        let kubeconfig = plane.kubeconfig_for_service_account("lb-linker", "lb-linker");
        let args = args(name, on_delete, universe, &kubeconfig);
        let linker = Linker::start(&args);
        Self::with(name, on_delete, seed, universe, plane, args, linker).await
    }

    /// Creates a run with an lb-linker that has been started.
    async fn with(
        name: &str,
        on_delete: OnDelete,
        seed: u64,
        universe: &'a Universe,
        plane: Arc<Lent>,
        args: Vec<String>,
        linker: Linker,
    ) -> Self {
        let target = target_namespace(name);
        let executor = Executor { cluster: plane.cluster().await, target_namespace: target };
        linker.ready().await;
        let mut model = Model::new(on_delete);
        model.start(&Observed::default());
        Self {
            name: name.to_owned(),
            seed,
            universe,
            executor,
            args,
            linker,
            model,
            journal: Vec::new(),
            operations: 0,
            tally: BTreeMap::new(),
            _plane: plane,
        }
    }

    async fn execute_batch(&mut self, batch: Batch, generator: &Generator) {
        self.execute(&batch.operations, batch.restart.as_ref()).await;
        let Some(restart) = batch.restart else { return };
        self.model.stop();
        self.execute(&restart.meanwhile, None).await;
        let mut observed = self.wait_until_idle().await;
        let wrong = self.model.defects_after_stop(&observed);
        if !wrong.is_empty() {
            self.fail(&wrong, &observed);
        }
        self.count("look at what a stop has left");
        let decisions: Vec<Operation> = Model::links_with_two_objects(&observed)
            .iter()
            .filter_map(|key| generator.disambiguate(key))
            .collect();
        if !decisions.is_empty() {
            self.count_by("link with two objects at a start", decisions.len());
            self.execute(&decisions, None).await;
            observed = self.observe().await;
        }
        self.assert_no_errors();
        self.linker = Linker::start(&self.args);
        self.linker.ready().await;
        self.model.start(&observed);
        self.operations += 1;
    }

    /// Executes operations: sequentially on the same Service, concurrently on different Services. With `restart`,
    /// ends lb-linker in between.
    async fn execute(&mut self, operations: &[Operation], restart: Option<&Restart>) {
        let mut chains: BTreeMap<&ServiceKey, Vec<(usize, &Operation)>> = BTreeMap::new();
        for (number, operation) in operations.iter().enumerate() {
            chains.entry(&operation.key).or_default().push((number, operation));
        }
        let (executor, done) = (&self.executor, &AtomicUsize::new(0));
        let linker = &mut self.linker;
        let carrying_out = futures::stream::iter(chains.into_values())
            .map(|chain| async move {
                let mut outcomes = Vec::new();
                for (number, operation) in chain {
                    outcomes.push((number, executor.execute(operation).await));
                    done.fetch_add(1, Ordering::Relaxed);
                }
                outcomes
            })
            .buffer_unordered(CONCURRENT_REQUESTS)
            .collect::<Vec<_>>();
        let ending = async {
            let Some(restart) = restart else { return };
            while done.load(Ordering::Relaxed) < restart.after {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            if restart.kill {
                linker.kill();
            } else {
                linker.signal(Signal::SIGTERM);
                assert!(linker.ended().await.success());
            }
        };
        let (outcomes, ()) = tokio::join!(carrying_out, ending);
        let outcomes: BTreeMap<usize, Outcome> = outcomes.into_iter().flatten().collect();
        for (operation, outcome) in operations.iter().zip(outcomes.values()) {
            self.model.apply(operation, outcome);
            self.operations += 1;
            self.count(&operation.action.name());
            if outcome.done && operation.action == Action::CreateForeign {
                self.count("stranger that came");
            }
            let Operation { key, action } = operation;
            let Outcome { touched, done, .. } = outcome;
            let came =
                if *touched || *done { format!(" (touched {touched}, done {done})") } else { String::new() };
            self.journal.push(format!("{key}: {action:?}{came}"));
        }
        if let Some(Restart { kill, after, .. }) = restart {
            self.count(if *kill { "kill" } else { "restart" });
            if *after < operations.len() {
                self.count("end amid operations");
            }
            let how = if *kill { "killed" } else { "stopped" };
            self.journal.push(format!("--- {how} after {after} of {}", operations.len()));
        }
    }

    /// Waits until the objects and the DNS answers match the model, and asserts that lb-linker then writes nothing
    /// more.
    async fn wait_for_quiet_point(&mut self) {
        let deadline = Instant::now() + EVENT_TIMEOUT;
        let keys: BTreeSet<ServiceKey> = self.universe.keys();
        let mut pauses = PollPauses::new();
        loop {
            self.count("look");
            let observed = self.observe().await;
            let mut checked = ComparedCounts::default();
            let (wrong, next) = match self.model.settle(&observed) {
                Err(wrong) => (wrong, None),
                Ok((next, now)) => {
                    checked = now;
                    let answers = next.answers(&keys);
                    self.count_by("answer", answers.len());
                    (wrong_answers(self.linker.dns, answers).await, Some(next))
                }
            };
            if let Some(next) = next.filter(|_| wrong.is_empty()) {
                tokio::time::sleep(IDLE_PERIOD).await;
                let writes = self.linker.writes();
                if self.observe().await == observed {
                    tokio::time::sleep(IDLE_PERIOD).await;
                    let later = self.observe().await;
                    if later != observed || self.linker.writes() != writes {
                        // A write is counted a moment after the object has changed.
                        self.count(LATE_COUNT);
                        if later == observed && self.tally[LATE_COUNT] <= MAX_LATE_COUNTS {
                            continue;
                        }
                        let what =
                            format!("lb-linker writes at a quiet point: {writes} → {}", self.linker.writes());
                        self.fail(&[what, format!("before: {observed:#?}")], &later);
                    }
                    self.note(&checked);
                    self.model = next;
                    self.journal.clear();
                    return;
                }
            }
            if Instant::now() > deadline {
                let restless = ["the state matches the model, but keeps changing".to_owned()];
                self.fail(if wrong.is_empty() { &restless } else { &wrong }, &observed);
            }
            pauses.next().await;
        }
    }

    async fn observe(&self) -> Observed {
        let followers: Vec<ServiceKey> = self.model.followers.keys().cloned().collect();
        observe(&self.executor.cluster, &self.executor.target_namespace, &followers).await
    }

    /// Returns the state of the target namespace after the last requests of an lb-linker that has ended.
    async fn wait_until_idle(&self) -> Observed {
        let mut before = self.observe().await;
        loop {
            tokio::time::sleep(IDLE_PERIOD).await;
            let now = self.observe().await;
            if now == before {
                return now;
            }
            before = now;
        }
    }

    fn count(&mut self, what: &str) {
        self.count_by(what, 1);
    }

    fn count_by(&mut self, what: &str, number: usize) {
        *self.tally.entry(what.to_owned()).or_default() += number;
    }

    fn note(&mut self, checked: &ComparedCounts) {
        self.count("quiet point");
        for (what, number) in [
            ("link", checked.links),
            ("hostname target", checked.hostnames),
            ("address target", checked.addresses),
            ("stale target", checked.stale),
            ("pending link", checked.pending),
            ("retained target", checked.retained),
            ("tombstone", checked.tombstones),
            ("name after a hash", checked.hashed),
            ("stranger", checked.foreign),
            ("conflict", checked.conflicts),
            ("follower", checked.followers),
            ("link with a choice", checked.either),
        ] {
            self.count_by(what, number);
        }
    }

    /// Asserts that lb-linker has logged no error: no operation of this test causes one.
    fn assert_no_errors(&self) {
        let mut log = self.linker.log();
        log.retain(|line| line.contains("ERROR") || line.contains("panicked"));
        assert!(log.is_empty(), "model {}, seed {}: {log:#?}", self.name, self.seed);
    }

    /// Stops lb-linker, and asserts that a complete run had enough operations and checks of each kind.
    fn finish(mut self, complete: bool) {
        let errors: Vec<String> =
            self.linker.log().into_iter().filter(|line| line.contains("ERROR")).collect();
        assert!(errors.is_empty(), "{errors:#?}");
        assert!(self.linker.stop().success());
        if !complete {
            return;
        }
        let only = |name: &str, number| if self.name == name { number } else { 0 };
        for (what, least) in [
            ("quiet point", 50),
            ("answer", 5000),
            ("link", 1000),
            ("hostname target", 500),
            ("address target", 100),
            ("stale target", 20),
            ("pending link", 50),
            ("retained target", only("retain", 100)),
            ("tombstone", only("tombstone", 100)),
            ("name after a hash", 50),
            ("stranger", 10),
            ("conflict", 5),
            ("stranger that came", 5),
            ("follower", if operations::SOURCE { 20 } else { 0 }),
            ("kill", 5),
            ("restart", 4),
            ("end amid operations", 4),
            ("look at what a stop has left", 9),
            ("Create", 50),
            ("Delete", 20),
            ("Recreate", 20),
            ("SetHosts", 100),
            ("SetSeveralHosts", 20),
            ("SetAddresses", 50),
            ("Blank", 20),
            ("SetUnservable", 5),
            ("SetPort", 5),
            ("ChangeTypeToLoadBalancer", 5),
            ("ChangeTypeToClusterIp", 3),
            ("ChangeTypeToExternalName", 3),
            ("OptOut", 5),
            ("OptIn", 5),
            ("Hide", 5),
            ("Show", 5),
            ("Hold", 5),
            ("Release", 5),
            ("SetWrongHost", 5),
            ("SetWrongSpec", 5),
            ("DeleteObject", 5),
            ("DeleteService", 5),
            ("DeleteSlice", 3),
            ("EditSlice", 3),
            ("RemoveSliceLabels", 3),
            ("CreateForeign", 5),
            ("DeleteForeign", 3),
            ("CreateAdoptable", if operations::ADOPTION { 5 } else { 0 }),
            ("Follow", if operations::SOURCE { 5 } else { 0 }),
            ("Unfollow", if operations::SOURCE { 3 } else { 0 }),
            ("AllowFrom", if operations::SOURCE { 5 } else { 0 }),
            ("Claim", if operations::HOSTNAMES { 5 } else { 0 }),
        ] {
            let number = self.tally.get(what).copied().unwrap_or(0);
            assert!(number >= least, "{what}: {number} times, and {least} are wanted: {:#?}", self.tally);
        }
        // Links with several allowed outcomes are tested less strictly, so there must be few of them.
        assert!(self.tally["link with a choice"] * 6 < self.tally["link"], "{:#?}", self.tally);
    }

    fn fail(&self, wrong: &[String], observed: &Observed) -> ! {
        let log = self.linker.log();
        let there: Vec<String> =
            observed.ours.iter().map(|(id, shape)| format!("{id:?}: {shape:?}")).collect();
        panic!(
            "model {}: LB_LINKER_MODEL_SEED={}, after {} operations:\n{}\n\nsince the quiet point:\n{}\n\n\
             the log's end:\n{}\n\nlb-linker's objects:\n{}",
            self.name,
            self.seed,
            self.operations,
            wrong.join("\n"),
            self.journal.join("\n"),
            log[log.len().saturating_sub(60)..].join("\n"),
            there.join("\n"),
        );
    }
}
