//! # Name
//!
//! *transfer* - transfers zones to secondary servers, and notifies them of changes.
//!
//! # Description
//!
//! Zones of *file*, *auto*, *secondary*, *lb_linker*, *k8s_gateway*, *kubernetes* and *k8s_external* can be
//! transferred, to clients that a line of the plugin lists. Without a line for it, no zone is transferred. [Zone
//! transfers](transfers.md) has complete examples with BIND.
//!
//! By TCP, TLS and QUIC, AXFR (RFC 5936) gets the whole zone. IXFR (RFC 1995) gets the SOA record alone if the client
//! has the present serial or a newer one, and otherwise the whole zone. By UDP, HTTPS and gRPC, IXFR gets the SOA
//! record alone, so that the client comes again by TCP. A transfer is one state of the zone, though the zone changes
//! meanwhile. Other clients, AXFR by UDP, HTTPS or gRPC, names that are no zone's origin, and zones of other plugins
//! get REFUSED, and the log has the reason; a zone that can't be served at present gets SERVFAIL.
//!
//! At most 4 transfers are under way at once in the whole process, and 1 for each client. Clients that only `*` admits
//! have 2 of these 4, and 1 for each /64 of IPv6. Further transfers wait up to 3 seconds, and then get REFUSED. A
//! transfer of more than 15 minutes is ended. A zone with a record that fits no message of 64,511 bytes can't be
//! transferred.
//!
//! When the serial of a zone has changed, and at the start, NOTIFY (RFC 1996) is sent to each address in `to`, at most
//! once in 5 seconds for a zone, and up to 5 times until an answer comes, with any rcode. After five times without an
//! answer, in 155 seconds, the log has a warning. NOTIFY is signed with the key that [*tsig*](#tsig) has for the zone.
//!
//! A client needs an address in `to`, and also a key if *tsig* has `require AXFR IXFR`: *tsig* without `require`
//! restricts no transfer. *acl* limits the clients further, with `type AXFR IXFR`. A transfer or NOTIFY passes only
//! *prometheus*, *errors*, *log*, *tsig* and *acl*; the size that these count and log is that of an answer with the SOA
//! record. *clients* doesn't limit transfers, but it limits the SOA query that BIND sends first, except for zones of
//! *lb_linker*.
//!
//! Differences from CoreDNS: an IXFR by UDP is answered; CoreDNS refuses it. An IXFR with a serial newer than the
//! zone's gets no transfer. NOTIFY has the SOA record. A second line for one zone is an error; CoreDNS ignores it.
//! CoreDNS passes transfers of other names to the next plugin, which answers them like queries.
//!
//! # Syntax
//!
//! Syntax: `transfer [ZONES...]`; further lines have further zones, and the longest zone that contains a name counts.
//! Options:
//!
//! - `to ADDRESS...`: the clients, each an address, or an address and the port that NOTIFY is sent to, 53 by default:
//!   `192.0.2.2`, `192.0.2.2:5300`, `2001:db8::2` or `[2001:db8::2]:5300`. `*` stands for all clients, and is sent no
//!   NOTIFY: `to * 192.0.2.2` lets all clients in and notifies one. At least one is needed.
//! - `source ADDRESS`: the local address that NOTIFY is sent from, to secondary servers of the same address family. It
//!   is an address of the machine or Pod, not of a Kubernetes Service.
//!
//! # Examples
//!
//! ```text
//! example.org {
//!     file /etc/coredns/db.example.org
//!     transfer {
//!         to 192.0.2.2 192.0.2.3:5300
//!     }
//! }
//! ```

mod notify;
mod outgoing;
pub(super) mod slots;
#[cfg(test)]
mod tests;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use async_trait::async_trait;
use hickory_proto::op::{OpCode, ResponseCode};
use hickory_proto::rr::{DNSClass, Name, RecordType};

use super::setup::Setup;
use crate::dns::chain::plugin::{Next, Plugin, PluginError, PluginResult};
use crate::dns::chain::request::Request;
use crate::dns::chain::zone_state::{TransferredZone, ZoneRecord, ZoneState};
use crate::dns::corefile::{CorefileError, Directive};
use crate::dns::message::query::{is_transfer, whole_wire_name};
use crate::dns::message::records::Records;
use crate::dns::message::reply::{RecordStream, Reply};
use crate::dns::message::validity::Section;
use crate::dns::message::wire::writer::ReplyWriter;
use crate::dns::message::zone_set::ZoneSet;
use crate::dns::net::Protocol;
use crate::dns::zone::received::is_newer;
use crate::model::hostname::to_presentation;
use outgoing::{Outgoing, TransferLog};
use slots::{TransferSlot, TransferSlots};

pub(super) const NAME: &str = "transfer";
const OPTIONS: [&str; 2] = ["to", "source"];
const ADDRESSES: &str = "an address such as 192.0.2.2, 192.0.2.2:5300 or [2001:db8::2]:5300, or *";
const SOURCE: &str = "a local address without a port, such as 192.0.2.1";

#[derive(Debug)]
struct Transfer {
    lines: Arc<[TransferLine]>,
    slots: Arc<TransferSlots>,
    log: Arc<TransferLog>,
}

/// A line: which zones are transferred to which clients.
#[derive(Debug, Default)]
struct TransferLine {
    zones: ZoneSet,
    /// Whether all clients may have the zones.
    is_for_all: bool,
    to: Vec<SocketAddr>,
    /// The address that NOTIFY is sent from.
    source: Option<IpAddr>,
}

pub(super) fn set_up(setup: &mut Setup<'_>) -> Result<(), CorefileError> {
    let mut lines: Vec<TransferLine> = Vec::new();
    for line in setup.lines {
        let new = parse(line, setup.zones_or_own(line.arguments())?)?;
        let has = |zone: &&Name| lines.iter().any(|known| known.zones.all().contains(zone));
        if let Some(zone) = new.zones.all().iter().find(has) {
            return Err(setup.repeated_zone(line, zone));
        }
        lines.push(new);
    }
    let lines: Arc<[TransferLine]> = lines.into();
    if lines.iter().any(|line| !line.to.is_empty()) {
        let (lines, keys, view) = (Arc::clone(&lines), setup.builder.tsig.clone(), setup.view());
        setup.add_task(move |server, stop| notify::run(server, lines, keys, view, stop));
    }
    let slots = Arc::clone(&setup.context.transfer_slots);
    setup.add_reusable(Transfer { lines, slots, log: Arc::default() });
    Ok(())
}

/// Warns of lines with a zone that no plugin of the block transfers. *auto* may find the zone later.
pub(super) fn warn_of_missing_zones(setup: &mut Setup<'_>) {
    let plugins = &setup.builder.plugins;
    if plugins.iter().any(|plugin| plugin.name() == "auto") {
        return;
    }
    let origins: Vec<Name> = plugins.iter().flat_map(|plugin| plugin.transferred_origins()).collect();
    let is_missing = |zone: &&Name| !origins.iter().any(|origin| zone.zone_of(origin));
    for line in setup.lines {
        let Ok(zones) = setup.zones_or_own(line.arguments()) else { continue };
        // Without arguments, one of the block's zones is enough.
        let is_enough = line.arguments().is_empty() && !zones.all().iter().all(|zone| is_missing(&zone));
        if let Some(zone) = zones.all().iter().find(is_missing).filter(|_| !is_enough) {
            let zone = to_presentation(zone);
            let warning =
                format!("no plugin of this block transfers the zone {zone}: its transfers are refused");
            setup.builder.warnings.push(line.error(warning));
        }
    }
}

fn parse(line: &Directive, zones: ZoneSet) -> Result<TransferLine, CorefileError> {
    let mut parsed = TransferLine { zones, ..TransferLine::default() };
    for option in line.options() {
        option.no_block()?;
        match option.name() {
            "to" => {
                for word in option.required_arguments(ADDRESSES)? {
                    match &*word.text {
                        "*" => parsed.is_for_all = true,
                        _ => parsed.to.push(word.server_address(ADDRESSES)?),
                    }
                }
            }
            "source" if parsed.source.is_some() => {
                return Err(option.error("source can be there only once in a line of transfer"));
            }
            "source" => {
                let word = option.single_argument(SOURCE)?;
                parsed.source = Some(word.parse(SOURCE)?);
            }
            _ => return Err(option.unknown(NAME, &OPTIONS)),
        }
    }
    if !parsed.is_for_all && parsed.to.is_empty() {
        let needed = format!("transfer needs `to` with {ADDRESSES}, on a line of its own in braces");
        return Err(line.error(needed));
    }
    Ok(parsed)
}

/// Returns the line with the longest zone that contains a name.
fn line_of<'a>(lines: &'a [TransferLine], name: &Name) -> Option<&'a TransferLine> {
    let labels = |line: &TransferLine| line.zones.closest(name).map(|zone| zone.iter().len());
    lines.iter().filter(|line| labels(line).is_some()).max_by_key(|line| labels(line))
}

#[async_trait]
impl Plugin for Transfer {
    fn name(&self) -> &'static str {
        NAME
    }

    fn sees_transfers(&self) -> bool {
        true
    }

    async fn serve(&self, request: &mut Request, next: Next<'_>) -> PluginResult {
        if request.metadata.op_code != OpCode::Query || !is_transfer(request.query.query_type()) {
            return next.serve(request).await;
        }
        self.answer(request).await
    }
}

impl Transfer {
    async fn answer(&self, request: &Request) -> PluginResult {
        let (origin, client) = (request.query.name(), request.client.ip());
        let refused = |why: &str| {
            self.log.refused(origin, client, why);
            PluginError::new(ResponseCode::Refused, "")
        };
        if request.query.query_class() != DNSClass::IN {
            return Err(refused("its class isn't IN"));
        }
        let line =
            line_of(&self.lines, origin).ok_or_else(|| refused("no line of transfer has this zone"))?;
        if !line.allows(client) {
            return Err(refused("`to` doesn't list the client"));
        }
        let zone = request.server.requested_zone(request);
        let zone = zone.ok_or_else(|| refused("it isn't the origin of a zone that can be transferred"))?;
        // An answer by HTTPS or gRPC is one message, too.
        let has_one_message = matches!(request.protocol, Protocol::Udp | Protocol::Https | Protocol::Grpc);
        let held = match (request.query.query_type(), request.soa_serial) {
            (RecordType::IXFR, None) => return Err(PluginError::new(ResponseCode::FormErr, "")),
            (RecordType::IXFR, held) => held,
            _ if has_one_message => return Err(refused("AXFR is answered only by TCP, TLS and QUIC")),
            _ => None,
        };
        let unserved = || PluginError::servfail(format!("the zone {origin} can't be served at present"));
        if let Some(held) = held {
            let soa = zone.soa().ok_or_else(unserved)?;
            if has_one_message || !is_newer(soa.serial().unwrap_or_default(), held) {
                return reply(request, &soa);
            }
        }
        let slot = self.slots.take(client, line.lists(client)).await.map_err(refused)?;
        let (state, slot) = state_of(zone, slot).await.ok_or_else(unserved)?;
        let mut reply = reply(request, &state.soa)?;
        let outgoing = Outgoing::new(state, origin, client, slot, Arc::clone(&self.log));
        reply.stream = Some(RecordStream::new(outgoing));
        Ok(reply)
    }
}

impl TransferLine {
    fn allows(&self, client: IpAddr) -> bool {
        self.is_for_all || self.lists(client)
    }

    fn lists(&self, client: IpAddr) -> bool {
        self.to.iter().any(|address| address.ip() == client)
    }
}

/// Returns the state of a zone, which has to be made if the zone has no file. The place is held until it is made, also if
/// the client has gone meanwhile.
async fn state_of(zone: Arc<dyn TransferredZone>, slot: TransferSlot) -> Option<(ZoneState, TransferSlot)> {
    let made = tokio::task::spawn_blocking(move || (zone.state(), slot)).await;
    let (state, slot) = made.ok()?;
    Some((state?, slot))
}

/// Returns a reply with an SOA record.
fn reply(request: &Request, soa: &ZoneRecord) -> PluginResult {
    let mut reply: Reply = request.reply(NAME);
    reply.metadata.authoritative = true;
    reply.is_cacheable = false;
    let name = whole_wire_name(request.query.name());
    let mut writer = ReplyWriter::new(&name, request.query.query_type());
    writer.add(Section::Answer, &soa.owner, soa.rtype, soa.ttl, &soa.data);
    let message = writer.finish(&reply.metadata);
    let message = message.ok_or_else(|| PluginError::servfail("the answer exceeds 64 KiB"))?;
    reply.records = Records::of_wire(Arc::new(message), request.query.name());
    Ok(reply)
}
