//! A zone of primary servers, which is kept up to date.

mod on_disk;

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

use hickory_proto::rr::Name;
use parking_lot::Mutex;
use rand::RngExt;
use tokio::sync::{Notify, Semaphore};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::client::{self, ClientError};
use super::saved::{NewCopy, SavedZone};
use super::schedule::{Expiry, Failure, Schedule, Timers};
use super::source::Source;
use crate::boot_clock::{self, BootInstant, Clock};
use crate::dns::message::query::whole_wire_name;
use crate::dns::message::tsig::Key;
use crate::dns::plugins::file::zone_map::{Lack, ServedZone};
use crate::dns::zone::memory::ZoneMemory;
use crate::dns::zone::received::is_newer;
use crate::model::line_limit::LineLimit;

/// The maximum number of transfers at the same time.
const MAX_TRANSFERS: usize = 4;
/// The maximum number of them from one address: a slow server must leave room for other ones.
const MAX_TRANSFERS_OF_SERVER: usize = 2;
/// The maximum number of lines per minute about failed checks of a zone.
const FAILURE_LINES: usize = 3;

/// The zones that blocks have from primary servers: a block that is built again serves the same zones.
#[derive(Clone, Debug)]
pub struct Secondaries {
    zones: Arc<Mutex<KnownZones>>,
    transfers: Arc<Semaphore>,
    transfers_of_servers: Arc<Mutex<HashMap<IpAddr, Arc<Semaphore>>>>,
    memory: ZoneMemory,
    /// Where copies of zones are kept; `None` to keep none.
    directory: Option<Arc<Path>>,
    clock: Clock,
    /// The number of the configuration that is set up.
    set_up: u64,
}

/// Zones by their origins.
type KnownZones = HashMap<Name, Vec<Weak<SecondaryZone>>>;

#[derive(Debug)]
pub(super) struct SecondaryZone {
    served: Arc<ServedZone>,
    primaries: Box<[SocketAddr]>,
    place: Mutex<Place>,
    /// The source of the zone that is served, if that is of the primary servers before a change of the Corefile. It is
    /// served until one of the new ones sends the zone, with whatever serial.
    inherited: Mutex<Option<Source>>,
    /// The configuration with which the zone was made.
    made_for: u64,
    /// The newest configuration that has a block with the zone.
    wanted_by: AtomicU64,
    /// Held by the task that keeps the zone up to date: several blocks may have the zone.
    state: tokio::sync::Mutex<State>,
    expiry: Mutex<Expiry>,
    /// Wakes the task after NOTIFY.
    notified: Notify,
    /// Wakes the task when the zone has expired.
    expired: Notify,
    /// The primary server that has sent the last NOTIFY.
    notifier: Mutex<Option<IpAddr>>,
}

/// Where the zone is answered, and where its copy is kept.
#[derive(Clone, Debug)]
struct Place {
    source: Source,
    saved: Option<SavedZone>,
}

#[derive(Debug)]
struct State {
    schedule: Schedule,
    /// Whether the copy on disk is the zone that is served.
    is_saved: bool,
    /// Whether the copy seems to be of the future: each start would count its age from then.
    is_of_future: bool,
    /// Why it isn't saved, if that was logged.
    unsaved: Option<String>,
    /// What is to be logged about the copy that the zone was read from, once a block follows the zone.
    restored: Option<String>,
    /// The earliest time of a transfer that is only for the copy.
    save_from: BootInstant,
    /// The text about the last check, if it failed.
    failure: Option<String>,
    lines: LineLimit,
}

/// What a block keeps a zone up to date with.
#[derive(Clone, Debug)]
pub(super) struct Following {
    pub(super) secondaries: Secondaries,
    /// Signs the questions, and checks the answers.
    pub(super) key: Option<Arc<Key>>,
}

/// What a primary server has said.
enum Checked {
    Current,
    /// The zone was sent after the question at `asked`.
    Sent {
        asked: BootInstant,
        before: Option<u32>,
        copy: Option<NewCopy>,
    },
}

impl Checked {
    fn asked(&self) -> Option<BootInstant> {
        match self {
            Self::Current => None,
            Self::Sent { asked, .. } => Some(*asked),
        }
    }
}

// === impl Secondaries ===

impl Default for Secondaries {
    fn default() -> Self {
        Self::with_clock(boot_clock::now)
    }
}

impl Secondaries {
    pub(super) fn with_clock(clock: Clock) -> Self {
        let transfers = Arc::new(Semaphore::new(MAX_TRANSFERS));
        Self {
            zones: Arc::default(),
            transfers,
            transfers_of_servers: Arc::default(),
            memory: ZoneMemory::default(),
            directory: None,
            clock,
            set_up: 0,
        }
    }

    /// Returns the same zones, for the set-up of a new configuration.
    pub(crate) fn for_set_up(&self) -> Self {
        static NUMBERS: AtomicU64 = AtomicU64::new(1);
        Self { set_up: NUMBERS.fetch_add(1, Ordering::Relaxed), ..self.clone() }
    }

    /// Returns the limit of transfers from a server.
    fn transfers_of(&self, primary: SocketAddr) -> Arc<Semaphore> {
        let mut servers = self.transfers_of_servers.lock();
        servers.retain(|_, transfers| Arc::strong_count(transfers) > 1);
        let new = || Arc::new(Semaphore::new(MAX_TRANSFERS_OF_SERVER));
        Arc::clone(servers.entry(primary.ip().to_canonical()).or_insert_with(new))
    }

    /// Keeps copies of the zones beside a file.
    pub(crate) fn keep_beside(&mut self, file: &Path) {
        let mut directory = file.as_os_str().to_owned();
        directory.push(".zones");
        self.directory = Some(PathBuf::from(directory).into());
    }

    /// Returns the zone of primary servers. If no block has it, it is taken from the zone that it replaces, or from its copy
    /// on disk; then also returns what is wrong with the copy.
    pub(super) fn zone(
        &self,
        origin: Name,
        primaries: Box<[SocketAddr]>,
        source: Source,
    ) -> (Arc<SecondaryZone>, Option<String>) {
        let mut zones = self.zones.lock();
        if zones.len() == zones.capacity() {
            zones.retain(|_, zones| zones.iter().any(|zone| zone.strong_count() > 0));
        }
        let of_origin = zones.entry(origin.clone()).or_default();
        of_origin.retain(|zone| zone.strong_count() > 0);
        let known: Vec<Arc<SecondaryZone>> = of_origin.iter().filter_map(Weak::upgrade).collect();
        known.iter().for_each(|zone| zone.give_back(&source, self.set_up));
        let same = known.iter().find(|zone| zone.primaries == primaries && zone.is_for(&source));
        match same {
            Some(same) => {
                same.wanted_by.store(self.set_up, Ordering::Relaxed);
                (Arc::clone(same), None)
            }
            None => {
                let (zone, problem) = self.new_zone(origin, primaries, source, &known);
                let zone = Arc::new(zone);
                of_origin.push(Arc::downgrade(&zone));
                (zone, problem)
            }
        }
    }

    /// Returns a zone that no block has. `known` are the zones with the same origin.
    fn new_zone(
        &self,
        origin: Name,
        primaries: Box<[SocketAddr]>,
        source: Source,
        known: &[Arc<SecondaryZone>],
    ) -> (SecondaryZone, Option<String>) {
        let is_wanted = |content: &Source| {
            let has = |zone: &Arc<SecondaryZone>| zone.place().source.has_same_servers(content);
            known.iter().any(|zone| zone.wanted_by.load(Ordering::Relaxed) == self.set_up && has(zone))
        };
        // Blocks with other listeners or another view may have another version of the zone, which isn't for the clients
        // of this one. What another block of the configuration has from its servers is that block's.
        let accepts = |content: &Source| {
            content.has_same_servers(&source) || content.has_same_listeners(&source) && !is_wanted(content)
        };
        let newest = |is_own| {
            let is_former =
                |content: Source| content.has_same_servers(&source) == is_own && accepts(&content);
            known.iter().rev().find(|zone| is_former(zone.content()))
        };
        let former = newest(true).or_else(|| newest(false));
        let place_of_former = former.map(|former| former.place());
        let place_of_former = place_of_former.filter(|place| place.source.has_same_listeners(&source));
        let of_former = place_of_former.and_then(|place| place.saved).map(|saved| saved.of_source(source));
        let place = of_former.map(|saved| (saved, true));
        let (saved, is_usable) = place.or_else(|| self.saved(&origin, source, known, &accepts)).unzip();
        let mut zone = SecondaryZone {
            served: Arc::new(ServedZone::new(origin, Lack::Transfer)),
            primaries,
            place: Mutex::new(Place { source, saved }),
            inherited: Mutex::default(),
            made_for: self.set_up,
            wanted_by: AtomicU64::new(self.set_up),
            state: tokio::sync::Mutex::new(State {
                schedule: Schedule::new((self.clock)()),
                is_saved: false,
                is_of_future: false,
                unsaved: None,
                restored: None,
                save_from: (self.clock)(),
                failure: None,
                lines: LineLimit::new(FAILURE_LINES),
            }),
            expiry: Mutex::default(),
            notified: Notify::new(),
            expired: Notify::new(),
            notifier: Mutex::default(),
        };
        let problem = match former {
            Some(former) => {
                zone.take_over(former);
                None
            }
            None if is_usable == Some(true) => zone.restore(self).err(),
            None => None,
        };
        (zone, problem)
    }
}

// === impl SecondaryZone ===

impl SecondaryZone {
    fn place(&self) -> Place {
        self.place.lock().clone()
    }

    /// Returns the source of the zone that is served.
    fn content(&self) -> Source {
        let inherited = *self.inherited.lock();
        inherited.unwrap_or_else(|| self.place.lock().source)
    }

    /// Returns whether a block with this source may have the zone.
    fn is_for(&self, source: &Source) -> bool {
        let is_shared = self.inherited.lock().is_none_or(|former| former.has_same_listeners(source));
        is_shared && self.place.lock().source.has_same_servers(source)
    }

    /// Serves what another zone serves.
    fn take_over(&mut self, former: &Self) {
        *self.expiry.get_mut() = former.expiry.lock().clone();
        // Held, because `former` may be about to serve another zone.
        let inherited = former.inherited.lock();
        let content = inherited.unwrap_or_else(|| former.place.lock().source);
        let Some(zone) = former.served.zone() else { return };
        drop(inherited);
        let is_own = content.has_same_servers(&self.place.get_mut().source);
        *self.inherited.get_mut() = (!is_own).then_some(content);
        self.served.serve(zone);
    }

    /// Before the zone is answered: gives up what it has taken over from servers that another block of the same
    /// configuration has.
    fn give_back(&self, source: &Source, set_up: u64) {
        let is_new = self.made_for == set_up;
        let mut inherited = self.inherited.lock();
        if inherited.take_if(|former| is_new && former.has_same_servers(source)).is_some() {
            self.served.take_back();
            *self.expiry.lock() = Expiry::default();
        }
    }

    pub(super) fn served(&self) -> &Arc<ServedZone> {
        &self.served
    }

    /// Returns whether an address is that of a primary server.
    pub(super) fn is_primary(&self, ip: IpAddr) -> bool {
        self.primaries.iter().any(|primary| primary.ip().to_canonical() == ip.to_canonical())
    }

    /// Notes NOTIFY from a primary server. Until the zone is checked, further ones have no effect.
    pub(super) fn notify(&self, primary: IpAddr) {
        *self.notifier.lock() = Some(primary.to_canonical());
        self.notified.notify_one();
    }

    /// Keeps the zone up to date for a block with this source until `stop` is cancelled.
    pub(super) async fn follow(
        self: Arc<Self>,
        following: Following,
        source: Source,
        stop: CancellationToken,
    ) {
        let Some(mut state) = stop.run_until_cancelled(self.state.lock()).await else { return };
        // This is never given up: the next block would settle at the same time.
        self.settle(&mut state, &following.secondaries, source).await;
        let endless = async {
            // Another block may have the servers of the copy, and the zone was given back.
            if let Some(text) = state.restored.take().filter(|_| self.served.zone().is_some()) {
                info!("{text}");
            }
            if std::mem::take(&mut state.is_of_future) {
                self.confirm_copy(&mut state).await;
            }
            loop {
                self.next(&mut state, &following).await;
            }
        };
        stop.run_until_cancelled(endless).await;
    }

    /// Waits for the next event of the zone, and deals with it.
    async fn next(&self, state: &mut State, following: &Following) {
        let clock = following.secondaries.clock;
        let event = async {
            if state.schedule.is_due(clock()) {
                return self.check(state, following).await;
            }
            tokio::select! {
                () = sleep(state.schedule.pause(clock())) => {}
                () = self.notified.notified() => state.schedule.notify(clock()),
                () = self.expired.notified() => state.schedule.expire(clock()),
            }
        };
        tokio::select! {
            biased;
            never = self.expire(clock) => match never {},
            () = event => {}
        }
    }

    /// Stops serving the zone when it expires, also during a check.
    async fn expire(&self, clock: Clock) -> Infallible {
        loop {
            let now = clock();
            if self.expiry.lock().has_come(now) {
                self.served.withdraw(Lack::Expired);
                self.expired.notify_one();
                let origin = self.served.origin();
                error!("zone {origin}: it has expired, because no primary server has confirmed it in time");
            }
            let pause = self.expiry.lock().pause(now);
            sleep(pause).await;
        }
    }

    /// Asks the primary servers in turn, the sender of NOTIFY first, until one has the zone.
    async fn check(&self, state: &mut State, following: &Following) {
        let notifier = self.notifier.lock().take();
        let is_notifier = |primary: &&SocketAddr| Some(primary.ip().to_canonical()) == notifier;
        let (first, rest): (Vec<&SocketAddr>, Vec<_>) = self.primaries.iter().partition(is_notifier);
        let (mut errors, mut failure) = (Vec::new(), Failure::NoAnswer);
        for primary in first.into_iter().chain(rest) {
            let asked = (following.secondaries.clock)();
            match self.ask(*primary, state, following).await {
                Ok(checked) => {
                    let asked = checked.asked().unwrap_or(asked);
                    if let Some(zone) = self.served.zone() {
                        let now = (following.secondaries.clock)();
                        let timers = Timers::of(&zone);
                        self.expiry.lock().confirm(asked, timers.expire);
                        state.schedule.confirm(now, timers, jitter());
                        if let Checked::Sent { .. } = checked {
                            state.save_from = now + timers.refresh;
                        }
                    }
                    return self.confirmed(state, *primary, checked).await;
                }
                Err(error) => {
                    if error.failure() == Failure::RefusedZone {
                        failure = Failure::RefusedZone;
                    }
                    errors.push(format!("{primary}: {error}"));
                }
            }
        }
        let zone = self.served.zone();
        let timers = zone.as_deref().map(Timers::of);
        state.schedule.fail((following.secondaries.clock)(), failure, timers, jitter());
        let stays = if zone.is_some() { "the zone before stays: " } else { "" };
        let text = stays.to_owned() + &errors.join("; ");
        if state.failure.as_ref() != Some(&text) && state.lines.take(Instant::now()).is_some() {
            warn!("zone {}: {text}", self.served.origin());
            state.failure = Some(text);
        }
    }

    /// Asks a primary server, and serves the zone that it has if that is newer.
    async fn ask(
        &self,
        primary: SocketAddr,
        state: &mut State,
        following: &Following,
    ) -> Result<Checked, ClientError> {
        let Following { secondaries, key } = following;
        let origin = whole_wire_name(self.served.origin());
        let before = self.served.zone().map(|zone| zone.serial());
        let own = before.filter(|_| self.inherited.lock().is_none());
        let check = |theirs| match own {
            Some(own) if own == theirs => Ok(false),
            Some(own) if !is_newer(theirs, own) => Err(ClientError::Older { theirs, own }),
            _ => Ok(true),
        };
        if own.is_some() && !check(client::serial(primary, &origin, key.clone()).await?)? {
            let is_saved = state.is_saved || self.place.lock().saved.is_none();
            if is_saved || (secondaries.clock)() < state.save_from {
                return Ok(Checked::Current);
            }
        }
        let of_server = secondaries.transfers_of(primary);
        // The semaphores are never closed.
        let _permits = (of_server.acquire().await, secondaries.transfers.acquire().await);
        let copy = self.new_copy(state).await;
        let asked = (secondaries.clock)();
        let memory = secondaries.memory.replacing(self.served.zone().map_or(0, |zone| zone.bytes()));
        let (zone, copy) = client::transfer(primary, &origin, key.clone(), copy, memory).await?;
        if check(zone.serial()).map_err(|older| ClientError::Begun(Box::new(older)))? {
            let mut inherited = self.inherited.lock();
            self.served.serve(zone);
            *inherited = None;
        }
        Ok(Checked::Sent { asked, before, copy })
    }

    /// Logs what a primary server has said, and keeps the zone on disk.
    async fn confirmed(&self, state: &mut State, primary: SocketAddr, checked: Checked) {
        let origin = self.served.origin();
        let had_failed = state.failure.take().is_some();
        match checked {
            Checked::Current => {
                if had_failed {
                    info!("zone {origin}: {primary} answers again, and the zone hasn't changed");
                }
                self.confirm_copy(state).await;
            }
            Checked::Sent { before, copy, .. } => {
                self.save(state, copy).await;
                if let Some(zone) = self.served.zone().filter(|zone| Some(zone.serial()) != before) {
                    let before = before.map_or("none".to_owned(), |before| before.to_string());
                    let (serial, records) = (zone.serial(), zone.number_of_records());
                    info!("zone {origin}: serial {before} → {serial}, {records} records from {primary}");
                }
            }
        }
    }
}

/// Returns the factor of a pause, so that many zones aren't checked at the same time.
fn jitter() -> f64 {
    rand::rng().random_range(0.9..=1.1)
}

#[cfg(test)]
mod tests;
