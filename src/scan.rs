//! `lb-linker scan`: finds objects that name a load balancer and were written by hand.

pub mod annotate;
pub mod findings;
pub mod report;

use std::net::SocketAddr;

use futures::StreamExt;
use hickory_proto::op::ResponseCode;
use hickory_proto::rr::{Name, RecordType};
use kube::core::error_boundary::InvalidObject;
use kube::{Client, Resource};
use serde::de::DeserializeOwned;

use crate::model::excerpt::{examples, sentence};
use crate::query::Question;
use crate::scan::findings::{Candidate, Endpoints, Objects, Scan, Stale, find};
use crate::store::Store;
use crate::sync::events::RegardingKind;
use crate::sync::k8s::deserialize_guard::RawDeserializeGuard;
use crate::sync::k8s::errors::{ListError, in_place};
use crate::sync::k8s::watch::{RequestQuery, list_pages};
use crate::sync::source::gateway::Gateways;
use crate::sync::source::gateway::types::{Gateway, ListenerSet};
use crate::sync::source::ingress::{Ingress, Ingresses};
use crate::sync::source::names::source::{NameSource, WatchedKind};

/// The maximum number of hostnames that are looked up at the same time.
const LOOKUPS_AT_ONCE: usize = 16;

/// Where a scan looks.
pub struct ScanScope<'a> {
    pub client: &'a Client,
    /// The links of the cluster.
    pub store: &'a Store,
    pub target_namespace: &'a str,
    /// The namespace that is searched; all if `None`.
    pub namespace: Option<&'a str>,
    /// `--annotation-prefixes`.
    pub annotation_prefixes: &'a [String],
    /// The resolvers that tell whether a hostname exists.
    pub resolvers: &'a [SocketAddr],
}

/// Searches the cluster. Reads only.
///
/// # Errors
/// If the Services can't be listed. An error about EndpointSlices, Endpoints or StableNames becomes a notice.
pub async fn scan(scope: &ScanScope<'_>) -> Result<Scan, ListError> {
    let ScanScope { client, namespace, .. } = scope;
    let mut notices = Vec::new();
    let services = list(client, "Services", *namespace, &mut notices).await?;
    let mut objects = Objects { services, ..Objects::default() };
    match list(client, "EndpointSlices", *namespace, &mut notices).await {
        Ok(slices) => objects.slices = slices,
        Err(error) => notices.push(error.explain("")),
    }
    match list::<Endpoints>(client, "Endpoints", *namespace, &mut notices).await {
        Ok(endpoints) => objects.endpoints = endpoints,
        Err(error) => notices.push(error.explain("")),
    }
    // Without an override, the CRD of StableNames may be missing. StableNames may be in other namespaces than
    // the searched Services.
    if scope.store.links().iter().any(|link| link.overridden.is_some()) {
        match list(client, "StableNames", None, &mut notices).await {
            Ok(stable_names) => objects.stable_names = stable_names,
            Err(error) => notices.push(error.explain("")),
        }
    }
    let prefixes = scope.annotation_prefixes;
    let hosts = |ingress: &Ingress| ingress.target_hosts(prefixes);
    add_targets(client, &Ingresses::KINDS[0], hosts, &mut objects, &mut notices).await;
    for kind in Gateways::KINDS {
        match kind.kind {
            RegardingKind::Gateway => {
                let hosts = |gateway: &Gateway| gateway.target_hosts(prefixes);
                add_targets(client, kind, hosts, &mut objects, &mut notices).await;
            }
            RegardingKind::ListenerSet => {
                let hosts = |set: &ListenerSet| set.target_hosts(prefixes);
                add_targets(client, kind, hosts, &mut objects, &mut notices).await;
            }
            _ => {}
        }
    }
    let (mut scan, candidates) = find(&objects, scope.store, scope.target_namespace);
    scan.notices.splice(..0, notices);
    scan.probable = stale(candidates, scope.resolvers).await;
    Ok(scan)
}

/// Adds the objects of a kind that may be a source of names, by the hostnames of their targets. Without the right to
/// list them, or without their CRD, nothing else is missing.
async fn add_targets<K: Resource<DynamicType = ()> + DeserializeOwned>(
    client: &Client,
    WatchedKind { many, versions, .. }: &WatchedKind,
    hosts: impl Fn(&K) -> Vec<String>,
    objects: &mut Objects,
    notices: &mut Vec<String>,
) {
    let query = |version| RequestQuery { version, ..RequestQuery::default() };
    let mut found = list_query::<K>(client, many, query(versions.first().copied()), notices).await;
    for version in versions.iter().skip(1) {
        if found.as_ref().is_err_and(|error| error.code() == 404) {
            found = list_query(client, many, query(Some(version)), notices).await;
        }
    }
    let found = match found {
        Ok(found) => found,
        Err(error) if [403, 404].contains(&error.code()) => return,
        Err(error) => return notices.push(error.explain("")),
    };
    for object in found {
        let metadata = object.meta();
        let namespace = metadata.namespace.as_deref().unwrap_or("default");
        let name = metadata.name.as_deref().unwrap_or_default();
        for host in hosts(&object) {
            let objects = objects.of_targets.entry(host).or_default();
            objects.insert(format!("{} {namespace}/{name}", K::kind(&())));
        }
    }
}

/// Returns the objects that can be decoded. Adds a sentence about the remaining ones to `notices`.
pub(crate) async fn list<K: Resource<DynamicType = ()> + DeserializeOwned>(
    client: &Client,
    what: &str,
    namespace: Option<&str>,
    notices: &mut Vec<String>,
) -> Result<Vec<K>, ListError> {
    let query = RequestQuery { namespace: namespace.map(ToOwned::to_owned), ..RequestQuery::default() };
    list_query(client, what, query, notices).await
}

async fn list_query<K: Resource<DynamicType = ()> + DeserializeOwned>(
    client: &Client,
    what: &str,
    query: RequestQuery,
    notices: &mut Vec<String>,
) -> Result<Vec<K>, ListError> {
    let (mut all, mut undecodable) = (Vec::new(), Vec::new());
    let on_page = |page: Vec<RawDeserializeGuard<K>>| {
        for object in page {
            match object.0 {
                Ok(object) => all.push(object),
                Err(invalid) => undecodable.push(invalid),
            }
        }
    };
    list_pages(client.clone(), &query, on_page).await.map_err(|source| {
        let what = in_place(what, query.namespace.as_deref());
        ListError { what, source: Box::new(source) }
    })?;
    notices.extend(undecodable_notice(what, &undecodable));
    Ok(all)
}

/// Returns a sentence about the objects that can't be decoded; `None` if there are none.
fn undecodable_notice(what: &str, objects: &[InvalidObject]) -> Option<String> {
    let object = |InvalidObject { error, metadata }: &InvalidObject| {
        let (namespace, name) = (metadata.namespace.as_deref(), metadata.name.as_deref());
        format!("{}/{} ({})", namespace.unwrap_or_default(), name.unwrap_or_default(), sentence(error))
    };
    let examples = examples(objects.iter().map(object));
    (!objects.is_empty()).then(|| format!("{what} that can't be read are left out: {examples}"))
}

/// Returns the candidates whose hostname doesn't exist, or for which no resolver answers NOERROR or NXDOMAIN.
/// Ordered by namespace and name.
async fn stale(candidates: Vec<Candidate>, resolvers: &[SocketAddr]) -> Vec<Stale> {
    let looked_up = futures::stream::iter(candidates).map(|candidate| async move {
        let dns = absence_reason(&candidate.external_name, resolvers).await;
        dns.map(|dns| Stale {
            namespace: candidate.namespace,
            service: candidate.service,
            external_name: candidate.external_name,
            dns,
        })
    });
    let mut stale: Vec<Stale> =
        looked_up.buffer_unordered(LOOKUPS_AT_ONCE).filter_map(|found| async { found }).collect().await;
    stale.sort_by(|a, b| (&a.namespace, &a.service).cmp(&(&b.namespace, &b.service)));
    stale
}

/// Returns `NXDOMAIN`, or why DNS doesn't tell whether a hostname exists; `None` if it exists.
async fn absence_reason(hostname: &str, resolvers: &[SocketAddr]) -> Option<String> {
    let Ok(mut name) = Name::from_ascii(hostname) else { return Some("not a DNS name".to_owned()) };
    name.set_fqdn(true);
    let mut last = "no resolver to ask (--upstream)".to_owned();
    for &server in resolvers {
        let question = Question { server, name: name.clone(), qtype: RecordType::A };
        match question.ask().await.map(|answer| answer.rcode()) {
            Ok(ResponseCode::NoError) => return None,
            Ok(ResponseCode::NXDomain) => return Some("NXDOMAIN".to_owned()),
            Ok(rcode) => last = format!("{rcode} from {server}"),
            Err(error) => last = error.to_string(),
        }
    }
    Some(last)
}
