//! The flags, their defaults, and their effect in combination.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};
use hickory_proto::rr::Name;
use kube::core::Selector;

use crate::cli::client_nets_flag::ClientNet;
use crate::cli::client_nets_flag::PRIVATE_NETS;
use crate::cli::effective::value_name;
use crate::cli::election_flags::ElectionFlags;
use crate::cli::error::ConfigError;
use crate::cli::http_listen::{HttpListen, http_listen, loopback_http_listen};
use crate::cli::parsers::{delay, dns_label, instance, listen, load_balancer_class, max_deletes, zone};
use crate::cli::policy_flags::HostnamePolicyFlags;
use crate::cli::remote_flags::RemoteFlags;
use crate::cli::upstream_flag::UpstreamSpec;
use crate::dns::plugins::lb_linker::{LinkZone, OwnKubeconfig};
use crate::dns::query_log::LineFormat;
use crate::dns::server::corefile_source::CorefileZones;
use crate::label_selector::selector;
use crate::model::cluster_domain::conflict;
use crate::model::hostname::to_presentation;
use crate::model::hostname_policy::HostnamePolicy;
use crate::model::names;
use crate::sync::external_target::decision::{OnDelete, SyncMode};
use crate::sync::external_target::deletion_budget::MaxDeletes;
use crate::sync::external_target::desired::IpTargets;
use crate::sync::source::selection::Selection;

/// The default of `--admin-listen`.
const ADMIN_LISTEN: &str = "127.0.0.1:8053";

/// Returns the notice that no load balancers are read, see [`Flags::reads_links`].
pub(crate) fn without_links(has_cluster_dns: bool) -> &'static str {
    if has_cluster_dns {
        "DNS only, with the API server for kubernetes: no load balancers are read, because the Corefile has neither lb_linker nor \
         k8s_gateway"
    } else {
        "DNS only, without a cluster: the Corefile has neither lb_linker nor k8s_gateway"
    }
}

/// The format of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// One line of text per event.
    Text,
    /// One JSON object per event.
    Json,
}

impl From<LogFormat> for LineFormat {
    fn from(format: LogFormat) -> Self {
        match format {
            LogFormat::Text => Self::Text,
            LogFormat::Json => Self::Json,
        }
    }
}

/// Which load balancers become links.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SelectionMode {
    /// Every load balancer without the annotation linker.hsj.com/managed: "false".
    All,
    /// Only load balancers with the annotation linker.hsj.com/managed: "true".
    Annotated,
}

/// A source of the names in the zones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SourceName {
    /// Load balancers and StableNames.
    Service,
    /// The hosts of Ingresses; needs the permissions of deploy/sources/.
    Ingress,
    /// The hostnames of HTTPRoutes, GRPCRoutes and TLSRoutes; needs the permissions of deploy/sources/.
    Gateway,
    /// The names of DNSEndpoints; needs the permissions of deploy/sources/.
    Dnsendpoint,
}

/// The flags of all commands except `query` and `completion`.
#[derive(Clone, Debug, Args)]
pub struct Flags {
    /// Kubeconfig of the cluster [default: in a Pod its service account, else the file that kubectl uses]
    #[arg(long, value_name = "PATH", env = "LB_LINKER_KUBECONFIG", help_heading = "Cluster")]
    pub kubeconfig: Option<PathBuf>,

    /// Context of the kubeconfig [default: its current one]
    #[arg(long, value_name = "NAME", env = "LB_LINKER_CONTEXT", help_heading = "Cluster")]
    pub context: Option<String>,

    /// Several clusters.
    #[command(flatten)]
    pub remote: RemoteFlags,

    /// File in which the links are kept, for DNS after a start without the API server: if the API server doesn't
    /// answer within 2 s, or answers 401, 403 or 5xx, DNS answers with the links of the file until the load balancers
    /// are read. Each replica has a file of its own [default: none]
    #[arg(
        long,
        value_name = "PATH",
        env = "LB_LINKER_SNAPSHOT",
        conflicts_with = "manifests",
        help_heading = "Cluster"
    )]
    pub snapshot: Option<PathBuf>,

    /// With --snapshot: how old the links in the file may be. They age while the API server doesn't confirm them
    #[arg(
        long,
        value_name = "DURATION",
        env = "LB_LINKER_SNAPSHOT_MAX_AGE",
        default_value = "24h",
        value_parser = delay,
        help_heading = "Cluster"
    )]
    pub snapshot_max_age: Duration,

    /// Namespace of the external targets
    #[arg(
        long,
        value_name = "NAME",
        env = "LB_LINKER_TARGET_NAMESPACE",
        default_value = "external-targets",
        value_parser = dns_label,
        help_heading = "External targets"
    )]
    pub target_namespace: String,

    /// Name of this installation, for several installations in one target namespace: lb-linker changes only objects
    /// whose annotation linker.hsj.com/instance has this name or is missing; all replicas have the same name
    /// [default: namespace and name of the Lease, as in lb-linker/lb-linker, which is also the default outside a Pod
    /// without --leader-election]
    #[arg(
        long,
        value_name = "NAME",
        env = "LB_LINKER_INSTANCE",
        value_parser = instance,
        conflicts_with = "manifests",
        help_heading = "External targets"
    )]
    pub instance: Option<String>,

    /// Namespaces whose load balancers become links, and whose objects other sources of names read, separated by commas
    /// [default: all]
    #[arg(
        long,
        value_name = "NAMES",
        env = "LB_LINKER_WATCH_NAMESPACES",
        value_parser = dns_label,
        value_delimiter = ',',
        help_heading = "Selection"
    )]
    pub watch_namespaces: Vec<String>,

    /// Label selector of the load balancers that become links, as in kubectl -l [default: any]
    #[arg(
        long,
        value_name = "SELECTOR",
        env = "LB_LINKER_SERVICE_SELECTOR",
        value_parser = selector,
        help_heading = "Selection"
    )]
    pub service_selector: Option<Selector>,

    /// Values of spec.loadBalancerClass of the load balancers that become links, separated by commas; `none` is for those
    /// without a class [default: any]
    #[arg(
        long,
        value_name = "CLASSES",
        env = "LB_LINKER_LOAD_BALANCER_CLASSES",
        value_parser = load_balancer_class,
        value_delimiter = ',',
        help_heading = "Selection"
    )]
    pub load_balancer_classes: Vec<String>,

    /// Which load balancers become links
    #[arg(
        long,
        value_name = "WHICH",
        env = "LB_LINKER_SELECTION",
        default_value = "all",
        value_enum,
        help_heading = "Selection"
    )]
    pub selection: SelectionMode,

    /// Whether external targets are written [default: on in a Pod (also with --kubeconfig or --context), with any value
    /// of --leader-election (also off) and with --manifests; else plan]
    #[arg(long, value_name = "MODE", env = "LB_LINKER_SYNC", value_enum, help_heading = "External targets")]
    pub sync: Option<SyncMode>,

    /// What happens to the external target of a deleted Service
    #[arg(
        long,
        value_name = "WHAT",
        env = "LB_LINKER_ON_DELETE",
        default_value = "delete",
        value_enum,
        help_heading = "External targets"
    )]
    pub on_delete: OnDelete,

    /// With --on-delete delete: time from the end of a Service to the removal of its external target; a load balancer
    /// that is recreated before that keeps it. A Service that stops matching the selection keeps its names and its
    /// external target for this time, too. With --finalizer the delay is 0
    #[arg(
        long,
        value_name = "DURATION",
        env = "LB_LINKER_DELETE_DELAY",
        default_value = "10m",
        value_parser = delay,
        help_heading = "External targets"
    )]
    pub delete_delay: Duration,

    /// Handle orphans of the earlier operator (external targets whose Service is gone) like lb-linker's own external
    /// targets: --on-delete and --delete-delay apply
    #[arg(long, env = "LB_LINKER_PRUNE", help_heading = "External targets")]
    pub prune: bool,

    /// External target of a load balancer with addresses instead of a hostname
    #[arg(
        long,
        value_name = "HOW",
        env = "LB_LINKER_IP_TARGETS",
        default_value = "headless",
        value_enum,
        help_heading = "External targets"
    )]
    pub ip_targets: IpTargets,

    /// External targets that may be removed in ten minutes: a number, or "unlimited". While this flag is set, external
    /// targets of Services that a flag leaves out are removed too, at this rate: set it for one start only, then
    /// remove it [default: 10, or a fifth of all external targets if that is more; if a flag leaves out more than half
    /// of all external targets, these stay]
    #[arg(
        long,
        value_name = "NUMBER",
        env = "LB_LINKER_MAX_DELETES",
        value_parser = max_deletes,
        help_heading = "External targets"
    )]
    pub max_deletes: Option<MaxDeletes>,

    /// Put the finalizer lb-linker/finalizer on load balancers: a Service is deleted only after its external target, so
    /// its deletion waits for lb-linker; needs the permissions of deploy/finalizer/
    #[arg(
        long,
        env = "LB_LINKER_FINALIZER",
        conflicts_with = "manifests",
        help_heading = "External targets"
    )]
    pub finalizer: bool,

    /// Policies for names and targets.
    #[command(flatten)]
    pub hostname_policy: HostnamePolicyFlags,
    /// The leader election.
    #[command(flatten)]
    pub election: ElectionFlags,

    /// Work without a cluster: read Services and StableNames from the YAML and JSON files in this directory, and
    /// again when they change
    #[arg(
        long,
        value_name = "DIR",
        env = "LB_LINKER_MANIFESTS",
        conflicts_with_all = ["kubeconfig", "context"],
        help_heading = "Without a cluster"
    )]
    pub manifests: Option<PathBuf>,

    /// With --manifests: write the external targets as YAML files into this directory
    #[arg(
        long,
        value_name = "DIR",
        env = "LB_LINKER_OUTPUT",
        requires = "manifests",
        help_heading = "Without a cluster"
    )]
    pub output: Option<PathBuf>,

    /// Corefile for DNS, instead of the flags from --zone to --ready-listen: CoreDNS's syntax and plugins, and the
    /// plugin lb_linker for the names of load balancers; without lb_linker and kubernetes no cluster is needed
    #[arg(long, value_name = "PATH", env = "LB_LINKER_COREFILE", help_heading = "DNS")]
    pub corefile: Option<PathBuf>,

    /// Zone to answer for, outside of --cluster-domain; may be repeated
    #[arg(
        long = "zone",
        value_name = "ZONE",
        env = "LB_LINKER_ZONE",
        default_value = "lb.internal",
        value_parser = zone,
        value_delimiter = ',',
        help_heading = "DNS"
    )]
    pub zones: Vec<Name>,

    /// Sources of the names in the zones, separated by commas, in the order in which they get a name
    #[arg(
        long,
        value_name = "SOURCES",
        env = "LB_LINKER_SOURCES",
        default_value = "service",
        value_enum,
        value_delimiter = ',',
        help_heading = "DNS"
    )]
    pub sources: Vec<SourceName>,

    /// Address for DNS by UDP and TCP; may be repeated
    #[arg(
        long,
        value_name = "ADDRESS:PORT",
        env = "LB_LINKER_LISTEN",
        default_value = "[::]:53",
        value_parser = listen,
        value_delimiter = ',',
        help_heading = "DNS"
    )]
    pub listen: Vec<SocketAddr>,

    /// Resolver for names outside the zones, and for the addresses behind a load balancer's hostname: an address;
    /// tls:// with an address, and with % and a name if the certificate has this name instead of the address; a file
    /// like resolv.conf; or "none"; may be repeated
    #[arg(
        long,
        value_name = "ADDRESS[:PORT]|tls://ADDRESS[%NAME][:PORT]|FILE|none",
        env = "LB_LINKER_UPSTREAM",
        default_value = "/etc/resolv.conf",
        value_delimiter = ',',
        help_heading = "DNS"
    )]
    pub upstream: Vec<UpstreamSpec>,

    /// Networks of the clients for which names outside the zones are resolved, separated by commas, or "any". Other
    /// clients get REFUSED for such names; every client gets the addresses behind a load balancer's hostname. A value
    /// replaces the default: copy the default from `lb-linker check` and append your networks
    #[arg(
        long,
        value_name = "NETWORKS|any",
        env = "LB_LINKER_CLIENT_NETS",
        default_value = PRIVATE_NETS,
        value_delimiter = ',',
        help_heading = "DNS"
    )]
    pub client_nets: Vec<ClientNet>,

    /// Address of /metrics, for Prometheus; or "none" [default: :9153; outside a Pod 127.0.0.1:9153]
    #[arg(
        long,
        value_name = "ADDRESS:PORT|none",
        env = "LB_LINKER_METRICS_LISTEN",
        value_parser = http_listen,
        help_heading = "Observing"
    )]
    pub metrics_listen: Option<HttpListen>,

    /// Address of /health: 200 while the process works; or "none" [default: :8080; outside a Pod 127.0.0.1:8080]
    #[arg(
        long,
        value_name = "ADDRESS:PORT|none",
        env = "LB_LINKER_HEALTH_LISTEN",
        value_parser = http_listen,
        help_heading = "Observing"
    )]
    pub health_listen: Option<HttpListen>,

    /// Address of /ready: 200 once all objects that answers come from have been read, or while DNS answers from a snapshot; or "none"
    /// [default: :8181; outside a Pod 127.0.0.1:8181]
    #[arg(
        long,
        value_name = "ADDRESS:PORT|none",
        env = "LB_LINKER_READY_LISTEN",
        value_parser = http_listen,
        help_heading = "Observing"
    )]
    pub ready_listen: Option<HttpListen>,

    /// Address of the status page and its API, on the loopback interface: they show the links to every process that can
    /// connect; or "none"
    #[arg(
        long,
        value_name = "ADDRESS:PORT|none",
        env = "LB_LINKER_ADMIN_LISTEN",
        default_value = ADMIN_LISTEN,
        value_parser = loopback_http_listen,
        help_heading = "Observing"
    )]
    pub admin_listen: HttpListen,

    /// Format of the log; RUST_LOG sets the level
    #[arg(
        long,
        value_name = "FORMAT",
        env = "LB_LINKER_LOG_FORMAT",
        default_value = "text",
        value_enum,
        help_heading = "Observing"
    )]
    pub log_format: LogFormat,
}

impl Flags {
    /// Checks the flags in combination.
    ///
    /// # Errors
    /// If zones overlap with each other or with the cluster's domain, an address is given twice, or other flags exclude
    /// each other.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.election_config()?;
        self.remote.validate(&self.hostname_policy.hostname_namespaces)?;
        // With a Corefile, the flag isn't used.
        let zones = self.zones.iter().filter(|_| self.corefile.is_none());
        let mut conflicts = zones.filter_map(|zone| conflict(zone, &self.hostname_policy.cluster_domain));
        if let Some(conflict) = conflicts.next() {
            return Err(ConfigError::ClusterDomain(conflict));
        }
        for (i, outer) in self.zones.iter().enumerate() {
            if self.zones[..i].contains(outer) {
                return Err(ConfigError::ZoneTwice(to_presentation(outer)));
            }
            for (j, inner) in self.zones.iter().enumerate() {
                if i != j && outer != inner && outer.zone_of(inner) {
                    return Err(ConfigError::NestedZones {
                        inner: to_presentation(inner),
                        outer: to_presentation(outer),
                    });
                }
            }
        }
        for (i, source) in self.sources.iter().enumerate() {
            if self.sources[..i].contains(source) {
                return Err(ConfigError::SourceTwice(value_name(source)));
            }
        }
        if self.finalizer && self.max_deletes == Some(MaxDeletes::Number(0)) {
            return Err(ConfigError::FinalizerWithoutDeletes);
        }
        if self.snapshot.is_some() && self.snapshot_max_age.is_zero() {
            return Err(ConfigError::SnapshotWithoutAge);
        }
        if let (Some(manifests), Some(output)) = (&self.manifests, &self.output)
            && is_same_path(manifests, output)
        {
            return Err(ConfigError::OutputInManifests(output.clone()));
        }
        self.check_tombstone(self.zones.first())?;
        if self.client_nets.contains(&ClientNet::Any) && self.client_nets.len() > 1 {
            return Err(ConfigError::AnyAndNets);
        }
        for (i, address) in self.listen.iter().enumerate() {
            if address.port() != 0 && self.listen[..i].contains(address) {
                return Err(ConfigError::ListenTwice(*address));
            }
        }
        Ok(())
    }

    /// Checks the zones of links that a Corefile configures.
    ///
    /// # Errors
    /// If the zones conflict with the flags.
    pub fn check_zones(&self, zones: &[LinkZone]) -> Result<(), ConfigError> {
        self.remote.check_zones(zones)?;
        self.check_tombstone(zones.first().map(|zone| &zone.origin))?;
        match zones.iter().find_map(|zone| zone.kubeconfig.as_ref()) {
            Some(named) if self.manifests.is_none() && !self.is_connection(named) => {
                let own =
                    self.kubeconfig.as_ref().map(|path| shown_connection(path, self.context.as_deref()));
                let own = own.unwrap_or_else(|| "that of the Pod or of the environment".to_owned());
                Err(ConfigError::OtherConnection(
                    shown_connection(&named.path, named.context.as_deref()),
                    own,
                ))
            }
            _ => Ok(()),
        }
    }

    fn is_connection(&self, named: &OwnKubeconfig) -> bool {
        let is_same = self.kubeconfig.as_ref().is_some_and(|own| is_same_path(own, &named.path));
        is_same && self.context == named.context
    }

    /// Returns these flags with the connection that a zone of *k8s_gateway* names, unless a flag names one.
    #[must_use]
    pub fn with_connection_of(self, zones: &[LinkZone]) -> Self {
        let is_free = self.kubeconfig.is_none() && self.context.is_none() && self.manifests.is_none();
        match zones.iter().find_map(|zone| zone.kubeconfig.clone()).filter(|_| is_free) {
            Some(OwnKubeconfig { path, context }) => Self { kubeconfig: Some(path), context, ..self },
            None => self,
        }
    }

    fn check_tombstone(&self, zone: Option<&Name>) -> Result<(), ConfigError> {
        let zone = zone.map(to_presentation).unwrap_or_default();
        if self.on_delete == OnDelete::Tombstone && !zone.split('.').all(names::is_label) {
            return Err(ConfigError::Tombstone(zone));
        }
        Ok(())
    }

    /// Returns whether lb-linker is only the cluster's DNS, as in `deploy/cluster-dns/`.
    #[must_use]
    pub fn is_cluster_dns(&self, has_cluster_dns: bool) -> bool {
        has_cluster_dns && self.sync_mode() == SyncMode::Off
    }

    /// Returns whether load balancers are read: for the zones of links that DNS answers, or because a flag names
    /// manifests, or is about load balancers or external targets. A flag that names a cluster counts, too, unless the
    /// plugin *kubernetes* needs it.
    #[must_use]
    pub fn reads_links(&self, zones: &[LinkZone], has_cluster_dns: bool) -> bool {
        !zones.is_empty()
            || !has_cluster_dns && (self.kubeconfig.is_some() || self.context.is_some())
            || self.manifests.is_some()
            || self.election.leader_election.is_some()
            || self.sync.is_some_and(|mode| mode != SyncMode::Off)
            || self.instance.is_some()
            || !self.remote.remotes.is_empty()
            || self.service_selector.is_some()
            || !self.load_balancer_classes.is_empty()
            || !self.watch_namespaces.is_empty()
            || self.max_deletes.is_some()
            || self.finalizer
            || self.prune
    }

    /// Returns the address of `--admin-listen` if it isn't the default one.
    #[must_use]
    pub fn named_admin_listen(&self) -> Option<SocketAddr> {
        self.admin_listen.address().filter(|address| address.to_string() != ADMIN_LISTEN)
    }

    /// Returns the selection of the Services that become links.
    #[must_use]
    pub fn selection(&self) -> Selection {
        Selection {
            annotated_only: self.selection == SelectionMode::Annotated,
            namespaces: self.watch_namespaces.iter().cloned().collect(),
            labels: self.service_selector.clone().unwrap_or_default(),
            classes: self.load_balancer_classes.iter().cloned().collect(),
            annotation_prefixes: self.hostname_policy.annotation_prefixes.clone(),
            target_namespace: self.manifests.is_none().then(|| self.target_namespace.clone()),
        }
    }

    /// Returns these flags for a process that only reads: it neither writes nor takes part in an election. Objects belong
    /// to the same instance as without.
    #[must_use]
    pub fn read_only(self) -> Self {
        let instance = self.named_instance();
        Self { sync: Some(SyncMode::Off), output: None, instance, ..self }
    }

    /// Returns the policy for requested hostnames and for targets, with these zones of links.
    #[must_use]
    pub fn hostname_policy(&self, zones: &CorefileZones) -> HostnamePolicy {
        let home = self.remote.cluster_name.as_str().into();
        HostnamePolicy { home, remotes: self.remote.names(), ..self.hostname_policy.hostname_policy(zones) }
    }
}

fn shown_connection(path: &Path, context: Option<&str>) -> String {
    let context = context.map(|context| format!(", context {context}")).unwrap_or_default();
    format!("{}{context}", path.display())
}

/// Returns whether two paths are the same file, which may not exist yet.
fn is_same_path(a: &Path, b: &Path) -> bool {
    let real = |path: &Path| path.canonicalize().or_else(|_| std::path::absolute(path)).ok();
    a == b || real(a).is_some_and(|a| real(b) == Some(a))
}

#[cfg(test)]
mod tests;
