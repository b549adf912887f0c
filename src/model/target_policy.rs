//! The policy that decides which targets are allowed: built-in safety rules, to which flags add rules and exceptions. It
//! applies to statuses of Services, and to each name and address of a CNAME chain in DNS.
//!
//! A Service's status, and the cloud's DNS records for its hostname, must not lead clients to the cluster's own names,
//! to the client's own host, or to another tenant's load balancer.

mod addresses;

use std::net::IpAddr;
use std::sync::Arc;

use hickory_proto::rr::Name;
use ipnet::IpNet;

use crate::model::clusters;
use crate::model::hostname::to_presentation;
use crate::model::link::{Link, Target};
use crate::model::owner::{self, Source};
use crate::model::service_key::ServiceKey;
use addresses::{denied_kind, embedded};

#[derive(Clone, Debug, Default)]
pub struct TargetPolicy {
    /// The zones of links. Whether a name in a zone of links is allowed depends on the link that owns the name.
    pub zones: Vec<Name>,
    /// The domain of the cluster's own names, which are denied; without labels, none is denied.
    pub cluster_domain: Name,
    /// Further zones of the cluster's own names, apart from the zones of links in them.
    pub cluster_zones: Vec<Name>,
    /// The domains of allowed hostnames; empty means any.
    pub domains: Vec<Name>,
    /// The networks of allowed addresses; empty means any.
    pub nets: Vec<IpNet>,
    /// Denied networks, in addition to the built-in ones.
    pub denied_nets: Vec<IpNet>,
    /// Exceptions from the denied networks.
    pub allowed_nets: Vec<IpNet>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// A name in the cluster's domain.
    #[error("it lies in the cluster's own domain {0}")]
    ClusterDomain(String),
    /// `localhost`, or a name below it (RFC 6761 section 6.3).
    #[error("localhost would be the client's own host")]
    Localhost,
    /// A name without a dot: its meaning depends on the client's search list.
    #[error("a single label isn't a complete name")]
    SingleLabel,
    /// A name in a zone of links that belongs to an object of another namespace, which doesn't allow this namespace.
    #[error("it lies in lb-linker's own zone and belongs to {}", closed_to(.owner, .namespace))]
    OtherNamespace {
        /// The key of what is behind the name.
        owner: ServiceKey,
        /// The namespace of the object with this target.
        namespace: String,
    },
    /// A DNS name of the object itself.
    #[error("it is a DNS name of this object itself, so DNS would lead in a circle")]
    OwnName,
    /// A name in a zone of links that no object owns, outside the namespace's domain.
    #[error(
        "it lies in lb-linker's own zone and belongs to no object: such a target must be below {0}, the domain of its \
         namespace"
    )]
    NoOwner(String),
    /// Not in `--target-domains`.
    #[error("it lies in none of the --target-domains")]
    Domain,
    /// A special-purpose address.
    #[error("{0} addresses are denied unless --allowed-nets lists them")]
    Special(&'static str),
    /// In `--denied-nets`.
    #[error("it lies in the denied network {0} (--denied-nets)")]
    DeniedNet(IpNet),
    /// Not in `--target-nets`.
    #[error("it lies in none of the --target-nets")]
    Net,
}

// === impl TargetPolicy ===

impl TargetPolicy {
    /// Checks the hostname of the load balancer `key`, as [`Self::check_host`] does. Its own names are denied, too.
    ///
    /// # Errors
    /// If the hostname is denied.
    pub fn check_host_of(
        &self,
        key: &ServiceKey,
        host: &Name,
        link_of: impl FnOnce(&Name) -> Option<Arc<Link>>,
    ) -> Result<(), Denied> {
        let mut owner = None;
        let note = |link: &Arc<Link>| owner = Some(link.key.clone());
        self.check_host(key.namespace(), host, |host| link_of(host).inspect(note))?;
        if owner.as_ref() == Some(key) { Err(Denied::OwnName) } else { Ok(()) }
    }

    /// Checks the hostname of a load balancer in `namespace`, which is the first name of a chain. `link_of` returns the
    /// link that owns a name in a zone of links.
    ///
    /// # Errors
    /// If the hostname is denied.
    pub fn check_host(
        &self,
        namespace: &str,
        host: &Name,
        link_of: impl FnOnce(&Name) -> Option<Arc<Link>>,
    ) -> Result<(), Denied> {
        let Some(zone) = self.check_first(host)? else { return Ok(()) };
        match link_of(host) {
            Some(link) if link.is_open_to(namespace) => Ok(()),
            Some(link) => {
                Err(Denied::OtherNamespace { owner: link.key.clone(), namespace: namespace.to_owned() })
            }
            // The link may come later: a name below `<namespace>.<zone>` belongs to the namespace.
            None if is_below(host, zone, namespace) => Ok(()),
            None => {
                Err(Denied::NoOwner(format!("{}.{}", clusters::domain_of(namespace), to_presentation(zone))))
            }
        }
    }

    /// Checks the first name of a chain. Returns the zone of links that contains it; the result then also depends on
    /// the links.
    fn check_first(&self, host: &Name) -> Result<Option<&Name>, Denied> {
        self.check_name(host)?;
        if host.iter().count() < 2 {
            return Err(Denied::SingleLabel);
        }
        let zone = self.zones.iter().find(|zone| zone.zone_of(host));
        let allowed = zone.is_some()
            || self.domains.is_empty()
            || self.domains.iter().any(|domain| domain.zone_of(host));
        if allowed { Ok(zone) } else { Err(Denied::Domain) }
    }

    /// Checks any name of a chain. Names in zones of links also depend on the links.
    ///
    /// # Errors
    /// If the name lies in the cluster's own domain, or is `localhost` or below it.
    pub fn check_name(&self, name: &Name) -> Result<(), Denied> {
        if name.iter().next_back().is_some_and(|label| label.eq_ignore_ascii_case(b"localhost")) {
            return Err(Denied::Localhost);
        }
        let domain = Some(&self.cluster_domain).filter(|domain| domain.num_labels() > 0);
        let has_links =
            |zone: &Name| self.zones.iter().any(|links| zone.zone_of(links) && links.zone_of(name));
        let zones = self.cluster_zones.iter().filter(|zone| !has_links(zone));
        match domain.into_iter().chain(zones).find(|zone| zone.zone_of(name)) {
            Some(zone) => Err(Denied::ClusterDomain(to_presentation(zone))),
            None => Ok(()),
        }
    }

    /// Checks an address of a load balancer or of its hostname.
    ///
    /// # Errors
    /// If the address is denied.
    pub fn check_address(&self, ip: IpAddr) -> Result<(), Denied> {
        let ip = ip.to_canonical();
        if !self.is_allowed(ip) {
            self.check_denied(ip)?;
            if let Some(embedded) = embedded(ip) {
                self.check_reachable(embedded)?;
            }
        }
        let allowed = self.nets.is_empty() || self.nets.iter().any(|net| net.contains(&ip));
        if allowed { Ok(()) } else { Err(Denied::Net) }
    }

    /// Checks an address that is reached through a translator or a tunnel, apart from `--target-nets`.
    ///
    /// # Errors
    /// If the address is denied.
    pub fn check_reachable(&self, ip: IpAddr) -> Result<(), Denied> {
        if self.is_allowed(ip) { Ok(()) } else { self.check_denied(ip) }
    }

    fn is_allowed(&self, ip: IpAddr) -> bool {
        self.allowed_nets.iter().any(|net| net.contains(&ip))
    }

    fn check_denied(&self, ip: IpAddr) -> Result<(), Denied> {
        if let Some(kind) = denied_kind(ip) {
            return Err(Denied::Special(kind));
        }
        match self.denied_nets.iter().find(|net| net.contains(&ip)) {
            Some(net) => Err(Denied::DeniedNet(*net)),
            None => Ok(()),
        }
    }

    /// Returns the part of a previously allowed target that is still allowed. For a name in a zone of links, this
    /// doesn't check the links: they may not be known yet, and DNS checks them for each answer.
    #[must_use]
    pub fn allowed(&self, target: Target) -> Option<Target> {
        match target {
            Target::Hostname(host) => {
                self.check_first(&host.name()).is_ok().then_some(Target::Hostname(host))
            }
            Target::Addresses(ips) => {
                let ips: Box<[IpAddr]> =
                    ips.into_iter().filter(|ip| self.check_address(*ip).is_ok()).collect();
                (!ips.is_empty()).then_some(Target::Addresses(ips))
            }
        }
    }
}

/// Returns which object doesn't let a namespace refer to its name, and why.
fn closed_to(owner: &ServiceKey, namespace: &str) -> String {
    let object = owner::object_of_target(owner);
    if Source::DNS_ENDPOINTS.has_target(owner) {
        return format!("{object}, to which no other namespace may refer");
    }
    let (cluster, plain) = clusters::split(namespace);
    let namespace = match (cluster, owner.cluster()) {
        (None, Some(_)) => format!("namespace {plain} of the home cluster"),
        (cluster, of_owner) if cluster == of_owner => format!("namespace {plain}"),
        _ => clusters::in_words(namespace),
    };
    format!("{object}, whose annotation linker.hsj.com/allow-from doesn't list {namespace}")
}

/// Returns whether a name in `zone` lies below `<namespace>.<zone>`; in a remote cluster below
/// `<namespace>.<cluster>.<zone>`.
fn is_below(host: &Name, zone: &Name, namespace: &str) -> bool {
    let below = host.iter().count() - zone.iter().count();
    let (cluster, plain) = clusters::split(namespace);
    let domain: Vec<&str> = std::iter::once(plain).chain(cluster).collect();
    let labels = host.iter().take(below).skip(below.saturating_sub(domain.len()));
    below > domain.len() && labels.zip(domain).all(|(label, own)| label.eq_ignore_ascii_case(own.as_bytes()))
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
        let checked = policy.check_host("default", &name, |_| None);
        checked.err().map_or_else(String::new, |refusal| refusal.to_string())
    }

    #[test]
    fn names_in_the_cluster_and_localhost_are_denied() {
        for (name, why) in [
            ("lb-1.cloud.example", ""),
            ("xcluster.local", ""),
            ("kubernetes.default.svc.cluster.local", "the cluster's own domain cluster.local"),
            ("Cluster.Local", "the cluster's own domain cluster.local"),
            ("localhost", "localhost would be the client's own host"),
            ("a.localhost", "localhost would be the client's own host"),
            ("intranet", "a single label"),
        ] {
            let found = host(&policy(), name);
            assert!(if why.is_empty() { found.is_empty() } else { found.contains(why) }, "{name}: {found}");
        }
    }

    #[test]
    fn name_of_another_namespace_names_the_object_that_has_it() {
        let needs = |object: &str| {
            format!("{object}, whose annotation linker.hsj.com/allow-from doesn't list namespace shop")
        };
        for (key, expected) in [
            ("app", needs("Service infra/app")),
            ("app.internal", needs("Service infra/app")),
            ("app.ingress", needs("Ingress infra/app")),
            ("a.b._shared.ingress", needs("Ingress infra/a.b")),
            ("public.gateway", needs("a route at Gateway infra/public")),
            ("edge._listenerset.gateway", needs("a route at ListenerSet infra/edge")),
            ("public._httproute.web.a.b.gateway", needs("HTTPRoute web/a.b")),
            ("edge._listenerset._tlsroute.web.a._shared.gateway", needs("TLSRoute web/a")),
            (
                "_sip._tcp.lb.internal.dnsendpoint",
                "name _sip._tcp.lb.internal of the DNSEndpoints in infra, to which no other namespace may refer"
                    .to_owned(),
            ),
        ] {
            let owner = ServiceKey::new("infra", key);
            let denied = Denied::OtherNamespace { owner, namespace: "shop".to_owned() };
            assert_eq!(
                denied.to_string(),
                format!("it lies in lb-linker's own zone and belongs to {expected}")
            );
        }
    }

    #[test]
    fn names_of_cluster_zones_are_denied_apart_from_links_in_them() {
        let cluster_zones = ["k8s.example.", "internal."].map(|zone| Name::from_ascii(zone).unwrap()).into();
        let policy = TargetPolicy { cluster_zones, ..policy() };
        for (name, why) in [
            ("web.shop.svc.K8s.example", "the cluster's own domain k8s.example"),
            ("web.internal", "the cluster's own domain internal"),
            ("web.default.lb.internal", ""),
            ("api.default.svc.cluster.local", "the cluster's own domain cluster.local"),
            ("www.example", ""),
        ] {
            let found = host(&policy, name);
            assert!(if why.is_empty() { found.is_empty() } else { found.contains(why) }, "{name}: {found}");
        }
    }

    #[test]
    fn special_purpose_addresses_are_denied() {
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
            ("0.1.2.3", "this network"),
            ("::ffff:0.0.0.1", "this network"),
            ("255.255.255.255", "broadcast"),
            ("255.255.255.254", ""),
            ("168.63.129.16", "cloud metadata"),
            ("168.63.129.17", ""),
            ("100.100.100.200", "cloud metadata"),
            ("fd00:ec2::254", "cloud metadata"),
            ("fd00:ec2:1::1", "cloud metadata"),
            ("fd00:ec3::254", ""),
            ("fd20:ce::254", "cloud metadata"),
            ("fd20:ce::253", ""),
            ("::192.0.2.1", "IPv4-compatible"),
            ("::2", "IPv4-compatible"),
            ("::1:0:0:0", ""),
            // RFC 6052, RFC 8215: the IPv4 address behind a NAT64 translator is checked.
            ("64:ff9b::192.0.2.1", ""),
            ("64:ff9b::127.0.0.1", "loopback"),
            ("64:ff9b::169.254.169.254", "link-local"),
            ("64:ff9b::", "unspecified"),
            ("64:ff9b:1::192.0.2.1", ""),
            ("64:ff9b:1::127.0.0.1", "loopback"),
            ("64:ff9b:1:7:8:9:168.63.129.16", "cloud metadata"),
            ("64:ff9b:2::127.0.0.1", ""),
            // RFC 3056: the IPv4 address behind a 6to4 tunnel is checked.
            ("2002:c000:201::1", ""),
            ("2002:7f00:1::1", "loopback"),
            ("2002:a9fe:a9fe::", "link-local"),
        ] {
            let found = policy().check_address(ip.parse().unwrap());
            assert_eq!(found.is_ok(), kind.is_empty(), "{ip}");
            assert!(found.err().is_none_or(|refusal| refusal.to_string().contains(kind)), "{ip}");
        }
    }

    #[test]
    fn denied_and_allowed_nets_adjust_the_built_in_list() {
        let nets = |nets: &[&str]| nets.iter().map(|net| net.parse().unwrap()).collect();
        let policy = TargetPolicy {
            denied_nets: nets(&["10.96.0.0/12", "fd00:10:96::/112"]),
            allowed_nets: nets(&["127.0.0.0/8", "10.96.7.0/24", "64:ff9b::a9fe:0/112"]),
            ..policy()
        };
        for (ip, why) in [
            ("10.96.0.1", "the denied network 10.96.0.0/12 (--denied-nets)"),
            ("::ffff:10.96.0.1", "--denied-nets"),
            ("64:ff9b::10.96.0.1", "--denied-nets"),
            ("fd00:10:96::1", "--denied-nets"),
            ("10.96.7.1", ""),
            ("64:ff9b::10.96.7.1", ""),
            ("10.95.0.1", ""),
            ("127.0.0.1", ""),
            ("::ffff:127.0.0.1", ""),
            ("2002:7f00:1::", ""),
            ("::1", "loopback"),
            ("64:ff9b::169.254.0.1", ""),
            ("64:ff9b:1::169.254.0.1", "link-local"),
        ] {
            let found = policy.check_address(ip.parse().unwrap()).err().map(|refusal| refusal.to_string());
            let found = found.unwrap_or_default();
            assert!(if why.is_empty() { found.is_empty() } else { found.contains(why) }, "{ip}: {found}");
        }
    }

    #[test]
    fn domains_and_networks_restrict_targets() {
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
        assert_eq!(policy.allowed(all.clone()), Some(all));
        let some = addresses(&["192.0.2.9", "198.51.100.1"]);
        assert_eq!(policy.allowed(some), Some(addresses(&["192.0.2.9"])));
        assert_eq!(policy.allowed(addresses(&["198.51.100.1"])), None);
    }
}
