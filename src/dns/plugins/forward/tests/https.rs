//! Tests of upstreams by HTTPS.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use data_encoding::BASE64URL_NOPAD;
use hickory_proto::op::Message;
use hyper::header::CONTENT_TYPE;
use hyper::{Request, Response};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinSet, yield_now};
use tokio_rustls::TlsAcceptor;

use super::tls::Certificates;
use crate::dns::plugins::tests::fake_upstream::{FakeUpstream, address};
use crate::dns::plugins::tests::support::TestServer;
use crate::held_port::HeldPort;

const DNS: &str = "application/dns-message";

/// An upstream by HTTPS with the certificate of `server.example`.
struct HttpsUpstream {
    address: SocketAddr,
    /// The method, the authority with the path, and the content type of each request.
    asked: Arc<Mutex<Vec<String>>>,
    _tasks: JoinSet<()>,
}

impl HttpsUpstream {
    /// Starts an upstream that speaks these protocols, and answers with this status.
    async fn start(certificates: &Certificates, protocols: &[&str], status: u16) -> Self {
        let certificate = CertificateDer::from_pem_file(certificates.path("server.pem")).unwrap();
        let key = PrivateKeyDer::from_pem_file(certificates.path("server.key")).unwrap();
        let mut config =
            ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_no_client_auth()
                .with_single_cert(vec![certificate], key)
                .unwrap();
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let asked: Arc<Mutex<Vec<String>>> = Arc::default();
        let log = Arc::clone(&asked);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                connections.spawn(serve(stream, acceptor.clone(), status, Arc::clone(&log)));
            }
        });
        Self { address, asked, _tasks: tasks }
    }

    /// Returns the requests, without those of health checks.
    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

async fn serve(stream: TcpStream, acceptor: TlsAcceptor, status: u16, log: Arc<Mutex<Vec<String>>>) {
    let Ok(stream) = acceptor.accept(stream).await else { return };
    let mut connection = h2::server::handshake(stream).await.unwrap();
    let mut answering = JoinSet::new();
    while let Some(Ok((request, mut response))) = connection.accept().await {
        let log = Arc::clone(&log);
        answering.spawn(async move {
            let answer = address(&Message::from_vec(&read(request, &log).await).unwrap(), 1);
            let head = Response::builder().status(status).header(CONTENT_TYPE, DNS).body(()).unwrap();
            let mut sending = response.send_response(head, false).unwrap();
            sending.send_data(answer.to_vec().unwrap().into(), true).unwrap();
        });
    }
}

/// Returns the query of a request, and logs the request.
async fn read(request: Request<h2::RecvStream>, log: &Mutex<Vec<String>>) -> Vec<u8> {
    let (head, mut body) = request.into_parts();
    let uri = head.uri.to_string();
    let (path, parameter) = uri.split_once("?dns=").unwrap_or((&uri, ""));
    let media_type = head.headers.get(CONTENT_TYPE).map_or("", |value| value.to_str().unwrap());
    log.lock().unwrap().push(format!("{} {path} {media_type}", head.method));
    let mut message = BASE64URL_NOPAD.decode(parameter.as_bytes()).unwrap();
    while let Some(data) = body.data().await {
        message.extend_from_slice(&data.unwrap());
    }
    message
}

#[tokio::test]
async fn https_upstream_gets_the_method_the_host_and_the_path() {
    let certificates = Certificates::new();
    let ca = certificates.path("ca.pem");
    for (to, options, request) in [
        (
            "127.0.0.1%server.example:PORT",
            "",
            Ok(format!("POST https://server.example:PORT/dns-query {DNS}")),
        ),
        (
            "127.0.0.1:PORT/a/b",
            "tls_servername server.example\ndoh_method POST",
            Ok(format!("POST https://server.example:PORT/a/b {DNS}")),
        ),
        (
            "127.0.0.1%server.example:PORT/",
            "doh_method GET",
            Ok("GET https://server.example:PORT/ ".to_owned()),
        ),
        ("127.0.0.1:PORT", "", Err("127.0.0.1")),
        ("127.0.0.1%other.example:PORT", "", Err("other.example")),
    ] {
        let upstream = HttpsUpstream::start(&certificates, &["http/1.1", "h2"], 200).await;
        let port = upstream.address.port().to_string();
        let to = to.replace("PORT", &port);
        let line = format!("errors\nforward . https://{to} {{\ntls {ca}\n{options}\n}}");
        let context = TestServer::block(&line);
        for name in ["a.", "b."] {
            let answer = context.ask(&format!("{name} A")).await;
            assert_eq!(
                answer == format!("NOERROR ra | {name} 60 IN A 192.0.2.1 | |"),
                request.is_ok(),
                "{to}: {answer}"
            );
        }
        match &request {
            Ok(request) => {
                assert_eq!(
                    upstream.asked(),
                    [request.replace("PORT", &port), request.replace("PORT", &port)]
                );
                let labels =
                    format!("{{proto=\"https\",proxy_name=\"forward\",to=\"{}\"}} 1", upstream.address);
                let sockets =
                    ["hits", "misses"].map(|what| context.metrics(&format!("cache_{what}")).remove(0));
                assert!(sockets.iter().all(|line| line.ends_with(&labels)), "{sockets:?}");
            }
            Err(name) => {
                let error =
                    format!("tls: its certificate is valid for \"server.example\", and not for {name}");
                assert!(context.lines().iter().all(|line| line.ends_with(&error)), "{:?}", context.lines());
            }
        }
    }
}

#[tokio::test]
async fn upstream_without_http_2_is_told_apart() {
    let certificates = Certificates::new();
    let ca = certificates.path("ca.pem");
    for (protocols, error) in [
        (&[][..], "tls: it doesn't offer HTTP/2 (ALPN h2)"),
        (&["http/1.1"], "tls: it speaks none of the protocols that lb-linker offers (ALPN), such as HTTP/2"),
    ] {
        let upstream = HttpsUpstream::start(&certificates, protocols, 200).await;
        let line = format!(
            "errors\nforward . https://{} {{\ntls {ca}\ntls_servername server.example\n}}",
            upstream.address
        );
        let context = TestServer::block(&line);
        assert!(context.ask("a. A").await.starts_with("SERVFAIL"));
        assert!(context.lines()[0].ends_with(error), "{:?}", context.lines());
    }
}

#[tokio::test]
async fn failing_https_upstream_is_down_and_the_next_one_answers() {
    let certificates = Certificates::new();
    let ca = certificates.path("ca.pem");
    let dead = HeldPort::take().unwrap();
    let erring = HttpsUpstream::start(&certificates, &["h2"], 500).await;
    let good = FakeUpstream::good(2).await;
    for (failing, why) in [
        (dead.local(), "connect: connection refused"),
        (erring.address, "the HTTP status is 500 Internal Server Error, and not 200 OK"),
    ] {
        let options = format!(
            "errors\nforward . https://{failing} {{\ntls {ca}\ntls_servername server.example\n\
             max_fails 1\nhealth_check 10ms\nfailfast_all_unhealthy_upstreams\n}}"
        );
        let context = TestServer::block(&options);
        assert!(context.ask("a. A").await.starts_with("SERVFAIL"));
        assert!(context.lines()[0].ends_with(why), "{:?}", context.lines());
        while context.metrics("broken") != ["coredns_forward_healthcheck_broken_total 1"] {
            context.ask("a. A").await;
            yield_now().await;
        }
        let line = format!(
            "forward . https://{failing} {} {{\ntls {ca}\ntls_servername server.example\npolicy sequential\n}}",
            good.address
        );
        let context = TestServer::block(&line);
        assert_eq!(context.ask("a. A").await, "NOERROR ra | a. 60 IN A 192.0.2.2 | |");
    }
}

#[test]
fn host_and_path_of_an_https_upstream_are_parsed() {
    let lines = "forward . https://dns.example https://192.0.2.1 https://192.0.2.1:8443/a%20b/c \
                 https://[2001:db8::1]/x https://[2001:db8::1%dns.example]:444 https://dns.example.:444/";
    let (_, configuration) = TestServer::configured(&format!(". {{\n{lines}\n}}\n"));
    let builder = &configuration.blocks[0].builder;
    let addresses: Vec<String> = builder.upstreams.iter().map(|(address, _)| address.to_string()).collect();
    assert_eq!(addresses, ["192.0.2.1:443", "192.0.2.1:8443", "[2001:db8::1]:443", "[2001:db8::1]:444"]);
}
