//! The types of the model: load balancers, targets and external targets, without Kubernetes types.

use std::net::IpAddr;

use lb_linker::model::service_key::ServiceKey;

/// The end of the `externalName` that an external target has while its clusterIP changes.
pub const PLACEHOLDER: &str = ".invalid";

/// `spec.type` of a Service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ServiceType {
    #[default]
    LoadBalancer,
    ClusterIp,
    ExternalName,
}

/// The valid hostnames and addresses of `status.loadBalancer.ingress`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ingress {
    pub hosts: Vec<String>,
    pub ips: Vec<IpAddr>,
}

/// A Service that is or was a load balancer, as the API server stores it.
#[derive(Clone, Debug, Default)]
pub struct Balancer {
    pub uid: String,
    /// The creationTimestamp, in seconds since 1970.
    pub created: i64,
    pub kind: ServiceType,
    /// `linker.hsj.com/managed: "false"`.
    pub opted_out: bool,
    /// Whether the Service has the label that the test's selector excludes.
    pub hidden: bool,
    /// Whether the Service is deleted but kept by a foreign finalizer.
    pub terminating: bool,
    pub ingress: Ingress,
    pub port: u16,
    /// `linker.hsj.com/allow-from: "*"`.
    pub followable: bool,
    /// The name, relative to the zone, that `linker.hsj.com/hostname` requests.
    pub claims: Option<String>,
}

impl Balancer {
    /// Whether lb-linker has a link for the Service.
    pub fn is_selected(&self) -> bool {
        self.kind == ServiceType::LoadBalancer && !self.opted_out && !self.hidden && !self.terminating
    }
}

/// The hostname or the addresses of a load balancer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    Host(String),
    Ips(Vec<IpAddr>),
}

impl Target {
    /// Returns the hostname in use while it is listed, otherwise the first hostname, otherwise all addresses.
    pub fn choose(ingress: &Ingress, in_use: Option<&Self>) -> Option<Self> {
        if let Some(Self::Host(host)) = in_use
            && ingress.hosts.contains(host)
        {
            return Some(Self::Host(host.clone()));
        }
        if let Some(host) = ingress.hosts.first() {
            return Some(Self::Host(host.clone()));
        }
        (!ingress.ips.is_empty()).then(|| Self::Ips(ingress.ips.clone()))
    }
}

impl Target {
    /// Returns the `externalName` for followers of the load balancer.
    pub fn follower_target(&self) -> Option<String> {
        match self {
            Self::Host(host) => Some(host.clone()),
            Self::Ips(ips) => ips.iter().find(|ip| ip.is_ipv4()).map(ToString::to_string),
        }
    }
}

/// The Service of an external target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetService {
    /// An ExternalName Service without unexpected fields.
    ExternalName(String),
    /// A headless Service with this port and without unexpected fields.
    Headless(u16),
    /// Any other Service, and its `externalName` if it is an ExternalName Service.
    Other(String, Option<String>),
}

/// The addresses and the port of an EndpointSlice.
pub type Slice = (Vec<IpAddr>, u16);

/// An external target with its EndpointSlices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TargetObjects {
    pub service: Option<TargetService>,
    pub ipv4: Option<Slice>,
    pub ipv6: Option<Slice>,
}

impl TargetObjects {
    /// Returns the expected objects for a target.
    pub fn of(target: &Target, port: u16) -> Self {
        match target {
            Target::Host(host) => Self::named(host),
            Target::Ips(ips) => {
                let family = |ipv4: bool| {
                    let ips: Vec<IpAddr> = ips.iter().copied().filter(|ip| ip.is_ipv4() == ipv4).collect();
                    (!ips.is_empty()).then_some((ips, port))
                };
                Self { service: Some(TargetService::Headless(port)), ipv4: family(true), ipv6: family(false) }
            }
        }
    }

    pub fn named(host: &str) -> Self {
        Self { service: Some(TargetService::ExternalName(host.to_owned())), ipv4: None, ipv6: None }
    }

    pub fn is_absent(&self) -> bool {
        *self == Self::default()
    }

    /// Returns the target that a new lb-linker process reads from the external target.
    pub fn last_target(&self) -> Option<Target> {
        if let Some(TargetService::ExternalName(host) | TargetService::Other(_, Some(host))) = &self.service
            && !host.ends_with(PLACEHOLDER)
        {
            return Some(Target::Host(host.clone()));
        }
        self.service.as_ref()?;
        let slices = [&self.ipv4, &self.ipv6].into_iter().flatten();
        let ips: Vec<IpAddr> = slices.flat_map(|(ips, _)| ips.clone()).collect();
        (!ips.is_empty()).then_some(Target::Ips(ips))
    }

    /// Whether each part equals the same part of one of `others`: lb-linker writes an external target part by part,
    /// and stops when the link has lost its target.
    pub fn is_made_of(&self, others: &[Self]) -> bool {
        others.iter().any(|other| other.service == self.service)
            && others.iter().any(|other| other.ipv4 == self.ipv4)
            && others.iter().any(|other| other.ipv6 == self.ipv6)
    }
}

/// An ExternalName Service with the annotation `source`.
#[derive(Clone, Debug)]
pub struct Follower {
    pub source: ServiceKey,
    /// The targets that the follower may have while its source determines no target.
    pub allowed_targets: Vec<String>,
}
