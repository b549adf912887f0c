//! What the reconciler writes, and what comes of it.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Instant;

use futures::FutureExt;

use super::Reconciler;
use crate::store::{Link, ServiceKey};
use crate::sync::desired::labelled_for;
use crate::sync::object::{Kind, Object, ObjectId};
use crate::sync::plan::Write;
use crate::sync::writer::WriteError;

/// A write that has ended.
#[derive(Debug)]
pub(super) struct Written {
    key: ServiceKey,
    looked_at: Instant,
    write: Write,
    /// Whether the object was somebody else's before.
    adopted: bool,
    removal: bool,
    code: u16,
    result: Result<Option<Object>, WriteError>,
}

impl Reconciler {
    /// Whether a write removes an external target for good, and not one that has another name now.
    fn is_removal(link: &Link, write: &Write) -> bool {
        let leftover = !link.is_gone() && write.id().name != *link.external_target;
        matches!(write, Write::Delete { id, .. } if id.kind == Kind::Service) && !leftover
    }

    /// Returns whether a removal may be made now; else the link waits for its turn.
    fn may_remove(&mut self, link: &Link) -> bool {
        let (max, now) = (self.settings.policy.max_deletes, Instant::now());
        match self.removals.ask(max, self.objects.number_of_links(), now) {
            Ok(()) => true,
            Err(pause) => {
                self.report.held(link, max, pause);
                if let Some(pause) = pause {
                    self.pace.wait(link.key.clone(), pause);
                }
                false
            }
        }
    }

    /// Starts a write, unless its time hasn't come yet; returns whether it did.
    pub(super) fn start(&mut self, link: &Arc<Link>, write: Write, looked_at: Instant) -> bool {
        let (key, id) = (link.key.clone(), write.id());
        if let Some(outdated) = self.outdated.get(&id) {
            if *outdated == self.version_of(&id) {
                return false;
            }
            self.outdated.remove(&id);
        }
        if let Some(pause) = self.pace.not_before(&key, link) {
            self.pace.wait(key, pause);
            return false;
        }
        let removal = Self::is_removal(link, &write);
        if removal && !self.may_remove(link) {
            return false;
        }
        self.report.not_held(&key);
        let adopted = self.objects.get(&id).is_some_and(|before| labelled_for(before.meta()).is_none());
        self.in_flight.insert(key.clone(), false);
        self.objects.write_begins(&id);
        let keeper = self.settings.keeper.clone();
        let (leadership, term) = (self.settings.leadership.clone(), self.term);
        self.writes.spawn(async move {
            let request = AssertUnwindSafe(keeper.write(write.clone())).catch_unwind();
            let (code, result) = match leadership.write(term, request).await {
                Ok(Ok(answered)) => answered,
                Ok(Err(_)) => (0, Err(WriteError::panicked())),
                Err(not_leading) => (0, Err(not_leading.into())),
            };
            Written { key, looked_at, write, adopted, removal, code, result }
        });
        true
    }

    fn version_of(&self, id: &ObjectId) -> Option<String> {
        self.objects.get(id)?.meta().resource_version.clone()
    }

    pub(super) fn written(&mut self, written: Written) {
        let Written { key, looked_at, write, adopted, removal, code, result } = written;
        if removal && result.is_err() {
            self.removals.take_back();
        }
        let id = write.id();
        let changed = self.in_flight.remove(&key).unwrap_or(false);
        if !matches!(result, Err(WriteError::NotLeading(_))) {
            self.report.count(&write, code, &result, looked_at);
        }
        match result {
            Ok(after) => {
                self.pace.succeeded(&key);
                let link = self.settings.store.get(&key);
                if let Some(link) = &link
                    && let Some(pause) = self.pace.made(&key, link)
                {
                    self.report.undone(&key, &write, pause);
                }
                let unanswered = std::mem::take(&mut self.unanswered);
                if self.report.written(link.as_deref(), &write, adopted, after.as_ref()) || unanswered {
                    self.resume();
                }
                match (&write, after) {
                    (Write::Finalizer { uid, add, .. }, _) => {
                        drop(self.settings.store.set_guarded(&key, uid, *add));
                    }
                    (_, Some(after)) => self.change_object(&id, |objects| objects.answered(after)),
                    (_, None) => self.change_object(&id, |objects| objects.removed_by_us(&id, write.uid())),
                }
                self.queue(&key);
            }
            Err(WriteError::Gone) if matches!(write, Write::Delete { .. }) => {
                self.pace.succeeded(&key);
                self.change_object(&id, |objects| objects.removed_by_us(&id, write.uid()));
                self.queue(&key);
            }
            Err(WriteError::Gone) if matches!(write, Write::Finalizer { .. }) => {
                // With the Service its finalizers have gone.
                self.settings.store.set_guarded(&key, write.uid(), false);
                self.queue(&key);
            }
            Err(WriteError::Conflict | WriteError::Gone) => {
                // Somebody was faster. The watch says how the object is now, and unless it has
                // done so already nothing is tried before.
                let sent = write.resource_version().map(ToOwned::to_owned);
                if changed {
                    self.queue(&key);
                } else if self.version_of(&id) == sent {
                    self.outdated.insert(id, sent);
                }
            }
            // By the clock: the election may say so a moment later.
            Err(WriteError::NotLeading(_)) => drop(self.pace.failed(&key, None)),
            Err(WriteError::Unanswered) => {
                self.unanswered = true;
                self.pace.failed(&key, None);
            }
            Err(WriteError::Everywhere { code, message, retry_after }) => {
                self.report.trouble(&write, code, message);
                self.pace.failed(&key, retry_after);
            }
            Err(WriteError::Other { message, retry_after }) => {
                let pause = self.pace.failed(&key, retry_after);
                self.report.failed(&key, &write, &message, pause);
            }
        }
        self.objects.write_ended(&write.id());
    }
}
