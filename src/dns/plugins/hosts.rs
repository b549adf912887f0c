//! # Name
//!
//! *hosts* - answers from a file like `/etc/hosts`, and from such lines in the Corefile.
//!
//! # Description
//!
//! Each line of the file has an address and the names of it: `192.0.2.1 www.example.org www`. From a `#` on it is a
//! comment; lines that don't begin with an address, and names outside of the zones, are ignored. A and AAAA records
//! are made of that, with AA set, and PTR records for the way back.
//!
//! The file is read again when its size or the time of its last change is another one. It isn't part of the Corefile:
//! a change of it is no reload. If it is missing at start, that is a warning, and when it is there it is read. If it
//! is removed later, what was in it last stays.
//!
//! - A name that has addresses, but none of the type that is asked for, or that is asked for another type, gets an
//!   empty answer without SOA.
//! - A name in the zones that isn't there is left to the next plugin with `fallthrough`. Without it the answer is
//!   SERVFAIL: there is no SOA that NXDOMAIN would need.
//! - A question for PTR is answered whatever the zones are, if the address has names; otherwise it is always left to
//!   the next plugin. So are names outside of the zones.
//! - `*.example.org` stands for every name with one label before `example.org` that isn't there itself, with an
//!   address of the same family. It has no PTR.
//!
//! ## Differences from CoreDNS
//!
//! - A line in the Corefile that is neither an option nor begins with an address is refused; CoreDNS takes it for an
//!   entry, and ignores it.
//! - A PTR is only found at the name that exactly stands for the address; in CoreDNS there may be up to three labels
//!   more before an IPv6 address.
//! - Lines may be as long as you like. CoreDNS stops at one of more than 64 KiB.
//!
//! # Syntax
//!
//! ```text
//! hosts [FILE [ZONE...]] {
//!     ADDRESS NAME...
//!     ttl SECONDS
//!     no_reverse
//!     reload DURATION
//!     fallthrough [ZONE...]
//!     fallthrough_unsupported
//! }
//! ```
//!
//! - **FILE** is the file, `/etc/hosts` by default. A relative path begins at the directory of *root*.
//! - **ZONE** are the zones that names have to be in, or networks such as `10.0.0.0/8`, which stand for their reverse
//!   zones. The default are the zones of the block.
//! - **ADDRESS** and **NAME** are a line as in the file; what both have of a name is given together. They have to stand
//!   before `fallthrough`.
//! - `ttl` is the TTL of all records in seconds, from 1 to 65535. The default is 3600.
//! - `no_reverse` leaves PTR records away.
//! - `reload` is how often the file is looked at: a duration such as `30s`, 5s by default; with `0s` it is read only
//!   once.
//! - `fallthrough` leaves names that aren't there to the next plugin; with zones only names in these.
//! - `fallthrough_unsupported` leaves questions for types other than A, AAAA and PTR to the next plugin, where
//!   `fallthrough` would do so, even if the name is there. It needs `fallthrough`.
//!
//! The plugin can be there only once in a block.
//!
//! # Metrics
//!
//! - `coredns_hosts_entries{hostsfile}`: addresses and names of file and Corefile, in both directions.
//! - `coredns_hosts_reload_timestamp_seconds`: when the file that was read last had been changed, as Unix time.
//!
//! # Examples
//!
//! ```text
//! . {
//!     hosts {
//!         192.0.2.10 gateway.example.org
//!         192.0.2.11 *.apps.example.org
//!         fallthrough
//!     }
//!     forward . /etc/resolv.conf
//! }
//! ```
//!
//! A file of names that shall not be found, looked at every minute:
//!
//! ```text
//! . {
//!     hosts /etc/blocked . {
//!         ttl 60
//!         no_reverse
//!         reload 1m
//!         fallthrough
//!     }
//!     forward . /etc/resolv.conf
//! }
//! ```

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

/// Answers from a file.
#[derive(Debug)]
struct Hosts {
    file: Arc<HostsFile>,
    zones: ZoneSet,
    ttl: u32,
    /// The zones whose names fall through if they aren't there.
    through: Option<ZoneSet>,
    /// Whether that goes for types that aren't there, too.
    unsupported: bool,
}

pub(super) fn set_up(setup: &mut Setup<'_>) -> Result<(), CorefileError> {
    let line = setup.only_line()?;
    let mut doubts = Vec::new();
    let (path, zones) = match line.arguments() {
        [] => (FILE.into(), setup.zones_or_own(&[])?),
        [path, zones @ ..] => {
            let file = setup.path(&path.text);
            let relist_guard = look_at(&file)
                .map_err(|error| path.error(format!("can't look at {}: {error}", file.display())))?;
            doubts.extend(relist_guard.map(|relist_guard| path.error(relist_guard)));
            (file, setup.zones_or_own(zones)?)
        }
    };
    let (mut ttl, mut reverse, mut reload) = (TTL, true, RELOAD_INTERVAL);
    let (mut through, mut unsupported): (Option<ZoneSet>, Option<&Directive>) = (None, None);
    let mut inline = String::new();
    for option in line.options() {
        option.no_block()?;
        match option.name() {
            "ttl" => ttl = seconds(option)?,
            "no_reverse" => {
                option.no_arguments()?;
                reverse = false;
            }
            "reload" => reload = option.one("a duration such as 5s, or 0s for never")?.duration()?,
            "fallthrough" => through = Some(zones_or_all(option.arguments())?),
            "fallthrough_unsupported" => {
                option.no_arguments()?;
                unsupported = Some(option);
            }
            name => {
                if address(name).is_none() {
                    return Err(option.error(format!(
                        "hosts has no option {name:?}; it has {}, and lines such as: 192.0.2.1 www.example.org",
                        OPTIONS.join(", ")
                    )));
                }
                if through.is_some() {
                    return Err(option.error("addresses have to stand before fallthrough"));
                }
                if option.arguments().is_empty() {
                    return Err(option.error(format!("the names of {name} have to follow it")));
                }
                let words: Vec<&str> = option.tokens.iter().map(|word| &*word.text).collect();
                inline += &(words.join(" ") + "\n");
            }
        }
    }
    if let (Some(option), None) = (unsupported, &through) {
        return Err(option.error("fallthrough_unsupported needs fallthrough"));
    }
    let inline = HostsMap::parse(&inline, &zones, reverse);
    let unsupported = unsupported.is_some();
    setup.builder.warnings.append(&mut doubts);
    if reload.is_zero() {
        // Then it is read again with the Corefile alone. It needn't be there.
        let _ = setup.read(&path);
    }
    let file = Arc::new(HostsFile::new(path, zones.clone(), reverse, inline));
    let counters = setup.metrics()?;
    setup.add(Hosts { file: Arc::clone(&file), zones, ttl, through, unsupported });
    setup.run(move |_, stop| async move { file.follow(reload, &counters, &stop).await });
    Ok(())
}

/// Returns what is doubtful about a file, which needn't be there yet.
fn look_at(path: &Path) -> std::io::Result<Option<String>> {
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
    option.one(WHAT)?.within(1..=u16::MAX.into(), WHAT)
}

#[async_trait]
impl Plugin for Hosts {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn serve(&self, request: &mut Request, next: Next<'_>) -> PluginResult {
        match self.answers(request) {
            HostsResult::Records(answers) => {
                let mut reply = request.reply(NAME);
                reply.metadata.authoritative = true;
                reply.answers = answers;
                Ok(reply)
            }
            HostsResult::Nothing => Err(PluginError::servfail("")),
            HostsResult::Elsewhere => next.serve(request).await,
        }
    }
}

/// What has been found.
enum HostsResult {
    Records(Vec<Record>),
    Nothing,
    /// It is the next plugin's to answer.
    Elsewhere,
}

impl Hosts {
    fn answers(&self, request: &Request) -> HostsResult {
        let (name, qtype) = (request.query.name(), request.query.query_type());
        if qtype == RecordType::PTR {
            let pointers: Vec<RData> =
                self.file.names(name).into_iter().map(|target| RData::PTR(PTR(target))).collect();
            return if pointers.is_empty() { HostsResult::Elsewhere } else { self.records(name, pointers) };
        }
        if !self.zones.hold(name) {
            return HostsResult::Elsewhere;
        }
        let falls = self.through.as_ref().is_some_and(|zones| zones.hold(name));
        if falls && self.unsupported && !matches!(qtype, RecordType::A | RecordType::AAAA) {
            return HostsResult::Elsewhere;
        }
        let addresses = self.file.addresses(name);
        if addresses.is_empty() {
            return if falls { HostsResult::Elsewhere } else { HostsResult::Nothing };
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
