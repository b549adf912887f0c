use serde_json::{Value, json};

use super::*;
use crate::api::validation::bad_input;

const WEB: &str = "\
apiVersion: linker.hsj.com/v1alpha1
kind: StableName
metadata: {name: web, namespace: shop, uid: u, resourceVersion: '7', creationTimestamp: null, labels: {a: b}}
spec:
  sources:
    - {name: seoul, service: {name: web}}
    - {name: fixed, hostname: lb.example.com}
  ttlSeconds: 5
status: {target: {source: fixed, hostname: lb.example.com, verified: true, since: 2026-11-22T10:20:00Z}}
";

fn read(content: &str) -> Objects {
    let objects = parse(Path::new("web.yaml"), content.as_bytes()).unwrap();
    assert_eq!(objects.refused, [""; 0], "{content}");
    objects
}

fn errors(content: &str) -> Vec<String> {
    match parse(Path::new("web.yaml"), content.as_bytes()) {
        Ok(objects) => objects.refused,
        Err(error) => vec![error],
    }
}

fn keys(content: &str) -> Vec<String> {
    let objects = read(content).stable_names;
    objects.iter().map(|object| stable_names::key(object).to_string()).collect()
}

#[test]
fn stable_name_is_read_with_its_status() {
    let objects = read(WEB);
    assert!(objects.services.is_empty());
    let [object] = &objects.stable_names[..] else { panic!("{objects:?}") };
    assert_eq!(stable_names::key(object).to_string(), "shop/web");
    assert_eq!((object.spec.sources.len(), object.spec.ttl_seconds), (2, Some(5)));
    let target = object.status.as_ref().unwrap().target.as_ref().unwrap();
    assert_eq!((&*target.source, target.verified), ("fixed", true));
    // Other metadata is dropped.
    assert_eq!((&object.metadata.labels, &object.metadata.resource_version), (&None, &None));
}

#[test]
fn ingresses_of_documents_and_lists_are_read() {
    let ingress = "apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {name: a.b, resourceVersion: '7'}\nspec:\n  rules:\n\
                   \x20   - {host: x.example, http: {paths: [{path: /, pathType: Prefix}]}}\n";
    let list = "apiVersion: networking.k8s.io/v1\nkind: IngressList\nitems: [{metadata: {name: c, namespace: shop}}]\n";
    let objects =
        read(&format!("{ingress}---\n{list}---\napiVersion: networking.k8s.io/v1\nkind: IngressClass\n"));
    assert_eq!(shown(&objects), ["Ingress default/a.b", "Ingress shop/c"]);
    let SourceObject::Ingress(first) = &objects.of_sources[0] else { panic!("{objects:?}") };
    assert_eq!(first.metadata.resource_version, None);
    for (from, to, expected) in [
        ("host: x", "hosts: x", "web.yaml:6:8: unknown field \"spec.rules[0].hosts\""),
        ("name: a.b", "labels: {a: b}", "web.yaml:3:11: metadata.name is missing"),
        ("Ingress\n", "Ingres\n", "web.yaml:2:7: kind \"Ingres\" is unknown; did you mean Ingress?"),
    ] {
        let found = errors(&ingress.replacen(from, to, 1));
        assert!(found.len() == 1 && found[0].starts_with(expected), "{found:?}");
    }
}

fn shown(objects: &Objects) -> Vec<String> {
    let ids = objects.of_sources.iter().map(SourceObject::id);
    ids.map(|ObjectId { key, kind }| format!("{} {key}", kind.api().1)).collect()
}

#[test]
fn objects_of_gateway_api_are_read() {
    let listeners = "[{name: a, port: 80, protocol: HTTP, hostname: '*.example', tls: {x: 1}, allowedRoutes: {namespaces: \
                     {from: Selector, selector: {matchLabels: {a: b}}}, kinds: [{kind: HTTPRoute}]}}]";
    let conditions = "[{type: Accepted, status: 'True', reason: Accepted, observedGeneration: 1}]";
    let group = "gateway.networking.k8s.io";
    let gateway = format!(
        "apiVersion: {group}/v1\nkind: Gateway\nmetadata: {{name: gw}}\nspec:\n  gatewayClassName: envoy\n  \
         listeners: {listeners}\nstatus: {{addresses: [{{type: IPAddress, value: 192.0.2.1}}], \
         conditions: {conditions}}}\n"
    );
    let set = format!(
        "apiVersion: {group}/v1\nkind: ListenerSet\nmetadata: {{name: set}}\nspec: {{parentRef: {{name: gw}}, \
         listeners: {listeners}}}\nstatus: {{conditions: {conditions}}}\n"
    );
    let route = |kind: &str, version: &str| {
        format!(
            "apiVersion: {group}/{version}\nkind: {kind}\nmetadata: {{name: r}}\nspec:\n  \
             parentRefs: [{{name: gw, port: 80}}]\n  hostnames: [a.example]\n  \
             rules: [{{matches: [{{path: {{value: /}}}}]}}]\nstatus: {{parents: [{{parentRef: {{name: gw}}, \
             controllerName: x, conditions: {conditions}}}]}}\n"
        )
    };
    let list =
        format!("apiVersion: {group}/v1beta1\nkind: HTTPRouteList\nitems: [{{metadata: {{name: l}}}}]\n");
    let class = format!("apiVersion: {group}/v1\nkind: GatewayClass\nmetadata: {{name: envoy}}\n");
    let tcp = route("TCPRoute", "v1alpha2");
    let all = [
        &gateway,
        &set,
        &route("HTTPRoute", "v1"),
        &route("GRPCRoute", "v1"),
        &route("TLSRoute", "v1alpha2"),
        &list,
        &class,
        &tcp,
    ]
    .map(|text| format!("{text}---\n"))
    .concat();
    let expected = [
        "Gateway default/gw",
        "ListenerSet default/set",
        "HTTPRoute default/r",
        "GRPCRoute default/r",
        "TLSRoute default/r",
        "HTTPRoute default/l",
    ];
    assert_eq!(shown(&read(&all)), expected);
    for (content, from, to, expected) in [
        (&gateway, "Gateway\n", "Gatway\n", "kind \"Gatway\" is unknown; did you mean Gateway?"),
        (&gateway, "protocol", "protocoll", "unknown field \"spec.listeners[0].protocoll\""),
        (
            &route("HTTPRoute", "v1"),
            "HTTPRoute",
            "HttpRoutes",
            "kind \"HttpRoutes\" is unknown; did you mean HTTPRoute?",
        ),
        (&route("HTTPRoute", "v1"), "hostnames:", "hosts:", "unknown field \"spec.hosts\""),
    ] {
        let found = errors(&content.replacen(from, to, 1));
        assert!(found.len() == 1 && found[0].contains(expected), "{found:?}");
    }
}

#[test]
fn dnsendpoints_are_read() {
    let list = |kind: &str| {
        format!(
            "apiVersion: externaldns.k8s.io/v1alpha1\nkind: {kind}\nitems:\n- metadata: {{name: a}}\n  spec:\n    endpoints:\n    \
             - {{dnsName: x.example, recordType: TXT, targets: [a], recordTTL: 60, setIdentifier: b,\n        labels: {{a: b}}, \
             providerSpecific: [{{name: a, value: b}}]}}\n  status: {{observedGeneration: 1}}\n"
        )
    };
    assert_eq!(shown(&read(&list("DNSEndpointList"))), ["DNSEndpoint default/a"]);
    let object = list("DNSEndpointList");
    for (from, to, expected) in [
        ("recordTTL: 60", "recordTTL: 1m", "spec.endpoints[0].recordTTL"),
        ("recordTTL", "ttl", "unknown field \"spec.endpoints[0].ttl\""),
        ("targets: [a]", "targets: a", "spec.endpoints[0].targets"),
    ] {
        let found = errors(&object.replacen(from, to, 1));
        assert!(found.len() == 1 && found[0].contains(expected), "{found:?}");
    }
    let item = "apiVersion: externaldns.k8s.io/v1alpha1\nkind: DnsEndpoint\nmetadata: {name: a}\n";
    assert!(errors(item)[0].contains("did you mean DNSEndpoint?"));
}

#[test]
fn misspelled_kind_or_type_is_refused_with_its_position() {
    let service = |kind: &str, type_: &str| {
        format!("apiVersion: v1\nkind: {kind}\nmetadata: {{name: a}}\nspec:\n  type: {type_}\n")
    };
    for (content, expected) in [
        (
            service("Servce", "LoadBalancer"),
            "web.yaml:2:7: kind \"Servce\" is unknown; did you mean Service?",
        ),
        (
            service("service", "LoadBalancer"),
            "web.yaml:2:7: kind \"service\" is unknown; did you mean Service?",
        ),
        (
            service("Service", "Loadbalancer"),
            "web.yaml:5:9: spec.type \"Loadbalancer\" is unknown; did you mean LoadBalancer?",
        ),
        (
            service("Service", "Ingress"),
            "web.yaml:5:9: spec.type \"Ingress\" is unknown; there are ClusterIP, ExternalName, LoadBalancer, NodePort",
        ),
        (
            WEB.replace("StableName", "StableNames"),
            "web.yaml:2:7: kind \"StableNames\" is unknown; did you mean StableName?",
        ),
        (
            WEB.replace("StableName", "LoadBalancer"),
            "web.yaml:2:7: kind \"LoadBalancer\" is unknown; there is StableName",
        ),
    ] {
        assert_eq!(errors(&content), [expected], "{content}");
    }
    for other in ["Secret", "Pod", "ServiceAccount", "ConfigMap"] {
        assert!(read(&service(other, "Loadbalancer")).is_empty(), "{other}");
    }
    let knative = service("Servce", "LoadBalancer").replace("v1", "serving.knative.dev/v1");
    assert!(read(&knative).is_empty());
    assert_eq!(read(&service("Service", "\"\"")).services.len(), 1);
}

#[test]
fn stable_names_of_lists_and_documents_are_read() {
    let item = json!({"apiVersion": "linker.hsj.com/v1alpha1", "kind": "StableName",
        "metadata": {"name": "web"}, "spec": {"sources": [{"name": "a", "hostname": "a.example"}]}});
    let mut bare = item.clone();
    bare.as_object_mut().unwrap().retain(|field, _| field != "apiVersion" && field != "kind");
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a"}});
    let list = |version: &str, kind: &str, items: Value| {
        json!({"apiVersion": version, "kind": kind, "metadata": {}, "items": items}).to_string()
    };
    let own = "linker.hsj.com/v1alpha1";
    for (content, stable_names, services) in [
        (list("v1", "List", json!([service, item])), 1, 1),
        (list(own, "StableNameList", json!([bare])), 1, 0),
        (list("v1", "List", json!([])), 0, 0),
        (format!("{WEB}---\n---\n{item}\n---\n{service}"), 2, 1),
        // The same kind in another API group.
        (item.to_string().replace("linker.hsj.com", "other.example"), 0, 0),
    ] {
        let objects = read(&content);
        let found = (objects.stable_names.len(), objects.services.len());
        assert_eq!(found, (stable_names, services), "{content}");
    }
    assert_eq!(keys(&item.to_string()), ["default/web"]);
}

#[test]
fn list_without_items_and_list_in_a_list_are_refused() {
    let list = |rest: &str| format!("apiVersion: v1\nkind: List\n{rest}");
    for (content, expected) in [
        (list("itms: []\n"), "web.yaml:1:1: a List has to have items, an array"),
        (list("items: {}\n"), "web.yaml:1:1: a List has to have items, an array"),
        (
            list("items:\n- {apiVersion: v1, kind: List, items: []}\n"),
            "web.yaml:4:3: a List can't be an item of a list",
        ),
        (
            list("items:\n- {apiVersion: v1, kind: ServiceList, items: []}\n"),
            "web.yaml:4:3: a ServiceList can't be an item of a list",
        ),
    ] {
        assert_eq!(errors(&content), [expected], "{content}");
    }
    assert_eq!(errors(&list("items:\n")), [""; 0], "kubectl takes it, too");
}

#[test]
fn invalid_stable_name_is_refused_with_its_position() {
    for case in bad_input::cases() {
        let object = json!({"apiVersion": "linker.hsj.com/v1alpha1", "kind": "StableName",
            "metadata": {"name": case.name}, "spec": case.spec});
        let found = errors(&object.to_string());
        let [error] = &found[..] else { panic!("{}: {found:?}", case.given) };
        let why = match case.field.as_str() {
            "metadata.name" => case.message.clone(),
            field => format!("{field}: {}", case.message),
        };
        assert!(error.starts_with("web.yaml:1:") && error.ends_with(&why), "{}: {error}", case.given);
    }
    for (given, name, spec) in bad_input::accepted() {
        let object = json!({"apiVersion": "linker.hsj.com/v1alpha1", "kind": "StableName",
            "metadata": {"name": name}, "spec": spec});
        let objects = read(&object.to_string());
        assert_eq!(serde_json::to_value(&objects.stable_names[0].spec).unwrap(), spec, "{given}");
    }
}

#[test]
fn each_error_has_line_column_and_field() {
    let mut wrong = Vec::new();
    for (from, to, expected) in [
        ("  ttlSeconds: 5", "  ttl: 5", &["8:3: unknown field \"spec.ttl\""][..]),
        ("name: seoul,", "name: seoul, weight: 3,", &["6:21: unknown field \"spec.sources[0].weight\""]),
        ("uid: u,", "uuid: u,", &["3:40: unknown field \"metadata.uuid\""]),
        ("source: fixed,", "sources: fixed,", &["9:19: unknown field \"status.target.sources\""]),
        ("spec:\n", "speck: {}\nspec:\n", &["4:1: unknown field \"speck\""]),
        ("ttlSeconds: 5", "ttlSeconds: soon", &["8:15: spec.ttlSeconds: must be of type integer"]),
        (
            "ttlSeconds: 5",
            "ttlSeconds: '5'",
            &["8:15: spec.ttlSeconds: \"5\" is a string, and has to be a number: write 5"],
        ),
        (
            "since: 2026-11-22T10:20:00Z",
            "since: soon",
            &["9:83: status.target.since: must be a time, such as 2026-11-27T10:20:00Z"],
        ),
        (
            "name: web,",
            "name: Web,",
            &[
                "3:18: metadata.name must be a DNS label: 1 to 63 lower-case letters, digits and hyphens, without a hyphen at either end",
            ],
        ),
        ("ttlSeconds: 5", "ttlSeconds: 0x10", &["8:15: spec.ttlSeconds: 0x10 must be written as 16"]),
        ("ttlSeconds: 5", "hostnames: [~]", &["8:15: spec.hostnames[0]: must be of type string"]),
        ("name: seoul", "name: ~", &["6:7: spec.sources[0].name: must be given"]),
        (
            "{name: web}}",
            "{name: web, cluster: west}}",
            &[
                "6:51: spec.sources[0].service.cluster: with --manifests there are no other clusters: leave this field out",
            ],
        ),
        (
            "name: seoul",
            "name: 1e3",
            &[
                "6:14: spec.sources[0].name: 1e3 is a number to kubectl, which reads YAML 1.1, and has to be a string: \
               write \"1e3\"",
            ],
        ),
        (
            "name: seoul",
            "name: on",
            &[
                "6:14: spec.sources[0].name: on is a boolean to kubectl, which reads YAML 1.1, and has to be a string: \
               write \"on\"",
            ],
        ),
        (
            "namespace: shop",
            "namespace: Shop",
            &["3:34: metadata.namespace \"Shop\" isn't 1 to 63 lower-case letters, \
               digits and hyphens"],
        ),
        (
            "v1alpha1",
            "v1beta1",
            &["1:1: apiVersion \"linker.hsj.com/v1beta1\" is unknown: write linker.hsj.com/v1alpha1"],
        ),
        (
            "name: fixed, hostname: lb.example.com}\n",
            "hostname: 192.0.2.1, ttl: 5}\n",
            &["7:29: unknown field \"spec.sources[1].ttl\"", "7:7: spec.sources[1].name: must be given"],
        ),
        (
            "{name: fixed, hostname: lb.example.com}\n",
            "{name: seoul, hostname: 192.0.2.1}\n",
            &[
                "6:5: spec.sources: each source needs a name of its own",
                "7:31: spec.sources[1].hostname: use addresses for an IP address",
            ],
        ),
    ] {
        let found = errors(&WEB.replacen(from, to, 1));
        let expected: Vec<_> = expected.iter().map(|error| format!("web.yaml:{error}")).collect();
        if found != expected {
            wrong.push((to, found, expected));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    let without = WEB.split("spec:").next().unwrap();
    assert_eq!(errors(without), ["web.yaml:1:1: spec: must be given"]);
    assert_eq!(errors(&format!("{without}spec: {{sources: [}}")).len(), 1);
}

#[test]
fn errors_of_all_objects_of_a_file_are_reported() {
    let found =
        errors(&format!("{}---\n{}", WEB.replace("ttlSeconds", "ttl"), WEB.replace("seoul", "Seoul")));
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].ends_with("8:3: unknown field \"spec.ttl\""), "{found:?}");
    assert!(found[1].starts_with("web.yaml:16:14: spec.sources[0].name: must be a DNS label"), "{found:?}");
}

#[test]
fn null_means_that_a_field_is_missing() {
    let content = WEB.replace("uid: u,", "uid: null,").replace("ttlSeconds: 5", "ttlSeconds: null\n  pin: ");
    let status = content.find("status:").unwrap();
    let objects = read(&format!("{}status: null\n", &content[..status]));
    let object = &objects.stable_names[0];
    assert_eq!((&object.metadata.uid, object.status.is_none()), (&None, true));
    assert_eq!((&object.spec.ttl_seconds, &object.spec.pin), (&None, &None));
}

#[test]
fn empty_file_is_valid() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("empty.yaml"), "").unwrap();
    let mut files = ManifestFiles::default();
    files.read(directory.path()).unwrap();
    assert!(!files.has_never_valid_file() && files.errors.is_empty());
}

#[test]
fn object_in_two_files_counts_once() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    std::fs::write(path("b.yaml"), WEB.replace("lb.example.com", "second.example")).unwrap();
    std::fs::write(path("a.yaml"), WEB).unwrap();
    let elsewhere = Selection { namespaces: ["app".to_owned()].into(), ..Selection::default() };
    let checked = check(directory.path(), &Selection::default(), None).unwrap();
    assert_eq!((checked.stable_names, checked.services), (1, 0));
    let expected = format!(
        "{}: StableName shop/web is passed over, {} has it already",
        path("b.yaml").display(),
        path("a.yaml").display()
    );
    assert_eq!((checked.notices, checked.errors), (vec![expected], Vec::<String>::new()));
    let unwatched = check(directory.path(), &elsewhere, None).unwrap();
    assert_eq!(unwatched.stable_names, 0);
}

#[test]
fn misread_scalar_is_found_beside_other_kinds_in_a_list() {
    let deployment =
        "{apiVersion: apps/v1, kind: Deployment, spec: {selector: {matchLabels: {app: web}}, ports: 5}}";
    let service = |metadata: &str| format!("{{apiVersion: v1, kind: Service, metadata: {{{metadata}}}}}");
    let error_of = |text: &str| {
        let refused = parse(Path::new("a.yaml"), text.as_bytes()).unwrap().refused;
        (!refused.is_empty()).then(|| refused.join("; "))
    };
    for (metadata, field, what) in [
        ("name: n", "metadata.name: n", "a boolean"),
        ("name: web, annotations: {k: 0_7}", "metadata.annotations.k: 0_7", "a number"),
        ("name: web, annotations: {k: 1e3}", "metadata.annotations.k: 1e3", "a number"),
    ] {
        let service = service(metadata);
        let column = 3 + service.rfind(field.rsplit(": ").next().unwrap()).unwrap();
        for text in [
            format!("apiVersion: v1\nkind: List\nitems:\n- {deployment}\n- {service}\n"),
            format!("apiVersion: v1\nkind: List\nitems:\n- {service}\n- {deployment}\n"),
        ] {
            let line = if text.find("Deployment") < text.find("Service") { 5 } else { 4 };
            let error = error_of(&text).unwrap();
            let expected = format!("a.yaml:{line}:{column}: {field} is {what} to kubectl");
            assert!(error.starts_with(&expected), "{error}, expected {expected}");
        }
    }
    for (scalar, kind) in
        [("55", "a number"), ("true", "a boolean"), ("+.inf", "a number"), (".NaN", "a number")]
    {
        let service = service(&format!("name: web, annotations: {{\u{e4}: {scalar}}}"));
        for start in ["", "\u{feff}"] {
            let error = error_of(&format!("{start}{service}")).unwrap();
            assert!(error.contains(&format!("metadata.annotations.\u{e4}: {scalar} is {kind}")), "{error}");
            let quoted = service.replace(scalar, &format!("\"{scalar}\""));
            assert_eq!(error_of(&format!("{start}{quoted}")), None);
        }
    }
    let stray = "apiVersion: v1\nkind: Service\nmetadata: {name: n}\nitems: []\n";
    assert!(error_of(stray).unwrap().starts_with("a.yaml:3:18: metadata.name: n is a boolean"));
    let other_kind = "apiVersion: example.com/v1\nkind: Other\nspec:\n  [a, b]: c\n";
    assert_eq!(error_of(other_kind), None);
}

/// A Service as `kubectl get -o yaml` prints it, with the fields that are seldom set, too.
const SERVICE: &str = "\
apiVersion: v1
kind: Service
metadata:
  name: web
  labels: {app: web}
  managedFields: [{manager: kubectl, operation: Update, fieldsV1: {'f:spec': {'f:any': {}}}, subresource: status}]
  ownerReferences: [{apiVersion: v1, kind: Pod, name: a, uid: u, controller: yes}]
  annotations: {a: \".inf\", b: !!str 5, c: \"x\\n\"}
spec:
  type: LoadBalancer
  allocateLoadBalancerNodePorts: no
  publishNotReadyAddresses: yes
  sessionAffinityConfig: {clientIP: {timeoutSeconds: 0x10}}
  trafficDistribution: PreferSameZone
  ports:
    - {name: https, port: 443, targetPort: web, nodePort: 30443, protocol: TCP, appProtocol: null}
  selector: {app: web, 17: a}
status:
  conditions: [{type: a, status: 'True', reason: b, message: c, lastTransitionTime: 2026-11-22T10:20:00Z}]
  loadBalancer:
    ingress:
      - {hostname: a.example, ipMode: VIP, ports: [{port: 443, protocol: TCP, error: x}]}
";

#[test]
fn service_with_every_kind_of_field_is_read() {
    let [service] = &read(SERVICE).services[..] else { panic!() };
    assert_eq!(service.key().to_string(), "default/web");
    assert_eq!(service.status.load_balancer.ingress[0].hostname.as_deref(), Some("a.example"));
    assert_eq!((service.spec.ports[0].port, &*service.spec.selector["17"]), (443, "a"));
    let annotations = service.metadata.annotations.as_ref().unwrap();
    assert_eq!((&*annotations["a"], &*annotations["b"], &*annotations["c"]), (".inf", "5", "x\n"));
    assert_eq!(service.metadata.owner_references.as_ref().unwrap()[0].controller, Some(true));
}

#[test]
fn each_error_of_a_service_has_line_column_and_field() {
    let label = "isn't 1 to 63 lower-case letters, digits and hyphens";
    let mut wrong = Vec::new();
    for (from, to, expected) in [
        ("  ports:", "  prots: {}\n  ports:", "15:3: unknown field \"spec.prots\"".to_owned()),
        ("nodePort", "nodeport", "16:49: unknown field \"spec.ports[0].nodeport\"".to_owned()),
        ("labels", "lables", "5:3: unknown field \"metadata.lables\"".to_owned()),
        ("operation", "op", "6:38: unknown field \"metadata.managedFields[0].op\"".to_owned()),
        ("ipMode", "ipmode", "22:31: unknown field \"status.loadBalancer.ingress[0].ipmode\"".to_owned()),
        ("spec:\n", "data: {}\nspec:\n", "9:1: unknown field \"data\"".to_owned()),
        ("timeoutSeconds", "timeout", "13:38: unknown field \"spec.sessionAffinityConfig.clientIP.timeout\"".to_owned()),
        ("name: web\n", "name: Web\n", format!("4:9: metadata.name \"Web\" {label}")),
        ("name: web\n", "name: web\n  namespace: a.b\n", format!("5:14: metadata.namespace \"a.b\" {label}")),
        ("  name: web\n", "", format!("4:3: metadata.name \"\" {label}")),
        ("port: 443, targetPort", "port: 65536, targetPort", "16:27: spec.ports[0].port: 65536 isn't a port: write a number from 1 to 65535".to_owned()),
        ("port: 443, targetPort", "port: 0, targetPort", "16:27: spec.ports[0].port: 0 isn't a port: write a number from 1 to 65535".to_owned()),
        ("port: 443, targetPort", "targetPort", "16:7: spec.ports[0].port: must be given".to_owned()),
        ("type: LoadBalancer", "type: [LoadBalancer]", "10:9: spec.type: must be of type string".to_owned()),
        ("  selector: {", "  selector: {~: a, ", "17:14: spec.selector.~: ~ is null to kubectl, which reads YAML 1.1, and has to be a string: write \"~\"".to_owned()),
    ] {
        let found = errors(&SERVICE.replacen(from, to, 1));
        let expected = vec![format!("web.yaml:{expected}")];
        if found != expected {
            wrong.push((to, found, expected));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn field_that_occurs_twice_is_refused() {
    for (from, to, line) in
        [("  type:", "  type: ClusterIP\n  type:", "11:3:"), ("spec:\n", "spec: {}\nspec:\n", "10:1:")]
    {
        let found = errors(&SERVICE.replacen(from, to, 1));
        let [error] = &found[..] else { panic!("{found:?}") };
        assert!(error.starts_with(&format!("web.yaml:{line}")) && error.contains("duplicate"), "{error}");
    }
}

#[test]
fn errors_of_a_file_are_limited() {
    let fields: String = (0..1000).map(|number| format!("  f{number}: 1\n")).collect();
    let broken = SERVICE.replacen("spec:\n", &format!("spec:\n{fields}"), 1);
    assert_eq!(errors(&broken).len(), MAX_ERRORS);
    assert_eq!(errors(&[&*broken; 3].join("---\n")).len(), MAX_ERRORS);
}

#[test]
fn refused_object_keeps_its_content_and_other_objects_change() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("all.yaml");
    let service = |name: &str, host: &str, more: &str| {
        let service = SERVICE.replace("name: web\n", &format!("name: {name}\n"));
        service.replace("a.example", host).replace("spec:\n", &format!("spec:\n{more}"))
    };
    let mut files = ManifestFiles::default();
    let mut read = |objects: &[String]| {
        std::fs::write(&path, objects.join("---\n")).unwrap();
        files.read(directory.path()).unwrap();
        let hosts = files.all().map(|service| {
            let host = service.status.load_balancer.ingress[0].hostname.as_deref().unwrap();
            format!("{} {host}", service.key().name())
        });
        let mut hosts: Vec<_> = hosts.collect();
        hosts.sort();
        let errors = std::mem::take(&mut files.errors);
        (hosts.join(", "), errors.iter().map(ToString::to_string).collect::<Vec<_>>())
    };
    let misspelled = "  prots: 5\n";
    let (hosts, errors) = read(&[service("a", "a1", ""), service("b", "b1", misspelled)]);
    assert_eq!(hosts, "a a1");
    assert!(errors[0].ends_with("; the object is passed over"), "{errors:?}");
    let (hosts, errors) = read(&[service("a", "a1", ""), service("b", "b1", ""), WEB.to_owned()]);
    assert_eq!((&*hosts, errors.len()), ("a a1, b b1", 0));
    let (hosts, errors) =
        read(&[service("a", "a2", ""), service("b", "b2", misspelled), service("c", "c1", "")]);
    assert_eq!(hosts, "a a2, b b1, c c1");
    assert!(
        errors[0].ends_with("unknown field \"spec.prots\"; its last good content stays in force"),
        "{errors:?}"
    );
    // Text that isn't YAML may be the begin of a file that is being written.
    let (hosts, errors) = read(&[service("a", "a3", ""), "broken: [".to_owned()]);
    assert_eq!((&*hosts, errors.len()), ("a a2, b b1, c c1", 1));
    let (hosts, errors) = read(&[service("b", "b4", "")]);
    assert_eq!((&*hosts, errors.len()), ("b b4", 0));
}

#[test]
fn deleted_object_beside_a_refused_one_goes() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("all.yaml");
    let service = |name: &str| SERVICE.replace("name: web\n", &format!("name: {name}\n"));
    let other = service("api").replace("name: api\n", "name: api\n  namespace: shop\n");
    let before = [service("web"), service("api"), other].join("---\n");
    let api = |from: &str, to: &str| {
        let api = service("api");
        assert!(api.contains(from));
        api.replace(from, to)
    };
    let after = |content: &str| {
        let mut files = ManifestFiles::default();
        let mut read = |content: &str| {
            std::fs::write(&path, content).unwrap();
            files.read(directory.path()).unwrap();
        };
        read(&before);
        read(content);
        let mut keys: Vec<_> = files.all().map(|service| service.key().to_string()).collect();
        keys.sort();
        let errors: Vec<_> = files.errors.iter().map(ToString::to_string).collect();
        (keys.join(" "), errors)
    };
    let all = "default/api default/web shop/api";
    for (content, expected) in [
        (
            api("name: api\n", "name: api\n  namespace: default\n").replace("spec:\n", "spec:\n  prots: 5\n"),
            "default/api",
        ),
        // The namespace may be what is misspelled; or the kind, or the name.
        (api("name: api\n", "name: api\n  namspace: shop\n"), "default/api shop/api"),
        (api("kind: Service\n", "knd: Service\n"), "default/api shop/api"),
        (api("name: api\n", "nam: api\n"), all),
        (api("name: api\n", "name: Api\n"), all),
    ] {
        let (keys, errors) = after(&content);
        assert_eq!(keys, expected, "{content}");
        assert!(!errors.is_empty());
        assert!(
            errors.iter().all(|error| error.ends_with("; its last good content stays in force")),
            "{errors:?}"
        );
    }
    // Nothing is kept of an object that is new.
    let (keys, errors) = after(&service("new").replace("spec:\n", "spec:\n  prots: 5\n"));
    assert_eq!(keys, "");
    assert!(errors[0].ends_with("; the object is passed over"), "{errors:?}");
}
