//! `lb-linker takeover`: removes the earlier operator's finalizer from load balancers, and lists its orphaned external
//! targets.

pub mod finalizers;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::future::Future;
use std::time::Duration;

use futures::StreamExt;
use kube::{Client, ResourceExt};

use crate::cli::flags::Flags;
use crate::model::excerpt::examples;
use crate::model::service_key::ServiceKey;
use crate::sync::external_target::decision::SyncMode;
use crate::sync::external_target::orphans::{orphan_of, removal_command};
use crate::sync::k8s::client::{ApiServer, ClientConnection, ClientError, connect};
use crate::sync::k8s::deserialize_guard::RawDeserializeGuard;
use crate::sync::k8s::errors::describe;
use crate::sync::k8s::errors::{ListError, in_place, is_uid_mismatch, watch_scopes};
use crate::sync::k8s::forbidden::Forbidden;
use crate::sync::k8s::labels::MANAGED_BY;
use crate::sync::k8s::service::{FINALIZER, LOAD_BALANCER, Service};
use crate::sync::k8s::watch::{RequestQuery, list_pages};
use crate::sync::source::selection::Selection;
use crate::takeover::finalizers::{ServiceWithFinalizer, list_services_with_finalizer, remove_finalizer};

/// The maximum number of concurrent patches, each on a connection of its own.
const MAX_CONCURRENT_PATCHES: usize = 8;
/// The pauses before the retries of a request after temporary API errors. There is one retry for each pause.
const RETRY_PAUSES: [Duration; 3] =
    [Duration::from_millis(500), Duration::from_secs(1), Duration::from_secs(2)];
/// The number of Services between two progress messages.
const PROGRESS_INTERVAL: usize = 500;
/// The number of external targets in one command, so that a shell accepts the line and users can read it.
const MAX_ORPHANS_PER_COMMAND: usize = 20;
const PERMISSION_HINT: &str = "deploy/takeover/ grants the permissions";

#[derive(Debug, Default)]
pub struct TakeoverReport {
    /// Lines for the user, in order.
    pub lines: Vec<String>,
    pub problems: Vec<String>,
}

/// Removes the earlier operator's finalizer from every Service in the watched namespaces, and lists its orphans. With
/// `dry_run` or `--sync plan` only reports what would be done. Changes nothing if `objection` returns why these objects
/// of the API server mustn't be changed; it gets the lines of that report, too. `progress` gets progress messages.
///
/// # Errors
/// If no client of the cluster can be created.
pub async fn takeover(
    flags: &Flags,
    dry_run: bool,
    objection: impl Fn(&[String], &[String], &ApiServer) -> Option<&'static str>,
    progress: impl Fn(&str),
) -> Result<TakeoverReport, ClientError> {
    let ClientConnection { client, server, .. } =
        connect(flags.kubeconfig.clone(), flags.context.clone()).await?;
    progress(&format!("API server {server}"));
    let selection = flags.selection();
    // Ignores the default of --sync, because the subcommand itself asks for writes.
    let dry_run = dry_run || flags.sync == Some(SyncMode::Plan);
    let mut outcome = TakeoverReport::default();
    match find(&client, &selection, &progress).await {
        Ok(found) => {
            let services: Vec<String> = found.iter().map(|it| format!("Service {}", it.key)).collect();
            if !services.is_empty() {
                progress(&format!("Services with the finalizer {FINALIZER}: {}", services.len()));
            }
            let plan = report_of_plan(&found, &selection.namespaces);
            if dry_run || services.is_empty() {
                outcome.lines.extend(plan);
            } else if let Some(objection) = objection(&services, &plan, &server) {
                outcome.problems.push(objection.to_owned());
            } else {
                remove_all(&client, found, &progress, &mut outcome).await;
            }
        }
        Err(error) => {
            outcome.problems.push(error.explain(PERMISSION_HINT));
            if error.code() == 0 {
                // The API server doesn't respond.
                return Ok(outcome);
            }
        }
    }
    let namespace = &flags.target_namespace;
    match orphans(&client, namespace, &selection, &flags.instance()).await {
        Ok(orphans) => outcome.lines.extend(orphan_lines(namespace, &orphans)),
        Err(error) => outcome.problems.push(error.explain(PERMISSION_HINT)),
    }
    Ok(outcome)
}

async fn find(
    client: &Client,
    selection: &Selection,
    progress: &impl Fn(&str),
) -> Result<Vec<ServiceWithFinalizer>, ListError> {
    let code = |error: &ListError| error.code();
    retry(code, || async {
        let mut looked_at = 0;
        list_services_with_finalizer(client, selection, |services| {
            let before = looked_at / PROGRESS_INTERVAL;
            looked_at += services;
            if looked_at / PROGRESS_INTERVAL > before {
                progress(&format!("Services looked at: {looked_at}"));
            }
        })
        .await
    })
    .await
}

/// Returns the lines about what would be done.
fn report_of_plan(found: &[ServiceWithFinalizer], namespaces: &BTreeSet<String>) -> Vec<String> {
    if found.is_empty() {
        let places: Vec<String> = watch_scopes(namespaces).map(|place| in_place("Service", place)).collect();
        return vec![format!("no {} carries the finalizer {FINALIZER}", places.join(", no "))];
    }
    table(&found.iter().map(|bound| row(bound, &RemovalResult::NotTried)).collect())
}

async fn remove_all(
    client: &Client,
    found: Vec<ServiceWithFinalizer>,
    progress: &impl Fn(&str),
    outcome: &mut TakeoverReport,
) {
    let number = found.len();
    let (mut done, mut failed) = (0, 0);
    let mut rows = BTreeMap::new();
    let mut forbidden = None;
    let freed = futures::stream::iter(found).map(|bound| async move {
        let freed = remove_one(client, &bound).await;
        (bound, freed)
    });
    let mut freed = std::pin::pin!(freed.buffer_unordered(MAX_CONCURRENT_PATCHES));
    while let Some((bound, freed)) = freed.next().await {
        done += 1;
        if done % PROGRESS_INTERVAL == 0 {
            progress(&format!("Services done: {done} of {number}"));
        }
        if let RemovalResult::Failed { forbidden: by_rbac, .. } = &freed {
            failed += 1;
            if let Some(sentence) = by_rbac {
                forbidden.get_or_insert_with(|| sentence.clone());
            }
        }
        rows.extend([row(&bound, &freed)]);
    }
    outcome.lines.extend(table(&rows));
    if failed > 0 {
        outcome
            .problems
            .push(format!("Services that couldn't be freed: {failed} of {number}, see the table"));
    }
    // Reported once, however many Services the missing permission affects.
    outcome.problems.extend(forbidden);
}

#[derive(Debug)]
enum RemovalResult {
    /// The Service exists, without the finalizer.
    Free,
    Deleted,
    /// The finalizer is removed, but other finalizers still block the deletion.
    HeldBy(Vec<String>),
    /// Nothing was changed (dry run).
    NotTried,
    Failed {
        reason: String,
        /// The message about a missing permission, which is reported once.
        forbidden: Option<String>,
    },
}

impl std::fmt::Display for RemovalResult {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Free => f.write_str("freed"),
            Self::Deleted => f.write_str("freed, and gone"),
            Self::HeldBy(others) => write!(f, "freed, and still held by {}", examples(others)),
            Self::NotTried => f.write_str("would be freed"),
            Self::Failed { reason, .. } => write!(f, "NOT freed: {reason}"),
        }
    }
}

async fn remove_one(client: &Client, service: &ServiceWithFinalizer) -> RemovalResult {
    let freed = retry(code, || remove_finalizer(client, service)).await;
    match freed {
        Ok(_) if service.blocks_deletion && service.other_finalizers.is_empty() => RemovalResult::Deleted,
        Ok(service) if service.metadata.deletion_timestamp.is_some() => {
            let others = service.metadata.finalizers.unwrap_or_default();
            if others.is_empty() { RemovalResult::Deleted } else { RemovalResult::HeldBy(others) }
        }
        Ok(_) => RemovalResult::Free,
        Err(error) => match code(&error) {
            404 => RemovalResult::Deleted,
            403 if Forbidden::of(&error, "patch", "services") == Some(Forbidden::Authorizer) => {
                let namespace = &service.key.namespace();
                let doing = format!("patch Services in namespace {namespace}");
                RemovalResult::Failed {
                    reason: format!("no permission to patch Services in namespace {namespace}"),
                    forbidden: Some(describe(&error, &doing, PERMISSION_HINT)),
                }
            }
            _ if is_uid_mismatch(&error) => RemovalResult::Failed {
                reason: "another Service has its name by now; run this again".to_owned(),
                forbidden: None,
            },
            _ => RemovalResult::Failed { reason: describe(&error, "patch it", ""), forbidden: None },
        },
    }
}

fn code(error: &kube::Error) -> u16 {
    match error {
        kube::Error::Api(status) => status.code,
        _ => 0,
    }
}

/// Retries a request a few times after temporary API errors, conflicts with other writers (409), and expired pages of a
/// list (410), which is then begun again.
async fn retry<T, E, F: Future<Output = Result<T, E>>>(
    code: impl Fn(&E) -> u16,
    request: impl Fn() -> F,
) -> Result<T, E> {
    for pause in RETRY_PAUSES {
        match request().await {
            Err(error) if matches!(code(&error), 0 | 409 | 410 | 429 | 500..) => {
                tokio::time::sleep(pause).await
            }
            result => return result,
        }
    }
    request().await
}

/// Returns the orphans: external targets that the earlier operator wrote for Services that are gone or not selected.
/// Each has the key of its Service.
async fn orphans(
    client: &Client,
    target_namespace: &str,
    selection: &Selection,
    instance: &str,
) -> Result<BTreeMap<String, ServiceKey>, ListError> {
    let labelled =
        RequestQuery { labels: format!("{}={}", MANAGED_BY.0, MANAGED_BY.1), ..RequestQuery::default() };
    let objects = list(client, Some(target_namespace), "Services", labelled).await?;
    let mut orphans: BTreeMap<String, ServiceKey> = objects
        .into_iter()
        .filter_map(|object| {
            let service = object.0.ok()?;
            Some((service.metadata.name.clone()?, orphan_of(&service.metadata, selection, Some(instance))?))
        })
        .collect();
    if orphans.is_empty() {
        return Ok(orphans);
    }
    let mut living = HashSet::new();
    for place in watch_scopes(&selection.namespaces) {
        let fields = RequestQuery { fields: format!("spec.type={LOAD_BALANCER}"), ..RequestQuery::default() };
        for service in list(client, place, "LoadBalancer Services", fields).await? {
            let key = ServiceKey::new(&service.namespace().unwrap_or_default(), &service.name_any());
            // A Service that can't be decoded exists nevertheless.
            if service.0.as_ref().is_ok_and(|service| !selection.selects(service)) {
                continue;
            }
            living.insert(key);
        }
    }
    orphans.retain(|_, key| !living.contains(key));
    Ok(orphans)
}

async fn list(
    client: &Client,
    place: Option<&str>,
    what: &str,
    query: RequestQuery,
) -> Result<Vec<RawDeserializeGuard<Service>>, ListError> {
    let query = RequestQuery { namespace: place.map(ToOwned::to_owned), ..query };
    let all = || async {
        let mut all = Vec::new();
        list_pages(client.clone(), &query, |page| all.extend(page)).await?;
        Ok(all)
    };
    retry(code, all)
        .await
        .map_err(|source| ListError { what: in_place(what, place), source: Box::new(source) })
}

fn row(service: &ServiceWithFinalizer, freed: &RemovalResult) -> (ServiceKey, (&'static str, String)) {
    let state = if service.blocks_deletion { "stuck in deletion" } else { "in use" };
    (service.key.clone(), (state, freed.to_string()))
}

fn table(rows: &BTreeMap<ServiceKey, (&str, String)>) -> Vec<String> {
    let names: Vec<String> = rows.keys().map(ToString::to_string).collect();
    let width = names.iter().map(String::len).max().unwrap_or_default().max("SERVICE".len());
    let row = |name: &str, was: &str, now: &str| format!("{name:width$}  {was:17}  {now}");
    let head = row("SERVICE", "WAS", "NOW");
    std::iter::once(head)
        .chain(names.iter().zip(rows.values()).map(|(name, (was, now))| row(name, was, now)))
        .collect()
}

fn orphan_lines(namespace: &str, orphans: &BTreeMap<String, ServiceKey>) -> Vec<String> {
    if orphans.is_empty() {
        return vec![format!("no orphans in namespace {namespace}")];
    }
    let width = orphans.keys().map(String::len).max().unwrap_or_default().max("ORPHAN".len());
    let mut lines =
        vec![String::new(), format!("{:width$}  LOAD BALANCER, WHICH IS GONE OR NOT SELECTED", "ORPHAN")];
    lines.extend(orphans.iter().map(|(object, key)| format!("{object:width$}  {key}")));
    lines.push(String::new());
    lines.push("To remove them (or run lb-linker with --prune):".to_owned());
    let names: Vec<&str> = orphans.keys().map(String::as_str).collect();
    lines.extend(
        names.chunks(MAX_ORPHANS_PER_COMMAND).map(|names| format!("  {}", removal_command(namespace, names))),
    );
    lines
}

#[cfg(test)]
mod tests {
    use crate::takeover::*;

    #[test]
    fn table_column_fits_the_longest_name() {
        let rows = BTreeMap::from([
            (ServiceKey::new("shop", "web"), ("in use", RemovalResult::Free.to_string())),
            (
                ServiceKey::new("shop", "an-older-one"),
                ("stuck in deletion", RemovalResult::HeldBy(vec!["a/b".to_owned()]).to_string()),
            ),
        ]);
        assert_eq!(
            table(&rows),
            [
                "SERVICE            WAS                NOW",
                "shop/an-older-one  stuck in deletion  freed, and still held by a/b",
                "shop/web           in use             freed",
            ]
        );
    }

    #[test]
    fn removal_commands_name_all_orphans_in_chunks() {
        assert_eq!(orphan_lines("targets", &BTreeMap::new()), ["no orphans in namespace targets"]);
        let orphans: BTreeMap<String, ServiceKey> =
            (10..35).map(|i| (format!("svc-{i}-shop-ext"), ServiceKey::new("shop", "svc"))).collect();
        let lines = orphan_lines("targets", &orphans);
        let commands: Vec<&String> = lines.iter().filter(|line| line.contains("kubectl delete")).collect();
        assert_eq!(commands.len(), 2);
        assert!(commands[1].starts_with("  kubectl delete service -n targets svc-30-shop-ext svc-31"));
    }

    #[tokio::test(start_paused = true)]
    async fn only_temporary_api_errors_are_retried() {
        for (answer, tries) in [(503, 4), (0, 4), (409, 4), (410, 4), (403, 1), (404, 1)] {
            let tried = std::cell::Cell::new(0);
            let request = || async {
                tried.set(tried.get() + 1);
                Err::<(), u16>(answer)
            };
            assert_eq!(retry(|code| *code, request).await, Err(answer));
            assert_eq!(tried.get(), tries, "{answer}");
        }
    }
}
