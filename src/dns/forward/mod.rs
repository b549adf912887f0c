//! The client of the upstream resolvers: one question, the first good answer that matches it.

mod exchange;
mod health;
mod policy;
mod pool;

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use hickory_proto::op::{Message, ResponseCode};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep_until};

use super::question::Question;
use exchange::exchange;
pub use exchange::{Endpoint, TlsClient, Transport};
use health::Upstream;
pub use policy::Policy;

/// How long a look-up may take, as for CoreDNS. Who asked may give up earlier.
const DEADLINE: Duration = Duration::from_secs(5);
/// How long an upstream may be silent before the next one is asked, too.
const PATIENCE: Duration = Duration::from_millis(500);

/// How upstreams are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForwardOptions {
    /// In which order.
    pub policy: Policy,
    /// Failed health checks in a row after which an upstream counts as down; 0 for never.
    pub max_fails: u32,
    /// The pause between two health checks.
    pub health_check: Duration,
    /// How long an idle connection is kept.
    pub expire: Duration,
    /// Questions of a kind that may be under way at once. Each costs a socket for every time that it is
    /// sent.
    pub max_concurrent: usize,
}

impl Default for ForwardOptions {
    /// CoreDNS's defaults, and the bound of its own Corefile.
    fn default() -> Self {
        Self {
            policy: Policy::Random,
            max_fails: 2,
            health_check: Duration::from_millis(500),
            expire: Duration::from_secs(10),
            max_concurrent: 1000,
        }
    }
}

/// The upstream resolvers.
#[derive(Debug)]
pub struct Forward {
    upstreams: Vec<Arc<Upstream>>,
    options: ForwardOptions,
    turn: AtomicUsize,
    /// Other names and targets have a bound each: a flood of the ones leaves the others alone.
    forwards: Arc<Semaphore>,
    chases: Arc<Semaphore>,
    /// A tenth of those is for types that hardly anybody needs: one client can ask for all there are.
    oddities: Arc<Semaphore>,
}

/// What an answer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A name outside the zones.
    Forward,
    /// The target of a link.
    Chase,
}

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ForwardError {
    /// No upstream has answered in time, or none can be reached.
    #[error("no upstream has answered")]
    NoAnswer,
    /// None has answered so far: the look-up goes on.
    #[error("no upstream has answered yet")]
    Late,
    /// Too many questions are under way.
    #[error("too many questions are under way")]
    Busy,
}

impl Forward {
    /// Returns a client of these upstreams.
    #[must_use]
    pub fn new(endpoints: Vec<Endpoint>, options: ForwardOptions) -> Self {
        Self {
            upstreams: endpoints
                .into_iter()
                .map(|endpoint| Arc::new(Upstream::new(endpoint, &options)))
                .collect(),
            options,
            turn: AtomicUsize::new(0),
            forwards: Arc::new(Semaphore::new(options.max_concurrent)),
            chases: Arc::new(Semaphore::new(options.max_concurrent)),
            oddities: Arc::new(Semaphore::new(options.max_concurrent.div_ceil(10))),
        }
    }

    /// Takes one of the places for questions under way; it is free again when the permit is dropped.
    /// `common` says whether it is one for addresses.
    ///
    /// # Errors
    /// If there is none.
    pub fn admit(&self, purpose: Purpose, common: bool) -> Result<OwnedSemaphorePermit, ForwardError> {
        let permits = match (purpose, common) {
            (Purpose::Forward, _) => &self.forwards,
            (Purpose::Chase, true) => &self.chases,
            (Purpose::Chase, false) => &self.oddities,
        };
        Arc::clone(permits).try_acquire_owned().map_err(|_| ForwardError::Busy)
    }

    /// Asks the question: one upstream first, and one more as soon as one has failed or is silent for half
    /// a second. The first good answer counts; an error only when nothing better can come any more.
    ///
    /// # Errors
    /// If none has answered within 5 s.
    pub async fn ask(&self, question: &Question) -> Result<Message, ForwardError> {
        let deadline = Instant::now() + DEADLINE;
        let mut upstreams = self.order().into_iter();
        let mut tries = FuturesUnordered::new();
        let mut poor: Option<Message> = None;
        let mut next_try = Instant::now();
        loop {
            if tries.is_empty() && upstreams.len() == 0 {
                return poor.ok_or(ForwardError::NoAnswer);
            }
            tokio::select! {
                biased;
                Some(outcome) = tries.next() => {
                    next_try = Instant::now();
                    match outcome {
                        Ok(answer) if worth(&answer) > 2 => return Ok(answer),
                        Ok(answer) if worth(&answer) > poor.as_ref().map_or(0, worth) => poor = Some(answer),
                        _ => {}
                    }
                }
                () = sleep_until(deadline) => return poor.ok_or(ForwardError::NoAnswer),
                () = sleep_until(next_try), if upstreams.len() > 0 => {
                    tries.extend(upstreams.next().map(|upstream| exchange(upstream, question, deadline)));
                    next_try = Instant::now() + PATIENCE;
                }
            }
        }
    }

    /// Returns the upstreams in the order in which they are asked for one question. Those that are down
    /// are left out; when all are, the health checks may be what is broken, and chance decides.
    fn order(&self) -> Vec<Arc<Upstream>> {
        let up: Vec<_> = self.upstreams.iter().filter(|upstream| !upstream.is_down()).cloned().collect();
        if up.is_empty() {
            return Policy::Random.order(self.upstreams.clone(), &self.turn);
        }
        self.options.policy.order(up, &self.turn)
    }
}

/// "I can't" says more about the name than "I won't", and that more than "what?". Another server may well
/// better all three.
fn worth(answer: &Message) -> u8 {
    match answer.metadata.response_code {
        // RFC 6672 section 2.2: a DNAME that makes a name too long.
        ResponseCode::NoError | ResponseCode::NXDomain | ResponseCode::YXDomain => 3,
        ResponseCode::ServFail => 2,
        _ => 1,
    }
}
