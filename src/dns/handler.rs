//! From a decoded request to its response: the zones first, then the upstream.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Instant;

use futures::FutureExt;
use hickory_proto::op::{Edns, Header, HeaderCounts, Metadata, OpCode, Query, ResponseCode};
use hickory_proto::rr::{DNSClass, Name, RecordType};
use hickory_server::net::runtime::Time;
use hickory_server::server::{Request, RequestHandler, ResponseHandler, ResponseInfo};
use hickory_server::zone_handler::MessageResponseBuilder;
use tracing::{debug, error};

use super::acl::may_recurse;
use super::unmapped;
use super::upstream::{Question, Upstream, UpstreamError};
use super::wire::{Ede, MAX_UDP, Sections, fit, limit};
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

/// What is known of the response before it is made to fit.
#[derive(Debug)]
struct Response {
    metadata: Metadata,
    sections: Sections,
    ede: Option<Ede>,
}

#[async_trait::async_trait]
impl RequestHandler for Handler {
    async fn handle_request<R: ResponseHandler, T: Time>(
        &self,
        request: &Request,
        mut reply: R,
    ) -> ResponseInfo {
        let started = Instant::now();
        let mut metadata = Metadata::response_from_request(&request.metadata);
        // The transports let only single questions through; who calls otherwise gets FORMERR.
        let [query] = request.queries.queries() else {
            metadata.response_code = ResponseCode::FormErr;
            let builder = MessageResponseBuilder::new(&request.queries, None);
            let refusal = builder.build_no_records(metadata);
            return reply.send_response(refusal).await.unwrap_or_else(|_| unsent(metadata));
        };
        let query = query.original();
        let zone = self.zone_of(query.name());
        // One question that hits a defect of ours must not end the listener for all.
        let answering = AssertUnwindSafe(self.respond(request, query, metadata)).catch_unwind();
        let mut response = answering.await.unwrap_or_else(|_| {
            error!("answering {} {} panicked", query.name(), query.query_type());
            self.metrics.panics.inc();
            metadata.response_code = ResponseCode::ServFail;
            Response { metadata, sections: Sections::default(), ede: None }
        });

        let edns = request.edns.as_ref().map(|asked| response_edns(asked, response.ede));
        let size = limit(request, request.protocol());
        if fit(&mut response.sections, query, edns.as_ref(), size) {
            response.metadata.truncation = true;
        }
        let mut builder = MessageResponseBuilder::new(&request.queries, edns.as_ref());
        if let Some(edns) = &edns {
            builder.edns(edns);
        }
        let Sections { answers, authorities, additionals } = &response.sections;
        let message = builder.build(response.metadata, answers, authorities, [], additionals);
        let sent = reply.send_response(message).await;
        self.count(request, query.query_type(), zone, &response, started);
        sent.unwrap_or_else(|error| {
            debug!("the answer to {} for {} can't be sent: {error}", request.src(), query.name());
            unsent(response.metadata)
        })
    }
}

impl Handler {
    /// Returns the zone that a name is in, the longest one if zones are nested, and the name
    /// relative to it.
    fn zone_of(&self, name: &Name) -> Option<(&Zone, Vec<u8>)> {
        self.zones
            .iter()
            .filter_map(|zone| Some((zone, zone.relative(name)?)))
            .min_by_key(|(_, relative)| relative.len())
    }

    async fn respond(&self, request: &Request, query: &Query, metadata: Metadata) -> Response {
        let mut response = Response { metadata, sections: Sections::default(), ede: None };
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
        let client = unmapped(request.src()).ip();
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
            response.sections.answers.extend(answer.answers);
            response.sections.authorities = answer.authorities;
            response.sections.additionals = answer.additionals;
            let Some(target) = answer.chase else { return };
            question.query.set_name(target);
        }
        response.metadata.response_code = ResponseCode::ServFail;
        response.ede = Some(Ede::LOOP);
    }

    fn count(
        &self,
        request: &Request,
        qtype: RecordType,
        zone: Option<(&Zone, Vec<u8>)>,
        response: &Response,
        started: Instant,
    ) {
        // An unmatched name is in CoreDNS's root block, or dropped where there is none.
        let zone = match (zone, &self.upstream) {
            (Some((zone, _)), _) => zone.origin().to_ascii(),
            (None, Some(_)) => ".".to_owned(),
            (None, None) => "dropped".to_owned(),
        };
        let plugin = if zone == "." { "forward" } else { "lb_linker" };
        let family = if unmapped(request.src()).is_ipv4() { "1" } else { "2" };
        let rcode = rcode_label(response.metadata.response_code);
        let Metrics { dns_requests, dns_responses, dns_duration, .. } = &*self.metrics;
        let (server, protocol) = (&*self.server, request.protocol().to_string());
        dns_requests.with_label_values(&[server, &zone, "", &protocol, family, &qtype.to_string()]).inc();
        dns_responses.with_label_values(&[server, &zone, "", &rcode, plugin]).inc();
        dns_duration.with_label_values(&[server, &zone, ""]).observe(started.elapsed().as_secs_f64());
    }
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
            response.sections = Sections {
                answers: answer.answers,
                authorities: answer.authorities,
                additionals: answer.additionals,
            };
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
            response.sections.answers.extend(answer.answers);
            if !positive {
                response.sections.authorities = answer.authorities;
                // RFC 2308 section 5: caches keep the absence as long as the SOA. Absence of a
                // name of ours must not outlive our own TTL.
                for record in &mut response.sections.authorities {
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
        UpstreamError::Busy if response.sections.answers.is_empty() => ResponseCode::Refused,
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

/// What is reported of a response that nobody got.
fn unsent(metadata: Metadata) -> ResponseInfo {
    Header { metadata, counts: HeaderCounts::default() }.into()
}
