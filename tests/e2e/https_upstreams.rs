//! Upstreams by DNS over HTTPS: CoreDNS, lb-linker itself, and a hostile one.

use std::net::SocketAddr;
use std::sync::Arc;

use futures::future::join_all;
use hickory_proto::rr::rdata::A;
use hickory_proto::rr::{RData, Record, RecordType};
use nix::sys::signal::Signal;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tempfile::TempDir;
use tokio::io::{AsyncWriteExt, copy, sink, split};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use crate::harness::dns::{CoreDns, FaultyUpstream, answers, error, short};
use crate::harness::linker::Linker;
use crate::harness::replace_file;
use crate::https::{HTTP_PORTS, MEMORY_LIMIT, frame, listener};
use crate::tls::Certificates;

/// Returns a zone whose names have this address.
fn zone(address: &str) -> String {
    format!("$ORIGIN example.com.\n@ 60 IN SOA ns h 1 2 3 4 5\n@ 60 IN NS ns\n* 60 IN A {address}\n")
}

async fn coredns(certificates: &Certificates, address: &str) -> CoreDns {
    let [certificate, key] = ["tls.crt", "tls.key"].map(|name| certificates.file(name).display().to_string());
    let plugins = format!("tls {certificate} {key}\nfile db example.com");
    CoreDns::start_with_scheme("https://", &plugins, &zone(address)).await
}

/// A server of lb-linker's own.
struct OwnUpstream {
    _linker: Linker,
    _directory: TempDir,
    address: SocketAddr,
}

async fn own(certificates: &Certificates, address: &str) -> OwnUpstream {
    let directory = tempfile::tempdir().unwrap();
    let db = directory.path().join("db");
    std::fs::write(&db, zone(address)).unwrap();
    let [certificate, key] = ["tls.crt", "tls.key"].map(|name| certificates.file(name).display().to_string());
    let corefile = format!(
        ".:0 {{\nbind 127.0.0.1\n{HTTP_PORTS}}}\n\
         https://.:0 {{\nbind 127.0.0.1\ntls {certificate} {key}\nfile {} example.com\n}}\n",
        db.display()
    );
    let linker = Linker::start_on_corefile(&corefile, directory.path(), None);
    linker.ready().await;
    let address = listener(&linker, ", by HTTPS").await;
    OwnUpstream { _linker: linker, _directory: directory, address }
}

/// Returns a Corefile that forwards to upstreams.
fn corefile(certificates: &Certificates, upstreams: &str, options: &str) -> String {
    let ca = certificates.file("ca.crt");
    format!(
        ".:0 {{\nbind 127.0.0.1\n{HTTP_PORTS}forward . {upstreams} {{\ntls {}\n{options}\n}}\n}}\n",
        ca.display()
    )
}

async fn forwarding(certificates: &Certificates, upstreams: &str, options: &str) -> (Linker, TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let linker =
        Linker::start_on_corefile(&corefile(certificates, upstreams, options), directory.path(), None);
    linker.ready().await;
    (linker, directory)
}

#[tokio::test]
async fn queries_share_connections_to_an_https_upstream() {
    let certificates = Certificates::make();
    let (coredns, own) = tokio::join!(coredns(&certificates, "192.0.2.1"), own(&certificates, "192.0.2.1"));
    for upstream in [coredns.address, own.address] {
        for method in ["POST", "GET"] {
            let options = format!("doh_method {method}");
            let (linker, _directory) =
                forwarding(&certificates, &format!("https://{upstream}"), &options).await;
            for round in 0..3 {
                let asking = (0..50).map(|number| {
                    let question = format!("n{round}-{number}.example.com. A");
                    async move { short(linker.dns, &question).await }
                });
                let answers = join_all(asking).await;
                assert!(
                    answers.iter().all(|answer| answer == "192.0.2.1"),
                    "{upstream} {method}: {answers:?}"
                );
            }
            let count = |what: &str| {
                let labels = format!("{{proto=\"https\",proxy_name=\"forward\",to=\"{upstream}\"}}");
                linker.metric(&format!("coredns_proxy_conn_cache_{what}_total{labels}")).unwrap()
            };
            // On a busy machine a connection may be silent for a while.
            assert!(count("hits") > 100.0 && count("misses") < 50.0, "{} {}", count("hits"), count("misses"));
        }
    }
}

#[tokio::test]
async fn next_https_upstream_answers_when_one_has_died() {
    let certificates = Certificates::make();
    let (mut first, second) =
        (coredns(&certificates, "192.0.2.1").await, own(&certificates, "192.0.2.2").await);
    let resolver = FaultyUpstream::start(|asked, _| {
        let mut answer = error(asked, hickory_proto::op::ResponseCode::NoError);
        if asked.queries[0].query_type() == RecordType::A {
            let name = asked.queries[0].name().clone();
            answer.add_answer(Record::from_rdata(name, 60, RData::A(A::new(127, 0, 0, 1))));
        }
        vec![answer]
    })
    .await;
    let upstreams =
        format!("https://dns.example:{}/dns-query https://{}", first.address.port(), second.address);
    let options =
        format!("resolver {}\npolicy sequential\nmax_fails 1\nhealth_check 100ms", resolver.address);
    let (linker, _directory) = forwarding(&certificates, &upstreams, &options).await;
    answers(linker.dns, "a.example.com. A", "192.0.2.1").await;
    first.kill();
    for number in 0..20 {
        assert_eq!(short(linker.dns, &format!("n{number}.example.com. A")).await, "192.0.2.2");
    }
    let down = format!("upstream https://{}/dns-query (dns.example) fails health checks", first.address);
    linker.line(&down).await;
}

#[tokio::test]
async fn reload_replaces_an_https_upstream() {
    let certificates = Certificates::make();
    let (first, second) = (coredns(&certificates, "192.0.2.1").await, own(&certificates, "192.0.2.2").await);
    let (mut linker, directory) = forwarding(&certificates, &format!("https://{}", first.address), "").await;
    assert_eq!(short(linker.dns, "a.example.com. A").await, "192.0.2.1");
    let changed = corefile(&certificates, &format!("https://{}", second.address), "");
    replace_file(&directory.path().join("Corefile"), &changed);
    linker.signal(Signal::SIGUSR1);
    answers(linker.dns, "b.example.com. A", "192.0.2.2").await;
}

/// Starts an upstream that sends `frames` again and again as soon as a client has connected.
async fn flood(certificates: &Certificates, frames: Vec<u8>) -> (SocketAddr, JoinSet<()>) {
    let certificate = CertificateDer::from_pem_file(certificates.file("tls.crt")).unwrap();
    let key = PrivateKeyDer::from_pem_file(certificates.file("tls.key")).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder =
        ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let mut config = builder.with_no_client_auth().with_single_cert(vec![certificate], key).unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut connections = JoinSet::new();
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let (acceptor, frames) = (acceptor.clone(), frames.clone());
            connections.spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else { return };
                let (mut reader, mut writer) = split(stream);
                let sending = async {
                    let mut next = frame(4, 0, 0, &[]);
                    while writer.write_all(&next).await.is_ok() {
                        next.clone_from(&frames);
                    }
                };
                tokio::select! {
                    () = sending => {}
                    _ = async { copy(&mut reader, &mut sink()).await } => {}
                }
            });
        }
    });
    (address, tasks)
}

#[tokio::test]
async fn hostile_https_upstream_takes_limited_memory() {
    let certificates = Certificates::make();
    let good = own(&certificates, "192.0.2.2").await;
    // Literals that aren't indexed (RFC 7541 section 6.2.2): `:status: 103`, and a header of 100 bytes.
    let informational = [&b"\x08\x03103"[..], b"\x00\x01x\x64", &[b'a'; 100]].concat();
    for (what, frames) in [
        ("responses 103", (0..100).flat_map(|n| frame(1, 4, 2 * n + 1, &informational)).collect::<Vec<u8>>()),
        ("headers without an end", frame(9, 0, 1, &informational)),
        ("bodies", [frame(1, 4, 1, &[0x88]), frame(0, 0, 1, &[0; 16_000]).repeat(8)].concat()),
        ("PING", frame(6, 0, 0, &[0; 8]).repeat(1000)),
        ("settings", frame(4, 0, 0, &[0, 3, 0, 0, 0, 1]).repeat(1000)),
    ] {
        let (hostile, _tasks) = flood(&certificates, frames).await;
        let upstreams = format!("https://{hostile} https://{}", good.address);
        let options = "policy sequential\nmax_fails 0\ndoh_method GET";
        let (linker, _directory) = forwarding(&certificates, &upstreams, options).await;
        let asking = (0..30).map(|number| {
            let question = format!("n{number}.example.com. A");
            async move { short(linker.dns, &question).await }
        });
        let answers = join_all(asking).await;
        assert!(answers.iter().all(|answer| answer == "192.0.2.2"), "{what}: {answers:?}");
        let most = linker.memory("VmHWM");
        eprintln!("https upstream: {what}: at most {most} KiB");
        assert!(most < MEMORY_LIMIT, "{what}: {most} KiB");
    }
}
