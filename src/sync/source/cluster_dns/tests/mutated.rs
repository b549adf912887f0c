//! Objects of random content: they are decoded or refused, and names are answered within bounds.
//!
//! `LB_LINKER_MUTATED_OBJECTS` sets the number of objects (5,000), `LB_LINKER_MUTATIONS_SEED` the seed.

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};

use super::*;
use crate::store::cluster::answer::zone_of;

/// Maximum length of all clauses about an object, in bytes.
const MAX_CLAUSES: usize = 1000;
/// Maximum number of records of an answer: 4,096, each with one of another group.
const MAX_RECORDS: usize = 2 * 4096;

fn seeds() -> Vec<(Kind, Value)> {
    let metadata = |name: &str| {
        json!({ "name": name, "namespace": "a", "resourceVersion": "7", "labels": { "kubernetes.io/service-name": name,
        "multicluster.kubernetes.io/service-name": name, "multicluster.kubernetes.io/source-cluster": "east" } })
    };
    let ports = json!([{ "name": "http", "port": 80, "protocol": "TCP" }, { "name": "dns", "port": 53, "protocol": "UDP" }]);
    let endpoint = |ip: &str, hostname: Value| {
        json!({ "addresses": [ip], "hostname": hostname, "conditions": { "ready": true },
            "zone": "a", "targetRef": { "kind": "Pod", "name": "web-0" } })
    };
    vec![
        (
            Kind::Services,
            json!({ "metadata": metadata("web"), "spec": { "clusterIP": "10.0.0.1",
            "clusterIPs": ["10.0.0.1", "fd00::1"], "ports": ports } }),
        ),
        (
            Kind::Services,
            json!({ "metadata": metadata("db"), "spec": { "clusterIP": "None", "ports": ports } }),
        ),
        (
            Kind::Services,
            json!({ "metadata": metadata("out"),
            "spec": { "type": "ExternalName", "externalName": "www.example.com" } }),
        ),
        (
            Kind::Slices,
            json!({ "metadata": metadata("db"), "addressType": "IPv4", "ports": ports,
            "endpoints": [endpoint("10.1.0.1", json!("db-0")), endpoint("10.1.0.2", json!(null))] }),
        ),
        (
            Kind::Slices,
            json!({ "metadata": metadata("web"), "addressType": "IPv6", "ports": ports,
            "endpoints": [endpoint("fd00::10", json!(null))] }),
        ),
        (
            Kind::Imports,
            json!({ "metadata": metadata("db"), "spec": { "type": "Headless", "ports": ports } }),
        ),
        (
            Kind::Imports,
            json!({ "metadata": metadata("web"),
            "spec": { "type": "ClusterSetIP", "ips": ["10.3.0.1"], "ports": ports } }),
        ),
        (
            Kind::Services,
            json!({ "metadata": metadata("front"), "spec": { "type": "LoadBalancer",
            "clusterIP": "10.0.0.2", "externalIPs": ["192.0.2.1"], "ports": ports },
            "status": { "loadBalancer": { "ingress": [{ "ip": "192.0.2.2" }, { "hostname": "lb.example.com" }] } } }),
        ),
        (Kind::Namespaces, json!({ "metadata": { "name": "a", "resourceVersion": "7" } })),
        (
            Kind::Pods,
            json!({ "metadata": metadata("web-0"),
            "status": { "podIP": "10.2.0.1", "podIPs": [{ "ip": "10.2.0.1" }, { "ip": "fd00::20" }] } }),
        ),
    ]
}

/// Replaces a value somewhere in an object, or repeats the items of an array.
fn mutate(value: &mut Value, random: &mut StdRng) {
    let children: Vec<&mut Value> = match value {
        Value::Array(items) => items.iter_mut().collect(),
        Value::Object(fields) => fields.values_mut().collect(),
        _ => Vec::new(),
    };
    let number = children.len();
    if number > 0 && random.random_bool(0.85) {
        let chosen = random.random_range(0..number);
        return children.into_iter().nth(chosen).into_iter().for_each(|child| mutate(child, random));
    }
    *value = match value {
        Value::Array(items) if number > 0 && random.random_bool(0.5) => {
            let times = *[2, 30, 3000].choose(random).unwrap();
            let many = items.iter().cycle().take(times).cloned().collect();
            Value::Array(many)
        }
        _ => odd(random),
    };
}

fn odd(random: &mut StdRng) -> Value {
    let texts = [
        "",
        "None",
        "-",
        "a.b",
        "*",
        "\u{0}",
        "Ü",
        "10.0.0.1",
        "::ffff:10.0.0.1",
        "10.0.0.256",
        "FQDN",
        "ExternalName",
        "web.a.svc.cluster.local",
        "x..y",
        "UDP",
        "_http",
    ];
    match random.random_range(0..8) {
        0 => Value::Null,
        1 => json!(random.random::<i64>()),
        2 => json!(random.random::<bool>()),
        3 => json!("x".repeat(*[63, 64, 255, 70_000].choose(random).unwrap())),
        4 => json!({ "name": "x" }),
        5 => json!([]),
        _ => json!(texts.choose(random).unwrap()),
    }
}

/// Decodes an object and applies it, unless it is refused.
fn apply<K: ClusterObject>(object: &Value, cluster: &Cluster) -> bool {
    let Ok(read) = serde_json::from_slice::<RawDeserializeGuard<K>>(object.to_string().as_bytes()) else {
        return false;
    };
    let key = key_of(&read);
    let RawDeserializeGuard(Ok(decoded)) = read else {
        cluster.remove(K::KIND, &key);
        return false;
    };
    let clauses = decoded.apply(&key, cluster);
    assert!(clauses.iter().map(String::len).sum::<usize>() <= MAX_CLAUSES, "{clauses:?}");
    true
}

fn ask(cluster: &Cluster, name: &str) {
    let rules = Rules { zonal: true, multicluster: vec![wire("cluster.local")], ..rules() };
    let wire = wire(name);
    for kind in
        [RecordType::A, RecordType::AAAA, RecordType::SRV, RecordType::PTR, RecordType::TXT, RecordType::ANY]
    {
        let zone = zone_of(&rules.zones, &wire).expect("a zone");
        let answer = cluster.answer(&rules, zone, &wire, kind.into());
        if let Outcome::Records { records, .. } = answer.outcome {
            assert!(records.len() <= MAX_RECORDS, "{name} {kind}: {} records", records.len());
        }
    }
}

#[test]
fn mutated_objects_are_applied_or_refused() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let seed = number("LB_LINKER_MUTATIONS_SEED").unwrap_or_else(rand::random);
    println!("LB_LINKER_MUTATIONS_SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let (cluster, seeds) =
        (Cluster::new(ClusterSpec { has_imports: true, has_zones: true, ..spec() }), seeds());
    let mut applied = 0;
    let total = number("LB_LINKER_MUTATED_OBJECTS").unwrap_or(5000);
    for _ in 0..total {
        let (kind, mut object) = seeds.choose(&mut random).unwrap().clone();
        for _ in 0..random.random_range(0..4) {
            mutate(&mut object, &mut random);
        }
        applied += u64::from(match kind {
            Kind::Services => apply::<ClusterService>(&object, &cluster),
            Kind::Slices => apply::<ClusterSlice>(&object, &cluster),
            Kind::Namespaces => apply::<ClusterNamespace>(&object, &cluster),
            Kind::Pods => apply::<ClusterPod>(&object, &cluster),
            Kind::Imports => apply::<ClusterImport>(&object, &cluster),
        });
        for name in [
            "web.a.svc",
            "db.a.svc",
            "db-0.db.a.svc",
            "_http._tcp.db.a.svc",
            "10-2-0-1.a.pod",
            "out.a.svc",
            "a._zone.db.a.svc",
            "db-0.east.db.a.svc",
        ] {
            ask(&cluster, &format!("{name}.cluster.local"));
        }
        // Their number is bounded, so that the memory is, too.
        let most = if random.random_bool(0.01) { 10 } else { 1000 };
        if cluster.number(kind) > most {
            cluster.keys(kind).iter().for_each(|key| cluster.remove(kind, key));
        }
    }
    assert!((total / 4..total).contains(&applied), "{applied} of {total} are applied");
    for kind in Kind::ALL {
        for key in cluster.keys(kind) {
            cluster.remove(kind, &key);
        }
        assert_eq!(cluster.number(kind), 0, "{kind:?}");
    }
}
