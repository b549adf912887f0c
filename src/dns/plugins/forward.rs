//! # Name
//!
//! *forward* - passes questions on to upstream resolvers, and their answers back.
//!
//! # Description
//!
//! Questions for names in a zone go to one of the given upstreams, by UDP, TCP or TLS, and its answer goes to the
//! client as it is. An upstream that gives none has the next one asked, until an upstream has answered, the
//! attempts are used up, or 5 seconds have passed; then the client gets SERVFAIL. An answer with an error in it is
//! an answer: see *failover*.
//!
//! An upstream that has failed is checked, at once and then every half second until it answers; a healthy one
//! isn't. The check is a question (`. NS`) over the same transport, and any answer will do. An upstream that
//! has failed more checks in a row than *max_fails* allows is down: it isn't asked. When all are down, the checks
//! may be what is broken, and all are asked in random order.
//!
//! Several *forward* lines in a block are asked in the order of the file: the first whose zone the name is in
//! answers, so that smaller zones have to come first. What none of them is for goes to the next plugin.
//!
//! Differences from CoreDNS:
//!
//! - Equal questions at the same time are asked once, and the answer is given to all clients that wait: a popular name costs
//!   one look-up however many ask. So questions go out without what a client adds by EDNS but DO, and with EDNS and
//!   AD in any case; the client sees AD, extended errors and upper bits of a response code only if it understands
//!   them.
//! - An upstream that is silent for 0.5 s has the next one asked as well, and the first answer counts; by UDP, the
//!   question is repeated from another port meanwhile. The client of a resolver with one dead upstream doesn't give
//!   up then. After 0.4 s of silence it is checked, not after *read_timeout* alone. And an answer that comes after
//!   *read_timeout* is taken all the same, as long as others are waited for.
//! - An answer that was cut by UDP is asked for again by TCP, as CoreDNS does with *prefer_udp* alone, and a server
//!   that doesn't know EDNS is asked without it: the cache can then give the whole answer to every client.
//! - A UDP socket is used for 128 questions and a second at most, one at a time, and a repetition goes out from a
//!   new one, which makes forging answers harder (RFC 5452). CoreDNS uses each until it was idle for *expire*.
//!   What doesn't match the question isn't answered with FORMERR, but waited past.
//! - Look-ups and sockets are shared among clients, and a look-up counts for the client that it was begun for until it
//!   ends, also when that client has gone. A client, which is an IPv4 or IPv6 address, may hold at most half of the
//!   places that other clients don't hold: alone 500 look-ups of `max_concurrent 1000`. More are refused. Equal
//!   questions share a look-up, which counts once. CoreDNS has no bound for a client.
//! - Without *max_concurrent*, 1000 to 10,000 look-ups may be under way: a quarter of the files that the process
//!   may open. CoreDNS has no bound, and dies of too many sockets. Look-ups of what is behind the targets of links have
//!   the same number again for themselves, a tenth of it for other types than addresses.
//! - Sockets to upstreams, of all *forward* lines together, are 60 % of the files that the process may open at most
//!   (RLIMIT_NOFILE at the start): 30 % for names that clients ask for, 15 % for targets of links, 5 % for health
//!   checks, and 10 % stay open for the next question. Repeated questions and TCP count, too; while half of these
//!   sockets are in use questions are repeated from the same port. A look-up that has no socket at all is refused.
//!   lb-linker raises its limit of files to the hard one. Below 3,400 files a client alone has fewer than 500 sockets,
//!   and a line of the log says so at the start: raise the hard limit with `ulimit -Hn`, or `LimitNOFILE` in a systemd
//!   unit.
//!   An upstream keeps 100 idle connections at most, and 1000 UDP sockets, unless *max_idle_conns* says otherwise.
//! - Names behind **TO** are looked up while lb-linker answers already, until that succeeds, and not before it
//!   starts; and the answers to targets of links are taken from the upstream that gives the best one, as if
//!   *failover* named every error.
//! - The scope of an IPv6 address (`fe80::1%eth0`) counts, also in a file. In CoreDNS it is dropped.
//! - An upstream that is the block's own listener is refused; CoreDNS leaves that to *loop*.
//! - Zone transfers are refused: an answer to them isn't one message.
//! - The question `. NS` is answered within 0.5 s, with SERVFAIL if no upstream has answered by then: a CoreDNS in
//!   front that checks lb-linker by it gives up after 1 s.
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
//! - **FROM** is the zone whose names are forwarded: `.` for all. Of a network in CIDR form that stands for several
//!   reverse zones the first one counts.
//! - **TO** is an upstream, of which there can be 15: an address with or without a port (`192.0.2.1`,
//!   `[2001:db8::1]:5353`, `dns://192.0.2.1`), an address that is asked by TLS (`tls://192.0.2.1`; the port is 853,
//!   and the name in its certificate may be added: `tls://192.0.2.1%dns.example.com:853`), a file whose `nameserver`
//!   lines are taken (`/etc/resolv.conf`; when it changes, *reload* takes that up), or a host's name, for each of its
//!   addresses. An address counts once. None of them may be an address that lb-linker itself listens on.
//! - `except` **ZONES...**: names in these zones go to the next plugin. It can be there several times.
//! - `force_tcp`: upstreams are asked by TCP. Without it, a question that came by UDP is asked by UDP first, and
//!   one that came by TCP or TLS is asked by TCP.
//! - `prefer_udp`: questions that came by TCP are asked by UDP first, too. `force_tcp` outweighs it.
//! - `expire` **DURATION**: connections by TCP that weren't used for so long are closed. The default is 10s.
//! - `max_age` **DURATION**: these connections aren't used any more once they are so old; at least `expire`. 0, the
//!   default, is for no such limit.
//! - `max_idle_conns` **NUMBER**: connections, and as many UDP sockets, that are kept for each upstream while they
//!   aren't used. 0, the default, stands for 100 connections and 1000 sockets. A socket that isn't used is closed
//!   within two seconds.
//! - `read_timeout` **DURATION**: how long an upstream may take to answer. The default is 2s. A connection has to be
//!   there within 2s, whatever this says. All in all a question may take 5s, or this if it is longer.
//! - `max_fails` **NUMBER**: health checks in a row that an upstream may fail before it is down. The default is 2.
//!   With 0 there are no checks, and no upstream is ever down.
//! - `max_connect_attempts` **NUMBER**: attempts that may fail for one question. The default is two for each
//!   upstream; 0 is for no limit but the time. Each round through the upstreams takes 0.1s at least.
//! - `max_concurrent` **NUMBER**: look-ups that may be under way. A question beyond gets REFUSED. A client may hold at
//!   most half of the places that other clients don't hold; its questions beyond get REFUSED, too. For the default, and
//!   0, see above.
//! - `health_check` **DURATION**: the pause between two checks. The default is 500ms; less than 10ms stands for that.
//!   With `no_rec` they are sent without RD; `domain` **NAME** asks for the name servers of this name and not of the
//!   root.
//! - `policy`: which upstream is asked first. `random`, the default, takes any; with `round_robin` each is first in
//!   turn; `sequential` keeps to the order in which they are given.
//! - `failover` **RCODES...**: answers with these codes (such as `SERVFAIL` or `REFUSED`) have the next upstream
//!   asked. If all give one, the client gets the last. NOERROR can't be named.
//! - `failfast_all_unhealthy_upstreams`: while all upstreams are down none is asked, and clients get SERVFAIL.
//! - `next` **RCODES...**: answers with these codes (such as `NXDOMAIN`) aren't given; the next *forward* line of the
//!   block is asked. In the last line it has no effect.
//! - `next_on_nodata`: the same for NOERROR without any answer.
//! - `tls` has up to three files of PEM behind it, relative to *root*: **CA**, which checks the upstreams' certificates
//!   instead of the CAs of the system, and **CERT** and **KEY**, the certificate of lb-linker. TLS 1.2 and 1.3 are
//!   spoken.
//! - `tls_servername` **NAME**: the name that the certificates of all upstreams have to bear. Without it, and without a
//!   name in **TO**, a certificate has to bear the address. Not both.
//! - `source_address` **IP**: the address that questions and checks are sent from.
//! - `resolver` **IP\[:PORT\]...**: the servers that are asked for the addresses of names in **TO**. Without it that is done as by
//!   other programs, by `/etc/hosts` and `/etc/resolv.conf`.
//!
//! # Metrics
//!
//! - `coredns_forward_healthcheck_broken_total{}` - questions for which all upstreams were down.
//! - `coredns_forward_max_concurrent_rejects_total{}` - questions refused because too many were under way.
//! - `lb_linker_dns_lookups_refused_total{bound}` - look-ups that were refused, because of the share of a `client`,
//!   because `all` were under way, or because there were no `sockets`. One line a minute of the log names a client.
//! - `coredns_proxy_request_duration_seconds{proxy_name="forward", to, rcode}` - histogram of how long answers took.
//! - `coredns_proxy_healthcheck_failures_total{proxy_name="forward", to}` - health checks that failed.
//! - `coredns_proxy_conn_cache_hits_total{proxy_name="forward", to, proto}` - questions for which a connection was
//!   open.
//! - `coredns_proxy_conn_cache_misses_total{proxy_name="forward", to, proto}` - questions for which there was none.
//!
//! `to` is the upstream's address with its port, `rcode` the answer's code, and `proto` is `udp`, `tcp` or `tcp-tls`.
//!
//! # Examples
//!
//! Everything goes to the resolvers of the machine:
//!
//! ```text
//! . {
//!     forward . /etc/resolv.conf
//! }
//! ```
//!
//! The names of a cluster go to its DNS by TCP, names of `example.org` to no upstream, and all other names to a
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
//! What the first resolver doesn't know, the second is asked:
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
use hickory_proto::op::{Message, Metadata, Query, ResponseCode};
use hickory_proto::rr::rdata::opt::{EdnsCode, EdnsOption};
use hickory_proto::rr::{Name, RecordType};
use tokio::time::timeout;

use super::r#loop::LoopState;
use super::setup::Setup;
use crate::dns::chain::plugin::{Next, Plugin, PluginError, PluginResult};
use crate::dns::chain::request::{Purpose, Request};
use crate::dns::corefile::CorefileError;
use crate::dns::message::ede::Ede;
use crate::dns::message::presentation::names::same_spelling;
use crate::dns::message::query::is_transfer;
use crate::dns::message::reply::Reply;
use crate::dns::message::zone_set::ZoneSet;
use crate::dns::net::Protocol;
use crate::dns::upstream::bootstrap::{UpstreamAddr, known, resolve};
use crate::dns::upstream::config::LookupOrigin as Asked;
use crate::dns::upstream::error::ForwardError;
use crate::dns::upstream::flights::ForwardGroup;
use crate::dns::upstream::group::UpstreamGroup as Upstreams;
use crate::dns::upstream::metrics::ForwardMetrics;
use options::{ParsedOptions, parse};

const NAME: &str = "forward";

/// How long a query for the root's name servers waits: it is the health check of another forwarder, which waits for a
/// second.
const HEALTH_CHECK_TIMEOUT: Duration = Duration::from_millis(500);

/// A line of the Corefile.
#[derive(Debug)]
struct Forward {
    from: Name,
    except: ZoneSet,
    upstreams: Arc<Upstreams>,
    flights: ForwardGroup,
    /// What is left to the next line.
    next: Vec<ResponseCode>,
    next_on_nodata: bool,
    /// Whether what is forwarded comes back.
    looping: Option<Arc<LoopState>>,
}

pub(super) fn set_up(setup: &mut Setup<'_>) -> Result<(), CorefileError> {
    let metrics = setup.metrics::<ForwardMetrics>()?;
    let lines = setup.lines;
    for (number, line) in lines.iter().enumerate() {
        let parsed = parse(line, setup, Arc::clone(&metrics))?;
        let ParsedOptions { from, to, except, next, next_on_nodata, resolvers, options, addresses } = parsed;
        let upstreams = Arc::new(Upstreams::new(known(&to), options));
        setup.builder.upstreams.extend(addresses);
        if to.iter().any(|to| matches!(to, UpstreamAddr::Host(..))) {
            let upstreams = Arc::clone(&upstreams);
            setup.run(move |_, stop| resolve(upstreams, to, resolvers, stop));
        }
        // The plugin behind the last line is another one.
        let is_last = number + 1 == lines.len();
        let looping = setup.builder.looping.clone();
        setup.add(Forward {
            from,
            except,
            upstreams,
            flights: ForwardGroup::default(),
            next: if is_last { Vec::new() } else { next },
            next_on_nodata: next_on_nodata && !is_last,
            looping,
        });
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
        if self.looping.as_ref().is_some_and(|looping| looping.refuses(&request.query)) {
            return Err(PluginError::servfail("what is forwarded comes back: see plugin/loop").with_ede(LOOP));
        }
        match self.look_up(request).await {
            Ok(answer) if self.leaves(&answer) => next.serve(request).await,
            Ok(answer) => Ok(pass_back(request, answer)),
            Err(error) => Err(failure(&error)),
        }
    }

    fn offers_recursion(&self, _request: &Request, _query: &Query) -> Option<bool> {
        self.from.is_root().then_some(true)
    }

    fn invalidate(&self, name: Option<&[u8]>) {
        self.flights.forget(name);
    }
}

impl Forward {
    fn is_for(&self, name: &Name) -> bool {
        // As in CoreDNS the name of the zone itself can't be left out.
        (self.from.is_root() || self.from.zone_of(name)) && (!self.except.hold(name) || self.from == *name)
    }

    async fn look_up(&self, request: &Request) -> Result<Arc<Message>, ForwardError> {
        let asked = match (request.purpose, request.protocol) {
            (Purpose::Target { .. }, _) => Asked::Chase,
            (Purpose::Client, Protocol::Udp) => Asked::Forward,
            (Purpose::Client, _) => Asked::ForwardByTcp,
        };
        let answer =
            self.flights.look_up(&self.upstreams, request.question().key(), asked, request.account());
        let query = &request.query;
        if query.name().is_root() && query.query_type() == RecordType::NS {
            return timeout(HEALTH_CHECK_TIMEOUT, answer).await.unwrap_or(Err(ForwardError::Late));
        }
        answer.await
    }

    /// Returns whether the next line has to know better.
    fn leaves(&self, answer: &Message) -> bool {
        let rcode = answer.metadata.response_code;
        let no_data = rcode == ResponseCode::NoError && answer.answers.is_empty();
        self.next.contains(&rcode) || self.next_on_nodata && no_data
    }
}

/// What is forwarded comes back.
const LOOP: Ede = Ede { code: 0, text: "what is forwarded comes back" };

fn failure(error: &ForwardError) -> PluginError {
    match error {
        ForwardError::Busy { .. } => PluginError::new(ResponseCode::Refused, error).with_ede(Ede::BUSY),
        ForwardError::NoSocket => PluginError::new(ResponseCode::Refused, error).with_ede(Ede::NO_SOCKET),
        ForwardError::NoAnswer(_) | ForwardError::Late => PluginError::no_upstream(error),
    }
}

/// Returns an upstream's answer as this client's.
fn pass_back(request: &Request, answer: Arc<Message>) -> Reply {
    // Mostly no other client has waited for it.
    let answer = Arc::unwrap_or_clone(answer);
    let Metadata { authoritative, recursion_available, authentic_data, truncation, response_code, .. } =
        answer.metadata;
    let mut reply = request.reply(NAME);
    // A client without EDNS can't see the upper bits, and would take the rest for its own.
    let expressible = response_code.high() == 0 || request.edns.is_some();
    if expressible {
        reply.metadata.response_code = response_code;
    } else {
        reply.metadata.response_code = ResponseCode::ServFail;
        // For this client alone: the upstream hasn't answered SERVFAIL.
        reply.is_cacheable = false;
    }
    reply.metadata.authoritative = authoritative;
    reply.metadata.recursion_available = recursion_available;
    // RFC 6840 sections 5.7 and 5.8: only for clients that set AD or DO.
    let understood = request.metadata.authentic_data || request.dnssec_ok();
    reply.metadata.authentic_data = authentic_data && understood;
    reply.metadata.truncation = truncation;
    reply.options = errors_of(&answer);
    reply.answers = answer.answers;
    reply.authorities = answer.authorities;
    reply.additionals = answer.additionals;
    // Upstreams are asked in lower case, and the answer may have been for another client: each client gets its
    // own spelling back (RFC 4343 section 4.1).
    let name = request.query.name();
    for record in
        reply.answers.iter_mut().filter(|record| !same_spelling(&record.name, name) && record.name == *name)
    {
        record.name.clone_from(name);
    }
    reply
}

/// Returns why an upstream has no better answer (RFC 8914 section 3 has a forwarder pass that on).
fn errors_of(answer: &Message) -> Vec<EdnsOption> {
    const EDE: u16 = 15;
    let options = answer.edns.iter().flat_map(|edns| edns.options().get_all(EdnsCode::from(EDE)));
    options.cloned().collect()
}
