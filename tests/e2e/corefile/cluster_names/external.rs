//! The external names of a generated cluster: *k8s_external* in lb-linker and in CoreDNS.

use std::collections::BTreeSet;

use rand::RngExt;

use super::questions::{mutated, reverse};
use super::*;

const ZONE: &str = "ext.test";
/// The Corefile of both; `OPTIONS` stands for further options of the plugin.
const COREFILE: &str = "
    .:{$PORT} {
        bind 127.0.0.1
        errors
        kubernetes cluster.local {
            kubeconfig {$CLUSTER_CONFIG}
            ttl 9
        }
        k8s_external ext.test 100.51.198.in-addr.arpa 8.b.d.0.1.0.0.2.ip6.arpa {
            OPTIONS
        }
        forward . {$UPSTREAM}
    }";

/// Returns the names to ask for: those of all objects, and as many that don't exist.
fn external_names(world: &World, random: &mut StdRng) -> Vec<String> {
    let labels: Vec<&String> = world.below.iter().collect();
    let mut names: BTreeSet<String> = world.externals.iter().map(|ip| reverse(*ip)).collect();
    for key in &world.services {
        names.insert(format!("{key}.{ZONE}"));
        for _ in 0..4 {
            names.insert(format!("{}.{key}.{ZONE}", labels[random.random_range(0..labels.len())]));
        }
    }
    names.extend(World::namespaces().map(|namespace| format!("{namespace}.{ZONE}")));
    let special = [
        "",
        "dns.",
        "ns1.dns.",
        "ns2.dns.",
        "x.ns1.dns.",
        "own.",
        "NS1.own.",
        "ns2.own.",
        "_.s1.web.",
        "_._.s1.web.",
        "_tcp.s1.web.",
        "a.b.c.s1.web.",
        "svc.",
        "web.svc.",
    ];
    names.extend(special.map(|below| format!("{below}{ZONE}")));
    names.extend(
        ["100.51.198.in-addr.arpa", "8.b.d.0.1.0.0.2.ip6.arpa", "web.100.51.198.in-addr.arpa"]
            .map(str::to_owned),
    );
    let absent: Vec<String> = names.iter().map(|name| mutated(name, random)).collect();
    names.into_iter().chain(absent).collect()
}

/// Returns why an answer may differ from CoreDNS's; `None` if it may not.
fn external_explanation(
    world: &World,
    question: &Question,
    rcodes_of_a: &BTreeMap<String, ResponseCode>,
    coredns: &Answer,
    subject: &Answer,
) -> Option<&'static str> {
    let mut words = question.text.split(' ');
    let (name, qtype) = (words.next()?.to_lowercase(), words.next()?);
    let below = name.strip_suffix(&format!(".{ZONE}"));
    let is_in = |keys: &BTreeSet<String>| {
        below.is_some_and(|name| keys.iter().any(|key| name == key || name.ends_with(&format!(".{key}"))))
    };
    if is_in(&world.with_hosts) {
        let is_part = subject.sections[0].keys().all(|record| coredns.sections[0].contains_key(record));
        if is_part && (!subject.sections[0].is_empty() || is_in(&world.with_externals)) {
            return Some("hostnames beside addresses, and further ones, are left out");
        }
        let is_resolved = coredns.sections[0].keys().any(|record| !record.contains(" cname "));
        return (subject.has_alias_at(&name) && !is_resolved)
            .then_some("a hostname is a CNAME for each type");
    }
    if is_in(&world.with_names) {
        return Some("slices with names are left out");
    }
    let is_apart = subject.is_nodata() && coredns.rcode == ResponseCode::NXDomain;
    if is_apart && qtype != "PTR" && name.ends_with(".arpa") {
        return Some("an address with a PTR record exists for other types");
    }
    if is_apart && name.starts_with('_') {
        return Some("a name with names below it exists");
    }
    let is_denied = subject.sections[0].is_empty()
        && (subject.rcode == ResponseCode::NXDomain || rcodes_of_a.get(&name) == Some(&subject.rcode));
    if name.starts_with("x.") && name.ends_with(".ip6.arpa") && qtype == "PTR" && is_denied {
        return Some("a name below that of an IPv6 address isn't the address's");
    }
    None
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn external_names_are_answered_as_by_coredns() {
    let mut random = StdRng::seed_from_u64(number("LB_LINKER_CLUSTER_SEED", 1) + 3);
    let services = usize::try_from(number("LB_LINKER_CLUSTER_SERVICES", 60)).unwrap();
    let plane = ControlPlane::start(dual_stack());
    let client = plane.admin_client().await;
    let mut world = World::default();
    World::write_namespaces(&client).await;
    world.add(&client, services, &mut random).await;
    let upstreams = Upstreams::start().await;
    for options in
        ["ttl 7", "headless\napex own", "headless\nfallthrough 100.51.198.in-addr.arpa", "fallthrough"]
    {
        eprintln!("external names: {options:?}");
        let servers = Servers::with(&plane, &upstreams, &COREFILE.replace("OPTIONS", options)).await;
        wait_until_listed(&servers).await;
        let all = external_names(&world, &mut random);
        compare_names(&world, &servers, &mut random, all, external_explanation).await;
        if options.starts_with("ttl") {
            world.change(&client, services, &mut random).await;
            world.add(&client, services / 4, &mut random).await;
        }
    }
}
