//! Seeds of the mutations: valid messages, messages with one defect, TCP streams, zone transfers, Corefiles, and rules of
//! *rewrite* and *template*.

use std::fs;

use data_encoding::BASE64;
use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::opt::EdnsOption;
use hickory_proto::rr::rdata::{self, CNAME, NS, NULL, SOA};
use hickory_proto::rr::{DNSClass, Name, RData, Record, RecordType};

use crate::key_file::SECRET;

/// The name of a seed's file, and its content.
pub type Seed = (&'static str, Vec<u8>);

fn name(text: &str) -> Name {
    Name::from_ascii(text).unwrap()
}

/// Returns a query for `name type` with RD.
fn query(question: &str) -> Message {
    let (owner, qtype) = question.split_once(' ').unwrap();
    let mut message = Message::query();
    message.metadata.id = 0x1234;
    message.metadata.recursion_desired = true;
    message.add_query(Query::query(name(owner), qtype.parse().unwrap()));
    message
}

fn bytes(message: &Message) -> Vec<u8> {
    message.to_vec().unwrap()
}

fn edns(size: u16, options: &[(u16, &[u8])]) -> Vec<u8> {
    let mut message = query("web.default.lb.internal. A");
    let mut edns = Edns::new();
    edns.set_max_payload(size).set_dnssec_ok(size > 1232);
    for (code, data) in options {
        edns.options_mut().insert(EdnsOption::Unknown(*code, data.to_vec()));
    }
    message.set_edns(edns);
    bytes(&message)
}

/// Returns a query with these bytes as its name.
fn query_with_name(labels: &[u8]) -> Vec<u8> {
    let mut message = bytes(&query(". A"));
    message.splice(12..13, labels.iter().copied());
    message
}

/// Returns the bytes of a query after `change`.
fn changed_query(question: &str, change: impl Fn(&mut Vec<u8>)) -> Vec<u8> {
    let mut message = bytes(&query(question));
    change(&mut message);
    message
}

pub fn questions() -> Vec<Seed> {
    let mut seeds: Vec<Seed> = [
        ("alias-a", "web.default.lb.internal. A"),
        ("alias-aaaa", "web-default.lb.internal. AAAA"),
        ("alias-any", "web-default.lb.internal. ANY"),
        ("alias-case", "WEB-Default.LB.Internal. CNAME"),
        ("alias-extra", "www.lb.internal. HTTPS"),
        ("alias-inside", "inside-default.lb.internal. MX"),
        ("alias-loop", "egg-default.lb.internal. A"),
        ("alias-long", "long-default.lb.internal. TXT"),
        ("addresses-a", "ips-default.lb.internal. A"),
        ("addresses-many", "many-default.lb.internal. AAAA"),
        ("addresses-wildcard", "what.ever.any.lb.internal. AAAA"),
        ("addresses-svcb", "ips.default.lb.internal. SVCB"),
        ("pending", "pending.default.lb.internal. A"),
        ("absent", "absent.default.lb.internal. A"),
        ("namespace", "default.lb.internal. A"),
        ("service", "_http._tcp.ips.default.lb.internal. SRV"),
        ("reserved", "_x.deleted.lb.internal. NAPTR"),
        ("reverse", "1.2.0.192.in-addr.arpa. PTR"),
        ("apex-soa", "lb.internal. SOA"),
        ("apex-ns", "lb.internal. NS"),
        ("apex-ds", "lb.internal. DS"),
        ("apex-axfr", "lb.internal. AXFR"),
        ("apex-dnskey", "lb.internal. DNSKEY"),
        ("glue", "ns.dns.lb.internal. A"),
        ("cluster-service", "web.a.svc.cluster.local. A"),
        ("cluster-srv", "_http._tcp.db.a.svc.cluster.local. SRV"),
        ("cluster-endpoint", "db-0.db.a.svc.cluster.local. AAAA"),
        ("cluster-endpoints", "db.a.svc.cluster.local. A"),
        ("cluster-pod", "10-1-0-9.a.pod.cluster.local. A"),
        ("cluster-reverse", "1.0.0.10.in-addr.arpa. PTR"),
        ("cluster-version", "dns-version.cluster.local. TXT"),
        ("cluster-absent", "none.a.svc.cluster.local. SRV"),
        ("elsewhere", "www.example.com. A"),
        ("root", ". NS"),
    ]
    .map(|(file, question)| (file, bytes(&query(question))))
    .into();
    seeds.extend(with_edns());
    seeds.extend(broken());
    seeds.extend(other_messages());
    seeds
}

fn with_edns() -> Vec<Seed> {
    let mut version = edns(1232, &[]);
    let place = version.len() - 5;
    version[place] = 1;
    let mut bad_option = edns(1232, &[(10, &[7; 8])]);
    let place = bad_option.len() - 9;
    bad_option[place] = 9;
    let mut two = edns(1232, &[]);
    let opt = two[two.len() - 11..].to_vec();
    two.extend(&opt);
    two[11] = 2;
    let mut misplaced = edns(1232, &[]);
    misplaced.swap(7, 11);
    vec![
        ("edns", edns(1232, &[])),
        ("edns-size-0", edns(0, &[])),
        ("edns-size-4096-do", edns(4096, &[])),
        ("edns-cookie", edns(1232, &[(10, &[7; 8])])),
        ("edns-server-cookie", edns(1232, &[(10, &[7; 24])])),
        ("edns-nsid", edns(1232, &[(3, &[])])),
        ("edns-subnet", edns(1232, &[(8, &[0, 1, 24, 0, 192, 0, 2])])),
        ("edns-subnet-ipv6", edns(1232, &[(8, &[0, 2, 56, 0, 0x20, 1, 0xd, 0xb8, 0, 0, 0])])),
        ("edns-subnet-bad", edns(1232, &[(8, &[0, 1, 255, 0, 192])])),
        (
            "edns-several",
            edns(65535, &[(3, &[]), (10, &[7; 8]), (11, &[0, 1]), (12, &[0; 32]), (15, &[0, 1, b'x'])]),
        ),
        ("edns-unknown", edns(512, &[(65001, b"what")])),
        ("edns-dau", edns(1232, &[(5, &[8, 13]), (6, &[1, 2]), (7, &[1])])),
        ("edns-version-1", version),
        ("edns-bad-option", bad_option),
        ("edns-two", two),
        ("edns-as-answer", misplaced),
    ]
}

fn broken() -> Vec<Seed> {
    const A: &str = "web.default.lb.internal. A";
    let longest: Vec<u8> = [63, 63, 63, 61]
        .iter()
        .flat_map(|n: &u8| [&[*n][..], &vec![b'a'; (*n).into()]].concat())
        .chain([0])
        .collect();
    vec![
        ("pointer-to-itself", query_with_name(&[0xc0, 12])),
        ("pointer-to-the-header", query_with_name(&[0xc0, 0])),
        ("pointer-forward", query_with_name(&[0xc0, 40])),
        ("pointer-behind-a-label", query_with_name(&[1, b'a', 0xc0, 12])),
        (
            "pointer-cut",
            changed_query(". A", |message| {
                message.truncate(12);
                message.push(0xc0)
            }),
        ),
        ("label-type-0x40", query_with_name(&[0x40, 0])),
        ("label-without-end", query_with_name(&[63, b'a'])),
        ("odd-letters", query_with_name(b"\x04\x00.\xff*\x07default\x02lb\x08internal\x00")),
        (
            "unknown-type",
            changed_query(A, |message| {
                let place = message.len() - 4;
                message[place] = 0xff
            }),
        ),
        ("name-of-255", query_with_name(&longest)),
        ("name-of-257", query_with_name(&[&[1, b'a'], &*longest].concat())),
        ("header-alone", changed_query(A, |message| message.truncate(12))),
        ("header-cut", changed_query(A, |message| message.truncate(11))),
        ("type-cut", changed_query(A, |message| message.truncate(message.len() - 3))),
        ("nothing", Vec::new()),
        ("behind-the-end", changed_query(A, |message| message.extend([0xff; 40]))),
        ("no-question", changed_query(A, |message| message[5] = 0)),
        (
            "two-questions",
            changed_query(A, |message| {
                message[5] = 2;
                message.extend([0xc0, 12, 0, 28, 0, 1])
            }),
        ),
        ("counts", changed_query(A, |message| message[4..12].fill(0xff))),
        (
            "record-longer-than-the-message",
            changed_query(A, |message| {
                message[7] = 1;
                message.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 5, 0xff, 0xff, 1, 2, 3, 4]);
            }),
        ),
    ]
}

/// Returns messages that aren't standard queries, or that carry additional records or flags.
fn other_messages() -> Vec<Seed> {
    let opcode = |opcode: u8| move |message: &mut Vec<u8>| message[2] |= opcode << 3;
    let zone = "lb.internal. SOA";
    let record = |owner: &str, data: RData| Record::from_rdata(name(owner), 5, data);
    let soa =
        record("lb.internal.", RData::SOA(SOA::new(name("ns.lb.internal."), name("root."), 1, 2, 3, 4, 5)));
    let mut notify = query(zone);
    notify.metadata.op_code = OpCode::Notify;
    notify.add_answer(soa.clone());
    let mut ixfr = query(zone);
    ixfr.queries[0].set_query_type(RecordType::IXFR);
    ixfr.add_authority(soa);
    let mut update = query(zone);
    update.metadata.op_code = OpCode::Update;
    update.add_authority(record("web.default.lb.internal.", RData::A(rdata::A::new(192, 0, 2, 66))));
    let mut answer = query("web.default.lb.internal. A");
    answer.metadata.message_type = MessageType::Response;
    let mut chaos = query("version.bind. TXT");
    chaos.queries[0].set_query_class(DNSClass::CH);
    // RFC 8945 section 4.2: key, type, class ANY, TTL, algorithm, time, fudge, MAC, id, error, other.
    let tsig = [
        &b"\x03key\x00\x00\xfa\x00\xff\x00\x00\x00\x00\x00\x2d\x0bhmac-sha256\x00"[..],
        &[0, 0, 0x65, 0, 0, 0, 1, 0x2c, 0, 16],
        &[7; 16],
        &[0x12, 0x34, 0, 0, 0, 0],
    ]
    .concat();
    vec![
        ("notify", bytes(&notify)),
        ("ixfr", bytes(&ixfr)),
        ("update", bytes(&update)),
        ("answer", bytes(&answer)),
        ("chaos", bytes(&chaos)),
        ("status", changed_query(zone, opcode(2))),
        ("opcode-15", changed_query(zone, opcode(15))),
        (
            "stateful",
            changed_query(zone, |message| {
                message.truncate(12);
                message[5] = 0;
                opcode(6)(message)
            }),
        ),
        (
            "tsig",
            changed_query("web.default.lb.internal. A", |message| {
                message[11] = 1;
                message.extend(&tsig)
            }),
        ),
        (
            "all-flags",
            changed_query("web.default.lb.internal. A", |message| {
                message[2] = 7;
                message[3] = 0xff
            }),
        ),
    ]
}

/// Returns files with keys.
/// Returns answers of etcd, and keys.
pub fn etcd() -> Vec<Seed> {
    let pair = |key: &str, value: &str| {
        let [key, value] = [key, value].map(|text| BASE64.encode(text.as_bytes()));
        format!(
            r#"{{"key":"{key}","create_revision":"7","mod_revision":"7","version":"1","value":"{value}","lease":"99"}}"#
        )
    };
    let header =
        r#""header":{"cluster_id":"14841639068965178418","member_id":"1","revision":"9","raft_term":"2"}"#;
    let (a, b) = (pair("/skydns/z/a", r#"{"host":"192.0.2.1"}"#), pair("/skydns/z/b", r#"{"host":"a.z"}"#));
    let page = format!(r#"{{{header},"kvs":[{a},{b}],"more":false,"count":"2"}}"#);
    let events = format!(r#"{{"kv":{a}}},{{"kv":{b}}},{{"type":"DELETE","kv":{b}}}"#);
    let change = format!(r#"{{"result":{{{header},"events":[{events}],"fragment":true}}}}"#);
    let values = [
        r#"key /skydns/z/w/a {"host":"192.0.2.1","ttl":60,"targetstrip":1}"#,
        r#"key /skydns/z/w/b {"host":"2001:db8::1","port":80,"priority":5,"weight":7,"group":"g"}"#,
        r#"key /skydns/z/w/t {"text":"a text of \\065 words","group":"h"}"#,
        r#"key /skydns/z/m {"Host":"mail.example.","MAIL":true,"port":-1}"#,
        r#"key /skydns/z/dns/ns/n {"host":"192.0.2.53","targetstrip":2}"#,
        r#"key /skydns/z/dns/apex {"host":"192.0.2.9"}"#,
        r#"key /skydns/z/l {"host":"m.z"}"#,
        r#"key /skydns/z/any/* {"host":null,"text":"x"}"#,
    ];
    vec![
        ("page", page.clone().into_bytes()),
        ("watch", format!("{page}\n{change}").into_bytes()),
        ("values", values.join("\n").into_bytes()),
        (
            "loop",
            b"key /skydns/z/a {\"host\":\"b.z\"}\nkey /skydns/z/b {\"host\":\"a.z\",\"port\":1}".to_vec(),
        ),
    ]
}

pub fn key_files() -> Vec<Seed> {
    let bind = format!("key \"xfr.example\" {{\n\talgorithm hmac-sha256;\n\tsecret \"{SECRET}\";\n}};\n");
    let several =
        format!("key a. {{ secret {SECRET}; }};\nkey b {{ algorithm hmac-sha1; secret \"AAAA\"; }}\n");
    let comments = format!("# one\n// two\n/* three\n*/ {bind} // four");
    [("bind", bind), ("several", several), ("comments", comments)]
        .map(|(name, text)| (name, text.into_bytes()))
        .into()
}

/// Returns replies of upstreams to a query for `t.example`.
pub fn replies() -> Vec<Seed> {
    let record = |owner: &str, data: RData| Record::from_rdata(name(owner), 3600, data);
    let alias = |owner: &str, target: &str| record(owner, RData::CNAME(CNAME(name(target))));
    let v4 = |owner: &str, last: u8| record(owner, RData::A(rdata::A::new(192, 0, 2, last)));
    let v6 = |owner: &str| record(owner, RData::AAAA(rdata::AAAA("2001:db8::1".parse().unwrap())));
    let soa = || {
        record("example.", RData::SOA(SOA::new(name("ns.example."), name("root.example."), 1, 2, 3, 4, 3600)))
    };
    let ns = || record("com.", RData::NS(NS(name("ns.com."))));
    let reply = |qtype: RecordType, rcode, answers: Vec<Record>, authorities: Vec<Record>| {
        let mut message = Message::error_msg(0x1234, OpCode::Query, rcode);
        message.add_query(Query::query(name("t.example."), qtype));
        message.add_answers(answers).add_authorities(authorities);
        bytes(&message)
    };
    use RecordType::{A, AAAA, HTTPS};
    use ResponseCode::{NXDomain, NoError, ServFail};
    let chain =
        || vec![alias("t.example.", "u.example."), alias("u.example.", "v.example."), v4("v.example.", 1)];
    let mut dname = reply(A, NoError, chain(), vec![]);
    // `example. DNAME other.`, before the other answers.
    dname.splice(27..27, *b"\xc0\x0e\x00\x27\x00\x01\x00\x00\x0e\x10\x00\x07\x05other\x00");
    dname[7] += 1;
    // RFC 9460 section 2.2: priority, target, alpn=h2, ipv4hint.
    let mut https = reply(HTTPS, NoError, vec![], vec![]);
    https.extend(b"\xc0\x0c\x00\x41\x00\x01\x00\x00\x0e\x10\x00\x12\x00\x01\x00\x00\x01\x00\x03\x02h2\x00\x04\x00\x04\xc0\x00\x02\x01");
    https[7] = 1;
    // An SRV record whose target mustn't be compressed (RFC 3597 section 4), and an MX record whose exchange may be.
    let mut compressed = reply(RecordType::ANY, NoError, vec![v4("t.example.", 1)], vec![]);
    compressed
        .extend(b"\xc0\x0c\x00\x21\x00\x01\x00\x00\x0e\x10\x00\x0a\x00\x01\x00\x02\x00\x50\x01u\xc0\x0e");
    compressed.extend(b"\xc0\x0c\x00\x0f\x00\x01\x00\x00\x0e\x10\x00\x04\x00\x0a\xc0\x0c");
    compressed[7] = 3;
    // An OPT record with an extended error, before another record.
    let mut errors = reply(A, NoError, vec![v4("t.example.", 1)], vec![]);
    errors.extend(b"\x00\x00\x29\x04\xd0\x00\x00\x80\x00\x00\x0a\x00\x0f\x00\x06\x00\x03gone");
    errors.extend(b"\xc0\x0e\x00\x01\x00\x01\x00\x00\x0e\x10\x00\x04\xc0\x00\x02\x02");
    errors[11] = 2;
    // An NSEC record in the answer for the parent zone `internal.` may name `lb.internal.` (RFC 4034 section 4.1).
    let mut parent_soa = soa();
    parent_soa.name = name("internal.");
    let rdata = NULL::with(b"\x01z\x02lb\x08internal\x00\x00\x01\x40".to_vec());
    let nsec = record("web.lb.internal.", RData::Unknown { code: RecordType::NSEC, rdata });
    let mut truncated = reply(A, NoError, (0..9).map(|i| v4("t.example.", i)).collect(), vec![]);
    truncated[2] |= 2;
    let mut with_edns = Message::from_vec(&reply(A, NoError, chain(), vec![])).unwrap();
    with_edns.set_edns(Edns::new());
    vec![
        ("a", reply(A, NoError, vec![v4("t.example.", 1), v4("t.example.", 2)], vec![])),
        ("aaaa", reply(AAAA, NoError, vec![v6("t.example.")], vec![])),
        ("chain", reply(A, NoError, chain(), vec![])),
        ("chain-backwards", reply(A, NoError, chain().into_iter().rev().collect(), vec![])),
        ("compressed", compressed),
        ("dname", dname),
        ("edns", bytes(&with_edns)),
        ("errors", errors),
        ("https", https),
        ("lie", reply(A, NoError, vec![v4("t.example.", 1), v4("web.lb.internal.", 66)], vec![ns()])),
        (
            "loop",
            reply(
                A,
                NoError,
                vec![alias("t.example.", "u.example."), alias("u.example.", "t.example.")],
                vec![],
            ),
        ),
        (
            "into-the-zone",
            reply(
                A,
                NoError,
                vec![alias("t.example.", "web.lb.internal."), v4("web.lb.internal.", 66)],
                vec![],
            ),
        ),
        ("nodata", reply(A, NoError, vec![], vec![soa()])),
        (
            "nodata-behind-an-alias",
            reply(AAAA, NoError, vec![alias("t.example.", "u.example.")], vec![soa()]),
        ),
        ("nxdomain", reply(A, NXDomain, vec![], vec![soa()])),
        (
            "proof-in-the-zone",
            reply(A, NXDomain, vec![alias("t.example.", "x.internal.")], vec![parent_soa, nsec]),
        ),
        ("referral", reply(A, NoError, vec![], vec![ns()])),
        ("servfail", reply(A, ServFail, vec![], vec![])),
        ("servfail-bare", bytes(&Message::error_msg(0x1234, OpCode::Query, ServFail))),
        ("truncated-at-a-record", truncated.clone()),
        ("truncated-within", truncated[..60].to_vec()),
    ]
}

/// Returns the Corefiles in fuzz/seeds/corefile: fuzzing starts with the same ones.
pub fn zones() -> Vec<Seed> {
    const HEAD: &str = "$TTL 1h\n@ SOA ns host (7 ; serial\n 2h 1h 4w 1m)\n NS ns\nns A 192.0.2.53\n";
    let zone = |lines: &str| format!("{HEAD}{lines}").into_bytes();
    vec![
        (
            "names",
            zone(
                "www CNAME b\nb A 192.0.2.1\n MX 10 b\n*.wild TXT \"a b\" c\\065\nchild NS ns.child\nns.child AAAA 2001:db8::1\nold DNAME new\nx.new CNAME www.example.net.\n",
            ),
        ),
        (
            "types",
            zone(
                "srv SRV 1 2 3 b\nb HTTPS 1 . alpn=h2 port=1\nl LOC 52 N 4 E 0m\na APL 1:10.0.0.0/8\nc CAA 0 issue \"x\"\nn NAPTR 1 2 \"s\" \"a\" \"\" b\nh HIP 2 2001 AAAA b\ne EUI48 00-00-5e-00-53-2a\nu TYPE65280 \\# 2 ab cd\n",
            ),
        ),
        (
            "directives",
            zone(
                "$ORIGIN sub.example.org.\n$TTL 5\n@ A 192.0.2.2\n$GENERATE 1-20/3 g${1,3,x} A 10.0.0.$\n$ORIGIN example.org.\nwww 30 IN A 192.0.2.3\n",
            ),
        ),
        (
            "signed",
            zone(
                "@ NSEC b NS SOA RRSIG NSEC\n@ RRSIG SOA 13 2 60 20300101000000 20200101000000 1 @ AAAA\nb MX 1 b\nb NSEC @ MX NSEC\nb RRSIG MX 13 3 60 20300101000000 20200101000000 1 @ AAAA\n@ DNSKEY 257 3 13 AAAA\n",
            ),
        ),
    ]
}

/// Returns the TCP streams of transfers of `example.org`.
pub fn transfers() -> Vec<Seed> {
    let record = |owner: &str, data: RData| Record::from_rdata(name(owner), 3600, data);
    let soa = || {
        let (server, host) = (name("ns.example.org."), name("host.example.org."));
        record("example.org.", RData::SOA(SOA::new(server, host, 7, 7200, 3600, 86_400, 60)))
    };
    let v4 = |owner: &str, last: u8| record(owner, RData::A(rdata::A::new(192, 0, 2, last)));
    let message = |records: Vec<Record>| {
        let mut message = Message::new(0x1234, MessageType::Response, OpCode::Query);
        message.add_query(Query::query(name("example.org."), RecordType::AXFR));
        message.add_answers(records);
        let bytes = bytes(&message);
        [&u16::try_from(bytes.len()).unwrap().to_be_bytes(), &bytes[..]].concat()
    };
    let ns = || record("example.org.", RData::NS(NS(name("ns.example.org."))));
    let alias = || record("www.example.org.", RData::CNAME(CNAME(name("a.example.org."))));
    let other = |rtype: u16, data: &[u8]| {
        record("a.example.org.", RData::Unknown { code: rtype.into(), rdata: NULL::with(data.to_vec()) })
    };
    let several = [vec![soa(), ns()], vec![v4("ns.example.org.", 53), alias()], vec![soa()]];
    let types = vec![
        soa(),
        other(33, b"\x00\x01\x00\x02\x00\x50\x01b\x07example\x03org\x00"),
        other(64, b"\x00\x01\x00\x00\x01\x00\x03\x02h2"),
        other(257, b"\x00\x05issuex"),
        other(65_280, b"\xab\xcd"),
        soa(),
    ];
    let addresses = [vec![soa()], (1..100).map(|last| v4("many.example.org.", last)).collect(), vec![soa()]];
    vec![
        ("one-message", message(vec![soa(), ns(), v4("a.example.org.", 1), alias(), soa()])),
        ("several-messages", several.map(message).concat()),
        ("types", message(types)),
        ("addresses", message(addresses.concat())),
    ]
}

pub fn corefiles() -> Vec<Vec<u8>> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/seeds/corefile");
    let mut paths: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.into_iter().map(|path| fs::read(path).unwrap()).collect()
}

/// Returns TCP streams of one, two and three queries, with the queries of [`questions`].
pub fn streams() -> Vec<Seed> {
    let mut all = questions();
    let frames: Vec<Vec<u8>> = all
        .iter()
        .map(|(_, query)| [&u16::try_from(query.len()).unwrap().to_be_bytes(), &**query].concat())
        .collect();
    for (number, (_, stream)) in all.iter_mut().enumerate() {
        *stream = (0..=number % 3).flat_map(|next| frames[(number + next) % frames.len()].clone()).collect();
    }
    all
}

/// Returns streams of DNS over QUIC with the queries of [`questions`], and with one that has edns-tcp-keepalive.
pub fn quic_streams() -> Vec<Seed> {
    let mut all = questions();
    all.push(("keepalive", edns(1232, &[(11, &[0, 100])])));
    for (_, message) in &mut all {
        message.iter_mut().take(2).for_each(|byte| *byte = 0);
        let length = u16::try_from(message.len()).unwrap();
        message.splice(0..0, length.to_be_bytes());
    }
    all
}

/// Returns connections of HTTP/1.1 and HTTP/2 with queries for `web.default.lb.internal`.
pub fn https() -> Vec<Seed> {
    let message = bytes(&query("web.default.lb.internal. A"));
    let path = format!("/dns-query?dns={}", data_encoding::BASE64URL_NOPAD.encode(&message));
    let get = format!("GET {path} HTTP/1.1\r\nHost: dns.example\r\nAccept: application/dns-message\r\n\r\n");
    let head = get.replace("GET", "HEAD").replace("1.1", "1.0");
    let post = "POST /dns-query HTTP/1.1\r\nHost: dns.example\r\nContent-Type: application/dns-message\r\n";
    let posted = [format!("{post}Content-Length: {}\r\n\r\n", message.len()).as_bytes(), &message].concat();
    let chunk = [format!("{:x}\r\n", message.len()).as_bytes(), &message, b"\r\n0\r\n\r\n"].concat();
    let chunked =
        [format!("{post}Expect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n").as_bytes(), &chunk]
            .concat();
    // RFC 9113 section 4.1: length, type, flags, stream.
    let frame = |kind: u8, flags: u8, stream: u32, payload: &[u8]| {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
    };
    // RFC 7541 section 6.2.2; the values have less than 127 bytes.
    let field = |name: &str, value: &str| {
        let text = |text: &str| [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat();
        [vec![0], text(name), text(value)].concat()
    };
    let fields = |method, path: &str| {
        [(":method", method), (":scheme", "http"), (":authority", "a"), (":path", path)]
            .map(|(name, value)| field(name, value))
            .concat()
    };
    let start = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &*frame(4, 0, 0, &[0, 4, 0, 0, 0xff, 0xff])].concat();
    let get_2 =
        [&*start, &frame(1, 5, 1, &fields("GET", &path)), &frame(1, 5, 3, &fields("HEAD", &path))].concat();
    let typed = [fields("POST", "/dns-query"), field("content-type", "application/dns-message")].concat();
    let post_2 =
        [&*start, &frame(1, 4, 1, &typed), &frame(0, 1, 1, &message), &frame(6, 0, 0, &[7; 8])].concat();
    let (first, second) = typed.split_at(typed.len() / 2);
    let parts = [
        &*start,
        &frame(8, 0, 0, &[0, 0, 1, 0]),
        &frame(1, 0, 1, first),
        &frame(9, 4, 1, second),
        &frame(3, 0, 1, &[0, 0, 0, 8]),
        &frame(7, 0, 0, &[0; 8]),
    ];
    vec![
        ("get", get.repeat(2).into_bytes()),
        ("head", head.into_bytes()),
        ("post", posted.repeat(2)),
        ("chunked", chunked),
        ("http2-get", get_2),
        ("http2-post", post_2),
        ("http2-frames", parts.concat()),
    ]
}

/// Returns queries with expressions of *view*: all operators and functions.
pub fn expressions() -> Vec<Seed> {
    let of = |expression: &str| format!("www.example.org AAAA\n{expression}").into_bytes();
    vec![
        ("address", of("incidr(client_ip(), '192.0.2.0/24') && !incidr(server_ip(), '10.0.0.0/8')")),
        ("address-by-metadata", of("incidr(metadata('a/b'), '::/0') || incidr(client_ip(), name())")),
        ("choice", of("type() == 'A' ? do() : name() endsWith '.org.' ? port() != '1' : true ?: false")),
        ("escapes", of("'\\x41\\u00e9\\u{1f600}\\101\\n\\'' != \"'\" and `a``b` <= 'b'")),
        ("lists", of("type() in ['A', 'AAAA',] && 1 in [2, 0x1, 0b11] and true not in [do(), false]")),
        ("name", of("name() matches '^(www|ftp)\\\\.example\\\\.[a-z]+\\\\.$' && name() startsWith 'w'")),
        ("nested", of("((((not (1 < 2) == (2 >= 1)) || class() contains 'N')))")),
        ("numbers", of("id() == 4660 && opcode() <= 0 && size() > 1_7 && bufsize() != 512")),
        ("server", of("server_port() == '0' || proto() == 'tcp' && name() not matches 'x*y'")),
    ]
}

/// Returns queries with the rules of a server block: all kinds of rules of *rewrite*, and most options of *template*.
pub fn rules() -> Vec<Seed> {
    const ADDRESS: &str = "template ANY ANY {\n answer \"{{ .Name }} 60 IN A 192.0.2.1\"\n}\n";
    let with_address = |query: &str, rule: &str| format!("{query}\n{rule}\n{ADDRESS}").into_bytes();
    let plain = |text: &str| text.as_bytes().to_vec();
    vec![
        (
            "cname",
            with_address(
                "a.example.org A",
                "rewrite cname suffix old.example new.example\ntemplate IN A example.org {\n answer \"{{ .Name }} CNAME x.old.example\"\n}",
            ),
        ),
        ("exact", with_address("a.example.net A", "rewrite name a.example.net b.example.org")),
        (
            "prefix",
            with_address(
                "old.example.net A",
                "rewrite continue name prefix old new answer auto\nrewrite ttl prefix new 5-30",
            ),
        ),
        (
            "regex",
            with_address(
                "ftp-us-west-1.example.org SRV",
                "rewrite stop {\n name regex (.*)-(us-west-1)\\.example\\.org {1}.service.{2}.consul\n answer name (.*)\\.service\\.(us-west-1)\\.consul {1}-{2}.example.org\n answer value (.*)\\.service\\.(us-west-1)\\.consul {1}-{2}.example.org\n}\ntemplate IN SRV consul {\n answer \"{{ .Name }} SRV 1 2 53 t.service.us-west-1.consul\"\n}",
            ),
        ),
        ("substring", with_address("a.b.a.example. A", "rewrite name substring a ccc answer auto")),
        (
            "suffix",
            with_address(
                "a.example.net AAAA",
                "rewrite name suffix .example.net .example.org answer auto\nrewrite type AAAA A",
            ),
        ),
        (
            "rcode",
            plain("a.example TXT\nrewrite rcode regex .* SERVFAIL NXDOMAIN\nrewrite class IN CH\nwhoami\n"),
        ),
        (
            "groups",
            plain(
                "ip-10-1-2-3.example.org A\ntemplate IN A example.org {\n match \"^ip-(?P<a>[0-9]+)-(?P<b>[0-9]+)-(?P<c>[0-9]+)-(?P<d>[0-9]+)[.]example[.]org[.]$\"\n answer \"{{ .Name }} 60 IN A {{ .Group.a }}.{{ .Group.b }}.{{ .Group.c }}.{{ .Group.d }}\"\n fallthrough\n}\nwhoami\n",
            ),
        ),
        (
            "functions",
            plain(
                "ab-12.example.org A\ntemplate IN A example.org {\n match \"^(?P<n>[a-z]+)-([0-9]+)[.]\"\n answer \"{{ .Name }} 60 IN A {{- $n := .Group.n -}} {{ if and (eq (len $n) 2) (not (eq $n `x`)) }} {{ printf `%d.%v.%s` 192 0 `2` }}.{{ index .Match 2 | printf `%s` }}{{ else if or (gt (len $n) 9) false }}192.0.2.1{{ else }}{{ $n | len | printf `192.0.2.%d` }}{{ end -}}\"\n}\n",
            ),
        ),
        (
            "hexadecimal",
            plain(
                "host-0a0b0c0d.example.org A\ntemplate IN A {\n match \"^host-(..)(..)(..)(..)[.]\"\n answer \"{{ .Name }} A {{ range $i, $hex := .Match }}{{ if $i }}{{ if gt $i 1 }}.{{ end }}{{ parseInt $hex 16 8 }}{{ end }}{{ end }}\"\n}\n",
            ),
        ),
        (
            "reverse",
            plain(
                "4.3.2.10.in-addr.arpa PTR\ntemplate IN PTR 10.0.0.0/8 {\n match \"^([0-9]+)[.]([0-9]+)[.]([0-9]+)[.]10[.]in-addr[.]arpa[.]$\"\n answer \"{{ .Name }} 1h30m IN PTR ip-10-{{ index .Match 3 }}-{{ index .Match 2 }}-{{ index .Match 1 }}.example.org.\"\n}\n",
            ),
        ),
        (
            "sections",
            plain(
                "x.corp MX\ntemplate ANY ANY corp home lan {\n rcode NXDOMAIN\n answer \"{{ .Name }} MX 10 mx.{{ .Zone }}\"\n authority \"{{ .Zone }} 60 IN SOA ns.{{ .Zone }} hostmaster.{{ .Zone }} (1 3600 600 86400 60)\"\n additional \"mx.{{ .Zone }} A 192.0.2.3\"\n additional \"{{ .Name }} TXT \\\"{{ .Remote }} {{ .Type }} {{ .Class }} {{ .Regex }}\\\"\"\n ederror 15 \"not here\"\n}\n",
            ),
        ),
    ]
}
