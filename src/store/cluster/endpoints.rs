//! The names of endpoints below their Services.

use std::borrow::Cow;
use std::net::IpAddr;

use super::objects::Slice;

/// An address of an endpoint, with the name that it has instead of its dashed address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Endpoint<'a> {
    pub(super) ip: IpAddr,
    pub(super) name: Option<&'a str>,
}

impl Slice {
    pub(super) fn endpoints(&self) -> impl Iterator<Item = Endpoint<'_>> {
        let mut names = self.names.iter().peekable();
        (0_u32..).zip(&self.addresses).map(move |(place, ip)| {
            let named = names.next_if(|(at, _)| *at == place);
            Endpoint { ip: *ip, name: named.map(|(_, name)| &**name) }
        })
    }

    pub(super) fn has(&self, ip: IpAddr) -> bool {
        self.addresses.contains(&ip)
    }
}

impl<'a> Endpoint<'a> {
    pub(super) fn label(&self) -> Cow<'a, str> {
        self.name.map_or_else(|| dashed(self.ip).into(), Cow::Borrowed)
    }
}

/// The name of an endpoint in a question.
pub(super) struct WantedEndpoint<'a> {
    label: &'a [u8],
    /// The address whose dashed form this is.
    ip: Option<IpAddr>,
}

impl<'a> WantedEndpoint<'a> {
    pub(super) fn new(label: &'a [u8]) -> Self {
        let ip = std::str::from_utf8(label).ok().and_then(|label| {
            let candidate = from_dashed(label)?;
            (dashed(candidate) == label).then_some(candidate)
        });
        Self { label, ip }
    }

    pub(super) fn is(&self, endpoint: &Endpoint<'_>) -> bool {
        match endpoint.name {
            Some(name) => name.as_bytes().eq_ignore_ascii_case(self.label),
            None => self.ip == Some(endpoint.ip),
        }
    }
}

/// Returns the name of an endpoint without a hostname: `10-0-0-1`, or `2001-db8--1`. A label doesn't end with a hyphen.
pub(super) fn dashed(ip: IpAddr) -> String {
    match ip {
        IpAddr::V4(ip) => ip.to_string().replace('.', "-"),
        IpAddr::V6(ip) => {
            let mut label = ip.to_string().replace(':', "-");
            if label.ends_with('-') {
                label.push('0');
            }
            label
        }
    }
}

/// Returns the address that the label of a Pod or an endpoint stands for.
pub(super) fn from_dashed(label: &str) -> Option<IpAddr> {
    address_text(label).parse().ok()
}

/// Returns the text of the address that the label of a Pod stands for, as CoreDNS reads it.
pub(super) fn address_text(label: &str) -> String {
    let is_v4 = label.bytes().filter(|byte| *byte == b'-').count() == 3 && !label.contains("--");
    label.replace('-', if is_v4 { "." } else { ":" })
}
