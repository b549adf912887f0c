//! The resolvers for names outside the zones, which `--upstream` names.

use std::net::SocketAddr;
use std::path::PathBuf;

use super::error::ConfigError;
use super::flags::Flags;
use super::upstream_flag::UpstreamSpec;
use crate::dns::corefile::resolv_conf;
use crate::dns::net::interfaces::is_own_listener;

impl Flags {
    /// Returns the resolvers that commands without listeners can ask by plain DNS.
    ///
    /// # Errors
    /// If a file can't be used.
    pub fn resolvers(&self) -> Result<Vec<SocketAddr>, ConfigError> {
        let plain = self.upstream.iter().filter(|spec| !matches!(spec, UpstreamSpec::Tls(..)));
        plain.map(addresses).collect::<Result<Vec<_>, _>>().map(|servers| servers.concat())
    }

    /// Returns the addresses of the upstream resolvers. There are none with `--upstream none`, or with a Corefile,
    /// which configures its own upstreams.
    ///
    /// # Errors
    /// If a file can't be used, if `none` stands beside other upstreams, or if an upstream is one of lb-linker's own
    /// listeners.
    pub fn upstreams(&self) -> Result<Vec<SocketAddr>, ConfigError> {
        if self.corefile.is_some() {
            return Ok(Vec::new());
        }
        if self.upstream.len() > 1 && self.upstream.contains(&UpstreamSpec::None) {
            return Err(ConfigError::NoneAndOthers);
        }
        let servers = self.upstream.iter().map(addresses).collect::<Result<Vec<_>, _>>()?.concat();
        for upstream in &servers {
            if let Some(listen) = self.listen.iter().find(|listen| is_own_listener(**listen, *upstream)) {
                return Err(ConfigError::OwnListener { upstream: *upstream, listen: *listen });
            }
        }
        Ok(servers)
    }

    /// Returns the notice that targets with hostnames aren't resolved, with `--upstream none`.
    #[must_use]
    pub fn upstream_notice(&self) -> Option<&'static str> {
        let is_none = self.corefile.is_none() && self.upstream.contains(&UpstreamSpec::None);
        is_none.then_some(
            "--upstream none: DNS answers A and AAAA of load balancers with hostnames with the CNAME alone, without \
             addresses",
        )
    }
}

fn addresses(spec: &UpstreamSpec) -> Result<Vec<SocketAddr>, ConfigError> {
    match spec {
        UpstreamSpec::None => Ok(Vec::new()),
        UpstreamSpec::Server(address) | UpstreamSpec::Tls(address, _) => Ok(vec![*address]),
        UpstreamSpec::File(path) => {
            nameservers(path).map_err(|why| ConfigError::ResolvConf { path: path.clone(), why })
        }
    }
}

/// Returns the name servers of a file like resolv.conf.
fn nameservers(path: &PathBuf) -> Result<Vec<SocketAddr>, String> {
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    let servers: Vec<SocketAddr> = resolv_conf::nameservers(&text).collect();
    if servers.is_empty() { Err("it names no nameserver".to_owned()) } else { Ok(servers) }
}
