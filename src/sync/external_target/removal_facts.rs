//! The facts about the objects and the finalizer of a link, for [`may_remove`].

use std::time::Instant;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::decision::{OnDelete, SyncPolicy};
use super::desired::{has_our_field_manager, link_of_labels};
use crate::model::link::Link;
use crate::sync::k8s::instance::other_instance;
use crate::sync::removal::facts::{Facts, Owner, ServiceState, Subject};
use crate::sync::removal::reason::RemovalReason;
use crate::sync::removal::verdict::{Verdict, may_remove};

/// Returns what is known about a link, for something of it that is ours.
#[must_use]
pub fn facts_of_link(subject: Subject, link: &Link, policy: &SyncPolicy) -> Facts {
    let is_overridden = link.active_override().is_some();
    let delay = if is_overridden { policy.withdrawal_delay } else { policy.delete_delay };
    Facts {
        subject,
        owner: Owner::Ours,
        service: ServiceState::of(link),
        since: link.service_gone_since(),
        delay: (policy.on_delete != OnDelete::Retain).then_some(delay),
        ..Facts::default()
    }
}

/// Returns what is known about an object of a link. `is_of_former_leader`: whether a former leader has created it after
/// this leader's lists.
#[must_use]
pub fn facts_of_object(
    subject: Subject,
    link: &Link,
    metadata: &ObjectMeta,
    policy: &SyncPolicy,
    is_of_former_leader: bool,
) -> Facts {
    let (labelled_for, is_written) = (link_of_labels(metadata), has_our_field_manager(metadata));
    let is_labelled = labelled_for.as_ref() == Some(&link.key);
    let owner = if other_instance(metadata, policy.instance.as_deref()).is_some() {
        Owner::OtherInstance
    } else if !is_labelled && (labelled_for.is_some() || !is_written) {
        Owner::Foreign
    } else if is_of_former_leader {
        Owner::FormerLeader
    } else if is_written || policy.prune && link.service_gone_since().is_some() {
        Owner::Ours
    } else {
        Owner::Unwritten
    };
    let is_terminating = metadata.deletion_timestamp.is_some();
    Facts { owner, is_terminating, ..facts_of_link(subject, link, policy) }
}

/// Returns whether an object that is labelled for a link stays because lb-linker has never written it.
#[must_use]
pub fn is_orphan(subject: Subject, link: &Link, metadata: &ObjectMeta, policy: &SyncPolicy) -> bool {
    let facts = facts_of_object(subject, link, metadata, policy, false);
    may_remove(&facts, Instant::now()) == Verdict::Keep(RemovalReason::Orphan)
}
