//! The PROXY header at the beginning of a connection.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;

use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::dns::chain::proxy_sources::{ProxySources, ProxyStep};
use crate::dns::message::proxy_header;
use crate::dns::transport::connections::ConnectionLimits;

/// How many bytes are looked at together: a header of version 1 has 107 at most.
const CHUNK: usize = 256;

/// Reads the header, and no byte behind it, and returns the client.
///
/// # Errors
/// If the connection breaks, the header doesn't arrive in time, or it is refused ([`ErrorKind::InvalidData`]).
pub(super) async fn client(
    stream: &mut TcpStream,
    sender: SocketAddr,
    sources: &ProxySources,
    limits: ConnectionLimits,
) -> io::Result<SocketAddr> {
    timeout(limits.idle, stream.peek(&mut [0])).await??;
    timeout(limits.read, read(stream, sender, sources)).await?
}

async fn read(stream: &mut TcpStream, sender: SocketAddr, sources: &ProxySources) -> io::Result<SocketAddr> {
    let (mut bytes, mut chunk) = (Vec::new(), [0; CHUNK]);
    loop {
        // What isn't the header's stays in the kernel, for TLS or HTTP.
        let known = bytes.len();
        let seen = stream.peek(&mut chunk).await?;
        bytes.extend(&chunk[..seen]);
        match sources.step(sender, proxy_header::parse(&bytes)) {
            ProxyStep::Serve { client, length } => {
                let Some(rest) = length.checked_sub(known) else {
                    return Err(invalid("only its first bytes are those of a header"));
                };
                stream.read_exact(&mut chunk[..rest]).await?;
                return Ok(client);
            }
            ProxyStep::Wait if seen == 0 => return Err(ErrorKind::UnexpectedEof.into()),
            ProxyStep::Wait => _ = stream.read_exact(&mut chunk[..seen]).await?,
            ProxyStep::Refuse(why) => return Err(invalid(why)),
        }
    }
}

fn invalid(why: &'static str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, why)
}

#[cfg(test)]
mod tests;
