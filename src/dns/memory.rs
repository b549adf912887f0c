//! What targets were last known to have: for when nobody can say (RFC 8767).

use std::sync::Arc;
use std::time::Duration;

use hickory_proto::op::Message;
use tokio::time::Instant;

use super::bounded::Bounded;
use super::cache::Kind;
use super::question::Key;

/// How long an answer is remembered.
const DAY: Duration = Duration::from_secs(24 * 3600);
/// How many are: A and AAAA of 30,000 targets, a few hundred bytes each.
const CAPACITY: usize = 65_536;

/// The TTL that a remembered answer is given with, in seconds (RFC 8767 section 4).
pub const STALE_TTL: u32 = 30;

/// The last good answer about each target and type.
#[derive(Debug)]
pub struct Memory(Bounded<Remembered>);

#[derive(Clone, Debug)]
struct Remembered {
    message: Arc<Message>,
    since: Instant,
}

impl Default for Memory {
    fn default() -> Self {
        Self(Bounded::new(CAPACITY))
    }
}

impl Memory {
    /// Takes in an answer about a target.
    pub fn remember(&self, key: &Key, message: &Arc<Message>) {
        let worth = match Kind::of(message) {
            Kind::Success => !message.metadata.truncation && !message.answers.is_empty(),
            // There are many types that a target doesn't have: whoever asks for all of them must not
            // drive out what others need.
            Kind::Denial => {
                key.is_common() && message.metadata.response_code == hickory_proto::op::ResponseCode::NoError
            }
            Kind::Failure | Kind::Other => false,
        };
        if worth {
            let remembered = Remembered { message: Arc::clone(message), since: Instant::now() };
            self.0.put(key.clone(), remembered);
        }
    }

    /// Returns the last good answer, if it is of the last day.
    #[must_use]
    pub fn recall(&self, key: &Key) -> Option<Arc<Message>> {
        let remembered = self.0.get(key)?;
        (remembered.since.elapsed() < DAY).then_some(remembered.message)
    }
}
