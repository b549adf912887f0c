//! `lb-linker stub`: lets the DNS of the cluster forward the zones to lb-linker, and finds where that fails.

pub mod apply;
pub mod changes;
pub mod cluster;
pub mod corefile;
pub mod own_service;
pub mod platform;
pub mod report;
pub mod served_zones;
pub mod verify;
mod zone_blocks;

use std::net::IpAddr;

/// The port of DNS (RFC 1035 section 4.2).
const DNS_PORT: u16 = 53;

/// The zones that the cluster DNS has to forward, and lb-linker's Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forwarding {
    /// The zones, in lower case and without a dot at the end.
    pub zones: Vec<String>,
    /// `<namespace>/<name>` of the Service.
    pub service: String,
    /// The cluster IPs of the Service, in the order of `spec.clusterIPs`.
    pub addresses: Vec<IpAddr>,
    pub port: u16,
}

impl Forwarding {
    /// Returns the first cluster IP, with the port unless it is 53; empty without a cluster IP.
    #[must_use]
    pub fn upstream(&self) -> String {
        self.addresses.first().map_or_else(String::new, |address| endpoint(*address, self.port))
    }

    /// Returns whether an argument of `forward` is an address of the Service.
    #[must_use]
    pub fn is_upstream(&self, argument: &str) -> bool {
        let argument = argument.strip_prefix("dns://").unwrap_or(argument);
        self.addresses.iter().any(|&address| {
            argument == endpoint(address, self.port) || argument == with_port(address, self.port)
        })
    }
}

fn endpoint(address: IpAddr, port: u16) -> String {
    if port == DNS_PORT { address.to_string() } else { with_port(address, port) }
}

fn with_port(address: IpAddr, port: u16) -> String {
    std::net::SocketAddr::new(address, port).to_string()
}

#[cfg(test)]
mod test_support;
