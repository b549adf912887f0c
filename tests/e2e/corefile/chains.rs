//! The `acl` of a server block applies to each name in a link's CNAME chain, over real UDP and TCP.

use std::net::SocketAddr;

use hickory_proto::op::Message;
use tokio::net::{TcpSocket, UdpSocket};
use tokio::time::timeout;

use super::server::{CorefileDir, Program, Server};
use crate::answers::manifests;
use crate::harness::EVENT_TIMEOUT;
use crate::harness::dns::{answers, ede, query, read_message, write_message};

const COREFILE: &str = "
    lb.internal:{$PORT} {
        acl inner.default.lb.internal {
            block net 127.0.0.2
        }
        prometheus 127.0.0.1:{$METRICS}
        lb_linker
    }
    .:{$PORT} {
        acl hidden.example {
            block net 127.0.0.2
        }
        cache 30
        template IN A via.example {
            answer \"{{ .Name }} 60 IN CNAME hidden.example.\"
        }
        template IN A hidden.example {
            answer \"{{ .Name }} 60 IN A 192.0.2.9\"
        }
    }";

/// Sends a query from a local address repeatedly, over UDP and over TCP. Returns the addresses in the answer and
/// additional sections and the extended DNS error of each answer.
async fn ask_from(client: [u8; 4], server: SocketAddr, question: &str) -> Vec<(Vec<String>, Option<u16>)> {
    let (client, bytes) = (SocketAddr::from((client, 0)), query(question).to_vec().unwrap());
    let udp = UdpSocket::bind(client).await.unwrap();
    udp.connect(server).await.unwrap();
    let tcp = TcpSocket::new_v4().unwrap();
    tcp.bind(client).unwrap();
    let mut tcp = tcp.connect(server).await.unwrap();
    let mut found = Vec::new();
    let mut take = |bytes: &[u8]| {
        let answer = Message::from_vec(bytes).unwrap();
        let records = answer.answers.iter().chain(&answer.additionals);
        let addresses = records.filter_map(|record| record.data.ip_addr());
        found.push((addresses.map(|ip| ip.to_string()).collect(), ede(&answer)));
    };
    for _ in 0..3 {
        udp.send(&bytes).await.unwrap();
        let mut answer = [0; 4096];
        let length = timeout(EVENT_TIMEOUT, udp.recv(&mut answer)).await.expect("an answer by UDP").unwrap();
        take(&answer[..length]);
        write_message(&mut tcp, &bytes).await;
        take(&timeout(EVENT_TIMEOUT, read_message(&mut tcp)).await.expect("an answer by TCP").unwrap());
    }
    found
}

#[tokio::test]
async fn acl_cuts_a_chain_for_blocked_clients() {
    if Program::subject() == Program::CoreDns {
        return;
    }
    let links = [
        ("web", "{hostname: via.example}"),
        ("outer", "{hostname: inner.default.lb.internal}"),
        ("inner", "{ip: 192.0.2.7}"),
    ];
    let site = CorefileDir::new(COREFILE, &[("manifests/services.yaml", &manifests(&links))]);
    let server = Server::start(Program::Linker, &site).await;
    for (name, chain, address) in [
        ("web", "via.example. hidden.example.", "192.0.2.9"),
        ("outer", "inner.default.lb.internal.", "192.0.2.7"),
    ] {
        let question = format!("{name}.default.lb.internal. A");
        answers(server.dns(), &question, &format!("{chain} {address}")).await;
        // The clients take turns: an answer that is cached for one client isn't valid for the other client.
        for _ in 0..2 {
            let allowed = ask_from([127, 0, 0, 1], server.dns(), &question).await;
            assert_eq!(allowed, vec![(vec![address.to_owned()], None); 6], "{name}");
            let blocked = ask_from([127, 0, 0, 2], server.dns(), &question).await;
            assert_eq!(blocked, vec![(vec![], Some(15)); 6], "{name}");
        }
    }
    let counter = "lb_linker_dns_targets_denied_total{reason=\"acl\"}";
    assert_eq!(server.metric(counter), Some(24.0));
}

/// The targets form a chain from `a` through `b` and `c` to `d`, which has addresses of both families. SRV records of
/// `a` have the target `d`, because the target of an SRV record must not be an alias (RFC 2782).
const SERVICES: &str = "
apiVersion: v1
kind: Service
metadata: {name: a}
spec: {type: LoadBalancer, ports: [{name: http, port: 80}]}
status: {loadBalancer: {ingress: [{hostname: b.default.lb.internal}]}}
---
apiVersion: v1
kind: Service
metadata: {name: b}
spec: {type: LoadBalancer}
status: {loadBalancer: {ingress: [{hostname: c.default.lb.internal}]}}
---
apiVersion: v1
kind: Service
metadata: {name: c}
spec: {type: LoadBalancer}
status: {loadBalancer: {ingress: [{hostname: d.default.lb.internal}]}}
---
apiVersion: v1
kind: Service
metadata: {name: d}
spec: {type: LoadBalancer, ports: [{name: http, port: 80}]}
status: {loadBalancer: {ingress: [{ip: 192.0.2.7}, {ip: '2001:db8::7'}]}}
";

const RULES: &str = "
    lb.internal:{$PORT} {
        rewrite name exact c.default.lb.internal hidden.default.lb.internal
        acl b.default.lb.internal {
            block net 127.0.0.2
        }
        acl hidden.default.lb.internal {
            filter type AAAA net 127.0.0.3
        }
        acl d.default.lb.internal {
            filter type A net 127.0.0.4
        }
        prometheus 127.0.0.1:{$METRICS}
        lb_linker
    }";

#[tokio::test]
async fn acl_applies_to_aliases_and_addresses_of_srv_answers() {
    if Program::subject() == Program::CoreDns {
        return;
    }
    let site = CorefileDir::new(RULES, &[("manifests/services.yaml", SERVICES)]);
    let server = Server::start(Program::Linker, &site).await;
    let (ipv4, ipv6) = ("192.0.2.7", "2001:db8::7");
    answers(server.dns(), "d.default.lb.internal. A", ipv4).await;
    for (name, client, addresses, code) in [
        ("a", 1, &[ipv4, ipv6][..], None),
        ("a", 2, &[], Some(15)),
        ("a", 3, &[ipv4], Some(15)),
        ("a", 4, &[ipv6], Some(15)),
        ("d", 1, &[ipv4, ipv6], None),
        ("d", 2, &[ipv4, ipv6], None),
        ("d", 3, &[ipv4, ipv6], None),
        ("d", 4, &[ipv6], Some(15)),
        // An answer that is cached for one client isn't valid for another.
        ("a", 1, &[ipv4, ipv6], None),
        ("a", 2, &[], Some(15)),
        ("d", 4, &[ipv6], Some(15)),
        ("d", 1, &[ipv4, ipv6], None),
    ] {
        let question = format!("_http._tcp.{name}.default.lb.internal. SRV");
        let expected = (addresses.iter().map(ToString::to_string).collect::<Vec<_>>(), code);
        let all = ask_from([127, 0, 0, client], server.dns(), &question).await;
        assert_eq!(all, vec![expected; 6], "{name} {client}");
    }
}
