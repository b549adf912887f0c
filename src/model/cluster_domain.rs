//! The domain of the cluster's own names: a zone of links must not take names from it.

use hickory_proto::rr::Name;

use super::hostname::to_presentation;

/// The labels below the cluster's domain that the names of its Services and Pods end in.
const SERVICES_AND_PODS: [&str; 2] = ["svc", "pod"];

/// Returns the domains that only have names of the cluster: its domain, or below the root those of Services and Pods.
#[must_use]
pub fn own_domains(cluster_domain: &Name) -> Vec<Name> {
    if cluster_domain.num_labels() > 0 {
        return vec![cluster_domain.clone()];
    }
    SERVICES_AND_PODS.iter().filter_map(|label| domain_name(label)).collect()
}

/// Returns what a zone and a domain have in common, as a verb: the zone "equals", "holds" or "lies in" the domain. `None`
/// if no name is in both.
#[must_use]
pub fn overlap(zone: &Name, domain: &Name) -> Option<&'static str> {
    if zone == domain {
        Some("equals")
    } else if zone.zone_of(domain) {
        Some("holds")
    } else {
        domain.zone_of(zone).then_some("lies in")
    }
}

/// Returns why a zone can't have links' names beside the cluster's domain, as a clause that begins with the zone; `None`
/// if it can, or if the cluster's domain isn't known (the root).
#[must_use]
pub fn conflict(zone: &Name, cluster_domain: &Name) -> Option<String> {
    let verb = overlap(zone, cluster_domain).filter(|_| cluster_domain.num_labels() > 0)?;
    Some(format!(
        "{} {verb} {}, the domain of the cluster's own names (--cluster-domain), and would hide them: give a zone outside \
         of it",
        to_presentation(zone),
        to_presentation(cluster_domain)
    ))
}

/// Returns a domain that was written without the dot at its end; empty is the root. `None` if it isn't a domain.
#[must_use]
pub fn domain_name(text: &str) -> Option<Name> {
    if text.is_empty() {
        return Some(Name::root());
    }
    let mut name = Name::from_ascii(text).ok()?;
    name.set_fqdn(true);
    Some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zone_is_compared_with_the_cluster_domain_by_labels() {
        for (zone, expected) in [
            ("cluster.local", Some("equals")),
            ("Cluster.LOCAL", Some("equals")),
            ("local", Some("holds")),
            ("svc.cluster.local", Some("lies in")),
            ("lb.svc.cluster.local", Some("lies in")),
            ("lb.local", None),
            ("xcluster.local", None),
            ("cluster.local.example", None),
            ("lb.internal", None),
        ] {
            let names = [zone, "cluster.local"].map(|name| domain_name(name).unwrap());
            assert_eq!(overlap(&names[0], &names[1]), expected, "{zone}");
            assert_eq!(conflict(&names[0], &names[1]).is_some(), expected.is_some(), "{zone}");
        }
        let unknown = domain_name("").unwrap();
        assert_eq!(own_domains(&unknown), ["svc", "pod"].map(|label| domain_name(label).unwrap()));
        assert_eq!(conflict(&domain_name("lb.internal").unwrap(), &unknown), None);
    }
}
