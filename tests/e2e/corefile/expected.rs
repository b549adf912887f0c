//! The expected differences from CoreDNS, with their reasons.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::compare::Group;
use super::server::Program;
use super::{
    autopath, blocks, cache, etcd, forward, hosts, proxyproto, rewrite, small_plugins, stub_domains,
    template, tsig, views, zone_files,
};

/// A reason for differences from CoreDNS, and the differences that it explains.
pub struct Expected {
    pub reason: &'static str,
    /// The places of the difference; `*` matches any text.
    ///
    /// - Group, query as in its table, and fields; a repeated query has ` #2`, ` #3` and so on at its end.
    /// - `metrics`, name and labels, and the kind of difference: `lacking`, `more`, `described` or `value`.
    /// - `log`, the line, and the only program that writes the line: `CoreDNS` or `lb-linker`.
    /// - `dnstap`, the message, and the only program that sends it; `geoip`, as `log`.
    pub at: &'static [(&'static str, &'static str, &'static str)],
}

pub const EXPECTED: &[Expected] = &[
    Expected {
        reason: "Every answer repeats the question if it could be read (RFC 1035 section 4.1), also an \
                 answer with NOTIMP. CoreDNS leaves the question out of NOTIMP.",
        at: &[
            ("forward", "* opcode=*", "question"),
            ("whoami", "* opcode=5", "question"),
            ("blocks: the longest zone wins", "* opcode=5", "question"),
        ],
    },
    Expected {
        reason: "NOTIFY gets NOTIMP in a block without *secondary*, like every opcode other than QUERY. CoreDNS answers it \
                 like a query.",
        at: &[("whoami", "* opcode=4", "rcode flags additional")],
    },
    Expected {
        reason: "Without *transfer*, zone transfers are refused before any plugin is asked. CoreDNS answers them \
                 like queries.",
        at: &[("whoami", "* AXFR*", "rcode flags additional")],
    },
    Expected {
        reason: "Queries for OPT and TSIG get NOTIMP: these records belong to a message and not to a name \
                 (RFC 6891 section 6.1.1, RFC 8945 section 5.1). CoreDNS looks them up.",
        at: &[
            ("forward", "* TYPE41", "rcode flags authority"),
            ("forward", "* TYPE250", "rcode flags authority"),
        ],
    },
    Expected {
        reason: "An answer spells its names as the question does (RFC 4343 section 4.1; RFC 1035 section \
                 4.1.4: one name is written once). CoreDNS spells them as its data or the upstream does.",
        at: &[
            ("forward", "MIXED.eXample.ORG. A case", "answer authority"),
            ("forward: odd answers", "LoWer.odd. A case", "answer"),
            ("hosts: file", "ONE.tEST. A case", "answer"),
            ("cache", "A.Example.ORG. A case", "answer authority"),
            ("cache", "LoWer.odd. A case*", "answer"),
            ("cache", "lower.ODD. A case", "answer"),
        ],
    },
    Expected {
        reason: "No UDP answer has more than 1232 bytes, so that none is fragmented, unless *bufsize* \
                 allows more. CoreDNS sends up to the size that the client announces. Answers ignore path \
                 MTU information from ICMP (IP_PMTUDISC_OMIT), so forged ICMP can't cause fragments. If a \
                 link has an MTU below 1280, lower the size with *bufsize*.",
        at: &[
            ("forward", "huge.example.org. A edns=4096*", "answer authority flags"),
            ("forward", "huge.example.org. A edns=65535", "answer authority flags"),
            ("forward", "giant.example.org. TXT edns=4096*", "answer"),
        ],
    },
    Expected {
        reason: "A signed answer by UDP is no longer than the client takes. CoreDNS adds the signature to an \
                 answer that may have that length already.",
        at: &[("tsig", "big.example.org. A key=xfr.test.", "answer")],
    },
    Expected {
        reason: "A name with keys of *etcd* at or below its path exists, also without a key that has CNAME or PTR \
                 records, and so does the zone (RFC 8020). CoreDNS answers NXDOMAIN.",
        at: &[
            ("etcd", "server1.prod.region1.skydns.test. CNAME", "rcode"),
            ("etcd", "server1.prod.region1.skydns.test. PTR", "rcode"),
            ("etcd", "nginx.example.test. CNAME", "rcode"),
            ("etcd", "skydns.test. CNAME", "rcode"),
            ("etcd", "skydns_zonea.test. NS", "rcode"),
            ("etcd", "void.test. *", "rcode"),
        ],
    },
    Expected {
        reason: "In a zone of *etcd* only the zone has an SOA record. CoreDNS answers with it for every name, also \
                 for one that doesn't exist.",
        at: &[
            ("etcd", "server1.prod.region1.skydns.test. SOA", "answer authority"),
            ("etcd", "doesnotexist.skydns.test. SOA", "rcode answer authority"),
        ],
    },
    Expected {
        reason: "The address with an MX record of *etcd* belongs to its target, also with `targetstrip`. CoreDNS gives it \
                 the name of the key.",
        at: &[("etcd", "skydns.test. MX", "additional"), ("etcd", "mx4.skydns.test. MX", "additional")],
    },
    Expected {
        reason: "A key of *etcd* whose value can't be a record leaves other keys in place, and SERVFAIL for it has no \
                 SOA record. CoreDNS fails for all names above it.",
        at: &[
            ("etcd", "wrong.test. A", "rcode answer authority"),
            ("etcd", "bad.wrong.test. A", "flags authority"),
        ],
    },
    Expected {
        reason: "An extended error is sent only to clients that sent EDNS (RFC 6891 section 7). CoreDNS \
                 adds EDNS for it.",
        at: &[
            ("acl", "*", "opt"),
            ("autopath", "block.first.test. A", "opt"),
            ("proxyproto", "* proxy=v2/192.0.2.9", "opt"),
            ("all of them", "x.refused.example.org. A", "opt"),
            ("template", "foo.invalid. *", "opt"),
            ("template", "invalid. SOA", "opt"),
            ("blocks: the plugins' order isn't the Corefile's", "* TXT", "opt"),
        ],
    },
    Expected {
        reason: "Without *nsid*, the answer to a query with an NSID option has no NSID option. CoreDNS returns \
                 an empty option, and one record less.",
        at: &[("bufsize", "huge.example.org. A edns=4096 nsid", "answer")],
    },
    Expected {
        reason: "An alias that a name in the first search domain has itself is answered once, and the search domain \
                 itself is answered, too. CoreDNS's *autopath* adds the alias a second time, and fails for the domain.",
        at: &[
            ("autopath", "*alias.first.test. A", "answer"),
            ("autopath", "first.test. A", "rcode flags answer"),
        ],
    },
    Expected {
        reason: "RD and CD are copied from the question into the answer (RFC 1035 section 4.1.1, RFC 4035 \
                 section 3.2.2). CoreDNS copies them from the upstream's answer.",
        at: &[
            ("forward: odd answers", "nord.odd. A", "flags"),
            ("forward: odd answers", "cd.odd. A", "flags"),
            ("cache", "cd.odd. A", "flags"),
        ],
    },
    Expected {
        reason: "Upstreams get the options of *rewrite*, and none of the client's.",
        at: &[("rewrite: edns0", "options.replace.test. TXT edns option=65009:ff", "answer")],
    },
    Expected {
        reason: "An IPv4 address in the PROXY header of a datagram is one, for *acl* and *whoami*, too. CoreDNS takes it as \
                 IPv4-mapped IPv6.",
        at: &[
            ("proxyproto", "a. A proxy=v2/192.0.2.7*", "additional"),
            ("proxyproto", "a. A port2 proxy=v2/192.0.2.7", "additional"),
        ],
    },
    Expected {
        reason: "A query without EDNS gets an answer without EDNS (RFC 6891 section 7). CoreDNS sends the EDNS that its \
                 *rewrite* added to the query.",
        at: &[("rewrite: edns0", "* TXT", "opt"), ("rewrite: edns0", "* TXT tcp", "opt")],
    },
    Expected {
        reason: "AD is set only for clients that set AD or DO (RFC 6840 section 5.8). Without *cache*, \
                 CoreDNS copies AD from the upstream's answer.",
        at: &[
            ("forward: odd answers", "ad.odd. A", "flags"),
            ("forward: odd answers", "ad.odd. A cd", "flags"),
            ("log", "*A IN ad.odd. * NOERROR qr,rd,ra,ad *", "CoreDNS"),
            ("log", "*A IN ad.odd. * NOERROR qr,rd,ra 46 *", "lb-linker"),
        ],
    },
    Expected {
        reason: "An upstream's answer that was truncated by UDP is asked for again by TCP, also without \
                 *prefer_udp*, and then kept by *cache*.",
        at: &[
            ("forward: odd answers", "cut.odd. A", "answer flags"),
            ("forward: odd answers", "large.odd. A*", "answer"),
            ("forward: odd answers", "some.odd. A*", "flags"),
            ("cache", "cut.odd. A*", "answer flags"),
            ("cache", "some.odd. A*", "flags"),
            ("log", "*A IN big.example.org. udp * NOERROR qr,aa,tc,rd,ra 932 *", "CoreDNS"),
            ("log", "*A IN big.example.org. udp * NOERROR qr,aa,tc,rd,ra 1352 *", "lb-linker"),
        ],
    },
    Expected {
        reason: "*cache* keeps a denial for the lesser of the TTL of its SOA record and the MINIMUM field of \
                 this record (RFC 2308 section 5), and all records of the answer get this TTL. CoreDNS \
                 ignores MINIMUM.",
        at: &[
            ("cache", "x.denied.test. A*", "ttl"),
            ("cache", "brief.odd. A*", "ttl"),
            ("cache: TTLs", "nowhere.cluster.local. A*", "ttl"),
            ("cache: disable", "x.denied.test. A*", "ttl"),
        ],
    },
    Expected {
        reason: "Mismatched responses of an upstream are ignored as possible spoofing. If no other response \
                 comes, the query fails with SERVFAIL. CoreDNS answers with FORMERR.",
        at: &[
            ("forward: odd answers", "other.odd. A", "rcode"),
            ("cache", "other.odd. A*", "rcode"),
            ("log", "*A IN other.odd. * FORMERR *", "CoreDNS"),
            ("log", "*A IN other.odd. * SERVFAIL *", "lb-linker"),
            ("log", "plugin/errors: 2 other.odd. A: read udp * i/o timeout", "lb-linker"),
        ],
    },
    Expected {
        reason: "A query for the DS of a zone goes to the block of the nearest zone above it (RFC 4035 \
                 section 3.1.4.1), and one for the DS of a name in a zone to the block of this zone. CoreDNS \
                 chooses the block of the farthest zone.",
        at: &[(
            "blocks: the longest zone wins",
            "*deep.sub.example.org. DS",
            "flags answer authority additional",
        )],
    },
    Expected {
        reason: "*file*: the SOA record of a denial has the lesser of its TTL and its MINIMUM field as TTL (RFC 2308 \
                 section 3). CoreDNS gives the TTL of the SOA record.",
        at: &[("file", "none.example.net. A", "ttl")],
    },
    Expected {
        reason: "*file*: a CNAME whose target lacks the type is answered with the SOA record of the target's \
                 zone (RFC 2308 section 2.2). CoreDNS adds its own NS records, or its own SOA record for a target \
                 in another zone.",
        at: &[
            ("file", "www.example.org. TYPE999", "authority"),
            ("file", "toempty.example.org. A", "authority"),
            ("file", "none.away.example.org. A", "authority"),
            ("file", "outnone.example.org. A", "authority"),
            ("file", "outside.example.org. AAAA", "authority"),
        ],
    },
    Expected {
        reason: "*file*: a record that the file has twice is answered once (RFC 2181 section 5), and so is each \
                 alias of a loop. CoreDNS repeats them.",
        at: &[
            ("file", "multi.example.org. A", "answer"),
            ("file", "one.example.org. A", "answer"),
            ("file", "self.example.org. A", "answer"),
            ("file", "x.trip.example.org. A", "answer"),
        ],
    },
    Expected {
        reason: "*file*: a query for ANY gets the records of one type (RFC 8482 section 4.1). CoreDNS answers that \
                 there are none.",
        at: &[
            ("file", "example.org. ANY", "answer authority"),
            ("file", "multi.example.org. ANY", "answer authority"),
        ],
    },
    Expected {
        reason: "*file*: a wildcard isn't used for a name that has names below it, nor below such a name (RFC 4592 \
                 section 2.2.2), and NSEC records prove all of a denial (RFC 4035 section 3.1.3). CoreDNS uses the \
                 wildcard, leaves proofs out, and gives the signature of a synthesized CNAME the wildcard's owner.",
        at: &[("file", "y.wild.example.org. A", "answer authority")],
    },
    Expected {
        reason: "*file*: the origin of a zone exists, also if there are no other names; CoreDNS answers that it doesn't.",
        at: &[("file", "lone.test. A", "rcode")],
    },
    Expected {
        reason: "*file*: DNAME records that lead in a circle are answered with the CNAME records that they make; \
                 CoreDNS answers SERVFAIL. A query for NSEC gets the record of a name with a CNAME record (RFC 4035 \
                 section 2.5); CoreDNS follows the CNAME.",
        at: &[
            ("file", "x.round.example.org. A", "rcode flags answer authority"),
            ("file", "x.trip.example.org. A", "rcode"),
            ("file", "signed.example.org. NSEC", "answer authority"),
        ],
    },
    Expected {
        reason: "An answer of *dns64* has the flags of the answer to the query for A, except AD. If that has no A \
                 records, the answer for AAAA stays as it is, also an error; and so it does for clients with DO and CD \
                 (RFC 6147 section 5.5). CoreDNS clears AA and RA, answers with NOERROR, and ignores CD.",
        at: &[
            ("dns64", "* AAAA*", "flags"),
            ("dns64", "* AAAA edns do cd", "answer authority"),
            ("dns64", "x.servfail.test. AAAA", "rcode"),
        ],
    },
    Expected {
        reason: "There are no metrics of Go's runtime (`go_*`).",
        at: &[("metrics", "go_*", "lacking")],
    },
    Expected {
        reason: "Metrics that begin with `lb_linker_` are lb-linker's own.",
        at: &[("metrics", "lb_linker_*", "more")],
    },
    Expected {
        reason: "Metrics of the process differ a little between Prometheus's libraries for Go and Rust.",
        at: &[
            ("metrics", "process_network_*", "lacking"),
            ("metrics", "process_virtual_memory_max_bytes", "lacking"),
            ("metrics", "process_threads", "more"),
        ],
    },
    Expected {
        reason: "`coredns_build_info` has lb-linker's version.",
        at: &[
            ("metrics", "coredns_build_info{goversion=\"go*", "lacking"),
            ("metrics", "coredns_build_info{goversion=\"\",*", "more"),
        ],
    },
    Expected {
        reason: "In `coredns_dns_responses_total` the label *plugin* names the plugin that answered. \
                 CoreDNS 1.14 names the first plugin behind *prometheus*.",
        at: &[("metrics", "coredns_dns_responses_total{*", "lacking more value")],
    },
    Expected {
        reason: "In `coredns_dns_response_size_bytes` an answer has the size of its message on the wire, \
                 also if a plugin only gives a response code. CoreDNS counts what a plugin wrote, \
                 compressed or not, and 0 if no plugin wrote anything.",
        at: &[("metrics", "coredns_dns_response_size_bytes_*", "value")],
    },
    Expected {
        reason: "`coredns_cache_entries`: *cache* keeps the failure of all upstreams for a second (RFC 9520), \
                 and keeps TCP answers to queries whose UDP answer was truncated.",
        at: &[("metrics", "coredns_cache_entries{*", "value")],
    },
    Expected {
        reason: "`coredns_proxy_conn_cache_hits_total` is there from the start. CoreDNS shows it after the \
                 first hit.",
        at: &[("metrics", "coredns_proxy_conn_cache_hits_total{*", "more")],
    },
    Expected {
        reason: "In log lines *size* is the size of the query as received. CoreDNS counts what its library \
                 would send, and miscounts options that it doesn't know.",
        at: &[
            ("log", "*A IN i.common.test. udp 42 false*", "CoreDNS"),
            ("log", "*A IN i.common.test. udp 47 false*", "lb-linker"),
        ],
    },
    Expected {
        reason: "In log lines *rsize* is the size without EDNS, which is added for each client later. \
                 CoreDNS includes the EDNS of upstreams and of extended errors.",
        at: &[
            ("log", "*A IN x.block.test. udp 30 false 512\" REFUSED qr,rd 47 *", "CoreDNS"),
            ("log", "*A IN x.block.test. udp 30 false 512\" REFUSED qr,rd 30 *", "lb-linker"),
            ("log", "*A IN big.example.org. tcp 44 false 65535\" NOERROR qr,aa,rd,ra 1363 *", "CoreDNS"),
            ("log", "*A IN big.example.org. tcp 44 false 65535\" NOERROR qr,aa,rd,ra 1352 *", "lb-linker"),
        ],
    },
    Expected {
        reason: "*dnstap*: an answer that only has an error code is a CLIENT_RESPONSE, too. CoreDNS sends none.",
        at: &[
            ("dnstap", "1 CLIENT_RESPONSE *x.fail.test*", "lb-linker"),
            ("dnstap", "1 CLIENT_RESPONSE *x.dead*", "lb-linker"),
        ],
    },
    Expected {
        reason: "*geoip*: a label whose value has a wrong type in the database isn't known. CoreDNS then knows none.",
        at: &[
            ("geoip", "[INFO] b.wrong.test. -|-", "CoreDNS"),
            ("geoip", "[INFO] b.wrong.test. -|", "lb-linker"),
        ],
    },
    Expected {
        reason: "The error about an invalid record of *template* has lb-linker's own text.",
        at: &[
            ("log", "plugin/errors: 2 * A: dns: bad A A: *", "CoreDNS"),
            ("log", "plugin/errors: 2 * A: template: * is no record: *", "lb-linker"),
        ],
    },
];

/// Returns docs/differences.md with the reasons of all expected differences.
fn page() -> String {
    let mut page = String::from(
        "# Differences from CoreDNS\n\nlb-linker's tests send the same Corefiles and queries to \
         lb-linker and to CoreDNS 1.14, and compare the answers,\nthe metrics and the log lines. These \
         differences remain. Differences in the options of a plugin are in its \
         manual:\n[plugins.md](plugins.md). The plugins *lb_linker* and *clients* are lb-linker's \
         own; *k8s_gateway* has the rules\nof an external plugin. CoreDNS's plugins *azure*, *clouddns*, *dnssec*, \
         *https3*, *nomad*, *on*, *route53*, *sign* and\n*trace* aren't here; the error about such a line says \
         what to do instead.\n\n",
    );
    for Expected { reason, .. } in EXPECTED {
        let _ = writeln!(page, "- {reason}");
    }
    page
}

#[test]
fn differences_page_matches_the_expected_differences() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/differences.md");
    if std::env::var_os("LB_LINKER_WRITE_DOCS").is_some() {
        std::fs::write(path, page()).unwrap();
    }
    let found = std::fs::read_to_string(path).unwrap_or_default();
    assert!(found == page(), "docs/differences.md differs from EXPECTED: run `make docs`");
}

/// The position of a line in [`EXPECTED`]: the entry and the index in `at`.
type At = (usize, usize);

fn all() -> impl Iterator<Item = (At, &'static (&'static str, &'static str, &'static str))> {
    let lines = |(entry, expected): (usize, &'static Expected)| {
        expected.at.iter().enumerate().map(move |(line, at)| ((entry, line), at))
    };
    EXPECTED.iter().enumerate().flat_map(lines)
}

/// The expected differences of some groups, and which of these differences have occurred.
pub struct Expectations<'a> {
    groups: Vec<&'a str>,
    occurred: BTreeSet<At>,
    errors: String,
}

impl<'a> Expectations<'a> {
    pub fn of(groups: impl IntoIterator<Item = &'a str>) -> Self {
        Self { groups: groups.into_iter().collect(), occurred: BTreeSet::new(), errors: String::new() }
    }

    pub fn has(group: &str, what: &str, how: &str) -> bool {
        matching(group, what, how).next().is_some()
    }

    pub fn record(&mut self, group: &str, what: &str, how: &str, sides: &str) {
        let mut matching = matching(group, what, how).peekable();
        if matching.peek().is_none() {
            let _ = writeln!(self.errors, "{group}: {what}: {how}\n{sides}");
        }
        self.occurred.extend(matching);
    }

    /// Fails if there was an unexpected difference, or an expected difference is missing.
    pub fn check(mut self) {
        let here = all().filter(|(_, (group, _, _))| self.groups.contains(group));
        for (at, line) in
            here.filter(|(at, _)| !self.occurred.contains(at) && Program::subject() == Program::Linker)
        {
            let reason = EXPECTED[at.0].reason;
            let _ = writeln!(
                self.errors,
                "{line:?}: this expected difference doesn't occur any more; its reason was: {reason}"
            );
        }
        assert!(self.errors.is_empty(), "\n{}", self.errors);
    }
}

/// Returns the positions of all lines that match a difference.
fn matching(group: &str, what: &str, how: &str) -> impl Iterator<Item = At> {
    all()
        .filter(move |(_, (in_group, pattern, hows))| {
            *in_group == group && glob(pattern, what) && hows.split(' ').any(|known| known == how)
        })
        .map(|(at, _)| at)
}

fn glob(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((start, rest)) => text.strip_prefix(start).is_some_and(|text| {
            rest.is_empty() || (0..=text.len()).any(|at| text.is_char_boundary(at) && glob(rest, &text[at..]))
        }),
    }
}

#[test]
fn star_in_a_pattern_matches_any_text() {
    for (pattern, text, matches) in [
        ("a. A", "a. A", true),
        ("a. A", "a. A tcp", false),
        ("a. A*", "a. A tcp", true),
        ("*", "", true),
        ("* A #2", "b. A #2", true),
        ("* A #2", "b. A #3", false),
    ] {
        assert_eq!(glob(pattern, text), matches, "{pattern} {text}");
    }
}

#[test]
fn every_expected_difference_names_an_existing_group() {
    let modules: [&[Group]; 13] = [
        autopath::GROUPS,
        blocks::GROUPS,
        cache::GROUPS,
        forward::GROUPS,
        small_plugins::GROUPS,
        hosts::GROUPS,
        proxyproto::GROUPS,
        rewrite::GROUPS,
        stub_domains::GROUPS,
        template::GROUPS,
        tsig::GROUPS,
        views::GROUPS,
        zone_files::GROUPS,
    ];
    let groups: Vec<&str> = modules.iter().flat_map(|groups| groups.iter().map(|group| group.name)).collect();
    let names: BTreeSet<&str> =
        groups.iter().copied().chain(["metrics", "log", "dnstap", "geoip", etcd::GROUP]).collect();
    assert_eq!(names.len(), groups.len() + 5, "two groups have the same name");
    for (_, (group, _, _)) in all() {
        assert!(names.contains(group), "{group}");
    }
}
