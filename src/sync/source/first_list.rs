//! What is known about the first list of load balancers.

use std::borrow::Cow;
use std::sync::Arc;

/// The state of the first list, before it is complete.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum FirstList {
    /// There is no answer yet.
    #[default]
    Awaited,
    /// The API server sends objects.
    Arriving,
    /// The last try has failed, with this HTTP code; 0 without an HTTP error. `what` is what was listed, and where.
    Failed { code: u16, what: Arc<str> },
}

impl FirstList {
    /// Returns why there is no complete list yet, as a clause.
    #[must_use]
    pub fn reason(&self) -> Cow<'static, str> {
        match self {
            Self::Awaited | Self::Failed { code: 0, .. } => "the API server doesn't answer".into(),
            Self::Arriving => "the list of load balancers isn't complete yet".into(),
            Self::Failed { code, what } => {
                format!("the API server answers {code} to the list of {what}").into()
            }
        }
    }

    /// Returns whether the API server has refused the list, or can't produce it, so that a retry soon would fail, too.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        matches!(self, Self::Failed { code: 401 | 403 | 500..=599, .. })
    }
}
