//! # Name
//!
//! *loadbalance* - changes the order of addresses in each answer, and puts preferred addresses first.
//!
//! # Description
//!
//! Most clients connect to the first address of an answer. This plugin distributes the clients:
//!
//! - `round_robin` shuffles the A and AAAA records of all sections, and the MX records; all orders are equally likely.
//! - `weighted` swaps one address with the first one, by the weights of a file, in the answer and the additional
//!   section, for queries of the types A, AAAA and SRV. The order of the others stays, and MX records aren't shuffled.
//!
//! After that, addresses in preferred networks are moved to the front. CNAME records come before addresses, because
//! some stub resolvers need this order. Errors and zone transfers stay unchanged. Without `prefer`, `round_robin`
//! doesn't shuffle an upstream's answer that is truncated for the client, unless it consists of CNAME records followed
//! by addresses of one name.
//!
//! Differences from CoreDNS: `prefer` is also allowed with `weighted`; CoreDNS 1.14 rejects that, although its manual
//! has it. The names in the file are case-insensitive (RFC 4343). `prefer` without a network is an error.
//!
//! # Syntax
//!
//! Syntax: `loadbalance [round_robin | weighted WEIGHTFILE]`; `round_robin` is the default. Options:
//!
//! - `prefer CIDR...`: networks, the most preferred first; may be repeated.
//! - `reload DURATION`, for `weighted`: the interval at which the file is checked, `30s` by default, never with `0s`.
//!   An invalid file is an error when the Corefile is read; later it is logged, and the weights stay. A missing file is
//!   an error with `0s`; otherwise all addresses have the same weight until it exists.
//!
//! The file has lines with a name, and below each name lines with an address and its weight, from 1 to 255; an address
//! that isn't there has 1. Empty lines, and lines that begin with `#`, are ignored. An address comes first with the
//! probability of its weight divided by the sum of the weights of all addresses in the answer: below `www.example.org`,
//! with `192.0.2.1 3`, `192.0.2.2 1` and `192.0.2.3 2`, three of six answers begin with 192.0.2.1.
//!
//! For example, `loadbalance weighted /etc/lb-linker/weights` with `reload 10s` and `prefer 10.9.20.0/24
//! 192.168.1.0/24`.

#[cfg(test)]
mod tests;
mod weights;

use std::mem;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use async_trait::async_trait;
use hickory_proto::op::ResponseCode;
use hickory_proto::rr::{Record, RecordType};
use ipnet::IpNet;
use rand::seq::SliceRandom;

use super::setup::Setup;
use crate::dns::chain::plugin::{Next, Plugin, PluginResult};
use crate::dns::chain::request::{Purpose, Request};
use crate::dns::corefile::{CorefileError, Directive, Token};
use crate::dns::message::query::is_transfer;
use crate::dns::message::reply::Reply;
use crate::dns::message::sections::Sections;
use weights::Weights;

const NAME: &str = "loadbalance";
const ROUND_ROBIN: &str = "round_robin";
const WEIGHTED: &str = "weighted";
const RELOAD_INTERVAL: Duration = Duration::from_secs(30);

#[derive(Debug)]
struct LoadBalance {
    policy: Policy,
    /// The preferred networks, the most preferred network first: addresses in them come first.
    preferred: Vec<IpNet>,
}

#[derive(Debug)]
enum Policy {
    RoundRobin,
    Weighted(Arc<ArcSwap<Weights>>),
}

/// The records of a section, grouped by type.
#[derive(Default)]
struct RecordGroups {
    aliases: Vec<Record>,
    addresses: Vec<Record>,
    exchangers: Vec<Record>,
    rest: Vec<Record>,
}

pub(super) fn set_up(setup: &mut Setup<'_>) -> Result<(), CorefileError> {
    let line = setup.only_line()?.clone();
    let policies = [ROUND_ROBIN, WEIGHTED].join(" or ");
    let weightfile = match line.arguments() {
        [] => None,
        [policy, rest @ ..] if policy.text == ROUND_ROBIN => match rest {
            [] => None,
            [word, ..] => {
                return Err(
                    word.error(format!("{ROUND_ROBIN} takes no argument, and here is {:?}", word.text))
                );
            }
        },
        [policy, rest @ ..] if policy.text == WEIGHTED => match rest {
            [file] => Some(file),
            [] => return Err(policy.error(format!("{WEIGHTED} needs a file with the weights"))),
            [_, word, ..] => {
                return Err(word.error(format!("{WEIGHTED} takes one file, and here is {:?}", word.text)));
            }
        },
        [word, ..] => return Err(word.unexpected(&policies)),
    };
    let Options { reload, preferred } = options(&line, weightfile.is_some())?;
    let policy = match weightfile {
        Some(file) => Policy::Weighted(weighted(setup, file, reload)?),
        None => Policy::RoundRobin,
    };
    setup.add_reusable(LoadBalance { policy, preferred });
    Ok(())
}

struct Options {
    reload: Duration,
    preferred: Vec<IpNet>,
}

fn options(line: &Directive, is_weighted: bool) -> Result<Options, CorefileError> {
    let mut options = Options { reload: RELOAD_INTERVAL, preferred: Vec::new() };
    for option in line.options() {
        option.no_block()?;
        match option.name() {
            "reload" if is_weighted => {
                options.reload = option.single_argument("a duration such as 30s")?.duration()?
            }
            "reload" => return Err(option.error(format!("reload is for {NAME} {WEIGHTED} FILE alone"))),
            "prefer" => {
                for word in option.required_arguments("networks such as 10.0.0.0/8")? {
                    options.preferred.push(word.parse("a network such as 10.0.0.0/8")?);
                }
            }
            _ => return Err(option.unknown(NAME, &["reload", "prefer"])),
        }
    }
    Ok(options)
}

/// Returns the weights of a file, and adds a task that updates them.
fn weighted(
    setup: &mut Setup<'_>,
    file: &Token,
    reload: Duration,
) -> Result<Arc<ArcSwap<Weights>>, CorefileError> {
    let path = setup.path(&file.text);
    // With a `reload` interval, a change of the file must not rebuild the block.
    let read = if reload.is_zero() { setup.read(&path) } else { std::fs::read(&path) };
    let text = match read {
        Ok(text) => Some(text),
        Err(error) if reload.is_zero() => {
            return Err(file.error(format!("{} can't be read: {error}", path.display())));
        }
        Err(error) => {
            let warning =
                format!("{} can't be read: {error}; all weights are 1 until it can be read", path.display());
            setup.builder.warnings.push(file.error(warning));
            None
        }
    };
    let weights = match &text {
        Some(text) => parse(&path, text).map_err(|error| file.error(error))?,
        None => Weights::default(),
    };
    let weights = Arc::new(ArcSwap::from_pointee(weights));
    if !reload.is_zero() {
        let weights = Arc::clone(&weights);
        setup.add_task(move |_, stop| async move {
            stop.run_until_cancelled(weights::follow(&path, reload, text, &weights)).await;
        });
    }
    Ok(weights)
}

/// Parses a file; an error contains the path and the line.
fn parse(path: &Path, text: &[u8]) -> Result<Weights, String> {
    Weights::parse(text).map_err(|(line, message)| format!("{}:{line}: {message}", path.display()))
}

#[async_trait]
impl Plugin for LoadBalance {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn serve(&self, request: &mut Request, next: Next<'_>) -> PluginResult {
        let mut reply = next.serve(request).await?;
        let qtype = request.query.query_type();
        if reply.metadata.response_code == ResponseCode::NoError && !is_transfer(qtype) {
            if self.only_shuffles()
                && let Some(addresses) = reply.records.shuffle_wire()
            {
                if let Some(validity) = &mut reply.validity {
                    validity.shuffled |= addresses > 1;
                }
                return Ok(reply);
            }
            // A truncated answer isn't decoded to shuffle it: the client asks for the whole answer by TCP.
            if self.only_shuffles()
                && matches!(request.purpose, Purpose::Client)
                && reply.records.has_longer_answer_than(request.limit())
            {
                reply.validity = None;
                return Ok(reply);
            }
            self.restrict_reuse(&mut reply);
            match &self.policy {
                Policy::RoundRobin => reply.records.all_mut().into_iter().for_each(shuffle),
                Policy::Weighted(weights) => put_weighted_first(&weights.load(), qtype, &mut reply),
            }
            if !self.preferred.is_empty() {
                prefer(&self.preferred, &mut reply.records.answers);
                prefer(&self.preferred, &mut reply.records.additionals);
            }
        }
        Ok(reply)
    }
}

impl LoadBalance {
    /// Returns whether this plugin only shuffles addresses and mail exchangers.
    fn only_shuffles(&self) -> bool {
        matches!(self.policy, Policy::RoundRobin) && self.preferred.is_empty()
    }

    /// Sets whether the response cache may reuse an answer, and whether each reuse shuffles the addresses. A reuse is
    /// possible if this plugin leaves the answer unchanged, or only shuffles its addresses.
    fn restrict_reuse(&self, reply: &mut Reply) {
        let addresses = reply.records.answers.iter().filter(|record| is_address(record)).count();
        let first = reply.records.answers.len() - addresses;
        let (others, last) = reply.records.answers.split_at(first);
        let in_order = last.iter().all(is_address)
            && others.iter().all(|record| record.record_type() == RecordType::CNAME)
            && reply.records.additionals.is_empty()
            && !reply.records.authorities.iter().any(is_address);
        // A single record has only one order.
        let is_single = reply.records.answers.len() <= 1 && reply.records.additionals.len() <= 1;
        match &mut reply.validity {
            Some(validity) if in_order && self.only_shuffles() => validity.shuffled |= addresses > 1,
            Some(_) if is_single || (in_order && addresses <= 1) => {}
            validity => *validity = None,
        }
    }
}

/// Shuffles the addresses and the mail exchangers of a section.
fn shuffle(section: &mut Vec<Record>) {
    let mut parts = RecordGroups::of(section);
    let mut random = rand::rng();
    parts.addresses.shuffle(&mut random);
    parts.exchangers.shuffle(&mut random);
    let RecordGroups { aliases, addresses, exchangers, rest } = parts;
    *section = [aliases, rest, addresses, exchangers].into_iter().flatten().collect();
}

/// Puts an address first, chosen by the weights.
fn put_weighted_first(weights: &Weights, qtype: RecordType, reply: &mut Reply) {
    if !matches!(qtype, RecordType::A | RecordType::AAAA | RecordType::SRV) {
        return;
    }
    let Sections { answers, additionals, .. } = &mut *reply.records;
    for section in [answers, additionals] {
        if section.iter().any(is_address) {
            let RecordGroups { aliases, mut addresses, exchangers, rest } = RecordGroups::of(section);
            let first = weights.choose(&addresses, &mut rand::rng());
            addresses.swap(0, first);
            *section = [aliases, rest, addresses, exchangers].into_iter().flatten().collect();
        }
    }
}

/// Puts addresses in the networks before the other addresses, in the order of the networks.
fn prefer(networks: &[IpNet], section: &mut Vec<Record>) {
    let RecordGroups { aliases, mut addresses, exchangers, rest } = RecordGroups::of(section);
    addresses.sort_by_key(|record| {
        let ip = record.data.ip_addr();
        let place = networks.iter().position(|network| ip.is_some_and(|ip| network.contains(&ip)));
        place.unwrap_or(networks.len())
    });
    *section = [aliases, addresses, exchangers, rest].into_iter().flatten().collect();
}

fn is_address(record: &Record) -> bool {
    record.data.ip_addr().is_some()
}

impl RecordGroups {
    /// Moves the records out of a section.
    fn of(section: &mut Vec<Record>) -> Self {
        let mut parts = Self::default();
        for record in mem::take(section) {
            let part = match record.record_type() {
                RecordType::CNAME => &mut parts.aliases,
                RecordType::A | RecordType::AAAA => &mut parts.addresses,
                RecordType::MX => &mut parts.exchangers,
                _ => &mut parts.rest,
            };
            part.push(record);
        }
        parts
    }
}
