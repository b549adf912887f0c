//! The server blocks of one listener: the first block with the longest matching zone, and a view that has the query,
//! answers.

use std::borrow::Cow;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use hickory_proto::op::{Edns, Message, Metadata, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::opt::{EdnsCode, EdnsOption};
use hickory_proto::rr::{DNSClass, Name, RecordType};
use hickory_proto::serialize::binary::{BinDecodable, BinDecoder};

use super::labels::{LabelSubject, Labels};
use super::metrics::{ServerMetrics, ZoneMetrics};
use super::proxy_sources::ProxySources;
use super::request::{INTERNAL_CLIENT, Purpose, Request};
use super::zone_state::TransferredZone;
use super::zone_table::ZoneTable;
use crate::dns::chain::plugin::{ChainPlugin, Next, PluginError, PluginResult};
use crate::dns::message::header::MAX_UDP;
use crate::dns::message::query::{asks_about, is_never_answered, is_transfer, wire_name};
use crate::dns::message::reply::Reply;
use crate::dns::message::validity::ClientScope;
use crate::dns::message::zone_set::ZoneSet;
use crate::dns::net::Protocol;
use crate::store::target_chain::MAX_LOOK_UPS;

/// The maximum number of look-ups of CNAME targets for one query. The depth alone doesn't limit them: each CNAME of an
/// answer may cause a look-up, whose answer again has many CNAMEs.
pub(crate) const MAX_ALIAS_LOOKUPS: usize = 16;

const ANSWERS_TRANSFERS: &str = "transfer";
const ANSWERS_NOTIFY: &str = "secondary";

#[derive(Debug)]
pub struct Server {
    /// The address in CoreDNS's notation, as in its metrics: `dns://:53`.
    pub label: String,
    /// The same text for all servers with the same blocks: these servers may share cached answers of upstreams.
    pub group: String,
    /// The blocks of each zone in their order.
    blocks: ZoneTable<ServedZone>,
    /// The zones of links and of the cluster's own names of all blocks, in wire form without the root octet, in lower
    /// case.
    own_zones: Vec<Box<[u8]>>,
    has_views: bool,
    /// The view of all blocks; `None` if they have several views or none.
    only_view: Option<Arc<str>>,
    /// Whether a plugin can answer classes other than IN.
    other_classes: bool,
    /// Whether a plugin reads the messages of requests.
    reads_messages: bool,
    /// Whether a panic aborts the process.
    debug: bool,
    /// The sources of PROXY headers; `None` if there are none.
    proxies: Option<Arc<ProxySources>>,
    /// A number that no other server has.
    number: u64,
    /// The counters of queries that reach no plugin: outside all blocks, or of a type or class that is never answered.
    unrouted_metrics: Arc<ZoneMetrics>,
}

/// What the access rules of a block decide about one look-up of a client.
#[derive(Debug)]
pub struct Access {
    /// The decision is the same for clients in all of these scopes; empty means all clients.
    pub clients: Vec<ClientScope>,
    /// Whether the client's query for the name would be denied.
    pub is_denied: bool,
    /// Whether upstreams may be asked for the name on behalf of the client; `None` if no rule decides that.
    pub allows_recursion: Option<bool>,
}

#[derive(Debug)]
struct ServedZone {
    zone: Name,
    block: Arc<ServerBlock>,
    /// The name of the block's view, and the plugin that has it.
    view: Option<(Arc<str>, ChainPlugin)>,
    /// The number under which the response cache keeps answers of the block.
    number: u64,
    /// The plugins of the block that see zone transfers and NOTIFY, if there is one that answers either.
    exchange: Option<Arc<ServerBlock>>,
    zone_metrics: Arc<ZoneMetrics>,
}

impl ServedZone {
    fn new(label: &str, zone: &Name, block: &Arc<ServerBlock>, number: u64, metrics: &ServerMetrics) -> Self {
        let (block, view) = (Arc::clone(block), block.view());
        let name = view.as_ref().map(|(name, _)| &**name).unwrap_or_default();
        let zone_metrics = metrics.zone_metrics(label, &zone.to_ascii(), name);
        Self { zone: zone.clone(), exchange: block.exchange(), block, view, number, zone_metrics }
    }

    /// Returns whether the block is for all queries, or for this view.
    fn is_in(&self, view: Option<&str>) -> bool {
        self.view.as_ref().is_none_or(|(own, _)| view == Some(&**own))
    }

    fn admits(&self, request: &Request) -> bool {
        let label = |label: &str| self.labels(request).or_else(|| request.labels.clone())?.value(label);
        self.view.as_ref().is_none_or(|(_, plugin)| plugin.admits(request, &label))
    }

    fn transferred_zone(&self, origin: &Name) -> Option<Arc<dyn TransferredZone>> {
        self.block.plugins.iter().find_map(|plugin| plugin.transferred_zone(origin))
    }

    /// Returns the labels of a request, about the name as the block has got it, before `rewrite`; `None` without
    /// *metadata*.
    fn labels(&self, request: &Request) -> Option<Arc<Labels>> {
        if self.block.labeled.all().is_empty() {
            return None;
        }
        let subnet = match request.edns.as_ref().and_then(|edns| edns.option(EdnsCode::Subnet)) {
            Some(EdnsOption::Subnet(subnet)) => Some(subnet.addr().to_canonical()),
            _ => None,
        };
        let (name, client) = (request.query.name().clone(), request.client.ip().to_canonical());
        let (block, subject) = (Arc::clone(&self.block), LabelSubject { name, client, subnet });
        let is_in_zone = block.labeled.contains(&subject.name);
        Some(Arc::new(Labels::new(move |label| {
            let plugins = is_in_zone.then_some(&block.plugins)?;
            plugins.iter().find_map(|plugin| plugin.label(label, &subject))
        })))
    }

    /// Returns the rules that decide whether a name is looked up for a client, each with the query as rewritten by
    /// the preceding plugins. With [`LookUp::Stored`], each rule also gets the original query if that differs.
    fn rules_for<'a>(
        &'a self,
        request: &'a Request,
        query: &'a Query,
        look_up: LookUp,
    ) -> impl Iterator<Item = (&'a dyn AccessRule, Cow<'a, Query>)> {
        let mut seen = Cow::Borrowed(query);
        self.block.access_rules.iter().flat_map(move |rule| {
            if let Some(rewritten) = rule.rewritten(request, &seen) {
                seen = Cow::Owned(rewritten);
            }
            let decides = look_up == LookUp::Query || rule.decides_on_targets();
            let is_other = look_up == LookUp::Stored && *seen != *query;
            let as_seen = decides.then(|| (&**rule, seen.clone()));
            let as_it_is = (decides && is_other).then_some((&**rule, Cow::Borrowed(query)));
            as_seen.into_iter().chain(as_it_is)
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LookUp {
    /// To answer a client's query.
    Query,
    /// To resolve the target of a link.
    Target,
    /// To read the name's data from the store, which `rewrite` doesn't affect: the client gets the data only if both
    /// the original and the rewritten query are allowed.
    Stored,
}

/// The rule of a plugin about which names are looked up for which clients. A block has its rules in the order of their
/// plugins.
pub trait AccessRule: fmt::Debug + Send + Sync {
    /// Returns whether upstreams may be asked for the query on behalf of this client; `None` leaves the decision to the
    /// rule of the next plugin.
    fn allows_recursion(&self, _request: &Request, _query: &Query) -> Option<bool> {
        None
    }

    /// Returns whether this plugin would deny the query to the client: a CNAME chain isn't followed to a denied
    /// name.
    fn denies(&self, _request: &Request, _query: &Query) -> bool {
        false
    }

    /// Returns the query as the following plugins see it; `None` if it is unchanged.
    fn rewritten(&self, _request: &Request, _query: &Query) -> Option<Query> {
        None
    }

    /// Returns the clients for which [`AccessRule::allows_recursion`] and [`AccessRule::denies`] return the same
    /// results as for the client of this request; `None` for all clients.
    fn clients(&self, _request: &Request, _query: &Query) -> Option<ClientScope> {
        None
    }

    /// Returns whether the rule also applies to [`LookUp::Target`] and [`LookUp::Stored`].
    fn decides_on_targets(&self) -> bool {
        true
    }
}

/// A server block with its plugins in order. Several listeners may share a block.
#[derive(Clone, Debug)]
pub struct ServerBlock {
    pub zones: Vec<Name>,
    /// The plugins, in the order in which they are called.
    pub plugins: Vec<ChainPlugin>,
    /// The access rules of the plugins, in the same order.
    pub access_rules: Vec<Arc<dyn AccessRule>>,
    /// The zones of links that a plugin of this block answers for.
    pub link_zones: ZoneSet,
    /// The zones of the cluster's own names that a plugin of this block answers for.
    pub cluster_zones: ZoneSet,
    /// The zones of *metadata*; none without it.
    pub labeled: ZoneSet,
    /// Whether the block has `debug`: a panic on a listener of this block aborts the process.
    pub debug: bool,
}

// === impl Server ===

impl Server {
    /// Returns a server of blocks, each paired with a zone that the block has on this listener, in the order of the
    /// Corefile. `label` is the address in CoreDNS's notation.
    #[must_use]
    pub fn new(label: String, blocks: &[(Name, Arc<ServerBlock>)], metrics: Arc<ServerMetrics>) -> Self {
        // As in CoreDNS, queries of classes other than IN are refused unless a block has `chaos`, which answers CH, or
        // `forward`.
        let other_classes = blocks
            .iter()
            .flat_map(|(_, block)| &block.plugins)
            .any(|plugin| matches!(plugin.name(), "chaos" | "forward"));
        let mut plugins = blocks.iter().flat_map(|(_, block)| &block.plugins);
        let reads_messages = plugins.any(|plugin| plugin.reads_messages());
        let debug = blocks.iter().any(|(_, block)| block.debug);
        let number = new_number(&label);
        let unrouted_metrics = metrics.zone_metrics(&label, "dropped", "");
        let views = blocks.iter().map(|(_, block)| Some(block.view()?.0));
        let views: Vec<Option<Arc<str>>> = views.collect();
        let has_views = views.iter().any(Option::is_some);
        let first = views.first().cloned().flatten();
        let only_view = first.filter(|first| views.iter().all(|view| view.as_ref() == Some(first)));
        let of_zone = |(zone, block): &(Name, Arc<ServerBlock>)| {
            let view = || block.view().map(|(name, _)| name);
            let number = if has_views { new_number(&(&label, zone, view())) } else { number };
            ServedZone::new(&label, zone, block, number, &metrics)
        };
        let all = blocks.iter().map(of_zone);
        let blocks = ZoneTable::new(all.map(|served| (wire_name(&served.zone), served)));
        let own_zones = blocks.values().flat_map(|ServedZone { block, .. }| {
            block.link_zones.all().iter().chain(block.cluster_zones.all()).map(wire_name)
        });
        let mut own_zones: Vec<Box<[u8]>> = own_zones.collect();
        own_zones.sort_unstable();
        own_zones.dedup();
        Self {
            group: label.clone(),
            label,
            blocks,
            own_zones,
            has_views,
            only_view,
            other_classes,
            reads_messages,
            debug,
            proxies: None,
            number,
            unrouted_metrics,
        }
    }

    /// Makes this server share cached answers with all servers of the same group.
    #[must_use]
    pub fn with_group(self, group: String) -> Self {
        Self { group, ..self }
    }

    /// Makes the server take the clients' addresses from PROXY headers.
    #[must_use]
    pub fn with_proxies(self, proxies: Option<Arc<ProxySources>>) -> Self {
        Self { proxies, ..self }
    }

    /// Returns the sources of PROXY headers; `None` if there are none.
    #[must_use]
    pub fn proxies(&self) -> Option<&Arc<ProxySources>> {
        self.proxies.as_ref()
    }

    /// Returns the blocks, each once for every zone.
    pub fn blocks(&self) -> impl Iterator<Item = (&Name, &Arc<ServerBlock>)> {
        self.blocks.values().map(|served| (&served.zone, &served.block))
    }

    /// Answers a request with the blocks of its server; `None` if the client gets no reply.
    pub async fn serve(request: &mut Request) -> Option<Reply> {
        let server = Arc::clone(&request.server);
        if request.edns.as_ref().is_some_and(|edns| edns.version() > 0) {
            // RFC 6891 section 6.1.3.
            let mut reply = request.reply("");
            reply.metadata.response_code = ResponseCode::BADVERS;
            return Some(reply);
        }
        if is_never_answered(request.query.query_type()) {
            return Some(server.refuse(request, ResponseCode::NotImp));
        }
        if request.query.query_class() != DNSClass::IN && !server.other_classes {
            return Some(server.refuse(request, ResponseCode::Refused));
        }
        let Some(served) = server.route(request) else {
            return Some(server.refuse(request, ResponseCode::Refused));
        };
        request.kept_by = served.number;
        request.view = served.view.as_ref().map(|(name, _)| Arc::clone(name));
        let block = match exchange_plugin(request) {
            Some((plugin, rcode)) => match served.exchange.as_ref().filter(|block| block.has(plugin)) {
                Some(exchange) => exchange,
                None => return Some(server.refuse(request, rcode)),
            },
            None => &served.block,
        };
        if block.plugins.is_empty() {
            return Some(server.refuse(request, ResponseCode::Refused));
        }
        request.zone.clone_from(&served.zone);
        request.zone_metrics = Arc::clone(&served.zone_metrics);
        // As in CoreDNS, a block without *metadata* keeps the labels of the query that led to the look-up.
        if let Some(labels) = served.labels(request) {
            request.labels = Some(labels);
        }
        let outcome = Next::first(block).serve(request).await;
        answer(request, outcome)
    }

    /// Looks a name up for a request, in the block of this listener that is responsible for the name. Returns `None` if
    /// the block gives no reply, or if `MAX_LOOK_UPS` nested look-ups led to the request.
    pub async fn look_up(outer: &Request, query: Query, purpose: Purpose) -> Option<Reply> {
        if outer.depth >= MAX_LOOK_UPS {
            return None;
        }
        let mut inner = outer.clone();
        inner.query = query;
        inner.purpose = purpose;
        inner.options = None;
        inner.depth += 1;
        inner.has_client_name &= inner.query.name() == outer.query.name();
        inner.query_limiter = None;
        // Boxed, because the call is recursive.
        Box::pin(Self::serve(&mut inner)).await
    }

    /// Looks up the target of a CNAME that a plugin adds to an answer, for the same purpose. The result isn't cacheable
    /// if it may differ between clients, because `cache` shares answers between all clients, and isn't reusable if a
    /// view may decide on it. Returns `None` as [`Self::look_up`], and after `MAX_ALIAS_LOOKUPS` look-ups for the
    /// client's query.
    pub async fn look_up_alias(outer: &Request, query: Query) -> Option<Reply> {
        let tries = outer.alias_look_up_tries.get_or_init(Arc::default);
        if tries.fetch_add(1, Ordering::Relaxed) >= MAX_ALIAS_LOOKUPS {
            return None;
        }
        let is_for_every_client = outer.server.access(&query, outer, LookUp::Query).clients.is_empty();
        let depends_on_view = outer.chooses_view_by_client() && outer.server.has_views_of(&query);
        let mut reply = Self::look_up(outer, query, outer.purpose.clone()).await?;
        reply.is_cacheable &= is_for_every_client && !depends_on_view;
        reply.validity.take_if(|_| depends_on_view);
        Some(reply)
    }

    /// As [`Self::look_up_alias`], for a target in wire form, with the type of the client's query and class IN.
    pub async fn look_up_wire_alias(outer: &Request, target: &[u8]) -> Option<Reply> {
        let target = Name::read(&mut BinDecoder::new(target)).ok()?;
        let mut query = Query::query(target, outer.query.query_type());
        query.set_query_class(DNSClass::IN);
        Self::look_up_alias(outer, query).await
    }

    /// Returns the counters of queries that reach no plugin.
    #[must_use]
    pub fn unrouted_metrics(&self) -> Arc<ZoneMetrics> {
        Arc::clone(&self.unrouted_metrics)
    }

    /// Returns a number that no other server has.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn reads_messages(&self) -> bool {
        self.reads_messages
    }

    #[must_use]
    pub fn aborts_on_panic(&self) -> bool {
        self.debug
    }

    /// Returns a request of lb-linker itself: a prefetch, a check of a target, or a probe of the plugin `loop`.
    #[must_use]
    pub fn internal_request(self: &Arc<Self>, query: Query) -> Request {
        let mut metadata = Message::query().metadata;
        metadata.recursion_desired = true;
        Request {
            server: Arc::clone(self),
            zone: Name::root(),
            view: None,
            kept_by: self.number,
            client: INTERNAL_CLIENT,
            local: INTERNAL_CLIENT,
            protocol: Protocol::Tcp,
            size: 0,
            metadata,
            query,
            edns: Some(Edns::new()),
            options: None,
            max_udp: MAX_UDP,
            zone_metrics: Arc::clone(&self.unrouted_metrics),
            soa_serial: None,
            purpose: Purpose::Client,
            depth: 0,
            has_client_name: true,
            alias_look_up_tries: OnceLock::new(),
            query_limiter: None,
            key: None,
            labels: None,
            message: None,
            reply_observer: None,
            signer: None,
        }
    }

    /// Returns whether this query may be sent to upstreams for the client; `None` if no rule decides that.
    #[must_use]
    pub fn allows_recursion(&self, query: &Query, request: &Request, look_up: LookUp) -> Option<bool> {
        match self.find_in_view(query.name(), query.query_type(), request.view.as_deref()) {
            Some(served) => {
                let mut rules = served.rules_for(request, query, look_up);
                rules.find_map(|(rule, query)| rule.allows_recursion(request, &query))
            }
            None => Some(false),
        }
    }

    /// Returns what the access rules of the block that is responsible for a name in the request's view decide. Outside
    /// all blocks, no upstream may be asked.
    #[must_use]
    pub fn access(&self, query: &Query, request: &Request, look_up: LookUp) -> Access {
        let Some(served) = self.find_in_view(query.name(), query.query_type(), request.view.as_deref())
        else {
            return Access { clients: Vec::new(), is_denied: false, allows_recursion: Some(false) };
        };
        let mut access = Access { clients: Vec::new(), is_denied: false, allows_recursion: None };
        for (rule, query) in served.rules_for(request, query, look_up) {
            access.clients.extend(rule.clients(request, &query));
            access.is_denied |= rule.denies(request, &query);
            access.allows_recursion =
                access.allows_recursion.or_else(|| rule.allows_recursion(request, &query));
        }
        access
    }

    /// Returns the zone with exactly the queried name in the block that answers a request, for a transfer.
    #[must_use]
    pub fn requested_zone(&self, request: &Request) -> Option<Arc<dyn TransferredZone>> {
        let (name, qtype) = (request.query.name(), request.query.query_type());
        // The labels of the block that has the query could route it to another one.
        self.blocks.find(name, qtype, |served| served.number == request.kept_by)?.transferred_zone(name)
    }

    /// Returns the zone with exactly this origin in the block that is responsible for it in a view, for NOTIFY.
    #[must_use]
    pub fn transferred_zone(&self, origin: &Name, view: Option<&str>) -> Option<Arc<dyn TransferredZone>> {
        self.find_in_view(origin, RecordType::SOA, view)?.transferred_zone(origin)
    }

    pub fn plugins(&self) -> impl Iterator<Item = &ChainPlugin> {
        self.blocks().flat_map(|(_, block)| &block.plugins)
    }

    /// Returns whether a name lies in a zone of links.
    #[must_use]
    pub fn is_link_name(&self, name: &Name) -> bool {
        self.blocks().any(|(_, block)| block.link_zones.contains(name))
    }

    /// Returns whether a name is the origin of a zone of links, or an ancestor of the origin.
    #[must_use]
    pub fn has_link_zones_below(&self, name: &Name) -> bool {
        let mut zones = self.blocks().flat_map(|(_, block)| block.link_zones.all());
        zones.any(|zone| name.zone_of(zone))
    }

    /// Returns whether the first question of a message is about a name of a link or of the cluster.
    #[must_use]
    pub fn asks_about_own_names(&self, message: &[u8]) -> bool {
        asks_about(message, &self.own_zones)
    }

    /// Discards the plugins' cached data about a name, as [`Plugin::invalidate`](super::plugin::Plugin::invalidate)
    /// does.
    pub fn invalidate(&self, name: Option<&[u8]>) {
        for plugin in self.plugins() {
            plugin.invalidate(name);
        }
    }

    /// Returns whether the response cache needs [`Self::number_for`] instead of [`Self::number`].
    #[must_use]
    pub fn has_views(&self) -> bool {
        self.has_views
    }

    /// Returns the number under which the response cache keeps the answer to a request.
    #[must_use]
    pub fn number_for(&self, request: &Request) -> u64 {
        self.route(request).map_or(self.number, |served| served.number)
    }

    /// Returns whether a view decides on the block that answers a query.
    fn has_views_of(&self, query: &Query) -> bool {
        let first = || self.blocks.find(query.name(), query.query_type(), |_| true);
        self.has_views && first().is_some_and(|served| served.view.is_some())
    }

    /// Returns the block that answers a request.
    fn route(&self, request: &Request) -> Option<&ServedZone> {
        let (name, qtype) = (request.query.name(), request.query.query_type());
        if request.chooses_view_by_client() {
            return self.blocks.find(name, qtype, |served| served.admits(request));
        }
        self.find_in_view(name, qtype, request.view.as_deref())
    }

    /// Returns the block that answers a query in a view, or outside all views.
    fn find_in_view(&self, name: &Name, qtype: RecordType, view: Option<&str>) -> Option<&ServedZone> {
        let view = view.or(self.only_view.as_deref());
        self.blocks.find(name, qtype, |served| served.is_in(view))
    }

    fn refuse(&self, request: &Request, rcode: ResponseCode) -> Reply {
        let mut reply = request.reply("");
        reply.metadata.response_code = rcode;
        self.unrouted_metrics.count(&request.stats(&reply), Instant::now());
        reply
    }
}

// === impl ServerBlock ===

impl ServerBlock {
    /// Returns the block with the plugins alone that see zone transfers and NOTIFY; `None` if none of them answers
    /// either.
    fn exchange(&self) -> Option<Arc<Self>> {
        if !self.has(ANSWERS_TRANSFERS) && !self.has(ANSWERS_NOTIFY) {
            return None;
        }
        let plugins = self.plugins.iter().filter(|plugin| plugin.sees_transfers()).cloned().collect();
        Some(Arc::new(Self { plugins, ..self.clone() }))
    }

    fn has(&self, plugin: &str) -> bool {
        self.plugins.iter().any(|own| own.name() == plugin)
    }

    /// Returns the name of the block's view, and the plugin that has it.
    fn view(&self) -> Option<(Arc<str>, ChainPlugin)> {
        self.plugins.iter().find_map(|plugin| Some((plugin.view()?, plugin.clone())))
    }
}

/// Returns a number that it hasn't returned before. Its lowest 16 bits depend on what has the number alone: after a reload
/// they are the same, and new answers take the places of old ones in the response cache.
fn new_number(of: &impl Hash) -> u64 {
    static NUMBERS: AtomicU64 = AtomicU64::new(0);
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    NUMBERS.fetch_add(1, Ordering::Relaxed) << 16 | hasher.finish() & 0xffff
}

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

/// Returns the plugin that answers a zone transfer or a NOTIFY (RFC 1996), and the rcode of a block without it; `None`
/// for other requests.
fn exchange_plugin(request: &Request) -> Option<(&'static str, ResponseCode)> {
    if request.metadata.op_code == OpCode::Notify {
        return Some((ANSWERS_NOTIFY, ResponseCode::NotImp));
    }
    is_transfer(request.query.query_type()).then_some((ANSWERS_TRANSFERS, ResponseCode::Refused))
}
