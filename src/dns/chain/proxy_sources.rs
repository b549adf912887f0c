//! Whose PROXY headers count.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

use crate::dns::message::proxy_header::ProxyHeader;
use crate::dns::net::unmapped;

/// The sources of a listener whose PROXY headers name the clients.
#[derive(Debug, PartialEq, Eq)]
pub struct ProxySources {
    pub allowed: Vec<IpNet>,
    /// What is done with the headers of all others.
    pub others: ProxyPolicy,
}

/// What is done with the header of a source. Without a header, the source is the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyPolicy {
    /// It names the client.
    Use,
    /// It is read and discarded.
    Ignore,
    /// The connection is closed, or the datagram dropped.
    Reject,
    /// It isn't looked for.
    Skip,
}

/// What is done with the first bytes of a connection or datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyStep {
    /// Goes on for this client behind a header of `length` bytes.
    Serve {
        client: SocketAddr,
        length: usize,
    },
    Wait,
    /// Closes the connection, or drops the datagram, for this reason.
    Refuse(&'static str),
}

impl ProxySources {
    #[must_use]
    pub fn policy(&self, source: IpAddr) -> ProxyPolicy {
        let source = source.to_canonical();
        if self.allowed.iter().any(|net| net.contains(&source)) { ProxyPolicy::Use } else { self.others }
    }

    /// Returns what is done with a header of a source.
    #[must_use]
    pub fn step(&self, source: SocketAddr, header: ProxyHeader) -> ProxyStep {
        let policy = self.policy(source.ip());
        match (policy, header) {
            (ProxyPolicy::Skip, _) | (_, ProxyHeader::Absent) => {
                ProxyStep::Serve { client: source, length: 0 }
            }
            (_, ProxyHeader::Incomplete) => ProxyStep::Wait,
            (_, ProxyHeader::Invalid(why)) => ProxyStep::Refuse(why),
            (ProxyPolicy::Reject, _) => ProxyStep::Refuse("its source isn't allowed to send one"),
            (ProxyPolicy::Ignore, ProxyHeader::Present { length, .. }) => {
                ProxyStep::Serve { client: source, length }
            }
            (ProxyPolicy::Use, ProxyHeader::Present { length, client }) => {
                // No client has port 0 or the address 0.0.0.0 or ::, which stand for lb-linker's own requests.
                let client = client.map(unmapped).filter(|client| !client.ip().is_unspecified());
                let client = client.map_or(source, |client| {
                    let port = if client.port() == 0 { source.port() } else { client.port() };
                    SocketAddr::new(client.ip(), port)
                });
                ProxyStep::Serve { client, length }
            }
        }
    }
}
