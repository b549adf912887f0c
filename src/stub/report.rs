//! What `lb-linker stub` prints: how to let the DNS of a cluster forward the zones. Pure functions.

use serde_json::{Map, Value, json};

use super::Forwarding;
use super::changes::{Change, PlannedChange, SERVER_KEY, core_dns, node_local};
use super::corefile::default_lines;
use super::platform::{
    COREDNS, COREDNS_CUSTOM, COREFILE, ClusterDns, DnsComponent, KUBE_DNS, KUBE_SYSTEM, NODE_LOCAL, Resolver,
    Unsupported, value,
};
use super::zone_blocks::{OPERATOR_SERVER, is_own_server, operator_zones, texts, wrong_upstreams};

/// The maximum width of text in columns.
const WIDTH: usize = 100;

/// Returns the lines about one resolver, or about all parts of the cluster's DNS. `is_complete`: whether all objects of the
/// cluster's DNS could be read.
#[must_use]
pub fn report(
    dns: &ClusterDns,
    forwarding: &Forwarding,
    wanted: Option<Resolver>,
    is_complete: bool,
) -> Vec<String> {
    let mut report = vec![format!(
        "The cluster DNS has to forward {} to {}, the address of Service {}.",
        forwarding.zones.join(", "),
        forwarding.upstream(),
        forwarding.service
    )];
    let parts = wanted.map_or_else(|| dns.parts(), |resolver| vec![DnsComponent::Resolver(resolver)]);
    if parts.is_empty() {
        report.push(String::new());
        let found = if is_complete {
            "No known cluster DNS was found."
        } else {
            "Which DNS the cluster has can't be read."
        };
        report.push(format!(
            "{found} If it is a CoreDNS, its Corefile needs this block; if Helm has installed it, \
             as in RKE2, the chart's values. `lb-linker stub --help` lists the resolvers that can be named."
        ));
        report.push(String::new());
        report.extend(indented(&default_lines(forwarding, false)));
    }
    for part in parts {
        report.push(String::new());
        report.extend(match part {
            DnsComponent::Resolver(resolver) => section(dns, forwarding, resolver),
            DnsComponent::Unsupported(unsupported) => cant_forward(unsupported),
        });
    }
    report.iter().flat_map(|line| wrapped(line)).collect()
}

/// Breaks a line of text at [`WIDTH`]. Indented lines are code, and aren't broken.
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
        Resolver::CoreDns => of_core_dns("CoreDNS", COREDNS, dns, forwarding),
        Resolver::NodeLocal => match node_local(dns, forwarding) {
            Some(step) => of_step("NodeLocal DNSCache", step),
            None => by_hand("NodeLocal DNSCache", NODE_LOCAL[0], &default_lines(forwarding, true)),
        },
        Resolver::Eks => eks(dns, forwarding),
        Resolver::Aks => {
            [of_core_dns("AKS", COREDNS_CUSTOM, dns, forwarding), local_dns(forwarding)].concat()
        }
        Resolver::K3s => of_core_dns("k3s", COREDNS_CUSTOM, dns, forwarding),
        Resolver::GkeKubeDns => gke(dns, forwarding),
        Resolver::OpenShift => open_shift(dns, forwarding),
        Resolver::Kubespray => kubespray(forwarding),
        Resolver::Dnsmasq => dnsmasq(forwarding),
        Resolver::SystemdResolved => systemd_resolved(forwarding),
    }
}

fn of_core_dns(title: &str, config_map: &str, dns: &ClusterDns, forwarding: &Forwarding) -> Vec<String> {
    match core_dns(dns, forwarding) {
        Some(step) => of_step(title, step),
        None => by_hand(title, config_map, &default_lines(forwarding, false)),
    }
}

fn of_step(title: &str, step: PlannedChange) -> Vec<String> {
    match step {
        PlannedChange::Change(change) => {
            let mut section = block(title, &change);
            section.extend([String::new(), "`lb-linker stub --apply` writes it.".to_owned()]);
            if let Some(restart) = change.restart {
                section.push(
                    "This Corefile has no `reload`, so that its Pods have to be restarted then:".to_owned(),
                );
                section.extend([String::new(), format!("    {restart}")]);
            }
            section
        }
        PlannedChange::Managed { change, by } => {
            let mut section = block(title, &change);
            section.push(String::new());
            section.push(format!(
                "{by} manages this ConfigMap and would undo a change: write it in what {by} installs."
            ));
            section
        }
        PlannedChange::Done(text) => vec![format!("{title}: {text}.")],
        PlannedChange::Refused(text) => vec![format!("{title}: {text}.")],
    }
}

/// Returns the block that a change adds.
fn block(title: &str, change: &Change) -> Vec<String> {
    let Change { config_map, key, lines, version, after, .. } = change;
    let place = format!("{title}: ConfigMap {KUBE_SYSTEM}/{config_map}");
    if lines.is_empty() {
        return vec![format!(
            "{place}, key {key}: the block of lb-linker isn't needed, because other blocks forward."
        )];
    }
    if key != SERVER_KEY {
        let mut section = vec![format!("{place}, key {key}, needs this block:"), String::new()];
        section.extend(indented(lines));
        return section;
    }
    let mut section =
        vec![format!("{place} needs this key, which the Corefile of CoreDNS imports:"), String::new()];
    if version.is_none() {
        section.push("    apiVersion: v1".to_owned());
        section.push("    kind: ConfigMap".to_owned());
        section.push(format!("    metadata: {{name: {config_map}, namespace: {KUBE_SYSTEM}}}"));
    }
    section.extend(["    data:".to_owned(), format!("      {key}: |")]);
    // All of the value: it may have blocks for other zones.
    section.extend(after.iter().flat_map(|text| text.lines()).map(|line| format!("        {line}")));
    section
}

/// Returns what to add to a ConfigMap that wasn't found.
fn by_hand(title: &str, config_map: &str, lines: &str) -> Vec<String> {
    let key = if config_map == COREDNS_CUSTOM { SERVER_KEY } else { COREFILE };
    let mut section = vec![
        format!(
            "{title}: ConfigMap {KUBE_SYSTEM}/{config_map} wasn't found. Its key {key} needs this block, with the `bind` \
             line of the other blocks if they have one:"
        ),
        String::new(),
    ];
    section.extend(indented(lines));
    section
}

fn eks(dns: &ClusterDns, forwarding: &Forwarding) -> Vec<String> {
    let change = match core_dns(dns, forwarding) {
        Some(PlannedChange::Change(change) | PlannedChange::Managed { change, .. })
            if change.key == COREFILE =>
        {
            change
        }
        Some(step) => return of_step("EKS", step),
        None => return by_hand("EKS", COREDNS, &default_lines(forwarding, false)),
    };
    let mut section = vec![
        "EKS: the configuration of the add-on `coredns` has to hold the whole Corefile. Changes of ConfigMap \
         kube-system/coredns last only until the next update of the add-on. Save this as coredns.yaml; configuration \
         values that the add-on has already have to stand there, too:"
            .to_owned(),
        String::new(),
        // The 4 is YAML's indentation indicator: the first line of the Corefile may begin with a space.
        "    corefile: |4".to_owned(),
    ];
    let text = change.after.unwrap_or_default();
    section.extend(text.lines().map(|line| format!("        {line}").trim_end().to_owned()));
    section.extend([
        String::new(),
        "The first command prints the present values, the second one sets the new ones. If the ConfigMap was edited by \
         hand, it reports a conflict; `--resolve-conflicts OVERWRITE` replaces the edits:"
            .to_owned(),
        String::new(),
        "    aws eks describe-addon --cluster-name <cluster> --addon-name coredns --query addon.configurationValues"
            .to_owned(),
        "    aws eks update-addon --cluster-name <cluster> --addon-name coredns --configuration-values \
         file://coredns.yaml"
            .to_owned(),
        String::new(),
        "If CoreDNS isn't an add-on of this cluster (the first command reports ResourceNotFoundException), add only \
         lb-linker's block, by `kubectl -n kube-system edit configmap coredns` or in the tool that installs CoreDNS."
            .to_owned(),
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
    let zones = serde_json::to_string_pretty(&zones).unwrap_or_default();
    let mut section = vec![
        String::new(),
        "Node pools with LocalDNS also need an override for the zone; without it, LocalDNS may answer with stale targets. \
         Add this to both `kubeDNSOverrides` and `vnetDNSOverrides` in the localdnsconfig.json of the pool:"
            .to_owned(),
        String::new(),
    ];
    // Only the indented lines: the outer braces are in the file already.
    section.extend(zones.lines().filter(|line| line.starts_with(' ')).map(|line| format!("  {line}")));
    section.extend([
        String::new(),
        "This command applies it. AKS then reimages all nodes of the pool:".to_owned(),
        String::new(),
        "    az aks nodepool update --resource-group <group> --cluster-name <cluster> --name <pool> --localdns-config \
         ./localdnsconfig.json"
            .to_owned(),
    ]);
    section
}

fn gke(dns: &ClusterDns, forwarding: &Forwarding) -> Vec<String> {
    let map = dns.config_map(KUBE_DNS);
    let present = map.and_then(|map| value(map, "stubDomains")).unwrap_or_default();
    let present = if present.trim().is_empty() { "{}" } else { present };
    let Ok(mut domains) = serde_json::from_str::<Map<String, Value>>(present) else {
        return vec![format!(
            "GKE: the key stubDomains of ConfigMap {KUBE_SYSTEM}/{KUBE_DNS} isn't a JSON object: correct it first."
        )];
    };
    let upstream = json!([forwarding.upstream()]);
    if forwarding.zones.iter().all(|zone| domains.get(zone) == Some(&upstream)) {
        return vec![format!(
            "GKE: kube-dns forwards {} already (ConfigMap {KUBE_SYSTEM}/{KUBE_DNS}, key stubDomains).",
            forwarding.zones.join(", ")
        )];
    }
    domains.extend(forwarding.zones.iter().map(|zone| (zone.clone(), upstream.clone())));
    let patch = json!({"data": {"stubDomains": Value::Object(domains).to_string()}});
    let others =
        if map.is_none() { " The ConfigMap wasn't found: if it exists, add its other domains." } else { "" };
    vec![
        format!(
            "GKE with kube-dns: it forwards the domains in the key stubDomains of ConfigMap {KUBE_SYSTEM}/{KUBE_DNS}; \
             NodeLocal DNSCache on GKE does the same.{others} Run:"
        ),
        String::new(),
        format!(
            "    kubectl -n {KUBE_SYSTEM} patch configmap {KUBE_DNS} --type merge -p {}",
            shell_quoted(&patch.to_string())
        ),
        String::new(),
        "kube-dns caches answers for their TTL: 5 seconds by default.".to_owned(),
    ]
}

fn open_shift(dns: &ClusterDns, forwarding: &Forwarding) -> Vec<String> {
    let found = operator_zones(dns, &forwarding.zones);
    let foreign = found.iter().filter(|(_, block)| !block.is_ours);
    let wrong = foreign.clone().find_map(|(place, block)| wrong_upstreams(place, block, forwarding, &[]));
    if let Some(wrong) = wrong {
        return vec![format!("OpenShift: {wrong}: correct it with `oc edit dns.operator/default`.")];
    }
    let has_server = |zone: &&String| foreign.clone().any(|(_, block)| block.zone == **zone);
    let zones: Vec<&String> = forwarding.zones.iter().filter(|zone| !has_server(zone)).collect();
    let is_right = |zone: &&String| {
        let mut own = found.iter().filter(|(_, block)| block.is_ours && block.zone == **zone);
        own.any(|(place, block)| wrong_upstreams(place, block, forwarding, &[]).is_none())
    };
    if zones.iter().all(is_right) {
        let zones = forwarding.zones.join(", ");
        return vec![format!("OpenShift: the DNS operator forwards {zones} already.")];
    }
    let servers =
        dns.dns_operator.as_ref().and_then(|operator| operator.data.pointer("/spec/servers")?.as_array());
    let place = match operator_server(servers.map_or(&[], Vec::as_slice), &zones, &forwarding.upstream()) {
        Ok(place) => place,
        Err(reason) => {
            return vec![format!("OpenShift: {reason}: correct it with `oc edit dns.operator/default`.")];
        }
    };
    let server = json!({
        "name": place.name,
        "zones": place.zones,
        "forwardPlugin": {"policy": "Sequential", "upstreams": [forwarding.upstream()]},
    });
    let patch = match (servers, place.index) {
        (_, Some(index)) => json!([
            {"op": "test", "path": format!("/spec/servers/{index}/name"), "value": place.name},
            {"op": "replace", "path": format!("/spec/servers/{index}"), "value": server},
        ]),
        (Some(_), None) => json!([{"op": "add", "path": "/spec/servers/-", "value": server}]),
        (None, None) => json!([{"op": "add", "path": "/spec/servers", "value": [server]}]),
    };
    vec![
        "OpenShift: the DNS operator writes CoreDNS's Corefile from spec.servers of dns.operator/default. Run:".to_owned(),
        String::new(),
        format!("    oc patch dns.operator/default --type json -p {}", shell_quoted(&patch.to_string())),
        String::new(),
        "Its server blocks cache answers for their TTL: 5 seconds by default.".to_owned(),
    ]
}

/// Where lb-linker's zones stand in `spec.servers` of OpenShift's DNS operator.
struct OperatorServer {
    /// The index of the server to replace; `None` for a new one.
    index: Option<usize>,
    name: String,
    zones: Vec<String>,
}

/// Returns the server for these zones: an own one with the same address, or with no other zones, or else a new one.
///
/// # Errors
/// If a zone stands in another own server, with a clause about it.
fn operator_server(servers: &[Value], zones: &[&String], upstream: &str) -> Result<OperatorServer, String> {
    let others = |server: &Value| -> Vec<String> {
        let all = texts(&server["zones"]).into_iter();
        all.filter(|zone| !zones.contains(&zone)).collect()
    };
    let fits = |server: &Value| {
        texts(&server["forwardPlugin"]["upstreams"]) == [upstream] || others(server).is_empty()
    };
    let name = |server: &Value| server["name"].as_str().unwrap_or_default().to_owned();
    let index = servers.iter().position(|server| is_own_server(&name(server)) && fits(server));
    for (_, server) in
        servers.iter().enumerate().filter(|(i, server)| Some(*i) != index && is_own_server(&name(server)))
    {
        if let Some(zone) = texts(&server["zones"]).iter().find(|zone| zones.contains(zone)) {
            return Err(format!(
                "dns.operator/default, server {}: {zone} stands there beside zones of another address",
                name(server)
            ));
        }
    }
    let mut all: Vec<String> = index.and_then(|index| servers.get(index)).map(others).unwrap_or_default();
    all.extend(zones.iter().map(|zone| (*zone).clone()));
    let free = || {
        let mut names = std::iter::once(OPERATOR_SERVER.to_owned())
            .chain((2..).map(|i| format!("{OPERATOR_SERVER}-{i}")));
        names.find(|free| !servers.iter().any(|server| name(server) == *free)).unwrap_or_default()
    };
    let name = index.and_then(|index| servers.get(index)).map_or_else(free, name);
    Ok(OperatorServer { index, name, zones: all })
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
        // The playbook always writes the plugin *cache*, and CoreDNS refuses a TTL of 0 there.
        section.push("        cache: 5".to_owned());
    }
    section
}

fn dnsmasq(forwarding: &Forwarding) -> Vec<String> {
    let address = forwarding.addresses.first().map_or_else(String::new, ToString::to_string);
    let port =
        if forwarding.port == super::DNS_PORT { String::new() } else { format!("#{}", forwarding.port) };
    let mut section = vec![
        "dnsmasq, on a machine that reaches the cluster's Services, such as a node. In /etc/dnsmasq.d/lb-linker.conf:"
            .to_owned(),
        String::new(),
    ];
    section.extend(forwarding.zones.iter().map(|zone| format!("    server=/{zone}/{address}{port}")));
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
        String::new(),
        "systemd-resolved asks global servers for other names, too, beside those of the links; lb-linker refuses or \
         forwards these (--client-nets). Don't use this where another global server is set by `DNS=`: the zone may be \
         sent to that server. dnsmasq has neither problem."
            .to_owned(),
    ]
}

fn cant_forward(unsupported: Unsupported) -> Vec<String> {
    let name = match unsupported {
        Unsupported::GkeCloudDns => {
            "GKE with Cloud DNS (/etc/resolv.conf of a Pod names the server 169.254.169.254): it"
        }
        Unsupported::GkeAutopilot => "GKE Autopilot: its DNS",
        Unsupported::EksAutoMode => "Nodes of EKS Auto Mode: their DNS",
    };
    vec![
        format!("{name} can't forward a zone to an address in the cluster. Instead, use"),
        "- a sidecar, which answers the queries of its Pod: docs/sidecar.md;".to_owned(),
        "- or the external target's own name, which the cluster DNS answers by itself:".to_owned(),
        "  <service>-<namespace>-ext.external-targets.svc.cluster.local.".to_owned(),
    ]
}

/// Returns a text as one word of a shell.
fn shell_quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

fn indented(text: &str) -> impl Iterator<Item = String> {
    text.lines().map(|line| format!("    {line}").trim_end().to_owned())
}

#[cfg(test)]
mod tests;
