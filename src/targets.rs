//! Which targets are followed: a pure rule, of safety first, narrowed further by the user.
//!
//! Whoever may write a Service's status, or its cloud, must not lead clients into the cluster's own
//! names, to themselves, or to another tenant's load balancer.

use std::net::IpAddr;

use hickory_proto::rr::Name;
use ipnet::IpNet;

use crate::store::{Target, host_text};

/// Which targets are followed.
#[derive(Clone, Debug, Default)]
pub struct TargetPolicy {
    /// Our own zones: names in them are followed only within the namespace.
    pub zones: Vec<Name>,
    /// The domain of the cluster's own names, which are never followed; without labels there is none.
    pub cluster_domain: Name,
    /// The domains that hostnames must lie in; empty for any.
    pub domains: Vec<Name>,
    /// The networks that addresses must lie in; empty for any.
    pub nets: Vec<IpNet>,
}

/// Why a target isn't followed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A name of the cluster itself.
    #[error("it lies in the cluster's own domain {0}")]
    ClusterDomain(String),
    /// `localhost`, or a name below it (RFC 6761 section 6.3).
    #[error("localhost is whoever asks")]
    Localhost,
    /// A name without a dot: what it means depends on who asks.
    #[error("a single label isn't a complete name")]
    SingleLabel,
    /// A name in a zone of ours, outside the namespace.
    #[error("it lies in lb-linker's own zone, and not below {0}, the domain of its namespace")]
    OtherNamespace(String),
    /// Not in `--target-domains`.
    #[error("it lies in none of the --target-domains")]
    Domain,
    /// An address that isn't reached from elsewhere.
    #[error("{0} addresses lead nowhere else")]
    Special(&'static str),
    /// Not in `--target-nets`.
    #[error("it lies in none of the --target-nets")]
    Net,
}

// === impl TargetPolicy ===

impl TargetPolicy {
    /// Checks the hostname of a load balancer in `namespace`.
    ///
    /// # Errors
    /// If it isn't followed.
    pub fn check_host(&self, namespace: &str, host: &Name) -> Result<(), Refusal> {
        let labels: Vec<&[u8]> = host.iter().collect();
        if labels.last().is_some_and(|label| label.eq_ignore_ascii_case(b"localhost")) {
            return Err(Refusal::Localhost);
        }
        if labels.len() < 2 {
            return Err(Refusal::SingleLabel);
        }
        if self.cluster_domain.num_labels() > 0 && self.cluster_domain.zone_of(host) {
            return Err(Refusal::ClusterDomain(host_text(&self.cluster_domain)));
        }
        if let Some(zone) = self.zones.iter().find(|zone| zone.zone_of(host)) {
            let below = labels.len() - zone.iter().count();
            let own = below >= 2 && labels[below - 1].eq_ignore_ascii_case(namespace.as_bytes());
            return if own {
                Ok(())
            } else {
                Err(Refusal::OtherNamespace(format!("{namespace}.{}", host_text(zone))))
            };
        }
        let allowed = self.domains.is_empty() || self.domains.iter().any(|domain| domain.zone_of(host));
        if allowed { Ok(()) } else { Err(Refusal::Domain) }
    }

    /// Checks an address, of a load balancer or behind its hostname.
    ///
    /// # Errors
    /// If it isn't followed.
    pub fn check_address(&self, ip: IpAddr) -> Result<(), Refusal> {
        let ip = ip.to_canonical();
        let link_local = match ip {
            IpAddr::V4(ip) => ip.is_link_local(),
            IpAddr::V6(ip) => ip.is_unicast_link_local(),
        };
        for (special, kind) in [
            (ip.is_loopback(), "loopback"),
            (link_local, "link-local"),
            (ip.is_multicast(), "multicast"),
            (ip.is_unspecified(), "unspecified"),
        ] {
            if special {
                return Err(Refusal::Special(kind));
            }
        }
        let allowed = self.nets.is_empty() || self.nets.iter().any(|net| net.contains(&ip));
        if allowed { Ok(()) } else { Err(Refusal::Net) }
    }

    /// Returns what of a target of a load balancer in `namespace` is followed.
    #[must_use]
    pub fn followed(&self, namespace: &str, target: Target) -> Option<Target> {
        match target {
            Target::Hostname(host) => {
                self.check_host(namespace, &host.name()).is_ok().then_some(Target::Hostname(host))
            }
            Target::Addresses(ips) => {
                let ips: Box<[IpAddr]> =
                    ips.into_iter().filter(|ip| self.check_address(*ip).is_ok()).collect();
                (!ips.is_empty()).then_some(Target::Addresses(ips))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> TargetPolicy {
        let name = |text| Name::from_ascii(text).unwrap();
        TargetPolicy {
            zones: vec![name("lb.internal.")],
            cluster_domain: name("cluster.local."),
            ..Default::default()
        }
    }

    fn host(policy: &TargetPolicy, host: &str) -> String {
        let name = Name::from_ascii(format!("{host}.")).unwrap();
        policy.check_host("default", &name).err().map_or_else(String::new, |refusal| refusal.to_string())
    }

    #[test]
    fn names_that_lead_into_the_cluster_or_to_whoever_asks_are_refused() {
        for (name, why) in [
            ("lb-1.cloud.example", ""),
            ("xcluster.local", ""),
            ("kubernetes.default.svc.cluster.local", "the cluster's own domain cluster.local"),
            ("Cluster.Local", "the cluster's own domain cluster.local"),
            ("localhost", "localhost is whoever asks"),
            ("a.localhost", "localhost is whoever asks"),
            ("intranet", "a single label"),
        ] {
            let found = host(&policy(), name);
            assert!(if why.is_empty() { found.is_empty() } else { found.contains(why) }, "{name}: {found}");
        }
    }

    #[test]
    fn names_in_our_own_zone_are_followed_within_their_namespace_only() {
        for name in ["web.default.lb.internal", "a.web.Default.LB.internal"] {
            assert_eq!(host(&policy(), name), "", "{name}");
        }
        for name in ["web.other.lb.internal", "web-default.lb.internal", "default.lb.internal", "lb.internal"]
        {
            assert!(host(&policy(), name).contains("default.lb.internal"), "{name}");
        }
    }

    #[test]
    fn addresses_that_arent_reached_from_elsewhere_are_refused() {
        for (ip, kind) in [
            ("192.0.2.1", ""),
            ("10.0.0.1", ""),
            ("2001:db8::1", ""),
            ("127.0.0.1", "loopback"),
            ("::ffff:127.0.0.1", "loopback"),
            ("::1", "loopback"),
            ("169.254.169.254", "link-local"),
            ("fe80::1", "link-local"),
            ("224.0.0.1", "multicast"),
            ("ff02::1", "multicast"),
            ("0.0.0.0", "unspecified"),
            ("::", "unspecified"),
        ] {
            let found = policy().check_address(ip.parse().unwrap());
            assert_eq!(found.is_ok(), kind.is_empty(), "{ip}");
            assert!(found.err().is_none_or(|refusal| refusal.to_string().contains(kind)), "{ip}");
        }
    }

    #[test]
    fn domains_and_networks_narrow_it_down() {
        let name = Name::from_ascii("cloud.example.").unwrap();
        let policy = TargetPolicy {
            domains: vec![name],
            nets: vec!["192.0.2.0/24".parse().unwrap(), "2001:db8::/32".parse().unwrap()],
            ..policy()
        };
        assert_eq!(host(&policy, "a.cloud.example"), "");
        assert!(host(&policy, "a.xcloud.example").contains("--target-domains"));
        assert_eq!(host(&policy, "web.default.lb.internal"), "", "our own zone is allowed in any case");
        let addresses = |ips: &[&str]| Target::Addresses(ips.iter().map(|ip| ip.parse().unwrap()).collect());
        let all = addresses(&["192.0.2.9", "2001:db8::1", "::ffff:192.0.2.1"]);
        assert_eq!(policy.followed("default", all.clone()), Some(all));
        let some = addresses(&["192.0.2.9", "198.51.100.1"]);
        assert_eq!(policy.followed("default", some), Some(addresses(&["192.0.2.9"])));
        assert_eq!(policy.followed("default", addresses(&["198.51.100.1"])), None);
    }
}
