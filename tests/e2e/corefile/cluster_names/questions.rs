//! Questions about names that exist and names that don't.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::{Name, RData, Record};
use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;

use super::generator::World;
use crate::corefile::question::Question;
use crate::corefile::server::Server;

pub(super) const ZONE: &str = "cluster.local";
const TYPES: [&str; 11] = ["A", "AAAA", "SRV", "PTR", "TXT", "CNAME", "SOA", "NS", "HTTPS", "MX", "ANY"];

/// The compared parts of an answer. The order of records isn't compared, nor how often one is there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) rcode: ResponseCode,
    flags: [bool; 4],
    /// Records in lower case, without the serials of SOA records, with their TTLs.
    pub(super) sections: [BTreeMap<String, u32>; 3],
}

impl Answer {
    pub(super) async fn of(question: &Question, server: &Server) -> Self {
        let reply = question.ask(server).await.answer;
        let reply = reply.unwrap_or_else(|| panic!("no answer to {}", question.text));
        let Message { metadata, answers, authorities, additionals, .. } = Message::from_vec(&reply).unwrap();
        let text = |record: &Record| {
            let mut record = record.clone();
            if let RData::SOA(soa) = &mut record.data {
                soa.serial = 0;
            }
            let ttl = std::mem::take(&mut record.ttl);
            (record.to_string().to_lowercase(), ttl)
        };
        let section = |records: &[Record]| records.iter().map(text).collect();
        Self {
            rcode: metadata.response_code,
            flags: [
                metadata.authoritative,
                metadata.truncation,
                metadata.recursion_desired,
                metadata.recursion_available,
            ],
            sections: [section(&answers), section(&authorities), section(&additionals)],
        }
    }

    pub(super) fn is_truncated(&self) -> bool {
        self.flags[1]
    }

    pub(super) fn is_nodata(&self) -> bool {
        self.rcode == ResponseCode::NoError && self.sections[0].is_empty()
    }

    pub(super) fn has_alias_at(&self, name: &str) -> bool {
        self.sections[0].keys().any(|record| {
            record.split_whitespace().next() == Some(&format!("{name}.")) && record.contains(" cname ")
        })
    }

    pub(super) fn show(&self) -> String {
        format!("{} {:?} {:?}", self.rcode, self.flags, self.sections)
    }
}

/// Returns the names to ask for: those of all objects, and as many that don't exist.
pub(super) fn names(world: &World, random: &mut StdRng) -> Vec<String> {
    let mut names: BTreeSet<String> = BTreeSet::new();
    let labels: Vec<&String> = world.below.iter().collect();
    for key in &world.services {
        names.insert(format!("{key}.svc.{ZONE}"));
        for _ in 0..3 {
            names.insert(format!("{}.{key}.svc.{ZONE}", labels.choose(random).unwrap()));
        }
    }
    for key in world.services.iter().filter(|_| world.is_zonal) {
        let zone = ["z1", "z2", "Rack.z2", "none", "x.y"].choose(random).unwrap();
        let directive = ["pin", "prefer", "PIN", "other"].choose(random).unwrap();
        let name = format!("{zone}.{directive}._zone.{key}.svc.{ZONE}");
        let from = [0, 0, zone.len() + 1, name.find("_zone").unwrap()];
        names.insert(name[*from.choose(random).unwrap()..].to_owned());
    }
    for ip in &world.addresses {
        names.insert(reverse(*ip));
    }
    for (namespace, ip) in &world.pods {
        names.insert(format!("{}.{namespace}.pod.{ZONE}", ip.to_string().replace([':', '.'], "-")));
        names.insert(reverse(*ip));
    }
    names.extend(
        World::namespaces().flat_map(|name| ["svc", "pod"].map(|branch| format!("{name}.{branch}.{ZONE}"))),
    );
    let special =
        ["", "svc.", "pod.", "dns.", "ns.dns.", "dns-version.", "x.", "svc.svc.", "a.b.c.d.svc.", "x.svc."];
    names.extend(special.map(|label| format!("{label}{ZONE}")));
    let odd = [
        "1-2-3-4.web.pod",
        "a.1-2-3-4.web.pod",
        "a.b.1-2-3-4.web.pod",
        "1-2-3.web.pod",
        "--1.web.pod",
        "2001-DB8--1.web.pod",
        "-.web.pod",
        "_._tcp.s1.web.svc",
        "_http.s1.web.svc",
        "s1.absent.svc",
        "1-2-3-4.absent.pod",
    ];
    names.extend(odd.map(|name| format!("{name}.{ZONE}")));
    names.extend(
        [
            "in-addr.arpa",
            "10.in-addr.arpa",
            "ip6.arpa",
            "1.2.3.4.5.in-addr.arpa",
            "01.0.0.10.in-addr.arpa",
            "x.1.0.10.in-addr.arpa",
            "svc.in-addr.arpa",
            "s1.web.svc.in-addr.arpa",
        ]
        .map(str::to_owned),
    );
    let absent: Vec<String> = names.iter().map(|name| mutated(name, random)).collect();
    names.into_iter().chain(absent).collect()
}

/// Returns the questions for a name.
pub(super) fn questions(name: &str, random: &mut StdRng) -> Vec<Question> {
    let of = |qtype: &&str| {
        let name = if name.is_empty() { "." } else { name };
        let transport = if random.random_bool(0.2) { " tcp" } else { "" };
        Question::parse(&format!("{name} {qtype}{transport}"))
    };
    TYPES.iter().map(of).collect()
}

/// Returns a name that probably doesn't exist.
pub(super) fn mutated(name: &str, random: &mut StdRng) -> String {
    match random.random_range(0..4) {
        0 => format!("x{name}"),
        1 => format!("x.{name}"),
        2 => name.replacen('.', "x.", 1),
        _ => {
            let mut labels: Vec<String> = name.split('.').map(str::to_owned).collect();
            let at = random.random_range(0..labels.len().saturating_sub(2).max(1));
            labels[at].push('9');
            labels.join(".")
        }
    }
}

pub(super) fn reverse(ip: IpAddr) -> String {
    Name::from(ip).to_ascii().trim_end_matches('.').to_owned()
}
