//! The address and the transport of an upstream.

use std::fmt;
use std::net::SocketAddr;

use rustls::pki_types::ServerName;
use tokio_rustls::TlsConnector;

use super::http::{HttpClient, HttpFormat, HttpRequests};

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
    /// DNS over HTTPS or over gRPC.
    Http(HttpClient),
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

    /// Returns what makes the requests, if the upstream is asked by HTTP.
    pub(crate) fn requests(&self) -> Option<HttpRequests> {
        match &self.transport {
            Transport::Http(client) => Some(client.requests_to(self.address)),
            Transport::Udp | Transport::Tcp | Transport::Tls(_) => None,
        }
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
            Transport::Http(HttpClient { tls, format, .. }) => {
                match format {
                    HttpFormat::Dns { path, .. } => write!(f, "https://{}{path}", self.address)?,
                    HttpFormat::Grpc => write!(f, "grpc://{}", self.address)?,
                }
                match tls {
                    Some(tls) => write!(f, " ({})", tls.name_at(self.address).to_str()),
                    None => Ok(()),
                }
            }
            Transport::Udp | Transport::Tcp => self.address.fmt(f),
        }
    }
}
