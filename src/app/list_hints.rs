//! Which folder of `deploy/` grants a missing permission to list.

use crate::sync::external_target::missing_namespace::NAMESPACE_HINT;
use crate::sync::k8s::errors::WatchLog;
use crate::sync::stable_name;

/// The hints of the watches.
#[derive(Clone, Copy)]
pub(super) struct ListHints {
    pub(super) services: &'static str,
    pub(super) external_targets: &'static str,
    pub(super) stable_names: &'static str,
}

impl ListHints {
    pub(super) fn new(is_cluster_dns: bool) -> Self {
        if is_cluster_dns {
            let all = WatchLog::CLUSTER_DNS;
            return Self { services: all, external_targets: all, stable_names: all };
        }
        Self {
            services: WatchLog::READING,
            external_targets: NAMESPACE_HINT,
            stable_names: stable_name::controller::PERMISSION_HINT,
        }
    }
}
