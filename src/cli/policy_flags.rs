//! The flags of the policies for names and targets.

use std::sync::Arc;

use clap::Args;
use hickory_proto::rr::Name;
use ipnet::IpNet;

use super::parsers::{annotation, annotation_prefix, domain, namespace_or_all, namespaces_of_clusters, net};
use crate::dns::plugins::lb_linker::LinkZone;
use crate::dns::server::corefile_source::CorefileZones;
use crate::model::hostname::to_presentation;
use crate::model::hostname_policy::HostnamePolicy;
use crate::model::owner::{Source, Zone};
use crate::model::target_policy::TargetPolicy;

/// Policies for names and targets.
#[derive(Clone, Debug, Args)]
pub struct HostnamePolicyFlags {
    /// Annotations of load balancers with further DNS names, in addition to linker.hsj.com/hostname, separated by
    /// commas [default: none]
    #[arg(
        long,
        value_name = "KEYS",
        env = "LB_LINKER_HOSTNAME_ANNOTATIONS",
        value_parser = annotation,
        value_delimiter = ',',
        help_heading = "Names and targets"
    )]
    pub hostname_annotations: Vec<String>,

    /// Prefixes of annotations of another program that count as those of lb-linker do, behind them, separated by commas;
    /// for example external-dns.kubernetes.io/ of ExternalDNS [default: none]
    #[arg(
        long,
        value_name = "PREFIXES",
        env = "LB_LINKER_ANNOTATION_PREFIXES",
        value_parser = annotation_prefix,
        value_delimiter = ',',
        help_heading = "Names and targets"
    )]
    pub annotation_prefixes: Vec<String>,

    /// Namespaces whose objects may have any name in the zones, separated by commas, or "*" for all; those of a remote
    /// cluster as in west/shop or "west/*". Objects of other namespaces may have names below `<namespace>.<zone>`, in a
    /// remote cluster below `<namespace>.<cluster>.<zone>` [default: none]
    #[arg(
        long,
        value_name = "NAMES",
        env = "LB_LINKER_HOSTNAME_NAMESPACES",
        value_parser = namespaces_of_clusters,
        value_delimiter = ',',
        help_heading = "Names and targets"
    )]
    pub hostname_namespaces: Vec<String>,

    /// Namespaces in which StableNames may check hostnames and addresses of their spec by TCP connections, separated
    /// by commas, or "*" for all. Load balancers are checked at their own ports everywhere [default: none]
    #[arg(
        long,
        value_name = "NAMES",
        env = "LB_LINKER_TCP_CHECK_NAMESPACES",
        value_parser = namespace_or_all,
        value_delimiter = ',',
        help_heading = "Names and targets"
    )]
    pub tcp_check_namespaces: Vec<String>,

    /// Domain of the cluster's own names, which are never a target, and in no zone of lb-linker
    #[arg(
        long,
        value_name = "DOMAIN",
        env = "LB_LINKER_CLUSTER_DOMAIN",
        default_value = "cluster.local",
        value_parser = domain,
        help_heading = "Names and targets"
    )]
    pub cluster_domain: Name,

    /// Domains that targets must lie in, separated by commas [default: any]
    #[arg(
        long,
        value_name = "DOMAINS",
        env = "LB_LINKER_TARGET_DOMAINS",
        value_parser = domain,
        value_delimiter = ',',
        help_heading = "Names and targets"
    )]
    pub target_domains: Vec<Name>,

    /// Networks that addresses of targets must lie in, such as 192.0.2.0/24, separated by commas [default: any]
    #[arg(
        long,
        value_name = "NETS",
        env = "LB_LINKER_TARGET_NETS",
        value_parser = net,
        value_delimiter = ',',
        help_heading = "Names and targets"
    )]
    pub target_nets: Vec<IpNet>,

    /// Networks of addresses that no target may have, separated by commas, in addition to loopback, link-local,
    /// multicast and cloud metadata addresses, which are denied unless --allowed-nets lists them. Set it to the
    /// cluster's Service network, and to its Pod network if load balancers have no addresses in it [default: none]
    #[arg(
        long,
        value_name = "NETS",
        env = "LB_LINKER_DENIED_NETS",
        value_parser = net,
        value_delimiter = ',',
        help_heading = "Names and targets"
    )]
    pub denied_nets: Vec<IpNet>,

    /// Exceptions from the built-in list of denied networks and from --denied-nets, but not from --target-nets,
    /// separated by commas; for example 127.0.0.0/8 for minikube tunnel. External targets never hold loopback and
    /// link-local addresses, because the API server refuses them there: only DNS answers contain them [default: none]
    #[arg(
        long,
        value_name = "NETS",
        env = "LB_LINKER_ALLOWED_NETS",
        value_parser = net,
        value_delimiter = ',',
        help_heading = "Names and targets"
    )]
    pub allowed_nets: Vec<IpNet>,
}

// === impl HostnamePolicyFlags ===

impl HostnamePolicyFlags {
    /// Returns the policy for names and targets in these zones, with the reserved label of each zone.
    pub(crate) fn hostname_policy(&self, zones: &CorefileZones) -> HostnamePolicy {
        let closed = zones.links.iter().filter(|zone| !zone.sources.contains(&Source::SERVICES));
        let of_lb_linker = zones.links.iter().filter(|zone| zone.k8s_gateway.is_none());
        HostnamePolicy {
            targets: TargetPolicy {
                zones: zones.links.iter().map(|zone| zone.origin.clone()).collect(),
                cluster_domain: self.cluster_domain.clone(),
                cluster_zones: zones.cluster.clone(),
                domains: self.target_domains.clone(),
                nets: self.target_nets.clone(),
                denied_nets: self.denied_nets.clone(),
                allowed_nets: self.allowed_nets.clone(),
            },
            closed_zones: closed.map(|zone| zone.origin.clone()).collect(),
            zones: zones_with_rules(&zones.links),
            reserved_labels: of_lb_linker.map(|zone| zone.apex.clone()).collect(),
            hostname_annotations: self.hostname_annotations.clone(),
            annotation_prefixes: self.annotation_prefixes.clone(),
            hostname_namespaces: self.hostname_namespaces.iter().cloned().collect(),
            home: Arc::default(),
            remotes: Arc::default(),
        }
    }

    /// Returns the name and the effective value of each flag, without the flags whose value is empty.
    pub(crate) fn effective(&self) -> Vec<(&'static str, String)> {
        let hosts = |names: &[Name]| names.iter().map(to_presentation).collect::<Vec<_>>().join(",");
        let nets = |nets: &[IpNet]| nets.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        let mut flags = vec![
            ("--hostname-annotations", self.hostname_annotations.join(",")),
            ("--annotation-prefixes", self.annotation_prefixes.join(",")),
            ("--hostname-namespaces", self.hostname_namespaces.join(",")),
            ("--tcp-check-namespaces", self.tcp_check_namespaces.join(",")),
            ("--cluster-domain", to_presentation(&self.cluster_domain)),
            ("--target-domains", hosts(&self.target_domains)),
            ("--target-nets", nets(&self.target_nets)),
            ("--denied-nets", nets(&self.denied_nets)),
            ("--allowed-nets", nets(&self.allowed_nets)),
        ];
        flags.retain(|(_, value)| !value.is_empty());
        flags
    }
}

/// Returns the zones with their rules, if there are zones of *k8s_gateway*.
fn zones_with_rules(zones: &[LinkZone]) -> Vec<Zone> {
    match zones.iter().any(|zone| zone.k8s_gateway.is_some()) {
        true => zones.iter().map(Zone::from).collect(),
        false => Vec::new(),
    }
}
