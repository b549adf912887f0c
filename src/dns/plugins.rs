//! The plugins, a file or a folder each, and their order.
//!
//! DNS is configured by a Corefile, in CoreDNS's language and with CoreDNS's plugins; a Corefile of a forwarder, a
//! cache or a stub server works unchanged. `lb-linker --corefile PATH` uses a Corefile. `lb-linker check --corefile
//! PATH` validates it without opening a port; unlike a start, the check also fails if a file is missing that lb-linker
//! can load later. Without `--corefile`, the flags fill in a built-in Corefile. `lb-linker check` prints the built-in
//! Corefile, which is a good start for a custom Corefile.
//!
//! A Corefile without *clients* (or *acl*) resolves all names for every client that can reach it. `--client-nets`
//! applies to the built-in Corefile only.
//!
//! Each section below is a plugin's manual. The reference is CoreDNS 1.14; each manual lists the differences.
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
//! - A server block serves one or more zones. Blocks on the same port form one server; the block with the longest zone
//!   that contains the queried name answers. The order of the lines in a block doesn't matter: plugins have a fixed
//!   order.
//! - **SCHEME** is `dns`, by UDP and TCP, or `tls`. **PORT** is 53 by default, or 853 with TLS; 0 is any free port. A
//!   network in CIDR form, such as 10.0.0.0/8, stands for its reverse zones.
//! - Words are separated by white space; a word in double quotes may contain white space, and `\"`. A comment is from
//!   `#` to the end of the line.
//! - A brace has white space around it. `{` is the last word of its line; a new line begins after `}`.
//! - `{$VAR}` and `{%VAR%}` are environment variables. The value stands for a word or a part of a word, even if it
//!   contains white space. A variable that isn't set is empty. `{$VAR:default}` has a default, for a variable that
//!   isn't set or is empty; CoreDNS doesn't have defaults.
//! - `(name) { ... }` is a snippet: see *import*.
//!
//! If the Corefile is invalid, lb-linker exits at the start with exit code 2 and one sentence that names file, line,
//! column and the expected text. The plugins and options of CoreDNS that lb-linker doesn't support are rejected by
//! name.
//!
//! CoreDNS silently accepts some lines that can only be mistakes. lb-linker rejects:
//!
//! - a file without a server block, a block without a zone, and a `}` that closes nothing;
//! - zones with other characters than letters, digits and `-_*./`, unless they are escaped (`\032`), and malformed
//!   networks, such as 10.0.0/24; networks below `::/8` have no reverse zones in CoreDNS, and have reverse zones here;
//! - a port or a scheme in a zone after the name of a plugin or an option, except for *forward*;
//! - a second line of a plugin of which only one line could take effect;
//! - words after the arguments of a plugin or an option, and braces after a plugin or an option without a block;
//! - text that isn't UTF-8.
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

/// Parses the lines of a plugin and adds the result to the block.
type SetUp = fn(&mut Setup<'_>) -> Result<(), CorefileError>;

/// All plugins of CoreDNS in the order in which they run; the order in the Corefile doesn't count. lb-linker's own
/// `lb_linker` stands where `k8s_external` does, and `clients` after `acl`. An entry without a function isn't
/// supported.
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

/// Builds a server block for `zones` from its lines.
///
/// # Errors
/// Returns the error of the first line with an unknown or unsupported plugin. If all plugins are supported, returns the
/// error of the first plugin in `ORDER` with an invalid line.
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
                    supported_list()
                )));
            }
            None => {
                return Err(line.error(format!(
                    "there is no plugin {:?}; {}",
                    line.name(),
                    suggestion(line.name())
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

/// Returns a hint for an unknown plugin: the closest name, or all names.
fn suggestion(name: &str) -> String {
    /// The maximum number of wrong, missing, extra and transposed letters.
    const MAX_TYPOS: usize = 2;
    let known = names();
    let closest = known.iter().min_by_key(|known| strsim::osa_distance(known, name));
    match closest.filter(|known| strsim::osa_distance(known, name) <= MAX_TYPOS.min(name.len() / 2)) {
        Some(meant) => format!("is it {meant}?"),
        None => format!("there are {}", known.join(", ")),
    }
}

fn supported_list() -> String {
    names().join(", ")
}

fn names() -> Vec<&'static str> {
    let mut names: Vec<&str> =
        ORDER.iter().filter(|(_, set_up)| set_up.is_some()).map(|(name, _)| *name).collect();
    names.push(import::NAME);
    names.sort_unstable();
    names
}
