//! The plugins, a file or a folder each, and their order.
//!
//! The manuals of the plugins of a [Corefile](corefile.md), which also has the language. The reference is CoreDNS 1.14;
//! each manual says where lb-linker differs, and [differences.md](differences.md) has what belongs to no option. A
//! second line of a plugin in a block is an error, unless lines can have different zones, as those of *forward* can, or
//! the plugin's manual says otherwise. The metrics of each plugin are in [reference.md](reference.md#metrics-with-corednss-names). A
//! **link** is what lb-linker knows of a load balancer: the names in its zone, and the **target** that they lead to.
//!
//! Options stand on lines of their own, in braces after the plugin's arguments. Brackets stand around what may be left
//! out, `|` between alternatives. In the text, **ZONES** are the zones whose names an option is for; a network such as
//! `10.0.0.0/8` stands for its reverse zones, and the default is the zones of the block. Durations are written like
//! `30s`, `1m30s` or `500ms`. A relative path starts from the directory of *root*. A **REGEXP** has 10000 bytes at
//! most, and the syntax of the Rust crate regex, which is nearly RE2's: `\Q…\E`, octal numbers (`\012`, except in
//! *rewrite*) and a brace that begins no count are rejected (write `\{`); in brackets `[`, `&&`, `--` and `~~` have a
//! meaning and have to be escaped (`[\[]`); `\d`, `\w`, `\s` and `\b` include letters and digits beyond ASCII.
//!
//! The client's address, for *acl* and *clients*, is that of the packet: behind a forwarder or a NAT all clients have
//! the same address, unless *proxyproto* takes it from a header. On a dual-stack socket an IPv4 client is matched by its IPv4 address. Networks of IPv4-mapped
//! addresses, `::ffff:192.0.2.0/120`, stand for their IPv4 networks; in CoreDNS they never match.
//!
//! What has no effect here is read as CoreDNS reads it, and causes a warning: the plugins `multisocket [NUMBER]`,
//! `pprof [ADDRESS]` with the option `block [RATE]`, and `shed`; `stacktrace` of *errors*, `runtime_metrics` of
//! *prometheus*, `worker_pool_size` of *quic*, and labels of *log* that no plugin here has.
//!
//! Plugins have a fixed order, whatever the order of the lines: root, metadata, geoip, cancel, proxyproto, quic,
//! grpc_server, https, timeouts, multisocket, reload, nsid, bufsize, bind, debug, ready, health, pprof, shed,
//! prometheus, errors, log, dnstap, local, dns64, any, chaos, loadbalance, tsig, rewrite, autopath, acl, clients,
//! cache, header, tls, minimal, template, transfer, hosts, lb_linker, k8s_gateway, k8s_external, kubernetes, file,
//! auto, secondary, etcd, loop, forward, grpc, erratic, whoami, view.

pub mod lb_linker;
mod response_type;
pub mod setup;
#[cfg(test)]
pub(crate) mod tests;

mod acl;
mod any;
mod auto;
mod autopath;
mod bind;
mod bufsize;
pub(crate) mod cache;
mod cancel;
mod chaos;
mod client_tls;
mod clients;
mod debug;
mod dns64;
pub mod dnstap;
mod erratic;
mod errors;
pub mod etcd;
mod file;
mod forward;
pub mod geoip;
mod grpc;
mod grpc_server;
mod header;
mod health;
mod hosts;
mod https;
mod import;
mod k8s_external;
mod k8s_gateway;
mod kubernetes;
pub mod link_zones;
mod loadbalance;
mod local;
mod log;
mod r#loop;
mod metadata;
mod minimal;
pub(crate) mod nets;
mod no_effect;
mod nsid;
mod prometheus;
mod proxyproto;
mod quic;
mod ready;
mod refusal_log;
mod refusals;
mod reload;
mod rewrite;
mod root;
mod secondary;
mod template;
mod timeouts;
mod tls;
mod transfer;
mod tsig;
pub(crate) mod ttl_limits;
mod view;
mod whoami;

use hickory_proto::rr::Name;

use super::corefile::{CorefileError, Directive};
use refusals::refusal;
pub use refusals::unknown_to_core_dns;
use setup::{BlockBuilder, ServerContext, Setup};

/// Parses the lines of a plugin and adds the result to the block.
type SetUp = fn(&mut Setup<'_>) -> Result<(), CorefileError>;

/// The plugins that CoreDNS's own image doesn't have.
const OWN: [&str; 3] = ["lb_linker", "k8s_gateway", "clients"];

/// All plugins of CoreDNS in the order in which they run; the order in the Corefile doesn't count. lb-linker's own
/// `lb_linker` and the external plugin `k8s_gateway` stand before `k8s_external`, and `clients` after `acl`. An entry without a function isn't supported.
const ORDER: &[(&str, Option<SetUp>)] = &[
    ("root", Some(root::set_up)),
    ("metadata", Some(metadata::set_up)),
    ("geoip", Some(geoip::set_up)),
    ("cancel", Some(cancel::set_up)),
    ("proxyproto", Some(proxyproto::set_up)),
    ("quic", Some(quic::set_up)),
    ("grpc_server", Some(grpc_server::set_up)),
    ("https", Some(https::set_up)),
    ("https3", None),
    ("timeouts", Some(timeouts::set_up)),
    ("multisocket", Some(no_effect::multisocket)),
    ("reload", Some(reload::set_up)),
    ("nsid", Some(nsid::set_up)),
    ("bufsize", Some(bufsize::set_up)),
    ("bind", Some(bind::set_up)),
    ("debug", Some(debug::set_up)),
    ("trace", None),
    ("ready", Some(ready::set_up)),
    ("health", Some(health::set_up)),
    ("pprof", Some(no_effect::pprof)),
    ("shed", Some(no_effect::shed)),
    ("prometheus", Some(prometheus::set_up)),
    ("errors", Some(errors::set_up)),
    ("log", Some(log::set_up)),
    ("dnstap", Some(dnstap::set_up)),
    ("local", Some(local::set_up)),
    ("dns64", Some(dns64::set_up)),
    ("any", Some(any::set_up)),
    ("chaos", Some(chaos::set_up)),
    ("loadbalance", Some(loadbalance::set_up)),
    ("tsig", Some(tsig::set_up)),
    ("rewrite", Some(rewrite::set_up)),
    ("autopath", Some(autopath::set_up)),
    ("acl", Some(acl::set_up)),
    ("clients", Some(clients::set_up)),
    ("cache", Some(cache::set_up)),
    ("header", Some(header::set_up)),
    ("dnssec", None),
    ("tls", Some(tls::set_up)),
    ("minimal", Some(minimal::set_up)),
    ("template", Some(template::set_up)),
    ("transfer", Some(transfer::set_up)),
    ("hosts", Some(hosts::set_up)),
    ("route53", None),
    ("azure", None),
    ("clouddns", None),
    ("lb_linker", Some(lb_linker::set_up)),
    ("k8s_gateway", Some(k8s_gateway::set_up)),
    ("k8s_external", Some(k8s_external::set_up)),
    ("kubernetes", Some(kubernetes::set_up)),
    ("file", Some(file::set_up)),
    ("auto", Some(auto::set_up)),
    ("secondary", Some(secondary::set_up)),
    ("etcd", Some(etcd::set_up)),
    ("loop", Some(r#loop::set_up)),
    ("forward", Some(forward::set_up)),
    ("grpc", Some(grpc::set_up)),
    ("erratic", Some(erratic::set_up)),
    ("whoami", Some(whoami::set_up)),
    ("on", None),
    ("sign", None),
    ("view", Some(view::set_up)),
    ("nomad", None),
];

/// Builds a server block for `zones` at these ports from its lines.
///
/// # Errors
/// Returns the errors of all lines with a plugin that isn't here, in the order of the lines, and then the first error of
/// each other plugin, in the order of `ORDER`.
pub fn build(
    lines: &[Directive],
    zones: &[Name],
    ports: Vec<u16>,
    context: &ServerContext,
) -> Result<BlockBuilder, Vec<CorefileError>> {
    let refused = |line: &Directive| refusal(line.name()).map(|why| line.error(why));
    let mut errors: Vec<CorefileError> = lines.iter().filter_map(refused).collect();
    let mut builder = BlockBuilder { ports, ..BlockBuilder::default() };
    let of =
        |name: &str| -> Vec<Directive> { lines.iter().filter(|line| line.name() == name).cloned().collect() };
    for (name, set_up) in ORDER {
        let own = of(name);
        if let (Some(set_up), false) = (set_up, own.is_empty()) {
            errors.extend(
                set_up(&mut Setup { lines: &own, block: lines, zones, builder: &mut builder, context }).err(),
            );
        }
    }
    if !errors.is_empty() {
        return Err(errors);
    }
    let own = of(transfer::NAME);
    transfer::warn_of_missing_zones(&mut Setup {
        lines: &own,
        block: lines,
        zones,
        builder: &mut builder,
        context,
    });
    Ok(builder)
}

/// Returns the names of all plugins that are here, sorted.
pub(crate) fn names() -> Vec<&'static str> {
    let mut names: Vec<&str> =
        ORDER.iter().filter(|(_, set_up)| set_up.is_some()).map(|(name, _)| *name).collect();
    names.push(import::NAME);
    names.sort_unstable();
    names
}
