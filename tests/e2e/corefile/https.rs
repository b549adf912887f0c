//! DNS over HTTPS: statuses, headers and answers, by HTTP/2 and HTTP/1.1, with and without TLS, and their metrics.

use std::fs;
use std::net::SocketAddr;

use data_encoding::BASE64URL_NOPAD;
use hickory_proto::op::Message;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE};
use hyper::{Request, Response, Version};

use super::server::{CorefileDir, Program, Server};
use crate::harness::dns::{query, show};
use crate::https::{Client, connect};
use crate::tls::Certificates;

/// The port `READY` has no TLS.
const COREFILE: &str = "
    https://.:{$TLS} {
        bind 127.0.0.1
        tls tls.crt tls.key
        prometheus 127.0.0.1:{$METRICS}
        acl refused.test {
            block net 127.0.0.0/8
        }
        template IN ANY fail.test {
            rcode SERVFAIL
        }
        template IN A host.test {
            answer \"{{ .Name }} 7200 IN A 192.0.2.3\"
        }
        file db example.org
    }
    https://drop.test:{$TLS} {
        bind 127.0.0.1
        tls tls.crt tls.key
        prometheus 127.0.0.1:{$METRICS}
        erratic {
            drop 1
        }
    }
    https://.:{$READY} {
        bind 127.0.0.1
        prometheus 127.0.0.1:{$METRICS}
        file db example.org
    }
";

const DB: &str = "$ORIGIN example.org.
@     600 IN SOA ns hostmaster 1 7200 1800 86400 300
@     600 IN NS ns
a      60 IN A 192.0.2.10
b     120 IN CNAME a
";

const DNS: &str = "application/dns-message";
const TEXT: &str = "text/plain; charset=utf-8";
const ANSWER: &str =
    "No Error aa rd | a.example.org. 60 IN A 192.0.2.10 | example.org. 600 IN NS ns.example.org. | ";

/// Questions, and the values of `Cache-Control` of CoreDNS and lb-linker. The answers are equal.
const LIFETIMES: [(&str, &str, &str); 8] = [
    ("a.example.org. A", "max-age=60", "private, max-age=60"),
    ("b.example.org. A", "max-age=60", "private, max-age=60"),
    // RFC 8484 section 5.1: MINIMUM counts, too.
    ("none.example.org. A", "max-age=600", "private, max-age=300"),
    ("a.example.org. AAAA", "max-age=600", "private, max-age=300"),
    // CoreDNS's maximum is an hour.
    ("host.test. A", "max-age=3600", "private, max-age=7200"),
    // Failures aren't kept.
    ("fail.test. A", "max-age=5", "no-store"),
    ("refused.test. A", "max-age=5", "no-store"),
    ("example.org. AXFR", "max-age=5", "no-store"),
];

/// Requests with their content type, the path with `{}` for the query in base64url, the body (`query`, a size, or
/// none), and the statuses of CoreDNS and lb-linker. An answer has the status 200.
const REQUESTS: [(&str, &str, &str, &str, u16, u16); 19] = [
    ("GET", "", "/dns-query?dns={}", "", 200, 200),
    ("GET", DNS, "/dns-query?ct=x&dns={}&y", "", 200, 200),
    ("POST", DNS, "/dns-query", "query", 200, 200),
    ("POST", DNS, "/dns-query?dns=x", "query", 200, 200),
    ("GET", "", "/dns-query?dns={}==", "", 400, 400),
    ("GET", "", "/dns-query?dns={}&dns={}", "", 400, 400),
    ("GET", "", "/dns-query?dns=AAAA", "", 400, 400),
    ("GET", "", "/dns-query?dns=a.b", "", 400, 400),
    ("GET", "", "/dns-query", "", 400, 400),
    ("POST", DNS, "/dns-query", "5", 400, 400),
    ("GET", "", "/", "", 404, 404),
    ("GET", "", "/dns-query/?dns={}", "", 404, 404),
    ("POST", DNS, "/resolve", "query", 404, 404),
    // CoreDNS doesn't answer HEAD, and has no status for what else it refuses.
    ("HEAD", "", "/dns-query?dns={}", "", 400, 200),
    ("PUT", DNS, "/dns-query", "query", 400, 405),
    ("OPTIONS", "", "/dns-query?dns={}", "", 400, 405),
    ("POST", DNS, "/dns-query", "65536", 400, 413),
    // CoreDNS ignores the content type.
    ("POST", "text/plain", "/dns-query", "query", 200, 415),
    ("POST", "", "/dns-query", "query", 200, 415),
];

/// The ways to connect: the port, and the version.
const WAYS: [(&str, Version); 3] =
    [("TLS", Version::HTTP_2), ("TLS", Version::HTTP_11), ("READY", Version::HTTP_11)];

fn request(method: &str, media_type: &str, path: &str, body: &str, question: &str) -> Request<Full<Bytes>> {
    let message = query(question).to_vec().unwrap();
    let path = path.replace("{}", &BASE64URL_NOPAD.encode(&message));
    let body = match body {
        "query" => message,
        size => vec![0; size.parse().unwrap_or_default()],
    };
    let mut builder = Request::builder().method(method).uri(path).header("X-Forwarded-For", "192.0.2.99");
    if !media_type.is_empty() {
        builder = builder.header(CONTENT_TYPE, media_type);
    }
    builder.body(Full::new(body.into())).unwrap()
}

/// Returns the status, the headers content type, `Cache-Control` and `Allow`, and the body.
async fn read(response: Response<Incoming>) -> (u16, [String; 3], Bytes) {
    let (head, body) = response.into_parts();
    let header =
        |name| head.headers.get(name).map_or_else(String::new, |value| value.to_str().unwrap().to_owned());
    let headers = [header(CONTENT_TYPE), header(CACHE_CONTROL), header(ALLOW)];
    (head.status.as_u16(), headers, body.collect().await.unwrap().to_bytes())
}

struct Both {
    servers: [(Program, Server); 2],
    certificates: Certificates,
    _site: CorefileDir,
}

impl Both {
    async fn start() -> Self {
        let certificates = Certificates::make();
        let site = CorefileDir::new(COREFILE, &[("db", DB)]);
        for name in ["tls.crt", "tls.key"] {
            site.write(name, &fs::read_to_string(certificates.file(name)).unwrap());
        }
        let coredns = Server::start(Program::CoreDns, &site).await;
        let subject = Server::start(Program::subject(), &site).await;
        Self {
            servers: [(Program::CoreDns, coredns), (Program::subject(), subject)],
            certificates,
            _site: site,
        }
    }

    async fn client(&self, number: usize, (port, version): (&str, Version)) -> Client {
        let address: SocketAddr = self.servers[number].1.address(port);
        connect(address, (port == "TLS").then_some(&self.certificates), version).await
    }
}

#[tokio::test]
async fn statuses_and_headers_by_https_are_as_expected() {
    let both = Both::start().await;
    for (number, (program, _)) in both.servers.iter().enumerate() {
        for way in WAYS {
            for (method, media_type, path, body, coredns, linker) in REQUESTS {
                // CoreDNS closes some connections after an error.
                let mut client = both.client(number, way).await;
                let asked = request(method, media_type, path, body, "a.example.org. A");
                let (status, headers, body) = read(client.send(asked).await).await;
                let shown = format!(
                    "{program:?} {way:?}: {method} {media_type} {path}: {status} {headers:?} {body:?}"
                );
                let is_linker = *program == Program::Linker;
                assert_eq!(status, if is_linker { linker } else { coredns }, "{shown}");
                let [media_type, cache_control, allow] = headers.each_ref().map(String::as_str);
                if status == 200 {
                    let expected = if is_linker { "private, max-age=60" } else { "max-age=60" };
                    assert_eq!((media_type, cache_control), (DNS, expected), "{shown}");
                    let is_head = method == "HEAD";
                    let answer = (!is_head).then(|| show(&Message::from_vec(&body).unwrap()));
                    assert_eq!(
                        (answer.as_deref(), body.is_empty()),
                        ((!is_head).then_some(ANSWER), is_head),
                        "{shown}"
                    );
                } else {
                    let expected = if is_linker { "no-store" } else { "" };
                    assert_eq!((media_type, cache_control), (TEXT, expected), "{shown}");
                    assert_eq!(allow, if status == 405 { "GET, HEAD, POST" } else { "" }, "{shown}");
                    assert!(
                        body.ends_with(if is_linker { b".\n" } else { b"\n" }) || method == "HEAD",
                        "{shown}"
                    );
                }
            }
        }
    }
    let [coredns, linker] = both.servers.each_ref().map(|(_, server)| counted(server));
    assert!(
        coredns.0.iter().all(|line| linker.0.contains(line)) && !coredns.0.is_empty(),
        "{coredns:?} {linker:?}"
    );
    assert_eq!(coredns.1, linker.1);
}

/// Returns the labels of the counted responses of each server and status that lb-linker has, too, and those of
/// requests.
fn counted(server: &Server) -> (Vec<String>, Vec<String>) {
    let page = server.without_ports(&server.metrics());
    let labels = |name: &str| {
        let lines = page.lines().filter_map(|line| line.strip_prefix(name)?.split_once('}'));
        let mut labels: Vec<String> = lines
            .map(|(labels, _)| {
                let mut labels: Vec<&str> = labels.trim_start_matches('{').split(',').collect();
                labels.sort_unstable();
                labels.join(",")
            })
            .collect();
        labels.sort_unstable();
        labels
    };
    (labels("coredns_dns_https_responses_total"), labels("coredns_dns_requests_total"))
}

#[tokio::test]
async fn answers_and_lifetimes_by_https_are_as_expected() {
    let both = Both::start().await;
    let way = WAYS[0];
    let mut clients = [both.client(0, way).await, both.client(1, way).await];
    for (question, coredns, linker) in LIFETIMES {
        let mut answers = Vec::new();
        for (client, (program, _)) in clients.iter_mut().zip(&both.servers) {
            let expected = if *program == Program::Linker { linker } else { coredns };
            // Later answers come from lb-linker's response cache.
            for _ in 0..3 {
                let asked = request("GET", "", "/dns-query?dns={}", "", question);
                let (status, headers, body) = read(client.send(asked).await).await;
                assert_eq!((status, &*headers[1]), (200, expected), "{program:?} {question}");
                answers.push(Message::from_vec(&body).unwrap());
            }
        }
        let parts = |answer: &Message| (answer.metadata.response_code, answer.answers.clone());
        assert!(answers.iter().all(|answer| parts(answer) == parts(&answers[0])), "{question}: {answers:?}");
    }
    // A query without an answer.
    for client in &mut clients {
        let asked = request("GET", "", "/dns-query?dns={}", "", "drop.test. A");
        assert_eq!(read(client.send(asked).await).await.0, 500);
    }
}
