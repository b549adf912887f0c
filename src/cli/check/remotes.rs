//! Whether remote clusters can be used: their kubeconfigs, their API servers, and the permissions there.

use std::time::Duration;

use futures::future::join_all;
use kube::Client;
use tokio::time::timeout;

use super::permissions::{in_remote_cluster, review_access};
use super::report::CheckReport;
use crate::cli::flags::Flags;
use crate::dns::plugins::lb_linker::LinkZone;
use crate::model::remote::RemoteCluster;
use crate::sync::k8s::client::{ClientConnection, connect};
use crate::sync::k8s::errors::{describe, no_answer};
use crate::sync::k8s::remotes::{KUBE_SYSTEM, RemoteError, uid_of_cluster};

/// The timeout of the first request to a cluster.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// Checks the kubeconfig of each remote cluster. With a client of the home cluster, also asks the API servers for the
/// permissions that these zones need, and whether a remote cluster is the home cluster.
pub(super) async fn check_remotes(
    check_report: &mut CheckReport,
    flags: &Flags,
    zones: &[LinkZone],
    home: Option<&Client>,
) {
    let remotes = &flags.remote.remotes;
    if remotes.is_empty() {
        return;
    }
    let asks = home.is_some();
    let home_uid = async { timeout(REQUEST_TIMEOUT, uid_of_cluster(home?)).await.ok()?.ok()? }.await;
    let checks = remotes.iter().map(|remote| check_remote(remote, zones, asks, home_uid.as_deref()));
    join_all(checks).await.into_iter().for_each(|report| check_report.append(report));
}

/// Checks one remote cluster; its API server only if `asks`.
async fn check_remote(
    remote: &RemoteCluster,
    zones: &[LinkZone],
    asks: bool,
    home_uid: Option<&str>,
) -> CheckReport {
    let (mut report, name) = (CheckReport::default(), &remote.name);
    let connected = connect(Some(remote.kubeconfig.clone()), remote.context.clone()).await;
    let ClientConnection { client, server, .. } = match connected {
        Ok(connected) => connected,
        Err(source) => {
            let error = RemoteError { name: name.clone(), source: source.into() };
            report.input_errors.push(error.to_string());
            return report;
        }
    };
    report.lines.push(format!("cluster {name}: API server {server}"));
    if !asks {
        return report;
    }
    let doing = format!("read namespace {KUBE_SYSTEM}");
    match timeout(REQUEST_TIMEOUT, uid_of_cluster(&client)).await {
        Ok(Ok(Some(uid))) if home_uid == Some(&*uid) => {
            report.input_errors.push(format!(
                "--remote {name}: {server} is this cluster itself (its namespace {KUBE_SYSTEM} has the same uid): correct \
                 the kubeconfig or the context, or leave the flag out"
            ));
            return report;
        }
        Ok(Ok(_)) => {}
        // Its permissions tell more.
        Ok(Err(kube::Error::Api(status))) if matches!(status.code, 403 | 404) => {}
        Ok(Err(error)) => {
            let why = describe(&error, &doing, "");
            report.cluster_errors.push(format!("--remote {name}: {server}: {why}"));
            return report;
        }
        Err(_) => {
            let why = no_answer(REQUEST_TIMEOUT);
            report.cluster_errors.push(format!("--remote {name}: {server}: can't {doing}: {why}"));
            return report;
        }
    }
    let server = format!("--remote {name}: {server}");
    review_access(&mut report, client, &server, &in_remote_cluster(name, zones.iter())).await;
    report
}
