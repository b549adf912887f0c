//! Makes replies of what the keys say.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use hickory_proto::op::{Query, ResponseCode};
use hickory_proto::rr::{Name, Record, RecordType};
use tokio::time::Instant;

use super::NAME;
use super::answer::{Answer, Outcome, Outside, Part, soa};
use crate::dns::chain::plugin::{Next, PluginError, PluginResult};
use crate::dns::chain::request::Request;
use crate::dns::chain::server::Server;
use crate::dns::message::reply::Reply;
use crate::dns::message::validity::{OutdatedFlag, RestsOn, Validity};

/// How long an answer is reused whose TTL runs down with a lease.
const RUNNING_DOWN: Duration = Duration::from_secs(1);

/// A zone in one state of the keys.
pub(super) struct ZoneReply<'a> {
    pub(super) zone: &'a Name,
    pub(super) serial: u32,
    pub(super) outdated: OutdatedFlag,
}

impl ZoneReply<'_> {
    pub(super) async fn reply(&self, request: &Request, answer: Answer) -> PluginResult {
        let mut reply = request.reply(NAME);
        reply.metadata.authoritative = true;
        reply.rests_on = Some(Arc::new(rests_on(&self.outdated)));
        let until = answer.runs_down.then(|| Instant::now() + RUNNING_DOWN);
        reply.validity =
            Some(Box::new(Validity { until, zones: vec![self.outdated.clone()], ..Validity::default() }));
        match answer.outcome {
            Outcome::Parts { answers, additionals } => {
                reply.records.answers = resolved(request, answers, &mut reply).await;
                reply.records.additionals = resolved(request, additionals, &mut reply).await;
            }
            Outcome::Soa => reply.records.answers.push(self.soa()?),
            Outcome::Missing { exists: false } => reply.metadata.response_code = ResponseCode::NXDomain,
            Outcome::Empty | Outcome::Missing { exists: true } => {}
        }
        if reply.records.answers.is_empty() {
            reply.records.authorities.push(self.soa()?);
        }
        Ok(reply)
    }

    fn soa(&self) -> Result<Record, PluginError> {
        soa(self.zone, self.serial)
            .ok_or_else(|| PluginError::servfail("etcd: the zone's name is too long for an SOA record"))
    }
}

fn rests_on(outdated: &OutdatedFlag) -> RestsOn {
    RestsOn { flags: vec![outdated.clone()], ..RestsOn::default() }
}

/// Returns the records of the parts, and looks up what is outside of the zone.
async fn resolved(request: &Request, parts: Vec<Part>, reply: &mut Reply) -> Vec<Record> {
    let look_up = |part: &Part| {
        let Part::Outside(Outside { target, qtype, .. }) = part else { return None };
        Some(Query::query(target.clone(), *qtype))
    };
    let queries: Vec<Query> = parts.iter().filter_map(look_up).collect();
    let mut found =
        join_all(queries.into_iter().map(|query| Server::look_up_alias(request, query))).await.into_iter();
    let mut records = Vec::new();
    for part in parts {
        let outside = match part {
            Part::Record(record) => {
                records.push(record);
                continue;
            }
            Part::Outside(outside) => outside,
        };
        // What is behind the name isn't part of the state of the keys.
        reply.validity = None;
        let Some(mut found) = found.next().flatten() else {
            reply.is_cacheable = false;
            continue;
        };
        reply.is_cacheable &= found.may_be_part_of_cached();
        reply.metadata.truncation |= found.metadata.truncation && outside.alias.is_some();
        records.extend(outside.alias);
        let is_known = |record: &Record| outside.without_aliases && record.record_type() == RecordType::CNAME;
        records.extend(
            std::mem::take(&mut found.records.answers).into_iter().filter(|record| !is_known(record)),
        );
    }
    records
}

/// Passes a request on. The answer holds until the keys change, as one may have the name then.
pub(super) async fn passed(request: &mut Request, next: Next<'_>, outdated: &OutdatedFlag) -> PluginResult {
    let mut reply = next.serve(request).await?;
    let mut rests_on = rests_on(outdated);
    if let Some(validity) = &mut reply.validity {
        validity.add_rests_on(&rests_on);
    }
    if let Some(other) = &reply.rests_on {
        rests_on.add(other);
    }
    reply.rests_on = Some(Arc::new(rests_on));
    Ok(reply)
}
