//! # Name
//!
//! *dns64* - makes AAAA records of A records (RFC 6147), for networks of IPv6 alone with a NAT64.
//!
//! # Description
//!
//! AAAA queries that come by IPv6 get an address with the prefix for each A record, if the name exists and has no AAAA
//! records other than `::ffff:0:0/96`. The TTL is that of the A record, but at most that of the SOA record in the
//! answer to AAAA, or 600 seconds without one. Left out are addresses of the client's own host, of metadata services
//! and of `--denied-nets`, which [aren't targets](concepts.md#the-whole-chain-is-checked) either. Clients that validate
//! themselves (DO and CD) get no such records, and neither do look-ups for links: the block of *lb_linker* needs its
//! own line.
//!
//! A PTR query for an address with the prefix gets a CNAME record to the IPv4 address's name in `in-addr.arpa`, and the
//! records there. The zones of the block have to include the prefix's reverse zone.
//!
//! Differences from CoreDNS, which answers no PTR queries: without A records the answer to AAAA stays as it is;
//! signatures of A records are left out; the prefix has a length of RFC 6052.
//!
//! # Syntax
//!
//! Syntax: `dns64 [PREFIX]`, of 32, 40, 48, 56, 64 or 96 bits, `64:ff9b::/96` by default, with the options `prefix
//! PREFIX`; `translate_all`: AAAA records are replaced, too; `allow_ipv4`: also for queries that come by IPv4.

mod prefix;
#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::sync::Arc;

use async_trait::async_trait;
use hickory_proto::op::{Metadata, Query, ResponseCode};
use hickory_proto::rr::rdata::{AAAA, CNAME};
use hickory_proto::rr::{DNSClass, Name, RData, Record, RecordType};
use prometheus::{IntCounterVec, Opts, Registry};

use self::prefix::{Prefix, WHAT};
use super::clients::is_client_query;
use super::setup::Setup;
use crate::dns::chain::plugin::{Next, Plugin, PluginError, PluginResult};
use crate::dns::chain::request::Request;
use crate::dns::chain::server::Server;
use crate::dns::corefile::CorefileError;
use crate::dns::message::reply::Reply;
use crate::dns::message::rrsig::type_covered;
use crate::metrics::{MetricGroup, registered};
use crate::model::target_policy::TargetPolicy;

const NAME: &str = "dns64";
/// In seconds: the longest TTL without an SOA record (RFC 6147 section 5.1.7).
const MAX_TTL: u32 = 600;

#[derive(Debug)]
struct Dns64 {
    prefix: Prefix,
    translate_all: bool,
    allow_ipv4: bool,
    targets: Arc<TargetPolicy>,
    counts: Arc<Dns64Counters>,
}

#[derive(Debug)]
struct Dns64Counters {
    translated: IntCounterVec,
}

impl MetricGroup for Dns64Counters {
    fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let options = Opts::new(
            "coredns_dns64_requests_translated_total",
            "Counter of DNS requests translated by dns64.",
        );
        Ok(Self { translated: registered(registry, IntCounterVec::new(options, &["server"]))? })
    }
}

pub(super) fn set_up(setup: &mut Setup<'_>) -> Result<(), CorefileError> {
    let line = setup.only_line()?;
    let mut prefix = match line.at_most(1)? {
        [word] => Prefix::parse(word)?,
        _ => Prefix::WELL_KNOWN,
    };
    let (mut translate_all, mut allow_ipv4) = (false, false);
    for option in line.options() {
        option.no_block()?;
        match option.name() {
            "prefix" => prefix = Prefix::parse(option.single_argument(WHAT)?)?,
            "translate_all" => {
                option.no_arguments()?;
                translate_all = true;
            }
            "allow_ipv4" => {
                option.no_arguments()?;
                allow_ipv4 = true;
            }
            _ => return Err(option.unknown(NAME, &["prefix", "translate_all", "allow_ipv4"])),
        }
    }
    let targets = Arc::clone(&setup.context.targets);
    let counts = setup.metrics()?;
    setup.add_reusable(Dns64 { prefix, translate_all, allow_ipv4, targets, counts });
    Ok(())
}

#[async_trait]
impl Plugin for Dns64 {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn serve(&self, request: &mut Request, next: Next<'_>) -> PluginResult {
        // RFC 6147 section 5.5: a client that validates itself would refuse synthesized records.
        let validates = request.dnssec_ok() && request.metadata.checking_disabled;
        if request.query.query_class() != DNSClass::IN || validates || !is_client_query(request) {
            return next.serve(request).await;
        }
        match request.query.query_type() {
            RecordType::AAAA => self.answer_aaaa(request, next).await,
            RecordType::PTR => match self.prefix.reverse_name(request.query.name()) {
                Some(target) => answer_ptr(request, target).await,
                None => next.serve(request).await,
            },
            _ => next.serve(request).await,
        }
    }
}

impl Dns64 {
    async fn answer_aaaa(&self, request: &mut Request, next: Next<'_>) -> PluginResult {
        if !self.allow_ipv4 && request.client.is_ipv4() {
            let mut reply = next.serve(request).await?;
            // Clients by IPv6 may get another answer.
            reply.is_cacheable = false;
            return Ok(reply);
        }
        let (query, metadata) = (request.query.clone(), request.metadata);
        let mut outcome = next.serve(request).await;
        if let Ok(reply) = &mut outcome {
            reply.is_cacheable &= self.allow_ipv4;
            remove_mapped(reply);
            let has_addresses =
                reply.records.answers.iter().any(|record| record.record_type() == RecordType::AAAA);
            let is_final = has_addresses && !self.translate_all;
            if is_final || reply.metadata.response_code == ResponseCode::NXDomain {
                return outcome;
            }
        }
        if matches!(outcome, Err(PluginError::Drop)) {
            return outcome;
        }
        match self.synthesized(request, query, metadata, outcome.as_ref().ok()).await {
            Some(mut reply) => {
                reply.is_cacheable &= self.allow_ipv4;
                self.counts.translated.with_label_values(&[&*request.server.label]).inc();
                Ok(reply)
            }
            None => {
                if let Ok(reply) = &mut outcome {
                    // The answer rests on that to the query for A, too.
                    reply.validity = None;
                }
                outcome
            }
        }
    }

    /// Returns the answer made of that to the query for A; `None` if it has no A records that may be translated.
    /// `query` and `metadata` are those before the next plugins changed them.
    async fn synthesized(
        &self,
        request: &Request,
        query: Query,
        metadata: Metadata,
        original: Option<&Reply>,
    ) -> Option<Reply> {
        let mut outer = request.clone();
        (outer.query, outer.metadata) = (query, metadata);
        let mut for_a = outer.query.clone();
        for_a.set_query_type(RecordType::A);
        let mut reply = Server::look_up_alias(&outer, for_a).await?;
        let max_ttl = original.and_then(soa_ttl).unwrap_or(MAX_TTL);
        let mut has_addresses = false;
        reply.records.answers.retain_mut(|record| match record.data {
            RData::A(address) => {
                if self.targets.check_reachable(IpAddr::V4(address.0)).is_err() {
                    return false;
                }
                has_addresses = true;
                record.data = RData::AAAA(AAAA(self.prefix.embed(address.0)));
                record.ttl = record.ttl.min(max_ttl);
                true
            }
            _ => type_covered(record) != Some(RecordType::A),
        });
        reply.metadata.authentic_data = false;
        reply.validity = None;
        reply.plugin = NAME;
        has_addresses.then_some(reply)
    }
}

/// Answers with a CNAME record to a name in `in-addr.arpa`, and the records there (RFC 6147 section 5.3.1).
async fn answer_ptr(request: &Request, target: Name) -> PluginResult {
    let found = Server::look_up_alias(request, Query::query(target.clone(), RecordType::PTR)).await;
    let mut reply =
        found.ok_or_else(|| PluginError::servfail(format!("dns64: {target} can't be looked up")))?;
    if !matches!(reply.metadata.response_code, ResponseCode::NoError | ResponseCode::NXDomain) {
        return Ok(reply);
    }
    let ttl = reply.records.answers.iter().map(|record| record.ttl).min().or_else(|| soa_ttl(&reply));
    let ttl = ttl.unwrap_or(MAX_TTL).min(MAX_TTL);
    let alias = Record::from_rdata(request.query.name().clone(), ttl, RData::CNAME(CNAME(target)));
    reply.records.answers.insert(0, alias);
    reply.metadata.authentic_data = false;
    reply.validity = None;
    reply.plugin = NAME;
    Ok(reply)
}

/// Removes IPv4-mapped addresses (RFC 6147 section 5.1.4).
fn remove_mapped(reply: &mut Reply) {
    let is_mapped =
        |record: &Record| matches!(record.data, RData::AAAA(AAAA(ip)) if ip.to_ipv4_mapped().is_some());
    // Most answers have none, and can stay in wire form.
    if reply.records.answers.iter().any(is_mapped) {
        reply.records.answers.retain(|record| !is_mapped(record));
        reply.validity = None;
    }
}

fn soa_ttl(reply: &Reply) -> Option<u32> {
    let mut authorities = reply.records.authorities.iter();
    authorities.find(|record| record.record_type() == RecordType::SOA).map(|record| record.ttl)
}
