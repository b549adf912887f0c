//! The interface of a plugin, which answers a request or passes the request to the next plugin.

use std::any::Any;
use std::fmt;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use async_trait::async_trait;
use futures::future::BoxFuture;
use hickory_proto::op::ResponseCode;
use hickory_proto::rr::Name;

use super::labels::LabelSubject;
use super::server::ServerBlock;
use super::zone_state::TransferredZone;
use crate::dns::chain::request::Request;
use crate::dns::message::ede::Ede;
use crate::dns::message::reply::Reply;
use crate::store::NameDependency;

/// A plugin of a server block. One instance serves all requests of the block concurrently.
#[async_trait]
pub trait Plugin: Any + fmt::Debug + Send + Sync {
    /// Returns the name of the plugin in a Corefile.
    fn name(&self) -> &'static str;

    /// Answers a request, directly or through `next`. The following plugins see changes of the request; a plugin has to
    /// undo changes that the preceding plugins must not see.
    async fn serve(&self, request: &mut Request, next: Next<'_>) -> PluginResult;

    /// Returns whether the plugin can serve requests; `/ready` waits for all plugins.
    fn is_ready(&self) -> bool {
        true
    }

    /// Returns a remark about the answers of a ready plugin, which `/ready` shows.
    fn note(&self) -> Option<String> {
        None
    }

    /// Discards cached data about a name, given in wire form without the root octet, in lower case; without a name,
    /// discards all cached data.
    fn invalidate(&self, _name: Option<&[u8]>) {}

    /// Returns the value of a label about a question; `None` if it isn't known.
    fn label(&self, _label: &str, _subject: &LabelSubject) -> Option<String> {
        None
    }

    /// Returns the name of the view that the block of this plugin is for; `None` if it is for all queries.
    fn view(&self) -> Option<Arc<str>> {
        None
    }

    /// Returns whether the view has this request. `label` looks up a label of the request.
    fn admits(&self, _request: &Request, _label: &dyn Fn(&str) -> Option<String>) -> bool {
        true
    }

    /// Returns whether the plugin sees zone transfers and NOTIFY, which pass no other plugins.
    fn sees_transfers(&self) -> bool {
        false
    }

    /// Returns whether the plugin reads `Request::message`.
    fn reads_messages(&self) -> bool {
        false
    }

    /// Returns a zone of this plugin, for a transfer; `None` if the plugin doesn't answer for it.
    fn transferred_zone(&self, _origin: &Name) -> Option<Arc<dyn TransferredZone>> {
        None
    }

    /// Returns the origins of zones of this plugin that neither its block nor *transfer* has to name.
    fn transferred_origins(&self) -> Vec<Name> {
        Vec::new()
    }

    /// Returns the search domains of the client; `None` if none of this query's clients has any.
    fn search_path(&self, _request: &Request) -> Option<SearchPath> {
        None
    }
}

/// The search domains of a client.
#[derive(Clone, Debug, Default)]
pub struct SearchPath {
    pub domains: Vec<Name>,
    /// What they rest on, if clients differ.
    pub of_client: Option<NameDependency>,
}

/// A plugin in the chain of a block.
#[derive(Clone, Debug)]
pub struct ChainPlugin {
    plugin: Arc<dyn Plugin>,
    /// Whether an answer that passes through this plugin may be reused without calling the plugin, if
    /// [`Reply::validity`] allows that: the effect of the plugin depends only on the query and on the data in
    /// [`Reply::validity`].
    is_reusable: bool,
}

pub type PluginResult = Result<Reply, PluginError>;

/// The reason why a request has no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PluginError {
    Error {
        rcode: ResponseCode,
        /// The reason that `errors` logs; empty if there is nothing to log.
        why: String,
        /// The reason for clients that use EDNS.
        ede: Option<Ede>,
        /// Whether the reason is that no upstream has answered: `cache` stores only such failures (RFC 9520 section
        /// 3.2).
        no_upstream: bool,
    },
    /// The client gets no response.
    Drop,
}

/// The rest of the plugin chain.
#[derive(Clone, Copy, Debug)]
pub struct Next<'a> {
    block: &'a Arc<ServerBlock>,
    at: usize,
}

/// The outcome of the next plugin, with whether answers that pass through it may be reused. An async function would copy
/// the outcome, which is large, once more for each plugin.
#[must_use = "futures do nothing unless they are awaited"]
pub struct Serving<'a>(Option<(BoxFuture<'a, PluginResult>, bool)>);

/// The rest of the plugin chain, for work that continues after the client has its answer.
#[derive(Clone, Debug)]
pub struct OwnedNext {
    block: Arc<ServerBlock>,
    at: usize,
}

// === impl ChainPlugin ===

impl ChainPlugin {
    /// Returns a plugin that has to be called for each request.
    pub fn new(plugin: Arc<dyn Plugin>) -> Self {
        Self { plugin, is_reusable: false }
    }

    /// Returns a plugin that lets answers be reused.
    pub fn reusable(plugin: Arc<dyn Plugin>) -> Self {
        Self { plugin, is_reusable: true }
    }
}

impl Deref for ChainPlugin {
    type Target = Arc<dyn Plugin>;

    fn deref(&self) -> &Self::Target {
        &self.plugin
    }
}

// === impl PluginError ===

impl PluginError {
    /// Returns an error that `errors` logs.
    #[must_use]
    pub fn new(rcode: ResponseCode, why: impl fmt::Display) -> Self {
        Self::Error { rcode, why: why.to_string(), ede: None, no_upstream: false }
    }

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

    /// Returns the error with the reason for clients that use EDNS.
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
    /// Returns the whole plugin chain of a block.
    pub(crate) fn first(block: &'a Arc<ServerBlock>) -> Self {
        Self { block, at: 0 }
    }

    /// Passes a request to the next plugin.
    ///
    /// # Errors
    /// If there is no answer.
    pub fn serve<'r>(self, request: &'r mut Request) -> Serving<'r>
    where
        'a: 'r,
    {
        let Self { block, at } = self;
        Serving(
            block
                .plugins
                .get(at)
                .map(|plugin| (plugin.serve(request, Next { block, at: at + 1 }), plugin.is_reusable)),
        )
    }

    /// Returns whether no plugin follows.
    #[must_use]
    pub fn is_end(&self) -> bool {
        self.at >= self.block.plugins.len()
    }

    /// Returns whether a name lies in a zone of links that this block answers for.
    #[must_use]
    pub fn has_links_at(&self, name: &Name) -> bool {
        self.block.link_zones.contains(name)
    }

    /// Returns the plugin of this type in the block.
    #[must_use]
    pub(crate) fn plugin<P: Plugin>(&self) -> Option<&'a P> {
        let plugins = self.block.plugins.iter().map(|plugin| -> &dyn Any { &***plugin });
        plugins.filter_map(<dyn Any>::downcast_ref).next()
    }

    /// Returns the search domains that a following plugin knows.
    pub(crate) fn search_path(&self, plugin: &str, request: &Request) -> Option<SearchPath> {
        let found = self.block.plugins.iter().find(|known| known.name() == plugin)?;
        found.search_path(request)
    }

    #[must_use]
    pub fn detached(self) -> OwnedNext {
        OwnedNext { block: Arc::clone(self.block), at: self.at }
    }
}

// === impl Serving ===

impl Future for Serving<'_> {
    type Output = PluginResult;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<PluginResult> {
        match &mut self.0 {
            None => Poll::Ready(Err(PluginError::servfail("no next plugin found"))),
            Some((serving, true)) => serving.as_mut().poll(context),
            Some((serving, false)) => {
                serving.as_mut().poll(context).map_ok(|reply| Reply { validity: None, ..reply })
            }
        }
    }
}

// === impl OwnedNext ===

impl OwnedNext {
    /// Passes a request to the next plugin.
    ///
    /// # Errors
    /// If there is no answer.
    pub async fn serve(&self, request: &mut Request) -> PluginResult {
        Next { block: &self.block, at: self.at }.serve(request).await
    }
}
