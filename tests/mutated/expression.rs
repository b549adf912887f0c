//! Properties of the expressions of the plugin *view* for arbitrary expressions and queries, shared by the property test
//! and the fuzz target.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use hickory_proto::op::{Edns, Message, Query, ResponseCode};
use hickory_proto::rr::{Name, RecordType};
use lb_linker::dns::corefile::parse;
use lb_linker::dns::message::query::{is_never_answered, is_transfer};
use lb_linker::dns::net::Protocol;
use lb_linker::dns::plugins::setup::ServerContext;
use lb_linker::dns::server::config::{configure, quoted};
use lb_linker::store::{OnGone, Store};
use tokio::runtime::Runtime;

use crate::corefile::{SOURCES, check};

/// The context for server blocks with views, and the runtime in which they answer.
pub struct Expressions {
    context: ServerContext,
    runtime: Runtime,
}

impl Expressions {
    pub fn start() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        Self { context: ServerContext::silent(Arc::new(Store::new(OnGone::Kept))).unwrap(), runtime }
    }

    /// Asks blocks with a view a query. The first line is the name and the type of the query, the rest is the expression
    /// of the view. Returns the kind of outcome, or the violated property.
    pub fn try_expression(&self, bytes: &[u8]) -> Result<&'static str, String> {
        let text = String::from_utf8_lossy(bytes);
        let (asked, expression) = text.split_once('\n').unwrap_or((&text, ""));
        let Some(query) = query(asked) else { return Ok("no query") };
        let rule = |rule: String| format!("{rule}\n{text}");
        let admitted = match self.admitted(&query, expression) {
            Ok(Ok(admitted)) => admitted,
            Ok(Err(outcome)) => return Ok(outcome),
            Err(why) => return Err(rule(why)),
        };
        let of = |expression: String| -> Result<Option<bool>, String> {
            Ok(self.admitted(&query, &expression).map_err(rule)?.ok())
        };
        let negated = of(format!("!({expression})"))?;
        let twice = of(format!("({expression}) || ({expression})"))?;
        // Longer expressions may break a limit.
        if admitted && negated == Some(true) {
            return Err(rule("the view and its negation have the query".to_owned()));
        }
        if twice.is_some_and(|twice| twice != admitted) {
            return Err(rule("the view has the query, or has it together with itself".to_owned()));
        }
        Ok(match (admitted, negated) {
            (true, _) => "true",
            (false, Some(false)) => "failed",
            (false, _) => "false",
        })
    }

    /// Returns whether a view has a query, or the kind of outcome if there is no such view.
    fn admitted(&self, query: &Query, expression: &str) -> Result<Result<bool, &'static str>, String> {
        let corefile = format!(".:0 {{\nview v {{\nexpr {}\n}}\nwhoami\n}}\n", quoted(expression));
        let path = Path::new("Corefile");
        let Ok(blocks) = parse(path, &corefile, &SOURCES) else { return Ok(Err("no language")) };
        let [block] = &blocks[..] else { return Ok(Err("no language")) };
        let words = block.lines.first().and_then(|line| line.options().first()).map(|line| line.arguments());
        if !matches!(words, Some([word]) if word.text == expression) {
            return Ok(Err("no language"));
        }
        let configuration = match configure(path, &corefile, &SOURCES, &self.context) {
            Ok(configuration) => configuration,
            Err(error) => return check(&error, &corefile).map(|()| Err("wrong")),
        };
        let listener = &configuration.listeners[0];
        let metrics = self.context.metrics.group().map_err(|error| error.to_string())?;
        let handler = configuration.handler(listener, listener.at, &self.context, &metrics);
        let mut message = Message::query();
        message.metadata.id = 0x1234;
        message.add_query(query.clone());
        message.set_edns(Edns::new());
        let bytes = message.to_vec().map_err(|error| error.to_string())?;
        let client: SocketAddr = ([192, 0, 2, 9], 53).into();
        let answer = self.runtime.block_on(handler.answer(bytes.clone(), client, None, Protocol::Tcp, true));
        if handler.server_metrics.panics.get() > 0 {
            return Err("the handler panicked".to_owned());
        }
        let answer = answer.ok_or("each query gets an answer")?;
        let answer = Message::from_vec(&answer.bytes).map_err(|error| format!("undecodable: {error}"))?;
        let is_admitted = answer.metadata.response_code == ResponseCode::NoError;
        let server = handler.server.load_full();
        let number = handler.number(&server, &bytes, client, None, Protocol::Tcp);
        if is_admitted == (number == server.number()) {
            return Err("the response cache keeps the answer for another block".to_owned());
        }
        Ok(Ok(is_admitted))
    }
}

fn query(line: &str) -> Option<Query> {
    let (name, kind) = line.split_once(' ')?;
    let mut name = Name::from_ascii(name).ok()?;
    name.set_fqdn(true);
    let kind: RecordType = kind.trim().parse().ok()?;
    // Others are refused before any plugin, and *whoami* adds a label.
    let is_answered = !is_transfer(kind) && !is_never_answered(kind) && name.len() < 240;
    is_answered.then(|| Query::query(name, kind))
}
