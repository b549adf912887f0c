//! Names that aren't ours: the cache, what is under way, and the upstreams behind them.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use hickory_proto::op::{Message, MessageType, Metadata, OpCode, ResponseCode};
use hickory_proto::rr::Record;
use tokio::time::{Instant, timeout, timeout_at};

use super::cache::{Cache, Found, Freshness, Kind};
use super::failing::Failing;
use super::flights::{Flight, Flights, Landing};
use super::forward::{Forward, ForwardError, Purpose};
use super::memory::{Last, Memory, STALE_TTL};
use super::question::{Key, Question};
use super::wire::rcode_label;
use crate::metrics::Metrics;

/// How long the client of a name of ours waits for what is behind it, and a look-up has while there is an older
/// answer to give (RFC 8767 section 5): a CoreDNS in front gives up at 2 s.
pub(super) const PATIENCE: Duration = Duration::from_millis(1800);

/// Resolves names that aren't ours.
#[derive(Debug)]
pub struct Resolver {
    forward: Arc<Forward>,
    cache: Option<Arc<Cache>>,
    flights: Flights,
    memory: Arc<Memory>,
    failing: Arc<Failing>,
}

/// What a chase is content with.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// When the client doesn't wait any more.
    pub until: Instant,
    /// How old absence may be.
    pub absence: Duration,
    /// Whether anything cached will do.
    pub cached: bool,
}

/// What is known of a target.
#[derive(Clone, Debug)]
pub struct Known {
    /// The answer.
    pub message: Message,
    /// How old it is.
    pub age: Duration,
    /// Whether it is only what was known last, because no upstream answers now.
    pub stale: bool,
}

impl Resolver {
    /// Returns a resolver that asks `forward` and keeps the answers in `cache`, if there is one.
    #[must_use]
    pub fn new(forward: Arc<Forward>, cache: Option<Cache>, metrics: &Metrics) -> Self {
        let (cache, flights, memory) = (cache.map(Arc::new), Flights::default(), Arc::default());
        let failing = Arc::new(Failing::new(metrics.targets_failing.clone()));
        Self { forward, cache, flights, memory, failing }
    }

    /// Resolves a name for a client that asked for it.
    ///
    /// # Errors
    /// If there is no answer.
    pub async fn resolve(&self, question: &Question) -> Result<Message, ForwardError> {
        let key = question.key();
        if let Some(found) = self.cache.as_ref().and_then(|cache| cache.get(&key)) {
            if found.kind == Kind::Silence {
                return Err(ForwardError::NoAnswer);
            }
            let cached = || with_ttl(&found.message, found.ttl, true, question.room);
            if found.freshness == Freshness::Fresh {
                return Ok(cached());
            }
            let flight = self.flight(question, &key, Purpose::Forward);
            // Who can't look it up now has the old answer still.
            if let (Freshness::Stale(Some(patience)), Ok(flight)) = (found.freshness, flight)
                && let Ok(Ok(message)) = timeout(patience, flight.landed()).await
                && is_news(&message)
            {
                return Ok(self.first_given(&message, question.room));
            }
            return Ok(cached());
        }
        let message = self.flight(question, &key, Purpose::Forward)?.landed().await?;
        Ok(self.first_given(&message, question.room))
    }

    /// Resolves the target of a link.
    ///
    /// # Errors
    /// If there is no answer in time, nor one that is remembered; the look-up goes on.
    pub async fn chase(&self, question: &Question, wanted: Wanted) -> Result<Known, ForwardError> {
        let key = question.key();
        if !wanted.cached && self.cache.as_ref().is_some_and(|cache| cache.is_failing(&key)) {
            return Err(ForwardError::NoAnswer);
        }
        let good = |found: &Found| wanted.cached && is_good_for_us(found, wanted.absence);
        if let Some(found) = self.cache.as_ref().and_then(|cache| cache.get(&key)).filter(good) {
            if found.freshness == Freshness::Due {
                // If that can't begin now, the next one who asks begins it.
                let _ = self.flight(question, &key, Purpose::Chase);
            }
            if found.kind == Kind::Silence {
                return self.recall(question).ok_or(ForwardError::NoAnswer);
            }
            // It may have been asked for under its own name.
            self.memory.remember(&key, &found.message, found.age);
            let message = with_ttl(&found.message, found.ttl, true, question.room);
            return Ok(Known { message, age: found.age, stale: false });
        }
        let last = self.memory.recall(question);
        let flight = match self.flight(question, &key, Purpose::Chase) {
            Ok(flight) => flight,
            Err(error) => return last.map(|last| self.given(&last, question.room)).ok_or(error),
        };
        let until = match &last {
            // The look-up before has failed: this one has to prove that it is better.
            Some(Last { failing: true, .. }) => Instant::now(),
            // Who has something to give doesn't let each client wait anew.
            Some(_) => wanted.until.min(Instant::now() + PATIENCE.saturating_sub(flight.age())),
            None => wanted.until,
        };
        let landed = if until <= Instant::now() {
            flight.landed().now_or_never()
        } else {
            timeout_at(until, flight.landed()).await.ok()
        };
        match (landed, last) {
            (Some(Ok(message)), _) => {
                let message = self.first_given(&message, question.room);
                Ok(Known { message, age: Duration::ZERO, stale: false })
            }
            (_, Some(last)) => {
                self.memory.set_failing(question, true);
                Ok(self.given(&last, question.room))
            }
            (Some(Err(error)), None) => Err(error),
            (None, None) => Err(ForwardError::Late),
        }
    }

    /// Returns what is remembered of a target, for when the upstream's answer is none.
    #[must_use]
    pub fn recall(&self, question: &Question) -> Option<Known> {
        self.memory.recall(question).map(|last| self.given(&last, question.room))
    }

    fn given(&self, last: &Last, room: usize) -> Known {
        Known { message: with_ttl(&last.message, STALE_TTL, false, room), age: Duration::ZERO, stale: true }
    }

    /// Takes in that an answer of the upstream leads back to a name of ours: by itself it may look like
    /// none.
    pub fn remember(&self, question: &Question, message: &Message) {
        // What was cut for this client is not for others.
        if message.answers.len() < question.room {
            self.memory.keep(&question.key(), &Arc::new(message.clone()));
        }
    }

    /// Looks up a target that nobody has asked for yet.
    pub async fn look_ahead(&self, question: &Question) {
        if let Ok(flight) = self.flight(question, &question.key(), Purpose::Chase) {
            // What comes of it is cached, or will be asked for by somebody.
            let _ = flight.landed().await;
        }
    }

    /// Forgets what is cached of a name, and what is being asked about it.
    pub fn forget_name(&self, name: &[u8]) {
        // In this order: what lands between the two finds its place taken.
        self.flights.forget_name(name);
        self.failing.forget(name);
        if let Some(cache) = &self.cache {
            cache.remove_name(name);
        }
    }

    /// Forgets everything that is cached, and what is being asked.
    pub fn forget_all(&self) {
        self.flights.forget_all();
        self.failing.forget_all();
        if let Some(cache) = &self.cache {
            cache.clear();
        }
    }

    fn flight(&self, question: &Question, key: &Key, purpose: Purpose) -> Result<Flight, ForwardError> {
        let look_up = || {
            let permit = self.forward.admit(purpose, key.is_common())?;
            let (forward, question) = (Arc::clone(&self.forward), question.clone());
            Ok(async move {
                let answer = forward.ask(&question).await.map(Arc::new);
                drop(permit);
                answer
            })
        };
        let (cache, memory, failing) =
            (self.cache.clone(), Arc::clone(&self.memory), Arc::clone(&self.failing));
        let (kept, asked) = (key.clone(), question.clone());
        let take = move |landing: &Landing| {
            match (landing, cache) {
                (Ok(message), Some(cache)) => cache.put(&kept, message),
                (Err(_), Some(cache)) => cache.put_silence(&kept),
                (_, None) => {}
            }
            memory.set_failing(&asked, !landing.as_ref().is_ok_and(|message| is_news(message)));
            if landing.as_ref().is_ok_and(|message| message.metadata.response_code == ResponseCode::NXDomain)
            {
                memory.forget(&asked);
            }
            if purpose == Purpose::Chase {
                match landing {
                    Ok(message) if is_news(message) => {
                        memory.remember(&kept, message, Duration::ZERO);
                        failing.well(&kept, &asked);
                    }
                    Ok(message) => {
                        let rcode = rcode_label(message.metadata.response_code);
                        failing.failed(&kept, &asked, format_args!("the upstream answers {rcode}"));
                    }
                    Err(error) => failing.failed(&kept, &asked, error),
                }
            }
        };
        self.flights.join_or_start(key, look_up, take)
    }

    /// Returns an answer as it is given when it has just come: with the TTLs that it will be cached with,
    /// so that they don't jump.
    fn first_given(&self, message: &Message, room: usize) -> Message {
        match &self.cache {
            Some(cache) => with_ttl(message, cache.ttl(message), false, room),
            None => message.clone(),
        }
    }
}

/// Whether a cached answer is one for a name of ours.
fn is_good_for_us(found: &Found, absence: Duration) -> bool {
    let stale = matches!(found.freshness, Freshness::Stale(_));
    !stale && (found.kind == Kind::Success || found.age < absence)
}

/// Whether an answer says what there is now (RFC 8767 section 4).
fn is_news(message: &Message) -> bool {
    let Metadata { response_code, truncation, .. } = message.metadata;
    matches!(response_code, ResponseCode::NoError | ResponseCode::NXDomain)
        && !(truncation && message.answers.is_empty())
}

/// Returns an answer with another TTL, and as many of its records as there is room for. From the cache it has
/// AA set, as CoreDNS's has: there are clients that take no other.
fn with_ttl(message: &Message, ttl: u32, cached: bool, room: usize) -> Message {
    let copy = |section: &[Record]| {
        let with_ttl = |record: &Record| {
            let mut record = record.clone();
            record.ttl = ttl;
            record
        };
        section.iter().take(room).map(with_ttl).collect()
    };
    let mut given = Message::new(0, MessageType::Response, OpCode::Query);
    given.metadata = message.metadata;
    given.metadata.authoritative |= cached;
    given.metadata.truncation |= message.answers.len() > room;
    given.queries.clone_from(&message.queries);
    given.answers = copy(&message.answers);
    given.authorities = copy(&message.authorities);
    given.additionals = copy(&message.additionals);
    given
}
