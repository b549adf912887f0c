//! The address of a server block: `[SCHEME://]ZONE[:PORT]`.

use std::fmt;

use hickory_proto::rr::Name;
use ipnet::IpNet;

use super::{CorefileError, Token};
use crate::dns::message::arpa::reverse_origins;
use crate::dns::message::presentation::parse_name;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scheme {
    Dns,
    /// TLS (RFC 7858).
    Tls,
    /// HTTPS (RFC 8484).
    Https,
    /// gRPC, as in CoreDNS.
    Grpc,
    /// QUIC (RFC 9250).
    Quic,
}

/// A zone of a block, and the transport and port that serve it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    pub scheme: Scheme,
    /// The zone, absolute and in lower case.
    pub zone: Name,
    /// The port; 0 means any free port.
    pub port: u16,
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Dns => "dns",
            Self::Tls => "tls",
            Self::Https => "https",
            Self::Grpc => "grpc",
            Self::Quic => "quic",
        })
    }
}

impl Scheme {
    /// Returns the default port (RFC 1035 section 4.2, RFC 7858 section 3.1, RFC 9110 section 4.2.2, RFC 9250 section
    /// 4.1.1).
    #[must_use]
    pub fn port(self) -> u16 {
        match self {
            Self::Dns => 53,
            Self::Tls | Self::Quic => 853,
            Self::Https | Self::Grpc => 443,
        }
    }

    /// Returns whether listeners of the scheme use TCP.
    #[must_use]
    pub fn is_over_tcp(self) -> bool {
        self != Self::Quic
    }

    /// Returns whether listeners of both schemes can't have the same port: both use UDP, or both TCP.
    #[must_use]
    pub fn shares_ports_with(self, other: Self) -> bool {
        self == Self::Dns || other == Self::Dns || self.is_over_tcp() == other.is_over_tcp()
    }
}

/// Parses an address before a block. A network in CIDR notation means its reverse zones: several zones if the prefix
/// doesn't end at a label.
///
/// # Errors
/// If the token isn't the address of a block.
pub fn addresses(word: &Token) -> Result<Vec<Address>, CorefileError> {
    let wrong = |message: String| word.error(message);
    let (scheme, rest) = match word.text.split_once("://") {
        None => (Scheme::Dns, &*word.text),
        Some(("dns", rest)) => (Scheme::Dns, rest),
        Some(("tls", rest)) => (Scheme::Tls, rest),
        Some(("https", rest)) => (Scheme::Https, rest),
        Some(("grpc", rest)) => (Scheme::Grpc, rest),
        Some(("quic", rest)) => (Scheme::Quic, rest),
        Some((scheme, _)) => {
            return Err(wrong(format!(
                "{scheme}:// isn't supported; the schemes are dns://, tls://, https://, grpc:// and quic://"
            )));
        }
    };
    let (zone, port) = match rest.rsplit_once(':') {
        Some((_, "")) => return Err(wrong(format!("a port has to follow the last colon of {rest:?}"))),
        Some((zone, port)) if port.bytes().all(|b| b.is_ascii_digit()) => {
            (zone, port.parse().map_err(|_| wrong("a port is a number from 0 to 65535".to_owned()))?)
        }
        _ => (rest, scheme.port()),
    };
    if zone.is_empty() {
        return Err(wrong(format!("{:?} names no zone; the address for all names is .:{port}", word.text)));
    }
    let zones = zones(zone).map_err(wrong)?;
    Ok(zones.into_iter().map(|zone| Address { scheme, zone, port }).collect())
}

/// Returns the zones that a text means: one zone, or the reverse zones of a network.
///
/// # Errors
/// If the text isn't a zone; the message has a valid alternative.
pub fn zones(text: &str) -> Result<Vec<Name>, String> {
    if let Ok(net) = text.parse::<IpNet>() {
        return Ok(reverse_origins(net).collect());
    }
    let hint = match text {
        "" => "; the root is .",
        _ if text.starts_with('(') => "; the name of a snippet stands alone before its brace",
        _ if text.contains(',') => "; white space separates zones",
        _ if text.contains(['{', '}']) => "; a brace has to have white space around it",
        _ if !text.is_ascii() => "; a name that isn't ASCII has to be written as in xn--bcher-kva.example",
        _ if has_path(text) => "; a zone has no path, and DNS over HTTPS is always served at /dns-query",
        _ => ", or a network such as 10.0.0.0/8",
    };
    let zone = zone(text).ok_or_else(|| format!("{text:?} isn't a zone{hint}"))?;
    Ok(vec![zone.to_lowercase()])
}

fn has_path(text: &str) -> bool {
    text.rsplit_once('/')
        .is_some_and(|(_, path)| path.is_empty() || path.contains(|c: char| c.is_ascii_alphabetic()))
}

/// Parses a zone. CoreDNS accepts any characters; here, characters that are almost certainly a mistake have to be
/// escaped.
fn zone(text: &str) -> Option<Name> {
    let (mut chars, mut has_late_slash) = (text.chars(), false);
    while let Some(c) = chars.next() {
        match c {
            '\\' => _ = chars.next(),
            '.' if chars.as_str().is_empty() => {}
            '.' => has_late_slash = false,
            // RFC 2317 section 4 uses zones with a slash. In the last label it is of a path or a malformed network.
            '/' => has_late_slash = true,
            'a'..='z' | 'A'..='Z' | '0'..='9' | '-' | '_' | '*' => {}
            _ => return None,
        }
    }
    if has_late_slash { None } else { parse_name(text) }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::tokenize;
    use super::*;
    use crate::dns::message::presentation::name_text;

    fn parse(text: &str) -> Result<Vec<String>, String> {
        let word = tokenize(&Path::new("Corefile").into(), text).remove(0);
        let show =
            |address: &Address| format!("{:?} {} {}", address.scheme, name_text(&address.zone), address.port);
        addresses(&word).map(|all| all.iter().map(show).collect()).map_err(|error| error.to_string())
    }

    #[test]
    fn address_is_parsed_into_zones_scheme_and_port() {
        for (text, expected) in [
            (".", &["Dns . 53"][..]),
            (".:1053", &["Dns . 1053"]),
            ("Example.org", &["Dns example.org. 53"]),
            ("example.org.:54", &["Dns example.org. 54"]),
            ("dns://example.org:54", &["Dns example.org. 54"]),
            ("tls://example.org", &["Tls example.org. 853"]),
            ("tls://.:8853", &["Tls . 8853"]),
            ("https://example.org", &["Https example.org. 443"]),
            ("https://.:8443", &["Https . 8443"]),
            ("grpc://example.org", &["Grpc example.org. 443"]),
            ("quic://example.org", &["Quic example.org. 853"]),
            ("quic://.:8853", &["Quic . 8853"]),
            ("10.0.0.0/8", &["Dns 10.in-addr.arpa. 53"]),
            ("10.1.0.0/16:54", &["Dns 1.10.in-addr.arpa. 54"]),
            ("10.2.0.0/15", &["Dns 2.10.in-addr.arpa. 53", "Dns 3.10.in-addr.arpa. 53"]),
            // RFC 2317 section 4, and escapes of RFC 1035 section 5.1.
            ("0/25.2.0.192.in-addr.arpa", &["Dns 0/25.2.0.192.in-addr.arpa. 53"]),
            ("a/b.example:443", &["Dns a/b.example. 443"]),
            (r"a\/b", &[r"Dns a/b. 53"]),
            (r"a\032b\.c.example", &[r"Dns a\ b\.c.example. 53"]),
            ("_tcp.*.-x.example", &["Dns _tcp.*.-x.example. 53"]),
            ("::1/128", &[&format!("Dns 1.{}ip6.arpa. 53", "0.".repeat(31))]),
            ("192.0.2.1/32", &["Dns 1.2.0.192.in-addr.arpa. 53"]),
            ("0.0.0.0/0", &["Dns in-addr.arpa. 53"]),
            ("2001:db8::/32", &["Dns 8.b.d.0.1.0.0.2.ip6.arpa. 53"]),
            ("2001:db8::/31:54", &["Dns 8.b.d.0.1.0.0.2.ip6.arpa. 54", "Dns 9.b.d.0.1.0.0.2.ip6.arpa. 54"]),
        ] {
            assert_eq!(
                parse(text).as_deref().map(<[_]>::to_vec),
                Ok(expected.iter().map(ToString::to_string).collect()),
                "{text}"
            );
        }
    }

    #[test]
    fn only_quic_may_have_the_port_of_tls_or_https() {
        for (one, other, shares) in [
            (Scheme::Quic, Scheme::Tls, false),
            (Scheme::Quic, Scheme::Https, false),
            (Scheme::Quic, Scheme::Quic, true),
            (Scheme::Quic, Scheme::Dns, true),
            (Scheme::Tls, Scheme::Https, true),
            (Scheme::Tls, Scheme::Dns, true),
        ] {
            assert_eq!(
                (one.shares_ports_with(other), other.shares_ports_with(one)),
                (shares, shares),
                "{one} {other}"
            );
        }
    }

    #[test]
    fn invalid_addresses_are_refused_with_a_hint() {
        let of_path = |zone: &str| {
            let hint = "a zone has no path, and DNS over HTTPS is always served at /dns-query";
            format!("Corefile:1:1: {zone:?} isn't a zone; {hint}")
        };
        for (text, expected) in [
            (
                "https3://.",
                "Corefile:1:1: https3:// isn't supported; the schemes are dns://, tls://, https://, grpc:// and quic://",
            ),
            ("example.org:", "Corefile:1:1: a port has to follow the last colon of \"example.org:\""),
            ("example.org:65536", "Corefile:1:1: a port is a number from 0 to 65535"),
            ("a..b", "Corefile:1:1: \"a..b\" isn't a zone, or a network such as 10.0.0.0/8"),
            ("10.0.0/24", "Corefile:1:1: \"10.0.0/24\" isn't a zone, or a network such as 10.0.0.0/8"),
            ("10.0.0.0/33", "Corefile:1:1: \"10.0.0.0/33\" isn't a zone, or a network such as 10.0.0.0/8"),
            ("10.0.0.0/8.", "Corefile:1:1: \"10.0.0.0/8.\" isn't a zone, or a network such as 10.0.0.0/8"),
            ("https://a.example/dns-query:443", &of_path("a.example/dns-query")),
            ("https://a.example:443/dns-query", &of_path("a.example:443/dns-query")),
            ("https://[2001:db8::1]/dns-query", &of_path("[2001:db8::1]/dns-query")),
            ("https://zone/q.", &of_path("zone/q.")),
            ("a.example/", &of_path("a.example/")),
            (r"a\", r#"Corefile:1:1: "a\\" isn't a zone, or a network such as 10.0.0.0/8"#),
            (":1053", "Corefile:1:1: \":1053\" names no zone; the address for all names is .:1053"),
            ("dns://", "Corefile:1:1: \"dns://\" names no zone; the address for all names is .:53"),
            ("a,b", "Corefile:1:1: \"a,b\" isn't a zone; white space separates zones"),
            (
                "(s)",
                "Corefile:1:1: \"(s)\" isn't a zone; the name of a snippet stands alone before its brace",
            ),
            ("{}", "Corefile:1:1: \"{}\" isn't a zone; a brace has to have white space around it"),
            (
                "bücher.example",
                "Corefile:1:1: \"bücher.example\" isn't a zone; a name that isn't ASCII has to be written as in xn--bcher-kva.example",
            ),
        ] {
            assert_eq!(parse(text), Err(expected.to_owned()), "{text}");
        }
    }
}
