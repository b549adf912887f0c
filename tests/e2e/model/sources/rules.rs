//! Which object has a name, and what is behind it, as `docs/sources.md` says: a pure function of the operations.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::rules::ZONE;
use crate::model::world::{Ingress, Target};

/// The namespaces that may have any name (`--hostname-namespaces`), but for the names of other clusters. Namespaces of the
/// remote cluster have its name.
pub const FREE: [&str; 3] = ["free", "other", "west/free"];
/// The namespaces that may have the names below their own ones.
pub const OWN: [&str; 2] = ["own", "west/own"];
pub const REPLICAS: usize = 2;
/// The clusters: the home cluster, and the remote one.
pub const CLUSTERS: [Cluster; 2] = [Cluster::Home, Cluster::West];
/// The domain of the remote cluster.
const WEST: &str = "west.lb.internal";

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cluster {
    Home,
    West,
}

/// Returns the cluster of a namespace, and the namespace there.
pub fn split(namespace: &str) -> (Cluster, &str) {
    namespace.strip_prefix("west/").map_or((Cluster::Home, namespace), |plain| (Cluster::West, plain))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Service,
    StableName,
    Ingress,
    Gateway,
    HttpRoute,
    DnsEndpoint,
}

impl Kind {
    pub const ALL: [Self; 6] =
        [Self::Service, Self::StableName, Self::Ingress, Self::Gateway, Self::HttpRoute, Self::DnsEndpoint];

    /// Returns whether a status names the target. Such a target is kept while the status names none.
    pub fn has_status(self) -> bool {
        matches!(self, Self::Service | Self::Ingress | Self::Gateway)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Id {
    pub kind: Kind,
    pub namespace: &'static str,
    pub name: &'static str,
}

impl Id {
    pub fn cluster(self) -> Cluster {
        split(self.namespace).0
    }
}

/// What users and controllers have written to an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Content {
    /// The names that the object asks for. For a Gateway: the hostname of its listener, or none.
    pub hosts: Vec<&'static str>,
    /// The target, in the status or in the spec.
    pub target: Ingress,
    /// Whether the target, which is empty here, is one that lb-linker denies.
    pub is_denied: bool,
    /// Whether the annotation `linker.hsj.com/target` has the target, and not the status.
    pub is_annotated: bool,
    pub ttl: u32,
    /// `linker.hsj.com/managed: "false"`.
    pub is_opted_out: bool,
    /// The Gateway of a route, and whether it has accepted the route.
    pub parent: Option<(Id, bool)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    Create(Content),
    Recreate(Content),
    Set(Content),
    Delete,
}

#[derive(Clone, Debug)]
pub struct Object {
    /// The creationTimestamp, in seconds since 1970.
    created: i64,
    pub content: Content,
    /// The target of each replica, which may be from before it started.
    targets: [Option<Target>; REPLICAS],
}

/// What is behind a name, with its TTL.
type Names = BTreeMap<String, (Option<Target>, u32)>;

#[derive(Clone, Debug)]
pub struct Model {
    /// The sources in the order of the zone, each as the kind of its objects.
    pub order: Vec<Kind>,
    pub objects: BTreeMap<Id, Object>,
    is_running: [bool; REPLICAS],
    /// Whether a replica has read the remote cluster since its start.
    knows_west: [bool; REPLICAS],
}

/// How often something was compared at a quiet point.
#[derive(Clone, Copy, Debug, Default)]
pub struct ComparedCounts {
    /// Names that objects of several namespaces or sources ask for.
    pub contested: usize,
    /// Names that several objects of one namespace share, and that no other object asks for.
    pub shared: usize,
    /// Targets that a status doesn't name any more.
    pub kept: usize,
    /// Targets that only one replica keeps.
    pub forgotten: usize,
    /// Names outside of its domain that the remote cluster has.
    pub granted: usize,
}

/// An object that asks for a name.
struct Claim<'a> {
    name: &'a str,
    /// The namespace that shares the name.
    namespace: &'static str,
    created: i64,
    id: Id,
    target: Option<&'a Target>,
    ttl: u32,
}

impl Model {
    pub fn new(order: Vec<Kind>) -> Self {
        Self { order, objects: BTreeMap::new(), is_running: [true; REPLICAS], knows_west: [true; REPLICAS] }
    }

    pub fn apply(&mut self, id: Id, change: &Change, created: i64) {
        let content = match change {
            Change::Delete => {
                self.objects.remove(&id);
                return;
            }
            Change::Create(content) | Change::Recreate(content) => {
                let object = Object { created, content: Content::default(), targets: Default::default() };
                self.objects.insert(id, object);
                content
            }
            Change::Set(content) => content,
        };
        let object = self.objects.get_mut(&id).expect("only an object that exists is changed");
        object.content = content.clone();
        for (target, _) in object.targets.iter_mut().zip(self.is_running).filter(|(_, running)| *running) {
            let keeps = id.kind.has_status() && !content.is_opted_out;
            let before = target.take().filter(|_| keeps);
            *target = content.chosen().or(before);
        }
    }

    pub fn stop(&mut self, replica: usize) {
        self.is_running[replica] = false;
    }

    /// A replica that starts knows only the objects.
    pub fn start(&mut self, replica: usize, knows_west: bool) {
        self.is_running[replica] = true;
        self.knows_west[replica] = knows_west;
        for object in self.objects.values_mut() {
            object.targets[replica] = object.content.chosen();
        }
    }

    /// Replicas that have started without the remote cluster read it.
    pub fn read_west(&mut self) {
        for replica in 0..REPLICAS {
            if !std::mem::replace(&mut self.knows_west[replica], true) {
                let objects = self.objects.iter_mut().filter(|(id, _)| id.cluster() == Cluster::West);
                objects.for_each(|(_, object)| object.targets[replica] = object.content.chosen());
            }
        }
    }

    /// Returns the expected answers of a replica by `name type`: TTL and data of the records, or the rcode.
    pub fn answers(&self, replica: usize, asked: &BTreeSet<String>) -> BTreeMap<String, BTreeSet<String>> {
        let names = self.names(replica);
        let answers = |name: &String| match is_in(name, WEST) && !self.knows_west[replica] {
            true => vec![(format!("{name}. A"), BTreeSet::from(["Server Failure".to_owned()]))],
            false => answers_of(name, find(name, &names)),
        };
        asked.iter().flat_map(answers).collect()
    }

    pub fn counts(&self) -> ComparedCounts {
        let mut counts = ComparedCounts::default();
        let mut asked: BTreeMap<&str, BTreeSet<(Kind, &str)>> = BTreeMap::new();
        for (cluster, source) in self.sources() {
            let claims = self.claims(cluster, source, 0);
            for claim in &claims {
                asked.entry(claim.name).or_default().insert((source, claim.namespace));
            }
            let is_shared =
                |(name, holders): &(&str, Vec<Claim>)| asked[name].len() == 1 && holders.len() > 1;
            counts.shared += holders(claims).into_iter().filter(is_shared).count();
        }
        let of_west = |(name, owners): &(&&str, &BTreeSet<(Kind, &str)>)| {
            !is_in(name, WEST) && owners.iter().all(|(_, namespace)| split(namespace).0 == Cluster::West)
        };
        counts.granted = asked.iter().filter(of_west).count();
        counts.contested = asked.values().filter(|owners| owners.len() > 1).count();
        for object in self.objects.values().filter(|object| object.content.chosen().is_none()) {
            let kept = object.targets.iter().flatten().count();
            counts.kept += usize::from(kept > 0);
            counts.forgotten += usize::from(kept == 1);
        }
        counts
    }

    fn names(&self, replica: usize) -> Names {
        let mut names = Names::new();
        for (id, object) in &self.objects {
            let has_default_names = matches!(id.kind, Kind::Service | Kind::StableName);
            if has_default_names && !object.content.is_opted_out && self.knows(replica, id) {
                for name in default_names(*id) {
                    names.insert(name, (object.targets[replica].clone(), object.content.ttl));
                }
            }
        }
        for (cluster, source) in self.sources() {
            for (name, claims) in holders(self.claims(cluster, source, replica)) {
                names.entry(name.to_owned()).or_insert_with(|| united(source, &claims));
            }
        }
        names
    }

    /// Returns the sources of the zone in their order.
    fn sources(&self) -> impl Iterator<Item = (Cluster, Kind)> {
        CLUSTERS.into_iter().flat_map(|cluster| self.order.iter().map(move |kind| (cluster, *kind)))
    }

    /// Returns whether a replica knows an object.
    fn knows(&self, replica: usize, id: &Id) -> bool {
        id.cluster() == Cluster::Home || self.knows_west[replica]
    }

    /// Returns what the objects of a source may have.
    fn claims(&self, cluster: Cluster, source: Kind, replica: usize) -> Vec<Claim<'_>> {
        let mut claims = Vec::new();
        for (id, Object { created, content, targets }) in &self.objects {
            let is_of_source = match id.kind {
                Kind::StableName => source == Kind::Service,
                Kind::Gateway => false,
                kind => kind == source,
            };
            let is_known = id.cluster() == cluster && self.knows(replica, id);
            if !is_of_source || !is_known || content.is_opted_out {
                continue;
            }
            let claim = |name, namespace, target| Claim {
                name,
                namespace,
                created: *created,
                id: *id,
                target,
                ttl: content.ttl,
            };
            if let Some((parent, is_accepted)) = content.parent {
                let Some(gateway) = self.objects.get(&parent).filter(|_| is_accepted) else { continue };
                let listener = gateway.content.hosts.first().copied();
                let within = |host| listener.map_or(Some(host), |listener| overlap(listener, host));
                // A route without hostnames has that of the listener.
                let all = if content.hosts.is_empty() { &gateway.content.hosts } else { &content.hosts };
                let mut names: Vec<&str> = all.iter().filter_map(|host| within(*host)).collect();
                let hands_on = |name: &str| listener.is_some() && may_have(parent.namespace, name);
                names.retain(|name| may_have(id.namespace, name) || hands_on(name));
                names.sort_unstable();
                names.dedup();
                let target = gateway.targets[replica].as_ref();
                claims.extend(names.into_iter().map(|name| claim(name, parent.namespace, target)));
                continue;
            }
            let target = targets[replica].as_ref();
            // Without a valid target there is no entry of a DNSEndpoint.
            if id.kind != Kind::DnsEndpoint || target.is_some() {
                let names = content.hosts.iter().filter(|host| may_have(id.namespace, host));
                claims.extend(names.map(|name| claim(*name, id.namespace, target)));
            }
        }
        claims
    }
}

impl Content {
    fn chosen(&self) -> Option<Target> {
        Target::choose(&self.target, None)
    }
}

pub fn default_names(Id { namespace, name, .. }: Id) -> Vec<String> {
    match split(namespace) {
        (Cluster::Home, namespace) => [".", "-"].map(|it| format!("{name}{it}{namespace}.{ZONE}")).into(),
        (Cluster::West, namespace) => vec![format!("{name}.{namespace}.{WEST}")],
    }
}

fn may_have(namespace: &str, host: &str) -> bool {
    let (domain, is_of_others) = match split(namespace) {
        (Cluster::Home, namespace) => (format!("{namespace}.{ZONE}"), is_in(host, WEST)),
        (Cluster::West, namespace) => (format!("{namespace}.{WEST}"), host == WEST),
    };
    !is_of_others && (FREE.contains(&namespace) || host.ends_with(&format!(".{domain}")))
}

fn is_in(name: &str, domain: &str) -> bool {
    name.strip_suffix(domain).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

/// Returns the narrower of two hostnames, if one contains the other.
fn overlap(listener: &'static str, host: &'static str) -> Option<&'static str> {
    let contains = |wide: &str, narrow: &str| {
        wide == narrow || wide.strip_prefix('*').is_some_and(|end| narrow.ends_with(end))
    };
    if contains(listener, host) { Some(host) } else { contains(host, listener).then_some(listener) }
}

/// Returns the objects of a source that have each name, the oldest first: those of the namespace of the oldest.
fn holders(claims: Vec<Claim<'_>>) -> BTreeMap<&str, Vec<Claim<'_>>> {
    let mut holders: BTreeMap<&str, Vec<Claim>> = BTreeMap::new();
    for claim in claims {
        holders.entry(claim.name).or_default().push(claim);
    }
    for claims in holders.values_mut() {
        claims.sort_by_key(|claim| (claim.created, claim.namespace, claim.id));
        let owner = claims[0].namespace;
        claims.retain(|claim| claim.namespace == owner);
    }
    holders
}

/// Returns what is behind a name of these objects of a namespace, the oldest first. A Service shares no name.
fn united(source: Kind, claims: &[Claim]) -> (Option<Target>, u32) {
    let (oldest, claims) = (&claims[0], if source == Kind::Service { &claims[..1] } else { claims });
    let targets = || claims.iter().filter_map(|claim| claim.target);
    let mut ips = Vec::new();
    for target in targets() {
        let Target::Ips(more) = target else { continue };
        more.iter().for_each(|ip| {
            if !ips.contains(ip) {
                ips.push(*ip)
            }
        });
    }
    let host = targets().find(|target| matches!(target, Target::Host(_))).cloned();
    let target = host.clone().or_else(|| (!ips.is_empty()).then_some(Target::Ips(ips)));
    let counts = |claim: &&Claim| host.is_none() || claim.target == host.as_ref();
    let smallest = claims.iter().filter(counts).map(|claim| claim.ttl).min();
    let ttl = if source == Kind::DnsEndpoint { smallest } else { None };
    (target, ttl.unwrap_or(oldest.ttl))
}

/// Returns what answers for a name, perhaps by a wildcard (RFC 4592): `Err` without it, with whether the name exists.
fn find<'a>(name: &str, names: &'a Names) -> Result<&'a (Option<Target>, u32), bool> {
    if let Some(found) = names.get(name) {
        return Ok(found);
    }
    let has_names_below =
        |name: &str| name == WEST || names.keys().any(|below| below.ends_with(&format!(".{name}")));
    if has_names_below(name) {
        return Err(true);
    }
    let mut encloser = name;
    while let Some((_, parent)) = encloser.split_once('.') {
        encloser = parent;
        if parent == ZONE || names.contains_key(parent) || has_names_below(parent) {
            break;
        }
    }
    names.get(&format!("*.{encloser}")).ok_or(false)
}

fn answers_of(name: &str, found: Result<&(Option<Target>, u32), bool>) -> Vec<(String, BTreeSet<String>)> {
    let only = |text: &str| BTreeSet::from([text.to_owned()]);
    match found {
        Err(false) => vec![(format!("{name}. A"), only("Non-Existent Domain"))],
        Err(true) | Ok((None, _)) => vec![(format!("{name}. A"), only("No Error"))],
        Ok((Some(Target::Host(host)), ttl)) => {
            vec![(format!("{name}. CNAME"), only(&format!("{ttl} {host}.")))]
        }
        Ok((Some(Target::Ips(ips)), ttl)) => [("A", true), ("AAAA", false)]
            .into_iter()
            .map(|(qtype, is_ipv4)| {
                let of_family = ips.iter().filter(|ip| ip.is_ipv4() == is_ipv4);
                let data: BTreeSet<String> = of_family.map(|ip| format!("{ttl} {ip}")).collect();
                (format!("{name}. {qtype}"), if data.is_empty() { only("No Error") } else { data })
            })
            .collect(),
    }
}
