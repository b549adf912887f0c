//! Objects as DNS needs them.

use std::collections::HashMap;
use std::net::IpAddr;

/// A kind of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    Services,
    Slices,
    Namespaces,
    Pods,
    /// Services of several clusters.
    Imports,
}

impl Kind {
    pub const ALL: [Self; 5] = [Self::Services, Self::Slices, Self::Namespaces, Self::Pods, Self::Imports];

    /// Returns the name of the resource.
    #[must_use]
    pub fn resource(self) -> &'static str {
        match self {
            Self::Services => "services",
            Self::Slices => "endpointslices",
            Self::Namespaces => "namespaces",
            Self::Pods => "pods",
            Self::Imports => "serviceimports",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    pub addressing: Addressing,
    pub ports: Box<[Port]>,
}

/// What the name of a Service leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Addressing {
    ClusterIps(Box<[IpAddr]>),
    /// The addresses of its endpoints.
    Headless,
    /// An ExternalName, in wire form with the root octet, in lower case.
    Alias(Box<[u8]>),
    /// An ExternalName that no CNAME can hold, such as an IP address: the name doesn't exist.
    Unusable,
}

/// An address of a Service outside of the cluster: one of its `externalIPs`, or of its load balancer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum External {
    Address(IpAddr),
    /// In wire form with the root octet, in lower case.
    Host(Box<[u8]>),
}

/// A port of a Service, or of an EndpointSlice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// In lower case; may be empty.
    pub name: Box<str>,
    pub protocol: Protocol,
    /// `None` if any port may be meant: there is no SRV record.
    pub number: Option<u16>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    Tcp,
    Udp,
    Sctp,
    Other,
}

impl Protocol {
    /// Returns the protocol with a name in any case.
    #[must_use]
    pub fn of(name: &str) -> Self {
        let all = [Self::Tcp, Self::Udp, Self::Sctp];
        all.into_iter().find(|one| one.label().eq_ignore_ascii_case(name)).unwrap_or(Self::Other)
    }

    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Sctp => "sctp",
            Self::Other => "",
        }
    }
}

/// The ready endpoints of an EndpointSlice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    /// The name of the object.
    pub name: Box<str>,
    pub ports: Box<[Port]>,
    pub addresses: Box<[IpAddr]>,
    /// The names of endpoints other than their dashed addresses, by their place in `addresses`, ascending.
    pub names: Box<[(u32, Box<str>)]>,
    /// The topology zones of the endpoints, if names can have them.
    pub zones: Option<Box<EndpointZones>>,
    /// The cluster of the endpoints of a ServiceImport; empty for this one, or if it isn't known.
    pub cluster: Box<str>,
}

/// The topology zones of endpoints.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndpointZones {
    /// In wire form without the root octet, in lower case, each once.
    names: Box<[Box<[u8]>]>,
    /// For each endpoint the place of its zone in `names`, plus one; 0 without a zone.
    places: Box<[u16]>,
}

impl EndpointZones {
    /// Returns the zones of endpoints, given in wire form; `None` if there are none.
    #[must_use]
    pub fn of(zones: impl IntoIterator<Item = Option<Vec<u8>>>) -> Option<Box<Self>> {
        let mut known: HashMap<Box<[u8]>, u16> = HashMap::new();
        let mut place = |zone: Vec<u8>| {
            let next = u16::try_from(known.len() + 1).unwrap_or_default();
            *known.entry(zone.into()).or_insert(next)
        };
        let places = zones.into_iter().map(|zone| zone.map_or(0, &mut place)).collect();
        let mut names: Vec<_> = known.into_iter().collect();
        names.sort_unstable_by_key(|(_, place)| *place);
        let names: Box<[_]> = names.into_iter().map(|(name, _)| name).collect();
        (!names.is_empty()).then(|| Box::new(Self { names, places }))
    }

    /// Returns whether the endpoint at a place is in a zone.
    pub(super) fn has(&self, place: usize, zone: &[u8]) -> bool {
        let known = self.places.get(place).and_then(|at| usize::from(*at).checked_sub(1));
        known.is_some_and(|at| *self.names[at] == *zone)
    }
}
