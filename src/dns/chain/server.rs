//! The server blocks behind one listener: the one with the longest matching zone answers.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use hickory_proto::op::{Edns, Message, Metadata, Query, ResponseCode};
use hickory_proto::rr::{DNSClass, Name, RecordType};

use super::metrics::{ServerMetrics, ZoneMetrics};
use super::plugin::{Next, Plugin, PluginError, PluginResult};
use super::request::{INTERNAL_CLIENT, Purpose, Request};
use crate::dns::message::header::MAX_UDP;
use crate::dns::message::query::wire_name;
use crate::dns::message::reply::Reply;
use crate::dns::message::validity::ClientScope;
use crate::dns::message::zone_set::ZoneSet;
use crate::dns::net::Protocol;

/// Look-ups that one question may cost: a longer chain of targets is a mistake or an attack.
pub(crate) const MAX_LOOKUPS: usize = 8;

/// What answers on one address and transport.
#[derive(Debug)]
pub struct Server {
    /// The address as CoreDNS writes it in its metrics: `dns://:53`.
    pub label: String,
    /// The same for all servers of the same blocks: what one of them knows of others' names, all may give.
    pub view: String,
    /// By zone, in wire form and lower case.
    blocks: HashMap<Box<[u8]>, ServedZone>,
    /// How long the longest of the zones is.
    longest: usize,
    /// Whether classes other than IN are let through: a plugin can answer them.
    other_classes: bool,
    /// Whether a panic ends the process.
    debug: bool,
    /// Which server it is: another one has another number.
    number: u64,
    /// What counts the questions that no block is for.
    dropped: Arc<ZoneMetrics>,
}

/// What a block says of a look-up for a client.
#[derive(Debug)]
pub struct Access {
    /// The clients for which it says the same; nothing is for all.
    pub clients: Vec<ClientScope>,
    /// Whether the client's question for that name would be denied.
    pub is_denied: bool,
    /// Whether upstreams are asked for the name for the client; `None` if that depends.
    pub recurses: Option<bool>,
}

/// A zone of a server, and the block that answers for it.
#[derive(Debug)]
struct ServedZone {
    zone: Name,
    block: Arc<ServerBlock>,
    zone_metrics: Arc<ZoneMetrics>,
}

impl ServedZone {
    /// Returns the plugins that decide whether a name is looked up for a client, each with the question as the plugins
    /// before it leave it; for [`LookUp::Stored`] once more with the question as it is, if that is another one.
    fn deciding<'a>(
        &'a self,
        query: &'a Query,
        look_up: LookUp,
    ) -> impl Iterator<Item = (&'a dyn Plugin, Cow<'a, Query>)> {
        let mut seen = Cow::Borrowed(query);
        self.block.plugins.iter().flat_map(move |plugin| {
            if let Some(rewritten) = plugin.rewritten(&seen) {
                seen = Cow::Owned(rewritten);
            }
            let decides = look_up == LookUp::Question || plugin.decides_on_targets();
            let is_other = look_up == LookUp::Stored && *seen != *query;
            let as_seen = decides.then(|| (&**plugin, seen.clone()));
            let as_it_is = (decides && is_other).then_some((&**plugin, Cow::Borrowed(query)));
            as_seen.into_iter().chain(as_it_is)
        })
    }
}

/// What a name is looked up for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookUp {
    /// A question of the client.
    Question,
    /// What is behind the target of a link.
    Target,
    /// What the store has under the name, which `rewrite` doesn't change: a client gets it where both questions are
    /// allowed, that for the name and that which `rewrite` makes of it.
    Stored,
}

/// A server block: plugins in their order. It may be behind several listeners.
#[derive(Debug)]
pub struct ServerBlock {
    /// The zones that it is for.
    pub zones: Vec<Name>,
    /// The plugins, in their order.
    pub plugins: Vec<Arc<dyn Plugin>>,
    /// The zones with links' names that one of them answers for.
    pub link_zones: ZoneSet,
    /// Whether a panic ends the process: it has `debug`.
    pub debug: bool,
}

// === impl Server ===

impl Server {
    /// Returns a server of blocks, each with the zones that it has here.
    #[must_use]
    pub fn new(label: String, blocks: &[(Name, Arc<ServerBlock>)], report: Arc<ServerMetrics>) -> Self {
        // As in CoreDNS: `chaos` answers CH, and `forward` passes everything on.
        let other_classes = blocks
            .iter()
            .flat_map(|(_, block)| &block.plugins)
            .any(|plugin| matches!(plugin.name(), "chaos" | "forward"));
        let debug = blocks.iter().any(|(_, block)| block.debug);
        let serve = |(zone, block): &(Name, Arc<ServerBlock>)| {
            let zone_metrics = report.zone_metrics(&label, &zone.to_ascii());
            (wire_name(zone), ServedZone { zone: zone.clone(), block: Arc::clone(block), zone_metrics })
        };
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        let dropped = report.zone_metrics(&label, "dropped");
        let blocks: HashMap<Box<[u8]>, ServedZone> = blocks.iter().map(serve).collect();
        let longest = blocks.keys().map(|zone| zone.len()).max().unwrap_or_default();
        Self { view: label.clone(), label, blocks, longest, other_classes, debug, number, dropped }
    }

    /// Has it share what it knows with others that have this view.
    #[must_use]
    pub fn with_view(self, view: String) -> Self {
        Self { view, ..self }
    }

    /// Returns the blocks, each for every zone of it.
    pub fn blocks(&self) -> impl Iterator<Item = (&Name, &Arc<ServerBlock>)> {
        self.blocks.values().map(|served| (&served.zone, &served.block))
    }

    /// Answers a request, whose server this is; nothing where silence is right.
    pub async fn serve(request: &mut Request) -> Option<Reply> {
        let server = Arc::clone(&request.server);
        if request.edns.as_ref().is_some_and(|edns| edns.version() > 0) {
            // RFC 6891 section 6.1.3.
            let mut reply = request.reply("");
            reply.metadata.response_code = ResponseCode::BADVERS;
            return Some(reply);
        }
        // Zone transfers, and records that belong to a message, are refused.
        if let Some(rcode) = never_answered(request.query.query_type()) {
            return Some(server.refuse(request, rcode));
        }
        if request.query.query_class() != DNSClass::IN && !server.other_classes {
            return Some(server.refuse(request, ResponseCode::Refused));
        }
        let Some(served) = server.find(request.query.name(), request.query.query_type()) else {
            return Some(server.refuse(request, ResponseCode::Refused));
        };
        if served.block.plugins.is_empty() {
            return Some(server.refuse(request, ResponseCode::Refused));
        }
        request.zone.clone_from(&served.zone);
        request.zone_metrics = Arc::clone(&served.zone_metrics);
        let outcome = Next::first(&served.block).serve(request).await;
        answer(request, outcome)
    }

    /// Looks a name up for a request: the answer of the block of this listener that the name is for.
    pub async fn look_up(asked: &Request, query: Query, purpose: Purpose) -> Option<Reply> {
        if asked.depth >= MAX_LOOKUPS {
            return None;
        }
        let mut inner = asked.clone();
        inner.query = query;
        inner.purpose = purpose;
        inner.depth += 1;
        // Boxed, for it may lead to itself.
        Box::pin(Self::serve(&mut inner)).await
    }

    /// Looks up what is behind a CNAME that a plugin adds to an answer, for the same purpose. It isn't cacheable where
    /// another client may get something else, or nothing: `cache` gives an answer made of it to all clients.
    pub async fn look_up_alias(asked: &Request, query: Query) -> Option<Reply> {
        let is_for_every_client = asked.server.clients(&query, asked, LookUp::Question).is_empty();
        let mut reply = Self::look_up(asked, query, asked.purpose).await?;
        reply.is_cacheable &= is_for_every_client;
        Some(reply)
    }

    /// Returns what counts the questions that no block is for.
    #[must_use]
    pub fn dropped(&self) -> Arc<ZoneMetrics> {
        Arc::clone(&self.dropped)
    }

    /// Returns which server it is: no other one has that number.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Returns whether one of the blocks has `debug`.
    #[must_use]
    pub fn is_debugged(&self) -> bool {
        self.debug
    }

    /// Returns a request without a client, for a look-up ahead of questions.
    #[must_use]
    pub fn own_request(self: &Arc<Self>, query: Query) -> Request {
        let mut metadata = Message::query().metadata;
        metadata.recursion_desired = true;
        Request {
            server: Arc::clone(self),
            zone: Name::root(),
            client: INTERNAL_CLIENT,
            local: INTERNAL_CLIENT,
            protocol: Protocol::Tcp,
            size: 0,
            metadata,
            query,
            edns: Some(Edns::new()),
            max_udp: MAX_UDP,
            zone_metrics: Arc::clone(&self.dropped),
            purpose: Purpose::Client,
            depth: 0,
        }
    }

    /// Returns whether a client's question is answered here by asking others, or that it isn't; `None` if that
    /// depends.
    #[must_use]
    pub fn offers_recursion(&self, query: &Query, request: &Request, look_up: LookUp) -> Option<bool> {
        match self.find(query.name(), query.query_type()) {
            Some(served) => {
                let mut plugins = served.deciding(query, look_up);
                plugins.find_map(|(plugin, query)| plugin.offers_recursion(request, &query))
            }
            None => Some(false),
        }
    }

    /// Returns what the block that a name is for says of a look-up for a client.
    #[must_use]
    pub fn access(&self, query: &Query, request: &Request, look_up: LookUp) -> Access {
        let Some(served) = self.find(query.name(), query.query_type()) else {
            return Access { clients: Vec::new(), is_denied: false, recurses: Some(false) };
        };
        let mut access = Access { clients: Vec::new(), is_denied: false, recurses: None };
        for (plugin, query) in served.deciding(query, look_up) {
            access.clients.extend(plugin.clients(request, &query));
            access.is_denied |= plugin.denies(request, &query);
            access.recurses = access.recurses.or_else(|| plugin.offers_recursion(request, &query));
        }
        access
    }

    /// Returns for which clients [`Server::offers_recursion`] is the same as for that of this request; nothing is for all.
    pub fn clients(&self, query: &Query, request: &Request, look_up: LookUp) -> Vec<ClientScope> {
        let Some(served) = self.find(query.name(), query.query_type()) else { return Vec::new() };
        let plugins = served.deciding(query, look_up);
        plugins.filter_map(|(plugin, query)| plugin.clients(request, &query)).collect()
    }

    /// Returns the plugins of all blocks.
    pub fn plugins(&self) -> impl Iterator<Item = &Arc<dyn Plugin>> {
        self.blocks().flat_map(|(_, block)| &block.plugins)
    }

    /// Returns whether a name lies in a zone of links.
    #[must_use]
    pub fn is_ours(&self, name: &Name) -> bool {
        self.blocks().any(|(_, block)| block.link_zones.hold(name))
    }

    /// Forgets what is known from others about a name, or about all.
    pub fn invalidate(&self, name: Option<&[u8]>) {
        for plugin in self.plugins() {
            plugin.invalidate(name);
        }
    }

    /// Returns the block of the longest zone that a name is in.
    fn find(&self, name: &Name, qtype: RecordType) -> Option<&ServedZone> {
        let wire = wire_name(name);
        let mut rest = &*wire;
        let mut own = None;
        loop {
            if rest.len() <= self.longest
                && let Some(served) = self.blocks.get(rest)
            {
                // RFC 4035 section 3.1.4.1: the DS of a zone is its parent's to answer for.
                if qtype != RecordType::DS || own.is_some() {
                    return Some(served);
                }
                own = Some(served);
            }
            match rest.split_first() {
                Some((length, labels)) => rest = labels.get(usize::from(*length)..)?,
                None => return own,
            }
        }
    }

    fn refuse(&self, request: &Request, rcode: ResponseCode) -> Reply {
        let mut reply = request.reply("");
        reply.metadata.response_code = rcode;
        self.dropped.count(&request.counted(&reply), Instant::now());
        reply
    }
}

/// Turns what the plugins have come to into what the client gets.
fn answer(request: &Request, outcome: PluginResult) -> Option<Reply> {
    match outcome {
        Ok(reply) => Some(reply),
        Err(PluginError::Drop) => None,
        Err(PluginError::Error { rcode, ede, .. }) => {
            let mut metadata = Metadata::response_from_request(&request.metadata);
            metadata.response_code = rcode;
            Some(Reply { ede, ..Reply::new(metadata, "") })
        }
    }
}

/// Returns how a type is refused that no question may have: a transfer; that of a record that belongs to a message (RFC
/// 6891 section 6.1.1, RFC 8945 section 5.1, RFC 2930 section 2); or an obsolete one (MAILB, MAILA).
fn never_answered(qtype: RecordType) -> Option<ResponseCode> {
    const TKEY: u16 = 249;
    const MAIL: [u16; 2] = [253, 254];
    let number = u16::from(qtype);
    match qtype {
        RecordType::AXFR | RecordType::IXFR => Some(ResponseCode::Refused),
        RecordType::OPT | RecordType::TSIG => Some(ResponseCode::NotImp),
        _ if number == TKEY || MAIL.contains(&number) => Some(ResponseCode::NotImp),
        _ => None,
    }
}
