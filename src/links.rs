//! The links as users see them: as a table, as JSON or YAML, or one link in detail with its history.

pub mod age;
pub mod detail;
pub mod facts;
pub mod followers;
pub mod history;
pub mod names;
pub mod names_table;
pub mod output;
mod reasons;
pub(crate) mod remote_links;
pub mod table;
mod unread;
pub mod view;

use serde::Deserialize;

use crate::model::clusters;
use crate::model::service_key::ServiceKey;

/// The output of `lb-linker links`, as in kubectl.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputFormat {
    /// The table with all DNS names, the StableNames and the reasons.
    Wide,
    Json,
    Yaml,
    /// `service/<name>` or `stablename.linker.hsj.com/<name>`, for kubectl.
    Name,
}

/// Which links are shown.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct LinkFilter {
    /// Only links of this namespace; all if `None`.
    pub namespace: Option<String>,
    /// Only links of this name, or the link with this DNS name.
    pub service: Option<String>,
}

/// A Service that is named in two namespaces, or isn't named at all.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum FilterError {
    #[error("{service} is in namespace {named}, and --namespace is {flag}: leave one of them out")]
    TwoNamespaces {
        service: String,
        /// The namespace before the slash.
        named: String,
        /// The namespace of the flag.
        flag: String,
    },
    #[error("{0:?} isn't a Service such as my-sample-lb or default/my-sample-lb")]
    NotAService(String),
}

impl LinkFilter {
    /// Returns the filter for a namespace and a Service, whose name may follow a namespace and a slash.
    ///
    /// # Errors
    /// If both name a namespace, or a name is missing.
    pub fn new(namespace: Option<String>, service: Option<String>) -> Result<Self, FilterError> {
        let Some((named, name)) = service.as_deref().and_then(|service| service.rsplit_once('/')) else {
            return Ok(Self { namespace, service });
        };
        let (cluster, plain) = clusters::split(named);
        if plain.is_empty() || plain.contains('/') || cluster == Some("") || name.is_empty() {
            return Err(FilterError::NotAService(service.unwrap_or_default()));
        }
        let (named, name) = (named.to_owned(), name.to_owned());
        match namespace.filter(|flag| *flag != named) {
            Some(flag) => {
                Err(FilterError::TwoNamespaces { service: service.unwrap_or_default(), named, flag })
            }
            None => Ok(Self { namespace: Some(named), service: Some(name) }),
        }
    }

    fn is_within(&self, key: &ServiceKey) -> bool {
        self.namespace.as_deref().is_none_or(|namespace| key.namespace() == namespace)
    }

    fn selects(&self, key: &ServiceKey) -> bool {
        self.is_within(key) && self.service.as_deref().is_none_or(|service| key.name() == service)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_may_have_its_namespace_before_a_slash() {
        let filter = |namespace: Option<&str>, service: &str| {
            let found = LinkFilter::new(namespace.map(ToOwned::to_owned), Some(service.to_owned()));
            found.map(|found| (found.namespace, found.service)).map_err(|error| error.to_string())
        };
        let selects = |namespace: Option<&str>, service: &str| {
            Ok((namespace.map(ToOwned::to_owned), Some(service.to_owned())))
        };
        assert_eq!(filter(None, "web"), selects(None, "web"));
        assert_eq!(filter(Some("shop"), "web"), selects(Some("shop"), "web"));
        assert_eq!(filter(None, "shop/web"), selects(Some("shop"), "web"));
        assert_eq!(filter(Some("shop"), "shop/web"), selects(Some("shop"), "web"));
        let two = "shop/web is in namespace shop, and --namespace is other: leave one of them out";
        assert_eq!(filter(Some("other"), "shop/web"), Err(two.to_owned()));
        assert_eq!(filter(None, "west/shop/web"), selects(Some("west/shop"), "web"));
        for wrong in ["/web", "shop/", "a/b/c/d", "/", "//web", "/shop/web", "west//web"] {
            let expected = format!("{wrong:?} isn't a Service such as my-sample-lb or default/my-sample-lb");
            assert_eq!(filter(None, wrong), Err(expected));
        }
    }
}
