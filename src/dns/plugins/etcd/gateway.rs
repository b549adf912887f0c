//! The answers of etcd's gRPC gateway, in JSON (`/v3/kv/range`, `/v3/watch` and others).

use std::fmt;
use std::num::ParseIntError;

use data_encoding::BASE64;
use serde::Deserialize;
use serde::de::{Deserializer, Error, Visitor};

/// The part of an answer that all answers have.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
pub struct Header {
    #[serde(default, deserialize_with = "number")]
    pub cluster_id: u64,
    #[serde(default, deserialize_with = "number")]
    pub revision: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub struct KeyValue {
    #[serde(deserialize_with = "bytes")]
    pub key: Vec<u8>,
    #[serde(default, deserialize_with = "bytes")]
    pub value: Vec<u8>,
    #[serde(default, deserialize_with = "number")]
    pub mod_revision: u64,
    /// 0 without a lease.
    #[serde(default, deserialize_with = "number")]
    pub lease: i64,
}

/// The answer to a question for a range of keys.
#[derive(Debug, Default, Deserialize)]
pub struct Page {
    pub header: Header,
    #[serde(default)]
    pub kvs: Vec<KeyValue>,
    /// Whether the range has further keys.
    #[serde(default)]
    pub more: bool,
    #[serde(default, deserialize_with = "number")]
    pub count: u64,
}

#[derive(Debug, Deserialize)]
pub struct Token {
    pub token: String,
}

/// The remaining time of a lease.
#[derive(Debug, Default, Deserialize)]
pub struct LeaseTime {
    /// In seconds; -1 if the lease has expired.
    #[serde(rename = "TTL", default, deserialize_with = "number")]
    pub left: i64,
    #[serde(rename = "grantedTTL", default, deserialize_with = "number")]
    pub granted: i64,
}

/// An error of etcd, with a code of gRPC.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Refusal {
    #[serde(default, alias = "grpc_code")]
    pub code: u32,
    #[serde(default)]
    pub message: String,
}

/// A line of a watch.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WatchLine {
    Result(WatchAnswer),
    Error(Refusal),
}

#[derive(Debug, Default, Deserialize)]
pub struct WatchAnswer {
    pub header: Header,
    /// Whether the watch begins.
    #[serde(default)]
    pub created: bool,
    /// Whether the watch ends.
    #[serde(default)]
    pub canceled: bool,
    #[serde(default)]
    pub cancel_reason: String,
    /// The first revision whose changes etcd still has, if the watch has ended because of that.
    #[serde(default, deserialize_with = "number")]
    pub compact_revision: u64,
    /// Whether the next answer has further changes of the same revisions.
    #[serde(default)]
    pub fragment: bool,
    #[serde(default)]
    pub events: Vec<Event>,
}

#[derive(Debug, Deserialize)]
pub struct Event {
    #[serde(default)]
    pub r#type: EventType,
    pub kv: KeyValue,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "UPPERCASE")]
pub enum EventType {
    /// JSON leaves it out.
    #[default]
    Put,
    Delete,
}

impl WatchLine {
    /// Parses a line.
    ///
    /// # Errors
    /// If it isn't an answer of a watch.
    pub fn parse(line: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(line)
    }
}

/// Reads a number of 64 bits, which the gateway writes as a string.
fn number<'de, D: Deserializer<'de>, N: TryFrom<i128>>(deserializer: D) -> Result<N, D::Error> {
    struct Number;
    impl Visitor<'_> for Number {
        type Value = i128;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a number")
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<i128, E> {
            text.parse().map_err(|error: ParseIntError| E::custom(error))
        }

        fn visit_i64<E>(self, number: i64) -> Result<i128, E> {
            Ok(number.into())
        }

        fn visit_u64<E>(self, number: u64) -> Result<i128, E> {
            Ok(number.into())
        }
    }
    let number = deserializer.deserialize_any(Number)?;
    number.try_into().map_err(|_| D::Error::custom(format!("the number {number} is out of range")))
}

fn bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    struct Base64;
    impl Visitor<'_> for Base64 {
        type Value = Vec<u8>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a string in Base64")
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<Vec<u8>, E> {
            BASE64.decode(text.as_bytes()).map_err(E::custom)
        }
    }
    deserializer.deserialize_str(Base64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_with_numbers_as_strings() {
        let page = r#"{"header":{"cluster_id":"1423","revision":"7","raft_term":"2"},"kvs":[
            {"key":"L2E=","create_revision":"7","mod_revision":"7","version":"1","value":"e30=","lease":"99"}],
            "more":true,"count":"3"}"#;
        let page: Page = serde_json::from_str(page).unwrap();
        assert_eq!(page.header, Header { cluster_id: 1423, revision: 7 });
        let KeyValue { key, value, mod_revision, lease } = &page.kvs[0];
        assert_eq!((&**key, &**value, *mod_revision, *lease), (&b"/a"[..], &b"{}"[..], 7, 99));
        assert_eq!((page.more, page.count), (true, 3));
        let pair: KeyValue = serde_json::from_str(r#"{"key":"L2E=","lease":"-5"}"#).unwrap();
        assert_eq!(pair.lease, -5);
        let left: LeaseTime = serde_json::from_str(r#"{"header":{},"ID":"99","TTL":"-1"}"#).unwrap();
        assert_eq!((left.left, left.granted), (-1, 0));
    }

    #[test]
    fn lines_of_a_watch_are_changes_ends_or_errors() {
        let line = |text: &str| WatchLine::parse(text.as_bytes());
        let changes = r#"{"result":{"header":{"revision":8},"events":[{"kv":{"key":"L2E="}},{"type":"DELETE","kv":{"key":"L2I="}}]}}"#;
        let Ok(WatchLine::Result(answer)) = line(changes) else { panic!() };
        assert_eq!(answer.header.revision, 8);
        assert_eq!(
            answer.events.iter().map(|event| event.r#type).collect::<Vec<_>>(),
            [EventType::Put, EventType::Delete]
        );
        let end = r#"{"result":{"header":{},"canceled":true,"compact_revision":"5","cancel_reason":"x"}}"#;
        let Ok(WatchLine::Result(answer)) = line(end) else { panic!() };
        assert!(answer.canceled && answer.compact_revision == 5);
        for error in [
            r#"{"error":{"grpc_code":14,"http_code":503,"message":"m"}}"#,
            r#"{"error":{"code":14,"message":"m"}}"#,
        ] {
            let Ok(WatchLine::Error(Refusal { code: 14, message })) = line(error) else { panic!() };
            assert_eq!(message, "m");
        }
        for wrong in [
            "",
            "{}",
            "[]",
            r#"{"result":{"header":{"revision":"-1"}}}"#,
            r#"{"result":{"header":{},"events":[{"kv":{"key":"?"}}]}}"#,
        ] {
            assert!(line(wrong).is_err(), "{wrong}");
        }
    }
}
