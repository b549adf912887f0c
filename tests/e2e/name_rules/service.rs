//! ExternalDNS's source `service`.

use super::{ABSENT, EMPTY, Row, row};

const OTHER_TYPES: &str = "Services of the types ClusterIP, NodePort and ExternalName have names, too";

pub(super) const ROWS: &[Row] = &[
    row(
        "docs/sources/service.md:17: the annotation hostname",
        service!(
            "web, annotations: {$E/hostname: 'a.$Z, b.$Z'}",
            "type: LoadBalancer",
            "{ip: 192.0.2.1}, {ip: '2001:db8::1'}"
        ),
        &[("a A", "192.0.2.1"), ("b A", "192.0.2.1"), ("b AAAA", "2001:db8::1")],
    ),
    row(
        "docs/sources/service.md:17: a Service without annotations has no name",
        service!("web", "type: LoadBalancer", "{ip: 192.0.2.1}"),
        &[("web A", "192.0.2.1"), ("web-$N.lb.internal. A", "192.0.2.1")],
    )
    .differs("load balancers have no names but those of annotations"),
    row(
        "docs/flags.md:23: --annotation-prefix, as ExternalDNS had it before 0.22",
        service!(
            "web, annotations: {$OLD/hostname: a.$Z, $OLD/ttl: 1h, $OLD/target: b.example.com}",
            "type: LoadBalancer",
            "{ip: 192.0.2.1}"
        ),
        &[("a CNAME", "b.example.com."), ("a CNAME ttl", "3600")],
    ),
    row(
        "docs/sources/service.md:38: the annotation target goes before the status",
        service!(
            "web, annotations: {$E/hostname: a.$Z, $E/target: '192.0.2.2,192.0.2.3'}",
            "type: LoadBalancer",
            "{ip: 192.0.2.1}"
        ),
        &[("a A", "192.0.2.2 192.0.2.3")],
    ),
    row(
        "docs/sources/service.md:44: internal-hostname leads to spec.clusterIP",
        service!(
            "web, annotations: {$E/hostname: a.$Z, $E/internal-hostname: 'b.$Z,c.$Z'}",
            "type: LoadBalancer, clusterIP: 10.96.0.1, clusterIPs: [10.96.0.1]",
            "{ip: 192.0.2.1}"
        ),
        &[("a A", "192.0.2.1"), ("b A", "10.96.0.1"), ("c A", "10.96.0.1")],
    ),
    row(
        "docs/sources/service.md:45: spec.clusterIP None is no target",
        service!(
            "web, annotations: {$E/internal-hostname: b.$Z}",
            "type: LoadBalancer, clusterIP: None, clusterIPs: [None]",
            "{ip: 192.0.2.1}"
        ),
        &[("b A", EMPTY)],
    )
    .differs("a name without a target doesn't exist"),
    row(
        "source/service.go:567: of spec.clusterIPs the first one alone",
        service!(
            "web, annotations: {$E/internal-hostname: b.$Z}",
            "type: LoadBalancer, clusterIP: 10.96.0.1, clusterIPs: [10.96.0.1, 'fd00::1']",
            "{ip: 192.0.2.1}"
        ),
        &[("b A", "10.96.0.1"), ("b AAAA", "fd00::1")],
    )
    .differs("`internal-hostname` leads to `spec.clusterIP` alone, or to the annotation `target`"),
    row(
        "source/service.go:520: the annotation target goes before the cluster IP",
        service!(
            "web, annotations: {$E/internal-hostname: b.$Z, $E/target: 192.0.2.2}",
            "type: LoadBalancer, clusterIP: 10.96.0.1, clusterIPs: [10.96.0.1]",
            "{ip: 192.0.2.1}"
        ),
        &[("b A", "10.96.0.1")],
    )
    .differs("`internal-hostname` leads to `spec.clusterIP` alone, or to the annotation `target`"),
    row(
        "docs/sources/service.md:48: spec.externalIPs in place of the status",
        service!(
            "web, annotations: {$E/hostname: a.$Z}",
            "type: LoadBalancer, externalIPs: [192.0.2.9]",
            "{ip: 192.0.2.1}"
        ),
        &[("a A", "192.0.2.1")],
    )
    .differs("`spec.externalIPs` of a Service in place of its status"),
    row(
        "docs/sources/service.md:50: a hostname of the status",
        service!("web, annotations: {$E/hostname: a.$Z}", "type: LoadBalancer", "{hostname: lb.example.com}"),
        &[("a CNAME", "lb.example.com."), ("a A", "lb.example.com.")],
    ),
    row(
        "docs/sources/service.md:50: hostnames and addresses of the status",
        service!(
            "web, annotations: {$E/hostname: a.$Z}",
            "type: LoadBalancer",
            "{ip: 192.0.2.1}, {hostname: lb.example.com}"
        ),
        &[("a CNAME", "lb.example.com.")],
    )
    .differs("hostnames and addresses of one object are CNAME, A and AAAA records of its names"),
    row(
        "docs/sources/service.md:52: --resolve-service-load-balancer-hostname",
        service!("web, annotations: {$E/hostname: a.$Z}", "type: LoadBalancer", "{hostname: lb.example.net}"),
        &[("a A", "lb.example.net. 192.0.2.77"), ("a AAAA", "lb.example.net. 2001:db8::77")],
    )
    .differs("the CNAME and the records behind it"),
    row(
        "source/service.go:584: no target yet",
        service!("web, annotations: {$E/hostname: a.$Z}", "type: LoadBalancer", ""),
        &[("a A", EMPTY)],
    )
    .differs("a name without a target doesn't exist"),
    row(
        "docs/annotations/annotations.md:46: another controller",
        service!(
            "web, annotations: {$E/hostname: a.$Z, $E/controller: other}",
            "type: LoadBalancer",
            "{ip: 192.0.2.1}"
        ),
        &[("a A", ABSENT), ("web A", ABSENT)],
    ),
    row(
        "docs/annotations/annotations.md:315: ttl as a duration",
        service!(
            "web, annotations: {$E/hostname: a.$Z, $E/ttl: 2m}",
            "type: LoadBalancer",
            "{ip: 192.0.2.1}"
        ),
        &[("a A ttl", "120")],
    ),
    row(
        "source/service.go:241: Services with one hostname",
        concat!(
            service!(
                "young, creationTimestamp: '2026-01-02T00:00:00Z', annotations: {$E/hostname: a.$Z}",
                "type: LoadBalancer",
                "{ip: 192.0.2.2}"
            ),
            service!(
                "old, creationTimestamp: '2026-01-01T00:00:00Z', annotations: {$E/hostname: a.$Z}",
                "type: LoadBalancer",
                "{ip: 192.0.2.1}"
            )
        ),
        &[("a A", "192.0.2.1")],
    )
    .differs("several Services with one name: the addresses of all"),
    row(
        "docs/sources/service.md:58: the addresses of a headless Service's endpoints; docs/flags.md:21, 50",
        service!("web, annotations: {$E/hostname: a.$Z}", "type: ClusterIP, clusterIP: None", ""),
        &[("a A", ABSENT)],
    )
    .differs(OTHER_TYPES),
    row(
        "docs/sources/service.md:78: internal-hostname of a Service of type ClusterIP; docs/flags.md:51",
        service!(
            "web, annotations: {$E/internal-hostname: a.$Z}",
            "type: ClusterIP, clusterIP: 10.96.0.1",
            ""
        ),
        &[("a A", ABSENT)],
    )
    .differs(OTHER_TYPES),
    row(
        "docs/sources/service.md:81: a Service of type ClusterIP has no target; docs/flags.md:52: LoadBalancer alone",
        service!("web, annotations: {$E/hostname: a.$Z}", "type: ClusterIP, clusterIP: 10.96.0.1", ""),
        &[("a A", ABSENT)],
    ),
    row(
        "docs/sources/service.md:99: the annotation access of a Service of type NodePort",
        service!(
            "web, annotations: {$E/hostname: a.$Z, $E/access: private}",
            "type: NodePort, ports: [{port: 80, nodePort: 30080}]",
            ""
        ),
        &[("a A", ABSENT), ("_web._tcp.a SRV", ABSENT)],
    )
    .differs(OTHER_TYPES),
    row(
        "docs/sources/service.md:120: spec.externalName",
        service!(
            "web, annotations: {$E/hostname: a.$Z}",
            "type: ExternalName, externalName: a.example.com",
            ""
        ),
        &[("a A", ABSENT)],
    )
    .differs(OTHER_TYPES),
    row(
        "docs/sources/service.md:38: the annotation target of a Service of any type",
        service!(
            "web, annotations: {$E/hostname: a.$Z, $E/target: 192.0.2.2}",
            "type: ClusterIP, clusterIP: 10.96.0.1",
            ""
        ),
        &[("a A", ABSENT)],
    )
    .differs(OTHER_TYPES),
];
