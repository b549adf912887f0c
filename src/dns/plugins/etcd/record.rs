//! The values of etcd's keys: SkyDNS's messages in JSON.

use std::fmt;
use std::net::IpAddr;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};

use crate::dns::message::presentation::{parse_name, unescape};
use crate::model::excerpt::{sentence, value};

/// The maximum size of a value, in bytes.
pub const MAX_VALUE: usize = 64 << 10;
/// CoreDNS's priority of a record that has none.
const PRIORITY: u16 = 10;
/// The maximum length of a string of a TXT record (RFC 1035 section 3.3), in bytes.
const MAX_STRING: usize = 255;
/// The port of a record without an SRV record.
const NO_PORT: i64 = -1;

/// A record.
#[derive(Debug, PartialEq, Eq)]
pub struct Service {
    pub host: Host,
    /// `None` if there is no SRV record.
    pub port: Option<u16>,
    pub priority: u16,
    /// 0 if it isn't set.
    pub weight: u32,
    pub text: Box<str>,
    /// Whether it is an MX record, too.
    pub mail: bool,
    /// In seconds; 0 if it isn't set.
    pub ttl: u32,
    /// The number of labels that targets of SRV, MX and NS records lack.
    pub target_strip: usize,
    pub group: Box<str>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Host {
    None,
    Address(IpAddr),
    /// A domain name, with or without the final dot.
    Name(Box<str>),
}

/// Why a value isn't a record.
#[derive(Debug, thiserror::Error)]
pub enum ValueError {
    #[error("its value has more than {MAX_VALUE} bytes")]
    TooLong,
    #[error("its value isn't a message of SkyDNS such as {{\"host\":\"192.0.2.1\"}}: {}", sentence(&.0.to_string()))]
    Json(#[from] serde_json::Error),
    #[error("its host {} is neither an IP address nor a domain name", value(.0))]
    Host(String),
    #[error("its {0} {1} isn't from 0 to {2}")]
    Number(&'static str, i64, u32),
}

/// The fields as they are in JSON. As in Go, the case of their names doesn't count, and the last one of several counts.
#[derive(Default)]
struct Message {
    host: String,
    port: i64,
    priority: i64,
    weight: i64,
    text: String,
    mail: bool,
    ttl: u32,
    target_strip: i64,
    group: String,
}

struct MessageVisitor;

impl<'de> Deserialize<'de> for Message {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(MessageVisitor)
    }
}

impl<'de> Visitor<'de> for MessageVisitor {
    type Value = Message;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Message, A::Error> {
        /// Reads a value; `null` leaves the field as it is.
        fn read<'de, T: Deserialize<'de>, A: MapAccess<'de>>(
            map: &mut A,
            to: &mut T,
        ) -> Result<(), A::Error> {
            if let Some(found) = map.next_value::<Option<T>>()? {
                *to = found;
            }
            Ok(())
        }
        let mut message = Message::default();
        while let Some(name) = map.next_key::<String>()? {
            match &*name.to_ascii_lowercase() {
                "host" => read(&mut map, &mut message.host)?,
                "port" => read(&mut map, &mut message.port)?,
                "priority" => read(&mut map, &mut message.priority)?,
                "weight" => read(&mut map, &mut message.weight)?,
                "text" => read(&mut map, &mut message.text)?,
                "mail" => read(&mut map, &mut message.mail)?,
                "ttl" => read(&mut map, &mut message.ttl)?,
                "targetstrip" => read(&mut map, &mut message.target_strip)?,
                "group" => read(&mut map, &mut message.group)?,
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(message)
    }
}

impl Service {
    /// Parses a value.
    ///
    /// # Errors
    /// If it isn't a message, or no DNS record can have its data.
    pub fn parse(bytes: &[u8]) -> Result<Self, ValueError> {
        if bytes.len() > MAX_VALUE {
            return Err(ValueError::TooLong);
        }
        let message = serde_json::from_slice::<Option<Message>>(bytes)?.unwrap_or_default();
        let number = |name, number: i64| {
            u16::try_from(number).map_err(|_| ValueError::Number(name, number, u16::MAX.into()))
        };
        let host = match message.host.parse::<IpAddr>() {
            Ok(ip) => Host::Address(ip.to_canonical()),
            Err(_) if message.host.is_empty() => Host::None,
            Err(_) if parse_name(&message.host).is_some() => Host::Name(message.host.into()),
            Err(_) => return Err(ValueError::Host(message.host)),
        };
        Ok(Self {
            host,
            port: Some(message.port)
                .filter(|port| *port != NO_PORT)
                .map(|port| number("port", port))
                .transpose()?,
            priority: match number("priority", message.priority)? {
                0 => PRIORITY,
                priority => priority,
            },
            weight: u32::try_from(message.weight)
                .map_err(|_| ValueError::Number("weight", message.weight, u32::MAX))?,
            text: message.text.into(),
            mail: message.mail,
            ttl: message.ttl,
            target_strip: usize::try_from(message.target_strip).unwrap_or_default(),
            group: message.group.into(),
        })
    }

    /// Returns the memory that isn't part of the struct, in bytes.
    #[must_use]
    pub fn heap_size(&self) -> usize {
        let host = if let Host::Name(name) = &self.host { name.len() } else { 0 };
        host + self.text.len() + self.group.len()
    }
}

/// Returns the strings of a text, of 255 bytes each. As in CoreDNS, a text of several whole strings has an empty one
/// at its end, and a backslash is an escape (RFC 1035 section 5.1).
#[must_use]
pub fn strings(text: &str) -> Vec<Vec<u8>> {
    let bytes = text.as_bytes();
    let mut strings: Vec<Vec<u8>> = bytes.chunks(MAX_STRING).map(unescaped).collect();
    if bytes.len().is_multiple_of(MAX_STRING) {
        strings.push(Vec::new());
    }
    strings
}

fn unescaped(mut bytes: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(bytes.len());
    while let Some((byte, rest)) = bytes.split_first() {
        bytes = rest;
        match byte {
            b'\\' => plain.extend(unescape(&mut bytes)),
            byte => plain.push(*byte),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    fn show(value: &str) -> String {
        match Service::parse(value.as_bytes()) {
            Ok(Service { host, port, priority, weight, text, mail, ttl, target_strip, group }) => format!(
                "{host:?} port {port:?} {priority} {weight} {text:?} mail {mail} ttl {ttl} strip {target_strip} group {group:?}"
            ),
            Err(error) => error.to_string(),
        }
    }

    const EMPTY: &str = "None port Some(0) 10 0 \"\" mail false ttl 0 strip 0 group \"\"";

    #[test]
    fn values_are_read_as_by_go() {
        for (value, expected) in [
            (
                r#"{"host":"192.0.2.1","port":8080,"priority":20,"weight":5,"text":"t","mail":true,"ttl":60,"targetstrip":1,"group":"g","more":[{}]}"#,
                "Address(192.0.2.1) port Some(8080) 20 5 \"t\" mail true ttl 60 strip 1 group \"g\"",
            ),
            ("{}", EMPTY),
            ("null", EMPTY),
            (r#"{"host":null,"TTL":null}"#, EMPTY),
            (r#"{"HOST":"a","Host":"b."}"#, &EMPTY.replacen("None", "Name(\"b.\")", 1)),
            (r#"{"host":"::ffff:192.0.2.1"}"#, &EMPTY.replacen("None", "Address(192.0.2.1)", 1)),
            (r#"{"host":"2001:db8::1"}"#, &EMPTY.replacen("None", "Address(2001:db8::1)", 1)),
            (r#"{"host":"192.0.2.01"}"#, &EMPTY.replacen("None", "Name(\"192.0.2.01\")", 1)),
            (r#"{"port":-1,"targetstrip":-5}"#, &EMPTY.replacen("Some(0)", "None", 1)),
        ] {
            assert_eq!(show(value), *expected, "{value}");
        }
    }

    #[test]
    fn values_that_arent_records_are_refused() {
        for (value, expected) in [
            (
                "",
                "its value isn't a message of SkyDNS such as {\"host\":\"192.0.2.1\"}: EOF while parsing a value",
            ),
            ("[]", "its value isn't a message of SkyDNS such as {\"host\":\"192.0.2.1\"}: invalid type"),
            (
                "{} x",
                "its value isn't a message of SkyDNS such as {\"host\":\"192.0.2.1\"}: trailing characters",
            ),
            (r#"{"port":"80"}"#, "its value isn't a message of SkyDNS"),
            (r#"{"port":8080.0}"#, "its value isn't a message of SkyDNS"),
            (r#"{"ttl":-1}"#, "its value isn't a message of SkyDNS"),
            (r#"{"host":"a..b"}"#, "its host \"a..b\" is neither an IP address nor a domain name"),
            (r#"{"port":65536}"#, "its port 65536 isn't from 0 to 65535"),
            (r#"{"priority":-2}"#, "its priority -2 isn't from 0 to 65535"),
            (r#"{"weight":-2}"#, "its weight -2 isn't from 0 to 4294967295"),
        ] {
            assert!(show(value).starts_with(expected), "{value}: {}", show(value));
        }
        let long = format!("{{\"text\":\"{}\"}}", "x".repeat(MAX_VALUE));
        assert_eq!(show(&long), "its value has more than 65536 bytes");
        let deep = format!("{{\"x\":{}}}", "[".repeat(MAX_VALUE - 10));
        assert!(show(&deep).starts_with("its value isn't a message of SkyDNS"), "{}", show(&deep));
    }
}
