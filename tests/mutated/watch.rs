//! Properties of the decoder of the API server's answers, watches and lists, for arbitrary bytes, shared by the
//! property test and the fuzz target.

use std::sync::Arc;

use futures::FutureExt;
use futures::io::{BufReader, Cursor};
use kube::core::error_boundary::InvalidObject;
use lb_linker::api::stable_name::StableName;
use lb_linker::sync::k8s::deserialize_guard::RawDeserializeGuard;
use lb_linker::sync::k8s::service::Service;
use lb_linker::sync::k8s::watch::wire::{Events, Page, PageError, WireEvent};
use serde::de::DeserializeOwned;

use crate::links::Links;

/// Maximum length of the error of an object that can't be decoded, in bytes.
const MAX_ERROR: usize = 1024;
/// The limit of objects with which a page is requested.
const PAGE: u32 = 500;

/// Reads the bytes as a watch and as a list, of Services and of StableNames, in chunks of any size, and makes links
/// of the objects. Returns `page` or the kind of the last event, or the violated property.
pub fn try_watch(links: &Links, bytes: &[u8], chunk: usize) -> Result<&'static str, String> {
    let rule = |rule: String| format!("{rule}\n{}", String::from_utf8_lossy(bytes));
    check(links, bytes, chunk % 64 + 1).map_err(rule)
}

fn check(links: &Links, bytes: &[u8], chunk: usize) -> Result<&'static str, String> {
    let (mut services, mut stable_names) = (Vec::new(), Vec::new());
    let events = events::<Service>(bytes, bytes.len().max(1))?;
    let kinds = events.iter().map(kind).collect::<Result<Vec<_>, _>>()?;
    let lines = bytes.split_inclusive(|byte| *byte == b'\n');
    let lines = lines.filter(|line| line.ends_with(b"\n") && !line.trim_ascii().is_empty()).count();
    ensure(kinds.len() == lines, "each complete line is one event")?;
    let chunked = self::events::<Service>(bytes, chunk)?;
    let same = chunked.iter().map(kind).collect::<Result<Vec<_>, _>>()? == kinds;
    ensure(same, "events don't depend on the chunks in which they arrive")?;
    services.extend(objects(events));
    stable_names.extend(objects(self::events::<StableName>(bytes, chunk)?));

    let listed = page::<Service>(bytes)?;
    let is_page = listed.is_some();
    services.extend(listed.into_iter().flatten());
    stable_names.extend(page::<StableName>(bytes)?.into_iter().flatten());
    let stable_names: Vec<_> = stable_names.into_iter().map(Arc::new).collect();
    links.replace(&services, &stable_names)?;
    Ok(if is_page { "page" } else { kinds.last().copied().unwrap_or("nothing") })
}

fn events<K: DeserializeOwned>(bytes: &[u8], chunk: usize) -> Result<Vec<WireEvent<K>>, String> {
    let mut events = Events::<K>::new(BufReader::with_capacity(chunk, Cursor::new(bytes.to_vec())));
    let mut all = Vec::new();
    loop {
        let next = events.next().now_or_never().ok_or("the decoder waits for bytes that are there")?;
        match next.map_err(|error| format!("a short line is refused: {error}"))? {
            Some(event) => all.push(event),
            None => return Ok(all),
        }
    }
}

/// Returns the objects of a page that can be decoded; `None` if the bytes are no page.
fn page<K: DeserializeOwned>(bytes: &[u8]) -> Result<Option<Vec<K>>, String> {
    let read = Page::<K>::read(Cursor::new(bytes), PAGE).now_or_never().ok_or("reading a page waits")?;
    match read {
        Ok((page, size)) => {
            ensure(size == bytes.len(), "the size of a page is that of its bytes")?;
            let version = page.metadata.resource_version.unwrap_or_default();
            ensure(!version.is_empty(), "a page has a resourceVersion")?;
            let checked = page.items.into_iter().filter_map(|RawDeserializeGuard(object)| match object {
                Ok(object) => Some(Ok(object)),
                Err(invalid) => short(&invalid).err().map(Err),
            });
            checked.collect::<Result<_, _>>().map(Some)
        }
        Err(PageError::TooLarge) => Err("a small page is too large".to_owned()),
        Err(PageError::Kube(_)) => Ok(None),
    }
}

fn objects<K>(events: Vec<WireEvent<K>>) -> impl Iterator<Item = K> {
    events.into_iter().filter_map(|event| match event {
        WireEvent::Object(_, RawDeserializeGuard(object)) => object.ok(),
        WireEvent::Bookmark { .. } | WireEvent::Error(_) | WireEvent::Unidentified => None,
    })
}

fn kind<K>(event: &WireEvent<K>) -> Result<&'static str, String> {
    Ok(match event {
        WireEvent::Object(_, RawDeserializeGuard(Ok(_))) => "object",
        WireEvent::Object(_, RawDeserializeGuard(Err(invalid))) => {
            short(invalid)?;
            "undecodable"
        }
        WireEvent::Bookmark { version, .. } => {
            ensure(!version.is_empty(), "a bookmark has a resourceVersion")?;
            "bookmark"
        }
        WireEvent::Error(_) => "error",
        WireEvent::Unidentified => "unidentified",
    })
}

/// Checks that the error of an undecodable object is short.
fn short(invalid: &InvalidObject) -> Result<(), String> {
    ensure(invalid.error.len() <= MAX_ERROR, "the error of an object is short")
}

fn ensure(holds: bool, rule: &str) -> Result<(), String> {
    if holds { Ok(()) } else { Err(rule.to_owned()) }
}
