//! The links as users see them: as a table, as JSON or YAML, or one link in detail with its history.

pub mod age;
pub mod detail;
pub mod facts;
pub mod followers;
pub mod history;
pub mod output;
pub mod table;
pub mod view;

use serde::Deserialize;

use crate::model::service_key::ServiceKey;

/// The output of `lb-linker links`, as in kubectl.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputFormat {
    /// The table with all DNS names, the ExternalTargets and the reasons.
    Wide,
    Json,
    Yaml,
    /// `service/<name>` or `externaltarget.linker.hsj.com/<name>`, for kubectl.
    Name,
}

/// Which links are shown.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct LinkFilter {
    /// Only links of this namespace; all if `None`.
    pub namespace: Option<String>,
    /// Only links of this name.
    pub service: Option<String>,
}

impl LinkFilter {
    fn selects(&self, key: &ServiceKey) -> bool {
        self.namespace.as_deref().is_none_or(|namespace| key.namespace() == namespace)
            && self.service.as_deref().is_none_or(|service| key.name() == service)
    }
}
