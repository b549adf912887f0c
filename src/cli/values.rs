//! The values of enums outside `cli`: only `cli` and `main.rs` use clap.

use clap::ValueEnum;
use clap::builder::PossibleValue;

use crate::links::OutputFormat;
use crate::stub::platform::Resolver;
use crate::sync::external_target::decision::{OnDelete, SyncMode};
use crate::sync::external_target::desired::IpTargets;

impl ValueEnum for OutputFormat {
    fn value_variants<'a>() -> &'a [Self] {
        &[Self::Wide, Self::Json, Self::Yaml, Self::Name]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let (name, help) = match self {
            Self::Wide => ("wide", "The table with reasons, all DNS names and StableNames"),
            Self::Json => ("json", "JSON"),
            Self::Yaml => ("yaml", "YAML"),
            Self::Name => ("name", "service/<name> or stablename.linker.hsj.com/<name>, for kubectl"),
        };
        Some(PossibleValue::new(name).help(help))
    }
}

impl ValueEnum for Resolver {
    fn value_variants<'a>() -> &'a [Self] {
        &[
            Self::CoreDns,
            Self::NodeLocal,
            Self::Eks,
            Self::Aks,
            Self::K3s,
            Self::GkeKubeDns,
            Self::OpenShift,
            Self::Kubespray,
            Self::Dnsmasq,
            Self::SystemdResolved,
        ]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let (name, help) = match self {
            Self::CoreDns => ("coredns", "CoreDNS, as installed by kubeadm, kind or minikube"),
            Self::NodeLocal => ("nodelocal", "NodeLocal DNSCache"),
            Self::Eks => ("eks", "The CoreDNS add-on of EKS"),
            Self::Aks => ("aks", "CoreDNS and LocalDNS of AKS"),
            Self::K3s => ("k3s", "CoreDNS of k3s"),
            Self::GkeKubeDns => ("gke", "kube-dns of GKE"),
            Self::OpenShift => ("openshift", "The DNS operator of OpenShift"),
            Self::Kubespray => ("kubespray", "The variables of kubespray"),
            Self::Dnsmasq => ("dnsmasq", "dnsmasq on a node"),
            Self::SystemdResolved => ("systemd-resolved", "systemd-resolved on a node"),
        };
        Some(PossibleValue::new(name).help(help))
    }
}

impl ValueEnum for SyncMode {
    fn value_variants<'a>() -> &'a [Self] {
        &[Self::On, Self::Plan, Self::Off]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let (name, help) = match self {
            Self::On => ("on", "External targets are written"),
            Self::Plan => ("plan", "The writes are only logged"),
            Self::Off => ("off", "Only DNS is answered"),
        };
        Some(PossibleValue::new(name).help(help))
    }
}

impl ValueEnum for OnDelete {
    fn value_variants<'a>() -> &'a [Self] {
        &[Self::Delete, Self::Retain, Self::Tombstone]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let (name, help) = match self {
            Self::Delete => ("delete", "The external target is removed after --delete-delay"),
            Self::Retain => {
                ("retain", "The external target stays unchanged until the load balancer comes back")
            }
            Self::Tombstone => (
                "tombstone",
                "The external target points at `deleted.<zone>`, which doesn't exist, until the load balancer is back",
            ),
        };
        Some(PossibleValue::new(name).help(help))
    }
}

impl ValueEnum for IpTargets {
    fn value_variants<'a>() -> &'a [Self] {
        &[Self::Headless, Self::ExternalName, Self::Skip]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let (name, help) = match self {
            Self::Headless => {
                ("headless", "A headless Service with an EndpointSlice for each address family")
            }
            Self::ExternalName => (
                "external-name",
                "An ExternalName Service with an IPv4 address as name, as the earlier operator wrote it",
            ),
            Self::Skip => ("skip", "No external target"),
        };
        Some(PossibleValue::new(name).help(help))
    }
}
