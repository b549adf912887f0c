//! ExternalDNS's sources `gateway-httproute`, `gateway-grpcroute` and `gateway-tlsroute`: which names a route has.

use super::{ABSENT, EMPTY, Row, WITHOUT_COUNTERPART, row};

const OTHER_ROUTES: &str = "TCPRoutes, UDPRoutes, and references to Services aren't followed.";
const ANNOTATED: &str =
    "a wildcard in the annotation `hostname` of a route is narrowed to a listener's hostname";

pub(super) const ROWS: &[Row] = &[
    row(
        "docs/sources/gateway.md:27: hostnames of the three kinds of routes",
        concat!(
            gateway!("gw", "{name: web, $HTTP}, {name: tls, $TLS}", "{type: IPAddress, value: 192.0.2.1}"),
            route!("HTTPRoute", "one", "a.$Z, b.$Z", "{name: gw}"),
            route!("GRPCRoute", "two", "c.$Z", "{name: gw}"),
            route!("TLSRoute", "three", "d.$Z", "{name: gw}")
        ),
        &[("a A", "192.0.2.1"), ("b A", "192.0.2.1"), ("c A", "192.0.2.1"), ("d A", "192.0.2.1")],
    ),
    row(
        "docs/sources/gateway.md:93: protocols: GRPCRoute and HTTPRoute at HTTP and HTTPS, TLSRoute at TLS",
        concat!(
            gateway!("http", "{name: web, $HTTP}", "{value: 192.0.2.1}"),
            gateway!("https", "{name: web, $HTTPS}", "{value: 192.0.2.2}"),
            gateway!("tls", "{name: web, $TLS}", "{value: 192.0.2.3}"),
            gateway!("tcp", "{name: web, port: 80, protocol: TCP}", "{value: 192.0.2.4}"),
            route!("HTTPRoute", "one", "a.$Z", "{name: http}", "{name: https}", "{name: tls}", "{name: tcp}"),
            route!("GRPCRoute", "two", "b.$Z", "{name: http}", "{name: https}", "{name: tls}", "{name: tcp}"),
            route!(
                "TLSRoute",
                "three",
                "c.$Z",
                "{name: http}",
                "{name: https}",
                "{name: tls}",
                "{name: tcp}"
            )
        ),
        &[("a A", "192.0.2.1 192.0.2.2"), ("b A", "192.0.2.1 192.0.2.2"), ("c A", "192.0.2.3")],
    ),
    row(
        "docs/sources/gateway.md:97: TCPRoutes and UDPRoutes, by the annotation hostname",
        concat!(
            gateway!(
                "gw",
                "{name: a, port: 80, protocol: TCP}, {name: b, port: 53, protocol: UDP}",
                "{value: 192.0.2.1}"
            ),
            object!(
                "gateway.networking.k8s.io/v1alpha2",
                "TCPRoute",
                "web, annotations: {$E/hostname: a.$Z}",
                "spec: {parentRefs: [{name: gw}]}\nstatus: {parents: [{parentRef: {name: gw}, $ACCEPTED}]}"
            ),
            object!(
                "gateway.networking.k8s.io/v1alpha2",
                "UDPRoute",
                "web, annotations: {$E/hostname: b.$Z}",
                "spec: {parentRefs: [{name: gw}]}\nstatus: {parents: [{parentRef: {name: gw}, $ACCEPTED}]}"
            )
        ),
        &[("a A", ABSENT), ("b A", ABSENT)],
    )
    .differs(OTHER_ROUTES),
    row(
        "docs/sources/gateway.md:19: equal hostnames of route and listener, in other cases",
        concat!(
            gateway!("gw", "{name: web, $HTTP, hostname: A.$Z}", "{value: 192.0.2.1}"),
            route!("HTTPRoute", "web", "a.$Z, b.$Z", "{name: gw}")
        ),
        &[("a A", "192.0.2.1"), ("b A", ABSENT)],
    ),
    row(
        "source/gateway_httproute_test.go:700: a wildcard of the listener, at any depth",
        concat!(
            gateway!("gw", "{name: web, $HTTP, hostname: '*.w.$Z'}", "{value: 192.0.2.1}"),
            route!("HTTPRoute", "web", "a.w.$Z, b.a.w.$Z, w.$Z, xw.$Z", "{name: gw}")
        ),
        &[
            ("a.w A", "192.0.2.1"),
            ("b.a.w A", "192.0.2.1"),
            ("w A", EMPTY),
            ("xw A", ABSENT),
            ("c.w A", ABSENT),
        ],
    ),
    row(
        "source/gateway_httproute_test.go:732: a wildcard of the route",
        concat!(
            gateway!("gw", "{name: web, $HTTP, hostname: a.w.$Z}", "{value: 192.0.2.1}"),
            route!("HTTPRoute", "web", "'*.w.$Z'", "{name: gw}")
        ),
        &[("a.w A", "192.0.2.1"), ("b.w A", ABSENT)],
    ),
    row(
        "source/gateway_httproute_test.go:764: the narrower one of two wildcards",
        concat!(
            gateway!("gw", "{name: web, $HTTP, hostname: '*.w.$Z'}", "{value: 192.0.2.1}"),
            route!("HTTPRoute", "web", "'*.v.w.$Z'", "{name: gw}"),
            route!("HTTPRoute", "same", "'*.w.$Z'", "{name: gw, sectionName: other}"),
            route!("HTTPRoute", "wide", "'*.$Z'", "{name: narrow}"),
            gateway!("narrow", "{name: web, $HTTP, hostname: '*.x.$Z'}", "{value: 192.0.2.2}")
        ),
        &[("a.v.w A", "192.0.2.1"), ("a.w A", ABSENT), ("a.x A", "192.0.2.2"), ("a A", ABSENT)],
    ),
    row(
        "docs/sources/gateway.md:21: a listener without hostname has all hostnames of the route",
        concat!(
            gateway!("gw", "{name: web, $HTTP}", "{value: 192.0.2.1}"),
            route!("HTTPRoute", "web", "a.$Z, '*.b.$Z'", "{name: gw}")
        ),
        &[("a A", "192.0.2.1"), ("x.b A", "192.0.2.1")],
    ),
    row(
        "docs/sources/gateway.md:36: a route without hostnames has those of the listeners",
        concat!(
            gateway!(
                "gw",
                "{name: a, $HTTP, hostname: a.$Z}, {name: b, $HTTP, hostname: '*.b.$Z'},
                 {name: c, $HTTPS, hostname: ''}",
                "{value: 192.0.2.1}"
            ),
            route!("HTTPRoute", "web", "", "{name: gw}")
        ),
        &[("a A", "192.0.2.1"), ("x.b A", "192.0.2.1")],
    ),
    row(
        "source/gateway_httproute_test.go:843: neither the route nor the listener has a hostname",
        concat!(
            gateway!("gw", "{name: web, $HTTP}", "{value: 192.0.2.1}"),
            route!("HTTPRoute", "web", "", "{name: gw}")
        ),
        &[("web A", ABSENT), ("$Z. A", ABSENT)],
    ),
    row(
        "docs/sources/gateway.md:30: the annotation hostname of a route",
        concat!(
            gateway!("gw", "{name: web, $HTTP, hostname: '*.$Z'}", "{value: 192.0.2.1}"),
            route!("HTTPRoute", "web, annotations: {$E/hostname: 'b.$Z, c.$Z'}", "a.$Z", "{name: gw}")
        ),
        &[("a A", "192.0.2.1"), ("b A", "192.0.2.1"), ("c A", "192.0.2.1")],
    ),
    row(
        "source/gateway.go:568: the annotation hostname, and the listener's hostname, of a route without hostnames",
        concat!(
            gateway!(
                "gw",
                "{name: a, $HTTP, hostname: a.$Z}, {name: b, $HTTP, hostname: '*.b.$Z'}",
                "{value: 192.0.2.1}"
            ),
            route!("HTTPRoute", "web, annotations: {$E/hostname: 'x.b.$Z,c.$Z'}", "", "{name: gw}")
        ),
        &[("a A", "192.0.2.1"), ("x.b A", "192.0.2.1"), ("y.b A", "192.0.2.1"), ("c A", ABSENT)],
    ),
    row(
        "source/gateway.go:533: a wildcard in the annotation hostname",
        concat!(
            gateway!("gw", "{name: web, $HTTP, hostname: b.$Z}", "{value: 192.0.2.1}"),
            route!("HTTPRoute", "web, annotations: {$E/hostname: '*.$Z'}", "a.$Z", "{name: gw}")
        ),
        &[("a A", ABSENT), ("b A", ABSENT)],
    )
    .differs(ANNOTATED),
    row(
        "docs/annotations/annotations.md:324: gateway-hostname-source: defined-hosts-only",
        concat!(
            gateway!("gw", "{name: web, $HTTP, hostname: '*.$Z'}", "{value: 192.0.2.1}"),
            route!(
                "HTTPRoute",
                "web, annotations: {$E/gateway-hostname-source: defined-hosts-only, $E/hostname: b.$Z}",
                "a.$Z",
                "{name: gw}"
            )
        ),
        &[("a A", "192.0.2.1"), ("b A", ABSENT)],
    ),
    row(
        "source/gateway.go:583: defined-hosts-only of a route without hostnames",
        concat!(
            gateway!("gw", "{name: web, $HTTP, hostname: a.$Z}", "{value: 192.0.2.1}"),
            route!(
                "HTTPRoute",
                "web, annotations: {$E/gateway-hostname-source: defined-hosts-only}",
                "",
                "{name: gw}"
            )
        ),
        &[("a A", ABSENT)],
    ),
    row(
        "docs/annotations/annotations.md:326: gateway-hostname-source: annotation-only",
        concat!(
            gateway!("gw", "{name: web, $HTTP, hostname: '*.$Z'}", "{value: 192.0.2.1}"),
            route!(
                "HTTPRoute",
                "web, annotations: {$E/gateway-hostname-source: Annotation-only, $E/hostname: b.$Z}",
                "a.$Z",
                "{name: gw}"
            ),
            route!(
                "HTTPRoute",
                "none, annotations: {$E/gateway-hostname-source: annotation-only}",
                "",
                "{name: gw}"
            )
        ),
        &[("a A", ABSENT), ("b A", "192.0.2.1"), ("c A", ABSENT)],
    ),
    row(
        "source/gateway_httproute_test.go:1620: an unknown value of gateway-hostname-source has no effect",
        concat!(
            gateway!("gw", "{name: web, $HTTP, hostname: '*.$Z'}", "{value: 192.0.2.1}"),
            route!(
                "HTTPRoute",
                "web, annotations: {$E/gateway-hostname-source: both, $E/hostname: b.$Z}",
                "a.$Z",
                "{name: gw}"
            )
        ),
        &[("a A", "192.0.2.1"), ("b A", "192.0.2.1")],
    ),
    row(
        "docs/annotations/annotations.md:46: another controller",
        concat!(
            gateway!("gw, annotations: {$E/controller: other}", "{name: web, $HTTP}", "{value: 192.0.2.1}"),
            route!("HTTPRoute", "web, annotations: {$E/controller: other}", "a.$Z", "{name: gw}"),
            route!("HTTPRoute", "own, annotations: {$E/controller: dns-controller}", "b.$Z", "{name: gw}")
        ),
        &[("a A", ABSENT), ("b A", "192.0.2.1")],
    ),
    row(
        "docs/sources/gateway-api.md:63: the annotation ttl, of a route alone",
        concat!(
            gateway!("gw, annotations: {$E/ttl: '60'}", "{name: web, $HTTP}", "{value: 192.0.2.1}"),
            route!("HTTPRoute", "web", "a.$Z", "{name: gw}"),
            route!("GRPCRoute", "web, annotations: {$E/ttl: 5m}", "b.$Z", "{name: gw}")
        ),
        &[("a A ttl", "5"), ("b A ttl", "300")],
    ),
    row(
        "docs/sources/gateway.md:32: --fqdn-template, for a route without hostnames",
        concat!(
            gateway!("gw", "{name: web, $HTTP}", "{value: 192.0.2.1}"),
            route!("HTTPRoute", "web", "", "{name: gw}")
        ),
        &[("web A", ABSENT)],
    )
    .differs(WITHOUT_COUNTERPART),
];
