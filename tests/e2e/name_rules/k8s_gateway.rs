//! The plugin k8s_gateway for CoreDNS, its chart, and its manifest for an installation.

use super::{ABSENT, EMPTY, Row, Table, row};

const ZONE: &str = "example.com";

const LOOKED_UP: &str = "a hostname in a status is looked up; A and AAAA are answered";
const EACH_ROUTE: &str = "a route has its hostnames at each Gateway that it names";
const ALL_ENTRIES: &str = "each name of a DNSEndpoint has the targets of all its entries";
const RESPONSE_CODE: &str = "other types than A, AAAA and TXT get NODATA for all names, and SOA gets the zone's; names above others are NXDOMAIN";
const WILDCARD: &str = "a wildcard stands for one label, also for names without a target";
const WITHOUT_TARGET: &str = "a name without a target doesn't exist; the next of `resources` has it";

pub(super) const fn of_plugin(options: &'static str, rows: &'static [Row]) -> Table {
    Table { rows, zone: ZONE, plugin: "k8s_gateway", options, flags: &[] }
}

pub(super) const EVERY_RESOURCE: Table =
    of_plugin("resources Ingress Service HTTPRoute TLSRoute GRPCRoute DNSEndpoint", OF_EVERY_RESOURCE);

const OF_EVERY_RESOURCE: &[Row] = &[
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
        &[("a A", ABSENT), ("b A", ABSENT), ("c A", "192.0.2.1"), ("d A", ABSENT)],
    ),
    row(
        "README.md:17: <service>.<namespace> of a load balancer",
        service!("web", "type: LoadBalancer", "{ip: 192.0.2.1}, {ip: '2001:db8::1'}"),
        &[
            ("web A", "192.0.2.1"),
            ("web AAAA", "2001:db8::1"),
            ("web MX", EMPTY),
            ("other A", ABSENT),
            ("web-$N.example.com. A", ABSENT),
            ("_http._tcp.web SRV", ABSENT),
        ],
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
        &[("a A", "192.0.2.1"), ("web A", ABSENT)],
    ),
    row(
        "kubernetes.go:559: the first of the annotations alone counts",
        service!(
            "web, annotations: {coredns.io/hostname: a.$Z, $OLD/hostname: b.$Z}",
            "type: LoadBalancer",
            "{ip: 192.0.2.1}"
        ),
        &[("a A", "192.0.2.1"), ("b A", ABSENT)],
    ),
    row(
        "gateway.go:282: names without the zone",
        concat!(
            service!("web, annotations: {coredns.io/hostname: a.$N}", "type: LoadBalancer", "{ip: 192.0.2.1}"),
            ingress!("web", "rules: [{host: b.$N}, {host: '*.w.$N'}]", "{ip: 192.0.2.2}"),
            gateway!("gw", "{name: web, $HTTP}", "{value: 192.0.2.3}"),
            route!("HTTPRoute", "web", "c.$N", "{name: gw}"),
            dns_endpoint!("web", "{dnsName: d.$N, recordType: A, targets: [192.0.2.4]}")
        ),
        &[
            ("a A", "192.0.2.1"),
            ("b A", "192.0.2.2"),
            ("x.w A", "192.0.2.2"),
            ("c A", "192.0.2.3"),
            ("d A", "192.0.2.4"),
        ],
    ),
    row(
        "kubernetes.go:568: a wildcard in the annotation; words that aren't names are passed over",
        service!(
            "web, annotations: {coredns.io/hostname: '*.a.$Z,b..$Z,-c.$Z,d'}",
            "type: LoadBalancer",
            "{ip: 192.0.2.1}"
        ),
        &[("x.a A", "192.0.2.1"), ("c A", ABSENT), ("d.example.com. A", "192.0.2.1")],
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
    .differs("`spec.externalIPs` of a Service in place of its status"),
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
        "kubernetes.go:456, 671: hostnames that no listener has, and no hostnames",
        concat!(
            gateway!("gw", "{name: web, $HTTP, hostname: '*.w.$Z'}", "{type: IPAddress, value: 192.0.2.1}"),
            route!("HTTPRoute", "other", "b.$Z", "{name: gw}"),
            route!("GRPCRoute", "none", "", "{name: gw}")
        ),
        &[("b A", "192.0.2.1"), ("c.w A", ABSENT)],
    ),
    row(
        "kubernetes.go:671: routes that aren't accepted",
        concat!(
            gateway!("gw", "{name: web, $HTTP}", "{type: IPAddress, value: 192.0.2.1}"),
            object!(
                "gateway.networking.k8s.io/v1",
                "HTTPRoute",
                "refused",
                "spec: {parentRefs: [{name: gw}], hostnames: [a.$Z]}"
            )
        ),
        &[("a A", ABSENT)],
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
    .differs("of the entries of DNSEndpoints, A, AAAA and TXT"),
    row(
        "gateway.go:204, 224: NODATA for the other family of addresses",
        concat!(
            ingress!("four", "rules: [{host: a.$Z}]", "{ip: 192.0.2.1}"),
            ingress!("six", "rules: [{host: b.$Z}]", "{ip: '2001:db8::1'}")
        ),
        &[("a AAAA", EMPTY), ("b A", EMPTY), ("b AAAA", "2001:db8::1"), ("a CNAME", EMPTY)],
    ),
    row(
        "gateway.go:201, 336: an object without addresses",
        concat!(
            service!("web, annotations: {coredns.io/hostname: a.$Z}", "type: LoadBalancer", ""),
            dns_endpoint!("web", "{dnsName: a.$Z, recordType: A, targets: [192.0.2.3]}")
        ),
        &[("a A", EMPTY)],
    )
    .differs(WITHOUT_TARGET),
    row(
        "gateway.go:248, 266: SOA, and types that k8s_gateway doesn't have",
        ingress!("web", "rules: [{host: a.$Z}]", "{ip: 192.0.2.1}"),
        &[("a SOA", EMPTY), ("b MX", ABSENT), ("b SOA", ABSENT), ("$Z. A", EMPTY)],
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
        &[("web A", "192.0.2.1")],
    ),
    row(
        "gateway_test.go:170: an Ingress with the zone as its host",
        ingress!("web", "rules: [{host: example.com}]", "{ip: 192.0.2.1}"),
        &[("example.com. A", EMPTY)],
    )
    .differs("the zone itself may be a host"),
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
    .differs("objects of several namespaces with one name are united"),
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
    .differs("several Services with one name: the addresses of all"),
    row(
        "README.md:160, kubernetes.go:811: the label k8s-gateway.dns/ignore",
        concat!(
            ingress!("one, labels: {k8s-gateway.dns/ignore: 'true'}", "rules: [{host: a.$Z}]", "{ip: 192.0.2.1}"),
            ingress!("two, labels: {k8s-gateway.dns/ignore: 'false'}", "rules: [{host: b.$Z}]", "{ip: 192.0.2.1}"),
            service!("web, labels: {k8s-gateway.dns/ignore: 'true'}", "type: LoadBalancer", "{ip: 192.0.2.1}"),
            gateway!("gw", "{name: web, $HTTP}", "{value: 192.0.2.1}"),
            route!("HTTPRoute", "web, labels: {k8s-gateway.dns/ignore: 'true'}", "c.$Z", "{name: gw}"),
            dns_endpoint!(
                "two, labels: {k8s-gateway.dns/ignore: 'true'}",
                "{dnsName: d.$Z, recordType: A, targets: [192.0.2.1]}"
            )
        ),
        &[("a A", ABSENT), ("b A", "192.0.2.1"), ("web A", ABSENT), ("c A", ABSENT), ("d A", ABSENT)],
    ),
    row(
        "gateway.go:48, apex.go:21: the default of apex, and names at and below it",
        concat!(
            service!("dns1" in "kube-system", "type: LoadBalancer", "{ip: 192.0.2.53}"),
            ingress!(
                "thief, creationTimestamp: '2020-01-01T00:00:00Z'",
                "rules: [{host: dns1.kube-system.example.com}, {host: x.dns1.kube-system.example.com},
                         {host: dns1.kube-system}]",
                "{ip: 192.0.2.66}"
            ),
            service!(
                "thief, annotations: {coredns.io/hostname: 'dns1.kube-system,x.dns1.kube-system.example.com'}",
                "type: LoadBalancer",
                "{ip: 192.0.2.66}"
            )
        ),
        &[
            ("example.com. NS", "dns1.kube-system.example.com."),
            ("dns1.kube-system.example.com. A", "192.0.2.53"),
            ("dns1.kube-system.example.com. AAAA", EMPTY),
            ("x.dns1.kube-system.example.com. A", ABSENT),
        ],
    ),
    row(
        "no rule there: a younger object of another namespace for a name, and its wildcard",
        concat!(
            ingress!(
                "web, creationTimestamp: '2026-01-01T00:00:00Z'",
                "rules: [{host: bank.$Z}, {host: '*.bank.$Z'}]",
                "{ip: 192.0.2.1}"
            ),
            ingress!(
                "thief, creationTimestamp: '2026-01-02T00:00:00Z'" in "$M",
                "rules: [{host: bank.$Z}, {host: '*.bank.$Z'}, {host: bank.$N}]",
                "{ip: 192.0.2.66}"
            ),
            service!(
                "thief, annotations: {coredns.io/hostname: bank.$Z}" in "$M",
                "type: LoadBalancer",
                "{ip: 192.0.2.66}"
            )
        ),
        &[("bank A", "192.0.2.1"), ("x.bank A", "192.0.2.1")],
    ),
    row(
        "gateway.go:136: names that only lb_linker reserves",
        ingress!("web", "rules: [{host: dns.example.com}, {host: a.dns.example.com}]", "{ip: 192.0.2.1}"),
        &[("dns.example.com. A", "192.0.2.1"), ("a.dns.example.com. A", "192.0.2.1")],
    ),
];
