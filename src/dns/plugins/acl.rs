//! # Name
//!
//! *acl* - controls which clients may send which queries.
//!
//! # Description
//!
//! The rules of all lines are checked in the order of the Corefile; the first one that matches the client's address and
//! the type decides. A query that no rule matches is allowed. The plugin may be repeated, for the same or other zones.
//!
//! The rules also apply to each name in the chain from the target of a link, as if the client had asked for that name:
//! at a denied name, the answer ends with the CNAME records so far and the extended error 15, Blocked. If *rewrite* of
//! the block changes such a query, the rules apply to the changed query, as for a client's own; for a name in a zone of
//! *lb_linker* they also apply to the unchanged one. SRV records come without the addresses that the client may not
//! query, and are left out if it may query neither A nor AAAA of the host.
//!
//! *clients* controls for which clients names outside the zones of *lb_linker* are resolved.
//!
//! Difference from CoreDNS: an invalid zone is an error; CoreDNS ignores the zone and its rules.
//!
//! # Syntax
//!
//! Syntax: `acl [ZONES...]`, and in braces lines with `ACTION [type QTYPE...] [net SOURCE...]`.
//!
//! - `ACTION`: `allow`; `block`: REFUSED with the extended error 15, Blocked; `filter`: NOERROR without records, with
//!   the extended error 17, Filtered; `drop`: no answer.
//! - `type` lists query types by their names in capitals, `net` lists addresses or networks. `*`, and a rule without
//!   the option, stand for all. Both may be repeated, in any order.
//!
//! # Examples
//!
//! No IPv6 addresses for one network, no answers for one client, and only private networks otherwise:
//!
//! ```text
//! . {
//!     acl {
//!         drop net 192.0.2.7
//!         filter type AAAA net 192.0.2.0/24
//!         allow net 10.0.0.0/8 172.16.0.0/12 192.168.0.0/16 192.0.2.0/24
//!         block
//!     }
//!     forward . /etc/resolv.conf
//! }
//! ```

mod parse;
#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::sync::Arc;

use async_trait::async_trait;
use hickory_proto::op::{Query, ResponseCode};
use hickory_proto::rr::{Name, RecordType};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use prometheus::{IntCounterVec, Opts, Registry};

use super::clients::is_client_query;
use super::nets::Nets;
use super::setup::Setup;
use crate::dns::chain::plugin::{ChainPlugin, Next, Plugin, PluginError, PluginResult};
use crate::dns::chain::request::Request;
use crate::dns::chain::server::AccessRule;
use crate::dns::corefile::CorefileError;
use crate::dns::message::ede::Ede;
use crate::dns::message::validity::ClientScope;
use crate::dns::message::zone_set::ZoneSet;
use crate::metrics::sharded::ShardedCounterVec;
use crate::metrics::{MetricGroup, registered};

const NAME: &str = "acl";
/// RFC 8914 section 4.16.
const BLOCKED: Ede = Ede { code: 15, text: "" };
/// RFC 8914 section 4.18.
const FILTERED: Ede = Ede { code: 17, text: "" };

#[derive(Debug)]
struct Acl {
    lists: Arc<[RuleList]>,
    counts: Arc<AclCounters>,
}

#[derive(Debug)]
struct RuleList {
    zones: ZoneSet,
    rules: Vec<AclRule>,
}

#[derive(Debug)]
struct AclRule {
    action: Action,
    /// The query types that the rule matches; `None` for all types.
    types: Option<Vec<RecordType>>,
    /// The clients that the rule matches; `None` for all clients.
    nets: Option<Nets>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Allow,
    Block,
    Filter,
    Drop,
}

#[derive(Debug)]
struct AclCounters {
    blocked: IntCounterVec,
    filtered: IntCounterVec,
    dropped: IntCounterVec,
    allowed: ShardedCounterVec,
}

impl MetricGroup for AclCounters {
    fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let counter = |what: &str, labels: &[&str]| {
            let name = format!("coredns_acl_{what}_requests_total");
            let options = Opts::new(name, format!("Counter of DNS requests being {what}."));
            registered(registry, IntCounterVec::new(options, labels))
        };
        Ok(Self {
            blocked: counter("blocked", &["server", "zone", "view"])?,
            filtered: counter("filtered", &["server", "zone", "view"])?,
            dropped: counter("dropped", &["server", "zone", "view"])?,
            allowed: ShardedCounterVec::register(
                registry,
                "coredns_acl_allowed_requests_total",
                "Counter of DNS requests being allowed.",
                &["server", "view"],
            )?,
        })
    }
}

pub(super) fn set_up(setup: &mut Setup<'_>) -> Result<(), CorefileError> {
    let lists = setup.lines.iter().map(|line| parse::list(setup, line)).collect::<Result<_, _>>()?;
    let counts = setup.metrics()?;
    setup.add_with_access_rule(Acl { lists, counts }, ChainPlugin::reusable);
    Ok(())
}

impl Acl {
    fn decide(&self, name: &Name, qtype: RecordType, client: IpAddr) -> Option<(Action, &Name)> {
        decide(&self.lists, name, qtype, client)
    }

    /// Returns the clients for which the query is allowed or, if `allowed` is false, denied.
    fn clients(&self, query: &Query, allowed: bool) -> ClientScope {
        let (lists, name, qtype) = (Arc::clone(&self.lists), query.name().clone(), query.query_type());
        ClientScope(Arc::new(move |client| is_allowed(decide(&lists, &name, qtype, client)) == allowed))
    }
}

/// Returns the action for a query, and the zone of the deciding rule; `None` if no rule matches.
fn decide<'a>(
    lists: &'a [RuleList],
    name: &Name,
    qtype: RecordType,
    client: IpAddr,
) -> Option<(Action, &'a Name)> {
    lists.iter().find_map(|list| {
        let zone = list.zones.closest(name)?;
        let rule = list.rules.iter().find(|rule| rule.matches(qtype, client))?;
        Some((rule.action, zone))
    })
}

/// Returns whether the query is denied to every client.
fn denies_all(lists: &[RuleList], name: &Name, qtype: RecordType) -> bool {
    let everywhere = [IpNet::V4(Ipv4Net::default()), IpNet::V6(Ipv6Net::default())];
    let lists = lists.iter().filter(|list| list.zones.closest(name).is_some());
    let rules = lists.flat_map(|list| &list.rules).filter(|rule| rule.has_type(qtype));
    let mut denied: Vec<IpNet> = Vec::new();
    for rule in rules {
        let nets = rule.nets.as_ref().map_or(&everywhere[..], Nets::all);
        if rule.action != Action::Allow {
            denied.extend(nets);
            denied = IpNet::aggregate(&denied);
        } else if nets.iter().any(|net| !denied.iter().any(|denied| denied.contains(net))) {
            return false;
        }
    }
    everywhere.iter().all(|net| denied.contains(net))
}

fn is_allowed(decision: Option<(Action, &Name)>) -> bool {
    matches!(decision, None | Some((Action::Allow, _)))
}

impl AclRule {
    fn has_type(&self, qtype: RecordType) -> bool {
        self.types.as_ref().is_none_or(|types| types.contains(&qtype))
    }

    fn matches(&self, qtype: RecordType, client: IpAddr) -> bool {
        self.has_type(qtype) && self.nets.as_ref().is_none_or(|nets| nets.contains(client))
    }
}

#[async_trait]
impl Plugin for Acl {
    fn name(&self) -> &'static str {
        NAME
    }

    fn sees_transfers(&self) -> bool {
        true
    }

    async fn serve(&self, request: &mut Request, next: Next<'_>) -> PluginResult {
        let (name, qtype) = (request.query.name(), request.query.query_type());
        let (server, view) = (&*request.server.label, request.view_name());
        let count = |counter: &IntCounterVec, zone: &Name| {
            counter.with_label_values(&[server, &zone.to_ascii(), view]).inc();
        };
        // Clients share the look-up of a target: *lb_linker* checks the rules for each client, at each name of the
        // chain.
        let is_of_client = is_client_query(request);
        match self.decide(name, qtype, request.client.ip()).filter(|_| is_of_client) {
            None | Some((Action::Allow, _)) => {
                let allowed = self.counts.allowed.with(&[server, view]);
                allowed.add(0, 1);
                let clients = is_of_client.then(|| self.clients(&request.query, true));
                let mut reply = next.serve(request).await?;
                if let Some(validity) = &mut reply.validity {
                    validity.clients.extend(clients);
                    validity.counters.push(allowed);
                }
                Ok(reply)
            }
            Some((Action::Drop, zone)) => {
                count(&self.counts.dropped, zone);
                Err(PluginError::Drop)
            }
            Some((Action::Block, zone)) => {
                count(&self.counts.blocked, zone);
                let mut reply = request.reply(NAME);
                reply.metadata.response_code = ResponseCode::Refused;
                reply.ede = Some(BLOCKED);
                Ok(reply)
            }
            Some((Action::Filter, zone)) => {
                count(&self.counts.filtered, zone);
                let mut reply = request.reply(NAME);
                reply.ede = Some(FILTERED);
                Ok(reply)
            }
        }
    }
}

impl AccessRule for Acl {
    fn allows_recursion(&self, request: &Request, query: &Query) -> Option<bool> {
        self.denies(request, query).then_some(false)
    }

    fn denies(&self, request: &Request, query: &Query) -> bool {
        let (name, qtype) = (query.name(), query.query_type());
        match request.is_internal() {
            true if request.is_check() => denies_all(&self.lists, name, qtype),
            // Another internal look-up has no client that a rule could match.
            true => false,
            false => !is_allowed(self.decide(name, qtype, request.client.ip())),
        }
    }

    fn clients(&self, request: &Request, query: &Query) -> Option<ClientScope> {
        Some(self.clients(query, !self.denies(request, query)))
    }
}
