//! Applies changed zones of links, after a reload of the Corefile, to the store and to sync.

use std::sync::Arc;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::info;

use super::sync_tasks::zones_with_remotes;
use super::{names_of, note_of_free_zones};
use crate::cli::flags::Flags;
use crate::dns::server::corefile_source::CorefileZones;
use crate::model::hostname_policy::HostnamePolicy;
use crate::model::owner::Zone;
use crate::store::Store;

/// Publishes the hostname policy of the current zones until `stop`: the zones decide which hostnames Services may have.
/// The subscribers list their objects again; meanwhile DNS answers with the known links.
pub(super) async fn run(
    flags: Flags,
    store: Arc<Store>,
    policy: watch::Sender<Arc<HostnamePolicy>>,
    mut zones: watch::Receiver<CorefileZones>,
    stop: CancellationToken,
) {
    let remotes = flags.remote.names();
    let mut free = note_of_free_zones(&zones.borrow().links);
    while let Some(Ok(())) = stop.run_until_cancelled(zones.changed()).await {
        let zones = zones.borrow_and_update().clone();
        let of_links = zones_with_remotes(&zones.links, &remotes);
        let note = note_of_free_zones(&zones.links);
        if note != free {
            note.iter().for_each(|note| info!("{note}"));
            free = note;
        }
        let before = store.zones();
        let origins = |zones: &[Zone]| zones.iter().map(|zone| zone.origin.clone()).collect::<Vec<_>>();
        let have_moved = origins(&before) != origins(&of_links);
        if *before != *of_links {
            store.set_zones(of_links);
        }
        let next = flags.hostname_policy(&zones);
        if has_same_zones(&policy.borrow(), &next) {
            info!("the names in the zones of links come from other sources now");
            continue;
        }
        policy.send_replace(Arc::new(next));
        if have_moved {
            info!("links are in {} now; Services are listed again", names_of(&zones.links));
        } else {
            info!(
                "the zones of links have other rules, or other names are reserved; Services are listed again"
            );
        }
    }
}

fn has_same_zones(one: &HostnamePolicy, other: &HostnamePolicy) -> bool {
    let zones = |policy: &HostnamePolicy| {
        let HostnamePolicy { targets, zones: mut own, reserved_labels, closed_zones, .. } = policy.clone();
        own.retain(|zone| zone.k8s_gateway.is_some());
        (targets.zones, targets.cluster_zones, own, reserved_labels, closed_zones)
    };
    zones(one) == zones(other)
}
