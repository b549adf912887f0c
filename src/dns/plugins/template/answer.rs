//! Answers queries with templates.

use std::sync::Arc;

use async_trait::async_trait;
use hickory_proto::op::{Query, ResponseCode};
use hickory_proto::rr::rdata::opt::EdnsOption;
use hickory_proto::rr::{DNSClass, Name, RData, Record, RecordType};
use prometheus::{IntCounterVec, Opts, Registry};
use regex::Regex;

use super::NAME;
use super::text::{Data, Message, QuestionValue, Template};
use crate::dns::chain::plugin::{Next, Plugin, PluginError, PluginResult};
use crate::dns::chain::request::Request;
use crate::dns::chain::server::Server;
use crate::dns::message::presentation::{class_name, name_text, type_name};
use crate::dns::message::reply::Reply;
use crate::dns::message::zone_set::ZoneSet;
use crate::dns::zone::record;
use crate::metrics::{MetricGroup, registered};

#[derive(Debug)]
pub(super) struct Templates {
    answers: Vec<AnswerTemplate>,
    metrics: Arc<TemplateCounters>,
}

#[derive(Debug)]
pub(super) struct AnswerTemplate {
    pub(super) zones: ZoneSet,
    pub(super) class: DNSClass,
    pub(super) rtype: RecordType,
    /// The regular expressions for names; there is at least one.
    pub(super) regexes: Vec<Regex>,
    pub(super) answers: Vec<Template>,
    pub(super) authorities: Vec<Template>,
    pub(super) additionals: Vec<Template>,
    pub(super) rcode: ResponseCode,
    pub(super) ede: Option<EdnsOption>,
    /// The zones in which names without a match fall through.
    pub(super) fallthrough_zones: Option<ZoneSet>,
}

#[derive(Debug)]
pub(super) struct TemplateCounters {
    matches: IntCounterVec,
    failures: IntCounterVec,
    record_failures: IntCounterVec,
}

impl MetricGroup for TemplateCounters {
    fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let labels = ["server", "zone", "view", "class", "type", "section", "template"];
        let counter = |name, help, labels: &[&str]| {
            registered(registry, IntCounterVec::new(Opts::new(name, help), labels))
        };
        Ok(Self {
            matches: counter(
                "coredns_template_matches_total",
                "Counter of template regex matches.",
                &labels[..5],
            )?,
            failures: counter(
                "coredns_template_template_failures_total",
                "Counter of go template failures.",
                &labels,
            )?,
            record_failures: counter(
                "coredns_template_rr_failures_total",
                "Counter of mis-templated RRs.",
                &labels,
            )?,
        })
    }
}

#[async_trait]
impl Plugin for Templates {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn serve(&self, request: &mut Request, next: Next<'_>) -> PluginResult {
        let name = request.query.name().to_lowercase();
        let text = name_text(&name);
        for answer in &self.answers {
            let Some(zone) = answer.zones.closest(&name).filter(|_| answer.is_for(request)) else { continue };
            if let Some(data) = answer.data(request, zone, &text) {
                return self.answer(answer, request, &data).await;
            }
            if !answer.fallthrough_zones.as_ref().is_some_and(|zones| zones.contains(&name)) {
                return Err(PluginError::servfail(""));
            }
        }
        next.serve(request).await
    }
}

impl Templates {
    pub(super) fn new(answers: Vec<AnswerTemplate>, metrics: Arc<TemplateCounters>) -> Self {
        Self { answers, metrics }
    }

    async fn answer(&self, answer: &AnswerTemplate, request: &Request, data: &Data) -> PluginResult {
        let labels = [&*request.server.label, &data.zone, request.view_name(), &data.class, &data.rtype];
        self.metrics.matches.with_label_values(&labels).inc();
        if answer.rcode == ResponseCode::ServFail {
            return Err(PluginError::servfail(""));
        }
        if answer.rcode.high() > 0 && request.edns.is_none() {
            // RFC 6891 section 6.1.3: without OPT, the client would see another code.
            return Err(PluginError::servfail(
                "the response code needs EDNS, and the query has no OPT record",
            ));
        }
        let mut reply = request.reply(NAME);
        reply.metadata.authoritative = true;
        reply.metadata.response_code = answer.rcode;
        for template in &answer.answers {
            let record = self.record(request, "answer", template, data)?;
            let target = target(&record, request.query.query_type());
            reply.records.answers.push(record);
            if let Some(target) = target {
                add_target_records(&mut reply, request, target).await;
            }
        }
        for template in &answer.additionals {
            reply.records.additionals.push(self.record(request, "additional", template, data)?);
        }
        for template in &answer.authorities {
            reply.records.authorities.push(self.record(request, "authority", template, data)?);
        }
        reply.options.extend(answer.ede.clone());
        // Labels change with the cluster, too.
        reply.is_cacheable &= !answer.has(|template| template.depends_on_client);
        Ok(reply)
    }

    fn record(
        &self,
        request: &Request,
        section: &str,
        template: &Template,
        data: &Data,
    ) -> Result<Record, PluginError> {
        let count = |counter: &IntCounterVec| {
            let (server, view) = (&*request.server.label, request.view_name());
            let (zone, class, rtype) = (&*data.zone, &*data.class, &*data.rtype);
            let labels = [server, zone, view, class, rtype, section, &template.to_string()];
            counter.with_label_values(&labels).inc();
        };
        let text = template.run(data).map_err(|error| {
            count(&self.metrics.failures);
            PluginError::servfail(format!("template: executing {section:?} {error}"))
        })?;
        record::parse(&text).map_err(|error| {
            count(&self.metrics.record_failures);
            PluginError::servfail(format!("template: {text:?} in {section:?} is no record: {error}"))
        })
    }
}

impl AnswerTemplate {
    /// Returns whether a template of the answer has a property.
    pub(super) fn has(&self, property: impl Fn(&Template) -> bool) -> bool {
        self.answers.iter().chain(&self.additionals).chain(&self.authorities).any(property)
    }

    /// Returns whether the template is for the query's class and type.
    fn is_for(&self, request: &Request) -> bool {
        let (class, rtype) = (request.query.query_class(), request.query.query_type());
        (self.class == class || [self.class, class].contains(&DNSClass::ANY))
            && (self.rtype == rtype || [self.rtype, rtype].contains(&RecordType::ANY))
    }

    /// Returns the data for templates, if an expression matches.
    fn data(&self, request: &Request, zone: &Name, name: &str) -> Option<Data> {
        let (regex, found) = self.regexes.iter().find_map(|regex| Some((regex, regex.captures(name)?)))?;
        let matches: Vec<String> =
            found.iter().map(|group| group.map_or("", |group| group.as_str()).to_owned()).collect();
        let numbered = matches.iter().enumerate().map(|(number, text)| (number.to_string(), text.clone()));
        let names = regex.capture_names().zip(&matches);
        let named = names.filter_map(|(name, text)| Some((name?.to_owned(), text.clone())));
        let group = numbered.chain(named).collect();
        let (qclass, qtype) = (request.query.query_class(), request.query.query_type());
        let class = if qclass == DNSClass::ANY { self.class } else { qclass };
        let rtype = if qtype == RecordType::ANY { self.rtype } else { qtype };
        let metadata = &request.metadata;
        let question = QuestionValue {
            name: name_text(request.query.name()),
            qtype: qtype.into(),
            qclass: qclass.into(),
        };
        Some(Data {
            zone: name_text(zone),
            name: name.to_owned(),
            regex: regex.as_str().to_owned(),
            class: class_name(class).unwrap_or_default().to_owned(),
            rtype: type_name(rtype).unwrap_or_default().to_owned(),
            matches,
            group,
            message: Message {
                id: metadata.id,
                opcode: metadata.op_code.into(),
                authoritative: metadata.authoritative,
                truncated: metadata.truncation,
                recursion_desired: metadata.recursion_desired,
                recursion_available: metadata.recursion_available,
                authentic_data: metadata.authentic_data,
                checking_disabled: metadata.checking_disabled,
                questions: [question],
            },
            remote: request.client.ip().to_string(),
            labels: request.labels.clone(),
        })
    }
}

/// Returns the target of a CNAME, if the query is for addresses.
fn target(record: &Record, qtype: RecordType) -> Option<Name> {
    match &record.data {
        RData::CNAME(target) if matches!(qtype, RecordType::A | RecordType::AAAA) => Some(target.0.clone()),
        _ => None,
    }
}

/// Adds the records of a CNAME's target.
async fn add_target_records(reply: &mut Reply, request: &Request, target: Name) {
    let mut query = Query::query(target, request.query.query_type());
    query.set_query_class(DNSClass::IN);
    let Some(mut found) = Server::look_up_alias(request, query).await else {
        reply.is_cacheable = false;
        return;
    };
    reply.is_cacheable &= found.may_be_part_of_cached();
    reply.metadata.truncation |= found.metadata.truncation;
    reply.records.answers.append(&mut found.records.answers);
}
