//! The timeouts of requests to the API server.

use std::time::Duration;

/// Timeout for the start of a response.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout between two parts of a response body. Longer than the API server lets a watch last, so that only a dead
/// connection reaches it.
pub(crate) const READ_TIMEOUT: Duration = Duration::from_secs(58);
