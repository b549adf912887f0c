//! Seeds of the mutations of manifests, of the API server's answers, and of snapshots.

use super::seeds::Seed;
use super::snapshot::sealed;

const SERVICE: &str = r#"apiVersion: v1
kind: Service
metadata:
  name: web
  namespace: shop
  uid: 0b9f
  creationTimestamp: "2026-11-22T10:20:00Z"
  labels: {app: web}
  annotations:
    linker.hsj.com/hostname: www.lb.internal, *.any.lb.internal
    linker.hsj.com/ttl: "30"
    linker.hsj.com/allow-from: "*"
  finalizers: [lb-linker/finalizer]
spec:
  type: LoadBalancer
  selector: {app: web}
  ports:
    - {name: https, port: 443, protocol: TCP, appProtocol: https}
status:
  loadBalancer:
    ingress:
      - hostname: web-4fb5d0.lb.example-cloud.com
      - {ip: 192.0.2.10}
      - {ip: "2001:db8::1"}
"#;

const STABLE_NAME: &str = r#"apiVersion: linker.hsj.com/v1alpha1
kind: StableName
metadata: {name: web, namespace: shop, uid: u, generation: 2}
spec:
  sources:
    - {name: seoul, service: {name: web}}
    - {name: busan, service: {name: web, namespace: shop-dr}}
    - {name: fixed, hostname: lb.example.com}
    - {name: addresses, addresses: [192.0.2.10, "2001:db8::1"]}
  check: {periodSeconds: 30, timeoutSeconds: 2, failureThreshold: 3, successThreshold: 2, tcpPort: 443}
  cutover: {maxWaitSeconds: 300}
  failback: {mode: Automatic, afterSeconds: 300}
  pin: seoul
  hostnames: [www.lb.internal]
  ttlSeconds: 30
  allowFrom: [shop-dr]
  alerts:
    ruleLabels: {release: monitoring}
    labels: {team: shop}
    notReadyForSeconds: 300
status:
  observedGeneration: 2
  target: {source: fixed, hostname: lb.example.com, verified: true, since: 2026-11-22T10:20:00Z}
  conditions:
    - {type: Ready, status: "True", reason: Announced, message: leads to fixed, lastTransitionTime: 2026-11-22T10:20:00Z}
"#;

const SERVICE_JSON: &str = r#"{"apiVersion":"v1","kind":"Service","metadata":{"name":"web","namespace":"shop","uid":"u1","resourceVersion":"7","creationTimestamp":"2026-11-22T10:20:00Z","annotations":{"linker.hsj.com/hostname":"www.lb.internal","linker.hsj.com/ttl":"9"},"managedFields":[{"manager":"kubectl","operation":"Update","fieldsV1":{"f:spec":{"f:type":{}}}}]},"spec":{"type":"LoadBalancer","ports":[{"name":"https","port":443,"targetPort":"web"}],"selector":{"app":"web"}},"status":{"loadBalancer":{"ingress":[{"hostname":"a.example.com"},{"ip":"192.0.2.1"}]}}}"#;

const STABLE_NAME_JSON: &str = r#"{"apiVersion":"linker.hsj.com/v1alpha1","kind":"StableName","metadata":{"name":"web","namespace":"shop","uid":"u2","resourceVersion":"8","generation":1},"spec":{"sources":[{"name":"seoul","service":{"name":"web"}},{"name":"fixed","addresses":["192.0.2.10"]}],"pin":"fixed","hostnames":["sn.lb.internal"]},"status":{"observedGeneration":1,"target":{"source":"fixed","addresses":["192.0.2.10"],"verified":true,"since":"2026-11-22T10:20:00Z"}}}"#;

/// Returns files of Services and StableNames, alone, in lists and in several documents, and files with one defect.
pub fn manifests() -> Vec<Seed> {
    let text = |text: &str| text.as_bytes().to_vec();
    vec![
        ("service", text(SERVICE)),
        ("stable-name", text(STABLE_NAME)),
        ("service-json", text(SERVICE_JSON)),
        ("stable-name-json", text(STABLE_NAME_JSON)),
        ("documents", text(&format!("{STABLE_NAME}---\n# nothing\n---\n{SERVICE}"))),
        (
            "list",
            text(&format!(
                r#"{{"apiVersion":"v1","kind":"List","items":[{SERVICE_JSON},{STABLE_NAME_JSON},{{"kind":"Pod"}}]}}"#
            )),
        ),
        (
            "service-list",
            text(&format!(r#"{{"apiVersion":"v1","kind":"ServiceList","items":[{SERVICE_JSON}]}}"#)),
        ),
        (
            "stable-name-list",
            text(&format!(
                r#"{{"apiVersion":"linker.hsj.com/v1alpha1","kind":"StableNameList","items":[{STABLE_NAME_JSON}]}}"#
            )),
        ),
        (
            "anchors",
            text(
                "apiVersion: v1\nkind: Service\nmetadata: &web {name: web, labels: &labels {a: b}}\nspec: {type: LoadBalancer, selector: *labels}\n---\napiVersion: v1\nkind: Service\nmetadata: {<<: *web, name: \"api\"}\nspec:\n  type: >-\n    LoadBalancer\n",
            ),
        ),
        (
            "other-kinds",
            text(
                "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {a: |\n  b\n}\n---\napiVersion: v1\nkind: Service\nmetadata: {name: n}\n",
            ),
        ),
        ("boolean", text("apiVersion: v1\nkind: Service\nmetadata: {name: no, labels: {a: 017}}\n")),
    ]
}

/// Returns watches, and pages of lists.
pub fn watches() -> Vec<Seed> {
    let event = |kind: &str, object: &str| format!("{{\"type\":\"{kind}\",\"object\":{object}}}\n");
    let bookmark = |annotations: &str| {
        event(
            "BOOKMARK",
            &format!(
                r#"{{"kind":"Service","metadata":{{"resourceVersion":"9","creationTimestamp":null{annotations}}}}}"#
            ),
        )
    };
    let error = event(
        "ERROR",
        r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"too old resource version","reason":"Expired","code":410,"details":{"retryAfterSeconds":1}}"#,
    );
    let page = |kind: &str, version: &str, items: &str| {
        format!(
            r#"{{"kind":"{kind}","apiVersion":"v1","metadata":{{"resourceVersion":"{version}","continue":"c","remainingItemCount":3}},"items":{items}}}"#
        )
    };
    let undecodable =
        r#"{"metadata":{"name":"bad","namespace":"shop","uid":"u","resourceVersion":"7"},"spec":5}"#;
    let texts = [
        ("added", event("ADDED", SERVICE_JSON)),
        ("modified", event("MODIFIED", SERVICE_JSON)),
        ("deleted", event("DELETED", r#"{"metadata":{"name":"web","resourceVersion":"8"}}"#)),
        ("undecodable", event("ADDED", undecodable)),
        ("stable-name", event("ADDED", STABLE_NAME_JSON)),
        ("bookmark", bookmark("")),
        ("list-end", bookmark(r#","annotations":{"k8s.io/initial-events-end":"true"}"#)),
        ("error", error.clone()),
        ("several", [event("ADDED", SERVICE_JSON), bookmark(""), event("MODIFIED", SERVICE_JSON)].concat()),
        ("ended", [event("MODIFIED", STABLE_NAME_JSON), error].concat()),
        ("page", page("ServiceList", "7", &format!("[{SERVICE_JSON},{undecodable}]"))),
        ("page-of-stable-names", page("StableNameList", "8", &format!("[{STABLE_NAME_JSON}]"))),
        ("page-of-nothing", page("ServiceList", "9", "null")),
        ("page-without-version", page("ServiceList", "", "[]")),
    ];
    texts.map(|(name, text)| (name, text.into_bytes())).into()
}

pub fn snapshots() -> Vec<Seed> {
    let head = r#"{"taken":"2026-11-25T18:00:00Z","program":"0.1.0","cluster":{"server":"https://10.0.0.1/","authorities":["ab"]},"settings":{"annotatedOnly":false,"selector":"","hostnameAnnotations":[]},"serial":7}"#;
    let link = |name: &str, rest: &str| {
        format!(
            r#"{{"namespace":"shop","service":"{name}","uid":"u","created":1764093600,"externalTarget":"{name}-shop-ext"{rest}}}"#
        )
    };
    let target = r#","target":{"hostname":"web-4fb5d0.lb.example-cloud.com"}"#;
    let hostname = link("web", target);
    let settings = link(
        "set",
        &format!(
            r#"{target},"ttl":30,"hostnames":["www.lb.internal","*.any.lb.internal"],"allowFrom":["*"]"#
        ),
    );
    let addresses = link(
        "ips",
        r#","target":{"addresses":["192.0.2.10","2001:db8::1"]},"ports":[{"name":"https","protocol":"TCP","port":443,"appProtocol":null}]"#,
    );
    let decided =
        link("sn", &format!(r#"{target},"overriddenBy":{{"uid":"x","source":"busan","serviceUid":"s"}}"#));
    let denied = link("own", r#","target":{"hostname":"db.other.svc.cluster.local"}"#);
    let chained = link("chain", r#","target":{"hostname":"web.shop.lb.internal"}"#);
    let cut = link("large", r#","lacksHostnames":true"#);
    let several =
        [&hostname, &settings, &addresses, &decided, &denied, &chained, &cut].map(String::as_str).join("\n");
    let texts = [
        ("nothing", String::new()),
        ("hostname", hostname.clone()),
        ("settings", settings),
        ("addresses", addresses),
        ("stable-name", decided),
        ("denied", denied),
        ("twice", format!("{hostname}\n{hostname}")),
        ("names-only", cut.clone()),
        ("wrong", link("wrong", r#","ttl":-1"#)),
        ("several", several),
    ];
    texts.map(|(name, text)| (name, sealed(format!("{head}\n{text}\n").trim_end().as_bytes()))).into()
}
