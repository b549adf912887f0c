//! The plugin *etcd* with a real etcd: faults, users, certificates, leases. `corefile/etcd.rs` compares its answers
//! with CoreDNS's.

use std::fs;
use std::path::Path;

use hickory_proto::op::ResponseCode;
use nix::sys::signal::Signal;
use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use serde_json::json;
use tempfile::TempDir;

use crate::harness::dns::{answers, ask_udp, ede, query, short};
use crate::harness::etcd::{EtcdServer, bytes};
use crate::harness::eventually;
use crate::harness::linker::Linker;

const A: &str = r#"{"host":"192.0.2.1"}"#;
const B: &str = r#"{"host":"192.0.2.2"}"#;
const ABSENT: &str = "Non-Existent Domain";

/// Starts lb-linker with *etcd* for `z`, and further options.
fn start(directory: &Path, options: &str) -> Linker {
    let corefile = format!(
        ".:0 {{\nbind 127.0.0.1\nprometheus 127.0.0.1:0\nhealth 127.0.0.1:0\nready 127.0.0.1:0\nerrors\ncache\netcd z {{\n\
         {options}\n}}\n}}\n"
    );
    let path = directory.join("Corefile");
    fs::write(&path, corefile).unwrap();
    Linker::start_bare(&[], [Path::new("--corefile"), &path])
}

/// Waits until `/ready` has this text in a note.
async fn notes(linker: &Linker, text: &str) -> String {
    let look = || async { Some(linker.get_ready().1).filter(|page| page.contains(text)) };
    eventually(&format!("a note {text:?}"), look).await
}

#[tokio::test]
async fn answers_outlive_etcd_and_follow_it_afterwards() {
    let (mut etcd, directory) = (EtcdServer::start(), tempfile::tempdir().unwrap());
    etcd.write(&[("/skydns/z/a", Some(A)), ("/skydns/z/b", Some(A)), ("/skydns/other", Some(A))]);
    let linker = start(directory.path(), &format!("endpoint {}", etcd.url()));
    answers(linker.dns, "a.z. A", "192.0.2.1").await;
    linker.line(&format!("etcd /skydns: 2 keys at revision 2 of {}", etcd.url())).await;
    // A change ends kept answers, also those of cache.
    answers(linker.dns, "c.z. A", ABSENT).await;
    etcd.write(&[("/skydns/z/a", Some(B)), ("/skydns/z/b", None), ("/skydns/z/c", Some(B))]);
    answers(linker.dns, "a.z. A", "192.0.2.2").await;
    assert_eq!([short(linker.dns, "b.z. A").await, short(linker.dns, "c.z. A").await], [ABSENT, "192.0.2.2"]);
    // A wrong value leaves other keys in place.
    etcd.write(&[("/skydns/z/a/x", Some("\u{1b}[31m")), ("/skydns/z/c", Some(A))]);
    answers(linker.dns, "c.z. A", "192.0.2.1").await;
    let line =
        linker.line("the key \"/skydns/z/a/x\" is left out: its value isn't a message of SkyDNS").await;
    assert!(!line.contains('\u{1b}'), "{line}");
    assert_eq!(ask_udp(linker.dns, &query("a.z. A")).await.metadata.response_code, ResponseCode::ServFail);
    etcd.write(&[("/skydns/z/a/x", None)]);
    answers(linker.dns, "a.z. A", "192.0.2.2").await;

    etcd.kill();
    notes(&linker, &format!("etcd: {}: no connection: ", etcd.url())).await;
    assert_eq!(short(linker.dns, "a.z. A").await, "192.0.2.2");
    linker.line("; the keys before stay").await;
    etcd.run();
    let revision = |answer: serde_json::Value| answer["header"]["revision"].as_str().unwrap().to_owned();
    etcd.write(&[("/skydns/z/a", Some(A)), ("/skydns/z/c", None)]);
    let last = revision(etcd.call("/v3/kv/range", &json!({"key": bytes("x")}), None));
    etcd.call("/v3/kv/compaction", &json!({"revision": last, "physical": true}), None);
    answers(linker.dns, "a.z. A", "192.0.2.1").await;
    assert_eq!(short(linker.dns, "c.z. A").await, ABSENT);
    answers_note_nothing(&linker).await;
}

/// Waits until `/ready` has no note.
async fn answers_note_nothing(linker: &Linker) {
    eventually("no note", || async { (linker.get_ready() == (200, "OK".to_owned())).then_some(()) }).await;
}

#[tokio::test]
async fn stopped_etcd_is_noticed_and_another_one_is_asked() {
    let (mut one, two, directory) = (EtcdServer::start(), EtcdServer::start(), tempfile::tempdir().unwrap());
    one.write(&[("/skydns/z/a", Some(A))]);
    for value in [A, B] {
        two.write(&[("/skydns/z/a", Some(value))]);
    }
    let linker = start(directory.path(), &format!("endpoint {} {}", one.url(), two.url()));
    answers(linker.dns, "a.z. A", "192.0.2.1").await;
    // It still accepts connections.
    one.signal(Signal::SIGSTOP);
    answers(linker.dns, "a.z. A", "192.0.2.2").await;
    linker.line(&format!("etcd /skydns: {} answers", two.url())).await;
}

#[tokio::test]
async fn etcd_that_isnt_there_is_waited_for() {
    let (mut etcd, directory) = (EtcdServer::start(), tempfile::tempdir().unwrap());
    etcd.write(&[("/skydns/z/a", Some(A))]);
    etcd.kill();
    let linker = start(directory.path(), &format!("endpoint {}", etcd.url()));
    linker.ready().await;
    linker.line("no connection: Connection refused (os error 111); no keys are known").await;
    let answer = ask_udp(linker.dns, &query("a.z. A")).await;
    assert_eq!((answer.metadata.response_code, ede(&answer)), (ResponseCode::ServFail, Some(14)));
    etcd.run();
    answers(linker.dns, "a.z. A", "192.0.2.1").await;
}

#[tokio::test]
async fn leases_end_keys_and_shorten_ttls() {
    let (etcd, directory) = (EtcdServer::start(), tempfile::tempdir().unwrap());
    etcd.write_with_lease("/skydns/z/a", A, 3600);
    etcd.write_with_lease("/skydns/z/b", A, 2);
    let linker = start(directory.path(), &format!("endpoint {}\nmin-lease-ttl 7", etcd.url()));
    answers(linker.dns, "b.z. A", "192.0.2.1").await;
    let answer = ask_udp(linker.dns, &query("b.z. A")).await;
    assert!(answer.answers.first().is_none_or(|record| record.ttl <= 7), "{answer:?}");
    answers(linker.dns, "b.z. A", ABSENT).await;
    let ttl = || async { ask_udp(linker.dns, &query("a.z. A")).await.answers[0].ttl };
    eventually("a TTL of the lease", || async { Some(ttl().await).filter(|ttl| *ttl > 7) }).await;
    assert_eq!(short(linker.dns, "a.z. A").await, "192.0.2.1");
}

#[tokio::test]
async fn users_need_a_password_and_a_permission() {
    let (etcd, directory) = (EtcdServer::start(), tempfile::tempdir().unwrap());
    etcd.write(&[("/skydns/z/a", Some(A))]);
    let call = |path: &str, question| etcd.call(path, &question, None);
    for user in ["root", "dns", "nothing"] {
        call("/v3/auth/user/add", json!({"name": user, "password": "hunter2"}));
        call("/v3/auth/role/add", json!({"name": user}));
        call("/v3/auth/user/grant", json!({"user": user, "role": user}));
    }
    let below = json!({"permType": "READ", "key": bytes("/skydns/"), "range_end": bytes("/skydns0")});
    call("/v3/auth/role/grant", json!({"name": "dns", "perm": below}));
    call("/v3/auth/enable", json!({}));
    for (user, expected) in [
        (
            "dns wrong",
            "it refuses (3): etcdserver: authentication failed, invalid user ID or password: see the option",
        ),
        (
            "nothing hunter2",
            "it refuses (7): etcdserver: permission denied: the user of \"credentials\" needs",
        ),
        ("", "add the option \"credentials USERNAME PASSWORD\""),
    ] {
        let credentials = if user.is_empty() { String::new() } else { format!("\ncredentials {user}") };
        let linker = start(directory.path(), &format!("endpoint {}{credentials}", etcd.url()));
        linker.line(expected).await;
    }
    let linker = start(directory.path(), &format!("endpoint {}\ncredentials dns hunter2", etcd.url()));
    answers(linker.dns, "a.z. A", "192.0.2.1").await;
    let token = etcd.call("/v3/auth/authenticate", &json!({"name": "root", "password": "hunter2"}), None);
    let put = json!({"key": bytes("/skydns/z/a"), "value": bytes(B)});
    etcd.call("/v3/kv/put", &put, token["token"].as_str());
    answers(linker.dns, "a.z. A", "192.0.2.2").await;
    assert!(!linker.log().iter().any(|line| line.contains("hunter2")));
}

/// Creates a CA, and certificates of a server and a client.
fn certificates(directory: &Path) {
    let key = || KeyPair::generate().unwrap();
    let (ca_key, mut ca) = (key(), CertificateParams::new([]).unwrap());
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    fs::write(directory.join("ca.crt"), ca.self_signed(&ca_key).unwrap().pem()).unwrap();
    let issuer = Issuer::new(ca, ca_key);
    for name in ["server", "client"] {
        let (key, mut params) = (key(), CertificateParams::new(["127.0.0.1".to_owned()]).unwrap());
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let certificate = params.signed_by(&key, &issuer).unwrap();
        fs::write(directory.join(format!("{name}.crt")), certificate.pem()).unwrap();
        fs::write(directory.join(format!("{name}.key")), key.serialize_pem()).unwrap();
    }
}

#[tokio::test]
async fn etcd_with_client_certificates_is_asked_by_tls() {
    let data: TempDir = tempfile::tempdir().unwrap();
    certificates(data.path());
    let file = |name: &str| data.path().join(name).display().to_string();
    let [ca, server_crt, server_key, crt, key] =
        ["ca.crt", "server.crt", "server.key", "client.crt", "client.key"].map(file);
    let tls = [
        format!("--cert-file={server_crt}"),
        format!("--key-file={server_key}"),
        format!("--trusted-ca-file={ca}"),
        "--client-cert-auth".to_owned(),
    ];
    let (directory, etcd) = (tempfile::tempdir().unwrap(), EtcdServer::with_tls(&tls, data));
    etcd.write(&[("/skydns/z/a", Some(A))]);
    let url = etcd.url();
    for (options, expected) in [
        (format!("endpoint {url}\ntls {ca}"), "; no keys are known"),
        (format!("endpoint {url}"), "its certificate is signed by an unknown authority"),
        (format!("endpoint {}", url.replace("https", "http")), "the connection has failed"),
    ] {
        let linker = start(directory.path(), &options);
        linker.line(expected).await;
    }
    let linker = start(directory.path(), &format!("endpoint {url}\ntls {crt} {key} {ca}"));
    answers(linker.dns, "a.z. A", "192.0.2.1").await;
    etcd.write(&[("/skydns/z/a", Some(B))]);
    answers(linker.dns, "a.z. A", "192.0.2.2").await;
}
