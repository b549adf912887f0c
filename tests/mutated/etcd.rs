//! Properties of the keys of etcd, shared by the property test and the fuzz target.

use std::time::Duration;

use hickory_proto::rr::{Name, RecordType};
use hickory_proto::serialize::binary::BinEncodable;
use lb_linker::dns::plugins::etcd::answer::{LeaseTtls, Outcome, Part, Question, answer};
use lb_linker::dns::plugins::etcd::gateway::{EventType, KeyValue, Page, WatchLine};
use lb_linker::dns::plugins::etcd::index::{Index, KeyRange, Listing};
use tokio::time::Instant;

const TYPES: [RecordType; 9] = [
    RecordType::A,
    RecordType::AAAA,
    RecordType::CNAME,
    RecordType::MX,
    RecordType::NS,
    RecordType::PTR,
    RecordType::SOA,
    RecordType::SRV,
    RecordType::TXT,
];
/// The maximum number of keys that are asked for.
const MAX_ASKED: usize = 20;

/// Takes lines: a page of a list, lines of a watch, or `key`, a path and a value. Then asks for all names. Returns
/// the kind of outcome, or the violated property.
pub fn try_keys(bytes: &[u8]) -> Result<&'static str, String> {
    let zone = Name::from_ascii("z.").unwrap();
    let range = KeyRange::new("/skydns", std::slice::from_ref(&zone)).unwrap();
    let mut index = Index::default();
    for line in bytes.split(|byte| *byte == b'\n') {
        take_line(line, &range, &mut index);
    }
    let mut keys: Vec<Vec<u8>> = Vec::new();
    keys.extend(index.at_or_below("/skydns/z").take(MAX_ASKED).map(|entry| entry.key.to_vec()));
    let mut has_records = false;
    for name in keys.iter().filter_map(|key| range.name(key)).chain([zone.clone()]) {
        for qtype in TYPES {
            has_records |= ask(&index, &range, Question { zone: &zone, name: &name, qtype })?;
        }
    }
    for key in &keys {
        index.delete(key);
        if std::str::from_utf8(key).is_ok_and(|key| index.at(key).is_some()) {
            return Err(format!("{key:?} is still there"));
        }
    }
    Ok(match (keys.is_empty(), has_records) {
        (true, _) => "no keys",
        (false, true) => "records",
        (false, false) => "no records",
    })
}

fn take_line(line: &[u8], range: &KeyRange, index: &mut Index) {
    if let Some(pair) = line.strip_prefix(b"key ") {
        let mut words = pair.splitn(2, |byte| *byte == b' ');
        let (key, value) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let found = KeyValue { key: key.to_vec(), value: value.to_vec(), mod_revision: 1, lease: 5 };
        let _ = index.put(&found, range);
        index.note_lease(5, Duration::from_secs(60), Duration::from_secs(60), Instant::now());
    } else if let Ok(WatchLine::Result(answer)) = WatchLine::parse(line) {
        for event in answer.events {
            match event.r#type {
                EventType::Put => drop(index.put(&event.kv, range)),
                EventType::Delete => index.delete(&event.kv.key),
            }
        }
    } else if let Ok(page) = serde_json::from_slice::<Page>(line) {
        let mut listing = Listing::default();
        if page.kvs.iter().all(|found| listing.add(found, false, range, index).is_ok()) {
            index.replace(listing);
        }
    }
}

/// Asks a question, and checks that the records can be sent. Returns whether there are any.
fn ask(index: &Index, range: &KeyRange, question: Question<'_>) -> Result<bool, String> {
    let lease_ttls = LeaseTtls { min: 30, max: 86400 };
    let Ok(answer) = answer(index, range, lease_ttls, question, Instant::now()) else { return Ok(false) };
    let Outcome::Parts { answers, additionals } = answer.outcome else { return Ok(false) };
    for part in answers.iter().chain(&additionals) {
        if let Part::Record(record) = part {
            record.to_bytes().map_err(|error| format!("{record}: {error}"))?;
        }
    }
    Ok(true)
}
