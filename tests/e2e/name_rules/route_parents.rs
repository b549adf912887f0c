//! ExternalDNS's sources of routes, with `--gateway-listener-sets`: where a route has names, and what is behind them.

use super::{ABSENT, EMPTY, OPTIONS, Row, row};

const TRUST: &str = "`allowedListeners`, the labels of namespaces, and `Accepted` of each \
                     listener of a ListenerSet are checked";
const STATUS: &str = "the status for a parent counts whatever its `sectionName` and `port`";

macro_rules! listener_set {
    ($metadata:literal, $spec:literal, $accepted:literal) => {
        object!(
            "gateway.networking.k8s.io/v1",
            "ListenerSet",
            $metadata,
            concat!(
                "spec: {",
                $spec,
                "}\nstatus: {conditions: [{type: Accepted, status: '",
                $accepted,
                "'}]}"
            )
        )
    };
}

/// A route that isn't attached as usual.
macro_rules! plain_route {
    ($metadata:literal, $spec:literal, $parents:literal) => {
        object!(
            "gateway.networking.k8s.io/v1",
            "HTTPRoute",
            $metadata,
            concat!("spec: {", $spec, "}\nstatus: {parents: [", $parents, "]}")
        )
    };
}

pub(super) const ROWS: &[Row] = &[
    row(
        "source/gateway_httproute_test.go:610: the listener that sectionName names",
        concat!(
            gateway!(
                "gw",
                "{name: a, $HTTP, hostname: a.$Z}, {name: b, $HTTP, hostname: b.$Z}",
                "{value: 192.0.2.1}"
            ),
            route!("HTTPRoute", "web", "a.$Z, b.$Z", "{name: gw, sectionName: b}"),
            route!("HTTPRoute", "none", "a.$Z", "{name: gw, sectionName: c}")
        ),
        &[("a A", ABSENT), ("b A", "192.0.2.1")],
    ),
    row(
        "docs/sources/gateway.md:101: the listeners with the port",
        concat!(
            gateway!(
                "gw",
                "{name: a, port: 80, protocol: HTTP, hostname: a.$Z},
                 {name: b, port: 8080, protocol: HTTP, hostname: b.$Z}",
                "{value: 192.0.2.1}"
            ),
            route!("HTTPRoute", "web", "a.$Z, b.$Z", "{name: gw, port: 8080}"),
            route!("HTTPRoute", "none", "a.$Z", "{name: gw, sectionName: a, port: 8080}")
        ),
        &[("a A", ABSENT), ("b A", "192.0.2.1")],
    ),
    row(
        "docs/sources/gateway.md:85: a parent that hasn't accepted the route",
        concat!(
            gateway!("gw", "{name: web, $HTTP}", "{value: 192.0.2.1}"),
            plain_route!("none", "hostnames: [a.$Z], parentRefs: [{name: gw}]", ""),
            plain_route!(
                "refused",
                "hostnames: [b.$Z], parentRefs: [{name: gw}]",
                "{parentRef: {name: gw}, conditions: [{type: Accepted, status: 'False'}]}"
            ),
            plain_route!(
                "unknown",
                "hostnames: [c.$Z], parentRefs: [{name: gw}]",
                "{parentRef: {name: gw}, conditions: [{type: Accepted, status: Unknown}]}"
            ),
            plain_route!(
                "resolved",
                "hostnames: [d.$Z], parentRefs: [{name: gw}]",
                "{parentRef: {name: gw}, conditions: [{type: ResolvedRefs, status: 'True'}]}"
            )
        ),
        &[("a A", ABSENT), ("b A", ABSENT), ("c A", ABSENT), ("d A", ABSENT)],
    ),
    row(
        "source/gateway.go:799: Accepted for an earlier generation counts",
        concat!(
            gateway!("gw", "{name: web, $HTTP}", "{value: 192.0.2.1}"),
            plain_route!(
                "web, generation: 2",
                "hostnames: [a.$Z], parentRefs: [{name: gw}]",
                "{parentRef: {name: gw}, conditions: [{type: Accepted, status: 'True', observedGeneration: 1}]}"
            )
        ),
        &[("a A", "192.0.2.1")],
    ),
    row(
        "source/gateway_httproute_test.go:1505: a parent in the status that the spec doesn't have",
        concat!(
            gateway!("gw", "{name: web, $HTTP}", "{value: 192.0.2.1}"),
            gateway!("other", "{name: web, $HTTP}", "{value: 192.0.2.2}"),
            plain_route!(
                "web",
                "hostnames: [a.$Z], parentRefs: [{name: gw}]",
                "{parentRef: {name: other}, $ACCEPTED}"
            ),
            plain_route!("none", "hostnames: [b.$Z]", "{parentRef: {name: gw}, $ACCEPTED}")
        ),
        &[("a A", ABSENT), ("b A", ABSENT)],
    ),
    row(
        "source/gateway.go:779: the defaults of group, kind and namespace in spec and status",
        concat!(
            gateway!("gw", "{name: web, $HTTP}", "{value: 192.0.2.1}"),
            plain_route!(
                "web",
                "hostnames: [a.$Z], parentRefs: [{name: gw}]",
                "{parentRef: {group: gateway.networking.k8s.io, kind: Gateway, namespace: $N, name: gw}, $ACCEPTED}"
            )
        ),
        &[("a A", "192.0.2.1")],
    ),
    row(
        "source/gateway.go:784: another sectionName in the status than in the spec",
        concat!(
            gateway!(
                "gw",
                "{name: a, $HTTP, hostname: a.$Z}, {name: b, $HTTP, hostname: b.$Z}",
                "{value: 192.0.2.1}"
            ),
            plain_route!(
                "web",
                "hostnames: [a.$Z, b.$Z], parentRefs: [{name: gw, sectionName: a}]",
                "{parentRef: {name: gw, sectionName: b}, $ACCEPTED}"
            )
        ),
        &[("a A", ABSENT), ("b A", ABSENT)],
    )
    .differs(STATUS),
    row(
        "docs/sources/gateway.md:43: parents of other groups and kinds",
        concat!(
            service!("gw", "type: LoadBalancer", "{ip: 192.0.2.3}"),
            gateway!("gw", "{name: web, $HTTP}", "{value: 192.0.2.1}"),
            route!("HTTPRoute", "one", "a.$Z", "{group: '', kind: Service, name: gw}"),
            route!("HTTPRoute", "two", "b.$Z", "{group: example.com, kind: Gateway, name: gw}")
        ),
        &[("a A", ABSENT), ("b A", ABSENT)],
    ),
    row(
        "source/gateway_httproute_test.go:169, 346: --gateway-name, --gateway-label-filter",
        concat!(
            gateway!("gw, labels: {app: web}", "{name: web, $HTTP}", "{value: 192.0.2.1}"),
            gateway!("other", "{name: web, $HTTP}", "{value: 192.0.2.2}"),
            route!("HTTPRoute", "web", "a.$Z", "{name: gw}", "{name: other}")
        ),
        &[("a A", "192.0.2.1 192.0.2.2")],
    )
    .differs(OPTIONS),
    row(
        "docs/sources/gateway.md:85: a Gateway that doesn't exist",
        route!("HTTPRoute", "web", "a.$Z", "{name: gw}"),
        &[("a A", ABSENT)],
    ),
    row(
        "source/gateway_httproute_test.go:1167: allowedRoutes: by default the routes of the Gateway's namespace",
        concat!(
            gateway!("gw" in "$M", "{name: web, $HTTP, hostname: '*.$Z'}", "{value: 192.0.2.1}"),
            route!("HTTPRoute", "web", "a.$Z", "{name: gw, namespace: $M}"),
            gateway!(
                "same" in "$M",
                "{name: web, $HTTP, allowedRoutes: {namespaces: {from: Same}}}",
                "{value: 192.0.2.1}"
            ),
            route!("HTTPRoute", "same", "b.$Z", "{name: same, namespace: $M}")
        ),
        &[("a A", ABSENT), ("b A", ABSENT)],
    ),
    row(
        "source/gateway.go:610: allowedRoutes: All, without a ReferenceGrant",
        concat!(
            gateway!(
                "gw" in "$M",
                "{name: web, $HTTP, allowedRoutes: {namespaces: {from: All}}}",
                "{value: 192.0.2.1}"
            ),
            route!("HTTPRoute", "web", "a.$Z", "{name: gw, namespace: $M}")
        ),
        &[("a A", "192.0.2.1")],
    ),
    row(
        "source/gateway.go:631: allowedRoutes: None, and other words",
        concat!(
            gateway!(
                "gw",
                "{name: a, $HTTP, hostname: a.$Z, allowedRoutes: {namespaces: {from: None}}},
                 {name: b, $HTTP, hostname: b.$Z, allowedRoutes: {namespaces: {from: Other}}}",
                "{value: 192.0.2.1}"
            ),
            route!("HTTPRoute", "web", "a.$Z, b.$Z", "{name: gw}")
        ),
        &[("a A", ABSENT), ("b A", ABSENT)],
    ),
    row(
        "source/gateway_httproute_test.go:1215: allowedRoutes: Selector, with the labels of the namespace",
        concat!(
            gateway!(
                "gw" in "$M",
                "{name: web, $HTTP, allowedRoutes: {namespaces: {from: Selector, selector: {matchLabels: {a: b}}}}}",
                "{value: 192.0.2.1}"
            ),
            route!("HTTPRoute", "web", "a.$Z", "{name: gw, namespace: $M}")
        ),
        &[("a A", "192.0.2.1")],
    )
    .differs(TRUST),
    row(
        "source/gateway.go:643: allowedRoutes.kinds",
        concat!(
            gateway!(
                "gw",
                "{name: web, $HTTP, allowedRoutes: {kinds:
                 [{kind: GRPCRoute}, {group: example.com, kind: HTTPRoute}]}}",
                "{value: 192.0.2.1}"
            ),
            route!("HTTPRoute", "web", "a.$Z", "{name: gw}"),
            route!("GRPCRoute", "web", "b.$Z", "{name: gw}")
        ),
        &[("a A", ABSENT), ("b A", "192.0.2.1")],
    ),
    row(
        "docs/sources/gateway.md:109: the annotation target of the Gateway goes before its status",
        concat!(
            gateway!(
                "gw, annotations: {$E/target: '192.0.2.2,2001:db8::2'}",
                "{name: web, $HTTP}",
                "{value: 192.0.2.1}"
            ),
            route!("HTTPRoute", "web", "a.$Z", "{name: gw}")
        ),
        &[("a A", "192.0.2.2"), ("a AAAA", "2001:db8::2")],
    ),
    row(
        "docs/sources/gateway-api.md:149: the annotation target of a route has no effect",
        concat!(
            gateway!("gw", "{name: web, $HTTP}", "{value: 192.0.2.1}"),
            route!("HTTPRoute", "web, annotations: {$E/target: 192.0.2.2}", "a.$Z", "{name: gw}")
        ),
        &[("a A", "192.0.2.1")],
    ),
    row(
        "docs/sources/gateway.md:112: addresses of the Gateway: IPAddress, Hostname",
        concat!(
            gateway!(
                "ip",
                "{name: web, $HTTP}",
                "{type: IPAddress, value: 192.0.2.1}, {type: IPAddress, value: '2001:db8::1'}"
            ),
            gateway!("host", "{name: web, $HTTP}", "{type: Hostname, value: lb.example.com}"),
            route!("HTTPRoute", "ip", "a.$Z", "{name: ip}"),
            route!("HTTPRoute", "host", "b.$Z", "{name: host}")
        ),
        &[("a A", "192.0.2.1"), ("a AAAA", "2001:db8::1"), ("b CNAME", "lb.example.com.")],
    ),
    row(
        "docs/sources/gateway.md:112: hostnames and addresses of a Gateway",
        concat!(
            gateway!(
                "gw",
                "{name: web, $HTTP}",
                "{type: IPAddress, value: 192.0.2.1}, {type: Hostname, value: lb.example.com}"
            ),
            route!("HTTPRoute", "web", "a.$Z", "{name: gw}")
        ),
        &[("a CNAME", "lb.example.com."), ("a A", "lb.example.com.")],
    )
    .differs("hostnames and addresses of one object are CNAME, A and AAAA records of its names"),
    row(
        "source/gateway.go:540: addresses of a Gateway of any type",
        concat!(
            gateway!(
                "gw",
                "{name: web, $HTTP}",
                "{type: NamedAddress, value: front}, {type: example.com/x, value: 192.0.2.2},
                 {type: IPAddress, value: 192.0.2.1}"
            ),
            route!("HTTPRoute", "web", "a.$Z", "{name: gw}")
        ),
        &[("a A", "192.0.2.1")],
    )
    .differs("`status.addresses` of the Gateway, of type `IPAddress` and `Hostname`"),
    row(
        "source/gateway.go:540: a Gateway without addresses",
        concat!(gateway!("gw", "{name: web, $HTTP}", ""), route!("HTTPRoute", "web", "a.$Z", "{name: gw}")),
        &[("a A", EMPTY)],
    )
    .differs("a name without a target doesn't exist"),
    row(
        "docs/sources/gateway.md:115: the targets of several Gateways are united",
        concat!(
            gateway!("one", "{name: web, $HTTP}", "{value: 192.0.2.1}, {value: 192.0.2.2}"),
            gateway!("two", "{name: web, $HTTP}", "{value: 192.0.2.2}, {value: 192.0.2.3}"),
            route!("HTTPRoute", "web", "a.$Z", "{name: one}", "{name: two}")
        ),
        &[("a A", "192.0.2.1 192.0.2.2 192.0.2.3")],
    ),
    row(
        "source/gateway_httproute_test.go:1120: other hostnames at other Gateways",
        concat!(
            gateway!("one", "{name: web, $HTTP, hostname: '*.a.$Z'}", "{value: 192.0.2.1}"),
            gateway!("two", "{name: web, $HTTP, hostname: '*.b.$Z'}", "{value: 192.0.2.2}"),
            route!("HTTPRoute", "web", "x.a.$Z, x.b.$Z", "{name: one}", "{name: two}")
        ),
        &[("x.a A", "192.0.2.1"), ("x.b A", "192.0.2.2")],
    ),
    row(
        "source/gateway_httproute_test.go:529: Gateways in several namespaces",
        concat!(
            gateway!("gw", "{name: web, $HTTP}", "{value: 192.0.2.1}"),
            gateway!(
                "gw" in "$M",
                "{name: web, $HTTP, allowedRoutes: {namespaces: {from: All}}}",
                "{value: 192.0.2.2}"
            ),
            route!("HTTPRoute", "web", "a.$Z", "{name: gw, namespace: $M}", "{name: gw}")
        ),
        &[("a A", "192.0.2.2")],
    )
    .differs("Of a route with Gateways in several namespaces, those of one namespace are behind a name."),
    row(
        "source/gateway_httproute_test.go:1416: routes with one hostname",
        concat!(
            gateway!("one", "{name: web, $HTTP}", "{value: 192.0.2.1}"),
            gateway!("two", "{name: web, $HTTP}", "{value: 192.0.2.2}"),
            route!("HTTPRoute", "web", "a.$Z", "{name: one}"),
            route!("GRPCRoute", "web", "a.$Z", "{name: two}")
        ),
        &[("a A", "192.0.2.1 192.0.2.2")],
    ),
    row(
        "docs/sources/gateway-api.md:29: a route at a ListenerSet: the target of its Gateway",
        concat!(
            gateway!("gw" in "$M", "{name: other, $HTTP, hostname: o.$Z}", "{value: 192.0.2.1}"),
            listener_set!(
                "set",
                "parentRef: {name: gw, namespace: $M}, listeners: [{name: web, $HTTP, hostname: '*.$Z'}]",
                "True"
            ),
            route!("HTTPRoute", "web", "a.$Z", "{kind: ListenerSet, name: set}")
        ),
        &[("a A", "192.0.2.1"), ("o A", ABSENT)],
    ),
    row(
        "docs/sources/gateway-api.md:61: the annotation target of a ListenerSet goes before its Gateway's",
        concat!(
            gateway!("gw, annotations: {$E/target: 192.0.2.2}", "{name: other, $HTTP}", "{value: 192.0.2.1}"),
            listener_set!(
                "one, annotations: {$E/target: 192.0.2.3}",
                "parentRef: {name: gw}, listeners: [{name: web, $HTTP}]",
                "True"
            ),
            listener_set!("two", "parentRef: {name: gw}, listeners: [{name: web, $HTTP}]", "True"),
            route!("HTTPRoute", "one", "a.$Z", "{kind: ListenerSet, name: one}"),
            route!("HTTPRoute", "two", "b.$Z", "{kind: ListenerSet, name: two, sectionName: web}")
        ),
        &[("a A", "192.0.2.3"), ("b A", "192.0.2.2")],
    ),
    row(
        "source/gateway.go:686: a ListenerSet that isn't accepted",
        concat!(
            gateway!("gw", "{name: other, $HTTP}", "{value: 192.0.2.1}"),
            listener_set!("set", "parentRef: {name: gw}, listeners: [{name: web, $HTTP}]", "False"),
            route!("HTTPRoute", "web", "a.$Z", "{kind: ListenerSet, name: set}")
        ),
        &[("a A", ABSENT)],
    ),
    row(
        "source/gateway.go:683: allowedListeners of the Gateway",
        concat!(
            object!(
                "gateway.networking.k8s.io/v1",
                "Gateway",
                "gw",
                concat!(
                    "spec: {gatewayClassName: envoy, listeners: [{name: other, $HTTP}]}\n",
                    "status: {addresses: [{value: 192.0.2.1}]}"
                )
            ),
            listener_set!("set", "parentRef: {name: gw}, listeners: [{name: web, $HTTP}]", "True"),
            route!("HTTPRoute", "web", "a.$Z", "{kind: ListenerSet, name: set}")
        ),
        &[("a A", "192.0.2.1")],
    )
    .differs(TRUST),
    row(
        "source/gateway.go:681: a ListenerSet whose Gateway doesn't exist",
        concat!(
            listener_set!("set", "parentRef: {name: gw}, listeners: [{name: web, $HTTP}]", "True"),
            route!("HTTPRoute", "web", "a.$Z", "{kind: ListenerSet, name: set}")
        ),
        &[("a A", ABSENT)],
    ),
];
