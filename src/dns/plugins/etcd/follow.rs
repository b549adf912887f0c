//! Follows the keys of a source: sessions at its servers, one after the other. A session lists the keys if that is
//! needed, watches their changes, and checks the watch.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};
use tokio_util::sync::CancellationToken;
use tracing::info;

use super::client::{Connection, Endpoint, EtcdError, UNAUTHENTICATED};
use super::gateway::{Header, LeaseTime, Page};
use super::index::{KeyError, Listing};
use super::keys::EtcdKeys;
use crate::metrics::staleness::{LastActivity, Staleness};

/// The number of keys that are asked for at once.
const PAGE: usize = 1000;
/// The first and the longest pause before another try.
const PAUSES: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(10));
/// The pause after a list that takes too much memory.
const FULL_PAUSE: Duration = Duration::from_secs(60);
/// How often leases are read, and how many at once.
const LEASE_INTERVAL: Duration = Duration::from_secs(1);
const LEASES_AT_ONCE: usize = 100;
/// How often a server is asked for the number of keys while its watch is silent.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);

impl EtcdKeys {
    /// Follows the keys until `stop` is cancelled.
    pub async fn follow(self: Arc<Self>, staleness: Arc<Staleness>, stop: CancellationToken) {
        stop.run_until_cancelled(self.follow_endlessly(&staleness)).await;
    }

    async fn follow_endlessly(&self, staleness: &Staleness) {
        // Other blocks that have the keys only wait.
        let mut turn = self.turn.lock().await;
        let activity = staleness.one_of("etcd");
        let mut pauses = pauses();
        loop {
            let begun = Instant::now();
            let Err(error) = Session::run(self, turn.endpoint, &activity).await;
            let has_worked = begun.elapsed() > PAUSES.1 && self.progress().heard.is_some();
            if has_worked {
                pauses = self::pauses();
            }
            self.end_session(&mut turn, &error, has_worked);
            let pause = match error {
                EtcdError::Keys(KeyError::Full) => FULL_PAUSE,
                _ => pauses.next().unwrap_or(PAUSES.1).min(PAUSES.1),
            };
            sleep(pause).await;
        }
    }
}

fn pauses() -> ExponentialBackoff {
    ExponentialBuilder::default()
        .with_min_delay(PAUSES.0)
        .with_max_delay(PAUSES.1)
        .with_jitter()
        .without_max_times()
        .build()
}

/// What follows the keys at one server. It has two connections: the answers of a watch are on one of its own.
struct Session<'a> {
    keys: &'a EtcdKeys,
    endpoint: &'a Endpoint,
    activity: &'a LastActivity,
    token: Option<String>,
}

/// The last time at which the numbers of keys were compared.
#[derive(Debug, Default)]
struct Comparison {
    at: Option<Instant>,
    /// The revision at which they differed.
    differed: Option<u64>,
}

// === impl Session ===

impl Session<'_> {
    /// Follows the keys at the server with a number until something fails.
    async fn run(keys: &EtcdKeys, endpoint: usize, activity: &LastActivity) -> Result<Infallible, EtcdError> {
        keys.begin_session();
        let endpoint = &keys.source().endpoints[endpoint];
        let mut session = Session { keys, endpoint, activity, token: None };
        let mut connection = session.connect().await?;
        if let Some(credentials) = &keys.source().credentials {
            session.token = Some(connection.token(credentials).await?);
        }
        if keys.progress().known.is_none() {
            session.list(&mut connection).await?;
        }
        let watching = session.connect().await?;
        tokio::try_join!(session.watch(watching), session.check(connection)).map(|(never, _)| never)
    }

    async fn connect(&self) -> Result<Connection, EtcdError> {
        Connection::open(self.endpoint, self.keys.source().tls.as_ref()).await
    }

    fn token(&self) -> Option<&str> {
        self.token.as_deref()
    }

    // === lists ===

    async fn list(&self, connection: &mut Connection) -> Result<(), EtcdError> {
        let (listing, header) = self.read_pages(connection).await?;
        self.keys.replace(listing, header);
        self.activity.note();
        let (number, left_out) = {
            let index = self.keys.index().read();
            (index.len(), index.left_out())
        };
        let left_out = if left_out == 0 { String::new() } else { format!(", {left_out} of them left out") };
        let (base, revision) = (self.keys.range().base(), header.revision);
        info!("etcd {base}: {number} keys{left_out} at revision {revision} of {}", self.endpoint);
        Ok(())
    }

    /// Reads all keys, as they are at the revision of the first page.
    async fn read_pages(&self, connection: &mut Connection) -> Result<(Listing, Header), EtcdError> {
        let mut listing = Listing::default();
        let mut start = self.keys.range().bounds().0.to_vec();
        // A server that was silent at a larger page would be so again.
        let most = self.keys.progress().limit.unwrap_or(PAGE);
        let mut limit = most;
        let mut header = None::<Header>;
        loop {
            let revision = header.map_or(0, |header| header.revision);
            let (page, has_values) = self.page(connection, &start, &mut limit, revision).await?;
            limit = (limit * 2).min(most);
            for found in &page.kvs {
                self.keys.add_to(&mut listing, found, has_values)?;
            }
            self.activity.note_connection();
            let header = *header.get_or_insert(page.header);
            if !page.more {
                return Ok((listing, header));
            }
            let last = page.kvs.last().ok_or_else(|| EtcdError::Foreign("a page without keys".to_owned()))?;
            start = [&*last.key, &[0]].concat();
        }
    }

    /// Returns the next page, and whether it has values: those of a single key that is too long are left out. `limit`
    /// becomes less after a page that is too long.
    async fn page(
        &self,
        connection: &mut Connection,
        start: &[u8],
        limit: &mut usize,
        revision: u64,
    ) -> Result<(Page, bool), EtcdError> {
        let (range, token) = (self.keys.range(), self.token());
        loop {
            match connection.page(range, start, (*limit, false), revision, token).await {
                Ok(page) => return Ok((page, true)),
                Err(EtcdError::TooLong) => {}
                Err(error) => {
                    if matches!(error, EtcdError::Silent(_)) {
                        self.keys.limit_pages(less(*limit));
                    }
                    return Err(error);
                }
            }
            // The rest of the answer is on its way.
            *connection = self.connect().await?;
            if *limit <= 1 {
                return Ok((connection.page(range, start, (1, true), revision, token).await?, false));
            }
            *limit = less(*limit);
        }
    }

    // === changes ===

    /// Takes the changes that a watch sends.
    async fn watch(&self, connection: Connection) -> Result<Infallible, EtcdError> {
        let known = self.keys.progress().known.unwrap_or_default();
        let (mut watch, mut answer) =
            connection.watch(self.keys.range(), known.revision + 1, self.token()).await?;
        if answer.header.cluster_id == known.cluster_id {
            self.keys.note_working(self.endpoint);
        }
        loop {
            self.activity.note();
            // A member that lags behind has a lower revision, too: `check` finds out.
            if answer.header.cluster_id != known.cluster_id {
                return Err(EtcdError::Rewound);
            }
            self.keys.change(&answer)?;
            answer = watch.next().await?;
        }
    }

    // === checks ===

    /// Reads leases, and checks that the server answers and that the watch sends what there is.
    async fn check(&self, mut connection: Connection) -> Result<Infallible, EtcdError> {
        let mut ticks = interval(LEASE_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut last = Comparison::default();
        loop {
            ticks.tick().await;
            self.read_leases(&mut connection).await?;
            self.compare_numbers(&mut connection, &mut last).await?;
        }
    }

    async fn read_leases(&self, connection: &mut Connection) -> Result<(), EtcdError> {
        let index = self.keys.index();
        let leases = index.read().leases_to_read(Instant::now(), LEASES_AT_ONCE);
        for lease in leases {
            let read = Instant::now();
            let LeaseTime { left, granted } = match connection.lease(lease, self.token()).await {
                // It has other keys, too, that the user may not read.
                Err(EtcdError::Refused(refusal)) if refusal.code != UNAUTHENTICATED => LeaseTime::default(),
                times => times?,
            };
            let seconds = |number: i64| Duration::from_secs(number.try_into().unwrap_or_default());
            index.write().note_lease(lease, seconds(left), seconds(granted), read);
        }
        Ok(())
    }

    /// Asks a server whose watch is silent for the number of keys, at once in a new session.
    async fn compare_numbers(
        &self,
        connection: &mut Connection,
        last: &mut Comparison,
    ) -> Result<(), EtcdError> {
        let progress = self.keys.progress();
        let Some(known) = progress.known else { return Ok(()) };
        let silent_since = last.at.and(last.at.max(progress.heard));
        if silent_since.is_some_and(|since| since.elapsed() < CHECK_INTERVAL) {
            return Ok(());
        }
        let found = connection.count(self.keys.range(), self.token()).await?;
        last.at = Some(Instant::now());
        if found.header.cluster_id != known.cluster_id || found.header.revision < known.revision {
            return Err(EtcdError::Rewound);
        }
        self.activity.note();
        let number = self.keys.index().read().len();
        let differs = usize::try_from(found.count).is_ok_and(|count| count != number);
        // A change may be under way: the number counts if it differs twice at one revision.
        if differs && last.differed == Some(known.revision) {
            return Err(EtcdError::Missed);
        }
        last.differed = differs.then_some(known.revision);
        Ok(())
    }
}

/// Returns a smaller number of keys for a page.
fn less(limit: usize) -> usize {
    (limit / 8).max(1)
}
