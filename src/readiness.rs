//! What keeps sync from its work at present: `/ready` shows it.

use std::borrow::Cow;

use arc_swap::ArcSwapOption;

/// The notes of sync, each a clause or a sentence.
#[derive(Debug, Default)]
pub struct Readiness {
    /// Why the first list of load balancers isn't complete yet; `None` if that isn't known.
    pub list: ArcSwapOption<Cow<'static, str>>,
    /// Why manifests aren't used as they are now.
    pub manifests: ArcSwapOption<String>,
    /// What keeps external targets from being written. DNS answers anyway.
    pub writes: ArcSwapOption<String>,
}
