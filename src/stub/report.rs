//! What `lb-linker stub` prints: how to let the DNS of a cluster forward the zones. Pure functions.

use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::{Map, Value, json};

use super::Forwarding;
use super::changes::{SERVER_KEY, cluster_dns, place, value};
use super::corefile::{Corefile, Wiring, lines};
use super::platform::{
    COREDNS, COREDNS_CUSTOM, COREFILE, ClusterDns, KUBE_DNS, NODE_LOCAL, Part, Resolver, Unsupported,
};

const APPLY: &str = "`lb-linker stub --apply` adds it.";
/// The maximum width of text in columns.
const WIDTH: usize = 100;
const RESTART: &str = "    kubectl -n kube-system rollout restart deployment coredns";

/// Returns the lines about one resolver, or about all parts of the cluster's DNS.
#[must_use]
pub fn report(dns: &ClusterDns, forwarding: &Forwarding, wanted: Option<Resolver>) -> Vec<String> {
    let mut report = vec![format!(
        "The cluster DNS has to forward {} to {}, the address of Service {}.",
        forwarding.zones.join(", "),
        forwarding.upstream(),
        forwarding.service
    )];
    let parts = wanted.map_or_else(|| dns.parts(), |resolver| vec![Part::Resolver(resolver)]);
    if parts.is_empty() {
        report.push(String::new());
        report.push(
            "No known cluster DNS was found. If it is a CoreDNS, add this block to its Corefile; `lb-linker stub \
             --help` lists the resolvers that can be named."
                .to_owned(),
        );
        report.push(String::new());
        report.extend(indented(&lines(forwarding, "53", &[], false)));
    }
    for part in parts {
        report.push(String::new());
        report.extend(match part {
            Part::Resolver(resolver) => section(dns, forwarding, resolver),
            Part::Unsupported(unsupported) => cant_forward(unsupported),
        });
    }
    report.iter().flat_map(|line| wrapped(line)).collect()
}

/// Breaks a line of text at [`WIDTH`]. Indented lines are code, and stay as they are.
fn wrapped(line: &str) -> Vec<String> {
    if line.is_empty() || line.starts_with(' ') {
        return vec![line.to_owned()];
    }
    let mut lines: Vec<String> = Vec::new();
    for word in line.split(' ') {
        match lines.last_mut() {
            Some(last) if last.chars().count() + 1 + word.chars().count() <= WIDTH => {
                last.push(' ');
                last.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

fn section(dns: &ClusterDns, forwarding: &Forwarding, resolver: Resolver) -> Vec<String> {
    match resolver {
        Resolver::CoreDns => core_dns(dns, forwarding),
        Resolver::NodeLocal => node_local(dns, forwarding),
        Resolver::Eks => eks(dns, forwarding),
        Resolver::Aks => [custom("AKS", dns, forwarding), local_dns(forwarding)].concat(),
        Resolver::K3s => custom("k3s", dns, forwarding),
        Resolver::GkeKubeDns => gke(dns, forwarding),
        Resolver::OpenShift => open_shift(dns, forwarding),
        Resolver::Kubespray => kubespray(forwarding),
        Resolver::Dnsmasq => dnsmasq(forwarding),
        Resolver::SystemdResolved => systemd_resolved(forwarding),
    }
}

fn core_dns(dns: &ClusterDns, forwarding: &Forwarding) -> Vec<String> {
    let map = dns.config_map(COREDNS);
    if map.is_some_and(|map| parsed(map).is_some_and(|corefile| corefile.imports_servers())) {
        return custom("CoreDNS", dns, forwarding);
    }
    corefile_section("CoreDNS", COREDNS, map, forwarding, false, &[])
}

fn node_local(dns: &ClusterDns, forwarding: &Forwarding) -> Vec<String> {
    let map = dns.node_local();
    let name = map.and_then(|map| map.metadata.name.as_deref()).unwrap_or(NODE_LOCAL[0]);
    corefile_section("NodeLocal DNSCache", name, map, forwarding, true, &cluster_dns(dns))
}

/// Returns what to add to the Corefile of a ConfigMap.
fn corefile_section(
    title: &str,
    name: &str,
    map: Option<&ConfigMap>,
    forwarding: &Forwarding,
    by_tcp: bool,
    also: &[String],
) -> Vec<String> {
    let title = format!("{title}: the Corefile in ConfigMap kube-system/{name}");
    let Some(map) = map else {
        let mut section = vec![format!("{title} needs this block:"), String::new()];
        if by_tcp {
            section[0] = format!("{title} needs this block, with the `bind` line of its other blocks:");
        }
        section.extend(indented(&lines(forwarding, "53", &[], by_tcp)));
        return section;
    };
    let corefile = match Corefile::parse(&place(map), value(map, COREFILE).unwrap_or_default()) {
        Ok(corefile) => corefile,
        Err(error) => return vec![format!("{title} can't be read: {error}")],
    };
    let need = match corefile.wiring(forwarding, also) {
        Wiring::Complete => {
            return vec![format!("{title} forwards {} already.", forwarding.zones.join(", "))];
        }
        Wiring::Missing => format!("{title} needs this block:"),
        Wiring::Elsewhere { zone, line, upstreams, is_ours } => {
            let upstreams = if upstreams.is_empty() { "no address".to_owned() } else { upstreams.join(" ") };
            let found = format!(
                "{title} forwards {zone} to {upstreams} in line {line}, which isn't the address of Service {}.",
                forwarding.service
            );
            if !is_ours {
                return vec![format!(
                    "{found} lb-linker didn't add this block: correct it by hand, or remove it and run `lb-linker stub` \
                     again."
                )];
            }
            format!("{found} It needs this block instead:")
        }
    };
    let mut section = vec![need, String::new()];
    section.extend(indented(&corefile.lines_to_add(forwarding, by_tcp)));
    section.extend([String::new(), APPLY.to_owned()]);
    if !corefile.reloads() {
        section.push("This Corefile has no `reload`: restart its Pods after the change.".to_owned());
    }
    section
}

fn eks(dns: &ClusterDns, forwarding: &Forwarding) -> Vec<String> {
    let Some(present) = dns.config_map(COREDNS).and_then(|map| value(map, COREFILE)) else {
        let mut section = vec![
            "EKS: the configuration of the add-on `coredns` has to hold the whole Corefile. The present one, in ConfigMap \
             kube-system/coredns, wasn't found. Add this block to it:"
                .to_owned(),
            String::new(),
        ];
        section.extend(indented(&lines(forwarding, "53", &[], false)));
        return section;
    };
    let text = Corefile::parse("kube-system/coredns:Corefile", present)
        .and_then(|corefile| corefile.with(&corefile.lines_to_add(forwarding, false), &forwarding.zones));
    let text = match text {
        Ok(text) => text,
        Err(error) => return vec![format!("EKS: the present Corefile can't be used: {error}")],
    };
    let mut section = vec![
        "EKS: the configuration of the add-on `coredns` has to hold the whole Corefile. Changes of ConfigMap \
         kube-system/coredns last only until the next update of the add-on. Save this as coredns.yaml; configuration \
         values that the add-on has already have to stand there, too:"
            .to_owned(),
        String::new(),
        "    corefile: |".to_owned(),
    ];
    section.extend(text.lines().map(|line| format!("        {line}").trim_end().to_owned()));
    section.extend([
        String::new(),
        "The first command prints the present values, the second one sets the new ones:".to_owned(),
        String::new(),
        "    aws eks describe-addon --cluster-name <cluster> --addon-name coredns --query addon.configurationValues"
            .to_owned(),
        "    aws eks update-addon --cluster-name <cluster> --addon-name coredns --configuration-values \
         file://coredns.yaml"
            .to_owned(),
        String::new(),
        "If CoreDNS isn't an add-on of this cluster: `lb-linker stub coredns`.".to_owned(),
    ]);
    section
}

/// Returns the key to add to the ConfigMap `coredns-custom`.
fn custom(title: &str, dns: &ClusterDns, forwarding: &Forwarding) -> Vec<String> {
    let bind = dns
        .config_map(COREDNS)
        .and_then(parsed)
        .map(|corefile| corefile.bind().into_iter().map(ToOwned::to_owned).collect::<Vec<String>>());
    let bind: Vec<&str> = bind.iter().flatten().map(String::as_str).collect();
    let text = lines(forwarding, "53", &bind, false);
    let present = dns.config_map(COREDNS_CUSTOM).and_then(|map| value(map, SERVER_KEY));
    let name = format!("{title}: ConfigMap kube-system/{COREDNS_CUSTOM}");
    if present == Some(&text) {
        return vec![format!("{name} forwards {} already.", forwarding.zones.join(", "))];
    }
    let mut section = vec![
        format!("{name} needs this key, which the Corefile of CoreDNS imports:"),
        String::new(),
        "    apiVersion: v1".to_owned(),
        "    kind: ConfigMap".to_owned(),
        "    metadata:".to_owned(),
        format!("      name: {COREDNS_CUSTOM}"),
        "      namespace: kube-system".to_owned(),
        "    data:".to_owned(),
        format!("      {SERVER_KEY}: |"),
    ];
    section.extend(text.lines().map(|line| format!("        {line}")));
    section.extend([
        String::new(),
        format!("{APPLY} Then restart CoreDNS, because it doesn't watch imported files:"),
        String::new(),
        RESTART.to_owned(),
    ]);
    section
}

/// Returns the override for AKS's resolver on the nodes.
fn local_dns(forwarding: &Forwarding) -> Vec<String> {
    let zone = json!({
        "queryLogging": "Error",
        "protocol": "ForceTCP",
        "forwardDestination": "ClusterCoreDNS",
        "forwardPolicy": "Sequential",
        "maxConcurrent": 1000,
        "cacheDurationInSeconds": 5,
        "serveStaleDurationInSeconds": 5,
        "serveStale": "Disable",
    });
    let zones: Map<String, Value> =
        forwarding.zones.iter().map(|name| (name.clone(), zone.clone())).collect();
    let overrides = json!({"kubeDNSOverrides": zones, "vnetDNSOverrides": zones});
    let mut section = vec![
        String::new(),
        "Node pools with LocalDNS also need an override for the zone, in localdnsconfig.json beside those for `.` and \
         `cluster.local`. Without it, LocalDNS may answer with stale targets:"
            .to_owned(),
        String::new(),
    ];
    section.extend(indented(&pretty(&overrides)));
    section.extend([
        String::new(),
        "    az aks nodepool update --resource-group <group> --cluster-name <cluster> --name <pool> --localdns-config \
         ./localdnsconfig.json"
            .to_owned(),
    ]);
    section
}

fn gke(dns: &ClusterDns, forwarding: &Forwarding) -> Vec<String> {
    let map = dns.config_map(KUBE_DNS);
    let present = map.and_then(|map| value(map, "stubDomains")).unwrap_or("{}");
    let Ok(mut domains) = serde_json::from_str::<Map<String, Value>>(present) else {
        return vec![format!(
            "GKE: the key stubDomains of ConfigMap kube-system/{KUBE_DNS} isn't a JSON object."
        )];
    };
    let upstream = json!([forwarding.upstream()]);
    let missing = forwarding.zones.iter().filter(|zone| domains.get(*zone) != Some(&upstream)).count();
    if missing == 0 {
        return vec![format!(
            "GKE: kube-dns forwards {} already (ConfigMap kube-system/{KUBE_DNS}, key stubDomains).",
            forwarding.zones.join(", ")
        )];
    }
    domains.extend(forwarding.zones.iter().map(|zone| (zone.clone(), upstream.clone())));
    let patch = json!({"data": {"stubDomains": Value::Object(domains).to_string()}});
    let others =
        if map.is_none() { " The ConfigMap wasn't found: if it exists, add its other domains." } else { "" };
    vec![
        format!(
            "GKE: kube-dns forwards the domains in the key stubDomains of ConfigMap kube-system/kube-dns. NodeLocal \
             DNSCache on GKE follows it.{others} Run:"
        ),
        String::new(),
        format!("    kubectl -n kube-system patch configmap kube-dns --type merge -p '{patch}'"),
        String::new(),
        "kube-dns caches answers for their TTL: 5 seconds.".to_owned(),
    ]
}

fn open_shift(dns: &ClusterDns, forwarding: &Forwarding) -> Vec<String> {
    let servers =
        dns.dns_operator.as_ref().and_then(|operator| operator.data.pointer("/spec/servers")?.as_array());
    let server = json!({
        "name": "lb-linker",
        "zones": forwarding.zones,
        "forwardPlugin": {"policy": "Sequential", "upstreams": [forwarding.upstream()]},
    });
    let position = servers.and_then(|servers| servers.iter().position(|it| it["name"] == "lb-linker"));
    let patch = match (servers, position) {
        (Some(servers), Some(position)) if servers[position] == server => {
            return vec!["OpenShift: the DNS operator forwards the zones already.".to_owned()];
        }
        (_, Some(position)) => {
            json!([{"op": "replace", "path": format!("/spec/servers/{position}"), "value": server}])
        }
        (Some(_), None) => json!([{"op": "add", "path": "/spec/servers/-", "value": server}]),
        (None, None) => json!([{"op": "add", "path": "/spec/servers", "value": [server]}]),
    };
    vec![
        "OpenShift: the DNS operator writes CoreDNS's Corefile from spec.servers of dns.operator/default. Run:".to_owned(),
        String::new(),
        format!("    oc patch dns.operator/default --type json -p '{patch}'"),
        String::new(),
        "Its server blocks cache answers for their TTL: 5 seconds.".to_owned(),
    ]
}

fn kubespray(forwarding: &Forwarding) -> Vec<String> {
    let zones = forwarding.zones.join(", ");
    let mut section = vec![
        "kubespray: changes of its ConfigMaps last only until its playbook runs again. Add this to the group variables \
         of the inventory, too:"
            .to_owned(),
        String::new(),
    ];
    for server in ["coredns", "nodelocaldns"] {
        section.push(format!("    {server}_external_zones:"));
        section.push(format!("      - zones: [{zones}]"));
        section.push(format!("        nameservers: [\"{}\"]", forwarding.upstream()));
        section.push("        cache: 0".to_owned());
    }
    section
}

fn dnsmasq(forwarding: &Forwarding) -> Vec<String> {
    let server = forwarding.upstream().replace(':', "#");
    let address = forwarding.addresses.first().filter(|address| address.is_ipv6());
    let server = address.map_or(server, ToString::to_string);
    let mut section = vec![
        "dnsmasq, on a machine that reaches the cluster's Services, such as a node. In /etc/dnsmasq.d/lb-linker.conf:"
            .to_owned(),
        String::new(),
    ];
    section.extend(forwarding.zones.iter().map(|zone| format!("    server=/{zone}/{server}")));
    section.extend([
        String::new(),
        "dnsmasq drops answers with private addresses if stop-dns-rebind is set; then also:".to_owned(),
        String::new(),
    ]);
    section.extend(forwarding.zones.iter().map(|zone| format!("    rebind-domain-ok=/{zone}/")));
    section
}

fn systemd_resolved(forwarding: &Forwarding) -> Vec<String> {
    let zones: Vec<String> = forwarding.zones.iter().map(|zone| format!("~{zone}")).collect();
    vec![
        "systemd-resolved, on a machine that reaches the cluster's Services, such as a node. In \
         /etc/systemd/resolved.conf.d/lb-linker.conf:"
            .to_owned(),
        String::new(),
        "    [Resolve]".to_owned(),
        format!("    DNS={}", forwarding.upstream()),
        format!("    Domains={}", zones.join(" ")),
        String::new(),
        "    systemctl restart systemd-resolved".to_owned(),
    ]
}

fn cant_forward(unsupported: Unsupported) -> Vec<String> {
    let name = match unsupported {
        Unsupported::GkeCloudDns => "GKE with Cloud DNS",
        Unsupported::GkeAutopilot => "GKE Autopilot",
        Unsupported::EksAutoMode => "Nodes of EKS Auto Mode",
    };
    vec![
        format!("{name}: this DNS can't forward a zone to an address in the cluster. Instead, use"),
        "- a sidecar, which answers the queries of its Pod: docs/sidecar.md;".to_owned(),
        "- or the external target's own name, which the cluster DNS answers by itself:".to_owned(),
        "  <service>-<namespace>-ext.external-targets.svc.cluster.local.".to_owned(),
    ]
}

fn parsed(map: &ConfigMap) -> Option<Corefile<'_>> {
    Corefile::parse(&place(map), value(map, COREFILE)?).ok()
}

fn indented(text: &str) -> impl Iterator<Item = String> {
    text.lines().map(|line| format!("    {line}").trim_end().to_owned()).collect::<Vec<_>>().into_iter()
}

fn pretty(value: &Value) -> String {
    serde_json::to_string_pretty(value).unwrap_or_default()
}

#[cfg(test)]
mod tests;
