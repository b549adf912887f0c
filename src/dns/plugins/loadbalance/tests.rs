use std::collections::BTreeSet;

use hickory_proto::rr::rdata::{CNAME, MX, TXT};
use hickory_proto::rr::{Name, RData};

use crate::dns::plugins::loadbalance::*;
use crate::dns::plugins::tests::support::TestServer;

fn record(text: &str) -> Record {
    let name = Name::from_ascii("a.example.").unwrap();
    let data = match text {
        "alias" => RData::CNAME(CNAME(name.clone())),
        "text" => RData::TXT(TXT::new(vec!["text".to_owned()])),
        _ => match text.strip_prefix("mx") {
            Some(preference) => RData::MX(MX::new(preference.parse().unwrap(), name.clone())),
            None if text.contains(':') => RData::AAAA(text.parse().unwrap()),
            None => RData::A(text.parse().unwrap()),
        },
    };
    Record::from_rdata(name, 5, data)
}

fn section(text: &str) -> Vec<Record> {
    text.split_whitespace().map(record).collect()
}

fn show(section: &[Record]) -> String {
    let name = |record: &Record| match &record.data {
        RData::CNAME(_) => "alias".to_owned(),
        RData::TXT(_) => "text".to_owned(),
        RData::MX(mx) => format!("mx{}", mx.preference),
        data => data.ip_addr().unwrap().to_string(),
    };
    section.iter().map(name).collect::<Vec<_>>().join(" ")
}

/// Returns the distinct results of changing a section 200 times.
fn tries(change: impl Fn(&mut Vec<Record>), text: &str) -> BTreeSet<String> {
    let once = || {
        let mut records = section(text);
        change(&mut records);
        show(&records)
    };
    (0..200).map(|_| once()).collect()
}

fn all(of: &[&str]) -> BTreeSet<String> {
    of.iter().map(ToString::to_string).collect()
}

#[test]
fn addresses_and_exchangers_are_shuffled_after_aliases() {
    assert_eq!(tries(shuffle, "1.0.0.1 alias ::2"), all(&["alias 1.0.0.1 ::2", "alias ::2 1.0.0.1"]));
    assert_eq!(
        tries(shuffle, "mx1 mx2 1.0.0.1 text"),
        all(&["text 1.0.0.1 mx1 mx2", "text 1.0.0.1 mx2 mx1"])
    );
    assert_eq!(tries(shuffle, "1.0.0.1 1.0.0.2 1.0.0.3").len(), 6);
    assert_eq!(tries(shuffle, ""), all(&[""]));
}

#[test]
fn weights_change_only_the_first_address() {
    let weighted = |qtype, text: &str| {
        let change = |section: &mut Vec<Record>| {
            let mut reply = TestServer::block("whoami").request("a.example. A").reply("");
            reply.records.answers = mem::take(section);
            put_weighted_first(&Weights::default(), qtype, &mut reply);
            *section = mem::take(&mut reply.records.answers);
        };
        tries(change, text)
    };
    assert_eq!(
        weighted(RecordType::A, "1.0.0.1 alias 1.0.0.2 1.0.0.3"),
        all(&[
            "alias 1.0.0.1 1.0.0.2 1.0.0.3",
            "alias 1.0.0.2 1.0.0.1 1.0.0.3",
            "alias 1.0.0.3 1.0.0.2 1.0.0.1",
        ])
    );
    assert_eq!(weighted(RecordType::SRV, "text alias"), all(&["text alias"]), "no addresses");
    assert_eq!(weighted(RecordType::MX, "1.0.0.1 1.0.0.2"), all(&["1.0.0.1 1.0.0.2"]));
}

#[test]
fn preferred_networks_come_first_in_their_order() {
    let networks: Vec<IpNet> =
        ["10.1.0.9/16", "2001:db8::/32", "10.0.0.0/8"].map(|net| net.parse().unwrap()).into();
    let preferred = tries(
        |section| prefer(&networks, section),
        "text 192.0.2.1 mx1 10.2.0.1 2001:db8::1 10.1.0.2 alias 10.1.0.1 192.0.2.0",
    );
    assert_eq!(
        preferred,
        all(&["alias 10.1.0.2 10.1.0.1 2001:db8::1 10.2.0.1 192.0.2.1 192.0.2.0 mx1 text"])
    );
}

#[tokio::test]
async fn only_successful_answers_are_reordered() {
    // The records of `whoami` are an address and an SRV record, which is put before the address.
    let changed = "NOERROR aa | | | _udp.a. 0 IN SRV 0 0 5353 ., a. 0 IN A 10.0.0.1";
    for lines in ["loadbalance", "loadbalance round_robin"] {
        let context = TestServer::block(&format!("{lines}\nwhoami"));
        assert_eq!(context.ask("a. A").await, changed);
        assert_ne!(context.ask("a. AXFR").await, changed);
    }
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("weights");
    std::fs::write(&file, "a.\n192.0.2.1 3\n").unwrap();
    for options in ["", "{\nreload 0s\n}"] {
        let context =
            TestServer::block(&format!("loadbalance weighted {} {options}\nwhoami", file.display()));
        assert_eq!(context.ask("a. A").await, changed);
        assert_ne!(context.ask("a. MX").await, changed);
    }
    let line = format!("loadbalance weighted {} {{\nprefer 10.0.0.0/8\n}}", file.display());
    let preferred = "NOERROR aa | | | a. 0 IN A 10.0.0.1, _udp.a. 0 IN SRV 0 0 5353 .";
    assert_eq!(TestServer::block(&format!("{line}\nwhoami")).ask("a. A").await, preferred);
}

#[tokio::test(start_paused = true)]
async fn changed_weight_file_is_loaded_and_invalid_file_is_ignored() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("weights");
    let weights = ArcSwap::from_pointee(Weights::default());
    let until = async |text: &str| {
        let expected = Weights::parse(text.as_bytes()).unwrap();
        while **weights.load() != expected {
            tokio::time::sleep(RELOAD_INTERVAL).await;
        }
    };
    // Renaming is atomic: a reader must never find an empty file, which is valid and has no weights.
    let write = |text: &str| {
        let new = directory.path().join("new");
        std::fs::write(&new, text).and_then(|()| std::fs::rename(&new, &path))
    };
    let changes = async {
        write("a\n192.0.2.1 3").unwrap();
        until("a\n192.0.2.1 3").await;
        write("a\n192.0.2.1 0").unwrap();
        tokio::time::sleep(3 * RELOAD_INTERVAL).await;
        until("a\n192.0.2.1 3").await;
        std::fs::remove_file(&path).unwrap();
        tokio::time::sleep(3 * RELOAD_INTERVAL).await;
        until("a\n192.0.2.1 3").await;
        write("a\n192.0.2.1 9").unwrap();
        until("a\n192.0.2.1 9").await;
    };
    tokio::select! {
        () = weights::follow(&path, RELOAD_INTERVAL, None, &weights) => {}
        () = changes => {}
    }
}

#[tokio::test]
async fn missing_weight_file_is_an_error_only_if_reload_is_off() {
    let context = TestServer::block("loadbalance weighted /nowhere/weights\nwhoami");
    assert!(context.ask("a. A").await.starts_with("NOERROR aa"));
    let error = TestServer::error("loadbalance weighted /nowhere/weights {\nreload 0s\n}");
    assert!(error.starts_with("Corefile:2:22: /nowhere/weights can't be read: No such file"), "{error}");
}

#[test]
fn invalid_lines_are_rejected_with_their_position() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("weights");
    std::fs::write(&file, "a.\n192.0.2.1 0\n").unwrap();
    let file = file.display();
    for (lines, expected) in [
        ("loadbalance random", "Corefile:2:13: \"random\" isn't round_robin or weighted".to_owned()),
        (
            "loadbalance round_robin x",
            "Corefile:2:25: round_robin takes no argument, and here is \"x\"".to_owned(),
        ),
        ("loadbalance weighted", "Corefile:2:13: weighted needs a file with the weights".to_owned()),
        ("loadbalance weighted a b", "Corefile:2:24: weighted takes one file, and here is \"b\"".to_owned()),
        (
            "loadbalance {\nreload 5s\n}",
            "Corefile:3:1: reload is for loadbalance weighted FILE alone".to_owned(),
        ),
        (
            "loadbalance weighted a {\nreload soon\n}",
            "Corefile:3:8: \"soon\" isn't a duration such as 30s, 1m30s or 500ms".to_owned(),
        ),
        (
            "loadbalance weighted a {\nreload\n}",
            "Corefile:3:1: reload needs a duration such as 30s".to_owned(),
        ),
        ("loadbalance {\nprefer\n}", "Corefile:3:1: prefer needs networks such as 10.0.0.0/8".to_owned()),
        (
            "loadbalance {\nprefer 10.0.0.1\n}",
            "Corefile:3:8: \"10.0.0.1\" isn't a network such as 10.0.0.0/8".to_owned(),
        ),
        (
            "loadbalance {\nsticky\n}",
            "Corefile:3:1: loadbalance has no option \"sticky\"; its options are reload, prefer".to_owned(),
        ),
        (
            &format!("loadbalance weighted {file}"),
            format!("Corefile:2:22: {file}:2: \"0\" isn't a weight from 1 to 255"),
        ),
    ] {
        assert_eq!(TestServer::error(lines), expected);
    }
}
