//! The keys of a source in memory, and what is known of their state at the servers.

use std::sync::{Arc, Weak};

use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{info, warn};

use super::client::{Endpoint, EtcdError};
use super::gateway::{EventType, Header, KeyValue, WatchAnswer};
use super::index::{Entry, Index, KeyError, KeyRange, Listing, Problem};
use super::source::Source;
use crate::model::line_limit::LineLimit;

/// The maximum numbers of lines per minute about failures, and about keys that are left out.
const FAILURE_LINES: usize = 3;
const KEY_LINES: usize = 10;

/// The keys of all sources: blocks with the same source share them, also a block that is built again.
#[derive(Clone, Debug, Default)]
pub struct SharedKeys(Arc<Mutex<Vec<Weak<EtcdKeys>>>>);

/// The keys of a source.
#[derive(Debug)]
pub struct EtcdKeys {
    source: Source,
    index: RwLock<Index>,
    /// Whether there was a complete list.
    is_listed: watch::Sender<bool>,
    /// The text about the last try, if it failed.
    failure: Mutex<Option<String>>,
    /// The server that has sent the keys, or their changes.
    watched: Mutex<Option<Endpoint>>,
    key_lines: Mutex<LineLimit>,
    progress: Mutex<Progress>,
    /// Held by the task that follows the keys: several blocks may have them.
    pub(super) turn: tokio::sync::Mutex<Turn>,
}

/// What the task that follows the keys hands over to the next one.
#[derive(Debug)]
pub(super) struct Turn {
    /// The number of the endpoint that is asked.
    pub endpoint: usize,
    failure_lines: LineLimit,
}

/// What is known of the changes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Progress {
    /// The last revision whose changes are known, and its cluster; `None` before a list.
    pub known: Option<Header>,
    /// Whether entries may differ from those of the same revision in the next list.
    pub is_rewound: bool,
    /// When the watch of this session has sent something.
    pub heard: Option<Instant>,
    /// The number of keys that the next list asks for at once, if a page took too long.
    pub limit: Option<usize>,
}

// === impl SharedKeys ===

impl SharedKeys {
    /// Returns the keys of a source. If no block has them, they begin with those of a source that it replaces.
    pub fn of(&self, source: Source) -> Arc<EtcdKeys> {
        let mut all = self.0.lock();
        all.retain(|keys| keys.strong_count() > 0);
        let known: Vec<Arc<EtcdKeys>> = all.iter().filter_map(Weak::upgrade).collect();
        if let Some(same) = known.iter().find(|known| known.source.is_same(&source)) {
            return Arc::clone(same);
        }
        let former =
            known.iter().rev().find(|known| known.is_listed() && known.source.has_same_keys(&source));
        let keys = Arc::new(EtcdKeys::new(source, former.map(|former| former.index.read().copy())));
        all.push(Arc::downgrade(&keys));
        keys
    }
}

// === impl EtcdKeys ===

impl EtcdKeys {
    /// Returns keys that begin with a list, if there is one.
    fn new(source: Source, listed: Option<Index>) -> Self {
        Self {
            source,
            is_listed: watch::Sender::new(listed.is_some()),
            index: RwLock::new(listed.unwrap_or_default()),
            failure: Mutex::default(),
            watched: Mutex::default(),
            key_lines: Mutex::new(LineLimit::new(KEY_LINES)),
            progress: Mutex::default(),
            turn: tokio::sync::Mutex::new(Turn { endpoint: 0, failure_lines: LineLimit::new(FAILURE_LINES) }),
        }
    }

    pub fn index(&self) -> &RwLock<Index> {
        &self.index
    }

    pub fn source(&self) -> &Source {
        &self.source
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

    pub(super) fn progress(&self) -> Progress {
        *self.progress.lock()
    }

    // === sessions ===

    pub(super) fn begin_session(&self) {
        self.progress.lock().heard = None;
    }

    /// Notes why a session has ended, and chooses the server for the next one.
    pub(super) fn end_session(&self, turn: &mut Turn, error: &EtcdError, has_worked: bool) {
        let stays_at_server = error.asks_for_list();
        if stays_at_server || matches!(error, EtcdError::Keys(_)) {
            let mut progress = self.progress.lock();
            progress.known = None;
            progress.is_rewound |= matches!(error, EtcdError::Rewound);
        }
        // Of a server that has worked, only what the next try says tells whether etcd is away.
        if stays_at_server || !has_worked {
            self.report_failure(turn, error);
        }
        if !stays_at_server {
            turn.endpoint = (turn.endpoint + 1) % self.source.endpoints.len();
        }
    }

    fn report_failure(&self, turn: &mut Turn, error: &EtcdError) {
        let endpoint = &self.source.endpoints[turn.endpoint];
        let stays = if self.is_listed() { "the keys before stay" } else { "no keys are known" };
        let text = format!("{endpoint}: {error}; {stays}");
        let before = self.failure.lock().replace(text.clone());
        if before.as_ref() != Some(&text)
            && let Some(omitted) = turn.failure_lines.take(std::time::Instant::now())
        {
            warn!("etcd {}: {text}{}", self.range().base(), omitted_text(omitted));
        }
    }

    /// Notes that a server answers and its watch goes on.
    pub(super) fn note_working(&self, endpoint: &Endpoint) {
        let before = self.watched.lock().replace(endpoint.clone());
        if self.failure.lock().take().is_some() || before.is_some_and(|before| before != *endpoint) {
            info!("etcd {}: {endpoint} answers", self.range().base());
        }
    }

    // === lists ===

    /// Adds a key that a server has sent to a list. `has_value` is whether it was sent with its value.
    pub(super) fn add_to(
        &self,
        listing: &mut Listing,
        found: &KeyValue,
        has_value: bool,
    ) -> Result<(), KeyError> {
        let nothing = self.progress().is_rewound.then(Index::default);
        let problem = {
            let index = self.index.read();
            listing.add(found, !has_value, self.range(), nothing.as_ref().unwrap_or(&index))?
        };
        self.report_problem(problem);
        Ok(())
    }

    /// Lets the next list ask for fewer keys at once.
    pub(super) fn limit_pages(&self, limit: usize) {
        self.progress.lock().limit = Some(limit);
    }

    /// Takes a complete list. `header` has its revision.
    pub(super) fn replace(&self, listing: Listing, header: Header) {
        *self.progress.lock() = Progress { known: Some(header), ..Progress::default() };
        // Freed without the lock.
        let before = self.index.write().replace(listing);
        drop(before);
        self.is_listed.send_replace(true);
    }

    // === changes ===

    /// Takes the changes of an answer of the watch.
    pub(super) fn change(&self, answer: &WatchAnswer) -> Result<(), EtcdError> {
        // Values are parsed without the lock.
        let mut changes = Vec::new();
        for event in &answer.events {
            let entry = match event.r#type {
                EventType::Put => Some(self.entry(&event.kv)?),
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
        let mut progress = self.progress.lock();
        progress.heard = Some(Instant::now());
        // The rest of a fragment has the same revision.
        if let Some(known) = progress.known.as_mut().filter(|_| !answer.fragment) {
            known.revision = known.revision.max(last_revision(answer));
        }
        Ok(())
    }

    fn entry(&self, changed: &KeyValue) -> Result<Entry, KeyError> {
        let (entry, problem) = Entry::changed(changed, self.range())?;
        self.report_problem(problem);
        Ok(entry)
    }

    fn report_problem(&self, problem: Option<Problem>) {
        let Some(problem) = problem else { return };
        if let Some(omitted) = self.key_lines.lock().take(std::time::Instant::now()) {
            warn!("etcd {}: {problem}{}", self.range().base(), omitted_text(omitted));
        }
    }
}

/// Returns the revision up to which all changes are known with an answer; 0 if it doesn't tell.
fn last_revision(answer: &WatchAnswer) -> u64 {
    let last = answer.events.iter().map(|event| event.kv.mod_revision).max();
    // The changes before the beginning of the watch are still to come.
    last.unwrap_or(if answer.created { 0 } else { answer.header.revision })
}

fn omitted_text(omitted: usize) -> String {
    if omitted == 0 { String::new() } else { format!(" ({omitted} such lines were omitted)") }
}

#[cfg(test)]
mod tests {
    use hickory_proto::rr::Name;
    use secrecy::SecretString;

    use super::*;
    use crate::dns::plugins::etcd::client::Credentials;

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
        let keys = SharedKeys::default();
        let first = keys.of(source(&[1, 2], "a"));
        assert!(Arc::ptr_eq(&first, &keys.of(source(&[1, 2], "a"))));
        assert!(!keys.of(source(&[1, 2], "b")).is_listed());
        let found = KeyValue { key: b"/skydns/z".to_vec(), value: b"{}".to_vec(), ..KeyValue::default() };
        first.index.write().put(&found, first.range()).unwrap();
        first.is_listed.send_replace(true);
        let with_new_password = keys.of(source(&[2, 3], "b"));
        assert!(with_new_password.is_listed());
        assert_eq!(with_new_password.index.read().len(), 1);
        assert!(with_new_password.progress().known.is_none(), "it lists the keys again");
        assert!(!keys.of(source(&[4], "a")).is_listed(), "another etcd");
        let other = |user: Option<&str>, files: &[u8]| {
            let mut source = source(&[1, 2], "a");
            let known = user.zip(source.credentials.take());
            source.credentials = known.map(|(user, known)| Credentials { user: user.to_owned(), ..known });
            source.tls_files = files.iter().map(|file| vec![*file]).collect();
            source
        };
        for (user, files) in [(Some("guest"), &[][..]), (None, &[]), (Some("dns"), &[1, 2])] {
            assert!(!keys.of(other(user, files)).is_listed(), "{user:?} {files:?}: etcd may refuse the keys");
        }
        let with_certificate = keys.of(other(Some("dns"), &[1, 2]));
        with_certificate.is_listed.send_replace(true);
        assert!(keys.of(other(Some("dns"), &[3, 4])).is_listed(), "a renewed certificate");
        drop((first, with_new_password));
        assert!(!keys.of(source(&[1, 2], "a")).is_listed());
        assert!(!format!("{:?}", source(&[1], "hunter2")).contains("hunter2"));
    }
}
