//! StableNames that are refused, with the error. The reader of manifests and the API server must give the same
//! error: tests of both use this table.

use serde_json::{Value, json};

pub struct Case {
    pub given: String,
    /// The name of the object.
    pub name: String,
    pub spec: Value,
    /// The field that is refused.
    pub field: String,
    pub message: String,
}

const LABEL: &str =
    "must be a DNS label: 1 to 63 lower-case letters, digits and hyphens, without a hyphen at either end";
const HOSTNAME: &str = "must be a DNS name in lower case, with a dot in it and none at its end";
const ONE_KIND: &str = "exactly one of service, hostname and addresses must be given";
const ALERT_LABELS: &str = "labels of alerts are Prometheus label names, without templates in their values";

/// Returns a spec with one source and this field.
fn with(field: &str, value: Value) -> Value {
    json!({"sources": [{"name": "a", "hostname": "a.example"}], field: value})
}

fn sources(sources: Value) -> Value {
    json!({"sources": sources})
}

fn hostname(hostname: &str) -> Value {
    sources(json!([{"name": "a", "hostname": hostname}]))
}

fn addresses(addresses: &[&str]) -> Value {
    sources(json!([{"name": "a", "addresses": addresses}]))
}

fn alert_label(name: &str, value: &str) -> Value {
    with("alerts", json!({"labels": {name: value}}))
}

/// Returns the refused objects.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |given: &str, spec: Value, field: &str, message: &str| {
        let (given, name) = (given.to_owned(), "web".to_owned());
        cases.push(Case { given, name, spec, field: field.to_owned(), message: message.to_owned() });
    };

    for (given, source) in [
        ("two kinds in a source", json!({"name": "a", "hostname": "a.example", "addresses": ["192.0.2.1"]})),
        (
            "three kinds",
            json!({"name": "a", "hostname": "a.example", "addresses": ["192.0.2.1"],
            "service": {"name": "web"}}),
        ),
        ("no kind in a source", json!({"name": "a"})),
    ] {
        add(given, sources(json!([source])), "spec.sources[0]", ONE_KIND);
    }
    let twice = json!([{"name": "a", "hostname": "a.example"}, {"name": "b", "hostname": "a.example"},
        {"name": "a", "service": {"name": "web"}}]);
    add("a name twice", sources(twice), "spec.sources", "each source needs a name of its own");
    add("no source", sources(json!([])), "spec.sources", "should have at least 1 items");
    let nine: Vec<Value> =
        (0..9).map(|i| json!({"name": format!("n{i}"), "hostname": "a.example"})).collect();
    add("nine sources", sources(json!(nine)), "spec.sources", "must have at most 8 items");
    for name in ["A", "", "a.b", "-a", "a-"] {
        let source = json!([{"name": name, "hostname": "a.example"}]);
        add(&format!("source {name}"), sources(source), "spec.sources[0].name", LABEL);
    }
    for (field, service) in [
        ("name", json!({"name": "a.b"})),
        ("namespace", json!({"name": "a", "namespace": "shop/web"})),
        ("cluster", json!({"name": "a", "cluster": "West"})),
    ] {
        let source = json!([{"name": "a", "service": service}]);
        let path = format!("spec.sources[0].service.{field}");
        add(&format!("{field} of a Service"), sources(source), &path, LABEL);
    }

    let long_label = format!("{}.example", "a".repeat(64));
    let names = [
        "intranet",
        "A.example",
        "a.example.",
        "",
        "a..example",
        ".",
        ".5",
        "a_b.example",
        "-a.example",
        "*.example",
        "::ffff:192.0.2.1",
        "fe80::1%eth0",
        &long_label,
    ];
    for name in names {
        add(&format!("hostname {name}"), hostname(name), "spec.sources[0].hostname", HOSTNAME);
    }
    for address in ["192.0.2.1", "2001:db8::1", "2001:DB8::1"] {
        let given = format!("hostname {address}");
        add(&given, hostname(address), "spec.sources[0].hostname", "use addresses for an IP address");
    }
    for name in ["192.0.2.256", "127.1", "0x7f.1", "127.0x1", "a.0x"] {
        let message = "must not end in a number: some programs read it as an IPv4 address";
        add(&format!("hostname {name}"), hostname(name), "spec.sources[0].hostname", message);
    }
    let long = format!("{}example", "a.".repeat(124));
    add("a long hostname", hostname(&long), "spec.sources[0].hostname", "may not be more than 253 bytes");

    for address in [
        "127.0.0.1",
        "2001:DB8::1",
        "0.0.0.0",
        "127.1",
        "169.254.169.254",
        "224.0.0.1",
        "239.255.255.250",
        "255.255.255.255",
        "192.0.2.01",
        "192.0.2.1/32",
        "a.example",
        "",
        "::",
        "::1",
        "fe80::1",
        "ff02::1",
        "2001:db8:0:0:0:0:0:1",
        "2001:0db8::1",
        "::ffff:192.0.2.1",
        "::192.0.2.1",
        "fe80::1%eth0",
        "a\"b",
    ] {
        let quoted = serde_json::to_string(address).unwrap();
        let message = format!(
            "{quoted} can't be a target, which has to be an IPv4 or IPv6 address in canonical form, not loopback, \
             link-local, multicast or unspecified"
        );
        let spec = addresses(&["192.0.2.1", address]);
        add(&format!("address {address}"), spec, "spec.sources[0].addresses[1]", &message);
    }
    add("no address", addresses(&[]), "spec.sources[0].addresses", "should have at least 1 items");
    let many: Vec<String> = (0..33).map(|i| format!("192.0.2.{i}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    add("33 addresses", addresses(&many), "spec.sources[0].addresses", "must have at most 32 items");

    for (field, min, max) in [
        ("check.periodSeconds", 5, 3600),
        ("check.timeoutSeconds", 1, 30),
        ("check.failureThreshold", 1, 100),
        ("check.successThreshold", 1, 100),
        ("check.tcpPort", 1, 65_535),
        ("cutover.maxWaitSeconds", 0, 86_400),
        ("failback.afterSeconds", 0, 86_400),
        ("ttlSeconds", 0, 3600),
        ("alerts.notReadyForSeconds", 0, 86_400),
        ("alerts.failedOverForSeconds", 0, 86_400),
    ] {
        for (number, limit) in [
            (min - 1, format!("should be greater than or equal to {min}")),
            (max + 1, format!("should be less than or equal to {max}")),
        ] {
            let spec = match field.split_once('.') {
                Some((outer, inner)) => with(outer, json!({inner: number})),
                None => with(field, json!(number)),
            };
            add(&format!("{field}: {number}"), spec, &format!("spec.{field}"), &limit);
        }
    }
    let mode = with("failback", json!({"mode": "Sometimes"}));
    add("an unknown mode", mode, "spec.failback.mode", "supported values: \"Automatic\", \"Manual\"");
    add("pin without source", with("pin", json!("b")), "spec.pin", "must be the name of a source");
    let long = "a".repeat(64);
    add("a long pin", with("pin", json!(long)), "spec.pin", "may not be more than 63 bytes");

    let many = vec!["a"; 101];
    for field in ["hostnames", "allowFrom"] {
        let path = format!("spec.{field}");
        add(&format!("101 {field}"), with(field, json!(many)), &path, "must have at most 100 items");
    }
    let long = format!("{}example", "a.".repeat(124));
    let spec = with("hostnames", json!(["a.example", long]));
    add("a long further name", spec, "spec.hostnames[1]", "may not be more than 253 bytes");
    for namespace in ["A", "**", "", "a,b"] {
        let spec = with("allowFrom", json!([namespace]));
        let message = "must be the name of a namespace, or *";
        add(&format!("allowFrom {namespace}"), spec, "spec.allowFrom[0]", message);
    }

    for (name, value) in [
        ("team", "{{ $value }}"),
        ("a-b", "x"),
        ("1a", "x"),
        ("", "x"),
        ("é", "x"),
        ("__name__", "x"),
        (&"a".repeat(64), "x"),
    ] {
        add(&format!("label {name}"), alert_label(name, value), "spec.alerts.labels", ALERT_LABELS);
    }
    for name in ["alertname", "cluster", "stable_name", "stable_name_namespace"] {
        let message = "alertname, cluster, stable_name and stable_name_namespace are set by lb-linker";
        add(&format!("label {name}"), alert_label(name, "x"), "spec.alerts.labels", message);
    }
    let long = [&*"a".repeat(254), "/a"].concat();
    for (name, value) in [
        ("bad key!", "x"),
        ("", "x"),
        ("-a", "x"),
        ("a/b/c", "x"),
        ("/a", "x"),
        ("a/", "x"),
        ("A.example/a", "x"),
        ("a..b/a", "x"),
        ("a.-b/a", "x"),
        ("a./a", "x"),
        (&long, "x"),
        (&"a".repeat(64), "x"),
        ("a", "bad value!"),
        ("a", "x-"),
    ] {
        let message =
            "must be labels of a Kubernetes object, such as release: monitoring or example.com/team: shop";
        let spec = with("alerts", json!({"ruleLabels": {name: value}}));
        add(&format!("label {name}: {value}"), spec, "spec.alerts.ruleLabels", message);
    }
    let many: serde_json::Map<String, Value> = (0..17).map(|i| (format!("a{i}"), json!("x"))).collect();
    let message = "must have at most 16 items";
    let spec = with("alerts", json!({"labels": many}));
    add("17 labels", spec, "spec.alerts.labels", message);
    let long = "x".repeat(257);
    let message = "may not be more than 256 bytes";
    add("a long label", alert_label("team", &long), "spec.alerts.labels.team", message);

    let message = format!("metadata.name {LABEL}");
    cases.push(Case {
        given: "an object name with a dot".to_owned(),
        name: "b.5".to_owned(),
        spec: hostname("a.example"),
        field: "metadata.name".to_owned(),
        message: message.clone(),
    });
    cases.push(Case {
        given: "a long object name".to_owned(),
        name: "a".repeat(64),
        spec: hostname("a.example"),
        field: "metadata.name".to_owned(),
        message,
    });
    cases
}

/// Returns accepted objects at the limits: what they are, their names and specs.
pub fn accepted() -> Vec<(&'static str, String, Value)> {
    let label = "a".repeat(63);
    let hostname_253 = format!("{}{}", "a.".repeat(95), label);
    let sources: Vec<Value> = (0..8)
        .map(|i| json!({"name": format!("n{i}{}", "a".repeat(61)), "hostname": hostname_253}))
        .collect();
    let addresses: Vec<String> = (0..30).map(|i| format!("2001:db8::{:x}", i + 1)).collect();
    let addresses = [vec!["10.0.0.1".to_owned(), "100.100.100.200".to_owned()], addresses].concat();
    let rule_labels = json!({
        "release": "monitoring", "Example_1.a": "", "a.b-c.example/d": "1_2.3-4", "a": label,
        [&*"a".repeat(253), "/", &label].concat(): "x",
    });
    let labels: serde_json::Map<String, Value> =
        (0..16).map(|i| (format!("_a{i}"), json!("{ x".repeat(85)))).collect();
    vec![
        ("the shortest spec", "b5".to_owned(), hostname("a.b")),
        ("a punycode name", "5".to_owned(), hostname("xn--bcher-kva.example")),
        ("numbers in a name", "5a".to_owned(), hostname("127.1.0x7g.1a")),
        ("eight long sources", label.clone(), json!({"sources": sources})),
        ("32 addresses", "web".to_owned(), json!({"sources": [{"name": "a", "addresses": addresses}]})),
        (
            "lists",
            "web".to_owned(),
            json!({
                "sources": [{"name": "a", "service": {"name": label, "namespace": label}}],
                "hostnames": vec![hostname_253; 100],
                "allowFrom": vec!["*"; 100],
                "alerts": {"labels": labels, "ruleLabels": rule_labels},
            }),
        ),
        (
            "empty lists",
            "web".to_owned(),
            json!({
                "sources": [{"name": "a", "hostname": "a.b"}],
                "hostnames": [], "allowFrom": [], "alerts": {"labels": {}, "ruleLabels": {}},
            }),
        ),
        (
            "the least numbers",
            "web".to_owned(),
            json!({
                "sources": [{"name": "a", "hostname": "a.b"}], "ttlSeconds": 0, "pin": "a",
                "check": {"periodSeconds": 5, "timeoutSeconds": 1, "failureThreshold": 1, "successThreshold": 1,
                    "tcpPort": 1},
                "cutover": {"maxWaitSeconds": 0}, "failback": {"mode": "Manual", "afterSeconds": 0},
                "alerts": {"notReadyForSeconds": 0, "failedOverForSeconds": 0},
            }),
        ),
        (
            "the largest numbers",
            "web".to_owned(),
            json!({
                "sources": [{"name": "a", "hostname": "a.b"}], "ttlSeconds": 3600,
                "check": {"periodSeconds": 3600, "timeoutSeconds": 30, "failureThreshold": 100,
                    "successThreshold": 100, "tcpPort": 65_535},
                "cutover": {"maxWaitSeconds": 86_400}, "failback": {"mode": "Automatic", "afterSeconds": 86_400},
                "alerts": {"notReadyForSeconds": 86_400, "failedOverForSeconds": 86_400},
            }),
        ),
    ]
}
