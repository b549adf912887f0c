//! Seeded random changes of objects of all kinds, which ask for few names.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use rand::rngs::StdRng;
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{RngExt, SeedableRng};

use super::rules::{Change, Cluster, Content, Id, Kind, default_names};
use crate::model::world::Ingress;

/// The names that objects ask for; some are default names of Services and StableNames, and some are the remote cluster's.
const HOSTS: [&str; 14] = [
    "a.lb.internal",
    "b.lb.internal",
    "*.w.own.lb.internal",
    "x.w.own.lb.internal",
    "a.own.lb.internal",
    "b.own.lb.internal",
    "*.other.lb.internal",
    "a.other.lb.internal",
    "web.own.lb.internal",
    "web-own.lb.internal",
    "sn.free.lb.internal",
    "api-other.lb.internal",
    "*.west.lb.internal",
    "a.own.west.lb.internal",
];
/// The names that objects of the remote cluster ask for, among them default names and names of the home cluster.
const WEST_HOSTS: [&str; 13] = [
    "a.lb.internal",
    "c.lb.internal",
    "b.own.lb.internal",
    "x.w.own.lb.internal",
    "web.own.lb.internal",
    "*.other.lb.internal",
    "west.lb.internal",
    "*.west.lb.internal",
    "a.own.west.lb.internal",
    "*.w.own.west.lb.internal",
    "x.w.own.west.lb.internal",
    "web.own.west.lb.internal",
    "b.free.west.lb.internal",
];
/// Names that no object asks for.
const FURTHER_NAMES: [&str; 9] = [
    "y.w.own.lb.internal",
    "w.own.lb.internal",
    "y.other.lb.internal",
    "z.y.other.lb.internal",
    "absent.lb.internal",
    "y.west.lb.internal",
    "own.west.lb.internal",
    "w.own.west.lb.internal",
    "y.w.own.west.lb.internal",
];
const LISTENERS: [&str; 4] =
    ["*.lb.internal", "*.own.lb.internal", "x.w.own.lb.internal", "*.other.lb.internal"];
const WEST_LISTENERS: [&str; 3] = ["*.lb.internal", "*.west.lb.internal", "*.own.west.lb.internal"];
const MARKERS: [(Cluster, Kind, &str); 9] = [
    (Cluster::Home, Kind::Service, "marker-service.lb.internal"),
    (Cluster::Home, Kind::StableName, "marker-stablename.lb.internal"),
    (Cluster::Home, Kind::Ingress, "marker-ingress.lb.internal"),
    (Cluster::Home, Kind::HttpRoute, "marker-httproute.lb.internal"),
    (Cluster::Home, Kind::DnsEndpoint, "marker-dnsendpoint.lb.internal"),
    (Cluster::West, Kind::Service, "marker-service.free.west.lb.internal"),
    (Cluster::West, Kind::Ingress, "marker-ingress.free.west.lb.internal"),
    (Cluster::West, Kind::HttpRoute, "marker-httproute.free.west.lb.internal"),
    (Cluster::West, Kind::DnsEndpoint, "marker-dnsendpoint.free.west.lb.internal"),
];

/// The objects that a test may use, besides the markers.
fn universe() -> Vec<Id> {
    let of = |kind: Kind, all: &[(&'static str, &'static str)]| -> Vec<Id> {
        all.iter().map(|(namespace, name)| Id { kind, namespace, name }).collect()
    };
    let several = [
        ("free", "a"),
        ("free", "b"),
        ("free", "c"),
        ("other", "a"),
        ("own", "a"),
        ("own", "b"),
        ("west/free", "a"),
        ("west/own", "a"),
        ("west/own", "b"),
    ];
    let services =
        [("own", "web"), ("free", "api"), ("other", "api"), ("west/own", "web"), ("west/free", "api")];
    let gateways = [("free", "gw"), ("other", "gw"), ("own", "gw"), ("west/free", "gw"), ("west/own", "gw")];
    [
        of(Kind::Service, &services),
        of(Kind::StableName, &[("free", "sn"), ("own", "sn")]),
        of(Kind::Ingress, &several),
        of(Kind::Gateway, &gateways),
        of(Kind::HttpRoute, &several),
        of(Kind::DnsEndpoint, &several),
    ]
    .concat()
}

/// Returns the names that an object may ask for. Of several load balancers of the home cluster the one keeps a name that
/// has it: which one depends on lb-linker's pace, so each has names of its own.
fn hosts_for(id: Id) -> &'static [&'static str] {
    match (id.kind, id.namespace) {
        (Kind::Service, "west/own") => &["a.own.west.lb.internal", "*.w.own.west.lb.internal"],
        (Kind::Service, "west/free") => &["b.lb.internal", "web.own.lb.internal", "web.own.west.lb.internal"],
        (Kind::Gateway, "west/free" | "west/own") => &WEST_LISTENERS,
        (_, "west/free" | "west/own") => &WEST_HOSTS,
        (Kind::Service, "own") => &["a.own.lb.internal", "*.w.own.lb.internal", "b.lb.internal"],
        (Kind::Service, "free") => &["a.lb.internal", "c.lb.internal", "web.own.lb.internal"],
        (Kind::Service, _) => &["b.lb.internal", "x.w.own.lb.internal"],
        (Kind::StableName, "free") => &["b.own.lb.internal", "a.other.lb.internal"],
        (Kind::StableName, _) => &["a.free.lb.internal", "sn-host.own.lb.internal"],
        (Kind::Gateway, _) => &LISTENERS,
        _ => &HOSTS,
    }
}

/// Generates changes. They depend only on earlier choices, so that a seed determines them.
pub struct Generator {
    pub random: StdRng,
    universe: Vec<Id>,
    planned: BTreeMap<Id, Content>,
    number: u32,
}

impl Generator {
    pub fn new(seed: u64) -> Self {
        Self {
            random: StdRng::seed_from_u64(seed),
            universe: universe(),
            planned: BTreeMap::new(),
            number: 0,
        }
    }

    /// Returns all names whose answers are compared.
    pub fn names(&self) -> BTreeSet<String> {
        let named = self.universe.iter().filter(|id| matches!(id.kind, Kind::Service | Kind::StableName));
        let of_objects = named.flat_map(|id| {
            let own = hosts_for(*id).iter().map(ToString::to_string);
            default_names(*id).into_iter().chain(own)
        });
        let fixed = HOSTS.iter().chain(&WEST_HOSTS).chain(&FURTHER_NAMES);
        let fixed = fixed.chain(MARKERS.iter().map(|(_, _, host)| host));
        // A name with `*` is asked for by the names below it.
        fixed.map(ToString::to_string).chain(of_objects).filter(|name| !name.starts_with('*')).collect()
    }

    /// Returns changes of different objects: whether a replica sees what is between two changes of an object depends on
    /// its pace.
    pub fn batch(&mut self) -> Vec<(Id, Change)> {
        let size = self.random.random_range(6..=16);
        let mut ids = self.universe.clone();
        ids.shuffle(&mut self.random);
        ids.truncate(size);
        ids.into_iter().map(|id| (id, self.choose(id))).collect()
    }

    /// Returns changes that end a batch: a replica that answers them has seen all earlier changes of each kind in the
    /// cluster.
    pub fn mark(&mut self, cluster: Cluster) -> Vec<(Id, Change)> {
        // A StableName leads the link of the Service with its name.
        let name = |kind| if kind == Kind::StableName { "marker-sn" } else { "marker" };
        let namespace = if cluster == Cluster::Home { "free" } else { "west/free" };
        let marker = |kind| Id { kind, namespace, name: name(kind) };
        let mut changes = Vec::new();
        for kind in Kind::ALL.into_iter().filter(|kind| cluster == Cluster::Home || *kind != Kind::StableName)
        {
            self.number += 1;
            let host = MARKERS.iter().find(|(at, of, _)| (*at, *of) == (cluster, kind));
            let host = host.map(|(_, _, host)| *host);
            let ip = if kind == Kind::StableName { 1 } else { self.number };
            let content = Content {
                hosts: host.into_iter().collect(),
                target: Ingress { hosts: vec![], ips: vec![Ipv4Addr::from(0xcb00_7100 + ip % 250).into()] },
                ttl: 100 + self.number % 3000,
                parent: (kind == Kind::HttpRoute).then(|| (marker(Kind::Gateway), true)),
                ..Content::default()
            };
            let is_new = self.planned.insert(marker(kind), content.clone()).is_none();
            changes.push((marker(kind), if is_new { Change::Create(content) } else { Change::Set(content) }));
        }
        changes
    }

    fn choose(&mut self, id: Id) -> Change {
        let planned = self.planned.get(&id).cloned();
        let Some(mut content) = planned else {
            let content = self.content(id);
            self.planned.insert(id, content.clone());
            return Change::Create(content);
        };
        let change = match self.random.random_range(0..20) {
            0..3 => {
                self.planned.remove(&id);
                return Change::Delete;
            }
            3..5 => {
                content = self.content(id);
                Change::Recreate(content.clone())
            }
            kind => {
                match kind {
                    5..8 => content.hosts = self.hosts(id),
                    8..10 if id.kind != Kind::StableName => content.is_opted_out = !content.is_opted_out,
                    10..12 if id.kind == Kind::HttpRoute => content.parent = Some(self.parent(id)),
                    12 => content.ttl = self.ttl(),
                    _ => self.set_target(&mut content, id, true),
                }
                // Gateways can't be opted out.
                content.is_opted_out &= id.kind != Kind::Gateway;
                Change::Set(content.clone())
            }
        };
        self.planned.insert(id, content);
        change
    }

    fn content(&mut self, id: Id) -> Content {
        let mut content = Content { hosts: self.hosts(id), ttl: self.ttl(), ..Content::default() };
        content.parent = (id.kind == Kind::HttpRoute).then(|| self.parent(id));
        self.set_target(&mut content, id, false);
        content
    }

    fn ttl(&mut self) -> u32 {
        self.random.random_range(6..60)
    }

    fn parent(&mut self, route: Id) -> (Id, bool) {
        let is_parent = |id: &Id| id.kind == Kind::Gateway && id.cluster() == route.cluster();
        let gateways: Vec<Id> = self.universe.iter().copied().filter(is_parent).collect();
        let gateway = gateways.choose(&mut self.random).expect("there are some");
        (*gateway, self.random.random_bool(0.8))
    }

    fn hosts(&mut self, id: Id) -> Vec<&'static str> {
        let numbers = match id.kind {
            Kind::Service | Kind::StableName => 0..=2,
            Kind::Gateway => 0..=1,
            Kind::HttpRoute => 0..=4,
            _ => 1..=4,
        };
        let number = self.random.random_range(numbers);
        hosts_for(id).sample(&mut self.random, number).copied().collect()
    }

    fn set_target(&mut self, content: &mut Content, id: Id, is_change: bool) {
        (content.target, content.is_denied) = self.target(id, is_change);
        content.is_annotated = id.kind.has_status() && self.random.random_bool(0.25);
    }

    /// Returns a target, or none, and whether it is denied.
    fn target(&mut self, id: Id, is_change: bool) -> (Ingress, bool) {
        let mut target = Ingress::default();
        // A blank status of a load balancer of the home cluster is a matter of the other models.
        let is_link = id.kind == Kind::Service && id.cluster() == Cluster::Home;
        let may_be_blank = if is_link { !is_change } else { id.kind != Kind::StableName };
        if may_be_blank && self.random.random_bool(0.4) {
            return (target, !is_link && self.random.random_bool(0.4));
        }
        self.number += 1;
        let has_host = id.kind != Kind::StableName && self.random.random_bool(0.4);
        if has_host {
            target.hosts.push(format!("target-{}.example.com", self.number));
        }
        if !has_host || self.random.random_bool(0.3) {
            let number = if id.kind == Kind::StableName { 1 } else { self.random.random_range(1..=3) };
            let last = |random: &mut StdRng| random.random_range(1..20_u8);
            let ip = |random: &mut StdRng| -> IpAddr {
                match random.random_bool(0.7) {
                    true => Ipv4Addr::new(192, 0, 2, last(random)).into(),
                    false => Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last(random).into()).into(),
                }
            };
            let ips: BTreeSet<IpAddr> = (0..number).map(|_| ip(&mut self.random)).collect();
            target.ips.extend(ips);
        }
        (target, false)
    }
}
