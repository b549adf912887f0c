//! The messages about plugins that lb-linker doesn't have.

use super::{ORDER, OWN, import, names};
use crate::dns::corefile::Directive;
use crate::dns::corefile::arguments::suggestion;

/// The plugins of CoreDNS that aren't here: why, and what to do instead.
const UNSUPPORTED: &[(&str, &str)] = &[
    ("azure", "isn't supported; forward the zone to Azure's resolver, 168.63.129.16"),
    ("clouddns", "isn't supported; forward the zone to Google Cloud's resolver, 169.254.169.254"),
    ("dnssec", "isn't supported; sign the zone's file, for example with ldns-signzone"),
    (
        "https3",
        "isn't supported yet; serve https:// or quic://, or put a proxy such as dnsdist before this server",
    ),
    ("nomad", "isn't supported yet; forward the zone to a CoreDNS that has it"),
    ("on", "isn't supported; run the command beside lb-linker, for example in a container of its own"),
    ("route53", "isn't supported; forward the zone to the VPC's resolver, 169.254.169.253"),
    ("sign", "isn't supported; sign the zone's file outside, for example with ldns-signzone"),
    ("trace", "isn't supported; log and prometheus show the duration of queries"),
];

/// Plugins that others have written for CoreDNS, most of them listed on <https://coredns.io/explugins/>.
const EXTERNAL: &str = "ads alias alternate amazondns blocker blocklist consul demo dnsredir docker \
    dockerdiscovery dso dump dynamicforward dynapi ebpf ens example fallback fanout filter filterlist \
    finalize firewall flatten forwardcrd gathersrv git gravwell gslb idetcd ipecho ipin json k8s_cache \
    k8s_crd k8s_dns_chaos k8s_event kubeforward kubenodes kubernetai lighthouse mdns meship \
    meshname multicluster mysql mysql_extend netbox nodecache omada opa pdsql pocketbase proxy ratelimit \
    rebind records recursor redirect redis redis_cache redisc responsefilter rrl slog split tailscale \
    traefik umbrella unbound vcluster warnlist wgsd";

/// Returns why a name isn't a plugin that can be used here; `None` if it is one.
pub(super) fn refusal(name: &str) -> Option<String> {
    match ORDER.iter().find(|(known, _)| *known == name) {
        Some((_, Some(_))) => None,
        Some((name, None)) => {
            let known = UNSUPPORTED.iter().find(|(known, _)| known == name);
            let (_, instead) = known.copied().unwrap_or((name, "isn't supported"));
            Some(format!("CoreDNS's plugin {name} {instead}"))
        }
        None if EXTERNAL.split(' ').any(|external| external == name) => Some(format!(
            "{name} is an external plugin, which CoreDNS's own image lacks, too: forward its names to a CoreDNS that has \
             it, or leave it out"
        )),
        None => {
            let known = names();
            let hint = suggestion(name, &known).unwrap_or_else(|| format!("there are {}", known.join(", ")));
            Some(format!("there is no plugin {name:?}; {hint}"))
        }
    }
}

/// Returns a sentence about a line of a Corefile of CoreDNS whose plugin CoreDNS doesn't have; `None` if it has it.
#[must_use]
pub fn unknown_to_core_dns(line: &Directive) -> Option<String> {
    let known = ORDER.iter().map(|(name, _)| *name).filter(|name| !OWN.contains(name));
    let known: Vec<&str> = known.chain([import::NAME]).collect();
    // The parser leaves the environment variables of CoreDNS in place.
    if known.contains(&line.name()) || line.name().contains("{$") {
        return None;
    }
    let hint = suggestion(line.name(), &known).map(|hint| format!("; {hint}")).unwrap_or_default();
    Some(format!("CoreDNS has no plugin {:?}{hint}", line.name()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exactly_the_unsupported_plugins_have_a_remedy() {
        let lacking = ORDER.iter().filter(|(_, set_up)| set_up.is_none()).map(|(name, _)| *name);
        let mut lacking: Vec<&str> = lacking.collect();
        lacking.sort_unstable();
        assert_eq!(UNSUPPORTED.iter().map(|(name, _)| *name).collect::<Vec<_>>(), lacking);
    }

    #[test]
    fn no_plugin_of_coredns_counts_as_external() {
        let external: Vec<&str> = EXTERNAL.split(' ').collect();
        assert!(external.is_sorted() && external.iter().all(|name| !name.is_empty()));
        assert!(ORDER.iter().all(|(name, _)| !external.contains(name)));
    }

    #[test]
    fn unsupported_external_and_unknown_plugins_are_told_apart() {
        for (name, expected) in [
            ("forward", None),
            (
                "trace",
                Some(
                    "CoreDNS's plugin trace isn't supported; log and prometheus show the duration of queries",
                ),
            ),
            ("kubenodes", Some("kubenodes is an external plugin, which CoreDNS's own image lacks, too")),
            ("forwrad", Some("there is no plugin \"forwrad\"; is it forward?")),
            ("resolver", Some("there is no plugin \"resolver\"; there are acl, any,")),
        ] {
            let found = refusal(name);
            assert!(
                found.as_deref().zip(expected).is_some_and(|(found, start)| found.starts_with(start))
                    || found.is_none() && expected.is_none(),
                "{found:?}"
            );
        }
    }
}
