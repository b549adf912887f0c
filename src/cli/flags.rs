//! The flags, their defaults, and what they mean together.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use hickory_proto::rr::Name;
use kube::core::Selector;

use crate::cli::client_nets_flag::ClientNet;
use crate::cli::client_nets_flag::PRIVATE_NETS;
use crate::cli::election_flags::ElectionFlags;
use crate::cli::parsers::{delay, dns_label, instance, listen, max_deletes, zone};
use crate::cli::policy_flags::AdmissionFlags;
use crate::cli::selector::selector;
use crate::cli::upstream_flag::UpstreamSpec;
use crate::dns::plugins::lb_linker::LinkZone;
use crate::dns::query_log::LineFormat;
use crate::model::hostname::host_text;
use crate::model::hostname_policy::Admission;
use crate::model::names;
use crate::sync::external_target::decision::{OnDelete, Policy, SyncMode};
use crate::sync::external_target::deletion_budget::MaxDeletes;
use crate::sync::external_target::desired::IpTargets;
use crate::sync::source::selection::Selection;

/// The port of DNS (RFC 1035 section 4.2).
pub(crate) const DNS_PORT: u16 = 53;

/// How the log is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// One line of text an event.
    Text,
    /// One JSON object an event.
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

/// Which load balancers are followed without a word of theirs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SelectionMode {
    /// Those that don't opt out.
    All,
    /// Those that opt in.
    Annotated,
}

/// The flags of `run`, `check` and `takeover`.
#[derive(Clone, Debug, Args)]
pub struct Flags {
    /// Kubeconfig of the cluster [default: the Pod's service account, else what kubectl takes]
    #[arg(long, value_name = "PATH", env = "LB_LINKER_KUBECONFIG", help_heading = "Cluster")]
    pub kubeconfig: Option<PathBuf>,

    /// Context of the kubeconfig [default: its current one]
    #[arg(long, value_name = "NAME", env = "LB_LINKER_CONTEXT", help_heading = "Cluster")]
    pub context: Option<String>,

    /// Namespace that the external targets are kept in
    #[arg(
        long,
        value_name = "NAME",
        env = "LB_LINKER_TARGET_NAMESPACE",
        default_value = "external-targets",
        value_parser = dns_label,
        help_heading = "External targets"
    )]
    pub target_namespace: String,

    /// Name of this installation, where several keep external targets in one namespace: it changes only objects with
    /// its own name in the annotation linker.hsj.com/instance, or without one; all replicas have the same name
    /// [default: the namespace and the name of the Lease, as in lb-linker/lb-linker; outside a Pod the target namespace
    /// and the name of the Lease]
    #[arg(
        long,
        value_name = "NAME",
        env = "LB_LINKER_INSTANCE",
        value_parser = instance,
        conflicts_with = "manifests",
        help_heading = "External targets"
    )]
    pub instance: Option<String>,

    /// Namespaces whose load balancers are followed, separated by commas [default: all]
    #[arg(
        long,
        value_name = "NAMES",
        env = "LB_LINKER_WATCH_NAMESPACES",
        value_parser = dns_label,
        value_delimiter = ',',
        help_heading = "Selection"
    )]
    pub watch_namespaces: Vec<String>,

    /// Labels of the load balancers that are followed, as in kubectl -l [default: any]
    #[arg(
        long,
        value_name = "SELECTOR",
        env = "LB_LINKER_SERVICE_SELECTOR",
        value_parser = selector,
        help_heading = "Selection"
    )]
    pub service_selector: Option<Selector>,

    /// Follow all load balancers but those that opt out by the annotation linker.hsj.com/managed:
    /// "false", or only those that opt in by "true"
    #[arg(
        long,
        value_name = "WHICH",
        env = "LB_LINKER_SELECTION",
        default_value = "all",
        value_enum,
        help_heading = "Selection"
    )]
    pub selection: SelectionMode,

    /// What is done about external targets: on makes the writes, plan only logs them, off answers DNS and nothing else
    /// [default: on in a Pod (also with --kubeconfig or --context), with any value of --leader-election (also off) and
    /// with --manifests; else plan]
    #[arg(long, value_name = "MODE", env = "LB_LINKER_SYNC", value_enum, help_heading = "External targets")]
    pub sync: Option<SyncMode>,

    /// What becomes of the external target of a Service that is gone
    #[arg(
        long,
        value_name = "WHAT",
        env = "LB_LINKER_ON_DELETE",
        default_value = "delete",
        value_enum,
        help_heading = "External targets"
    )]
    pub on_delete: OnDelete,

    /// With --on-delete delete: how long an external target outlives its Service; a load balancer that is recreated
    /// meanwhile keeps it. A Service that stops matching the selection keeps its names and external target as long.
    /// With --finalizer there is no delay
    #[arg(
        long,
        value_name = "DURATION",
        env = "LB_LINKER_DELETE_DELAY",
        default_value = "10m",
        value_parser = delay,
        help_heading = "External targets"
    )]
    pub delete_delay: Duration,

    /// Treat external targets that the earlier operator left behind, and whose Service is gone, like
    /// lb-linker's own: --on-delete says what becomes of them
    #[arg(long, env = "LB_LINKER_PRUNE", help_heading = "External targets")]
    pub prune: bool,

    /// How a load balancer that has addresses instead of a hostname is shown
    #[arg(
        long,
        value_name = "HOW",
        env = "LB_LINKER_IP_TARGETS",
        default_value = "headless",
        value_enum,
        help_heading = "External targets"
    )]
    pub ip_targets: IpTargets,

    /// How many external targets may be removed in ten minutes: a number, or "unlimited". While it is given, external
    /// targets that a flag leaves out are removed too, at that rate: give it for one start only, then remove it again
    /// [default: 10, or a fifth of them, whichever is more; and none of those that a flag leaves out, where they are
    /// most]
    #[arg(
        long,
        value_name = "NUMBER",
        env = "LB_LINKER_MAX_DELETES",
        value_parser = max_deletes,
        help_heading = "External targets"
    )]
    pub max_deletes: Option<MaxDeletes>,

    /// Put the finalizer lb-linker/finalizer on load balancers: a Service that is deleted goes only after its
    /// external target, and waits for lb-linker; needs the rights of deploy/finalizer/
    #[arg(
        long,
        env = "LB_LINKER_FINALIZER",
        conflicts_with = "manifests",
        help_heading = "External targets"
    )]
    pub finalizer: bool,

    /// What of Services' wishes is granted
    #[command(flatten)]
    pub admission: AdmissionFlags,
    /// Who writes, of several instances.
    #[command(flatten)]
    pub election: ElectionFlags,

    /// Work without a cluster: read Services from the YAML and JSON files in this directory, and
    /// again whenever they change
    #[arg(
        long,
        value_name = "DIR",
        env = "LB_LINKER_MANIFESTS",
        conflicts_with_all = ["kubeconfig", "context"],
        help_heading = "Without a cluster"
    )]
    pub manifests: Option<PathBuf>,

    /// With --manifests: keep the external targets as YAML files in this directory
    #[arg(
        long,
        value_name = "DIR",
        env = "LB_LINKER_OUTPUT",
        requires = "manifests",
        help_heading = "Without a cluster"
    )]
    pub output: Option<PathBuf>,

    /// Corefile that says how DNS is answered, instead of the flags from --zone to --ready-listen: the plugins of
    /// CoreDNS in its syntax, and lb_linker for the load balancers' names
    #[arg(
        long,
        value_name = "PATH",
        env = "LB_LINKER_COREFILE",
        conflicts_with_all = [
            "zones", "listen", "upstream", "client_nets", "metrics_listen", "health_listen", "ready_listen",
        ],
        help_heading = "DNS"
    )]
    pub corefile: Option<PathBuf>,

    /// Zone to answer for; may be given more than once
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

    /// The labels below the zones that are the zones' own; the Corefile says so.
    #[arg(skip)]
    pub apexes: Vec<String>,

    /// Address to answer DNS on, by UDP and TCP; may be given more than once
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

    /// Resolver for all other names, and for the addresses behind a load balancer's hostname: an
    /// address, tls:// with an address and the name in its certificate if that isn't the address, a file like
    /// resolv.conf, or "none"; may be given more than once
    #[arg(
        long,
        value_name = "ADDRESS[:PORT]|tls://ADDRESS[%NAME][:PORT]|FILE|none",
        env = "LB_LINKER_UPSTREAM",
        default_value = "/etc/resolv.conf",
        value_delimiter = ',',
        help_heading = "DNS"
    )]
    pub upstream: Vec<UpstreamSpec>,

    /// Networks of the clients for which names outside the zones are resolved, separated by commas, or "any"; other
    /// clients get REFUSED for such names, and every client gets the addresses behind a load balancer's hostname; a
    /// value replaces the default: copy the default from `lb-linker check` and append your networks
    #[arg(
        long,
        value_name = "NETWORKS|any",
        env = "LB_LINKER_CLIENT_NETS",
        default_value = PRIVATE_NETS,
        value_delimiter = ',',
        help_heading = "DNS"
    )]
    pub client_nets: Vec<ClientNet>,

    /// Address to serve /metrics on, for Prometheus
    #[arg(
        long,
        value_name = "ADDRESS:PORT",
        env = "LB_LINKER_METRICS_LISTEN",
        default_value = ":9153",
        value_parser = listen,
        help_heading = "Observing"
    )]
    pub metrics_listen: SocketAddr,

    /// Address to serve /health on: 200 while the process works
    #[arg(
        long,
        value_name = "ADDRESS:PORT",
        env = "LB_LINKER_HEALTH_LISTEN",
        default_value = ":8080",
        value_parser = listen,
        help_heading = "Observing"
    )]
    pub health_listen: SocketAddr,

    /// Address to serve /ready on: 200 once the load balancers are known
    #[arg(
        long,
        value_name = "ADDRESS:PORT",
        env = "LB_LINKER_READY_LISTEN",
        default_value = ":8181",
        value_parser = listen,
        help_heading = "Observing"
    )]
    pub ready_listen: SocketAddr,

    /// How the log is written; RUST_LOG says how much
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

/// What is wrong with the flags, one by one right as they may be.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// `none` beside other upstreams.
    #[error("--upstream none can't be combined with other upstreams")]
    NoneAndOthers,
    /// `any` beside networks.
    #[error("--client-nets any can't be combined with networks")]
    AnyAndNets,
    /// A resolv.conf can't be used.
    #[error("--upstream {}: {why}; name a resolver's address, or \"none\"", path.display())]
    ResolvConf {
        /// The file.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// A zone inside another one.
    #[error("--zone {inner}: it lies in --zone {outer}, whose names it would hide")]
    NestedZones {
        /// The inner zone.
        inner: String,
        /// The outer zone.
        outer: String,
    },
    /// Services that could never go.
    #[error("--finalizer with --max-deletes 0: a Service would never go, for its external target never does")]
    NeverGo,
    /// A tombstone that the API server would refuse.
    #[error(
        "--on-delete tombstone with --zone {0}: deleted.{0} can't be an externalName, which has letters, digits and \
         hyphens only; give another zone first"
    )]
    Tombstone(String),
    /// One address twice.
    #[error("--listen {0} is given twice")]
    ListenTwice(SocketAddr),
    /// Leader-for-life without a Pod.
    #[error(
        "--leader-election life works in a Pod only, which the variables POD_NAME and POD_NAMESPACE have to \
         name (deploy/ sets them)"
    )]
    LifeOutsideAPod,
    /// An upstream is ourselves.
    #[error(
        "--upstream {upstream} is lb-linker's own --listen {listen}: every question would go round in circles"
    )]
    Ourselves {
        /// The upstream.
        upstream: SocketAddr,
        /// The listener.
        listen: SocketAddr,
    },
}

impl Flags {
    /// Checks what no flag can know alone.
    ///
    /// # Errors
    /// If zones lie in each other, an address is given twice, or there can't be such an election.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.candidacy()?;
        for (i, outer) in self.zones.iter().enumerate() {
            for (j, inner) in self.zones.iter().enumerate() {
                if i != j && outer.zone_of(inner) {
                    return Err(ConfigError::NestedZones {
                        inner: host_text(inner),
                        outer: host_text(outer),
                    });
                }
            }
        }
        if self.finalizer && self.max_deletes == Some(MaxDeletes::Number(0)) {
            return Err(ConfigError::NeverGo);
        }
        self.check_tombstone()?;
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

    /// Takes over the zones with links' names that a Corefile has.
    ///
    /// # Errors
    /// If they don't go with the other flags.
    pub fn set_zones(&mut self, zones: &[LinkZone]) -> Result<(), ConfigError> {
        self.zones = zones.iter().map(|zone| zone.origin.clone()).collect();
        self.apexes = zones.iter().map(|zone| zone.apex.clone()).collect();
        self.check_tombstone()
    }

    fn check_tombstone(&self) -> Result<(), ConfigError> {
        let zone = self.zones.first().map(host_text).unwrap_or_default();
        if self.on_delete == OnDelete::Tombstone && !zone.split('.').all(names::is_label) {
            return Err(ConfigError::Tombstone(zone));
        }
        Ok(())
    }

    /// Returns which Services become links.
    #[must_use]
    pub fn selection(&self) -> Selection {
        Selection {
            annotated_only: self.selection == SelectionMode::Annotated,
            namespaces: self.watch_namespaces.iter().cloned().collect(),
            labels: self.service_selector.clone().unwrap_or_default(),
            target_namespace: self.manifests.is_none().then(|| self.target_namespace.clone()),
        }
    }

    /// Returns what of Services' wishes is granted.
    #[must_use]
    pub fn admission(&self) -> Admission {
        self.admission.admission(&self.zones, &self.apexes)
    }

    /// Returns what the user has decided about external targets.
    #[must_use]
    pub fn policy(&self) -> Policy {
        let zone = self.zones.first().map(host_text).unwrap_or_default();
        Policy {
            sync: self.sync_mode(),
            on_delete: self.on_delete,
            // A Service that waits for its external target isn't recreated meanwhile.
            delete_delay: if self.finalizer { Duration::ZERO } else { self.delete_delay },
            finalizer: self.finalizer,
            tombstone: format!("{}.{zone}", names::DELETED),
            max_deletes: self.max_deletes.unwrap_or_default(),
            ip_targets: self.ip_targets,
            prune: self.prune,
            instance: self.has_instance().then(|| self.instance()),
        }
    }

    /// Returns whether the objects of other instances are told from those of this one: files have no instances,
    /// and where only DNS is answered all objects are read.
    fn has_instance(&self) -> bool {
        self.manifests.is_none() && self.sync_mode() != SyncMode::Off
    }

    /// Returns the flags with their values in force, for people to read. Those that the Corefile says are there.
    #[must_use]
    pub fn effective(&self) -> Vec<(&'static str, String)> {
        fn list<T: ToString>(items: &[T]) -> String {
            items.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
        }
        let path = |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string());
        let mut flags = Vec::new();
        let mut optional = |flag, value: Option<String>| flags.extend(value.map(|value| (flag, value)));
        optional("--kubeconfig", path(&self.kubeconfig));
        optional("--context", self.context.clone());
        optional("--manifests", path(&self.manifests));
        optional("--output", path(&self.output));
        optional("--service-selector", self.service_selector.as_ref().map(ToString::to_string));
        let namespaces = (!self.watch_namespaces.is_empty()).then(|| list(&self.watch_namespaces));
        optional("--watch-namespaces", namespaces);
        flags.push(("--selection", value_name(&self.selection)));
        if self.manifests.is_none() {
            flags.push(("--target-namespace", self.target_namespace.clone()));
        }
        if self.has_instance() {
            flags.push(("--instance", self.instance()));
        }
        flags.extend([
            ("--sync", value_name(&self.sync_mode())),
            ("--on-delete", value_name(&self.on_delete)),
            ("--delete-delay", crate::cli::parsers::duration_text(self.policy().delete_delay)),
            ("--finalizer", if self.finalizer { "on" } else { "off" }.to_owned()),
            ("--max-deletes", self.max_deletes.unwrap_or_default().to_string()),
            ("--prune", if self.prune { "on" } else { "off" }.to_owned()),
            ("--ip-targets", value_name(&self.ip_targets)),
        ]);
        flags.extend(self.admission.effective());
        flags.extend(self.effective_election());
        flags.push(("--log-format", value_name(&self.log_format)));
        flags
    }
}

/// Returns how a value is written on the command line.
pub(crate) fn value_name(value: &impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests;
