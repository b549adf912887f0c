//! What is known about the first list of load balancers.

/// The state of the first list, before it is complete.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FirstList {
    /// There is no answer yet.
    #[default]
    Awaited,
    /// The API server sends objects.
    Arriving,
    /// The last try has failed, with this HTTP code; 0 without an HTTP error.
    Failed { code: u16 },
}

impl FirstList {
    /// Returns whether the API server has refused the list, or can't produce it, so that a retry soon would fail, too.
    #[must_use]
    pub fn is_refused(self) -> bool {
        matches!(self, Self::Failed { code: 401 | 403 | 500..=599 })
    }
}
