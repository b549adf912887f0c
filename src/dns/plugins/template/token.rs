//! The words of a record in the syntax of zone files, and the values that a word can stand for.

use std::net::{Ipv4Addr, Ipv6Addr};

use hickory_proto::rr::Name;

use crate::dns::message::presentation::{parse_name, unescape};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RecordToken {
    /// The text without quotes, but with its escapes.
    pub(super) text: String,
    pub(super) quoted: bool,
}

impl RecordToken {
    /// Returns the text as octets, each escape replaced by the octet that it stands for.
    pub(super) fn octets(&self) -> Result<Vec<u8>, String> {
        let mut octets = Vec::new();
        let mut rest = self.text.as_bytes();
        while let Some((byte, after)) = rest.split_first() {
            rest = after;
            octets.push(match byte {
                b'\\' => {
                    unescape(&mut rest).ok_or_else(|| format!("an escape in {:?} isn't valid", self.text))?
                }
                byte => *byte,
            });
        }
        Ok(octets)
    }

    pub(super) fn source_text(&self) -> String {
        if self.quoted { format!("\"{}\"", self.text) } else { self.text.clone() }
    }
}

/// Splits the first line that isn't empty into words. In parentheses, the line continues.
pub(super) fn tokens(text: &str) -> Result<Vec<RecordToken>, String> {
    let mut tokens: Vec<RecordToken> = Vec::new();
    let mut word: Option<RecordToken> = None;
    let mut depth = 0_usize;
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        let quoted = word.as_ref().is_some_and(|word| word.quoted);
        match c {
            '"' => {
                tokens.extend(word.take());
                if !quoted {
                    word = Some(RecordToken { text: String::new(), quoted: true });
                }
                continue;
            }
            _ if quoted => {}
            ' ' | '\t' | '\r' | '\n' | '(' | ')' | ';' => {
                tokens.extend(word.take());
                match c {
                    '(' => depth += 1,
                    ')' => depth = depth.checked_sub(1).ok_or("there is a ) without a (")?,
                    // A comment ends with its line.
                    ';' if !chars.any(|c| c == '\n') => break,
                    _ => {}
                }
                if matches!(c, '\n' | ';') && depth == 0 && !tokens.is_empty() {
                    break;
                }
                continue;
            }
            _ => {}
        }
        let word = word.get_or_insert_with(|| RecordToken { text: String::new(), quoted: false });
        word.text.push(c);
        if c == '\\' {
            word.text.extend(chars.next());
        }
    }
    if word.as_ref().is_some_and(|word| word.quoted) {
        return Err("a quote isn't closed".to_owned());
    }
    tokens.extend(word);
    if depth > 0 { Err("a parenthesis isn't closed".to_owned()) } else { Ok(tokens) }
}

/// Parses hexadecimal digits, in any number of words.
pub(super) fn hex(tokens: &[RecordToken]) -> Result<Vec<u8>, String> {
    let digits: String = tokens.iter().map(|token| &*token.text).collect();
    let digits: Option<Vec<u8>> =
        digits.chars().map(|c| c.to_digit(16).and_then(|digit| u8::try_from(digit).ok())).collect();
    digits
        .filter(|digits| digits.len() % 2 == 0)
        .map(|digits| digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect())
        .ok_or_else(|| "its octets have to be given in two hexadecimal digits each".to_owned())
}

/// Parses a name. A name without a dot at its end is absolute, too, because the origin is the root.
pub(super) fn name(token: &RecordToken) -> Result<Name, String> {
    let text = if token.text == "@" { "." } else { &token.text };
    parse_name(text).ok_or_else(|| format!("{:?} is no name", token.text))
}

/// Parses a time in seconds, or with units: `1h30m`.
pub(super) fn seconds(text: &str) -> Option<u32> {
    let (mut all, mut number) = (0_u64, 0_u64);
    for c in text.chars() {
        let unit = match c.to_ascii_lowercase() {
            's' => 1,
            'm' => 60,
            'h' => 3600,
            'd' => 86_400,
            'w' => 604_800,
            c => {
                number = number.checked_mul(10)?.checked_add(c.to_digit(10)?.into())?;
                continue;
            }
        };
        all = all.checked_add(number.checked_mul(unit)?)?;
        number = 0;
    }
    u32::try_from(all.checked_add(number)?).ok()
}

pub(super) fn ipv4(token: &RecordToken) -> Result<[u8; 4], String> {
    let address: Ipv4Addr = token.text.parse().map_err(|_| format!("{:?} is no IPv4 address", token.text))?;
    Ok(address.octets())
}

pub(super) fn ipv6(token: &RecordToken) -> Result<[u8; 16], String> {
    let address: Ipv6Addr = token.text.parse().map_err(|_| format!("{:?} is no IPv6 address", token.text))?;
    Ok(address.octets())
}
