//! The rules by which ExternalDNS 0.22.0 and k8s_gateway 1.8.2 give names: objects in, answers out.
//!
//! A row has a rule, with its place in the sources of ExternalDNS (`docs/`, `source/`, `endpoint/`) or k8s_gateway
//! (`README.md`, `kubernetes.go`). The module of k8s_gateway can't be built here: its answers follow from the lines
//! that the rows name. Where lb-linker answers otherwise, the row has the words of the documentation about that.

use std::collections::BTreeSet;
use std::fs;

use hickory_proto::rr::RecordType;

use crate::corefile::server::{CorefileDir, Program, Server};
use crate::harness::dns::{ask_udp, data, query};
use crate::harness::{deploy, eventually, linker};

/// The answer about a name that doesn't exist, and about one without records of the type.
const ABSENT: &str = "Non-Existent Domain";
const EMPTY: &str = "No Error";

const WITHOUT_COUNTERPART: &str = "`--fqdn-template` and other templates, `--default-targets`, \
                                   `--exclude-domains`, `--regex-domain-filter`, `--managed-record-types`, \
                                   `--nat64-networks`, `--compatibility`";
const OPTIONS: &str = "`--ignore-ingress-rules-spec`, `--ignore-ingress-tls-spec`, \
                       `--ignore-hostname-annotation`, `--gateway-name`, `--gateway-label-filter`";

/// The documents that tell how lb-linker differs.
const DOCUMENTS: [&str; 3] = ["sources.md", "moving.md", "reference.md"];

/// A rule, with objects and what follows from it for them.
#[derive(Clone, Copy)]
struct Row {
    /// The place of the rule, and what it is about.
    rule: &'static str,
    /// YAML in which [`filled`] replaces words with `$`.
    objects: &'static str,
    /// Questions, and lb-linker's answers. A question is a name, with the row's namespace and zone unless it ends with
    /// a dot, and a type; with `ttl` behind them, the answer is the TTL.
    answers: &'static [(&'static str, &'static str)],
    /// Words that stand in the documentation, where it tells how lb-linker differs here; empty if it doesn't.
    differs: &'static str,
}

const fn row(
    rule: &'static str,
    objects: &'static str,
    answers: &'static [(&'static str, &'static str)],
) -> Row {
    Row { rule, objects, answers, differs: "" }
}

impl Row {
    const fn differs(self, differs: &'static str) -> Self {
        Self { differs, ..self }
    }
}

/// Replaces `$N` by the row's namespace, `$M` by another one, `$Z` by what its names end with, and shorthands.
fn filled(text: &str, number: usize, zone: &str) -> String {
    [
        ("$Z", format!("$N.{zone}")),
        ("$N", format!("n{number}")),
        ("$M", format!("m{number}")),
        ("$E", "external-dns.kubernetes.io".to_owned()),
        ("$OLD", "external-dns.alpha.kubernetes.io".to_owned()),
        ("$L", "linker.hsj.com".to_owned()),
        ("$HTTPS", "port: 443, protocol: HTTPS".to_owned()),
        ("$HTTP", "port: 80, protocol: HTTP".to_owned()),
        ("$TLS", "port: 443, protocol: TLS".to_owned()),
        ("$ACCEPTED", "conditions: [{type: Accepted, status: 'True'}]".to_owned()),
    ]
    .iter()
    .fold(text.to_owned(), |text, (word, meaning)| text.replace(word, meaning))
}

/// An object. `in` gives it another namespace than the row's.
macro_rules! object {
    ($api:literal, $kind:literal, $metadata:literal, $rest:expr) => {
        object!($api, $kind, $metadata in "$N", $rest)
    };
    ($api:literal, $kind:literal, $metadata:literal in $namespace:literal, $rest:expr) => {
        concat!(
            "---\napiVersion: ", $api, "\nkind: ", $kind, "\nmetadata: {namespace: ", $namespace, ", name: ",
            $metadata, "}\n", $rest, "\n"
        )
    };
}

/// An Ingress with a spec and the entries of its status.
macro_rules! ingress {
    ($metadata:literal $(in $namespace:literal)?, $spec:literal, $status:literal) => {
        object!(
            "networking.k8s.io/v1", "Ingress", $metadata $(in $namespace)?,
            concat!("spec: {", $spec, "}\nstatus: {loadBalancer: {ingress: [", $status, "]}}")
        )
    };
}

/// A Service with a spec and the entries of its status.
macro_rules! service {
    ($metadata:literal $(in $namespace:literal)?, $spec:literal, $status:literal) => {
        object!(
            "v1", "Service", $metadata $(in $namespace)?,
            concat!("spec: {", $spec, "}\nstatus: {loadBalancer: {ingress: [", $status, "]}}")
        )
    };
}

/// A Gateway with listeners and the addresses of its status; ListenerSets may add listeners.
macro_rules! gateway {
    ($metadata:literal $(in $namespace:literal)?, $listeners:literal, $addresses:literal) => {
        object!(
            "gateway.networking.k8s.io/v1", "Gateway", $metadata $(in $namespace)?,
            concat!(
                "spec: {gatewayClassName: envoy, allowedListeners: {namespaces: {from: All}}, listeners: [", $listeners,
                "]}\nstatus: {addresses: [", $addresses, "]}"
            )
        )
    };
}

/// A route with hostnames that all its parents have accepted.
macro_rules! route {
    ($kind:literal, $metadata:literal, $hosts:literal, $($parent:literal),+) => {
        object!(
            "gateway.networking.k8s.io/v1", $kind, $metadata,
            concat!(
                "spec: {hostnames: [", $hosts, "], parentRefs: [", $($parent, ","),+,
                "]}\nstatus: {parents: [", $("{parentRef: ", $parent, ", $ACCEPTED},"),+, "]}"
            )
        )
    };
}

/// A DNSEndpoint with entries.
macro_rules! dns_endpoint {
    ($metadata:literal $(in $namespace:literal)?, $entries:literal) => {
        object!(
            "externaldns.k8s.io/v1alpha1", "DNSEndpoint", $metadata $(in $namespace)?,
            concat!("spec: {endpoints: [", $entries, "]}")
        )
    };
}

mod dns_endpoint;
mod filters;
mod ingress;
mod k8s_gateway;
mod k8s_gateway_options;
mod permissions;
mod route_names;
mod route_parents;
mod service;

/// Rows with the same options.
struct Table {
    rows: &'static [Row],
    zone: &'static str,
    plugin: &'static str,
    /// The options of the plugin.
    options: &'static str,
    /// Variables of the environment, which are lb-linker's flags.
    flags: &'static [(&'static str, &'static str)],
}

const EVERY_SOURCE: &str = "sources service ingress gateway dnsendpoint";
const PREFIXES: (&str, &str) =
    ("LB_LINKER_ANNOTATION_PREFIXES", "external-dns.kubernetes.io/,external-dns.alpha.kubernetes.io/");

/// The table of a kind of objects, with ExternalDNS's annotations.
const fn of_external_dns(rows: &'static [Row]) -> Table {
    Table { rows, zone: "lb.internal", plugin: "lb_linker", options: EVERY_SOURCE, flags: &[PREFIXES] }
}

const TABLES: &[Table] = &[
    of_external_dns(ingress::ROWS),
    of_external_dns(route_names::ROWS),
    of_external_dns(route_parents::ROWS),
    of_external_dns(service::ROWS),
    of_external_dns(dns_endpoint::ROWS),
    filters::CLASSES,
    filters::NAMESPACES,
    filters::SELECTION,
    filters::LABELS,
    filters::TARGETS,
    filters::PREFIX,
    filters::TTL,
    k8s_gateway::EVERY_RESOURCE,
    k8s_gateway_options::DEFAULTS,
    k8s_gateway_options::ORDER,
    k8s_gateway_options::OTHER_ORDER,
    k8s_gateway_options::CLASSES,
    k8s_gateway_options::SELECTORS,
    k8s_gateway_options::README,
    k8s_gateway_options::INGRESS_ALONE,
    k8s_gateway_options::FALLTHROUGH,
    k8s_gateway_options::FALLTHROUGH_OF_A_ZONE,
    k8s_gateway_options::CHART,
];

/// The blocks of the zone, and of the names behind CNAMEs.
const COREFILE: &str = "
ZONE:{$PORT} {
    bind 127.0.0.1
    errors
    ready 127.0.0.1:{$READY}
    template IN CNAME ZONE {
        match ^_acme-challenge[.](.*)[.]ZONE[.]$
        answer \"{{ .Name }} 5 IN CNAME {{ index .Match 1 }}.dns01.example.net.\"
        fallthrough
    }
    PLUGIN {
        OPTIONS
    }
    file zone ZONE
}
example.net:{$PORT} {
    bind 127.0.0.1
    hosts hosts {
        192.0.2.77 lb.example.net
        2001:db8::77 lb.example.net
    }
}";

/// What is behind the plugin with `fallthrough`.
const ZONE: &str = "@ 3600 SOA ns hostmaster 1 7200 1800 86400 5\n@ NS ns\nns A 192.0.2.53\n* A 192.0.2.99\n";

/// Asks all questions of a table, and returns what is wrong.
async fn check(table: &Table) -> Vec<String> {
    let Table { rows, zone, plugin, options, flags } = *table;
    let corefile = COREFILE.replace("ZONE", zone).replace("PLUGIN", plugin).replace("OPTIONS", options);
    let mut site = CorefileDir::new(&corefile, &[("zone", ZONE), ("hosts", "")]);
    for (name, value) in flags {
        site = site.with(name, value);
    }
    for (number, row) in rows.iter().enumerate() {
        let objects = filled(row.objects, number, zone);
        site.write(&format!("manifests/{number}.yaml"), &objects);
    }
    let server = Server::start(Program::Linker, &site).await;
    let ready = || async { (linker::get(server.address("READY"), "/ready").0 == 200).then_some(()) };
    eventually("ready", ready).await;
    let refused = |line: &String| line.contains("manifests/") && line.contains(".yaml:");
    let mut wrong: Vec<String> = server.log().into_iter().filter(refused).collect();
    for (number, row) in rows.iter().enumerate() {
        for (question, expected) in row.answers {
            let question = filled(question, number, zone);
            let expected = filled(expected, number, zone);
            let mut words = question.split(' ');
            let (name, kind) = (words.next().unwrap(), words.next().unwrap());
            let end = if name.ends_with('.') { String::new() } else { format!(".n{number}.{zone}.") };
            assert!(kind.parse::<RecordType>().is_ok(), "{question}");
            let answer = ask_udp(server.dns(), &query(&format!("{name}{end} {kind}"))).await;
            let found = match words.next() {
                Some(_) => answer.answers.first().map_or(0, |record| record.ttl).to_string(),
                None => data(&answer),
            };
            if found != expected {
                wrong.push(format!("{}: {question} is {found} and should be {expected}", row.rule));
            }
        }
    }
    wrong
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rules_of_external_dns_and_k8s_gateway_give_names() {
    let mut wrong = Vec::new();
    for table in TABLES {
        wrong.extend(check(table).await);
    }
    assert!(wrong.is_empty(), "{:#?}", wrong);
}

#[test]
fn differences_of_rules_are_documented() {
    let documents = DOCUMENTS.map(|name| {
        let path = deploy().with_file_name("docs").join(name);
        fs::read_to_string(path).unwrap().split_whitespace().collect::<Vec<_>>().join(" ")
    });
    let rows = || TABLES.iter().flat_map(|table| table.rows);
    for row in rows().filter(|row| !row.differs.is_empty()) {
        assert!(documents.iter().any(|text| text.contains(row.differs)), "{}: {}", row.rule, row.differs);
    }
    // The tables of differences have no row without an example.
    let used: BTreeSet<&str> = rows().map(|row| row.differs).collect();
    for (name, heading) in
        [("sources.md", "\n## Differences from ExternalDNS\n"), ("moving.md", "\n### What stays different\n")]
    {
        let text = fs::read_to_string(deploy().with_file_name("docs").join(name)).unwrap();
        let (_, section) = text.split_once(heading).unwrap();
        let section = section.split("\n#").next().unwrap();
        let cells = section.lines().filter_map(|line| line.strip_prefix("| ")?.split(" | ").next());
        for cell in cells.skip(1) {
            assert!(used.contains(cell), "no row of the tables has this difference: {cell}");
        }
    }
}
