//! Where an upstream is, and how it is spoken to.

use std::fmt;
use std::net::SocketAddr;

use rustls::pki_types::ServerName;
use tokio_rustls::TlsConnector;

/// Where an upstream is, and how it is spoken to.
#[derive(Clone, Debug)]
pub struct UpstreamEndpoint {
    /// Address and port.
    pub address: SocketAddr,
    /// By which transport.
    pub transport: Transport,
}

/// How an upstream is spoken to.
#[derive(Clone, Debug)]
pub enum Transport {
    /// By UDP, and by TCP where an answer doesn't fit.
    Udp,
    /// By TCP alone.
    Tcp,
    /// By TLS alone.
    Tls(TlsClient),
}

/// How an upstream is spoken to by TLS.
#[derive(Clone)]
pub struct TlsClient {
    /// How to connect.
    pub connector: TlsConnector,
    /// The name that its certificate must bear.
    pub name: ServerName<'static>,
}

impl fmt::Debug for TlsClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsClient").field("name", &self.name).finish_non_exhaustive()
    }
}

impl fmt::Display for UpstreamEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.transport {
            Transport::Tls(client) => write!(f, "tls://{} ({})", self.address, client.name.to_str()),
            Transport::Udp | Transport::Tcp => self.address.fmt(f),
        }
    }
}
