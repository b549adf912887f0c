//! Whether remote clusters can be used: their kubeconfigs, their API servers, and the permissions there.

use std::sync::Arc;
use std::time::Duration;

use futures::future::{join_all, try_join_all};
use tokio::time::timeout;

use super::permissions::{in_remote_cluster, review_access};
use super::report::CheckReport;
use crate::dns::plugins::lb_linker::LinkZone;
use crate::model::remote::RemoteCluster;
use crate::sync::k8s::client::{ClientConnection, connect};
use crate::sync::k8s::errors::{describe, no_answer};
use crate::sync::k8s::remotes::{KUBE_SYSTEM, RemoteError, uid_of_cluster};

/// The timeout of the first request to a cluster.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// A remote cluster's name and client.
pub(super) type ConnectedRemote = (Arc<str>, ClientConnection);

/// Makes a client for each remote cluster. Doesn't connect yet.
///
/// # Errors
/// If a kubeconfig can't be used.
pub(super) async fn connect_remotes(remotes: &[RemoteCluster]) -> Result<Vec<ConnectedRemote>, RemoteError> {
    let connected = remotes.iter().map(|RemoteCluster { name, kubeconfig, context }| async move {
        match connect(Some(kubeconfig.clone()), context.clone()).await {
            Ok(connection) => Ok((Arc::clone(name), connection)),
            Err(source) => Err(RemoteError { name: Arc::clone(name), source: source.into() }),
        }
    });
    try_join_all(connected).await
}

/// Checks whether a remote cluster is the home cluster. With `asks`, asks the API servers for that, and for the permissions
/// that these zones need.
pub(super) async fn check_remotes(
    check_report: &mut CheckReport,
    remotes: &[ConnectedRemote],
    zones: &[LinkZone],
    home: Option<&ClientConnection>,
    asks: bool,
) {
    if remotes.is_empty() {
        return;
    }
    let of_home = home.filter(|_| asks).map(|home| &home.client);
    let home_uid = async { timeout(REQUEST_TIMEOUT, uid_of_cluster(of_home?)).await.ok()?.ok()? }.await;
    let checks = remotes.iter().map(|remote| check_remote(remote, zones, (home, home_uid.as_deref()), asks));
    join_all(checks).await.into_iter().for_each(|report| check_report.append(report));
}

/// Checks one remote cluster; its API server only if `asks`.
async fn check_remote(
    (name, ClientConnection { client, server, identity }): &ConnectedRemote,
    zones: &[LinkZone],
    (home, home_uid): (Option<&ClientConnection>, Option<&str>),
    asks: bool,
) -> CheckReport {
    let mut report = CheckReport::default();
    report.lines.push(format!("cluster {name}: API server {server}"));
    let answer = if asks { Some(timeout(REQUEST_TIMEOUT, uid_of_cluster(client)).await) } else { None };
    let is_compared = home_uid.is_some() && matches!(answer, Some(Ok(Ok(Some(_)))));
    if !is_compared && home.is_some_and(|home| home.identity.borrow().is_same(&identity.borrow())) {
        report.warnings.push(format!(
            "--remote {name}: {server} is the API server of this cluster itself: correct the kubeconfig or the context, or \
             leave the flag out"
        ));
    }
    let Some(answer) = answer else { return report };
    let doing = format!("read namespace {KUBE_SYSTEM}");
    match answer {
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
    review_access(&mut report, client.clone(), &server, &in_remote_cluster(name, zones.iter())).await;
    report
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use crate::cli::check::check;
    use crate::cli::flags::Flags;

    #[derive(Parser)]
    struct TestCli {
        #[command(flatten)]
        flags: Flags,
    }

    /// Returns what `check` warns about, or its error, with the API server of the home cluster and this remote one.
    async fn checked(home: &str, remote: &str) -> Result<Vec<String>, String> {
        let directory = tempfile::tempdir().unwrap();
        let path = |server: &str| {
            let path = directory.path().join(server.replace(['/', ':'], "-"));
            let config = format!(
                "{{clusters: [{{name: c, cluster: {{server: '{server}'}}}}], current-context: c, \
                 contexts: [{{name: c, context: {{cluster: c, user: u}}}}], users: [{{name: u, user: {{token: t}}}}]}}"
            );
            (server != "missing").then(|| std::fs::write(&path, config).unwrap());
            path.display().to_string()
        };
        let west = format!("west={}", path(remote));
        let arguments = ["lb-linker", "--upstream", "none", "--kubeconfig", &path(home), "--remote", &west];
        let flags = TestCli::try_parse_from(arguments).unwrap().flags;
        let report = check(&flags, false).await.map_err(|error| error.to_string())?;
        assert!(report.lines.iter().any(|line| line.starts_with("cluster west: API server http")));
        Ok(report.warnings)
    }

    #[tokio::test]
    async fn api_server_of_the_home_cluster_is_no_remote_one() {
        let home = "http://192.0.2.1:6443";
        assert_eq!(checked(home, "http://192.0.2.2:6443").await, Ok(Vec::new()));
        let warnings = checked(home, home).await.unwrap();
        let expected = "--remote west: http://192.0.2.1:6443 (context \"c\" of ";
        assert!(warnings.len() == 1 && warnings[0].starts_with(expected), "{warnings:?}");
        assert!(warnings[0].contains("is the API server of this cluster itself"), "{warnings:?}");
    }

    #[tokio::test]
    async fn kubeconfig_that_cant_be_used_is_told_alone() {
        let error = checked("http://192.0.2.1:6443", "missing").await.unwrap_err();
        assert!(error.starts_with("--remote west: kubeconfig "), "{error}");
    }
}
