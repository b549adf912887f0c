//! ExternalDNS's source `crd`.

use super::{ABSENT, EMPTY, Row, row};

const TYPES: &str = "DNSEndpoints have records of all types that `--managed-record-types` has";
const SET_IDENTIFIER: &str = "`setIdentifier` tells records of one name and type apart";

pub(super) const ROWS: &[Row] = &[
    row(
        "docs/sources/crd.md:149: A, with several targets, and recordTTL",
        dns_endpoint!(
            "web",
            "{dnsName: a.$Z, recordType: A, targets: [192.0.2.1, 192.0.2.2, 192.0.2.1], recordTTL: 60}"
        ),
        &[("a A", "192.0.2.1 192.0.2.2"), ("a A ttl", "60"), ("a AAAA", EMPTY), ("b A", ABSENT)],
    ),
    row(
        "source/crd.go:110: AAAA",
        dns_endpoint!("web", "{dnsName: a.$Z, recordType: AAAA, targets: ['2001:db8::1']}"),
        &[("a AAAA", "2001:db8::1"), ("a A", EMPTY)],
    ),
    row(
        "docs/sources/crd.md:165: CNAME",
        dns_endpoint!("web", "{dnsName: a.$Z, recordType: CNAME, recordTTL: 300, targets: [example.com]}"),
        &[("a CNAME", "example.com."), ("a CNAME ttl", "300"), ("a TXT", "example.com.")],
    ),
    row(
        "docs/sources/crd.md:181: a CNAME's target with and without a dot at its end",
        dns_endpoint!("web", "{dnsName: a.$Z., recordType: CNAME, targets: [a.example.com.]}"),
        &[("a CNAME", "a.example.com.")],
    ),
    row(
        "docs/sources/txt-record.md:24: TXT",
        dns_endpoint!(
            "web",
            "{dnsName: a.$Z, recordTTL: 180, recordType: TXT, targets: [SOMETXT, ANOTHERTXT]}"
        ),
        &[("a TXT", "SOMETXT ANOTHERTXT"), ("a TXT ttl", "180"), ("a A", EMPTY)],
    ),
    row(
        "docs/sources/mx-record.md:22: MX",
        dns_endpoint!(
            "web",
            "{dnsName: a.$Z, recordTTL: 180, recordType: MX,
              targets: [10 mailhost1.example.com, 20 mailhost2.example.com]}"
        ),
        &[("a MX", "10 mailhost1.example.com. 20 mailhost2.example.com."), ("a MX ttl", "180")],
    ),
    row(
        "endpoint/endpoint.go:740: MX without a preference is passed over",
        dns_endpoint!("web", "{dnsName: a.$Z, recordType: MX, targets: [mail.example.com]}"),
        &[("a MX", ABSENT)],
    ),
    row(
        "source/crd_test.go:321: SRV, with a dot at the end of the host",
        dns_endpoint!(
            "web",
            "{dnsName: _sip._udp.a.$Z, recordType: SRV, targets: [10 5 5060 sip.example.com.]}"
        ),
        &[("_sip._udp.a SRV", "10 5 5060 sip.example.com.")],
    ),
    row(
        "endpoint/endpoint.go:753: SRV without a dot at the end of the host is passed over",
        dns_endpoint!(
            "web",
            "{dnsName: _sip._udp.a.$Z, recordType: SRV, targets: [10 5 5060 sip.example.com]}"
        ),
        &[("_sip._udp.a SRV", "10 5 5060 sip.example.com.")],
    )
    .differs("They are absolute, with or without a dot at the end"),
    row(
        "source/crd.go:143: an address with a dot at its end: the entry is passed over",
        dns_endpoint!("web", "{dnsName: a.$Z, recordType: A, targets: [192.0.2.1, 192.0.2.2.]}"),
        &[("a A", ABSENT)],
    ),
    row(
        "endpoint/endpoint.go:603: an address of the other family: the entry is passed over",
        dns_endpoint!(
            "web",
            "{dnsName: a.$Z, recordType: A, targets: ['2001:db8::1']},
             {dnsName: b.$Z, recordType: A, targets: [192.0.2.1]}"
        ),
        &[("a A", ABSENT), ("a AAAA", ABSENT), ("b A", "192.0.2.1")],
    ),
    row(
        "source/crd_test.go:179: an entry without targets, and without --default-targets",
        dns_endpoint!(
            "web",
            "{dnsName: a.$Z, recordType: A}, {dnsName: b.$Z, recordType: CNAME, targets: []}"
        ),
        &[("a A", ABSENT), ("b A", ABSENT)],
    ),
    row(
        "docs/sources/crd.md:183: types that lb-linker doesn't have: NS",
        dns_endpoint!("web", "{dnsName: a.$Z, recordType: NS, targets: [ns1.example.com]}"),
        &[("a NS", ABSENT)],
    )
    .differs(TYPES),
    row(
        "docs/sources/crd.md:200: types that lb-linker doesn't have: DNAME",
        dns_endpoint!("web", "{dnsName: a.$Z, recordType: DNAME, targets: [example.net]}"),
        &[("x.a A", ABSENT)],
    )
    .differs(TYPES),
    row(
        "source/crd_test.go:337: types that lb-linker doesn't have: NAPTR",
        dns_endpoint!(
            "web",
            "{dnsName: a.$Z, recordType: NAPTR,
              targets: ['100 10 S SIP+D2U \"!^.*$!sip:a@example.com!\" _sip._udp.example.com.']}"
        ),
        &[("a NAPTR", ABSENT)],
    )
    .differs(TYPES),
    row(
        "endpoint/endpoint.go:766: PTR at a name that isn't in a reverse zone",
        dns_endpoint!("web", "{dnsName: a.$Z, recordType: PTR, targets: [a.example.com]}"),
        &[("a PTR", ABSENT)],
    ),
    row(
        "docs/sources/crd.md:32: recordTTL 0, and none, are the provider's default",
        dns_endpoint!(
            "web",
            "{dnsName: a.$Z, recordType: A, targets: [192.0.2.1], recordTTL: 0},
             {dnsName: b.$Z, recordType: A, targets: [192.0.2.1]}"
        ),
        &[("a A ttl", "5"), ("b A ttl", "5")],
    ),
    row(
        "docs/sources/crd.md:15: recordTTL of any size",
        dns_endpoint!("web", "{dnsName: a.$Z, recordType: A, targets: [192.0.2.1], recordTTL: 86400}"),
        &[("a A", "192.0.2.1"), ("a A ttl", "5")],
    )
    .differs("`recordTTL` is 1 to 3600"),
    row(
        "docs/sources/crd.md:33-38: labels and providerSpecific, without a provider",
        dns_endpoint!(
            "web",
            "{dnsName: a.$Z, recordType: A, targets: [192.0.2.1], labels: {a: b},
              providerSpecific: [{name: weight, value: heavy}]}"
        ),
        &[("a A", "192.0.2.1")],
    ),
    row(
        "endpoint/utils.go:146: entries with one name and type, in one object",
        dns_endpoint!(
            "web",
            "{dnsName: a.$Z, recordType: A, targets: [192.0.2.1], recordTTL: 60},
             {dnsName: a.$Z, recordType: A, targets: [192.0.2.2], recordTTL: 60},
             {dnsName: a.$Z, recordType: TXT, targets: [x]}"
        ),
        &[("a A", "192.0.2.1 192.0.2.2"), ("a A ttl", "60"), ("a TXT", "x")],
    ),
    row(
        "endpoint/utils.go:146: entries with one name and type, in several objects",
        concat!(
            dns_endpoint!("one", "{dnsName: a.$Z, recordType: A, targets: [192.0.2.1]}"),
            dns_endpoint!("two", "{dnsName: a.$Z, recordType: A, targets: [192.0.2.2]}")
        ),
        &[("a A", "192.0.2.1 192.0.2.2")],
    ),
    row(
        "endpoint/utils.go:166: entries with one name and type, and several recordTTL",
        dns_endpoint!(
            "web",
            "{dnsName: a.$Z, recordType: A, targets: [192.0.2.1], recordTTL: 60},
             {dnsName: a.$Z, recordType: A, targets: [192.0.2.2], recordTTL: 30}"
        ),
        &[("a A", "192.0.2.1 192.0.2.2"), ("a A ttl", "30")],
    )
    .differs("A and AAAA of a name share the smallest TTL that is set for them"),
    row(
        "endpoint/utils.go:165: addresses with several setIdentifiers",
        dns_endpoint!(
            "web",
            "{dnsName: a.$Z, recordType: A, targets: [192.0.2.1], setIdentifier: b},
             {dnsName: a.$Z, recordType: A, targets: [192.0.2.2], setIdentifier: a}"
        ),
        &[("a A", "192.0.2.1 192.0.2.2")],
    )
    .differs(SET_IDENTIFIER),
    row(
        "endpoint/utils.go:165: CNAMEs with several setIdentifiers",
        dns_endpoint!(
            "web",
            "{dnsName: a.$Z, recordType: CNAME, targets: [b.example.com], setIdentifier: b},
             {dnsName: a.$Z, recordType: CNAME, targets: [a.example.com], setIdentifier: a}"
        ),
        &[("a CNAME", "a.example.com.")],
    )
    .differs(SET_IDENTIFIER),
    row(
        "endpoint/utils.go:179: CNAMEs with one name and other targets",
        dns_endpoint!(
            "web",
            "{dnsName: a.$Z, recordType: CNAME, targets: [a.example.com]},
             {dnsName: a.$Z, recordType: CNAME, targets: [b.example.com]},
             {dnsName: b.$Z, recordType: CNAME, targets: [a.example.com, b.example.com]}"
        ),
        &[("a CNAME", "a.example.com."), ("b CNAME", ABSENT)],
    )
    .differs("a CNAME with several targets, or beside other records, is left to the provider"),
    row(
        "source/crd.go:96: a CNAME beside other records",
        dns_endpoint!(
            "web",
            "{dnsName: a.$Z, recordType: A, targets: [192.0.2.1]},
             {dnsName: a.$Z, recordType: TXT, targets: [x]},
             {dnsName: a.$Z, recordType: CNAME, targets: [a.example.com]}"
        ),
        &[("a CNAME", "a.example.com."), ("a A", "a.example.com."), ("a TXT", "a.example.com.")],
    )
    .differs("a CNAME with several targets, or beside other records, is left to the provider"),
    row(
        "docs/annotations/annotations.md:12: DNSEndpoints have none of the annotations",
        concat!(
            dns_endpoint!(
                "web, annotations: {$E/hostname: b.$Z, $E/target: 192.0.2.2, $E/ttl: '60'}",
                "{dnsName: a.$Z, recordType: A, targets: [192.0.2.1]}"
            ),
            dns_endpoint!(
                "other, annotations: {$E/controller: other}",
                "{dnsName: c.$Z, recordType: A, targets: [192.0.2.1]}"
            )
        ),
        &[("a A", "192.0.2.1"), ("a A ttl", "5"), ("b A", ABSENT), ("c A", ABSENT)],
    )
    .differs("and, with `--annotation-prefixes`, `controller` have an effect"),
    row(
        "docs/sources/crd.md:143: names outside of --domain-filter, and wildcards",
        dns_endpoint!(
            "web",
            "{dnsName: a.example.com, recordType: A, targets: [192.0.2.1]},
             {dnsName: '*.a.$Z', recordType: A, targets: [192.0.2.2]},
             {dnsName: '*.a.$Z', recordType: TXT, targets: [x]}"
        ),
        &[("x.a A", "192.0.2.2"), ("x.a TXT", "x"), ("x.a MX", EMPTY)],
    ),
    row(
        "source/crd.go:90: a name of another namespace",
        concat!(
            dns_endpoint!("web", "{dnsName: a.$Z, recordType: A, targets: [192.0.2.1]}"),
            dns_endpoint!("web" in "$M", "{dnsName: a.$Z, recordType: A, targets: [192.0.2.2]}")
        ),
        &[("a A", "192.0.2.1")],
    )
    .differs("the targets of all objects with one name are united, in all namespaces"),
];
