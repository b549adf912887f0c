//! The options of a line, and the zone's own records.

use std::path::Path;
use std::sync::Arc;

use hickory_proto::rr::Name;

use crate::dns::corefile::{FileSources, parse};
use crate::dns::plugins::lb_linker::LinkZone;
use crate::dns::plugins::link_zones::link_zones;
use crate::dns::plugins::tests::support::{TestServer, link};
use crate::model::link::{Annotations, ObservedService};
use crate::model::owner::{K8sGateway, Source, Zone};
use crate::model::service_key::ServiceKey;
use crate::store::Input;

fn zones(text: &str) -> Result<Vec<LinkZone>, String> {
    let blocks = parse(Path::new("Corefile"), text, &FileSources::SYSTEM).unwrap();
    link_zones(&blocks, &Name::from_ascii("cluster.local.").unwrap()).map_err(|error| error.to_string())
}

/// Returns the zone of a line with these options.
fn zone(options: &str) -> LinkZone {
    zones(&format!(". {{\nk8s_gateway example.com {{\n{options}\n}}\n}}\n")).unwrap().remove(0)
}

fn texts(texts: &[Box<str>]) -> String {
    texts.iter().map(|text| &**text).collect::<Vec<_>>().join(" ")
}

#[test]
fn options_have_the_defaults_of_k8s_gateway() {
    let LinkZone { apex, sources, ingress_classes, k8s_gateway, kubeconfig, .. } = zone("");
    assert_eq!((&*apex, &sources[..]), ("dns1.kube-system", &[Source::INGRESSES, Source::SERVICES][..]));
    assert_eq!((ingress_classes.len(), k8s_gateway, kubeconfig), (0, Some(K8sGateway::default()), None));
}

#[test]
fn all_options_are_read() {
    let found = zone(
        "resources DNSEndpoint TLSRoute Service HTTPRoute Ingress GRPCRoute\ningressClasses a b\ngatewayClasses c\n\
         serviceLabelSelectors tier=web \"env in (b,a)\"\nserviceLabelSelectors !x\nttl 30\napex Exdns-1.Kube-System\n\
         secondary exdns-2.kube-system\nkubeconfig /kube/config lab\nfallthrough a.example.com",
    );
    let words: Vec<&str> = found.sources.iter().map(|source| &*source.kind).collect();
    assert_eq!(words.join(" "), "DNSEndpoint TLSRoute Service HTTPRoute Ingress GRPCRoute");
    assert_eq!([texts(&found.ingress_classes), texts(&found.gateway_classes)], ["a b", "c"]);
    let K8sGateway { secondary, service_selectors } = found.k8s_gateway.unwrap();
    assert_eq!(texts(&service_selectors), "tier=web env in (a,b) !x");
    assert_eq!((&*found.apex, secondary.as_deref()), ("exdns-1.kube-system", Some("exdns-2.kube-system")));
    let kubeconfig = found.kubeconfig.unwrap();
    assert_eq!(
        (kubeconfig.path.to_str(), kubeconfig.context.as_deref()),
        (Some("/kube/config"), Some("lab"))
    );
}

#[test]
fn invalid_options_are_refused_at_their_words() {
    for (option, expected) in [
        ("resources Node", "11: lb-linker has no names of Nodes: leave Node out, or write a DNSEndpoint"),
        (
            "resources Service Ingres",
            "19: \"Ingres\" isn't one of the resources Ingress, Service, HTTPRoute, GRPCRoute, TLSRoute, DNSEndpoint; is it \
             Ingress?",
        ),
        ("resources", "1: resources needs a resource, such as Ingress"),
        ("nodeAddressType InternalIP", "1: lb-linker has no names of Nodes: leave nodeAddressType out"),
        ("ingresClasses a", "1: k8s_gateway has no option \"ingresClasses\"; is it ingressClasses?"),
        ("sources ingress", "1: k8s_gateway has no option \"sources\"; is it resources?"),
        ("ingressClasses", "1: ingressClasses needs the name of an IngressClass"),
        ("gatewayClasses", "1: gatewayClasses needs the name of a GatewayClass"),
        ("serviceLabelSelectors", "1: serviceLabelSelectors needs a label selector such as app=web"),
        ("serviceLabelSelectors \"\"", "23: \"\" isn't a label selector such as app=web"),
        ("serviceLabelSelectors a=b,=c", "23: \"a=b,=c\" is not a label selector such as app=web"),
        ("ttl 3601", "5: \"3601\" isn't a number of seconds from 0 to 3600"),
        ("ttl", "1: ttl needs a number of seconds from 0 to 3600"),
        ("apex a..b", "6: \"a..b\" isn't a name such as dns1.kube-system, below the zone"),
        ("secondary a.deleted", "11: \"a.deleted\" isn't a name such as dns1.kube-system, below the zone"),
        ("kubeconfig", "1: kubeconfig needs a kubeconfig file, and perhaps a context"),
        ("kubeconfig /absent/kubeconfig", "12: /absent/kubeconfig: can't be read"),
        ("ttl 5 {\nx\n}", "1: ttl takes no braces"),
    ] {
        let error = TestServer::error(&format!("k8s_gateway example.com {{\n{option}\n}}"));
        assert!(error.starts_with(&format!("Corefile:3:{expected}")), "{option}: {error}");
    }
}

#[test]
fn zones_conflict_only_where_one_hides_the_other() {
    let both = |zones: &str| format!("example.com {{\nk8s_gateway\n}}\n{zones}");
    for (text, expected) in [
        (both("lb.internal {\nlb_linker\n}\n"), None),
        (". {\nlb_linker lb.internal\nk8s_gateway example.com\n}\n".to_owned(), None),
        (
            both("example.com:54 {\nlb_linker\n}\n"),
            Some("5:1: the zone example.com is one of k8s_gateway already: a zone has either"),
        ),
        (both("a.example.com {\nlb_linker\n}\n"), Some("5:1: the zone a.example.com lies in example.com")),
        (both("example.com:54 {\nk8s_gateway {\napex a\n}\n}\n"), Some("5:1: the zone example.com has the apex")),
        (
            both("example.com:54 {\nk8s_gateway {\nserviceLabelSelectors a\n}\n}\n"),
            Some("5:1: the zone example.com has other serviceLabelSelectors in another block (none)"),
        ),
        (". {\nk8s_gateway\n}\n".to_owned(), Some("2:1: k8s_gateway needs a zone for the links' names")),
        (
            ". {\nk8s_gateway a.example {\nkubeconfig a\n}\n}\nb.example {\nk8s_gateway {\nkubeconfig b\n}\n}\n"
                .to_owned(),
            Some("7:1: its kubeconfig or context differs from that of line 2"),
        ),
    ] {
        let found = zones(&text).err();
        let is_expected = |expected: &str| {
            found.as_ref().is_some_and(|found| found.starts_with(&format!("Corefile:{expected}")))
        };
        assert!(expected.map_or(found.is_none(), is_expected), "{text}: {found:?}");
    }
}

/// Returns a block with these options, and a store with these load balancers, each with the names it asks for.
fn server(options: &str, services: &[(&str, &str, &str, &[&str])]) -> TestServer {
    let server = TestServer::block(&format!("k8s_gateway example.com {{\n{options}\n}}"));
    let store = &server.shared.store;
    store.set_zones([Zone::from(&zone(options))]);
    let of = |(namespace, name, target, names): &(&str, &str, &str, &[&str])| ObservedService {
        key: ServiceKey::new(namespace, name),
        annotations: Annotations {
            hostnames: names.iter().map(|name| Arc::from(*name)).collect(),
            ..Annotations::default()
        },
        resource_version: Some(7),
        ..link(name, target)
    };
    store.continue_at(7);
    store.replace(None, services.iter().map(of).collect::<Vec<_>>(), vec![], &Default::default());
    store.set_known(Input::Services);
    server
}

const SERVICES: &str = "resources Service";
const SOA: &str = "example.com. 60 IN SOA dns1.kube-system.example.com. hostmaster.dns1.kube-system.example.com. 7 7200 \
                   1800 86400 60";

#[tokio::test]
async fn name_servers_have_the_addresses_of_their_services() {
    let options = "resources Service\nsecondary two.kube-system";
    let both: &[(&str, &str, &str, &[&str])] = &[
        ("kube-system", "dns1", "192.0.2.53", &[]),
        ("kube-system", "two", "192.0.2.54", &["a.example.com"]),
    ];
    let server = server(options, both);
    let of_zone = "example.com. 60 IN NS dns1.kube-system.example.com., example.com. 60 IN NS two.kube-system.example.com.";
    let glue =
        "dns1.kube-system.example.com. 60 IN A 192.0.2.53, two.kube-system.example.com. 60 IN A 192.0.2.54";
    assert_eq!(server.ask("example.com. NS").await, format!("NOERROR aa | {of_zone} | | {glue}"));
    assert_eq!(server.ask("example.com. SOA").await, format!("NOERROR aa | {SOA} | |"));
    for (question, expected) in [
        ("dns1.kube-system.example.com. A", "192.0.2.53"),
        ("two.kube-system.example.com. A", "192.0.2.54"),
        ("a.example.com. A", "192.0.2.54"),
    ] {
        let name = question.split(' ').next().unwrap();
        assert_eq!(
            server.ask(question).await,
            format!("NOERROR aa | {name} 60 IN A {expected} | |"),
            "{question}"
        );
    }
    for (question, rcode) in [
        ("dns1.kube-system.example.com. AAAA", "NOERROR"),
        ("x.dns1.kube-system.example.com. A", "NXDOMAIN"),
        ("deleted.example.com. A", "NXDOMAIN"),
        ("example.com. A", "NOERROR"),
    ] {
        assert_eq!(server.ask(question).await, format!("{rcode} aa | | {SOA} |"), "{question}");
    }
}

#[tokio::test]
async fn name_server_without_service_exists_without_addresses() {
    let server = server(SERVICES, &[]);
    let ns = "example.com. 60 IN NS dns1.kube-system.example.com.";
    assert_eq!(server.ask("example.com. NS").await, format!("NOERROR aa | {ns} | |"));
    assert_eq!(server.ask("dns1.kube-system.example.com. A").await, format!("NOERROR aa | | {SOA} |"));
    // As soon as the Service is there, an answer that was kept isn't used any more.
    let dns1 = ObservedService { key: ServiceKey::new("kube-system", "dns1"), ..link("dns1", "192.0.2.53") };
    server.shared.store.apply(dns1);
    assert!(server.ask("dns1.kube-system.example.com. A").await.contains("IN A 192.0.2.53"));
}

#[tokio::test]
async fn name_server_waits_for_the_load_balancers_alone() {
    let server = TestServer::block("k8s_gateway example.com");
    let store = &server.shared.store;
    store.set_zones([Zone::from(&zone(""))]);
    let question = "dns1.kube-system.example.com. A";
    assert!(server.ask(question).await.starts_with("SERVFAIL"));
    store.set_known(Input::Services);
    let found = server.ask(question).await;
    assert!(found.starts_with("NOERROR aa | |"), "no Ingress can have the name: {found}");
    store
        .apply(ObservedService { key: ServiceKey::new("kube-system", "dns1"), ..link("dns1", "192.0.2.53") });
    assert!(server.ask(question).await.contains("IN A 192.0.2.53"));
    assert!(server.ask("app.example.com. A").await.starts_with("SERVFAIL"));
}

#[tokio::test]
async fn refused_namespace_may_have_any_unknown_name() {
    for (resources, is_denied) in [("resources Service", false), ("resources DNSEndpoint", true)] {
        let server = server(resources, &[("shop", "web", "192.0.2.1", &["web.shop.example.com"])]);
        let store = &server.shared.store;
        store.set_listed(&Source::DNS_ENDPOINTS, &store.zones());
        store.update_unknown_namespaces(|namespaces| namespaces.extend(["refused".into()]));
        let absent = server.ask("absent.example.com. A").await;
        assert_eq!(absent.starts_with("NXDOMAIN"), is_denied, "{resources}: {absent}");
        assert!(server.ask("a.refused.example.com. A").await.starts_with("SERVFAIL"), "{resources}");
        store.update_unknown_namespaces(std::collections::BTreeSet::clear);
        assert!(server.ask("absent.example.com. A").await.starts_with("NXDOMAIN"), "{resources}");
    }
}

#[tokio::test]
async fn load_balancer_has_only_the_names_it_asks_for() {
    let server = server(
        "resources Service\nttl 300",
        &[
            ("shop", "web", "192.0.2.1", &["web.shop.example.com"]),
            ("shop", "api", "192.0.2.2", &["api.example.com"]),
        ],
    );
    for (name, expected) in [
        ("web.shop", Some("192.0.2.1")),
        ("api", Some("192.0.2.2")),
        ("web-shop", None),
        ("api.shop", None),
        ("_http._tcp.web.shop", None),
    ] {
        let found = server.ask(&format!("{name}.example.com. A")).await;
        match expected {
            Some(ip) => {
                assert!(found.contains(&format!("{name}.example.com. 300 IN A {ip}")), "{name}: {found}")
            }
            None => assert!(found.starts_with("NXDOMAIN"), "{name}: {found}"),
        }
    }
    assert!(server.ask("web.shop.example.com. SRV").await.starts_with("NOERROR aa | |"));
}

#[tokio::test]
async fn zone_is_transferred_with_its_name_servers() {
    let services: &[(&str, &str, &str, &[&str])] = &[
        ("kube-system", "dns1", "192.0.2.53", &["dns1.kube-system.example.com"]),
        ("shop", "web", "192.0.2.1", &["web.shop.example.com", "*.example.com"]),
    ];
    let server = server("resources Service\n}\ntransfer {\nto *", services);
    let zone = server.server.transferred_zone(&Name::from_ascii("example.com.").unwrap(), None).unwrap();
    let owners = zone
        .state()
        .unwrap()
        .records
        .flatten()
        .map(|record| (crate::model::names::text(&record.owner), record.rtype));
    assert_eq!(
        owners.collect::<Vec<_>>(),
        [
            ("example.com.".to_owned(), 2),
            ("*.example.com.".to_owned(), 1),
            ("web.shop.example.com.".to_owned(), 1),
            ("dns1.kube-system.example.com.".to_owned(), 1),
        ]
    );
}
