//! The plugin k8s_gateway for CoreDNS, its chart, and its manifest for an installation.

use super::{ABSENT, EMPTY, Row, Table, row};

const ZONE: &str = "example.com";
const ANYWHERE: (&str, &str) = ("LB_LINKER_HOSTNAME_NAMESPACES", "*");
const ANNOTATIONS: (&str, &str) =
    ("LB_LINKER_HOSTNAME_ANNOTATIONS", "coredns.io/hostname,external-dns.alpha.kubernetes.io/hostname");

const LOOKED_UP: &str =
    "a load balancer with a hostname: k8s_gateway looks it up and answers A and AAAA records";
const SPEC_ALONE: &str =
    "k8s_gateway: the hosts of `tls`, and annotations of Ingresses and routes, don't count";
const EACH_ROUTE: &str =
    "k8s_gateway: a route has its hostnames, and no others, at each Gateway that it names";
const ALL_ENTRIES: &str = "k8s_gateway: each name of a DNSEndpoint has the targets of all its entries";
const RESPONSE_CODE: &str =
    "k8s_gateway: other types than A, AAAA and TXT get NODATA for all names, and SOA gets the zone's";
const WILDCARD: &str = "k8s_gateway: a wildcard stands for one label, also for names without a target";

pub(super) const DEFAULTS: Table = Table {
    rows: OF_DEFAULTS,
    zone: ZONE,
    options: "ttl 60\n        sources ingress service gateway dnsendpoint",
    flags: &[ANYWHERE, ANNOTATIONS],
};

const OF_DEFAULTS: &[Row] = &[
    row(
        "README.md:16: the hosts of spec.rules of an Ingress; README.md:74: a TTL of 60 s",
        ingress!("web", "rules: [{host: a-$N.example.com}, {host: www.example.org}]", "{ip: 192.0.2.1}"),
        &[("a-$N.example.com. A", "192.0.2.1"), ("a-$N.example.com. A ttl", "60"), ("web A", ABSENT)],
    ),
    row(
        "kubernetes.go:516: the hosts of spec.tls, and annotations of Ingresses and routes",
        concat!(
            ingress!(
                "web, annotations: {coredns.io/hostname: b.$Z}",
                "tls: [{hosts: [a.$Z]}]",
                "{ip: 192.0.2.1}"
            ),
            gateway!("gw", "{name: web, $HTTP}", "{value: 192.0.2.1}"),
            route!("HTTPRoute", "web, annotations: {coredns.io/hostname: d.$Z}", "c.$Z", "{name: gw}")
        ),
        &[("a A", "192.0.2.1"), ("b A", "192.0.2.1"), ("c A", "192.0.2.1"), ("d A", "192.0.2.1")],
    )
    .differs(SPEC_ALONE),
    row(
        "README.md:17: <service>.<namespace> of a load balancer",
        service!("web", "type: LoadBalancer", "{ip: 192.0.2.1}, {ip: '2001:db8::1'}"),
        &[("web A", "192.0.2.1"), ("web AAAA", "2001:db8::1"), ("web MX", EMPTY), ("other A", ABSENT)],
    ),
    row(
        "README.md:17: the annotation coredns.io/hostname, or external-dns.alpha.kubernetes.io/hostname",
        concat!(
            service!(
                "one, annotations: {coredns.io/hostname: 'A-$N.example.com, b-$N.example.com'}",
                "type: LoadBalancer",
                "{ip: 192.0.2.1}"
            ),
            service!("two, annotations: {$OLD/hostname: c.$Z}", "type: LoadBalancer", "{ip: 192.0.2.2}")
        ),
        &[("a-$N.example.com. A", "192.0.2.1"), ("B-$N.Example.COM. A", "192.0.2.1"), ("c A", "192.0.2.2")],
    ),
    row(
        "kubernetes.go:547: a Service with an annotation has no name <service>.<namespace>",
        service!("web, annotations: {coredns.io/hostname: a.$Z}", "type: LoadBalancer", "{ip: 192.0.2.1}"),
        &[("a A", "192.0.2.1"), ("web A", "192.0.2.1")],
    )
    .differs("`<service>.<namespace>.<zone>`, if the Service has no annotation"),
    row(
        "kubernetes.go:559: the first of the annotations alone counts",
        service!(
            "web, annotations: {coredns.io/hostname: a.$Z, $OLD/hostname: b.$Z}",
            "type: LoadBalancer",
            "{ip: 192.0.2.1}"
        ),
        &[("a A", "192.0.2.1"), ("b A", "192.0.2.1")],
    )
    .differs("annotation `coredns.io/hostname`, or else `external-dns.alpha.kubernetes.io/hostname`"),
    row(
        "gateway.go:282: a name without the zone in the annotation",
        service!("web, annotations: {coredns.io/hostname: a.$N}", "type: LoadBalancer", "{ip: 192.0.2.1}"),
        &[("a A", ABSENT)],
    )
    .differs("names in annotations: any, also without the zone, as in `web.shop`"),
    row(
        "kubernetes.go:568: a wildcard in the annotation; words that aren't names are passed over",
        service!(
            "web, annotations: {coredns.io/hostname: '*.a.$Z,b..$Z,-c.$Z,d'}",
            "type: LoadBalancer",
            "{ip: 192.0.2.1}"
        ),
        &[("x.a A", "192.0.2.1"), ("c A", ABSENT), ("d A", ABSENT)],
    ),
    row(
        "kubernetes.go:535: Services of other types have no names",
        concat!(
            service!("one, annotations: {coredns.io/hostname: a.$Z}", "clusterIP: 10.96.0.1", ""),
            service!("two", "type: NodePort, clusterIP: 10.96.0.1", ""),
            service!("three", "type: ExternalName, externalName: a.example.net", "")
        ),
        &[("a A", ABSENT), ("one A", ABSENT), ("two A", ABSENT), ("three A", ABSENT)],
    ),
    row(
        "kubernetes.go:606: spec.externalIPs in place of the status",
        service!("web", "type: LoadBalancer, externalIPs: [192.0.2.9]", "{ip: 192.0.2.1}"),
        &[("web A", "192.0.2.1")],
    )
    .differs("`spec.externalIPs` of a Service instead of its status"),
    row(
        "kubernetes.go:749, 775: a hostname of the status is looked up, and goes before the address beside it",
        concat!(
            service!("web", "type: LoadBalancer", "{hostname: lb.example.net}"),
            ingress!("web", "rules: [{host: a.$Z}]", "{hostname: lb.example.net, ip: 192.0.2.1}")
        ),
        &[
            ("web A", "lb.example.net. 192.0.2.77"),
            ("web AAAA", "lb.example.net. 2001:db8::77"),
            ("a A", "lb.example.net. 192.0.2.77"),
            ("a CNAME", "lb.example.net."),
        ],
    )
    .differs(LOOKED_UP),
    row(
        "kubernetes.go:730: a hostname of a Gateway's status is looked up; addresses of other types don't count",
        concat!(
            gateway!("gw", "{name: web, $HTTP}", "{type: Hostname, value: lb.example.net}"),
            gateway!(
                "other",
                "{name: web, $HTTP}",
                "{type: NamedAddress, value: 192.0.2.2}, {type: IPAddress, value: 192.0.2.1}"
            ),
            route!("HTTPRoute", "web", "a.$Z", "{name: gw}"),
            route!("HTTPRoute", "other", "b.$Z", "{name: other}")
        ),
        &[("a A", "lb.example.net. 192.0.2.77"), ("b A", "192.0.2.1")],
    )
    .differs(LOOKED_UP),
    row(
        "README.md:13-15: the hostnames of HTTPRoutes, TLSRoutes and GRPCRoutes",
        concat!(
            gateway!("gw", "{name: web, $HTTP}, {name: tls, $TLS}", "{type: IPAddress, value: 192.0.2.1}"),
            gateway!("two", "{name: web, $HTTP}", "{type: IPAddress, value: 192.0.2.2}"),
            route!("HTTPRoute", "one", "a-$N.example.com", "{name: gw}"),
            route!("TLSRoute", "two", "b-$N.example.com", "{name: gw}"),
            route!("GRPCRoute", "three", "c-$N.example.com", "{name: gw}"),
            // test/gateway-api/resources.yml: several Gateways.
            route!("HTTPRoute", "four", "d-$N.example.com", "{name: gw}", "{name: two}")
        ),
        &[
            ("a-$N.example.com. A", "192.0.2.1"),
            ("b-$N.example.com. A", "192.0.2.1"),
            ("c-$N.example.com. A", "192.0.2.1"),
            ("d-$N.example.com. A", "192.0.2.1 192.0.2.2"),
        ],
    ),
    row(
        "kubernetes.go:456, 671: routes that aren't accepted, hostnames that no listener has, and no hostnames",
        concat!(
            gateway!("gw", "{name: web, $HTTP, hostname: '*.w.$Z'}", "{type: IPAddress, value: 192.0.2.1}"),
            gateway!("plain", "{name: web, $HTTP}", "{type: IPAddress, value: 192.0.2.1}"),
            object!(
                "gateway.networking.k8s.io/v1",
                "HTTPRoute",
                "refused",
                "spec: {parentRefs: [{name: plain}], hostnames: [a.$Z]}"
            ),
            route!("HTTPRoute", "other", "b.$Z", "{name: gw}"),
            route!("GRPCRoute", "none", "", "{name: gw}")
        ),
        &[("a A", ABSENT), ("b A", ABSENT), ("c.w A", "192.0.2.1")],
    )
    .differs(EACH_ROUTE),
    row(
        "README.md:18: A, AAAA and TXT of DNSEndpoints",
        dns_endpoint!(
            "web",
            "{dnsName: a-$N.example.com, recordType: A, targets: [192.0.2.1, 192.0.2.2]},
             {dnsName: a-$N.example.com, recordType: AAAA, targets: ['2001:db8::1']},
             {dnsName: a-$N.example.com, recordType: TXT, targets: [x]}"
        ),
        &[
            ("a-$N.example.com. A", "192.0.2.1 192.0.2.2"),
            ("a-$N.example.com. A ttl", "60"),
            ("a-$N.example.com. AAAA", "2001:db8::1"),
            ("a-$N.example.com. TXT", "x"),
            ("a-$N.example.com. MX", EMPTY),
        ],
    ),
    row(
        "dnsendpoint.go:118, gateway.go:355: names and recordTTL of the entries of a DNSEndpoint",
        dns_endpoint!(
            "web",
            "{dnsName: a.$Z, recordType: A, targets: [192.0.2.1], recordTTL: 30},
             {dnsName: b.$Z, recordType: A, targets: [192.0.2.2]}"
        ),
        &[("a A", "192.0.2.1"), ("a A ttl", "30"), ("b A", "192.0.2.2")],
    )
    .differs(ALL_ENTRIES),
    row(
        "dnsendpoint.go:120: entries of a DNSEndpoint of other types than A, AAAA and TXT",
        dns_endpoint!(
            "web",
            "{dnsName: a.$Z, recordType: CNAME, targets: [lb.example.net]},
             {dnsName: b.$Z, recordType: MX, targets: [10 mail.example.net]}"
        ),
        &[("a CNAME", "lb.example.net."), ("a A", "lb.example.net. 192.0.2.77"), ("b MX", "10 mail.example.net.")],
    )
    .differs("A, AAAA, TXT"),
    row(
        "gateway.go:204, 224: NODATA for the other family of addresses",
        concat!(
            ingress!("four", "rules: [{host: a.$Z}]", "{ip: 192.0.2.1}"),
            ingress!("six", "rules: [{host: b.$Z}]", "{ip: '2001:db8::1'}")
        ),
        &[("a AAAA", EMPTY), ("b A", EMPTY), ("b AAAA", "2001:db8::1"), ("a CNAME", EMPTY)],
    ),
    row(
        "gateway.go:201: an object without addresses",
        service!("web", "type: LoadBalancer", ""),
        &[("web A", EMPTY)],
    )
    .differs("a load balancer without a target yet: NXDOMAIN"),
    row(
        "gateway.go:248, 266: SOA, and types that k8s_gateway doesn't have",
        ingress!("web", "rules: [{host: a.$Z}]", "{ip: 192.0.2.1}"),
        &[("a SOA", EMPTY), ("b MX", ABSENT), ("b SOA", ABSENT)],
    )
    .differs(RESPONSE_CODE),
    row(
        "gateway_test.go:229: wildcards, and names that go before them",
        ingress!("web", "rules: [{host: '*.w.$Z'}]", "{ip: 192.0.2.1}"),
        &[("a.w A", "192.0.2.1"), ("A.W A", "192.0.2.1")],
    ),
    row(
        "gateway.go:312: wildcards, for more labels and for a name without a target",
        concat!(
            ingress!("web", "rules: [{host: '*.w.$Z'}]", "{ip: 192.0.2.1}"),
            ingress!("none", "rules: [{host: none.w.$Z}]", "")
        ),
        &[("b.a.w A", "192.0.2.1"), ("none.w A", EMPTY)],
    )
    .differs(WILDCARD),
    row(
        "gateway.go:331: the first of the resources that has the name",
        concat!(
            ingress!("web", "rules: [{host: a.$Z}]", "{ip: 192.0.2.1}"),
            service!("web, annotations: {coredns.io/hostname: a.$Z}", "type: LoadBalancer", "{ip: 192.0.2.2}"),
            dns_endpoint!("web", "{dnsName: a.$Z, recordType: A, targets: [192.0.2.3]}")
        ),
        &[("a A", "192.0.2.1")],
    ),
    row(
        "gateway_test.go:128: an Ingress with a name <service>.<namespace>",
        concat!(
            ingress!("web", "rules: [{host: web.$Z}]", "{ip: 192.0.2.1}"),
            service!("web", "type: LoadBalancer", "{ip: 192.0.2.2}")
        ),
        &[("web A", "192.0.2.2")],
    )
    .differs("The default names of load balancers go before all sources."),
    row(
        "gateway_test.go:170: an Ingress with the zone as its host",
        ingress!("web", "rules: [{host: example.com}]", "{ip: 192.0.2.1}"),
        &[("example.com. A", EMPTY)],
    )
    .differs("k8s_gateway: the zone itself may be a host"),
    row(
        "kubernetes.go:703: Ingresses with one host",
        concat!(
            ingress!("one", "rules: [{host: a.$Z}]", "{ip: 192.0.2.1}"),
            ingress!("two", "rules: [{host: a.$Z}]", "{ip: 192.0.2.2}")
        ),
        &[("a A", "192.0.2.1 192.0.2.2")],
    ),
    row(
        "kubernetes.go:703: Ingresses of several namespaces with one host",
        concat!(
            ingress!(
                "one, creationTimestamp: '2026-01-02T00:00:00Z'",
                "rules: [{host: a.$Z}]",
                "{ip: 192.0.2.1}"
            ),
            ingress!(
                "two, creationTimestamp: '2026-01-01T00:00:00Z'" in "$M",
                "rules: [{host: a.$Z}]",
                "{ip: 192.0.2.2}"
            )
        ),
        &[("a A", "192.0.2.2")],
    )
    .differs("the targets of all objects with one name are united, in all namespaces"),
    row(
        "kubernetes.go:602: Services with one name",
        concat!(
            service!(
                "one, creationTimestamp: '2026-01-02T00:00:00Z', annotations: {coredns.io/hostname: a.$Z}",
                "type: LoadBalancer",
                "{ip: 192.0.2.1}"
            ),
            service!(
                "two, creationTimestamp: '2026-01-01T00:00:00Z', annotations: {coredns.io/hostname: a.$Z}",
                "type: LoadBalancer",
                "{ip: 192.0.2.2}"
            )
        ),
        &[("a A", "192.0.2.2")],
    )
    .differs("several Services with one name: all addresses in the answer"),
    row(
        "kubernetes.go:811: the label k8s-gateway.dns/ignore",
        concat!(
            ingress!("one, labels: {k8s-gateway.dns/ignore: 'true'}", "rules: [{host: a.$Z}]", "{ip: 192.0.2.1}"),
            ingress!("two, annotations: {$L/managed: 'false'}", "rules: [{host: b.$Z}]", "{ip: 192.0.2.1}"),
            service!("web, annotations: {$L/managed: 'false'}", "type: LoadBalancer", "{ip: 192.0.2.1}"),
            dns_endpoint!(
                "two, annotations: {$L/managed: 'false'}",
                "{dnsName: c.$Z, recordType: A, targets: [192.0.2.1]}"
            )
        ),
        &[("a A", "192.0.2.1"), ("b A", ABSENT), ("c A", ABSENT), ("web A", ABSENT)],
    )
    .differs("label `k8s-gateway.dns/ignore: \"true\"`"),
    row(
        "README.md:75: apex",
        "",
        &[("example.com. NS", "ns.dns.example.com."), ("dns1.kube-system.example.com. A", ABSENT)],
    )
    .differs("`apex`, `dns1.kube-system` by default"),
    row("README.md:76: secondary", "", &[("example.com. NS", "ns.dns.example.com.")])
        .differs("no second name is needed: all replicas answer alike"),
];

pub(super) const INGRESS_ALONE: Table = Table {
    rows: &[row(
        "README.md:70: resources Ingress",
        concat!(
            ingress!("web", "rules: [{host: a.$Z}]", "{ip: 192.0.2.1}"),
            service!(
                "web, annotations: {coredns.io/hostname: b.$Z}",
                "type: LoadBalancer",
                "{ip: 192.0.2.2}"
            ),
            dns_endpoint!("web", "{dnsName: c.$Z, recordType: A, targets: [192.0.2.3]}")
        ),
        &[("a A", "192.0.2.1"), ("b A", ABSENT), ("c A", ABSENT), ("web A", ABSENT)],
    )],
    zone: ZONE,
    options: "sources ingress",
    flags: &[ANYWHERE, ANNOTATIONS],
};

pub(super) const FALLTHROUGH: Table = Table {
    rows: &[
        row(
            "README.md:78: fallthrough, for names that no object has",
            ingress!("web", "rules: [{host: a.$Z}]", "{ip: 192.0.2.1}"),
            &[("a A", "192.0.2.1"), ("b.example.com. A", "192.0.2.99"), ("ns.example.com. A", "192.0.2.53")],
        ),
        row(
            "gateway.go:175: fallthrough, for names without addresses",
            service!("web", "type: LoadBalancer", ""),
            &[("web A", EMPTY)],
        )
        .differs("k8s_gateway: `fallthrough` also passes on queries for names without a target"),
    ],
    zone: ZONE,
    options: "sources ingress service\n        fallthrough",
    flags: &[],
};

pub(super) const FALLTHROUGH_OF_A_ZONE: Table = Table {
    rows: &[
        row(
            "README.md:78: fallthrough n0.example.com, for a name there",
            ingress!("web", "rules: [{host: a.$Z}]", "{ip: 192.0.2.1}"),
            &[("a A", "192.0.2.1"), ("b A", "192.0.2.99")],
        ),
        row("README.md:78: fallthrough n0.example.com, for other names", "", &[("b A", ABSENT)]),
    ],
    zone: ZONE,
    options: "sources ingress service\n        fallthrough n0.example.com",
    flags: &[],
};

/// The Corefile of the chart, with *lb_linker* in the place of *k8s_gateway*.
pub(super) const CHART: Table = Table {
    rows: &[
        row(
            "charts/k8s-gateway/values.yaml:31: ttl 300",
            ingress!("web", "rules: [{host: a.$Z}]", "{ip: 192.0.2.1}"),
            &[("a A ttl", "300")],
        ),
        row(
            "charts/k8s-gateway/templates/configmap.yaml:17: dnsChallenge.enabled",
            ingress!("web", "rules: [{host: a.$Z}]", "{ip: 192.0.2.1}"),
            &[("_acme-challenge.a CNAME", "a.$N.dns01.example.net."), ("a A", "192.0.2.1")],
        ),
        row(
            "charts/k8s-gateway/values.yaml:37: watchedResources [Ingress, Service]",
            concat!(
                service!("web", "type: LoadBalancer", "{ip: 192.0.2.1}"),
                dns_endpoint!("web", "{dnsName: b.$Z, recordType: A, targets: [192.0.2.3]}")
            ),
            &[("web A", "192.0.2.1"), ("b A", ABSENT)],
        ),
    ],
    zone: ZONE,
    options: "ttl 300\n        sources ingress service",
    flags: &[ANYWHERE, ANNOTATIONS],
};
