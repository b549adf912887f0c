//! What the name of a question means.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::model::names;

/// The meaning of a name in a zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Question<'a> {
    Apex,
    /// `svc` or `pod`.
    Branch,
    Namespace(Branch, &'a str),
    Object {
        branch: Branch,
        namespace: &'a str,
        name: &'a str,
        below: Below<'a>,
    },
    /// `dns-version`, which has a TXT record.
    Version,
    /// `dns`, above `ns.dns`.
    AboveNameServer,
    /// `ns.dns`, the name server of the zone.
    NameServer,
    /// Nothing can have the name.
    Nothing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Branch {
    Services,
    Pods,
}

/// What stands before the name of a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Below<'a> {
    Itself,
    Endpoint(&'a [u8]),
    /// An endpoint of a ServiceImport in a cluster.
    EndpointIn {
        cluster: &'a [u8],
        endpoint: &'a [u8],
    },
    /// The first underscore of each label is left out. An empty one stands for all.
    Port {
        port: &'a [u8],
        protocol: &'a [u8],
    },
    /// The endpoints in a topology zone, in wire form without the root octet; all if there are none, unless it is a pin.
    Zone {
        zone: &'a [u8],
        is_pin: bool,
    },
    /// `_zone`, or `pin` or `prefer` below it.
    AboveZone,
}

/// Which names Services have below them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Grammar {
    Plain,
    /// Headless Services also those of topology zones.
    Zonal,
    /// Services are ServiceImports, and have endpoints in clusters.
    Multicluster,
}

/// The label before a Service's name, below which are its topology zones.
const ZONE: &[u8] = b"_zone";

impl<'a> Question<'a> {
    /// Parses a name below a zone, in wire form without the zone, in lower case.
    pub(super) fn parse(below: &'a [u8], grammar: Grammar) -> Self {
        let wire = below;
        let mut labels: Vec<&[u8]> = names::labels(below).collect();
        labels.reverse();
        let text = |label: &'a [u8]| std::str::from_utf8(label).ok();
        let branch = match labels[..] {
            [] => return Self::Apex,
            [b"dns"] => return Self::AboveNameServer,
            [b"dns", b"ns"] => return Self::NameServer,
            [b"dns-version"] => return Self::Version,
            [b"svc", ..] => Branch::Services,
            [b"pod", ..] => Branch::Pods,
            _ => return Self::Nothing,
        };
        let zonal = grammar == Grammar::Zonal && branch == Branch::Services;
        let is_plain = |label: &[u8]| !label.starts_with(b"_");
        let below = match labels[1..] {
            [] => return Self::Branch,
            [namespace] => {
                return text(namespace).map_or(Self::Nothing, |text| Self::Namespace(branch, text));
            }
            [_, _] => Below::Itself,
            [_, _, ZONE] | [_, _, ZONE, b"pin" | b"prefer"] if zonal => Below::AboveZone,
            [_, _, ZONE, directive @ (b"pin" | b"prefer"), ref zone @ ..] if zonal => {
                let length = zone.iter().map(|label| label.len() + 1).sum();
                Below::Zone { zone: wire.get(..length).unwrap_or_default(), is_pin: directive == b"pin" }
            }
            [_, _, endpoint] => Below::Endpoint(endpoint),
            [_, _, cluster, endpoint]
                if grammar == Grammar::Multicluster && is_plain(cluster) && is_plain(endpoint) =>
            {
                Below::EndpointIn { cluster, endpoint }
            }
            [_, _, protocol, port] => Below::Port { port: stripped(port), protocol: stripped(protocol) },
            _ => return Self::Nothing,
        };
        match (text(labels[1]), text(labels[2])) {
            (Some(namespace), Some(name)) => Self::Object { branch, namespace, name, below },
            _ => Self::Nothing,
        }
    }
}

pub(super) fn stripped(label: &[u8]) -> &[u8] {
    label.strip_prefix(b"_").unwrap_or(label)
}

/// Returns the address that a whole reverse name stands for, in wire form in lower case. A number has no leading zero.
pub(super) fn address_of(name: &[u8]) -> Option<IpAddr> {
    let mut labels: Vec<&[u8]> = names::labels(name).filter(|label| !label.is_empty()).collect();
    let (b"arpa", family) = (labels.pop()?, labels.pop()?) else { return None };
    labels.reverse();
    let text = |label: &&[u8]| std::str::from_utf8(label).ok().map(str::to_owned);
    let texts: Vec<String> = labels.iter().map(text).collect::<Option<_>>()?;
    match (family, texts.len()) {
        (b"in-addr", 4) => texts.join(".").parse::<Ipv4Addr>().ok().map(IpAddr::V4),
        (b"ip6", 32) => {
            let is_digit =
                |text: &String| text.len() == 1 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
            let digits = texts.iter().all(is_digit).then(|| texts.concat())?;
            u128::from_str_radix(&digits, 16).ok().map(|bits| Ipv6Addr::from(bits).into())
        }
        _ => None,
    }
}

/// Returns whether a zone in wire form, in lower case, is a reverse zone.
#[must_use]
pub fn is_reverse(zone: &[u8]) -> bool {
    let is = |arpa: &[u8]| {
        let mut rest = Some(zone);
        std::iter::from_fn(|| {
            let name = rest?;
            rest = names::split(name).filter(|(label, _)| !label.is_empty()).map(|(_, above)| above);
            Some(name)
        })
        .any(|name| name == arpa)
    };
    is(b"\x07in-addr\x04arpa\0") || is(b"\x03ip6\x04arpa\0")
}
