//! Logs refused look-ups, at most one line per minute.

use std::net::IpAddr;

use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::warn;

use super::error::ForwardError;
use super::lookup_origin::LookupOrigin;
use crate::model::line_limit::LineLimit;

#[derive(Debug, Default)]
pub(crate) struct RefusedLookups(Mutex<LineLimit>);

impl RefusedLookups {
    pub(crate) fn note(&self, origin: LookupOrigin, client: IpAddr, why: &ForwardError) {
        let Some(omitted) = self.0.lock().take(Instant::now().into_std()) else { return };
        let what = if origin == LookupOrigin::Target { "look-ups of targets" } else { "look-ups" };
        let number = omitted + 1;
        warn!(
            "plugin/forward: {what} refused since the last such line: {number}; the newest, of {client}: {why}"
        );
    }
}
