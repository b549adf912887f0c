//! Decodes the API server's responses: watch events, one per line, and pages of lists. Objects are decoded one by one
//! into slim types.

use std::io;
use std::marker::PhantomData;
use std::pin::Pin;

use futures::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta;
use kube::core::Status;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use super::progress::ObjectChange;
use crate::sync::k8s::deserialize_guard::RawDeserializeGuard;

/// Maximum size of an event, or of a page of one object. etcd accepts objects of 1.5 MB, which take somewhat more as
/// JSON.
const MAX_EVENT_BYTES: usize = 64 << 20;
/// Maximum size of a page of several objects.
const MAX_PAGE_BYTES: usize = 8 << 20;
/// Target size of a page, at which both the number of requests and the memory are small.
const TARGET_PAGE_BYTES: usize = 1 << 20;
/// The number of objects in the first page, and the maximum.
const PAGE_OBJECT_LIMITS: (u32, u32) = (10, 500);
/// Maximum growth factor from one page to the next.
const MAX_PAGE_GROWTH: u32 = 8;
/// Maximum capacity of a buffer that is reused.
const MAX_KEPT_BUFFER_BYTES: usize = 64 << 10;

/// The annotation of the bookmark at the end of a streamed list.
const LIST_END: &str = "k8s.io/initial-events-end";

/// A watch event as the API server sends it.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "nearly all are objects, and there is one at a time")]
pub enum WireEvent<K> {
    Object(ObjectChange, RawDeserializeGuard<K>),
    Bookmark {
        version: String,
        ends_list: bool,
    },
    Error(Box<Status>),
    /// The event, or the metadata of its object, can't be decoded.
    Unidentified,
}

#[derive(Deserialize)]
struct WireLine<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    #[serde(borrow)]
    object: &'a RawValue,
}

#[derive(Default, Deserialize)]
struct Bookmark {
    #[serde(default)]
    metadata: BookmarkMeta,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct BookmarkMeta {
    resource_version: Option<String>,
    annotations: Option<std::collections::BTreeMap<String, String>>,
}

impl<K: DeserializeOwned> WireEvent<K> {
    fn of(line: &[u8]) -> Self {
        let Ok(WireLine { kind, object }) = serde_json::from_slice(line) else { return Self::Unidentified };
        let change = match kind {
            "ADDED" => ObjectChange::Added,
            "MODIFIED" => ObjectChange::Modified,
            "DELETED" => ObjectChange::Deleted,
            "BOOKMARK" => {
                let Bookmark { metadata } = serde_json::from_str(object.get()).unwrap_or_default();
                let Some(version) = metadata.resource_version.filter(|version| !version.is_empty()) else {
                    return Self::Unidentified;
                };
                let ends_list =
                    metadata.annotations.is_some_and(|annotations| annotations.contains_key(LIST_END));
                return Self::Bookmark { version, ends_list };
            }
            "ERROR" => {
                let status = serde_json::from_str(object.get());
                return status.map_or(Self::Unidentified, Self::Error);
            }
            _ => return Self::Unidentified,
        };
        RawDeserializeGuard::from_json(object.get())
            .map_or(Self::Unidentified, |object| Self::Object(change, object))
    }
}

pub struct Events<K> {
    reader: Pin<Box<dyn AsyncBufRead + Send>>,
    /// The line read so far.
    line: Vec<u8>,
    decoded: PhantomData<fn() -> K>,
}

impl<K: DeserializeOwned> Events<K> {
    #[must_use]
    pub fn new(reader: impl AsyncBufRead + Send + 'static) -> Self {
        Self { reader: Box::pin(reader), line: Vec::new(), decoded: PhantomData }
    }

    /// Returns the next event; `None` at the end. Cancel-safe.
    ///
    /// # Errors
    /// If the reader fails, or a line is too long.
    pub async fn next(&mut self) -> io::Result<Option<WireEvent<K>>> {
        loop {
            let bytes = self.reader.fill_buf().await?;
            if bytes.is_empty() {
                // An incomplete last line is discarded.
                return Ok(None);
            }
            let end = bytes.iter().position(|byte| *byte == b'\n');
            let length = end.map_or(bytes.len(), |end| end + 1);
            self.line.extend_from_slice(&bytes[..length]);
            self.reader.consume_unpin(length);
            if self.line.len() > MAX_EVENT_BYTES {
                return Err(too_large());
            }
            if end.is_some() && !self.line.trim_ascii().is_empty() {
                let sent = WireEvent::of(&self.line);
                self.line.clear();
                if self.line.capacity() > MAX_KEPT_BUFFER_BYTES {
                    self.line = Vec::new();
                }
                return Ok(Some(sent));
            }
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(bound = "K: DeserializeOwned")]
pub struct Page<K> {
    #[serde(default)]
    pub metadata: ListMeta,
    #[serde(default, deserialize_with = "null_is_empty")]
    pub items: Vec<RawDeserializeGuard<K>>,
}

fn null_is_empty<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

#[derive(Debug)]
pub enum PageError {
    /// The page is too large, and a smaller limit would help.
    TooLarge,
    Kube(kube::Error),
}

impl From<kube::Error> for PageError {
    fn from(error: kube::Error) -> Self {
        Self::Kube(error)
    }
}

impl<K: DeserializeOwned> Page<K> {
    /// Reads a page of at most `limit` objects. Returns the page and its size in bytes.
    ///
    /// # Errors
    /// If the reader fails, or the page is too large or no list.
    pub async fn read(reader: impl AsyncBufRead + Send, limit: u32) -> Result<(Self, usize), PageError> {
        let most = if limit > 1 { MAX_PAGE_BYTES } else { MAX_EVENT_BYTES };
        let mut bytes = Vec::new();
        let mut reader = std::pin::pin!(reader.take(most as u64 + 1));
        reader.read_to_end(&mut bytes).await.map_err(kube::Error::ReadEvents)?;
        if bytes.len() > most {
            return Err(if limit > 1 {
                PageError::TooLarge
            } else {
                kube::Error::ReadEvents(too_large()).into()
            });
        }
        let page: Self = serde_json::from_slice(&bytes).map_err(kube::Error::SerdeError)?;
        // Every list of the Kubernetes API has a resourceVersion. Another answer, such as a proxy's, must not count as
        // an empty list.
        if page.metadata.resource_version.as_deref().unwrap_or_default().is_empty() {
            return Err(kube::Error::ReadEvents(no_list()).into());
        }
        Ok((page, bytes.len()))
    }
}

/// The number of objects to request in the next page, adapted to their size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PageSize(u32);

impl Default for PageSize {
    fn default() -> Self {
        Self(PAGE_OBJECT_LIMITS.0)
    }
}

impl PageSize {
    pub(super) fn objects(self) -> u32 {
        self.0
    }

    /// Returns the size of the next page, after a page with this many objects and bytes.
    pub(super) fn after(self, objects: usize, bytes: usize) -> Self {
        let each = (bytes / objects.max(1)).max(1);
        let fitting = u32::try_from(TARGET_PAGE_BYTES / each).unwrap_or(u32::MAX);
        Self(fitting.clamp(1, PAGE_OBJECT_LIMITS.1.min(self.0.saturating_mul(MAX_PAGE_GROWTH))))
    }

    /// Returns the size to retry with after a page was too large.
    pub(super) fn smaller(self) -> Self {
        Self((self.0 / 4).max(1))
    }
}

fn no_list() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the answer to a list is no list: it has no resourceVersion")
}

fn too_large() -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("the API server sends an object of more than {MAX_EVENT_BYTES} bytes"),
    )
}

#[cfg(test)]
mod tests {
    use futures::io::{BufReader, Cursor};
    use kube::ResourceExt;

    use super::*;
    use crate::sync::k8s::service::Service;

    async fn events(text: &str, chunk: usize) -> Vec<WireEvent<Service>> {
        let reader = BufReader::with_capacity(chunk, Cursor::new(text.as_bytes().to_vec()));
        let (mut events, mut all) = (Events::new(reader), Vec::new());
        while let Some(sent) = events.next().await.unwrap() {
            all.push(sent);
        }
        all
    }

    #[tokio::test]
    async fn events_are_decoded_line_by_line_in_chunks_of_any_size() {
        let text = concat!(
            r#"{"type":"ADDED","object":{"metadata":{"namespace":"a","name":"web","resourceVersion":"7"}}}"#,
            "\n\n",
            r#"{"object":{"metadata":{"name":"bad"},"spec":5},"type":"DELETED"}"#,
            "\n",
            r#"{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"8","creationTimestamp":null}}}"#,
            "\n",
            r#"{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"9","annotations":{"k8s.io/initial-events-end":"true"}}}}"#,
            "\n",
            r#"{"type":"ERROR","object":{"kind":"Status","status":"Failure","code":410,"reason":"Expired","message":"m"}}"#,
            "\n",
            r#"{"type":"ADDED","obj"#,
        );
        for chunk in [1, 7, 100, 10_000] {
            let events = events(text, chunk).await;
            let [
                WireEvent::Object(ObjectChange::Added, web),
                WireEvent::Object(ObjectChange::Deleted, bad),
                WireEvent::Bookmark { version: eight, ends_list: false },
                WireEvent::Bookmark { version: nine, ends_list: true },
                WireEvent::Error(status),
            ] = &events[..]
            else {
                panic!("{events:?}")
            };
            assert_eq!((web.name_any().as_str(), web.0.is_ok()), ("web", true));
            assert_eq!((bad.name_any().as_str(), bad.0.is_ok()), ("bad", false));
            assert_eq!((eight.as_str(), nine.as_str(), status.code), ("8", "9", 410));
        }
    }

    #[tokio::test]
    async fn malformed_lines_are_unidentified() {
        for line in [
            "nonsense",
            "[]",
            r#"{"type":"ADDED"}"#,
            r#"{"type":"ADDED","object":5}"#,
            r#"{"type":"MADE","object":{}}"#,
            r#"{"type":"BOOKMARK","object":{}}"#,
            r#"{"type":"ERROR","object":7}"#,
        ] {
            let events = events(&format!("{line}\n"), 100).await;
            assert!(matches!(&events[..], [WireEvent::Unidentified]), "{line}: {events:?}");
        }
    }

    #[test]
    fn page_size_adapts_to_object_size() {
        let first = PageSize::default();
        assert_eq!(first.objects(), 10);
        assert_eq!(first.after(10, 20_000).objects(), 80);
        assert_eq!(first.after(10, 20_000).after(80, 160_000).objects(), 500);
        assert_eq!(PageSize(500).after(500, 500 << 20).objects(), 1);
        assert_eq!(PageSize(1).after(1, 2000).objects(), 8);
        assert_eq!(first.after(0, 100).objects(), 80);
        assert_eq!((first.smaller().objects(), first.smaller().smaller().objects()), (2, 1));
    }

    #[tokio::test]
    async fn answer_without_a_resource_version_is_no_list() {
        for text in [
            "{}",
            r#"{"kind": "ServiceList", "items": []}"#,
            r#"{"kind": "ServiceList", "metadata": {"resourceVersion": ""}, "items": []}"#,
            r#"{"kind": "Status", "metadata": {}, "status": "Success"}"#,
        ] {
            let read = Page::<Service>::read(BufReader::new(Cursor::new(text.as_bytes())), 1).await;
            assert!(matches!(read, Err(PageError::Kube(_))), "{text}");
        }
    }

    #[tokio::test]
    async fn page_of_several_objects_is_bounded() {
        let page = |padding: usize| {
            let padding = "x".repeat(padding);
            format!(
                r#"{{"metadata":{{"resourceVersion":"1","continue":"c"}},"items":[{{"metadata":{{"name":"a","x":"{padding}"}}}}]}}"#
            )
        };
        let read = async |padding, limit| {
            Page::<Service>::read(BufReader::new(Cursor::new(page(padding).into_bytes())), limit).await
        };
        let (small, bytes) = read(10, 10).await.unwrap();
        assert_eq!(
            (small.items.len(), bytes, small.metadata.continue_.as_deref()),
            (1, page(10).len(), Some("c"))
        );
        assert!(matches!(read(MAX_PAGE_BYTES, 10).await, Err(PageError::TooLarge)));
        assert!(read(MAX_PAGE_BYTES, 1).await.is_ok());
    }
}
