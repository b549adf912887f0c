//! What a plugin is: it gets a request, and answers it or has the next one answer it.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use hickory_proto::op::{Query, ResponseCode};
use hickory_proto::rr::Name;

use super::server::ServerBlock;
use crate::dns::chain::request::Request;
use crate::dns::message::ede::Ede;
use crate::dns::message::reply::Reply;
use crate::dns::message::validity::ClientScope;

/// A plugin of a server block. All requests go through the same one at once.
#[async_trait]
pub trait Plugin: Any + fmt::Debug + Send + Sync {
    /// Returns its name in a Corefile.
    fn name(&self) -> &'static str;

    /// Answers a request, by itself or through the next plugin. What it changes in the request, those behind it
    /// see; what those before it are to see unchanged it has to put back.
    async fn serve(&self, request: &mut Request, next: Next<'_>) -> PluginResult;

    /// Returns whether it can do its work by now: `/ready` waits for that.
    fn is_ready(&self) -> bool {
        true
    }

    /// Returns whether this plugin alone settles that names of all the world are resolved for a client, or that
    /// this one isn't; `None` leaves that to the next one.
    fn offers_recursion(&self, _request: &Request, _query: &Query) -> Option<bool> {
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

    /// Returns for which clients [`Plugin::offers_recursion`] and [`Plugin::denies`] say the same of a name as for that of this
    /// request; nothing if for all.
    fn clients(&self, _request: &Request, _query: &Query) -> Option<ClientScope> {
        None
    }

    /// Returns whether [`Plugin::offers_recursion`] also counts for what is behind the targets of links.
    fn decides_on_targets(&self) -> bool {
        true
    }

    /// Returns whether an answer that passes through it can be given again without asking it, if [`Reply::repeat`] says
    /// so: what it does depends on the question alone, and on what is said there.
    fn reusable(&self) -> bool {
        false
    }

    /// Forgets what it knows from others about a name, given in wire form and lower case, or about all names.
    fn invalidate(&self, _name: Option<&[u8]>) {}

    /// Starts afresh what it has given up on, or has found to be broken: SIGUSR1 asks for that.
    fn restart(&self) {}
}

/// What has become of a request.
pub type PluginResult = Result<Reply, PluginError>;

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PluginError {
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
    Drop,
}

/// The plugins behind one.
#[derive(Clone, Copy, Debug)]
pub struct Next<'a> {
    block: &'a Arc<ServerBlock>,
    at: usize,
}

/// The plugins behind one, for what goes on when the client has its answer.
#[derive(Clone, Debug)]
pub struct OwnedNext {
    block: Arc<ServerBlock>,
    at: usize,
}

// === impl Failure ===

impl PluginError {
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
    pub(crate) fn first(block: &'a Arc<ServerBlock>) -> Self {
        Self { block, at: 0 }
    }

    /// Has the plugins behind this one answer.
    ///
    /// # Errors
    /// If there is no answer.
    pub async fn serve(self, request: &mut Request) -> PluginResult {
        let Self { block, at } = self;
        match block.plugins.get(at) {
            Some(plugin) => {
                let mut outcome = plugin.serve(request, Next { block, at: at + 1 }).await;
                if let Ok(reply) = &mut outcome
                    && !plugin.reusable()
                {
                    reply.repeat = None;
                }
                outcome
            }
            None => Err(PluginError::servfail("no next plugin found")),
        }
    }

    /// Returns whether a name lies in a zone of links that this block answers for.
    #[must_use]
    pub fn has_links_at(&self, name: &Name) -> bool {
        self.block.link_zones.hold(name)
    }

    /// Returns the same for a task of its own.
    #[must_use]
    pub fn detached(self) -> OwnedNext {
        OwnedNext { block: Arc::clone(self.block), at: self.at }
    }
}

// === impl Detached ===

impl OwnedNext {
    /// Has the plugins answer.
    ///
    /// # Errors
    /// If there is no answer.
    pub async fn serve(&self, request: &mut Request) -> PluginResult {
        Next { block: &self.block, at: self.at }.serve(request).await
    }
}
