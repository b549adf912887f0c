//! Replicas that are disturbed while Services and StableNames come, change and go: the API server restarts,
//! connections break, leaders are killed and stopped, Corefiles are reloaded, upstreams fail. Every answer is judged.

pub mod audit;
pub mod history;
pub mod load;

use std::collections::{BTreeMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::rdata::{A, AAAA};
use hickory_proto::rr::{RData, Record, RecordType};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use lb_linker::api::stable_name::StableName;
use lb_linker::model::service_key::ServiceKey;
use lb_linker::sync::external_target::decision::OnDelete;
use nix::sys::signal::Signal;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use serde_json::json;
use tempfile::TempDir;
use tokio::task::block_in_place;

use super::executor::{Executor, HIDDEN};
use super::generator::{Generator, Universe};
use super::observe::observe;
use super::operations::{Action, Operation, Outcome};
use super::rules::{Model, Observed, ZONE};
use super::world::{Balancer, Target, TargetObjects};
use crate::failover::shortest_check;
use crate::harness::clock::{ClockStop, ShiftedClock};
use crate::harness::control_plane::{ControlPlane, Options};
use crate::harness::dns::{FaultyUpstream, absence, ask_udp, error, query};
use crate::harness::faulty_link::{ConnectionFault, FaultyLink, LinkState};
use crate::harness::linker::Linker;
use crate::harness::pool::{Base, Lent};
use crate::harness::{EVENT_TIMEOUT, PollPauses, deploy, eventually};
use history::{Change, Seen, State};
use load::{QueriedObject, Shared};

pub(super) const TARGETS: &str = "external-targets";
const NAMESPACE: &str = "soak";
/// The number of hostnames of load balancers. All are used within some minutes, so that the caches of their answers are
/// full when `make soak` begins to compare the memory.
const HOSTS: usize = 200;

/// The size and the options of a [`Disturbed`].
#[derive(Clone, Debug)]
pub struct Setup {
    pub services: usize,
    pub stable_names: usize,
    /// The pause between two operations.
    pub pause: Duration,
    /// The longest time for which connections stay delayed or half-open after the last operation of a round.
    pub max_fault_duration: Duration,
    /// Whether replica 0 is never restarted. Otherwise the leader is killed, whichever replica it is.
    pub keeps_replica_0: bool,
    /// Whether the clocks of the replicas can be stopped.
    pub has_clocks: bool,
    /// Whether the audit log is kept completely, as in a short run.
    pub keeps_audit_log: bool,
    /// For servers that get lb-linker's names from a replica.
    pub downstream: Option<DownstreamLines>,
}

/// Lines of the replicas' Corefiles.
#[derive(Clone, Debug)]
pub struct DownstreamLines {
    /// In the block for DNS.
    pub transfer: String,
    /// In a block for HTTPS.
    pub tls: String,
}

/// What happens during the operations of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disturbance {
    Nothing,
    Cut,
    Reset,
    Delay,
    HalfOpen,
    Silence,
    ApiStop,
    ApiKill,
    LeaderKill,
    LeaderStop,
    /// The leader and its clocks are stopped for at least this time.
    LeaderSuspend(ClockStop, Duration),
    LeaseRelease,
    /// A replica is killed and starts again while the API server is away.
    StartWithoutApi,
    Reload,
    Servfail,
    SilentUpstream,
}

impl Disturbance {
    /// All disturbances except `LeaderSuspend`, which needs [`Setup::has_clocks`].
    pub const ALL: [Self; 15] = [
        Self::Nothing,
        Self::Cut,
        Self::Reset,
        Self::Delay,
        Self::HalfOpen,
        Self::Silence,
        Self::ApiStop,
        Self::ApiKill,
        Self::LeaderKill,
        Self::LeaderStop,
        Self::LeaseRelease,
        Self::StartWithoutApi,
        Self::Reload,
        Self::Servfail,
        Self::SilentUpstream,
    ];

    /// Returns whether replicas may learn of changes late.
    fn disturbs_watches(self) -> bool {
        use Disturbance::{LeaseRelease, Nothing, Reload, Servfail, SilentUpstream};
        ![Nothing, LeaseRelease, Reload, Servfail, SilentUpstream].contains(&self)
    }
}

/// Returns the address of a hostname at the upstream.
pub(crate) fn address_of(host: &str, qtype: RecordType) -> IpAddr {
    let hash =
        host.bytes().fold(2_166_136_261_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(16_777_619));
    let [_, a, b, c] = hash.to_be_bytes();
    match qtype {
        RecordType::AAAA => Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, a.into(), b.into(), c.into()).into(),
        _ => Ipv4Addr::new(10, a, b, c).into(),
    }
}

#[derive(Default)]
struct UpstreamState {
    servfail: bool,
    silent: bool,
    /// Hostnames that don't exist.
    dead: HashSet<String>,
}

async fn upstream(state: &Arc<Mutex<UpstreamState>>) -> FaultyUpstream {
    let state = Arc::clone(state);
    FaultyUpstream::start(move |asked: &Message, _| {
        let state = state.lock().unwrap();
        let question = &asked.queries[0];
        let host = question.name().to_ascii().trim_end_matches('.').to_owned();
        if state.silent {
            return vec![];
        }
        if state.servfail {
            return vec![error(asked, ResponseCode::ServFail)];
        }
        if state.dead.contains(&host) {
            return vec![absence(asked, ResponseCode::NXDomain)];
        }
        let mut answer = error(asked, ResponseCode::NoError);
        let data = match address_of(&host, question.query_type()) {
            IpAddr::V4(ip) => RData::A(A(ip)),
            IpAddr::V6(ip) => RData::AAAA(AAAA(ip)),
        };
        answer.add_answer(Record::from_rdata(question.name().clone(), 5, data));
        vec![answer]
    })
    .await
}

/// A replica, and the relay between it and the API server.
pub struct Replica {
    name: &'static str,
    pub link: FaultyLink,
    clock: Option<ShiftedClock>,
    directory: TempDir,
    pub linker: Linker,
}

impl Replica {
    async fn start(plane: &ControlPlane, name: &'static str, upstream: &str, setup: &Setup) -> Self {
        let link = FaultyLink::start(plane, "lb-linker", "lb-linker").await;
        let directory = tempfile::tempdir().unwrap();
        write_corefile(directory.path(), upstream, 10, "", setup.downstream.as_ref());
        let clock = setup.has_clocks.then(ShiftedClock::new);
        let linker = run(&link, directory.path(), name, clock.as_ref());
        linker.ready().await;
        Self { name, link, clock, directory, linker }
    }

    async fn start_anew(&mut self) {
        self.linker = run(&self.link, self.directory.path(), self.name, self.clock.as_ref());
        self.linker.ready().await;
    }

    fn snapshot(&self) -> PathBuf {
        self.directory.path().join("links")
    }

    fn leads(&self) -> bool {
        self.linker.metric("lb_linker_leader") == Some(1.0)
    }
}

fn run(link: &FaultyLink, directory: &Path, name: &str, clock: Option<&ShiftedClock>) -> Linker {
    let variables = clock.map(ShiftedClock::variables);
    let variables: Vec<(&str, &str)> =
        variables.iter().flatten().map(|(name, value)| (*name, &**value)).collect();
    let corefile = directory.join("Corefile");
    let selector = format!("!{HIDDEN}");
    let args = ["--kubeconfig", link.kubeconfig(), "--target-namespace", TARGETS];
    let corefile = ["--corefile", corefile.to_str().unwrap(), "--service-selector", &selector];
    let deletion = ["--delete-delay", "0s", "--max-deletes", "unlimited"];
    let election = ["--leader-election", "lease", "--identity", name];
    let snapshot = directory.join("links");
    let snapshot = ["--snapshot", snapshot.to_str().unwrap()];
    Linker::start_with(&variables, [&args[..], &corefile, &deletion, &election, &snapshot].concat())
}

fn write_corefile(
    directory: &Path,
    upstream: &str,
    cache: u32,
    more_zones: &str,
    downstream: Option<&DownstreamLines>,
) {
    let http = "prometheus 127.0.0.1:0\nhealth 127.0.0.1:0\nready 127.0.0.1:0";
    let plugins =
        format!("bind 127.0.0.1\ncache {cache}\nlb_linker {ZONE} {more_zones}\nforward . {upstream}\n");
    let corefile = match downstream {
        None => format!(".:0 {{\n{http}\n{plugins}}}\n"),
        Some(DownstreamLines { transfer, tls }) => {
            format!(".:0 {{\n{http}\n{transfer}\n{plugins}}}\nhttps://.:0 {{\n{tls}\n{plugins}}}\n")
        }
    };
    std::fs::write(directory.join("Corefile"), corefile).unwrap();
}

/// Returns a control plane. Unless `keeps_audit_log`, its audit log is limited to two files of 10 MB.
pub(super) fn control_plane(keeps_audit_log: bool) -> Lent {
    let plane = if keeps_audit_log {
        ControlPlane::lend_with(Base::StableNames)
    } else {
        let small = ["--audit-log-maxsize=10", "--audit-log-maxbackup=1"].map(ToOwned::to_owned);
        ControlPlane::start_with(
            Base::StableNames,
            Options { apiserver_args: small.to_vec(), ..Options::default() },
        )
    };
    plane.apply_files(&deploy().join("source"));
    let role = ["create", "role", "leases", "--verb=get,create,update", "--resource=leases"];
    let account = "--serviceaccount=lb-linker:lb-linker";
    let binding = ["create", "rolebinding", "leases", "--role=leases", account];
    for command in [&role[..], &binding[..]] {
        plane.kubectl(&[&["-n", TARGETS], command].concat());
    }
    plane
}

/// Two replicas with a control plane and an upstream, and the model of what they should do.
pub struct Disturbed {
    setup: Setup,
    executor: Executor,
    universe: Universe,
    model: Model,
    generator: Generator,
    pub random: StdRng,
    pub shared: Arc<Shared>,
    subjects: BTreeMap<ServiceKey, usize>,
    /// For each StableName, its number in the history, and whether the StableName exists.
    stable_names: Vec<(usize, bool)>,
    pub upstream: FaultyUpstream,
    upstream_state: Arc<Mutex<UpstreamState>>,
    pub replicas: [Replica; 2],
    /// A replica that has been killed or stopped, when, and whether it led.
    away: Option<(usize, Instant, bool)>,
    pub tally: BTreeMap<String, usize>,
    pub operations: usize,
    /// The longest time until everything had converged after a round.
    pub slowest: Duration,
    /// The times from a return of the API server until everything had converged.
    pub converged_after_return: Vec<Duration>,
    /// The times from the end or the stop of a leader until the next replica led.
    pub take_overs: Vec<Duration>,
    /// Dropped after the programs that use it.
    plane: Lent,
}

impl Disturbed {
    pub async fn start(setup: Setup, seed: u64) -> Self {
        let universe = Universe::without_clashes(NAMESPACE, setup.services);
        let plane = block_in_place(|| control_plane(setup.keeps_audit_log));
        for namespace in &universe.namespaces {
            plane.create_namespace(namespace);
        }
        let upstream_state = Arc::default();
        let upstream = upstream(&upstream_state).await;
        let address = upstream.address.to_string();
        let start = |name| Replica::start(&plane, name, &address, &setup);
        let replicas = [start("a").await, start("b").await];
        let shared = Arc::new(Shared::default());
        *shared.replicas.lock().unwrap() = replicas.each_ref().map(|replica| Some(replica.linker.dns));
        let (subjects, stable_names) = shared.with(|history| {
            let subjects = universe.keys().into_iter().map(|key| (key, history.add())).collect();
            (subjects, (0..setup.stable_names).map(|_| (history.add(), false)).collect())
        });
        let mut model = Model::new(OnDelete::Delete);
        model.start(&Observed::default());
        let executor = Executor { cluster: plane.cluster().await, target_namespace: TARGETS.to_owned() };
        Self {
            executor,
            model,
            generator: Generator::of_services(seed, HOSTS),
            random: StdRng::seed_from_u64(seed),
            shared,
            subjects,
            stable_names,
            upstream,
            upstream_state,
            replicas,
            away: None,
            tally: BTreeMap::new(),
            operations: 0,
            slowest: Duration::ZERO,
            converged_after_return: Vec::new(),
            take_overs: Vec::new(),
            setup,
            plane,
            universe,
        }
    }

    /// Starts a load of this many queries per second for all names, until `shared.stop` is set.
    pub fn start_load(&self, rate: u32, seed: u64) -> JoinHandle<()> {
        load::start(&self.shared, &self.subjects(), rate, seed)
    }

    /// Returns the names that are asked for.
    pub fn subjects(&self) -> Vec<QueriedObject> {
        let of_services = self.subjects.iter().map(|(key, number)| {
            let (name, namespace) = (key.name(), key.namespace());
            let names = vec![format!("{name}.{namespace}.{ZONE}."), format!("{name}-{namespace}.{ZONE}.")];
            QueriedObject { number: *number, names }
        });
        let of_targets = self.stable_names.iter().enumerate().map(|(i, (number, _))| {
            let names = vec![format!("sn-{i}.{NAMESPACE}.{ZONE}."), format!("sn-{i}-{NAMESPACE}.{ZONE}.")];
            QueriedObject { number: *number, names }
        });
        of_services.chain(of_targets).collect()
    }

    /// Executes a batch of operations with a disturbance, which begins amid the batch. Then waits until everything has
    /// converged.
    pub async fn round(&mut self, disturbance: Disturbance) {
        *self.tally.entry(format!("{disturbance:?}")).or_default() += 1;
        let operations = self.generator.batch(&self.universe, false).operations;
        let middle = self.random.random_range(0..operations.len());
        let (before, after) = operations.split_at(middle);
        self.execute(before).await;
        if disturbance.disturbs_watches() {
            self.shared.with(history::History::begin_disturbance);
        }
        self.begin(disturbance).await;
        self.execute(after).await;
        self.change_stable_name().await;
        self.end(disturbance).await;
        self.mark().await;
        self.converge(disturbance).await;
        self.shared.with(history::History::end_disturbances);
        let addresses = self.replicas.each_ref().map(|replica| Some(replica.linker.dns));
        *self.shared.replicas.lock().unwrap() = addresses;
        self.upstream.forget();
    }

    /// Stops the replicas, and asserts that none has panicked.
    pub fn stop(mut self) {
        for replica in &mut self.replicas {
            let mut log = replica.linker.log();
            log.retain(|line| line.contains("panicked"));
            assert!(log.is_empty(), "{log:#?}");
            assert!(block_in_place(|| replica.linker.stop()).success());
        }
    }

    /// Changes the target of a Service in each namespace.
    async fn mark(&mut self) {
        let marks = self.generator.mark(&self.universe);
        self.execute(&marks).await;
    }

    /// Starts the API server, and changes a target in each namespace. Records the time from the start until the
    /// replicas answer the present states, and the external targets are those of the model.
    async fn return_api_server(&mut self, disturbance: Disturbance) {
        block_in_place(|| self.plane.start_apiserver());
        let returned = Instant::now();
        self.executor.cluster = self.plane.cluster().await;
        self.mark().await;
        self.wait_for_convergence(disturbance).await;
        self.converged_after_return.push(returned.elapsed());
        self.shared.with(history::History::end_starts);
    }

    /// Changes a target in each namespace, and returns how long it takes until all replicas answer the last of these
    /// targets.
    pub async fn time_of_change(&mut self) -> Duration {
        let changed = Instant::now();
        self.mark().await;
        let key = self.universe.markers.last().expect("there are some").clone();
        let name = format!("{}.{}.{ZONE}.", key.name(), key.namespace());
        let present = self.shared.with(|history| history.present(self.subjects[&key]));
        for replica in &self.replicas {
            eventually(&format!("a change at replica {}", replica.name), || async {
                let seen = self.ask(replica, &name).await;
                present.iter().any(|state| state.allows(&seen, RecordType::A)).then_some(())
            })
            .await;
        }
        changed.elapsed()
    }

    /// Executes operations one after the other, and records the states that result.
    async fn execute(&mut self, operations: &[Operation]) {
        for operation in operations {
            self.shared.with(history::History::begin_change);
            let outcome: Outcome = self.executor.execute(operation).await;
            self.model.apply(operation, &outcome);
            match self.subjects.get(&operation.key) {
                Some(number) => {
                    let change = self.change_of(operation);
                    self.shared.with(|history| history.record(*number, change));
                }
                None => self.shared.with(history::History::end_other_change),
            }
            self.operations += 1;
            *self.tally.entry(operation.action.name()).or_default() += 1;
            tokio::time::sleep(self.setup.pause).await;
        }
    }

    /// Returns the change of a Service's names by an operation that has been applied to the model.
    fn change_of(&self, Operation { key, action }: &Operation) -> Change {
        let begins = matches!(action, Action::Create | Action::Recreate);
        let passing = (*action == Action::Recreate).then_some(State::Gone);
        let link = self.model.links.get(key);
        let (keeps_targets, state) = match self.model.balancers.get(key).filter(|it| it.is_selected()) {
            None => (false, Some(if link.is_some() { State::Gone } else { State::Absent })),
            Some(Balancer { ingress, .. }) if !ingress.hosts.is_empty() => {
                (false, Some(State::Hosts(ingress.hosts.clone())))
            }
            Some(Balancer { ingress, .. }) if !ingress.ips.is_empty() => {
                (false, Some(State::Ips(ingress.ips.clone())))
            }
            Some(_) if link.is_some_and(|link| link.target.is_some()) => (true, None),
            Some(_) => (!begins, Some(State::Pending)),
        };
        Change { passing, keeps_targets, state }
    }

    async fn begin(&mut self, disturbance: Disturbance) {
        let which = match self.random.random_range(0..3) {
            0 => vec![0],
            1 => vec![1],
            _ => vec![0, 1],
        };
        let links: Vec<&FaultyLink> = which.iter().map(|number| &self.replicas[*number].link).collect();
        match disturbance {
            Disturbance::Nothing => {}
            Disturbance::Cut => links.iter().for_each(|link| link.inject(ConnectionFault::Cut)),
            Disturbance::Reset => links.iter().for_each(|link| link.inject(ConnectionFault::Reset)),
            Disturbance::Silence => links.iter().for_each(|link| link.inject(ConnectionFault::Silence)),
            Disturbance::Delay => {
                links.iter().for_each(|link| link.set(LinkState::Delayed(Duration::from_secs(5))))
            }
            Disturbance::HalfOpen => {
                for link in links {
                    link.set(LinkState::HalfOpen);
                    link.inject(ConnectionFault::Cut);
                }
            }
            Disturbance::ApiStop | Disturbance::ApiKill => {
                let pause = Duration::from_millis(self.random.random_range(0..5000));
                block_in_place(|| match disturbance {
                    Disturbance::ApiStop => self.plane.stop_apiserver(),
                    _ => self.plane.kill_apiserver(),
                });
                tokio::time::sleep(pause).await;
                self.return_api_server(disturbance).await;
            }
            Disturbance::StartWithoutApi => {
                let victim = if self.setup.keeps_replica_0 { 1 } else { self.random.random_range(0..2) };
                let pause = Duration::from_millis(self.random.random_range(0..5000));
                let snapshot = self.replicas[victim].snapshot();
                eventually("a snapshot", || async { snapshot.exists().then_some(()) }).await;
                self.shared.replicas.lock().unwrap()[victim] = None;
                // Wait until the load sends no more queries to the replica.
                tokio::time::sleep(Duration::from_millis(20)).await;
                block_in_place(|| self.plane.stop_apiserver());
                let end = Instant::now();
                self.replicas[victim].linker.kill();
                self.start_anew(victim, end).await;
                tokio::time::sleep(pause).await;
                self.return_api_server(disturbance).await;
            }
            Disturbance::LeaderKill | Disturbance::LeaderStop | Disturbance::LeaderSuspend(..) => {
                // With a survivor, replica 1 is killed or stopped, also while it is the follower.
                let leader = usize::from(self.replicas[1].leads());
                let victim = if self.setup.keeps_replica_0 { 1 } else { leader };
                *self.tally.entry(format!("{disturbance:?} of the leader")).or_default() +=
                    usize::from(victim == leader);
                self.shared.replicas.lock().unwrap()[victim] = None;
                // Wait until the load sends no more queries to the replica.
                tokio::time::sleep(Duration::from_millis(20)).await;
                let Replica { linker, clock, .. } = &mut self.replicas[victim];
                match (disturbance, clock) {
                    (Disturbance::LeaderKill, _) => linker.kill(),
                    (Disturbance::LeaderSuspend(..), Some(clock)) => block_in_place(|| clock.stop(linker)),
                    _ => assert!(block_in_place(|| linker.stop()).success()),
                }
                self.away = Some((victim, Instant::now(), victim == leader));
            }
            Disturbance::LeaseRelease => self.release_lease().await,
            Disturbance::Reload => {
                let cache = self.random.random_range(5..30);
                let more = ["", "second.internal"].choose(&mut self.random).expect("there are some");
                let address = self.upstream.address.to_string();
                for replica in &mut self.replicas {
                    let downstream = self.setup.downstream.as_ref();
                    write_corefile(replica.directory.path(), &address, cache, more, downstream);
                    replica.linker.signal(Signal::SIGHUP);
                    replica.linker.signal(Signal::SIGUSR1);
                }
            }
            Disturbance::Servfail | Disturbance::SilentUpstream => {
                self.shared.with(history::History::begin_outage);
                let mut state = self.upstream_state.lock().unwrap();
                match disturbance {
                    Disturbance::Servfail => state.servfail = true,
                    _ => state.silent = true,
                }
            }
        }
    }

    async fn end(&mut self, disturbance: Disturbance) {
        match disturbance {
            Disturbance::Delay | Disturbance::HalfOpen => {
                let pause = Duration::from_millis(
                    self.random.random_range(0..self.setup.max_fault_duration.as_millis() as u64),
                );
                tokio::time::sleep(pause).await;
                self.replicas.iter().for_each(|replica| replica.link.set(LinkState::Up));
            }
            Disturbance::LeaderKill | Disturbance::LeaderStop | Disturbance::LeaderSuspend(..) => {
                self.return_replica(disturbance).await;
            }
            Disturbance::Servfail | Disturbance::SilentUpstream => {
                let mut state = self.upstream_state.lock().unwrap();
                (state.servfail, state.silent) = (false, false);
                drop(state);
                self.shared.with(history::History::end_outage);
            }
            _ => {}
        }
    }

    /// Starts or continues the replica that is away. If it led and both replicas can be killed, waits for the next
    /// leader first.
    async fn return_replica(&mut self, disturbance: Disturbance) {
        let (victim, since, led) = self.away.take().expect("a replica is away");
        if led && !self.setup.keeps_replica_0 {
            let next = &self.replicas[1 - victim];
            eventually("the next leader", || async { next.leads().then_some(()) }).await;
            self.take_overs.push(since.elapsed());
        }
        let Disturbance::LeaderSuspend(how, duration) = disturbance else {
            self.start_anew(victim, since).await;
            if self.setup.keeps_replica_0 {
                // The Lease becomes free, so that replica 1 can lead again.
                self.release_lease().await;
            }
            return;
        };
        // Services change under the next leader, too.
        let operations = self.generator.batch(&self.universe, false).operations;
        self.execute(&operations).await;
        tokio::time::sleep(duration.saturating_sub(since.elapsed())).await;
        let Replica { linker, clock, .. } = &mut self.replicas[victim];
        clock.as_mut().expect("it has clocks").resume(linker, how);
        let follower = &self.replicas[victim];
        eventually("the former leader to follow", || async { (!follower.leads()).then_some(()) }).await;
    }

    /// Starts a replica that has ended at `end`, and lets the load query it again.
    async fn start_anew(&mut self, number: usize, end: Instant) {
        self.shared.with(|history| history.begin_start(number, end));
        self.replicas[number].start_anew().await;
        self.shared.replicas.lock().unwrap()[number] = Some(self.replicas[number].linker.dns);
    }

    /// Takes the Lease from its holder, as a user of kubectl can.
    async fn release_lease(&self) {
        let leases: Api<Lease> = Api::namespaced(self.executor.cluster.client.clone(), TARGETS);
        let patch = Patch::Merge(json!({"spec": {"holderIdentity": ""}}));
        leases.patch("lb-linker", &PatchParams::default(), &patch).await.unwrap();
    }

    /// Creates, pins or deletes a StableName, or makes one of its hostnames NXDOMAIN or resolvable again.
    async fn change_stable_name(&mut self) {
        let i = self.random.random_range(0..self.stable_names.len());
        let (number, exists) = self.stable_names[i];
        let api: Api<StableName> = Api::namespaced(self.executor.cluster.client.clone(), NAMESPACE);
        let (name, hosts) = (format!("sn-{i}"), ["a", "b"].map(|end| format!("sn-{i}-{end}.example.com")));
        let shared = Arc::clone(&self.shared);
        let change = |state: State| shared.with(|history| history.end_change(number, state));
        let action = if exists { self.random.random_range(1..5) } else { 0 };
        match action {
            0 => {
                let sources: Vec<_> = hosts
                    .iter()
                    .map(|host| json!({"name": host.split('.').next(), "hostname": host}))
                    .collect();
                let spec =
                    json!({"sources": sources, "check": shortest_check(), "failback": {"afterSeconds": 2}});
                let object = StableName::new(&name, serde_json::from_value(spec).unwrap());
                shared.with(history::History::begin_change);
                api.create(&PostParams::default(), &object).await.unwrap();
                change(State::Announcing(hosts.to_vec()));
                self.stable_names[i].1 = true;
            }
            1 => {
                shared.with(history::History::begin_change);
                api.delete(&name, &DeleteParams::default()).await.unwrap();
                change(State::Gone);
                self.stable_names[i].1 = false;
            }
            2 => {
                let pins = [None, Some(format!("sn-{i}-a")), Some(format!("sn-{i}-b"))];
                let pin = pins.choose(&mut self.random).expect("there are some");
                let patch = Patch::Merge(json!({"spec": {"pin": pin}}));
                api.patch(&name, &PatchParams::default(), &patch).await.unwrap();
            }
            _ => {
                let host = hosts.choose(&mut self.random).expect("there are some");
                let mut state = self.upstream_state.lock().unwrap();
                if !state.dead.remove(host) {
                    state.dead.insert(host.clone());
                }
            }
        }
        let what = ["Create", "Delete", "Pin", "Die", "Die"][action];
        *self.tally.entry(format!("{what} of a StableName")).or_default() += 1;
    }

    /// Waits until the replicas answer the present states, and the external targets are those of the model.
    async fn wait_for_convergence(&self, disturbance: Disturbance) {
        let begun = Instant::now();
        let mut pauses = PollPauses::new();
        loop {
            let wrong = self.differences().await;
            if wrong.is_empty() {
                break;
            }
            assert!(
                begun.elapsed() < EVENT_TIMEOUT,
                "{} differences {EVENT_TIMEOUT:?} after {disturbance:?}: {:#?}",
                wrong.len(),
                &wrong[..wrong.len().min(10)]
            );
            pauses.next().await;
        }
    }

    /// Waits for convergence, and records the StableNames that have a target by then.
    async fn converge(&mut self, disturbance: Disturbance) {
        let begun = Instant::now();
        self.wait_for_convergence(disturbance).await;
        self.slowest = self.slowest.max(begun.elapsed());
        // A StableName for which all replicas answer a target must have a target from now on.
        for (i, (number, exists)) in self.stable_names.iter().enumerate() {
            let present = self.shared.with(|history| history.present(*number));
            if let ([State::Announcing(hosts)], true) = (&present[..], exists) {
                let mut announced = true;
                for replica in &self.replicas {
                    let name = format!("sn-{i}.{NAMESPACE}.{ZONE}.");
                    announced &= matches!(self.ask(replica, &name).await, Seen::Alias(_));
                }
                if announced {
                    self.shared.with(|history| {
                        history.begin_change();
                        history.end_change(*number, State::Hosts(hosts.clone()));
                    });
                }
            }
        }
    }

    async fn ask(&self, replica: &Replica, name: &str) -> Seen {
        let answer = ask_udp(replica.linker.dns, &query(&format!("{name} A"))).await;
        Seen::of(&answer, RecordType::A).0
    }

    /// Describes the answers of the replicas that match none of the present states of a name.
    async fn wrong_answers(&self, key: &ServiceKey, present: &[State]) -> Vec<String> {
        let mut wrong = Vec::new();
        for replica in &self.replicas {
            let seen = self.ask(replica, &format!("{}.{}.{ZONE}.", key.name(), key.namespace())).await;
            let is_right = present.iter().any(|state| match state {
                State::Gone => seen == Seen::NoName,
                state => state.allows(&seen, RecordType::A),
            });
            if !is_right {
                wrong.push(format!("replica {}: {key} is {present:?} and answers {seen:?}", replica.name));
            }
        }
        wrong
    }

    async fn differences(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        let observed = observe(&self.executor.cluster, TARGETS, &[]).await;
        for (key, number) in &self.subjects {
            let present = self.shared.with(|history| history.present(*number));
            wrong.extend(self.wrong_answers(key, &present).await);
            let port = self.model.links.get(key).map_or(80, |link| link.port);
            let may_be = |state: &State| match state {
                State::Hosts(hosts) => hosts.iter().map(|host| TargetObjects::named(host)).collect(),
                State::Ips(ips) => vec![TargetObjects::of(&Target::Ips(ips.clone()), port)],
                _ => vec![TargetObjects::default()],
            };
            let may_be: Vec<TargetObjects> = present.iter().flat_map(may_be).collect();
            let objects: Vec<_> = observed.of(key).collect();
            let is_right = match objects[..] {
                [] => may_be.contains(&TargetObjects::default()),
                [(_, shape)] => may_be.contains(shape),
                _ => false,
            };
            if !is_right {
                wrong.push(format!("{key} has the objects {objects:?} and may have {may_be:?}"));
            }
        }
        for (i, (number, exists)) in self.stable_names.iter().enumerate() {
            let key = ServiceKey::new(NAMESPACE, &format!("sn-{i}"));
            let present = self.shared.with(|history| history.present(*number));
            wrong.extend(self.wrong_answers(&key, &present).await);
            let objects: Vec<_> = observed.of(&key).collect();
            if objects.len() > 1 || !exists && !objects.is_empty() {
                wrong.push(format!("StableName {key}: exists: {exists}, objects: {objects:?}"));
            }
        }
        wrong.extend(observed.foreign.keys().map(|name| format!("{name} is labelled for no link")));
        wrong
    }
}
