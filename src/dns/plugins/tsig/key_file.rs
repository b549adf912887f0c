//! Parses a file with keys, in the syntax of BIND's `named.conf`. No error shows a text that may be a secret.

use std::path::Path;
use std::sync::Arc;

use hickory_proto::rr::Name;

use super::parse::{NO_BASE64, NO_NAME, decoded, key_name};
use crate::dns::corefile::{CorefileError, Position};
use crate::dns::message::tsig::Algorithm;

/// What a file has.
const KEY: &str = "key \"NAME\" { algorithm hmac-sha256; secret \"SECRET\"; };";

pub(super) struct FileKey {
    pub(super) position: Position,
    pub(super) name: Name,
    pub(super) algorithm: Algorithm,
    pub(super) secret: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Word<'a> {
    Open,
    Close,
    Semicolon,
    Text(&'a str),
}

/// The words of a file.
struct Words<'a> {
    file: &'a Arc<Path>,
    text: &'a str,
    /// Where the next word is looked for, in bytes.
    at: usize,
    line: usize,
    /// Where the line begins, in bytes.
    line_start: usize,
}

/// Returns the keys of a file. A semicolon may be left out, as for CoreDNS.
///
/// # Errors
/// If the file doesn't have that syntax, or if it has more than `limit` keys.
pub(super) fn parse(file: &Arc<Path>, text: &str, limit: usize) -> Result<Vec<FileKey>, CorefileError> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut words = Words { file, text, at: 0, line: 1, line_start: 0 };
    let mut keys = Vec::new();
    while let Some((position, word)) = words.next()? {
        match word {
            Word::Semicolon => {}
            Word::Text("key") if keys.len() < limit => keys.push(words.key(position)?),
            Word::Text("key") => return Err(position.error(format!("a file has {limit} keys at most"))),
            _ => return Err(position.error(format!("a key is expected here: {KEY}"))),
        }
    }
    Ok(keys)
}

impl<'a> Words<'a> {
    /// Parses a key after the word `key`.
    fn key(&mut self, position: Position) -> Result<FileKey, CorefileError> {
        let (place, name) = self.argument("the name of a key", &position)?;
        let name = key_name(name).ok_or_else(|| place.error(NO_NAME))?;
        let (mut algorithm, mut secret) = (None, None);
        match self.next()? {
            Some((_, Word::Open)) => {}
            Some((place, _)) => return Err(place.error(format!("a {{ is expected here: {KEY}"))),
            None => return Err(position.error(format!("the key has no {{: {KEY}"))),
        }
        loop {
            match self.next()? {
                Some((_, Word::Semicolon)) => {}
                Some((_, Word::Close)) => break,
                Some((place, Word::Text("algorithm"))) if algorithm.is_none() => {
                    let (place, name) = self.argument("an algorithm", &place)?;
                    algorithm = Some(algorithm_of(name).map_err(|why| place.error(why))?);
                }
                Some((place, Word::Text("secret"))) if secret.is_none() => {
                    let (place, text) = self.argument("a secret in Base64", &place)?;
                    secret = Some(decoded(text).ok_or_else(|| place.error(NO_BASE64))?);
                }
                Some((place, _)) => {
                    return Err(place.error(format!("a key has one algorithm and one secret: {KEY}")));
                }
                None => return Err(position.error(format!("the key has no }}: {KEY}"))),
            }
        }
        let secret = secret.ok_or_else(|| position.error(format!("the key has no secret: {KEY}")))?;
        Ok(FileKey { position, name, algorithm: algorithm.unwrap_or(Algorithm::Sha256), secret })
    }

    /// Returns the text that has to follow; `what` describes it.
    fn argument(&mut self, what: &str, before: &Position) -> Result<(Position, &'a str), CorefileError> {
        match self.next()? {
            Some((place, Word::Text(text))) => Ok((place, text)),
            Some((place, _)) => Err(place.error(format!("{what} is expected here"))),
            None => Err(before.error(format!("{what} is expected after this, and the file ends"))),
        }
    }

    /// Returns the next word; `None` at the end of the file.
    fn next(&mut self) -> Result<Option<(Position, Word<'a>)>, CorefileError> {
        self.skip()?;
        let rest = &self.text[self.at..];
        let position = self.position();
        let word = match rest.as_bytes().first() {
            None => return Ok(None),
            Some(b'{') => Word::Open,
            Some(b'}') => Word::Close,
            Some(b';') => Word::Semicolon,
            Some(b'"') => {
                let quoted = &rest[1..];
                let end = quoted.find(['"', '\n']).filter(|end| quoted[*end..].starts_with('"'));
                let end = end.ok_or_else(|| position.error("this line ends before the quote is closed"))?;
                self.at += end + 2;
                return Ok(Some((position, Word::Text(&quoted[..end]))));
            }
            Some(_) => {
                let is_end = |c: char| c.is_whitespace() || matches!(c, '{' | '}' | ';' | '"');
                let end = rest.find(is_end).unwrap_or(rest.len());
                self.at += end;
                return Ok(Some((position, Word::Text(&rest[..end]))));
            }
        };
        self.at += 1;
        Ok(Some((position, word)))
    }

    /// Skips white space and comments.
    fn skip(&mut self) -> Result<(), CorefileError> {
        loop {
            let rest = &self.text[self.at..];
            let length = if rest.starts_with('#') || rest.starts_with("//") {
                rest.find('\n').unwrap_or(rest.len())
            } else if let Some(comment) = rest.strip_prefix("/*") {
                let end = comment.find("*/");
                end.ok_or_else(|| self.position().error("the comment has no */"))? + 4
            } else {
                rest.find(|c: char| !c.is_whitespace()).unwrap_or(rest.len())
            };
            if length == 0 {
                return Ok(());
            }
            let skipped = &rest[..length];
            self.line += skipped.matches('\n').count();
            if let Some(last) = skipped.rfind('\n') {
                self.line_start = self.at + last + 1;
            }
            self.at += length;
        }
    }

    fn position(&self) -> Position {
        let column = self.text[self.line_start..self.at].chars().count() + 1;
        Position { file: Arc::clone(self.file), line: self.line, column }
    }
}

fn algorithm_of(name: &str) -> Result<Algorithm, String> {
    let name = name.strip_suffix('.').unwrap_or(name);
    Algorithm::of_name(name).ok_or_else(|| {
        let known = Algorithm::ALL.map(Algorithm::name).join(", ");
        if name.to_ascii_lowercase().starts_with("hmac-md5") {
            format!("hmac-md5 isn't supported, because it is broken; use one of {known}")
        } else {
            format!("this isn't one of {known}")
        }
    })
}
