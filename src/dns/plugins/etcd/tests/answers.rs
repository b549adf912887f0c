//! What the keys say, without etcd; `tests/e2e/corefile/etcd.rs` compares it with CoreDNS.

use std::time::Duration;

use hickory_proto::rr::Name;
use tokio::time::Instant;

use crate::dns::message::presentation::parse_name;
use crate::dns::plugins::etcd::answer::{LeaseTtls, Outcome, Part, Question, answer};
use crate::dns::plugins::etcd::gateway::KeyValue;
use crate::dns::plugins::etcd::index::{Index, KeyRange};

const LEASE_TTLS: LeaseTtls = LeaseTtls { min: 30, max: 300 };

struct Keys {
    index: Index,
    range: KeyRange,
    zone: Name,
}

impl Keys {
    /// Takes lines of names and values, with `@lease` in between.
    fn new(lines: &str) -> Self {
        let zone = parse_name("z.").unwrap();
        let range = KeyRange::new("/skydns", std::slice::from_ref(&zone)).unwrap();
        let mut index = Index::default();
        for line in lines.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let (name, value) = line.split_once(' ').unwrap();
            let (name, lease) = name.split_once('@').unwrap_or((name, "0"));
            let key = range.path(&parse_name(name).unwrap()).unwrap().text.into_bytes();
            let found = KeyValue { key, value: value.into(), mod_revision: 1, lease: lease.parse().unwrap() };
            index.put(&found, &range).unwrap();
        }
        Self { index, range, zone }
    }

    fn ask(&self, question: &str) -> String {
        self.ask_at(question, Instant::now())
    }

    fn ask_at(&self, question: &str, now: Instant) -> String {
        let (name, qtype) = question.split_once(' ').unwrap();
        let (name, qtype) = (parse_name(name).unwrap(), qtype.parse().unwrap());
        let question = Question { zone: &self.zone, name: &name, qtype };
        match answer(&self.index, &self.range, LEASE_TTLS, question, now).map(|answer| answer.outcome) {
            Ok(Outcome::Parts { answers, additionals }) => {
                let section = |parts: &[Part]| parts.iter().map(show).collect::<Vec<_>>().join(", ");
                format!("{} | {}", section(&answers), section(&additionals))
                    .trim_end_matches(" | ")
                    .to_owned()
            }
            Ok(Outcome::Soa) => "SOA".to_owned(),
            Ok(Outcome::Empty) => "empty".to_owned(),
            Ok(Outcome::Missing { exists: true }) => "missing, but exists".to_owned(),
            Ok(Outcome::Missing { exists: false }) => "missing".to_owned(),
            Err(failure) => failure.to_string(),
        }
    }
}

fn show(part: &Part) -> String {
    match part {
        Part::Record(record) => record.to_string().replace(" IN ", " "),
        Part::Outside(outside) => {
            let alias = outside.alias.as_ref().map_or(String::new(), |alias| format!("{alias} and "));
            format!("{alias}{} {} outside", outside.target, outside.qtype).replace(" IN ", " ")
        }
    }
}

#[test]
fn keys_below_a_name_are_its_records() {
    let keys = Keys::new(
        r#"
        a.web.z {"host":"192.0.2.1","ttl":60}
        b.web.z {"host":"192.0.2.2","port":80,"priority":5}
        c.web.z {"host":"2001:db8::1"}
        t.web.z {"text":"some text"}
        alias.z {"host":"web.z"}
        far.z {"host":"www.example.org"}
        loop1.z {"host":"loop2.z"}
        loop2.z {"host":"loop1.z"}
        x.apex.dns.z {"host":"192.0.2.9"}
        n.ns.dns.z {"host":"192.0.2.53"}
        ptr.z {"host":"one.example."}
        m.mail.z {"host":"web.z","mail":true,"priority":20}
        e.ent.z {"host":"192.0.2.7"}
        "#,
    );
    for (question, expected) in [
        ("web.z. A", "web.z. 60 A 192.0.2.1, web.z. 300 A 192.0.2.2"),
        ("WEB.z. AAAA", "WEB.z. 300 AAAA 2001:db8::1"),
        ("web.z. TXT", "web.z. 300 TXT some text"),
        ("web.z. MX", "empty"),
        ("web.z. HTTPS", "empty"),
        ("b.web.z. SRV", "b.web.z. 300 SRV 5 100 80 b.web.z. | b.web.z. 300 A 192.0.2.2"),
        ("alias.z. A", "alias.z. 300 CNAME web.z., web.z. 60 A 192.0.2.1, web.z. 300 A 192.0.2.2"),
        ("far.z. A", "far.z. 300 CNAME www.example.org. and www.example.org. A outside"),
        ("loop1.z. A", "empty"),
        ("alias.z. CNAME", "alias.z. 300 CNAME web.z."),
        ("web.z. CNAME", "missing, but exists"),
        ("ent.z. PTR", "missing, but exists"),
        ("ptr.z. PTR", "ptr.z. 300 PTR one.example."),
        ("z. A", "z. 300 A 192.0.2.9"),
        ("z. NS", "z. 300 NS n.ns.dns.z. | n.ns.dns.z. 300 A 192.0.2.53"),
        ("z. SOA", "SOA"),
        ("web.z. SOA", "empty"),
        ("mail.z. MX", "mail.z. 300 MX 20 web.z. | web.z. 60 A 192.0.2.1, web.z. 300 A 192.0.2.2"),
        ("no.z. A", "missing"),
        ("no.z. HTTPS", "missing"),
        ("b.*.z. A", "b.*.z. 300 A 192.0.2.2"),
        ("c.any.z. AAAA", "c.any.z. 300 AAAA 2001:db8::1"),
        ("x.*.z. TXT", "empty"),
        ("*.no.z. A", "missing"),
    ] {
        assert_eq!(keys.ask(question), expected, "{question}");
    }
}

#[test]
fn zone_without_keys_exists() {
    let keys = Keys::new("");
    for question in ["z. A", "z. NS", "z. CNAME"] {
        assert_eq!(keys.ask(question), "missing, but exists", "{question}");
    }
    assert_eq!(keys.ask("z. MX"), "missing, but exists");
}

#[test]
fn groups_of_the_shortest_key_are_answered() {
    let keys = Keys::new(
        r#"
        a.one.z {"host":"192.0.2.1","group":"g1"}
        b.sub.one.z {"host":"192.0.2.2","group":"g1"}
        a.two.z {"host":"192.0.2.1","group":"g1"}
        b.sub.two.z {"host":"192.0.2.2"}
        a.three.z {"host":"192.0.2.1","group":"g1"}
        b.sub.three.z {"host":"192.0.2.2","group":"g2"}
        a.four.z {"host":"192.0.2.1","group":"g1"}
        b.four.z {"host":"192.0.2.2","group":"g2"}
        "#,
    );
    for (name, expected) in [("one", "1 2"), ("two", "1 2"), ("three", "1"), ("four", "1 2")] {
        let records: Vec<String> =
            expected.split(' ').map(|last| format!("{name}.z. 300 A 192.0.2.{last}")).collect();
        assert_eq!(keys.ask(&format!("{name}.z. A")), records.join(", "));
    }
}

#[test]
fn targets_lack_labels_and_weights_are_shares() {
    let keys = Keys::new(
        r#"
        a.s.z {"host":"192.0.2.1","port":80,"targetstrip":1}
        b.s.z {"host":"192.0.2.2","port":80,"targetstrip":1,"weight":300}
        c.s.z {"host":"srv.example.","port":90,"priority":20}
        d.s.z {"host":"192.0.2.4","port":-1}
        e.s.z {"host":"192.0.2.5","port":80,"targetstrip":9,"weight":1}
        "#,
    );
    assert_eq!(
        keys.ask("s.z. SRV"),
        "s.z. 300 SRV 10 19 80 s.z., s.z. 300 SRV 20 100 90 srv.example., s.z. 300 SRV 10 1 80 e.s.z. | \
         s.z. 300 A 192.0.2.1, s.z. 300 A 192.0.2.2, srv.example. A outside, srv.example. AAAA outside, \
         e.s.z. 300 A 192.0.2.5"
    );
}

#[test]
fn ttl_is_at_most_what_is_left_of_a_lease() {
    let mut keys = Keys::new(
        r#"
        new.z@1 {"host":"192.0.2.1"}
        long.z@2 {"host":"192.0.2.2"}
        short.z@3 {"host":"192.0.2.3"}
        both.z@2 {"host":"192.0.2.4","ttl":45}
        forever.z@4 {"host":"192.0.2.5"}
        "#,
    );
    let (now, seconds) = (Instant::now(), Duration::from_secs);
    keys.index.note_lease(2, seconds(100), seconds(100), now);
    keys.index.note_lease(3, seconds(10), seconds(10), now);
    keys.index.note_lease(4, seconds(9000), seconds(9000), now);
    let ttl = |name: &str, at| {
        keys.ask_at(&format!("{name}.z. A"), now + seconds(at)).split(' ').nth(1).unwrap().to_owned()
    };
    assert_eq!(
        ["new", "long", "short", "both", "forever"].map(|name| ttl(name, 0)),
        ["30", "100", "30", "45", "300"]
    );
    assert_eq!([60, 200].map(|at| ttl("long", at)), ["40", "30"]);
}

#[test]
fn names_with_wrong_keys_alone_fail() {
    let keys = Keys::new(
        r#"
        a.web.z {"host":"192.0.2.1"}
        b.web.z {"host":5}
        bad.z nothing
        "#,
    );
    assert_eq!(keys.ask("web.z. A"), "web.z. 300 A 192.0.2.1");
    assert_eq!(keys.ask("bad.z. A"), "the key \"/skydns/z/bad\" is left out, see the log");
    assert_eq!(keys.ask("z. NS"), "missing, but exists");
}

#[test]
fn work_for_a_question_is_limited() {
    let names = |number: usize| {
        format!("n{number:04}.many.z {{\"host\":\"192.0.{}.{}\"}}\n", number / 256, number % 256)
    };
    let mut keys = Keys::new(&(0..4096).map(names).collect::<String>());
    assert_eq!(keys.ask("many.z. A").matches("192.0.").count(), 4096);
    assert_eq!(keys.ask("n0001.*.z. A"), "n0001.*.z. 300 A 192.0.0.1");
    let more = KeyValue {
        key: b"/skydns/z/many/x".to_vec(),
        value: br#"{"host":"192.0.2.1"}"#.to_vec(),
        ..KeyValue::default()
    };
    keys.index.put(&more, &keys.range).unwrap();
    let too_many = "the name has more than 4096 keys";
    assert_eq!(keys.ask("many.z. A"), too_many);
    assert_eq!(keys.ask("n0001.*.z. A"), too_many);
    assert_eq!(keys.ask("many.z. AAAA"), "empty");
    assert_eq!(keys.ask("x.many.z. A"), "x.many.z. 300 A 192.0.2.1");
    // Each of these names leads to all of the next one.
    let fans: String = (0..8).flat_map(|level| (0..8).map(move |way| {
        format!("w{way}.fan{level}.z {{\"host\":\"w{way}x.fan{}.z\"}}\nw{way}x.fan{level}.z {{\"host\":\"fan{}.z\"}}\n", level + 1, level + 1)
    })).collect();
    let keys = Keys::new(&(fans + "fan8.z {\"host\":\"192.0.2.1\"}"));
    assert_eq!(keys.ask("fan0.z. A"), too_many);
}

#[test]
fn alias_of_too_many_keys_fails() {
    let names = |number: usize| {
        format!("n{number}.many.z {{\"host\":\"192.0.{}.{}\"}}\n", number / 256, number % 256)
    };
    let keys = Keys::new(&((0..4097).map(names).collect::<String>() + "alias.z {\"host\":\"many.z\"}"));
    assert_eq!(keys.ask("alias.z. A"), "the name has more than 4096 keys");
    let names = |number: usize| format!("n{number}.many.z {{\"host\":\"2001:db8::{number:x}\"}}\n");
    let keys = Keys::new(&(0..=1 << 15).map(names).collect::<String>());
    assert_eq!(keys.ask("many.z. A"), "the name has more than 4096 keys", "they are read");
}

#[test]
fn texts_are_cut_and_unescaped_as_by_coredns() {
    let long = "0".repeat(600);
    let keys = Keys::new(&format!(
        "long.z {{\"text\":\"{long}\"}}\nwhole.z {{\"text\":\"{}\"}}\nescaped.z {{\"text\":\"a\\\\\\\"b\\\\065\\\\\"}}",
        &long[..255]
    ));
    let lengths = |name: &str| {
        let name = parse_name(name).unwrap();
        let question = Question { zone: &keys.zone, name: &name, qtype: hickory_proto::rr::RecordType::TXT };
        let found = answer(&keys.index, &keys.range, LEASE_TTLS, question, Instant::now()).unwrap();
        let Outcome::Parts { answers, .. } = found.outcome else { panic!() };
        let Part::Record(record) = &answers[0] else { panic!() };
        let hickory_proto::rr::RData::TXT(txt) = &record.data else { panic!() };
        txt.txt_data.iter().map(|text| text.len()).collect::<Vec<_>>()
    };
    assert_eq!(lengths("long.z."), [255, 255, 90]);
    assert_eq!(lengths("whole.z."), [255, 0]);
    assert_eq!(keys.ask("escaped.z. TXT"), "escaped.z. 300 TXT a\"bA");
}
