//! `/metrics` by TLS, with a web configuration of Prometheus.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use rustls::pki_types::ServerName;
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, ProtocolVersion};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::server::{CorefileDir, Program, Server};
use crate::harness::{EVENT_TIMEOUT, eventually};
use crate::tls::{Certificates, client_config};

/// Copies a certificate, its key and its CA to a directory.
fn copy(certificates: &Certificates, site: &CorefileDir) {
    for name in ["tls.crt", "tls.key", "ca.crt"] {
        site.write(name, &fs::read_to_string(certificates.file(name)).unwrap());
    }
}

/// Requests `/metrics`, and returns the reply.
async fn request(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> io::Result<String> {
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n").await?;
    let mut reply = Vec::new();
    stream.read_to_end(&mut reply).await?;
    Ok(String::from_utf8_lossy(&reply).into_owned())
}

/// Requests `/metrics` by TLS, or by plain HTTP; returns whether the reply has metrics. A request that fails after two
/// seconds is repeated: the servers close connections that are silent for five seconds.
async fn scrapes(address: SocketAddr, tls: Option<ClientConfig>) -> bool {
    for _ in 0..4 {
        let since = Instant::now();
        let has_metrics = scrapes_once(address, tls.clone()).await;
        if has_metrics || since.elapsed() < Duration::from_secs(2) {
            return has_metrics;
        }
    }
    scrapes_once(address, tls).await
}

async fn scrapes_once(address: SocketAddr, tls: Option<ClientConfig>) -> bool {
    let reply = async {
        let stream = TcpStream::connect(address).await?;
        match tls {
            None => request(stream).await,
            Some(config) => {
                let name = ServerName::try_from("dns.example").unwrap();
                request(TlsConnector::from(Arc::new(config)).connect(name, stream).await?).await
            }
        }
    };
    let reply = timeout(EVENT_TIMEOUT, reply).await.expect("a reply, or the end");
    reply.is_ok_and(|text| text.starts_with("HTTP/1.1 200 OK\r\n") && text.contains("coredns_build_info{"))
}

#[tokio::test]
async fn metrics_are_served_by_tls_as_by_coredns() {
    const COREFILE: &str = "
        .:{$PORT} {
            bind 127.0.0.1
            prometheus 127.0.0.1:{$METRICS} {
                tls web/all.yml
            }
            whoami
        }
        any.test:{$PORT} {
            bind 127.0.0.1
            prometheus 127.0.0.1:{$HEALTH} {
                tls web/any.yml
            }
            whoami
        }
        given.test:{$PORT} {
            bind 127.0.0.1
            prometheus 127.0.0.1:{$READY} {
                tls web/given.yml
            }
            whoami
        }
        verified.test:{$PORT} {
            bind 127.0.0.1
            root web
            prometheus 127.0.0.1:{$TLS} {
                tls web/verified.yml
            }
            whoami
        }";
    const SUITE: &str = "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256";
    let web = |options: &str| {
        format!("tls_server_config:\n  cert_file: ../tls.crt\n  key_file: ../tls.key\n{options}")
    };
    let all = web(&format!("  cipher_suites: [{SUITE}]\n  curve_preferences: [CurveP256]\n"));
    let any = web("  client_auth_type: RequireAnyClientCert\n  min_version: TLS13\n");
    let ca = "  client_ca_file: ../ca.crt\n";
    let given = web(&format!("  client_auth_type: VerifyClientCertIfGiven\n{ca}"));
    let verified = web(&format!("  client_auth_type: RequireAndVerifyClientCert\n{ca}"));
    let (own, foreign) = (Certificates::make(), Certificates::make());
    for which in [Program::CoreDns, Program::subject()] {
        let files = [("web/all.yml", &*all), ("web/any.yml", &any), ("web/given.yml", &given)];
        let site = CorefileDir::new(COREFILE, &files);
        site.write("web/verified.yml", &verified);
        copy(&own, &site);
        let server = Server::start(which, &site).await;
        for (port, expected) in [
            ("METRICS", [true, true, true]),
            ("HEALTH", [false, true, true]),
            ("READY", [true, true, false]),
            ("TLS", [false, true, false]),
        ] {
            let address = server.address(port);
            let mut served = Vec::new();
            for client in [None, Some(&own), Some(&foreign)] {
                let by_tls_1_3 = scrapes(address, Some(client_config(&own, &TLS13, client))).await;
                let by_tls_1_2 = scrapes(address, Some(client_config(&own, &TLS12, client))).await;
                assert_eq!(by_tls_1_2, by_tls_1_3 && port != "HEALTH", "{which:?}: {port}");
                served.push(by_tls_1_3);
            }
            assert_eq!(served, expected, "{which:?}: {port}");
            assert!(!scrapes(address, None).await, "{which:?}: {port} without TLS");
            assert!(!scrapes(address, Some(client_config(&foreign, &TLS13, Some(&own)))).await);
        }
        let stream = TcpStream::connect(server.address("METRICS")).await.unwrap();
        let connector = TlsConnector::from(Arc::new(client_config(&own, &TLS12, None)));
        let stream = connector.connect(ServerName::try_from("dns.example").unwrap(), stream).await.unwrap();
        let connection = stream.get_ref().1;
        assert_eq!(connection.protocol_version(), Some(ProtocolVersion::TLSv1_2));
        assert_eq!(format!("{:?}", connection.negotiated_cipher_suite().unwrap().suite()), SUITE);
    }
}

/// Tests lb-linker only: CoreDNS reads the files at each connection, and stops `/metrics` if a reload fails.
#[tokio::test]
async fn reload_renews_the_certificate_and_keeps_the_block() {
    if Program::subject() == Program::CoreDns {
        return;
    }
    let corefile = |reload: &str, tls: &str| {
        format!(
            ".:{{$PORT}} {{
                bind 127.0.0.1
                prometheus 127.0.0.1:{{$METRICS}}{tls}
                {reload}
                whoami
            }}"
        )
    };
    const TLS: &str = " {\ntls web.yml\n}";
    const WEB: &str = "tls_server_config:\n  cert_file: tls.crt\n  key_file: tls.key\n";
    let (first, second) = (Certificates::make(), Certificates::make());
    for reload in ["", "reload 2s 1s"] {
        let site = CorefileDir::new(&corefile(reload, TLS), &[("web.yml", WEB)]);
        copy(&first, &site);
        let mut server = Server::start(Program::Linker, &site).await;
        let address = server.address("METRICS");
        let trusts = |ca: &Certificates| scrapes(address, Some(client_config(ca, &TLS13, None)));
        assert!(trusts(&first).await && !trusts(&second).await);
        let signal = |server: &mut Server| {
            if reload.is_empty() {
                server.signal(Signal::SIGUSR1);
            }
        };

        copy(&second, &site);
        signal(&mut server);
        eventually("the renewed certificate", || async { trusts(&second).await.then_some(()) }).await;
        assert!(!trusts(&first).await);
        let kept = || async {
            server.log().iter().any(|line| line.contains("1 of 1 server blocks unchanged")).then_some(())
        };
        eventually("the kept block", kept).await;

        for (name, broken, sentence) in [
            ("tls.key", "nothing", "tls.key: there is no private key in PEM"),
            ("tls.crt", "nothing", "tls.crt: there is no certificate in PEM"),
            ("web.yml", "tls_server_config: {cert_file: none}", "none: can't be read"),
        ] {
            site.write(name, broken);
            signal(&mut server);
            let sentence = format!(":5: {sentence}");
            let told = || async {
                let log = server.log();
                log.iter()
                    .any(|line| line.contains("can't be applied") && line.contains(&sentence))
                    .then_some(())
            };
            eventually(&format!("an error about {name}"), told).await;
            assert!(trusts(&second).await, "{name}");
            copy(&second, &site);
            site.write("web.yml", WEB);
        }

        for (tls, by_tls) in [("", false), (TLS, true)] {
            site.write("Corefile", &corefile(reload, tls));
            signal(&mut server);
            let changed = || async {
                (trusts(&second).await == by_tls && scrapes(address, None).await != by_tls).then_some(())
            };
            eventually("the other protocol", changed).await;
        }
    }
}
