//! Looks at the Lease of other processes, without taking part in their election.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client};
use tokio::time::{Instant, sleep};

use super::elector::Timing;
use super::{ask, lease};

/// Time between two reads of a Lease.
const INTERVAL: Duration = Duration::from_secs(1);
/// The longest duration of a Lease that is waited for.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// Returns the holder of a Lease if it renews the Lease. `None` also if the Lease can't be read.
///
/// The clocks of this host and of the holder may differ. So a Lease has expired only if it isn't renewed for its duration
/// while it is observed, as for candidates; a Lease that its holder has released is known at once.
pub async fn living_holder(client: &Client, namespace: &str, name: &str) -> Option<String> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), namespace);
    let first = ask(leases.get_opt(name)).await.ok()??;
    let holder = lease::holder(&first)?;
    // With leader-for-life the Lease is deleted with the Pod of its holder.
    let Some(duration) = lease::duration(&first, Timing::DEFAULT.lease) else {
        return Some(holder.to_owned());
    };
    let deadline = Instant::now() + duration.min(MAX_WAIT);
    while Instant::now() < deadline {
        sleep(INTERVAL).await;
        let next = ask(leases.get_opt(name)).await.ok()??;
        if next.spec != first.spec {
            return lease::holder(&next).map(ToOwned::to_owned);
        }
    }
    None
}
