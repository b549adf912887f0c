//! # Name
//!
//! *etcd* - answers from the keys of etcd, as SkyDNS writes them, and ExternalDNS with its provider `coredns`.
//!
//! # Description
//!
//! The key of a name is its path, from the last label on: `/skydns/org/example/www` is `www.example.org`. Its value
//! is an object in JSON with `host`, an IP address or a name, or `text`, and, if wanted, `ttl` (in seconds, 300 by
//! default), `port`, `priority` (10), `weight` (100), `mail` (for MX records), `targetstrip` and `group`. A question
//! for a name is answered from all keys below its path; only if there are none, from the key itself. CNAME and PTR
//! records have exactly this key. A label `*` or `any` in a question stands for any label.
//!
//! - A `host` that is a name is a CNAME record for A, AAAA and TXT, with what is behind it: in the zone from the keys,
//!   otherwise through the server block of the same listener that is responsible for it. SRV, MX and NS records whose
//!   `host` is an address have the name of the key, without its first `targetstrip` labels.
//! - Addresses of the zone's own name are below `apex.dns`, those of its name servers below `ns.dns`. Without the
//!   former, a question for the zone has the addresses of all keys in it.
//! - A key with a lease has a TTL of what is left of the lease, but for `min-lease-ttl` and `max-lease-ttl`.
//!
//! The keys are listed at the start, and a watch sends their changes: no question waits for etcd, and a change ends
//! kept answers at once, also those of *cache*. Without etcd the answers stay as they are, a lease ends nothing then,
//! and the servers are tried in turn, first after 250 ms, then ever less often up to every 10 s. A watch that is
//! silent is checked every 10 s. Until the first list is complete, up to 1,000 questions wait, for 5 s after the
//! start; then they get SERVFAIL with the extended error 14 (Not Ready). `/ready` doesn't wait for it; a note says
//! what fails. Each failure is a line of the log (3 a minute), and so is each key that is left out (10 a minute).
//!
//! Only keys below the longest path that all zones of the line share are read: for example.org and example.com these
//! are all keys below `/skydns`. They take 64 MiB of memory at most, some 200,000 keys; with
//! more, the keys before stay, and the list is tried again every minute. A value has at most 64 KiB. etcd has to be
//! 3.4 or newer, with its gRPC gateway (the default). It is asked by HTTP/1.1.
//!
//! Differences from CoreDNS:
//!
//! - CoreDNS asks etcd for each question, and gives SERVFAIL without it.
//! - A key that isn't the path of a name, or whose value can't be a record, is left out, and other keys stay. A name
//!   that has only such keys gets SERVFAIL. CoreDNS gives SERVFAIL for each name above it, and no answer if a `host`
//!   isn't a name.
//! - A name with keys at or below its path exists: it is NODATA for CNAME and PTR, and so are the zone without keys,
//!   and NS without `ns.dns`. CoreDNS answers NXDOMAIN. `fallthrough` passes them on as in CoreDNS; NXDOMAIN of the
//!   next plugin then is NODATA for a name that exists.
//! - Only the zone has an SOA record. Its serial is the time of the last change, in CoreDNS the present time. CoreDNS
//!   answers with it for every name.
//! - A name with more than 4096 records of a type gets SERVFAIL, and so does one if more than 32,768 keys have to be
//!   read for it, with `*` or `any` 4096. At most 16 names outside of the zone are looked up for a question.
//! - With a **PATH** of several parts, names of keys lack all of them; in CoreDNS only the first one.
//! - The time that is left of a lease is read when it is seen first and then when it seems to be half over.
//! - Of several equal addresses in different spellings one is answered.
//! - Further lines of a block have further zones, and options of their own. CoreDNS ignores them.
//! - Other classes than IN are refused.
//!
//! # Syntax
//!
//! Syntax: `etcd [ZONES...]`. Options:
//!
//! - `path PATH`: what the keys begin with, `/skydns` by default.
//! - `endpoint URL...`: the servers of one cluster, at most 16, `http://localhost:2379` by default; the port is 2379 if
//!   there is none, and without `http://` or `https://` the option `tls` decides.
//! - `credentials USERNAME PASSWORD`: a user of etcd, which needs the permission to read all keys below the path.
//! - `tls`, `tls CA`, `tls CERT KEY` or `tls CERT KEY CA`: files in PEM. **CA** verifies the servers instead of the
//!   CAs of the system; **CERT** and **KEY** authenticate lb-linker. The gateway doesn't take the name in a
//!   certificate as a user.
//! - `min-lease-ttl TIME`, `max-lease-ttl TIME`: bounds for TTLs of keys with leases, in seconds or as a duration;
//!   30s and 24h by default, and for 0. The former wins if it is longer.
//! - `fallthrough [ZONES...]` passes names without keys to the next plugin; with **ZONES**, only names in these.
//!
//! # Examples
//!
//! ```text
//! example.org {
//!     etcd {
//!         endpoint https://192.0.2.10:2379 https://192.0.2.11:2379
//!         tls tls.crt tls.key ca.crt
//!         fallthrough
//!     }
//!     cache
//!     loadbalance
//!     forward . /etc/resolv.conf
//! }
//! ```

pub mod answer;
pub mod gateway;
pub mod index;
pub mod record;

mod client;
mod follow;
pub(super) mod keys;
mod options;
mod reply;
mod source;
#[cfg(test)]
mod tests;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use hickory_proto::op::ResponseCode;
use hickory_proto::rr::DNSClass;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

use super::setup::Setup;
use crate::dns::chain::plugin::{Next, Plugin, PluginError, PluginResult};
use crate::dns::chain::request::Request;
use crate::dns::corefile::CorefileError;
use crate::dns::message::ede::Ede;
use crate::dns::message::validity::OutdatedFlag;
use crate::dns::message::zone_set::ZoneSet;
use crate::metrics::staleness::Staleness;
use answer::{LeaseTtls, Outcome, Question, answer};
use keys::EtcdKeys;
use reply::{ZoneReply, passed};

const NAME: &str = "etcd";
/// How long questions wait for the first list after the start.
const FIRST_LIST_TIMEOUT: Duration = Duration::from_secs(5);
/// The maximum number of questions that wait.
const MAX_WAITING: usize = 1000;

#[derive(Debug)]
struct Etcd {
    keys: Arc<EtcdKeys>,
    zones: ZoneSet,
    lease_ttls: LeaseTtls,
    fallthrough: Option<ZoneSet>,
    /// When the block began to be served.
    began: Arc<OnceLock<Instant>>,
    places: Semaphore,
}

pub(super) fn set_up(setup: &mut Setup<'_>) -> Result<(), CorefileError> {
    let staleness = setup.metrics::<Staleness>()?;
    for line in setup.lines {
        let options::Options { zones, source, lease_ttls, fallthrough } = options::parse(line, setup)?;
        let keys = setup.context.etcds.of(source);
        let began: Arc<OnceLock<Instant>> = Arc::default();
        let (followed, begin) = (Arc::clone(&keys), Arc::clone(&began));
        let staleness = Arc::clone(&staleness);
        setup.add_task(move |_, stop| async move {
            begin.get_or_init(Instant::now);
            followed.follow(staleness, stop).await;
        });
        let places = Semaphore::new(MAX_WAITING);
        setup.add_reusable(Etcd { keys, zones, lease_ttls, fallthrough, began, places });
    }
    Ok(())
}

#[async_trait]
impl Plugin for Etcd {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn serve(&self, request: &mut Request, next: Next<'_>) -> PluginResult {
        let name = request.query.name().clone();
        let Some(zone) = self.zones.closest(&name) else { return next.serve(request).await };
        if request.query.query_class() != DNSClass::IN {
            return Err(PluginError::new(ResponseCode::Refused, ""));
        }
        if !self.keys.is_listed() && !self.wait().await {
            let why = self.keys.failure().unwrap_or_default();
            return Err(PluginError::servfail(why).with_ede(Ede::ETCD_NOT_READY));
        }
        let question = Question { zone, name: &name, qtype: request.query.query_type() };
        let (answer, outdated, serial) = self.answer(question);
        let answer = answer.map_err(|failure| PluginError::servfail(format!("etcd: {failure}")))?;
        let zone = ZoneReply { zone, serial, outdated };
        let falls = self.fallthrough.as_ref().is_some_and(|zones| zones.contains(&name));
        match answer.outcome {
            Outcome::Missing { exists } if falls => {
                let reply = passed(request, next, &zone.outdated).await?;
                // The next plugin denies a name that exists here.
                if exists && reply.metadata.response_code == ResponseCode::NXDomain {
                    return zone.reply(request, answer).await;
                }
                Ok(reply)
            }
            _ => zone.reply(request, answer).await,
        }
    }

    fn note(&self) -> Option<String> {
        self.keys.failure()
    }
}

type AnswerOfState = (Result<answer::Answer, answer::Failure>, OutdatedFlag, u32);

impl Etcd {
    /// Waits until the keys are listed, and returns whether they are.
    async fn wait(&self) -> bool {
        let until = self.began.get_or_init(Instant::now).checked_add(FIRST_LIST_TIMEOUT);
        if let (Some(until), Ok(_place)) = (until, self.places.try_acquire()) {
            let _ = timeout_at(until, self.keys.listed()).await;
        }
        self.keys.is_listed()
    }

    /// Answers a question from one state of the keys. Also returns the flag and the serial of the state.
    fn answer(&self, question: Question<'_>) -> AnswerOfState {
        let index = self.keys.index().read();
        let answer = answer(&index, self.keys.range(), self.lease_ttls, question, Instant::now());
        (answer, index.outdated().clone(), index.serial())
    }
}
