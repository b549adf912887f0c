//! ExternalDNS's source `ingress`.

use super::{ABSENT, EMPTY, OPTIONS, Row, WITHOUT_COUNTERPART, row};

/// How a name with hostnames and addresses differs.
const ONE_TARGET: &str = "hostnames and addresses of one object are CNAME, A and AAAA records of its names";
const NO_TARGET: &str = "a name without a target doesn't exist";
const SHARED: &str = "the targets of all objects with one name are united, in all namespaces";

pub(super) const ROWS: &[Row] = &[
    row(
        "docs/sources/ingress.md:18: each host of spec.rules, but none that is empty",
        ingress!("web", "rules: [{host: a.$Z}, {http: {paths: []}}, {host: b.$Z}]", "{ip: 192.0.2.1}"),
        &[("a A", "192.0.2.1"), ("b A", "192.0.2.1"), ("c A", ABSENT), ("$Z. A", EMPTY)],
    ),
    row(
        "docs/sources/ingress.md:24: each host of spec.tls",
        ingress!("web", "tls: [{hosts: [a.$Z, b.$Z]}, {hosts: [c.$Z]}]", "{ip: 192.0.2.1}"),
        &[("a A", "192.0.2.1"), ("b A", "192.0.2.1"), ("c A", "192.0.2.1")],
    ),
    row(
        "docs/sources/ingress.md:30: the annotation hostname, beside the hosts of the spec",
        ingress!(
            "web, annotations: {$E/hostname: 'c.$Z, d.$Z'}",
            "rules: [{host: a.$Z}], tls: [{hosts: [a.$Z, b.$Z]}]",
            "{ip: 192.0.2.1}"
        ),
        &[("a A", "192.0.2.1"), ("b A", "192.0.2.1"), ("c A", "192.0.2.1"), ("d A", "192.0.2.1")],
    ),
    row(
        "docs/annotations/annotations.md:116: the annotation hostname without hosts in the spec",
        ingress!("web, annotations: {$E/hostname: a.$Z}", "rules: [{http: {paths: []}}]", "{ip: 192.0.2.1}"),
        &[("a A", "192.0.2.1")],
    ),
    row(
        "docs/annotations/annotations.md:78: hostnames outside of --domain-filter are passed over",
        ingress!(
            "web, annotations: {$E/hostname: 'www.example.com,b.$Z'}",
            "rules: [{host: a.example.com}, {host: a.$Z}]",
            "{ip: 192.0.2.1}"
        ),
        &[("a A", "192.0.2.1"), ("b A", "192.0.2.1")],
    ),
    row(
        "docs/sources/ingress.md:20: annotation-only",
        ingress!(
            "web, annotations: {$E/ingress-hostname-source: annotation-only, $E/hostname: c.$Z}",
            "rules: [{host: a.$Z}], tls: [{hosts: [b.$Z]}]",
            "{ip: 192.0.2.1}"
        ),
        &[("a A", ABSENT), ("b A", ABSENT), ("c A", "192.0.2.1")],
    ),
    row(
        "docs/sources/ingress.md:32: defined-hosts-only",
        ingress!(
            "web, annotations: {$E/ingress-hostname-source: defined-hosts-only, $E/hostname: c.$Z}",
            "rules: [{host: a.$Z}], tls: [{hosts: [b.$Z]}]",
            "{ip: 192.0.2.1}"
        ),
        &[("a A", "192.0.2.1"), ("b A", "192.0.2.1"), ("c A", ABSENT)],
    ),
    row(
        "source/ingress.go:283: ingress-hostname-source in other cases",
        ingress!(
            "web, annotations: {$E/ingress-hostname-source: Annotation-Only, $E/hostname: c.$Z}",
            "rules: [{host: a.$Z}]",
            "{ip: 192.0.2.1}"
        ),
        &[("a A", ABSENT), ("c A", "192.0.2.1")],
    ),
    row(
        "source/ingress.go:289: an unknown value of ingress-hostname-source",
        ingress!(
            "web, annotations: {$E/ingress-hostname-source: both, $E/hostname: c.$Z}",
            "rules: [{host: a.$Z}]",
            "{ip: 192.0.2.1}"
        ),
        &[("a A", "192.0.2.1"), ("c A", "192.0.2.1")],
    )
    .differs("passes over an Ingress with an unknown `ingress-hostname-source`"),
    row(
        "docs/sources/ingress.md:44: the annotation target goes before the status; A and AAAA by family",
        ingress!(
            "web, annotations: {$E/target: '192.0.2.2, 2001:db8::2,192.0.2.3'}",
            "rules: [{host: a.$Z}]",
            "{ip: 192.0.2.1}, {hostname: lb.example.com}"
        ),
        &[("a A", "192.0.2.2 192.0.2.3"), ("a AAAA", "2001:db8::2"), ("a CNAME", EMPTY)],
    ),
    row(
        "docs/annotations/annotations.md:309: a hostname in the annotation target, also with a dot",
        ingress!("web, annotations: {$E/target: other.example.com.}", "rules: [{host: a.$Z}]", ""),
        &[("a CNAME", "other.example.com."), ("a A", "other.example.com.")],
    ),
    row(
        "docs/annotations/annotations.md:307: hostnames and addresses in the annotation target",
        ingress!(
            "web, annotations: {$E/target: '192.0.2.2,b.example.com,a.example.com'}",
            "rules: [{host: a.$Z}]",
            ""
        ),
        &[("a CNAME", "b.example.com."), ("a A", "b.example.com.")],
    )
    .differs(ONE_TARGET),
    row(
        "source/annotations/processors.go:114: an empty annotation target counts as absent",
        ingress!("web, annotations: {$E/target: ''}", "rules: [{host: a.$Z}]", "{ip: 192.0.2.1}"),
        &[("a A", "192.0.2.1")],
    ),
    row(
        "docs/sources/ingress.md:47: addresses of the status",
        ingress!(
            "web",
            "rules: [{host: a.$Z}]",
            "{ip: 192.0.2.1}, {}, {ip: 192.0.2.2}, {ip: '2001:db8::1'}, {ip: 192.0.2.1}"
        ),
        &[("a A", "192.0.2.1 192.0.2.2"), ("a AAAA", "2001:db8::1"), ("a TXT", EMPTY)],
    ),
    row(
        "docs/sources/ingress.md:47: a hostname of the status",
        ingress!("web", "rules: [{host: a.$Z}]", "{hostname: lb.example.com}"),
        &[("a CNAME", "lb.example.com."), ("a AAAA", "lb.example.com.")],
    ),
    row(
        "docs/sources/ingress.md:48: hostnames and addresses of the status",
        ingress!(
            "web",
            "rules: [{host: a.$Z}]",
            "{ip: 192.0.2.1}, {ip: 192.0.2.2, hostname: lb.example.com}, {hostname: other.example.com}"
        ),
        &[("a CNAME", "lb.example.com."), ("a A", "lb.example.com.")],
    )
    .differs(ONE_TARGET),
    row(
        "source/ingress_test.go:238: no targets",
        ingress!("web", "rules: [{host: a.$Z}]", ""),
        &[("a A", EMPTY), ("a AAAA", EMPTY)],
    )
    .differs(NO_TARGET),
    row(
        "docs/annotations/annotations.md:315: ttl as a number of seconds",
        ingress!("web, annotations: {$E/ttl: '60'}", "rules: [{host: a.$Z}]", "{ip: 192.0.2.1}"),
        &[("a A ttl", "60")],
    ),
    row(
        "docs/annotations/annotations.md:315: ttl as a duration",
        ingress!("web, annotations: {$E/ttl: 1m30s}", "rules: [{host: a.$Z}]", "{ip: 192.0.2.1}"),
        &[("a A ttl", "90")],
    ),
    row(
        "source/annotations/processors.go:80: fractions of a second in ttl don't count",
        ingress!("web, annotations: {$E/ttl: 1.5s}", "rules: [{host: a.$Z}]", "{ip: 192.0.2.1}"),
        &[("a A ttl", "1")],
    ),
    row(
        "source/annotations/processors.go:46: an invalid ttl has no effect",
        ingress!("web, annotations: {$E/ttl: 5 minutes}", "rules: [{host: a.$Z}]", "{ip: 192.0.2.1}"),
        &[("a A", "192.0.2.1"), ("a A ttl", "5")],
    ),
    row(
        "docs/annotations/annotations.md:316: ttl up to 2,147,483,647 seconds",
        ingress!("web, annotations: {$E/ttl: 2h}", "rules: [{host: a.$Z}]", "{ip: 192.0.2.1}"),
        &[("a A", "192.0.2.1"), ("a A ttl", "5")],
    )
    .differs("it takes a TTL of 1 s to 68 years"),
    row(
        "docs/annotations/annotations.md:318: ttl 0 isn't a TTL",
        ingress!("web, annotations: {$E/ttl: '0'}", "rules: [{host: a.$Z}]", "{ip: 192.0.2.1}"),
        &[("a A ttl", "0")],
    )
    .differs("it takes a TTL of 1 s to 68 years"),
    row(
        "docs/annotations/annotations.md:46: another controller",
        ingress!("web, annotations: {$E/controller: other}", "rules: [{host: a.$Z}]", "{ip: 192.0.2.1}"),
        &[("a A", ABSENT)],
    ),
    row(
        "docs/annotations/annotations.md:46: the controller dns-controller",
        ingress!("web, annotations: {$E/controller: dns-controller}", "rules: [{host: a.$Z}]", "{ip: 192.0.2.1}"),
        &[("a A", "192.0.2.1")],
    ),
    row(
        "source/ingress_test.go:1547: wildcards in rules and tls",
        ingress!(
            "web",
            "rules: [{host: '*.a.$Z'}, {host: x.a.$Z}], tls: [{hosts: ['*.b.$Z']}]",
            "{ip: 192.0.2.1}"
        ),
        &[
            ("y.a A", "192.0.2.1"),
            ("x.a A", "192.0.2.1"),
            ("z.y.a A", "192.0.2.1"),
            // RFC 4592 section 2.2.1.
            ("y.x.a A", ABSENT),
            ("a A", EMPTY),
            ("y.b A", "192.0.2.1"),
        ],
    ),
    row(
        "source/ingress_test.go:1675: Ingresses with one host",
        concat!(
            ingress!("one", "rules: [{host: a.$Z}]", "{ip: 192.0.2.1}"),
            ingress!("two", "rules: [{host: a.$Z}]", "{ip: 192.0.2.2}, {ip: 192.0.2.1}")
        ),
        &[("a A", "192.0.2.1 192.0.2.2")],
    ),
    row(
        "source/ingress_test.go:1619: Ingresses with one host and several hostnames",
        concat!(
            ingress!(
                "a, creationTimestamp: '2026-01-02T00:00:00Z'",
                "rules: [{host: a.$Z}]",
                "{hostname: young.example.com}"
            ),
            ingress!(
                "b, creationTimestamp: '2026-01-01T00:00:00Z'",
                "rules: [{host: a.$Z}]",
                "{hostname: old.example.com}"
            )
        ),
        &[("a CNAME", "old.example.com.")],
    )
    .differs(ONE_TARGET),
    row(
        "source/ingress_test.go:484: a host of another namespace",
        concat!(
            ingress!("web", "rules: [{host: a.$Z}]", "{ip: 192.0.2.1}"),
            ingress!("web" in "$M", "rules: [{host: a.$Z}, {host: a.$M.lb.internal}]", "{ip: 192.0.2.2}")
        ),
        &[("a A", "192.0.2.1"), ("a.$M.lb.internal. A", "192.0.2.2")],
    )
    .differs(SHARED),
    row(
        "docs/flags.md:23: --annotation-prefix, as ExternalDNS had it before 0.22",
        ingress!(
            "web, annotations: {$OLD/hostname: b.$Z, $OLD/target: 192.0.2.2, $OLD/ttl: 10s}",
            "rules: [{host: a.$Z}]",
            "{ip: 192.0.2.1}"
        ),
        &[("a A", "192.0.2.2"), ("b A", "192.0.2.2"), ("b A ttl", "10")],
    ),
    row(
        "docs/annotations/annotations.md:357-415: alias, set-identifier, record-type and those of providers",
        ingress!(
            "web, annotations: {$E/alias: 'true', $E/set-identifier: x, $E/record-type: ptr, $E/aws-weight: '10'}",
            "rules: [{host: a.$Z}]",
            "{ip: 192.0.2.1}"
        ),
        &[("a A", "192.0.2.1")],
    )
    .differs("All other annotations with these prefixes have no effect."),
    row(
        "source/ingress_test.go:464, 1227: --ignore-ingress-rules-spec, --ignore-ingress-tls-spec",
        ingress!(
            "web, annotations: {$E/ingress-hostname-source: annotation-only, $E/hostname: c.$Z}",
            "rules: [{host: a.$Z}], tls: [{hosts: [b.$Z]}]",
            "{ip: 192.0.2.1}"
        ),
        &[("a A", ABSENT), ("b A", ABSENT), ("c A", "192.0.2.1")],
    )
    .differs(OPTIONS),
    row(
        "source/ingress_test.go:1193: --ignore-hostname-annotation",
        ingress!(
            "web, annotations: {$E/ingress-hostname-source: defined-hosts-only, $E/hostname: c.$Z}",
            "rules: [{host: a.$Z}], tls: [{hosts: [b.$Z]}]",
            "{ip: 192.0.2.1}"
        ),
        &[("a A", "192.0.2.1"), ("b A", "192.0.2.1"), ("c A", ABSENT)],
    )
    .differs(OPTIONS),
    row(
        "docs/flags.md:47: --nat64-networks; docs/flags.md:61: --exclude-domains a",
        ingress!("web", "rules: [{host: a.$Z}]", "{ip: '64:ff9b::c000:201'}"),
        &[("a A", EMPTY), ("a AAAA", "64:ff9b::c000:201")],
    )
    .differs(WITHOUT_COUNTERPART),
    row(
        "docs/sources/ingress.md:36: --fqdn-template, for an Ingress without hosts",
        ingress!("web", "rules: [{http: {paths: []}}]", "{ip: 192.0.2.1}"),
        &[("web A", ABSENT)],
    )
    .differs(WITHOUT_COUNTERPART),
];
