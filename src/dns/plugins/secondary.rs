//! # Name
//!
//! *secondary* - answers from zones that are transferred from primary servers.
//!
//! # Description
//!
//! A zone is transferred (AXFR, RFC 5936, by TCP) when lb-linker starts. Then lb-linker asks for its SOA record, every
//! `refresh` seconds, or every `retry` seconds after a failure: each 2 s to a week, 10% more or less. A newer serial
//! causes a transfer. NOTIFY (RFC 1996) from the address of a primary server causes this question at once, but once a
//! second at most; if there is no answer, it is asked once more after 2 s. Other senders get REFUSED, also with a key.
//! NOTIFY for another zone gets NOTAUTH, NOTIMP if the zone's block has no *secondary*, or REFUSED if no block has that
//! zone. Each change is a line of the log, and so is each new reason of a failure (3 lines a minute for each zone). For
//! alerts, `coredns_dns_responses_total` counts the SERVFAIL answers of the block; their label `plugin` is empty.
//!
//! Until the first transfer the zone gets SERVFAIL, with the extended error 14 (Not Ready), and it is tried again after
//! 250 ms, then ever less often up to every 10 s. When no server has confirmed the zone for `expire` (at least
//! `refresh` and `retry` together, at most 24 weeks) it gets SERVFAIL with the extended error 24 (Invalid Data).
//! `/ready` doesn't wait for zones; a note names those that can't be served. Zones answer like those of *file*, and
//! *transfer* sends them to other servers.
//!
//! A transfer that isn't accepted is a warning in the log, and the zone before stays: what *file* rejects is rejected
//! here, too, such as a record outside the zone or NSEC3 records; so is a transfer that ends early, whose last SOA record
//! isn't the first one, that takes more than 10 minutes, or a message that takes more than 20 s. Zones take at most 32 MiB
//! of memory while they are received, some 300,000 records, and all zones together 64 MiB. After such a transfer the next
//! try is after 2 s, then ever later, up to 10 minutes; NOTIFY doesn't shorten this. At most 4 zones are transferred at
//! the same time, and 2 from one address.
//!
//! With *tsig* in the block, questions are signed with the key that it has for the zone, and the answers have to be
//! signed with it, too. [Zone transfers](transfers.md) has a complete example with BIND. *secondary* doesn't use IXFR
//! (each transfer has the whole zone) or TLS, and NOTIFY by HTTPS isn't taken.
//!
//! When `transfer from` changes, the zone before is answered until one of the new servers sends the zone, or it expires,
//! unless another block has the servers before.
//!
//! With `--snapshot PATH`, each zone is kept in a file of the directory `PATH.zones`, too: a start without the primary
//! servers answers from it, until the zone expires, counted from the last time that a server confirmed it. A file has
//! the size of the transfer, and twice that is needed while it is written: for large zones raise the `sizeLimit` of the
//! volume in `deploy/`, because a Pod that exceeds it is evicted. Files of zones that aren't configured any more stay
//! there.
//!
//! Differences from CoreDNS: CoreDNS keeps no zones on disk, gives no answer to NOTIFY of other senders, and has
//! `catalog`.
//!
//! # Syntax
//!
//! Syntax: `secondary [ZONES...]`; further lines have further zones. Options:
//!
//! - `transfer from ADDRESS [ADDRESS...]`, needed, and allowed several times: the primary servers, IP addresses with or
//!   without a port. They are asked in this order, but the sender of NOTIFY first, until one has the zone.
//! - `fallthrough [ZONES...]`: names that don't exist go to the next plugin; with zones, only names in these zones. It
//!   applies to all lines of the block, and the last one counts.
//!
//! # Examples
//!
//! ```text
//! example.org {
//!     secondary {
//!         transfer from 192.0.2.53 [2001:db8::53]:5353
//!     }
//! }
//! ```

mod client;
mod saved;
mod schedule;
mod source;
#[cfg(test)]
mod tests;
pub(super) mod zone;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use hickory_proto::op::{OpCode, ResponseCode};
use hickory_proto::rr::{Name, RecordType};
use indexmap::IndexMap;
use parking_lot::Mutex;
use tracing::warn;

use super::file::serve;
use super::file::zone_map::ZoneMap;
use super::setup::Setup;
use crate::dns::chain::plugin::{Next, Plugin, PluginError, PluginResult};
use crate::dns::chain::request::Request;
use crate::dns::chain::zone_state::TransferredZone;
use crate::dns::corefile::arguments::zones_or_all;
use crate::dns::corefile::{CorefileError, Directive};
use crate::dns::message::presentation::name_text;
use crate::dns::message::query::is_transfer;
use crate::dns::message::zone_set::ZoneSet;
use crate::model::line_limit::LineLimit;
use source::Source;
use zone::{Following, SecondaryZone};

const NAME: &str = "secondary";
const OPTIONS: [&str; 2] = ["transfer", "fallthrough"];
const EXPECTED: &str = "the address of a server, such as 192.0.2.53 or [2001:db8::53]:5353";

#[derive(Debug)]
struct Secondary {
    zones: ZoneMap,
    followed: IndexMap<Name, Arc<SecondaryZone>>,
    /// The zones in which names that don't exist fall through.
    fallthrough: ZoneSet,
    /// The limit of lines about NOTIFY that is refused.
    refusals: Mutex<LineLimit>,
}

pub(super) fn set_up(setup: &mut Setup<'_>) -> Result<(), CorefileError> {
    let mut plugin = Secondary {
        zones: ZoneMap::default(),
        followed: IndexMap::new(),
        fallthrough: ZoneSet::default(),
        refusals: Mutex::default(),
    };
    for line in setup.lines {
        let primaries = primaries(setup, line, &mut plugin.fallthrough)?;
        for origin in setup.zones_or_own(line.arguments())?.all() {
            let secondaries = setup.context.secondaries.clone();
            let builder = &setup.builder;
            let key = builder.tsig.as_ref().and_then(|keys| keys.for_zone(origin));
            let view = setup.view();
            let source =
                Source::new(&primaries, key.as_deref(), &builder.bind, &builder.ports, view.as_deref());
            let (zone, problem) = secondaries.zone(origin.clone(), primaries.as_slice().into(), source);
            if plugin.zones.insert(Arc::clone(zone.served())).is_some() {
                return Err(setup.repeated_zone(line, origin));
            }
            setup.builder.warnings.extend(problem.map(|problem| line.error(problem)));
            plugin.followed.insert(origin.clone(), Arc::clone(&zone));
            let following = Following { secondaries, key };
            setup.add_task(move |_, stop| zone.follow(following, source, stop));
        }
    }
    setup.add_reusable(plugin);
    Ok(())
}

/// Returns the primary servers of a line.
fn primaries(
    setup: &mut Setup<'_>,
    line: &Directive,
    fallthrough: &mut ZoneSet,
) -> Result<Vec<SocketAddr>, CorefileError> {
    let mut primaries = Vec::new();
    for option in line.options() {
        option.no_block()?;
        match option.name() {
            "transfer" => {
                let [from, words @ ..] = option.required_arguments("from, and the addresses of servers")?
                else {
                    continue;
                };
                if from.text != "from" {
                    return Err(from.unexpected("from, as in: transfer from 192.0.2.53"));
                }
                if words.is_empty() {
                    return Err(option.missing_argument(EXPECTED));
                }
                for word in words {
                    let primary = word.server_address(EXPECTED)?;
                    if !primaries.contains(&primary) {
                        primaries.push(primary);
                    }
                    setup.builder.upstreams.push((primary, word.position.clone()));
                }
            }
            "fallthrough" => *fallthrough = zones_or_all(option.arguments())?,
            "catalog" => {
                return Err(option.error(
                    "catalog isn't supported: name the zones of the catalog, as in: secondary example.org example.net",
                ));
            }
            _ => return Err(option.unknown(NAME, &OPTIONS)),
        }
    }
    if primaries.is_empty() {
        return Err(line.error("secondary needs a primary server, such as: transfer from 192.0.2.53"));
    }
    Ok(primaries)
}

#[async_trait]
impl Plugin for Secondary {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn serve(&self, request: &mut Request, next: Next<'_>) -> PluginResult {
        if request.metadata.op_code == OpCode::Notify {
            return self.notified(request);
        }
        if is_transfer(request.query.query_type()) {
            return Err(PluginError::new(ResponseCode::Refused, ""));
        }
        serve(&self.zones, &self.fallthrough, NAME, request, next).await
    }

    fn sees_transfers(&self) -> bool {
        true
    }

    fn transferred_zone(&self, origin: &Name) -> Option<Arc<dyn TransferredZone>> {
        self.zones.transferred(origin)
    }

    fn transferred_origins(&self) -> Vec<Name> {
        self.zones.origins()
    }

    fn note(&self) -> Option<String> {
        /// The maximum number of zones that are named.
        const MAX_NAMED: usize = 5;
        let lacking: Vec<&Name> = self.lacking().collect();
        let named: Vec<String> = lacking.iter().take(MAX_NAMED).map(|origin| name_text(origin)).collect();
        let more = lacking.len().saturating_sub(MAX_NAMED);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        (!named.is_empty())
            .then(|| format!("zones of secondary that can't be served: {}{more}", named.join(", ")))
    }
}

impl Secondary {
    fn lacking(&self) -> impl Iterator<Item = &Name> {
        let lacking = self.followed.values().filter(|zone| zone.served().zone().is_none());
        lacking.map(|zone| zone.served().origin())
    }

    /// Answers NOTIFY (RFC 1996 section 4.7).
    fn notified(&self, request: &Request) -> PluginResult {
        let (origin, client) = (request.query.name(), request.client.ip());
        if request.query.query_type() != RecordType::SOA {
            return Err(PluginError::new(ResponseCode::FormErr, ""));
        }
        let Some(zone) = self.followed.get(origin) else {
            return Err(PluginError::new(ResponseCode::NotAuth, ""));
        };
        if !zone.is_primary(client) {
            if let Some(omitted) = self.refusals.lock().take(Instant::now()) {
                let number = omitted + 1;
                warn!(
                    "plugin/secondary: NOTIFY refused since the last such line: {number}; the newest, for {}, of \
                     {client}, which isn't a primary server of the zone",
                    name_text(origin)
                );
            }
            return Err(PluginError::new(ResponseCode::Refused, ""));
        }
        zone.notify(client);
        let mut reply = request.reply(NAME);
        reply.metadata.authoritative = true;
        Ok(reply)
    }
}
