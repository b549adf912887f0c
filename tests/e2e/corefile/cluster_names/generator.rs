//! Generates the objects of a cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use futures::StreamExt;
use k8s_openapi::api::core::v1::{Namespace, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use serde_json::{Value, json};

const NAMESPACES: [&str; 5] = ["shop", "web", "data", "kube-dns-like", "empty"];
/// Topology zones of endpoints; the empty one stands for none.
pub(super) const ZONES: [&str; 4] = ["", "z1", "Z2", "rack.z2"];
/// Requests at once.
const CONCURRENCY: usize = 8;

/// What was written to the API server, as far as questions and explanations need it.
#[derive(Debug, Default)]
pub(super) struct World {
    /// `<service>.<namespace>` of all Services, and of slices without one.
    pub(super) services: BTreeSet<String>,
    /// Those that are ExternalNames.
    pub(super) aliases: BTreeSet<String>,
    /// Those with slices that have names instead of addresses.
    pub(super) with_names: BTreeSet<String>,
    /// Labels of endpoints and ports that stand before a Service.
    pub(super) below: BTreeSet<String>,
    pub(super) addresses: BTreeSet<IpAddr>,
    /// The addresses of Services outside of the cluster.
    pub(super) externals: BTreeSet<IpAddr>,
    /// The addresses and hostnames outside of the cluster of each Service that is there, by `<service>.<namespace>`.
    pub(super) outside: BTreeMap<String, Vec<String>>,
    pub(super) pods: BTreeSet<(String, IpAddr)>,
    /// Whether `namespace_labels` is an option of the servers.
    pub(super) hides_pointers: bool,
    /// Whether `zonal` is an option of the servers.
    pub(super) is_zonal: bool,
    /// Whether `fallthrough` is one for all names.
    pub(super) passes_on: bool,
    number: usize,
}

fn is_headless(kind: usize) -> bool {
    (3..=6).contains(&kind)
}

impl World {
    pub(super) fn namespaces() -> impl Iterator<Item = &'static str> {
        NAMESPACES.into_iter()
    }

    pub(super) async fn write_namespaces(client: &Client) {
        let api = Api::<Namespace>::all(client.clone());
        for name in NAMESPACES {
            let namespace = serde_json::from_value(json!({ "metadata": { "name": name } })).unwrap();
            api.create(&PostParams::default(), &namespace).await.unwrap();
        }
    }

    /// Adds Services of every kind with their slices, and Pods.
    pub(super) async fn add(&mut self, client: &Client, services: usize, random: &mut StdRng) {
        let mut requests = Vec::new();
        for _ in 0..services {
            self.number += 1;
            let namespace = *NAMESPACES[..4].choose(random).unwrap();
            let (name, kind) = (format!("s{}", self.number), random.random_range(0..12));
            let key = format!("{name}.{namespace}");
            if kind != 11 {
                requests.push((namespace, self.service(&name, &key, kind, random)));
            }
            self.services.insert(key.clone());
            let slices = if (7..=10).contains(&kind) { 0 } else { random.random_range(0..4) };
            for number in 0..slices {
                requests.push((namespace, self.slice(&name, &key, number, random)));
            }
            if random.random_bool(0.3) {
                requests.push((namespace, self.pod(namespace, random)));
            }
        }
        let written =
            futures::stream::iter(requests).map(|(namespace, object)| write(client, namespace, object));
        written.buffer_unordered(CONCURRENCY).collect::<Vec<()>>().await;
        self.addresses.extend(cluster_ips(client).await);
    }

    /// Kinds 0 to 2 have cluster IPs, 3 to 6 are headless, 7 to 10 are ExternalNames; 11 isn't written.
    fn service(&mut self, name: &str, key: &str, kind: usize, random: &mut StdRng) -> Value {
        let mut spec = match kind {
            0..=2 => {
                let policy = ["SingleStack", "PreferDualStack"].choose(random).unwrap();
                json!({ "ports": self.ports(random, 1), "ipFamilyPolicy": policy })
            }
            3..=6 => json!({ "clusterIP": "None", "ports": self.ports(random, 0) }),
            _ => {
                self.aliases.insert(key.to_owned());
                json!({ "type": "ExternalName", "externalName": self.target(key, random) })
            }
        };
        if spec["externalName"] == json!("192.0.2.77") {
            self.aliases.remove(key);
        }
        if is_headless(kind) {
            spec["publishNotReadyAddresses"] = json!(false);
        }
        let mut outside = Vec::new();
        if kind <= 6 && random.random_bool(0.4) {
            outside = self.external_ips(random, 3);
            spec["externalIPs"] = json!(outside);
        }
        let mut status = json!({});
        if kind == 2 {
            spec["type"] = json!("LoadBalancer");
            let mut ips = self.external_ips(random, 2);
            // One of them may be an external address, too.
            ips.extend(outside.first().filter(|_| random.random_bool(0.5)).cloned());
            ips.dedup();
            let mut ingress: Vec<Value> = ips.iter().map(|ip| json!({ "ip": ip })).collect();
            outside.extend(ips);
            for host in ["b.example.org", "nowhere.example.org", "x.servfail.test"] {
                if random.random_bool(0.2) {
                    outside.push(host.to_owned());
                    ingress.push(json!({ "hostname": host }));
                }
            }
            status = json!({ "loadBalancer": { "ingress": ingress } });
        }
        self.outside.insert(key.to_owned(), outside);
        json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": name, "labels": labels(random) },
                "spec": spec, "status": status })
    }

    /// Returns up to `most` addresses outside of the cluster.
    fn external_ips(&mut self, random: &mut StdRng, most: usize) -> Vec<String> {
        let ip = |_| -> IpAddr {
            match random.random_bool(0.3) {
                true => Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, random.random_range(0..40)).into(),
                false => Ipv4Addr::new(198, 51, 100, random.random_range(0..100)).into(),
            }
        };
        let mut ips: Vec<IpAddr> = (0..most).map(ip).collect();
        ips.sort_unstable();
        ips.dedup();
        ips.truncate(random.random_range(0..=most));
        self.externals.extend(&ips);
        ips.iter().map(IpAddr::to_string).collect()
    }

    fn target(&self, key: &str, random: &mut StdRng) -> String {
        let known: Vec<&String> = self.services.iter().collect();
        let another = known.choose(random).map_or("s1.web", |key| key.as_str()).to_owned();
        match random.random_range(0..9) {
            0 => "192.0.2.77".to_owned(),
            1 => format!("{key}.svc.cluster.local"),
            2 => "nowhere.example.org".to_owned(),
            3 => "x.servfail.test".to_owned(),
            4 => "absent.web.svc.cluster.local".to_owned(),
            5 => "a.example.org".to_owned(),
            6 => "long.test".to_owned(),
            _ => format!("{another}.svc.cluster.local"),
        }
    }

    pub(super) fn ports(&mut self, random: &mut StdRng, least: usize) -> Vec<Value> {
        let number = random.random_range(least..4);
        let names = ["http", "dns", "dns-tcp", "metrics"];
        let port = |at: usize| {
            let protocol = *["TCP", "UDP", "SCTP"].choose(random).unwrap();
            let mut port = json!({ "port": 80 + at, "protocol": protocol });
            if number > 1 || random.random_bool(0.7) {
                port["name"] = json!(names[at]);
                self.below.insert(format!("_{}._{}", names[at], protocol.to_lowercase()));
            }
            self.below.insert(format!("_{}", protocol.to_lowercase()));
            port
        };
        (0..number).map(port).collect()
    }

    pub(super) fn slice(&mut self, name: &str, key: &str, number: usize, random: &mut StdRng) -> Value {
        let kind = random.random_range(0..10);
        let address_type = match kind {
            0 => "FQDN",
            1..=3 => "IPv6",
            _ => "IPv4",
        };
        if kind == 0 {
            self.with_names.insert(key.to_owned());
        }
        let hostnames = random.random_bool(0.4);
        let endpoint = |at: usize| {
            let ip: IpAddr = match address_type {
                "IPv6" => Ipv6Addr::new(
                    0xfd00,
                    1,
                    0,
                    0,
                    0,
                    0,
                    random.random_range(0..2),
                    random.random_range(0..40),
                )
                .into(),
                _ => Ipv4Addr::new(10, 1, random.random_range(0..4), random.random_range(0..250)).into(),
            };
            let address = if kind == 0 { format!("h{at}.example.org") } else { ip.to_string() };
            if kind != 0 {
                self.addresses.insert(ip);
                self.below.insert(address.replace([':', '.'], "-").trim_end_matches('-').to_owned());
            }
            let ready = [json!(true), json!(true), json!(false), Value::Null];
            let mut endpoint = json!({
                "addresses": [address],
                "conditions": { "ready": ready.choose(random).unwrap() },
                "targetRef": { "kind": "Pod", "name": format!("{name}-pod.{at}") },
            });
            if let Some(zone) = ZONES.choose(random).filter(|zone| !zone.is_empty()) {
                endpoint["zone"] = json!(zone);
            }
            if hostnames {
                endpoint["hostname"] = json!(format!("host-{at}"));
                self.below.insert(format!("host-{at}"));
            }
            endpoint
        };
        let endpoints: Vec<Value> = (0..random_length(number)).map(endpoint).collect();
        let mut labels = labels(random);
        labels["kubernetes.io/service-name"] = json!(name);
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
            "metadata": { "name": format!("{name}-{number}"), "labels": labels },
            "addressType": address_type, "endpoints": endpoints, "ports": self.ports(random, 0),
        })
    }

    fn pod(&mut self, namespace: &str, random: &mut StdRng) -> Value {
        let ip: IpAddr = match random.random_bool(0.3) {
            true => Ipv6Addr::new(0xfd00, 2, 0, 0, 0, 0, 0, random.random_range(0..40)).into(),
            false => Ipv4Addr::new(10, 2, 0, random.random_range(0..250)).into(),
        };
        self.pods.insert((namespace.to_owned(), ip));
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": format!("p{}", self.number), "labels": labels(random) },
            "spec": { "containers": [{ "name": "c", "image": "i" }] },
            "status": { "phase": "Running", "podIP": ip.to_string(), "podIPs": [{ "ip": ip.to_string() }] },
        })
    }

    /// Changes and removes some of the slices and Services.
    pub(super) async fn change(&mut self, client: &Client, changes: usize, random: &mut StdRng) {
        let services: Vec<String> = self.services.iter().cloned().collect();
        for _ in 0..changes {
            let Some((name, namespace)) = services.choose(random).unwrap().split_once('.') else { continue };
            let slices = Api::<EndpointSlice>::namespaced(client.clone(), namespace);
            let slice = format!("{name}-{}", random.random_range(0..2));
            let (merge, delete) = (PatchParams::default(), DeleteParams::default());
            match random.random_range(0..4) {
                0 => {
                    let ip = Ipv4Addr::new(10, 3, 0, random.random_range(0..250));
                    self.addresses.insert(ip.into());
                    let patch = json!({ "endpoints": [{ "addresses": [ip.to_string()] }] });
                    let _ = slices.patch(&slice, &merge, &Patch::Merge(patch)).await;
                }
                1 => drop(slices.delete(&slice, &delete).await),
                2 => {
                    let services = Api::<Service>::namespaced(client.clone(), namespace);
                    drop(services.delete(name, &delete).await);
                    self.outside.remove(&format!("{name}.{namespace}"));
                }
                _ => {
                    let patch = json!({ "metadata": { "annotations": { "changed": "yes" } } });
                    let services = Api::<Service>::namespaced(client.clone(), namespace);
                    let _ = services.patch(name, &merge, &Patch::Merge(patch)).await;
                }
            }
        }
    }
}

fn random_length(number: usize) -> usize {
    [3, 1, 7, 0][number % 4]
}

fn labels(random: &mut StdRng) -> Value {
    let tier = ["front", "back"].choose(random).unwrap();
    json!({ "tier": tier })
}

pub(in crate::corefile) async fn write(client: &Client, namespace: &str, object: Value) {
    let create = PostParams::default();
    let why = |error: kube::Error| panic!("{object}: {error}");
    match object["kind"].as_str().unwrap() {
        "Service" => {
            let service: Service = serde_json::from_value(object.clone()).unwrap();
            let api = Api::<Service>::namespaced(client.clone(), namespace);
            let name = service.metadata.name.clone().unwrap();
            api.create(&create, &service).await.map(drop).unwrap_or_else(why);
            if object["status"]["loadBalancer"].is_object() {
                let status = json!({ "status": object["status"] });
                let patched = api.patch_status(&name, &PatchParams::default(), &Patch::Merge(status)).await;
                patched.map(drop).unwrap_or_else(why);
            }
        }
        "Pod" => {
            let pod: Pod = serde_json::from_value(object.clone()).unwrap();
            let name = pod.metadata.name.clone().unwrap();
            let api = Api::<Pod>::namespaced(client.clone(), namespace);
            api.create(&create, &pod).await.map(drop).unwrap_or_else(why);
            let status = json!({ "status": object["status"] });
            let patched = api.patch_status(&name, &PatchParams::default(), &Patch::Merge(status)).await;
            patched.map(drop).unwrap_or_else(why);
        }
        "ServiceImport" => {
            let gvk = GroupVersionKind::gvk("multicluster.x-k8s.io", "v1alpha1", "ServiceImport");
            let import: DynamicObject = serde_json::from_value(object.clone()).unwrap();
            let resource = ApiResource::from_gvk(&gvk);
            let api = Api::<DynamicObject>::namespaced_with(client.clone(), namespace, &resource);
            api.create(&create, &import).await.map(drop).unwrap_or_else(why);
        }
        _ => {
            let slice: EndpointSlice = serde_json::from_value(object.clone()).unwrap();
            let api = Api::<EndpointSlice>::namespaced(client.clone(), namespace);
            api.create(&create, &slice).await.map(drop).unwrap_or_else(why);
        }
    }
}

async fn cluster_ips(client: &Client) -> Vec<IpAddr> {
    let all = Api::<Service>::all(client.clone()).list(&Default::default()).await.unwrap();
    let ips = all.items.into_iter().flat_map(|service| service.spec.unwrap().cluster_ips.unwrap_or_default());
    ips.filter_map(|ip| ip.parse().ok()).collect()
}
