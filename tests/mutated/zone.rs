//! Properties of zone files with arbitrary content, shared by the property test and the fuzz target.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hickory_proto::op::{Edns, Message, Query};
use hickory_proto::rr::{Name, RecordType};
use lb_linker::dns::corefile::FileSources;
use lb_linker::dns::net::Protocol;
use lb_linker::dns::plugins::setup::ServerContext;
use lb_linker::dns::server::config::configure;
use lb_linker::store::{OnGone, Store};
use tokio::runtime::Runtime;

/// Queries for names that the seeds have, with and without DNSSEC records.
const QUESTIONS: [(&str, RecordType); 8] = [
    ("example.org.", RecordType::NS),
    ("www.example.org.", RecordType::A),
    ("a.wild.example.org.", RecordType::TXT),
    ("x.old.example.org.", RecordType::AAAA),
    ("a.child.example.org.", RecordType::A),
    ("srv.example.org.", RecordType::SRV),
    ("none.example.org.", RecordType::A),
    ("b.example.org.", RecordType::MX),
];

/// A directory with a zone file, and the runtime in which its block answers.
pub struct Zones {
    context: ServerContext,
    runtime: Runtime,
    directory: PathBuf,
}

impl Zones {
    pub fn start() -> Self {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let directory = std::env::temp_dir().join(format!("lb-linker-zone-{}-{number}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        Self {
            context: ServerContext::silent(Arc::new(Store::new(OnGone::Kept))).unwrap(),
            runtime,
            directory,
        }
    }

    /// Serves a zone file, and asks for its names. Returns the kind of outcome, or the violated property.
    pub fn try_zone(&self, text: &[u8]) -> Result<&'static str, String> {
        // A file with another path may be any file of the machine.
        if text.windows(8).any(|word| word.eq_ignore_ascii_case(b"$include")) && text.contains(&b'/') {
            return Ok("includes");
        }
        let path = self.directory.join("db");
        fs::write(&path, text).map_err(|error| error.to_string())?;
        let shown = path.display();
        let corefile = format!(".:0 {{\nfile {shown} example.org {{\nreload 0s\n}}\n}}\n");
        let configuration =
            match configure(Path::new("Corefile"), &corefile, &FileSources::SYSTEM, &self.context) {
                Ok(configuration) => configuration,
                Err(error) => {
                    let (error, start) =
                        (error.to_string(), format!("Corefile:2:6: {}", self.directory.display()));
                    let is_short = error.len() < start.len() + 600 && !error.contains(['\n', '\0']);
                    return if error.starts_with(&start) && is_short { Ok("wrong") } else { Err(error) };
                }
            };
        let listener = &configuration.listeners[0];
        let metrics = self.context.metrics.group().map_err(|error| error.to_string())?;
        let handler = configuration.handler(listener, listener.at, &self.context, &metrics);
        for (number, (name, qtype)) in QUESTIONS.into_iter().enumerate() {
            let mut message = Message::query();
            message.metadata.id = 0x1234;
            message.add_query(Query::query(Name::from_ascii(name).unwrap(), qtype));
            let mut edns = Edns::new();
            edns.set_max_payload(1232).set_dnssec_ok(number % 2 == 0);
            message.set_edns(edns);
            let bytes = message.to_vec().map_err(|error| error.to_string())?;
            let client: SocketAddr = ([192, 0, 2, 9], 53).into();
            let answer = self.runtime.block_on(handler.answer(bytes, client, None, Protocol::Udp, true));
            if handler.server_metrics.panics.get() > 0 {
                return Err("the handler panicked".to_owned());
            }
            let answer = answer.ok_or("each query gets an answer")?.bytes;
            if answer.len() > 1232 {
                return Err(format!("an answer of {} bytes", answer.len()));
            }
            let answer =
                Message::from_vec(&answer).map_err(|error| format!("{name}: undecodable: {error}"))?;
            if answer.metadata.id != message.metadata.id || answer.queries != message.queries {
                return Err(format!("the answer has another id or question: {:?}", answer.queries));
            }
        }
        Ok("right")
    }
}

impl Drop for Zones {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}
