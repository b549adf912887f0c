//! The model's words: what a load balancer, a target and an external target are, without any Kubernetes.

use std::net::IpAddr;

use lb_linker::model::service_key::ServiceKey;

/// `spec.type` of a Service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    #[default]
    LoadBalancer,
    ClusterIp,
    ExternalName,
}

/// `status.loadBalancer.ingress`, as far as DNS can carry it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ingress {
    pub hosts: Vec<String>,
    pub ips: Vec<IpAddr>,
}

/// A Service that is a load balancer, or was one, as the API server has it.
#[derive(Clone, Debug, Default)]
pub struct Balancer {
    pub uid: String,
    /// Seconds since 1970, as the API server says.
    pub created: i64,
    pub kind: Kind,
    /// `linker.hsj.com/managed: "false"`.
    pub opted_out: bool,
    /// The label that the selector of the test excludes.
    pub hidden: bool,
    /// Deleted, but held by a finalizer of somebody else.
    pub terminating: bool,
    pub ingress: Ingress,
    pub port: u16,
    /// `linker.hsj.com/allow-from: "*"`.
    pub followable: bool,
    /// The relative name that `linker.hsj.com/hostname` claims.
    pub claims: Option<String>,
}

impl Balancer {
    /// Whether lb-linker makes a link of it.
    pub fn is_selected(&self) -> bool {
        self.kind == Kind::LoadBalancer && !self.opted_out && !self.hidden && !self.terminating
    }
}

/// What a load balancer is reached at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    Host(String),
    Ips(Vec<IpAddr>),
}

impl Target {
    /// The hostname in use stays while it is listed, else the first one, else all addresses.
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
    /// Where it leads who follows its load balancer.
    pub fn leads_a_follower_to(&self) -> Option<String> {
        match self {
            Self::Host(host) => Some(host.clone()),
            Self::Ips(ips) => ips.iter().find(|ip| ip.is_ipv4()).map(ToString::to_string),
        }
    }
}

/// What the Service of an external target is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Front {
    /// An ExternalName Service, and nothing but that.
    ExternalName(String),
    /// A headless Service with this one port, and nothing but that.
    Headless(u16),
    /// Anything else, and the name that it leads to if it is an ExternalName Service.
    Other(String, Option<String>),
}

/// The addresses and the port of an EndpointSlice.
pub type Slice = (Vec<IpAddr>, u16);

/// An external target with its EndpointSlices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shape {
    pub front: Option<Front>,
    pub ipv4: Option<Slice>,
    pub ipv6: Option<Slice>,
}

impl Shape {
    /// What there should be for a target.
    pub fn of(target: &Target, port: u16) -> Self {
        match target {
            Target::Host(host) => Self::named(host),
            Target::Ips(ips) => {
                let family = |ipv4: bool| {
                    let ips: Vec<IpAddr> = ips.iter().copied().filter(|ip| ip.is_ipv4() == ipv4).collect();
                    (!ips.is_empty()).then_some((ips, port))
                };
                Self { front: Some(Front::Headless(port)), ipv4: family(true), ipv6: family(false) }
            }
        }
    }

    pub fn named(host: &str) -> Self {
        Self { front: Some(Front::ExternalName(host.to_owned())), ipv4: None, ipv6: None }
    }

    pub fn is_absent(&self) -> bool {
        *self == Self::default()
    }

    /// What a link's external target points at that a process has left.
    pub fn points_at(&self) -> Option<Target> {
        if let Some(Front::ExternalName(host) | Front::Other(_, Some(host))) = &self.front {
            return Some(Target::Host(host.clone()));
        }
        self.front.as_ref()?;
        let slices = [&self.ipv4, &self.ipv6].into_iter().flatten();
        let ips: Vec<IpAddr> = slices.flat_map(|(ips, _)| ips.clone()).collect();
        (!ips.is_empty()).then_some(Target::Ips(ips))
    }

    /// Whether each part of it is that part of one of `others`: an external target is written part by part,
    /// and who has no target any more isn't written to its end.
    pub fn is_made_of(&self, others: &[Self]) -> bool {
        others.iter().any(|other| other.front == self.front)
            && others.iter().any(|other| other.ipv4 == self.ipv4)
            && others.iter().any(|other| other.ipv6 == self.ipv6)
    }
}

/// A follower: an ExternalName Service that names its `source`.
#[derive(Clone, Debug)]
pub struct Follower {
    pub source: ServiceKey,
    /// Where it may lead while nobody tells it where to.
    pub may_lead_to: Vec<String>,
}
