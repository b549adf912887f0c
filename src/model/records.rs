//! TXT, SRV and MX records that an object declares for a name.

use std::borrow::Cow;
use std::fmt;

use hickory_proto::rr::Name;
use serde::{Deserialize, Serialize};

use crate::model::hostname::{Hostname, host_name};

/// Maximum number of records of a name and type.
pub const MAX_RECORDS: usize = 100;
/// Maximum size of the data of a name and type in bytes: the RRset fits into an answer over TCP.
pub const MAX_BYTES: usize = 16 << 10;
/// What the allocations of a record take beside its data, in bytes, roughly.
const ALLOCATIONS: usize = 64;
/// Maximum size of a string of a TXT record in bytes (RFC 1035 section 3.3.14).
const MAX_STRING: usize = 255;
/// Maximum length of the text of a record: each byte of a string takes four characters at most, as in `\255`.
pub const MAX_TEXT: usize = 4 * MAX_BYTES;

/// The records of a name, at most one set of each type.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Records(Vec<RecordSet>);

/// The records of a name and type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordSet {
    pub kind: RecordKind,
    /// The smallest TTL that an entry asks for, in seconds; `None` for the zone's.
    pub ttl: Option<u32>,
    pub data: Vec<RecordData>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum RecordKind {
    Txt,
    Srv,
    Mx,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordData {
    /// Strings of at most 255 bytes.
    Txt(Box<[Box<[u8]>]>),
    Srv {
        priority: u16,
        weight: u16,
        port: u16,
        host: Hostname,
    },
    Mx {
        preference: u16,
        host: Hostname,
    },
}

// === impl Records ===

impl Records {
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the sets, ordered by type.
    #[must_use]
    pub fn sets(&self) -> &[RecordSet] {
        &self.0
    }

    /// Returns what the records take in bytes, roughly.
    #[must_use]
    pub fn size(&self) -> usize {
        let data = self.0.iter().flat_map(|set| &set.data);
        data.map(|data| size_of::<RecordData>() + ALLOCATIONS + data.size()).sum()
    }

    /// Adds a record, unless it is there. Returns whether it counts: there may be too many, or too large ones.
    pub fn add(&mut self, kind: RecordKind, ttl: Option<u32>, data: RecordData) -> bool {
        let place = self.0.binary_search_by_key(&kind, |set| set.kind);
        let known = place.ok().map(|place| &self.0[place]);
        if !known.is_some_and(|set| set.data.contains(&data)) {
            let size: usize = known.into_iter().flat_map(|set| &set.data).map(RecordData::size).sum();
            if known.is_some_and(|set| set.data.len() >= MAX_RECORDS) || size + data.size() > MAX_BYTES {
                return false;
            }
            match place {
                Ok(place) => self.0[place].data.push(data),
                Err(place) => self.0.insert(place, RecordSet { kind, ttl, data: vec![data] }),
            }
        }
        if let Some(set) = self.0.iter_mut().find(|set| set.kind == kind) {
            set.ttl = smallest([set.ttl, ttl]);
        }
        true
    }

    /// Adds the records of another object. Returns whether all count.
    pub fn add_all(&mut self, other: &Self) -> bool {
        let mut all = true;
        for RecordSet { kind, ttl, data } in &other.0 {
            for data in data {
                all &= self.add(*kind, *ttl, data.clone());
            }
        }
        all
    }

    pub fn shrink(&mut self) {
        self.0.iter_mut().for_each(|set| set.data.shrink_to_fit());
        self.0.shrink_to_fit();
    }
}

impl fmt::Display for Records {
    /// Formats the types: `TXT, MX`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, set) in self.0.iter().enumerate() {
            write!(f, "{}{}", if place == 0 { "" } else { ", " }, set.kind)?;
        }
        Ok(())
    }
}

/// Returns the smallest of the TTLs that are set.
#[must_use]
pub fn smallest(ttls: impl IntoIterator<Item = Option<u32>>) -> Option<u32> {
    ttls.into_iter().flatten().min()
}

impl fmt::Display for RecordKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Txt => "TXT",
            Self::Srv => "SRV",
            Self::Mx => "MX",
        })
    }
}

// === impl RecordData ===

impl RecordData {
    /// Parses the text of a record, as a zone file has it: `10 mail.example.com`, `0 5 5060 sip.example.com`, `"a"
    /// "b"`. A host is absolute, with or without a dot at its end. The text of a TXT record that doesn't begin with a
    /// quote is taken literally; longer strings than a TXT record can have become several.
    ///
    /// # Errors
    /// What of the text is wrong.
    pub fn parse(kind: RecordKind, text: &str) -> Result<Self, Cow<'static, str>> {
        let fields: Vec<&str> = text.split_ascii_whitespace().take(5).collect();
        let number = |text: &str, what: &str| {
            text.parse::<u16>().map_err(|_| Cow::from(format!("the {what} isn't a number from 0 to 65535")))
        };
        match (kind, &fields[..]) {
            (RecordKind::Txt, _) => strings(text).map(|strings| Self::Txt(strings.into())),
            (RecordKind::Srv, &[priority, weight, port, host]) => Ok(Self::Srv {
                priority: number(priority, "priority")?,
                weight: number(weight, "weight")?,
                port: number(port, "port")?,
                host: self::host(host)?,
            }),
            (RecordKind::Srv, _) => Err("an SRV record is <priority> <weight> <port> <host>".into()),
            (RecordKind::Mx, &[preference, host]) => {
                Ok(Self::Mx { preference: number(preference, "preference")?, host: self::host(host)? })
            }
            (RecordKind::Mx, _) => Err("an MX record is <preference> <host>".into()),
        }
    }

    /// Returns the size of the data in an answer, in bytes, at most.
    fn size(&self) -> usize {
        match self {
            Self::Txt(strings) => strings.iter().map(|text| 1 + text.len()).sum(),
            Self::Srv { host, .. } => 6 + host.size(),
            Self::Mx { host, .. } => 2 + host.size(),
        }
    }
}

impl fmt::Display for RecordData {
    /// Formats the text that [`RecordData::parse`] takes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Txt(strings) => {
                for (place, string) in strings.iter().enumerate() {
                    f.write_str(if place == 0 { "\"" } else { " \"" })?;
                    for byte in string {
                        match byte {
                            b'"' | b'\\' => write!(f, "\\{}", char::from(*byte))?,
                            b' '..=b'~' => write!(f, "{}", char::from(*byte))?,
                            _ => write!(f, "\\{byte:03}")?,
                        }
                    }
                    f.write_str("\"")?;
                }
                Ok(())
            }
            Self::Srv { priority, weight, port, host } => write!(f, "{priority} {weight} {port} {host}"),
            Self::Mx { preference, host } => write!(f, "{preference} {host}"),
        }
    }
}

/// Parses the host of a record; the root means that there is none (RFC 2782, RFC 7505).
fn host(text: &str) -> Result<Hostname, Cow<'static, str>> {
    if text == "." {
        return Ok(Hostname::from(&Name::root()));
    }
    host_name(text).map(|name| Hostname::from(&name)).map_err(|why| format!("the host is {why}").into())
}

/// Returns the strings of a TXT record.
fn strings(text: &str) -> Result<Vec<Box<[u8]>>, Cow<'static, str>> {
    let mut all = Vec::new();
    let mut add = |string: &[u8]| match string {
        [] => all.push(Box::default()),
        string => all.extend(string.chunks(MAX_STRING).map(Box::from)),
    };
    let mut rest = text.trim_matches([' ', '\t']).as_bytes();
    if rest.first() != Some(&b'"') {
        add(text.as_bytes());
        return Ok(all);
    }
    while !rest.is_empty() {
        rest = rest.strip_prefix(b"\"").ok_or("between two quoted strings there is more than blanks")?;
        let mut string = Vec::new();
        loop {
            let (byte, behind) = rest.split_first().ok_or("a quote isn't closed")?;
            rest = behind;
            match byte {
                b'"' => break,
                b'\\' => {
                    let (byte, behind) = escaped(rest)?;
                    string.push(byte);
                    rest = behind;
                }
                byte => string.push(*byte),
            }
        }
        add(&string);
        rest = rest.trim_ascii_start();
    }
    Ok(all)
}

/// Returns the byte of an escape, `\X` or `\DDD` (RFC 1035 section 5.1), and what is behind it.
fn escaped(rest: &[u8]) -> Result<(u8, &[u8]), Cow<'static, str>> {
    match rest {
        [first @ b'0'..=b'9', second @ b'0'..=b'9', third @ b'0'..=b'9', behind @ ..] => {
            let digit = |byte: &u8| u16::from(byte - b'0');
            let number = digit(first) * 100 + digit(second) * 10 + digit(third);
            let byte = u8::try_from(number).map_err(|_| format!("\\{number} is no byte"))?;
            Ok((byte, behind))
        }
        [b'0'..=b'9', ..] => Err("\\ is followed by three digits, or by a character".into()),
        [byte, behind @ ..] => Ok((*byte, behind)),
        [] => Err("a quote isn't closed".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(kind: RecordKind, text: &str) -> String {
        match RecordData::parse(kind, text) {
            Ok(data) => {
                let shown = data.to_string();
                assert_eq!(RecordData::parse(kind, &shown), Ok(data), "{shown}");
                shown
            }
            Err(why) => why.to_string(),
        }
    }

    #[test]
    fn text_of_a_record_is_that_of_zone_files() {
        use RecordKind::{Mx, Srv, Txt};
        for (kind, text, expected) in [
            (Mx, "10 Mail.Example.com.", "10 mail.example.com"),
            (Mx, " 0\t. ", "0 ."),
            (Mx, "mail.example.com", "an MX record is <preference> <host>"),
            (Mx, "10 a.example b.example", "an MX record is <preference> <host>"),
            (Mx, "65536 a.example", "the preference isn't a number from 0 to 65535"),
            (Mx, "-1 a.example", "the preference isn't a number from 0 to 65535"),
            (Mx, "1 a..example", "the host is not a DNS name"),
            (Srv, "0 5 5060 sip.example.com", "0 5 5060 sip.example.com"),
            (Srv, "0 0 0 .", "0 0 0 ."),
            (Srv, "0 5 sip.example.com", "an SRV record is <priority> <weight> <port> <host>"),
            (Srv, "0 x 5 sip.example.com", "the weight isn't a number from 0 to 65535"),
            (Txt, "", "\"\""),
            (Txt, "v=spf1 -all", "\"v=spf1 -all\""),
            (Txt, "a \"b\" \\c é", r#""a \"b\" \\c \195\169""#),
            (Txt, "\"a b\"", "\"a b\""),
            (Txt, " \"a\"  \"\"\t\"b\"", "\"a\" \"\" \"b\""),
            (Txt, r#""\"\065\;\\""#, r#""\"A;\\""#),
            (Txt, "\"a", "a quote isn't closed"),
            (Txt, "\"a\\", "a quote isn't closed"),
            (Txt, "\"a\" b", "between two quoted strings there is more than blanks"),
            (Txt, r#""\25""#, "\\ is followed by three digits, or by a character"),
            (Txt, r#""\256""#, "\\256 is no byte"),
        ] {
            assert_eq!(parsed(kind, text), expected, "{kind} {text}");
        }
    }

    #[test]
    fn long_txt_records_become_strings_of_255_bytes() {
        let long = "x".repeat(600);
        for text in [long.clone(), format!("\"{long}\"")] {
            let Ok(RecordData::Txt(strings)) = RecordData::parse(RecordKind::Txt, &text) else { panic!() };
            assert_eq!(strings.iter().map(|string| string.len()).collect::<Vec<_>>(), [255, 255, 90]);
        }
        let worst = RecordData::Txt(vec![[0xff; 255].into(); 64].into());
        assert!(worst.size() <= MAX_BYTES && worst.to_string().len() <= MAX_TEXT);
        assert_eq!(RecordData::parse(RecordKind::Txt, &worst.to_string()), Ok(worst));
    }

    fn mx(number: u16) -> RecordData {
        RecordData::parse(RecordKind::Mx, &format!("{number} mail.example.com")).unwrap()
    }

    #[test]
    fn equal_records_are_one_and_the_smallest_ttl_counts() {
        let mut records = Records::default();
        for (number, ttl) in [(1, None), (2, Some(60)), (1, Some(30)), (2, None)] {
            assert!(records.add(RecordKind::Mx, ttl, mx(number)));
        }
        let text = RecordData::parse(RecordKind::Txt, "a").unwrap();
        let mut other = Records::default();
        assert!(other.add(RecordKind::Txt, None, text) && other.add(RecordKind::Mx, Some(90), mx(3)));
        assert!(records.add_all(&other));
        assert_eq!(records.to_string(), "TXT, MX");
        let [txt, set] = records.sets() else { panic!("{records:?}") };
        assert_eq!((txt.ttl, set.ttl), (None, Some(30)));
        assert_eq!(set.data, [mx(1), mx(2), mx(3)]);
    }

    #[test]
    fn number_and_size_of_records_are_bounded() {
        let mut records = Records::default();
        let counted = (0..1_000).filter(|number| records.add(RecordKind::Mx, None, mx(*number))).count();
        assert_eq!(counted, MAX_RECORDS);
        assert!(records.add(RecordKind::Mx, None, mx(7)), "it is there");
        let text = |number: u32| {
            RecordData::parse(RecordKind::Txt, &format!("{number:04}{}", "x".repeat(4092))).unwrap()
        };
        let counted = (0..100).filter(|number| records.add(RecordKind::Txt, None, text(*number))).count();
        assert_eq!(counted, 3);
        assert!(!records.add_all(&{
            let mut more = Records::default();
            more.add(RecordKind::Txt, None, text(200));
            more
        }));
    }
}
