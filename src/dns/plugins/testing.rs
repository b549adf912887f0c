//! Questions to a Corefile without sockets, for the tests of plugins.

#![allow(dead_code)]

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use hickory_proto::op::{Edns, Query, ResponseCode};
use hickory_proto::rr::{DNSClass, Name, Record, RecordType};
use hickory_server::net::xfer::Protocol;

use super::setup;
use crate::dns::configuration::configure;
use crate::dns::corefile::Sources;
use crate::dns::plugin::{Reply, Request};
use crate::dns::server::Server;
use crate::dns::wire::rcode_label;
use crate::metrics::Metrics;
use crate::store::{Departed, Store};

/// The blocks of a Corefile, and somebody who asks them: 10.0.0.1, port 5353, by UDP, RD set, without EDNS.
#[derive(Clone, Debug)]
pub(crate) struct Site {
    /// What answers on the first port.
    pub(crate) server: Arc<Server>,
    /// What the blocks share.
    pub(crate) shared: setup::Site,
    /// What is asked, but for the question: tests change it as they like.
    pub(crate) request: Request,
}

fn shared() -> setup::Site {
    setup::Site {
        store: Arc::new(Store::new(Departed::Kept)),
        targets: Arc::default(),
        metrics: Arc::new(Metrics::new().unwrap()),
    }
}

fn sources() -> Sources<'static> {
    Sources { variable: &|_| None, read: &|path| std::fs::read_to_string(path), glob: &|_| Vec::new() }
}

impl Site {
    /// One block for the root, with these lines; they are from line 2 on.
    pub(crate) fn block(lines: &str) -> Self {
        Self::corefile(&format!(". {{\n{lines}\n}}\n"))
    }

    /// A whole Corefile.
    pub(crate) fn corefile(text: &str) -> Self {
        let shared = shared();
        let configuration = configure(Path::new("Corefile"), text, &sources(), &shared)
            .unwrap_or_else(|error| panic!("{error}"));
        let listener = &configuration.listeners[0];
        let report = shared.metrics.family().unwrap();
        let server = Arc::new(configuration.server(listener, listener.at, report));
        let mut request = server.own_request(Query::new());
        request.protocol = Protocol::Udp;
        request.edns = None;
        request.client = SocketAddr::new([10, 0, 0, 1].into(), 5353);
        Self { server, shared, request }
    }

    /// What is wrong with the lines of a block for the root.
    pub(crate) fn error(lines: &str) -> String {
        let text = format!(". {{\n{lines}\n}}\n");
        let configured = configure(Path::new("Corefile"), &text, &sources(), &shared());
        configured.expect_err("an error").to_string()
    }

    /// Somebody else who asks.
    pub(crate) fn from(mut self, client: &str) -> Self {
        self.request.client.set_ip(IpAddr::from_str(client).unwrap());
        self
    }

    /// Somebody with EDNS, and that many bytes.
    pub(crate) fn edns(mut self, payload: u16) -> Self {
        let mut edns = Edns::new();
        edns.set_max_payload(payload);
        self.request.edns = Some(edns);
        self
    }

    /// Returns the request for `name type`, or `name class type`.
    pub(crate) fn request(&self, question: &str) -> Request {
        let words: Vec<&str> = question.split(' ').collect();
        let (name, class, qtype) = match words[..] {
            [name, qtype] => (name, DNSClass::IN, qtype),
            [name, class, qtype] => (name, DNSClass::from_str(class).unwrap(), qtype),
            _ => panic!("{question}"),
        };
        let mut query = Query::query(Name::from_ascii(name).unwrap(), RecordType::from_str(qtype).unwrap());
        query.set_query_class(class);
        Request { query, ..self.request.clone() }
    }

    /// Asks, and returns the reply as it is before it is encoded; nothing for silence.
    pub(crate) async fn reply(&self, question: &str) -> Option<Reply> {
        Server::serve(&mut self.request(question)).await
    }

    /// Asks, and returns `RCODE flags | answers | authorities | additionals`, with records in zone file
    /// syntax, separated by commas: `NOERROR aa | a. 5 IN A 192.0.2.1 | |`.
    pub(crate) async fn ask(&self, question: &str) -> String {
        match self.reply(question).await {
            Some(reply) => show(&reply),
            None => "silence".to_owned(),
        }
    }

    /// The page for Prometheus, those lines that contain a text.
    pub(crate) fn metrics(&self, text: &str) -> Vec<String> {
        let page = self.shared.metrics.render(&self.shared.store).unwrap();
        page.lines().filter(|line| !line.starts_with('#') && line.contains(text)).map(str::to_owned).collect()
    }
}

pub(crate) fn show(reply: &Reply) -> String {
    let metadata = &reply.metadata;
    let flags: Vec<&str> = [
        (metadata.authoritative, "aa"),
        (metadata.truncation, "tc"),
        (metadata.recursion_available, "ra"),
        (metadata.authentic_data, "ad"),
        (metadata.checking_disabled, "cd"),
    ]
    .into_iter()
    .filter_map(|(is_set, name)| is_set.then_some(name))
    .collect();
    let section = |records: &[Record]| records.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let rcode: ResponseCode = metadata.response_code;
    let parts = [
        format!("{} {}", rcode_label(rcode), flags.join(",")),
        section(&reply.answers),
        section(&reply.authorities),
        section(&reply.additionals),
    ];
    parts
        .iter()
        .map(|part| part.trim().to_owned())
        .collect::<Vec<_>>()
        .join(" | ")
        .replace("|  |", "| |")
        .replace("|  |", "| |")
        .trim_end()
        .to_owned()
}
