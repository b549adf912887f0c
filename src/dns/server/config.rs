//! Converts a Corefile to a configuration: blocks, and the listeners that serve them.

mod resolvers;
mod targets;

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwap;
use hickory_proto::rr::Name;

use crate::dns::chain::handler::Handler;
use crate::dns::chain::metrics::ServerMetrics;
use crate::dns::chain::server::{Server, ServerBlock};
use crate::dns::corefile::{
    self, Address, CorefileError, Directive, FileSources, Position, Scheme, Token, addresses, parse,
};
use crate::dns::message::query::whole_wire_name;
use crate::dns::message::zone_set::ZoneSet;
use crate::dns::net::interfaces::is_own_listener;
use crate::dns::plugins::build;
use crate::dns::plugins::link_zones::link_zones;
use crate::dns::plugins::setup::{BlockBuilder, ClusterZone, HttpEndpoint, LinkLine, ServerContext};
use crate::dns::transport::connections::{ConnectionConfig, ConnectionLimits, HttpConfig};
use crate::dns::transport::quic::DEFAULT_STREAMS;
use crate::dns::transport::tls::{grpc_acceptor, https_acceptor, quic_acceptor};
use crate::model::cluster_domain::{overlap, own_domains};
use crate::model::hostname::to_presentation;
use crate::model::target_policy::TargetPolicy;
use crate::store::cluster::answer::is_reverse;

#[derive(Debug)]
pub struct Configuration {
    pub blocks: Vec<BuiltBlock>,
    /// The listeners, in the order of their first mention.
    pub listeners: Vec<Listener>,
}

#[derive(Debug)]
pub struct BuiltBlock {
    pub block: Arc<ServerBlock>,
    /// The fingerprint by which a reload recognizes an unchanged block: its directives, zones, and the files that its
    /// plugins have read.
    pub fingerprint: BlockFingerprint,
    /// The other settings of the block; its plugins are already in `block`.
    pub builder: BlockBuilder,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockFingerprint {
    zones: Vec<Name>,
    lines: String,
    files_read: Vec<(PathBuf, Vec<u8>)>,
    optional: Vec<(PathBuf, Vec<u8>)>,
    /// The zones of links and of the cluster's own names, which decide about targets of the block's links.
    target_zones: [Vec<Name>; 2],
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    pub at: ListenAddress,
    /// The zones of the listener, and the indices of their blocks.
    pub zones: Vec<(Name, usize)>,
    /// The position of the first mention in the Corefile.
    pub position: Position,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ListenAddress {
    pub scheme: Scheme,
    /// Address and port; `[::]` means all addresses of both families.
    pub address: SocketAddr,
}

/// Formats the address as in CoreDNS's metrics, which omit an unspecified address.
impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { scheme, address } = self;
        if address.ip().is_unspecified() {
            write!(f, "{scheme}://:{}", address.port())
        } else {
            write!(f, "{scheme}://{address}")
        }
    }
}

/// Parses a Corefile with its imports, and builds its blocks. Starts nothing.
///
/// # Errors
/// Returns an error with the position in the Corefile if the Corefile is invalid.
pub fn configure(
    file: &Path,
    text: &str,
    sources: &FileSources<'_>,
    context: &ServerContext,
) -> Result<Configuration, CorefileError> {
    build_blocks(file, &parse(file, text, sources)?, context)
}

/// Builds the blocks of a parsed Corefile. Starts nothing.
///
/// # Errors
/// Returns an error with the position in the Corefile if the Corefile is invalid.
pub fn build_blocks(
    file: &Path,
    parsed: &[corefile::BlockSource],
    context: &ServerContext,
) -> Result<Configuration, CorefileError> {
    build_all(file, parsed, context).map_err(|mut errors| errors.swap_remove(0))
}

/// The plugins that answer for names of the cluster itself.
const CLUSTER_PLUGINS: [&str; 2] = ["kubernetes", "k8s_external"];

/// Returns the zones of the cluster's own names that links may not lead to. Reverse zones aren't among them: most of their
/// names fall through.
#[must_use]
pub fn cluster_zones(parsed: &[corefile::BlockSource]) -> Vec<Name> {
    let mut all = Vec::new();
    for block in parsed {
        for line in block.lines.iter().filter(|line| CLUSTER_PLUGINS.contains(&line.name())) {
            let named = line.arguments().iter().flat_map(|word| word.zones().unwrap_or_default());
            all.extend(named);
            if line.arguments().is_empty() {
                let own = block.addresses.iter().flat_map(|word| addresses(word).unwrap_or_default());
                all.extend(own.map(|address| address.zone));
            }
        }
    }
    all.retain(|zone| !is_reverse(&whole_wire_name(zone)));
    all.iter().flat_map(own_domains).collect()
}

/// Returns the policy for targets with the zones of a Corefile.
fn target_policy(parsed: &[corefile::BlockSource], targets: &TargetPolicy) -> TargetPolicy {
    let links = link_zones(parsed, &targets.cluster_domain).unwrap_or_default();
    let zones = links.into_iter().map(|zone| zone.origin).collect();
    TargetPolicy { zones, cluster_zones: cluster_zones(parsed), ..targets.clone() }
}

/// Builds the blocks of a parsed Corefile, as [`build_blocks`] does.
///
/// # Errors
/// Returns at least one error of each invalid block. There is at least one error.
pub fn build_all(
    file: &Path,
    parsed: &[corefile::BlockSource],
    context: &ServerContext,
) -> Result<Configuration, Vec<CorefileError>> {
    let mut configuration = Configuration { blocks: Vec::new(), listeners: Vec::new() };
    let targets = Arc::new(target_policy(parsed, &context.targets));
    let secondaries = context.secondaries.for_set_up();
    let context = ServerContext { targets, secondaries, ..context.clone() };
    let mut errors = Vec::new();
    for block in parsed {
        errors.extend(configuration.add_block(block, &context).err().unwrap_or_default());
    }
    if !errors.is_empty() {
        return Err(errors);
    }
    share_wildcards(&mut configuration.blocks);
    configuration.warn_of_missing_tls();
    configuration.warn_of_targets_without_a_block();
    configuration.warn_of_different_proxies();
    configuration.check_host_resolvers().map_err(|error| vec![error])?;
    let Configuration { blocks, listeners } = &configuration;
    if blocks.is_empty() {
        let start = Position { file: file.into(), line: 1, column: 1 };
        return Err(vec![start.error("there is no server block; one begins with a line such as: .:53 {")]);
    }
    let checks =
        [check_upstreams(blocks, listeners), check_cluster_zones(blocks, listeners), check_http(blocks)];
    checks.into_iter().collect::<Result<(), _>>().map_err(|error| vec![error])?;
    Ok(configuration)
}

/// Checks that no block has its own listener as an upstream. The listener of another block is allowed.
fn check_upstreams(blocks: &[BuiltBlock], listeners: &[Listener]) -> Result<(), CorefileError> {
    for (number, built) in blocks.iter().enumerate() {
        // No upstream is asked by QUIC.
        let behind = || {
            let listeners = listeners.iter().filter(|it| it.at.scheme.is_over_tcp());
            listeners.filter(|it| it.zones.iter().any(|(_, block)| *block == number))
        };
        for (upstream, position) in &built.builder.upstreams {
            if let Some(listener) = behind().find(|listener| is_own_listener(listener.at.address, *upstream))
            {
                return Err(position.error(format!(
                    "{upstream} is this block's own listener {}: every query would loop",
                    listener.at
                )));
            }
        }
    }
    Ok(())
}

/// Checks that no listener has a zone both for names of links and for names of the cluster, or one in the other: the names
/// of the inner zone would hide those of the outer one. Blocks may share a reverse zone: each has the records of its own
/// addresses.
fn check_cluster_zones(blocks: &[BuiltBlock], listeners: &[Listener]) -> Result<(), CorefileError> {
    for listener in listeners {
        let builders = || listener.zones.iter().map(|(_, number)| &blocks[*number].builder);
        for builder in builders() {
            for ClusterZone { zone, plugin, position } in &builder.cluster_zones {
                let is_reverse = is_reverse(&whole_wire_name(zone));
                for other in builders() {
                    let is_shared = is_reverse && !std::ptr::eq(other, builder);
                    let same = other.link_lines.iter().find(|known| known.zone == *zone);
                    if let Some(LinkLine { plugin, position: at, .. }) = same.filter(|_| !is_shared) {
                        return Err(position.error(format!(
                            "{plugin} answers for the zone {} already (line {}): leave it out here, or there",
                            to_presentation(zone),
                            at.line
                        )));
                    }
                    let is_own = plugin == "kubernetes" && !is_reverse;
                    let links = other.link_lines.iter().filter(|_| is_own);
                    let conflict = links.into_iter().find_map(|links| cluster_conflict(links, zone));
                    if let Some(conflict) = conflict {
                        return Err(position.error(conflict));
                    }
                }
            }
        }
    }
    Ok(())
}

/// Returns why a zone of links can't be beside a zone of *kubernetes*; `None` if it can.
fn cluster_conflict(LinkLine { zone: links, plugin, .. }: &LinkLine, zone: &Name) -> Option<String> {
    own_domains(zone).iter().find_map(|own| {
        Some(format!(
            "{plugin}'s zone {} {} {}, where kubernetes has the names of the cluster, and one would hide names of the \
             other: give {plugin} a zone outside of it",
            to_presentation(links),
            overlap(links, own)?,
            to_presentation(own)
        ))
    })
}

/// Moves HTTP endpoints from `0.0.0.0` to `[::]` where another one has the same port there: a socket of `[::]` also
/// takes IPv4, and both can't be bound.
fn share_wildcards(blocks: &mut [BuiltBlock]) {
    let [v4, v6] = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
    let at = |ip: IpAddr| move |endpoint: &HttpEndpoint| endpoint.address.ip() == ip;
    let all = blocks.iter().flat_map(|built| &built.builder.endpoints);
    let ports: Vec<u16> =
        all.filter(|it| at(v6)(it) && it.address.port() != 0).map(|it| it.address.port()).collect();
    for endpoint in blocks.iter_mut().flat_map(|built| &mut built.builder.endpoints) {
        if at(v4)(endpoint) && ports.contains(&endpoint.address.port()) {
            endpoint.address.set_ip(v6);
        }
    }
}

/// Checks that HTTP endpoints with the same address have the same TLS configuration, or none.
fn check_http(blocks: &[BuiltBlock]) -> Result<(), CorefileError> {
    let file = |endpoint: &HttpEndpoint| Some(endpoint.tls.as_ref()?.files.first()?.0.clone());
    let all: Vec<_> = blocks.iter().flat_map(|built| &built.builder.endpoints).collect();
    for (number, endpoint) in all.iter().enumerate() {
        let is_apart =
            |other: &HttpEndpoint| other.address.port() == 0 && other.kind.path() != endpoint.kind.path();
        let mut same_address =
            all[..number].iter().filter(|other| other.address == endpoint.address && !is_apart(other));
        if let Some(other) = same_address.find(|other| file(other) != file(endpoint)) {
            let how =
                file(other).map_or("without tls".to_owned(), |file| format!("with tls {}", file.display()));
            return Err(endpoint.position.error(format!(
                "line {} serves {} on {} {how}: plugins with the same address need the same tls",
                other.position.line,
                other.kind.path(),
                other.address
            )));
        }
    }
    Ok(())
}

/// Adds a zone to the listener at an address. The first zone there also adds the listener. `view_of` returns the name
/// of a block's view.
///
/// # Errors
/// If another listener on the same port conflicts, or the listener has the zone already with the same view, or if both
/// have none.
fn add_zone(
    listeners: &mut Vec<Listener>,
    at: ListenAddress,
    zone: &Name,
    block: usize,
    position: &Position,
    view_of: impl Fn(usize) -> Option<Arc<str>>,
) -> Result<(), CorefileError> {
    // Port 0 is a different port for each listener.
    let same_port = |other: &&Listener| {
        let port = other.at.address.port();
        port == at.address.port()
            && (port != 0 || other.at == at)
            && other.at.scheme.shares_ports_with(at.scheme)
    };
    for other in listeners.iter().filter(same_port) {
        let line = other.position.line;
        if other.at.scheme != at.scheme {
            return Err(position.error(format!("line {line} has {} on that port already", other.at)));
        }
        if other.at.address.ip().is_unspecified() != at.address.ip().is_unspecified() {
            return Err(position.error(format!(
                "line {line} has {} on that port already: where one block of a port has bind, all need it",
                other.at
            )));
        }
        if at.address.ip().is_unspecified() && other.at.address != at.address {
            return Err(position.error(format!(
                "line {line} has {} already, which overlaps with {}: both blocks need the same bind",
                other.at.address, at.address
            )));
        }
        let is_taken = |(known, other): &(Name, usize)| known == zone && view_of(*other) == view_of(block);
        if other.at == at && other.zones.iter().any(is_taken) {
            let view = view_of(block).map(|view| format!(" in the view {view}")).unwrap_or_default();
            return Err(position.error(format!("{zone} is served{view} on {at} already: see line {line}")));
        }
    }
    match listeners.iter_mut().find(|listener| listener.at == at) {
        Some(listener) => listener.zones.push((zone.clone(), block)),
        None => {
            listeners.push(Listener { at, zones: vec![(zone.clone(), block)], position: position.clone() })
        }
    }
    Ok(())
}

/// Returns the handler of a Corefile's first listener, for callers that have their own sockets. Doesn't start the tasks
/// of the blocks.
///
/// # Errors
/// Returns an error with the position in the Corefile if the Corefile is invalid.
pub fn first_handler(text: &str, context: &ServerContext) -> Result<Arc<Handler>, CorefileError> {
    let path = Path::new("Corefile");
    let configuration = configure(path, text, &FileSources::SYSTEM, context)?;
    let listener = &configuration.listeners[0];
    let server_metrics =
        context.metrics.group().map_err(|error| listener.position.error(error.to_string()))?;
    Ok(Arc::new(configuration.handler(listener, listener.at, context, &server_metrics)))
}

impl Configuration {
    /// Builds a block and adds it.
    ///
    /// # Errors
    /// Returns all errors of its plugins that can be found at once, or another error.
    fn add_block(
        &mut self,
        block: &corefile::BlockSource,
        context: &ServerContext,
    ) -> Result<(), Vec<CorefileError>> {
        let mut served: Vec<(Address, &Token)> = Vec::new();
        for word in &block.addresses {
            let found = addresses(word).map_err(|error| vec![error])?;
            served.extend(found.into_iter().map(|address| (address, word)));
        }
        let mut zones: Vec<Name> = Vec::new();
        for (address, _) in &served {
            if !zones.contains(&address.zone) {
                zones.push(address.zone.clone());
            }
        }
        let ports = served.iter().map(|(address, _)| address.port).collect();
        let mut builder = build(&block.lines, &zones, ports, context)?;
        for (address, word) in served {
            self.add_address(&address, word, block, &mut builder).map_err(|error| vec![error])?;
        }
        let fingerprint = BlockFingerprint::new(&zones, &block.lines, &builder, &context.targets);
        let block = ServerBlock {
            zones,
            plugins: builder.plugins.clone(),
            access_rules: builder.access_rules.clone(),
            link_zones: builder.link_zones.clone(),
            cluster_zones: ZoneSet::new(builder.cluster_zones.iter().map(|it| it.zone.clone())),
            labeled: builder.labeled.clone(),
            debug: builder.debug,
        };
        self.blocks.push(BuiltBlock { block: Arc::new(block), fingerprint, builder });
        Ok(())
    }

    /// Adds an address of the next block to the listeners.
    fn add_address(
        &mut self,
        address: &Address,
        word: &Token,
        block: &corefile::BlockSource,
        builder: &mut BlockBuilder,
    ) -> Result<(), CorefileError> {
        let shed = block.lines.iter().find(|line| line.name() == "shed");
        if let Some(line) = shed.filter(|_| address.scheme != Scheme::Dns) {
            let scheme = address.scheme;
            return Err(
                line.error(format!("shed is about UDP, and {scheme}:// blocks have none: leave it out"))
            );
        }
        if address.scheme == Scheme::Quic && builder.tls.is_none() {
            let text = "a quic:// block needs the plugin tls, with a certificate and its key";
            return Err(word.position.error(text));
        }
        if address.scheme == Scheme::Quic && builder.proxies.is_some() {
            return Err(word
                .position
                .error("a quic:// block can't have proxyproto: PROXY headers aren't read by QUIC"));
        }
        let all = [IpAddr::V6(Ipv6Addr::UNSPECIFIED)];
        let mut hidden = None;
        for ip in if builder.bind.is_empty() { &all[..] } else { &builder.bind } {
            let at = ListenAddress { scheme: address.scheme, address: SocketAddr::new(*ip, address.port) };
            let (number, blocks) = (self.blocks.len(), &self.blocks);
            let builder_of = |other: usize| blocks.get(other).map_or(&*builder, |built| &built.builder);
            let view_of = |block| builder_of(block).view();
            add_zone(&mut self.listeners, at, &address.zone, number, &word.position, view_of)?;
            let listener = self.listeners.iter().find(|listener| listener.at == at);
            let of_zone = listener.into_iter().flat_map(|listener| &listener.zones);
            let mut before = of_zone.filter(|(zone, block)| *zone == address.zone && *block != number);
            if before.any(|(_, block)| !builder_of(*block).has_expressions) {
                hidden = Some(word.error(format!(
                    "no client's query reaches this block: one before it answers all queries for {} on {at}; put that \
                     one behind the blocks whose views have expressions",
                    to_presentation(&address.zone)
                )));
            }
        }
        builder.warnings.extend(hidden);
        Ok(())
    }

    /// Returns the connection settings of a listener: TLS, `https`, `grpc_server` and `quic` from the first of its
    /// blocks that has them, limits from the last block that sets them.
    #[must_use]
    pub fn connection_config(&self, listener: &Listener) -> ConnectionConfig {
        let builders = || listener.zones.iter().map(|(_, number)| &self.blocks[*number].builder);
        let tls = || builders().find_map(|builder| builder.tls.clone());
        let (tls, http) = match listener.at.scheme {
            Scheme::Dns => (None, None),
            Scheme::Tls => (tls(), None),
            Scheme::Https => {
                let max = builders().find_map(|builder| builder.https_connections);
                (tls().map(|tls| https_acceptor(&tls)), Some(HttpConfig::https(max)))
            }
            Scheme::Grpc => {
                let max = builders().find_map(|builder| builder.grpc_connections);
                let streams = builders().find_map(|builder| builder.grpc_streams);
                (tls().map(|tls| grpc_acceptor(&tls)), Some(HttpConfig::grpc(max, streams)))
            }
            Scheme::Quic => (tls().map(|tls| quic_acceptor(&tls)), None),
        };
        ConnectionConfig {
            tls,
            http,
            quic_streams: builders().find_map(|builder| builder.quic_streams).unwrap_or(DEFAULT_STREAMS),
            limits: builders()
                .fold(ConnectionLimits::default(), |limits, builder| limits.with(builder.timeouts)),
        }
    }

    /// Returns the handler of a listener that is bound to `bound`.
    #[must_use]
    pub fn handler(
        &self,
        listener: &Listener,
        bound: ListenAddress,
        context: &ServerContext,
        server_metrics: &Arc<ServerMetrics>,
    ) -> Handler {
        Handler {
            server: ArcSwap::from_pointee(self.server(listener, bound, Arc::clone(server_metrics))),
            bound: bound.address,
            metrics: Arc::clone(&context.metrics),
            server_metrics: Arc::clone(server_metrics),
        }
    }

    /// Returns the server of a listener that is bound to `bound`.
    #[must_use]
    pub fn server(
        &self,
        listener: &Listener,
        bound: ListenAddress,
        server_metrics: Arc<ServerMetrics>,
    ) -> Server {
        let blocks: Vec<(Name, Arc<ServerBlock>)> = listener
            .zones
            .iter()
            .map(|(zone, number)| (zone.clone(), Arc::clone(&self.blocks[*number].block)))
            .collect();
        let twin = self.listeners.iter().find(|other| other.zones == listener.zones).unwrap_or(listener);
        let mut builders = listener.zones.iter().map(|(_, number)| &self.blocks[*number].builder);
        let proxies = builders.find_map(|builder| builder.proxies.clone());
        Server::new(bound.to_string(), &blocks, server_metrics)
            .with_group(twin.at.to_string())
            .with_proxies(proxies)
    }
}

impl BlockFingerprint {
    /// Returns the files that the plugins of the block have read, and their contents.
    #[must_use]
    pub fn files(&self) -> &[(PathBuf, Vec<u8>)] {
        &self.files_read
    }

    /// Returns the files of the block that may be missing, and their contents when it was built.
    #[must_use]
    pub fn optional_files(&self) -> &[(PathBuf, Vec<u8>)] {
        &self.optional
    }

    fn new(zones: &[Name], lines: &[Directive], builder: &BlockBuilder, targets: &TargetPolicy) -> Self {
        let mut text = String::new();
        write_lines(&mut text, lines, 0);
        Self {
            zones: zones.to_vec(),
            lines: text,
            files_read: builder.files_read.clone(),
            optional: builder.optional_files.clone(),
            target_zones: match builder.link_zones.all() {
                [] => Default::default(),
                _ => [&targets.zones, &targets.cluster_zones].map(|zones| {
                    let mut zones = zones.clone();
                    zones.sort_unstable();
                    zones
                }),
            },
        }
    }
}

/// Returns blocks as the text of a Corefile, with imports and variables expanded.
#[must_use]
pub fn text_of(blocks: &[corefile::BlockSource]) -> String {
    let mut text = String::new();
    for block in blocks {
        let addresses: Vec<String> = block.addresses.iter().map(|word| quoted(&word.text)).collect();
        text.push_str(&addresses.join(" "));
        text.push_str(" {\n");
        write_lines(&mut text, &block.lines, 1);
        text.push_str("}\n");
    }
    text
}

/// Writes directives in the syntax of a Corefile, one per line, with quotes where necessary.
fn write_lines(text: &mut String, lines: &[Directive], depth: usize) {
    for line in lines {
        text.push_str(&"    ".repeat(depth));
        let words: Vec<String> = line.tokens.iter().map(|word| quoted(&word.text)).collect();
        text.push_str(&words.join(" "));
        if let Some(block) = &line.block {
            text.push_str(" {\n");
            write_lines(text, block, depth + 1);
            text.push_str(&"    ".repeat(depth));
            text.push('}');
        }
        text.push('\n');
    }
}

/// Returns a token in the syntax of a Corefile, with quotes if necessary.
#[must_use]
pub fn quoted(word: &str) -> String {
    let plain = |c: char| !c.is_whitespace() && !"#{}".contains(c);
    if !word.is_empty() && !word.starts_with('"') && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("\"{}\"", word.replace('"', "\\\""))
    }
}

#[cfg(test)]
mod tests;
mod warnings;
