//! The names of a generated cluster, in lb-linker and in CoreDNS with the plugin *kubernetes* and the same API server:
//! each answer is the same, or differs for a reason of [`explanation`].
//!
//! `LB_LINKER_CLUSTER_SERVICES` sets the number of Services (300), `LB_LINKER_CLUSTER_SEED` the seed.

mod clients;
mod external;
mod generator;
mod imports;
mod program;
mod questions;
mod transfers;

use std::collections::BTreeMap;
use std::time::Duration;

use hickory_proto::op::ResponseCode;
use kube::Client;
use rand::SeedableRng;
use rand::rngs::StdRng;
use serde_json::json;
use tokio::time::sleep;

use super::question::Question;
use super::server::{CorefileDir, Program, Server};
use super::upstreams::Upstreams;
use crate::harness::cluster::Cluster;
use crate::harness::control_plane::{ControlPlane, Options};
use generator::World;
pub(super) use generator::write;
use questions::{Answer, ZONE, names, questions};

/// The Corefile of both; `OPTIONS` stands for further options of the plugin.
const COREFILE: &str = "
    cluster.local:{$PORT} in-addr.arpa:{$PORT} ip6.arpa:{$PORT} {
        bind 127.0.0.1
        errors
        kubernetes cluster.local in-addr.arpa ip6.arpa {
            kubeconfig {$CLUSTER_CONFIG}
            OPTIONS
        }
        forward . {$UPSTREAM}
    }
    .:{$PORT} {
        bind 127.0.0.1
        forward . {$UPSTREAM}
    }";

struct Servers {
    coredns: Server,
    subject: Server,
}

impl Servers {
    async fn start(plane: &ControlPlane, upstreams: &Upstreams, options: &str) -> Self {
        Self::with(plane, upstreams, &COREFILE.replace("OPTIONS", options)).await
    }

    async fn with(plane: &ControlPlane, upstreams: &Upstreams, corefile: &str) -> Self {
        let site = CorefileDir::new(corefile, &[]);
        let site = upstreams.name(site).with("CLUSTER_CONFIG", plane.admin_kubeconfig().display());
        let (coredns, subject) =
            tokio::join!(Server::start(Program::CoreDns, &site), Server::start(Program::subject(), &site));
        Self { coredns, subject }
    }

    /// Asks both. If an answer is truncated, which may have any of the records, returns those by TCP. CoreDNS also counts
    /// additional records that don't fit.
    async fn ask(&self, question: &Question) -> (Answer, Answer) {
        let (coredns, subject) =
            tokio::join!(Answer::of(question, &self.coredns), Answer::of(question, &self.subject));
        if !question.tcp && (coredns.is_truncated() || subject.is_truncated()) {
            let by_tcp = Question::parse(&format!("{} tcp", question.text));
            return tokio::join!(Answer::of(&by_tcp, &self.coredns), Answer::of(&by_tcp, &self.subject));
        }
        (coredns, subject)
    }

    /// Waits until both have seen all changes so far: each kind has a watch of its own.
    async fn wait_for_changes(&self, client: &Client, number: usize) {
        let (cluster, name) = (Cluster::new(client.clone()), format!("last{number}"));
        let namespace = cluster.create_namespace("last").await;
        let service = json!({ "metadata": { "name": name }, "spec": { "clusterIP": "None" } });
        cluster.create_service(&namespace, service).await;
        let slice = json!({
            "metadata": { "name": name, "labels": { "kubernetes.io/service-name": name, "tier": "front" } },
            "addressType": "IPv4", "endpoints": [{ "addresses": ["10.9.9.9"] }], "ports": [],
        });
        let slices = kube::Api::namespaced(client.clone(), &namespace);
        let slice: k8s_openapi::api::discovery::v1::EndpointSlice = serde_json::from_value(slice).unwrap();
        slices.create(&Default::default(), &slice).await.unwrap();
        let question = Question::parse(&format!("{name}.{namespace}.svc.{ZONE} A"));
        for _ in 0..600 {
            let (coredns, subject) = self.ask(&question).await;
            if !coredns.sections[0].is_empty() && !subject.sections[0].is_empty() {
                // Pods have no part in this name.
                return sleep(Duration::from_millis(300)).await;
            }
            sleep(Duration::from_millis(50)).await;
        }
        panic!("not both have seen {name}");
    }
}

/// Returns why an answer may differ from CoreDNS's; `None` if it may not.
fn explanation(
    world: &World,
    question: &Question,
    rcodes_of_a: &BTreeMap<String, ResponseCode>,
    coredns: &Answer,
    subject: &Answer,
) -> Option<&'static str> {
    let mut words = question.text.split(' ');
    let (name, qtype) = (words.next()?, words.next()?);
    let name = name.to_lowercase();
    let relative = name.strip_suffix(&format!(".svc.{ZONE}"));
    let is_in = |keys: &std::collections::BTreeSet<String>| {
        relative.is_some_and(|name| keys.iter().any(|key| name == key || name.ends_with(&format!(".{key}"))))
    };
    if relative.is_some_and(|key| world.aliases.contains(key)) && subject.has_alias_at(&name) {
        let of_slice = |record: &&String| {
            let is_owner = |key: &String| record.starts_with(&format!("{key}.svc.{ZONE}. "));
            record.contains(" in cname ") && world.with_names.iter().any(is_owner)
        };
        let mut lacking =
            coredns.sections[0].keys().filter(|record| !subject.sections[0].contains_key(*record)).peekable();
        if lacking.peek().is_some() && lacking.all(|record| of_slice(&record)) {
            return Some("slices with names are left out");
        }
        let is_resolved = coredns.sections[0].keys().any(|record| !record.contains(" cname "));
        return (!is_resolved).then_some("an ExternalName is a CNAME for each type, with what is behind it");
    }
    if is_in(&world.with_names) {
        return Some("slices with names are left out");
    }
    let lacking = coredns.sections[0].keys().filter(|record| !subject.sections[0].contains_key(*record));
    let of_names =
        |record: &String| world.with_names.iter().any(|key| record.ends_with(&format!(".{key}.svc.{ZONE}.")));
    if qtype == "PTR"
        && name.ends_with(".arpa")
        && lacking.clone().count() > 0
        && lacking.clone().all(of_names)
    {
        return Some("slices with names are left out");
    }
    let is_apart = subject.is_nodata() && coredns.rcode == ResponseCode::NXDomain;
    let exists = |name: &str| rcodes_of_a.get(name) == Some(&ResponseCode::NoError);
    if is_apart && qtype == "TXT" && exists(&name) {
        return Some("a name without TXT records exists");
    }
    let parents = [format!("dns.{ZONE}"), format!("dns-version.{ZONE}"), format!("ns.dns.{ZONE}")];
    let is_above_zone =
        world.is_zonal && ["pin._zone.", "prefer._zone."].iter().any(|it| name.starts_with(it));
    if is_apart && (parents.contains(&name) || name.starts_with('_') || is_above_zone) {
        return Some("a name with other records, or names below it, exists");
    }
    let is_part = subject.sections[0].keys().all(|record| coredns.sections[0].contains_key(record));
    if world.hides_pointers && name.ends_with(".arpa") && is_part {
        return Some("namespace_labels hides PTR records, too");
    }
    if is_apart && qtype != "PTR" && name.ends_with(".arpa") {
        return Some("an address with a PTR record exists for other types");
    }
    // With `fallthrough` the rcode is the upstream's.
    let is_absent = rcodes_of_a.get(&name).is_some_and(|rcode| {
        *rcode == subject.rcode && (*rcode == ResponseCode::NXDomain || world.passes_on)
    });
    if name.starts_with("x.") && name.ends_with(".ip6.arpa") && is_absent {
        return Some("a name below that of an IPv6 address isn't the address's");
    }
    if qtype == "SOA" && is_absent && subject.rcode != ResponseCode::NoError && coredns.is_nodata() {
        return Some("a name that doesn't exist has no SOA record");
    }
    None
}

/// Returns why an answer may differ: of the name and type in question, and the rcodes of CoreDNS for A.
type Explanation =
    fn(&World, &Question, &BTreeMap<String, ResponseCode>, &Answer, &Answer) -> Option<&'static str>;

/// Asks both for all names. Returns the number of questions, and the number of answers by their explanation.
async fn compare(
    world: &World,
    servers: &Servers,
    random: &mut StdRng,
) -> (usize, BTreeMap<&'static str, usize>) {
    let all = names(world, random);
    compare_names(world, servers, random, all, explanation).await
}

async fn compare_names(
    world: &World,
    servers: &Servers,
    random: &mut StdRng,
    names: Vec<String>,
    explanation: Explanation,
) -> (usize, BTreeMap<&'static str, usize>) {
    let (mut asked, mut explained) = (0, BTreeMap::new());
    let (mut rcodes_of_a, mut unexplained) = (BTreeMap::new(), Vec::new());
    for name in names {
        for question in questions(&name, random) {
            asked += 1;
            let (coredns, subject) = servers.ask(&question).await;
            if question.text.contains(" A") && !question.text.contains(" AAAA") {
                rcodes_of_a.entry(name.to_lowercase()).or_insert(coredns.rcode);
            }
            if coredns == subject {
                continue;
            }
            match explanation(world, &question, &rcodes_of_a, &coredns, &subject) {
                Some(why) => *explained.entry(why).or_default() += 1,
                None => unexplained.push(format!(
                    "{}\n    CoreDNS:   {}\n    lb-linker: {}",
                    question.text,
                    coredns.show(),
                    subject.show()
                )),
            }
        }
    }
    eprintln!("cluster names: {asked} questions, {} unexplained, {explained:#?}", unexplained.len());
    let shown = &unexplained[..unexplained.len().min(30)];
    assert!(shown.is_empty(), "{} answers differ: {}", unexplained.len(), shown.join("\n"));
    (asked, explained)
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

fn dual_stack() -> Options {
    let ranges = "--service-cluster-ip-range=10.0.0.0/16,fd00:10::/112";
    Options { apiserver_args: vec![ranges.to_owned()], ..Options::default() }
}

/// Starts a control plane with generated Services.
async fn generated(services: usize, random: &mut StdRng) -> (ControlPlane, Client, World) {
    let plane = ControlPlane::start(dual_stack());
    let client = plane.admin_client().await;
    let mut world = World::default();
    World::write_namespaces(&client).await;
    world.add(&client, services, random).await;
    (plane, client, world)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_names_are_answered_as_by_coredns() {
    let seed = number("LB_LINKER_CLUSTER_SEED", 1);
    let services = usize::try_from(number("LB_LINKER_CLUSTER_SERVICES", 300)).unwrap();
    let mut random = StdRng::seed_from_u64(seed);
    let (plane, client, mut world) = generated(services, &mut random).await;
    let upstreams = Upstreams::start().await;
    let servers = Servers::start(&plane, &upstreams, "pods verified").await;
    servers.wait_for_changes(&client, 1).await;
    let (asked, explained) = compare(&world, &servers, &mut random).await;
    assert!(asked > 40 * services && explained.len() >= 5, "{asked}: {explained:#?}");
    world.change(&client, services, &mut random).await;
    world.add(&client, services / 10, &mut random).await;
    servers.wait_for_changes(&client, 2).await;
    compare(&world, &servers, &mut random).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn options_of_kubernetes_have_corednss_answers() {
    let mut random = StdRng::seed_from_u64(number("LB_LINKER_CLUSTER_SEED", 1) + 1);
    let (plane, _, mut world) = generated(40, &mut random).await;
    let upstreams = Upstreams::start().await;
    for options in [
        "pods insecure\nttl 30",
        "noendpoints\nttl 0",
        "endpoint_pod_names\nttl 600",
        "ignore empty_service",
        "namespaces shop web",
        "labels tier in (front)",
        "namespace_labels kubernetes.io/metadata.name in (shop,web)",
        "fallthrough in-addr.arpa ip6.arpa",
        "fallthrough",
        "zonal",
        // Without zones it has no effect.
        "multicluster",
    ] {
        eprintln!("cluster names: {options:?}");
        world.hides_pointers = options.starts_with("namespace_labels");
        world.is_zonal = options == "zonal";
        world.passes_on = options.starts_with("fallthrough");
        let servers = Servers::start(&plane, &upstreams, options).await;
        wait_until_listed(&servers).await;
        compare(&world, &servers, &mut random).await;
    }
}

/// Waits until no name is unknown any more.
async fn wait_until_listed(servers: &Servers) {
    let question = Question::parse(&format!("absent.web.svc.{ZONE} A"));
    for _ in 0..600 {
        let (coredns, subject) = servers.ask(&question).await;
        if [coredns.rcode, subject.rcode].iter().all(|rcode| *rcode != ResponseCode::ServFail) {
            return;
        }
        sleep(Duration::from_millis(50)).await;
    }
    panic!("the objects are never listed");
}
