//! The flags of several clusters.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;

use super::error::ConfigError;
use super::parsers::dns_label;
use crate::dns::plugins::lb_linker::LinkZone;
use crate::model::hostname::to_presentation;
use crate::model::remote::RemoteCluster;
use crate::model::{clusters, names};

/// Maximum number of remote clusters.
const MAX_REMOTES: usize = 16;

/// Several clusters.
#[derive(Clone, Debug, Args)]
pub struct RemoteFlags {
    /// Name of the cluster that lb-linker works for, with which objects of remote clusters name its namespaces, as in
    /// linker.hsj.com/allow-from: home/shop
    #[arg(
        long,
        value_name = "NAME",
        env = "LB_LINKER_CLUSTER_NAME",
        default_value = "home",
        value_parser = dns_label,
        help_heading = "Cluster"
    )]
    pub cluster_name: String,

    /// Another cluster that is read, too: its name, a kubeconfig, and a context if it isn't the current one, as in
    /// west=/etc/west.yaml:admin. Its objects have names below `<name>.<zone>`; nothing is written to it. May be
    /// repeated, up to 16 times [default: none]
    #[arg(
        long = "remote",
        value_name = "NAME=KUBECONFIG[:CONTEXT]",
        env = "LB_LINKER_REMOTE",
        conflicts_with = "manifests",
        value_parser = remote,
        value_delimiter = ',',
        help_heading = "Cluster"
    )]
    pub remotes: Vec<RemoteCluster>,
}

/// Parses `west=/etc/west.yaml:admin`. The names of contexts may contain colons.
fn remote(text: &str) -> Result<RemoteCluster, String> {
    let wrong = || "not a name, a kubeconfig and perhaps a context, as in west=/etc/west.yaml:admin";
    let (name, rest) = text.split_once('=').ok_or_else(wrong)?;
    let label = dns_label(name).map_err(|_| {
        format!(
            "{name:?} isn't the name of a cluster: it is a label of lower-case letters, digits and hyphens"
        )
    })?;
    if [names::RESERVED_LABEL, names::DELETED].contains(&name) {
        return Err(format!("{name} is reserved below every zone; give the cluster another name"));
    }
    let (path, context) = match rest.split_once(':') {
        Some((path, context)) => (path, Some(context.to_owned()).filter(|context| !context.is_empty())),
        None => (rest, None),
    };
    if path.is_empty() {
        return Err(wrong().to_owned());
    }
    Ok(RemoteCluster { name: label.into(), kubeconfig: PathBuf::from(path), context })
}

impl RemoteFlags {
    /// Returns the names of the remote clusters.
    #[must_use]
    pub fn names(&self) -> Arc<[Arc<str>]> {
        self.remotes.iter().map(|remote| Arc::clone(&remote.name)).collect()
    }

    /// Checks the names of the clusters, also in `--hostname-namespaces`.
    ///
    /// # Errors
    /// If there are too many clusters, two have one name, or a cluster isn't known.
    pub(super) fn validate(&self, hostname_namespaces: &[String]) -> Result<(), ConfigError> {
        for namespace in hostname_namespaces {
            let cluster = clusters::cluster_of(namespace);
            let is_known = |cluster: &str| self.remotes.iter().any(|remote| *remote.name == *cluster);
            if let Some(cluster) = cluster.filter(|cluster| !is_known(cluster)) {
                let (namespace, cluster) = (namespace.clone(), cluster.to_owned());
                return Err(ConfigError::UnknownRemote { namespace, cluster });
            }
        }
        if self.remotes.len() > MAX_REMOTES {
            return Err(ConfigError::TooManyRemotes { number: self.remotes.len(), max: MAX_REMOTES });
        }
        for (i, RemoteCluster { name, .. }) in self.remotes.iter().enumerate() {
            if **name == *self.cluster_name {
                return Err(ConfigError::RemoteIsHome(name.to_string()));
            }
            if self.remotes[..i].iter().any(|other| other.name == *name) {
                return Err(ConfigError::RemoteTwice(name.to_string()));
            }
        }
        Ok(())
    }

    /// Checks that no zone has the name of a cluster as its own label, or lies in the domain of a cluster below another zone.
    ///
    /// # Errors
    /// If one does.
    pub(super) fn check_zones(&self, zones: &[LinkZone]) -> Result<(), ConfigError> {
        for RemoteCluster { name, .. } in &self.remotes {
            if let Some(zone) = zones.iter().find(|zone| zone.k8s_gateway.is_none() && *zone.apex == **name) {
                let (name, zone) = (name.to_string(), to_presentation(&zone.origin));
                return Err(ConfigError::RemoteIsApex { name, zone });
            }
            // Zones of *k8s_gateway* have names of the home cluster alone.
            for outer in zones.iter().filter(|zone| zone.k8s_gateway.is_none()) {
                let Ok(domain) = outer.origin.prepend_label(&**name) else { continue };
                if let Some(zone) = zones.iter().find(|zone| domain.zone_of(&zone.origin)) {
                    let (name, zone) = (name.to_string(), to_presentation(&zone.origin));
                    let domain = to_presentation(&domain);
                    return Err(ConfigError::ZoneOfRemote { name, zone, domain });
                }
            }
        }
        Ok(())
    }

    /// Returns the name and the effective value of each flag, for the user.
    pub(super) fn effective(&self) -> Vec<(&'static str, String)> {
        if self.remotes.is_empty() {
            return Vec::new();
        }
        let text = |RemoteCluster { name, kubeconfig, context }: &RemoteCluster| {
            let context = context.as_ref().map(|context| format!(":{context}")).unwrap_or_default();
            format!("{name}={}{context}", kubeconfig.display())
        };
        let remotes = self.remotes.iter().map(text).collect::<Vec<_>>().join(",");
        vec![("--cluster-name", self.cluster_name.clone()), ("--remote", remotes)]
    }
}

#[cfg(test)]
mod tests {
    use hickory_proto::rr::Name;

    use super::*;

    #[test]
    fn zone_in_the_domain_of_a_cluster_is_refused() {
        let flags =
            RemoteFlags { cluster_name: "home".to_owned(), remotes: vec![remote("west=/k").unwrap()] };
        for (origins, expected) in [
            (&["lb.internal.", "east.lb.internal."][..], None),
            (&["lb.internal.", "xwest.lb.internal."], None),
            (&["west.lb.internal."], None),
            (
                &["lb.internal.", "west.lb.internal."],
                Some("the zone west.lb.internal lies in west.lb.internal"),
            ),
            (&["a.west.lb.internal.", "lb.internal."], Some("the zone a.west.lb.internal lies in")),
        ] {
            let zone = |origin: &&str| LinkZone::new(Name::from_ascii(origin).unwrap(), "dns");
            let zones: Vec<LinkZone> = origins.iter().map(zone).collect();
            let found = flags.check_zones(&zones).map_err(|error| error.to_string());
            match expected {
                Some(text) => assert!(found.as_ref().is_err_and(|error| error.contains(text)), "{found:?}"),
                None => assert_eq!(found, Ok(()), "{origins:?}"),
            }
        }
    }

    #[test]
    fn remote_has_a_name_a_kubeconfig_and_a_context() {
        for (text, expected) in [
            ("west=/k", Some(("west", "/k", None))),
            ("west=/k:", Some(("west", "/k", None))),
            ("west=/k:admin", Some(("west", "/k", Some("admin")))),
            (
                "eks=k.yaml:arn:aws:eks:eu-1:1:cluster/a=b",
                Some(("eks", "k.yaml", Some("arn:aws:eks:eu-1:1:cluster/a=b"))),
            ),
            ("west", None),
            ("west=", None),
            ("west=:admin", None),
            ("=/k", None),
            ("West=/k", None),
            ("a.b=/k", None),
            ("dns=/k", None),
            ("deleted=/k", None),
        ] {
            let expected = expected.map(|(name, path, context): (&str, &str, Option<&str>)| RemoteCluster {
                name: name.into(),
                kubeconfig: path.into(),
                context: context.map(str::to_owned),
            });
            assert_eq!(remote(text).ok(), expected, "{text}");
        }
    }
}
