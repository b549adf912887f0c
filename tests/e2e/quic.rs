//! DNS over QUIC with a client of quinn: reloads, and hostile clients. Other clients aren't affected, and memory stays
//! within the limit of `deploy/`.
//!
//! Memory and times are printed (`-- --nocapture quic::`).

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hickory_proto::op::Message;
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, Connection, ConnectionError, Endpoint, ReadToEndError, TransportConfig, VarInt};
use rustls::version::TLS13;
use tempfile::TempDir;
use tokio::net::UdpSocket;
use tokio::time::timeout;

use crate::harness::dns::{ask_udp, framed, query, show};
use crate::harness::linker::Linker;
use crate::harness::{EVENT_TIMEOUT, eventually, replace_file};
use crate::tls::{Certificates, client_config};

/// The memory limit of `deploy/20-deployment.yaml`, in KiB.
const MEMORY_LIMIT: usize = 256 << 10;
const QUESTION: &str = "a.test. A";
/// The ports of lb-linker other than those for DNS.
const HTTP_PORTS: &str = "prometheus 127.0.0.1:0\nhealth 127.0.0.1:0\nready 127.0.0.1:0\n";

/// Returns the settings of a client that trusts the CA, and lets the server send this many bytes on a stream.
pub(crate) fn quic_client(certificates: &Certificates, window: u32) -> ClientConfig {
    let mut config = client_config(certificates, &TLS13, None);
    config.alpn_protocols = vec![b"doq".to_vec()];
    let mut config = ClientConfig::new(Arc::new(QuicClientConfig::try_from(config).unwrap()));
    let mut transport = TransportConfig::default();
    transport.stream_receive_window(VarInt::from_u32(window));
    config.transport_config(Arc::new(transport));
    config
}

/// A client at an address of loopback.
pub(crate) fn endpoint(client: Ipv4Addr) -> Endpoint {
    Endpoint::client((client, 0).into()).unwrap()
}

/// Connects a client.
pub(crate) async fn connect(
    endpoint: &Endpoint,
    server: SocketAddr,
    config: &ClientConfig,
) -> Result<Connection, ConnectionError> {
    let connecting = endpoint.connect_with(config.clone(), server, "dns.example").unwrap();
    timeout(EVENT_TIMEOUT, connecting).await.expect("the end of a handshake")
}

/// Sends bytes on a stream, and returns all that the server sends there.
pub(crate) async fn exchange(connection: &Connection, bytes: &[u8]) -> Result<Vec<u8>, ReadToEndError> {
    let (mut sending, mut receiving) = match connection.open_bi().await {
        Ok(halves) => halves,
        Err(error) => return Err(ReadToEndError::Read(error.into())),
    };
    // The server may have closed the stream.
    let _ = sending.write_all(bytes).await;
    let _ = sending.finish();
    timeout(EVENT_TIMEOUT, receiving.read_to_end(usize::MAX)).await.expect("the end of a stream")
}

/// Returns a query with the id 0, preceded by its length.
pub(crate) fn asked(question: &str) -> Vec<u8> {
    let mut message = query(question);
    message.metadata.id = 0;
    framed(&message.to_vec().unwrap())
}

/// Returns the answer to a question.
pub(crate) async fn answer(connection: &Connection, question: &str) -> Message {
    let bytes = exchange(connection, &asked(question)).await.unwrap();
    let (length, answer) = bytes.split_first_chunk().unwrap();
    assert_eq!(usize::from(u16::from_be_bytes(*length)), answer.len());
    Message::from_vec(answer).unwrap()
}

/// Waits for the end of a connection, and returns the error code of the server.
pub(crate) async fn error_code(connection: &Connection) -> Option<u64> {
    match timeout(EVENT_TIMEOUT, connection.closed()).await.expect("the end of a connection") {
        ConnectionError::ApplicationClosed(close) => Some(close.error_code.into_inner()),
        _ => None,
    }
}

/// Waits until the server has closed all connections with this code. A client whose socket is full may lose the packet
/// with the code; then a reset or its own timeout ends the connection.
async fn assert_closed<T>(crowd: &[(Connection, T)], code: u64) {
    let mut told = 0;
    for (connection, _) in crowd {
        match timeout(EVENT_TIMEOUT, connection.closed()).await.expect("the end of a connection") {
            ConnectionError::ApplicationClosed(close) => {
                assert_eq!(close.error_code.into_inner(), code);
                told += 1;
            }
            ConnectionError::Reset | ConnectionError::TimedOut => {}
            other => panic!("{other}"),
        }
    }
    assert!(told > crowd.len() / 2, "{told} of {} connections have the code", crowd.len());
}

/// lb-linker with DNS and with DNS over QUIC, with an answer of 60 KB to `big.test. TXT`.
struct Site {
    linker: Linker,
    quic: SocketAddr,
    certificates: Certificates,
    directory: TempDir,
}

impl Site {
    async fn start(lines: &str) -> Self {
        let (certificates, directory) = (Certificates::make(), tempfile::tempdir().unwrap());
        for name in ["tls.crt", "tls.key"] {
            std::fs::copy(certificates.file(name), directory.path().join(name)).unwrap();
        }
        let text = "a".repeat(250);
        let big: String = (0..230).map(|number| format!("big 60 IN TXT {number}{text}\n")).collect();
        let zone =
            format!("$ORIGIN test.\n@ 60 IN SOA ns h 1 2 3 4 5\n@ 60 IN NS ns\na 60 IN A 192.0.2.1\n{big}");
        let at = |name: &str| directory.path().join(name).display().to_string();
        std::fs::write(at("db"), zone).unwrap();
        let (db, certificate, key) = (at("db"), at("tls.crt"), at("tls.key"));
        let corefile = format!(
            ".:0 {{\nbind 127.0.0.1\n{HTTP_PORTS}file {db} test\n}}\n\
             quic://.:0 {{\nbind 127.0.0.1\ntls {certificate} {key}\n\
             timeouts {{\nread 2s\nwrite 2s\nidle 10s\n}}\nfile {db} test\n{lines}\n}}\n"
        );
        let linker = Linker::start_on_corefile(&corefile, directory.path(), None);
        linker.ready().await;
        let line = linker.line(", by QUIC").await;
        let quic = line.split_once("DNS on ").unwrap().1.split_once(',').unwrap().0.parse().unwrap();
        Self { linker, quic, certificates, directory }
    }

    fn client(&self) -> ClientConfig {
        quic_client(&self.certificates, 100_000)
    }

    /// Connects a client. On a busy machine a handshake may take longer than `read`.
    async fn connect(&self, endpoint: &Endpoint) -> Connection {
        let config = self.client();
        let look = || async { connect(endpoint, self.quic, &config).await.ok() };
        eventually("a connection by QUIC", look).await
    }

    /// Asserts that UDP and DNS over QUIC are served, and that memory is within the limit.
    async fn check(&self, what: &str) {
        let start = Instant::now();
        let reply = ask_udp(self.linker.dns, &query(QUESTION)).await;
        let udp = start.elapsed();
        assert!(show(&reply).starts_with("No Error"), "{}", show(&reply));
        let connection = self.connect(&endpoint(Ipv4Addr::new(127, 9, 9, 9))).await;
        assert!(show(&answer(&connection, QUESTION).await).starts_with("No Error"), "{what}");
        let most = self.linker.memory("VmHWM");
        eprintln!("quic: {what}: at most {most} KiB; then UDP {udp:.1?}, QUIC {:.1?}", start.elapsed());
        assert!(most < MEMORY_LIMIT, "{what}: {most} KiB");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handshakes_that_never_finish_lock_no_client_out() {
    const HANDSHAKES: usize = 5000;
    let site = Site::start("").await;
    let client = endpoint(Ipv4Addr::LOCALHOST);
    let mut first = [0; 1500];
    for number in 0..HANDSHAKES {
        // The first packet of a client, sent from another address.
        let sink = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let _connecting =
            client.connect_with(site.client(), sink.local_addr().unwrap(), "dns.example").unwrap();
        let length = sink.recv(&mut first).await.unwrap();
        let forged = Ipv4Addr::new(127, 1, (number / 250) as u8, (number % 250) as u8);
        let source = std::net::UdpSocket::bind((forged, 0)).unwrap();
        source.send_to(&first[..length], site.quic).unwrap();
    }
    site.check("handshakes that never finish").await;
    assert_eq!(site.linker.metric("lb_linker_dns_connections_evicted_total"), Some(0.0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn crowd_of_idle_quic_connections_makes_room_for_a_new_one() {
    const CONNECTIONS: usize = 1200;
    let site = Site::start("").await;
    let before = site.linker.memory("VmRSS");
    let mut crowd = Vec::new();
    for number in 0..CONNECTIONS / 100 {
        let endpoint = endpoint(Ipv4Addr::new(127, 2, 0, number as u8 + 1));
        for _ in 0..100 {
            let connection = site.connect(&endpoint).await;
            assert!(show(&answer(&connection, QUESTION).await).starts_with("No Error"));
            crowd.push((connection, endpoint.clone()));
        }
    }
    let grown = site.linker.memory("VmRSS") - before;
    eprintln!("quic: {CONNECTIONS} connections: {grown} KiB more");
    let open = crowd.iter().filter(|(connection, _)| connection.close_reason().is_none()).count();
    assert!(open <= 1000, "{open}");
    site.check("a crowd of connections").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_without_an_end_take_no_memory_beyond_the_limit() {
    let site = Site::start("").await;
    let mut crowd = Vec::new();
    for number in 0..4 {
        let endpoint = endpoint(Ipv4Addr::new(127, 3, 0, number + 1));
        for _ in 0..50 {
            let connection = site.connect(&endpoint).await;
            let mut streams = Vec::new();
            for _ in 0..256 {
                let Ok(Ok((mut sending, receiving))) =
                    timeout(Duration::from_millis(200), connection.open_bi()).await
                else {
                    break;
                };
                // The first half of a query of maximum size.
                let _ =
                    timeout(Duration::from_millis(50), sending.write_all(&framed(&[0; 4000])[..100])).await;
                streams.push((sending, receiving));
            }
            crowd.push((connection, streams));
        }
    }
    site.check("streams without an end").await;
    assert_closed(&crowd, 2).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quic_clients_that_do_not_read_are_disconnected() {
    let site = Site::start("").await;
    let config = quic_client(&site.certificates, 100);
    let mut crowd = Vec::new();
    for number in 0..4 {
        let endpoint = endpoint(Ipv4Addr::new(127, 4, 0, number + 1));
        for _ in 0..50 {
            let connection = connect(&endpoint, site.quic, &config).await.unwrap();
            let mut streams = Vec::new();
            for _ in 0..100 {
                // The server closes the connection in between.
                let Ok((mut sending, receiving)) = connection.open_bi().await else { break };
                let _ = sending.write_all(&asked("big.test. TXT")).await;
                let _ = sending.finish();
                streams.push((sending, receiving));
            }
            crowd.push((connection, streams));
        }
    }
    site.check("clients that don't read").await;
    assert_closed(&crowd, 4).await;
    assert!(site.linker.metric("lb_linker_dns_connections_unread_total").unwrap() > 0.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_that_resets_its_quic_streams_is_disconnected() {
    let site = Site::start("").await;
    let connection = site.connect(&endpoint(Ipv4Addr::LOCALHOST)).await;
    let mut opened = 0;
    while let Ok((mut sending, _receiving)) = connection.open_bi().await {
        opened += 1;
        assert!(opened < 100_000);
        if sending.write_all(&[0]).await.is_ok() {
            tokio::task::yield_now().await;
            let _ = sending.reset(VarInt::from_u32(3));
        }
    }
    eprintln!("quic: resets: the connection ended after {opened} streams");
    assert_eq!(error_code(&connection).await, Some(4));
    site.check("rapid resets").await;
    assert_eq!(site.linker.warnings(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_packets_delay_no_quic_client() {
    let site = Site::start("").await;
    let connection = site.connect(&endpoint(Ipv4Addr::LOCALHOST)).await;
    let garbage = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    for number in 0..100_000_u32 {
        let mut packet = vec![number as u8; 1200];
        // Short headers, long headers of version 1 and of others (RFC 9000 section 17).
        packet[0] = [0x40, 0xc0, 0xe0, 0xff][number as usize % 4];
        packet[1..5].copy_from_slice(&(number % 3).to_be_bytes());
        packet[5] = 8;
        let _ = garbage.send_to(&packet[..1200 - number as usize % 1190], site.quic);
    }
    assert!(show(&answer(&connection, QUESTION).await).starts_with("No Error"));
    site.check("garbage").await;
    assert_eq!(site.linker.warnings(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reload_keeps_quic_connections_and_renews_the_certificate() {
    let mut site = Site::start("reload 2s 0s").await;
    let client = endpoint(Ipv4Addr::LOCALHOST);
    let before = site.connect(&client).await;
    assert!(show(&answer(&before, QUESTION).await).starts_with("No Error"));
    let renewed = Certificates::make();
    for name in ["tls.key", "tls.crt"] {
        let content = std::fs::read_to_string(renewed.file(name)).unwrap();
        replace_file(&site.directory.path().join(name), &content);
    }
    site.certificates = renewed;
    let (config, server) = (site.client(), site.quic);
    let look = || async { connect(&client, server, &config).await.ok() };
    let after = eventually("the renewed certificate", look).await;
    for connection in [&before, &after] {
        assert!(show(&answer(connection, QUESTION).await).starts_with("No Error"));
    }
    assert!(site.linker.stop().success());
    for connection in [&before, &after] {
        assert_eq!(error_code(connection).await, Some(0));
    }
}
