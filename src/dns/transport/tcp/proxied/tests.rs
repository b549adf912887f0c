use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use hickory_proto::op::{Message, Query};
use hickory_proto::rr::{Name, RData, RecordType};
use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsConnector;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::*;
use crate::dns::chain::handler::Handler;
use crate::dns::plugins::setup::ServerContext;
use crate::dns::server::config::first_handler;
use crate::dns::transport::connections::ConnectionConfig;
use crate::dns::transport::connections::connection_limit::ConnectionLimiter;
use crate::dns::transport::metrics::TransportMetrics;
use crate::dns::transport::tcp::{bind, serve};
use crate::dns::transport::tls::{ClientAuth, Pem, config};
use crate::store::{OnGone, Store};

struct Served {
    address: SocketAddr,
    handler: Arc<Handler>,
    _serving: AbortOnDropHandle<io::Result<()>>,
}

/// Serves *whoami* behind a proxy at 127.0.0.1, with this maximum of connections.
fn served(max_connections: usize, limits: ConnectionLimits) -> Served {
    served_with(max_connections, ConnectionConfig { limits, ..ConnectionConfig::default() })
}

fn served_with(max_connections: usize, config: ConnectionConfig) -> Served {
    let context = ServerContext::silent(Arc::new(Store::new(OnGone::Kept))).unwrap();
    let lines = ". {\nproxyproto {\nallow 127.0.0.1\ndefault reject\n}\nwhoami\n}\n";
    let handler = first_handler(lines, &context).unwrap();
    let metrics: Arc<TransportMetrics> = handler.metrics.group().unwrap();
    let listener: TcpListener = bind((Ipv4Addr::LOCALHOST, 0).into(), false).unwrap();
    let address = listener.local_addr().unwrap();
    let serving = serve(
        listener,
        Arc::new(ArcSwap::from_pointee(config)),
        Arc::new(ConnectionLimiter::with(metrics, max_connections)),
        Arc::clone(&handler),
        CancellationToken::new(),
    );
    Served { address, handler, _serving: AbortOnDropHandle::new(tokio::spawn(serving)) }
}

impl Served {
    /// Sends bytes in these parts.
    async fn send(&self, parts: &[&[u8]]) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        for part in parts {
            // The server may have closed the connection.
            let _ = stream.write_all(part).await;
            tokio::task::yield_now().await;
        }
        stream
    }

    fn refused(&self) -> f64 {
        let page = self.handler.metrics.render().unwrap();
        let metric = "lb_linker_dns_proxy_headers_refused_total ";
        page.lines().find_map(|line| line.strip_prefix(metric)?.parse().ok()).unwrap()
    }
}

fn framed_query() -> Vec<u8> {
    let mut message = Message::query();
    message.add_query(Query::query(Name::from_ascii("a.example.").unwrap(), RecordType::A));
    let message = message.to_vec().unwrap();
    [&u16::try_from(message.len()).unwrap().to_be_bytes(), &*message].concat()
}

/// Returns the client's address and port as the server sees them; `None` if the connection ends without an answer.
async fn seen(stream: &mut (impl AsyncRead + Unpin)) -> Option<String> {
    let mut answer = vec![0; stream.read_u16().await.ok()?.into()];
    stream.read_exact(&mut answer).await.unwrap();
    let additionals = Message::from_vec(&answer).unwrap().additionals;
    let text = additionals.iter().map(|record| match &record.data {
        RData::SRV(srv) => srv.port.to_string(),
        data => data.to_string(),
    });
    Some(text.collect::<Vec<_>>().join(" "))
}

#[tokio::test]
async fn header_names_the_client_however_it_arrives() {
    let served = served(100, ConnectionLimits::default());
    let text = b"PROXY TCP4 192.0.2.1 192.0.2.53 4711 53\r\n";
    let binary = [
        b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x10",
        &[192, 0, 2, 2, 0, 0, 0, 0, 0x12, 0x67, 0, 53][..],
        &[4, 0, 1, 0],
    ]
    .concat();
    let query = framed_query();
    for (header, expected) in [(&text[..], "192.0.2.1 4711"), (&binary, "192.0.2.2 4711")] {
        let all = [header, &query].concat();
        let bytes: Vec<&[u8]> = all.chunks(1).collect();
        for parts in [&[&*all][..], &[header, &query], &bytes] {
            let mut stream = served.send(parts).await;
            assert_eq!(seen(&mut stream).await.unwrap(), expected);
            stream.write_all(&query).await.unwrap();
            assert_eq!(seen(&mut stream).await.unwrap(), expected, "the next query");
        }
    }
    for header in [&b""[..], b"PROXY UNKNOWN\r\n", b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0"] {
        let mut stream = served.send(&[header, &query]).await;
        let sender = stream.local_addr().unwrap();
        assert_eq!(seen(&mut stream).await.unwrap(), format!("127.0.0.1 {}", sender.port()));
    }
    assert_eq!(served.refused(), 0.0);
}

#[tokio::test]
async fn header_precedes_the_tls_handshake() {
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["dns.example".to_owned()]).unwrap();
    let certificate = params.self_signed(&key).unwrap();
    let [of_server, key] = [certificate.pem(), key.serialize_pem()];
    let [certificate, key] =
        [&of_server, &key].map(|text| Pem { file: Path::new("pem"), bytes: text.as_bytes() });
    let tls = config(certificate, key, ClientAuth::None, None).unwrap();
    let served = served_with(100, ConnectionConfig { tls: Some(tls.into()), ..ConnectionConfig::default() });
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(of_server.as_bytes()).unwrap()).unwrap();
    let client = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = served.send(&[b"PROXY TCP4 192.0.2.1 192.0.2.53 4711 53\r\n"]).await;
    let name = ServerName::try_from("dns.example").unwrap();
    let mut stream = TlsConnector::from(Arc::new(client)).connect(name, stream).await.unwrap();
    stream.write_all(&framed_query()).await.unwrap();
    assert_eq!(seen(&mut stream).await.unwrap(), "192.0.2.1 4711");
}

#[tokio::test]
async fn connections_count_for_the_client_in_the_header() {
    let served = served(8, ConnectionLimits::default());
    let query = framed_query();
    let connect = async |client: u8| {
        let header = format!("PROXY TCP4 192.0.2.{client} 192.0.2.53 4711 53\r\n");
        let mut stream = served.send(&[header.as_bytes(), &query]).await;
        (seen(&mut stream).await.is_some(), stream)
    };
    let mut open = Vec::new();
    for (client, is_answered) in [(1, true), (1, true), (1, false), (2, true), (2, true), (3, true)] {
        let (has_answer, stream) = connect(client).await;
        assert_eq!(has_answer, is_answered, "connection {} of 192.0.2.{client}", open.len());
        open.push(stream);
    }
}

#[tokio::test]
async fn hostile_headers_end_only_their_own_connection() {
    let soon = Duration::from_millis(20);
    let served = served(100, ConnectionLimits::default());
    let impatient =
        self::served(100, ConnectionLimits { read: soon, idle: soon, ..ConnectionLimits::default() });
    let long = [b"PROXY TCP4 ", &[b'1'; 200][..]].concat();
    let mut refused = 0.0;
    for (parts, is_refused) in [
        (&[&b"PROXY TCP4 192.0.2.1 192.0.2.53 4711\r\n"[..]][..], true),
        (&[&long], true),
        (&[b"\r\n\r\n\0\r\nQUIT\n\x21\x11\xff\xff"], true),
        (&[b"\r\n\r\n\0\r\nQUIT\n\x31\x11\0\x0c"], true),
        // Never whole.
        (&[b"PROXY TCP4 192.0.2.1"], false),
        (&[b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x08\0", &[0; 2000]], false),
        (&[b"\r"], false),
        (&[], false),
    ] {
        let server = if is_refused { &served } else { &impatient };
        let mut stream = server.send(parts).await;
        assert_eq!(seen(&mut stream).await, None, "{parts:?}");
        refused += f64::from(u8::from(is_refused));
        assert_eq!((served.refused(), impatient.refused()), (refused, 0.0), "{parts:?}");
    }
    let mut stream = served.send(&[b"PROXY TCP4 192.0.2.1 192.0.2.53 4711 53\r\n", &framed_query()]).await;
    assert_eq!(seen(&mut stream).await.unwrap(), "192.0.2.1 4711");
}
