//! What targets were last known to have: for when nobody can say (RFC 8767).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::RecordType;
use tokio::time::Instant;

use super::bounded::Bounded;
use super::cache::{Kind, weight};
use super::question::{Key, Question};

/// How long an answer is remembered.
const DAY: Duration = Duration::from_secs(24 * 3600);
/// How many are: A and AAAA of 30,000 targets.
const CAPACITY: usize = 65_536;
/// How many bytes they may take, as far as they can be counted.
const BYTES: usize = 64 << 20;

/// The TTL that a remembered answer is given with, in seconds (RFC 8767 section 4).
pub const STALE_TTL: u32 = 30;

/// The last good answer about each target and type.
#[derive(Debug)]
pub struct Memory(Bounded<Remembered>);

#[derive(Clone, Debug)]
struct Remembered {
    message: Arc<Message>,
    since: Instant,
    /// Whether the last look-up has failed: then nobody waits for the next one.
    failing: Arc<AtomicBool>,
}

/// What is remembered of a target.
#[derive(Clone, Debug)]
pub struct Last {
    /// The answer, as it came from the upstream.
    pub message: Arc<Message>,
    /// Whether the last look-up has failed.
    pub failing: bool,
}

impl Default for Memory {
    fn default() -> Self {
        Self(Bounded::new(CAPACITY, BYTES))
    }
}

impl Memory {
    /// Takes in an answer about a target that is so old, if it is a good one.
    pub fn remember(&self, key: &Key, message: &Arc<Message>, age: Duration) {
        if is_worth_it(key, message) {
            self.keep(key, message, age);
        }
    }

    /// Takes in an answer about a target that is so old, whatever it says.
    pub fn keep(&self, key: &Key, message: &Arc<Message>, age: Duration) {
        if self.0.get(key).is_some_and(|known| Arc::ptr_eq(&known.message, message)) {
            return;
        }
        let now = Instant::now();
        let since = now.checked_sub(age).unwrap_or(now);
        let remembered = Remembered { message: Arc::clone(message), since, failing: Arc::default() };
        self.0.put(key.clone(), remembered, weight(message));
    }

    /// Takes in whether the last look-up of a target has failed.
    pub fn set_failing(&self, key: &Key, failing: bool) {
        if let Some(remembered) = self.0.get(key) {
            remembered.failing.store(failing, Ordering::Relaxed);
        }
    }

    /// Returns the last good answer, if it is of the last day. One to a client with other wishes about DNSSEC
    /// is better than none.
    #[must_use]
    pub fn recall(&self, question: &Question) -> Option<Last> {
        question.variants().find_map(|variant| {
            let remembered = self.0.get(&variant.key()).filter(|found| found.since.elapsed() < DAY)?;
            let failing = remembered.failing.load(Ordering::Relaxed);
            let message = if variant.dnssec_ok && !question.dnssec_ok {
                Arc::new(without_dnssec(&remembered.message))
            } else {
                remembered.message
            };
            Some(Last { message, failing })
        })
    }
}

fn is_worth_it(key: &Key, message: &Message) -> bool {
    match Kind::of(message) {
        Kind::Success => key.is_of_use() && !message.metadata.truncation && !message.answers.is_empty(),
        // There are many types that a target doesn't have: whoever asks for all of them must not drive out
        // what others need.
        Kind::Denial => key.is_common() && message.metadata.response_code == ResponseCode::NoError,
        Kind::Failure | Kind::Silence | Kind::Other => false,
    }
}

/// RFC 4035 section 3.2.1: who hasn't asked for the records of DNSSEC doesn't get them.
fn without_dnssec(message: &Message) -> Message {
    let mut message = message.clone();
    for section in [&mut message.answers, &mut message.authorities, &mut message.additionals] {
        section.retain(|record| {
            !matches!(record.record_type(), RecordType::RRSIG | RecordType::NSEC | RecordType::NSEC3)
        });
    }
    message
}
