//! How often etcd was seen to be restored to an earlier revision. Each watch notices that in its own time: in between,
//! what one has heard is of the restored state and what another has heard is of the state before.

use tokio::sync::watch;
use tracing::warn;

use crate::model::service_key::ServiceKey;

/// The number of times that any watch has heard a list older than what it heard before, or that a Service was found
/// that counts as gone. Clones count together.
#[derive(Clone, Debug, Default)]
pub struct Rewinds(watch::Sender<u64>);

impl Rewinds {
    /// Counts and logs another one, which the list of these objects has shown: nothing is written before everything
    /// that writes depend on has been listed anew.
    pub fn note(&self, what: &str) {
        warn!(
            "the API server's list of {what} is older than what it sent before: etcd was probably restored from a \
             backup; everything is listed anew, and lb-linker follows that state"
        );
        self.count_another();
    }

    /// Counts and logs another one, which a look at a Service has shown that counts as gone and is there.
    pub fn note_existing(&self, service: &ServiceKey) {
        warn!(
            "Service {service} counts as gone, but the API server has it, and the watch doesn't tell of it: etcd was \
             probably restored from a backup; nothing that the Service has left is removed, everything is listed anew, \
             and lb-linker follows that state"
        );
        self.count_another();
    }

    fn count_another(&self) {
        self.0.send_modify(|count| *count += 1);
    }

    /// Returns how many there were.
    #[must_use]
    pub fn count(&self) -> u64 {
        *self.0.borrow()
    }

    /// Waits until there is another number of them than this one.
    pub async fn beyond(&self, count: u64) {
        // The sender is alive as long as this is.
        let _ = self.0.subscribe().wait_for(|now| *now != count).await;
    }
}
