//! Owners of names: the objects that ask for names.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use hickory_proto::rr::Name;

use crate::model::service_key::ServiceKey;
use crate::model::{clusters, names};

/// Where owners come from: objects of one kind in one cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Source {
    /// The name of the cluster; `None` for the cluster whose load balancers are links.
    pub cluster: Option<Arc<str>>,
    pub kind: Cow<'static, str>,
}

impl Source {
    /// The load balancers of the home cluster. Only they have external targets.
    pub const SERVICES: Self = Self { cluster: None, kind: Cow::Borrowed("Service") };
    /// The Ingresses of the home cluster.
    pub const INGRESSES: Self = Self { cluster: None, kind: Cow::Borrowed("Ingress") };
    /// The routes at Gateways of the home cluster.
    pub const GATEWAYS: Self = Self { cluster: None, kind: Cow::Borrowed("Gateway") };
    /// ExternalDNS's DNSEndpoints of the home cluster.
    pub const DNS_ENDPOINTS: Self = Self { cluster: None, kind: Cow::Borrowed("DNSEndpoint") };
    /// The internal hostnames of load balancers of the home cluster. Zones don't list it: its names belong to the source
    /// of load balancers.
    pub const INTERNAL: Self = Self { cluster: None, kind: Cow::Borrowed("Internal") };
    /// The routes at Gateways of one kind, which zones of *k8s_gateway* may list instead of [`Self::GATEWAYS`]. Their names are
    /// those of owners of that source.
    pub const HTTP_ROUTES: Self = Self { cluster: None, kind: Cow::Borrowed("HTTPRoute") };
    pub const GRPC_ROUTES: Self = Self { cluster: None, kind: Cow::Borrowed("GRPCRoute") };
    pub const TLS_ROUTES: Self = Self { cluster: None, kind: Cow::Borrowed("TLSRoute") };
    /// The sources that a zone may have, in the order of the documentation.
    pub const ALL: [Self; 4] = [Self::SERVICES, Self::INGRESSES, Self::GATEWAYS, Self::DNS_ENDPOINTS];

    /// Returns the source that zones list for the names of this one.
    #[must_use]
    pub fn listed(self) -> Self {
        if self == Self::INTERNAL { Self::SERVICES } else { self }
    }

    /// Returns the source of the same kind in the cluster of a namespace.
    #[must_use]
    pub fn in_cluster_of(self, namespace: &str) -> Self {
        Self { cluster: clusters::cluster_of(namespace).map(Into::into), ..self }
    }

    /// Returns whether the source is one of this kind, in any cluster.
    #[must_use]
    pub fn is_like(&self, other: &Self) -> bool {
        self.kind == other.kind
    }

    /// Returns ` of cluster west`, or nothing for the home cluster.
    #[must_use]
    pub fn place(&self) -> String {
        self.cluster.as_ref().map(|cluster| format!(" of cluster {cluster}")).unwrap_or_default()
    }

    /// Returns a clause about objects of this source that haven't been read.
    #[must_use]
    pub fn unread(&self) -> String {
        match &self.cluster {
            Some(cluster) => format!("cluster {cluster} isn't read"),
            None => format!("the {} objects haven't been read yet", self.kind),
        }
    }

    /// Returns the source that reads the objects of this one.
    #[must_use]
    pub fn general(&self) -> Self {
        let of_one_kind = [Self::HTTP_ROUTES, Self::GRPC_ROUTES, Self::TLS_ROUTES];
        match of_one_kind.iter().any(|routes| routes.kind == self.kind) {
            true => Self { cluster: self.cluster.clone(), ..Self::GATEWAYS },
            false => self.clone(),
        }
    }

    /// Returns whether this source, which a zone lists, has names of another source.
    fn has_names_of(&self, other: &Self) -> bool {
        self == other || self.general() == *other || *self == other.general()
    }

    /// Returns the source's name in a Corefile, in flags and in metrics.
    #[must_use]
    pub fn word(&self) -> String {
        self.kind.to_ascii_lowercase()
    }

    /// Returns the key of what is behind the names of an object. Only that of a Service has no dot.
    #[must_use]
    pub fn target_key(&self, object: &ServiceKey) -> ServiceKey {
        let (namespace, name) = object.parts();
        ServiceKey::new(namespace, &format!("{name}.{}", self.word()))
    }

    /// Returns whether a target's key is one of this source, which a zone lists.
    #[must_use]
    pub fn has_target(&self, key: &ServiceKey) -> bool {
        if self.cluster.as_deref() != key.cluster() {
            return false;
        }
        let word = key.name().rsplit_once('.').map(|(_, word)| word);
        match word.filter(|word| !Self::INTERNAL.kind.eq_ignore_ascii_case(word)) {
            None => self.is_like(&Self::SERVICES),
            Some(word) => !self.is_like(&Self::SERVICES) && self.general().kind.eq_ignore_ascii_case(word),
        }
    }
}

/// An object that asks for names. Its uid isn't part of it: an object that is recreated keeps its rank.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Owner {
    pub source: Source,
    pub key: ServiceKey,
}

impl Owner {
    /// Returns whether the owner is a load balancer of the home cluster.
    #[must_use]
    pub fn is_service(&self) -> bool {
        self.source == Source::SERVICES
    }
}

impl From<&ServiceKey> for Owner {
    fn from(key: &ServiceKey) -> Self {
        Self { source: Source::SERVICES, key: key.clone() }
    }
}

impl From<&Owner> for Owner {
    fn from(owner: &Owner) -> Self {
        owner.clone()
    }
}

impl PartialOrd for Owner {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Owner {
    /// Orders by namespace and name, then by source.
    fn cmp(&self, other: &Self) -> Ordering {
        self.key.cmp(&other.key).then_with(|| self.source.cmp(&other.source))
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.source.kind, self.key)
    }
}

/// Returns the object whose names lead to a target with this key, such as `Ingress shop/web`: see
/// [`Source::target_key`].
#[must_use]
pub fn object_of_target(key: &ServiceKey) -> String {
    let (namespace, name) = key.parts();
    let Some((object, word)) = name.rsplit_once('.') else { return format!("Service {key}") };
    // What several objects share has the key of the oldest one.
    let object = object.strip_suffix("._shared").unwrap_or(object);
    let is_of = |source: Source| source.kind.eq_ignore_ascii_case(word);
    if is_of(Source::DNS_ENDPOINTS) {
        return format!("name {object} of the DNSEndpoints in {namespace}");
    }
    if !is_of(Source::GATEWAYS) {
        let kind = if is_of(Source::INGRESSES) { "Ingress" } else { "Service" };
        return format!("{kind} {namespace}/{object}");
    }
    match object.rsplit_once("._") {
        Some((set, "listenerset")) => format!("a route at ListenerSet {namespace}/{set}"),
        Some((_, route)) => {
            let mut parts = route.splitn(3, '.');
            let mut part = || parts.next().unwrap_or_default();
            let kind = match part() {
                "grpcroute" => "GRPCRoute",
                "tlsroute" => "TLSRoute",
                _ => "HTTPRoute",
            };
            let (namespace, route) = (part(), part());
            format!("{kind} {}/{route}", clusters::in_cluster(key.cluster(), namespace))
        }
        None => format!("a route at Gateway {namespace}/{object}"),
    }
}

/// The names that an owner asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claims {
    /// When the owner was created, in seconds since 1970: a name without a recorded owner goes to the oldest.
    pub created: i64,
    /// Absolute names in lower case, without the trailing dot; the first label may be `*`.
    pub names: Arc<[Arc<str>]>,
    /// The source that the zone of these names lists for them, if it lists a part of the owner's source.
    pub listed: Option<Box<Source>>,
}

/// A zone, and the sources of its names.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Zone {
    /// The origin, in the form of [`crate::model::names::wire`].
    pub origin: Box<[u8]>,
    /// The label below the origin that is reserved for the zone itself, with all names below it; empty if it isn't known.
    /// In a zone of *k8s_gateway* a name of one label or more: that of the primary name server.
    pub apex: Box<str>,
    /// The remote cluster whose domain this is, below a zone; `None` for the zone itself.
    pub cluster: Option<Arc<str>>,
    /// The sources in their order. Other sources have no names in the zone.
    pub sources: Vec<Source>,
    /// The classes of the Ingresses with names in the zone; empty for all.
    pub ingress_classes: Vec<Box<str>>,
    /// The classes of the Gateways whose routes have names in the zone; empty for all.
    pub gateway_classes: Vec<Box<str>>,
    /// What a zone of the plugin *k8s_gateway* has besides; `None` for other zones.
    pub k8s_gateway: Option<K8sGateway>,
}

/// What a zone of the plugin *k8s_gateway* has besides. Every namespace may have any name there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct K8sGateway {
    /// The name below the origin of the second name server, which is reserved as the apex is.
    pub secondary: Option<Box<str>>,
    /// Label selectors: the load balancers that one of them selects have names in the zone; empty for all.
    pub service_selectors: Vec<Box<str>>,
}

impl From<&Name> for Zone {
    /// Returns a zone with the names of the own load balancers.
    fn from(origin: &Name) -> Self {
        // A `Name` has no label that the wire form can't have.
        let origin = names::wire(origin.iter()).unwrap_or_default().into();
        Self {
            origin,
            apex: Box::default(),
            cluster: None,
            sources: vec![Source::SERVICES],
            ingress_classes: Vec::new(),
            gateway_classes: Vec::new(),
            k8s_gateway: None,
        }
    }
}

impl Zone {
    /// Returns the zone with the names that objects of remote clusters may have outside of their clusters' domains, and the
    /// domain `<name>.<zone>` of each cluster, which has the same sources. A zone of *k8s_gateway* has names of the home
    /// cluster alone.
    #[must_use]
    pub fn with_remotes(mut self, remotes: &[Arc<str>]) -> Vec<Self> {
        if self.k8s_gateway.is_some() {
            return vec![self];
        }
        let own = self.sources.clone();
        let mut domains = Vec::new();
        for cluster in remotes {
            let sources: Vec<Source> = own
                .iter()
                .map(|source| Source { cluster: Some(Arc::clone(cluster)), ..source.clone() })
                .collect();
            self.sources.extend(sources.iter().cloned());
            let Some(label) = names::wire([cluster.as_bytes()]) else { continue };
            let origin = [&label, &*self.origin].concat().into();
            let (apex, cluster) = (Box::default(), Some(Arc::clone(cluster)));
            domains.push(Self { origin, apex, cluster, sources, ..self.clone() });
        }
        std::iter::once(self).chain(domains).collect()
    }

    /// Returns the closest of these zones that contains a name in wire form.
    #[must_use]
    pub fn closest<'a>(zones: &'a [Self], name: &[u8]) -> Option<&'a Self> {
        zones.iter().filter(|zone| zone.below(name).is_some()).max_by_key(|zone| zone.origin.len())
    }

    /// Returns the place of a source for a name in wire form among these zones: 0 comes first. `None` if the name's zone
    /// has other sources, and for a name outside of all zones that isn't a load balancer's.
    #[must_use]
    pub fn place(zones: &[Self], name: &[u8], source: &Source) -> Option<u16> {
        let place = match Self::closest(zones, name) {
            Some(zone) => {
                let source = source.clone().listed();
                zone.sources.iter().position(|listed| listed.has_names_of(&source))?
            }
            None if *source == Source::SERVICES => 0,
            None => return None,
        };
        u16::try_from(place).ok()
    }

    /// Returns whether a name in wire form is, among these zones, the default name of a load balancer of a remote cluster.
    #[must_use]
    pub fn is_default_name(zones: &[Self], name: &[u8], key: &ServiceKey) -> bool {
        let zone = key.cluster().and_then(|_| Self::closest(zones, name));
        let Some(zone) = zone.filter(|zone| zone.cluster.as_deref() == key.cluster()) else { return false };
        let own = names::wire([key.name(), clusters::split(key.namespace()).1].map(str::as_bytes));
        own.is_some() && own.as_deref() == zone.below(name)
    }

    /// Returns whether a source has names in the zone.
    #[must_use]
    pub fn has(&self, source: &Source) -> bool {
        self.sources.iter().any(|listed| listed.has_names_of(source))
    }

    /// Returns the routes of single kinds that have names in the zone, in their order.
    pub fn kinds_of_routes(&self) -> impl Iterator<Item = &Source> {
        self.sources.iter().filter(|listed| listed.general() != **listed)
    }

    /// Returns the sources that read the objects with names in the zone.
    pub fn read_sources(&self) -> impl Iterator<Item = Source> {
        self.sources.iter().map(Source::general)
    }

    /// Returns whether load balancers have their default names in the zone.
    #[must_use]
    pub fn has_default_names(&self) -> bool {
        self.has(&Source::SERVICES) && self.k8s_gateway.is_none()
    }

    /// Returns the names in zones of *k8s_gateway* that a hostname asks for: the hostname itself or, if it lies in none of
    /// these zones, the name that it is below each zone of *k8s_gateway*.
    #[must_use]
    pub fn k8s_gateway_names(zones: &[Self], hostname: &str) -> Vec<String> {
        let mut own = zones.iter().filter(|zone| zone.k8s_gateway.is_some()).peekable();
        if own.peek().is_none() {
            return Vec::new();
        }
        let name = names::in_stored_form(hostname);
        match names::wire_of(&name).map(|wire| Self::closest(zones, &wire)) {
            // It isn't a name: so are those below the zones, which tells that.
            None if name.is_empty() => Vec::new(),
            None | Some(None) => own.map(|zone| format!("{name}.{}", names::text(&zone.origin))).collect(),
            Some(Some(zone)) if zone.k8s_gateway.is_some() => vec![name],
            Some(Some(_)) => Vec::new(),
        }
    }

    /// Returns the classes of the objects of a source with names in the zone; empty for all.
    #[must_use]
    pub fn classes_of(&self, source: &Source) -> &[Box<str>] {
        if source.is_like(&Source::INGRESSES) {
            &self.ingress_classes
        } else if source.is_like(&Source::GATEWAYS) {
            &self.gateway_classes
        } else {
            &[]
        }
    }

    /// Returns whether a source comes before the source of a target.
    #[must_use]
    pub fn is_before_target(&self, source: &Source, target: &ServiceKey) -> bool {
        let of_target = self.sources.iter().position(|listed| listed.has_target(target));
        self.sources.iter().position(|listed| listed.has_names_of(source)) < of_target
    }

    /// Returns the name servers of a zone of *k8s_gateway* below the origin, `<service>.<namespace>`; none for other zones.
    pub fn name_servers(&self) -> impl Iterator<Item = &str> {
        let secondary = self.k8s_gateway.as_ref().map(|own| own.secondary.as_deref());
        secondary.into_iter().flat_map(|secondary| std::iter::once(&*self.apex).chain(secondary))
    }

    /// Returns whether no object of the zone's cluster has a name here; `below` is the part of the name below the origin.
    #[must_use]
    pub fn reserves(&self, below: &[u8]) -> bool {
        if self.cluster.is_some() {
            return below.is_empty();
        }
        let Some(top) = names::labels(below).last() else { return true };
        if self.k8s_gateway.is_none() {
            let of_remote = |source: &Source| source.cluster.as_ref().is_some_and(|it| it.as_bytes() == top);
            return names::is_reserved(top, self.apex.as_bytes()) || self.sources.iter().any(of_remote);
        }
        let mut servers = self.name_servers().filter_map(names::wire_of);
        top == names::DELETED.as_bytes() || servers.any(|server| names::below(below, &server).is_some())
    }

    /// Returns the part of a name in wire form below the origin; `None` if the name isn't in the zone.
    #[must_use]
    pub fn below<'a>(&self, name: &'a [u8]) -> Option<&'a [u8]> {
        names::below(name, &self.origin)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sources_of_the_closest_zone_have_a_place() {
        let zone = |origin: &str, sources: &[Source]| Zone {
            sources: sources.to_vec(),
            ..(&Name::from_ascii(origin).unwrap()).into()
        };
        let zones = [
            zone("example.", &[Source::SERVICES]),
            zone("apps.example.", &[Source::INGRESSES, Source::SERVICES]),
        ];
        let place = |name: &str, source: &Source| Zone::place(&zones, &names::wire_of(name).unwrap(), source);
        for (name, services, ingresses) in [
            ("a.example", Some(0), None),
            ("a.apps.example", Some(1), Some(0)),
            ("a.xapps.example", Some(0), None),
            ("elsewhere", Some(0), None),
        ] {
            assert_eq!(place(name, &Source::SERVICES), services, "{name}");
            assert_eq!(place(name, &Source::INGRESSES), ingresses, "{name}");
            let internal = services.filter(|_| name != "elsewhere");
            assert_eq!(place(name, &Source::INTERNAL), internal, "{name}");
        }
        let target = |source: &Source| source.target_key(&ServiceKey::new("shop", "web"));
        for (source, zone, expected) in [
            (Source::INGRESSES, &zones[1], true),
            (Source::SERVICES, &zones[1], false),
            (Source::SERVICES, &zones[0], false),
        ] {
            assert_eq!(zone.is_before_target(&source, &target(&Source::INTERNAL)), expected, "{source:?}");
        }
    }

    fn of_k8s_gateway(origin: &str, sources: &[Source]) -> Zone {
        Zone {
            apex: "dns1.kube-system".into(),
            sources: sources.to_vec(),
            k8s_gateway: Some(K8sGateway { secondary: Some("two".into()), service_selectors: Vec::new() }),
            ..(&Name::from_ascii(origin).unwrap()).into()
        }
    }

    #[test]
    fn names_without_a_zone_count_below_zones_of_k8s_gateway() {
        let plain: Zone = (&Name::from_ascii("lb.internal.").unwrap()).into();
        let zones = [plain, of_k8s_gateway("a.example.", &[]), of_k8s_gateway("b.example.", &[])];
        for (hostname, expected) in [
            ("web.shop", &["web.shop.a.example", "web.shop.b.example"][..]),
            ("Web.", &["web.a.example", "web.b.example"]),
            ("*.w", &["*.w.a.example", "*.w.b.example"]),
            ("X.A.example.", &["x.a.example"]),
            ("a.example", &["a.example"]),
            ("x.lb.internal", &[]),
            ("", &[]),
            ("b..c", &["b..c.a.example", "b..c.b.example"]),
        ] {
            assert_eq!(Zone::k8s_gateway_names(&zones, hostname), expected, "{hostname}");
            assert!(Zone::k8s_gateway_names(&zones[..1], hostname).is_empty());
        }
    }

    #[test]
    fn zone_of_k8s_gateway_reserves_its_name_servers() {
        let zone = of_k8s_gateway("example.", &[]);
        for (name, expected) in [
            ("dns1.kube-system", true),
            ("x.dns1.kube-system", true),
            ("two", true),
            ("x.two", true),
            ("deleted", true),
            ("x.deleted", true),
            ("kube-system", false),
            ("xdns1.kube-system", false),
            ("dns", false),
            ("ns.dns", false),
            ("_tcp", false),
        ] {
            assert_eq!(zone.reserves(&names::wire_of(name).unwrap()), expected, "{name}");
        }
        assert!(zone.reserves(b""));
    }

    #[test]
    fn single_kinds_of_routes_have_places_of_their_own() {
        let sources = [Source::TLS_ROUTES, Source::INGRESSES, Source::HTTP_ROUTES];
        let kinds = of_k8s_gateway("example.", &sources);
        let all = of_k8s_gateway("all.", &[Source::SERVICES, Source::GATEWAYS]);
        let zones = [kinds.clone(), all.clone()];
        let place = |name: &str, source: &Source| Zone::place(&zones, &names::wire_of(name).unwrap(), source);
        for (source, expected) in [
            (Source::HTTP_ROUTES, [Some(2), Some(1)]),
            (Source::TLS_ROUTES, [Some(0), Some(1)]),
            (Source::GRPC_ROUTES, [None, Some(1)]),
            (Source::GATEWAYS, [Some(0), Some(1)]),
        ] {
            assert_eq!(["a.example", "a.all"].map(|name| place(name, &source)), expected, "{source:?}");
        }
        assert_eq!(kinds.kinds_of_routes().count(), 2);
        assert_eq!(all.kinds_of_routes().count(), 0);
        assert!(!kinds.has_default_names() && !all.has_default_names());
    }
}
