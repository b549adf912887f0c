//! What connections share, and who gets how much of it: nobody may take so much that there is
//! nothing left for others.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures::future::{AbortHandle, AbortRegistration};
use nix::sys::resource::{Resource, getrlimit};
use tracing::warn;

use crate::dns::unmapped;
use crate::metrics::Metrics;

/// Connections at once, and never more than half of the files that the process may have open: the
/// upstream, the API server and the probes need some too.
const MAX_CONNECTIONS: usize = 10_000;
/// Connections of one client address at once. A NodeLocal cache is one client, and needs a
/// connection for each question that is under way.
///
/// An IPv6 client is an address, too, and not a /64: in a cluster a /64 is a subnet full of nodes,
/// or all Pods of a node. Whoever has a whole /64 to themselves can close others' idle connections,
/// but lock nobody out.
const MAX_OF_A_CLIENT: usize = 1000;
/// Questions that are under way beside the first of each connection. More than the upstream takes
/// at once.
const MAX_WAITING: usize = 4096;
/// Bytes of big answers that clients haven't read yet.
const MAX_UNREAD: usize = 32 << 20;
/// Up to here an answer isn't big: those are bounded by their number.
const SMALL: usize = 4096;
/// How often it is said that there are too many.
const QUIET: Duration = Duration::from_secs(60);

/// The places for connections of all listeners.
#[derive(Debug)]
pub struct Places {
    metrics: Arc<Metrics>,
    max_connections: usize,
    state: Mutex<State>,
    unread: AtomicUsize,
}

#[derive(Debug, Default)]
struct State {
    open: usize,
    waiting: usize,
    clients: HashMap<IpAddr, Client>,
    /// The connections that wait for their clients, those that have waited longest first.
    idle: BTreeMap<u64, Idle>,
    next_turn: u64,
    /// Not said yet.
    refused: u64,
    evicted: u64,
    said: Option<Instant>,
}

#[derive(Debug, Default)]
struct Client {
    connections: usize,
    waiting: usize,
}

#[derive(Debug)]
struct Idle {
    client: IpAddr,
    connection: AbortHandle,
}

impl Places {
    /// Returns the places of a process, as many as its limit of open files allows now.
    #[must_use]
    pub fn new(metrics: Arc<Metrics>) -> Self {
        let files = getrlimit(Resource::RLIMIT_NOFILE)
            .map_or(usize::MAX, |(soft, _)| soft.try_into().unwrap_or(usize::MAX));
        Self::with(metrics, MAX_CONNECTIONS.min(files / 2))
    }

    fn with(metrics: Arc<Metrics>, max_connections: usize) -> Self {
        Self { metrics, max_connections, state: Mutex::default(), unread: AtomicUsize::new(0) }
    }

    /// Gives a new connection a place. Where there is none, the connection that has been idle
    /// longest loses its own (RFC 7766 section 6.2.3); `None` where the client has too many, or none
    /// is idle.
    ///
    /// A connection is idle while there is no question of it to answer, so also with half a
    /// question, or in a handshake, or with an answer that isn't read.
    #[must_use]
    pub fn admit(self: &Arc<Self>, client: SocketAddr) -> Option<(Place, AbortRegistration)> {
        let client = unmapped(client).ip();
        let (connection, registration) = AbortHandle::new_pair();
        let mut state = self.lock();
        let full = state.open >= self.max_connections;
        let refused = state.clients.get(&client).is_some_and(|client| client.connections >= MAX_OF_A_CLIENT)
            || full && state.idle.is_empty();
        if refused {
            self.metrics.tcp_refused.inc();
            state.refused += 1;
        } else {
            if full && let Some((_, longest)) = state.idle.pop_first() {
                self.metrics.tcp_evicted.inc();
                state.evicted += 1;
                state.leave(longest.client);
                longest.connection.abort();
            }
            state.open += 1;
            state.clients.entry(client).or_default().connections += 1;
        }
        let news = if refused || full { state.take_news() } else { None };
        drop(state);
        if let Some((refused, evicted)) = news {
            warn!(
                "TCP: too many connections: {refused} refused and {evicted} idle ones closed since this was \
                 last said; the newest is of {client}"
            );
        }
        if refused {
            return None;
        }
        let mut place = Place { places: Arc::clone(self), client, connection, turn: Turn::Working, extra: 0 };
        place.rest();
        Some((place, registration))
    }

    /// Makes room for an answer until its client has read it.
    ///
    /// # Errors
    /// If there is too much that isn't read.
    pub fn hold(self: &Arc<Self>, bytes: Vec<u8>) -> io::Result<Answer> {
        let size = bytes.len();
        if size <= SMALL {
            return Ok(Answer { bytes, held: None });
        }
        let more = |unread: usize| Some(unread + size).filter(|sum| *sum <= MAX_UNREAD);
        match self.unread.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more) {
            Ok(_) => Ok(Answer { bytes, held: Some(Held { places: Arc::clone(self), size }) }),
            Err(_) => Err(io::Error::other("too many answers that aren't read")),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn leave(&mut self, client: IpAddr) {
        self.open -= 1;
        self.of(client, |client| client.connections -= 1);
    }

    /// Changes what is known of a client, and forgets who has nothing.
    fn of(&mut self, ip: IpAddr, change: impl FnOnce(&mut Client)) {
        let client = self.clients.entry(ip).or_default();
        change(client);
        if client.connections == 0 && client.waiting == 0 {
            self.clients.remove(&ip);
        }
    }

    fn take_news(&mut self) -> Option<(u64, u64)> {
        if self.said.is_some_and(|said| said.elapsed() < QUIET) {
            return None;
        }
        self.said = Some(Instant::now());
        Some((std::mem::take(&mut self.refused), std::mem::take(&mut self.evicted)))
    }
}

/// The place of a connection, which it has until this is dropped.
#[derive(Debug)]
pub struct Place {
    places: Arc<Places>,
    client: IpAddr,
    connection: AbortHandle,
    turn: Turn,
    /// Questions that may be under way beside the first.
    extra: usize,
}

/// Where a connection stands among those that may have to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    Idle(u64),
    Working,
    Evicted,
}

impl Place {
    /// What all connections share.
    #[must_use]
    pub fn places(&self) -> &Arc<Places> {
        &self.places
    }

    /// Says that the connection waits for its client from now on.
    pub fn rest(&mut self) {
        let places = Arc::clone(&self.places);
        let mut state = places.lock();
        self.leave_turn(&mut state);
        if self.turn == Turn::Evicted {
            return;
        }
        self.set_extra(&mut state, 0);
        let turn = state.next_turn;
        state.next_turn += 1;
        state.idle.insert(turn, Idle { client: self.client, connection: self.connection.clone() });
        self.turn = Turn::Idle(turn);
    }

    /// Says that there is a question under way.
    pub fn work(&mut self) {
        if matches!(self.turn, Turn::Idle(_)) {
            let places = Arc::clone(&self.places);
            self.leave_turn(&mut places.lock());
        }
    }

    /// Reserves a place for this many questions beside the first, or gives back those beyond.
    ///
    /// A client may have as many as are left for the others: one takes half, the next half of the
    /// rest, and whoever comes after them still finds some.
    pub fn reserve(&mut self, extra: usize) -> bool {
        if extra != self.extra {
            let places = Arc::clone(&self.places);
            let mut state = places.lock();
            let more = extra.saturating_sub(self.extra);
            let own = state.clients.get(&self.client).map_or(0, |client| client.waiting);
            if more > 0 && own + state.waiting + 2 * more > MAX_WAITING {
                return false;
            }
            self.set_extra(&mut state, extra);
        }
        true
    }

    fn set_extra(&mut self, state: &mut State, extra: usize) {
        if extra != self.extra {
            state.waiting = state.waiting - self.extra + extra;
            let had = self.extra;
            state.of(self.client, |client| client.waiting = client.waiting - had + extra);
            self.extra = extra;
        }
    }

    fn leave_turn(&mut self, state: &mut State) {
        if let Turn::Idle(turn) = self.turn {
            self.turn = if state.idle.remove(&turn).is_some() { Turn::Working } else { Turn::Evicted };
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let places = Arc::clone(&self.places);
        let mut state = places.lock();
        self.leave_turn(&mut state);
        self.set_extra(&mut state, 0);
        if self.turn == Turn::Working {
            state.leave(self.client);
        }
    }
}

/// An answer on its way to a client.
#[derive(Debug)]
pub struct Answer {
    /// The message.
    pub bytes: Vec<u8>,
    /// Its share of what may be unread.
    pub held: Option<Held>,
}

/// A share of what may be unread, until this is dropped.
#[derive(Debug)]
pub struct Held {
    places: Arc<Places>,
    size: usize,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.places.unread.fetch_sub(self.size, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(max_connections: usize) -> Arc<Places> {
        Arc::new(Places::with(Arc::new(Metrics::new().unwrap()), max_connections))
    }

    fn client(last: u8) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, last], 5353))
    }

    #[test]
    fn who_has_been_idle_longest_makes_room_and_who_works_does_not() {
        let places = places(3);
        let mut all: Vec<Place> = (1..=3).map(|last| places.admit(client(last)).unwrap().0).collect();
        // The first asks something, and the second is being answered.
        all[0].rest();
        all[1].work();
        let (newcomer, _) = places.admit(client(4)).unwrap();
        let gone = |all: &[Place]| -> Vec<bool> { all.iter().map(|p| p.connection.is_aborted()).collect() };
        assert_eq!(gone(&all), [false, false, true]);
        let (_newest, _) = places.admit(client(5)).unwrap();
        assert_eq!(gone(&all), [true, false, true]);
        assert_eq!(places.metrics.tcp_evicted.get(), 2);
        // Who is gone takes nothing with it: neither its place, which another has, nor its turn.
        all[0].rest();
        all[2].work();
        drop(all.remove(2));
        drop(all.remove(0));
        assert_eq!(places.lock().open, 3);
        drop(newcomer);
        assert_eq!(places.lock().open, 2);
    }

    #[test]
    fn a_newcomer_is_refused_only_when_all_are_at_work() {
        let places = places(2);
        let mut all: Vec<Place> = (1..=2).map(|last| places.admit(client(last)).unwrap().0).collect();
        all.iter_mut().for_each(Place::work);
        assert!(places.admit(client(3)).is_none());
        assert_eq!(places.metrics.tcp_refused.get(), 1);
        all[1].rest();
        assert!(places.admit(client(3)).is_some());
    }

    #[test]
    fn a_client_has_a_limit_of_its_own_whichever_way_its_address_is_written() {
        let places = places(10 * MAX_OF_A_CLIENT);
        let mapped: SocketAddr = "[::ffff:10.0.0.1]:5353".parse().unwrap();
        let all: Vec<_> =
            (0..MAX_OF_A_CLIENT).map(|i| places.admit([client(1), mapped][i % 2]).unwrap()).collect();
        assert!(places.admit(client(1)).is_none());
        assert!(places.admit(mapped).is_none());
        assert!(places.admit(client(2)).is_some());
        drop(all);
        assert!(places.lock().clients.is_empty());
        assert!(places.admit(client(1)).is_some());
    }

    #[test]
    fn greedy_clients_leave_room_for_the_next() {
        let places = places(100);
        let take = |place: &mut Place| {
            let had = place.extra;
            while place.reserve(place.extra + 1) {}
            place.extra - had
        };
        let mut all: Vec<Place> = (1..=4).map(|last| places.admit(client(last)).unwrap().0).collect();
        assert_eq!(take(&mut all[0]), MAX_WAITING / 2);
        assert_eq!(take(&mut all[1]), MAX_WAITING / 4);
        assert_eq!(take(&mut all[2]), MAX_WAITING / 8);
        // A second connection doesn't help a client that has its share.
        let (mut second, _) = places.admit(client(1)).unwrap();
        assert_eq!(take(&mut second), 0);
        assert!(all[0].reserve(1));
        assert!(take(&mut all[3]) >= MAX_WAITING / 4);
        all.clear();
        drop(second);
        assert_eq!(places.lock().waiting, 0);
    }

    #[test]
    fn big_answers_that_nobody_reads_have_a_bound_and_small_ones_pass() {
        let places = places(1);
        let big = || vec![0; usize::from(u16::MAX)];
        let held: Vec<Answer> = std::iter::from_fn(|| places.hold(big()).ok()).collect();
        assert_eq!(held.len(), MAX_UNREAD / usize::from(u16::MAX));
        assert!(places.hold(vec![0; SMALL]).is_ok());
        drop(held);
        assert!(places.hold(big()).is_ok());
    }
}
