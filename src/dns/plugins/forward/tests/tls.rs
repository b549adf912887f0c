//! Tests of upstreams with TLS.

use std::net::SocketAddr;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use crate::dns::plugins::tests::fake_upstream::{address, converse};
use crate::dns::plugins::tests::support::TestServer;

/// A directory with a CA, a server certificate and a client certificate.
pub(super) struct Certificates(tempfile::TempDir);

impl Certificates {
    pub(super) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let all = Self(directory);
        std::fs::write(all.path("ca.pem"), ca.pem()).unwrap();
        for end in ["server", "client"] {
            let key = KeyPair::generate().unwrap();
            let params = CertificateParams::new(vec![format!("{end}.example")]).unwrap();
            let certificate = params.signed_by(&key, &ca).unwrap();
            std::fs::write(all.path(&format!("{end}.pem")), certificate.pem()).unwrap();
            std::fs::write(all.path(&format!("{end}.key")), key.serialize_pem()).unwrap();
        }
        all
    }

    pub(super) fn path(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }

    /// Starts an upstream that requires client certificates.
    async fn upstream(&self) -> (SocketAddr, JoinSet<()>) {
        let certificate = |name| CertificateDer::from_pem_file(self.path(name)).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(certificate("ca.pem")).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier =
            WebPkiClientVerifier::builder_with_provider(roots.into(), Arc::clone(&provider)).build().unwrap();
        let key = PrivateKeyDer::from_pem_file(self.path("server.key")).unwrap();
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(verifier)
            .with_single_cert(vec![certificate("server.pem")], key)
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let acceptor = acceptor.clone();
                connections.spawn(async move {
                    if let Ok(stream) = acceptor.accept(stream).await {
                        converse(stream, Arc::new(|asked, _| Some(address(asked, 1)))).await;
                    }
                });
            }
        });
        (at, tasks)
    }
}

#[tokio::test]
async fn upstream_and_client_verify_each_others_certificate() {
    let certificates = Certificates::new();
    let (at, _tasks) = certificates.upstream().await;
    let path = |name| certificates.path(name);
    let identity = format!("tls {} {} {}", path("client.pem"), path("client.key"), path("ca.pem"));
    let without_identity = format!("tls {}", path("ca.pem"));
    let (ip, port) = (at.ip(), at.port());
    let wrong_name =
        |name: &str| format!("tls: its certificate is valid for \"server.example\", and not for {name}");
    for (to, options, error) in [
        (format!("tls://{ip}%server.example:{port}"), identity.clone(), None),
        (format!("tls://{at}"), format!("{identity}\ntls_servername server.example"), None),
        (format!("tls://{at}"), identity.clone(), Some(wrong_name("127.0.0.1"))),
        (format!("tls://{ip}%other.example:{port}"), identity.clone(), Some(wrong_name("other.example"))),
        // The alert may be lost when the upstream closes the connection.
        (format!("tls://{ip}%server.example:{port}"), without_identity, Some(String::new())),
    ] {
        let context = TestServer::block(&format!("errors\nforward . {to} {{\n{options}\n}}"));
        for name in ["a. A", "b. A"] {
            let answer = context.ask(name).await;
            assert_eq!(answer.starts_with("NOERROR"), error.is_none(), "{to} {options}: {answer}");
        }
        let lines = context.lines();
        if let Some(error) = error {
            assert!(lines.iter().all(|line| line.ends_with(&error)) && lines.len() == 2, "{lines:#?}");
        } else {
            let labels = format!("{{proto=\"tcp-tls\",proxy_name=\"forward\",to=\"{at}\"}}");
            assert!(context.metrics("hits")[0].contains(&labels));
        }
    }
}

#[test]
fn invalid_certificate_files_are_rejected() {
    let certificates = Certificates::new();
    let path = |name| certificates.path(name);
    let error = |files: &str| TestServer::error(&format!("forward . tls://192.0.2.1 {{\ntls {files}\n}}"));
    let no_ca = error(&path("client.key"));
    assert!(no_ca.starts_with(&format!(
        "Corefile:3:5: {}: it has a private key and no certificate",
        path("client.key")
    )));
    let no_key = error(&format!("{} {}", path("client.pem"), path("ca.pem")));
    assert!(no_key.contains(&format!("{}: there is no private key in PEM", path("ca.pem"))), "{no_key}");
    let not_its_key = error(&format!("{} {} {}", path("client.pem"), path("server.key"), path("ca.pem")));
    assert!(
        not_its_key.contains(&format!("{}: the key isn't that of the certificate", path("server.key"))),
        "{not_its_key}"
    );
}
