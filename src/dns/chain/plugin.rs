//! What a plugin is: it gets a request, and answers it or has the next one answer it.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hickory_proto::op::{Edns, Message, Metadata, Query, ResponseCode};
use hickory_proto::rr::rdata::opt::EdnsOption;
use hickory_proto::rr::{Name, Record};
use hickory_server::net::xfer::Protocol;

use super::metrics::Tally;
use super::server::{Block, Server};
use crate::dns::message::encode::{OPT, wire_length};
use crate::dns::message::header::{Ede, MIN_UDP};
use crate::dns::message::query::{Question, room};
use crate::dns::message::validity::{Clients, Repeat};
use crate::dns::transport::client_quota::OURSELVES;

/// Where requests of our own seem to come from.
pub(crate) const OWN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// A plugin of a server block. All requests go through the same one at once.
#[async_trait]
pub trait Plugin: fmt::Debug + Send + Sync {
    /// Returns its name in a Corefile.
    fn name(&self) -> &'static str;

    /// Answers a request, by itself or through the next plugin. What it changes in the request, those behind it
    /// see; what those before it are to see unchanged it has to put back.
    async fn serve(&self, request: &mut Request, next: Next<'_>) -> Outcome;

    /// Returns whether it can do its work by now: `/ready` waits for that.
    fn is_ready(&self) -> bool {
        true
    }

    /// Returns whether this plugin alone settles that names of all the world are resolved for a client, or that
    /// this one isn't; `None` leaves that to the next one.
    fn recurses(&self, _request: &Request, _query: &Query) -> Option<bool> {
        None
    }

    /// Returns whether this plugin would deny a client's question, if it were asked: a chain doesn't lead to that name.
    fn denies(&self, _request: &Request, _query: &Query) -> bool {
        false
    }

    /// Returns the question as the plugins behind this one see it; nothing if it stays as it is.
    fn rewritten(&self, _query: &Query) -> Option<Query> {
        None
    }

    /// Returns for which clients [`Plugin::recurses`] and [`Plugin::denies`] say the same of a name as for that of this
    /// request; nothing if for all.
    fn clients(&self, _request: &Request, _query: &Query) -> Option<Clients> {
        None
    }

    /// Returns whether [`Plugin::recurses`] also counts for what is behind the targets of links.
    fn decides_on_targets(&self) -> bool {
        true
    }

    /// Returns whether an answer that passes through it can be given again without asking it, if [`Reply::repeat`] says
    /// so: what it does depends on the question alone, and on what is said there.
    fn repeats(&self) -> bool {
        false
    }

    /// Forgets what it knows from others about a name, given in wire form and lower case, or about all names.
    fn forget(&self, _name: Option<&[u8]>) {}

    /// Starts afresh what it has given up on, or has found to be broken: SIGUSR1 asks for that.
    fn restart(&self) {}
}

/// What has become of a request.
pub type Outcome = Result<Reply, Failure>;

/// A question on its way through the plugins.
#[derive(Clone, Debug)]
pub struct Request {
    /// The server that was asked.
    pub server: Arc<Server>,
    /// The zone of the server block that answers.
    pub zone: Name,
    /// What counts the questions for it.
    pub tally: Arc<Tally>,
    /// Who asks.
    pub client: SocketAddr,
    /// The address that was asked.
    pub local: SocketAddr,
    /// By which transport.
    pub protocol: Protocol,
    /// Bytes of the message.
    pub size: usize,
    /// Id, opcode and flags.
    pub metadata: Metadata,
    /// Name, type and class.
    pub query: Query,
    /// What the client says by EDNS, if it does.
    pub edns: Option<Edns>,
    /// How many bytes a UDP answer may have, however many the client takes.
    pub max_udp: u16,
    /// What it is asked for.
    pub purpose: Purpose,
    /// Look-ups of ours that have led to this one.
    pub depth: usize,
}

/// What a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// For a client.
    Client,
    /// For what is behind the target of a link.
    Target {
        /// How old absence may be.
        absence: Duration,
        /// Whether anything cached will do.
        cached: bool,
    },
}

/// An answer on its way back.
#[derive(Clone, Debug)]
pub struct Reply {
    /// Id, flags and response code.
    pub metadata: Metadata,
    /// The answer section.
    pub answers: Vec<Record>,
    /// The authority section.
    pub authorities: Vec<Record>,
    /// The additional section, without OPT.
    pub additionals: Vec<Record>,
    /// Why there is no better answer, for clients that speak EDNS.
    pub ede: Option<Ede>,
    /// What else clients that speak EDNS are told.
    pub options: Vec<EdnsOption>,
    /// The plugin that the answer is of.
    pub plugin: &'static str,
    /// How long it has been kept.
    pub age: Duration,
    /// Whether it may be kept.
    pub is_cacheable: bool,
    /// What has to hold for it to be given again without asking the plugins; nothing if they are to be asked.
    pub repeat: Option<Box<Repeat>>,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The client is told that there is none.
    Error {
        /// By which code.
        rcode: ResponseCode,
        /// What `errors` logs; nothing if it is no error.
        why: String,
        /// Why, for clients that speak EDNS.
        ede: Option<Ede>,
        /// Whether the reason is that no upstream has answered: `cache` keeps that (RFC 9520 section 3.2), and no other
        /// failure.
        no_upstream: bool,
    },
    /// The client is told nothing.
    Silence,
}

/// The plugins behind one.
#[derive(Clone, Copy, Debug)]
pub struct Next<'a> {
    block: &'a Arc<Block>,
    at: usize,
}

/// The plugins behind one, for what goes on when the client has its answer.
#[derive(Clone, Debug)]
pub struct Detached {
    block: Arc<Block>,
    at: usize,
}

// === impl Request ===

impl Request {
    /// Returns how many bytes it has; one of ours has been in no message, and would have so many.
    #[must_use]
    pub fn length(&self) -> usize {
        if self.depth == 0 {
            return self.size;
        }
        wire_length(&self.reply(""), &self.query) + self.edns.as_ref().map_or(0, |_| OPT)
    }

    /// Returns the client that its look-ups count for. A client's address is unmapped by now.
    #[must_use]
    pub fn account(&self) -> IpAddr {
        if self.is_own() { OURSELVES } else { self.client.ip() }
    }

    /// Returns whether it is one of [`Server::own_request`]: no client asks from port 0, for it couldn't be answered.
    pub(crate) fn is_own(&self) -> bool {
        self.client == OWN
    }

    /// Returns an answer without records, of a plugin.
    #[must_use]
    pub fn reply(&self, plugin: &'static str) -> Reply {
        Reply::new(Metadata::response_from_request(&self.metadata), plugin)
    }

    /// Returns whether the client wants DNSSEC records (RFC 3225).
    #[must_use]
    pub fn dnssec_ok(&self) -> bool {
        self.edns.as_ref().is_some_and(|edns| edns.flags().dnssec_ok)
    }

    /// Returns how many bytes the answer may have.
    #[must_use]
    pub fn limit(&self) -> u16 {
        match self.protocol {
            Protocol::Udp => {
                self.edns.as_ref().map_or(MIN_UDP, Edns::max_payload).min(self.max_udp).max(MIN_UDP)
            }
            _ => u16::MAX,
        }
    }

    /// Returns the question as somebody else is asked it.
    #[must_use]
    pub fn question(&self) -> Question {
        Question {
            query: self.query.clone(),
            recursion_desired: self.metadata.recursion_desired,
            checking_disabled: self.metadata.checking_disabled,
            authentic_data: self.metadata.authentic_data,
            dnssec_ok: self.dnssec_ok(),
            // What is looked up for one client is for all who wait for it.
            room: room(if self.purpose == Purpose::Client { self.limit() } else { u16::MAX }),
        }
    }
}

// === impl Reply ===

impl Reply {
    /// Returns an answer without records.
    #[must_use]
    pub fn new(metadata: Metadata, plugin: &'static str) -> Self {
        Self {
            metadata,
            answers: Vec::new(),
            authorities: Vec::new(),
            additionals: Vec::new(),
            ede: None,
            options: Vec::new(),
            plugin,
            age: Duration::ZERO,
            is_cacheable: true,
            repeat: None,
        }
    }

    /// Returns the answer that came in a message of somebody else.
    #[must_use]
    pub fn of(message: Message, plugin: &'static str) -> Self {
        let Message { metadata, answers, authorities, additionals, .. } = message;
        Self { answers, authorities, additionals, ..Self::new(metadata, plugin) }
    }

    /// Returns about how many bytes it takes in memory.
    #[must_use]
    pub fn weight(&self) -> usize {
        /// A record beside its data; most data is in there, too.
        const RECORD: usize = 300;
        let records = self.answers.len() + self.authorities.len() + self.additionals.len();
        RECORD * (records + 1) + 2 * wire_length(self, &Query::new())
    }

    /// Returns the three sections, in the order of a message.
    #[must_use]
    pub fn sections(&self) -> [&Vec<Record>; 3] {
        [&self.answers, &self.authorities, &self.additionals]
    }

    /// The same, to be changed.
    pub fn sections_mut(&mut self) -> [&mut Vec<Record>; 3] {
        [&mut self.answers, &mut self.authorities, &mut self.additionals]
    }
}

// === impl Failure ===

impl Failure {
    /// Returns a failure that `errors` logs.
    #[must_use]
    pub fn new(rcode: ResponseCode, why: impl fmt::Display) -> Self {
        Self::Error { rcode, why: why.to_string(), ede: None, no_upstream: false }
    }

    /// Returns SERVFAIL.
    #[must_use]
    pub fn servfail(why: impl fmt::Display) -> Self {
        Self::new(ResponseCode::ServFail, why)
    }

    /// Returns SERVFAIL because no upstream has answered.
    #[must_use]
    pub fn no_upstream(why: impl fmt::Display) -> Self {
        Self::Error {
            rcode: ResponseCode::ServFail,
            why: why.to_string(),
            ede: Some(Ede::NO_UPSTREAM),
            no_upstream: true,
        }
    }

    /// Returns the failure with the reason that clients get.
    #[must_use]
    pub fn with_ede(mut self, because: Ede) -> Self {
        if let Self::Error { ede, .. } = &mut self {
            *ede = Some(because);
        }
        self
    }
}

// === impl Next ===

impl<'a> Next<'a> {
    /// Returns all plugins of a block.
    pub(crate) fn first(block: &'a Arc<Block>) -> Self {
        Self { block, at: 0 }
    }

    /// Has the plugins behind this one answer.
    ///
    /// # Errors
    /// If there is no answer.
    pub async fn serve(self, request: &mut Request) -> Outcome {
        let Self { block, at } = self;
        match block.plugins.get(at) {
            Some(plugin) => {
                let mut outcome = plugin.serve(request, Next { block, at: at + 1 }).await;
                if let Ok(reply) = &mut outcome
                    && !plugin.repeats()
                {
                    reply.repeat = None;
                }
                outcome
            }
            None => Err(Failure::servfail("no next plugin found")),
        }
    }

    /// Returns whether a name lies in a zone of links that this block answers for.
    #[must_use]
    pub fn has_links_at(&self, name: &Name) -> bool {
        self.block.links.as_ref().is_some_and(|links| links.holds(name))
    }

    /// Returns the same for a task of its own.
    #[must_use]
    pub fn detached(self) -> Detached {
        Detached { block: Arc::clone(self.block), at: self.at }
    }
}

// === impl Detached ===

impl Detached {
    /// Has the plugins answer.
    ///
    /// # Errors
    /// If there is no answer.
    pub async fn serve(&self, request: &mut Request) -> Outcome {
        Next { block: &self.block, at: self.at }.serve(request).await
    }
}
