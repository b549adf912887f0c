//! Counts restores of etcd to an earlier revision. Each watch notices a restore at its own time: in between, some
//! watches have observed the restored state, and some the state before.

use tokio::sync::watch;
use tracing::{Level, info, warn};

use crate::model::service_key::ServiceKey;
use crate::object_log;

/// The number of detected restores, and of changes of the API server's address. A restore is detected when a watch
/// receives a list older than its previous one, or when a Service exists that counts as gone. Clones share the number.
#[derive(Clone, Debug, Default)]
pub struct RestoreCounter(watch::Sender<u64>);

impl RestoreCounter {
    /// Counts and logs a restore that the list of these objects has revealed. Nothing is written until everything that
    /// writes depend on has been listed again.
    pub fn record_restore(&self, what: &str) {
        warn!(
            "the API server's list of {what} is older than what it sent before: etcd was probably restored from a \
             backup; everything is listed anew, and lb-linker follows that state"
        );
        self.count_another();
    }

    /// Counts and logs a restore that a look-up has revealed: the Service exists although it counts as gone.
    pub fn record_restore_by_look_up(&self, service: &ServiceKey) {
        let line = format_args!(
            "Service {service} counts as gone, but the API server has it, and the watch doesn't report it: etcd was \
             probably restored from a backup; nothing that the Service has left is removed, everything is listed anew, \
             and lb-linker follows that state"
        );
        object_log::write("Service", service, Level::WARN, &line);
        self.count_another();
    }

    /// Counts and logs that the API server has another address now. It is the same cluster, but another API server may
    /// have older data than the previous one.
    pub fn record_new_address(&self) {
        info!("everything is listed anew, because the API server has another address");
        self.count_another();
    }

    fn count_another(&self) {
        self.0.send_modify(|count| *count += 1);
    }

    #[must_use]
    pub fn count(&self) -> u64 {
        *self.0.borrow()
    }

    /// Waits until the number differs from `count`.
    pub async fn wait_for_change(&self, count: u64) {
        // The sender lives as long as `self`.
        let _ = self.0.subscribe().wait_for(|now| *now != count).await;
    }
}
