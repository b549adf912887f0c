//! An upstream and its health, which is checked only when it has failed.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hickory_proto::rr::{Name, RecordType};
use tokio::time::{sleep, timeout};
use tokio_util::task::AbortOnDropHandle;
use tracing::{info, warn};

use super::ForwardOptions;
use super::exchange::{Endpoint, ask_once};
use super::pool::Pool;
use crate::dns::question::Question;

/// How long a health check may take.
const CHECK: Duration = Duration::from_secs(1);

/// One upstream.
#[derive(Debug)]
pub(super) struct Upstream {
    pub(super) endpoint: Endpoint,
    pub(super) pool: Pool,
    /// Health checks that failed, in a row.
    fails: AtomicU32,
    max_fails: u32,
    pause: Duration,
    /// The checks under way.
    checks: Mutex<Option<AbortOnDropHandle<()>>>,
}

impl Upstream {
    pub(super) fn new(endpoint: Endpoint, options: &ForwardOptions) -> Self {
        Self {
            endpoint,
            pool: Pool::new(options.expire),
            fails: AtomicU32::new(0),
            max_fails: options.max_fails,
            pause: options.health_check,
            checks: Mutex::default(),
        }
    }

    /// Returns whether it has failed too many health checks.
    pub(super) fn is_down(&self) -> bool {
        self.max_fails != 0 && self.fails.load(Ordering::Relaxed) > self.max_fails
    }

    /// Takes in that a question got no answer: it is checked from now on, until it answers.
    pub(super) fn suspect(self: &Arc<Self>) {
        if self.max_fails == 0 {
            return;
        }
        let mut checks = self.checks.lock().unwrap_or_else(PoisonError::into_inner);
        if checks.as_ref().is_none_or(AbortOnDropHandle::is_finished) {
            // The checks mustn't keep alive what they belong to.
            let upstream = Arc::downgrade(self);
            *checks = Some(AbortOnDropHandle::new(tokio::spawn(async move {
                while let Some(upstream) = upstream.upgrade() {
                    if upstream.check().await {
                        return;
                    }
                    let pause = upstream.pause;
                    drop(upstream);
                    sleep(pause).await;
                }
            })));
        }
    }

    /// Asks it for the root's name servers; any answer will do, as for CoreDNS. Returns whether it answered.
    async fn check(&self) -> bool {
        let question = Question::plain(Name::root(), RecordType::NS);
        let answer = timeout(CHECK, ask_once(self, &question, false)).await;
        let why = match answer {
            Ok(Ok(_)) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some("no answer within a second".to_owned()),
        };
        let answered = why.is_none();
        let was_down = self.is_down();
        if answered {
            self.fails.store(0, Ordering::Relaxed);
        } else {
            // It can't overflow: that would take 68 years.
            self.fails.fetch_add(1, Ordering::Relaxed);
        }
        match (was_down, self.is_down()) {
            (false, true) => {
                warn!("upstream {} fails health checks: {}", self.endpoint, why.unwrap_or_default());
            }
            (true, false) => info!("upstream {} answers again", self.endpoint),
            _ => {}
        }
        answered
    }
}
