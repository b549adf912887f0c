//! Transfers of zones with the names of load balancers, over real sockets.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use hickory_proto::op::{Message, MessageType};
use hickory_proto::rr::{RData, Record};
use tokio::net::UdpSocket;
use tokio::time::{sleep, timeout};

use crate::corefile::server::{CorefileDir, Program, Server};
use crate::harness::EVENT_TIMEOUT;
use crate::harness::dns::{ask_udp, query};
use crate::transfers::transferred;

const COREFILE: &str = "lb.internal:{$PORT} 192.0.2.0/24:{$PORT} {
    bind 127.0.0.1
    lb_linker lb.internal {
        reverse 192.0.2.0/24
    }
    transfer {
        to * {$SECONDARY}
    }
}";

fn manifest(name: &str, ingress: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: shop}}\n\
         spec: {{type: LoadBalancer, ports: [{{name: http, port: 80}}]}}\nstatus: {{loadBalancer: {{ingress: [{ingress}]}}}}\n"
    )
}

fn serial(records: &[Record]) -> u32 {
    match &records[0].data {
        RData::SOA(soa) => soa.serial,
        other => panic!("{other}"),
    }
}

/// Transfers a zone as soon as it is served.
async fn zone(server: SocketAddr, origin: &str) -> Vec<Record> {
    for _ in 0..1000 {
        if let Ok(records) = transferred(server, &query(&format!("{origin} AXFR"))).await {
            return records;
        }
        sleep(Duration::from_millis(20)).await;
    }
    panic!("{origin} is never served");
}

fn shown(records: &[Record]) -> BTreeSet<String> {
    let of_objects = records.iter().filter(|record| !matches!(record.data, RData::SOA(_)));
    of_objects.map(ToString::to_string).collect()
}

/// Waits until the secondary server is told of lb.internal with a serial above this one, and returns that.
async fn notified(secondary: &UdpSocket, above: u32) -> u32 {
    loop {
        let mut bytes = [0; 512];
        let received = timeout(EVENT_TIMEOUT, secondary.recv_from(&mut bytes)).await.expect("a NOTIFY");
        let (length, from) = received.unwrap();
        let mut message = Message::from_vec(&bytes[..length]).unwrap();
        message.metadata.message_type = MessageType::Response;
        secondary.send_to(&message.to_vec().unwrap(), from).await.unwrap();
        let serial = serial(&message.answers);
        if message.queries[0].name().to_ascii() == "lb.internal." && serial > above {
            return serial;
        }
    }
}

#[tokio::test]
async fn names_of_the_moment_are_transferred_and_serials_never_fall() {
    let secondary = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let site = CorefileDir::new(COREFILE, &[]).with("SECONDARY", secondary.local_addr().unwrap());
    site.write("manifests/web.yaml", &manifest("web", "{ip: 192.0.2.7}"));
    site.write("manifests/host.yaml", &manifest("host", "{hostname: a.example.com}"));
    let server = Server::start(Program::Linker, &site).await;
    let first = zone(server.dns(), "lb.internal.").await;
    let expected = [
        "lb.internal. 5 IN NS ns.dns.lb.internal.",
        "ns.dns.lb.internal. 5 IN A 127.0.0.1",
        "host-shop.lb.internal. 5 IN CNAME a.example.com.",
        "host.shop.lb.internal. 5 IN CNAME a.example.com.",
        "_http._tcp.host.shop.lb.internal. 5 IN SRV 0 100 80 a.example.com.",
        "web-shop.lb.internal. 5 IN A 192.0.2.7",
        "web.shop.lb.internal. 5 IN A 192.0.2.7",
        "web-shop.lb.internal. 5 IN SRV 0 100 80 web.shop.lb.internal.",
        "web.shop.lb.internal. 5 IN SRV 0 100 80 web.shop.lb.internal.",
        "_http._tcp.web.shop.lb.internal. 5 IN SRV 0 100 80 web.shop.lb.internal.",
    ];
    assert_eq!(shown(&first), expected.map(str::to_owned).into());
    let reverse = zone(server.dns(), "2.0.192.in-addr.arpa.").await;
    let expected = [
        "2.0.192.in-addr.arpa. 5 IN NS ns.dns.lb.internal.",
        "7.2.0.192.in-addr.arpa. 5 IN PTR web.shop.lb.internal.",
    ];
    assert_eq!(shown(&reverse), expected.map(str::to_owned).into());

    let mut known = serial(&first);
    site.write("manifests/web.yaml", &manifest("web", "{ip: 192.0.2.8}"));
    while !shown(&zone(server.dns(), "lb.internal.").await).contains("web.shop.lb.internal. 5 IN A 192.0.2.8")
    {
        sleep(Duration::from_millis(20)).await;
    }
    known = notified(&secondary, known).await;
    let answer = ask_udp(server.dns(), &query("lb.internal. SOA")).await;
    assert!(serial(&answer.answers) >= known);
    known = serial(&zone(server.dns(), "lb.internal.").await);
    drop(server);
    let server = Server::start(Program::Linker, &site).await;
    let again = serial(&zone(server.dns(), "lb.internal.").await);
    assert!(again >= known, "{again} after {known}");
}
