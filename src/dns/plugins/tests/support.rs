//! Answers queries by the blocks of a Corefile without sockets, for the tests of plugins.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::str::FromStr;
use std::sync::{Arc, Mutex};

use hickory_proto::op::{Edns, Query, ResponseCode};
use hickory_proto::rr::rdata::{CNAME, NULL, SOA};
use hickory_proto::rr::{DNSClass, Name, RData, Record, RecordType};
use hickory_proto::serialize::binary::BinEncodable;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::dns::chain::request::Request;
use crate::dns::chain::server::Server;
use crate::dns::corefile::FileSources;
use crate::dns::message::presentation::rcode_text;
use crate::dns::message::reply::Reply;
use crate::dns::net::Protocol;
use crate::dns::plugins::setup::{self, Task};
use crate::dns::query_log::{LineFormat, LineQueue};
use crate::dns::server::config::{Configuration, configure};
use crate::model::hostname::Hostname;
use crate::model::link::{Annotations, Ingress, ObservedService};
use crate::model::service_key::ServiceKey;
use crate::model::target_policy::TargetPolicy;
use crate::store::{OnGone, Store};

/// Returns a Service in `default` with a load balancer that has the IP address or the hostname `target`.
pub(crate) fn link(service: &str, target: &str) -> ObservedService {
    let hostname = || Hostname::from(&Name::from_ascii(target).unwrap());
    let ingress = match target.parse() {
        Ok(ip) => Ingress { hostnames: vec![], addresses: vec![ip] },
        Err(_) => Ingress { hostnames: vec![hostname()], addresses: vec![] },
    };
    ObservedService {
        key: ServiceKey::new("default", service),
        uid: "u".into(),
        created: None,
        resource_version: None,
        ingress,
        ports: [].into(),
        annotations: Annotations::default(),
        refused: false,
        has_finalizer: false,
        persisted: None,
    }
}

/// The blocks of a Corefile, and a client: 10.0.0.1, port 5353, by UDP, RD set, without EDNS.
#[derive(Clone, Debug)]
pub(crate) struct TestServer {
    /// The server of the first listener.
    pub(crate) server: Arc<Server>,
    pub(crate) listeners: Vec<String>,
    pub(crate) shared: setup::ServerContext,
    /// The template of all requests, without the question; tests may change it.
    pub(crate) request: Request,
    /// The lines of `log` and `errors`.
    queue: Arc<Mutex<LineQueue>>,
}

fn shared() -> (setup::ServerContext, LineQueue) {
    let (mut shared, queue) =
        setup::ServerContext::new(Arc::new(Store::new(OnGone::Kept)), LineFormat::Text).unwrap();
    shared.own_addresses = |_| vec![[192, 0, 2, 53].into()];
    (shared, queue)
}

impl TestServer {
    /// Builds one block for the root zone with these lines, which begin at line 2 of the Corefile.
    pub(crate) fn block(lines: &str) -> Self {
        Self::corefile(&format!(". {{\n{lines}\n}}\n"))
    }

    /// Builds one block for the root zone, and returns its tasks without starting them.
    pub(crate) fn with_tasks(lines: &str) -> (Self, Vec<Task>) {
        let (context, mut configuration) = Self::configured(&format!(". {{\n{lines}\n}}\n"));
        (context, std::mem::take(&mut configuration.blocks[0].builder.tasks))
    }

    pub(crate) fn corefile(text: &str) -> Self {
        Self::configured(text).0
    }

    /// Builds one block for the root zone, and spawns its tasks, which run until the token is cancelled.
    pub(crate) fn running(lines: &str) -> (Self, CancellationToken, JoinSet<()>) {
        let (context, mut configuration) = Self::configured(&format!(". {{\n{lines}\n}}\n"));
        let (stop, mut running) = (CancellationToken::new(), JoinSet::new());
        for task in std::mem::take(&mut configuration.blocks[0].builder.tasks) {
            running.spawn(task(Arc::clone(&context.server), stop.clone()));
        }
        (context, stop, running)
    }

    /// Returns the builder of a block for the root zone with these lines.
    pub(crate) fn builder(lines: &str) -> setup::BlockBuilder {
        Self::configured(&format!(". {{\n{lines}\n}}\n")).1.blocks.remove(0).builder
    }

    /// Builds a whole Corefile, and returns its configuration, too.
    pub(crate) fn configured(text: &str) -> (Self, Configuration) {
        Self::of(text, shared())
    }

    /// Builds a whole Corefile with a policy for targets.
    pub(crate) fn with_targets(text: &str, targets: TargetPolicy) -> Self {
        let (mut shared, queue) = shared();
        shared.targets = Arc::new(targets);
        Self::of(text, (shared, queue)).0
    }

    fn of(text: &str, (shared, queue): (setup::ServerContext, LineQueue)) -> (Self, Configuration) {
        let configuration = configure(Path::new("Corefile"), text, &FileSources::SYSTEM, &shared)
            .unwrap_or_else(|error| panic!("{error}"));
        let listener = &configuration.listeners[0];
        let metrics = shared.metrics.group().unwrap();
        let server = Arc::new(configuration.server(listener, listener.at, metrics));
        let mut request = server.internal_request(Query::new());
        request.protocol = Protocol::Udp;
        request.edns = None;
        request.client = SocketAddr::new([10, 0, 0, 1].into(), 5353);
        let listeners = configuration.listeners.iter().map(|listener| listener.at.to_string()).collect();
        (Self { server, listeners, shared, request, queue: Arc::new(Mutex::new(queue)) }, configuration)
    }

    /// Returns the server of a changed Corefile, with the same state.
    pub(crate) fn changed(&self, text: &str) -> Self {
        let configuration =
            configure(Path::new("Corefile"), text, &FileSources::SYSTEM, &self.shared).unwrap();
        let listener = &configuration.listeners[0];
        let metrics = self.shared.metrics.group().unwrap();
        let server = Arc::new(configuration.server(listener, listener.at, metrics));
        let request = Request { server: Arc::clone(&server), ..self.request.clone() };
        Self { server, request, ..self.clone() }
    }

    /// Returns the error of a block for the root zone with these lines.
    pub(crate) fn error(lines: &str) -> String {
        Self::refusal(&format!(". {{\n{lines}\n}}\n")).expect("an error")
    }

    /// Returns the error of a whole Corefile; `None` if it loads.
    pub(crate) fn refusal(text: &str) -> Option<String> {
        let configured = configure(Path::new("Corefile"), text, &FileSources::SYSTEM, &shared().0);
        configured.err().map(|error| error.to_string())
    }

    /// Sets the address of the client.
    pub(crate) fn from(mut self, client: &str) -> Self {
        self.request.client.set_ip(IpAddr::from_str(client).unwrap());
        self
    }

    /// Sets the EDNS payload size of the client in bytes.
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

    /// Sends a query, and returns the reply before it is encoded; `None` if the query is dropped.
    pub(crate) async fn reply(&self, question: &str) -> Option<Reply> {
        Server::serve(&mut self.request(question)).await
    }

    /// Sends a query, and returns `RCODE flags | answers | authorities | additionals`, with records in hickory's text
    /// form, separated by commas: `NOERROR aa | a. 5 IN A 192.0.2.1 | |`; or `silence` if the query is dropped.
    pub(crate) async fn ask(&self, question: &str) -> String {
        match self.reply(question).await {
            Some(reply) => show(&reply),
            None => "silence".to_owned(),
        }
    }

    /// Returns the lines that `log` and `errors` have written since the last call.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.queue.lock().unwrap().take()
    }

    /// Returns the lines of the Prometheus page that contain `text`.
    pub(crate) fn metrics(&self, text: &str) -> Vec<String> {
        let page = self.shared.metrics.render().unwrap();
        page.lines().filter(|line| !line.starts_with('#') && line.contains(text)).map(str::to_owned).collect()
    }
}

/// Parses a record `owner ttl type data`; the data of an SOA record may be a single name.
pub(crate) fn record(text: &str) -> Record {
    let [owner, ttl, qtype, data] = text.splitn(4, ' ').collect::<Vec<_>>()[..] else { panic!("{text}") };
    let name = |text| Name::from_ascii(text).unwrap();
    let data = match qtype {
        // The parser of hickory-proto converts names to lower case.
        "CNAME" => RData::CNAME(CNAME(name(data))),
        "DNAME" => {
            RData::Unknown { code: RecordType::DNAME, rdata: NULL::with(name(data).to_bytes().unwrap()) }
        }
        "SOA" if !data.contains(' ') => RData::SOA(SOA::new(name(data), name(data), 1, 1, 1, 1, 3600)),
        _ => RData::try_from_str(RecordType::from_str(qtype).unwrap(), data).unwrap(),
    };
    Record::from_rdata(name(owner), ttl.parse().unwrap(), data)
}

/// Formats a reply as [`TestServer::ask`] does.
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
        format!("{} {}", rcode_text(rcode), flags.join(",")),
        section(&reply.records.answers),
        section(&reply.records.authorities),
        section(&reply.records.additionals),
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
