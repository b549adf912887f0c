//! Resolves the names of upstreams once, at the start.

use std::collections::HashSet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use hickory_proto::rr::{Name, RData, RecordType};
use tokio::net::lookup_host;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::config::ForwardOptions;
use super::endpoint::{Transport, UpstreamEndpoint};
use super::group::UpstreamGroup;
use super::lookup_origin::LookupOrigin;
use super::policy::SelectionPolicy;
use super::socket_budget::SocketBudget;
use crate::dns::chain::query_limiter::QueryLimiter;
use crate::dns::chain::request::INTERNAL_ADDRESS;
use crate::dns::message::ede::Ede;
use crate::dns::message::query::UpstreamQuery;

/// The first and the longest pause between two attempts to resolve the names.
const RESOLVE_BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

#[derive(Clone, Debug)]
pub enum UpstreamAddr {
    Address(SocketAddr, Transport),
    /// All addresses of a name, with a port.
    Host(String, u16, Transport),
}

/// Upstreams, of several with one address and port the first one.
#[derive(Debug, Default)]
struct Resolved {
    endpoints: Vec<UpstreamEndpoint>,
    /// The others, as text.
    left_out: Vec<String>,
}

impl Resolved {
    fn add(&mut self, host: Option<&str>, address: SocketAddr, transport: &Transport) {
        if self.endpoints.iter().all(|other| other.address != address) {
            self.endpoints.push(UpstreamEndpoint::new(address, transport));
        } else {
            let text = host.map_or_else(|| address.to_string(), |host| format!("{host} ({address})"));
            self.left_out.push(text);
        }
    }
}

/// Returns the upstreams with known addresses, without duplicates.
#[must_use]
pub fn known(upstreams: &[UpstreamAddr]) -> Vec<UpstreamEndpoint> {
    let mut known = Resolved::default();
    for upstream in upstreams {
        if let UpstreamAddr::Address(address, transport) = upstream {
            known.add(None, *address, transport);
        }
    }
    known.endpoints
}

/// Resolves the names of upstreams, with retries until each name has an address, and then replaces the upstreams of
/// the group. Queries `resolvers`, or uses the system's resolver if `resolvers` is empty.
pub async fn resolve(
    forward: Arc<UpstreamGroup>,
    upstreams: Vec<UpstreamAddr>,
    resolvers: Vec<SocketAddr>,
    stop: CancellationToken,
) {
    let resolving = async {
        let mut pause = RESOLVE_BACKOFF.0;
        loop {
            match resolve_once(&upstreams, &resolvers, &forward.options.sockets).await {
                Ok(resolved) => break resolved,
                Err(error) => warn!("plugin/forward: {error}; trying again in {} s", pause.as_secs()),
            }
            sleep(pause).await;
            pause = RESOLVE_BACKOFF.1.min(pause * 2);
        }
    };
    tokio::select! {
        () = stop.cancelled() => {}
        Resolved { endpoints, left_out } = resolving => {
            let all: Vec<String> = endpoints.iter().map(ToString::to_string).collect();
            info!("plugin/forward: the upstreams are {}", all.join(", "));
            if !left_out.is_empty() {
                let left_out = left_out.join(", ");
                warn!("plugin/forward: {left_out} left out: an upstream before has the same address and port");
            }
            forward.set(endpoints);
        }
    }
}

async fn resolve_once(
    upstreams: &[UpstreamAddr],
    resolvers: &[SocketAddr],
    sockets: &Arc<SocketBudget>,
) -> io::Result<Resolved> {
    let mut all = Resolved::default();
    for upstream in upstreams {
        match upstream {
            UpstreamAddr::Address(address, transport) => all.add(None, *address, transport),
            UpstreamAddr::Host(host, port, transport) => {
                let found = addresses(host, resolvers, sockets).await.and_then(|ips| match ips[..] {
                    [] => Err(io::Error::other("it has no addresses")),
                    _ => Ok(ips),
                });
                let ips = found
                    .map_err(|error| io::Error::other(format!("failed to resolve {host:?}: {error}")))?;
                let mut seen = HashSet::new();
                for ip in ips.into_iter().filter(|ip| seen.insert(*ip)) {
                    all.add(Some(host), SocketAddr::new(ip, *port), transport);
                }
            }
        }
    }
    Ok(all)
}

async fn addresses(
    host: &str,
    resolvers: &[SocketAddr],
    sockets: &Arc<SocketBudget>,
) -> io::Result<Vec<IpAddr>> {
    if resolvers.is_empty() {
        return Ok(lookup_host((host, 0)).await?.map(|address| address.ip()).collect());
    }
    let mut name = Name::from_ascii(host).map_err(io::Error::other)?;
    name.set_fqdn(true);
    let endpoints =
        resolvers.iter().map(|address| UpstreamEndpoint::new(*address, &Transport::Udp)).collect();
    let options = ForwardOptions {
        policy: SelectionPolicy::Sequential,
        // No health checks, because this group serves only one attempt to resolve one name.
        max_fails: 0,
        sockets: Arc::clone(sockets),
        ..ForwardOptions::default()
    };
    let resolver = UpstreamGroup::new(endpoints, options);
    let mut ips = Vec::new();
    for qtype in [RecordType::A, RecordType::AAAA] {
        let question = UpstreamQuery::recursive(name.clone(), qtype).key();
        match resolver.ask(&question, LookupOrigin::Target, INTERNAL_ADDRESS, &QueryLimiter::default()).await
        {
            Ok(answer) => {
                ips.extend(answer.decode(None).answers.iter().filter_map(|record| match &record.data {
                    RData::A(ip) => Some(IpAddr::V4(ip.0)),
                    RData::AAAA(ip) => Some(IpAddr::V6(ip.0)),
                    _ => None,
                }));
                if answer.metadata.truncation && ips.is_empty() {
                    return Err(io::Error::other(Ede::TRUNCATED.text));
                }
            }
            // The addresses of the other family are enough.
            Err(_) if !ips.is_empty() => {}
            // A failed look-up of A is repeated: the upstream may be out of reach at its IPv6 addresses alone.
            Err(error) => return Err(io::Error::other(error)),
        }
    }
    Ok(ips)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn upstream_with_the_address_of_another_is_left_out_and_named() {
        let host = |name: &str| UpstreamAddr::Host(name.to_owned(), 53, Transport::Udp);
        let address = |text: &str| UpstreamAddr::Address(text.parse().unwrap(), Transport::Tcp);
        let upstreams =
            [host("192.0.2.1"), address("192.0.2.2:53"), address("192.0.2.1:53"), host("192.0.2.2")];
        // Addresses need no resolver.
        let Resolved { endpoints, left_out } = resolve_once(&upstreams, &[], &Arc::default()).await.unwrap();
        let endpoints: Vec<String> = endpoints.iter().map(ToString::to_string).collect();
        assert_eq!(endpoints, ["192.0.2.1:53", "192.0.2.2:53"]);
        assert_eq!(left_out, ["192.0.2.1:53", "192.0.2.2 (192.0.2.2:53)"]);
    }
}
