//! # Name
//!
//! *hosts* - answers from a file like `/etc/hosts`, and from such lines in the Corefile.
//!
//! # Description
//!
//! Each line has an address and its names: `192.0.2.1 www.example.org www`. A comment is from a `#` to the end of the
//! line; lines that don't begin with an address, and names outside of the zones, are ignored. The answers are A and
//! AAAA records with AA set, and PTR records for the addresses.
//!
//! The file is read again when its size or its modification time changes; this doesn't reload the Corefile. A file that
//! is missing at the start is a warning, and is read when it appears; the last content of a removed file stays in use.
//!
//! - A name with addresses, but none of the queried type, gets an empty answer without an SOA record.
//! - A name in the zones without addresses goes to the next plugin with `fallthrough`; otherwise the answer is
//!   SERVFAIL, because there is no SOA record for NXDOMAIN.
//! - A PTR query is answered whatever the zones are, if the address has names; otherwise it goes to the next plugin,
//!   and so do queries for names outside of the zones.
//! - `*.example.org` matches every name with one label before `example.org` that itself has no address of the
//!   wildcard's family. A wildcard has no PTR record.
//!
//! Differences from CoreDNS: a line in the Corefile that is neither an option nor begins with an address is rejected;
//! CoreDNS ignores it. A PTR record is only at the exact name of the address; CoreDNS allows up to three more labels
//! before an IPv6 address. The length of lines is unlimited; CoreDNS stops at a line longer than 64 KiB.
//!
//! # Syntax
//!
//! Syntax: `hosts [FILE [ZONES...]]`; **FILE** is `/etc/hosts` by default. Options:
//!
//! - `ADDRESS NAME...`: a line as in the file, before `fallthrough`; the addresses of a name from file and Corefile are
//!   merged.
//! - `ttl SECONDS`: the TTL of all records, from 1 to 65535 (default 3600). `no_reverse`: no PTR records.
//! - `reload DURATION`: the interval at which the file is checked, 5s by default. With `0s` it is read only when the
//!   block is built, which the plugin *reload* does again if the file appears or changes; a removed file stays in use
//!   until then.
//! - `fallthrough [ZONES...]` passes names without addresses to the next plugin; with zones, only names in these zones.
//! - `fallthrough_unsupported` needs `fallthrough`, and also passes queries for types other than A, AAAA and PTR, if it
//!   applies to the name, even if the name has addresses.
//!
//! For example, `hosts /etc/blocked .` with `192.0.2.10 gateway.example.org`, `ttl 60` and `fallthrough`.

mod file;
mod map;
#[cfg(test)]
mod tests;

use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hickory_proto::rr::rdata::PTR;
use hickory_proto::rr::{Name, RData, Record, RecordType};

use super::setup::Setup;
use crate::dns::chain::plugin::{Next, Plugin, PluginError, PluginResult};
use crate::dns::chain::request::Request;
use crate::dns::corefile::arguments::zones_or_all;
use crate::dns::corefile::{CorefileError, Directive};
use crate::dns::message::zone_set::ZoneSet;
use file::HostsFile;
use map::{HostsMap, address};

const NAME: &str = "hosts";
const FILE: &str = "/etc/hosts";
const TTL: u32 = 3600;
const RELOAD_INTERVAL: Duration = Duration::from_secs(5);
const OPTIONS: [&str; 5] = ["ttl", "no_reverse", "reload", "fallthrough", "fallthrough_unsupported"];

#[derive(Debug)]
struct Hosts {
    file: Arc<HostsFile>,
    zones: ZoneSet,
    ttl: u32,
    /// The zones in which names without addresses fall through.
    fallthrough: Option<ZoneSet>,
    /// Whether queries for unsupported types fall through, too.
    fallthrough_unsupported: bool,
}

pub(super) fn set_up(setup: &mut Setup<'_>) -> Result<(), CorefileError> {
    let line = setup.only_line()?;
    let mut warnings = Vec::new();
    let (path, zones) = match line.arguments() {
        [] => (FILE.into(), setup.zones_or_own(&[])?),
        [path, zones @ ..] => {
            let file = setup.path(&path.text);
            let warning = check_file(&file)
                .map_err(|error| path.error(format!("can't access {}: {error}", file.display())))?;
            warnings.extend(warning.map(|warning| path.error(warning)));
            (file, setup.zones_or_own(zones)?)
        }
    };
    let Options { ttl, reverse, reload, fallthrough, fallthrough_unsupported, lines } = options(line)?;
    let inline = HostsMap::parse(&lines, &zones, reverse);
    setup.builder.warnings.append(&mut warnings);
    if reload.is_zero() {
        // The plugin `reload` then rebuilds the block if the file appears or changes.
        let content = std::fs::read(&path).unwrap_or_default();
        setup.builder.optional_files.push((path.clone(), content));
    }
    let file = Arc::new(HostsFile::new(path, zones.clone(), reverse, inline));
    let counters = setup.metrics()?;
    setup.add_reusable(Hosts { file: Arc::clone(&file), zones, ttl, fallthrough, fallthrough_unsupported });
    setup.add_task(move |_, stop| async move { file.watch(reload, &counters, &stop).await });
    Ok(())
}

struct Options {
    ttl: u32,
    reverse: bool,
    reload: Duration,
    fallthrough: Option<ZoneSet>,
    fallthrough_unsupported: bool,
    /// The lines of addresses, as in a file.
    lines: String,
}

fn options(line: &Directive) -> Result<Options, CorefileError> {
    let mut all = Options {
        ttl: TTL,
        reverse: true,
        reload: RELOAD_INTERVAL,
        fallthrough: None,
        fallthrough_unsupported: false,
        lines: String::new(),
    };
    let mut unsupported = None;
    for option in line.options() {
        option.no_block()?;
        match option.name() {
            "ttl" => all.ttl = seconds(option)?,
            "no_reverse" => {
                option.no_arguments()?;
                all.reverse = false;
            }
            "reload" => {
                let duration = option.single_argument("a duration such as 5s, or 0s for never")?;
                all.reload = duration.duration()?;
            }
            "fallthrough" => all.fallthrough = Some(zones_or_all(option.arguments())?),
            "fallthrough_unsupported" => {
                option.no_arguments()?;
                unsupported = Some(option);
            }
            name => {
                if address(name).is_none() {
                    let lines = ", and lines such as: 192.0.2.1 www.example.org";
                    return Err(option.unknown_of("hosts", &OPTIONS, lines));
                }
                if all.fallthrough.is_some() {
                    return Err(option.error("addresses have to stand before fallthrough"));
                }
                if option.arguments().is_empty() {
                    return Err(option.error(format!("the names of {name} have to follow it")));
                }
                let words: Vec<&str> = option.tokens.iter().map(|word| &*word.text).collect();
                all.lines += &(words.join(" ") + "\n");
            }
        }
    }
    if let (Some(option), None) = (unsupported, &all.fallthrough) {
        return Err(option.error("fallthrough_unsupported needs fallthrough"));
    }
    all.fallthrough_unsupported = unsupported.is_some();
    Ok(all)
}

/// Returns a warning about a file, which needn't exist yet.
fn check_file(path: &Path) -> std::io::Result<Option<String>> {
    let name = path.display();
    match std::fs::metadata(path) {
        Ok(found) if found.is_dir() => Ok(Some(format!("the hosts file {name} is a directory"))),
        Ok(_) => Ok(None),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            Ok(Some(format!("the hosts file {name} doesn't exist yet")))
        }
        Err(error) => Err(error),
    }
}

fn seconds(option: &Directive) -> Result<u32, CorefileError> {
    const WHAT: &str = "a number of seconds from 1 to 65535";
    option.single_argument(WHAT)?.parse_in_range(1..=u16::MAX.into(), WHAT)
}

#[async_trait]
impl Plugin for Hosts {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn serve(&self, request: &mut Request, next: Next<'_>) -> PluginResult {
        let outdated = self.file.outdated();
        let mut reply = match self.answers(request) {
            HostsResult::Records(answers) => {
                let mut reply = request.reply(NAME);
                reply.metadata.authoritative = true;
                reply.records.answers = answers;
                reply.validity = Some(Box::default());
                reply
            }
            HostsResult::Nothing => return Err(PluginError::servfail("")),
            HostsResult::FallThrough => next.serve(request).await?,
        };
        reply.rest_on(outdated);
        Ok(reply)
    }
}

enum HostsResult {
    Records(Vec<Record>),
    Nothing,
    /// The next plugin has to answer.
    FallThrough,
}

impl Hosts {
    fn answers(&self, request: &Request) -> HostsResult {
        let (name, qtype) = (request.query.name(), request.query.query_type());
        if qtype == RecordType::PTR {
            let pointers: Vec<RData> =
                self.file.names(name).into_iter().map(|target| RData::PTR(PTR(target))).collect();
            return if pointers.is_empty() { HostsResult::FallThrough } else { self.records(name, pointers) };
        }
        if !self.zones.contains(name) {
            return HostsResult::FallThrough;
        }
        let falls = self.fallthrough.as_ref().is_some_and(|zones| zones.contains(name));
        if falls && self.fallthrough_unsupported && !matches!(qtype, RecordType::A | RecordType::AAAA) {
            return HostsResult::FallThrough;
        }
        let addresses = self.file.addresses(name);
        if addresses.is_empty() {
            return if falls { HostsResult::FallThrough } else { HostsResult::Nothing };
        }
        let data = |address: IpAddr| match (address, qtype) {
            (IpAddr::V4(ip), RecordType::A) => Some(RData::A(ip.into())),
            (IpAddr::V6(ip), RecordType::AAAA) => Some(RData::AAAA(ip.into())),
            _ => None,
        };
        self.records(name, addresses.into_iter().filter_map(data).collect())
    }

    fn records(&self, name: &Name, data: Vec<RData>) -> HostsResult {
        let record = |data| Record::from_rdata(name.clone(), self.ttl, data);
        HostsResult::Records(data.into_iter().map(record).collect())
    }
}
