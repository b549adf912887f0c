//! The syntax of flags' values.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use hickory_proto::rr::Name;
use ipnet::IpNet;
use jiff::SignedDuration;
use jiff::fmt::friendly::{Spacing, SpanPrinter};

use crate::dns::message::arpa::is_reverse;
use crate::dns::plugins::nets::unmapped;
use crate::label_selector::is_label_key;
use crate::model::clusters;
use crate::model::hostname_policy::PREFIX;
use crate::model::names;
use crate::sync::external_target::deletion_budget::MaxDeletes;
use crate::sync::k8s::instance::is_name;

/// Parses `127.0.0.1:53`, `[::1]:53` or `:53`; the last form means all addresses.
pub(crate) fn listen(text: &str) -> Result<SocketAddr, &'static str> {
    let any = |port: &str| Some(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port.parse().ok()?));
    text.parse()
        .ok()
        .or_else(|| any(text.strip_prefix(':')?))
        .ok_or("not an address and port such as 127.0.0.1:53, [::1]:53 or :53")
}

/// Parses an address like [`listen`], and accepts only loopback addresses.
pub(crate) fn loopback_listen(text: &str) -> Result<SocketAddr, &'static str> {
    let address = listen(text).ok().filter(|address| address.ip().is_loopback());
    address.ok_or("not a loopback address and port such as 127.0.0.1:8053 or [::1]:8053")
}

/// Parses the origin of a zone: only letters, digits, `-`, `_` and dots, and short enough for the names below the zone.
pub(crate) fn zone(text: &str) -> Result<Name, &'static str> {
    const WRONG: &str =
        "not a zone's name: letters, digits, hyphens and underscores, 1 to 63 between dots, 120 in all";
    /// Leaves room for the names of a Service and of a namespace.
    const MAX_DOMAIN_LENGTH: usize = 120;
    let text = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if text.is_empty() || text.len() > MAX_DOMAIN_LENGTH || !text.chars().all(allowed) {
        return Err(WRONG);
    }
    let mut name = Name::from_ascii(text).map_err(|_| WRONG)?;
    name.set_fqdn(true);
    if is_reverse(&name) {
        return Err(
            "a reverse zone: give a zone for the links' names, such as lb.internal, and for pointers a Corefile \
                    with lb_linker's option reverse",
        );
    }
    Ok(name)
}

pub(crate) fn domain(text: &str) -> Result<Name, &'static str> {
    const WRONG: &str = "not a domain such as cloud.example";
    let mut name =
        Name::from_ascii(text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase()).map_err(|_| WRONG)?;
    if name.num_labels() == 0 || name.is_wildcard() {
        return Err(WRONG);
    }
    name.set_fqdn(true);
    Ok(name)
}

/// Parses a network or a single address. An IPv4-mapped network becomes the IPv4 network. An address that looks like a
/// network without its length is refused.
pub(crate) fn net(text: &str) -> Result<IpNet, &'static str> {
    const WRONG: &str = "not a network such as 192.0.2.0/24 or 2001:db8::/32";
    if let Ok(net) = text.parse::<IpNet>() {
        return Ok(unmapped(net.trunc()));
    }
    let address = text.parse::<IpAddr>().map_err(|_| WRONG)?;
    let is_network = match address {
        IpAddr::V4(address) => address.octets()[3] == 0,
        IpAddr::V6(address) => address.segments()[4..] == [0; 4],
    };
    if is_network {
        return Err(
            "a network without its length, as in 192.0.2.0/24; a single address would end with /32 or /128",
        );
    }
    Ok(unmapped(address.into()))
}

pub(crate) fn annotation(text: &str) -> Result<String, &'static str> {
    if is_label_key(text) {
        Ok(text.to_owned())
    } else {
        Err("not the key of an annotation such as external-dns.alpha.kubernetes.io/hostname")
    }
}

/// Parses the prefix of annotations of another program.
pub(crate) fn annotation_prefix(text: &str) -> Result<String, &'static str> {
    match text.strip_suffix('/') {
        _ if text == PREFIX => Err("the prefix of lb-linker's own annotations, which always count"),
        Some(domain) if object_name(domain).is_ok() => Ok(text.to_owned()),
        _ => {
            Err("not a prefix of annotations such as external-dns.kubernetes.io/, with the slash at its end")
        }
    }
}

/// Parses the name of a namespace, or `*` for all.
pub(crate) fn namespace_or_all(text: &str) -> Result<String, &'static str> {
    if text == "*" { Ok(text.to_owned()) } else { dns_label(text) }
}

/// As [`namespace_or_all`], or a namespace of a remote cluster, or all of them, as in `west/shop` and `west/*`.
pub(crate) fn namespaces_of_clusters(text: &str) -> Result<String, &'static str> {
    let (cluster, namespace) = clusters::split(text);
    cluster.map_or(Ok(String::new()), dns_label)?;
    namespace_or_all(namespace)?;
    Ok(text.to_owned())
}

pub(crate) fn max_deletes(text: &str) -> Result<MaxDeletes, &'static str> {
    if text == "unlimited" {
        return Ok(MaxDeletes::Unlimited);
    }
    text.parse().map(MaxDeletes::Number).map_err(|_| "neither a number nor \"unlimited\"")
}

/// Parses a duration of zero or more.
pub(crate) fn delay(text: &str) -> Result<Duration, &'static str> {
    text.parse::<SignedDuration>()
        .ok()
        .and_then(|duration| Duration::try_from(duration).ok())
        .ok_or("not a duration such as 0s, 90s, 10m or 1h30m")
}

/// Formats a duration so that [`delay`] can parse it.
pub(crate) fn duration_text(duration: Duration) -> String {
    SpanPrinter::new().spacing(Spacing::None).unsigned_duration_to_string(&duration)
}

/// Parses the name of a namespace (RFC 1123 label).
pub(crate) fn dns_label(text: &str) -> Result<String, &'static str> {
    if names::is_label(text) {
        Ok(text.to_owned())
    } else {
        Err("not a namespace's name: lower-case letters, digits and hyphens, 63 at most")
    }
}

/// Parses a value of `spec.loadBalancerClass`: a name, with or without a domain and a slash before it.
pub(crate) fn load_balancer_class(text: &str) -> Result<String, &'static str> {
    if is_name(text) {
        Ok(text.to_owned())
    } else {
        Err("not a load balancer class such as service.k8s.aws/nlb, or none")
    }
}

/// Parses the name of an object (RFC 1123 subdomain).
pub(crate) fn object_name(text: &str) -> Result<String, &'static str> {
    if text.len() <= 253 && text.split('.').all(names::is_label) {
        Ok(text.to_owned())
    } else {
        Err("not an object's name: lower-case letters, digits, hyphens and dots, 253 at most")
    }
}

pub(crate) fn instance(text: &str) -> Result<String, &'static str> {
    if is_name(text) {
        Ok(text.to_owned())
    } else {
        Err("not the name of an instance: 1 to 317 letters, digits, hyphens, underscores, dots and slashes")
    }
}

/// Parses the name of a replica.
pub(crate) fn identity(text: &str) -> Result<String, &'static str> {
    if text.is_empty() || text.len() > 253 || text.chars().any(|c| c.is_control() || c.is_whitespace()) {
        Err("not a name: 1 to 253 characters without spaces")
    } else {
        Ok(text.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_of_mapped_addresses_is_the_ipv4_network() {
        for (text, expected) in [
            ("::ffff:10.1.2.3/104", "10.0.0.0/8"),
            ("::ffff:192.0.2.1", "192.0.2.1/32"),
            ("10.1.2.3/8", "10.0.0.0/8"),
            ("2001:db8::1/32", "2001:db8::/32"),
            ("::/0", "::/0"),
        ] {
            assert_eq!(net(text).unwrap().to_string(), expected, "{text}");
        }
    }

    #[test]
    fn annotation_prefix_is_a_domain_with_a_slash() {
        for prefix in ["external-dns.kubernetes.io/", "external-dns.alpha.kubernetes.io/", "a/"] {
            assert_eq!(annotation_prefix(prefix).as_deref(), Ok(prefix));
        }
        for text in ["", "/", "external-dns.kubernetes.io", "a.example/b", "a.example//", "A.example/", "-a/"]
        {
            assert!(annotation_prefix(text).unwrap_err().contains("with the slash at its end"), "{text}");
        }
        assert!(annotation_prefix("linker.hsj.com/").unwrap_err().contains("always count"));
    }

    #[test]
    fn network_without_its_length_is_refused() {
        for text in ["10.96.0.0", "0.0.0.0", "2001:db8::", "::"] {
            assert!(net(text).unwrap_err().starts_with("a network without its length"), "{text}");
        }
        for text in ["10.96.0.0/32", "10.96.0.1", "2001:db8::1", "::1", "2001:db8::/128"] {
            net(text).unwrap();
        }
    }
}
