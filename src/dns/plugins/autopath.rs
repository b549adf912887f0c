//! # Name
//!
//! *autopath* - completes names by the client's search domains, so that a client with `ndots:5` needs one query instead of
//! one for each domain.
//!
//! # Description
//!
//! A client asks first for the name with its first search domain, `www.example.org.shop.svc.cluster.local`. If the name
//! is in this domain, it is looked up by the next plugins with each search domain in turn, and at last without one. The
//! first answer other than NXDOMAIN goes to the client, after a CNAME record from the name in the question to the name
//! that was found. If all are NXDOMAIN, the client gets the first answer. A look-up that fails ends the search.
//!
//! The search domains are those of a file, at most 32, or with `@kubernetes` those of the Pod with the client's address:
//! `<namespace>.svc.<zone>`, `svc.<zone>`, `<zone>`, and those of `/etc/resolv.conf` of lb-linker itself. That needs
//! *kubernetes* with `pods verified` in the same block, and Pods whose packets arrive with their own addresses; to all
//! others it does nothing. An answer that differs between Pods is reused for one client, until the Pod with its address
//! changes.
//!
//! Differences from CoreDNS:
//!
//! - Only names that clients ask for are completed. CoreDNS also completes the targets of CNAMEs that are looked up for an
//!   answer.
//! - The search domain itself is answered like other names. CoreDNS answers SERVFAIL.
//! - An alias that the name has itself is answered once. CoreDNS adds it a second time.
//! - A name that is too long with a search domain doesn't exist. CoreDNS answers SERVFAIL.
//! - AD isn't set in an answer with an added CNAME record.
//! - A search domain that isn't a name is an error; in `/etc/resolv.conf` it causes a warning, and the file is left out.
//!
//! # Syntax
//!
//! Syntax: `autopath [ZONES...] RESOLV-CONF`. **RESOLV-CONF** is a file with a line `search DOMAINS...`, or `@kubernetes`.
//! Only names in **ZONES** are completed.

#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use hickory_proto::op::ResponseCode;
use hickory_proto::rr::rdata::CNAME;
use hickory_proto::rr::{DNSClass, Name, RData, Record};
use prometheus::Registry;

use super::kubernetes::verifies_pods;
use super::setup::Setup;
use crate::dns::chain::plugin::{Next, Plugin, PluginError, PluginResult};
use crate::dns::chain::request::{Purpose, Request};
use crate::dns::corefile::arguments::suggestion;
use crate::dns::corefile::resolv_conf::search_domains;
use crate::dns::corefile::{CorefileError, Token};
use crate::dns::message::presentation::parse_name;
use crate::dns::message::reply::Reply;
use crate::dns::message::validity::{ClientScope, Section, Validity};
use crate::dns::message::zone_set::{ZoneSet, absolute};
use crate::metrics::MetricGroup;
use crate::metrics::sharded::ShardedCounterVec;
use crate::model::excerpt::value;
use crate::store::NameDependency;

const NAME: &str = "autopath";
const KUBERNETES: &str = "kubernetes";
const OWN_FILE: &str = "/etc/resolv.conf";
/// Maximum number of search domains of a file: that of Kubernetes.
const MAX_DOMAINS: usize = 32;

#[derive(Debug)]
struct Autopath {
    zones: ZoneSet,
    /// Whether the domains of the client's Pod come first.
    by_pod: bool,
    domains: Vec<Name>,
    metrics: Arc<AutopathMetrics>,
}

#[derive(Debug)]
struct AutopathMetrics(ShardedCounterVec);

impl MetricGroup for AutopathMetrics {
    fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let help = "Counter of requests that did autopath.";
        ShardedCounterVec::register(registry, "coredns_autopath_success_total", help, &["server"]).map(Self)
    }
}

pub(super) fn set_up(setup: &mut Setup<'_>) -> Result<(), CorefileError> {
    let line = setup.only_line()?.clone();
    line.no_block()?;
    let Some((source, zones)) = line.arguments().split_last() else {
        return Err(line.missing_argument("a file such as /etc/resolv.conf, or @kubernetes"));
    };
    let zones = setup.zones_or_own(zones)?;
    let metrics = setup.metrics()?;
    let (by_pod, domains) = match source.text.strip_prefix('@') {
        None => (false, file(setup, source, &source.text)?),
        Some(plugin) => (true, of_plugin(setup, source, plugin)?),
    };
    setup.add_reusable(Autopath { zones, by_pod, domains, metrics });
    Ok(())
}

/// Returns the search domains after those of the Pod. Warns if clients get none.
fn of_plugin(setup: &mut Setup<'_>, word: &Token, plugin: &str) -> Result<Vec<Name>, CorefileError> {
    let line = setup.block.iter().find(|line| line.name() == plugin);
    let why = match line {
        Some(line) if plugin == KUBERNETES && verifies_pods(line) => {
            if !Path::new(OWN_FILE).exists() {
                return Ok(Vec::new());
            }
            return file(setup, word, OWN_FILE).or_else(|error| {
                setup.builder.warnings.push(error);
                Ok(Vec::new())
            });
        }
        Some(_) if plugin == KUBERNETES => "kubernetes has no line pods verified".to_owned(),
        // It answers all names, so that nothing is completed in CoreDNS either.
        Some(_) if plugin == "erratic" => "erratic answers all names".to_owned(),
        Some(_) => return Err(word.error(format!("{plugin} knows no search domains: there is @kubernetes"))),
        None => {
            let meant = suggestion(plugin, &[KUBERNETES]).filter(|_| plugin != KUBERNETES);
            let meant = meant.map_or_else(String::new, |meant| format!("; {meant}"));
            format!("the block has no {}{meant}", value(plugin))
        }
    };
    setup.builder.warnings.push(word.error(format!("autopath has no effect here: {why}")));
    Ok(Vec::new())
}

/// Returns the search domains of a file.
fn file(setup: &mut Setup<'_>, word: &Token, path: &str) -> Result<Vec<Name>, CorefileError> {
    let bytes = setup.read_named(word, Path::new(path))?;
    let text = String::from_utf8_lossy(&bytes);
    let (line, domains) = search_domains(&text);
    let wrong = |what: String| word.error(format!("{path}:{line}: {what}"));
    if domains.len() > MAX_DOMAINS {
        return Err(wrong(format!("{} search domains, and {MAX_DOMAINS} are the most", domains.len())));
    }
    if domains.is_empty() && path == word.text {
        let warning = word.error(format!("autopath has no effect here: {path} has no search domains"));
        setup.builder.warnings.push(warning);
    }
    let parsed = domains.into_iter().map(|domain| {
        let name = parse_name(domain).map(|name| absolute(&name));
        name.ok_or_else(|| wrong(format!("{} isn't the name of a search domain", value(domain))))
    });
    parsed.collect()
}

#[async_trait]
impl Plugin for Autopath {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn serve(&self, request: &mut Request, next: Next<'_>) -> PluginResult {
        // The answers to look-ups for targets are shared between clients.
        let is_for_client =
            request.has_client_name && matches!(request.purpose, Purpose::Client) && !request.is_internal();
        let name = request.query.name();
        if !is_for_client || request.query.query_class() != DNSClass::IN || !self.zones.contains(name) {
            return next.serve(request).await;
        }
        let (mut domains, mut of_client) = (Vec::new(), None);
        if self.by_pod {
            let found = next.search_path(KUBERNETES, request).unwrap_or_default();
            (domains, of_client) = (found.domains, found.of_client);
        }
        if !self.by_pod || !domains.is_empty() {
            domains.extend_from_slice(&self.domains);
        }
        let client = request.client.ip().to_canonical();
        let mut outcome = match candidates(name, &domains) {
            Some(names) => self.search(&names, request, next).await,
            None => next.serve(request).await,
        };
        if let (Ok(reply), Some(of_client)) = (&mut outcome, of_client) {
            restrict(reply, client, of_client);
        }
        outcome
    }
}

impl Autopath {
    /// Looks the names up in turn. The first one is that of the question.
    async fn search(&self, names: &[Name], request: &mut Request, next: Next<'_>) -> PluginResult {
        let question = request.query.clone();
        let mut tried: Vec<PluginResult> = Vec::new();
        for name in names {
            if !tried.is_empty() {
                request.query.set_name(name.clone());
            }
            // Each name is a look-up of its own at upstreams.
            let limiter = request.query_limiter.take();
            let mut outcome = next.serve(request).await;
            request.query_limiter = request.query_limiter.take().or(limiter);
            if goes_on(&outcome) {
                tried.push(outcome);
                continue;
            }
            request.query = question;
            if let Ok(reply) = &mut outcome {
                let counter = self.metrics.0.with(&[&request.server.label]);
                counter.add(0, 1);
                rest_on(reply, &tried);
                reply.validity.iter_mut().for_each(|validity| validity.counters.push(Arc::clone(&counter)));
                if !tried.is_empty() {
                    add_alias(reply, request.query.name(), name);
                }
            }
            return outcome;
        }
        request.query = question;
        // There is at least one name.
        let mut first = tried.swap_remove(0)?;
        rest_on(&mut first, &tried);
        Ok(first)
    }
}

/// Returns whether the next name is looked up: this one doesn't exist, or, as in CoreDNS, has failed without a reason.
fn goes_on(outcome: &PluginResult) -> bool {
    match outcome {
        Ok(reply) => reply.metadata.response_code == ResponseCode::NXDomain,
        Err(PluginError::Error { why, .. }) => why.is_empty(),
        Err(PluginError::Drop) => false,
    }
}

/// Returns the name of a question, the name with each other search domain, and without one, each once; `None` if it
/// isn't in the first domain.
fn candidates(name: &Name, domains: &[Name]) -> Option<Vec<Name>> {
    let first = domains.first()?;
    let own = name.iter().len().checked_sub(first.iter().len()).filter(|own| *own > 0)?;
    if !first.zone_of(name) {
        return None;
    }
    let mut names = vec![name.clone()];
    let root = Name::root();
    for domain in domains[1..].iter().chain([&root]) {
        // An error means that the name is too long.
        let Ok(next) = Name::from_labels(name.iter().take(own).chain(domain.iter())) else { continue };
        if !names.contains(&next) {
            names.push(next);
        }
    }
    Some(names)
}

/// Makes the reuse of an answer depend on other answers, too.
fn rest_on(reply: &mut Reply, others: &[PluginResult]) {
    for other in others {
        let other = other.as_ref().ok().and_then(|other| other.validity.as_ref());
        reply.validity = reply.validity.take().zip(other).map(|(mut validity, other)| {
            validity.add_dependencies(other);
            validity
        });
    }
}

/// Adds a CNAME record from the name of the question to the name that was found, with the TTL of the first record.
fn add_alias(reply: &mut Reply, from: &Name, to: &Name) {
    let Some(ttl) = reply.records.answers.first().map(|record| record.ttl) else { return };
    let alias = Record::from_rdata(from.clone(), ttl, RData::CNAME(CNAME(to.clone())));
    reply.records.answers.insert(0, alias);
    reply.metadata.authentic_data = false;
    if let Some(validity) = &mut reply.validity {
        shift(validity);
    }
}

/// Limits the reuse of an answer to a client, and to what its search domains rest on.
fn restrict(reply: &mut Reply, client: IpAddr, of_client: NameDependency) {
    if let Some(validity) = &mut reply.validity {
        validity.clients.push(ClientScope(Arc::new(move |other| other.to_canonical() == client)));
        validity.add_names(Some(of_client));
    }
}

/// Adapts the places of records to a record that is added before all answers, and has the TTL of the first one.
fn shift(validity: &mut Validity) {
    for countdown in validity.countdown.iter_mut().filter(|countdown| countdown.section == Section::Answer) {
        let records = &mut countdown.records;
        *records = (if records.start > 0 { records.start + 1 } else { 0 })..records.end + 1;
    }
    if let Some(serial) = validity.serial.as_mut().filter(|serial| serial.section == Section::Answer) {
        serial.record += 1;
    }
}
