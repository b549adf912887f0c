//! Starts the tasks that read load balancers and write external targets.

use std::future::Future;
use std::sync::Arc;

use kube::Client;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};

use crate::app::error::RunError;
use crate::app::list_hints::ListHints;
use crate::app::name_sources::{self, NameSources};
use crate::app::sync_metrics::SyncMetrics;
use crate::cli::error::InputError;
use crate::cli::flags::Flags;
use crate::dns::plugins::lb_linker::LinkZone;
use crate::links::facts::{LinkFacts, tell_age};
use crate::model::hostname_policy::HostnamePolicy;
use crate::model::owner::Zone;
use crate::object_log::ObjectLog;
use crate::readiness::Readiness;
use crate::store::{Input, OnGone, Store};
use crate::sync::alerts::requests::RuleRequests;
use crate::sync::alerts::{self, AlertsContext};
use crate::sync::election::observer::WriteGuard;
use crate::sync::election::term::unix_now;
use crate::sync::election::{Election, ElectionConfig, KnownLeader, Leadership};
use crate::sync::events::findings::Findings;
use crate::sync::events::link_log::LinkReporter;
use crate::sync::events::{self, Recorder, link_problems};
use crate::sync::external_target::backend::Backend;
use crate::sync::external_target::decision::{SyncMode, SyncPolicy};
use crate::sync::external_target::desired::IpTargets;
use crate::sync::external_target::left_out::ServiceLookup;
use crate::sync::external_target::output_dir::OutputDirectory;
use crate::sync::external_target::reconciler::{self, context::ReconcilerContext};
use crate::sync::k8s::client::{ClientConnection, ClusterIdentity, connect, connect_before_credentials};
use crate::sync::k8s::errors::ApiAvailability;
use crate::sync::k8s::listed::{CompletedLists, ListEpoch};
use crate::sync::k8s::probe::probe;
use crate::sync::k8s::remotes::{Remote, Remotes};
use crate::sync::k8s::rewinds::RestoreCounter;
use crate::sync::source::cluster::ServiceWatcher;
use crate::sync::source::first_list::FirstList;
use crate::sync::source::manifests::{self, ManifestSource, SourceNames};
use crate::sync::source::missing_namespaces::missing_namespaces;
use crate::sync::source::names::watch::NameWatcher;
use crate::sync::source::persisted_targets::PersistedTargets;
use crate::sync::source::selection::Selection;
use crate::sync::source_annotation::{self, SourceAnnotationContext};
use crate::sync::stable_name;
use crate::sync::stable_name::controller::FailoverContext;
use crate::sync::stable_name::controller::checks::CheckDns;
use crate::sync::stable_name::controller::manifests::ManifestOverrides;
use crate::sync::task::supervisor::{SyncError, supervise};
use crate::takeover::finalizers;

pub(super) enum SyncSource {
    Cluster {
        client: Client,
        availability: ApiAvailability,
        list_hints: Box<ListHints>,
        backend: Option<Backend>,
        election_config: Option<Box<ElectionConfig>>,
        leader: KnownLeader,
        identity: watch::Receiver<ClusterIdentity>,
        first_list: watch::Sender<FirstList>,
        remotes: Remotes,
    },
    Manifests {
        backend: Option<Backend>,
    },
}

impl SyncSource {
    /// Opens the source that the flags name: a cluster, or a directory of manifests. `list_hints` tells how missing
    /// permissions are granted.
    pub(super) async fn open(flags: &Flags, list_hints: ListHints) -> Result<Self, RunError> {
        if let Some(manifests) = &flags.manifests {
            // At the start a broken manifest is an error. Later, the objects of a broken manifest stay unchanged.
            let checked = manifests::check(manifests, &flags.selection(), None)
                .map_err(|source| InputError::Directory { flag: "manifests", source })?;
            if let Some(error) = checked.errors.into_iter().next() {
                return Err(InputError::Manifest(error).into());
            }
            let open = |path| {
                OutputDirectory::open(path, flags.target_namespace.clone())
                    .map(Backend::Directory)
                    .map_err(|source| InputError::Directory { flag: "output", source })
            };
            return Ok(Self::Manifests { backend: flags.output.clone().map(open).transpose()? });
        }
        let (kubeconfig, context) = (flags.kubeconfig.clone(), flags.context.clone());
        // With a snapshot DNS can answer before there are credentials.
        let has_snapshot = flags.snapshot.as_ref().is_some_and(|snapshot| snapshot.exists());
        let ClientConnection { client, server, identity } = if has_snapshot {
            connect_before_credentials(kubeconfig, context).await?
        } else {
            connect(kubeconfig, context).await?
        };
        if server.is_anonymous() {
            warn!("API server {server}");
        } else {
            info!("API server {server}");
        }
        let namespace = flags.target_namespace.clone();
        let of_server = identity.clone();
        let availability = ApiAvailability::of(move || of_server.borrow().server.clone());
        let backend = Some(Backend::Namespace {
            client: client.clone(),
            availability: availability.clone(),
            namespace,
            list_hint: list_hints.external_targets,
        });
        let (election_config, leader) = (flags.election_config()?.map(Box::new), KnownLeader::default());
        let first_list = watch::Sender::default();
        Ok(Self::Cluster {
            client,
            availability,
            list_hints: Box::new(list_hints),
            backend,
            election_config,
            leader,
            identity,
            first_list,
            remotes: Remotes::open(&flags.remote.remotes).await.map_err(InputError::Remote)?,
        })
    }

    /// Returns where the election records the holder of the Lease.
    pub(super) fn leader(&self) -> KnownLeader {
        match self {
            Self::Cluster { leader, .. } => leader.clone(),
            Self::Manifests { .. } => KnownLeader::default(),
        }
    }

    /// Returns the connection to the cluster; `None` for manifests.
    pub(super) fn connection(&self) -> Option<(Client, ApiAvailability)> {
        match self {
            Self::Cluster { client, availability, .. } => Some((client.clone(), availability.clone())),
            Self::Manifests { .. } => None,
        }
    }

    /// Returns the client of the cluster; `None` for manifests.
    pub(super) fn client(&self) -> Option<&Client> {
        match self {
            Self::Cluster { client, .. } => Some(client),
            Self::Manifests { .. } => None,
        }
    }

    /// Returns the identity of the cluster and the state of the first list, for the snapshot; `None` for manifests.
    pub(super) fn cluster(&self) -> Option<(watch::Receiver<ClusterIdentity>, watch::Receiver<FirstList>)> {
        match self {
            Self::Cluster { identity, first_list, .. } => Some((identity.clone(), first_list.subscribe())),
            Self::Manifests { .. } => None,
        }
    }

    /// Lets the log say of no request to a remote cluster that it is retried.
    pub(super) fn ask_remotes_once(&self) {
        if let Self::Cluster { remotes, .. } = self {
            remotes.all().iter().for_each(|remote| remote.availability.ask_once());
        }
    }

    /// Returns whether the source's objects have resourceVersions.
    pub(super) fn has_versions(&self) -> bool {
        matches!(self, Self::Cluster { .. })
    }

    /// Returns the backend of the external targets; `None` for manifests without `--output`, and after
    /// [`Self::leave_out_external_targets`].
    pub(super) fn backend(&self) -> Option<&Backend> {
        let (Self::Cluster { backend, .. } | Self::Manifests { backend }) = self;
        backend.as_ref()
    }

    /// Neither reads nor writes external targets.
    pub(super) fn leave_out_external_targets(&mut self) {
        let (Self::Cluster { backend, .. } | Self::Manifests { backend }) = self;
        *backend = None;
    }

    /// Returns the facts about the links of this store, which [`Self::run`] fills.
    pub(super) fn facts(
        &self,
        flags: &Flags,
        store: &Arc<Store>,
        readiness: Arc<Readiness>,
        metrics: &SyncMetrics,
    ) -> LinkFacts {
        let availability = match self {
            Self::Cluster { availability, .. } => availability.clone(),
            Self::Manifests { .. } => ApiAvailability::default(),
        };
        tell_age(&readiness, availability.clone(), Arc::clone(&metrics.staleness));
        LinkFacts {
            store: Arc::clone(store),
            unselected: Arc::default(),
            target_namespace: flags.target_namespace.clone(),
            findings: Findings::new(readiness),
            external_targets: Arc::default(),
            needs_external_targets: flags.sync_mode() != SyncMode::Off,
            has_slices: flags.ip_targets == IpTargets::Headless,
            only_plans: flags.sync_mode() == SyncMode::Plan,
            reads_followers: false,
            looks_up: true,
            followers: Arc::clone(&metrics.followers),
            failed_targets: None,
            availability,
        }
    }

    /// Returns the look-up that tells which Services exist.
    fn service_lookup(&self, flags: &Flags) -> ServiceLookup {
        match self {
            Self::Cluster { client, .. } => ServiceLookup::Cluster(client.clone()),
            Self::Manifests { .. } => ServiceLookup::Manifests(flags.manifests.clone().unwrap_or_default()),
        }
    }

    /// Starts the task that sends Events, if lb-linker writes to a cluster.
    fn start_recorder(
        &self,
        tasks: &mut JoinSet<()>,
        flags: &Flags,
        leadership: &Leadership,
        metrics: &SyncMetrics,
        end: &ShutdownOrder,
    ) -> Recorder {
        let Self::Cluster { client, availability, .. } = self else { return Recorder::none() };
        if flags.sync_mode() != SyncMode::On {
            return Recorder::none();
        }
        let recorder = Recorder::new(metrics.events.dropped.clone(), leadership.clone());
        let sender = events::EventPublisher {
            client: client.clone(),
            availability: availability.clone(),
            recorder: recorder.clone(),
            instance: flags.identity(),
            metrics: Arc::clone(&metrics.api),
        };
        let written = end.written.clone();
        let sending =
            supervise("the sending of Events", written.clone(), Arc::clone(&metrics.supervisor), move || {
                sender.clone().run(written.clone())
            });
        tasks.spawn(end.senders.track_future(sending));
        recorder
    }

    /// Keeps the store in step with the source, and the external targets in step with the store, until `stop`. A new
    /// hostname policy makes the tasks list their objects again.
    pub(super) async fn run(
        self,
        flags: Flags,
        facts: LinkFacts,
        metrics: SyncMetrics,
        hostname_policy: watch::Receiver<Arc<HostnamePolicy>>,
        check_dns: CheckDns,
        stop: CancellationToken,
    ) {
        let parts = self.parts(flags, facts, metrics, hostname_policy, stop);
        let mut tasks = self.start(parts, check_dns);
        while tasks.join_next().await.is_some() {}
    }

    /// Starts the election and the sending of Events, and returns what the other tasks share.
    fn parts(
        &self,
        flags: Flags,
        facts: LinkFacts,
        metrics: SyncMetrics,
        hostname_policy: watch::Receiver<Arc<HostnamePolicy>>,
        stop: CancellationToken,
    ) -> Parts {
        let (mut tasks, end) = (JoinSet::new(), ShutdownOrder::default());
        let leadership = self.elect(&mut tasks, &flags, &facts.findings.readiness, &metrics, &end);
        let link_reporter = LinkReporter {
            metrics: Arc::clone(&metrics.events),
            recorder: self.start_recorder(&mut tasks, &flags, &leadership, &metrics, &end),
            log: ObjectLog::default(),
            findings: facts.findings.clone(),
        };
        let writers = end.writers.clone();
        tasks.spawn(end.run(stop.clone()));
        let (selection, rewinds) = (Arc::new(flags.selection()), RestoreCounter::default());
        // Manifests aren't listed by an API server, and have no election: they count as listed in the only term.
        let epoch = ListEpoch { term: leadership.term(), rewinds: rewinds.count() };
        let listed = flags.manifests.is_some().then_some(epoch);
        let listed = CompletedLists::new(&selection.namespaces, listed);
        // Only the reconciler looks these Services up.
        let keeps_unlisted = self.backend().is_some() && facts.needs_external_targets;
        Parts {
            tasks,
            writers,
            flags,
            facts,
            metrics,
            hostname_policy,
            stop,
            selection,
            link_reporter,
            leadership,
            rewinds,
            links_listed: watch::Sender::new(listed.clone()),
            overrides_listed: watch::Sender::new(listed),
            persisted: Arc::default(),
            keeps_unlisted,
        }
    }

    fn start(self, mut parts: Parts, check_dns: CheckDns) -> JoinSet<()> {
        // A command that only reads links shows it in their states.
        if parts.facts.failed_targets.is_some() {
            let store = Arc::clone(&parts.facts.store);
            parts.spawn_until_stop(link_problems::report(store, parts.link_reporter.clone()));
        }
        if let Some(backend) = self.backend() {
            let context = parts.reconciler(backend.clone(), self.service_lookup(&parts.flags));
            parts.spawn_writer("the reconciler", context, reconciler::run);
        } else {
            // No external targets are read, so the source must not wait for the owners that they record.
            parts.facts.store.set_known(Input::ExternalTargets);
            parts.facts.external_targets.set_known();
        }
        match self {
            Self::Cluster {
                client,
                availability,
                list_hints,
                first_list,
                identity,
                election_config,
                remotes,
                ..
            } => {
                parts.spawn_until_stop(relist_at_new_address(identity, parts.rewinds.clone()));
                if election_config.is_none() {
                    parts.spawn_until_stop(probe(client.clone(), availability.clone()));
                }
                parts.start_name_sources(&client, &availability, &remotes);
                parts.warn_of_missing_namespaces(client.clone());
                parts.start_controllers(&client, &availability, remotes, *list_hints, check_dns);
                let source = parts.service_watcher(client, availability, *list_hints, first_list);
                let run = move |hostname_policy| ServiceWatcher { hostname_policy, ..source.clone() }.run();
                parts.spawn_source("the watch of load balancers", run);
            }
            Self::Manifests { .. } => {
                // In manifests no Service follows.
                parts.metrics.followers.set_unread(Some(Vec::new()));
                let source = parts.manifest_source();
                let run = move |hostname_policy| ManifestSource { hostname_policy, ..source.clone() }.run();
                parts.spawn_source("the reading of manifests", run);
            }
        }
        parts.tasks
    }
}

/// What the tasks of a source share, and the tasks that have started.
struct Parts {
    tasks: JoinSet<()>,
    /// The tasks that may cause Events.
    writers: TaskTracker,
    flags: Flags,
    facts: LinkFacts,
    metrics: SyncMetrics,
    hostname_policy: watch::Receiver<Arc<HostnamePolicy>>,
    stop: CancellationToken,
    selection: Arc<Selection>,
    link_reporter: LinkReporter,
    leadership: Leadership,
    rewinds: RestoreCounter,
    links_listed: watch::Sender<CompletedLists>,
    overrides_listed: watch::Sender<CompletedLists>,
    persisted: Arc<PersistedTargets>,
    keeps_unlisted: bool,
}

impl Parts {
    fn policy(&self) -> SyncPolicy {
        self.flags.policy(self.hostname_policy.borrow().tombstone())
    }

    fn supervise<F>(
        &self,
        name: &'static str,
        task: impl FnMut() -> F + Send + 'static,
    ) -> impl Future<Output = ()> + Send + 'static
    where
        F: Future<Output = Result<(), SyncError>> + Send + 'static,
    {
        supervise(name, self.stop.clone(), Arc::clone(&self.metrics.supervisor), task)
    }

    fn spawn_writer<C, F>(&mut self, name: &'static str, context: C, run: fn(C, CancellationToken) -> F)
    where
        C: Clone + Send + 'static,
        F: Future<Output = Result<(), SyncError>> + Send + 'static,
    {
        let until = self.stop.clone();
        let writer = self.supervise(name, move || run(context.clone(), until.clone()));
        self.tasks.spawn(self.writers.track_future(writer));
    }

    /// Runs a source under supervision until `stop`. The source begins anew whenever the hostname policy changes.
    fn spawn_source<F>(
        &mut self,
        name: &'static str,
        run: impl Fn(Arc<HostnamePolicy>) -> F + Clone + Send + Sync + 'static,
    ) where
        F: Future<Output = Result<(), SyncError>> + Send + 'static,
    {
        let (until, policies) = (self.stop.clone(), self.hostname_policy.clone());
        let source = self.supervise(name, move || {
            until_stopped(until.clone(), for_each_policy(policies.clone(), run.clone()))
        });
        self.tasks.spawn(source);
    }

    fn reconciler(&self, backend: Backend, service_lookup: ServiceLookup) -> ReconcilerContext {
        ReconcilerContext {
            store: Arc::clone(&self.facts.store),
            persisted: Arc::clone(&self.persisted),
            external_target_states: Arc::clone(&self.facts.external_targets),
            backend,
            service_lookup,
            looks_up: self.keeps_unlisted && self.facts.looks_up,
            selection: Arc::clone(&self.selection),
            hostname_policy: self.hostname_policy.clone(),
            policy: self.policy(),
            link_reporter: self.link_reporter.clone(),
            metrics: Arc::clone(&self.metrics.reconciler),
            api: Arc::clone(&self.metrics.api),
            staleness: Arc::clone(&self.metrics.staleness),
            leadership: self.leadership.clone(),
            rewinds: self.rewinds.clone(),
            links_listed: self.links_listed.subscribe(),
            overrides_listed: self.overrides_listed.subscribe(),
        }
    }

    /// Logs which watched namespaces don't exist, once the API server answers.
    fn warn_of_missing_namespaces(&mut self, client: Client) {
        if self.selection.namespaces.is_empty() {
            return;
        }
        let (store, selection) = (Arc::clone(&self.facts.store), Arc::clone(&self.selection));
        self.spawn_until_stop(async move {
            store.known(Input::Services).await;
            let missing = missing_namespaces(client, &selection.namespaces).await;
            missing.iter().for_each(|warning| warn!("{warning}"));
        });
    }

    fn spawn_until_stop(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        let stop = self.stop.clone();
        self.tasks.spawn(async move { stop.run_until_cancelled(task).await.unwrap_or_default() });
    }

    /// Starts what else watches a cluster, beside the load balancers and their external targets.
    fn start_controllers(
        &mut self,
        client: &Client,
        availability: &ApiAvailability,
        remotes: Remotes,
        hints: ListHints,
        check_dns: CheckDns,
    ) {
        let writes = self.flags.sync_mode() != SyncMode::Off;
        if writes || self.facts.reads_followers {
            let context = self.followers(client.clone(), availability.clone());
            self.spawn_writer("the following by annotation", context, source_annotation::run);
        }
        let rules = Arc::<RuleRequests>::default();
        if writes {
            let (client, availability) = (client.clone(), availability.clone());
            let context = self.alerts(client.clone(), availability.clone(), Arc::clone(&rules));
            let (selection, until) = (Arc::clone(&self.selection), self.stop.clone());
            let (store, sets_finalizer) = (Arc::clone(&self.facts.store), self.flags.finalizer);
            let search = self.supervise("the search for finalizers", move || {
                let (client, availability) = (client.clone(), availability.clone());
                let (selection, store) = (Arc::clone(&selection), Arc::clone(&store));
                let search =
                    finalizers::search_finalizers(client, availability, selection, store, sets_finalizer);
                until_stopped(until.clone(), search)
            });
            self.tasks.spawn(search);
            self.spawn_writer("the PrometheusRules", context, alerts::run);
        }
        let context =
            self.stable_names(client.clone(), availability.clone(), remotes, hints, rules, check_dns);
        self.spawn_writer("the StableNames", context, stable_name::controller::run);
    }

    /// Starts what reads the names in the home cluster and in the remote ones.
    fn start_name_sources(&mut self, client: &Client, availability: &ApiAvailability, remotes: &Remotes) {
        let home = self.name_watcher(None, client.clone(), availability.clone());
        let mut watchers = vec![home];
        for Remote { name, client, availability, identity, server } in remotes.all() {
            info!("remote cluster {name}: API server {server}");
            let watcher = NameWatcher {
                // Nothing is written to a remote cluster, Events neither.
                link_reporter: LinkReporter { recorder: Recorder::none(), ..self.link_reporter.clone() },
                rewinds: RestoreCounter::default(),
                ..self.name_watcher(Some(Arc::clone(name)), client.clone(), availability.clone())
            };
            self.spawn_until_stop(relist_at_new_address(identity.clone(), watcher.rewinds.clone()));
            watchers.push(watcher);
        }
        let context = NameSources {
            watchers: watchers.into(),
            services: Arc::clone(&self.facts.unselected),
            supervisor: Arc::clone(&self.metrics.supervisor),
        };
        self.spawn_writer("the sources of names", context, name_sources::run);
    }

    fn followers(&self, client: Client, availability: ApiAvailability) -> SourceAnnotationContext {
        SourceAnnotationContext {
            followers: Arc::clone(&self.facts.followers),
            store: Arc::clone(&self.facts.store),
            persisted: Arc::clone(&self.persisted),
            client,
            availability,
            selection: Arc::clone(&self.selection),
            policy: self.policy(),
            hostname_policy: self.hostname_policy.clone(),
            link_reporter: self.link_reporter.clone(),
            api: Arc::clone(&self.metrics.api),
            staleness: Arc::clone(&self.metrics.staleness),
            leadership: self.leadership.clone(),
            links_listed: self.links_listed.subscribe(),
            overrides_listed: self.overrides_listed.subscribe(),
            rewinds: self.rewinds.clone(),
        }
    }

    fn alerts(
        &self,
        client: Client,
        availability: ApiAvailability,
        rules: Arc<RuleRequests>,
    ) -> AlertsContext {
        AlertsContext {
            client,
            availability,
            selection: Arc::clone(&self.selection),
            sync: self.flags.sync_mode(),
            rules,
            api: Arc::clone(&self.metrics.api),
            staleness: Arc::clone(&self.metrics.staleness),
            leadership: self.leadership.clone(),
            rewinds: self.rewinds.clone(),
            overrides_listed: self.overrides_listed.subscribe(),
            log: self.link_reporter.log.about("StableName"),
        }
    }

    fn name_watcher(
        &self,
        cluster: Option<Arc<str>>,
        client: Client,
        availability: ApiAvailability,
    ) -> NameWatcher {
        NameWatcher {
            cluster,
            client,
            availability,
            selection: Arc::clone(&self.selection),
            hostname_policy: self.hostname_policy.clone(),
            store: Arc::clone(&self.facts.store),
            link_reporter: self.link_reporter.clone(),
            staleness: Arc::clone(&self.metrics.staleness),
            rewinds: self.rewinds.clone(),
        }
    }

    fn stable_names(
        &self,
        client: Client,
        availability: ApiAvailability,
        remotes: Remotes,
        hints: ListHints,
        rules: Arc<RuleRequests>,
        check_dns: CheckDns,
    ) -> FailoverContext {
        FailoverContext {
            client,
            availability,
            remotes,
            list_hint: hints.stable_names,
            store: Arc::clone(&self.facts.store),
            selection: Arc::clone(&self.selection),
            unselected: Arc::clone(&self.facts.unselected),
            external_target_states: Arc::clone(&self.facts.external_targets),
            rules,
            hostname_policy: self.hostname_policy.clone(),
            policy: self.policy(),
            target_namespace: self.flags.target_namespace.clone(),
            tcp_check_namespaces: self.flags.hostname_policy.tcp_check_namespaces.iter().cloned().collect(),
            check_dns,
            link_reporter: self.link_reporter.clone(),
            metrics: Arc::clone(&self.metrics.failover),
            api: Arc::clone(&self.metrics.api),
            staleness: Arc::clone(&self.metrics.staleness),
            leadership: self.leadership.clone(),
            rewinds: self.rewinds.clone(),
            links_listed: self.links_listed.subscribe(),
            overrides_listed: self.overrides_listed.clone(),
        }
    }

    fn service_watcher(
        &self,
        client: Client,
        availability: ApiAvailability,
        hints: ListHints,
        first_list: watch::Sender<FirstList>,
    ) -> ServiceWatcher {
        ServiceWatcher {
            client,
            availability,
            list_hint: hints.services,
            selection: Arc::clone(&self.selection),
            hostname_policy: Arc::default(),
            sets_finalizer: self.flags.finalizer,
            keeps_unlisted: self.keeps_unlisted,
            delete_delay: self.flags.effective_delete_delay(),
            store: Arc::clone(&self.facts.store),
            persisted: Arc::clone(&self.persisted),
            link_reporter: self.link_reporter.clone(),
            metrics: Arc::clone(&self.metrics.watch),
            staleness: Arc::clone(&self.metrics.staleness),
            leadership: self.leadership.clone(),
            rewinds: self.rewinds.clone(),
            listed: self.links_listed.clone(),
            first_list,
            own_targets: Arc::default(),
            unselected: Arc::clone(&self.facts.unselected),
        }
    }

    fn manifest_source(&self) -> ManifestSource {
        let overrides = ManifestOverrides::new(
            Arc::clone(&self.facts.store),
            Arc::clone(&self.facts.unselected),
            Arc::clone(&self.selection),
            Arc::clone(&self.metrics.failover),
            self.link_reporter.log.about("StableName"),
            &self.link_reporter.findings,
        );
        ManifestSource {
            directory: self.flags.manifests.clone().unwrap_or_default(),
            selection: Arc::clone(&self.selection),
            hostname_policy: Arc::default(),
            store: Arc::clone(&self.facts.store),
            persisted: Arc::clone(&self.persisted),
            unselected: Arc::clone(&self.facts.unselected),
            apply_overrides: Arc::new(move |objects, policy| overrides.apply(objects, policy)),
            source_names: Arc::new(Mutex::new(SourceNames::new(
                &self.facts.store,
                &self.selection,
                &self.link_reporter,
            ))),
            link_reporter: self.link_reporter.clone(),
            files: Arc::default(),
            keeps_unlisted: self.keeps_unlisted,
            delete_delay: self.flags.effective_delete_delay(),
        }
    }
}

impl SyncSource {
    /// Starts the leader election, if one is configured. The Lease is released as the last step of `end`.
    fn elect(
        &self,
        tasks: &mut JoinSet<()>,
        flags: &Flags,
        readiness: &Arc<Readiness>,
        metrics: &SyncMetrics,
        end: &ShutdownOrder,
    ) -> Leadership {
        let writes = self.backend().is_some() && flags.sync_mode() == SyncMode::On;
        metrics.election.sync_enabled.set(i64::from(writes));
        let Self::Cluster { client, availability, election_config, leader, .. } = self else {
            metrics.election.leader.set(i64::from(writes));
            return Leadership::unconditional();
        };
        let supervisor = Arc::clone(&metrics.supervisor);
        let stop = end.events_sent.clone();
        let Some(election_config) = election_config else {
            if let Some(lease) = flags.foreign_lease().filter(|_| writes) {
                let (metrics, readiness) = (Arc::clone(&metrics.election), Arc::clone(readiness));
                let guard = WriteGuard::new(client.clone(), lease, metrics, leader.clone(), readiness);
                let leadership = guard.leadership();
                tasks.spawn(supervise(
                    "the look-out for other leaders",
                    stop.clone(),
                    supervisor,
                    move || guard.clone().run(stop.clone()),
                ));
                return leadership;
            }
            metrics.election.leader.set(i64::from(writes));
            return if writes {
                Leadership::without_election(unix_now())
            } else {
                Leadership::unconditional()
            };
        };
        let election = Election::new(
            client.clone(),
            availability.clone(),
            Arc::clone(&metrics.election),
            Arc::clone(&metrics.api),
            ElectionConfig::clone(election_config),
            leader.clone(),
            Arc::clone(readiness),
        );
        let leadership = election.leadership();
        tasks.spawn(supervise("the leader election", stop.clone(), supervisor, move || {
            election.clone().run(stop.clone())
        }));
        leadership
    }
}

/// Returns the zones of links with the domains of remote clusters in them.
pub(super) fn zones_with_remotes(zones: &[LinkZone], remotes: &[Arc<str>]) -> Vec<Zone> {
    zones.iter().flat_map(|zone| Zone::from(zone).with_remotes(remotes)).collect()
}

/// Returns an empty store for these zones, remote clusters and this source.
pub(super) fn store_for(zones: &[LinkZone], remotes: &[Arc<str>], source: Option<&SyncSource>) -> Store {
    let has_backend = source.is_some_and(|source| source.backend().is_some());
    let on_gone = if has_backend { OnGone::Kept } else { OnGone::Dropped };
    let store = Store::new(on_gone).with_zones(zones_with_remotes(zones, remotes));
    if source.is_some_and(SyncSource::has_versions) {
        store.continue_at(0);
    }
    store
}

/// The order of shutdown: first the writers stop, then the senders of Events about these writes, then the Lease is
/// released.
#[derive(Default)]
struct ShutdownOrder {
    writers: TaskTracker,
    /// Cancelled when the writers have stopped.
    written: CancellationToken,
    senders: TaskTracker,
    /// Cancelled when the senders have stopped, too.
    events_sent: CancellationToken,
}

impl ShutdownOrder {
    async fn run(self, stop: CancellationToken) {
        stop.cancelled().await;
        for (tasks, ended) in [(self.writers, self.written), (self.senders, self.events_sent)] {
            tasks.close();
            tasks.wait().await;
            ended.cancel();
        }
    }
}

/// Runs a source, and begins anew whenever the hostname policy changes, so that all Services are observed again.
async fn for_each_policy<F: Future<Output = Result<(), SyncError>>>(
    mut policies: watch::Receiver<Arc<HostnamePolicy>>,
    run: impl Fn(Arc<HostnamePolicy>) -> F,
) -> Result<(), SyncError> {
    loop {
        let current = Arc::clone(&policies.borrow_and_update());
        tokio::select! {
            ended = run(current) => return ended,
            Ok(()) = policies.changed() => {}
        }
    }
}

/// Has everything listed again whenever the address of the API server changes.
async fn relist_at_new_address(mut identity: watch::Receiver<ClusterIdentity>, rewinds: RestoreCounter) {
    let mut known = identity.borrow_and_update().server.clone();
    // The client has the sender, and lives as long as the tasks that use it.
    while identity.changed().await.is_ok() {
        let server = identity.borrow_and_update().server.clone();
        if server != known {
            known = server;
            rewinds.record_new_address();
        }
    }
}

async fn until_stopped(
    stop: CancellationToken,
    source: impl Future<Output = Result<(), SyncError>> + Send,
) -> Result<(), SyncError> {
    stop.run_until_cancelled(source).await.unwrap_or(Ok(()))
}
