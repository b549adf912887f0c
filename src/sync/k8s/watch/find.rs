//! Lists and finds objects once, without a watch.

use kube::api::VersionMatch;
use kube::core::Request;
use kube::{Client, Resource};
use serde::de::DeserializeOwned;

use super::request::{RequestQuery, broken, read_one, read_page};
use super::wire::{PageError, PageSize};
use crate::sync::k8s::deserialize_guard::RawDeserializeGuard;

/// Lists the objects of a query once, and passes them to `on_page` page by page.
///
/// # Errors
/// If a page can't be read; with code 410 if the list has taken too long.
pub async fn list_pages<K>(
    client: Client,
    query: &RequestQuery,
    mut on_page: impl FnMut(Vec<RawDeserializeGuard<K>>),
) -> kube::Result<()>
where
    K: Resource<DynamicType = ()> + DeserializeOwned,
{
    let request = Request::new(query.path::<K>());
    let (mut size, mut token) = (PageSize::default(), None);
    loop {
        let limit = size.objects();
        let page = query.list_request(&request, limit, token.as_deref());
        match read_page::<K>(client.clone(), page, limit).await {
            Ok((page, bytes)) => {
                size = size.after(page.items.len(), bytes);
                on_page(page.items);
                token = page.metadata.continue_.filter(|token| !token.is_empty());
                if token.is_none() {
                    return Ok(());
                }
            }
            Err(PageError::TooLarge) => size = size.smaller(),
            Err(PageError::Kube(error)) => return Err(error),
        }
    }
}

/// Finds the object of a query ([`RequestQuery::named`]). Needs only the permission to list.
///
/// # Errors
/// If the API server refuses, or doesn't complete its answer within ten seconds.
pub(crate) async fn find<K>(
    client: Client,
    query: &RequestQuery,
) -> kube::Result<Option<RawDeserializeGuard<K>>>
where
    K: Resource<DynamicType = ()> + DeserializeOwned,
{
    Ok(find_at::<K>(client, query, None).await?.0)
}

/// Like [`find`], but returns `None` only if the object doesn't exist in etcd, whatever the watch cache contains.
///
/// An API server answers from its watch cache if the cache has reached etcd's revision. After a restore of etcd to an
/// earlier revision, the cache of an API server that wasn't restarted is ahead of etcd, and counts as fresh. A list of
/// one name at an exact version is always read from etcd, which refuses a version that it hasn't reached (504).
///
/// # Errors
/// As for [`find`], and if etcd hasn't reached the version of the first answer.
pub(crate) async fn find_in_etcd<K>(
    client: Client,
    query: &RequestQuery,
) -> kube::Result<Option<RawDeserializeGuard<K>>>
where
    K: Resource<DynamicType = ()> + DeserializeOwned,
{
    match find_at(client.clone(), query, None).await? {
        (None, Some(version)) => Ok(find_at(client, query, Some(&version)).await?.0),
        (found, _) => Ok(found),
    }
}

/// Finds the object of a query, at present or at a resourceVersion. Also returns the resourceVersion of the answer, if
/// any.
async fn find_at<K>(
    client: Client,
    query: &RequestQuery,
    version: Option<&str>,
) -> kube::Result<(Option<RawDeserializeGuard<K>>, Option<String>)>
where
    K: Resource<DynamicType = ()> + DeserializeOwned,
{
    let request = Request::new(K::url_path(&(), query.namespace.as_deref()));
    let mut params = query.list(1, None);
    if let Some(version) = version {
        params = params.at(version).matching(VersionMatch::Exact);
    }
    match read_one::<K>(client, query.request_of(&request, &params)).await {
        Ok((page, _)) => {
            let version = page.metadata.resource_version.filter(|version| !version.is_empty());
            Ok((page.items.into_iter().next(), version))
        }
        Err(PageError::Kube(error)) => Err(error),
        Err(PageError::TooLarge) => Err(broken("the object is too large")),
    }
}
