//! Names that aren't ours: the cache, what is under way, and the upstreams behind them.

use std::sync::Arc;
use std::time::Duration;

use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::Record;
use tokio::time::timeout;

use super::cache::{Cache, Found, Freshness, Kind};
use super::flights::{Flight, Flights, Landing};
use super::forward::{Forward, ForwardError, Purpose};
use super::memory::{Memory, STALE_TTL};
use super::question::{Key, Question};

/// How long the client of a name of ours waits for what is behind it: a CoreDNS in front gives up at
/// 2 s (RFC 8767 section 5 recommends 1.8 s).
const PATIENCE: Duration = Duration::from_millis(1800);

/// Resolves names that aren't ours.
#[derive(Debug)]
pub struct Resolver {
    forward: Arc<Forward>,
    cache: Option<Arc<Cache>>,
    flights: Flights,
    memory: Arc<Memory>,
}

/// What is known of a target.
#[derive(Debug)]
pub enum Known {
    /// What the upstream says.
    Now(Message),
    /// What it said last, because it says nothing now.
    Last(Message),
}

impl Resolver {
    /// Returns a resolver that asks `forward` and keeps the answers in `cache`, if there is one.
    #[must_use]
    pub fn new(forward: Arc<Forward>, cache: Option<Cache>) -> Self {
        Self { forward, cache: cache.map(Arc::new), flights: Flights::default(), memory: Arc::default() }
    }

    /// Resolves a name for a client that asked for it.
    ///
    /// # Errors
    /// If there is no answer.
    pub async fn resolve(&self, question: &Question) -> Result<Message, ForwardError> {
        let key = question.key();
        if let Some(found) = self.cache.as_ref().and_then(|cache| cache.get(&key)) {
            let cached = || with_ttl(&found.message, found.ttl, true);
            if found.freshness == Freshness::Fresh {
                return Ok(cached());
            }
            let flight = self.flight(question, &key, Purpose::Forward);
            // Who can't look it up now has the old answer still.
            if let (Freshness::Stale(Some(patience)), Ok(flight)) = (found.freshness, flight)
                && let Ok(Ok(message)) = timeout(patience, flight.landed()).await
                && is_news(&message)
            {
                return Ok(self.first_given(&message));
            }
            return Ok(cached());
        }
        let message = self.flight(question, &key, Purpose::Forward)?.landed().await?;
        Ok(self.first_given(&message))
    }

    /// Resolves the target of a link. Absence is never older than `absence`, the time that our own names'
    /// is known, whatever the cache is allowed.
    ///
    /// # Errors
    /// If there is no answer in time, nor one that is remembered; the look-up goes on.
    pub async fn chase(&self, question: &Question, absence: Duration) -> Result<Known, ForwardError> {
        let key = question.key();
        let good = |found: &Found| is_good_for_us(found, absence);
        if let Some(found) = self.cache.as_ref().and_then(|cache| cache.get(&key)).filter(good) {
            if found.freshness == Freshness::Due {
                // If that can't begin now, the next one who asks begins it.
                let _ = self.flight(question, &key, Purpose::Chase);
            }
            // It may have been asked for under its own name.
            if self.memory.recall(&key).is_none() {
                self.memory.remember(&key, &found.message);
            }
            return Ok(Known::Now(with_ttl(&found.message, found.ttl, true)));
        }
        let flight = self.flight(question, &key, Purpose::Chase)?;
        let last = self.memory.recall(&key);
        // Who has something to give doesn't let each client wait anew.
        let patience = if last.is_some() { PATIENCE.saturating_sub(flight.age()) } else { PATIENCE };
        match (timeout(patience, flight.landed()).await, last) {
            (Ok(Ok(message)), _) => Ok(Known::Now(self.first_given(&message))),
            (_, Some(last)) => Ok(Known::Last(with_ttl(&last, STALE_TTL, false))),
            (Ok(Err(error)), None) => Err(error),
            (Err(_), None) => Err(ForwardError::Late),
        }
    }

    /// Returns what is remembered of a target, for when the upstream's answer is none.
    #[must_use]
    pub fn recall(&self, question: &Question) -> Option<Message> {
        self.memory.recall(&question.key()).map(|last| with_ttl(&last, STALE_TTL, false))
    }

    /// Looks up a target that nobody has asked for yet, unless it is cached. Returns whether its name
    /// exists, if there is an answer.
    pub async fn look_ahead(&self, question: &Question) -> Option<bool> {
        let flight = self.flight(question, &question.key(), Purpose::Chase).ok()?;
        let message = flight.landed().await.ok()?;
        Some(message.metadata.response_code != ResponseCode::NXDomain)
    }

    /// Forgets what is cached of a name, and what is being asked about it.
    pub fn forget_name(&self, name: &[u8]) {
        // In this order: what lands between the two finds its place taken.
        self.flights.forget_name(name);
        if let Some(cache) = &self.cache {
            cache.remove_name(name);
        }
    }

    /// Forgets everything that is cached, and what is being asked.
    pub fn forget_all(&self) {
        self.flights.forget_all();
        if let Some(cache) = &self.cache {
            cache.clear();
        }
    }

    fn flight(&self, question: &Question, key: &Key, purpose: Purpose) -> Result<Flight, ForwardError> {
        let look_up = || {
            let permit = self.forward.admit(purpose)?;
            let (forward, question) = (Arc::clone(&self.forward), question.clone());
            Ok(async move {
                let answer = forward.ask(&question).await.map(Arc::new);
                drop(permit);
                answer
            })
        };
        let (cache, memory) = (self.cache.clone(), Arc::clone(&self.memory));
        let (kept, query) = (key.clone(), question.query.clone());
        let take = move |landing: &Landing| {
            match (landing, cache) {
                (Ok(message), Some(cache)) => cache.put(&kept, message),
                (Err(_), Some(cache)) => cache.put_silence(&kept, &query),
                (_, None) => {}
            }
            if let (Ok(message), Purpose::Chase) = (landing, purpose) {
                memory.remember(&kept, message);
            }
        };
        self.flights.join_or_start(key, look_up, take)
    }

    /// Returns an answer as it is given when it has just come: with the TTLs that it will be cached with,
    /// so that they don't jump.
    fn first_given(&self, message: &Message) -> Message {
        match &self.cache {
            Some(cache) => with_ttl(message, cache.ttl(message), false),
            None => message.clone(),
        }
    }
}

/// Whether a cached answer is one for a name of ours.
fn is_good_for_us(found: &Found, absence: Duration) -> bool {
    let stale = matches!(found.freshness, Freshness::Stale(_));
    !stale && (found.kind == Kind::Success || found.age < absence)
}

/// Whether an answer says more than the stale one does (RFC 8767 section 4).
fn is_news(message: &Message) -> bool {
    matches!(message.metadata.response_code, ResponseCode::NoError | ResponseCode::NXDomain)
}

/// Returns an answer with another TTL. From the cache it has AA set, as CoreDNS's has: there are clients
/// that take no other.
fn with_ttl(message: &Message, ttl: u32, cached: bool) -> Message {
    let mut message = message.clone();
    let sections: [&mut Vec<Record>; 3] =
        [&mut message.answers, &mut message.authorities, &mut message.additionals];
    for record in sections.into_iter().flatten() {
        record.ttl = ttl;
    }
    message.metadata.authoritative |= cached;
    message
}
