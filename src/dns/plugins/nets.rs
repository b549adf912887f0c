//! Networks of clients.

use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net};

use crate::dns::corefile::{CorefileError, Token};

/// Disjoint networks, sorted by their first address.
#[derive(Debug)]
pub(super) struct Nets(Vec<IpNet>);

impl Nets {
    pub(super) fn new(nets: &Vec<IpNet>) -> Self {
        let mut nets = IpNet::aggregate(nets);
        nets.sort_unstable_by_key(IpNet::network);
        Self(nets)
    }

    pub(super) fn all(&self) -> &[IpNet] {
        &self.0
    }

    pub(super) fn contains(&self, client: IpAddr) -> bool {
        let behind = self.0.partition_point(|net| net.network() <= client);
        self.0[..behind].last().is_some_and(|net| net.contains(&client))
    }
}

/// Parses a network, or an address as the network of this address alone.
///
/// # Errors
/// Fails if the word is neither a network nor an address.
pub(super) fn net(word: &Token) -> Result<IpNet, CorefileError> {
    let net = match word.text.parse::<IpAddr>() {
        Ok(ip) => IpNet::from(ip),
        Err(_) => word.parse("an address, or a network such as 10.0.0.0/8")?,
    };
    Ok(unmapped(net))
}

/// Returns the IPv4 network of a network of IPv4-mapped addresses (RFC 4291 section 2.5.5.2), and any other network
/// unchanged. The addresses of clients and of targets are unmapped, too.
pub(crate) fn unmapped(net: IpNet) -> IpNet {
    const MAPPED: u8 = 96;
    match net {
        IpNet::V6(mapped) if mapped.prefix_len() >= MAPPED => mapped
            .network()
            .to_ipv4_mapped()
            .and_then(|ip| Ipv4Net::new(ip, mapped.prefix_len() - MAPPED).ok())
            .map_or(net, IpNet::V4),
        _ => net,
    }
}
