//! Options of ExternalDNS and k8s_gateway that leave objects, targets or annotations out.

use super::{ABSENT, EMPTY, EVERY_SOURCE, PREFIXES, Row, Table, row};

const ZONE: &str = "lb.internal";
const NO_FILTER: &str = "labels and annotations select objects of all kinds \
                         (`--label-filter`, `--annotation-filter`)";

pub(super) const CLASSES: Table = Table {
    rows: OF_CLASSES,
    zone: ZONE,
    plugin: "lb_linker",
    options: "sources ingress gateway\n        ingress_classes nginx public\n        gateway_classes envoy",
    flags: &[],
};

const OF_CLASSES: &[Row] = &[
    row(
        "docs/sources/ingress.md:7: --ingress-class nginx public; k8s_gateway README.md:71: ingressClasses",
        concat!(
            ingress!("one", "ingressClassName: nginx, rules: [{host: a.$Z}]", "{ip: 192.0.2.1}"),
            ingress!("two", "ingressClassName: public, rules: [{host: b.$Z}]", "{ip: 192.0.2.1}"),
            ingress!("three", "ingressClassName: other, rules: [{host: c.$Z}]", "{ip: 192.0.2.1}"),
            ingress!("four", "rules: [{host: d.$Z}]", "{ip: 192.0.2.1}")
        ),
        &[("a A", "192.0.2.1"), ("b A", "192.0.2.1"), ("c A", ABSENT), ("d A", ABSENT)],
    ),
    row(
        "source/ingress.go:211: the class in the annotation, if the spec has none",
        concat!(
            ingress!(
                "one, annotations: {kubernetes.io/ingress.class: nginx}",
                "rules: [{host: a.$Z}]",
                "{ip: 192.0.2.1}"
            ),
            ingress!(
                "two, annotations: {kubernetes.io/ingress.class: other}",
                "rules: [{host: b.$Z}]",
                "{ip: 192.0.2.1}"
            ),
            ingress!(
                "three, annotations: {kubernetes.io/ingress.class: nginx}",
                "ingressClassName: other, rules: [{host: c.$Z}]",
                "{ip: 192.0.2.1}"
            )
        ),
        &[("a A", "192.0.2.1"), ("b A", ABSENT), ("c A", ABSENT)],
    ),
    row(
        "k8s_gateway README.md:72: gatewayClasses",
        concat!(
            gateway!("gw", "{name: web, $HTTP}", "{value: 192.0.2.1}"),
            object!(
                "gateway.networking.k8s.io/v1",
                "Gateway",
                "other",
                concat!(
                    "spec: {gatewayClassName: other, listeners: [{name: web, $HTTP}]}\n",
                    "status: {addresses: [{value: 192.0.2.2}]}"
                )
            ),
            route!("HTTPRoute", "web", "a.$Z", "{name: other}", "{name: gw}"),
            route!("HTTPRoute", "none", "b.$Z", "{name: other}")
        ),
        &[("a A", "192.0.2.1"), ("b A", ABSENT)],
    ),
];

pub(super) const NAMESPACES: Table = Table {
    rows: OF_NAMESPACES,
    zone: ZONE,
    plugin: "lb_linker",
    options: EVERY_SOURCE,
    flags: &[("LB_LINKER_WATCH_NAMESPACES", "n0,n1")],
};

const OF_NAMESPACES: &[Row] = &[
    row(
        "docs/flags.md:46: --namespace",
        concat!(
            ingress!("web", "rules: [{host: a.$Z}]", "{ip: 192.0.2.1}"),
            ingress!("web" in "$M", "rules: [{host: a.$M.lb.internal}]", "{ip: 192.0.2.1}"),
            service!("web" in "$M", "type: LoadBalancer", "{ip: 192.0.2.1}"),
            dns_endpoint!("web" in "$M", "{dnsName: b.$M.lb.internal, recordType: A, targets: [192.0.2.1]}")
        ),
        &[
            ("a A", "192.0.2.1"),
            ("a.$M.lb.internal. A", ABSENT),
            ("b.$M.lb.internal. A", ABSENT),
            ("web.$M.lb.internal. A", ABSENT),
        ],
    ),
    row(
        "docs/flags.md:37: --namespace is about routes alone, --gateway-namespace about Gateways",
        concat!(
            gateway!(
                "gw" in "$M",
                "{name: web, $HTTP, allowedRoutes: {namespaces: {from: All}}}",
                "{value: 192.0.2.1}"
            ),
            route!("HTTPRoute", "web", "a.$Z", "{name: gw, namespace: $M}")
        ),
        &[("a A", ABSENT)],
    )
    .differs("a route with an unwatched Gateway or ListenerSet among its `parentRefs`"),
];

pub(super) const SELECTION: Table = Table {
    rows: &[row(
        "docs/flags.md:22: --annotation-filter, for all kinds of objects",
        concat!(
            ingress!("one", "rules: [{host: a.$Z}]", "{ip: 192.0.2.1}"),
            ingress!("two, annotations: {$L/managed: 'true'}", "rules: [{host: b.$Z}]", "{ip: 192.0.2.1}"),
            gateway!("gw", "{name: web, $HTTP}", "{value: 192.0.2.1}"),
            route!("HTTPRoute", "one", "c.$Z", "{name: gw}"),
            route!("HTTPRoute", "two, annotations: {$L/managed: 'true'}", "d.$Z", "{name: gw}"),
            dns_endpoint!("one", "{dnsName: e.$Z, recordType: A, targets: [192.0.2.1]}"),
            dns_endpoint!(
                "two, annotations: {$L/managed: 'true'}",
                "{dnsName: f.$Z, recordType: A, targets: [192.0.2.1]}"
            ),
            service!("one", "type: LoadBalancer", "{ip: 192.0.2.1}"),
            service!("two, annotations: {$L/managed: 'true'}", "type: LoadBalancer", "{ip: 192.0.2.1}")
        ),
        &[
            ("a A", ABSENT),
            ("b A", "192.0.2.1"),
            ("c A", ABSENT),
            ("d A", "192.0.2.1"),
            ("e A", ABSENT),
            ("f A", "192.0.2.1"),
            ("one A", ABSENT),
            ("two A", "192.0.2.1"),
        ],
    )
    .differs(NO_FILTER)],
    zone: ZONE,
    plugin: "lb_linker",
    options: EVERY_SOURCE,
    flags: &[("LB_LINKER_SELECTION", "annotated")],
};

pub(super) const LABELS: Table = Table {
    rows: &[
        row(
            "docs/flags.md:44: --label-filter; k8s_gateway README.md:73: serviceLabelSelectors; for Services",
            concat!(
                service!("web, labels: {app: web}", "type: LoadBalancer", "{ip: 192.0.2.1}"),
                service!("other, labels: {app: other}", "type: LoadBalancer", "{ip: 192.0.2.1}"),
                service!("none", "type: LoadBalancer", "{ip: 192.0.2.1}")
            ),
            &[("web A", "192.0.2.1"), ("other A", ABSENT), ("none A", ABSENT)],
        ),
        row(
            "docs/flags.md:44: --label-filter, for other objects",
            ingress!("web, labels: {app: other}", "rules: [{host: a.$Z}]", "{ip: 192.0.2.1}"),
            &[("a A", "192.0.2.1")],
        )
        .differs(NO_FILTER),
    ],
    zone: ZONE,
    plugin: "lb_linker",
    options: EVERY_SOURCE,
    flags: &[("LB_LINKER_SERVICE_SELECTOR", "app=web")],
};

pub(super) const TARGETS: Table = Table {
    rows: &[
        row(
            "docs/flags.md:53: --target-net-filter",
            ingress!("web", "rules: [{host: a.$Z}]", "{ip: 198.51.100.1}, {ip: 192.0.2.1}"),
            &[("a A", "192.0.2.1")],
        ),
        row(
            "docs/flags.md:32: --exclude-target-net",
            concat!(
                ingress!("web", "rules: [{host: a.$Z}]", "{ip: 192.0.2.129}, {ip: 192.0.2.1}"),
                gateway!("gw", "{name: web, $HTTP}", "{value: 192.0.2.129}, {value: 192.0.2.2}"),
                route!("HTTPRoute", "web", "b.$Z", "{name: gw}")
            ),
            &[("a A", "192.0.2.1"), ("b A", "192.0.2.2")],
        ),
        row(
            "docs/flags.md:32: --exclude-target-net, with no other target",
            ingress!("web", "rules: [{host: a.$Z}]", "{ip: 192.0.2.129}"),
            &[("a A", EMPTY)],
        )
        .differs("a name without a target doesn't exist"),
    ],
    zone: ZONE,
    plugin: "lb_linker",
    options: EVERY_SOURCE,
    flags: &[("LB_LINKER_TARGET_NETS", "192.0.2.0/24"), ("LB_LINKER_DENIED_NETS", "192.0.2.128/25")],
};

pub(super) const TTL: Table = Table {
    rows: &[row(
        "docs/flags.md:172: --min-ttl 1m, the TTL where no source has one",
        concat!(
            ingress!("one", "rules: [{host: a.$Z}]", "{ip: 192.0.2.1}"),
            ingress!("two, annotations: {$E/ttl: '30'}", "rules: [{host: b.$Z}]", "{ip: 192.0.2.1}"),
            dns_endpoint!("one", "{dnsName: c.$Z, recordType: A, targets: [192.0.2.1]}")
        ),
        &[("a A ttl", "60"), ("b A ttl", "30"), ("c A ttl", "60")],
    )],
    zone: ZONE,
    plugin: "lb_linker",
    options: "ttl 60\n        sources ingress dnsendpoint",
    flags: &[PREFIXES],
};

pub(super) const PREFIX: Table = Table {
    rows: &[row(
        "docs/flags.md:23: --annotation-prefix example.com/",
        concat!(
            ingress!(
                "web, annotations: {example.com/hostname: b.$Z, example.com/ttl: 1m, $E/hostname: c.$Z}",
                "rules: [{host: a.$Z}]",
                "{ip: 192.0.2.1}"
            ),
            ingress!(
                "both, annotations: {example.com/target: 192.0.2.2, $L/target: 192.0.2.3, $E/controller: other}",
                "rules: [{host: d.$Z}]",
                "{ip: 192.0.2.1}"
            )
        ),
        &[("a A ttl", "60"), ("b A", "192.0.2.1"), ("c A", ABSENT), ("d A", "192.0.2.3")],
    )],
    zone: ZONE,
    plugin: "lb_linker",
    options: EVERY_SOURCE,
    flags: &[("LB_LINKER_ANNOTATION_PREFIXES", "example.com/")],
};
