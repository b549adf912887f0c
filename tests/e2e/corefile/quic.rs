//! DNS over QUIC: answers, violations of the protocol, and metrics.

use std::fs;
use std::net::Ipv4Addr;

use hickory_proto::op::{Edns, Message};
use hickory_proto::rr::rdata::opt::EdnsOption;
use quinn::{Connection, Endpoint};

use super::server::{CorefileDir, Program, Server};
use crate::harness::dns::{framed, query, show};
use crate::quic::{answer, asked, connect, endpoint, error_code, exchange, quic_client};
use crate::tls::Certificates;

const COREFILE: &str = "
    quic://.:{$QUIC} {
        bind 127.0.0.1
        tls tls.crt tls.key
        quic {
            max_streams 16
            worker_pool_size 100
        }
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
    quic://who.test:{$QUIC} {
        bind 127.0.0.1
        tls tls.crt tls.key
        prometheus 127.0.0.1:{$METRICS}
        whoami
    }
";

const DB: &str = "$ORIGIN example.org.
@     600 IN SOA ns hostmaster 1 7200 1800 86400 600
@     600 IN NS ns
a      60 IN A 192.0.2.10
b     120 IN CNAME a
";

const QUESTIONS: [&str; 8] = [
    "a.example.org. A",
    "b.example.org. A",
    "none.example.org. A",
    "a.example.org. AAAA",
    "host.test. A",
    "fail.test. A",
    "refused.test. A",
    "x.who.test. AAAA",
];

struct Both {
    servers: [(Program, Server); 2],
    certificates: Certificates,
    client: Endpoint,
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
            client: endpoint(Ipv4Addr::LOCALHOST),
            _site: site,
        }
    }

    async fn connect(&self, number: usize) -> Connection {
        let config = quic_client(&self.certificates, 100_000);
        connect(&self.client, self.servers[number].1.address("QUIC"), &config).await.unwrap()
    }
}

#[tokio::test]
async fn answers_by_quic_are_those_of_coredns() {
    let both = Both::start().await;
    let connections = [both.connect(0).await, both.connect(1).await];
    for question in QUESTIONS {
        let mut shown = Vec::new();
        for connection in &connections {
            // Later answers come from lb-linker's response cache.
            for _ in 0..3 {
                let answer = answer(connection, question).await;
                assert_eq!(answer.metadata.id, 0);
                shown.push(show(&answer));
            }
        }
        // whoami shows the client's port, which is the same for both servers.
        assert!(shown.iter().all(|answer| *answer == shown[0]), "{question}: {shown:#?}");
    }
    let [coredns, linker] = both.servers.each_ref().map(|(_, server)| counted(server));
    assert_eq!(coredns, linker);
}

/// Returns the lines of the responses by QUIC, and of requests.
fn counted(server: &Server) -> Vec<String> {
    let page = server.without_ports(&server.metrics());
    let names = ["coredns_dns_quic_responses_total", "coredns_dns_requests_total"];
    let counted = page.lines().filter(|line| names.iter().any(|name| line.starts_with(name)));
    let mut counted: Vec<String> = counted.map(str::to_owned).collect();
    counted.sort_unstable();
    counted
}

#[tokio::test]
async fn violations_of_dns_over_quic_end_the_connection() {
    let both = Both::start().await;
    let plain = || {
        let mut message = query("a.example.org. A");
        message.metadata.id = 0;
        message
    };
    let bytes = |change: fn(&mut Message)| {
        let mut message = plain();
        change(&mut message);
        framed(&message.to_vec().unwrap())
    };
    let good = asked("a.example.org. A");
    let keepalive = bytes(|message| {
        let mut edns = Edns::new();
        edns.options_mut().insert(EdnsOption::Unknown(11, vec![0, 100]));
        message.set_edns(edns);
    });
    for (what, sent, coredns, linker) in [
        ("no bytes", Vec::new(), Some(2), Some(2)),
        ("a length alone", vec![0, 0], Some(2), Some(2)),
        ("too few bytes", good[..good.len() - 1].to_vec(), Some(2), Some(2)),
        ("no message", framed(&[0; 5]), Some(2), Some(2)),
        ("an id", bytes(|message| message.metadata.id = 1), Some(2), Some(2)),
        ("keepalive", keepalive, Some(2), Some(2)),
        // CoreDNS ignores what follows the first query.
        ("two queries", [&good[..], &good].concat(), None, Some(2)),
    ] {
        for (number, expected) in [(0, coredns), (1, linker)] {
            let (program, _) = both.servers[number];
            let expected = if program == Program::CoreDns { coredns } else { expected };
            let connection = both.connect(number).await;
            let exchanged = exchange(&connection, &sent).await;
            assert_eq!(exchanged.is_ok(), expected.is_none(), "{program:?} {what}: {exchanged:?}");
            if expected.is_some() {
                assert_eq!(error_code(&connection).await, expected, "{program:?} {what}");
            }
        }
    }
    for (program, server) in &both.servers {
        let page = server.without_ports(&server.metrics());
        let line = "coredns_dns_quic_responses_total{server=\"quic://127.0.0.1:QUIC\",status=\"0x2\"} ";
        assert!(page.contains(line), "{program:?}: {page}");
    }
}
