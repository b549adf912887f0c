//! # Name
//!
//! *clients* - controls for which clients names outside the zones of links are resolved.
//!
//! # Description
//!
//! A server that resolves all names for every client on the Internet can be abused for reflection attacks (RFC 5358).
//! The block answers the clients in the listed networks. All others get REFUSED with the extended error 18, Prohibited,
//! and RA is clear in all answers to them. At most once a minute a log line reports refused clients, with one address
//! as an example.
//!
//! The plugin applies to names outside the zones of *lb_linker*. Every client gets A, AAAA, HTTPS and SVCB answers for
//! links, even if their targets are looked up through this block; for other types a client that isn't listed gets the
//! CNAME alone. If *hosts* or *template* of the same block answers for a name in a zone of *lb_linker*, every client
//! gets that answer, too. The target of a CNAME of *template* counts as a name outside if it is in no such zone, and so
//! does a name in such a zone that doesn't exist and falls through to the plugins after *lb_linker*.
//!
//! [Names outside the zones](concepts.md#names-outside-the-zones) says why a Service may hide the client's address.
//! CoreDNS has no such plugin. It stands after *acl*, whose rules are checked first; *acl* also applies to look-ups for
//! links.
//!
//! # Syntax
//!
//! Syntax: `clients NET...|any`: addresses or networks, or all clients. The built-in Corefile has those of
//! `--client-nets`.

#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::sync::Arc;

use async_trait::async_trait;
use hickory_proto::op::{Query, ResponseCode};
use prometheus::{IntCounterVec, Opts, Registry};
use tracing::warn;

use super::nets::{Nets, net};
use super::refusal_log::RefusalLog;
use super::setup::Setup;
use crate::dns::chain::plugin::{ChainPlugin, Next, Plugin, PluginResult};
use crate::dns::chain::request::{Purpose, Request};
use crate::dns::chain::server::AccessRule;
use crate::dns::corefile::CorefileError;
use crate::dns::message::ede::Ede;
use crate::dns::message::reply::Reply;
use crate::dns::message::validity::ClientScope;
use crate::metrics::{MetricGroup, registered};

const NAME: &str = "clients";
const ANY: &str = "any";

#[derive(Debug)]
struct ClientNets {
    /// The allowed networks; `None` for all clients.
    nets: Option<Arc<Nets>>,
    prohibited: Arc<ProhibitedQueries>,
}

/// Counts and logs the refused queries of all blocks.
#[derive(Debug)]
pub(super) struct ProhibitedQueries {
    requests: IntCounterVec,
    log: RefusalLog,
}

impl MetricGroup for ProhibitedQueries {
    fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let options = Opts::new(
            "lb_linker_dns_prohibited_requests_total",
            "Refused queries for names outside the zones: the client isn't in the networks of the plugin clients.",
        );
        let requests = registered(registry, IntCounterVec::new(options, &["server"]))?;
        Ok(Self { requests, log: RefusalLog::default() })
    }
}

pub(super) fn set_up(setup: &mut Setup<'_>) -> Result<(), CorefileError> {
    let line = setup.only_line()?;
    line.no_block()?;
    let words = line.arguments();
    if words.is_empty() {
        return Err(line.missing_argument("addresses, networks such as 10.0.0.0/8, or any"));
    }
    let nets = match words.iter().find(|word| word.text == ANY) {
        Some(any) if words.len() > 1 => return Err(any.error("any can't be combined with networks")),
        Some(_) => None,
        None => {
            let nets = words.iter().map(net).collect::<Result<_, _>>()?;
            Some(Arc::new(Nets::new(&nets)))
        }
    };
    let prohibited = setup.metrics()?;
    setup.add_with_access_rule(ClientNets { nets, prohibited }, ChainPlugin::reusable);
    Ok(())
}

impl ClientNets {
    fn allows(&self, client: IpAddr) -> bool {
        self.nets.as_ref().is_none_or(|nets| nets.contains(client))
    }

    /// Returns the clients that are in the allowed networks or, if `allowed` is false, outside of them; `None` for all
    /// clients.
    fn client_scope(&self, allowed: bool) -> Option<ClientScope> {
        let nets = Arc::clone(self.nets.as_ref()?);
        Some(ClientScope(Arc::new(move |client| nets.contains(client) == allowed)))
    }
}

/// Returns whether a request is a client's query. Look-ups for links are shared by clients, and internal look-ups, such
/// as the probe of *loop*, have no client.
pub(super) fn is_client_query(request: &Request) -> bool {
    matches!(request.purpose, Purpose::Client) && !request.is_internal()
}

pub(super) fn refusal(request: &Request, plugin: &'static str) -> Reply {
    let mut reply = request.reply(plugin);
    reply.metadata.response_code = ResponseCode::Refused;
    reply.ede = Some(Ede::PROHIBITED);
    reply
}

impl ProhibitedQueries {
    /// Counts a refused query, and logs it if a line is due.
    pub(super) fn record(&self, request: &Request) {
        self.requests.with_label_values(&[&request.server.label]).inc();
        if let Some(number) = self.log.count() {
            warn!(
                "refused a query of client {} for a name outside the zones: its address isn't in --client-nets (or \
                 `clients` in the Corefile); such queries since the last line: {number}",
                request.client.ip()
            );
        }
    }
}

#[async_trait]
impl Plugin for ClientNets {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn serve(&self, request: &mut Request, next: Next<'_>) -> PluginResult {
        if !is_client_query(request) || next.has_links_at(request.query.name()) {
            return next.serve(request).await;
        }
        if !self.allows(request.client.ip()) {
            self.prohibited.record(request);
            return Ok(refusal(request, NAME));
        }
        let mut reply = next.serve(request).await?;
        if let Some(validity) = &mut reply.validity {
            validity.clients.extend(self.client_scope(true));
        }
        Ok(reply)
    }
}

impl AccessRule for ClientNets {
    fn allows_recursion(&self, request: &Request, _query: &Query) -> Option<bool> {
        if self.allows(request.client.ip()) { None } else { Some(false) }
    }

    fn clients(&self, request: &Request, _query: &Query) -> Option<ClientScope> {
        self.client_scope(self.allows(request.client.ip()))
    }

    fn decides_on_targets(&self) -> bool {
        false
    }
}
