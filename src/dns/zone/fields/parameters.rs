//! The parameters of services in SVCB and HTTPS records (RFC 9460 section 2.1).

use std::collections::BTreeMap;

use data_encoding::BASE64;

use crate::dns::zone::word::Word;

const MANDATORY: u16 = 0;

/// Parses parameters such as `alpn=h2,h3`, in any order, to the order of their keys.
pub(super) fn parse(words: &[Word<'_>]) -> Result<Vec<u8>, String> {
    let mut all: BTreeMap<u16, Vec<u8>> = BTreeMap::new();
    let mut words = words.iter().peekable();
    while let Some(word) = words.next() {
        let wrong =
            || format!("{} isn't a valid parameter, such as alpn=h2, port=443 or key667=x", word.shown());
        let (name, value) = match word.text.iter().position(|byte| *byte == b'=') {
            Some(at) => (&word.text[..at], Some(&word.text[at + 1..])),
            None => (word.text, None),
        };
        let key = std::str::from_utf8(name).ok().and_then(number).ok_or_else(wrong)?;
        // A value in quotes is the next word.
        let quoted = words.next_if(|next| value == Some(b"") && next.is_quoted && next.is_joined);
        let value = quoted.map(|word| word.text).or(value);
        let value = value.map(|text| Word { text, ..*word }.octets()).transpose()?;
        let written = write(key, value.as_deref()).ok_or_else(wrong)?;
        if all.insert(key, written).is_some() {
            return Err(format!("the parameter {} is there twice", String::from_utf8_lossy(name)));
        }
    }
    let mut data = Vec::new();
    for (key, value) in all {
        let length = u16::try_from(value.len()).map_err(|_| "a parameter is too long".to_owned())?;
        data.extend([key, length].map(u16::to_be_bytes).as_flattened());
        data.extend(value);
    }
    Ok(data)
}

/// Returns the number of a key, by its name or as in `key667`.
fn number(name: &str) -> Option<u16> {
    Some(match name.to_ascii_lowercase().as_str() {
        "mandatory" => MANDATORY,
        "alpn" => 1,
        "no-default-alpn" => 2,
        "port" => 3,
        "ipv4hint" => 4,
        "ech" => 5,
        "ipv6hint" => 6,
        "dohpath" => 7,
        "ohttp" => 8,
        other => other.strip_prefix("key")?.parse().ok()?,
    })
}

/// Returns a value in wire form; `None` if it isn't valid for the key.
fn write(key: u16, value: Option<&[u8]>) -> Option<Vec<u8>> {
    let text = || value.and_then(|value| std::str::from_utf8(value).ok()).filter(|text| !text.is_empty());
    match key {
        MANDATORY => {
            let mut keys = text()?.split(',').map(number).collect::<Option<Vec<u16>>>()?;
            keys.sort_unstable();
            let is_distinct = keys.windows(2).all(|pair| pair[0] != pair[1]) && !keys.contains(&MANDATORY);
            is_distinct.then(|| keys.into_iter().flat_map(u16::to_be_bytes).collect())
        }
        1 => {
            let mut data = Vec::new();
            for name in list(value?) {
                data.push(u8::try_from(name.len()).ok().filter(|length| *length > 0)?);
                data.extend(name);
            }
            Some(data)
        }
        2 | 8 => value.is_none_or(<[u8]>::is_empty).then(Vec::new),
        3 => Some(text()?.parse::<u16>().ok()?.to_be_bytes().to_vec()),
        4 => text()?.split(',').try_fold(Vec::new(), |mut data, address| {
            data.extend(address.parse::<std::net::Ipv4Addr>().ok()?.octets());
            Some(data)
        }),
        5 => BASE64.decode(value?).ok(),
        6 => text()?.split(',').try_fold(Vec::new(), |mut data, address| {
            data.extend(address.parse::<std::net::Ipv6Addr>().ok()?.octets());
            Some(data)
        }),
        _ => Some(value.unwrap_or_default().to_vec()),
    }
}

/// Splits a list at its commas; `\\,` and `\\\\` stand for a comma and a backslash in an item (RFC 9460 appendix A.1).
fn list(value: &[u8]) -> Vec<Vec<u8>> {
    let mut items = vec![Vec::new()];
    let mut octets = value.iter();
    while let Some(octet) = octets.next() {
        let octet = match octet {
            b',' => {
                items.push(Vec::new());
                continue;
            }
            b'\\' => octets.next().unwrap_or(octet),
            octet => octet,
        };
        if let Some(item) = items.last_mut() {
            item.push(*octet);
        }
    }
    items
}
