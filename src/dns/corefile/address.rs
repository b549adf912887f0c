//! What a server block is for: `[SCHEME://]ZONE[:PORT]`.

use std::fmt;

use hickory_proto::rr::Name;
use ipnet::IpNet;

use super::{CorefileError, Word};
use crate::dns::origins::absolute;
use crate::dns::zone::reverse_origins;

/// How a block is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scheme {
    /// UDP and TCP.
    Dns,
    /// TLS (RFC 7858).
    Tls,
}

/// A zone of a block, and where it is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// How.
    pub scheme: Scheme,
    /// The zone, absolute and in lower case.
    pub zone: Name,
    /// The port; 0 is any that is free.
    pub port: u16,
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Dns => "dns",
            Self::Tls => "tls",
        })
    }
}

impl Scheme {
    /// Returns the port where none is named (RFC 1035 section 4.2, RFC 7858 section 3.1).
    #[must_use]
    pub fn port(self) -> u16 {
        match self {
            Self::Dns => 53,
            Self::Tls => 853,
        }
    }
}

/// Parses what stands before a block. A network in CIDR form stands for its reverse zones: several, where
/// it doesn't end at a label.
///
/// # Errors
/// If it is no address of a block.
pub fn addresses(word: &Word) -> Result<Vec<Address>, CorefileError> {
    let wrong = |message: String| word.place.error(message);
    let (scheme, rest) = match word.text.split_once("://") {
        None | Some(("dns", _)) => (Scheme::Dns, word.text.trim_start_matches("dns://")),
        Some(("tls", rest)) => (Scheme::Tls, rest),
        Some((scheme, _)) => {
            return Err(wrong(format!("{scheme}:// isn't supported; the schemes are dns:// and tls://")));
        }
    };
    let (zone, port) = match rest.rsplit_once(':') {
        Some((_, "")) => return Err(wrong(format!("a port has to follow the last colon of {rest:?}"))),
        Some((zone, port)) if port.bytes().all(|b| b.is_ascii_digit()) => {
            (zone, port.parse().map_err(|_| wrong("a port is a number from 0 to 65535".to_owned()))?)
        }
        _ => (rest, scheme.port()),
    };
    let zones = zones(zone)
        .ok_or_else(|| wrong(format!("{zone:?} isn't a zone, or a network such as 10.0.0.0/8")))?;
    Ok(zones.into_iter().map(|zone| Address { scheme, zone, port }).collect())
}

/// Returns the zones that a word stands for: its own, or the reverse zones of a network. Nothing stands for
/// the root, as in CoreDNS.
#[must_use]
pub fn zones(text: &str) -> Option<Vec<Name>> {
    if let Ok(net) = text.parse::<IpNet>() {
        return Some(reverse_origins(net).collect());
    }
    let zone = Name::from_ascii(if text.is_empty() { "." } else { text }).ok()?;
    Some(vec![absolute(&zone)])
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::words;
    use super::*;

    fn parse(text: &str) -> Result<Vec<String>, String> {
        let word = words(&Path::new("Corefile").into(), text).remove(0);
        let show = |address: &Address| format!("{:?} {} {}", address.scheme, address.zone, address.port);
        addresses(&word).map(|all| all.iter().map(show).collect()).map_err(|error| error.to_string())
    }

    #[test]
    fn zones_schemes_ports_and_networks() {
        for (text, expected) in [
            (".", &["Dns . 53"][..]),
            (".:1053", &["Dns . 1053"]),
            (":1053", &["Dns . 1053"]),
            ("Example.org", &["Dns example.org. 53"]),
            ("example.org.:54", &["Dns example.org. 54"]),
            ("dns://example.org:54", &["Dns example.org. 54"]),
            ("tls://example.org", &["Tls example.org. 853"]),
            ("tls://.:8853", &["Tls . 8853"]),
            ("10.0.0.0/8", &["Dns 10.in-addr.arpa. 53"]),
            ("10.1.0.0/16:54", &["Dns 1.10.in-addr.arpa. 54"]),
            ("10.2.0.0/15", &["Dns 2.10.in-addr.arpa. 53", "Dns 3.10.in-addr.arpa. 53"]),
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
    fn what_is_no_address_is_refused_by_name() {
        for (text, expected) in [
            ("grpc://.", "Corefile:1:1: grpc:// isn't supported; the schemes are dns:// and tls://"),
            (
                "https://example.org",
                "Corefile:1:1: https:// isn't supported; the schemes are dns:// and tls://",
            ),
            ("example.org:", "Corefile:1:1: a port has to follow the last colon of \"example.org:\""),
            ("example.org:65536", "Corefile:1:1: a port is a number from 0 to 65535"),
            ("a..b", "Corefile:1:1: \"a..b\" isn't a zone, or a network such as 10.0.0.0/8"),
        ] {
            assert_eq!(parse(text), Err(expected.to_owned()), "{text}");
        }
    }
}
