//! The address and the transport of an upstream.

use std::fmt;
use std::net::SocketAddr;

use rustls::pki_types::ServerName;
use tokio_rustls::TlsConnector;

#[derive(Clone, Debug)]
pub struct UpstreamEndpoint {
    pub address: SocketAddr,
    pub transport: Transport,
}

#[derive(Clone, Debug)]
pub enum Transport {
    /// UDP, and TCP for truncated answers.
    Udp,
    Tcp,
    Tls(TlsClient),
}

#[derive(Clone)]
pub struct TlsClient {
    pub connector: TlsConnector,
    /// The name that the upstream's certificate must have; `None` for its address.
    pub name: Option<ServerName<'static>>,
}

impl UpstreamEndpoint {
    pub(crate) fn new(address: SocketAddr, transport: &Transport) -> Self {
        Self { address, transport: transport.clone() }
    }
}

impl TlsClient {
    pub(crate) fn name_at(&self, address: SocketAddr) -> ServerName<'static> {
        self.name.clone().unwrap_or_else(|| address.ip().into())
    }
}

impl fmt::Debug for TlsClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsClient").field("name", &self.name).finish_non_exhaustive()
    }
}

impl fmt::Display for UpstreamEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.transport {
            Transport::Tls(client) => {
                write!(f, "tls://{} ({})", self.address, client.name_at(self.address).to_str())
            }
            Transport::Udp | Transport::Tcp => self.address.fmt(f),
        }
    }
}
