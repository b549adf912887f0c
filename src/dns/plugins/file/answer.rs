//! Answers queries from zones.

use std::sync::Arc;

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::{DNSClass, RData, Record, RecordType};

use super::zone_map::{ServedZone, ZoneMap};
use crate::dns::chain::plugin::{Next, PluginError, PluginResult};
use crate::dns::chain::request::Request;
use crate::dns::chain::server::Server;
use crate::dns::message::query::whole_wire_name;
use crate::dns::message::records::Records;
use crate::dns::message::reply::Reply;
use crate::dns::message::validity::{OutdatedFlag, Section, Validity};
use crate::dns::message::wire::writer::ReplyWriter;
use crate::dns::message::zone_set::ZoneSet;
use crate::dns::zone::{Found, Zone};

/// Answers a request from the zone that is responsible for it. Names outside the zones go to the next plugin, and so do
/// names in `fallthrough` that don't exist.
pub(in crate::dns::plugins) async fn serve(
    zones: &ZoneMap,
    fallthrough: &ZoneSet,
    plugin: &'static str,
    request: &mut Request,
    next: Next<'_>,
) -> PluginResult {
    let name = whole_wire_name(request.query.name());
    let qtype = request.query.query_type();
    let is_in = request.query.query_class() == DNSClass::IN;
    // The parent's zone has the DS record (RFC 4035 section 3.1.4.1).
    let above = (qtype == RecordType::DS).then(|| zones.closest_above(&name)).flatten();
    let own = above.or_else(|| zones.closest(&name)).filter(|_| is_in);
    // Without the parent's zone, the next plugin may have the DS record of a zone's origin.
    let next_has_ds = |zone: &&Arc<ServedZone>| {
        qtype == RecordType::DS && above.is_none() && zone.origin() == request.query.name() && !next.is_end()
    };
    let Some(served) = own.filter(|zone| !next_has_ds(zone)) else {
        if next.is_end() {
            // This server isn't responsible for the name.
            return Err(PluginError::new(ResponseCode::Refused, ""));
        }
        return passed(next, request, zones.outdated()).await;
    };
    let Some(zone) = served.zone() else {
        return Err(served.error());
    };
    let found = zone.look_up(&name, qtype, request.dnssec_ok());
    let is_unknown =
        found.rcode == ResponseCode::NXDomain && found.sections[Section::Answer as usize].is_empty();
    if is_unknown && fallthrough.contains(request.query.name()) {
        return passed(next, request, zone.outdated()).await;
    }
    let mut reply = answer(request, plugin, &name, &zone, &found).await?;
    reply.rest_on(zones.outdated().clone());
    Ok(reply)
}

/// Passes a request on. The answer holds until the flag is set, because the zone may have the name afterwards.
async fn passed(next: Next<'_>, request: &mut Request, flag: &OutdatedFlag) -> PluginResult {
    let mut reply = next.serve(request).await?;
    reply.rest_on(flag.clone());
    Ok(reply)
}

/// Makes the reply of a zone's answer to a query for a name in wire form.
async fn answer(
    request: &Request,
    plugin: &'static str,
    name: &[u8],
    zone: &Zone,
    found: &Found<'_>,
) -> PluginResult {
    let mut reply = request.reply(plugin);
    reply.metadata.authoritative = found.is_authoritative;
    reply.metadata.response_code = found.rcode;
    let mut writer = ReplyWriter::new(name, request.query.query_type());
    for (section, parts) in Section::ALL.into_iter().zip(&found.sections) {
        for part in parts {
            part.write_to(|data| writer.add(section, &part.owner, part.rtype, part.ttl, data));
        }
    }
    let message = writer.finish(&reply.metadata);
    let message = message.ok_or_else(|| PluginError::servfail("the answer exceeds 64 KiB"))?;
    reply.records = Records::of_wire(Arc::new(message), request.query.name());
    match &found.outside {
        Some(target) => add_target(&mut reply, request, target).await,
        None => {
            let validity = Validity { zones: vec![zone.outdated().clone()], ..Validity::default() };
            reply.validity = Some(Box::new(validity));
        }
    }
    Ok(reply)
}

/// Adds the answer for an alias's target, in wire form, outside the zone. The rcode is that of the last look-up (RFC 6604
/// section 3).
async fn add_target(reply: &mut Reply, request: &Request, target: &[u8]) {
    let Some(mut found) = Server::look_up_wire_alias(request, target).await else {
        reply.is_cacheable = false;
        reply.metadata.response_code = ResponseCode::ServFail;
        return;
    };
    reply.is_cacheable &= found.may_be_part_of_cached();
    reply.metadata.truncation |= found.metadata.truncation;
    let rcode = found.metadata.response_code;
    if matches!(rcode, ResponseCode::NXDomain | ResponseCode::ServFail) {
        reply.metadata.response_code = rcode;
    }
    let is_denial = rcode == ResponseCode::NoError && found.records.answers.is_empty();
    if is_denial || rcode == ResponseCode::NXDomain {
        // The NS records go; what proves the wildcards of the aliases stays (RFC 4035 section 3.1.3.3).
        reply.records.authorities.retain(is_proof);
        reply.records.authorities.append(&mut found.records.authorities);
    }
    reply.records.answers.append(&mut found.records.answers);
}

/// Returns whether a record is an NSEC record or the signature of one.
fn is_proof(record: &Record) -> bool {
    match &record.data {
        RData::Unknown { code: RecordType::RRSIG, rdata } => {
            rdata.anything.starts_with(&u16::from(RecordType::NSEC).to_be_bytes())
        }
        data => data.record_type() == RecordType::NSEC,
    }
}
