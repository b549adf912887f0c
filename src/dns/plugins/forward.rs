//! # Name
//!
//! *forward* - forwards queries to upstream resolvers.
//!
//! # Description
//!
//! Queries for names in a zone go to one of the given upstreams, by UDP, TCP or TLS, and the upstream's answer goes to
//! the client with all its records, whatever their types; only a record with a malformed owner, or with a malformed
//! compressed name in its data, is left out. If an upstream doesn't answer, the next upstream is asked. If the attempts
//! are used up or 5 seconds have passed without an answer, the client gets SERVFAIL. An error code is an answer, too,
//! so no other upstream is asked, unless *failover* names the code.
//!
//! An upstream that has failed is checked, at once and then every half second until it answers; a healthy upstream
//! isn't checked. The check is a query (`. NS`) over the same transport, and any answer counts as a success, also a
//! truncated or malformed one. An upstream that has failed more checks in a row than *max_fails* allows is down and isn't asked. If all upstreams are
//! down, the checks themselves may be broken, and all upstreams are asked in random order.
//!
//! If a block has several *forward* lines, the first line in the file with a zone that contains the name answers, so
//! more specific zones have to come first. Names in none of the zones go to the next plugin.
//!
//! Differences from CoreDNS:
//!
//! - Identical concurrent queries are sent once, and all waiting clients get the answer: a popular name costs one
//!   look-up, however many clients ask. Therefore forwarded queries don't have the client's EDNS options except for DO,
//!   and always have EDNS and AD; the client sees AD, extended errors and upper bits of a response code only if it
//!   understands them.
//! - If an upstream is silent for 0.5 s, the next upstream is asked as well, and the first answer counts; by UDP, the
//!   query is also repeated from another port. So clients of a resolver with one dead upstream don't time out. A silent
//!   upstream is checked after 0.4 s, and not only after *read_timeout*. An answer that comes after *read_timeout* is
//!   still accepted as long as the query waits for other upstreams.
//! - A truncated UDP answer is requested again by TCP, which CoreDNS does only with *prefer_udp*, and a server that
//!   doesn't support EDNS is asked without EDNS: the cache can then give the whole answer to every client. A UDP answer
//!   of more than 4096 bytes, or one that ends before its last record, counts as truncated, too.
//! - If there is no whole answer by TCP within a second, the whole records of the UDP answer are the answer, and TC is
//!   set. Without answer records other upstreams are asked first. A truncated answer goes only to clients that use UDP,
//!   which then repeat the query by TCP; a client that uses TCP or TLS gets SERVFAIL. It is never kept by *cache*.
//! - One look-up sends at most 4 queries to one upstream in a second, whatever the upstream answers: repetitions,
//!   queries without EDNS and queries by TCP count. Further ones wait, or aren't sent.
//! - Of an upstream's EDNS options only extended errors are passed on: at most three, with at most 256 bytes of text in
//!   all. A reply with two OPT records, or signed with TSIG or SIG(0), counts as a failure of the upstream.
//! - A UDP socket is used for at most 128 queries and one second, for one query at a time, and a retransmission uses a
//!   new socket, which makes forging answers harder (RFC 5452). CoreDNS uses each socket until it was idle for
//!   *expire*. A UDP answer that doesn't match the query is ignored, while CoreDNS responds with FORMERR.
//! - The limits of look-ups and sockets are divided among the clients. A look-up counts for the client that it was
//!   started for until the look-up ends, even if that client has gone. A client, which is an IPv4 or IPv6 address, may
//!   have at most half of the look-ups that other clients leave free: a single client may have 500 look-ups of
//!   `max_concurrent 1000`. Further look-ups are refused. Identical queries share a look-up, which counts once. CoreDNS
//!   has no limit per client.
//! - Without *max_concurrent*, 1000 to 10,000 concurrent look-ups are allowed: a quarter of the files that the process
//!   may open. CoreDNS has no limit, and fails when it runs out of sockets. Look-ups of links' targets have a separate
//!   limit: the same number, but at most the number of sockets for targets (see below), and a tenth of that for types
//!   other than A, AAAA and HTTPS.
//! - The upstream sockets of all *forward* lines together are limited to 60 % of the files that the process may open
//!   (RLIMIT_NOFILE at the start): 30 % for names that clients ask for, 15 % for targets of links, 5 % for health
//!   checks, and 10 % stay open for later queries. Retransmissions and TCP count, too. Retransmissions
//!   for clients open new sockets only within half of these limits; beyond it, a query is retransmitted from its port.
//!   A look-up without any socket is refused. lb-linker raises its limit of open files to the hard limit. Below 3,400
//!   files a single client has fewer than 500 sockets, and a log line at the start reports it: raise the hard limit
//!   with `ulimit -Hn`, or `LimitNOFILE` in a systemd unit. An upstream keeps at most 100 idle connections and 1000 UDP
//!   sockets, unless *max_idle_conns* is set.
//! - Host names in **TO** are resolved once after the start, in the background, while lb-linker already answers; a
//!   failed resolution is repeated until it succeeds.
//! - Answers for targets of links are taken from the upstream with the best answer, as if *failover* named every code
//!   but NXDOMAIN and YXDOMAIN.
//! - The scope of an IPv6 address (`fe80::1%eth0`) is used, also in a file. CoreDNS drops the scope.
//! - An upstream that is the block's own listener is rejected; CoreDNS leaves that to *loop*.
//! - Zone transfers are refused, because their answers may have several messages.
//! - The query `. NS` is answered within 0.5 s, with SERVFAIL if no upstream has answered by then: a CoreDNS that
//!   forwards to lb-linker uses this query as a health check with a timeout of 1 s.
//! - Upstreams by HTTPS (`https://`) aren't supported, nor is *doh_method*.
//!
//! # Syntax
//!
//! ```text
//! forward FROM TO... {
//!     except ZONES...
//!     force_tcp
//!     prefer_udp
//!     expire DURATION
//!     max_age DURATION
//!     max_idle_conns NUMBER
//!     read_timeout DURATION
//!     max_fails NUMBER
//!     max_connect_attempts NUMBER
//!     max_concurrent NUMBER
//!     health_check DURATION [no_rec] [domain NAME]
//!     policy random|round_robin|sequential
//!     failover RCODES...
//!     failfast_all_unhealthy_upstreams
//!     next RCODES...
//!     next_on_nodata
//!     tls [CERT KEY] [CA]
//!     tls_servername NAME
//!     source_address IP
//!     resolver IP[:PORT]...
//! }
//! ```
//!
//! - **FROM** is the zone to forward: `.` for all names. If a network in CIDR form stands for several reverse zones,
//!   only the first zone counts.
//! - **TO** is an upstream; there can be 15: an address with or without a port (`192.0.2.1`, `[2001:db8::1]:5353`,
//!   `dns://192.0.2.1`), an address with TLS (`tls://192.0.2.1`; the port is 853, and the name in the upstream's
//!   certificate may be added: `tls://192.0.2.1%dns.example.com:853`), a file with `nameserver` lines
//!   (`/etc/resolv.conf`; with *reload*, changes of the file take effect), or a host name, for each of its addresses.
//!   Duplicate addresses count once. An upstream can't be an address that the same block listens on.
//! - `except` **ZONES...**: names in these zones go to the next plugin. The option can be repeated.
//! - `force_tcp`: upstreams are asked by TCP. Without `force_tcp`, a query that came by UDP is sent by UDP first, and a
//!   query that came by TCP or TLS is sent by TCP.
//! - `prefer_udp`: queries that came by TCP are sent by UDP first, too. `force_tcp` takes precedence.
//! - `expire` **DURATION**: TCP connections that were idle for this time are closed. The default is 10s.
//! - `max_age` **DURATION**: TCP connections older than this aren't used any more; at least `expire`. 0, the default,
//!   means no limit.
//! - `max_idle_conns` **NUMBER**: the number of idle connections, and of idle UDP sockets, to keep for each upstream.
//!   0, the default, stands for 100 connections and 1000 sockets. An unused socket is closed within two seconds.
//! - `read_timeout` **DURATION**: how long an upstream may take to answer. The default is 2s. A connection has to be
//!   established within 2s, whatever the value. The whole query may take 5s, or `read_timeout` if that is longer.
//! - `max_fails` **NUMBER**: the number of health checks in a row that an upstream may fail before it is down. The
//!   default is 2. With 0 there are no checks, and no upstream is ever down.
//! - `max_connect_attempts` **NUMBER**: the number of failed attempts for one query. The default is two for each
//!   upstream; with 0 only the time is limited. Each round through the upstreams takes at least 0.1s, and an upstream
//!   is asked at most 4 times in a second.
//! - `max_concurrent` **NUMBER**: the maximum number of concurrent look-ups. Further queries get REFUSED. A client may
//!   have at most half of the look-ups that other clients leave free; its further queries get REFUSED, too. For the
//!   default, and 0, see above.
//! - `health_check` **DURATION**: the interval between two checks. The default is 500ms; the minimum is 10ms, and
//!   shorter intervals are raised to it. With `no_rec` checks are sent without RD; with `domain` **NAME** the check
//!   asks for the name servers of this name instead of the root.
//! - `policy`: the upstream that is asked first. `random`, the default, selects a random upstream; `round_robin`
//!   selects each upstream in turn; `sequential` keeps the order of **TO**.
//! - `failover` **RCODES...**: after an answer with one of these codes (such as `SERVFAIL` or `REFUSED`) the next
//!   upstream is asked. If all upstreams give such an answer, the client gets the last answer. NOERROR isn't allowed.
//! - `failfast_all_unhealthy_upstreams`: while all upstreams are down, none is asked, and clients get SERVFAIL.
//! - `next` **RCODES...**: answers with these codes (such as `NXDOMAIN`) are discarded; the next *forward* line of the
//!   block is asked. In the last line it has no effect.
//! - `next_on_nodata`: the same for NOERROR with an empty answer section.
//! - `tls` takes up to three PEM files, relative to *root*: **CA** verifies the upstreams' certificates instead of the
//!   CAs of the system, and **CERT** and **KEY** are lb-linker's certificate and its key. TLS 1.2 and 1.3 are
//!   supported.
//! - `tls_servername` **NAME**: the name that the certificates of all upstreams have to be valid for. Without it, and
//!   without a name in **TO**, a certificate has to be valid for the address. Not allowed together with a name in
//!   **TO**.
//! - `source_address` **IP**: the source address of queries and checks.
//! - `resolver` **IP\[:PORT\]...**: the servers that resolve the host names in **TO**. By default they are resolved
//!   with `/etc/hosts` and `/etc/resolv.conf`.
//!
//! # Metrics
//!
//! - `coredns_forward_healthcheck_broken_total{}` - queries for which all upstreams were down.
//! - `coredns_forward_max_concurrent_rejects_total{}` - queries refused because of too many concurrent look-ups.
//! - `lb_linker_dns_lookups_refused_total{bound}` - refused look-ups, by limit: the share of a `client`, the limit for
//!   `all` clients, or the number of `sockets`. A log line, at most one a minute, names a client.
//! - `coredns_proxy_request_duration_seconds{proxy_name="forward", to, rcode}` - histogram of the time until the
//!   answer.
//! - `coredns_proxy_healthcheck_failures_total{proxy_name="forward", to}` - failed health checks.
//! - `coredns_proxy_conn_cache_hits_total{proxy_name="forward", to, proto}` - queries over an open connection or
//!   socket.
//! - `coredns_proxy_conn_cache_misses_total{proxy_name="forward", to, proto}` - queries over a new connection or
//!   socket.
//!
//! `to` is the upstream's address with its port, `rcode` the answer's code, and `proto` is `udp`, `tcp` or `tcp-tls`.
//!
//! # Examples
//!
//! Forward all queries to the resolvers of the machine:
//!
//! ```text
//! . {
//!     forward . /etc/resolv.conf
//! }
//! ```
//!
//! Forward the names of a cluster to its DNS by TCP, names of `example.org` to no upstream, and all other names to a
//! resolver by TLS:
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
//!     }
//! }
//! ```
//!
//! Ask the other resolvers for names that the first resolver denies:
//!
//! ```text
//! . {
//!     forward . 192.0.2.1 {
//!         next NXDOMAIN
//!     }
//!     forward . 192.0.2.2 192.0.2.3 {
//!         policy sequential
//!         failover SERVFAIL REFUSED
//!     }
//! }
//! ```

mod options;
#[cfg(test)]
mod tests;
mod to;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hickory_proto::op::{Metadata, Query, ResponseCode};
use hickory_proto::rr::{Name, RecordType};
use tokio::time::timeout;

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
use crate::dns::upstream::config::LookupOrigin;
use crate::dns::upstream::error::ForwardError;
use crate::dns::upstream::flights::SharedLookups;
use crate::dns::upstream::group::{UpstreamGroup, is_good};
use crate::dns::upstream::metrics::ForwardMetrics;
use options::{ParsedOptions, parse};

const NAME: &str = "forward";

/// The time limit of a query for the root's name servers. Another forwarder sends it as a health check, and waits 1 s.
const HEALTH_CHECK_TIMEOUT: Duration = Duration::from_millis(500);

/// The plugin `forward`, for one line of the Corefile.
#[derive(Debug)]
struct Forward {
    from: Name,
    except: ZoneSet,
    upstreams: Arc<UpstreamGroup>,
    look_ups: SharedLookups,
    /// The rcodes after which the query goes on to the next *forward* line.
    next_rcodes: Vec<ResponseCode>,
    next_on_nodata: bool,
    loop_state: Option<Arc<LoopState>>,
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
    fn is_for(&self, name: &Name) -> bool {
        // As in CoreDNS, `except` can't exclude the zone itself.
        (self.from.is_root() || self.from.zone_of(name))
            && (!self.except.contains(name) || self.from == *name)
    }

    async fn look_up(&self, request: &Request) -> Result<Arc<WireMessage>, ForwardError> {
        let (key, client) = (request.upstream_query().key(), request.quota_client());
        let origin = match (&request.purpose, request.protocol) {
            (Purpose::Target { .. } | Purpose::Check(_), _) => {
                // `lb_linker` already lets clients share the look-up of a target.
                let _quota = self.upstreams.admit(LookupOrigin::Target, key.is_address_or_https(), client)?;
                return self.upstreams.ask(&key, LookupOrigin::Target, client).await.map(Arc::new);
            }
            (Purpose::Client, Protocol::Udp) => LookupOrigin::Forward,
            (Purpose::Client, _) => LookupOrigin::ForwardByTcp,
        };
        let answer = self.look_ups.look_up(&self.upstreams, key, origin, client);
        let query = &request.query;
        if query.name().is_root() && query.query_type() == RecordType::NS {
            return timeout(HEALTH_CHECK_TIMEOUT, answer).await.unwrap_or(Err(ForwardError::Late));
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
        let key = check.probe().cloned().unwrap_or_else(|| request.upstream_query().key());
        let upstream = self.upstreams.find(address);
        let is_checked = upstream.is_some();
        let answer = match upstream {
            Some(upstream) => self.upstreams.ask_one(upstream, &key, check).await.map(Arc::new),
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
