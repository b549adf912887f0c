//! # Name
//!
//! *dnstap* - sends queries and answers to a collector, in the format of [dnstap](https://dnstap.info).
//!
//! # Description
//!
//! Each query of a client that reaches the block is a message CLIENT_QUERY, and what the client gets is a
//! CLIENT_RESPONSE. Each query that *forward* sends to an upstream is a FORWARDER_QUERY, and its answer a
//! FORWARDER_RESPONSE. A collector, or sink, takes them over a connection of Frame Streams (`dnstap -u
//! /run/dnstap.sock` of golang-dnstap is one).
//!
//! Messages wait in a queue, which never delays an answer: what finds no room is dropped, counted in
//! `lb_linker_dns_dnstap_messages_dropped_total`, and logged at most every 10 s. While a sink can't be reached, a new
//! connection is tried after 0.1 to 10 s. When the block or the process ends, the sink has a second to take the rest;
//! after a reload, messages of queries that are answered more than 0.2 s later than the block ends are dropped. As every
//! query has its messages, answers of this block aren't kept in wire form, which makes them slower.
//!
//! Several blocks need different addresses for `dnstap listen`: the address belongs to the first one, and the others
//! send nothing and say so in the log.
//!
//! Differences from CoreDNS:
//!
//! - Messages wait while there is no connection; CoreDNS drops them. The queue also has a limit of 16 MiB for each
//!   10,000 messages, and each sink of `dnstap listen` has one of its own.
//! - An answer without records that reports an error, such as SERVFAIL because no upstream answers, has its
//!   CLIENT_RESPONSE, too. lb-linker's own look-ups, for targets of links for instance, have no messages of clients,
//!   and the checks of targets have none at all.
//! - With `full`, a client's messages are those on the wire. A FORWARDER_QUERY has the query to the upstream, with its
//!   id if there is an answer, where CoreDNS repeats the client's query; a FORWARDER_RESPONSE lacks the OPT record,
//!   unless it has an extended error.
//! - Equal queries of several clients are one query to an upstream, with one pair of messages. Attempts by UDP and then
//!   by TCP are one pair, too. The protocol of upstreams by TLS is TCP; CoreDNS names UDP.
//! - A sink of `dnstap listen` misses the messages of some 0.3 s when the Corefile is reloaded: it is disconnected, and
//!   connects again.
//! - Of a zone transfer, only the first message is a CLIENT_RESPONSE. Without *transfer* in the block, a transfer
//!   has no messages.
//!
//! # Syntax
//!
//! Syntax: `dnstap SOCKET [full [WRITEBUFFER [QUEUE]]]` connects to a sink; `dnstap listen SOCKET [full]` lets up to 16
//! sinks connect. The plugin may be repeated. **SOCKET** is a path, with or without `unix://`, `tcp://HOST:PORT` or
//! `tls://HOST:PORT`; with `listen`, HOST may be left out. The certificate of a sink is verified with the CAs of the
//! system. `full` adds the DNS message in wire form. **WRITEBUFFER** is the size of the kernel's send buffer
//! in MiB (1 to 1024), if the kernel allows it; **QUEUE** is how many times 10,000 messages may wait (1 to 4096).
//! Options:
//!
//! - `identity TEXT`: the name of this server; by default its host name.
//! - `version TEXT`: its version; by default `lb-linker-` and the version.
//! - `extra TEXT`: the field *extra*, with the placeholders of [*log*](#log), also `{/LABEL}`. Those about the answer
//!   are `-`.
//! - `skipverify`: the sink's certificate isn't verified; with `listen`, a sink needs no certificate.
//! - `tls CERT KEY [CA]`: for `listen tls://`, which needs it: the server's certificate and key in PEM. With **CA**, a
//!   sink needs a certificate of it.
//!
//! # Examples
//!
//! ```text
//! . {
//!     metadata
//!     dnstap unix:///run/dnstap.sock full
//!     dnstap tls://tap.example.com:6000 {
//!         extra "upstream: {/forward/upstream}"
//!     }
//!     forward . 192.0.2.53
//! }
//! ```

pub mod frames;
mod listener;
mod message;
mod parse;
mod queue;
mod sink;
pub(super) mod tap;

use std::sync::Arc;
use std::time::SystemTime;

use arc_swap::ArcSwap;
use async_trait::async_trait;

use super::setup::Setup;
use crate::dns::chain::plugin::{Next, Plugin, PluginError, PluginResult};
use crate::dns::chain::request::Request;
use crate::dns::corefile::CorefileError;
use parse::{Direction, Line, parse};
use queue::{DroppedMessages, Lost, queue};
use tap::{Tap, Taps};

const NAME: &str = "dnstap";
const OPTIONS: [&str; 5] = ["extra", "identity", "skipverify", "tls", "version"];

#[derive(Debug)]
struct Dnstap {
    taps: Taps,
}

pub(super) fn set_up(setup: &mut Setup<'_>) -> Result<(), CorefileError> {
    let dropped = setup.metrics::<DroppedMessages>()?;
    let lines = setup.lines;
    let mut taps = Vec::new();
    for line in lines {
        let Line { direction, is_full, queue: multiple, identity, version, extra } = parse(line, setup)?;
        let lost = Lost::new(Arc::clone(&dropped));
        let tap = Tap { is_full, identity, version, extra, queues: ArcSwap::default(), lost };
        let tap = Arc::new(tap);
        taps.push(Arc::clone(&tap));
        match direction {
            Direction::To(sink) => {
                let (sender, frames) = queue(multiple);
                tap.add(sender);
                let name = sink.endpoint.to_string();
                setup.add_task(move |_, stop| async move {
                    tokio::join!(sink.run(frames, &tap.lost, &stop), tap.lost.report(&name, &stop));
                    tap.lost.log(&name);
                });
            }
            Direction::From(sinks) => {
                let name = format!("sinks at {}", sinks.endpoint);
                setup.add_task(move |_, stop| async move {
                    tokio::join!(sinks.run(Arc::clone(&tap), &stop), tap.lost.report(&name, &stop));
                    tap.lost.log(&name);
                });
            }
        }
    }
    let taps = Taps(taps.into());
    setup.builder.taps = Some(taps.clone());
    setup.add(Dnstap { taps });
    Ok(())
}

#[async_trait]
impl Plugin for Dnstap {
    fn name(&self) -> &'static str {
        NAME
    }

    fn sees_transfers(&self) -> bool {
        true
    }

    fn reads_messages(&self) -> bool {
        self.taps.has_full()
    }

    async fn serve(&self, request: &mut Request, next: Next<'_>) -> PluginResult {
        if request.depth > 0 || request.is_internal() {
            return next.serve(request).await;
        }
        let began = SystemTime::now();
        self.taps.client_query(request, began);
        let outcome = next.serve(request).await;
        if !matches!(outcome, Err(PluginError::Drop)) {
            request.reply_observer = Some(self.taps.client_response(request, began));
        }
        outcome
    }
}

#[cfg(test)]
mod tests;
