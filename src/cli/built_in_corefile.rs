//! The built-in Corefile, which the flags fill in.

use std::fmt::Write;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use super::effective::value_name;
use super::election::Environment;
use super::flags::{Flags, SourceName};
use super::http_listen::HttpListen;
use super::upstream_flag::UpstreamSpec;
use crate::dns::server::config::quoted;
use crate::model::hostname::to_presentation;

/// The default ports of the plugins *prometheus*, *health* and *ready*, as in CoreDNS.
const METRICS_PORT: u16 = 9153;
const HEALTH_PORT: u16 = 8080;
const READY_PORT: u16 = 8181;
/// Follows files like resolv.conf, which NetworkManager and the like replace.
const RELOAD: &str = "    reload 5s 0\n";
/// Without `consolidate`, every query would log a line while the upstreams are unreachable.
const ERRORS: &str = "    errors {\n        consolidate 1m .* error show_first\n    }\n";

impl Flags {
    /// Returns the Corefile that is equivalent to the flags.
    #[must_use]
    pub fn built_in_corefile(&self) -> String {
        self.built_in_corefile_in(Environment::detect().in_cluster)
    }

    pub(crate) fn built_in_corefile_in(&self, in_pod: bool) -> String {
        let mut text = String::new();
        let mut ports: Vec<u16> = self.listen.iter().map(SocketAddr::port).collect();
        ports.sort_unstable();
        ports.dedup();
        for port in ports {
            let ips = self.listen.iter().filter(|listen| listen.port() == port).map(SocketAddr::ip);
            self.write_blocks(&mut text, port, &ips.collect::<Vec<_>>(), in_pod);
        }
        text
    }

    fn write_blocks(&self, text: &mut String, port: u16, ips: &[IpAddr], in_pod: bool) {
        let all = ips.contains(&IpAddr::V6(Ipv6Addr::UNSPECIFIED));
        let ips: Vec<String> = ips.iter().map(ToString::to_string).collect();
        let bind = if all { String::new() } else { format!("    bind {}\n", ips.join(" ")) };
        let line = |listen: Option<HttpListen>, default: u16, plugin: &str, options: &str| {
            let listen = listen.unwrap_or_else(|| HttpListen::by_default(default, in_pod));
            listen.address().map(|address| format!("    {plugin} {address}{options}\n")).unwrap_or_default()
        };
        let prometheus = line(self.metrics_listen, METRICS_PORT, "prometheus", "");
        let probes = line(self.health_listen, HEALTH_PORT, "health", " {\n        lameduck 5s\n    }")
            + &line(self.ready_listen, READY_PORT, "ready", "");
        let upstreams: Vec<String> = self
            .upstream
            .iter()
            .filter(|upstream| **upstream != UpstreamSpec::None)
            .map(|upstream| quoted(&upstream.to_string()))
            .collect();
        let zones: Vec<String> =
            self.zones.iter().map(|zone| format!("{}:{port}", to_presentation(zone))).collect();
        // Writing to a String can't fail.
        let _ = writeln!(text, "{} {{", zones.join(" "));
        *text += &bind;
        *text += ERRORS;
        if upstreams.is_empty() {
            *text += &probes;
        }
        *text += &prometheus;
        *text += "    loadbalance\n    lb_linker";
        if self.sources != [SourceName::Service] {
            let sources: Vec<String> = self.sources.iter().map(value_name).collect();
            let _ = write!(text, " {{\n        sources {}\n    }}", sources.join(" "));
        }
        *text += "\n}\n";
        if !upstreams.is_empty() {
            let _ = writeln!(text, ".:{port} {{");
            *text += &bind;
            *text += ERRORS;
            *text += &probes;
            *text += &prometheus;
            let nets: Vec<String> = self.client_nets.iter().map(ToString::to_string).collect();
            let _ = writeln!(text, "    clients {}", nets.join(" "));
            if self.upstream.iter().any(|upstream| matches!(upstream, UpstreamSpec::File(_))) {
                *text += RELOAD;
            }
            *text += "    cache 30\n    loop\n    loadbalance\n";
            let _ = write!(
                text,
                "    forward . {} {{\n        max_concurrent 1000\n    }}\n}}\n",
                upstreams.join(" ")
            );
        }
    }
}
