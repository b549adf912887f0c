//! Parses the upstreams of `forward`: addresses, files like resolv.conf, and host names.

use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::path::Path;

use hickory_proto::rr::Name;
use rustls::pki_types::ServerName;

use crate::dns::corefile::resolv_conf::{nameservers, scope};
use crate::dns::corefile::{CorefileError, Directive, Scheme, Token};
use crate::dns::message::https;
use crate::dns::plugins::client_tls::server_name;
use crate::dns::plugins::setup::{HostResolvers, Setup};
use crate::dns::upstream::bootstrap::UpstreamAddr;

#[derive(Clone, Debug, PartialEq)]
pub(in crate::dns::plugins) struct Destination {
    pub(super) scheme: Scheme,
    pub(in crate::dns::plugins) at: AddressOrHost,
    /// The name that the upstream's certificate has to be valid for.
    pub(super) server_name: Option<ServerName<'static>>,
    /// The path of requests by HTTPS.
    pub(super) path: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::dns::plugins) enum AddressOrHost {
    Address(SocketAddr),
    Host(String, u16),
}

const RESOLV_CONF: &str = "/etc/resolv.conf";
const HOSTS: &str = "/etc/hosts";
const EXPECTED_FORMS: &str = "an address such as 192.0.2.1, [2001:db8::1]:53, tls://192.0.2.1%dns.example.com or \
                              https://192.0.2.1/dns-query, a file like /etc/resolv.conf, or a host's name";

/// Returns the upstreams of a word: several if the word is a file.
pub(in crate::dns::plugins) fn destinations(
    word: &Token,
    setup: &mut Setup<'_>,
) -> Result<Vec<Destination>, CorefileError> {
    let (scheme, text) = match word.text.split_once("://") {
        None => (Scheme::Dns, &*word.text),
        Some(("dns", rest)) => (Scheme::Dns, rest),
        Some(("tls", rest)) => (Scheme::Tls, rest),
        Some(("https", rest)) => {
            let (at, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
            let parts = Parts::of(at).ok_or_else(|| word.unexpected(EXPECTED_FORMS))?;
            let destination = match parts.host.parse() {
                Ok(ip) => parts.at_address(ip, Scheme::Https, word)?,
                Err(_) => parts.at_host(Scheme::Https, word)?,
            };
            return Ok(vec![Destination { path: url_path(path, word)?, ..destination }]);
        }
        Some((scheme, _)) => {
            return Err(word.error(format!(
                "{scheme}:// is no way to reach an upstream; there are dns:// (UDP and TCP), tls:// (RFC 7858) and \
                 https:// (RFC 8484)"
            )));
        }
    };
    let parts = Parts::of(text).ok_or_else(|| word.unexpected(EXPECTED_FORMS))?;
    if let Ok(ip) = parts.host.parse() {
        return Ok(vec![parts.at_address(ip, scheme, word)?]);
    }
    if text.contains('/') || !text.is_empty() && Path::new(text).is_file() {
        if scheme == Scheme::Tls {
            return Err(word.error("tls:// needs an address or a host's name, not a file"));
        }
        let text = setup.read(Path::new(text)).map_err(|error| word.error(format!("{text}: {error}")))?;
        let at = |address| Destination::new(scheme, AddressOrHost::Address(address), None);
        return Ok(nameservers(&String::from_utf8_lossy(&text)).map(at).collect());
    }
    parts.at_host(scheme, word).map(|destination| vec![destination])
}

/// Notes which servers resolve the host names of the upstreams `to`: the `named` ones, or those of resolv.conf unless
/// the names are in the file of hosts.
pub(super) fn note_resolvers(
    named: &[SocketAddr],
    to: &[UpstreamAddr],
    line: &Directive,
    setup: &mut Setup<'_>,
) {
    let servers = if named.is_empty() {
        let known = text_of(HOSTS, setup);
        let is_known = |to: &UpstreamAddr| match to {
            UpstreamAddr::Host(host, ..) => has_host(&known, host),
            UpstreamAddr::Address(..) => true,
        };
        if to.iter().all(is_known) {
            return;
        }
        nameservers(&text_of(RESOLV_CONF, setup)).collect()
    } else {
        named.to_vec()
    };
    // The last one counts.
    let option = line.options().iter().rfind(|option| option.name() == "resolver");
    let word = option.and_then(|option| option.arguments().first());
    let position = word.map_or_else(|| line.position(), |word| &word.position).clone();
    setup.builder.host_resolvers.push(HostResolvers { servers, are_named: !named.is_empty(), position });
}

/// Returns the text of a file, which is empty if it can't be read.
fn text_of(file: &str, setup: &mut Setup<'_>) -> String {
    String::from_utf8_lossy(&setup.read(Path::new(file)).unwrap_or_default()).into_owned()
}

/// Returns whether a file of hosts has a name.
fn has_host(hosts: &str, name: &str) -> bool {
    let lines = hosts.lines().map(|line| line.split('#').next().unwrap_or_default());
    lines.flat_map(|line| line.split_whitespace().skip(1)).any(|known| known.eq_ignore_ascii_case(name))
}

/// Checks the path of a URL, which may be empty.
fn url_path(path: &str, word: &Token) -> Result<String, CorefileError> {
    // RFC 3986 section 3.3.
    let is_allowed = |b: u8| b.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@%/".contains(&b);
    if !path.bytes().all(is_allowed) {
        return Err(word.error(format!(
            "{path:?} isn't a path such as /dns-query; it has no parameters, and doh_method GET adds the parameter dns"
        )));
    }
    Ok(if path.is_empty() { https::PATH } else { path }.to_owned())
}

impl Destination {
    fn new(scheme: Scheme, at: AddressOrHost, server_name: Option<ServerName<'static>>) -> Self {
        Self { scheme, at, server_name, path: String::new() }
    }
}

/// The parts of `HOST%ZONE:PORT`, `[HOST%ZONE]:PORT` or `[HOST]%ZONE:PORT`.
struct Parts<'a> {
    host: &'a str,
    zone: Option<&'a str>,
    port: Option<&'a str>,
}

impl<'a> Parts<'a> {
    fn of(text: &'a str) -> Option<Self> {
        let (host, rest) = match text.strip_prefix('[') {
            Some(text) => text.split_once(']')?,
            None if text.parse::<IpAddr>().is_ok() => (text, ""),
            None => match text.rsplit_once('%') {
                Some((host, _)) => (host, &text[host.len()..]),
                None => text.split_at(text.rfind(':').unwrap_or(text.len())),
            },
        };
        let (host, inner) = host.split_once('%').map_or((host, None), |(host, zone)| (host, Some(zone)));
        let (outer, port) = rest.split_once(':').map_or((rest, None), |(rest, port)| (rest, Some(port)));
        let zone = match (inner, outer.strip_prefix('%')) {
            (zone, None) if outer.is_empty() => zone,
            (None, zone @ Some(_)) => zone,
            _ => return None,
        };
        Some(Self { host, zone, port })
    }

    fn at_address(&self, ip: IpAddr, scheme: Scheme, word: &Token) -> Result<Destination, CorefileError> {
        let port = self.port(scheme, word)?;
        let plain = |address| Destination::new(scheme, AddressOrHost::Address(address), None);
        match (self.zone, ip) {
            (None, _) => Ok(plain(SocketAddr::new(ip, port))),
            (Some(_), _) if scheme != Scheme::Dns => {
                let server_name = self.server_name(word)?;
                Ok(Destination { server_name, ..plain(SocketAddr::new(ip, port)) })
            }
            (Some(zone), IpAddr::V6(ip)) => {
                let scope = scope(zone)
                    .ok_or_else(|| word.error(format!("there is no network interface {zone:?}")))?;
                Ok(plain(SocketAddrV6::new(ip, port, 0, scope).into()))
            }
            (Some(zone), IpAddr::V4(_)) => Err(word.error(format!(
                "%{zone} is a network interface after an IPv6 address, or a certificate's name with tls:// and \
                 https://; it isn't allowed here"
            ))),
        }
    }

    fn at_host(&self, scheme: Scheme, word: &Token) -> Result<Destination, CorefileError> {
        let label = |label: &str| label.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b));
        let last = self.host.trim_end_matches('.').rsplit('.').next().unwrap_or_default();
        // A name that ends in a number is meant to be an address (RFC 3696 section 2).
        let is_name = self.host.trim_end_matches('.').split('.').all(label)
            && !last.bytes().all(|b| b.is_ascii_digit())
            && Name::from_ascii(self.host).is_ok()
            && (self.zone.is_none() || scheme != Scheme::Dns);
        if !is_name {
            return Err(word.unexpected(EXPECTED_FORMS));
        }
        let at = AddressOrHost::Host(self.host.to_owned(), self.port(scheme, word)?);
        Ok(Destination::new(scheme, at, self.server_name(word)?))
    }

    fn port(&self, scheme: Scheme, word: &Token) -> Result<u16, CorefileError> {
        let Some(port) = self.port else { return Ok(scheme.port()) };
        let number = port.parse().ok().filter(|port| *port != 0);
        number.ok_or_else(|| word.error(format!("{port:?} isn't a port: a number from 1 to 65535")))
    }

    fn server_name(&self, word: &Token) -> Result<Option<ServerName<'static>>, CorefileError> {
        self.zone.map(|name| server_name(name, word)).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_found_in_their_file() {
        let hosts =
            "127.0.0.1 localhost\n192.0.2.1\ta.example  B.example # c.example\n#192.0.2.2 d.example\n";
        for (name, expected) in [
            ("a.example", true),
            ("b.example", true),
            ("c.example", false),
            ("d.example", false),
            ("192.0.2.1", false),
        ] {
            assert_eq!(has_host(hosts, name), expected, "{name}");
        }
    }
}
