//! The plugins, one file each, and their order.
//!
//! DNS is configured by a Corefile, in CoreDNS's language and with CoreDNS's plugins; a Corefile of a forwarder, a
//! cache or a stub server can be taken over as it is. `lb-linker --corefile PATH` uses one, and `lb-linker check
//! --corefile PATH` says whether it is right, without opening a port; it also wants files to be there that a start
//! doesn't need yet. Without a file the flags fill in a built-in Corefile, which `lb-linker check` prints: a good start
//! for one of your own.
//!
//! A Corefile without *clients* (or *acl*) resolves all names for every client that can reach it. `--client-nets`
//! applies to the built-in Corefile only.
//!
//! Each section below is a plugin's manual. The reference is CoreDNS 1.14; what differs stands in the manual.
//!
//! ## The language
//!
//! ```text
//! [SCHEME://]ZONE[:PORT] ... {
//!     PLUGIN [ARGUMENTS...] {
//!         OPTION [ARGUMENTS...]
//!     }
//! }
//! ```
//!
//! - A server block is for zones. Blocks on the same port are one server, in which the longest zone that a name is in
//!   decides. The order of its lines doesn't count: plugins have a fixed order among themselves.
//! - **SCHEME** is `dns`, by UDP and TCP, or `tls`. **PORT** is 53, or 853 with TLS; 0 is any that is free. A network
//!   in CIDR form, such as 10.0.0.0/8, stands for its reverse zones.
//! - Words are separated by white space; one in double quotes may hold some, and `\"`. From `#` to the end of the line
//!   is a comment.
//! - A brace has white space around it. `{` ends its line; after `}` a new one begins.
//! - `{$VAR}` and `{%VAR%}` are variables of the environment: a word, or a part of one, also with white space in it. One
//!   that isn't set is empty. `{$VAR:default}` has a default, for one that isn't set or is empty; CoreDNS doesn't know
//!   that.
//! - `(name) { ... }` is a snippet: see *import*.
//!
//! A Corefile that is wrong ends lb-linker at the start with exit code 2, and one sentence that names file, line, column
//! and what would be right. All plugins and options of CoreDNS that aren't here are refused by name.
//!
//! CoreDNS takes some things without a word that can only be mistakes. Here they are refused:
//!
//! - a file without a server block, a block without a zone, and a `}` that closes nothing;
//! - zones with other characters than letters, digits and `-_*./`, unless they are escaped (`\032`), and networks with
//!   a mistake in them, such as 10.0.0/24; reverse zones below `::/8` are none for CoreDNS, and are some here;
//! - a port or a scheme in a zone behind a plugin or an option, but for those of *forward*;
//! - a second line of a plugin of which only one could count;
//! - words behind those that a plugin or an option takes, and braces that it doesn't take;
//! - what isn't UTF-8.
//!
//! ## The order of plugins
//!
//! root, cancel, timeouts, reload, nsid, bufsize, bind, debug, ready, health, prometheus, errors, log, local, any,
//! chaos, loadbalance, rewrite, acl, clients, cache, tls, minimal, template, hosts, lb_linker, loop, forward, whoami

pub mod lb_linker;
mod response_type;
pub mod setup;
#[cfg(test)]
pub(crate) mod tests;

mod acl;
mod any;
mod bind;
mod bufsize;
pub(crate) mod cache;
mod cancel;
mod chaos;
mod clients;
mod debug;
mod errors;
mod forward;
mod health;
mod hosts;
mod import;
mod loadbalance;
mod local;
mod log;
mod r#loop;
mod minimal;
pub(crate) mod nets;
mod nsid;
mod prometheus;
mod ready;
mod reload;
mod rewrite;
mod root;
mod template;
mod timeouts;
mod tls;
mod whoami;

use hickory_proto::rr::Name;

use super::corefile::{CorefileError, Directive};
use setup::{BlockBuilder, ServerContext, Setup};

/// Turns the lines of a plugin into its part of a block.
type SetUp = fn(&mut Setup<'_>) -> Result<(), CorefileError>;

/// All plugins of CoreDNS, in its order, which counts and not that of the file; of ours `lb_linker` stands where
/// `k8s_external` does, and `clients` behind `acl`. Those without a function aren't supported.
const ORDER: &[(&str, Option<SetUp>)] = &[
    ("root", Some(root::set_up)),
    ("metadata", None),
    ("geoip", None),
    ("cancel", Some(cancel::set_up)),
    ("proxyproto", None),
    ("quic", None),
    ("grpc_server", None),
    ("https", None),
    ("https3", None),
    ("timeouts", Some(timeouts::set_up)),
    ("multisocket", None),
    ("reload", Some(reload::set_up)),
    ("nsid", Some(nsid::set_up)),
    ("bufsize", Some(bufsize::set_up)),
    ("bind", Some(bind::set_up)),
    ("debug", Some(debug::set_up)),
    ("trace", None),
    ("ready", Some(ready::set_up)),
    ("health", Some(health::set_up)),
    ("pprof", None),
    ("shed", None),
    ("prometheus", Some(prometheus::set_up)),
    ("errors", Some(errors::set_up)),
    ("log", Some(log::set_up)),
    ("dnstap", None),
    ("local", Some(local::set_up)),
    ("dns64", None),
    ("any", Some(any::set_up)),
    ("chaos", Some(chaos::set_up)),
    ("loadbalance", Some(loadbalance::set_up)),
    ("tsig", None),
    ("rewrite", Some(rewrite::set_up)),
    ("autopath", None),
    ("acl", Some(acl::set_up)),
    ("clients", Some(clients::set_up)),
    ("cache", Some(cache::set_up)),
    ("header", None),
    ("dnssec", None),
    ("tls", Some(tls::set_up)),
    ("minimal", Some(minimal::set_up)),
    ("template", Some(template::set_up)),
    ("transfer", None),
    ("hosts", Some(hosts::set_up)),
    ("route53", None),
    ("azure", None),
    ("clouddns", None),
    ("k8s_external", None),
    ("lb_linker", Some(lb_linker::set_up)),
    ("kubernetes", None),
    ("file", None),
    ("auto", None),
    ("secondary", None),
    ("etcd", None),
    ("loop", Some(r#loop::set_up)),
    ("forward", Some(forward::set_up)),
    ("grpc", None),
    ("erratic", None),
    ("whoami", Some(whoami::set_up)),
    ("on", None),
    ("sign", None),
    ("view", None),
    ("nomad", None),
];

/// Builds a block of these lines for these zones.
///
/// # Errors
/// At the first line that isn't right.
pub fn build(
    lines: &[Directive],
    zones: &[Name],
    context: &ServerContext,
) -> Result<BlockBuilder, CorefileError> {
    for line in lines {
        match ORDER.iter().find(|(name, _)| *name == line.name()) {
            Some((_, Some(_))) => {}
            Some((name, None)) => {
                return Err(line.error(format!(
                    "CoreDNS's plugin {name} isn't supported here; supported are {}",
                    supported()
                )));
            }
            None => {
                return Err(line.error(format!(
                    "there is no plugin {:?}; {}",
                    line.name(),
                    instead_of(line.name())
                )));
            }
        }
    }
    let mut builder = BlockBuilder::default();
    for (name, set_up) in ORDER {
        let own: Vec<Directive> = lines.iter().filter(|line| line.name() == *name).cloned().collect();
        if let (Some(set_up), false) = (set_up, own.is_empty()) {
            set_up(&mut Setup { lines: &own, zones, builder: &mut builder, context })?;
        }
    }
    Ok(builder)
}

/// Returns what was meant, or what there is.
fn instead_of(name: &str) -> String {
    /// Letters that are wrong, missing, too much or in another order.
    const MAX_TYPOS: usize = 2;
    let known = names();
    let closest = known.iter().min_by_key(|known| strsim::osa_distance(known, name));
    match closest.filter(|known| strsim::osa_distance(known, name) <= MAX_TYPOS.min(name.len() / 2)) {
        Some(meant) => format!("is it {meant}?"),
        None => format!("there are {}", known.join(", ")),
    }
}

fn supported() -> String {
    names().join(", ")
}

fn names() -> Vec<&'static str> {
    let mut names: Vec<&str> =
        ORDER.iter().filter(|(_, set_up)| set_up.is_some()).map(|(name, _)| *name).collect();
    names.push(import::NAME);
    names.sort_unstable();
    names
}
