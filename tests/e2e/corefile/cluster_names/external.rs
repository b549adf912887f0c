//! The external names of a generated cluster: *k8s_external* in lb-linker and in CoreDNS.

use std::collections::BTreeSet;
use std::net::IpAddr;

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

/// Returns the names in a zone to ask for: those of all objects, and as many that don't exist.
fn external_names(world: &World, zone: &str, random: &mut StdRng) -> Vec<String> {
    let labels: Vec<&String> = world.below.iter().collect();
    let mut names: BTreeSet<String> = world.externals.iter().map(|ip| reverse(*ip)).collect();
    for key in &world.services {
        names.insert(format!("{key}.{zone}"));
        for _ in 0..4 {
            names.insert(format!("{}.{key}.{zone}", labels[random.random_range(0..labels.len())]));
        }
    }
    names.extend(World::namespaces().map(|namespace| format!("{namespace}.{zone}")));
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
    names.extend(special.map(|below| format!("{below}{zone}")));
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
    let mut zones = [ZONE, super::ZONE].into_iter();
    let below = zones.find_map(|zone| name.strip_suffix(zone)?.strip_suffix('.'));
    let is_in = |keys: &BTreeSet<String>| {
        below.is_some_and(|name| keys.iter().any(|key| name == key || name.ends_with(&format!(".{key}"))))
    };
    let is_at = |key: &String| below.is_some_and(|below| below == key || below.ends_with(&format!(".{key}")));
    if let Some((_, externals)) = world.outside.iter().find(|(key, _)| is_at(key))
        && let Some(host) = externals.iter().find(|text| text.parse::<IpAddr>().is_err())
    {
        return hosts_explanation(&name, qtype, externals, host, [coredns, subject]);
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
    // kubernetes answers what k8s_external passes on.
    let is_inside = name.ends_with(super::ZONE);
    is_inside.then(|| explanation(world, question, rcodes_of_a, coredns, subject)).flatten()
}

/// As [`external_explanation`], for the name of a Service whose load balancer has hostnames, of which this is the first.
fn hosts_explanation(
    name: &str,
    qtype: &str,
    externals: &[String],
    host: &str,
    [coredns, subject]: [&Answer; 2],
) -> Option<&'static str> {
    let ips: BTreeSet<IpAddr> = externals.iter().filter_map(|text| text.parse().ok()).collect();
    let is_address = matches!(qtype, "A" | "AAAA");
    let number = ips.iter().filter(|ip| !is_address || ip.is_ipv4() == (qtype == "A")).count();
    let [answers, all] = [subject, coredns].map(|answer| &answer.sections[0]);
    let aliases = answers
        .keys()
        .filter(|record| record.starts_with(&format!("{name}. ")) && record.contains(" cname "));
    let rcode = match host {
        "nowhere.example.org" => ResponseCode::NXDomain,
        "x.servfail.test" => ResponseCode::ServFail,
        _ => ResponseCode::NoError,
    };
    let is_alias = aliases.count() == 1 && subject.has_alias_at(name) && subject.rcode == rcode;
    match is_address {
        _ if coredns.rcode != ResponseCode::NoError || qtype == "SRV" => None,
        true if !answers.iter().all(|(record, ttl)| all.get(record) == Some(ttl)) => None,
        true if number > 0 => (answers.len() == number && subject.rcode == ResponseCode::NoError)
            .then_some("hostnames beside addresses of the type are left out"),
        true => is_alias.then_some("the first hostname counts, with the rcode of what is behind it"),
        false => {
            (number == 0 && is_alias && coredns.is_nodata()).then_some("a hostname is a CNAME for each type")
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn external_names_are_answered_as_by_coredns() {
    let mut random = StdRng::seed_from_u64(number("LB_LINKER_CLUSTER_SEED", 1) + 3);
    let services = usize::try_from(number("LB_LINKER_CLUSTER_SERVICES", 60)).unwrap();
    let (plane, client, mut world) = generated(services, &mut random).await;
    let upstreams = Upstreams::start().await;
    for options in
        ["ttl 7", "headless\napex own", "headless\nfallthrough 100.51.198.in-addr.arpa", "fallthrough"]
    {
        eprintln!("external names: {options:?}");
        let servers = Servers::with(&plane, &upstreams, &COREFILE.replace("OPTIONS", options)).await;
        wait_until_listed(&servers).await;
        let all = external_names(&world, ZONE, &mut random);
        compare_names(&world, &servers, &mut random, all, external_explanation).await;
        if options.starts_with("ttl") {
            world.change(&client, services, &mut random).await;
            world.add(&client, services / 4, &mut random).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn zone_of_both_plugins_is_answered_as_by_coredns() {
    let mut random = StdRng::seed_from_u64(number("LB_LINKER_CLUSTER_SEED", 1) + 4);
    let (plane, _, world) = generated(30, &mut random).await;
    let upstreams = Upstreams::start().await;
    for options in ["ttl 7", "headless\nfallthrough"] {
        eprintln!("external names in the zone of kubernetes: {options:?}");
        let corefile = COREFILE.replace("k8s_external ext.test", "k8s_external cluster.local");
        let servers = Servers::with(&plane, &upstreams, &corefile.replace("OPTIONS", options)).await;
        wait_until_listed(&servers).await;
        let mut all = external_names(&world, super::ZONE, &mut random);
        all.extend(names(&world, &mut random));
        compare_names(&world, &servers, &mut random, all, external_explanation).await;
    }
}
