//! DNS over gRPC: statuses and answers, with and without TLS, and their metrics.

use std::collections::BTreeSet;
use std::fs;

use hickory_proto::op::Message;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::CONTENT_TYPE;
use hyper::{Request, Response, Version};
use lb_linker::dns::message::grpc::{MEDIA_TYPE, PATH, STATUS, STATUS_MESSAGE, decode, encode};

use super::server::{CorefileDir, Program, Server};
use crate::harness::dns::{ask_udp, query, show};
use crate::https::{Client, connect};
use crate::tls::Certificates;

/// The port `READY` has no TLS.
const COREFILE: &str = "
    grpc://.:{$TLS} {
        bind 127.0.0.1
        tls tls.crt tls.key
        grpc_server {
            max_connections 50
            max_streams 50
        }
        prometheus 127.0.0.1:{$METRICS}
        log . \"{proto} {name} {rcode}\"
        acl refused.test {
            block net 127.0.0.0/8
        }
        template IN ANY fail.test {
            rcode SERVFAIL
        }
        file db example.org
    }
    grpc://drop.test:{$TLS} {
        bind 127.0.0.1
        tls tls.crt tls.key
        prometheus 127.0.0.1:{$METRICS}
        erratic {
            drop 1
        }
    }
    grpc://.:{$READY} {
        bind 127.0.0.1
        prometheus 127.0.0.1:{$METRICS}
        file db example.org
    }
";

const DB: &str = "$ORIGIN example.org.
@     300 IN SOA ns hostmaster 1 7200 1800 86400 300
@     600 IN NS ns
a      60 IN A 192.0.2.10
b     120 IN CNAME a
";

const QUESTIONS: [&str; 6] = [
    "a.example.org. A",
    "b.example.org. A",
    "a.example.org. AAAA",
    "none.example.org. A",
    "fail.test. A",
    "refused.test. A",
];

/// Requests with their method, path, content type, `grpc-encoding` and body (see [`body`]), and the HTTP statuses and
/// statuses of gRPC of CoreDNS and lb-linker.
const REQUESTS: [(&str, &str, &str, &str, &str, &str, &str); 20] = [
    ("POST", PATH, MEDIA_TYPE, "", "query", "200 0", "200 0"),
    ("POST", PATH, "application/grpc+proto", "identity", "query", "200 0", "200 0"),
    ("POST", PATH, "application/grpc;x", "", "query", "200 0", "200 0"),
    ("POST", PATH, MEDIA_TYPE, "", "other field", "200 0", "200 0"),
    ("POST", PATH, "application/grpc+json", "", "query", "200 0", "415 3"),
    ("POST", PATH, "application/dns-message", "", "query", "415 3", "415 3"),
    ("POST", PATH, "", "", "query", "415 3", "415 3"),
    ("GET", PATH, MEDIA_TYPE, "", "query", "405 13", "405 13"),
    ("POST", "/coredns.dns.DnsService/Watch", MEDIA_TYPE, "", "query", "200 12", "200 12"),
    ("POST", "/grpc.health.v1.Health/Check", MEDIA_TYPE, "", "query", "200 12", "200 12"),
    ("POST", "/", MEDIA_TYPE, "", "query", "200 12", "200 12"),
    ("POST", PATH, MEDIA_TYPE, "x-unknown", "compressed", "200 12", "200 12"),
    ("POST", PATH, MEDIA_TYPE, "x-unknown", "query", "200 12", "200 0"),
    ("POST", PATH, MEDIA_TYPE, "", "compressed", "200 13", "200 12"),
    ("POST", PATH, MEDIA_TYPE, "", "too large", "200 8", "200 8"),
    ("POST", PATH, MEDIA_TYPE, "", "no packet", "200 13", "200 13"),
    ("POST", PATH, MEDIA_TYPE, "", "incomplete", "200 2", "200 13"),
    ("POST", PATH, MEDIA_TYPE, "", "no query", "200 2", "200 3"),
    ("POST", PATH, MEDIA_TYPE, "", "empty packet", "200 2", "200 3"),
    ("POST", PATH, MEDIA_TYPE, "", "two", "200 0", "200 12"),
];

fn body(kind: &str) -> Vec<u8> {
    let whole = encode(&query("a.example.org. A").to_vec().unwrap());
    match kind {
        "query" => whole,
        "other field" => {
            // A field with the number 2 and the value 7.
            let mut body = [&whole, &[0x10, 7][..]].concat();
            body[4] += 2;
            body
        }
        "compressed" => [&[1], &whole[1..]].concat(),
        "too large" => encode(&[0; 65_536]),
        "no packet" => vec![0, 0, 0, 0, 1, 0xff],
        "incomplete" => whole[..whole.len() - 1].to_vec(),
        "no query" => encode(b"no query"),
        "empty packet" => vec![0; 5],
        "two" => whole.repeat(2),
        _ => panic!("{kind}"),
    }
}

/// Returns the HTTP status with the status of gRPC, the sentence about it, and the body.
async fn read(response: Response<Incoming>) -> (String, String, Bytes) {
    let (head, body) = response.into_parts();
    assert_eq!(head.headers[CONTENT_TYPE].to_str().unwrap().split(['+', ';']).next(), Some(MEDIA_TYPE));
    let body = body.collect().await.unwrap();
    let trailers = body.trailers().cloned().unwrap_or(head.headers);
    let text = |name| trailers.get(name).map_or("", |value| value.to_str().unwrap()).to_owned();
    (format!("{} {}", head.status.as_u16(), text(STATUS)), text(STATUS_MESSAGE), body.to_bytes())
}

async fn ask(client: &mut Client, question: &str) -> (String, Bytes) {
    let request = Request::post(PATH).header(CONTENT_TYPE, MEDIA_TYPE);
    let body = Full::new(encode(&query(question).to_vec().unwrap()).into());
    let (status, _, body) = read(client.send(request.body(body).unwrap()).await).await;
    (status, body)
}

fn site(certificates: &Certificates) -> CorefileDir {
    let site = CorefileDir::new(COREFILE, &[("db", DB)]);
    for name in ["tls.crt", "tls.key"] {
        site.write(name, &fs::read_to_string(certificates.file(name)).unwrap());
    }
    site
}

#[tokio::test]
async fn answers_and_statuses_by_grpc_are_as_expected() {
    let certificates = Certificates::make();
    let site = site(&certificates);
    let (mut all, mut wrong) = (Vec::new(), Vec::new());
    for program in [Program::CoreDns, Program::subject()] {
        let is_linker = program == Program::Linker;
        let server = Server::start(program, &site).await;
        let mut shown = Vec::new();
        for (port, tls) in [("TLS", Some(&certificates)), ("READY", None)] {
            let mut client = connect(server.address(port), tls, Version::HTTP_2).await;
            for (method, path, media_type, encoding, kind, coredns, linker) in REQUESTS {
                let mut request = Request::builder().method(method).uri(path);
                for (name, value) in [("content-type", media_type), ("grpc-encoding", encoding)] {
                    if !value.is_empty() {
                        request = request.header(name, value);
                    }
                }
                let response = client.send(request.body(Full::new(body(kind).into())).unwrap()).await;
                let (status, sentence, body) = read(response).await;
                let asked = format!("{program:?} {port}: {method} {path} {media_type} {encoding} {kind}");
                let expected = if is_linker { linker } else { coredns };
                if status != expected {
                    wrong.push(format!("{asked}: {status}, not {expected}: {sentence:?}"));
                }
                assert_eq!(body.is_empty(), status != "200 0", "{asked}");
                assert!(!is_linker || sentence.is_empty() == (status == "200 0"), "{asked}: {sentence:?}");
            }
            for question in QUESTIONS {
                // Later answers come from lb-linker's response cache.
                for _ in 0..2 {
                    let (status, body) = ask(&mut client, question).await;
                    assert_eq!(status, "200 0", "{program:?} {question}");
                    shown.push(format!("{question}: {}", answer(&body)));
                }
            }
        }
        // A query without an answer; CoreDNS sends it back.
        let mut client = connect(server.address("TLS"), Some(&certificates), Version::HTTP_2).await;
        let (status, _) = ask(&mut client, "drop.test. A").await;
        assert_eq!(status, if is_linker { "200 13" } else { "200 0" });
        all.push((shown, counted(&server), logged(&server)));
        // lb-linker counts it outside of the block.
        let (_, transfer) = ask(&mut client, "example.org. AXFR").await;
        assert!(answer(&transfer).starts_with("Query Refused"), "{}", answer(&transfer));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert_eq!(all[0].0, all[1].0);
    assert_eq!(all[0].1, all[1].1);
    assert_eq!(all[0].2, all[1].2);
}

fn answer(body: &[u8]) -> String {
    show(&Message::from_vec(decode(body).unwrap()).unwrap())
}

/// CoreDNS's plugin *grpc* is a client with the library grpc-go.
#[tokio::test]
async fn plugin_grpc_of_coredns_gets_answers() {
    let certificates = Certificates::make();
    let site = site(&certificates);
    let server = Server::start(Program::subject(), &site).await;
    let ca = certificates.file("ca.crt");
    let with_tls = format!("{{\ntls {}\ntls_servername dns.example\n}}", ca.display());
    for (port, options, tls) in [("TLS", &*with_tls, Some(&certificates)), ("READY", "", None)] {
        let mut direct = connect(server.address(port), tls, Version::HTTP_2).await;
        let corefile =
            format!(".:{{$PORT}} {{\nbind 127.0.0.1\ngrpc . {} {options}\n}}\n", server.address(port));
        let client = Server::start(Program::CoreDns, &CorefileDir::new(&corefile, &[])).await;
        for question in QUESTIONS {
            let (_, body) = ask(&mut direct, question).await;
            let forwarded = ask_udp(client.dns(), &query(question)).await;
            assert_eq!(show(&forwarded), answer(&body), "{port} {question}");
        }
    }
}

/// Returns the labels of the counted requests.
fn counted(server: &Server) -> BTreeSet<String> {
    let page = server.without_ports(&server.metrics());
    let lines =
        page.lines().filter_map(|line| line.strip_prefix("coredns_dns_requests_total{")?.split_once('}'));
    lines
        .map(|(labels, _)| {
            let mut labels: Vec<&str> = labels.split(',').collect();
            labels.sort_unstable();
            labels.join(",")
        })
        .collect()
}

fn logged(server: &Server) -> BTreeSet<String> {
    let line = |line: String| line.split_once("tcp ").map(|(_, rest)| rest.to_owned());
    server.log().into_iter().filter_map(line).collect()
}
