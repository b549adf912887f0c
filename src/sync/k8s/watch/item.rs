//! What a list/watch loop returns.

use futures::stream::BoxStream;
use kube::core::Status;

use crate::sync::k8s::deserialize_guard::RawDeserializeGuard;
use crate::sync::k8s::forbidden::Forbidden;

/// The reason why a list or a watch has failed. The loop retries after a pause.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    #[error("the list has failed: {0}")]
    List(#[source] kube::Error),
    #[error("the watch has failed: {0}")]
    Watch(#[source] kube::Error),
    #[error("the API server has ended the watch: {} {}", .0.code, .0.message)]
    Ended(Box<Status>),
    /// An event is malformed, or lacks the namespace, the name or the resourceVersion of its object.
    #[error("an event without a namespace, a name or a resourceVersion")]
    Unidentified,
}

impl WatchError {
    /// Returns the HTTP code; 0 if there was no answer, or no HTTP error.
    #[must_use]
    pub fn code(&self) -> u16 {
        self.status().map_or(0, |status| status.code)
    }

    /// Returns the answer of the API server; `None` if there was none, or no HTTP error.
    pub(crate) fn status(&self) -> Option<&Status> {
        match self {
            Self::List(kube::Error::Api(status)) | Self::Watch(kube::Error::Api(status)) => Some(status),
            Self::Ended(status) => Some(status),
            Self::List(_) | Self::Watch(_) | Self::Unidentified => None,
        }
    }

    /// Returns whether an authorizer has refused to list or watch Services.
    pub(crate) fn is_refusal_of_services(&self) -> bool {
        matches!(self, Self::List(error) | Self::Watch(error) if Forbidden::watches_services(error))
    }
}

/// An event of a list/watch loop.
#[derive(Clone, Debug)]
pub enum Event<K> {
    /// A list begins: the objects of an unfinished list have to be discarded.
    ListBegins,
    /// An object of the list. The last of several versions of an object counts.
    Listed(K),
    /// The list is complete. It replaces all earlier state, whatever its version.
    ListEnds {
        version: Option<u64>,
        /// Whether `version` is older than versions seen before: etcd has been restored to an earlier revision.
        rewound: bool,
    },
    /// The API server accepts the watch again, after a failure without a new list.
    Resumed,
    /// An object was added or modified.
    Applied(K),
    /// An object was deleted, or left the selection.
    Deleted(K),
}

impl<K> Event<K> {
    /// Changes the object of the event.
    pub(crate) fn map<T>(self, change: impl FnOnce(K) -> T) -> Event<T> {
        match self {
            Self::ListBegins => Event::ListBegins,
            Self::Listed(object) => Event::Listed(change(object)),
            Self::ListEnds { version, rewound } => Event::ListEnds { version, rewound },
            Self::Resumed => Event::Resumed,
            Self::Applied(object) => Event::Applied(change(object)),
            Self::Deleted(object) => Event::Deleted(change(object)),
        }
    }
}

/// An event, or the error of a list or watch.
pub type WatchItem<K> = Result<Event<RawDeserializeGuard<K>>, WatchError>;

/// The endless stream of events of a list/watch loop.
pub type WatchStream<K> = BoxStream<'static, WatchItem<K>>;
