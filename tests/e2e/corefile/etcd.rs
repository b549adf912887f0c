//! The plugin *etcd*, in lb-linker and in CoreDNS with the same etcd.

use hickory_proto::op::Message;
use hickory_proto::rr::RData;

use super::answer::Answer;
use super::expected::Expectations;
use super::question::{Reply, table};
use super::server::{CorefileDir, Program, Server};
use super::upstreams::Upstreams;
use crate::harness::etcd::EtcdServer;

/// The name in `EXPECTED`.
pub const GROUP: &str = "etcd";

const COREFILE: &str = "
    .:{$PORT} {
        bind 127.0.0.1
        etcd skydns.test skydns_zonea.test skydns_zoneb.test skydns_zoned.test \
         in-addr.arpa example.test empty.test void.test wrong.test {
            endpoint {$ETCD}
            min-lease-ttl 20
            max-lease-ttl 100
            fallthrough empty.test
        }
        forward . {$UPSTREAM}
    }";

/// Names and values. Those of the first part are from CoreDNS's own tests. The provider *coredns* of ExternalDNS 0.22 has
/// written the last part, with `OWNER`, but for the names `out` and `grouped`.
const RECORDS: &str = r#"
    a.server1.dev.region1.skydns.test {"host":"dev.server1","port":8080}
    a.server1.prod.region1.skydns.test {"host":"10.0.0.1","port":8080}
    b.server1.prod.region1.skydns.test {"host":"10.0.0.2","port":8080}
    b.server6.prod.region1.skydns.test {"host":"::1","port":8080}
    a.txt.server1.prod.region1.skydns.test {"text":"sometext"}
    b.txt.server1.prod.region1.skydns.test {"text":"moretext"}
    cname.prod.region1.skydns.test {"host":"unresolvable.skydns.test"}
    priority.skydns.test {"host":"priority.server1","priority":333,"port":8080}
    a.sub.region1.skydns.test {"host":"sub.server1","port":0}
    b.sub.region1.skydns.test {"host":"sub.server2","port":80}
    c.sub.region1.skydns.test {"host":"10.0.0.1","port":8080}
    a.targetstrip.skydns.test {"host":"10.0.0.1","port":8080,"targetstrip":1}
    b.cname.skydns.test {"host":"a.cname.skydns.test"}
    a.cname.skydns.test {"host":"b.cname.skydns.test"}
    a.ns.dns.skydns.test {"host":"10.0.0.2"}
    b.ns.dns.skydns.test {"host":"10.0.0.3"}
    ns1.c.ns.dns.skydns.test {"host":"10.0.0.4","targetstrip":1}
    ns2.c.ns.dns.skydns.test {"host":"10.0.0.5","targetstrip":1}
    x.skydns_zonea.test {"host":"10.0.0.2"}
    y.skydns_zonea.test {"host":"10.0.0.3"}
    x.skydns_zoneb.test {"host":"10.0.0.2"}
    apex.dns.skydns_zoneb.test {"host":"10.0.0.4"}
    x.skydns_zoned.test {"host":"10.0.0.2"}
    a1.apex.dns.skydns_zoned.test {"host":"10.0.0.4"}
    a3.apex.dns.skydns_zoned.test {"host":"2003::8:1"}
    1.0.0.10.in-addr.arpa {"host":"reverse.example.com"}
    a.server1.dev.region2.skydns.test {"host":"cname1.region2.skydns.test"}
    cname1.region2.skydns.test {"host":"cname2.region2.skydns.test"}
    cname2.region2.skydns.test {"host":"cname3.region2.skydns.test"}
    cname3.region2.skydns.test {"host":"endpoint.region2.skydns.test"}
    endpoint.region2.skydns.test {"host":"10.240.0.1"}
    region2.skydns.test {"host":"mainendpoint.region2.skydns.test"}
    cname2.region3.skydns.test {"host":"cname1.region3.skydns.test"}
    cname1.region3.skydns.test {"host":"endpoint.region3.skydns.test"}
    endpoint.region3.skydns.test {"host":"","text":"SOME-RECORD-TEXT"}
    a.dom.skydns.test {"host":"127.0.0.1","group":"g1"}
    b.sub.dom.skydns.test {"host":"127.0.0.2","group":"g1"}
    a.dom2.skydns.test {"host":"127.0.0.1","group":"g1"}
    b.sub.dom2.skydns.test {"host":"127.0.0.2","group":""}
    a.dom1.skydns.test {"host":"127.0.0.1","group":"g1"}
    b.sub.dom1.skydns.test {"host":"127.0.0.2","group":"g2"}
    a.dom3.skydns.test {"text":"foo","group":"g1"}
    b.sub.dom3.skydns.test {"text":"bar","group":"g1"}
    deep.sub.dom4.skydns.test {"host":"127.0.0.1","group":"g1"}
    a.dom4.skydns.test {"host":"127.0.0.2"}
    z.sub.dom4.skydns.test {"host":"127.0.0.3","group":"g2"}
    a.mail.skydns.test {"host":"mx.skydns.test","priority":50,"mail":true}
    b.mail.skydns.test {"host":"b.example.org","priority":50,"mail":true}
    a.mx.skydns.test {"host":"a.ipaddr.skydns.test","priority":30,"mail":true}
    a.mx2.skydns.test {"host":"a.ipaddr.skydns.test","mail":true}
    b.mx2.skydns.test {"host":"b.ipaddr.skydns.test","mail":true}
    a.mx3.skydns.test {"host":"a.ipaddr.skydns.test","priority":20,"mail":true}
    b.mx3.skydns.test {"host":"a.ipaddr.skydns.test","priority":30,"mail":true}
    c.mx4.skydns.test {"host":"10.0.0.9","priority":30,"mail":true,"targetstrip":1}
    a.ipaddr.skydns.test {"host":"172.16.1.1"}
    b.ipaddr.skydns.test {"host":"172.16.1.2"}
    large.skydns.test {"text":"LARGE"}
    whole.skydns.test {"text":"WHOLE"}
    http.multiport.http.skydns.test {"host":"10.11.11.10","port":80}
    https.multiport.http.skydns.test {"host":"10.11.11.10","port":443}

    out.skydns.test {"host":"b.example.org"}
    chain.skydns.test {"host":"alias.example.org","ttl":77}
    lost.skydns.test {"host":"nothing.example.org"}
    failing.skydns.test {"host":"x.servfail.test"}
    way.skydns.test {"host":"out.skydns.test"}
    a.outside.skydns.test {"host":"b.example.org","port":53,"weight":30}
    b.outside.skydns.test {"host":"b.example.org","port":54,"weight":10}
    c.outside.skydns.test {"host":"alias.example.org","port":55,"weight":3,"priority":20}
    below.self.skydns.test {"host":"deep.below.self.skydns.test"}
    texthost.skydns.test {"host":"a.example.org","text":"with a host"}
    textip.skydns.test {"host":"10.1.1.1","text":"with an address"}
    escapes.skydns.test {"text":"a\\\"b\\065 c"}
    twice.a.skydns.test {"host":"10.1.1.2","ttl":5}
    twice.b.skydns.test {"host":"10.1.1.2","ttl":500}
    mapped.skydns.test {"host":"::ffff:10.1.1.3"}
    noport.skydns.test {"host":"10.1.1.4","port":-1}
    weights.w1.skydns.test {"host":"10.1.1.5","port":1,"weight":1}
    weights.w2.skydns.test {"host":"10.1.1.6","port":2,"weight":1000}
    case.skydns.test {"HOST":"10.1.1.7","Ttl":44}
    key.over.skydns.test {"host":"10.1.1.8"}
    over.skydns.test {"host":"10.1.1.9"}
    nothing.skydns.test {}
    null.skydns.test null
    bad.wrong.test nonsense
    good.wrong.test {"host":"10.2.2.2"}

    myservice.example.test {"host":"10.0.0.10"}
    1b133ca0.a-nginx.example.test {"text":"OWNER","targetstrip":1}
    3d7bf313.cdn.example.test {"host":"nginx.example.test","targetstrip":1}
    7b6f06bb.cname-cdn.example.test {"text":"OWNER","targetstrip":1}
    1f2cd7f0.nginx.example.test {"host":"172.18.0.2","text":"OWNER","ttl":60,"targetstrip":1}
    5bbc07f7.nginx.example.test {"host":"172.18.0.3","ttl":60,"targetstrip":1}
    26d38eac.v6.example.test {"host":"2001:db8::1","targetstrip":1}
    2.0.18.172.in-addr.arpa {"host":"nginx.example.test"}
    22aa33bb.out.example.test {"host":"b.example.org","targetstrip":1,"owner":"default"}
    44bb55cc.grouped.example.test {"host":"192.0.2.90","group":"blue","targetstrip":1}
    44bb55cd.grouped.example.test {"host":"192.0.2.91","group":"blue","targetstrip":1}
"#;

/// The text that ExternalDNS has about the owner of a record.
const OWNER: &str =
    r#"\"heritage=external-dns,external-dns/owner=default,external-dns/resource=service/default/nginx\""#;

const QUESTIONS: &str = "
    a.server1.dev.region1.skydns.test. SRV
    a.SERVer1.dEv.region1.skydns.tEst. SRV
    doesnotexist.skydns.test. A
    doesnotexist.skydns.test. SOA
    a.server1.prod.region1.skydns.test. A each
    a.server1.prod.region1.skydns.test. SRV
    b.server6.prod.region1.skydns.test. AAAA
    b.server6.prod.region1.skydns.test. SRV
    server1.prod.region1.skydns.test. A
    server1.prod.region1.skydns.test. AAAA
    server1.prod.region1.skydns.test. TXT
    server1.prod.region1.skydns.test. HTTPS
    server1.prod.region1.skydns.test. ANY
    server1.prod.region1.skydns.test. SOA
    server1.prod.region1.skydns.test. NS
    server1.prod.region1.skydns.test. CNAME
    server1.prod.region1.skydns.test. PTR
    priority.skydns.test. SRV
    sub.region1.skydns.test. SRV
    sub.region1.skydns.test. A
    targetstrip.skydns.test. SRV
    cname.prod.region1.skydns.test. A
    cname.prod.region1.skydns.test. CNAME
    txt.server1.prod.region1.skydns.test. TXT
    *.region1.skydns.test. SRV tcp
    prod.any.skydns.test. SRV
    a.*.prod.region1.skydns.test. A
    a.any.prod.region1.skydns.test. A
    *.nowhere.skydns.test. A
    x.*.skydns.test. A
    a.cname.skydns.test. A
    skydns.test. NS each
    skydns.test. SOA
    skydns.test. MX
    skydns.test. CNAME
    skydns_zonea.test. A
    skydns_zonea.test. NS
    skydns_zoneb.test. A
    skydns_zoneb.test. AAAA
    skydns_zoned.test. A
    skydns_zoned.test. AAAA
    skydns_zoned.test. SRV
    1.0.0.10.in-addr.arpa. PTR
    2.0.0.10.in-addr.arpa. PTR
    1.0.0.10.in-addr.arpa. A
    a.server1.dev.region2.skydns.test. SRV
    a.server1.dev.region2.skydns.test. A
    region2.skydns.test. CNAME
    region2.skydns.test. A
    cname2.region3.skydns.test. TXT
    endpoint.region3.skydns.test. CNAME
    endpoint.region3.skydns.test. A
    dom.skydns.test. A
    dom1.skydns.test. A
    dom2.skydns.test. A
    dom3.skydns.test. TXT
    dom4.skydns.test. A
    a.mail.skydns.test. MX
    mail.skydns.test. MX
    mx.skydns.test. MX
    mx.skydns.test. A
    mx2.skydns.test. MX
    mx3.skydns.test. MX
    mx4.skydns.test. MX
    a.server1.dev.region1.skydns.test. MX
    large.skydns.test. TXT
    large.skydns.test. TXT tcp
    whole.skydns.test. TXT
    multiport.http.skydns.test. A
    multiport.http.skydns.test. SRV
    out.skydns.test. A each
    out.skydns.test. AAAA
    out.skydns.test. TXT
    OUT.skydns.test. A
    chain.skydns.test. A
    lost.skydns.test. A
    failing.skydns.test. A
    way.skydns.test. A
    outside.skydns.test. SRV
    below.self.skydns.test. A
    self.skydns.test. A
    texthost.skydns.test. A
    texthost.skydns.test. TXT
    texthost.skydns.test. CNAME
    textip.skydns.test. A
    textip.skydns.test. TXT
    escapes.skydns.test. TXT
    a.skydns.test. A
    mapped.skydns.test. A
    mapped.skydns.test. AAAA
    noport.skydns.test. SRV
    noport.skydns.test. A
    weights.w1.skydns.test. SRV
    *.w2.skydns.test. SRV
    case.skydns.test. A
    over.skydns.test. A
    over.skydns.test. PTR
    nothing.skydns.test. A
    null.skydns.test. A
    lease.skydns.test. A
    shortlease.skydns.test. A
    longlease.skydns.test. A
    ttllease.skydns.test. A
    myservice.example.test. A
    nginx.example.test. A
    nginx.example.test. TXT
    nginx.example.test. CNAME
    nginx.example.test. SRV
    a-nginx.example.test. TXT
    a-nginx.example.test. A
    v6.example.test. AAAA
    v6.example.test. SRV
    cdn.example.test. A
    cdn.example.test. AAAA
    cdn.example.test. SRV
    cname-cdn.example.test. TXT
    out.example.test. A
    out.example.test. AAAA
    grouped.example.test. A
    2.0.18.172.in-addr.arpa. PTR
    empty.test. A
    empty.test. NS
    void.test. A
    void.test. NS
    wrong.test. A
    good.wrong.test. A
    bad.wrong.test. A
    a.example.org. A";

fn key(name: &str) -> String {
    let labels: Vec<&str> = name.rsplit('.').collect();
    format!("/skydns/{}", labels.join("/"))
}

/// Writes the records. The longest text of a record has several strings.
fn write_records(etcd: &EtcdServer) {
    let (large, whole) = ("0".repeat(600), "0".repeat(510));
    for line in RECORDS.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (name, value) = line.split_once(' ').unwrap();
        let value = value.replace("LARGE", &large).replace("WHOLE", &whole).replace("OWNER", OWNER);
        etcd.write(&[(&key(name), Some(&value))]);
    }
    for (name, seconds, value) in [
        ("lease", 60, r#"{"host":"10.3.3.1"}"#),
        ("shortlease", 15, r#"{"host":"10.3.3.2"}"#),
        ("longlease", 5000, r#"{"host":"10.3.3.3"}"#),
        ("ttllease", 5000, r#"{"host":"10.3.3.4","ttl":33}"#),
    ] {
        etcd.write_with_lease(&key(&format!("{name}.skydns.test")), value, seconds);
    }
}

/// Returns the reply with 0 as the serial of SOA records: CoreDNS's is the present time.
fn without_serial(mut reply: Reply) -> Reply {
    let message = reply.answer.as_ref().and_then(|bytes| Message::from_vec(bytes).ok());
    if let Some(mut message) = message {
        let mut records = message.authorities.iter_mut().chain(&mut message.answers);
        if let Some(RData::SOA(soa)) =
            records.find_map(|record| matches!(record.data, RData::SOA(_)).then_some(&mut record.data))
        {
            soa.serial = 0;
            reply.answer = Some(message.to_vec().unwrap());
        }
    }
    reply
}

#[tokio::test]
async fn etcd_is_answered_from_as_by_coredns() {
    let etcd = EtcdServer::start();
    write_records(&etcd);
    let upstreams = Upstreams::start().await;
    let site = upstreams.name(CorefileDir::new(COREFILE, &[])).with("ETCD", etcd.url());
    let (coredns, subject) =
        tokio::join!(Server::start(Program::CoreDns, &site), Server::start(Program::subject(), &site));
    let mut expected = Expectations::of([GROUP]);
    let questions = table(QUESTIONS);
    eprintln!("corefile: etcd: {} questions", questions.len());
    for question in questions {
        let (of_coredns, of_subject) = tokio::join!(question.ask(&coredns), question.ask(&subject));
        let [of_coredns, of_subject] =
            [of_coredns, of_subject].map(|reply| Answer::of(&question, &without_serial(reply)));
        for difference in of_coredns.differences(&of_subject) {
            let sides =
                format!("       CoreDNS: {}\n    under test: {}", difference.coredns, difference.subject);
            expected.record(GROUP, &question.text, difference.field, &sides);
        }
    }
    expected.check();
}
