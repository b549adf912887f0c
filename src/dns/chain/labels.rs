//! The labels of a request, which the plugin *metadata* makes known to log lines and templates.

use std::fmt;
use std::net::IpAddr;

use hickory_proto::rr::Name;

/// The upstream that was asked last, as address and port.
pub(crate) const UPSTREAM: &str = "forward/upstream";

/// The name of the view of the block that answers.
pub(crate) const VIEW: &str = "view/name";

/// All labels that may have a value.
const KNOWN: [&str; 25] = [
    UPSTREAM,
    "geoip/asn/number",
    "geoip/asn/org",
    "geoip/city/name",
    "geoip/continent/code",
    "geoip/continent/name",
    "geoip/country/code",
    "geoip/country/is_in_european_union",
    "geoip/country/name",
    "geoip/latitude",
    "geoip/longitude",
    "geoip/postalcode",
    "geoip/subdivisions/code",
    "geoip/timezone",
    "kubernetes/client-namespace",
    "kubernetes/client-pod-name",
    "kubernetes/endpoint",
    "kubernetes/kind",
    "kubernetes/namespace",
    "kubernetes/parse-error",
    "kubernetes/port-name",
    "kubernetes/protocol",
    "kubernetes/service",
    "kubernetes/zone",
    VIEW,
];

/// The question and the client that the labels of a request are about.
#[derive(Clone, Debug)]
pub struct LabelSubject {
    pub name: Name,
    pub client: IpAddr,
    /// The address of the option EDNS Client Subnet (RFC 7871).
    pub subnet: Option<IpAddr>,
}

/// The labels of a request, except `forward/upstream`, as a function that looks a value up.
pub struct Labels(Box<LabelFn>);

type LabelFn = dyn Fn(&str) -> Option<String> + Send + Sync;

impl fmt::Debug for Labels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Labels")
    }
}

impl Labels {
    pub(super) fn new(value: impl Fn(&str) -> Option<String> + Send + Sync + 'static) -> Self {
        Self(Box::new(value))
    }

    /// Returns the value of a label; `None` if no plugin knows it.
    #[must_use]
    pub fn value(&self, label: &str) -> Option<String> {
        (self.0)(label)
    }
}

#[cfg(test)]
pub(crate) fn known() -> impl Iterator<Item = &'static str> {
    KNOWN.into_iter()
}

/// Returns a warning about a placeholder for a label that never has a value in a block; `None` if it may have one.
/// `missing` says what a plugin needs for a label.
pub(crate) fn warning(
    label: &str,
    has_metadata: bool,
    missing: impl Fn(&str) -> Option<&'static str>,
) -> Option<String> {
    let why = match KNOWN.contains(&label) {
        _ if !has_metadata => "the block has no metadata".to_owned(),
        true => missing(label)?.to_owned(),
        false => format!("the labels are {}", KNOWN.join(", ")),
    };
    Some(format!("{{/{label}}} has no effect here: {why}"))
}
