//! Which names are asked for: the names that objects stand for, and as many that don't exist. Pure.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;

use hickory_proto::rr::Name;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::objects::{Endpoint, Objects, Pod, Port, Service, Slice};
use crate::dns::message::presentation::parse_name;
use crate::sync::k8s::labels::SERVICE_NAME;
use crate::sync::k8s::service::EXTERNAL_NAME;

/// The names of a cluster, in lower case and without the final dot, and what is known about them.
#[derive(Debug)]
pub struct Names {
    pub zone: String,
    existing: BTreeSet<String>,
    /// A hash of the objects behind the name of a Service, a Pod, a Namespace or an address.
    states: HashMap<String, u64>,
    /// The names of ExternalNames, and their targets.
    pub aliases: HashMap<String, String>,
    /// The names that EndpointSlices with names instead of addresses give, and these hosts.
    pub with_fqdn_slices: HashMap<String, HashSet<String>>,
    /// The addresses that name servers have by an EndpointSlice: those of its Service, or of its endpoints.
    fronts: Vec<BTreeSet<IpAddr>>,
    /// The places in `fronts` of the slices that an address is in.
    fronts_of: HashMap<IpAddr, Vec<usize>>,
    /// The reverse names of addresses in EndpointSlices without a Service.
    pub without_service: HashSet<String>,
    /// The names of further addresses of Pods.
    pub further_pod_addresses: HashSet<String>,
}

impl Names {
    #[must_use]
    pub fn of(objects: &Objects, zone: &str) -> Self {
        let mut names = Self {
            zone: zone.to_owned(),
            existing: BTreeSet::new(),
            states: HashMap::new(),
            aliases: HashMap::new(),
            with_fqdn_slices: HashMap::new(),
            fronts: Vec::new(),
            fronts_of: HashMap::new(),
            without_service: HashSet::new(),
            further_pod_addresses: HashSet::new(),
        };
        let fixed = ["", "svc.", "pod.", "dns.", "ns.dns.", "dns-version."];
        names.existing.extend(fixed.map(|below| format!("{below}{zone}")));
        for namespace in &objects.namespaces {
            names.add_namespace(namespace.metadata.name.as_deref().unwrap_or_default());
        }
        objects.services.iter().for_each(|service| names.add_service(service));
        let ips: HashMap<_, _> = objects.services.iter().map(|it| (key(&it.metadata), it.ips())).collect();
        for slice in &objects.slices {
            names.add_slice(slice);
            names.add_front(slice, &ips);
        }
        objects.pods.iter().for_each(|pod| names.add_pod(pod));
        names.existing.retain(|name| parse_name(name).is_some());
        names
    }

    /// Returns the names to ask for.
    #[must_use]
    pub fn all(&self) -> Vec<String> {
        let invented: BTreeSet<String> =
            self.existing.iter().filter_map(|name| self.invented(name)).collect();
        self.existing.iter().cloned().chain(invented).collect()
    }

    /// Returns whether the objects behind a name are other ones in `later`.
    #[must_use]
    pub fn has_changed(&self, name: &str, later: &Self) -> bool {
        let subject = self.subject(name);
        self.states.get(subject) != later.states.get(subject)
    }

    /// Returns the name of the Service that a name belongs to, or the name itself.
    #[must_use]
    pub fn subject<'a>(&self, name: &'a str) -> &'a str {
        let below = name.strip_suffix(&*self.zone).and_then(|rest| rest.strip_suffix(".svc."));
        let Some(below) = below else { return name };
        let mut dots = below.rmatch_indices('.').map(|(at, _)| at);
        match (dots.next(), dots.next()) {
            (Some(_), Some(at)) => &name[at + 1..],
            _ => name,
        }
    }

    /// Returns whether an ExternalName leads to a name of the cluster's zone that isn't one itself.
    #[must_use]
    pub fn leads_inside(&self, alias: &str) -> bool {
        let (mut name, mut seen) = (alias, HashSet::new());
        while let Some(target) = self.aliases.get(name) {
            if !seen.insert(name) {
                return false;
            }
            name = target;
        }
        name.strip_suffix(&*self.zone).is_some_and(|below| below.ends_with('.'))
    }

    /// Returns whether a server with an address in EndpointSlices has exactly these addresses as name server.
    #[must_use]
    pub fn is_front(&self, ips: &BTreeSet<IpAddr>, is_wanted: impl Fn(&IpAddr) -> bool) -> bool {
        self.fronts_of.values().any(|places| {
            let mut front = places.iter().flat_map(|&at| &self.fronts[at]).filter(|ip| is_wanted(ip));
            let has = |ip| places.iter().any(|&at| self.fronts[at].contains(ip));
            front.all(|ip| ips.contains(ip)) && ips.iter().all(has)
        })
    }

    /// Returns whether a name is the first search domain of the Pods of a namespace.
    #[must_use]
    pub fn is_search_domain(&self, name: &str) -> bool {
        let namespace = name.strip_suffix(&*self.zone).and_then(|name| name.strip_suffix(".svc."));
        namespace.is_some_and(|namespace| !namespace.contains('.')) && self.existing.contains(name)
    }

    /// Returns whether a name is that of an object.
    #[must_use]
    pub fn is_of_object(&self, name: &str) -> bool {
        self.states.contains_key(name)
    }

    fn add_namespace(&mut self, name: &str) {
        for branch in ["svc", "pod"] {
            self.existing.insert(format!("{name}.{branch}.{}", self.zone));
        }
    }

    /// Adds a name that stands for an object with this hash.
    fn add(&mut self, name: String, hash: u64) {
        let state = self.states.entry(name.clone()).or_default();
        *state = state.wrapping_add(hash);
        self.existing.insert(name);
    }

    /// Adds the reverse name of an address, and returns it.
    fn add_address(&mut self, ip: IpAddr, hash: u64) -> String {
        let name = reverse(ip);
        self.add(name.clone(), hash);
        name
    }

    fn add_ports(&mut self, ports: &[Port], service: &str) {
        for port in ports {
            if let Some(name) = port.name.as_deref().filter(|name| !name.is_empty()) {
                let protocol = port.protocol.as_deref().unwrap_or("TCP");
                self.existing.insert(format!("_{name}._{protocol}.{service}").to_ascii_lowercase());
            }
        }
    }

    fn add_service(&mut self, service: &Service) {
        let (namespace, name) = key(&service.metadata);
        self.add_namespace(namespace);
        let full = format!("{name}.{namespace}.svc.{}", self.zone);
        let hash = hash(&(name, namespace, &service.spec));
        self.add(full.clone(), hash);
        self.add_ports(&service.spec.ports, &full);
        if service.spec.type_.as_deref() == Some(EXTERNAL_NAME) {
            let target = service.spec.external_name.as_deref().unwrap_or_default();
            self.aliases.insert(full, target.trim_end_matches('.').to_ascii_lowercase());
            return;
        }
        for ip in service.ips() {
            self.add_address(ip, hash);
        }
    }

    fn add_slice(&mut self, slice: &Slice) {
        let (namespace, name) = key(&slice.metadata);
        let hash = hash(&(name, namespace, &slice.address_type, &slice.endpoints, SliceHash(&slice.ports)));
        let labels = slice.metadata.labels.as_ref();
        let service = labels.and_then(|labels| labels.get(SERVICE_NAME)).filter(|name| !name.is_empty());
        let service = service.map(|service| format!("{service}.{namespace}.svc.{}", self.zone));
        if let Some(service) = &service {
            self.add(service.clone(), hash);
            self.add_ports(&slice.ports, service);
            if slice.address_type == "FQDN" {
                self.add_fqdn_slice(slice, service);
            }
        }
        for endpoint in &slice.endpoints {
            let pod = endpoint.target_ref.as_ref().and_then(|target| target.name.as_deref());
            for ip in addresses(&endpoint.addresses) {
                let reverse = self.add_address(ip, hash);
                let Some(service) = &service else {
                    self.without_service.insert(reverse);
                    continue;
                };
                // With the option endpoint_pod_names the name of the Pod takes the place of the address.
                let labels = match endpoint.hostname.as_deref().filter(|name| !name.is_empty()) {
                    Some(hostname) => vec![hostname.to_ascii_lowercase()],
                    None => [Some(dashed(ip)), pod.map(str::to_owned)].into_iter().flatten().collect(),
                };
                self.existing.extend(labels.iter().map(|label| format!("{label}.{service}")));
            }
        }
    }

    /// Adds the names at which CoreDNS has CNAME records for a slice with names instead of addresses.
    fn add_fqdn_slice(&mut self, slice: &Slice, service: &str) {
        for endpoint in &slice.endpoints {
            let hostname = endpoint.hostname.as_deref().filter(|name| !name.is_empty());
            let pod = endpoint.target_ref.as_ref().and_then(|target| target.name.as_deref());
            for host in &endpoint.addresses {
                let dashed = host.replace(['.', ':'], "-");
                let labels = hostname.map_or_else(|| vec![Some(&*dashed), pod], |name| vec![Some(name)]);
                let ports = slice.ports.iter().map(|port| {
                    let protocol = port.protocol.as_deref().unwrap_or("TCP");
                    format!("_{}._{protocol}.{service}", port.name.as_deref().unwrap_or_default())
                });
                let below = labels.into_iter().flatten().map(|label| format!("{label}.{service}"));
                for name in below.chain(ports).chain([service.to_owned()]) {
                    let hosts = self.with_fqdn_slices.entry(name.to_ascii_lowercase()).or_default();
                    hosts.insert(host.trim_end_matches('.').to_ascii_lowercase());
                }
            }
        }
    }

    fn add_front(&mut self, slice: &Slice, ips: &HashMap<(&str, &str), BTreeSet<IpAddr>>) {
        let (namespace, _) = key(&slice.metadata);
        let service = slice.metadata.labels.as_ref().and_then(|labels| labels.get(SERVICE_NAME));
        let Some(of_service) = service.and_then(|name| ips.get(&(namespace, &**name))) else { return };
        let is_ready = |endpoint: &&Endpoint| endpoint.conditions.ready != Some(false);
        let ready = || slice.endpoints.iter().filter(is_ready).flat_map(|endpoint| &endpoint.addresses);
        let front = if of_service.is_empty() { addresses(ready()) } else { of_service.clone() };
        for ip in addresses(slice.endpoints.iter().flat_map(|endpoint| &endpoint.addresses)) {
            self.fronts_of.entry(ip).or_default().push(self.fronts.len());
        }
        self.fronts.push(front);
    }

    fn add_pod(&mut self, pod: &Pod) {
        let (namespace, name) = key(&pod.metadata);
        let terminates = pod.metadata.deletion_timestamp.is_some();
        let hash = hash(&(name, namespace, &pod.status, terminates));
        let first: BTreeSet<IpAddr> = addresses(&pod.status.pod_ip);
        let all = pod.status.pod_ips.iter().filter_map(|ip| ip.ip.as_ref()).chain(&pod.status.pod_ip);
        for ip in addresses(all) {
            let name = format!("{}.{namespace}.pod.{}", dashed(ip), self.zone);
            if !first.contains(&ip) {
                self.further_pod_addresses.insert(name.clone());
            }
            self.add(name, hash);
            self.add_address(ip, hash);
        }
    }

    /// Returns a name that resembles another one and isn't among the names that exist.
    fn invented(&self, name: &str) -> Option<String> {
        let suffix = format!(".{}", self.zone);
        let is_apart = |name: &String| {
            (name.ends_with(&suffix) || name.ends_with(".arpa"))
                && !self.existing.contains(name)
                && parse_name(name).is_some()
        };
        let first = hash(&name) % 4;
        (first..first + 4).map(|way| mutated(name, way % 4)).find(is_apart)
    }
}

impl Service {
    fn ips(&self) -> BTreeSet<IpAddr> {
        addresses(self.spec.cluster_ips.iter().chain(&self.spec.cluster_ip))
    }
}

/// Ports without the order in which controllers write them.
struct SliceHash<'a>(&'a [Port]);

impl Hash for SliceHash<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.0.iter().map(hash).fold(0, u64::wrapping_add));
    }
}

fn mutated(name: &str, way: u64) -> String {
    match way {
        0 => format!("x{name}"),
        1 => format!("x.{name}"),
        2 => name.replacen('.', "x.", 1),
        _ => match name.match_indices('.').nth(1) {
            Some((at, _)) => format!("{}9{}", &name[..at], &name[at..]),
            None => format!("9.{name}"),
        },
    }
}

fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

fn key(metadata: &ObjectMeta) -> (&str, &str) {
    (metadata.namespace.as_deref().unwrap_or_default(), metadata.name.as_deref().unwrap_or_default())
}

fn addresses<'a>(texts: impl IntoIterator<Item = &'a String>) -> BTreeSet<IpAddr> {
    texts.into_iter().filter_map(|text| Some(text.parse::<IpAddr>().ok()?.to_canonical())).collect()
}

fn reverse(ip: IpAddr) -> String {
    Name::from(ip).to_ascii().trim_end_matches('.').to_ascii_lowercase()
}

/// Returns the label of an address. A label doesn't end with a hyphen.
fn dashed(ip: IpAddr) -> String {
    let mut label = ip.to_string().replace(['.', ':'], "-");
    if label.ends_with('-') {
        label.push('0');
    }
    label
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, from_value, json};

    use super::*;

    fn objects(services: Value, slices: Value, pods: Value) -> Objects {
        Objects {
            services: from_value(services).unwrap(),
            slices: from_value(slices).unwrap(),
            pods: from_value(pods).unwrap(),
            ..Objects::default()
        }
    }

    /// Returns the names of objects, without those of each zone.
    fn names(objects: &Objects) -> BTreeSet<String> {
        let fixed = Names::of(&Objects::default(), "c.local").existing;
        let branches = |name: &String| name == "shop.svc.c.local" || name == "shop.pod.c.local";
        let all = Names::of(objects, "c.local").existing;
        all.into_iter().filter(|name| !fixed.contains(name) && !branches(name)).collect()
    }

    fn web(spec: Value) -> Value {
        json!([{"metadata": {"name": "web", "namespace": "shop"}, "spec": spec}])
    }

    fn slice(content: Value) -> Value {
        let mut slice = content;
        slice["metadata"] = json!({
            "name": "web-1", "namespace": "shop", "labels": {"kubernetes.io/service-name": "web"}
        });
        json!([slice])
    }

    #[test]
    fn names_of_each_kind_of_object() {
        let port = json!([{"name": "http", "protocol": "TCP", "port": 80}, {"port": 81}]);
        let ips = json!({"clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1", "fd00::1"], "ports": port});
        let alias = json!({"type": "ExternalName", "externalName": "a.example", "clusterIP": ""});
        let endpoints = json!({"addressType": "IPv4", "endpoints": [
            {"addresses": ["10.1.0.1"], "hostname": "Web-0", "targetRef": {"name": "p0"}},
            {"addresses": ["10.1.0.2", "nonsense"], "targetRef": {"name": "p1"}},
        ], "ports": [{"name": "dns", "protocol": "UDP"}]});
        let pod = json!([{"metadata": {"name": "p", "namespace": "shop"}, "status": {
            "podIP": "10.2.0.1", "podIPs": [{"ip": "10.2.0.1"}, {"ip": "fd00::"}]}}]);
        let fd00 = |last: char| format!("{last}.{}0.0.d.f.ip6.arpa", "0.".repeat(27));
        let none = || json!([]);
        for (objects, expected) in [
            (
                objects(web(ips), none(), none()),
                vec![
                    "1.0.0.10.in-addr.arpa".into(),
                    fd00('1'),
                    "_http._tcp.web.shop.svc.c.local".into(),
                    "web.shop.svc.c.local".into(),
                ],
            ),
            (objects(web(alias), none(), none()), vec!["web.shop.svc.c.local".into()]),
            (
                objects(none(), slice(endpoints), none()),
                [
                    "1.0.1.10.in-addr.arpa",
                    "10-1-0-2.web.shop.svc.c.local",
                    "2.0.1.10.in-addr.arpa",
                    "_dns._udp.web.shop.svc.c.local",
                    "p1.web.shop.svc.c.local",
                    "web-0.web.shop.svc.c.local",
                    "web.shop.svc.c.local",
                ]
                .map(str::to_owned)
                .to_vec(),
            ),
            (
                objects(none(), none(), pod),
                vec![
                    fd00('0'),
                    "1.0.2.10.in-addr.arpa".into(),
                    "10-2-0-1.shop.pod.c.local".into(),
                    "fd00--0.shop.pod.c.local".into(),
                ],
            ),
        ] {
            assert_eq!(names(&objects), expected.into_iter().collect::<BTreeSet<String>>(), "{objects:?}");
        }
    }

    #[test]
    fn as_many_names_are_invented_in_the_same_zones() {
        let services = (0..50).map(|i| json!({
            "metadata": {"name": format!("s{i}"), "namespace": "shop"}, "spec": {"clusterIP": format!("10.0.0.{i}")}
        }));
        let names = Names::of(&objects(services.collect(), json!([]), json!([])), "c.local");
        let all: BTreeSet<String> = names.all().into_iter().collect();
        assert!(all.len() * 20 > names.existing.len() * 39 && all.len() <= 2 * names.existing.len());
        assert!(all.iter().all(|name| name.ends_with("c.local") || name.ends_with(".arpa")), "{all:?}");
        assert!(!all.contains("xc.local"));
    }

    #[test]
    fn names_that_dns_cant_carry_are_left_out() {
        let long = "a".repeat(64);
        let services = json!([{"metadata": {"name": long, "namespace": "shop"}}]);
        assert_eq!(names(&objects(services, json!([]), json!([]))), BTreeSet::new());
    }

    #[test]
    fn change_of_an_object_is_one_of_its_names() {
        let before = |port: i64| {
            let slice = slice(json!({"addressType": "IPv4", "endpoints": [{"addresses": ["10.1.0.1"]}],
                "ports": [{"name": "http", "port": port}]}));
            let other = json!([{"metadata": {"name": "other", "namespace": "shop"}}]);
            Names::of(&objects(other, slice, json!([])), "c.local")
        };
        let (old, new) = (before(80), before(81));
        for (name, expected) in [
            ("web.shop.svc.c.local", true),
            ("_http._tcp.web.shop.svc.c.local", true),
            ("x.web.shop.svc.c.local", true),
            ("1.0.1.10.in-addr.arpa", true),
            ("other.shop.svc.c.local", false),
            ("webx.shop.svc.c.local", false),
            ("shop.svc.c.local", false),
            ("c.local", false),
        ] {
            assert_eq!(old.has_changed(name, &new), expected, "{name}");
            assert!(!old.has_changed(name, &before(80)), "{name}");
        }
    }
}
