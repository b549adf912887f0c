//! The upstreams of the Corefiles.

use std::fmt::Write as _;

use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::rdata::{A, CNAME, SOA, TXT};
use hickory_proto::rr::{Name, RData, Record};

use super::server::{CorefileDir, Program, Server};
use crate::harness::dns::{FaultyUpstream, address, error};
use crate::harness::port::HeldPort;
use crate::tls::Certificates;

/// The upstreams that CoreDNS and the program under test share.
pub struct Upstreams {
    /// `{$UPSTREAM}`: a real CoreDNS with zones. `{$HTTPS}`, `{$GRPC}`: a part of it by HTTPS, and by gRPC without TLS.
    pub coredns: Server,
    /// `{$CA}`: the CA of its certificate for `dns.example` and 127.0.0.1.
    certificates: Certificates,
    /// `{$ODD}`: an upstream that takes the kind of its answer from the first label of the name.
    pub faulty: FaultyUpstream,
    /// `{$DEAD}`: a port without a server.
    pub dead: HeldPort,
}

impl Upstreams {
    pub async fn start() -> Self {
        let zones = [("db.example.org", &*example_org()), ("db.192", REVERSE), ("db.cluster", CLUSTER)];
        let certificates = Certificates::make();
        let site = CorefileDir::new(CLOUD, &zones)
            .with("CERTIFICATE", certificates.file("tls.crt").display())
            .with("KEY", certificates.file("tls.key").display());
        let coredns = Server::start(Program::CoreDns, &site).await;
        let (faulty, dead) = (FaultyUpstream::start(odd).await, HeldPort::take().unwrap());
        Self { coredns, certificates, faulty, dead }
    }

    /// Sets the variables of a Corefile that have the upstreams' addresses.
    pub fn name(&self, site: CorefileDir) -> CorefileDir {
        let Self { coredns, certificates, faulty, dead } = self;
        let site = site.with("UPSTREAM", coredns.dns()).with("HTTPS", coredns.address("TLS"));
        let site = site.with("GRPC", coredns.address("READY"));
        let site = site.with("CA", certificates.file("ca.crt").display());
        site.with("ODD", faulty.address).with("DEAD", dead.local())
    }
}

const CLOUD: &str = r#"
.:{$PORT} {
    bind 127.0.0.1
    # Like the answers of a resolver, all answers have RA.
    header {
        response set ra
    }
    template ANY ANY servfail.test {
        rcode SERVFAIL
    }
    template ANY ANY refused.test {
        rcode REFUSED
    }
    template ANY ANY notimp.test {
        rcode NOTIMP
    }
    template ANY ANY formerr.test {
        rcode FORMERR
    }
    template ANY ANY denied.test {
        rcode NXDOMAIN
        authority "denied.test 60 IN SOA ns.denied.test root.denied.test 1 7200 1800 86400 30"
    }
    template IN A zero.test {
        answer "{{ .Name }} 0 IN A 192.0.2.1"
    }
    template IN A one.test {
        answer "{{ .Name }} 1 IN A 192.0.2.1"
    }
    template IN A long.test {
        answer "{{ .Name }} 100000 IN A 192.0.2.1"
    }
    template IN A mixed.test {
        match "^x\."
        answer "{{ .Name }} 300 IN CNAME short.mixed.test"
        answer "short.mixed.test 7 IN A 192.0.2.1"
        authority "mixed.test 900 IN NS ns.mixed.test"
        additional "ns.mixed.test 90 IN A 192.0.2.2"
    }
    file db.example.org example.org
    file db.192 2.0.192.in-addr.arpa
    file db.cluster cluster.local
}
(part) {
    bind 127.0.0.1
    header {
        response set ra
    }
    template ANY ANY servfail.test {
        rcode SERVFAIL
    }
    file db.example.org example.org
}
https://.:{$TLS} {
    tls {$CERTIFICATE} {$KEY}
    import part
}
grpc://.:{$READY} {
    import part
}
"#;

const REVERSE: &str = "$ORIGIN 2.0.192.in-addr.arpa.
@  3600 IN SOA ns.example.org. root.example.org. 1 7200 1800 86400 3600
@  3600 IN NS ns.example.org.
10 60 IN PTR a.example.org.
20 60 IN PTR b.example.org.
";

const CLUSTER: &str = "$ORIGIN cluster.local.
@  30 IN SOA ns.dns hostmaster 1 7200 1800 86400 5
@  30 IN NS ns.dns
ns.dns 30 IN A 10.96.0.10
kubernetes.default.svc 5 IN A 10.96.0.1
";

fn example_org() -> String {
    let mut zone = "$ORIGIN example.org.
@       3600 IN SOA ns.example.org. root.example.org. 1 7200 1800 86400 3600
@       3600 IN NS ns
@       3600 IN NS ns2
@        300 IN A 192.0.2.1
@        300 IN MX 10 mail
@        300 IN MX 20 mail2
@        300 IN TXT \"v=spf1 -all\"
@        300 IN CAA 0 issue \"ca.example.net\"
ns      3600 IN A 192.0.2.2
ns2     3600 IN A 192.0.2.3
mail     120 IN A 192.0.2.4
mail     120 IN AAAA 2001:db8::4
mail2    120 IN A 192.0.2.5
a         60 IN A 192.0.2.10
b         60 IN A 192.0.2.20
b         60 IN A 192.0.2.21
b         60 IN A 192.0.2.22
b         60 IN AAAA 2001:db8::20
b         60 IN AAAA 2001:db8::21
v6        60 IN AAAA 2001:db8::30
alias     60 IN CNAME a
chain    600 IN CNAME chain2
chain2   300 IN CNAME b
dangling  60 IN CNAME nowhere
outside   60 IN CNAME host.example.net.
round     60 IN CNAME square
square    60 IN CNAME round
*.wild    60 IN A 192.0.2.30
*.wild    60 IN TXT wild
deep.er.still 60 IN A 192.0.2.31
text      60 IN TXT \"one\" \"two\" \"with \\\"quotes\\\" and \\\\\"
empty     60 IN TXT \"\"
_http._tcp 60 IN SRV 10 50 80 a
_http._tcp 60 IN SRV 20 50 8080 b
sub     3600 IN NS ns.sub
sub     3600 IN NS ns2.sub
sub     3600 IN DS 12345 8 2 49FD46E6C4B45C55D4AC49FD46E6C4B45C55D4AC49FD46E6C4B45C55D4AC0011
ns.sub  3600 IN A 192.0.2.50
ns2.sub 3600 IN A 192.0.2.51
naptr     60 IN NAPTR 100 10 \"S\" \"SIP+D2U\" \"\" _sip._udp.example.org.
sshfp     60 IN SSHFP 1 1 123456789ABCDEF67890123456789ABCDEF67890
_443._tcp 60 IN TLSA 3 1 1 0123456789ABCDEF0123456789ABCDEF0123456789ABCDEF0123456789ABCDEF
svc       60 IN HTTPS 1 . alpn=h2,h3 ipv4hint=192.0.2.60
hinfo     60 IN HINFO cpu os
odd       60 IN TYPE65300 \\# 4 01020304
MiXeD     60 IN A 192.0.2.70
"
    .to_owned();
    // Answers with more than 512 bytes, more than 1,232 bytes and more than 4,096 bytes.
    for (name, number) in [("big", 40), ("huge", 120)] {
        for at in 0..number {
            let _ = writeln!(zone, "{name} 60 IN A 198.51.100.{at}");
        }
    }
    for at in 0..40 {
        let _ = writeln!(zone, "giant 60 IN TXT {at:03}{}", "x".repeat(200));
    }
    zone
}

/// Returns the answer that the first label of the name demands.
fn odd(asked: &Message, tcp: bool) -> Vec<Message> {
    let name = asked.queries[0].name().clone();
    let label = name.iter().next().map(String::from_utf8_lossy).unwrap_or_default().to_ascii_lowercase();
    let mut answer = address(asked, 1, 60);
    answer.metadata.recursion_available = true;
    match &*label {
        "ad" => answer.metadata.authentic_data = true,
        "aa" => answer.metadata.authoritative = true,
        "nora" => answer.metadata.recursion_available = false,
        "lower" => answer.answers.iter_mut().for_each(|record| record.name = record.name.to_lowercase()),
        "alias" => {
            let target = Name::from_ascii("target.odd.").unwrap();
            answer.answers = vec![Record::from_rdata(name, 60, RData::CNAME(CNAME(target)))];
        }
        // Says which EDNS options the query has.
        "options" => {
            let options = asked.edns.iter().flat_map(|edns| edns.options().as_ref()).map(|(code, option)| {
                format!("{}={:02x?}", u16::from(*code), Vec::<u8>::try_from(option).unwrap())
            });
            let text = ["options".to_owned()].into_iter().chain(options).collect();
            answer.answers = vec![Record::from_rdata(name, 60, RData::TXT(TXT::new(text)))];
        }
        "extra" => {
            let other = Name::from_ascii("other.odd.").unwrap();
            answer.add_answer(Record::from_rdata(other.clone(), 60, RData::A(A::new(192, 0, 2, 66))));
            answer.add_additional(Record::from_rdata(other, 60, RData::A(A::new(192, 0, 2, 67))));
        }
        "bare" => answer = error(asked, ResponseCode::NXDomain),
        "empty" => answer = error(asked, ResponseCode::NoError),
        "brief" => {
            answer = error(asked, ResponseCode::NXDomain);
            let names = ["ns.odd.", "root.odd."].map(|name| Name::from_ascii(name).unwrap());
            let [ns, root] = names;
            let soa = RData::SOA(SOA::new(ns, root, 1, 7200, 1800, 86400, 0));
            answer.add_authority(Record::from_rdata(Name::from_ascii("odd.").unwrap(), 60, soa));
        }
        "cut" if !tcp => {
            answer.answers.clear();
            answer.metadata.truncation = true;
        }
        "some" if !tcp => answer.metadata.truncation = true,
        // Its TCP port never answers.
        "deaf" if tcp => return Vec::new(),
        "deaf" => {
            answer.answers.clear();
            answer.metadata.truncation = true;
        }
        // 6.4 KB, also by UDP, whatever size the query allows.
        "large" => {
            let data = |last: u16| RData::A(A::new(198, 51, (last >> 8) as u8, last as u8));
            answer.answers = (0..401).map(|last| Record::from_rdata(name.clone(), 60, data(last))).collect();
        }
        "other" => {
            answer.queries[0].set_name(Name::from_ascii("somebody.odd.").unwrap());
        }
        label => {
            if let Some(code) = label.strip_prefix("rcode-").and_then(|code| code.parse::<u16>().ok()) {
                answer = error(asked, ResponseCode::from((code >> 4) as u8, (code & 15) as u8));
            }
        }
    }
    answer.metadata.recursion_desired = label != "nord" && asked.metadata.recursion_desired;
    answer.metadata.checking_disabled = label == "cd" || asked.metadata.checking_disabled;
    vec![answer]
}
