//! What other plugins ask about names and clients: labels (*metadata*) and search domains (*autopath*).

use std::net::IpAddr;

use hickory_proto::rr::Name;

use super::Kubernetes;
use crate::dns::chain::plugin::SearchPath;
use crate::dns::message::presentation::lower_name_text;
use crate::dns::message::query::whole_wire_name;
use crate::store::cluster::answer::{PodMode, zone_of};

/// The parts of a name, which may be empty.
#[derive(Debug, Default, PartialEq, Eq)]
struct Parts {
    kind: String,
    namespace: String,
    service: String,
    endpoint: String,
    protocol: String,
    port: String,
    zone: String,
}

/// CoreDNS's text for a name that can't exist.
const INVALID: &str = "invalid query name";

impl Kubernetes {
    /// Returns the value of a label about a name and a client.
    pub(super) fn label_of(&self, label: &str, name: &Name, client: IpAddr) -> Option<String> {
        let label = label.strip_prefix("kubernetes/")?;
        if let "client-namespace" | "client-pod-name" = label {
            let pod = self.cluster.pod_at(client).0.filter(|_| self.rules.pods == PodMode::Verified)?;
            return Some(if label == "client-namespace" { pod.namespace() } else { pod.name() }.to_owned());
        }
        match Parts::of(&self.labels_below_zone(name)?, self.rules.zonal) {
            Some(_) if label == "zone" && !self.rules.zonal => None,
            Some(parts) => parts.value(label),
            None => (label == "parse-error").then(|| INVALID.to_owned()),
        }
    }

    /// Returns the labels before a zone of the plugin, in lower case, the last one first.
    fn labels_below_zone(&self, name: &Name) -> Option<Vec<String>> {
        let wire = whole_wire_name(name);
        let below = wire.strip_suffix(zone_of(&self.rules.zones, &wire)?)?;
        let mut labels: Vec<String> = crate::model::names::labels(below).filter_map(label_text).collect();
        labels.reverse();
        Some(labels)
    }

    /// Returns the search domains of the client's Pod for a name that may be below them.
    pub(super) fn search_path_of(&self, name: &Name, client: IpAddr) -> Option<SearchPath> {
        let labels = self.labels_below_zone(name).filter(|_| self.rules.pods == PodMode::Verified)?;
        if labels.len() < 3 || labels[0] != "svc" {
            return None;
        }
        let (pod, rests_on) = self.cluster.pod_at(client);
        let zone = name.trim_to(name.iter().len() - labels.len()).to_lowercase();
        let domains = pod.and_then(|pod| {
            let services = zone.prepend_label("svc").ok()?;
            Some(vec![services.prepend_label(pod.namespace()).ok()?, services, zone])
        });
        Some(SearchPath { domains: domains.unwrap_or_default(), of_client: Some(rests_on) })
    }
}

/// Returns a label in text form, as in CoreDNS.
fn label_text(label: &[u8]) -> Option<String> {
    let text = lower_name_text(&Name::from_labels([label]).ok()?);
    text.strip_suffix('.').map(str::to_owned)
}

impl Parts {
    /// Returns the parts of a name, whose labels begin with the last one; `None` if CoreDNS can't parse it.
    fn of(labels: &[String], zonal: bool) -> Option<Self> {
        let mut parts = Self::default();
        let [kind, rest @ ..] = labels else { return Some(parts) };
        match (&**kind, rest) {
            ("svc" | "pod", []) => return Some(parts),
            ("svc" | "pod", _) => parts.kind.clone_from(kind),
            _ => return None,
        }
        let stripped = |label: &String| label.strip_prefix('_').unwrap_or(label).to_owned();
        let at = |number: usize| rest.get(number).cloned().unwrap_or_default();
        (parts.namespace, parts.service) = (at(0), at(1));
        match rest.get(2..).unwrap_or_default() {
            [] => {}
            [endpoint] => parts.endpoint.clone_from(endpoint),
            [protocol, port] => (parts.protocol, parts.port) = (stripped(protocol), stripped(port)),
            [anchor, directive, zone @ ..]
                if zonal
                    && kind == "svc"
                    && anchor == "_zone"
                    && ["pin", "prefer"].contains(&&**directive) =>
            {
                parts.zone = zone.iter().rev().map(String::as_str).collect::<Vec<_>>().join(".");
            }
            _ => return None,
        }
        Some(parts)
    }

    fn value(self, label: &str) -> Option<String> {
        Some(match label {
            "kind" => self.kind,
            "namespace" => self.namespace,
            "service" => self.service,
            "endpoint" => self.endpoint,
            "protocol" => self.protocol,
            "port-name" => self.port,
            "zone" => self.zone,
            _ => return None,
        })
    }
}
