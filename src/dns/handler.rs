//! From a decoded request to its response: the zones first, then the upstream.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Instant;

use futures::FutureExt;
use hickory_proto::op::{Edns, Metadata, OpCode, Query, ResponseCode};
use hickory_proto::rr::{DNSClass, Name, RecordType};
use hickory_server::server::Request;
use tracing::error;

use super::acl::may_recurse;
use super::upstream::{Question, Upstream, UpstreamError};
use super::wire::{Ede, MAX_UDP, Response, encode, format_error, limit};
use super::zone::{TTL, Zone};
use crate::metrics::Metrics;
use crate::store::Store;

/// Look-ups that one question may cost: a longer chain of targets is a mistake or an attack.
const MAX_LOOKUPS: usize = 8;

/// Answers requests, from whichever transport they come.
#[derive(Debug)]
pub struct Handler {
    /// The zones that lb-linker is authoritative for.
    pub zones: Arc<[Zone]>,
    /// The links.
    pub store: Arc<Store>,
    /// Who resolves everything else; nobody with `--upstream none`.
    pub upstream: Option<Arc<Upstream>>,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// The address that the server is listening on, as CoreDNS writes it in its metrics.
    pub server: String,
}

impl Handler {
    /// Answers a request that [`super::wire::screen`] has let through, in wire form.
    pub async fn answer(&self, request: &Request) -> Vec<u8> {
        let started = Instant::now();
        let [query] = request.queries.queries() else { return format_error(request.as_slice()) };
        let query = query.original();
        // One question that hits a defect of ours must not end the listener for all.
        let answering = AssertUnwindSafe(self.respond(request, query)).catch_unwind();
        let response = answering.await.unwrap_or_else(|_| {
            error!("answering {} {} panicked", query.name(), query.query_type());
            self.metrics.panics.inc();
            server_failure(request)
        });
        self.count(request, query, response.metadata.response_code, started);
        let edns = request.edns.as_ref().map(|asked| response_edns(asked, response.ede));
        let size = limit(request, request.protocol());
        encode(&response, query, edns.as_ref(), size).unwrap_or_else(|error| {
            error!("the answer to {} {} can't be encoded: {error}", query.name(), query.query_type());
            // The question was decoded, so it can be encoded.
            encode(&server_failure(request), query, edns.as_ref(), size).unwrap_or_default()
        })
    }

    /// Returns the zone that a name is in, the longest one if zones are nested, and the name
    /// relative to it.
    fn zone_of(&self, name: &Name) -> Option<(&Zone, Vec<u8>)> {
        self.zones
            .iter()
            .filter_map(|zone| Some((zone, zone.relative(name)?)))
            .min_by_key(|(_, relative)| relative.len())
    }

    async fn respond(&self, request: &Request, query: &Query) -> Response {
        let mut response = Response::new(Metadata::response_from_request(&request.metadata));
        response.metadata.authentic_data = false;
        if request.edns.as_ref().is_some_and(|edns| edns.version() > 0) {
            // RFC 6891 section 6.1.3.
            response.metadata.response_code = ResponseCode::BADVERS;
            return response;
        }
        if request.metadata.op_code != OpCode::Query {
            response.metadata.response_code = ResponseCode::NotImp;
            return response;
        }
        let transfer = matches!(query.query_type(), RecordType::AXFR | RecordType::IXFR);
        if query.query_class() != DNSClass::IN || transfer {
            response.metadata.response_code = ResponseCode::Refused;
            return response;
        }
        let client = request.src().ip();
        let upstream = self.upstream.as_deref().filter(|_| may_recurse(client));
        response.metadata.recursion_available = upstream.is_some();
        let question = Question {
            query: query.clone(),
            recursion_desired: request.metadata.recursion_desired,
            checking_disabled: request.metadata.checking_disabled,
            authentic_data: request.metadata.authentic_data,
            dnssec_ok: request.edns.as_ref().map(|edns| edns.flags().dnssec_ok),
        };
        if self.zone_of(query.name()).is_some() {
            self.answer_with_authority(&mut response, upstream, question).await;
        } else {
            forward(&mut response, upstream, &question).await;
        }
        response
    }

    /// Answers with authority, and follows a CNAME to the addresses behind it: a stub resolver
    /// can't.
    async fn answer_with_authority(
        &self,
        response: &mut Response,
        upstream: Option<&Upstream>,
        mut question: Question,
    ) {
        response.metadata.authoritative = true;
        for _ in 0..MAX_LOOKUPS {
            let Some((zone, relative)) = self.zone_of(question.query.name()) else {
                if let Some(upstream) = upstream.filter(|_| question.recursion_desired) {
                    chase(response, upstream, &question).await;
                }
                return;
            };
            let answer =
                zone.answer(&self.store, question.query.name(), &relative, question.query.query_type());
            response.metadata.response_code = answer.rcode;
            response.ede = answer.ede;
            response.answers.extend(answer.answers);
            response.authorities = answer.authorities;
            response.additionals = answer.additionals;
            let Some(target) = answer.chase else { return };
            question.query.set_name(target);
        }
        response.metadata.response_code = ResponseCode::ServFail;
        response.ede = Some(Ede::LOOP);
    }

    fn count(&self, request: &Request, query: &Query, rcode: ResponseCode, started: Instant) {
        // An unmatched name is in CoreDNS's root block, or dropped where there is none.
        let (zone, plugin) = match (self.zone_of(query.name()), &self.upstream) {
            (Some((zone, _)), _) => (zone.origin().to_ascii(), "lb_linker"),
            (None, Some(_)) => (".".to_owned(), "forward"),
            (None, None) => ("dropped".to_owned(), ""),
        };
        let Metrics { dns_requests, dns_responses, dns_duration, .. } = &*self.metrics;
        let (server, protocol) = (&*self.server, request.protocol().to_string());
        let family = if request.src().is_ipv4() { "1" } else { "2" };
        let labels = [server, &zone, "", &protocol, family, type_label(query.query_type())];
        dns_requests.with_label_values(&labels).inc();
        dns_responses.with_label_values(&[server, &zone, "", &rcode_label(rcode), plugin]).inc();
        dns_duration.with_label_values(&[server, &zone, ""]).observe(started.elapsed().as_secs_f64());
    }
}

fn server_failure(request: &Request) -> Response {
    let mut metadata = Metadata::response_from_request(&request.metadata);
    metadata.response_code = ResponseCode::ServFail;
    Response::new(metadata)
}

/// Passes the question on and the answer back as it is.
async fn forward(response: &mut Response, upstream: Option<&Upstream>, question: &Question) {
    let Some(upstream) = upstream else {
        response.metadata.response_code = ResponseCode::Refused;
        return;
    };
    match upstream.ask(question).await {
        Ok(answer) => {
            let Metadata { id, recursion_desired, .. } = response.metadata;
            response.metadata = answer.metadata;
            response.metadata.id = id;
            response.metadata.recursion_desired = recursion_desired;
            response.metadata.truncation = false;
            response.answers = answer.answers;
            response.authorities = answer.authorities;
            response.additionals = answer.additionals;
        }
        Err(error) => failed(response, error),
    }
}

/// Adds what the upstream knows of a target. The response code is the last of the chain (RFC 6604
/// section 3).
async fn chase(response: &mut Response, upstream: &Upstream, question: &Question) {
    let answer = match upstream.ask(question).await {
        Ok(answer) => answer,
        Err(error) => return failed(response, error),
    };
    match answer.metadata.response_code {
        rcode @ (ResponseCode::NoError | ResponseCode::NXDomain) => {
            response.metadata.response_code = rcode;
            let positive =
                answer.answers.iter().any(|record| record.record_type() == question.query.query_type());
            response.answers.extend(answer.answers);
            if !positive {
                response.authorities = answer.authorities;
                // RFC 2308 section 5: caches keep the absence as long as the SOA. Absence of a
                // name of ours must not outlive our own TTL.
                for record in &mut response.authorities {
                    record.ttl = record.ttl.min(TTL);
                }
            }
        }
        // The upstream doesn't want to: the client may know somebody who does.
        ResponseCode::Refused => {}
        _ => {
            response.metadata.response_code = ResponseCode::ServFail;
            response.ede = Some(Ede::NO_UPSTREAM);
        }
    }
}

fn failed(response: &mut Response, error: UpstreamError) {
    response.metadata.response_code = match error {
        // As CoreDNS's forward does at its limit.
        UpstreamError::Busy if response.answers.is_empty() => ResponseCode::Refused,
        _ => ResponseCode::ServFail,
    };
    response.ede = Some(Ede::NO_UPSTREAM);
}

fn response_edns(asked: &Edns, ede: Option<Ede>) -> Edns {
    let mut edns = Edns::new();
    edns.set_max_payload(MAX_UDP);
    edns.set_dnssec_ok(asked.flags().dnssec_ok);
    if let Some(ede) = ede {
        edns.options_mut().insert(ede.option());
    }
    edns
}

/// The types that CoreDNS tells apart: the label must not grow with what clients make up.
fn type_label(qtype: RecordType) -> &'static str {
    const TYPES: [RecordType; 19] = [
        RecordType::A,
        RecordType::AAAA,
        RecordType::ANY,
        RecordType::AXFR,
        RecordType::CNAME,
        RecordType::DNSKEY,
        RecordType::DS,
        RecordType::HTTPS,
        RecordType::IXFR,
        RecordType::MX,
        RecordType::NS,
        RecordType::NSEC,
        RecordType::NSEC3,
        RecordType::PTR,
        RecordType::RRSIG,
        RecordType::SOA,
        RecordType::SRV,
        RecordType::SVCB,
        RecordType::TXT,
    ];
    if TYPES.contains(&qtype) { qtype.into() } else { "other" }
}

/// The names of miekg/dns, which CoreDNS's metrics show.
fn rcode_label(rcode: ResponseCode) -> String {
    match rcode {
        ResponseCode::NoError => "NOERROR".to_owned(),
        ResponseCode::FormErr => "FORMERR".to_owned(),
        ResponseCode::ServFail => "SERVFAIL".to_owned(),
        ResponseCode::NXDomain => "NXDOMAIN".to_owned(),
        ResponseCode::NotImp => "NOTIMP".to_owned(),
        ResponseCode::Refused => "REFUSED".to_owned(),
        ResponseCode::BADVERS => "BADVERS".to_owned(),
        other => u16::from(other).to_string(),
    }
}
