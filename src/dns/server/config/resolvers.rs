//! Finds upstreams whose host names lb-linker would resolve itself.

use std::net::SocketAddr;

use super::{Configuration, CorefileError, ListenAddress, Scheme, is_own_listener};

impl Configuration {
    /// Checks that host names of upstreams are resolved by another server than lb-linker: it may have no answer until
    /// they are resolved. resolv.conf isn't part of the Corefile, so of its servers a warning tells.
    pub(super) fn check_host_resolvers(&mut self) -> Result<(), CorefileError> {
        let Self { blocks, listeners } = self;
        // They are asked by UDP.
        let plain = || listeners.iter().map(|listener| listener.at).filter(|at| at.scheme == Scheme::Dns);
        let own = |server: &SocketAddr| plain().find(|at| is_own_listener(at.address, *server));
        for builder in blocks.iter_mut().map(|built| &mut built.builder) {
            for resolvers in &builder.host_resolvers {
                let found: Option<Vec<(SocketAddr, ListenAddress)>> =
                    resolvers.servers.iter().map(|server| Some((*server, own(server)?))).collect();
                let Some((server, listener)) = found.as_deref().and_then(<[_]>::first) else { continue };
                let itself = format!("{server} is lb-linker itself, at {listener}");
                if resolvers.are_named {
                    return Err(resolvers.position.error(format!(
                        "{itself}: the host names of upstreams have to be resolved by another server"
                    )));
                }
                builder.warnings.push(resolvers.position.error(format!(
                    "the host names of the upstreams are resolved by the servers of resolv.conf alone, and {itself}: \
                     name another server by resolver, or the hosts in /etc/hosts"
                )));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::dns::plugins::setup::HostResolvers;
    use crate::dns::plugins::tests::support::TestServer;

    #[test]
    fn own_listeners_of_resolv_conf_are_warned_of() {
        let own = "Corefile:3:1: the host names of the upstreams are resolved by the servers of resolv.conf alone, and \
                   127.0.0.1:53 is lb-linker itself, at dns://127.0.0.1:53: name another server by resolver, or the \
                   hosts in /etc/hosts";
        for (servers, expected) in [
            (&["127.0.0.1:53"][..], vec![own]),
            (&["127.0.0.1:53", "0.0.0.0:53"], vec![own]),
            (&["127.0.0.1:53", "192.0.2.1:53"], vec![]),
            (&["127.0.0.3:53"], vec![]),
            (&[], vec![]),
        ] {
            let text = "corp {\nbind 127.0.0.1\nwhoami\n}\n. {\nbind 127.0.0.2\nforward . 192.0.2.1\n}\n";
            let (_, mut configuration) = TestServer::configured(text);
            let position = configuration.listeners[0].position.clone();
            let builder = &mut configuration.blocks[1].builder;
            builder.warnings.clear();
            let servers = servers.iter().map(|server| server.parse().unwrap()).collect();
            let position = crate::dns::corefile::Position { line: 3, ..position };
            builder.host_resolvers = vec![HostResolvers { servers, are_named: false, position }];
            configuration.check_host_resolvers().unwrap();
            let found: Vec<String> =
                configuration.blocks[1].builder.warnings.iter().map(ToString::to_string).collect();
            assert_eq!(found, expected);
        }
    }
}
