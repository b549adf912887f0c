use std::path::Path;

use hickory_proto::op::{Edns, Message, Query, ResponseCode};
use hickory_proto::rr::rdata::opt::EdnsOption;
use hickory_proto::rr::{Name, RecordType};
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, Connection, ConnectionError, ReadToEndError, VarInt};
use rcgen::{CertificateParams, KeyPair};
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use tokio::net::UdpSocket;
use tokio::task::{AbortHandle, JoinHandle, yield_now};

use super::admission::MAX_UNVALIDATED;
use super::*;
use crate::dns::plugins::setup::ServerContext;
use crate::dns::plugins::tests::support::link;
use crate::dns::server::config::first_handler;
use crate::dns::transport::client_quota::{ClientQuota, SharedGuard};
use crate::dns::transport::connections::ConnectionLimits;
use crate::dns::transport::connections::connection_limit::ConnectionLimiter;
use crate::dns::transport::tls::{ClientAuth, Pem, config, quic_acceptor};
use crate::store::{Input, OnGone, Store};

/// Longer than a busy machine needs.
const PATIENT: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_secs(1);
const WEB: &str = "web.default.lb.internal.";

/// A certificate of `dns.example` and its key, in PEM.
struct Certificate([String; 2]);

impl Certificate {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(["dns.example".to_owned()]).unwrap();
        Self([params.self_signed(&key).unwrap().pem(), key.serialize_pem()])
    }

    fn config(&self, limits: ConnectionLimits, quic_streams: u32) -> ConnectionConfig {
        let [certificate, key] =
            self.0.each_ref().map(|text| Pem { file: Path::new("file.pem"), bytes: text.as_bytes() });
        let tls = config(certificate, key, ClientAuth::None, None).unwrap();
        ConnectionConfig { tls: Some(quic_acceptor(&tls.into())), limits, quic_streams, ..Default::default() }
    }

    /// Returns the settings of a client that trusts the certificate.
    fn client(&self, alpn: &str) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.0[0].as_bytes()).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![alpn.into()];
        ClientConfig::new(Arc::new(QuicClientConfig::try_from(config).unwrap()))
    }
}

/// A server, and the endpoint of its clients.
struct Site {
    address: SocketAddr,
    certificate: Certificate,
    config: Arc<ArcSwap<ConnectionConfig>>,
    limits: Arc<QuicLimits>,
    clients: Endpoint,
    stop: CancellationToken,
    serving: JoinHandle<io::Result<()>>,
}

impl Site {
    fn start(corefile: &str, limits: ConnectionLimits) -> Self {
        Self::with(corefile, limits, 100)
    }

    fn with(corefile: &str, limits: ConnectionLimits, max_connections: usize) -> Self {
        let store = Arc::new(Store::new(OnGone::Kept));
        store.set_zones([&Name::from_ascii("lb.internal.").unwrap()]);
        store.set_known(Input::Services);
        store.apply(link("web", "192.0.2.1"));
        let context = ServerContext::silent(store).unwrap();
        let handler = first_handler(corefile, &context).unwrap();
        let of_all = Arc::new(ConnectionLimiter::new(handler.metrics.group().unwrap()));
        let quic_limits = Arc::new(QuicLimits::with(&of_all, max_connections));
        let certificate = Certificate::new();
        let config = Arc::new(ArcSwap::from_pointee(certificate.config(limits, DEFAULT_STREAMS)));
        let socket = bind((Ipv4Addr::LOCALHOST, 0).into(), false).unwrap();
        let address = socket.local_addr().unwrap();
        let stop = CancellationToken::new();
        let (given, of_all) = (Arc::clone(&config), Arc::clone(&quic_limits));
        let serving = tokio::spawn(serve(socket, given, of_all, handler, stop.clone()));
        let clients = Endpoint::client((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        Self { address, certificate, config, limits: quic_limits, clients, stop, serving }
    }

    async fn try_connect(&self, config: ClientConfig) -> Result<Connection, ConnectionError> {
        let connecting = self.clients.connect_with(config, self.address, "dns.example").unwrap();
        timeout(PATIENT, connecting).await.expect("the end of the handshake")
    }

    async fn connect(&self) -> Connection {
        self.try_connect(self.certificate.client("doq")).await.unwrap()
    }

    /// Returns the first packet of a client, to be sent from another address.
    async fn first_packet(&self) -> Vec<u8> {
        let sink = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let (config, address) = (self.certificate.client("doq"), sink.local_addr().unwrap());
        let _connecting = self.clients.connect_with(config, address, "dns.example").unwrap();
        let mut first = vec![0; 1500];
        let length = sink.recv(&mut first).await.unwrap();
        first.truncate(length);
        first
    }

    /// Returns whether this number of connections is closed, and quinn has freed all of them.
    fn has_freed(&self, number: usize) -> bool {
        let closed = self.limits.closed.lock();
        closed.len() == number && closed.iter().all(AbortHandle::is_finished)
    }

    async fn freed(&self, number: usize) {
        while !self.has_freed(number) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn end(self) {
        self.stop.cancel();
        timeout(PATIENT, self.serving).await.expect("the end").unwrap().unwrap();
    }
}

const LINKS: &str = "lb.internal {\nlb_linker\n}\n";

fn patient() -> ConnectionLimits {
    ConnectionLimits { read: PATIENT, write: PATIENT, idle: PATIENT, ..Default::default() }
}

fn message(name: &str, qtype: RecordType) -> Message {
    let mut message = Message::query();
    message.metadata.id = 0;
    message.add_query(Query::query(Name::from_ascii(name).unwrap(), qtype));
    message
}

fn framed(message: &[u8]) -> Vec<u8> {
    [&u16::try_from(message.len()).unwrap().to_be_bytes(), message].concat()
}

fn query(name: &str) -> Vec<u8> {
    framed(&message(name, RecordType::A).to_vec().unwrap())
}

/// Sends bytes on a stream, and returns all that the server sends there.
async fn exchange(connection: &Connection, bytes: &[u8]) -> Result<Vec<u8>, ReadToEndError> {
    let (mut sending, mut receiving) = connection.open_bi().await.unwrap();
    // The server may have closed the stream.
    let _ = sending.write_all(bytes).await;
    let _ = sending.finish();
    timeout(PATIENT, receiving.read_to_end(usize::MAX)).await.expect("the end of the stream")
}

async fn ask(connection: &Connection, name: &str) -> Message {
    let bytes = exchange(connection, &query(name)).await.unwrap();
    let (length, answer) = bytes.split_first_chunk().unwrap();
    assert_eq!(usize::from(u16::from_be_bytes(*length)), answer.len());
    Message::from_vec(answer).unwrap()
}

/// Waits for the end of a connection, and returns the error code of the server.
async fn error_code(connection: &Connection) -> u64 {
    match timeout(PATIENT, connection.closed()).await.expect("the end of the connection") {
        ConnectionError::ApplicationClosed(close) => close.error_code.into_inner(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn queries_are_answered_on_streams_of_their_own() {
    let site = Site::start(LINKS, patient());
    let connection = site.connect().await;
    let (mut slow, mut receiving) = connection.open_bi().await.unwrap();
    let bytes = query(WEB);
    slow.write_all(&bytes[..5]).await.unwrap();
    for (name, rcode, answers) in [
        (WEB, ResponseCode::NoError, 1),
        ("none.default.lb.internal.", ResponseCode::NXDomain, 0),
        ("a.example.", ResponseCode::Refused, 0),
        // Further answers may come from the response cache.
        (WEB, ResponseCode::NoError, 1),
        (WEB, ResponseCode::NoError, 1),
    ] {
        let answer = ask(&connection, name).await;
        assert_eq!(
            (answer.metadata.id, answer.metadata.response_code, answer.answers.len()),
            (0, rcode, answers),
            "{name}"
        );
    }
    slow.write_all(&bytes[5..]).await.unwrap();
    slow.finish().unwrap();
    assert!(receiving.read_to_end(usize::MAX).await.unwrap().len() > bytes.len());
    let asked = (0..300).map(|_| ask(&connection, WEB));
    assert_eq!(futures::future::join_all(asked).await.len(), 300);
    site.end().await;
    assert_eq!(error_code(&connection).await, 0);
}

#[tokio::test]
async fn violations_of_the_protocol_end_the_connection() {
    let site = Site::start(LINKS, patient());
    let plain = message(WEB, RecordType::A);
    let with = |change: fn(&mut Message)| {
        let mut message = plain.clone();
        change(&mut message);
        framed(&message.to_vec().unwrap())
    };
    let good = query(WEB);
    let keepalive = with(|message| {
        let mut edns = Edns::new();
        edns.options_mut().insert(EdnsOption::Unknown(10, vec![1; 8]));
        edns.options_mut().insert(EdnsOption::Unknown(11, vec![0, 100]));
        message.set_edns(edns);
    });
    for bytes in [
        Vec::new(),
        vec![0],
        vec![0, 0],
        good[..good.len() - 1].to_vec(),
        [&good[..], &[0]].concat(),
        [&good[..], &good].concat(),
        framed(&[0; 11]),
        framed(&[0; 12]),
        with(|message| message.metadata.id = 1),
        with(|message| message.metadata.message_type = hickory_proto::op::MessageType::Response),
        keepalive,
    ] {
        let connection = site.connect().await;
        assert!(exchange(&connection, &bytes).await.is_err(), "{bytes:02x?}");
        assert_eq!(error_code(&connection).await, 2, "{bytes:02x?}");
        assert_eq!(query_of(bytes), None);
    }
    assert_eq!(query_of(good.clone()).unwrap(), good[2..]);
    // Clients have no streams in one direction.
    let connection = site.connect().await;
    assert!(timeout(Duration::from_millis(10), connection.open_uni()).await.is_err());
    site.end().await;
}

#[tokio::test]
async fn idle_and_unfinished_connections_end_in_time() {
    let site = Site::start(LINKS, ConnectionLimits { read: SHORT, idle: SHORT, ..patient() });
    let (idle, unfinished) = (site.connect().await, site.connect().await);
    ask(&idle, WEB).await;
    let (mut sending, _receiving) = unfinished.open_bi().await.unwrap();
    sending.write_all(&query(WEB)).await.unwrap();
    assert_eq!((error_code(&idle).await, error_code(&unfinished).await), (0, 2));
    site.end().await;
}

#[tokio::test]
async fn last_allowed_query_ends_the_connection() {
    let site = Site::start(LINKS, ConnectionLimits { queries: 2, ..patient() });
    let connection = site.connect().await;
    for _ in 0..2 {
        assert_eq!(ask(&connection, WEB).await.answers.len(), 1);
    }
    assert_eq!(error_code(&connection).await, 0);
    site.end().await;
}

#[tokio::test]
async fn too_large_query_gets_an_error_and_the_connection_goes_on() {
    let site = Site::start(LINKS, patient());
    let connection = site.connect().await;
    let error = exchange(&connection, &framed(&[0; 5000])).await.unwrap_err();
    let reset = ReadToEndError::Read(quinn::ReadError::Reset(VarInt::from_u32(4)));
    assert_eq!(error, reset);
    assert_eq!(ask(&connection, WEB).await.answers.len(), 1);
    site.end().await;
}

#[tokio::test]
async fn many_aborted_streams_end_the_connection() {
    let site = Site::start(LINKS, patient());
    let connection = site.connect().await;
    let aborted = async |number: usize| {
        for _ in 0..number {
            let Ok((mut sending, mut receiving)) = connection.open_bi().await else { return };
            if sending.write_all(&query(WEB)[..9]).await.is_err() {
                return;
            }
            // The server has the stream before it ends.
            yield_now().await;
            let _ = sending.reset(VarInt::from_u32(3));
            let _ = receiving.read_to_end(usize::MAX).await;
        }
    };
    for _ in 0..5 {
        aborted(10).await;
        for _ in 0..20 {
            assert_eq!(ask(&connection, WEB).await.answers.len(), 1);
        }
    }
    aborted(100).await;
    assert_eq!(error_code(&connection).await, 4);
    site.end().await;
}

#[tokio::test]
async fn client_that_does_not_read_is_disconnected() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("db");
    let text: String = (0..200).map(|n| format!("big TXT {n}{}\n", "x".repeat(220))).collect();
    std::fs::write(&file, format!("$TTL 60\n@ SOA ns host 7 1 2 3 4\n{text}")).unwrap();
    let corefile = format!("example.org {{\nfile {}\n}}\n", file.display());
    let site = Site::start(&corefile, ConnectionLimits { write: SHORT, ..patient() });
    let mut transport = TransportConfig::default();
    transport.stream_receive_window(VarInt::from_u32(1000));
    let mut config = site.certificate.client("doq");
    config.transport_config(Arc::new(transport));
    let connection = site.try_connect(config).await.unwrap();
    let big = framed(&message("big.example.org.", RecordType::TXT).to_vec().unwrap());
    // A client that reads steadily gets all.
    assert!(exchange(&connection, &big).await.unwrap().len() > 40_000);
    let (mut sending, _receiving) = connection.open_bi().await.unwrap();
    sending.write_all(&big).await.unwrap();
    sending.finish().unwrap();
    assert_eq!(error_code(&connection).await, 4);
    site.end().await;
}

#[tokio::test]
async fn client_without_the_protocol_is_rejected() {
    let site = Site::start(LINKS, patient());
    for alpn in ["dot", "h3", "doq-i02"] {
        let error = site.try_connect(site.certificate.client(alpn)).await.unwrap_err();
        assert!(matches!(error, ConnectionError::ConnectionClosed(_)), "{error:?}");
    }
    site.connect().await;
    site.end().await;
}

#[tokio::test]
async fn longest_idle_connection_makes_room_for_a_new_one() {
    let site = Site::with(LINKS, patient(), 4);
    let mut connections = Vec::new();
    for number in 0..2 {
        connections.push(site.connect().await);
        ask(&connections[number], WEB).await;
    }
    // The address has half of the places.
    let error = site.try_connect(site.certificate.client("doq")).await.unwrap_err();
    assert!(matches!(error, ConnectionError::ConnectionClosed(_)), "{error:?}");
    for last in 2..6 {
        let address = SocketAddr::from(([127, 0, 0, last], 0));
        let client = Endpoint::client(address).unwrap();
        let connecting = client.connect_with(site.certificate.client("doq"), site.address, "dns.example");
        let connection = timeout(PATIENT, connecting.unwrap()).await.unwrap().unwrap();
        assert_eq!(ask(&connection, WEB).await.answers.len(), 1);
        connections.push(connection);
    }
    assert_eq!((error_code(&connections[0]).await, error_code(&connections[1]).await), (0, 0));
    assert!(connections[2..].iter().all(|connection| connection.close_reason().is_none()));
    site.end().await;
}

#[tokio::test]
async fn forged_addresses_keep_no_client_out() {
    let site = Site::start(LINKS, patient());
    for number in 0..200_u8 {
        let source = UdpSocket::bind((Ipv4Addr::new(127, 0, 1, number), 0)).await.unwrap();
        source.send_to(&site.first_packet().await, site.address).await.unwrap();
    }
    let connection = site.connect().await;
    assert_eq!(ask(&connection, WEB).await.answers.len(), 1);
    assert!(site.limits.unvalidated.available_permits() < MAX_UNVALIDATED);
    site.stop.cancel();
    assert_eq!(error_code(&connection).await, 0);
    site.end().await;
}

#[tokio::test]
async fn closed_connections_take_no_place() {
    let site = Site::with(LINKS, patient(), 4);
    for last in 1..=30 {
        let client = Endpoint::client((Ipv4Addr::new(127, 0, 1, last), 0).into()).unwrap();
        let connecting = client.connect_with(site.certificate.client("doq"), site.address, "dns.example");
        let connection = timeout(PATIENT, connecting.unwrap()).await.unwrap().unwrap();
        assert_eq!(ask(&connection, WEB).await.answers.len(), 1);
        connection.close(VarInt::from_u32(0), &[]);
        assert!(site.limits.closed.lock().len() <= 4);
    }
    timeout(PATIENT, site.freed(4)).await.expect("the connections are freed");
    site.end().await;
}

#[tokio::test]
async fn aborted_task_of_quinn_frees_its_connection() {
    let certificate = Certificate::new();
    let config = certificate.config(patient(), DEFAULT_STREAMS);
    let server = Settings::new(Arc::new(ArcSwap::from_pointee(config))).unwrap().server;
    let (tasks, socket) = (Arc::new(Tasks::default()), bind((Ipv4Addr::LOCALHOST, 0).into(), false).unwrap());
    let runtime = Arc::clone(&tasks);
    let endpoint = Endpoint::new(EndpointConfig::default(), Some(server.clone()), socket, runtime).unwrap();
    let client = Endpoint::client((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let address = endpoint.local_addr().unwrap();
    let connecting = client.connect_with(certificate.client("doq"), address, "dns.example").unwrap();
    let incoming = endpoint.accept().await.unwrap();
    let quota = ClientQuota::new(2);
    let kept = SharedGuard::new(quota.acquire(address.ip(), 1).unwrap());
    let (accepted, task) = tasks.accept(incoming, Arc::new(server), kept).unwrap();
    let (accepted, connected) = tokio::join!(accepted, connecting);
    let _connected = connected.unwrap();
    drop(accepted.unwrap());
    assert_eq!((endpoint.open_connections(), quota.held_by(address.ip())), (1, 1));
    task.abort();
    // quinn would keep it for longer.
    for _ in 0..10 {
        yield_now().await;
    }
    assert_eq!((endpoint.open_connections(), quota.held_by(address.ip())), (0, 0));
}

#[tokio::test]
async fn closed_connection_keeps_the_share_of_its_streams() {
    let site = Site::start(LINKS, patient());
    let connection = site.connect().await;
    let mut streams = Vec::new();
    for _ in 0..100 {
        let (mut sending, receiving) = connection.open_bi().await.unwrap();
        sending.write_all(&query(WEB)[..5]).await.unwrap();
        streams.push((sending, receiving));
    }
    let client = Ipv4Addr::LOCALHOST.into();
    let bytes = || site.limits.limiter.frames.held_by(client);
    let taken = async {
        while bytes() < 256 << 10 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENT, taken).await.expect("the share of the streams");
    connection.close(VarInt::from_u32(0), &[]);
    let freed = async {
        loop {
            let bytes = bytes();
            if site.has_freed(1) {
                break;
            }
            assert!(bytes >= 256 << 10, "{bytes} bytes while the connection isn't freed");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        while bytes() > 0 {
            yield_now().await;
        }
    };
    timeout(PATIENT, freed).await.expect("the share is released");
    site.end().await;
}

#[tokio::test]
async fn finished_streams_release_their_share() {
    let site = Site::start(LINKS, patient());
    let connection = site.connect().await;
    let mut streams = Vec::new();
    for _ in 0..100 {
        let (mut sending, receiving) = connection.open_bi().await.unwrap();
        sending.write_all(&query(WEB)[..5]).await.unwrap();
        streams.push((sending, receiving));
    }
    for (mut sending, mut receiving) in streams {
        sending.write_all(&query(WEB)[5..]).await.unwrap();
        sending.finish().unwrap();
        assert!(!receiving.read_to_end(usize::MAX).await.unwrap().is_empty());
    }
    assert_eq!(site.limits.limiter.frames.held_by(Ipv4Addr::LOCALHOST.into()), 0);
    site.end().await;
}

#[tokio::test]
async fn stopped_listener_leaves_its_port_at_once() {
    let site = Site::start(LINKS, patient());
    let address = Ipv4Addr::new(127, 0, 1, 1);
    let source = UdpSocket::bind((address, 0)).await.unwrap();
    source.send_to(&site.first_packet().await, site.address).await.unwrap();
    // The answer to the first packet: the handshake never ends.
    source.recv(&mut [0; 1500]).await.unwrap();
    let (limits, port) = (Arc::clone(&site.limits), site.address);
    site.end().await;
    let bound = async {
        while bind(port, false).is_err() {
            yield_now().await;
        }
    };
    timeout(PATIENT, bound).await.expect("the port is free");
    assert!(!limits.closed.lock()[0].is_finished(), "the connection isn't freed yet");
}

#[tokio::test]
async fn packets_with_a_forged_address_do_not_lock_it_out() {
    let site = Site::with(LINKS, patient(), 8);
    let address = Ipv4Addr::new(127, 0, 1, 1);
    // As many as an address may have connections.
    for _ in 0..4 {
        let source = UdpSocket::bind((address, 0)).await.unwrap();
        source.send_to(&site.first_packet().await, site.address).await.unwrap();
        source.recv(&mut [0; 1500]).await.unwrap();
    }
    assert_eq!(site.limits.unvalidated.available_permits(), MAX_UNVALIDATED - 1);
    let client = Endpoint::client((address, 0).into()).unwrap();
    let connecting = client.connect_with(site.certificate.client("doq"), site.address, "dns.example");
    let connection = timeout(PATIENT, connecting.unwrap()).await.unwrap().unwrap();
    assert_eq!(ask(&connection, WEB).await.answers.len(), 1);
    site.end().await;
}

#[tokio::test]
async fn stop_waits_for_pending_answers() {
    let upstream = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let forward = format!(". {{\nforward . {} {{\nprefer_udp\n}}\n}}\n", upstream.local_addr().unwrap());
    let site = Site::start(&forward, patient());
    let connection = site.connect().await;
    let asking = tokio::spawn({
        let connection = connection.clone();
        async move { ask(&connection, "a.example.").await }
    });
    let mut query = [0; 512];
    let (length, from) = upstream.recv_from(&mut query).await.unwrap();
    site.stop.cancel();
    yield_now().await;
    query[2] |= 0x80;
    upstream.send_to(&query[..length], from).await.unwrap();
    assert_eq!(asking.await.unwrap().metadata.response_code, ResponseCode::NoError);
    assert_eq!(error_code(&connection).await, 0);
    site.end().await;
}

#[tokio::test]
async fn new_connections_get_the_renewed_certificate() {
    let mut site = Site::start(LINKS, patient());
    let before = site.connect().await;
    let renewed = Certificate::new();
    site.config.store(Arc::new(renewed.config(patient(), 7)));
    assert!(site.try_connect(site.certificate.client("doq")).await.is_err());
    site.certificate = renewed;
    let after = site.connect().await;
    for connection in [&before, &after] {
        assert_eq!(ask(connection, WEB).await.answers.len(), 1);
    }
    let streams = async |number: usize| {
        let mut all = Vec::new();
        for _ in 0..number {
            all.push(after.open_bi().await.unwrap());
        }
        all
    };
    let seven = streams(7).await;
    assert!(timeout(Duration::from_millis(10), streams(1)).await.is_err());
    drop(seven);
    site.end().await;
}

#[tokio::test]
async fn zone_is_transferred_on_one_stream() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("db");
    let text: String = (0..2000).map(|n| format!("n{n} TXT {}\n", "x".repeat(220))).collect();
    std::fs::write(&file, format!("$TTL 60\n@ SOA ns host 7 1 2 3 4\n{text}")).unwrap();
    let corefile = format!("example.org {{\nfile {}\ntransfer {{\nto *\n}}\n}}\n", file.display());
    let site = Site::start(&corefile, patient());
    let connection = site.connect().await;
    let axfr = framed(&message("example.org.", RecordType::AXFR).to_vec().unwrap());
    let bytes = exchange(&connection, &axfr).await.unwrap();
    let (mut rest, mut records, mut messages) = (&bytes[..], 0, 0);
    while let Some((length, after)) = rest.split_first_chunk() {
        let (message, after) = after.split_at(u16::from_be_bytes(*length).into());
        let message = Message::from_vec(message).unwrap();
        assert_eq!((message.metadata.id, message.metadata.response_code), (0, ResponseCode::NoError));
        (records, messages, rest) = (records + message.answers.len(), messages + 1, after);
    }
    assert!(messages > 5 && records == 2002, "{records} in {messages} messages");
    site.end().await;
}
