use std::io::Write as _;
use std::sync::Arc;

use hickory_proto::rr::Name;
use tempfile::NamedTempFile;
use tokio::time::Instant;

use super::{candidates, shift};
use crate::dns::chain::request::Purpose;
use crate::dns::chain::server::Server;
use crate::dns::message::validity::{Section, Serial, TtlCountdown, Validity};
use crate::dns::plugins::tests::support::TestServer;
use crate::model::service_key::ServiceKey;
use crate::store::cluster::Cluster;
use crate::store::cluster::objects::{Addressing, Kind, Service};
use crate::store::cluster::registry::ClusterSpec;

fn resolv_conf(text: &str) -> NamedTempFile {
    let mut file = NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

fn name(text: &str) -> Name {
    Name::from_ascii(text).unwrap()
}

/// The names that exist.
const NAMES: &str = "template IN A {\nmatch ^web[.]b[.]test[.]$ ^own[.]a[.]test[.]$ ^www[.]example[.]org[.]$\n\
                     answer \"{{ .Name }} 60 IN A 192.0.2.1\"\nfallthrough\n}\n\
                     template IN A {\nmatch ^bad[.]b[.]test[.]$\nrcode SERVFAIL\nfallthrough\n}\n\
                     template IN A {\nmatch ^void[.]b[.]test[.]$\nfallthrough\n}\n\
                     template ANY ANY {\nrcode NXDOMAIN\nauthority \"{{ .Name }} 60 IN SOA . . 1 1 1 1 1\"\n}";

#[tokio::test]
async fn names_are_completed_by_the_search_domains_of_a_file() {
    let file = resolv_conf("nameserver 192.0.2.1\nsearch A.test b.test\n");
    let server = TestServer::block(&format!("autopath {}\n{NAMES}", file.path().display()));
    for (question, expected) in [
        ("own.a.test. A", "NOERROR aa | own.a.test. 60 IN A 192.0.2.1 | |"),
        (
            "Web.a.test. A",
            "NOERROR aa | Web.a.test. 60 IN CNAME Web.b.test., web.b.test. 60 IN A 192.0.2.1 | |",
        ),
        (
            "www.example.org.a.test. A",
            "NOERROR aa | www.example.org.a.test. 60 IN CNAME www.example.org., www.example.org. 60 IN A 192.0.2.1 | |",
        ),
        ("void.a.test. A", "NOERROR aa | | |"),
        ("none.a.test. A", "NXDOMAIN aa | | none.a.test. 60 IN SOA . . 1 1 1 1 1 |"),
        ("web.a.test. AAAA", "NXDOMAIN aa | | web.a.test. 60 IN SOA . . 1 1 1 1 1 |"),
        ("bad.a.test. A", "NXDOMAIN aa | | bad.a.test. 60 IN SOA . . 1 1 1 1 1 |"),
        ("a.test. A", "NXDOMAIN aa | | a.test. 60 IN SOA . . 1 1 1 1 1 |"),
        ("web.c.test. A", "NXDOMAIN aa | | web.c.test. 60 IN SOA . . 1 1 1 1 1 |"),
    ] {
        assert_eq!(server.ask(question).await, expected, "{question}");
    }
    let counted = "coredns_autopath_success_total{server=\"dns://:53\"} 4";
    assert_eq!(server.metrics("coredns_autopath_success_total"), [counted]);
}

#[tokio::test]
async fn only_clients_questions_in_the_zones_are_completed() {
    let file = resolv_conf("search a.test b.test");
    let path = file.path().display();
    let server = TestServer::block(&format!("autopath {path}\n{NAMES}"));
    let look_up = async |has_client_name, purpose| {
        let mut request = server.request("web.a.test. A");
        (request.has_client_name, request.purpose) = (has_client_name, purpose);
        Server::serve(&mut request).await.unwrap().records.answers.len()
    };
    assert_eq!(look_up(true, Purpose::Client).await, 2);
    assert_eq!(look_up(false, Purpose::Client).await, 0);
    let target = Purpose::Target { max_negative_age: std::time::Duration::ZERO, may_use_cached: true };
    assert_eq!(look_up(true, target).await, 0);
    let elsewhere = TestServer::block(&format!("autopath x.test {path}\n{NAMES}"));
    assert!(elsewhere.ask("web.a.test. A").await.starts_with("NXDOMAIN"));
}

#[test]
fn each_name_is_tried_once_and_long_ones_are_left_out() {
    let tried = |asked: &str, domains: &[&str]| {
        let domains: Vec<Name> = domains.iter().map(|domain| name(domain)).collect();
        let names = candidates(&name(asked), &domains).unwrap_or_default();
        names.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(tried("x.a.", &["a.", "b.", "b.", "a.", "."]), ["x.a.", "x.b.", "x."]);
    assert_eq!(tried("x.y.", &["."]), ["x.y."]);
    assert_eq!(tried("x.a.", &[]), [""; 0]);
    assert_eq!(tried("a.", &["a."]), [""; 0]);
    let label = "l".repeat(60);
    let long = format!("{label}.{label}.{label}.");
    assert_eq!(tried(&format!("{label}.a."), &["a.", &format!("{label}.{long}")]).len(), 2);
}

#[test]
fn added_record_counts_down_with_the_first_one() {
    let since = Instant::now();
    let countdown = |section, records| TtlCountdown { section, records, since, ttl: 9, cap: 9 };
    let mut validity = Validity {
        countdown: vec![
            countdown(Section::Answer, 0..1),
            countdown(Section::Answer, 1..3),
            countdown(Section::Authority, 0..1),
        ],
        serial: Some(Serial { section: Section::Answer, record: 0, current: Arc::default() }),
        ..Validity::default()
    };
    shift(&mut validity);
    let places: Vec<_> = validity.countdown.iter().map(|countdown| countdown.records.clone()).collect();
    assert_eq!(places, [0..2, 2..4, 0..1]);
    assert_eq!(validity.serial.unwrap().record, 1);
}

/// Returns a server with these lines before *kubernetes*, and its objects: a Service and a Pod with the client's address
/// in the namespace a, and a Service in b.
fn cluster(lines: &str) -> (TestServer, Arc<Cluster>) {
    let server = TestServer::block(&format!(
        "{lines}\nautopath @kubernetes\nkubernetes cluster.local {{\npods verified\n}}"
    ));
    let cluster = server.shared.clusters.cluster(ClusterSpec { has_pods: true, ..ClusterSpec::default() });
    for (namespace, service) in [("a", "web"), ("b", "api")] {
        cluster.set_namespace(namespace, true);
        set(&cluster, namespace, service);
    }
    cluster.set_pod(&ServiceKey::new("a", "client"), &[[10, 0, 0, 1].into()]);
    Kind::ALL.into_iter().for_each(|kind| cluster.set_listed(kind));
    (server, cluster)
}

fn set(cluster: &Cluster, namespace: &str, name: &str) {
    let addressing = Addressing::ClusterIps([[10, 1, 0, 1].into()].into());
    cluster.set_service(
        &ServiceKey::new(namespace, name),
        Some(Service { addressing, ports: [].into() }),
        &[],
    );
}

const API: &str = "api.b.a.svc.cluster.local. A";

#[tokio::test]
async fn names_are_completed_by_the_namespace_of_the_clients_pod() {
    let (server, _cluster) = cluster("");
    let found = "NOERROR aa | api.b.a.svc.cluster.local. 5 IN CNAME api.b.svc.cluster.local., api.b.svc.cluster.local. 5 IN \
                 A 10.1.0.1 | |";
    assert_eq!(server.ask(API).await, found);
    assert!(server.ask("web.a.svc.cluster.local. A").await.starts_with("NOERROR"));
    let no_pod = server.clone().from("10.0.0.2");
    assert!(no_pod.ask(API).await.starts_with("NXDOMAIN"));
    assert!(server.ask("api.b.b.svc.cluster.local. A").await.starts_with("NXDOMAIN"), "it isn't the Pod's");
}

#[tokio::test]
async fn kept_answers_rest_on_the_clients_pod_and_all_names() {
    let (server, cluster) = cluster("");
    let kept = server.reply(API).await.unwrap().validity.unwrap();
    let is_for = |client: [u8; 4]| kept.clients.iter().all(|scope| (scope.0)(client.into()));
    assert!(is_for([10, 0, 0, 1]) && !is_for([10, 0, 0, 2]));
    assert!(!kept.is_outdated());
    cluster.set_pod(&ServiceKey::new("a", "other"), &[[10, 0, 0, 2].into()]);
    assert!(!kept.is_outdated());
    cluster.set_pod(&ServiceKey::new("a", "client"), &[]);
    assert!(kept.is_outdated(), "the client's Pod is gone");
    let denied = server.reply(API).await.unwrap().validity.unwrap();
    cluster.set_pod(&ServiceKey::new("a", "client"), &[[10, 0, 0, 1].into()]);
    assert!(denied.is_outdated(), "the client's Pod has come");
    let kept = server.reply(API).await.unwrap().validity.unwrap();
    cluster.set_namespace("svc", true);
    assert!(!kept.is_outdated());
    cluster.remove(Kind::Services, &ServiceKey::new("b", "api"));
    assert!(kept.is_outdated(), "the name that was found is gone");
    let other = server.reply("x.cluster.local. A").await.unwrap().validity.unwrap();
    assert!(other.clients.is_empty(), "no Pod has this search domain");
}

#[test]
fn lines_without_effect_are_warned_of() {
    let empty = resolv_conf("nameserver 192.0.2.1");
    let path = empty.path().display().to_string();
    for (lines, expected) in [
        (
            "autopath @kubernetes".to_owned(),
            "2:10: autopath has no effect here: the block has no \"kubernetes\"",
        ),
        ("autopath @none".to_owned(), "2:10: autopath has no effect here: the block has no \"none\""),
        (
            "autopath @kubernete\nkubernetes cluster.local".to_owned(),
            "2:10: autopath has no effect here: the block has no \"kubernete\"; is it kubernetes?",
        ),
        (
            "autopath @kubernetes\nkubernetes cluster.local".to_owned(),
            "2:10: autopath has no effect here: kubernetes has no line pods verified",
        ),
        (
            "autopath @kubernetes\nkubernetes cluster.local {\npods verified\npods insecure\n}".to_owned(),
            "2:10: autopath has no effect here: kubernetes has no line pods verified",
        ),
        (
            "autopath @erratic\nerratic".to_owned(),
            "2:10: autopath has no effect here: erratic answers all names",
        ),
        (format!("autopath {path}"), "2:10: autopath has no effect here: /"),
    ] {
        let warnings: Vec<String> =
            TestServer::builder(&lines).warnings.iter().map(ToString::to_string).collect();
        let [found] = &warnings[..] else { panic!("{lines}: {warnings:?}") };
        assert!(found.starts_with(&format!("Corefile:{expected}")), "{found}");
    }
}

#[test]
fn invalid_lines_are_rejected_with_their_position() {
    let long = resolv_conf(&format!("search {}", "a.test ".repeat(33)));
    let labels = resolv_conf(&format!("\nsearch a.test {}", "a.".repeat(1000)));
    let wrong = resolv_conf("search a..b");
    let huge = NamedTempFile::new().unwrap();
    huge.as_file().set_len(1 << 30).unwrap();
    let line = |file: &NamedTempFile| format!("autopath {}", file.path().display());
    for (lines, expected) in [
        ("autopath".to_owned(), "2:1: autopath needs a file such as /etc/resolv.conf, or @kubernetes"),
        ("autopath a..b @kubernetes".to_owned(), "2:10: \"a..b\" isn't a zone"),
        ("autopath /none\nautopath /none".to_owned(), "3:1: autopath can be there only once in a block"),
        ("autopath /none {\n}".to_owned(), "2:1: autopath takes no braces"),
        ("autopath /none".to_owned(), "2:10: /none: can't be read: No such file"),
        (
            "autopath @forward\nforward . 192.0.2.1".to_owned(),
            "2:10: forward knows no search domains: there is @kubernetes",
        ),
        (line(&long), "2:10: FILE:1: 33 search domains, and 32 are the most"),
        (line(&wrong), "2:10: FILE:1: \"a..b\" isn't the name of a search domain"),
        (line(&labels), "2:10: FILE:2: \"a.a.a.a.a."),
        (line(&huge), "2:10: FILE: can't be read: it has more than 16777216 bytes"),
    ] {
        let error = TestServer::error(&lines);
        let file = lines.split_once("autopath ").map_or("", |(_, file)| file);
        let error = if file.is_empty() { error } else { error.replace(file, "FILE") };
        let expected = if file == "/none" { expected.replace("/none", "FILE") } else { expected.to_owned() };
        assert!(error.starts_with(&format!("Corefile:{expected}")) && error.len() < 300, "{lines}: {error}");
    }
}
