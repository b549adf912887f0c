//! Whether external targets can be created in the target namespace: the permissions may exist without the namespace.

use std::time::Duration;

use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};

use super::report::CheckReport;
use crate::model::excerpt::sentence;
use crate::sync::external_target::decision::SyncMode;
use crate::sync::k8s::errors::describe;
use crate::sync::k8s::forbidden::Forbidden;
use crate::sync::k8s::service::{EXTERNAL_NAME, Service, Spec};

/// The timeout of the dry run, admission webhooks included.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// The namespace of the manifests in `deploy/targets/`.
const DEFAULT_TARGET_NAMESPACE: &str = "external-targets";

/// Creates an external target as a dry run. Reports no missing permissions: [`super::permissions`] does that. With
/// `--sync plan`, which writes nothing, reports only a missing namespace.
pub(super) async fn dry_run_create(
    check_report: &mut CheckReport,
    client: Client,
    namespace: &str,
    sync: SyncMode,
) {
    let api: Api<Service> = Api::namespaced(client, namespace);
    let metadata = ObjectMeta { generate_name: Some("lb-linker-check-".to_owned()), ..Default::default() };
    let spec = Spec {
        type_: Some(EXTERNAL_NAME.to_owned()),
        external_name: Some("check.lb-linker.invalid".to_owned()),
        ..Default::default()
    };
    let service = Service { metadata, spec, ..Service::default() };
    let dry_run = PostParams { dry_run: true, ..Default::default() };
    let Ok(answer) = tokio::time::timeout(REQUEST_TIMEOUT, api.create(&dry_run, &service)).await else {
        check_report
            .lines
            .push(format!("no answer within {REQUEST_TIMEOUT:?} to a dry run in namespace {namespace}"));
        return;
    };
    match answer {
        Err(kube::Error::Api(status)) if status.code == 404 => {
            check_report.cluster_errors.push(missing_namespace(namespace));
        }
        _ if sync == SyncMode::Plan => {}
        Ok(_) => {
            check_report.lines.push(format!("yes  external targets can be created in namespace {namespace}"))
        }
        Err(error) if Forbidden::of(&error, "create", "services") == Some(Forbidden::Authorizer) => {}
        Err(kube::Error::Api(status)) if status.code == 403 => check_report.cluster_errors.push(format!(
            "the target namespace {namespace} takes no external targets: {}",
            sentence(&status.message)
        )),
        // The API server refuses dry runs where an admission webhook has side effects.
        Err(error) => {
            let doing = format!("try an external target in namespace {namespace}");
            check_report.lines.push(describe(&error, &doing, ""));
        }
    }
}

fn missing_namespace(namespace: &str) -> String {
    let place = match namespace {
        DEFAULT_TARGET_NAMESPACE => String::new(),
        _ => format!(", with {namespace} in place of {DEFAULT_TARGET_NAMESPACE} in their files"),
    };
    format!(
        "the target namespace {namespace} doesn't exist: kubectl apply -f deploy/targets/{place} creates it with the \
         policy that protects it; for an lb-linker in the cluster then also deploy/, which has the Role"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_namespace_is_created_by_the_manifests() {
        let default = missing_namespace("external-targets");
        assert!(default.contains("kubectl apply -f deploy/targets/ creates it"), "{default}");
        let own = missing_namespace("own");
        assert!(own.contains("deploy/targets/, with own in place of external-targets"), "{own}");
    }
}
