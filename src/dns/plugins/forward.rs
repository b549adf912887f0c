//! # Name
//!
//! *forward* - forwards queries to upstream resolvers.
//!
//! # Description
//!
//! Queries for names in a zone go to one of the upstreams, by UDP, TCP, TLS or HTTPS, and its answer goes to the
//! client with all its records, whatever their types; only a record with a malformed owner, or a malformed compressed
//! name in its data, is left out. If an upstream doesn't answer, the next one is asked. If the attempts are used up, or
//! 5 seconds have passed, the client gets SERVFAIL. An error code is an answer, too, so no other upstream is asked,
//! unless *failover* names the code.
//!
//! An upstream that has failed is checked, at once and then every half second until it answers; a healthy one isn't
//! checked. The check is a query (`. NS`) over the same transport, and any answer counts, also a truncated or malformed
//! one. An upstream that has failed more checks in a row than *max_fails* allows is down and isn't asked. If all are
//! down, the checks themselves may be broken, and all are asked in random order.
//!
//! If a block has several *forward* lines, the first one in the file with a zone that contains the name answers, so
//! more specific zones come first. Names in none of the zones go to the next plugin.
//!
//! Differences from CoreDNS:
//!
//! - Identical concurrent queries are sent once, and all waiting clients get the answer. Therefore forwarded queries
//!   have none of the client's EDNS options but DO, and always have EDNS and AD; the client sees AD, extended errors
//!   and upper bits of a response code only if it understands them. Options that *rewrite* adds are sent, and only
//!   queries with the same options are identical.
//! - If an upstream is silent for 0.5 s, the next one is asked as well, and the first answer counts; by UDP, the query
//!   is also repeated from another port. A silent upstream is checked after 0.4 s, and not only after *read_timeout*.
//!   An answer after *read_timeout* is accepted as long as the query waits for other upstreams.
//! - A truncated UDP answer is requested again by TCP, which CoreDNS does only with *prefer_udp*, and a server that
//!   doesn't support EDNS is asked without it. A UDP answer of more than 4096 bytes, or one that ends before its last
//!   record, counts as truncated, too. If there is no whole answer by TCP within a second, the whole records of the UDP
//!   answer are the answer, with TC; without answer records other upstreams are asked first. Such an answer goes only
//!   to clients that use UDP, and is never kept by *cache*; a client that uses TCP or TLS gets SERVFAIL.
//! - A certificate with CA:TRUE is refused as that of an upstream, also if *tls* names it as the authority: `openssl req
//!   -x509` makes such certificates, unless it has `-addext basicConstraints=critical,CA:FALSE`.
//! - One look-up sends at most 4 queries to one upstream in a second: repetitions, queries without EDNS and by TCP
//!   count, and those of further *forward* lines after *next*.
//! - Of an upstream's EDNS options only extended errors are passed on: at most three, with at most 256 bytes of text in
//!   all. A reply with two OPT records, or signed with TSIG or SIG(0), counts as a failure of the upstream.
//! - A UDP socket is used for at most 1000 queries and one second, with a random id for each query, and a retransmission
//!   uses a newer socket, which makes forging harder (RFC 5452). A datagram that answers no query is counted, and
//!   ends none; after one that is probably forged, the socket accepts no error without a question.
//!   CoreDNS uses a socket for one query at a time, until it was idle for *expire*.
//! - A client, which is an address, may have at most half of the look-ups that the other clients leave free: a single one
//!   500 of `max_concurrent 1000`. Further ones are refused. A look-up counts for the client that it was started for
//!   until it ends, and identical queries share one. CoreDNS has no limit per client.
//! - Without *max_concurrent*, 1000 to 10,000 concurrent look-ups are allowed: a quarter of the files that the process
//!   may open. Look-ups of links' targets have a limit of their own: the same number, but at most the number of sockets
//!   for targets (see below), and a tenth of that for types other than A, AAAA and HTTPS. CoreDNS has no limit, and
//!   fails without sockets.
//! - The upstream sockets of all *forward* lines are limited to 60 % of the files that the process may open
//!   (RLIMIT_NOFILE at the start, raised to the hard limit): 30 % for names that clients ask for, 15 % for targets of
//!   links, 5 % for health checks, and 10 % for idle connections. By UDP up to 32 look-ups share a socket, and more if
//!   the limit is reached; beyond half of these limits a query is retransmitted from its old port. A look-up without any
//!   socket is refused. Below 3,400 files a single client has fewer than 500 sockets, which a log line at the start
//!   reports: raise the hard limit (`ulimit -Hn`, or `LimitNOFILE` of systemd).
//! - By TCP and TLS an upstream gets one query at a time on each connection. If a query has waited for 100 ms, the next
//!   one is sent over the same connection as a trial, at most every 10 s. Once an upstream has answered a later query
//!   first, up to 8 queries share a connection (RFC 7766), until a shared one is silent for 300 ms. An upstream such as
//!   CoreDNS, which answers in order, would let each query wait for the slowest one before it.
//! - Host names in **TO** are resolved once after the start, in the background; a failure is repeated until it
//!   succeeds. lb-linker isn't to resolve them itself: *resolver* with listeners of this Corefile alone is an error, and
//!   a warning tells if resolv.conf has no other servers. A host with the address and port of an upstream before it is
//!   left out, which the log tells.
//! - Answers for targets of links are taken from the upstream with the best answer, as if *failover* named every code
//!   but NXDOMAIN and YXDOMAIN.
//! - The scope of an IPv6 address (`fe80::1%eth0`) is used, also in a file. CoreDNS drops it.
//! - An upstream that is the block's own listener is rejected; CoreDNS leaves that to *loop*.
//! - The query `. NS` is answered within 0.5 s, if need be with SERVFAIL: a CoreDNS that forwards to lb-linker uses it
//!   as a health check with a timeout of 1 s.
//! - By HTTPS, HTTP/2 is required, and up to 100 queries share a connection, or fewer if the upstream says so. An
//!   answer, also to a check, has the status 200, the type `application/dns-message` and at most 65,535 bytes; its TTLs
//!   are reduced by the header `Age` (RFC 8484 section 5.1). The host of the requests is the host name in **TO**, or for an
//!   address the name of its certificate, if one is given. CoreDNS speaks HTTP/1.1, too, follows redirects, uses the
//!   environment's proxies, checks neither status nor type, ignores `Age`, refuses a path in **TO**, and always has the
//!   address as the host.
//!
//! # Syntax
//!
//! Syntax: `forward FROM TO...`, with the options below. **FROM** is the zone to forward, `.` for all names; of a
//! network for several reverse zones only the first zone counts. **TO** is an upstream; there can be 15, and of several
//! with the same address and port the first one counts: an address with or without a port (`192.0.2.1`,
//! `[2001:db8::1]:5353`, `dns://192.0.2.1`), one with TLS (`tls://192.0.2.1`, port 853;
//! `tls://192.0.2.1%dns.example.com:853` with the name in its certificate), one with HTTPS (`https://192.0.2.1`, port
//! 443 and the path `/dns-query`; `https://192.0.2.1%dns.example.com:8443/path`), a file with `nameserver` lines
//! (`/etc/resolv.conf`; with *reload*, its changes take effect), or a host name in place of an address
//! (`https://dns.example.com`), for each of its addresses.
//!
//! | option | default | meaning |
//! |---|---|---|
//! | `except ZONES...` | | names in these zones go to the next plugin; may be repeated |
//! | `force_tcp` | | upstreams are asked by TCP. Without it a query goes on by the transport that it came by |
//! | `prefer_udp` | | queries that came by TCP are sent by UDP first, too. `force_tcp` takes precedence |
//! | `doh_method GET\|POST` | `POST` | the method of queries by HTTPS; HTTP caches keep only answers to GET |
//! | `expire DURATION` | 10s | TCP connections that were idle for this time are closed |
//! | `max_age DURATION` | 0: no limit | TCP connections older than this, at least `expire`, aren't used any more |
//! | `max_idle_conns NUMBER` | 0: 100 | idle connections to keep for each upstream |
//! | `read_timeout DURATION` | 2s | how long an upstream may take to answer; a connection has to be there within 2s. The whole query may take 5s, or this if it is longer |
//! | `max_fails NUMBER` | 2 | checks in a row that an upstream may fail before it is down. 0: no checks, none is ever down |
//! | `max_connect_attempts NUMBER` | 2 for each upstream | failed attempts for one query; 0: only the time limits. A round through the upstreams takes at least 0.1s |
//! | `max_concurrent NUMBER` | see above | concurrent look-ups, and with them each client's share; further queries get REFUSED. 0 is the default, and in CoreDNS no limit |
//! | `health_check DURATION [no_rec] [domain NAME]` | 500ms, at least 10ms | interval of the checks. `no_rec`: without RD; `domain`: asks for the name servers of this name |
//! | `policy random\|round_robin\|sequential` | `random` | the upstream that is asked first: a random one, each in turn, or the order of **TO** |
//! | `failover RCODES...` | | after an answer with such a code (`SERVFAIL`, `REFUSED`; not NOERROR) the next upstream is asked; if all give one, the last answer counts |
//! | `failfast_all_unhealthy_upstreams` | | while all upstreams are down, none is asked, and clients get SERVFAIL |
//! | `next RCODES...` | | answers with such a code (`NXDOMAIN`) are discarded, and the next *forward* line is asked, if there is one |
//! | `next_on_nodata` | | the same for NOERROR with an empty answer section |
//! | `tls [CERT KEY] [CA]` | the system's CAs | up to three PEM files: **CA** verifies the upstreams; **CERT** and **KEY** are lb-linker's own. TLS 1.2 and 1.3 |
//! | `tls_servername NAME` | the address; by HTTPS the host | the name that the certificates of all upstreams have to be valid for; not with a name after % |
//! | `source_address IP` | | the source address of queries and checks |
//! | `resolver IP[:PORT]...` | `/etc/hosts`, `/etc/resolv.conf` | the servers that resolve the host names in **TO** |
//!
//! # Examples
//!
//! The names of a cluster by TCP, names of `example.org` to no upstream, all others by TLS:
//!
//! ```text
//! . {
//!     forward cluster.local 10.96.0.10 {
//!         force_tcp
//!     }
//!     forward . tls://9.9.9.9 tls://149.112.112.112 {
//!         except example.org
//!         tls_servername dns.quad9.net
//!         health_check 5s
//!         policy sequential
//!         failover SERVFAIL REFUSED
//!     }
//! }
//! ```

pub(super) mod options;
#[cfg(test)]
mod tests;
pub(super) mod to;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hickory_proto::op::{Metadata, Query, ResponseCode};
use hickory_proto::rr::{Name, RecordType};
use tokio::time::timeout;

use super::dnstap::tap::Taps;
use super::r#loop::LoopState;
use super::setup::Setup;
use crate::dns::chain::plugin::{ChainPlugin, Next, Plugin, PluginError, PluginResult};
use crate::dns::chain::request::{Purpose, Request};
use crate::dns::chain::server::AccessRule;
use crate::dns::chain::target_check::{CheckStep, TargetCheck, TargetOutcome, Wait};
use crate::dns::corefile::CorefileError;
use crate::dns::message::ede::Ede;
use crate::dns::message::presentation::rcode_text;
use crate::dns::message::query::is_transfer;
use crate::dns::message::records::Records;
use crate::dns::message::validity::Section;
use crate::dns::message::wire::WireMessage;
use crate::dns::message::zone_set::ZoneSet;
use crate::dns::net::Protocol;
use crate::dns::upstream::bootstrap::{UpstreamAddr, known, resolve};
use crate::dns::upstream::error::ForwardError;
use crate::dns::upstream::group::{UpstreamGroup, is_good};
use crate::dns::upstream::lookup_origin::LookupOrigin;
use crate::dns::upstream::metrics::ForwardMetrics;
use crate::dns::upstream::shared_lookups::SharedLookups;
use options::{ParsedOptions, parse};
use to::note_resolvers;

const NAME: &str = "forward";

/// The time limit of a query for the root's name servers. Another forwarder sends it as a health check, and waits 1 s.
const HEALTH_CHECK_TIMEOUT: Duration = Duration::from_millis(500);

/// The plugin `forward`, for one line of the Corefile.
#[derive(Debug)]
pub(super) struct Forward {
    from: Name,
    except: ZoneSet,
    upstreams: Arc<UpstreamGroup>,
    look_ups: SharedLookups,
    /// The rcodes after which the query goes on to the next *forward* line.
    next_rcodes: Vec<ResponseCode>,
    next_on_nodata: bool,
    loop_state: Option<Arc<LoopState>>,
    taps: Option<Taps>,
}

pub(super) fn set_up(setup: &mut Setup<'_>) -> Result<(), CorefileError> {
    let metrics = setup.metrics::<ForwardMetrics>()?;
    let lines = setup.lines;
    for (number, line) in lines.iter().enumerate() {
        let parsed = parse(line, setup, Arc::clone(&metrics))?;
        let ParsedOptions { from, to, except, next, next_on_nodata, resolvers, options, addresses } = parsed;
        let upstreams = Arc::new(UpstreamGroup::new(known(&to), options));
        setup.builder.upstreams.extend(addresses);
        if to.iter().any(|to| matches!(to, UpstreamAddr::Host(..))) {
            note_resolvers(&resolvers, &to, line, setup);
            let upstreams = Arc::clone(&upstreams);
            setup.add_task(move |_, stop| resolve(upstreams, to, resolvers, stop));
        }
        // The plugin after the last line isn't `forward`.
        let is_last = number + 1 == lines.len();
        let loop_state = setup.builder.loop_state.clone();
        let forward = Forward {
            from,
            except,
            upstreams,
            look_ups: SharedLookups::default(),
            next_rcodes: if is_last { Vec::new() } else { next },
            next_on_nodata: next_on_nodata && !is_last,
            loop_state,
            taps: setup.builder.taps.clone(),
        };
        setup.add_with_access_rule(forward, ChainPlugin::new);
    }
    Ok(())
}

#[async_trait]
impl Plugin for Forward {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn serve(&self, request: &mut Request, next: Next<'_>) -> PluginResult {
        if !self.is_for(request.query.name()) {
            return next.serve(request).await;
        }
        if is_transfer(request.query.query_type()) {
            return Err(PluginError::new(ResponseCode::Refused, ""));
        }
        if self.loop_state.as_ref().is_some_and(|loop_state| loop_state.refuses(&request.query)) {
            if let Purpose::Check(check) = &request.purpose {
                check.end(TargetOutcome::Inconclusive("forwarded queries come back".to_owned()));
                return Err(PluginError::Drop);
            }
            return Err(PluginError::servfail("forwarded queries come back: see plugin/loop").with_ede(LOOP));
        }
        if let Purpose::Check(check) = &request.purpose {
            let check = Arc::clone(check);
            // Boxed, because this future is large and clients' queries don't need it.
            return Box::pin(self.check(&check, request, next)).await;
        }
        match self.look_up(request).await {
            Ok(answer) if self.passes_to_next(&answer) => next.serve(request).await,
            Ok(answer) => to_reply(request, answer),
            Err(error) => Err(failure(&error)),
        }
    }

    fn invalidate(&self, name: Option<&[u8]>) {
        self.look_ups.forget(name);
    }
}

impl AccessRule for Forward {
    fn allows_recursion(&self, _request: &Request, _query: &Query) -> Option<bool> {
        self.from.is_root().then_some(true)
    }
}

impl Forward {
    /// Returns a plugin that passes no answer on to the next line.
    pub(super) fn new(
        from: Name,
        except: ZoneSet,
        upstreams: UpstreamGroup,
        loop_state: Option<Arc<LoopState>>,
    ) -> Self {
        Self {
            from,
            except,
            upstreams: Arc::new(upstreams),
            look_ups: SharedLookups::default(),
            next_rcodes: Vec::new(),
            next_on_nodata: false,
            taps: None,
            loop_state,
        }
    }

    pub(super) fn is_for(&self, name: &Name) -> bool {
        // As in CoreDNS, `except` can't exclude the zone itself.
        (self.from.is_root() || self.from.zone_of(name))
            && (!self.except.contains(name) || self.from == *name)
    }

    async fn look_up(&self, request: &mut Request) -> Result<Arc<WireMessage>, ForwardError> {
        let (key, client) = (request.take_key(), request.quota_client());
        if let (Some(taps), None) = (&self.taps, &request.query_limiter) {
            request.query_limiter = Some(Arc::new(taps.limiter(request)));
        }
        // The next line may name the same upstreams.
        let limiter = request.query_limiter.get_or_insert_default();
        let origin = match (&request.purpose, request.protocol) {
            (Purpose::Target { .. } | Purpose::Check(_), _) => {
                // `lb_linker` already lets clients share the look-up of a target.
                let _quota = self.upstreams.admit(LookupOrigin::Target, key.is_address_or_https(), client)?;
                // Boxed, because it is larger than a client's look-up, which boxes it, too.
                let asking = Box::pin(self.upstreams.ask(&key, LookupOrigin::Target, client, limiter));
                return asking.await;
            }
            (Purpose::Client, Protocol::Udp) => LookupOrigin::Forward,
            (Purpose::Client, _) => LookupOrigin::ForwardByTcp,
        };
        let answer = self.look_ups.look_up(&self.upstreams, key, origin, client, limiter);
        let query = &request.query;
        if query.name().is_root() && query.query_type() == RecordType::NS {
            let answer = timeout(HEALTH_CHECK_TIMEOUT, Box::pin(answer));
            return answer.await.unwrap_or(Err(ForwardError::Late));
        }
        answer.await
    }

    /// Asks the upstream that a check is for.
    async fn check(&self, check: &TargetCheck, request: &mut Request, next: Next<'_>) -> PluginResult {
        let step = check.step(|| self.upstreams.addresses());
        let (address, is_first) = match step {
            CheckStep::PassOn => return next.serve(request).await,
            CheckStep::Stop => return Err(PluginError::Drop),
            CheckStep::Ask(address) => (address, true),
            CheckStep::AskAgain(address) => (address, false),
        };
        let key = check.probe().cloned().unwrap_or_else(|| request.take_key());
        let upstream = self.upstreams.find(address);
        let is_checked = upstream.is_some();
        let answer = match upstream {
            Some(upstream) => {
                let limiter = request.query_limiter.get_or_insert_default();
                self.upstreams.ask_one(upstream, &key, check, limiter).await
            }
            None if is_first => {
                check.end(TargetOutcome::Inconclusive("the upstream isn't used any more".to_owned()));
                return Err(PluginError::Drop);
            }
            None => check.wait_for(Wait::OtherUpstreams, self.look_up(request)).await,
        };
        match answer {
            Ok(answer) if check.probe().is_some() => {
                // A truncated answer shows that the upstream works, too.
                check.end(if is_good(&answer) || answer.metadata.truncation {
                    TargetOutcome::Resolved(Vec::new())
                } else {
                    TargetOutcome::NoAnswer(rcode_text(answer.metadata.response_code).into_owned())
                });
                Err(PluginError::Drop)
            }
            Ok(answer) if self.passes_to_next(&answer) => {
                if is_first {
                    check.pass_on();
                }
                next.serve(request).await
            }
            Ok(answer) => to_reply(request, answer),
            Err(error) => {
                check.end(match error {
                    error if !is_checked => TargetCheck::outcome_of_other_upstreams(error),
                    ForwardError::Busy { .. } | ForwardError::NoSocket => {
                        TargetOutcome::Inconclusive(error.to_string())
                    }
                    ForwardError::Late => check.outcome_without_reply(),
                    ForwardError::NoAnswer(why) => TargetOutcome::NoAnswer(why.to_string()),
                });
                Err(PluginError::Drop)
            }
        }
    }

    /// Returns whether the query goes on to the next *forward* line.
    fn passes_to_next(&self, answer: &WireMessage) -> bool {
        let rcode = answer.metadata.response_code;
        let no_data = rcode == ResponseCode::NoError
            && answer.count(Section::Answer) == 0
            && !answer.metadata.truncation;
        self.next_rcodes.contains(&rcode) || self.next_on_nodata && no_data
    }
}

const LOOP: Ede = Ede { code: 0, text: "forwarded queries come back" };

/// Returns the error for a client whose query no upstream has answered.
fn failure(error: &ForwardError) -> PluginError {
    match error {
        ForwardError::Busy { .. } => PluginError::new(ResponseCode::Refused, error).with_ede(Ede::BUSY),
        ForwardError::NoSocket => PluginError::new(ResponseCode::Refused, error).with_ede(Ede::NO_SOCKET),
        ForwardError::NoAnswer(_) | ForwardError::Late => PluginError::no_upstream(error),
    }
}

/// Converts an upstream's answer to a reply for this client.
///
/// # Errors
/// If the answer is truncated, and the client doesn't use UDP: only a UDP client repeats its query by TCP.
/// A truncated answer for a target is returned: *lb_linker* checks it for each client.
fn to_reply(request: &Request, answer: Arc<WireMessage>) -> PluginResult {
    let Metadata { authoritative, recursion_available, authentic_data, truncation, response_code, .. } =
        answer.metadata;
    if truncation && request.protocol != Protocol::Udp && matches!(request.purpose, Purpose::Client) {
        return Err(PluginError::servfail(Ede::TRUNCATED.text).with_ede(Ede::TRUNCATED));
    }
    let mut reply = request.reply(NAME);
    // A client without EDNS can't see the upper bits, and would misread the rest as another code.
    let expressible = response_code.high() == 0 || request.edns.is_some();
    if expressible {
        reply.metadata.response_code = response_code;
    } else {
        reply.metadata.response_code = ResponseCode::ServFail;
        // The rcode is only for this client: the upstream hasn't answered SERVFAIL.
        reply.is_cacheable = false;
    }
    reply.metadata.authoritative = authoritative;
    reply.metadata.recursion_available = recursion_available;
    // RFC 6840 sections 5.7 and 5.8: AD is only set for clients that set AD or DO.
    let understood = request.metadata.authentic_data || request.dnssec_ok();
    reply.metadata.authentic_data = authentic_data && understood;
    reply.metadata.truncation = truncation;
    reply.options = answer.extended_errors.to_vec();
    // Queries are sent in lower case: the client's spelling counts (RFC 4343 section 4.1).
    reply.records = Records::of_wire(answer, request.query.name());
    Ok(reply)
}
