//! Properties of the plugins *rewrite* and *template* for arbitrary rules and queries, shared by the property test and
//! the fuzz target.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use hickory_proto::op::{Message, Query};
use hickory_proto::rr::{Name, RecordType};
use lb_linker::dns::chain::handler::Handler;
use lb_linker::dns::corefile::parse;
use lb_linker::dns::net::Protocol;
use lb_linker::dns::plugins::setup::ServerContext;
use lb_linker::dns::server::config::configure;
use lb_linker::store::{OnGone, Store};
use tokio::runtime::Runtime;

use crate::corefile::SOURCES;

/// The plugins that may be in a block. None of them reads a file or opens a socket.
const PLUGINS: [&str; 3] = ["rewrite", "template", "whoami"];

/// The context for server blocks with rules, and the runtime in which they answer.
pub struct Rules {
    context: ServerContext,
    runtime: Runtime,
}

impl Rules {
    pub fn start() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        Self { context: ServerContext::silent(Arc::new(Store::new(OnGone::Kept))).unwrap(), runtime }
    }

    /// Asks a server block a query. The first line is the name and the type of the query, the other lines are the
    /// directives of the block. Returns the kind of outcome, or the violated property.
    pub fn try_rules(&self, bytes: &[u8]) -> Result<&'static str, String> {
        let text = String::from_utf8_lossy(bytes);
        let (asked, directives) = text.split_once('\n').unwrap_or((&text, ""));
        let Some(query) = query(asked) else { return Ok("no query") };
        let corefile = format!(".:0 {{\n{directives}\n}}\n");
        let path = Path::new("Corefile");
        let Ok(blocks) = parse(path, &corefile, &SOURCES) else { return Ok("wrong") };
        let is_allowed = |name| PLUGINS.contains(&name);
        if blocks.len() != 1 || !blocks[0].lines.iter().all(|line| is_allowed(line.name())) {
            return Ok("other plugins");
        }
        let Ok(configuration) = configure(path, &corefile, &SOURCES, &self.context) else {
            return Ok("wrong");
        };
        let listener = &configuration.listeners[0];
        let metrics = self.context.metrics.group().map_err(|error| error.to_string())?;
        let handler = configuration.handler(listener, listener.at, &self.context, &metrics);
        self.ask(&handler, query).map_err(|rule| format!("{rule}\n{text}"))
    }

    fn ask(&self, handler: &Handler, query: Query) -> Result<&'static str, String> {
        let mut message = Message::query();
        message.metadata.id = 0x1234;
        message.metadata.recursion_desired = true;
        message.add_query(query);
        let bytes = message.to_vec().map_err(|error| error.to_string())?;
        let client: SocketAddr = ([192, 0, 2, 9], 53).into();
        // By TCP, so that no answer is truncated.
        let answer = self.runtime.block_on(handler.answer(bytes, client, None, Protocol::Tcp, true));
        if handler.server_metrics.panics.get() > 0 {
            return Err("the handler panicked".to_owned());
        }
        let answer = answer.ok_or("each query gets an answer")?;
        let answer = Message::from_vec(&answer.bytes).map_err(|error| format!("undecodable: {error}"))?;
        if answer.metadata.id != message.metadata.id || answer.queries != message.queries {
            return Err(format!("the answer has another id or question: {:?}", answer.queries));
        }
        let records = answer.answers.len() + answer.authorities.len() + answer.additionals.len();
        Ok(if records > 0 { "records" } else { "empty" })
    }
}

fn query(line: &str) -> Option<Query> {
    let (name, kind) = line.split_once(' ')?;
    let mut name = Name::from_ascii(name).ok()?;
    name.set_fqdn(true);
    let kind: RecordType = kind.trim().parse().ok()?;
    // Transfers are refused before any plugin.
    (!matches!(kind, RecordType::AXFR | RecordType::IXFR)).then(|| Query::query(name, kind))
}
