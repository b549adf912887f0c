//! Splits the text of a zone file into entries, and entries into words.

use std::net::{Ipv4Addr, Ipv6Addr};

use data_encoding::{BASE64, HEXLOWER_PERMISSIVE};

use crate::dns::message::presentation::{unescape, write_name};

/// The maximum length of an entry in bytes. Data of 64 KiB with each octet escaped has a quarter of it.
const MAX_ENTRY: usize = 1 << 20;

/// A place in a text, counted from 1. Columns are bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) line: u32,
    pub(super) column: u32,
}

/// The reason why a text isn't valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TextError {
    pub(super) place: Place,
    pub(super) message: String,
}

/// A word of an entry.
#[derive(Clone, Copy, Debug)]
pub(super) struct Word<'a> {
    /// The text without quotes, but with its escapes.
    pub(super) text: &'a [u8],
    pub(super) is_quoted: bool,
    /// Whether nothing separates it from the word before.
    pub(super) is_joined: bool,
    pub(super) place: Place,
}

/// The words of a line. In parentheses, the line continues.
#[derive(Debug, Default)]
pub(super) struct Entry<'a> {
    pub(super) words: Vec<Word<'a>>,
    /// Whether a space precedes the first word, which then isn't an owner.
    pub(super) is_indented: bool,
}

/// The entries of a text.
#[derive(Debug)]
pub(super) struct Entries<'a> {
    text: &'a [u8],
    at: usize,
    line: u32,
    line_start: usize,
}

// === impl TextError ===

impl TextError {
    pub(super) fn new(place: Place, message: impl Into<String>) -> Self {
        Self { place, message: message.into() }
    }
}

// === impl Entries ===

impl<'a> Entries<'a> {
    pub(super) fn new(text: &'a [u8]) -> Self {
        Self { text, at: 0, line: 1, line_start: 0 }
    }

    /// Reads the next entry that isn't empty into `entry`. Returns false at the end of the text.
    ///
    /// # Errors
    /// If a quote or a parenthesis has no counterpart, or if the entry is too long.
    pub(super) fn next(&mut self, entry: &mut Entry<'a>) -> Result<bool, TextError> {
        entry.words.clear();
        entry.is_indented = false;
        let (mut start, mut word_end) = (self.at, None);
        let mut open: Vec<Place> = Vec::new();
        while let Some(&byte) = self.text.get(self.at) {
            if self.at - start > MAX_ENTRY {
                let place = entry.words.first().map_or(self.place(), |word| word.place);
                return Err(TextError::new(place, format!("an entry has {MAX_ENTRY} bytes at most")));
            }
            match byte {
                b'\n' => {
                    self.end_line(self.at);
                    self.at += 1;
                    if open.is_empty() && !entry.words.is_empty() {
                        return Ok(true);
                    }
                    if open.is_empty() {
                        (start, entry.is_indented) = (self.at, false);
                    }
                }
                b' ' | b'\t' | b'\r' => {
                    entry.is_indented |= entry.words.is_empty() && byte != b'\r';
                    self.at += 1;
                }
                b';' => {
                    let rest = &self.text[self.at..];
                    self.at += rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len());
                }
                b'(' => {
                    open.push(self.place());
                    self.at += 1;
                }
                b')' => {
                    let unopened = || TextError::new(self.place(), "there is a ) without a (");
                    open.pop().ok_or_else(unopened)?;
                    self.at += 1;
                }
                _ => {
                    let is_joined = word_end == Some(self.at);
                    entry.words.push(self.word(is_joined)?);
                    word_end = Some(self.at);
                }
            }
        }
        match open.first() {
            Some(place) => Err(TextError::new(*place, "a parenthesis isn't closed")),
            None => Ok(!entry.words.is_empty()),
        }
    }

    fn place(&self) -> Place {
        let column = u32::try_from(self.at - self.line_start).unwrap_or(u32::MAX);
        Place { line: self.line, column: column.saturating_add(1) }
    }

    fn end_line(&mut self, at: usize) {
        self.line = self.line.saturating_add(1);
        self.line_start = at + 1;
    }

    /// Reads the word that begins here.
    fn word(&mut self, is_joined: bool) -> Result<Word<'a>, TextError> {
        let place = self.place();
        let is_quoted = self.text[self.at] == b'"';
        self.at += usize::from(is_quoted);
        let start = self.at;
        while let Some(&byte) = self.text.get(self.at) {
            match byte {
                b'\\' if self.text.get(self.at + 1).is_some_and(|next| is_quoted || *next != b'\n') => {
                    self.at += 1;
                }
                b'"' if is_quoted => {
                    let text = &self.text[start..self.at];
                    self.at += 1;
                    return Ok(Word { text, is_quoted, is_joined, place });
                }
                b' ' | b'\t' | b'\r' | b'\n' | b'(' | b')' | b';' | b'"' if !is_quoted => break,
                _ => {}
            }
            if self.text[self.at] == b'\n' {
                self.end_line(self.at);
            }
            self.at += 1;
        }
        if is_quoted {
            return Err(TextError::new(place, "a quote isn't closed"));
        }
        Ok(Word { text: &self.text[start..self.at], is_quoted, is_joined, place })
    }
}

// === impl Word ===

impl Word<'_> {
    /// Returns the text for messages, of a length that a log line can have.
    pub(super) fn shown(&self) -> String {
        const MAX_SHOWN: usize = 80;
        let text = String::from_utf8_lossy(&self.text[..self.text.len().min(MAX_SHOWN)]);
        if self.text.len() > MAX_SHOWN { format!("{:?}…", text) } else { format!("{text:?}") }
    }

    /// Returns the text; empty if it isn't UTF-8, which no number and no keyword is.
    pub(super) fn str(&self) -> &str {
        std::str::from_utf8(self.text).unwrap_or_default()
    }

    /// Returns the text as octets, each escape replaced by the octet that it stands for.
    pub(super) fn octets(&self) -> Result<Vec<u8>, String> {
        let mut octets = Vec::with_capacity(self.text.len());
        let mut rest = self.text;
        while let Some((byte, after)) = rest.split_first() {
            rest = after;
            octets.push(match byte {
                b'\\' => {
                    unescape(&mut rest).ok_or_else(|| format!("an escape in {} isn't valid", self.shown()))?
                }
                byte => *byte,
            });
        }
        Ok(octets)
    }

    /// Appends the name in wire form. A name without a dot at its end continues with `origin`, in wire form.
    pub(super) fn write_name(&self, origin: &[u8], to: &mut Vec<u8>) -> Result<(), String> {
        if self.text == b"@" && !self.is_quoted {
            to.extend(origin);
            return Ok(());
        }
        write_name(self.text, origin, to).ok_or_else(|| format!("{} is no name", self.shown()))
    }

    /// Parses a number.
    pub(super) fn number<T: std::str::FromStr>(&self) -> Option<T> {
        // Rust accepts a plus sign, Go doesn't.
        Some(self.str()).filter(|text| !text.starts_with('+')).and_then(|text| text.parse().ok())
    }

    /// Parses a time in seconds, or with units: `1h30m`.
    pub(super) fn seconds(&self) -> Option<u32> {
        let (mut all, mut number) = (0_u64, 0_u64);
        for byte in self.text {
            let unit = match byte.to_ascii_lowercase() {
                b's' => 1,
                b'm' => 60,
                b'h' => 3600,
                b'd' => 86_400,
                b'w' => 604_800,
                digit @ b'0'..=b'9' => {
                    number = number.checked_mul(10)?.checked_add(u64::from(digit - b'0'))?;
                    continue;
                }
                _ => return None,
            };
            all = all.checked_add(number.checked_mul(unit)?)?;
            number = 0;
        }
        u32::try_from(all.checked_add(number)?).ok()
    }

    pub(super) fn ipv4(&self) -> Result<[u8; 4], String> {
        let address: Option<Ipv4Addr> = self.str().parse().ok();
        address.map(|address| address.octets()).ok_or_else(|| format!("{} is no IPv4 address", self.shown()))
    }

    pub(super) fn ipv6(&self) -> Result<[u8; 16], String> {
        let address: Option<Ipv6Addr> = self.str().parse().ok();
        address.map(|address| address.octets()).ok_or_else(|| format!("{} is no IPv6 address", self.shown()))
    }
}

/// Parses hexadecimal digits, in any number of words.
pub(super) fn hex(words: &[Word<'_>]) -> Result<Vec<u8>, String> {
    HEXLOWER_PERMISSIVE
        .decode(&joined(words))
        .map_err(|_| "its octets have to be given in two hexadecimal digits each".to_owned())
}

/// Parses octets in base64, in any number of words.
pub(super) fn base64(words: &[Word<'_>]) -> Result<Vec<u8>, String> {
    BASE64.decode(&joined(words)).map_err(|_| "its octets aren't valid base64".to_owned())
}

fn joined(words: &[Word<'_>]) -> Vec<u8> {
    words.iter().flat_map(|word| word.text).copied().collect()
}
