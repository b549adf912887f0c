//! What plugins ask of the lines and words of a Corefile.

use std::ops::RangeBounds;
use std::str::FromStr;
use std::time::Duration;

use hickory_proto::rr::Name;

use crate::dns::corefile::{self, CorefileError, Directive, Position, Token};
use crate::dns::message::zone_set::ZoneSet;

/// What CoreDNS allows a regular expression, in bytes: a longer one could cost all the memory.
pub(crate) const MAX_REGEX: usize = 10_000;

/// Returns the zones that words stand for.
///
/// # Errors
/// If one stands for none.
pub(crate) fn zones(words: &[Token]) -> Result<ZoneSet, CorefileError> {
    let mut all = Vec::new();
    for word in words {
        all.extend(word.zones()?);
    }
    Ok(ZoneSet::new(all))
}

/// Returns the zones that words stand for; no words are all names.
///
/// # Errors
/// If one stands for none.
pub(crate) fn zones_or_all(words: &[Token]) -> Result<ZoneSet, CorefileError> {
    if words.is_empty() { Ok(ZoneSet::new([Name::root()])) } else { zones(words) }
}

/// Returns what is wrong with a regular expression, without the picture of where.
pub(crate) fn fault(error: &regex::Error) -> String {
    let text = error.to_string();
    let last = text.lines().last().unwrap_or_default().trim();
    last.strip_prefix("error: ").unwrap_or(last).to_owned()
}

// === impl Line ===

impl Directive {
    /// Returns where it begins.
    #[must_use]
    pub fn place(&self) -> &Position {
        // A line has at least one word.
        &self.tokens[0].place
    }

    /// Returns an error at its beginning.
    #[must_use]
    pub fn error(&self, message: impl Into<String>) -> CorefileError {
        self.place().error(message)
    }

    /// Returns the lines in its braces.
    #[must_use]
    pub fn options(&self) -> &[Self] {
        self.block.as_deref().unwrap_or_default()
    }

    /// Checks that nothing follows its name.
    ///
    /// # Errors
    /// If something does.
    pub fn no_arguments(&self) -> Result<(), CorefileError> {
        self.at_most(0).map(|_| ())
    }

    /// Checks that it has no braces.
    ///
    /// # Errors
    /// If it has.
    pub fn no_block(&self) -> Result<(), CorefileError> {
        match &self.block {
            Some(_) => Err(self.error(format!("{} takes no braces", self.name()))),
            None => Ok(()),
        }
    }

    /// Checks that there is nothing but its name.
    ///
    /// # Errors
    /// If there is.
    pub fn alone(&self) -> Result<(), CorefileError> {
        self.no_arguments()?;
        self.no_block()
    }

    /// Returns the arguments, if there aren't more than so many.
    ///
    /// # Errors
    /// At the first one that is too much.
    pub fn at_most(&self, number: usize) -> Result<&[Token], CorefileError> {
        let arguments = self.arguments();
        match arguments.get(number) {
            Some(word) if number == 0 => {
                Err(word.error(format!("{} takes no arguments, and here is {:?}", self.name(), word.text)))
            }
            Some(word) => Err(word.error(format!(
                "{} takes {number} argument{} at most, and here is {:?}",
                self.name(),
                if number == 1 { "" } else { "s" },
                word.text
            ))),
            None => Ok(arguments),
        }
    }

    /// Returns the one argument that has to be there; `what` says what it is: "a duration such as 5s".
    ///
    /// # Errors
    /// If there is none, or there are several.
    pub fn one(&self, what: &str) -> Result<&Token, CorefileError> {
        match self.at_most(1)? {
            [word] => Ok(word),
            _ => Err(self.needs(what)),
        }
    }

    /// Returns the arguments, of which there has to be one at least; `what` says what they are: "networks such as
    /// 10.0.0.0/8".
    ///
    /// # Errors
    /// If there is none.
    pub fn some(&self, what: &str) -> Result<&[Token], CorefileError> {
        match self.arguments() {
            [] => Err(self.needs(what)),
            words => Ok(words),
        }
    }

    /// Returns an error that something has to follow its name.
    #[must_use]
    pub fn needs(&self, what: &str) -> CorefileError {
        // A line has at least one word.
        self.tokens[0].needs(what)
    }

    /// Returns an error about this line, which isn't one of the options that there are.
    #[must_use]
    pub fn unknown(&self, plugin: &str, known: &[&str]) -> CorefileError {
        self.error(format!("{plugin} has no option {:?}; it has {}", self.name(), known.join(", ")))
    }

    /// Returns an error about this line, which is an option of CoreDNS's alone.
    #[must_use]
    pub fn unsupported(&self, plugin: &str, known: &[&str]) -> CorefileError {
        self.error(format!(
            "CoreDNS's option {:?} of {plugin} isn't supported here; supported are {}",
            self.name(),
            known.join(", ")
        ))
    }
}

// === impl Word ===

impl Token {
    /// Returns an error at this word.
    #[must_use]
    pub fn error(&self, message: impl Into<String>) -> CorefileError {
        self.place.error(message)
    }

    /// Returns an error that something has to follow it; `what` says what.
    #[must_use]
    pub fn needs(&self, what: &str) -> CorefileError {
        self.error(format!("{} needs {what}", self.text))
    }

    /// Parses it; `what` says what it should be: "an IP address".
    ///
    /// # Errors
    /// If it isn't that.
    pub fn parse<T: FromStr>(&self, what: &str) -> Result<T, CorefileError> {
        self.text.parse().map_err(|_| self.isnt(what))
    }

    /// Parses a number in a range; `what` says which: "a number from 0 to 3600".
    ///
    /// # Errors
    /// If it isn't that.
    pub fn within<T: FromStr + PartialOrd>(
        &self,
        range: impl RangeBounds<T>,
        what: &str,
    ) -> Result<T, CorefileError> {
        let number = self.text.parse().ok().filter(|number| range.contains(number));
        number.ok_or_else(|| self.isnt(what))
    }

    /// Returns an error that it isn't what it should be.
    #[must_use]
    pub fn isnt(&self, what: &str) -> CorefileError {
        self.error(format!("{:?} isn't {what}", self.text))
    }

    /// Returns the duration that it stands for, as Go writes it: `5s`, `1h30m`, `1.5s`; `0` alone needs no unit.
    ///
    /// # Errors
    /// If it is none, or a negative one.
    pub fn duration(&self) -> Result<Duration, CorefileError> {
        go_duration(&self.text).ok_or_else(|| self.isnt("a duration such as 30s, 1m30s or 500ms"))
    }

    /// Returns the zones that it stands for: one, or the reverse zones of a network.
    ///
    /// # Errors
    /// If it stands for none.
    pub fn zones(&self) -> Result<Vec<Name>, CorefileError> {
        corefile::zones(&self.text).map_err(|message| self.error(message))
    }
}

/// Parses a duration as Go's `time.ParseDuration` does, but for negative ones.
pub(crate) fn go_duration(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    let mut seconds = 0.0;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let unit = rest.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(rest.len());
        seconds += number
            * match &rest[..unit] {
                "h" => 3600.0,
                "m" => 60.0,
                "s" => 1.0,
                "ms" => 1e-3,
                "us" | "µs" | "μs" => 1e-6,
                "ns" => 1e-9,
                _ => return None,
            };
        rest = &rest[unit..];
    }
    Duration::try_from_secs_f64(seconds).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_written_as_in_go() {
        for (text, millis) in [
            ("0", Some(0)),
            ("5s", Some(5000)),
            ("1h30m", Some(5_400_000)),
            ("1.5s", Some(1500)),
            ("250ms", Some(250)),
            (".5s", Some(500)),
            ("", None),
            ("5", None),
            ("s", None),
            ("-5s", None),
            ("5 s", None),
            ("5d", None),
        ] {
            assert_eq!(go_duration(text).map(|found| found.as_millis()), millis, "{text}");
        }
    }
}
