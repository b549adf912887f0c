//! From a decoded request to its response: the zones first, then what is behind them.

use std::time::Duration;

use hickory_proto::op::{Message, Metadata, Query, ResponseCode};
use hickory_proto::rr::{DNSClass, Name, Record, RecordType};
use hickory_server::server::Request;
use tokio::time::{Instant, timeout};

use super::acl::may_recurse;
use super::chase::{End, Followed, drop_refused, follow};
use super::encode::limit;
use super::forward::ForwardError;
use super::handler::Handler;
use super::plugin::Reply;
use super::question::{Question, room};
use super::resolver::{Known, PATIENCE, Resolver, Wanted};
use super::wire::Ede;
use super::zone::Zone;
use crate::store::{Family, Link};

/// Look-ups that one question may cost: a longer chain of targets is a mistake or an attack.
const MAX_LOOKUPS: usize = 8;
/// How long a health check waits for an upstream: who asks for the root's name servers wants to know whether
/// we live, within a second.
const HEALTH_CHECK: Duration = Duration::from_millis(500);

impl Handler {
    pub(super) async fn respond(
        &self,
        request: &Request,
        query: &Query,
        zone: Option<(&Zone, Vec<u8>)>,
    ) -> Reply {
        let mut response = Reply::new(Metadata::response_from_request(&request.metadata), "");
        if request.edns.as_ref().is_some_and(|edns| edns.version() > 0) {
            // RFC 6891 section 6.1.3.
            response.metadata.response_code = ResponseCode::BADVERS;
            return response;
        }
        let transfer = matches!(query.query_type(), RecordType::AXFR | RecordType::IXFR);
        if query.query_class() != DNSClass::IN || transfer {
            response.metadata.response_code = ResponseCode::Refused;
            return response;
        }
        if is_no_question(query.query_type()) {
            response.metadata.response_code = ResponseCode::NotImp;
            return response;
        }
        let client = request.src().ip();
        let resolver = self.resolver.as_deref().filter(|_| may_recurse(client));
        response.metadata.recursion_available = resolver.is_some();
        let question = Question {
            query: query.clone(),
            recursion_desired: request.metadata.recursion_desired,
            checking_disabled: request.metadata.checking_disabled,
            authentic_data: request.metadata.authentic_data,
            dnssec_ok: request.edns.as_ref().is_some_and(|edns| edns.flags().dnssec_ok),
            room: room(limit(request, request.protocol())),
        };
        if let Some(zone) = zone {
            self.answer_with_authority(&mut response, resolver, question, zone).await;
        } else {
            forward(&mut response, resolver, &question, request.edns.is_some()).await;
        }
        response
    }

    /// Answers with authority, and follows a CNAME to the addresses behind it: a stub resolver
    /// can't.
    async fn answer_with_authority(
        &self,
        response: &mut Reply,
        resolver: Option<&Resolver>,
        mut question: Question,
        zone: (&Zone, Vec<u8>),
    ) {
        response.metadata.authoritative = true;
        let mut chase = Chase { until: Instant::now() + PATIENCE, absence: zone.0.ttl(), denied: false };
        let mut zone = Some(zone);
        let mut seen: Vec<Name> = Vec::new();
        while !seen.contains(question.query.name()) && seen.len() < MAX_LOOKUPS {
            let name = question.query.name().clone();
            let next = match zone {
                Some((zone, relative)) => {
                    let qtype = question.query.query_type();
                    let answer = zone.answer(&self.store, &name, &relative, qtype);
                    answer.link.iter().for_each(|link| note(link, qtype));
                    response.metadata.response_code = answer.rcode;
                    // That part of the chain is an older answer stays worth saying.
                    response.ede = answer.ede.or(response.ede);
                    response.answers.extend(answer.answers);
                    response.authorities = answer.authorities;
                    response.additionals = answer.additionals;
                    answer.chase
                }
                None => match resolver.filter(|_| question.recursion_desired) {
                    Some(resolver) => self.chase(response, resolver, &question, &mut chase).await,
                    None => None,
                },
            };
            let Some(next) = next else {
                chase.bound(response);
                return;
            };
            zone = self.zone_of(&next);
            seen.push(name);
            question.query.set_name(next);
        }
        response.metadata.response_code = ResponseCode::ServFail;
        response.ede = Some(Ede::LOOP);
    }

    /// Adds what is known of a target; returns the name of ours that it leads back to, if it does. The
    /// response code is the last of the chain (RFC 6604 section 3).
    async fn chase(
        &self,
        response: &mut Reply,
        resolver: &Resolver,
        question: &Question,
        chase: &mut Chase,
    ) -> Option<Name> {
        let mut found = self.ask(resolver, question, chase, true).await;
        // Absence that the cache doesn't know as such, as when all addresses are of a kind that isn't given.
        if found.as_ref().is_ok_and(|found| found.is_absence(question) && found.known.age >= chase.absence())
            && let Ok(fresh) = self.ask(resolver, question, chase, false).await
        {
            found = Ok(fresh);
        }
        let Findings { known, mut followed, filtered } = match found {
            Ok(found) => found,
            Err(error) => {
                response.metadata.response_code = ResponseCode::ServFail;
                response.ede = Some(ede(error));
                return None;
            }
        };
        if known.stale {
            self.metrics.stale_answers.inc();
            response.ede = Some(Ede::STALE);
        } else if matches!(followed.end, End::Leads(_)) {
            resolver.remember(question, &known.message);
        }
        if filtered {
            response.ede = Some(Ede::FILTERED);
        }
        response.answers.append(&mut followed.answers);
        response.authorities = followed.authorities;
        response.metadata.truncation |= known.message.metadata.truncation;
        chase.denied = known.message.metadata.response_code != ResponseCode::Refused;
        match followed.end {
            End::Here(rcode) => response.metadata.response_code = rcode,
            End::Leads(name) => return Some(name),
            // The upstream doesn't want to: the client may know somebody who does.
            End::Lame if known.message.metadata.response_code == ResponseCode::Refused => {}
            End::Lame => {
                response.metadata.response_code = ResponseCode::ServFail;
                response.ede = Some(Ede::UPSTREAM_FAILED);
            }
        }
        None
    }

    /// Asks for what is behind a target, and takes what belongs to it. An answer that is none counts less
    /// than what was known before (RFC 8767 section 4).
    async fn ask(
        &self,
        resolver: &Resolver,
        question: &Question,
        chase: &Chase,
        cached: bool,
    ) -> Result<Findings, ForwardError> {
        let wanted = Wanted { until: chase.until, absence: chase.absence(), cached };
        let mut known = resolver.chase(question, wanted).await?;
        let mut followed = self.follow(&known.message, question, chase.absence);
        if followed.end == End::Lame
            && let Some(last) = resolver.recall(question)
        {
            followed = self.follow(&last.message, question, chase.absence);
            known = last;
        }
        let filtered = drop_refused(&mut followed.answers, &self.targets);
        Ok(Findings { known, followed, filtered })
    }

    fn follow(&self, answer: &Message, question: &Question, absence: u32) -> Followed {
        let Query { name, query_type, .. } = &question.query;
        follow(answer, name, *query_type, absence, |name| self.zone_of(name).is_some())
    }
}

/// Returns whether a type is one that nobody can ask for: that of a record that belongs to a message (RFC 6891
/// section 6.1.1, RFC 8945 section 5.1, RFC 2930 section 2), or an obsolete one (MAILB, MAILA).
fn is_no_question(qtype: RecordType) -> bool {
    const TKEY: u16 = 249;
    const MAIL: [u16; 2] = [253, 254];
    let number = u16::from(qtype);
    matches!(qtype, RecordType::OPT | RecordType::TSIG) || number == TKEY || MAIL.contains(&number)
}

/// What counts for all look-ups of one question.
struct Chase {
    /// When the client gives up.
    until: Instant,
    /// How long absence is known, in seconds.
    absence: u32,
    /// Whether somebody has said what there is at the end of the chain.
    denied: bool,
}

impl Chase {
    fn absence(&self) -> Duration {
        Duration::from_secs(self.absence.into())
    }

    /// Has nothing about absence live longer than our own: where no SOA says how long, some take the TTL of
    /// the aliases for that.
    fn bound(&self, response: &mut Reply) {
        let alias = |record: &Record| matches!(record.record_type(), RecordType::CNAME | RecordType::DNAME);
        if self.denied && response.authorities.is_empty() && response.answers.iter().all(alias) {
            response.answers.iter_mut().for_each(|record| record.ttl = record.ttl.min(self.absence));
        }
    }
}

/// What was found behind a target.
struct Findings {
    known: Known,
    followed: Followed,
    /// Whether there were addresses that no target may have.
    filtered: bool,
}

impl Findings {
    /// Returns whether there is nothing of what was asked for.
    fn is_absence(&self, question: &Question) -> bool {
        let qtype = question.query.query_type();
        let wanted = |record: &Record| record.record_type() == qtype || qtype == RecordType::ANY;
        matches!(self.followed.end, End::Here(_)) && !self.followed.answers.iter().any(wanted)
    }
}

fn note(link: &Link, qtype: RecordType) {
    match qtype {
        RecordType::A => link.asked.note(Family::V4),
        RecordType::AAAA => link.asked.note(Family::V6),
        _ => {}
    }
}

/// Passes the question on and the answer back as it is.
async fn forward(response: &mut Reply, resolver: Option<&Resolver>, question: &Question, has_edns: bool) {
    let Some(resolver) = resolver else {
        response.metadata.response_code = ResponseCode::Refused;
        return;
    };
    let is_health_check = question.query.name().is_root() && question.query.query_type() == RecordType::NS;
    let resolving = resolver.resolve(question);
    let resolved = if is_health_check {
        timeout(HEALTH_CHECK, resolving).await.unwrap_or(Err(ForwardError::Late))
    } else {
        resolving.await
    };
    match resolved {
        Ok(answer) => pass_back(response, answer, question, has_edns),
        Err(error) => {
            response.metadata.response_code = match error {
                // As CoreDNS's forward does at its limit.
                ForwardError::Busy => ResponseCode::Refused,
                ForwardError::NoAnswer | ForwardError::Late => ResponseCode::ServFail,
            };
            response.ede = Some(ede(error));
        }
    }
}

fn pass_back(response: &mut Reply, answer: Message, question: &Question, has_edns: bool) {
    let Metadata { authoritative, recursion_available, authentic_data, truncation, response_code, .. } =
        answer.metadata;
    // A client without EDNS can't see the upper bits, and would take the rest for its own.
    let expressible = response_code.high() == 0 || has_edns;
    response.metadata.response_code = if expressible { response_code } else { ResponseCode::ServFail };
    response.metadata.authoritative = authoritative;
    response.metadata.recursion_available = recursion_available;
    // RFC 6840 sections 5.7 and 5.8: only to who understands it.
    response.metadata.authentic_data = authentic_data && (question.authentic_data || question.dnssec_ok);
    response.metadata.truncation = truncation;
    response.answers = answer.answers;
    response.authorities = answer.authorities;
    response.additionals = answer.additionals;
    // Everybody is asked in lower case, and the answer may have been somebody else's: the client gets its
    // own spelling back (RFC 4343 section 4.1).
    let name = question.query.name();
    let own = |record: &&mut Record| record.name == *name;
    response.answers.iter_mut().filter(own).for_each(|record| record.name = name.clone());
}

fn ede(error: ForwardError) -> Ede {
    match error {
        ForwardError::Busy => Ede::BUSY,
        ForwardError::NoAnswer | ForwardError::Late => Ede::NO_UPSTREAM,
    }
}
