//! Tells secondary servers that a zone has changed (RFC 1996).

use std::collections::{BTreeSet, HashMap};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use hickory_proto::rr::{Name, RecordType};
use parking_lot::Mutex;
use tokio::net::UdpSocket;
use tokio::sync::Semaphore;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::outgoing::More;
use super::{TransferLine, line_of};
use crate::dns::chain::server::Server;
use crate::dns::chain::zone_state::ZoneRecord;
use crate::dns::message::header::{HEADER, QUESTION_NAME};
use crate::dns::message::presentation::{lower_name_text, rcode_text};
use crate::dns::message::query::whole_wire_name;
use crate::dns::message::tsig::{self, Key, ReplyChecker, TsigError, TsigKeys};
use crate::model::line_limit::LineLimit;

/// How often the serials are looked at.
const INTERVAL: Duration = Duration::from_secs(1);
/// The minimum time between two changes of a zone that secondary servers are told of.
const PAUSE: Duration = Duration::from_secs(5);
/// How often a secondary server is told until it answers. RFC 1996 section 3.6 proposes 5 times, 60 seconds apart.
const TRIES: u32 = 5;
/// The time between the first two tries; it doubles.
const RETRY: Duration = Duration::from_secs(5);
/// How long a socket waits for the answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// The maximum number of sockets.
const MAX_SOCKETS: usize = 100;
/// The second byte of the flags: opcode NOTIFY and AA (RFC 1996 section 3.6).
const NOTIFY: u8 = 4 << 3 | 4;

/// Looks at the serials of the zones until `stop` is cancelled, and tells the secondary servers of changes.
pub(super) async fn run(
    server: Arc<Server>,
    lines: Arc<[TransferLine]>,
    keys: Option<Arc<TsigKeys>>,
    view: Option<Arc<str>>,
    stop: CancellationToken,
) {
    let mut notifier = Notifier { lines, keys, view, ..Notifier::default() };
    let mut ticks = interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while stop.run_until_cancelled(ticks.tick()).await.is_some() {
        notifier.look(&server);
    }
}

#[derive(Default)]
struct Notifier {
    lines: Arc<[TransferLine]>,
    /// The keys of *tsig*.
    keys: Option<Arc<TsigKeys>>,
    /// The view of the block.
    view: Option<Arc<str>>,
    told: HashMap<Name, Told>,
    /// The messages that aren't answered yet, by zone and secondary server.
    running: HashMap<(Name, SocketAddr), AbortHandle>,
    /// How often each secondary server was told of each zone since it has answered. A change replaces a message before it
    /// was sent `TRIES` times.
    unanswered: HashMap<(Name, SocketAddr), Arc<AtomicU32>>,
    /// Dropping it ends them.
    tasks: JoinSet<()>,
    shared: Arc<Shared>,
}

/// What the secondary servers of a zone were told last.
struct Told {
    serial: u32,
    at: Instant,
}

struct Shared {
    sockets: Semaphore,
    warnings: Mutex<LineLimit>,
}

impl Default for Shared {
    fn default() -> Self {
        Self { sockets: Semaphore::new(MAX_SOCKETS), warnings: Mutex::default() }
    }
}

impl Notifier {
    /// Begins to tell the secondary servers of zones whose serial has changed.
    fn look(&mut self, server: &Server) {
        while self.tasks.try_join_next().is_some() {}
        self.running.retain(|_, task| !task.is_finished());
        let origins = origins(server, &self.lines);
        self.told.retain(|origin, _| origins.contains(origin));
        self.unanswered.retain(|(origin, _), _| origins.contains(origin));
        for origin in origins {
            self.look_at(server, origin);
        }
    }

    fn look_at(&mut self, server: &Server, origin: Name) {
        let Some(line) = line_of(&self.lines, &origin).filter(|line| !line.to.is_empty()) else { return };
        let Some(zone) = server.transferred_zone(&origin, self.view.as_deref()) else { return };
        let now = Instant::now();
        let told = self.told.get(&origin);
        let has_pause = told.is_some_and(|told| now < told.at + PAUSE);
        let Some(serial) =
            zone.serial().filter(|serial| !has_pause && told.is_none_or(|told| told.serial != *serial))
        else {
            return;
        };
        self.told.insert(origin.clone(), Told { serial, at: now });
        let message = message(&origin, zone.soa());
        for to in &line.to {
            let source = line.source.filter(|source| source.is_ipv4() == to.is_ipv4());
            let key = self.keys.as_ref().and_then(|keys| keys.for_zone(&origin));
            let unanswered = Arc::clone(self.unanswered.entry((origin.clone(), *to)).or_default());
            let secondary = Secondary { origin: origin.clone(), to: *to, source, key, unanswered };
            let task = self.tasks.spawn(secondary.notify(message.clone(), Arc::clone(&self.shared)));
            if let Some(before) = self.running.insert((origin.clone(), *to), task) {
                before.abort();
            }
        }
    }
}

/// Returns the zones that the lines may be about.
fn origins(server: &Server, lines: &[TransferLine]) -> BTreeSet<Name> {
    let named = lines.iter().flat_map(|line| line.zones.all().iter().cloned());
    let of_block = server.blocks().map(|(zone, _)| zone.clone());
    let of_plugins = server.plugins().flat_map(|plugin| plugin.transferred_origins());
    named.chain(of_block).chain(of_plugins).map(|origin| origin.to_lowercase()).collect()
}

/// Returns the message without its id. The SOA record is a hint (RFC 1996 section 3.7).
fn message(origin: &Name, soa: Option<ZoneRecord>) -> Vec<u8> {
    let mut message = vec![0, 0, NOTIFY, 0, 0, 1, 0, u8::from(soa.is_some()), 0, 0, 0, 0];
    let fixed = [u16::from(RecordType::SOA), 1].map(u16::to_be_bytes);
    message.extend(whole_wire_name(origin));
    message.extend(fixed.as_flattened());
    if let Some(ZoneRecord { ttl, data, .. }) = soa {
        message.extend(QUESTION_NAME);
        message.extend(fixed.as_flattened());
        message.extend(ttl.to_be_bytes());
        // Two names and five numbers.
        message.extend(u16::try_from(data.len()).unwrap_or_default().to_be_bytes());
        message.extend(data);
    }
    message
}

/// Why a secondary server isn't told.
#[derive(Debug, thiserror::Error)]
enum NotifyError {
    #[error("gets no NOTIFY: it can't be sent from {0}: {1}")]
    NotSent(IpAddr, io::Error),
    #[error("doesn't answer NOTIFY: {0}")]
    NoAnswer(io::Error),
    #[error("gives an answer to NOTIFY that isn't accepted: {0}; does it have the key {1}?")]
    NotAccepted(TsigError, String),
}

struct Secondary {
    origin: Name,
    to: SocketAddr,
    source: Option<IpAddr>,
    key: Option<Arc<Key>>,
    /// The number of messages since the last answer.
    unanswered: Arc<AtomicU32>,
}

impl Secondary {
    /// Sends the message until it is answered.
    async fn notify(self, mut message: Vec<u8>, shared: Arc<Shared>) {
        let mut problem = NotifyError::NoAnswer(ErrorKind::TimedOut.into());
        // A change replaced the messages before.
        self.warn_of_silence(&shared, "doesn't answer NOTIFY");
        for wait in (0..TRIES).map(|number| RETRY * 2_u32.pow(number)) {
            let next = {
                let Ok(_socket) = shared.sockets.acquire().await else { return };
                message[..2].copy_from_slice(&rand::random::<u16>().to_be_bytes());
                let next = Instant::now() + wait;
                self.unanswered.fetch_add(1, Ordering::Relaxed);
                match timeout(ANSWER_TIMEOUT, self.exchange(&message)).await {
                    Ok(Ok(0)) => {
                        self.unanswered.store(0, Ordering::Relaxed);
                        return debug!("NOTIFY of {} to {}: answered", self.origin, self.to);
                    }
                    Ok(Ok(rcode)) => {
                        self.unanswered.store(0, Ordering::Relaxed);
                        let rcode = rcode_text(u16::from(rcode).into());
                        return self.warn(&shared, &format!("answers NOTIFY with {rcode}"));
                    }
                    Ok(Err(error)) => problem = error,
                    Err(_) => {}
                }
                next
            };
            sleep_until(next).await;
        }
        self.warn_of_silence(&shared, &problem.to_string());
    }

    /// Warns if the secondary server hasn't answered `TRIES` messages, and begins to count again.
    fn warn_of_silence(&self, shared: &Shared, what: &str) {
        if self.unanswered.load(Ordering::Relaxed) >= TRIES {
            self.unanswered.store(0, Ordering::Relaxed);
            self.warn(shared, what);
        }
    }

    /// Sends the message, and returns the rcode of the answer.
    async fn exchange(&self, message: &[u8]) -> Result<u8, NotifyError> {
        let any = if self.to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let source = self.source.unwrap_or(any);
        let bound = UdpSocket::bind((source, 0)).await;
        let socket = bound.map_err(|error| NotifyError::NotSent(source, error))?;
        // Datagrams of other addresses aren't received.
        socket.connect(self.to).await.map_err(|error| NotifyError::NotSent(source, error))?;
        let mut message = message.to_vec();
        let mut checker = self.key.clone().map(|key| ReplyChecker::sign(key, &mut message, tsig::now()));
        socket.send(&message).await.map_err(|error| NotifyError::NotSent(source, error))?;
        let mut buffer = [0; 512];
        loop {
            let length = socket.recv(&mut buffer).await.map_err(NotifyError::NoAnswer)?;
            let mut answer = buffer[..length].to_vec();
            let is_answer = length >= HEADER && answer[2] & 0xf8 == 0x80 | NOTIFY & 0xf8;
            if !is_answer || answer[..2] != message[..2] {
                continue;
            }
            if let Some(checker) = &mut checker {
                let checked = checker.check(&mut answer, tsig::now());
                checked.map_err(|error| NotifyError::NotAccepted(error, self.key_text()))?;
            }
            return Ok(answer[3] & 0x0f);
        }
    }

    fn key_text(&self) -> String {
        self.key.as_deref().map_or_else(|| "-".to_owned(), Key::name_text)
    }

    fn warn(&self, shared: &Shared, what: &str) {
        if let Some(omitted) = shared.warnings.lock().take(std::time::Instant::now()) {
            let more = More(omitted);
            warn!("zone {}: the secondary server {} {what}{more}", lower_name_text(&self.origin), self.to);
        }
    }
}

#[cfg(test)]
mod tests;
