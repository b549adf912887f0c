//! DNS over TLS with a real client. The server runs in the test process.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use arc_swap::ArcSwap;
use hickory_proto::op::Message;
use lb_linker::dns::plugins::setup::ServerContext;
use lb_linker::dns::server::config::first_handler;
use lb_linker::dns::transport::connections::connection_limit::ConnectionLimiter;
use lb_linker::dns::transport::connections::{ConnectionConfig, ConnectionLimits};
use lb_linker::dns::transport::tcp;
use lb_linker::dns::transport::tls::{ClientAuth, Pem, config};
use lb_linker::metrics::Metrics;
use lb_linker::store::{OnGone, Store};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ProtocolVersion, RootCertStore, SupportedProtocolVersion};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::sync::CancellationToken;

use crate::harness::EVENT_TIMEOUT;
use crate::harness::dns::{FaultyUpstream, query, show};

/// A query that is answered with SERVFAIL, because the store isn't filled.
const UNREADY_LINK: &str = "web.default.lb.internal. A";

/// A CA, and a certificate and key of `dns.example` and 127.0.0.1 from it, in files.
pub(crate) struct Certificates {
    directory: TempDir,
}

impl Certificates {
    pub(crate) fn make() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let write = |file: &str, text: String| std::fs::write(directory.path().join(file), text).unwrap();
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new([]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        write("ca.crt", params.self_signed(&key).unwrap().pem());
        let ca = Issuer::new(params, key);
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(["dns.example".to_owned(), "127.0.0.1".to_owned()]).unwrap();
        write("tls.crt", params.signed_by(&key, &ca).unwrap().pem());
        write("tls.key", key.serialize_pem());
        Self { directory }
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }
}

/// Returns limits that a pause of the test doesn't reach.
fn patient() -> ConnectionLimits {
    ConnectionLimits { read: EVENT_TIMEOUT, write: EVENT_TIMEOUT, idle: EVENT_TIMEOUT, ..Default::default() }
}

/// A DNS-over-TLS server in the test process.
struct Server {
    address: SocketAddr,
    stop: CancellationToken,
    serving: JoinSet<std::io::Result<()>>,
    metrics: Arc<Metrics>,
}

impl Server {
    fn start(certificates: &Certificates, client_ca: bool, upstream: Option<SocketAddr>) -> Self {
        let files = ["tls.crt", "tls.key", "ca.crt"].map(|name| certificates.file(name));
        let read = files.each_ref().map(|file| std::fs::read(file).unwrap());
        let [certificate, key, ca] = [0, 1, 2].map(|at| Pem { file: &files[at], bytes: &read[at] });
        let clients = if client_ca { ClientAuth::RequireAndVerify } else { ClientAuth::None };
        let config = config(certificate, key, clients, Some(ca)).unwrap();
        let store = Arc::new(Store::new(OnGone::Kept));
        let site = ServerContext::silent(Arc::clone(&store)).unwrap();
        let metrics = Arc::clone(&site.metrics);
        let forward = upstream.map(|address| format!(". {{\nforward . {address}\n}}\n")).unwrap_or_default();
        let handler =
            first_handler(&format!("lb.internal {{\nprometheus\nlb_linker\n}}\n{forward}"), &site).unwrap();
        let places = Arc::new(ConnectionLimiter::new(metrics.group().unwrap()));
        let listener = tcp::bind((Ipv4Addr::LOCALHOST, 0).into(), false).unwrap();
        let address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        let mut serving = JoinSet::new();
        let terms = ConnectionConfig { tls: Some(config.into()), limits: patient(), ..Default::default() };
        let terms = Arc::new(ArcSwap::from_pointee(terms));
        serving.spawn(tcp::serve(listener, terms, places, handler, stop.clone()));
        Self { address, stop, serving, metrics }
    }

    async fn stop(mut self) {
        self.stop.cancel();
        timeout(EVENT_TIMEOUT, self.serving.join_next())
            .await
            .expect("a shutdown")
            .unwrap()
            .unwrap()
            .unwrap();
    }
}

/// Returns a TLS client for DNS with [`client_config`], and with a certificate if `with_certificate` is set.
fn connector(
    certificates: &Certificates,
    version: &'static SupportedProtocolVersion,
    with_certificate: bool,
) -> TlsConnector {
    let mut config = client_config(certificates, version, with_certificate.then_some(certificates));
    config.alpn_protocols = vec![b"dot".to_vec()];
    Arc::new(config).into()
}

/// Returns the configuration of a TLS client that trusts the CA, uses this TLS version, and presents the certificate of
/// `own`, if given.
pub(crate) fn client_config(
    certificates: &Certificates,
    version: &'static SupportedProtocolVersion,
    own: Option<&Certificates>,
) -> ClientConfig {
    let chain = |name: PathBuf| CertificateDer::from_pem_file(name).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(chain(certificates.file("ca.crt"))).unwrap();
    let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_protocol_versions(&[version])
        .unwrap()
        .with_root_certificates(roots);
    match own {
        Some(own) => {
            let key = PrivateKeyDer::from_pem_file(own.file("tls.key")).unwrap();
            builder.with_client_auth_cert(vec![chain(own.file("tls.crt"))], key).unwrap()
        }
        None => builder.with_no_client_auth(),
    }
}

async fn connect(connector: &TlsConnector, to: SocketAddr) -> TlsStream<TcpStream> {
    let name = ServerName::try_from("dns.example").unwrap();
    let stream = TcpStream::connect(to).await.unwrap();
    timeout(EVENT_TIMEOUT, connector.connect(name, stream)).await.expect("a handshake").unwrap()
}

fn framed(message: &Message) -> Vec<u8> {
    crate::harness::dns::framed(&message.to_vec().unwrap())
}

async fn read(stream: &mut TlsStream<TcpStream>) -> Option<Message> {
    let reading = async {
        let mut answer = vec![0; stream.read_u16().await.ok()?.into()];
        stream.read_exact(&mut answer).await.ok()?;
        Some(Message::from_vec(&answer).unwrap())
    };
    timeout(EVENT_TIMEOUT, reading).await.expect("an answer or the end")
}

#[tokio::test]
async fn queries_over_tls_1_2_and_1_3_are_answered_and_counted() {
    let certificates = Certificates::make();
    let server = Server::start(&certificates, false, None);
    for (version, expected) in [
        (&rustls::version::TLS12, ProtocolVersion::TLSv1_2),
        (&rustls::version::TLS13, ProtocolVersion::TLSv1_3),
    ] {
        let mut stream = connect(&connector(&certificates, version, false), server.address).await;
        assert_eq!(stream.get_ref().1.protocol_version(), Some(expected));
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"dot"[..]));
        for _ in 0..2 {
            let asked = query(UNREADY_LINK);
            stream.write_all(&framed(&asked)).await.unwrap();
            let answer = read(&mut stream).await.unwrap();
            assert_eq!(answer.metadata.id, asked.metadata.id);
            assert!(show(&answer).starts_with("Server Failure"), "{}", show(&answer));
        }
    }
    let page = server.metrics.render().unwrap();
    let mut counted = page.lines().filter(|line| line.starts_with("coredns_dns_responses_total"));
    assert!(counted.next().is_some_and(|line| line.contains("server=\"dns://:53\"") && line.ends_with(" 4")));
    server.stop().await;
}

#[tokio::test]
async fn slow_answer_delays_no_other_answer_and_is_sent_at_shutdown() {
    let certificates = Certificates::make();
    let upstream = FaultyUpstream::start(|_, _| vec![]).await;
    let server = Server::start(&certificates, false, Some(upstream.address));
    let mut stream = connect(&connector(&certificates, &rustls::version::TLS13, false), server.address).await;
    let (slow, quick) = (query("slow.example. A"), query(UNREADY_LINK));
    stream.write_all(&[framed(&slow), framed(&quick)].concat()).await.unwrap();
    assert_eq!(read(&mut stream).await.unwrap().metadata.id, quick.metadata.id);
    let stopping = server.stop();
    let (late, ()) = tokio::join!(read(&mut stream), stopping);
    assert_eq!(late.unwrap().metadata.id, slow.metadata.id);
    // The server sends close_notify, so that the client can detect a truncated stream (RFC 8446 section 6.1).
    assert_eq!(stream.read(&mut [0]).await.unwrap(), 0);
}

#[tokio::test]
async fn connection_without_tls_is_closed() {
    let certificates = Certificates::make();
    let server = Server::start(&certificates, false, None);
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    stream.write_all(&framed(&query(UNREADY_LINK))).await.unwrap();
    let mut rest = Vec::new();
    // The server sends at most a TLS alert, and no answer.
    let _ = timeout(EVENT_TIMEOUT, stream.read_to_end(&mut rest)).await.expect("an end");
    assert!(rest.len() < 12, "{rest:02x?}");
    server.stop().await;
}

#[tokio::test]
async fn listener_with_client_ca_requires_a_client_certificate() {
    let certificates = Certificates::make();
    let server = Server::start(&certificates, true, None);
    let version = &rustls::version::TLS13;
    let mut stream = connect(&connector(&certificates, version, true), server.address).await;
    stream.write_all(&framed(&query(UNREADY_LINK))).await.unwrap();
    assert!(read(&mut stream).await.is_some());
    // With TLS 1.3 the server rejects a missing certificate after the client's handshake has finished.
    let mut stream = connect(&connector(&certificates, version, false), server.address).await;
    let _ = stream.write_all(&framed(&query(UNREADY_LINK))).await;
    assert_eq!(read(&mut stream).await, None);
    server.stop().await;
}
