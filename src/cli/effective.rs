//! The effective values of the flags: those given, and the defaults of this environment.

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;

use super::election_flags::LeaderElection;
use super::flags::Flags;
use super::parsers::duration_text;
use crate::sync::election::ElectionConfig;
use crate::sync::external_target::decision::{SyncMode, SyncPolicy};

impl Flags {
    /// Returns the policy for external targets. The tombstone is that of `HostnamePolicy::tombstone`.
    #[must_use]
    pub fn policy(&self, tombstone: String) -> SyncPolicy {
        SyncPolicy {
            sync: self.sync_mode(),
            on_delete: self.on_delete,
            delete_delay: self.effective_delete_delay(),
            withdrawal_delay: self.delete_delay,
            finalizer: self.finalizer,
            tombstone,
            max_deletes: self.max_deletes.unwrap_or_default(),
            ip_targets: self.ip_targets,
            prune: self.prune,
            instance: self.named_instance(),
        }
    }

    /// Returns the delay before the removal of an external target. With `--finalizer` the deletion of a Service waits
    /// for its external target, so the Service can't be recreated in the meantime.
    #[must_use]
    pub fn effective_delete_delay(&self) -> Duration {
        if self.finalizer { Duration::ZERO } else { self.delete_delay }
    }

    /// Returns the instance that objects belong to: files have none, and with `--sync off` objects of all instances are
    /// read, unless one is named.
    pub(super) fn named_instance(&self) -> Option<String> {
        let has_instance = self.sync_mode() != SyncMode::Off || self.instance.is_some();
        (self.manifests.is_none() && has_instance).then(|| self.instance())
    }

    /// Returns the flags with their effective values, for the user. Flags that a Corefile replaces are left out.
    #[must_use]
    pub fn effective(&self) -> Vec<(&'static str, String)> {
        fn list<T: ToString>(items: &[T]) -> String {
            items.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
        }
        let path = |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string());
        let mut flags = Vec::new();
        let mut optional = |flag, value: Option<String>| flags.extend(value.map(|value| (flag, value)));
        optional("--corefile", path(&self.corefile));
        optional("--kubeconfig", path(&self.kubeconfig));
        optional("--context", self.context.clone());
        flags.extend(self.remote.effective());
        let mut optional = |flag, value: Option<String>| flags.extend(value.map(|value| (flag, value)));
        optional("--snapshot", path(&self.snapshot));
        let max_age = self.snapshot.as_ref().map(|_| duration_text(self.snapshot_max_age));
        optional("--snapshot-max-age", max_age);
        optional("--manifests", path(&self.manifests));
        optional("--output", path(&self.output));
        optional("--service-selector", self.service_selector.as_ref().map(ToString::to_string));
        let classes = (!self.load_balancer_classes.is_empty()).then(|| list(&self.load_balancer_classes));
        optional("--load-balancer-classes", classes);
        let namespaces = (!self.watch_namespaces.is_empty()).then(|| list(&self.watch_namespaces));
        optional("--watch-namespaces", namespaces);
        flags.push(("--selection", value_name(&self.selection)));
        if self.manifests.is_none() || self.output.is_some() {
            flags.push(("--target-namespace", self.target_namespace.clone()));
        }
        flags.extend(self.named_instance().map(|instance| ("--instance", instance)));
        flags.extend([
            ("--sync", value_name(&self.sync_mode())),
            ("--on-delete", value_name(&self.on_delete)),
            ("--delete-delay", duration_text(self.effective_delete_delay())),
            ("--finalizer", if self.finalizer { "on" } else { "off" }.to_owned()),
            ("--max-deletes", self.max_deletes.unwrap_or_default().to_string()),
            ("--prune", if self.prune { "on" } else { "off" }.to_owned()),
            ("--ip-targets", value_name(&self.ip_targets)),
        ]);
        flags.extend(self.hostname_policy.effective());
        flags.extend(self.effective_election());
        flags.push(("--admin-listen", self.admin_listen.to_string()));
        flags.push(("--log-format", value_name(&self.log_format)));
        flags
    }

    /// Returns the flags of the leader election with their effective values.
    fn effective_election(&self) -> Vec<(&'static str, String)> {
        let Ok(Some(ElectionConfig { lease, identity, pod, .. })) = self.election_config() else {
            return vec![("--leader-election", "off".to_owned())];
        };
        let how = if pod.is_some() { LeaderElection::Life } else { LeaderElection::Lease };
        vec![("--leader-election", value_name(&how)), ("--lease-name", lease), ("--identity", identity)]
    }
}

/// Returns how a value is written on the command line.
pub(crate) fn value_name(value: &impl ValueEnum) -> String {
    value.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
}
