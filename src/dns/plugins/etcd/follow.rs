//! Keeps the keys of a path in memory: lists them, and watches their changes.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBuilder};
use parking_lot::{Mutex, RwLock};
use secrecy::ExposeSecret;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};
use tokio_rustls::TlsConnector;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::client::{Connection, Credentials, Endpoint, EtcdError, UNAUTHENTICATED};
use super::gateway::{EventType, Header, LeaseTime, Page, WatchAnswer};
use super::index::{Entry, Index, KeyError, KeyRange, Listing, Problem};
use crate::metrics::staleness::{LastActivity, Staleness};
use crate::model::line_limit::LineLimit;

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
/// The maximum numbers of lines per minute about failures, and about keys that are left out.
const FAILURE_LINES: usize = 3;
const KEY_LINES: usize = 10;

/// Where the keys are.
#[derive(Clone)]
pub struct Source {
    pub endpoints: Vec<Endpoint>,
    pub range: KeyRange,
    pub credentials: Option<Credentials>,
    /// There for endpoints with TLS.
    pub tls: Option<TlsConnector>,
    /// The files of the option `tls`.
    pub tls_files: Vec<Vec<u8>>,
}

/// The keys that blocks have: a block that is built again has the same keys.
#[derive(Clone, Debug, Default)]
pub struct FollowedKeys(Arc<Mutex<Vec<Weak<Followed>>>>);

/// The keys of a source.
#[derive(Debug)]
pub struct Followed {
    source: Source,
    index: RwLock<Index>,
    /// Whether there was a complete list.
    is_listed: watch::Sender<bool>,
    /// The text about the last try, if it failed.
    failure: Mutex<Option<String>>,
    /// The server that has sent the keys, or their changes.
    watched: Mutex<Option<Endpoint>>,
    key_lines: Mutex<LineLimit>,
    /// Held by the task that follows the keys: several blocks may have them.
    state: tokio::sync::Mutex<State>,
    progress: Mutex<Progress>,
}

#[derive(Debug)]
struct State {
    /// The endpoint that is asked.
    endpoint: usize,
    lines: LineLimit,
}

/// What is known of the changes.
#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    /// The last revision whose changes are known, and its cluster; `None` before a list.
    known: Option<Header>,
    /// Whether entries may differ from those of the same revision in the next list.
    is_rewound: bool,
    /// When the watch of this session has sent something.
    heard: Option<Instant>,
    /// The number of keys that the next list asks for at once, if a page took too long.
    limit: Option<usize>,
}

/// Two connections to a server: the answers of a watch are on one of its own.
struct Session<'a> {
    followed: &'a Followed,
    endpoint: &'a Endpoint,
    activity: &'a LastActivity,
    connection: Connection,
    token: Option<String>,
}

// === impl Source ===

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source")
            .field("endpoints", &self.endpoints)
            .field("range", &self.range)
            .finish_non_exhaustive()
    }
}

impl Source {
    fn is_same(&self, other: &Self) -> bool {
        let secret = |source: &Self| {
            source
                .credentials
                .as_ref()
                .map(|known| (known.user.clone(), known.password.expose_secret().to_owned()))
        };
        self.endpoints == other.endpoints
            && self.range == other.range
            && self.tls_files == other.tls_files
            && secret(self) == secret(other)
    }

    /// Returns whether the keys are those of another source, as far as the lines of both say.
    fn has_same_keys(&self, other: &Self) -> bool {
        self.range == other.range && self.endpoints.iter().any(|endpoint| other.endpoints.contains(endpoint))
    }
}

// === impl FollowedKeys ===

impl FollowedKeys {
    /// Returns the keys of a source. If no block has them, they begin with those of a source that it replaces.
    pub fn of(&self, source: Source) -> Arc<Followed> {
        let mut all = self.0.lock();
        all.retain(|followed| followed.strong_count() > 0);
        let known: Vec<Arc<Followed>> = all.iter().filter_map(Weak::upgrade).collect();
        if let Some(same) = known.iter().find(|known| known.source.is_same(&source)) {
            return Arc::clone(same);
        }
        let former =
            known.iter().rev().find(|known| *known.is_listed.borrow() && known.source.has_same_keys(&source));
        let followed = Followed {
            index: RwLock::new(former.map(|former| former.index.read().copy()).unwrap_or_default()),
            is_listed: watch::Sender::new(former.is_some()),
            source,
            failure: Mutex::default(),
            watched: Mutex::default(),
            key_lines: Mutex::new(LineLimit::new(KEY_LINES)),
            state: tokio::sync::Mutex::new(State { endpoint: 0, lines: LineLimit::new(FAILURE_LINES) }),
            progress: Mutex::default(),
        };
        let followed = Arc::new(followed);
        all.push(Arc::downgrade(&followed));
        followed
    }
}

// === impl Followed ===

impl Followed {
    pub fn index(&self) -> &RwLock<Index> {
        &self.index
    }

    pub fn range(&self) -> &KeyRange {
        &self.source.range
    }

    /// Returns whether there was a complete list.
    pub fn is_listed(&self) -> bool {
        *self.is_listed.borrow()
    }

    /// Waits for a complete list.
    pub async fn listed(&self) {
        // The sender lives as long as this.
        let _ = self.is_listed.subscribe().wait_for(|is_listed| *is_listed).await;
    }

    /// Returns what is wrong at present.
    pub fn failure(&self) -> Option<String> {
        let failure = self.failure.lock().clone();
        let waits = || format!("etcd: the keys below {} aren't listed yet", self.range().base());
        failure.map(|failure| format!("etcd: {failure}")).or_else(|| (!self.is_listed()).then(waits))
    }

    /// Follows the keys until `stop` is cancelled.
    pub async fn follow(self: Arc<Self>, staleness: Arc<Staleness>, stop: CancellationToken) {
        let endless = async {
            let mut state = self.state.lock().await;
            // Other blocks that have the keys only wait.
            let activity = staleness.one_of("etcd");
            let (first, longest) = PAUSES;
            let builder =
                ExponentialBuilder::default().with_min_delay(first).with_max_delay(longest).with_jitter();
            let builder = builder.without_max_times();
            let mut pauses = builder.build();
            loop {
                let (begun, endpoint) = (Instant::now(), state.endpoint);
                let error = self.session(endpoint, &activity).await;
                let has_worked = begun.elapsed() > longest && self.progress.lock().heard.is_some();
                if has_worked {
                    pauses = builder.build();
                }
                self.failed(&mut state, &error, has_worked);
                let pause = match error {
                    EtcdError::Keys(KeyError::Full) => FULL_PAUSE,
                    _ => pauses.next().unwrap_or(longest).min(longest),
                };
                sleep(pause).await;
            }
        };
        stop.run_until_cancelled(endless).await;
    }

    /// Notes why a session has ended, and chooses the next server.
    fn failed(&self, state: &mut State, error: &EtcdError, has_worked: bool) {
        let endpoint = &self.source.endpoints[state.endpoint];
        if error.asks_for_list() || matches!(error, EtcdError::Keys(_)) {
            let mut progress = self.progress.lock();
            progress.known = None;
            progress.is_rewound |= matches!(error, EtcdError::Rewound);
        }
        if !error.asks_for_list() {
            state.endpoint = (state.endpoint + 1) % self.source.endpoints.len();
            if has_worked {
                // Only what the next try says tells whether etcd is away.
                return;
            }
        }
        let stays = if self.is_listed() { "the keys before stay" } else { "no keys are known" };
        let text = format!("{endpoint}: {error}; {stays}");
        if self.failure.lock().replace(text.clone()).as_ref() != Some(&text)
            && let Some(omitted) = state.lines.take(std::time::Instant::now())
        {
            warn!("etcd {}: {text}{}", self.range().base(), omitted_text(omitted));
        }
    }

    /// Notes that a server answers and its watch goes on.
    fn answered(&self, endpoint: &Endpoint) {
        let before = self.watched.lock().replace(endpoint.clone());
        if self.failure.lock().take().is_some() || before.is_some_and(|before| before != *endpoint) {
            info!("etcd {}: {endpoint} answers", self.range().base());
        }
    }

    fn report(&self, problem: Option<Problem>) {
        let Some(problem) = problem else { return };
        if let Some(omitted) = self.key_lines.lock().take(std::time::Instant::now()) {
            warn!("etcd {}: {problem}{}", self.range().base(), omitted_text(omitted));
        }
    }

    /// Follows the keys at a server until something fails.
    async fn session(&self, endpoint: usize, activity: &LastActivity) -> EtcdError {
        let Source { endpoints, tls, .. } = &self.source;
        let endpoint = &endpoints[endpoint];
        self.progress.lock().heard = None;
        let following = async {
            let connection = Connection::open(endpoint, tls.as_ref()).await?;
            let mut session = Session { followed: self, endpoint, activity, connection, token: None };
            session.begin().await?;
            let watching = Connection::open(endpoint, tls.as_ref()).await?;
            session.follow(watching).await
        };
        match following.await {
            Ok(()) => EtcdError::Ended,
            Err(error) => error,
        }
    }
}

fn omitted_text(omitted: usize) -> String {
    if omitted == 0 { String::new() } else { format!(" ({omitted} such lines were omitted)") }
}

// === impl Session ===

impl Session<'_> {
    /// Gets a token, and lists the keys if that is needed.
    async fn begin(&mut self) -> Result<(), EtcdError> {
        if let Some(credentials) = &self.followed.source.credentials {
            self.token = Some(self.connection.token(credentials).await?);
        }
        if self.followed.progress.lock().known.is_none() {
            self.list().await?;
        }
        Ok(())
    }

    async fn list(&mut self) -> Result<(), EtcdError> {
        let Followed { source, index, progress, .. } = self.followed;
        let nothing = Index::default();
        let Progress { is_rewound, limit, .. } = *progress.lock();
        let mut listing = Listing::default();
        let (mut start, mut header) = (source.range.bounds().0.to_vec(), None::<Header>);
        let mut limit = limit.unwrap_or(PAGE);
        loop {
            let revision = header.map_or(0, |header| header.revision);
            let (page, keys_only) = self.page(&start, &mut limit, revision).await?;
            limit = (limit * 2).min(PAGE);
            let header = *header.get_or_insert(page.header);
            for found in &page.kvs {
                let problem = {
                    let known = index.read();
                    listing.add(
                        found,
                        keys_only,
                        &source.range,
                        if is_rewound { &nothing } else { &known },
                    )?
                };
                self.followed.report(problem);
            }
            self.activity.note_connection();
            if !page.more {
                *progress.lock() = Progress { known: Some(header), ..Progress::default() };
                break;
            }
            let last = page.kvs.last().ok_or_else(|| EtcdError::Foreign("a page without keys".to_owned()))?;
            start = [&*last.key, &[0]].concat();
        }
        // Freed without the lock.
        let before = index.write().replace(listing);
        drop(before);
        self.activity.note();
        self.followed.is_listed.send_replace(true);
        let (keys, left_out) = {
            let index = index.read();
            (index.len(), index.left_out())
        };
        let left_out = if left_out == 0 { String::new() } else { format!(", {left_out} of them left out") };
        let revision = progress.lock().known.map_or(0, |known| known.revision);
        info!(
            "etcd {}: {keys} keys{left_out} at revision {revision} of {}",
            source.range.base(),
            self.endpoint
        );
        Ok(())
    }

    /// Returns the next page, and whether its values are left out because a single one is too long. `limit` becomes
    /// less after a page that is too long.
    async fn page(
        &mut self,
        start: &[u8],
        limit: &mut usize,
        revision: u64,
    ) -> Result<(Page, bool), EtcdError> {
        let range = &self.followed.source.range;
        let token = self.token.as_deref();
        loop {
            match self.connection.page(range, start, (*limit, false), revision, token).await {
                Err(EtcdError::TooLong) if *limit > 1 => {
                    // The rest of the answer is on its way.
                    *limit = (*limit / 8).max(1);
                }
                Err(EtcdError::TooLong) => break,
                Err(error) => {
                    if matches!(error, EtcdError::Silent(_)) {
                        self.followed.progress.lock().limit = Some((*limit / 8).max(1));
                    }
                    return Err(error);
                }
                Ok(page) => return Ok((page, false)),
            }
            self.connection = self.reopened().await?;
        }
        self.connection = self.reopened().await?;
        Ok((self.connection.page(range, start, (1, true), revision, token).await?, true))
    }

    async fn reopened(&self) -> Result<Connection, EtcdError> {
        Connection::open(self.endpoint, self.followed.source.tls.as_ref()).await
    }

    /// Watches the keys, and checks the watch.
    async fn follow(self, watching: Connection) -> Result<(), EtcdError> {
        let Self { followed, endpoint, activity, connection, token } = self;
        let watch = follow_changes(followed, endpoint, activity, watching, token.as_deref());
        let check = check(followed, activity, connection, token.as_deref());
        tokio::try_join!(watch, check).map(drop)
    }
}

/// Takes the changes that a watch sends.
async fn follow_changes(
    followed: &Followed,
    endpoint: &Endpoint,
    activity: &LastActivity,
    connection: Connection,
    token: Option<&str>,
) -> Result<(), EtcdError> {
    let Followed { source, progress, .. } = followed;
    let known = progress.lock().known.unwrap_or_default();
    let (mut watch, mut answer) = connection.watch(&source.range, known.revision + 1, token).await?;
    let mut has_begun = false;
    loop {
        activity.note();
        // A member that lags behind has a lower revision, too: `check` finds out.
        if answer.header.cluster_id != known.cluster_id {
            return Err(EtcdError::Rewound);
        }
        if !std::mem::replace(&mut has_begun, true) {
            followed.answered(endpoint);
        }
        followed.take(&answer)?;
        answer = watch.next().await?;
    }
}

impl Followed {
    /// Takes the changes of an answer of the watch.
    fn take(&self, answer: &WatchAnswer) -> Result<(), EtcdError> {
        // Values are parsed without the lock.
        let mut changes = Vec::new();
        for event in &answer.events {
            let entry = match event.r#type {
                EventType::Put => {
                    let (entry, problem) = Entry::changed(&event.kv, self.range())?;
                    self.report(problem);
                    Some(entry)
                }
                EventType::Delete => None,
            };
            changes.push((&event.kv.key, entry));
        }
        if !changes.is_empty() {
            let mut index = self.index.write();
            for (key, entry) in changes {
                match entry {
                    Some(entry) => index.insert(entry)?,
                    None => index.delete(key),
                }
            }
        }
        let last = match answer.events.iter().map(|event| event.kv.mod_revision).max() {
            Some(last) => last,
            // The changes before the beginning of the watch are still to come.
            None if answer.created => 0,
            None => answer.header.revision,
        };
        let mut progress = self.progress.lock();
        progress.heard = Some(Instant::now());
        if let Some(known) = progress.known.as_mut().filter(|_| !answer.fragment) {
            known.revision = known.revision.max(last);
        }
        Ok(())
    }
}

/// Reads leases, and checks that the server answers and that the watch sends what there is.
async fn check(
    followed: &Followed,
    activity: &LastActivity,
    mut connection: Connection,
    token: Option<&str>,
) -> Result<(), EtcdError> {
    let mut ticks = interval(LEASE_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The time of the last check, and the revision at which the numbers of keys differed. The first check is at once.
    let (mut checked, mut differed) = (None::<Instant>, None);
    loop {
        ticks.tick().await;
        let leases = followed.index.read().leases_to_read(Instant::now(), LEASES_AT_ONCE);
        for lease in leases {
            let read = Instant::now();
            let LeaseTime { left, granted } = match connection.lease(lease, token).await {
                // It has other keys, too, that the user may not read.
                Err(EtcdError::Refused(refusal)) if refusal.code != UNAUTHENTICATED => LeaseTime::default(),
                times => times?,
            };
            let seconds = |number: i64| Duration::from_secs(number.try_into().unwrap_or_default());
            followed.index.write().note_lease(lease, seconds(left), seconds(granted), read);
        }
        let progress = *followed.progress.lock();
        let Some(known) = progress.known else { continue };
        let last = checked.and(checked.max(progress.heard));
        if last.is_some_and(|last| last.elapsed() < CHECK_INTERVAL) {
            continue;
        }
        let found = connection.count(&followed.source.range, token).await?;
        checked = Some(Instant::now());
        if found.header.cluster_id != known.cluster_id || found.header.revision < known.revision {
            return Err(EtcdError::Rewound);
        }
        activity.note();
        let keys = followed.index.read().len();
        let differs = usize::try_from(found.count).is_ok_and(|count| count != keys);
        if differs && differed == Some(known.revision) {
            return Err(EtcdError::Missed);
        }
        differed = differs.then_some(known.revision);
    }
}

#[cfg(test)]
mod tests {
    use hickory_proto::rr::Name;
    use secrecy::SecretString;

    use super::*;
    use crate::dns::plugins::etcd::gateway::KeyValue;

    fn source(ports: &[u16], password: &str) -> Source {
        let endpoint = |port: &u16| Endpoint { is_tls: false, host: "127.0.0.1".to_owned(), port: *port };
        let password = SecretString::from(password.to_owned());
        Source {
            endpoints: ports.iter().map(endpoint).collect(),
            range: KeyRange::new("/skydns", &[Name::root()]).unwrap(),
            credentials: Some(Credentials { user: "dns".to_owned(), password }),
            tls: None,
            tls_files: Vec::new(),
        }
    }

    #[test]
    fn keys_of_a_source_are_shared_and_replaced() {
        let keys = FollowedKeys::default();
        let first = keys.of(source(&[1, 2], "a"));
        assert!(Arc::ptr_eq(&first, &keys.of(source(&[1, 2], "a"))));
        assert!(!keys.of(source(&[1, 2], "b")).is_listed());
        let found = KeyValue { key: b"/skydns/z".to_vec(), value: b"{}".to_vec(), ..KeyValue::default() };
        first.index.write().put(&found, first.range()).unwrap();
        first.is_listed.send_replace(true);
        let with_new_password = keys.of(source(&[2, 3], "b"));
        assert!(with_new_password.is_listed());
        assert_eq!(with_new_password.index.read().len(), 1);
        assert!(with_new_password.progress.lock().known.is_none(), "it lists the keys again");
        assert!(!keys.of(source(&[4], "a")).is_listed(), "another etcd");
        drop((first, with_new_password));
        assert!(!keys.of(source(&[1, 2], "a")).is_listed());
        assert!(!format!("{:?}", source(&[1], "hunter2")).contains("hunter2"));
    }
}
