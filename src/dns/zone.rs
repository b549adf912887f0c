//! What a zone answers: a pure function of the store, the name and the type.

use std::net::IpAddr;
use std::sync::Arc;

use hickory_proto::ProtoError;
use hickory_proto::op::ResponseCode;
use hickory_proto::rr::rdata::{A, AAAA, CNAME, NS, SOA};
use hickory_proto::rr::{Name, RData, Record, RecordType};

use super::wire::Ede;
use crate::names;
use crate::store::{Found, Link, Store, Target};

/// Seconds that caches keep our records, and (RFC 2308) the absence of one.
pub const TTL: u32 = 5;
/// SOA timers for secondaries, in seconds: refresh, retry, expire (RFC 1035 section 3.3.13).
const TIMERS: (i32, i32, i32) = (7200, 1800, 86400);

/// A zone that lb-linker is authoritative for.
#[derive(Clone, Debug)]
pub struct Zone {
    origin: Name,
    /// The origin as the store's index writes names.
    wire: Box<[u8]>,
    name_server: Name,
    hostmaster: Name,
    /// The addresses of `ns.dns.<zone>`.
    addresses: Vec<IpAddr>,
}

/// A zone's answer to one question.
#[derive(Debug)]
pub struct ZoneAnswer {
    /// The response code.
    pub rcode: ResponseCode,
    /// The answer section.
    pub answers: Vec<Record>,
    /// The authority section.
    pub authorities: Vec<Record>,
    /// The additional section.
    pub additionals: Vec<Record>,
    /// The name that a CNAME in the answer leads to, if its addresses were asked for.
    pub chase: Option<Name>,
    /// Why it isn't an answer.
    pub ede: Option<Ede>,
    /// The link whose name it is.
    pub link: Option<Arc<Link>>,
}

impl Zone {
    /// Returns the zone of that origin, whose name server has these addresses.
    ///
    /// # Errors
    /// If the origin is too long for names below it.
    pub fn new(origin: &Name, addresses: Vec<IpAddr>) -> Result<Self, ProtoError> {
        let mut origin = origin.to_lowercase();
        origin.set_fqdn(true);
        let below = |labels: &str| Name::from_ascii(labels)?.append_domain(&origin);
        let wire = names::wire(origin.iter()).unwrap_or_default().into();
        Ok(Self { name_server: below("ns.dns")?, hostmaster: below("hostmaster")?, wire, origin, addresses })
    }

    /// Returns the zone's origin.
    #[must_use]
    pub fn origin(&self) -> &Name {
        &self.origin
    }

    /// Returns the part of `name` below the origin, as [`names::wire`] writes it, if `name` is in
    /// the zone.
    #[must_use]
    pub fn relative(&self, name: &Name) -> Option<Vec<u8>> {
        let labels: Vec<&[u8]> = name.iter().collect();
        let below = labels.len().checked_sub(self.origin.iter().count())?;
        let ends_in_origin = labels[below..]
            .iter()
            .zip(self.origin.iter())
            .all(|(label, origin)| label.eq_ignore_ascii_case(origin));
        if ends_in_origin { names::wire(labels[..below].iter().copied()) } else { None }
    }

    /// Answers the question for `name`, written as the client wrote it, of type `qtype`.
    #[must_use]
    pub fn answer(&self, store: &Store, name: &Name, relative: &[u8], qtype: RecordType) -> ZoneAnswer {
        // Asked before the look-up: a name that is added in between must not seem to be missing.
        let synced = store.is_synced();
        let reserved = is_reserved(relative);
        let found = match relative {
            b"" | b"\x03dns" | b"\x02ns\x03dns" => Found::EmptyNonTerminal,
            _ if reserved => Found::Nothing,
            relative => store.find(relative, &self.wire),
        };
        if !synced && !reserved && !matches!(found, Found::Link(_)) {
            return ZoneAnswer { ede: Some(Ede::NOT_READY), ..ZoneAnswer::new(ResponseCode::ServFail) };
        }
        let mut answer = ZoneAnswer::new(ResponseCode::NoError);
        match (relative, found) {
            (b"", _) => self.apex(store, name, qtype, &mut answer),
            (b"\x02ns\x03dns", _) => answer.answers = addresses(name, TTL, &self.addresses, qtype),
            (_, Found::Nothing) => answer.rcode = ResponseCode::NXDomain,
            (_, Found::EmptyNonTerminal) => {}
            (_, Found::Link(link)) => {
                self.link(&link, name, qtype, &mut answer);
                answer.link = Some(link);
            }
        }
        if answer.answers.is_empty() {
            // RFC 2308 sections 2.1 and 2.2: no such name and no such data come with the SOA.
            answer.authorities.push(self.soa(store));
        }
        answer
    }

    fn link(&self, link: &Link, name: &Name, qtype: RecordType, answer: &mut ZoneAnswer) {
        match (&link.target, link.wishes.ttl.unwrap_or(TTL)) {
            (None, _) => {}
            (Some(Target::Addresses(ips)), ttl) => answer.answers = addresses(name, ttl, ips, qtype),
            // RFC 1034 section 3.6.2: whatever was asked, the answer is the CNAME. Only who asks for it by
            // name (RFC 8482 for ANY) doesn't want what is behind it.
            (Some(Target::Hostname(host)), ttl) => {
                answer.answers.push(record(name, ttl, RData::CNAME(CNAME(host.clone()))));
                if !matches!(qtype, RecordType::CNAME | RecordType::ANY) {
                    answer.chase = Some(host.clone());
                }
            }
        }
    }

    fn apex(&self, store: &Store, name: &Name, qtype: RecordType, answer: &mut ZoneAnswer) {
        match qtype {
            RecordType::SOA | RecordType::ANY => {
                let mut soa = self.soa(store);
                soa.name = name.clone();
                answer.answers.push(soa);
            }
            RecordType::NS => {
                answer.answers.push(record(name, TTL, RData::NS(NS(self.name_server.clone()))));
                for qtype in [RecordType::A, RecordType::AAAA] {
                    answer.additionals.extend(addresses(&self.name_server, TTL, &self.addresses, qtype));
                }
            }
            _ => {}
        }
    }

    fn soa(&self, store: &Store) -> Record {
        let (refresh, retry, expire) = TIMERS;
        let soa = SOA::new(
            self.name_server.clone(),
            self.hostmaster.clone(),
            store.serial(),
            refresh,
            retry,
            expire,
            TTL,
        );
        record(&self.origin, TTL, RData::SOA(soa))
    }
}

impl ZoneAnswer {
    fn new(rcode: ResponseCode) -> Self {
        Self {
            rcode,
            answers: Vec::new(),
            authorities: Vec::new(),
            additionals: Vec::new(),
            chase: None,
            ede: None,
            link: None,
        }
    }
}

/// Whether a relative name is one that no link may have: its domain below the zone is reserved.
fn is_reserved(relative: &[u8]) -> bool {
    let mut rest = relative;
    let mut last: &[u8] = b"";
    while let Some((length, tail)) = rest.split_first() {
        let (label, tail) = tail.split_at(usize::from(*length).min(tail.len()));
        (last, rest) = (label, tail);
    }
    std::str::from_utf8(last).is_ok_and(names::is_reserved)
}

fn record(name: &Name, ttl: u32, data: RData) -> Record {
    Record::from_rdata(name.clone(), ttl, data)
}

/// Returns the addresses as records of the type that was asked for; of ANY the first family that
/// there is (RFC 8482 section 4.1).
fn addresses(name: &Name, ttl: u32, ips: &[IpAddr], qtype: RecordType) -> Vec<Record> {
    let of_type = |qtype| -> Vec<Record> {
        ips.iter()
            .filter_map(|ip| match (ip, qtype) {
                (IpAddr::V4(ip), RecordType::A) => Some(RData::A(A(*ip))),
                (IpAddr::V6(ip), RecordType::AAAA) => Some(RData::AAAA(AAAA(*ip))),
                _ => None,
            })
            .map(|data| record(name, ttl, data))
            .collect()
    };
    if qtype != RecordType::ANY {
        return of_type(qtype);
    }
    let ipv4 = of_type(RecordType::A);
    if ipv4.is_empty() { of_type(RecordType::AAAA) } else { ipv4 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Departed, Ingress, Observed, ServiceKey, Wishes};

    fn name(text: &str) -> Name {
        Name::from_ascii(text).unwrap()
    }

    fn zone() -> Zone {
        Zone::new(&name("LB.internal."), vec!["192.0.2.53".parse().unwrap()]).unwrap()
    }

    fn link(namespace: &str, service: &str, hostnames: &[&str], ips: &[&str]) -> Observed {
        Observed {
            key: ServiceKey::new(namespace, service),
            uid: "u".into(),
            created: None,
            resource_version: Some(42),
            ingress: Ingress {
                hostnames: hostnames.iter().map(|host| name(host)).collect(),
                addresses: ips.iter().map(|ip| ip.parse().unwrap()).collect(),
            },
            ports: vec![],
            wishes: Wishes::default(),
            refused: false,
            guarded: false,
        }
    }

    fn with_ttl(ttl: u32, link: Observed) -> Observed {
        Observed { wishes: Wishes { ttl: Some(ttl), ..Default::default() }, ..link }
    }

    fn store() -> Store {
        let store = Store::new(Departed::Kept);
        store.replace(
            None,
            vec![
                link("default", "host", &["a.example."], &[]),
                link("default", "ips", &[], &["192.0.2.1", "2001:db8::1", "192.0.2.2"]),
                link("default", "six", &[], &["2001:db8::6"]),
                link("default", "pending", &[], &[]),
            ],
            vec![],
            &Default::default(),
        );
        store.set_synced();
        store
    }

    /// Question → rcode, then the sections, in the zone's master file form.
    fn ask(store: &Store, question: &str) -> String {
        let (qname, qtype) = question.split_once(' ').unwrap();
        let (qname, zone) = (name(qname), zone());
        let relative = zone.relative(&qname).unwrap();
        let answer = zone.answer(store, &qname, &relative, qtype.parse().unwrap());
        let sections = [&answer.answers, &answer.authorities, &answer.additionals];
        let records = sections
            .iter()
            .map(|section| section.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "));
        let chase = answer.chase.map(|host| format!(" → {host}")).unwrap_or_default();
        let ede = answer.ede.map(|ede| format!(" EDE {}", ede.code)).unwrap_or_default();
        format!("{:?}{chase}{ede} | {}", answer.rcode, records.collect::<Vec<_>>().join(" | "))
    }

    const SOA_RECORD: &str =
        "lb.internal. 5 IN SOA ns.dns.lb.internal. hostmaster.lb.internal. 42 7200 1800 86400 5";

    #[test]
    fn questions_and_answers() {
        let store = store();
        let nodata = format!("NoError |  | {SOA_RECORD} | ");
        let nxdomain = format!("NXDomain |  | {SOA_RECORD} | ");
        let table: &[(&str, &str)] = &[
            (
                "host-default.lb.internal. CNAME",
                "NoError | host-default.lb.internal. 5 IN CNAME a.example. |  | ",
            ),
            (
                "host.default.lb.internal. CNAME",
                "NoError | host.default.lb.internal. 5 IN CNAME a.example. |  | ",
            ),
            (
                "host-default.lb.internal. A",
                "NoError → a.example. | host-default.lb.internal. 5 IN CNAME a.example. |  | ",
            ),
            (
                "HOST-Default.lb.INTERNAL. TXT",
                "NoError → a.example. | HOST-Default.lb.INTERNAL. 5 IN CNAME a.example. |  | ",
            ),
            (
                "host-default.lb.internal. ANY",
                "NoError | host-default.lb.internal. 5 IN CNAME a.example. |  | ",
            ),
            (
                "ips-default.lb.internal. A",
                "NoError | ips-default.lb.internal. 5 IN A 192.0.2.1, ips-default.lb.internal. 5 IN A 192.0.2.2 |  | ",
            ),
            (
                "ips.default.lb.internal. AAAA",
                "NoError | ips.default.lb.internal. 5 IN AAAA 2001:db8::1 |  | ",
            ),
            (
                "six-default.lb.internal. ANY",
                "NoError | six-default.lb.internal. 5 IN AAAA 2001:db8::6 |  | ",
            ),
            ("six-default.lb.internal. A", &nodata),
            ("ips-default.lb.internal. CNAME", &nodata),
            ("pending-default.lb.internal. A", &nodata),
            ("default.lb.internal. A", &nodata),
            ("other.lb.internal. A", &nxdomain),
            ("x.host.default.lb.internal. A", &nxdomain),
            ("dns.lb.internal. A", &nodata),
            ("ns.dns.lb.internal. A", "NoError | ns.dns.lb.internal. 5 IN A 192.0.2.53 |  | "),
            ("ns.dns.lb.internal. AAAA", &nodata),
            ("x.dns.lb.internal. A", &nxdomain),
            ("deleted.lb.internal. A", &nxdomain),
            ("x.deleted.lb.internal. CNAME", &nxdomain),
            (
                "lb.internal. NS",
                "NoError | lb.internal. 5 IN NS ns.dns.lb.internal. |  | ns.dns.lb.internal. 5 IN A 192.0.2.53",
            ),
            ("lb.internal. A", &nodata),
        ];
        for (question, expected) in table {
            assert_eq!(ask(&store, question), *expected, "{question}");
        }
        for question in ["lb.internal. SOA", "lb.internal. ANY"] {
            assert_eq!(ask(&store, question), format!("NoError | {SOA_RECORD} |  | "));
        }
    }

    #[test]
    fn a_link_may_have_a_ttl_of_its_own_and_absence_never_has() {
        let store = store();
        store.apply(with_ttl(60, link("default", "host", &["a.example."], &[])));
        store.apply(with_ttl(0, link("default", "six", &[], &["2001:db8::6"])));
        assert_eq!(
            ask(&store, "host-default.lb.internal. CNAME"),
            "NoError | host-default.lb.internal. 60 IN CNAME a.example. |  | "
        );
        assert!(ask(&store, "six-default.lb.internal. AAAA").contains(" 0 IN AAAA 2001:db8::6"));
        assert_eq!(ask(&store, "six-default.lb.internal. A"), format!("NoError |  | {SOA_RECORD} | "));
    }

    #[test]
    fn before_the_first_list_only_what_is_known_is_answered() {
        let store = Store::new(Departed::Kept);
        let not_ready = "ServFail EDE 14 |  |  | ";
        for question in ["web-default.lb.internal. A", "lb.internal. SOA"] {
            assert_eq!(ask(&store, question), not_ready);
        }
        assert!(ask(&store, "deleted.lb.internal. A").starts_with("NXDomain"), "never depends on links");
        store.apply(link("default", "web", &["a.example."], &[]));
        assert!(ask(&store, "web-default.lb.internal. CNAME").starts_with("NoError | web-default"));
        assert_eq!(ask(&store, "default.lb.internal. A"), not_ready);
    }

    #[test]
    fn a_name_that_is_listed_while_it_is_looked_up_is_never_denied() {
        let zone = zone();
        let qname = name("web-default.lb.internal.");
        let relative = zone.relative(&qname).unwrap();
        for _ in 0..2_000 {
            let store = Store::new(Departed::Kept);
            std::thread::scope(|scope| {
                let asking = scope.spawn(|| {
                    loop {
                        match zone.answer(&store, &qname, &relative, RecordType::CNAME).rcode {
                            ResponseCode::ServFail => {}
                            rcode => return rcode,
                        }
                    }
                });
                store.apply(link("default", "web", &["a.example."], &[]));
                store.set_synced();
                assert_eq!(asking.join().unwrap(), ResponseCode::NoError);
            });
        }
    }

    #[test]
    fn only_names_at_label_borders_are_in_the_zone() {
        let zone = zone();
        assert_eq!(zone.relative(&name("lb.internal.")).as_deref(), Some(&b""[..]));
        assert_eq!(zone.relative(&name("a.B.lb.Internal.")).as_deref(), Some(&b"\x01a\x01b"[..]));
        for outside in ["internal.", "xlb.internal.", ".", "lb.internal.example."] {
            assert_eq!(zone.relative(&name(outside)), None, "{outside}");
        }
    }
}
