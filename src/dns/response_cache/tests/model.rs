//! Applies random changes to random stores, and compares the answers of the response cache with those of the full
//! handler, which doesn't use the response cache. Covers SRV, ANY, PTR, wildcards, empty non-terminals, and hostnames
//! that are names of other links.
//!
//! The seeds are fixed; `LB_LINKER_MODEL_SEED=7 cargo test --lib response_cache::tests::model` runs another seed.

use std::collections::BTreeMap;
use std::net::IpAddr;

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::rdata::opt::EdnsOption;
use rand::seq::SliceRandom;

use crate::dns::response_cache::tests::*;
use crate::model::hostname::Hostname;
use crate::model::link::{Port, Target};
use crate::model::persisted_target::{PersistedTarget, TargetOwner};
use crate::sync::source::service_links::apply_persisted_target;

const SEEDS: std::ops::Range<u64> = 0..60;
const STEPS: usize = 150;

/// The zones of links. The block of the first zone also has a reverse zone.
const ZONES: [&str; 2] = ["lb.internal.", "zone.example."];
const NAMESPACES: [&str; 3] = ["tenant", "other", "dns"];
const SERVICES: [&str; 3] = ["a", "b", "a-tenant"];

/// Names that links request; two links may request the same name.
const REQUESTED_NAMES: [&str; 8] = [
    "x.tenant.lb.internal",
    "*.w.tenant.lb.internal",
    "y.w.tenant.lb.internal",
    "deep.er.w.tenant.lb.internal",
    "*.lb.internal",
    "x.other.zone.example",
    "*.tenant.zone.example",
    "b.tenant.lb.internal",
];

/// Further names that are queried: no annotation requests them, and they are no default names of links.
const OTHER_NAMES: [&str; 18] = [
    "lb.internal.",
    "tenant.lb.internal.",
    "w.tenant.lb.internal.",
    "er.w.tenant.lb.internal.",
    "z.w.tenant.lb.internal.",
    "z.y.w.tenant.lb.internal.",
    "nothing.lb.internal.",
    "deleted.lb.internal.",
    "ns.dns.lb.internal.",
    "any.tenant.zone.example.",
    "10.2.0.192.in-addr.arpa.",
    "11.2.0.192.in-addr.arpa.",
    "2.0.192.in-addr.arpa.",
    "x.example.",
    "back.example.",
    "via.example.",
    "data.example.",
    "gone.example.",
];

const ADDRESSES: [&str; 4] = ["192.0.2.10", "192.0.2.11", "198.51.100.1", "2001:db8::10"];

const TYPES: [RecordType; 9] = [
    RecordType::A,
    RecordType::AAAA,
    RecordType::SRV,
    RecordType::ANY,
    RecordType::CNAME,
    RecordType::PTR,
    RecordType::HTTPS,
    RecordType::MX,
    RecordType::SOA,
];

/// The plugins of the root block. Some of its names lead back into the zones of links.
const ROOT_BLOCK: &str = "
    acl {
        block net 192.0.2.66
    }
    acl hidden.example {
        block net 10.0.0.2
    }
    cache 30
    template ANY ANY back.example {
        answer \"{{ .Name }} 20 IN CNAME b.tenant.lb.internal.\"
    }
    template ANY ANY via.example {
        answer \"{{ .Name }} 20 IN CNAME hidden.example.\"
        answer \"hidden.example. 20 IN A 203.0.113.8\"
    }
    template IN SRV data.example {
        answer \"{{ .Name }} 20 IN SRV 0 0 1 b.tenant.lb.internal.\"
        answer \"{{ .Name }} 20 IN SRV 0 0 2 hidden.example.\"
        answer \"{{ .Name }} 20 IN SRV 0 0 3 x.example.\"
    }
    template ANY ANY gone.example {
        rcode NXDOMAIN
        authority \"example. 60 IN SOA ns.example. hostmaster.example. 7 7200 1800 86400 60\"
    }
    template IN A example {
        answer \"{{ .Name }} 20 IN A 203.0.113.7\"
    }
    template ANY ANY example {
        authority \"example. 60 IN SOA ns.example. hostmaster.example. 7 7200 1800 86400 60\"
    }";

fn corefile() -> String {
    format!(
        "lb.internal 192.0.2.0/24 {{\nacl {{\nfilter type AAAA net 10.0.0.2 192.0.2.66\n}}\nlb_linker {{\nreverse 192.0.2.0/24\n}}\n}}\n\
         zone.example {{\nacl {{\nfilter type AAAA net 10.0.0.2 192.0.2.66\n}}\n\
         acl x.other.zone.example {{\nblock type AAAA\n}}\nlb_linker\n}}\n. {{\n{ROOT_BLOCK}\n}}\n"
    )
}

struct Model<'a> {
    random: &'a mut StdRng,
    served: CachedServer,
    /// The default names of all links, and names of services below them, such as `_http._tcp.` before the name.
    names: Vec<String>,
}

impl Model<'_> {
    fn pick<'t, T: ?Sized>(&mut self, from: &[&'t T]) -> &'t T {
        from.choose(self.random).copied().unwrap()
    }

    fn chance(&mut self, probability: f64) -> bool {
        self.random.random_bool(probability)
    }

    fn some_of(&mut self, from: &[&str], probability: f64) -> Vec<String> {
        let mut some = from.to_vec();
        some.retain(|_| self.random.random_bool(probability));
        some.shuffle(self.random);
        some.into_iter().map(str::to_owned).collect()
    }

    fn key(&mut self) -> ServiceKey {
        let (namespace, service) = (self.pick(&NAMESPACES), self.pick(&SERVICES));
        ServiceKey::new(namespace, service)
    }

    /// Returns a name, usually a name of a link or of a service below it.
    fn name(&mut self) -> String {
        match self.random.random_range(0..10) {
            0..3 => self.names.choose(self.random).cloned().unwrap(),
            3..6 => self.host(),
            6 | 7 => self.pick(&REQUESTED_NAMES).replace('*', "q") + ".",
            _ => self.pick(&OTHER_NAMES).to_owned(),
        }
    }

    /// Returns one of the default names of a link.
    fn host(&mut self) -> String {
        let (key, zone) = (self.key(), self.pick(&ZONES));
        let between = self.pick(&[".", ".", "-"]);
        format!("{}{between}{}.{zone}", key.name(), key.namespace())
    }

    fn ingress(&mut self) -> Ingress {
        let mut ingress = Ingress::default();
        match self.random.random_range(0..12) {
            0 => {}
            1..6 => ingress.hostnames.push(Hostname::from(&Name::from_ascii(self.host()).unwrap())),
            6..8 => ingress.hostnames.push(Hostname::from(&Name::from_ascii(self.name()).unwrap())),
            _ => ingress.addresses = addresses(&self.some_of(&ADDRESSES, 0.5)),
        }
        ingress
    }

    fn observed(&mut self) -> ObservedService {
        let key = self.key();
        let ports = [("http", "TCP", 80), ("https", "TCP", 443), ("dns", "UDP", 53)];
        let mut ports = ports.map(|(name, protocol, port)| Port {
            name: Some(name.into()),
            protocol: protocol.into(),
            port,
            app_protocol: None,
        });
        ports.shuffle(self.random);
        let number = self.random.random_range(0..=ports.len());
        let boxed = |texts: Vec<String>| texts.into_iter().map(Arc::from).collect();
        let annotations = Annotations {
            ttl: if self.chance(0.3) { Some(60) } else { None },
            hostnames: boxed(self.some_of(&REQUESTED_NAMES, 0.2)),
            allow_from: match self.random.random_range(0..5) {
                0 => [].into(),
                1 => boxed(self.some_of(&["other", "tenant"], 0.5)),
                _ => ["*".into()].into(),
            },
            ..Annotations::default()
        };
        ObservedService {
            key,
            uid: "u".into(),
            created: Some(self.random.random_range(0..3)),
            resource_version: None,
            ingress: self.ingress(),
            ports: ports[..number].into(),
            annotations,
            refused: false,
            has_finalizer: false,
            persisted: None,
        }
    }

    /// Applies a random change, and returns its description.
    fn change(&mut self) -> String {
        let store = Arc::clone(&self.served.store);
        match self.random.random_range(0..16) {
            0..8 => {
                let observed = self.observed();
                let told = format!("{observed:?}");
                store.apply(observed);
                told
            }
            // Changes only one property of an existing link.
            8 | 9 => {
                let key = self.key();
                let (other, ingress) = (self.observed(), self.ingress());
                let Some(link) = store.get(&key) else { return String::new() };
                let mut annotations = Annotations::clone(&link.annotations);
                let mut ports = Arc::clone(&link.ports);
                let mut target = ingress;
                match self.random.random_range(0..4) {
                    0 => annotations.hostnames = other.annotations.hostnames,
                    1 => annotations.allow_from = other.annotations.allow_from,
                    2 => ports = other.ports,
                    _ => annotations.ttl = other.annotations.ttl,
                }
                match &link.target {
                    Some(Target::Hostname(host)) => target.hostnames = vec![host.clone()],
                    Some(Target::Addresses(ips)) => target.addresses = ips.to_vec(),
                    None => target = Ingress::default(),
                }
                let changed = ObservedService {
                    key,
                    uid: link.uid.clone(),
                    created: Some(link.created),
                    ingress: target,
                    ports,
                    annotations,
                    ..other
                };
                let told = format!("only: {changed:?}");
                store.apply(changed);
                told
            }
            10 | 11 => {
                let key = self.key();
                store.gone(&key, "u", None, std::time::Instant::now());
                if self.chance(0.5) {
                    store.forget(&key);
                }
                format!("delete {key}")
            }
            12 => {
                let (key, hostnames) = (self.key(), self.some_of(&REQUESTED_NAMES, 0.3));
                let hostnames: Vec<Arc<str>> = hostnames.into_iter().map(Arc::from).collect();
                let object = store.get(&key).map(|link| link.external_target().into_owned());
                let object = object.unwrap_or_else(|| "a-tenant-tenant-ext".to_owned());
                let holder = if self.chance(0.7) { Some(&key) } else { None };
                store.set_owner(&object, holder, &hostnames);
                format!("{object} is held by {holder:?} {hostnames:?}")
            }
            13 => {
                let (key, target) =
                    (self.key(), Target::Addresses(addresses(&["192.0.2.10".to_owned()]).into()));
                apply_persisted_target(
                    &store,
                    &key,
                    PersistedTarget {
                        target: Some(target),
                        owner: TargetOwner::Uid("u".into()),
                        hostnames: Box::default(),
                        is_removable: true,
                        overridden_by: None,
                    },
                );
                format!("{key} was at 192.0.2.10")
            }
            14 => {
                let list: Vec<ObservedService> = (0..4).map(|_| self.observed()).collect();
                store.replace(Some("tenant"), list, vec![], &Default::default());
                "a list".to_owned()
            }
            _ => {
                self.served.handler.server.load().invalidate(None);
                "forget".to_owned()
            }
        }
    }
}

fn addresses(texts: &[String]) -> Vec<IpAddr> {
    texts.iter().map(|ip| ip.parse().unwrap()).collect()
}

/// Returns the kinds of an answer; the test counts the answers of each kind.
fn kinds(name: &str, answer: &[u8]) -> Vec<&'static str> {
    let message = Message::from_vec(answer).unwrap();
    let number = |qtype| message.answers.iter().filter(|record| record.record_type() == qtype).count();
    let (aliases, is_empty) = (number(RecordType::CNAME), message.answers.is_empty());
    let qtype = message.queries[0].query_type();
    let edns = message.edns.as_ref().map(|edns| edns.options().as_ref());
    let is_blocked =
        |option: &EdnsOption| matches!(option, EdnsOption::Unknown(15, data) if data[..2] == [0, 15]);
    let is_denied = edns.is_some_and(|options| options.iter().any(|(_, option)| is_blocked(option)));
    let below_wildcard = ["z.w.tenant.lb.internal.", "q.w.tenant.lb.internal.", "q.lb.internal."];
    [
        ("SRV", number(RecordType::SRV) > 0),
        ("SRV with addresses", number(RecordType::SRV) > 0 && !message.additionals.is_empty()),
        ("denied name", is_denied && aliases > 0),
        ("denied SRV", is_denied && qtype == RecordType::SRV),
        ("SRV without an address", is_denied && number(RecordType::SRV) > 0 && aliases == 0),
        ("ANY", qtype == RecordType::ANY && !is_empty),
        ("chain", aliases > 1),
        ("chain of three", aliases > 2),
        ("wildcard", below_wildcard.contains(&name) && !is_empty),
        ("no such name", message.metadata.response_code == ResponseCode::NXDomain),
        ("no data", message.metadata.response_code == ResponseCode::NoError && is_empty),
        ("addresses", number(RecordType::A) + number(RecordType::AAAA) > 0),
    ]
    .into_iter()
    .filter_map(|(kind, is_it)| is_it.then_some(kind))
    .collect()
}

async fn run(seed: u64, given: &mut BTreeMap<&'static str, usize>) {
    let random = &mut StdRng::seed_from_u64(seed);
    let departed = [OnGone::Kept, OnGone::Dropped][random.random_range(0..2)];
    let served = CachedServer::of(&corefile(), departed, &ZONES);
    let own = NAMESPACES.iter().flat_map(|namespace| SERVICES.map(|service| (*namespace, service)));
    let names = own.flat_map(|(namespace, service)| {
        let dotted = format!("{service}.{namespace}");
        let below =
            ["", "_tcp.", "_http._tcp.", "_https._tcp.", "_dns._udp."].map(|port| format!("{port}{dotted}"));
        below.into_iter().chain([format!("{service}-{namespace}")])
    });
    let names = names.flat_map(|name| ZONES.map(|zone| format!("{name}.{zone}"))).collect();
    let mut world = Model { random, served, names };
    let mut asked: Vec<(String, RecordType, SocketAddr)> = Vec::new();
    let mut changes: Vec<String> = Vec::new();
    for _ in 0..6 {
        let observed = world.observed();
        changes.push(format!("{observed:?}"));
        world.served.store.apply(observed);
    }
    for step in 0..STEPS {
        changes.push(world.change());
        if world.chance(0.1) {
            advance(Duration::from_millis(world.random.random_range(0..9000))).await;
        }
        for _ in 0..world.random.random_range(1..8) {
            // Usually repeats an earlier query: its answer must reflect the changes since then.
            let before = if world.chance(0.8) { asked.choose(world.random).cloned() } else { None };
            let (name, qtype, from) = before.unwrap_or_else(|| {
                let qtype = TYPES.choose(world.random).copied().unwrap();
                let from = world.pick(&["10.0.0.1", "10.0.0.1", "10.0.0.2", "192.0.2.66"]);
                (world.name(), qtype, client(from))
            });
            let question = question(7, &name, qtype, Some((1232, false)), 0);
            let again = world.served.cached_answer(&question, from);
            let full = world.served.fresh_answer(&question, from).await;
            if let Some(again) = again {
                let show = |bytes: &[u8]| Message::from_vec(bytes).map(|message| message.to_string());
                assert!(
                    again == full,
                    "LB_LINKER_MODEL_SEED={seed}, step {step}: {name} {qtype} {from}\ncached: {:?}\nfresh: {:?}\n{}",
                    show(&again),
                    show(&full),
                    changes.join("\n")
                );
                kinds(&name, &full).into_iter().for_each(|kind| *given.entry(kind).or_default() += 1);
            }
            asked.push((name, qtype, from));
        }
    }
}

/// Checks that the answer to a query is cached, and that a change of the store leaves no outdated answer in the cache.
/// `differs` says whether the change has an effect on the answer.
async fn check_cached_answer(
    served: &mut CachedServer,
    question: (&str, RecordType),
    change: impl FnOnce(&Store),
    differs: bool,
) {
    let from = client("10.0.0.1");
    let question = self::question(7, question.0, question.1, Some((1232, false)), 0);
    let before = served.fresh_answer(&question, from).await;
    assert_eq!(served.cached_answer(&question, from).as_ref(), Some(&before), "the answer must be cached");
    change(&served.store);
    let again = served.cached_answer(&question, from);
    let after = served.fresh_answer(&question, from).await;
    assert_eq!(after != before, differs);
    assert!(again.is_none_or(|again| again == after), "the cached answer is outdated");
}

#[tokio::test(start_paused = true)]
async fn cached_srv_answer_follows_changes_of_its_target() {
    let mut served = CachedServer::new("", "");
    let https = |observed: ObservedService| {
        let (name, protocol) = (Some("https".into()), "TCP".into());
        ObservedService { ports: [Port { name, protocol, port: 443, app_protocol: None }].into(), ..observed }
    };
    served.store.apply(https(link("a", "b.default.lb.internal.", None)));
    served.store.apply(link("b", "192.0.2.1", None));
    let srv = ("_https._tcp.a.default.lb.internal.", RecordType::SRV);
    check_cached_answer(&mut served, srv, |store| _ = store.apply(link("b", "192.0.2.2", None)), true).await;
    check_cached_answer(
        &mut served,
        srv,
        |store| _ = store.apply(link("b", "c.default.lb.internal.", None)),
        true,
    )
    .await;
    check_cached_answer(&mut served, srv, |store| _ = store.apply(link("c", "192.0.2.3", None)), true).await;
    check_cached_answer(
        &mut served,
        srv,
        |store| _ = store.gone(&ServiceKey::new("default", "c"), "u", None, std::time::Instant::now()),
        true,
    )
    .await;
    check_cached_answer(&mut served, srv, |store| _ = store.apply(link("d", "192.0.2.4", None)), false).await;
}

#[tokio::test(start_paused = true)]
async fn cached_negative_srv_answer_ends_when_a_port_is_added() {
    let mut served = CachedServer::new("", "");
    served.store.apply(link("a", "192.0.2.1", None));
    for (name, protocol) in
        [("_tcp.a.default.lb.internal.", "TCP"), ("_x._udp.a.default.lb.internal.", "UDP")]
    {
        let port = Port { name: Some("x".into()), protocol: protocol.into(), port: 7, app_protocol: None };
        let come = |store: &Store| {
            store.apply(ObservedService { ports: [port].into(), ..link("a", "192.0.2.1", None) });
        };
        check_cached_answer(&mut served, (name, RecordType::SRV), come, true).await;
    }
}

#[tokio::test(start_paused = true)]
async fn reused_answer_equals_a_fresh_answer_after_any_change() {
    let mut given = BTreeMap::new();
    if let Some(seed) = std::env::var("LB_LINKER_MODEL_SEED").ok().and_then(|seed| seed.parse().ok()) {
        return run(seed, &mut given).await;
    }
    for seed in SEEDS {
        run(seed, &mut given).await;
    }
    let all = [
        "SRV",
        "SRV with addresses",
        "denied name",
        "denied SRV",
        "SRV without an address",
        "ANY",
        "chain",
        "chain of three",
        "wildcard",
        "no such name",
        "no data",
        "addresses",
    ];
    for kind in all {
        assert!(given.get(kind).is_some_and(|number| *number > 20), "{kind}: {given:?}");
    }
}
