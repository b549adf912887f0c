use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::dns::message::presentation::rcode_text;
use crate::dns::plugins::tests::support::TestServer;
use crate::model::names;
use crate::model::service_key::ServiceKey;
use crate::model::tls_error::VERSION_1;
use crate::store::cluster::objects::{Addressing, Kind, Service};
use crate::store::cluster::registry::ClusterSpec;
use crate::store::cluster::{Cluster, View};

/// Returns a server with these lines in a block, which has the plugin with the options of a default selection, and its
/// objects.
pub(crate) fn server(lines: &str) -> (TestServer, Arc<Cluster>) {
    let server = TestServer::block(lines);
    let spec = ClusterSpec::default();
    let cluster = server.shared.clusters.cluster(spec);
    assert!(Arc::strong_count(&cluster) > 1, "the plugin has it, too");
    cluster.set_namespace("a", true);
    set(&cluster, "web", Addressing::ClusterIps([[10, 0, 0, 1].into()].into()));
    (server, cluster)
}

fn set(cluster: &Cluster, name: &str, addressing: Addressing) {
    cluster.set_service(&ServiceKey::new("a", name), Some(Service { addressing, ports: [].into() }), &[]);
}

fn alias(cluster: &Cluster, name: &str, target: &str) {
    let wire = [&*names::wire_of(target).unwrap(), &[0]].concat();
    set(cluster, name, Addressing::Alias(wire.into()));
}

pub(crate) fn list(cluster: &Cluster) {
    Kind::ALL.into_iter().for_each(|kind| cluster.set_listed(kind));
}

const WEB: &str = "web.a.svc.cluster.local.";

/// Replaces the serial of the SOA record, a Unix time.
fn without_serial(cluster: &Cluster, text: &str) -> String {
    let serial = cluster.serial(View::Inside).load(std::sync::atomic::Ordering::Relaxed);
    text.replace(&format!(" {serial} "), " SERIAL ")
}

#[tokio::test]
async fn names_are_answered_with_an_soa_record_where_none_is_found() {
    let (server, cluster) = server("kubernetes cluster.local {\nttl 400\n}\nwhoami");
    list(&cluster);
    let soa = "cluster.local. 300 IN SOA ns.dns.cluster.local. hostmaster.cluster.local. SERIAL 7200 1800 86400 400";
    for (question, expected) in [
        (format!("{WEB} A"), format!("NOERROR aa | {WEB} 400 IN A 10.0.0.1 | |")),
        (format!("{WEB} AAAA"), format!("NOERROR aa | | {soa} |")),
        ("none.a.svc.cluster.local. A".to_owned(), format!("NXDOMAIN aa | | {soa} |")),
        ("cluster.local. SOA".to_owned(), format!("NOERROR aa | {soa} | |")),
    ] {
        let found = without_serial(&cluster, &server.ask(&question).await);
        assert_eq!(found, expected, "{question}");
        let reply = server.reply(&question).await.unwrap();
        assert!(!reply.is_cacheable && reply.validity.is_some(), "{question}");
    }
    assert!(server.ask("example.org. A").await.contains("_udp."), "the next plugin answers");
}

#[tokio::test]
async fn ttls_are_within_the_bounds_of_cache() {
    let soa = "cluster.local. IN SOA ns.dns.cluster.local. hostmaster.cluster.local. SERIAL 7200 1800 86400 ";
    for (cache, ttl, exists, absent) in [
        ("cache 30", 300, "30", "30"),
        ("cache 30 {\ndisable success cluster.local\ndisable denial cluster.local\n}", 300, "30", "30"),
        ("cache 30 cluster.local", 0, "5", "5"),
        ("cache 30 example.org", 300, "300", "300"),
        ("cache {\nsuccess 100 60 10\ndenial 100 20\n}", 300, "60", "20"),
        ("cache {\nkeepttl\n}", 3600, "3600", "300"),
        ("cache", 3600, "3600", "300"),
    ] {
        let (server, cluster) =
            server(&format!("{cache}\nkubernetes cluster.local {{\nttl {ttl}\n}}\nwhoami"));
        list(&cluster);
        let found = server.ask(&format!("{WEB} A")).await;
        assert_eq!(found, format!("NOERROR aa | {WEB} {exists} IN A 10.0.0.1 | |"), "{cache}");
        let found = without_serial(&cluster, &server.ask("none.a.svc.cluster.local. A").await);
        let soa = soa.replacen(" IN", &format!(" {absent} IN"), 1);
        assert_eq!(found, format!("NXDOMAIN aa | | {soa}{ttl} |"), "{cache}");
    }
    let (server, cluster) = server("cache 30\nkubernetes cluster.local");
    list(&cluster);
    assert!(server.ask("dns-version.cluster.local. TXT").await.contains(" 30 IN TXT"));
}

#[tokio::test]
async fn names_that_fall_through_are_cached_until_they_exist() {
    const NAME: &str = "9.0.0.10.in-addr.arpa. PTR";
    let options = "cache 30\nkubernetes cluster.local in-addr.arpa {\nfallthrough in-addr.arpa\n}\nwhoami";
    let (server, cluster) = server(options);
    list(&cluster);
    let hits = || server.metrics("coredns_cache_hits_total{").concat();
    for (number, is_hit) in [(1, false), (2, true)] {
        assert!(server.ask(NAME).await.contains("_udp."), "the next plugin answers question {number}");
        assert_eq!(hits().ends_with(" 1"), is_hit, "{}", hits());
    }
    set(&cluster, "other", Addressing::ClusterIps([[10, 0, 0, 8].into()].into()));
    assert!(server.ask(NAME).await.contains("_udp.") && hits().ends_with(" 2"), "{}", hits());
    set(&cluster, "new", Addressing::ClusterIps([[10, 0, 0, 9].into()].into()));
    let answer = server.ask(NAME).await;
    assert!(answer.contains("PTR new.a.svc.cluster.local."), "{answer}");
}

#[tokio::test]
async fn denial_by_the_next_plugin_is_cached_as_nodata() {
    const NAME: &str = "1.0.0.10.in-addr.arpa. A";
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "@ 60 IN SOA ns hostmaster 1 2 3 4 60\n").unwrap();
    let lines = "cache 30\nkubernetes cluster.local in-addr.arpa {\nfallthrough\n}";
    let (server, cluster) = server(&format!("{lines}\nfile {} in-addr.arpa", file.path().display()));
    list(&cluster);
    let hits = || server.metrics("coredns_cache_hits_total{").concat();
    for is_hit in [false, true] {
        let answer = server.ask(NAME).await;
        assert!(answer.starts_with("NOERROR") && answer.contains("| | in-addr.arpa. 5 IN SOA"), "{answer}");
        assert_eq!(hits().ends_with(" 1"), is_hit, "{}", hits());
    }
    set(&cluster, "web", Addressing::Headless);
    assert!(server.ask(NAME).await.starts_with("NXDOMAIN"));
}

#[tokio::test]
async fn clients_and_acl_decide_about_names_of_the_cluster() {
    for (rule, refused) in
        [("clients 192.0.2.0/24", "REFUSED"), ("acl {\nblock net 10.0.0.0/8\n}", "REFUSED")]
    {
        let (server, cluster) = server(&format!("{rule}\nkubernetes cluster.local"));
        list(&cluster);
        for (client, expected) in [("192.0.2.7", "NOERROR"), ("10.0.0.7", refused)] {
            let answer = server.clone().from(client).ask(&format!("{WEB} A")).await;
            assert!(answer.starts_with(expected), "{rule} {client}: {answer}");
        }
    }
}

#[tokio::test]
async fn unlisted_names_are_servfail_and_known_ones_are_answered() {
    let (server, cluster) = server("kubernetes cluster.local {\nstartup_timeout 0s\nfallthrough\n}\nwhoami");
    assert!(server.ask(&format!("{WEB} A")).await.contains("10.0.0.1"));
    assert!(server.reply(&format!("{WEB} A")).await.unwrap().validity.is_none(), "it isn't kept");
    let unknown = server.edns(1232);
    let reply = unknown.reply("none.a.svc.cluster.local. A").await.unwrap();
    assert_eq!((&*rcode_text(reply.metadata.response_code), reply.ede.unwrap().code), ("SERVFAIL", 14));
    list(&cluster);
    assert!(unknown.ask("none.a.svc.cluster.local. A").await.contains("_udp."));
}

#[tokio::test]
async fn names_that_coredns_denies_are_passed_on() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let text = "@ 60 IN SOA ns hostmaster 1 2 3 4 60\n@ 60 IN TXT here\ndns 9 IN A 192.0.2.1\n";
    std::fs::write(file.path(), text).unwrap();
    let lines = format!("kubernetes cluster.local {{\nfallthrough\n}}\nfile {}", file.path().display());
    let (server, cluster) = server(&format!("{lines} cluster.local"));
    list(&cluster);
    for (question, expected) in [
        ("dns.cluster.local. A", "NOERROR aa | dns.cluster.local. 9 IN A 192.0.2.1 | |"),
        ("dns.cluster.local. AAAA", "NOERROR aa | | cluster.local. 60 IN SOA ns."),
        ("cluster.local. TXT", "NOERROR aa | cluster.local. 60 IN TXT"),
        ("dns-version.cluster.local. A", "NOERROR aa | | cluster.local. 5 IN SOA ns.dns."),
        ("x.cluster.local. A", "NXDOMAIN aa | | cluster.local. 60 IN SOA ns."),
        ("x.cluster.local. SOA", "NXDOMAIN aa | | cluster.local. 60 IN SOA ns."),
        ("cluster.local. A", "NOERROR aa | | cluster.local. 5 IN SOA ns.dns."),
    ] {
        let found = server.ask(question).await;
        assert!(found.starts_with(expected), "{question}: {found}");
    }
}

#[tokio::test(start_paused = true)]
async fn questions_wait_for_the_first_lists() {
    let (server, cluster) = server("kubernetes cluster.local");
    let listing = Arc::clone(&cluster);
    tokio::spawn(async move {
        sleep(Duration::from_secs(3)).await;
        list(&listing);
    });
    let began = Instant::now();
    assert!(server.ask("none.a.svc.cluster.local. A").await.starts_with("NXDOMAIN"));
    assert_eq!(began.elapsed().as_secs(), 3);
}

#[tokio::test(start_paused = true)]
async fn waiting_ends_at_startup_timeout() {
    let (server, _cluster) = server("kubernetes cluster.local {\nstartup_timeout 2s\n}");
    let began = Instant::now();
    for _ in 0..2 {
        assert!(server.ask("none.a.svc.cluster.local. A").await.starts_with("SERVFAIL"));
        assert_eq!(began.elapsed().as_secs(), 2);
    }
}

#[tokio::test]
async fn kept_answers_end_with_what_they_rest_on() {
    let (server, cluster) = server("kubernetes cluster.local");
    list(&cluster);
    let names = [WEB, "none.a.svc.cluster.local.", "one.b.svc.cluster.local."];
    let mut kept = Vec::new();
    for name in names {
        kept.push(server.reply(&format!("{name} A")).await.unwrap().validity.unwrap());
    }
    set(&cluster, "none", Addressing::Headless);
    assert_eq!(kept.iter().map(|kept| kept.is_outdated()).collect::<Vec<_>>(), [false, true, false]);
    cluster.remove(Kind::Services, &ServiceKey::new("a", "web"));
    cluster.set_namespace("b", true);
    assert!(kept.iter().all(|kept| kept.is_outdated()));
}

#[tokio::test]
async fn external_names_are_chased_through_the_blocks() {
    let (server, cluster) = server(
        "kubernetes cluster.local\nhosts /dev/null example.org {\n192.0.2.1 www.example.org\n}\ntemplate ANY ANY bad.test {\n\
         rcode SERVFAIL\n}\ntemplate ANY ANY none.test {\nrcode NXDOMAIN\n}",
    );
    list(&cluster);
    alias(&cluster, "out", "www.example.org");
    alias(&cluster, "in", "web.a.svc.cluster.local");
    alias(&cluster, "gone", "absent.a.svc.cluster.local");
    alias(&cluster, "one", "two.a.svc.cluster.local");
    alias(&cluster, "two", "one.a.svc.cluster.local");
    alias(&cluster, "self", "self.a.svc.cluster.local");
    alias(&cluster, "bad", "x.bad.test");
    alias(&cluster, "none", "x.none.test");
    for (question, rcode, records) in [
        ("out A", "NOERROR", 2),
        ("out CNAME", "NOERROR", 1),
        ("out ANY", "NOERROR", 1),
        ("in A", "NOERROR", 2),
        ("in TXT", "NOERROR", 1),
        ("gone A", "NXDOMAIN", 1),
        ("one A", "SERVFAIL", 2),
        ("self A", "SERVFAIL", 1),
        ("bad A", "SERVFAIL", 1),
        ("none MX", "NXDOMAIN", 1),
    ] {
        let (name, qtype) = question.split_once(' ').unwrap();
        let reply = server.reply(&format!("{name}.a.svc.cluster.local. {qtype}")).await.unwrap();
        let found = (rcode_text(reply.metadata.response_code), reply.records.answers.len());
        assert_eq!((&*found.0, found.1), (rcode, records), "{question}");
    }
}

#[tokio::test]
async fn alias_rests_on_the_service_behind_it() {
    let (server, cluster) = server("kubernetes cluster.local");
    list(&cluster);
    alias(&cluster, "in", "web.a.svc.cluster.local");
    let validity = server.reply("in.a.svc.cluster.local. A").await.unwrap().validity.unwrap();
    assert!(!validity.is_outdated());
    set(&cluster, "web", Addressing::Headless);
    assert!(validity.is_outdated());
}

#[tokio::test]
async fn blocks_of_links_and_of_a_cluster_share_a_reverse_zone() {
    let links = "lb.c 10.0.0.0/8 {\nlb_linker lb.c {\nreverse 10.0.0.0/8\n}";
    let server =
        TestServer::block(&format!("kubernetes a.b 10.0.0.0/8 {{\nstartup_timeout 0s\n}}\n}}\n{links}"));
    assert!(server.ask("none.a.b. A").await.starts_with("SERVFAIL"), "it has no objects yet");
}

#[test]
fn invalid_lines_are_rejected_with_their_position() {
    for (lines, expected) in [
        (
            "kubernetes in-addr.arpa",
            "Corefile:2:1: kubernetes needs a zone that isn't a reverse zone, such as",
        ),
        (
            "kubernetes a.b\nkubernetes b.c",
            "Corefile:3:1: kubernetes can be there only once in a block, and it is on line 2 already: name all zones of",
        ),
        (
            "lb_linker a.b\nkubernetes a.b",
            "Corefile:3:1: lb_linker answers for the zone a.b already (line 2)",
        ),
        (
            "kubernetes a.b lb.c\n}\nlb.c {\nlb_linker",
            "Corefile:2:1: lb_linker answers for the zone lb.c already (line 5): leave it out",
        ),
        (
            "kubernetes a.b {\nnamespaces c Shop\n}",
            "Corefile:3:14: \"Shop\" isn't the name of a namespace: at most",
        ),
        (
            "kubernetes a.b {\npods verifed\n}",
            "Corefile:3:6: \"verifed\" isn't disabled, insecure or verified; is it verified?",
        ),
        (
            "kubernetes a.b\n}\nlb.a.b {\nlb_linker",
            "Corefile:2:1: lb_linker's zone lb.a.b lies in a.b, where kubernetes has the names of the cluster, and one would hide",
        ),
        (
            "kubernetes k.a.b\nlb_linker a.b",
            "Corefile:2:1: lb_linker's zone a.b holds k.a.b, where kubernetes has",
        ),
        (
            "kubernetes\n}\nsvc {\nlb_linker",
            "Corefile:2:1: lb_linker's zone svc equals svc, where kubernetes has",
        ),
        (
            "kubernetes .\n}\na.pod {\nlb_linker",
            "Corefile:2:1: lb_linker's zone a.pod lies in pod, where kubernetes",
        ),
        ("kubernetes a.b {\npods all\n}", "Corefile:3:6: \"all\" isn't disabled, insecure or verified"),
        ("kubernetes a.b {\nttl 3601\n}", "Corefile:3:5: \"3601\" isn't a number of seconds from 0 to 3600"),
        ("kubernetes a.b {\nlabels a in (\n}", "Corefile:3:8: \"a in (\" is not a label selector such as"),
        (
            "kubernetes a.b {\nnamespaces c\nnamespace_labels d=e\n}",
            "Corefile:4:1: namespaces (line 3) and namespace_labels can't both be there: delete either of them",
        ),
        ("kubernetes a.b {\nkubeconfig /none\n}", "Corefile:3:12: /none: can't be read: No such file"),
        (
            "kubernetes a.b {\nendpoint x\ntls /none /none /none\n}",
            "Corefile:4:5: /none: can't be read: No such",
        ),
        (
            "kubernetes a.b {\nendpoint ftp://192.0.2.1\n}",
            "Corefile:3:10: \"ftp://192.0.2.1\" isn't the URL of an API server, such as https://192.0.2.1:6443",
        ),
        ("kubernetes a.b {\ntls a b\n}", "Corefile:3:1: tls needs three files: a certificate, its key"),
        ("kubernetes a.b {\nignore all\n}", "Corefile:3:8: \"all\" isn't empty_service"),
        ("kubernetes a.b {\napiserver_qps -1\n}", "Corefile:3:15: \"-1\" isn't a number of 0 or more"),
        (
            "kubernetes a.b {\nnoendpoints\nzonal\n}",
            "Corefile:4:1: zonal reads endpoints, and noendpoints (line 3) leaves them out: delete either",
        ),
        ("kubernetes a.b {\nzonal x\n}", "Corefile:3:7: zonal takes no arguments"),
        (
            "kubernetes a.b b.c {\nmulticluster b.c c.d\n}",
            "Corefile:3:18: c.d isn't a zone of kubernetes here, which has a.b, b.c: add it to the line of",
        ),
        (
            "kubernetes a.b {\nupstream\n}",
            "Corefile:3:1: CoreDNS doesn't have kubernetes's option upstream any more",
        ),
        (
            "kubernetes a.b {\nserve x\n}",
            "Corefile:3:1: kubernetes has no option \"serve\"; its options are apiserver_burst,",
        ),
        (
            "kubernetes {\nfallthru\n}",
            "Corefile:3:1: kubernetes has no option \"fallthru\"; is it fallthrough?",
        ),
    ] {
        let error = TestServer::error(lines);
        assert!(error.starts_with(expected), "{lines}: {error}");
    }
}

#[test]
fn lines_that_have_no_effect_are_warned_of() {
    for (lines, expected) in [
        ("kubernetes a.b a.b 10.0.0.0/8", ""),
        (
            "kubernetes a.b {\nendpoint https://192.0.2.1\n}",
            "Corefile:3:10: without tls only the system's certificate authorities are trusted, and lb-linker has no \
             credentials; name both by tls CERT KEY CACERT",
        ),
        ("kubernetes a.b {\nmulticluster\n}", "Corefile:3:1: multicluster has no effect without zones"),
        (
            "metadata\n}\ncorp.test {\nkubernetes a.b corp.test",
            "Corefile:5:1: no question reaches kubernetes for a.b: the block has only corp.test",
        ),
        ("metadata\n}\nb.c {\nkubernetes a.b.c c 10.0.0.0/8", ""),
    ] {
        let (_, configuration) = TestServer::configured(&format!(". {{\n{lines}\n}}\n"));
        let warnings = configuration.blocks.iter().flat_map(|block| &block.builder.warnings);
        let warnings: Vec<String> = warnings.map(ToString::to_string).collect();
        assert_eq!(warnings.join("\n"), expected, "{lines}");
    }
}

#[test]
fn kubeconfig_has_to_have_the_context_and_its_server() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().display();
    let context = |name: &str| format!("- name: {name}\n  context: {{cluster: {name}}}\n");
    let text = format!(
        "contexts:\n{}{}clusters: [{{name: two, cluster: {{server: 192.0.2.1}}}}]\n",
        context("one"),
        context("two")
    );
    let none = format!("3:12: {path}: it has no contexts, so it names no API server: name a kubeconfig that");
    let no_current =
        format!("3:12: {path}: it has no current-context: name a context after the file; it has one, two");
    let no_cluster = |column: usize, text: &str| format!("3:{column}: the kubeconfig has no {text}");
    let after = 13 + path.to_string().len();
    for (text, context, expected) in [
        (String::new(), "", none.clone()),
        ("current-context: one\n".to_owned(), "one", none),
        (text.clone(), "", no_current.clone()),
        (text.clone() + "current-context: ''\n", "", no_current),
        (text.clone() + "current-context: three", "", no_cluster(12, "context \"three\"; it has one, two")),
        (text.clone(), "three", no_cluster(after, "context \"three\"; it has one, two")),
        (text.clone(), "one", no_cluster(after, "cluster \"one\" with a server, which its context \"one\"")),
    ] {
        std::fs::write(file.path(), &text).unwrap();
        let error = TestServer::error(&format!("kubernetes a.b {{\nkubeconfig {path} {context}\n}}"));
        assert!(error.starts_with(&format!("Corefile:{expected}")), "{text}: {error}");
    }
    for (text, context) in [(text.clone(), "two"), (text + "current-context: two\n", "")] {
        std::fs::write(file.path(), text).unwrap();
        TestServer::block(&format!("kubernetes a.b {{\nkubeconfig {path} {context}\n}}"));
    }
}

#[test]
fn files_of_tls_are_checked_in_their_order() {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, text: String| std::fs::write(directory.path().join(name), text).unwrap();
    for name in ["other", "own"] {
        let key = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::new(["a.example".to_owned()]).unwrap();
        write(&format!("{name}.crt"), params.self_signed(&key).unwrap().pem());
        write(&format!("{name}.key"), key.serialize_pem());
    }
    let at = directory.path().display();
    let line = |files: &str| {
        let files: Vec<String> = files.split(' ').map(|file| format!("{at}/{file}")).collect();
        format!("kubernetes a.b {{\nendpoint https://192.0.2.1\ntls {}\n}}", files.join(" "))
    };
    write("old.crt", VERSION_1.to_owned());
    TestServer::block(&line("own.crt own.key other.crt"));
    for (files, wrong, why) in [
        (
            "old.crt own.key own.crt",
            0,
            "the certificate isn't of X.509 version 3: give one of this version, which",
        ),
        (
            "own.key own.crt other.crt",
            0,
            "it has a private key and no certificate: the file of the certificate belongs here; the order is: cert",
        ),
        (
            "own.crt own.crt other.crt",
            1,
            "there is no private key in PEM: no items found; the order is: cert",
        ),
        ("own.crt own.key own.key", 2, "it has a private key and no certificate: "),
        ("own.crt other.key own.crt", 1, ""),
    ] {
        let column =
            5 + files.split(' ').take(wrong).map(|file| format!("{at}/{file} ").len()).sum::<usize>();
        let file = files.split(' ').nth(wrong).unwrap();
        let (expected, error) =
            (format!("Corefile:4:{column}: {at}/{file}: {why}"), TestServer::error(&line(files)));
        assert!(error.starts_with(&expected), "{files}: {error}");
    }
}
