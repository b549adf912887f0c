//! The labels of a request, which the plugin *metadata* makes known to log lines and templates.

use std::net::IpAddr;
use std::sync::Arc;

use hickory_proto::rr::Name;

use super::request::Request;
use super::server::ServerBlock;

/// The upstream that was asked last, as address and port.
pub(crate) const UPSTREAM: &str = "forward/upstream";

/// All labels that may have a value.
const KNOWN: [&str; 11] = [
    UPSTREAM,
    "kubernetes/client-namespace",
    "kubernetes/client-pod-name",
    "kubernetes/endpoint",
    "kubernetes/kind",
    "kubernetes/namespace",
    "kubernetes/parse-error",
    "kubernetes/port-name",
    "kubernetes/protocol",
    "kubernetes/service",
    "kubernetes/zone",
];

/// The request as its block has got it: labels are about the name before `rewrite`.
#[derive(Debug)]
pub struct Labels {
    block: Arc<ServerBlock>,
    name: Name,
    client: IpAddr,
    /// Whether the name is in the zones of *metadata*, so that plugins are asked.
    is_in_zone: bool,
}

impl Labels {
    /// Returns the labels of a request to a block with *metadata*.
    pub(super) fn new(block: &Arc<ServerBlock>, request: &Request) -> Self {
        let name = request.query.name().clone();
        let is_in_zone = block.labeled.contains(&name);
        Self { block: Arc::clone(block), name, client: request.client.ip().to_canonical(), is_in_zone }
    }

    /// Returns the value of a label, except [`UPSTREAM`]; `None` if no plugin knows it.
    #[must_use]
    pub fn value(&self, label: &str) -> Option<String> {
        let plugins = self.is_in_zone.then_some(&self.block.plugins)?;
        plugins.iter().find_map(|plugin| plugin.label(label, &self.name, self.client))
    }
}

/// Returns a warning about a placeholder for a label that never has a value in a block; `None` if it may have one.
pub(crate) fn warning(label: &str, has_metadata: bool) -> Option<String> {
    let why = match KNOWN.contains(&label) {
        _ if !has_metadata => "the block has no metadata".to_owned(),
        true => return None,
        false => format!("the labels are {}", KNOWN.join(", ")),
    };
    Some(format!("{{/{label}}} has no effect here: {why}"))
}
