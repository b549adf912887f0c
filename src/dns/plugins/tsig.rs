//! # Name
//!
//! *tsig* - checks requests that are signed with a shared key (TSIG, RFC 8945), and signs their answers.
//!
//! # Description
//!
//! A request for a name in the plugin's zones whose signature is right goes to the next plugin, and its answer is
//! signed with the same key and algorithm. Plugins before *tsig* in the fixed order, such as *local*, *any* and
//! *chaos*, answer unsigned, also with `require all`. A wrong signature gets NOTAUTH and in the answer's TSIG record
//! BADSIG, for an unknown key or algorithm BADKEY, for a time that is off by more than the fudge of the request (300 s
//! in BIND and dig) BADTIME, and for a shortened signature BADTRUNC; a record that is malformed or isn't the last one
//! gets FORMERR, and so does a signature shorter than RFC 8945 allows. At most once a minute a log line reports such
//! requests. Unsigned requests are answered as without the plugin, unless `require` or `require_opcode` demands a
//! signature: then they get REFUSED with the extended error 18, Prohibited. A CNAME of another block or the target of a
//! link doesn't lead an unsigned request to a name for which this block demands a signature.
//!
//! The algorithms are `hmac-sha1`, for which the log has a warning, `hmac-sha224`, `hmac-sha256`, `hmac-sha384` and
//! `hmac-sha512`. A request may be signed with any of them, whichever the key's own algorithm is. `hmac-md5` isn't
//! supported.
//!
//! lb-linker's own requests for a zone are signed with a key of the zone's block: with several keys, with the one whose
//! name has the most labels in common with the zone's name, counted from the right or from the left, and of such keys
//! the first. For the zone `example.org.` that is a key `example.org.key.` or `primary.example.org.` rather than
//! `other.`. So NOTIFY to all secondary servers of a zone, and questions to all its primary servers, are signed with
//! the same key, which each of them must have.
//!
//! Signed requests are answered from *cache*, but more slowly than unsigned ones. No secret is logged.
//!
//! Differences from CoreDNS: keys belong to their block; in CoreDNS they belong to all blocks of the listener. A
//! secret that isn't in Base64, `hmac-md5` in a file, and a second line `require` or `require_opcode` are errors. The
//! flag AD is clear in signed answers (RFC 8945 section 5.5). CoreDNS gives BADSIG for a shortened signature and for a
//! malformed record.
//!
//! # Syntax
//!
//! Syntax: `tsig [ZONES...]`, and in braces:
//!
//! - `secret NAME KEY`: a key, with its secret in Base64. The option may be repeated. The key's own algorithm, with
//!   which lb-linker signs its requests, is `hmac-sha256`: for another one use `secrets`.
//! - `secrets FILE`: a file with keys in the syntax of BIND's `named.conf`, as `tsig-keygen` writes them. It may be
//!   repeated. [*reload*](#reload) notices a change of the file. A block has 1000 keys at most.
//! - `require QTYPE...|all|none`: the types whose queries have to be signed; by default none. NOTIFY has the type SOA:
//!   `require SOA` and `require all` also demand signed NOTIFY.
//! - `require_opcode OPCODE...|all|none`: the opcodes whose requests have to be signed, of `QUERY`, `IQUERY`,
//!   `STATUS`, `NOTIFY` and `UPDATE`; by default none. lb-linker answers only `QUERY` and `NOTIFY`.
//!
//! # Examples
//!
//! Queries for `example.org` have to be signed with a key of a file:
//!
//! ```text
//! example.org {
//!     tsig {
//!         secrets /etc/lb-linker/keys.conf
//!         require all
//!     }
//!     file db.example.org
//! }
//! ```
//!
//! The file:
//!
//! ```text
//! key "example.org.key" {
//!     algorithm hmac-sha256;
//!     secret "NoTCJU+DMqFWywaPyxSijrDEA/eC3nK0xi3AMEZuPVk=";
//! };
//! ```

mod key_file;
mod parse;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use hickory_proto::op::{OpCode, Query, ResponseCode};
use hickory_proto::rr::RecordType;
use tracing::warn;

use super::clients::{is_client_query, refusal};
use super::refusal_log::RefusalLog;
use super::setup::Setup;
use crate::dns::chain::plugin::{ChainPlugin, Next, Plugin, PluginResult};
use crate::dns::chain::request::Request;
use crate::dns::chain::server::AccessRule;
use crate::dns::corefile::CorefileError;
use crate::dns::message::ede::Ede;
use crate::dns::message::presentation::lower_name_text;
use crate::dns::message::reply::Reply;
use crate::dns::message::tsig::{
    Algorithm, CheckedRequest, TsigError, TsigKeys, check_request, is_signed, now,
};
use crate::dns::message::validity::ClientScope;

const NAME: &str = "tsig";

#[derive(Debug)]
struct Tsig {
    keys: Arc<TsigKeys>,
    types: Required<RecordType>,
    opcodes: Required<OpCode>,
    refused: RefusalLog,
    refused_unsigned: RefusalLog,
    /// Whether the log has the warning about hmac-sha1.
    has_warned: AtomicBool,
}

/// What has to be signed.
#[derive(Debug)]
enum Required<T> {
    All,
    Only(Vec<T>),
}

pub(super) fn set_up(setup: &mut Setup<'_>) -> Result<(), CorefileError> {
    let plugin = parse::plugin(setup)?;
    setup.builder.tsig = Some(Arc::clone(&plugin.keys));
    setup.add_with_access_rule(plugin, ChainPlugin::reusable);
    Ok(())
}

impl<T: PartialEq> Required<T> {
    fn contains(&self, item: &T) -> bool {
        match self {
            Self::All => true,
            Self::Only(items) => items.contains(item),
        }
    }
}

impl Tsig {
    /// Returns whether the request of a client has to be signed.
    fn requires(&self, opcode: OpCode, query: &Query) -> bool {
        self.types.contains(&query.query_type()) || self.opcodes.contains(&opcode)
    }

    /// Returns the client's request after the check of its signature; `None` if it has none.
    fn checked(&self, request: &Request) -> Option<CheckedRequest> {
        let message = request.message.as_ref().filter(|message| is_signed(message))?;
        Some(check_request(message, &self.keys, now()))
    }

    fn is_signed(&self, request: &Request) -> bool {
        self.checked(request).is_some_and(|checked| checked.outcome.is_ok())
    }

    /// Returns the reply to a request with a wrong signature, which `request.signer` signs where that is possible.
    fn refuse(&self, request: &Request, error: TsigError) -> Reply {
        if let Some(number) = self.refused.count() {
            let key = request.signer.as_ref().map_or_else(|| "-".to_owned(), |signer| signer.key_text());
            warn!(
                "refused a request of client {} that is signed with the key {key}: {error}; such requests since the \
                 last line: {number}",
                request.client.ip()
            );
        }
        let mut reply = request.reply(NAME);
        reply.metadata.response_code = match error {
            TsigError::Malformed => ResponseCode::FormErr,
            _ => ResponseCode::NotAuth,
        };
        reply
    }

    /// Returns the reply to a request that lacks a signature.
    fn refuse_unsigned(&self, request: &Request) -> Reply {
        if let Some(number) = self.refused_unsigned.count() {
            warn!(
                "refused {} {} of client {}: it isn't signed, as `require` or `require_opcode` demands; such requests \
                 since the last line: {number}",
                request.query.query_type(),
                lower_name_text(request.query.name()),
                request.client.ip()
            );
        }
        Reply { ede: Some(Ede::UNSIGNED), ..refusal(request, NAME) }
    }

    fn warn_of_sha1(&self, request: &Request) {
        let is_sha1 =
            request.signer.as_ref().is_some_and(|signer| signer.algorithm() == Some(Algorithm::Sha1));
        if is_sha1 && !self.has_warned.swap(true, Ordering::Relaxed) {
            warn!(
                "client {} signs its requests with hmac-sha1, which is weak: use hmac-sha256",
                request.client.ip()
            );
        }
    }
}

#[async_trait]
impl Plugin for Tsig {
    fn name(&self) -> &'static str {
        NAME
    }

    fn sees_transfers(&self) -> bool {
        true
    }

    async fn serve(&self, request: &mut Request, next: Next<'_>) -> PluginResult {
        if !is_client_query(request) || !self.keys.zones().contains(request.query.name()) {
            return next.serve(request).await;
        }
        let is_required = self.requires(request.metadata.op_code, &request.query);
        // A look-up on behalf of a client: the block that has the client's query signs the reply.
        if request.depth > 0 {
            if is_required && !self.is_signed(request) {
                return Ok(self.refuse_unsigned(request));
            }
            return next.serve(request).await;
        }
        let Some(checked) = self.checked(request) else {
            return if is_required { Ok(self.refuse_unsigned(request)) } else { next.serve(request).await };
        };
        request.signer = checked.signer.map(Box::new);
        if let Err(error) = checked.outcome {
            return Ok(self.refuse(request, error));
        }
        self.warn_of_sha1(request);
        let mut reply = next.serve(request).await?;
        // RFC 8945 section 5.5.
        reply.metadata.authentic_data = false;
        reply.validity = None;
        Ok(reply)
    }
}

impl AccessRule for Tsig {
    fn denies(&self, request: &Request, query: &Query) -> bool {
        let is_required = self.keys.zones().contains(query.name()) && self.requires(OpCode::Query, query);
        is_required && !request.is_internal() && !self.is_signed(request)
    }

    fn clients(&self, request: &Request, query: &Query) -> Option<ClientScope> {
        let is_required = self.keys.zones().contains(query.name()) && self.requires(OpCode::Query, query);
        // Only unsigned queries are answered from kept answers.
        let is_denied = self.denies(request, query);
        is_required.then(|| ClientScope(Arc::new(move |_| is_denied)))
    }
}
