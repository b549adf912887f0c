//! Reads the objects that tell how the DNS of a cluster is configured.

use k8s_openapi::NamespaceResourceScope;
use std::fmt;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::api::{ApiResource, DynamicObject};
use kube::core::PartialObjectMeta;
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;

use super::own_service::list;
use super::platform::{
    COREDNS, COREDNS_CUSTOM, ClusterDns, DNS_SERVICES, KUBE_DNS, KUBE_SYSTEM, LB_LINKER_DNS, NODE_LOCAL,
    OPENSHIFT_DNS, identifying,
};
use crate::sync::k8s::discovery::is_served;
use crate::sync::k8s::errors::describe;
use crate::sync::k8s::watch::RequestQuery;

/// The label of nodes of EKS Auto Mode.
const EKS_AUTO_MODE: &str = "eks.amazonaws.com/compute-type=auto";
/// The API server doesn't answer, or doesn't accept the credentials: nothing else can be read either.
#[derive(Debug, thiserror::Error)]
#[error("{}", describe(.0, READ_VERSION, ""))]
pub struct NoAnswer(Box<kube::Error>);

const HINT: &str = "deploy/stub/ grants the permissions";
const READ_VERSION: &str = "read the version of the API server";

/// Reads the objects of the cluster DNS. Returns them with sentences about what couldn't be read. Deployments (GKE) and
/// nodes (GKE, EKS) are read only if `with_workloads`.
///
/// # Errors
/// If the API server doesn't answer the first request, or answers 401.
pub async fn read(client: &Client, with_workloads: bool) -> Result<(ClusterDns, Vec<String>), NoAnswer> {
    let mut reader = Reader { client, notices: Vec::new(), forbidden: Vec::new() };
    let mut dns = ClusterDns::default();
    match client.apiserver_version().await {
        Ok(version) => dns.server_version = version.git_version,
        Err(kube::Error::Api(status)) if status.code != 401 => {
            reader.notices.push(describe(&kube::Error::Api(status), READ_VERSION, ""));
        }
        Err(error) => return Err(NoAnswer(Box::new(error))),
    }
    for name in [COREDNS, COREDNS_CUSTOM, NODE_LOCAL[0], NODE_LOCAL[1], KUBE_DNS] {
        dns.config_maps.extend(reader.get::<ConfigMap>(name, HINT).await);
    }
    let kind = ApiResource {
        group: "operator.openshift.io".to_owned(),
        version: "v1".to_owned(),
        api_version: "operator.openshift.io/v1".to_owned(),
        kind: "DNS".to_owned(),
        plural: "dnses".to_owned(),
    };
    let is_open_shift = is_served(client.clone(), &kind.api_version, &kind.plural).await;
    let doing = format!("ask whether the API server serves {}", kind.api_version);
    let is_open_shift = reader.or_notice(is_open_shift, &doing, "").unwrap_or_default();
    for (namespace, name) in DNS_SERVICES {
        // Elsewhere, the namespace may be a user's.
        if namespace == OPENSHIFT_DNS && !is_open_shift {
            continue;
        }
        let found = list(client, &RequestQuery::named(namespace, name), Some).await;
        let found = reader.or_notice(found, &format!("list Services in namespace {namespace}"), "");
        dns.services.extend(found.into_iter().flatten());
    }
    if dns.selects_lb_linker() {
        dns.config_maps.extend(reader.get::<ConfigMap>(LB_LINKER_DNS, HINT).await);
    }
    let is_gke = dns.server_version.contains("-gke.");
    if with_workloads && is_gke {
        let kind = ApiResource::erase::<Deployment>(&());
        let deployments = Api::<DynamicObject>::namespaced_with(client.clone(), KUBE_SYSTEM, &kind);
        let found = deployments.get_opt(KUBE_DNS).await;
        let found = reader.or_notice(found, &format!("read Deployment {KUBE_SYSTEM}/{KUBE_DNS}"), "");
        dns.deployments.extend(found.flatten());
    }
    if with_workloads && (is_gke || dns.server_version.contains("-eks-")) {
        let labels = if is_gke { String::new() } else { EKS_AUTO_MODE.to_owned() };
        let query = RequestQuery { labels, metadata_only: true, ..RequestQuery::default() };
        let name = |node: PartialObjectMeta<Node>| Some(identifying(&node.metadata));
        let nodes = list(client, &query, name).await;
        dns.nodes.extend(reader.or_notice(nodes, "list nodes", "").into_iter().flatten());
    }
    if is_open_shift {
        let operator = match Api::<DynamicObject>::all_with(client.clone(), &kind).get_opt("default").await {
            // lb-linker's own permissions don't include it.
            Err(kube::Error::Api(status)) if status.code == 403 => Ok(None),
            found => found,
        };
        dns.dns_operator = reader.or_notice(operator, "read dns.operator/default", "").flatten();
    }
    Ok((dns, reader.into_notices()))
}

struct Reader<'a> {
    client: &'a Client,
    /// What couldn't be read, each sentence once.
    notices: Vec<String>,
    /// What the API server forbids: a hint, what was tried, and the first error.
    forbidden: Vec<(String, Vec<String>, kube::Error)>,
}

impl Reader<'_> {
    async fn get<K>(&mut self, name: &str, hint: &str) -> Option<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + DeserializeOwned + fmt::Debug,
    {
        let found = Api::<K>::namespaced(self.client.clone(), KUBE_SYSTEM).get_opt(name).await;
        let what = format!("read {} {KUBE_SYSTEM}/{name}", K::kind(&()));
        self.or_notice(found, &what, hint).flatten()
    }

    fn or_notice<T>(&mut self, found: kube::Result<T>, doing: &str, hint: &str) -> Option<T> {
        let is_forbidden =
            |error: &kube::Error| matches!(error, kube::Error::Api(status) if status.code == 403);
        match found {
            Ok(found) => return Some(found),
            Err(error) if is_forbidden(&error) => {
                let of_hint = self.forbidden.iter_mut().find(|(known, ..)| known == hint);
                match of_hint {
                    Some((_, all, _)) if all.iter().any(|known| known == doing) => {}
                    Some((_, all, _)) => all.push(doing.to_owned()),
                    None => self.forbidden.push((hint.to_owned(), vec![doing.to_owned()], error)),
                }
            }
            Err(error) => {
                let sentence = describe(&error, doing, hint);
                if !self.notices.contains(&sentence) {
                    self.notices.push(sentence);
                }
            }
        }
        None
    }

    /// Returns the sentences about what couldn't be read: one about all that the API server forbids for want of the same
    /// permissions.
    fn into_notices(mut self) -> Vec<String> {
        let sentences =
            self.forbidden.iter().map(|(hint, all, error)| describe(error, &without_repetition(all), hint));
        self.notices.extend(sentences);
        self.notices
    }
}

/// Returns `read ConfigMap a, b, list nodes`: consecutive parts that differ only in the last word share the words before.
fn without_repetition(parts: &[String]) -> String {
    let mut text = String::new();
    let mut known = "";
    for part in parts {
        let (doing, object) = part.rsplit_once(' ').unwrap_or(("", part));
        let separator = if text.is_empty() { "" } else { ", " };
        text += separator;
        text += if !known.is_empty() && doing == known { object } else { part };
        known = doing;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::test_support;

    #[tokio::test]
    async fn what_is_forbidden_is_told_in_one_sentence_for_each_remedy() {
        let client = test_support::client(|request| match request.uri().path() {
            "/version" => (
                200,
                serde_json::json!({"major": "1", "minor": "34", "gitVersion": "v1.34.0", "gitCommit": "", "gitTreeState": "",
                    "buildDate": "", "goVersion": "", "compiler": "", "platform": ""}),
            ),
            path => {
                let what = if path.contains("configmaps") { "configmaps" } else { "services" };
                let message = format!("{what} is forbidden: User \"ann\" cannot get resource \"{what}\"");
                test_support::status(403, "Forbidden", &message)
            }
        });
        let (_, notices) = read(&client, false).await.unwrap();
        assert_eq!(notices.len(), 2, "{notices:#?}");
        let first = "can't read ConfigMap kube-system/coredns, kube-system/coredns-custom, ";
        assert!(notices[0].starts_with(first), "{notices:#?}");
        assert_eq!(notices[0].matches("ConfigMap").count(), 1, "{notices:#?}");
        assert!(notices[0].ends_with("; the user of the kubeconfig lacks this permission"), "{notices:#?}");
    }
}
