//! Methods of directives and tokens that parse plugins' arguments.

use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::ops::RangeBounds;
use std::str::FromStr;
use std::time::Duration;

use hickory_proto::rr::Name;

use crate::dns::corefile::resolv_conf::scope;
use crate::dns::corefile::{self, CorefileError, Directive, Position, Scheme, Token};
use crate::dns::message::zone_set::ZoneSet;

/// CoreDNS's limit for a regular expression, in bytes: a longer expression could exhaust the memory.
pub(crate) const MAX_REGEX: usize = 10_000;

/// Returns the zones that the tokens mean.
///
/// # Errors
/// If a token isn't a zone.
pub(crate) fn zones(words: &[Token]) -> Result<ZoneSet, CorefileError> {
    let mut all = Vec::new();
    for word in words {
        all.extend(word.zones()?);
    }
    Ok(ZoneSet::new(all))
}

/// Returns the zones that the tokens mean; without tokens, the root zone.
///
/// # Errors
/// If a token isn't a zone.
pub(crate) fn zones_or_all(words: &[Token]) -> Result<ZoneSet, CorefileError> {
    if words.is_empty() { Ok(ZoneSet::new([Name::root()])) } else { zones(words) }
}

/// Returns a clause with all options of a plugin, for an error.
pub(crate) fn option_list(known: &[&str]) -> String {
    let are = if known.len() == 1 { "option is" } else { "options are" };
    format!("its {are} {}", known.join(", "))
}

/// Returns a hint for an unknown plugin or option: the closest of the known names, if one is close.
pub(crate) fn suggestion(name: &str, known: &[&str]) -> Option<String> {
    // Wrong, missing, extra and transposed letters.
    let max_typos = if name.len() < 8 { 2.min(name.len() / 2) } else { 3 };
    let (typos, meant) = known.iter().map(|known| (strsim::osa_distance(known, name), known)).min()?;
    (typos <= max_typos).then(|| format!("is it {meant}?"))
}

/// Returns the message of a regular expression's error, without the excerpt that marks the position.
pub(crate) fn regex_error_text(error: &regex::Error) -> String {
    let text = error.to_string();
    let last = text.lines().last().unwrap_or_default().trim();
    last.strip_prefix("error: ").unwrap_or(last).to_owned()
}

// === impl Directive ===

impl Directive {
    #[must_use]
    pub fn position(&self) -> &Position {
        // A directive has at least one token.
        &self.tokens[0].position
    }

    #[must_use]
    pub fn error(&self, message: impl Into<String>) -> CorefileError {
        self.position().error(message)
    }

    /// Returns the directives in the braces.
    #[must_use]
    pub fn options(&self) -> &[Self] {
        self.block.as_deref().unwrap_or_default()
    }

    /// Checks that the directive has no arguments.
    ///
    /// # Errors
    /// If there is an argument.
    pub fn no_arguments(&self) -> Result<(), CorefileError> {
        self.at_most(0).map(|_| ())
    }

    /// Checks that the directive has no braces.
    ///
    /// # Errors
    /// If there are braces.
    pub fn no_block(&self) -> Result<(), CorefileError> {
        match &self.block {
            Some(_) => Err(self.error(format!("{} takes no braces", self.name()))),
            None => Ok(()),
        }
    }

    /// Checks that the directive has neither arguments nor braces.
    ///
    /// # Errors
    /// If there are any.
    pub fn no_arguments_or_block(&self) -> Result<(), CorefileError> {
        self.no_arguments()?;
        self.no_block()
    }

    /// Returns the arguments, if there are at most `number`.
    ///
    /// # Errors
    /// At the first excess argument.
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

    /// Returns the only argument; `what` describes it for the error: "a duration such as 5s".
    ///
    /// # Errors
    /// If there isn't exactly one argument.
    pub fn single_argument(&self, what: &str) -> Result<&Token, CorefileError> {
        match self.at_most(1)? {
            [word] => Ok(word),
            _ => Err(self.missing_argument(what)),
        }
    }

    /// Returns the arguments, of which there must be at least one; `what` describes them for the error: "networks such
    /// as 10.0.0.0/8".
    ///
    /// # Errors
    /// If there is no argument.
    pub fn required_arguments(&self, what: &str) -> Result<&[Token], CorefileError> {
        match self.arguments() {
            [] => Err(self.missing_argument(what)),
            words => Ok(words),
        }
    }

    /// Returns an error for a missing argument.
    #[must_use]
    pub fn missing_argument(&self, what: &str) -> CorefileError {
        // A directive has at least one token.
        self.tokens[0].needs(what)
    }

    #[must_use]
    pub fn unknown(&self, plugin: &str, known: &[&str]) -> CorefileError {
        self.unknown_of(plugin, known, "")
    }

    /// Returns the error of [`Self::unknown`]; `more` follows the list of what is known.
    #[must_use]
    pub fn unknown_of(&self, plugin: &str, known: &[&str], more: &str) -> CorefileError {
        let hint = suggestion(self.name(), known);
        let hint = hint.unwrap_or_else(|| format!("{}{more}", option_list(known)));
        self.error(format!("{plugin} has no option {:?}; {hint}", self.name()))
    }

    /// Returns an error for an option that only CoreDNS has.
    #[must_use]
    pub fn unsupported(&self, plugin: &str, known: &[&str]) -> CorefileError {
        self.error(format!(
            "CoreDNS's option {:?} of {plugin} isn't supported here; supported are {}",
            self.name(),
            known.join(", ")
        ))
    }
}

// === impl Token ===

impl Token {
    /// Returns an error at this token, with a hint if the token is empty: the usual cause is a variable that isn't set.
    #[must_use]
    pub fn error(&self, message: impl Into<String>) -> CorefileError {
        let hint = if self.text.is_empty() { "; maybe a variable isn't set" } else { "" };
        self.position.error(message.into() + hint)
    }

    /// Returns an error for a missing argument after this token; `what` describes the argument.
    #[must_use]
    pub fn needs(&self, what: &str) -> CorefileError {
        self.error(format!("{} needs {what}", self.text))
    }

    /// Parses the token; `what` describes the expected value for the error: "an IP address".
    ///
    /// # Errors
    /// If the token can't be parsed.
    pub fn parse<T: FromStr>(&self, what: &str) -> Result<T, CorefileError> {
        self.text.parse().map_err(|_| self.unexpected(what))
    }

    /// Parses a number in a range; `what` describes the number for the error: "a number from 0 to 3600".
    ///
    /// # Errors
    /// If the token isn't a number in the range.
    pub fn parse_in_range<T: FromStr + PartialOrd>(
        &self,
        range: impl RangeBounds<T>,
        what: &str,
    ) -> Result<T, CorefileError> {
        let number = self.text.parse().ok().filter(|number| range.contains(number));
        number.ok_or_else(|| self.unexpected(what))
    }

    #[must_use]
    pub fn unexpected(&self, what: &str) -> CorefileError {
        self.error(format!("{:?} isn't {what}", self.text))
    }

    /// Returns the error of [`Self::unexpected`], with the closest of the known words, if one is close.
    #[must_use]
    pub fn unexpected_of(&self, what: &str, known: &[&str]) -> CorefileError {
        let hint = suggestion(&self.text, known).map_or_else(String::new, |meant| format!("; {meant}"));
        self.error(format!("{:?} isn't {what}{hint}", self.text))
    }

    /// Parses a duration in Go's syntax: `5s`, `1h30m`, `1.5s`; only `0` needs no unit.
    ///
    /// # Errors
    /// If the token isn't a duration, or is negative.
    pub fn duration(&self) -> Result<Duration, CorefileError> {
        go_duration(&self.text).ok_or_else(|| self.unexpected("a duration such as 30s, 1m30s or 500ms"))
    }

    /// Parses the address of a DNS server, with a port or, in brackets or alone, without: `192.0.2.1`, `[2001:db8::1]:5300`
    /// or `fe80::1%eth0`. `what` describes it for the error.
    ///
    /// # Errors
    /// If the token isn't an address, or there is no such network interface.
    pub fn server_address(&self, what: &str) -> Result<SocketAddr, CorefileError> {
        let (host, port) = match self.text.strip_prefix('[') {
            Some(rest) => rest.split_once("]:").ok_or_else(|| self.unexpected(what))?,
            None if self.text.matches(':').count() == 1 => {
                self.text.split_once(':').ok_or_else(|| self.unexpected(what))?
            }
            None => (&*self.text, ""),
        };
        let port = if port.is_empty() { Ok(Scheme::Dns.port()) } else { port.parse() };
        let port = port.ok().filter(|port| *port != 0).ok_or_else(|| self.unexpected(what))?;
        let Some((host, interface)) = host.split_once('%') else {
            let ip: IpAddr = host.parse().map_err(|_| self.unexpected(what))?;
            return Ok(SocketAddr::new(ip.to_canonical(), port));
        };
        let ip = host.parse().map_err(|_| self.unexpected(what))?;
        let scope = scope(interface)
            .ok_or_else(|| self.error(format!("there is no network interface {interface:?}")))?;
        Ok(SocketAddrV6::new(ip, port, 0, scope).into())
    }

    /// Returns the zones that the token means: one zone, or the reverse zones of a network.
    ///
    /// # Errors
    /// If the token isn't a zone.
    pub fn zones(&self) -> Result<Vec<Name>, CorefileError> {
        corefile::zones(&self.text).map_err(|message| self.error(message))
    }
}

/// Parses a duration as Go's `time.ParseDuration` does, except negative durations.
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
    fn durations_are_parsed_as_in_go() {
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
