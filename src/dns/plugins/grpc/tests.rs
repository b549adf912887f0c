use hickory_proto::op::Message;
use hyper::header::{CONTENT_TYPE, HeaderMap};
use hyper::{Request, Response};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use super::*;
use crate::dns::chain::server::Server;
use crate::dns::message::grpc;
use crate::dns::plugins::tests::fake_upstream::{address, error};
use crate::dns::plugins::tests::support::{TestServer, show};
use crate::held_port::HeldPort;

/// An upstream that answers by gRPC: names below `none` don't exist, for names below `gone` the status is NOT_FOUND,
/// and for names below `broken` UNAVAILABLE.
struct GrpcUpstream {
    address: SocketAddr,
    _tasks: JoinSet<()>,
}

impl GrpcUpstream {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                connections.spawn(serve(listener.accept().await.unwrap().0));
            }
        });
        Self { address, _tasks: tasks }
    }
}

async fn serve(stream: TcpStream) {
    let mut connection = h2::server::handshake(stream).await.unwrap();
    while let Some(Ok((request, mut response))) = connection.accept().await {
        tokio::spawn(async move {
            let asked = read(request).await;
            let name = asked.queries[0].name().to_ascii();
            let (answer, status) = match name.trim_end_matches('.').rsplit('.').next() {
                Some("none") => (Some(error(&asked, ResponseCode::NXDomain)), "0"),
                Some("gone") => (None, "5"),
                Some("broken") => (None, "14"),
                _ => (Some(address(&asked, 1)), "0"),
            };
            let mut head = Response::builder().header(CONTENT_TYPE, "application/grpc");
            let Some(answer) = answer else {
                head = head.header("grpc-status", status);
                response.send_response(head.body(()).unwrap(), true).unwrap();
                return;
            };
            let mut sending = response.send_response(head.body(()).unwrap(), false).unwrap();
            sending.send_data(grpc::encode(&answer.to_vec().unwrap()).into(), false).unwrap();
            let mut trailers = HeaderMap::new();
            trailers.insert("grpc-status", status.parse().unwrap());
            sending.send_trailers(trailers).unwrap();
        });
    }
}

async fn read(request: Request<h2::RecvStream>) -> Message {
    assert_eq!(request.uri().path(), grpc::PATH);
    let (mut body, mut bytes) = (request.into_body(), Vec::new());
    while let Some(data) = body.data().await {
        bytes.extend_from_slice(&data.unwrap());
    }
    Message::from_vec(grpc::decode(&bytes).unwrap()).unwrap()
}

#[tokio::test]
async fn answers_are_counted_and_errors_are_failures() {
    let upstream = GrpcUpstream::start().await;
    let context = TestServer::block(&format!("errors\ngrpc . {} {{\nexcept c.test\n}}", upstream.address));
    for (name, expected) in [
        ("a.test.", "NOERROR ra | a.test. 60 IN A 192.0.2.1 | |"),
        ("x.none.", "NXDOMAIN ra | | |"),
        ("x.gone.", "NXDOMAIN | | |"),
        ("x.broken.", "SERVFAIL | | |"),
    ] {
        assert_eq!(context.ask(&format!("{name} A")).await, expected, "{name}");
    }
    assert_eq!(context.reply("b.test. A").await.unwrap().plugin, "grpc");
    assert!(context.lines()[0].ends_with("the gRPC status is 14"), "{:?}", context.lines());
    let to = upstream.address;
    assert_eq!(
        context.metrics("coredns_grpc_requests_total"),
        [format!("coredns_grpc_requests_total{{to=\"{to}\"}} 4")]
    );
    assert_eq!(
        context.metrics("coredns_grpc_responses_total"),
        [
            format!("coredns_grpc_responses_total{{rcode=\"NOERROR\",to=\"{to}\"}} 2"),
            format!("coredns_grpc_responses_total{{rcode=\"NXDOMAIN\",to=\"{to}\"}} 2")
        ]
    );
    let mut request = context.request("x.gone. A");
    request.metadata.authentic_data = true;
    assert_eq!(show(&Server::serve(&mut request).await.unwrap()), "NXDOMAIN | | |", "without AD");
}

#[tokio::test]
async fn nxdomain_and_failures_fall_through_for_the_zones() {
    let upstream = GrpcUpstream::start().await;
    let dead = HeldPort::take().unwrap();
    for (to, zones, name, is_own) in [
        (upstream.address, "none", "x.none.", true),
        (upstream.address, "none", "x.gone.", false),
        (upstream.address, "", "x.gone.", true),
        (upstream.address, "", "a.test.", false),
        (dead.local(), "test", "a.test.", true),
        (dead.local(), "test", "a.none.", false),
    ] {
        let context = TestServer::block(&format!("grpc . {to} {{\nfallthrough {zones}\n}}\nwhoami"));
        let plugin = context.reply(&format!("{name} A")).await.map(|reply| reply.plugin);
        assert_eq!(plugin.is_some_and(|plugin| plugin == "whoami"), is_own, "{to} {zones} {name}");
    }
    let context = TestServer::block(&format!("grpc . {} {{\nfallthrough\n}}", upstream.address));
    assert_eq!(context.ask("x.none. A").await, "NXDOMAIN ra | | |", "no plugin follows");
}

#[tokio::test]
async fn next_upstream_answers_when_one_is_dead() {
    let (upstream, dead) = (GrpcUpstream::start().await, HeldPort::take().unwrap());
    let line = format!("grpc . {} dns://{} {{\npolicy sequential\n}}", dead.local(), upstream.address);
    let context = TestServer::block(&line);
    assert_eq!(context.ask("a.test. A").await, "NOERROR ra | a.test. 60 IN A 192.0.2.1 | |");
}

#[test]
fn invalid_lines_are_rejected_with_their_position() {
    let expected = "an address such as 192.0.2.1:9005, or a file like /etc/resolv.conf";
    for (lines, error) in [
        ("grpc", "2:1: grpc needs a zone, and the upstreams: grpc . 192.0.2.1:9005".to_owned()),
        ("grpc .", "2:6: . needs an upstream after it, such as 192.0.2.1:9005".to_owned()),
        ("grpc . unix:///run/dns", format!("2:8: \"unix:///run/dns\" isn't {expected}")),
        ("grpc . grpc://192.0.2.1", format!("2:8: \"grpc://192.0.2.1\" isn't {expected}")),
        ("grpc . dns.example", format!("2:8: \"dns.example\" isn't {expected}")),
        (
            "grpc . 192.0.2.1\ngrpc . 192.0.2.1",
            "3:1: grpc can be there only once in a block, and it is on line 2 already".to_owned(),
        ),
        (
            "grpc . 192.0.2.1 {\nhealth_check 1s\n}",
            "3:1: grpc has no option \"health_check\"; its options are except, fallthrough, policy, tls, tls_servername"
                .to_owned(),
        ),
        (
            "grpc . 192.0.2.1 {\ntls /nowhere/ca.pem\n}",
            "3:5: /nowhere/ca.pem: No such file or directory (os error 2)".to_owned(),
        ),
    ] {
        assert_eq!(TestServer::error(lines), format!("Corefile:{error}"), "{lines}");
    }
}
