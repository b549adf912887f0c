//! SRV records, the zone's name server, and answers for Services that change, over real UDP and TCP.

use std::fmt::Write as _;

use hickory_proto::op::Message;

use crate::answers::{SOA, start_with_manifests, without_serial};
use crate::harness::EVENT_TIMEOUT;
use crate::harness::dns::{
    CoreDns, IN_CLIENT_TIMEOUT, answers, ask_repeatedly, ask_tcp, ask_udp, ask_within, query, send_udp,
    short, show,
};

/// Returns the manifest of a load balancer with these ingress entries and ports.
fn service(name: &str, ingress: &str, ports: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\n\
         spec: {{type: LoadBalancer, ports: [{ports}]}}\nstatus: {{loadBalancer: {{ingress: [{ingress}]}}}}\n"
    )
}

fn manifests() -> String {
    let http = "{name: http, port: 80}";
    let dns = "{name: dns, port: 53, protocol: UDP}, {name: dns-tcp, port: 53}, {name: dot, port: 853}";
    let mut all = service("web", "{hostname: a.example.com}", http);
    all += &service("ips", "{ip: 192.0.2.1}, {ip: '2001:db8::1'}", dns);
    all += &service("inside", "{hostname: ips.default.lb.internal}", http);
    all += &service("pending", "", http);
    all += &service("unnamed", "{ip: 192.0.2.3}", "{port: 443}");
    all
}

#[tokio::test]
async fn srv_queries_are_answered_over_udp_and_tcp() {
    let upstream = CoreDns::cloud().await;
    let fixture =
        start_with_manifests(&manifests(), &["--upstream", &upstream.address.to_string()], &[]).await;
    let nodata = format!("No Error aa rd ra |  | {SOA} | ");
    let nxdomain = format!("Non-Existent Domain aa rd ra |  | {SOA} | ");
    let glue = "ips.default.lb.internal. 5 IN A 192.0.2.1, ips.default.lb.internal. 5 IN AAAA 2001:db8::1";
    let service = |name: &str, port: u16, target: &str, glue: &str| {
        format!("No Error aa rd ra | {name} 5 IN SRV 0 100 {port} {target} |  | {glue}")
    };
    let both = |name: &str| {
        format!(
            "No Error aa rd ra | {name} 5 IN SRV 0 100 53 ips.default.lb.internal., \
             {name} 5 IN SRV 0 100 853 ips.default.lb.internal. |  | {glue}"
        )
    };
    let table = [
        // RFC 2782: known addresses of the target are additional records; otherwise the client resolves the target.
        (
            "_dns._udp.ips.default.lb.internal. SRV",
            service("_dns._udp.ips.default.lb.internal.", 53, "ips.default.lb.internal.", glue),
        ),
        (
            "_http._tcp.web.default.lb.internal. SRV",
            service("_http._tcp.web.default.lb.internal.", 80, "a.example.com.", ""),
        ),
        // RFC 4343: names are compared without case, and keep the case of the query.
        (
            "_HTTP._TCP.Web.default.lb.internal. SRV",
            service("_HTTP._TCP.Web.default.lb.internal.", 80, "a.example.com.", ""),
        ),
        // RFC 8482: ANY returns the only rrset of the name.
        (
            "_http._tcp.web.default.lb.internal. ANY",
            service("_http._tcp.web.default.lb.internal.", 80, "a.example.com.", ""),
        ),
        // NODATA (RFC 2308 section 2.2), also for empty non-terminals (RFC 8020).
        ("_http._tcp.web.default.lb.internal. A", nodata.clone()),
        ("_http._tcp.pending.default.lb.internal. SRV", nodata.clone()),
        ("_tcp.web.default.lb.internal. SRV", nodata),
        // NXDOMAIN (RFC 2308 section 2.1).
        ("_udp.web.default.lb.internal. SRV", nxdomain.clone()),
        ("_https._tcp.web.default.lb.internal. SRV", nxdomain.clone()),
        ("_tcp.unnamed.default.lb.internal. SRV", nxdomain.clone()),
        ("_http._tcp.web-default.lb.internal. SRV", nxdomain.clone()),
        ("_x.web.default.lb.internal. TXT", nxdomain),
        // RFC 2181 section 5: one port over UDP and TCP yields one record, because an rrset has no duplicates.
        ("ips.default.lb.internal. SRV", both("ips.default.lb.internal.")),
        ("ips-default.lb.internal. SRV", both("ips-default.lb.internal.")),
        // RFC 1034 section 3.6.2: the answer has the CNAME and the records of its target, with additional records.
        (
            "inside-default.lb.internal. SRV",
            "No Error aa rd ra | inside-default.lb.internal. 5 IN CNAME ips.default.lb.internal., \
             ips.default.lb.internal. 5 IN SRV 0 100 53 ips.default.lb.internal., \
             ips.default.lb.internal. 5 IN SRV 0 100 853 ips.default.lb.internal. |  | "
                .to_owned()
                + glue,
        ),
        (
            "web.default.lb.internal. SRV",
            "No Error aa rd ra | web.default.lb.internal. 5 IN CNAME a.example.com. | example.com. 5 IN SOA \
             ns.example.com. root.example.com. 1 7200 1800 86400 3600 | "
                .to_owned(),
        ),
    ];
    for (question, expected) in table {
        let first = ask_within(IN_CLIENT_TIMEOUT, fixture.linker.dns, &query(question)).await;
        let others = ask_repeatedly(fixture.linker.dns, &query(question)).await;
        for answer in [first].into_iter().chain(others) {
            assert_eq!(without_serial(&show(&answer)), expected, "{question}");
            assert_eq!(answer.queries, query(question).queries, "the question is repeated");
        }
    }
}

/// RFC 2181 section 9: additional records that don't fit are omitted, and TC isn't set.
#[tokio::test]
async fn srv_answer_omits_addresses_that_dont_fit() {
    let mut ingress = String::new();
    for i in 1..=100 {
        let _ = write!(ingress, "{{ip: 192.0.2.{i}}}, ");
    }
    let fixture = start_with_manifests(
        &service("many", &ingress, "{name: http, port: 80}"),
        &["--upstream", "none"],
        &[],
    )
    .await;
    let mut question = query("_http._tcp.many.default.lb.internal. SRV");
    question.edns = None;
    let bytes = send_udp(fixture.linker.dns, &question.to_vec().unwrap(), EVENT_TIMEOUT).await.unwrap();
    let answer = Message::from_vec(&bytes).unwrap();
    assert!(bytes.len() <= 512 && !answer.metadata.truncation);
    assert_eq!(answer.answers.len(), 1);
    assert!((1..100).contains(&answer.additionals.len()), "{}", answer.additionals.len());
    let whole = ask_tcp(fixture.linker.dns, &question).await;
    assert_eq!((whole.answers.len(), whole.additionals.len()), (1, 100));
}

#[tokio::test]
async fn srv_record_follows_its_port_and_its_target() {
    let http = |port| format!("{{name: http, port: {port}}}");
    let fixture = start_with_manifests(
        &service("web", "{hostname: a.example}", &http(80)),
        &["--upstream", "none"],
        &[],
    )
    .await;
    let (dns, question) = (fixture.linker.dns, "_http._tcp.web.default.lb.internal. SRV");
    let write = |text: String| fixture.write(&text);
    assert_eq!(short(dns, question).await, "0 100 80 a.example.");
    write(service("web", "{hostname: a.example}", &http(8080)));
    answers(dns, question, "0 100 8080 a.example.").await;
    assert_eq!(fixture.linker.logged("link default/web"), 0, "the link's target is the same");
    write(service("web", "{hostname: b.example}", &http(8080)));
    answers(dns, question, "0 100 8080 b.example.").await;
    write(service("web", "{ip: 192.0.2.1}", &http(8080)));
    answers(dns, question, "0 100 8080 web.default.lb.internal.").await;
    write(service("web", "{ip: 192.0.2.1}", ""));
    answers(dns, question, "Non-Existent Domain").await;
}

/// Unlike first answers, repeated answers come from a cache, over UDP and over TCP.
#[tokio::test]
async fn repeated_srv_answers_follow_the_cname_of_their_target() {
    let https = "{name: https, port: 443}";
    let both = |ip: &str| {
        let alias = service("alias", "{hostname: end.default.lb.internal}", https);
        alias + &service("end", &format!("{{ip: {ip}}}"), "")
    };
    let fixture = start_with_manifests(&both("192.0.2.1"), &["--upstream", "none"], &[]).await;
    let (dns, question) = (fixture.linker.dns, "_https._tcp.alias.default.lb.internal. SRV");
    for last in 1..=3 {
        let ip = format!("192.0.2.{last}");
        fixture.write(&both(&ip));
        answers(dns, "end.default.lb.internal. A", &ip).await;
        for answer in ask_repeatedly(dns, &query(question)).await {
            let expected = format!(
                "No Error aa rd | _https._tcp.alias.default.lb.internal. 5 IN SRV 0 100 443 \
                 end.default.lb.internal. |  | end.default.lb.internal. 5 IN A {ip}"
            );
            assert_eq!(show(&answer), expected);
        }
    }
}

/// Returns the NS answer for the zone from an lb-linker that also listens on `listen`.
async fn name_server(listen: &str, pod_ips: &str) -> String {
    let args = ["--listen", listen, "--upstream", "none"];
    let fixture = start_with_manifests(&manifests(), &args, &[("POD_IPS", pod_ips)]).await;
    let answer = ask_udp(fixture.linker.dns, &query("lb.internal. NS")).await;
    show(&answer)
}

#[tokio::test]
async fn name_server_on_all_addresses_has_the_pods_addresses() {
    let glue = |addresses: &[&str]| {
        let record = |address: &&str| format!("ns.dns.lb.internal. 5 IN {address}");
        let records: Vec<String> = addresses.iter().map(record).collect();
        format!("No Error aa rd | lb.internal. 5 IN NS ns.dns.lb.internal. |  | {}", records.join(", "))
    };
    let pod_ips = "10.1.2.3,2001:db8::3";
    assert_eq!(name_server("0.0.0.0:0", pod_ips).await, glue(&["A 10.1.2.3"]));
    if std::net::UdpSocket::bind("[::1]:0").is_ok() {
        assert_eq!(name_server("[::]:0", pod_ips).await, glue(&["A 10.1.2.3", "AAAA 2001:db8::3"]));
    }
    assert_eq!(name_server("127.0.0.1:0", pod_ips).await, glue(&["A 127.0.0.1"]), "only loopback");
}
