//! The options of the plugin k8s_gateway for CoreDNS, the example of its README, and its chart.

use super::k8s_gateway::of_plugin;
use super::{ABSENT, EMPTY, Table, row};

pub(super) const DEFAULTS: Table = of_plugin(
    "# no option",
    &[row(
        "setup.go:155, gateway.go:43: Ingress and Service, 60 s",
        concat!(
            ingress!("web", "rules: [{host: a.$Z}]", "{ip: 192.0.2.1}"),
            service!("web", "type: LoadBalancer", "{ip: 192.0.2.2}"),
            dns_endpoint!("web", "{dnsName: c.$Z, recordType: A, targets: [192.0.2.3]}"),
            gateway!("gw", "{name: web, $HTTP}", "{value: 192.0.2.4}"),
            route!("HTTPRoute", "web", "d.$Z", "{name: gw}")
        ),
        &[
            ("a A", "192.0.2.1"),
            ("a A ttl", "60"),
            ("web A", "192.0.2.2"),
            ("c A", ABSENT),
            ("d A", ABSENT),
            ("dns1.kube-system.example.com. A", EMPTY),
        ],
    )],
);

/// Objects of all kinds at Gateways of their own, which ask for names in turn.
const OF_ALL_KINDS: &str = concat!(
    ingress!("web", "rules: [{host: a.$Z}, {host: b.$Z}]", "{ip: 192.0.2.1}"),
    gateway!("gw3", "{name: web, $HTTP}", "{value: 192.0.2.3}"),
    gateway!("gw4", "{name: tls, $TLS}", "{value: 192.0.2.4}"),
    gateway!("gw5", "{name: web, $HTTP}", "{value: 192.0.2.5}"),
    route!("HTTPRoute", "web", "a.$Z, b.$Z, c.$Z, d.$Z", "{name: gw3}"),
    route!("TLSRoute", "web", "a.$Z, d.$Z", "{name: gw4}"),
    route!("GRPCRoute", "web", "e.$Z", "{name: gw5}"),
);

pub(super) const ORDER: Table = of_plugin(
    "resources TLSRoute Ingress HTTPRoute",
    &[row(
        "README.md:70, gateway.go:94, 331: the order of resources, also of the kinds of routes",
        OF_ALL_KINDS,
        &[
            ("a A", "192.0.2.4"),
            ("b A", "192.0.2.1"),
            ("c A", "192.0.2.3"),
            ("d A", "192.0.2.4"),
            ("e A", ABSENT),
        ],
    )],
);

pub(super) const OTHER_ORDER: Table = of_plugin(
    "resources GRPCRoute HTTPRoute TLSRoute Ingress",
    &[row(
        "README.md:70, gateway.go:94, 331: another order of resources",
        OF_ALL_KINDS,
        &[
            ("a A", "192.0.2.3"),
            ("b A", "192.0.2.3"),
            ("c A", "192.0.2.3"),
            ("d A", "192.0.2.3"),
            ("e A", "192.0.2.5"),
        ],
    )],
);

pub(super) const CLASSES: Table = of_plugin(
    "resources Ingress HTTPRoute\n        ingressClasses nginx internal\n        gatewayClasses envoy",
    &[
        row(
            "README.md:71: ingressClasses",
            concat!(
                ingress!("one", "ingressClassName: nginx, rules: [{host: a.$Z}]", "{ip: 192.0.2.1}"),
                ingress!("two", "ingressClassName: internal, rules: [{host: b.$Z}]", "{ip: 192.0.2.1}"),
                ingress!("three", "ingressClassName: other, rules: [{host: c.$Z}]", "{ip: 192.0.2.1}")
            ),
            &[("a A", "192.0.2.1"), ("b A", "192.0.2.1"), ("c A", ABSENT)],
        ),
        row(
            "kubernetes.go:707: an Ingress without a class, which ends k8s_gateway with a panic",
            ingress!("one", "rules: [{host: a.$Z}]", "{ip: 192.0.2.1}"),
            &[("a A", ABSENT)],
        ),
        row(
            "README.md:72: gatewayClasses",
            concat!(
                gateway!("gw", "{name: web, $HTTP}", "{value: 192.0.2.1}"),
                "---\napiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\n",
                "metadata: {namespace: $N, name: other}\n",
                "spec: {gatewayClassName: istio, listeners: [{name: web, $HTTP}]}\n",
                "status: {addresses: [{value: 192.0.2.2}]}\n",
                route!("HTTPRoute", "one", "a.$Z", "{name: gw}"),
                route!("HTTPRoute", "two", "b.$Z", "{name: other}"),
                route!("HTTPRoute", "three", "c.$Z", "{name: gw}", "{name: other}")
            ),
            &[("a A", "192.0.2.1"), ("b A", ABSENT), ("c A", "192.0.2.1")],
        ),
    ],
);

pub(super) const SELECTORS: Table = of_plugin(
    "resources Ingress Service\n        serviceLabelSelectors tier=web,!old \"env in (a,b)\"",
    &[row(
        "README.md:73, kubernetes.go:582: serviceLabelSelectors, whose Services are united",
        concat!(
            service!("one, labels: {tier: web}", "type: LoadBalancer", "{ip: 192.0.2.1}"),
            service!("two, labels: {env: b}", "type: LoadBalancer", "{ip: 192.0.2.2}"),
            service!("both, labels: {tier: web, env: a}", "type: LoadBalancer", "{ip: 192.0.2.3}"),
            service!("old, labels: {tier: web, old: ''}", "type: LoadBalancer", "{ip: 192.0.2.4}"),
            service!("none", "type: LoadBalancer", "{ip: 192.0.2.5}"),
            ingress!("web", "rules: [{host: a.$Z}]", "{ip: 192.0.2.6}")
        ),
        &[
            ("one A", "192.0.2.1"),
            ("two A", "192.0.2.2"),
            ("both A", "192.0.2.3"),
            ("old A", ABSENT),
            ("none A", ABSENT),
            ("a A", "192.0.2.6"),
        ],
    )],
);

/// The example of the README, without its kubeconfig.
pub(super) const README: Table = of_plugin(
    "resources Ingress\n        ttl 30\n        apex exdns-1-k8s-gateway.kube-system\n        \
     secondary exdns-2-k8s-gateway.kube-system",
    &[
        row(
            "README.md:74: ttl; apex.go:75: SOA and NS have 60 s",
            ingress!("web", "rules: [{host: a.$Z}]", "{ip: 192.0.2.1}"),
            &[("a A ttl", "30"), ("example.com. NS ttl", "60"), ("example.com. SOA ttl", "60")],
        ),
        row(
            "README.md:75-76, 166: apex and secondary, with the addresses of their Services",
            concat!(
                service!("exdns-1-k8s-gateway" in "kube-system", "type: LoadBalancer", "{ip: 198.51.100.1}"),
                service!("exdns-2-k8s-gateway" in "kube-system", "type: LoadBalancer", "{ip: 203.0.113.11}"),
                ingress!(
                    "thief",
                    "rules: [{host: exdns-2-k8s-gateway.kube-system.example.com}]",
                    "{ip: 192.0.2.66}"
                )
            ),
            &[
                (
                    "example.com. NS",
                    "exdns-1-k8s-gateway.kube-system.example.com. exdns-2-k8s-gateway.kube-system.example.com.",
                ),
                ("exdns-1-k8s-gateway.kube-system.example.com. A", "198.51.100.1"),
                ("exdns-2-k8s-gateway.kube-system.example.com. A", "203.0.113.11"),
            ],
        ),
    ],
);

pub(super) const INGRESS_ALONE: Table = of_plugin(
    "resources Ingress",
    &[row(
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
);

pub(super) const FALLTHROUGH: Table = of_plugin(
    "fallthrough",
    &[
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
        .differs("`fallthrough` also passes on names without a target"),
    ],
);

pub(super) const FALLTHROUGH_OF_A_ZONE: Table = of_plugin(
    "fallthrough n0.example.com",
    &[
        row(
            "README.md:78: fallthrough n0.example.com, for a name there",
            ingress!("web", "rules: [{host: a.$Z}]", "{ip: 192.0.2.1}"),
            &[("a A", "192.0.2.1"), ("b A", "192.0.2.99")],
        ),
        row("README.md:78: fallthrough n0.example.com, for other names", "", &[("b A", ABSENT)]),
    ],
);

/// The lines of the chart's Corefile with its default values.
pub(super) const CHART: Table = of_plugin(
    "apex exdns-k8s-gateway.kube-system\n        ttl 300\n        resources Ingress Service",
    &[
        row(
            "charts/k8s-gateway/values.yaml:31: ttl 300; templates/configmap.yaml:21: apex",
            ingress!("web", "rules: [{host: a.$Z}]", "{ip: 192.0.2.1}"),
            &[("a A ttl", "300"), ("example.com. NS", "exdns-k8s-gateway.kube-system.example.com.")],
        ),
        row(
            "charts/k8s-gateway/templates/configmap.yaml:15: dnsChallenge.enabled",
            ingress!("web", "rules: [{host: a.$Z}]", "{ip: 192.0.2.1}"),
            &[("_acme-challenge.a CNAME", "a.$N.dns01.example.net."), ("a A", "192.0.2.1")],
        ),
        row(
            "apex.go:38, gateway.go:385: the hostname of a name server's Service is looked up",
            service!("exdns-k8s-gateway" in "kube-system", "type: LoadBalancer", "{hostname: lb.example.net}"),
            &[
                ("exdns-k8s-gateway.kube-system.example.com. CNAME", "lb.example.net."),
                ("exdns-k8s-gateway.kube-system.example.com. A", "lb.example.net. 192.0.2.77"),
            ],
        )
        .differs("the name server of a zone has the addresses behind a hostname in its Service's status"),
        row(
            "charts/k8s-gateway/values.yaml:37: watchedResources [Ingress, Service]",
            concat!(
                service!("web", "type: LoadBalancer", "{ip: 192.0.2.1}"),
                dns_endpoint!("web", "{dnsName: b.$Z, recordType: A, targets: [192.0.2.3]}")
            ),
            &[("web A", "192.0.2.1"), ("b A", ABSENT)],
        ),
    ],
);
